//! Reductions over any set of axes. Each is a fold, its gradient rule, and its definition on a list of
//! elements; the rest is made from these.

pub mod extremum;
pub mod fold;
pub mod global_norm;

pub use extremum::{Argmax, Argmin, Pick, Place};
pub use global_norm::GlobalNorm;
#[cfg(feature = "cases")]
mod cases;
#[cfg(feature = "cases")]
use cases::Expected;

use crate::pointwise::expression::Pointwise;
use crate::pointwise::record_pointwise;
use crate::pointwise::{Abs, Mul, Scale};
use crate::reduce::extremum::Which;
pub(crate) use crate::reduce::fold::chunk_sum;
use crate::reduce::fold::{Fold, Kind, Stage};
use crate::{
    AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Kernel, Known, Op, Recorder, Val, floats, known, layout,
};
use dittograd_device::cpu::simd::Simd;
use dittograd_device::cuda::Source;
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::{Real, Scalar, signed};
use dittograd_numerics::shape::{MAX_RANK, Shape};
use dittograd_numerics::sum;
use dittograd_numerics::tensor::Tensor;
use std::sync::Arc;

/// Sum of one row by the row rule.
pub(crate) fn row_sum(simd: Simd, x: &[f32]) -> f32 {
    sum::row(x.len(), |r| chunk_sum(simd, &x[r]))
}

/// The axes a reduction drops, checked, and the shape without them.
pub(crate) fn check_axes(op: &'static str, axes: &[usize], shape: &Shape) -> Result<Shape> {
    let mut seen = [false; MAX_RANK];
    for &axis in axes {
        if axis >= shape.rank() || std::mem::replace(&mut seen[axis], true) {
            return Err(Error::new(op, ErrorKind::Axis { axis, shape: *shape }));
        }
    }
    let kept: Vec<usize> = (0..shape.rank()).filter(|&a| !seen[a]).map(|a| shape.dims()[a]).collect();
    Shape::new(&kept)
}

/// Axes in order, each named once.
#[doc(hidden)]
pub fn sorted_axes(op: &'static str, axes: &[usize]) -> Result<Vec<usize>> {
    let mut axes = axes.to_vec();
    axes.sort_unstable();
    match axes.windows(2).find(|w| w[0] == w[1]) {
        Some(w) => Err(Error::argument(op, "axes", format!("axis {} is named twice", w[0]))),
        None => Ok(axes),
    }
}

/// Position in the reduced value of element `at`.
pub(crate) fn reduced_index(at: usize, shape: &Shape, axes: &[usize]) -> usize {
    let (mut rest, mut index, mut step) = (at, 0, 1);
    for axis in (0..shape.rank()).rev() {
        let d = shape.dims()[axis];
        if !axes.contains(&axis) {
            index += rest % d * step;
            step *= d;
        }
        rest /= d;
    }
    index
}

/// Number of elements that become one.
pub(crate) fn count(shape: &Shape, axes: &[usize]) -> usize {
    axes.iter().map(|&a| shape.dims()[a]).product()
}

/// `1 / n`, formed in f64 and rounded once.
fn inverse(n: usize) -> f64 {
    f64::from((1.0 / n as f64) as f32)
}

/// What a reduction is.
trait Reduction: Op {
    /// Whether there is a result of no elements.
    const OF_NOTHING: bool = true;
    /// The fold over `n` elements a result.
    fn fold(&self, n: usize) -> Fold;
    /// The definition.
    fn of<T: Scalar>(&self, x: &[T]) -> T;
    /// Records the gradient of `x` from the value `y` and its gradient `dy`, both with the reduced axes as
    /// ones.
    fn rule(&self, r: &mut dyn Recorder, x: Val, y: Val, dy: Val, n: usize) -> Result<Val>;
    /// Attributes besides the axes.
    fn extras(&self) -> Vec<(&'static str, Attr)> {
        Vec::new()
    }
}

