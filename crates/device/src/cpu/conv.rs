//! Convolutions as matrix products whose second operand is a view of a tensor: its elements are gathered
//! while panels are packed, so that no more of it exists at a time than a thread's caches hold.
//!
//! Order of summation, tiles and threads are those of [`super::gemm`]; a [`View`] says which element of the
//! source a tap meets at a position. Positions outside the source are zeros and take part.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::gemm::{
    Kernels, LINE, Lines, MAX_MR, PANEL, Panels, Put, RUN, Run, STRIP, Seen, Tile, Tiling, taper,
};
use super::pool::Pool;
use super::simd::Simd;
use super::wide::{Held, Wide, WideGrad};
use dittograd_numerics::K_CHUNK;
use dittograd_numerics::shape::MAX_RANK;

/// The most spatial axes: two axes of a shape are the batch's and the channels'.
pub const MAX_AXES: usize = MAX_RANK - 2;

/// One spatial axis of a view: position `p` and tap `t` meet element `p * step + first + t * tap_step` of the
/// source, or a zero outside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Axis {
    /// Positions.
    pub positions: usize,
    /// Elements of the source from one position to the next.
    pub step: usize,
    /// Taps.
    pub taps: usize,
    /// What tap 0 meets at position 0.
    pub first: isize,
    /// Elements of the source from one tap to the next.
    pub tap_step: isize,
    /// Size of the source.
    pub source: usize,
    /// Where position 0 lies in the result.
    pub out_first: usize,
    /// Elements of the result from one position to the next.
    pub out_step: usize,
    /// Size of the result.
    pub out: usize,
    /// Where tap 0 lies in the kernel.
    pub w_first: usize,
    /// Elements of the kernel from one tap to the next.
    pub w_step: usize,
    /// Size of the kernel.
    pub w: usize,
}

impl Axis {
    /// An axis of one element, which changes nothing.
    pub const ONE: Axis = Axis {
        positions: 1,
        step: 1,
        taps: 1,
        first: 0,
        tap_step: 1,
        source: 1,
        out_first: 0,
        out_step: 1,
        out: 1,
        w_first: 0,
        w_step: 1,
        w: 1,
    };

    /// Whether the result lies as the source does, so that the axis can be one with a neighbour like it.
    fn is_plain(&self) -> bool {
        let n = self.positions;
        *self == Axis { positions: n, source: n, out: n, tap_step: self.tap_step, ..Axis::ONE }
    }
}

/// What a convolution reads: positions and taps along each spatial axis, outermost first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View {
    axes: [Axis; MAX_AXES],
    rank: usize,
}

impl View {
    /// A view with these axes, neighbours that can be one made one.
    pub fn new(axes: impl IntoIterator<Item = Axis>) -> View {
        let mut view = View { axes: [Axis::ONE; MAX_AXES], rank: 0 };
        for axis in axes.into_iter().take(MAX_AXES) {
            match view.rank.checked_sub(1).map(|last| &mut view.axes[last]) {
                Some(last) if last.is_plain() && axis.is_plain() => {
                    let n = last.positions * axis.positions;
                    *last = Axis { positions: n, source: n, out: n, ..Axis::ONE };
                }
                _ => {
                    view.axes[view.rank] = axis;
                    view.rank += 1;
                }
            }
        }
        view.rank = view.rank.max(1);
        view
    }

    /// The axes.
    pub fn axes(&self) -> &[Axis] {
        &self.axes[..self.rank]
    }

    /// Positions in all.
    pub fn positions(&self) -> usize {
        self.axes().iter().map(|a| a.positions).product()
    }

    /// Taps in all.
    pub fn taps(&self) -> usize {
        self.axes().iter().map(|a| a.taps).product()
    }

    /// Elements of a channel of the source.
    pub fn plane(&self) -> usize {
        self.axes().iter().map(|a| a.source).product()
    }

    /// Elements of a channel of the result.
    pub fn out_plane(&self) -> usize {
        self.axes().iter().map(|a| a.out).product()
    }

    /// Elements of the kernel of one pair of channels.
    pub fn w_plane(&self) -> usize {
        self.axes().iter().map(|a| a.w).product()
    }

    /// Whether the positions are all of the result, in order.
    pub fn is_dense(&self) -> bool {
        self.axes()
            .iter()
            .all(|a| a.out_first == 0 && (a.out_step == 1 || a.out == 1) && a.out == a.positions)
    }

    /// Whether the taps are all of the kernel, in order.
    fn has_all_taps(&self) -> bool {
        self.axes().iter().all(|a| a.w_first == 0 && (a.w_step == 1 || a.w == 1) && a.w == a.taps)
    }

    /// Where a tap lies in the kernel.
    pub(super) fn w_at(&self, mut tap: usize) -> usize {
        let (mut at, mut stride) = (0, 1);
        for a in self.axes().iter().rev() {
            at += (a.w_first + tap % a.taps * a.w_step) * stride;
            tap /= a.taps;
            stride *= a.w;
        }
        at
    }

    /// The most runs that `cols` neighbouring positions can lie in.
    fn most_runs(&self, cols: usize) -> usize {
        let inner = self.axes[self.rank - 1].positions.max(1);
        ((cols - 1) / inner + 2 + cols / RUN).min(cols)
    }

