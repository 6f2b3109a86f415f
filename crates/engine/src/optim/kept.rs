//! The state of an optimizer, kept on the device to go back to.

use super::Optimizer;
use crate::params::{Param, Params};
use dittograd_device::AnyBuffer;
use dittograd_numerics::error::Result;
use dittograd_numerics::tensor::Tensor;
use std::collections::BTreeMap;

/// The state of an optimizer at some step: its counters, and copies of its tensors on the device.
#[doc(hidden)]
#[derive(Default)]
pub struct KeptState {
    step: u64,
    /// By parameter: its updates, and the tensors.
    params: BTreeMap<u64, (u64, Vec<AnyBuffer>)>,
}

/// Copies values over those that were kept before, or keeps new copies.
#[doc(hidden)]
#[track_caller]
pub fn keep_values(kept: &mut Vec<AnyBuffer>, values: &[AnyBuffer]) -> Result<()> {
    if kept.len() != values.len() {
        *kept = values.iter().map(AnyBuffer::copy).collect::<Result<_>>()?;
        return Ok(());
    }
    kept.iter().zip(values).try_for_each(|(to, from)| to.copy_from("keep", from))
}

impl Optimizer {
    /// Another optimizer of the same rules and rates, without a state.
    #[doc(hidden)]
    pub fn twin(&self) -> Optimizer {
        Optimizer {
            options: self.options,
            groups: self.groups.clone(),
            schedule: self.schedule.clone(),
            clip_norm: self.clip_norm,
            clip_value: self.clip_value,
            step: 0,
            entries: BTreeMap::new(),
            hypers: Vec::new(),
            words: Vec::new(),
            buffer: None,
        }
    }

    /// Keeps the state, in the memory that `kept` has if it fits.
    #[doc(hidden)]
    #[track_caller]
    pub fn keep(&self, kept: &mut KeptState) -> Result<()> {
        kept.step = self.step;
        kept.params.retain(|id, _| self.entries.contains_key(id));
        for (id, entry) in &self.entries {
            let (step, tensors) = kept.params.entry(*id).or_default();
            *step = entry.step;
            keep_values(tensors, &entry.states)?;
        }
        Ok(())
    }

    /// Goes back to a state of this optimizer or of a twin.
    #[doc(hidden)]
    #[track_caller]
    pub fn go_back(&mut self, params: &Params, kept: &KeptState) -> Result<()> {
        let mut all: Vec<&Param> = params.iter().collect();
        self.register(&all)?;
        all.retain(|p| kept.params.get(&p.id()).is_some_and(|(_, tensors)| !tensors.is_empty()));
        self.make_states(params.device(), &all)?;
        for (id, entry) in &mut self.entries {
            let (step, tensors) = kept.params.get(id).map_or((0, &[][..]), |(step, t)| (*step, &t[..]));
            entry.step = step;
            for (i, state) in entry.states.iter().enumerate() {
                match tensors.get(i) {
                    Some(tensor) => state.copy_from("optimizer", tensor)?,
                    None => state.assign("optimizer", &Tensor::full(state.shape(), entry.rule.initial()))?,
                }
            }
        }
        self.step = kept.step;
        Ok(())
    }
}
