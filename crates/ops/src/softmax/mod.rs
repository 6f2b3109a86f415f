//! Softmax and log-softmax along the last or any other axis, softmax under a mask, and their gradients as kernels
//! of their own.

#[cfg(feature = "cases")]
mod cases;
pub(crate) mod rows;

use crate::fused::{Around, Fusion};
use crate::pointwise::program::Program;
use crate::softmax::rows::{Formula, Row, RowKernel};
use crate::{
    AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, floats, layout, mismatch,
    pointwise as elementwise, reduce,
};
use dittograd_device::cuda::Source;
use dittograd_device::{DType, Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::{Real, Scalar};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// `y = t (1 / s)` with `t = e^(x - m)`. One reciprocal per row instead of a division per element: the divisions
/// would cost more than the exponentials.
#[derive(Clone, Copy)]
struct SoftmaxRow;

impl Formula<1> for SoftmaxRow {
    const NAME: &'static str = "softmax";

    #[inline(always)]
    fn post<R: Real>(self, _: [R; 1], row: Row<R>) -> R {
        row.t * row.r
    }
}

/// `y = (x - m) - ln s`.
#[derive(Clone, Copy)]
struct LogSoftmaxRow;

impl Formula<1> for LogSoftmaxRow {
    const NAME: &'static str = "log_softmax";

    #[inline(always)]
    fn of_row<R: Real>(self, s: R) -> R {
        s.log()
    }

    #[inline(always)]
    fn post<R: Real>(self, [x]: [R; 1], row: Row<R>) -> R {
        (x - row.m) - row.r
    }
}

/// `y * (dy - Σ dy y)` from rows `y, dy`.
#[derive(Clone, Copy)]
struct SoftmaxBwdRow;

impl Formula<2> for SoftmaxBwdRow {
    const NAME: &'static str = "softmax_bwd";
    const MAX: bool = false;
    const KEEPS: bool = false;

    #[inline(always)]
    fn term<R: Real>(self, [y, dy]: [R; 2], _: R) -> R {
        dy * y
    }

    #[inline(always)]
    fn post<R: Real>(self, [y, dy]: [R; 2], row: Row<R>) -> R {
        y * (dy - row.s)
    }
}

/// `dy - e^y Σ dy` from rows `y, dy`.
#[derive(Clone, Copy)]
struct LogSoftmaxBwdRow;

impl Formula<2> for LogSoftmaxBwdRow {
    const NAME: &'static str = "log_softmax_bwd";
    const MAX: bool = false;
    const KEEPS: bool = false;

    #[inline(always)]
    fn term<R: Real>(self, [_, dy]: [R; 2], _: R) -> R {
        dy
    }

    #[inline(always)]
    fn post<R: Real>(self, [y, dy]: [R; 2], row: Row<R>) -> R {
        dy - y.exp() * row.s
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
                $kernel.run_cpu(run.shape.last(), run);
            }

            fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
                $kernel.kernel().run_cuda(run.shape.last(), run)
            }

            fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
                vec![$kernel.kernel().module(ins[0].shape.last(), gpu)]
            }

            fn fusion(&self, _ins: &[Meta]) -> Fusion {
                // The last input: the values of a softmax, or the gradient of one.
                Fusion::rows($arity - 1, 1)
            }

            fn joined(&self, ins: &[Meta], gpu: &Gpu, around: Around<'_>) -> Option<Vec<Source>> {
                $kernel.kernel().joined(ins[0].shape.last(), gpu, around).map(|module| vec![module])
            }

            fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
                self.record_vjp(r, io, dy)
            }

            fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
                let tensors: Vec<&Tensor<T>> = ins.iter().map(AnyTensor::num).collect::<Result<_>>()?;
                let shape = tensors[0].shape();
                let mut out = Vec::with_capacity(shape.numel());
                for row in 0..shape.rows() {
                    let at = row * shape.last();
                    let rows: Vec<&[T]> = tensors.iter().map(|t| &t.data()[at..at + shape.last()]).collect();
                    self.reference_row(&rows, &mut out);
                }
                Tensor::with_shape(shape, out)
            }

            fn from_attrs(attrs: &Attrs) -> Result<$op> {
                attrs.only(&[])?;
                Ok($op)
            }
        }

        #[cfg(feature = "cases")]
        impl crate::Cases for $op {
            fn samples() -> Vec<crate::Sample<$op>> {
                let ins = |s: Shape| vec![crate::SampleIn::any(s); $arity];
                cases::row_shapes().into_iter().map(|s| crate::Sample { op: $op, ins: ins(s) }).collect()
            }

            fn random(stream: &mut dittograd_numerics::rng::Stream) -> Option<crate::Sample<$op>> {
                Some(crate::Sample { op: $op, ins: vec![crate::SampleIn::any(crate::cases::edge_shape(1, 3, stream)); $arity] })
            }

            fn rejects() -> Vec<crate::Reject<$op>> {
                let f = |d: &[usize]| Meta::f32(crate::dims(d));
                let mut bad = vec![
                    crate::Reject { op: $op, ins: vec![], want: "Arity" },
                    crate::Reject { op: $op, ins: vec![f(&[3, 0]); $arity], want: "Argument" },
                    crate::Reject { op: $op, ins: vec![Meta::u32(crate::dims(&[3])); $arity], want: "DType" },
                ];
                if $arity == 2 {
                    bad.push(crate::Reject { op: $op, ins: vec![f(&[3]), f(&[4])], want: "Shapes" });
                }
                bad
            }

            fn bound(&self, ins: &[Meta]) -> crate::Bound {
                $bound(ins[0].shape.last())
            }
        }
    };
}

