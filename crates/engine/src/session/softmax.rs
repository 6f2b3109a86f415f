//! Softmax: along the last axis, along any other, under a mask.

use super::Var;
use dittograd_numerics::error::Result;
use dittograd_ops::softmax::{LogSoftmax, LogSoftmaxAxis, MaskedSoftmax, Softmax, SoftmaxAxis};

/// # Softmax
impl<'s> Var<'s> {
    /// Softmax along the last axis.
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
        self.session().apply(Softmax, &[self])
    }

    /// Logarithm of the softmax along the last axis.
    #[track_caller]
    pub fn log_softmax(self) -> Result<Var<'s>> {
        self.session().apply(LogSoftmax, &[self])
    }

    /// Softmax along an axis.
    #[track_caller]
    pub fn softmax_axis(self, axis: usize) -> Result<Var<'s>> {
        if Some(axis) == self.shape()?.rank().checked_sub(1) {
            return self.softmax();
        }
        self.session().apply(SoftmaxAxis { axis }, &[self])
    }

    /// Logarithm of the softmax along an axis.
    #[track_caller]
    pub fn log_softmax_axis(self, axis: usize) -> Result<Var<'s>> {
        if Some(axis) == self.shape()?.rank().checked_sub(1) {
            return self.log_softmax();
        }
        self.session().apply(LogSoftmaxAxis { axis }, &[self])
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
