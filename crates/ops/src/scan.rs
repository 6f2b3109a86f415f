//! Scans: cumulative sums, and the linear recurrence of state-space models.
//!
//! *Prefix rule* of the cumulative sum: chunks of 1024 elements, each of 32 blocks of 32. A chain runs inside
//! each block from its first element, and a chain over the last elements of the blocks runs inside each chunk;
//! their sum is the scan inside the chunk. A chain over the last elements of the chunks runs along the line, and
//! what it had before the chunk is added in front. The value at the end of a block or chunk is what the next one
//! starts from, so that an exclusive scan is the inclusive one moved on by one. A recurrence runs strictly in order.

use super::program::Scratch;
use super::sampling::{edge_dims, sample};
use super::{
    AnyTensor, Attr, Attrs, Bound, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Reject, Sample, SampleIn, Val,
    dims, floats, layout, mismatch,
};
use crate::elementwise::{Add, Mul};
use crate::random::Full;
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_device::cpu::threads::Pool;
use dittograd_device::cuda::{Args, Cuda, Source};
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::rng::Stream;
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use std::sync::Arc;

/// Elements of a block of the prefix rule.
const BLOCK: usize = 32;
/// Two levels of it: what one task or warp scans at a time.
const CHUNK: usize = BLOCK * BLOCK;
/// What a sum begins with so that nothing is changed: -0 + x is x, bit for bit.
const NOTHING: f32 = -0.0;

const SCAN_CU: &str = include_str!("scan.cu");

fn module() -> Source {
    super::module("scan".into(), || format!("#define BLOCK {BLOCK}\n{SCAN_CU}"))
}

/// Running sums along an axis: `y[i] = x[0] + … + x[i]` by the prefix rule. If `exclusive`, without `x[i]` and +0 at
/// the beginning; if `reverse`, from the end of the axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CumSum {
    /// The axis.
    pub axis: usize,
    /// Without the element itself.
    pub exclusive: bool,
    /// From the end.
    pub reverse: bool,
}

/// Lines of `n` elements, `inner` words apart.
#[derive(Clone, Copy)]
struct Lines {
    outer: usize,
    n: usize,
    inner: usize,
    exclusive: bool,
    reverse: bool,
}

/// The chunk of a line: rows of x and of the value as they lie in memory, and the sums before it, one for each
/// column; `None` at the beginning of the line.
struct Piece<'a> {
    x: &'a [f32],
    before: Option<&'a [f32]>,
}

impl Lines {
    fn chunks(&self) -> usize {
        self.n.div_ceil(CHUNK)
    }

    /// The rows of chunk `c` in memory.
    fn rows(&self, c: usize) -> std::ops::Range<usize> {
        let (from, to) = (c * CHUNK, self.n.min((c + 1) * CHUNK));
        if self.reverse { self.n - to..self.n - from } else { from..to }
    }

    /// Scans one chunk. Writes the value if there is room for it, and the sums at the chunk's end, not counting
    /// those before.
    fn chunk(&self, simd: Simd, piece: &Piece<'_>, out: Option<&mut [f32]>, totals: &mut [f32]) {
        let Lines { inner, exclusive, reverse, .. } = *self;
        let out = out.unwrap_or_default();
        if inner == 1 {
            let before = piece.before.map(|b| b[0]);
            totals[0] = chunk_line(simd, piece.x, before, exclusive, reverse, out);
        } else {
            chunk_columns(simd, piece.x, inner, piece.before, exclusive, reverse, out, totals);
        }
    }

