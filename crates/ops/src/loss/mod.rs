//! Losses. A loss of two values of one shape is a row of a table: a formula, its gradient and ranges to sample; its sum
//! or mean over all elements is one pass (a fold). Losses of logits or log-probabilities against integer labels have
//! files of their own.

#[cfg(feature = "cases")]
mod cases;
mod cross_entropy;
mod labels;
mod nll;

use crate::pointwise::expression::Pointwise;
use crate::pointwise::map;
use crate::pointwise::record_pointwise;
use crate::reduce::fold::{Fold, Kind, Stage};
use crate::{
    AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Kernel, Known, Op, Recorder, Val, floats, known,
    mismatch, typed,
};
pub use cross_entropy::{CrossEntropy, CrossEntropyBwd};
use dittograd_device::cuda::Source;
use dittograd_device::{DType, Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::{Real, Scalar, signed};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use labels::LOSS_CU;
pub use nll::{LabelWeights, Nll, NllBwd};
use std::sync::{Arc, OnceLock};

/// How the losses of all elements are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// Their mean; 0 for no elements.
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// No reduction: one loss per element.
    None,
}

impl Reduction {
    fn attr(self) -> (&'static str, Attr) {
        ("reduction", Attr::Num(self as usize as f64))
    }

    /// Reads the attribute: 0 is the mean, 1 the sum, 2 none. Without the attribute it is the mean.
    fn from_attrs(attrs: &Attrs) -> Result<Reduction> {
        if !attrs.has("reduction") {
            return Ok(Reduction::Mean);
        }
        match attrs.whole("reduction")? {
            0 => Ok(Reduction::Mean),
            1 => Ok(Reduction::Sum),
            2 => Ok(Reduction::None),
            _ => Err(Error::argument("attributes", "reduction", "0 (mean), 1 (sum) or 2 (none) is needed")),
        }
    }

    /// The weight of each loss in the value.
    fn weight(self, count: usize) -> f64 {
        if self == Reduction::Mean { f64::from(inverse(count)) } else { 1.0 }
    }
}

/// `1 / count`, formed in f64 and rounded once; 0 for no elements, so that an empty batch has loss 0.
fn inverse(count: usize) -> f32 {
    if count == 0 { 0.0 } else { (1.0 / count as f64) as f32 }
}

/// What a row of the table of losses provides.
trait Loss: Op {
    /// Loss of one element `x` against `t`.
    fn formula<R: Real>(&self, x: R, t: R) -> R;
    /// Gradients by `x` and `t`, given the upstream gradient `g` and the weight `k` of each loss.
    fn gradient<R: Real>(&self, x: R, t: R, g: R, k: R) -> [R; 2];

    /// The bits of the attribute, if there is one.
    fn bits(&self) -> u32;

    fn program(&self) -> Pointwise {
        Pointwise::trace(2, |x| vec![self.formula(x[0], x[1])])
    }

    /// The fold over `count` elements. Its formulas are traced once per process.
    fn fold(&self, reduction: Reduction, count: usize) -> Arc<Fold> {
        static KNOWN: Known<(&str, u32, u32, bool), Arc<Fold>> = Known::new(Default::default);
        let k = reduction.weight(count);
        let key = (Self::NAME, self.bits(), (k as f32).to_bits(), reduction == Reduction::Mean);
        known(&KNOWN, key, |_| {
            let post = match reduction {
                Reduction::Mean => Pointwise::trace(1, |s| vec![s[0] * Real::c(k)]),
                _ => Pointwise::same(1),
            };
            Arc::new(Fold::new(2, Kind::Sum, self.program(), post))
        })
    }
}

/// All axes of a shape.
fn all(shape: &Shape) -> Vec<usize> {
    (0..shape.rank()).collect()
}

