//! Softmax and log-softmax along the last axis, and their gradients as kernels of their own.

use super::program::{Expr, Program};
use super::rows::RowKernel;
use super::sampling::edge_shape;
use super::{
    Attrs, Bound, CpuRun, CudaRun, Gpu, Io, Op, Recorder, RefIn, Reject, Sample, SampleIn, Val, dims, floats,
    layout, mismatch, reduce,
};
use crate::device::{Device, Meta};
use crate::error::{Error, Result};
use crate::numerics::rng::Stream;
use crate::ops::elementwise;
use crate::scalar::{Real, Scalar};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The row kernel of `softmax`: `t = e^(x - m)`, `y = t (1 / s)`. One reciprocal per row instead of a division
/// per element: the divisions would cost more than the exponentials.
pub(crate) fn softmax_rows() -> RowKernel {
    RowKernel {
        name: "softmax",
        ins: 1,
        max: true,
        term: exp_shifted(),
        post: Program::trace(7, |v| vec![v[3] * v[6]]),
        labels: None,
        scalar: None,
        per_row: false,
    }
}

/// `e^(x - m)`.
pub(crate) fn exp_shifted() -> Program {
    Program::trace(2, |v| vec![(v[0] - v[1]).exp()])
}

fn log_softmax_rows() -> RowKernel {
    let post = |v: &[Expr]| vec![(v[0] - v[1]) - v[2].log()];
    RowKernel { name: "log_softmax", post: Program::trace(7, post), ..softmax_rows() }
}

/// `y * (dy - Σ dy y)` from rows `y, dy`.
fn softmax_bwd_rows() -> RowKernel {
    RowKernel {
        name: "softmax_bwd",
        ins: 2,
        max: false,
        term: Program::trace(3, |v| vec![v[1] * v[0]]),
        post: Program::trace(8, |v| vec![v[0] * (v[1] - v[3])]),
        ..softmax_rows()
    }
}

/// `dy - e^y Σ dy` from rows `y, dy`.
fn log_softmax_bwd_rows() -> RowKernel {
    RowKernel {
        name: "log_softmax_bwd",
        term: Program::trace(3, |v| vec![v[1]]),
        post: Program::trace(8, |v| vec![v[1] - v[0].exp() * v[3]]),
        ..softmax_bwd_rows()
    }
}

/// A shape whose last axis is not empty. A scalar is a row of one element.
fn has_rows(op: &'static str, x: Shape) -> Result<()> {
    if x.last() == 0 {
        return Err(Error::argument(
            op,
            "last axis",
            format!("is empty in shape {x}, so a row has no distribution"),
        ));
    }
    Ok(())
}

fn row_shapes() -> Vec<Shape> {
    let d: [&[usize]; 17] = [
        &[],
        &[1],
        &[10],
        &[31],
        &[32],
        &[33],
        &[3, 64],
        &[0, 5],
        &[2, 3, 129],
        &[5, 1000],
        &[2, 1024],
        &[2, 1025],
        &[1, 5000],
        &[130, 7],
        &[3, 300],
        &[2, 257],
        &[1, 24577],
    ];
    d.iter().map(|d| dims(d)).collect()
}

