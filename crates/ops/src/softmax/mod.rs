//! Softmax and log-softmax along the last or any other axis, softmax under a mask, and their gradients as kernels
//! of their own.

mod along;
#[cfg(feature = "cases")]
mod cases;
mod masked;
pub(crate) mod rows;

pub use masked::MaskedSoftmax;

use crate::fused::{FusedCode, Fusion};
use crate::pointwise::expression::Pointwise;
use crate::pointwise::record_pointwise;
use crate::softmax::rows::{Formula, Row};
use crate::{
    AnyOp, AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, floats, layout, mismatch,
    pointwise as elementwise, reduce,
};
use along::{Along, nonempty_axis, nonempty_last};
use dittograd_device::cuda::Source;
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::{Real, Scalar};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// A formula with its definition and its gradient rule, along whichever axis.
trait AxisFormula<const N: usize>: Formula<N> {
    /// Appends the results of one row, by the definition.
    fn reference<T: Scalar>(x: [&[T]; N], out: &mut Vec<T>);

    /// Records the gradients of the inputs. `backward` is the op of the gradient along the same axis; for a gradient, its own.
    fn vjp(
        r: &mut dyn Recorder,
        axis: usize,
        backward: AnyOp,
        io: Io<'_>,
        dy: Val,
    ) -> Result<Vec<Option<Val>>>;
}

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

impl AxisFormula<1> for SoftmaxRow {
    fn reference<T: Scalar>([x]: [&[T]; 1], out: &mut Vec<T>) {
        let m = x.iter().copied().fold(x[0], |m, x| m.max(x));
        let s = x.iter().fold(T::c(0.0), |s, &x| s + (x - m).exp());
        out.extend(x.iter().map(|&x| (x - m).exp() / s));
    }

