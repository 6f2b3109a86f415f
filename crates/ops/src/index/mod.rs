//! Ops that take elements from, or add them to, places given by indices.
//!
//! An index that is not below the size of its axis is either an error ([`Op::index_limit`], where the op is `checked`)
//! or no place at all: what is taken from there is zero, what is added there is dropped. Elements added to one place
//! are added in increasing source order (C6).

#[cfg(feature = "cases")]
mod cases;
pub(crate) mod sort;

use crate::pointwise::map::grid;
use crate::pointwise::program::Scratch;
use crate::{
    AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, IndexBound, Io, Op, Recorder, Val, arity, mismatch, typed,
};
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_device::cpu::threads::Pool;
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{Backend, DType, Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

const SOURCE: &str = concat!(include_str!("../divide.cu"), include_str!("index.cu"));

fn module() -> Source {
    ("index".into(), SOURCE)
}

/// How a value and its indices lie: the value is (outer, size, inner), what is taken or added (outer, count, inner).
#[derive(Clone, Copy)]
struct Layout {
    outer: usize,
    size: usize,
    count: usize,
    inner: usize,
}

impl Layout {
    /// Of a value of shape `long` with `count` indices for its axis.
    fn new(long: &Shape, axis: usize, count: usize) -> Layout {
        let d = long.dims();
        let (outer, inner) = (d[..axis].iter().product(), d[axis + 1..].iter().product());
        Layout { outer, size: d[axis], count, inner }
    }

    /// Elements per thread of a kernel that moves rows: vectors of four where rows divide.
    fn width(&self) -> usize {
        if self.inner.is_multiple_of(4) { 4 } else { 1 }
    }
}

fn axis_of(op: &'static str, x: &Shape, axis: usize) -> Result<()> {
    if axis >= x.rank() {
        return Err(Error::new(op, ErrorKind::Axis { axis, shape: *x }));
    }
    size_fits(op, x.dims()[axis])
}

/// Indices have 32 bits, and one number beyond the last is needed to say "nowhere".
fn size_fits(op: &'static str, size: usize) -> Result<()> {
    if size < u32::MAX as usize {
        return Ok(());
    }
    Err(Error::argument(op, "axis", format!("has {size} elements, which indices of 32 bits cannot reach")))
}

/// A shape from pieces, with errors in the name of the op.
fn shape_of(op: &'static str, pieces: [&[usize]; 3]) -> Result<Shape> {
    Shape::new(&pieces.concat()).map_err(|e| Error::new(op, e.kind().clone()))
}

/// The fewest words a task of the thread pool takes.
const TASK: usize = 16 * 1024;

/// Attributes that all ops here share.
macro_rules! attr_methods {
    ($op:ident: $($attr:ident),*) => {
        fn attrs(&self) -> Vec<(&'static str, Attr)> {
            vec![$((stringify!($attr), Attr::Num(self.$attr as f64)),)* ("checked", Attr::Bool(self.checked))]
        }

        fn from_attrs(attrs: &Attrs) -> Result<$op> {
            attrs.only(&[$(stringify!($attr),)* "checked"])?;
            Ok($op { $($attr: attrs.whole(stringify!($attr))?,)* checked: attrs.flag("checked")? })
        }
    };
}

/// Elements of an axis by index: `y[…, j…, …] = x[…, index[j…], …]`. The axes of the indices stand where `axis` was.
/// An index that is not below the size of the axis gives zeros, or an error if `checked`.
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
        let rows = run.pool.share(l.outer * l.count, (TASK / l.inner).max(1), 1);
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

simd_fn! {
    /// `y += x`.
    fn add_to(simd, y: &mut [f32], x: &[f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y += x;
        }
    }
}

/// What is added where, on the CPU: `count` sources of `inner` words each, for every outer position; source `s` belongs
/// to row `row(s)` of `rows`, or to none if that is not below.
struct Add<'a, F> {
    outer: usize,
    rows: usize,
    count: usize,
    inner: usize,
    src: &'a [f32],
    base: Option<&'a [f32]>,
    row: F,
}

