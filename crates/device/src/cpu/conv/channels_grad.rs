//! The kernel gradient of a convolution with many output channels: vector lanes are the channels of `g`, which is
//! transposed for that, and the source is broadcast from a padded copy, in which neighbouring taps have neighbouring
//! operands.
#![allow(unsafe_code)]

use std::ops::Range;

use super::KernelGrad;
use super::bands::Reach;
use super::kernel::{ChannelTile, StoreTile};
use super::padded_copy::PaddedCopy;
use super::position_tile::{MAX_TASK_BOXES_LEN, Piece, PositionTile, Prefetch, SUMS_LEN, TILES_PER_RUN};
use super::view::{Axis, inner_range};
use crate::cpu::LINE;
use crate::cpu::gemm::plan::Tiling;
use crate::cpu::kernels::Kernels;
use dittograd_numerics::K_CHUNK;

/// The most terms of a run, so that transposed `g` of a run stays in the L1 cache.
const GRAD_RUN: usize = 96;
/// The most columns of a tile. Few columns leave registers for more vectors.
const GRAD_MR: usize = 6;

/// The gradient of a kernel with at most two spatial axes and no strides.
pub(super) struct ByChannelsGrad {
    grad: KernelGrad,
    down: Reach,
    along: Reach,
    /// Floats from one line of a box to the next.
    pitch: usize,
    /// Upper bound of the floats of a channel's box.
    max_box: usize,
}

/// What a thread keeps between blocks.
#[derive(Default)]
pub(super) struct BlockCache {
    /// The rows of `g` and the channels that the workspace holds: group, first one, and chunk.
    rows: Option<[usize; 3]>,
    channels: Option<[usize; 3]>,
    copy: PaddedCopy,
    /// The position of each output in the box of a channel, and all tiles.
    offsets: Vec<usize>,
    tiles: Vec<PositionTile>,
}

impl ByChannelsGrad {
    /// The plan, if the gradient is faster this way.
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
        // The lines of a chunk, and the padding of the images that it touches.
        let lines = (k.min(K_CHUNK) - 1) / along.axis.positions + 2;
        let max_box = (lines + ((lines - 1) / down.axis.positions + 2) * down.more()) * pitch;
        (max_box * 8 <= MAX_TASK_BOXES_LEN).then_some(ByChannelsGrad {
            grad: *grad,
            down,
            along,
            pitch,
            max_box,
        })
    }

    /// Taps of the kernel.
    pub fn taps(&self) -> usize {
        self.grad.view.taps()
    }

    /// The most channels of a block.
    pub fn channels(&self) -> usize {
        MAX_TASK_BOXES_LEN / self.max_box
    }

    /// Floats of workspace for a block of this many rows and channels.
    pub fn slot_len(&self, rows: usize, channels: usize) -> usize {
        let k = self.grad.k().min(K_CHUNK);
        (channels * self.max_box).next_multiple_of(LINE) + rows.next_multiple_of(LINE) * k + 2 * SUMS_LEN
    }

    /// Copies the source at a chunk's positions, for some channels of a group, and lists where each position is.
    ///
    /// # Safety
    /// `source` points to what `KernelGrad` says, and `to` to room for the boxes of these channels.
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
        let (line_len, lines_per_image) = (along.axis.positions, down.axis.positions);
        let (first, end) = (k0 / line_len, (k0 + kc).div_ceil(line_len));
        let images = first / lines_per_image..end.div_ceil(lines_per_image);
        let plane = (end - first + images.len() * down.more()) * self.pitch;
        let (from, to_x) = inner_range(along.low, 1, along.axis.source, self.pitch);
        cache.offsets.clear();
        let mut at = 0;
        for n in images {
            let (y0, y1) = (
                first.max(n * lines_per_image) - n * lines_per_image,
                end.min((n + 1) * lines_per_image) - n * lines_per_image,
            );
            let lines = y1 - y0 + down.more();
            cache.copy.begin(lines, self.pitch, 1);
            for y in (0..lines).map(|j| (y0 + j) as isize + down.low) {
                let inside = y >= 0 && y < down.axis.source as isize && from < to_x;
                let line = y * along.axis.source as isize + along.low;
                cache.copy.line(line, if inside { from..to_x } else { 0..0 });
            }
            for (i, c) in part.clone().enumerate() {
                let source = source.wrapping_add(((n * groups + group) * channels + c) * view.plane());
                // SAFETY: upheld by the caller; these lines are of this channel.
                unsafe { cache.copy.run(kernels, source, 0, 1, to.wrapping_add(i * plane + at)) };
            }
            for y in y0..y1 {
                let line = (n * lines_per_image + y) * line_len;
                let inside = line.max(k0)..(line + line_len).min(k0 + kc);
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

    /// The part of channels `mine` to prefetch for a chunk. A group of an image has `channels` channels of `positions`
    /// elements.
    fn next_chunk(
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

    /// Computes rows `mine` of a group of the gradient, at the taps of channels `part`, over some chunks. The thread's next
    /// chunk is `later` chunks later.
    ///
    /// # Safety
    /// `g` and `source` point to what `KernelGrad` says, `to` to a whole gradient of which no other call writes this
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
        // These regions do not depend on the block, so their contents can be reused.
        let (sums, transposed) = (slot, slot.wrapping_add(SUMS_LEN));
        let transposed_g = transposed.wrapping_add(SUMS_LEN);
        let boxes = transposed_g.wrapping_add(most_rows.next_multiple_of(LINE) * k.min(K_CHUNK));
        let to = to.wrapping_add(group * rows * columns + part.start * taps);
        let tiling = Tiling { width, max_vectors: max_vectors[mr.min(GRAD_MR) - 1], end: mine.end };
        let first_chunk = chunks.start;
        for chunk in chunks {
            let k0 = chunk * K_CHUNK;
            let kc = (k - k0).min(K_CHUNK);
            let key = Some([group, part.start, chunk]);
            if cache.channels != key {
                // SAFETY: upheld by the caller; the workspace has room for these boxes.
                unsafe { self.fill(kernels, source, (group, part.clone()), (k0, kc), boxes, cache) };
                cache.channels = key;
            }
            let runs = kc.div_ceil(GRAD_RUN);
            // The last runs prefetch what is written next, those before them what the next chunk reads.
            let writing = runs.min(3);
            let turns =
                cache.tiles.len() * (runs - writing) * mine.len().div_ceil(tiling.max_vectors * width) / 2;
            let mut next_g = self.next_chunk(g, chunk + later, [rows, positions], (group, &mine), turns);
            let mut next_x =
                self.next_chunk(source, chunk + later, [channels, view.plane()], (group, &part), turns);
            let key = Some([group, mine.start, chunk]);
            let fresh = cache.rows != key;
            cache.rows = key;
            let mut i = mine.start;
            while i < mine.end {
                let (log, valid) = tiling.at(i);
                let vectors = 1 << log;
                let w = transposed_g.wrapping_add((i - mine.start) * kc);
                let mut at = k0;
                while fresh && at < k0 + kc {
                    // As many terms as are in one image.
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
                            // SAFETY: the processor has the SIMD level of the kernels; positions and taps are inside the
                            // boxes.
                            unsafe { channel_tile[both - 1][log](&t) };
                            cols += both;
                        }
                    }
                    let col_vectors = cols.div_ceil(width);
                    // SAFETY: the rows and columns are inside the gradient; there is room for the transposed tiles.
                    unsafe {
                        pack_transposed(sums, vectors * width, cols, col_vectors, valid, transposed);
                        store_tile(&StoreTile {
                            from: transposed,
                            from_stride: col_vectors * width,
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
