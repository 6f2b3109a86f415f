//! Tables of sines and cosines: a discrete Fourier transform that keeps few modes is a product with such a matrix.

use super::SPECTRAL_CU;
use crate::pointwise::map::grid;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val};
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_device::cpu::threads::Pool;
use dittograd_device::cuda::{Args, Cuda, Source};
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::functions;
use dittograd_numerics::functions::{cos_turn, cos_turn_over, sin_turn, sin_turn_over};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// Longest axis that a table can be made for: positions up to here are exact in float32.
pub(crate) const MAX_GRID: usize = 1 << 24;

/// A table of cosines and sines. Rows are the real and imaginary parts of modes, columns are grid points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Table {
    /// Grid points.
    pub n: usize,
    /// Modes `0, 1, …` that are kept.
    pub low: usize,
    /// Modes `…, n - 1` that are kept.
    pub high: usize,
    /// Whether each grid point has two columns, real and imaginary part, or only a real one.
    pub complex: bool,
    /// Whether a mode's two rows are neighbours. Otherwise all real parts come first.
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
    pub(super) fn mode(&self, row: usize) -> (usize, bool) {
        let count = self.low + self.high;
        let (i, part) = if self.interleaved { (row / 2, row % 2) } else { (row % count, row / count) };
        (if i < self.low { i } else { self.n - self.high + (i - self.low) }, part == 1)
    }

    /// The weight of mode `k` in the inverse transform to a real grid. It is 2, since the mode stands for its mirror
    /// image too; it is 1 for mode 0 and for the highest mode of an even grid, which are their own mirror images.
    pub(crate) fn weight(&self, k: usize) -> f64 {
        if self.complex || k == 0 || 2 * k == self.n { 1.0 } else { 2.0 }
    }

    /// Words of scratch that [`Table::cpu`] needs.
    pub(crate) fn scratch(&self) -> usize {
        4 * self.n
    }

    /// Fills `out` with tables from number `first` on: 0 is the plain one, 1 the weighted one.
    pub(crate) fn cpu(&self, pool: &Pool, simd: Simd, first: usize, out: &mut [f32], scratch: &mut [f32]) {
        let columns = self.columns();
        if out.is_empty() {
            return;
        }
        // There are only n different angles: compute each once, then look it up.
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

    /// Queues the computation of `parts` tables from number `first` on, `pitch` words apart.
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
    pub(super) fn value(&self, weighted: bool, row: usize, column: usize) -> f64 {
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

/// Cosine and sine of `2π k t / n` in f64, for references. Exact at quarter turns.
pub(crate) fn angle(k: usize, t: usize, n: usize) -> (f64, f64) {
    let j = (k as u128 * t as u128 % n as u128) as usize;
    if (4 * j).is_multiple_of(n) {
        return [(1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0)][4 * j / n];
    }
    let theta = std::f64::consts::TAU * (j as f64 / n as f64);
    (libm::cos(theta), libm::sin(theta))
}

/// [`angle`] of all n fractions of a turn. The entry for `k t` is at `k t mod n`.
pub(crate) fn angles(n: usize) -> Vec<(f64, f64)> {
    (0..n).map(|j| angle(1, j, n)).collect()
}

simd_fn! {
    /// Of all n fractions of a turn: cosines (0), sines (1), or these divided by n (2, 3).
    pub(super) fn turns_of(simd, which: usize, n: usize, to: &mut [f32]) {
        let n = n as f32;
        match which {
            0 => to.iter_mut().enumerate().for_each(|(j, y)| *y = cos_turn(j as f32, n)),
            1 => to.iter_mut().enumerate().for_each(|(j, y)| *y = sin_turn(j as f32, n)),
            2 => to.iter_mut().enumerate().for_each(|(j, y)| *y = cos_turn_over(j as f32, n)),
            _ => to.iter_mut().enumerate().for_each(|(j, y)| *y = sin_turn_over(j as f32, n)),
        }
    }
}

/// The module with the kernel that computes tables. It is separate since its text is long.
pub(crate) fn table_module() -> Source {
    crate::module("dft_table".into(), || {
        format!("{}#define DITTO_TABLE 1\n{SPECTRAL_CU}", functions::cuda_turn_text())
    })
}

/// Tables of the discrete Fourier transform of `n` points at the modes `0 … low - 1` and `n - high … n - 1`: a value
/// (2, 2 modes, columns). With `θ = 2π k t / n`, the first table has `cos θ` in the rows of real parts and `-sin θ` in
/// the rows of imaginary parts; all rows of real parts come first. The second table is the first times `s_k / n`, where
/// `s_k` is 1 for mode 0 and for the highest mode of an even `n`, else 2.
///
/// A complex transform has two columns per point, with `(cos, sin)` in rows of real parts and `(-sin, cos)` in the
/// others, and `s_k = 1`. Elements are computed in f64, with `k t` reduced modulo `n` in integers, and rounded once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DftTable {
    /// Number of points, at most 2^24.
    pub n: usize,
    /// Number of modes from 0 up; for a real transform at most `n / 2 + 1`.
    pub low: usize,
    /// Number of modes from `n - 1` down; 0 for a real transform.
    pub high: usize,
    /// Whether points are complex.
    pub complex: bool,
}

/// Multiply-adds per point that stand for what a fast transform does beside its products: it moves the value about
/// twelve times, and a product with a table once. Measured with lines of 64 to 8192 points.
const FFT_OVERHEAD: usize = 256;

impl DftTable {
    pub(super) fn table(&self) -> Table {
        Table { n: self.n, low: self.low, high: self.high, complex: self.complex, interleaved: false }
    }

    /// Whether a spectral convolution makes this transform by [`Rfft`](super::Rfft) instead of a product with the
    /// table: if that has fewer multiply-adds, with those added that stand for moving the value. This is part of the
    /// contract of numerics, so it depends on nothing but these sizes.
    ///
    /// A complex line is two real ones, and its table has four times the elements.
    pub fn is_faster_by_fft(&self) -> bool {
        let of_table = 2 * (self.low + self.high);
        super::fft::products_of_two_steps(self.n)
            .is_some_and(|products| of_table * self.n > products + FFT_OVERHEAD * self.n)
    }
}

impl Op for DftTable {
    const NAME: &'static str = "dft_table";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        crate::arity::<0>(Self::NAME, ins)?;
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
