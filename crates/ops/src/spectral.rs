//! Spectral convolution by truncated discrete Fourier transforms. A transform that keeps few modes is a product
//! with a table of cosines and sines, so it runs on any grid size in the order of the contract (C4).
//!
//! A spectrum is a value (…, 2, modes, width): the real parts of all modes, then the imaginary parts. The two
//! tables of a grid are the transform `A` and its weighted form `A'`; `A x` is the spectrum, `A'^T Z` the way
//! back, and the adjoints are the same products with the other flag.

use super::fused::{Around, Follow};
use super::matmul::planned;
use super::matmul_plan::Problem;
use super::program::Scratch;
use super::sampling::{VOLUME, WORK, pick, sample};
use super::{
    AnyTensor, Attr, Attrs, Bound, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Reject, Sample, Val, dims, floats,
    layout, mismatch,
};
use crate::map::grid;
use crate::matmul::Bmm;
use crate::reduce::Sum;
use dittograd_device::cpu::gemm::Gemm;
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_device::cpu::threads::Pool;
use dittograd_device::cuda::{Args, Cuda, Source};
use dittograd_device::{Device, Meta};
use dittograd_numerics::K_CHUNK;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::functions::{self, cos_turn, cos_turn_over, sin_turn, sin_turn_over};
use dittograd_numerics::rng::Stream;
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::{MAX_RANK, Shape};
use dittograd_numerics::tensor::Tensor;

/// Longest axis a table can be made for: positions up to here are exact in float32.
pub(crate) const MAX_GRID: usize = 1 << 24;

/// Roundings of a dot product of `k` terms by C4.
pub(crate) fn chain(k: usize) -> f64 {
    (k.min(K_CHUNK) + k / K_CHUNK + 1) as f64
}

/// Which table of cosines and sines: rows are real and imaginary parts of modes, columns are grid points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Table {
    /// Grid points.
    pub n: usize,
    /// Modes `0, 1, …` that are kept.
    pub low: usize,
    /// Modes `…, n - 1` that are kept.
    pub high: usize,
    /// Whether grid points have two columns, real and imaginary part, or are real.
    pub complex: bool,
    /// Whether the two rows of a mode are neighbours, or all real parts come first.
    pub interleaved: bool,
}

impl Table {
    pub(crate) fn real(n: usize, modes: usize) -> Table {
        Table { n, low: modes, high: 0, complex: false, interleaved: false }
    }

    pub(crate) fn rows(&self) -> usize {
        2 * (self.low + self.high)
    }

    pub(crate) fn columns(&self) -> usize {
        if self.complex { 2 * self.n } else { self.n }
    }

    /// Words of one table.
    pub(crate) fn len(&self) -> usize {
        self.rows() * self.columns()
    }

    /// The mode of a row, and whether it is the row of the imaginary part.
    fn mode(&self, row: usize) -> (usize, bool) {
        let count = self.low + self.high;
        let (i, part) = if self.interleaved { (row / 2, row % 2) } else { (row % count, row / count) };
        (if i < self.low { i } else { self.n - self.high + (i - self.low) }, part == 1)
    }

    /// What mode `k` counts on the way back to a real grid: twice, for its mirror image, but for the constant
    /// and the highest mode of an even grid, which are their own.
    pub(crate) fn weight(&self, k: usize) -> f64 {
        if self.complex || k == 0 || 2 * k == self.n { 1.0 } else { 2.0 }
    }

    /// Words of scratch that [`Table::cpu`] needs.
    pub(crate) fn scratch(&self) -> usize {
        4 * self.n
    }

    /// Fills `out` with the plain tables from `first` on: 0 is the plain one, 1 the weighted one.
    pub(crate) fn cpu(&self, pool: &Pool, simd: Simd, first: usize, out: &mut [f32], scratch: &mut [f32]) {
        let columns = self.columns();
        if out.is_empty() {
            return;
        }
        // Only n different angles occur: each is formed once and looked up.
        let (turns, _) = scratch.split_at_mut(4 * self.n);
        pool.chunks_mut(turns, self.n, |which, to| turns_of(simd, which, self.n, to));
        let turns: Vec<&[f32]> = turns.chunks(self.n).collect();
        pool.chunks_mut(out, columns, |line, to| {
            let (part, row) = (line / self.rows() + first, line % self.rows());
            let (k, imaginary) = self.mode(row);
            let [cos, sin] = [turns[2 * part], turns[2 * part + 1]];
            let weight = if part == 1 { self.weight(k) as f32 } else { 1.0 };
            let mut j = 0;
            let mut next = || {
                let at = j;
                j += k;
                if j >= self.n {
                    j -= self.n;
                }
                at
            };
            match (self.complex, imaginary) {
                (false, false) => to.iter_mut().for_each(|y| *y = weight * cos[next()]),
                (false, true) => to.iter_mut().for_each(|y| *y = weight * (0.0 - sin[next()])),
                (true, imaginary) => {
                    for pair in to.chunks_exact_mut(2) {
                        let j = next();
                        let (c, s) = (cos[j], sin[j]);
                        (pair[0], pair[1]) = if imaginary { (0.0 - s, c) } else { (c, s) };
                    }
                }
            }
        });
    }

    /// Queues the filling of `parts` tables from `first` on, `pitch` words from one to the next.
    pub(crate) fn cuda(&self, cuda: &Cuda, first: usize, parts: usize, out: u64, pitch: usize) -> Result<()> {
        let total = parts * self.len();
        if total == 0 {
            return Ok(());
        }
        let (name, source) = table_module();
        let kernel = cuda.kernel(&name, source, "dft_table")?;
        let mut args = Args::new();
        args.ptr(out).u64(total as u64);
        for n in [pitch, self.n, self.low, self.low + self.high, self.n - self.high] {
            args.u64(n as u64);
        }
        args.i32(i32::from(self.complex)).i32(i32::from(self.interleaved)).i32(first as i32);
        cuda.launch(kernel, grid(cuda, total), 256, 0, &args)
    }

    /// The element of the weighted or plain table at a row and column, in f64.
    fn value(&self, weighted: bool, row: usize, column: usize) -> f64 {
        let (k, imaginary) = self.mode(row);
        let (t, second) = if self.complex { (column / 2, column % 2 == 1) } else { (column, false) };
        let (cos, sin) = angle(k, t, self.n);
        let v = match (imaginary, second) {
            (false, true) => sin,
            (true, false) => -sin,
            _ => cos,
        };
        if weighted { v * self.weight(k) / self.n as f64 } else { v }
    }
}

/// Cosine and sine of `2π k t / n` in f64, for references; exact at quarter turns, where the angle is not.
pub(crate) fn angle(k: usize, t: usize, n: usize) -> (f64, f64) {
    let j = (k as u128 * t as u128 % n as u128) as usize;
    if (4 * j).is_multiple_of(n) {
        return [(1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0)][4 * j / n];
    }
    let theta = std::f64::consts::TAU * (j as f64 / n as f64);
    (libm::cos(theta), libm::sin(theta))
}

/// [`angle`] of all parts of a turn: the entry of `k t` is at `k t mod n`.
pub(crate) fn angles(n: usize) -> Vec<(f64, f64)> {
    (0..n).map(|j| angle(1, j, n)).collect()
}

