//! Reductions that are made of other ops.

use super::{Session, Var};
use dittograd_device::DType;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Real;
use dittograd_numerics::shape::Position;
use dittograd_ops::pointwise::expression::Expr;

impl Session {
    /// The powers of each element along a new last axis of `columns` elements, from the highest to 0, or (`increasing`) from
    /// 0 up.
    #[doc(alias = "linalg.vander")]
    #[track_caller]
    pub fn vander<'s>(&'s self, x: Var<'s>, columns: usize, increasing: bool) -> Result<Var<'s>> {
        let (shape, axis) = (x.shape()?, x.shape()?.rank());
        let sized = |n: usize| [shape.dims(), &[n]].concat();
        if columns == 0 {
            return self.zeros(&sized(0));
        }
        // Products in order, as a cumulative product: no power of a negative number is left to a logarithm.
        let ones = self.ones(&sized(1))?;
        let rows = match columns {
            1 => ones,
            _ => ones.concat(x.reshape(&sized(1))?.expand(&sized(columns - 1))?, axis)?.cumprod(axis)?,
        };
        if increasing { Ok(rows) } else { rows.flip(&[axis]) }
    }
}

/// A correction that is a whole number.
fn whole(correction: f64) -> Option<usize> {
    (correction >= 0.0 && correction.fract() == 0.0).then_some(correction as usize)
}

