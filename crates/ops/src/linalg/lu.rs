//! Factors of matrices with row exchanges.

use super::cuda::{self, Matrix};
use super::panels::{self, BLOCK, LANES, ROWS, together};
use super::{TriangularSolve, matrices, product, triangle};
use crate::layout::{Concat, Reshape, Slice};
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, dims, floats};
use dittograd_device::cpu::gemm::{Factors, add_products};
use dittograd_device::cpu::simd::Simd;
use dittograd_device::cpu::threads::Pool;
use dittograd_device::cuda::Source;
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use std::cmp::Ordering;

/// Rows that float32 can number.
const MAX_ROWS: usize = 1 << 24;

/// `P A = L U` with partial pivoting, for matrices (batch, m, n). The value is one axis: `L` below the diagonal, whose own
/// diagonal is ones, and `U` above and on it (batch, m, n); then the rows of `A` in the order of the factors (batch, m),
/// counted through the whole batch; then the determinants of `P` (batch).
///
/// Column after column, `s = A[i, j]`, then `s = fma(-L[i, k], U[k, j], s)` for increasing `k < min(i, j)`. The pivot is
/// the first of the largest sizes on and below the diagonal, where NaN counts as the largest; its row is exchanged
/// with row `j`, and `L[i, j] = s / pivot`. If all are 0, so are the `L[i, j]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lu {}

fn padded(n: usize) -> usize {
    n.next_multiple_of(LANES)
}

/// Rows of a block: all, if they are few.
fn block(m: usize, n: usize) -> usize {
    padded(m.min(n)).min(BLOCK)
}

/// Words of the panels of a matrix, and of the groups of the rows of a block.
fn words(m: usize, n: usize) -> [usize; 2] {
    [padded(m) * padded(n), block(m, n) * block(m, n)]
}

/// What pivots are compared by: the bits of the size, with one number for every NaN.
fn rank(x: f32) -> u32 {
    if x.is_nan() { u32::MAX } else { x.abs().to_bits() }
}

dittograd_device::cpu::simd::simd_fn! {
    /// Divides the rows below the pivot's row by the pivot in column `c`, and subtracts its row from the columns after it.
    fn eliminate(simd, pivot: &[f32], c: usize, below: &mut [f32]) {
        let Some(pivot) = pivot.first_chunk::<LANES>() else { return };
        let d = pivot[c];
        for row in below.chunks_exact_mut(LANES) {
            let l = if d == 0.0 { row[c] } else { row[c] / d };
            row[c] = l;
            for (j, x) in row.iter_mut().enumerate() {
                let y = (-l).mul_add(pivot[j], *x);
                *x = if j > c { y } else { *x };
            }
        }
    }
}

fn swap_rows(panel: &mut [f32], i: usize, k: usize) {
    if i != k {
        let (low, high) = panel.split_at_mut(i.max(k) * LANES);
        low[i.min(k) * LANES..][..LANES].swap_with_slice(&mut high[..LANES]);
    }
}

/// Rows that a task subtracts products from: few enough that they stay in the closest cache.
const TALL: usize = 128;

/// Packs the groups, each of `group` words, of the rows of the last of some panels, each of `words`, of a block that begins at
/// row `first`.
fn pack(own: &[f32], words: usize, first: usize, groups: &mut [f32], group: usize) {
    let rows = own.len() / words * LANES;
    let groups = groups.chunks_exact_mut(group).enumerate().take(rows / ROWS);
    for (g, group) in groups.skip((rows - LANES) / ROWS) {
        for (k, to) in group.chunks_exact_mut(ROWS).enumerate().take((g + 1) * ROWS) {
            let from = &own[k / LANES * words + (first + g * ROWS) * LANES + k % LANES..];
            to.iter_mut().zip(from.iter().step_by(LANES)).for_each(|(to, l)| *to = -l);
        }
        (0..ROWS).for_each(|r| group[(g * ROWS + r) * ROWS + r] = 1.0);
    }
}

/// Computes the rows of the columns of `own` in a panel on the right, and subtracts their products from the rows below.
fn update(
    pool: &Pool,
    simd: Simd,
    own: &[f32],
    groups: &[f32],
    group: usize,
    first: usize,
    panel: &mut [f32],
) {
    let (words, rows) = (panel.len(), own.len() / panel.len() * LANES);
    panels::solve(simd, &groups[..rows / ROWS * group], group, 0, 0, &mut panel[first * LANES..]);
    let (above, below) = panel.split_at_mut((first + rows) * LANES);
    let mut negated = [0.0; BLOCK * LANES];
    negated.iter_mut().zip(&above[first * LANES..]).for_each(|(to, x)| *to = -x);
    pool.chunks_mut(below, TALL * LANES, |task, below| {
        for (own, negated) in own.chunks_exact(words).zip(negated.chunks_exact(LANES * LANES)) {
            let all = &own[(first + rows + task * TALL) * LANES..];
            add_products(simd, Factors { all, row: LANES, term: 1 }, negated, below);
        }
    });
}