simd_fn! {
    /// Cosines (0), sines (1), and both over n (2, 3), of all parts of a turn.
    fn turns_of(simd, which: usize, n: usize, to: &mut [f32]) {
        let n = n as f32;
        match which {
            0 => to.iter_mut().enumerate().for_each(|(j, y)| *y = cos_turn(j as f32, n)),
            1 => to.iter_mut().enumerate().for_each(|(j, y)| *y = sin_turn(j as f32, n)),
            2 => to.iter_mut().enumerate().for_each(|(j, y)| *y = cos_turn_over(j as f32, n)),
            _ => to.iter_mut().enumerate().for_each(|(j, y)| *y = sin_turn_over(j as f32, n)),
        }
    }
}

const SPECTRAL_CU: &str = include_str!("spectral.cu");

/// The module with the kernel of the tables; apart from the others, since its text is long.
pub(crate) fn table_module() -> Source {
    super::module("dft_table".into(), || {
        format!("{}#define DITTO_TABLE 1\n{SPECTRAL_CU}", functions::cuda_turn_text())
    })
}

/// The module of the products over modes, with so many batch rows to a thread.
fn mix_module(rows: usize) -> Source {
    super::module(format!("mode_mix_{rows}"), || {
        format!("#define DITTO_TABLE 0\n#define CHUNK {K_CHUNK}\n#define ROWS {rows}\n{SPECTRAL_CU}")
    })
}

/// Tables of the discrete Fourier transform of `n` points at the modes `0 … low - 1` and `n - high … n - 1`:
/// a value (2, 2 modes, columns). The first table has `cos θ` in the rows of real parts and `-sin θ` in those of
/// imaginary parts, `θ = 2π k t / n`; all rows of real parts come first. The second is the same times `s_k / n`,
/// `s_k` 1 for mode 0 and for the highest mode of an even `n`, else 2. A complex transform has two
/// columns for each point, with `(cos, sin)` in rows of real parts and `(-sin, cos)` in the others, and `s_k = 1`.
/// Formed in f64 with `k t` reduced modulo `n` in whole numbers, and rounded once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DftTable {
    /// Points, at most 2^24.
    pub n: usize,
    /// Modes from 0 up; for a real transform at most `n / 2 + 1`.
    pub low: usize,
    /// Modes from `n - 1` down; none for a real transform.
    pub high: usize,
    /// Whether points are complex.
    pub complex: bool,
}

impl DftTable {
    fn table(&self) -> Table {
        Table { n: self.n, low: self.low, high: self.high, complex: self.complex, interleaved: false }
    }
}

impl Op for DftTable {
    const NAME: &'static str = "dft_table";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        super::arity::<0>(Self::NAME, ins)?;
        if self.n == 0 || self.n > MAX_GRID {
            let why = format!("{} points, use 1 to {MAX_GRID}", self.n);
            return Err(Error::argument(Self::NAME, "n", why));
        }
        let most = if self.complex { self.n } else { self.n / 2 + 1 };
        if self.low.checked_add(self.high).is_none_or(|m| m > most) || (!self.complex && self.high > 0) {
            let why = format!(
                "{} from below and {} from above of {} points; at most {most}{}",
                self.low,
                self.high,
                self.n,
                if self.complex { "" } else { ", all from below" }
            );
            return Err(Error::argument(Self::NAME, "modes", why));
        }
        let t = self.table();
        Ok(Meta::f32(Shape::new(&[2, t.rows(), t.columns()])?))
    }

    fn workspace(&self, _ins: &[Meta], device: &Device) -> usize {
        if device.is_cuda() { 0 } else { self.table().scratch() }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        self.table().cpu(run.pool, run.simd, 0, run.out, run.workspace);
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        self.table().cuda(run.cuda, 0, 2, run.out, self.table().len())
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![table_module()]
    }

    fn vjp(&self, _r: &mut dyn Recorder, _io: Io<'_>, _dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(Vec::new())
    }

    fn reference<T: Scalar>(&self, _ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let t = self.table();
        let shape = self.shape(&[])?.shape;
        Ok(Tensor::from_fn(shape, |at| {
            let (line, column) = (at / t.columns(), at % t.columns());
            T::c(t.value(line >= t.rows(), line % t.rows(), column))
        }))
    }

    fn samples() -> Vec<Sample<DftTable>> {
        let real = [(1, 1), (1, 0), (2, 2), (4, 3), (5, 2), (7, 4), (64, 33), (1000, 5)];
        let complex = [(1, 1, 0), (4, 2, 2), (5, 2, 1), (6, 0, 3), (33, 7, 8)];
        let real = real.into_iter().map(|(n, low)| DftTable { n, low, high: 0, complex: false });
        let complex = complex.into_iter().map(|(n, low, high)| DftTable { n, low, high, complex: true });
        real.chain(complex).map(|op| Sample { op, ins: vec![] }).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample<DftTable>> {
        let n = 1 + stream.below(300);
        let complex = stream.below(2) == 1;
        let low = stream.below(if complex { n / 2 } else { n / 2 + 1 } + 1);
        let high = if complex { stream.below(n - low + 1) } else { 0 };
        Some(Sample { op: DftTable { n, low, high, complex }, ins: vec![] })
    }

    fn rejects() -> Vec<Reject<DftTable>> {
        let op = |n, low, high, complex| DftTable { n, low, high, complex };
        let reject = |op, want| Reject { op, ins: vec![], want };
        vec![
            Reject { op: op(4, 2, 0, false), ins: vec![Meta::f32(dims(&[2]))], want: "Arity" },
            reject(op(0, 0, 0, false), "Argument"),
            reject(op(MAX_GRID + 1, 1, 0, false), "Argument"),
            reject(op(4, 4, 0, false), "Argument"),
            reject(op(4, 1, 1, false), "Argument"),
            reject(op(4, 3, 2, true), "Argument"),
            reject(op(4, usize::MAX, 2, true), "Argument"),
        ]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        // Half an ulp, and a unit of f64 more.
        Bound { ulps: 0.51, terms: 0.0 }
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let num = |n: usize| Attr::Num(n as f64);
        vec![
            ("n", num(self.n)),
            ("low", num(self.low)),
            ("high", num(self.high)),
            ("complex", Attr::Bool(self.complex)),
        ]
    }

    fn from_attrs(attrs: &Attrs) -> Result<DftTable> {
        attrs.only(&["n", "low", "high", "complex"])?;
        Ok(DftTable {
            n: attrs.whole("n")?,
            low: attrs.whole("low")?,
            high: attrs.whole("high")?,
            complex: attrs.flag("complex")?,
        })
    }
}

/// One matrix applied along an axis of many: `y[b] = op(A) x[b]`, x (batch, k, w), y (batch, m, w).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Along {
    pub batch: usize,
    pub m: usize,
    pub k: usize,
    pub w: usize,
    /// A is stored (k, m).
    pub ta: bool,
}

impl Along {
    /// The product on a GPU. Single columns are rows of one larger product.
    fn problem(&self) -> Problem {
        let Along { batch, m, k, w, ta } = *self;
        if w == 1 {
            return Problem {
                batch: 1,
                m: batch,
                n: m,
                k,
                ta: false,
                tb: !ta,
                aligned: true,
                has_bias: false,
                tensor: false,
            };
        }
        let aligned = batch <= 1 || [k * w, m * w].iter().all(|x| x.is_multiple_of(4));
        Problem { batch, m, n: w, k, ta, tb: false, aligned, has_bias: false, tensor: false }
    }

