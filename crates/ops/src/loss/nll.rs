//! The negative log-likelihood, its gradient, and the weights of labels.

use super::labels::Labels;
use super::{check, check_scalar, ignore_attr, label_module, mean, read_ignore};
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, dims, typed};
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{DType, Device, Meta};
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// The weight of each row in a mean or sum over rows. In a mean it is `1 / n` for the `n` rows that are not ignored; in
/// a sum it is 1. It is 0 for ignored rows and NaN for a label at or above the number of classes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LabelWeights {
    /// Label of rows that do not count.
    pub ignore: Option<u32>,
    /// Number of classes.
    pub classes: usize,
    /// Whether the weights are for a mean.
    pub mean: bool,
}

impl Op for LabelWeights {
    const NAME: &'static str = "label_weights";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [labels] = crate::arity(Self::NAME, ins)?;
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
    pub(super) fn labels(self, rows: usize) -> Labels {
        Labels { rows, classes: self.classes, ignore: self.ignore }
    }
}

/// Negative log-likelihood: the mean over rows of `-x[label]`, with log-probabilities `(…, C)` and labels `(…)` below
/// C. Rows whose label is `ignore` do not count; if `ignore` is set, a label that is neither below C nor ignored gives
/// NaN instead of an error. No rows have loss 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Nll {
    /// Label of rows that do not count.
    pub ignore: Option<u32>,
}

/// Gradient of [`Nll`] by the log-probabilities: `-dy / rows` at the labels of rows that count, else 0.
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

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        ignore_attr(self.ignore).into_iter().collect()
    }

    fn from_attrs(attrs: &Attrs) -> Result<Nll> {
        attrs.only(&["ignore_index"])?;
        Ok(Nll { ignore: read_ignore(attrs)? })
    }
}

impl NllBwd {
    pub(super) fn labels(self, rows: usize) -> Labels {
        Labels { rows, classes: self.classes, ignore: self.ignore }
    }
}

impl Op for NllBwd {
    const NAME: &'static str = "nll_bwd";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [_, labels] = crate::arity(Self::NAME, ins)?;
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
        // The gradient is linear in dy, and its adjoint is the loss applied to v.
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
