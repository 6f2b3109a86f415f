//! Products too thin for the tiles of [`super::gemm`]: those of attention and of depthwise convolutions. Each lane of a
//! vector holds its own sum. The functions here are safe: they check all lengths and call the microkernels below them.
#![allow(unsafe_code)]

use super::LINE;
use super::kernels::Kernels;
use super::simd::Simd;
use super::vector::Vector;

/// Which products [`accumulate`] leaves out.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Skip {
    /// None.
    Nothing,
    /// Those with an element of `a` that has these bits.
    Lanes(u32),
    /// Those with a factor `x` that has these bits.
    Factors(u32),
}

/// Transposes `cols` lines of `len` floats, `stride` apart, into `len` rows of `lanes` columns. Columns beyond `cols` repeat the
/// last line.
///
/// # Panics
/// If there are no lines or more than `lanes`, these are no multiple of [`LINE`], or a slice is too short.
#[doc(hidden)]
pub fn transpose_lines(
    simd: Simd,
    from: &[f32],
    stride: usize,
    cols: usize,
    len: usize,
    lanes: usize,
    to: &mut [f32],
) {
    assert!((1..=lanes).contains(&cols) && lanes.is_multiple_of(LINE), "number of lines");
    assert!(from.len() >= (cols - 1) * stride + len && to.len() >= len * lanes, "length of lines");
    let kernels = Kernels::of(simd);
    // SAFETY: the processor has the SIMD level of the kernels, and the lengths were checked.
    unsafe {
        (kernels.pack_transposed)(from.as_ptr(), stride, cols, lanes / kernels.width, len, to.as_mut_ptr())
    }
}

/// `acc[c][l] = fma(a[k][l], x[k * term + c * column], acc[c][l])` in increasing k, for rows of `lanes` elements. With
/// `begin`, sums start at +0.0.
///
/// # Panics
/// If `lanes` is no multiple of [`LINE`], `a` or `acc` is not whole rows of it, or `x` is too short.
#[doc(hidden)]
#[allow(clippy::too_many_arguments)]
pub fn accumulate(
    simd: Simd,
    skip: Skip,
    lanes: usize,
    a: &[f32],
    x: &[f32],
    [term, column]: [usize; 2],
    begin: bool,
    acc: &mut [f32],
) {
    assert!(lanes > 0 && lanes.is_multiple_of(LINE), "number of lanes");
    let (terms, columns) = (a.len() / lanes, acc.len() / lanes);
    assert!(terms * lanes == a.len() && columns * lanes == acc.len(), "length of rows");
    if columns == 0 {
        return;
    }
    let last = terms.saturating_sub(1).checked_mul(term).zip((columns - 1).checked_mul(column));
    let last = last.and_then(|(k, c)| k.checked_add(c));
    assert!(terms == 0 || last.is_some_and(|last| last < x.len()), "length of factors");
    let (a, x, acc) = (a.as_ptr(), x.as_ptr(), acc.as_mut_ptr());
    let accumulate = Accumulate { a, terms, x, term, column, acc, columns, lanes, begin, skip };
    // SAFETY: the processor has the SIMD level of the kernels, and the lengths were checked.
    unsafe { (Kernels::of(simd).accumulate)(&accumulate) }
}

/// `to[i] = Σ w[t] · x[i + offsets[t]] + add`, in increasing t.
///
/// # Panics
/// If the length of `to` is no multiple of [`LINE`], or a slice is too short.
#[doc(hidden)]
pub fn stencil(simd: Simd, x: &[f32], offsets: &[usize], w: &[f32], add: f32, to: &mut [f32]) {
    let (len, taps) = (to.len(), w.len());
    assert!(len.is_multiple_of(LINE) && offsets.len() == taps, "length of lines");
    assert!(offsets.iter().all(|&o| o <= x.len() && x.len() - o >= len), "length of operands");
    let (x, offsets, w, to) = (x.as_ptr(), offsets.as_ptr(), w.as_ptr(), to.as_mut_ptr());
    // SAFETY: the processor has the SIMD level of the kernels, and the lengths were checked.
    unsafe { (Kernels::of(simd).stencil)(&Stencil { x, offsets, w, taps, add, to, len }) }
}

