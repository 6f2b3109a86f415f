//! Splits batch norm into the statistics of its channels and an elementwise op: running averages share the statistics,
//! and the elementwise op fuses with its neighbours.

use super::{Rewrite, What};
use crate::graph::Graph;
use dittograd_numerics::error::Result;
use dittograd_ops::layout::{part, reshape_to};
use dittograd_ops::norm::channel::{Moments, normalized_program};
use dittograd_ops::norm::inverse_std_program;
use dittograd_ops::pointwise::map::Map;
use dittograd_ops::{AnyOp, Recorder, Val};

pub(super) fn split(graph: &Graph, wanted: &mut [Val]) -> Result<Graph> {
    let mut to = Rewrite::new(graph);
    for (i, node) in graph.nodes.iter().enumerate() {
        let (op, ins) = match &node.what {
            What::Op(AnyOp::BatchNorm(op), ins) if node.meta.shape.numel() > 0 => (op, ins),
            _ => {
                to.keep(i);
                continue;
            }
        };
        let (first, shape) = (to.out.size(), node.meta.shape);
        let per_channel = Map::new(inverse_std_program(op.eps), Moments::per_channel(&shape)?);
        let mut args = to.all(ins);
        let packed = to.out.record(Moments.into(), &args[..1])?;
        for k in 0..2 {
            args.insert(1 + k, part(&mut to.out, packed, &Moments::parts(&shape), k)?);
        }
        for v in &mut args[1..] {
            *v = reshape_to(&mut to.out, *v, per_channel.shape)?;
        }
        args[2] = to.out.record(per_channel.into(), &args[2..3])?;
        to.record(i, Map::new(normalized_program(args.len()), shape), &args)?;
        for new in &mut to.out.nodes[first..] {
            (new.requires_grad, new.checkpointed) = (node.requires_grad, node.checkpointed);
        }
    }
    Ok(to.finish(wanted))
}