row_op! {
    /// `y_i = e^(x_i - m) / Σ_j e^(x_j - m)` with `m = max x`, along the last axis. A row that is all
    /// `-inf`, or holds `+inf` or NaN, becomes NaN.
    // The one term is the rounding of x - m, which the exponential amplifies.
    Softmax "softmax" 1 SoftmaxRow |n: usize| crate::Bound { ulps: 8.0 + crate::cases::depth(n), terms: 1.0 }
}

row_op! {
    /// `y_i = (x_i - m) - ln Σ_j e^(x_j - m)` with `m = max x`, along the last axis.
    LogSoftmax "log_softmax" 1 LogSoftmaxRow |n: usize| crate::Bound { ulps: 4.0, terms: 8.0 + crate::cases::depth(n) }
}

row_op! {
    /// Gradient of [`Softmax`] from its value `y` and the upstream gradient: `y * (dy - Σ dy y)`.
    SoftmaxBwd "softmax_bwd" 2 SoftmaxBwdRow |n: usize| crate::Bound { ulps: 4.0, terms: 8.0 + crate::cases::depth(n) }
}

row_op! {
    /// Gradient of [`LogSoftmax`] from its value `y` and the upstream gradient: `dy - e^y Σ dy`.
    LogSoftmaxBwd "log_softmax_bwd" 2 LogSoftmaxBwdRow |n: usize| crate::Bound { ulps: 4.0, terms: 8.0 + crate::cases::depth(n) }
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

/// `Σ a b` along an axis, kept with size one.
fn dot(r: &mut dyn Recorder, axis: usize, a: Val, b: Val) -> Result<Val> {
    let ab = r.record(elementwise::Mul {}.into(), &[a, b])?;
    sum(r, axis, ab)
}

/// `Σ a` along an axis, kept with size one.
fn sum(r: &mut dyn Recorder, axis: usize, a: Val) -> Result<Val> {
    let shape = r.meta(a).shape;
    if shape.rank() == 0 {
        return Ok(a);
    }
    let sum = r.record(reduce::Sum::new(&[axis])?.into(), &[a])?;
    let mut kept = shape.dims().to_vec();
    kept[axis] = 1;
    layout::reshape_to(r, sum, Shape::new(&kept)?)
}

/// The last axis; 0 for a scalar.
fn last_axis(r: &dyn Recorder, v: Val) -> usize {
    r.meta(v).shape.rank().saturating_sub(1)
}

/// Gradients of [`SoftmaxBwd`] along an axis by `y`, and what `v` is paired with for that by `dy`.
///
/// `f = y (g - s)`, `s = Σ g y`; with `w = Σ v y`: `df/dy = v (g - s) - w g`, `df/dg = y (v - w)`.
fn softmax_bwd_by_y(r: &mut dyn Recorder, axis: usize, [y, g, v]: [Val; 3]) -> Result<Val> {
    let (s, w) = (dot(r, axis, g, y)?, dot(r, axis, v, y)?);
    let shape = r.meta(y).shape;
    let by_y = Program::trace(4, |e| vec![e[0] * (e[1] - e[2]) - e[3] * e[1]]);
    crate::pointwise::map::record_program(r, &by_y, shape, &[v, g, s, w])
}

/// Gradients of [`LogSoftmaxBwd`] along an axis by `y` and `dy`.
///
/// `f = g - e^y s`, `s = Σ g`: `df/dy = -v e^y s`, `df/dg = v - Σ v e^y`.
fn log_softmax_bwd_vjp(r: &mut dyn Recorder, axis: usize, [y, g, v]: [Val; 3]) -> Result<Vec<Option<Val>>> {
    let s = sum(r, axis, g)?;
    let shape = r.meta(y).shape;
    let by_y = Program::trace(3, |e| vec![-(e[0] * (e[1].exp() * e[2]))]);
    let dy = crate::pointwise::map::record_program(r, &by_y, shape, &[v, y, s])?;
    let e = r.record(elementwise::Exp {}.into(), &[y])?;
    let w = dot(r, axis, v, e)?;
    let by_g = Program::trace(2, |e| vec![e[0] - e[1]]);
    let dg = crate::pointwise::map::record_program(r, &by_g, shape, &[v, w])?;
    Ok(vec![Some(dy), Some(dg)])
}

impl SoftmaxBwd {
    fn record_vjp(&self, r: &mut dyn Recorder, io: Io<'_>, v: Val) -> Result<Vec<Option<Val>>> {
        let (y, g) = (io.ins[0], io.ins[1]);
        let axis = last_axis(r, y);
        let dy = softmax_bwd_by_y(r, axis, [y, g, v])?;
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
        let axis = last_axis(r, io.ins[0]);
        log_softmax_bwd_vjp(r, axis, [io.ins[0], io.ins[1], v])
    }

    fn reference_row<T: Scalar>(&self, x: &[&[T]], out: &mut Vec<T>) {
        let s = x[1].iter().fold(T::c(0.0), |s, &g| s + g);
        out.extend(x[0].iter().zip(x[1]).map(|(&y, &g)| g - y.exp() * s));
    }
}

/// A shape around an axis: how many slabs, the axis, how far its elements are apart.
fn around(shape: &Shape, axis: usize) -> (usize, usize, usize) {
    let d = shape.dims();
    (d[..axis].iter().product(), d[axis], d[axis + 1..].iter().product())
}

macro_rules! axis_op {
    ($(#[$doc:meta])* $op:ident $name:literal $arity:literal like $row:ident $kernel:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $op {
            /// The axis.
            pub axis: usize,
        }

        impl Op for $op {
            const NAME: &'static str = $name;

            fn shape(&self, ins: &[Meta]) -> Result<Meta> {
                let shapes: [Shape; $arity] = floats($name, ins)?;
                if self.axis >= shapes[0].rank() {
                    return Err(Error::new($name, ErrorKind::Axis { axis: self.axis, shape: shapes[0] }));
                }
                if shapes[0].dims()[self.axis] == 0 {
                    let why = format!("is empty in shape {}, so there is no distribution along it", shapes[0]);
                    return Err(Error::argument($name, "axis", why));
                }
                match shapes.iter().find(|s| **s != shapes[0]) {
                    None => Ok(ins[0]),
                    Some(other) => Err(mismatch($name, "shapes differ", shapes[0], *other)),
                }
            }

            fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
                let shape = ins[0].shape;
                let (outer, n, inner) = around(&shape, self.axis);
                match device.as_cuda() {
                    Some(cuda) if inner == 1 => RowKernel::workspace(outer, n, &Gpu::of(cuda)),
                    None if inner != 1 => RowKernel::columns_workspace(inner),
                    _ => 0,
                }
            }

            fn cpu(&self, run: CpuRun<'_>) {
                let (_, n, inner) = around(&run.shape, self.axis);
                if inner == 1 { $kernel.run_cpu(n, run) } else { $kernel.columns_cpu(n, inner, run) }
            }

            fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
                let (_, n, inner) = around(&run.shape, self.axis);
                if inner == 1 { $kernel.kernel().run_cuda(n, run) } else { $kernel.kernel().columns_cuda(n, inner, run) }
            }

            fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
                let (_, n, inner) = around(&ins[0].shape, self.axis);
                vec![if inner == 1 { $kernel.kernel().module(n, gpu) } else { $kernel.kernel().columns_module(n) }]
            }

            fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
                self.record_vjp(r, io, dy)
            }

            fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
                let tensors: Vec<&Tensor<T>> = ins.iter().map(AnyTensor::num).collect::<Result<_>>()?;
                let shape = tensors[0].shape();
                let (outer, n, inner) = around(&shape, self.axis);
                let mut out = tensors[0].data().to_vec();
                for column in 0..outer * inner {
                    let at = |i: usize| column / inner * n * inner + i * inner + column % inner;
                    let columns: Vec<Vec<T>> =
                        tensors.iter().map(|t| (0..n).map(|i| t.data()[at(i)]).collect()).collect();
                    let columns: Vec<&[T]> = columns.iter().map(|c| &c[..]).collect();
                    let mut value = Vec::new();
                    $row.reference_row(&columns, &mut value);
                    value.into_iter().enumerate().for_each(|(i, v)| out[at(i)] = v);
                }
                Tensor::with_shape(shape, out)
            }

            fn attrs(&self) -> Vec<(&'static str, Attr)> {
                vec![("axis", Attr::Num(self.axis as f64))]
            }

            fn from_attrs(attrs: &Attrs) -> Result<$op> {
                attrs.only(&["axis"])?;
                Ok($op { axis: attrs.whole("axis")? })
            }
        }

        #[cfg(feature = "cases")]
        impl crate::Cases for $op {
            fn samples() -> Vec<crate::Sample<$op>> {
                let one = |(d, axis): &(&[usize], usize)| crate::Sample {
                    op: $op { axis: *axis },
                    ins: vec![crate::SampleIn::any(crate::dims(d)); $arity],
                };
                cases::AXIS_CASES.iter().map(one).collect()
            }

            fn random(stream: &mut dittograd_numerics::rng::Stream) -> Option<crate::Sample<$op>> {
                let shape = crate::cases::edge_shape(2, 3, stream);
                let axis = stream.below(shape.rank());
                Some(crate::Sample { op: $op { axis }, ins: vec![crate::SampleIn::any(shape); $arity] })
            }

            fn rejects() -> Vec<crate::Reject<$op>> {
                let f = |d: &[usize]| Meta::f32(crate::dims(d));
                let mut bad = vec![
                    crate::Reject { op: $op { axis: 0 }, ins: vec![], want: "Arity" },
                    crate::Reject { op: $op { axis: 0 }, ins: vec![f(&[]); $arity], want: "Axis" },
                    crate::Reject { op: $op { axis: 2 }, ins: vec![f(&[3, 2]); $arity], want: "Axis" },
                    crate::Reject { op: $op { axis: 0 }, ins: vec![f(&[0, 2]); $arity], want: "Argument" },
                    crate::Reject { op: $op { axis: 0 }, ins: vec![Meta::u32(crate::dims(&[3])); $arity], want: "DType" },
                ];
                if $arity == 2 {
                    bad.push(crate::Reject { op: $op { axis: 0 }, ins: vec![f(&[3]), f(&[4])], want: "Shapes" });
                }
                bad
            }

            fn bound(&self, ins: &[Meta]) -> crate::Bound {
                $row.bound(&[Meta::f32(crate::dims(&[ins[0].shape.dims()[self.axis]]))])
            }
        }
    };
}

