//! The CPU kernels. The weights are packed once for all steps. If there are enough rows of the batch, each task takes some of them through
//! all steps, so that threads need not wait for each other; else threads share the columns of each product.

use super::Sizes;
use crate::CpuRun;
use crate::pointwise::expression::{Pointwise, Registers, Scratch};
use dittograd_device::cpu::simd::Simd;
use dittograd_device::cpu::threads::{Band, Pool};

/// The fewest rows of the batch per thread for which tasks take rows through all steps.
const MIN_ROWS_PER_THREAD: usize = 4;

/// The fewest elements of a task that evaluates a formula.
const MIN_TASK: usize = 4096;

/// Most inputs of a formula.
const MAX_INPUTS: usize = 20;

/// Most results of a formula.
const MAX_RESULTS: usize = 8;

/// How an input of a formula is read.
#[derive(Clone, Copy)]
enum In<'a> {
    /// From the start of rows that are so far apart.
    Rows(&'a [f32], usize),
    /// One number for each row.
    Single(&'a [f32]),
}

/// Inputs of a formula, in order.
struct Ins<'a> {
    all: [In<'a>; MAX_INPUTS],
    count: usize,
}

impl<'a> Ins<'a> {
    fn new() -> Ins<'a> {
        Ins { all: [In::Rows(&[], 0); MAX_INPUTS], count: 0 }
    }

    fn push(&mut self, input: In<'a>) {
        self.all[self.count] = input;
        self.count += 1;
    }

    /// Rows one after another.
    fn rows(&mut self, from: &'a [f32], width: usize) {
        self.push(In::Rows(from, width));
    }

    /// Rows of `pieces` inputs each.
    fn pieces(&mut self, from: &'a [f32], pieces: usize, width: usize) {
        for i in 0..pieces {
            self.push(In::Rows(from.get(i * width..).unwrap_or(&[]), pieces * width));
        }
    }

    fn all(&self) -> &[In<'a>] {
        &self.all[..self.count]
    }
}

