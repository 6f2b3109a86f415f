//! Packed 8-bit digits for AMX and VNNI, with AVX-512. A step of a panel has one tile of 1024 bytes for each digit, lowest first. A tile of A
//! is 16 lines of 64 terms. A tile of B is 16 groups of four terms, each of 16 lines: the transpose of that, if four terms count as
//! one 32-bit element.
#![allow(unsafe_code)]

use super::{Block, LINES, Pack, STEP, Side, exponent_of};
use dittograd_numerics::digits::Digits;
use std::arch::x86_64::*;

/// Bytes of a tile, and of its rows.
pub(super) const TILE: usize = LINES * STEP;
/// 32-bit elements of a tile of sums.
pub(super) const SUMS: usize = LINES * LINES;
/// The most tiles of sums of a tile of C.
pub(super) const MAX_SUMS: usize = 5;

/// Sums of a tile of C, row after row, one tile of sums after another. The weights are `[0]`, `[1] + [2]`, `[3]` and, of three
/// digits, `[4]`.
#[repr(C, align(64))]
pub(super) struct Sums(pub [[i32; SUMS]; MAX_SUMS]);

pub(super) fn step_len(digits: Digits, _: Side) -> usize {
    digits.count() * TILE
}

/// A word is a digit of four terms.
pub(super) fn word_strides(_: Digits) -> [usize; 2] {
    [1, LINES]
}

/// Sixteen lanes, the first `n` of them set; none for 0.
#[inline(always)]
fn first_lanes(n: usize) -> __mmask16 {
    if n >= LINES { !0 } else { (1 << n) - 1 }
}

/// Packs some panels. `FLIP` is added to each digit of A, modulo 256: 0, or 128 to make digits unsigned.
///
/// # Safety
/// As for [`super::Kernels::pack`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn pack<const FLIP: u8>(p: &Pack) {
    // SAFETY: upheld by the caller.
    unsafe {
        match p.digits {
            Digits::Two => pack_lines::<2, FLIP>(p),
            Digits::Three => pack_lines::<3, FLIP>(p),
        }
    }
}

/// # Safety
/// As for [`super::Kernels::pack`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn pack_lines<const D: usize, const FLIP: u8>(p: &Pack) {
    // SAFETY: upheld by the caller: all lines and terms that are read are inside the operand, and whole panels are written.
    unsafe {
        let panels = p.lines.div_ceil(LINES);
        let mut largest = [0u32; LINES * super::MAX_STRIP];
        match (p.known, p.along_k) {
            (true, _) => {}
            (false, true) => {
                for (line, largest) in largest.iter_mut().enumerate().take(p.lines) {
                    *largest = largest_of_line(p.from.add(line * p.stride), p.terms);
                }
            }
            (false, false) => largest_of_lines(p, &mut largest),
        }
        let mut scales = [0.0f32; LINES * super::MAX_STRIP];
        for (line, &largest) in largest.iter().enumerate().take(panels * LINES) {
            let to = p.exponents.add(line);
            if !p.known {
                *to = exponent_of(largest);
            }
            scales[line] = if (*to).is_nan() { 0.0 } else { p.digits.scale(*to as i32) };
        }
        // Balanced digits: with half of the base added to all but the top one, they are the bytes of the integer, plus 128 each.
        let half = if D == 2 { 0x80 } else { 0x8080 };
        let flip = i32::from_ne_bytes([if p.side == Side::A { FLIP } else { 0 }; 4]);
        let (half, flip) = (_mm512_set1_epi32(half), _mm512_set1_epi32(half ^ flip));
        let transposed = p.along_k != (p.side == Side::A);
        let mut tiles = Tiles([[0; TILE]; 3]);
        let strip = if p.along_k { 1 } else { panels };
        for panel in (0..panels).step_by(strip) {
            for k in (0..p.terms).step_by(STEP) {
                for panel in panel..panel + strip {
                    let line = panel * LINES;
                    let (lines, terms) = (LINES.min(p.lines - line), STEP.min(p.terms - k));
                    let scales = &scales[line..line + LINES];
                    let to = p.to.add(panel * p.panel_len + k / STEP * D * TILE);
                    let direct = if transposed { tiles.0.as_mut_ptr().cast() } else { to };
                    if p.along_k {
                        let from = p.from.add(line * p.stride + k);
                        lines_along_k::<D>(from, p.stride, lines, terms, scales, half, flip, direct);
                    } else {
                        let from = p.from.add(k * p.stride + line);
                        lines_across_k::<D>(from, p.stride, lines, terms, scales, half, flip, direct);
                    }
                    if transposed {
                        for d in 0..D {
                            transpose(tiles.0[d].as_ptr(), to.add(d * TILE));
                        }
                    }
                }
            }
        }
    }
}

