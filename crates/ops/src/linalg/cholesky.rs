//! The factor of symmetric positive definite matrices.

use super::cuda::{self, Matrix};
use super::panels::{self, BLOCK, LANES, ROWS, together};
use super::{TriangularSolve, product, scaled_sum, square, triangle};
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, floats};
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_device::cpu::threads::Pool;
use dittograd_device::cuda::Source;
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::{Real, Scalar};
use dittograd_numerics::tensor::Tensor;
use std::ops::Range;

/// The lower triangular `L` with `L Lᵀ = S`, or with `upper` its transpose, for matrices (batch, n, n). `S` is the
/// symmetric part of the input, `S[i, j] = (A[i, j] + A[j, i]) / 2`. A matrix that is not positive definite has NaN from
/// the first pivot that is not above 0.
///
/// For `i >= j`: `s = S[i, j]`, then `s = fma(-L[i, k], L[j, k], s)` for `k = 0 … j - 1`. `L[j, j] = sqrt(s)`, and
/// `L[i, j] = s / L[j, j]` below the diagonal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cholesky {
    /// Whether the value is the upper factor.
    pub upper: bool,
}

/// The pivot: the root of a number above 0, else NaN.
#[inline(always)]
fn root<R: Real>(s: R) -> R {
    R::where_gt(s, R::c(0.0), s.sqrt(), R::c(f64::NAN))
}

/// Rows and columns of the panels of a matrix.
fn padded(n: usize) -> usize {
    n.next_multiple_of(LANES)
}

/// Words of the panels of a matrix, and of the groups of rows that are packed at a time.
fn words(n: usize) -> [usize; 2] {
    [padded(n) * padded(n), padded(n) * padded(n).min(BLOCK)]
}

/// Copies panel `p` of the symmetric part of a matrix, square by square. Only the upper triangle counts; what is added to fill a
/// panel is the identity.
fn load(a: &[f32], n: usize, p: usize, panel: &mut [f32]) {
    let from = p * LANES;
    let columns = LANES.min(n - from);
    for (q, square) in panel.chunks_exact_mut(LANES * LANES).enumerate().take(p + 1) {
        let first = q * LANES;
        let rows = LANES.min(n - first);
        if rows.min(columns) < LANES {
            let same = |at: usize| f32::from(u8::from(first + at / LANES == from + at % LANES));
            square.iter_mut().enumerate().for_each(|(at, x)| *x = same(at));
        }
        for l in 0..columns {
            let a = &a[(from + l) * n + first..][..rows];
            a.iter().zip(square.chunks_exact_mut(LANES)).for_each(|(a, row)| row[l] = *a);
        }
        for (j, row) in square.chunks_exact_mut(LANES).enumerate().take(rows) {
            let a = &a[(first + j) * n + from..][..columns];
            row.iter_mut().zip(a).for_each(|(x, a)| *x = 0.5 * (a + *x));
        }
    }
}

/// Writes rows of the lower factor: the columns of panel `p`, square by square.
fn store_lower(panel: &[f32], n: usize, p: usize, out: &mut [f32]) {
    for (square, first) in panel.chunks_exact(LANES * LANES).zip((0..n).step_by(LANES)).take(p + 1) {
        for (l, out) in out.chunks_exact_mut(n).enumerate() {
            let to = out[first..].iter_mut().take(LANES);
            to.zip(square.chunks_exact(LANES)).for_each(|(to, row)| *to = row[l]);
        }
    }
    for (l, out) in out.chunks_exact_mut(n).enumerate() {
        out[p * LANES + l + 1..].fill(0.0);
    }
}

/// Writes rows of the upper factor, from row `p * LANES` on.
fn store_upper(all: &[f32], n: usize, p: usize, out: &mut [f32]) {
    for (l, out) in out.chunks_exact_mut(n).enumerate() {
        let i = p * LANES + l;
        let panels = all.chunks_exact(padded(n) * LANES).skip(p);
        for (to, panel) in out[p * LANES..].chunks_mut(LANES).zip(panels) {
            to.copy_from_slice(&panel[i * LANES..][..to.len()]);
        }
        out[..i].fill(0.0);
    }
}