    fn is_empty(&self) -> bool {
        self.batch * self.m * self.w == 0
    }

    /// Words of workspace on a GPU.
    pub(crate) fn workspace(&self, gpu: &Gpu) -> usize {
        if self.is_empty() { 0 } else { planned(&self.problem(), gpu).plan.workspace }
    }

    pub(crate) fn cpu(&self, pool: &Pool, simd: Simd, a: &[f32], x: &[f32], out: &mut [f32]) {
        let Along { batch, m, k, w, ta } = *self;
        if out.is_empty() {
            return;
        }
        if w == 1 {
            let g = Gemm { batch: 1, m: batch, n: m, k, ta: false, tb: !ta };
            let mut scratch = Scratch::take(g.scratch_len(pool.threads()));
            return g.run(pool, simd, x, a, None, out, scratch.words());
        }
        let g = Gemm { batch: 1, m, n: w, k, ta, tb: false };
        if batch < pool.threads() {
            let mut scratch = Scratch::take(g.scratch_len(pool.threads()));
            for (b, out) in out.chunks_mut(m * w).enumerate() {
                g.run(pool, simd, a, &x[b * k * w..(b + 1) * k * w], None, out, scratch.words());
            }
            return;
        }
        // Enough products to give each thread whole ones.
        let one = Pool::alone();
        pool.chunks_mut(out, m * w, |b, out| {
            let mut scratch = Scratch::take(g.scratch_len(1));
            g.run(one, simd, a, &x[b * k * w..(b + 1) * k * w], None, out, scratch.words());
        });
    }

    /// Queues the product of `a` and `x`, as part of a run.
    pub(crate) fn cuda(&self, run: &CudaRun<'_>, a: u64, x: u64, out: u64, workspace: u64) -> Result<()> {
        let p = self.problem();
        let operands = if self.w == 1 { [x, a] } else { [a, x] };
        // The matrix is the same in all products of the batch: a stride of 0.
        p.launch(operands, [0, p.k * p.n], &CudaRun { out, workspace, ..*run })
    }

    pub(crate) fn modules(&self, gpu: &Gpu, follow: Option<&Follow>) -> Vec<Source> {
        self.problem().modules(gpu, follow)
    }
}

/// A matrix applied along the last axis but one: `y[…, i, j] = Σ_l A[i, l] x[…, l, j]`, with `A` (m, k) or, if
/// `ta`, stored (k, m). Each element is a dot product by C4.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AxisMatMul {
    /// The matrix is stored transposed.
    pub ta: bool,
}

impl AxisMatMul {
    fn of(&self, ins: &[Meta]) -> Result<Along> {
        let [a, x] = floats(Self::NAME, ins)?;
        if a.rank() != 2 {
            return Err(Error::new(Self::NAME, ErrorKind::Rank { want: "exactly 2", got: a }));
        }
        if x.rank() < 2 {
            return Err(Error::new(Self::NAME, ErrorKind::Rank { want: "at least 2", got: x }));
        }
        let (m, k) = if self.ta { (a.dims()[1], a.dims()[0]) } else { (a.dims()[0], a.dims()[1]) };
        let (lead, last) = x.dims().split_at(x.rank() - 2);
        if last[0] != k {
            return Err(mismatch(Self::NAME, "the matrix does not fit the last axis but one of", a, x));
        }
        Ok(Along { batch: lead.iter().product(), m, k, w: last[1], ta: self.ta })
    }
}

impl Op for AxisMatMul {
    const NAME: &'static str = "axis_matmul";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let along = self.of(ins)?;
        let x = ins[1].shape;
        // On the stack: this is asked for in every run of what follows the product.
        let mut out = [0; MAX_RANK];
        out[..x.rank()].copy_from_slice(x.dims());
        out[x.rank() - 2] = along.m;
        Ok(Meta::f32(Shape::new(&out[..x.rank()])?))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        match (self.of(ins), device.as_cuda()) {
            (Ok(along), Some(cuda)) => along.workspace(&Gpu::of(cuda)),
            _ => 0,
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        if let Ok(along) = self.of(run.metas) {
            along.cpu(run.pool, run.simd, run.ins[0], run.ins[1], run.out);
        }
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        self.of(run.metas)?.cuda(run, run.ins[0], run.ins[1], run.out, run.workspace)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.of(ins).map_or(Vec::new(), |along| along.modules(gpu, None))
    }