    /// Writes the runs of positions `from..to` (of all images, `image` apart in the source and `out_image` in
    /// the result, `base` the first channel of the group) and what each tap sees of them. Returns their number.
    ///
    /// # Safety
    /// `runs` has room for `most_runs(to - from)` entries, `seen` for as many times the number of taps.
    #[allow(clippy::too_many_arguments)]
    unsafe fn runs(
        &self,
        from: usize,
        to: usize,
        base: usize,
        image: usize,
        out_image: usize,
        runs: *mut Run,
        seen: *mut Seen,
    ) -> usize {
        let axes = self.axes();
        let inner = axes[axes.len() - 1];
        let outer = &axes[..axes.len() - 1];
        let taps = self.taps();
        let (mut count, mut at, mut seen_at) = (0, from, seen);
        let mut place = [0; MAX_AXES];
        let mut rest = from;
        for (p, a) in place.iter_mut().zip(axes).rev() {
            *p = rest % a.positions;
            rest /= a.positions;
        }
        let mut n = rest;
        while at < to {
            let p0 = place[axes.len() - 1];
            let len = (inner.positions - p0).min(to - at).min(RUN);
            let mut out = 0;
            for (p, a) in place.iter().zip(axes) {
                out = out * a.out + a.out_first + p * a.out_step;
            }
            let run = Run {
                base: base + n * image,
                out: n * out_image + out,
                col: (at - from) as u32,
                len: len as u32,
            };
            // SAFETY: the caller's room.
            unsafe { *runs.add(count) = run };
            // The taps, the innermost axis in a loop of its own.
            let mut tap = [0; MAX_AXES];
            for _ in 0..taps / inner.taps {
                let (mut line, mut inside) = (0isize, true);
                for ((p, a), t) in place.iter().zip(outer).zip(tap) {
                    let x = (p * a.step) as isize + a.first + t as isize * a.tap_step;
                    inside &= x >= 0 && x < a.source as isize;
                    line = line * a.source as isize + x;
                }
                let mut x = (p0 * inner.step) as isize + inner.first;
                for _ in 0..inner.taps {
                    let mut see = Seen { at: 0, inside: 0 };
                    let (from, end) = inner_range(x, inner.step, inner.source, len);
                    if inside && from < end {
                        see.at = (line * inner.source as isize + x) as i32;
                        see.inside = (u32::MAX >> (32 - (end - from))) << from;
                    }
                    // SAFETY: the caller's room; there are `taps` entries a run.
                    unsafe { *seen_at = see };
                    seen_at = seen_at.wrapping_add(1);
                    x += inner.tap_step;
                }
                for (t, a) in tap.iter_mut().zip(outer).rev() {
                    *t += 1;
                    if *t < a.taps {
                        break;
                    }
                    *t = 0;
                }
            }
            count += 1;
            at += len;
            place[axes.len() - 1] += len;
            for i in (0..axes.len()).rev() {
                if place[i] < axes[i].positions {
                    break;
                }
                place[i] = 0;
                match i.checked_sub(1) {
                    Some(i) => place[i] += 1,
                    None => n += 1,
                }
            }
        }
        count
    }
}

/// Which of `len` positions, `step` apart from `x` on, lie in `0..size`.
pub(super) fn inner_range(x: isize, step: usize, size: usize, len: usize) -> (usize, usize) {
    if x >= size as isize {
        return (0, 0);
    }
    let (from, end) = if step == 1 {
        ((-x).max(0) as usize, (size as isize - x) as usize)
    } else {
        ((-x).max(0).cast_unsigned().div_ceil(step), (size as isize - x).cast_unsigned().div_ceil(step))
    };
    (from.min(len), end.min(len))
}

/// A convolution, or the positions of a transposed one that share their taps: for each image and group,
/// `out[row, position] = Σ w[row, channel, tap] · source[channel, position and tap] (+ bias[row])`, the sum by
/// the rule of matrix products over (channel, tap).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gather {
    /// Positions and taps.
    pub view: View,
    /// Images.
    pub batch: usize,
    /// Groups of channels.
    pub groups: usize,
    /// Channels of the result in a group.
    pub rows: usize,
    /// Channels of the source in a group.
    pub channels: usize,
    /// Elements of the kernel from one group, row and channel to the next.
    pub w_strides: [usize; 3],
}

/// How the work of a convolution is cut up, and the workspace: packed kernels for all, then per thread packed
/// columns, parked chains, a tile, runs and what taps see of them.
struct Plan {
    rows: usize,
    row_blocks: usize,
    /// Columns in all, and those that are not cut.
    columns: usize,
    unit: usize,
    col_blocks: usize,
    /// Whether there are enough columns for blocks of less and less of them.
    tapers: bool,
    strip: usize,
    a_len: usize,
    acc_len: usize,
    runs_len: usize,
    seen_len: usize,
}

/// The most floats of packed kernels in a block: what is gathered is gathered again for each block.
const A_BLOCK: usize = 528 * K_CHUNK;
/// The fewest rows of a block that is not all rows.
const LEAST_ROWS: usize = 6 * MAX_MR;
/// The most terms of a run; a strip of gathered columns then stays in a first-level cache.
const K_RUN: usize = 128;
/// The most floats of gathered columns.
const B_STRIP: usize = STRIP * K_RUN;
/// Floats that a `Run` and a `Seen` take.
const RUN_WORDS: usize = size_of::<Run>().div_ceil(4);
const SEEN_WORDS: usize = size_of::<Seen>().div_ceil(4);
/// Room for packed columns.
const B_LEN: usize = B_STRIP;
/// Room for a tile: of fewer rows it has more columns, but never more elements.
const TILE_LEN: usize = MAX_MR * PANEL;
/// Floats of the shortest vector of any level.
const LEAST_WIDTH: usize = 4;

impl Plan {
    /// The first column of block `i`.
    fn column(&self, i: usize) -> usize {
        let units = self.columns.div_ceil(self.unit);
        let first = if self.tapers { taper(units, self.col_blocks, i) } else { i * units / self.col_blocks };
        (first * self.unit).min(self.columns)
    }

    fn slot_len(&self) -> usize {
        (B_LEN + self.acc_len + TILE_LEN + self.runs_len + self.seen_len).next_multiple_of(LINE)
    }
}

/// Rows of a block whose packed chunk stays in a second-level cache.
fn tall(k: usize) -> usize {
    (A_BLOCK / k.clamp(64, K_CHUNK) / MAX_MR).max(1) * MAX_MR
}

