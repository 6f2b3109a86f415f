//! Functions beside the common ones. [`Special`] names those of one argument; a number type has them by one method,
//! [`Real::special`].

use super::{Real, nonzero, polynomial, signed};
use crate::functions::{self, reference};

macro_rules! specials {
    ($($(#[$doc:meta])* $name:ident $function:ident;)*) => {
        /// A function of one argument beside the common ones.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Special { $($(#[$doc])* $name,)* }

        impl Special {
            /// All of them.
            pub const ALL: &'static [Special] = &[$(Special::$name,)*];

            /// The function in float32, as the numerics contract defines it.
            #[inline(always)]
            pub fn single(self, x: f32) -> f32 {
                match self { $(Special::$name => functions::$function(x),)* }
            }

            /// The function in f64.
            pub fn double(self, x: f64) -> f64 {
                match self { $(Special::$name => reference::$function(x),)* }
            }
        }
    };
}

specials! {
    /// Hyperbolic sine.
    Sinh sinh;
    /// Hyperbolic cosine.
    Cosh cosh;
    /// `2^x`.
    Exp2 exp2;
    /// Logarithm to the base 2.
    Log2 log2;
    /// Logarithm to the base 10.
    Log10 log10;
    /// `1 - erf(x)`.
    Erfc erfc;
    /// `e^(x^2) erfc(x)`.
    Erfcx erfcx;
    /// The inverse of the error function.
    Erfinv erfinv;
    /// The inverse of the normal distribution function.
    Ndtri ndtri;
    /// Logarithm of the magnitude of the gamma function.
    Lgamma lgamma;
    /// Derivative of `lgamma`.
    Digamma digamma;
    /// Derivative of `digamma`.
    Trigamma trigamma;
    /// Modified Bessel function of the first kind, order 0.
    I0 i0;
    /// `e^-|x| I0(x)`.
    I0e i0e;
    /// Modified Bessel function of the first kind, order 1.
    I1 i1;
    /// `e^-|x| I1(x)`.
    I1e i1e;
}

impl Special {
    /// The derivative at `x`, where the function is `y`.
    pub fn slope<R: Real>(self, x: R, y: R) -> R {
        use std::f64::consts::{FRAC_2_SQRT_PI, LN_2, LN_10, PI, TAU};
        let c = |k: f64| R::c(k);
        let of = |f: Special| x.special(f);
        match self {
            Special::Sinh => of(Special::Cosh),
            Special::Cosh => of(Special::Sinh),
            Special::Exp2 => y * c(LN_2),
            Special::Log2 => c(1.0 / LN_2) / x,
            Special::Log10 => c(1.0 / LN_10) / x,
            Special::Erfc => -(c(FRAC_2_SQRT_PI) * (-(x * x)).exp()),
            Special::Erfcx => {
                // From here on the terms cancel; an asymptotic series is as good.
                let edge = c(8.0);
                let near = R::where_gt(x, edge, edge, x);
                let t = c(1.0) / R::where_gt(x, edge, x, edge);
                let tail = polynomial(t * t, &[1.0, -1.5, 3.75, -13.125, 59.0625, -324.84375]);
                let far = -((t * t) * (c(FRAC_2_SQRT_PI / 2.0) * tail));
                R::where_gt(x, edge, far, (near + near).fma(y, c(-FRAC_2_SQRT_PI)))
            }
            Special::Erfinv => c(PI.sqrt() / 2.0) * (y * y).exp(),
            Special::Ndtri => c(TAU.sqrt()) * (y * y * c(0.5)).exp(),
            Special::Lgamma => of(Special::Digamma),
            Special::Digamma => of(Special::Trigamma),
            Special::Trigamma => tetragamma(x),
            Special::I0 => of(Special::I1),
            Special::I0e => {
                let series = [-0.5, -0.125, -0.125, -25.0 / 128.0, -13.0 / 32.0, -1073.0 / 1024.0];
                scaled_slope(x, y, &series, of(Special::I1e) - signed(x, y))
            }
            Special::I1 => R::where_eq(x, c(0.0), c(0.5), of(Special::I0) - y / nonzero(x)),
            Special::I1e => {
                let series = [-0.5, 0.375, 0.375, 63.0 / 128.0, 27.0 / 32.0, 1899.0 / 1024.0];
                let near = of(Special::I0e) - (signed(x, y) + y / nonzero(x));
                scaled_slope(x, y, &series, R::where_eq(x, c(0.0), c(0.5), near))
            }
        }
    }
}

/// The slope of a scaled Bessel function with value `y`: `near`, or where its terms cancel an asymptotic series of `1 / |x|`, times `|y|`
/// with the sign of the slope at the right.
fn scaled_slope<R: Real>(x: R, y: R, series: &[f64], near: R) -> R {
    let (edge, size) = (R::c(32.0), x.abs());
    let t = R::c(1.0) / R::where_gt(size, edge, size, edge);
    R::where_gt(size, edge, signed(x, y) * (t * polynomial(t, series)), near)
}

/// The derivative of the trigamma function, `polygamma(2, x)`. Eight steps up, then its asymptotic series, in the
/// arithmetic of the number type; below zero by reflection, `tetragamma(1 - x) - 2 pi^3 cos(pi x) / sin(pi x)^3`.
fn tetragamma<R: Real>(x: R) -> R {
    use std::f64::consts::PI;
    let (zero, one) = (R::c(0.0), R::c(1.0));
    let (mut z, mut steps) = (R::where_gt(zero, x, one - x, x), zero);
    for _ in 0..8 {
        let inverse = one / z;
        steps = (inverse * inverse).fma(inverse, steps);
        z = z + one;
    }
    let inverse = one / z;
    let square = inverse * inverse;
    // -(1 + 1/z + 1/(2 z^2) - 1/(6 z^4) + …) / z^2
    let series = [0.5, -1.0 / 6.0, 1.0 / 6.0, -0.3, 5.0 / 6.0, -691.0 / 210.0];
    let tail = polynomial(square, &series);
    let value = -(square * square.fma(tail, one + inverse) + (steps + steps));
    // Each side gets an argument of its own, so that the other one's gradient stays finite.
    let below = R::where_gt(zero, x, x, R::c(-0.5));
    let angle = (below - below.round()) * R::c(PI);
    let ratio = R::c(PI) / angle.sin();
    let reflected = value - ratio * (ratio * ratio) * (angle.cos() * R::c(2.0));
    R::where_gt(zero, x, reflected, value)
}
