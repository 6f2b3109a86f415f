//! The compiled path: a program as plain data, made smaller and faster by passes, planned into one block
//! of memory, and run again and again. It holds the same ops as the tape and runs the same kernels, so it
//! gives the same bits as running eagerly.

mod compile;
mod derivatives;
mod draw;
mod in_place;
mod passes;
mod plan;
mod run;
mod signature;
mod text;

pub use compile::Plan;
pub use passes::{Pass, Passes};
pub use run::Compiled;
pub(crate) use run::is_uncapturable;
pub(crate) use signature::on;
#[doc(hidden)]
pub use signature::unbound;

use crate::nats::Nats;
use crate::params::Param;
use dittograd_device::{AnyBuffer, DType, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::Shape;
use dittograd_ops::pointwise::expression::Pointwise;
use dittograd_ops::{AnyOp, IndexBound, Recorder, Val, layout};
use std::collections::BTreeSet;
use std::panic::Location;

/// Where a value that is not computed comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// Given anew for every run.
    Input(Meta),
    /// A parameter's current value.
    Param(Param),
    /// A parameter of which only name and shape are known, until [`Graph::bind`].
    Named(String, Shape),
    /// Fixed when the program was made.
    Constant(AnyBuffer),
    /// Memory on the device that others may write between runs: each run reads what is there.
    State(AnyBuffer),
    /// Whole numbers, read at every run.
    Nats(Nats),
    /// The random counter of the run, as two words.
    RandomBase,
}

impl Source {
    fn meta(&self) -> Meta {
        match self {
            Source::Input(meta) => *meta,
            Source::Param(p) => p.buffer().meta(),
            Source::Named(_, shape) => Meta::f32(*shape),
            Source::Constant(c) | Source::State(c) => c.meta(),
            Source::Nats(nats) => Meta::u32(dittograd_ops::dims(&[nats.len()])),
            Source::RandomBase => Meta::u32(dittograd_ops::dims(&[2])),
        }
    }
}

/// What a node is.
#[derive(Clone, Debug)]
pub enum What {
    /// A value from outside.
    Leaf(Source),
    /// An op on earlier nodes.
    Op(AnyOp, Vec<Val>),
}

/// A value of the program.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it is.
    pub what: What,
    /// Shape and type.
    pub meta: Meta,
    /// Whether gradients flow through it.
    pub requires_grad: bool,
    /// Whether it was traced in a checkpointed segment, so that it may be rematerialized instead of being kept.
    pub checkpointed: bool,
    /// The line of the program that recorded it, for messages. No part of the text.
    pub location: Option<&'static Location<'static>>,
}

/// Where an op comes from, for messages.
#[derive(Debug, Default)]
struct Origin {
    location: Option<&'static Location<'static>>,
    /// Names of the parameters it reads.
    parameters: Vec<String>,
}

impl Origin {
    /// An error of the op, with its origin.
    fn locate(&self, e: Error) -> Error {
        let e = e.in_layer(&self.parameters.iter().map(String::as_str).collect::<Vec<_>>());
        if let Some(location) = self.location { e.at(location) } else { e }
    }
}

/// A program as plain data: values in the order they are computed, each from earlier ones, and which of them it returns.
///
/// [`Graph::trace`] makes one from a function over [`Var`](crate::session::Var)s, [`Graph::parse`] from text;
/// [`Graph::text`], [`Graph::hash`], `==`, [`Graph::to_dot`] and [`Graph::to_svg`] look at it; [`Graph::run`] runs it once,
/// [`Graph::compile`] makes a [`Function`](crate::compiled::Function) that runs many times, [`Session::replay`](crate::session::Session::replay)
/// records it among other values; [`Graph::vjp`] and [`Graph::jvp`] differentiate it.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: Vec<Node>,
    random_base: Option<Val>,
    /// Whether a checkpointed segment is being recorded.
    in_segment: bool,
    /// The line of the program that records.
    location: Option<&'static Location<'static>>,
    outputs: Vec<Val>,
    /// Names of the inputs, in order. Inputs beyond the end have none.
    input_names: Vec<Option<String>>,
}

impl Graph {
    /// An empty program.
    pub fn new() -> Graph {
        Graph::default()
    }

    /// Number of values.
    pub fn size(&self) -> usize {
        self.nodes.len()
    }

    /// The values, in order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// A new leaf.
    #[doc(hidden)]
    pub fn leaf(&mut self, source: Source, requires_grad: bool) -> usize {
        let meta = source.meta();
        let requires_grad = requires_grad && meta.dtype == DType::F32;
        let (checkpointed, location) = (false, None);
        self.nodes.push(Node { what: What::Leaf(source), meta, requires_grad, checkpointed, location });
        self.nodes.len() - 1
    }

    /// Records an op for a line of the program.
    pub(crate) fn record_at(
        &mut self,
        location: &'static Location<'static>,
        op: AnyOp,
        ins: &[Val],
    ) -> Result<Val> {
        self.location = Some(location);
        let recorded = self.record(op, ins);
        self.location = None;
        recorded.map_err(|e| self.origin(Some(location), ins).locate(e))
    }

    /// Where an op on these inputs comes from.
    fn origin(&self, location: Option<&'static Location<'static>>, ins: &[Val]) -> Origin {
        let name = |v: &Val| match &self.nodes.get(v.0 as usize)?.what {
            What::Leaf(Source::Param(p)) => Some(p.name().to_string()),
            What::Leaf(Source::Named(name, _)) => Some(name.clone()),
            _ => None,
        };
        Origin { location, parameters: ins.iter().filter_map(name).collect() }
    }