/// Factors the panel whose columns begin at row `first` of the diagonal, and notes the row that each of its rows was exchanged
/// with.
fn factor_panel(simd: Simd, first: usize, own: &mut [f32], m: usize, swaps: &mut [usize]) {
    for (c, swap) in swaps.iter_mut().enumerate() {
        let j = first + c;
        let mut best = (j, rank(own[j * LANES + c]));
        for i in j + 1..m {
            let rank = rank(own[i * LANES + c]);
            if rank > best.1 {
                best = (i, rank);
            }
        }
        *swap = best.0;
        swap_rows(own, j, best.0);
        let (known, below) = own.split_at_mut((j + 1) * LANES);
        eliminate(simd, &known[j * LANES..], c, &mut below[..(m - 1 - j) * LANES]);
    }
}

/// Exchanges rows of a panel from row `first` on.
fn exchange(panel: &mut [f32], first: usize, swaps: &[usize]) {
    swaps.iter().enumerate().for_each(|(c, &k)| swap_rows(panel, first + c, k));
}

/// Factors the matrix of `n` columns in panels, all of `padded(m)` rows, exchanges the numbers of the `m` rows, and returns
/// the sign. A block of panels is factored panel by panel; then all threads compute its rows, and the rows below, in the panels
/// on the right.
fn factor(
    pool: &Pool,
    simd: Simd,
    n: usize,
    all: &mut [f32],
    groups: &mut [f32],
    numbers: &mut [f32],
) -> f32 {
    let m = numbers.len();
    let (words, group, depth) = (padded(m) * LANES, block(m, n) * ROWS, m.min(n));
    let mut sign = 1.0;
    for first in (0..depth).step_by(BLOCK) {
        let end = depth.min(first + BLOCK);
        let (left, rest) = all.split_at_mut(first / LANES * words);
        let (own, right) = rest.split_at_mut((end - first).div_ceil(LANES) * words);
        let mut swaps = [0; BLOCK];
        for from in (first..end).step_by(LANES) {
            let (before, rest) = own.split_at_mut((from - first) / LANES * words);
            let panel = &mut rest[..words];
            if from > first {
                exchange(panel, first, &swaps[..from - first]);
                update(pool, simd, before, groups, group, first, panel);
            }
            let swaps = &mut swaps[from - first..end.min(from + LANES) - first];
            factor_panel(simd, from, panel, m, swaps);
            before.chunks_exact_mut(words).for_each(|panel| exchange(panel, from, swaps));
            pack(&own[..(from - first) / LANES * words + words], words, first, groups, group);
        }
        let swaps = &swaps[..end - first];
        for (j, &k) in (first..).zip(swaps) {
            numbers.swap(j, k);
            sign = if j == k { sign } else { -sign };
        }
        let (own, groups) = (&*own, &*groups);
        pool.chunks_mut(left, words, |_, panel| exchange(panel, first, swaps));
        // Rows that fill a panel are zeros, which no other row reads.
        pool.chunks_mut(right, words, |_, panel| {
            exchange(panel, first, swaps);
            update(pool, simd, own, groups, group, first, panel);
        });
    }
    sign
}

/// Factors one matrix `a` to `lu`, and writes its rows, numbered from `first`, and the sign.
fn whole(
    pool: &Pool,
    simd: Simd,
    a: &[f32],
    first: usize,
    workspace: &mut [f32],
    lu: &mut [f32],
    rows: &mut [f32],
) -> f32 {
    let (m, n) = (rows.len(), a.len() / rows.len());
    let panel = padded(m) * LANES;
    let (all, groups) = workspace.split_at_mut(words(m, n)[0]);
    pool.chunks_mut(all, panel, |p, panel| {
        let width = LANES.min(n - p * LANES);
        panel.fill(0.0);
        for (row, a) in panel.chunks_exact_mut(LANES).zip(a.chunks_exact(n)) {
            row[..width].copy_from_slice(&a[p * LANES..][..width]);
        }
    });
    rows.iter_mut().enumerate().for_each(|(i, row)| *row = (first + i) as f32);
    let sign = factor(pool, simd, n, all, groups, rows);
    let all = &*all;
    pool.chunks_mut(lu, LANES * n, |q, lu| {
        for (i, lu) in (q * LANES..).zip(lu.chunks_exact_mut(n)) {
            for (to, panel) in lu.chunks_mut(LANES).zip(all.chunks_exact(panel)) {
                to.copy_from_slice(&panel[i * LANES..][..to.len()]);
            }
        }
    });
    sign
}