simd_fn! {
    /// Factors a group of rows, which begins at column `at` of the panel on its diagonal.
    fn factor_group(simd, at: usize, rows: &mut [f32]) {
        let (rows, _) = rows.as_chunks_mut::<LANES>();
        let Some(rows) = rows.first_chunk_mut::<ROWS>() else { return };
        for r in 0..ROWS {
            let mut row = rows[r];
            for above in &rows[..r] {
                let m = -above[at + r];
                for l in 0..LANES {
                    row[l] = m.mul_add(above[l], row[l]);
                }
            }
            let pivot = root(row[at + r]);
            row.iter_mut().for_each(|x| *x /= pivot);
            row[at + r] = pivot;
            rows[r] = row;
        }
    }
}

/// Packs known rows of a panel as factors of a group, whose first column in the panel is `at`.
fn pack(panel: &[f32], at: usize, known: Range<usize>, group: &mut [f32]) {
    let rows = panel[known.start * LANES..known.end * LANES].chunks_exact(LANES);
    for (to, row) in group[known.start * ROWS..].chunks_exact_mut(ROWS).zip(rows) {
        to.iter_mut().zip(&row[at..]).for_each(|(to, x)| *to = -x);
    }
}

/// The groups of a panel, and the column at which each begins.
fn groups(all: &mut [f32]) -> impl Iterator<Item = (usize, &mut [f32])> {
    let words = all.len() * ROWS / LANES;
    (0..LANES).step_by(ROWS).zip(all.chunks_exact_mut(words))
}

/// Factors the matrix in panels: the upper factor takes its place. For each block of rows, its groups are packed as far as they
/// are known; all threads subtract the products of the rows above from its panels; these are factored; and all threads compute
/// the rows of the block in the other panels.
fn factor(pool: &Pool, simd: Simd, n: usize, all: &mut [f32], packed: &mut [f32]) {
    let (words, group) = (padded(n) * LANES, padded(n) * ROWS);
    for first in (0..padded(n)).step_by(BLOCK) {
        let end = padded(n).min(first + BLOCK);
        let (done, rest) = all.split_at_mut(end * padded(n));
        let own = &mut done[first * padded(n)..];
        let packed = &mut packed[..own.len()];
        if first > 0 {
            pool.pairs_mut((packed, words), (own, words), |_, packed, own| {
                groups(packed).for_each(|(at, group)| pack(own, at, 0..first, group));
            });
            let packed = &*packed;
            pool.chunks_mut(own, words, |p, own| {
                panels::subtract(simd, &packed[..(p + 1) * words], group, 0..first, first, own);
            });
        }
        for (p, own) in own.chunks_exact_mut(words).enumerate() {
            let (known, packed) = packed.split_at_mut(p * words);
            panels::solve(simd, known, group, first, first, own);
            for (at, packed) in groups(&mut packed[..words]) {
                let from = first + p * LANES + at;
                pack(own, at, first..from, packed);
                panels::subtract(simd, packed, group, first..from, from, own);
                factor_group(simd, at, &mut own[from * LANES..]);
                pack(own, at, from..from + ROWS, packed);
                (0..ROWS).for_each(|r| packed[(from + r) * ROWS + r] *= -1.0);
            }
        }
        let packed = &*packed;
        pool.chunks_mut(rest, words, |_, panel| {
            panels::subtract(simd, packed, group, 0..first, first, panel);
            panels::solve(simd, packed, group, first, first, panel);
        });
    }
}

