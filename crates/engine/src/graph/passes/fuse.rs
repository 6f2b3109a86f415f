//! Fuses elementwise ops into one kernel: with each other, with the broadcasts and constants they read, and with the
//! matrix product, convolution, softmax or norm before them. An intermediate value that is needed elsewhere becomes an
//! extra result of the kernel.
//!
//! Nodes are visited in order. A group of fused ops waits for the first op that reads one of its results. If that op
//! can join, the group grows; otherwise the group is recorded just before it. So nothing is recorded later than it is
//! read.

use super::{Rewrite, What, readers, reshaped};
use crate::graph::Graph;
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::Real;
use dittograd_numerics::shape::Shape;
use dittograd_ops::fused::{Epilogue, Fused};
use dittograd_ops::layout::{self, Reshape};
use dittograd_ops::pointwise::expression::{Expr, Pointwise};
use dittograd_ops::pointwise::map::{Map, results};
use dittograd_ops::random::Full;
use dittograd_ops::{AnyOp, Recorder, Val};
use std::sync::Arc;

/// What may be fused.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fusion {
    pub elementwise: bool,
    pub results: bool,
    pub epilogues: bool,
    /// Larger products are in digits.
    pub digits: bool,
}

/// The most extra inputs of an epilogue: all are held in registers beside the accumulators.
const MOST_OTHERS: usize = 4;

/// The most steps of a fused program: each op that joins traces it again, and compilers are slow on long programs.
const MOST_STEPS: usize = 256;

/// The most nodes for which a product waits for an epilogue: its inputs stay alive as long.
const FAR: usize = 64;

/// Ops fused so far.
struct Group {
    /// The op whose value is the program's first input, with its inputs.
    base: Option<(AnyOp, Vec<Val>)>,
    /// The program's other inputs.
    ins: Vec<Val>,
    program: Pointwise,
    shape: Shape,
    /// The old nodes that are its results, in order.
    members: Vec<usize>,
    /// The old node, as long as the group has only one.
    alone: Option<usize>,
    /// Old nodes that are members with another shape.
    views: Vec<usize>,
    /// Length of the longest path from a leaf, in ops.
    depth: usize,
}

/// An input of an elementwise op.
enum Arg {
    /// A constant.
    Number(f32),
    /// A result of a group: which group, which result.
    Member(usize, usize),
    /// A value of the new program.
    Value(Val),
}

struct Fuser<'g> {
    fusion: Fusion,
    to: Rewrite<'g>,
    /// For each node, the value it is a view of.
    root: Vec<usize>,
    /// For each node that is not a view, its readers in order; `usize::MAX` stands for the caller.
    readers: Vec<Vec<usize>>,
    groups: Vec<Option<Group>>,
    /// For each node, the waiting group that it belongs to.
    waiting: Vec<Option<usize>>,
    /// For each node, the length of the longest path from a leaf, in ops.
    depth: Vec<usize>,
}

impl Fusion {
    pub(super) fn run(self, graph: &Graph, wanted: &mut [Val]) -> Result<Graph> {
        let n = graph.size();
        let (root, readers) = readers(graph, wanted, |op, _| matches!(op, AnyOp::Reshape(_)));
        let to = Rewrite::new(graph);
        let (waiting, depth) = (vec![None; n], depths(graph));
        let mut fuser = Fuser { fusion: self, to, root, readers, groups: Vec::new(), waiting, depth };
        for i in 0..n {
            fuser.node(i)?;
        }
        for g in 0..fuser.groups.len() {
            fuser.flush(g)?;
        }
        Ok(fuser.to.finish(wanted))
    }
}

/// For each node, the length of the longest path from a leaf, in ops.
fn depths(graph: &Graph) -> Vec<usize> {
    let mut depth = vec![0; graph.size()];
    for (i, node) in graph.nodes.iter().enumerate() {
        if let What::Op(_, ins) = &node.what {
            depth[i] = 1 + ins.iter().map(|v| depth[v.0 as usize]).max().unwrap_or(0);
        }
    }
    depth
}

/// The op with an epilogue.
fn followed(op: &AnyOp, program: &Pointwise, shape: Shape) -> Fused {
    let epilogue = Epilogue { program: Arc::new(program.clone()), shape };
    Fused { prologue: None, op: Box::new(op.clone()), epilogue: Some(epilogue) }
}

/// The program of an elementwise op with one result.
fn program_of(graph: &Graph, i: usize) -> Option<(Pointwise, &[Val])> {
    let What::Op(op, ins) = &graph.nodes[i].what else { return None };
    if matches!(op, AnyOp::BroadcastTo(_)) {
        return None;
    }
    Some((graph.pointwise(op, ins)?, ins))
}

