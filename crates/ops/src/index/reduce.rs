//! Scatters that multiply, or take the largest or the smallest.

use super::accumulate::{Add, Combine, add_cuda, add_in_turn, add_workspace, added, larger, smaller};
use super::scatter::{flat, flat_row, layout, sorts};
use super::{
    INDEX_CU, Layout, MIN_WORDS_PER_TASK, ScatterAdd, TakeAlongAxis, module, shape_of, size_fits, sort,
};
use crate::pointwise;
use crate::pointwise::expression::Expr;
use crate::pointwise::map::grid;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, arity, mismatch, typed};
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{Backend, DType, Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::{Real, Scalar};
use dittograd_numerics::tensor::Tensor;

/// Combines elements along an axis with those of a base, each at its own index: sources, indices, base. `y` starts as the
/// base; then `y[…, t, …] = combine(y[…, t, …], src[…, j, …])` with `t = index[…, j, …]`, for all `j` in increasing order.
/// An index that is out of range drops its element, or is an error if `checked`. Sums are [`ScatterAdd`].
///
/// The gradient of an extremum is shared evenly by all elements that are equal to it. That of a product and its own
/// derivative are also correct at zeros.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScatterReduce {
    /// The axis.
    pub axis: usize,
    /// How elements are combined; not [`Combine::Sum`].
    pub combine: Combine,
    /// Whether an index out of range is an error.
    pub checked: bool,
}

/// The kernels of scatter-adds with products in place of sums.
fn product_module() -> Source {
    crate::module("index_product".into(), || format!("#define PRODUCT\n{INDEX_CU}"))
}

/// Combines on the CPU where there are enough outer positions to share out between threads.
fn each_outer(run: CpuRun<'_>, l: &Layout, f: impl Fn(f32, f32) -> f32 + Sync) {
    let (src, base) = (run.ins[0], run.ins[2]);
    let index: &[u32] = bytemuck::cast_slice(run.ins[1]);
    let (words, taken) = (l.size * l.inner, l.count * l.inner);
    let per = run.pool.share(l.outer, (MIN_WORDS_PER_TASK / (words + taken)).max(1), 1);
    run.pool.chunks_mut(run.out, per * words, |task, out| {
        out.copy_from_slice(&base[task * per * words..][..out.len()]);
        for (o, out) in out.chunks_mut(words).enumerate() {
            let sources = (task * per + o) * taken..(task * per + o + 1) * taken;
            let (src, index) = (&src[sources.clone()], &index[sources]);
            match l.inner {
                1 => combine(l.size, 1, src, index, out, &f),
                inner => combine(l.size, inner, src, index, out, &f),
            }
        }
    });
}

/// Combines the sources of one outer position with `out`. Inlined for rows of one element, which need no loop.
#[inline(always)]
fn combine(
    size: usize,
    inner: usize,
    src: &[f32],
    index: &[u32],
    out: &mut [f32],
    f: impl Fn(f32, f32) -> f32,
) {
    for (src, index) in src.chunks_exact(inner).zip(index.chunks_exact(inner)) {
        for (i, (&x, &to)) in src.iter().zip(index).enumerate() {
            if (to as usize) < size {
                let y = &mut out[to as usize * inner + i];
                *y = f(*y, x);
            }
        }
    }
}

impl ScatterReduce {
    /// Whether the GPU sorts the sources by place; only products need their order.
    fn gpu_sorts(&self, ins: &[Meta]) -> bool {
        self.combine == Combine::Prod && sorts(&layout(self.axis, ins, &ins[2].shape))
    }

    fn take(&self, r: &mut dyn Recorder, from: Val, index: Val) -> Result<Val> {
        r.record(TakeAlongAxis { axis: self.axis, checked: false }.into(), &[from, index])
    }

    fn add(&self, r: &mut dyn Recorder, ins: &[Val; 3]) -> Result<Val> {
        let size = r.meta(ins[2]).shape.dims()[self.axis];
        r.record(ScatterAdd { axis: self.axis, size, checked: false }.into(), ins)
    }

