//! Copies and changes of shape that move nothing go away, and transposed operands of products become flags.

use super::{Rewrite, What};
use crate::error::Result;
use crate::graph::Graph;
use crate::ops::layout::{Permute, Reshape};
use crate::ops::matmul::{Bmm, MatMul};
use crate::ops::{AnyOp, Recorder, Val};

pub(super) fn simplify(graph: &Graph, wanted: &mut [Val]) -> Result<Graph> {
    let mut to = Rewrite::new(graph);
    for (i, node) in graph.nodes.iter().enumerate() {
        let What::Op(op, ins) = &node.what else {
            to.keep(i);
            continue;
        };
        let mut args = to.all(ins);
        let shape = node.meta.shape;
        let same = |v: Val| graph.node(v).meta.shape == shape;
        // A copy that is wanted stays: what it was taken from may be a parameter, which is updated before it is read.
        let is_wanted = wanted.contains(&Val(i as u32));
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

/// Reads an operand before its last two axes were swapped, if they were.
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
