//! Convolutions with many channels in the result: vectors run along these, and elements of the source are broadcast
//! from a copy that has its padding, so that an element is copied once, not once for each tap. The sums are those of
//! [`super::conv`], term by term.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::conv::{Axis, Gather, KernelGrad, Shared, inner_range};
use super::depthwise::{Bands, Reach, digits};
use super::gemm::{Across, Kernels, LINE, Lines, MAX_MR, PANEL, Put, PutTurned, RUN, Run, Seen, Tiling};
use super::pool::Pool;
use super::simd::Simd;
use dittograd_numerics::K_CHUNK;

/// The most terms of a run, and tiles that take turns with it: what is packed of the kernel for a run stays in a
/// first-level cache meanwhile.
const K_RUN: usize = 160;
const TILES: usize = 16;
/// The same for gradients of kernels, and the most columns of a tile, which then has more vectors.
const GRAD_RUN: usize = 96;
const GRAD_MR: usize = 6;
/// The most positions of a line of a box.
const PIECE: usize = 448;
/// Rows that are packed together by the task that needs them alone, since a kernel may have their terms side by side.
const OWN: usize = 4 * PANEL;
/// Room for tiles.
const MADE: usize = TILES * MAX_MR * PANEL;
/// Floats of the boxes of a task, which stay in a second-level cache; and if they are all there are, so that nobody else
/// needs the rows of the kernel.
const BOX: usize = 96 * K_CHUNK;
const BOXES: usize = 272 * K_CHUNK;
/// Positions of a line from which on two taps for each element that is copied are enough where there are steps.
const LONG: usize = 14;
/// Columns of the result that are few.
const FEW: usize = 256;
/// Floats of a kernel up to which it stays in that cache beside them.
const KEPT: usize = 192 * K_CHUNK;

/// How the work is cut up: a task is some rows of a group at the positions of some boxes. The workspace has the packed
/// kernel, then for each thread boxes, a tile, the tile turned, and a panel of rows that is packed when it is needed.
pub(super) struct Wide {
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
struct Piece {
    at: usize,
    out: usize,
    len: usize,
}

/// One piece or two that are computed together: two halves, of which the second has at most one position less.
#[derive(Clone, Copy, Default)]
struct Tile {
    at: [usize; 2],
    out: [usize; 2],
    len: [usize; 2],
}

impl Tile {
    /// The first of the pieces, with the next if that fits, and the pieces that are left; in
    /// `order` if a longer piece must not go before a shorter one.
    fn next(pieces: &[Piece], order: bool) -> Option<(Tile, &[Piece])> {
        let (&a, rest) = pieces.split_first()?;
        Some(match rest.split_first() {
            Some((&b, rest)) if a.len.abs_diff(b.len) < 2 && !(order && a.len < b.len) => {
                let (a, b) = if a.len < b.len { (b, a) } else { (a, b) };
                (Tile { at: [a.at, b.at], out: [a.out, b.out], len: [a.len, b.len] }, rest)
            }
            _ => {
                let half = a.len.div_ceil(2);
                let out = [a.out, a.out + half];
                (Tile { at: [a.at, a.at + half], out, len: [half, a.len - half] }, rest)
            }
        })
    }
}

impl Wide {
    /// The convolution, if it is better off here.
    pub fn new(gather: &Gather, threads: usize) -> Option<Wide> {
        let Gather { view, batch, groups, rows, .. } = *gather;
        let k = gather.k();
        let work = batch.saturating_mul(view.positions()).saturating_mul(groups * rows).saturating_mul(k);
        let inner = view.axes()[view.axes().len() - 1];
        let steps = view.axes().iter().map(|a| a.step).product::<usize>();
        // A copy pays if there are some taps for each of its elements; or if there are so few columns for so many rows that
        // what counts is how the kernel is packed.
        let some = if steps > 1 && inner.positions >= LONG { 2 } else { 6 };
        let few = view.taps() == 1 && batch * view.positions() <= FEW && rows >= k;
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
        let bands = Bands::new(gather, PIECE, BOX)?;
        let box_len = gather.channels * bands.channel;
        if box_len > BOXES {
            return None;
        }
        let per_image = bands.around.iter().map(|a| a.axis.positions).product::<usize>()
            * bands.blocks().iter().product::<usize>();
        let all = batch * per_image;
        let panels = rows.div_ceil(PANEL);
        // A few tasks a thread: boxes are shared out if all rows of the kernel stay in the cache, else rows first.
        let target = if threads == 1 { 1 } else { 4 * threads };
        let kept = rows * k <= KEPT;
        let least = if !kept && all * box_len <= BOXES { 1 } else { all.div_ceil((BOX / box_len).max(1)) };
        let blocks = if kept { least.max(target) } else { least };
        let boxes = all.div_ceil(blocks);
        let col_blocks = all.div_ceil(boxes);
        let row_blocks = target.div_ceil(groups * col_blocks).min(panels);
        let rows_of = panels.div_ceil(row_blocks) * PANEL;
        let row_blocks = rows.div_ceil(rows_of);
        Some(Wide { gather: *gather, bands, per_image, boxes, rows: rows_of, row_blocks, col_blocks })
    }

