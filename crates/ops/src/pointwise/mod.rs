//! Elementwise ops. A row gives the formula, the gradient, a range to sample and exact pairs; the CPU
//! and CUDA kernels, the f64 reference, the dual-number gradient check, the fused kernels of the
//! compiled path and the method of `Var` are all read off those lines. Inputs are broadcast to one shape by
//! NumPy's rule: aligned at the last axis, equal dimensions or one of them 1.

#[doc(hidden)]
pub mod device_function;
pub mod expression;
pub mod map;
pub(crate) mod record;

pub use map::Map;
pub use record::record_pointwise;
#[cfg(feature = "cases")]
mod cases;

use crate::magnitudes::Lines;
use crate::pointwise::expression::{
    Expr, Pointwise, by_angle, by_larger, by_power, by_quotient, by_root, truncated,
};
use crate::{
    AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Kernel, Known, Op, Recorder, Val, known, layout,
};
use dittograd_device::cuda::Source;
use dittograd_device::{DType, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::{Real, Scalar, Special, nonzero, polynomial, signed};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use record::Recordable;
use std::f64::consts::PI;
use std::sync::Arc;

/// What a row of the table provides.
pub trait Elementwise: Op {
    /// Number of inputs.
    const ARITY: usize;
    /// The formula.
    fn formula<R: Real>(&self, x: &[R]) -> R;
    /// The gradients of the inputs, from the inputs, the value `y` and its gradient `g`.
    fn gradient<R: Real>(&self, x: &[R], y: R, g: R) -> Vec<R>;
    /// Inputs and the exact value there.
    fn exact(&self) -> Vec<(Vec<f32>, f32)>;
    /// The bits of the attributes.
    fn bits(&self) -> [u32; MAX_ATTRS];
    /// The formula as an expression, traced once per process for each set of attributes.
    fn program(&self) -> Arc<Pointwise> {
        static KNOWN: Known<Key, Arc<Pointwise>> = Known::new(Default::default);
        known(&KNOWN, (Self::NAME, self.bits()), |_| {
            Arc::new(Pointwise::trace(Self::ARITY, |x| vec![self.formula(x)]))
        })
    }
}

/// The most attributes of a row.
const MAX_ATTRS: usize = 2;

/// An op and its attributes.
type Key = (&'static str, [u32; MAX_ATTRS]);

// The first token is a dollar sign, for the macro that this one defines.
macro_rules! rows {
    ($d:tt $($(#[$doc:meta])* $name:ident $op:ident { $($attr:ident = $default:literal),* }
       ($x:ident $(, $rest:ident)*) = $f:expr, d($y:ident, $g:ident) = $df:expr, on [$($range:expr),+],
       at [$([$($in:expr),+] = $out:expr),*];)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $op { $(#[doc = "Scalar attribute, rounded once to float32."] pub $attr: f32,)* }

        impl Elementwise for $op {
            const ARITY: usize = [stringify!($x) $(, stringify!($rest))*].len();

            #[allow(unused_variables)]
            fn formula<R: Real>(&self, x: &[R]) -> R {
                $(let $attr = R::c(f64::from(self.$attr));)*
                let mut inputs = x.iter().copied();
                let $x = inputs.next().unwrap_or(R::c(f64::NAN));
                $(let $rest = inputs.next().unwrap_or(R::c(f64::NAN));)*
                $f
            }

            #[allow(unused_variables)]
            fn gradient<R: Real>(&self, x: &[R], $y: R, $g: R) -> Vec<R> {
                $(let $attr = R::c(f64::from(self.$attr));)*
                let mut inputs = x.iter().copied();
                let $x = inputs.next().unwrap_or(R::c(f64::NAN));
                $(let $rest = inputs.next().unwrap_or(R::c(f64::NAN));)*
                $df.to_vec()
            }

            fn exact(&self) -> Vec<(Vec<f32>, f32)> {
                vec![$((vec![$($in),+], $out)),*]
            }

            fn bits(&self) -> [u32; MAX_ATTRS] {
                let given: &[u32] = &[$(self.$attr.to_bits()),*];
                std::array::from_fn(|i| given.get(i).copied().unwrap_or(0))
            }
        }

        impl Op for $op {
            const NAME: &'static str = stringify!($name);

            fn shape(&self, ins: &[Meta]) -> Result<Meta> {
                broadcast_shape(Self::NAME, Self::ARITY, ins)
            }

            fn cpu(&self, run: CpuRun<'_>) {
                map::run_cpu(&self.program(), map::accesses(run.metas, &run.shape).all(), run);
            }

            fn prepared(&self, _ins: &[Meta]) -> Option<Kernel> {
                Some(map::prepared(Pointwise::clone(&self.program())))
            }

            fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
                map::run_cuda(&self.program(), map::accesses(run.metas, &run.shape).all(), run)
            }

            fn cuda_modules(&self, ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
                let Ok(out) = self.shape(ins) else { return Vec::new() };
                vec![map::module(&self.program(), &out.shape, map::accesses(ins, &out.shape).all())]
            }

            fn leaving_modules(&self, ins: &[Meta], _gpu: &Gpu, lines: Lines) -> Option<Vec<Source>> {
                let out = self.shape(ins).ok()?;
                map::leaving(&self.program(), &out.shape, map::accesses(ins, &out.shape).all(), lines)
            }

            fn as_pointwise(&self, _ins: &[Meta]) -> Option<Pointwise> {
                Some(Pointwise::clone(&self.program()))
            }

            fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
                let key = (Self::NAME, self.bits());
                record_gradients(&gradients(key, Self::ARITY, &|x, y, g| self.gradient(x, y, g)), r, io, dy)
            }

            fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
                reference(Self::NAME, Self::ARITY, ins, &|x| self.formula(x))
            }

            fn attrs(&self) -> Vec<(&'static str, Attr)> {
                vec![$((stringify!($attr), Attr::Num(f64::from(self.$attr)))),*]
            }

            fn from_attrs(attrs: &Attrs) -> Result<$op> {
                attrs.only(&[$(stringify!($attr)),*])?;
                Ok($op { $($attr: attrs.num(stringify!($attr))? as f32),* })
            }
        }

        #[cfg(feature = "cases")]
        impl crate::Cases for $op {
            fn samples() -> Vec<crate::Sample> {
                cases::samples(&$op { $($attr: $default),* }.into(), &[$($range),+])
            }

            fn random(stream: &mut dittograd_numerics::rng::Stream) -> Option<crate::Sample> {
                Some(cases::random($op { $($attr: $default),* }.into(), &[$($range),+], stream))
            }

            fn rejects() -> Vec<crate::Reject> {
                cases::rejects(&$op { $($attr: $default),* }.into(), Self::ARITY)
            }

            fn bound(&self, _ins: &[Meta]) -> crate::Bound {
                // Formulas have at most a dozen roundings, each of a magnitude the reference bounds.
                crate::Bound { ulps: 4.0, terms: 12.0 }
            }
        }
    )*

    /// Runs `f` with every elementwise op at its sample attributes.
    pub fn for_each(mut f: impl FnMut(&dyn Row)) {
        $(f(&$op { $($attr: $default),* });)*
    }

    /// Calls `$then` with all rows: documentation, name, type, attributes, and the inputs after the first.
    #[doc(hidden)]
    #[macro_export]
    macro_rules! with_rows {
        ($d then:ident) => {
            $d then! { $($(#[$doc])* $name $op { $($attr),* } ($($rest),*);)* }
        };
    }
    };
}

/// An elementwise op seen without its type, for the checks.
pub trait Row {
    /// The op's name.
    fn name(&self) -> &'static str;
    /// The op itself.
    fn op(&self) -> crate::AnyOp;
    /// Number of inputs.
    fn arity(&self) -> usize;
    /// Value in f64 arithmetic with derivative, by dual numbers.
    fn dual(&self, x: &[dittograd_numerics::scalar::Dual]) -> dittograd_numerics::scalar::Dual;
    /// The row's gradient rule in f64.
    fn rule(&self, x: &[f64]) -> Vec<f64>;
    /// The formula in float32.
    fn value(&self, x: &[f32]) -> f32;
    /// Inputs and exact values.
    fn pairs(&self) -> Vec<(Vec<f32>, f32)>;
}

impl<O: Elementwise + Into<crate::AnyOp>> Row for O {
    fn name(&self) -> &'static str {
        O::NAME
    }
    fn op(&self) -> crate::AnyOp {
        self.clone().into()
    }
    fn arity(&self) -> usize {
        O::ARITY
    }
    fn dual(&self, x: &[dittograd_numerics::scalar::Dual]) -> dittograd_numerics::scalar::Dual {
        self.formula(x)
    }
    fn rule(&self, x: &[f64]) -> Vec<f64> {
        self.gradient(x, self.formula(x), 1.0)
    }
    fn value(&self, x: &[f32]) -> f32 {
        self.formula(x)
    }
    fn pairs(&self) -> Vec<(Vec<f32>, f32)> {
        self.exact()
    }
}

/// Gradients of two of which a number wins over NaN, from those of two numbers.
fn by_winner<R: Real>(a: R, b: R, numbers: [R; 2], g: R) -> [R; 2] {
    let zero = R::c(0.0);
    let [to_a, to_b] = numbers;
    [R::where_eq(b, b, R::where_eq(a, a, to_a, zero), g), R::where_eq(b, b, R::where_eq(a, a, to_b, g), zero)]
}

/// `-f(|x|)` where `x` is negative, `f(|x|)` where it is positive; `x` where it is zero.
fn odd<R: Real>(x: R, f: impl Fn(R) -> R) -> R {
    let (zero, v) = (R::c(0.0), f(x.abs()));
    R::where_gt(zero, x, -v, R::where_eq(x, zero, x, v))
}

/// `sqrt(1 - x^2)`, accurate near both ends.
fn leg<R: Real>(x: R) -> R {
    ((R::c(1.0) - x) * (R::c(1.0) + x)).sqrt()
}

/// `ln(2 x)` from a number on whose square might overflow, else `ln(1 + small)`.
fn log_of_sum<R: Real>(x: R, small: R) -> R {
    let large = R::c(1e9);
    let more = R::where_gt(x, large, R::c(std::f64::consts::LN_2), R::c(0.0));
    R::where_gt(x, large, x, small).log1p() + more
}

/// Negative where `x` is, and at -0; never zero.
fn sign_of<R: Real>(x: R) -> R {
    R::where_eq(x, R::c(0.0), R::c(1.0) / x, x)
}

/// `sin(x) / x`, 1 where `x` is zero.
fn sine_ratio<R: Real>(x: R) -> R {
    R::where_eq(x, R::c(0.0), R::c(1.0), x.sin() / nonzero(x))
}

/// `f(pi x)` of the sine or cosine, by what `x` is beside the nearest whole number: `pi x` itself has a rounding error, which grows with x.
fn of_half_turns<R: Real>(x: R, f: impl Fn(R) -> R) -> R {
    let whole = x.round();
    let odd = whole - R::c(2.0) * (whole * R::c(0.5)).floor();
    let value = f((x - whole) * R::c(PI));
    R::where_gt(odd, R::c(0.5), -value, value)
}

/// The gradient of `y = sin(a) / a` by `a`, whose cosine is given. Up to 1 it is a series, as the terms of the other form cancel there.
fn sine_ratio_slope<R: Real>(a: R, cosine: R, y: R, g: R) -> R {
    let (one, square) = (R::c(1.0), a * a);
    let series =
        [-1.0 / 3.0, 1.0 / 30.0, -1.0 / 840.0, 1.0 / 45360.0, -1.0 / 3_991_680.0, 1.0 / 518_918_400.0];
    let far = R::where_gt(a.abs(), one, a, one);
    let over = g / far;
    R::where_gt(a.abs(), one, over * cosine - over * y, g * (a * polynomial(square, &series)))
}

/// The gradient of `ln(x / (1 - x))`: infinite at 0 and 1, NaN where there is no value.
fn log_odds_slope<R: Real>(x: R, g: R) -> R {
    let zero = R::c(0.0);
    let rest = R::c(1.0) - x;
    let odds = x / rest;
    let [by_part, by_rest] = by_quotient(rest, odds, g / odds);
    let both = x * rest;
    let end = R::where_eq(both, zero, g / both.abs(), R::c(f64::NAN));
    R::where_gt(both, zero, by_part - by_rest, end)
}

const INF: f32 = f32::INFINITY;

const NAN: f32 = f32::NAN;

#[cfg(feature = "cases")]
const WIDE: (f64, f64) = (-8.0, 8.0);

#[cfg(feature = "cases")]
const POSITIVE: (f64, f64) = (0.05, 8.0);

/// `sqrt(2 / pi)` of the tanh form of gelu.
const GELU_SLOPE: f64 = 0.797_884_560_802_865_4;

const GELU_CUBE: f64 = 0.044_715;

rows! { $
    /// `-x`.
    neg Neg {} (x) = -x, d(y, g) = [-g], on [WIDE], at [[0.0] = -0.0, [INF] = -INF];

    /// Magnitude. The slope at zero is zero.
    abs Abs {} (x) = x.abs(), d(y, g) = [signed(x, g)],
        on [WIDE], at [[-0.0] = 0.0, [-INF] = INF, [NAN] = NAN];

    /// Square root; NaN below zero. The slope at zero is zero.
    sqrt Sqrt {} (x) = x.sqrt(), d(y, g) = [by_root(g, y)],
        on [POSITIVE], at [[0.0] = 0.0, [-1.0] = NAN, [4.0] = 2.0, [INF] = INF];

    /// `x * x`.
    square Square {} (x) = x * x, d(y, g) = [g * (x + x)], on [WIDE], at [[-3.0] = 9.0, [-INF] = INF];

    /// `e^x`.
    exp Exp {} (x) = x.exp(), d(y, g) = [g * y], on [(-20.0, 20.0)],
        at [[0.0] = 1.0, [-INF] = 0.0, [INF] = INF, [200.0] = INF, [-200.0] = 0.0, [NAN] = NAN];

    /// Natural logarithm; `-inf` at zero, NaN below.
    log Log {} (x) = x.log(), d(y, g) = [g / x], on [POSITIVE],
        at [[1.0] = 0.0, [0.0] = -INF, [-1.0] = NAN, [INF] = INF];

    /// `ln(1 + x)`, accurate near zero.
    log1p Log1p {} (x) = x.log1p(), d(y, g) = [g / (R::c(1.0) + x)], on [(-0.9, 8.0)],
        at [[0.0] = 0.0, [-1.0] = -INF, [1e-20] = 1e-20, [INF] = INF];

    /// `e^x - 1`, accurate near zero.
    expm1 Expm1 {} (x) = x.expm1(), d(y, g) = [g * x.exp()], on [(-10.0, 10.0)],
        at [[0.0] = 0.0, [-0.0] = -0.0, [-INF] = -1.0, [INF] = INF, [1e-20] = 1e-20];

    /// `1 / sqrt(x)`: infinite at zero, NaN below.
    rsqrt Rsqrt {} (x) = R::c(1.0) / x.sqrt(), d(y, g) = [-(g * (y / (x + x)))], on [POSITIVE],
        at [[4.0] = 0.5, [0.0] = INF, [-1.0] = NAN, [INF] = 0.0];

    /// -1, 0 or 1 by the sign; 0 for NaN. No gradient.
    sign Sign {} (x) = R::where_gt(x, R::c(0.0), R::c(1.0), R::where_gt(R::c(0.0), x, R::c(-1.0), R::c(0.0))),
        d(y, g) = [R::c(0.0)], on [WIDE], at [[-0.0] = 0.0, [-INF] = -1.0, [1e-40] = 1.0, [NAN] = 0.0];

    /// The largest whole number that is not above `x`. No gradient.
    floor Floor {} (x) = x.floor(), d(y, g) = [R::c(0.0)], on [WIDE],
        at [[-0.5] = -1.0, [-0.0] = -0.0, [2.9999998] = 2.0, [8388607.5] = 8388607.0, [16777217.0] = 16777217.0,
            [-INF] = -INF, [NAN] = NAN];

    /// The smallest whole number that is not below `x`. No gradient.
    ceil Ceil {} (x) = -((-x).floor()), d(y, g) = [R::c(0.0)], on [WIDE],
        at [[-0.5] = -0.0, [1e-40] = 1.0, [0.0] = 0.0, [8388607.5] = 8388608.0, [INF] = INF, [NAN] = NAN];

    /// The nearest whole number, halves to the even one. No gradient.
    round Round {} (x) = x.round(), d(y, g) = [R::c(0.0)], on [WIDE],
        at [[0.5] = 0.0, [1.5] = 2.0, [2.5] = 2.0, [-0.5] = -0.0, [-1.5] = -2.0, [8388607.5] = 8388608.0,
            [0.49999997] = 0.0, [INF] = INF, [NAN] = NAN];

    /// `ln sigmoid(x)`, without overflow or loss at either end.
    log_sigmoid LogSigmoid {} (x) = -((-x).softplus()), d(y, g) = [g * (-x).sigmoid()],
        on [(-20.0, 20.0)], at [[-1e3] = -1e3, [INF] = -0.0, [-INF] = -INF];

    /// `x * tanh(softplus(x))`.
    mish Mish {} (x) = x * x.softplus().tanh(),
        d(y, g) = [{ let t = x.softplus().tanh(); g * (t + x * ((R::c(1.0) - t * t) * x.sigmoid())) }],
        on [WIDE], at [[0.0] = 0.0, [100.0] = 100.0, [INF] = INF];

    /// `min(max(x + 3, 0), 6) / 6`. The slope at both kinks is zero.
    hardsigmoid Hardsigmoid {} (x) = R::where_gt(R::c(-3.0), x, R::c(0.0),
            R::where_gt(x, R::c(3.0), R::c(1.0), (x + R::c(3.0)) * R::c(1.0 / 6.0))),
        d(y, g) = [R::where_le(x, R::c(-3.0), R::c(0.0), R::where_le(R::c(3.0), x, R::c(0.0), g * R::c(1.0 / 6.0)))],
        on [WIDE], at [[-3.0] = 0.0, [3.0] = 1.0, [0.0] = 0.5, [-INF] = 0.0, [INF] = 1.0, [NAN] = NAN];

    /// `x * hardsigmoid(x)`. The slope is zero up to -3 and one from 3 on.
    hardswish Hardswish {} (x) = R::where_gt(R::c(-3.0), x, R::c(0.0),
            R::where_gt(x, R::c(3.0), x, x * ((x + R::c(3.0)) * R::c(1.0 / 6.0)))),
        d(y, g) = [R::where_le(x, R::c(-3.0), R::c(0.0),
            R::where_le(R::c(3.0), x, g, g * (x * R::c(1.0 / 3.0) + R::c(0.5))))],
        on [WIDE], at [[-3.0] = -0.0, [3.0] = 3.0, [-INF] = 0.0, [INF] = INF, [NAN] = NAN];

    /// `x` where positive, else `slope * x`, also in its gradient at zero.
    leaky_relu LeakyRelu { slope = 0.01 } (x) = R::where_gt(x, R::c(0.0), x, x * slope),
        d(y, g) = [R::where_gt(x, R::c(0.0), g, g * slope)], on [WIDE], at [[3.0] = 3.0, [0.0] = 0.0, [NAN] = NAN];

    /// `x` where positive, else `alpha * (e^x - 1)`.
    elu Elu { alpha = 1.5 } (x) = R::where_gt(x, R::c(0.0), x, alpha * x.expm1()),
        // The branch that is not taken must not overflow: its slope times 0 would be NaN in the second gradient.
        d(y, g) = [R::where_gt(x, R::c(0.0), g, g * (alpha * R::where_gt(x, R::c(0.0), R::c(0.0), x).exp()))],
        on [WIDE], at [[0.0] = 0.0, [200.0] = 200.0, [-INF] = -1.5, [NAN] = NAN];

    /// `1 / x`.
    #[doc(alias = "reciprocal")]
    inv Inv {} (x) = R::c(1.0) / x, d(y, g) = [-(g * (y * y))], on [POSITIVE],
        at [[0.0] = INF, [-0.0] = -INF, [4.0] = 0.25, [INF] = 0.0];

    /// Sine of radians, accurate for every finite argument.
    sin Sin {} (x) = x.sin(), d(y, g) = [g * x.cos()], on [(-30.0, 30.0)], at [[0.0] = 0.0, [-0.0] = -0.0, [INF] = NAN];

    /// Cosine of radians, accurate for every finite argument.
    cos Cos {} (x) = x.cos(), d(y, g) = [-(g * x.sin())], on [(-30.0, 30.0)], at [[0.0] = 1.0, [INF] = NAN];

    /// Error function.
    erf Erf {} (x) = x.erf(),
        d(y, g) = [g * (R::c(std::f64::consts::FRAC_2_SQRT_PI) * (-(x * x)).exp())],
        on [(-4.0, 4.0)], at [[0.0] = 0.0, [INF] = 1.0, [-INF] = -1.0, [10.0] = 1.0];

    /// +0 up to zero, else `x`. The slope at zero is zero.
    relu Relu {} (x) = R::where_le(x, R::c(0.0), R::c(0.0), x),
        d(y, g) = [R::where_le(y, R::c(0.0), R::c(0.0), g)],
        on [WIDE], at [[-0.0] = 0.0, [-3.0] = 0.0, [3.0] = 3.0, [NAN] = NAN, [INF] = INF];

    /// `1 / (1 + e^-x)`.
    sigmoid Sigmoid {} (x) = x.sigmoid(), d(y, g) = [g * (y * (R::c(1.0) - y))],
        on [(-20.0, 20.0)], at [[0.0] = 0.5, [INF] = 1.0, [-INF] = 0.0, [NAN] = NAN];

    /// Hyperbolic tangent.
    tanh Tanh {} (x) = x.tanh(), d(y, g) = [g * (R::c(1.0) - y * y)],
        on [WIDE], at [[0.0] = 0.0, [-0.0] = -0.0, [50.0] = 1.0, [-INF] = -1.0, [1e-20] = 1e-20];

    /// `ln(1 + e^x)`, without overflow or loss at either end.
    softplus Softplus {} (x) = x.softplus(), d(y, g) = [g * x.sigmoid()],
        on [(-20.0, 20.0)], at [[1e3] = 1e3, [-1e3] = 0.0, [INF] = INF, [-INF] = 0.0];

    /// `x * sigmoid(x)`.
    #[doc(alias = "swish")]
    silu Silu {} (x) = x * x.sigmoid(),
        d(y, g) = [{ let s = x.sigmoid(); g * (s + y * (R::c(1.0) - s)) }],
        on [WIDE], at [[0.0] = 0.0, [200.0] = 200.0, [INF] = INF];

    /// The tanh form of gelu: `x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))`.
    gelu Gelu {} (x) = {
            let u = R::c(GELU_SLOPE) * (x + R::c(GELU_CUBE) * (x * (x * x)));
            (R::c(0.5) * x) * (R::c(1.0) + u.tanh())
        },
        d(y, g) = [{
            let t = (R::c(GELU_SLOPE) * (x + R::c(GELU_CUBE) * (x * (x * x)))).tanh();
            let du = R::c(GELU_SLOPE) * (R::c(1.0) + R::c(3.0 * GELU_CUBE) * (x * x));
            g * (R::c(0.5) * (R::c(1.0) + t) + (R::c(0.5) * x) * ((R::c(1.0) - t * t) * du))
        }],
        on [WIDE], at [[0.0] = 0.0, [100.0] = 100.0, [-100.0] = -0.0];

    /// The exact form of gelu: `x/2 * (1 + erf(x / sqrt 2))`.
    gelu_erf GeluErf {} (x) =
            (R::c(0.5) * x) * (R::c(1.0) + (x * R::c(std::f64::consts::FRAC_1_SQRT_2)).erf()),
        d(y, g) = [{
            let phi = R::c(0.5) * (R::c(1.0) + (x * R::c(std::f64::consts::FRAC_1_SQRT_2)).erf());
            let density = R::c(0.398_942_280_401_432_7) * (R::c(-0.5) * (x * x)).exp();
            g * (phi + x * density)
        }],
        on [(-4.0, 8.0)], at [[0.0] = 0.0, [100.0] = 100.0, [-100.0] = -0.0];

    /// The same value in memory of its own.
    #[doc(alias = "clone")]
    copy Copy {} (x) = x, d(y, g) = [g], on [WIDE], at [[-0.0] = -0.0, [INF] = INF];

    /// `x * c`.
    #[doc(alias = "mul_scalar")]
    scale Scale { c = -1.5 } (x) = x * c, d(y, g) = [g * c], on [WIDE], at [[2.0] = -3.0];

    /// `x + c`.
    add_scalar AddScalar { c = 0.3 } (x) = x + c, d(y, g) = [g], on [WIDE], at [[INF] = INF];

    /// `x^c`. A zero exponent has no slope.
    #[doc(alias = "powf")]
    pow_scalar PowScalar { c = 2.5 } (x) = x.pow(c),
        d(y, g) = [R::where_eq(c, R::c(0.0), R::c(0.0), g * (c * x.pow(c - R::c(1.0))))],
        on [POSITIVE], at [[4.0] = 32.0, [0.0] = 0.0, [-1.0] = NAN, [INF] = INF];

    /// `x` held between `lo` and `hi`: `min(hi, max(lo, x))`, so `lo` above `hi` gives `hi`. The slope is one strictly
    /// inside and zero at the bounds.
    #[doc(alias = "clip")]
    clamp Clamp { lo = -1.0, hi = 0.5 } (x) = hi.min(lo.max(x)),
        d(y, g) = [R::where_le(x, lo, R::c(0.0), R::where_le(hi, x, R::c(0.0), g))],
        on [(-3.0, 3.0)], at [[-1.0] = -1.0, [9.0] = 0.5, [NAN] = NAN, [-INF] = -1.0];

    /// `ln(softplus(x) + eps)`: a logarithm that is defined everywhere.
    safe_log SafeLog { eps = 1e-6 } (x) = (x.softplus() + eps).log(),
        d(y, g) = [g * (x.sigmoid() / (x.softplus() + eps))], on [(-10.0, 10.0)], at [[INF] = INF];

    /// `a + b`.
    add Add {} (a, b) = a + b, d(y, g) = [g, g], on [WIDE, WIDE], at [[INF, -INF] = NAN, [0.0, -0.0] = 0.0];

    /// `a - b`.
    sub Sub {} (a, b) = a - b, d(y, g) = [g, -g], on [WIDE, WIDE], at [[INF, INF] = NAN, [0.0, 0.0] = 0.0];

    /// `a * b`.
    mul Mul {} (a, b) = a * b, d(y, g) = [g * b, g * a], on [WIDE, WIDE], at [[INF, 0.0] = NAN, [-1.0, 0.0] = -0.0];

    /// `a / b`. The gradient of `b` is formed without squaring it, so it does not overflow early.
    div Div {} (a, b) = a / b, d(y, g) = by_quotient(b, y, g), on [WIDE, POSITIVE],
        at [[1.0, 0.0] = INF, [0.0, 0.0] = NAN, [-1.0, INF] = -0.0];

    /// The larger of two, NaN if either is. A tie shares the gradient in halves; with a NaN both get all of it.
    max Max {} (a, b) = a.max(b), d(y, g) = by_larger(a, b, g), on [WIDE, WIDE],
        at [[NAN, 1.0] = NAN, [1.0, NAN] = NAN, [NAN, NAN] = NAN, [-INF, 2.0] = 2.0, [-0.0, 0.0] = 0.0, [0.0, -0.0] = -0.0];

    /// The smaller of two, NaN if either is. A tie shares the gradient in halves; with a NaN both get all of it.
    min Min {} (a, b) = a.min(b), d(y, g) = by_larger(b, a, g), on [WIDE, WIDE],
        at [[NAN, 1.0] = NAN, [1.0, NAN] = NAN, [INF, 2.0] = 2.0, [-0.0, 0.0] = 0.0, [0.0, -0.0] = -0.0];

    /// The larger of two; a number wins over NaN, as in C's `fmax`. A tie shares the gradient in halves.
    fmax Fmax {} (a, b) = R::where_gt(a, b, a, R::where_eq(b, b, b, a)), d(y, g) = by_winner(a, b, by_larger(a, b, g), g),
        on [WIDE, WIDE], at [[NAN, 1.0] = 1.0, [1.0, NAN] = 1.0, [NAN, NAN] = NAN, [-INF, 2.0] = 2.0, [NAN, -INF] = -INF];

    /// The smaller of two; a number wins over NaN, as in C's `fmin`. A tie shares the gradient in halves.
    fmin Fmin {} (a, b) = R::where_gt(b, a, a, R::where_eq(b, b, b, a)), d(y, g) = by_winner(a, b, by_larger(b, a, g), g),
        on [WIDE, WIDE], at [[NAN, 1.0] = 1.0, [1.0, NAN] = 1.0, [NAN, NAN] = NAN, [INF, 2.0] = 2.0, [NAN, INF] = INF];

    /// `a^b`. A zero exponent has no slope in `a`; a base that is not positive has none in `b`, unless the power
    /// is NaN.
    pow Pow {} (a, b) = a.pow(b),
        d(y, g) = by_power(a, b, y, g), on [POSITIVE, (-3.0, 3.0)],
        at [[NAN, 0.0] = 1.0, [-2.0, 3.0] = -8.0, [-2.0, 0.5] = NAN, [0.0, -1.0] = INF, [2.0, 10.0] = 1024.0];

    /// 1 where `a == b`, else 0 (also for NaN). No gradient.
    eq Eq {} (a, b) = R::where_eq(a, b, R::c(1.0), R::c(0.0)), d(y, g) = [R::c(0.0), R::c(0.0)], on [WIDE, WIDE],
        at [[0.0, -0.0] = 1.0, [NAN, NAN] = 0.0, [INF, INF] = 1.0, [INF, -INF] = 0.0];

    /// 1 where `a != b` (also for NaN), else 0. No gradient.
    ne Ne {} (a, b) = R::where_eq(a, b, R::c(0.0), R::c(1.0)), d(y, g) = [R::c(0.0), R::c(0.0)], on [WIDE, WIDE],
        at [[0.0, -0.0] = 0.0, [NAN, NAN] = 1.0, [1.0, NAN] = 1.0];

    /// 1 where `a < b`, else 0 (also for NaN). No gradient.
    lt Lt {} (a, b) = R::where_gt(b, a, R::c(1.0), R::c(0.0)), d(y, g) = [R::c(0.0), R::c(0.0)], on [WIDE, WIDE],
        at [[-0.0, 0.0] = 0.0, [NAN, 1.0] = 0.0, [1.0, NAN] = 0.0, [-INF, INF] = 1.0];

    /// 1 where `a <= b`, else 0 (also for NaN). No gradient.
    le Le {} (a, b) = R::where_gt(b, a, R::c(1.0), R::where_eq(a, b, R::c(1.0), R::c(0.0))),
        d(y, g) = [R::c(0.0), R::c(0.0)], on [WIDE, WIDE],
        at [[0.0, -0.0] = 1.0, [NAN, 1.0] = 0.0, [1.0, NAN] = 0.0, [INF, INF] = 1.0, [2.0, 1.0] = 0.0];

    /// 1 where `a > b`, else 0 (also for NaN). No gradient.
    gt Gt {} (a, b) = R::where_gt(a, b, R::c(1.0), R::c(0.0)), d(y, g) = [R::c(0.0), R::c(0.0)], on [WIDE, WIDE],
        at [[0.0, -0.0] = 0.0, [NAN, 1.0] = 0.0, [1.0, NAN] = 0.0, [INF, -INF] = 1.0];

    /// 1 where `a >= b`, else 0 (also for NaN). No gradient.
    ge Ge {} (a, b) = R::where_gt(a, b, R::c(1.0), R::where_eq(a, b, R::c(1.0), R::c(0.0))),
        d(y, g) = [R::c(0.0), R::c(0.0)], on [WIDE, WIDE],
        at [[-0.0, 0.0] = 1.0, [NAN, NAN] = 0.0, [1.0, NAN] = 0.0, [1.0, 2.0] = 0.0];

    /// `a + c * b` with one rounding.
    axpy Axpy { c = 0.75 } (a, b) = c.fma(b, a), d(y, g) = [g, g * c], on [WIDE, WIDE], at [[1.0, 4.0] = 4.0];

    /// `a` where `cond` is not 0 (a NaN is not 0), else `b`. The condition has no gradient.
    #[doc(alias = "where")]
    where_ Where {} (cond, a, b) = R::where_eq(cond, R::c(0.0), b, a),
        d(y, g) = [R::c(0.0), R::where_eq(cond, R::c(0.0), R::c(0.0), g), R::where_eq(cond, R::c(0.0), g, R::c(0.0))],
        on [WIDE, WIDE, WIDE],
        at [[0.0, 1.0, 2.0] = 2.0, [-0.0, 1.0, 2.0] = 2.0, [NAN, 1.0, 2.0] = 1.0, [0.5, -0.0, NAN] = -0.0];

    /// `x` held between the elements of `lo` and `hi`, as in `clamp`. The gradient goes to whichever of the
    /// three is taken; on a tie that is `x`, or `lo` if it is tied with `hi`. Beside a NaN more than one may get it.
    clamp_to ClampTo {} (x, lo, hi) = hi.min(lo.max(x)),
        d(y, g) = [R::where_gt(lo, x, R::c(0.0), R::where_gt(x, hi, R::c(0.0), g)),
                   R::where_le(lo, x, R::c(0.0), R::where_gt(lo, hi, R::c(0.0), g)),
                   R::where_le(x, hi, R::where_le(lo, hi, R::c(0.0), g), g)],
        on [WIDE, (-6.0, 1.0), (-1.0, 6.0)],
        at [[3.0, -1.0, 1.0] = 1.0, [-3.0, -1.0, 1.0] = -1.0, [0.5, 2.0, 1.0] = 1.0, [3.0, 2.0, 1.0] = 1.0,
            [NAN, 0.0, 1.0] = NAN, [0.5, NAN, 1.0] = NAN, [0.5, 0.0, NAN] = NAN, [-0.5, 0.0, NAN] = NAN];

    /// Tangent of radians, `sin(x) / cos(x)`.
    tan Tan {} (x) = x.sin() / x.cos(), d(y, g) = [g * y.fma(y, R::c(1.0))], on [(-1.4, 1.4)],
        at [[0.0] = 0.0, [-0.0] = -0.0, [INF] = NAN, [NAN] = NAN];

    /// Arc tangent, from -pi/2 to pi/2.
    #[doc(alias = "arctan")]
    atan Atan {} (x) = x.atan2(R::c(1.0)), d(y, g) = [g / x.fma(x, R::c(1.0))], on [WIDE],
        at [[0.0] = 0.0, [-0.0] = -0.0, [1e-40] = 1e-40, [INF] = std::f32::consts::FRAC_PI_2, [NAN] = NAN];

    /// Arc sine, NaN outside -1 to 1.
    #[doc(alias = "arcsin")]
    asin Asin {} (x) = x.atan2(leg(x)), d(y, g) = [g / leg(x)], on [(-0.95, 0.95)],
        at [[0.0] = 0.0, [-0.0] = -0.0, [1.0] = std::f32::consts::FRAC_PI_2, [-1.5] = NAN, [NAN] = NAN];

    /// Arc cosine, NaN outside -1 to 1.
    #[doc(alias = "arccos")]
    acos Acos {} (x) = leg(x).atan2(x), d(y, g) = [-(g / leg(x))], on [(-0.95, 0.95)],
        at [[1.0] = 0.0, [0.0] = std::f32::consts::FRAC_PI_2, [-1.0] = std::f32::consts::PI, [1.5] = NAN, [NAN] = NAN];

    /// Hyperbolic sine.
    sinh Sinh {} (x) = x.special(Special::Sinh), d(y, g) = [g * Special::Sinh.slope(x, y)], on [WIDE],
        at [[0.0] = 0.0, [-0.0] = -0.0, [-INF] = -INF, [NAN] = NAN];

    /// Hyperbolic cosine.
    cosh Cosh {} (x) = x.special(Special::Cosh), d(y, g) = [g * Special::Cosh.slope(x, y)], on [WIDE],
        at [[0.0] = 1.0, [-INF] = INF, [NAN] = NAN];

    /// Inverse hyperbolic sine.
    #[doc(alias = "arcsinh")]
    asinh Asinh {} (x) = odd(x, |a| log_of_sum(a, a + a * a / (R::c(1.0) + a.fma(a, R::c(1.0)).sqrt()))),
        d(y, g) = [g / x.fma(x, R::c(1.0)).sqrt()], on [WIDE],
        at [[0.0] = 0.0, [-0.0] = -0.0, [1e-20] = 1e-20, [INF] = INF, [-INF] = -INF, [NAN] = NAN];

    /// Inverse hyperbolic cosine, NaN below 1.
    #[doc(alias = "arccosh")]
    acosh Acosh {} (x) = { let t = x - R::c(1.0); log_of_sum(x, t + t.sqrt() * (x + R::c(1.0)).sqrt()) },
        d(y, g) = [g / ((x - R::c(1.0)).sqrt() * (x + R::c(1.0)).sqrt())], on [(1.05, 8.0)],
        at [[1.0] = 0.0, [0.5] = NAN, [-2.0] = NAN, [INF] = INF, [-INF] = NAN, [NAN] = NAN];

    /// Inverse hyperbolic tangent, infinite at -1 and 1, NaN outside.
    #[doc(alias = "arctanh")]
    atanh Atanh {} (x) = odd(x, |a| R::c(0.5) * ((a + a) / (R::c(1.0) - a)).log1p()),
        d(y, g) = [g / ((R::c(1.0) - x) * (R::c(1.0) + x))], on [(-0.95, 0.95)],
        at [[0.0] = 0.0, [-0.0] = -0.0, [1e-20] = 1e-20, [1.0] = INF, [-1.0] = -INF, [2.0] = NAN, [NAN] = NAN];

    /// `2^x`.
    exp2 Exp2 {} (x) = x.special(Special::Exp2), d(y, g) = [g * Special::Exp2.slope(x, y)], on [(-20.0, 20.0)],
        at [[0.0] = 1.0, [-1.0] = 0.5, [10.0] = 1024.0, [-INF] = 0.0, [INF] = INF, [NAN] = NAN];

    /// Logarithm to the base 2; `-inf` at zero, NaN below.
    log2 Log2 {} (x) = x.special(Special::Log2), d(y, g) = [g * Special::Log2.slope(x, y)], on [POSITIVE],
        at [[1.0] = 0.0, [1024.0] = 10.0, [0.0] = -INF, [-1.0] = NAN, [INF] = INF];

    /// Logarithm to the base 10; `-inf` at zero, NaN below.
    log10 Log10 {} (x) = x.special(Special::Log10), d(y, g) = [g * Special::Log10.slope(x, y)], on [POSITIVE],
        at [[1.0] = 0.0, [1000.0] = 3.0, [0.0] = -INF, [-1.0] = NAN, [INF] = INF];

    /// `1 - erf(x)`, accurate in its tail.
    erfc Erfc {} (x) = x.special(Special::Erfc), d(y, g) = [g * Special::Erfc.slope(x, y)], on [(-4.0, 6.0)],
        at [[0.0] = 1.0, [INF] = 0.0, [-INF] = 2.0, [NAN] = NAN];

    /// `e^(x^2) erfc(x)`.
    erfcx Erfcx {} (x) = x.special(Special::Erfcx), d(y, g) = [g * Special::Erfcx.slope(x, y)], on [(-2.0, 6.0)],
        at [[0.0] = 1.0, [INF] = 0.0, [-INF] = INF, [NAN] = NAN];

    /// The inverse of the error function; infinite at -1 and 1, NaN outside.
    erfinv Erfinv {} (x) = x.special(Special::Erfinv), d(y, g) = [g * Special::Erfinv.slope(x, y)], on [(-0.9, 0.9)],
        at [[0.0] = 0.0, [-0.0] = -0.0, [1.0] = INF, [-1.0] = -INF, [1.5] = NAN, [NAN] = NAN];

    /// The inverse of the normal distribution function, `ndtr`; infinite at 0 and 1, NaN outside.
    #[doc(alias("probit", "icdf"))]
    ndtri Ndtri {} (p) = p.special(Special::Ndtri), d(y, g) = [g * Special::Ndtri.slope(p, y)], on [(0.1, 0.9)],
        at [[0.0] = -INF, [1.0] = INF, [1.5] = NAN, [-1.0] = NAN, [NAN] = NAN];

    /// Logarithm of the magnitude of the gamma function; infinite at zero and the negative whole numbers.
    lgamma Lgamma {} (x) = x.special(Special::Lgamma), d(y, g) = [g * Special::Lgamma.slope(x, y)], on [POSITIVE],
        at [[1.0] = 0.0, [2.0] = 0.0, [0.0] = INF, [-3.0] = INF, [-INF] = INF, [NAN] = NAN];

    /// The derivative of `lgamma`. At +0 it is `-inf`, at -0 `inf`, at the negative whole numbers NaN.
    digamma Digamma {} (x) = x.special(Special::Digamma), d(y, g) = [g * Special::Digamma.slope(x, y)],
        on [(0.05, 8.0)], at [[0.0] = -INF, [-0.0] = INF, [-3.0] = NAN, [INF] = INF, [NAN] = NAN];

    /// Modified Bessel function of the first kind of order 0.
    i0 I0 {} (x) = x.special(Special::I0), d(y, g) = [g * Special::I0.slope(x, y)], on [(-12.0, 12.0)],
        at [[0.0] = 1.0, [-INF] = INF, [NAN] = NAN];

    /// `e^-|x| i0(x)`.
    i0e I0e {} (x) = x.special(Special::I0e), d(y, g) = [g * Special::I0e.slope(x, y)], on [(-12.0, 12.0)],
        at [[0.0] = 1.0, [INF] = 0.0, [NAN] = NAN];

    /// Modified Bessel function of the first kind of order 1.
    i1 I1 {} (x) = x.special(Special::I1), d(y, g) = [g * Special::I1.slope(x, y)], on [(0.5, 12.0)],
        at [[0.0] = 0.0, [-0.0] = -0.0, [-INF] = -INF, [NAN] = NAN];

    /// `e^-|x| i1(x)`.
    i1e I1e {} (x) = x.special(Special::I1e), d(y, g) = [g * Special::I1e.slope(x, y)], on [(0.5, 12.0)],
        at [[0.0] = 0.0, [-0.0] = -0.0, [INF] = 0.0, [NAN] = NAN];

    /// The whole number towards zero. No gradient.
    #[doc(alias = "fix")]
    trunc Trunc {} (x) = truncated(x), d(y, g) = [R::c(0.0)], on [WIDE],
        at [[-0.5] = -0.0, [1.9] = 1.0, [-1.9] = -1.0, [-0.0] = -0.0, [-INF] = -INF, [NAN] = NAN];

    /// The angle of the point with ordinate `a` and abscissa `b`, from -pi to pi; the sign of zeros counts. At the origin and
    /// at infinity the gradients are 0.
    #[doc(alias = "arctan2")]
    atan2 Atan2 {} (a, b) = a.atan2(b), d(y, g) = by_angle(a, b, g), on [WIDE, WIDE],
        at [[0.0, 1.0] = 0.0, [-0.0, 1.0] = -0.0, [0.0, -1.0] = std::f32::consts::PI, [1.0, 0.0] = std::f32::consts::FRAC_PI_2,
            [INF, INF] = std::f32::consts::FRAC_PI_4, [NAN, 1.0] = NAN];

    /// What is left of `a` after a whole number of times `b` is taken off, with the sign of `a`. Exact.
    fmod Fmod {} (a, b) = a.fmod(b), d(y, g) = [g, -(g * ((a - y) / b).round())], on [(4.2, 5.8), (3.2, 4.0)],
        at [[5.5, -2.0] = 1.5, [-5.5, 2.0] = -1.5, [3.0, INF] = 3.0, [3.0, 0.0] = NAN, [INF, 2.0] = NAN, [-4.0, 2.0] = -0.0];

    /// What is left of `a` after a whole number of times `b` is taken off, with the sign of `b`, as Python's `%`.
    remainder Remainder {} (a, b) = {
            let (zero, r) = (R::c(0.0), a.fmod(b));
            let turned = R::where_gt(r, zero, R::where_gt(zero, b, r + b, r), R::where_gt(b, zero, r + b, r));
            R::where_eq(r, zero, r, turned)
        },
        d(y, g) = [g, -(g * ((a - y) / b).round())], on [(4.2, 5.8), (3.2, 4.0)],
        at [[5.5, -2.0] = -0.5, [-5.5, 2.0] = 0.5, [3.0, 0.0] = NAN, [INF, 2.0] = NAN, [6.0, -2.0] = 0.0];

    /// `sqrt(a^2 + b^2)` without overflow of the squares. At the origin the gradients are 0.
    hypot Hypot {} (a, b) = {
            let (a, b) = (a.abs(), b.abs());
            let (high, low) = (R::where_gt(a, b, a, b), R::where_gt(a, b, b, a));
            let r = low / high;
            let plain = R::where_eq(high, R::c(f64::INFINITY), high + low, high * r.fma(r, R::c(1.0)).sqrt());
            R::where_eq(high, R::c(0.0), high + low, plain)
        },
        d(y, g) = { let zero = R::c(0.0); [R::where_eq(y, zero, zero, g * (a / y)), R::where_eq(y, zero, zero, g * (b / y))] },
        on [WIDE, WIDE], at [[3.0, -4.0] = 5.0, [0.0, -0.0] = 0.0, [-INF, 1.0] = INF, [1e30, 0.0] = 1e30, [NAN, 1.0] = NAN];

    /// `ln(e^a + e^b)`, without overflow.
    logaddexp Logaddexp {} (a, b) = R::where_eq(a, b, a + R::c(std::f64::consts::LN_2), a.max(b) + (-((a - b).abs())).softplus()),
        d(y, g) = { let half = g * R::c(0.5); [R::where_eq(a, b, half, g * (a - b).sigmoid()), R::where_eq(a, b, half, g * (b - a).sigmoid())] },
        on [WIDE, WIDE], at [[-INF, -INF] = -INF, [INF, INF] = INF, [-INF, 2.0] = 2.0, [INF, -INF] = INF, [NAN, 1.0] = NAN];

    /// `a ln(b)`, 0 where `a` is 0 and `b` is no NaN.
    xlogy Xlogy {} (a, b) = R::where_eq(b, b, R::where_eq(a, R::c(0.0), R::c(0.0), a * b.log()), b),
        d(y, g) = [R::where_le(b, R::c(0.0), R::where_eq(a, R::c(0.0), R::c(0.0), g * b.log()), g * b.log()), g * (a / b)],
        on [WIDE, POSITIVE], at [[0.0, 0.0] = 0.0, [0.0, -1.0] = 0.0, [0.0, NAN] = NAN, [2.0, 1.0] = 0.0, [1.0, 0.0] = -INF];

    /// `a ln(1 + b)`, 0 where `a` is 0 and `b` is no NaN.
    xlog1py Xlog1py {} (a, b) = R::where_eq(b, b, R::where_eq(a, R::c(0.0), R::c(0.0), a * b.log1p()), b),
        d(y, g) = [R::where_le(b, R::c(-1.0), R::where_eq(a, R::c(0.0), R::c(0.0), g * b.log1p()), g * b.log1p()),
            g * a / (R::c(1.0) + b)],
        on [WIDE, (-0.9, 8.0)],
        at [[0.0, INF] = 0.0, [0.0, -2.0] = 0.0, [0.0, NAN] = NAN, [2.0, 0.0] = 0.0, [1.0, -1.0] = -INF];

    /// `-x ln x`, 0 at zero, `-inf` below. The slope at zero is zero, below it is NaN.
    entr Entr {} (x) = R::where_gt(R::c(0.0), x, R::c(f64::NEG_INFINITY), -(x * nonzero(x).log())),
        d(y, g) = [R::where_eq(x, R::c(f64::INFINITY), -(g * x), -(g * nonzero(x).log()) - g * x / nonzero(x))],
        on [POSITIVE], at [[0.0] = -0.0, [1.0] = -0.0, [-1.0] = -INF, [INF] = -INF, [NAN] = NAN];

    /// `sin(pi x) / (pi x)`, 1 at zero.
    sinc Sinc {} (x) = R::where_eq(x, R::c(0.0), R::c(1.0), of_half_turns(x, R::sin) / (nonzero(x) * R::c(PI))),
        d(y, g) = [sine_ratio_slope(x * R::c(PI), of_half_turns(x, R::cos), y, g) * R::c(PI)],
        on [WIDE], at [[0.0] = 1.0, [-0.0] = 1.0, [INF] = NAN, [NAN] = NAN];

    /// Spherical Bessel function of the first kind of order 0: `sin(x) / x`, 1 at zero, 0 at infinity.
    spherical_bessel_j0 SphericalBesselJ0 {} (x) = R::where_eq(x.abs(), R::c(f64::INFINITY), R::c(0.0), sine_ratio(x)),
        d(y, g) = [R::where_eq(x.abs(), R::c(f64::INFINITY), R::c(0.0), sine_ratio_slope(x, x.cos(), y, g))],
        on [WIDE], at [[0.0] = 1.0, [INF] = 0.0, [-INF] = 0.0, [NAN] = NAN];

    /// The logarithm of the odds of a probability, `ln(x / (1 - x))`: infinite at 0 and 1, NaN outside.
    log_odds LogOdds {} (x) = (x / (R::c(1.0) - x)).log(), d(y, g) = [log_odds_slope(x, g)],
        on [(0.05, 0.95)], at [[0.5] = 0.0, [0.0] = -INF, [1.0] = INF, [-1.0] = NAN, [2.0] = NAN, [NAN] = NAN];

    /// The magnitude of `a` with the sign of `b`, of zero too; NaN if `b` is. The gradient of `a` at zero is zero.
    copysign Copysign {} (a, b) = R::where_eq(b, b, R::where_gt(R::c(0.0), sign_of(b), -(a.abs()), a.abs()), b),
        d(y, g) = [R::where_gt(R::c(0.0), sign_of(b), -(signed(a, g)), signed(a, g)), R::c(0.0)],
        on [WIDE, WIDE], at [[3.0, -0.0] = -3.0, [-3.0, 0.0] = 3.0, [0.0, -1.0] = -0.0, [-INF, 2.0] = INF];
}

/// The shape that the inputs, all float32, broadcast to.
fn broadcast_shape(op: &'static str, arity: usize, ins: &[Meta]) -> Result<Meta> {
    if ins.len() != arity {
        return Err(Error::new(op, ErrorKind::Arity { want: arity, got: ins.len() }));
    }
    let mut all = Shape::SCALAR;
    for (i, meta) in ins.iter().enumerate() {
        crate::typed(op, ins, i, DType::F32)?;
        all = all.broadcast(&meta.shape).map_err(|e| Error::new(op, e.kind().clone()))?;
    }
    Ok(Meta::f32(all))
}

/// The value of a row by its formula, on inputs that broadcast.
fn reference<T: Scalar>(
    op: &'static str,
    arity: usize,
    ins: &[AnyTensor<T>],
    formula: &dyn Fn(&[T]) -> T,
) -> Result<Tensor<T>> {
    let tensors: Vec<&Tensor<T>> = ins.iter().map(AnyTensor::num).collect::<Result<_>>()?;
    let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
    let shape = broadcast_shape(op, arity, &metas)?.shape;
    Ok(Tensor::from_fn(shape, |at| {
        let read = |t: &&Tensor<T>| t.data()[map::broadcast_index(at, &t.shape(), &shape)];
        formula(&tensors.iter().map(read).collect::<Vec<T>>())
    }))
}

/// Gradients of the inputs, from the inputs, the value and its gradient.
type Gradient<'a> = &'a dyn Fn(&[Expr], Expr, Expr) -> Vec<Expr>;

/// The gradients of a row's inputs as expressions of the inputs, the value and its gradient, traced once per process for each set
/// of attributes.
fn gradients(key: Key, arity: usize, gradient: Gradient<'_>) -> Arc<[Recordable]> {
    static KNOWN: Known<Key, Arc<[Recordable]>> = Known::new(Default::default);
    known(&KNOWN, key, |_| {
        let one = |i| {
            Recordable::new(&Pointwise::trace(arity + 2, |e| {
                vec![gradient(&e[..arity], e[arity], e[arity + 1])[i]]
            }))
        };
        (0..arity).map(one).collect()
    })
}

/// Records each gradient of a row as one program over the inputs, the value and the upstream gradient
/// that it really reads, summed over the axes the input was repeated along. A gradient that is zero
/// everywhere is none at all.
fn record_gradients(
    gradients: &[Recordable],
    r: &mut dyn Recorder,
    io: Io<'_>,
    dy: Val,
) -> Result<Vec<Option<Val>>> {
    let shape = r.meta(io.out).shape;
    let mut args = io.ins.to_vec();
    args.extend([io.out, dy]);
    std::iter::zip(gradients, io.ins)
        .map(|(gradient, &x)| {
            if gradient.is_zero() {
                return Ok(None);
            }
            let full = gradient.record(r, shape, &args)?;
            let to = r.meta(x).shape;
            layout::sum_to(r, full, to).map(Some)
        })
        .collect()
}
