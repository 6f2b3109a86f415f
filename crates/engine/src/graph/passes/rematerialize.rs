//! Rematerialization: a value with a late reader is computed a second time next to that reader, so that it need not be
//! kept alive in between. This is done for cheap ops whose inputs are alive then anyway: copies that only move elements
//! and, if requested, elementwise ops. It is also done for everything traced in a checkpointed segment, from the
//! segment's inputs.

use super::{Pass, Passes, Rewrite, What, readers};
use crate::graph::Graph;
use dittograd_ops::{AnyOp, Val};

/// Distance in nodes between two readers above which a value is rematerialized near the second.
pub(super) const GAP: usize = 12;
/// Cheap ops are rematerialized only if their value has at least this many bytes.
const MIN_BYTES: usize = 1 << 16;

pub(super) fn run(graph: &Graph, wanted: &mut [Val], passes: Passes) -> Graph {
    let n = graph.size();
    let (root, readers) = readers(graph, wanted, |op, ins| op.view(&graph.metas(ins)).is_some());
    let in_segment = |i: usize| passes.has(Pass::Checkpoints) && graph.nodes[i].checkpointed;
    let stays = |v: &Val, until: usize| {
        let at = root[v.0 as usize];
        let kept = || readers[at].last().is_some_and(|&r| r >= until) && !in_segment(at);
        matches!(graph.nodes[at].what, What::Leaf(_)) || kept()
    };
    // For each node, the first reader that gets the second copy.
    let mut first: Vec<usize> = vec![usize::MAX; n];
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        let What::Op(op, ins) = &node.what else { continue };
        if root[i] != i {
            continue;
        }
        let late = readers[i].windows(2).find(|r| r[1] - r[0] > GAP && r[1] < n).map(|r| r[1]);
        if in_segment(i) {
            first[i] = first[i].min(late.unwrap_or(usize::MAX));
            // The second copy is computed from values of the segment, which then need second copies too.
            for v in ins {
                let from = root[v.0 as usize];
                if in_segment(from) {
                    first[from] = first[from].min(first[i]);
                }
            }
            continue;
        }
        let cheap = match op {
            AnyOp::Permute(_) => passes.has(Pass::Copies),
            _ => passes.has(Pass::Recompute) && op.as_pointwise(&graph.metas(ins)).is_some(),
        };
        if let Some(late) = late
            && cheap
            && 4 * node.meta.shape.numel() >= MIN_BYTES
            && ins.iter().all(|v| stays(v, late))
        {
            first[i] = late;
        }
    }
    // For each node, what is rematerialized before it.
    let mut before: Vec<Vec<usize>> = vec![Vec::new(); n];
    for (i, &made) in root.iter().enumerate() {
        if let Some(list) = before.get_mut(first[made]) {
            list.push(i);
        }
    }
    let mut to = Rewrite::new(graph);
    for (i, before) in before.iter().enumerate() {
        // A later view reads the second copy anyway.
        before.iter().filter(|&&made| made < i).for_each(|&made| to.keep(made));
        to.keep(i);
    }
    to.finish(wanted)
}
