//! Passes: each takes a program and the values wanted from it, and returns a smaller one that computes
//! the same bits.

use super::{Graph, Node, What};
use crate::ops::map::Map;
use crate::ops::program::{Expr, Program};
use crate::ops::{AnyOp, Val};

/// Keeps only what the wanted values are computed from.
pub(crate) fn dead_code(graph: &Graph, wanted: &mut [Val]) -> Graph {
    let mut live = vec![false; graph.size()];
    wanted.iter().for_each(|v| live[v.0 as usize] = true);
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        if let (What::Op(_, ins), true) = (&node.what, live[i]) {
            ins.iter().for_each(|v| live[v.0 as usize] = true);
        }
        // Inputs stay: a program takes what it was traced with.
        live[i] |= matches!(node.what, What::Leaf(super::Source::Input(_)));
    }
    rebuild(graph, wanted, |i| live[i])
}

/// Copies the nodes for which `keep` holds, renumbered.
fn rebuild(graph: &Graph, wanted: &mut [Val], keep: impl Fn(usize) -> bool) -> Graph {
    let mut new_id = vec![Val(0); graph.size()];
    let mut out = Graph::new();
    for (i, node) in graph.nodes.iter().enumerate().filter(|(i, _)| keep(*i)) {
        let what = match &node.what {
            What::Op(op, ins) => What::Op(op.clone(), ins.iter().map(|v| new_id[v.0 as usize]).collect()),
            leaf => leaf.clone(),
        };
        new_id[i] = Val(out.nodes.len() as u32);
        out.nodes.push(Node { what, ..node.clone() });
    }
    out.random_base = graph.random_base.filter(|v| keep(v.0 as usize)).map(|v| new_id[v.0 as usize]);
    wanted.iter_mut().for_each(|v| *v = new_id[v.0 as usize]);
    out
}

/// Computes equal ops on equal inputs once.
pub(crate) fn common_subexpressions(graph: &Graph, wanted: &mut [Val]) -> Graph {
    let mut canonical: Vec<Val> = (0..graph.size()).map(|i| Val(i as u32)).collect();
    let mut out = graph.clone();
    // Candidates by first input, so that each op is compared with few others.
    let mut by_input: Vec<Vec<usize>> = vec![Vec::new(); graph.size() + 1];
    for i in 0..out.size() {
        let What::Op(op, ins) = &mut out.nodes[i].what else { continue };
        ins.iter_mut().for_each(|v| *v = canonical[v.0 as usize]);
        let (op, ins) = (op.clone(), ins.clone());
        let bucket = ins.first().map_or(graph.size(), |v| v.0 as usize);
        let twin = by_input[bucket].iter().copied().find(
            |&j| matches!(&out.nodes[j].what, What::Op(other, others) if *others == ins && *other == op),
        );
        match twin {
            Some(j) => canonical[i] = Val(j as u32),
            None => by_input[bucket].push(i),
        }
    }
    wanted.iter_mut().for_each(|v| *v = canonical[v.0 as usize]);
    dead_code(&out, wanted)
}

/// An elementwise node as a program over the values it reads.
struct Fusible {
    program: Program,
    ins: Vec<Val>,
}

