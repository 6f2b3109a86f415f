//! Sums and means over any set of axes, by the fixed trees of [`crate::numerics::sum`].
//!
//! Neighbouring reduced axes are summed as one. Several groups of reduced axes are summed one after the
//! other, the last group first; a group at the end uses the row rule, any other the column rule.

use super::map::grid;
use super::sampling::{edge_dims, sample};
use super::{
    Attr, Attrs, Bound, CpuRun, CudaRun, Gpu, Io, Op, Recorder, RefIn, Reject, Sample, SampleIn, Val, dims,
    floats, layout,
};
use crate::device::cpu::pool::Pool;
use crate::device::cpu::simd::Simd;
use crate::device::cpu::simd::simd_fn;
use crate::device::cuda::{Args, Cuda};
use crate::device::{Device, Meta};
use crate::error::{Error, ErrorKind, Result};
use crate::numerics::rng::Stream;
use crate::numerics::sum::{self, CHUNK, ROWS, WIDTH};
use crate::ops::elementwise::Scale;
use crate::scalar::Scalar;
use crate::shape::{MAX_RANK, Shape};
use crate::tensor::Tensor;
use std::sync::Arc;

/// Roundings on the longest path through either tree of `n` elements.
pub(crate) fn depth(n: usize) -> f64 {
    let (mut n, mut depth) = (n.max(1), 0.0);
    loop {
        depth += (CHUNK.min(n) as f64 / 32.0).ceil().max((ROWS.min(n)) as f64) + 5.0;
        if n <= ROWS {
            return depth;
        }
        n = n.div_ceil(ROWS);
    }
}

/// One pass of a reduction: a value of shape (outer, rows, inner) summed over `rows`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pass {
    outer: usize,
    rows: usize,
    inner: usize,
}

/// The passes that sum `shape` over `axes`, in order.
fn passes(shape: &Shape, axes: &[usize]) -> Vec<Pass> {
    let reduced = |a: usize| axes.contains(&a);
    let mut passes = Vec::new();
    let (mut inner, mut axis) = (1, shape.rank());
    while axis > 0 {
        let d = shape.dims()[axis - 1];
        if !reduced(axis - 1) {
            inner *= d;
            axis -= 1;
            continue;
        }
        let mut rows = 1;
        while axis > 0 && reduced(axis - 1) {
            rows *= shape.dims()[axis - 1];
            axis -= 1;
        }
        passes.push(Pass { outer: shape.dims()[..axis].iter().product(), rows, inner });
    }
    passes
}

/// The axes a reduction drops, checked.
fn check_axes(op: &'static str, axes: &[usize], shape: &Shape) -> Result<Shape> {
    let mut seen = [false; MAX_RANK];
    for &axis in axes {
        if axis >= shape.rank() || std::mem::replace(&mut seen[axis], true) {
            return Err(Error::new(op, ErrorKind::Axis { axis, shape: *shape }));
        }
    }
    let kept: Vec<usize> = (0..shape.rank()).filter(|&a| !seen[a]).map(|a| shape.dims()[a]).collect();
    Shape::new(&kept)
}

simd_fn! {
    /// Sum of at most one chunk of the row rule.
    pub(crate) fn chunk_sum(simd, x: &[f32]) -> f32 {
        sum::chunk([x], |[x]| x)
    }
}

simd_fn! {
    /// Sum of squared differences of at most one chunk of the row rule.
    fn chunk_square_error(simd, a: &[f32], b: &[f32]) -> f32 {
        sum::chunk([a, &b[..a.len()]], |[a, b]| (a - b) * (a - b))
    }
}

/// Sum of one row by the row rule.
pub(crate) fn row_sum(simd: Simd, x: &[f32]) -> f32 {
    sum::row(x.len(), |r| chunk_sum(simd, &x[r]))
}

/// Sum of squared differences of one row by the row rule.
pub(crate) fn row_square_error(simd: Simd, a: &[f32], b: &[f32]) -> f32 {
    sum::row(a.len(), |r| chunk_square_error(simd, &a[r.clone()], &b[r]))
}

