//! Cross-entropy of logits and its gradient.

use super::labels::Labels;
use super::nll::LabelWeights;
use super::{Reduction, check, check_scalar, ignore_attr, inverse, label_module, mean, read_ignore};
use crate::pointwise::expression::Pointwise;
use crate::random::Full;
use crate::reduce::fold;
use crate::reduce::fold::{Fold, Kind, Stage};
use crate::softmax::rows::{Formula, Row, RowKernel};
use crate::softmax::{Softmax, SoftmaxBwd};
use crate::{
    AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Kernel, Op, Recorder, Val, dims, layout, mismatch,
    pointwise as elementwise, reduce, typed,
};
use dittograd_device::cuda::Source;
use dittograd_device::{DType, Device, Meta};
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::{Real, Scalar};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// Cross-entropy of `softmax(x)` against integer labels, with logits `(…, C)` and labels `(…)` below C. A row's loss is
/// `-ln p[label]`; with label smoothing `e` the target is `1 - e` at the label plus `e / C` everywhere. The value is
/// the mean or sum over all rows, or one loss per row in the labels' shape.
///
/// Rows whose label is `ignore` do not count, whatever is in them, and have loss 0. If `ignore` is set, a label that is
/// neither below C nor ignored gives NaN instead of an error. No rows have loss 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CrossEntropy {
    /// Label of rows that do not count.
    pub ignore: Option<u32>,
    /// Label smoothing: the part of the target spread over all classes, from 0 to 1.
    pub smoothing: f32,
    /// How the losses of the rows are combined.
    pub reduction: Reduction,
}

/// Gradient of [`CrossEntropy`] by the logits: `(softmax(x) - target) * dy`, for a mean divided by the number of rows
/// that count; 0 in rows that do not count. With one loss per row, `dy` has the labels' shape.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CrossEntropyBwd {
    /// Label of rows that do not count.
    pub ignore: Option<u32>,
    /// Label smoothing: the part of the target spread over all classes, from 0 to 1.
    pub smoothing: f32,
    /// How the losses of the rows are combined.
    pub reduction: Reduction,
}

/// Loss of one row: `ln s - (x_label - m)`.
#[derive(Clone, Copy)]
pub(super) struct RowLoss;

impl Formula<1> for RowLoss {
    const NAME: &'static str = "cross_entropy";
    const LABELS: Option<usize> = Some(1);
    const PER_ROW: bool = true;

    #[inline(always)]
    fn post<R: Real>(self, [x]: [R; 1], row: Row<R>) -> R {
        row.s.log() - (x - row.m)
    }
}

/// Gradient of one row: `(t (1 / s) - hit) * (g weight)`. The weight is `1 / rows` for a mean.
#[derive(Clone, Copy)]
pub(super) struct RowGradient {
    pub(super) weight: f64,
    /// Whether each row has its own `g`.
    pub(super) each: bool,
}