/// Evaluates a formula for rows of `width` elements. Row `r` of `outs[i]` has `pieces[i]` results.
fn evaluate<const N: usize>(
    pool: &Pool,
    simd: Simd,
    program: &Pointwise,
    [rows, width]: [usize; 2],
    ins: &[In<'_>],
    outs: [&mut [f32]; N],
    pieces: [usize; N],
) {
    let per_task = match pool.threads() {
        1 => rows,
        _ => pool.share(rows, MIN_TASK.div_ceil(width.max(1)), 1),
    };
    let per_task = per_task.max(1);
    let block = program.block().min(width.next_multiple_of(16));
    pool.pieces_mut(outs, pieces.map(|k| k * width * per_task), rows.div_ceil(per_task), |task, mut outs| {
        let mut registers = Registers::new(program, block);
        let mut singles = Scratch::take(block);
        let first = task * per_task;
        for row in first..rows.min(first + per_task) {
            for at in (0..width).step_by(block) {
                let len = block.min(width - at);
                let mut slices: [&[f32]; MAX_INPUTS] = [&[]; MAX_INPUTS];
                let mut single = Some(singles.words());
                for (slice, input) in slices.iter_mut().zip(ins) {
                    *slice = match *input {
                        In::Rows(from, pitch) => &from[row * pitch + at..][..len],
                        In::Single(from) => match single.take() {
                            Some(words) => {
                                words[..len].fill(from[row]);
                                &words[..len]
                            }
                            None => &[],
                        },
                    };
                }
                let mut results: [&mut [f32]; MAX_RESULTS] = std::array::from_fn(|_| Default::default());
                let mut next = results.iter_mut();
                for (out, pieces) in outs.iter_mut().zip(pieces) {
                    let row = &mut out[(row - first) * pieces * width..][..pieces * width];
                    for piece in row.chunks_exact_mut(width) {
                        if let Some(result) = next.next() {
                            *result = &mut piece[at..at + len];
                        }
                    }
                }
                registers.run(simd, &slices[..ins.len()], &mut results[..program.outputs()]);
            }
        }
    });
}

/// How many rows of the batch a task takes, and the pool that it uses inside.
fn shares(pool: &Pool, batch: usize) -> (usize, &Pool) {
    match pool.threads() {
        threads if threads > 1 && batch >= MIN_ROWS_PER_THREAD * threads => {
            (batch.div_ceil(threads), Pool::alone())
        }
        _ => (batch.max(1), pool),
    }
}

/// Cuts parts off the front of a slice.
fn cut<const N: usize>(whole: &mut [f32], lens: [usize; N]) -> [&mut [f32]; N] {
    let mut rest = whole;
    lens.map(|len| {
        let (part, others) = std::mem::take(&mut rest).split_at_mut(len);
        rest = others;
        part
    })
}

/// Parts of a packed value: at most two states, and at most four that are saved.
const PARTS: usize = 6;

/// All steps.
pub(super) fn forward(s: &Sizes, run: CpuRun<'_>) {
    let (cell, len, h, columns) = (s.op.cell, s.state_len(), s.hidden, s.columns());
    if len == 0 {
        return;
    }
    let (gates, count, saved) = (cell.gates(), cell.states(), cell.saved());
    let program = &cell.programs(s.op.masked).step;
    let optional = s.op.optional(run.ins.len());
    let (pool, simd, x) = (run.pool, run.simd, run.ins[0]);
    let bias = optional.bias.map(|i| run.ins[i]);
    let mask = optional.mask.map(|i| run.ins[i]);
    let weights = run.workspace;
    s.project(1).pack(pool, simd, run.ins[1], weights);
    let weights = &*weights;
    let parts = count + saved;
    let mut outs =
        cut(run.out, std::array::from_fn::<_, PARTS, _>(|i| if i < parts { s.part(i)[1] * len } else { 0 }));
    for (i, state) in outs.iter_mut().take(count).enumerate() {
        state[s.first_row() * len..][..len].copy_from_slice(run.ins[2 + i]);
    }
    let (tile, inner) = shares(pool, s.batch);
    pool.bands_mut(outs, [h; PARTS], [s.batch, tile], |first, rows, mut bands: [Band<'_, f32>; PARTS]| {
        let product = s.project(rows);
        let mut projected = Scratch::take(rows * columns);
        let projected = &mut projected.words()[..rows * columns];
        let mut scratch = Scratch::take(product.packed_scratch_len(inner.threads()));
        for t in (0..s.steps).map(|i| s.time(i)) {
            let [before, after] = s.rows(t);
            product.run_packed(inner, simd, bands[0].list(before), weights, bias, projected, scratch.words());
            let line = t * s.batch + first;
            let mut ins = Ins::new();
            ins.pieces(&x[line * columns..][..rows * columns], gates, h);
            ins.pieces(projected, gates, h);
            let mut to: [&mut [f32]; PARTS] = std::array::from_fn(|_| Default::default());
            for (i, (to, band)) in to.iter_mut().zip(&mut bands).take(parts).enumerate() {
                *to = if i < count {
                    let (from, to) = band.read_and_write(before, after);
                    ins.rows(from, h);
                    to
                } else {
                    band.list(t)
                };
            }
            if let Some(mask) = mask {
                ins.push(In::Single(&mask[line..line + rows]));
            }
            let pieces = std::array::from_fn(|i| usize::from(i < parts));
            evaluate(inner, simd, program, [rows, h], ins.all(), to, pieces);
        }
    });
}

/// The gradients of all steps.
pub(super) fn backward(s: &Sizes, run: CpuRun<'_>) {
    let (cell, len, h, columns) = (s.op.cell, s.state_len(), s.hidden, s.columns());
    if len == 0 {
        return;
    }
    let (gates, count, saved) = (cell.gates(), cell.states(), cell.saved());
    let program = &cell.programs(s.op.masked).slope;
    let (pool, simd, value, g) = (run.pool, run.simd, run.ins[1], run.ins[2]);
    let mask = s.op.masked.then(|| run.ins[3]);
    let weights = run.workspace;
    s.project_back(1).pack(pool, simd, run.ins[0], weights);
    let weights = &*weights;
    let (all, both) = (s.steps * s.batch * columns, s.projections() == 2);
    let states: [usize; 2] = std::array::from_fn(|i| if i < count { len } else { 0 });
    let outs = cut(run.out, [all, if both { all } else { 0 }, states[0], states[1]]);
    let (tile, inner) = shares(pool, s.batch);
    // The rows from `first` on of row `row` of part `part` of a packed value.
    let read = |from, part: usize, row: usize, first: usize, rows: usize| -> &[f32] {
        let from: &[f32] = from;
        &from[(s.part(part)[0] + row) * len + first * h..][..rows * h]
    };
    pool.bands_mut(outs, [columns, columns, h, h], [s.batch, tile], |first, rows, mut bands| {
        let product = s.project_back(rows);
        let mut scratch = Scratch::take(product.packed_scratch_len(inner.threads()));
        // What goes from each step to the one before: the product, and for each state what comes beside it, now and then.
        let mut passed = Scratch::take((1 + 2 * count) * rows * h);
        let passed = &mut passed.words()[..(1 + 2 * count) * rows * h];
        passed.fill(0.0);
        let (by_weights, passed) = passed.split_at_mut(rows * h);
        let (mut later, mut earlier) = passed.split_at_mut(count * rows * h);
        for t in (0..s.steps).rev().map(|i| s.time(i)) {
            let [before, after] = s.rows(t);
            let mut ins = Ins::new();
            (count..count + saved).for_each(|i| ins.rows(read(value, i, t, first, rows), h));
            (0..count).for_each(|i| ins.rows(read(value, i, after, first, rows), h));
            (0..count).for_each(|i| ins.rows(read(value, i, before, first, rows), h));
            (count..count + saved).for_each(|i| ins.rows(read(g, i, t, first, rows), h));
            (0..count).for_each(|i| ins.rows(read(g, i, after, first, rows), h));
            ins.rows(by_weights, h);
            later.chunks_exact(rows * h).for_each(|state| ins.rows(state, h));
            if let Some(mask) = mask {
                ins.push(In::Single(&mask[t * s.batch + first..][..rows]));
            }
            let [state, input, ..] = &mut bands;
            let mut direct = earlier.chunks_exact_mut(rows * h);
            let direct: [&mut [f32]; 2] = std::array::from_fn(|_| direct.next().unwrap_or_default());
            let [direct_h, direct_c] = direct;
            let to = [state.list(t), if both { input.list(t) } else { &mut [] }, direct_h, direct_c];
            let pieces = [gates, if both { gates } else { 0 }, 1, count - 1];
            evaluate(inner, simd, program, [rows, h], ins.all(), to, pieces);
            product.run_packed(inner, simd, state.list(t), weights, None, by_weights, scratch.words());
            std::mem::swap(&mut later, &mut earlier);
        }
        for (i, direct) in later.chunks_exact(rows * h).enumerate() {
            let upstream = read(g, i, s.first_row(), first, rows);
            let to = bands[2 + i].list(0).iter_mut().zip(upstream).zip(direct);
            match i {
                0 => to.zip(&*by_weights).for_each(|(((y, g), d), p)| *y = g + (p + d)),
                _ => to.for_each(|((y, g), d)| *y = g + d),
            }
        }
    });
}