/// `acc[t] += Σ g[p] · x[starts[t] + p · step]` in increasing p, where `acc[t]`, `g[p]` and `x[i]` are [`LINE`] lanes.
///
/// # Panics
/// If a slice is too short.
#[doc(hidden)]
pub fn dots(simd: Simd, g: &[f32], x: &[f32], starts: &[u32], step: usize, acc: &mut [f32]) {
    let positions = g.len() / LINE;
    if positions == 0 || starts.is_empty() {
        return;
    }
    let last = (positions - 1) * step + LINE;
    assert!(
        starts.iter().all(|&s| s as usize <= x.len() && x.len() - s as usize >= last),
        "length of operands"
    );
    assert!(acc.len() >= starts.len() * LINE, "length of sums");
    let kernels = Kernels::of(simd);
    let per = starts.len().div_ceil(starts.len().div_ceil(kernels.mr));
    for (starts, acc) in starts.chunks(per).zip(acc.chunks_mut(per * LINE)) {
        let t = starts.len();
        let (starts, acc) = (starts.as_ptr(), acc.as_mut_ptr());
        let sums = Dots { g: g.as_ptr(), x: x.as_ptr(), starts, step, positions, acc };
        // SAFETY: as above; there are `t` starts and sums.
        unsafe { (kernels.dots[t - 1])(&sums) }
    }
}

/// The operands of [`accumulate`].
pub(crate) struct Accumulate {
    pub a: *const f32,
    pub terms: usize,
    pub x: *const f32,
    pub term: usize,
    pub column: usize,
    pub acc: *mut f32,
    pub columns: usize,
    /// Floats of a row of `a` and of `acc`, a multiple of [`LINE`].
    pub lanes: usize,
    /// Whether sums start at +0.0.
    pub begin: bool,
    pub skip: Skip,
}

/// [`Skip`] as a constant, so that each case is compiled separately.
pub(crate) const SKIP_NOTHING: u8 = 0;
pub(crate) const SKIP_LANES: u8 = 1;
pub(crate) const SKIP_FACTORS: u8 = 2;

/// Computes C columns from `c` on, NV vectors of lanes from `l` on.
///
/// # Safety
/// `Accumulate` points to what it says, and these columns and lanes are inside. The processor has the instructions of `V`.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
unsafe fn accumulate_block<V: Vector, const NV: usize, const C: usize, const SKIP: u8>(
    w: &Accumulate,
    mark: u32,
    l: usize,
    c: usize,
) {
    // SAFETY: upheld by the caller.
    unsafe {
        let to = w.acc.add(c * w.lanes + l);
        let mut acc = [[V::splat(0.0); NV]; C];
        if !w.begin {
            for c in 0..C {
                for v in 0..NV {
                    acc[c][v] = V::load(to.add(c * w.lanes + v * V::WIDTH));
                }
            }
        }
        let (mut a, mut x) = (w.a.wrapping_add(l), w.x.wrapping_add(c * w.column));
        let marks = V::splat(f32::from_bits(mark));
        for _ in 0..w.terms {
            let mut av = [V::splat(0.0); NV];
            for v in 0..NV {
                av[v] = V::load(a.add(v * V::WIDTH));
            }
            for c in 0..C {
                let factor = *x.add(c * w.column);
                if SKIP == SKIP_FACTORS && factor.to_bits() == mark {
                    continue;
                }
                let factor = V::splat(factor);
                for v in 0..NV {
                    acc[c][v] = match SKIP {
                        SKIP_LANES => acc[c][v].fma_unless(marks, av[v], factor),
                        _ => acc[c][v].fma(av[v], factor),
                    };
                }
            }
            a = a.wrapping_add(w.lanes);
            x = x.wrapping_add(w.term);
        }
        for c in 0..C {
            for v in 0..NV {
                acc[c][v].store(to.add(c * w.lanes + v * V::WIDTH));
            }
        }
    }
}

/// Computes all columns, NV vectors of lanes from `l` on.
///
/// # Safety
/// The same as for [`accumulate_block`].
#[inline(always)]
unsafe fn accumulate_columns<V: Vector, const NV: usize, const SKIP: u8>(
    w: &Accumulate,
    mark: u32,
    l: usize,
) {
    // Four columns of four vectors are enough independent sums to hide the latency of an FMA, and fit in the registers.
    const C: usize = 4;
    let whole = w.columns - w.columns % C;
    // SAFETY: upheld by the caller.
    unsafe {
        for c in (0..whole).step_by(C) {
            accumulate_block::<V, NV, C, SKIP>(w, mark, l, c);
        }
        for c in whole..w.columns {
            accumulate_block::<V, NV, 1, SKIP>(w, mark, l, c);
        }
    }
}

