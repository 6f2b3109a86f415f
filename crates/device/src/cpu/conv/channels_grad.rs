//! The gradient of a convolution's kernel, by output channels.
#![allow(unsafe_code)]

use std::ops::Range;

use super::KernelGrad;
use super::bands::Reach;
use super::channels::{ALL_BOXES_LEN, PaddedCopy, Piece, PositionTile, Prefetch, SUMS_LEN, TILES_PER_RUN};
use super::kernel::{ChannelTile, StoreTile};
use super::view::{Axis, inner_range};
use crate::cpu::LINE;
use crate::cpu::gemm::plan::Tiling;
use crate::cpu::kernels::Kernels;
use dittograd_numerics::K_CHUNK;

/// The same for gradients of kernels, and the most columns of a tile, which then has more vectors.
const GRAD_RUN: usize = 96;
const GRAD_MR: usize = 6;

/// The gradient of a kernel: vectors run along the channels of `g`, which is turned for that, and the source is broadcast
/// from a copy that has its padding. Neighbouring taps have neighbouring operands.
pub(crate) struct ByChannelsGrad {
    grad: KernelGrad,
    down: Reach,
    along: Reach,
    /// Floats from one line of a box to the next.
    pitch: usize,
    /// The most floats of a channel's box.
    max_vectors: usize,
}

/// What a thread remembers from one block to the next.
#[derive(Default)]
pub(crate) struct BlockCache {
    /// Which rows of `g` and which channels the workspace has: group, the first, and the chunk.
    rows: Option<[usize; 3]>,
    channels: Option<[usize; 3]>,
    copy: PaddedCopy,
    /// Where each position lies in the box of a channel, and all tiles.
    offsets: Vec<usize>,
    tiles: Vec<PositionTile>,
}

impl ByChannelsGrad {
    /// The gradient, if it is better off here.
    pub fn new(grad: &KernelGrad) -> Option<ByChannelsGrad> {
        let KernelGrad { view, batch, rows, .. } = *grad;
        let (down, along) = match *view.axes() {
            [along] => (Axis::ONE, along),
            [down, along] => (down, along),
            _ => return None,
        };
        let k = batch * view.positions();
        let simple = down.step == 1 && along.step == 1 && along.tap_step == 1 && along.taps >= 3;
        if !simple || rows < 32 || rows * 7 < rows.next_multiple_of(LINE) * 6 || k < 128 {
            return None;
        }
        let (down, along) = (Reach::of(down), Reach::of(along));
        let pitch = along.axis.positions + along.more();
        // The lines of a chunk, and of the images that it cuts.
        let lines = (k.min(K_CHUNK) - 1) / along.axis.positions + 2;
        let max_vectors = (lines + ((lines - 1) / down.axis.positions + 2) * down.more()) * pitch;
        (max_vectors * 8 <= ALL_BOXES_LEN).then_some(ByChannelsGrad {
            grad: *grad,
            down,
            along,
            pitch,
            max_vectors,
        })
    }

    pub fn taps(&self) -> usize {
        self.grad.view.taps()
    }

    /// The most channels of a block.
    pub fn channels(&self) -> usize {
        ALL_BOXES_LEN / self.max_vectors
    }

    /// Floats of workspace for a block of so many rows and channels.
    pub fn slot_len(&self, rows: usize, channels: usize) -> usize {
        let k = self.grad.k().min(K_CHUNK);
        (channels * self.max_vectors).next_multiple_of(LINE) + rows.next_multiple_of(LINE) * k + 2 * SUMS_LEN
    }

