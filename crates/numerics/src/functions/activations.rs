//! Functions that models put between layers. Each goes through the split of the exponential.

use super::exp::{exp_in_range, split_exp};
use super::{poly, power_of_two, with_sign_of};
use crate::lane::{Lane, LaneInt};

/// The hyperbolic tangent.
///
/// Below 0.95, x + x^3 P(x^2); above, 1 - 2 / (e^2x + 1), where e^2x + 1 is rounded once from the split of
/// [`exp`](super::exp()). Largest error 0.936 ulp. Odd bit for bit, keeps the sign of zero, and is exactly 1 from 9.02
/// on.
#[inline(always)]
pub fn tanh<L: Lane>(x: L) -> L {
    let a = x.abs();
    let square = a * a;
    let p = poly(
        square,
        [
            -0.3333329558,
            0.1333234757,
            -0.05387998745,
            0.02148717642,
            -0.007946845144,
            0.002301884582,
            -0.0003585958621,
        ],
    );
    let small = a.fma(square * p, a);
    let clamped = L::select(a.gt(L::c(10.0)), L::c(10.0), a);
    let (q, n) = split_exp(clamped + clamped);
    let scale = power_of_two::<L>(n);
    let large = L::c(1.0) - L::c(2.0) / scale.fma(q, scale + L::c(1.0));
    let result = with_sign_of(L::select(a.lt(L::c(0.95)), small, large), x);
    L::select(x.is_nan(), L::nan(), result)
}

/// The logistic function 1 / (1 + e^-x).
///
/// With e^-x = 2^n (1 + q) as in [`exp`](super::exp()) it is 2^-n / (1 + q + 2^-n), whose numerator is exact; what 1 + 2^-n
/// rounds off is added back with q, and the scaling goes in two steps as there. Largest error 1.695
/// ulp. Far below zero it is e^x, subnormal results included; 0 at -inf, 1 from 17.4 on.
#[inline(always)]
pub fn sigmoid<L: Lane>(x: L) -> L {
    let one = L::c(1.0);
    let low = L::select(x.lt(L::c(-104.0)), L::c(-104.0), x);
    let clamped = L::select(low.gt(L::c(20.0)), L::c(20.0), low);
    let (q, n) = split_exp(-clamped);
    let half = n.sar(1);
    let first = power_of_two::<L>(L::Int::c(0) - half);
    let second = power_of_two::<L>(half - n);
    let scale = first * second;
    let minor = scale.lt(one);
    let (large, small) = (L::select(minor, one, scale), L::select(minor, scale, one));
    let sum = large + small;
    let sum = sum + (q + (small - (sum - large)));
    L::select(x.is_nan(), L::nan(), first / sum * second)
}

/// ln(1 + e^x).
///
/// max(x, 0) + ln(1 + e) with e = e^-|x| in [0, 1], the logarithm as e + e^2 Q(e) with Q of degree 9.
/// Largest error 1.903 ulp. Far below zero it is e^x, subnormal results included; inf at inf.
#[inline(always)]
pub fn softplus<L: Lane>(x: L) -> L {
    let below = -x.abs();
    let e = exp_in_range(L::select(below.lt(L::c(-104.0)), L::c(-104.0), below));
    let q = poly(
        e,
        [
            -0.4999998808,
            0.3333271444,
            -0.2498886734,
            0.1990060955,
            -0.1614499688,
            0.1251846999,
            -0.08402843773,
            0.04298470914,
            -0.01418839581,
            0.002199889161,
        ],
    );
    let result = L::select(x.gt(L::c(0.0)), x, L::c(0.0)) + e.fma(e * q, e);
    L::select(x.is_nan(), L::nan(), result)
}

/// The error function.
///
/// Below 0.9, x + x P(x^2); above, 1 - e^Q(|x|) where Q fits ln erfc on [0.9, 4].
/// Largest error 1.092 ulp. Odd bit for bit, keeps the sign of zero, exactly 1 from 3.92 on.
#[inline(always)]
pub fn erf<L: Lane>(x: L) -> L {
    let a = x.abs();
    let near = poly(
        a * a,
        [0.1283791512, -0.3761250377, 0.1128192022, -0.02677040175, 0.004998785909, -0.000601976295],
    );
    let small = a.fma(near, a);
    let clamped = L::select(a.gt(L::c(4.0)), L::c(4.0), a);
    let far = poly(
        clamped,
        [
            -0.0001775241399,
            -1.127749443,
            -0.6370599866,
            -0.1040370911,
            0.02227691002,
            -0.003055544104,
            0.0001971709426,
        ],
    );
    let (q, n) = split_exp(far);
    let scale = power_of_two::<L>(n);
    let large = L::c(1.0) - scale.fma(q, scale);
    let result = with_sign_of(L::select(a.lt(L::c(0.9)), small, large), x);
    L::select(x.is_nan(), L::nan(), result)
}
