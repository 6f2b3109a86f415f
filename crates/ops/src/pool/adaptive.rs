//! Average pooling to a given output size.

use super::avg::{inverse, reference_avg, reference_avg_bwd};
use super::cuda::PoolKernel;
use super::window::{Cells, Planes, coordinates, pooled_axes, with_last_axes};
use super::{Pooling, sizes_attr};
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Kernel, Op, Recorder, Val, floats};
use dittograd_device::Meta;
use dittograd_device::cuda::Source;
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// `x` with the given sizes along its last axes. None may be zero.
pub(super) fn adapted(op: &'static str, x: &Shape, sizes: &[usize]) -> Result<Shape> {
    if sizes.is_empty() {
        return Err(Error::argument(op, "sizes", "names no axis; give one entry per pooled axis"));
    }
    let from = pooled_axes(op, x, sizes.len())?;
    let fits = |&n: &usize| n > 0 && n < 1 << 31;
    if !from.iter().chain(sizes).all(fits) {
        return Err(Error::argument(
            op,
            "sizes",
            format!("from {from:?} to {sizes:?} has an empty or endless axis"),
        ));
    }
    with_last_axes(x, sizes)
}

pool_op! {
    /// Average pooling to given sizes: output cell `o` of `m`, along an axis of `n`, is the mean of the cells from
    /// `floor(o n / m)` to below `ceil((o + 1) n / m)`.
    AdaptiveAvgPool "adaptive_avg_pool" 1 {
        /// Sizes of the value's pooled axes.
        sizes: Vec<usize> = attrs.only(&["sizes"]).and_then(|()| attrs.list("sizes")), sizes_attr;
    } attrs
}

pool_op! {
    /// Gradient of [`AdaptiveAvgPool`] from the upstream gradient.
    AdaptiveAvgPoolBwd "adaptive_avg_pool_bwd" 1 {
        /// Sizes of the input's pooled axes.
        sizes: Vec<usize> = attrs.only(&["sizes"]).and_then(|()| attrs.list("sizes")), sizes_attr;
    } attrs
}

impl Pooling<1> for AdaptiveAvgPool {
    fn shape(&self, [x]: &[Shape; 1]) -> Result<Shape> {
        adapted(Self::NAME, x, &self.sizes)
    }

    fn planes(&self, x: &Shape, out: &Shape) -> Planes {
        Planes::new(x, out, self.sizes.len(), Cells::Adaptive)
    }

    fn pool_kernel(&self) -> (PoolKernel, f32) {
        (PoolKernel::Avg { count_padding: false }, 0.0)
    }

    fn cpu(&self, planes: &Planes, run: CpuRun<'_>) {
        let (x, len, last) = (run.ins[0], planes.input_len(), planes.rank() - 1);
        planes.each_output_row(run, |plane, o, _, out| {
            let x = &x[plane * len..(plane + 1) * len];
            let mut o = *o;
            for (i, out) in out.iter_mut().enumerate() {
                o[last] = i;
                let (start, cells) = (i * planes.input[last] / planes.output[last], planes.kernel(last, i));
                let mut sum = 0.0;
                planes.rows(&o, |row| {
                    let Some(row) = row else { return };
                    x[row + start..][..cells].iter().for_each(|v| sum += v);
                });
                *out = sum * inverse(planes.real_cells(&o));
            }
        });
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let x = r.meta(io.ins[0]).shape;
        let sizes = pooled_axes(Self::NAME, &x, self.sizes.len())?.to_vec();
        Ok(vec![Some(r.record(AdaptiveAvgPoolBwd { sizes }.into(), &[dy])?)])
    }

    fn reference<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        reference_avg(planes, ins[0], false)
    }
}

impl Pooling<1> for AdaptiveAvgPoolBwd {
    fn shape(&self, [dy]: &[Shape; 1]) -> Result<Shape> {
        adapted(Self::NAME, dy, &self.sizes)
    }

    fn planes(&self, dy: &Shape, out: &Shape) -> Planes {
        Planes::new(out, dy, self.sizes.len(), Cells::Adaptive)
    }

    fn pool_kernel(&self) -> (PoolKernel, f32) {
        (PoolKernel::AvgBwd { count_padding: false }, 0.0)
    }

    fn cpu(&self, planes: &Planes, run: CpuRun<'_>) {
        let (dy, outputs, last) = (run.ins[0], planes.output_len(), planes.rank() - 1);
        planes.each_input_plane(run, |plane, out| {
            for i in 0..outputs {
                let o = coordinates(i, &planes.output);
                let g = dy[plane * outputs + i] * inverse(planes.real_cells(&o));
                let start = o[last] * planes.input[last] / planes.output[last];
                let cells = planes.kernel(last, o[last]);
                planes.rows(&o, |row| {
                    let Some(row) = row else { return };
                    out[row + start..][..cells].iter_mut().for_each(|d| *d += g);
                });
            }
        });
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, v: Val) -> Result<Vec<Option<Val>>> {
        let dy = r.meta(io.ins[0]).shape;
        let sizes = pooled_axes(Self::NAME, &dy, self.sizes.len())?.to_vec();
        Ok(vec![Some(r.record(AdaptiveAvgPool { sizes }.into(), &[v])?)])
    }

    fn reference<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        reference_avg_bwd(planes, ins[0], false)
    }
}