impl<F: Fn(usize) -> usize + Sync> Add<'_, F> {
    /// Rows `first..` of outer position `o` from their sources, given in increasing order.
    fn rows(
        &self,
        simd: Simd,
        o: usize,
        first: usize,
        out: &mut [f32],
        sources: impl Iterator<Item = usize>,
    ) {
        match self.base {
            Some(base) => out.copy_from_slice(&base[(o * self.rows + first) * self.inner..][..out.len()]),
            None => out.fill(0.0),
        }
        for s in sources {
            let (to, from) = ((self.row)(s), (o * self.count + s) * self.inner);
            if to >= self.rows {
                continue;
            }
            let to = (to - first) * self.inner;
            if self.inner == 1 {
                out[to] += self.src[from];
            } else {
                add_to(simd, &mut out[to..to + self.inner], &self.src[from..from + self.inner]);
            }
        }
    }

    /// Fills `out`. `lists` has a word per source.
    fn run(&self, pool: &Pool, simd: Simd, out: &mut [f32], lists: &mut [u32]) {
        let words = self.rows * self.inner;
        if words == 0 {
            return;
        }
        let each = words + self.count * self.inner;
        if self.outer >= 4 * pool.threads() || each <= TASK {
            let per = pool.share(self.outer, (TASK / each).max(1), 1);
            return pool.chunks_mut(out, per * words, |task, out| {
                for (o, out) in out.chunks_mut(words).enumerate() {
                    self.rows(simd, task * per + o, 0, out, 0..self.count);
                }
            });
        }
        // Each task owns a run of rows and gets the list of its sources, in order.
        let per = pool.share(self.rows, (TASK / self.inner).max(1), 1);
        let runs = self.rows.div_ceil(per);
        let mut scratch = Scratch::take(2 * (runs + 1));
        let (ends, rest) = scratch.words().split_at_mut(runs + 1);
        let ends: &mut [u32] = bytemuck::cast_slice_mut(ends);
        let starts: &mut [u32] = bytemuck::cast_slice_mut(&mut rest[..runs + 1]);
        ends.fill(0);
        for s in 0..self.count {
            let to = (self.row)(s);
            if to < self.rows {
                ends[to / per + 1] += 1;
            }
        }
        for r in 0..runs {
            ends[r + 1] += ends[r];
        }
        starts.copy_from_slice(ends);
        for s in 0..self.count {
            let to = (self.row)(s);
            if to < self.rows {
                let next = &mut ends[to / per];
                lists[*next as usize] = s as u32;
                *next += 1;
            }
        }
        let (lists, starts) = (&*lists, &*starts);
        for (o, out) in out.chunks_mut(words).enumerate() {
            pool.chunks_mut(out, per * self.inner, |r, out| {
                let sources = lists[starts[r] as usize..starts[r + 1] as usize].iter().map(|&s| s as usize);
                self.rows(simd, o, r * per, out, sources);
            });
        }
    }
}

/// Words of workspace for adding `count` sources, on either device.
fn add_workspace(count: usize, device: &Device) -> usize {
    match device.backend() {
        Backend::Cpu(_) | Backend::Host(_) => count,
        Backend::Cuda(_) => 2 * sort::aligned(count) + sort::workspace(count),
    }
}

/// Queues the addition of `sources` rows of `l.inner` words (for each of `l.outer`) to `rows` rows. The row of a source is
/// found from its index with the layout `at`.
fn add_cuda(run: &CudaRun<'_>, l: &Layout, at: &Layout) -> Result<()> {
    let (sources, rows) = (l.count, l.size);
    if run.shape.numel() == 0 {
        return Ok(());
    }
    let (name, source) = module();
    let (mut keys, order) = (run.workspace, run.workspace + sort::aligned(sources) as u64 * 4);
    if sources > 0 {
        let kernel = run.cuda.kernel(&name, source, "add_keys")?;
        let mut args = Args::new();
        args.ptr(run.ins[1]).ptr(keys).u64(sources as u64);
        args.u64(at.size as u64).u64(at.count as u64).u64(at.inner as u64).u32(rows as u32);
        run.cuda.launch(kernel, grid(run.cuda, sources), 256, 0, &args)?;
        let bits = u32::BITS - (rows as u32).leading_zeros();
        let scratch = run.workspace + 2 * sort::aligned(sources) as u64 * 4;
        keys = sort::launch(run.cuda, keys, sources, bits, scratch, order)?;
    }
    let width = l.width();
    let inner = l.inner / width;
    // Columns of a block: all of them up to 4096, more only where the grid cannot have as many pieces. Where there are too few
    // elements to keep the GPU busy, each has a long chain to wait for: then a warp's columns of one row.
    let few = rows * inner * l.outer < run.cuda.sm_count() as usize * 2048;
    let wide = inner.min(if few { 32 } else { 4096 }.max(inner.div_ceil(65_535)));
    let per = if few { 1 } else { (3072 / wide).clamp(1, 256) };
    let kernel = run.cuda.kernel(&name, source, &format!("add_rows{width}"))?;
    let mut args = Args::new();
    args.ptr(run.ins[0]).ptr(keys).ptr(order).ptr(run.ins.get(2).copied().unwrap_or(0)).ptr(run.out);
    args.u32(sources as u32)
        .u32(rows as u32)
        .u64(inner as u64)
        .u64(l.outer as u64)
        .u32(per as u32)
        .u32(wide as u32);
    let blocks = [rows.div_ceil(per), l.outer.min(65_535), inner.div_ceil(wide)];
    run.cuda.launch(kernel, blocks.map(|n| n as u32), 256, 0, &args)
}