/// Folds by op, number of elements and attribute.
static FOLDS: Known<(&str, usize, u64), Arc<Fold>> = Known::new(Default::default);

macro_rules! reductions {
    ($($(#[$doc:meta])* $op:ident $name:literal { $($attr:ident: $type:ty = $default:expr, #[$attr_doc:meta] $read:ident),* };)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $op {
            axes: Vec<usize>,
            $(#[$attr_doc] $attr: $type,)*
        }

        impl $op {
            /// The reduction over these axes, which the value no longer has.
            pub fn new(axes: &[usize] $(, $attr: $type)*) -> Result<$op> {
                Ok($op { axes: sorted_axes($name, axes)? $(, $attr)* })
            }

            /// The reduction of a value of rank `rank` to a scalar.
            pub fn all(rank: usize $(, $attr: $type)*) -> $op {
                $op { axes: (0..rank).collect() $(, $attr)* }
            }

            /// The fold of a value of that shape, whose formulas are traced once per process for each number of elements.
            fn plan(&self, shape: &Shape) -> Arc<Fold> {
                let attrs: &[u64] = &[$(self.$attr as u64),*];
                let key = (Self::NAME, count(shape, &self.axes), attrs.first().copied().unwrap_or(0));
                known(&FOLDS, key, |(_, n, _)| Arc::new(self.fold(*n)))
            }
        }

        impl Op for $op {
            const NAME: &'static str = $name;

            fn shape(&self, ins: &[Meta]) -> Result<Meta> {
                let [x] = floats(Self::NAME, ins)?;
                let out = check_axes(Self::NAME, &self.axes, &x)?;
                if !Self::OF_NOTHING && count(&x, &self.axes) == 0 && out.numel() > 0 {
                    let why = format!("{:?} of shape {x} hold no elements, so there is no result", self.axes);
                    return Err(Error::argument(Self::NAME, "axes", why));
                }
                Ok(Meta::f32(out))
            }

            fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
                self.plan(&ins[0].shape).workspace(&ins[0].shape, &self.axes, device)
            }

            fn cpu(&self, run: CpuRun<'_>) {
                let shape = run.metas[0].shape;
                self.plan(&shape).run_cpu(&shape, &self.axes, run);
            }

            fn prepared(&self, ins: &[Meta]) -> Option<Kernel> {
                self.as_fold(ins).map(|(fold, axes)| fold.prepared(ins[0].shape, axes))
            }

            fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
                let shape = run.metas[0].shape;
                self.plan(&shape).run_cuda(&shape, &self.axes, run)
            }

            fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
                let shape = ins[0].shape;
                self.plan(&shape).modules(&shape, &self.axes, gpu)
            }

            fn as_fold(&self, ins: &[Meta]) -> Option<(Fold, Vec<usize>)> {
                let shape = ins.first()?.shape;
                Some((Fold::clone(&self.plan(&shape)), self.axes.clone()))
            }

            fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
                let shape = r.meta(io.ins[0]).shape;
                let kept = fold::kept(&shape, &self.axes);
                let y = layout::reshape_to(r, io.out, kept)?;
                let dy = layout::reshape_to(r, dy, kept)?;
                self.rule(r, io.ins[0], y, dy, count(&shape, &self.axes)).map(|v| vec![Some(v)])
            }

            fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
                let x = ins[0].num()?;
                let out = check_axes(Self::NAME, &self.axes, &x.shape())?;
                let mut groups: Vec<Vec<T>> = vec![Vec::new(); out.numel()];
                for (at, &v) in x.data().iter().enumerate() {
                    groups[reduced_index(at, &x.shape(), &self.axes)].push(v);
                }
                Tensor::with_shape(out, groups.iter().map(|g| self.of(g)).collect())
            }

            fn attrs(&self) -> Vec<(&'static str, Attr)> {
                let mut attrs = vec![("axes", Attr::List(self.axes.clone()))];
                attrs.extend(self.extras());
                attrs
            }

            fn from_attrs(attrs: &Attrs) -> Result<$op> {
                attrs.only(&["axes" $(, stringify!($attr))*])?;
                $op::new(&attrs.list("axes")? $(, attrs.$read(stringify!($attr))?)*)
            }
        }

        #[cfg(feature = "cases")]
        impl crate::Cases for $op {
            fn samples() -> Vec<crate::Sample> {
                let op = |axes: &[usize]| $op { axes: axes.to_vec() $(, $attr: $default)* };
                cases::sample_axes(Self::OF_NOTHING && Self::NUMBER_OF_NOTHING)
                    .into_iter()
                    .map(|(axes, d)| {
                        let op = op(axes).suited(count(&crate::dims(d), axes));
                        crate::Sample::new(op, vec![crate::SampleIn::Num(crate::dims(d), Self::RANGE)])
                    })
                    .collect()
            }

            fn random(stream: &mut dittograd_numerics::rng::Stream) -> Option<crate::Sample> {
                let d = crate::cases::edge_dims(1, 4, stream);
                let axes = (0..d.len()).filter(|_| stream.below(2) == 0).collect();
                let ins = vec![crate::SampleIn::Num(crate::dims(&d), Self::RANGE)];
                Some(crate::Sample::new($op { axes $(, $attr: $default)* }, ins))
            }

            fn rejects() -> Vec<crate::Reject> {
                let f = |d: &[usize]| Meta::f32(crate::dims(d));
                let op = |axes: &[usize]| $op { axes: axes.to_vec() $(, $attr: $default)* };
                let mut bad = vec![
                    crate::Reject::new(op(&[0]), vec![], "Arity"),
                    crate::Reject::new(op(&[0]), vec![f(&[])], "Axis"),
                    crate::Reject::new(op(&[2]), vec![f(&[2, 3])], "Axis"),
                    crate::Reject::new(op(&[1, 1]), vec![f(&[2, 3])], "Axis"),
                    crate::Reject::new(op(&[usize::MAX]), vec![f(&[2, 3])], "Axis"),
                    crate::Reject::new(op(&[0]), vec![Meta::u32(crate::dims(&[3]))], "DType"),
                ];
                if !Self::OF_NOTHING {
                    bad.push(crate::Reject::new(op(&[1]), vec![f(&[2, 0])], "Argument"));
                }
                bad
            }

            fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
                if Self::LINEAR { vec![vec![0]] } else { Vec::new() }
            }

            fn bound(&self, ins: &[Meta]) -> crate::Bound {
                let own = self.roundings();
                let depth: f64 = crate::reduce::fold::passes(&ins[0].shape, &self.axes).iter().map(|p| crate::cases::depth(p.rows)).sum();
                let stages = |kind| self.fold(1).stages.iter().filter(|s| s.kind == kind).count() as f64;
                // Every factor's rounding stays in a product.
                let factors = stages(Kind::Product) * count(&ins[0].shape, &self.axes) as f64;
                crate::Bound { ulps: own.ulps, terms: own.terms + stages(Kind::Sum) * depth + factors }
            }
        }
    )*};
}

