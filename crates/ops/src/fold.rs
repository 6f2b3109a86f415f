//! Folds: a formula of the elements, folded over a set of axes by a sum, a maximum or a minimum, then a
//! formula of the result; several such stages, where later ones may use the results of earlier ones. Sums,
//! means, norms, variances, log-sum-exp and all losses that are a formula summed up are folds, on both
//! devices, from the same little programs.
//!
//! Neighbouring axes are folded as one. Several groups of axes are folded one after the other, the last group
//! first; sums use the row rule for a group that ends the shape and the column rule for any other. Stages
//! over the last axes read a row once and fold it again out of cache, registers or shared memory.

use super::elementwise::{Add as Plus, Neg as Negative};
use super::loss::{Mse, Reduction};
use super::map::{self, Map, grid};
use super::program::{Expr, Program, Reg, Registers, Scratch, Step};
use super::reduce::{Mean, Sum, Variance};
use super::{
    AnyOp, AnyTensor, Attr, Attrs, Bound, CpuRun, CudaRun, Gpu, Io, Kernel, Op, PerInput, Recorder, Reject,
    Sample, SampleIn, Val, dims,
};
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_device::cpu::threads::Pool;
use dittograd_device::cuda::{Args, Cuda, Source};
use dittograd_device::{DType, Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::{Real, Scalar};
use dittograd_numerics::shape::{MAX_RANK, Shape};
use dittograd_numerics::sum::{
    self, Add, CHUNK, Columns, ColumnsOf, Combine, LANES, Multiply, ROWS, TreeOf, WIDTH,
};
use dittograd_numerics::tensor::Tensor;
use std::array::from_fn;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// How elements are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// By the sum trees.
    Sum,
    /// By the same trees, multiplied.
    Product,
    /// The largest, NaN if one is; -inf for none, never -0.
    Max,
    /// The smallest, NaN if one is; +inf for none, never -0.
    Min,
}

impl Kind {
    /// What a fold starts from, as CUDA text, and what it does with one more element.
    fn cuda(self) -> (&'static str, &'static str) {
        match self {
            Kind::Sum => ("0.0f", "__fadd_rn(a, b)"),
            Kind::Product => ("1.0f", "__fmul_rn(a, b)"),
            Kind::Max => ("-__int_as_float(0x7f800000)", "(b > a || b != b) ? b : a"),
            Kind::Min => ("__int_as_float(0x7f800000)", "(a > b || b != b) ? b : a"),
        }
    }
}

/// One fold over all elements.
#[derive(Clone, Debug)]
pub struct Stage {
    /// How.
    pub kind: Kind,
    /// The element, from the inputs there, then what is given per result: further inputs, and the results
    /// of earlier stages.
    pub load: Program,
    /// The result, from what was folded, then what is given per result.
    pub post: Program,
}

/// Stages that are run one after the other; the value is the result of the last one.
#[derive(Clone, Debug)]
pub struct Fold {
    /// Number of inputs that have all elements.
    pub ins: usize,
    /// Number of inputs that have one element per result.
    pub aux: usize,
    /// The stages, at least one.
    pub stages: Vec<Stage>,
}

/// Most stages of a fold.
const STAGES: usize = 4;
/// Elements below which a row is not worth splitting between threads.
const LONG_ROW: usize = 128 * 1024;
/// Most short rows the CPU takes at a time.
const BATCH: usize = 64;
/// Rows of a tile whose elements the CPU computes at a time.
const TILE_ROWS: usize = CHUNK / WIDTH;

/// One pass of a fold: a value of shape (outer, rows, inner) folded over `rows`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pass {
    pub outer: usize,
    pub rows: usize,
    pub inner: usize,
}

impl Pass {
    fn results(self) -> usize {
        self.outer * self.inner
    }
}

/// The passes of a fold, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passes {
    all: [Pass; MAX_RANK],
    len: usize,
}

impl std::ops::Deref for Passes {
    type Target = [Pass];

    fn deref(&self) -> &[Pass] {
        &self.all[..self.len]
    }
}

/// The passes that fold `shape` over `axes`.
pub(crate) fn passes(shape: &Shape, axes: &[usize]) -> Passes {
    let reduced = |a: usize| axes.contains(&a);
    let mut passes = Passes { all: [Pass { outer: 0, rows: 0, inner: 0 }; MAX_RANK], len: 0 };
    let (mut inner, mut axis) = (1, shape.rank());
    while axis > 0 {
        let d = shape.dims()[axis - 1];
        if !reduced(axis - 1) {
            inner *= d;
            axis -= 1;
            continue;
        }
        let mut rows = 1;
        while axis > 0 && reduced(axis - 1) {
            rows *= shape.dims()[axis - 1];
            axis -= 1;
        }
        passes.all[passes.len] = Pass { outer: shape.dims()[..axis].iter().product(), rows, inner };
        passes.len += 1;
    }
    passes
}

/// The shape with every axis of `axes` made 1.
#[doc(hidden)]
pub fn kept(shape: &Shape, axes: &[usize]) -> Shape {
    let mut dims = [1; MAX_RANK];
    for (a, d) in shape.dims().iter().enumerate().filter(|(a, _)| !axes.contains(a)) {
        dims[a] = *d;
    }
    super::dims(&dims[..shape.rank()])
}

simd_fn! {
    /// Sum of at most one chunk of the row rule.
    pub(crate) fn chunk_sum(simd, x: &[f32]) -> f32 {
        sum::chunk([x], |[x]| x)
    }
}

simd_fn! {
    /// Product of at most one chunk of the row rule.
    fn chunk_product(simd, x: &[f32]) -> f32 {
        sum::chunk_of::<Multiply, 1>([x], |[x]| x)
    }
}

