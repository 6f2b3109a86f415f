//! Convolutions with many channels in the result: vectors run along these, and elements of the source are broadcast
//! from a copy that has its padding, so that an element is copied once, not once for each tap. The sums are those of
//! [`super::conv`], term by term.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::Gather;
use super::bands::{Bands, digits};
use super::kernel::{ChannelTile, Lines, StoreTransposed};
use super::view::{RUN, Run, Seen};
use crate::cpu::LINE;
use crate::cpu::gemm::plan::{MAX_MR, PANEL, Tiling};
use crate::cpu::kernels::Kernels;
use crate::cpu::simd::Simd;
use crate::cpu::threads::{Pool, SharedPtr};
use dittograd_numerics::K_CHUNK;

/// The most terms of a run, and tiles that take turns with it: what is packed of the kernel for a run stays in a
/// first-level cache meanwhile.
const K_RUN: usize = 160;
pub(crate) const TILES_PER_RUN: usize = 16;
/// The most positions of a line of a box.
const MAX_LINE_POSITIONS: usize = 448;
/// Rows that are packed together by the task that needs them alone, since a kernel may have their terms side by side.
const OWN_ROWS: usize = 4 * PANEL;
/// Room for tiles.
pub(crate) const SUMS_LEN: usize = TILES_PER_RUN * MAX_MR * PANEL;
/// Floats of the boxes of a task, which stay in a second-level cache; and if they are all there are, so that nobody else
/// needs the rows of the kernel.
const BOX_LEN: usize = 96 * K_CHUNK;
pub(crate) const ALL_BOXES_LEN: usize = 272 * K_CHUNK;
/// Positions of a line from which on two taps for each element that is copied are enough where there are steps.
const LONG_LINE: usize = 14;
/// Columns of the result that are few.
const FEW_COLUMNS: usize = 256;
/// Floats of a kernel up to which it stays in that cache beside them.
const MAX_CACHED_KERNEL: usize = 192 * K_CHUNK;

/// How the work is cut up: a task is some rows of a group at the positions of some boxes. The workspace has the packed
/// kernel, then for each thread boxes, a tile, the tile turned, and a panel of rows that is packed when it is needed.
pub(crate) struct ByChannels {
    gather: Gather,
    bands: Bands,
    /// Boxes of an image, and of a task.
    per_image: usize,
    boxes: usize,
    /// Rows of a task, whole panels but for the last.
    rows: usize,
    row_blocks: usize,
    col_blocks: usize,
}

/// Neighbouring positions: where the first is in the boxes, and in the result.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub at: usize,
    pub out: usize,
    pub len: usize,
}

/// One piece or two that are computed together: two halves, of which the second has at most one position less.
#[derive(Clone, Copy, Default)]
pub(crate) struct PositionTile {
    pub at: [usize; 2],
    pub out: [usize; 2],
    pub len: [usize; 2],
}

impl PositionTile {
    /// The first of the pieces, with the next if that fits, and the pieces that are left; in
    /// `order` if a longer piece must not go before a shorter one.
    pub fn next(pieces: &[Piece], order: bool) -> Option<(PositionTile, &[Piece])> {
        let (&a, rest) = pieces.split_first()?;
        Some(match rest.split_first() {
            Some((&b, rest)) if a.len.abs_diff(b.len) < 2 && !(order && a.len < b.len) => {
                let (a, b) = if a.len < b.len { (b, a) } else { (a, b) };
                (PositionTile { at: [a.at, b.at], out: [a.out, b.out], len: [a.len, b.len] }, rest)
            }
            _ => {
                let half = a.len.div_ceil(2);
                let out = [a.out, a.out + half];
                (PositionTile { at: [a.at, a.at + half], out, len: [half, a.len - half] }, rest)
            }
        })
    }
}

