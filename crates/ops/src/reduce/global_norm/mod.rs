//! The norm of many values at once, as clipping gradients needs it: two launches for 250 of them, where a norm of each
//! would take hundreds.

#[cfg(feature = "cases")]
mod cases;

use crate::pointwise::expression::Pointwise;
use crate::pointwise::record_pointwise;
use crate::reduce::{row_sum, slope_by_root};
use crate::{AnyTensor, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, typed};
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{DType, Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::sum;
use dittograd_numerics::sum::CHUNK;
use dittograd_numerics::tensor::Tensor;

/// The L2 norm of all elements of any number of values, as the norm of their norms: `sqrt(Σ n^2)` with `n = sqrt(Σ x^2)` of
/// each. The slope is zero where the norm is zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GlobalNorm;

/// Values one launch takes: their addresses travel as kernel arguments.
const ENTRIES: usize = 250;

/// Chunks one task of the thread pool takes.
const PER_TASK: usize = 32;

simd_fn! {
    /// Sum of the squares of at most one chunk of the row rule.
    fn chunk_squares(simd, x: &[f32]) -> f32 {
        sum::chunk([x], |[x]| x * x)
    }
}

/// The square of the norm of a value of so many elements, from the sums of squares of its chunks.
#[doc(hidden)]
pub fn squared_norm(len: usize, chunk: impl Fn(usize) -> f32) -> f32 {
    let sum = if len == 0 { 0.0 } else { sum::row(len, |r| chunk(r.start / CHUNK)) };
    let norm = sum.sqrt();
    norm * norm
}

/// The norm of all values together, from the squares of their norms.
#[doc(hidden)]
pub fn norm_of_squares(simd: Simd, squares: &[f32]) -> f32 {
    row_sum(simd, squares).sqrt()
}

/// Where the chunks of each value begin, and behind the last one how many there are.
fn firsts(ins: &[Meta]) -> Vec<usize> {
    let mut firsts = vec![0];
    let mut end = 0;
    for m in ins {
        end += m.shape.numel().div_ceil(CHUNK);
        firsts.push(end);
    }
    firsts
}

fn source() -> Source {
    crate::module("global_norm".into(), || {
        format!("#define ENTRIES {ENTRIES}\n#define CHUNK {CHUNK}u\n{}", include_str!("global_norm.cu"))
    })
}

impl Op for GlobalNorm {
    const NAME: &'static str = "global_norm";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        if ins.is_empty() {
            return Err(Error::new(Self::NAME, ErrorKind::Arity { want: 1, got: 0 }));
        }
        (0..ins.len()).try_for_each(|i| typed(Self::NAME, ins, i, DType::F32))?;
        Ok(Meta::f32(Shape::SCALAR))
    }

    /// Squares of norms, sums of chunks, and up to two numbers for each value that say where its chunks are.
    fn workspace(&self, ins: &[Meta], _device: &Device) -> usize {
        ins.iter().map(|m| m.shape.numel().div_ceil(CHUNK) + 3).sum()
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let (simd, ins) = (run.simd, run.ins);
        let (squares, rest) = run.workspace.split_at_mut(ins.len());
        let (begins, sums) = rest.split_at_mut(ins.len());
        let begins: &mut [u32] = bytemuck::cast_slice_mut(begins);
        let mut end = 0;
        for (first, x) in begins.iter_mut().zip(ins) {
            *first = end as u32;
            end += x.len().div_ceil(CHUNK);
        }
        let (begins, sums) = (&*begins, &mut sums[..end]);
        run.pool.chunks_mut(sums, PER_TASK, |task, out| {
            for (i, s) in out.iter_mut().enumerate() {
                let chunk = task * PER_TASK + i;
                let at = begins.partition_point(|&first| first as usize <= chunk) - 1;
                let (x, start) = (ins[at], (chunk - begins[at] as usize) * CHUNK);
                *s = chunk_squares(simd, &x[start..x.len().min(start + CHUNK)]);
            }
        });
        for (i, (square, x)) in squares.iter_mut().zip(ins).enumerate() {
            *square = squared_norm(x.len(), |chunk| sums[begins[i] as usize + chunk]);
        }
        run.out[0] = norm_of_squares(simd, squares);
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let (module, source) = source();
        let n = run.ins.len();
        let (squares, index, sums) =
            (run.workspace, run.workspace + 4 * n as u64, run.workspace + 12 * n as u64);
        let chunks = run.cuda.kernel(&module, source, "square_chunks")?;
        let firsts = firsts(run.metas);
        for (some, metas) in run.metas.chunks(ENTRIES).enumerate() {
            let from = some * ENTRIES;
            let base = firsts[from];
            let mut addresses = [0u64; ENTRIES];
            // One word more than the firsts and lasts, as the struct's alignment asks for.
            let mut words = [0u32; 2 * ENTRIES + 2];
            for (i, m) in metas.iter().enumerate() {
                addresses[i] = run.ins[from + i];
                words[i + 1] = (firsts[from + i + 1] - base) as u32;
                words[ENTRIES + 1 + i] = (m.shape.numel().max(1) - 1) as u32 % CHUNK as u32 + 1;
            }
            let mut bytes = [0u8; ENTRIES * 16 + 8];
            let (first, rest) = bytes.split_at_mut(ENTRIES * 8);
            first.copy_from_slice(bytemuck::cast_slice(&addresses));
            rest.copy_from_slice(bytemuck::cast_slice(&words));
            let mut args = Args::new();
            args.bytes(&bytes, 8)
                .ptr(sums)
                .ptr(index + 8 * from as u64)
                .u32(metas.len() as u32)
                .u32(base as u32);
            // A block at least, which writes the index.
            let blocks = (firsts[from + metas.len()] - base).div_ceil(8).max(1);
            let grid = blocks.min(run.cuda.sm_count() as usize * 16) as u32;
            run.cuda.launch(chunks, [grid, 1, 1], 256, 0, &args)?;
        }
        let large = firsts.windows(2).any(|f| f[1] - f[0] > CHUNK);
        let last = run.cuda.kernel(&module, source, "norm_of_norms")?;
        let mut args = Args::new();
        args.ptr(sums).ptr(index).ptr(squares).ptr(run.out).u32(n as u32).u32(u32::from(large));
        run.cuda.launch(last, [1, 1, 1], 1024, 0, &args)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![source()]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let rule = Pointwise::trace(3, |v| vec![v[0] * slope_by_root(v[2], v[1])]);
        let one = |&x: &Val| {
            let shape = r.meta(x).shape;
            record_pointwise(r, &rule, shape, &[x, io.out, dy]).map(Some)
        };
        io.ins.iter().map(one).collect()
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let norm = |x: &[T]| x.iter().fold(T::c(0.0), |s, &x| s + x * x).sqrt();
        let norms = ins.iter().map(|x| Ok(norm(x.num()?.data()))).collect::<Result<Vec<T>>>()?;
        Ok(Tensor::scalar(norm(&norms)))
    }

    fn from_attrs(attrs: &Attrs) -> Result<GlobalNorm> {
        attrs.only(&[])?;
        Ok(GlobalNorm)
    }
}