macro_rules! row_op {
    ($(#[$doc:meta])* $op:ident $name:literal $arity:literal $kernel:ident $bound:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $op;

        impl $op {
            fn check(ins: &[Meta]) -> Result<Shape> {
                let shapes: [Shape; $arity] = floats($name, ins)?;
                has_rows($name, shapes[0])?;
                match shapes.iter().find(|s| **s != shapes[0]) {
                    None => Ok(shapes[0]),
                    Some(other) => Err(mismatch($name, "shapes differ", shapes[0], *other)),
                }
            }
        }

        impl Op for $op {
            const NAME: &'static str = $name;

            fn shape(&self, ins: &[Meta]) -> Result<Meta> {
                Ok(Meta::f32($op::check(ins)?))
            }

            fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
                device.as_cuda().map_or(0, |cuda| RowKernel::workspace(ins[0].shape.rows(), ins[0].shape.last(), &Gpu::of(cuda)))
            }

            fn cpu(&self, run: CpuRun<'_>) {
                $kernel().run_cpu(run.shape.last(), run);
            }

            fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
                $kernel().run_cuda(run.shape.last(), run)
            }

            fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<(String, String)> {
                vec![$kernel().module(ins[0].shape.last(), gpu)]
            }

            fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
                self.record_vjp(r, io, dy)
            }

            fn reference<T: Scalar>(&self, ins: &[RefIn<T>]) -> Result<Tensor<T>> {
                let tensors: Vec<&Tensor<T>> = ins.iter().map(RefIn::num).collect::<Result<_>>()?;
                let shape = tensors[0].shape();
                let mut out = Vec::with_capacity(shape.numel());
                for row in 0..shape.rows() {
                    let at = row * shape.last();
                    let rows: Vec<&[T]> = tensors.iter().map(|t| &t.data()[at..at + shape.last()]).collect();
                    self.reference_row(&rows, &mut out);
                }
                Tensor::with_shape(shape, out)
            }

            fn samples() -> Vec<Sample<$op>> {
                let ins = |s: Shape| vec![SampleIn::any(s); $arity];
                row_shapes().into_iter().map(|s| Sample { op: $op, ins: ins(s) }).collect()
            }

            fn random(stream: &mut Stream) -> Option<Sample<$op>> {
                Some(Sample { op: $op, ins: vec![SampleIn::any(edge_shape(1, 3, stream)); $arity] })
            }

            fn rejects() -> Vec<Reject<$op>> {
                let f = |d: &[usize]| Meta::f32(dims(d));
                let mut bad = vec![
                    Reject { op: $op, ins: vec![], want: "Arity" },
                    Reject { op: $op, ins: vec![f(&[3, 0]); $arity], want: "Argument" },
                    Reject { op: $op, ins: vec![Meta::u32(dims(&[3])); $arity], want: "DType" },
                ];
                if $arity == 2 {
                    bad.push(Reject { op: $op, ins: vec![f(&[3]), f(&[4])], want: "Shapes" });
                }
                bad
            }

            fn bound(&self, ins: &[Meta]) -> Bound {
                $bound(ins[0].shape.last())
            }

            fn from_attrs(attrs: &Attrs) -> Result<$op> {
                attrs.only(&[])?;
                Ok($op)
            }
        }
    };
}

row_op! {
    /// `y_i = e^(x_i - m) / Σ_j e^(x_j - m)` with `m = max x`, along the last axis. A row that is all
    /// `-inf`, or holds `+inf` or NaN, becomes NaN.
    // The one term is the rounding of x - m, which the exponential amplifies.
    Softmax "softmax" 1 softmax_rows |n: usize| Bound { ulps: 8.0 + reduce::depth(n), terms: 1.0 }
}

row_op! {
    /// `y_i = (x_i - m) - ln Σ_j e^(x_j - m)` with `m = max x`, along the last axis.
    LogSoftmax "log_softmax" 1 log_softmax_rows |n: usize| Bound { ulps: 4.0, terms: 8.0 + reduce::depth(n) }
}

row_op! {
    /// Gradient of [`Softmax`] from its value `y` and the upstream gradient: `y * (dy - Σ dy y)`.
    SoftmaxBwd "softmax_bwd" 2 softmax_bwd_rows |n: usize| Bound { ulps: 4.0, terms: 8.0 + reduce::depth(n) }
}

row_op! {
    /// Gradient of [`LogSoftmax`] from its value `y` and the upstream gradient: `dy - e^y Σ dy`.
    LogSoftmaxBwd "log_softmax_bwd" 2 log_softmax_bwd_rows |n: usize| Bound { ulps: 4.0, terms: 8.0 + reduce::depth(n) }
}

impl Softmax {
    fn record_vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(vec![Some(r.record(SoftmaxBwd.into(), &[io.out, dy])?)])
    }

    fn reference_row<T: Scalar>(&self, x: &[&[T]], out: &mut Vec<T>) {
        let m = x[0].iter().copied().fold(x[0][0], |m, x| m.max(x));
        let s = x[0].iter().fold(T::c(0.0), |s, &x| s + (x - m).exp());
        out.extend(x[0].iter().map(|&x| (x - m).exp() / s));
    }
}