    /// Copies the source of a chunk's positions, for some channels of a group, and writes down where it is.
    ///
    /// # Safety
    /// `source` leads to what `KernelGrad` says, and `to` to room for the boxes of so many channels.
    unsafe fn fill(
        &self,
        kernels: &Kernels,
        source: *const f32,
        (group, part): (usize, Range<usize>),
        (k0, kc): (usize, usize),
        to: *mut f32,
        cache: &mut BlockCache,
    ) {
        let KernelGrad { view, groups, channels, .. } = self.grad;
        let (down, along) = (&self.down, &self.along);
        let (channel_tile, tall) = (along.axis.positions, down.axis.positions);
        let (first, end) = (k0 / channel_tile, (k0 + kc).div_ceil(channel_tile));
        let images = first / tall..end.div_ceil(tall);
        let plane = (end - first + images.len() * down.more()) * self.pitch;
        let (from, to_x) = inner_range(along.low, 1, along.axis.source, self.pitch);
        cache.offsets.clear();
        let mut at = 0;
        for n in images {
            let (y0, y1) = (first.max(n * tall) - n * tall, end.min((n + 1) * tall) - n * tall);
            let lines = y1 - y0 + down.more();
            cache.copy.begin(lines, self.pitch, 1);
            for y in (0..lines).map(|j| (y0 + j) as isize + down.low) {
                let inside = y >= 0 && y < down.axis.source as isize && from < to_x;
                let line = y * along.axis.source as isize + along.low;
                cache.copy.line(line, if inside { from..to_x } else { 0..0 });
            }
            for (i, c) in part.clone().enumerate() {
                let source = source.wrapping_add(((n * groups + group) * channels + c) * view.plane());
                // SAFETY: the caller's; these lines are of this channel.
                unsafe { cache.copy.run(kernels, source, 0, 1, to.wrapping_add(i * plane + at)) };
            }
            for y in y0..y1 {
                let line = (n * tall + y) * channel_tile;
                let inside = line.max(k0)..(line + channel_tile).min(k0 + kc);
                cache.offsets.extend(inside.map(|k| at + (y - y0) * self.pitch + k - line));
            }
            at += lines * self.pitch;
        }
        // Tiles of neighbouring taps, in the order of the kernel.
        cache.tiles.clear();
        let half = kernels.mr.min(GRAD_MR) / 2;
        let count = along.axis.taps.div_ceil(half);
        let pieces: Vec<Piece> = (0..part.len() * view.taps() / along.axis.taps * count)
            .map(|piece| {
                let (line, i) = (piece / count, piece % count);
                let cut = |i: usize| (i * along.axis.taps).div_ceil(count);
                let (c, y) = (line / down.axis.taps, line % down.axis.taps);
                let at = c * plane + down.above(y) * self.pitch + along.above(cut(i));
                Piece { at, out: line * along.axis.taps + cut(i), len: cut(i + 1) - cut(i) }
            })
            .collect();
        let mut left = &pieces[..];
        while let Some((tile, rest)) = PositionTile::next(left, true) {
            cache.tiles.push(tile);
            left = rest;
        }
    }

    /// What a chunk needs of `mine` of the channels of images, of which a group has `channels`, of so many positions.
    fn next(
        &self,
        from: *const f32,
        chunk: usize,
        [channels, positions]: [usize; 2],
        (group, mine): (usize, &Range<usize>),
        turns: usize,
    ) -> Prefetch {
        let (k, k0) = (self.grad.k(), chunk * K_CHUNK);
        let (n, o) = (k0 / self.grad.view.positions(), k0 % self.grad.view.positions());
        let kc = k.saturating_sub(k0).min(K_CHUNK);
        let from = from.wrapping_add(((n * self.grad.groups + group) * channels + mine.start) * positions);
        match kc <= positions {
            true => Prefetch::new(from.wrapping_add(o), kc, positions, mine.len(), turns),
            false => {
                let image = self.grad.groups * channels * positions;
                Prefetch::new(from, mine.len() * positions, image, kc.div_ceil(positions), turns)
            }
        }
    }

