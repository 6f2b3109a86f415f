//! Cumulative sums.

use super::{BLOCK, CHUNK, module};
use crate::pointwise::expression::Scratch;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, floats};
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_device::cpu::threads::Pool;
use dittograd_device::cuda::{Args, Cuda, Source};
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use std::sync::Arc;

/// The neutral element of addition: -0 + x is x, bit for bit.
pub(super) const NEUTRAL: f32 = -0.0;

/// Cumulative sum along an axis: `y[i] = x[0] + … + x[i]` by the prefix rule. With `exclusive` it leaves out `x[i]` and
/// starts at +0. With `reverse` it runs from the end of the axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CumSum {
    /// The axis.
    pub axis: usize,
    /// Whether to leave out the element itself.
    pub exclusive: bool,
    /// Whether to sum from the end.
    pub reverse: bool,
}

/// Lines of `n` elements with stride `inner`.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    pub(super) outer: usize,
    pub(super) n: usize,
    pub(super) inner: usize,
    pub(super) exclusive: bool,
    pub(super) reverse: bool,
}

/// One chunk of a line: its rows of `x`, and the sums before it, one per column (`None` at the beginning of the line).
pub(super) struct Piece<'a> {
    pub(super) x: &'a [f32],
    pub(super) before: Option<&'a [f32]>,
}

impl Lines {
    pub(super) fn chunks(&self) -> usize {
        self.n.div_ceil(CHUNK)
    }

    /// The rows of chunk `c`, as they lie in memory.
    pub(super) fn rows(&self, c: usize) -> std::ops::Range<usize> {
        let (from, to) = (c * CHUNK, self.n.min((c + 1) * CHUNK));
        if self.reverse { self.n - to..self.n - from } else { from..to }
    }

    /// Scans one chunk. Writes the value if `out` is given, and the chunk's own sums to `totals`.
    pub(super) fn chunk(&self, simd: Simd, piece: &Piece<'_>, out: Option<&mut [f32]>, totals: &mut [f32]) {
        let Lines { inner, exclusive, reverse, .. } = *self;
        let out = out.unwrap_or_default();
        if inner == 1 {
            let before = piece.before.map(|b| b[0]);
            totals[0] = chunk_line(simd, piece.x, before, exclusive, reverse, out);
        } else {
            chunk_columns(simd, piece.x, inner, piece.before, exclusive, reverse, out, totals);
        }
    }

    /// Scans whole lines, each on one thread.
    pub(super) fn whole(&self, pool: &Pool, simd: Simd, x: &[f32], out: &mut [f32]) {
        let Lines { n, inner, .. } = *self;
        let words = n * inner;
        let per_task = pool.share(self.outer, (16 * 1024 / words).max(1), 1);
        pool.chunks_mut(out, per_task * words, |task, out| {
            let mut scratch = Scratch::take(2 * inner);
            let (totals, before) = scratch.words()[..2 * inner].split_at_mut(inner);
            for (i, out) in out.chunks_mut(words).enumerate() {
                let x = &x[(task * per_task + i) * words..][..words];
                before.fill(NEUTRAL);
                for c in 0..self.chunks() {
                    let rows = self.rows(c);
                    let range = rows.start * inner..rows.end * inner;
                    let piece = Piece { x: &x[range.clone()], before: (c > 0).then_some(&*before) };
                    self.chunk(simd, &piece, Some(&mut out[range]), totals);
                    before.iter_mut().zip(&*totals).for_each(|(b, t)| *b += t);
                }
            }
        });
    }

    /// Splits the chunks of one long line between threads: first the sums of the chunks, then the scan of these sums,
    /// then the values. `sums` has `inner` words per chunk.
    pub(super) fn split(&self, pool: &Pool, simd: Simd, x: &[f32], out: &mut [f32], sums: &mut [f32]) {
        let Lines { inner, .. } = *self;
        let range = |c: usize| {
            let rows = self.rows(c);
            rows.start * inner..rows.end * inner
        };
        let sums = &mut sums[..self.chunks() * inner];
        pool.chunks_mut(sums, inner, |c, sums| {
            self.chunk(simd, &Piece { x: &x[range(c)], before: None }, None, sums);
        });
        for at in inner..sums.len() {
            sums[at] += sums[at - inner];
        }
        let sums = &*sums;
        let value = |c: usize, out: &mut [f32]| {
            let before = c.checked_sub(1).map(|c| &sums[c * inner..(c + 1) * inner]);
            let mut totals = Scratch::take(inner);
            self.chunk(simd, &Piece { x: &x[range(c)], before }, Some(out), &mut totals.words()[..inner]);
        };
        let words = CHUNK * inner;
        if self.reverse {
            // Memory begins with the line's last chunk, which may be short.
            let (front, rest) = out.split_at_mut(out.len() % words);
            let whole = rest.len() / words;
            pool.chunks_mut(rest, words, |i, out| value(whole - 1 - i, out));
            if !front.is_empty() {
                value(whole, front);
            }
        } else {
            pool.chunks_mut(out, words, value);
        }
    }

