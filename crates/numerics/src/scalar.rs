//! Number types. [`Real`] is what a formula may be written in: plain floats, dual numbers, or the
//! program builder that turns the same formula into CUDA text. [`Scalar`] adds what host tensors and
//! the reference implementations need: a value that can be looked at.

mod ratio;
mod special;

pub use ratio::Ratio;
pub use special::Special;

use crate::functions;
use std::fmt::Debug;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A number a formula can be written in. For `f32` every method is the operation that the numerics contract (`NUMERICS.md`)
/// defines, so the same formula has the same bits wherever it is evaluated.
pub trait Real:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self> + Neg<Output = Self>
{
    /// The constant `x`, rounded once to this type.
    fn c(x: f64) -> Self;
    /// `self * b + c` with one rounding.
    fn fma(self, b: Self, c: Self) -> Self;
    /// Magnitude.
    fn abs(self) -> Self;
    /// Square root; not a number below zero.
    fn sqrt(self) -> Self;
    /// `e^x`.
    fn exp(self) -> Self;
    /// `e^x` for `x <= 0`, the same as [`Real::exp`] there and quicker.
    fn decay(self) -> Self {
        self.exp()
    }
    /// `e^x - 1`, accurate near zero.
    fn expm1(self) -> Self;
    /// Natural logarithm.
    fn log(self) -> Self;
    /// `ln(1 + x)`, accurate near zero.
    fn log1p(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// `1 / (1 + e^-x)`.
    fn sigmoid(self) -> Self;
    /// `ln(1 + e^x)`.
    fn softplus(self) -> Self;
    /// Sine, argument in radians.
    fn sin(self) -> Self;
    /// Cosine, argument in radians.
    fn cos(self) -> Self;
    /// Error function.
    fn erf(self) -> Self;
    /// `self^b`.
    fn pow(self, b: Self) -> Self;
    /// One of the less common functions.
    fn special(self, f: Special) -> Self;
    /// The angle of the point with abscissa `x` and this ordinate, from -pi to pi.
    fn atan2(self, x: Self) -> Self;
    /// What is left after a whole number of times `b` is taken off, with the sign of this number; exact.
    fn fmod(self, b: Self) -> Self;
    /// The largest whole number that is not above; exact, the sign of zero is kept.
    fn floor(self) -> Self;
    /// The nearest whole number, halves to the even one; exact, the sign of zero is kept.
    fn round(self) -> Self;
    /// The larger of two; NaN if either is, ties give `b`.
    fn max(self, b: Self) -> Self;
    /// The smaller of two; NaN if either is, ties give `b`.
    fn min(self, b: Self) -> Self;
    /// `x` if `a > b`, else `y` (also when either is NaN). Every selection is made of this, `where_le` and `where_eq`.
    fn where_gt(a: Self, b: Self, x: Self, y: Self) -> Self;
    /// `x` if `a <= b`, else `y` (also when either is NaN).
    fn where_le(a: Self, b: Self, x: Self, y: Self) -> Self;
    /// `x` if `a == b`, else `y` (also when either is NaN).
    fn where_eq(a: Self, b: Self, x: Self, y: Self) -> Self;
}

/// A number type host tensors can hold and references can run in.
pub trait Scalar: Real + PartialOrd + Debug + Send + Sync + 'static {
    /// Name used in messages.
    const NAME: &'static str;
    /// The nearest f64.
    fn to_f64(self) -> f64;
    /// The float32 wire form (round to nearest even), or `None` if this type has none and so can
    /// live on the host only.
    fn to_f32(self) -> Option<f32>;
    /// Exact widening from float32.
    fn from_f32(x: f32) -> Self;
}

/// `x` with the sign of `by`: +0 where `by` is a zero, NaN where it is NaN.
#[doc(hidden)]
pub fn signed<R: Real>(by: R, x: R) -> R {
    let zero = R::c(0.0);
    R::where_gt(by, zero, x, R::where_gt(zero, by, -x, by.abs()))
}

/// `x`, or 1 where it is zero: for a divisor of which the quotient is not taken there.
#[doc(hidden)]
pub fn nonzero<R: Real>(x: R) -> R {
    R::where_eq(x, R::c(0.0), R::c(1.0), x)
}

