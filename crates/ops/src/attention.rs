//! Scaled dot-product attention by blocks of keys: nothing of the size queries by keys is stored, forward or
//! backward. `NUMERICS.md` has the order of every sum; here lanes are rows, on CUDA they are pairs, with the
//! same bits.
//!
//! Query heads that share a key head are seen as one long list of rows: `(…, heads, n, d)` is `batch` lists of
//! `group * n` rows, since the heads of a group are neighbours in memory.

mod inside;

use super::program::{Program, Scratch};
use super::sampling::pick;
use super::{
    AnyTensor, Attr, Attrs, Bound, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Reject, Sample, SampleIn, Val,
    dims, layout, map, mismatch,
};
use crate::matmul::Bmm;
use crate::reduce::Sum;
use dittograd_device::cpu::LINE;
use dittograd_device::cpu::lanes::{self, Skip};
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_device::cpu::threads::Pool;
use dittograd_device::cuda::{Args, Cuda, Source};
use dittograd_device::{DType, Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::lane::cuda_function;
use dittograd_numerics::rng::Stream;
use dittograd_numerics::scalar::{Real, Scalar};
use dittograd_numerics::shape::{MAX_RANK, Shape};
use dittograd_numerics::tensor::Tensor;
use dittograd_numerics::{K_CHUNK, Numerics, functions, sum};
use std::f64::consts::{LN_2, LOG2_E};
use std::ops::Range;

pub use inside::outputs_alone;
pub use inside::{SelfAttention, SelfAttentionBwd};

const ATTENTION_CU: &str = concat!(include_str!("tensor.cu"), include_str!("attention.cu"));

/// Keys of a block of the online softmax.
const BLOCK: usize = 64;
/// The largest size of a head.
const MAX_HEAD: usize = 256;
/// The most rows of a list, so that kernels count them in 32 bits.
const MAX_ROWS: usize = 1 << 30;
/// Axes before the last two of a value.
const LEAD: usize = MAX_RANK - 2;
/// Stands for a pair that may not attend: a signalling NaN, which no arithmetic gives.
const BLOCKED: u32 = 0xff80_0001;

/// Rows that a tile has side by side, on the CPU.
const LANES: usize = 64;
/// One number of each.
type Lanes = [f32; LANES];

/// How a mask is read: one stride per leading axis of the queries, aligned at the last of [`LEAD`], then per
/// query and per key; 0 where the mask is repeated.
#[derive(Clone, Copy, Debug, Default)]
struct MaskView {
    dims: [usize; LEAD],
    strides: [usize; LEAD],
    row: usize,
    column: usize,
}

impl MaskView {
    /// Where the mask of query `i` of head `head` (all leading axes as one) starts.
    fn at(&self, mut head: usize, i: usize) -> usize {
        let mut at = i * self.row;
        for (&d, &s) in self.dims.iter().zip(&self.strides).rev() {
            at += head % d * s;
            head /= d;
        }
        at
    }
}

/// The sizes of one attention.
#[derive(Clone, Copy, Debug)]
struct Geometry {
    /// Lists of keys: the leading axes of the keys as one.
    batch: usize,
    /// Query heads that share a list of keys.
    group: usize,
    /// Queries of a head.
    n: usize,
    /// Keys.
    m: usize,
    /// Size of queries and keys.
    d: usize,
    /// Size of values.
    dv: usize,
    mask: Option<MaskView>,
    /// Heads that lie inside the rows of a linear layer, as in [`SelfAttention`]; 0 where each list is dense.
    heads: usize,
}

impl Geometry {
    fn of(op: &'static str, [q, k, v]: [Shape; 3], mask: Option<Shape>) -> Result<Geometry> {
        for s in [q, k, v] {
            if s.rank() < 2 {
                return Err(Error::new(op, ErrorKind::Rank { want: "at least 2", got: s }));
            }
        }
        let rank = q.rank();
        fn lead(s: &Shape) -> &[usize] {
            &s.dims()[..s.rank() - 2]
        }
        if k.rank() != rank {
            return Err(mismatch(op, "ranks of queries and keys differ", q, k));
        }
        let (ql, kl) = (lead(&q), lead(&k));
        if v.rank() != rank || lead(&v) != kl || v.dims()[rank - 2] != k.dims()[rank - 2] {
            return Err(mismatch(op, "keys and values differ in more than their last size", k, v));
        }
        let group = match (ql.split_last(), kl.split_last()) {
            (Some((&heads, ql)), Some((&shared, kl))) => {
                let divides = if shared == 0 { heads == 0 } else { heads % shared == 0 };
                if ql != kl || !divides {
                    return Err(mismatch(op, "leading sizes of queries and keys differ", q, k));
                }
                heads.checked_div(shared).unwrap_or(1)
            }
            _ => 1,
        };
        let (n, d) = (q.dims()[rank - 2], q.last());
        let (m, dv) = (k.dims()[rank - 2], v.last());
        if k.last() != d {
            return Err(mismatch(op, "sizes of queries and keys differ", q, k));
        }
        if d.max(dv) > MAX_HEAD {
            let why = format!("is {}, at most {MAX_HEAD} fits: use more heads", d.max(dv));
            return Err(Error::argument(op, "head size", why));
        }
        if m.max(n.saturating_mul(group.max(1))) > MAX_ROWS {
            return Err(Error::new(op, ErrorKind::TooLarge { dims: vec![group, n, m] }));
        }
        let mask = mask.map(|mask| MaskView::of(op, mask, q, m)).transpose()?;
        Ok(Geometry { batch: kl.iter().product(), group, n, m, d, dv, mask, heads: 0 })
    }

    /// Rows of a list.
    fn rows(&self) -> usize {
        self.group * self.n
    }

    /// Whether tensor cores may multiply, and the sizes of heads are such that they can.
    fn takes_tensor(&self, gpu: &Gpu) -> bool {
        let in_eights = self.d.min(self.dv) > 0 && self.d.is_multiple_of(8) && self.dv.is_multiple_of(8);
        in_eights && gpu.numerics == Numerics::Tf32
    }
}

impl MaskView {
    fn of(op: &'static str, mask: Shape, q: Shape, m: usize) -> Result<MaskView> {
        let mut all = q.dims().to_vec();
        all[q.rank() - 1] = m;
        let fits = mask.rank() <= all.len()
            && mask.dims().iter().rev().zip(all.iter().rev()).all(|(&a, &b)| a == 1 || a == b);
        if !fits {
            let why = "the mask does not broadcast to (…, queries, keys) for";
            return Err(mismatch(op, why, mask, q));
        }
        let strides = mask.strides();
        let stride = |from_end: usize| match mask.rank().checked_sub(from_end) {
            Some(axis) if mask.dims()[axis] != 1 => strides[axis],
            _ => 0,
        };
        let mut view = MaskView { dims: [1; LEAD], row: stride(2), column: stride(1), ..MaskView::default() };
        for from_end in 3..=q.rank() {
            view.dims[LEAD + 2 - from_end] = q.dims()[q.rank() - from_end].max(1);
            view.strides[LEAD + 2 - from_end] = stride(from_end);
        }
        Ok(view)
    }
}

/// What [`Attention`] and [`AttentionBwd`] have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rule {
    causal: bool,
    scale: Option<f64>,
}

impl Rule {
    /// What scores are multiplied by; `1 / sqrt(d)` unless given.
    fn scale(&self, d: usize) -> f64 {
        self.scale.unwrap_or_else(|| 1.0 / libm::sqrt(d.max(1) as f64))
    }

    /// What a difference of scores is multiplied by to be an exponent of 2: never 0, so that it is that of equal scores alone.
    fn factor(&self, d: usize) -> f32 {
        ((self.scale(d).abs() * LOG2_E) as f32).max(f32::from_bits(1))
    }

    /// Whether scores are the negative products of queries and keys.
    fn flips(&self, d: usize) -> bool {
        self.scale(d) < 0.0
    }

    /// Checks `q, k, v` and the mask, if `count` inputs are one more than `without`.
    fn geometry(&self, op: &'static str, ins: &[Meta], without: usize) -> Result<Geometry> {
        if ins.len() != without && ins.len() != without + 1 {
            return Err(Error::new(op, ErrorKind::Arity { want: without, got: ins.len() }));
        }
        let masked = ins.len() > without;
        for i in (0..ins.len()).filter(|&i| !(masked && i == 3)) {
            super::typed(op, ins, i, DType::F32)?;
        }
        if self.scale.is_some_and(|s| !s.is_finite()) {
            return Err(Error::argument(op, "scale", "is not finite"));
        }
        let mask = masked.then(|| ins[3].shape);
        Geometry::of(op, [ins[0].shape, ins[1].shape, ins[2].shape], mask)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let mut all = vec![("causal", Attr::Bool(self.causal))];
        all.extend(self.scale.map(|s| ("scale", Attr::Num(s))));
        all
    }

