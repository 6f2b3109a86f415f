//! A smooth maximum: the log-sum-exp of each window.

use super::Pooling;
use super::cpu::{largest_step, shift_row, smooth_row, spread_step, term_step, weigh_step};
use super::cuda::PoolKernel;
use super::window::{Cells, Planes, PoolWindow, three_shapes, window_from, window_shape};
use crate::pointwise::expression::{Pointwise, Scratch};
use crate::pointwise::record_pointwise;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Kernel, Op, Recorder, Val, floats};
use dittograd_device::Meta;
use dittograd_device::cuda::Source;
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::{Real, Scalar};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

pub(super) fn beta_attr(beta: &f32) -> Vec<(&'static str, Attr)> {
    vec![("beta", Attr::Num(f64::from(*beta)))]
}

pub(super) fn check_beta(op: &'static str, beta: f32) -> Result<()> {
    if beta.is_finite() && beta != 0.0 {
        return Ok(());
    }
    Err(Error::argument(op, "beta", format!("is {beta}, use a finite number other than 0")))
}

/// The largest `beta v`, or 0 if it is infinite: then the exponentials give the infinite result.
#[inline(always)]
pub(super) fn finite_shift<R: Real>(m: R) -> R {
    R::where_gt(R::c(f64::INFINITY), m.abs(), m, R::c(0.0))
}

/// `e^(beta v - m)`.
#[inline(always)]
pub(super) fn shifted_exp<R: Real>(beta: R, v: R, m: R) -> R {
    (beta * v - m).exp()
}

/// `(m + ln s) / beta`.
#[inline(always)]
pub(super) fn log_sum_exp<R: Real>(m: R, s: R, beta: R) -> R {
    (m + s.log()) / beta
}

/// `g e^(beta (x - y))`: a cell's weight in a window of value `y`, times `g`.
#[inline(always)]
pub(super) fn weighted_exp<R: Real>(beta: R, x: R, y: R, g: R) -> R {
    g * (beta * (x - y)).exp()
}

/// Records a formula of two values of one shape.
fn scaled_product(r: &mut dyn Recorder, a: Val, b: Val, factor: f32) -> Result<Val> {
    let program = Pointwise::trace(2, |v| vec![(v[0] * v[1]) * Real::c(f64::from(factor))]);
    let shape = r.meta(a).shape;
    record_pointwise(r, &program, shape, &[a, b])
}

/// A callback for strided cells: the cells, their stride, and the outputs they belong to.
pub(super) type Visit<'f> = &'f mut dyn FnMut(&[f32], usize, std::ops::Range<usize>);

pool_op! {
    /// Smooth max pooling: `ln(sum e^(beta v)) / beta` over each window, with the largest `beta v` subtracted first.
    /// Padding takes part with value 0. It is not a mean: a constant window of `K` cells gives `c + ln(K) / beta`. A
    /// negative `beta` gives a smooth minimum.
    SmoothMaxPool "smooth_max_pool" 1 {
        /// The windows, with any padding: a window of padding only gives `ln(K) / beta`.
        window: PoolWindow = window_from(attrs, &["beta"]), PoolWindow::attrs;
        /// Sharpness: finite and not 0.
        beta: f32 = attrs.num("beta").map(|b| b as f32), beta_attr;
    } attrs
}

pool_op! {
    /// Gradient of [`SmoothMaxPool`] from `x`, its value `y` and the upstream gradient: `dx = sum dy e^(beta (x - y))` over the
    /// windows that hold a cell.
    SmoothMaxPoolBwd "smooth_max_pool_bwd" 3 {
        /// The windows.
        window: PoolWindow = window_from(attrs, &["beta"]), PoolWindow::attrs;
        /// Sharpness.
        beta: f32 = attrs.num("beta").map(|b| b as f32), beta_attr;
    } attrs
}

pool_op! {
    /// `sum v e^(beta (x - y))` over the real cells of each window, from `x, y, v`: the adjoint of [`SmoothMaxPoolBwd`].
    SmoothMaxPoolSum "smooth_max_pool_sum" 3 {
        /// The windows.
        window: PoolWindow = window_from(attrs, &["beta"]), PoolWindow::attrs;
        /// Sharpness.
        beta: f32 = attrs.num("beta").map(|b| b as f32), beta_attr;
    } attrs
}

