//! Self-attention on what a linear layer gives: the heads of queries, keys and values lie inside its rows, and the heads'
//! outputs inside the rows that the next layer takes, so nothing is turned before or after. The bits are those of
//! [`Attention`] on lists that were copied out.

#[cfg(feature = "cases")]
mod cases;

use super::cpu::{
    BackwardOperands, LANES, Operands, backward_scratch, forward, forward_scratch, keys, list, list_scratch,
    queries, row_products, run_tiles,
};
use super::cuda::{delta_cuda, fill_gaps};
use super::geometry::{Geometry, KEY_BLOCK, MAX_ROWS, Scoring};
use super::packed::{addresses, like, pack, unpack};
use super::{Attention, AttentionBwd};
use super::{cpu_digits, launch};
use crate::{
    AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, arity, dims, layout, mismatch, typed,
};
use dittograd_device::cpu::simd::Simd;
use dittograd_device::cpu::threads::Pool;
use dittograd_device::cuda::Source;
use dittograd_device::{DType, Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::{MAX_RANK, Shape};
use dittograd_numerics::tensor::Tensor;
use std::ops::Range;

/// [`Attention`] of every head of `qkv (…, n, 3, heads, d)` to itself: queries, keys and values side by side, as a linear
/// layer gives them. The value is packed: the outputs `(…, n, heads, d)`, as a linear layer takes them, and behind them
/// what [`Attention`] has per query, twice `(…, heads, n)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelfAttention {
    /// As in [`Attention`].
    pub causal: bool,
    /// As in [`Attention`].
    pub scale: Option<f64>,
}

/// Gradients of [`SelfAttention`], as [`AttentionBwd`] has them: `qkv`, the value and its upstream gradient, both packed, to
/// the gradient of `qkv`. The upstream gradient may be that of the outputs alone, `(…, n, heads, d)`; then that of the
/// rest is zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelfAttentionBwd {
    /// As in [`Attention`].
    pub causal: bool,
    /// As in [`Attention`].
    pub scale: Option<f64>,
}

/// The shape of one of the three as [`Attention`] takes it, `(…, heads, n, d)`.
fn apart(qkv: Shape) -> Shape {
    let (mut all, rank) = ([0; MAX_RANK], qkv.rank());
    let (lead, rest) = qkv.dims().split_at(rank - 4);
    all[..rank - 4].copy_from_slice(lead);
    all[rank - 4..rank - 1].copy_from_slice(&[rest[2], rest[0], rest[3]]);
    dims(&all[..rank - 1])
}

/// Parts of the value: outputs, logarithms and largest scores.
fn parts(qkv: Shape) -> [Shape; 3] {
    let apart = apart(qkv);
    [swapped(apart), like(apart, None), like(apart, None)]
}

/// The same with the two axes before the last one swapped.
fn swapped(shape: Shape) -> Shape {
    let (mut all, rank) = ([0; MAX_RANK], shape.rank());
    all[..rank].copy_from_slice(shape.dims());
    all.swap(rank - 3, rank - 2);
    dims(&all[..rank])
}

/// The shape of the outputs, if `pad` makes of that many words, `words`, an upstream gradient whose other parts are zero.
#[doc(hidden)]
pub fn outputs_alone(qkv: Shape, pad: &layout::Pad, words: Shape) -> Option<Shape> {
    let [outputs, ..] = parts(qkv);
    let is_first = pad.start == 0 && pad.step == 1 && pad.value.to_bits() == 0;
    (is_first && words.dims() == [outputs.numel()]).then_some(outputs)
}

impl Scoring {
    /// Checks `qkv` for the kernels.
    fn inside(&self, op: &'static str, ins: &[Meta]) -> Result<Geometry> {
        self.any_inside(op, ins)?.with_kernels(op)
    }