/// `k[0] + k[1] t + k[2] t^2 + …`.
#[doc(hidden)]
pub fn polynomial<R: Real>(t: R, k: &[f64]) -> R {
    k.iter().rev().fold(R::c(0.0), |sum, &k| sum.fma(t, R::c(k)))
}

/// `x` if `first`, else `y`. By bits: a choice between two loads would make the compiler load under masks, at
/// half the speed.
#[inline(always)]
fn choose(first: bool, x: f32, y: f32) -> f32 {
    let mask = u32::from(first).wrapping_neg();
    f32::from_bits((x.to_bits() & mask) | (y.to_bits() & !mask))
}

impl Real for f32 {
    #[inline(always)]
    fn c(x: f64) -> f32 {
        x as f32
    }
    #[inline(always)]
    fn fma(self, b: f32, c: f32) -> f32 {
        self.mul_add(b, c)
    }
    #[inline(always)]
    fn abs(self) -> f32 {
        f32::abs(self)
    }
    #[inline(always)]
    fn sqrt(self) -> f32 {
        f32::sqrt(self)
    }
    #[inline(always)]
    fn exp(self) -> f32 {
        functions::exp(self)
    }
    #[inline(always)]
    fn decay(self) -> f32 {
        functions::decay(self)
    }
    #[inline(always)]
    fn expm1(self) -> f32 {
        functions::expm1(self)
    }
    #[inline(always)]
    fn log(self) -> f32 {
        functions::log(self)
    }
    #[inline(always)]
    fn log1p(self) -> f32 {
        functions::log1p(self)
    }
    #[inline(always)]
    fn tanh(self) -> f32 {
        functions::tanh(self)
    }
    #[inline(always)]
    fn sigmoid(self) -> f32 {
        functions::sigmoid(self)
    }
    #[inline(always)]
    fn softplus(self) -> f32 {
        functions::softplus(self)
    }
    #[inline(always)]
    fn sin(self) -> f32 {
        functions::sin(self)
    }
    #[inline(always)]
    fn cos(self) -> f32 {
        functions::cos(self)
    }
    #[inline(always)]
    fn erf(self) -> f32 {
        functions::erf(self)
    }
    #[inline(always)]
    fn pow(self, b: f32) -> f32 {
        functions::pow(self, b)
    }
    #[inline(always)]
    fn special(self, f: Special) -> f32 {
        f.single(self)
    }
    #[inline(always)]
    fn atan2(self, x: f32) -> f32 {
        functions::atan2(self, x)
    }
    #[inline(always)]
    fn fmod(self, b: f32) -> f32 {
        functions::fmod(self, b)
    }
    #[inline(always)]
    fn floor(self) -> f32 {
        f32::floor(self)
    }
    #[inline(always)]
    fn round(self) -> f32 {
        f32::round_ties_even(self)
    }
    #[inline(always)]
    fn max(self, b: f32) -> f32 {
        choose((self > b) | self.is_nan(), self, b)
    }
    #[inline(always)]
    fn min(self, b: f32) -> f32 {
        choose((b > self) | self.is_nan(), self, b)
    }
    #[inline(always)]
    fn where_gt(a: f32, b: f32, x: f32, y: f32) -> f32 {
        choose(a > b, x, y)
    }
    #[inline(always)]
    fn where_le(a: f32, b: f32, x: f32, y: f32) -> f32 {
        choose(a <= b, x, y)
    }
    #[inline(always)]
    fn where_eq(a: f32, b: f32, x: f32, y: f32) -> f32 {
        choose(a == b, x, y)
    }
}

impl Scalar for f32 {
    const NAME: &'static str = "f32";
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    fn to_f32(self) -> Option<f32> {
        Some(self)
    }
    fn from_f32(x: f32) -> f32 {
        x
    }
}

