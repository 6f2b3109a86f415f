//! Replays a record and compares.

use super::record::{Chain, Entry, Record, RecordHead, StateHash, words_of};
use crate::error::Result;
use crate::graph::{Graph, Source, What};
use crate::io::Checkpoint;
use crate::io::checkpoint::OPTIMIZER;
use crate::numerics::canonical_bits;
use crate::ops::Val;
use crate::optim::Optimizer;
use crate::params::Param;
use crate::shape::Shape;
use std::collections::BTreeMap;
use std::fmt;

/// What [`Difference::what`] is of a loss.
const LOSS: &str = "the loss";

/// The bits of a number, and the number.
pub(super) fn text(x: f32) -> String {
    format!("{:08x} ({x:?})", canonical_bits(x))
}

/// The first thing that a replay computes otherwise than a record says.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The step, counted from 1; 0 for what comes before the first.
    pub step: u64,
    /// What differs.
    pub what: String,
    /// The tensor that it is about, by its name in a checkpoint.
    pub tensor: Option<String>,
    /// What the record says.
    pub recorded: String,
    /// What was computed.
    pub computed: String,
    /// What computes it, as far as the program tells.
    pub op: Option<String>,
}

impl Difference {
    /// The first element of the first tensor, by name, whose bits are others in two states of one step.
    pub fn between(recorded: &Checkpoint, computed: &Checkpoint) -> Option<Difference> {
        let here: BTreeMap<String, (Shape, &[f32])> =
            words_of(computed).map(|(name, shape, words)| (name, (shape, words))).collect();
        let found = words_of(recorded).filter_map(|(name, shape, was)| {
            let (_, is) = here.get(&name).filter(|(other, _)| *other == shape)?;
            let i = was.iter().zip(*is).position(|(a, b)| canonical_bits(*a) != canonical_bits(*b))?;
            let what = format!("element {:?} of tensor {name}", shape.place(i));
            Some((name, what, text(was[i]), text(is[i])))
        });
        let (name, what, was, is) = found.min()?;
        let (step, tensor) = (computed.step, Some(name));
        Some(Difference { step, what, tensor, recorded: was, computed: is, op: None })
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { step, what, recorded, computed, op, .. } = self;
        write!(f, "step {step}: {what} is {recorded} in the record and {computed} here")?;
        op.as_ref().map_or(Ok(()), |op| write!(f, "; computed by {op}"))
    }
}

/// What a replay found.
#[derive(Clone, Debug)]
pub struct Verified {
    /// Steps that were computed again.
    pub steps: u64,
    /// The first difference, where the replay stopped.
    pub difference: Option<Difference>,
    /// The state at its end.
    pub state: Checkpoint,
}

/// Compares a run with its record.
pub(super) struct Checker<'r> {
    record: &'r Record,
    /// States to compare besides those of the record, by step, and what each is of.
    states: &'r BTreeMap<u64, (String, StateHash)>,
    /// The chained hash so far, of a receipt.
    chain: Option<Chain>,
    /// The program of the loss, and the parameters that it assigns its further outputs to.
    pub program: Option<(Graph, Vec<Param>)>,
    pub difference: Option<Difference>,
}