macro_rules! losses {
    ($($(#[$doc:meta])* $name:literal $op:ident { $($attr:ident = $default:literal),* } ($x:ident, $t:ident) = $f:expr,
       d($g:ident, $k:ident) = [$dx:expr, $dt:expr], on [$xs:expr, $ts:expr];)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $op {
            $(#[doc = "Scalar attribute, rounded once to float32."] pub $attr: f32,)*
            /// How the losses of all elements are combined.
            pub reduction: Reduction,
        }

        impl Loss for $op {
            fn formula<R: Real>(&self, $x: R, $t: R) -> R {
                $(let $attr = R::c(f64::from(self.$attr));)*
                $f
            }

            #[allow(unused_variables)]
            fn gradient<R: Real>(&self, $x: R, $t: R, $g: R, $k: R) -> [R; 2] {
                $(let $attr = R::c(f64::from(self.$attr));)*
                [$dx, $dt]
            }

            fn bits(&self) -> u32 {
                let attrs: &[f32] = &[$(self.$attr),*];
                attrs.first().map_or(0, |x| x.to_bits())
            }
        }

        impl Op for $op {
            const NAME: &'static str = $name;

            fn shape(&self, ins: &[Meta]) -> Result<Meta> {
                let [x, t] = floats(Self::NAME, ins)?;
                if x != t {
                    return Err(mismatch(Self::NAME, "value and target differ in shape", x, t));
                }
                Ok(Meta::f32(if self.reduction == Reduction::None { x } else { Shape::SCALAR }))
            }

            fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
                let shape = ins[0].shape;
                match self.reduction {
                    Reduction::None => 0,
                    _ => self.fold(self.reduction, 1).workspace(&shape, &all(&shape), device),
                }
            }

            fn cpu(&self, run: CpuRun<'_>) {
                let shape = run.metas[0].shape;
                match self.reduction {
                    Reduction::None => map::run_cpu(&self.program(), &[map::access(&shape, &shape); 2], run),
                    _ => self.fold(self.reduction, shape.numel()).run_cpu(&shape, &all(&shape), run),
                }
            }

            fn prepared(&self, ins: &[Meta]) -> Option<Kernel> {
                let fold = self.as_fold(ins).map(|(fold, axes)| fold.prepared(ins[0].shape, axes));
                fold.or_else(|| self.as_pointwise(ins).map(map::prepared))
            }

            fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
                let shape = run.metas[0].shape;
                match self.reduction {
                    Reduction::None => map::run_cuda(&self.program(), &[map::access(&shape, &shape); 2], run),
                    _ => self.fold(self.reduction, shape.numel()).run_cuda(&shape, &all(&shape), run),
                }
            }

            fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
                let shape = ins[0].shape;
                match self.reduction {
                    Reduction::None => {
                        vec![map::module(&self.program(), &shape, &[map::access(&shape, &shape); 2])]
                    }
                    _ => self.fold(self.reduction, shape.numel()).modules(&shape, &all(&shape), gpu),
                }
            }

            fn as_pointwise(&self, _ins: &[Meta]) -> Option<Pointwise> {
                (self.reduction == Reduction::None).then(|| self.program())
            }

            fn as_fold(&self, ins: &[Meta]) -> Option<(Fold, Vec<usize>)> {
                let shape = ins.first()?.shape;
                let fold = || (Fold::clone(&self.fold(self.reduction, shape.numel())), all(&shape));
                (self.reduction != Reduction::None).then(fold)
            }

            fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
                let shape = r.meta(io.ins[0]).shape;
                let k = self.reduction.weight(shape.numel());
                let args = [io.ins[0], io.ins[1], dy];
                (0..2)
                    .map(|i| {
                        let rule =
                            Pointwise::trace(3, |v| vec![self.gradient(v[0], v[1], v[2], Real::c(k))[i]]);
                        record_pointwise(r, &rule, shape, &args).map(Some)
                    })
                    .collect()
            }

            fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
                let (x, t) = (ins[0].num()?, ins[1].num()?);
                let losses = Tensor::from_fn(x.shape(), |i| self.formula(x.data()[i], t.data()[i]));
                let sum = losses.data().iter().fold(T::c(0.0), |s, &x| s + x);
                Ok(match self.reduction {
                    Reduction::Mean => Tensor::scalar(sum / T::c(losses.data().len().max(1) as f64)),
                    Reduction::Sum => Tensor::scalar(sum),
                    Reduction::None => losses,
                })
            }

            fn attrs(&self) -> Vec<(&'static str, Attr)> {
                vec![$((stringify!($attr), Attr::Num(f64::from(self.$attr))),)* self.reduction.attr()]
            }

            fn from_attrs(attrs: &Attrs) -> Result<$op> {
                attrs.only(&[$(stringify!($attr),)* "reduction"])?;
                Ok($op {
                    $($attr: attrs.num(stringify!($attr))? as f32,)*
                    reduction: Reduction::from_attrs(attrs)?,
                })
            }
        }

        #[cfg(feature = "cases")]
        impl crate::Cases for $op {
            fn samples() -> Vec<crate::Sample> {
                let sample = |(shape, reduction): (Shape, Reduction)| {
                    let ins = vec![crate::SampleIn::Num(shape, $xs), crate::SampleIn::Num(shape, $ts)];
                    crate::Sample::new($op { $($attr: $default,)* reduction }, ins)
                };
                cases::loss_samples().into_iter().map(sample).collect()
            }

            fn random(stream: &mut dittograd_numerics::rng::Stream) -> Option<crate::Sample> {
                let shape = crate::cases::edge_shape(1, 3, stream);
                let reduction = [Reduction::Mean, Reduction::Sum, Reduction::None][stream.below(3)];
                let ins = vec![crate::SampleIn::Num(shape, $xs), crate::SampleIn::Num(shape, $ts)];
                Some(crate::Sample::new($op { $($attr: $default,)* reduction }, ins))
            }

            fn rejects() -> Vec<crate::Reject> {
                let f = |d: &[usize]| Meta::f32(crate::dims(d));
                let op = $op { $($attr: $default,)* reduction: Reduction::Mean };
                vec![
                    crate::Reject::new(op, vec![f(&[2])], "Arity"),
                    crate::Reject::new(op, vec![f(&[2]), f(&[2, 1])], "Shapes"),
                    crate::Reject::new(op, vec![f(&[2]), f(&[])], "Shapes"),
                    crate::Reject::new(op, vec![f(&[2]), Meta::u32(crate::dims(&[2]))], "DType"),
                ]
            }

            fn bound(&self, ins: &[Meta]) -> crate::Bound {
                let sums = if self.reduction == Reduction::None { 0.0 } else { crate::cases::depth(ins[0].shape.numel()) };
                crate::Bound { ulps: 4.0, terms: 12.0 + sums }
            }
        }
    )*};
}