/// Floats of `rows` packed rows for one term: a vector is at most a third wider than a panel.
fn packed_rows(rows: usize) -> usize {
    rows * 4 / 3 + LINE
}

/// Cuts a chunk's terms into runs: their number, and the length of all but the last.
fn cut(kc: usize) -> (usize, usize) {
    let runs = kc.div_ceil(K_RUN).max(1);
    (runs, kc.div_ceil(runs))
}

/// Columns that are packed together.
fn strip(k: usize) -> usize {
    let (runs, run) = cut(k.min(K_CHUNK));
    if runs > 1 { STRIP } else { (B_STRIP / run.max(1) / PANEL).max(1) * PANEL }
}

impl Gather {
    pub(super) fn k(&self) -> usize {
        self.channels * self.view.taps()
    }

    fn plan(&self, threads: usize) -> Plan {
        let k = self.k();
        let columns = self.batch * self.view.positions();
        let groups = self.groups.max(1);
        let unit = if columns >= 3 * threads * STRIP { STRIP } else { PANEL };
        let units = columns.div_ceil(unit).max(1);
        // A few tasks a thread, if there is work for that. With few columns rows are cut as well, not into less than pays
        // for gathering columns once more.
        let work = columns.saturating_mul(self.rows * groups).saturating_mul(k);
        let target = if threads == 1 { 1 } else { (work >> 15).clamp(1, 4 * threads) };
        let most = self.rows.div_ceil(LEAST_ROWS);
        let row_blocks =
            (target / 2).div_ceil(groups * units).min(most).max(self.rows.div_ceil(tall(k))).max(1);
        let rows = self.rows.div_ceil(row_blocks).max(1);
        let row_blocks = self.rows.div_ceil(rows).max(1);
        let col_blocks = target.div_ceil(groups * row_blocks).min(units);
        let tapers = units >= 3 * threads;
        let cols = if tapers { 2 * units.div_ceil(col_blocks) } else { units.div_ceil(col_blocks) } * unit;
        let strip = strip(k).min(cols);
        // Tiles cut the runs of a strip anew; they have two vectors of columns or more, but for the last.
        let runs = self.view.most_runs(strip) + strip / (2 * LEAST_WIDTH) + 4;
        Plan {
            rows,
            row_blocks,
            columns,
            unit,
            col_blocks,
            tapers,
            strip,
            a_len: (packed_rows(rows) * (k + LINE)).next_multiple_of(LINE),
            acc_len: if k > K_RUN { rows * STRIP } else { 0 },
            runs_len: runs * RUN_WORDS,
            seen_len: runs * self.view.taps() * SEEN_WORDS,
        }
    }

    /// Number of floats of workspace that [`Gather::run`] needs with a pool of `threads`.
    pub fn scratch_len(&self, threads: usize) -> usize {
        if self.k() == 0 {
            return 0;
        }
        if let Some(wide) = Wide::new(self, threads) {
            return wide.scratch_len(threads);
        }
        let plan = self.plan(threads);
        self.groups * plan.row_blocks * plan.a_len + threads * plan.slot_len() + LINE
    }