/// Checks the optional base, and that the sources can be counted in 32 bits.
fn added(op: &'static str, ins: &[Meta], shape: Shape, count: usize) -> Result<Meta> {
    if let Some(base) = ins.get(2) {
        typed(op, ins, 2, DType::F32)?;
        if base.shape != shape {
            return Err(mismatch(op, "the base must have the shape of the result", base.shape, shape));
        }
    }
    if count >= u32::MAX as usize {
        return Err(Error::argument(
            op,
            "index",
            format!("{count} elements to add are too many, split them"),
        ));
    }
    Ok(Meta::f32(shape))
}

fn two_or_three(op: &'static str, ins: &[Meta]) -> Result<()> {
    if ins.len() != 2 && ins.len() != 3 {
        return Err(Error::new(op, ErrorKind::Arity { want: 2, got: ins.len() }));
    }
    typed(op, ins, 0, DType::F32)?;
    typed(op, ins, 1, DType::U32)
}

/// Elements added along an axis by index: `y[…, index[j…], …] += src[…, j…, …]` for all `j…` in increasing order, one
/// after the other, starting from the third input if there is one and from zero otherwise. The value's axis has `size`
/// elements. An index that is not below `size` drops its elements, or is an error if `checked`. The adjoint of
/// [`IndexSelect`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IndexAdd {
    /// The axis of the value, and the first of the indices' axes in the sources.
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
            row: |s: usize| index[s] as usize,
        };
        add.run(run.pool, run.simd, run.out, bytemuck::cast_slice_mut(run.workspace));
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let l = Layout::new(&run.shape, self.axis, run.metas[1].shape.numel());
        add_cuda(run, &l, &Layout { outer: 1, inner: 1, ..l })
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
        let (src, index) = (ins[0].num()?, ins[1].idx()?);
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let shape = self.shape(&metas)?.shape;
        let inner: usize = shape.dims()[self.axis + 1..].iter().product();
        let count = index.shape().numel();
        let mut out = match ins.get(2) {
            Some(base) => base.num()?.clone(),
            None => Tensor::full(shape, T::c(0.0)),
        };
        for (at, &x) in src.data().iter().enumerate() {
            let (o, j, i) = (at / inner / count, at / inner % count, at % inner);
            let to = index.data()[j] as usize;
            if to < self.size {
                let y = &mut out.data_mut()[(o * self.size + to) * inner + i];
                *y = *y + x;
            }
        }
        Ok(out)
    }

    attr_methods!(IndexAdd: axis, size);
}

/// Errors unless `index` has the dimensions of `x` except along `axis`.
fn along(op: &'static str, x: &Shape, index: &Shape, axis: usize) -> Result<()> {
    let same = x.rank() == index.rank() && (0..x.rank()).all(|a| a == axis || x.dims()[a] == index.dims()[a]);
    if same {
        return Ok(());
    }
    Err(mismatch(op, "the indices must have the value's dimensions except along the axis", *x, *index))
}

/// Elements along an axis, each by an index of its own: `y[…, j, …] = x[…, index[…, j, …], …]`. The indices have the
/// value's dimensions except along `axis`. An index that is not below the size of the axis gives zero, or an error if
/// `checked`.
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
        let rows = run.pool.share(l.outer * l.count, (TASK / l.inner).max(1), 1);
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

