//! Sorting.

use super::cpu::{flip, halves, memory, sort_long_row, sort_row};
use super::{MAX_BLOCK_SORT, lines, module, sorted_positions};
use crate::index::sort;
use crate::pointwise::expression::Scratch;
use crate::pointwise::map::grid;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, IndexBound, Op, no_gradient};
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{Backend, Device, Meta};
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::tensor::Tensor;

/// The positions of the elements along the last axis in increasing order, or in decreasing order if `descending`. Equal
/// elements keep their order; NaN is the largest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ArgSort {
    /// Whether the largest element is first.
    pub descending: bool,
}

/// Rows of this many elements on average are worth a task.
const MIN_PER_TASK: usize = 4096;

/// Rows at least this long are sorted by all threads together if there are fewer rows than threads.
const MIN_SPLIT: usize = 1 << 15;

/// Whether the CPU sorts one row after another, each on all threads.
fn splits(rows: usize, n: usize, threads: usize) -> bool {
    rows < threads && n >= MIN_SPLIT
}

/// Words of workspace of [`sort_rows`] on the GPU.
pub(super) fn gpu_workspace(rows: usize, n: usize) -> usize {
    let words = rows * n;
    2 * sort::aligned(words) + sort::workspace(rows, n)
}

/// Words that a block sorts for `n` elements.
pub(super) fn padded(n: usize) -> usize {
    n.next_power_of_two().max(8)
}

/// Shared memory for sorting `words`, of which every eight have nine places.
pub(super) fn shared_bytes(words: usize) -> u32 {
    (words * 9) as u32
}

/// Queues the sort of rows of any length on a GPU: encodes the keys, then sorts by radix. Writes positions to `order`.
pub(super) fn sort_rows(
    run: &CudaRun<'_>,
    rows: usize,
    n: usize,
    descending: bool,
    order: u64,
) -> Result<()> {
    let (name, source) = module();
    let kernel = run.cuda.kernel(&name, source, "encode_keys")?;
    let mut args = Args::new();
    args.ptr(run.ins[0]).ptr(run.workspace).u64((rows * n) as u64).u32(flip(descending));
    run.cuda.launch(kernel, grid(run.cuda, rows * n), 256, 0, &args)?;
    let scratch = run.workspace + 8 * sort::aligned(rows * n) as u64;
    sort::launch(run.cuda, run.workspace, (rows, n), 32, scratch, order)?;
    Ok(())
}

/// Queues the sort of short rows, several in a block, and writes the first `k` positions of each.
pub(super) fn sort_short_rows(
    run: &CudaRun<'_>,
    rows: usize,
    n: usize,
    k: usize,
    descending: bool,
) -> Result<()> {
    let (name, source) = module();
    let kernel = run.cuda.kernel(&name, source, "sort_short_rows")?;
    let padded = padded(n);
    // Blocks of 1024 elements, so that there are many; longer rows have a block each.
    let per = (1024 / padded).max(1);
    let mut args = Args::new();
    args.ptr(run.ins[0]).ptr(run.out).u64(rows as u64).u32(n as u32).u32(k as u32);
    args.u32(padded as u32).u32(per as u32).u32(flip(descending));
    let threads = (padded * per / 8).max(32);
    let blocks = rows.div_ceil(per).min(1 << 30);
    run.cuda.launch(kernel, [blocks as u32, 1, 1], threads as u32, shared_bytes(padded * per), &args)
}

impl Op for ArgSort {
    const NAME: &'static str = "argsort";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        Ok(Meta::u32(lines(Self::NAME, ins)?))
    }

    fn index_bound(&self, ins: &[Meta]) -> IndexBound {
        IndexBound::Below(ins[0].shape.last())
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        let n = ins[0].shape.last();
        let rows = ins[0].shape.numel() / n.max(1);
        match device.backend() {
            Backend::Cuda(_) if n > MAX_BLOCK_SORT => gpu_workspace(rows, n),
            Backend::Cuda(_) | Backend::Host(_) => 0,
            Backend::Cpu(cpu) if splits(rows, n, cpu.pool.threads()) => memory(n),
            Backend::Cpu(_) => 0,
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let (x, n) = (run.ins[0], run.shape.last());
        if run.out.is_empty() {
            return;
        }
        let (rows, flip) = (run.out.len() / n, flip(self.descending));
        let write = |out: &mut [f32], sorted: &[u64]| {
            out.iter_mut().zip(sorted).for_each(|(y, w)| *y = f32::from_bits(*w as u32));
        };
        if splits(rows, n, run.pool.threads()) && run.workspace.len() >= memory(n) {
            for (row, out) in x.chunks(n).zip(run.out.chunks_mut(n)) {
                let sorted = &*sort_long_row(run.pool, run.simd, row, flip, halves(run.workspace, n));
                let piece = run.pool.share(n, MIN_PER_TASK, 1);
                run.pool.chunks_mut(out, piece, |i, out| write(out, &sorted[i * piece..]));
            }
            return;
        }
        let per = run.pool.share(rows, (MIN_PER_TASK / n).max(1), 1);
        run.pool.chunks_mut(run.out, per * n, |task, out| {
            let mut scratch = Scratch::take(memory(n));
            for (row, out) in x[task * per * n..].chunks(n).zip(out.chunks_mut(n)) {
                write(out, sort_row(run.simd, row, flip, halves(scratch.words(), n)));
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let n = run.shape.last();
        if run.shape.numel() == 0 {
            return Ok(());
        }
        let rows = run.shape.numel() / n;
        if n <= MAX_BLOCK_SORT {
            return sort_short_rows(run, rows, n, n, self.descending);
        }
        sort_rows(run, rows, n, self.descending, run.out)
    }

    fn cuda_modules(&self, ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        match ins[0].shape.last() {
            n if n <= MAX_BLOCK_SORT => vec![module()],
            _ => vec![module(), sort::module()],
        }
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let x = ins[0].num()?;
        let n = x.shape().last().max(1);
        let rows = x.data().chunks(n).flat_map(|row| sorted_positions(row, self.descending));
        Tensor::with_shape(x.shape(), rows.map(|i| T::c(i as f64)).collect())
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("descending", Attr::Bool(self.descending))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<ArgSort> {
        attrs.only(&["descending"])?;
        Ok(ArgSort { descending: attrs.flag("descending")? })
    }

    no_gradient!();
}