/// # More reductions
///
/// Truth values are 0 and 1. Every number but 0 counts as true, also NaN.
impl<'s> Var<'s> {
    /// The sum of elements that are no NaN, over some axes.
    #[track_caller]
    pub fn nansum(self, axes: &[impl Position], keepdim: bool) -> Result<Var<'s>> {
        let zero = self.session().pointwise(&[self], |v| Expr::where_eq(v[0], v[0], v[0], Expr::c(0.0)))?;
        zero.sum_dim(axes, keepdim)
    }

    /// The mean of elements that are no NaN, over some axes. NaN if there is none.
    #[track_caller]
    pub fn nanmean(self, axes: &[impl Position], keepdim: bool) -> Result<Var<'s>> {
        let counts =
            self.session().pointwise(&[self], |v| Expr::where_eq(v[0], v[0], Expr::c(1.0), Expr::c(0.0)))?;
        self.nansum(axes, keepdim)?.div(counts.sum_dim(axes, keepdim)?)
    }

    /// How many elements are not 0, over some axes, as numbers.
    #[track_caller]
    pub fn count_nonzero(self, axes: &[impl Position]) -> Result<Var<'s>> {
        self.truth()?.sum_dim(axes, false)
    }

    #[track_caller]
    fn truth(self) -> Result<Var<'s>> {
        self.session().pointwise(&[self], |v| Expr::where_eq(v[0], Expr::c(0.0), Expr::c(0.0), Expr::c(1.0)))
    }

    /// 1 where all elements over some axes are true, else 0. 1 of no elements.
    #[track_caller]
    pub fn all(self, axes: &[impl Position], keepdim: bool) -> Result<Var<'s>> {
        self.truth()?.prod_dim(axes, keepdim)?.detach()
    }

    /// 1 where some element over some axes is true, else 0. 0 of no elements.
    #[track_caller]
    pub fn any(self, axes: &[impl Position], keepdim: bool) -> Result<Var<'s>> {
        let counts = self.truth()?.sum_dim(axes, keepdim)?;
        counts.clamp_max(1.0)?.detach()
    }

    /// The smallest and the largest element over some axes.
    #[track_caller]
    pub fn aminmax(self, axes: &[impl Position], keepdim: bool) -> Result<(Var<'s>, Var<'s>)> {
        Ok((self.amin(axes, keepdim)?, self.amax(axes, keepdim)?))
    }

    /// [`Var::var`] with any number as its correction: if it is not whole, the biased variance times `n / (n - correction)`.
    #[track_caller]
    pub fn var_corrected(self, axes: &[impl Position], correction: f64, keepdim: bool) -> Result<Var<'s>> {
        if let Some(correction) = whole(correction) {
            return self.var(axes, correction, keepdim);
        }
        let (axes, factor) = self.correction("var_corrected", axes, correction)?;
        self.var(&axes, 0, keepdim)?.scale(factor)
    }

    /// The axes that a caller names, and `n / (n - correction)` for the number `n` of elements along them. Infinity if none is left.
    #[track_caller]
    fn correction(self, op: &str, axes: &[impl Position], correction: f64) -> Result<(Vec<usize>, f64)> {
        let named = self.axes(op, axes)?;
        let shape = self.shape()?;
        let n: f64 = named.iter().map(|&a| shape.dims().get(a).copied().unwrap_or(1) as f64).product();
        Ok((named, n / (n - correction).max(0.0)))
    }

    /// [`Var::std`] with any number as its correction: if it is not whole, the biased deviation times `sqrt(n / (n - correction))`.
    #[track_caller]
    pub fn std_corrected(self, axes: &[impl Position], correction: f64, keepdim: bool) -> Result<Var<'s>> {
        if let Some(correction) = whole(correction) {
            return self.std(axes, correction, keepdim);
        }
        let (axes, factor) = self.correction("std_corrected", axes, correction)?;
        self.std(&axes, 0, keepdim)?.scale(factor.sqrt())
    }

    /// [`Var::var`] and the mean over the same axes.
    #[track_caller]
    pub fn var_mean(
        self,
        axes: &[impl Position],
        correction: usize,
        keepdim: bool,
    ) -> Result<(Var<'s>, Var<'s>)> {
        Ok((self.var(axes, correction, keepdim)?, self.mean_dim(axes, keepdim)?))
    }

    /// [`Var::std`] and the mean over the same axes.
    #[track_caller]
    pub fn std_mean(
        self,
        axes: &[impl Position],
        correction: usize,
        keepdim: bool,
    ) -> Result<(Var<'s>, Var<'s>)> {
        Ok((self.std(axes, correction, keepdim)?, self.mean_dim(axes, keepdim)?))
    }

    /// The covariances of the rows of a matrix, variables by observations: sums of products divided by the count minus
    /// `correction`. Of a vector or of one row, its variance, a scalar.
    #[track_caller]
    pub fn cov(self, correction: usize) -> Result<Var<'s>> {
        let x = self.observations("cov")?;
        if x.shape()?.dims()[0] == 1 {
            return x.var(&[0, 1], correction, false);
        }
        let apart = x.sub(x.mean_dim(&[1], true)?)?;
        let n = x.shape()?.last() as f64 - correction as f64;
        apart.matmul_with(apart, false, true)?.scale(1.0 / n.max(0.0))
    }

    /// [`Var::cov`] of observations that count more than once, as whole numbers or indices, or with a weight each: vectors
    /// `repeats` and `weights`. With `w` their product, sums are divided by `Σ w - correction Σ w weights / Σ w`, which is
    /// `Σ w - correction` without `weights`, or by 0 if that is below.
    #[track_caller]
    pub fn cov_weighted(
        self,
        correction: usize,
        repeats: Option<Var<'s>>,
        weights: Option<Var<'s>>,
    ) -> Result<Var<'s>> {
        const NAME: &str = "cov_weighted";
        let x = self.observations(NAME)?;
        let shape = x.shape()?;
        for given in [repeats, weights].into_iter().flatten() {
            if given.vector(NAME)? != shape.last() {
                let why = "there must be a weight for each observation";
                return Err(Error::new(
                    NAME,
                    ErrorKind::Shapes { why, left: given.shape()?, right: self.shape()? },
                ));
            }
        }
        let repeats = match repeats {
            Some(repeats) if repeats.meta()?.dtype == DType::U32 => Some(repeats.to_float()?),
            other => other,
        };
        let w = match (repeats, weights) {
            (Some(repeats), Some(weights)) => repeats.mul(weights)?,
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => return self.cov(correction),
        };
        let total = w.sum()?;
        let apart = x.sub(x.mul(w)?.sum_dim(&[1], true)?.div(total)?)?;
        let lost = match weights {
            Some(weights) => w.mul(weights)?.sum()?.div(total)?.scale(correction as f64)?,
            None => self.session().full(&[], correction as f64)?,
        };
        let sums = apart.mul(w)?.matmul_with(apart, false, true)?;
        let cov = sums.div(total.sub(lost)?.clamp_min(0.0)?)?;
        if shape.dims()[0] == 1 { cov.reshape(&[]) } else { Ok(cov) }
    }

    /// A matrix of variables by observations; a vector is one variable.
    #[track_caller]
    fn observations(self, op: &str) -> Result<Var<'s>> {
        let shape = self.shape()?;
        match shape.rank() {
            1 => self.unsqueeze(0),
            2 => Ok(self),
            _ => Err(Error::new(op, ErrorKind::Rank { want: "1 or 2", got: shape })),
        }
    }

    /// [`Var::cov`] over the product of both standard deviations, held between -1 and 1.
    #[track_caller]
    pub fn corrcoef(self) -> Result<Var<'s>> {
        let cov = self.cov(1)?;
        let n = cov.shape()?.last();
        if cov.shape()?.rank() == 0 {
            return cov.div(cov);
        }
        let deviation = cov.diagonal(0, 0, 1)?.sqrt()?;
        let scaled = cov.div(deviation.reshape(&[n, 1])?)?.div(deviation)?;
        scaled.clamp_min(-1.0)?.clamp_max(1.0)
    }
}