/// Tiles before they are transposed.
#[repr(C, align(64))]
struct Tiles([[u8; TILE]; 3]);

/// The largest magnitude of a line along k.
///
/// # Safety
/// There are `terms` floats there, and the processor has AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn largest_of_line(from: *const f32, terms: usize) -> u32 {
    // SAFETY: upheld by the caller; the last vectors are cut to what there is.
    unsafe {
        let magnitudes = _mm512_set1_epi32(0x7fff_ffff);
        let mut max = [_mm512_setzero_si512(); 4];
        let mut k = 0;
        while k + STEP <= terms {
            for (v, max) in max.iter_mut().enumerate() {
                let x = _mm512_loadu_si512(from.add(k + v * LINES).cast());
                *max = _mm512_max_epu32(*max, _mm512_and_si512(x, magnitudes));
            }
            k += STEP;
        }
        while k < terms {
            let x = _mm512_maskz_loadu_epi32(first_lanes(terms - k), from.add(k).cast());
            max[0] = _mm512_max_epu32(max[0], _mm512_and_si512(x, magnitudes));
            k += LINES;
        }
        let max = _mm512_max_epu32(_mm512_max_epu32(max[0], max[1]), _mm512_max_epu32(max[2], max[3]));
        _mm512_reduce_max_epu32(max)
    }
}

/// The largest magnitudes of lines across k.
///
/// # Safety
/// As for [`super::Kernels::pack`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn largest_of_lines(p: &Pack, largest: &mut [u32; LINES * super::MAX_STRIP]) {
    // SAFETY: upheld by the caller; vectors are cut to the lines there are.
    unsafe {
        let magnitudes = _mm512_set1_epi32(0x7fff_ffff);
        let mut max = [_mm512_setzero_si512(); super::MAX_STRIP];
        let mut masks = [0; super::MAX_STRIP];
        for (v, mask) in masks.iter_mut().enumerate() {
            *mask = first_lanes(p.lines.saturating_sub(v * LINES));
        }
        for k in 0..p.terms {
            for (v, max) in max.iter_mut().enumerate() {
                let from = p.from.wrapping_add(k * p.stride + v * LINES);
                let x = _mm512_maskz_loadu_epi32(masks[v], from.cast());
                *max = _mm512_max_epu32(*max, _mm512_and_si512(x, magnitudes));
            }
        }
        for (v, max) in max.into_iter().enumerate() {
            _mm512_storeu_si512(largest.as_mut_ptr().add(v * LINES).cast(), max);
        }
    }
}

/// The digits of sixteen floats: the bytes of each element, lowest first. The conversion rounds to nearest even, as the environment
/// of the contract has it.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn convert(x: __m512, scale: __m512, half: __m512i, flip: __m512i) -> __m512i {
    let integer = _mm512_cvtps_epi32(_mm512_mul_ps(x, scale));
    _mm512_xor_si512(_mm512_add_epi32(integer, half), flip)
}

