//! Pooling over the last axes of a value: max, average, smooth max, and max and average to a given size.
//!
//! The window of output cell `o` holds, along each axis, the input positions `o stride - padding + k dilation` for `k`
//! from 0 to below the kernel size. Every sum over a window, and in gradients every sum over the windows that hold a
//! cell, is sequential from +0, in row-major order of the cells or of the windows.

/// Defines a struct with attributes and implements [`Op`] for it from its [`Pooling`].
macro_rules! pool_op {
    (
        $(#[$doc:meta])* $op:ident $name:literal $arity:literal
        { $($(#[$field_doc:meta])* $field:ident: $ty:ty = $from:expr, $to:expr;)* } $attrs:ident
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $op {
            $($(#[$field_doc])* pub $field: $ty,)*
        }

        impl Op for $op {
            const NAME: &'static str = $name;

            fn shape(&self, ins: &[Meta]) -> Result<Meta> {
                let shapes: [Shape; $arity] = floats(Self::NAME, ins)?;
                Ok(Meta::f32(Pooling::shape(self, &shapes)?))
            }

            fn cpu(&self, run: CpuRun<'_>) {
                let planes = self.planes(&run.metas[0].shape, &run.shape);
                Pooling::cpu(self, &planes, run);
            }

            fn prepared(&self, ins: &[Meta]) -> Option<Kernel> {
                let (op, out) = (self.clone(), Op::shape(self, ins).ok()?.shape);
                let planes = self.planes(&ins[0].shape, &out);
                Some(Box::new(move |run| Pooling::cpu(&op, &planes, run)))
            }

            fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
                let (kernel, scalar) = self.pool_kernel();
                self.planes(&run.metas[0].shape, &run.shape).run_cuda(kernel, scalar, run)
            }

            fn cuda_modules(&self, ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
                let out = Op::shape(self, ins).map_or(ins[0].shape, |m| m.shape);
                self.planes(&ins[0].shape, &out).modules(self.pool_kernel().0, None)
            }

            fn fusion(&self, _ins: &[Meta]) -> $crate::fused::Fusion {
                self.pool_kernel().0.fusion()
            }

            fn fused_modules(
                &self,
                ins: &[Meta],
                _gpu: &Gpu,
                fused: $crate::fused::FusedCode<'_>,
            ) -> Option<Vec<Source>> {
                let epilogue = fused.only_epilogue().filter(|e| !e.by_column())?;
                let out = Op::shape(self, ins).ok()?.shape;
                Some(self.planes(&ins[0].shape, &out).modules(self.pool_kernel().0, Some(epilogue)))
            }

            fn workspace(&self, ins: &[Meta], device: &dittograd_device::Device) -> usize {
                match Op::shape(self, ins) {
                    Ok(out) if device.is_cuda() => {
                        self.planes(&ins[0].shape, &out.shape).cuda_workspace(self.pool_kernel().0)
                    }
                    _ => 0,
                }
            }

            fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
                Pooling::vjp(self, r, io, dy)
            }

            fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
                $crate::pool::reference(self, ins)
            }

            fn attrs(&self) -> Vec<(&'static str, Attr)> {
                let mut all: Vec<(&'static str, Attr)> = Vec::new();
                $(all.extend($to(&self.$field));)*
                all
            }

            fn from_attrs($attrs: &Attrs) -> Result<$op> {
                Ok($op { $($field: $from?,)* })
            }
        }
    };
}

mod adaptive;
mod adaptive_max;
mod avg;
#[cfg(feature = "cases")]
mod cases;
mod cpu;
mod cuda;
mod max;
mod smooth;
mod window;

pub use adaptive::{AdaptiveAvgPool, AdaptiveAvgPoolBwd};
pub use adaptive_max::{AdaptiveMaxPool, AdaptiveMaxPoolBwd, AdaptiveMaxPoolPick};
pub use avg::{AvgPool, AvgPoolBwd};
pub use max::{MaxPool, MaxPoolBwd, MaxPoolPick};
pub use smooth::{SmoothMaxPool, SmoothMaxPoolBwd, SmoothMaxPoolSum};
pub use window::PoolWindow;

use crate::{AnyTensor, Attr, CpuRun, Io, Op, Recorder, Val};
use cuda::PoolKernel;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use window::Planes;

/// What differs between pooling ops of `INPUTS` inputs. Methods with the names of [`Op`]'s do the same on planes.
trait Pooling<const INPUTS: usize>: Op {
    /// Shape of the value, or an error about the inputs' shapes.
    fn shape(&self, ins: &[Shape; INPUTS]) -> Result<Shape>;

    /// The planes and windows for the shapes of the first input and of the value.
    fn planes(&self, first: &Shape, out: &Shape) -> Planes;

    /// The CUDA kernel and its scalar argument.
    fn pool_kernel(&self) -> (PoolKernel, f32);

    /// Fills the output on the CPU.
    fn cpu(&self, planes: &Planes, run: CpuRun<'_>);

    /// Records the gradients of the inputs.
    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>>;

    /// The value of one plane from the definition, given that plane of each input.
    fn reference<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T>;
}

/// [`Op::reference`] of a pooling op: plane by plane.
fn reference<const INPUTS: usize, P: Pooling<INPUTS>, T: Scalar>(
    op: &P,
    ins: &[AnyTensor<T>],
) -> Result<Tensor<T>> {
    let tensors: Vec<&Tensor<T>> = ins.iter().map(AnyTensor::num).collect::<Result<_>>()?;
    let shapes: Vec<Shape> = tensors.iter().map(|t| t.shape()).collect();
    let shapes: [Shape; INPUTS] = shapes
        .try_into()
        .map_err(|_| Error::new(P::NAME, ErrorKind::Arity { want: INPUTS, got: ins.len() }))?;
    let out = Pooling::shape(op, &shapes)?;
    let planes = op.planes(&shapes[0], &out);
    let mut value = Vec::with_capacity(out.numel());
    for plane in 0..planes.count {
        let part = |t: &&Tensor<T>| -> std::ops::Range<usize> {
            let len = t.data().len() / planes.count;
            plane * len..(plane + 1) * len
        };
        let parts: Vec<&[T]> = tensors.iter().map(|t| &t.data()[part(t)]).collect();
        value.extend(Pooling::reference(op, &planes, &parts));
    }
    Tensor::with_shape(out, value)
}

fn sizes_attr(sizes: &[usize]) -> Vec<(&'static str, Attr)> {
    vec![("sizes", Attr::List(sizes.to_vec()))]
}
