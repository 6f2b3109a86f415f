//! Systems of equations with triangular matrices.

use super::cuda::{self, Matrix};
use super::panels::{self, LANES, ROWS};
use super::{product, square, triangle};
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, floats, mismatch};
use dittograd_device::cuda::Source;
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::tensor::Tensor;

/// Solves `op(A) X = B` for `X` (batch, n, m), or with `right` `X op(A) = B` for `X` (batch, m, n). `A` (batch, n, n) is
/// triangular: the other triangle is not read. `op(A)` is `A`, or with `ta` its transpose. With `unit` the diagonal counts
/// as ones. A zero on the diagonal gives infinities or NaN.
///
/// Unknowns are eliminated one after another, from the row of one nonzero on: `s = b[i]`, then
/// `s = fma(-a[i, k], x[k], s)` for the known `k` in the order in which they became known, then `x[i] = s / a[i, i]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TriangularSolve {
    /// Whether `A` is the upper triangle.
    pub upper: bool,
    /// Whether `A` is transposed.
    pub ta: bool,
    /// Whether the diagonal counts as ones.
    pub unit: bool,
    /// Whether the matrix is on the right of the unknowns.
    pub right: bool,
}

/// The sizes of a system, and the order of its unknowns.
#[derive(Clone, Copy, Debug)]
struct System {
    batch: usize,
    n: usize,
    /// Right-hand sides.
    m: usize,
    /// Whether coefficient `k` of equation `i` is `A[k, i]`.
    transposed: bool,
    /// Whether the last unknown is the first to be known.
    backward: bool,
    unit: bool,
    right: bool,
}

impl System {
    fn padded(&self) -> usize {
        self.n.next_multiple_of(ROWS)
    }

    /// The unknown that becomes known at step `i`.
    fn unknown(&self, i: usize) -> usize {
        if self.backward { self.n - 1 - i } else { i }
    }

    /// Where coefficient `k` of equation `i` is, both counted by steps.
    fn coefficient(&self, i: usize, k: usize) -> usize {
        let (i, k) = (self.unknown(i), self.unknown(k));
        if self.transposed { k * self.n + i } else { i * self.n + k }
    }

    /// Where unknown `i`, counted by steps, of right-hand side `j` is.
    fn value(&self, i: usize, j: usize) -> usize {
        let i = self.unknown(i);
        if self.right { j * self.n + i } else { i * self.m + j }
    }

    /// Copies the equations from step `from` to groups of rows: the factors of a known row lie together.
    fn load(&self, a: &[f32], from: usize, to: &mut [f32]) {
        for (k, to) in to.chunks_exact_mut(ROWS).enumerate().take(from + ROWS) {
            for (r, to) in to.iter_mut().enumerate() {
                let i = from + r;
                *to = match i < self.n && k < self.n && (k < i || k == i && !self.unit) {
                    true => a[self.coefficient(i, k)],
                    false => f32::from(u8::from(i == k)),
                };
            }
        }
    }

    /// The words of the equations, and of one panel of right-hand sides.
    fn words(&self) -> [usize; 2] {
        [self.padded() * self.padded(), self.padded() * LANES]
    }

    fn cpu(&self, run: CpuRun<'_>) {
        if run.out.is_empty() {
            return;
        }
        let (a, b, simd, padded) = (run.ins[0], run.ins[1], run.simd, self.padded());
        let (square, values) = (self.n * self.n, self.n * self.m);
        let [matrix, panel] = self.words();
        let columns = self.m.div_ceil(LANES);
        let (equations, unknowns) = run.workspace.split_at_mut(self.batch * matrix);
        let groups = padded / ROWS;
        let each = (16 * 1024 / (padded * ROWS)).max(1);
        run.pool.chunks_mut(equations, each * padded * ROWS, |task, to| {
            for (g, to) in to.chunks_exact_mut(padded * ROWS).enumerate() {
                let (e, g) = ((task * each + g) / groups, (task * each + g) % groups);
                self.load(&a[e * square..(e + 1) * square], g * ROWS, to);
            }
        });
        let equations = &*equations;
        let each = (4 * 1024 / panel).max(1);
        run.pool.chunks_mut(unknowns, each * panel, |task, all| {
            for (p, panel) in all.chunks_exact_mut(panel).enumerate() {
                let (e, column) = ((task * each + p) / columns, (task * each + p) % columns * LANES);
                let b = &b[e * values..(e + 1) * values];
                let width = LANES.min(self.m - column);
                panel.fill(0.0);
                for (i, row) in panel.chunks_exact_mut(LANES).enumerate().take(self.n) {
                    row[..width].iter_mut().enumerate().for_each(|(l, x)| *x = b[self.value(i, column + l)]);
                }
                let equations = &equations[e * matrix..(e + 1) * matrix];
                for (g, m) in equations.chunks_exact(padded * ROWS).enumerate() {
                    let from = g * ROWS;
                    let mut rows = panels::read(panel, from);
                    panels::subtract(simd, m, ROWS, 0, &panel[..from * LANES], &mut rows);
                    let mut corner = [[0.0; ROWS]; ROWS];
                    corner.as_flattened_mut().copy_from_slice(&m[from * ROWS..][..ROWS * ROWS]);
                    panels::substitute(simd, &corner, &mut rows);
                    panels::write(panel, from, &rows);
                }
            }
        });
        let unknowns = &*unknowns;
        let line = run.shape.last();
        let each = (16 * 1024 / line).max(1);
        run.pool.chunks_mut(run.out, each * line, |task, out| {
            for (at, out) in out.chunks_exact_mut(line).enumerate() {
                let row = task * each + at;
                let (e, row) = (row / (values / line), row % (values / line));
                for (at, out) in out.iter_mut().enumerate() {
                    let (i, j) = if self.right { (at, row) } else { (row, at) };
                    let i = self.unknown(i);
                    *out = unknowns[(e * columns + j / LANES) * panel + i * LANES + j % LANES];
                }
            }
        });
    }
}