/// Joins elementwise ops and broadcasts that feed only one elementwise op into that op, so that the
/// values between them are never stored.
pub(crate) fn fuse(graph: &Graph, wanted: &mut [Val]) -> Graph {
    let n = graph.size();
    let mut uses = vec![0usize; n];
    let mut consumer = vec![usize::MAX; n];
    for (i, node) in graph.nodes.iter().enumerate() {
        if let What::Op(_, ins) = &node.what {
            for v in ins {
                uses[v.0 as usize] += 1;
                consumer[v.0 as usize] = i;
            }
        }
    }
    wanted.iter().for_each(|v| uses[v.0 as usize] += 2);
    let program_of = |i: usize| -> Option<Program> {
        let What::Op(op, ins) = &graph.nodes[i].what else { return None };
        let metas: Vec<_> = ins.iter().map(|v| graph.node(*v).meta).collect();
        op.as_program(&metas)
    };
    let programs: Vec<Option<Program>> = (0..n).map(program_of).collect();
    let joins = |i: usize| {
        uses[i] == 1
            && programs[i].is_some()
            && programs[consumer[i]].is_some()
            && graph.nodes[consumer[i]].meta.shape == graph.nodes[i].meta.shape
    };
    let mut out = Graph::new();
    let mut new_id = vec![Val(u32::MAX); n];
    let mut pending: Vec<Option<Fusible>> = (0..n).map(|_| None).collect();
    for (i, node) in graph.nodes.iter().enumerate() {
        let (What::Op(op, ins), Some(program)) = (&node.what, &programs[i]) else {
            let what = match &node.what {
                What::Op(op, ins) => What::Op(op.clone(), ins.iter().map(|v| new_id[v.0 as usize]).collect()),
                leaf => leaf.clone(),
            };
            new_id[i] = push(&mut out, what, node);
            continue;
        };
        let joined = join(&mut out, graph, &mut new_id, &mut pending, program, ins);
        match joined {
            _ if joins(i) => {
                pending[i] = Some(joined.unwrap_or_else(|| Fusible {
                    program: program.clone(),
                    ins: ins.iter().map(|v| new_id[v.0 as usize]).collect(),
                }));
            }
            Some(f) => new_id[i] = push(&mut out, as_map(f.program, f.ins, node), node),
            // Nothing was joined into it: the op stays as it was written.
            None => {
                let ins = ins.iter().map(|v| new_id[v.0 as usize]).collect();
                new_id[i] = push(&mut out, What::Op(op.clone(), ins), node);
            }
        }
    }
    out.random_base = graph.random_base.map(|v| new_id[v.0 as usize]);
    wanted.iter_mut().for_each(|v| *v = new_id[v.0 as usize]);
    out
}

fn push(out: &mut Graph, what: What, like: &Node) -> Val {
    out.nodes.push(Node { what, ..like.clone() });
    Val(out.nodes.len() as u32 - 1)
}

fn as_map(program: Program, ins: Vec<Val>, like: &Node) -> What {
    What::Op(AnyOp::from(Map::new(program, like.meta.shape)), ins)
}

/// Puts the pending programs among `ins` into `program`. `None` if there were none. Where the result would
/// need too many registers, a pending program becomes a node of its own.
fn join(
    out: &mut Graph,
    graph: &Graph,
    new_id: &mut [Val],
    pending: &mut [Option<Fusible>],
    program: &Program,
    ins: &[Val],
) -> Option<Fusible> {
    let mut parts: Vec<Option<Fusible>> = ins.iter().map(|v| pending[v.0 as usize].take()).collect();
    loop {
        if parts.iter().all(Option::is_none) {
            return None;
        }
        let mut inputs: Vec<Val> = Vec::new();
        let mut place = |v: Val| {
            inputs.iter().position(|x| *x == v).unwrap_or_else(|| {
                inputs.push(v);
                inputs.len() - 1
            })
        };
        let places: Vec<Vec<usize>> = parts
            .iter()
            .zip(ins)
            .map(|(part, v)| match part {
                Some(f) => f.ins.iter().map(|v| place(*v)).collect(),
                None => vec![place(new_id[v.0 as usize])],
            })
            .collect();
        let joined = Program::trace(inputs.len(), |e| {
            let args: Vec<Expr> = parts
                .iter()
                .zip(&places)
                .map(|(part, places)| match part {
                    Some(f) => f.program.eval(&places.iter().map(|&p| e[p]).collect::<Vec<_>>())[0],
                    None => e[places[0]],
                })
                .collect();
            program.eval(&args)
        });
        if joined.fits() {
            return Some(Fusible { program: joined, ins: inputs });
        }
        let at = parts.iter().position(Option::is_some)?;
        let f = parts[at].take()?;
        let like = graph.node(ins[at]);
        new_id[ins[at].0 as usize] = push(out, as_map(f.program, f.ins, like), like);
    }
}
