//! Orthogonal factors by reflections.

use super::cuda;
use super::panels::{self, LANES, ROWS, Rows};
use super::{TriangularSolve, matrices, product, triangle};
use crate::layout::{Permute, Reshape, Slice};
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, dims, floats};
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_device::cpu::threads::Pool;
use dittograd_device::cuda::Source;
use dittograd_device::{Device, Meta};
use dittograd_numerics::K_CHUNK;
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// Columns of a block.
pub(super) const BLOCK: usize = 32;

/// Columns with an element of this size are multiplied by [`DOWN`] before they are factored, so that no sum of squares overflows.
pub(super) const LARGE: f32 = 281_474_976_710_656.0; // 2^48
/// Columns of smaller elements only are multiplied by [`UP`], so that no sum of squares underflows.
pub(super) const SMALL: f32 = 1.0 / LARGE;
pub(super) const DOWN: f32 = 1.0 / 1_208_925_819_614_629_174_706_176.0; // 2^-80
pub(super) const UP: f32 = 1_267_650_600_228_229_401_496_703_205_376.0; // 2^100

/// `A = Q R` for matrices (batch, m, n) with `m >= n`. The value is one axis: `R` (batch, n, n), zeros below the diagonal; `Q`
/// (batch, m, n), whose columns are orthogonal; then the reflections that `Q` is the product of, `V` (batch, m, n) with ones on
/// the diagonal and zeros above it, and `tau` (batch, n). Reflection `j` is `I - tau[j] v vᵀ` with column `j` of `V` as `v`.
/// There are no gradients by `V` and `tau`.
///
/// A column with a magnitude of 2^48 or more is first multiplied by 2^-80, one with all magnitudes below 2^-48 by 2^100; at the end its
/// column of `R` is divided by that. Nothing else depends on it, as a reflection does not depend on the size of its column.
///
/// Columns are in blocks of 32, and all sums over rows are dot products by C4. Column `j` of a block has
/// `s = Σ x[i]²` below the diagonal element `a`. If `s` is 0, `tau` is 0. Else the diagonal of `R` is
/// `b = -sqrt(fma(a, a, s))` with the sign of `a` exchanged, `tau = (b - a) / b`, and `v = x / (a - b)`. A later column `y` of
/// the block has `t = tau (y[j] + (Σ x[i] y[i]) / (a - b))`, `y[j] -= t`, and `y[i] = fma(-v[i], t, y[i])` below.
///
/// A later block `Y` has `W = Vᵀ Y`, then `s = W[q]`, `s = fma(-G[p, q], T[p], s)` for increasing `p < q`, and
/// `T[q] = tau[q] s`, where `G = Vᵀ V`; then `Y[i] = fma(-V[i, q], T[q], Y[i])` for increasing `q`. `Q` starts from the identity,
/// and blocks are applied to it in this way from the last one on, with decreasing `p > q`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Qr {}

/// How a matrix lies in memory.
#[derive(Clone, Copy)]
struct Sizes {
    m: usize,
    n: usize,
}

impl Sizes {
    /// Rows of panels.
    fn rows(self) -> usize {
        self.m.next_multiple_of(ROWS)
    }

    fn blocks(self) -> usize {
        self.n.div_ceil(BLOCK)
    }

    /// Words of a panel of [`LANES`] columns.
    fn panel(self) -> usize {
        self.rows() * LANES
    }

    /// Words of all panels, which fill whole blocks, and of the reflections.
    fn square(self) -> usize {
        self.rows() * self.blocks() * BLOCK
    }

    /// Words of the products of the reflections of all blocks.
    fn grams(self) -> usize {
        self.blocks() * BLOCK * BLOCK
    }

    /// Words of one matrix: panels, reflections, their products, and a factor for each column.
    fn words(self) -> usize {
        2 * self.square() + self.grams() + self.blocks() * BLOCK
    }

    /// Reflections of a block.
    fn width(self, block: usize) -> usize {
        BLOCK.min(self.n - block * BLOCK)
    }
}

simd_fn! {
    /// Adds the products of column `c` of rows with all of their columns.
    fn squares(simd, rows: &[f32], c: usize, sums: &mut [f32; BLOCK]) {
        let mut all = *sums;
        for row in rows.chunks_exact(BLOCK) {
            let Some(row) = row.first_chunk::<BLOCK>() else { break };
            let x = row[c];
            for l in 0..BLOCK {
                all[l] = x.mul_add(row[l], all[l]);
            }
        }
        *sums = all;
    }
}

