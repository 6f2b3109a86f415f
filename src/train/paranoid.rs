//! Steps that are computed twice, to find faults of the hardware while a run goes on.
//!
//! A checked step begins from a state of which there is a copy on the device. It is computed as always, then again from the copy by
//! the other way: op by op if the run is compiled, compiled if it is not. Both have the same bits, by other kernels in other memory. If
//! they do not, something was computed or kept wrong, and the step is repeated from the copy until both ways agree.

use super::record::StateHash;
use super::run::Run;
use super::step::{How, Loss, Stepper};
use crate::data::Samples;
use crate::device::AnyBuffer;
use crate::error::{Error, ErrorKind, Result};
use crate::numerics::canonical_bits;
use crate::optim::KeptState;
use crate::params::Params;
use std::fmt;
use std::rc::Rc;

/// Most tries of a step, and most faults of a run.
const MOST_TRIES: u64 = 3;
const MOST_FAULTS: u64 = 10;

/// A fault of the hardware: what must be the same twice was not.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Fault {
    /// The step, counted from 1.
    pub step: u64,
    /// What differs: the loss, an element of a tensor, or what else is in the state.
    pub what: String,
    /// The tensor that it is about, by its name in a checkpoint.
    pub tensor: Option<String>,
    /// Two ways to the same bits, and what came out of each.
    pub found: [(&'static str, String); 2],
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [(one, a), (other, b)] = &self.found;
        write!(f, "{} is {a} {one} and {b} {other}", self.what)
    }
}

/// A state of a run, on the device.
#[derive(Default)]
struct Kept {
    params: Vec<AnyBuffer>,
    optimizer: KeptState,
    random_calls: u64,
    hash: StateHash,
}

/// Copies the parameters, into the memory that `kept` has.
fn keep(params: &Params, kept: &mut Vec<AnyBuffer>) -> Result<()> {
    if kept.is_empty() {
        *kept = params.iter().map(|p| p.buffer().copy()).collect::<Result<_>>()?;
        return Ok(());
    }
    params.iter().zip(kept).try_for_each(|(p, kept)| kept.copy_from("paranoid", &p.buffer()))
}

/// Gives the parameters back what they were.
fn put_back(params: &Params, kept: &[AnyBuffer]) -> Result<()> {
    params.iter().zip(kept).try_for_each(|(p, kept)| p.set_from(kept))
}

/// The tensors of a state by their names.
type Named<'t> = &'t dyn Fn(&str) -> Option<AnyBuffer>;

/// What the check of steps needs.
pub(super) struct Paranoid<'a> {
    every: u64,
    /// The other way to compute a step.
    other: Stepper<'a>,
    /// What the ways are called.
    ways: [&'static str; 2],
    /// The state before the step.
    before: Kept,
    /// The parameters after the run's own way.
    after: Vec<AnyBuffer>,
    /// The last state that both ways agreed on, and how many steps were done.
    agreed: Option<(u64, StateHash)>,
    /// Faults so far.
    pub faults: u64,
}

