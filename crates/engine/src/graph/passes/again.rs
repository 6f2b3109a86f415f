//! What is cheap to make again need not be kept until it is read again, long after: copies that only move elements and,
//! if asked for, elementwise ops, where what they are made from is there at that time anyway; and whatever was traced
//! between checkpoints, from what came in.

use super::{Pass, Passes, Rewrite, What, readers};
use crate::graph::Graph;
use dittograd_ops::{AnyOp, Val};

/// Nodes between two readers from which on it pays not to keep a value but to make it again, near the second.
pub(super) const GAP: usize = 12;
/// Bytes from which on it pays for cheap ops.
const LEAST: usize = 1 << 16;

pub(super) fn make(graph: &Graph, wanted: &mut [Val], passes: Passes) -> Graph {
    let n = graph.size();
    let (root, readers) = readers(graph, wanted, |op, ins| op.view(&graph.metas(ins)).is_some());
    let in_segment = |i: usize| passes.has(Pass::Checkpoints) && graph.nodes[i].again;
    let stays = |v: &Val, until: usize| {
        let at = root[v.0 as usize];
        let kept = || readers[at].last().is_some_and(|&r| r >= until) && !in_segment(at);
        matches!(graph.nodes[at].what, What::Leaf(_)) || kept()
    };
    // For each node, the first node that reads it made again.
    let mut first: Vec<usize> = vec![usize::MAX; n];
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        let What::Op(op, ins) = &node.what else { continue };
        if root[i] != i {
            continue;
        }
        let late = readers[i].windows(2).find(|r| r[1] - r[0] > GAP && r[1] < n).map(|r| r[1]);
        if in_segment(i) {
            first[i] = first[i].min(late.unwrap_or(usize::MAX));
            // It is made from values of the segment that are made again, too.
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
            _ => passes.has(Pass::Recompute) && op.as_program(&graph.metas(ins)).is_some(),
        };
        if let Some(late) = late
            && cheap
            && 4 * node.meta.shape.numel() >= LEAST
            && ins.iter().all(|v| stays(v, late))
        {
            first[i] = late;
        }
    }
    let mut again: Vec<Vec<usize>> = vec![Vec::new(); n];
    for (i, &made) in root.iter().enumerate() {
        if let Some(at) = again.get_mut(first[made]) {
            at.push(i);
        }
    }
    let mut to = Rewrite::new(graph);
    for (i, again) in again.iter().enumerate() {
        // A view that is made later than this is made of the new value by itself.
        again.iter().filter(|&&made| made < i).for_each(|&made| to.keep(made));
        to.keep(i);
    }
    to.finish(wanted)
}
