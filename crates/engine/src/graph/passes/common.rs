//! Common subexpressions: equal ops on equal inputs are computed once.

use super::{Rewrite, What};
use crate::graph::Graph;
use dittograd_ops::Val;
use std::collections::BTreeMap;

pub(super) fn subexpressions(graph: &Graph, wanted: &mut [Val]) -> Graph {
    let mut to = Rewrite::new(graph);
    // Values so far, by inputs, name and attributes as text (which tells 0 from -0). Some ops hold more than their
    // attributes, such as a program, so ops are compared too.
    let mut known: BTreeMap<(Vec<Val>, &'static str, String), Vec<Val>> = BTreeMap::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        let What::Op(op, ins) = &node.what else {
            to.keep(i);
            continue;
        };
        let alike = known.entry((to.all(ins), op.name(), format!("{:?}", op.attrs()))).or_default();
        let is_same = |v: &Val| matches!(&to.out.node(*v).what, What::Op(other, _) if other == op);
        match alike.iter().copied().find(is_same) {
            Some(same) => to.new[i] = Some(same),
            None => {
                alike.push(Val(to.out.size() as u32));
                to.keep(i);
            }
        }
    }
    to.finish(wanted)
}