    /// Computes the result at this view's positions. `scratch` has at least `scratch_len(pool.threads())`
    /// elements, of any value.
    ///
    /// # Panics
    /// If a slice does not have the length that the sizes give.
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
        let Gather { view, batch, groups, rows, channels, .. } = *self;
        assert_eq!(source.len(), batch * groups * channels * view.plane(), "length of source");
        assert_eq!(w.len(), groups * rows * channels * view.w_plane(), "length of w");
        assert_eq!(out.len(), batch * groups * rows * view.out_plane(), "length of out");
        assert!(bias.is_none_or(|b| b.len() == groups * rows), "length of bias");
        if out.is_empty() || view.positions() == 0 {
            return;
        }
        if self.k() == 0 {
            self.fill(pool, bias, out);
            return;
        }
        let threads = pool.threads();
        if let Some(wide) = Wide::new(self, threads) {
            wide.run(pool, simd, source, w, bias, out, scratch);
            return;
        }
        let plan = self.plan(threads);
        let skip = scratch.as_ptr().align_offset(4 * LINE).min(LINE);
        let slot_len = plan.slot_len();
        let packed_len = groups * plan.row_blocks * plan.a_len;
        assert!(scratch.len() >= skip + packed_len + threads * slot_len, "length of scratch");
        let tasks = groups * plan.row_blocks * plan.col_blocks;
        let packed = scratch[skip..].as_mut_ptr();
        let work = GatherWork {
            gather: *self,
            kernels: Kernels::of(simd),
            source: source.as_ptr(),
            w: w.as_ptr(),
            bias: bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
            out: out.as_mut_ptr(),
            packed,
            slots: packed.wrapping_add(packed_len),
            plan,
        };
        // Packing is shared out by panels.
        let panels = Panels::new(work.plan.rows, work.kernels.mr).count;
        let packs = groups * work.plan.row_blocks * panels;
        pool.run(packs, |task| {
            // SAFETY: `run` calls with each task once, and each packs a panel of its own.
            unsafe { work.pack(task / panels, task % panels) };
        });
        let next = AtomicUsize::new(0);
        pool.run(threads.min(tasks), |slot| {
            let slot = work.slots.wrapping_add(slot * slot_len);
            loop {
                let task = next.fetch_add(1, Relaxed);
                if task >= tasks {
                    break;
                }
                // SAFETY: the counter gives each task once, and the slot's workspace belongs to this call; the
                // assertions above make room for all slots and bound what is read and written.
                unsafe { work.block(task, slot) };
            }
        });
    }

    /// Packs `rows` (group, first row and number) of the kernel `w` for `terms` (the first and their number): for each
    /// term `vectors` that hold its rows.
    ///
    /// # Safety
    /// Rows and terms are inside the kernel, `to` leads to so many vectors, and the kernels are of a level that the
    /// processor has.
    pub(super) unsafe fn pack(
        &self,
        kernels: &Kernels,
        w: *const f32,
        (group, row, rows): (usize, usize, usize),
        (k0, len): (usize, usize),
        vectors: usize,
        to: *mut f32,
    ) {
        let Gather { view, w_strides: [by_group, by_row, by_channel], .. } = *self;
        let taps = view.taps();
        let w = w.wrapping_add(group * by_group + row * by_row);
        let all = view.has_all_taps();
        // SAFETY: the caller's.
        unsafe {
            if all && taps == 1 && by_row == 1 {
                (kernels.pack_lines)(w.wrapping_add(k0 * by_channel), by_channel, rows, vectors, len, to);
                return;
            }
            if !all {
                for tap in 0..taps {
                    let w = w.wrapping_add(view.w_at(tap));
                    for k in (k0 + (tap + taps - k0 % taps) % taps..k0 + len).step_by(taps) {
                        let from = w.wrapping_add(k / taps * by_channel);
                        let to = to.wrapping_add((k - k0) * vectors * kernels.width);
                        for row in 0..rows {
                            *to.add(row) = *from.add(row * by_row);
                        }
                    }
                }
                return;
            }
            let mut k = k0;
            while k < k0 + len {
                let some = self.together(k).min(k0 + len - k);
                let from = w.wrapping_add(k / taps * by_channel + k % taps);
                let to = to.wrapping_add((k - k0) * vectors * kernels.width);
                (kernels.pack_turned)(from, by_row, rows, vectors, some, to);
                k += some;
            }
        }
    }

    /// As many terms from `k` on as lie side by side in the kernel.
    pub(super) fn together(&self, k: usize) -> usize {
        let taps = self.view.taps();
        match (self.view.has_all_taps(), self.w_strides[2] == taps) {
            (true, true) => self.k() - k,
            (true, false) => taps - k % taps,
            (false, _) => 1,
        }
    }

    /// The positions that no tap reaches: +0 and the bias.
    fn fill(&self, pool: &Pool, bias: Option<&[f32]>, out: &mut [f32]) {
        let axes = self.view.axes();
        let (inner, outer) = (axes[axes.len() - 1], &axes[..axes.len() - 1]);
        let lines = outer.iter().map(|a| a.positions).product::<usize>();
        pool.chunks_mut(out, self.view.out_plane(), |channel, out| {
            let value = bias.map_or(0.0, |b| 0.0 + b[channel % (self.groups * self.rows)]);
            for line in 0..lines {
                let (mut rest, mut at, mut stride) = (line, inner.out_first, inner.out);
                for a in outer.iter().rev() {
                    at += (a.out_first + rest % a.positions * a.out_step) * stride;
                    rest /= a.positions;
                    stride *= a.out;
                }
                out[at..].iter_mut().step_by(inner.out_step).take(inner.positions).for_each(|x| *x = value);
            }
        });
    }
}

/// A convolution under way.
struct GatherWork {
    gather: Gather,
    plan: Plan,
    kernels: &'static Kernels,
    source: *const f32,
    w: *const f32,
    bias: *const f32,
    out: *mut f32,
    packed: *mut f32,
    slots: *mut f32,
}

// SAFETY: the pointers lead into slices that `Gather::run` borrows for as long as this lives; what is written
// is kept apart between tasks.
unsafe impl Sync for GatherWork {}

impl GatherWork {
    /// First row and panels of block `b` of the rows of all groups.
    fn rows_of(&self, b: usize) -> (usize, usize, Panels) {
        let (group, i0) = (b / self.plan.row_blocks, b % self.plan.row_blocks * self.plan.rows);
        let rows = self.plan.rows.min(self.gather.rows - i0);
        (group, i0, Panels::new(rows, self.kernels.mr))
    }

    /// Packs panel `p` of row block `b`: for each run of terms, a vector of the panel's rows for each term.
    ///
    /// # Safety
    /// The pointers lead to what `Gather` says, and no other thread writes this panel.
    unsafe fn pack(&self, b: usize, p: usize) {
        let (k, width) = (self.gather.k(), self.kernels.width);
        let (group, i0, panels) = self.rows_of(b);
        let Some((i, mr)) = panels.iter().nth(p) else { return };
        let packed = self.packed.wrapping_add(b * self.plan.a_len);
        for k0 in (0..k).step_by(K_CHUNK) {
            let kc = (k - k0).min(K_CHUNK);
            let (runs, run) = cut(kc);
            for r in 0..runs {
                let (kr, len) = (k0 + r * run, run.min(kc - r * run));
                let to = packed.wrapping_add((k0 * panels.count + (r * panels.count + p) * run) * width);
                // SAFETY: the panel's rows and these terms are inside the kernel, and the workspace has a
                // vector per term and panel.
                unsafe { self.gather.pack(self.kernels, self.w, (group, i0 + i, mr), (kr, len), 1, to) };
            }
        }
    }

