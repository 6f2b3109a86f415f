//! Logarithms.

use super::{LN2_HI, LN2_LO, poly, power_of_two};
use crate::lane::{Lane, LaneInt};

/// ln(2^k (1 + f)) for f in [sqrt(1/2) - 1, sqrt(2) - 1].
///
/// ln(1 + f) = f + f^2 P(f) with P of degree 8. The leading sum k ln 2 + f keeps its rounding error and gives
/// it back with the small terms: k LN2_HI is exact and exceeds |f| unless it is 0.
#[inline(always)]
fn log_split<L: Lane>(f: L, k: L) -> L {
    let sum = k.fma(L::c(LN2_HI), f);
    let lost = f - k.fma(L::c(-LN2_HI), sum);
    let p = poly(
        f,
        [
            -0.4999998808,
            0.3333332539,
            -0.2500158548,
            0.2000196576,
            -0.1660904288,
            0.141819641,
            -0.1324351281,
            0.1290366501,
            -0.0761936307,
        ],
    );
    sum + (f * f).fma(p, k.fma(L::c(LN2_LO), lost))
}

/// Writes a positive normal number as 2^k m with sqrt(1/2) <= m < sqrt(2), up to the rounding of the bounds.
#[inline(always)]
pub(super) fn split_log<L: Lane>(x: L) -> (L, L::Int) {
    let bits = x.to_bits();
    let k = (bits - L::Int::c(0x3f35_04f3)).sar(23);
    (L::from_bits(bits - k.shl(23)), k)
}

/// The natural logarithm.
///
/// x = 2^k m with m near 1, a polynomial of degree 10 in m - 1, k ln 2 added in two parts.
/// Largest error 0.876 ulp. Subnormal arguments are scaled up first; ln 0 = -inf for both zeros, ln 1 = +0,
/// ln inf = inf, NaN below zero.
#[inline(always)]
pub fn log<L: Lane>(x: L) -> L {
    let tiny = x.lt(L::c(f64::from(f32::MIN_POSITIVE)));
    let (m, k) = split_log(L::select(tiny, x * L::c(8_388_608.0), x));
    let k = k - L::Int::select(tiny, L::Int::c(23), L::Int::c(0));
    let result = log_split(m - L::c(1.0), L::from_int(k));
    let result = L::select(x.eq(L::c(f64::INFINITY)), x, result);
    let result = L::select(x.eq(L::c(0.0)), L::c(f64::NEG_INFINITY), result);
    // Not `x < 0`: this mask holds for NaN too.
    L::select(!x.ge(L::c(0.0)), L::nan(), result)
}

/// ln(1 + x).
///
/// 1 + x gives only the exponent k; f = 2^-k x + (2^-k - 1) is then formed from x itself in one fused step.
/// Largest error 1.456 ulp. Keeps the sign of zero; -inf at -1, inf at inf, NaN below -1.
#[inline(always)]
pub fn log1p<L: Lane>(x: L) -> L {
    let one = L::c(1.0);
    let u = x + one;
    let (m, k) = split_log(u);
    let scale = power_of_two::<L>(L::Int::c(0) - k);
    // From 2^25 on, 1 + x rounds to x, and 2^-k would leave the range of normal numbers further out.
    let f = L::select(x.gt(L::c(33_554_432.0)), m - one, scale.fma(x, scale - one));
    let result = log_split(f, L::from_int(k));
    let result = L::select(x.eq(L::c(0.0)) | x.eq(L::c(f64::INFINITY)), x, result);
    let result = L::select(x.eq(L::c(-1.0)), L::c(f64::NEG_INFINITY), result);
    L::select(!x.ge(L::c(-1.0)), L::nan(), result)
}