/// A logarithm clamped to at least -100, as in losses of probabilities.
fn held_log<R: Real>(log: R) -> R {
    R::where_gt(R::c(-100.0), log, R::c(-100.0), log)
}

/// +0, or `x` where that is NaN.
fn zero_or_nan<R: Real>(x: R) -> R {
    R::where_eq(x, x, R::c(0.0), x)
}

#[cfg(feature = "cases")]
const ANY: (f64, f64) = (-2.0, 2.0);

losses! {
    /// Squared difference.
    "mse" Mse {} (x, t) = { let d = x - t; d * d },
        d(g, k) = [((x - t) * g) * (k + k), -(((x - t) * g) * (k + k))], on [ANY, ANY];

    /// Absolute difference. The slope at zero is zero.
    "l1" L1 {} (x, t) = (x - t).abs(),
        d(g, k) = [signed(x - t, g * k), signed(t - x, g * k)], on [ANY, ANY];

    /// With `r = |x - t|`: `r^2 / 2` up to `delta`, `delta (r - delta / 2)` above.
    "huber" Huber { delta = 0.75 } (x, t) = {
            let r = (x - t).abs();
            R::where_gt(r, delta, delta * (r - R::c(0.5) * delta), R::c(0.5) * (r * r))
        },
        d(g, k) = [(R::where_gt((x - t).abs(), delta, signed(x - t, delta), x - t) * g) * k,
                   (R::where_gt((x - t).abs(), delta, signed(t - x, delta), t - x) * g) * k], on [ANY, ANY];

    /// With `r = |x - t|`: `r^2 / (2 beta)` below `beta`, `r - beta / 2` from there on.
    "smooth_l1" SmoothL1 { beta = 0.75 } (x, t) = {
            let r = (x - t).abs();
            R::where_gt(beta, r, (R::c(0.5) * (r * r)) / beta, r - R::c(0.5) * beta)
        },
        d(g, k) = [(R::where_gt(beta, (x - t).abs(), (x - t) / beta, signed(x - t, R::c(1.0))) * g) * k,
                   (R::where_gt(beta, (x - t).abs(), (t - x) / beta, signed(t - x, R::c(1.0))) * g) * k],
        on [ANY, ANY];

    /// Binary cross-entropy of a probability: `-(t ln x + (1 - t) ln(1 - x))`, both logarithms clamped to at least
    /// -100. NaN outside `[0, 1]`. The slope in `x` is `(x - t) / max(x (1 - x), 1e-12)`.
    "bce" Bce {} (x, t) =
            -(t * held_log(x.log()) + (R::c(1.0) - t) * held_log((-x).log1p())),
        d(g, k) = [(((x - t) / { let v = x * (R::c(1.0) - x); R::where_gt(R::c(1e-12), v, R::c(1e-12), v) }) * g) * k,
                   ((held_log((-x).log1p()) - held_log(x.log())) * g) * k],
        on [(0.05, 0.9), (0.0, 1.0)];

    /// Binary cross-entropy of a logit: `t softplus(-x) + (1 - t) softplus(x)`. It neither overflows nor loses
    /// precision for large `|x|`.
    "bce_with_logits" BceWithLogits {} (x, t) = t * (-x).softplus() + (R::c(1.0) - t) * x.softplus(),
        d(g, k) = [((x.sigmoid() - t) * g) * k, -((x * g) * k)], on [(-8.0, 8.0), (0.0, 1.0)];

    /// Kullback-Leibler divergence of a log-probability `x` from a target probability: `t (ln t - x)`. Where the target
    /// is 0 and `x` is not NaN, the loss and its gradients are 0.
    "kl_div" KlDiv {} (x, t) = R::where_eq(t, R::c(0.0), zero_or_nan(x), t * (t.log() - x)),
        d(g, k) = [R::where_eq(x, x, -((t * g) * k), x),
                   R::where_eq(t, R::c(0.0), zero_or_nan(x), (((t.log() - x) + R::c(1.0)) * g) * k)],
        on [(-4.0, 0.0), (0.05, 1.0)];
}

