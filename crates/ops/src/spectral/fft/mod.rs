//! The discrete Fourier transform of real lines, and its inverse. A short line, or one whose length has no good
//! factors, is multiplied by a table. A longer line of `n = n1 n2` points is transformed in two steps (Cooley and
//! Tukey), where `n1` is the largest divisor up to the square root: along `n1`, then multiplication by twiddle factors,
//! then along `n2`. Both steps are products with tables, so the order of summation is that of rule C4.
//!
//! With `t = t1 n2 + t2` and `k = k1 + n1 k2`, only `k1 <= n1 / 2` is computed. The input is real, so the other modes
//! are mirror images of these.

#[cfg(feature = "cases")]
mod cases;

use crate::pointwise::map::grid;
use crate::spectral::{Along, MAX_GRID, Table, angles, table_module};
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, dims, floats, mismatch};
use dittograd_device::cpu::simd::simd_fn;
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::functions;
use dittograd_numerics::functions::{cos_turn, sin_turn};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// Longest line that is always one product. Below this length two steps save nothing.
const MAX_DIRECT_LEN: usize = 128;

/// Smallest first factor for which two steps pay off.
const MIN_FACTOR: usize = 8;

const FFT_CU: &str = include_str!("fft.cu");

fn module() -> Source {
    crate::module("fft".into(), || format!("{}{FFT_CU}", functions::cuda_turn_text()))
}

/// The factors of a length that is transformed in two steps, else `None`.
fn factors(n: usize) -> Option<(usize, usize)> {
    if n <= MAX_DIRECT_LEN {
        return None;
    }
    let n1 = (1..=n.isqrt()).rev().find(|d| n.is_multiple_of(*d))?;
    (n1 >= MIN_FACTOR).then_some((n1, n / n1))
}

/// Multiply-adds of a transform of `n` points in two steps, per line; `None` if it is one product with a table.
pub(super) fn products_of_two_steps(n: usize) -> Option<usize> {
    let (n1, n2) = factors(n)?;
    let half = n1 / 2 + 1;
    Some(2 * half * n1 * n2 + half * (2 * n2) * (2 * n2))
}

/// The lines of one transform, and its direction.
#[derive(Clone, Copy, Debug)]
struct Lines {
    batch: usize,
    n: usize,
    scaled: bool,
    /// The inverse direction: from modes to points.
    back: bool,
}

/// A transform in two steps.
#[derive(Clone, Copy, Debug)]
struct Steps {
    n1: usize,
    n2: usize,
    /// Modes of the first step that are computed.
    half: usize,
}

impl Lines {
    fn modes(&self) -> usize {
        self.n / 2 + 1
    }

    fn steps(&self) -> Option<Steps> {
        factors(self.n).map(|(n1, n2)| Steps { n1, n2, half: n1 / 2 + 1 })
    }

    /// The factor of mode `k`: `s_k / n` if scaled, else 1.
    fn weight(&self, k: usize) -> f32 {
        if self.scaled { (Table::real(self.n, 0).weight(k) / self.n as f64) as f32 } else { 1.0 }
    }

    /// The one table of a direct transform.
    fn table(&self) -> Table {
        Table { interleaved: true, ..Table::real(self.n, self.modes()) }
    }

    fn direct(&self) -> Along {
        let (m, k) = if self.back { (self.n, 2 * self.modes()) } else { (2 * self.modes(), self.n) };
        Along { batch: self.batch, m, k, w: 1, ta: self.back }
    }

    /// The two tables of a transform in two steps: along `n1` and along `n2`.
    fn tables(&self, s: &Steps) -> [Table; 2] {
        let second = Table { n: s.n2, low: s.n2, high: 0, complex: true, interleaved: true };
        [Table::real(s.n1, s.half), second]
    }

