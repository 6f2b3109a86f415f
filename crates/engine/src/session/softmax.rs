//! Softmax: along the last axis, along any other, under a mask.

use super::Var;
use dittograd_numerics::environment::{single, strict};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Real;
use dittograd_numerics::shape::Position;
use dittograd_ops::pointwise::expression::Expr;
use dittograd_ops::softmax::{LogSoftmax, LogSoftmaxAxis, MaskedSoftmax, Softmax, SoftmaxAxis};

/// # Softmax
impl<'s> Var<'s> {
    /// Softmax along the last axis. A value without elements stays as it is.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let logits = session.constant(&Tensor::new(&[3], vec![-1.0f32, 0.0, 2.0])?)?;
    /// assert_eq!(logits.softmax()?.to_string(), "[0.042  0.1142 0.8438]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn softmax(self) -> Result<Var<'s>> {
        if self.shape()?.numel() == 0 {
            return Ok(self);
        }
        self.session().apply(Softmax, &[self])
    }

    /// Logarithm of the softmax along the last axis.
    #[track_caller]
    pub fn log_softmax(self) -> Result<Var<'s>> {
        if self.shape()?.numel() == 0 {
            return Ok(self);
        }
        self.session().apply(LogSoftmax, &[self])
    }

    /// Softmax along an axis.
    #[track_caller]
    pub fn softmax_axis(self, axis: impl Position) -> Result<Var<'s>> {
        let axis = self.axis("softmax_axis", axis)?;
        if Some(axis) == self.shape()?.rank().checked_sub(1) {
            return self.softmax();
        }
        if axis < self.shape()?.rank() && self.shape()?.numel() == 0 {
            return Ok(self);
        }
        self.session().apply(SoftmaxAxis { axis }, &[self])
    }

    /// Logarithm of the softmax along an axis.
    #[track_caller]
    pub fn log_softmax_axis(self, axis: impl Position) -> Result<Var<'s>> {
        let axis = self.axis("log_softmax_axis", axis)?;
        if Some(axis) == self.shape()?.rank().checked_sub(1) {
            return self.log_softmax();
        }
        if axis < self.shape()?.rank() && self.shape()?.numel() == 0 {
            return Ok(self);
        }
        self.session().apply(LogSoftmaxAxis { axis }, &[self])
    }

    /// A random sample of the classes along an axis, by their logits: the softmax of `(x + g) / tau` with Gumbel noise `g`.
    /// If `hard`, the value is a one-hot vector, the gradient still that of the softmax. PyTorch's default `tau` is 1.
    ///
    /// The noise is `-ln(-ln u)` of uniform draws `u`, where a draw of 0 counts as 2^-25.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let logits = session.variable(&Tensor::new(&[3], vec![0.0f32, 50.0, 0.0])?)?;
    /// assert_eq!(logits.gumbel_softmax(1.0, true, 0)?.to_string(), "[0. 1. 0.]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn gumbel_softmax(self, tau: f64, hard: bool, axis: impl Position) -> Result<Var<'s>> {
        let axis = self.axis("gumbel_softmax", axis)?;
        if !(tau > 0.0 && single(tau).is_normal()) {
            return Err(Error::argument("gumbel_softmax", "tau", format!("got {tau}, use a number above 0")));
        }
        let shape = self.shape()?;
        let Some(&classes) = shape.dims().get(axis) else {
            return Err(Error::new("gumbel_softmax", ErrorKind::Axis { axis, shape }));
        };
        if shape.numel() == 0 {
            return Ok(self);
        }
        let draws = self.session().uniform(shape.dims())?;
        let tau = f64::from(single(tau));
        let noisy = self.formula_of("gumbel_softmax", &[draws], |v| {
            let least = Expr::c(strict(|| 1.0 / f64::from(1 << 25)));
            let u = Expr::where_gt(least, v[1], least, v[1]);
            (v[0] - (-u.log()).log()) / Expr::c(tau)
        })?;
        let soft = noisy.softmax_axis(axis)?;
        if !hard {
            return Ok(soft);
        }
        let chosen = soft.argmax(&[axis], false)?.one_hot(classes)?;
        let chosen = if axis + 1 < shape.rank() { chosen.movedim(shape.rank() - 1, axis)? } else { chosen };
        chosen.add(soft.sub(soft.detach()?)?)
    }

    /// Softmax along an axis, where a line of nothing but `-∞` gives zeros instead of NaN.
    #[track_caller]
    pub fn safe_softmax(self, axis: impl Position) -> Result<Var<'s>> {
        let axis = self.named_axis("safe_softmax", axis)?.0;
        let x = self.movedim(axis, -1)?;
        let open = x.detach()?.ne(self.session().scalar(f64::NEG_INFINITY)?)?;
        x.masked_softmax(open)?.movedim(-1, axis)
    }

    /// Softmax along the last axis over the elements that a mask allows, where it is not 0. The other elements become
    /// exactly 0, as does a row with nothing allowed. The mask is float32, or u32 of zeros and ones, and broadcasts by
    /// NumPy's rule. A mask with exactly the last axes of the value is not copied; others must be float32.
    #[track_caller]
    pub fn masked_softmax(self, mask: Var<'s>) -> Result<Var<'s>> {
        let (shape, of) = (self.shape()?, mask.shape()?);
        let fits = of.rank() > 0 && shape.dims().ends_with(of.dims());
        let mask = if fits { mask } else { mask.broadcast_to(shape)? };
        self.session().apply(MaskedSoftmax, &[self, mask])
    }
}
