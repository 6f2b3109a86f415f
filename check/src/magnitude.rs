//! [`Magnitude`]: a number with a bound on its rounding errors, in units of one rounding.
//!
//! Evaluating a reference with it gives the value in f64 and a first-order bound on what float32 roundings can do to
//! that value: if no path through the formula has more than `n` roundings, the error is at most `n * 2^-24 * m`. This
//! is Higham's running error analysis with the count factored out. Tolerances come from the formula and the number of
//! roundings; nothing is tuned.

use dittograd_numerics::scalar::{Real, Scalar, Special};
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A value and the size that its errors scale with.
///
/// `m` is 0 for a number that float32 holds exactly. An operation that rounds has `m >= |v|` (its own rounding) and
/// `m >=` the errors of its arguments times its slopes. A sum has the sum of its arguments' sizes, because kernels may
/// add in another order, whose partial sums can be as large as that. The sum of two exact numbers is one rounding of
/// the result, so a reference must start its sums from zero. Second-order terms are left out, and so are comparisons of
/// inexact numbers that go the other way: references compare inputs only.
#[derive(Clone, Copy, Debug)]
pub struct Magnitude {
    /// The value.
    pub v: f64,
    /// The error that one relative rounding can cause in the value.
    pub m: f64,
}

impl Magnitude {
    /// A number float32 holds exactly.
    pub fn exact(v: f64) -> Magnitude {
        Magnitude { v, m: 0.0 }
    }

    /// A rounded result with errors carried over from its arguments. Below the smallest normal number a rounding error
    /// no longer shrinks with the value.
    fn rounded(v: f64, carried: f64) -> Magnitude {
        Magnitude { v, m: v.abs().max(carried).max(f64::from(f32::MIN_POSITIVE)) }
    }

    /// The result of a function with the given slope.
    fn through(self, v: f64, slope: f64) -> Magnitude {
        Magnitude::rounded(v, carried(slope, self.m))
    }

    fn size(self) -> f64 {
        self.m.max(self.v.abs())
    }

    fn is_exact(self) -> bool {
        self.m == 0.0
    }

    fn sum(self, b: Magnitude, v: f64) -> Magnitude {
        let carried = if self.is_exact() && b.is_exact() { 0.0 } else { self.size() + b.size() };
        Magnitude::rounded(v, carried)
    }
}

/// An error times a slope. Without an error there is none, even if the slope is infinite.
fn carried(slope: f64, m: f64) -> f64 {
    if m == 0.0 { 0.0 } else { (slope * m).abs() }
}

impl PartialEq for Magnitude {
    fn eq(&self, other: &Magnitude) -> bool {
        self.v == other.v
    }
}

impl PartialOrd for Magnitude {
    fn partial_cmp(&self, other: &Magnitude) -> Option<std::cmp::Ordering> {
        self.v.partial_cmp(&other.v)
    }
}

impl Add for Magnitude {
    type Output = Magnitude;
    fn add(self, b: Magnitude) -> Magnitude {
        self.sum(b, self.v + b.v)
    }
}

impl Sub for Magnitude {
    type Output = Magnitude;
    fn sub(self, b: Magnitude) -> Magnitude {
        self.sum(b, self.v - b.v)
    }
}

impl Mul for Magnitude {
    type Output = Magnitude;
    fn mul(self, b: Magnitude) -> Magnitude {
        Magnitude::rounded(self.v * b.v, carried(b.v, self.m) + carried(self.v, b.m))
    }
}

impl Div for Magnitude {
    type Output = Magnitude;
    fn div(self, b: Magnitude) -> Magnitude {
        let v = self.v / b.v;
        Magnitude::rounded(v, carried(1.0 / b.v, self.m) + carried(v / b.v, b.m))
    }
}

impl Neg for Magnitude {
    type Output = Magnitude;
    fn neg(self) -> Magnitude {
        Magnitude { v: -self.v, m: self.m }
    }
}

