//! The microkernel of matrix products: a tile of C over a run of k, with its accumulators in registers.
#![allow(unsafe_code)]

use crate::cpu::LINE;
use crate::cpu::vector::Vector;

/// Terms that a tile computes per prefetched cache line, by whether A is transposed. If it is not, the loop takes one
/// term at a time: with two, the compiler would load them together and then have to separate them.
pub(crate) const TERMS_PER_PREFETCH: [usize; 2] = [1, 2];
/// A tile that reads packed B.
pub(crate) const PACKED: u8 = 0;
/// A tile that reads B in place.
pub(crate) const IN_PLACE: u8 = 1;
/// A tile that reads B in place and packs it for other tiles.
pub(crate) const PACKING: u8 = 2;
/// How many terms ahead a tile prefetches its operands.
pub(crate) const PREFETCH_TERMS: usize = 16;

/// The microkernel's operands: `kc` terms of some rows of A and some vectors of columns of B.
pub(crate) struct Tile {
    pub kc: usize,
    pub a: *const f32,
    pub stride_a: usize,
    pub b: *const f32,
    pub stride_b: usize,
    /// Where a tile that packs B writes it.
    pub pack_to: *mut f32,
    /// Memory that a tile which reads packed B prefetches for later, a line every few terms ([`TERMS_PER_PREFETCH`]).
    pub prefetch: *const f32,
    pub prefetch_step: usize,
    /// Where accumulators are saved between runs, vector after vector.
    pub acc: *mut f32,
    /// Whether accumulators start at +0.0. Otherwise they are loaded.
    pub begin: bool,
    /// Whether the chunk ends here. Otherwise accumulators are saved.
    pub end: bool,
    pub c: *mut f32,
    pub stride_c: usize,
    /// Whether this is the first chunk: C holds nothing yet.
    pub first: bool,
    /// Bias of the tile's columns if this is the last chunk, or null.
    pub bias: *const f32,
    /// Valid columns of the last vector.
    pub tail: usize,
}

/// Adds one term to the accumulators of a tile. A closure would be compiled without the instructions of `V`.
///
/// # Safety
/// The same as for [`tile`], whose term is at `a` and `b`.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
unsafe fn term<V: Vector, const MR: usize, const NV: usize, const TA: bool, const B: u8>(
    acc: &mut [[V; NV]; MR],
    a: *const f32,
    stride_a: usize,
    b: *const f32,
    stride_b: usize,
    pack_to: *mut f32,
    tail: usize,
) {
    // SAFETY: upheld by the caller.
    unsafe {
        if TA && B != IN_PLACE {
            V::prefetch(a.wrapping_add(PREFETCH_TERMS * stride_a));
        }
        let mut bv = [V::splat(0.0); NV];
        for v in 0..NV {
            let from = b.add(v * V::WIDTH);
            bv[v] = if v < NV - 1 || B == PACKED { V::load(from) } else { V::load_part(from, tail) };
            if B != PACKED && v * V::WIDTH % LINE == 0 {
                V::prefetch(from.wrapping_add(PREFETCH_TERMS * stride_b));
            }
            if B == PACKING {
                bv[v].store(pack_to.wrapping_add(v * V::WIDTH));
            }
        }
        for r in 0..MR {
            let x = V::splat(*a.add(if TA { r } else { r * stride_a }));
            for v in 0..NV {
                acc[r][v] = acc[r][v].fma(x, bv[v]);
            }
        }
    }
}

/// Computes a tile of MR rows and NV vectors; TA and B are the first indices of `Kernels::tile`.
///
/// # Safety
/// The tile's addresses are valid for that many rows and columns (only `tail` of the last vector) and `kc`
/// terms, and the processor has the instructions of `V`.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
pub(crate) unsafe fn tile<V: Vector, const MR: usize, const NV: usize, const TA: bool, const B: u8>(
    t: &Tile,
) {
    let &Tile { kc, mut a, stride_a, mut b, stride_b, mut pack_to, acc: saved, tail, .. } = t;
    let last = NV - 1;
    // SAFETY: all of this is upheld by the caller: addresses are inside the tile, and last vectors are cut to `tail`. Packed B and
    // saved accumulators have whole vectors.
    unsafe {
        let mut acc = [[V::splat(0.0); NV]; MR];
        if !t.begin {
            for r in 0..MR {
                for v in 0..NV {
                    acc[r][v] = V::load(saved.add((r * NV + v) * V::WIDTH));
                }
            }
        }
        let step_a = if TA { stride_a } else { 1 };
        let step_b = if B == PACKED { NV * V::WIDTH } else { stride_b };
        // A line is prefetched every few terms. At the end of a chunk these are first the lines of the tile's part of
        // C, one at each end of each row, then `t.prefetch`.
        let between = TERMS_PER_PREFETCH[TA as usize];
        let mut prefetches = kc / between;
        let mut ends = if B == PACKED && t.end && prefetches > 2 * MR { 2 } else { 0 };
        while prefetches > 0 {
            let (some, mut at, step) = match ends {
                0 => (prefetches, t.prefetch, t.prefetch_step),
                _ => (MR, t.c.wrapping_add((2 - ends) * last * V::WIDTH).cast_const(), t.stride_c),
            };
            prefetches -= some;
            ends = ends.saturating_sub(1);
            for _ in 0..some {
                if B == PACKED {
                    V::prefetch_far(at);
                    at = at.wrapping_add(step);
                }
                for _ in 0..between {
                    term::<V, MR, NV, TA, B>(&mut acc, a, stride_a, b, stride_b, pack_to, tail);
                    a = a.wrapping_add(step_a);
                    b = b.wrapping_add(step_b);
                    pack_to = pack_to.wrapping_add(NV * V::WIDTH);
                }
            }
        }
        for _ in 0..kc % between {
            term::<V, MR, NV, TA, B>(&mut acc, a, stride_a, b, stride_b, pack_to, tail);
            a = a.wrapping_add(step_a);
            b = b.wrapping_add(step_b);
            pack_to = pack_to.wrapping_add(NV * V::WIDTH);
        }
        for r in 0..MR {
            for v in 0..NV {
                let mut sum = acc[r][v];
                if !t.end {
                    sum.store(saved.add((r * NV + v) * V::WIDTH));
                    continue;
                }
                let to = t.c.add(r * t.stride_c + v * V::WIDTH);
                let n = if v == last { tail } else { V::WIDTH };
                if !t.first {
                    sum = V::load_part(to, n).add(sum);
                }
                if !t.bias.is_null() {
                    sum = sum.add(V::load_part(t.bias.add(v * V::WIDTH), n));
                }
                sum.store_part(to, n);
            }
        }
    }
}
