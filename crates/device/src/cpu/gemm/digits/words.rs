//! Tiles of C with products of 16-bit words: `vpmaddwd` of AVX2, or any processor. Digits of A are multiplied by parts of B that have 16
//! bits: of two digits, the whole integer; of three, the lowest digit and the rest. So `turbo` takes two products and not four, `fast` five
//! and not eight. Sums of 32 bits hold a run of terms, and are then added to 64-bit totals.
//!
//! A packed panel is, for each pair of terms and each part, the pairs of 16 lines.
#![allow(unsafe_code)]

use super::{Block, Kernels, LINES, Pack, STEP, Side, exponent_of};
use crate::cpu::simd::{Simd, simd_fn};
use dittograd_numerics::digits::{Digits, finish, magnitude};

/// Pairs of terms in a run. A product has at most 128 times 2^15, and two of them share a sum at most, one of which is at most 2^14: the sum
/// of a run is below 2^31.
const RUN: usize = 128;
/// Terms that are converted at a time.
const SQUARE: usize = 16;
/// Rows of a tile that are computed at a time.
const MR: usize = 4;

pub(super) static SCALAR: Kernels =
    Kernels { step_len, word_strides, pack: pack_scalar, multiply: multiply_scalar };
#[cfg(target_arch = "x86_64")]
pub(super) static AVX2: Kernels =
    Kernels { step_len, word_strides, pack: pack_avx2, multiply: multiply_avx2 };

/// Parts of an element.
fn parts(digits: Digits, side: Side) -> usize {
    digits.count() - usize::from(side == Side::B)
}

pub(super) fn step_len(digits: Digits, side: Side) -> usize {
    STEP * LINES * size_of::<i16>() * parts(digits, side)
}

/// A word is a part of two terms.
pub(super) fn word_strides(digits: Digits) -> [usize; 2] {
    [2 * parts(digits, Side::B), 1]
}

unsafe fn pack_scalar(p: &Pack) {
    // SAFETY: upheld by the caller.
    unsafe { pack(Simd::Scalar, p) }
}

#[cfg(target_arch = "x86_64")]
unsafe fn pack_avx2(p: &Pack) {
    // SAFETY: upheld by the caller.
    unsafe { pack(Simd::Avx2, p) }
}

/// # Safety
/// As for [`Kernels::pack`].
unsafe fn pack(simd: Simd, p: &Pack) {
    for line in (0..p.lines).step_by(LINES) {
        let lines = LINES.min(p.lines - line);
        let (at, len) = match p.along_k {
            true => (line * p.stride, (lines - 1) * p.stride + p.terms),
            false => (line, (p.terms - 1) * p.stride + lines),
        };
        // SAFETY: upheld by the caller: these lines and terms are inside the operand, and the panel and its exponents belong to this
        // task. A panel is a whole number of steps, aligned to a cache line.
        let (from, to, exponents) = unsafe {
            (
                std::slice::from_raw_parts(p.from.add(at), len),
                std::slice::from_raw_parts_mut(
                    p.to.add(line / LINES * p.panel_len).cast::<Pairs>(),
                    p.panel_len / size_of::<Pairs>(),
                ),
                &mut *p.exponents.add(line).cast::<[f32; LINES]>(),
            )
        };
        pack_panel(simd, p.digits, p.side, from, p.stride, p.along_k, lines, p.terms, to, exponents, p.known);
    }
}

/// One part of two terms of 16 lines.
type Pairs = [[i16; 2]; LINES];