    /// Computes one block of the result: some rows of a group at some columns (image, position).
    ///
    /// # Safety
    /// The pointers lead to what `Gather` says; `task` names a block that no other call has; and `slot` leads to
    /// `slot_len` floats that no other thread uses.
    unsafe fn block(&self, task: usize, slot: *mut f32) {
        let Gather { view, groups, rows, channels, .. } = self.gather;
        let Kernels { width, ref wide, tile, gather, add_bias, put, .. } = *self.kernels;
        let (b, col_task) = (task / self.plan.col_blocks, task % self.plan.col_blocks);
        let (group, i0, panels) = self.rows_of(b);
        let positions = view.positions();
        let (j0, j1, strip) = (self.plan.column(col_task), self.plan.column(col_task + 1), self.plan.strip);
        let (k, taps, plane, out_plane) = (self.gather.k(), view.taps(), view.plane(), view.out_plane());
        let (image, out_image) = (groups * channels * plane, groups * rows * out_plane);
        let step = view.axes()[view.axes().len() - 1].step;
        let out_step = view.axes()[view.axes().len() - 1].out_step;
        let dense = view.is_dense();
        // Few rows have wider tiles, so that there are enough sums to fill the pipeline.
        let alone = panels.count == 1;
        let most = if alone { wide[panels.iter().map(|(_, mr)| mr).max().unwrap_or(1) - 1] } else { 2 };
        let packed = self.packed.wrapping_add(b * self.plan.a_len);
        let acc = slot.wrapping_add(B_LEN);
        let spare = acc.wrapping_add(self.plan.acc_len);
        let runs_at = spare.wrapping_add(TILE_LEN).cast::<Run>();
        let seen_at = spare.wrapping_add(TILE_LEN + self.plan.runs_len).cast::<Seen>();
        let first_row = group * rows + i0;
        let out = self.out.wrapping_add(first_row * out_plane);

        let chunks = k.div_ceil(K_CHUNK);
        for chunk in 0..chunks {
            let k0 = chunk * K_CHUNK;
            let kc = (k - k0).min(K_CHUNK);
            let (runs, run) = cut(kc);
            let last_chunk = chunk + 1 == chunks;
            for s0 in (j0..j1).step_by(strip) {
                let s1 = (s0 + strip).min(j1);
                let shape = |j: usize| Tiling { width, most, end: s1 }.at(j);
                // The runs of each tile, tile after tile.
                let (mut j, mut count) = (s0, 0);
                while j < s1 {
                    let valid = shape(j).1;
                    // SAFETY: the workspace has room for the runs of a strip, cut into tiles.
                    count += unsafe {
                        view.runs(
                            j,
                            j + valid,
                            group * channels * plane,
                            image,
                            out_image,
                            runs_at.wrapping_add(count),
                            seen_at.wrapping_add(count * taps),
                        )
                    };
                    j += valid;
                }
                debug_assert!(count * RUN_WORDS <= self.plan.runs_len);
                // The number of runs of the tile that starts with run r.
                let runs_of = |r: usize, valid: usize| {
                    let (mut n, mut cols) = (0, 0);
                    while cols < valid {
                        // SAFETY: the runs of a tile have as many columns as the tile.
                        cols += unsafe { (*runs_at.add(r + n)).len as usize };
                        n += 1;
                    }
                    n
                };
                // The columns to come lie behind these, mostly.
                // SAFETY: a strip has at least one run, and an entry for each tap of it.
                let (base, seen) = unsafe { ((*runs_at).base, (*seen_at).at as isize) };
                let behind = self.source.wrapping_add(base + strip).wrapping_offset(seen);
                for r in 0..runs {
                    let (kr, len) = (k0 + r * run, run.min(kc - r * run));
                    let mut asked = 0;
                    let (mut j, mut at) = (s0, 0);
                    while j < s1 {
                        let (log, valid) = shape(j);
                        let count = runs_of(at, valid);
                        let lines = Lines {
                            source: self.source,
                            plane,
                            runs: runs_at.wrapping_add(at),
                            count,
                            seen: seen_at.wrapping_add(at * taps),
                            taps,
                            channel: kr / taps,
                            tap: kr % taps,
                            lines: len,
                            pitch: width << log,
                            step,
                        };
                        // SAFETY: the runs are of this view; packed columns have room for a strip.
                        unsafe { gather(&lines, slot.wrapping_add((j - s0) * len)) };
                        j += valid;
                        at += count;
                    }
                    let (mut j, mut at) = (s0, 0);
                    while j < s1 {
                        let (log, valid) = shape(j);
                        let count = runs_of(at, valid);
                        // SAFETY: a tile has at least one run.
                        let here = unsafe { *runs_at.add(at) };
                        let direct = dense && j % positions + valid <= positions;
                        let end = r + 1 == runs;
                        for (p, (i, mr)) in panels.iter().enumerate() {
                            let out = out.wrapping_add(i * out_plane);
                            let bias = match last_chunk && !self.bias.is_null() {
                                true => self.bias.wrapping_add(first_row + i),
                                false => std::ptr::null(),
                            };
                            // With one tap, each tile asks for a line of half the channels.
                            let (ahead, ahead_step) =
                                match taps == 1 && step == 1 && asked / 2 * LINE <= strip {
                                    true => {
                                        let line = (kr + asked % 2 * (len / 2)) * plane + asked / 2 * LINE;
                                        (behind.wrapping_add(line), plane)
                                    }
                                    false => (slot.wrapping_add((j - s0) * len).cast_const(), width << log),
                                };
                            asked += 1;
                            let t = Tile {
                                kc: len,
                                a: packed
                                    .wrapping_add((k0 * panels.count + (r * panels.count + p) * run) * width),
                                stride_a: width,
                                b: slot.wrapping_add((j - s0) * len),
                                stride_b: width << log,
                                keep: std::ptr::null_mut(),
                                ahead,
                                ahead_step,
                                acc: acc.wrapping_add(i * STRIP + (j - s0) * mr),
                                begin: r == 0,
                                end,
                                c: if direct { out.wrapping_add(here.out) } else { spare },
                                stride_c: if direct { out_plane } else { width << log },
                                first: !direct || chunk == 0,
                                bias: std::ptr::null(),
                                tail: valid - ((width << log) - width),
                            };
                            // SAFETY: the kernels are of a level that the processor has; rows and columns of
                            // the tile are inside the result, or it goes to the spare tile; the operands are
                            // packed.
                            unsafe { tile[1][usize::from(alone)][mr - 1][log](&t) };
                            if direct && end && !bias.is_null() {
                                // SAFETY: as above.
                                unsafe { add_bias(t.c, out_plane, mr, valid, bias) };
                            }
                            if direct || !end {
                                continue;
                            }
                            for run in at..at + count {
                                // SAFETY: the tile's rows and the run's positions are inside the result.
                                unsafe {
                                    let run = *runs_at.add(run);
                                    let from = spare.add(run.col as usize);
                                    let (from_stride, cols) = (width << log, run.len as usize);
                                    let (to, to_stride, add) = (out.add(run.out), out_plane, chunk > 0);
                                    let (to_step, rows) = (out_step, mr);
                                    put(&Put {
                                        from,
                                        from_stride,
                                        to,
                                        to_stride,
                                        to_step,
                                        rows,
                                        cols,
                                        add,
                                        bias,
                                    });
                                }
                            }
                        }
                        j += valid;
                        at += count;
                    }
                }
            }
        }
    }
}

