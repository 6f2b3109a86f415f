//! Steps that are computed twice, to find faults of the hardware while a run goes on.
//!
//! A checked step begins from a state of which there is a copy on the device. It is computed as always, then again from the copy by
//! the other way: op by op if the run is compiled, compiled if it is not. Both have the same bits, by other kernels in other memory. If
//! they do not, something was computed or kept wrong, and the step is repeated from the copy until both ways agree.

use super::record::StateHash;
use super::step::{How, Loss, Stepper};
use super::verify::text;
use crate::data::Samples;
use crate::device::AnyBuffer;
use crate::error::{Error, ErrorKind, Result};
use crate::numerics::canonical_bits;
use crate::optim::{KeptState, keep_values};
use crate::params::Params;
use std::fmt;
use std::rc::Rc;

/// Most tries of a step, and most faults of a run.
const MOST_TRIES: u64 = 3;
const MOST_FAULTS: u64 = 10;

/// Why a state cannot be gone back to.
const LOST: &str = "the state before it is lost, since its copy has changed too";

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

/// The values of parameters.
fn values(params: &Params) -> Vec<AnyBuffer> {
    params.iter().map(|p| p.buffer()).collect()
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

/// The run's own way to compute a step, and how a fault is reported.
pub(super) struct Checked<'c, 'a> {
    pub params: &'c Params,
    pub stepper: &'c mut Stepper<'a>,
    /// The step, counted from 1.
    pub step: u64,
    pub tell: &'c mut dyn FnMut(&Fault) -> Result<()>,
}

/// The hash of the state that a way to compute steps has arrived at.
fn hash_of(params: &Params, way: &Stepper<'_>) -> Result<StateHash> {
    StateHash::current(params, way.optimizer(), way.random_calls())
}

impl Paranoid<'_> {
    /// Makes a step by both ways, as often as it takes until they agree. Returns the losses of all steps since they were last read.
    #[track_caller]
    pub(super) fn step(&mut self, mut run: Checked<'_, '_>, batch: &Samples) -> Result<Vec<f32>> {
        let (params, step) = (run.params, run.step);
        let current = self.look_at_rest(&mut run)?;
        let before = &mut self.before;
        keep_values(&mut before.params, &values(params))?;
        run.stepper.optimizer().keep(&mut before.optimizer)?;
        (before.random_calls, before.hash) = (run.stepper.random_calls(), current);
        let mut earlier = None;
        for tries in 1.. {
            run.stepper.step(params, batch, true)?;
            let mut losses = run.stepper.losses()?;
            let loss = losses.pop().unwrap_or(f32::NAN);
            let earlier = earlier.get_or_insert(losses);
            let one = hash_of(params, run.stepper)?;
            keep_values(&mut self.after, &values(params))?;
            let Paranoid { other, before, after, ways, .. } = &mut *self;
            put_back(params, &before.params)?;
            other.go_back(params, &before.optimizer, before.random_calls)?;
            other.step(params, batch, true)?;
            let again = other.losses()?.last().copied().unwrap_or(f32::NAN);
            let two = hash_of(params, other)?;
            if canonical_bits(loss) == canonical_bits(again) && one == two {
                self.agreed = Some((step, two));
                earlier.push(loss);
                return Ok(std::mem::take(earlier));
            }
            let fault = if one == two {
                let found = [(ways[0], text(loss)), (ways[1], text(again))];
                Fault { step, what: "the loss".into(), tensor: None, found }
            } else {
                let now = values(params);
                let by_one = |name: &str| tensor_of(params, after, run.stepper, name);
                let by_two = |name: &str| tensor_of(params, &now, other, name);
                Paranoid::difference(step, *ways, [&one, &two], [&by_one, &by_two])?
            };
            put_back(params, &before.params)?;
            run.stepper.go_back(params, &before.optimizer, before.random_calls)?;
            if hash_of(params, run.stepper)? != before.hash {
                return Err(broken(step, LOST, &fault));
            }
            self.found(&mut run, fault, tries)?;
        }
        Err(Error::new("train", ErrorKind::Internal { what: "a step without an end" }))
    }

    /// The hash of the state before a step, which must be that after the step before if that was checked. If memory has changed since, it gets back
    /// what was there.
    fn look_at_rest(&mut self, run: &mut Checked<'_, '_>) -> Result<StateHash> {
        let (params, step) = (run.params, run.step);
        let current = hash_of(params, run.stepper)?;
        let Some(agreed) = self.agreed_at(step - 1).filter(|agreed| **agreed != current).cloned() else {
            return Ok(current);
        };
        let now = values(params);
        let was = |name: &str| tensor_of(params, &self.after, &self.other, name);
        let is = |name: &str| tensor_of(params, &now, run.stepper, name);
        let ways = ["after the step before", "in memory now"];
        let fault = Paranoid::difference(step, ways, [&agreed, &current], [&was, &is])?;
        let mut kept = KeptState::default();
        self.other.optimizer().keep(&mut kept)?;
        put_back(params, &self.after)?;
        run.stepper.go_back(params, &kept, self.other.random_calls())?;
        if hash_of(params, run.stepper)? != agreed {
            return Err(broken(step, LOST, &fault));
        }
        self.found(run, fault, 1)?;
        Ok(agreed)
    }

    /// Reports a fault, and ends the run if there were too many.
    fn found(&mut self, run: &mut Checked<'_, '_>, fault: Fault, tries: u64) -> Result<()> {
        self.faults += 1;
        (run.tell)(&fault)?;
        if tries >= MOST_TRIES {
            return Err(broken(fault.step, &format!("it differs in {tries} tries of {MOST_TRIES}"), &fault));
        }
        if self.faults >= MOST_FAULTS {
            return Err(broken(fault.step, &format!("this is fault {MOST_FAULTS} of the run"), &fault));
        }
        Ok(())
    }
}