simd_fn! {
    /// Packs a panel of up to 16 lines.
    fn pack_panel(
        simd,
        digits: Digits,
        side: Side,
        from: &[f32],
        stride: usize,
        along_k: bool,
        lines: usize,
        terms: usize,
        to: &mut [Pairs],
        exponents: &mut [f32; LINES],
        known: bool,
    ) {
        let mut largest = [0u32; LINES];
        match (known, along_k) {
            (true, _) => {}
            (false, true) => {
                for (line, largest) in largest.iter_mut().enumerate().take(lines) {
                    let line = &from[line * stride..][..terms];
                    *largest = line.iter().fold(0, |max, &x| max.max(magnitude(x)));
                }
            }
            (false, false) => {
                for k in 0..terms {
                    for (largest, &x) in largest.iter_mut().zip(&from[k * stride..][..lines]) {
                        *largest = (*largest).max(magnitude(x));
                    }
                }
            }
        }
        let mut scales = [0.0f32; LINES];
        for ((largest, scale), to) in largest.into_iter().zip(&mut scales).zip(exponents) {
            if !known {
                *to = exponent_of(largest);
            }
            *scale = if to.is_nan() { 0.0 } else { digits.scale(*to as i32) };
        }
        let count = parts(digits, side);
        for (square, to) in to.chunks_exact_mut(SQUARE / 2 * count).enumerate() {
            let k = square * SQUARE;
            let some = SQUARE.min(terms.saturating_sub(k));
            let mut integers = [[0i32; LINES]; SQUARE];
            if along_k {
                for line in 0..lines {
                    let from = from.get(line * stride + k..).unwrap_or_default();
                    for (integers, &x) in integers.iter_mut().zip(&from[..some]) {
                        integers[line] = Digits::integer(x, scales[line]);
                    }
                }
            } else {
                for (term, integers) in integers.iter_mut().enumerate().take(some) {
                    let from = &from[(k + term) * stride..][..lines];
                    for ((integer, &x), scale) in integers.iter_mut().zip(from).zip(&scales) {
                        *integer = Digits::integer(x, *scale);
                    }
                }
            }
            for (pair, to) in integers.chunks_exact(2).zip(to.chunks_exact_mut(count)) {
                for line in 0..LINES {
                    for half in 0..2 {
                        let x = pair[half][line];
                        let [low, middle, top] = digits.split(x);
                        let rest = (x - i32::from(low)) >> 8;
                        let parts = match (side, digits) {
                            (Side::A, _) => [i16::from(low), i16::from(middle), i16::from(top)],
                            (Side::B, Digits::Two) => [x as i16, 0, 0],
                            (Side::B, Digits::Three) => [i16::from(low), rest as i16, 0],
                        };
                        for (to, part) in to.iter_mut().zip(parts) {
                            to[line][half] = part;
                        }
                    }
                }
            }
        }
    }
}

/// A vector of 32-bit sums, or of pairs of 16-bit words.
///
/// # Safety
/// All methods may only be called where the processor has the instructions, and on addresses that are valid for the access.
trait Words: Copy {
    /// The number of sums.
    const WIDTH: usize;
    /// Zeros.
    unsafe fn zero() -> Self;
    /// The pairs at `from`.
    unsafe fn load(from: *const [i16; 2]) -> Self;
    /// The pair at `from` everywhere.
    unsafe fn splat(from: *const [i16; 2]) -> Self;
    /// Adds the products of the words of each pair.
    unsafe fn add_products(self, a: Self, b: Self) -> Self;
    /// Stores the sums.
    unsafe fn store(self, to: *mut i32);
}

/// The words of a pair.
#[inline(always)]
fn words(pair: i32) -> [i32; 2] {
    [i32::from(pair as i16), pair >> 16]
}

