//! Quantiles.

use super::Var;
use dittograd_numerics::environment;
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::Real;
use dittograd_numerics::shape::Position;
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::order::ArgSort;
use dittograd_ops::pointwise::expression::Expr;

/// What a quantile between two elements is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuantileRule {
    /// Between them, by the distance from the lower one.
    #[default]
    Linear,
    /// The lower one.
    Lower,
    /// The higher one.
    Higher,
    /// The middle between them.
    Midpoint,
    /// The nearer one; in the middle, the one whose position is even.
    Nearest,
}

/// # Quantiles
///
/// The element at a part `q` of the way through the sorted elements, or a number between two neighbours. Gradients go to these.
impl<'s> Var<'s> {
    /// The quantiles `q`, from 0 to 1, along an axis: a first axis with one entry per `q`, then the axes of the value without
    /// `axis`. NaN for a line with a NaN.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.input(&Tensor::new(&[4], vec![3.0f32, 1.0, 2.0, 5.0])?)?;
    /// let quartiles = x.quantile(&[0.25, 0.5], 0, false, QuantileRule::Linear)?;
    /// assert_eq!(quartiles.to_string(), "[1.75 2.5 ]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn quantile(
        self,
        q: &[f64],
        axis: impl Position,
        keepdim: bool,
        interpolation: QuantileRule,
    ) -> Result<Var<'s>> {
        let axis = self.axis("quantile", axis)?;
        const NAME: &str = "quantile";
        let _strict = environment::enter();
        let n = self.counted_dim(NAME, axis)?;
        check_quantiles(NAME, q)?;
        let sorted = self.axis_last(NAME, axis)?.sorted_last()?;
        let last = sorted.shape()?.rank() - 1;
        let ranks = q.iter().map(|q| q * (n - 1) as f64);
        let pick = |round: fn(f64) -> f64| {
            let at = ranks.clone().map(|rank| round(rank) as u32).collect();
            sorted.index_select(last, self.session().indices(&Tensor::new(&[q.len()], at)?)?)
        };
        let value = match interpolation {
            QuantileRule::Lower => pick(f64::floor)?,
            QuantileRule::Higher => pick(f64::ceil)?,
            QuantileRule::Nearest => pick(f64::round_ties_even)?,
            QuantileRule::Linear | QuantileRule::Midpoint => {
                let weight = |rank: f64| match interpolation {
                    QuantileRule::Linear => rank - rank.floor(),
                    _ => 0.5,
                };
                let weights: Vec<f64> = ranks.clone().map(weight).collect();
                let weights = self.session().constant(&Tensor::new(&[q.len()], weights)?)?;
                between(pick(f64::floor)?, pick(f64::ceil)?, weights)?
            }
        };
        value.or_nan_of(sorted)?.quantiles_first(axis, keepdim)
    }

    /// [`Var::quantile`] of a `q` on the device, which has a gradient where the result lies between two elements: a vector, or a
    /// scalar for a result without the first axis. Positions are computed in float32. NaN for a `q` that is not from 0 to 1.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.input(&Tensor::new(&[4], vec![3.0f32, 1.0, 2.0, 5.0])?)?;
    /// let q = session.variable(&Tensor::scalar(0.25))?;
    /// let quartile = x.quantile_by(q, 0, false, QuantileRule::Linear)?;
    /// assert_eq!(quartile.item()?, 1.75);
    /// assert_eq!(session.grad(quartile, &[q])?[0].item()?, 3.0); // 0.75 of the way from 1 to 2, of 3 steps
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn quantile_by(
        self,
        q: Var<'s>,
        axis: impl Position,
        keepdim: bool,
        interpolation: QuantileRule,
    ) -> Result<Var<'s>> {
        const NAME: &str = "quantile_by";
        let axis = self.axis(NAME, axis)?;
        let n = self.counted_dim(NAME, axis)?;
        q.as_quantiles(NAME, axis, keepdim, |list| {
            let sorted = self.axis_last(NAME, axis)?.sorted_last()?;
            let last = sorted.shape()?.rank() - 1;
            let rank = list.scale((n - 1) as f64)?;
            at_ranks(rank, n, interpolation, |at| sorted.index_select(last, at))?.or_nan_of(sorted)
        })
    }

    /// Like [`Var::quantile`], of the elements that are not NaN; NaN if there are none.
    #[track_caller]
    pub fn nanquantile(
        self,
        q: &[f64],
        axis: impl Position,
        keepdim: bool,
        interpolation: QuantileRule,
    ) -> Result<Var<'s>> {
        const NAME: &str = "nanquantile";
        let axis = self.axis(NAME, axis)?;
        check_quantiles(NAME, q)?;
        let q = self.session().constant(&Tensor::new(&[q.len()], q.to_vec())?)?;
        self.nanquantiles(NAME, q, axis, interpolation)?.quantiles_first(axis, keepdim)
    }

    /// Like [`Var::quantile_by`], of the elements that are not NaN; NaN if there are none.
    #[track_caller]
    pub fn nanquantile_by(
        self,
        q: Var<'s>,
        axis: impl Position,
        keepdim: bool,
        interpolation: QuantileRule,
    ) -> Result<Var<'s>> {
        const NAME: &str = "nanquantile_by";
        let axis = self.axis(NAME, axis)?;
        q.as_quantiles(NAME, axis, keepdim, |list| self.nanquantiles(NAME, list, axis, interpolation))
    }

    /// The quantiles of the elements that are not NaN, in the last axis.
    #[track_caller]
    fn nanquantiles(self, op: &str, q: Var<'s>, axis: usize, interpolation: QuantileRule) -> Result<Var<'s>> {
        let n = self.counted_dim(op, axis)?;
        let x = self.axis_last(op, axis)?;
        let sorted = x.sorted_last()?;
        let rank = self
            .session()
            .pointwise(&[x.nans_last()?, q], |v| v[1] * (Expr::c(n as f64 - 1.0) - v[0]).max(Expr::c(0.0)))?;
        at_ranks(rank, n, interpolation, |at| sorted.at_last(at))
    }

    /// The results for these quantiles, a vector or a scalar, which `of` computes in the last axis; NaN for those that are not from 0
    /// to 1.
    #[track_caller]
    fn as_quantiles(
        self,
        op: &str,
        axis: usize,
        keepdim: bool,
        of: impl FnOnce(Var<'s>) -> Result<Var<'s>>,
    ) -> Result<Var<'s>> {
        let scalar = self.shape()?.rank() == 0;
        let list = if scalar { self.flatten()? } else { self };
        list.vector(op)?;
        let value = of(list)?.or_nan_outside(list)?.quantiles_first(axis, keepdim)?;
        if scalar { value.squeeze(0) } else { Ok(value) }
    }

    /// This value, or NaN for a line of `sorted` with a NaN, which is its last element.
    #[track_caller]
    fn or_nan_of(self, sorted: Var<'s>) -> Result<Var<'s>> {
        let shape = sorted.shape()?;
        let largest = sorted.narrow(shape.rank() - 1, shape.last() - 1, 1)?;
        largest.isnan()?.where_(largest, self)
    }

    /// This value, or NaN where `q` is not from 0 to 1.
    #[track_caller]
    fn or_nan_outside(self, q: Var<'s>) -> Result<Var<'s>> {
        self.session().pointwise(&[self, q], |v| {
            let none = Expr::c(f64::NAN);
            Expr::where_le(Expr::c(0.0), v[1], Expr::where_le(v[1], Expr::c(1.0), v[0], none), none)
        })
    }

    /// The elements sorted along the last axis.
    #[track_caller]
    fn sorted_last(self) -> Result<Var<'s>> {
        self.at_last(self.session().apply(ArgSort { descending: false }, &[self])?)
    }

    /// Quantiles in the last axis, moved to the front; with `keepdim` an axis of one element is at `axis` of the others.
    #[track_caller]
    fn quantiles_first(self, axis: usize, keepdim: bool) -> Result<Var<'s>> {
        let last = self.shape()?.rank() - 1;
        // The other axes are in their order already: `axis` was taken out from among them.
        let value = if last == 0 { self } else { self.movedim(last, 0)? };
        if keepdim { value.unsqueeze(axis + 1) } else { Ok(value) }
    }
}

