//! Integers as indices of a session.

use super::{Session, Var};
use crate::graph::Source;
use crate::nats::{Nats, whole};
use dittograd_device::AnyBuffer;
use dittograd_numerics::error::Result;
use dittograd_numerics::tensor::Tensor;

impl Session {
    /// The numbers of a list as indices, for ops that gather. A compiled program reads them at every run.
    pub fn nats(&self, nats: &Nats) -> Result<Var<'_>> {
        let upload = || {
            let values = nats.values();
            AnyBuffer::upload_indices(self.device(), &Tensor::new(&[values.len()], values)?)
        };
        self.leaf("nats", Source::Nats(nats.clone()), upload, false)
    }
}

/// # Numbers as indices
impl<'s> Var<'s> {
    /// The elements as indices, for integers stored as floats, such as token ids in a data file. Each must be an
    /// integer from 0 up that its type holds exactly; the error names the first that is not. Waits for the device.
    #[doc(alias = "long")]
    pub fn to_index(self) -> Result<Var<'s>> {
        let ids = whole(&self.value::<f32>()?, f64::from(1 << f32::MANTISSA_DIGITS))?;
        self.session.labels(&Tensor::with_shape(self.shape()?, ids)?)
    }
}