axis_op! {
    /// [`Softmax`] along any axis. Along another than the last the sum is by the column rule.
    SoftmaxAxis "softmax_axis" 1 like Softmax SoftmaxRow
}

axis_op! {
    /// [`LogSoftmax`] along any axis. Along another than the last the sum is by the column rule.
    LogSoftmaxAxis "log_softmax_axis" 1 like LogSoftmax LogSoftmaxRow
}

axis_op! {
    /// Gradient of [`SoftmaxAxis`] from its value `y` and the upstream gradient: `y * (dy - Σ dy y)`.
    SoftmaxAxisBwd "softmax_axis_bwd" 2 like SoftmaxBwd SoftmaxBwdRow
}

axis_op! {
    /// Gradient of [`LogSoftmaxAxis`] from its value `y` and the upstream gradient: `dy - e^y Σ dy`.
    LogSoftmaxAxisBwd "log_softmax_axis_bwd" 2 like LogSoftmaxBwd LogSoftmaxBwdRow
}

impl SoftmaxAxis {
    fn record_vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(vec![Some(r.record(SoftmaxAxisBwd { axis: self.axis }.into(), &[io.out, dy])?)])
    }
}

impl LogSoftmaxAxis {
    fn record_vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(vec![Some(r.record(LogSoftmaxAxisBwd { axis: self.axis }.into(), &[io.out, dy])?)])
    }
}

