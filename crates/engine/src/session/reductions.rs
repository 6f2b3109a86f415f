//! Reductions. Axes are dropped, or kept with size 1 if `keepdim` is true.

use super::{Session, Var};
use dittograd_numerics::environment::single;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Real;
use dittograd_numerics::shape::{Position, Shape};
use dittograd_ops::AnyOp;
use dittograd_ops::layout::broadcast_axes;
use dittograd_ops::norm::check_eps;
use dittograd_ops::pointwise::expression::Expr;
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

/// The dimensions of a reduction over `axes`.
fn reduced(shape: &Shape, axes: &[usize], keepdim: bool) -> Vec<usize> {
    let kept = |(a, &d): (usize, &usize)| match axes.contains(&a) {
        true => keepdim.then_some(1),
        false => Some(d),
    };
    shape.dims().iter().enumerate().filter_map(kept).collect()
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
    pub fn sum_axes(self, axes: &[impl Position]) -> Result<Var<'s>> {
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
    pub fn sum_dim(self, axes: &[impl Position], keepdim: bool) -> Result<Var<'s>> {
        let axes = &self.axes("sum_dim", axes)?[..];
        self.reduce(Sum::new(axes)?, axes, keepdim)
    }

    /// Sum over the axes along which a value of shape `dims` would be broadcast to this one: the adjoint of [`Var::expand`].
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(0.0, 6.0, 1.0)?.reshape(&[2, 3])?; // [[0. 1. 2.] [3. 4. 5.]]
    /// assert_eq!(x.sum_to_size(&[2, 1])?.to_string(), "[[ 3.]\n [12.]]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn sum_to_size(self, dims: &[usize]) -> Result<Var<'s>> {
        let (from, to) = (self.shape()?, Shape::new(dims)?);
        if to.broadcast(&from).ok() != Some(from) {
            let why = "the size to sum to must broadcast to the value";
            return Err(Error::new("sum_to_size", ErrorKind::Shapes { why, left: to, right: from }));
        }
        match broadcast_axes(&from, &to) {
            axes if axes.is_empty() => self.reshape(dims),
            axes => self.sum_axes(&axes)?.reshape(dims),
        }
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
    pub fn mean_axes(self, axes: &[impl Position]) -> Result<Var<'s>> {
        self.mean_dim(axes, false)
    }

    /// Mean over some axes. A mean of no elements is NaN.
    #[track_caller]
    pub fn mean_dim(self, axes: &[impl Position], keepdim: bool) -> Result<Var<'s>> {
        let axes = &self.axes("mean_dim", axes)?[..];
        self.reduce(Mean::new(axes)?, axes, keepdim)
    }

    /// Product of all elements.
    #[track_caller]
    pub fn prod(self) -> Result<Var<'s>> {
        self.session().apply(Prod::all(self.shape()?.rank()), &[self])
    }

    /// Product over some axes. A product of no elements is 1. The gradient is also correct at zeros.
    #[track_caller]
    pub fn prod_dim(self, axes: &[impl Position], keepdim: bool) -> Result<Var<'s>> {
        let axes = &self.axes("prod_dim", axes)?[..];
        self.reduce(Prod::new(axes)?, axes, keepdim)
    }

    /// The largest element over some axes, NaN if there is one. The gradient goes to the first of several largest
    /// elements in row-major order, or to the first NaN.
    #[doc(alias = "max")]
    #[track_caller]
    pub fn amax(self, axes: &[impl Position], keepdim: bool) -> Result<Var<'s>> {
        let axes = &self.axes("amax", axes)?[..];
        self.reduce(Amax::new(axes)?, axes, keepdim)
    }

    /// The smallest element over some axes, NaN if there is one. The gradient goes to the first of several smallest
    /// elements in row-major order, or to the first NaN.
    #[doc(alias = "min")]
    #[track_caller]
    pub fn amin(self, axes: &[impl Position], keepdim: bool) -> Result<Var<'s>> {
        let axes = &self.axes("amin", axes)?[..];
        self.reduce(Amin::new(axes)?, axes, keepdim)
    }

    /// The position of the largest element over some axes, counted in row-major order, as indices. The first of
    /// several, or the first NaN.
    #[track_caller]
    pub fn argmax(self, axes: &[impl Position], keepdim: bool) -> Result<Var<'s>> {
        let axes = &self.axes("argmax", axes)?[..];
        self.arg("argmax", axes, keepdim, |axes| Argmax::new(axes).map(AnyOp::from))
    }

    /// The position of the smallest element over some axes, counted in row-major order, as indices. The first of
    /// several, or the first NaN.
    #[track_caller]
    pub fn argmin(self, axes: &[impl Position], keepdim: bool) -> Result<Var<'s>> {
        let axes = &self.axes("argmin", axes)?[..];
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
        // Of one element each, the first.
        if axes.is_empty() {
            let rank = shape.rank();
            return self.session().apply(op(&[rank])?, &[self.unsqueeze(rank)?]);
        }
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
    pub fn logsumexp(self, axes: &[impl Position], keepdim: bool) -> Result<Var<'s>> {
        let axes = &self.axes("logsumexp", axes)?[..];
        self.reduce(Logsumexp::new(axes)?, axes, keepdim)
    }

    /// Variance over some axes: the sum of squares is divided by the count minus `correction` (0 biased, 1 unbiased).
    #[track_caller]
    pub fn var(self, axes: &[impl Position], correction: usize, keepdim: bool) -> Result<Var<'s>> {
        let axes = &self.axes("var", axes)?[..];
        self.reduce(Variance::new(axes, correction)?, axes, keepdim)
    }

    /// The square root of [`Var::var`]. Its gradient is zero where it is zero.
    #[track_caller]
    pub fn std(self, axes: &[impl Position], correction: usize, keepdim: bool) -> Result<Var<'s>> {
        let axes = &self.axes("std", axes)?[..];
        self.reduce(StdDev::new(axes, correction)?, axes, keepdim)
    }

    /// The value divided by its [norm](Var::norm) along an axis, or by `eps` if that is larger. PyTorch's defaults are 2, 1 and
    /// 1e-12.
    #[track_caller]
    pub fn normalize(self, p: f64, axis: impl Position, eps: f64) -> Result<Var<'s>> {
        let axis = self.axis("normalize", axis)?;
        check_eps("normalize", single(eps))?;
        let norm = self.norm(p, &[axis], true)?;
        self.div(norm.max(norm.full_like(eps)?)?)
    }

    /// Norm over some axes, `(Σ |x|^p)^(1/p)` for any number `p`: 1 is the sum of magnitudes, 2 the square root of the sum of
    /// squares, infinity the largest magnitude, minus infinity the smallest, 0 the count of elements that are not 0. Its
    /// gradient is zero where the norm is zero.
    #[doc(alias = "vector_norm")]
    #[track_caller]
    pub fn norm(self, p: f64, axes: &[impl Position], keepdim: bool) -> Result<Var<'s>> {
        let axes = &self.axes("norm", axes)?[..];
        let op: AnyOp = match p {
            1.0 => NormL1::new(axes)?.into(),
            2.0 => NormL2::new(axes)?.into(),
            f64::INFINITY => NormInf::new(axes)?.into(),
            0.0 => return self.count_nonzero(axes)?.reshape(&reduced(&self.shape()?, axes, keepdim)),
            f64::NEG_INFINITY => return self.abs()?.amin(axes, keepdim),
            _ if p.is_nan() => return Err(Error::argument("norm", "p", "is NaN, use a number")),
            _ => return self.abs()?.pow_scalar(p)?.sum_dim(axes, keepdim)?.root(p),
        };
        self.reduce(op, axes, keepdim)
    }

    /// `x^(1/p)` of a sum of powers. Its gradient is zero where it is zero.
    #[track_caller]
    fn root(self, p: f64) -> Result<Var<'s>> {
        self.session().pointwise(&[self], |v| {
            let zero = Expr::c(0.0);
            // Neither end has a slope that can be multiplied by zero.
            let inside = Expr::where_eq(v[0], zero, Expr::c(1.0), v[0]);
            let at_zero = if p > 0.0 { zero } else { Expr::c(f64::INFINITY) };
            Expr::where_eq(v[0], zero, at_zero, inside.pow(Expr::c(1.0 / p)))
        })
    }
}