    /// The same for heads of any size.
    fn any_inside(&self, op: &'static str, ins: &[Meta]) -> Result<Geometry> {
        typed(op, ins, 0, DType::F32)?;
        let shape = ins[0].shape;
        let &[.., n, three, heads, d] = shape.dims() else {
            return Err(Error::new(
                op,
                ErrorKind::Rank { want: "at least 4: (…, n, 3, heads, d)", got: shape },
            ));
        };
        if three != 3 {
            let why = format!("{shape} is not (…, n, 3, heads, d)");
            return Err(Error::argument(op, "qkv", why));
        }
        let one = Meta { shape: apart(shape), ..ins[0] };
        let g = self.any_geometry(op, &[one; 3], 3)?;
        // Kernels count rows of all lists, and words of a row, in 32 bits.
        let too_large =
            g.batch.saturating_mul(n) > u32::MAX as usize || heads.saturating_mul(3 * d) > MAX_ROWS;
        if too_large {
            return Err(Error::new(op, ErrorKind::TooLarge { dims: shape.dims().to_vec() }));
        }
        Ok(Geometry { heads, ..g })
    }
}

impl Geometry {
    /// Words of the outputs.
    fn size(&self) -> usize {
        self.batch * self.n * self.d
    }

    /// Words from row to row of queries, and of outputs.
    fn widths(&self) -> [usize; 2] {
        [3 * self.heads * self.d, self.heads * self.d]
    }

    /// Copies rows of head `z` (all leading axes and the heads as one) out of what has rows of `width` words, from word
    /// `first` of them on, to where they are in a list.
    fn gather(&self, from: &[f32], z: usize, width: usize, first: usize, rows: Range<usize>, to: &mut [f32]) {
        let at = z / self.heads * self.n * width + first + z % self.heads * self.d;
        for r in rows {
            to[r * self.d..][..self.d].copy_from_slice(&from[at + r * width..][..self.d]);
        }
    }

    /// The other way, for whole values: `from` has `count` times all lists, `to` rows with `count` times all heads.
    fn scatter(&self, pool: &Pool, from: &[f32], count: usize, to: &mut [f32]) {
        let Geometry { n, d, heads, .. } = *self;
        let width = count * heads * d;
        if to.is_empty() {
            return;
        }
        let size = self.size();
        let rows = pool.share(to.len() / width, (1 << 14) / width + 1, 1);
        pool.chunks_mut(to, rows * width, |task, to| {
            for (r, row) in to.chunks_exact_mut(width).enumerate() {
                let (b, t) = ((task * rows + r) / n, (task * rows + r) % n);
                for (j, cell) in row.chunks_exact_mut(d).enumerate() {
                    let z = b * heads + j % heads;
                    cell.copy_from_slice(&from[j / heads * size + (z * n + t) * d..][..d]);
                }
            }
        });
    }

    /// One list of it, by itself.
    fn alone(&self) -> Geometry {
        Geometry { batch: 1, heads: 0, ..*self }
    }

    /// Words a task copies a list to, backward: queries, keys, values, `dy` and outputs; `delta`.
    fn list_words(&self) -> usize {
        5 * self.n * self.d + self.n
    }
}

impl SelfAttention {
    fn scoring(&self) -> Scoring {
        Scoring { causal: self.causal, scale: self.scale }
    }

    /// Errors unless there is an attention of `qkv`, with heads of any size.
    #[doc(hidden)]
    pub fn check(&self, qkv: Meta) -> Result<()> {
        self.scoring().any_inside(Self::NAME, &[qkv]).map(|_| ())
    }

    fn of(&self, ins: &[Meta]) -> Result<Geometry> {
        arity::<1>(Self::NAME, ins)?;
        self.scoring().inside(Self::NAME, ins)
    }

    fn plain(&self) -> Attention {
        Attention { causal: self.causal, scale: self.scale }
    }
}

/// A value `(…, n, 3, heads, d)` as three lists of lists, for the references.
fn three<T: Scalar>(g: &Geometry, qkv: &Tensor<T>) -> Result<[AnyTensor<T>; 3]> {
    let shape = apart(qkv.shape());
    let one = |part: usize| {
        Tensor::from_fn(shape, |at| {
            let (c, t, z) = (at % g.d, at / g.d % g.n, at / g.d / g.n);
            let row = (z / g.heads * g.n + t) * 3 + part;
            qkv.data()[(row * g.heads + z % g.heads) * g.d + c]
        })
    };
    Ok([0, 1, 2].map(|part| AnyTensor::Num(one(part))))
}

