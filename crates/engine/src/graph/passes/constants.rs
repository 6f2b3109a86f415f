//! Constant folding: ops that depend only on constants are computed once, at compile time.

use super::{Rewrite, What};
use crate::graph::{Graph, Source};
use dittograd_device::{AnyBuffer, Device};
use dittograd_numerics::error::Result;
use dittograd_ops::{self, AnyOp, Val};

/// The most bytes of folded constants of a program. A small computation can give a large constant, such as a table.
const MOST: usize = 64 << 20;

pub(super) fn fold(graph: &Graph, wanted: &mut [Val], device: &Device) -> Result<Graph> {
    let mut to = Rewrite::new(graph);
    let mut known: Vec<Option<AnyBuffer>> = vec![None; graph.size()];
    let mut bytes = 0;
    for (i, node) in graph.nodes.iter().enumerate() {
        to.keep(i);
        match &node.what {
            What::Leaf(Source::Constant(c)) => known[i] = Some(c.clone()),
            What::Leaf(_) => {}
            // Not folded: a kernel that reads it takes the number instead.
            What::Op(AnyOp::Full(_), _) => {}
            What::Op(op, ins) => {
                let size = 4 * node.meta.shape.numel();
                let args: Option<Vec<&AnyBuffer>> =
                    ins.iter().map(|v| known[v.0 as usize].as_ref()).collect();
                let Some(args) = args.filter(|_| bytes + size <= MOST) else { continue };
                let value = dittograd_ops::apply(device, op, &args)?;
                bytes += size;
                let new = to.at(Val(i as u32)).0 as usize;
                to.out.nodes[new].what = What::Leaf(Source::Constant(value.clone()));
                known[i] = Some(value);
            }
        }
    }
    Ok(to.finish(wanted))
}