simd_fn! {
    /// Applies the reflection of column `c` to the columns after it, and divides that column by `d`.
    fn reflect(simd, rows: &mut [f32], c: usize, d: f32, t: &[f32; BLOCK]) {
        for row in rows.chunks_exact_mut(BLOCK) {
            let v = row[c] / d;
            row[c] = v;
            for (l, x) in row.iter_mut().enumerate() {
                let y = (-v).mul_add(t[l], *x);
                *x = if l > c { y } else { *x };
            }
        }
    }
}

simd_fn! {
    /// Adds the products of [`ROWS`] columns of reflections, from `at` on, with rows of `width` elements.
    fn dots(simd, v: &[f32], at: usize, x: &[f32], width: usize, sums: &mut Rows) {
        let mut all = *sums;
        for (v, x) in v.chunks_exact(BLOCK).zip(x.chunks(width)) {
            let (Some(v), Some(x)) = (v[at..].first_chunk::<ROWS>(), x.first_chunk::<LANES>()) else { break };
            for r in 0..ROWS {
                for l in 0..LANES {
                    all[r][l] = v[r].mul_add(x[l], all[r][l]);
                }
            }
        }
        *sums = all;
    }
}

simd_fn! {
    /// Subtracts the products of [`ROWS`] rows of reflections with the rows of `t`.
    fn subtract(simd, v: &[f32], t: &[f32], rows: &mut Rows) {
        let Some(v) = v.first_chunk::<{ ROWS * BLOCK }>() else { return };
        let mut all = *rows;
        for (q, t) in t.chunks_exact(LANES).take(BLOCK).enumerate() {
            let Some(t) = t.first_chunk::<LANES>() else { break };
            for r in 0..ROWS {
                let m = -v[r * BLOCK + q];
                for l in 0..LANES {
                    all[r][l] = m.mul_add(t[l], all[r][l]);
                }
            }
        }
        *rows = all;
    }
}

/// Dot products by C4 of [`ROWS`] columns of reflections from `at` on with `count` rows of `width` elements.
fn products(simd: Simd, v: &[f32], at: usize, x: &[f32], width: usize, count: usize) -> Rows {
    let mut all = [[0.0; LANES]; ROWS];
    for first in (0..count).step_by(K_CHUNK) {
        let rows = K_CHUNK.min(count - first);
        let mut sums = [[0.0; LANES]; ROWS];
        let x = &x[first * width..x.len().min((first + rows) * width)];
        dots(simd, &v[first * BLOCK..][..rows * BLOCK], at, x, width, &mut sums);
        match first {
            0 => all = sums,
            _ => all.as_flattened_mut().iter_mut().zip(sums.as_flattened()).for_each(|(a, s)| *a += s),
        }
    }
    all
}

/// Reflections of a block with their products `G` and factors.
struct Block<'a> {
    simd: Simd,
    /// Rows and columns that count.
    rows: usize,
    v: &'a [f32],
    gram: &'a [f32],
    tau: &'a [f32],
}

impl Block<'_> {
    /// Applies the product of the reflections, or its transpose, to a panel that starts at the first row of the block.
    fn apply(&self, panel: &mut [f32], transposed: bool) {
        let width = self.tau.len();
        let mut t = [[0.0; LANES]; BLOCK];
        for at in (0..width).step_by(ROWS) {
            let sums = products(self.simd, self.v, at, panel, LANES, self.rows);
            t[at..at + ROWS].copy_from_slice(&sums);
        }
        for step in 0..width {
            let index = |step: usize| if transposed { step } else { width - 1 - step };
            let q = index(step);
            let mut s = t[q];
            for p in (0..step).map(index) {
                let g = -self.gram[p * BLOCK + q];
                s.iter_mut().zip(t[p]).for_each(|(s, t)| *s = g.mul_add(t, *s));
            }
            t[q] = s.map(|s| self.tau[q] * s);
        }
        let t = &t.as_flattened()[..width * LANES];
        for from in (0..self.rows).step_by(ROWS) {
            let mut rows = panels::read(panel, from);
            subtract(self.simd, &self.v[from * BLOCK..], t, &mut rows);
            panels::write(panel, from, &rows);
        }
    }
}

