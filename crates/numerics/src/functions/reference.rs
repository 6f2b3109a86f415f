//! The less common functions in f64, from their definitions. They are what errors are measured against.

pub(crate) use libm::{cosh, erfc, exp2, lgamma, log2, log10, sinh};
use std::f64::consts::{FRAC_2_SQRT_PI, PI, SQRT_2};

pub(crate) fn erfcx(x: f64) -> f64 {
    if x < 20.0 {
        // e^(x^2), with what x^2 rounds off.
        let square = x * x;
        let lost = if square.is_finite() { x.mul_add(x, -square) } else { 0.0 };
        return libm::exp(square) * (1.0 + lost) * erfc(x);
    }
    // The continued fraction x + (1/2) / (x + (2/2) / (x + …)).
    let rest = (1..=30).rev().fold(x, |below, k| x + 0.5 * f64::from(k) / below);
    FRAC_2_SQRT_PI * 0.5 / rest
}

/// The root of `erfc(y) = q` for q from 0 to 1, by Newton steps on the logarithm of both sides.
fn erfc_inverse(q: f64) -> f64 {
    let w = -libm::log(q);
    let mut y =
        if w > 1.0 { (w - 0.5 * libm::log(PI * w)).max(0.1).sqrt() } else { (1.0 - q) / FRAC_2_SQRT_PI };
    for _ in 0..40 {
        let scaled = erfcx(y);
        // ln erfc(y) = ln erfcx(y) - y^2, its slope -(2/sqrt(pi)) / erfcx(y)
        let step = (libm::log(scaled) - y * y + w) * scaled / FRAC_2_SQRT_PI;
        y += step;
        if step.abs() <= 1e-16 * y.abs() {
            break;
        }
    }
    y
}

pub(crate) fn erfinv(x: f64) -> f64 {
    let a = x.abs();
    if a.is_nan() || a >= 1.0 {
        return if a == 1.0 { f64::INFINITY.copysign(x) } else { f64::NAN };
    }
    let mut y = if a < 0.5 { a / FRAC_2_SQRT_PI } else { return erfc_inverse(1.0 - a).copysign(x) };
    for _ in 0..40 {
        let step = (libm::erf(y) - a) * libm::exp(y * y) / FRAC_2_SQRT_PI;
        y -= step;
        if step.abs() <= 1e-16 * y {
            break;
        }
    }
    y.copysign(x)
}

pub(crate) fn ndtri(p: f64) -> f64 {
    match p {
        _ if !(0.0..=1.0).contains(&p) => f64::NAN,
        0.0 => f64::NEG_INFINITY,
        1.0 => f64::INFINITY,
        _ if (0.25..=0.75).contains(&p) => SQRT_2 * erfinv(2.0 * p - 1.0),
        _ if p < 0.5 => -SQRT_2 * erfc_inverse(2.0 * p),
        _ => SQRT_2 * erfc_inverse(2.0 * (1.0 - p)),
    }
}

pub(crate) fn digamma(x: f64) -> f64 {
    if x == 0.0 {
        return -1.0 / x;
    }
    if x < 0.0 {
        let left = x - x.round_ties_even();
        return if left == 0.0 { f64::NAN } else { digamma(1.0 - x) - PI / libm::tan(PI * left) };
    }
    let (mut z, mut steps) = (x, 0.0);
    while z < 16.0 {
        steps += 1.0 / z;
        z += 1.0;
    }
    if z == f64::INFINITY {
        return z;
    }
    let square = 1.0 / (z * z);
    let series =
        [1.0 / 12.0, -1.0 / 120.0, 1.0 / 252.0, -1.0 / 240.0, 1.0 / 132.0, -691.0 / 32760.0, 1.0 / 12.0];
    let tail = series.iter().rev().fold(0.0, |sum, k| sum * square + k);
    libm::log(z) - 0.5 / z - square * tail - steps
}

pub(crate) fn trigamma(x: f64) -> f64 {
    if x < 0.0 {
        let ratio = PI / libm::sin(PI * (x - x.round_ties_even()));
        return ratio * ratio - trigamma(1.0 - x);
    }
    let (mut z, mut steps) = (x, 0.0);
    while z < 16.0 {
        steps += 1.0 / (z * z);
        z += 1.0;
    }
    let square = 1.0 / (z * z);
    let series =
        [1.0, 1.0 / 6.0, -1.0 / 30.0, 1.0 / 42.0, -1.0 / 30.0, 5.0 / 66.0, -691.0 / 2730.0, 7.0 / 6.0];
    series.iter().rev().fold(0.0, |sum, k| sum * square + k) / z + 0.5 * square + steps
}

/// The Bessel function of x >= 0 times e^-x: its power series, and from 50 on its asymptotic one.
fn bessel(order: u32, x: f64) -> f64 {
    let mut sum = 0.0;
    if x < 50.0 {
        let quarter = x * x / 4.0;
        let mut term = if order == 0 { 1.0 } else { x / 2.0 };
        let mut k = 1.0;
        while term > 1e-18 * sum {
            sum += term;
            term *= quarter / (k * (k + f64::from(order)));
            k += 1.0;
        }
        return sum * libm::exp(-x);
    }
    let mu = 4.0 * f64::from(order * order);
    let mut term = 1.0;
    for k in 1..30 {
        sum += term;
        let odd = f64::from(2 * k - 1);
        term *= -(mu - odd * odd) / (8.0 * x * f64::from(k));
    }
    sum / (2.0 * PI * x).sqrt()
}

pub(crate) fn i0e(x: f64) -> f64 {
    if x.is_nan() { x } else { bessel(0, x.abs()) }
}

pub(crate) fn i1e(x: f64) -> f64 {
    if x.is_nan() { x } else { bessel(1, x.abs()).copysign(x) }
}

pub(crate) fn i0(x: f64) -> f64 {
    unscaled(i0e(x), x)
}

pub(crate) fn i1(x: f64) -> f64 {
    unscaled(i1e(x), x)
}

fn unscaled(value: f64, x: f64) -> f64 {
    if x.abs() > 1000.0 { value.signum() * f64::INFINITY } else { value * libm::exp(x.abs()) }
}
