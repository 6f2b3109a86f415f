//! Average pooling.

use super::cpu::{scale, share_step, sum_step};
use super::cuda::PoolKernel;
use super::window::{
    Cells, Planes, PoolWindow, check_shape, pooled_axes, window_from, window_shape, with_last_axes,
};
use super::{Pooling, sizes_attr};
use crate::pointwise::expression::Scratch;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Kernel, Op, Recorder, Val, floats};
use dittograd_device::Meta;
use dittograd_device::cuda::Source;
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

pub(super) fn count_attr(count: &bool) -> Vec<(&'static str, Attr)> {
    vec![("count_include_pad", Attr::Bool(*count))]
}

/// The shape of the input whose windows' values have shape `dy`, checked.
pub(super) fn input_of(
    op: &'static str,
    w: &PoolWindow,
    dy: &Shape,
    sizes: &[usize],
    padding_only: bool,
) -> Result<Shape> {
    pooled_axes(op, dy, w.kernel.len())?;
    if sizes.len() != w.kernel.len() {
        let why = format!("{sizes:?} must have one entry per entry of kernel {:?}", w.kernel);
        return Err(Error::argument(op, "sizes", why));
    }
    let x = with_last_axes(dy, sizes)?;
    check_shape(
        op,
        "the gradient must have one element per window",
        window_shape(op, w, &x, padding_only)?,
        *dy,
    )?;
    Ok(x)
}

/// `1 / cells`, formed in f64 and rounded once.
pub(super) fn inverse(cells: usize) -> f32 {
    (1.0 / cells as f64) as f32
}

/// The sum of the real cells of each window, divided by the number of all its cells or of the real ones.
pub(super) fn reference_avg<T: Scalar>(planes: &Planes, x: &[T], count_padding: bool) -> Vec<T> {
    let one = |o: usize| {
        let window = planes.window(o);
        let sum = window.iter().flatten().fold(T::c(0.0), |s, &i| s + x[i]);
        let count = if count_padding { window.len() } else { window.iter().flatten().count() };
        sum / T::c(count as f64)
    };
    (0..planes.output_len()).map(one).collect()
}

/// The adjoint of [`reference_avg`].
pub(super) fn reference_avg_bwd<T: Scalar>(planes: &Planes, dy: &[T], count_padding: bool) -> Vec<T> {
    let mut out = vec![T::c(0.0); planes.input_len()];
    for (o, &dy) in dy.iter().enumerate() {
        let window = planes.window(o);
        let count = if count_padding { window.len() } else { window.iter().flatten().count() };
        window.iter().flatten().for_each(|&i| out[i] = out[i] + dy / T::c(count as f64));
    }
    out
}

pool_op! {
    /// Average pooling: the mean of each window. Padding counts as cells of value 0, or not at all if
    /// `count_include_pad` is false. The sum is multiplied by the rounded `1 / cells`.
    AvgPool "avg_pool" 1 {
        /// The windows. If padding does not count, it is at most half of the kernel.
        window: PoolWindow = window_from(attrs, &["count_include_pad"]), PoolWindow::attrs;
        /// Whether padding counts as cells.
        count_include_pad: bool = attrs.flag("count_include_pad"), count_attr;
    } attrs
}

pool_op! {
    /// Gradient of [`AvgPool`] from the upstream gradient: each window adds its gradient, times the rounded
    /// `1 / cells`, to all its real cells.
    AvgPoolBwd "avg_pool_bwd" 1 {
        /// The windows.
        window: PoolWindow = window_from(attrs, &["count_include_pad", "sizes"]), PoolWindow::attrs;
        /// Whether padding counts as cells.
        count_include_pad: bool = attrs.flag("count_include_pad"), count_attr;
        /// Sizes of the input's pooled axes.
        sizes: Vec<usize> = attrs.list("sizes"), sizes_attr;
    } attrs
}

impl Pooling<1> for AvgPool {
    fn shape(&self, [x]: &[Shape; 1]) -> Result<Shape> {
        window_shape(Self::NAME, &self.window, x, self.count_include_pad)
    }

