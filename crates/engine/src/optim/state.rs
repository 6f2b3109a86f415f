//! The state of an optimizer as named tensors, to be saved and restored.

use super::{Entry, Optimizer};
use crate::params::{Param, Params};
use dittograd_device::{AnyBuffer, Device};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::tensor::Tensor;
use std::collections::BTreeMap;

/// Everything an optimizer has learnt: with it and the parameters, training continues bit for bit. Options (rule, groups,
/// schedule, clipping) are not part of it, but for learning rates, which may have been set.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerState<T = f32> {
    /// Steps taken.
    pub step: u64,
    /// The learning rate, before the schedule.
    pub lr: f64,
    /// The rates of groups that have one of their own.
    pub group_lrs: Vec<Option<f64>>,
    /// State of each parameter that was updated, by its name.
    pub params: BTreeMap<String, ParamState<T>>,
}

/// The state of one parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamState<T = f32> {
    /// Updates of this parameter.
    pub step: u64,
    /// Tensors of the parameter's shape under the names PyTorch gives them, such as `exp_avg`.
    pub tensors: BTreeMap<String, Tensor<T>>,
}

impl OptimizerState {
    /// The same numbers, of another type.
    pub(crate) fn widened<T: Scalar>(self) -> OptimizerState<T> {
        let tensor = |(name, t): (String, Tensor<f32>)| (name, t.map(T::from_f32));
        let param = |(name, p): (String, ParamState)| {
            (name, ParamState { step: p.step, tensors: p.tensors.into_iter().map(tensor).collect() })
        };
        let OptimizerState { step, lr, group_lrs, params } = self;
        OptimizerState { step, lr, group_lrs, params: params.into_iter().map(param).collect() }
    }
}

/// The most steps that a state may count.
const MOST_STEPS: u64 = 1 << 53;

impl Optimizer {
    /// The state as host tensors. Waits for the device. Numbers of a device of another type than float32 are kept if `T`
    /// is that type.
    pub fn state<T: Scalar>(&self) -> Result<OptimizerState<T>> {
        let mut state = self.counters();
        for (param, name, value) in self.states() {
            if let Some(of) = state.params.get_mut(param) {
                of.tensors.insert(name.to_string(), value.to_tensor()?);
            }
        }
        Ok(state)
    }

    /// The state without its tensors.
    #[doc(hidden)]
    pub fn counters<T: Scalar>(&self) -> OptimizerState<T> {
        let fresh = |e: &Entry| (e.name.clone(), ParamState { step: e.step, tensors: BTreeMap::new() });
        OptimizerState {
            step: self.step,
            lr: self.options.lr,
            group_lrs: self.groups.iter().map(|g| g.own_lr()).collect(),
            params: self.updated().map(fresh).collect(),
        }
    }

    /// The tensors of the state where they are: the parameter's name, the tensor's and its value.
    #[doc(hidden)]
    pub fn states(&self) -> impl Iterator<Item = (&str, &'static str, &AnyBuffer)> {
        self.updated().flat_map(|e| {
            e.kind.states().iter().zip(&e.states).map(|(name, state)| (e.name.as_str(), *name, state))
        })
    }

    /// The parameters that were updated.
    fn updated(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values().filter(|e| e.step > 0)
    }

    /// Continues from a state, whose parameters are found by name. A parameter that the state does not name starts
    /// anew. Errors, before anything is changed, if the state is not one of this rule and these parameters.
    pub fn load_state<T: Scalar>(&mut self, params: &Params, state: &OptimizerState<T>) -> Result<()> {
        self.load(params.device(), &params.iter().collect::<Vec<_>>(), state)
    }

    pub(crate) fn load<T: Scalar>(
        &mut self,
        device: &Device,
        params: &[&Param],
        state: &OptimizerState<T>,
    ) -> Result<()> {
        let wrong = |why: String| Err(Error::argument("optimizer", "state", why));
        self.register(params)?;
        if state.group_lrs.len() != self.groups.len() {
            let (want, got) = (self.groups.len(), state.group_lrs.len());
            return wrong(format!("it has {got} groups, the optimizer has {want}"));
        }
        let rates = state.group_lrs.iter().copied().chain([Some(state.lr)]).flatten();
        if let Some(rate) = rates.into_iter().find(|r| !r.is_finite()) {
            return wrong(format!("it has a learning rate of {rate}"));
        }
        if let Some(name) = state.params.keys().find(|n| !params.iter().any(|p| p.name() == **n)) {
            return wrong(format!("there is no parameter `{name}`"));
        }
        // So many steps that one more cannot be counted were not made.
        let steps = state.params.values().map(|p| p.step).chain([state.step]).max();
        if let Some(steps) = steps.filter(|s| *s > MOST_STEPS) {
            return wrong(format!("it counts {steps} steps, more than {MOST_STEPS}"));
        }
        for p in params {
            let Some(saved) = state.params.get(p.name()) else { continue };
            let want = self.entry(p)?.kind.states();
            if saved.tensors.len() != want.len() || want.iter().any(|n| !saved.tensors.contains_key(*n)) {
                let got: Vec<&String> = saved.tensors.keys().collect();
                let name = p.name();
                let what = "load it into an optimizer of the rule it was saved from";
                return wrong(format!("parameter {name} has {got:?}, its rule has {want:?}: {what}"));
            }
            if let Some(t) = saved.tensors.values().find(|t| t.shape() != p.shape()) {
                let why = "the state has another shape than the parameter";
                let kind = ErrorKind::Shapes { why, left: t.shape(), right: p.shape() };
                return Err(Error::new(format!("parameter {}", p.name()), kind));
            }
        }
        // All memory is taken before the first old number goes.
        let saved = |p: &&Param| state.params.contains_key(p.name());
        self.make_states(device, &params.iter().copied().filter(saved).collect::<Vec<_>>())?;
        for p in params {
            let Some(entry) = self.entries.get_mut(&p.id()) else { continue };
            let saved = state.params.get(p.name());
            for (name, s) in entry.kind.states().iter().zip(&entry.states) {
                match (saved.and_then(|saved| saved.tensors.get(*name)), &entry.part) {
                    (Some(t), None) => s.assign("optimizer", t)?,
                    (Some(t), Some(part)) => {
                        let part = Tensor::with_shape(s.shape(), t.data()[part.clone()].to_vec())?;
                        s.assign("optimizer", &part)?;
                    }
                    (None, _) => s.assign("optimizer", &Tensor::full(s.shape(), entry.rule.initial()))?,
                }
            }
            entry.step = saved.map_or(0, |s| s.step);
        }
        self.step = state.step;
        self.options.lr = state.lr;
        for (group, lr) in self.groups.iter_mut().zip(&state.group_lrs) {
            group.set_own_lr(*lr);
        }
        Ok(())
    }
}