impl<'r> Checker<'r> {
    pub(super) fn new(record: &'r Record, states: &'r BTreeMap<u64, (String, StateHash)>) -> Checker<'r> {
        Checker { record, states, chain: None, program: None, difference: None }
    }

    /// Whether the state after a step is to be compared.
    pub(super) fn wants_state(&self, step: u64) -> bool {
        self.states.contains_key(&step) || self.record.has_state(step)
    }

    fn compare(&mut self, step: u64, what: &str, recorded: impl fmt::Display, computed: impl fmt::Display) {
        let (recorded, computed) = (recorded.to_string(), computed.to_string());
        if self.difference.is_none() && recorded != computed {
            let what = what.into();
            self.difference = Some(Difference { step, what, tensor: None, recorded, computed, op: None });
        }
    }

    /// Compares what the run is.
    pub(super) fn head(&mut self, here: &RecordHead) -> Result<()> {
        self.chain = self.record.chain_of_receipt(here.step)?;
        let was = self.record.head();
        let text = |program: &Option<String>| program.clone().unwrap_or("without a text".into());
        self.compare(here.step, "the data", &was.data.hash, &here.data.hash);
        self.compare(here.step, "the batch size", was.data.batch, here.data.batch);
        self.compare(here.step, "the number of shards", was.data.shards, here.data.shards);
        self.compare(here.step, "the seed of the batches", was.data.seed, here.data.seed);
        self.compare(here.step, "the seed", was.seed, here.seed);
        self.compare(here.step, "the program", text(&was.program), text(&here.program));
        Ok(())
    }

    /// Compares the state after a step.
    pub(super) fn state(&mut self, step: u64, here: &StateHash) {
        if let Some(was) = self.record.state(step) {
            self.state_with(step, "the record", &was, here);
        }
        if let Some((name, was)) = self.states.get(&step) {
            self.state_with(step, name, was, here);
        }
    }

    fn state_with(&mut self, step: u64, of: &str, was: &StateHash, here: &StateHash) {
        if was.root == here.root || self.difference.is_some() {
            return;
        }
        let roots = [&was.root, &here.root].map(String::clone);
        let first = was.first_difference(here);
        let tensor = first.as_ref().map(|(name, _)| name.clone());
        let (what, [recorded, computed]) = match first {
            Some((name, sums)) => (format!("the sum of tensor {name}"), sums),
            // A receipt has no sums.
            None if was.tensors.is_empty() => ("the hash of the state".to_string(), roots),
            None => (
                "the state besides its tensors (steps, rates, random counter, what is frozen)".to_string(),
                roots,
            ),
        };
        let what = if of == "the record" { what } else { format!("{of}: {what}") };
        self.difference = Some(Difference { step, what, tensor, recorded, computed, op: None });
    }

    /// The difference, with what computes it.
    pub(super) fn found(self, optimizer: &Optimizer) -> Option<Difference> {
        let mut found = self.difference?;
        if let Some((graph, assigned)) = self.program {
            found.op = match &found.tensor {
                Some(tensor) => writer(graph, &assigned, optimizer, tensor),
                None if found.what == LOSS => op_of(&graph, graph.outputs()[0]),
                None => None,
            };
        }
        Some(found)
    }

    /// Compares a step.
    pub(super) fn step(&mut self, here: &Entry) {
        let step = here.step;
        if let Some(was) = self.record.entry(step) {
            let loss = |bits: u32| format!("{bits:08x} ({:?})", f32::from_bits(bits));
            self.compare(step, "the batch", &was.batch, &here.batch);
            self.compare(step, LOSS, loss(was.loss), loss(here.loss));
            self.compare(step, "the random counter", was.random, here.random);
        }
        if let Some(state) = &here.state {
            self.state(step, state);
        }
        let Some(chain) = &mut self.chain else { return };
        *chain = chain.then(&here.text());
        let chain = chain.hex();
        if let Some((was, before)) = self.record.chained(step) {
            let what = format!("the chained hash of steps {} to {step}", before + 1);
            self.compare(step, &what, was, chain);
        }
    }
}

/// The op that computes a value, before it is only copied.
fn op_of(graph: &Graph, v: Val) -> Option<String> {
    match &graph.nodes().get(v.0 as usize)?.what {
        What::Op(op, ins) if ["copy", "detach", "reshape", "slice"].contains(&op.name()) => {
            op_of(graph, *ins.first()?)
        }
        What::Op(op, _) => Some(format!("op {}", op.name())),
        What::Leaf(_) => None,
    }
}

/// What writes a tensor of the state: the program, or the optimizer from a gradient.
fn writer(mut graph: Graph, assigned: &[Param], optimizer: &Optimizer, tensor: &str) -> Option<String> {
    let state = tensor.strip_prefix(OPTIMIZER).and_then(|state| state.rsplit_once('.'));
    let param = state.map_or(tensor, |(param, _)| param);
    if let Some(i) = assigned.iter().position(|p| p.name() == param) {
        return op_of(&graph, *graph.outputs().get(i + 1)?);
    }
    let leaf = graph.nodes().iter().position(|node| match &node.what {
        What::Leaf(Source::Param(p)) => p.name() == param && p.trainable(),
        _ => false,
    })?;
    let rule = format!("{:?}", optimizer.rule_of(param)?);
    let rule = rule.split(['(', ' ']).next().unwrap_or_default().to_lowercase();
    let loss = *graph.outputs().first()?;
    let gradient = graph.gradients(loss, &[Val(leaf as u32)]).ok()?.pop().flatten()?;
    let op = op_of(&graph, gradient)?;
    Some(format!("the optimizer's update ({rule}), from the gradient that {op} computes"))
}