reductions! {
    /// Sum over a set of axes. A sum of no elements is +0.
    Sum "sum" {};

    /// Mean over a set of axes: the sum times the rounded `1 / count`. A mean of no elements is NaN.
    Mean "mean" {};

    /// Product over a set of axes. A product of no elements is 1. The gradient of an element is the product of the
    /// others, whatever zeros there are.
    Prod "prod" {};

    /// The largest element over a set of axes, NaN if one is. The gradient goes to the first of the largest elements, or of
    /// those that are NaN, in row-major order. No elements have no maximum: an error.
    Amax "amax" {};

    /// The smallest element over a set of axes, NaN if one is. The gradient goes to the first of the smallest elements, or of
    /// those that are NaN, in row-major order. No elements have no minimum: an error.
    Amin "amin" {};

    /// `ln Σ e^x` over a set of axes, as `m + ln Σ e^(x - m)` with `m = max x`, so that nothing overflows. All
    /// -inf, or no elements at all, give -inf; a +inf gives +inf; a NaN gives NaN. The gradient beside a +inf is zero, its own is
    /// NaN.
    Logsumexp "logsumexp" {};

    /// `Σ (x - mean)^2 / (n - correction)` over a set of axes, in two passes. A correction of 0 is the biased
    /// variance, 1 the unbiased one. NaN where `n` is not above the correction, infinite only by overflow.
    Variance "variance" {
        correction: usize = 1, #[doc = "What is subtracted from the count."] whole
    };

    /// The square root of [`Variance`], right also where that overflows or vanishes. The slope is zero where it is zero.
    StdDev "std_dev" {
        correction: usize = 1, #[doc = "What is subtracted from the count."] whole
    };

    /// `Σ |x|` over a set of axes. The slope at zero is zero.
    NormL1 "norm_l1" {};

    /// `sqrt(Σ x^2)` over a set of axes. The slope is zero where the norm is zero.
    NormL2 "norm_l2" {};

    /// `max |x|` over a set of axes, 0 for no elements, NaN if one is. The gradient goes to the first of the largest elements in
    /// row-major order; that of a NaN is NaN.
    NormInf "norm_inf" {};
}

