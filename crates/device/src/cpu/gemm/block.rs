//! Blocks of C: how one is computed tile by tile, and the driver for blocks whose thread packs its own operands. Also rows of
//! one panel, for algorithms that have their own blocks.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::Gemm;
use super::kernel::{IN_PLACE, PACKED, PACKING, TERMS_PER_PREFETCH, Tile};
use super::packed::{MAX_VECTORS, panel_start};
use super::plan::{
    BlockPlan, Chunk, K_RUN, K_RUN_IN_PLACE, MAX_MR, MAX_N_IN_PLACE, PANEL, Panels, SHORT_RUN, STRIP,
    STRIP_LEN, Tiling,
};
use crate::cpu::LINE;
use crate::cpu::kernels::Kernels;
use crate::cpu::simd::Simd;
use crate::cpu::threads::Pool;
use dittograd_numerics::K_CHUNK;

impl Gemm {
    /// [`Gemm::run`] after the lengths are checked.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn run_blocks(
        &self,
        pool: &Pool,
        simd: Simd,
        a: &[f32],
        b: &[f32],
        bias: Option<&[f32]>,
        c: &mut [f32],
        scratch: &mut [f32],
    ) {
        let threads = pool.threads();
        let skip = scratch.as_ptr().align_offset(4 * LINE).min(LINE);
        let scratch = &mut scratch[skip..];
        let work = Work {
            gemm: *self,
            kernels: Kernels::of(simd),
            a: a.as_ptr(),
            b: b.as_ptr(),
            bias: bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
            c: c.as_mut_ptr(),
            scratch: scratch.as_mut_ptr(),
        };
        if let Some(shared) = self.shared(threads) {
            assert!(scratch.len() >= shared.len(threads), "length of scratch");
            // SAFETY: the slices were checked against the sizes by `run`, and stay borrowed until this returns; the
            // workspace is long enough.
            unsafe { work.run_shared(pool, &shared) };
            return;
        }
        let plan = self.plan(threads);
        let slot_len = plan.slot_len();
        assert!(scratch.len() >= threads * slot_len, "length of scratch");
        let tasks = self.batch * plan.row_blocks * plan.col_blocks;
        work.for_each_task(pool, tasks, slot_len, |task, scratch, packed| {
            // SAFETY: `for_each_task` gives each task once, and the workspace belongs to this call. The slices were checked
            // against the sizes by `run` and stay borrowed until the pool is done.
            unsafe { work.block(&plan, task, scratch, packed, false) };
        });
    }
}

/// A product in progress.
pub(super) struct Work {
    pub gemm: Gemm,
    pub kernels: &'static Kernels,
    pub a: *const f32,
    pub b: *const f32,
    pub bias: *const f32,
    pub c: *mut f32,
    pub scratch: *mut f32,
}

// SAFETY: the pointers point into slices that `Gemm::run` borrows for as long as a `Work` lives; A, B and bias
// are only read, and `block` and `run_shared` keep what they write of C and of the workspace apart between threads.
unsafe impl Sync for Work {}

/// A block of C: some panels of rows, and the addresses of their operands.
pub(super) struct Block {
    /// The product's A, B and C.
    pub a: *const f32,
    pub b: *const f32,
    pub c: *mut f32,
    /// First row of the panels, the panels, and the range of them in this block.
    pub i0: usize,
    pub panels: Panels,
    pub mine: std::ops::Range<usize>,
    /// Whether A and B are read in place.
    pub in_place_a: bool,
    pub in_place_b: bool,
    /// Whether the next panel of B follows the current one in memory, so that tiles prefetch it.
    pub prefetch: bool,
    /// The most vectors of a tile.
    pub max_vectors: usize,
    /// Packed A, the range of its panels, and saved accumulators.
    pub a_pack: *mut f32,
    pub packed_panels: std::ops::Range<usize>,
    pub acc: *mut f32,
}

