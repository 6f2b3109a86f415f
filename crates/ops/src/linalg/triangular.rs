//! Systems of equations with triangular matrices.

use super::cuda::{self, Matrix};
use super::panels::{self, BLOCK, LANES, ROWS, together};
use super::{product, square, triangle};
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, floats, mismatch};
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_device::cpu::threads::Pool;
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

    /// Elements of a row of the right-hand sides.
    fn line(&self) -> usize {
        if self.right { self.n } else { self.m }
    }

    /// Packs the equations from step `from` on as a group.
    fn load(&self, a: &[f32], from: usize, group: &mut [f32]) {
        let (count, n) = (ROWS.min(self.n - from), self.n);
        let (known, square) = group.split_at_mut(from * ROWS);
        let (known, _) = known.as_chunks_mut::<ROWS>();
        if count < ROWS {
            known.fill([0.0; ROWS]);
        }
        if self.transposed {
            for (k, to) in known.iter_mut().enumerate() {
                let a = &a[self.unknown(k) * n..][..n];
                (0..count).for_each(|r| to[r] = -a[self.unknown(from + r)]);
            }
        } else {
            for r in 0..count {
                let a = &a[self.unknown(from + r) * n..][..n];
                match self.backward {
                    true => known.iter_mut().zip(a.iter().rev()).for_each(|(to, a)| to[r] = -a),
                    false => known.iter_mut().zip(a).for_each(|(to, a)| to[r] = -a),
                }
            }
        }
        for (k, to) in square.chunks_exact_mut(ROWS).enumerate().take(ROWS) {
            to.fill(0.0);
            to[k] = if self.unit || k >= count { 1.0 } else { a[self.coefficient(from + k, from + k)] };
            (k + 1..count).for_each(|r| to[r] = -a[self.coefficient(from + r, from + k)]);
        }
    }

    /// Copies the right-hand sides from `column` on to a panel, square by square.
    fn load_values(&self, b: &[f32], column: usize, panel: &mut [f32]) {
        let width = LANES.min(self.m - column);
        if width < LANES || self.n < self.padded() {
            panel.fill(0.0);
        }
        for first in (0..self.n).step_by(LANES) {
            let steps = first..self.n.min(first + LANES);
            if self.right {
                for l in 0..width {
                    let b = &b[(column + l) * self.n..][..self.n];
                    steps.clone().for_each(|i| panel[i * LANES + l] = b[self.unknown(i)]);
                }
            } else {
                for i in steps {
                    let b = &b[self.unknown(i) * self.m + column..][..width];
                    panel[i * LANES..][..width].copy_from_slice(b);
                }
            }
        }
    }

    /// Writes rows of the solution from row `first` on.
    fn store(&self, panels: &[f32], first: usize, out: &mut [f32]) {
        let words = self.words()[1];
        if !self.right {
            for (row, out) in out.chunks_exact_mut(self.m).enumerate() {
                let i = self.unknown(first + row);
                for (to, panel) in out.chunks_mut(LANES).zip(panels.chunks_exact(words)) {
                    to.copy_from_slice(&panel[i * LANES..][..to.len()]);
                }
            }
            return;
        }
        let panel = &panels[first / LANES * words..][..words];
        for steps in (0..self.n).step_by(LANES).map(|i| i..self.n.min(i + LANES)) {
            for (l, out) in out.chunks_exact_mut(self.n).enumerate() {
                steps.clone().for_each(|i| out[self.unknown(i)] = panel[i * LANES + l]);
            }
        }
    }

    /// The words of the equations, and of one panel of right-hand sides.
    fn words(&self) -> [usize; 2] {
        [self.padded() * self.padded(), self.padded() * LANES]
    }

    /// The words of the workspace of one system. One right-hand side needs no panel.
    fn workspace(&self) -> usize {
        if self.m == 1 {
            return self.n;
        }
        let [equations, panel] = self.words();
        equations + self.m.div_ceil(LANES) * panel
    }

    /// Solves one system.
    fn whole(&self, pool: &Pool, simd: Simd, [a, b]: [&[f32]; 2], workspace: &mut [f32], out: &mut [f32]) {
        if self.m == 1 {
            workspace.iter_mut().enumerate().for_each(|(i, x)| *x = b[self.unknown(i)]);
            single(simd, self, a, workspace);
            return workspace.iter().enumerate().for_each(|(i, x)| out[self.unknown(i)] = *x);
        }
        let (group, [equations, panel]) = (self.padded() * ROWS, self.words());
        let (equations, panels) = workspace.split_at_mut(equations);
        let each = (4 * 1024 / group).max(1);
        pool.chunks_mut(equations, each * group, |task, groups| {
            for (g, to) in groups.chunks_exact_mut(group).enumerate() {
                self.load(a, (task * each + g) * ROWS, to);
            }
        });
        let equations = &*equations;
        pool.chunks_mut(panels, panel, |p, panel| {
            self.load_values(b, p * LANES, panel);
            for (i, block) in equations.chunks(BLOCK / ROWS * group).enumerate() {
                panels::subtract(simd, block, group, 0..i * BLOCK, i * BLOCK, panel);
                panels::solve(simd, block, group, i * BLOCK, i * BLOCK, panel);
            }
        });
        let panels = &*panels;
        pool.chunks_mut(out, LANES * self.line(), |q, out| self.store(panels, q * LANES, out));
    }

    fn cpu(&self, run: CpuRun<'_>) {
        if run.out.is_empty() {
            return;
        }
        let (a, b, simd, words) = (run.ins[0], run.ins[1], run.simd, self.workspace());
        let (square, values) = (self.n * self.n, self.n * self.m);
        let each = |pool: &Pool, first: usize, workspace: &mut [f32], out: &mut [f32]| {
            for (e, out) in (first..).zip(out.chunks_exact_mut(values)) {
                let ins = [&a[e * square..][..square], &b[e * values..][..values]];
                self.whole(pool, simd, ins, &mut workspace[..words], out);
            }
        };
        if self.batch < run.pool.threads() {
            return each(run.pool, 0, run.workspace, run.out);
        }
        let per = together(words);
        run.pool.pairs_mut((run.out, per * values), (run.workspace, words), |task, out, workspace| {
            each(Pool::alone(), task * per, workspace, out);
        });
    }
}