fn trace(
    n: usize,
    f: impl FnOnce(&[crate::pointwise::expression::Expr]) -> crate::pointwise::expression::Expr,
) -> Pointwise {
    Pointwise::trace(n, |x| vec![f(x)])
}

fn plain() -> Pointwise {
    trace(1, |x| x[0])
}

fn total<T: Scalar>(x: impl Iterator<Item = T>) -> T {
    x.fold(T::c(0.0), |s, x| s + x)
}

impl Reduction for Sum {
    fn fold(&self, _n: usize) -> Fold {
        Fold::sum()
    }

    fn of<T: Scalar>(&self, x: &[T]) -> T {
        total(x.iter().copied())
    }

    fn rule(&self, r: &mut dyn Recorder, x: Val, _y: Val, dy: Val, _n: usize) -> Result<Val> {
        let shape = r.meta(x).shape;
        layout::broadcast_to(r, dy, shape)
    }
}

impl Reduction for Mean {
    fn fold(&self, n: usize) -> Fold {
        let inverse = inverse(n);
        Fold::new(1, Kind::Sum, plain(), trace(1, |s| s[0] * Real::c(inverse)))
    }

    fn of<T: Scalar>(&self, x: &[T]) -> T {
        total(x.iter().copied()) / T::c(x.len() as f64)
    }

    fn rule(&self, r: &mut dyn Recorder, x: Val, _y: Val, dy: Val, n: usize) -> Result<Val> {
        let shape = r.meta(x).shape;
        let dy = r.record(Scale { c: inverse(n) as f32 }.into(), &[dy])?;
        layout::broadcast_to(r, dy, shape)
    }
}

impl Reduction for Prod {
    fn fold(&self, _n: usize) -> Fold {
        Fold::new(1, Kind::Product, plain(), plain())
    }

    fn of<T: Scalar>(&self, x: &[T]) -> T {
        x.iter().fold(T::c(1.0), |p, &x| p * x)
    }