impl Pooling<1> for SmoothMaxPool {
    fn shape(&self, [x]: &[Shape; 1]) -> Result<Shape> {
        check_beta(Self::NAME, self.beta)?;
        window_shape(Self::NAME, &self.window, x, true)
    }

    fn planes(&self, x: &Shape, out: &Shape) -> Planes {
        Planes::new(x, out, self.window.kernel.len(), Cells::Fixed(self.window.clone()))
    }

    fn pool_kernel(&self) -> (PoolKernel, f32) {
        (PoolKernel::Smooth, self.beta)
    }

    fn cpu(&self, planes: &Planes, run: CpuRun<'_>) {
        let (simd, x, len, beta) = (run.simd, run.ins[0], planes.input_len(), self.beta);
        let ((stride, kernel), width) = (planes.last_axis(), planes.output[planes.rank() - 1]);
        planes.each_output_row(run, |plane, o, _, out| {
            let x = &x[plane * len..(plane + 1) * len];
            let mut scratch = Scratch::take(2 * width);
            let (m, zeros) = scratch.words()[..2 * width].split_at_mut(width);
            m.fill(f32::NEG_INFINITY);
            zeros.fill(0.0);
            // For each cell of the kernel: real for a range of outputs, padding outside it.
            let each = |f: Visit<'_>| {
                planes.rows(o, |row| {
                    for k in 0..kernel {
                        let (range, first) = match row {
                            Some(_) => planes.real_span(k),
                            None => (0..0, 0),
                        };
                        f(zeros, 1, 0..range.start);
                        if let Some(row) = row.filter(|_| !range.is_empty()) {
                            f(&x[row + first..], stride, range.clone());
                        }
                        f(zeros, 1, range.end..width);
                    }
                });
            };
            each(&mut |x, stride, range| largest_step(simd, beta, x, stride, &mut m[range]));
            shift_row(simd, m);
            out.fill(0.0);
            each(&mut |x, stride, range| {
                term_step(simd, beta, x, stride, &m[range.clone()], &mut out[range]);
            });
            smooth_row(simd, beta, m, out);
        });
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let op = SmoothMaxPoolBwd { window: self.window.clone(), beta: self.beta };
        Ok(vec![Some(r.record(op.into(), &[io.ins[0], io.out, dy])?)])
    }

    fn reference<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        let beta = T::from_f32(self.beta);
        let one = |o: usize| {
            let window = planes.window(o);
            let values: Vec<T> = window.iter().map(|i| beta * i.map_or(T::c(0.0), |i| ins[0][i])).collect();
            let m = values.iter().copied().fold(values[0], |m, v| if v > m { v } else { m });
            let s = values.iter().fold(T::c(0.0), |s, &v| s + (v - m).exp());
            (m + s.log()) / beta
        };
        (0..planes.output_len()).map(one).collect()
    }
}

impl Pooling<3> for SmoothMaxPoolBwd {
    fn shape(&self, shapes: &[Shape; 3]) -> Result<Shape> {
        check_beta(Self::NAME, self.beta)?;
        let out = window_shape(Self::NAME, &self.window, &shapes[0], true)?;
        three_shapes(Self::NAME, out, shapes, false)
    }

    fn planes(&self, x: &Shape, _out: &Shape) -> Planes {
        let out = window_shape(Self::NAME, &self.window, x, true).unwrap_or(*x);
        Planes::new(x, &out, self.window.kernel.len(), Cells::Fixed(self.window.clone()))
    }

    fn pool_kernel(&self) -> (PoolKernel, f32) {
        (PoolKernel::SmoothBwd, self.beta)
    }

