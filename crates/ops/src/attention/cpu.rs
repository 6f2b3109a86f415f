//! The CPU kernels.

use super::geometry::{Geometry, KEY_BLOCK, Scoring};
use crate::pointwise::expression::Scratch;
use dittograd_device::cpu::LINE;
use dittograd_device::cpu::lanes::{self, Skip};
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_device::cpu::threads::Pool;
use dittograd_numerics::scalar::Real;
use dittograd_numerics::{K_CHUNK, functions, sum};
use std::f64::consts::LOG2_E;

/// Rows that a tile has side by side, on the CPU.
pub(super) const LANES: usize = 64;

/// Stands for a pair that may not attend: a signalling NaN, which no arithmetic gives.
pub(super) const BLOCKED: u32 = 0xff80_0001;

/// One number of each.
pub(super) type Lanes = [f32; LANES];

/// The inputs of one attention and how they are scored.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    pub(super) simd: Simd,
    pub(super) g: Geometry,
    pub(super) causal: bool,
    /// The magnitude of the scale times log2 e, whether it is negative, and the scale.
    pub(super) factor: f32,
    pub(super) flips: bool,
    pub(super) scale: f32,
    pub(super) q: &'a [f32],
    pub(super) k: &'a [f32],
    pub(super) v: &'a [f32],
    pub(super) mask: &'a [f32],
}

/// Scratch rows of lanes the forward pass of a tile needs.
pub(super) fn forward_scratch(g: &Geometry) -> usize {
    g.d + g.dv + KEY_BLOCK
}

/// What the backward pass reads besides: the upstream gradient and the statistics of each row.
#[derive(Clone, Copy)]
pub(super) struct BackwardOperands<'a> {
    pub(super) job: Operands<'a>,
    pub(super) dy: &'a [f32],
    pub(super) logs: &'a [f32],
    pub(super) tops: &'a [f32],
    pub(super) delta: &'a [f32],
}

/// Scratch rows of lanes the backward pass of a tile needs.
pub(super) fn backward_scratch(g: &Geometry) -> usize {
    3 * (g.d + g.dv) + 2 * KEY_BLOCK + row_lanes(g)
}

/// Floats of a row of `dq` under way: whole lines.
pub(super) fn row_lanes(g: &Geometry) -> usize {
    g.d.max(1).next_multiple_of(LINE)
}

/// Floats that [`list`] needs for its sums.
pub(super) fn list_scratch(g: &Geometry) -> usize {
    2 * g.rows() * row_lanes(g)
}

