//! The exponential and what is one but for a factor or a constant.

use super::{LN2_HI, LN2_LO, MAGIC, MAGIC_BITS, poly, power_of_two, with_sign_of};
use crate::lane::{Lane, LaneInt};

/// Splits e^x into 2^n (1 + q) with |q| <= 0.42, for |x| below about 2^21.
///
/// x = n ln 2 + r with |r| <= 0.347 and q = r + r^2 Q(r), Q of degree 4 (absolute error of the fit 2^-27.7).
#[inline(always)]
pub(super) fn split_exp<L: Lane>(x: L) -> (L, L::Int) {
    let shifted = x.fma(L::c(std::f64::consts::LOG2_E), L::c(MAGIC));
    let n = shifted - L::c(MAGIC);
    let exact = n.fma(L::c(-LN2_HI), x);
    let rest = n * L::c(-LN2_LO);
    let r = exact + rest;
    let tail = poly(r, [0.5, 0.1666651815, 0.04166620597, 0.008368950337, 0.001395056141]);
    // Not r + r^2 Q: the rounding of r would come in whole, a quarter of a unit of the result.
    (exact + (r * r).fma(tail, rest), shifted.to_bits() - L::Int::c(MAGIC_BITS))
}

/// e^x for `-104 <= x <= 89`; the scaling by 2^n goes in two steps so that a subnormal result rounds once.
#[inline(always)]
pub(super) fn exp_in_range<L: Lane>(x: L) -> L {
    let (q, n) = split_exp(x);
    let half = n.sar(1);
    (L::c(1.0) + q) * power_of_two::<L>(half) * power_of_two::<L>(n - half)
}

/// e^x.
///
/// Reduction by ln 2, a polynomial of degree 6, scaling in two exact-then-rounded steps.
/// Largest error 0.896 ulp. Overflows to infinity above 88.72284, is subnormal below -87.33655 and 0 below
/// -103.97208; e^-inf = 0, e^inf = inf.
#[inline(always)]
pub fn exp<L: Lane>(x: L) -> L {
    let low = L::select(x.lt(L::c(-104.0)), L::c(-104.0), x);
    let clamped = L::select(low.gt(L::c(89.0)), L::c(89.0), low);
    L::select(x.is_nan(), L::nan(), exp_in_range(clamped))
}

/// e^x for `x <= 0`: the bits of [`exp`] in two thirds of the steps; above 64 the result has no meaning.
///
/// Without large powers, 2^(n + 32) is a normal number for every n, and 2^-32 rounds once.
#[inline(always)]
pub fn decay<L: Lane>(x: L) -> L {
    let (q, n) = split_exp(x);
    let power = L::from_bits((n + L::Int::c(127 + 32)).shl(23));
    let scaled = (L::c(1.0) + q) * power * L::c(1.0 / 4_294_967_296.0);
    L::select(x.lt(L::c(-104.0)), L::c(0.0), scaled)
}

/// 2^x as softmax weights need it: for `x <= 127`, and 0 below -126.
///
/// The integer part goes into the exponent, the rest r through 1 + r Q(r), Q of degree 5. Largest error 0.94
/// ulp; exactly 1 at 0. Half the work of [`exp`], since nothing is subnormal and nothing overflows: beyond 127
/// the result has no meaning, though the same bits everywhere. A NaN gives a NaN.
#[inline(always)]
pub fn weight<L: Lane>(x: L) -> L {
    // A product, not a sum of bits, so that a NaN stays one.
    L::select(x.lt(L::c(-126.0)), L::c(0.0), weight_mantissa(x) * weight_power(x))
}

/// The factor of [`weight`] that is a polynomial, from 2^-0.5 to 2^0.5.
#[inline(always)]
pub fn weight_mantissa<L: Lane>(x: L) -> L {
    let r = x - ((x + L::c(MAGIC)) - L::c(MAGIC));
    let q = poly(
        r,
        [
            0.6931471824645996,
            0.24022647738456726,
            0.055503323674201965,
            0.00961843691766262,
            0.00133988750167191,
            0.00015353361959569156,
        ],
    );
    r.fma(q, L::c(1.0))
}

/// The factor of [`weight`] that is a power of two.
#[inline(always)]
pub fn weight_power<L: Lane>(x: L) -> L {
    // The low bits of the sum are the integer part.
    L::from_bits((x + L::c(MAGIC)).to_bits().shl(23) + L::Int::c(0x3f80_0000))
}

/// e^x - 1.
///
/// The reduction of [`exp`], then 2^n q + (2^n - 1) in one fused step, which keeps small results accurate.
/// Largest error 1.566 ulp. Keeps the sign of zero; -1 at -inf, inf at inf and above 88.72284.
#[inline(always)]
pub fn expm1<L: Lane>(x: L) -> L {
    let low = L::select(x.lt(L::c(-20.0)), L::c(-20.0), x);
    let clamped = L::select(low.gt(L::c(89.0)), L::c(89.0), low);
    let (q, n) = split_exp(clamped);
    // Half of the result first: 2^128 itself would not be a float.
    let scale = power_of_two::<L>(n - L::Int::c(1));
    let half = scale.fma(q, scale - L::c(0.5));
    let result = L::select(n.eq(L::Int::c(0)), q, half + half);
    L::select(x.is_nan(), L::nan(), with_sign_of(result, x))
}