impl ByChannels {
    /// The convolution, if it is better off here.
    pub fn new(gather: &Gather, threads: usize) -> Option<ByChannels> {
        let Gather { view, batch, groups, rows, .. } = *gather;
        let k = gather.k();
        let work = batch.saturating_mul(view.positions()).saturating_mul(groups * rows).saturating_mul(k);
        let inner = view.axes()[view.axes().len() - 1];
        let steps = view.axes().iter().map(|a| a.step).product::<usize>();
        // A copy pays if there are some taps for each of its elements; or if there are so few columns for so many rows that
        // what counts is how the kernel is packed.
        let some = if steps > 1 && inner.positions >= LONG_LINE { 2 } else { 6 };
        let few = view.taps() == 1 && batch * view.positions() <= FEW_COLUMNS && rows >= k;
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
        if box_len > ALL_BOXES_LEN {
            return None;
        }
        let per_image = bands.around.iter().map(|a| a.axis.positions).product::<usize>()
            * bands.blocks().iter().product::<usize>();
        let all = batch * per_image;
        let panels = rows.div_ceil(PANEL);
        // A few tasks a thread: boxes are shared out if all rows of the kernel stay in the cache, else rows first.
        let target = if threads == 1 { 1 } else { 4 * threads };
        let cached = rows * k <= MAX_CACHED_KERNEL;
        let least = if !cached && all * box_len <= ALL_BOXES_LEN {
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

    fn box_len(&self) -> usize {
        self.gather.channels * self.bands.channel
    }

    /// Whether a panel of the kernel is for one task only, which then packs it.
    fn alone(&self) -> bool {
        self.col_blocks == 1
    }

    /// Whether all rows of the kernel stay in the cache.
    fn cached(&self) -> bool {
        self.gather.rows * self.gather.k() <= MAX_CACHED_KERNEL
    }

    fn packed_rows(&self) -> usize {
        if self.alone() { 0 } else { self.gather.rows.next_multiple_of(LINE) }
    }

    fn slot_len(&self) -> usize {
        let own = if self.alone() { OWN_ROWS * K_CHUNK } else { 0 };
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
                // SAFETY: the rows are inside the kernel, the workspace has room for all rows, in whole vectors, and `run`
                // gives each panel to one call.
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
                // SAFETY: the counter gives each task once, tasks write results of their own, and the slot's workspace, whose
                // room was checked, belongs to this call.
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

/// Lines of channels that are copied to a box, with what of them lies in the source.
#[derive(Default)]
pub(crate) struct PaddedCopy {
    runs: Vec<Run>,
    seen: Vec<Seen>,
    lines: usize,
    pitch: usize,
    step: usize,
    next: usize,
}

impl PaddedCopy {
    /// Begins with so many lines of a channel, of `pitch` elements, which are `step` apart in the source.
    pub fn begin(&mut self, lines: usize, pitch: usize, step: usize) {
        (self.lines, self.pitch, self.step, self.next) = (lines, pitch, step, 0);
        let count = pitch.div_ceil(RUN);
        let cut = |r: usize| r * pitch / count;
        self.runs.clear();
        let run = |r| Run { base: 0, out: 0, col: cut(r) as u32, len: (cut(r + 1) - cut(r)) as u32 };
        self.runs.extend((0..count).map(run));
        self.seen.clear();
        self.seen.resize(count * lines, Seen { at: 0, inside: 0 });
    }

    /// The next line: where its first element would lie in the channel, and which of its elements do.
    pub fn line(&mut self, at: isize, inside: Range<usize>) {
        for (r, run) in self.runs.iter().enumerate() {
            let (col, end) = (run.col as usize, (run.col + run.len) as usize);
            let (from, to) = (inside.start.clamp(col, end), inside.end.clamp(col, end));
            if from < to {
                let at = (at + (col * self.step) as isize) as i32;
                let inside = (u32::MAX >> (32 - (to - from))) << (from - col);
                self.seen[r * self.lines + self.next] = Seen { at, inside };
            }
        }
        self.next += 1;
    }

    /// Copies these lines of some channels, `plane` apart.
    ///
    /// # Safety
    /// What is inside lies in the channels of `source`, and `to` leads to room for all lines.
    pub unsafe fn run(
        &self,
        kernels: &Kernels,
        source: *const f32,
        plane: usize,
        channels: usize,
        to: *mut f32,
    ) {
        let lines = Lines {
            source,
            plane,
            runs: self.runs.as_ptr(),
            count: self.runs.len(),
            seen: self.seen.as_ptr(),
            taps: self.lines,
            channel: 0,
            tap: 0,
            lines: channels * self.lines,
            pitch: self.pitch,
            step: self.step,
        };
        // SAFETY: the caller's; the kernels are of a level that the processor has.
        unsafe { (kernels.gather)(&lines, to) };
    }
}

/// A convolution under way.
struct ChannelsWork<'a> {
    by_channels: &'a ByChannels,
    kernels: &'static Kernels,
    source: &'a [f32],
    w: *const f32,
    bias: *const f32,
    packed: SharedPtr,
    out: SharedPtr,
}

// SAFETY: the pointers lead into slices that `ByChannels::run` borrows for as long as this lives; what is written is kept
// apart between tasks.
unsafe impl Sync for ChannelsWork<'_> {}

/// What is needed later, asked for some cache lines at a time: `count` stretches of `lines`, `stride` apart.
pub(crate) struct Prefetch {
    at: *const f32,
    lines: usize,
    stride: usize,
    count: usize,
    some: usize,
    done: usize,
}

impl Prefetch {
    /// For `turns` times of asking.
    pub fn new(at: *const f32, floats: usize, stride: usize, count: usize, turns: usize) -> Prefetch {
        let lines = floats.div_ceil(LINE) + 1;
        Prefetch { at, lines, stride, count, some: (lines * count).div_ceil(turns.max(1)), done: 0 }
    }

    /// The first of the next lines, how far apart they are, and how many.
    pub fn take(&mut self) -> (*const f32, usize, usize) {
        let (stretch, line) = (self.done / self.lines, self.done % self.lines);
        let some = if stretch < self.count { self.some.min(self.lines - line) } else { 0 };
        self.done += some;
        (self.at.wrapping_add(stretch * self.stride + line * LINE), LINE, some)
    }
}

impl ChannelsWork<'_> {
    /// What a part needs of the source.
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
            // About as much of each channel.
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

    /// What some rows need of the kernel for a chunk from `k0` on.
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

    /// Copies the boxes of a part, and writes down their positions, in pieces of half a tile at most.
    ///
    /// # Safety
    /// `slot` leads to `slot_len` floats that no other thread uses.
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
            // SAFETY: the workspace begins with the boxes of a task; what is inside lies in the channels.
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

    /// Computes a block of rows at the positions of a part. `threads` as many tasks later is what comes next.
    ///
    /// # Safety
    /// `slot` leads to `slot_len` floats that no other thread uses, which begin with the boxes of these pieces; and no
    /// other thread writes these results.
    unsafe fn block(&self, part: usize, block: usize, slot: *mut f32, pieces: &[Piece], threads: usize) {
        let ByChannels { gather, ref bands, .. } = *self.by_channels;
        let Gather { view, rows, .. } = gather;
        let Kernels { width, ref channel_tile, store_transposed, .. } = *self.kernels;
        let (k, out_plane) = (gather.k(), view.out_plane());
        let sums =
            slot.wrapping_add((self.by_channels.boxes * self.by_channels.box_len()).next_multiple_of(LINE));
        let own = sums.wrapping_add(SUMS_LEN);
        let panels = |from: usize, end: usize| {
            let tiling = Tiling { width, max_vectors: 2, end };
            (from..end).step_by(2 * width).map(move |i| (i, tiling.at(i)))
        };
        let (group, i0) = (part / self.by_channels.col_blocks, block * self.by_channels.rows);
        let last = rows.min(i0 + self.by_channels.rows);
        // How often a tile of some rows can ask for what comes next.
        let alone = self.by_channels.alone();
        let turns = |rows: usize, k: usize| pieces.len() / 2 * (k / K_RUN) * rows.div_ceil(PANEL);
        let mut next = self.next_boxes(part + threads, turns(last - i0, k));
        let max_vectors = if alone { OWN_ROWS } else { PANEL };
        let cuts =
            (i0..last).step_by(max_vectors).flat_map(|i0| (0..k).step_by(K_CHUNK).map(move |k0| (i0, k0)));
        for (i0, k0) in cuts {
            let (end, kc) = (last.min(i0 + max_vectors), (k - k0).min(K_CHUNK));
            if alone {
                let (i, k0) = match () {
                    () if k0 + kc < k => (i0..end, k0 + kc),
                    () if end < last => (end..last.min(end + OWN_ROWS), 0),
                    () => {
                        let i = rows.min((block + threads) * self.by_channels.rows);
                        (i..rows.min(i + OWN_ROWS.min(self.by_channels.rows)), 0)
                    }
                };
                next = self.next_rows(group, i, k0, turns(end - i0, kc));
            }
            let mut kr = k0;
            while alone && kr < k0 + kc {
                // The rows' terms that lie side by side, panel after panel.
                let some = gather.contiguous_terms(kr).min(k0 + kc - kr);
                for (i, (log, valid)) in panels(i0, end) {
                    let to = own.wrapping_add((i - i0) * kc + (((kr - k0) * width) << log));
                    // SAFETY: rows and terms are inside the kernel, and there is room for so many rows and a chunk.
                    unsafe { gather.pack(self.kernels, self.w, (group, i, valid), (kr, some), 1 << log, to) };
                }
                kr += some;
            }
            for (i, (log, valid)) in panels(i0, end) {
                let vectors = 1 << log;
                let out = self.out.at(i * out_plane);
                let w = match alone {
                    true => own.wrapping_add((i - i0) * kc),
                    false => self
                        .packed
                        .at((group * self.by_channels.packed_rows() + i) * k + k0 * vectors * width),
                };
                let bias = match k0 + kc == k && !self.bias.is_null() {
                    true => self.bias.wrapping_add(group * rows + i),
                    false => std::ptr::null(),
                };
                if !alone && !self.by_channels.cached() {
                    // What is packed comes in the order of panels and chunks.
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
                            // What is written when the sums are done, or meanwhile what comes next of the source.
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
                            // SAFETY: the kernels are of a level that the processor has; the positions of the pieces are
                            // inside their boxes, of which the offsets are.
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
