//! Row kernels: a maximum and a sum along an axis, and elements computed from both (softmax and its relatives). A
//! [`Formula`] is generic over the number type: over `f32` it is the CPU code, and as the programs of a [`RowKernel`] it is the
//! device functions of `rows.cu`.

mod cpu;
mod cuda;
mod variant;

use crate::pointwise::expression::{Pointwise, Scratch};
use crate::{CpuRun, norm};
use cpu::{column_max, of_rows, repeated, results_by, some_rows, terms_by};
pub(crate) use cuda::COLUMN_SUM;
use dittograd_numerics::scalar::Real;
use dittograd_numerics::sum::{CHUNK, LANES, WIDTH, elements, part};
use std::array::from_fn;

/// Elements per lane when a warp keeps a row of `columns` elements in registers, rounded so that few kernels
/// serve all lengths.
pub(crate) fn per_lane(columns: usize) -> usize {
    match columns.div_ceil(LANES) {
        n @ 0..=8 => n.max(1).next_power_of_two(),
        n => n.next_multiple_of(4),
    }
}

/// Whether a row gives every lane of a warp equally many elements, so that no lane tests for the row's end.
pub(crate) fn fills_lanes(columns: usize) -> bool {
    columns == per_lane(columns) * LANES
}

/// What a result is computed from, besides the elements at its position.
#[derive(Clone, Copy)]
pub(crate) struct Row<R> {
    /// The maximum.
    pub m: R,
    /// The sum of the terms.
    pub s: R,
    /// The term at the position.
    pub t: R,
    /// 1 at the row's label and 0 elsewhere.
    pub hit: R,
    /// The scalar input.
    pub g: R,
    /// [`Formula::of_row`].
    pub r: R,
}

/// How a row becomes its results. With `x` the elements of the `N` inputs that have rows, which come first, at one position:
/// `m = max score(x)` (NaN ignored), `t = term(x, m)`, `s = Σ t` by the row rule, `r = of_row(s)`, `y = post(x, …)`.
pub(crate) trait Formula<const N: usize>: Copy + Sync {
    /// Kernel name in traces.
    const NAME: &'static str;
    /// Whether `m` is needed; it is +0 otherwise.
    const MAX: bool = true;
    /// Whether the last of the inputs with rows is a mask, which leaves elements out of the maximum. It may have
    /// fewer rows than the others; then it is broadcast over them.
    const MASKED: bool = false;
    /// Position of the label input, if there is one.
    const LABELS: Option<usize> = None;
    /// Position of the scalar input, if there is one.
    const SCALAR: Option<usize> = None;
    /// One result per row, from the element at the label, instead of one per element; it may not read `t`.
    const PER_ROW: bool = false;
    /// Whether the CPU stores the terms in the output. Results that do not read them may have it for speed: the output's
    /// cache lines are then loaded while the terms are computed.
    const STORES_TERMS: bool = !Self::PER_ROW;

    /// What `m` is the maximum of; other than the first input only with a mask.
    #[inline(always)]
    fn score<R: Real>(self, x: [R; N]) -> R {
        x[0]
    }

    /// The summand, `e^(x - m)` unless said otherwise. With a maximum of a single input, that of -inf is 0 or all are NaN.
    #[inline(always)]
    fn term<R: Real>(self, x: [R; N], m: R) -> R {
        (x[0] - m).decay()
    }

    /// What is computed once per row, from its sum.
    #[inline(always)]
    fn of_row<R: Real>(self, s: R) -> R {
        R::c(1.0) / s
    }

    /// The result.
    fn post<R: Real>(self, x: [R; N], row: Row<R>) -> R;

    /// Whether the scalar input has a scalar for each row.
    #[inline(always)]
    fn scalar_each(self) -> bool {
        false
    }

