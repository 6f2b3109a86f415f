//! Scaled dot-product attention by blocks of keys: nothing of the size queries by keys is stored, forward or
//! backward. `NUMERICS.md` has the order of every sum; here lanes are rows, on CUDA they are pairs, with the
//! same bits.
//!
//! Query heads that share a key head are seen as one long list of rows: `(…, heads, n, d)` is `batch` lists of
//! `group * n` rows, since the heads of a group are neighbours in memory.

pub mod rope;
mod self_attention;

pub use rope::Rope;
#[cfg(feature = "cases")]
mod cases;
mod cpu;
mod cuda;

pub use crate::attention::self_attention::{SelfAttention, SelfAttentionBwd, outputs_alone};
use crate::matmul::Bmm;
use crate::pointwise::map;
use crate::pointwise::program::Program;
use crate::reduce::Sum;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, dims, layout, mismatch};
use cpu::{forward, keys, list, queries, row_products, run_tiles};
use cuda::{backward_cuda, delta_cuda, delta_module, fill_gaps, forward_cuda, source};
use dittograd_device::cpu::LINE;
use dittograd_device::cpu::simd::Simd;
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{DType, Device, Meta};
use dittograd_numerics::K_CHUNK;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::{Real, Scalar};
use dittograd_numerics::shape::{MAX_RANK, Shape};
use dittograd_numerics::tensor::Tensor;
use std::f64::consts::{LN_2, LOG2_E};

/// Keys of a block of the online softmax.
const BLOCK: usize = 64;

/// The largest size of a head.
const MAX_HEAD: usize = 256;

/// The most rows of a list, so that kernels count them in 32 bits.
const MAX_ROWS: usize = 1 << 30;

/// Axes before the last two of a value.
const LEAD: usize = MAX_RANK - 2;

/// Rows that a tile has side by side, on the CPU.
const LANES: usize = 64;

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
            crate::typed(op, ins, i, DType::F32)?;
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

/// Scratch rows of lanes the forward pass of a tile needs.
fn forward_scratch(g: &Geometry) -> usize {
    g.d + g.dv + BLOCK
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

/// Floats of a row of `dq` under way: whole lines.
fn row_lanes(g: &Geometry) -> usize {
    g.d.max(1).next_multiple_of(LINE)
}

/// Floats that [`list`] needs for its sums.
fn list_scratch(g: &Geometry) -> usize {
    2 * g.rows() * row_lanes(g)
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

impl Variant {
    /// Rows a thread has: few enough that its sums fit its registers.
    fn rows(g: &Geometry) -> usize {
        match g.d.max(g.dv) {
            0..=64 => 4,
            65..=128 => 2,
            _ => 1,
        }
    }
}

/// Where the parts of a packed value are that is at `packed`.
fn addresses(packed: u64, parts: &[Shape; 3]) -> [u64; 3] {
    let (starts, _) = layout::packed(parts);
    [0, 1, 2].map(|i| packed + starts[i] as u64 * 4)
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
            Some(s) => r.record(crate::pointwise::Add {}.into(), &[s, padded])?,
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
        let weight = move |x: &[crate::pointwise::program::Expr]| {
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
            r.record(crate::pointwise::Scale { c: c as f32 }.into(), &[x])
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
