//! Max pooling.

use super::Pooling;
use super::cpu::{NO_CELL, max_step};
use super::cuda::PoolKernel;
use super::window::{Cells, Planes, PoolWindow, three_shapes, window_from, window_shape};
use crate::pointwise::expression::Scratch;
use crate::reduce::extremum::{larger, same};
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Kernel, Op, Recorder, Val, floats};
use dittograd_device::Meta;
use dittograd_device::cuda::Source;
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

pool_op! {
    /// Max pooling: the largest element of each window. Padding is ignored. A NaN counts as larger than every number. A
    /// window of `-inf` gives `-inf`, and so does a window without a real cell (which only dilation can cause).
    MaxPool "max_pool" 1 {
        /// The windows. Padding is at most half of the kernel.
        window: PoolWindow = window_from(attrs, &[]), PoolWindow::attrs;
    } attrs
}

pool_op! {
    /// Gradient of [`MaxPool`] from `x`, its value `y` and the upstream gradient. Each window's gradient goes to its
    /// first cell, in row-major order, that is the same number as the window's `y`.
    MaxPoolBwd "max_pool_bwd" 3 {
        /// The windows.
        window: PoolWindow = window_from(attrs, &[]), PoolWindow::attrs;
    } attrs
}

pool_op! {
    /// From `x, y, v`, for each window: the element of `v` at the cell that [`MaxPoolBwd`] gives the window's gradient
    /// to; 0 if there is none.
    MaxPoolPick "max_pool_pick" 3 {
        /// The windows.
        window: PoolWindow = window_from(attrs, &[]), PoolWindow::attrs;
    } attrs
}

/// What max pooling of any windows is, by its definition.
impl Planes {
    /// The largest cell of each window.
    pub(super) fn reference_max<T: Scalar>(&self, ins: &[&[T]]) -> Vec<T> {
        let one = |o: usize| {
            let cells = self.window(o).into_iter().flatten().map(|i| ins[0][i]);
            cells.fold(T::c(f64::NEG_INFINITY), |best, v| if larger(v, best) { v } else { best })
        };
        (0..self.output_len()).map(one).collect()
    }

    /// The first cell of a window of `x` that is the same number as its `y`.
    fn reference_first<T: Scalar>(&self, ins: &[&[T]], o: usize) -> Option<usize> {
        self.window(o).into_iter().flatten().find(|&i| same(ins[0][i], ins[1][o]))
    }

    /// From `x, y, dy`: the gradient of each window at its first cell.
    pub(super) fn reference_max_bwd<T: Scalar>(&self, ins: &[&[T]]) -> Vec<T> {
        let mut out = vec![T::c(0.0); self.input_len()];
        for o in 0..self.output_len() {
            if let Some(i) = self.reference_first(ins, o) {
                out[i] = out[i] + ins[2][o];
            }
        }
        out
    }

    /// From `x, y, v`: the element of `v` at the first cell of each window, or 0.
    pub(super) fn reference_pick<T: Scalar>(&self, ins: &[&[T]]) -> Vec<T> {
        let one = |o: usize| self.reference_first(ins, o).map_or(T::c(0.0), |i| ins[2][i]);
        (0..self.output_len()).map(one).collect()
    }
}

impl Pooling<1> for MaxPool {
    fn shape(&self, [x]: &[Shape; 1]) -> Result<Shape> {
        window_shape(Self::NAME, &self.window, x, false)
    }

    fn planes(&self, x: &Shape, out: &Shape) -> Planes {
        Planes::new(x, out, self.window.kernel.len(), Cells::Fixed(self.window.clone()))
    }

    fn pool_kernel(&self) -> (PoolKernel, f32) {
        (PoolKernel::Max, 0.0)
    }

    fn cpu(&self, planes: &Planes, run: CpuRun<'_>) {
        let (simd, x, len) = (run.simd, run.ins[0], planes.input_len());
        let (stride, kernel) = planes.last_axis();
        planes.each_output_row(run, |plane, o, _, out| {
            let x = &x[plane * len..(plane + 1) * len];
            out.fill(f32::NEG_INFINITY);
            planes.rows(o, |row| {
                let Some(row) = row else { return };
                for k in 0..kernel {
                    let (range, first) = planes.real_span(k);
                    if !range.is_empty() {
                        max_step(simd, &x[row + first..], stride, &mut out[range]);
                    }
                }
            });
        });
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let op = MaxPoolBwd { window: self.window.clone() };
        Ok(vec![Some(r.record(op.into(), &[io.ins[0], io.out, dy])?)])
    }

