//! Casts between indices and numbers, and comparison of indices.

use super::{MIN_WORDS_PER_TASK, module};
use crate::pointwise::map::grid;
use crate::{
    AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, IndexBound, Op, arity, mismatch, no_gradient, typed,
};
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{DType, Meta};
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::tensor::Tensor;

/// Fills the output on the CPU, word by word.
fn each(run: CpuRun<'_>, f: impl Fn(usize) -> u32 + Sync) {
    run.pool.chunks_mut(run.out, MIN_WORDS_PER_TASK, |task, out| {
        for (i, y) in out.iter_mut().enumerate() {
            *y = f32::from_bits(f(task * MIN_WORDS_PER_TASK + i));
        }
    });
}

/// Queues a kernel of one thread per element: inputs, output, `extra`, number of elements.
fn launch(run: &CudaRun<'_>, kernel: &str, extra: u32) -> Result<()> {
    let total = run.shape.numel();
    if total == 0 {
        return Ok(());
    }
    let (name, source) = module();
    let kernel = run.cuda.kernel(&name, source, kernel)?;
    let mut args = Args::new();
    for x in run.ins {
        args.ptr(*x);
    }
    args.ptr(run.out).u32(extra).u64(total as u64);
    run.cuda.launch(kernel, grid(run.cuda, total), 256, 0, &args)
}

/// Indices as numbers, rounded to nearest: those up to 2^24 are exact.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ToFloat {}

impl Op for ToFloat {
    const NAME: &'static str = "to_float";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x] = arity(Self::NAME, ins)?;
        typed(Self::NAME, ins, 0, DType::U32)?;
        Ok(Meta::f32(x.shape))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let x = run.ins[0];
        each(run, |i| (x[i].to_bits() as f32).to_bits());
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        launch(run, "to_float", 0)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![module()]
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let x = ins[0].idx()?;
        Ok(Tensor::from_fn(x.shape(), |i| T::c(x.data()[i].into())))
    }

    fn from_attrs(attrs: &Attrs) -> Result<ToFloat> {
        attrs.only(&[])?;
        Ok(ToFloat {})
    }

    no_gradient!();
}

/// Numbers as indices below a bound: rounded toward zero, then clamped to `0..below`; NaN gives 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ToIndex {
    /// Exclusive upper bound.
    pub below: u32,
}

impl Op for ToIndex {
    const NAME: &'static str = "to_index";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x] = arity(Self::NAME, ins)?;
        typed(Self::NAME, ins, 0, DType::F32)?;
        if self.below == 0 {
            return Err(Error::argument(Self::NAME, "below", "is 0, there is no index below it"));
        }
        Ok(Meta::u32(x.shape))
    }

    fn index_bound(&self, _ins: &[Meta]) -> IndexBound {
        IndexBound::Below(self.below as usize)
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let (x, last) = (run.ins[0], self.below - 1);
        each(run, |i| (x[i] as u32).min(last));
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        launch(run, "to_index", self.below - 1)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![module()]
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let last = f64::from(self.below - 1);
        Ok(ins[0].num()?.map(|x| {
            // A comparison with NaN is false.
            let at_least = if x.to_f64() > 0.0 { x.to_f64() } else { 0.0 };
            T::c(at_least.floor().min(last))
        }))
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("below", Attr::Num(self.below.into()))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<ToIndex> {
        attrs.only(&["below"])?;
        let below = u32::try_from(attrs.word("below")?);
        let below =
            below.map_err(|_| Error::argument(Self::NAME, "below", "a number below 2^32 is needed"))?;
        Ok(ToIndex { below })
    }

    no_gradient!();
}

/// 1 where two indices are equal, else 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IndexEq {}

impl Op for IndexEq {
    const NAME: &'static str = "index_eq";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [a, b] = arity(Self::NAME, ins)?;
        typed(Self::NAME, ins, 0, DType::U32)?;
        typed(Self::NAME, ins, 1, DType::U32)?;
        if a.shape != b.shape {
            return Err(mismatch(Self::NAME, "indices of one shape are compared", a.shape, b.shape));
        }
        Ok(Meta::f32(a.shape))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let (a, b) = (run.ins[0], run.ins[1]);
        each(run, |i| f32::from(a[i].to_bits() == b[i].to_bits()).to_bits());
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        launch(run, "index_eq", 0)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![module()]
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let (a, b) = (ins[0].idx()?, ins[1].idx()?);
        Ok(Tensor::from_fn(a.shape(), |i| T::c(f64::from(u8::from(a.data()[i] == b.data()[i])))))
    }

    fn from_attrs(attrs: &Attrs) -> Result<IndexEq> {
        attrs.only(&[])?;
        Ok(IndexEq {})
    }

    no_gradient!();
}