impl SoftmaxAxisBwd {
    fn record_vjp(&self, r: &mut dyn Recorder, io: Io<'_>, v: Val) -> Result<Vec<Option<Val>>> {
        let (y, g) = (io.ins[0], io.ins[1]);
        let dy = softmax_bwd_by_y(r, self.axis, [y, g, v])?;
        let dg = r.record((*self).into(), &[y, v])?;
        Ok(vec![Some(dy), Some(dg)])
    }
}

impl LogSoftmaxAxisBwd {
    fn record_vjp(&self, r: &mut dyn Recorder, io: Io<'_>, v: Val) -> Result<Vec<Option<Val>>> {
        log_softmax_bwd_vjp(r, self.axis, [io.ins[0], io.ins[1], v])
    }
}

/// `a` where the mask forbids, else `b`. Zero forbids and everything else allows, NaN too: only zeros are nearer to
/// zero than the smallest number.
#[inline(always)]
fn where_blocked<R: Real>(mask: R, a: R, b: R) -> R {
    R::where_gt(-mask.abs(), R::c(-f64::from(f32::from_bits(1))), a, b)
}

/// Softmax of what a mask allows; the rest is 0, and so is a row of nothing.
#[derive(Clone, Copy)]
struct MaskedRow;

impl Formula<2> for MaskedRow {
    const NAME: &'static str = "masked_softmax";
    const MASKED: bool = true;

