//! Equal ops on equal inputs are computed once.

use super::{Rewrite, What};
use crate::graph::Graph;
use crate::ops::{AnyOp, Val};

pub(super) fn subexpressions(graph: &Graph, wanted: &mut [Val]) -> Graph {
    let mut to = Rewrite::new(graph);
    // Candidates by first input, so that each op is compared with few others.
    let mut by_input: Vec<Vec<usize>> = vec![Vec::new(); graph.size() + 1];
    for (i, node) in graph.nodes.iter().enumerate() {
        let What::Op(op, ins) = &node.what else {
            to.keep(i);
            continue;
        };
        let ins = to.all(ins);
        let bucket = &mut by_input[ins.first().map_or(graph.size(), |v| v.0 as usize)];
        let same = |op: &AnyOp, ins: &[Val], j: usize| matches!(&to.out.nodes[j].what, What::Op(other, others) if others == ins && other == op);
        if let Some(&j) = bucket.iter().find(|&&j| same(op, &ins, j)) {
            to.new[i] = Some(Val(j as u32));
        } else {
            bucket.push(to.out.size());
            to.keep(i);
        }
    }
    to.finish(wanted)
}
