//! Convolution with many output channels: vector lanes are output channels, and source elements are broadcast from a
//! padded copy, the box. So an element is copied once, not once per tap.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::Gather;
use super::bands::{Bands, digits};
use super::kernel::{ChannelTile, StoreTransposed};
use super::padded_copy::PaddedCopy;
use super::position_tile::{MAX_TASK_BOXES_LEN, Piece, PositionTile, Prefetch, SUMS_LEN, TILES_PER_RUN};
use crate::cpu::LINE;
use crate::cpu::gemm::plan::{MAX_MR, PANEL, Tiling};
use crate::cpu::kernels::Kernels;
use crate::cpu::simd::Simd;
use crate::cpu::threads::{Pool, SharedPtr};
use dittograd_numerics::K_CHUNK;

/// The most terms of a run, so that the packed kernel of a run stays in the L1 cache.
const K_RUN: usize = 160;
/// The most positions of a line of a box.
const MAX_LINE_POSITIONS: usize = 448;
/// Rows that a task packs at a time when it packs rows for itself.
const PACKED_ROWS_PER_STEP: usize = 4 * PANEL;
/// The most floats of the boxes of a task, so that they stay in the L2 cache.
const BOX_LEN: usize = 96 * K_CHUNK;
/// From this many positions of a line, a strided convolution needs only two taps per copied element to pay for the
/// copy.
const MIN_LONG_LINE_POSITIONS: usize = 14;
/// Up to this many columns, packing the kernel takes most of the time.
const MAX_PACKING_BOUND_COLUMNS: usize = 256;
/// The most floats of a kernel that stays in the L2 cache beside the boxes.
const MAX_CACHED_KERNEL: usize = 192 * K_CHUNK;

/// A convolution and its plan. A task computes some rows of a group at the positions of some boxes. The workspace has
/// the packed kernel, then a slot per thread with boxes, the sums of tiles, and rows that the task packs for itself.
pub(super) struct ByChannels {
    gather: Gather,
    bands: Bands,
    /// Boxes per image, and per task.
    per_image: usize,
    boxes: usize,
    /// Rows of a task: whole panels, except for the last task.
    rows: usize,
    row_blocks: usize,
    col_blocks: usize,
}

impl ByChannels {
    /// The plan, if the convolution is faster this way.
    pub fn new(gather: &Gather, threads: usize) -> Option<ByChannels> {
        let Gather { view, batch, groups, rows, .. } = *gather;
        let k = gather.k();
        let work = batch.saturating_mul(view.positions()).saturating_mul(groups * rows).saturating_mul(k);
        let inner = view.axes()[view.axes().len() - 1];
        let steps = view.axes().iter().map(|a| a.step).product::<usize>();
        // A copy pays off if there are several taps per copied element, or if there are so few columns and so many rows
        // that packing the kernel takes most of the time.
        let some = if steps > 1 && inner.positions >= MIN_LONG_LINE_POSITIONS { 2 } else { 6 };
        let few = view.taps() == 1 && batch * view.positions() <= MAX_PACKING_BOUND_COLUMNS && rows >= k;
        if view.taps() < some * steps && !few
            || rows < 32
            || rows * 7 < rows.next_multiple_of(LINE) * 6
            || inner.positions < 5
            || inner.out_step > 1
            || k < 128
            || work < 1 << 20
        {
            return None;
        }
        let bands = Bands::new(gather, MAX_LINE_POSITIONS, BOX_LEN)?;
        let box_len = gather.channels * bands.channel;
        if box_len > MAX_TASK_BOXES_LEN {
            return None;
        }
        let per_image = bands.around.iter().map(|a| a.axis.positions).product::<usize>()
            * bands.blocks().iter().product::<usize>();
        let all = batch * per_image;
        let panels = rows.div_ceil(PANEL);
        // A few tasks per thread. If the whole kernel stays in the cache, tasks are cut by boxes, otherwise by rows
        // first.
        let target = if threads == 1 { 1 } else { 4 * threads };
        let cached = rows * k <= MAX_CACHED_KERNEL;
        let least = if !cached && all * box_len <= MAX_TASK_BOXES_LEN {
            1
        } else {
            all.div_ceil((BOX_LEN / box_len).max(1))
        };
        let blocks = if cached { least.max(target) } else { least };
        let boxes = all.div_ceil(blocks);
        let col_blocks = all.div_ceil(boxes);
        let row_blocks = target.div_ceil(groups * col_blocks).min(panels);
        let rows_of = panels.div_ceil(row_blocks) * PANEL;
        let row_blocks = rows.div_ceil(rows_of);
        Some(ByChannels { gather: *gather, bands, per_image, boxes, rows: rows_of, row_blocks, col_blocks })
    }

