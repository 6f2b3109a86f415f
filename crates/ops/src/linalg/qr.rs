//! Orthogonal factors by reflections.

use super::cuda;
use super::panels::{LANES, together};
use super::{TriangularSolve, matrices, product, triangle};
use crate::layout::{Permute, Reshape, Slice};
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, dims, floats};
use dittograd_device::cpu::gemm::{Factors, add_products};
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_device::cpu::threads::Pool;
use dittograd_device::cuda::Source;
use dittograd_device::{Device, Meta};
use dittograd_numerics::K_CHUNK;
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// Columns of a block: those of a panel.
pub(super) const BLOCK: usize = LANES;

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
        self.m.next_multiple_of(BLOCK)
    }

    fn blocks(self) -> usize {
        self.n.div_ceil(BLOCK)
    }

    /// Words of a panel.
    fn panel(self) -> usize {
        self.rows() * BLOCK
    }

    /// Words of all panels, and of the reflections.
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

/// Rows whose products are added at a time: few enough that they stay in the closest cache.
const RUN: usize = 128;

/// A row for each reflection of a block.
type Square = [[f32; BLOCK]; BLOCK];

/// Dot products by C4 of the reflections with rows of a panel.
fn products(simd: Simd, v: &[f32], x: &[f32]) -> Square {
    let mut all = [[0.0; BLOCK]; BLOCK];
    for (i, (v, x)) in v.chunks(K_CHUNK * BLOCK).zip(x.chunks(K_CHUNK * BLOCK)).enumerate() {
        let mut sums = [[0.0; BLOCK]; BLOCK];
        for (v, x) in v.chunks(RUN * BLOCK).zip(x.chunks(RUN * BLOCK)) {
            add_products(simd, Factors { all: v, row: 1, term: BLOCK }, x, sums.as_flattened_mut());
        }
        match i {
            0 => all = sums,
            _ => all.as_flattened_mut().iter_mut().zip(sums.as_flattened()).for_each(|(a, s)| *a += s),
        }
    }
    all
}

simd_fn! {
    /// Makes the dot products of reflections the factors that these are subtracted with, negated: `t[q] = tau[q] s` with
    /// `s = fma(-G[p, q], t[p], s)` for the `p` before `q`.
    fn chain(simd, gram: &[f32], tau: &[f32], transposed: bool, t: &mut Square) {
        let width = tau.len();
        let index = |step: usize| if transposed { step } else { width - 1 - step };
        for q in (0..width).map(index) {
            let mut s = t[q];
            for p in (0..width).map(index).take_while(|&p| p != q) {
                let g = gram[p * BLOCK + q];
                for l in 0..BLOCK {
                    s[l] = g.mul_add(t[p][l], s[l]);
                }
            }
            t[q] = s.map(|s| -(tau[q] * s));
        }
    }
}

/// Reflections of a block with their products `G` and factors.
struct Block<'a> {
    simd: Simd,
    v: &'a [f32],
    gram: &'a [f32],
    tau: &'a [f32],
}