impl TriangularSolve {
    fn of(&self, ins: &[Meta]) -> Result<System> {
        let [a, b] = floats(Self::NAME, ins)?;
        let [batch, n] = square(Self::NAME, &ins[0])?;
        let [others, rows, columns] = b.dims()[..] else {
            return Err(Error::new(Self::NAME, ErrorKind::Rank { want: "exactly 3", got: b }));
        };
        let (unknowns, m) = if self.right { (columns, rows) } else { (rows, columns) };
        if batch != others || unknowns != n {
            let why = "the matrices and the right-hand sides differ in batch or in the number of equations";
            return Err(mismatch(Self::NAME, why, a, b));
        }
        let transposed = self.ta != self.right;
        let backward = self.upper != transposed;
        Ok(System { batch, n, m, transposed, backward, unit: self.unit, right: self.right })
    }
}

impl Op for TriangularSolve {
    const NAME: &'static str = "triangular_solve";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        self.of(ins)?;
        Ok(ins[1])
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        match self.of(ins) {
            Ok(s) if !device.is_cuda() => {
                let [matrix, panel] = s.words();
                s.batch * (matrix + s.m.div_ceil(LANES) * panel)
            }
            _ => 0,
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        if let Ok(system) = self.of(run.metas) {
            system.cpu(run);
        }
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let s = self.of(run.metas)?;
        let a = Matrix::rows(run.ins[0], s.n, s.n);
        let a = if s.transposed { a.transposed() } else { a };
        let x = if s.right {
            Matrix::rows(run.out, s.m, s.n).transposed()
        } else {
            Matrix::rows(run.out, s.n, s.m)
        };
        let (a, x) = match s.backward {
            true => (a.rows_reversed(s.n).columns_reversed(s.n), x.rows_reversed(s.n)),
            false => (a, x),
        };
        cuda::copy(run.cuda, run.ins[1], run.out, run.shape.numel())?;
        cuda::solve(run.cuda, a, x, s.batch, s.n, s.m, s.unit)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![cuda::module()]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        // dB solves the transposed system; d op(A) = -dB Xᵀ, or -Xᵀ dB with the matrix on the right.
        let db = r.record(TriangularSolve { ta: !self.ta, ..*self }.into(), &[io.ins[0], dy])?;
        let (x, right) = (io.out, self.right);
        let da = match self.ta {
            false if right => product(r, x, true, db, false)?,
            false => product(r, db, false, x, true)?,
            true if right => product(r, db, true, x, false)?,
            true => product(r, x, false, db, true)?,
        };
        let da = r.record(crate::pointwise::Neg {}.into(), &[da])?;
        let shift = i64::from(self.unit) * if self.upper { 1 } else { -1 };
        Ok(vec![Some(triangle(r, da, self.upper, shift)?), Some(db)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let (a, b) = (ins[0].num()?, ins[1].num()?);
        let System { batch, n, m, right, .. } = self.of(&[ins[0].meta(), ins[1].meta()])?;
        let mut x = b.data().to_vec();
        // Equations of a matrix on the right have its columns as coefficients.
        let lower = self.upper == (self.ta != right);
        for e in 0..batch {
            let a = &a.data()[e * n * n..(e + 1) * n * n];
            let x = &mut x[e * n * m..(e + 1) * n * m];
            let coefficient = |i: usize, k: usize| if self.ta != right { a[k * n + i] } else { a[i * n + k] };
            let at = |i: usize, j: usize| if right { j * n + i } else { i * m + j };
            for j in 0..m {
                let mut known = Vec::new();
                for step in 0..n {
                    let i = if lower { step } else { n - 1 - step };
                    let s = known.iter().fold(x[at(i, j)], |s, &k| (-coefficient(i, k)).fma(x[at(k, j)], s));
                    x[at(i, j)] = if self.unit { s } else { s / coefficient(i, i) };
                    known.push(i);
                }
            }
        }
        Tensor::with_shape(b.shape(), x)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let all = [("upper", self.upper), ("ta", self.ta), ("unit", self.unit), ("right", self.right)];
        all.map(|(name, flag)| (name, Attr::Bool(flag))).to_vec()
    }

    fn from_attrs(attrs: &Attrs) -> Result<TriangularSolve> {
        attrs.only(&["upper", "ta", "unit", "right"])?;
        let flag = |name| attrs.flag(name);
        Ok(TriangularSolve {
            upper: flag("upper")?,
            ta: flag("ta")?,
            unit: flag("unit")?,
            right: flag("right")?,
        })
    }
}