    fn from_attrs(attrs: &Attrs) -> Result<Rule> {
        attrs.only(&["causal", "scale"])?;
        let scale = if attrs.get("scale").is_some() { Some(attrs.num("scale")?) } else { None };
        Ok(Rule { causal: attrs.flag("causal")?, scale })
    }
}

/// The shape of `q` with another last size, or without it.
fn like(q: Shape, last: Option<usize>) -> Shape {
    let (mut all, lead) = ([last.unwrap_or(0); MAX_RANK], q.rank() - 1);
    all[..lead].copy_from_slice(&q.dims()[..lead]);
    dims(&all[..lead + usize::from(last.is_some())])
}

/// Parts of the value of [`Attention`] on queries and values of these shapes: outputs, per query the
/// logarithm of the sum of its weights, and per query its largest score.
#[doc(hidden)]
pub fn parts(q: Shape, v: Shape) -> [Shape; 3] {
    [like(q, Some(v.last())), like(q, None), like(q, None)]
}

/// The places of the parts but the first.
fn statistics(parts: &[Shape; 3]) -> Range<usize> {
    let (starts, end) = layout::packed(parts);
    starts[1]..end
}

/// `o_i = Σ_j p_ij v_j` with `p_i` the softmax of `scale · q_i·k_j` over the keys that query `i` may
/// attend to; packed behind it, for the gradient, per query `l_i = log2 Σ_j e^(|scale| (s_ij - t_i))`, and then per query
/// `t_i = max_j s_ij`, where `s_ij` is `q_i·k_j`, or `-q_i·k_j` if the scale is negative. A query without keys gives zeros.
///
/// `l` and `t` are one number in two parts, `l_i + |scale| log2 e · t_i`: its gradient is taken to be that of `l`, and that of `t`
/// is not read.
///
/// Inputs: `q (…, heads, n, d)`, `k (…, heads, m, d)`, `v (…, heads, m, dv)`, and optionally a mask that
/// broadcasts to `(…, heads, n, m)`, numbers or indices below 2: where its magnitude is above 0, the query may
/// attend. Keys and values may have fewer heads, each shared by neighbouring heads of the queries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Query `i` attends only to keys up to `i`.
    pub causal: bool,
    /// What scores are multiplied by; `1 / sqrt(d)` if not given.
    pub scale: Option<f64>,
}

/// Gradients of [`Attention`]: `q, k, v`, the mask if there was one, the value and its upstream gradient, both
/// packed, to `dq | dk | dv`, packed. With `p_ij = 2^(|scale| log2 e (s_ij - t_i) - l_i)`, `δ_i = do_i·o_i - dl_i log2 e` and `ds_ij =
/// p_ij (do_i·v_j - δ_i)`: `dq_i = scale Σ_j ds_ij k_j`, `dk_j = scale Σ_i ds_ij q_i`, `dv_j = Σ_i p_ij do_i`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionBwd {
    /// As in [`Attention`].
    pub causal: bool,
    /// As in [`Attention`].
    pub scale: Option<f64>,
}

/// One attention on the CPU.
#[derive(Clone, Copy)]
struct Job<'a> {
    simd: Simd,
    g: Geometry,
    causal: bool,
    /// The magnitude of the scale times log2 e, whether it is negative, and the scale.
    factor: f32,
    flips: bool,
    scale: f32,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    mask: &'a [f32],
}

