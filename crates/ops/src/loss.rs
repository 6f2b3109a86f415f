//! Losses. Those of two values of one shape are rows of a table: a formula, its gradient and ranges to sample;
//! the sum or mean over all elements is one pass (a fold). Those of logits or log-probabilities against
//! integer labels are below.

use super::fold::{self, Fold, Kind, Stage};
use super::map::{self, grid, record_program};
use super::program::Program;
use super::reduce::depth;
use super::rows::{Formula, Row, RowKernel};
use super::sampling::{edge_dims, edge_shape};
use super::softmax::SoftmaxBwd;
use super::{
    AnyTensor, Attr, Attrs, Bound, CpuRun, CudaRun, Gpu, Io, Kernel, Op, Recorder, Reject, Sample, SampleIn,
    Val, dims, floats, layout, mismatch, reduce, typed,
};
use crate::elementwise;
use crate::random::Full;
use crate::softmax::Softmax;
use dittograd_device::cpu::simd::Simd;
use dittograd_device::cpu::threads::Pool;
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{DType, Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::rng::Stream;
use dittograd_numerics::scalar::{Real, Scalar, signed};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use std::sync::OnceLock;

/// What becomes of the losses of all elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// Their mean; 0 for no elements.
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// They stay as they are.
    None,
}

impl Reduction {
    fn attr(self) -> (&'static str, Attr) {
        ("reduction", Attr::Num(self as usize as f64))
    }

    /// From a whole number: 0 is the mean, 1 the sum, 2 neither; the mean if there is none.
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

    /// What each loss counts in the value.
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
    /// Gradients of both, with the upstream gradient `g` and what each loss counts, `k`.
    fn gradient<R: Real>(&self, x: R, t: R, g: R, k: R) -> [R; 2];

    fn program(&self) -> Program {
        Program::trace(2, |x| vec![self.formula(x[0], x[1])])
    }