impl Lu {
    fn of(&self, ins: &[Meta]) -> Result<[usize; 3]> {
        floats::<1>(Self::NAME, ins)?;
        let [batch, m, n] = matrices(Self::NAME, &ins[0])?;
        if batch.saturating_mul(m) > MAX_ROWS {
            let why = format!("{} has more than {MAX_ROWS} rows in all; split the batch", ins[0].shape);
            return Err(Error::argument(Self::NAME, "matrix", why));
        }
        Ok([batch, m, n])
    }
}

impl Op for Lu {
    const NAME: &'static str = "lu";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [batch, m, n] = self.of(ins)?;
        Shape::new(&[batch * (m * n + m + 1)]).map(Meta::f32)
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        match self.of(ins) {
            Ok([batch, m, _]) if device.is_cuda() => batch * m,
            Ok([batch, m, n]) => batch.div_ceil(together(m * n)) * words(m, n).iter().sum::<usize>(),
            Err(_) => 0,
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let Ok([batch, m, n]) = self.of(run.metas) else { return };
        let (size, words) = (m * n, words(m, n).iter().sum());
        let (lu, rest) = run.out.split_at_mut(batch * size);
        let (rows, signs) = rest.split_at_mut(batch * m);
        if batch * size == 0 {
            rows.iter_mut().enumerate().for_each(|(i, row)| *row = i as f32);
            return signs.fill(1.0);
        }
        let (a, simd) = (run.ins[0], run.simd);
        if batch < run.pool.threads() {
            let each = lu.chunks_exact_mut(size).zip(rows.chunks_exact_mut(m)).zip(signs);
            for (b, ((lu, rows), sign)) in each.enumerate() {
                let all = &mut run.workspace[..words];
                *sign = whole(run.pool, simd, &a[b * size..][..size], b * m, all, lu, rows);
            }
            return;
        }
        let per = together(size);
        let sizes = [per * size, per * m, per, words];
        run.pool.pieces_mut(
            [lu, rows, signs, run.workspace],
            sizes,
            batch.div_ceil(per),
            |task, [lu, rows, signs, all]| {
                let each = lu.chunks_exact_mut(size).zip(rows.chunks_exact_mut(m)).zip(signs);
                for (b, ((lu, rows), sign)) in (task * per..).zip(each) {
                    *sign = whole(
                        Pool::alone(),
                        simd,
                        &a[b * size..][..size],
                        b * m,
                        &mut all[..words],
                        lu,
                        rows,
                    );
                }
            },
        );
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let [batch, m, n] = self.of(run.metas)?;
        let rows = run.out + 4 * (batch * m * n) as u64;
        cuda::copy(run.cuda, run.ins[0], run.out, batch * m * n)?;
        cuda::lu(run.cuda, Matrix::rows(run.out, m, n), batch, [m, n], run.workspace, rows)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![cuda::module()]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        // With k = min(m, n), the first k rows of L and columns of U are square: L = [L1; L2], U = [U1 U2]. The gradient of the
        // first k rows and columns of P A is L1⁻ᵀ (tril(L1ᵀ dL1 - dU2 U2ᵀ, -1) + triu(dU1 U1ᵀ - L2ᵀ dL2)) U1⁻ᵀ; that of the
        // rows below is dL2 U1⁻ᵀ, that of the columns on the right L1⁻ᵀ dU2.
        let meta = r.meta(io.ins[0]);
        let [batch, m, n] = self.of(&[meta])?;
        let k = m.min(n);
        let take = |r: &mut dyn Recorder, v: Val, start: usize, d: &[usize]| {
            let len = d.iter().product();
            let v = r.record(Slice { axis: 0, start, len, step: 1 }.into(), &[v])?;
            r.record(Reshape { shape: Shape::new(d)? }.into(), &[v])
        };
        let part = |r: &mut dyn Recorder, v: Val, axis: usize, start: usize, len: usize| {
            r.record(Slice { axis, start, len, step: 1 }.into(), &[v])
        };
        let dwhole = take(r, dy, 0, &[batch, m, n])?;
        if batch * m * n == 0 {
            return Ok(vec![Some(dwhole)]);
        }
        let whole = take(r, io.out, 0, &[batch, m, n])?;
        let corner = |r: &mut dyn Recorder, v: Val| match m.cmp(&n) {
            Ordering::Equal => Ok(v),
            Ordering::Greater => part(r, v, 1, 0, k),
            Ordering::Less => part(r, v, 2, 0, k),
        };
        let (lu, dlu) = (corner(r, whole)?, corner(r, dwhole)?);
        let (l, dl) = (triangle(r, lu, false, -1)?, triangle(r, dlu, false, -1)?);
        let (u, du) = (triangle(r, lu, true, 0)?, triangle(r, dlu, true, 0)?);
        let lower = product(r, l, true, dl, false)?;
        let mut lower = r.record(crate::pointwise::Add {}.into(), &[dl, lower])?;
        let mut upper = product(r, du, false, u, true)?;
        let below =
            if m > n { Some((part(r, whole, 1, k, m - k)?, part(r, dwhole, 1, k, m - k)?)) } else { None };
        let right =
            if m < n { Some((part(r, whole, 2, k, n - k)?, part(r, dwhole, 2, k, n - k)?)) } else { None };
        if let Some((l2, dl2)) = below {
            let less = product(r, l2, true, dl2, false)?;
            upper = r.record(crate::pointwise::Sub {}.into(), &[upper, less])?;
        }
        if let Some((u2, du2)) = right {
            let less = product(r, du2, false, u2, true)?;
            lower = r.record(crate::pointwise::Sub {}.into(), &[lower, less])?;
        }
        let lower = triangle(r, lower, false, -1)?;
        let upper = triangle(r, upper, true, 0)?;
        let mut both = r.record(crate::pointwise::Add {}.into(), &[lower, upper])?;
        let by_l = TriangularSolve { upper: false, ta: true, unit: true, right: false };
        let by_u = TriangularSolve { upper: true, ta: true, unit: false, right: true };
        both = r.record(by_l.into(), &[lu, both])?;
        both = r.record(by_u.into(), &[lu, both])?;
        if let Some((_, dl2)) = below {
            let more = r.record(by_u.into(), &[lu, dl2])?;
            both = r.record(Concat { axis: 1 }.into(), &[both, more])?;
        }
        if let Some((_, du2)) = right {
            let more = r.record(by_l.into(), &[lu, du2])?;
            both = r.record(Concat { axis: 2 }.into(), &[both, more])?;
        }
        let both = r.record(Reshape { shape: Shape::new(&[batch * m, n])? }.into(), &[both])?;
        let rows = take(r, io.out, batch * m * n, &[batch * m])?;
        let rows = r.record(crate::index::ToIndex { below: (batch * m) as u32 }.into(), &[rows])?;
        let back = crate::index::IndexAdd { axis: 0, size: batch * m, checked: true };
        let back = r.record(back.into(), &[both, rows])?;
        Ok(vec![Some(r.record(Reshape { shape: meta.shape }.into(), &[back])?)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let a = ins[0].num()?;
        let [batch, rows, columns] = self.of(&[ins[0].meta()])?;
        let mut lu = a.data().to_vec();
        let (mut numbers, mut signs) = (Vec::new(), Vec::new());
        let is_nan = |x: T| x.partial_cmp(&x).is_none();
        for b in 0..batch {
            let m = &mut lu[b * rows * columns..(b + 1) * rows * columns];
            let at = |i: usize, j: usize| i * columns + j;
            let mut order: Vec<usize> = (0..rows).collect();
            let mut sign = 1.0;
            for j in 0..columns {
                for i in 0..rows {
                    m[at(i, j)] = (0..i.min(j)).fold(m[at(i, j)], |s, k| (-m[at(i, k)]).fma(m[at(k, j)], s));
                }
                if j >= rows {
                    continue;
                }
                let mut p = j;
                for i in j + 1..rows {
                    let (x, best) = (m[at(i, j)].abs(), m[at(p, j)].abs());
                    if !is_nan(best) && (is_nan(x) || x > best) {
                        p = i;
                    }
                }
                if p != j {
                    (0..columns).for_each(|k| m.swap(at(j, k), at(p, k)));
                    order.swap(j, p);
                    sign = -sign;
                }
                let pivot = m[at(j, j)];
                for i in j + 1..rows {
                    if pivot.abs() > T::c(0.0) || is_nan(pivot) {
                        m[at(i, j)] = m[at(i, j)] / pivot;
                    }
                }
            }
            numbers.extend(order.into_iter().map(|i| T::c((b * rows + i) as f64)));
            signs.push(T::c(sign));
        }
        lu.extend(numbers);
        lu.extend(signs);
        Tensor::with_shape(dims(&[lu.len()]), lu)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        Vec::new()
    }

    fn from_attrs(attrs: &Attrs) -> Result<Lu> {
        attrs.only(&[])?;
        Ok(Lu {})
    }
}
