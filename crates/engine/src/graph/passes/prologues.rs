//! Fuses pointwise ops into the softmax or norm that reads them, as its prologue: it computes the elements as it reads
//! them, and they are never stored.

use super::{Rewrite, What, elements, reshaped, uses};
use crate::graph::Graph;
use dittograd_numerics::error::Result;
use dittograd_ops::fused::{Fused, Prologue};
use dittograd_ops::{AnyOp, Val};
use std::sync::Arc;

/// The most inputs of a prologue: all of them are read in place of one.
const MOST_INPUTS: usize = 4;

pub(super) fn join(graph: &Graph, wanted: &mut [Val]) -> Result<Graph> {
    let uses = uses(graph, wanted);
    let mut to = Rewrite::new(graph);
    for (i, node) in graph.nodes.iter().enumerate() {
        let What::Op(op, ins) = &node.what else {
            to.keep(i);
            continue;
        };
        let fused = match op {
            AnyOp::Fused(fused) if fused.prologue.is_none() => fused.clone(),
            _ => Fused { prologue: None, op: Box::new(op.clone()), epilogue: None },
        };
        let [own, _, others] = fused.parts(ins);
        match with_prologue(&mut to, &uses, i, fused.clone(), (own, others))? {
            Some((fused, all)) => to.record(i, fused, &all)?,
            None => to.keep(i),
        }
    }
    Ok(to.finish(wanted))
}

/// The op of node `i` with a prologue that computes one of its inputs, and its new inputs, if nothing else reads that
/// input.
fn with_prologue(
    to: &mut Rewrite<'_>,
    uses: &[usize],
    i: usize,
    fused: Fused,
    (own, others): (&[Val], &[Val]),
) -> Result<Option<(Fused, Vec<Val>)>> {
    let graph = to.old;
    let fusion = fused.op.fusion(&graph.metas(own));
    let Some((slot, _)) = fusion.prologue else { return Ok(None) };
    let shape = graph.node(own[slot]).meta.shape;
    let Some((program, made, args)) = elements(graph, uses, own[slot]) else { return Ok(None) };
    let is_alike = made.checkpointed == graph.nodes[i].checkpointed;
    if !is_alike || args.is_empty() || args.len() > MOST_INPUTS || program.weight() > fusion.weight {
        return Ok(None);
    }
    let mut all = [to.all(&own[..slot]), to.all(&own[slot + 1..])].concat();
    for v in args {
        let v = to.at(*v);
        let Some(v) = reshaped(&mut to.out, v, &made.meta.shape, &shape)? else { return Ok(None) };
        all.push(v);
    }
    all.extend(to.all(others));
    let fused = Fused { prologue: Some(Prologue { program: Arc::new(program), slot, shape }), ..fused };
    let possible = fused.is_possible(&to.out.metas(&all));
    Ok(possible.then_some((fused, all)))
}