    fn box_len(&self) -> usize {
        self.gather.channels * self.bands.channel
    }

    /// Whether a panel of the kernel is for one task only, which then packs it.
    fn alone(&self) -> bool {
        self.col_blocks == 1
    }

    /// Whether all rows of the kernel stay in the cache.
    fn kept(&self) -> bool {
        self.gather.rows * self.gather.k() <= KEPT
    }

    fn packed_rows(&self) -> usize {
        if self.alone() { 0 } else { self.gather.rows.next_multiple_of(LINE) }
    }

    fn slot_len(&self) -> usize {
        let own = if self.alone() { OWN * K_CHUNK } else { 0 };
        (self.boxes * self.box_len()).next_multiple_of(LINE) + MADE + own
    }

    /// Number of floats of workspace that [`Wide::run`] needs with a pool of `threads`.
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
        let (packed, slots) = (Shared(packed.as_mut_ptr()), Shared(slots.as_mut_ptr()));
        let panels = self.packed_rows().div_ceil(PANEL);
        pool.run(groups * panels, |task| {
            let (group, i0) = (task / panels, task % panels * PANEL);
            let to = packed.at((group * self.packed_rows() + i0) * k);
            let tiling = Tiling { width: kernels.width, most: 2, end: rows.min(i0 + PANEL) };
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
        let work = Work {
            wide: self,
            kernels,
            source,
            w: w.as_ptr(),
            bias: bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
            packed,
            out: Shared(out.as_mut_ptr()),
        };
        let tasks = groups * self.col_blocks * self.row_blocks;
        let next = AtomicUsize::new(0);
        pool.run(threads.min(tasks), |slot| {
            let slot = slots.at(slot * slot_len);
            let (mut pieces, mut copy, mut filled) = (Vec::new(), Copy::default(), None);
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
struct Copy {
    runs: Vec<Run>,
    seen: Vec<Seen>,
    lines: usize,
    pitch: usize,
    step: usize,
    next: usize,
}

impl Copy {
    /// Begins with so many lines of a channel, of `pitch` elements, which are `step` apart in the source.
    fn begin(&mut self, lines: usize, pitch: usize, step: usize) {
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
    fn line(&mut self, at: isize, inside: Range<usize>) {
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
    unsafe fn run(&self, kernels: &Kernels, source: *const f32, plane: usize, channels: usize, to: *mut f32) {
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
struct Work<'a> {
    wide: &'a Wide,
    kernels: &'static Kernels,
    source: &'a [f32],
    w: *const f32,
    bias: *const f32,
    packed: Shared,
    out: Shared,
}

// SAFETY: the pointers lead into slices that `Wide::run` borrows for as long as this lives; what is written is kept
// apart between tasks.
unsafe impl Sync for Work<'_> {}

/// What is needed later, asked for some cache lines at a time: `count` stretches of `lines`, `stride` apart.
struct Next {
    at: *const f32,
    lines: usize,
    stride: usize,
    count: usize,
    some: usize,
    asked: usize,
}

impl Next {
    /// For `turns` times of asking.
    fn new(at: *const f32, floats: usize, stride: usize, count: usize, turns: usize) -> Next {
        let lines = floats.div_ceil(LINE) + 1;
        Next { at, lines, stride, count, some: (lines * count).div_ceil(turns.max(1)), asked: 0 }
    }

    /// The first of the next lines, how far apart they are, and how many.
    fn take(&mut self) -> (*const f32, usize, usize) {
        let (stretch, line) = (self.asked / self.lines, self.asked % self.lines);
        let some = if stretch < self.count { self.some.min(self.lines - line) } else { 0 };
        self.asked += some;
        (self.at.wrapping_add(stretch * self.stride + line * LINE), LINE, some)
    }
}

impl Work<'_> {
    /// What a part needs of the source.
    fn next_boxes(&self, part: usize, turns: usize) -> Next {
        let Wide { gather, per_image, boxes, col_blocks, .. } = *self.wide;
        let plane = gather.view.plane();
        let (group, first) = (part / col_blocks, part % col_blocks * boxes);
        let (n, unit) = (first / per_image, first % per_image);
        let image = self.source.as_ptr().wrapping_add((n * gather.groups + group) * gather.channels * plane);
        if group >= gather.groups {
            return Next::new(image, 0, 0, 0, turns);
        }
        if per_image > 1 {
            // About as much of each channel.
            let of = |unit: usize| plane * unit / per_image;
            return Next::new(
                image.wrapping_add(of(unit)),
                of(unit + boxes) - of(unit),
                plane,
                gather.channels,
                turns,
            );
        }
        let images = boxes.min(gather.batch - n);
        Next::new(image, gather.channels * plane, gather.groups * gather.channels * plane, images, turns)
    }

    /// What some rows need of the kernel for a chunk from `k0` on.
    fn next_rows(&self, group: usize, i: Range<usize>, k0: usize, turns: usize) -> Next {
        let gather = &self.wide.gather;
        let [by_group, by_row, by_channel] = gather.w_strides;
        let (taps, kc) = (gather.view.taps(), (gather.k() - k0).min(K_CHUNK));
        let w = self.w.wrapping_add(group * by_group + i.start * by_row);
        match by_channel == taps {
            true => Next::new(w.wrapping_add(k0), kc, by_row, i.len(), turns),
            false => {
                let w = w.wrapping_add(k0 / taps * by_channel);
                Next::new(w, i.len() * by_row, by_channel, kc / taps + 1, turns)
            }
        }
    }

    /// Copies the boxes of a part, and writes down their positions, in pieces of half a tile at most.
    ///
    /// # Safety
    /// `slot` leads to `slot_len` floats that no other thread uses.
    unsafe fn fill(&self, part: usize, slot: *mut f32, pieces: &mut Vec<Piece>, copy: &mut Copy) {
        let Wide { gather, ref bands, per_image, boxes, col_blocks, .. } = *self.wide;
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
            let at = index * self.wide.box_len();
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
        let Wide { gather, ref bands, .. } = *self.wide;
        let Gather { view, rows, .. } = gather;
        let Kernels { width, ref across, put_turned, .. } = *self.kernels;
        let (k, out_plane) = (gather.k(), view.out_plane());
        let made = slot.wrapping_add((self.wide.boxes * self.wide.box_len()).next_multiple_of(LINE));
        let own = made.wrapping_add(MADE);
        let panels = |from: usize, end: usize| {
            let tiling = Tiling { width, most: 2, end };
            (from..end).step_by(2 * width).map(move |i| (i, tiling.at(i)))
        };
        let (group, i0) = (part / self.wide.col_blocks, block * self.wide.rows);
        let last = rows.min(i0 + self.wide.rows);
        // How often a tile of some rows can ask for what comes next.
        let alone = self.wide.alone();
        let turns = |rows: usize, k: usize| pieces.len() / 2 * (k / K_RUN) * rows.div_ceil(PANEL);
        let mut next = self.next_boxes(part + threads, turns(last - i0, k));
        let most = if alone { OWN } else { PANEL };
        let cuts = (i0..last).step_by(most).flat_map(|i0| (0..k).step_by(K_CHUNK).map(move |k0| (i0, k0)));
        for (i0, k0) in cuts {
            let (end, kc) = (last.min(i0 + most), (k - k0).min(K_CHUNK));
            if alone {
                let (i, k0) = match () {
                    () if k0 + kc < k => (i0..end, k0 + kc),
                    () if end < last => (end..last.min(end + OWN), 0),
                    () => {
                        let i = rows.min((block + threads) * self.wide.rows);
                        (i..rows.min(i + OWN.min(self.wide.rows)), 0)
                    }
                };
                next = self.next_rows(group, i, k0, turns(end - i0, kc));
            }
            let mut kr = k0;
            while alone && kr < k0 + kc {
                // The rows' terms that lie side by side, panel after panel.
                let some = gather.together(kr).min(k0 + kc - kr);
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
                    false => self.packed.at((group * self.wide.packed_rows() + i) * k + k0 * vectors * width),
                };
                let bias = match k0 + kc == k && !self.bias.is_null() {
                    true => self.bias.wrapping_add(group * rows + i),
                    false => std::ptr::null(),
                };
                if !alone && !self.wide.kept() {
                    // What is packed comes in the order of panels and chunks.
                    let some = kc * vectors * width;
                    next = Next::new(w.wrapping_add(some), some, 0, 1, turns(valid, kc));
                }
                let mut left = pieces;
                while !left.is_empty() {
                    let mut tiles = [Tile::default(); TILES];
                    let mut count = 0;
                    for tile in &mut tiles {
                        let Some((next, rest)) = Tile::next(left, false) else { break };
                        (*tile, left) = (next, rest);
                        count += 1;
                    }
                    let runs = kc.div_ceil(K_RUN);
                    for r in 0..runs {
                        let (kr, end) = (r * kc / runs, (r + 1) * kc / runs);
                        for (at, tile) in tiles[..count].iter().enumerate() {
                            // What is written when the sums are done, or meanwhile what comes next of the source.
                            let (ahead, ahead_step, asks) = match r + 1 == runs {
                                true => (out.wrapping_add(tile.out[0]).cast_const(), out_plane, valid),
                                false => next.take(),
                            };
                            let t = Across {
                                kc: end - kr,
                                offsets: bands.offsets[k0 + kr..].as_ptr(),
                                x: tile.at.map(|at| slot.wrapping_add(at).cast_const()),
                                w: w.wrapping_add(kr * vectors * width),
                                to: made.wrapping_add(at * MAX_MR * PANEL),
                                begin: r == 0,
                                ahead,
                                ahead_step,
                                asks,
                            };
                            // SAFETY: the kernels are of a level that the processor has; the positions of the pieces are
                            // inside their boxes, of which the offsets are.
                            unsafe { across[tile.len[0] + tile.len[1] - 1][log](&t) };
                        }
                    }
                    for (at, tile) in tiles[..count].iter().enumerate() {
                        let both = tile.len[0] + tile.len[1];
                        let joined = tile.out[1] == tile.out[0] + tile.len[0];
                        let sums = PutTurned {
                            from: made.wrapping_add(at * MAX_MR * PANEL),
                            from_stride: vectors * width,
                            to: tile.out.map(|at| out.wrapping_add(at)),
                            len: if joined { [both, 0] } else { tile.len },
                            to_stride: out_plane,
                            rows: valid,
                            add: k0 > 0,
                            bias,
                        };
                        // SAFETY: the rows and positions are inside the result.
                        unsafe { put_turned(&sums) };
                    }
                }
            }
        }
    }
}

/// The gradient of a kernel: vectors run along the channels of `g`, which is turned for that, and the source is broadcast
/// from a copy that has its padding. Neighbouring taps have neighbouring operands.
pub(super) struct WideGrad {
    grad: KernelGrad,
    down: Reach,
    along: Reach,
    /// Floats from one line of a box to the next.
    pitch: usize,
    /// The most floats of a channel's box.
    most: usize,
}

/// What a thread remembers from one block to the next.
#[derive(Default)]
pub(super) struct Held {
    /// Which rows of `g` and which channels the workspace has: group, the first, and the chunk.
    rows: Option<[usize; 3]>,
    channels: Option<[usize; 3]>,
    copy: Copy,
    /// Where each position lies in the box of a channel, and all tiles.
    offsets: Vec<usize>,
    tiles: Vec<Tile>,
}

impl WideGrad {
    /// The gradient, if it is better off here.
    pub fn new(grad: &KernelGrad) -> Option<WideGrad> {
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
        let most = (lines + ((lines - 1) / down.axis.positions + 2) * down.more()) * pitch;
        (most * 8 <= BOXES).then_some(WideGrad { grad: *grad, down, along, pitch, most })
    }

    pub fn taps(&self) -> usize {
        self.grad.view.taps()
    }

    /// The most channels of a block.
    pub fn channels(&self) -> usize {
        BOXES / self.most
    }

    /// Floats of workspace for a block of so many rows and channels.
    pub fn slot_len(&self, rows: usize, channels: usize) -> usize {
        let k = self.grad.k().min(K_CHUNK);
        (channels * self.most).next_multiple_of(LINE) + rows.next_multiple_of(LINE) * k + 2 * MADE
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
        held: &mut Held,
    ) {
        let KernelGrad { view, groups, channels, .. } = self.grad;
        let (down, along) = (&self.down, &self.along);
        let (across, tall) = (along.axis.positions, down.axis.positions);
        let (first, end) = (k0 / across, (k0 + kc).div_ceil(across));
        let images = first / tall..end.div_ceil(tall);
        let plane = (end - first + images.len() * down.more()) * self.pitch;
        let (from, to_x) = inner_range(along.low, 1, along.axis.source, self.pitch);
        held.offsets.clear();
        let mut at = 0;
        for n in images {
            let (y0, y1) = (first.max(n * tall) - n * tall, end.min((n + 1) * tall) - n * tall);
            let lines = y1 - y0 + down.more();
            held.copy.begin(lines, self.pitch, 1);
            for y in (0..lines).map(|j| (y0 + j) as isize + down.low) {
                let inside = y >= 0 && y < down.axis.source as isize && from < to_x;
                let line = y * along.axis.source as isize + along.low;
                held.copy.line(line, if inside { from..to_x } else { 0..0 });
            }
            for (i, c) in part.clone().enumerate() {
                let source = source.wrapping_add(((n * groups + group) * channels + c) * view.plane());
                // SAFETY: the caller's; these lines are of this channel.
                unsafe { held.copy.run(kernels, source, 0, 1, to.wrapping_add(i * plane + at)) };
            }
            for y in y0..y1 {
                let line = (n * tall + y) * across;
                let inside = line.max(k0)..(line + across).min(k0 + kc);
                held.offsets.extend(inside.map(|k| at + (y - y0) * self.pitch + k - line));
            }
            at += lines * self.pitch;
        }
        // Tiles of neighbouring taps, in the order of the kernel.
        held.tiles.clear();
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
        while let Some((tile, rest)) = Tile::next(left, true) {
            held.tiles.push(tile);
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
    ) -> Next {
        let (k, k0) = (self.grad.k(), chunk * K_CHUNK);
        let (n, o) = (k0 / self.grad.view.positions(), k0 % self.grad.view.positions());
        let kc = k.saturating_sub(k0).min(K_CHUNK);
        let from = from.wrapping_add(((n * self.grad.groups + group) * channels + mine.start) * positions);
        match kc <= positions {
            true => Next::new(from.wrapping_add(o), kc, positions, mine.len(), turns),
            false => {
                let image = self.grad.groups * channels * positions;
                Next::new(from, mine.len() * positions, image, kc.div_ceil(positions), turns)
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
        held: &mut Held,
    ) {
        let KernelGrad { view, groups, rows, channels, .. } = self.grad;
        let Kernels { width, mr, ref wide, ref across, pack_turned, put, .. } = *kernels;
        let (k, taps, positions) = (self.grad.k(), view.taps(), view.positions());
        let columns = channels * taps;
        // Where these are does not depend on the block, so that they can be held.
        let (made, turned) = (slot, slot.wrapping_add(MADE));
        let turned_g = turned.wrapping_add(MADE);
        let boxes = turned_g.wrapping_add(most_rows.next_multiple_of(LINE) * k.min(K_CHUNK));
        let to = to.wrapping_add(group * rows * columns + part.start * taps);
        let tiling = Tiling { width, most: wide[mr.min(GRAD_MR) - 1], end: mine.end };
        let first_chunk = chunks.start;
        for chunk in chunks {
            let k0 = chunk * K_CHUNK;
            let kc = (k - k0).min(K_CHUNK);
            let key = Some([group, part.start, chunk]);
            if held.channels != key {
                // SAFETY: the caller's; the workspace begins with room for these boxes.
                unsafe { self.fill(kernels, source, (group, part.clone()), (k0, kc), boxes, held) };
                held.channels = key;
            }
            let runs = kc.div_ceil(GRAD_RUN);
            // A few runs ask for what is written when the sums are done, those before for what comes next.
            let writing = runs.min(3);
            let turns = held.tiles.len() * (runs - writing) * mine.len().div_ceil(tiling.most * width) / 2;
            let mut next_g = self.next(g, chunk + later, [rows, positions], (group, &mine), turns);
            let mut next_x =
                self.next(source, chunk + later, [channels, view.plane()], (group, &part), turns);
            let key = Some([group, mine.start, chunk]);
            let fresh = held.rows != key;
            held.rows = key;
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
                        pack_turned(from, positions, valid, vectors, some, to);
                    }
                    at += some;
                }
                for tiles in held.tiles.chunks(TILES) {
                    let mut cols = 0;
                    for r in 0..runs {
                        let (kr, end) = (r * kc / runs, (r + 1) * kc / runs);
                        cols = 0;
                        for (index, tile) in tiles.iter().enumerate() {
                            let (ahead, ahead_step, asks) = match (r + writing).checked_sub(runs) {
                                Some(r) => {
                                    let line = (i + r * valid / writing) * columns + tile.out[0];
                                    (to.wrapping_add(line).cast_const(), columns, valid.div_ceil(writing))
                                }
                                None if index % 2 == 0 => next_g.take(),
                                None => next_x.take(),
                            };
                            let t = Across {
                                kc: end - kr,
                                offsets: held.offsets[kr..].as_ptr(),
                                x: tile.at.map(|at| boxes.wrapping_add(at).cast_const()),
                                w: w.wrapping_add(kr * vectors * width),
                                to: made.wrapping_add(cols * vectors * width),
                                begin: r == 0,
                                ahead,
                                ahead_step,
                                asks,
                            };
                            let both = tile.len[0] + tile.len[1];
                            // SAFETY: the kernels are of a level that the processor has; positions and taps are inside
                            // the boxes.
                            unsafe { across[both - 1][log](&t) };
                            cols += both;
                        }
                    }
                    let across = cols.div_ceil(width);
                    // SAFETY: the rows and columns are inside the gradient; there is room for so many turned tiles.
                    unsafe {
                        pack_turned(made, vectors * width, cols, across, valid, turned);
                        put(&Put {
                            from: turned,
                            from_stride: across * width,
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
