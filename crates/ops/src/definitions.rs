//! Ops by their definitions, on devices whose numbers are of any [`Scalar`] type.

use crate::{AnyOp, AnyTensor};
use dittograd_device::{AnyBuffer, DType, Device, Meta};
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::Scalar;
use std::any::Any;

/// What is computed with the numbers of one type: the kernels that [`Device::of_numbers`] keeps.
#[doc(hidden)]
pub struct Definitions {
    run: fn(&Device, &AnyOp, Meta, &[&AnyBuffer]) -> Result<AnyBuffer>,
    /// What the layer above computes with them.
    pub more: Box<dyn Any + Send + Sync>,
}

impl Definitions {
    /// Those of type `T`.
    pub fn of<T: Scalar>(more: Box<dyn Any + Send + Sync>) -> Definitions {
        Definitions { run: run::<T>, more }
    }

    /// Runs an op whose inputs were checked.
    pub(crate) fn run(
        &self,
        device: &Device,
        op: &AnyOp,
        meta: Meta,
        ins: &[&AnyBuffer],
    ) -> Result<AnyBuffer> {
        (self.run)(device, op, meta, ins)
    }
}

fn run<T: Scalar>(device: &Device, op: &AnyOp, meta: Meta, ins: &[&AnyBuffer]) -> Result<AnyBuffer> {
    let ins = ins.iter().map(|x| x.to_any()).collect::<Result<Vec<AnyTensor<T>>>>()?;
    let value = op.reference(&ins)?;
    match meta.dtype {
        DType::F32 => AnyBuffer::upload_for(op.name(), device, &value),
        DType::U32 => AnyBuffer::upload_indices(device, &value.map(|x| x.to_f64() as u32)),
    }
}