    /// Floats of a box.
    fn box_len(&self) -> usize {
        self.gather.channels * self.bands.channel
    }

    /// Whether each row of the kernel is used by one task only, which then packs it itself.
    fn packs_own_rows(&self) -> bool {
        self.col_blocks == 1
    }

    /// Whether the whole kernel stays in the cache.
    fn is_kernel_cached(&self) -> bool {
        self.gather.rows * self.gather.k() <= MAX_CACHED_KERNEL
    }

    fn packed_rows(&self) -> usize {
        if self.packs_own_rows() { 0 } else { self.gather.rows.next_multiple_of(LINE) }
    }

    fn slot_len(&self) -> usize {
        let own = if self.packs_own_rows() { PACKED_ROWS_PER_STEP * K_CHUNK } else { 0 };
        (self.boxes * self.box_len()).next_multiple_of(LINE) + SUMS_LEN + own
    }

    /// Number of floats of workspace that [`ByChannels::run`] needs with a pool of `threads`.
    pub fn scratch_len(&self, threads: usize) -> usize {
        LINE + self.gather.groups * self.packed_rows() * self.gather.k() + threads * self.slot_len()
    }

    /// Computes the result; the slices have the lengths that the sizes give.
    #[allow(clippy::too_many_arguments)]
    pub fn run(
        &self,
        pool: &Pool,
        simd: Simd,
        source: &[f32],
        w: &[f32],
        bias: Option<&[f32]>,
        out: &mut [f32],
        scratch: &mut [f32],
    ) {
        let Gather { groups, rows, .. } = self.gather;
        let (k, threads) = (self.gather.k(), pool.threads());
        let kernels = Kernels::of(simd);
        let skip = scratch.as_ptr().align_offset(4 * LINE).min(LINE);
        let (packed, slots) = scratch[skip..].split_at_mut(groups * self.packed_rows() * k);
        let slot_len = self.slot_len();
        assert!(slots.len() >= threads * slot_len, "length of scratch");
        let (packed, slots) = (SharedPtr(packed.as_mut_ptr()), SharedPtr(slots.as_mut_ptr()));
        let panels = self.packed_rows().div_ceil(PANEL);
        pool.run(groups * panels, |task| {
            let (group, i0) = (task / panels, task % panels * PANEL);
            let to = packed.at((group * self.packed_rows() + i0) * k);
            let tiling = Tiling { width: kernels.width, max_vectors: 2, end: rows.min(i0 + PANEL) };
            let mut i = i0;
            while i < tiling.end {
                let (log, valid) = tiling.at(i);
                let to = to.wrapping_add((i - i0) * k);
                // SAFETY: the rows are inside the kernel, the workspace has room for all rows in whole vectors, and `run` gives
                // each panel to one call.
                unsafe { self.gather.pack(kernels, w.as_ptr(), (group, i, valid), (0, k), 1 << log, to) };
                i += valid;
            }
        });
        let work = ChannelsWork {
            by_channels: self,
            kernels,
            source,
            w: w.as_ptr(),
            bias: bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
            packed,
            out: SharedPtr(out.as_mut_ptr()),
        };
        let tasks = groups * self.col_blocks * self.row_blocks;
        let next = AtomicUsize::new(0);
        pool.run(threads.min(tasks), |slot| {
            let slot = slots.at(slot * slot_len);
            let (mut pieces, mut copy, mut filled) = (Vec::new(), PaddedCopy::default(), None);
            loop {
                let task = next.fetch_add(1, Relaxed);
                if task >= tasks {
                    break;
                }
                let (part, block) = (task / self.row_blocks, task % self.row_blocks);
                // SAFETY: the counter gives each task once, tasks write different results, and the slot's workspace, whose length
                // was checked, belongs to this call.
                unsafe {
                    if filled != Some(part) {
                        work.fill(part, slot, &mut pieces, &mut copy);
                        filled = Some(part);
                    }
                    work.block(part, block, slot, &pieces, threads);
                }
            }
        });
    }
}