    fn fold(&self, reduction: Reduction, count: usize) -> Fold {
        let k = reduction.weight(count);
        let post = match reduction {
            Reduction::Mean => Program::trace(1, |s| vec![s[0] * Real::c(k)]),
            _ => Program::same(1),
        };
        Fold::new(2, Kind::Sum, self.program(), post)
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
            /// What becomes of the losses of all elements.
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
                fold.or_else(|| self.as_program(ins).map(map::prepared))
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

            fn as_program(&self, _ins: &[Meta]) -> Option<Program> {
                (self.reduction == Reduction::None).then(|| self.program())
            }

            fn as_fold(&self, ins: &[Meta]) -> Option<(Fold, Vec<usize>)> {
                let shape = ins.first()?.shape;
                let fold = || (self.fold(self.reduction, shape.numel()), all(&shape));
                (self.reduction != Reduction::None).then(fold)
            }

            fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
                let shape = r.meta(io.ins[0]).shape;
                let k = self.reduction.weight(shape.numel());
                let args = [io.ins[0], io.ins[1], dy];
                (0..2)
                    .map(|i| {
                        let rule =
                            Program::trace(3, |v| vec![self.gradient(v[0], v[1], v[2], Real::c(k))[i]]);
                        record_program(r, &rule, shape, &args).map(Some)
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

            fn samples() -> Vec<Sample<$op>> {
                let sample = |(shape, reduction): (Shape, Reduction)| Sample {
                    op: $op { $($attr: $default,)* reduction },
                    ins: vec![SampleIn::Num(shape, $xs), SampleIn::Num(shape, $ts)],
                };
                loss_samples().into_iter().map(sample).collect()
            }

            fn random(stream: &mut Stream) -> Option<Sample<$op>> {
                let shape = edge_shape(1, 3, stream);
                let reduction = [Reduction::Mean, Reduction::Sum, Reduction::None][stream.below(3)];
                let ins = vec![SampleIn::Num(shape, $xs), SampleIn::Num(shape, $ts)];
                Some(Sample { op: $op { $($attr: $default,)* reduction }, ins })
            }

            fn rejects() -> Vec<Reject<$op>> {
                let f = |d: &[usize]| Meta::f32(dims(d));
                let op = $op { $($attr: $default,)* reduction: Reduction::Mean };
                vec![
                    Reject { op, ins: vec![f(&[2])], want: "Arity" },
                    Reject { op, ins: vec![f(&[2]), f(&[2, 1])], want: "Shapes" },
                    Reject { op, ins: vec![f(&[2]), f(&[])], want: "Shapes" },
                    Reject { op, ins: vec![f(&[2]), Meta::u32(dims(&[2]))], want: "DType" },
                ]
            }

            fn bound(&self, ins: &[Meta]) -> Bound {
                let sums = if self.reduction == Reduction::None { 0.0 } else { depth(ins[0].shape.numel()) };
                Bound { ulps: 4.0, terms: 12.0 + sums }
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
    )*};
}

/// Shapes and reductions that every loss of the table is checked on.
fn loss_samples() -> Vec<(Shape, Reduction)> {
    let mut cases: Vec<(Shape, Reduction)> =
        super::sample_shapes().into_iter().map(|s| (s, Reduction::Mean)).collect();
    cases.push((dims(&[200_000]), Reduction::Mean));
    for d in [&[][..], &[0], &[3, 0], &[1025], &[5, 7]] {
        cases.extend([(dims(d), Reduction::Sum), (dims(d), Reduction::None)]);
    }
    cases
}

/// A logarithm held at or above -100, as in the losses of probabilities.
fn held_log<R: Real>(log: R) -> R {
    R::where_gt(R::c(-100.0), log, R::c(-100.0), log)
}

/// +0, or `x` where that is NaN.
fn zero_or_nan<R: Real>(x: R) -> R {
    R::where_eq(x, x, R::c(0.0), x)
}

const ANY: (f64, f64) = (-2.0, 2.0);

losses! {
    /// Squared difference.
    "mse" Mse {} (x, t) = { let d = x - t; d * d },
        d(g, k) = [((x - t) * g) * (k + k), -(((x - t) * g) * (k + k))], on [ANY, ANY];

    /// Absolute difference. The slope at zero is zero.
    "l1" L1 {} (x, t) = (x - t).abs(),
        d(g, k) = [signed(x - t, g * k), signed(t - x, g * k)], on [ANY, ANY];

    /// With `r = |x - t|`: `r^2 / 2` up to `delta`, then `delta (r - delta / 2)`.
    "huber" Huber { delta = 0.75 } (x, t) = {
            let r = (x - t).abs();
            R::where_gt(r, delta, delta * (r - R::c(0.5) * delta), R::c(0.5) * (r * r))
        },
        d(g, k) = [(R::where_gt((x - t).abs(), delta, signed(x - t, delta), x - t) * g) * k,
                   (R::where_gt((x - t).abs(), delta, signed(t - x, delta), t - x) * g) * k], on [ANY, ANY];

    /// With `r = |x - t|`: `r^2 / (2 beta)` below `beta`, then `r - beta / 2`.
    "smooth_l1" SmoothL1 { beta = 0.75 } (x, t) = {
            let r = (x - t).abs();
            R::where_gt(beta, r, (R::c(0.5) * (r * r)) / beta, r - R::c(0.5) * beta)
        },
        d(g, k) = [(R::where_gt(beta, (x - t).abs(), (x - t) / beta, signed(x - t, R::c(1.0))) * g) * k,
                   (R::where_gt(beta, (x - t).abs(), (t - x) / beta, signed(t - x, R::c(1.0))) * g) * k],
        on [ANY, ANY];

    /// Binary cross-entropy of a probability: `-(t ln x + (1 - t) ln(1 - x))`, both logarithms held at or above
    /// -100. NaN outside `[0, 1]`. The slope in `x` is `(x - t) / max(x (1 - x), 1e-12)`.
    "bce" Bce {} (x, t) =
            -(t * held_log(x.log()) + (R::c(1.0) - t) * held_log((-x).log1p())),
        d(g, k) = [(((x - t) / { let v = x * (R::c(1.0) - x); R::where_gt(R::c(1e-12), v, R::c(1e-12), v) }) * g) * k,
                   ((held_log((-x).log1p()) - held_log(x.log())) * g) * k],
        on [(0.05, 0.9), (0.0, 1.0)];

    /// Binary cross-entropy of a logit: `t softplus(-x) + (1 - t) softplus(x)`, without overflow or loss at
    /// either end.
    "bce_with_logits" BceWithLogits {} (x, t) = t * (-x).softplus() + (R::c(1.0) - t) * x.softplus(),
        d(g, k) = [((x.sigmoid() - t) * g) * k, -((x * g) * k)], on [(-8.0, 8.0), (0.0, 1.0)];

    /// Divergence of a log-probability `x` from a target probability: `t (ln t - x)`, 0 where the target is 0 and `x` is
    /// not NaN, also in its gradients.
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

const LOSS_CU: &str = include_str!("loss.cu");

fn label_module() -> Source {
    ("loss".into(), LOSS_CU)
}

/// Labels of rows, some of which may be ignored. A label that is neither ignored nor below the number of classes
/// makes its row NaN; where nothing is ignored such labels are refused instead.
#[derive(Clone, Copy)]
struct Labels {
    rows: usize,
    classes: usize,
    ignore: Option<u32>,
}

/// Where the parts of the workspace start, in words.
struct LabelSpace {
    losses: usize,
    picked: usize,
    scalars: usize,
    rest: usize,
}

impl Labels {
    fn of(x: &Shape, ignore: Option<u32>) -> Labels {
        Labels { rows: x.rows(), classes: x.last(), ignore }
    }

    /// Safe labels first, then these.
    fn space(self) -> LabelSpace {
        let rows = self.rows.next_multiple_of(4);
        LabelSpace { losses: rows, picked: 2 * rows, scalars: 3 * rows, rest: 3 * rows + 4 }
    }

    /// What a row becomes that has no loss: 0 if it is ignored, NaN if its label is bad.
    fn instead(self, label: u32) -> Option<f32> {
        match label {
            _ if self.ignore == Some(label) => Some(0.0),
            _ if label as usize >= self.classes => Some(f32::NAN),
            _ => None,
        }
    }

    /// `1 / n` for the rows that are not ignored; 0 if all are.
    fn inverse(self, labels: &[u32]) -> f32 {
        inverse(labels.iter().filter(|l| self.ignore != Some(**l)).count())
    }

    /// Labels that can be read at.
    fn safe(self, labels: &[u32], out: &mut [u32]) {
        for (s, &label) in out.iter_mut().zip(labels) {
            *s = if self.instead(label).is_some() { 0 } else { label };
        }
    }

    /// Overwrites the rows that have no loss.
    fn settle(self, labels: &[u32], width: usize, out: &mut [f32]) {
        for (row, &label) in out.chunks_mut(width).zip(labels) {
            if let Some(value) = self.instead(label) {
                row.fill(value);
            }
        }
    }

    fn ignore_args(self, args: &mut Args) {
        args.u32(self.ignore.unwrap_or(0)).i32(i32::from(self.ignore.is_some()));
    }

    fn launch(self, run: &CudaRun<'_>, name: &str, threads: usize, args: &Args) -> Result<()> {
        let kernel = run.cuda.kernel("loss", LOSS_CU, name)?;
        if threads == 0 {
            return Ok(());
        }
        run.cuda.launch(kernel, grid(run.cuda, threads), 256, 0, args)
    }

    /// Queues the safe labels and the two scalars; `dy` may be 0.
    fn prepare_cuda(self, run: &CudaRun<'_>, labels: u64, dy: u64) -> Result<()> {
        let scalars = run.workspace + self.space().scalars as u64 * 4;
        let kernel = run.cuda.kernel("loss", LOSS_CU, "labels_prepare")?;
        let mut args = Args::new();
        args.ptr(labels).ptr(dy).ptr(run.workspace).ptr(scalars);
        args.u64(self.rows as u64).u64(self.classes as u64);
        self.ignore_args(&mut args);
        run.cuda.launch(kernel, [1, 1, 1], 1024, 0, &args)
    }

    /// Queues the elements at the safe labels.
    fn pick_cuda(self, run: &CudaRun<'_>, out: u64, negative: bool) -> Result<()> {
        let mut args = Args::new();
        args.ptr(run.ins[0]).ptr(run.workspace).ptr(out);
        args.u64(self.rows as u64).u64(self.classes as u64).i32(i32::from(negative));
        self.launch(run, "labels_pick", self.rows, &args)
    }

    fn settle_cuda(self, run: &CudaRun<'_>, labels: u64, width: usize, out: u64) -> Result<()> {
        let mut args = Args::new();
        args.ptr(labels).ptr(out).u64(self.rows as u64).u64(width as u64).u64(self.classes as u64);
        self.ignore_args(&mut args);
        self.launch(run, "labels_settle", self.rows * 32, &args)
    }

    /// Words that [`mean`] needs.
    fn mean_space(self, device: &Device) -> usize {
        mean().workspace(&dims(&[self.rows]), &[0], device)
    }

    /// The sum of the rows' losses times a scalar, on the CPU.
    fn mean_cpu(
        self,
        pool: &Pool,
        simd: Simd,
        losses: &[f32],
        weight: f32,
        out: &mut [f32],
        workspace: &mut [f32],
    ) {
        let shape = dims(&[self.rows]);
        let run = CpuRun {
            pool,
            simd,
            metas: &[],
            ins: &[losses, &[weight]],
            shape: Shape::SCALAR,
            out,
            workspace,
        };
        mean().run_cpu(&shape, &[0], run);
    }

    /// Queues the same; the scalar is the first of the workspace's.
    fn mean_cuda(self, run: &CudaRun<'_>) -> Result<()> {
        let space = self.space();
        let at = |words: usize| run.workspace + words as u64 * 4;
        let shape = dims(&[self.rows]);
        let ins = [at(space.losses), at(space.scalars)];
        mean().run_cuda(&shape, &[0], &CudaRun { ins: &ins, workspace: at(space.rest), ..*run })
    }
}

/// A sum times a scalar that is given.
fn mean() -> &'static Fold {
    static FOLD: OnceLock<Fold> = OnceLock::new();
    FOLD.get_or_init(|| {
        let load = Program::trace(2, |x| vec![x[0]]);
        let post = Program::trace(2, |s| vec![s[0] * s[1]]);
        Fold { ins: 1, aux: 1, stages: vec![Stage { kind: Kind::Sum, load, post }] }
    })
}

/// The attribute of an ignored label.
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

/// Cross-entropy of `softmax(x)` against the row's label, with logits `(…, C)` and labels `(…)` below C: `-ln p[label]`,
/// or with label smoothing `e` the cross-entropy against `1 - e` at the label plus `e / C` everywhere; the mean or sum
/// over all rows, or one loss a row, of the labels' shape. Rows whose label is `ignore` do not count, whatever is in
/// them, and have loss 0; then a label that is neither below C nor ignored gives NaN instead of an error. No rows have
/// loss 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CrossEntropy {
    /// Label of rows that do not count.
    pub ignore: Option<u32>,
    /// Part of the target that is spread over all classes, from 0 to 1.
    pub smoothing: f32,
    /// What becomes of the losses of all rows.
    pub reduction: Reduction,
}

/// Gradient of [`CrossEntropy`] with respect to the logits: `(softmax(x) - target) * dy`, divided by the rows that
/// count for a mean; 0 in rows that do not count. For one loss a row `dy` has the labels' shape.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CrossEntropyBwd {
    /// Label of rows that do not count.
    pub ignore: Option<u32>,
    /// Part of the target that is spread over all classes, from 0 to 1.
    pub smoothing: f32,
    /// What becomes of the losses of all rows.
    pub reduction: Reduction,
}

