//! Searches in sorted values.

use super::{countable, module};
use crate::pointwise::map::grid;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, IndexBound, Op, floats, mismatch, no_gradient};
use dittograd_device::Meta;
use dittograd_device::cuda::{Args, Source};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// Where the elements of the second input would be inserted into the first, which is sorted along its last axis: the
/// number of its elements below the value, or not above it if `right`. The first input is one list for all values, or
/// has the axes of the values except for the last.
///
/// The list is searched by halves, which defines the result for lists that are not sorted too: of `low..high`, the element
/// at `low + (high - low) / 2` is compared. A NaN belongs at the end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SearchSorted {
    /// Whether a value goes after equal elements, instead of before them.
    pub right: bool,
}

impl SearchSorted {
    fn find<T: PartialOrd + Copy>(&self, list: &[T], x: T) -> usize {
        let (mut low, mut high) = (0, list.len());
        while low < high {
            let middle = low + (high - low) / 2;
            let reached = if self.right { list[middle] > x } else { list[middle] >= x };
            if reached { high = middle } else { low = middle + 1 }
        }
        low
    }
}

/// The values that share a list.
fn per_list(lists: &Shape, values: &Shape) -> usize {
    if lists.rank() == 1 { values.numel() } else { values.last() }
}

impl Op for SearchSorted {
    const NAME: &'static str = "searchsorted";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [lists, values] = floats(Self::NAME, ins)?;
        if lists.rank() == 0 {
            return Err(Error::new(Self::NAME, ErrorKind::Rank { want: "at least 1", got: lists }));
        }
        countable(Self::NAME, lists.last())?;
        let lead = |s: &Shape| s.dims()[..s.rank().saturating_sub(1)].to_vec();
        if lists.rank() > 1 && (lists.rank() != values.rank() || lead(&lists) != lead(&values)) {
            let why = "sorted values are one list, or agree with the values in all axes but the last";
            return Err(mismatch(Self::NAME, why, lists, values));
        }
        Ok(Meta::u32(values))
    }

    fn index_bound(&self, ins: &[Meta]) -> IndexBound {
        IndexBound::Below(ins[0].shape.last() + 1)
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let (lists, values, n) = (run.ins[0], run.ins[1], run.metas[0].shape.last());
        let per = per_list(&run.metas[0].shape, &run.metas[1].shape).max(1);
        let task_words = run.pool.share(run.out.len(), 1024, 1);
        run.pool.chunks_mut(run.out, task_words, |task, out| {
            let first = task * task_words;
            for (i, (y, &x)) in out.iter_mut().zip(&values[first..]).enumerate() {
                let list = &lists[(first + i) / per * n..][..n];
                *y = f32::from_bits(self.find(list, x) as u32);
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let total = run.shape.numel();
        if total == 0 {
            return Ok(());
        }
        let (name, source) = module();
        let kernel = run.cuda.kernel(&name, source, "search")?;
        let mut args = Args::new();
        args.ptr(run.ins[0]).ptr(run.ins[1]).ptr(run.out).u64(total as u64);
        args.u64(per_list(&run.metas[0].shape, &run.metas[1].shape) as u64);
        args.u32(run.metas[0].shape.last() as u32).i32(i32::from(self.right));
        run.cuda.launch(kernel, grid(run.cuda, total), 256, 0, &args)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![module()]
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let (lists, values) = (ins[0].num()?, ins[1].num()?);
        let (n, per) = (lists.shape().last(), per_list(&lists.shape(), &values.shape()));
        Ok(Tensor::from_fn(values.shape(), |at| {
            T::c(self.find(&lists.data()[at / per * n..][..n], values.data()[at]) as f64)
        }))
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("right", Attr::Bool(self.right))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<SearchSorted> {
        attrs.only(&["right"])?;
        Ok(SearchSorted { right: attrs.flag("right")? })
    }

    no_gradient!();
}