impl RowGradient {
    pub(super) fn of(reduction: Reduction, rows: usize) -> RowGradient {
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

/// Gradient of one row against a smoothed target. The scalar includes the weight.
#[derive(Clone, Copy)]
pub(super) struct SmoothGradient {
    pub(super) keep: f64,
    pub(super) share: f64,
    /// Whether each row has its own `g`.
    pub(super) each: bool,
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

/// The smoothed target: the weight at the label, and the weight of every class.
pub(super) fn smooth_target(smoothing: f32, classes: usize) -> (f64, f64) {
    let e = f64::from(smoothing);
    (f64::from((1.0 - e) as f32), f64::from((e / classes as f64) as f32))
}

/// Loss of one row against a smoothed target: `ln s - ((1 - e) (x_label - m) + e/C Σ (x - m))`. `x_label` is an input.
pub(super) fn smooth_loss(keep: f64, share: f64) -> Fold {
    let plain = |n: usize| Pointwise::trace(n, |x| vec![x[0]]);
    let shifted = |x: &[crate::pointwise::expression::Expr]| x[0] - x[2];
    let max = Stage { kind: Kind::Max, load: plain(2), post: plain(2) };
    let sum =
        Stage { kind: Kind::Sum, load: Pointwise::trace(3, |x| vec![shifted(x).exp()]), post: plain(3) };
    let post = Pointwise::trace(4, |v| {
        // sum of x - m, x_label, m, s
        vec![v[3].log() - ((v[1] - v[2]) * Real::c(keep) + v[0] * Real::c(share))]
    });
    let spread = Stage { kind: Kind::Sum, load: Pointwise::trace(4, |x| vec![shifted(x)]), post };
    Fold { ins: 1, aux: 1, stages: vec![max, sum, spread] }
}

/// Errors unless the smoothing is from 0 to 1.
pub(super) fn check_smoothing(op: &'static str, smoothing: f32) -> Result<()> {
    if !(0.0..=1.0).contains(&smoothing) {
        return Err(Error::argument(op, "label_smoothing", format!("got {smoothing}, use 0 to 1")));
    }
    Ok(())
}

impl CrossEntropy {
    /// Whether every row counts and the target is not smoothed.
    pub(super) fn is_plain(self) -> bool {
        self.ignore.is_none() && self.smoothing == 0.0
    }

    /// The sum of the rows' losses, or their mean if every row counts.
    pub(super) fn total(self, rows: usize) -> Fold {
        let weight = self.reduction.weight(rows);
        let post = Pointwise::trace(1, |s| vec![s[0] * Real::c(weight)]);
        Fold::new(1, Kind::Sum, Pointwise::same(1), post)
    }

    /// The fold of a row's loss if the target is smoothed.
    pub(super) fn smooth_loss(self, ins: &[Meta]) -> Option<Fold> {
        let (keep, share) = smooth_target(self.smoothing, ins[0].shape.last());
        (self.smoothing > 0.0).then(|| smooth_loss(keep, share))
    }

    /// Computes the value on the CPU. `smooth` is the fold of a smoothed loss.
    pub(super) fn run(&self, smooth: Option<&Fold>, run: CpuRun<'_>) {
        let x = run.metas[0].shape;
        let labels = Labels::of(&x, self.ignore);
        let CpuRun { pool, simd, numerics, metas, .. } = run;
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
            let run =
                CpuRun { pool, simd, numerics, metas, ins, shape, out: &mut *losses, workspace: &mut *rest };
            smooth.run_cpu(&dims(&[row_count, columns]), &[1], run);
        } else {
            let ins: &[&[f32]] = &[run.ins[0], &safe[..row_count]];
            let run =
                CpuRun { pool, simd, numerics, metas, ins, shape, out: &mut *losses, workspace: &mut [] };
            RowLoss.run_cpu(columns, run);
        }
        labels.settle(given, 1, losses);
        if let Some(out) = total {
            let weight = if self.reduction == Reduction::Mean { labels.inverse(given) } else { 1.0 };
            labels.mean_cpu(pool, simd, losses, weight, out, rest);
        }
    }

    pub(super) fn rows_space(self, x: &Shape, device: &Device) -> usize {
        let (rows, columns) = (x.rows(), x.last());
        if self.smoothing > 0.0 {
            let (keep, share) = smooth_target(self.smoothing, columns);
            return smooth_loss(keep, share).workspace(&dims(&[rows, columns]), &[1], device);
        }
        device.as_cuda().map_or(0, |cuda| RowKernel::workspace(rows, columns, &Gpu::of(cuda)))
    }
}

/// The cross-entropy of one row and its gradient by the logits, in any scalar.
pub(super) fn reference_row<T: Scalar>(x: &[T], label: usize, smoothing: f32) -> (T, Vec<T>) {
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

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        label_attrs(self.ignore, self.smoothing, self.reduction)
    }

    fn from_attrs(attrs: &Attrs) -> Result<CrossEntropy> {
        let (ignore, smoothing, reduction) = read_label_attrs(attrs)?;
        Ok(CrossEntropy { ignore, smoothing, reduction })
    }
}

pub(super) fn label_attrs(
    ignore: Option<u32>,
    smoothing: f32,
    reduction: Reduction,
) -> Vec<(&'static str, Attr)> {
    let mut attrs = vec![("label_smoothing", Attr::Num(f64::from(smoothing))), reduction.attr()];
    attrs.extend(ignore_attr(ignore));
    attrs
}

pub(super) fn read_label_attrs(attrs: &Attrs) -> Result<(Option<u32>, f32, Reduction)> {
    attrs.only(&["label_smoothing", "ignore_index", "reduction"])?;
    let smoothing = if attrs.has("label_smoothing") { attrs.num("label_smoothing")? as f32 } else { 0.0 };
    Ok((read_ignore(attrs)?, smoothing, Reduction::from_attrs(attrs)?))
}

impl CrossEntropyBwd {
    pub(super) fn is_plain(self) -> bool {
        self.ignore.is_none() && self.smoothing == 0.0
    }

    pub(super) fn formula(self, classes: usize) -> SmoothGradient {
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

    /// A row is read completely, for its maximum and sum, before its first result is written. If it is read again, the
    /// thread that writes an element reads that element first.
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
        // f = (p - target) c with c = dy / rows for a mean, else dy. df/dx = softmax_bwd(p, v c). df/ddy is the sum of
        // v (p - target) over everything that dy scales, divided by the rows for a mean.
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

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        label_attrs(self.ignore, self.smoothing, self.reduction)
    }

    fn from_attrs(attrs: &Attrs) -> Result<CrossEntropyBwd> {
        let (ignore, smoothing, reduction) = read_label_attrs(attrs)?;
        Ok(CrossEntropyBwd { ignore, smoothing, reduction })
    }
}