/// The gradient of a convolution's kernel: for each group, `out[row, channel, tap] = Σ g[image, row, position] ·
/// source[image, channel, position and tap]`, the sum by the rule of matrix products over (image, position).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelGrad {
    /// Positions and taps; the result of the view is where `g` lies, the kernel is the whole kernel.
    pub view: View,
    /// Images.
    pub batch: usize,
    /// Groups of channels.
    pub groups: usize,
    /// Channels of `g` in a group.
    pub rows: usize,
    /// Channels of the source in a group.
    pub channels: usize,
}

/// Results so large that columns alone give every thread enough to do.
const LARGE_GRAD: usize = 1 << 18;
/// Columns up to which packing rows of `g` does not pay.
const DIRECT: usize = 128;
/// Bytes after which a first-level cache has the same place again.
const SET: usize = 4096;
/// Floats from one gathered line of terms to the next.
const TERM_PITCH: usize = K_RUN + LINE;
/// Room for the gathered lines of a tile.
const TERMS_LEN: usize = PANEL * TERM_PITCH;

/// How the work of a kernel's gradient is cut up. Chunks are done in waves: those of a wave at once, each
/// into a part of its own, then added in order.
struct GradPlan {
    wide: Option<WideGrad>,
    rows: usize,
    row_blocks: usize,
    cols: usize,
    col_blocks: usize,
    wave: usize,
    a_len: usize,
    acc_len: usize,
    runs_len: usize,
    seen_len: usize,
}

impl GradPlan {
    fn slot_len(&self) -> usize {
        if let Some(wide) = &self.wide {
            return wide.slot_len(self.rows, self.cols / wide.taps()).next_multiple_of(LINE);
        }
        (self.a_len + B_LEN + self.acc_len + TERMS_LEN + self.runs_len + self.seen_len).next_multiple_of(LINE)
    }
}

impl KernelGrad {
    fn columns(&self) -> usize {
        self.channels * self.view.taps()
    }

    pub(super) fn k(&self) -> usize {
        self.batch * self.view.positions()
    }

    fn size(&self) -> usize {
        self.groups * self.rows * self.columns()
    }

    fn plan(&self, threads: usize) -> GradPlan {
        let k = self.k();
        let chunks = k.div_ceil(K_CHUNK).max(1);
        let row_blocks = self.rows.div_ceil(tall(k)).max(1);
        let rows = self.rows.div_ceil(row_blocks).max(1);
        let row_blocks = self.rows.div_ceil(rows).max(1);
        let wave = if threads == 1 || self.size() >= LARGE_GRAD { 1 } else { chunks.min(4 * threads) };
        let work = self.size().saturating_mul(k);
        let target = if threads == 1 { 1 } else { (work >> 15).clamp(1, 4 * threads) };
        let per = target.div_ceil(self.groups.max(1) * row_blocks * wave);
        let wide = WideGrad::new(self);
        let cols = self.columns().div_ceil(per).max(1);
        let cols = match &wide {
            // Whole channels.
            Some(wide) => cols.min(wide.channels() * wide.taps()).next_multiple_of(wide.taps()),
            None => cols.next_multiple_of(STRIP),
        };
        let runs = self.view.most_runs(k.clamp(1, K_RUN));
        GradPlan {
            wide,
            rows,
            row_blocks,
            cols,
            col_blocks: self.columns().div_ceil(cols),
            wave,
            a_len: (packed_rows(rows) * (k.min(K_CHUNK) + LINE)).next_multiple_of(LINE),
            acc_len: if k > K_RUN { rows * STRIP } else { 0 },
            runs_len: (runs * RUN_WORDS).next_multiple_of(LINE),
            seen_len: runs * self.view.taps() * SEEN_WORDS,
        }
    }

    /// Number of floats of workspace that [`KernelGrad::run`] needs with a pool of `threads`.
    pub fn scratch_len(&self, threads: usize) -> usize {
        let plan = self.plan(threads);
        (plan.wave - 1) * self.size() + threads * plan.slot_len() + 2 * LINE
    }