    fn vjp(r: &mut dyn Recorder, _: usize, backward: AnyOp, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(vec![Some(r.record(backward, &[io.out, dy])?)])
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

impl AxisFormula<1> for LogSoftmaxRow {
    fn reference<T: Scalar>([x]: [&[T]; 1], out: &mut Vec<T>) {
        let m = x.iter().copied().fold(x[0], |m, x| m.max(x));
        let s = x.iter().fold(T::c(0.0), |s, &x| s + (x - m).exp());
        out.extend(x.iter().map(|&x| (x - m) - s.log()));
    }

    fn vjp(r: &mut dyn Recorder, _: usize, backward: AnyOp, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(vec![Some(r.record(backward, &[io.out, dy])?)])
    }
}

/// `y * (dy - Σ dy y)` from rows `y, dy`.
#[derive(Clone, Copy)]
struct SoftmaxBwdRow;

impl Formula<2> for SoftmaxBwdRow {
    const NAME: &'static str = "softmax_bwd";
    const MAX: bool = false;
    const STORES_TERMS: bool = false;

    #[inline(always)]
    fn term<R: Real>(self, [y, dy]: [R; 2], _: R) -> R {
        dy * y
    }

    #[inline(always)]
    fn post<R: Real>(self, [y, dy]: [R; 2], row: Row<R>) -> R {
        y * (dy - row.s)
    }
}

impl AxisFormula<2> for SoftmaxBwdRow {
    fn reference<T: Scalar>([y, dy]: [&[T]; 2], out: &mut Vec<T>) {
        let s = y.iter().zip(dy).fold(T::c(0.0), |s, (&y, &g)| s + g * y);
        out.extend(y.iter().zip(dy).map(|(&y, &g)| y * (g - s)));
    }

    fn vjp(
        r: &mut dyn Recorder,
        axis: usize,
        backward: AnyOp,
        io: Io<'_>,
        dy: Val,
    ) -> Result<Vec<Option<Val>>> {
        let (y, g) = (io.ins[0], io.ins[1]);
        let by_y = softmax_bwd_by_y(r, axis, [y, g, dy])?;
        let by_g = r.record(backward, &[y, dy])?;
        Ok(vec![Some(by_y), Some(by_g)])
    }
}

/// `dy - e^y Σ dy` from rows `y, dy`.
#[derive(Clone, Copy)]
struct LogSoftmaxBwdRow;

impl Formula<2> for LogSoftmaxBwdRow {
    const NAME: &'static str = "log_softmax_bwd";
    const MAX: bool = false;
    const STORES_TERMS: bool = false;

    #[inline(always)]
    fn term<R: Real>(self, [_, dy]: [R; 2], _: R) -> R {
        dy
    }

    #[inline(always)]
    fn post<R: Real>(self, [y, dy]: [R; 2], row: Row<R>) -> R {
        dy - y.exp() * row.s
    }
}

impl AxisFormula<2> for LogSoftmaxBwdRow {
    fn reference<T: Scalar>([y, dy]: [&[T]; 2], out: &mut Vec<T>) {
        let s = dy.iter().fold(T::c(0.0), |s, &g| s + g);
        out.extend(y.iter().zip(dy).map(|(&y, &g)| g - y.exp() * s));
    }

    fn vjp(r: &mut dyn Recorder, axis: usize, _: AnyOp, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        log_softmax_bwd_vjp(r, axis, [io.ins[0], io.ins[1], dy])
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

/// The gradient of [`SoftmaxBwd`] along an axis by `y`.
///
/// `f = y (g - s)`, `s = Σ g y`; with `w = Σ v y`: `df/dy = v (g - s) - w g`, `df/dg = y (v - w)`.
fn softmax_bwd_by_y(r: &mut dyn Recorder, axis: usize, [y, g, v]: [Val; 3]) -> Result<Val> {
    let (s, w) = (dot(r, axis, g, y)?, dot(r, axis, v, y)?);
    let shape = r.meta(y).shape;
    let by_y = Pointwise::trace(4, |e| vec![e[0] * (e[1] - e[2]) - e[3] * e[1]]);
    record_pointwise(r, &by_y, shape, &[v, g, s, w])
}

/// Gradients of [`LogSoftmaxBwd`] along an axis by `y` and `dy`.
///
/// `f = g - e^y s`, `s = Σ g`: `df/dy = -v e^y s`, `df/dg = v - Σ v e^y`.
fn log_softmax_bwd_vjp(r: &mut dyn Recorder, axis: usize, [y, g, v]: [Val; 3]) -> Result<Vec<Option<Val>>> {
    let s = sum(r, axis, g)?;
    let shape = r.meta(y).shape;
    let by_y = Pointwise::trace(3, |e| vec![-(e[0] * (e[1].exp() * e[2]))]);
    let dy = record_pointwise(r, &by_y, shape, &[v, y, s])?;
    let e = r.record(elementwise::Exp {}.into(), &[y])?;
    let w = dot(r, axis, v, e)?;
    let by_g = Pointwise::trace(2, |e| vec![e[0] - e[1]]);
    let dg = record_pointwise(r, &by_g, shape, &[v, w])?;
    Ok(vec![Some(dy), Some(dg)])
}

/// The rules of an op that is a formula along one axis. The op has `axis` (of a value with so many axes), `validate` and `backward`.
macro_rules! axis_rules {
    ($formula:ident $arity:literal $name:literal) => {
        const NAME: &'static str = $name;

        fn shape(&self, ins: &[Meta]) -> Result<Meta> {
            let shapes: [Shape; $arity] = floats($name, ins)?;
            self.validate(shapes[0])?;
            match shapes.iter().find(|s| **s != shapes[0]) {
                None => Ok(Meta::f32(shapes[0])),
                Some(other) => Err(mismatch($name, "shapes differ", shapes[0], *other)),
            }
        }

        fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
            self.along(ins[0].shape).workspace(device)
        }

        fn cpu(&self, run: CpuRun<'_>) {
            self.along(run.shape).cpu($formula, run);
        }

        fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
            self.along(run.shape).cuda(&$formula.kernel(), run)
        }

        fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
            self.along(ins[0].shape).modules(&$formula.kernel(), gpu)
        }

        fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
            let axis = self.axis(r.meta(io.ins[0]).shape.rank());
            <$formula as AxisFormula<$arity>>::vjp(r, axis, self.backward(), io, dy)
        }

        fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
            let shape = ins[0].num()?.shape();
            self.along(shape).reference(ins, <$formula as AxisFormula<$arity>>::reference)
        }
    };
}