    pub(super) fn cpu(&self, pool: &Pool, simd: Simd, x: &[f32], out: &mut [f32], sums: &mut [f32]) {
        if out.is_empty() {
            return;
        }
        if self.outer >= pool.threads() || self.chunks() == 1 {
            return self.whole(pool, simd, x, out);
        }
        let words = self.n * self.inner;
        for (x, out) in x.chunks(words).zip(out.chunks_mut(words)) {
            self.split(pool, simd, x, out, sums);
        }
    }

    /// Words of workspace for the sums of chunks: of one line on the CPU, of all lines on a GPU.
    pub(super) fn workspace(&self, device: &Device) -> usize {
        if self.chunks() <= 1 {
            return 0;
        }
        self.chunks() * self.inner * if device.is_cuda() { self.outer } else { 1 }
    }

    pub(super) fn cuda(&self, cuda: &Arc<Cuda>, x: u64, out: u64, workspace: u64) -> Result<()> {
        if self.outer * self.n * self.inner == 0 {
            return Ok(());
        }
        if self.chunks() == 1 {
            return self.launch(cuda, x, out, 0, false);
        }
        self.launch(cuda, x, workspace, 0, true)?;
        let (name, source) = module();
        let kernel = cuda.kernel(&name, source, "scan_sums")?;
        let mut args = Args::new();
        args.ptr(workspace).u64(self.outer as u64).u64(self.chunks() as u64).u64(self.inner as u64);
        let warps = self.outer * self.inner.div_ceil(32);
        cuda.launch(kernel, [warps.div_ceil(4).min(1 << 20) as u32, 1, 1], 128, 0, &args)?;
        self.launch(cuda, x, out, workspace, false)
    }

    /// Queues a pass over the chunks: either their sums, or the values given the scanned sums of all chunks.
    pub(super) fn launch(&self, cuda: &Cuda, x: u64, out: u64, before: u64, sums: bool) -> Result<()> {
        let (name, source) = module();
        let mut args = Args::new();
        args.ptr(x).ptr(before).ptr(out);
        for n in [self.outer, self.n, self.inner, self.chunks()] {
            args.u64(n as u64);
        }
        args.i32(i32::from(self.exclusive)).i32(i32::from(self.reverse)).i32(i32::from(sums));
        let most = cuda.sm_count() as usize * 16;
        if self.inner == 1 {
            let kernel = cuda.kernel(&name, source, "scan_lines")?;
            let blocks = (self.outer * self.chunks()).div_ceil(4).min(most);
            return cuda.launch(kernel, [blocks as u32, 1, 1], 128, 0, &args);
        }
        let kernel = cuda.kernel(&name, source, "scan_columns")?;
        let warps = self.n.div_ceil(BLOCK).min(BLOCK);
        let blocks = (self.outer * self.chunks() * self.inner.div_ceil(32)).min(most);
        cuda.launch(kernel, [blocks as u32, 1, 1], 32 * warps as u32, 0, &args)
    }
}

simd_fn! {
    /// Scans a chunk of contiguous elements and returns its sum. Writes the value if `out` is not empty.
    pub(super) fn chunk_line(simd, x: &[f32], before: Option<f32>, exclusive: bool, reverse: bool, out: &mut [f32]) -> f32 {
        let len = x.len().min(CHUNK);
        let mut v = [NEUTRAL; CHUNK];
        if reverse {
            v[..len].iter_mut().zip(x.iter().rev()).for_each(|(v, x)| *v = *x);
        } else {
            v[..len].copy_from_slice(&x[..len]);
        }
        // Neighbouring blocks are summed together, since each addition in a block waits for the one before it.
        const CHAINS: usize = 8;
        for blocks in v.chunks_exact_mut(CHAINS * BLOCK).take(len.div_ceil(CHAINS * BLOCK)) {
            let mut sums = [NEUTRAL; CHAINS];
            for i in 0..BLOCK {
                for (b, sum) in sums.iter_mut().enumerate() {
                    *sum += blocks[b * BLOCK + i];
                    blocks[b * BLOCK + i] = *sum;
                }
            }
        }
        let mut sum = NEUTRAL;
        for block in v[..len].chunks_mut(BLOCK) {
            block.iter_mut().for_each(|v| *v += sum);
            sum = block[block.len() - 1];
        }
        if out.is_empty() {
            return sum;
        }
        let first = before.unwrap_or(0.0);
        let base = before.unwrap_or(NEUTRAL);
        let at = |i: usize| if reverse { len - 1 - i } else { i };
        if exclusive {
            out[at(0)] = first;
            for i in 1..len {
                out[at(i)] = base + v[i - 1];
            }
        } else if reverse {
            out.iter_mut().rev().zip(&v[..len]).for_each(|(y, v)| *y = base + v);
        } else {
            out.iter_mut().zip(&v[..len]).for_each(|(y, v)| *y = base + v);
        }
        sum
    }
}