/// The microkernel of [`accumulate`]: all columns and lanes, at most NV vectors of lanes at a time.
///
/// # Safety
/// `Accumulate` points to what it says. The processor has the instructions of `V`.
#[inline(always)]
pub(crate) unsafe fn accumulate_lanes<V: Vector, const NV: usize, const SKIP: u8>(w: &Accumulate, mark: u32) {
    let mut l = 0;
    // SAFETY: upheld by the caller; lanes are whole vectors.
    unsafe {
        while l + NV * V::WIDTH <= w.lanes {
            accumulate_columns::<V, NV, SKIP>(w, mark, l);
            l += NV * V::WIDTH;
        }
        while l + 2 * V::WIDTH <= w.lanes {
            accumulate_columns::<V, 2, SKIP>(w, mark, l);
            l += 2 * V::WIDTH;
        }
        while l < w.lanes {
            accumulate_columns::<V, 1, SKIP>(w, mark, l);
            l += V::WIDTH;
        }
    }
}

/// The operands of [`stencil`].
pub(crate) struct Stencil {
    pub x: *const f32,
    pub offsets: *const usize,
    pub w: *const f32,
    pub taps: usize,
    pub add: f32,
    pub to: *mut f32,
    /// A multiple of [`LINE`].
    pub len: usize,
}

/// Vectors of outputs that are in registers at once.
const STENCIL_VECTORS: usize = 8;

/// Computes NV vectors of outputs from `at` on.
///
/// # Safety
/// `Stencil` points to what it says, `at` and the vectors are inside `len`. The processor has the instructions of `V`.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
unsafe fn stencil_vectors<V: Vector, const NV: usize>(c: &Stencil, at: usize) {
    // SAFETY: upheld by the caller.
    unsafe {
        let mut acc = [V::splat(0.0); NV];
        for t in 0..c.taps {
            let (x, w) = (c.x.add(at + *c.offsets.add(t)), V::splat(*c.w.add(t)));
            for v in 0..NV {
                acc[v] = acc[v].fma(w, V::load(x.add(v * V::WIDTH)));
            }
        }
        let add = V::splat(c.add);
        for v in 0..NV {
            acc[v].add(add).store(c.to.add(at + v * V::WIDTH));
        }
    }
}

/// The microkernel of [`stencil`]: all outputs.
///
/// # Safety
/// `Stencil` points to what it says. The processor has the instructions of `V`.
#[inline(always)]
pub(crate) unsafe fn stencil_all<V: Vector>(c: &Stencil) {
    let mut at = 0;
    // SAFETY: upheld by the caller; the vectors end with `len`, which is a multiple of their width.
    unsafe {
        while at + STENCIL_VECTORS * V::WIDTH <= c.len {
            stencil_vectors::<V, STENCIL_VECTORS>(c, at);
            at += STENCIL_VECTORS * V::WIDTH;
        }
        while at < c.len {
            stencil_vectors::<V, 1>(c, at);
            at += V::WIDTH;
        }
    }
}

/// The operands of [`dots`].
pub(crate) struct Dots {
    pub g: *const f32,
    pub x: *const f32,
    pub starts: *const u32,
    /// Floats from one operand to the next.
    pub step: usize,
    pub positions: usize,
    pub acc: *mut f32,
}

/// The microkernel of [`dots`]: T sums of [`LINE`] lanes, NV vectors each.
///
/// # Safety
/// `Dots` points to what it says, and T starts and sums. The processor has the instructions of `V`.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
pub(crate) unsafe fn lane_dots<V: Vector, const T: usize, const NV: usize>(d: &Dots) {
    // SAFETY: upheld by the caller.
    unsafe {
        let mut acc = [[V::splat(0.0); NV]; T];
        let mut x = [d.x; T];
        for t in 0..T {
            x[t] = d.x.add(*d.starts.add(t) as usize);
            for v in 0..NV {
                acc[t][v] = V::load(d.acc.add(t * LINE + v * V::WIDTH));
            }
        }
        let (mut g, mut at) = (d.g, 0);
        for _ in 0..d.positions {
            let mut gv = [V::splat(0.0); NV];
            for v in 0..NV {
                gv[v] = V::load(g.add(v * V::WIDTH));
            }
            for t in 0..T {
                for v in 0..NV {
                    acc[t][v] = acc[t][v].fma(gv[v], V::load(x[t].add(at + v * V::WIDTH)));
                }
            }
            g = g.wrapping_add(LINE);
            at += d.step;
        }
        for t in 0..T {
            for v in 0..NV {
                acc[t][v].store(d.acc.add(t * LINE + v * V::WIDTH));
            }
        }
    }
}