    /// Computes some rows of a group of the gradient, at the taps of some channels, over some chunks. A thread's next
    /// chunk is `later` by so many.
    ///
    /// # Safety
    /// `g` and `source` lead to what `KernelGrad` says, `to` to a whole gradient of which no other call writes this
    /// block, and `slot` to `slot_len` floats for `most_rows` rows that no other thread uses.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn block(
        &self,
        kernels: &Kernels,
        most_rows: usize,
        g: *const f32,
        source: *const f32,
        (group, mine, part): (usize, Range<usize>, Range<usize>),
        chunks: Range<usize>,
        later: usize,
        to: *mut f32,
        first: bool,
        slot: *mut f32,
        cache: &mut BlockCache,
    ) {
        let KernelGrad { view, groups, rows, channels, .. } = self.grad;
        let Kernels { width, mr, ref max_vectors, ref channel_tile, pack_transposed, store_tile, .. } =
            *kernels;
        let (k, taps, positions) = (self.grad.k(), view.taps(), view.positions());
        let columns = channels * taps;
        // Where these are does not depend on the block, so that they can be held.
        let (sums, turned) = (slot, slot.wrapping_add(SUMS_LEN));
        let turned_g = turned.wrapping_add(SUMS_LEN);
        let boxes = turned_g.wrapping_add(most_rows.next_multiple_of(LINE) * k.min(K_CHUNK));
        let to = to.wrapping_add(group * rows * columns + part.start * taps);
        let tiling = Tiling { width, max_vectors: max_vectors[mr.min(GRAD_MR) - 1], end: mine.end };
        let first_chunk = chunks.start;
        for chunk in chunks {
            let k0 = chunk * K_CHUNK;
            let kc = (k - k0).min(K_CHUNK);
            let key = Some([group, part.start, chunk]);
            if cache.channels != key {
                // SAFETY: the caller's; the workspace begins with room for these boxes.
                unsafe { self.fill(kernels, source, (group, part.clone()), (k0, kc), boxes, cache) };
                cache.channels = key;
            }
            let runs = kc.div_ceil(GRAD_RUN);
            // A few runs ask for what is written when the sums are done, those before for what comes next.
            let writing = runs.min(3);
            let turns =
                cache.tiles.len() * (runs - writing) * mine.len().div_ceil(tiling.max_vectors * width) / 2;
            let mut next_g = self.next(g, chunk + later, [rows, positions], (group, &mine), turns);
            let mut next_x =
                self.next(source, chunk + later, [channels, view.plane()], (group, &part), turns);
            let key = Some([group, mine.start, chunk]);
            let fresh = cache.rows != key;
            cache.rows = key;
            let mut i = mine.start;
            while i < mine.end {
                let (log, valid) = tiling.at(i);
                let vectors = 1 << log;
                let w = turned_g.wrapping_add((i - mine.start) * kc);
                let mut at = k0;
                while fresh && at < k0 + kc {
                    // As many terms as lie in one image.
                    let (n, o) = (at / positions, at % positions);
                    let some = (positions - o).min(k0 + kc - at);
                    let from = g.wrapping_add(((n * groups + group) * rows + i) * positions + o);
                    // SAFETY: the rows and these terms are inside g, and the workspace has vectors for all.
                    unsafe {
                        let to = w.wrapping_add((at - k0) * vectors * width);
                        pack_transposed(from, positions, valid, vectors, some, to);
                    }
                    at += some;
                }
                for tiles in cache.tiles.chunks(TILES_PER_RUN) {
                    let mut cols = 0;
                    for r in 0..runs {
                        let (kr, end) = (r * kc / runs, (r + 1) * kc / runs);
                        cols = 0;
                        for (index, tile) in tiles.iter().enumerate() {
                            let (prefetch, prefetch_step, prefetches) = match (r + writing).checked_sub(runs)
                            {
                                Some(r) => {
                                    let line = (i + r * valid / writing) * columns + tile.out[0];
                                    (to.wrapping_add(line).cast_const(), columns, valid.div_ceil(writing))
                                }
                                None if index % 2 == 0 => next_g.take(),
                                None => next_x.take(),
                            };
                            let t = ChannelTile {
                                kc: end - kr,
                                offsets: cache.offsets[kr..].as_ptr(),
                                x: tile.at.map(|at| boxes.wrapping_add(at).cast_const()),
                                w: w.wrapping_add(kr * vectors * width),
                                to: sums.wrapping_add(cols * vectors * width),
                                begin: r == 0,
                                prefetch,
                                prefetch_step,
                                prefetches,
                            };
                            let both = tile.len[0] + tile.len[1];
                            // SAFETY: the kernels are of a level that the processor has; positions and taps are inside
                            // the boxes.
                            unsafe { channel_tile[both - 1][log](&t) };
                            cols += both;
                        }
                    }
                    let channel_tile = cols.div_ceil(width);
                    // SAFETY: the rows and columns are inside the gradient; there is room for so many turned tiles.
                    unsafe {
                        pack_transposed(sums, vectors * width, cols, channel_tile, valid, turned);
                        store_tile(&StoreTile {
                            from: turned,
                            from_stride: channel_tile * width,
                            to: to.wrapping_add(i * columns + tiles[0].out[0]),
                            to_stride: columns,
                            to_step: 1,
                            rows: valid,
                            cols,
                            add: !first || chunk > first_chunk,
                            bias: std::ptr::null(),
                        });
                    }
                }
                i += valid;
            }
        }
    }
}