/// The two ops of a formula: along the last axis, and along an axis that is an attribute. `backward` names those of the gradient.
macro_rules! axis_ops {
    ($formula:ident $arity:literal backward $last_bwd:ident $any_bwd:ident;
     $(#[$last_doc:meta])* $last:ident $last_name:literal;
     $(#[$any_doc:meta])* $any:ident $any_name:literal;) => {
        $(#[$last_doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $last;

        impl $last {
            fn axis(self, rank: usize) -> usize {
                rank.saturating_sub(1)
            }

            fn along(self, shape: Shape) -> Along {
                Along::last(shape)
            }

            fn validate(self, x: Shape) -> Result<()> {
                nonempty_last($last_name, x)
            }

            fn backward(self) -> AnyOp {
                $last_bwd.into()
            }
        }

        impl Op for $last {
            axis_rules!($formula $arity $last_name);

            fn fusion(&self, _ins: &[Meta]) -> Fusion {
                // The last input: the values of a softmax, or the gradient of one.
                Fusion::rows($arity - 1, 1)
            }

            fn fused_modules(&self, ins: &[Meta], gpu: &Gpu, fused: FusedCode<'_>) -> Option<Vec<Source>> {
                self.along(ins[0].shape).joined(&$formula.kernel(), gpu, fused)
            }

            fn from_attrs(attrs: &Attrs) -> Result<$last> {
                attrs.only(&[])?;
                Ok($last)
            }
        }

        $(#[$any_doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $any {
            /// The axis.
            pub axis: usize,
        }

        impl $any {
            fn axis(self, _rank: usize) -> usize {
                self.axis
            }

            fn along(self, shape: Shape) -> Along {
                Along::axis(shape, self.axis)
            }

            fn validate(self, x: Shape) -> Result<()> {
                nonempty_axis($any_name, self.axis, x)
            }

            fn backward(self) -> AnyOp {
                $any_bwd { axis: self.axis }.into()
            }
        }

        impl Op for $any {
            axis_rules!($formula $arity $any_name);

            fn attrs(&self) -> Vec<(&'static str, Attr)> {
                vec![("axis", Attr::Num(self.axis as f64))]
            }

            fn from_attrs(attrs: &Attrs) -> Result<$any> {
                attrs.only(&["axis"])?;
                Ok($any { axis: attrs.whole("axis")? })
            }
        }
    };
}

axis_ops! {
    SoftmaxRow 1 backward SoftmaxBwd SoftmaxAxisBwd;
    /// `y_i = e^(x_i - m) / Σ_j e^(x_j - m)` with `m = max x`, along the last axis. A row that is all
    /// `-inf`, or holds `+inf` or NaN, becomes NaN.
    Softmax "softmax";
    /// [`Softmax`] along any axis. Along another than the last the sum is by the column rule.
    SoftmaxAxis "softmax_axis";
}

axis_ops! {
    LogSoftmaxRow 1 backward LogSoftmaxBwd LogSoftmaxAxisBwd;
    /// `y_i = (x_i - m) - ln Σ_j e^(x_j - m)` with `m = max x`, along the last axis.
    LogSoftmax "log_softmax";
    /// [`LogSoftmax`] along any axis. Along another than the last the sum is by the column rule.
    LogSoftmaxAxis "log_softmax_axis";
}

axis_ops! {
    SoftmaxBwdRow 2 backward SoftmaxBwd SoftmaxAxisBwd;
    /// Gradient of [`Softmax`] from its value `y` and the upstream gradient: `y * (dy - Σ dy y)`.
    SoftmaxBwd "softmax_bwd";
    /// Gradient of [`SoftmaxAxis`] from its value `y` and the upstream gradient: `y * (dy - Σ dy y)`.
    SoftmaxAxisBwd "softmax_axis_bwd";
}

axis_ops! {
    LogSoftmaxBwdRow 2 backward LogSoftmaxBwd LogSoftmaxAxisBwd;
    /// Gradient of [`LogSoftmax`] from its value `y` and the upstream gradient: `dy - e^y Σ dy`.
    LogSoftmaxBwd "log_softmax_bwd";
    /// Gradient of [`LogSoftmaxAxis`] from its value `y` and the upstream gradient: `dy - e^y Σ dy`.
    LogSoftmaxAxisBwd "log_softmax_axis_bwd";
}