impl Cholesky {
    /// Factors one matrix `a` to `out`.
    fn whole(&self, pool: &Pool, simd: Simd, n: usize, a: &[f32], workspace: &mut [f32], out: &mut [f32]) {
        let (all, packed) = workspace.split_at_mut(words(n)[0]);
        let panel = padded(n) * LANES;
        pool.chunks_mut(all, panel, |p, panel| load(a, n, p, panel));
        factor(pool, simd, n, all, packed);
        let all = &*all;
        pool.chunks_mut(out, LANES * n, |p, out| match self.upper {
            true => store_upper(all, n, p, out),
            false => store_lower(&all[p * panel..][..panel], n, p, out),
        });
    }
}

impl Op for Cholesky {
    const NAME: &'static str = "cholesky";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [a] = floats(Self::NAME, ins)?.map(Meta::f32);
        square(Self::NAME, &a)?;
        Ok(a)
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        match square(Self::NAME, &ins[0]) {
            Ok(_) if device.is_cuda() => cuda::CHOLESKY_WORKSPACE,
            Ok([batch, n]) => batch.div_ceil(together(n * n)) * words(n).iter().sum::<usize>(),
            Err(_) => 0,
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let n = run.shape.last();
        if run.out.is_empty() {
            return;
        }
        let (a, simd, square, words) = (run.ins[0], run.simd, n * n, words(n).iter().sum());
        let each = |pool: &Pool, a: &[f32], workspace: &mut [f32], out: &mut [f32]| {
            let ones = a.chunks_exact(square).zip(out.chunks_exact_mut(square));
            ones.for_each(|(a, out)| self.whole(pool, simd, n, a, &mut workspace[..words], out));
        };
        if a.len() / square < run.pool.threads() {
            return each(run.pool, a, run.workspace, run.out);
        }
        let per = together(square);
        run.pool.pairs_mut((run.out, per * square), (run.workspace, words), |task, out, workspace| {
            each(Pool::alone(), &a[task * per * square..], workspace, out);
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let [batch, n] = square(Self::NAME, &run.metas[0])?;
        let l = Matrix::rows(run.out, n, n);
        let l = if self.upper { l.transposed() } else { l };
        cuda::cholesky(run.cuda, run.ins[0], l, batch, n, run.workspace)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![cuda::module()]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        // dS = L⁻ᵀ Φ(Lᵀ dL) L⁻¹ with Φ the lower triangle with half the diagonal, and dA its symmetric part.
        let Cholesky { upper } = *self;
        let dy = triangle(r, dy, upper, 0)?;
        let inner = product(r, io.out, !upper, dy, upper)?;
        let [with, below] = [0, -1].map(|shift| triangle(r, inner, false, shift));
        let half = scaled_sum(r, with?, below?, 0.5)?;
        let left = TriangularSolve { upper, ta: !upper, unit: false, right: false };
        let left = r.record(left.into(), &[io.out, half])?;
        let both = TriangularSolve { upper, ta: upper, unit: false, right: true };
        let both = r.record(both.into(), &[io.out, left])?;
        let other = r.record(crate::layout::Permute { order: vec![0, 2, 1] }.into(), &[both])?;
        Ok(vec![Some(scaled_sum(r, both, other, 0.5)?)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let a = ins[0].num()?;
        let n = a.shape().last();
        let mut y = vec![T::c(0.0); a.data().len()];
        for (a, y) in a.data().chunks(n.max(1) * n.max(1)).zip(y.chunks_mut(n.max(1) * n.max(1))) {
            let at = |i: usize, j: usize| if self.upper { j * n + i } else { i * n + j };
            for j in 0..n {
                for i in j..n {
                    let s = T::c(0.5) * (a[i * n + j] + a[j * n + i]);
                    let s = (0..j).fold(s, |s, k| (-y[at(i, k)]).fma(y[at(j, k)], s));
                    y[at(i, j)] = if i == j { root(s) } else { s / y[at(j, j)] };
                }
            }
        }
        Tensor::with_shape(a.shape(), y)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("upper", Attr::Bool(self.upper))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Cholesky> {
        attrs.only(&["upper"])?;
        Ok(Cholesky { upper: attrs.flag("upper")? })
    }
}