    fn joined(&self, ins: &[Meta], gpu: &Gpu, around: Around<'_>) -> Option<Vec<Source>> {
        Some(self.of(ins).ok()?.modules(gpu, Some(around.only_follow()?)))
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        // dA = Σ_b dy[b] x[b]^T, or its transpose; dx[b] = op(A)^T dy[b]
        let (a, x) = (io.ins[0], io.ins[1]);
        let along = self.of(&[r.meta(a), r.meta(x)])?;
        let dx = r.record(AxisMatMul { ta: !self.ta }.into(), &[a, dy])?;
        let x3 = layout::reshape_to(r, x, Shape::new(&[along.batch, along.k, along.w])?)?;
        let g3 = layout::reshape_to(r, dy, Shape::new(&[along.batch, along.m, along.w])?)?;
        let (left, right) = if self.ta { (x3, g3) } else { (g3, x3) };
        let each = r.record(Bmm { ta: false, tb: true }.into(), &[left, right])?;
        let da = r.record(Sum::new(&[0])?.into(), &[each])?;
        Ok(vec![Some(da), Some(dx)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let (a, x) = (ins[0].num()?, ins[1].num()?);
        let metas = [ins[0].meta(), ins[1].meta()];
        let Along { m, k, w, ta, .. } = self.of(&metas)?;
        Ok(Tensor::from_fn(self.shape(&metas)?.shape, |at| {
            let (b, i, j) = (at / w / m, at / w % m, at % w);
            (0..k).fold(T::c(0.0), |sum, l| {
                sum + a.data()[if ta { l * m + i } else { i * k + l }] * x.data()[(b * k + l) * w + j]
            })
        }))
    }

    fn samples() -> Vec<Sample<AxisMatMul>> {
        let cases: [(&[usize], usize); 12] = [
            (&[3, 4], 2),
            (&[2, 5, 3], 4),
            (&[4, 33, 16], 8),
            (&[3, 1025, 5], 7),
            (&[2, 2, 31, 33], 17),
            (&[9, 64, 1], 34),
            (&[0, 3, 2], 4),
            (&[2, 0, 3], 4),
            (&[2, 3, 0], 4),
            (&[2, 3, 4], 0),
            (&[5, 128, 64], 32),
            (&[3, 32, 64], 129),
        ];
        let mut all = Vec::new();
        for (x, m) in cases {
            let k = x[x.len() - 2];
            all.push(sample(AxisMatMul { ta: false }, &[&[m, k], x]));
            all.push(sample(AxisMatMul { ta: true }, &[&[k, m], x]));
        }
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample<AxisMatMul>> {
        let (batch, m, k, w) = loop {
            let one = |s: &mut Stream| pick(&[1, 3, 4, 17, 32, 33, 64, 65, 128, 1024, 1025], s);
            let (batch, m, k, w) = (pick(&[1, 2, 7, 32], stream), one(stream), one(stream), one(stream));
            if batch * (m * k).max(k * w).max(m * w) <= VOLUME && batch * m * k * w <= WORK {
                break (batch, m, k, w);
            }
        };
        let ta = stream.below(2) == 1;
        let a = if ta { [k, m] } else { [m, k] };
        Some(sample(AxisMatMul { ta }, &[&a, &[batch, k, w]]))
    }

    fn rejects() -> Vec<Reject<AxisMatMul>> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = AxisMatMul { ta: false };
        vec![
            Reject { op, ins: vec![f(&[2, 3])], want: "Arity" },
            Reject { op, ins: vec![f(&[3]), f(&[3, 2])], want: "Rank" },
            Reject { op, ins: vec![f(&[2, 3]), f(&[3])], want: "Rank" },
            Reject { op, ins: vec![f(&[2, 3]), f(&[4, 2, 2])], want: "Shapes" },
            Reject { op: AxisMatMul { ta: true }, ins: vec![f(&[2, 3]), f(&[4, 3, 2])], want: "Shapes" },
            Reject { op, ins: vec![f(&[2, 3]), Meta::u32(dims(&[3, 2]))], want: "DType" },
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0], vec![1]]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        self.of(ins).map_or(Bound::EXACT, |a| Bound { ulps: 1.0, terms: chain(a.k) + 1.0 })
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("ta", Attr::Bool(self.ta))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<AxisMatMul> {
        attrs.only(&["ta"])?;
        Ok(AxisMatMul { ta: attrs.flag("ta")? })
    }
}

/// Sizes of a product over modes: spectra (batch, 2, modes, …) and weights (modes, c, o).
#[derive(Clone, Copy, Debug)]
struct Mix {
    batch: usize,
    modes: usize,
    c: usize,
    o: usize,
    /// From `o` channels to `c`, by the conjugate transpose.
    adjoint: bool,
}

impl Mix {
    /// Channels that come in and go out.
    fn sides(&self) -> (usize, usize) {
        if self.adjoint { (self.o, self.c) } else { (self.c, self.o) }
    }

    /// Words of the result on the CPU, mode by mode.
    fn scratch(&self) -> usize {
        self.batch * 2 * self.modes * self.sides().1
    }

    /// Per mode one real product of (batch, 2 channels) with (2 channels, 2 channels), real and imaginary part
    /// of a channel being neighbouring terms.
    fn cpu(
        &self,
        pool: &Pool,
        simd: Simd,
        x: &[f32],
        [re, im]: [&[f32]; 2],
        out: &mut [f32],
        dense: &mut [f32],
    ) {
        let Mix { batch, modes, c, o, adjoint } = *self;
        let (inner, outer) = self.sides();
        if out.is_empty() {
            return;
        }
        let g = Gemm { batch: 1, m: batch, n: 2 * outer, k: 2 * inner, ta: false, tb: adjoint };
        let one = Pool::alone();
        let line = 2 * outer;
        pool.chunks_mut(&mut dense[..modes * batch * line], batch * line, |k, dense| {
            let (rows, square) = (batch * 2 * inner, 4 * c * o);
            let mut scratch = Scratch::take(rows + square + g.scratch_len(1));
            let (a, rest) = scratch.words().split_at_mut(rows);
            let (b, rest) = rest.split_at_mut(square);
            let (re, im) = (&re[k * c * o..][..c * o], &im[k * c * o..][..c * o]);
            for i in 0..batch {
                let at = |part: usize| &x[((i * 2 + part) * modes + k) * inner..][..inner];
                let (re, im) = (at(0), at(1));
                let a = &mut a[i * 2 * inner..][..2 * inner];
                a.chunks_exact_mut(2).zip(re).zip(im).for_each(|((a, re), im)| (a[0], a[1]) = (*re, *im));
            }
            if adjoint {
                // Stored (n, k): line (part, c), terms (o, part).
                let (upper, lower) = b.split_at_mut(2 * c * o);
                for ((upper, lower), (re, im)) in
                    upper.chunks_exact_mut(2).zip(lower.chunks_exact_mut(2)).zip(re.iter().zip(im))
                {
                    (upper[0], upper[1], lower[0], lower[1]) = (*re, *im, -im, *re);
                }
            } else {
                // Terms (c, part), columns (part, o).
                for (i, b) in b.chunks_exact_mut(4 * o).enumerate() {
                    let (re, im) = (&re[i * o..][..o], &im[i * o..][..o]);
                    b[..o].copy_from_slice(re);
                    b[o..2 * o].copy_from_slice(im);
                    b[2 * o..3 * o].iter_mut().zip(im).for_each(|(b, im)| *b = -im);
                    b[3 * o..].copy_from_slice(re);
                }
            }
            g.run(one, simd, a, b, None, dense, rest);
        });
        let dense = &*dense;
        pool.chunks_mut(out, 2 * modes * outer, |b, out| {
            for (at, out) in out.chunks_exact_mut(outer).enumerate() {
                let (part, k) = (at / modes, at % modes);
                out.copy_from_slice(&dense[(k * batch + b) * line + part * outer..][..outer]);
            }
        });
    }

    /// Batch rows of a thread: few where that is needed to fill the device.
    fn rows(&self, sm_count: u32) -> usize {
        let tiles = self.modes * self.sides().1.div_ceil(32);
        if tiles * self.batch.div_ceil(16) >= 2 * sm_count as usize { 4 } else { 2 }
    }

    fn cuda(&self, cuda: &Cuda, x: u64, [re, im]: [u64; 2], out: u64) -> Result<()> {
        let (inner, outer) = self.sides();
        if self.batch * self.modes * outer == 0 {
            return Ok(());
        }
        let rows = self.rows(cuda.sm_count());
        let (name, source) = mix_module(rows);
        let kernel =
            cuda.kernel(&name, source, if self.adjoint { "mode_mix_adjoint" } else { "mode_mix" })?;
        let (down, across) = (self.batch.div_ceil(4 * rows), outer.div_ceil(32));
        let tiles = self.modes * down * across;
        let mut args = Args::new();
        args.ptr(x).ptr(re).ptr(im).ptr(out);
        for n in [self.batch, self.modes, inner, outer, down, across, tiles] {
            args.u64(n as u64);
        }
        cuda.launch(kernel, [tiles.min(1 << 20) as u32, 1, 1], 128, 0, &args)
    }

    /// The product in another scalar, from the definition.
    fn reference<T: Scalar>(&self, x: &[T], re: &[T], im: &[T]) -> Vec<T> {
        let Mix { batch, modes, c, o, adjoint } = *self;
        let (inner, outer) = self.sides();
        let mut out = Vec::with_capacity(batch * 2 * modes * outer);
        for b in 0..batch {
            for part in 0..2 {
                for k in 0..modes {
                    for j in 0..outer {
                        let mut sum = T::c(0.0);
                        for i in 0..inner {
                            let w = k * c * o + if adjoint { j * o + i } else { i * o + j };
                            let (xr, xi) = (
                                x[(b * 2 * modes + k) * inner + i],
                                x[((b * 2 + 1) * modes + k) * inner + i],
                            );
                            // (xr + i xi)(wr ± i wi)
                            let wi = if adjoint { -im[w] } else { im[w] };
                            sum = sum + if part == 0 { xr * re[w] - xi * wi } else { xr * wi + xi * re[w] };
                        }
                        out.push(sum);
                    }
                }
            }
        }
        out
    }
}

/// Checks a spectrum and gives its batch, modes and channels.
fn spectrum(op: &'static str, x: Shape) -> Result<[usize; 3]> {
    if x.rank() < 3 {
        return Err(Error::new(op, ErrorKind::Rank { want: "at least 3", got: x }));
    }
    let (lead, last) = x.dims().split_at(x.rank() - 3);
    if last[0] != 2 {
        return Err(mismatch(op, "a spectrum is (…, 2, modes, channels)", x, dims(last)));
    }
    Ok([lead.iter().product(), last[1], last[2]])
}

/// A spectrum (…, 2, modes, c) times complex weights, mode by mode: `Z[k, o] = Σ_c X[k, c] (wRe + i wIm)[k, c, o]`
/// with `wRe`, `wIm` (modes, c, o). If `adjoint`, from o channels to c by the conjugate transpose:
/// `X[k, c] = Σ_o Z[k, o] (wRe - i wIm)[k, c, o]`. Each part is a dot product by C4 over the channels, the real
/// part of a channel before its imaginary part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModeMix {
    /// By the conjugate transpose.
    pub adjoint: bool,
}

impl ModeMix {
    fn of(&self, ins: &[Meta]) -> Result<Mix> {
        let [x, re, im] = floats(Self::NAME, ins)?;
        let [batch, modes, channels] = spectrum(Self::NAME, x)?;
        if re.rank() != 3 {
            return Err(Error::new(Self::NAME, ErrorKind::Rank { want: "exactly 3", got: re }));
        }
        if re != im {
            return Err(mismatch(Self::NAME, "real and imaginary weights differ in shape", re, im));
        }
        let [m, c, o] = [re.dims()[0], re.dims()[1], re.dims()[2]];
        let mix = Mix { batch, modes, c, o, adjoint: self.adjoint };
        if m != modes || mix.sides().0 != channels {
            return Err(mismatch(Self::NAME, "spectrum and weights differ in modes or channels", x, re));
        }
        Ok(mix)
    }
}

/// `(…, 2, modes, channels)` with the leading axes of `like`.
fn with_channels(like: Shape, channels: usize) -> Result<Shape> {
    let mut out = like.dims().to_vec();
    if let Some(last) = out.last_mut() {
        *last = channels;
    }
    Shape::new(&out)
}

/// The two weight gradients of a packed value.
fn weight_parts(modes: usize, c: usize, o: usize) -> Result<[Shape; 2]> {
    Ok([Shape::new(&[modes, c, o])?; 2])
}

impl Op for ModeMix {
    const NAME: &'static str = "mode_mix";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let mix = self.of(ins)?;
        Ok(Meta::f32(with_channels(ins[0].shape, mix.sides().1)?))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        if device.is_cuda() { 0 } else { self.of(ins).map_or(0, |mix| mix.scratch()) }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        if let Ok(mix) = self.of(run.metas) {
            let [x, re, im] = [run.ins[0], run.ins[1], run.ins[2]];
            mix.cpu(run.pool, run.simd, x, [re, im], run.out, run.workspace);
        }
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        self.of(run.metas)?.cuda(run.cuda, run.ins[0], [run.ins[1], run.ins[2]], run.out)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.of(ins).map_or(Vec::new(), |mix| vec![mix_module(mix.rows(gpu.sm_count))])
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        // Forward: dX = dZ W^H, dW = conj(X) dZ. Adjoint, Y = Z W^H: dZ = dY W, dW = conj(dY) Z.
        let mix = self.of(&[r.meta(io.ins[0]), r.meta(io.ins[1]), r.meta(io.ins[2])])?;
        let dx = r.record(ModeMix { adjoint: !self.adjoint }.into(), &[dy, io.ins[1], io.ins[2]])?;
        let (left, right) = if self.adjoint { (dy, io.ins[0]) } else { (io.ins[0], dy) };
        let dw = r.record(ModeMixDw.into(), &[left, right])?;
        let parts = weight_parts(mix.modes, mix.c, mix.o)?;
        let re = layout::part(r, dw, &parts, 0)?;
        let im = layout::part(r, dw, &parts, 1)?;
        Ok(vec![Some(dx), Some(re), Some(im)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let out =
            self.of(&metas)?.reference(ins[0].num()?.data(), ins[1].num()?.data(), ins[2].num()?.data());
        Tensor::with_shape(self.shape(&metas)?.shape, out)
    }

    fn samples() -> Vec<Sample<ModeMix>> {
        let mut all = Vec::new();
        for ([batch, modes, c, o], lead) in mix_cases().into_iter().zip([0, 1, 2].into_iter().cycle()) {
            for adjoint in [false, true] {
                let inner = if adjoint { o } else { c };
                let x = [&[1, batch][2 - lead.max(usize::from(batch != 1))..], &[2, modes, inner]].concat();
                let w = [modes, c, o];
                all.push(sample(ModeMix { adjoint }, &[&x, &w, &w]));
            }
        }
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample<ModeMix>> {
        let [batch, modes, c, o] = random_mix(stream);
        let adjoint = stream.below(2) == 1;
        let x = [batch, 2, modes, if adjoint { o } else { c }];
        Some(sample(ModeMix { adjoint }, &[&x, &[modes, c, o], &[modes, c, o]]))
    }

    fn rejects() -> Vec<Reject<ModeMix>> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = ModeMix { adjoint: false };
        let w = || f(&[3, 4, 5]);
        vec![
            Reject { op, ins: vec![f(&[2, 3, 4]), w()], want: "Arity" },
            Reject { op, ins: vec![f(&[3, 4]), w(), w()], want: "Rank" },
            Reject { op, ins: vec![f(&[3, 3, 4]), w(), w()], want: "Shapes" },
            Reject { op, ins: vec![f(&[2, 3, 4]), f(&[3, 4]), f(&[3, 4])], want: "Rank" },
            Reject { op, ins: vec![f(&[2, 3, 4]), w(), f(&[3, 5, 4])], want: "Shapes" },
            Reject { op, ins: vec![f(&[2, 2, 4]), w(), w()], want: "Shapes" },
            Reject { op, ins: vec![f(&[2, 3, 5]), w(), w()], want: "Shapes" },
            Reject { op: ModeMix { adjoint: true }, ins: vec![f(&[2, 3, 4]), w(), w()], want: "Shapes" },
            Reject { op, ins: vec![f(&[2, 3, 4]), w(), Meta::u32(dims(&[3, 4, 5]))], want: "DType" },
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0], vec![1, 2]]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        self.of(ins).map_or(Bound::EXACT, |mix| Bound { ulps: 1.0, terms: chain(2 * mix.sides().0) + 1.0 })
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("adjoint", Attr::Bool(self.adjoint))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<ModeMix> {
        attrs.only(&["adjoint"])?;
        Ok(ModeMix { adjoint: attrs.flag("adjoint")? })
    }
}

/// Batch, modes and channels around tiles and the chunk of the dot products.
fn mix_cases() -> [[usize; 4]; 11] {
    [
        [1, 1, 1, 1],
        [1, 2, 3, 2],
        [2, 3, 4, 5],
        [9, 2, 33, 31],
        [17, 3, 32, 64],
        [3, 1, 520, 5],
        [0, 2, 3, 4],
        [2, 0, 3, 4],
        [2, 2, 0, 4],
        [2, 2, 3, 0],
        [530, 1, 3, 2],
    ]
}

fn random_mix(stream: &mut Stream) -> [usize; 4] {
    loop {
        let one = |s: &mut Stream| pick(&[1, 2, 5, 16, 31, 32, 33, 64, 65, 512, 513], s);
        let d = [one(stream), pick(&[1, 2, 3, 16], stream), one(stream), one(stream)];
        let largest = d[1] * (d[2] * d[3]).max(2 * d[0] * d[2].max(d[3]));
        if largest <= VOLUME && 4 * d.iter().product::<usize>() <= WORK {
            return d;
        }
    }
}

/// The gradient of [`ModeMix`] by its weights: of spectra `X` (…, 2, modes, c) and `D` (…, 2, modes, o) the
/// packed parts `wRe = Σ_b Re X Re D + Im X Im D` and `wIm = Σ_b Re X Im D - Im X Re D`, each (modes, c, o): the
/// sum of `conj(X) D`. Dot products by C4 over the batch, the real part of an entry before its imaginary part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModeMixDw;

impl ModeMixDw {
    fn of(ins: &[Meta]) -> Result<Mix> {
        let [x, d] = floats(Self::NAME, ins)?;
        let [batch, modes, c] = spectrum(Self::NAME, x)?;
        let [other, others, o] = spectrum(Self::NAME, d)?;
        if (other, others) != (batch, modes) || x.rank() != d.rank() {
            return Err(mismatch(Self::NAME, "spectra differ in batch or modes", x, d));
        }
        Ok(Mix { batch, modes, c, o, adjoint: false })
    }
}

impl Op for ModeMixDw {
    const NAME: &'static str = "mode_mix_dw";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let mix = ModeMixDw::of(ins)?;
        let (_, words) = layout::packed(&weight_parts(mix.modes, mix.c, mix.o)?);
        Ok(Meta::f32(Shape::new(&[words])?))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let Ok(Mix { batch, modes, c, o, .. }) = ModeMixDw::of(run.metas) else { return };
        let (x, d) = (run.ins[0], run.ins[1]);
        let g = Gemm { batch: 1, m: c, n: 2 * o, k: 2 * batch, ta: true, tb: false };
        let one = Pool::alone();
        let each = c * o;
        let half = run.out.len() / 2;
        let (re, im) = run.out.split_at_mut(half);
        re[modes * each..].fill(0.0);
        im[modes * each..].fill(0.0);
        if each == 0 {
            return;
        }
        let (re, im) = (&mut re[..modes * each], &mut im[..modes * each]);
        run.pool.chunks3_mut([re, im, &mut []], each, |k, [re, im, _]| {
            let sizes = [2 * batch * c, 4 * batch * o, 2 * each];
            let mut scratch = Scratch::take(sizes.iter().sum::<usize>() + g.scratch_len(1));
            let (left, rest) = scratch.words().split_at_mut(sizes[0]);
            let (right, rest) = rest.split_at_mut(sizes[1]);
            let (both, rest) = rest.split_at_mut(sizes[2]);
            for b in 0..batch {
                let line = |part: usize| (b * 2 + part) * modes + k;
                for part in 0..2 {
                    left[(2 * b + part) * c..][..c].copy_from_slice(&x[line(part) * c..][..c]);
                }
                let (re, im) = (&d[line(0) * o..][..o], &d[line(1) * o..][..o]);
                let right = &mut right[4 * b * o..][..4 * o];
                right[..o].copy_from_slice(re);
                right[o..2 * o].copy_from_slice(im);
                right[2 * o..3 * o].copy_from_slice(im);
                right[3 * o..].iter_mut().zip(re).for_each(|(y, re)| *y = -re);
            }
            g.run(one, run.simd, left, right, None, both, rest);
            for (both, (re, im)) in
                both.chunks_exact(2 * o).zip(re.chunks_exact_mut(o).zip(im.chunks_exact_mut(o)))
            {
                re.copy_from_slice(&both[..o]);
                im.copy_from_slice(&both[o..]);
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let mix = ModeMixDw::of(run.metas)?;
        let Mix { batch, modes, c, o, .. } = mix;
        if run.shape.numel() == 0 {
            return Ok(());
        }
        let (name, source) = mix_module(2);
        let kernel = run.cuda.kernel(&name, source, "mode_mix_dw")?;
        let (down, across) = (c.div_ceil(16), o.div_ceil(32));
        let tiles = modes * down * across;
        let mut args = Args::new();
        args.ptr(run.ins[0]).ptr(run.ins[1]).ptr(run.out);
        for n in [batch, modes, c, o, down, across, tiles, run.shape.numel() / 2] {
            args.u64(n as u64);
        }
        run.cuda.launch(kernel, [tiles.min(1 << 20) as u32, 1, 1], 128, 0, &args)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![mix_module(2)]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        // W = Σ conj(X) D: dX = D G^H, dD = X G
        let mix = ModeMixDw::of(&[r.meta(io.ins[0]), r.meta(io.ins[1])])?;
        let parts = weight_parts(mix.modes, mix.c, mix.o)?;
        let re = layout::part(r, dy, &parts, 0)?;
        let im = layout::part(r, dy, &parts, 1)?;
        let dx = r.record(ModeMix { adjoint: true }.into(), &[io.ins[1], re, im])?;
        let dd = r.record(ModeMix { adjoint: false }.into(), &[io.ins[0], re, im])?;
        Ok(vec![Some(dx), Some(dd)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let Mix { batch, modes, c, o, .. } = ModeMixDw::of(&metas)?;
        let (x, d) = (ins[0].num()?.data(), ins[1].num()?.data());
        let half = (modes * c * o).next_multiple_of(4);
        let mut out = vec![T::c(0.0); 2 * half];
        for (at, part) in (0..modes * c * o).flat_map(|at| [(at, 0), (at, 1)]) {
            let (k, i, j) = (at / o / c, at / o % c, at % o);
            let mut sum = T::c(0.0);
            for b in 0..batch {
                let [xr, xi] = [0, 1].map(|p| x[((b * 2 + p) * modes + k) * c + i]);
                let [dr, di] = [0, 1].map(|p| d[((b * 2 + p) * modes + k) * o + j]);
                sum = sum + if part == 0 { xr * dr + xi * di } else { xr * di - xi * dr };
            }
            out[part * half + at] = sum;
        }
        Tensor::new(&[2 * half], out)
    }

    fn samples() -> Vec<Sample<ModeMixDw>> {
        let one = |[batch, modes, c, o]: [usize; 4]| {
            sample(ModeMixDw, &[&[batch, 2, modes, c], &[batch, 2, modes, o]])
        };
        mix_cases().into_iter().map(one).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample<ModeMixDw>> {
        let [batch, modes, c, o] = random_mix(stream);
        Some(sample(ModeMixDw, &[&[batch, 2, modes, c], &[batch, 2, modes, o]]))
    }

    fn rejects() -> Vec<Reject<ModeMixDw>> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = ModeMixDw;
        vec![
            Reject { op, ins: vec![f(&[2, 3, 4])], want: "Arity" },
            Reject { op, ins: vec![f(&[3, 4]), f(&[2, 3, 4])], want: "Rank" },
            Reject { op, ins: vec![f(&[2, 3, 4]), f(&[1, 3, 4])], want: "Shapes" },
            Reject { op, ins: vec![f(&[2, 3, 4]), f(&[2, 2, 4])], want: "Shapes" },
            Reject { op, ins: vec![f(&[5, 2, 3, 4]), f(&[4, 2, 3, 4])], want: "Shapes" },
            Reject { op, ins: vec![f(&[2, 3, 4]), Meta::u32(dims(&[2, 3, 4]))], want: "DType" },
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0], vec![1]]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        ModeMixDw::of(ins).map_or(Bound::EXACT, |m| Bound { ulps: 1.0, terms: chain(2 * m.batch) + 1.0 })
    }

    fn from_attrs(attrs: &Attrs) -> Result<ModeMixDw> {
        attrs.only(&[])?;
        Ok(ModeMixDw)
    }
}

/// Spectral convolution along a grid: `x` (…, grid, c), `wRe`, `wIm` (modes, c, o), value (…, grid, o).
///
/// With `X[k] = Σ_t x[t] e^{-iθ}`, `θ = 2π k t / grid`, and `Z[k, o] = Σ_c X[k, c] (wRe + i wIm)[k, c, o]` for the
/// kept modes, `y[t, o] = 1/grid Σ_k s_k Re(Z[k, o] e^{iθ})`, where `s_k` is 2, but 1 for mode 0 and for the highest
/// mode of an even grid, whose imaginary part of `Z` does not count. No modes give zeros; more than
/// `grid / 2 + 1` are an error, as are an empty grid and no channels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpectralConv1d;

/// The parts of a spectral convolution.
struct Conv {
    table: Table,
    analysis: Along,
    mix: Mix,
    synthesis: Along,
}

impl Conv {
    /// Words of the two tables, the spectrum and the mixed spectrum; each starts at a multiple of 4.
    fn words(&self) -> [usize; 3] {
        let spectrum = self.mix.batch * self.table.rows();
        let [table, x, z] =
            [self.table.len(), spectrum * self.mix.c, spectrum * self.mix.o].map(|n| n.next_multiple_of(4));
        [2 * table, x, z]
    }
}

impl SpectralConv1d {
    fn of(ins: &[Meta]) -> Result<Conv> {
        let [x, re, im] = floats(Self::NAME, ins)?;
        if x.rank() < 2 {
            return Err(Error::new(Self::NAME, ErrorKind::Rank { want: "at least 2", got: x }));
        }
        let (lead, last) = x.dims().split_at(x.rank() - 2);
        let (batch, n) = (lead.iter().product(), last[0]);
        if n == 0 || n > MAX_GRID {
            let why = format!("{n} points, use 1 to {MAX_GRID}");
            return Err(Error::argument(Self::NAME, "grid", why));
        }
        if re.rank() != 3 {
            return Err(Error::new(Self::NAME, ErrorKind::Rank { want: "exactly 3", got: re }));
        }
        if re != im {
            return Err(mismatch(Self::NAME, "real and imaginary weights differ in shape", re, im));
        }
        let [modes, c, o] = [re.dims()[0], re.dims()[1], re.dims()[2]];
        if c == 0 || o == 0 {
            return Err(Error::argument(Self::NAME, "channels", "there are none, use at least 1"));
        }
        if modes > n / 2 + 1 {
            let why = format!("{modes} of a grid of {n} points, which has {}", n / 2 + 1);
            return Err(Error::argument(Self::NAME, "modes", why));
        }
        if last[1] != c {
            return Err(mismatch(Self::NAME, "value and weights differ in channels", x, re));
        }
        let table = Table::real(n, modes);
        let rows = table.rows();
        Ok(Conv {
            table,
            analysis: Along { batch, m: rows, k: n, w: c, ta: false },
            mix: Mix { batch, modes, c, o, adjoint: false },
            synthesis: Along { batch, m: n, k: rows, w: o, ta: true },
        })
    }
}

/// The two tables of a grid, as values.
fn tables(r: &mut dyn Recorder, n: usize, modes: usize) -> Result<[Val; 2]> {
    let op = DftTable { n, low: modes, high: 0, complex: false };
    let both = r.record(op.into(), &[])?;
    let shape = Shape::new(&[op.table().rows(), op.table().columns()])?;
    let mut half = |start| {
        let one = r.record(layout::Slice { axis: 0, start, len: 1, step: 1 }.into(), &[both])?;
        layout::reshape_to(r, one, shape)
    };
    Ok([half(0)?, half(1)?])
}

impl Op for SpectralConv1d {
    const NAME: &'static str = "spectral_conv1d";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let conv = SpectralConv1d::of(ins)?;
        Ok(Meta::f32(with_channels(ins[0].shape, conv.mix.o)?))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        let Ok(conv) = SpectralConv1d::of(ins) else { return 0 };
        let own = match device.as_cuda() {
            Some(cuda) => {
                let gpu = Gpu::of(cuda);
                conv.analysis.workspace(&gpu).max(conv.synthesis.workspace(&gpu))
            }
            None => conv.table.scratch().max(conv.mix.scratch()),
        };
        conv.words().iter().sum::<usize>() + own
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let Ok(conv) = SpectralConv1d::of(run.metas) else { return };
        let (pool, simd) = (run.pool, run.simd);
        let [tables, spectrum, mixed] = conv.words();
        let (tables, rest) = run.workspace.split_at_mut(tables);
        let (x, rest) = rest.split_at_mut(spectrum);
        let (z, own) = rest.split_at_mut(mixed);
        let len = conv.table.len();
        conv.table.cpu(pool, simd, 0, &mut tables[..2 * len], own);
        let spectrum = conv.mix.batch * conv.table.rows();
        let (x, z) = (&mut x[..spectrum * conv.mix.c], &mut z[..spectrum * conv.mix.o]);
        conv.analysis.cpu(pool, simd, &tables[..len], run.ins[0], x);
        conv.mix.cpu(pool, simd, x, [run.ins[1], run.ins[2]], z, own);
        conv.synthesis.cpu(pool, simd, &tables[len..2 * len], z, run.out);
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let conv = SpectralConv1d::of(run.metas)?;
        let words = conv.words();
        let tables = run.workspace;
        let x = tables + 4 * words[0] as u64;
        let z = x + 4 * words[1] as u64;
        let own = z + 4 * words[2] as u64;
        let pitch = words[0] / 2;
        conv.table.cuda(run.cuda, 0, 2, tables, pitch)?;
        conv.analysis.cuda(run, tables, run.ins[0], x, own)?;
        conv.mix.cuda(run.cuda, x, [run.ins[1], run.ins[2]], z)?;
        conv.synthesis.cuda(run, tables + 4 * pitch as u64, z, run.out, own)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        let Ok(conv) = SpectralConv1d::of(ins) else { return Vec::new() };
        let mut all = vec![table_module(), mix_module(conv.mix.rows(gpu.sm_count))];
        all.extend(conv.analysis.modules(gpu, None));
        all.extend(conv.synthesis.modules(gpu, None));
        all
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        // With A and A' the tables: dZ = A' dy, dX = dZ W^H, dx = A^T dX, dW = Σ conj(A x) dZ
        let (x, re, im) = (io.ins[0], io.ins[1], io.ins[2]);
        let conv = SpectralConv1d::of(&[r.meta(x), r.meta(re), r.meta(im)])?;
        let Mix { batch, modes, c, o, .. } = conv.mix;
        let [plain, weighted] = tables(r, conv.table.n, modes)?;
        let apart = |channels| Shape::new(&[batch, 2, modes, channels]);
        let flat = |channels| Shape::new(&[batch, conv.table.n, channels]);
        let xs = r.meta(x).shape;
        let x = layout::reshape_to(r, x, flat(c)?)?;
        let dy = layout::reshape_to(r, dy, flat(o)?)?;
        let spectrum = r.record(AxisMatMul { ta: false }.into(), &[plain, x])?;
        let spectrum = layout::reshape_to(r, spectrum, apart(c)?)?;
        let dz = r.record(AxisMatMul { ta: false }.into(), &[weighted, dy])?;
        let dz = layout::reshape_to(r, dz, apart(o)?)?;
        let dw = r.record(ModeMixDw.into(), &[spectrum, dz])?;
        let parts = weight_parts(modes, c, o)?;
        let dre = layout::part(r, dw, &parts, 0)?;
        let dim = layout::part(r, dw, &parts, 1)?;
        let dspectrum = r.record(ModeMix { adjoint: true }.into(), &[dz, re, im])?;
        let rows = layout::reshape_to(r, dspectrum, Shape::new(&[batch, 2 * modes, c])?)?;
        let dx = r.record(AxisMatMul { ta: true }.into(), &[plain, rows])?;
        let dx = layout::reshape_to(r, dx, xs)?;
        Ok(vec![Some(dx), Some(dre), Some(dim)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let Conv { table, mix: Mix { batch, modes, c, o, .. }, .. } = SpectralConv1d::of(&metas)?;
        let (x, re, im) = (ins[0].num()?.data(), ins[1].num()?.data(), ins[2].num()?.data());
        let n = table.n;
        let turns = angles(n);
        let mut y = vec![T::c(0.0); batch * n * o];
        for b in 0..batch {
            for k in 0..modes {
                let mut z = vec![(T::c(0.0), T::c(0.0)); o];
                for i in 0..c {
                    let (mut real, mut imaginary) = (T::c(0.0), T::c(0.0));
                    for t in 0..n {
                        let (cos, sin) = turns[k * t % n];
                        let v = x[(b * n + t) * c + i];
                        real = real + v * T::c(cos);
                        imaginary = imaginary - v * T::c(sin);
                    }
                    for (j, z) in z.iter_mut().enumerate() {
                        let w = (k * c + i) * o + j;
                        z.0 = z.0 + (real * re[w] - imaginary * im[w]);
                        z.1 = z.1 + (real * im[w] + imaginary * re[w]);
                    }
                }
                for t in 0..n {
                    let (cos, sin) = turns[k * t % n];
                    let s = table.weight(k) / n as f64;
                    for (j, z) in z.iter().enumerate() {
                        let at = (b * n + t) * o + j;
                        y[at] = y[at] + (z.0 * T::c(s * cos) - z.1 * T::c(s * sin));
                    }
                }
            }
        }
        Tensor::with_shape(self.shape(&metas)?.shape, y)
    }

    fn samples() -> Vec<Sample<SpectralConv1d>> {
        let cases: [(&[usize], usize, usize); 12] = [
            (&[4, 1], 3, 1),
            (&[5, 1], 2, 1),
            (&[1, 1], 1, 2),
            (&[2, 3], 2, 2),
            (&[8, 3], 0, 3),
            (&[3, 7, 2], 4, 5),
            (&[2, 2, 8, 4], 5, 4),
            (&[0, 8, 4], 3, 4),
            (&[2, 33, 5], 17, 3),
            (&[3, 64, 8], 12, 8),
            (&[2, 129, 33], 5, 31),
            (&[1, 1030, 4], 3, 4),
        ];
        let one = |(x, modes, o): (&[usize], usize, usize)| {
            let w = [modes, x[x.len() - 1], o];
            sample(SpectralConv1d, &[x, &w, &w])
        };
        cases.into_iter().map(one).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample<SpectralConv1d>> {
        let n = pick(&[1, 2, 5, 16, 31, 64, 100, 127, 255], stream);
        let modes = stream.below((n / 2 + 2).min(20));
        let (c, o) = (pick(&[1, 3, 16, 33], stream), pick(&[1, 4, 17, 32], stream));
        let w = [modes, c, o];
        Some(sample(SpectralConv1d, &[&[pick(&[1, 2, 9], stream), n, c], &w, &w]))
    }

    fn rejects() -> Vec<Reject<SpectralConv1d>> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = SpectralConv1d;
        let w = || f(&[3, 4, 5]);
        vec![
            Reject { op, ins: vec![f(&[8, 4]), w()], want: "Arity" },
            Reject { op, ins: vec![f(&[4]), w(), w()], want: "Rank" },
            Reject { op, ins: vec![f(&[0, 4]), w(), w()], want: "Argument" },
            Reject { op, ins: vec![f(&[8, 4]), f(&[3, 4]), f(&[3, 4])], want: "Rank" },
            Reject { op, ins: vec![f(&[8, 4]), w(), f(&[3, 5, 4])], want: "Shapes" },
            Reject { op, ins: vec![f(&[8, 0]), f(&[3, 0, 5]), f(&[3, 0, 5])], want: "Argument" },
            Reject { op, ins: vec![f(&[8, 4]), f(&[3, 4, 0]), f(&[3, 4, 0])], want: "Argument" },
            Reject { op, ins: vec![f(&[3, 4]), w(), w()], want: "Argument" },
            Reject { op, ins: vec![f(&[8, 5]), w(), w()], want: "Shapes" },
            Reject { op, ins: vec![f(&[8, 4]), w(), Meta::u32(dims(&[3, 4, 5]))], want: "DType" },
        ]
    }

    fn linear(&self, ins: &[Meta]) -> Vec<Vec<usize>> {
        // The tables of these grids hold whole numbers and quarters.
        match SpectralConv1d::of(ins) {
            Ok(conv) if [1, 2, 4].contains(&conv.table.n) => vec![vec![0], vec![1, 2]],
            _ => Vec::new(),
        }
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        let Ok(conv) = SpectralConv1d::of(ins) else { return Bound::EXACT };
        let terms = chain(conv.table.n) + chain(2 * conv.mix.c) + chain(conv.table.rows()) + 5.0;
        Bound { ulps: 1.0, terms }
    }

    fn from_attrs(attrs: &Attrs) -> Result<SpectralConv1d> {
        attrs.only(&[])?;
        Ok(SpectralConv1d)
    }
}
