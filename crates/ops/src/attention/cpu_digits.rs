//! The CPU kernels of attention in digits, modes `fast` and `turbo`. NUMERICS.md has the rules.
//!
//! All is done in tiles of up to 64 queries by 64 keys. A task packs the digits of its part of queries, keys and values once, and those of
//! the weights of each tile. Forward, lanes are queries; backward, they are keys. So no tile is transposed between its products.

use super::cpu::{
    BLOCKED, BackwardOperands, LANES, Lanes, Operands, block_pairs, choose, finish_rows, row_products,
    run_tiles, signed, turn_back,
};
use super::geometry::{Geometry, KEY_BLOCK};
use dittograd_device::cpu::gemm::digits::{Operand, Order, Small};
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_device::cpu::threads::Pool;
use dittograd_numerics::digits::Digits;
use dittograd_numerics::functions;
use dittograd_numerics::scalar::Real;
use std::ops::Range;

/// Tasks for each thread, so that threads finish together.
const TASKS_PER_THREAD: usize = 4;

/// Rows of a task: whole blocks, so many that there are enough tasks. A task packs all keys or queries that its rows meet, so more tasks are
/// more packing.
fn task_rows(pool: &Pool, lists: usize, rows: usize) -> usize {
    let blocks = rows.div_ceil(LANES);
    let parts = (TASKS_PER_THREAD * pool.threads()).div_ceil(lists.max(1)).clamp(1, blocks.max(1));
    blocks.div_ceil(parts).max(1) * LANES
}

/// Cuts the first `words` off.
fn take<'a>(scratch: &mut &'a mut [f32], words: usize) -> &'a mut [f32] {
    let (first, rest) = std::mem::take(scratch).split_at_mut(words);
    *scratch = rest;
    first
}

/// The same as rows of lanes.
fn take_lanes<'a>(scratch: &mut &'a mut [f32], rows: usize) -> &'a mut [Lanes] {
    take(scratch, rows * LANES).as_chunks_mut().0
}

/// Blocks of a packed operand, one for each 64 queries or keys.
struct Blocks<'a> {
    memory: &'a mut [f32],
    len: usize,
}

impl<'a> Blocks<'a> {
    /// Words of so many blocks, of which the largest is `one`.
    fn words(one: Operand, digits: Digits, count: usize) -> usize {
        one.packed_len(digits) * count
    }