impl<'a> Operands<'a> {
    pub(super) fn new(simd: Simd, scoring: Scoring, g: Geometry, ins: &[&'a [f32]]) -> Operands<'a> {
        let scale = scoring.scale(g.d);
        Operands {
            simd,
            g,
            causal: scoring.causal,
            factor: scoring.factor(g.d),
            flips: scoring.flips(g.d),
            scale: scale as f32,
            q: ins[0],
            k: ins[1],
            v: ins[2],
            mask: if g.mask.is_some() { ins[3] } else { &[] },
        }
    }

    /// Query index of a row.
    pub(super) fn query(&self, row: usize) -> usize {
        row % self.g.n
    }

    /// Where the mask of a row of list `z` starts.
    pub(super) fn mask_at(&self, z: usize, row: usize) -> usize {
        let view = self.g.mask.unwrap_or_default();
        view.at(z * self.g.group + row / self.g.n, row % self.g.n)
    }

    /// Smallest and largest query index of some rows.
    pub(super) fn query_range(&self, from: usize, count: usize) -> (usize, usize) {
        let (first, last) = (self.query(from), self.query(from + count - 1));
        if from / self.g.n == (from + count - 1) / self.g.n { (first, last) } else { (0, self.g.n - 1) }
    }
}

/// The scores of products of queries and keys.
#[inline(always)]
pub(super) fn signed(job: &Operands<'_>, scores: &mut [Lanes]) {
    if job.flips {
        scores.as_flattened_mut().iter_mut().for_each(|x| *x = -*x);
    }
}

/// Rows of a slice as columns of lanes; lanes without a row repeat the last.
pub(super) fn turn(simd: Simd, rows: &[f32], width: usize, out: &mut [Lanes]) {
    if let Some(count @ 1..) = rows.len().checked_div(width) {
        lanes::transpose_lines(simd, rows, width, count, width, LANES, out.as_flattened_mut());
    }
}

/// `out[j][l] = Σ_c a[c][l] b[j][c]`: chains in increasing `c` from +0.
pub(super) fn product(simd: Simd, a: &[Lanes], b: &[f32], out: &mut [Lanes]) {
    let strides = [1, a.len()];
    lanes::accumulate(simd, Skip::Nothing, LANES, a.as_flattened(), b, strides, true, out.as_flattened_mut());
}

/// `blocked` where `p` says so, else `open`; by bits, so that loops over it vectorise.
#[inline(always)]
pub(super) fn choose(p: f32, blocked: f32, open: f32) -> f32 {
    let mask = u32::from(p.to_bits() == BLOCKED).wrapping_neg();
    f32::from_bits((blocked.to_bits() & mask) | (open.to_bits() & !mask))
}

/// `acc[c][l] = fma(p[j][l], b[j][c], acc[c][l])` in increasing `j`; with `some`, pairs that are blocked take no part.
pub(super) fn accumulate(simd: Simd, some: bool, p: &[Lanes], b: &[f32], acc: &mut [Lanes]) {
    let skip = if some { Skip::Lanes(BLOCKED) } else { Skip::Nothing };
    let strides = [acc.len(), 1];
    lanes::accumulate(simd, skip, LANES, p.as_flattened(), b, strides, false, acc.as_flattened_mut());
}

/// Lanes of rows against a run of streamed ones: which pairs are blocked. `lanes` are queries and `stream`
/// keys, or the other way round.
#[inline(always)]
pub(super) fn block_pairs(
    job: &Operands<'_>,
    z: usize,
    lanes_are_keys: bool,
    lane0: usize,
    valid: usize,
    stream0: usize,
    scores: &mut [Lanes],
) {
    let blocked = f32::from_bits(BLOCKED);
    let column = job.g.mask.map_or(0, |v| v.column);
    if lanes_are_keys {
        for (r, s) in scores.iter_mut().enumerate() {
            let row = stream0 + r;
            if job.causal {
                let query = job.query(row) as u32;
                for (l, x) in s.iter_mut().enumerate() {
                    let mask = u32::from((lane0 + l) as u32 > query).wrapping_neg();
                    *x = f32::from_bits((BLOCKED & mask) | (x.to_bits() & !mask));
                }
            }
            if job.g.mask.is_some() {
                let at = job.mask_at(z, row);
                for (l, x) in s.iter_mut().enumerate().take(valid) {
                    let open = job.mask[at + (lane0 + l) * column].abs() > 0.0;
                    *x = if open { *x } else { blocked };
                }
            }
        }
        return;
    }
    if job.causal {
        let mut queries = [u32::MAX; LANES];
        for (l, query) in queries.iter_mut().enumerate().take(valid) {
            *query = job.query(lane0 + l) as u32;
        }
        for (j, s) in scores.iter_mut().enumerate() {
            let key = (stream0 + j) as u32;
            for l in 0..LANES {
                let mask = u32::from(key > queries[l]).wrapping_neg();
                s[l] = f32::from_bits((BLOCKED & mask) | (s[l].to_bits() & !mask));
            }
        }
    }
    if job.g.mask.is_some() {
        for l in 0..valid {
            let at = job.mask_at(z, lane0 + l);
            for (j, s) in scores.iter_mut().enumerate() {
                let open = job.mask[at + (stream0 + j) * column].abs() > 0.0;
                s[l] = if open { s[l] } else { blocked };
            }
        }
    }
}

/// One tile of rows, forward: rows of list `z` from `r0` on, as many as `logs` and `tops` are long.
#[inline(always)]
pub(super) fn forward_tile(
    job: &Operands<'_>,
    z: usize,
    r0: usize,
    [o, logs, tops]: [&mut [f32]; 3],
    scratch: &mut [f32],
) {
    let Geometry { m, d, dv, .. } = job.g;
    let valid = logs.len();
    let (lanes, _) = scratch.as_chunks_mut::<LANES>();
    let (qt, lanes) = lanes.split_at_mut(d);
    let (acc, lanes) = lanes.split_at_mut(dv);
    let at = z * job.g.rows() + r0;
    turn(job.simd, &job.q[at * d..][..valid * d], d, qt);
    acc.fill([0.0; LANES]);
    let (low, high) = job.query_range(r0, valid);
    let mut top = [f32::NEG_INFINITY; LANES];
    let mut total = [0.0f32; LANES];
    let keys = if job.causal { m.min(high + 1) } else { m };
    for j0 in (0..keys).step_by(KEY_BLOCK) {
        let count = KEY_BLOCK.min(m - j0);
        let scores = &mut lanes[..count];
        let some = job.g.mask.is_some() || job.causal && j0 + count > low + 1;
        product(job.simd, qt, &job.k[(z * m + j0) * d..][..count * d], scores);
        signed(job, scores);
        let mut open = [u32::from(!some); LANES];
        if some {
            block_pairs(job, z, false, r0, valid, j0, scores);
            for s in scores.iter() {
                for l in 0..LANES {
                    open[l] |= u32::from(s[l].to_bits() != BLOCKED);
                }
            }
        }
        let mut best = [f32::NEG_INFINITY; LANES];
        for s in scores.iter() {
            for l in 0..LANES {
                best[l] = f32::where_gt(s[l], best[l], s[l], best[l]);
            }
        }
        let mut alpha = [0.0f32; LANES];
        for l in 0..LANES {
            let b = best[l] + 0.0;
            let next = f32::where_gt(b, top[l], b, top[l]);
            let keep = functions::weight((top[l] - next) * job.factor);
            alpha[l] = if open[l] != 0 { keep } else { 1.0 };
            top[l] = next;
        }
        let mut sums = [[0.0f32; LANES]; 4];
        for (j, s) in scores.iter_mut().enumerate() {
            let sum = &mut sums[j % 4];
            for l in 0..LANES {
                let w = functions::weight((s[l] - top[l]) * job.factor);
                sum[l] += choose(s[l], 0.0, w);
                s[l] = choose(s[l], s[l], w);
            }
        }
        for l in 0..LANES {
            let sum = (sums[0][l] + sums[2][l]) + (sums[1][l] + sums[3][l]);
            total[l] = total[l].mul_add(alpha[l], sum);
        }
        for a in acc.iter_mut() {
            for l in 0..LANES {
                a[l] *= alpha[l];
            }
        }
        accumulate(job.simd, some, scores, &job.v[(z * m + j0) * dv..][..count * dv], acc);
    }
    finish_rows(job.simd, acc, top, total, [o, logs, tops]);
}

/// Outputs and statistics of rows, of their sums: weighted values, largest scores and weights.
#[inline(always)]
pub(super) fn finish_rows(
    simd: Simd,
    acc: &mut [Lanes],
    mut top: Lanes,
    total: Lanes,
    [o, logs, tops]: [&mut [f32]; 3],
) {
    let mut inverse = [0.0f32; LANES];
    let mut log = [0.0f32; LANES];
    for l in 0..LANES {
        inverse[l] = 1.0 / total[l];
        log[l] = functions::log(total[l]) * LOG2_E as f32;
        // NaN where the sum is.
        top[l] = f32::where_eq(total[l], total[l], top[l], total[l]);
    }
    for a in acc.iter_mut() {
        for l in 0..LANES {
            a[l] = f32::where_eq(total[l], 0.0, 0.0, a[l] * inverse[l]);
        }
    }
    turn_back(simd, acc, 1.0, o);
    for (l, (log_to, top_to)) in logs.iter_mut().zip(tops).enumerate() {
        (*log_to, *top_to) = if total[l] == 0.0 { (0.0, 0.0) } else { (log[l], top[l]) };
    }
}

simd_fn! {
    /// [`forward_tile`] at every level.
    pub(super) fn forward(simd, job: &Operands<'_>, z: usize, r0: usize, results: [&mut [f32]; 3], scratch: &mut [f32]) {
        forward_tile(job, z, r0, results, scratch);
    }
}

/// Adds the sums of a chunk to the totals and starts anew.
#[inline(always)]
pub(super) fn close_chunk(total: &mut [f32], chunk: &mut [f32]) {
    for (t, c) in total.iter_mut().zip(chunk) {
        *t += *c;
        *c = 0.0;
    }
}

/// Lanes as rows, times `scale`.
#[inline(always)]
pub(super) fn turn_back(simd: Simd, lanes: &[Lanes], scale: f32, out: &mut [f32]) {
    let width = lanes.len();
    let Some(count @ 1..) = out.len().checked_div(width) else { return };
    if width.is_multiple_of(LINE) {
        lanes::transpose_lines(simd, lanes.as_flattened(), LANES, width, count, width, out);
        out.iter_mut().for_each(|x| *x *= scale);
        return;
    }
    for (l, row) in out.chunks_exact_mut(width).enumerate() {
        for (x, lanes) in row.iter_mut().zip(lanes) {
            *x = lanes[l] * scale;
        }
    }
}

/// Weights and score gradients of a block of streamed rows: `scores` become weights, `slopes` become `ds`.
/// The statistics (logarithm, largest score, `delta`) are those of the lanes or of the streamed rows.
#[inline(always)]
pub(super) fn weigh(
    job: &Operands<'_>,
    stats: impl Fn(usize) -> [Lanes; 3],
    scores: &mut [Lanes],
    slopes: &mut [Lanes],
) {
    signed(job, scores);
    for (r, (s, e)) in scores.iter_mut().zip(slopes).enumerate() {
        let [log, top, delta] = stats(r);
        for l in 0..LANES {
            let p = functions::weight((s[l] - top[l]).mul_add(job.factor, -log[l]));
            s[l] = p;
            e[l] = p * (e[l] - delta[l]);
        }
    }
}

/// Marks the slopes whose scores are blocked.
#[inline(always)]
pub(super) fn mark(marks: &[Lanes], to: &mut [Lanes]) {
    for (m, t) in marks.iter().zip(to) {
        for l in 0..LANES {
            t[l] = choose(m[l], m[l], t[l]);
        }
    }
}

/// `dq` of as many rows of list `z` from `r0` on as `dq` holds.
#[inline(always)]
pub(super) fn queries_tile(
    back: &BackwardOperands<'_>,
    z: usize,
    r0: usize,
    dq: &mut [f32],
    valid: usize,
    scratch: &mut [f32],
) {
    let job = &back.job;
    let Geometry { m, d, dv, .. } = job.g;
    let (lanes, _) = scratch.as_chunks_mut::<LANES>();
    let (qt, lanes) = lanes.split_at_mut(d);
    let (gt, lanes) = lanes.split_at_mut(dv);
    let (chunk, lanes) = lanes.split_at_mut(d);
    let (total, lanes) = lanes.split_at_mut(d);
    let at = z * job.g.rows() + r0;
    turn(job.simd, &job.q[at * d..][..valid * d], d, qt);
    turn(job.simd, &back.dy[at * dv..][..valid * dv], dv, gt);
    chunk.fill([0.0; LANES]);
    total.fill([0.0; LANES]);
    let mut stats: [Lanes; 3] = [[0.0; LANES]; 3];
    for (lanes, x) in stats.iter_mut().zip([back.logs, back.tops, back.delta]) {
        lanes[..valid].copy_from_slice(&x[at..at + valid]);
    }
    let (low, high) = job.query_range(r0, valid);
    let keys = if job.causal { m.min(high + 1) } else { m };
    for j0 in (0..keys).step_by(KEY_BLOCK) {
        if j0 % K_CHUNK == 0 {
            close_chunk(total.as_flattened_mut(), chunk.as_flattened_mut());
        }
        let count = KEY_BLOCK.min(m - j0);
        let (scores, slopes) = lanes.split_at_mut(KEY_BLOCK);
        let (scores, slopes) = (&mut scores[..count], &mut slopes[..count]);
        let some = job.g.mask.is_some() || job.causal && j0 + count > low + 1;
        let k = &job.k[(z * m + j0) * d..][..count * d];
        product(job.simd, qt, k, scores);
        product(job.simd, gt, &job.v[(z * m + j0) * dv..][..count * dv], slopes);
        weigh(job, |_| stats, scores, slopes);
        if some {
            block_pairs(job, z, false, r0, valid, j0, slopes);
        }
        accumulate(job.simd, some, slopes, k, chunk);
    }
    close_chunk(total.as_flattened_mut(), chunk.as_flattened_mut());
    turn_back(job.simd, total, job.scale, dq);
}

/// `dk` and `dv` of `valid` keys of list `z` from `k0` on. With `dq`, the chains of its chunk go on over these keys: every score
/// is then made once and not twice, but the keys of a list must come in order.
#[inline(always)]
pub(super) fn keys_tile(
    back: &BackwardOperands<'_>,
    z: usize,
    k0: usize,
    [dk, dv_out]: [&mut [f32]; 2],
    valid: usize,
    mut dq: Option<&mut [f32]>,
    scratch: &mut [f32],
) {
    let job = &back.job;
    let Geometry { m, d, dv, .. } = job.g;
    let rows = job.g.rows();
    let (lanes, _) = scratch.as_chunks_mut::<LANES>();
    let (kt, lanes) = lanes.split_at_mut(d);
    let (vt, lanes) = lanes.split_at_mut(dv);
    let (dk_chunk, lanes) = lanes.split_at_mut(d);
    let (dk_total, lanes) = lanes.split_at_mut(d);
    let (dv_chunk, lanes) = lanes.split_at_mut(dv);
    let (dv_total, lanes) = lanes.split_at_mut(dv);
    let (scores, lanes) = lanes.split_at_mut(KEY_BLOCK);
    let (slopes, key_rows) = lanes.split_at_mut(KEY_BLOCK);
    let k = &job.k[(z * m + k0) * d..][..valid * d];
    turn(job.simd, k, d, kt);
    turn(job.simd, &job.v[(z * m + k0) * dv..][..valid * dv], dv, vt);
    for sums in [&mut *dk_chunk, &mut *dk_total, &mut *dv_chunk, &mut *dv_total] {
        sums.fill([0.0; LANES]);
    }
    // The keys as they are, for `dq` filled up to whole lines.
    let lanes = row_lanes(&job.g);
    let key_rows = &mut key_rows.as_flattened_mut()[..valid * lanes];
    let key_rows: &[f32] = if d == lanes || dq.is_none() {
        k
    } else {
        for (to, from) in key_rows.chunks_exact_mut(lanes).zip(k.chunks_exact(d.max(1))) {
            to[..d].copy_from_slice(from);
            to[d..].fill(0.0);
        }
        key_rows
    };
    for r0 in (0..rows).step_by(KEY_BLOCK).rev() {
        if (r0 + KEY_BLOCK).is_multiple_of(K_CHUNK) {
            close_chunk(dk_total.as_flattened_mut(), dk_chunk.as_flattened_mut());
            close_chunk(dv_total.as_flattened_mut(), dv_chunk.as_flattened_mut());
        }
        let count = KEY_BLOCK.min(rows - r0);
        let (low, high) = job.query_range(r0, count);
        if job.causal && high < k0 {
            continue;
        }
        let (scores, slopes) = (&mut scores[..count], &mut slopes[..count]);
        let some = job.g.mask.is_some() || job.causal && k0 + valid > low + 1;
        let at = z * rows + r0;
        let (q, dy) = (&job.q[at * d..][..count * d], &back.dy[at * dv..][..count * dv]);
        product(job.simd, kt, q, scores);
        product(job.simd, vt, dy, slopes);
        let stats = |r: usize| [back.logs[at + r], back.tops[at + r], back.delta[at + r]].map(|x| [x; LANES]);
        weigh(job, stats, scores, slopes);
        if some {
            block_pairs(job, z, true, k0, valid, r0, scores);
            mark(scores, slopes);
        }
        accumulate(job.simd, some, scores, dy, dv_chunk);
        accumulate(job.simd, some, slopes, q, dk_chunk);
        if let Some(dq) = &mut dq {
            let skip = if some { Skip::Factors(BLOCKED) } else { Skip::Nothing };
            let acc = &mut dq[r0 * lanes..][..count * lanes];
            lanes::accumulate(job.simd, skip, lanes, key_rows, slopes.as_flattened(), [1, LANES], false, acc);
        }
    }
    close_chunk(dk_total.as_flattened_mut(), dk_chunk.as_flattened_mut());
    close_chunk(dv_total.as_flattened_mut(), dv_chunk.as_flattened_mut());
    turn_back(job.simd, dk_total, job.scale, dk);
    turn_back(job.simd, dv_total, 1.0, dv_out);
}

/// All gradients of list `z`, its keys in order: `dq`, `dk` and `dv` of that list.
pub(super) fn list(
    simd: Simd,
    back: &BackwardOperands<'_>,
    z: usize,
    [dq, dk, dv]: [&mut [f32]; 3],
    scratch: &mut [f32],
) {
    let g = &back.job.g;
    let lanes = row_lanes(g);
    let (sums, scratch) = scratch.split_at_mut(list_scratch(g));
    sums.fill(0.0);
    let (chunk, total) = sums.split_at_mut(g.rows() * lanes);
    for k0 in (0..g.m).step_by(LANES) {
        if k0 % K_CHUNK == 0 {
            close_chunk(total, chunk);
        }
        let valid = LANES.min(g.m - k0);
        let results = [&mut dk[k0 * g.d..][..valid * g.d], &mut dv[k0 * g.dv..][..valid * g.dv]];
        keys(simd, back, z, k0, results, valid, Some(&mut *chunk), scratch);
    }
    close_chunk(total, chunk);
    for (row, sums) in dq.chunks_exact_mut(g.d.max(1)).zip(total.chunks_exact(lanes.max(1))) {
        for (x, sum) in row.iter_mut().zip(sums) {
            *x = sum * back.job.scale;
        }
    }
}

simd_fn! {
    /// [`queries_tile`] at every level.
    pub(super) fn queries(simd, back: &BackwardOperands<'_>, z: usize, r0: usize, dq: &mut [f32], valid: usize, scratch: &mut [f32]) {
        queries_tile(back, z, r0, dq, valid, scratch);
    }
}

simd_fn! {
    /// [`keys_tile`] at every level.
    pub(super) fn keys(simd, back: &BackwardOperands<'_>, z: usize, k0: usize, results: [&mut [f32]; 2], valid: usize, dq: Option<&mut [f32]>, scratch: &mut [f32]) {
        keys_tile(back, z, k0, results, valid, dq, scratch);
    }
}

/// Runs `f` on every tile of `tile` rows of every list of `rows` rows, with what it writes of the results, whose rows have
/// these widths, and so many words of scratch.
pub(super) fn run_tiles<const N: usize>(
    pool: &Pool,
    [lists, rows, tile]: [usize; 3],
    results: [&mut [f32]; N],
    widths: [usize; N],
    scratch: usize,
    f: impl Fn(usize, usize, usize, [&mut [f32]; N], &mut [f32]) + Sync,
) {
    pool.tiles_mut(results, widths, [lists, rows, tile], |list, row, count, results| {
        let mut words = Scratch::take(scratch);
        f(list, row, count, results, &mut words.words()[..scratch]);
    });
}

simd_fn! {
    /// `delta_i = Σ_c dy_ic o_ic` by the row rule, less `dl_i log2 e`. Rows of `dv` numbers are `stride` apart.
    pub(super) fn row_products(simd, dy: &[f32], o: &[f32], dl: Option<&[f32]>, stride: usize, dv: usize, delta: &mut [f32]) {
        for (i, x) in delta.iter_mut().enumerate() {
            let row = i * stride..i * stride + dv;
            let sum = sum::chunk([&dy[row.clone()], &o[row]], |[a, b]| a * b);
            *x = dl.map_or(sum, |dl| dl[i].mul_add(-(LOG2_E as f32), sum));
        }
    }
}
