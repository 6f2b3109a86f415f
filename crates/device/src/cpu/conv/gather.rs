//! Convolution as implicit GEMM: columns of the second operand are gathered from the source strip by strip, packed, and
//! multiplied with the tiles of [`crate::cpu::gemm`].
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::Gather;
use super::kernel::{Lines, StoreTile};
use super::view::{Run, Seen};
use crate::cpu::LINE;
use crate::cpu::gemm::kernel::Tile;
use crate::cpu::gemm::plan::{MAX_MR, PANEL, Panels, STRIP, Tiling, taper};
use crate::cpu::kernels::Kernels;
use crate::cpu::simd::Simd;
use crate::cpu::threads::Pool;
use dittograd_numerics::K_CHUNK;

/// How the work of a convolution is split. The workspace has the packed kernel, then a slot per thread: packed columns,
/// saved accumulators, a tile, the runs, and each tap's view of the runs.
struct Plan {
    rows: usize,
    row_blocks: usize,
    /// All columns, and how many of them stay together in a block.
    columns: usize,
    unit: usize,
    col_blocks: usize,
    /// Whether there are enough columns for blocks of decreasing size, see [`taper`].
    tapers: bool,
    strip: usize,
    a_len: usize,
    acc_len: usize,
    runs_len: usize,
    seen_len: usize,
}

/// The most floats of packed kernel in a block. Large, since columns are gathered again for each block of rows.
const MAX_BLOCK_A: usize = 528 * K_CHUNK;
/// The fewest rows of a block if rows are split at all.
const MIN_BLOCK_ROWS: usize = 6 * MAX_MR;
/// The most terms of a run, so that a strip of gathered columns stays in the L1 cache.
pub(super) const K_RUN: usize = 128;
/// The most floats of gathered columns.
pub(super) const STRIP_LEN: usize = STRIP * K_RUN;
/// Floats that a `Run` and a `Seen` take.
pub(super) const RUN_WORDS: usize = size_of::<Run>().div_ceil(4);
pub(super) const SEEN_WORDS: usize = size_of::<Seen>().div_ceil(4);
/// Room for a tile. A tile of fewer rows has more columns, but never more elements.
const TILE_LEN: usize = MAX_MR * PANEL;
/// Floats of the shortest vector of any SIMD level.
const MIN_VECTOR: usize = 4;

impl Plan {
    /// The first column of block `i`.
    fn column(&self, i: usize) -> usize {
        let units = self.columns.div_ceil(self.unit);
        let first = if self.tapers { taper(units, self.col_blocks, i) } else { i * units / self.col_blocks };
        (first * self.unit).min(self.columns)
    }

    fn slot_len(&self) -> usize {
        (STRIP_LEN + self.acc_len + TILE_LEN + self.runs_len + self.seen_len).next_multiple_of(LINE)
    }
}

/// The most rows of a block, so that a packed chunk of them stays in the L2 cache.
pub(super) fn max_block_rows(k: usize) -> usize {
    (MAX_BLOCK_A / k.clamp(64, K_CHUNK) / MAX_MR).max(1) * MAX_MR
}

/// Room in floats for `rows` packed rows of one term. Padding to whole vectors adds at most a third.
pub(super) fn packed_rows(rows: usize) -> usize {
    rows * 4 / 3 + LINE
}

/// Splits a chunk of `kc` terms into runs: their number, and the length of all but the last.
pub(super) fn split_runs(kc: usize) -> (usize, usize) {
    let runs = kc.div_ceil(K_RUN).max(1);
    (runs, kc.div_ceil(runs))
}

/// How many columns are packed at a time.
fn strip(k: usize) -> usize {
    let (runs, run) = split_runs(k.min(K_CHUNK));
    if runs > 1 { STRIP } else { (STRIP_LEN / run.max(1) / PANEL).max(1) * PANEL }
}