    /// The gradients of a product, with derivatives of their own that are right at zeros too. Of the elements of a place, let
    /// `p` be the product of those that are not zero, and `s` the sum of those that are: a zero with a derivative. The factor
    /// of an element `v` is the product of the others. If `v` is not zero, that is `p / v` without zeros, `s p / v` with one.
    /// If `v` is zero, it is `p` without other zeros, `(s - v) p` with another one.
    fn product_vjp(&self, r: &mut dyn Recorder, [src, index, base]: [Val; 3], dy: Val) -> Result<[Val; 2]> {
        let (zero, one) = (|| Expr::c(0.0), || Expr::c(1.0));
        let each = |r: &mut dyn Recorder, f: &dyn Fn(Expr) -> Expr| -> Result<[Val; 3]> {
            Ok([r.pointwise(&[src], |v| f(v[0]))?, index, r.pointwise(&[base], |v| f(v[0]))?])
        };
        let others = each(r, &|x| Expr::where_eq(x, zero(), one(), x))?;
        let is_zero = each(r, &|x| Expr::where_eq(x, zero(), one(), zero()))?;
        let zeros = each(r, &|x| Expr::where_eq(x, zero(), x, zero()))?;
        let product = r.record((*self).into(), &others)?;
        let g = r.record(pointwise::Mul {}.into(), &[dy, product])?;
        let place = [g, self.add(r, &is_zero)?, self.add(r, &zeros)?];
        // For `n` zeros at a place.
        let with = |r: &mut dyn Recorder, n: f64| {
            r.pointwise(&place, |v| {
                let more = Expr::where_eq(v[1], Expr::c(n + 1.0), v[0] * v[2], zero());
                Expr::where_eq(v[1], Expr::c(n), v[0], more)
            })
        };
        let of_number = with(r, 0.0)?;
        let of_zero = with(r, 1.0)?;
        let of_pair = r.pointwise(&place[..2], |v| Expr::where_eq(v[1], Expr::c(2.0), v[0], zero()))?;
        let slope = |r: &mut dyn Recorder, ins: [Val; 4]| {
            r.pointwise(&ins, |v| {
                let divisor = Expr::where_eq(v[0], zero(), one(), v[0]);
                Expr::where_eq(v[0], zero(), v[2] - v[3] * v[0], v[1] / divisor)
            })
        };
        let taken =
            [self.take(r, of_number, index)?, self.take(r, of_zero, index)?, self.take(r, of_pair, index)?];
        let dsrc = slope(r, [src, taken[0], taken[1], taken[2]])?;
        Ok([dsrc, slope(r, [base, of_number, of_zero, of_pair])?])
    }
}