/// Loss of one row: `ln s - (x_label - m)`.
#[derive(Clone, Copy)]
struct RowLoss;

impl Formula<1> for RowLoss {
    const NAME: &'static str = "cross_entropy";
    const LABELS: Option<usize> = Some(1);
    const PER_ROW: bool = true;

    #[inline(always)]
    fn post<R: Real>(self, [x]: [R; 1], row: Row<R>) -> R {
        row.s.log() - (x - row.m)
    }
}

/// Gradient of one row: `(t (1 / s) - hit) * (g weight)`, the weight being `1 / rows` for a mean.
#[derive(Clone, Copy)]
struct RowGradient {
    weight: f64,
    /// Whether every row has a `g` of its own.
    each: bool,
}

impl RowGradient {
    fn of(reduction: Reduction, rows: usize) -> RowGradient {
        RowGradient { weight: reduction.weight(rows), each: reduction == Reduction::None }
    }
}

impl Formula<1> for RowGradient {
    const NAME: &'static str = "cross_entropy_bwd";
    const LABELS: Option<usize> = Some(1);
    const SCALAR: Option<usize> = Some(2);

    #[inline(always)]
    fn post<R: Real>(self, _: [R; 1], row: Row<R>) -> R {
        (row.t * row.r - row.hit) * (row.g * R::c(self.weight))
    }

    fn scalar_each(self) -> bool {
        self.each
    }
}

/// Gradient of one row against a smoothed target; the scalar is weighted already.
#[derive(Clone, Copy)]
struct SmoothGradient {
    keep: f64,
    share: f64,
    /// Whether every row has a `g` of its own.
    each: bool,
}

impl Formula<1> for SmoothGradient {
    const NAME: &'static str = "cross_entropy_smooth_bwd";
    const LABELS: Option<usize> = Some(1);
    const SCALAR: Option<usize> = Some(2);

    #[inline(always)]
    fn post<R: Real>(self, _: [R; 1], row: Row<R>) -> R {
        let target = row.hit * R::c(self.keep) + R::c(self.share);
        (row.t * row.r - target) * row.g
    }

    fn scalar_each(self) -> bool {
        self.each
    }
}

/// What is left at the label and what every class gets.
fn smooth_target(smoothing: f32, classes: usize) -> (f64, f64) {
    let e = f64::from(smoothing);
    (f64::from((1.0 - e) as f32), f64::from((e / classes as f64) as f32))
}

/// Loss of one row against a smoothed target, given `x_label`: `ln s - ((1 - e) (x_label - m) + e/C Σ (x - m))`.
fn smooth_loss(keep: f64, share: f64) -> Fold {
    let plain = |n: usize| Program::trace(n, |x| vec![x[0]]);
    let shifted = |x: &[super::program::Expr]| x[0] - x[2];
    let max = Stage { kind: Kind::Max, load: plain(2), post: plain(2) };
    let sum = Stage { kind: Kind::Sum, load: Program::trace(3, |x| vec![shifted(x).exp()]), post: plain(3) };
    let post = Program::trace(4, |v| {
        // sum of x - m, x_label, m, s
        vec![v[3].log() - ((v[1] - v[2]) * Real::c(keep) + v[0] * Real::c(share))]
    });
    let spread = Stage { kind: Kind::Sum, load: Program::trace(4, |x| vec![shifted(x)]), post };
    Fold { ins: 1, aux: 1, stages: vec![max, sum, spread] }
}

/// Errors unless the smoothing is from 0 to 1.
fn check_smoothing(op: &'static str, smoothing: f32) -> Result<()> {
    if !(0.0..=1.0).contains(&smoothing) {
        return Err(Error::argument(op, "label_smoothing", format!("got {smoothing}, use 0 to 1")));
    }
    Ok(())
}

impl CrossEntropy {
    /// Whether every row counts and has all of its target at the label.
    fn is_plain(self) -> bool {
        self.ignore.is_none() && self.smoothing == 0.0
    }

    /// The sum of the rows' losses, or their mean where every row counts.
    fn total(self, rows: usize) -> Fold {
        let weight = self.reduction.weight(rows);
        let post = Program::trace(1, |s| vec![s[0] * Real::c(weight)]);
        Fold::new(1, Kind::Sum, Program::same(1), post)
    }

    /// The loss of a row if its target is smoothed.
    fn smooth_loss(self, ins: &[Meta]) -> Option<Fold> {
        let (keep, share) = smooth_target(self.smoothing, ins[0].shape.last());
        (self.smoothing > 0.0).then(|| smooth_loss(keep, share))
    }

