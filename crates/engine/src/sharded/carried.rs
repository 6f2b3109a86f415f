//! Values that a step carries from shard to shard: parameters that it assigns, such as the running statistics of batch norm. Each
//! shard's assignment continues from that of the shard before it, wherever that one was computed. So what a shard contributes is
//! computed with the shard, and the assignments themselves, which are little work, are made by all ranks for all shards in order.

use crate::effect;
use crate::graph::{Compiled, Graph, Passes, Source, What};
use crate::params::Param;
use dittograd_device::{AnyBuffer, Device, Meta};
use dittograd_numerics::error::{Error, Result};
use dittograd_ops::{Recorder, Val};

/// The assignments of a step, cut off the program of a shard.
pub(crate) struct Carried {
    /// What a shard contributes: values of its program.
    pub contributed: Vec<Val>,
    /// Makes the assignments from them.
    program: Compiled,
    metas: Vec<Meta>,
}

impl Carried {
    /// Cuts the assignments off `graph`, whose other results are `outputs`. `None` if there are none.
    pub(crate) fn of(
        device: &Device,
        graph: &Graph,
        outputs: &[Val],
        assigned: &[(Param, Val)],
    ) -> Result<Option<Carried>> {
        if assigned.is_empty() {
            return Ok(None);
        }
        let is_carried = |p: &Param| assigned.iter().any(|(q, _)| q.id() == p.id());
        // Whether a value depends on a carried parameter, and whether it depends on the shard.
        let mut depends: Vec<(Option<&Param>, bool)> = Vec::with_capacity(graph.size());
        for node in graph.nodes() {
            depends.push(match &node.what {
                What::Leaf(Source::Param(p)) if is_carried(p) => (Some(p), false),
                What::Leaf(source) => (None, matches!(source, Source::Input(_) | Source::RandomBase)),
                What::Op(_, ins) => {
                    let of = ins.iter().map(|v| depends[v.0 as usize]);
                    of.fold((None, false), |a, b| (a.0.or(b.0), a.1 || b.1))
                }
            });
        }
        if let Some(p) = outputs.iter().find_map(|v| depends[v.0 as usize].0) {
            let why = format!(
                "the step assigns to parameter {} and its results depend on it, so that a shard would wait for the one before it; use one shard",
                p.name()
            );
            return Err(Error::argument("step", "shards", why));
        }
        let mut cut = Cut {
            graph,
            depends: &depends,
            tail: Graph::new(),
            at: vec![None; graph.size()],
            contributed: Vec::new(),
        };
        let mut effects = Vec::new();
        for (p, v) in assigned {
            effects.push(effect::assign(p.clone(), cut.value(*v)?));
        }
        let Cut { tail, contributed, .. } = cut;
        let metas = contributed.iter().map(|v| graph.meta(*v)).collect();
        let program = Compiled::new(device, &tail, &[], effects, Passes::all(), None)?;
        Ok(Some(Carried { contributed, program, metas }))
    }

    /// Words that a shard contributes.
    pub(crate) fn words(&self) -> usize {
        self.metas.iter().map(|m| m.shape.numel()).sum()
    }

    /// Makes the assignments of one shard, which contributed the values that lie in `from` one after the other.
    pub(crate) fn run(&self, from: &AnyBuffer) -> Result<()> {
        let mut at = 0;
        for (i, meta) in self.metas.iter().enumerate() {
            let words = meta.shape.numel();
            self.program.copy_input(i, &AnyBuffer::new(from.buffer().part(at, words)?, *meta)?)?;
            at += words;
        }
        self.program.run(0)
    }
}

/// Records the assignments alone.
struct Cut<'g> {
    graph: &'g Graph,
    depends: &'g [(Option<&'g Param>, bool)],
    tail: Graph,
    /// Where each value is in the tail.
    at: Vec<Option<Val>>,
    contributed: Vec<Val>,
}

impl Cut<'_> {
    fn value(&mut self, v: Val) -> Result<Val> {
        if let Some(at) = self.at[v.0 as usize] {
            return Ok(at);
        }
        let node = &self.graph.nodes()[v.0 as usize];
        let value = match (&node.what, self.depends[v.0 as usize]) {
            // Of the shard alone.
            (_, (None, true)) => {
                self.contributed.push(v);
                Val(self.tail.leaf(Source::Input(node.meta), false) as u32)
            }
            (What::Leaf(source), _) => Val(self.tail.leaf(source.clone(), false) as u32),
            (What::Op(op, ins), _) => {
                let ins = ins.iter().map(|v| self.value(*v)).collect::<Result<Vec<_>>>()?;
                self.tail.record(op.clone(), &ins)?
            }
        };
        self.at[v.0 as usize] = Some(value);
        Ok(value)
    }
}
