//! Integers as indices of a session.

use super::{Session, Var};
use crate::graph::Source;
use crate::nats::{Nats, whole};
use dittograd_device::AnyBuffer;
use dittograd_numerics::error::{Located, Result};
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::index::{ToFloat, ToIndex};

impl Session {
    /// The numbers of a list as indices, for ops that gather. A compiled program reads them at every run.
    #[track_caller]
    pub fn nats(&self, nats: &Nats) -> Result<Var<'_>> {
        let upload = || {
            let values = nats.values();
            AnyBuffer::upload_indices(self.device(), &Tensor::new(&[values.len()], values)?)
        };
        self.leaf("nats", Source::Nats(nats.clone()), upload, false)
    }
}

/// # Numbers and indices
impl<'s> Var<'s> {
    /// Indices as numbers, rounded to nearest: those up to 2^24 are exact.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let scores = session.input(&Tensor::new(&[2, 3], vec![0.1f32, 0.7, 0.2, 0.9, 0.0, 0.1])?)?;
    /// let labels = session.labels(&Tensor::new(&[2], vec![1, 2])?)?;
    /// let right = scores.argmax(&[1], false)?.eq(labels)?; // 1 where they are equal, else 0
    /// assert_eq!((right.to_string(), right.mean()?.item()?), ("[1. 0.]".to_string(), 0.5));
    /// assert_eq!(labels.to_float()?.to_string(), "[1. 2.]");
    /// # Ok::<(), Error>(())
    /// ```
    #[doc(alias("float", "to_f32", "cast"))]
    #[track_caller]
    pub fn to_float(self) -> Result<Var<'s>> {
        self.session.apply(ToFloat {}, &[self])
    }

    /// Numbers as indices below `below`: rounded toward zero, then clamped to `0..below`; NaN gives 0. Runs on the device, so it
    /// can be part of a compiled program; [`Var::to_index`] refuses numbers that are no indices.
    #[track_caller]
    pub fn to_index_below(self, below: u32) -> Result<Var<'s>> {
        self.session.apply(ToIndex { below }, &[self])
    }

    /// The elements as indices, for integers stored as floats, such as token ids in a data file. Each must be an
    /// integer from 0 up that its type holds exactly; the error names the first that is not. Waits for the device.
    #[doc(alias = "long")]
    #[track_caller]
    pub fn to_index(self) -> Result<Var<'s>> {
        let fixed = "to_index_below(n)";
        self.session.only_eager("to_index", fixed)?;
        let ids = whole(&self.value::<f32>()?, f64::from(1 << f32::MANTISSA_DIGITS)).located()?;
        self.session.labels(&Tensor::with_shape(self.shape()?, ids)?)
    }
}