    /// Fills the output on the CPU, with the fold of a smoothed loss.
    fn run(&self, smooth: Option<&Fold>, run: CpuRun<'_>) {
        let x = run.metas[0].shape;
        let labels = Labels::of(&x, self.ignore);
        let (pool, simd, metas) = (run.pool, run.simd, run.metas);
        let (row_count, columns) = (labels.rows, labels.classes);
        let given: &[u32] = bytemuck::cast_slice(run.ins[1]);
        let space = labels.space();
        let (safe, rest) = run.workspace.split_at_mut(space.losses);
        let (losses, rest) = rest.split_at_mut(space.picked - space.losses);
        let (picked, rest) = rest.split_at_mut(space.rest - space.picked);
        let (losses, total) = match self.reduction {
            Reduction::None => (run.out, None),
            _ => (&mut losses[..row_count], Some(run.out)),
        };
        let picked = &mut picked[..row_count];
        let shape = Shape::SCALAR;
        labels.safe(given, bytemuck::cast_slice_mut(&mut safe[..row_count]));
        if let Some(smooth) = smooth {
            for (row, (p, s)) in picked.iter_mut().zip(&*safe).enumerate() {
                *p = run.ins[0][row * columns + s.to_bits() as usize];
            }
            let ins: &[&[f32]] = &[run.ins[0], picked];
            let run = CpuRun { pool, simd, metas, ins, shape, out: &mut *losses, workspace: &mut *rest };
            smooth.run_cpu(&dims(&[row_count, columns]), &[1], run);
        } else {
            let ins: &[&[f32]] = &[run.ins[0], &safe[..row_count]];
            let run = CpuRun { pool, simd, metas, ins, shape, out: &mut *losses, workspace: &mut [] };
            RowLoss.run_cpu(columns, run);
        }
        labels.settle(given, 1, losses);
        if let Some(out) = total {
            let weight = if self.reduction == Reduction::Mean { labels.inverse(given) } else { 1.0 };
            labels.mean_cpu(pool, simd, losses, weight, out, rest);
        }
    }

    fn rows_space(self, x: &Shape, device: &Device) -> usize {
        let (rows, columns) = (x.rows(), x.last());
        if self.smoothing > 0.0 {
            let (keep, share) = smooth_target(self.smoothing, columns);
            return smooth_loss(keep, share).workspace(&dims(&[rows, columns]), &[1], device);
        }
        device.as_cuda().map_or(0, |cuda| RowKernel::workspace(rows, columns, &Gpu::of(cuda)))
    }
}

/// The cross-entropy of one row and its gradient by the logits, in any scalar.
fn reference_row<T: Scalar>(x: &[T], label: usize, smoothing: f32) -> (T, Vec<T>) {
    let m = x.iter().copied().fold(x[0], |m, x| m.max(x));
    let s = x.iter().fold(T::c(0.0), |s, &x| s + (x - m).exp());
    let e = f64::from(smoothing);
    let target = |j: usize| T::c(e / x.len() as f64 + if j == label { 1.0 - e } else { 0.0 });
    let mut loss = T::c(0.0);
    for (j, &x) in x.iter().enumerate() {
        if e > 0.0 || j == label {
            loss = loss + target(j) * (s.log() - (x - m));
        }
    }
    (loss, x.iter().enumerate().map(|(j, &x)| (x - m).exp() / s - target(j)).collect())
}

impl Op for CrossEntropy {
    const NAME: &'static str = "cross_entropy";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        check(Self::NAME, ins, 2)?;
        check_smoothing(Self::NAME, self.smoothing)?;
        Ok(Meta::f32(if self.reduction == Reduction::None { ins[1].shape } else { Shape::SCALAR }))
    }

    fn index_limit(&self, ins: &[Meta]) -> Option<(usize, usize)> {
        self.ignore.is_none().then_some((1, ins[0].shape.last()))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        let x = ins[0].shape;
        let labels = Labels::of(&x, self.ignore);
        labels.space().rest + self.rows_space(&x, device).max(labels.mean_space(device))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let smooth = self.smooth_loss(run.metas);
        self.run(smooth.as_ref(), run);
    }

    fn prepared(&self, ins: &[Meta]) -> Option<Kernel> {
        let (op, smooth) = (*self, self.smooth_loss(ins));
        Some(Box::new(move |run| op.run(smooth.as_ref(), run)))
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let x = run.metas[0].shape;
        let labels = Labels::of(&x, self.ignore);
        let (rows, columns, space) = (labels.rows, labels.classes, labels.space());
        let at = |words: usize| run.workspace + words as u64 * 4;
        let per_row = self.reduction == Reduction::None;
        let (out, workspace) = (if per_row { run.out } else { at(space.losses) }, at(space.rest));
        let summed = || {
            let run = CudaRun { ins: &[at(space.losses)], workspace, ..*run };
            self.total(rows).run_cuda(&dims(&[rows]), &[0], &run)
        };
        if self.is_plain() {
            RowLoss.kernel().run_cuda(columns, &CudaRun { out, workspace, ..*run })?;
            return if per_row { Ok(()) } else { summed() };
        }
        labels.prepare_cuda(run, run.ins[1], 0)?;
        if self.smoothing > 0.0 {
            labels.pick_cuda(run, at(space.picked), false)?;
            let (keep, share) = smooth_target(self.smoothing, columns);
            let ins = [run.ins[0], at(space.picked)];
            let run = CudaRun { ins: &ins, out, workspace, ..*run };
            smooth_loss(keep, share).run_cuda(&dims(&[rows, columns]), &[1], &run)?;
        } else {
            let ins = [run.ins[0], run.workspace];
            RowLoss.kernel().run_cuda(columns, &CudaRun { ins: &ins, out, workspace, ..*run })?;
        }
        labels.settle_cuda(run, run.ins[1], 1, out)?;
        match self.reduction {
            Reduction::Mean => labels.mean_cuda(run),
            Reduction::Sum => summed(),
            Reduction::None => Ok(()),
        }
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        let x = ins[0].shape;
        let (rows, columns) = (x.rows(), x.last());
        let own = RowLoss.kernel().module(columns, gpu);
        let total = match self.reduction {
            Reduction::None => Vec::new(),
            Reduction::Mean if !self.is_plain() => mean().modules(&dims(&[rows]), &[0], gpu),
            _ => self.total(rows).modules(&dims(&[rows]), &[0], gpu),
        };
        if self.is_plain() {
            return [vec![own], total].concat();
        }
        let (keep, share) = smooth_target(self.smoothing, columns);
        let per_row = match self.smoothing > 0.0 {
            true => smooth_loss(keep, share).modules(&dims(&[rows, columns]), &[1], gpu),
            false => vec![own],
        };
        [vec![label_module()], per_row, total].concat()
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let CrossEntropy { ignore, smoothing, reduction } = *self;
        let op = CrossEntropyBwd { ignore, smoothing, reduction };
        Ok(vec![Some(r.record(op.into(), &[io.ins[0], io.ins[1], dy])?), None])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let (x, labels) = (ins[0].num()?, ins[1].idx()?);
        let counts = |label: u32| self.ignore != Some(label);
        let rows = x.data().chunks(x.shape().last()).zip(labels.data());
        let losses: Vec<T> = rows
            .map(|(row, &label)| match counts(label) {
                true => reference_row(row, label as usize, self.smoothing).0,
                false => T::c(0.0),
            })
            .collect();
        let sum = losses.iter().fold(T::c(0.0), |s, &x| s + x);
        let count = labels.data().iter().filter(|l| counts(**l)).count();
        match self.reduction {
            Reduction::Mean => Ok(Tensor::scalar(sum / T::c(count.max(1) as f64))),
            Reduction::Sum => Ok(Tensor::scalar(sum)),
            Reduction::None => Tensor::with_shape(labels.shape(), losses),
        }
    }

    fn samples() -> Vec<Sample<CrossEntropy>> {
        label_samples()
            .into_iter()
            .map(|(ignore, smoothing, reduction, ins)| {
                let op = CrossEntropy { ignore, smoothing, reduction };
                Sample { op, ins }
            })
            .collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample<CrossEntropy>> {
        let (ignore, smoothing, reduction, ins) = random_labels(stream);
        Some(Sample { op: CrossEntropy { ignore, smoothing, reduction }, ins })
    }

    fn rejects() -> Vec<Reject<CrossEntropy>> {
        let op = CrossEntropy::default();
        let mut bad: Vec<_> =
            bad_labels(&[]).into_iter().map(|(ins, want)| Reject { op, ins, want }).collect();
        let ins = vec![Meta::f32(dims(&[2, 3])), Meta::u32(dims(&[2]))];
        bad.push(Reject { op: CrossEntropy { smoothing: 1.5, ..op }, ins, want: "Argument" });
        bad
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        Bound { ulps: 4.0, terms: 12.0 + 2.0 * depth(ins[0].shape.last()) + depth(ins[0].shape.rows()) }
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        label_attrs(self.ignore, self.smoothing, self.reduction)
    }

    fn from_attrs(attrs: &Attrs) -> Result<CrossEntropy> {
        let (ignore, smoothing, reduction) = read_label_attrs(attrs)?;
        Ok(CrossEntropy { ignore, smoothing, reduction })
    }
}