simd_fn! {
    /// Sums of up to [`WIDTH`] neighbouring columns by the column rule.
    fn column_sums(simd, x: &[f32], rows: usize, stride: usize, out: &mut [f32]) {
        sum::columns(x, rows, stride, out);
    }
}

/// Elements below which a row is not worth splitting between threads.
const LONG_ROW: usize = 128 * 1024;

/// Sums one row, split between threads chunk by chunk when it is long. `part` sums a range of the row
/// that starts at a chunk boundary; `scratch` holds one word per chunk.
pub(crate) fn long_row(
    pool: &Pool,
    simd: Simd,
    len: usize,
    scratch: &mut [f32],
    part: impl Fn(std::ops::Range<usize>) -> f32 + Sync,
) -> f32 {
    if len < LONG_ROW || pool.threads() == 1 {
        return part(0..len);
    }
    let chunks = len.div_ceil(CHUNK);
    let scratch = &mut scratch[..chunks];
    const PER_TASK: usize = 32;
    pool.chunks_mut(scratch, PER_TASK, |task, out| {
        for (i, s) in out.iter_mut().enumerate() {
            let start = (task * PER_TASK + i) * CHUNK;
            *s = part(start..len.min(start + CHUNK));
        }
    });
    row_sum(simd, scratch)
}

/// Words of scratch [`long_row`] needs.
pub(crate) fn long_row_scratch(len: usize) -> usize {
    if len < LONG_ROW { 0 } else { len.div_ceil(CHUNK) }
}

fn pass_cpu(pool: &Pool, simd: Simd, pass: Pass, x: &[f32], out: &mut [f32], scratch: &mut [f32]) {
    let Pass { outer, rows, inner } = pass;
    if out.is_empty() {
        return;
    }
    if inner == 1 && outer == 1 {
        out[0] = long_row(pool, simd, rows, scratch, |r| row_sum(simd, &x[r]));
    } else if inner == 1 {
        let per_task = (LONG_ROW / 8 / rows.max(1)).max(1);
        pool.chunks_mut(out, per_task, |task, out| {
            for (i, o) in out.iter_mut().enumerate() {
                let at = (task * per_task + i) * rows;
                *o = row_sum(simd, &x[at..at + rows]);
            }
        });
    } else if outer == 1 {
        pool.chunks_mut(out, WIDTH, |tile, out| {
            column_sums(simd, &x[(tile * WIDTH).min(x.len())..], rows, inner, out)
        });
    } else {
        let matrix = rows * inner;
        pool.chunks_mut(out, inner, |o, out| {
            for (tile, out) in out.chunks_mut(WIDTH).enumerate() {
                let x = &x[o * matrix..(o + 1) * matrix];
                column_sums(simd, &x[(tile * WIDTH).min(matrix)..], rows, inner, out);
            }
        });
    }
}

const REDUCE_CU: &str = include_str!("reduce.cu");

/// A module that sums the elements `load`, in terms of `in0`, `in1` and `i`.
fn module(name: &str, load: &str) -> (String, String) {
    let head = format!("#define CHUNK {CHUNK}\n#define ROWS {ROWS}\n{load}\n");
    (name.into(), head + REDUCE_CU)
}

/// The module that sums plain elements.
pub(crate) fn plain_module() -> (String, String) {
    module("sum", "#define LOAD(i) in0[i]")
}

/// The module that sums squared differences of two inputs.
pub(crate) fn square_error_module() -> (String, String) {
    let load = "__device__ __forceinline__ float square_error(float a, float b) { const float d = __fsub_rn(a, b); return __fmul_rn(d, d); }\n#define LOAD(i) square_error(in0[i], in1[i])";
    module("sum_square_error", load)
}

/// Words of workspace a pass needs on CUDA for its levels.
fn pass_workspace(pass: Pass) -> usize {
    let mut words = 0;
    let (unit, results) =
        if pass.inner == 1 { (CHUNK, pass.outer) } else { (ROWS * ROWS, pass.outer * pass.inner) };
    let mut rows = pass.rows;
    while rows > unit {
        rows = rows.div_ceil(unit);
        words += rows * results;
    }
    words
}