    /// The formulas as programs.
    fn kernel(self) -> RowKernel {
        let term = Pointwise::trace(N + 1, |v| vec![self.term(from_fn(|i| v[i]), v[N])]);
        let post = Pointwise::trace(N + 6, |v| {
            let row = Row { m: v[N], s: v[N + 1], t: v[N + 2], hit: v[N + 3], g: v[N + 4], r: v[N + 5] };
            vec![self.post(from_fn(|i| v[i]), row)]
        });
        RowKernel {
            name: Self::NAME,
            ins: N,
            max: Self::MAX,
            score: Self::MASKED.then(|| Pointwise::trace(N, |v| vec![self.score(from_fn(|i| v[i]))])),
            term,
            of_row: Pointwise::trace(1, |v| vec![self.of_row(v[0])]),
            post,
            labels: Self::LABELS,
            scalar: Self::SCALAR,
            row_scalar: self.scalar_each(),
            per_row: Self::PER_ROW,
        }
    }

    /// Runs on the CPU over rows of `columns` elements.
    fn run_cpu(self, columns: usize, run: CpuRun<'_>) {
        let rows = run.ins[0].len().checked_div(columns).unwrap_or(0);
        if rows == 0 {
            return;
        }
        let given = Given {
            ins: from_fn(|i| run.ins[i]),
            columns,
            period: if Self::MASKED { run.ins[N - 1].len() / columns } else { rows },
            labels: Self::LABELS.map_or(&[], |i| bytemuck::cast_slice(run.ins[i])),
            scalars: Self::SCALAR.map_or(&[], |i| run.ins[i]),
        };
        let width = if Self::PER_ROW { 1 } else { columns };
        let per_task = run.pool.share(rows, (4 * 1024 / columns).max(1), 1);
        run.pool.chunks_mut(run.out, per_task * width, |task, out| {
            some_rows(run.simd, self, &given, task * per_task, out);
        });
    }

    /// Runs on the CPU over columns of `n` elements that are `inner` apart.
    fn columns_cpu(self, n: usize, inner: usize, run: CpuRun<'_>) {
        if run.out.is_empty() {
            return;
        }
        let (simd, slab) = (run.simd, n * inner);
        let of = |range: std::ops::Range<usize>| from_fn(|i| &run.ins[i][range.clone()]);
        let maxima = |from: usize, m: &mut [f32]| {
            if Self::MAX { column_max(simd, &run.ins[0][from..], n, inner, m) } else { m.fill(0.0) }
        };
        let sums = |t: &[f32], s: &mut [f32], r: &mut [f32]| {
            for (tile, s) in s.chunks_mut(WIDTH).enumerate() {
                norm::column_sums(simd, &t[tile * WIDTH..], n, inner, s);
            }
            of_rows(simd, self, s, r);
        };
        let terms = |x: [&[f32]; N], m: &[f32], out: &mut [f32]| {
            repeated([m], out.len(), |[m]| terms_by(simd, self, x, m, out));
        };
        let results = |x: [&[f32]; N], rows: [&[f32]; 3], out: &mut [f32]| {
            repeated(rows, out.len(), |rows| results_by(simd, self, x, rows, out));
        };
        if run.out.len() > slab {
            let slabs = run.pool.share(run.out.len() / slab, (4 * 1024 / slab).max(1), 1);
            run.pool.chunks_mut(run.out, slabs * slab, |task, out| {
                let mut scratch = Scratch::take(3 * inner);
                let (m, rest) = scratch.words().split_at_mut(inner);
                let (s, rest) = rest.split_at_mut(inner);
                let r = &mut rest[..inner];
                for (i, out) in out.chunks_mut(slab).enumerate() {
                    let at = (task * slabs + i) * slab;
                    let x = of(at..at + slab);
                    maxima(at, m);
                    terms(x, m, out);
                    sums(out, s, r);
                    results(x, [m, s, r], out);
                }
            });
            return;
        }
        let (m, rest) = run.workspace.split_at_mut(inner);
        let (s, rest) = rest.split_at_mut(inner);
        let r = &mut rest[..inner];
        let columns = run.pool.share(inner, WIDTH, WIDTH);
        let rows = run.pool.share(n, (4 * 1024 / inner).max(1), 1);
        run.pool.chunks_mut(m, columns, |task, m| maxima(task * columns, m));
        let m = &*m;
        run.pool.chunks_mut(run.out, rows * inner, |task, out| {
            let at = task * rows * inner;
            terms(of(at..at + out.len()), m, out);
        });
        let t = &*run.out;
        run.pool.pairs_mut((s, columns), (r, columns), |task, s, r| sums(&t[task * columns..], s, r));
        let rows_of = [m, &*s, &*r];
        run.pool.chunks_mut(run.out, rows * inner, |task, out| {
            let at = task * rows * inner;
            results(of(at..at + out.len()), rows_of, out);
        });
    }
}