    fn products(&self, s: &Steps) -> [Along; 2] {
        let (m, k) = if self.back { (s.n1, 2 * s.half) } else { (2 * s.half, s.n1) };
        let first = Along { batch: self.batch, m, k, w: s.n2, ta: self.back };
        let second = Along { batch: self.batch * s.half, m: 2 * s.n2, k: 2 * s.n2, w: 1, ta: self.back };
        [first, second]
    }

    /// Words of the regions of the workspace, each starting at a multiple of 4: tables, twiddle factors, and two
    /// intermediate values; the last is scratch of the products and tables.
    fn regions(&self) -> [usize; 5] {
        let words = match self.steps() {
            None => [self.table().len(), 0, 0, 0, 0],
            Some(s) => {
                let [first, second] = self.tables(&s).map(|t| t.len());
                let value = self.batch * s.half * s.n2 * 2;
                [first, second, 2 * s.half * s.n2, value, value]
            }
        };
        words.map(|n| n.next_multiple_of(4))
    }

    fn workspace(&self, device: &Device) -> usize {
        let rest = match (device.as_cuda(), self.steps()) {
            (Some(cuda), None) => self.direct().workspace(&Gpu::of(cuda)),
            (Some(cuda), Some(s)) => {
                self.products(&s).map(|p| p.workspace(&Gpu::of(cuda))).into_iter().max().unwrap_or(0)
            }
            (None, None) => self.table().scratch(),
            (None, Some(s)) => self.tables(&s).map(|t| t.scratch()).into_iter().max().unwrap_or(0),
        };
        self.regions().iter().sum::<usize>() + rest
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let (pool, simd, x, out) = (run.pool, run.simd, run.ins[0], run.out);
        if out.is_empty() {
            return;
        }
        let mut rest = run.workspace;
        let [first, second, turns, p, q] = self.regions().map(|words| {
            let (region, others) = std::mem::take(&mut rest).split_at_mut(words);
            rest = others;
            region
        });
        let Some(s) = self.steps() else {
            let table = self.table();
            let words = &mut first[..table.len()];
            table.cpu(pool, simd, usize::from(self.scaled), words, rest);
            return self.direct().cpu(pool, simd, words, x, out);
        };
        let tables = self.tables(&s);
        let (first, second) = (&mut first[..tables[0].len()], &mut second[..tables[1].len()]);
        tables[0].cpu(pool, simd, 0, first, rest);
        tables[1].cpu(pool, simd, 0, second, rest);
        let line = 2 * s.half * s.n2;
        let turns = &mut turns[..line];
        pool.chunks_mut(turns, 2 * s.n2, |k1, to| turns_between(simd, k1, s.n2, self.n, to));
        let turns = &*turns;
        let words = self.batch * line;
        let (p, q) = (&mut p[..words], &mut q[..words]);
        let products = self.products(&s);
        if self.back {
            let modes = 2 * self.modes();
            pool.chunks_mut(p, line, |b, to| self.scatter(&s, &x[b * modes..(b + 1) * modes], to));
            products[1].cpu(pool, simd, second, p, q);
            let q = &*q;
            pool.chunks_mut(p, line, |b, to| turn_back(simd, turns, &q[b * line..(b + 1) * line], to));
            products[0].cpu(pool, simd, first, p, out);
        } else {
            products[0].cpu(pool, simd, first, x, p);
            let between = &*p;
            pool.chunks_mut(q, line, |b, to| turn(simd, turns, &between[b * line..(b + 1) * line], to));
            products[1].cpu(pool, simd, second, q, p);
            let p = &*p;
            pool.chunks_mut(out, 2 * self.modes(), |b, to| self.gather(&s, &p[b * line..(b + 1) * line], to));
        }
    }

    /// Whether mode `k` is its own mirror image, so that it has no imaginary part.
    fn is_edge(&self, k: usize) -> bool {
        k == 0 || 2 * k == self.n
    }

