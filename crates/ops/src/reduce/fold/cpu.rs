//! The CPU kernels.

use super::{Elements, Fold, Kind, Pass, Regions, Stage, is_plain, passes};
use crate::pointwise::expression::{Pointwise, Registers, Scratch};
use crate::pointwise::map;
use crate::{CpuRun, PerInput};
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_device::cpu::threads::Pool;
use dittograd_numerics::scalar::Real;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::sum;
use dittograd_numerics::sum::{
    Add, CHUNK, Columns, ColumnsOf, Combine, LANES, Multiply, ROWS, TreeOf, WIDTH,
};
use std::array::from_fn;

/// Most stages of a fold.
pub(super) const STAGES: usize = 4;

/// Elements below which a row is not worth splitting between threads.
pub(super) const LONG_ROW: usize = 128 * 1024;

/// Most short rows the CPU takes at a time.
pub(super) const BATCH: usize = 64;

/// Rows of a tile whose elements the CPU computes at a time.
pub(super) const TILE_ROWS: usize = CHUNK / WIDTH;

simd_fn! {
    /// Sum of at most one chunk of the row rule.
    pub(crate) fn chunk_sum(simd, x: &[f32]) -> f32 {
        sum::chunk([x], |[x]| x)
    }
}

simd_fn! {
    /// Product of at most one chunk of the row rule.
    pub(super) fn chunk_product(simd, x: &[f32]) -> f32 {
        sum::chunk_of::<Multiply, 1>([x], |[x]| x)
    }
}

/// The extremum of a row by `pick`, which keeps the second of two equal ones, from `start`; never -0.
#[inline(always)]
pub(super) fn row_extremum(x: &[f32], start: f32, pick: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [start; LANES];
    let mut pieces = x.chunks_exact(LANES);
    for piece in &mut pieces {
        for (m, &x) in lanes.iter_mut().zip(piece) {
            *m = pick(x, *m);
        }
    }
    for (m, &x) in lanes.iter_mut().zip(pieces.remainder()) {
        *m = pick(x, *m);
    }
    lanes.iter().fold(start, |m, &x| pick(x, m)) + 0.0
}

simd_fn! {
    /// The largest element, NaN if one is, -inf for none; never -0.
    pub(super) fn row_max(simd, x: &[f32]) -> f32 {
        row_extremum(x, f32::NEG_INFINITY, Real::max)
    }
}

simd_fn! {
    /// The smallest element, NaN if one is, +inf for none; never -0.
    pub(super) fn row_min(simd, x: &[f32]) -> f32 {
        row_extremum(x, f32::INFINITY, Real::min)
    }
}

simd_fn! {
    /// Adds rows of `width` elements, `stride` apart, to sums of columns.
    pub(super) fn add_rows(simd, sums: &mut Columns, x: &[f32], rows: usize, stride: usize, width: usize) {
        for r in 0..rows {
            sums.push(&x[r * stride..r * stride + width]);
        }
    }
}

simd_fn! {
    /// Multiplies products of columns by rows of `width` elements, `stride` apart.
    pub(super) fn multiply_rows(simd, products: &mut ColumnsOf<Multiply>, x: &[f32], rows: usize, stride: usize, width: usize) {
        for r in 0..rows {
            products.push(&x[r * stride..r * stride + width]);
        }
    }
}

simd_fn! {
    /// The largest elements of columns so far, with more rows.
    pub(super) fn max_rows(simd, best: &mut [f32], x: &[f32], rows: usize, stride: usize) {
        for r in 0..rows {
            for (m, &x) in best.iter_mut().zip(&x[r * stride..]) {
                *m = Real::max(x, *m);
            }
        }
    }
}

simd_fn! {
    /// The smallest elements of columns so far, with more rows.
    pub(super) fn min_rows(simd, best: &mut [f32], x: &[f32], rows: usize, stride: usize) {
        for r in 0..rows {
            for (m, &x) in best.iter_mut().zip(&x[r * stride..]) {
                *m = Real::min(x, *m);
            }
        }
    }
}

/// Folds at most one chunk.
pub(super) fn fold_chunk(simd: Simd, kind: Kind, x: &[f32]) -> f32 {
    match kind {
        Kind::Sum => chunk_sum(simd, x),
        Kind::Product => chunk_product(simd, x),
        Kind::Max => row_max(simd, x),
        Kind::Min => row_min(simd, x),
    }
}