impl Fuser<'_> {
    fn node(&mut self, i: usize) -> Result<()> {
        let graph = self.to.old;
        let What::Op(op, ins) = &graph.nodes[i].what else {
            self.to.keep(i);
            return Ok(());
        };
        if let (AnyOp::Reshape(_), Some(g)) = (op, self.waiting[self.root[i]]) {
            if let Some(group) = &mut self.groups[g] {
                group.views.push(i);
            }
            return Ok(());
        }
        if let Some((program, ins)) = program_of(graph, i) {
            return self.elementwise(i, &program, ins);
        }
        for v in ins {
            self.flush_value(*v)?;
        }
        let shape = graph.nodes[i].meta.shape;
        let is_near = self.readers[i].first().is_some_and(|&r| r <= i + FAR);
        if self.fusion.epilogues
            && op.fusion(&graph.metas(ins)).epilogue
            && is_near
            && self.next_joins(&[i], i, &shape)
        {
            let group = Group {
                base: Some((op.clone(), self.to.all(ins))),
                ins: Vec::new(),
                program: Pointwise::same(1),
                shape,
                members: vec![i],
                alone: Some(i),
                views: Vec::new(),
                depth: self.depth[i],
            };
            self.wait(group);
        } else {
            self.to.keep(i);
        }
        Ok(())
    }

    /// Whether the first reader of one of `members` after node `i` is an elementwise op on as many elements.
    fn next_joins(&self, members: &[usize], i: usize, shape: &Shape) -> bool {
        let first_after = |&m: &usize| {
            let readers = &self.readers[m];
            readers.get(readers.partition_point(|&r| r <= i)).copied()
        };
        let Some(next) = members.iter().filter_map(first_after).min().filter(|&r| r < usize::MAX) else {
            return false;
        };
        let numel = self.to.old.nodes[next].meta.shape.numel();
        numel == shape.numel() && program_of(self.to.old, next).is_some()
    }

    fn wait(&mut self, group: Group) {
        for &m in &group.members {
            self.waiting[m] = Some(self.groups.len());
        }
        self.groups.push(Some(group));
    }

    fn flush_value(&mut self, v: Val) -> Result<()> {
        match self.waiting[self.root[v.0 as usize]] {
            Some(g) => self.flush(g),
            None => Ok(()),
        }
    }

    /// How an elementwise op of `shape` reads `v`.
    fn arg(&self, v: Val, shape: &Shape) -> Arg {
        let graph = self.to.old;
        let mut at = v;
        // Look through broadcasts.
        while let What::Op(op @ AnyOp::BroadcastTo(_), ins) = &graph.node(at).what
            && graph.node(at).meta.shape == *shape
            && op.as_pointwise(&graph.metas(ins)).is_some()
        {
            at = ins[0];
        }
        if let What::Op(AnyOp::Full(full), _) = &graph.node(at).what {
            return Arg::Number(full.value);
        }
        let root = self.root[at.0 as usize];
        if let Some(g) = self.waiting[root]
            && let Some(group) = &self.groups[g]
            && let Some(k) = group.members.iter().position(|&m| m == root)
        {
            return Arg::Member(g, k);
        }
        Arg::Value(self.to.at(at))
    }

    fn elementwise(&mut self, i: usize, program: &Pointwise, ins: &[Val]) -> Result<()> {
        let shape = self.to.old.nodes[i].meta.shape;
        // Groups that hold another number of elements cannot be joined.
        for v in ins {
            if self.to.old.node(*v).meta.shape.numel() != shape.numel() {
                self.flush_value(*v)?;
            }
        }
        let group = loop {
            let args: Vec<Arg> = ins.iter().map(|v| self.arg(*v, &shape)).collect();
            let mut parts: Vec<usize> =
                args.iter().filter_map(|a| if let Arg::Member(g, _) = a { Some(*g) } else { None }).collect();
            parts.sort_unstable();
            parts.dedup();
            if let Some(group) = self.joined(i, program, (ins, &args), &parts, shape)? {
                for g in parts {
                    self.groups[g] = None;
                }
                break group;
            }
            // Fewer groups may work; none always does. Of several products, record the one that is ready first: it can
            // run in parallel with the others, and the epilogue goes to the last.
            let ready = |g: &&usize| self.groups[**g].as_ref().and_then(|g| g.base.as_ref().map(|_| g.depth));
            let with_base = parts.iter().filter(|g| ready(g).is_some());
            let first =
                if with_base.clone().count() > 1 { with_base.min_by_key(ready) } else { parts.first() };
            let Some(&g) = first else {
                self.to.keep(i);
                return Ok(());
            };
            self.flush(g)?;
        };
        let joins = group.base.is_some() || self.fusion.elementwise;
        let waits = joins && self.next_joins(&group.members, i, &shape);
        self.wait(group);
        if waits { Ok(()) } else { self.flush(self.groups.len() - 1) }
    }

    /// Node `i` with the groups whose results it reads, if that can be one kernel.
    fn joined(
        &mut self,
        i: usize,
        program: &Pointwise,
        (old, args): (&[Val], &[Arg]),
        parts: &[usize],
        shape: Shape,
    ) -> Result<Option<Group>> {
        let mut base = None;
        let mut ins: Vec<Val> = Vec::new();
        // For each group, the positions of its inputs among the new inputs.
        let mut places: Vec<Vec<usize>> = Vec::new();
        let groups: Vec<Group> = parts.iter().filter_map(|&g| self.groups[g].take()).collect();
        let restore = |this: &mut Self, groups: Vec<Group>| {
            for (&g, group) in parts.iter().zip(groups) {
                this.groups[g] = Some(group);
            }
            Ok(None)
        };
        let bases = groups.iter().filter(|g| g.base.is_some()).count();
        if bases > 1 || groups.iter().any(|g| g.shape.numel() != shape.numel()) {
            return restore(self, groups);
        }
        let first = bases;
        let mut place = |v: Val| {
            let at = ins.iter().position(|x| *x == v).unwrap_or_else(|| {
                ins.push(v);
                ins.len() - 1
            });
            first + at
        };
        for group in &groups {
            let mut own = Vec::new();
            if let Some(b) = &group.base {
                base = Some(b.clone());
                own.push(0);
            }
            for &v in &group.ins {
                let Some(v) = reshaped(&mut self.to.out, v, &group.shape, &shape)? else {
                    return restore(self, groups);
                };
                own.push(place(v));
            }
            places.push(own);
        }
        let direct: Vec<usize> =
            args.iter().map(|a| if let Arg::Value(v) = a { place(*v) } else { usize::MAX }).collect();
        // A result that only this op reads is no longer a result.
        let mut members = Vec::new();
        let mut kept = Vec::new();
        for (g, group) in groups.iter().enumerate() {
            for (k, &m) in group.members.iter().enumerate() {
                if self.readers[m].last().is_some_and(|&r| r > i) {
                    members.push(m);
                    kept.push((g, k));
                }
            }
        }
        members.push(i);
        let several = self.fusion.results && shape.numel().is_multiple_of(4);
        if members.len() > 1 && !several {
            return restore(self, groups);
        }
        let joined = Pointwise::trace(first + ins.len(), |x| {
            let values: Vec<Vec<Expr>> = groups
                .iter()
                .zip(&places)
                .map(|(g, own)| g.program.eval(&own.iter().map(|&p| x[p]).collect::<Vec<_>>()))
                .collect();
            let args: Vec<Expr> = args
                .iter()
                .zip(&direct)
                .map(|(arg, &at)| match arg {
                    Arg::Number(k) => Expr::c(f64::from(*k)),
                    Arg::Member(g, k) => values[parts.iter().position(|p| p == g).unwrap_or(0)][*k],
                    Arg::Value(_) => x[at],
                })
                .collect();
            let mut results: Vec<Expr> = kept.iter().map(|&(g, k)| values[g][k]).collect();
            results.extend(program.eval(&args));
            results
        });
        let fits = joined.fits()
            && joined.steps().len() <= MOST_STEPS
            && base.as_ref().is_none_or(|(op, own)| {
                let metas = self.to.out.metas(&[&own[..], &ins].concat());
                let fusion = op.fusion(&metas[..own.len()]);
                let others = if self.fusion.digits { fusion.others_in_digits } else { fusion.others };
                (ins.is_empty() || others)
                    && joined.weight() <= fusion.weight
                    && ins.len() <= MOST_OTHERS
                    && followed(op, &joined, shape).is_possible(&metas)
            });
        if !fits {
            return restore(self, groups);
        }
        let is_same = |(arg, v): (&Arg, &Val)| matches!(arg, Arg::Value(new) if *new == self.to.at(*v));
        let plain = args.iter().zip(old).all(is_same);
        let views = groups.into_iter().flat_map(|g| g.views).collect();
        let alone = plain.then_some(i);
        Ok(Some(Group { base, ins, program: joined, shape, members, alone, views, depth: self.depth[i] }))
    }

    /// Records a group.
    fn flush(&mut self, g: usize) -> Result<()> {
        let Some(group) = self.groups[g].take() else { return Ok(()) };
        let Group { base, ins, program, shape, members, alone, views, .. } = group;
        if let Some(i) = alone {
            let What::Op(op, old) = &self.to.old.nodes[i].what else { return Ok(()) };
            let old = self.to.all(old);
            self.to.record(i, op.clone(), &old)?;
        } else {
            let value = match base {
                Some((op, own)) => {
                    let op = followed(&op, &program, shape);
                    self.to.out.record(op.into(), &[own, ins].concat())?
                }
                None if ins.is_empty() && program.outputs() == 1 => {
                    self.to.out.record(Full { shape, value: program.eval::<f32>(&[])[0] }.into(), &[])?
                }
                None => self.to.out.record(Map::new(program.clone(), shape).into(), &ins)?,
            };
            self.to.out.nodes[value.0 as usize].checkpointed =
                members.iter().all(|&m| self.to.old.nodes[m].checkpointed);
            let values = results(&mut self.to.out, value, program.outputs(), shape)?;
            for (&m, v) in members.iter().zip(values) {
                let own = self.to.old.nodes[m].meta.shape;
                self.to.new[m] = Some(layout::reshape_to(&mut self.to.out, v, own)?);
            }
        }
        members.iter().for_each(|&m| self.waiting[m] = None);
        for view in views.into_iter().filter(|v| members.contains(&self.root[*v])) {
            let from = self.to.at(Val(self.root[view] as u32));
            let shape = self.to.old.nodes[view].meta.shape;
            self.to.record(view, Reshape { shape }, &[from])?;
        }
        Ok(())
    }
}