impl Work {
    /// Calls `f` for each of `tasks`, with the workspace of its thread (`slot_len` floats) and a note that the thread
    /// keeps between tasks.
    pub(super) fn for_each_task(
        &self,
        pool: &Pool,
        tasks: usize,
        slot_len: usize,
        f: impl Fn(usize, *mut f32, &mut Option<usize>) + Sync,
    ) {
        let next = AtomicUsize::new(0);
        // The pool runs one task per thread, whose index selects the workspace; blocks are taken from a counter.
        pool.run(pool.threads().min(tasks), |slot| {
            let scratch = self.scratch.wrapping_add(slot * slot_len);
            let mut note = None;
            loop {
                let task = next.fetch_add(1, Relaxed);
                if task >= tasks {
                    break;
                }
                f(task, scratch, &mut note);
            }
        });
    }

    /// Computes the tiles of a block in a strip of columns over run `r` of a chunk. `b_pack` is packed B of this strip and run,
    /// which the first tiles write if packing is fused.
    ///
    /// # Safety
    /// The rows, columns and terms are inside C, A and B; operands that are not read in place are packed; no other thread
    /// uses this part of C or the saved accumulators, which are those of these columns after `r` runs.
    #[allow(clippy::too_many_arguments)]
    pub(super) unsafe fn tiles(
        &self,
        block: &Block,
        chunk: &Chunk,
        r: usize,
        tiling: Tiling,
        s0: usize,
        pitch: usize,
        b_pack: *mut f32,
        fused_pack: bool,
    ) {
        let Gemm { m, n, k, ta, .. } = self.gemm;
        let Kernels { width, tile, .. } = *self.kernels;
        let Block { a, b, c, i0, panels, ref mine, in_place_a, in_place_b, .. } = *block;
        let (kr, len) = chunk.run(r);
        let (stride_a, ta_tile) = match (in_place_a, ta) {
            (false, _) => (width, true),
            (true, true) => (m, true),
            (true, false) => (k, false),
        };
        let between = TERMS_PER_PREFETCH[usize::from(ta_tile)];
        let above = panels.at(mine.start).0;
        let run_tile =
            |p: usize, j: usize, (log, valid): (usize, usize), share: usize, prefetch_step: usize| {
                let (i, mr) = panels.at(p);
                let pack_to = b_pack.wrapping_add((j - s0) * len);
                let reads = match (in_place_b, fused_pack && p == mine.start) {
                    (true, _) => IN_PLACE,
                    (_, true) => PACKING,
                    _ => PACKED,
                };
                let (b, stride_b) = match reads {
                    PACKED => (pack_to.cast_const(), width << log),
                    _ => (b.wrapping_add(kr * n + j), n),
                };
                let prefetch = b.wrapping_add(((width << log) * len) + (p - mine.start) * share);
                let t = Tile {
                    kc: len,
                    a: match (in_place_a, ta) {
                        (true, true) => a.wrapping_add(kr * m + i0 + i),
                        (true, false) => a.wrapping_add((i0 + i) * k + kr),
                        _ => block
                            .a_pack
                            .wrapping_add(chunk.panel(&block.packed_panels, r, p) * width)
                            .cast_const(),
                    },
                    stride_a,
                    b,
                    stride_b,
                    pack_to,
                    prefetch,
                    prefetch_step,
                    acc: block.acc.wrapping_add((i - above) * pitch + (j - s0) * mr),
                    begin: r == 0,
                    end: r + 1 == chunk.runs,
                    c: c.wrapping_add((i0 + i) * n + j),
                    stride_c: n,
                    first: chunk.first,
                    bias: match chunk.last && !self.bias.is_null() {
                        true => self.bias.wrapping_add(j),
                        false => std::ptr::null(),
                    },
                    tail: valid - ((width << log) - width),
                };
                // SAFETY: the processor has the SIMD level of the kernels. The tile's rows and columns are inside C, A and B,
                // packed or not, have `len` terms each, and packed B has room for the tile's vectors.
                unsafe { tile[usize::from(ta_tile)][usize::from(reads)][mr - 1][log](&t) };
            };
        // Long tiles go down a panel of B, which they share. Short tiles go along the rows of C, which they write.
        if len > SHORT_RUN {
            let mut j = s0;
            while j < tiling.end {
                let shape = tiling.at(j);
                // The next panel of B is not in a close cache: each tile prefetches a part of it.
                let (share, step) = match block.prefetch {
                    true => {
                        let share = ((width << shape.0) * len).div_ceil(mine.len());
                        (share, (share * between).div_ceil(len))
                    }
                    false => (0, between * (width << shape.0)),
                };
                for p in mine.clone() {
                    run_tile(p, j, shape, share, step);
                }
                j += shape.1;
            }
        } else {
            for p in mine.clone() {
                let mut j = s0;
                while j < tiling.end {
                    let shape = tiling.at(j);
                    run_tile(p, j, shape, 0, width);
                    j += shape.1;
                }
            }
        }
    }

