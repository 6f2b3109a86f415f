//! Indices of several axes as one.

use super::{MIN_WORDS_PER_TASK, module, size_fits};
use crate::pointwise::map::grid;
use crate::{
    AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, IndexBound, MAX_INS, Op, mismatch, no_gradient, typed,
};
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{DType, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::tensor::Tensor;

/// Indices of axes of these sizes, an input for each, as indices of the one axis that they make in row-major order. Where
/// one of them is out of range, it is the size of that axis, which is out of range too.
#[derive(Clone, Debug, PartialEq)]
pub struct FlatIndex {
    /// Sizes of the axes.
    pub dims: Vec<usize>,
}

impl FlatIndex {
    /// Elements of all axes together.
    fn size(&self) -> usize {
        self.dims.iter().fold(1, |n: usize, &d| n.saturating_mul(d))
    }

    fn at(&self, index: impl Fn(usize) -> u32) -> usize {
        let mut flat = 0;
        for (i, &d) in self.dims.iter().enumerate() {
            let index = index(i) as usize;
            if index >= d {
                return self.size();
            }
            flat = flat * d + index;
        }
        flat
    }
}

impl Op for FlatIndex {
    const NAME: &'static str = "flat_index";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        if ins.is_empty() || ins.len() != self.dims.len() || ins.len() > MAX_INS {
            let want = self.dims.len().clamp(1, MAX_INS);
            return Err(Error::new(Self::NAME, ErrorKind::Arity { want, got: ins.len() }));
        }
        for (i, index) in ins.iter().enumerate() {
            typed(Self::NAME, ins, i, DType::U32)?;
            if index.shape != ins[0].shape {
                let why = "indices of all axes must have one shape";
                return Err(mismatch(Self::NAME, why, ins[0].shape, index.shape));
            }
        }
        let largest = self.dims.iter().fold(self.size(), |n, &d| n.max(d));
        size_fits(Self::NAME, largest)?;
        Ok(ins[0])
    }

    fn index_bound(&self, _ins: &[Meta]) -> IndexBound {
        IndexBound::Below(self.size().saturating_add(1))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let ins = run.ins;
        run.pool.chunks_mut(run.out, MIN_WORDS_PER_TASK, |task, out| {
            for (i, y) in out.iter_mut().enumerate() {
                let at = task * MIN_WORDS_PER_TASK + i;
                *y = f32::from_bits(self.at(|axis| ins[axis][at].to_bits()) as u32);
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let total = run.shape.numel();
        if total == 0 {
            return Ok(());
        }
        let (name, source) = module();
        let kernel = run.cuda.kernel(&name, source, "flat_index")?;
        for (axis, &d) in self.dims.iter().enumerate() {
            let (start, end) = (axis == 0, axis + 1 == self.dims.len());
            let mut args = Args::new();
            args.ptr(run.ins[axis]).ptr(run.out).u32(d as u32).i32(i32::from(start)).i32(i32::from(end));
            args.u32(self.size() as u32).u64(total as u64);
            run.cuda.launch(kernel, grid(run.cuda, total), 256, 0, &args)?;
        }
        Ok(())
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![module()]
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let all = ins.iter().map(AnyTensor::idx).collect::<Result<Vec<_>>>()?;
        Ok(Tensor::from_fn(all[0].shape(), |at| T::c(self.at(|axis| all[axis].data()[at]) as f64)))
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("dims", Attr::List(self.dims.clone()))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<FlatIndex> {
        attrs.only(&["dims"])?;
        Ok(FlatIndex { dims: attrs.list("dims")? })
    }

    no_gradient!();
}