    /// Gathers the modes of one line from (k1, k2, part).
    fn gather(&self, s: &Steps, from: &[f32], to: &mut [f32]) {
        for (k, to) in to.chunks_exact_mut(2).enumerate() {
            let (k1, k2) = (k % s.n1, k / s.n1);
            let mirror = k1 >= s.half;
            let (k1, k2) = if mirror { (s.n1 - k1, s.n2 - 1 - k2) } else { (k1, k2) };
            let at = (k1 * s.n2 + k2) * 2;
            let im = if mirror { -from[at + 1] } else { from[at + 1] };
            let weight = self.weight(k);
            to[0] = weight * from[at];
            to[1] = if self.is_edge(k) { 0.0 } else { weight * im };
        }
    }

    /// The adjoint of [`Lines::gather`].
    fn scatter(&self, s: &Steps, from: &[f32], to: &mut [f32]) {
        for (slot, to) in to.chunks_exact_mut(2).enumerate() {
            let (k1, k2) = (slot / s.n2, slot % s.n2);
            let f = k1 + s.n1 * k2;
            let mirror = 2 * f > self.n;
            if mirror && (k1 == 0 || 2 * k1 >= s.n1) {
                to.fill(0.0);
                continue;
            }
            let k = if mirror { self.n - f } else { f };
            let weight = self.weight(k);
            let im = if mirror { -from[2 * k + 1] } else { from[2 * k + 1] };
            to[0] = weight * from[2 * k];
            to[1] = if self.is_edge(k) { 0.0 } else { weight * im };
        }
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        if run.shape.numel() == 0 {
            return Ok(());
        }
        let (cuda, x, out) = (run.cuda, run.ins[0], run.out);
        let mut end = run.workspace;
        let [first, second, turns, p, q] = self.regions().map(|words| {
            let start = end;
            end += 4 * words as u64;
            start
        });
        let Some(s) = self.steps() else {
            let table = self.table();
            table.cuda(cuda, usize::from(self.scaled), 1, first, table.len())?;
            return self.direct().cuda(run, first, x, out, end);
        };
        let tables = self.tables(&s);
        tables[0].cuda(cuda, 0, 1, first, tables[0].len())?;
        tables[1].cuda(cuda, 0, 1, second, tables[1].len())?;
        let (name, source) = module();
        let kernel = cuda.kernel(&name, source, "fft_turns")?;
        let each = s.half * s.n2;
        let mut args = Args::new();
        args.ptr(turns).u64(each as u64).u64(s.n2 as u64).u64(self.n as u64);
        cuda.launch(kernel, grid(cuda, each), 256, 0, &args)?;
        let products = self.products(&s);
        let launch = |kernel: &str, from: u64, to: u64, items: usize| {
            let kernel = cuda.kernel(&name, source, kernel)?;
            let mut args = Args::new();
            args.ptr(from).ptr(to).ptr(turns).u64(items as u64);
            for n in [self.n, s.n1, s.n2, s.half] {
                args.u64(n as u64);
            }
            // Only two weights occur: of modes that count once, and of modes that count twice.
            let [once, twice] = [self.weight(0), if self.scaled { 2.0 * self.weight(0) } else { 1.0 }];
            args.f32(once).f32(twice);
            cuda.launch(kernel, grid(cuda, items), 256, 0, &args)
        };
        if self.back {
            launch("fft_scatter", x, p, self.batch * each)?;
            products[1].cuda(run, second, p, q, end)?;
            launch("fft_turn_back", q, p, self.batch * each)?;
            products[0].cuda(run, first, p, out, end)
        } else {
            products[0].cuda(run, first, x, p, end)?;
            launch("fft_turn", p, q, self.batch * each)?;
            products[1].cuda(run, second, q, p, end)?;
            launch("fft_gather", p, out, self.batch * self.modes())
        }
    }

    fn modules(&self, gpu: &Gpu) -> Vec<Source> {
        let mut all = vec![table_module()];
        match self.steps() {
            None => all.extend(self.direct().modules(gpu)),
            Some(s) => {
                all.push(module());
                all.extend(self.products(&s).iter().flat_map(|p| p.modules(gpu)));
            }
        }
        all
    }

