//! Removes copies and reshapes that move nothing, turns transposed operands of products into flags, and drops padding
//! with zeros from a gradient where it is implied.

use super::{Rewrite, What};
use crate::graph::Graph;
use dittograd_numerics::error::Result;
use dittograd_ops::attention::outputs_alone;
use dittograd_ops::layout::{Permute, Reshape, reshape_to};
use dittograd_ops::matmul::{Bmm, MatMul};
use dittograd_ops::{AnyOp, Recorder, Val};

pub(super) fn simplify(graph: &Graph, wanted: &mut [Val]) -> Result<Graph> {
    let mut to = Rewrite::new(graph);
    let mut is_wanted = vec![false; graph.size()];
    wanted.iter().for_each(|v| is_wanted[v.0 as usize] = true);
    for (i, node) in graph.nodes.iter().enumerate() {
        let What::Op(op, ins) = &node.what else {
            to.keep(i);
            continue;
        };
        let mut args = to.all(ins);
        let shape = node.meta.shape;
        let same = |v: Val| graph.node(v).meta.shape == shape;
        // A wanted copy stays: its source may be a parameter, which is updated before the copy is read.
        let is_wanted = is_wanted[i];
        match op {
            AnyOp::Copy(_) | AnyOp::Detach(_) if !is_wanted => to.new[i] = Some(args[0]),
            AnyOp::Reshape(_) | AnyOp::BroadcastTo(_) if same(ins[0]) && !is_wanted => {
                to.new[i] = Some(args[0])
            }
            AnyOp::Reshape(_) => match made_by(&to.out, args[0]) {
                Some((AnyOp::Reshape(_), from)) => {
                    args[0] = from[0];
                    to.record(i, Reshape { shape }, &args)?;
                }
                _ => to.keep(i),
            },
            AnyOp::Permute(outer) => match made_by(&to.out, args[0]) {
                Some((AnyOp::Permute(inner), from)) => {
                    let from = from[0];
                    let axes: Vec<usize> = outer.order.iter().map(|&a| inner.order[a]).collect();
                    if axes.is_sorted() && !is_wanted {
                        to.new[i] = Some(from);
                    } else {
                        to.record(i, Permute { order: axes }, &[from])?;
                    }
                }
                _ => to.keep(i),
            },
            &AnyOp::MatMul(MatMul { ta, tb }) | &AnyOp::Bmm(Bmm { ta, tb }) => {
                let mut flags = [ta, tb];
                for (arg, flag) in args.iter_mut().zip(&mut flags) {
                    untranspose(&to.out, arg, flag);
                }
                let [ta, tb] = flags;
                let product: AnyOp = match op {
                    AnyOp::Bmm(_) => Bmm { ta, tb }.into(),
                    _ => MatMul { ta, tb }.into(),
                };
                to.record(i, product, &args)?;
            }
            AnyOp::SelfAttentionBwd(back) => {
                if let Some(outputs) = unpadded(&mut to.out, args[0], args[2])? {
                    args[2] = outputs;
                }
                to.record(i, *back, &args)?;
            }
            _ => to.keep(i),
        }
    }
    Ok(to.finish(wanted))
}

/// The op that makes a value, and its inputs.
fn made_by(graph: &Graph, v: Val) -> Option<(&AnyOp, &[Val])> {
    match &graph.node(v).what {
        What::Op(op, ins) => Some((op, ins)),
        What::Leaf(_) => None,
    }
}

/// The upstream gradient of the outputs of a self-attention on `qkv`, without the zeros it was padded with for the rest
/// of the value.
fn unpadded(graph: &mut Graph, qkv: Val, dy: Val) -> Result<Option<Val>> {
    let Some((AnyOp::Pad(pad), from)) = made_by(graph, dy) else { return Ok(None) };
    let mut from = from[0];
    let Some(shape) = outputs_alone(graph.meta(qkv).shape, pad, graph.meta(from).shape) else {
        return Ok(None);
    };
    if let Some((AnyOp::Reshape(_), before)) = made_by(graph, from) {
        from = before[0];
    }
    reshape_to(graph, from, shape).map(Some)
}

/// Replaces a transposed operand by its source and flips the flag.
fn untranspose(graph: &Graph, arg: &mut Val, flag: &mut bool) {
    let Some((AnyOp::Permute(p), from)) = made_by(graph, *arg) else { return };
    let rank = graph.meta(*arg).shape.rank();
    let swapped = |a: usize| {
        if a + 2 == rank {
            a + 1
        } else if a + 1 == rank {
            a - 1
        } else {
            a
        }
    };
    if p.order.iter().enumerate().all(|(a, &from)| from == swapped(a)) {
        *arg = from[0];
        *flag = !*flag;
    }
}