    /// One line after the other, each by one thread.
    fn whole(&self, pool: &Pool, simd: Simd, x: &[f32], out: &mut [f32]) {
        let Lines { n, inner, .. } = *self;
        let words = n * inner;
        let per_task = pool.share(self.outer, (16 * 1024 / words).max(1), 1);
        pool.chunks_mut(out, per_task * words, |task, out| {
            let mut scratch = Scratch::take(2 * inner);
            let (totals, before) = scratch.words()[..2 * inner].split_at_mut(inner);
            for (i, out) in out.chunks_mut(words).enumerate() {
                let x = &x[(task * per_task + i) * words..][..words];
                before.fill(NOTHING);
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

    /// The chunks of one long line shared out between threads: their sums first, then the scan of these, then the
    /// values. `sums` holds `inner` words for each chunk.
    fn split(&self, pool: &Pool, simd: Simd, x: &[f32], out: &mut [f32], sums: &mut [f32]) {
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
            // The last chunk of the line, perhaps a short one, comes first in memory.
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

    fn cpu(&self, pool: &Pool, simd: Simd, x: &[f32], out: &mut [f32], sums: &mut [f32]) {
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

    /// Words of workspace: the sums of all chunks, of all lines on a GPU.
    fn workspace(&self, device: &Device) -> usize {
        if self.chunks() <= 1 {
            return 0;
        }
        self.chunks() * self.inner * if device.is_cuda() { self.outer } else { 1 }
    }

    fn cuda(&self, cuda: &Arc<Cuda>, x: u64, out: u64, workspace: u64) -> Result<()> {
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

    /// Queues the chunks: their sums, or their values given the scanned sums of all chunks.
    fn launch(&self, cuda: &Cuda, x: u64, out: u64, before: u64, sums: bool) -> Result<()> {
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
    /// Scans a chunk of neighbouring elements. Returns its sum; the value is written if there is room for it.
    fn chunk_line(simd, x: &[f32], before: Option<f32>, exclusive: bool, reverse: bool, out: &mut [f32]) -> f32 {
        let len = x.len().min(CHUNK);
        let mut v = [NOTHING; CHUNK];
        if reverse {
            v[..len].iter_mut().zip(x.iter().rev()).for_each(|(v, x)| *v = *x);
        } else {
            v[..len].copy_from_slice(&x[..len]);
        }
        // Chains of neighbouring blocks side by side, since each waits for its own last addition.
        const SIDE: usize = 8;
        for blocks in v.chunks_exact_mut(SIDE * BLOCK).take(len.div_ceil(SIDE * BLOCK)) {
            let mut sums = [NOTHING; SIDE];
            for i in 0..BLOCK {
                for (b, sum) in sums.iter_mut().enumerate() {
                    *sum += blocks[b * BLOCK + i];
                    blocks[b * BLOCK + i] = *sum;
                }
            }
        }
        let mut sum = NOTHING;
        for block in v[..len].chunks_mut(BLOCK) {
            block.iter_mut().for_each(|v| *v += sum);
            sum = block[block.len() - 1];
        }
        if out.is_empty() {
            return sum;
        }
        let first = before.unwrap_or(0.0);
        let base = before.unwrap_or(NOTHING);
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

/// Columns that [`chunk_columns`] scans side by side.
const SIDE: usize = 64;

simd_fn! {
    /// Scans a chunk of rows of `inner` columns. Writes the columns' sums, and the value if there is room for it.
    fn chunk_columns(
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
        for j in (0..inner).step_by(SIDE) {
            let width = SIDE.min(inner - j);
            let (mut base, mut first) = ([NOTHING; SIDE], [0.0; SIDE]);
            if let Some(before) = before {
                base[..width].copy_from_slice(&before[j..j + width]);
                first = base;
            }
            let (mut blocks, mut chain) = ([NOTHING; SIDE], [NOTHING; SIDE]);
            // What an exclusive scan has at the next row.
            let mut last = first;
            for i in 0..rows {
                if i % BLOCK == 0 && i > 0 {
                    blocks.iter_mut().zip(&mut chain).for_each(|(b, c)| *b += std::mem::replace(c, NOTHING));
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
    fn lines(&self, shape: &Shape) -> Lines {
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
        // Each element is in all sums from its own on.
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

    fn samples() -> Vec<Sample<CumSum>> {
        let cases: [(&[usize], usize); 15] = [
            (&[1], 0),
            (&[5], 0),
            (&[33], 0),
            (&[1023], 0),
            (&[1025], 0),
            (&[5000], 0),
            (&[3, 70], 1),
            (&[3, 2060], 1),
            (&[33, 5], 0),
            (&[100, 65], 0),
            (&[2, 1030, 3], 1),
            (&[2, 40, 33], 1),
            (&[0, 3], 1),
            (&[3, 0, 2], 1),
            (&[2, 3, 0], 1),
        ];
        let mut all = Vec::new();
        for (i, (d, axis)) in cases.into_iter().enumerate() {
            for (exclusive, reverse) in [(false, false), (i % 2 == 0, true), (true, i % 2 == 1)] {
                all.push(sample(CumSum { axis, exclusive, reverse }, &[d]));
            }
        }
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample<CumSum>> {
        let d = edge_dims(1, 3, stream);
        let axis = stream.below(d.len());
        let (exclusive, reverse) = (stream.below(2) == 1, stream.below(2) == 1);
        Some(sample(CumSum { axis, exclusive, reverse }, &[&d]))
    }

    fn rejects() -> Vec<Reject<CumSum>> {
        let op = |axis| CumSum { axis, exclusive: false, reverse: false };
        let f = |d: &[usize]| Meta::f32(dims(d));
        vec![
            Reject { op: op(0), ins: vec![], want: "Arity" },
            Reject { op: op(0), ins: vec![f(&[])], want: "Axis" },
            Reject { op: op(2), ins: vec![f(&[2, 3])], want: "Axis" },
            Reject { op: op(0), ins: vec![Meta::u32(dims(&[3]))], want: "DType" },
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0]]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        let n = self.lines(&ins[0].shape).n;
        Bound { ulps: 1.0, terms: (n.min(2 * BLOCK) + n.div_ceil(CHUNK) + 3) as f64 }
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

/// Sizes of a recurrence, and which coefficients vary with time.
#[derive(Clone, Copy, Debug)]
struct Recurrence {
    batch: usize,
    steps: usize,
    states: usize,
    a_varies: bool,
    b_varies: bool,
}

impl Recurrence {
    fn of(op: &'static str, ins: &[Meta; 4]) -> Result<Recurrence> {
        for i in 0..4 {
            super::typed(op, ins, i, dittograd_device::DType::F32)?;
        }
        let [a, b, x, h0] = ins.map(|m| m.shape);
        if x.rank() < 2 {
            return Err(Error::new(op, ErrorKind::Rank { want: "at least 2", got: x }));
        }
        let (lead, last) = x.dims().split_at(x.rank() - 2);
        let varies = |v: Shape| match v {
            v if v == x => Ok(true),
            v if v.dims() == [last[1]] => Ok(false),
            v => Err(mismatch(op, "a coefficient has one number a state, or the shape of", v, x)),
        };
        let (a_varies, b_varies) = (varies(a)?, varies(b)?);
        if h0.dims() != [lead, &last[1..]].concat() {
            return Err(mismatch(op, "the first state is the input without its time axis, not", h0, x));
        }
        let batch = lead.iter().product();
        Ok(Recurrence { batch, steps: last[0], states: last[1], a_varies, b_varies })
    }

    /// Words of one batch entry.
    fn words(&self) -> usize {
        self.steps * self.states
    }

    /// Row `t` of coefficient `v` for batch entry `b`.
    fn row<'a>(&self, v: &'a [f32], varies: bool, b: usize, t: usize) -> &'a [f32] {
        let at = if varies { b * self.words() + t * self.states } else { 0 };
        &v[at..at + self.states]
    }

    /// The parts of the packed gradient for an input of shape `x`: of a, b, x and h0. What does not vary with time
    /// has one entry for each of the batch.
    fn parts(&self, x: Shape, h0: Shape) -> [Shape; 4] {
        let coefficient = |varies: bool| if varies { x } else { h0 };
        [coefficient(self.a_varies), coefficient(self.b_varies), x, h0]
    }
}

simd_fn! {
    /// One step: `h = a h' + b x`, a fused multiply-add of a rounded product.
    fn step(simd, a: &[f32], b: &[f32], x: &[f32], before: &[f32], h: &mut [f32]) {
        for ((h, before), ((a, b), x)) in h.iter_mut().zip(before).zip(a.iter().zip(b).zip(x)) {
            *h = a.mul_add(*before, b * x);
        }
    }
}

simd_fn! {
    /// `to = a * b`.
    fn product(simd, a: &[f32], b: &[f32], to: &mut [f32]) {
        for (to, (a, b)) in to.iter_mut().zip(a.iter().zip(b)) {
            *to = a * b;
        }
    }
}

simd_fn! {
    /// `to = a * b + to` with one rounding.
    fn chain(simd, a: &[f32], b: &[f32], to: &mut [f32]) {
        for (to, (a, b)) in to.iter_mut().zip(a.iter().zip(b)) {
            *to = a.mul_add(*b, *to);
        }
    }
}

simd_fn! {
    /// `to = a * to + g` with one rounding.
    fn carry(simd, a: &[f32], g: &[f32], to: &mut [f32]) {
        for (to, (a, g)) in to.iter_mut().zip(a.iter().zip(g)) {
            *to = a.mul_add(*to, *g);
        }
    }
}

/// The diagonal linear recurrence of state-space models: `h[t] = a ∘ h[t-1] + b ∘ x[t]` with `h[-1] = h0`, for `x`
/// (…, T, S) and `h0` (…, S); the value is `h` (…, T, S). The coefficients `a` and `b` are each (S), or vary with
/// time and have the shape of `x`. Strictly in the order of t, as `fma(a, h[t-1], b x[t])`. No steps or no states
/// give an empty value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelectiveScan;

impl SelectiveScan {
    fn of(ins: &[Meta]) -> Result<Recurrence> {
        Recurrence::of(Self::NAME, &super::arity::<4>(Self::NAME, ins)?)
    }
}

/// Blocks of 128 threads, one for each of `items` unless there are very many.
fn blocks(items: usize) -> [u32; 3] {
    [items.div_ceil(128).clamp(1, 1 << 20) as u32, 1, 1]
}

impl Op for SelectiveScan {
    const NAME: &'static str = "selective_scan";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        SelectiveScan::of(ins)?;
        Ok(Meta::f32(ins[2].shape))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let Ok(s) = SelectiveScan::of(run.metas) else { return };
        if run.out.is_empty() {
            return;
        }
        let [a, b, x, h0] = [0, 1, 2, 3].map(|i| run.ins[i]);
        run.pool.chunks_mut(run.out, s.words(), |i, out| {
            let mut before = &h0[i * s.states..(i + 1) * s.states];
            for (t, h) in out.chunks_exact_mut(s.states).enumerate() {
                let (a, b) = (s.row(a, s.a_varies, i, t), s.row(b, s.b_varies, i, t));
                step(run.simd, a, b, s.row(x, true, i, t), before, h);
                before = h;
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let s = SelectiveScan::of(run.metas)?;
        if run.shape.numel() == 0 {
            return Ok(());
        }
        let (name, source) = module();
        let kernel = run.cuda.kernel(&name, source, "selective_scan")?;
        let mut args = Args::new();
        for &input in run.ins {
            args.ptr(input);
        }
        args.ptr(run.out).u64(s.batch as u64).u64(s.steps as u64).u64(s.states as u64);
        args.i32(i32::from(s.a_varies)).i32(i32::from(s.b_varies));
        run.cuda.launch(kernel, blocks(s.batch * s.states), 128, 0, &args)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![module()]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let metas = [0, 1, 2, 3].map(|i| r.meta(io.ins[i]));
        let s = SelectiveScan::of(&metas)?;
        let parts = s.parts(metas[2].shape, metas[3].shape);
        let ins = [io.ins, &[io.out, dy]].concat();
        let packed = r.record(SelectiveScanBwd.into(), &ins)?;
        let mut grads = Vec::new();
        for (i, meta) in metas.iter().enumerate() {
            let part = layout::part(r, packed, &parts, i)?;
            // A coefficient that all of the batch share.
            grads.push(Some(layout::sum_to(r, part, meta.shape)?));
        }
        Ok(grads)
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let s = SelectiveScan::of(&metas)?;
        let [a, b, x, h0] = [0, 1, 2, 3].map(|i| ins[i].num().map(|t| t.data()));
        let (a, b, x, h0) = (a?, b?, x?, h0?);
        let mut out = Vec::with_capacity(x.len());
        for at in 0..x.len() {
            let (i, t, j) = (at / s.states / s.steps, at / s.states % s.steps, at % s.states);
            let before = if t == 0 { h0[i * s.states + j] } else { out[at - s.states] };
            let (a, b) = (a[if s.a_varies { at } else { j }], b[if s.b_varies { at } else { j }]);
            out.push(a * before + b * x[at]);
        }
        Tensor::with_shape(ins[2].meta().shape, out)
    }

    fn samples() -> Vec<Sample<SelectiveScan>> {
        scan_cases().into_iter().map(|ins| Sample { op: SelectiveScan, ins }).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample<SelectiveScan>> {
        Some(Sample { op: SelectiveScan, ins: random_scan(stream) })
    }

    fn rejects() -> Vec<Reject<SelectiveScan>> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = SelectiveScan;
        vec![
            Reject { op, ins: vec![f(&[3]), f(&[3]), f(&[4, 3])], want: "Arity" },
            Reject { op, ins: vec![f(&[3]), f(&[3]), f(&[3]), f(&[3])], want: "Rank" },
            Reject { op, ins: vec![f(&[4]), f(&[3]), f(&[4, 3]), f(&[3])], want: "Shapes" },
            Reject { op, ins: vec![f(&[3]), f(&[2, 3]), f(&[4, 3]), f(&[3])], want: "Shapes" },
            Reject { op, ins: vec![f(&[3]), f(&[3]), f(&[2, 4, 3]), f(&[3])], want: "Shapes" },
            Reject { op, ins: vec![Meta::u32(dims(&[3])), f(&[3]), f(&[4, 3]), f(&[3])], want: "DType" },
        ]
    }

    fn linear(&self, ins: &[Meta]) -> Vec<Vec<usize>> {
        // Whole numbers stay exact for a few steps.
        match SelectiveScan::of(ins) {
            Ok(s) if s.steps <= 5 => vec![vec![2, 3], vec![1, 3]],
            _ => Vec::new(),
        }
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        SelectiveScan::of(ins).map_or(Bound::EXACT, |s| Bound { ulps: 1.0, terms: (2 * s.steps + 1) as f64 })
    }

    fn from_attrs(attrs: &Attrs) -> Result<SelectiveScan> {
        attrs.only(&[])?;
        Ok(SelectiveScan)
    }
}

/// Inputs of a recurrence with fixed and varying coefficients; those of the state stay below 1 (and the range is not
/// symmetric, so that nothing wider is drawn), since the state of a long one would overflow. With whole numbers up
/// to 8 it does so after 40 steps.
fn scan_inputs(x: &[usize], a_varies: bool, b_varies: bool) -> Vec<SampleIn> {
    let states = x[x.len() - 1];
    let h0 = [&x[..x.len() - 2], &[states]].concat();
    let coefficient = |varies: bool| if varies { dims(x) } else { dims(&[states]) };
    vec![
        SampleIn::Num(coefficient(a_varies), (-0.95, 0.9)),
        SampleIn::any(coefficient(b_varies)),
        SampleIn::any(dims(x)),
        SampleIn::any(dims(&h0)),
    ]
}

fn scan_cases() -> Vec<Vec<SampleIn>> {
    let sizes: [&[usize]; 10] = [
        &[1, 1],
        &[3, 2],
        &[5, 33],
        &[2, 9, 5],
        &[2, 2, 7, 3],
        &[3, 34, 20],
        &[0, 4, 3],
        &[2, 0, 3],
        &[2, 4, 0],
        &[9, 17, 130],
    ];
    let mut all = Vec::new();
    for (i, x) in sizes.into_iter().enumerate() {
        all.push(scan_inputs(x, false, false));
        all.push(scan_inputs(x, true, true));
        all.push(scan_inputs(x, i % 2 == 0, i % 2 == 1));
    }
    all
}

fn random_scan(stream: &mut Stream) -> Vec<SampleIn> {
    let mut d = edge_dims(2, 3, stream);
    if d[0] > 100_000 {
        // A long batch or a long time; the other axes are of one element.
        let at = stream.below(d.len());
        d.swap(0, at);
    }
    scan_inputs(&d, stream.below(2) == 1, stream.below(2) == 1)
}

/// The gradients of [`SelectiveScan`], packed: with inputs `a, b, x, h0`, the value `h` and its gradient `g`,
/// `τ[t] = fma(a[t+1], τ[t+1], g[t])` from the end, where it is `g`, and
/// `da[t] = τ[t] h[t-1]`, `db[t] = τ[t] x[t]`, `dx[t] = b[t] τ[t]`, `dh0 = a[0] τ[0]`. For a coefficient that does
/// not vary, `da` (…, S) is the fused multiply-add chain of its terms from the last step to the first, from +0.
/// With no steps all parts are zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelectiveScanBwd;

impl SelectiveScanBwd {
    fn of(ins: &[Meta]) -> Result<(Recurrence, [Shape; 4])> {
        let [a, b, x, h0, h, g] = super::arity::<6>(Self::NAME, ins)?;
        let s = Recurrence::of(Self::NAME, &[a, b, x, h0])?;
        for (i, m) in [(4, h), (5, g)] {
            super::typed(Self::NAME, ins, i, dittograd_device::DType::F32)?;
            if m.shape != x.shape {
                return Err(mismatch(Self::NAME, "value or gradient differ in shape from", m.shape, x.shape));
            }
        }
        Ok((s, s.parts(x.shape, h0.shape)))
    }
}

/// `x` moved on by one step along its last axis but one, behind `first`.
fn shifted(r: &mut dyn Recorder, x: Val, first: Val) -> Result<Val> {
    let shape = r.meta(x).shape;
    let axis = shape.rank() - 2;
    let size = shape.dims()[axis];
    let mut line = shape.dims().to_vec();
    line[axis] = 1;
    let first = layout::reshape_to(r, first, Shape::new(&line)?)?;
    let first = r.record(layout::Pad { axis, start: 0, step: 1, size, value: 0.0 }.into(), &[first])?;
    let rest = r.record(layout::Slice { axis, start: 0, len: size - 1, step: 1 }.into(), &[x])?;
    let rest = r.record(layout::Pad { axis, start: 1, step: 1, size, value: 0.0 }.into(), &[rest])?;
    r.record(Add {}.into(), &[first, rest])
}

impl Op for SelectiveScanBwd {
    const NAME: &'static str = "selective_scan_bwd";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let (_, parts) = SelectiveScanBwd::of(ins)?;
        Ok(Meta::f32(Shape::new(&[layout::packed(&parts).1])?))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let Ok((s, parts)) = SelectiveScanBwd::of(run.metas) else { return };
        let [a, b, x, h0, h, g] = [0, 1, 2, 3, 4, 5].map(|i| run.ins[i]);
        let mut rest = run.out;
        let slices = parts.map(|p| {
            let (part, others) = std::mem::take(&mut rest).split_at_mut(p.numel().next_multiple_of(4));
            rest = others;
            let (part, padding) = part.split_at_mut(p.numel());
            padding.fill(0.0);
            part
        });
        let words = |varies: bool| if varies { s.words() } else { s.states };
        let sizes = [words(s.a_varies), words(s.b_varies), s.words(), s.states];
        run.pool.pieces_mut(slices, sizes, s.batch, |i, [da, db, dx, dh0]| {
            let simd = run.simd;
            let mut scratch = Scratch::take(s.states);
            let tau = &mut scratch.words()[..s.states];
            if !s.a_varies {
                da.fill(0.0);
            }
            if !s.b_varies {
                db.fill(0.0);
            }
            for t in (0..s.steps).rev() {
                let line = t * s.states..(t + 1) * s.states;
                let (x, g) = (s.row(x, true, i, t), s.row(g, true, i, t));
                let before = match t {
                    0 => &h0[i * s.states..(i + 1) * s.states],
                    t => s.row(h, true, i, t - 1),
                };
                if t + 1 == s.steps {
                    tau.copy_from_slice(g);
                } else {
                    carry(simd, s.row(a, s.a_varies, i, t + 1), g, tau);
                }
                product(simd, s.row(b, s.b_varies, i, t), tau, &mut dx[line.clone()]);
                if s.a_varies {
                    product(simd, tau, before, &mut da[line.clone()]);
                } else {
                    chain(simd, tau, before, da);
                }
                if s.b_varies {
                    product(simd, tau, x, &mut db[line]);
                } else {
                    chain(simd, tau, x, db);
                }
            }
            if s.steps == 0 {
                dh0.fill(0.0);
            } else {
                product(simd, s.row(a, s.a_varies, i, 0), tau, dh0);
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let (s, parts) = SelectiveScanBwd::of(run.metas)?;
        if run.shape.numel() == 0 {
            return Ok(());
        }
        let (starts, words) = layout::packed(&parts);
        let (name, source) = module();
        let kernel = run.cuda.kernel(&name, source, "selective_scan_bwd")?;
        let mut args = Args::new();
        for &input in run.ins {
            args.ptr(input);
        }
        args.ptr(run.out).u64(s.batch as u64).u64(s.steps as u64).u64(s.states as u64);
        args.i32(i32::from(s.a_varies)).i32(i32::from(s.b_varies));
        for (start, part) in starts.iter().zip(&parts) {
            args.u64(*start as u64).u64((start + part.numel()) as u64);
        }
        args.u64(words as u64);
        run.cuda.launch(kernel, blocks(s.batch * s.states), 128, 0, &args)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![module()]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        // With the gradients ȧ, ḃ, ẋ, ḣ of the parts: w[t] = ȧ h[t-1] + ḃ x + b ẋ, and σ the recurrence of w with
        // coefficient a from ḣ; then dg = σ, da = τ σ[t-1], db = τ ẋ, dx = ḃ τ, dh[t-1] = ȧ τ.
        let [a, b, x, h0, h, g] = [0, 1, 2, 3, 4, 5].map(|i| io.ins[i]);
        let metas = [a, b, x, h0, h, g].map(|v| r.meta(v));
        let (s, parts) = SelectiveScanBwd::of(&metas)?;
        if s.steps == 0 {
            return Ok(vec![None; 6]);
        }
        let full = metas[2].shape;
        let axis = full.rank() - 2;
        let mul = |r: &mut dyn Recorder, a: Val, b: Val| r.record(Mul {}.into(), &[a, b]);
        let mut dots = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            let dot = layout::part(r, dy, &parts, i)?;
            // What does not vary with time is repeated along it.
            dots.push(if i < 2 && *part != full {
                let mut line = full.dims().to_vec();
                line[axis] = 1;
                let dot = layout::reshape_to(r, dot, Shape::new(&line)?)?;
                layout::broadcast_to(r, dot, full)?
            } else {
                dot
            });
        }
        let one = r.record(Full { shape: Shape::new(&[s.states])?, value: 1.0 }.into(), &[])?;
        let tau = r.record(SelectiveScanBwd.into(), &[a, one, x, h0, h, g])?;
        let tau_parts = Recurrence { b_varies: false, ..s }.parts(full, metas[3].shape);
        let tau = layout::part(r, tau, &tau_parts, 2)?;
        let before = shifted(r, h, h0)?;
        let b_full = layout::broadcast_to(r, b, full)?;
        let terms = [mul(r, dots[0], before)?, mul(r, dots[1], x)?, mul(r, b_full, dots[2])?];
        let w = r.record(Add {}.into(), &[terms[0], terms[1]])?;
        let w = r.record(Add {}.into(), &[w, terms[2]])?;
        let sigma = r.record(SelectiveScan.into(), &[a, one, w, dots[3]])?;
        let sigma_before = shifted(r, sigma, dots[3])?;
        let da = mul(r, tau, sigma_before)?;
        let da = layout::sum_to(r, da, metas[0].shape)?;
        let db = mul(r, tau, dots[2])?;
        let db = layout::sum_to(r, db, metas[1].shape)?;
        let dx = mul(r, dots[1], tau)?;
        let back = mul(r, dots[0], tau)?;
        let first = r.record(layout::Slice { axis, start: 0, len: 1, step: 1 }.into(), &[back])?;
        let dh0 = layout::reshape_to(r, first, metas[3].shape)?;
        let rest = layout::Slice { axis, start: 1, len: s.steps - 1, step: 1 };
        let rest = r.record(rest.into(), &[back])?;
        let dh =
            r.record(layout::Pad { axis, start: 0, step: 1, size: s.steps, value: 0.0 }.into(), &[rest])?;
        Ok(vec![Some(da), Some(db), Some(dx), Some(dh0), Some(dh), Some(sigma)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let (s, parts) = SelectiveScanBwd::of(&metas)?;
        let data = |i: usize| ins[i].num().map(|t| t.data());
        let (a, b, x, h0, h, g) = (data(0)?, data(1)?, data(2)?, data(3)?, data(4)?, data(5)?);
        let (starts, words) = layout::packed(&parts);
        let mut out = vec![T::c(0.0); words];
        for line in 0..s.batch * s.states {
            let (i, j) = (line / s.states, line % s.states);
            let at = |t: usize| (i * s.steps + t) * s.states + j;
            let pick = |v: &[T], varies: bool, t: usize| v[if varies { at(t) } else { j }];
            let mut tau = T::c(0.0);
            for t in (0..s.steps).rev() {
                tau = if t + 1 == s.steps { g[at(t)] } else { g[at(t)] + pick(a, s.a_varies, t + 1) * tau };
                let before = if t == 0 { h0[line] } else { h[at(t - 1)] };
                for (p, varies, v) in [(0, s.a_varies, before), (1, s.b_varies, x[at(t)])] {
                    let to = starts[p] + if varies { at(t) } else { line };
                    out[to] = out[to] + tau * v;
                }
                out[starts[2] + at(t)] = pick(b, s.b_varies, t) * tau;
                if t == 0 {
                    out[starts[3] + line] = pick(a, s.a_varies, 0) * tau;
                }
            }
        }
        Tensor::new(&[words], out)
    }

    fn samples() -> Vec<Sample<SelectiveScanBwd>> {
        scan_cases().into_iter().map(bwd_sample).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample<SelectiveScanBwd>> {
        Some(bwd_sample(random_scan(stream)))
    }

    fn rejects() -> Vec<Reject<SelectiveScanBwd>> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = SelectiveScanBwd;
        let with = |last: &[Meta]| [&[f(&[3]), f(&[3]), f(&[4, 3]), f(&[3])], last].concat();
        vec![
            Reject { op, ins: with(&[f(&[4, 3])]), want: "Arity" },
            Reject { op, ins: with(&[f(&[4, 3]), f(&[3, 3])]), want: "Shapes" },
            Reject { op, ins: with(&[f(&[3, 4]), f(&[4, 3])]), want: "Shapes" },
            Reject { op, ins: with(&[f(&[4, 3]), Meta::u32(dims(&[4, 3]))]), want: "DType" },
        ]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        SelectiveScanBwd::of(ins)
            .map_or(Bound::EXACT, |(s, _)| Bound { ulps: 1.0, terms: (2 * s.steps + 2) as f64 })
    }

    fn from_attrs(attrs: &Attrs) -> Result<SelectiveScanBwd> {
        attrs.only(&[])?;
        Ok(SelectiveScanBwd)
    }
}

fn bwd_sample(mut ins: Vec<SampleIn>) -> Sample<SelectiveScanBwd> {
    let x = ins[2].clone();
    ins.extend([x.clone(), x]);
    Sample { op: SelectiveScanBwd, ins }
}