/// The extremum of a row by `pick`, which keeps the second of two equal ones, from `start`; never -0.
#[inline(always)]
fn row_extremum(x: &[f32], start: f32, pick: impl Fn(f32, f32) -> f32) -> f32 {
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
    fn row_max(simd, x: &[f32]) -> f32 {
        row_extremum(x, f32::NEG_INFINITY, Real::max)
    }
}

simd_fn! {
    /// The smallest element, NaN if one is, +inf for none; never -0.
    fn row_min(simd, x: &[f32]) -> f32 {
        row_extremum(x, f32::INFINITY, Real::min)
    }
}

simd_fn! {
    /// Adds rows of `width` elements, `stride` apart, to sums of columns.
    fn add_rows(simd, sums: &mut Columns, x: &[f32], rows: usize, stride: usize, width: usize) {
        for r in 0..rows {
            sums.push(&x[r * stride..r * stride + width]);
        }
    }
}

simd_fn! {
    /// Multiplies products of columns by rows of `width` elements, `stride` apart.
    fn multiply_rows(simd, products: &mut ColumnsOf<Multiply>, x: &[f32], rows: usize, stride: usize, width: usize) {
        for r in 0..rows {
            products.push(&x[r * stride..r * stride + width]);
        }
    }
}

simd_fn! {
    /// The largest elements of columns so far, with more rows.
    fn max_rows(simd, best: &mut [f32], x: &[f32], rows: usize, stride: usize) {
        for r in 0..rows {
            for (m, &x) in best.iter_mut().zip(&x[r * stride..]) {
                *m = Real::max(x, *m);
            }
        }
    }
}

simd_fn! {
    /// The smallest elements of columns so far, with more rows.
    fn min_rows(simd, best: &mut [f32], x: &[f32], rows: usize, stride: usize) {
        for r in 0..rows {
            for (m, &x) in best.iter_mut().zip(&x[r * stride..]) {
                *m = Real::min(x, *m);
            }
        }
    }
}

/// Folds at most one chunk.
fn fold_chunk(simd: Simd, kind: Kind, x: &[f32]) -> f32 {
    match kind {
        Kind::Sum => chunk_sum(simd, x),
        Kind::Product => chunk_product(simd, x),
        Kind::Max => row_max(simd, x),
        Kind::Min => row_min(simd, x),
    }
}

/// Folds one row, given the folds of chunks of it.
fn fold_row(kind: Kind, len: usize, mut chunk: impl FnMut(std::ops::Range<usize>) -> f32) -> f32 {
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
struct Sweep<'a> {
    kind: Kind,
    load: Option<&'a Program>,
    post: Option<&'a Program>,
}

/// Whether a program is just its first input.
fn is_plain(program: &Program) -> bool {
    program.result() == Reg::In(0)
}

impl Stage {
    fn sweep(&self) -> Sweep<'_> {
        let load = Some(&self.load).filter(|p| !is_plain(p));
        let post = Some(&self.post).filter(|p| !is_plain(p));
        Sweep { kind: self.kind, load, post }
    }
}

/// Computes elements, up to a chunk at a time.
struct Elements<'a> {
    load: Option<Registers<'a>>,
    block: usize,
    ins: usize,
    /// A chunk of elements, then a chunk of each value that is given per result.
    words: Scratch,
}

impl<'a> Elements<'a> {
    fn new(sweep: &Sweep<'a>, ins: usize, given: usize) -> Elements<'a> {
        let block = sweep.load.map_or(CHUNK, |p| p.block().min(CHUNK));
        Elements {
            load: sweep.load.map(|p| Registers::new(p, block)),
            block,
            ins,
            words: Scratch::take((1 + given) * CHUNK),
        }
    }

    /// Room for what is given per result, spread over elements.
    fn given(&mut self, i: usize) -> &mut [f32] {
        &mut self.words.words()[(1 + i) * CHUNK..(2 + i) * CHUNK]
    }

    /// The elements of inputs that are in order: `ins` are slices of one length up to [`CHUNK`], and what
    /// is given was spread.
    fn compute<'s>(&'s mut self, simd: Simd, ins: &[&'s [f32]], given: usize) -> &'s [f32] {
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
fn slices<'a>(ins: &[&'a [f32]], range: std::ops::Range<usize>) -> [&'a [f32]; 16] {
    let mut out: [&[f32]; 16] = [&[]; 16];
    for (o, x) in out.iter_mut().zip(ins) {
        *o = &x[range.clone()];
    }
    out
}

/// What a pass runs with on the CPU.
#[derive(Clone, Copy)]
struct Host<'a> {
    pool: &'a Pool,
    simd: Simd,
    ins: &'a [&'a [f32]],
    /// One element per result each.
    given: &'a [&'a [f32]],
}

