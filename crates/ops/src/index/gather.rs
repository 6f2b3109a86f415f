//! Gathers.

use super::{IndexAdd, Layout, MIN_WORDS_PER_TASK, ScatterAdd, along, axis_of, module, shape_of};
use crate::pointwise::map::grid;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, IndexBound, Io, Op, Recorder, Val, arity, typed};
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{DType, Meta};
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::tensor::Tensor;

/// Gathers slices along an axis: `y[…, j…, …] = x[…, index[j…], …]`. The axes of the indices replace `axis`. An index
/// that is out of range gives zeros, or an error if `checked`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IndexSelect {
    /// The axis.
    pub axis: usize,
    /// Whether an index out of range is an error.
    pub checked: bool,
}

impl Op for IndexSelect {
    const NAME: &'static str = "index_select";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x, index] = arity(Self::NAME, ins)?;
        typed(Self::NAME, ins, 1, DType::U32)?;
        axis_of(Self::NAME, &x.shape, self.axis)?;
        let d = x.shape.dims();
        let shape = shape_of(Self::NAME, [&d[..self.axis], index.shape.dims(), &d[self.axis + 1..]])?;
        Ok(Meta { shape, ..x })
    }

    fn index_bound(&self, _ins: &[Meta]) -> IndexBound {
        IndexBound::OfInputs(1)
    }

    fn index_limit(&self, ins: &[Meta]) -> Option<(usize, usize)> {
        self.checked.then(|| (1, ins[0].shape.dims()[self.axis]))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let l = Layout::new(&run.metas[0].shape, self.axis, run.metas[1].shape.numel());
        if run.out.is_empty() {
            return;
        }
        let (x, index) = (run.ins[0], bytemuck::cast_slice::<f32, u32>(run.ins[1]));
        let rows = run.pool.share(l.outer * l.count, (MIN_WORDS_PER_TASK / l.inner).max(1), 1);
        run.pool.chunks_mut(run.out, rows * l.inner, |task, out| {
            for (r, out) in out.chunks_mut(l.inner).enumerate() {
                let row = task * rows + r;
                let (o, from) = (row / l.count, index[row % l.count] as usize);
                match from < l.size {
                    true => out.copy_from_slice(&x[(o * l.size + from) * l.inner..][..l.inner]),
                    false => out.fill(0.0),
                }
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let total = run.shape.numel();
        if total == 0 {
            return Ok(());
        }
        let l = Layout::new(&run.metas[0].shape, self.axis, run.metas[1].shape.numel());
        let width = l.width();
        let (name, source) = module();
        let kernel = run.cuda.kernel(&name, source, &format!("take{width}"))?;
        let mut args = Args::new();
        args.ptr(run.ins[0]).ptr(run.ins[1]).ptr(run.out).u64((total / width) as u64);
        args.u64(l.size as u64).u64(l.count as u64).u64((l.inner / width) as u64);
        run.cuda.launch(kernel, grid(run.cuda, total / width), 256, 0, &args)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![module()]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let size = r.meta(io.ins[0]).shape.dims()[self.axis];
        let add = IndexAdd { axis: self.axis, size, checked: false };
        Ok(vec![Some(r.record(add.into(), &[dy, io.ins[1]])?), None])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let (x, index) = (ins[0].num()?, ins[1].idx()?);
        let shape = self.shape(&[ins[0].meta(), ins[1].meta()])?.shape;
        let inner: usize = x.shape().dims()[self.axis + 1..].iter().product();
        let (size, count) = (x.shape().dims()[self.axis], index.shape().numel());
        Ok(Tensor::from_fn(shape, |at| {
            let (o, j, i) = (at / inner / count, at / inner % count, at % inner);
            match index.data()[j] as usize {
                from if from < size => x.data()[(o * size + from) * inner + i],
                _ => T::c(0.0),
            }
        }))
    }

    attr_methods!(IndexSelect: axis);
}

/// Gathers elements along an axis, each with its own index: `y[…, j, …] = x[…, index[…, j, …], …]`. The indices have
/// the dimensions of `x` except along `axis`. An index that is out of range gives zero, or an error if `checked`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TakeAlongAxis {
    /// The axis.
    pub axis: usize,
    /// Whether an index out of range is an error.
    pub checked: bool,
}

impl Op for TakeAlongAxis {
    const NAME: &'static str = "take_along_axis";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x, index] = arity(Self::NAME, ins)?;
        typed(Self::NAME, ins, 1, DType::U32)?;
        axis_of(Self::NAME, &x.shape, self.axis)?;
        along(Self::NAME, &x.shape, &index.shape, self.axis)?;
        Ok(Meta { shape: index.shape, ..x })
    }

    fn index_bound(&self, _ins: &[Meta]) -> IndexBound {
        IndexBound::OfInputs(1)
    }

    fn index_limit(&self, ins: &[Meta]) -> Option<(usize, usize)> {
        self.checked.then(|| (1, ins[0].shape.dims()[self.axis]))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let l = Layout::new(&run.metas[0].shape, self.axis, run.shape.dims()[self.axis]);
        if run.out.is_empty() {
            return;
        }
        let (x, index) = (run.ins[0], bytemuck::cast_slice::<f32, u32>(run.ins[1]));
        let rows = run.pool.share(l.outer * l.count, (MIN_WORDS_PER_TASK / l.inner).max(1), 1);
        if l.inner == 1 {
            return run.pool.chunks_mut(run.out, rows, |task, mut out| {
                // Up to the end of a line at a time.
                let mut at = task * rows;
                while !out.is_empty() {
                    let here = (l.count - at % l.count).min(out.len());
                    let (line, rest) = out.split_at_mut(here);
                    let x = &x[at / l.count * l.size..][..l.size];
                    for (y, &from) in line.iter_mut().zip(&index[at..]) {
                        *y = x.get(from as usize).copied().unwrap_or(0.0);
                    }
                    (at, out) = (at + here, rest);
                }
            });
        }
        run.pool.chunks_mut(run.out, rows * l.inner, |task, out| {
            for (r, out) in out.chunks_mut(l.inner).enumerate() {
                let row = task * rows + r;
                let x = &x[row / l.count * l.size * l.inner..][..l.size * l.inner];
                let index = &index[row * l.inner..][..l.inner];
                for (i, (y, &from)) in out.iter_mut().zip(index).enumerate() {
                    let from = from as usize;
                    *y = if from < l.size { x[from * l.inner + i] } else { 0.0 };
                }
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let total = run.shape.numel();
        if total == 0 {
            return Ok(());
        }
        let l = Layout::new(&run.metas[0].shape, self.axis, run.shape.dims()[self.axis]);
        let (name, source) = module();
        let kernel = run.cuda.kernel(&name, source, "take_along")?;
        let mut args = Args::new();
        args.ptr(run.ins[0]).ptr(run.ins[1]).ptr(run.out).u64(total as u64);
        args.u64(l.size as u64).u64(l.count as u64).u64(l.inner as u64);
        run.cuda.launch(kernel, grid(run.cuda, total), 256, 0, &args)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![module()]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let size = r.meta(io.ins[0]).shape.dims()[self.axis];
        let add = ScatterAdd { axis: self.axis, size, checked: false };
        Ok(vec![Some(r.record(add.into(), &[dy, io.ins[1]])?), None])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let (x, index) = (ins[0].num()?, ins[1].idx()?);
        let inner: usize = x.shape().dims()[self.axis + 1..].iter().product();
        let (size, count) = (x.shape().dims()[self.axis], index.shape().dims()[self.axis]);
        Ok(Tensor::from_fn(index.shape(), |at| {
            let (o, i) = (at / inner / count, at % inner);
            match index.data()[at] as usize {
                from if from < size => x.data()[(o * size + from) * inner + i],
                _ => T::c(0.0),
            }
        }))
    }

    attr_methods!(TakeAlongAxis: axis);
}