// Plain Rust, which the compiler maps to whatever vectors the target has.
// SAFETY: all of these are upheld by the caller.
impl Words for [i32; 4] {
    const WIDTH: usize = 4;
    #[inline(always)]
    unsafe fn zero() -> Self {
        [0; 4]
    }
    #[inline(always)]
    unsafe fn load(from: *const [i16; 2]) -> Self {
        // SAFETY: the caller has 4 pairs there.
        let pairs = unsafe { from.cast::<[[i16; 2]; 4]>().read() };
        pairs.map(|[low, high]| i32::from(high) << 16 | i32::from(low as u16))
    }
    #[inline(always)]
    unsafe fn splat(from: *const [i16; 2]) -> Self {
        // SAFETY: the caller has a pair there.
        let [low, high] = unsafe { from.read() };
        [i32::from(high) << 16 | i32::from(low as u16); 4]
    }
    #[inline(always)]
    unsafe fn add_products(mut self, a: Self, b: Self) -> Self {
        for i in 0..4 {
            let (a, b) = (words(a[i]), words(b[i]));
            self[i] += a[0] * b[0] + a[1] * b[1];
        }
        self
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut i32) {
        // SAFETY: the caller has 4 sums there.
        unsafe { to.cast::<[i32; 4]>().write(self) }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::Words;
    use std::arch::x86_64::*;

    impl Words for __m256i {
        const WIDTH: usize = 8;
        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: the caller has AVX2.
            unsafe { _mm256_setzero_si256() }
        }
        #[inline(always)]
        unsafe fn load(from: *const [i16; 2]) -> Self {
            // SAFETY: the caller has AVX2 and 8 pairs there.
            unsafe { _mm256_loadu_si256(from.cast()) }
        }
        #[inline(always)]
        unsafe fn splat(from: *const [i16; 2]) -> Self {
            // SAFETY: the caller has AVX2 and a pair there.
            unsafe { _mm256_set1_epi32(from.cast::<i32>().read_unaligned()) }
        }
        #[inline(always)]
        unsafe fn add_products(self, a: Self, b: Self) -> Self {
            // SAFETY: the caller has AVX2.
            unsafe { _mm256_add_epi32(self, _mm256_madd_epi16(a, b)) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut i32) {
            // SAFETY: the caller has AVX2 and 8 sums there.
            unsafe { _mm256_storeu_si256(to.cast(), self) }
        }
    }
}

unsafe fn multiply_scalar(block: &Block) {
    // SAFETY: upheld by the caller.
    unsafe { multiply::<[i32; 4]>(block) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn multiply_avx2(block: &Block) {
    // SAFETY: upheld by the caller; this function has the features of the vector.
    unsafe { multiply::<std::arch::x86_64::__m256i>(block) }
}

/// # Safety
/// As for [`Kernels::multiply`]; the processor has the instructions of `V`.
#[inline(always)]
unsafe fn multiply<V: Words>(block: &Block) {
    // SAFETY: upheld by the caller.
    unsafe {
        match block.digits {
            Digits::Two => tiles::<V, 2>(block),
            Digits::Three => tiles::<V, 3>(block),
        }
    }
}

/// Computes all tiles of a block.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn tiles<V: Words, const D: usize>(block: &Block) {
    let pairs = block.steps * STEP / 2;
    // SAFETY: upheld by the caller; all addresses are inside the packed panels, exponents are padded to whole panels, and only rows and columns
    // that C has are written.
    unsafe {
        for j in 0..block.cols.div_ceil(LINES) {
            for i in 0..block.rows.div_ceil(LINES) {
                let mut totals = [[0i64; LINES]; LINES];
                for run in (0..pairs).step_by(RUN) {
                    let some = RUN.min(pairs - run);
                    let a = block.a.add(i * block.a_len).cast::<Pairs>().add(run * D);
                    let b = block.b.add(j * block.b_len).cast::<Pairs>().add(run * (D - 1));
                    for (row, totals) in totals.chunks_exact_mut(MR).enumerate() {
                        for col in (0..LINES).step_by(V::WIDTH) {
                            let (a, b) = (a.cast::<[i16; 2]>().add(row * MR), b.cast::<[i16; 2]>().add(col));
                            add_run::<V, D>(a, b, some, totals, col);
                        }
                    }
                }
                store(block, i, j, &totals);
            }
        }
    }
}

/// Adds the sums of a run, of MR rows and the columns of a vector, to totals.
///
/// # Safety
/// `a` and `b` point to so many pairs of packed panels, and the processor has the instructions of `V`.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
unsafe fn add_run<V: Words, const D: usize>(
    mut a: *const [i16; 2],
    mut b: *const [i16; 2],
    pairs: usize,
    totals: &mut [[i64; LINES]],
    col: usize,
) {
    // SAFETY: upheld by the caller.
    unsafe {
        let mut acc = [[V::zero(); D]; MR];
        for _ in 0..pairs {
            // The top part of B, and the lowest digit of three.
            let (top, low) = (V::load(b.add((D - 2) * LINES)), V::load(b));
            for r in 0..MR {
                for d in 0..D {
                    let digit = V::splat(a.add(d * LINES + r));
                    acc[r][d] = acc[r][d].add_products(digit, top);
                    if D == 3 && d > 0 {
                        acc[r][d - 1] = acc[r][d - 1].add_products(digit, low);
                    }
                }
            }
            a = a.add(D * LINES);
            b = b.add((D - 1) * LINES);
        }
        for r in 0..MR {
            let mut sums = [[0i32; LINES]; D];
            for d in 0..D {
                acc[r][d].store(sums[d].as_mut_ptr());
            }
            for (c, total) in totals[r][col..col + V::WIDTH].iter_mut().enumerate() {
                *total += sums.iter().rev().fold(0, |total, sums| (total << 8) + i64::from(sums[c]));
            }
        }
    }
}

/// Rounds the totals of a tile and stores them in C.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn store(block: &Block, i: usize, j: usize, totals: &[[i64; LINES]; LINES]) {
    let (row, col) = (i * LINES, j * LINES);
    for (r, totals) in totals.iter().enumerate().take(block.rows - row) {
        for (c, &total) in totals.iter().enumerate().take(block.cols - col) {
            // SAFETY: upheld by the caller.
            unsafe {
                let (ea, eb) = (*block.a_exponents.add(row + r), *block.b_exponents.add(col + c));
                let mut sum = match (ea + eb).is_nan() {
                    true => f32::NAN,
                    false => finish(total, block.digits.total_exponent(ea as i32, eb as i32)),
                };
                let to = block.c.add((row + r) * block.stride_c + col + c);
                if !block.first {
                    sum += *to;
                }
                if !block.bias.is_null() {
                    sum += *block.bias.add(col + c);
                }
                *to = sum;
            }
        }
    }
}
