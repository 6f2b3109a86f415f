//! The selective scan of state-space models and its gradient.

use super::{blocks, module};
use crate::pointwise::expression::Scratch;
use crate::pointwise::{Add, Mul};
use crate::random::Full;
use crate::{AnyTensor, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, layout, mismatch};
use dittograd_device::Meta;
use dittograd_device::cpu::simd::simd_fn;
use dittograd_device::cuda::{Args, Source};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// Sizes of a recurrence, and which coefficients vary with time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recurrence {
    pub(super) batch: usize,
    pub(super) steps: usize,
    pub(super) states: usize,
    pub(super) a_varies: bool,
    pub(super) b_varies: bool,
}

impl Recurrence {
    pub(super) fn of(op: &'static str, ins: &[Meta; 4]) -> Result<Recurrence> {
        for i in 0..4 {
            crate::typed(op, ins, i, dittograd_device::DType::F32)?;
        }
        let [a, b, x, h0] = ins.map(|m| m.shape);
        if x.rank() < 2 {
            return Err(Error::new(op, ErrorKind::Rank { want: "at least 2", got: x }));
        }
        let (lead, last) = x.dims().split_at(x.rank() - 2);
        let varies = |v: Shape| match v {
            v if v == x => Ok(true),
            v if v.dims() == [last[1]] => Ok(false),
            v => Err(mismatch(op, "a coefficient has one number a state, or the shape of", v, x)),
        };
        let (a_varies, b_varies) = (varies(a)?, varies(b)?);
        if h0.dims() != [lead, &last[1..]].concat() {
            return Err(mismatch(op, "the first state is the input without its time axis, not", h0, x));
        }
        let batch = lead.iter().product();
        Ok(Recurrence { batch, steps: last[0], states: last[1], a_varies, b_varies })
    }

    /// Words of one batch entry.
    pub(super) fn words(&self) -> usize {
        self.steps * self.states
    }

    /// Row `t` of coefficient `v` for batch entry `b`.
    pub(super) fn row<'a>(&self, v: &'a [f32], varies: bool, b: usize, t: usize) -> &'a [f32] {
        let at = if varies { b * self.words() + t * self.states } else { 0 };
        &v[at..at + self.states]
    }

    /// The parts of the packed gradient for an input of shape `x`: of a, b, x and h0. A coefficient that does not vary
    /// with time has one gradient per batch entry.
    pub(super) fn parts(&self, x: Shape, h0: Shape) -> [Shape; 4] {
        let coefficient = |varies: bool| if varies { x } else { h0 };
        [coefficient(self.a_varies), coefficient(self.b_varies), x, h0]
    }
}

simd_fn! {
    /// One step: `h = fma(a, h', b x)` with `b x` rounded.
    pub(super) fn step(simd, a: &[f32], b: &[f32], x: &[f32], before: &[f32], h: &mut [f32]) {
        for ((h, before), ((a, b), x)) in h.iter_mut().zip(before).zip(a.iter().zip(b).zip(x)) {
            *h = a.mul_add(*before, b * x);
        }
    }
}

simd_fn! {
    /// `to = a * b`.
    pub(super) fn product(simd, a: &[f32], b: &[f32], to: &mut [f32]) {
        for (to, (a, b)) in to.iter_mut().zip(a.iter().zip(b)) {
            *to = a * b;
        }
    }
}

simd_fn! {
    /// `to = a * b + to` with one rounding.
    pub(super) fn chain(simd, a: &[f32], b: &[f32], to: &mut [f32]) {
        for (to, (a, b)) in to.iter_mut().zip(a.iter().zip(b)) {
            *to = a.mul_add(*b, *to);
        }
    }
}

simd_fn! {
    /// `to = a * to + g` with one rounding.
    pub(super) fn carry(simd, a: &[f32], g: &[f32], to: &mut [f32]) {
        for (to, (a, g)) in to.iter_mut().zip(a.iter().zip(g)) {
            *to = a.mul_add(*to, *g);
        }
    }
}

/// The diagonal linear recurrence of state-space models: `h[t] = a ∘ h[t-1] + b ∘ x[t]` with `h[-1] = h0`, for `x` (…,
/// T, S) and `h0` (…, S); the value is `h` (…, T, S). The coefficients `a` and `b` are (S), or vary with time and have
/// the shape of `x`. Each step is `fma(a, h[t-1], b x[t])`, strictly in the order of t. No steps or no states give an
/// empty value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelectiveScan;

