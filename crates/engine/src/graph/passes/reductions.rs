//! Fuses pointwise ops into the reduction or loss that reads them, as its prologue, and pointwise ops on its result as
//! its epilogue: the elements are never stored.

use super::{Rewrite, What, elements, uses};
use crate::graph::Graph;
use dittograd_numerics::error::Result;
use dittograd_numerics::shape::Shape;
use dittograd_ops::fused::{Epilogue, Fused, Prologue};
use dittograd_ops::pointwise::expression::{Expr, Pointwise};
use dittograd_ops::{AnyOp, Val, layout};
use std::sync::Arc;

pub(super) fn join(graph: &Graph, wanted: &mut [Val]) -> Result<Graph> {
    let uses = uses(graph, wanted);
    let mut to = Rewrite::new(graph);
    for (i, node) in graph.nodes.iter().enumerate() {
        let What::Op(op, ins) = &node.what else {
            to.keep(i);
            continue;
        };
        if let Some(after) = following(graph, &uses, op, ins)
            && let Some((fused, args)) = followed(&to, ins[0], after)
        {
            to.record(i, fused, &args)?;
        } else if let Some((fused, args)) = with_elements(&mut to, graph, &uses, op, ins)? {
            to.record(i, fused, &args)?;
        } else {
            to.keep(i);
        }
    }
    Ok(to.finish(wanted))
}

/// The program of a pointwise op whose only input nothing else reads.
fn following(graph: &Graph, uses: &[usize], op: &AnyOp, ins: &[Val]) -> Option<Pointwise> {
    let [v] = *ins else { return None };
    let same = graph.node(v).meta.shape == op.shape(&graph.metas(ins)).ok()?.shape;
    let program = graph.pointwise(op, ins).filter(|p| !p.steps().is_empty());
    program.filter(|_| same && uses[v.0 as usize] == 1)
}

/// The reduction that computed `v`, with one more expression after it.
fn followed(to: &Rewrite<'_>, v: Val, after: Pointwise) -> Option<(Fused, Vec<Val>)> {
    let node = to.out.node(to.at(v));
    let What::Op(op, args) = &node.what else { return None };
    let metas = to.out.metas(args);
    let mut fused = match op {
        AnyOp::Fused(fused) => fused.clone(),
        op => Fused { prologue: None, op: Box::new(op.clone()), epilogue: None },
    };
    fused.fold(&metas)?;
    let program = match &fused.epilogue {
        Some(e) => Pointwise::trace(1, |x| after.eval(&e.program.eval(x))),
        None => after,
    };
    fused.epilogue = Some(Epilogue { program: Arc::new(program), shape: node.meta.shape });
    fused.is_possible(&metas).then(|| (fused, args.clone()))
}

/// The reduction `op` with a prologue that computes its elements, if possible.
fn with_elements(
    to: &mut Rewrite<'_>,
    graph: &Graph,
    uses: &[usize],
    op: &AnyOp,
    ins: &[Val],
) -> Result<Option<(Fused, Vec<Val>)>> {
    let metas = graph.metas(ins);
    let Some((fold, _)) = op.as_fold(&metas).filter(|(f, _)| f.aux == 0 && f.ins == ins.len()) else {
        return Ok(None);
    };
    let shape = metas[0].shape;
    let made: Vec<Option<(Pointwise, &[Val])>> =
        ins.iter().map(|v| in_order(graph, uses, *v, &shape)).collect();
    if made.iter().all(Option::is_none) || fold.ins > 4 {
        return Ok(None);
    }
    let mut args: Vec<Val> = Vec::new();
    let mut places: Vec<Vec<usize>> = Vec::new();
    for (made, v) in made.iter().zip(ins) {
        let own = made.as_ref().map_or(std::slice::from_ref(v), |(_, own)| own);
        let mut at = Vec::new();
        for v in own {
            let v = to.at(*v);
            let v = layout::reshape_to(&mut to.out, v, shape)?;
            at.push(args.iter().position(|x| *x == v).unwrap_or_else(|| {
                args.push(v);
                args.len() - 1
            }));
        }
        places.push(at);
    }
    let before = Pointwise::trace(args.len(), |x| {
        let of = |(made, at): (&Option<(Pointwise, &[Val])>, &Vec<usize>)| -> Expr {
            let own: Vec<Expr> = at.iter().map(|&p| x[p]).collect();
            made.as_ref().map_or(own[0], |(p, _)| p.eval(&own)[0])
        };
        made.iter().zip(&places).map(of).collect()
    });
    let prologue = Some(Prologue { program: Arc::new(before), slot: 0, shape });
    let fused = Fused { prologue, op: Box::new(op.clone()), epilogue: None };
    let possible = fused.is_possible(&to.out.metas(&args));
    Ok(possible.then_some((fused, args)))
}

/// The program that computes `v`, and its inputs, if only one op reads `v` and the program reads all elements in order.
fn in_order<'g>(graph: &'g Graph, uses: &[usize], v: Val, shape: &Shape) -> Option<(Pointwise, &'g [Val])> {
    let (program, _, ins) = elements(graph, uses, v)?;
    let plain = ins.iter().all(|v| graph.node(*v).meta.shape.numel() == shape.numel());
    (plain && !ins.is_empty()).then_some((program, ins))
}
