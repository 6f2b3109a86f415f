//! Reductions. Axes are dropped, or kept with size 1 if `keepdim` is true.

use super::{Session, Var};
use dittograd_numerics::environment::single;
use dittograd_numerics::error::{Error, Result};
use dittograd_ops::AnyOp;
use dittograd_ops::norm::check_eps;
use dittograd_ops::reduce::extremum::{Argmax, Argmin, are_neighbours, axes_last};
use dittograd_ops::reduce::fold::kept;
use dittograd_ops::reduce::global_norm::GlobalNorm;
use dittograd_ops::reduce::{
    Amax, Amin, Logsumexp, Mean, NormInf, NormL1, NormL2, Prod, StdDev, Sum, Variance, sorted_axes,
};

impl Session {
    /// The L2 norm of all elements of these values together. Its gradient is zero where the norm is zero.
    #[doc(alias("get_total_norm", "clip_grad_norm"))]
    #[track_caller]
    pub fn global_norm(&self, values: &[Var<'_>]) -> Result<Var<'_>> {
        self.apply(GlobalNorm, values)
    }
}

/// # Reductions
///
/// Axes are dropped, or kept with size 1 if `keepdim` is true.
impl<'s> Var<'s> {
    /// A reduction over `axes`. With `keepdim` the reduced axes are kept with size 1.
    #[track_caller]
    fn reduce(self, op: impl Into<AnyOp>, axes: &[usize], keepdim: bool) -> Result<Var<'s>> {
        let shape = self.shape()?;
        let value = self.session().apply(op, &[self])?;
        if keepdim { value.reshape(kept(&shape, axes).dims()) } else { Ok(value) }
    }

    /// Sum of all elements.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(0.0, 6.0, 1.0)?.reshape(&[2, 3])?; // [[0. 1. 2.] [3. 4. 5.]]
    /// assert_eq!(x.sum()?.item()?, 15.0);
    /// assert_eq!(x.sum_axes(&[0])?.to_string(), "[3. 5. 7.]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn sum(self) -> Result<Var<'s>> {
        self.session().apply(Sum::all(self.shape()?.rank()), &[self])
    }

