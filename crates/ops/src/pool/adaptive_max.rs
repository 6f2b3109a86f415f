//! Max pooling to a given output size.

use super::adaptive::adapted;
use super::cuda::PoolKernel;
use super::window::{Cells, Planes, coordinates, three_shapes};
use super::{Pooling, sizes_attr};
use crate::reduce::extremum::{larger, same};
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Kernel, Op, Recorder, Val, floats};
use dittograd_device::Meta;
use dittograd_device::cuda::Source;
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::{MAX_RANK, Shape};
use dittograd_numerics::tensor::Tensor;

pool_op! {
    /// Max pooling to given sizes: output cell `o` of `m`, along an axis of `n`, is the largest of the cells from
    /// `floor(o n / m)` to below `ceil((o + 1) n / m)`. A NaN counts as larger than every number.
    AdaptiveMaxPool "adaptive_max_pool" 1 {
        /// Sizes of the value's pooled axes.
        sizes: Vec<usize> = attrs.only(&["sizes"]).and_then(|()| attrs.list("sizes")), sizes_attr;
    } attrs
}

pool_op! {
    /// Gradient of [`AdaptiveMaxPool`] from `x`, its value `y` and the upstream gradient. Each window's gradient goes to
    /// its first cell, in row-major order, that is the same number as the window's `y`.
    AdaptiveMaxPoolBwd "adaptive_max_pool_bwd" 3 {
        /// Sizes of the pooled axes of `y`.
        sizes: Vec<usize> = attrs.only(&["sizes"]).and_then(|()| attrs.list("sizes")), sizes_attr;
    } attrs
}

pool_op! {
    /// From `x, y, v`, for each window: the element of `v` at the cell that [`AdaptiveMaxPoolBwd`] gives the window's
    /// gradient to; 0 if there is none.
    AdaptiveMaxPoolPick "adaptive_max_pool_pick" 3 {
        /// Sizes of the pooled axes of `y`.
        sizes: Vec<usize> = attrs.only(&["sizes"]).and_then(|()| attrs.list("sizes")), sizes_attr;
    } attrs
}

impl Planes {
    /// Calls `f` with the start of each run of cells of an adaptive window, and their number.
    fn each_run(&self, o: &[usize; MAX_RANK], mut f: impl FnMut(usize, usize)) {
        let last = self.rank() - 1;
        let (start, cells) = (o[last] * self.input[last] / self.output[last], self.kernel(last, o[last]));
        self.rows(o, |row| {
            if let Some(row) = row {
                f(row + start, cells);
            }
        });
    }

    /// The first cell of an adaptive window that is the same number as `y`.
    fn first_cell(&self, x: &[f32], o: &[usize; MAX_RANK], y: f32) -> Option<usize> {
        let mut first = None;
        self.each_run(o, |at, cells| {
            if first.is_none() {
                first = x[at..at + cells].iter().position(|&v| same(v, y)).map(|i| at + i);
            }
        });
        first
    }
}

impl Pooling<1> for AdaptiveMaxPool {
    fn shape(&self, [x]: &[Shape; 1]) -> Result<Shape> {
        adapted(Self::NAME, x, &self.sizes)
    }

    fn planes(&self, x: &Shape, out: &Shape) -> Planes {
        Planes::new(x, out, self.sizes.len(), Cells::Adaptive)
    }

    fn pool_kernel(&self) -> (PoolKernel, f32) {
        (PoolKernel::Max, 0.0)
    }

    fn cpu(&self, planes: &Planes, run: CpuRun<'_>) {
        let (x, len, last) = (run.ins[0], planes.input_len(), planes.rank() - 1);
        planes.each_output_row(run, |plane, o, _, out| {
            let x = &x[plane * len..(plane + 1) * len];
            let mut o = *o;
            for (i, out) in out.iter_mut().enumerate() {
                o[last] = i;
                let mut best = f32::NEG_INFINITY;
                planes.each_run(&o, |at, cells| {
                    best = x[at..at + cells].iter().fold(best, |b, &v| if larger(v, b) { v } else { b });
                });
                *out = best;
            }
        });
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let op = AdaptiveMaxPoolBwd { sizes: self.sizes.clone() };
        Ok(vec![Some(r.record(op.into(), &[io.ins[0], io.out, dy])?)])
    }

    fn reference<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        planes.reference_max(ins)
    }
}

impl Pooling<3> for AdaptiveMaxPoolBwd {
    fn shape(&self, shapes: &[Shape; 3]) -> Result<Shape> {
        three_shapes(Self::NAME, adapted(Self::NAME, &shapes[0], &self.sizes)?, shapes, false)
    }

    fn planes(&self, x: &Shape, _out: &Shape) -> Planes {
        // The shape rule has checked the sizes.
        let out = adapted(Self::NAME, x, &self.sizes).unwrap_or(*x);
        Planes::new(x, &out, self.sizes.len(), Cells::Adaptive)
    }

    fn pool_kernel(&self) -> (PoolKernel, f32) {
        (PoolKernel::MaxBwd, 0.0)
    }

    fn cpu(&self, planes: &Planes, run: CpuRun<'_>) {
        let (x, y, dy) = (run.ins[0], run.ins[1], run.ins[2]);
        let (len, outputs) = (planes.input_len(), planes.output_len());
        planes.each_input_plane(run, |plane, out| {
            let x = &x[plane * len..(plane + 1) * len];
            for i in 0..outputs {
                let (o, at) = (coordinates(i, &planes.output), plane * outputs + i);
                if let Some(cell) = planes.first_cell(x, &o, y[at]) {
                    out[cell] += dy[at];
                }
            }
        });
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, v: Val) -> Result<Vec<Option<Val>>> {
        let op = AdaptiveMaxPoolPick { sizes: self.sizes.clone() };
        let by_dy = r.record(op.into(), &[io.ins[0], io.ins[1], v])?;
        Ok(vec![None, None, Some(by_dy)])
    }

    fn reference<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        planes.reference_max_bwd(ins)
    }
}

impl Pooling<3> for AdaptiveMaxPoolPick {
    fn shape(&self, shapes: &[Shape; 3]) -> Result<Shape> {
        three_shapes(Self::NAME, adapted(Self::NAME, &shapes[0], &self.sizes)?, shapes, true)
    }

    fn planes(&self, x: &Shape, out: &Shape) -> Planes {
        Planes::new(x, out, self.sizes.len(), Cells::Adaptive)
    }

    fn pool_kernel(&self) -> (PoolKernel, f32) {
        (PoolKernel::Pick, 0.0)
    }

    fn cpu(&self, planes: &Planes, run: CpuRun<'_>) {
        let (x, y, v, len, last) =
            (run.ins[0], run.ins[1], run.ins[2], planes.input_len(), planes.rank() - 1);
        planes.each_output_row(run, |plane, o, at, out| {
            let cells = plane * len..(plane + 1) * len;
            let (x, v) = (&x[cells.clone()], &v[cells]);
            let mut o = *o;
            for (i, out) in out.iter_mut().enumerate() {
                o[last] = i;
                *out = planes.first_cell(x, &o, y[at + i]).map_or(0.0, |cell| v[cell]);
            }
        });
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, u: Val) -> Result<Vec<Option<Val>>> {
        let op = AdaptiveMaxPoolBwd { sizes: self.sizes.clone() };
        let by_v = r.record(op.into(), &[io.ins[0], io.ins[1], u])?;
        Ok(vec![None, None, Some(by_v)])
    }

    fn reference<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        planes.reference_pick(ins)
    }
}