    #[inline(always)]
    fn best<R: Real>(self, [x, mask]: [R; 2]) -> R {
        where_blocked(mask, R::c(f64::NEG_INFINITY), x)
    }

    #[inline(always)]
    fn term<R: Real>(self, [x, mask]: [R; 2], m: R) -> R {
        where_blocked(mask, R::c(0.0), (x - m).decay())
    }

    #[inline(always)]
    fn post<R: Real>(self, _: [R; 2], row: Row<R>) -> R {
        // A blocked term is 0 whatever the sum is.
        R::where_gt(row.t, R::c(0.0), row.t * row.r, row.t)
    }
}

/// Softmax along the last axis of what a mask allows, from `x, mask`: where the mask is 0, an element takes part in
/// neither the maximum nor the sum and its result is exactly 0. A row with nothing allowed is all zeros, and no gradient
/// flows to it. The allowed elements of a row that holds NaN or `+inf` among them, or only `-inf`, become NaN. The mask has
/// the last axes of `x` and repeats over the others; it is float32, or u32 of zeros and ones. It has no gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaskedSoftmax;

impl Op for MaskedSoftmax {
    const NAME: &'static str = "masked_softmax";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x, mask] = crate::arity(Self::NAME, ins)?;
        crate::typed(Self::NAME, ins, 0, DType::F32)?;
        has_rows(Self::NAME, x.shape)?;
        let (rank, lead) = (x.shape.rank(), x.shape.rank().checked_sub(mask.shape.rank()));
        let fits = lead.is_some_and(|lead| x.shape.dims()[lead..] == *mask.shape.dims());
        if !fits || (mask.shape.rank() == 0 && rank > 0) {
            let why = "the mask must have the last axes of the scores, as they are";
            return Err(mismatch(Self::NAME, why, x.shape, mask.shape));
        }
        Ok(x)
    }

    fn index_limit(&self, ins: &[Meta]) -> Option<(usize, usize)> {
        ins.get(1).filter(|m| m.dtype == DType::U32).map(|_| (1, 2))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        let shape = ins[0].shape;
        device.as_cuda().map_or(0, |cuda| RowKernel::workspace(shape.rows(), shape.last(), &Gpu::of(cuda)))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        MaskedRow.run_cpu(run.shape.last(), run);
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        MaskedRow.kernel().run_cuda(run.shape.last(), run)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        vec![MaskedRow.kernel().module(ins[0].shape.last(), gpu)]
    }

    fn fusion(&self, _ins: &[Meta]) -> Fusion {
        Fusion { prologue: Some((0, 1)), weight: 16, ..Fusion::default() }
    }

    fn joined(&self, ins: &[Meta], gpu: &Gpu, around: Around<'_>) -> Option<Vec<Source>> {
        MaskedRow.kernel().joined(ins[0].shape.last(), gpu, around).map(|module| vec![module])
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(vec![Some(r.record(SoftmaxBwd.into(), &[io.out, dy])?), None])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let x = ins[0].num()?;
        let allowed: Vec<bool> = match &ins[1] {
            AnyTensor::Num(mask) => mask.data().iter().map(|m| m.to_f64() != 0.0).collect(),
            AnyTensor::Idx(mask) => mask.data().iter().map(|&m| m != 0).collect(),
        };
        let width = x.shape().last();
        let mut out = Vec::with_capacity(x.data().len());
        for (row, x) in x.data().chunks(width).enumerate() {
            let at = row * width % allowed.len();
            let allowed = &allowed[at..at + width];
            let taken = || x.iter().zip(allowed).filter(|(_, a)| **a).map(|(&x, _)| x);
            let m = taken().fold(T::c(f64::NEG_INFINITY), |m, x| if x > m { x } else { m });
            let s = taken().fold(T::c(0.0), |s, x| s + (x - m).exp());
            let one = |(&x, &a): (&T, &bool)| if a { (x - m).exp() / s } else { T::c(0.0) };
            out.extend(x.iter().zip(allowed).map(one));
        }
        Tensor::with_shape(x.shape(), out)
    }

    fn from_attrs(attrs: &Attrs) -> Result<MaskedSoftmax> {
        attrs.only(&[])?;
        Ok(MaskedSoftmax)
    }
}