    /// Where the first op comes from that reads at the indices of an input and takes those below `limit`.
    fn index_reader(&self, input: usize, limit: usize) -> Origin {
        let is_input = |i: &usize| matches!(self.nodes[*i].what, What::Leaf(Source::Input(_)));
        let leaf = (0..self.size()).filter(is_input).nth(input);
        let reads = |node: &Node| {
            let What::Op(op, ins) = &node.what else { return None };
            let (at, bound) = op.index_limit(&self.metas(ins))?;
            let is_it = bound == limit && self.index_sources(ins[at]).0.contains(&leaf?);
            is_it.then(|| self.origin(node.location, ins))
        };
        self.nodes.iter().find_map(reads).unwrap_or_default()
    }

    /// Begins or ends a checkpointed segment, whose values may be rematerialized instead of being kept; whether one was open.
    pub(crate) fn segment(&mut self, open: bool) -> bool {
        std::mem::replace(&mut self.in_segment, open)
    }

    /// Keeps a value of a segment.
    pub(crate) fn keep(&mut self, v: Val) {
        self.nodes[v.0 as usize].checkpointed = false;
    }

    /// The same value, as one that gradients are wanted of.
    pub(crate) fn tracked(&mut self, v: Val) -> Result<Val> {
        let same = self.record(layout::Reshape { shape: self.meta(v).shape }.into(), &[v])?;
        self.nodes[same.0 as usize].requires_grad = self.meta(v).dtype == DType::F32;
        Ok(same)
    }

    /// The random counter of the run.
    pub(crate) fn random_base(&mut self) -> Val {
        if let Some(v) = self.random_base {
            return v;
        }
        let v = Val(self.leaf(Source::RandomBase, false) as u32);
        self.random_base = Some(v);
        v
    }

    fn node(&self, v: Val) -> &Node {
        &self.nodes[v.0 as usize]
    }

    fn check(&self, op: &str, v: Val) -> Result<()> {
        if (v.0 as usize) < self.size() {
            return Ok(());
        }
        Err(Error::new(op, ErrorKind::Node { id: v.0 as usize, size: self.size() }))
    }

    /// Shapes and types of values.
    #[doc(hidden)]
    pub fn metas(&self, ins: &[Val]) -> Vec<Meta> {
        ins.iter().map(|v| self.node(*v).meta).collect()
    }

    /// The expression of an op on these inputs, if it is elementwise and has one result.
    fn pointwise(&self, op: &AnyOp, ins: &[Val]) -> Option<Pointwise> {
        op.as_pointwise(&self.metas(ins)).filter(|p| p.outputs() == 1)
    }

    /// Where the entries of the indices `v` come from: leaves, whose entries can be looked at, and computed values,
    /// for which only a bound is known, if that.
    pub(crate) fn index_sources(&self, v: Val) -> (Vec<usize>, Vec<(usize, IndexBound)>) {
        let (mut leaves, mut computed, mut todo) = (Vec::new(), Vec::new(), vec![v]);
        // Values that are joined with themselves again and again would be seen exponentially often.
        let mut seen = BTreeSet::new();
        while let Some(v) = todo.pop() {
            if !seen.insert(v) {
                continue;
            }
            let What::Op(op, ins) = &self.node(v).what else {
                leaves.push(v.0 as usize);
                continue;
            };
            let metas = self.metas(ins);
            match op.index_bound(&metas) {
                IndexBound::OfInputs(n) => todo.extend(ins.iter().take(n)),
                bound => computed.push((v.0 as usize, bound)),
            }
        }
        (leaves, computed)
    }

    /// Errors if indices that the program computes may be too large for the op that reads at them. Those of leaves are
    /// checked when they are known.
    fn check_index_bounds(&self, op: &AnyOp, ins: &[Val]) -> Result<()> {
        let Some((i, limit)) = op.index_limit(&self.metas(ins)) else { return Ok(()) };
        if self.node(ins[i]).meta.dtype != DType::U32 || self.node(ins[i]).meta.shape.numel() == 0 {
            return Ok(());
        }
        for (at, bound) in self.index_sources(ins[i]).1 {
            if matches!(bound, IndexBound::Below(n) if n <= limit) {
                continue;
            }
            let maker = match &self.nodes[at].what {
                What::Op(op, _) => op.name(),
                What::Leaf(_) => "a leaf",
            };
            let known = match bound {
                IndexBound::Below(n) => format!("are below {n}"),
                _ => "have no known bound".to_string(),
            };
            let why = format!(
                "computed by {maker} {known}, but must be below {limit}; a compiled program cannot look at them"
            );
            return Err(Error::argument(op.name(), "indices", why));
        }
        Ok(())
    }
}

impl Recorder for Graph {
    fn record(&mut self, op: AnyOp, ins: &[Val]) -> Result<Val> {
        ins.iter().try_for_each(|v| self.check(op.name(), *v))?;
        let meta = op.shape(&self.metas(ins))?;
        self.check_index_bounds(&op, ins)?;
        let requires_grad = op.differentiable() && ins.iter().any(|v| self.node(*v).requires_grad);
        let (checkpointed, location) = (self.in_segment, self.location);
        self.nodes.push(Node {
            what: What::Op(op, ins.to_vec()),
            meta,
            requires_grad,
            checkpointed,
            location,
        });
        Ok(Val(self.nodes.len() as u32 - 1))
    }

    fn meta(&self, v: Val) -> Meta {
        self.nodes.get(v.0 as usize).map_or(Meta::f32(Shape::SCALAR), |n| n.meta)
    }
}
