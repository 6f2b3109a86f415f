//! Angles and hyperbolic functions, computed in binary64 and rounded once.

use super::double::{exp_double, exp2_double, log2_split};
use super::log::split_log;
use super::{SIGN, poly_double, with_sign_of};
use crate::lane::{Lane, LaneDouble, LaneInt};

/// The angle of the point (x, y) from the x axis, from -pi to pi.
///
/// The arc tangent of the smaller over the larger magnitude as r + r^3 P(r^2) with P of degree 11, then its place by
/// octants, all in binary64. Special cases are those of C99 Annex F: the sign of zeros counts, an angle between
/// infinities is an odd multiple of pi/4.
#[inline(always)]
pub fn atan2<L: Lane>(y: L, x: L) -> L {
    let (across, up) = (x.abs(), y.abs());
    let steep = up.gt(across);
    let low = L::select(steep, across, up);
    let high = L::select(steep, up, across);
    let r = low.to_double() / high.to_double();
    let r = L::Double::select(low.eq(L::c(0.0)), L::Double::c(0.0), r);
    let r = L::Double::select(low.eq(L::c(f64::INFINITY)), L::Double::c(1.0), r);
    let z = r * r;
    let p = poly_double(
        z,
        [
            -0.3333333332694414,
            0.19999998154086215,
            -0.14285624891483525,
            0.11109392308322223,
            -0.09073553118976409,
            0.0758665283364667,
            -0.06246315194128317,
            0.047294798621813336,
            -0.02991311194551696,
            0.014072923344697239,
            -0.0042216579909296476,
            0.0005930437556365282,
        ],
    );
    let angle = r.fma(z * p, r);
    let angle = L::Double::select(steep, L::Double::c(std::f64::consts::FRAC_PI_2) - angle, angle);
    let left = !(x.to_bits() & L::Int::c(SIGN)).eq(L::Int::c(0));
    let angle = L::Double::select(left, L::Double::c(std::f64::consts::PI) - angle, angle);
    L::select(x.is_nan() | y.is_nan(), L::nan(), with_sign_of(L::from_double(angle), y))
}

/// e^|x| in binary64; from 100 on, where the sum and difference with its inverse overflow binary32, e^100.
#[inline(always)]
fn growth<L: Lane>(x: L) -> L::Double {
    let a = x.abs();
    exp_double::<L>(L::select(a.gt(L::c(100.0)), L::c(100.0), a).to_double())
}

/// The hyperbolic sine.
///
/// Below 1, x + x^3 P(x^2); above, (e^x - e^-x) / 2, in binary64. Odd bit for bit, keeps the sign of zero.
#[inline(always)]
pub fn sinh<L: Lane>(x: L) -> L {
    let one = L::Double::c(1.0);
    let a = x.abs().to_double();
    let z = a * a;
    let p = poly_double(
        z,
        [
            0.16666666666698407,
            0.008333333317464362,
            0.0001984128253011599,
            2.755377026364149e-06,
            2.545670657152382e-08,
        ],
    );
    let e = growth(x);
    let large = (e - one / e) * L::Double::c(0.5);
    let result = L::from_double(L::Double::select(a.lt(one), a.fma(z * p, a), large));
    L::select(x.is_nan(), L::nan(), with_sign_of(result, x))
}

/// The hyperbolic cosine, (e^x + e^-x) / 2 in binary64. Even bit for bit.
#[inline(always)]
pub fn cosh<L: Lane>(x: L) -> L {
    let e = growth(x);
    let result = L::from_double((e + L::Double::c(1.0) / e) * L::Double::c(0.5));
    L::select(x.is_nan(), L::nan(), result)
}

/// 2^x, exact for whole numbers. Subnormal results round once; 0 at -inf.
#[inline(always)]
pub fn exp2<L: Lane>(x: L) -> L {
    L::select(x.is_nan(), L::nan(), L::from_double(exp2_double::<L>(x.to_double())))
}

/// log2 x times a factor, in binary64; -inf at both zeros, NaN below.
#[inline(always)]
fn scaled_log2<L: Lane>(x: L, factor: f64) -> L {
    let tiny = x.lt(L::c(f64::from(f32::MIN_POSITIVE)));
    let (m, k) = split_log(L::select(tiny, x * L::c(8_388_608.0), x));
    let k = k - L::Int::select(tiny, L::Int::c(23), L::Int::c(0));
    let result = L::from_double(log2_split(m, m.to_double(), k) * L::Double::c(factor));
    let result = L::select(x.eq(L::c(f64::INFINITY)), x, result);
    let result = L::select(x.eq(L::c(0.0)), L::c(f64::NEG_INFINITY), result);
    L::select(!x.ge(L::c(0.0)), L::nan(), result)
}

/// The logarithm to the base 2, exact at powers of two.
#[inline(always)]
pub fn log2<L: Lane>(x: L) -> L {
    scaled_log2(x, 1.0)
}

/// The logarithm to the base 10, exact at powers of ten.
#[inline(always)]
pub fn log10<L: Lane>(x: L) -> L {
    scaled_log2(x, std::f64::consts::LOG10_2)
}

/// What is left of a after a whole number of times b is taken off, with the sign of a and a magnitude below b's. Exact.
///
/// Six rounds of r - q b with q the quotient to 53 bits, rounded to a whole number if it is not one: each is exact and
/// takes 52 bits off the quotient, which has at most 277. NaN for an infinite a or a zero b; a for an infinite b.
#[inline(always)]
pub fn fmod<L: Lane>(a: L, b: L) -> L {
    let (zero, unit) = (L::Double::c(0.0), L::Double::c(4_503_599_627_370_496.0));
    let infinity = L::c(f64::INFINITY);
    let d = b.abs().to_double();
    let mut r = a.abs().to_double();
    let mut round = 0;
    while round < 6 {
        let q = r / d;
        let below = q.lt(zero);
        let magic = L::Double::select(below, -unit, unit);
        let whole = L::Double::select(below, -q, q).lt(unit);
        let q = L::Double::select(whole, (q + magic) - magic, q);
        r = q.fma(-d, r);
        round += 1;
    }
    let r = L::from_double(L::Double::select(r.lt(zero), r + d, r)).abs();
    let result = L::select(b.abs().eq(infinity), a, with_sign_of(r, a));
    let defined = a.abs().lt(infinity) & b.abs().gt(L::c(0.0));
    L::select(defined, result, L::nan())
}