/// Queues one pass: as many launches as the tree has kernel levels. The first level reads through the
/// given module, the others plain partial sums. Returns nothing to wait for.
#[allow(clippy::too_many_arguments)]
fn pass_cuda(
    cuda: &Arc<Cuda>,
    module: &(String, String),
    pass: Pass,
    ins: [u64; 2],
    out: u64,
    mut workspace: u64,
    factor: Option<f32>,
) -> Result<()> {
    let results = pass.outer * pass.inner;
    if results == 0 {
        return Ok(());
    }
    let plain = plain_module();
    let (mut module, mut ins, mut rows) = (module, ins, pass.rows);
    let (factor, scaled) = (factor.unwrap_or(1.0), i32::from(factor.is_some()));
    if rows == 0 {
        let kernel = cuda.kernel(&module.0, &module.1, "fill_value")?;
        let value = if scaled == 1 { 0.0 * factor } else { 0.0 };
        let mut args = Args::new();
        args.ptr(out).u64(results as u64).f32(value);
        return cuda.launch(kernel, grid(cuda, results), 256, 0, &args);
    }
    let columns = pass.inner > 1;
    let unit = if columns { ROWS * ROWS } else { CHUNK };
    loop {
        let next = rows.div_ceil(unit);
        let last = next == 1;
        let to = if last { out } else { workspace };
        let scaled = if last { scaled } else { 0 };
        if columns {
            let kernel = cuda.kernel(&module.0, &module.1, "sum_columns")?;
            let tiles = pass.inner.div_ceil(32);
            let warps = rows.div_ceil(ROWS).clamp(1, 32) as u32;
            let items = pass.outer * next * tiles;
            let mut args = Args::new();
            args.ptr(ins[0]).ptr(ins[1]).ptr(to);
            args.u64(pass.outer as u64).u64(rows as u64).u64(pass.inner as u64);
            args.u64(next as u64).u64(tiles as u64).f32(factor).i32(scaled);
            cuda.launch(kernel, [items.min(1 << 20) as u32, 1, 1], warps * 32, 0, &args)?;
        } else {
            let kernel = cuda.kernel(&module.0, &module.1, "sum_rows")?;
            let mut args = Args::new();
            args.ptr(ins[0]).ptr(ins[1]).ptr(to);
            args.u64(pass.outer as u64).u64(rows as u64).u64(next as u64).f32(factor).i32(scaled);
            cuda.launch(kernel, grid(cuda, pass.outer * next * 32), 256, 0, &args)?;
        }
        if last {
            return Ok(());
        }
        ins = [workspace, 0];
        workspace += (next * results * 4) as u64;
        rows = next;
        module = &plain;
    }
}

/// Queues the sum of all elements, optionally scaled, through the given module.
pub(crate) fn sum_all_cuda(
    cuda: &Arc<Cuda>,
    module: &(String, String),
    len: usize,
    ins: [u64; 2],
    out: u64,
    workspace: u64,
    factor: Option<f32>,
) -> Result<()> {
    pass_cuda(cuda, module, Pass { outer: 1, rows: len, inner: 1 }, ins, out, workspace, factor)
}

/// Words of workspace [`sum_all_cuda`] needs.
pub(crate) fn sum_all_workspace(len: usize) -> usize {
    pass_workspace(Pass { outer: 1, rows: len, inner: 1 })
}

/// Words the largest value between two passes takes.
fn between(passes: &[Pass]) -> usize {
    passes.iter().rev().skip(1).map(|p| p.outer * p.inner).max().unwrap_or(0)
}

/// Sizes of the two regions of workspace a reduction needs: values between passes, and one pass's own.
fn regions(passes: &[Pass], device: &Device) -> (usize, usize) {
    let own =
        passes.iter().map(|p| if device.is_cuda() { pass_workspace(*p) } else { long_row_scratch(p.rows) });
    (between(passes), own.max().unwrap_or(0))
}

