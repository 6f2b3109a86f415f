//! Which form each op has.

use super::super::proto::{Type, Value};
use super::Lowering;
use super::nodes::flag;
use super::spectral::tables;
use crate::device::Meta;
use crate::error::{Error, Result};
use crate::graph::{Graph, Source, What};
use crate::ops::fused::Fused;
use crate::ops::index::Combine;
use crate::ops::{AnyOp, Val};
use crate::shape::Shape;

/// An op where it stands in the program.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) at: u32,
    pub(super) op: &'a AnyOp,
    pub(super) ins: &'a [Val],
    pub(super) metas: &'a [Meta],
    pub(super) out: Meta,
}

impl Place<'_> {
    /// That there is no ONNX form.
    #[cold]
    pub(super) fn none(&self, why: &str) -> Error {
        let (at, name, shape) = (self.at, self.op.name(), self.out.shape);
        Error::unsupported("onnx", format!("value {at} of the program, {name} of shape {shape}: {why}"))
    }
}

/// Whether a value is the counter of random numbers.
fn is_random(graph: &Graph, v: Val) -> bool {
    matches!(graph.nodes()[v.0 as usize].what, What::Leaf(Source::RandomBase))
}

impl Lowering<'_> {
    /// One op of the program. Its value has elements.
    pub(super) fn op(&mut self, place: Place<'_>, ins: &[Value]) -> Result<Value> {
        let (op, metas, out) = (place.op, place.metas, place.out.shape);
        if let AnyOp::Fused(fused) = op
            && fused.fold(metas).is_none()
        {
            return self.fused(place, fused, ins);
        }
        if let AnyOp::Map(map) = op {
            let results = self.program(&map.program, ins)?;
            return self.results(place.at, results, &map.shape);
        }
        if let AnyOp::BroadcastTo(to) = op {
            // Ones where an axis is inserted, then repeated.
            let dim = |entry: Option<usize>| entry.map_or(1, |axis| ins[0].dims[axis]);
            let dims: Vec<usize> = to.map.entries().map(dim).collect();
            let x = self.reshape(&ins[0], &dims);
            return Ok(self.expand(&x, out.dims()));
        }
        if let Some(program) = op.as_pointwise(metas) {
            let results = self.program(&program, ins)?;
            return self.results(place.at, results, &out);
        }
        let fold = match op {
            AnyOp::Fused(fused) => fused.fold(metas),
            _ => op.as_fold(metas),
        };
        if let Some((fold, axes)) = fold {
            let value = self.fold(&fold, metas[0].shape.dims(), &axes, ins)?;
            return Ok(self.reshape(&value, out.dims()));
        }
        use AnyOp::{LogSoftmax, LogSoftmaxBwd, MaskedSoftmax, Softmax, SoftmaxBwd};
        if out.rank() == 0
            && matches!(op, Softmax(_) | LogSoftmax(_) | SoftmaxBwd(_) | LogSoftmaxBwd(_) | MaskedSoftmax(_))
        {
            // A single number is a row of one.
            let rows: Vec<Value> = ins.iter().map(|v| self.reshape(v, &[1])).collect();
            let value = self.op(Place { out: Meta::f32(Shape::new(&[1])?), ..place }, &rows)?;
            return Ok(self.reshape(&value, &[]));
        }
        let dims = out.dims();
        Ok(match op {
            AnyOp::Reshape(_) | AnyOp::Detach(_) => self.reshape(&ins[0], dims),
            AnyOp::Permute(p) => self.transpose(&ins[0], &p.order),
            AnyOp::Slice(s) => self.run_of(&place, &ins[0], s),
            AnyOp::Pad(p) => self.spaced(&ins[0], p),
            AnyOp::Concat(c) => self.concat(&ins.iter().collect::<Vec<_>>(), c.axis),
            AnyOp::Flip(f) => self.flip(&ins[0], &f.axes),
            AnyOp::Triangle(t) => self.triangle(&ins[0], t),
            AnyOp::IndexSelect(s) => self.gather("Gather", ins, (s.axis, s.checked), dims),
            AnyOp::TakeAlongAxis(t) => self.gather("GatherElements", ins, (t.axis, t.checked), dims),
            AnyOp::ScatterAdd(s) => {
                self.scatter((&ins[0], &ins[1]), ins.get(2), (s.axis, s.size, s.checked), "add")
            }
            AnyOp::ScatterReduce(s) => {
                let reduction = match s.combine {
                    Combine::Sum => "add",
                    Combine::Prod => "mul",
                    Combine::Amax => "max",
                    Combine::Amin => "min",
                };
                let along = (s.axis, dims[s.axis], s.checked);
                self.scatter((&ins[0], &ins[1]), ins.get(2), along, reduction)
            }
            AnyOp::ToFloat(_) => self.cast(&ins[0], Type::F32),
            AnyOp::ToIndex(t) => self.index_of(&ins[0], t.below),
            AnyOp::IndexEq(_) => {
                let truth = self.compare("Equal", &ins[0], &ins[1]);
                self.cast(&truth, Type::F32)
            }
            AnyOp::IndexAdd(s) => self.index_add(ins, s, dims),
            AnyOp::Argmax(_) => self.arg_extremum("ArgMax", &place, &ins[0])?,
            AnyOp::Argmin(_) => self.arg_extremum("ArgMin", &place, &ins[0])?,
            AnyOp::MatMul(m) => self.product(ins, m.ta, m.tb),
            AnyOp::Bmm(m) => self.product(ins, m.ta, m.tb),
            AnyOp::AxisMatMul(m) => self.product(ins, m.ta, false),
            AnyOp::Linear(_) => self.linear([&ins[0], &ins[1], &ins[2]], dims),
            AnyOp::ModeMix(m) => self.modes(ins, m.adjoint, dims),
            AnyOp::SpectralConv1d(_) => self.spectral_conv(ins, dims)?,
            AnyOp::Rfft(f) => self.rfft(&place, &ins[0], f.scaled)?,
            AnyOp::Irfft(f) => self.irfft(&place, &ins[0], f.n, f.scaled)?,
            AnyOp::DftTable(t) => self.numbers(dims, &tables(t)?),
            AnyOp::CumSum(s) => self.cumsum(&ins[0], s),
            AnyOp::SelectiveScan(_) => self.scan([&ins[0], &ins[1], &ins[2], &ins[3]]),
            AnyOp::Recurrent(r) => self.recurrent(place.at, r, ins)?,
            AnyOp::Conv(c) => self.conv(&place, ins, &c.window, None),
            AnyOp::ConvTranspose(c) => self.conv(&place, ins, &c.window, Some(c.size.get())),
            AnyOp::MaxPool(p) => self.pool(&place, "MaxPool", &ins[0], &p.window, None)?,
            AnyOp::AvgPool(p) => {
                let count = flag("count_include_pad", p.count_include_pad);
                self.pool(&place, "AveragePool", &ins[0], &p.window, Some(count))?
            }
            AnyOp::AdaptiveAvgPool(p) => self.adaptive_avg_pool(&ins[0], &p.sizes),
            AnyOp::Softmax(_) => self.open_softmax(&ins[0], None, out.rank() - 1),
            AnyOp::SoftmaxAxis(s) => self.open_softmax(&ins[0], None, s.axis),
            AnyOp::LogSoftmax(_) => self.log_softmax(&ins[0], out.rank() - 1),
            AnyOp::LogSoftmaxAxis(s) => self.log_softmax(&ins[0], s.axis),
            AnyOp::SoftmaxBwd(_) => self.softmax_slope(&ins[0], &ins[1], out.rank() - 1),
            AnyOp::SoftmaxAxisBwd(s) => self.softmax_slope(&ins[0], &ins[1], s.axis),
            AnyOp::LogSoftmaxBwd(_) => self.log_softmax_slope(&ins[0], &ins[1], out.rank() - 1),
            AnyOp::LogSoftmaxAxisBwd(s) => self.log_softmax_slope(&ins[0], &ins[1], s.axis),
            AnyOp::MaskedSoftmax(_) => {
                let open = self.open(&ins[1]);
                self.open_softmax(&ins[0], Some(&open), out.rank() - 1)
            }
            AnyOp::Attention(a) => {
                let parts = self.attention([&ins[0], &ins[1], &ins[2]], ins.get(3), a.causal, a.scale)?;
                self.pack(place.at, parts)?
            }
            AnyOp::SelfAttention(a) => {
                let parts = self.self_attention(&ins[0], a.causal, a.scale)?;
                self.pack(place.at, parts)?
            }
            AnyOp::AttentionMask(a) => self.attention_mask(a, ins.first(), dims),
            AnyOp::Rope(r) => self.rope(&ins[0], &ins[1], r),
            AnyOp::LayerNorm(n) => self.layer_norm(ins, n.axes, n.eps),
            AnyOp::RmsNorm(n) => self.rms_norm(ins, n.axes, n.eps),
            AnyOp::BatchNorm(n) => self.batch_norm(ins, n.eps),
            AnyOp::GroupNorm(n) => self.group_norm(ins, n.groups, n.eps),
            AnyOp::Moments(_) => self.moments(place.at, &ins[0])?,
            AnyOp::Full(f) => {
                let one = self.c(f.value);
                self.expand(&one, dims)
            }
            _ if !op.differentiable() && place.ins.iter().any(|v| is_random(self.graph, *v)) => {
                return Err(place.none("ONNX has no random numbers like these; export the model as it is after training (`eval`)"));
            }
            _ => {
                return Err(place.none(
                    "it has no ONNX form here; export the values before it, or write it with other ops",
                ));
            }
        })
    }

    /// An op with the expressions before and after it, one after the other.
    fn fused(&mut self, place: Place<'_>, fused: &Fused, ins: &[Value]) -> Result<Value> {
        let ([own, before, after], [metas, _, _]) = (fused.parts(ins), fused.parts(place.metas));
        let (mut all, mut types) = (own.to_vec(), metas.to_vec());
        if let Some(p) = &fused.prologue {
            let mut made = self.program(&p.program, before)?;
            all.insert(p.slot, self.expand(&made.swap_remove(0), p.shape.dims()));
            types.insert(p.slot, Meta::f32(p.shape));
        }
        let out = fused.op.shape(&types)?;
        let value = self.op(Place { op: &fused.op, metas: &types, out, ..place }, &all)?;
        let Some(e) = &fused.epilogue else { return Ok(value) };
        let value = self.reshape(&value, e.shape.dims());
        let results = self.program(&e.program, &[&[value], after].concat())?;
        self.results(place.at, results, &e.shape)
    }
}