    fn reference<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        planes.reference_max(ins)
    }
}

impl Pooling<3> for MaxPoolBwd {
    fn shape(&self, shapes: &[Shape; 3]) -> Result<Shape> {
        let out = window_shape(Self::NAME, &self.window, &shapes[0], false)?;
        three_shapes(Self::NAME, out, shapes, false)
    }

    fn planes(&self, x: &Shape, _out: &Shape) -> Planes {
        // The shape rule has checked that the windows fit.
        let out = window_shape(Self::NAME, &self.window, x, false).unwrap_or(*x);
        Planes::new(x, &out, self.window.kernel.len(), Cells::Fixed(self.window.clone()))
    }

    fn pool_kernel(&self) -> (PoolKernel, f32) {
        (PoolKernel::MaxBwd, 0.0)
    }

    fn cpu(&self, planes: &Planes, run: CpuRun<'_>) {
        let (x, y, dy, simd) = (run.ins[0], run.ins[1], run.ins[2], run.simd);
        let (len, outputs) = (planes.input_len(), planes.output_len());
        let width = planes.output[planes.rank() - 1];
        planes.each_input_plane(run, |plane, out| {
            let x = &x[plane * len..(plane + 1) * len];
            let mut scratch = Scratch::take(width);
            let found: &mut [u32] = bytemuck::cast_slice_mut(&mut scratch.words()[..width]);
            planes.each_row_of_plane(|o, at| {
                let at = plane * outputs + at;
                planes.first_cells(simd, x, o, &y[at..at + width], found);
                for (&cell, dy) in found.iter().zip(&dy[at..]).filter(|(c, _)| **c != NO_CELL) {
                    out[cell as usize] += dy;
                }
            });
        });
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, v: Val) -> Result<Vec<Option<Val>>> {
        let op = MaxPoolPick { window: self.window.clone() };
        let by_dy = r.record(op.into(), &[io.ins[0], io.ins[1], v])?;
        Ok(vec![None, None, Some(by_dy)])
    }

    fn reference<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        planes.reference_max_bwd(ins)
    }
}

impl Pooling<3> for MaxPoolPick {
    fn shape(&self, shapes: &[Shape; 3]) -> Result<Shape> {
        let out = window_shape(Self::NAME, &self.window, &shapes[0], false)?;
        three_shapes(Self::NAME, out, shapes, true)
    }

    fn planes(&self, x: &Shape, out: &Shape) -> Planes {
        Planes::new(x, out, self.window.kernel.len(), Cells::Fixed(self.window.clone()))
    }

    fn pool_kernel(&self) -> (PoolKernel, f32) {
        (PoolKernel::Pick, 0.0)
    }

    fn cpu(&self, planes: &Planes, run: CpuRun<'_>) {
        let (x, y, v, simd, len) = (run.ins[0], run.ins[1], run.ins[2], run.simd, planes.input_len());
        planes.each_output_row(run, |plane, o, at, out| {
            let cells = plane * len..(plane + 1) * len;
            let (x, v) = (&x[cells.clone()], &v[cells]);
            let mut scratch = Scratch::take(out.len());
            let found: &mut [u32] = bytemuck::cast_slice_mut(&mut scratch.words()[..out.len()]);
            planes.first_cells(simd, x, o, &y[at..at + out.len()], found);
            for (out, &cell) in out.iter_mut().zip(&*found) {
                *out = if cell == NO_CELL { 0.0 } else { v[cell as usize] };
            }
        });
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, u: Val) -> Result<Vec<Option<Val>>> {
        let op = MaxPoolBwd { window: self.window.clone() };
        let by_v = r.record(op.into(), &[io.ins[0], io.ins[1], u])?;
        Ok(vec![None, None, Some(by_v)])
    }

    fn reference<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        planes.reference_pick(ins)
    }
}