macro_rules! reduction {
    ($(#[$doc:meta])* $op:ident $name:literal mean: $mean:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $op {
            axes: Vec<usize>,
        }

        impl $op {
            /// The reduction over these axes, which the value no longer has.
            pub fn new(axes: &[usize]) -> Result<$op> {
                let mut axes = axes.to_vec();
                axes.sort_unstable();
                if let Some(w) = axes.windows(2).find(|w| w[0] == w[1]) {
                    return Err(Error::argument($name, "axes", format!("axis {} is named twice", w[0])));
                }
                Ok($op { axes })
            }

            /// The reduction of a value of rank `rank` to a scalar.
            pub fn all(rank: usize) -> $op {
                $op { axes: (0..rank).collect() }
            }

            /// `1 / count` of a mean, formed in f64 and rounded once.
            fn factor(&self, shape: &Shape) -> Option<f32> {
                let count: usize = self.axes.iter().map(|&a| shape.dims()[a]).product();
                if $mean { Some((1.0 / count as f64) as f32) } else { None }
            }
        }

        impl Op for $op {
            const NAME: &'static str = $name;

            fn shape(&self, ins: &[Meta]) -> Result<Meta> {
                let [x] = floats(Self::NAME, ins)?;
                Ok(Meta::f32(check_axes(Self::NAME, &self.axes, &x)?))
            }

            fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
                let (between, own) = regions(&passes(&ins[0].shape, &self.axes), device);
                2 * between + own
            }

            fn cpu(&self, run: CpuRun<'_>) {
                let passes = passes(&run.metas[0].shape, &self.axes);
                let between = between(&passes);
                let (mut a, rest) = run.workspace.split_at_mut(between);
                let (mut b, scratch) = rest.split_at_mut(between);
                let mut x = run.ins[0];
                if passes.is_empty() {
                    run.out.copy_from_slice(x);
                }
                for (i, pass) in passes.iter().enumerate() {
                    if i + 1 == passes.len() {
                        pass_cpu(run.pool, run.simd, *pass, x, run.out, scratch);
                    } else {
                        let to = std::mem::take(&mut a);
                        let len = pass.outer * pass.inner;
                        pass_cpu(run.pool, run.simd, *pass, x, &mut to[..len], scratch);
                        x = &to[..len];
                        a = std::mem::take(&mut b);
                    }
                }
                if let Some(factor) = self.factor(&run.metas[0].shape) {
                    run.out.iter_mut().for_each(|y| *y *= factor);
                }
            }

            fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
                let shape = &run.metas[0].shape;
                let passes = passes(shape, &self.axes);
                let between = between(&passes) as u64 * 4;
                let factor = self.factor(shape);
                let module = plain_module();
                let mut x = run.ins[0];
                if passes.is_empty() {
                    return run.cuda.copy(run.out, x, shape.numel() * 4);
                }
                for (i, pass) in passes.iter().enumerate() {
                    let last = i + 1 == passes.len();
                    let to = if last { run.out } else { run.workspace + (i as u64 % 2) * between };
                    let factor = factor.filter(|_| last);
                    pass_cuda(run.cuda, &module, *pass, [x, 0], to, run.workspace + 2 * between, factor)?;
                    x = to;
                }
                Ok(())
            }

            fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<(String, String)> {
                vec![plain_module()]
            }

            fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
                // dx = dy repeated over the summed axes, times 1/count for a mean
                let shape = r.meta(io.ins[0]).shape;
                let mut kept = shape.dims().to_vec();
                self.axes.iter().for_each(|&a| kept[a] = 1);
                let dy = match self.factor(&shape) {
                    Some(c) => r.record(Scale { c }.into(), &[dy])?,
                    None => dy,
                };
                let dy = layout::reshape_to(r, dy, Shape::new(&kept)?)?;
                Ok(vec![Some(layout::broadcast_to(r, dy, shape)?)])
            }

            fn reference<T: Scalar>(&self, ins: &[RefIn<T>]) -> Result<Tensor<T>> {
                let x = ins[0].num()?;
                let shape = x.shape();
                let out = check_axes(Self::NAME, &self.axes, &shape)?;
                let mut sums = vec![T::c(0.0); out.numel()];
                for (at, &v) in x.data().iter().enumerate() {
                    let (mut rest, mut index, mut step) = (at, 0, 1);
                    for axis in (0..shape.rank()).rev() {
                        let d = shape.dims()[axis];
                        if !self.axes.contains(&axis) {
                            index += rest % d * step;
                            step *= d;
                        }
                        rest /= d;
                    }
                    sums[index] = sums[index] + v;
                }
                if $mean {
                    let count: usize = self.axes.iter().map(|&a| shape.dims()[a]).product();
                    sums.iter_mut().for_each(|s| *s = *s / T::c(count as f64));
                }
                Tensor::with_shape(out, sums)
            }

            fn samples() -> Vec<Sample<$op>> {
                let cases: [(&[usize], &[usize]); 18] = [
                    (&[], &[]),
                    (&[0], &[1]),
                    (&[0], &[1023]),
                    (&[0], &[1025]),
                    (&[0], &[300_000]),
                    (&[1], &[5, 33]),
                    (&[0], &[33, 5]),
                    (&[0], &[128, 64]),
                    (&[0], &[1025, 3]),
                    (&[0], &[2100, 70]),
                    (&[0, 1], &[40, 41]),
                    (&[0, 2], &[3, 5, 7]),
                    (&[1], &[3, 70, 40]),
                    (&[0, 1, 2], &[3, 4, 5]),
                    (&[1, 3], &[2, 3, 2, 1100]),
                    (&[1], &[0, 3]),
                    (&[0, 2, 4], &[2, 3, 4, 2, 3]),
                    (&[], &[4, 2]),
                ];
                let sample = |(axes, d): &(&[usize], &[usize])| Sample {
                    op: $op { axes: axes.to_vec() },
                    ins: vec![SampleIn::any(dims(d))],
                };
                cases.iter().map(sample).collect()
            }

            fn random(stream: &mut Stream) -> Option<Sample<$op>> {
                let dims = edge_dims(1, 4, stream);
                let axes = (0..dims.len()).filter(|_| stream.below(2) == 0).collect();
                Some(sample($op { axes }, &[&dims]))
            }

            fn rejects() -> Vec<Reject<$op>> {
                let f = |d: &[usize]| Meta::f32(dims(d));
                let op = |axes: &[usize]| $op { axes: axes.to_vec() };
                vec![
                    Reject { op: op(&[0]), ins: vec![], want: "Arity" },
                    Reject { op: op(&[0]), ins: vec![f(&[])], want: "Axis" },
                    Reject { op: op(&[2]), ins: vec![f(&[2, 3])], want: "Axis" },
                    Reject { op: op(&[1, 1]), ins: vec![f(&[2, 3])], want: "Axis" },
                    Reject { op: op(&[usize::MAX]), ins: vec![f(&[2, 3])], want: "Axis" },
                    Reject { op: op(&[0]), ins: vec![Meta::u32(dims(&[3]))], want: "DType" },
                ]
            }

            fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
                // A mean divides, which whole numbers do not survive.
                if $mean { Vec::new() } else { vec![vec![0]] }
            }

            fn bound(&self, ins: &[Meta]) -> Bound {
                let passes = passes(&ins[0].shape, &self.axes);
                Bound { ulps: 2.0, terms: 2.0 + passes.iter().map(|p| depth(p.rows)).sum::<f64>() }
            }

            fn attrs(&self) -> Vec<(&'static str, Attr)> {
                vec![("axes", Attr::List(self.axes.clone()))]
            }

            fn from_attrs(attrs: &Attrs) -> Result<$op> {
                attrs.only(&["axes"])?;
                $op::new(&attrs.list("axes")?)
            }
        }
    };
}

reduction! {
    /// Sum over a set of axes. A sum of no elements is +0.
    Sum "sum" mean: false
}

reduction! {
    /// Mean over a set of axes: the sum times the rounded `1 / count`. A mean of no elements is NaN.
    Mean "mean" mean: true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_axes_are_one_pass_and_the_last_group_comes_first() {
        let shape = dims(&[2, 3, 4, 5]);
        assert_eq!(passes(&shape, &[2, 3]), [Pass { outer: 6, rows: 20, inner: 1 }]);
        assert_eq!(passes(&shape, &[0, 1]), [Pass { outer: 1, rows: 6, inner: 20 }]);
        let two = [Pass { outer: 24, rows: 5, inner: 1 }, Pass { outer: 2, rows: 3, inner: 4 }];
        assert_eq!(passes(&shape, &[1, 3]), two);
        assert!(passes(&shape, &[]).is_empty());
    }
}
