//! Scatter-adds.

use super::accumulate::{
    Add, Combine, add_cuda, add_in_turn, add_workspace, added, fits_shared, two_or_three,
};
use super::{IndexSelect, Layout, MIN_WORDS_PER_TASK, TakeAlongAxis, module, shape_of, size_fits, sort};
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, mismatch};
use dittograd_device::cuda::Source;
use dittograd_device::{Backend, Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// Adds slices along an axis by index: `y[…, index[j…], …] += src[…, j…, …]` for all `j…` in increasing order, one
/// after another. It starts from the third input if there is one, else from zero. The value's axis has `size` elements.
/// An index that is out of range drops its elements, or is an error if `checked`. The adjoint of [`IndexSelect`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IndexAdd {
    /// The axis of the value. In the sources it is the first axis of the indices.
    pub axis: usize,
    /// Size of that axis of the value.
    pub size: usize,
    /// Whether an index out of range is an error.
    pub checked: bool,
}

impl Op for IndexAdd {
    const NAME: &'static str = "index_add";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        two_or_three(Self::NAME, ins)?;
        size_fits(Self::NAME, self.size)?;
        let (src, index) = (ins[0].shape, ins[1].shape);
        let behind = self.axis.checked_add(index.rank()).filter(|&b| b <= src.rank());
        let Some(behind) = behind else {
            return Err(Error::new(Self::NAME, ErrorKind::Axis { axis: self.axis, shape: src }));
        };
        if src.dims()[self.axis..behind] != *index.dims() {
            return Err(mismatch(
                Self::NAME,
                "the sources must have the indices' axes at `axis`",
                src,
                index,
            ));
        }
        let shape = shape_of(Self::NAME, [&src.dims()[..self.axis], &[self.size], &src.dims()[behind..]])?;
        added(Self::NAME, ins, shape, index.numel())
    }

    fn index_limit(&self, _ins: &[Meta]) -> Option<(usize, usize)> {
        self.checked.then_some((1, self.size))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        add_workspace(ins[1].shape.numel(), device)
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let l = Layout::new(&run.shape, self.axis, run.metas[1].shape.numel());
        let index: &[u32] = bytemuck::cast_slice(run.ins[1]);
        let add = Add {
            outer: l.outer,
            rows: l.size,
            count: l.count,
            inner: l.inner,
            src: run.ins[0],
            base: run.ins.get(2).copied(),
            combine: Combine::Sum,
            row: |s: usize| index[s] as usize,
        };
        add.run(run.pool, run.simd, run.out, bytemuck::cast_slice_mut(run.workspace));
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let l = Layout::new(&run.shape, self.axis, run.metas[1].shape.numel());
        add_cuda(run, &l, &Layout { outer: 1, inner: 1, ..l }, module())
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![module(), sort::module()]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let select = IndexSelect { axis: self.axis, checked: false };
        let mut all = vec![Some(r.record(select.into(), &[dy, io.ins[1]])?), None];
        all.extend(io.ins.get(2).map(|_| Some(dy)));
        Ok(all)
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let (shape, index) = (self.shape(&metas)?.shape, ins[1].idx()?.data());
        added_one_by_one(ins, shape, self.axis, index.len(), |_, j| index[j])
    }

    attr_methods!(IndexAdd: axis, size);
}

/// Adds elements along an axis, each with its own index: `y[…, index[…, j, …], …] += src[…, j, …]` for all `j` in
/// increasing order, one after another. It starts from the third input if there is one, else from zero. The value's
/// axis has `size` elements. An index that is out of range drops its element, or is an error if `checked`. The adjoint
/// of [`TakeAlongAxis`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScatterAdd {
    /// The axis.
    pub axis: usize,
    /// Size of that axis of the value.
    pub size: usize,
    /// Whether an index out of range is an error.
    pub checked: bool,
}

/// With at least this many columns, one thread per column keeps a GPU busy.
const MIN_PARALLEL_COLUMNS: usize = 8192;

/// Up to this many indices, adding them one after another on a thread (about half a microsecond each) beats sorting
/// them (about thirty).
const MAX_SERIAL_INDICES: usize = 64;

/// The same elements as one axis with rows of one element.
pub(super) fn flat(l: &Layout) -> Layout {
    let (rows, sources) = (l.outer * l.size * l.inner, l.outer * l.count * l.inner);
    Layout { outer: 1, size: rows, count: sources, inner: 1 }
}

/// The row of each source in [`flat`]; one past the end where its index is out of range.
pub(super) fn flat_row<'a>(l: &Layout, index: &'a [u32]) -> impl Fn(usize) -> usize + Sync + use<'a> {
    let Layout { outer, size, count, inner } = *l;
    let (is_vector, rows) = (outer == 1 && inner == 1, flat(l).size);
    move |s| match index[s] as usize {
        to if to < size && is_vector => to,
        to if to < size => (s / (count * inner) * size + to) * inner + s % inner,
        _ => rows,
    }
}