impl Real for f64 {
    fn c(x: f64) -> f64 {
        x
    }
    fn fma(self, b: f64, c: f64) -> f64 {
        self.mul_add(b, c)
    }
    fn abs(self) -> f64 {
        f64::abs(self)
    }
    fn sqrt(self) -> f64 {
        f64::sqrt(self)
    }
    fn exp(self) -> f64 {
        libm::exp(self)
    }
    fn expm1(self) -> f64 {
        libm::expm1(self)
    }
    fn log(self) -> f64 {
        libm::log(self)
    }
    fn log1p(self) -> f64 {
        libm::log1p(self)
    }
    fn tanh(self) -> f64 {
        libm::tanh(self)
    }
    fn sigmoid(self) -> f64 {
        1.0 / (1.0 + libm::exp(-self))
    }
    fn softplus(self) -> f64 {
        Real::max(self, 0.0) + libm::log1p(libm::exp(-f64::abs(self)))
    }
    fn sin(self) -> f64 {
        libm::sin(self)
    }
    fn cos(self) -> f64 {
        libm::cos(self)
    }
    fn erf(self) -> f64 {
        libm::erf(self)
    }
    fn pow(self, b: f64) -> f64 {
        libm::pow(self, b)
    }
    fn special(self, f: Special) -> f64 {
        f.double(self)
    }
    fn atan2(self, x: f64) -> f64 {
        libm::atan2(self, x)
    }
    fn fmod(self, b: f64) -> f64 {
        libm::fmod(self, b)
    }
    fn floor(self) -> f64 {
        f64::floor(self)
    }
    fn round(self) -> f64 {
        f64::round_ties_even(self)
    }
    fn max(self, b: f64) -> f64 {
        if self > b || self.is_nan() { self } else { b }
    }
    fn min(self, b: f64) -> f64 {
        if b > self || self.is_nan() { self } else { b }
    }
    fn where_gt(a: f64, b: f64, x: f64, y: f64) -> f64 {
        if a > b { x } else { y }
    }
    fn where_le(a: f64, b: f64, x: f64, y: f64) -> f64 {
        if a <= b { x } else { y }
    }
    fn where_eq(a: f64, b: f64, x: f64, y: f64) -> f64 {
        if a == b { x } else { y }
    }
}

impl Scalar for f64 {
    const NAME: &'static str = "f64";
    fn to_f64(self) -> f64 {
        self
    }
    fn to_f32(self) -> Option<f32> {
        Some(self as f32)
    }
    fn from_f32(x: f32) -> f64 {
        f64::from(x)
    }
}

/// A dual number `v + d·ε` over f64: evaluating a formula at it gives the value and the exact
/// derivative along one direction. The gradient checks of elementwise ops are made of this.
#[derive(Clone, Copy, Debug)]
pub struct Dual {
    /// The value.
    pub v: f64,
    /// The derivative.
    pub d: f64,
}

impl Dual {
    fn chain(v: f64, slope: f64, d: f64) -> Dual {
        // A zero tangent stays zero even where the slope is infinite.
        Dual { v, d: if d == 0.0 { 0.0 } else { slope * d } }
    }
}

impl PartialEq for Dual {
    fn eq(&self, other: &Dual) -> bool {
        self.v == other.v
    }
}

impl PartialOrd for Dual {
    fn partial_cmp(&self, other: &Dual) -> Option<std::cmp::Ordering> {
        self.v.partial_cmp(&other.v)
    }
}

impl Add for Dual {
    type Output = Dual;
    fn add(self, b: Dual) -> Dual {
        Dual { v: self.v + b.v, d: self.d + b.d }
    }
}

impl Sub for Dual {
    type Output = Dual;
    fn sub(self, b: Dual) -> Dual {
        Dual { v: self.v - b.v, d: self.d - b.d }
    }
}

impl Mul for Dual {
    type Output = Dual;
    fn mul(self, b: Dual) -> Dual {
        Dual { v: self.v * b.v, d: self.d * b.v + self.v * b.d }
    }
}

impl Div for Dual {
    type Output = Dual;
    fn div(self, b: Dual) -> Dual {
        let v = self.v / b.v;
        Dual { v, d: (self.d - v * b.d) / b.v }
    }
}

impl Neg for Dual {
    type Output = Dual;
    fn neg(self) -> Dual {
        Dual { v: -self.v, d: -self.d }
    }
}