    fn rule(&self, r: &mut dyn Recorder, x: Val, _y: Val, dy: Val, n: usize) -> Result<Val> {
        let shape = r.meta(x).shape;
        if shape.numel() == 0 || n == 1 {
            return layout::broadcast_to(r, dy, shape);
        }
        // The factors as rows, and ones up to a power of two. They are multiplied half by half; on the way back each
        // half gets the other one, so that there is no division, and all derivatives are right at zeros.
        let rank = shape.rank();
        let rest = (0..rank).filter(|a| !self.axes.contains(a));
        let order: Vec<usize> = self.axes.iter().copied().chain(rest).collect();
        let back = (0..rank).map(|a| order.iter().position(|&o| o == a).unwrap_or(a)).collect();
        let turned = r.record(layout::Permute { order }.into(), &[x])?;
        let (turned_shape, width) = (r.meta(turned).shape, shape.numel() / n);
        let mut rows = n.next_power_of_two();
        let mut value = layout::reshape_to(r, turned, Shape::new(&[n, width])?)?;
        if rows > n {
            let pad = layout::Pad { axis: 0, start: 0, step: 1, size: rows, value: 1.0 };
            value = r.record(pad.into(), &[value])?;
        }
        let half = |r: &mut dyn Recorder, v: Val, start: usize, len: usize| {
            r.record(layout::Slice { axis: 0, start, len, step: 1 }.into(), &[v])
        };
        let mut halves = Vec::new();
        while rows > 1 {
            rows /= 2;
            let (a, b) = (half(r, value, 0, rows)?, half(r, value, rows, rows)?);
            if rows > 1 {
                value = r.record(Mul {}.into(), &[a, b])?;
            }
            halves.push((a, b));
        }
        let mut g = layout::reshape_to(r, dy, Shape::new(&[1, width])?)?;
        for (a, b) in halves.into_iter().rev() {
            let (da, db) = (r.record(Mul {}.into(), &[g, b])?, r.record(Mul {}.into(), &[g, a])?);
            g = r.record(layout::Concat { axis: 0 }.into(), &[da, db])?;
        }
        let g = half(r, g, 0, n)?;
        let g = layout::reshape_to(r, g, turned_shape)?;
        r.record(layout::Permute { order: back }.into(), &[g])
    }
}

impl Reduction for Amax {
    const OF_NOTHING: bool = false;

    fn fold(&self, _n: usize) -> Fold {
        Fold::new(1, Kind::Max, plain(), plain())
    }

    fn of<T: Scalar>(&self, x: &[T]) -> T {
        x.iter().fold(T::c(f64::NEG_INFINITY), |m, &x| x.max(m))
    }

    fn rule(&self, r: &mut dyn Recorder, x: Val, _y: Val, dy: Val, _n: usize) -> Result<Val> {
        extremum::record_place(r, x, &self.axes, Which::Largest, dy)
    }
}

impl Reduction for Amin {
    const OF_NOTHING: bool = false;

    fn fold(&self, _n: usize) -> Fold {
        Fold::new(1, Kind::Min, plain(), plain())
    }

    fn of<T: Scalar>(&self, x: &[T]) -> T {
        x.iter().fold(T::c(f64::INFINITY), |m, &x| x.min(m))
    }

    fn rule(&self, r: &mut dyn Recorder, x: Val, _y: Val, dy: Val, _n: usize) -> Result<Val> {
        extremum::record_place(r, x, &self.axes, Which::Smallest, dy)
    }
}

/// A maximum that can be subtracted: 0 where it is infinite.
pub(crate) fn shift<R: Real>(m: R) -> R {
    R::where_gt(R::c(f64::INFINITY), m.abs(), m, R::c(0.0))
}

impl Reduction for Logsumexp {
    fn fold(&self, _n: usize) -> Fold {
        let max = Stage { kind: Kind::Max, load: plain(), post: trace(1, |m| shift(m[0])) };
        let load = trace(2, |x| (x[0] - x[1]).exp());
        let sum = Stage { kind: Kind::Sum, load, post: trace(2, |s| s[1] + s[0].log()) };
        Fold { ins: 1, aux: 0, stages: vec![max, sum] }
    }

    fn of<T: Scalar>(&self, x: &[T]) -> T {
        let m = x.iter().fold(T::c(f64::NEG_INFINITY), |m, &x| x.max(m));
        let m = if m.to_f64().is_finite() { m } else { T::c(0.0) };
        m + total(x.iter().map(|&x| (x - m).exp())).log()
    }