/// Folds one row, given the folds of chunks of it.
pub(super) fn fold_row(kind: Kind, len: usize, mut chunk: impl FnMut(std::ops::Range<usize>) -> f32) -> f32 {
    if len <= CHUNK {
        return chunk(0..len);
    }
    let mut chunks = (0..len).step_by(CHUNK).map(|start| chunk(start..len.min(start + CHUNK)));
    fn tree<C: Combine>(chunks: impl Iterator<Item = f32>) -> f32 {
        let mut tree = TreeOf::<C>::new();
        chunks.for_each(|x| tree.push(x));
        tree.finish()
    }
    match kind {
        Kind::Sum => tree::<Add>(chunks),
        Kind::Product => tree::<Multiply>(chunks),
        // The first one is stored as it is.
        Kind::Max | Kind::Min => {
            let first = chunks.next().unwrap_or(0.0);
            let pick = if kind == Kind::Max { Real::max } else { Real::min };
            chunks.fold(first, |best, x| pick(x, best))
        }
    }
}

/// A stage as a pass sees it: the plain element and the plain result have no program.
#[derive(Clone, Copy)]
pub(super) struct Sweep<'a> {
    pub(super) kind: Kind,
    pub(super) load: Option<&'a Pointwise>,
    pub(super) post: Option<&'a Pointwise>,
}

impl Stage {
    pub(super) fn sweep(&self) -> Sweep<'_> {
        let load = Some(&self.load).filter(|p| !is_plain(p));
        let post = Some(&self.post).filter(|p| !is_plain(p));
        Sweep { kind: self.kind, load, post }
    }
}

impl<'a> Elements<'a> {
    pub(super) fn new(sweep: &Sweep<'a>, ins: usize, given: usize) -> Elements<'a> {
        let block = sweep.load.map_or(CHUNK, |p| p.block().min(CHUNK));
        Elements {
            load: sweep.load.map(|p| Registers::new(p, block)),
            block,
            ins,
            words: Scratch::take((1 + given) * CHUNK),
        }
    }

    /// The elements of inputs that are in order: `ins` are slices of one length up to [`CHUNK`], and what
    /// is given was spread.
    pub(super) fn compute<'s>(&'s mut self, simd: Simd, ins: &[&'s [f32]], given: usize) -> &'s [f32] {
        let Some(registers) = &mut self.load else { return ins[0] };
        let n = ins[0].len();
        let (out, spread) = self.words.words().split_at_mut(CHUNK);
        for start in (0..n).step_by(self.block) {
            let range = start..n.min(start + self.block);
            let mut args: [&[f32]; 16] = [&[]; 16];
            for (a, x) in args.iter_mut().zip(&ins[..self.ins]) {
                *a = &x[range.clone()];
            }
            for (i, a) in args[self.ins..self.ins + given].iter_mut().enumerate() {
                *a = &spread[i * CHUNK..][range.clone()];
            }
            registers.run(simd, &args[..self.ins + given], &mut [&mut out[range]]);
        }
        &out[..n]
    }
}

/// The inputs' elements in a range.
pub(super) fn slices<'a>(ins: &[&'a [f32]], range: std::ops::Range<usize>) -> [&'a [f32]; 16] {
    let mut out: [&[f32]; 16] = [&[]; 16];
    for (o, x) in out.iter_mut().zip(ins) {
        *o = &x[range.clone()];
    }
    out
}

/// What a pass runs with on the CPU.
#[derive(Clone, Copy)]
pub(super) struct Host<'a> {
    pub(super) pool: &'a Pool,
    pub(super) simd: Simd,
    pub(super) ins: &'a [&'a [f32]],
    /// One element per result each.
    pub(super) given: &'a [&'a [f32]],
}

