//! The power.

use super::log::split_log;
use super::{MAGIC_DOUBLE, SIGN, poly_double};
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
    let one = L::Double::c(1.0);
    // (m - 1) / (m + 1) by a binary32 reciprocal and one step to cubic error: binary64 division is slow.
    let guess = (L::c(1.0) / (m + L::c(1.0))).to_double();
    let m = m.to_double();
    let miss = guess.fma(-(m + one), one);
    let near = (m - one) * guess;
    let s = near.fma(miss.fma(miss, miss), near);
    let series = poly_double(
        s * s,
        [
            2.88539008177785,
            0.9617966941137199,
            0.5770779422458058,
            0.4122092652780455,
            0.3199051343818056,
            0.28290864677552696,
        ],
    );
    let log2 = s.fma(series, L::Double::from_int(k));
    let log2 = L::Double::select(base.eq(infinity), L::Double::c(f64::INFINITY), log2);
    let log2 = L::Double::select(base.eq(L::c(0.0)), L::Double::c(f64::NEG_INFINITY), log2);

    // Beyond +-300 the result is 0 or infinity whatever the exact exponent.
    let t = y.to_double() * log2;
    let (low, high) = (L::Double::c(-300.0), L::Double::c(300.0));
    let t = L::Double::select(t.lt(low), low, t);
    let t = L::Double::select(high.lt(t), high, t);
    let shifted = t + L::Double::c(MAGIC_DOUBLE);
    let r = t - (shifted - L::Double::c(MAGIC_DOUBLE));
    let e = poly_double(
        r,
        [
            0.6931471805461313,
            0.24022650695553532,
            0.055504109407871545,
            0.00961812921960904,
            0.00133334508225821,
            0.0001540341533334278,
            1.531003279826056e-05,
            1.3263529359977504e-06,
        ],
    );
    let scale = L::Double::from_words((shifted.low_word() + L::Int::c(1023)).shl(20), L::Int::c(0));
    let magnitude = L::from_double(r.fma(e, one) * scale);

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