    /// Computes the gradient. `scratch` has at least `scratch_len(pool.threads())` elements, of any value.
    ///
    /// # Panics
    /// If a slice does not have the length that the sizes give.
    #[allow(clippy::too_many_arguments)]
    pub fn run(
        &self,
        pool: &Pool,
        simd: Simd,
        g: &[f32],
        source: &[f32],
        out: &mut [f32],
        scratch: &mut [f32],
    ) {
        let KernelGrad { view, batch, groups, rows, channels } = *self;
        assert_eq!(g.len(), batch * groups * rows * view.positions(), "length of g");
        assert_eq!(source.len(), batch * groups * channels * view.plane(), "length of source");
        assert_eq!(out.len(), self.size(), "length of out");
        if out.is_empty() {
            return;
        }
        let k = self.k();
        if k == 0 {
            out.fill(0.0);
            return;
        }
        let threads = pool.threads();
        let plan = self.plan(threads);
        let skip = scratch.as_ptr().align_offset(4 * LINE).min(LINE);
        let slot_len = plan.slot_len();
        let parts_len = ((plan.wave - 1) * self.size()).next_multiple_of(LINE);
        let (parts, slots) = scratch[skip..].split_at_mut(parts_len);
        assert!(slots.len() >= threads * slot_len, "length of scratch");
        let chunks = k.div_ceil(K_CHUNK);
        let (wave, blocks) = (plan.wave, groups * plan.row_blocks * plan.col_blocks);
        let work = GradWork {
            grad: *self,
            kernels: Kernels::of(simd),
            threads,
            g: g.as_ptr(),
            source: source.as_ptr(),
            plan,
        };
        let slots = Shared(slots.as_mut_ptr());
        // With one part at a time, a task does all chunks of its block.
        let waves = if wave == 1 { 1 } else { chunks.div_ceil(wave) };
        for w in 0..waves {
            let c0 = w * wave;
            let now = if wave == 1 { 1 } else { wave.min(chunks - c0) };
            let (to, part_at) = (Shared(out.as_mut_ptr()), Shared(parts.as_mut_ptr()));
            let next = AtomicUsize::new(0);
            pool.run(threads.min(now * blocks), |slot| {
                let slot = slots.at(slot * slot_len);
                let (mut packed, mut held) = (None, Held::default());
                loop {
                    let task = next.fetch_add(1, Relaxed);
                    if task >= now * blocks {
                        break;
                    }
                    let (c, block) = (task / blocks, task % blocks);
                    // The first chunk of a wave adds to what is there already, the others have parts.
                    let (to, first) = match c {
                        0 => (to.at(0), c0 == 0),
                        _ => (part_at.at((c - 1) * work.grad.size()), true),
                    };
                    let range = if wave == 1 { 0..chunks } else { c0 + c..c0 + c + 1 };
                    // SAFETY: the counter gives each task once, tasks write blocks or parts of their own, and
                    // the slot's workspace belongs to this call; the lengths were checked above.
                    unsafe {
                        match &work.plan.wide {
                            Some(wide) => work.wide_block(wide, block, range, to, first, slot, &mut held),
                            None => work.block(block, range, to, first, slot, &mut packed),
                        }
                    };
                }
            });
            if now > 1 {
                let size = self.size();
                let piece = pool.share(size, 4096, LINE);
                let parts = &*parts;
                pool.chunks_mut(out, piece, |index, out| {
                    for part in parts[index * piece..].chunks(size).take(now - 1) {
                        for (o, p) in out.iter_mut().zip(part) {
                            *o += *p;
                        }
                    }
                });
            }
        }
    }
}

/// An address that threads may share; what each writes is kept apart by whoever uses it.
#[derive(Clone, Copy)]
pub(super) struct Shared(pub *mut f32);

// SAFETY: an address alone; its uses say why they are sound.
unsafe impl Sync for Shared {}

impl Shared {
    pub fn at(&self, offset: usize) -> *mut f32 {
        self.0.wrapping_add(offset)
    }
}

/// A kernel's gradient under way.
struct GradWork {
    grad: KernelGrad,
    plan: GradPlan,
    kernels: &'static Kernels,
    threads: usize,
    g: *const f32,
    source: *const f32,
}

// SAFETY: the pointers lead into slices that `KernelGrad::run` borrows for as long as this lives, and are only
// read.
unsafe impl Sync for GradWork {}

impl GradWork {
    /// As `block`, with vectors along the rows.
    ///
    /// # Safety
    /// As for `block`.
    #[allow(clippy::too_many_arguments)]
    unsafe fn wide_block(
        &self,
        wide: &WideGrad,
        block: usize,
        chunks: std::ops::Range<usize>,
        to: *mut f32,
        first: bool,
        slot: *mut f32,
        held: &mut Held,
    ) {
        let KernelGrad { rows, channels, .. } = self.grad;
        let (b, col_task) = (block / self.plan.col_blocks, block % self.plan.col_blocks);
        let (group, i0) = (b / self.plan.row_blocks, b % self.plan.row_blocks * self.plan.rows);
        let per = self.plan.cols / wide.taps();
        let part =
            (group, i0..rows.min(i0 + self.plan.rows), col_task * per..channels.min(col_task * per + per));
        let later = if self.plan.wave == 1 { 1 } else { (self.threads / self.plan.col_blocks).max(1) };
        // SAFETY: the caller's.
        unsafe {
            wide.block(
                self.kernels,
                self.plan.rows,
                self.g,
                self.source,
                part,
                chunks,
                later,
                to,
                first,
                slot,
                held,
            )
        };
    }