impl Host<'_> {
    /// All sweeps over rows that end the shape. A row, or a few short ones, goes through all of them while
    /// it is in cache.
    pub(super) fn rows(self, sweeps: &[Sweep<'_>], pass: Pass, out: &mut [f32]) {
        let columns = pass.rows;
        let batch = (CHUNK / columns.max(1)).clamp(1, BATCH);
        let least = (LONG_ROW / 8 / columns.max(1)).max(1);
        let per_task = self.pool.share(pass.outer, least, batch);
        let (simd, ins) = (self.simd, self.ins);
        self.pool.chunks_mut(out, per_task, |task, out| {
            let aux = self.given.len();
            let mut elements: [Option<Elements<'_>>; STAGES] =
                from_fn(|k| sweeps.get(k).map(|s| Elements::new(s, ins.len(), aux + k)));
            let mut posts: [Option<Registers<'_>>; STAGES] =
                from_fn(|k| sweeps.get(k).and_then(|s| s.post).map(|p| Registers::new(p, BATCH)));
            let mut results = [[0.0f32; BATCH]; STAGES];
            for (b, out) in out.chunks_mut(batch).enumerate() {
                let (row, n) = (task * per_task + b * batch, out.len());
                for (k, sweep) in sweeps.iter().enumerate() {
                    let known = aux + k;
                    let (before, now) = results.split_at_mut(k);
                    let given = |i: usize| match i.checked_sub(aux) {
                        None => &self.given[i][row..row + n],
                        Some(stage) => &before[stage][..n],
                    };
                    let Some(elements) = &mut elements[k] else { continue };
                    if sweep.load.is_some() {
                        for i in 0..known {
                            let width = columns.clamp(1, CHUNK);
                            let spread = elements.given(i);
                            for (words, x) in spread.chunks_mut(width).zip(given(i)) {
                                words.fill(*x);
                            }
                        }
                    }
                    let mut folded = [0.0f32; BATCH];
                    if columns <= CHUNK {
                        let from = row * columns;
                        let x = slices(ins, from..from + n * columns);
                        let x = elements.compute(simd, &x[..ins.len()], known);
                        for (i, f) in folded[..n].iter_mut().enumerate() {
                            *f = fold_chunk(simd, sweep.kind, &x[i * columns..(i + 1) * columns]);
                        }
                    } else {
                        folded[0] = fold_row(sweep.kind, columns, |r| {
                            let x = slices(ins, row * columns + r.start..row * columns + r.end);
                            fold_chunk(simd, sweep.kind, elements.compute(simd, &x[..ins.len()], known))
                        });
                    }
                    let last = k + 1 == sweeps.len();
                    let result = if last { &mut out[..] } else { &mut now[0][..n] };
                    match &mut posts[k] {
                        None => result.copy_from_slice(&folded[..n]),
                        Some(post) => {
                            let mut args: [&[f32]; 16] = [&[]; 16];
                            args[0] = &folded[..n];
                            for (i, a) in args[1..1 + known].iter_mut().enumerate() {
                                *a = given(i);
                            }
                            post.run(simd, &args[..1 + known], &mut [result]);
                        }
                    }
                }
            }
        });
    }

    /// One sweep over a single long row, chunk by chunk on all threads; `scratch` has a word per chunk.
    pub(super) fn long_row(self, sweep: Sweep<'_>, len: usize, scratch: &mut [f32]) -> f32 {
        const PER_TASK: usize = 32;
        let (simd, ins) = (self.simd, self.ins);
        let scratch = &mut scratch[..len.div_ceil(CHUNK)];
        self.pool.chunks_mut(scratch, PER_TASK, |task, out| {
            let mut elements = Elements::new(&sweep, ins.len(), self.given.len());
            if sweep.load.is_some() {
                for (i, x) in self.given.iter().enumerate() {
                    elements.given(i).fill(x[0]);
                }
            }
            for (i, s) in out.iter_mut().enumerate() {
                let start = (task * PER_TASK + i) * CHUNK;
                let x = slices(ins, start..len.min(start + CHUNK));
                *s = fold_chunk(simd, sweep.kind, elements.compute(simd, &x[..ins.len()], self.given.len()));
            }
        });
        let scratch = &*scratch;
        fold_row(sweep.kind, scratch.len(), |r| fold_chunk(simd, sweep.kind, &scratch[r]))
    }

    /// One sweep over rows `rows.start..rows.end` of up to [`WIDTH`] neighbouring columns; `at` is the first
    /// element's place, `result` the first column's among all results.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn tile(
        self,
        sweep: Sweep<'_>,
        elements: &mut Elements<'_>,
        at: usize,
        rows: usize,
        stride: usize,
        result: usize,
        out: &mut [f32],
    ) {
        let (simd, width) = (self.simd, out.len());
        let (mut sums, mut products) = (Columns::new(), None);
        match sweep.kind {
            Kind::Sum => {}
            Kind::Product => products = Some(ColumnsOf::<Multiply>::new()),
            Kind::Max => out.fill(f32::NEG_INFINITY),
            Kind::Min => out.fill(f32::INFINITY),
        }
        let mut take = |x: &[f32], rows: usize, stride: usize, out: &mut [f32]| match sweep.kind {
            Kind::Sum => add_rows(simd, &mut sums, x, rows, stride, width),
            Kind::Product => products.iter_mut().for_each(|p| multiply_rows(simd, p, x, rows, stride, width)),
            Kind::Max => max_rows(simd, out, x, rows, stride),
            Kind::Min => min_rows(simd, out, x, rows, stride),
        };
        if sweep.load.is_none() {
            if rows > 0 {
                take(&self.ins[0][at..], rows, stride, out);
            }
        } else {
            for (i, x) in self.given.iter().enumerate() {
                for words in elements.given(i).chunks_exact_mut(width).take(TILE_ROWS) {
                    words.copy_from_slice(&x[result..result + width]);
                }
            }
            let mut gathered = Scratch::take(self.ins.len() * CHUNK);
            for start in (0..rows).step_by(TILE_ROWS) {
                let count = TILE_ROWS.min(rows - start);
                for (x, words) in self.ins.iter().zip(gathered.words().chunks_exact_mut(CHUNK)) {
                    for (r, words) in words.chunks_exact_mut(width).take(count).enumerate() {
                        let from = at + (start + r) * stride;
                        words.copy_from_slice(&x[from..from + width]);
                    }
                }
                let mut x: [&[f32]; 16] = [&[]; 16];
                for (x, words) in x.iter_mut().zip(gathered.words().chunks_exact(CHUNK)) {
                    *x = &words[..count * width];
                }
                let computed = elements.compute(simd, &x[..self.ins.len()], self.given.len());
                take(computed, count, width, out);
            }
        }
        match sweep.kind {
            Kind::Sum => sums.finish(out),
            Kind::Product => products.iter_mut().for_each(|p| p.finish(out)),
            // Which of two zeros was met first cannot matter.
            Kind::Max | Kind::Min => out.iter_mut().for_each(|y| *y += 0.0),
        }
    }

    /// One sweep of a pass, without its `post`.
    pub(super) fn pass(self, sweep: Sweep<'_>, pass: Pass, out: &mut [f32], scratch: &mut [f32]) {
        let Pass { outer, rows, inner } = pass;
        let elements = || Elements::new(&sweep, self.ins.len(), self.given.len());
        if out.is_empty() {
            return;
        }
        if inner == 1 {
            if outer == 1 && rows >= LONG_ROW && self.pool.threads() > 1 {
                out[0] = self.long_row(sweep, rows, scratch);
            } else {
                self.rows(&[Sweep { post: None, ..sweep }], pass, out);
            }
        } else if outer == 1 && inner.div_ceil(WIDTH) < self.pool.threads() && rows >= 2 * ROWS * ROWS {
            // Few columns: the threads share whole subtrees of the rows.
            let supers = rows.div_ceil(ROWS * ROWS);
            let (partial, rest) = scratch.split_at_mut(supers * inner);
            self.pool.chunks_mut(partial, inner, |s, out| {
                let mut elements = elements();
                let (first, end) = (s * ROWS * ROWS, rows.min((s + 1) * ROWS * ROWS));
                for (t, out) in out.chunks_mut(WIDTH).enumerate() {
                    let at = first * inner + t * WIDTH;
                    self.tile(sweep, &mut elements, at, end - first, inner, t * WIDTH, out);
                }
            });
            let sums = Host { ins: &[&*partial], given: &[], ..self };
            let plain = Sweep { kind: sweep.kind, load: None, post: None };
            sums.pass(plain, Pass { outer, rows: supers, inner }, out, rest);
        } else if outer == 1 {
            // As narrow as a line, if that gives every thread some columns.
            let width = inner.div_ceil(self.pool.threads()).next_multiple_of(16).min(WIDTH);
            self.pool.chunks_mut(out, width, |t, out| {
                self.tile(sweep, &mut elements(), t * width, rows, inner, t * width, out);
            });
        } else {
            let per_task = self.pool.share(outer, (LONG_ROW / 8 / (rows * inner).max(1)).max(1), 1);
            self.pool.chunks_mut(out, per_task * inner, |task, out| {
                let mut elements = elements();
                for (i, out) in out.chunks_mut(inner).enumerate() {
                    let o = task * per_task + i;
                    for (t, out) in out.chunks_mut(WIDTH).enumerate() {
                        let (at, result) = (o * rows * inner + t * WIDTH, o * inner + t * WIDTH);
                        self.tile(sweep, &mut elements, at, rows, inner, result, out);
                    }
                }
            });
        }
    }

    /// Replaces what was folded by the results.
    pub(super) fn post(self, post: &Pointwise, out: &mut [f32]) {
        let block = post.block();
        let per_task = self.pool.share(out.len(), LONG_ROW / 8, block);
        self.pool.chunks_mut(out, per_task, |task, out| {
            let mut registers = Registers::new(post, block);
            let mut folded = Scratch::take(block);
            for (b, out) in out.chunks_mut(block).enumerate() {
                let (from, n) = (task * per_task + b * block, out.len());
                let folded = &mut folded.words()[..n];
                folded.copy_from_slice(out);
                let mut args = slices(self.given, from..from + n);
                args.rotate_right(1);
                args[0] = folded;
                registers.run(self.simd, &args[..1 + self.given.len()], &mut [out]);
            }
        });
    }
}

impl Fold {
    /// Folds on the CPU. The run's inputs are those with all elements, then those with one per result.
    pub(crate) fn run_cpu(&self, shape: &Shape, axes: &[usize], run: CpuRun<'_>) {
        let passes = passes(shape, axes);
        let CpuRun { pool, simd, numerics, metas, .. } = run;
        let (ins, aux) = run.ins.split_at(self.ins);
        let Some(last_pass) = passes.last() else {
            return each_alone(&self.pointwise(), shape, run);
        };
        let mut sweeps = [Sweep { kind: Kind::Sum, load: None, post: None }; STAGES];
        sweeps.iter_mut().zip(&self.stages).for_each(|(s, stage)| *s = stage.sweep());
        let sweeps = &sweeps[..self.stages.len()];
        let host = Host { pool, simd, ins, given: aux };
        let is_long = last_pass.outer == 1 && last_pass.rows >= LONG_ROW && pool.threads() > 1;
        if passes.len() == 1 && last_pass.inner == 1 && !is_long {
            return host.rows(sweeps, *last_pass, run.out);
        }
        let regions = Regions::of(&passes, false);
        let results = last_pass.results();
        let (values, rest) = run.workspace.split_at_mut((sweeps.len() - 1) * regions.results);
        let (a, rest) = rest.split_at_mut(regions.between);
        let (b, rest) = rest.split_at_mut(regions.between);
        let given_count = self.aux + sweeps.len() - 1;
        let (spread, own) = rest.split_at_mut(given_count * regions.spread);
        for (k, sweep) in sweeps.iter().enumerate() {
            let (before, now) = values.split_at_mut(k * regions.results);
            let mut given: PerInput<&[f32]> = PerInput::new(self.aux + k, &[]);
            let before = (0..k).map(|i| &before[i * regions.results..][..results]);
            given.all_mut().iter_mut().zip(aux.iter().copied().chain(before)).for_each(|(g, x)| *g = x);
            let given = given.all();
            let first_results = passes[0].results();
            if passes.len() > 1 && sweep.load.is_some() {
                let (from, to) = Fold::spread_shapes(shape, axes);
                for (x, out) in given.iter().zip(spread.chunks_exact_mut(regions.spread.max(1))) {
                    let out = &mut out[..first_results];
                    let run =
                        CpuRun { pool, simd, numerics, metas, ins: &[x], shape: to, out, workspace: &mut [] };
                    map::copy_cpu(&map::access(&from, &to), run);
                }
            }
            let mut all_spread: PerInput<&[f32]> = PerInput::new(given.len(), &[]);
            for (s, x) in all_spread.all_mut().iter_mut().zip(spread.chunks_exact(regions.spread.max(1))) {
                *s = &x[..first_results];
            }
            let spread = if passes.len() == 1 { given } else { all_spread.all() };
            let is_last = k + 1 == sweeps.len();
            let target = if is_last { &mut *run.out } else { &mut now[..results] };
            let (mut from, mut to) = (&mut a[..], &mut b[..]);
            let mut len = 0;
            for (i, pass) in passes.iter().enumerate() {
                let only = [&from[..len]];
                let (sweep, host) = match i {
                    0 => (*sweep, Host { given: spread, ..host }),
                    _ => (Sweep { load: None, ..*sweep }, Host { ins: &only, given: &[], ..host }),
                };
                if i + 1 == passes.len() {
                    host.pass(sweep, *pass, target, own);
                } else {
                    len = pass.results();
                    host.pass(sweep, *pass, &mut to[..len], own);
                }
                std::mem::swap(&mut from, &mut to);
            }
            if let Some(post) = sweep.post {
                Host { given, ..host }.post(post, target);
            }
        }
    }
}

/// A fold over no axes, by its program.
pub(super) fn each_alone(program: &Pointwise, shape: &Shape, run: CpuRun<'_>) {
    let accesses = PerInput::new(run.ins.len(), map::access(shape, shape));
    map::run_cpu(program, accesses.all(), CpuRun { shape: *shape, ..run });
}