/// Converts a step of a panel whose lines run along k: for each digit, 16 lines of 64 terms.
///
/// # Safety
/// There are so many lines of so many terms, 16 scales, and `to` has D tiles. The processor has AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[allow(clippy::too_many_arguments)]
unsafe fn lines_along_k<const D: usize>(
    from: *const f32,
    stride: usize,
    lines: usize,
    terms: usize,
    scales: &[f32],
    half: __m512i,
    flip: __m512i,
    to: *mut u8,
) {
    // SAFETY: upheld by the caller; vectors are cut to the terms there are.
    unsafe {
        // In each group of four elements: the lowest bytes first, then the next ones.
        let by_digit =
            _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
        let in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        for (line, &scale) in scales.iter().enumerate() {
            let to = to.add(line * STEP);
            if line >= lines {
                for d in 0..D {
                    _mm512_storeu_si512(to.add(d * TILE).cast(), _mm512_setzero_si512());
                }
                continue;
            }
            let (from, scale) = (from.add(line * stride), _mm512_set1_ps(scale));
            let mut x = [_mm512_setzero_si512(); 4];
            for (v, x) in x.iter_mut().enumerate() {
                let some = first_lanes(terms.saturating_sub(v * LINES));
                let floats = _mm512_maskz_loadu_ps(some, from.wrapping_add(v * LINES));
                *x = _mm512_shuffle_epi8(convert(floats, scale, half, flip), by_digit);
            }
            let (a, b) = (_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpacklo_epi32(x[2], x[3]));
            let mut digits = [_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b), a];
            if D == 3 {
                let (a, b) = (_mm512_unpackhi_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[2], x[3]));
                digits[2] = _mm512_unpacklo_epi64(a, b);
            }
            for (d, digit) in digits.into_iter().enumerate().take(D) {
                _mm512_storeu_si512(to.add(d * TILE).cast(), _mm512_permutexvar_epi32(in_order, digit));
            }
        }
    }
}

/// Converts a step of a panel whose lines run across k: for each digit, 16 groups of four terms of 16 lines.
///
/// # Safety
/// There are so many lines of so many terms, 16 scales, and `to` has D tiles. The processor has AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
#[allow(clippy::too_many_arguments)]
unsafe fn lines_across_k<const D: usize>(
    from: *const f32,
    stride: usize,
    lines: usize,
    terms: usize,
    scales: &[f32],
    half: __m512i,
    flip: __m512i,
    to: *mut u8,
) {
    const ODD: __mmask32 = 0xaaaa_aaaa;
    // SAFETY: upheld by the caller; vectors are cut to the lines there are, and terms beyond the last are zeros.
    unsafe {
        // In each element: bytes 0 and 2, then 1 and 3.
        let by_digit =
            _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
        let scale = _mm512_loadu_ps(scales.as_ptr());
        let some = first_lanes(lines);
        for group in 0..STEP / 4 {
            let mut x = [_mm512_setzero_si512(); 4];
            for (i, x) in x.iter_mut().enumerate() {
                let k = 4 * group + i;
                let mask = if k < terms { some } else { 0 };
                let floats = _mm512_maskz_loadu_ps(mask, from.wrapping_add(k * stride));
                *x = convert(floats, scale, half, flip);
            }
            // The low halves of two terms side by side, or the high halves.
            let low = |a, b| {
                let both = _mm512_mask_blend_epi16(ODD, a, _mm512_slli_epi32::<16>(b));
                _mm512_shuffle_epi8(both, by_digit)
            };
            let (a, b) = (low(x[0], x[1]), low(x[2], x[3]));
            let to = to.add(group * STEP);
            _mm512_storeu_si512(to.cast(), _mm512_mask_blend_epi16(ODD, a, _mm512_slli_epi32::<16>(b)));
            _mm512_storeu_si512(
                to.add(TILE).cast(),
                _mm512_mask_blend_epi16(ODD, _mm512_srli_epi32::<16>(a), b),
            );
            if D == 3 {
                let high = |a, b| {
                    let both = _mm512_mask_blend_epi16(ODD, _mm512_srli_epi32::<16>(a), b);
                    _mm512_shuffle_epi8(both, by_digit)
                };
                let (a, b) = (high(x[0], x[1]), high(x[2], x[3]));
                let digit = _mm512_mask_blend_epi16(ODD, a, _mm512_slli_epi32::<16>(b));
                _mm512_storeu_si512(to.add(2 * TILE).cast(), digit);
            }
        }
    }
}

