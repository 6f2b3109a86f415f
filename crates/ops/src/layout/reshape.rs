//! Views: the same elements under another shape, and the same value without a gradient.

use super::reshape_to;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, IndexBound, Io, Op, Recorder, Val, mismatch};
use dittograd_device::Meta;
use dittograd_device::cuda::Source;
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// Methods shared by ops that only relabel their input. Nothing runs if the memory can be shared.
macro_rules! view_methods {
    () => {
        fn index_bound(&self, _ins: &[Meta]) -> IndexBound {
            IndexBound::OfInputs(1)
        }

        fn view(&self, _ins: &[Meta]) -> Option<usize> {
            Some(0)
        }

        fn cpu(&self, run: CpuRun<'_>) {
            run.out.copy_from_slice(run.ins[0]);
        }

        fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
            run.cuda.copy(run.out, run.ins[0], run.shape.numel() * 4)
        }

        fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
            Vec::new()
        }
    };
}

/// The same elements under another shape with as many elements. Shares memory with its input.
#[derive(Clone, Debug, PartialEq)]
pub struct Reshape {
    /// Shape of the value.
    pub shape: Shape,
}

impl Op for Reshape {
    const NAME: &'static str = "reshape";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x] = crate::arity(Self::NAME, ins)?;
        if x.shape.numel() != self.shape.numel() {
            return Err(mismatch(Self::NAME, "element counts differ", x.shape, self.shape));
        }
        Ok(Meta { shape: self.shape, ..x })
    }

    view_methods!();

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let x = r.meta(io.ins[0]).shape;
        reshape_to(r, dy, x).map(|v| vec![Some(v)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        ins[0].num()?.clone().reshape(self.shape)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("shape", Attr::List(self.shape.dims().to_vec()))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Reshape> {
        attrs.only(&["shape"])?;
        Ok(Reshape { shape: Shape::new(&attrs.list("shape")?)? })
    }
}

/// The same value, cut off from gradients. Shares memory with its input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Detach;

impl Op for Detach {
    const NAME: &'static str = "detach";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x] = crate::arity(Self::NAME, ins)?;
        Ok(x)
    }

    view_methods!();

    fn vjp(&self, _r: &mut dyn Recorder, _io: Io<'_>, _dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(vec![None])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        ins[0].num().cloned()
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn from_attrs(attrs: &Attrs) -> Result<Detach> {
        attrs.only(&[])?;
        Ok(Detach)
    }
}
