//! Graphs inside other programs: a graph is a function of its inputs in any session.

use super::{Leaf, Options, Record, Session, Var};
use crate::graph::{Graph, Node, Source, What, on, unbound};
use crate::tape::Tape;
use dittograd_device::{AnyBuffer, Device};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::layout::Reshape;
use dittograd_ops::{AnyOp, Attr, Attrs, Val};

impl Session {
    /// Records all ops of a graph, with values of this session as its inputs, and returns its results. An eager session
    /// runs it, with the bits of the compiled program; in a trace it becomes part of the new program. Gradients flow
    /// through it to `inputs`, and random draws are those of the same calls made here.
    ///
    /// ```
    /// use dittograd::device::Meta;
    /// use dittograd::graph::Graph;
    /// use dittograd::prelude::*;
    /// # fn main() -> Result<()> {
    /// let device = Device::cpu()?;
    /// let cube = Graph::trace(&device, &[Meta::f32(Shape::SCALAR)], |_, x| Ok(vec![(x[0] * x[0] * x[0])?]))?;
    /// let session = Session::eager(&device);
    /// let x = session.variable(&Tensor::scalar(2.0f32))?;
    /// let y = session.replay(&cube, &[x])?[0];
    /// assert_eq!((y.item()?, session.grad(y, &[x])?[0].item()?), (8.0, 12.0));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn replay<'s>(&'s self, graph: &Graph, inputs: &[Var<'s>]) -> Result<Vec<Var<'s>>> {
        let all = self.replay_all(graph, inputs)?;
        Ok(graph.outputs().iter().map(|v| all[v.0 as usize]).collect())
    }

    /// Like [`Session::replay`], but returns every value of the graph.
    #[doc(hidden)]
    #[track_caller]
    pub fn replay_all<'s>(&'s self, graph: &Graph, inputs: &[Var<'s>]) -> Result<Vec<Var<'s>>> {
        graph.check_inputs(inputs.iter().map(|x| x.meta()).collect::<Result<Vec<_>>>()?.into_iter())?;
        let first_call = self.random_calls();
        let base = graph.nodes().iter().position(|n| matches!(n.what, What::Leaf(Source::RandomBase)));
        let traces = self.is_trace();
        let mut inputs = inputs.iter().copied();
        let mut all: Vec<Var<'s>> = Vec::with_capacity(graph.size());
        for node in graph.nodes() {
            let var = match &node.what {
                What::Leaf(Source::Input(_)) => inputs
                    .next()
                    .ok_or_else(|| Error::new("graph", ErrorKind::Internal { what: "too few inputs" }))?,
                What::Leaf(Source::RandomBase) => self.random_base()?,
                What::Leaf(source) => self.source(source, node.requires_grad)?,
                What::Op(op, ins) => {
                    let args: Vec<Var<'s>> = ins.iter().map(|v| all[v.0 as usize]).collect();
                    let draws = ins.iter().any(|v| Some(v.0 as usize) == base);
                    // A value that had its own gradient in the graph gets one here too.
                    let tracked = matches!(op, AnyOp::Reshape(Reshape { shape }) if *shape == graph.shape_of(ins[0]))
                        && node.requires_grad
                        && !args[0].requires_grad()?;
                    match (tracked, draws && traces) {
                        (true, _) => args[0].tracked()?,
                        // A trace has one base: that of its first call.
                        (_, true) => self.apply(later(op, first_call)?, &args)?,
                        _ => self.apply(op.clone(), &args)?,
                    }
                }
            };
            all.push(var);
        }
        self.seek_random(first_call.wrapping_add(graph.random_calls()));
        Ok(all)
    }

    /// The number of random calls so far: of the run in a trace, of now in an eager session.
    #[track_caller]
    fn random_base(&self) -> Result<Var<'_>> {
        let traced = match &mut self.state.borrow_mut().record {
            Record::Trace(graph) => Some(graph.random_base()),
            Record::Eager(_) | Record::Lent => None,
        };
        if let Some(base) = traced {
            return Ok(self.at(base));
        }
        let calls = self.random_calls();
        let words = Tensor::new(&[2], vec![calls as u32, (calls >> 32) as u32])?;
        self.leaf(
            "random base",
            Source::RandomBase,
            || AnyBuffer::upload_indices(&self.device, &words),
            false,
        )
    }

    /// A leaf of a graph, in this session.
    #[track_caller]
    fn source(&self, source: &Source, grad: bool) -> Result<Var<'_>> {
        match source {
            Source::Param(p) => self.param(p),
            Source::Nats(nats) => self.nats(nats),
            Source::Constant(value) => {
                let value = on(value, &self.device)?;
                self.leaf("constant", Source::Constant(value.clone()), || Ok(value), grad)
            }
            Source::State(value) => {
                // A copy would be right only now, not in later runs.
                if self.is_trace() {
                    self.device.check_accepts("buffer", value.buffer())?;
                }
                let value = on(value, &self.device)?;
                self.leaf("buffer", Source::State(value.clone()), || Ok(value), grad)
            }
            Source::Named(name, shape) => {
                self.leaf(name, source.clone(), || Err(unbound(name, *shape)), grad)
            }
            Source::Input(_) | Source::RandomBase => {
                Err(Error::new("replay", ErrorKind::Internal { what: "a leaf that is not fixed" }))
            }
        }
    }

    /// A session that continues recording a graph.
    #[doc(hidden)]
    pub fn resume(device: &Device, graph: Graph, seed: u64) -> Session {
        let calls = graph.random_calls();
        let leaf = |(id, node): (usize, &Node)| match &node.what {
            What::Leaf(Source::Param(p)) => {
                Some((p.id(), Leaf { param: p.clone(), id, version: p.version() }))
            }
            _ => None,
        };
        let leaves = graph.nodes().iter().enumerate().filter_map(leaf).collect();
        let options = Options { seed, ..Options::default() };
        let session = Session::with(device, Record::Trace(graph), options);
        session.state.borrow_mut().leaves = leaves;
        session.seek_random(calls);
        session
    }

    /// A handle's value. Errors unless it is of this session and epoch.
    #[doc(hidden)]
    #[track_caller]
    pub fn val(&self, op: &str, v: Var<'_>) -> Result<Val> {
        Ok(Val(self.check(op, v)? as u32))
    }

    /// The handle of a value.
    #[doc(hidden)]
    pub fn at(&self, v: Val) -> Var<'_> {
        self.var(v.0 as usize)
    }

    /// Takes the tape out of an eager session.
    #[doc(hidden)]
    pub fn into_tape(self) -> Option<Tape> {
        match self.state.into_inner().record {
            Record::Eager(tape) => Some(tape),
            Record::Trace(_) | Record::Lent => None,
        }
    }
}

/// A random op of a program as it is `calls` random calls later.
#[track_caller]
fn later(op: &AnyOp, calls: u64) -> Result<AnyOp> {
    let attrs = op.attrs().into_iter().map(|(name, value)| match value {
        Attr::Whole(n) if name == "counter" => (name.to_string(), Attr::Whole(n.wrapping_add(calls))),
        value => (name.to_string(), value),
    });
    AnyOp::from_name(op.name(), &Attrs(attrs.collect()))
}