fn label_attrs(ignore: Option<u32>, smoothing: f32, reduction: Reduction) -> Vec<(&'static str, Attr)> {
    let mut attrs = vec![("label_smoothing", Attr::Num(f64::from(smoothing))), reduction.attr()];
    attrs.extend(ignore_attr(ignore));
    attrs
}

fn read_label_attrs(attrs: &Attrs) -> Result<(Option<u32>, f32, Reduction)> {
    attrs.only(&["label_smoothing", "ignore_index", "reduction"])?;
    let smoothing = if attrs.has("label_smoothing") { attrs.num("label_smoothing")? as f32 } else { 0.0 };
    Ok((read_ignore(attrs)?, smoothing, Reduction::from_attrs(attrs)?))
}

/// Ignored label, smoothing, reduction and inputs that the losses of labels are checked on.
type LabelSample = (Option<u32>, f32, Reduction, Vec<SampleIn>);

fn label_samples() -> Vec<LabelSample> {
    let shapes: [&[usize]; 10] = [
        &[1, 1],
        &[5, 10],
        &[128, 10],
        &[3, 33],
        &[2, 1025],
        &[2, 3, 7],
        &[9],
        &[0, 4],
        &[2, 300],
        &[2, 24577],
    ];
    let ins = |d: &[usize], more: u32| {
        let (x, lead) = (dims(d), dims(&d[..d.len() - 1]));
        vec![SampleIn::Num(x, (-4.0, 4.0)), SampleIn::Idx(lead, x.last() as u32 + more)]
    };
    let mut samples: Vec<_> = shapes.iter().map(|d| (None, 0.0, Reduction::Mean, ins(d, 0))).collect();
    // Ignored: a class, a label beyond the classes, the only class there is.
    samples.extend([
        (Some(1), 0.0, Reduction::Mean, ins(&[40, 3], 0)),
        (Some(7), 0.0, Reduction::Mean, ins(&[2, 5, 7], 1)),
        (Some(0), 0.0, Reduction::Mean, ins(&[3, 1], 0)),
        (Some(3), 0.1, Reduction::Mean, ins(&[30, 3], 1)),
        (None, 0.2, Reduction::Mean, ins(&[6, 10], 0)),
        (None, 1.0, Reduction::Mean, ins(&[3, 300], 0)),
        (None, 0.1, Reduction::Mean, ins(&[2, 2500], 0)),
        (Some(2), 0.1, Reduction::Mean, ins(&[0, 3], 0)),
        (Some(2), 0.0, Reduction::Mean, ins(&[4, 2500], 0)),
    ]);
    for reduction in [Reduction::Sum, Reduction::None] {
        samples.extend([
            (None, 0.0, reduction, ins(&[9], 0)),
            (None, 0.0, reduction, ins(&[0, 4], 0)),
            (None, 0.0, reduction, ins(&[3, 5, 33], 0)),
            (None, 0.0, reduction, ins(&[3, 1300], 0)),
            (None, 0.0, reduction, ins(&[1, 24577], 0)),
            (None, 0.1, reduction, ins(&[40, 10], 0)),
            (Some(7), 0.0, reduction, ins(&[2, 5, 7], 1)),
            (Some(3), 0.1, reduction, ins(&[30, 3], 1)),
        ]);
    }
    samples
}

/// Random logits and labels.
fn random_labels(stream: &mut Stream) -> LabelSample {
    let mut d = edge_dims(2, 3, stream);
    // The loss of a row with one class is zero, whose sum shows nothing.
    if let Some(classes) = d.last_mut().filter(|d| **d == 1) {
        *classes = 2;
    }
    let (x, lead) = (dims(&d), dims(&d[..d.len() - 1]));
    let ignore = [None, Some(0)][stream.below(2)];
    let smoothing = [0.0, 0.1][stream.below(2)];
    let reduction = [Reduction::Mean, Reduction::Sum, Reduction::None][stream.below(3)];
    let ins = vec![SampleIn::Num(x, (-4.0, 4.0)), SampleIn::Idx(lead, x.last() as u32)];
    (ignore, smoothing, reduction, ins)
}

fn bad_labels(tail: &[Meta]) -> Vec<(Vec<Meta>, &'static str)> {
    let f = |d: &[usize]| Meta::f32(dims(d));
    let u = |d: &[usize]| Meta::u32(dims(d));
    let with = |a: Meta, b: Meta| [&[a, b], tail].concat();
    vec![
        (vec![f(&[2, 3])], "Arity"),
        (with(f(&[]), u(&[])), "Rank"),
        (with(f(&[2, 0]), u(&[2])), "Argument"),
        (with(f(&[2, 3]), u(&[3])), "Shapes"),
        (with(f(&[2, 3]), u(&[2, 1])), "Shapes"),
        (with(f(&[2, 3]), f(&[2])), "DType"),
        (with(u(&[2, 3]), u(&[2])), "DType"),
    ]
}

impl CrossEntropyBwd {
    fn is_plain(self) -> bool {
        self.ignore.is_none() && self.smoothing == 0.0
    }

    fn formula(self, classes: usize) -> SmoothGradient {
        let (keep, share) = smooth_target(self.smoothing, classes);
        SmoothGradient { keep, share, each: self.reduction == Reduction::None }
    }
}