    /// Computes one block of C over all of k. `packed` notes which rows of A the workspace holds. With `packed_b`, B was packed by
    /// `Gemm::pack`.
    ///
    /// # Safety
    /// The pointers point to as many elements as `Gemm` says; `task` names a block that no other call has; and
    /// `scratch` points to `slot_len` floats that no other thread uses.
    pub(super) unsafe fn block(
        &self,
        plan: &BlockPlan,
        task: usize,
        scratch: *mut f32,
        packed: &mut Option<usize>,
        packed_b: bool,
    ) {
        let Gemm { m, n, k, tb, .. } = self.gemm;
        let BlockPlan { row_blocks, col_blocks, a_len, b_len, .. } = *plan;
        let Kernels { width, mr, ref max_vectors, .. } = *self.kernels;
        let (row_task, col_task) = (task / col_blocks, task % col_blocks);
        let batch = row_task / row_blocks;
        let (i0, j0) = (row_task % row_blocks * plan.rows, col_task * plan.cols);
        let j1 = (j0 + plan.cols).min(n);
        let panels = Panels::new(plan.rows.min(m - i0), mr);
        let several = panels.count > 1;
        // A block of one panel uses B once, and reads it in place. Others read A in place if they have few columns.
        let in_place_b = !several && !tb && !packed_b;
        let in_place_a = !several || n <= MAX_N_IN_PLACE;
        let fused_pack = self.gemm.fuses_packing() && !packed_b;
        let b_pack = scratch.wrapping_add(a_len);
        let block = Block {
            a: self.a.wrapping_add(batch * m * k),
            b: self.b.wrapping_add(batch * k * n),
            c: self.c.wrapping_add(batch * m * n),
            i0,
            panels,
            mine: 0..panels.count,
            in_place_a,
            in_place_b,
            prefetch: false,
            max_vectors: if in_place_b { max_vectors[panels.height - 1] } else { MAX_VECTORS },
            a_pack: scratch,
            packed_panels: 0..panels.count,
            acc: b_pack.wrapping_add(b_len),
        };

        let chunks = k.div_ceil(K_CHUNK).max(1);
        for index in 0..chunks {
            let chunk = Chunk::new(k, index, if in_place_b { K_RUN_IN_PLACE } else { K_RUN });
            let key = Some(row_task * chunks + index);
            if !in_place_a && *packed != key {
                // SAFETY: the block's rows are inside A, and the workspace is this thread's.
                unsafe {
                    self.pack_a(
                        block.a,
                        &chunk,
                        panels,
                        block.mine.clone(),
                        i0,
                        &block.packed_panels,
                        block.a_pack,
                    )
                };
                *packed = key;
            }

            let strip = match (in_place_b, chunk.runs) {
                _ if packed_b => PANEL,
                (true, _) => (j1 - j0).next_multiple_of(PANEL),
                (false, 1) => (STRIP_LEN / chunk.run.max(1) / PANEL).max(1) * PANEL,
                (false, _) => STRIP,
            };
            for s0 in (j0..j1).step_by(strip) {
                let tiling = Tiling { width, max_vectors: block.max_vectors, end: (s0 + strip).min(j1) };
                for r in 0..chunk.runs {
                    let (kr, len) = chunk.run(r);
                    let b_pack = match packed_b {
                        true => self
                            .b
                            .cast_mut()
                            .wrapping_add(panel_start(n, &chunk, s0 / PANEL) + r * chunk.run * PANEL),
                        false => b_pack,
                    };
                    // SAFETY: the block is inside C and this thread's, as is the workspace; packed B has room for a strip. What was
                    // packed before is only read.
                    unsafe {
                        if !in_place_b && !fused_pack && !packed_b {
                            self.pack_b(block.b, tiling, s0, kr, len, b_pack);
                        }
                        self.tiles(&block, &chunk, r, tiling, s0, strip, b_pack, fused_pack);
                    }
                }
            }
        }
    }
}

