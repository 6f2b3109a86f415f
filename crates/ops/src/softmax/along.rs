//! A formula along one axis of a value: which kernels run it, and its definition.

use super::rows::{Formula, RowKernel};
use crate::fused::FusedCode;
use crate::{AnyTensor, CpuRun, CudaRun, Gpu};
use dittograd_device::Device;
use dittograd_device::cuda::Source;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use std::array::from_fn;

/// A value around an axis of `n` elements that are `inner` apart; `outer` is the product of the axes before it. Rows, whose
/// elements are neighbours, and columns have kernels of their own.
#[derive(Clone, Copy)]
pub(super) struct Along {
    outer: usize,
    /// Elements along the axis.
    pub n: usize,
    inner: usize,
}

impl Along {
    /// Along an axis of a shape. A scalar has one axis of one element.
    pub(super) fn axis(shape: Shape, axis: usize) -> Along {
        match shape.dims().get(axis..) {
            Some([n, inner @ ..]) => {
                Along { outer: shape.dims()[..axis].iter().product(), n: *n, inner: inner.iter().product() }
            }
            _ => Along { outer: 1, n: 1, inner: 1 },
        }
    }

    /// Along the last axis.
    pub(super) fn last(shape: Shape) -> Along {
        Along::axis(shape, shape.rank().saturating_sub(1))
    }

    /// Words of workspace.
    pub(super) fn workspace(self, device: &Device) -> usize {
        match device.as_cuda() {
            Some(cuda) if self.inner == 1 => RowKernel::workspace(self.outer, self.n, &Gpu::of(cuda)),
            None if self.inner != 1 => RowKernel::columns_workspace(self.inner),
            _ => 0,
        }
    }

    /// Runs a formula on the CPU.
    pub(super) fn cpu<const N: usize>(self, f: impl Formula<N>, run: CpuRun<'_>) {
        if self.inner == 1 { f.run_cpu(self.n, run) } else { f.columns_cpu(self.n, self.inner, run) }
    }

    /// Queues a formula on CUDA.
    pub(super) fn cuda(self, kernel: &RowKernel, run: &CudaRun<'_>) -> Result<()> {
        if self.inner == 1 {
            kernel.run_cuda(self.n, run)
        } else {
            kernel.columns_cuda(self.n, self.inner, run)
        }
    }

    /// The modules of a formula.
    pub(super) fn modules(self, kernel: &RowKernel, gpu: &Gpu) -> Vec<Source> {
        vec![if self.inner == 1 { kernel.module(self.n, gpu) } else { kernel.columns_module(self.n) }]
    }

    /// The modules of a formula with a prologue or epilogue.
    pub(super) fn joined(self, kernel: &RowKernel, gpu: &Gpu, fused: FusedCode<'_>) -> Option<Vec<Source>> {
        let module = if self.inner == 1 { kernel.joined(self.n, gpu, fused) } else { None };
        module.map(|module| vec![module])
    }

    /// The value whose rows along the axis are those that `row` appends, from the same rows of the inputs.
    pub(super) fn reference<T: Scalar, const N: usize>(
        self,
        ins: &[AnyTensor<T>],
        row: impl Fn([&[T]; N], &mut Vec<T>),
    ) -> Result<Tensor<T>> {
        let tensors: Vec<&Tensor<T>> = ins.iter().map(AnyTensor::num).collect::<Result<_>>()?;
        let Along { outer, n, inner } = self;
        let mut out = tensors[0].data().to_vec();
        for at in (0..outer).flat_map(|o| (0..inner).map(move |i| o * n * inner + i)) {
            let rows: [Vec<T>; N] = from_fn(|k| (0..n).map(|i| tensors[k].data()[at + i * inner]).collect());
            let mut value = Vec::with_capacity(n);
            row(from_fn(|k| &rows[k][..]), &mut value);
            value.into_iter().enumerate().for_each(|(i, v)| out[at + i * inner] = v);
        }
        Tensor::with_shape(tensors[0].shape(), out)
    }
}

/// Errors if the last axis is empty. A scalar is a row of one element.
pub(super) fn nonempty_last(op: &'static str, x: Shape) -> Result<()> {
    if x.last() == 0 {
        let why = format!("is empty in shape {x}, so a row has no distribution");
        return Err(Error::argument(op, "last axis", why));
    }
    Ok(())
}

/// Errors if there is no such axis or it is empty.
pub(super) fn nonempty_axis(op: &'static str, axis: usize, x: Shape) -> Result<()> {
    match x.dims().get(axis) {
        None => Err(Error::new(op, ErrorKind::Axis { axis, shape: x })),
        Some(0) => {
            let why = format!("is empty in shape {x}, so there is no distribution along it");
            Err(Error::argument(op, "axis", why))
        }
        Some(_) => Ok(()),
    }
}