    fn cpu(&self, planes: &Planes, run: CpuRun<'_>) {
        let (simd, beta) = (run.simd, self.beta);
        let (x, y, dy) = (run.ins[0], run.ins[1], run.ins[2]);
        let (len, outputs) = (planes.input_len(), planes.output_len());
        let ((stride, kernel), width) = (planes.last_axis(), planes.output[planes.rank() - 1]);
        planes.each_input_plane(run, |plane, out| {
            let x = &x[plane * len..(plane + 1) * len];
            planes.each_row_of_plane(|o, at| {
                let at = plane * outputs + at;
                let (y, dy) = (&y[at..at + width], &dy[at..at + width]);
                planes.rows(o, |row| {
                    let Some(row) = row else { return };
                    for k in (0..kernel).rev() {
                        let (range, first) = planes.real_span(k);
                        if !range.is_empty() {
                            let (x, out) = (&x[row + first..], &mut out[row + first..]);
                            spread_step(simd, beta, x, stride, &y[range.clone()], &dy[range], out);
                        }
                    }
                });
            });
        });
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, v: Val) -> Result<Vec<Option<Val>>> {
        // Let f = sum dy e^(beta (x - y)) and S = sum v e^(beta (x - y)). The gradients are: by x, beta v f; by y,
        // -beta dy S; by dy, S.
        let op = SmoothMaxPoolSum { window: self.window.clone(), beta: self.beta };
        let by_dy = r.record(op.into(), &[io.ins[0], io.ins[1], v])?;
        let by_x = scaled_product(r, v, io.out, self.beta)?;
        let by_y = scaled_product(r, io.ins[2], by_dy, -self.beta)?;
        Ok(vec![Some(by_x), Some(by_y), Some(by_dy)])
    }

    fn reference<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        let beta = T::from_f32(self.beta);
        let mut out = vec![T::c(0.0); planes.input_len()];
        for o in 0..planes.output_len() {
            for i in planes.window(o).into_iter().flatten() {
                out[i] = out[i] + ins[2][o] * (beta * (ins[0][i] - ins[1][o])).exp();
            }
        }
        out
    }
}

impl Pooling<3> for SmoothMaxPoolSum {
    fn shape(&self, shapes: &[Shape; 3]) -> Result<Shape> {
        check_beta(Self::NAME, self.beta)?;
        let out = window_shape(Self::NAME, &self.window, &shapes[0], true)?;
        three_shapes(Self::NAME, out, shapes, true)
    }

    fn planes(&self, x: &Shape, out: &Shape) -> Planes {
        Planes::new(x, out, self.window.kernel.len(), Cells::Fixed(self.window.clone()))
    }

    fn pool_kernel(&self) -> (PoolKernel, f32) {
        (PoolKernel::SmoothSum, self.beta)
    }

    fn cpu(&self, planes: &Planes, run: CpuRun<'_>) {
        let (simd, beta, len) = (run.simd, self.beta, planes.input_len());
        let (x, y, v) = (run.ins[0], run.ins[1], run.ins[2]);
        let (stride, kernel) = planes.last_axis();
        planes.each_output_row(run, |plane, o, at, out| {
            let cells = plane * len..(plane + 1) * len;
            let (x, v) = (&x[cells.clone()], &v[cells]);
            out.fill(0.0);
            planes.rows(o, |row| {
                let Some(row) = row else { return };
                for k in 0..kernel {
                    let (range, first) = planes.real_span(k);
                    if !range.is_empty() {
                        let y = &y[at + range.start..at + range.end];
                        let from = row + first;
                        weigh_step(simd, beta, &x[from..], &v[from..], stride, y, &mut out[range]);
                    }
                }
            });
        });
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, u: Val) -> Result<Vec<Option<Val>>> {
        // Let S = sum v e^(beta (x - y)) and B = sum u e^(beta (x - y)). The gradients are: by v, B; by x, beta v B; by
        // y, -beta u S.
        let op = SmoothMaxPoolBwd { window: self.window.clone(), beta: self.beta };
        let by_v = r.record(op.into(), &[io.ins[0], io.ins[1], u])?;
        let by_x = scaled_product(r, io.ins[2], by_v, self.beta)?;
        let by_y = scaled_product(r, u, io.out, -self.beta)?;
        Ok(vec![Some(by_x), Some(by_y), Some(by_v)])
    }

    fn reference<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        let beta = T::from_f32(self.beta);
        let one = |o: usize| {
            planes
                .window(o)
                .into_iter()
                .flatten()
                .fold(T::c(0.0), |s, i| s + ins[2][i] * (beta * (ins[0][i] - ins[1][o])).exp())
        };
        (0..planes.output_len()).map(one).collect()
    }
}