/// The definition of additions along `axis`, where element `at` of the sources, which has place `j` along their axis of indices, goes to
/// row `to(at, j)` of `size`.
fn added_one_by_one<T: Scalar>(
    ins: &[AnyTensor<T>],
    shape: Shape,
    axis: usize,
    count: usize,
    to: impl Fn(usize, usize) -> u32,
) -> Result<Tensor<T>> {
    let (inner, size) = (shape.dims()[axis + 1..].iter().product::<usize>(), shape.dims()[axis]);
    let mut out = match ins.get(2) {
        Some(base) => base.num()?.clone(),
        None => Tensor::full(shape, T::c(0.0)),
    };
    for (at, &x) in ins[0].num()?.data().iter().enumerate() {
        let (o, j, i) = (at / inner / count, at / inner % count, at % inner);
        let to = to(at, j) as usize;
        if to < size {
            let y = &mut out.data_mut()[(o * size + to) * inner + i];
            *y = *y + x;
        }
    }
    Ok(out)
}

/// Whether the GPU sorts the sources by target row. Otherwise it adds them in turn: see [`add_in_turn`].
pub(super) fn sorts(l: &Layout) -> bool {
    l.outer * l.inner < MIN_PARALLEL_COLUMNS
        && !fits_shared(l)
        && l.count > MAX_SERIAL_INDICES
        && flat(l).size < u32::MAX as usize
}

/// The layout of a value of `shape` and of indices along `axis`, the second input.
pub(super) fn layout(axis: usize, ins: &[Meta], shape: &Shape) -> Layout {
    Layout::new(shape, axis, ins[1].shape.dims()[axis])
}

impl Op for ScatterAdd {
    const NAME: &'static str = "scatter_add";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        two_or_three(Self::NAME, ins)?;
        size_fits(Self::NAME, self.size)?;
        let (src, index) = (ins[0].shape, ins[1].shape);
        if self.axis >= src.rank() {
            return Err(Error::new(Self::NAME, ErrorKind::Axis { axis: self.axis, shape: src }));
        }
        if src != index {
            return Err(mismatch(Self::NAME, "sources and indices must have one shape", src, index));
        }
        let d = src.dims();
        let shape = shape_of(Self::NAME, [&d[..self.axis], &[self.size], &d[self.axis + 1..]])?;
        added(Self::NAME, ins, shape, index.numel())
    }

    fn index_limit(&self, _ins: &[Meta]) -> Option<(usize, usize)> {
        self.checked.then_some((1, self.size))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        let Ok(out) = self.shape(ins) else { return 0 };
        let gpu_sorts = sorts(&layout(self.axis, ins, &out.shape));
        match device.backend() {
            Backend::Cuda(_) if !gpu_sorts => 0,
            _ => add_workspace(ins[1].shape.numel(), device),
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let l = layout(self.axis, run.metas, &run.shape);
        let index: &[u32] = bytemuck::cast_slice(run.ins[1]);
        let (src, base) = (run.ins[0], run.ins.get(2).copied());
        let lists = bytemuck::cast_slice_mut(run.workspace);
        let words = l.size * l.inner;
        if l.outer >= 4 * run.pool.threads() && words > 0 {
            // Enough outer positions to share out between threads without looking at the indices first.
            let taken = l.count * l.inner;
            let per = run.pool.share(l.outer, (MIN_WORDS_PER_TASK / (words + taken)).max(1), 1);
            return run.pool.chunks_mut(run.out, per * words, |task, out| {
                for (o, out) in out.chunks_mut(words).enumerate() {
                    let o = task * per + o;
                    match base {
                        Some(base) => out.copy_from_slice(&base[o * words..][..words]),
                        None => out.fill(0.0),
                    }
                    let (src, index) = (&src[o * taken..][..taken], &index[o * taken..][..taken]);
                    for (s, (x, &to)) in src.iter().zip(index).enumerate() {
                        if (to as usize) < l.size {
                            out[to as usize * l.inner + s % l.inner] += x;
                        }
                    }
                }
            });
        }
        let flat = flat(&l);
        let (outer, rows, count, row) = (1, flat.size, flat.count, flat_row(&l, index));
        let add = Add { outer, rows, count, inner: 1, src, base, combine: Combine::Sum, row };
        add.run(run.pool, run.simd, run.out, lists);
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let l = layout(self.axis, run.metas, &run.shape);
        match sorts(&l) {
            true => add_cuda(run, &flat(&l), &l, module()),
            false => add_in_turn(run, &l, module()),
        }
    }

    fn cuda_modules(&self, ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        match self.shape(ins) {
            Ok(out) if sorts(&layout(self.axis, ins, &out.shape)) => vec![module(), sort::module()],
            _ => vec![module()],
        }
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let take = TakeAlongAxis { axis: self.axis, checked: false };
        let mut all = vec![Some(r.record(take.into(), &[dy, io.ins[1]])?), None];
        all.extend(io.ins.get(2).map(|_| Some(dy)));
        Ok(all)
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let (shape, index) = (self.shape(&metas)?.shape, ins[1].idx()?);
        let count = index.shape().dims()[self.axis];
        added_one_by_one(ins, shape, self.axis, count, |at, _| index.data()[at])
    }

    attr_methods!(ScatterAdd: axis, size);
}