    /// Errors unless a line of `n` points can be transformed.
    fn check(op: &'static str, n: usize) -> Result<()> {
        if n == 0 || n > MAX_GRID {
            return Err(Error::argument(op, "n", format!("{n} points, use 1 to {MAX_GRID}")));
        }
        Ok(())
    }
}

simd_fn! {
    /// Twiddle factors: cosine and sine of `k1 t2 / n` turns, in pairs.
    fn turns_between(simd, k1: usize, n2: usize, n: usize, to: &mut [f32]) {
        for (t2, to) in to.chunks_exact_mut(2).enumerate().take(n2) {
            // k1 t2 is below n.
            let (j, n) = ((k1 * t2) as f32, n as f32);
            (to[0], to[1]) = (cos_turn(j, n), sin_turn(j, n));
        }
    }
}

simd_fn! {
    /// Multiplies one line (part, k1, t2) by the conjugate twiddle factors and writes it as (k1, t2, part).
    fn turn(simd, turns: &[f32], from: &[f32], to: &mut [f32]) {
        let (re, im) = from.split_at(from.len() / 2);
        for ((to, turn), (re, im)) in
            to.chunks_exact_mut(2).zip(turns.chunks_exact(2)).zip(re.iter().zip(im))
        {
            let (c, s) = (turn[0], turn[1]);
            to[0] = re.mul_add(c, im * s);
            to[1] = im.mul_add(c, -(re * s));
        }
    }
}

simd_fn! {
    /// The adjoint of [`turn`].
    fn turn_back(simd, turns: &[f32], from: &[f32], to: &mut [f32]) {
        let half = to.len() / 2;
        let (re, im) = to.split_at_mut(half);
        for ((from, turn), (re, im)) in
            from.chunks_exact(2).zip(turns.chunks_exact(2)).zip(re.iter_mut().zip(im))
        {
            let (c, s) = (turn[0], turn[1]);
            *re = from[0].mul_add(c, -(from[1] * s));
            *im = from[1].mul_add(c, from[0] * s);
        }
    }
}

/// The discrete Fourier transform of real lines (…, n): `X[k] = Σ_t x[t] e^{-2πi k t / n}` for `k = 0 … n/2`, as pairs
/// (…, n/2 + 1, 2) of real and imaginary part. With `scaled` it is multiplied by `s_k / n` as in [`Irfft`], which makes
/// it the gradient of [`Irfft`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rfft {
    /// Whether to multiply by `s_k / n`.
    pub scaled: bool,
}

impl Rfft {
    fn of(&self, ins: &[Meta]) -> Result<Lines> {
        let [x] = floats(Self::NAME, ins)?;
        if x.rank() == 0 {
            return Err(Error::new(Self::NAME, ErrorKind::Rank { want: "at least 1", got: x }));
        }
        Lines::check(Self::NAME, x.last())?;
        Ok(Lines { batch: x.rows(), n: x.last(), scaled: self.scaled, back: false })
    }
}

