//! The mean of each window.

use super::cpu::{scale, share_step, sum_step};
use super::{
    Cells, Job, Planes, Window, alike, averages, inverse, pooled, resized, sizes_attr, spread, window_from,
    windowed,
};
use crate::pointwise::program::Scratch;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Kernel, Op, Recorder, Val, floats};
use dittograd_device::Meta;
use dittograd_device::cuda::Source;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

pub(super) fn count_attr(count: &bool) -> Vec<(&'static str, Attr)> {
    vec![("count_include_pad", Attr::Bool(*count))]
}

/// The shape of the input of windows whose values have shape `dy`, checked.
pub(super) fn input_of(
    op: &'static str,
    w: &Window,
    dy: &Shape,
    sizes: &[usize],
    full: bool,
) -> Result<Shape> {
    pooled(op, dy, w.kernel.len())?;
    if sizes.len() != w.kernel.len() {
        let why = format!("{sizes:?} must have one entry per entry of kernel {:?}", w.kernel);
        return Err(Error::argument(op, "sizes", why));
    }
    let x = resized(dy, sizes)?;
    alike(op, "the gradient must have one element per window", windowed(op, w, &x, full)?, *dy)?;
    Ok(x)
}

pool_op! {
    /// The mean of each window. Padding counts as cells of value 0, or, if `count_include_pad` is false, not at all.
    /// The sum is multiplied by the rounded `1 / cells`.
    AvgPool "avg_pool" 1 {
        /// The windows; where padding does not count it is at most half of the kernel.
        window: Window = window_from(attrs, &["count_include_pad"]), Window::attrs;
        /// Whether padding counts as cells.
        count_include_pad: bool = attrs.flag("count_include_pad"), count_attr;
    } attrs
}

pool_op! {
    /// Gradient of [`AvgPool`] from the upstream gradient: each window's, times its rounded `1 / cells`, to all its real
    /// cells.
    AvgPoolBwd "avg_pool_bwd" 1 {
        /// The windows.
        window: Window = window_from(attrs, &["count_include_pad", "sizes"]), Window::attrs;
        /// Whether padding counts as cells.
        count_include_pad: bool = attrs.flag("count_include_pad"), count_attr;
        /// Sizes of the pooled axes of the input.
        sizes: Vec<usize> = attrs.list("sizes"), sizes_attr;
    } attrs
}

impl AvgPool {
    fn check(&self, [x]: &[Shape; 1]) -> Result<Shape> {
        windowed(Self::NAME, &self.window, x, self.count_include_pad)
    }

    fn planes(&self, x: &Shape, out: &Shape) -> Planes {
        Planes::new(x, out, self.window.kernel.len(), Cells::Fixed(self.window.clone()))
    }

    fn job(&self) -> (Job, f32) {
        (Job::Avg { counted: self.count_include_pad }, inverse(self.window.cells()))
    }

    fn run(&self, planes: &Planes, run: CpuRun<'_>) {
        let (simd, x, len) = (run.simd, run.ins[0], planes.input_len());
        let ((stride, kernel), last) = (planes.last(), planes.rank() - 1);
        planes.each_output_row(run, |plane, o, _, out| {
            let x = &x[plane * len..(plane + 1) * len];
            out.fill(0.0);
            planes.rows(o, |row| {
                let Some(row) = row else { return };
                for k in 0..kernel {
                    let (range, first) = planes.span(k);
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
                    *out *= inverse(planes.real(&o));
                }
            }
        });
    }

    fn record_vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let x = r.meta(io.ins[0]).shape;
        let sizes = pooled(Self::NAME, &x, self.window.kernel.len())?.to_vec();
        let op = AvgPoolBwd { window: self.window.clone(), count_include_pad: self.count_include_pad, sizes };
        Ok(vec![Some(r.record(op.into(), &[dy])?)])
    }

    fn value<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        averages(planes, ins[0], self.count_include_pad)
    }
}

impl AvgPoolBwd {
    fn check(&self, [dy]: &[Shape; 1]) -> Result<Shape> {
        input_of(Self::NAME, &self.window, dy, &self.sizes, self.count_include_pad)
    }

    fn planes(&self, dy: &Shape, out: &Shape) -> Planes {
        Planes::new(out, dy, self.window.kernel.len(), Cells::Fixed(self.window.clone()))
    }

    fn job(&self) -> (Job, f32) {
        (Job::AvgBwd { counted: self.count_include_pad }, inverse(self.window.cells()))
    }

    fn run(&self, planes: &Planes, run: CpuRun<'_>) {
        let (simd, dy, outputs) = (run.simd, run.ins[0], planes.output_len());
        let ((stride, kernel), last) = (planes.last(), planes.rank() - 1);
        let width = planes.output[last];
        planes.each_input_plane(run, |plane, out| {
            let mut scaled = Scratch::take(width);
            let scaled = &mut scaled.words()[..width];
            planes.each_row_of_plane(|o, at| {
                let dy = &dy[plane * outputs + at..][..width];
                let mut o = *o;
                // Windows of one row in increasing order reach a cell with their cells in decreasing order.
                let (dy, factor) = if self.count_include_pad {
                    (dy, inverse(self.window.cells()))
                } else {
                    for (i, s) in scaled.iter_mut().enumerate() {
                        o[last] = i;
                        *s = dy[i] * inverse(planes.real(&o));
                    }
                    (&*scaled, 1.0)
                };
                planes.rows(&o, |row| {
                    let Some(row) = row else { return };
                    for k in (0..kernel).rev() {
                        let (range, first) = planes.span(k);
                        if !range.is_empty() {
                            share_step(simd, &dy[range], factor, stride, &mut out[row + first..]);
                        }
                    }
                });
            });
        });
    }

    fn record_vjp(&self, r: &mut dyn Recorder, _io: Io<'_>, v: Val) -> Result<Vec<Option<Val>>> {
        let op = AvgPool { window: self.window.clone(), count_include_pad: self.count_include_pad };
        Ok(vec![Some(r.record(op.into(), &[v])?)])
    }

    fn value<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        spread(planes, ins[0], self.count_include_pad)
    }
}