impl Real for Dual {
    fn c(x: f64) -> Dual {
        Dual { v: x, d: 0.0 }
    }
    fn fma(self, b: Dual, c: Dual) -> Dual {
        self * b + c
    }
    fn abs(self) -> Dual {
        Dual::chain(self.v.abs(), signed(self.v, 1.0), self.d)
    }
    fn sqrt(self) -> Dual {
        let v = self.v.sqrt();
        Dual::chain(v, 0.5 / v, self.d)
    }
    fn exp(self) -> Dual {
        let v = Real::exp(self.v);
        Dual::chain(v, v, self.d)
    }
    fn expm1(self) -> Dual {
        Dual::chain(Real::expm1(self.v), Real::exp(self.v), self.d)
    }
    fn log(self) -> Dual {
        Dual::chain(Real::log(self.v), 1.0 / self.v, self.d)
    }
    fn log1p(self) -> Dual {
        Dual::chain(Real::log1p(self.v), 1.0 / (1.0 + self.v), self.d)
    }
    fn tanh(self) -> Dual {
        let v = Real::tanh(self.v);
        Dual::chain(v, 1.0 - v * v, self.d)
    }
    fn sigmoid(self) -> Dual {
        let v = self.v.sigmoid();
        Dual::chain(v, v * (1.0 - v), self.d)
    }
    fn softplus(self) -> Dual {
        Dual::chain(self.v.softplus(), self.v.sigmoid(), self.d)
    }
    fn sin(self) -> Dual {
        Dual::chain(Real::sin(self.v), Real::cos(self.v), self.d)
    }
    fn cos(self) -> Dual {
        Dual::chain(Real::cos(self.v), -Real::sin(self.v), self.d)
    }
    fn erf(self) -> Dual {
        let slope = std::f64::consts::FRAC_2_SQRT_PI * Real::exp(-self.v * self.v);
        Dual::chain(Real::erf(self.v), slope, self.d)
    }
    fn pow(self, b: Dual) -> Dual {
        let v = Real::pow(self.v, b.v);
        let by_base = Dual::chain(v, b.v * Real::pow(self.v, b.v - 1.0), self.d);
        let by_exponent = Dual::chain(v, v * Real::log(self.v), b.d);
        Dual { v, d: by_base.d + by_exponent.d }
    }
    fn special(self, f: Special) -> Dual {
        let v = f.double(self.v);
        Dual::chain(v, f.slope(self.v, v), self.d)
    }
    fn atan2(self, x: Dual) -> Dual {
        let v = Real::atan2(self.v, x.v);
        let square = self.v * self.v + x.v * x.v;
        Dual { v, d: (x.v * self.d - self.v * x.d) / square }
    }
    fn fmod(self, b: Dual) -> Dual {
        let v = Real::fmod(self.v, b.v);
        let times = ((self.v - v) / b.v).round();
        Dual { v, d: self.d - if b.d == 0.0 { 0.0 } else { times * b.d } }
    }
    fn max(self, b: Dual) -> Dual {
        if self.v > b.v || self.v.is_nan() { self } else { b }
    }
    fn min(self, b: Dual) -> Dual {
        if b.v > self.v || self.v.is_nan() { self } else { b }
    }
    fn floor(self) -> Dual {
        Dual::c(Real::floor(self.v))
    }
    fn round(self) -> Dual {
        Dual::c(Real::round(self.v))
    }
    fn where_gt(a: Dual, b: Dual, x: Dual, y: Dual) -> Dual {
        if a.v > b.v { x } else { y }
    }
    fn where_le(a: Dual, b: Dual, x: Dual, y: Dual) -> Dual {
        if a.v <= b.v { x } else { y }
    }
    fn where_eq(a: Dual, b: Dual, x: Dual, y: Dual) -> Dual {
        if a.v == b.v { x } else { y }
    }
}

impl Scalar for Dual {
    const NAME: &'static str = "dual";
    fn to_f64(self) -> f64 {
        self.v
    }
    fn to_f32(self) -> Option<f32> {
        None
    }
    fn from_f32(x: f32) -> Dual {
        Dual::c(f64::from(x))
    }
}