/// The factors of rows: factor `k` of row `r` is `all[r * row + k * term]`. `row` or `term` is 1.
#[derive(Clone, Copy, Debug)]
pub struct Factors<'a> {
    /// From the first factor of the first row on.
    pub all: &'a [f32],
    /// From a row to the next.
    pub row: usize,
    /// From a term to the next.
    pub term: usize,
}

/// Adds products to rows of a panel of [`PANEL`] columns, whose rows lie one after another. An element goes on from what it is,
/// by one chain over all terms, which are the rows of `b`: `c[r] = fma(a[r, k], b[k], c[r])` for increasing `k`.
///
/// # Panics
/// If there are not as many factors as rows and terms say.
pub fn add_products(simd: Simd, a: Factors<'_>, b: &[f32], c: &mut [f32]) {
    let (rows, terms) = (c.len() / PANEL, b.len() / PANEL);
    if rows == 0 || terms == 0 {
        return;
    }
    let Factors { all, row, term } = a;
    assert!(row == 1 || term == 1, "factors lie apart along rows and terms");
    assert!(all.len() > (rows - 1) * row + (terms - 1) * term, "number of factors");
    let Kernels { width, mr, tile, .. } = *Kernels::of(simd);
    let columns = MAX_VECTORS * width;
    let whole = columns == PANEL;
    let mut some = [0.0; MAX_MR * PANEL];
    for (i, height) in Panels::new(rows, mr).iter() {
        for j in (0..PANEL).step_by(columns) {
            let rows = &mut c[i * PANEL..(i + height) * PANEL];
            if !whole {
                for (some, row) in some.chunks_exact_mut(columns).zip(rows.chunks_exact(PANEL)) {
                    some.copy_from_slice(&row[j..j + columns]);
                }
            }
            let acc = if whole { rows.as_mut_ptr() } else { some.as_mut_ptr() };
            let t = Tile {
                kc: terms,
                a: all.as_ptr().wrapping_add(i * row),
                stride_a: if row == 1 { term } else { row },
                b: b.as_ptr().wrapping_add(j),
                stride_b: PANEL,
                pack_to: std::ptr::null_mut(),
                prefetch: b.as_ptr(),
                prefetch_step: 0,
                acc,
                begin: false,
                end: false,
                c: std::ptr::null_mut(),
                stride_c: 0,
                first: true,
                bias: std::ptr::null(),
                tail: width,
            };
            let reads = if whole { PACKED } else { IN_PLACE };
            // SAFETY: the processor has the SIMD level of the kernels. The factors of these rows were checked; `b` has all terms of
            // these columns, and the accumulators, which are loaded and saved, are those of the tile: packed rows, or a copy.
            unsafe { tile[usize::from(row == 1)][usize::from(reads)][height - 1][1](&t) };
            if !whole {
                for (some, row) in some.chunks_exact(columns).zip(rows.chunks_exact_mut(PANEL)) {
                    row[j..j + columns].copy_from_slice(some);
                }
            }
        }
    }
}