    /// Sum over some axes, which are dropped.
    #[track_caller]
    pub fn sum_axes(self, axes: &[usize]) -> Result<Var<'s>> {
        self.sum_dim(axes, false)
    }

    /// Sum over some axes. A sum of no elements is 0.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(0.0, 6.0, 1.0)?.reshape(&[2, 3])?; // [[0. 1. 2.] [3. 4. 5.]]
    /// assert_eq!(x.sum_dim(&[1], true)?.to_string(), "[[ 3.]\n [12.]]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn sum_dim(self, axes: &[usize], keepdim: bool) -> Result<Var<'s>> {
        self.reduce(Sum::new(axes)?, axes, keepdim)
    }

    /// Mean of all elements.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(0.0, 6.0, 1.0)?.reshape(&[2, 3])?; // [[0. 1. 2.] [3. 4. 5.]]
    /// assert_eq!(x.mean()?.item()?, 2.5);
    /// assert_eq!(x.mean_axes(&[1])?.to_string(), "[1. 4.]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn mean(self) -> Result<Var<'s>> {
        self.session().apply(Mean::all(self.shape()?.rank()), &[self])
    }

    /// Mean over some axes, which are dropped.
    #[track_caller]
    pub fn mean_axes(self, axes: &[usize]) -> Result<Var<'s>> {
        self.mean_dim(axes, false)
    }

    /// Mean over some axes. A mean of no elements is NaN.
    #[track_caller]
    pub fn mean_dim(self, axes: &[usize], keepdim: bool) -> Result<Var<'s>> {
        self.reduce(Mean::new(axes)?, axes, keepdim)
    }

    /// Product of all elements.
    #[track_caller]
    pub fn prod(self) -> Result<Var<'s>> {
        self.session().apply(Prod::all(self.shape()?.rank()), &[self])
    }

    /// Product over some axes. A product of no elements is 1. The gradient is also correct at zeros.
    #[track_caller]
    pub fn prod_dim(self, axes: &[usize], keepdim: bool) -> Result<Var<'s>> {
        self.reduce(Prod::new(axes)?, axes, keepdim)
    }

    /// The largest element over some axes, NaN if there is one. The gradient goes to the first of several largest
    /// elements in row-major order, or to the first NaN.
    #[doc(alias = "max")]
    #[track_caller]
    pub fn amax(self, axes: &[usize], keepdim: bool) -> Result<Var<'s>> {
        self.reduce(Amax::new(axes)?, axes, keepdim)
    }

    /// The smallest element over some axes, NaN if there is one. The gradient goes to the first of several smallest
    /// elements in row-major order, or to the first NaN.
    #[doc(alias = "min")]
    #[track_caller]
    pub fn amin(self, axes: &[usize], keepdim: bool) -> Result<Var<'s>> {
        self.reduce(Amin::new(axes)?, axes, keepdim)
    }

    /// The position of the largest element over some axes, counted in row-major order, as indices. The first of
    /// several, or the first NaN.
    #[track_caller]
    pub fn argmax(self, axes: &[usize], keepdim: bool) -> Result<Var<'s>> {
        self.arg("argmax", axes, keepdim, |axes| Argmax::new(axes).map(AnyOp::from))
    }

    /// The position of the smallest element over some axes, counted in row-major order, as indices. The first of
    /// several, or the first NaN.
    #[track_caller]
    pub fn argmin(self, axes: &[usize], keepdim: bool) -> Result<Var<'s>> {
        self.arg("argmin", axes, keepdim, |axes| Argmin::new(axes).map(AnyOp::from))
    }

    #[track_caller]
    fn arg(
        self,
        name: &'static str,
        axes: &[usize],
        keepdim: bool,
        op: impl Fn(&[usize]) -> Result<AnyOp>,
    ) -> Result<Var<'s>> {
        let (shape, axes) = (self.shape()?, sorted_axes(name, axes)?);
        let value = if are_neighbours(&axes) || axes.iter().any(|&a| a >= shape.rank()) {
            self.session().apply(op(&axes)?, &[self])?
        } else {
            let (order, _) = axes_last(shape.rank(), &axes);
            let last: Vec<usize> = (shape.rank() - axes.len()..shape.rank()).collect();
            let turned = self.permute(&order)?;
            self.session().apply(op(&last)?, &[turned])?
        };
        if keepdim { value.reshape(kept(&shape, &axes).dims()) } else { Ok(value) }
    }

    /// `ln Σ e^x` over some axes, without overflow.
    #[track_caller]
    pub fn logsumexp(self, axes: &[usize], keepdim: bool) -> Result<Var<'s>> {
        self.reduce(Logsumexp::new(axes)?, axes, keepdim)
    }

    /// Variance over some axes: the sum of squares is divided by the count minus `correction` (0 biased, 1 unbiased).
    #[track_caller]
    pub fn var(self, axes: &[usize], correction: usize, keepdim: bool) -> Result<Var<'s>> {
        self.reduce(Variance::new(axes, correction)?, axes, keepdim)
    }

    /// The square root of [`Var::var`]. Its gradient is zero where it is zero.
    #[track_caller]
    pub fn std(self, axes: &[usize], correction: usize, keepdim: bool) -> Result<Var<'s>> {
        self.reduce(StdDev::new(axes, correction)?, axes, keepdim)
    }

    /// The value divided by its Euclidean norm along an axis, or by `eps` if that is larger.
    #[track_caller]
    pub fn normalize(self, axis: usize, eps: f64) -> Result<Var<'s>> {
        check_eps("normalize", single(eps))?;
        let norm = self.norm(2.0, &[axis], true)?;
        self.div(norm.max(norm.full_like(eps)?)?)
    }

    /// Norm over some axes: `p` is 1 (sum of magnitudes), 2 (square root of the sum of squares) or infinite
    /// (largest magnitude).
    #[doc(alias = "vector_norm")]
    #[track_caller]
    pub fn norm(self, p: f64, axes: &[usize], keepdim: bool) -> Result<Var<'s>> {
        let op: AnyOp = match p {
            1.0 => NormL1::new(axes)?.into(),
            2.0 => NormL2::new(axes)?.into(),
            f64::INFINITY => NormInf::new(axes)?.into(),
            _ => return Err(Error::argument("norm", "p", format!("got {p}, use 1, 2 or infinity"))),
        };
        self.reduce(op, axes, keepdim)
    }
}
