//! The gamma function's logarithm and two derivatives of that, computed in binary64 and rounded once.

use super::double::{fraction, half_turn, log_double};
use super::poly_double;
use crate::lane::{Lane, LaneDouble};

/// From here on the functions are asymptotic series.
const FAR: f64 = 8.0;

/// The logarithm of the magnitude of the gamma function.
///
/// From 8 on by Stirling's series. Below, whole steps lead to z from 1.5 to 2.5, where it is (z - 1) (z - 2) P(z), and
/// the logarithm of the product of the steps is added. Below zero by reflection, ln(pi / |sin pi x|) - lgamma(1 - x).
/// Infinite at zero, at the negative whole numbers and at both infinities.
#[inline(always)]
pub fn lgamma<L: Lane>(x: L) -> L {
    let d = L::Double::c;
    let infinity = L::c(f64::INFINITY);
    let negative = x.lt(L::c(0.0));
    let given = x.to_double();
    let y = L::Double::select(negative, d(1.0) - given, given);

    let (mut z, mut up, mut down) = (y, d(1.0), d(1.0));
    let mut step = 0;
    while step < 2 {
        let low = z.lt(d(1.5));
        up = L::Double::select(low, up * z, up);
        z = L::Double::select(low, z + d(1.0), z);
        step += 1;
    }
    let mut step = 0;
    while step < 6 {
        let high = !z.lt(d(2.5));
        z = L::Double::select(high, z - d(1.0), z);
        down = L::Double::select(high, down * z, down);
        step += 1;
    }
    let t = z - d(2.0);
    let p = poly_double(t, LGAMMA);
    let raised = y.lt(d(1.5));
    let steps = log_double::<L>(L::Double::select(raised, up, down));
    let near = (t * (t + d(1.0))).fma(p, L::Double::select(raised, -steps, steps));

    let inverse = d(1.0) / y;
    let series = inverse
        * poly_double(
            inverse * inverse,
            [1.0 / 12.0, -1.0 / 360.0, 1.0 / 1260.0, -1.0 / 1680.0, 1.0 / 1188.0],
        );
    let far = (y - d(0.5)).fma(log_double::<L>(y), d(0.918_938_533_204_672_7) - y) + series;
    let value = L::Double::select(y.lt(d(FAR)), near, far);

    let (sine, _) = half_turn(fraction(given));
    let sine = L::Double::select(sine.lt(d(0.0)), -sine, sine);
    let reflected = log_double::<L>(d(std::f64::consts::PI) / sine) - value;
    let result = L::from_double(L::Double::select(negative, reflected, value));
    // Every float from 2^23 on is whole, and so a pole.
    let pole = x.eq(L::c(0.0)) | (negative & (!d(0.0).lt(sine) | x.lt(L::c(-8_388_608.0))));
    L::select(x.is_nan(), L::nan(), L::select(pole | x.abs().eq(infinity), infinity, result))
}

/// `lgamma(z) / ((z - 1) (z - 2))` in powers of `z - 2`, for z from 1.5 to 2.5.
const LGAMMA: [f64; 14] = [
    0.42278433509848357,
    -0.10031730167436169,
    0.032965000614710235,
    -0.012384192190326809,
    0.004998641576008124,
    -0.0021081310282282666,
    0.0009153671082230221,
    -0.00040570276225880016,
    0.00018266365515925108,
    -8.314755688649454e-05,
    3.7529551489744536e-05,
    -1.7359764470160482e-05,
    1.0011317128368883e-05,
    -4.6919956151641e-06,
];

/// Below [`FAR`] eight steps up: `y + 8`, and the sum of the inverses of `power` at `y, y + 1, …, y + 7`; else `y` and 0.
#[inline(always)]
fn eight_steps<L: Lane>(y: L::Double, power: impl Fn(L::Double) -> L::Double) -> (L::Double, L::Double) {
    let d = L::Double::c;
    let small = y.lt(d(FAR));
    let (mut above, mut below, mut z) = (d(0.0), d(1.0), y);
    let mut step = 0;
    while step < 8 {
        // above / below + 1 / power
        let term = power(z);
        above = above.fma(term, below);
        below = below * term;
        z = z + d(1.0);
        step += 1;
    }
    let steps = L::Double::select(small, above / below, d(0.0));
    (L::Double::select(small, z, y), steps)
}

/// The digamma function, the derivative of the logarithm of the gamma function.
///
/// From 8 on by its asymptotic series. Below, eight steps up lead there: the sum of their inverses as one fraction is
/// taken off. Below zero by reflection, psi(1 - x) - pi / tan(pi x). Near its roots the error is absolute, 2^-43. As in
/// PyTorch, -inf at +0, inf at -0, NaN at the negative whole numbers.
#[inline(always)]
pub fn digamma<L: Lane>(x: L) -> L {
    let d = L::Double::c;
    let negative = x.lt(L::c(0.0));
    let given = x.to_double();
    let y = L::Double::select(negative, d(1.0) - given, given);
    let (z, steps) = eight_steps::<L>(y, |z| z);
    let inverse = d(1.0) / z;
    let square = inverse * inverse;
    let series = poly_double(
        square,
        [1.0 / 12.0, -1.0 / 120.0, 1.0 / 252.0, -1.0 / 240.0, 1.0 / 132.0, -691.0 / 32760.0],
    );
    let value = log_double::<L>(z) - inverse.fma(d(0.5), square * series) - steps;

    let (sine, cosine) = half_turn(fraction(given));
    let reflected = value - d(std::f64::consts::PI) * cosine / sine;
    let result = L::from_double(L::Double::select(negative, reflected, value));
    let result = L::select(x.eq(L::c(f64::INFINITY)), x, result);
    let whole = !(sine.lt(d(0.0)) | d(0.0).lt(sine)) | x.lt(L::c(-8_388_608.0));
    L::select(x.is_nan() | (negative & whole), L::nan(), result)
}

/// The derivative of the digamma function.
///
/// As [`digamma`], with the squares of the inverses. Below zero by reflection, (pi / sin(pi x))^2 - trigamma(1 - x).
/// Infinite at zero and the negative whole numbers, NaN at -inf.
#[inline(always)]
pub fn trigamma<L: Lane>(x: L) -> L {
    let d = L::Double::c;
    let negative = x.lt(L::c(0.0));
    let given = x.to_double();
    let y = L::Double::select(negative, d(1.0) - given, given);
    let (z, steps) = eight_steps::<L>(y, |z| z * z);
    let inverse = d(1.0) / z;
    let square = inverse * inverse;
    let series = poly_double(
        square,
        [1.0, 1.0 / 6.0, -1.0 / 30.0, 1.0 / 42.0, -1.0 / 30.0, 5.0 / 66.0, -691.0 / 2730.0],
    );
    let value = inverse.fma(series, square * d(0.5)) + steps;

    let (sine, _) = half_turn(fraction(given));
    let ratio = d(std::f64::consts::PI) / sine;
    let result = L::from_double(L::Double::select(negative, ratio.fma(ratio, -value), value));
    let infinity = L::c(f64::INFINITY);
    let result = L::select(x.lt(L::c(-8_388_608.0)), infinity, result);
    L::select(x.is_nan() | x.eq(-infinity), L::nan(), result)
}
