//! What is cheap to make again need not be kept until it is read again, long after: copies that only move elements and,
//! if asked for, elementwise ops. Only where what they are made from is there at that time anyway.

use super::{Rewrite, What};
use crate::graph::Graph;
use crate::ops::{AnyOp, Val};

/// Nodes between two readers from which on it pays not to keep a value.
const GAP: usize = 12;
/// Bytes from which on it pays.
const LEAST: usize = 1 << 16;

pub(super) fn make(graph: &Graph, wanted: &mut [Val], copies: bool, elementwise: bool) -> Graph {
    let n = graph.size();
    let mut root: Vec<usize> = (0..n).collect();
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); n];
    for (i, node) in graph.nodes.iter().enumerate() {
        let What::Op(op, ins) = &node.what else { continue };
        if op.view(&graph.metas(ins)).is_some() {
            root[i] = root[ins[0].0 as usize];
        } else {
            ins.iter().for_each(|v| readers[root[v.0 as usize]].push(i));
        }
    }
    wanted.iter().for_each(|v| readers[root[v.0 as usize]].push(usize::MAX));
    let stays = |v: &Val, until: usize| {
        let at = root[v.0 as usize];
        matches!(graph.nodes[at].what, What::Leaf(_)) || readers[at].last().is_some_and(|&r| r >= until)
    };
    // Nodes to be made again, by the reader they are made for.
    let mut again: Vec<Vec<usize>> = vec![Vec::new(); n];
    for (i, node) in graph.nodes.iter().enumerate() {
        let What::Op(op, ins) = &node.what else { continue };
        let cheap = match op {
            AnyOp::Permute(_) => copies,
            _ => elementwise && op.as_program(&graph.metas(ins)).is_some(),
        };
        if !cheap || root[i] != i || 4 * node.meta.shape.numel() < LEAST {
            continue;
        }
        let late = readers[i].windows(2).find(|r| r[1] - r[0] > GAP && r[1] < n).map(|r| r[1]);
        if let Some(late) = late
            && ins.iter().all(|v| stays(v, late))
        {
            again[late].push(i);
        }
    }
    let mut to = Rewrite::new(graph);
    for i in 0..n {
        for &made in &again[i] {
            to.keep(made);
            // Its views, as well.
            (made + 1..i).filter(|&v| root[v] == made).for_each(|v| to.keep(v));
        }
        to.keep(i);
    }
    to.finish(wanted)
}