/// Finds the reflections of the `rows` rows of a block, in place, and leaves `R` above them.
fn factor(simd: Simd, v: &mut [f32], rows: usize, tau: &mut [f32]) {
    for (c, tau) in tau.iter_mut().enumerate() {
        let (known, below) = v[..rows * BLOCK].split_at_mut((c + 1) * BLOCK);
        let mut sums = [0.0; BLOCK];
        for (i, chunk) in below.chunks(K_CHUNK * BLOCK).enumerate() {
            let mut some = [0.0; BLOCK];
            squares(simd, chunk, c, &mut some);
            match i {
                0 => sums = some,
                _ => sums.iter_mut().zip(some).for_each(|(a, s)| *a += s),
            }
        }
        let own = &mut known[c * BLOCK..];
        let (a, s) = (own[c], sums[c]);
        if s == 0.0 {
            *tau = 0.0;
            continue;
        }
        let b = -a.mul_add(a, s).sqrt().copysign(a);
        let d = a - b;
        *tau = (b - a) / b;
        let mut t = [0.0; BLOCK];
        for l in c + 1..BLOCK {
            t[l] = *tau * (own[l] + sums[l] / d);
            own[l] -= t[l];
        }
        own[c] = b;
        reflect(simd, below, c, d, &t);
    }
}

/// What a column is multiplied by, by its largest magnitude.
fn scale_of(largest: f32) -> f32 {
    match largest {
        LARGE.. => DOWN,
        _ if largest < SMALL => UP,
        _ => 1.0,
    }
}

/// Both factors of one matrix.
fn whole(pool: &Pool, simd: Simd, sizes: Sizes, a: &[f32], all: &mut [f32], outs: [&mut [f32]; 4]) {
    let (Sizes { m, n }, panel, height) = (sizes, sizes.panel(), sizes.rows());
    let (all, rest) = all.split_at_mut(sizes.square());
    let (vs, rest) = rest.split_at_mut(sizes.square());
    let (grams, scales) = rest.split_at_mut(sizes.grams());
    let [r, q, v_out, tau] = outs;
    let scales = &mut scales[..n];
    scales.fill(0.0);
    for row in a.chunks_exact(n) {
        scales.iter_mut().zip(row).for_each(|(largest, x)| *largest = largest.max(x.abs()));
    }
    scales.iter_mut().for_each(|x| *x = scale_of(*x));
    let scales = &*scales;
    pool.chunks_mut(all, panel, |p, panel| {
        panel.fill(0.0);
        let width = LANES.min(n.saturating_sub(p * LANES));
        for (row, a) in panel.chunks_exact_mut(LANES).zip(a.chunks_exact(n)) {
            let from = (p * LANES).min(n);
            let scaled = a[from..].iter().zip(&scales[from..]).map(|(x, scale)| x * scale);
            row[..width].iter_mut().zip(scaled).for_each(|(to, x)| *to = x);
        }
    });
    for b in 0..sizes.blocks() {
        let (from, width) = (b * BLOCK, sizes.width(b));
        let rows = m - from;
        let (done, rest) = all.split_at_mut((b + 1) * 2 * panel);
        let own = &mut done[b * 2 * panel..];
        let v = &mut vs[b * height * BLOCK..][..(height - from) * BLOCK];
        for (half, own) in own.chunks_exact(panel).enumerate() {
            for (to, row) in v.chunks_exact_mut(BLOCK).zip(own[from * LANES..].chunks_exact(LANES)) {
                to[half * LANES..][..LANES].copy_from_slice(row);
            }
        }
        let tau = &mut tau[from..from + width];
        factor(simd, v, rows, tau);
        for (i, row) in v.chunks_exact_mut(BLOCK).take(BLOCK).enumerate() {
            for (half, own) in own.chunks_exact_mut(panel).enumerate() {
                own[(from + i) * LANES..][..LANES].copy_from_slice(&row[half * LANES..][..LANES]);
            }
            row[i.min(width)..].fill(0.0);
            if i < width {
                row[i] = 1.0;
            }
        }
        let gram = &mut grams[b * BLOCK * BLOCK..][..BLOCK * BLOCK];
        for at in (0..BLOCK).step_by(ROWS) {
            for half in 0..2 {
                let sums = products(simd, v, at, &v[half * LANES..], BLOCK, rows);
                for (p, sums) in sums.iter().enumerate() {
                    gram[(at + p) * BLOCK + half * LANES..][..LANES].copy_from_slice(sums);
                }
            }
        }
        let block = Block { simd, rows, v, gram, tau };
        pool.chunks_mut(rest, panel, |_, panel| block.apply(&mut panel[from * LANES..], true));
    }
    for (i, row) in r.chunks_exact_mut(n).enumerate() {
        for (j, x) in row.iter_mut().enumerate() {
            *x = if j < i { 0.0 } else { all[j / LANES * panel + i * LANES + j % LANES] / scales[j] };
        }
    }
    let (vs, grams, tau) = (&*vs, &*grams, &*tau);
    pool.chunks_mut(v_out, n, |i, row| {
        for (b, to) in row.chunks_mut(BLOCK).enumerate() {
            match i.checked_sub(b * BLOCK) {
                Some(i) => to.copy_from_slice(&vs[(b * height + i) * BLOCK..][..to.len()]),
                None => to.fill(0.0),
            }
        }
    });
    pool.chunks_mut(all, panel, |p, panel| {
        for (i, row) in panel.chunks_exact_mut(LANES).enumerate() {
            row.iter_mut().enumerate().for_each(|(l, x)| *x = f32::from(u8::from(i == p * LANES + l)));
        }
    });
    for b in (0..sizes.blocks()).rev() {
        let (from, width) = (b * BLOCK, sizes.width(b));
        let block = Block {
            simd,
            rows: m - from,
            v: &vs[b * height * BLOCK..][..(height - from) * BLOCK],
            gram: &grams[b * BLOCK * BLOCK..][..BLOCK * BLOCK],
            tau: &tau[from..from + width],
        };
        pool.chunks_mut(&mut all[b * 2 * panel..], panel, |_, panel| {
            block.apply(&mut panel[from * LANES..], false)
        });
    }
    let all = &*all;
    pool.chunks_mut(q, n, |i, row| {
        for (p, to) in row.chunks_mut(LANES).enumerate() {
            to.copy_from_slice(&all[p * panel + i * LANES..][..to.len()]);
        }
    });
}