    fn rule(&self, r: &mut dyn Recorder, x: Val, y: Val, dy: Val, _n: usize) -> Result<Val> {
        let shape = r.meta(x).shape;
        // Nothing but -inf has gradient zero.
        let lowest = || Real::c(f64::NEG_INFINITY);
        let rule = trace(3, |v| v[2] * (v[0] - Real::where_eq(v[1], lowest(), Real::c(0.0), v[1])).exp());
        record_pointwise(r, &rule, shape, &[x, y, dy])
    }
}

/// A power of two that brings numbers of magnitude up to `m` to where 2^32 of their squares can be added, and the square of
/// the least difference of two of them is a number: 1 from 2^-20 to 2^46, and where `m` is infinite or NaN.
fn into_range<R: Real>(m: R) -> R {
    let two = |e: i32| R::c(libm::exp2(f64::from(e)));
    let small = R::where_gt(two(-80), m, two(126), R::where_gt(two(-20), m, two(64), R::c(1.0)));
    R::where_gt(m, two(46), R::where_gt(R::c(f64::INFINITY), m, two(-82), R::c(1.0)), small)
}

fn variance_of<T: Scalar>(x: &[T], correction: usize) -> T {
    let mean = total(x.iter().copied()) / T::c(x.len() as f64);
    let squares = total(x.iter().map(|&x| (x - mean) * (x - mean)));
    squares / T::c(x.len().saturating_sub(correction) as f64)
}

/// Records the mean of `x`, with the reduced axes as ones.
fn record_mean(r: &mut dyn Recorder, x: Val, axes: &[usize]) -> Result<Val> {
    let kept = fold::kept(&r.meta(x).shape, axes);
    let mean = r.record(Mean { axes: axes.to_vec() }.into(), &[x])?;
    layout::reshape_to(r, mean, kept)
}

impl Reduction for Variance {
    fn fold(&self, n: usize) -> Fold {
        let (mean_of, below) = (inverse(n), inverse(n.saturating_sub(self.correction)));
        let mean = Stage { kind: Kind::Sum, load: plain(), post: trace(1, |s| s[0] * Real::c(mean_of)) };
        let squares = trace(2, |x| {
            let d = x[0] - x[1];
            d * d
        });
        let post = trace(2, |s| s[0] * Real::c(below));
        Fold { ins: 1, aux: 0, stages: vec![mean, Stage { kind: Kind::Sum, load: squares, post }] }
    }

    fn of<T: Scalar>(&self, x: &[T]) -> T {
        variance_of(x, self.correction)
    }

    fn rule(&self, r: &mut dyn Recorder, x: Val, _y: Val, dy: Val, n: usize) -> Result<Val> {
        // dx = (x - mean) (dy 2 / (n - correction)); the mean's own part sums to zero
        let mean = record_mean(r, x, &self.axes)?;
        let twice = 2.0 * inverse(n.saturating_sub(self.correction));
        let rule = trace(3, |v| (v[0] - v[1]) * (v[2] * Real::c(twice)));
        let shape = r.meta(x).shape;
        record_pointwise(r, &rule, shape, &[x, mean, dy])
    }

    fn extras(&self) -> Vec<(&'static str, Attr)> {
        vec![("correction", Attr::Num(self.correction as f64))]
    }
}

/// `g / y`, 0 where `y` is zero. The division is safe there too, so that its own slope is zero and not NaN.
pub(crate) fn slope_by_root<R: Real>(g: R, y: R) -> R {
    let (zero, one) = (R::c(0.0), R::c(1.0));
    R::where_eq(y, zero, zero, g / R::where_eq(y, zero, one, y))
}