impl<'a> Job<'a> {
    fn new(simd: Simd, rule: Rule, g: Geometry, ins: &[&'a [f32]]) -> Job<'a> {
        let scale = rule.scale(g.d);
        Job {
            simd,
            g,
            causal: rule.causal,
            factor: rule.factor(g.d),
            flips: rule.flips(g.d),
            scale: scale as f32,
            q: ins[0],
            k: ins[1],
            v: ins[2],
            mask: if g.mask.is_some() { ins[3] } else { &[] },
        }
    }

    /// Query index of a row.
    fn query(&self, row: usize) -> usize {
        row % self.g.n
    }

    /// Where the mask of a row of list `z` starts.
    fn mask_at(&self, z: usize, row: usize) -> usize {
        let view = self.g.mask.unwrap_or_default();
        view.at(z * self.g.group + row / self.g.n, row % self.g.n)
    }

    /// Smallest and largest query index of some rows.
    fn query_range(&self, from: usize, count: usize) -> (usize, usize) {
        let (first, last) = (self.query(from), self.query(from + count - 1));
        if from / self.g.n == (from + count - 1) / self.g.n { (first, last) } else { (0, self.g.n - 1) }
    }
}

/// The scores of products of queries and keys.
#[inline(always)]
fn signed(job: &Job<'_>, scores: &mut [Lanes]) {
    if job.flips {
        scores.as_flattened_mut().iter_mut().for_each(|x| *x = -*x);
    }
}

/// Rows of a slice as columns of lanes; lanes without a row repeat the last.
fn turn(simd: Simd, rows: &[f32], width: usize, out: &mut [Lanes]) {
    if let Some(count @ 1..) = rows.len().checked_div(width) {
        lanes::transpose_lines(simd, rows, width, count, width, LANES, out.as_flattened_mut());
    }
}

/// `out[j][l] = Σ_c a[c][l] b[j][c]`: chains in increasing `c` from +0.
fn product(simd: Simd, a: &[Lanes], b: &[f32], out: &mut [Lanes]) {
    let strides = [1, a.len()];
    lanes::accumulate(simd, Skip::Nothing, LANES, a.as_flattened(), b, strides, true, out.as_flattened_mut());
}

/// `blocked` where `p` says so, else `open`; by bits, so that loops over it vectorise.
#[inline(always)]
fn choose(p: f32, blocked: f32, open: f32) -> f32 {
    let mask = u32::from(p.to_bits() == BLOCKED).wrapping_neg();
    f32::from_bits((blocked.to_bits() & mask) | (open.to_bits() & !mask))
}

/// `acc[c][l] = fma(p[j][l], b[j][c], acc[c][l])` in increasing `j`; with `some`, pairs that are blocked take no part.
fn accumulate(simd: Simd, some: bool, p: &[Lanes], b: &[f32], acc: &mut [Lanes]) {
    let skip = if some { Skip::Lanes(BLOCKED) } else { Skip::Nothing };
    let strides = [acc.len(), 1];
    lanes::accumulate(simd, skip, LANES, p.as_flattened(), b, strides, false, acc.as_flattened_mut());
}

/// Lanes of rows against a run of streamed ones: which pairs are blocked. `lanes` are queries and `stream`
/// keys, or the other way round.
#[inline(always)]
fn block_pairs(
    job: &Job<'_>,
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
        let queries: [u32; LANES] =
            std::array::from_fn(|l| if l < valid { job.query(lane0 + l) as u32 } else { u32::MAX });
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

/// Scratch rows of lanes the forward pass of a tile needs.
fn forward_scratch(g: &Geometry) -> usize {
    g.d + g.dv + BLOCK
}

/// One tile of rows, forward: rows of list `z` from `r0` on, as many as `logs` and `tops` are long.
#[inline(always)]
fn forward_tile(job: &Job<'_>, z: usize, r0: usize, [o, logs, tops]: [&mut [f32]; 3], scratch: &mut [f32]) {
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
    for j0 in (0..keys).step_by(BLOCK) {
        let count = BLOCK.min(m - j0);
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
    turn_back(job.simd, acc, 1.0, o);
    for (l, (log_to, top_to)) in logs.iter_mut().zip(tops).enumerate() {
        (*log_to, *top_to) = if total[l] == 0.0 { (0.0, 0.0) } else { (log[l], top[l]) };
    }
}

simd_fn! {
    /// [`forward_tile`] at every level.
    fn forward(simd, job: &Job<'_>, z: usize, r0: usize, results: [&mut [f32]; 3], scratch: &mut [f32]) {
        forward_tile(job, z, r0, results, scratch);
    }
}

/// Streamed rows and their statistics, backward.
#[derive(Clone, Copy)]
struct Back<'a> {
    job: Job<'a>,
    dy: &'a [f32],
    logs: &'a [f32],
    tops: &'a [f32],
    delta: &'a [f32],
}

/// Scratch rows of lanes the backward pass of a tile needs.
fn backward_scratch(g: &Geometry) -> usize {
    3 * (g.d + g.dv) + 2 * BLOCK + row_lanes(g)
}

/// Adds the sums of a chunk to the totals and starts anew.
#[inline(always)]
fn close_chunk(total: &mut [f32], chunk: &mut [f32]) {
    for (t, c) in total.iter_mut().zip(chunk) {
        *t += *c;
        *c = 0.0;
    }
}

/// Lanes as rows, times `scale`.
#[inline(always)]
fn turn_back(simd: Simd, lanes: &[Lanes], scale: f32, out: &mut [f32]) {
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
fn weigh(job: &Job<'_>, stats: impl Fn(usize) -> [Lanes; 3], scores: &mut [Lanes], slopes: &mut [Lanes]) {
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
fn mark(marks: &[Lanes], to: &mut [Lanes]) {
    for (m, t) in marks.iter().zip(to) {
        for l in 0..LANES {
            t[l] = choose(m[l], m[l], t[l]);
        }
    }
}

/// `dq` of as many rows of list `z` from `r0` on as `dq` holds.
#[inline(always)]
fn queries_tile(back: &Back<'_>, z: usize, r0: usize, dq: &mut [f32], valid: usize, scratch: &mut [f32]) {
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
    let lane = |x: &[f32]| std::array::from_fn(|l| if l < valid { x[at + l] } else { 0.0 });
    let stats: [Lanes; 3] = [lane(back.logs), lane(back.tops), lane(back.delta)];
    let (low, high) = job.query_range(r0, valid);
    let keys = if job.causal { m.min(high + 1) } else { m };
    for j0 in (0..keys).step_by(BLOCK) {
        if j0 % K_CHUNK == 0 {
            close_chunk(total.as_flattened_mut(), chunk.as_flattened_mut());
        }
        let count = BLOCK.min(m - j0);
        let (scores, slopes) = lanes.split_at_mut(BLOCK);
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

/// Floats of a row of `dq` under way: whole lines.
fn row_lanes(g: &Geometry) -> usize {
    g.d.max(1).next_multiple_of(LINE)
}

/// `dk` and `dv` of `valid` keys of list `z` from `k0` on. With `dq`, the chains of its chunk go on over these keys: every score
/// is then made once and not twice, but the keys of a list must come in order.
#[inline(always)]
fn keys_tile(
    back: &Back<'_>,
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
    let (scores, lanes) = lanes.split_at_mut(BLOCK);
    let (slopes, key_rows) = lanes.split_at_mut(BLOCK);
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
    for r0 in (0..rows).step_by(BLOCK).rev() {
        if (r0 + BLOCK).is_multiple_of(K_CHUNK) {
            close_chunk(dk_total.as_flattened_mut(), dk_chunk.as_flattened_mut());
            close_chunk(dv_total.as_flattened_mut(), dv_chunk.as_flattened_mut());
        }
        let count = BLOCK.min(rows - r0);
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
fn list(simd: Simd, back: &Back<'_>, z: usize, [dq, dk, dv]: [&mut [f32]; 3], scratch: &mut [f32]) {
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

/// Floats that [`list`] needs for its sums.
fn list_scratch(g: &Geometry) -> usize {
    2 * g.rows() * row_lanes(g)
}

simd_fn! {
    /// [`queries_tile`] at every level.
    fn queries(simd, back: &Back<'_>, z: usize, r0: usize, dq: &mut [f32], valid: usize, scratch: &mut [f32]) {
        queries_tile(back, z, r0, dq, valid, scratch);
    }
}

simd_fn! {
    /// [`keys_tile`] at every level.
    fn keys(simd, back: &Back<'_>, z: usize, k0: usize, results: [&mut [f32]; 2], valid: usize, dq: Option<&mut [f32]>, scratch: &mut [f32]) {
        keys_tile(back, z, k0, results, valid, dq, scratch);
    }
}

/// Runs `f` on every tile of `tile` rows of every list of `rows` rows, with what it writes of the results, whose rows have
/// these widths, and so many words of scratch.
fn run_tiles<const N: usize>(
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

/// A packed value as its parts, with the words between them zeroed.
fn unpack<'a, const N: usize>(out: &'a mut [f32], parts: &[Shape; N]) -> [&'a mut [f32]; N] {
    let mut rest = out;
    parts.map(|s| {
        let (part, tail) = std::mem::take(&mut rest).split_at_mut(s.numel().next_multiple_of(4));
        rest = tail;
        let (part, gap) = part.split_at_mut(s.numel());
        gap.fill(0.0);
        part
    })
}

simd_fn! {
    /// `delta_i = Σ_c dy_ic o_ic` by the row rule, less `dl_i log2 e`.
    fn row_products(simd, dy: &[f32], o: &[f32], dl: &[f32], dv: usize, delta: &mut [f32]) {
        for (i, (x, dl)) in delta.iter_mut().zip(dl).enumerate() {
            let row = i * dv..(i + 1) * dv;
            let sum = sum::chunk([&dy[row.clone()], &o[row]], |[a, b]| a * b);
            *x = dl.mul_add(-(LOG2_E as f32), sum);
        }
    }
}

/// Words between rows of a shared tile of the kernels: 4 mod 16.
fn pitch(d: usize) -> usize {
    d.max(1).next_multiple_of(16) + 4
}

/// A variant of the kernels and its shared memory.
#[derive(Clone, Copy, Debug)]
struct Variant {
    kind: usize,
    rows: usize,
    warps: usize,
    stage: usize,
    share: bool,
    shared: usize,
    blocks: usize,
    /// Whether tensor cores multiply.
    tensor: bool,
}

/// Shared memory a multiprocessor can split among two blocks, beside what each block costs.
const HALF: usize = 113 * 1024;

impl Variant {
    /// Rows a thread has: few enough that its sums fit its registers.
    fn rows(g: &Geometry) -> usize {
        match g.d.max(g.dv) {
            0..=64 => 4,
            65..=128 => 2,
            _ => 1,
        }
    }

    fn finish(self, gpu: &Gpu, words: usize) -> Option<Variant> {
        let shared = words * 4;
        // As their instructions cut rows and columns.
        let fits = self.rows.is_multiple_of(2) && self.stage.is_multiple_of(16);
        (shared <= gpu.shared).then_some(Variant {
            shared,
            blocks: if shared <= HALF { 2 } else { 1 },
            tensor: self.tensor && fits,
            ..self
        })
    }

    fn forward(g: &Geometry, gpu: &Gpu) -> Result<Variant> {
        let (pd, pv) = (pitch(g.d), pitch(g.dv));
        let tensor = g.takes_tensor(gpu);
        for (warps, share) in [(4, false), (4, true), (2, true), (1, true)] {
            let v = Variant {
                kind: 0,
                rows: Variant::rows(g),
                warps,
                stage: 0,
                share,
                shared: 0,
                blocks: 1,
                tensor,
            };
            let own = v.own();
            let streamed = if share { pd.max(pv) } else { pd + pv };
            if let Some(v) = v.finish(gpu, own * pd + BLOCK * streamed + own * (BLOCK + 4)) {
                return Ok(v);
            }
        }
        Err(Error::unsupported("attention", "this GPU's blocks have too little shared memory"))
    }

    fn backward(g: &Geometry, gpu: &Gpu) -> Result<Variant> {
        let (pd, pv) = (pitch(g.d), pitch(g.dv));
        let tensor = g.takes_tensor(gpu);
        // With tensor cores it is latency that counts: twice the warps, each with half the rows.
        let first = if tensor { (8, 32, 2) } else { (4, 32, Variant::rows(g)) };
        let rows = first.2;
        for (warps, stage, rows) in
            [first, (4, 32, rows), (4, 16, rows), (2, 16, rows), (2, 8, rows), (1, 8, rows)]
        {
            let v = Variant { kind: 1, rows, warps, stage, share: false, shared: 0, blocks: 1, tensor };
            let own = v.own();
            let words = own * (pd + pv) + stage * (2 * pd + pv) + own * (stage + 4) + 10 * stage;
            if let Some(v) = v.finish(gpu, words) {
                return Ok(v);
            }
        }
        Err(Error::unsupported("attention_bwd", "this GPU's blocks have too little shared memory"))
    }

    /// Rows a block owns.
    fn own(&self) -> usize {
        self.warps * 8 * self.rows
    }

    fn module(&self, g: &Geometry, flips: bool) -> Source {
        let defines = [
            ("KIND", self.kind),
            ("D", g.d),
            ("DV", g.dv),
            ("TR", self.rows),
            ("WARPS", self.warps),
            ("SB", self.stage),
            ("SHARE", usize::from(self.share)),
            ("BLOCKS", self.blocks),
            ("MASK", usize::from(g.mask.is_some())),
            ("INSIDE", 1),
            ("TF32", 1),
            ("FLIP", 1),
        ];
        let is_used = |name: &str| match name {
            "INSIDE" => g.heads > 0,
            "TF32" => self.tensor,
            "FLIP" => flips,
            _ => true,
        };
        let defines: Vec<_> = defines.into_iter().filter(|(name, _)| is_used(name)).collect();
        source(&defines)
    }

    /// Launches the kernel of `module` on tiles of `rows` rows of every list, with `most` blocks at most.
    fn launch(
        &self,
        cuda: &Cuda,
        (g, flips): (&Geometry, bool),
        name: &str,
        rows: usize,
        most: usize,
        args: &Args,
    ) -> Result<()> {
        let (module, text) = self.module(g, flips);
        let kernel = cuda.kernel(&module, text, name)?;
        let blocks = rows.div_ceil(self.own()).saturating_mul(g.batch).min(most);
        cuda.launch(kernel, [blocks as u32, 1, 1], 32 * self.warps as u32, self.shared as u32, args)
    }
}

/// A variant of the kernels: a name of its own, and the text.
fn source(defines: &[(&str, usize)]) -> Source {
    let mut name = "attention".to_string();
    let mut text = format!("#define CHUNK {K_CHUNK}\n#define BLOCK {BLOCK}\n");
    for (key, value) in defines {
        name.push_str(&format!("_{}{value}", key.to_lowercase()));
        text.push_str(&format!("#define DITTO_{key} {value}\n"));
    }
    super::module(name, || {
        text.push_str(&cuda_function("ditto_weight", functions::weight));
        text.push_str(&cuda_function("ditto_log", functions::log));
        text.push_str(ATTENTION_CU);
        text
    })
}

fn delta_module(g: &Geometry) -> Source {
    let defines = [("KIND", 2), ("DV", g.dv), ("INSIDE", 1)];
    source(if g.heads > 0 { &defines } else { &defines[..2] })
}

/// The mask's strides as the kernels take them.
fn mask_words(g: &Geometry) -> [u64; 2 * LEAD + 2] {
    let view = g.mask.unwrap_or(MaskView { dims: [1; LEAD], ..MaskView::default() });
    let mut words = [0; 2 * LEAD + 2];
    let all = view.dims.iter().chain(&view.strides).chain([&view.row, &view.column]);
    for (w, &x) in words.iter_mut().zip(all) {
        *w = x as u64;
    }
    words
}

/// How heads lie inside rows, as the kernels take it: how many, and words from row to row of queries, of outputs and of the
/// chains of `dq`, which are where `dq` will be if there is but one chunk.
fn inside_words(g: &Geometry) -> [u32; 4] {
    let narrow = (g.heads * g.d) as u32;
    let chains = if g.m > K_CHUNK { narrow } else { 3 * narrow };
    [g.heads as u32, 3 * narrow, narrow, chains]
}

/// The forward kernel, on the addresses of `q, k, v` and the mask, to those of the outputs, logarithms and largest scores.
fn forward_cuda(cuda: &Cuda, rule: Rule, g: &Geometry, ins: [u64; 4], outs: [u64; 3]) -> Result<()> {
    let variant = Variant::forward(g, &Gpu::of(cuda))?;
    let mut args = Args::new();
    for at in ins.into_iter().chain(outs) {
        args.ptr(at);
    }
    for x in [g.batch, g.group, g.n, g.m] {
        args.u32(x as u32);
    }
    args.u32(u32::from(rule.causal)).f32(rule.factor(g.d));
    args.bytes(bytemuck::cast_slice(&mask_words(g)), 8);
    args.bytes(bytemuck::cast_slice(&inside_words(g)), 4);
    variant.launch(cuda, (g, rule.flips(g.d)), "attention_forward", g.rows(), i32::MAX as usize, &args)
}

/// `delta` of every row, from the addresses of `dy`, the outputs and `dl`.
fn delta_cuda(cuda: &Cuda, g: &Geometry, [dy, o, dl]: [u64; 3], delta: u64) -> Result<()> {
    let rows = g.batch * g.rows();
    if rows == 0 {
        return Ok(());
    }
    let (module, text) = delta_module(g);
    let kernel = cuda.kernel(&module, text, "attention_delta")?;
    let mut args = Args::new();
    args.ptr(dy).ptr(o).ptr(dl).ptr(delta).u64(rows as u64).u32(g.n as u32).u32(g.heads as u32);
    cuda.launch(kernel, map::grid(cuda, rows * 32), 256, 0, &args)
}

/// The backward kernel, on the addresses of `q, k, v` and the mask, and of `dy`, the logarithms and the largest scores, to those of the
/// gradients. The workspace begins with `delta`.
fn backward_cuda(
    cuda: &Cuda,
    rule: Rule,
    g: &Geometry,
    ins: [u64; 4],
    [dy, logs, tops]: [u64; 3],
    grads: [u64; 3],
    workspace: u64,
) -> Result<()> {
    let gpu = Gpu::of(cuda);
    let variant = Variant::backward(g, &gpu)?;
    let space = Space::of(g);
    let turns = workspace + space.turns as u64 * 4;
    cuda.fill(turns, 0, space.chains - space.turns)?;
    // Chains of the only chunk can grow where the result will be.
    let chains = if space.end > space.chains { workspace + space.chains as u64 * 4 } else { grads[0] };
    let scale = rule.scale(g.d);
    let mut args = Args::new();
    for at in ins.into_iter().chain([dy, logs, tops, workspace]).chain(grads).chain([chains, turns]) {
        args.ptr(at);
    }
    for x in [g.batch, g.group, g.n, g.m] {
        args.u32(x as u32);
    }
    args.u32(u32::from(rule.causal)).f32(rule.factor(g.d)).f32(scale as f32);
    args.bytes(bytemuck::cast_slice(&mask_words(g)), 8);
    args.bytes(bytemuck::cast_slice(&inside_words(g)), 4);
    let most = gpu.sm_count as usize * variant.blocks;
    variant.launch(cuda, (g, rule.flips(g.d)), "attention_backward", g.m, most, &args)
}

/// Where the parts of a packed value are that is at `packed`.
fn addresses(packed: u64, parts: &[Shape; 3]) -> [u64; 3] {
    let (starts, _) = layout::packed(parts);
    [0, 1, 2].map(|i| packed + starts[i] as u64 * 4)
}

/// Zeroes the words between the parts of a packed value.
fn fill_gaps(cuda: &Cuda, out: u64, parts: &[Shape]) -> Result<()> {
    let (starts, _) = layout::packed(parts);
    for (start, s) in starts.iter().zip(parts) {
        let gap = s.numel().next_multiple_of(4) - s.numel();
        if gap > 0 {
            cuda.fill(out + (start + s.numel()) as u64 * 4, 0, gap)?;
        }
    }
    Ok(())
}

/// Whether a mask lets query `i` of a head attend to key `j`, for the references.
fn is_open<T: Scalar>(
    g: &Geometry,
    causal: bool,
    mask: Option<&AnyTensor<T>>,
    z: usize,
    row: usize,
    j: usize,
) -> bool {
    if causal && j > row % g.n {
        return false;
    }
    let (Some(mask), Some(view)) = (mask, g.mask) else { return true };
    let at = view.at(z * g.group + row / g.n, row % g.n) + j * view.column;
    match mask {
        AnyTensor::Num(t) => t.data()[at].to_f64().abs() > 0.0,
        AnyTensor::Idx(t) => t.data()[at] != 0,
    }
}

fn dot<T: Scalar>(a: &[T], b: &[T]) -> T {
    a.iter().zip(b).fold(T::c(0.0), |s, (&a, &b)| s + a * b)
}

/// The parts one behind the other, as [`layout::packed`] places them.
fn pack_reference<T: Scalar>(parts: &[Vec<T>]) -> Result<Tensor<T>> {
    let mut all = Vec::new();
    for part in parts {
        all.extend_from_slice(part);
        all.resize(all.len().next_multiple_of(4), T::c(0.0));
    }
    Tensor::with_shape(dims(&[all.len()]), all)
}

impl Attention {
    fn rule(&self) -> Rule {
        Rule { causal: self.causal, scale: self.scale }
    }

    fn of(&self, ins: &[Meta]) -> Result<Geometry> {
        self.rule().geometry(Self::NAME, ins, 3)
    }
}

/// Sizes (leading, heads of keys, n, m, d, dv), with a causal mask, and the shape of a mask of indices.
type Case = (&'static [usize], usize, [usize; 4], bool, Option<&'static [usize]>);

/// Around the edges of blocks of keys (64), of stages (32), and of tiles of rows (64 and 128); with a head size
/// of every variant; with nothing in one of the sizes; with shared heads; and with masks of every rank. Few
/// pairs of head sizes, since each is a kernel to compile.
const CASES: [Case; 22] = [
    (&[], 1, [3, 5, 3, 5], false, None),
    (&[2], 2, [5, 7, 4, 4], true, None),
    (&[2, 2], 2, [4, 6, 4, 4], false, Some(&[4, 6])),
    (&[2, 4], 2, [3, 4, 3, 5], true, None),
    (&[2, 4], 2, [3, 4, 4, 4], false, Some(&[2, 4, 3, 4])),
    (&[2, 2], 1, [5, 3, 4, 4], true, Some(&[2, 1, 1, 3])),
    (&[1], 1, [1, 1, 4, 4], false, None),
    (&[2], 2, [0, 3, 4, 4], false, None),
    (&[2], 2, [3, 0, 4, 4], true, None),
    (&[0], 0, [3, 2, 4, 4], false, None),
    (&[2], 2, [3, 4, 0, 4], false, None),
    (&[2], 2, [3, 4, 4, 0], false, None),
    (&[1], 1, [17, 65, 3, 5], true, None),
    (&[1], 1, [33, 31, 4, 4], true, None),
    (&[1], 1, [65, 129, 64, 64], true, None),
    (&[1], 1, [70, 64, 65, 65], false, None),
    (&[1], 1, [40, 66, 128, 32], true, Some(&[40, 66])),
    (&[2], 1, [130, 63, 4, 4], true, None),
    (&[1], 1, [64, 128, 64, 64], false, None),
    (&[1], 1, [6, 130, 4, 4], false, Some(&[6, 130])),
    (&[1], 1, [9, 20, 129, 136], true, None),
    (&[1], 1, [7, 1100, 4, 4], false, None),
];

/// The inputs of a case.
fn case_inputs(&(lead, shared, [n, m, d, dv], _, mask): &Case) -> Vec<SampleIn> {
    let with = |heads: usize, tail: [usize; 2]| {
        let mut all = lead.to_vec();
        if let Some(last) = all.last_mut() {
            *last = heads;
        }
        all.extend(tail);
        // Not symmetric, so that no wide values are drawn: scores of 2^40 have no accurate weights.
        SampleIn::Num(dims(&all), (-2.0, 2.25))
    };
    let heads = lead.last().copied().unwrap_or(1);
    let mut ins = vec![with(heads, [n, d]), with(shared, [m, d]), with(shared, [m, dv])];
    ins.extend(mask.map(|mask| SampleIn::Idx(dims(mask), 2)));
    ins
}

/// Sizes around edges that are not too much work.
fn random_inputs(stream: &mut Stream) -> (Vec<SampleIn>, bool) {
    let size = |stream: &mut Stream| pick(&[1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 200], stream);
    let (n, m) = (size(stream), size(stream));
    let (d, dv) = [(4, 4), (3, 5), (64, 64), (65, 65)][stream.below(4)];
    let (batch, shared, group) = (pick(&[1, 2], stream), pick(&[1, 2], stream), pick(&[1, 3], stream));
    let num = |d: &[usize]| SampleIn::Num(dims(d), (-2.0, 2.25));
    let mut ins =
        vec![num(&[batch, shared * group, n, d]), num(&[batch, shared, m, d]), num(&[batch, shared, m, dv])];
    match stream.below(4) {
        0 => ins.push(SampleIn::Idx(dims(&[n, m]), 2)),
        1 => ins.push(SampleIn::Idx(dims(&[batch, 1, n, m]), 2)),
        _ => {}
    }
    (ins, stream.below(2) == 0)
}

fn forward_rejects() -> Vec<(Vec<Meta>, &'static str)> {
    let f = |d: &[usize]| Meta::f32(dims(d));
    let good = || vec![f(&[2, 4, 3]), f(&[2, 5, 3]), f(&[2, 5, 6])];
    let with = |i: usize, meta: Meta| {
        let mut all = good();
        all[i] = meta;
        all
    };
    let masked = |meta: Meta| [good(), vec![meta]].concat();
    vec![
        (vec![f(&[2, 3])], "Arity"),
        (with(0, f(&[3])), "Rank"),
        (with(0, f(&[4, 3])), "Shapes"),
        (with(0, f(&[3, 4, 3])), "Shapes"),
        (with(0, f(&[2, 4, 2])), "Shapes"),
        (with(2, f(&[2, 4, 6])), "Shapes"),
        (with(2, f(&[1, 5, 6])), "Shapes"),
        (with(2, f(&[2, 5, 257])), "Argument"),
        (with(1, Meta::u32(dims(&[2, 5, 3]))), "DType"),
        (masked(f(&[5, 4])), "Shapes"),
        (masked(f(&[1, 2, 4, 5])), "Shapes"),
    ]
}

impl Op for Attention {
    const NAME: &'static str = "attention";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        self.of(ins)?;
        let (_, words) = layout::packed(&parts(ins[0].shape, ins[2].shape));
        Ok(Meta::f32(Shape::new(&[words])?))
    }

    fn index_limit(&self, ins: &[Meta]) -> Option<(usize, usize)> {
        ins.get(3).filter(|m| m.dtype == DType::U32).map(|_| (3, 2))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let Ok(g) = self.of(run.metas) else { return };
        let job = Job::new(run.simd, self.rule(), g, run.ins);
        let results = unpack(run.out, &parts(run.metas[0].shape, run.metas[2].shape));
        let (tiles, scratch) = ([g.batch, g.rows(), LANES], LANES * forward_scratch(&g));
        run_tiles(run.pool, tiles, results, [g.dv, 1, 1], scratch, |z, r0, _, results, scratch| {
            forward(run.simd, &job, z, r0, results, scratch);
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let g = self.of(run.metas)?;
        let parts = parts(run.metas[0].shape, run.metas[2].shape);
        fill_gaps(run.cuda, run.out, &parts)?;
        if g.batch * g.rows() == 0 {
            return Ok(());
        }
        let mask = if g.mask.is_some() { run.ins[3] } else { 0 };
        let outs = addresses(run.out, &parts);
        forward_cuda(run.cuda, self.rule(), &g, [run.ins[0], run.ins[1], run.ins[2], mask], outs)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        let Ok(g) = self.of(ins) else { return Vec::new() };
        Variant::forward(&g, gpu).map_or(Vec::new(), |v| vec![v.module(&g, self.rule().flips(g.d))])
    }

    fn statistics(&self, ins: &[Meta]) -> Range<usize> {
        statistics(&parts(ins[0].shape, ins[2].shape))
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let back = AttentionBwd { causal: self.causal, scale: self.scale };
        let ins = [io.ins, &[io.out, dy]].concat();
        let packed = r.record(back.into(), &ins)?;
        let shapes = [0, 1, 2].map(|i| r.meta(io.ins[i]).shape);
        let mut all = Vec::new();
        for i in 0..3 {
            all.push(Some(layout::part(r, packed, &shapes, i)?));
        }
        all.resize(io.ins.len(), None);
        Ok(all)
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let g = self.of(&metas)?;
        let (q, k, v) = (ins[0].num()?.data(), ins[1].num()?.data(), ins[2].num()?.data());
        let scale = self.rule().scale(g.d);
        let (sign, size) = (T::c(if scale < 0.0 { -1.0 } else { 1.0 }), T::c(scale.abs()));
        let (mut o, mut l, mut t) = (Vec::new(), Vec::new(), Vec::new());
        for z in 0..g.batch {
            for r in 0..g.rows() {
                let q = &q[(z * g.rows() + r) * g.d..][..g.d];
                let open: Vec<usize> =
                    (0..g.m).filter(|&j| is_open(&g, self.causal, ins.get(3), z, r, j)).collect();
                let score = |j: usize| dot(q, &k[(z * g.m + j) * g.d..][..g.d]) * sign;
                let scores: Vec<T> = open.iter().map(|&j| score(j)).collect();
                let Some(&first) = scores.first() else {
                    o.resize(o.len() + g.dv, T::c(0.0));
                    l.push(T::c(0.0));
                    t.push(T::c(0.0));
                    continue;
                };
                let top = scores.iter().fold(first, |m, &s| if s.to_f64() > m.to_f64() { s } else { m });
                let weights: Vec<T> = scores.iter().map(|&s| ((s - top) * size).exp()).collect();
                let total = weights.iter().fold(T::c(0.0), |s, &w| s + w);
                for c in 0..g.dv {
                    let pairs = weights.iter().zip(&open);
                    let sum = pairs.fold(T::c(0.0), |s, (&w, &j)| s + w * v[(z * g.m + j) * g.dv + c]);
                    o.push(sum / total);
                }
                l.push(total.log() * T::c(LOG2_E));
                t.push(top);
            }
        }
        pack_reference(&[o, l, t])
    }

    fn samples() -> Vec<Sample<Attention>> {
        let mut all: Vec<_> = CASES
            .iter()
            .enumerate()
            .map(|(i, case)| {
                // Whole numbers would spread longer scores so far that weights vanish.
                let scale = (case.2[1] >= 20 || i % 4 == 2).then_some(0.03);
                Sample { op: Attention { causal: case.3, scale }, ins: case_inputs(case) }
            })
            .collect();
        // A mask of numbers, all of which let through.
        let mut ins = case_inputs(&CASES[0]);
        ins.push(SampleIn::Num(dims(&[3, 5]), (0.5, 1.5)));
        all.push(Sample { op: Attention { causal: false, scale: Some(-0.5) }, ins });
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample<Attention>> {
        let (ins, causal) = random_inputs(stream);
        Some(Sample { op: Attention { causal, scale: None }, ins })
    }

    fn rejects() -> Vec<Reject<Attention>> {
        let op = Attention { causal: false, scale: None };
        let mut all: Vec<_> =
            forward_rejects().into_iter().map(|(ins, want)| Reject { op, ins, want }).collect();
        let f = |d: &[usize]| Meta::f32(dims(d));
        let ins = vec![f(&[2, 3]); 3];
        all.push(Reject { op: Attention { causal: true, scale: Some(f64::NAN) }, ins, want: "Argument" });
        all
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        // Roundings of a score, of a weight and its rescaling by every later block, and of the sums over keys.
        let Ok(g) = self.of(ins) else { return Bound::EXACT };
        let blocks = g.m.div_ceil(BLOCK);
        Bound { ulps: 4.0, terms: (g.d + g.m + 4 * blocks + 32) as f64 }
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        self.rule().attrs()
    }

    fn from_attrs(attrs: &Attrs) -> Result<Attention> {
        let Rule { causal, scale } = Rule::from_attrs(attrs)?;
        Ok(Attention { causal, scale })
    }
}

impl AttentionBwd {
    fn rule(&self) -> Rule {
        Rule { causal: self.causal, scale: self.scale }
    }

    fn of(&self, ins: &[Meta]) -> Result<Geometry> {
        let g = self.rule().geometry(Self::NAME, ins, 5)?;
        let (_, words) = layout::packed(&parts(ins[0].shape, ins[2].shape));
        for packed in &ins[ins.len() - 2..] {
            if packed.shape.dims() != [words] {
                let why = "not the packed value of these queries and values";
                return Err(mismatch(Self::NAME, why, packed.shape, ins[0].shape));
            }
        }
        Ok(g)
    }

    /// Where the second and the third part of the packed inputs start.
    fn starts(ins: &[Meta]) -> [usize; 2] {
        let (starts, _) = layout::packed(&parts(ins[0].shape, ins[2].shape));
        [starts[1], starts[2]]
    }
}

/// What the backward kernel works with, in words of its workspace: first the row products, then from `turns` on
/// the order of work and how far each stage of queries is, from `chains` on the chains of `dq` under way.
struct Space {
    turns: usize,
    chains: usize,
    end: usize,
}

impl Space {
    fn of(g: &Geometry) -> Space {
        let rows = g.batch * g.rows();
        let turns = rows.next_multiple_of(4);
        // Stages have 8 queries or more.
        let chains = (turns + 2 + g.batch * g.rows().div_ceil(8)).next_multiple_of(4);
        let end = chains + if g.m > K_CHUNK { rows * g.d } else { 0 };
        Space { turns, chains, end }
    }
}

/// The packed value of `parts`, given as values.
fn pack(r: &mut dyn Recorder, parts: &[Shape], values: &[Val]) -> Result<Val> {
    let (starts, size) = layout::packed(parts);
    let mut sum = None;
    for (&start, &v) in starts.iter().zip(values) {
        let words = r.meta(v).shape.numel();
        let flat = layout::reshape_to(r, v, dims(&[words]))?;
        let padded = r.record(layout::Pad { axis: 0, start, step: 1, size, value: 0.0 }.into(), &[flat])?;
        sum = Some(match sum {
            None => padded,
            Some(s) => r.record(super::elementwise::Add {}.into(), &[s, padded])?,
        });
    }
    sum.ok_or_else(|| Error::new("pack", ErrorKind::Internal { what: "no parts" }))
}

/// `Σ x` along the last axis, which stays with size 1.
fn row_sum(r: &mut dyn Recorder, x: Val) -> Result<Val> {
    let shape = r.meta(x).shape;
    let sum = r.record(Sum::new(&[shape.rank() - 1])?.into(), &[x])?;
    layout::reshape_to(r, sum, like(shape, Some(1)))
}

impl Op for AttentionBwd {
    const NAME: &'static str = "attention_bwd";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        self.of(ins)?;
        let (_, words) = layout::packed(&[ins[0].shape, ins[1].shape, ins[2].shape]);
        Ok(Meta::f32(Shape::new(&[words])?))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        let Ok(g) = self.of(ins) else { return 0 };
        match device.is_cuda() {
            true => Space::of(&g).end,
            false => g.batch * g.rows(),
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let Ok(g) = self.of(run.metas) else { return };
        let job = Job::new(run.simd, self.rule(), g, run.ins);
        let [start, tops] = AttentionBwd::starts(run.metas);
        let [y, dy] = [run.ins[run.ins.len() - 2], run.ins[run.ins.len() - 1]];
        let rows = g.batch * g.rows();
        let delta = &mut run.workspace[..rows];
        let task = run.pool.share(rows, 1 << 9, 1);
        run.pool.chunks_mut(delta, task, |i, delta| {
            let at = i * task;
            row_products(run.simd, &dy[at * g.dv..], &y[at * g.dv..], &dy[start + at..], g.dv, delta);
        });
        let back = Back { job, dy, logs: &y[start..], tops: &y[tops..], delta };
        let [dq, dk, dv] = unpack(run.out, &[run.metas[0].shape, run.metas[1].shape, run.metas[2].shape]);
        let scratch = LANES * backward_scratch(&g);
        // Whole lists, where there are enough for all threads, make every score once.
        if g.batch >= run.pool.threads() && g.rows() > 0 && g.m > 0 {
            let lists = g.batch;
            let cut = |x: &'_ mut [f32]| x.len() / lists;
            let widths = [cut(dq), cut(dk), cut(dv)];
            let scratch = scratch + list_scratch(&g);
            run_tiles(run.pool, [lists, 1, 1], [dq, dk, dv], widths, scratch, |z, _, _, results, scratch| {
                list(run.simd, &back, z, results, scratch);
            });
            return;
        }
        let tiles = [g.batch, g.rows(), LANES];
        run_tiles(run.pool, tiles, [dq], [g.d], scratch, |z, r0, count, [dq], scratch| {
            queries(run.simd, &back, z, r0, dq, count, scratch);
        });
        let tiles = [g.batch, g.m, LANES];
        run_tiles(run.pool, tiles, [dk, dv], [g.d, g.dv], scratch, |z, k0, count, [dk, dv], scratch| {
            keys(run.simd, &back, z, k0, [dk, dv], count, None, scratch);
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let g = self.of(run.metas)?;
        let shapes = [run.metas[0].shape, run.metas[1].shape, run.metas[2].shape];
        fill_gaps(run.cuda, run.out, &shapes)?;
        let packed = parts(run.metas[0].shape, run.metas[2].shape);
        let [y, dy] = [run.ins[run.ins.len() - 2], run.ins[run.ins.len() - 1]];
        let [_, logs, tops] = addresses(y, &packed);
        delta_cuda(run.cuda, &g, [dy, y, addresses(dy, &packed)[1]], run.workspace)?;
        let (starts, _) = layout::packed(&shapes);
        let [dq, dk, dv] = [starts[0], starts[1], starts[2]].map(|at| run.out + at as u64 * 4);
        if g.m == 0 {
            return run.cuda.fill(dq, 0, shapes[0].numel());
        }
        if g.batch == 0 {
            return Ok(());
        }
        let mask = if g.mask.is_some() { run.ins[3] } else { 0 };
        let ins = [run.ins[0], run.ins[1], run.ins[2], mask];
        backward_cuda(run.cuda, self.rule(), &g, ins, [dy, logs, tops], [dq, dk, dv], run.workspace)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        let Ok(g) = self.of(ins) else { return Vec::new() };
        let backward = Variant::backward(&g, gpu).ok().map(|v| v.module(&g, self.rule().flips(g.d)));
        std::iter::once(delta_module(&g)).chain(backward).collect()
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, up: Val) -> Result<Vec<Option<Val>>> {
        // With A = p, E = do v^T - δ, W = scale (gq k^T + q gk^T) and T = do gv^T, all (rows, keys):
        //   Ā = T + W E,  Ē = W A,  ds = A E,  S = Ā A
        //   q̄ = scale (ds gk + S k),  k̄ = scale (ds^T gq + S^T q),  v̄ = Ē^T do
        //   dō = A gv + Ē v - (Σ Ē) o,  ō = -(Σ Ē) do,  dl̄ = log2 e Σ Ē,  l̄ = -ln 2 Σ S,  t̄ = -|scale| Σ S
        let metas: Vec<Meta> = io.ins.iter().map(|&v| r.meta(v)).collect();
        let g = self.of(&metas)?;
        let (b, rows, scale) = (g.batch, g.rows(), self.rule().scale(g.d));
        let [q, k, v] = [io.ins[0], io.ins[1], io.ins[2]];
        let [qs, ks, vs] = [q, k, v].map(|x| r.meta(x).shape);
        let [y, dy] = [io.ins[io.ins.len() - 2], io.ins[io.ins.len() - 1]];
        let packed = parts(qs, vs);
        let full = like(qs, Some(g.m));
        let column = like(qs, Some(1));

        let matrix = |r: &mut dyn Recorder, x: Val, n: usize, d: usize| {
            layout::reshape_to(r, x, Shape::new(&[b, n, d])?)
        };
        let bmm = |r: &mut dyn Recorder, ta: bool, tb: bool, x: Val, y: Val| {
            r.record(Bmm { ta, tb }.into(), &[x, y])
        };
        let o = layout::part(r, y, &packed, 0)?;
        let l = layout::part(r, y, &packed, 1)?;
        let l = layout::reshape_to(r, l, column)?;
        let top = layout::part(r, y, &packed, 2)?;
        let top = layout::reshape_to(r, top, column)?;
        let g_o = layout::part(r, dy, &packed, 0)?;
        let g_l = layout::part(r, dy, &packed, 1)?;
        let g_l = layout::reshape_to(r, g_l, column)?;
        let (q3, k3, v3) = (matrix(r, q, rows, g.d)?, matrix(r, k, g.m, g.d)?, matrix(r, v, g.m, g.dv)?);
        let do3 = matrix(r, g_o, rows, g.dv)?;
        let ups = [qs, ks, vs];
        let (gq, gk, gv) =
            (layout::part(r, up, &ups, 0)?, layout::part(r, up, &ups, 1)?, layout::part(r, up, &ups, 2)?);
        let (gq, gk, gv) = (matrix(r, gq, rows, g.d)?, matrix(r, gk, g.m, g.d)?, matrix(r, gv, g.m, g.dv)?);

        let s = bmm(r, false, true, q3, k3)?;
        let s = layout::reshape_to(r, s, full)?;
        let sign = if scale < 0.0 { -1.0 } else { 1.0 };
        let weight = move |x: &[super::program::Expr]| {
            let s = x[0] * Real::c(sign);
            ((s - x[2]) * Real::c(scale.abs()) - x[1] * Real::c(LN_2)).exp()
        };
        let a = if self.causal || g.mask.is_some() {
            let op = AttentionMask { causal: self.causal, n: g.n, m: g.m };
            let open =
                if g.mask.is_some() { r.record(op.into(), &[io.ins[3]])? } else { r.record(op.into(), &[])? };
            let program = Program::trace(4, |x| {
                let zero = Real::c(0.0);
                vec![Real::where_gt(x[3], zero, weight(x), zero)]
            });
            map::record_program(r, &program, full, &[s, l, top, open])?
        } else {
            map::record_program(r, &Program::trace(3, |x| vec![weight(x)]), full, &[s, l, top])?
        };
        let product = Program::trace(2, |x| vec![x[0] * x[1]]);
        let d_o = map::record_program(r, &product, packed[0], &[g_o, o])?;
        let d_o = row_sum(r, d_o)?;
        let dp = bmm(r, false, true, do3, v3)?;
        let dp = layout::reshape_to(r, dp, full)?;
        let slope = Program::trace(3, |x| vec![x[0] - (x[1] - x[2] * Real::c(LOG2_E))]);
        let e = map::record_program(r, &slope, full, &[dp, d_o, g_l])?;
        let (w1, w2) = (bmm(r, false, true, gq, k3)?, bmm(r, false, true, q3, gk)?);
        let t = bmm(r, false, true, do3, gv)?;
        let (w1, w2, t) = (
            layout::reshape_to(r, w1, full)?,
            layout::reshape_to(r, w2, full)?,
            layout::reshape_to(r, t, full)?,
        );
        let scaled = Program::trace(2, |x| vec![(x[0] + x[1]) * Real::c(scale)]);
        let w = map::record_program(r, &scaled, full, &[w1, w2])?;
        let e_bar = map::record_program(r, &product, full, &[w, a])?;
        let ds = map::record_program(r, &product, full, &[a, e])?;
        let s_bar = Program::trace(4, |x| vec![(x[0] + x[1] * x[2]) * x[3]]);
        let s_bar = map::record_program(r, &s_bar, full, &[t, w, e, a])?;

        let turn = |r: &mut dyn Recorder, x: Val| matrix(r, x, rows, g.m);
        let (a3, ds3, e3, s3) = (turn(r, a)?, turn(r, ds)?, turn(r, e_bar)?, turn(r, s_bar)?);
        let (q1, q2) = (bmm(r, false, false, ds3, gk)?, bmm(r, false, false, s3, k3)?);
        let (q3_shape, k3_shape) = (r.meta(q3).shape, r.meta(k3).shape);
        let q_bar = map::record_program(r, &scaled, q3_shape, &[q1, q2])?;
        let (k1, k2) = (bmm(r, true, false, ds3, gq)?, bmm(r, true, false, s3, q3)?);
        let k_bar = map::record_program(r, &scaled, k3_shape, &[k1, k2])?;
        let v_bar = bmm(r, true, false, e3, do3)?;
        let (o1, o2) = (bmm(r, false, false, a3, gv)?, bmm(r, false, false, e3, v3)?);
        let (o1, o2) = (layout::reshape_to(r, o1, packed[0])?, layout::reshape_to(r, o2, packed[0])?);
        let (e_sum, s_sum) = (row_sum(r, e_bar)?, row_sum(r, s_bar)?);
        let program = Program::trace(4, |x| vec![x[0] + x[1] - x[2] * x[3]]);
        let do_bar = map::record_program(r, &program, packed[0], &[o1, o2, e_sum, o])?;
        let minus = Program::trace(2, |x| vec![-(x[0] * x[1])]);
        let o_bar = map::record_program(r, &minus, packed[0], &[e_sum, g_o])?;
        let by = |r: &mut dyn Recorder, x: Val, c: f64| {
            r.record(super::elementwise::Scale { c: c as f32 }.into(), &[x])
        };
        let (dl_bar, l_bar) = (by(r, e_sum, LOG2_E)?, by(r, s_sum, -LN_2)?);
        let top_bar = by(r, s_sum, -scale.abs())?;
        let y_bar = pack(r, &packed, &[o_bar, l_bar, top_bar])?;
        let dy_bar = pack(r, &packed, &[do_bar, dl_bar])?;
        let mut all = vec![
            Some(layout::reshape_to(r, q_bar, qs)?),
            Some(layout::reshape_to(r, k_bar, ks)?),
            Some(layout::reshape_to(r, v_bar, vs)?),
        ];
        all.resize(io.ins.len() - 2, None);
        all.extend([Some(y_bar), Some(dy_bar)]);
        Ok(all)
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let g = self.of(&metas)?;
        let mask = (ins.len() == 6).then(|| &ins[3]);
        let (q, k, v) = (ins[0].num()?.data(), ins[1].num()?.data(), ins[2].num()?.data());
        let (y, dy) = (ins[ins.len() - 2].num()?.data(), ins[ins.len() - 1].num()?.data());
        let [start, tops] = AttentionBwd::starts(&metas);
        let scale = self.rule().scale(g.d);
        let (sign, size) = (T::c(if scale < 0.0 { -1.0 } else { 1.0 }), T::c(scale.abs()));
        let scale = T::c(scale);
        let mut out = [q.len(), k.len(), v.len()].map(|n| vec![T::c(0.0); n]);
        for z in 0..g.batch {
            for r in 0..g.rows() {
                let i = z * g.rows() + r;
                let (q, g_o) = (&q[i * g.d..][..g.d], &dy[i * g.dv..][..g.dv]);
                let delta = dot(g_o, &y[i * g.dv..][..g.dv]) - dy[start + i] * T::c(LOG2_E);
                for j in (0..g.m).filter(|&j| is_open(&g, self.causal, mask, z, r, j)) {
                    let j = z * g.m + j;
                    let k = &k[j * g.d..][..g.d];
                    let p = ((dot(q, k) * sign - y[tops + i]) * size - y[start + i] * T::c(LN_2)).exp();
                    let ds = p * (dot(g_o, &v[j * g.dv..][..g.dv]) - delta) * scale;
                    for c in 0..g.d {
                        out[0][i * g.d + c] = out[0][i * g.d + c] + ds * k[c];
                        out[1][j * g.d + c] = out[1][j * g.d + c] + ds * q[c];
                    }
                    for c in 0..g.dv {
                        out[2][j * g.dv + c] = out[2][j * g.dv + c] + p * g_o[c];
                    }
                }
            }
        }
        pack_reference(&out)
    }

    fn samples() -> Vec<Sample<AttentionBwd>> {
        // The logarithms are drawn like everything else, so weights are not bounded by 1: a small scale keeps
        // them in range.
        CASES
            .iter()
            .map(|case| {
                let mut ins = case_inputs(case);
                let shapes = parts(ins[0].meta().shape, ins[2].meta().shape);
                let packed = SampleIn::Num(dims(&[layout::packed(&shapes).1]), (-1.0, 1.5));
                ins.extend([packed.clone(), packed]);
                Sample { op: AttentionBwd { causal: case.3, scale: Some(0.02) }, ins }
            })
            .collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample<AttentionBwd>> {
        let (mut ins, causal) = random_inputs(stream);
        let shapes = parts(ins[0].meta().shape, ins[2].meta().shape);
        let packed = SampleIn::Num(dims(&[layout::packed(&shapes).1]), (-1.0, 1.5));
        ins.extend([packed.clone(), packed]);
        Some(Sample { op: AttentionBwd { causal, scale: None }, ins })
    }

    fn rejects() -> Vec<Reject<AttentionBwd>> {
        let op = AttentionBwd { causal: false, scale: None };
        let f = |d: &[usize]| Meta::f32(dims(d));
        let packed = || vec![f(&[64]), f(&[64])];
        let mut all: Vec<_> = forward_rejects()
            .into_iter()
            .map(|(ins, want)| Reject { op, ins: [ins, packed()].concat(), want })
            .collect();
        let good = vec![f(&[2, 4, 3]), f(&[2, 5, 3]), f(&[2, 5, 6])];
        let short = [good, vec![f(&[64]), f(&[60])]].concat();
        all.push(Reject { op, ins: short, want: "Shapes" });
        all
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        let Ok(g) = self.of(ins) else { return Bound::EXACT };
        Bound { ulps: 4.0, terms: (g.d + 2 * g.dv + g.m.max(g.rows()) + 32) as f64 }
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        self.rule().attrs()
    }

    fn from_attrs(attrs: &Attrs) -> Result<AttentionBwd> {
        let Rule { causal, scale } = Rule::from_attrs(attrs)?;
        Ok(AttentionBwd { causal, scale })
    }
}

/// `1` where query `i` may attend to key `j`, else `0`, as `(…, n, m)`: where the magnitude of the mask is above 0
/// and, if `causal`, `j <= i`. The mask, numbers or indices, broadcasts along its last two axes; without one
/// only `causal` counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionMask {
    /// Query `i` attends only to keys up to `i`.
    pub causal: bool,
    /// Queries.
    pub n: usize,
    /// Keys.
    pub m: usize,
}

impl AttentionMask {
    /// Strides of a mask from matrix to matrix, per query and per key.
    fn strides(mask: Shape) -> [usize; 3] {
        let (rows, columns) = (mask.rows().checked_div(lead_of(mask)).unwrap_or(1), mask.last());
        let row = if rows == 1 { 0 } else { columns };
        [rows * columns, row, usize::from(columns != 1)]
    }
}

/// Matrices of a shape.
fn lead_of(s: Shape) -> usize {
    s.dims()[..s.rank().saturating_sub(2)].iter().product()
}

impl Op for AttentionMask {
    const NAME: &'static str = "attention_mask";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        if ins.len() > 1 {
            return Err(Error::new(Self::NAME, ErrorKind::Arity { want: 1, got: ins.len() }));
        }
        let mut all = Vec::new();
        if let [mask] = ins {
            let d = mask.shape.dims();
            let fits = d.iter().rev().zip([self.m, self.n]).all(|(&a, b)| a == 1 || a == b);
            if !fits {
                let why = "the mask does not broadcast to (…, queries, keys)";
                return Err(mismatch(Self::NAME, why, mask.shape, dims(&[self.n, self.m])));
            }
            all.extend_from_slice(&d[..d.len().saturating_sub(2)]);
        }
        all.extend([self.n, self.m]);
        Ok(Meta::f32(Shape::new(&all)?))
    }

    fn index_limit(&self, ins: &[Meta]) -> Option<(usize, usize)> {
        ins.first().filter(|m| m.dtype == DType::U32).map(|_| (0, 2))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let (n, m) = (self.n, self.m);
        if run.out.is_empty() {
            return;
        }
        let strides = run.metas.first().map_or([0; 3], |mask| AttentionMask::strides(mask.shape));
        let mask = run.ins.first();
        let rows = run.pool.share(run.out.len() / m, (1 << 14) / m + 1, 1);
        run.pool.chunks_mut(run.out, rows * m, |task, out| {
            for (r, out) in out.chunks_mut(m).enumerate() {
                let (z, i) = ((task * rows + r) / n, (task * rows + r) % n);
                let at = z * strides[0] + i * strides[1];
                for (j, x) in out.iter_mut().enumerate() {
                    let open = mask.is_none_or(|mask| mask[at + j * strides[2]].abs() > 0.0);
                    *x = if open && (!self.causal || j <= i) { 1.0 } else { 0.0 };
                }
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let total = run.shape.numel();
        if total == 0 {
            return Ok(());
        }
        let (module, text) = source(&[("KIND", 3)]);
        let kernel = run.cuda.kernel(&module, text, "attention_mask")?;
        let strides = run.metas.first().map_or([0; 3], |mask| AttentionMask::strides(mask.shape));
        let mut args = Args::new();
        args.ptr(run.ins.first().copied().unwrap_or(0)).ptr(run.out);
        for x in [total, self.n, self.m, strides[0], strides[1], strides[2]] {
            args.u64(x as u64);
        }
        args.u32(u32::from(self.causal));
        run.cuda.launch(kernel, map::grid(run.cuda, total), 256, 0, &args)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![source(&[("KIND", 3)])]
    }

    fn vjp(&self, _r: &mut dyn Recorder, io: Io<'_>, _dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(vec![None; io.ins.len()])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let shape = self.shape(&metas)?.shape;
        Ok(Tensor::from_fn(shape, |at| {
            let (z, i, j) = (at / self.m / self.n, at / self.m % self.n, at % self.m);
            let open = ins.first().is_none_or(|mask| {
                let [matrix, row, column] = AttentionMask::strides(mask.meta().shape);
                let at = z * matrix + i * row + j * column;
                match mask {
                    AnyTensor::Num(t) => t.data()[at].to_f64().abs() > 0.0,
                    AnyTensor::Idx(t) => t.data()[at] != 0,
                }
            });
            T::c(f64::from(u8::from(open && (!self.causal || j <= i))))
        }))
    }

    fn samples() -> Vec<Sample<AttentionMask>> {
        let op = |causal, n, m| AttentionMask { causal, n, m };
        let mut all = vec![
            Sample { op: op(true, 5, 7), ins: vec![] },
            Sample { op: op(false, 2, 3), ins: vec![] },
            Sample { op: op(true, 0, 3), ins: vec![] },
            Sample { op: op(true, 4, 6), ins: vec![SampleIn::Num(dims(&[2, 4, 6]), (0.5, 1.0))] },
        ];
        for d in [&[4, 6][..], &[6], &[2, 3, 1, 6], &[3, 4, 1], &[1], &[]] {
            all.push(Sample { op: op(d.len() % 2 == 0, 4, 6), ins: vec![SampleIn::Idx(dims(d), 2)] });
        }
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample<AttentionMask>> {
        let (n, m) = (1 + stream.below(70), 1 + stream.below(300));
        let ins = vec![SampleIn::Idx(dims(&[2, n, m]), 2)];
        Some(Sample { op: AttentionMask { causal: stream.below(2) == 0, n, m }, ins })
    }

    fn rejects() -> Vec<Reject<AttentionMask>> {
        let op = AttentionMask { causal: false, n: 4, m: 6 };
        let f = |d: &[usize]| Meta::f32(dims(d));
        vec![
            Reject { op, ins: vec![f(&[4, 6]), f(&[4, 6])], want: "Arity" },
            Reject { op, ins: vec![f(&[6, 4])], want: "Shapes" },
            Reject { op, ins: vec![f(&[5])], want: "Shapes" },
        ]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let num = |n: usize| Attr::Num(n as f64);
        vec![("causal", Attr::Bool(self.causal)), ("n", num(self.n)), ("m", num(self.m))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<AttentionMask> {
        attrs.only(&["causal", "n", "m"])?;
        Ok(AttentionMask { causal: attrs.flag("causal")?, n: attrs.whole("n")?, m: attrs.whole("m")? })
    }
}
