//! Modified Bessel functions of the first kind, of orders 0 and 1, computed in binary64 and rounded once.

use super::double::exp_double;
use super::{poly_double, with_sign_of};
use crate::lane::{Lane, LaneDouble};

/// Coefficients of the power series in x^2 / 4: 1 / (k! (k + order)!).
const fn series(order: usize) -> [f64; 21] {
    let mut all = [1.0; 21];
    let mut k = 1;
    while k < all.len() {
        all[k] = all[k - 1] / (k * (k + order)) as f64;
        k += 1;
    }
    all
}

/// The function of x >= 0 times e^-x (`is_scaled`) or as it is: up to 8 the power series, above P(1 / x) / sqrt(x) with P
/// of degree 8, times the power of e that is missing. Relative error 2^-32.
#[inline(always)]
fn bessel<L: Lane>(x: L::Double, order: usize, far: [f64; 9], is_scaled: bool) -> L::Double {
    let one = L::Double::c(1.0);
    let quarter = x * x * L::Double::c(0.25);
    let near = match order {
        0 => poly_double(quarter, const { series(0) }),
        _ => poly_double(quarter, const { series(1) }) * x * L::Double::c(0.5),
    };
    let far = poly_double(one / x, far) / x.sqrt();
    let (near, far) = match is_scaled {
        true => (near * exp_double::<L>(-x), far),
        false => (near, far * exp_double::<L>(x)),
    };
    L::Double::select(x.lt(L::Double::c(8.0)), near, far)
}

const FAR_0: [f64; 9] = [
    0.39894228039202057,
    0.04986779710657781,
    0.02804820916012883,
    0.02939567428506315,
    0.038811152590189385,
    0.18897824878454234,
    -0.5022600378316464,
    1.6179158202816548,
    13.801596376461818,
];

const FAR_1: [f64; 9] = [
    0.3989422804105042,
    -0.1496033667607767,
    -0.04674872881709937,
    -0.04107447619505759,
    -0.05200249115700312,
    -0.19872029645105382,
    0.3097743166315692,
    -0.5394092042162402,
    -18.19733751648398,
];

/// The function at |x|. As it is, it is infinite from 92 on.
#[inline(always)]
fn at<L: Lane>(x: L, order: usize, far: [f64; 9], is_scaled: bool) -> L {
    let (a, infinity) = (x.abs(), L::c(f64::INFINITY));
    let reached = if is_scaled { a } else { L::select(a.gt(L::c(1000.0)), L::c(1000.0), a) };
    let value = L::from_double(bessel::<L>(reached.to_double(), order, far, is_scaled));
    let value = if is_scaled { L::select(a.eq(infinity), L::c(0.0), value) } else { value };
    L::select(x.is_nan(), L::nan(), value)
}

/// The modified Bessel function of order 0. Even bit for bit; infinite from 91.9 on.
#[inline(always)]
pub fn i0<L: Lane>(x: L) -> L {
    at(x, 0, FAR_0, false)
}

/// e^-|x| times [`i0`]; 0 at the infinities.
#[inline(always)]
pub fn i0e<L: Lane>(x: L) -> L {
    at(x, 0, FAR_0, true)
}

/// The modified Bessel function of order 1. Odd bit for bit, keeps the sign of zero.
#[inline(always)]
pub fn i1<L: Lane>(x: L) -> L {
    L::select(x.is_nan(), L::nan(), with_sign_of(at(x, 1, FAR_1, false), x))
}

/// e^-|x| times [`i1`].
#[inline(always)]
pub fn i1e<L: Lane>(x: L) -> L {
    L::select(x.is_nan(), L::nan(), with_sign_of(at(x, 1, FAR_1, true), x))
}