impl LogSoftmax {
    fn record_vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(vec![Some(r.record(LogSoftmaxBwd.into(), &[io.out, dy])?)])
    }

    fn reference_row<T: Scalar>(&self, x: &[&[T]], out: &mut Vec<T>) {
        let m = x[0].iter().copied().fold(x[0][0], |m, x| m.max(x));
        let s = x[0].iter().fold(T::c(0.0), |s, &x| s + (x - m).exp());
        out.extend(x[0].iter().map(|&x| (x - m) - s.log()));
    }
}

/// `Σ a b` along the last axis, repeated back over it.
fn row_dot(r: &mut dyn Recorder, a: Val, b: Val) -> Result<Val> {
    let ab = r.record(elementwise::Mul {}.into(), &[a, b])?;
    row_sum(r, ab)
}

/// `Σ a` along the last axis, repeated back over it.
fn row_sum(r: &mut dyn Recorder, a: Val) -> Result<Val> {
    let shape = r.meta(a).shape;
    let Some(axis) = shape.rank().checked_sub(1) else { return Ok(a) };
    let sum = r.record(reduce::Sum::new(&[axis])?.into(), &[a])?;
    let mut kept = shape.dims().to_vec();
    kept[axis] = 1;
    let kept = layout::reshape_to(r, sum, Shape::new(&kept)?)?;
    layout::broadcast_to(r, kept, shape)
}

impl SoftmaxBwd {
    fn record_vjp(&self, r: &mut dyn Recorder, io: Io<'_>, v: Val) -> Result<Vec<Option<Val>>> {
        // f = y (g - s), s = Σ g y; with w = Σ v y:  df/dy = v (g - s) - w g,  df/dg = y (v - w)
        let (y, g) = (io.ins[0], io.ins[1]);
        let (s, w) = (row_dot(r, g, y)?, row_dot(r, v, y)?);
        let shape = r.meta(y).shape;
        let by_y = Program::trace(4, |e| vec![e[0] * (e[1] - e[2]) - e[3] * e[1]]);
        let dy = super::map::record_program(r, &by_y, shape, &[v, g, s, w])?;
        let dg = r.record(SoftmaxBwd.into(), &[y, v])?;
        Ok(vec![Some(dy), Some(dg)])
    }

    fn reference_row<T: Scalar>(&self, x: &[&[T]], out: &mut Vec<T>) {
        let s = x[0].iter().zip(x[1]).fold(T::c(0.0), |s, (&y, &g)| s + g * y);
        out.extend(x[0].iter().zip(x[1]).map(|(&y, &g)| y * (g - s)));
    }
}

impl LogSoftmaxBwd {
    fn record_vjp(&self, r: &mut dyn Recorder, io: Io<'_>, v: Val) -> Result<Vec<Option<Val>>> {
        // f = g - e^y s, s = Σ g:  df/dy = -v e^y s,  df/dg = v - Σ v e^y
        let (y, g) = (io.ins[0], io.ins[1]);
        let s = row_sum(r, g)?;
        let shape = r.meta(y).shape;
        let by_y = Program::trace(3, |e| vec![-(e[0] * (e[1].exp() * e[2]))]);
        let dy = super::map::record_program(r, &by_y, shape, &[v, y, s])?;
        let e = r.record(elementwise::Exp {}.into(), &[y])?;
        let w = row_dot(r, v, e)?;
        let dg = r.record(elementwise::Sub {}.into(), &[v, w])?;
        Ok(vec![Some(dy), Some(dg)])
    }

    fn reference_row<T: Scalar>(&self, x: &[&[T]], out: &mut Vec<T>) {
        let s = x[1].iter().fold(T::c(0.0), |s, &g| s + g);
        out.extend(x[0].iter().zip(x[1]).map(|(&y, &g)| g - y.exp() * s));
    }
}