simd_fn! {
    /// Solves for one right-hand side, in the order of steps.
    fn single(simd, system: &System, a: &[f32], x: &mut [f32]) {
        let &System { n, transposed, backward, unit, .. } = system;
        for from in (0..n).step_by(ROWS) {
            let count = ROWS.min(n - from);
            let (known, rest) = x.split_at_mut(from);
            let mut sums = [0.0; ROWS];
            sums[..count].copy_from_slice(&rest[..count]);
            if count < ROWS {
                for (k, x) in known.iter().enumerate() {
                    for r in 0..count {
                        sums[r] = (-a[system.coefficient(from + r, k)]).mul_add(*x, sums[r]);
                    }
                }
            } else if transposed {
                let first = if backward { n - from - ROWS } else { from };
                for (k, x) in known.iter().enumerate() {
                    let a = &a[system.unknown(k) * n + first..][..ROWS];
                    for r in 0..ROWS {
                        sums[r] = (-a[if backward { ROWS - 1 - r } else { r }]).mul_add(*x, sums[r]);
                    }
                }
            } else {
                let mut lines = [a; ROWS];
                for (r, line) in lines.iter_mut().enumerate() {
                    *line = &a[system.unknown(from + r) * n + if backward { n - from } else { 0 }..][..from];
                }
                for (k, x) in known.iter().enumerate() {
                    let k = if backward { from - 1 - k } else { k };
                    for r in 0..ROWS {
                        sums[r] = (-lines[r][k]).mul_add(*x, sums[r]);
                    }
                }
            }
            for r in 0..count {
                for k in 0..r {
                    sums[r] = (-a[system.coefficient(from + r, from + k)]).mul_add(sums[k], sums[r]);
                }
                if !unit {
                    sums[r] /= a[system.coefficient(from + r, from + r)];
                }
            }
            rest[..count].copy_from_slice(&sums[..count]);
        }
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
            Ok(s) if !device.is_cuda() => s.batch.div_ceil(together(s.workspace())) * s.workspace(),
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