impl Op for ScatterReduce {
    const NAME: &'static str = "scatter_reduce";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [src, index, base] = arity(Self::NAME, ins)?;
        typed(Self::NAME, ins, 0, DType::F32)?;
        typed(Self::NAME, ins, 1, DType::U32)?;
        typed(Self::NAME, ins, 2, DType::F32)?;
        if self.combine == Combine::Sum {
            return Err(Error::argument(Self::NAME, "combine", "sums are the op scatter_add"));
        }
        if self.axis >= src.shape.rank() {
            return Err(Error::new(Self::NAME, ErrorKind::Axis { axis: self.axis, shape: src.shape }));
        }
        if src.shape != index.shape {
            let why = "sources and indices must have one shape";
            return Err(mismatch(Self::NAME, why, src.shape, index.shape));
        }
        let d = src.shape.dims();
        let size = base.shape.dims().get(self.axis).copied().unwrap_or(0);
        size_fits(Self::NAME, size)?;
        let shape = shape_of(Self::NAME, [&d[..self.axis], &[size], &d[self.axis + 1..]])?;
        added(Self::NAME, ins, shape, index.shape.numel())
    }

    fn index_limit(&self, ins: &[Meta]) -> Option<(usize, usize)> {
        self.checked.then(|| (1, ins[2].shape.dims()[self.axis]))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        match device.backend() {
            Backend::Cuda(_) if !self.gpu_sorts(ins) => 0,
            _ => add_workspace(ins[1].shape.numel(), device),
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let l = layout(self.axis, run.metas, &run.shape);
        let index: &[u32] = bytemuck::cast_slice(run.ins[1]);
        let (src, base) = (run.ins[0], run.ins[2]);
        if l.outer >= 4 * run.pool.threads() && l.size * l.inner > 0 {
            return match self.combine {
                Combine::Sum => each_outer(run, &l, |y, x| y + x),
                Combine::Prod => each_outer(run, &l, |y, x| y * x),
                Combine::Amax => each_outer(run, &l, larger),
                Combine::Amin => each_outer(run, &l, smaller),
            };
        }
        let flat = flat(&l);
        let (outer, rows, count, row) = (1, flat.size, flat.count, flat_row(&l, index));
        let add = Add { outer, rows, count, inner: 1, src, base: Some(base), combine: self.combine, row };
        add.run(run.pool, run.simd, run.out, bytemuck::cast_slice_mut(run.workspace));
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let l = layout(self.axis, run.metas, &run.shape);
        let (words, sources) = (run.shape.numel(), run.metas[0].shape.numel());
        if words == 0 {
            return Ok(());
        }
        if self.gpu_sorts(run.metas) {
            return add_cuda(run, &flat(&l), &l, product_module());
        }
        let sizes = |args: &mut Args| {
            args.u64(l.size as u64).u64(l.count as u64).u64(l.inner as u64);
        };
        if self.combine == Combine::Prod {
            return add_in_turn(run, &l, product_module());
        }
        let smallest = u32::from(self.combine == Combine::Amin);
        let (name, source) = module();
        let kernel = run.cuda.kernel(&name, source, "extreme_base")?;
        let mut args = Args::new();
        args.ptr(run.ins[2]).ptr(run.out).u32(smallest).u64(words as u64);
        run.cuda.launch(kernel, grid(run.cuda, words), 256, 0, &args)?;
        if sources > 0 {
            let kernel = run.cuda.kernel(&name, source, "extreme_sources")?;
            let mut args = Args::new();
            args.ptr(run.ins[0]).ptr(run.ins[1]).ptr(run.out).u64(sources as u64);
            sizes(&mut args);
            args.u32(smallest);
            run.cuda.launch(kernel, grid(run.cuda, sources), 256, 0, &args)?;
        }
        let kernel = run.cuda.kernel(&name, source, "extreme_numbers")?;
        let mut args = Args::new();
        args.ptr(run.out).u32(smallest).u64(words as u64);
        run.cuda.launch(kernel, grid(run.cuda, words), 256, 0, &args)
    }

    fn cuda_modules(&self, ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        match self.combine {
            Combine::Prod if self.gpu_sorts(ins) => vec![product_module(), sort::module()],
            Combine::Prod => vec![product_module()],
            Combine::Sum | Combine::Amax | Combine::Amin => vec![module()],
        }
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let (src, index, base) = (io.ins[0], io.ins[1], io.ins[2]);
        if self.combine == Combine::Prod {
            let [dsrc, dbase] = self.product_vjp(r, [src, index, base], dy)?;
            return Ok(vec![Some(dsrc), None, Some(dbase)]);
        }
        let at_source = self.take(r, io.out, index)?;
        let is_src = r.record(pointwise::Eq {}.into(), &[src, at_source])?;
        let is_base = r.record(pointwise::Eq {}.into(), &[base, io.out])?;
        let count = self.add(r, &[is_src, index, is_base])?;
        let share = r.record(pointwise::Div {}.into(), &[dy, count])?;
        let share_at = self.take(r, share, index)?;
        let dsrc = r.record(pointwise::Mul {}.into(), &[share_at, is_src])?;
        let dbase = r.record(pointwise::Mul {}.into(), &[share, is_base])?;
        Ok(vec![Some(dsrc), None, Some(dbase)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let (src, index, mut out) = (ins[0].num()?, ins[1].idx()?, ins[2].num()?.clone());
        let shape = out.shape();
        let inner: usize = shape.dims()[self.axis + 1..].iter().product();
        let (size, count) = (shape.dims()[self.axis], index.shape().dims()[self.axis]);
        for (at, (&x, &to)) in src.data().iter().zip(index.data()).enumerate() {
            let (o, i, to) = (at / inner / count, at % inner, to as usize);
            if to < size {
                let y = &mut out.data_mut()[(o * size + to) * inner + i];
                *y = match self.combine {
                    Combine::Sum => *y + x,
                    Combine::Prod => *y * x,
                    Combine::Amax => y.max(x),
                    Combine::Amin => y.min(x),
                };
            }
        }
        Ok(out)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let combine = self.combine as usize as f64;
        let checked = Attr::Bool(self.checked);
        vec![("axis", Attr::Num(self.axis as f64)), ("combine", Attr::Num(combine)), ("checked", checked)]
    }

    fn from_attrs(attrs: &Attrs) -> Result<ScatterReduce> {
        attrs.only(&["axis", "combine", "checked"])?;
        let combine = match attrs.whole("combine")? {
            1 => Combine::Prod,
            2 => Combine::Amax,
            3 => Combine::Amin,
            _ => return Err(Error::argument(Self::NAME, "combine", "is 1 (prod), 2 (amax) or 3 (amin)")),
        };
        Ok(ScatterReduce { axis: attrs.whole("axis")?, combine, checked: attrs.flag("checked")? })
    }
}
