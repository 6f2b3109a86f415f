//! Replays a record and compares.

use super::record::{Chain, Entry, Record, RecordHead, StateHash};
use crate::error::Result;
use crate::io::Checkpoint;
use std::collections::BTreeMap;
use std::fmt;

/// The first thing that a replay computes otherwise than a record says.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// The step, counted from 1; 0 for what comes before the first.
    pub step: u64,
    /// What differs.
    pub what: String,
    /// What the record says.
    pub recorded: String,
    /// What was computed.
    pub computed: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { step, what, recorded, computed } = self;
        write!(f, "step {step}: {what} is {recorded} in the record and {computed} here")
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
    pub difference: Option<Difference>,
}

impl<'r> Checker<'r> {
    pub(super) fn new(record: &'r Record, states: &'r BTreeMap<u64, (String, StateHash)>) -> Checker<'r> {
        Checker { record, states, chain: None, difference: None }
    }

    /// Whether the state after a step is to be compared.
    pub(super) fn wants_state(&self, step: u64) -> bool {
        self.states.contains_key(&step) || self.record.has_state(step)
    }

    fn compare(&mut self, step: u64, what: &str, recorded: impl fmt::Display, computed: impl fmt::Display) {
        let (recorded, computed) = (recorded.to_string(), computed.to_string());
        if self.difference.is_none() && recorded != computed {
            self.difference = Some(Difference { step, what: what.into(), recorded, computed });
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
        let (what, [recorded, computed]) = match was.first_difference(here) {
            Some((name, sums)) => (format!("the sum of tensor {name}"), sums),
            // A receipt has no sums.
            None if was.tensors.is_empty() => ("the hash of the state".to_string(), roots),
            None => (
                "the state besides its tensors (steps, rates, random counter, what is frozen)".to_string(),
                roots,
            ),
        };
        let what = if of == "the record" { what } else { format!("{of}: {what}") };
        self.difference = Some(Difference { step, what, recorded, computed });
    }

    /// Compares a step.
    pub(super) fn step(&mut self, here: &Entry) {
        let step = here.step;
        if let Some(was) = self.record.entry(step) {
            let loss = |bits: u32| format!("{bits:08x} ({:?})", f32::from_bits(bits));
            self.compare(step, "the batch", &was.batch, &here.batch);
            self.compare(step, "the loss", loss(was.loss), loss(here.loss));
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