impl Op for CrossEntropyBwd {
    const NAME: &'static str = "cross_entropy_bwd";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let x = check(Self::NAME, ins, 3)?;
        if self.reduction == Reduction::None {
            typed(Self::NAME, ins, 2, DType::F32)?;
            if ins[2].shape != ins[1].shape {
                let why = "there must be one gradient for each label";
                return Err(mismatch(Self::NAME, why, ins[2].shape, ins[1].shape));
            }
        } else {
            check_scalar(Self::NAME, ins, 2)?;
        }
        check_smoothing(Self::NAME, self.smoothing)?;
        Ok(Meta::f32(x))
    }

    fn index_limit(&self, ins: &[Meta]) -> Option<(usize, usize)> {
        self.ignore.is_none().then_some((1, ins[0].shape.last()))
    }

    /// A row is read as a whole, for its maximum and sum, before its first result is written; if it is read again, who
    /// writes an element reads it before.
    fn overwrites(&self) -> bool {
        self.is_plain()
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        let x = ins[0].shape;
        let before = if self.is_plain() { 0 } else { Labels::of(&x, self.ignore).space().rest };
        before + device.as_cuda().map_or(0, |cuda| RowKernel::workspace(x.rows(), x.last(), &Gpu::of(cuda)))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let (rows, classes) = (run.shape.rows(), run.shape.last());
        if self.is_plain() {
            return RowGradient::of(self.reduction, rows).run_cpu(classes, run);
        }
        let labels = Labels::of(&run.shape, self.ignore);
        let given: &[u32] = bytemuck::cast_slice(run.ins[1]);
        let safe = &mut run.workspace[..rows];
        labels.safe(given, bytemuck::cast_slice_mut(safe));
        let weighted = match self.reduction {
            Reduction::Mean => &[run.ins[2][0] * labels.inverse(given)],
            _ => run.ins[2],
        };
        let ins: &[&[f32]] = &[run.ins[0], safe, weighted];
        let out = &mut *run.out;
        let inner = CpuRun { ins, out, workspace: &mut [], ..run };
        self.formula(classes).run_cpu(classes, inner);
        labels.settle(given, classes, run.out);
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let classes = run.shape.last();
        if self.is_plain() {
            return RowGradient::of(self.reduction, run.shape.rows()).kernel().run_cuda(classes, run);
        }
        let labels = Labels::of(&run.shape, self.ignore);
        let space = labels.space();
        let at = |words: usize| run.workspace + words as u64 * 4;
        labels.prepare_cuda(run, run.ins[1], run.ins[2])?;
        let mean = self.reduction == Reduction::Mean;
        let ins = [run.ins[0], run.workspace, if mean { at(space.scalars + 1) } else { run.ins[2] }];
        let kernel = self.formula(classes).kernel();
        kernel.run_cuda(classes, &CudaRun { ins: &ins, workspace: at(space.rest), ..*run })?;
        labels.settle_cuda(run, run.ins[1], classes, run.out)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        let x = ins[0].shape;
        match self.is_plain() {
            true => vec![RowGradient::of(self.reduction, x.rows()).kernel().module(x.last(), gpu)],
            false => vec![label_module(), self.formula(x.last()).kernel().module(x.last(), gpu)],
        }
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, v: Val) -> Result<Vec<Option<Val>>> {
        // f = (p - target) c with c = dy / rows for a mean, else dy:  df/dx = softmax_bwd(p, v c), and df/ddy is the sum
        // of v (p - target), over the rows for a mean, over all that one dy counts for.
        let (x, labels, dy) = (io.ins[0], io.ins[1], io.ins[2]);
        let shape = r.meta(x).shape;
        let kept = fold::kept(&shape, &[shape.rank() - 1]);
        let per_row = self.reduction == Reduction::None;
        let own = if per_row { layout::reshape_to(r, dy, kept)? } else { dy };
        let mean = self.reduction == Reduction::Mean;
        let c = match self.ignore {
            None if mean => r.record(elementwise::Scale { c: inverse(shape.rows()) }.into(), &[own])?,
            None => own,
            Some(_) => {
                let op = LabelWeights { ignore: self.ignore, classes: shape.last(), mean };
                let weights = r.record(op.into(), &[labels])?;
                let weights = layout::reshape_to(r, weights, kept)?;
                r.record(elementwise::Mul {}.into(), &[weights, own])?
            }
        };
        let vc = r.record(elementwise::Mul {}.into(), &[v, c])?;
        let p = r.record(Softmax.into(), &[x])?;
        let dx = r.record(SoftmaxBwd.into(), &[p, vc])?;
        let one = r.record(Full { shape: r.meta(dy).shape, value: 1.0 }.into(), &[])?;
        let slope = r.record((*self).into(), &[x, labels, one])?;
        let product = r.record(elementwise::Mul {}.into(), &[v, slope])?;
        let sum =
            if per_row { reduce::Sum::new(&[shape.rank() - 1])? } else { reduce::Sum::all(shape.rank()) };
        let ddy = r.record(sum.into(), &[product])?;
        Ok(vec![Some(dx), None, Some(ddy)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let (x, labels, dy) = (ins[0].num()?, ins[1].idx()?, ins[2].num()?.data());
        let classes = x.shape().last();
        let counted = labels.data().iter().filter(|l| self.ignore != Some(**l)).count();
        let rows = T::c(if self.reduction == Reduction::Mean { counted.max(1) as f64 } else { 1.0 });
        let mut out = Vec::new();
        for (i, (row, &label)) in x.data().chunks(classes).zip(labels.data()).enumerate() {
            let dy = dy[if self.reduction == Reduction::None { i } else { 0 }];
            if self.ignore == Some(label) {
                out.extend(vec![T::c(0.0); classes]);
            } else {
                let slopes = reference_row(row, label as usize, self.smoothing).1;
                out.extend(slopes.into_iter().map(|s| s * dy / rows));
            }
        }
        Tensor::with_shape(x.shape(), out)
    }

    fn samples() -> Vec<Sample<CrossEntropyBwd>> {
        label_samples().into_iter().map(with_dy).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample<CrossEntropyBwd>> {
        Some(with_dy(random_labels(stream)))
    }

    fn rejects() -> Vec<Reject<CrossEntropyBwd>> {
        let (op, scalar) = (CrossEntropyBwd::default(), Meta::f32(Shape::SCALAR));
        let mut bad: Vec<_> =
            bad_labels(&[scalar]).into_iter().map(|(ins, want)| Reject { op, ins, want }).collect();
        let ins = |dy: Meta| vec![Meta::f32(dims(&[2, 3])), Meta::u32(dims(&[2])), dy];
        bad.push(Reject { op, ins: ins(Meta::f32(dims(&[1]))), want: "Rank" });
        let rows = CrossEntropyBwd { reduction: Reduction::None, ..op };
        bad.push(Reject { op: rows, ins: ins(scalar), want: "Shapes" });
        bad.push(Reject { op: rows, ins: ins(Meta::u32(dims(&[2]))), want: "DType" });
        let op = CrossEntropyBwd { smoothing: -0.5, ..op };
        bad.push(Reject { op, ins: ins(scalar), want: "Argument" });
        bad
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        Bound { ulps: 16.0 + depth(ins[0].shape.last()), terms: 6.0 }
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        label_attrs(self.ignore, self.smoothing, self.reduction)
    }

    fn from_attrs(attrs: &Attrs) -> Result<CrossEntropyBwd> {
        let (ignore, smoothing, reduction) = read_label_attrs(attrs)?;
        Ok(CrossEntropyBwd { ignore, smoothing, reduction })
    }
}

/// With a random upstream gradient.
fn with_dy((ignore, smoothing, reduction, mut ins): LabelSample) -> Sample<CrossEntropyBwd> {
    let shape = if reduction == Reduction::None { ins[1].meta().shape } else { Shape::SCALAR };
    ins.push(SampleIn::any(shape));
    Sample { op: CrossEntropyBwd { ignore, smoothing, reduction }, ins }
}

/// What each row counts in a mean over rows: `1 / n` for `n` rows that are not ignored, or 1 in a sum; 0 for those that
/// are, NaN for a label at or above the number of classes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LabelWeights {
    /// Label of rows that do not count.
    pub ignore: Option<u32>,
    /// Number of classes.
    pub classes: usize,
    /// Whether it is for a mean.
    pub mean: bool,
}

impl Op for LabelWeights {
    const NAME: &'static str = "label_weights";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [labels] = super::arity(Self::NAME, ins)?;
        typed(Self::NAME, ins, 0, DType::U32)?;
        Ok(Meta::f32(labels.shape))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        if device.is_cuda() { self.labels(ins[0].shape.numel()).space().rest } else { 0 }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let given = run.indices(0);
        let labels = self.labels(given.len());
        let inverse = if self.mean { labels.inverse(given) } else { 1.0 };
        for (w, &label) in run.out.iter_mut().zip(bytemuck::cast_slice::<f32, u32>(run.ins[0])) {
            *w = labels.instead(label).unwrap_or(inverse);
        }
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let labels = self.labels(run.shape.numel());
        if self.mean {
            labels.prepare_cuda(run, run.ins[0], 0)?;
            let mut args = Args::new();
            args.ptr(run.workspace + labels.space().scalars as u64 * 4).ptr(run.out).u64(labels.rows as u64);
            labels.launch(run, "labels_weights", labels.rows, &args)?;
        } else if labels.rows > 0 {
            run.cuda.fill(run.out, 1f32.to_bits(), labels.rows)?;
        }
        labels.settle_cuda(run, run.ins[0], 1, run.out)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![label_module()]
    }

    fn vjp(&self, _r: &mut dyn Recorder, _io: Io<'_>, _dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(vec![None])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let labels = ins[0].idx()?;
        let count = labels.data().iter().filter(|l| self.ignore != Some(**l)).count();
        Ok(Tensor::from_fn(labels.shape(), |i| match labels.data()[i] {
            label if self.ignore == Some(label) => T::c(0.0),
            label if label as usize >= self.classes => T::c(f64::NAN),
            _ if self.mean => T::c(1.0) / T::c(count as f64),
            _ => T::c(1.0),
        }))
    }

    fn samples() -> Vec<Sample<LabelWeights>> {
        let cases: [(&[usize], Option<u32>, u32); 7] = [
            (&[], None, 3),
            (&[0], Some(1), 3),
            (&[33], Some(1), 3),
            (&[5, 7], Some(3), 5),
            (&[3000], Some(2), 3),
            (&[4], Some(0), 1),
            (&[1300], None, 3),
        ];
        let sample = |mean: bool| {
            move |(d, ignore, bound): (&[usize], Option<u32>, u32)| Sample {
                op: LabelWeights { ignore, classes: 3, mean },
                ins: vec![SampleIn::Idx(dims(d), bound)],
            }
        };
        [cases.map(sample(true)), cases.map(sample(false))].concat()
    }

    fn rejects() -> Vec<Reject<LabelWeights>> {
        let op = LabelWeights { ignore: None, classes: 3, mean: true };
        vec![
            Reject { op, ins: vec![], want: "Arity" },
            Reject { op, ins: vec![Meta::f32(dims(&[3]))], want: "DType" },
        ]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound { ulps: 1.0, terms: 0.0 }
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let mut attrs = vec![("classes", Attr::Num(self.classes as f64)), ("mean", Attr::Bool(self.mean))];
        attrs.extend(ignore_attr(self.ignore));
        attrs
    }

    fn from_attrs(attrs: &Attrs) -> Result<LabelWeights> {
        attrs.only(&["classes", "ignore_index", "mean"])?;
        let mean = !attrs.has("mean") || attrs.flag("mean")?;
        Ok(LabelWeights { ignore: read_ignore(attrs)?, classes: attrs.whole("classes")?, mean })
    }
}

