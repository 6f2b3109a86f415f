//! Tiles of C with AVX-512 VNNI: `vpdpbusd` multiplies unsigned by signed bytes, so digits of A are packed with 128 added. That adds 128
//! times the sum of the digits of B to each product, which sums begin without. Sums wrap on the way; in the end they fit.
#![allow(unsafe_code)]

use super::bytes::{Finish, MAX_SUMS, SUMS, Sums, TILE, pack, step_len, word_strides};
use super::{Block, Kernels, LINES, STEP};
use dittograd_numerics::digits::Digits;
use std::arch::x86_64::*;

pub(super) static KERNELS: Kernels = Kernels { step_len, word_strides, pack: pack::<128>, multiply };

/// Whether a processor with AVX-512 has VNNI.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512vnni")
}

/// # Safety
/// As for [`Kernels::multiply`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn multiply(block: &Block) {
    // SAFETY: upheld by the caller.
    unsafe {
        match block.digits {
            Digits::Two => tiles::<2, 3, 8>(block),
            Digits::Three => tiles::<3, 4, 4>(block),
        }
    }
}

/// The weight of a pair of digits, of two or three.
const fn weight<const D: usize>(i: usize, j: usize) -> Option<usize> {
    match D {
        2 => Digits::Two.weight(i, j),
        _ => Digits::Three.weight(i, j),
    }
}

/// Computes all tiles of a block: D digits, W weights, MR rows of a tile at a time.
///
/// # Safety
/// As for [`multiply`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn tiles<const D: usize, const W: usize, const MR: usize>(block: &Block) {
    let mut sums = Sums([[0; SUMS]; MAX_SUMS]);
    let sums = &raw mut sums;
    // SAFETY: upheld by the caller; all addresses are inside the packed panels.
    unsafe {
        for j in 0..block.cols.div_ceil(LINES) {
            let b = block.b.add(j * block.b_len);
            let begin = begin::<D, W>(b, block.steps);
            for i in 0..block.rows.div_ceil(LINES) {
                let a = block.a.add(i * block.a_len);
                for row in (0..LINES).step_by(MR) {
                    rows::<D, W, MR>(a.add(row * STEP), b, block.steps, begin, sums, row);
                }
                let mut left = Finish::tile(block, i, j);
                while left.row < left.rows {
                    left.next_row::<D>(sums);
                }
            }
        }
    }
}

/// What the sums of each weight begin with: -128 times the digits of B that it has.
///
/// # Safety
/// `b` is a packed panel of so many steps, and the processor has VNNI.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn begin<const D: usize, const W: usize>(b: *const u8, steps: usize) -> [__m512i; W] {
    // SAFETY: upheld by the caller.
    unsafe {
        // 128, unsigned.
        let offset = _mm512_set1_epi8(-128);
        let mut of_digits = [_mm512_setzero_si512(); D];
        for step in 0..steps {
            for (d, sum) in of_digits.iter_mut().enumerate() {
                for group in 0..STEP / 4 {
                    let digits = _mm512_load_si512(b.add((step * D + d) * TILE + group * STEP).cast());
                    *sum = _mm512_dpbusd_epi32(*sum, offset, digits);
                }
            }
        }
        let mut begin = [_mm512_setzero_si512(); W];
        for i in 0..D {
            for (j, of_digit) in of_digits.into_iter().enumerate() {
                if let Some(w) = weight::<D>(i, j) {
                    begin[w] = _mm512_sub_epi32(begin[w], of_digit);
                }
            }
        }
        begin
    }
}

/// Sums of MR rows of a tile, from `row` on.
///
/// # Safety
/// `a` and `b` are packed panels of so many steps, `a` from that row on, and the processor has VNNI.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[allow(clippy::needless_range_loop)]
unsafe fn rows<const D: usize, const W: usize, const MR: usize>(
    a: *const u8,
    b: *const u8,
    steps: usize,
    begin: [__m512i; W],
    sums: *mut Sums,
    row: usize,
) {
    // SAFETY: upheld by the caller.
    unsafe {
        let mut acc = [begin; MR];
        for step in 0..steps {
            let (a, b) = (a.add(step * D * TILE), b.add(step * D * TILE));
            for group in 0..STEP / 4 {
                let mut of_b = [_mm512_setzero_si512(); D];
                for (d, of_b) in of_b.iter_mut().enumerate() {
                    *of_b = _mm512_load_si512(b.add(d * TILE + group * STEP).cast());
                }
                for r in 0..MR {
                    for i in 0..D {
                        let of_a = a.add(i * TILE + r * STEP + group * 4).cast::<i32>().read();
                        let of_a = _mm512_set1_epi32(of_a);
                        for j in 0..D {
                            if let Some(w) = weight::<D>(i, j) {
                                acc[r][w] = _mm512_dpbusd_epi32(acc[r][w], of_a, of_b[j]);
                            }
                        }
                    }
                }
            }
        }
        for r in 0..MR {
            for w in 0..W {
                // The third tile of sums stays zero.
                let tile = if w < 2 { w } else { w + 1 };
                let to = (&raw mut (*sums).0[tile]).cast::<i32>().add((row + r) * LINES);
                _mm512_store_si512(to.cast(), acc[r][w]);
            }
        }
    }
}
