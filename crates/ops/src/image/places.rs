//! Where a grid reads an image, and the weights of the elements there: formulas that all devices share.
//!
//! Along an axis, a number of the grid is a place `c` of the image, with a slope `dc/dg`. The elements read are those at
//! `floor(c) + first…`, with weights that are polynomials of `t = c - floor(c)`. Their derivatives by the grid are
//! polynomials too, times powers of the slope, since places are linear in the grid piece by piece: so ops with any `orders`
//! of derivatives are one op.

use crate::{Attr, Attrs};
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::Real;

/// How elements near a place make its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GridMode {
    /// The two elements around the place along each axis, by their distances; PyTorch's `bilinear`.
    Bilinear,
    /// The nearest element; of two, the one with the even index.
    Nearest,
    /// Four elements along each axis, by cubic polynomials with the constant -0.75.
    Bicubic,
}

/// What is read beyond the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GridPadding {
    /// Zeros.
    Zeros,
    /// The element at the border.
    Border,
    /// The image, reflected at its borders.
    Reflection,
}

/// Places further away than this from an image count as this far.
const FURTHEST: i64 = 1 << 40;

const MODES: [GridMode; 3] = [GridMode::Bilinear, GridMode::Nearest, GridMode::Bicubic];
const PADDINGS: [GridPadding; 3] = [GridPadding::Zeros, GridPadding::Border, GridPadding::Reflection];

/// The most axes of an image.
pub(super) const MOST_AXES: usize = 3;

/// How a grid reads an image.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// How a value is made.
    pub mode: GridMode,
    /// What is beyond the image.
    pub padding: GridPadding,
    /// Whether -1 and 1 are the centres of the corner elements, instead of their outer edges.
    pub align_corners: bool,
    /// For each axis of the image, how often the weights are differentiated by the grid: zeros for the value itself.
    pub orders: Vec<usize>,
}