/// Elements added along an axis, each by an index of its own: `y[…, index[…, j, …], …] += src[…, j, …]` for all `j` in
/// increasing order, one after the other, starting from the third input if there is one and from zero otherwise. The
/// value's axis has `size` elements. An index that is not below `size` drops its element, or is an error if `checked`.
/// The adjoint of [`TakeAlongAxis`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScatterAdd {
    /// The axis.
    pub axis: usize,
    /// Size of that axis of the value.
    pub size: usize,
    /// Whether an index out of range is an error.
    pub checked: bool,
}

/// Columns from which on a thread each keeps a GPU busy, and indices up to which a thread goes through them anyway: about
/// half a microsecond each, against some thirty to sort.
const COLUMNS: usize = 8192;

const SHORT: usize = 64;

impl ScatterAdd {
    /// The whole as one axis, with rows of one element.
    fn flat(&self, l: &Layout) -> Layout {
        let (rows, sources) = (l.outer * l.size * l.inner, l.outer * l.count * l.inner);
        Layout { outer: 1, size: rows, count: sources, inner: 1 }
    }

    /// Whether the GPU sorts the sources by their places instead of giving each column to a thread.
    fn sorts(&self, l: &Layout) -> bool {
        l.outer * l.inner < COLUMNS && l.count > SHORT && self.flat(l).size < u32::MAX as usize
    }

    fn layout(&self, ins: &[Meta], shape: &Shape) -> Layout {
        Layout::new(shape, self.axis, ins[1].shape.dims()[self.axis])
    }
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
        let gpu_sorts = self.sorts(&self.layout(ins, &out.shape));
        match device.backend() {
            Backend::Cuda(_) if !gpu_sorts => 0,
            _ => add_workspace(ins[1].shape.numel(), device),
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let l = self.layout(run.metas, &run.shape);
        let index: &[u32] = bytemuck::cast_slice(run.ins[1]);
        let (src, base) = (run.ins[0], run.ins.get(2).copied());
        let lists = bytemuck::cast_slice_mut(run.workspace);
        let words = l.size * l.inner;
        if l.outer >= 4 * run.pool.threads() && words > 0 {
            // Enough to share out without looking at the indices first.
            let taken = l.count * l.inner;
            let per = run.pool.share(l.outer, (TASK / (words + taken)).max(1), 1);
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
        let flat = self.flat(&l);
        let (outer, rows, count) = (1, flat.size, flat.count);
        let row = |s: usize| match index[s] as usize {
            to if to < l.size => (s / (l.count * l.inner) * l.size + to) * l.inner + s % l.inner,
            _ => rows,
        };
        Add { outer, rows, count, inner: 1, src, base, row }.run(run.pool, run.simd, run.out, lists);
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let l = self.layout(run.metas, &run.shape);
        let words = run.shape.numel();
        if self.sorts(&l) {
            return add_cuda(run, &self.flat(&l), &l);
        }
        if words == 0 {
            return Ok(());
        }
        match run.ins.get(2) {
            Some(&base) => run.cuda.copy(run.out, base, words * 4)?,
            None => run.cuda.fill(run.out, 0, words)?,
        }
        let columns = l.outer * l.inner;
        let (name, source) = module();
        let kernel = run.cuda.kernel(&name, source, "add_columns")?;
        let mut args = Args::new();
        args.ptr(run.ins[0]).ptr(run.ins[1]).ptr(run.out).u64(columns as u64);
        args.u64(l.size as u64).u64(l.count as u64).u64(l.inner as u64);
        run.cuda.launch(kernel, grid(run.cuda, columns), 256, 0, &args)
    }

    fn cuda_modules(&self, ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        match self.shape(ins) {
            Ok(out) if self.sorts(&self.layout(ins, &out.shape)) => vec![module(), sort::module()],
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
        let (src, index) = (ins[0].num()?, ins[1].idx()?);
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let shape = self.shape(&metas)?.shape;
        let inner: usize = shape.dims()[self.axis + 1..].iter().product();
        let count = index.shape().dims()[self.axis];
        let mut out = match ins.get(2) {
            Some(base) => base.num()?.clone(),
            None => Tensor::full(shape, T::c(0.0)),
        };
        for (at, (&x, &to)) in src.data().iter().zip(index.data()).enumerate() {
            let (o, i, to) = (at / inner / count, at % inner, to as usize);
            if to < self.size {
                let y = &mut out.data_mut()[(o * self.size + to) * inner + i];
                *y = *y + x;
            }
        }
        Ok(out)
    }

    attr_methods!(ScatterAdd: axis, size);
}
