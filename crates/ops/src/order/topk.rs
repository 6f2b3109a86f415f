//! The largest or smallest elements.

use super::cpu::{few_first, flip, halves, many_first, memory};
use super::sort::{gpu_workspace, padded, shared_bytes, sort_rows, sort_short_rows};
use super::{MAX_BLOCK_SORT, lines, module, sorted_positions, with_last};
use crate::index::sort;
use crate::pointwise::expression::Scratch;
use crate::pointwise::map::grid;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, IndexBound, Op, no_gradient};
use dittograd_device::cuda::{Args, Cuda, Source};
use dittograd_device::{Backend, Device, Meta};
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::tensor::Tensor;

/// The positions of the `k` largest elements along the last axis, from the largest down, or of the `k` smallest from the
/// smallest up. The first of several equal elements comes first; NaN is the largest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopK {
    /// How many.
    pub k: usize,
    /// Whether the largest are wanted, instead of the smallest.
    pub largest: bool,
}

/// Up to this many are kept in a sorted list while the CPU goes through a row.
const MAX_LIST: usize = 64;

/// The fewest elements for which another block is worth its start.
const MIN_PER_BLOCK: usize = 4096;

/// How a GPU finds them.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// A block sorts whole rows in shared memory.
    SortShort,
    /// A block finds the last of them by its digits, then sorts all of them in shared memory. Long rows are first cut in parts.
    Select,
    /// Rows are sorted, and the first are copied.
    Sort,
}

impl TopK {
    fn way(&self, n: usize) -> Way {
        match n {
            n if n <= MAX_BLOCK_SORT / 4 => Way::SortShort,
            _ if self.k <= MAX_BLOCK_SORT => Way::Select,
            _ => Way::Sort,
        }
    }

    /// Parts of a row from which [`Way::Select`] first selects `k` each: so many that all multiprocessors have work, and so few
    /// that selecting from what is left takes no longer. A part has at least `k` elements.
    fn parts(&self, cuda: &Cuda, rows: usize, n: usize) -> usize {
        let blocks = (2 * cuda.sm_count() as usize).div_ceil(rows);
        (n / self.k).isqrt().min(blocks).min(n / MIN_PER_BLOCK).max(1)
    }
}

impl Op for TopK {
    const NAME: &'static str = "topk";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let x = lines(Self::NAME, ins)?;
        if self.k > x.last() {
            let why = format!("is {}, but the last axis of {x} has {} elements", self.k, x.last());
            return Err(Error::argument(Self::NAME, "k", why));
        }
        Ok(Meta::u32(with_last(Self::NAME, &x, self.k)?))
    }

    fn index_bound(&self, ins: &[Meta]) -> IndexBound {
        IndexBound::Below(ins[0].shape.last())
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        let n = ins[0].shape.last();
        let rows = ins[0].shape.numel() / n.max(1);
        match (device.backend(), self.way(n)) {
            (Backend::Cuda(_), _) if rows * self.k == 0 => 0,
            (Backend::Cuda(cuda), Way::Select) => match self.parts(cuda, rows, n) {
                1 => 0,
                parts => rows * parts * self.k,
            },
            (Backend::Cuda(_), Way::Sort) => gpu_workspace(rows, n),
            _ => 0,
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let (x, n, k) = (run.ins[0], run.metas[0].shape.last(), self.k);
        if run.out.is_empty() {
            return;
        }
        let flip = flip(self.largest);
        let per = run.pool.share(run.out.len() / k, (16 * 1024 / n).max(1), 1);
        run.pool.chunks_mut(run.out, per * k, |task, out| {
            let few = k <= MAX_LIST && k < n;
            let mut scratch = Scratch::take(if few { 0 } else { memory(n) });
            let mut list = [0u64; MAX_LIST];
            for (row, out) in x[task * per * n..].chunks(n).zip(out.chunks_mut(k)) {
                let first: &[u64] = if few {
                    few_first(run.simd, row, flip, &mut list[..k]);
                    &list
                } else {
                    many_first(run.simd, row, flip, k, halves(scratch.words(), n).0)
                };
                out.iter_mut().zip(first).for_each(|(y, w)| *y = f32::from_bits(*w as u32));
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let n = run.metas[0].shape.last();
        if run.shape.numel() == 0 {
            return Ok(());
        }
        let (rows, k) = (run.shape.numel() / self.k, self.k);
        let (name, source) = module();
        match self.way(n) {
            Way::SortShort => sort_short_rows(run, rows, n, k, self.largest),
            Way::Select => {
                let kernel = run.cuda.kernel(&name, source, "select_first")?;
                let select = |from: u64, n_from: usize, parts: usize, out: u64| {
                    let mut args = Args::new();
                    args.ptr(run.ins[0])
                        .ptr(from)
                        .ptr(out)
                        .u32(n as u32)
                        .u32(n_from as u32)
                        .u32(parts as u32);
                    args.u32(k as u32).u32(padded(k) as u32).u32(flip(self.largest));
                    let blocks = [(rows * parts) as u32, 1, 1];
                    run.cuda.launch(kernel, blocks, 1024, shared_bytes(padded(k)), &args)
                };
                match self.parts(run.cuda, rows, n) {
                    1 => select(0, 0, 1, run.out),
                    parts => {
                        select(0, 0, parts, run.workspace)?;
                        select(run.workspace, parts * k, 1, run.out)
                    }
                }
            }
            Way::Sort => {
                let order = run.workspace + 4 * sort::aligned(rows * n) as u64;
                sort_rows(run, rows, n, self.largest, order)?;
                let kernel = run.cuda.kernel(&name, source, "copy_first")?;
                let mut args = Args::new();
                args.ptr(order).ptr(run.out).u64((rows * k) as u64).u32(n as u32).u32(k as u32);
                run.cuda.launch(kernel, grid(run.cuda, rows * k), 256, 0, &args)
            }
        }
    }

    fn cuda_modules(&self, ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        match self.way(ins[0].shape.last()) {
            Way::Sort => vec![module(), sort::module()],
            Way::SortShort | Way::Select => vec![module()],
        }
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let x = ins[0].num()?;
        let n = x.shape().last().max(1);
        let first = |row| sorted_positions(row, self.largest).into_iter().take(self.k);
        let rows = x.data().chunks(n).flat_map(first).map(|i| T::c(i as f64)).collect();
        Tensor::with_shape(with_last(Self::NAME, &x.shape(), self.k)?, rows)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("k", Attr::Num(self.k as f64)), ("largest", Attr::Bool(self.largest))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<TopK> {
        attrs.only(&["k", "largest"])?;
        Ok(TopK { k: attrs.whole("k")?, largest: attrs.flag("largest")? })
    }

    no_gradient!();
}