    /// Computes one block of the gradient over some chunks; `packed` remembers which rows of `g` the workspace
    /// holds.
    ///
    /// # Safety
    /// The pointers lead to what `KernelGrad` says, `to` to a whole gradient of which no other call writes this
    /// block, and `slot` to `slot_len` floats that no other thread uses.
    unsafe fn block(
        &self,
        block: usize,
        chunks: std::ops::Range<usize>,
        to: *mut f32,
        first: bool,
        slot: *mut f32,
        packed: &mut Option<(usize, usize)>,
    ) {
        let KernelGrad { view, batch: _, groups, rows, channels } = self.grad;
        let Kernels { width, mr, tile, gather, pack_turned, .. } = *self.kernels;
        let (b, col_task) = (block / self.plan.col_blocks, block % self.plan.col_blocks);
        let (group, i0) = (b / self.plan.row_blocks, b % self.plan.row_blocks * self.plan.rows);
        let panels = Panels::new(self.plan.rows.min(rows - i0), mr);
        let (columns, k) = (self.grad.columns(), self.grad.k());
        let (positions, taps, plane) = (view.positions(), view.taps(), view.plane());
        let (j0, j1) = (col_task * self.plan.cols, (col_task * self.plan.cols + self.plan.cols).min(columns));
        let step = view.axes()[view.axes().len() - 1].step;
        let a_pack = slot;
        let b_pack = a_pack.wrapping_add(self.plan.a_len);
        let acc = b_pack.wrapping_add(B_LEN);
        let terms = acc.wrapping_add(self.plan.acc_len);
        let runs_at = terms.wrapping_add(TERMS_LEN).cast::<Run>();
        let seen_at = terms.wrapping_add(TERMS_LEN + self.plan.runs_len).cast::<Seen>();
        let first_row = group * rows + i0;
        let to = to.wrapping_add(first_row * columns);

        // Few columns do not pay for packing: a run's rows of g are read where they are, if they lie in one image and are
        // not so far apart that they push each other out of the cache. With very few it is packing that fetches them
        // soon enough.
        let few = (STRIP + 1..=DIRECT).contains(&columns) && !(4 * positions).is_multiple_of(SET);
        let in_place = |kr: usize, len: usize| few && kr % positions + len <= positions;
        // With one tap and no steps the terms lie side by side, as those of g do.
        let plain = view.axes().len() == 1 && view.axes()[0].is_plain();

        let first_chunk = chunks.start;
        for chunk in chunks {
            let k0 = chunk * K_CHUNK;
            let kc = (k - k0).min(K_CHUNK);
            let (runs, run) = cut(kc);
            let packed_at = |r: usize, p: usize| (r * panels.count + p) * run * width;
            if *packed != Some((b, chunk)) {
                for r in 0..runs {
                    let (kr, len) = (k0 + r * run, run.min(kc - r * run));
                    if in_place(kr, len) {
                        continue;
                    }
                    for (p, (i, mr)) in panels.iter().enumerate() {
                        let mut at = kr;
                        while at < kr + len {
                            // As many terms as lie in one image.
                            let (n, o) = (at / positions, at % positions);
                            let some = (positions - o).min(kr + len - at);
                            let from = (n * groups * rows + first_row + i) * positions + o;
                            let to = a_pack.wrapping_add(packed_at(r, p) + (at - kr) * width);
                            // SAFETY: the panel's rows and these terms are inside g, and the workspace has a
                            // vector per term and panel.
                            unsafe {
                                pack_turned(self.g.wrapping_add(from), positions, mr, 1, some, to);
                            }
                            at += some;
                        }
                    }
                }
                *packed = Some((b, chunk));
            }
            for s0 in (j0..j1).step_by(STRIP) {
                let s1 = (s0 + STRIP).min(j1);
                let shape = |j: usize| Tiling { width, most: 2, end: s1 }.at(j);
                for r in 0..runs {
                    let (kr, len) = (k0 + r * run, run.min(kc - r * run));
                    // SAFETY: the workspace has room for the runs of so many terms.
                    let count = unsafe {
                        let base = group * channels * plane;
                        view.runs(kr, kr + len, base, groups * channels * plane, 0, runs_at, seen_at)
                    };
                    // What is turned next: terms to come, or columns.
                    let (sn, kn) = match (r + 1 < runs, s1 < j1) {
                        (true, _) => (s0, kr + len),
                        (false, true) => (s1, k0),
                        (false, false) => (j0, k0 + kc),
                    };
                    let behind = ((kn / positions * groups + group) * channels + sn) * plane + kn % positions;
                    let (mut j, mut asked) = (s0, 0);
                    while j < s1 {
                        let (log, valid) = shape(j);
                        let lines = Lines {
                            source: self.source,
                            plane,
                            runs: runs_at,
                            count,
                            seen: seen_at,
                            taps,
                            channel: j / taps,
                            tap: j % taps,
                            lines: valid,
                            pitch: TERM_PITCH,
                            step,
                        };
                        // SAFETY: the runs are of this view; there is room for a tile's lines,
                        // and for a strip of packed columns.
                        unsafe {
                            let to = b_pack.wrapping_add((j - s0) * len);
                            if plain {
                                let mut at = kr;
                                while at < kr + len {
                                    let (n, o) = (at / positions, at % positions);
                                    let some = (positions - o).min(kr + len - at);
                                    let from = ((n * groups + group) * channels + j) * plane + o;
                                    let to = to.wrapping_add((at - kr) * (width << log));
                                    pack_turned(
                                        self.source.wrapping_add(from),
                                        plane,
                                        valid,
                                        1 << log,
                                        some,
                                        to,
                                    );
                                    at += some;
                                }
                            } else {
                                gather(&lines, terms);
                                pack_turned(terms, TERM_PITCH, valid, 1 << log, len, to);
                            }
                        }
                        let here = in_place(kr, len);
                        let g_at = (kr / positions * groups * rows + first_row) * positions + kr % positions;
                        for (p, (i, mr)) in panels.iter().enumerate() {
                            let (a, stride_a) = match here {
                                true => (self.g.wrapping_add(g_at + i * positions), positions),
                                false => (a_pack.wrapping_add(packed_at(r, p)).cast_const(), width),
                            };
                            // Each tile asks for a line of all columns.
                            let (ahead, ahead_step) = match plain && asked * LINE <= run {
                                true => (self.source.wrapping_add(behind + asked * LINE), plane),
                                false => (b_pack.cast_const(), 0),
                            };
                            asked += 1;
                            let t = Tile {
                                kc: len,
                                a,
                                stride_a,
                                b: b_pack.wrapping_add((j - s0) * len),
                                stride_b: width << log,
                                keep: std::ptr::null_mut(),
                                ahead,
                                ahead_step,
                                acc: acc.wrapping_add(i * STRIP + (j - s0) * mr),
                                begin: r == 0,
                                end: r + 1 == runs,
                                c: to.wrapping_add(i * columns + j),
                                stride_c: columns,
                                first: first && chunk == first_chunk,
                                bias: std::ptr::null(),
                                tail: valid - ((width << log) - width),
                            };
                            // SAFETY: the kernels are of a level that the processor has; rows and columns of
                            // the tile are inside the gradient, and the operands are packed.
                            unsafe { tile[usize::from(!here)][0][mr - 1][log](&t) };
                        }
                        j += valid;
                    }
                }
            }
        }
    }
}