impl Host<'_> {
    /// All sweeps over rows that end the shape. A row, or a few short ones, goes through all of them while
    /// it is in cache.
    fn rows(self, sweeps: &[Sweep<'_>], pass: Pass, out: &mut [f32]) {
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
    fn long_row(self, sweep: Sweep<'_>, len: usize, scratch: &mut [f32]) -> f32 {
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
    fn tile(
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
    fn pass(self, sweep: Sweep<'_>, pass: Pass, out: &mut [f32], scratch: &mut [f32]) {
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
    fn post(self, post: &Program, out: &mut [f32]) {
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

/// Words of the regions of workspace that a fold needs, each a multiple of four.
struct Regions {
    /// The results of one stage.
    results: usize,
    /// What is left between two passes.
    between: usize,
    /// What is given, spread over the results of the first pass.
    spread: usize,
    /// What one pass needs for itself.
    own: usize,
}

fn aligned(words: usize) -> usize {
    words.next_multiple_of(4)
}

impl Regions {
    fn of(passes: &[Pass], device_is_cuda: bool) -> Regions {
        let own = passes.iter().map(|p| if device_is_cuda { cuda_levels(*p) } else { cpu_scratch(*p) });
        let several = passes.len() > 1;
        let results = |p: &Pass| aligned(p.results());
        Regions {
            results: passes.last().map_or(0, results),
            between: passes.iter().rev().skip(1).map(results).max().unwrap_or(0),
            spread: passes.first().filter(|_| several).map_or(0, results),
            own: aligned(own.max().unwrap_or(0)),
        }
    }
}

fn cpu_scratch(pass: Pass) -> usize {
    match pass {
        Pass { outer: 2.., .. } => 0,
        Pass { inner: 1, rows, .. } => rows.div_ceil(CHUNK),
        _ => cuda_levels(pass),
    }
}

/// Words that the levels of a pass take on CUDA.
fn cuda_levels(pass: Pass) -> usize {
    let unit = if pass.inner == 1 { CHUNK } else { ROWS * ROWS };
    let (mut rows, mut words) = (pass.rows, 0);
    while rows > unit {
        rows = rows.div_ceil(unit);
        words += rows * pass.results();
    }
    words
}

impl Fold {
    /// One stage over `ins` inputs, each element `load`, the result `post` of what was folded.
    pub(crate) fn new(ins: usize, kind: Kind, load: Program, post: Program) -> Fold {
        Fold { ins, aux: 0, stages: vec![Stage { kind, load, post }] }
    }

    /// The sum of plain elements.
    pub(crate) fn sum() -> Fold {
        let first = || Program::same(1);
        Fold::new(1, Kind::Sum, first(), first())
    }

    /// Words of workspace on a device.
    pub(crate) fn workspace(&self, shape: &Shape, axes: &[usize], device: &Device) -> usize {
        let regions = Regions::of(&passes(shape, axes), device.is_cuda());
        let given = self.aux + self.stages.len() - 1;
        (self.stages.len() - 1) * regions.results + 2 * regions.between + given * regions.spread + regions.own
    }

    /// A fold over no axes: each element is folded alone.
    fn pointwise(&self) -> Program {
        Program::trace(self.ins + self.aux, |x| {
            let (ins, mut given) = (&x[..self.ins], x[self.ins..].to_vec());
            let mut result: Vec<Expr> = Vec::new();
            for stage in &self.stages {
                let folded = stage.load.eval(&[ins, &given].concat());
                result = stage.post.eval(&[&folded, &given[..]].concat());
                given.push(result[0]);
            }
            result
        })
    }

    /// The results' shape with what the first pass folds still there, for spreading what is given.
    fn spread_shapes(shape: &Shape, axes: &[usize]) -> (Shape, Shape) {
        let last = (0..shape.rank()).rev().find(|a| axes.contains(a)).unwrap_or(0);
        let first = (0..=last).rev().take_while(|a| axes.contains(a)).last().unwrap_or(0);
        let group: [usize; MAX_RANK] = from_fn(|a| (first + a).min(last));
        (kept(shape, axes), kept(shape, &group))
    }

    /// [`Fold::run_cpu`], for many runs.
    pub(crate) fn prepared(self, shape: Shape, axes: Vec<usize>) -> Kernel {
        if axes.is_empty() {
            let program = self.pointwise();
            return Box::new(move |run| each_alone(&program, &shape, run));
        }
        Box::new(move |run| self.run_cpu(&shape, &axes, run))
    }

    /// Folds on the CPU. The run's inputs are those with all elements, then those with one per result.
    pub(crate) fn run_cpu(&self, shape: &Shape, axes: &[usize], run: CpuRun<'_>) {
        let passes = passes(shape, axes);
        let (pool, simd, metas) = (run.pool, run.simd, run.metas);
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
                    let run = CpuRun { pool, simd, metas, ins: &[x], shape: to, out, workspace: &mut [] };
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
fn each_alone(program: &Program, shape: &Shape, run: CpuRun<'_>) {
    let accesses = PerInput::new(run.ins.len(), map::access(shape, shape));
    map::run_cpu(program, accesses.all(), CpuRun { shape: *shape, ..run });
}

const FOLD_CU: &str = include_str!("fold.cu");

/// Longest row that a warp keeps in registers.
const WARP_ROW: usize = 1024;
/// Chunks of the longest row that a block keeps in shared memory.
const PARTS: usize = 64;

/// How all stages over rows that end the shape are run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fused {
    /// A warp or a part of one per row, so many elements per lane in registers.
    Warp(usize),
    /// A block of so many threads per row, the row in shared memory.
    Block(u32),
}

/// A generated module.
#[derive(Clone)]
struct Module {
    name: Arc<str>,
    source: &'static str,
}

/// What of a stage is written into its text: all but the values of constants.
type StageKey = (Kind, Vec<Step>, Reg, usize, Vec<Step>, Reg, usize);
type ModuleKey = (usize, usize, Vec<StageKey>, Option<Fused>);

impl Stage {
    fn key(&self) -> StageKey {
        let (l, p) = (&self.load, &self.post);
        let (steps, more) = (l.steps().to_vec(), p.steps().to_vec());
        (self.kind, steps, l.result(), l.consts().len(), more, p.result(), p.consts().len())
    }
}

/// A device function of a program over `x0…` and constants `k0…`.
fn function(text: &mut String, name: &str, program: &Program) {
    let params: Vec<String> = (0..program.inputs())
        .map(|i| format!("float x{i}"))
        .chain((0..program.consts().len()).map(|c| format!("float k{c}")))
        .collect();
    let _ = writeln!(text, "__device__ __forceinline__ float {name}({}) {{", params.join(", "));
    text.push_str(&program.cuda());
    text.push_str("return y0;\n}\n");
}

/// A call with the given arguments, then constants called `prefix0…`.
fn call(name: &str, args: impl IntoIterator<Item = String>, program: &Program, prefix: &str) -> String {
    let consts = (0..program.consts().len()).map(|c| format!("{prefix}{c}"));
    format!("{name}({})", args.into_iter().chain(consts).collect::<Vec<_>>().join(", "))
}

impl Fold {
    /// How the stages over rows of `columns` elements can be fused, if they can.
    fn fused(&self, passes: &[Pass], gpu: &Gpu) -> Option<Fused> {
        let [Pass { inner: 1, rows: columns, .. }] = *passes else { return None };
        let room = (gpu.shared.saturating_sub(1024) / 4).min(PARTS * CHUNK);
        match columns {
            _ if self.stages.len() == 1 || self.ins != 1 => None,
            0..=WARP_ROW => Some(Fused::Warp(columns.div_ceil(LANES).next_power_of_two())),
            _ if columns <= room => Some(Fused::Block(32 * columns.div_ceil(CHUNK).min(16) as u32)),
            _ => None,
        }
    }

    /// Parameters of inputs, what is given and the constants of some stages.
    fn parameters(&self, stages: std::ops::Range<usize>, given: usize) -> String {
        let mut all: Vec<String> =
            (0..self.ins).map(|i| format!("const float* __restrict__ in{i}")).collect();
        all.extend((0..given).map(|i| format!("const float* __restrict__ g{i}")));
        for k in stages {
            all.extend((0..self.stages[k].load.consts().len()).map(|c| format!("float kl{k}_{c}")));
            all.extend((0..self.stages[k].post.consts().len()).map(|c| format!("float kp{k}_{c}")));
        }
        all.join(", ")
    }

    /// The functions of a stage.
    fn functions(&self, k: usize) -> String {
        let mut t = String::new();
        let (start, combine) = self.stages[k].kind.cuda();
        function(&mut t, &format!("load{k}"), &self.stages[k].load);
        function(&mut t, &format!("post{k}"), &self.stages[k].post);
        let _ = writeln!(t, "#define START{k} {start}");
        let _ = writeln!(
            t,
            "__device__ __forceinline__ float combine{k}(float a, float b) {{ return {combine}; }}"
        );
        t
    }

    /// Result `k` from what was folded; a maximum or minimum has +0 added, whatever zero was met first.
    fn post_call(&self, k: usize, folded: &str, given: impl Fn(usize) -> String) -> String {
        let folded = match self.stages[k].kind {
            Kind::Sum | Kind::Product => folded.to_string(),
            Kind::Max | Kind::Min => format!("__fadd_rn({folded}, 0.0f)"),
        };
        let args = std::iter::once(folded).chain((0..self.aux + k).map(given));
        call(&format!("post{k}"), args, &self.stages[k].post, &format!("kp{k}_"))
    }

    fn load_call(
        &self,
        k: usize,
        input: impl Fn(usize) -> String,
        given: impl Fn(usize) -> String,
    ) -> String {
        let args = (0..self.ins).map(input).chain((0..self.aux + k).map(given));
        call(&format!("load{k}"), args, &self.stages[k].load, &format!("kl{k}_"))
    }

    /// The text of one stage on its own.
    fn stage_text(&self, k: usize) -> String {
        let mut t = self.functions(k);
        let load = self.load_call(k, |i| format!("in{i}[i]"), |i| format!("g{i}[o]"));
        let post = self.post_call(k, "s", |i| format!("g{i}[o]"));
        let _ = writeln!(t, "#define CHUNK {CHUNK}\n#define ROWS {ROWS}\n#define START START{k}");
        // Plain elements are under way all at once; formulas would only become long code.
        let unroll = if is_plain(&self.stages[k].load) { 32 } else { 8 };
        let _ = writeln!(t, "constexpr int UNROLL = {unroll};");
        let _ = writeln!(t, "#define combine combine{k}\n#define POST(s, o) {post}");
        let _ = writeln!(t, "#define PARAMS {}", self.parameters(k..k + 1, self.aux + k));
        let _ = writeln!(t, "#define ELEMENT(i, o) {load}");
        let more = "#undef ELEMENT\n#define ELEMENT(i, o) partial[i]\n#define fold_rows more_rows\n#define fold_short more_short\n#define fold_columns more_columns\n";
        format!("{t}{FOLD_CU}{more}{FOLD_CU}")
    }

    /// The text of all stages over rows at once. A row is read from memory once.
    fn fused_text(&self, fused: Fused) -> String {
        let count = self.stages.len();
        let mut t: String = (0..count).map(|k| self.functions(k)).collect();
        let _ = writeln!(
            t,
            "extern \"C\" __global__ void fused_rows({}, float* __restrict__ out, unsigned long long rows, unsigned columns, unsigned group) {{",
            self.parameters(0..count, self.aux)
        );
        let given = |i: usize| match i.checked_sub(self.aux) {
            None => format!("a{i}"),
            Some(stage) => format!("r{stage}"),
        };
        match fused {
            Fused::Warp(per_lane) => {
                t.push_str(
                    "const unsigned lane = threadIdx.x % group, per_warp = 32 / group;\n\
                     const unsigned long long step = (unsigned long long)gridDim.x * (blockDim.x / 32) * per_warp;\n\
                     unsigned long long first = (blockIdx.x * (unsigned long long)(blockDim.x / 32) + threadIdx.x / 32) * per_warp;\n\
                     for (; first < rows; first += step) {\n\
                     const unsigned long long row = first + threadIdx.x % 32 / group;\nconst bool here = row < rows;\n",
                );
                for i in 0..self.aux {
                    let _ = writeln!(t, "const float a{i} = here ? g{i}[row] : 0.0f;");
                }
                let each = format!(
                    "#pragma unroll\nfor (unsigned q = 0; q < {per_lane}; ++q) {{ const unsigned j = lane + 32 * q;"
                );
                let _ = writeln!(
                    t,
                    "float x[{per_lane}];\n{each} x[q] = here && j < columns ? in0[row * columns + j] : 0.0f; }}"
                );
                for k in 0..count {
                    let load = self.load_call(k, |_| "x[q]".into(), given);
                    let _ = writeln!(
                        t,
                        "float s{k} = START{k};\n{each} if (j < columns) s{k} = combine{k}(s{k}, {load}); }}"
                    );
                    let _ = writeln!(
                        t,
                        "for (unsigned o = group / 2; o > 0; o /= 2) s{k} = combine{k}(s{k}, __shfl_down_sync(0xffffffffu, s{k}, o, group));\ns{k} = __shfl_sync(0xffffffffu, s{k}, 0, group);"
                    );
                    let _ = writeln!(t, "const float r{k} = {};", self.post_call(k, &format!("s{k}"), given));
                }
                let _ = writeln!(t, "if (lane == 0 && here) out[row] = r{};\n}}\n}}", count - 1);
            }
            Fused::Block(threads) => {
                let warps = threads / 32;
                let _ = writeln!(
                    t,
                    "extern __shared__ float x[];\n__shared__ float parts[{PARTS}];\n\
                     const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, chunks = (columns + {CHUNK} - 1) / {CHUNK};\n\
                     for (unsigned long long row = blockIdx.x; row < rows; row += gridDim.x) {{\n\
                     #pragma unroll 8\n\
                     for (unsigned j = threadIdx.x; j < columns; j += {threads}) x[j] = in0[row * columns + j];"
                );
                for i in 0..self.aux {
                    let _ = writeln!(t, "const float a{i} = g{i}[row];");
                }
                t.push_str("__syncthreads();\n");
                for k in 0..count {
                    let load = self.load_call(k, |_| "x[j]".into(), given);
                    let fold = format!(
                        "#pragma unroll\nfor (int o = 16; o > 0; o /= 2) s = combine{k}(s, __shfl_down_sync(0xffffffffu, s, o));"
                    );
                    let _ = writeln!(
                        t,
                        "for (unsigned c = warp; c < chunks; c += {warps}) {{ float s = START{k}; const unsigned end = columns < (c + 1) * {CHUNK} ? columns : (c + 1) * {CHUNK};\n\
                         #pragma unroll 8\nfor (unsigned j = c * {CHUNK} + lane; j < end; j += 32) s = combine{k}(s, {load});\n{fold}\n\
                         if (lane == 0) parts[c] = s; }}\n__syncthreads();"
                    );
                    // Every warp folds the chunks' results for itself.
                    let _ = writeln!(
                        t,
                        "float s{k}; {{ float s = START{k}; for (unsigned c = lane; c < chunks; c += 32) s = combine{k}(s, parts[c]);\n{fold}\ns{k} = __shfl_sync(0xffffffffu, s, 0); }}\n__syncthreads();"
                    );
                    let _ = writeln!(t, "const float r{k} = {};", self.post_call(k, &format!("s{k}"), given));
                }
                // The last barrier has passed all reads of the row.
                let _ = writeln!(t, "if (threadIdx.x == 0) out[row] = r{};\n}}\n}}", count - 1);
            }
        }
        t
    }

    /// The module of one stage, or of all at once.
    fn module(&self, stages: &[usize], fused: Option<Fused>) -> Module {
        static CACHE: OnceLock<Mutex<BTreeMap<ModuleKey, Module>>> = OnceLock::new();
        let aux = self.aux + if fused.is_some() { 0 } else { stages[0] };
        let key: ModuleKey = (self.ins, aux, stages.iter().map(|&k| self.stages[k].key()).collect(), fused);
        let cache = CACHE.get_or_init(Mutex::default);
        if let Some(hit) = cache.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return hit.clone();
        }
        let text = match fused {
            Some(fused) => self.fused_text(fused),
            None => self.stage_text(stages[0]),
        };
        let prelude = if text.contains("ditto_") { map::prelude() } else { "" };
        let name = format!("fold_{}", &blake3::hash(text.as_bytes()).to_hex()[..16]);
        let made = Module { name: name.into(), source: super::lasting(format!("{prelude}{text}")) };
        cache.lock().unwrap_or_else(PoisonError::into_inner).insert(key, made.clone());
        made
    }

    /// The modules [`Fold::run_cuda`] will want.
    pub(crate) fn modules(&self, shape: &Shape, axes: &[usize], gpu: &Gpu) -> Vec<Source> {
        let passes = passes(shape, axes);
        if passes.is_empty() {
            let accesses = vec![map::access(shape, shape); self.ins + self.aux];
            return vec![map::module(&self.pointwise(), shape, &accesses)];
        }
        let all: Vec<usize> = (0..self.stages.len()).collect();
        let own = match self.fused(&passes, gpu) {
            Some(fused) => vec![self.module(&all, Some(fused))],
            None => all.iter().map(|&k| self.module(&[k], None)).collect(),
        };
        let mut modules: Vec<Source> = own.iter().map(|m| (m.name.to_string(), m.source)).collect();
        if passes.len() > 1 && self.aux + self.stages.len() > 1 {
            let (from, to) = Fold::spread_shapes(shape, axes);
            modules.push(map::module(&Program::same(1), &to, &[map::access(&from, &to)]));
        }
        modules
    }

    fn constants(args: &mut Args, stage: &Stage) {
        for &k in stage.load.consts().iter().chain(stage.post.consts()) {
            args.f32(k);
        }
    }

    /// Queues one pass of a stage: as many launches as the tree has kernel levels.
    fn pass_cuda(
        &self,
        launch: &Launch<'_>,
        pass: Pass,
        out: u64,
        is_first: bool,
        is_last: bool,
    ) -> Result<()> {
        if pass.results() == 0 {
            return Ok(());
        }
        let cuda = launch.cuda;
        let module = self.module(&[launch.stage], None);
        let stage = &self.stages[launch.stage];
        let (mut partial, mut rows, mut more, mut workspace) =
            (launch.partial, pass.rows, !is_first, launch.workspace);
        let columns = pass.inner > 1;
        let unit = if columns { ROWS * ROWS } else { CHUNK };
        loop {
            let next = rows.div_ceil(unit).max(1);
            let done = next == 1;
            let to = if done { out } else { workspace };
            let name = match (columns, rows <= ROWS, more) {
                (false, _, false) => "fold_rows",
                (false, _, true) => "more_rows",
                (true, true, false) => "fold_short",
                (true, true, true) => "more_short",
                (true, false, false) => "fold_columns",
                (true, false, true) => "more_columns",
            };
            let kernel = cuda.kernel(&module.name, module.source, name)?;
            let mut args = Args::new();
            for &p in launch.ins.iter().chain(launch.given) {
                args.ptr(p);
            }
            Fold::constants(&mut args, stage);
            args.ptr(partial).ptr(to);
            let last = i32::from(done && is_last);
            if !columns {
                let group = if rows <= 16 { rows.max(1).next_power_of_two() } else { 32 };
                args.u64(pass.outer as u64).u64(rows as u64).u64(next as u64).u32(group as u32).i32(last);
                cuda.launch(kernel, grid(cuda, pass.outer * next * group), 256, 0, &args)?;
            } else if rows <= ROWS {
                args.u64(pass.outer as u64).u32(rows as u32).u64(pass.inner as u64).i32(last);
                cuda.launch(kernel, grid(cuda, pass.results()), 256, 0, &args)?;
            } else {
                let width = pass.inner.min(32);
                let tiles = pass.inner.div_ceil(width);
                let threads = (width * rows.div_ceil(ROWS).min(32)).next_multiple_of(32);
                args.u64(pass.outer as u64).u64(rows as u64).u64(pass.inner as u64);
                args.u64(next as u64).u64(tiles as u64).u32(width as u32).i32(last);
                let items = pass.outer * next * tiles;
                cuda.launch(kernel, [items.min(1 << 20) as u32, 1, 1], threads as u32, 0, &args)?;
            }
            if done {
                return Ok(());
            }
            partial = workspace;
            workspace += (next * pass.results() * 4) as u64;
            rows = next;
            more = true;
        }
    }

    /// Queues the fold. The run's inputs are those with all elements, then those with one per result.
    pub(crate) fn run_cuda(&self, shape: &Shape, axes: &[usize], run: &CudaRun<'_>) -> Result<()> {
        let passes = passes(shape, axes);
        let Some(last_pass) = passes.last() else {
            let accesses = vec![map::access(shape, shape); run.ins.len()];
            return map::run_cuda(&self.pointwise(), &accesses, &CudaRun { shape: *shape, ..*run });
        };
        if last_pass.results() == 0 {
            return Ok(());
        }
        let (ins, aux) = run.ins.split_at(self.ins);
        let count = self.stages.len();
        if let Some(fused) = self.fused(&passes, &Gpu::of(run.cuda)) {
            let module = self.module(&(0..count).collect::<Vec<_>>(), Some(fused));
            let kernel = run.cuda.kernel(&module.name, module.source, "fused_rows")?;
            let (rows, columns) = (last_pass.outer, last_pass.rows);
            let mut args = Args::new();
            for &p in run.ins {
                args.ptr(p);
            }
            self.stages.iter().for_each(|s| Fold::constants(&mut args, s));
            let group = if columns <= 16 { columns.max(1).next_power_of_two() } else { 32 };
            args.ptr(run.out).u64(rows as u64).u32(columns as u32).u32(group as u32);
            return match fused {
                Fused::Warp(_) => run.cuda.launch(kernel, grid(run.cuda, rows * group), 256, 0, &args),
                Fused::Block(threads) => {
                    let resident = (2048 / threads as usize).min(32);
                    let blocks = rows.min(run.cuda.sm_count() as usize * resident);
                    run.cuda.launch(kernel, [blocks as u32, 1, 1], threads, columns as u32 * 4, &args)
                }
            };
        }
        let regions = Regions::of(&passes, true);
        let words = |n: usize| n as u64 * 4;
        let values = run.workspace;
        let between = values + words((count - 1) * regions.results);
        let spread_at = between + words(2 * regions.between);
        let own = spread_at + words((self.aux + count - 1) * regions.spread);
        let mut given: Vec<u64> = aux.to_vec();
        for (k, stage) in self.stages.iter().enumerate() {
            let mut spread = given.clone();
            if passes.len() > 1 && !is_plain(&stage.load) {
                let (from, to) = Fold::spread_shapes(shape, axes);
                for (i, s) in spread.iter_mut().enumerate() {
                    let out = spread_at + words(i * regions.spread);
                    let run = CudaRun { ins: &[*s], metas: &[Meta::f32(from)], shape: to, out, ..*run };
                    map::run_cuda(&Program::same(1), &[map::access(&from, &to)], &run)?;
                    *s = out;
                }
            }
            let target = if k + 1 == count { run.out } else { values + words(k * regions.results) };
            let mut partial = 0;
            for (i, pass) in passes.iter().enumerate() {
                let is_last = i + 1 == passes.len();
                let to = if is_last { target } else { between + words(i % 2 * regions.between) };
                let given = if i == 0 { &spread } else { &given };
                let launch = Launch { cuda: run.cuda, stage: k, ins, given, partial, workspace: own };
                self.pass_cuda(&launch, *pass, to, i == 0, is_last)?;
                partial = to;
            }
            given.push(target);
        }
        Ok(())
    }
}

/// What the launches of a pass have in common.
struct Launch<'a> {
    cuda: &'a Arc<Cuda>,
    stage: usize,
    ins: &'a [u64],
    given: &'a [u64],
    partial: u64,
    workspace: u64,
}

/// `after(base(before(ins…)))`: a reduction or loss whose elements are computed as they are read, and whose result goes
/// through one more program. The inputs have `shape`, which is that of the elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Folded {
    /// The reduction.
    pub base: Box<AnyOp>,
    /// What its inputs are computed by.
    pub before: Arc<Program>,
    /// What its result goes through.
    pub after: Arc<Program>,
    /// Shape of the inputs.
    pub shape: Shape,
}

impl Folded {
    /// The same with another program after it.
    #[doc(hidden)]
    pub fn then(&self, after: &Program) -> Option<Folded> {
        let both = Program::trace(1, |x| after.eval(&self.after.eval(x)));
        (after.inputs() == 1).then(|| Folded { after: Arc::new(both), ..self.clone() })
    }

    /// Whether the programs fit the registers there are.
    #[doc(hidden)]
    pub fn is_possible(&self) -> bool {
        self.fold().is_some_and(|(fold, _)| fold.stages.iter().all(|s| s.load.fits() && s.post.fits()))
    }

    fn base_metas(&self) -> Vec<Meta> {
        vec![Meta::f32(self.shape); self.before.outputs()]
    }

    /// The fold and its axes.
    #[doc(hidden)]
    pub fn fold(&self) -> Option<(Fold, Vec<usize>)> {
        let (fold, axes) = self.base.as_fold(&self.base_metas())?;
        if fold.aux > 0 || fold.ins != self.before.outputs() || self.after.inputs() != 1 {
            return None;
        }
        let (ins, count) = (self.before.inputs(), fold.stages.len());
        let stages = fold.stages.iter().enumerate().map(|(k, stage)| Stage {
            kind: stage.kind,
            load: Program::trace(ins + k, |x| {
                let elements = self.before.eval(&x[..ins]);
                stage.load.eval(&[&elements, &x[ins..]].concat())
            }),
            post: Program::trace(stage.post.inputs(), |x| {
                let result = stage.post.eval(x);
                if k + 1 == count { self.after.eval(&result) } else { result }
            }),
        });
        Some((Fold { ins, aux: 0, stages: stages.collect() }, axes))
    }

    fn known(&self) -> Result<(Fold, Vec<usize>)> {
        self.fold().ok_or_else(|| {
            Error::unsupported(Self::NAME, format!("{} with these programs is no fold", self.base.name()))
        })
    }

    /// The op between the programs.
    fn value(&self) -> Result<Shape> {
        Ok(self.base.shape(&self.base_metas())?.shape)
    }
}

impl Op for Folded {
    const NAME: &'static str = "folded";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        if ins.len() != self.before.inputs() {
            return Err(Error::new(
                Self::NAME,
                ErrorKind::Arity { want: self.before.inputs(), got: ins.len() },
            ));
        }
        for (i, m) in ins.iter().enumerate() {
            super::typed(Self::NAME, ins, i, DType::F32)?;
            if m.shape != self.shape {
                return Err(super::mismatch(
                    Self::NAME,
                    "an input differs from the elements",
                    m.shape,
                    self.shape,
                ));
            }
        }
        let value = self.value()?;
        self.known()?;
        if !self.is_possible() {
            return Err(Error::unsupported(Self::NAME, "the programs need more registers than there are"));
        }
        Ok(Meta::f32(value))
    }

    fn workspace(&self, _ins: &[Meta], device: &Device) -> usize {
        self.fold().map_or(0, |(fold, axes)| fold.workspace(&self.shape, &axes, device))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        if let Some((fold, axes)) = self.fold() {
            fold.run_cpu(&self.shape, &axes, run);
        }
    }

    fn prepared(&self, _ins: &[Meta]) -> Option<Kernel> {
        self.fold().map(|(fold, axes)| fold.prepared(self.shape, axes))
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let (fold, axes) = self.known()?;
        fold.run_cuda(&self.shape, &axes, run)
    }

    fn cuda_modules(&self, _ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.fold().map_or(Vec::new(), |(fold, axes)| fold.modules(&self.shape, &axes, gpu))
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        // As the ops it is made of; the values between them were not kept.
        let mut parts = Vec::new();
        for k in 0..self.before.outputs() {
            let one = Program::trace(self.before.inputs(), |x| vec![self.before.eval(x)[k]]);
            let map = Map::new(one, self.shape);
            parts.push((r.record(map.clone().into(), io.ins)?, map));
        }
        let elements: Vec<Val> = parts.iter().map(|p| p.0).collect();
        let value = r.record((*self.base).clone(), &elements)?;
        let after = Map { program: self.after.clone(), shape: r.meta(value).shape };
        let mut all: Vec<Option<Val>> = vec![None; io.ins.len()];
        let Some(dy) = after.vjp(r, Io { ins: &[value], out: io.out }, dy)?[0] else { return Ok(all) };
        let grads = self.base.vjp(r, Io { ins: &elements, out: value }, dy)?;
        for ((element, map), g) in parts.into_iter().zip(grads) {
            let Some(g) = g else { continue };
            for (sum, g) in all.iter_mut().zip(map.vjp(r, Io { ins: io.ins, out: element }, g)?) {
                *sum = match (*sum, g) {
                    (Some(a), Some(b)) => Some(r.record(Plus {}.into(), &[a, b])?),
                    (a, b) => a.or(b),
                };
            }
        }
        Ok(all)
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let tensors: Vec<&Tensor<T>> = ins.iter().map(AnyTensor::num).collect::<Result<_>>()?;
        let elements = |k: usize| {
            AnyTensor::Num(Tensor::from_fn(self.shape, |at| {
                let args: Vec<T> = tensors.iter().map(|t| t.data()[at]).collect();
                self.before.eval(&args)[k]
            }))
        };
        let value = self.base.reference(&(0..self.before.outputs()).map(elements).collect::<Vec<_>>())?;
        Ok(Tensor::from_fn(value.shape(), |at| self.after.eval(&[value.data()[at]])[0]))
    }

    fn samples() -> Vec<Sample<Folded>> {
        let shapes: [&[usize]; 7] =
            [&[5, 7], &[33, 70], &[4, 1025], &[1, 3], &[3, 0], &[2, 3, 4], &[150_000]];
        let mut all = Vec::new();
        for d in shapes {
            let last = d.len() - 1;
            let bases = [
                (Sum::new(&[last]).map(AnyOp::from), 1),
                (Sum::new(&[0]).map(AnyOp::from), 1),
                (Mean::new(&[0, last][..1 + usize::from(last > 0)]).map(AnyOp::from), 1),
                (Ok(Mse { reduction: Reduction::Mean }.into()), 2),
            ];
            for (base, inputs) in bases {
                let Ok(base) = base else { continue };
                // The mean of nothing is not a number.
                if d.contains(&0) && matches!(base, AnyOp::Mean(_)) {
                    continue;
                }
                all.push(Folded::sample(base, inputs, d));
            }
        }
        // Stages that use the result of earlier ones.
        all.extend(Variance::new(&[1], 1).map(|op| Folded::sample(op.into(), 1, &[6, 40])));
        all
    }

    fn rejects() -> Vec<Reject<Folded>> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = Folded::sample(Sum::all(2).into(), 1, &[2, 3]).op;
        let of = |base: AnyOp| Folded { base: Box::new(base), ..op.clone() };
        vec![
            Reject { op: op.clone(), ins: vec![f(&[2, 3])], want: "Arity" },
            Reject { op: op.clone(), ins: vec![f(&[2, 3]), f(&[3])], want: "Shapes" },
            Reject { op: op.clone(), ins: vec![f(&[2, 3]), Meta::u32(dims(&[2, 3]))], want: "DType" },
            Reject { op: of(Negative {}.into()), ins: vec![f(&[2, 3]), f(&[2, 3])], want: "Unsupported" },
        ]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        let base = self.base.bound(&self.base_metas());
        Bound { ulps: 4.0 + base.ulps, terms: 16.0 + 4.0 * base.terms }
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let steps = |p: &Program| Attr::Num(p.steps().len() as f64);
        vec![
            ("before", steps(&self.before)),
            ("after", steps(&self.after)),
            ("shape", Attr::List(self.shape.dims().to_vec())),
        ]
    }

    fn from_attrs(_: &Attrs) -> Result<Folded> {
        Err(Error::unsupported(Self::NAME, "a program cannot be given by attributes"))
    }
}

impl Folded {
    fn sample(base: AnyOp, inputs: usize, d: &[usize]) -> Sample<Folded> {
        let before = Program::trace(2, |x| {
            let wave = (x[0] * x[1]).tanh();
            [wave + x[1], x[0] - wave][..inputs].to_vec()
        });
        let after = Program::trace(1, |x| vec![x[0] * x[0] - Real::c(0.25)]);
        let op =
            Folded { base: Box::new(base), before: Arc::new(before), after: Arc::new(after), shape: dims(d) };
        Sample { op, ins: vec![SampleIn::any(dims(d)); 2] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dims;

    #[test]
    fn neighbouring_axes_are_one_pass_and_the_last_group_comes_first() {
        let shape = dims(&[2, 3, 4, 5]);
        assert_eq!(*passes(&shape, &[2, 3]), [Pass { outer: 6, rows: 20, inner: 1 }]);
        assert_eq!(*passes(&shape, &[0, 1]), [Pass { outer: 1, rows: 6, inner: 20 }]);
        let two = [Pass { outer: 24, rows: 5, inner: 1 }, Pass { outer: 2, rows: 3, inner: 4 }];
        assert_eq!(*passes(&shape, &[1, 3]), two);
        assert!(passes(&shape, &[]).is_empty());
    }

    #[test]
    fn what_is_given_spreads_over_the_first_pass() {
        let shape = dims(&[2, 3, 4, 5, 6]);
        assert_eq!(Fold::spread_shapes(&shape, &[1, 3, 4]), (dims(&[2, 1, 4, 1, 1]), dims(&[2, 3, 4, 1, 1])));
        assert_eq!(Fold::spread_shapes(&shape, &[0, 2]), (dims(&[1, 3, 1, 5, 6]), dims(&[2, 3, 1, 5, 6])));
    }
}