impl Sampling {
    pub(super) fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![
            ("mode", Attr::Num(self.mode as usize as f64)),
            ("padding_mode", Attr::Num(self.padding as usize as f64)),
            ("align_corners", Attr::Bool(self.align_corners)),
            ("orders", Attr::List(self.orders.clone())),
        ]
    }

    pub(super) fn from_attrs(attrs: &Attrs, more: &[&str]) -> Result<Sampling> {
        attrs.only(&[&["mode", "padding_mode", "align_corners", "orders"], more].concat())?;
        let (mode, padding) = (attrs.whole("mode")?, attrs.whole("padding_mode")?);
        let (Some(&mode), Some(&padding)) = (MODES.get(mode), PADDINGS.get(padding)) else {
            let why = format!("{mode} and {padding} must be 0 to 2 each");
            return Err(Error::argument("grid_sample", "mode", why));
        };
        Ok(Sampling {
            mode,
            padding,
            align_corners: attrs.flag("align_corners")?,
            orders: attrs.list("orders")?,
        })
    }

    /// The same with one more derivative along an axis, unless that is zero everywhere.
    pub(super) fn derived(&self, axis: usize) -> Option<Sampling> {
        let mut orders = self.orders.clone();
        orders[axis] += 1;
        (orders[axis] < self.terms()).then(|| Sampling { orders, ..self.clone() })
    }

    /// Derivatives of this order, and higher ones, are zero.
    fn terms(&self) -> usize {
        match self.mode {
            GridMode::Nearest => 1,
            GridMode::Bilinear => 2,
            GridMode::Bicubic => 4,
        }
    }

    /// Elements along an axis.
    pub(super) fn width(&self) -> usize {
        self.terms()
    }

    /// Elements of a place.
    pub(super) fn taps(&self) -> usize {
        self.width().pow(self.orders.len() as u32)
    }

    /// The axis element that a tap reads, if there is one. `i` may lie beyond the axis.
    #[inline(always)]
    pub(super) fn element(&self, i: i64, size: usize) -> Option<usize> {
        let n = size as i64;
        if (0..n).contains(&i) {
            return Some(i as usize);
        }
        match (self.padding, self.mode) {
            (GridPadding::Border, GridMode::Bicubic) => Some(i.clamp(0, n - 1) as usize),
            (GridPadding::Reflection, GridMode::Bicubic) if self.align_corners => {
                let period = (2 * (n - 1)).max(1);
                let m = i.rem_euclid(period);
                Some(m.min(period - m).min(n - 1) as usize)
            }
            (GridPadding::Reflection, GridMode::Bicubic) => {
                let m = i.rem_euclid(2 * n);
                Some(m.min(2 * n - 1 - m) as usize)
            }
            _ => None,
        }
    }

    /// The place of a number of the grid along an axis, and the slope of the place.
    #[inline(always)]
    pub(super) fn place<R: Real>(&self, g: R, size: R) -> (R, R) {
        let (zero, one, half) = (R::c(0.0), R::c(1.0), R::c(0.5));
        let last = size - one;
        let (c, slope) = match self.align_corners {
            true => ((g + one) * half * last, last * half),
            false => (((g + one) * size - one) * half, size * half),
        };
        if self.mode == GridMode::Bicubic {
            // Its elements are chosen one by one.
            return (c, slope);
        }
        match self.padding {
            GridPadding::Zeros => (c, slope),
            GridPadding::Border => clipped(c, slope, last),
            GridPadding::Reflection => {
                let (low, span) = if self.align_corners { (zero, last) } else { (-half, size) };
                let from = c - low;
                let slope = R::where_gt(zero, from, -slope, slope);
                let flips = (from.abs() / span).floor();
                let extra = R::fma(-flips, span, from.abs());
                let odd = flips - R::c(2.0) * (flips * half).floor();
                let back = R::where_eq(odd, zero, extra, span - extra) + low;
                let slope = R::where_eq(odd, zero, slope, -slope);
                // An axis of one element has nothing to be reflected.
                let (back, slope) =
                    (R::where_eq(span, zero, c * zero, back), R::where_eq(span, zero, zero, slope));
                clipped(back, slope, last)
            }
        }
    }

    /// The whole number that elements are counted from, and the rest of a place.
    #[inline(always)]
    pub(super) fn base<R: Real>(&self, c: R) -> (R, R) {
        match self.mode {
            GridMode::Nearest => (c.round(), c - c.round()),
            GridMode::Bilinear => (c.floor(), c - c.floor()),
            GridMode::Bicubic => (c.floor() - R::c(1.0), c - c.floor()),
        }
    }

    /// The first element along an axis. It may lie beyond the axis; NaN counts as 0.
    #[inline(always)]
    pub(super) fn first(base: f64) -> i64 {
        (base as i64).clamp(-FURTHEST, FURTHEST)
    }

    /// The weights along an axis, differentiated `order` times. A weight without `t` is NaN if `t` is.
    #[inline(always)]
    pub(super) fn weights<R: Real>(&self, order: usize, t: R, slope: R) -> [R; 4] {
        let (zero, one) = (R::c(0.0), R::c(1.0));
        let constant = |x: f64| R::fma(t, zero, R::c(x));
        let weights = match (self.mode, order) {
            (GridMode::Nearest, 0) => [constant(1.0), zero, zero, zero],
            (GridMode::Bilinear, 0) => [one - t, t, zero, zero],
            (GridMode::Bilinear, 1) => [constant(-1.0), constant(1.0), zero, zero],
            (GridMode::Bicubic, 0..4) => {
                let (s, other) = (one - t, if order % 2 == 1 { -one } else { one });
                let inner = |x: R| polynomial(order, x, [1.0, 0.0, -2.25, 1.25], constant);
                let outer = |x: R| polynomial(order, x, [3.0, -6.0, 3.75, -0.75], constant);
                [outer(t + one), inner(t), other * inner(s), other * outer(s + one)]
            }
            _ => [constant(0.0); 4],
        };
        let mut weights = weights;
        for _ in 0..order {
            weights = weights.map(|w| w * slope);
        }
        weights
    }
}

/// A place brought into the image; where that moves it, or at the ends, the slope is 0.
#[inline(always)]
fn clipped<R: Real>(c: R, slope: R, last: R) -> (R, R) {
    let zero = R::c(0.0);
    let at = R::where_le(c, zero, zero, R::where_le(last, c, last, c));
    (at, R::where_le(c, zero, zero, R::where_le(last, c, zero, slope)))
}

/// The derivative of a cubic, given by its coefficients from the constant one up.
#[inline(always)]
fn polynomial<R: Real>(order: usize, x: R, of: [f64; 4], constant: impl Fn(f64) -> R) -> R {
    let [a, b, c, d] = of;
    match order {
        0 => R::fma(R::fma(R::fma(R::c(d), x, R::c(c)), x, R::c(b)), x, R::c(a)),
        1 => R::fma(R::fma(R::c(3.0 * d), x, R::c(2.0 * c)), x, R::c(b)),
        2 => R::fma(R::c(6.0 * d), x, R::c(2.0 * c)),
        _ => constant(6.0 * d),
    }
}
