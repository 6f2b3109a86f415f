//! The factor of symmetric positive definite matrices.

use super::cuda::{self, Matrix};
use super::panels::{self, LANES, ROWS};
use super::{TriangularSolve, product, scaled_sum, square, triangle};
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, floats};
use dittograd_device::cpu::simd::Simd;
use dittograd_device::cpu::threads::Pool;
use dittograd_device::cuda::Source;
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::{Real, Scalar};
use dittograd_numerics::tensor::Tensor;

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
pub(super) fn root<R: Real>(s: R) -> R {
    R::where_gt(s, R::c(0.0), s.sqrt(), R::c(f64::NAN))
}

/// Rows and columns of the panels of a matrix.
fn padded(n: usize) -> usize {
    n.next_multiple_of(LANES)
}

/// Copies the symmetric part of a matrix to panels. Only the upper triangle counts; what is added to fill a panel is the
/// identity.
fn load(a: &[f32], n: usize, all: &mut [f32]) {
    let words = padded(n) * LANES;
    for (p, panel) in all.chunks_exact_mut(words).enumerate() {
        for (j, row) in panel.chunks_exact_mut(LANES).enumerate().take((p + 1) * LANES) {
            for (l, to) in row.iter_mut().enumerate() {
                let i = p * LANES + l;
                *to = match i < n && j < n {
                    true => 0.5 * (a[i * n + j] + a[j * n + i]),
                    false => f32::from(u8::from(i == j)),
                };
            }
        }
    }
}

/// Panels that are factored before all threads finish their rows in the others: a panel stays in cache while it gets the rows
/// of them all.
const TOGETHER: usize = 4;

/// The rows of panel `b` on the diagonal, in groups: the first row, and its column in the panel.
fn groups(b: usize) -> [(usize, usize); 2] {
    [0, ROWS].map(|at| (b * LANES + at, at))
}

/// Finishes the rows of the factored panel `b`, which is `own`, in a panel on its right.
fn finish(simd: Simd, own: &[f32], b: usize, panel: &mut [f32]) {
    for (from, at) in groups(b) {
        let mut rows = panels::read(panel, from);
        let (x, m) = (&panel[..from * LANES], &own[..from * LANES]);
        panels::subtract(simd, m, LANES, at, x, &mut rows);
        let mut corner = [[0.0; ROWS]; ROWS];
        for (k, corner) in corner.iter_mut().enumerate() {
            corner.copy_from_slice(&own[(from + k) * LANES + at..][..ROWS]);
        }
        panels::substitute(simd, &corner, &mut rows);
        panels::write(panel, from, &rows);
    }
}

/// Factors the matrix in panels: the upper factor takes its place.
fn factor(pool: &Pool, simd: Simd, n: usize, all: &mut [f32]) {
    let (words, count) = (padded(n) * LANES, padded(n) / LANES);
    for first in (0..count).step_by(TOGETHER) {
        let end = count.min(first + TOGETHER);
        let (done, rest) = all.split_at_mut(end * words);
        for b in first..end {
            let (left, own) = done.split_at_mut(b * words);
            let own = &mut own[..words];
            for (b, left) in left.chunks_exact(words).enumerate().skip(first) {
                finish(simd, left, b, own);
            }
            for (from, at) in groups(b) {
                let mut rows = panels::read(own, from);
                panels::subtract(simd, &own[..from * LANES], LANES, at, &own[..from * LANES], &mut rows);
                panels::factor(simd, at, &mut rows);
                panels::write(own, from, &rows);
            }
        }
        let done = &*done;
        pool.chunks_mut(rest, words, |_, panel| {
            for (b, own) in done.chunks_exact(words).enumerate().skip(first) {
                finish(simd, own, b, panel);
            }
        });
    }
}

const _: () = assert!(LANES == 2 * ROWS, "a panel has two groups of rows on the diagonal");

impl Op for Cholesky {
    const NAME: &'static str = "cholesky";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [a] = floats(Self::NAME, ins)?.map(Meta::f32);
        square(Self::NAME, &a)?;
        Ok(a)
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        match square(Self::NAME, &ins[0]) {
            Ok([batch, n]) if !device.is_cuda() => batch * padded(n) * padded(n),
            _ => 0,
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let n = run.shape.last();
        if run.out.is_empty() {
            return;
        }
        let (a, all, words) = (run.ins[0], run.workspace, padded(n) * padded(n));
        if run.out.len() / (n * n) >= run.pool.threads() {
            let each = (16 * 1024 / words).max(1);
            run.pool.chunks_mut(all, each * words, |task, all| {
                for (b, all) in all.chunks_exact_mut(words).enumerate() {
                    load(&a[(task * each + b) * n * n..][..n * n], n, all);
                    factor(Pool::alone(), run.simd, n, all);
                }
            });
        } else {
            for (a, all) in a.chunks_exact(n * n).zip(all.chunks_exact_mut(words)) {
                load(a, n, all);
                factor(run.pool, run.simd, n, all);
            }
        }
        let all = &*all;
        let rows = (16 * 1024 / n).max(1);
        run.pool.chunks_mut(run.out, rows * n, |task, out| {
            for (at, out) in out.chunks_exact_mut(n).enumerate() {
                let (b, i) = ((task * rows + at) / n, (task * rows + at) % n);
                let one = &all[b * words..(b + 1) * words];
                let upper = |j: usize, i: usize| one[(i / LANES * padded(n) + j) * LANES + i % LANES];
                for (j, out) in out.iter_mut().enumerate() {
                    *out = match self.upper {
                        true if j >= i => upper(i, j),
                        false if j <= i => upper(j, i),
                        _ => 0.0,
                    };
                }
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let [batch, n] = square(Self::NAME, &run.metas[0])?;
        let l = Matrix::rows(run.out, n, n);
        let l = if self.upper { l.transposed() } else { l };
        cuda::cholesky(run.cuda, run.ins[0], l, batch, n)
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
