//! Elementwise ops become part of the softmax or norm that reads them: it computes the elements as it needs them, and they are
//! never stored.

use super::{Rewrite, What, elements, reshaped, uses};
use crate::graph::Graph;
use dittograd_numerics::error::Result;
use dittograd_ops::fused::{self, Fused};
use dittograd_ops::led::{self, Led};
use dittograd_ops::{AnyOp, Val};
use std::sync::Arc;

/// The most inputs of a program: all of them are read where one was.
const MOST_INPUTS: usize = 4;

pub(super) fn join(graph: &Graph, wanted: &mut [Val]) -> Result<Graph> {
    let uses = uses(graph, wanted);
    let mut to = Rewrite::new(graph);
    for (i, node) in graph.nodes.iter().enumerate() {
        let What::Op(op, ins) = &node.what else {
            to.keep(i);
            continue;
        };
        let (base, own) = match op {
            AnyOp::Fused(fused) => (&*fused.base, fused.inputs),
            op => (op, ins.len()),
        };
        let Some((led, mut all)) = led(&mut to, &uses, i, base, &ins[..own])? else {
            to.keep(i);
            continue;
        };
        match op {
            AnyOp::Fused(fused) => {
                let inputs = all.len();
                all.extend(to.all(&ins[own..]));
                to.record(i, Fused { base: Box::new(led.into()), inputs, ..fused.clone() }, &all)?;
            }
            _ => to.record(i, led, &all)?,
        }
    }
    Ok(to.finish(wanted))
}

/// The op of node `i` with the program that makes one of its inputs, and what both read, if only it reads that input.
fn led(
    to: &mut Rewrite<'_>,
    uses: &[usize],
    i: usize,
    base: &AnyOp,
    ins: &[Val],
) -> Result<Option<(Led, Vec<Val>)>> {
    let graph = to.old;
    let Some(slot) = led::slot(base) else { return Ok(None) };
    let shape = graph.node(ins[slot]).meta.shape;
    let Some((program, made, args)) = elements(graph, uses, ins[slot]) else { return Ok(None) };
    let is_alike = made.checkpointed == graph.nodes[i].checkpointed;
    if !is_alike || args.is_empty() || args.len() > MOST_INPUTS || program.weight() > fused::most_weight(base)
    {
        return Ok(None);
    }
    let (before, behind) = (to.all(&ins[..slot]), to.all(&ins[slot + 1..]));
    let mut all = [before, behind].concat();
    for v in args {
        let v = to.at(*v);
        let Some(v) = reshaped(&mut to.out, v, &made.meta.shape, &shape)? else { return Ok(None) };
        all.push(v);
    }
    let led =
        Led { base: Box::new(base.clone()), slot, inputs: args.len(), program: Arc::new(program), shape };
    let readable = led.is_readable(&to.out.metas(&all));
    Ok(readable.then_some((led, all)))
}