impl Real for Magnitude {
    fn c(x: f64) -> Magnitude {
        // Constants are rounded once to float32.
        let exact = x.is_nan() || f64::from(x as f32) == x;
        Magnitude { v: x, m: if exact { 0.0 } else { x.abs() } }
    }
    fn fma(self, b: Magnitude, c: Magnitude) -> Magnitude {
        let v = Real::fma(self.v, b.v, c.v);
        if self.is_exact() && b.is_exact() && c.is_exact() {
            return Magnitude::rounded(v, 0.0);
        }
        Magnitude::rounded(v, (self * b).size() + c.size())
    }
    fn abs(self) -> Magnitude {
        Magnitude { v: self.v.abs(), m: self.m }
    }
    fn sqrt(self) -> Magnitude {
        let v = Real::sqrt(self.v);
        self.through(v, 0.5 / v)
    }
    fn exp(self) -> Magnitude {
        let v = Real::exp(self.v);
        self.through(v, v)
    }
    fn expm1(self) -> Magnitude {
        self.through(Real::expm1(self.v), Real::exp(self.v))
    }
    fn log(self) -> Magnitude {
        self.through(Real::log(self.v), 1.0 / self.v)
    }
    fn log1p(self) -> Magnitude {
        self.through(Real::log1p(self.v), 1.0 / (1.0 + self.v))
    }
    fn tanh(self) -> Magnitude {
        let v = Real::tanh(self.v);
        self.through(v, 1.0 - v * v)
    }
    fn sigmoid(self) -> Magnitude {
        let v = Real::sigmoid(self.v);
        self.through(v, v * (1.0 - v))
    }
    fn softplus(self) -> Magnitude {
        self.through(Real::softplus(self.v), Real::sigmoid(self.v))
    }
    fn sin(self) -> Magnitude {
        self.through(Real::sin(self.v), Real::cos(self.v))
    }
    fn cos(self) -> Magnitude {
        self.through(Real::cos(self.v), Real::sin(self.v))
    }
    fn erf(self) -> Magnitude {
        let slope = std::f64::consts::FRAC_2_SQRT_PI * Real::exp(-self.v * self.v);
        self.through(Real::erf(self.v), slope)
    }
    fn pow(self, b: Magnitude) -> Magnitude {
        let v = Real::pow(self.v, b.v);
        Magnitude::rounded(v, carried(b.v * v / self.v, self.m) + carried(v * Real::log(self.v), b.m))
    }
    fn special(self, f: Special) -> Magnitude {
        let v = f.double(self.v);
        self.through(v, f.slope(self.v, v))
    }
    fn atan2(self, x: Magnitude) -> Magnitude {
        let square = self.v * self.v + x.v * x.v;
        Magnitude::rounded(
            Real::atan2(self.v, x.v),
            carried(x.v / square, self.m) + carried(self.v / square, x.m),
        )
    }
    fn fmod(self, b: Magnitude) -> Magnitude {
        let v = Real::fmod(self.v, b.v);
        Magnitude::rounded(v, self.m + carried((self.v - v) / b.v, b.m))
    }
    fn max(self, b: Magnitude) -> Magnitude {
        Magnitude { v: Real::max(self.v, b.v), m: self.m.max(b.m) }
    }
    fn min(self, b: Magnitude) -> Magnitude {
        Magnitude { v: Real::min(self.v, b.v), m: self.m.max(b.m) }
    }
    fn floor(self) -> Magnitude {
        Magnitude { v: Real::floor(self.v), m: self.m }
    }
    fn round(self) -> Magnitude {
        Magnitude { v: Real::round(self.v), m: self.m }
    }
    fn where_gt(a: Magnitude, b: Magnitude, x: Magnitude, y: Magnitude) -> Magnitude {
        if a.v > b.v { x } else { y }
    }
    fn where_le(a: Magnitude, b: Magnitude, x: Magnitude, y: Magnitude) -> Magnitude {
        if a.v <= b.v { x } else { y }
    }
    fn where_eq(a: Magnitude, b: Magnitude, x: Magnitude, y: Magnitude) -> Magnitude {
        if a.v == b.v { x } else { y }
    }
}

impl Scalar for Magnitude {
    const NAME: &'static str = "magnitude";
    fn to_f64(self) -> f64 {
        self.v
    }
    fn to_f32(self) -> Option<f32> {
        None
    }
    fn from_f32(x: f32) -> Magnitude {
        Magnitude::exact(f64::from(x))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_numbers_have_no_error_and_sums_have_all_of_it() {
        let x = |v: f32| Magnitude::from_f32(v);
        assert_eq!((-x(3.0)).m, 0.0);
        assert_eq!((x(3.0) + x(-2.0)).m, 1.0);
        let sum = [1e6f32, -1e6, 1.0].iter().fold(Magnitude::c(0.0), |s, &v| s + x(v));
        assert_eq!((sum.v, sum.m), (1.0, 2_000_001.0));
        assert_eq!(Magnitude::c(0.5).m, 0.0);
        assert_eq!(Magnitude::c(0.1).m, 0.1);
    }

    #[test]
    fn slopes_carry_errors() {
        let inexact = Magnitude { v: 2.0, m: 5.0 };
        assert_eq!((inexact * Magnitude::exact(3.0)).m, 15.0);
        assert_eq!((Magnitude::exact(1.0) / inexact).m, 1.25);
        assert_eq!(Real::exp(inexact).m, 5.0 * Real::exp(2.0f64));
        // A saturated function absorbs errors.
        assert_eq!(Real::tanh(Magnitude { v: 100.0, m: 1e3 }).m, 1.0);
    }
}