/// Checks rows `(…, C)` and labels `(…)`; returns the rows' shape.
fn check(op: &'static str, ins: &[Meta], want: usize) -> Result<Shape> {
    if ins.len() != want {
        return Err(Error::new(op, ErrorKind::Arity { want, got: ins.len() }));
    }
    typed(op, ins, 0, DType::F32)?;
    typed(op, ins, 1, DType::U32)?;
    let (x, labels) = (ins[0].shape, ins[1].shape);
    if x.rank() == 0 {
        return Err(Error::new(op, ErrorKind::Rank { want: "at least 1", got: x }));
    }
    if x.last() == 0 {
        return Err(Error::argument(
            op,
            "last axis",
            format!("is empty in shape {x}, so there are no classes"),
        ));
    }
    if x.dims()[..x.rank() - 1] != *labels.dims() {
        return Err(mismatch(op, "labels must have the logits' shape without its last axis", x, labels));
    }
    Ok(x)
}

/// Errors unless the gradient is a scalar.
fn check_scalar(op: &'static str, ins: &[Meta], i: usize) -> Result<()> {
    typed(op, ins, i, DType::F32)?;
    if ins[i].shape != Shape::SCALAR {
        return Err(Error::new(op, ErrorKind::Rank { want: "exactly 0", got: ins[i].shape }));
    }
    Ok(())
}

fn label_module() -> Source {
    ("loss".into(), LOSS_CU)
}

/// The fold of a sum times a scalar input.
fn mean() -> &'static Fold {
    static FOLD: OnceLock<Fold> = OnceLock::new();
    FOLD.get_or_init(|| {
        let load = Pointwise::trace(2, |x| vec![x[0]]);
        let post = Pointwise::trace(2, |s| vec![s[0] * s[1]]);
        Fold { ins: 1, aux: 1, stages: vec![Stage { kind: Kind::Sum, load, post }] }
    })
}

/// The attribute for an ignored label.
fn ignore_attr(ignore: Option<u32>) -> Option<(&'static str, Attr)> {
    ignore.map(|i| ("ignore_index", Attr::Num(f64::from(i))))
}

fn read_ignore(attrs: &Attrs) -> Result<Option<u32>> {
    if !attrs.has("ignore_index") {
        return Ok(None);
    }
    let index = attrs.whole("ignore_index")?;
    u32::try_from(index)
        .map(Some)
        .map_err(|_| Error::argument("attributes", "ignore_index", "must be below 2^32"))
}