    fn planes(&self, x: &Shape, out: &Shape) -> Planes {
        Planes::new(x, out, self.window.kernel.len(), Cells::Fixed(self.window.clone()))
    }

    fn pool_kernel(&self) -> (PoolKernel, f32) {
        (PoolKernel::Avg { count_padding: self.count_include_pad }, inverse(self.window.cells()))
    }

    fn cpu(&self, planes: &Planes, run: CpuRun<'_>) {
        let (simd, x, len) = (run.simd, run.ins[0], planes.input_len());
        let ((stride, kernel), last) = (planes.last_axis(), planes.rank() - 1);
        planes.each_output_row(run, |plane, o, _, out| {
            let x = &x[plane * len..(plane + 1) * len];
            out.fill(0.0);
            planes.rows(o, |row| {
                let Some(row) = row else { return };
                for k in 0..kernel {
                    let (range, first) = planes.real_span(k);
                    if !range.is_empty() {
                        sum_step(simd, &x[row + first..], stride, &mut out[range]);
                    }
                }
            });
            if self.count_include_pad {
                scale(simd, inverse(self.window.cells()), out);
            } else {
                let mut o = *o;
                for (i, out) in out.iter_mut().enumerate() {
                    o[last] = i;
                    *out *= inverse(planes.real_cells(&o));
                }
            }
        });
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let x = r.meta(io.ins[0]).shape;
        let sizes = pooled_axes(Self::NAME, &x, self.window.kernel.len())?.to_vec();
        let op = AvgPoolBwd { window: self.window.clone(), count_include_pad: self.count_include_pad, sizes };
        Ok(vec![Some(r.record(op.into(), &[dy])?)])
    }

    fn reference<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        reference_avg(planes, ins[0], self.count_include_pad)
    }
}

impl Pooling<1> for AvgPoolBwd {
    fn shape(&self, [dy]: &[Shape; 1]) -> Result<Shape> {
        input_of(Self::NAME, &self.window, dy, &self.sizes, self.count_include_pad)
    }

    fn planes(&self, dy: &Shape, out: &Shape) -> Planes {
        Planes::new(out, dy, self.window.kernel.len(), Cells::Fixed(self.window.clone()))
    }

    fn pool_kernel(&self) -> (PoolKernel, f32) {
        (PoolKernel::AvgBwd { count_padding: self.count_include_pad }, inverse(self.window.cells()))
    }

    fn cpu(&self, planes: &Planes, run: CpuRun<'_>) {
        let (simd, dy, outputs) = (run.simd, run.ins[0], planes.output_len());
        let ((stride, kernel), last) = (planes.last_axis(), planes.rank() - 1);
        let width = planes.output[last];
        planes.each_input_plane(run, |plane, out| {
            let mut scaled = Scratch::take(width);
            let scaled = &mut scaled.words()[..width];
            planes.each_row_of_plane(|o, at| {
                let dy = &dy[plane * outputs + at..][..width];
                let mut o = *o;
                // For one input cell, increasing windows of a row mean decreasing kernel cells.
                let (dy, factor) = if self.count_include_pad {
                    (dy, inverse(self.window.cells()))
                } else {
                    for (i, s) in scaled.iter_mut().enumerate() {
                        o[last] = i;
                        *s = dy[i] * inverse(planes.real_cells(&o));
                    }
                    (&*scaled, 1.0)
                };
                planes.rows(&o, |row| {
                    let Some(row) = row else { return };
                    for k in (0..kernel).rev() {
                        let (range, first) = planes.real_span(k);
                        if !range.is_empty() {
                            share_step(simd, &dy[range], factor, stride, &mut out[row + first..]);
                        }
                    }
                });
            });
        });
    }

    fn vjp(&self, r: &mut dyn Recorder, _io: Io<'_>, v: Val) -> Result<Vec<Option<Val>>> {
        let op = AvgPool { window: self.window.clone(), count_include_pad: self.count_include_pad };
        Ok(vec![Some(r.record(op.into(), &[v])?)])
    }

    fn reference<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        reference_avg_bwd(planes, ins[0], self.count_include_pad)
    }
}