    fn take(scratch: &mut &'a mut [f32], one: Operand, digits: Digits, count: usize) -> Blocks<'a> {
        Blocks { memory: take(scratch, Blocks::words(one, digits, count)), len: one.packed_len(digits) }
    }

    fn get(&self, i: usize) -> &[f32] {
        &self.memory[i * self.len..][..self.len]
    }

    fn get_mut(&mut self, i: usize) -> &mut [f32] {
        &mut self.memory[i * self.len..][..self.len]
    }
}

/// Outputs, logarithms and largest scores of all rows.
pub(super) fn forward(pool: &Pool, job: &Operands<'_>, digits: Digits, results: [&mut [f32]; 3]) {
    let g = &job.g;
    let tile = task_rows(pool, g.batch, g.rows());
    let scratch = forward_scratch(g, digits);
    run_tiles(
        pool,
        [g.batch, g.rows(), tile],
        results,
        [g.dv, 1, 1],
        scratch,
        |z, r0, _, results, scratch| {
            forward_task(job, digits, z, r0, results, scratch);
        },
    );
}

fn forward_scratch(g: &Geometry, digits: Digits) -> usize {
    let blocks = g.m.div_ceil(KEY_BLOCK);
    Blocks::words(Operand::rows(KEY_BLOCK, g.d), digits, blocks)
        + Blocks::words(Operand::rows(g.dv, KEY_BLOCK), digits, blocks)
        + Blocks::words(Operand::columns(LANES, g.d), digits, 1)
        + Blocks::words(Operand::columns(LANES, KEY_BLOCK), digits, 1)
        + LANES * (KEY_BLOCK + 2 * g.dv)
}

/// Rows of list `z` from `r0` on, as many as there are logarithms.
fn forward_task(
    job: &Operands<'_>,
    digits: Digits,
    z: usize,
    r0: usize,
    [o, logs, tops]: [&mut [f32]; 3],
    mut scratch: &mut [f32],
) {
    let Geometry { m, d, dv, .. } = job.g;
    let small = Small::new(job.simd, digits);
    let rows = logs.len();
    let last = |from: usize, count: usize| match job.causal {
        true => m.min(job.query_range(from, count).1 + 1),
        false => m,
    };
    let (blocks, all) = (m.div_ceil(KEY_BLOCK), &mut scratch);
    let mut keys = Blocks::take(all, Operand::rows(KEY_BLOCK, d), digits, blocks);
    let mut values = Blocks::take(all, Operand::rows(dv, KEY_BLOCK), digits, blocks);
    let mut queries = Blocks::take(all, Operand::columns(LANES, d), digits, 1);
    let mut weights = Blocks::take(all, Operand::columns(LANES, KEY_BLOCK), digits, 1);
    let (scores, acc, sums) = (take_lanes(all, KEY_BLOCK), take_lanes(all, dv), take_lanes(all, dv));
    let [q, k, v] = [0, 1, 2].map(|part| job.g.input_rows(part, z));
    for (i, j0) in (0..last(r0, rows)).step_by(KEY_BLOCK).enumerate() {
        let count = KEY_BLOCK.min(m - j0);
        small.pack(Operand::rows(count, d), &job.k[k.0 + j0 * k.1..], Order::Lines(k.1), keys.get_mut(i));
        small.pack(Operand::rows(dv, count), &job.v[v.0 + j0 * v.1..], Order::Terms(v.1), values.get_mut(i));
    }
    for r in (0..rows).step_by(LANES) {
        let valid = LANES.min(rows - r);
        let of_queries = Operand::columns(valid, d);
        small.pack(of_queries, &job.q[q.0 + (r0 + r) * q.1..], Order::Lines(q.1), queries.get_mut(0));
        let mut softmax = Softmax::new();
        acc.fill([0.0; LANES]);
        for (i, j0) in (0..last(r0 + r, valid)).step_by(KEY_BLOCK).enumerate() {
            let count = KEY_BLOCK.min(m - j0);
            let scores = &mut scores[..count];
            let a = (Operand::rows(count, d), keys.get(i));
            small.multiply(a, (of_queries, queries.get(0)), false, scores.as_flattened_mut(), LANES);
            softmax_block(job.simd, job, z, [r0 + r, valid, j0], scores, &mut softmax);
            let of_weights = Operand::columns(valid, count);
            small.pack(of_weights, scores.as_flattened(), Order::Terms(LANES), weights.get_mut(0));
            let a = (Operand::rows(dv, count), values.get(i));
            small.multiply(a, (of_weights, weights.get(0)), false, sums.as_flattened_mut(), LANES);
            add_block(job.simd, &softmax, sums, acc);
        }
        let results = [&mut o[r * dv..][..valid * dv], &mut logs[r..r + valid], &mut tops[r..r + valid]];
        finish(job.simd, job, acc, &softmax, results);
    }
}

/// The softmax under way of a block of queries.
struct Softmax {
    /// The largest score and the sum of weights.
    top: Lanes,
    total: Lanes,
    /// For the last block: whether it has keys for the query, and what sums before it and its own are multiplied by.
    open: [u32; LANES],
    old: Lanes,
    new: Lanes,
}

impl Softmax {
    fn new() -> Softmax {
        Softmax {
            top: [f32::NEG_INFINITY; LANES],
            total: [0.0; LANES],
            open: [0; LANES],
            old: [0.0; LANES],
            new: [0.0; LANES],
        }
    }
}

/// `open` where the bits of `mask` are set, else `blocked`.
#[inline(always)]
fn select(mask: u32, open: f32, blocked: f32) -> f32 {
    f32::from_bits((open.to_bits() & mask) | (blocked.to_bits() & !mask))
}

simd_fn! {
    /// Products of a block of keys and up to 64 queries become weights. `place` is the first query, the number of queries and the first key.
    fn softmax_block(simd, job: &Operands<'_>, z: usize, place: [usize; 3], scores: &mut [Lanes], softmax: &mut Softmax) {
        let [r0, valid, j0] = place;
        let (low, _) = job.query_range(r0, valid);
        let some = job.g.mask.is_some() || job.causal && j0 + scores.len() > low + 1;
        signed(job, scores);
        softmax.open = [if some { 0 } else { !0 }; LANES];
        if some {
            block_pairs(job, z, false, r0, valid, j0, scores);
            for s in scores.iter() {
                for (open, s) in softmax.open.iter_mut().zip(s) {
                    *open |= u32::from(s.to_bits() != BLOCKED).wrapping_neg();
                }
            }
        }
        let mut best = [f32::NEG_INFINITY; LANES];
        for s in scores.iter() {
            for l in 0..LANES {
                best[l] = f32::where_gt(s[l], best[l], s[l], best[l]);
            }
        }
        for best in &mut best {
            *best += 0.0;
        }
        let mut sums = [[0.0f32; LANES]; 4];
        for (j, s) in scores.iter_mut().enumerate() {
            let sum = &mut sums[j % 8 / 2];
            for l in 0..LANES {
                let w = functions::weight((s[l] - best[l]) * job.factor);
                s[l] = choose(s[l], 0.0, w);
                sum[l] += s[l];
            }
        }
        for l in 0..LANES {
            let top = f32::where_gt(best[l], softmax.top[l], best[l], softmax.top[l]);
            softmax.old[l] = functions::weight((softmax.top[l] - top) * job.factor);
            softmax.new[l] = functions::weight((best[l] - top) * job.factor);
            let sum = (sums[0][l] + sums[2][l]) + (sums[1][l] + sums[3][l]);
            let total = softmax.total[l].mul_add(softmax.old[l], sum * softmax.new[l]);
            softmax.total[l] = select(softmax.open[l], total, softmax.total[l]);
            softmax.top[l] = select(softmax.open[l], top, softmax.top[l]);
        }
    }
}

simd_fn! {
    /// Adds the weighted values of a block to those before it.
    fn add_block(simd, softmax: &Softmax, sums: &[Lanes], acc: &mut [Lanes]) {
        for (acc, sum) in acc.iter_mut().zip(sums) {
            for l in 0..LANES {
                let both = sum[l].mul_add(softmax.new[l], acc[l] * softmax.old[l]);
                acc[l] = select(softmax.open[l], both, acc[l]);
            }
        }
    }
}

simd_fn! {
    /// Outputs and statistics.
    fn finish(simd, job: &Operands<'_>, acc: &mut [Lanes], softmax: &Softmax, results: [&mut [f32]; 3]) {
        finish_rows(job.simd, acc, softmax.top, softmax.total, results);
    }
}

/// `delta` of all rows.
pub(super) fn delta(
    pool: &Pool,
    simd: Simd,
    g: &Geometry,
    [dy, y]: [&[f32]; 2],
    dl: Option<&[f32]>,
    delta: &mut [f32],
) {
    pool.chunks_mut(delta, g.rows(), |z, delta| {
        let (at, stride) = g.output_rows(z);
        let dl = dl.map(|dl| &dl[z * g.rows()..]);
        row_products(simd, &dy[at..], &y[at..], dl, stride, g.dv, delta);
    });
}

/// All gradients. Where there are lists for all threads, every tile is made once, with five products. Otherwise threads share lists: some tasks
/// make `dq`, others `dk` and `dv`, and scores and their gradients are made twice, with seven products.
pub(super) fn backward(
    pool: &Pool,
    back: &BackwardOperands<'_>,
    digits: Digits,
    [dq, dk, dv]: [&mut [f32]; 3],
) {
    let g = &back.job.g;
    let (rows, all) = (g.rows(), backward_scratch(g, digits));
    if g.batch >= pool.threads() {
        let widths = [rows * g.d, g.m * g.d, g.m * g.dv];
        run_tiles(pool, [g.batch, 1, 1], [dq, dk, dv], widths, all, |z, _, _, [dq, dk, dv], scratch| {
            backward_task(back, digits, z, 0..rows, 0..g.m, Some(dq), Some([dk, dv]), scratch);
        });
        return;
    }
    let tiles = [g.batch, rows, task_rows(pool, g.batch, rows)];
    run_tiles(pool, tiles, [dq], [g.d], all, |z, r0, count, [dq], scratch| {
        backward_task(back, digits, z, r0..r0 + count, 0..g.m, Some(dq), None, scratch);
    });
    let tiles = [g.batch, g.m, task_rows(pool, g.batch, g.m)];
    run_tiles(pool, tiles, [dk, dv], [g.d, g.dv], all, |z, k0, count, results, scratch| {
        backward_task(back, digits, z, 0..rows, k0..k0 + count, None, Some(results), scratch);
    });
}

fn backward_scratch(g: &Geometry, digits: Digits) -> usize {
    let blocks = g.rows().div_ceil(LANES);
    let of_rows = [
        Operand::rows(LANES, g.d),
        Operand::rows(LANES, g.dv),
        Operand::rows(g.d, LANES),
        Operand::rows(g.dv, LANES),
    ];
    let of_keys = [
        Operand::columns(KEY_BLOCK, g.d),
        Operand::columns(KEY_BLOCK, g.dv),
        Operand::columns(g.d, KEY_BLOCK),
        Operand::columns(KEY_BLOCK, LANES),
        Operand::rows(LANES, KEY_BLOCK),
    ];
    let rows: usize = of_rows.iter().map(|one| Blocks::words(*one, digits, blocks)).sum();
    let keys: usize = of_keys.iter().map(|one| Blocks::words(*one, digits, 1)).sum();
    rows + keys + LANES * (2 * LANES + g.d + g.dv)
}

/// The gradients that some rows and some keys of list `z` give: `dq` of the rows, where these are all keys, and `dk` and `dv` of the keys,
/// where these are all rows. Both ranges begin at whole blocks.
#[allow(clippy::too_many_arguments)]
fn backward_task(
    back: &BackwardOperands<'_>,
    digits: Digits,
    z: usize,
    rows: Range<usize>,
    keys: Range<usize>,
    mut dq: Option<&mut [f32]>,
    mut of_keys: Option<[&mut [f32]; 2]>,
    mut scratch: &mut [f32],
) {
    let job = &back.job;
    let Geometry { d, dv, .. } = job.g;
    let small = Small::new(job.simd, digits);
    let (blocks, all) = (rows.len().div_ceil(LANES), &mut scratch);
    let mut q_rows = Blocks::take(all, Operand::rows(LANES, d), digits, blocks);
    let mut dy_rows = Blocks::take(all, Operand::rows(LANES, dv), digits, blocks);
    let mut q_columns = Blocks::take(all, Operand::rows(d, LANES), digits, blocks);
    let mut dy_columns = Blocks::take(all, Operand::rows(dv, LANES), digits, blocks);
    let mut k_rows = Blocks::take(all, Operand::columns(KEY_BLOCK, d), digits, 1);
    let mut v_rows = Blocks::take(all, Operand::columns(KEY_BLOCK, dv), digits, 1);
    let mut k_columns = Blocks::take(all, Operand::columns(d, KEY_BLOCK), digits, 1);
    let mut weights = Blocks::take(all, Operand::columns(KEY_BLOCK, LANES), digits, 1);
    let mut slopes_rows = Blocks::take(all, Operand::rows(LANES, KEY_BLOCK), digits, 1);
    let (scores, slopes) = (take_lanes(all, LANES), take_lanes(all, LANES));
    let (dk_sums, dv_sums) = (take_lanes(all, d), take_lanes(all, dv));
    let [q, k, v] = [0, 1, 2].map(|part| job.g.input_rows(part, z));
    let out = job.g.output_rows(z);
    let meets = |r0: usize, count: usize, k0: usize| !job.causal || job.query_range(r0, count).1 >= k0;
    for (i, r0) in rows.clone().step_by(LANES).enumerate() {
        let count = LANES.min(rows.end - r0);
        if !meets(r0, count, keys.start) {
            continue;
        }
        let (q_at, dy_at) = (&job.q[q.0 + r0 * q.1..], &back.dy[out.0 + r0 * out.1..]);
        small.pack(Operand::rows(count, d), q_at, Order::Lines(q.1), q_rows.get_mut(i));
        small.pack(Operand::rows(count, dv), dy_at, Order::Lines(out.1), dy_rows.get_mut(i));
        if of_keys.is_some() {
            small.pack(Operand::rows(d, count), q_at, Order::Terms(q.1), q_columns.get_mut(i));
            small.pack(Operand::rows(dv, count), dy_at, Order::Terms(out.1), dy_columns.get_mut(i));
        }
    }
    if let Some(dq) = &mut dq {
        dq.fill(0.0);
    }
    for k0 in keys.clone().step_by(KEY_BLOCK) {
        let valid = KEY_BLOCK.min(keys.end - k0);
        let (k_at, v_at) = (&job.k[k.0 + k0 * k.1..], &job.v[v.0 + k0 * v.1..]);
        let (of_k, of_v) = (Operand::columns(valid, d), Operand::columns(valid, dv));
        small.pack(of_k, k_at, Order::Lines(k.1), k_rows.get_mut(0));
        small.pack(of_v, v_at, Order::Lines(v.1), v_rows.get_mut(0));
        if dq.is_some() {
            small.pack(Operand::columns(d, valid), k_at, Order::Terms(k.1), k_columns.get_mut(0));
        }
        dk_sums.fill([0.0; LANES]);
        dv_sums.fill([0.0; LANES]);
        for (i, r0) in rows.clone().step_by(LANES).enumerate().rev() {
            let count = LANES.min(rows.end - r0);
            if !meets(r0, count, k0) {
                continue;
            }
            let (scores, slopes) = (&mut scores[..count], &mut slopes[..count]);
            let a = (Operand::rows(count, d), q_rows.get(i));
            small.multiply(a, (of_k, k_rows.get(0)), false, scores.as_flattened_mut(), LANES);
            let a = (Operand::rows(count, dv), dy_rows.get(i));
            small.multiply(a, (of_v, v_rows.get(0)), false, slopes.as_flattened_mut(), LANES);
            weigh_block(job.simd, back, z, [r0, k0, valid], scores, slopes);
            if of_keys.is_some() {
                let b = Operand::columns(valid, count);
                let sums =
                    [(dv, &dy_columns, &*scores, &mut *dv_sums), (d, &q_columns, &*slopes, &mut *dk_sums)];
                for (width, columns, tile, sums) in sums {
                    small.pack(b, tile.as_flattened(), Order::Terms(LANES), weights.get_mut(0));
                    let a = (Operand::rows(width, count), columns.get(i));
                    small.multiply(a, (b, weights.get(0)), true, sums.as_flattened_mut(), LANES);
                }
            }
            if let Some(dq) = &mut dq {
                let a = Operand::rows(count, valid);
                small.pack(a, slopes.as_flattened(), Order::Lines(LANES), slopes_rows.get_mut(0));
                let (b, at) = (Operand::columns(d, valid), (r0 - rows.start) * d);
                small.multiply((a, slopes_rows.get(0)), (b, k_columns.get(0)), true, &mut dq[at..], d);
            }
        }
        if let Some([dk, dv_out]) = &mut of_keys {
            let at = k0 - keys.start;
            turn_back(job.simd, dk_sums, job.scale, &mut dk[at * d..][..valid * d]);
            turn_back(job.simd, dv_sums, 1.0, &mut dv_out[at * dv..][..valid * dv]);
        }
    }
    if let Some(dq) = dq {
        dq.iter_mut().for_each(|x| *x *= job.scale);
    }
}

simd_fn! {
    /// Products of queries and keys become weights, and those of `dy` and values the gradients of scores. `place` is the first query, the
    /// first key and the number of keys.
    fn weigh_block(simd, back: &BackwardOperands<'_>, z: usize, place: [usize; 3], scores: &mut [Lanes], slopes: &mut [Lanes]) {
        let [r0, k0, valid] = place;
        let job = &back.job;
        let (low, _) = job.query_range(r0, scores.len());
        signed(job, scores);
        if job.g.mask.is_some() || job.causal && k0 + valid > low + 1 {
            block_pairs(job, z, true, k0, valid, r0, scores);
        }
        let at = z * job.g.rows() + r0;
        for (r, (s, e)) in scores.iter_mut().zip(slopes).enumerate() {
            let (log, top, delta) = (back.logs[at + r], back.tops[at + r], back.delta[at + r]);
            for l in 0..LANES {
                let p = functions::weight((s[l] - top).mul_add(job.factor, -log));
                e[l] = choose(s[l], 0.0, p * (e[l] - delta));
                s[l] = choose(s[l], 0.0, p);
            }
        }
    }
}
