//! Elementwise methods that are formulas of others. Each is one op, and fuses with its neighbours in compiled programs.

use super::Var;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::{Real, Special};
use dittograd_numerics::shape::Position;
use dittograd_ops::pointwise::expression::{Expr, truncated};
use std::f64::consts::{FRAC_1_SQRT_2, LN_2, PI};

/// 1 where `a > b`, else 0.
fn greater(a: Expr, b: Expr) -> Expr {
    Expr::where_gt(a, b, Expr::c(1.0), Expr::c(0.0))
}

/// 1 where an element counts as true: it is not 0. A NaN does.
fn truth(x: Expr) -> Expr {
    Expr::where_eq(x, Expr::c(0.0), Expr::c(0.0), Expr::c(1.0))
}

/// # Formulas of elements
///
/// Truth values are 0 and 1. Every number but 0 counts as true, also NaN.
impl<'s> Var<'s> {
    /// A formula of this value.
    #[track_caller]
    fn formula(self, f: impl FnOnce(Expr) -> Expr) -> Result<Var<'s>> {
        self.session().pointwise(&[self], |v| f(v[0]))
    }

    /// A formula of this value and another, which broadcast by NumPy's rule.
    #[track_caller]
    fn formula2(self, other: Var<'s>, f: impl FnOnce(Expr, Expr) -> Expr) -> Result<Var<'s>> {
        self.session().pointwise(&[self, other], |v| f(v[0], v[1]))
    }

    /// The part behind the point, `x - trunc(x)`.
    #[track_caller]
    pub fn frac(self) -> Result<Var<'s>> {
        self.formula(|x| x - truncated(x))
    }

    /// The quotient rounded down, as Python's `//`. Division by zero is that of [`Var::div`]. No gradient.
    #[track_caller]
    pub fn floor_divide(self, other: Var<'s>) -> Result<Var<'s>> {
        let left = self.remainder(other)?;
        let quotient = self.session().pointwise(&[self, other, left], |v| {
            let (a, b, left, zero) = (v[0], v[1], v[2], Expr::c(0.0));
            let quotient = ((a - left) / b).round();
            // A zero has the sign of the quotient.
            let quotient = Expr::where_eq(quotient, zero, a / b * zero, quotient);
            // What is left is the divisor if `a` is nothing beside it, and has the other sign.
            Expr::where_eq(b, zero, a / b, Expr::where_eq(left, b, Expr::c(-1.0), quotient))
        })?;
        quotient.detach()
    }

    /// `log2(2^a + 2^b)`, without overflow.
    #[track_caller]
    pub fn logaddexp2(self, other: Var<'s>) -> Result<Var<'s>> {
        self.formula2(other, |a, b| {
            // Infinities of one sign have no difference.
            let apart = Expr::where_eq(a, b, Expr::c(0.0), a - b).abs();
            a.max(b) + (-(apart * Expr::c(LN_2))).softplus() * Expr::c(1.0 / LN_2)
        })
    }

    /// 0 where an element is negative, 1 where it is positive, `values` where it is zero. No gradient for this value.
    #[track_caller]
    pub fn heaviside(self, values: Var<'s>) -> Result<Var<'s>> {
        self.formula2(values, |x, at_zero| {
            let zero = Expr::c(0.0);
            Expr::where_eq(x, zero, at_zero, greater(x, zero))
        })
    }

    /// Other numbers for NaN and the infinities: `nan`, and for these `posinf` and `neginf`, or if they are `None` the
    /// largest and the smallest float32. PyTorch's default for `nan` is 0.
    #[track_caller]
    pub fn nan_to_num(self, nan: f64, posinf: Option<f64>, neginf: Option<f64>) -> Result<Var<'s>> {
        let largest = f64::from(f32::MAX);
        let (high, low) = (posinf.unwrap_or(largest), neginf.unwrap_or(-largest));
        self.formula(|x| {
            let x = Expr::where_eq(x, x, x, Expr::c(nan));
            let x = Expr::where_eq(x, Expr::c(f64::INFINITY), Expr::c(high), x);
            Expr::where_eq(x, Expr::c(f64::NEG_INFINITY), Expr::c(low), x)
        })
    }

    /// 1 where an element is infinite, else 0.
    #[track_caller]
    pub fn isinf(self) -> Result<Var<'s>> {
        self.formula(|x| Expr::where_eq(x.abs(), Expr::c(f64::INFINITY), Expr::c(1.0), Expr::c(0.0)))
    }

    /// 1 where an element is a finite number, else 0.
    #[track_caller]
    pub fn isfinite(self) -> Result<Var<'s>> {
        self.formula(|x| greater(Expr::c(f64::INFINITY), x.abs()))
    }

    /// 1 where an element is `inf`, else 0.
    #[track_caller]
    pub fn isposinf(self) -> Result<Var<'s>> {
        self.formula(|x| Expr::where_eq(x, Expr::c(f64::INFINITY), Expr::c(1.0), Expr::c(0.0)))
    }

    /// 1 where an element is `-inf`, else 0.
    #[track_caller]
    pub fn isneginf(self) -> Result<Var<'s>> {
        self.formula(|x| Expr::where_eq(x, Expr::c(f64::NEG_INFINITY), Expr::c(1.0), Expr::c(0.0)))
    }

    /// 1 where an element is negative or -0, else 0; 0 for NaN of either sign.
    #[track_caller]
    pub fn signbit(self) -> Result<Var<'s>> {
        // 1 / -0 is -inf.
        self.formula(|x| greater(Expr::c(0.0), Expr::where_eq(x, Expr::c(0.0), Expr::c(1.0) / x, x)))
    }

    /// 1 where both elements are true, else 0.
    #[track_caller]
    pub fn logical_and(self, other: Var<'s>) -> Result<Var<'s>> {
        self.formula2(other, |a, b| truth(a) * truth(b))
    }

    /// 1 where one element or both are true, else 0.
    #[track_caller]
    pub fn logical_or(self, other: Var<'s>) -> Result<Var<'s>> {
        self.formula2(other, |a, b| truth(a).max(truth(b)))
    }

    /// 1 where exactly one of the elements is true, else 0.
    #[track_caller]
    pub fn logical_xor(self, other: Var<'s>) -> Result<Var<'s>> {
        self.formula2(other, |a, b| (truth(a) - truth(b)).abs())
    }

    /// 1 where an element is 0, else 0.
    #[track_caller]
    pub fn logical_not(self) -> Result<Var<'s>> {
        self.formula(|x| Expr::where_eq(x, Expr::c(0.0), Expr::c(1.0), Expr::c(0.0)))
    }

    /// The inverse of [`Var::sigmoid`], `ln(x / (1 - x))`. With `eps`, `x` is first held between `eps` and `1 - eps`.
    #[track_caller]
    pub fn logit(self, eps: Option<f64>) -> Result<Var<'s>> {
        let Some(eps) = eps else { return self.log_odds() };
        let held = self.formula(|x| {
            let (low, high) = (Expr::c(eps), Expr::c(1.0 - eps));
            Expr::where_gt(low, x, low, Expr::where_gt(x, high, high, x))
        })?;
        held.log_odds()
    }

    /// The value itself.
    #[track_caller]
    pub fn positive(self) -> Result<Var<'s>> {
        Ok(self)
    }

    /// `other - alpha x`.
    #[track_caller]
    pub fn rsub(self, alpha: f64, other: Var<'s>) -> Result<Var<'s>> {
        other.axpy(-alpha, self)
    }

    /// Degrees as radians.
    #[track_caller]
    pub fn deg2rad(self) -> Result<Var<'s>> {
        self.scale(PI / 180.0)
    }

    /// Radians as degrees.
    #[track_caller]
    pub fn rad2deg(self) -> Result<Var<'s>> {
        self.scale(180.0 / PI)
    }

    /// The angle of real numbers: π where they are below 0, else 0. NaN stays. No gradient.
    #[track_caller]
    pub fn angle(self) -> Result<Var<'s>> {
        let angle = self.formula(|x| {
            let zero = Expr::c(0.0);
            Expr::where_eq(x, x, Expr::where_gt(zero, x, Expr::c(PI), zero), x)
        })?;
        angle.detach()
    }

    /// [`Var::round`] to a number of decimals, or if it is negative to that power of ten: `round(10^n x) / 10^n`.
    #[doc(alias = "round")]
    #[track_caller]
    pub fn round_to(self, decimals: i32) -> Result<Var<'s>> {
        let power = 10f64.powi(decimals.saturating_abs());
        let by = self.session().scalar(power)?;
        match decimals {
            0 => self.round(),
            1.. => self.scale(power)?.round()?.div(by),
            ..0 => self.div(by)?.round()?.scale(power),
        }
    }

    /// `x 2^n`.
    #[track_caller]
    pub fn ldexp(self, n: Var<'s>) -> Result<Var<'s>> {
        self.formula2(n, |x, n| x * n.special(Special::Exp2))
    }

    /// Mantissas, of a magnitude from 0.5 up to 1, and exponents of base 2, which have no gradient: `x` is `mantissa 2^exponent`. Zeros,
    /// infinities and NaN are their own mantissas, with exponent 0.
    #[track_caller]
    pub fn frexp(self) -> Result<(Var<'s>, Var<'s>)> {
        // 2^-e in two factors, as it might not be a number.
        let scaled = |x: Expr, e: Expr| {
            let half = (e * Expr::c(0.5)).floor();
            x * (-half).special(Special::Exp2) * (half - e).special(Special::Exp2)
        };
        let exponent = self.formula(|x| {
            let (zero, one, size) = (Expr::c(0.0), Expr::c(1.0), x.abs());
            let e = size.special(Special::Log2).floor() + one;
            // The logarithm may have been rounded to the next whole number.
            let m = scaled(size, e);
            let e = e + Expr::where_le(one, m, one, Expr::where_gt(Expr::c(0.5), m, -one, zero));
            Expr::where_gt(size, zero, Expr::where_gt(Expr::c(f64::INFINITY), size, e, zero), zero)
        })?;
        let exponent = exponent.detach()?;
        Ok((self.formula2(exponent, scaled)?, exponent))
    }

    /// The normal distribution function, `erfc(-x / sqrt 2) / 2`. Its inverse is [`Var::ndtri`].
    #[track_caller]
    pub fn ndtr(self) -> Result<Var<'s>> {
        self.formula(|x| (x * Expr::c(-FRAC_1_SQRT_2)).special(Special::Erfc) * Expr::c(0.5))
    }

    /// The logarithm of [`Var::ndtr`], also where that is 0 in float32.
    #[track_caller]
    pub fn log_ndtr(self) -> Result<Var<'s>> {
        self.formula(|x| {
            let (edge, half) = (Expr::c(-1.0), Expr::c(0.5));
            // Each branch gets an argument of its own, so that the other one's gradient stays finite.
            let low = Expr::where_gt(x, edge, edge, x);
            let high = Expr::where_gt(x, edge, x, edge);
            let scaled = (low * Expr::c(-FRAC_1_SQRT_2)).special(Special::Erfcx);
            let tail = (scaled * half).log() - low * low * half;
            let upper = (high * Expr::c(FRAC_1_SQRT_2)).special(Special::Erfc);
            Expr::where_gt(x, edge, (-(upper * half)).log1p(), tail)
        })
    }

    /// This value held above `lo`: `lo` where it is smaller. The slope at `lo` is zero, as in [`Var::clamp`].
    #[track_caller]
    pub fn clamp_min(self, lo: f64) -> Result<Var<'s>> {
        self.formula(|x| Expr::where_le(x, Expr::c(lo), Expr::c(lo), x))
    }

    /// This value held below `hi`: `hi` where it is larger. The slope at `hi` is zero, as in [`Var::clamp`].
    #[track_caller]
    pub fn clamp_max(self, hi: f64) -> Result<Var<'s>> {
        self.formula(|x| Expr::where_le(Expr::c(hi), x, Expr::c(hi), x))
    }

    /// `other` where the elements of this condition are not 0, else the number.
    #[track_caller]
    pub fn where_or(self, other: Var<'s>, number: f64) -> Result<Var<'s>> {
        self.formula2(other, |c, x| Expr::where_eq(c, Expr::c(0.0), Expr::c(number), x))
    }

    /// `x + value a b`.
    #[track_caller]
    pub fn addcmul(self, value: f64, a: Var<'s>, b: Var<'s>) -> Result<Var<'s>> {
        self.session().pointwise(&[self, a, b], |v| (v[1] * Expr::c(value)).fma(v[2], v[0]))
    }

    /// `x + value a / b`.
    #[track_caller]
    pub fn addcdiv(self, value: f64, a: Var<'s>, b: Var<'s>) -> Result<Var<'s>> {
        self.session().pointwise(&[self, a, b], |v| v[0] + v[1] * Expr::c(value) / v[2])
    }

    /// [`Var::lerp`] with a weight for each element: `x + weight (end - x)`.
    #[track_caller]
    pub fn lerp_by(self, weight: Var<'s>, end: Var<'s>) -> Result<Var<'s>> {
        self.session().pointwise(&[self, end, weight], |v| v[2].fma(v[1] - v[0], v[0]))
    }

    /// 1 where two elements are as near as `|a - b| <= atol + rtol |b|`, or equal, else 0. NaN is near to nothing, or with
    /// `equal_nan` to NaN. PyTorch's defaults are `rtol` 1e-5 and `atol` 1e-8.
    #[track_caller]
    pub fn isclose(self, other: Var<'s>, rtol: f64, atol: f64, equal_nan: bool) -> Result<Var<'s>> {
        let near = self.formula2(other, |a, b| {
            let (zero, one) = (Expr::c(0.0), Expr::c(1.0));
            let within = Expr::where_le((a - b).abs(), b.abs().fma(Expr::c(rtol), Expr::c(atol)), one, zero);
            // Next to an infinity everything would be within.
            let finite = greater(Expr::c(f64::INFINITY), b.abs()) * within;
            let both_nan = Expr::where_eq(a, a, zero, Expr::where_eq(b, b, zero, one));
            let equal = if equal_nan { both_nan } else { zero };
            Expr::where_eq(a, b, one, finite.max(equal))
        })?;
        near.detach()
    }

    /// 1 where an element is among those of `others`, else 0. Of numbers or indices; every element is compared with every other. NaN is
    /// among nothing.
    #[track_caller]
    pub fn isin(self, others: Var<'s>) -> Result<Var<'s>> {
        self.unsqueeze(-1)?.eq(others.flatten()?)?.any(&[-1], false)
    }

    /// Whether all elements are near each other as in [`Var::isclose`]. Waits for the device.
    #[track_caller]
    pub fn allclose(self, other: Var<'s>, rtol: f64, atol: f64, equal_nan: bool) -> Result<bool> {
        Ok(self.isclose(other, rtol, atol, equal_nan)?.value::<f32>()?.data().iter().all(|&x| x == 1.0))
    }

    /// Whether two values have one shape and equal elements. Waits for the device.
    #[track_caller]
    pub fn equal(self, other: Var<'s>) -> Result<bool> {
        if self.meta()? != other.meta()? {
            return Ok(false);
        }
        Ok(self.eq(other)?.value::<f32>()?.data().iter().all(|&x| x == 1.0))
    }
}

/// # More activations
impl<'s> Var<'s> {
    /// `x / (1 + |x|)`.
    #[track_caller]
    pub fn softsign(self) -> Result<Var<'s>> {
        self.formula(|x| x / (Expr::c(1.0) + x.abs()))
    }

    /// `x` moved towards zero by `lambda`, 0 where it would pass it. PyTorch's default is 0.5.
    #[track_caller]
    pub fn softshrink(self, lambda: f64) -> Result<Var<'s>> {
        self.formula(|x| {
            let (zero, by) = (Expr::c(0.0), Expr::c(lambda));
            Expr::where_le(x.abs(), by, zero, Expr::where_gt(x, zero, x - by, x + by))
        })
    }

    /// `x`, 0 where its magnitude is at most `lambda`. PyTorch's default is 0.5.
    #[track_caller]
    pub fn hardshrink(self, lambda: f64) -> Result<Var<'s>> {
        self.formula(|x| Expr::where_le(x.abs(), Expr::c(lambda), Expr::c(0.0), x))
    }

    /// `x - tanh(x)`.
    #[track_caller]
    pub fn tanhshrink(self) -> Result<Var<'s>> {
        self.formula(|x| x - x.tanh())
    }

    /// `x` where it is above the threshold, else `value`.
    #[track_caller]
    pub fn threshold(self, threshold: f64, value: f64) -> Result<Var<'s>> {
        self.formula(|x| Expr::where_le(x, Expr::c(threshold), Expr::c(value), x))
    }

    /// [`Var::elu`] with `alpha` 1.6732632 times 1.0507010: activations keep mean 0 and variance 1.
    #[track_caller]
    pub fn selu(self) -> Result<Var<'s>> {
        self.elu(1.673_263_242_354_377_2)?.scale(1.050_700_987_355_480_5)
    }

    /// `x` where positive, else `alpha (e^(x / alpha) - 1)`. PyTorch's default is 1.
    #[track_caller]
    pub fn celu(self, alpha: f64) -> Result<Var<'s>> {
        if alpha == 0.0 {
            return Err(Error::argument("celu", "alpha", "is 0, which x is divided by"));
        }
        self.formula(|x| {
            let (zero, alpha) = (Expr::c(0.0), Expr::c(alpha));
            let below = Expr::where_gt(x, zero, zero, x);
            Expr::where_gt(x, zero, x, alpha * (below / alpha).expm1())
        })
    }

    /// The first half of an axis times the sigmoid of the second. PyTorch's default axis is -1.
    #[track_caller]
    pub fn glu(self, axis: impl Position) -> Result<Var<'s>> {
        let axis = self.axis("glu", axis)?;
        let shape = self.shape()?;
        let Some(&size) = shape.dims().get(axis) else {
            return Err(Error::new("glu", ErrorKind::Axis { axis, shape }));
        };
        if size % 2 != 0 {
            let why = format!("axis {axis} of {shape} has {size} elements, which are no two halves");
            return Err(Error::argument("glu", "axis", why));
        }
        let half = size / 2;
        self.narrow(axis, 0, half)?.formula2(self.narrow(axis, half, half)?, |a, b| a * b.sigmoid())
    }

    /// `x` where positive, else `weight x`. The weight has one element, or one per channel of `(N, C, …)`.
    #[track_caller]
    pub fn prelu(self, weight: Var<'s>) -> Result<Var<'s>> {
        let (shape, of) = (self.shape()?, weight.shape()?);
        let channels = shape.dims().get(1).copied().unwrap_or(1);
        let n = of.numel();
        if n != 1 && n != channels {
            let why = "a weight has one element or one for each channel (axis 1)";
            return Err(Error::new("prelu", ErrorKind::Shapes { why, left: of, right: shape }));
        }
        let dims: Vec<usize> = (0..shape.rank()).map(|a| if a == 1 { n } else { 1 }).collect();
        let weight = weight.reshape(if n == 1 { &[] } else { &dims })?;
        // The weight's slope is `min(x, 0)`, also where x is infinite.
        self.formula2(weight, |x, w| {
            let zero = Expr::c(0.0);
            Expr::where_gt(x, zero, x, w * Expr::where_gt(x, zero, zero, x))
        })
    }

    /// [`Var::softplus`] of `beta x`, over `beta`; `x` itself where `beta x` is above `threshold`. PyTorch's threshold is 20.
    #[doc(alias = "softplus")]
    #[track_caller]
    pub fn softplus_with(self, beta: f64, threshold: f64) -> Result<Var<'s>> {
        if beta == 0.0 {
            return Err(Error::argument("softplus", "beta", "is 0, which the result is divided by"));
        }
        self.formula(|x| {
            let (beta, threshold) = (Expr::c(beta), Expr::c(threshold));
            let scaled = x * beta;
            let near = Expr::where_gt(scaled, threshold, Expr::c(0.0), scaled);
            Expr::where_gt(scaled, threshold, x, near.softplus() / beta)
        })
    }

    /// Randomized leaky relu in evaluation: [`Var::leaky_relu`] with the mean of both slopes. PyTorch's defaults are 1/8 and
    /// 1/3.
    #[track_caller]
    pub fn rrelu(self, lower: f64, upper: f64) -> Result<Var<'s>> {
        self.leaky_relu((lower + upper) / 2.0)
    }

    /// Randomized leaky relu in training: elements that are not positive times numbers drawn from `[lower, upper)`.
    #[doc(alias = "rrelu")]
    #[track_caller]
    pub fn rrelu_random(self, lower: f64, upper: f64) -> Result<Var<'s>> {
        let drawn = self.session().uniform_range(self.shape()?.dims(), lower, upper)?;
        self.formula2(drawn, |x, slope| {
            let zero = Expr::c(0.0);
            Expr::where_gt(x, zero, x, slope * Expr::where_gt(x, zero, zero, x))
        })
    }

    /// [`Var::softmax_axis`] of `-x`.
    #[track_caller]
    pub fn softmin(self, axis: impl Position) -> Result<Var<'s>> {
        self.neg()?.softmax_axis(axis)
    }
}