/// Columns that [`chunk_columns`] scans at once.
pub(super) const COLUMNS: usize = 64;

simd_fn! {
    /// Scans a chunk of rows of `inner` columns. Writes the columns' sums, and the value if `out` is not empty.
    pub(super) fn chunk_columns(
        simd,
        x: &[f32],
        inner: usize,
        before: Option<&[f32]>,
        exclusive: bool,
        reverse: bool,
        out: &mut [f32],
        totals: &mut [f32],
    ) {
        let rows = x.len() / inner;
        for j in (0..inner).step_by(COLUMNS) {
            let width = COLUMNS.min(inner - j);
            let (mut base, mut first) = ([NEUTRAL; COLUMNS], [0.0; COLUMNS]);
            if let Some(before) = before {
                base[..width].copy_from_slice(&before[j..j + width]);
                first = base;
            }
            let (mut blocks, mut chain) = ([NEUTRAL; COLUMNS], [NEUTRAL; COLUMNS]);
            // The value of an exclusive scan at the next row.
            let mut last = first;
            for i in 0..rows {
                if i % BLOCK == 0 && i > 0 {
                    blocks.iter_mut().zip(&mut chain).for_each(|(b, c)| *b += std::mem::replace(c, NEUTRAL));
                }
                let row = if reverse { rows - 1 - i } else { i } * inner + j;
                let x = &x[row..row + width];
                chain.iter_mut().zip(x).for_each(|(c, x)| *c += x);
                if let Some(out) = out.get_mut(row..row + width) {
                    if exclusive {
                        out.copy_from_slice(&last[..width]);
                    }
                    let sums = base.iter().zip(blocks.iter().zip(&chain));
                    last.iter_mut().zip(sums).for_each(|(y, (base, (b, c)))| *y = base + (b + c));
                    if !exclusive {
                        out.copy_from_slice(&last[..width]);
                    }
                }
            }
            let sums = blocks.iter().zip(&chain).map(|(b, c)| b + c);
            totals[j..j + width].iter_mut().zip(sums).for_each(|(total, sum)| *total = sum);
        }
    }
}

impl CumSum {
    pub(super) fn lines(&self, shape: &Shape) -> Lines {
        let d = shape.dims();
        Lines {
            outer: d[..self.axis].iter().product(),
            n: d[self.axis],
            inner: d[self.axis + 1..].iter().product(),
            exclusive: self.exclusive,
            reverse: self.reverse,
        }
    }
}

impl Op for CumSum {
    const NAME: &'static str = "cumsum";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x] = floats(Self::NAME, ins)?;
        if self.axis >= x.rank() {
            return Err(Error::new(Self::NAME, ErrorKind::Axis { axis: self.axis, shape: x }));
        }
        Ok(Meta::f32(x))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        self.lines(&ins[0].shape).workspace(device)
    }

    fn cpu(&self, run: CpuRun<'_>) {
        self.lines(&run.shape).cpu(run.pool, run.simd, run.ins[0], run.out, run.workspace);
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        self.lines(&run.shape).cuda(run.cuda, run.ins[0], run.out, run.workspace)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![module()]
    }

    fn vjp(&self, r: &mut dyn Recorder, _io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        // An element is part of its own sum and of all later ones.
        Ok(vec![Some(r.record(CumSum { reverse: !self.reverse, ..*self }.into(), &[dy])?)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let x = ins[0].num()?;
        let Lines { n, inner, .. } = self.lines(&x.shape());
        let mut y = vec![T::c(0.0); x.data().len()];
        for line in 0..x.data().len() / n.max(1) {
            let mut sum = T::c(0.0);
            for i in 0..n {
                let i = if self.reverse { n - 1 - i } else { i };
                let at = (line / inner * n + i) * inner + line % inner;
                if self.exclusive {
                    y[at] = sum;
                }
                sum = sum + x.data()[at];
                if !self.exclusive {
                    y[at] = sum;
                }
            }
        }
        Tensor::with_shape(x.shape(), y)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![
            ("axis", Attr::Num(self.axis as f64)),
            ("exclusive", Attr::Bool(self.exclusive)),
            ("reverse", Attr::Bool(self.reverse)),
        ]
    }

    fn from_attrs(attrs: &Attrs) -> Result<CumSum> {
        attrs.only(&["axis", "exclusive", "reverse"])?;
        Ok(CumSum {
            axis: attrs.whole("axis")?,
            exclusive: attrs.flag("exclusive")?,
            reverse: attrs.flag("reverse")?,
        })
    }
}