impl SelectiveScan {
    pub(super) fn of(ins: &[Meta]) -> Result<Recurrence> {
        Recurrence::of(Self::NAME, &crate::arity::<4>(Self::NAME, ins)?)
    }
}

impl Op for SelectiveScan {
    const NAME: &'static str = "selective_scan";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        SelectiveScan::of(ins)?;
        Ok(Meta::f32(ins[2].shape))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let Ok(s) = SelectiveScan::of(run.metas) else { return };
        if run.out.is_empty() {
            return;
        }
        let [a, b, x, h0] = [0, 1, 2, 3].map(|i| run.ins[i]);
        run.pool.chunks_mut(run.out, s.words(), |i, out| {
            let mut before = &h0[i * s.states..(i + 1) * s.states];
            for (t, h) in out.chunks_exact_mut(s.states).enumerate() {
                let (a, b) = (s.row(a, s.a_varies, i, t), s.row(b, s.b_varies, i, t));
                step(run.simd, a, b, s.row(x, true, i, t), before, h);
                before = h;
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let s = SelectiveScan::of(run.metas)?;
        if run.shape.numel() == 0 {
            return Ok(());
        }
        let (name, source) = module();
        let kernel = run.cuda.kernel(&name, source, "selective_scan")?;
        let mut args = Args::new();
        for &input in run.ins {
            args.ptr(input);
        }
        args.ptr(run.out).u64(s.batch as u64).u64(s.steps as u64).u64(s.states as u64);
        args.i32(i32::from(s.a_varies)).i32(i32::from(s.b_varies));
        run.cuda.launch(kernel, blocks(s.batch * s.states), 128, 0, &args)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![module()]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let metas = [0, 1, 2, 3].map(|i| r.meta(io.ins[i]));
        let s = SelectiveScan::of(&metas)?;
        let parts = s.parts(metas[2].shape, metas[3].shape);
        let ins = [io.ins, &[io.out, dy]].concat();
        let packed = r.record(SelectiveScanBwd.into(), &ins)?;
        let mut grads = Vec::new();
        for (i, meta) in metas.iter().enumerate() {
            let part = layout::part(r, packed, &parts, i)?;
            // A coefficient that the whole batch shares: sum its gradient over the batch.
            grads.push(Some(layout::sum_to(r, part, meta.shape)?));
        }
        Ok(grads)
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let s = SelectiveScan::of(&metas)?;
        let [a, b, x, h0] = [0, 1, 2, 3].map(|i| ins[i].num().map(|t| t.data()));
        let (a, b, x, h0) = (a?, b?, x?, h0?);
        let mut out = Vec::with_capacity(x.len());
        for at in 0..x.len() {
            let (i, t, j) = (at / s.states / s.steps, at / s.states % s.steps, at % s.states);
            let before = if t == 0 { h0[i * s.states + j] } else { out[at - s.states] };
            let (a, b) = (a[if s.a_varies { at } else { j }], b[if s.b_varies { at } else { j }]);
            out.push(a * before + b * x[at]);
        }
        Tensor::with_shape(ins[2].meta().shape, out)
    }

    fn from_attrs(attrs: &Attrs) -> Result<SelectiveScan> {
        attrs.only(&[])?;
        Ok(SelectiveScan)
    }
}

/// The packed gradients of [`SelectiveScan`]. Inputs are `a, b, x, h0`, the value `h` and its gradient `g`. From the
/// last step to the first, `τ[t] = fma(a[t+1], τ[t+1], g[t])`, with `τ = g` at the last step. Then
/// `da[t] = τ[t] h[t-1]`, `db[t] = τ[t] x[t]`, `dx[t] = b[t] τ[t]`, `dh0 = a[0] τ[0]`. For a coefficient that does not
/// vary, `da` (…, S) is the sum of these terms by fused multiply-adds from the last step to the first, starting at +0.
/// With no steps all parts are zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelectiveScanBwd;

impl SelectiveScanBwd {
    pub(super) fn of(ins: &[Meta]) -> Result<(Recurrence, [Shape; 4])> {
        let [a, b, x, h0, h, g] = crate::arity::<6>(Self::NAME, ins)?;
        let s = Recurrence::of(Self::NAME, &[a, b, x, h0])?;
        for (i, m) in [(4, h), (5, g)] {
            crate::typed(Self::NAME, ins, i, dittograd_device::DType::F32)?;
            if m.shape != x.shape {
                return Err(mismatch(Self::NAME, "value or gradient differ in shape from", m.shape, x.shape));
            }
        }
        Ok((s, s.parts(x.shape, h0.shape)))
    }
}

/// `x` shifted by one step along its second-to-last axis, with `first` in front.
pub(super) fn shifted(r: &mut dyn Recorder, x: Val, first: Val) -> Result<Val> {
    let shape = r.meta(x).shape;
    let axis = shape.rank() - 2;
    let size = shape.dims()[axis];
    let mut line = shape.dims().to_vec();
    line[axis] = 1;
    let first = layout::reshape_to(r, first, Shape::new(&line)?)?;
    let first = r.record(layout::Pad { axis, start: 0, step: 1, size, value: 0.0 }.into(), &[first])?;
    let rest = r.record(layout::Slice { axis, start: 0, len: size - 1, step: 1 }.into(), &[x])?;
    let rest = r.record(layout::Pad { axis, start: 1, step: 1, size, value: 0.0 }.into(), &[rest])?;
    r.record(Add {}.into(), &[first, rest])
}

impl Op for SelectiveScanBwd {
    const NAME: &'static str = "selective_scan_bwd";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let (_, parts) = SelectiveScanBwd::of(ins)?;
        Ok(Meta::f32(Shape::new(&[layout::packed(&parts).1])?))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let Ok((s, parts)) = SelectiveScanBwd::of(run.metas) else { return };
        let [a, b, x, h0, h, g] = [0, 1, 2, 3, 4, 5].map(|i| run.ins[i]);
        let mut rest = run.out;
        let slices = parts.map(|p| {
            let (part, others) = std::mem::take(&mut rest).split_at_mut(p.numel().next_multiple_of(4));
            rest = others;
            let (part, padding) = part.split_at_mut(p.numel());
            padding.fill(0.0);
            part
        });
        let words = |varies: bool| if varies { s.words() } else { s.states };
        let sizes = [words(s.a_varies), words(s.b_varies), s.words(), s.states];
        run.pool.pieces_mut(slices, sizes, s.batch, |i, [da, db, dx, dh0]| {
            let simd = run.simd;
            let mut scratch = Scratch::take(s.states);
            let tau = &mut scratch.words()[..s.states];
            if !s.a_varies {
                da.fill(0.0);
            }
            if !s.b_varies {
                db.fill(0.0);
            }
            for t in (0..s.steps).rev() {
                let line = t * s.states..(t + 1) * s.states;
                let (x, g) = (s.row(x, true, i, t), s.row(g, true, i, t));
                let before = match t {
                    0 => &h0[i * s.states..(i + 1) * s.states],
                    t => s.row(h, true, i, t - 1),
                };
                if t + 1 == s.steps {
                    tau.copy_from_slice(g);
                } else {
                    carry(simd, s.row(a, s.a_varies, i, t + 1), g, tau);
                }
                product(simd, s.row(b, s.b_varies, i, t), tau, &mut dx[line.clone()]);
                if s.a_varies {
                    product(simd, tau, before, &mut da[line.clone()]);
                } else {
                    chain(simd, tau, before, da);
                }
                if s.b_varies {
                    product(simd, tau, x, &mut db[line]);
                } else {
                    chain(simd, tau, x, db);
                }
            }
            if s.steps == 0 {
                dh0.fill(0.0);
            } else {
                product(simd, s.row(a, s.a_varies, i, 0), tau, dh0);
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let (s, parts) = SelectiveScanBwd::of(run.metas)?;
        if run.shape.numel() == 0 {
            return Ok(());
        }
        let (starts, words) = layout::packed(&parts);
        let (name, source) = module();
        let kernel = run.cuda.kernel(&name, source, "selective_scan_bwd")?;
        let mut args = Args::new();
        for &input in run.ins {
            args.ptr(input);
        }
        args.ptr(run.out).u64(s.batch as u64).u64(s.steps as u64).u64(s.states as u64);
        args.i32(i32::from(s.a_varies)).i32(i32::from(s.b_varies));
        for (start, part) in starts.iter().zip(&parts) {
            args.u64(*start as u64).u64((start + part.numel()) as u64);
        }
        args.u64(words as u64);
        run.cuda.launch(kernel, blocks(s.batch * s.states), 128, 0, &args)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![module()]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        // Let ȧ, ḃ, ẋ, ḣ be the gradients of the parts, w[t] = ȧ h[t-1] + ḃ x + b ẋ, and σ the recurrence of w with
        // coefficient a that starts at ḣ. Then dg = σ, da = τ σ[t-1], db = τ ẋ, dx = ḃ τ, dh[t-1] = ȧ τ.
        let [a, b, x, h0, h, g] = [0, 1, 2, 3, 4, 5].map(|i| io.ins[i]);
        let metas = [a, b, x, h0, h, g].map(|v| r.meta(v));
        let (s, parts) = SelectiveScanBwd::of(&metas)?;
        if s.steps == 0 {
            return Ok(vec![None; 6]);
        }
        let full = metas[2].shape;
        let axis = full.rank() - 2;
        let mul = |r: &mut dyn Recorder, a: Val, b: Val| r.record(Mul {}.into(), &[a, b]);
        let mut dots = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            let dot = layout::part(r, dy, &parts, i)?;
            // Broadcast what does not vary with time along the time axis.
            dots.push(if i < 2 && *part != full {
                let mut line = full.dims().to_vec();
                line[axis] = 1;
                let dot = layout::reshape_to(r, dot, Shape::new(&line)?)?;
                layout::broadcast_to(r, dot, full)?
            } else {
                dot
            });
        }
        let one = r.record(Full { shape: Shape::new(&[s.states])?, value: 1.0 }.into(), &[])?;
        let tau = r.record(SelectiveScanBwd.into(), &[a, one, x, h0, h, g])?;
        let tau_parts = Recurrence { b_varies: false, ..s }.parts(full, metas[3].shape);
        let tau = layout::part(r, tau, &tau_parts, 2)?;
        let before = shifted(r, h, h0)?;
        let b_full = layout::broadcast_to(r, b, full)?;
        let terms = [mul(r, dots[0], before)?, mul(r, dots[1], x)?, mul(r, b_full, dots[2])?];
        let w = r.record(Add {}.into(), &[terms[0], terms[1]])?;
        let w = r.record(Add {}.into(), &[w, terms[2]])?;
        let sigma = r.record(SelectiveScan.into(), &[a, one, w, dots[3]])?;
        let sigma_before = shifted(r, sigma, dots[3])?;
        let da = mul(r, tau, sigma_before)?;
        let da = layout::sum_to(r, da, metas[0].shape)?;
        let db = mul(r, tau, dots[2])?;
        let db = layout::sum_to(r, db, metas[1].shape)?;
        let dx = mul(r, dots[1], tau)?;
        let back = mul(r, dots[0], tau)?;
        let first = r.record(layout::Slice { axis, start: 0, len: 1, step: 1 }.into(), &[back])?;
        let dh0 = layout::reshape_to(r, first, metas[3].shape)?;
        let rest = layout::Slice { axis, start: 1, len: s.steps - 1, step: 1 };
        let rest = r.record(rest.into(), &[back])?;
        let dh =
            r.record(layout::Pad { axis, start: 0, step: 1, size: s.steps, value: 0.0 }.into(), &[rest])?;
        Ok(vec![Some(da), Some(db), Some(dx), Some(dh0), Some(dh), Some(sigma)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let (s, parts) = SelectiveScanBwd::of(&metas)?;
        let data = |i: usize| ins[i].num().map(|t| t.data());
        let (a, b, x, h0, h, g) = (data(0)?, data(1)?, data(2)?, data(3)?, data(4)?, data(5)?);
        let (starts, words) = layout::packed(&parts);
        let mut out = vec![T::c(0.0); words];
        for line in 0..s.batch * s.states {
            let (i, j) = (line / s.states, line % s.states);
            let at = |t: usize| (i * s.steps + t) * s.states + j;
            let pick = |v: &[T], varies: bool, t: usize| v[if varies { at(t) } else { j }];
            let mut tau = T::c(0.0);
            for t in (0..s.steps).rev() {
                tau = if t + 1 == s.steps { g[at(t)] } else { g[at(t)] + pick(a, s.a_varies, t + 1) * tau };
                let before = if t == 0 { h0[line] } else { h[at(t - 1)] };
                for (p, varies, v) in [(0, s.a_varies, before), (1, s.b_varies, x[at(t)])] {
                    let to = starts[p] + if varies { at(t) } else { line };
                    out[to] = out[to] + tau * v;
                }
                out[starts[2] + at(t)] = pick(b, s.b_varies, t) * tau;
                if t == 0 {
                    out[starts[3] + line] = pick(a, s.a_varies, 0) * tau;
                }
            }
        }
        Tensor::new(&[words], out)
    }

    fn from_attrs(attrs: &Attrs) -> Result<SelectiveScanBwd> {
        attrs.only(&[])?;
        Ok(SelectiveScanBwd)
    }
}
