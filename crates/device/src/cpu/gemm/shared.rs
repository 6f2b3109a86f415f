//! Large products: all threads pack together and share the packed operands.
#![allow(unsafe_code)]

use super::Gemm;
use super::block::{Block, Work};
use super::plan::{
    Chunk, K_RUN, MAX_N_IN_PLACE, OwnPacking, PANEL, Panels, STRIP, SharedPlan, Tiling, taper,
};
use crate::cpu::kernels::Kernels;
use crate::cpu::threads::Pool;
use dittograd_numerics::K_CHUNK;

impl Work {
    /// Computes C with all threads: they pack rows and columns together, wait for each other, and then compute blocks
    /// of C.
    ///
    /// # Safety
    /// The pointers point to as many elements as `Gemm` says, and `scratch` to as many as `shared` says.
    pub(super) unsafe fn run_shared(&self, pool: &Pool, shared: &SharedPlan) {
        let Gemm { batch, m, n, k, .. } = self.gemm;
        let SharedPlan { own, a_len, b_len, .. } = *shared;
        let Kernels { width, mr, .. } = *self.kernels;
        let in_place_a = n <= MAX_N_IN_PLACE;
        // Columns that a thread packs for itself come in small parts, so that threads finish together.
        let strip = if own == OwnPacking::Columns { PANEL } else { STRIP };
        let fused_pack = own == OwnPacking::Columns && self.gemm.fuses_packing();
        let threads = pool.threads();
        // Packed A and B of product `x` of the current ones lie after the threads' slots.
        let packed = threads * shared.slot_len();
        let a_of = |x: usize| self.scratch.wrapping_add(packed + x * (a_len + b_len));
        let tiling = |s0: usize, j1: usize| Tiling { width, max_vectors: 2, end: (s0 + strip).min(j1) };

        for b0 in (0..batch).step_by(shared.batches) {
            let batches = shared.batches.min(batch - b0);
            for i0 in (0..m).step_by(shared.rows) {
                let panels = Panels::new(shared.rows.min(m - i0), mr);
                let all = 0..panels.count;
                for index in 0..k.div_ceil(K_CHUNK).max(1) {
                    let chunk = Chunk::new(k, index, K_RUN);
                    for j0 in (0..n).step_by(shared.cols) {
                        let j1 = (j0 + shared.cols).min(n);
                        let strips = (j1 - j0).div_ceil(strip);
                        let strip_at = |s: usize| j0 + s * strip;
                        // Packed B lies strip after strip, and in a strip run after run.
                        let b_at = |x: usize, s: usize, r: usize| {
                            let whole = (j1 - strip_at(s)).min(strip).next_multiple_of(width);
                            a_of(x).wrapping_add(a_len + s * strip * chunk.kc + r * chunk.run * whole)
                        };

                        let has_a = in_place_a || j0 > 0;
                        let a_packs = if has_a || own == OwnPacking::Rows { 0 } else { panels.count };
                        let b_packs = if own == OwnPacking::Columns { 0 } else { strips * chunk.runs };
                        let each = a_packs + b_packs;
                        let packs = batches * each;
                        let pieces = packs.min(8 * threads);
                        pool.run(pieces, |piece| {
                            for task in piece * packs / pieces..(piece + 1) * packs / pieces {
                                let (x, part) = (task / each, task % each);
                                let a = self.a.wrapping_add((b0 + x) * m * k);
                                let b = self.b.wrapping_add((b0 + x) * k * n);
                                // SAFETY: rows, columns and terms are inside A and B, the workspace has room for so
                                // many products, panels and strips, and each is packed once.
                                unsafe {
                                    if part < a_packs {
                                        self.pack_a(a, &chunk, panels, part..part + 1, i0, &all, a_of(x));
                                        continue;
                                    }
                                    let (s, r) = ((part - a_packs) % strips, (part - a_packs) / strips);
                                    let (kr, len) = chunk.run(r);
                                    let s0 = strip_at(s);
                                    self.pack_b(b, tiling(s0, j1), s0, kr, len, b_at(x, s, r));
                                }
                            }
                        });

                        // A few blocks for each thread.
                        let some = (8 * threads).div_ceil(batches);
                        let (row_blocks, col_blocks) = match own {
                            // Twice as many as needed, since the first are twice as large.
                            OwnPacking::Rows => (some.max(2 * shared.row_blocks), 1),
                            OwnPacking::Columns => (1, some),
                            // Columns are cut first: the next block then finds its part of A in the cache.
                            OwnPacking::Nothing => {
                                let target = shared.target.div_ceil(batches);
                                let col_blocks = target.div_ceil(shared.row_blocks).clamp(1, strips);
                                let most = panels.count.max(shared.row_blocks);
                                (target.div_ceil(col_blocks).clamp(shared.row_blocks, most), col_blocks)
                            }
                        };
                        let blocks = row_blocks * col_blocks;
                        self.for_each_task(pool, batches * blocks, shared.slot_len(), |task, acc, _| {
                            let (x, row, col) =
                                (task / blocks, task % blocks / col_blocks, task % col_blocks);
                            let cut = |len: usize, parts: usize, i: usize| match own {
                                OwnPacking::Nothing => i * len / parts,
                                _ => taper(len, parts, i),
                            };
                            let part = |len, parts, i| cut(len, parts, i)..cut(len, parts, i + 1);
                            let mine = part(panels.count, row_blocks, row);
                            let my_strips = part(strips, col_blocks, col);
                            if mine.is_empty() || my_strips.is_empty() {
                                return;
                            }
                            let own_pack = acc.wrapping_add(shared.acc_len);
                            let (a_pack, packed_panels) = match own {
                                OwnPacking::Rows => (own_pack, mine.clone()),
                                _ => (a_of(x), all.clone()),
                            };
                            let block = Block {
                                a: self.a.wrapping_add((b0 + x) * m * k),
                                b: self.b.wrapping_add((b0 + x) * k * n),
                                c: self.c.wrapping_add((b0 + x) * m * n),
                                i0,
                                panels,
                                mine,
                                in_place_a,
                                in_place_b: false,
                                prefetch: own != OwnPacking::Columns,
                                max_vectors: 2,
                                a_pack,
                                packed_panels,
                                acc,
                            };
                            if own == OwnPacking::Rows && !in_place_a {
                                let (mine, packed_panels) = (block.mine.clone(), &block.packed_panels);
                                // SAFETY: the rows are inside A, and the thread's own workspace has room for them.
                                unsafe {
                                    self.pack_a(block.a, &chunk, panels, mine, i0, packed_panels, a_pack)
                                };
                            }
                            for s in my_strips {
                                let s0 = strip_at(s);
                                let columns = tiling(s0, j1);
                                for r in 0..chunk.runs {
                                    let (kr, len) = chunk.run(r);
                                    let b_pack =
                                        if own == OwnPacking::Columns { own_pack } else { b_at(x, s, r) };
                                    // SAFETY: the block is inside C, and `for_each_task` gives it to one call; its operands
                                    // are packed, and the workspace is the thread's own.
                                    unsafe {
                                        if own == OwnPacking::Columns && !fused_pack {
                                            self.pack_b(block.b, columns, s0, kr, len, b_pack);
                                        }
                                        self.tiles(&block, &chunk, r, columns, s0, strip, b_pack, fused_pack);
                                    }
                                }
                            }
                        });
                    }
                }
            }
        }
    }
}
