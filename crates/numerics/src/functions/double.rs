//! Logarithm and power to the base 2 in binary64, which the functions with one rounding at their end are made of.

use super::{MAGIC_DOUBLE, poly_double};
use crate::lane::{Lane, LaneDouble, LaneInt};

/// log2 of 2^k m for m from sqrt(1/2) to sqrt(2): the series in (m - 1) / (m + 1), relative error 2^-45. `near` is m
/// in binary32.
#[inline(always)]
pub(super) fn log2_split<L: Lane>(near: L, m: L::Double, k: L::Int) -> L::Double {
    let one = L::Double::c(1.0);
    // (m - 1) / (m + 1) by a binary32 reciprocal and one step to cubic error: binary64 division is slow.
    let guess = (L::c(1.0) / (near + L::c(1.0))).to_double();
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
    s.fma(series, L::Double::from_int(k))
}

/// log2 of a positive normal double, with [`log2_split`].
#[inline(always)]
pub(super) fn log2_double<L: Lane>(x: L::Double) -> L::Double {
    let high = x.high_word();
    let k = (high - L::Int::c(0x3fe6_a09e)).sar(20);
    let m = L::Double::from_words(high - k.shl(20), x.low_word());
    log2_split(L::from_double(m), m, k)
}

/// The natural logarithm of a positive normal double.
#[inline(always)]
pub(super) fn log_double<L: Lane>(x: L::Double) -> L::Double {
    log2_double::<L>(x) * L::Double::c(std::f64::consts::LN_2)
}

/// 2^t, relative error 2^-38. Beyond +-300 it is 2^(+-300): 0 or infinity in binary32, whatever the exponent.
#[inline(always)]
pub(super) fn exp2_double<L: Lane>(t: L::Double) -> L::Double {
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
    r.fma(e, L::Double::c(1.0)) * scale
}

/// e^t, with [`exp2_double`].
#[inline(always)]
pub(super) fn exp_double<L: Lane>(t: L::Double) -> L::Double {
    exp2_double::<L>(t * L::Double::c(std::f64::consts::LOG2_E))
}

/// The sine and cosine of pi f for f from -1/2 to 1/2, relative error of the sine 2^-51.
#[inline(always)]
pub(super) fn half_turn<D: LaneDouble>(f: D) -> (D, D) {
    let z = f * f;
    let sine = poly_double(
        z,
        [
            3.1415926535897927,
            -5.1677127800497855,
            2.5501640398618677,
            -0.599264528825224,
            0.08214587881631043,
            -0.0073703643265304155,
            0.0004659870158043378,
            -2.113362735205297e-05,
        ],
    );
    let cosine = poly_double(
        z,
        [
            0.9999999999999981,
            -4.934802200543686,
            4.058712126333295,
            -1.3352627661817635,
            0.23533058831317874,
            -0.025806531975921563,
            0.0019278700526981333,
            -0.0001004164642205389,
        ],
    );
    (sine * f, cosine)
}

/// What is left of `x` after the nearest whole number is taken off, for `|x| < 2^51`.
#[inline(always)]
pub(super) fn fraction<D: LaneDouble>(x: D) -> D {
    x - ((x + D::c(MAGIC_DOUBLE)) - D::c(MAGIC_DOUBLE))
}