impl Block<'_> {
    /// Applies the product of the reflections, or its transpose, to the rows of a panel from the first row of the block on.
    fn apply(&self, panel: &mut [f32], transposed: bool) {
        let width = self.tau.len();
        let mut t = products(self.simd, self.v, panel);
        chain(self.simd, self.gram, self.tau, transposed, &mut t);
        add_products(
            self.simd,
            Factors { all: self.v, row: BLOCK, term: 1 },
            t[..width].as_flattened(),
            panel,
        );
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
    let (Sizes { m, n }, panel) = (sizes, sizes.panel());
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
        let (from, width) = (p * BLOCK, sizes.width(p));
        for (row, a) in panel.chunks_exact_mut(BLOCK).zip(a.chunks_exact(n)) {
            let scaled = a[from..].iter().zip(&scales[from..]).map(|(x, scale)| x * scale);
            row[..width].iter_mut().zip(scaled).for_each(|(to, x)| *to = x);
        }
    });
    for b in 0..sizes.blocks() {
        let (from, width) = (b * BLOCK, sizes.width(b));
        let (done, rest) = all.split_at_mut((b + 1) * panel);
        let own = &mut done[b * panel + from * BLOCK..];
        let v = &mut vs[b * panel..][..own.len()];
        v.copy_from_slice(own);
        let tau = &mut tau[from..from + width];
        factor(simd, v, m - from, tau);
        for (i, (row, own)) in
            v.chunks_exact_mut(BLOCK).zip(own.chunks_exact_mut(BLOCK)).take(BLOCK).enumerate()
        {
            own.copy_from_slice(row);
            row[i.min(width)..].fill(0.0);
            if i < width {
                row[i] = 1.0;
            }
        }
        let gram = &mut grams[b * BLOCK * BLOCK..][..BLOCK * BLOCK];
        gram.copy_from_slice(products(simd, v, v).as_flattened());
        let block = Block { simd, v, gram, tau };
        pool.chunks_mut(rest, panel, |_, panel| block.apply(&mut panel[from * BLOCK..], true));
    }
    // Rows of panels as rows of a matrix.
    let copy = |panels: &[f32], i: usize, to: &mut [f32]| {
        for (to, panel) in to.chunks_mut(BLOCK).zip(panels.chunks_exact(panel)) {
            to.copy_from_slice(&panel[i * BLOCK..][..to.len()]);
        }
    };
    for (i, row) in r.chunks_exact_mut(n).enumerate() {
        copy(all, i, row);
        row.iter_mut().zip(scales).for_each(|(x, scale)| *x /= scale);
        row[..i].fill(0.0);
    }
    let (vs, grams, tau) = (&*vs, &*grams, &*tau);
    pool.chunks_mut(v_out, BLOCK * n, |task, rows| {
        for (i, row) in (task * BLOCK..).zip(rows.chunks_exact_mut(n)) {
            for (b, to) in row.chunks_mut(BLOCK).enumerate() {
                match i.checked_sub(b * BLOCK) {
                    Some(i) => to.copy_from_slice(&vs[b * panel + i * BLOCK..][..to.len()]),
                    None => to.fill(0.0),
                }
            }
        }
    });
    pool.chunks_mut(all, panel, |p, panel| {
        panel.fill(0.0);
        (0..sizes.width(p)).for_each(|l| panel[(p * BLOCK + l) * BLOCK + l] = 1.0);
    });
    for b in (0..sizes.blocks()).rev() {
        let from = b * BLOCK;
        let block = Block {
            simd,
            v: &vs[b * panel..][..panel - from * BLOCK],
            gram: &grams[b * BLOCK * BLOCK..][..BLOCK * BLOCK],
            tau: &tau[from..from + sizes.width(b)],
        };
        pool.chunks_mut(&mut all[b * panel..], panel, |_, panel| {
            block.apply(&mut panel[from * BLOCK..], false)
        });
    }
    let all = &*all;
    pool.chunks_mut(q, BLOCK * n, |task, rows| {
        (task * BLOCK..).zip(rows.chunks_exact_mut(n)).for_each(|(i, row)| copy(all, i, row));
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
            Ok([batch, m, n]) => batch.div_ceil(together(m * n)) * Sizes { m, n }.words(),
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
        let words = [n * n, m * n, m * n, n];
        let all = &mut run.workspace[..];
        let each = |pool: &Pool, first: usize, [r, q, v, tau, all]: [&mut [f32]; 5]| {
            let parts = r.chunks_exact_mut(words[0]).zip(q.chunks_exact_mut(words[1]));
            let parts = parts.zip(v.chunks_exact_mut(words[2]).zip(tau.chunks_exact_mut(words[3])));
            for (b, ((r, q), (v, tau))) in parts.enumerate() {
                whole(
                    pool,
                    simd,
                    sizes,
                    &a[(first + b) * m * n..][..m * n],
                    &mut all[..sizes.words()],
                    [r, q, v, tau],
                );
            }
        };
        if batch < run.pool.threads() {
            return each(run.pool, 0, [r, q, v, tau, all]);
        }
        let per = together(m * n);
        run.pool.pieces_mut(
            [r, q, v, tau, all],
            [per * n * n, per * m * n, per * m * n, per * n, sizes.words()],
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
        let dr = triangle(r, dr, true, 0)?;
        let (first, second) = (product(r, upper, false, dr, true)?, product(r, dq, true, q, false)?);
        let both = r.record(crate::pointwise::Sub {}.into(), &[first, second])?;
        let solve = TriangularSolve { upper: true, ta: true, unit: false, right: true };
        let turned = |r: &mut dyn Recorder, v: Val| r.record(Permute { order: vec![0, 2, 1] }.into(), &[v]);
        if m == n {
            // With M = R dRᵀ - dQᵀ Q, dA = Q (dR + L R⁻ᵀ), where L is M - Mᵀ below the diagonal. The rule for m > n says the
            // same, but on the diagonal Qᵀ dQ cancels, and R⁻ᵀ magnifies what rounding leaves of it.
            let across = turned(r, both)?;
            let apart = r.record(crate::pointwise::Sub {}.into(), &[both, across])?;
            let below = triangle(r, apart, false, -1)?;
            let solved = r.record(solve.into(), &[upper, below])?;
            let sum = r.record(crate::pointwise::Add {}.into(), &[dr, solved])?;
            return Ok(vec![Some(product(r, q, false, sum, false)?)]);
        }
        // dA = (dQ + Q C) R⁻ᵀ, where C is M on and below the diagonal, and its transpose above.
        let (with, below) = (triangle(r, both, false, 0)?, triangle(r, both, false, -1)?);
        let above = turned(r, below)?;
        let both = r.record(crate::pointwise::Add {}.into(), &[with, above])?;
        let more = product(r, q, false, both, false)?;
        let sum = r.record(crate::pointwise::Add {}.into(), &[dq, more])?;
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