/// A [`Formula`] as programs, for CUDA.
#[derive(Clone, Debug)]
pub(crate) struct RowKernel {
    /// Kernel name in traces.
    pub name: &'static str,
    /// Number of inputs that have rows; they come first.
    pub ins: usize,
    /// Whether `m` is needed; it is +0 otherwise.
    pub max: bool,
    /// What `m` is the maximum of, with a mask; see [`Formula::MASKED`].
    pub score: Option<Pointwise>,
    /// The summand.
    pub term: Pointwise,
    /// What is computed once per row, from its sum.
    pub of_row: Pointwise,
    /// The result.
    pub post: Pointwise,
    /// Position of the label input, if there is one.
    pub labels: Option<usize>,
    /// Position of the scalar input, if there is one.
    pub scalar: Option<usize>,
    /// Whether the scalar input has one element per row.
    pub row_scalar: bool,
    /// One result per row, from the element at the label, instead of one per element; it may not read `t`.
    pub per_row: bool,
}

/// The inputs of a run on the CPU.
struct Given<'a, const N: usize> {
    ins: [&'a [f32]; N],
    columns: usize,
    /// Rows of the last input, which is broadcast over the others' rows.
    period: usize,
    labels: &'a [u32],
    /// One for all rows, or one for each.
    scalars: &'a [f32],
}

impl<'a, const N: usize> Given<'a, N> {
    /// The inputs from the start of a row on.
    #[inline(always)]
    fn from(&self, row: usize) -> [&'a [f32]; N] {
        let start = |i: usize| if i + 1 == N && row >= self.period { row % self.period } else { row };
        let mut rows = self.ins;
        for (i, row) in rows.iter_mut().enumerate() {
            *row = &row[start(i) * self.columns..];
        }
        rows
    }
}

/// Results from terms, in their place.
#[inline(always)]
fn results<const N: usize, F: Formula<N>>(f: F, x: [&[f32]; N], row: Row<f32>, out: &mut [f32]) {
    let x = part(&x, 0, out.len());
    for (i, out) in out.iter_mut().enumerate() {
        *out = f.post(elements(&x, i), Row { t: *out, ..row });
    }
}

impl RowKernel {
    /// Inputs whose rows a block stages in shared memory if there is room. Rows of a mask may start elsewhere, so with a
    /// mask only the first input.
    fn staged(&self) -> usize {
        if self.score.is_some() { 1 } else { self.ins }
    }

    /// Words of workspace on the CPU along an axis that is not the last one: maximum, sum and [`Formula::of_row`] of each column.
    pub(crate) fn columns_workspace(inner: usize) -> usize {
        3 * inner
    }
}

/// Words of workspace of a long row on CUDA: its chunk sums and the levels above them.
pub(crate) fn partials(columns: usize) -> usize {
    let (mut count, mut words) = (columns.div_ceil(CHUNK), 0);
    while count > 1 {
        words += count;
        count = count.div_ceil(CHUNK);
    }
    words + 1
}