/// A convolution in progress.
struct ChannelsWork<'a> {
    by_channels: &'a ByChannels,
    kernels: &'static Kernels,
    source: &'a [f32],
    w: *const f32,
    bias: *const f32,
    packed: SharedPtr,
    out: SharedPtr,
}

// SAFETY: the pointers point into slices that `ByChannels::run` borrows for as long as this lives; what is written is kept
// apart between tasks.
unsafe impl Sync for ChannelsWork<'_> {}

impl ChannelsWork<'_> {
    /// The part of the source to prefetch for part `part`.
    fn next_boxes(&self, part: usize, turns: usize) -> Prefetch {
        let ByChannels { gather, per_image, boxes, col_blocks, .. } = *self.by_channels;
        let plane = gather.view.plane();
        let (group, first) = (part / col_blocks, part % col_blocks * boxes);
        let (n, unit) = (first / per_image, first % per_image);
        let image = self.source.as_ptr().wrapping_add((n * gather.groups + group) * gather.channels * plane);
        if group >= gather.groups {
            return Prefetch::new(image, 0, 0, 0, turns);
        }
        if per_image > 1 {
            // About the same fraction of each channel.
            let of = |unit: usize| plane * unit / per_image;
            return Prefetch::new(
                image.wrapping_add(of(unit)),
                of(unit + boxes) - of(unit),
                plane,
                gather.channels,
                turns,
            );
        }
        let images = boxes.min(gather.batch - n);
        Prefetch::new(image, gather.channels * plane, gather.groups * gather.channels * plane, images, turns)
    }

    /// The part of the kernel to prefetch for rows `i` of a chunk that starts at `k0`.
    fn next_rows(&self, group: usize, i: Range<usize>, k0: usize, turns: usize) -> Prefetch {
        let gather = &self.by_channels.gather;
        let [by_group, by_row, by_channel] = gather.w_strides;
        let (taps, kc) = (gather.view.taps(), (gather.k() - k0).min(K_CHUNK));
        let w = self.w.wrapping_add(group * by_group + i.start * by_row);
        match by_channel == taps {
            true => Prefetch::new(w.wrapping_add(k0), kc, by_row, i.len(), turns),
            false => {
                let w = w.wrapping_add(k0 / taps * by_channel);
                Prefetch::new(w, i.len() * by_row, by_channel, kc / taps + 1, turns)
            }
        }
    }

    /// Copies the boxes of a part, and lists their positions in pieces of at most half a tile.
    ///
    /// # Safety
    /// `slot` points to `slot_len` floats that no other thread uses.
    unsafe fn fill(&self, part: usize, slot: *mut f32, pieces: &mut Vec<Piece>, copy: &mut PaddedCopy) {
        let ByChannels { gather, ref bands, per_image, boxes, col_blocks, .. } = *self.by_channels;
        let Gather { view, batch, groups, rows, channels, .. } = gather;
        let (group, first) = (part / col_blocks, part % col_blocks * boxes);
        let (down, along) = (&bands.down.axis, &bands.along.axis);
        let blocks = bands.blocks();
        let half = self.kernels.mr / 2;
        pieces.clear();
        for (index, unit) in (first..(first + boxes).min(batch * per_image)).enumerate() {
            let (n, unit) = (unit / per_image, unit % per_image);
            let around = digits(unit / (blocks[0] * blocks[1]), &bands.around, |a| a.positions);
            let (l0, p0) = (unit / blocks[1] % blocks[0] * bands.lines, unit % blocks[1] * bands.positions);
            let image = n * groups + group;
            let source = &self.source[image * channels * view.plane()..][..channels * view.plane()];
            let at = index * self.by_channels.box_len();
            copy.begin(bands.channel / bands.pitch, bands.pitch, along.step);
            bands.lines(&around, l0, p0, |at, inside| copy.line(at, inside));
            // SAFETY: the workspace begins with the boxes of a task; elements inside the source are in its channels.
            unsafe { copy.run(self.kernels, source.as_ptr(), view.plane(), channels, slot.add(at)) };
            let sheet = bands
                .around
                .iter()
                .zip(around)
                .fold(0, |to, (a, p)| to * a.axis.out + a.axis.out_first + p * a.axis.out_step);
            let positions = bands.positions.min(along.positions - p0);
            let count = positions.div_ceil(half);
            for l in 0..bands.lines.min(down.positions - l0) {
                let y = sheet * down.out + down.out_first + (l0 + l) * down.out_step;
                let line = y * along.out + along.out_first + p0 * along.out_step;
                for i in 0..count {
                    let (p, end) = (i * positions / count, (i + 1) * positions / count);
                    pieces.push(Piece {
                        at: at + l * bands.pitch + p,
                        out: image * rows * view.out_plane() + line + p * along.out_step,
                        len: end - p,
                    });
                }
            }
        }
    }

    /// Computes a block of rows at the positions of a part. The thread's next task is about `threads` tasks later.
    ///
    /// # Safety
    /// `slot` points to `slot_len` floats that no other thread uses, which begin with the boxes of these pieces; and no
    /// other thread writes these results.
    unsafe fn block(&self, part: usize, block: usize, slot: *mut f32, pieces: &[Piece], threads: usize) {
        let ByChannels { gather, ref bands, .. } = *self.by_channels;
        let Gather { view, rows, .. } = gather;
        let Kernels { width, ref channel_tile, store_transposed, .. } = *self.kernels;
        let (k, out_plane) = (gather.k(), view.out_plane());
        let sums =
            slot.wrapping_add((self.by_channels.boxes * self.by_channels.box_len()).next_multiple_of(LINE));
        let own_pack = sums.wrapping_add(SUMS_LEN);
        let panels = |from: usize, end: usize| {
            let tiling = Tiling { width, max_vectors: 2, end };
            (from..end).step_by(2 * width).map(move |i| (i, tiling.at(i)))
        };
        let (group, i0) = (part / self.by_channels.col_blocks, block * self.by_channels.rows);
        let last = rows.min(i0 + self.by_channels.rows);
        let own_rows = self.by_channels.packs_own_rows();
        // How many tiles of `rows` rows can prefetch data for later.
        let turns = |rows: usize, k: usize| pieces.len() / 2 * (k / K_RUN) * rows.div_ceil(PANEL);
        let mut next = self.next_boxes(part + threads, turns(last - i0, k));
        let max_rows = if own_rows { PACKED_ROWS_PER_STEP } else { PANEL };
        let cuts =
            (i0..last).step_by(max_rows).flat_map(|i0| (0..k).step_by(K_CHUNK).map(move |k0| (i0, k0)));
        for (i0, k0) in cuts {
            let (end, kc) = (last.min(i0 + max_rows), (k - k0).min(K_CHUNK));
            if own_rows {
                let (i, k0) = match () {
                    () if k0 + kc < k => (i0..end, k0 + kc),
                    () if end < last => (end..last.min(end + PACKED_ROWS_PER_STEP), 0),
                    () => {
                        let i = rows.min((block + threads) * self.by_channels.rows);
                        (i..rows.min(i + PACKED_ROWS_PER_STEP.min(self.by_channels.rows)), 0)
                    }
                };
                next = self.next_rows(group, i, k0, turns(end - i0, kc));
            }
            let mut kr = k0;
            while own_rows && kr < k0 + kc {
                // Terms that are contiguous in the kernel, panel after panel.
                let some = gather.contiguous_terms(kr).min(k0 + kc - kr);
                for (i, (log, valid)) in panels(i0, end) {
                    let to = own_pack.wrapping_add((i - i0) * kc + (((kr - k0) * width) << log));
                    // SAFETY: rows and terms are inside the kernel, and there is room for these rows of a chunk.
                    unsafe { gather.pack(self.kernels, self.w, (group, i, valid), (kr, some), 1 << log, to) };
                }
                kr += some;
            }
            for (i, (log, valid)) in panels(i0, end) {
                let vectors = 1 << log;
                let out = self.out.at(i * out_plane);
                let w = match own_rows {
                    true => own_pack.wrapping_add((i - i0) * kc),
                    false => self
                        .packed
                        .at((group * self.by_channels.packed_rows() + i) * k + k0 * vectors * width),
                };
                let bias = match k0 + kc == k && !self.bias.is_null() {
                    true => self.bias.wrapping_add(group * rows + i),
                    false => std::ptr::null(),
                };
                if !own_rows && !self.by_channels.is_kernel_cached() {
                    // The next panel or chunk of the packed kernel follows this one.
                    let some = kc * vectors * width;
                    next = Prefetch::new(w.wrapping_add(some), some, 0, 1, turns(valid, kc));
                }
                let mut left = pieces;
                while !left.is_empty() {
                    let mut tiles = [PositionTile::default(); TILES_PER_RUN];
                    let mut count = 0;
                    for tile in &mut tiles {
                        let Some((next, rest)) = PositionTile::next(left, false) else { break };
                        (*tile, left) = (next, rest);
                        count += 1;
                    }
                    let runs = kc.div_ceil(K_RUN);
                    for r in 0..runs {
                        let (kr, end) = (r * kc / runs, (r + 1) * kc / runs);
                        for (at, tile) in tiles[..count].iter().enumerate() {
                            // In the last run, prefetch what is written next; before that, what the next task reads.
                            let (prefetch, prefetch_step, prefetches) = match r + 1 == runs {
                                true => (out.wrapping_add(tile.out[0]).cast_const(), out_plane, valid),
                                false => next.take(),
                            };
                            let t = ChannelTile {
                                kc: end - kr,
                                offsets: bands.offsets[k0 + kr..].as_ptr(),
                                x: tile.at.map(|at| slot.wrapping_add(at).cast_const()),
                                w: w.wrapping_add(kr * vectors * width),
                                to: sums.wrapping_add(at * MAX_MR * PANEL),
                                begin: r == 0,
                                prefetch,
                                prefetch_step,
                                prefetches,
                            };
                            // SAFETY: the processor has the SIMD level of the kernels; the positions of the pieces, and the
                            // offsets of terms from them, are inside their boxes.
                            unsafe { channel_tile[tile.len[0] + tile.len[1] - 1][log](&t) };
                        }
                    }
                    for (at, tile) in tiles[..count].iter().enumerate() {
                        let both = tile.len[0] + tile.len[1];
                        let joined = tile.out[1] == tile.out[0] + tile.len[0];
                        let sums = StoreTransposed {
                            from: sums.wrapping_add(at * MAX_MR * PANEL),
                            from_stride: vectors * width,
                            to: tile.out.map(|at| out.wrapping_add(at)),
                            len: if joined { [both, 0] } else { tile.len },
                            to_stride: out_plane,
                            rows: valid,
                            add: k0 > 0,
                            bias,
                        };
                        // SAFETY: the rows and positions are inside the result.
                        unsafe { store_transposed(&sums) };
                    }
                }
            }
        }
    }
}