impl Reduction for StdDev {
    fn fold(&self, n: usize) -> Fold {
        // Squares are of elements times a power of two, which changes no bit where nothing over- or underflows.
        let (mean_of, below) = (inverse(n), inverse(n.saturating_sub(self.correction)));
        let scale =
            Stage { kind: Kind::Max, load: trace(1, |x| x[0].abs()), post: trace(1, |m| into_range(m[0])) };
        let mean = Stage {
            kind: Kind::Sum,
            load: trace(2, |x| x[0] * x[1]),
            post: trace(2, |s| s[0] * Real::c(mean_of)),
        };
        let squares = trace(3, |x| {
            let d = x[0] * x[1] - x[2];
            d * d
        });
        let post = trace(3, |s| (s[0] * Real::c(below)).sqrt() / s[1]);
        Fold { ins: 1, aux: 0, stages: vec![scale, mean, Stage { kind: Kind::Sum, load: squares, post }] }
    }

    fn of<T: Scalar>(&self, x: &[T]) -> T {
        variance_of(x, self.correction).sqrt()
    }

    fn rule(&self, r: &mut dyn Recorder, x: Val, y: Val, dy: Val, n: usize) -> Result<Val> {
        // dx = (x - mean) ((dy / (n - correction)) / y)
        let mean = record_mean(r, x, &self.axes)?;
        let inverse = inverse(n.saturating_sub(self.correction));
        let rule = trace(4, |v| (v[0] - v[1]) * slope_by_root(v[3] * Real::c(inverse), v[2]));
        let shape = r.meta(x).shape;
        record_pointwise(r, &rule, shape, &[x, mean, y, dy])
    }

    fn extras(&self) -> Vec<(&'static str, Attr)> {
        vec![("correction", Attr::Num(self.correction as f64))]
    }
}

impl Reduction for NormL1 {
    fn fold(&self, _n: usize) -> Fold {
        Fold::new(1, Kind::Sum, trace(1, |x| x[0].abs()), plain())
    }

    fn of<T: Scalar>(&self, x: &[T]) -> T {
        total(x.iter().map(|x| x.abs()))
    }

    fn rule(&self, r: &mut dyn Recorder, x: Val, _y: Val, dy: Val, _n: usize) -> Result<Val> {
        let shape = r.meta(x).shape;
        record_pointwise(r, &trace(2, |v| signed(v[0], v[1])), shape, &[x, dy])
    }
}

impl Reduction for NormL2 {
    fn fold(&self, _n: usize) -> Fold {
        Fold::new(1, Kind::Sum, trace(1, |x| x[0] * x[0]), trace(1, |s| s[0].sqrt()))
    }

    fn of<T: Scalar>(&self, x: &[T]) -> T {
        total(x.iter().map(|&x| x * x)).sqrt()
    }

    fn rule(&self, r: &mut dyn Recorder, x: Val, y: Val, dy: Val, _n: usize) -> Result<Val> {
        let shape = r.meta(x).shape;
        let rule = trace(3, |v| v[0] * slope_by_root(v[2], v[1]));
        record_pointwise(r, &rule, shape, &[x, y, dy])
    }
}

impl Reduction for NormInf {
    fn fold(&self, _n: usize) -> Fold {
        // No elements have norm 0.
        let post = trace(1, |m| Real::where_le(m[0], Real::c(0.0), Real::c(0.0), m[0]));
        Fold::new(1, Kind::Max, trace(1, |x| x[0].abs()), post)
    }

    fn of<T: Scalar>(&self, x: &[T]) -> T {
        x.iter().fold(T::c(0.0), |m, x| x.abs().max(m))
    }

    fn rule(&self, r: &mut dyn Recorder, x: Val, _y: Val, dy: Val, _n: usize) -> Result<Val> {
        let size = r.record(Abs {}.into(), &[x])?;
        let place = extremum::record_place(r, size, &self.axes, Which::Largest, dy)?;
        let shape = r.meta(x).shape;
        record_pointwise(r, &trace(2, |v| signed(v[0], v[1])), shape, &[x, place])
    }
}