impl LabelWeights {
    fn labels(self, rows: usize) -> Labels {
        Labels { rows, classes: self.classes, ignore: self.ignore }
    }
}

/// Mean over all rows of `-x[label]`, with log-probabilities `(…, C)` and labels `(…)` below C. Rows whose label is
/// `ignore` do not count; then a label that is neither below C nor ignored gives NaN instead of an error. No rows
/// have loss 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Nll {
    /// Label of rows that do not count.
    pub ignore: Option<u32>,
}

/// Gradient of [`Nll`] with respect to the log-probabilities: `-dy / rows` at the labels of rows that count, else 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NllBwd {
    /// Label of rows that do not count.
    pub ignore: Option<u32>,
    /// Number of classes.
    pub classes: usize,
}

impl Op for Nll {
    const NAME: &'static str = "nll";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        check(Self::NAME, ins, 2)?;
        Ok(Meta::f32(Shape::SCALAR))
    }

    fn index_limit(&self, ins: &[Meta]) -> Option<(usize, usize)> {
        self.ignore.is_none().then_some((1, ins[0].shape.last()))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        let labels = Labels::of(&ins[0].shape, self.ignore);
        labels.space().rest + labels.mean_space(device)
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let labels = Labels::of(&run.metas[0].shape, self.ignore);
        let given: &[u32] = bytemuck::cast_slice(run.ins[1]);
        let (before, rest) = run.workspace.split_at_mut(labels.space().rest);
        let losses = &mut before[..labels.rows];
        for (row, (loss, &label)) in losses.iter_mut().zip(given).enumerate() {
            *loss = match labels.instead(label) {
                Some(value) => value,
                None => -run.ins[0][row * labels.classes + label as usize],
            };
        }
        labels.mean_cpu(run.pool, run.simd, losses, labels.inverse(given), run.out, rest);
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let labels = Labels::of(&run.metas[0].shape, self.ignore);
        let losses = run.workspace + labels.space().losses as u64 * 4;
        labels.prepare_cuda(run, run.ins[1], 0)?;
        labels.pick_cuda(run, losses, true)?;
        labels.settle_cuda(run, run.ins[1], 1, losses)?;
        labels.mean_cuda(run)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        [vec![label_module()], mean().modules(&dims(&[ins[0].shape.rows()]), &[0], gpu)].concat()
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let op = NllBwd { ignore: self.ignore, classes: r.meta(io.ins[0]).shape.last() };
        Ok(vec![Some(r.record(op.into(), &[dy, io.ins[1]])?), None])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let (x, labels) = (ins[0].num()?, ins[1].idx()?);
        let (mut sum, mut count) = (T::c(0.0), 0);
        for (row, &label) in x.data().chunks(x.shape().last()).zip(labels.data()) {
            if self.ignore != Some(label) {
                sum = sum - row.get(label as usize).copied().unwrap_or(T::c(f64::NAN));
                count += 1;
            }
        }
        Ok(Tensor::scalar(sum / T::c(count.max(1) as f64)))
    }

    fn samples() -> Vec<Sample<Nll>> {
        nll_samples().into_iter().map(|(ignore, ins)| Sample { op: Nll { ignore }, ins }).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample<Nll>> {
        let (ignore, _, _, ins) = random_labels(stream);
        Some(Sample { op: Nll { ignore }, ins })
    }

    fn rejects() -> Vec<Reject<Nll>> {
        let op = Nll::default();
        bad_labels(&[]).into_iter().map(|(ins, want)| Reject { op, ins, want }).collect()
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        Bound { ulps: 2.0, terms: 4.0 + depth(ins[0].shape.rows()) }
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        ignore_attr(self.ignore).into_iter().collect()
    }

    fn from_attrs(attrs: &Attrs) -> Result<Nll> {
        attrs.only(&["ignore_index"])?;
        Ok(Nll { ignore: read_ignore(attrs)? })
    }
}

