//! The microkernel of matrix products: a tile of C over a run of k, its accumulators in registers.
#![allow(unsafe_code)]

use crate::cpu::LINE;
use crate::cpu::vector::Vector;

/// How many terms a tile computes between two lines that it asks for, by whether A is transposed. Rows of A in place are
/// taken term by term: the compiler would load two at a time, and then have to spread them.
pub(crate) const TERMS_PER_PREFETCH: [usize; 2] = [1, 2];
/// How a tile reads B: packed; in place; or in place, and packs it for other tiles.
pub(crate) const PACKED: u8 = 0;
pub(crate) const IN_PLACE: u8 = 1;
pub(crate) const PACKING: u8 = 2;
/// How many terms ahead a tile asks for what it reads.
pub(crate) const PREFETCH_TERMS: usize = 16;

/// What a tile kernel works on: `kc` terms of some rows of A and some vectors of columns of B.
pub(crate) struct Tile {
    pub kc: usize,
    pub a: *const f32,
    pub stride_a: usize,
    pub b: *const f32,
    pub stride_b: usize,
    /// Where a tile that packs B writes it.
    pub pack_to: *mut f32,
    /// What a tile that reads packed B asks for, every few terms ([`TERMS_PER_PREFETCH`]), since it will be wanted later.
    pub prefetch: *const f32,
    pub prefetch_step: usize,
    /// Where unfinished chains are parked, vector after vector.
    pub acc: *mut f32,
    /// Whether chains begin here, or are taken up.
    pub begin: bool,
    /// Whether the chunk ends here, or its chains are parked.
    pub end: bool,
    pub c: *mut f32,
    pub stride_c: usize,
    /// Whether this is the first chunk, so that C holds nothing yet.
    pub first: bool,
    /// Bias of the tile's columns if this is the last chunk, or null.
    pub bias: *const f32,
    /// Number of columns of the last vector that exist.
    pub tail: usize,
}

/// Takes a tile's chains one term further. Not a closure: that would be compiled without the instructions of `V`.
///
/// # Safety
/// As for [`tile`], whose term is at `a` and `b`.
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
    // SAFETY: the caller's.
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
    // SAFETY: of all of this, the caller's: addresses are inside the tile, and last vectors are cut to
    // `tail`. Packed B and parked chains have whole vectors.
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
        // What is asked for, every few terms: at the end of a chunk first the tile's own part of C, whose rows have a line
        // at either end, then what comes later.
        let between = TERMS_PER_PREFETCH[TA as usize];
        let mut prefetches = kc / between;
        let mut lines = if B == PACKED && t.end && prefetches > 2 * MR { 2 } else { 0 };
        while prefetches > 0 {
            let (some, mut at, step) = match lines {
                0 => (prefetches, t.prefetch, t.prefetch_step),
                _ => (MR, t.c.wrapping_add((2 - lines) * last * V::WIDTH).cast_const(), t.stride_c),
            };
            prefetches -= some;
            lines = lines.saturating_sub(1);
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
