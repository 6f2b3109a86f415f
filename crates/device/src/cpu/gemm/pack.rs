//! Packing: copies or transposes panels of A and B into the order in which tiles read them.
#![allow(unsafe_code)]

use super::Gemm;
use super::block::Work;
use super::kernel::PREFETCH_TERMS;
use super::plan::{Chunk, PACK_LINES, Panels, Tiling};
use crate::cpu::LINE;
use crate::cpu::vector::Vector;

/// Packs a panel whose lines run across the terms, by copying. The last vector is filled up with zeros.
///
/// # Safety
/// `from` points to `kc` lines, `stride` apart, of `cols` floats, which make `nv` vectors, and `to` to `kc * nv`
/// vectors. The processor has the instructions of `V`.
#[inline(always)]
pub(crate) unsafe fn pack<V: Vector>(
    from: *const f32,
    stride: usize,
    cols: usize,
    nv: usize,
    kc: usize,
    to: *mut f32,
) {
    let tail = cols - (nv - 1) * V::WIDTH;
    for k in 0..kc {
        // SAFETY: line k is inside both, as the caller has it, and the last vector is cut to what there is.
        unsafe {
            let (from, to) = (from.add(k * stride), to.add(k * nv * V::WIDTH));
            for v in 0..nv {
                if v * V::WIDTH % LINE == 0 {
                    V::prefetch(from.wrapping_add(PREFETCH_TERMS * stride + v * V::WIDTH));
                }
            }
            for v in 0..nv - 1 {
                V::load(from.add(v * V::WIDTH)).store(to.add(v * V::WIDTH));
            }
            V::load_part(from.add((nv - 1) * V::WIDTH), tail).store(to.add((nv - 1) * V::WIDTH));
        }
    }
}

/// Packs a panel whose lines run along the terms, by transposing. The last vector is filled up with the last column.
///
/// # Safety
/// `from` points to `cols` lines, `stride` apart, of `kc` floats, which make `nv` vectors or less, and `to` to
/// `kc * nv` vectors. The processor has the instructions of `V`.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
pub(crate) unsafe fn transpose<V: Vector>(
    from: *const f32,
    stride: usize,
    cols: usize,
    nv: usize,
    kc: usize,
    to: *mut f32,
) {
    for v in 0..nv {
        let mut lines = [from; LINE];
        for (j, line) in lines.iter_mut().enumerate() {
            *line = from.wrapping_add((v * V::WIDTH + j).min(cols - 1) * stride);
        }
        let to = to.wrapping_add(v * V::WIDTH);
        let mut k = 0;
        // SAFETY: terms k.. of the lines are inside B, and rows k.. of this vector inside the panel.
        unsafe {
            // Whole squares, so that everything needed of a cache line is read at once: lines that are a large power of
            // two apart evict each other.
            while k + V::WIDTH <= kc {
                let mut x = [[V::splat(0.0); 4]; LINE / 4];
                for i in 0..4 {
                    for g in 0..V::WIDTH / 4 {
                        x[g][i] = V::load_groups(&lines[i..], k + 4 * g);
                    }
                }
                for g in 0..V::WIDTH / 4 {
                    for (i, x) in V::transpose(x[g]).into_iter().enumerate() {
                        x.store(to.add((k + 4 * g + i) * nv * V::WIDTH));
                    }
                }
                k += V::WIDTH;
            }
            while k + 4 <= kc {
                for (i, x) in V::load_transposed(&lines, k).into_iter().enumerate() {
                    x.store(to.add((k + i) * nv * V::WIDTH));
                }
                k += 4;
            }
            while k < kc {
                for (j, line) in lines.iter().enumerate().take(V::WIDTH) {
                    *to.add(k * nv * V::WIDTH + j) = *line.add(k);
                }
                k += 1;
            }
        }
    }
}

impl Work {
    /// Packs panels `mine` of A for all runs of a chunk. `i0` is the first row of panel 0, and `to` has room for the panels
    /// `packed_panels`.
    ///
    /// # Safety
    /// The rows and terms are inside A, and `to` points to packed A of `packed_panels`, of which no other thread writes
    /// panels `mine`.
    #[allow(clippy::too_many_arguments)]
    pub(super) unsafe fn pack_a(
        &self,
        a: *const f32,
        chunk: &Chunk,
        panels: Panels,
        mine: std::ops::Range<usize>,
        i0: usize,
        packed_panels: &std::ops::Range<usize>,
        to: *mut f32,
    ) {
        let (Gemm { m, k, ta, .. }, width) = (self.gemm, self.kernels.width);
        for r in 0..chunk.runs {
            let (kr, len) = chunk.run(r);
            // A few lines at a time, so that memory that is close together is read together.
            let block = if ta { PACK_LINES } else { len.max(1) };
            for first in (0..len).step_by(block) {
                let (kr, some) = (kr + first, block.min(len - first));
                for p in mine.clone() {
                    let (i, mr) = panels.at(p);
                    let i = i0 + i;
                    let to = to.wrapping_add((chunk.panel(packed_panels, r, p) + first) * width);
                    // SAFETY: upheld by the caller; packed A has a vector per term and panel.
                    unsafe {
                        if ta {
                            (self.kernels.pack_copied)(a.wrapping_add(kr * m + i), m, mr, 1, some, to);
                        } else {
                            (self.kernels.pack_transposed)(a.wrapping_add(i * k + kr), k, mr, 1, some, to);
                        }
                    }
                }
            }
        }
    }

    /// Packs the columns of B from `s0` on, tile after tile, for `len` terms from `kr` on.
    ///
    /// # Safety
    /// The columns and terms are inside B, and `to` points to as many floats as the tiles have, which no other thread uses.
    pub(super) unsafe fn pack_b(
        &self,
        b: *const f32,
        tiling: Tiling,
        s0: usize,
        kr: usize,
        len: usize,
        to: *mut f32,
    ) {
        let Gemm { n, k, tb, .. } = self.gemm;
        // A few lines at a time, so that memory that is close together is read together.
        let block = if tb { len.max(1) } else { PACK_LINES };
        for first in (0..len).step_by(block) {
            let (kr, some) = (kr + first, block.min(len - first));
            let mut j = s0;
            while j < tiling.end {
                let (log, valid) = tiling.at(j);
                let to = to.wrapping_add((j - s0) * len + ((first * self.kernels.width) << log));
                // SAFETY: upheld by the caller; each tile before this one has filled its vectors.
                unsafe {
                    if tb {
                        (self.kernels.pack_transposed)(
                            b.wrapping_add(j * k + kr),
                            k,
                            valid,
                            1 << log,
                            some,
                            to,
                        );
                    } else {
                        (self.kernels.pack_copied)(b.wrapping_add(kr * n + j), n, valid, 1 << log, some, to);
                    }
                }
                j += valid;
            }
        }
    }
}
