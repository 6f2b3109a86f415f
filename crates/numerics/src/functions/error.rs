//! What belongs to the error function, computed in binary64 and rounded once.

use super::double::{exp_double, log_double};
use super::{poly_double, with_sign_of};
use crate::lane::{Lane, LaneDouble};

/// e^(a^2) erfc(a) for a >= 0: a polynomial of degree 16 in (a - 3.75) / (a + 3.75), over 1 + 2 a. Relative
/// error 2^-38.
#[inline(always)]
fn scaled<D: LaneDouble>(a: D) -> D {
    let u = (a - D::c(3.75)) / (a + D::c(3.75));
    let p = poly_double(
        u,
        [
            1.2375126308378275,
            -0.14024059858768265,
            0.003585415521929792,
            0.08227673858989491,
            -0.10880393189758943,
            0.092304319858493,
            -0.05869337381998894,
            0.02836228455237003,
            -0.00974673732610103,
            0.0017556078844614806,
            0.00029425092340958905,
            -0.00029013884841145633,
            5.0597038817391044e-05,
            2.240578686622266e-05,
            -1.023941194177756e-05,
            -1.0356884912594671e-06,
            9.716832594870286e-07,
        ],
    );
    p / (a + a + D::c(1.0))
}

/// The magnitude, if need be the largest float, and the scaled complement there.
#[inline(always)]
fn complement<L: Lane>(x: L) -> (L::Double, L::Double) {
    let a = x.abs();
    let a = L::select(a.eq(L::c(f64::INFINITY)), L::c(f64::from(f32::MAX)), a).to_double();
    (a, scaled(a))
}

/// 1 - erf(x), accurate in its tail.
///
/// e^(-x^2) times a polynomial of degree 16 in (x - 3.75) / (x + 3.75); 2 minus that below zero. Subnormal from 9.195 on, 0
/// from 10.06 on.
#[inline(always)]
pub fn erfc<L: Lane>(x: L) -> L {
    let (a, tail) = complement(x);
    let tail = tail * exp_double::<L>(-(a * a));
    let value = L::Double::select(x.lt(L::c(0.0)), L::Double::c(2.0) - tail, tail);
    L::select(x.is_nan(), L::nan(), L::from_double(value))
}

/// e^(x^2) erfc(x): as [`erfc`], without the power; below zero 2 e^(x^2) minus that. 0 at inf.
#[inline(always)]
pub fn erfcx<L: Lane>(x: L) -> L {
    let (a, tail) = complement(x);
    let below = exp_double::<L>(a * a) * L::Double::c(2.0) - tail;
    let value = L::from_double(L::Double::select(x.lt(L::c(0.0)), below, tail));
    let value = L::select(x.eq(L::c(f64::INFINITY)), L::c(0.0), value);
    L::select(x.is_nan(), L::nan(), value)
}

/// The inverse of the error function at x from 0 to 1, from `rest` = 1 - x^2. With w = -ln(rest) it is x P(w) up to 5,
/// and s Q(1 / s) with s = sqrt(w) up to 105, each of degree 13. Relative error 2^-31.
#[inline(always)]
fn inverse<L: Lane>(x: L::Double, rest: L::Double) -> L::Double {
    let w = -log_double::<L>(rest);
    let near = poly_double(
        w,
        [
            0.8862269254299585,
            0.23201366832195222,
            0.011549318815950546,
            -0.0023349828964549218,
            -0.00012835961684457955,
            4.71145899006261e-05,
            1.504585285611157e-06,
            -6.581256918877657e-07,
            -2.036414463455561e-07,
            7.554138914191753e-08,
            -9.931460566584727e-09,
            6.07861014106099e-10,
            -1.14312762069226e-11,
            -2.7960410484332195e-13,
        ],
    );
    let s = w.sqrt();
    let far = poly_double(
        L::Double::c(1.0) / s,
        [
            1.0000329864221895,
            -0.010480549240562917,
            -1.6852546780997837,
            12.301594827836553,
            -94.12274358018833,
            643.4819469073526,
            -3464.991296840923,
            14219.291691715922,
            -43664.90227173691,
            98156.62618636308,
            -156131.63099376488,
            165869.5794577431,
            -105318.21482352153,
            30174.48777349557,
        ],
    );
    L::Double::select(w.lt(L::Double::c(5.0)), x * near, s * far)
}

/// The inverse of the error function.
///
/// x P(w) or sqrt(w) Q(1 / sqrt(w)) of w = -ln(1 - x^2), which is formed in binary64. Odd bit for bit, keeps the sign of
/// zero; infinite at 1 and -1, NaN beyond.
#[inline(always)]
pub fn erfinv<L: Lane>(x: L) -> L {
    let (one, a) = (L::Double::c(1.0), x.abs());
    let d = a.to_double();
    let result = L::from_double(inverse::<L>(d, (one - d) * (one + d)));
    let result = L::select(a.eq(L::c(1.0)), L::c(f64::INFINITY), result);
    L::select(a.le(L::c(1.0)), with_sign_of(result, x), L::nan())
}

/// The inverse of the normal distribution function: -sqrt(2) erfinv(1 - 2 p), with p itself in 1 - x^2 = 4 p (1 - p), so
/// that small probabilities are as accurate as others. -inf at 0, inf at 1, NaN outside.
#[inline(always)]
pub fn ndtri<L: Lane>(p: L) -> L {
    let (one, given) = (L::Double::c(1.0), p.to_double());
    let upper = p.gt(L::c(0.5));
    let q = L::Double::select(upper, one - given, given);
    let x = one - (q + q);
    let magnitude = L::from_double(
        inverse::<L>(x, q * (one - q) * L::Double::c(4.0)) * L::Double::c(std::f64::consts::SQRT_2),
    );
    let ends = p.eq(L::c(0.0)) | p.eq(L::c(1.0));
    let magnitude = L::select(ends, L::c(f64::INFINITY), magnitude);
    let result = L::select(upper, magnitude, -magnitude);
    L::select(p.ge(L::c(0.0)) & p.le(L::c(1.0)), result, L::nan())
}