/// A packed value with its outputs by lists, or with `back` the other way; what is not there is zero.
fn by_lists<T: Scalar>(g: &Geometry, packed: &[T], back: bool) -> Result<Tensor<T>> {
    let start = g.size().next_multiple_of(4);
    let words = start + 2 * (g.batch * g.n).next_multiple_of(4);
    Ok(Tensor::from_fn(dims(&[words]), |at| {
        let mut from = at;
        if at < g.size() {
            let (c, row) = (at % g.d, at / g.d);
            let row = if back {
                let (h, t, b) = (row % g.heads, row / g.heads % g.n, row / g.heads / g.n);
                (b * g.heads + h) * g.n + t
            } else {
                let (t, h, b) = (row % g.n, row / g.n % g.heads, row / g.n / g.heads);
                (b * g.n + t) * g.heads + h
            };
            from = row * g.d + c;
        }
        packed.get(from).copied().unwrap_or(T::c(0.0))
    }))
}

impl Op for SelfAttention {
    const NAME: &'static str = "self_attention";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        self.of(ins)?;
        let (_, words) = layout::packed(&parts(ins[0].shape));
        Ok(Meta::f32(Shape::new(&[words])?))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        let Ok(g) = self.of(ins) else { return 0 };
        match device.as_cuda() {
            Some(cuda) => launch::forward_workspace(&g, &Gpu::of(cuda)),
            None => g.size(),
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let Ok(g) = self.of(run.metas) else { return };
        let (qkv, n, d) = (run.ins[0], g.n, g.d);
        let [wide, narrow] = g.widths();
        let [out, logs, tops] = unpack(run.out, &parts(run.metas[0].shape));
        let lists = &mut run.workspace[..g.size()];
        if let Some(digits) = g.digits(run.numerics) {
            let job = Operands::new(run.simd, self.scoring(), g, &[qkv; 3]);
            cpu_digits::forward(run.pool, &job, digits, [&mut *lists, logs, tops]);
            return g.scatter(run.pool, lists, 1, out);
        }
        let words = 3 * n * d;
        let scratch = words + LANES * forward_scratch(&g);
        let tiles = [g.batch, n, LANES];
        let results = [&mut *lists, logs, tops];
        run_tiles(run.pool, tiles, results, [d, 1, 1], scratch, |z, r0, count, results, scratch| {
            let (copied, scratch) = scratch.split_at_mut(words);
            let (q, rest) = copied.split_at_mut(n * d);
            let (k, v) = rest.split_at_mut(n * d);
            // Blocks of keys are read whole.
            let keys = if self.causal { (r0 + count).next_multiple_of(KEY_BLOCK).min(n) } else { n };
            g.gather(qkv, z, wide, 0, r0..r0 + count, q);
            g.gather(qkv, z, wide, narrow, 0..keys, k);
            g.gather(qkv, z, wide, 2 * narrow, 0..keys, v);
            let job = Operands::new(run.simd, self.scoring(), g.alone(), &[q, k, v]);
            forward(run.simd, &job, 0, r0, results, scratch);
        });
        g.scatter(run.pool, lists, 1, out);
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let g = self.of(run.metas)?;
        let parts = parts(run.metas[0].shape);
        fill_gaps(run.cuda, run.out, &parts)?;
        if g.batch * g.n == 0 {
            return Ok(());
        }
        let [q, k, v] = three_addresses(&g, run.ins[0]);
        let outs = addresses(run.out, &parts);
        launch::forward(run.cuda, self.scoring(), &g, [q, k, v, 0], outs, run.workspace)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.of(ins).map_or(Vec::new(), |g| launch::forward_modules(self.scoring(), &g, gpu))
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let back = SelfAttentionBwd { causal: self.causal, scale: self.scale };
        Ok(vec![Some(r.record(back.into(), &[io.ins[0], io.out, dy])?)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let g = self.of(&[ins[0].meta()])?;
        let lists = self.plain().reference(&three(&g, ins[0].num()?)?)?;
        by_lists(&g, lists.data(), true)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        self.scoring().attrs()
    }

    fn from_attrs(attrs: &Attrs) -> Result<SelfAttention> {
        let Scoring { causal, scale } = Scoring::from_attrs(attrs)?;
        Ok(SelfAttention { causal, scale })
    }
}

/// Addresses of queries, keys and values, or of their gradients, of the first row. Where rows are read four words at a time
/// a head is a multiple of that, and so are these.
fn three_addresses(g: &Geometry, qkv: u64) -> [u64; 3] {
    let [_, narrow] = g.widths();
    [0, 1, 2].map(|i| qkv + i * narrow as u64 * 4)
}

/// The inputs of [`AttentionBwd`] for those of [`SelfAttentionBwd`], for the references.
fn plain_inputs<T: Scalar>(g: &Geometry, ins: &[AnyTensor<T>]) -> Result<[AnyTensor<T>; 5]> {
    let [q, k, v] = three(g, ins[0].num()?)?;
    let [y, dy] = [by_lists(g, ins[1].num()?.data(), false)?, by_lists(g, ins[2].num()?.data(), false)?];
    Ok([q, k, v, AnyTensor::Num(y), AnyTensor::Num(dy)])
}

impl SelfAttentionBwd {
    fn scoring(&self) -> Scoring {
        Scoring { causal: self.causal, scale: self.scale }
    }

    fn of(&self, ins: &[Meta]) -> Result<Geometry> {
        let [qkv, y, dy] = arity(Self::NAME, ins)?;
        let g = self.scoring().inside(Self::NAME, ins)?;
        let parts = parts(qkv.shape);
        let (_, words) = layout::packed(&parts);
        for i in [1, 2] {
            typed(Self::NAME, ins, i, DType::F32)?;
        }
        let is_packed = |m: Meta| m.shape.dims() == [words];
        let given = [(y, is_packed(y)), (dy, is_packed(dy) || dy.shape == parts[0])];
        if let Some((wrong, _)) = given.into_iter().find(|(_, is_right)| !is_right) {
            let why = "not the packed value of these queries, keys and values";
            return Err(mismatch(Self::NAME, why, wrong.shape, qkv.shape));
        }
        Ok(g)
    }

    fn plain(&self) -> AttentionBwd {
        AttentionBwd { causal: self.causal, scale: self.scale }
    }

    /// The parts of the value, and whether the upstream gradient has all of them.
    fn parts(ins: &[Meta]) -> ([Shape; 3], bool) {
        let parts = parts(ins[0].shape);
        (parts, ins[2].shape != parts[0])
    }
}

/// The three, as values `(…, heads, n, d)`.
fn cut(r: &mut dyn Recorder, qkv: Val) -> Result<[Val; 3]> {
    let shape = r.meta(qkv).shape;
    let (rank, one) = (shape.rank(), apart(shape));
    let order: Vec<usize> =
        std::iter::once(rank - 3).chain(0..rank - 4).chain([rank - 2, rank - 4, rank - 1]).collect();
    let turned = r.record(layout::Permute { order }.into(), &[qkv])?;
    let flat = layout::reshape_to(r, turned, Shape::new(&[shape.numel()])?)?;
    let mut all = [flat; 3];
    for (i, v) in all.iter_mut().enumerate() {
        let cut = layout::Slice { axis: 0, start: i * one.numel(), len: one.numel(), step: 1 };
        *v = r.record(cut.into(), &[flat])?;
        *v = layout::reshape_to(r, *v, one)?;
    }
    Ok(all)
}

/// The other way: `(…, n, 3, heads, d)` of that shape.
fn join(r: &mut dyn Recorder, three: [Val; 3], shape: Shape) -> Result<Val> {
    let (rank, one) = (shape.rank(), apart(shape));
    let mut flat = three;
    for v in &mut flat {
        *v = layout::reshape_to(r, *v, Shape::new(&[one.numel()])?)?;
    }
    let all = r.record(layout::Concat { axis: 0 }.into(), &flat)?;
    let turned = Shape::new(&[&[3], one.dims()].concat())?;
    let all = layout::reshape_to(r, all, turned)?;
    // From (3, …, heads, n, d).
    let order: Vec<usize> = (1..rank - 3).chain([rank - 2, 0, rank - 3, rank - 1]).collect();
    r.record(layout::Permute { order }.into(), &[all])
}

/// `(…, heads, n, d)` of `(…, n, heads, d)`, and the other way.
fn swap(r: &mut dyn Recorder, x: Val) -> Result<Val> {
    let rank = r.meta(x).shape.rank();
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(rank - 3, rank - 2);
    r.record(layout::Permute { order }.into(), &[x])
}

/// A packed value of these parts as one whose outputs have the two axes before the last one swapped.
fn swap_packed(r: &mut dyn Recorder, packed: Val, parts: [Shape; 3]) -> Result<Val> {
    let [o, l, t] = parts;
    let mut values = [packed; 3];
    for (i, v) in values.iter_mut().enumerate() {
        *v = layout::part(r, packed, &parts, i)?;
    }
    values[0] = swap(r, values[0])?;
    pack(r, &[swapped(o), l, t], &values)
}

impl Op for SelfAttentionBwd {
    const NAME: &'static str = "self_attention_bwd";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        self.of(ins)?;
        Ok(ins[0])
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        let Ok(g) = self.of(ins) else { return 0 };
        match device.as_cuda() {
            Some(cuda) => launch::backward_workspace(&g, &Gpu::of(cuda)),
            // The gradients as lists, and `delta`, which tasks have by themselves if not in digits.
            None => 3 * g.size() + g.digits(device.numerics()).map_or(0, |_| g.batch * g.n),
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let Ok(g) = self.of(run.metas) else { return };
        let (n, d, size) = (g.n, g.d, g.size());
        if size == 0 {
            return;
        }
        let (parts, has_all) = SelfAttentionBwd::parts(run.metas);
        let (starts, _) = layout::packed(&parts);
        let inputs = Inputs {
            g,
            scoring: self.scoring(),
            simd: run.simd,
            qkv: run.ins[0],
            y: run.ins[1],
            dy: run.ins[2],
            logs: &run.ins[1][starts[1]..],
            tops: &run.ins[1][starts[2]..],
            dl: has_all.then(|| &run.ins[2][starts[1]..]),
        };
        let (lists, delta) = run.workspace.split_at_mut(3 * size);
        let (dq, rest) = lists.split_at_mut(size);
        let (dk, dv) = rest.split_at_mut(size);
        if let Some(digits) = g.digits(run.numerics) {
            let delta = &mut delta[..g.batch * n];
            cpu_digits::delta(run.pool, run.simd, &g, [inputs.dy, inputs.y], inputs.dl, delta);
            let job = Operands::new(run.simd, self.scoring(), g, &[inputs.qkv; 3]);
            let Inputs { dy, logs, tops, .. } = inputs;
            let back = BackwardOperands { job, dy, logs, tops, delta };
            cpu_digits::backward(run.pool, &back, digits, [dq, dk, dv]);
            return g.scatter(run.pool, lists, 3, run.out);
        }
        let words = g.list_words();
        let scratch = words + LANES * backward_scratch(&g);
        // Whole lists, where there are enough for all threads, make every score once.
        if g.batch >= run.pool.threads() {
            let (tiles, scratch) = ([g.batch, 1, 1], scratch + list_scratch(&g));
            run_tiles(run.pool, tiles, [dq, dk, dv], [n * d; 3], scratch, |z, _, _, results, scratch| {
                let (copied, scratch) = scratch.split_at_mut(words);
                list(run.simd, &inputs.list(z, copied), 0, results, scratch);
            });
        } else {
            let tiles = [g.batch, n, LANES];
            run_tiles(run.pool, tiles, [dq], [d], scratch, |z, r0, count, [dq], scratch| {
                let (copied, scratch) = scratch.split_at_mut(words);
                queries(run.simd, &inputs.list(z, copied), 0, r0, dq, count, scratch);
            });
            run_tiles(run.pool, tiles, [dk, dv], [d, d], scratch, |z, k0, count, results, scratch| {
                let (copied, scratch) = scratch.split_at_mut(words);
                keys(run.simd, &inputs.list(z, copied), 0, k0, results, count, None, scratch);
            });
        }
        g.scatter(run.pool, lists, 3, run.out);
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let g = self.of(run.metas)?;
        if g.size() == 0 {
            return Ok(());
        }
        let (parts, has_all) = SelfAttentionBwd::parts(run.metas);
        let [y, dy] = [run.ins[1], run.ins[2]];
        let [_, logs, tops] = addresses(y, &parts);
        let dl = if has_all { addresses(dy, &parts)[1] } else { 0 };
        delta_cuda(run.cuda, &g, [dy, y, dl], run.workspace)?;
        let [q, k, v] = three_addresses(&g, run.ins[0]);
        let grads = three_addresses(&g, run.out);
        launch::backward(run.cuda, self.scoring(), &g, [q, k, v, 0], [dy, logs, tops], grads, run.workspace)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.of(ins).map_or(Vec::new(), |g| launch::backward_modules(self.scoring(), &g, gpu))
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, up: Val) -> Result<Vec<Option<Val>>> {
        // By the rule of the plain op on lists that are copied out.
        let [qkv, y, dy] = [io.ins[0], io.ins[1], io.ins[2]];
        let shape = r.meta(qkv).shape;
        let (inner, one) = (parts(shape), apart(shape));
        let outer = [one, inner[1], inner[2]];
        let is_packed = r.meta(dy).shape != inner[0];
        let [q, k, v] = cut(r, qkv)?;
        let y = swap_packed(r, y, inner)?;
        let dy = match is_packed {
            true => swap_packed(r, dy, inner)?,
            false => {
                let dy = swap(r, dy)?;
                pack(r, &outer, &[dy])?
            }
        };
        let up = cut(r, up)?;
        let up = pack(r, &[one; 3], &up)?;
        let bars = self.plain().vjp(r, Io { ins: &[q, k, v, y, dy], out: io.out }, up)?;
        let &[Some(q), Some(k), Some(v), Some(y), Some(dy)] = &bars[..] else {
            return Err(Error::new(Self::NAME, ErrorKind::Internal { what: "a gradient is missing" }));
        };
        let qkv = join(r, [q, k, v], shape)?;
        let y = swap_packed(r, y, outer)?;
        let dy = match is_packed {
            true => swap_packed(r, dy, outer)?,
            false => {
                let dy = layout::part(r, dy, &outer, 0)?;
                swap(r, dy)?
            }
        };
        Ok(vec![Some(qkv), Some(y), Some(dy)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let g = self.of(&metas)?;
        let lists = self.plain().reference(&plain_inputs(&g, ins)?)?;
        let part = g.size().next_multiple_of(4);
        Ok(Tensor::from_fn(metas[0].shape, |at| {
            let (c, head, place) = (at % g.d, at / g.d % g.heads, at / g.d / g.heads / 3);
            let row = (place / g.n * g.heads + head) * g.n + place % g.n;
            lists.data()[at / g.d / g.heads % 3 * part + row * g.d + c]
        }))
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        self.scoring().attrs()
    }

    fn from_attrs(attrs: &Attrs) -> Result<SelfAttentionBwd> {
        let Scoring { causal, scale } = Scoring::from_attrs(attrs)?;
        Ok(SelfAttentionBwd { causal, scale })
    }
}

/// What a backward pass on the CPU reads.
struct Inputs<'a> {
    g: Geometry,
    scoring: Scoring,
    simd: Simd,
    qkv: &'a [f32],
    y: &'a [f32],
    dy: &'a [f32],
    logs: &'a [f32],
    tops: &'a [f32],
    dl: Option<&'a [f32]>,
}

impl Inputs<'_> {
    /// List `z` by itself, copied to `words`.
    fn list<'b>(&'b self, z: usize, words: &'b mut [f32]) -> BackwardOperands<'b> {
        let Geometry { n, d, .. } = self.g;
        let [wide, narrow] = self.g.widths();
        let (copied, delta) = words.split_at_mut(5 * n * d);
        let (qkv, rest) = copied.split_at_mut(3 * n * d);
        for (i, to) in qkv.chunks_exact_mut(n * d).enumerate() {
            self.g.gather(self.qkv, z, wide, i * narrow, 0..n, to);
        }
        let (dy, o) = rest.split_at_mut(n * d);
        self.g.gather(self.dy, z, narrow, 0, 0..n, dy);
        self.g.gather(self.y, z, narrow, 0, 0..n, o);
        row_products(self.simd, dy, o, self.dl.map(|all| &all[z * n..]), d, d, delta);
        let (q, rest) = qkv.split_at(n * d);
        let (k, v) = rest.split_at(n * d);
        let job = Operands::new(self.simd, self.scoring, self.g.alone(), &[q, k, v]);
        BackwardOperands { job, dy, logs: &self.logs[z * n..][..n], tops: &self.tops[z * n..][..n], delta }
    }
}