impl Qr {
    fn of(&self, ins: &[Meta]) -> Result<[usize; 3]> {
        floats::<1>(Self::NAME, ins)?;
        let [batch, m, n] = matrices(Self::NAME, &ins[0])?;
        if m < n {
            let why = format!("{} has more columns than rows; factor the first {m} columns", ins[0].shape);
            return Err(Error::argument(Self::NAME, "matrix", why));
        }
        Ok([batch, m, n])
    }
}

impl Op for Qr {
    const NAME: &'static str = "qr";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [batch, m, n] = self.of(ins)?;
        Shape::new(&[batch * n * (n + 2 * m + 1)]).map(Meta::f32)
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        match self.of(ins) {
            Ok([batch, m, n]) if device.is_cuda() => batch * (Sizes { m, n }.grams() + n),
            Ok([batch, m, n]) => batch * Sizes { m, n }.words(),
            Err(_) => 0,
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let Ok([batch, m, n]) = self.of(run.metas) else { return };
        if run.out.is_empty() {
            return;
        }
        let (a, simd, sizes) = (run.ins[0], run.simd, Sizes { m, n });
        let (r, rest) = run.out.split_at_mut(batch * n * n);
        let (q, rest) = rest.split_at_mut(batch * m * n);
        let (v, tau) = rest.split_at_mut(batch * m * n);
        let words = [n * n, m * n, m * n, n, sizes.words()];
        let all = &mut run.workspace[..batch * sizes.words()];
        let each = |pool: &Pool, first: usize, [r, q, v, tau, all]: [&mut [f32]; 5]| {
            let parts = r.chunks_exact_mut(words[0]).zip(q.chunks_exact_mut(words[1]));
            let parts = parts.zip(v.chunks_exact_mut(words[2]).zip(tau.chunks_exact_mut(words[3])));
            for (b, (((r, q), (v, tau)), all)) in parts.zip(all.chunks_exact_mut(words[4])).enumerate() {
                whole(pool, simd, sizes, &a[(first + b) * m * n..][..m * n], all, [r, q, v, tau]);
            }
        };
        if batch < run.pool.threads() {
            return each(run.pool, 0, [r, q, v, tau, all]);
        }
        let per = (16 * 1024 / (m * n)).max(1);
        run.pool.pieces_mut(
            [r, q, v, tau, all],
            words.map(|w| per * w),
            batch.div_ceil(per),
            |task, parts| {
                each(Pool::alone(), task * per, parts);
            },
        );
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        cuda::qr(run.cuda, run.ins[0], run.out, run.workspace, self.of(run.metas)?)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![cuda::qr_module()]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        // dA = (dQ + Q C) R⁻ᵀ, where C is M = R dRᵀ - dQᵀ Q on and below the diagonal, and its transpose above.
        let meta = r.meta(io.ins[0]);
        let [batch, m, n] = self.of(&[meta])?;
        let take = |r: &mut dyn Recorder, v: Val, start: usize, d: &[usize]| {
            let len = d.iter().product();
            let v = r.record(Slice { axis: 0, start, len, step: 1 }.into(), &[v])?;
            r.record(Reshape { shape: Shape::new(d)? }.into(), &[v])
        };
        let dq = take(r, dy, batch * n * n, &[batch, m, n])?;
        if batch * n == 0 {
            return Ok(vec![Some(dq)]);
        }
        let (upper, dr) = (take(r, io.out, 0, &[batch, n, n])?, take(r, dy, 0, &[batch, n, n])?);
        let q = take(r, io.out, batch * n * n, &[batch, m, n])?;
        let (first, second) = (product(r, upper, false, dr, true)?, product(r, dq, true, q, false)?);
        let both = r.record(crate::pointwise::Sub {}.into(), &[first, second])?;
        let (with, below) = (triangle(r, both, false, 0)?, triangle(r, both, false, -1)?);
        let above = r.record(Permute { order: vec![0, 2, 1] }.into(), &[below])?;
        let both = r.record(crate::pointwise::Add {}.into(), &[with, above])?;
        let more = product(r, q, false, both, false)?;
        let sum = r.record(crate::pointwise::Add {}.into(), &[dq, more])?;
        let solve = TriangularSolve { upper: true, ta: true, unit: false, right: true };
        Ok(vec![Some(r.record(solve.into(), &[upper, sum])?)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let a = ins[0].num()?;
        let [batch, m, n] = self.of(&[ins[0].meta()])?;
        let zero = T::c(0.0);
        let (mut rs, mut qs, mut vs, mut taus) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for b in 0..batch {
            let mut h = a.data()[b * m * n..(b + 1) * m * n].to_vec();
            let (mut v, mut tau) = (vec![zero; m * n], vec![zero; n]);
            // Reflection j of column c of x.
            let reflect = |x: &mut [T], v: &[T], tau: T, j: usize, c: usize| {
                let w = (j..m).fold(zero, |s, i| v[i * n + j].fma(x[i * n + c], s));
                (j..m).for_each(|i| x[i * n + c] = (-v[i * n + j]).fma(tau * w, x[i * n + c]));
            };
            for j in 0..n {
                let top = h[j * n + j];
                let s = (j + 1..m).fold(zero, |s, i| h[i * n + j].fma(h[i * n + j], s));
                v[j * n + j] = T::c(1.0);
                if s == zero {
                    continue;
                }
                let size = top.fma(top, s).sqrt();
                let pivot = if top < zero { size } else { -size };
                tau[j] = (pivot - top) / pivot;
                (j + 1..m).for_each(|i| v[i * n + j] = h[i * n + j] / (top - pivot));
                (j..n).for_each(|c| reflect(&mut h, &v, tau[j], j, c));
            }
            let mut q: Vec<T> = (0..m * n).map(|at| T::c(f64::from(u8::from(at / n == at % n)))).collect();
            for j in (0..n).rev() {
                (j..n).for_each(|c| reflect(&mut q, &v, tau[j], j, c));
            }
            rs.extend((0..n * n).map(|at| if at % n < at / n { zero } else { h[at] }));
            qs.extend(q);
            vs.extend(v);
            taus.extend(tau);
        }
        let all = [rs, qs, vs, taus].concat();
        Tensor::with_shape(dims(&[all.len()]), all)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        Vec::new()
    }

    fn from_attrs(attrs: &Attrs) -> Result<Qr> {
        attrs.only(&[])?;
        Ok(Qr {})
    }
}
