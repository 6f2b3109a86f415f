//! Elementwise ops become part of the softmax or norm that reads them: it computes the elements as it needs them, and they are
//! never stored.

use super::{Rewrite, What, reshaped, uses};
use crate::error::Result;
use crate::graph::Graph;
use crate::ops::fused::{self, Fused};
use crate::ops::led::{self, Led};
use crate::ops::program::Program;
use crate::ops::{AnyOp, Val};
use crate::shape::Shape;
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
    let Some((program, from, args)) = elements(graph, uses, ins[slot], graph.nodes[i].again) else {
        return Ok(None);
    };
    if args.is_empty() || args.len() > MOST_INPUTS || program.weight() > fused::most_weight(base) {
        return Ok(None);
    }
    let (before, behind) = (to.all(&ins[..slot]), to.all(&ins[slot + 1..]));
    let mut all = [before, behind].concat();
    for v in args {
        let v = to.at(*v);
        let Some(v) = reshaped(&mut to.out, v, &from, &shape)? else { return Ok(None) };
        all.push(v);
    }
    let led =
        Led { base: Box::new(base.clone()), slot, inputs: args.len(), program: Arc::new(program), shape };
    let readable = led.is_readable(&to.out.metas(&all));
    Ok(readable.then_some((led, all)))
}

/// The program that makes `v`, the shape it has there, and what it reads, if each value on the way is read once.
fn elements<'g>(
    graph: &'g Graph,
    uses: &[usize],
    mut v: Val,
    again: bool,
) -> Option<(Program, Shape, &'g [Val])> {
    loop {
        let node = graph.node(v);
        let What::Op(op, ins) = &node.what else { return None };
        if uses[v.0 as usize] != 1 || node.again != again {
            return None;
        }
        if matches!(op, AnyOp::Reshape(_)) {
            v = ins[0];
            continue;
        }
        let program = op.as_program(&graph.metas(ins)).filter(|p| p.outputs() == 1)?;
        return Some((program, node.meta.shape, ins));
    }
}