impl Gather {
    fn plan(&self, threads: usize) -> Plan {
        let k = self.k();
        let columns = self.batch * self.view.positions();
        let groups = self.groups.max(1);
        let unit = if columns >= 3 * threads * STRIP { STRIP } else { PANEL };
        let units = columns.div_ceil(unit).max(1);
        // A few tasks per thread if there is enough work. With few columns, rows are split too, but into blocks large
        // enough to pay for gathering the columns again.
        let work = columns.saturating_mul(self.rows * groups).saturating_mul(k);
        let target = if threads == 1 { 1 } else { (work >> 15).clamp(1, 4 * threads) };
        let most = self.rows.div_ceil(MIN_BLOCK_ROWS);
        let row_blocks =
            (target / 2).div_ceil(groups * units).min(most).max(self.rows.div_ceil(max_block_rows(k))).max(1);
        let rows = self.rows.div_ceil(row_blocks).max(1);
        let row_blocks = self.rows.div_ceil(rows).max(1);
        let col_blocks = target.div_ceil(groups * row_blocks).min(units);
        let tapers = units >= 3 * threads;
        let cols = if tapers { 2 * units.div_ceil(col_blocks) } else { units.div_ceil(col_blocks) } * unit;
        let strip = strip(k).min(cols);
        // Tiles split the runs of a strip again. All tiles but the last have at least two vectors of columns.
        let runs = self.view.most_runs(strip) + strip / (2 * MIN_VECTOR) + 4;
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

    /// Number of floats of workspace that [`Gather::run_gathered`] needs with a pool of `threads`.
    pub(super) fn gathered_scratch_len(&self, threads: usize) -> usize {
        let plan = self.plan(threads);
        self.groups * plan.row_blocks * plan.a_len + threads * plan.slot_len() + LINE
    }

    /// [`Gather::run`] by gathering. The lengths are already checked.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn run_gathered(
        &self,
        pool: &Pool,
        simd: Simd,
        source: &[f32],
        w: &[f32],
        bias: Option<&[f32]>,
        out: &mut [f32],
        scratch: &mut [f32],
    ) {
        let (groups, threads) = (self.groups, pool.threads());
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
        // Packing one panel is a task.
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
                // SAFETY: the counter gives each task once, and the slot's workspace belongs to this call. The lengths of all
                // slices were checked here and by `run`.
                unsafe { work.block(task, slot) };
            }
        });
    }
}

/// A convolution in progress.
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

// SAFETY: the pointers point into slices that `Gather::run` borrows for as long as this lives; what is written
// is kept apart between tasks.
unsafe impl Sync for GatherWork {}

impl GatherWork {
    /// First row and panels of block `b` of the rows of all groups.
    fn rows_of(&self, b: usize) -> (usize, usize, Panels) {
        let (group, i0) = (b / self.plan.row_blocks, b % self.plan.row_blocks * self.plan.rows);
        let rows = self.plan.rows.min(self.gather.rows - i0);
        (group, i0, Panels::new(rows, self.kernels.mr))
    }

    /// Packs panel `p` of row block `b`: for each run of terms, one vector of the panel's rows per term.
    ///
    /// # Safety
    /// The pointers point to what `Gather` says, and no other thread writes this panel.
    unsafe fn pack(&self, b: usize, p: usize) {
        let (k, width) = (self.gather.k(), self.kernels.width);
        let (group, i0, panels) = self.rows_of(b);
        let Some((i, mr)) = panels.iter().nth(p) else { return };
        let packed = self.packed.wrapping_add(b * self.plan.a_len);
        for k0 in (0..k).step_by(K_CHUNK) {
            let kc = (k - k0).min(K_CHUNK);
            let (runs, run) = split_runs(kc);
            for r in 0..runs {
                let (kr, len) = (k0 + r * run, run.min(kc - r * run));
                let to = packed.wrapping_add((k0 * panels.count + (r * panels.count + p) * run) * width);
                // SAFETY: the panel's rows and these terms are inside the kernel, and the workspace has a
                // vector per term and panel.
                unsafe { self.gather.pack(self.kernels, self.w, (group, i0 + i, mr), (kr, len), 1, to) };
            }
        }
    }