impl<'a> Paranoid<'a> {
    /// A check of every `every`-th step of a run that computes them by `stepper`.
    #[track_caller]
    pub(super) fn new(
        every: u64,
        params: &Params,
        stepper: &Stepper<'a>,
        loss: Rc<Loss<'a>>,
        how: How,
    ) -> Result<Paranoid<'a>> {
        let ways = if how.is_eager { ["op by op", "compiled"] } else { ["compiled", "op by op"] };
        let how = How { is_eager: !how.is_eager, kept_losses: None, has_norms: false, ..how };
        let other = Stepper::new(params, stepper.optimizer().twin(), loss, how)?;
        let (before, after) = (Kept::default(), Vec::new());
        Ok(Paranoid { every, other, ways, before, after, agreed: None, faults: 0 })
    }

    /// Whether a step is checked.
    pub(super) fn checks(&self, step: u64) -> bool {
        step.is_multiple_of(self.every)
    }

    /// The hash of the state after `step`, if it was found.
    pub(super) fn agreed_at(&self, step: u64) -> Option<&StateHash> {
        self.agreed.as_ref().filter(|(at, _)| *at == step).map(|(_, hash)| hash)
    }

    /// The first element of the first tensor by name that differs between two states, of which `tensors` are the tensors.
    fn difference(
        step: u64,
        ways: [&'static str; 2],
        [a, b]: [&StateHash; 2],
        tensors: [Named<'_>; 2],
    ) -> Result<Fault> {
        let fault = |what, tensor, values: [String; 2]| {
            let [one, other] = values;
            Fault { step, what, tensor, found: [(ways[0], one), (ways[1], other)] }
        };
        let Some((name, sums)) = a.first_difference(b) else {
            let what = "the hash of what is in the state besides tensors".to_string();
            return Ok(fault(what, None, [a.root.clone(), b.root.clone()]));
        };
        if let [Some(one), Some(other)] = tensors.map(|of| of(&name)) {
            let shape = one.shape();
            let words = [one.buffer().download()?, other.buffer().download()?];
            let differ = |(a, b): (&f32, &f32)| canonical_bits(*a) != canonical_bits(*b);
            if let Some(i) = words[0].iter().zip(&words[1]).position(differ) {
                let what = format!("element {:?} of tensor {name}", shape.place(i));
                let text = |x: f32| format!("{:08x} ({x:?})", canonical_bits(x));
                return Ok(fault(what, Some(name), [text(words[0][i]), text(words[1][i])]));
            }
        }
        Ok(fault(format!("the sum of tensor {name}"), Some(name), sums))
    }
}

/// The tensor of a state by its name in a checkpoint, of these parameters and this way's optimizer.
fn tensor_of(params: &Params, values: &[AnyBuffer], way: &Stepper<'_>, name: &str) -> Option<AnyBuffer> {
    let param = params.iter().position(|p| p.name() == name);
    param.and_then(|i| values.get(i).cloned()).or_else(|| way.state_named(name))
}

/// The error of a run that cannot go on.
#[cold]
fn broken(step: u64, why: &str, fault: &Fault) -> Error {
    let why = format!(
        "step {step}: {why}: {fault}; the hardware computes wrongly: check memory, clocks and temperature, and resume the run on \
         another machine"
    );
    Error::new("train", ErrorKind::Hardware { why })
}

impl<'a> Run<'a> {
    /// Makes the next step by both ways, as often as it takes until they agree. Returns the losses of all steps since they were last read.
    #[track_caller]
    pub(super) fn step_twice(&mut self, check: &mut Paranoid<'a>, batch: &Samples) -> Result<Vec<f32>> {
        let (params, step) = (self.params, self.step + 1);
        let current = self.look_at_rest(check, step)?;
        let before = &mut check.before;
        keep(params, &mut before.params)?;
        self.stepper.optimizer().keep(&mut before.optimizer)?;
        (before.random_calls, before.hash) = (self.stepper.random_calls(), current);
        let mut earlier = None;
        for tries in 1.. {
            self.stepper.step(params, batch, true)?;
            let mut losses = self.stepper.losses()?;
            let loss = losses.pop().unwrap_or(f32::NAN);
            let earlier = earlier.get_or_insert(losses);
            let one = StateHash::current(params, self.stepper.optimizer(), self.stepper.random_calls())?;
            keep(params, &mut check.after)?;
            let Paranoid { other, before, after, ways, .. } = &mut *check;
            put_back(params, &before.params)?;
            other.go_back(params, &before.optimizer, before.random_calls)?;
            other.step(params, batch, true)?;
            let again = other.losses()?.last().copied().unwrap_or(f32::NAN);
            let two = StateHash::current(params, other.optimizer(), other.random_calls())?;
            let bits = [loss, again].map(canonical_bits);
            if bits[0] == bits[1] && one == two {
                check.agreed = Some((step, two));
                earlier.push(loss);
                return Ok(std::mem::take(earlier));
            }
            let fault = if one == two {
                let text = |x: f32| format!("{:08x} ({x:?})", canonical_bits(x));
                let found = [(ways[0], text(loss)), (ways[1], text(again))];
                Fault { step, what: "the loss".into(), tensor: None, found }
            } else {
                let now: Vec<AnyBuffer> = params.iter().map(|p| p.buffer()).collect();
                let by_one = |name: &str| tensor_of(params, after, &self.stepper, name);
                let by_two = |name: &str| tensor_of(params, &now, other, name);
                Paranoid::difference(step, *ways, [&one, &two], [&by_one, &by_two])?
            };
            put_back(params, &before.params)?;
            self.stepper.go_back(params, &before.optimizer, before.random_calls)?;
            let back = StateHash::current(params, self.stepper.optimizer(), self.stepper.random_calls())?;
            if back != before.hash {
                return Err(broken(
                    step,
                    "the state before it is lost, since its copy has changed too",
                    &fault,
                ));
            }
            self.found(check, fault, tries)?;
        }
        Err(Error::new("train", ErrorKind::Internal { what: "a step without an end" }))
    }

    /// The hash of the state before a step, which must be that after the step before if that was checked. If memory has changed since, it gets back
    /// what was there.
    fn look_at_rest(&mut self, check: &mut Paranoid<'a>, step: u64) -> Result<StateHash> {
        let params = self.params;
        let hash = |way: &Stepper<'_>| StateHash::current(params, way.optimizer(), way.random_calls());
        let current = hash(&self.stepper)?;
        let Some(agreed) = check.agreed_at(step - 1).filter(|agreed| **agreed != current).cloned() else {
            return Ok(current);
        };
        let now: Vec<AnyBuffer> = params.iter().map(|p| p.buffer()).collect();
        let was = |name: &str| tensor_of(params, &check.after, &check.other, name);
        let is = |name: &str| tensor_of(params, &now, &self.stepper, name);
        let ways = ["after the step before", "in memory now"];
        let fault = Paranoid::difference(step, ways, [&agreed, &current], [&was, &is])?;
        let mut kept = KeptState::default();
        check.other.optimizer().keep(&mut kept)?;
        put_back(params, &check.after)?;
        self.stepper.go_back(params, &kept, check.other.random_calls())?;
        if hash(&self.stepper)? != agreed {
            return Err(broken(step, "the state before it is lost, since its copy has changed too", &fault));
        }
        self.found(check, fault, 1)?;
        Ok(agreed)
    }

    /// Reports a fault, and ends the run if there were too many.
    fn found(&mut self, check: &mut Paranoid<'a>, fault: Fault, tries: u64) -> Result<()> {
        check.faults += 1;
        self.tell_fault(&fault)?;
        if tries >= MOST_TRIES {
            return Err(broken(fault.step, &format!("it differs in {tries} tries of {MOST_TRIES}"), &fault));
        }
        if check.faults >= MOST_FAULTS {
            return Err(broken(fault.step, &format!("this is fault {MOST_FAULTS} of the run"), &fault));
        }
        Ok(())
    }
}