impl Op for Rfft {
    const NAME: &'static str = "rfft";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let lines = self.of(ins)?;
        let x = ins[0].shape;
        let lead = &x.dims()[..x.rank() - 1];
        Shape::new(&[lead, &[lines.modes(), 2]].concat()).map(Meta::f32)
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        self.of(ins).map_or(0, |lines| lines.workspace(device))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        if let Ok(lines) = self.of(run.metas) {
            lines.cpu(run);
        }
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        self.of(run.metas)?.cuda(run)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.of(ins).map_or(Vec::new(), |lines| lines.modules(gpu))
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let n = r.meta(io.ins[0]).shape.last();
        Ok(vec![Some(r.record(Irfft { n, scaled: self.scaled }.into(), &[dy])?)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let x = ins[0].num()?;
        let lines = self.of(&[ins[0].meta()])?;
        let (n, modes) = (lines.n, lines.modes());
        let turns = angles(n);
        Ok(Tensor::from_fn(self.shape(&[ins[0].meta()])?.shape, |at| {
            let (b, k, part) = (at / 2 / modes, at / 2 % modes, at % 2);
            let weight = if self.scaled { Table::real(n, 0).weight(k) / n as f64 } else { 1.0 };
            (0..n).fold(T::c(0.0), |sum, t| {
                let (cos, sin) = turns[k * t % n];
                sum + x.data()[b * n + t] * T::c(weight * if part == 0 { cos } else { -sin })
            })
        }))
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("scaled", Attr::Bool(self.scaled))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Rfft> {
        attrs.only(&["scaled"])?;
        Ok(Rfft { scaled: attrs.flag("scaled")? })
    }
}

/// The inverse transform to real lines: from pairs (…, n/2 + 1, 2) to (…, n),
/// `x[t] = 1/n Σ_k s_k Re(X[k] e^{2πi k t / n})`. The weight `s_k` is 1 for mode 0 and for the highest mode of an even
/// `n`, whose imaginary parts do not count; otherwise it is 2. Without `scaled` the factor `s_k / n` is left out, which
/// makes it the gradient of [`Rfft`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Irfft {
    /// Length of a line.
    pub n: usize,
    /// Whether to multiply by `s_k / n`.
    pub scaled: bool,
}

impl Irfft {
    fn of(&self, ins: &[Meta]) -> Result<Lines> {
        let [x] = floats(Self::NAME, ins)?;
        Lines::check(Self::NAME, self.n)?;
        if x.rank() < 2 {
            return Err(Error::new(Self::NAME, ErrorKind::Rank { want: "at least 2", got: x }));
        }
        let (lead, last) = x.dims().split_at(x.rank() - 2);
        if last != [self.n / 2 + 1, 2] {
            return Err(mismatch(Self::NAME, "the last axes are not", x, dims(&[self.n / 2 + 1, 2])));
        }
        Ok(Lines { batch: lead.iter().product(), n: self.n, scaled: self.scaled, back: true })
    }
}

impl Op for Irfft {
    const NAME: &'static str = "irfft";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        self.of(ins)?;
        let x = ins[0].shape;
        let lead = &x.dims()[..x.rank() - 2];
        Shape::new(&[lead, &[self.n]].concat()).map(Meta::f32)
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        self.of(ins).map_or(0, |lines| lines.workspace(device))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        if let Ok(lines) = self.of(run.metas) {
            lines.cpu(run);
        }
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        self.of(run.metas)?.cuda(run)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.of(ins).map_or(Vec::new(), |lines| lines.modules(gpu))
    }

    fn vjp(&self, r: &mut dyn Recorder, _io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(vec![Some(r.record(Rfft { scaled: self.scaled }.into(), &[dy])?)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let x = ins[0].num()?;
        let lines = self.of(&[ins[0].meta()])?;
        let (n, modes) = (lines.n, lines.modes());
        let turns = angles(n);
        Ok(Tensor::from_fn(self.shape(&[ins[0].meta()])?.shape, |at| {
            let (b, t) = (at / n, at % n);
            (0..modes).fold(T::c(0.0), |sum, k| {
                let weight = if self.scaled { Table::real(n, 0).weight(k) / n as f64 } else { 1.0 };
                let (cos, sin) = turns[k * t % n];
                let [re, im] = [0, 1].map(|part| x.data()[(b * modes + k) * 2 + part]);
                sum + (re * T::c(weight * cos) - im * T::c(weight * sin))
            })
        }))
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("n", Attr::Num(self.n as f64)), ("scaled", Attr::Bool(self.scaled))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Irfft> {
        attrs.only(&["n", "scaled"])?;
        Ok(Irfft { n: attrs.whole("n")?, scaled: attrs.flag("scaled")? })
    }
}