    /// Computes one block of the result: some rows of a group at some columns, which count (image, position).
    ///
    /// # Safety
    /// The pointers point to what `Gather` says; `task` names a block that no other call has; and `slot` points to
    /// `slot_len` floats that no other thread uses.
    unsafe fn block(&self, task: usize, slot: *mut f32) {
        let Gather { view, groups, rows, channels, .. } = self.gather;
        let Kernels { width, ref max_vectors, tile, gather, add_bias, store_tile, .. } = *self.kernels;
        let (b, col_task) = (task / self.plan.col_blocks, task % self.plan.col_blocks);
        let (group, i0, panels) = self.rows_of(b);
        let positions = view.positions();
        let (j0, j1, strip) = (self.plan.column(col_task), self.plan.column(col_task + 1), self.plan.strip);
        let (k, taps, plane, out_plane) = (self.gather.k(), view.taps(), view.plane(), view.out_plane());
        let (image, out_image) = (groups * channels * plane, groups * rows * out_plane);
        let step = view.axes()[view.axes().len() - 1].step;
        let out_step = view.axes()[view.axes().len() - 1].out_step;
        let dense = view.is_dense();
        // With few rows, tiles are wider, so that there are enough independent sums to hide the latency of an FMA.
        let single_panel = panels.count == 1;
        let max_vectors = if single_panel {
            max_vectors[panels.iter().map(|(_, mr)| mr).max().unwrap_or(1) - 1]
        } else {
            2
        };
        let packed = self.packed.wrapping_add(b * self.plan.a_len);
        let acc = slot.wrapping_add(STRIP_LEN);
        let tile_buffer = acc.wrapping_add(self.plan.acc_len);
        let runs_at = tile_buffer.wrapping_add(TILE_LEN).cast::<Run>();
        let seen_at = tile_buffer.wrapping_add(TILE_LEN + self.plan.runs_len).cast::<Seen>();
        let first_row = group * rows + i0;
        let out = self.out.wrapping_add(first_row * out_plane);

        let chunks = k.div_ceil(K_CHUNK);
        for chunk in 0..chunks {
            let k0 = chunk * K_CHUNK;
            let kc = (k - k0).min(K_CHUNK);
            let (runs, run) = split_runs(kc);
            let last_chunk = chunk + 1 == chunks;
            for s0 in (j0..j1).step_by(strip) {
                let s1 = (s0 + strip).min(j1);
                let shape = |j: usize| Tiling { width, max_vectors, end: s1 }.at(j);
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
                // The next strip's columns usually follow in memory and are prefetched from there. SAFETY: a strip has
                // at least one run, and an entry for each tap of it.
                let (base, seen) = unsafe { ((*runs_at).base, (*seen_at).at as isize) };
                let upcoming = self.source.wrapping_add(base + strip).wrapping_offset(seen);
                for r in 0..runs {
                    let (kr, len) = (k0 + r * run, run.min(kc - r * run));
                    let mut prefetched = 0;
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
                            // With one tap, each tile prefetches a cache line of half the channels.
                            let (prefetch, prefetch_step) =
                                match taps == 1 && step == 1 && prefetched / 2 * LINE <= strip {
                                    true => {
                                        let line =
                                            (kr + prefetched % 2 * (len / 2)) * plane + prefetched / 2 * LINE;
                                        (upcoming.wrapping_add(line), plane)
                                    }
                                    false => (slot.wrapping_add((j - s0) * len).cast_const(), width << log),
                                };
                            prefetched += 1;
                            let t = Tile {
                                kc: len,
                                a: packed
                                    .wrapping_add((k0 * panels.count + (r * panels.count + p) * run) * width),
                                stride_a: width,
                                b: slot.wrapping_add((j - s0) * len),
                                stride_b: width << log,
                                pack_to: std::ptr::null_mut(),
                                prefetch,
                                prefetch_step,
                                acc: acc.wrapping_add(i * STRIP + (j - s0) * mr),
                                begin: r == 0,
                                end,
                                c: if direct { out.wrapping_add(here.out) } else { tile_buffer },
                                stride_c: if direct { out_plane } else { width << log },
                                first: !direct || chunk == 0,
                                bias: std::ptr::null(),
                                tail: valid - ((width << log) - width),
                            };
                            // SAFETY: the processor has the SIMD level of the kernels; rows and columns of the tile are
                            // inside the result, or it goes to the tile buffer; the operands are packed.
                            unsafe { tile[1][usize::from(single_panel)][mr - 1][log](&t) };
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
                                    let from = tile_buffer.add(run.col as usize);
                                    let (from_stride, cols) = (width << log, run.len as usize);
                                    let (to, to_stride, add) = (out.add(run.out), out_plane, chunk > 0);
                                    let (to_step, rows) = (out_step, mr);
                                    store_tile(&StoreTile {
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