/// Transposes a tile of 16 by 16 elements of 32 bits.
///
/// # Safety
/// Both are tiles, and the processor has AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn transpose(from: *const u8, to: *mut u8) {
    // SAFETY: upheld by the caller.
    unsafe {
        let mut x = [_mm512_setzero_si512(); LINES];
        for (i, x) in x.iter_mut().enumerate() {
            *x = _mm512_load_si512(from.add(i * STEP).cast());
        }
        // Squares of four inside 128-bit groups, then the groups themselves.
        let mut y = x;
        for i in (0..LINES).step_by(4) {
            let (a, b) = (_mm512_unpacklo_epi32(x[i], x[i + 1]), _mm512_unpackhi_epi32(x[i], x[i + 1]));
            let (c, d) =
                (_mm512_unpacklo_epi32(x[i + 2], x[i + 3]), _mm512_unpackhi_epi32(x[i + 2], x[i + 3]));
            y[i] = _mm512_unpacklo_epi64(a, c);
            y[i + 1] = _mm512_unpackhi_epi64(a, c);
            y[i + 2] = _mm512_unpacklo_epi64(b, d);
            y[i + 3] = _mm512_unpackhi_epi64(b, d);
        }
        for i in 0..4 {
            let a = _mm512_shuffle_i32x4::<0b10_00_10_00>(y[i], y[i + 4]);
            let b = _mm512_shuffle_i32x4::<0b11_01_11_01>(y[i], y[i + 4]);
            let c = _mm512_shuffle_i32x4::<0b10_00_10_00>(y[i + 8], y[i + 12]);
            let d = _mm512_shuffle_i32x4::<0b11_01_11_01>(y[i + 8], y[i + 12]);
            let rows = [
                _mm512_shuffle_i32x4::<0b10_00_10_00>(a, c),
                _mm512_shuffle_i32x4::<0b10_00_10_00>(b, d),
                _mm512_shuffle_i32x4::<0b11_01_11_01>(a, c),
                _mm512_shuffle_i32x4::<0b11_01_11_01>(b, d),
            ];
            for (group, row) in rows.into_iter().enumerate() {
                _mm512_store_si512(to.add((4 * group + i) * STEP).cast(), row);
            }
        }
    }
}

/// Rounds the totals of sixteen elements, of the sums of each weight.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn round<const D: usize>(weights: [__m512i; 4]) -> __m512 {
    let low = weights.map(|w| _mm512_cvtepi32_epi64(_mm512_castsi512_si256(w)));
    let high = weights.map(|w| _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64::<1>(w)));
    let total = |w: [__m512i; 4]| {
        let mut total = w[D];
        for w in w[..D].iter().rev() {
            total = _mm512_add_epi64(_mm512_slli_epi64::<8>(total), *w);
        }
        _mm512_cvtepi64_ps(total)
    };
    _mm512_insertf32x8::<1>(_mm512_castps256_ps512(total(low)), total(high))
}

/// The same for a chunk of at most [`FEW_STEPS`], 128 terms. A total is `high`·2^8 + `low`, of three digits `high`·2^16 + `low`. `high` is
/// below 2^30 then, and 6 bits of it go to the lower part. Both parts are floats, so their sum is rounded once.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn round_few<const D: usize>(weights: [__m512i; 4]) -> __m512 {
    let join = |high: __m512i, low: __m512i| _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low);
    let six = _mm512_set1_epi32(63);
    let (upper, lower, unit) = if D == 2 {
        let high = join(weights[2], weights[1]);
        (_mm512_andnot_si512(six, high), join(_mm512_and_si512(high, six), weights[0]), 256.0)
    } else {
        let low = join(weights[1], weights[0]);
        let high = _mm512_add_epi32(join(weights[3], weights[2]), _mm512_srai_epi32::<16>(low));
        let rest = _mm512_and_si512(low, _mm512_set1_epi32(0xffff));
        let lower = _mm512_or_si512(_mm512_slli_epi32::<16>(_mm512_and_si512(high, six)), rest);
        (_mm512_andnot_si512(six, high), lower, 65536.0)
    };
    _mm512_fmadd_ps(_mm512_cvtepi32_ps(upper), _mm512_set1_ps(unit), _mm512_cvtepi32_ps(lower))
}