/// Those of the cross-entropy without smoothing.
fn nll_samples() -> Vec<(Option<u32>, Vec<SampleIn>)> {
    let suits = |s: &LabelSample| s.1 == 0.0 && s.2 == Reduction::Mean;
    label_samples().into_iter().filter(suits).map(|(ignore, _, _, ins)| (ignore, ins)).collect()
}

impl NllBwd {
    fn labels(self, rows: usize) -> Labels {
        Labels { rows, classes: self.classes, ignore: self.ignore }
    }
}

impl Op for NllBwd {
    const NAME: &'static str = "nll_bwd";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [_, labels] = super::arity(Self::NAME, ins)?;
        check_scalar(Self::NAME, ins, 0)?;
        typed(Self::NAME, ins, 1, DType::U32)?;
        if self.classes == 0 {
            return Err(Error::argument(Self::NAME, "classes", "there must be at least one"));
        }
        let mut d = labels.shape.dims().to_vec();
        d.push(self.classes);
        Shape::new(&d).map(Meta::f32).map_err(|e| Error::new(Self::NAME, e.kind().clone()))
    }

    fn index_limit(&self, _ins: &[Meta]) -> Option<(usize, usize)> {
        self.ignore.is_none().then_some((1, self.classes))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        if device.is_cuda() { self.labels(ins[1].shape.numel()).space().rest } else { 0 }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let given: &[u32] = bytemuck::cast_slice(run.ins[1]);
        let labels = self.labels(given.len());
        let slope = -(run.ins[0][0] * labels.inverse(given));
        let classes = self.classes;
        let per_task = run.pool.share(given.len(), (64 * 1024 / classes).max(1), 1);
        run.pool.chunks_mut(run.out, per_task * classes, |task, out| {
            for (row, &label) in out.chunks_mut(classes).zip(&given[task * per_task..]) {
                row.fill(labels.instead(label).unwrap_or(0.0));
                if labels.instead(label).is_none() {
                    row[label as usize] = slope;
                }
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let n = run.shape.numel();
        if n == 0 {
            return Ok(());
        }
        let labels = self.labels(run.metas[1].shape.numel());
        labels.prepare_cuda(run, run.ins[1], run.ins[0])?;
        run.cuda.fill(run.out, 0, n)?;
        let mut args = Args::new();
        args.ptr(run.workspace).ptr(run.workspace + labels.space().scalars as u64 * 4).ptr(run.out);
        args.u64(labels.rows as u64).u64(labels.classes as u64);
        labels.launch(run, "labels_place", labels.rows, &args)?;
        labels.settle_cuda(run, run.ins[1], labels.classes, run.out)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![label_module()]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, v: Val) -> Result<Vec<Option<Val>>> {
        // linear in dy, and what it does is what the loss does to v
        let ddy = r.record(Nll { ignore: self.ignore }.into(), &[v, io.ins[1]])?;
        Ok(vec![Some(ddy), None])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let (dy, labels) = (ins[0].num()?.item()?, ins[1].idx()?);
        let count = labels.data().iter().filter(|l| self.ignore != Some(**l)).count().max(1);
        let shape = self.shape(&[ins[0].meta(), ins[1].meta()])?.shape;
        Ok(Tensor::from_fn(shape, |at| match labels.data()[at / self.classes] {
            label if self.ignore != Some(label) && at % self.classes == label as usize => {
                -(dy / T::c(count as f64))
            }
            _ => T::c(0.0),
        }))
    }

    fn samples() -> Vec<Sample<NllBwd>> {
        let sample = |(ignore, ins): (Option<u32>, Vec<SampleIn>)| {
            let (classes, labels) = (ins[0].meta().shape.last(), ins[1].clone());
            Sample { op: NllBwd { ignore, classes }, ins: vec![SampleIn::any(Shape::SCALAR), labels] }
        };
        nll_samples().into_iter().map(sample).collect()
    }

    fn rejects() -> Vec<Reject<NllBwd>> {
        let (scalar, labels) = (Meta::f32(Shape::SCALAR), Meta::u32(dims(&[4])));
        let op = NllBwd { ignore: None, classes: 3 };
        vec![
            Reject { op, ins: vec![scalar], want: "Arity" },
            Reject { op, ins: vec![Meta::f32(dims(&[1])), labels], want: "Rank" },
            Reject { op, ins: vec![scalar, Meta::f32(dims(&[4]))], want: "DType" },
            Reject { op: NllBwd { classes: 0, ..op }, ins: vec![scalar, labels], want: "Argument" },
            Reject { op: NllBwd { classes: usize::MAX, ..op }, ins: vec![scalar, labels], want: "TooLarge" },
        ]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound { ulps: 2.0, terms: 0.0 }
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let mut attrs = vec![("classes", Attr::Num(self.classes as f64))];
        attrs.extend(ignore_attr(self.ignore));
        attrs
    }

    fn from_attrs(attrs: &Attrs) -> Result<NllBwd> {
        attrs.only(&["classes", "ignore_index"])?;
        Ok(NllBwd { ignore: read_ignore(attrs)?, classes: attrs.whole("classes")? })
    }
}