/// The quantiles at `rank`s from 0 to `n - 1` of sorted elements, of which `pick` takes those at some positions.
#[track_caller]
fn at_ranks<'s>(
    rank: Var<'s>,
    n: usize,
    interpolation: QuantileRule,
    pick: impl Fn(Var<'s>) -> Result<Var<'s>>,
) -> Result<Var<'s>> {
    let pick = |at: Var<'s>| pick(at.to_index_below(n as u32)?);
    match interpolation {
        QuantileRule::Lower => pick(rank.floor()?),
        QuantileRule::Higher => pick(rank.ceil()?),
        QuantileRule::Nearest => pick(rank.round()?),
        QuantileRule::Midpoint => between(pick(rank.floor()?)?, pick(rank.ceil()?)?, rank.full_like(0.5)?),
        QuantileRule::Linear => between(pick(rank.floor()?)?, pick(rank.ceil()?)?, rank.sub(rank.floor()?)?),
    }
}

/// `a + w (b - a)`. The difference of equal infinities is 0.
#[track_caller]
fn between<'s>(a: Var<'s>, b: Var<'s>, w: Var<'s>) -> Result<Var<'s>> {
    a.session().pointwise(&[a, b, w], |v| {
        let zero = Expr::c(0.0);
        let equal = Expr::where_eq(v[0], v[1], v[0].abs(), zero);
        let apart = Expr::where_eq(equal, Expr::c(f64::INFINITY), zero, v[1] - v[0]);
        v[0] + v[2] * apart
    })
}

#[track_caller]
fn check_quantiles(op: &str, q: &[f64]) -> Result<()> {
    match q.iter().find(|q| !(0.0..=1.0).contains(*q)) {
        Some(bad) => Err(Error::argument(op, "q", format!("{bad} is not from 0 to 1"))),
        None => Ok(()),
    }
}