/// Rows of C whose sums are complete, and where they go.
pub(super) struct Finish {
    /// Rows that are left, from `row` on.
    pub row: usize,
    pub rows: usize,
    cols: __mmask16,
    c: *mut f32,
    stride_c: usize,
    a_exponents: *const f32,
    /// Exponents of the columns, with what the digits add.
    b_exponents: __m512,
    bias: *const f32,
    first: bool,
    /// Whether the chunk has at most [`FEW_STEPS`].
    few: bool,
}

/// The most steps of a chunk for which a total is two parts of 24 bits, so that it takes no 64-bit integers.
const FEW_STEPS: usize = 2;

impl Finish {
    /// Nothing is left.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub fn nothing() -> Finish {
        let (c, from) = (std::ptr::null_mut(), std::ptr::null());
        Finish {
            row: 0,
            rows: 0,
            cols: 0,
            c,
            stride_c: 0,
            a_exponents: from,
            b_exponents: _mm512_setzero_ps(),
            bias: from,
            first: true,
            few: true,
        }
    }

    /// The tile of panels `i` and `j` of a block.
    ///
    /// # Safety
    /// The block has these panels and points to what it says, and the processor has AVX-512.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub unsafe fn tile(block: &Block, i: usize, j: usize) -> Finish {
        let (row, col) = (i * LINES, j * LINES);
        let constant = block.digits.total_exponent(0, 0) as f32;
        // SAFETY: upheld by the caller; exponents are padded to whole panels.
        let b_exponents =
            unsafe { _mm512_add_ps(_mm512_loadu_ps(block.b_exponents.add(col)), _mm512_set1_ps(constant)) };
        Finish {
            row: 0,
            rows: LINES.min(block.rows - row),
            cols: first_lanes(block.cols - col),
            c: block.c.wrapping_add(row * block.stride_c + col),
            stride_c: block.stride_c,
            a_exponents: block.a_exponents.wrapping_add(row),
            b_exponents,
            bias: if block.bias.is_null() { block.bias } else { block.bias.wrapping_add(col) },
            first: block.first,
            few: block.steps <= FEW_STEPS,
        }
    }

    /// Finishes the next row: totals, one rounding, the scale.
    ///
    /// # Safety
    /// A row is left, its sums are in `sums`, what was given to [`Finish::tile`] is still there, and the processor has AVX-512.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub unsafe fn next_row<const D: usize>(&mut self, sums: *const Sums) {
        // SAFETY: upheld by the caller; vectors are cut to the columns there are.
        unsafe {
            let row = self.row;
            self.row += 1;
            let at =
                |s: usize| _mm512_load_si512((&raw const (*sums).0[s]).cast::<i32>().add(row * LINES).cast());
            let weights = [at(0), _mm512_add_epi32(at(1), at(2)), at(3), if D == 3 { at(4) } else { at(3) }];
            let rounded = if self.few { round_few::<D>(weights) } else { round::<D>(weights) };
            // The power of two is exact unless the result is subnormal, and NaN if an exponent is.
            let exponents = _mm512_add_ps(_mm512_set1_ps(*self.a_exponents.add(row)), self.b_exponents);
            let mut c = _mm512_scalef_ps(rounded, exponents);
            let to = self.c.wrapping_add(row * self.stride_c);
            if !self.first {
                c = _mm512_add_ps(_mm512_maskz_loadu_ps(self.cols, to), c);
            }
            if !self.bias.is_null() {
                c = _mm512_add_ps(c, _mm512_maskz_loadu_ps(self.cols, self.bias));
            }
            _mm512_mask_storeu_ps(to, self.cols, c);
        }
    }
}
