//! The power.

use super::SIGN;
use super::double::{exp2_double, log2_split};
use super::log::split_log;
use crate::lane::{Lane, LaneDouble, LaneInt};

/// x to the power y.
///
/// 2^(y log2 |x|) in binary64: log2 from the series in (m - 1) / (m + 1), relative error 2^-45, the power
/// from a polynomial of degree 8, then one rounding to binary32. Largest error found 0.501 ulp (6e7 pairs).
///
/// Special cases are those of C99 Annex F: x^0 = 1^y = 1 even for NaN, (-1)^(+-inf) = 1, a negative finite
/// base with a fractional exponent gives NaN, and an odd integer exponent passes on the sign of the base, of
/// 0 and inf too.
#[inline(always)]
pub fn pow<L: Lane>(x: L, y: L) -> L {
    let infinity = L::c(f64::INFINITY);
    let base = x.abs();
    let tiny = base.lt(L::c(f64::from(f32::MIN_POSITIVE)));
    let (m, k) = split_log(L::select(tiny, base * L::c(8_388_608.0), base));
    let k = k - L::Int::select(tiny, L::Int::c(23), L::Int::c(0));
    let log2 = log2_split(m, m.to_double(), k);
    let log2 = L::Double::select(base.eq(infinity), L::Double::c(f64::INFINITY), log2);
    let log2 = L::Double::select(base.eq(L::c(0.0)), L::Double::c(f64::NEG_INFINITY), log2);

    let magnitude = L::from_double(exp2_double::<L>(y.to_double() * log2));

    // From 2^23 on every float is an integer, from 2^24 on an even one; adding 2^23 rounds the smaller ones.
    let exponent = y.abs();
    let unit = L::c(8_388_608.0);
    let half = exponent * L::c(0.5);
    let integer = exponent.ge(unit) | ((exponent + unit) - unit).eq(exponent);
    let even = exponent.ge(L::c(16_777_216.0)) | ((half + unit) - unit).eq(half);
    let flip = L::Int::select(integer & !even, L::Int::c(SIGN), L::Int::c(0));
    let result = L::from_bits(magnitude.to_bits() ^ (flip & x.to_bits()));

    let fractional = x.lt(L::c(0.0)) & base.lt(infinity) & !integer;
    let result = L::select(fractional | x.is_nan() | y.is_nan(), L::nan(), result);
    let unity = y.eq(L::c(0.0)) | x.eq(L::c(1.0)) | (base.eq(L::c(1.0)) & exponent.eq(infinity));
    L::select(unity, L::c(1.0), result)
}
