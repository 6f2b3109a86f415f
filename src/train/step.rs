//! Training steps, eager or compiled, with the same bits.

use crate::data::Samples;
use crate::device::{AnyBuffer, Buffer};
use crate::error::Result;
use crate::graph::{Batch, TrainStep};
use crate::io::checkpoint::OPTIMIZER;
use crate::io::{Checkpoint, RandomState};
use crate::optim::{KeptState, Optimizer};
use crate::parallel::World;
use crate::params::Params;
use dittograd_engine::sharded::{EagerShards, Stepped};
use std::convert::Infallible;
use std::ops::Range;
use std::rc::Rc;

pub(super) use dittograd_engine::compiled::Together;
pub(super) use dittograd_engine::sharded::Loss;

/// How steps are executed.
pub(super) enum Stepper<'a> {
    Eager { step: Box<EagerShards>, loss: Rc<Loss<'a>>, losses: Vec<f32>, keeps_losses: bool },
    Compiled { step: Box<TrainStep<Box<Loss<'a>>>> },
}

/// A step that is to be made: with what, of which parameters, on which batch, and whether its losses are read.
pub(super) type Due<'r, 'a> = (&'r mut Stepper<'a>, &'r Params, &'r Samples, bool);

/// Makes a step of several runs, compiled ones at once and the others in turn, and reads losses where they are wanted.
#[track_caller]
pub(super) fn together(all: &mut Together, steps: &mut [Due<'_, '_>]) -> Vec<Result<Option<Vec<f32>>>> {
    let inputs: Vec<[Batch<'_>; 2]> = steps.iter().map(|(_, _, (x, y), _)| [x.into(), y.into()]).collect();
    let mut made: Vec<Option<Result<()>>> = Vec::new();
    let mut compiled = Vec::new();
    for ((stepper, params, batch, wants_losses), inputs) in steps.iter_mut().zip(&inputs) {
        made.push(match stepper {
            Stepper::Compiled { step } => {
                compiled.push((&mut **step, &inputs[..]));
                None
            }
            eager => Some(eager.step(params, batch, *wants_losses)),
        });
    }
    let mut compiled = all.run(&mut compiled).into_iter();
    let made: Vec<Result<()>> =
        made.into_iter().filter_map(|made| made.or_else(|| compiled.next())).collect();
    let mut reading = Vec::new();
    let mut read = Vec::new();
    for ((stepper, .., wants_losses), made) in steps.iter_mut().zip(made) {
        read.push(match (stepper, made) {
            (_, Err(error)) => Some(Err(error)),
            (_, Ok(())) if !*wants_losses => Some(Ok(None)),
            (Stepper::Compiled { step }, Ok(())) => {
                reading.push(&mut **step);
                None
            }
            (eager, Ok(())) => Some(eager.losses().map(Some)),
        });
    }
    let mut losses = all.losses(&mut reading).into_iter().map(|losses| losses.map(Some));
    read.into_iter().filter_map(|read| read.or_else(|| losses.next())).collect()
}

/// What a run computes in, besides its model.
#[derive(Clone)]
pub(super) struct How {
    pub seed: u64,
    pub is_eager: bool,
    pub shards: usize,
    pub world: Option<World>,
    /// Losses that are kept until they are read; without it only the last one is.
    pub kept_losses: Option<usize>,
    /// Whether norms of gradients are read.
    pub has_norms: bool,
}

impl<'a> Stepper<'a> {
    #[track_caller]
    pub(super) fn new(
        params: &Params,
        optimizer: Optimizer,
        loss: Rc<Loss<'a>>,
        how: How,
    ) -> Result<Stepper<'a>> {
        if how.is_eager {
            let mut step = EagerShards::new(params, optimizer, how.seed, how.shards, how.world)?;
            if how.has_norms {
                step.keep_gradient_norms();
            }
            let keeps_losses = how.kept_losses.is_some();
            return Ok(Stepper::Eager { step: Box::new(step), loss, losses: Vec::new(), keeps_losses });
        }
        let loss: Box<Loss<'a>> = Box::new(move |v| loss(v));
        let mut step = TrainStep::new(params, optimizer, loss).seeded(how.seed).shards(how.shards);
        if let Some(world) = &how.world {
            step = step.world(world);
        }
        if let Some(most) = how.kept_losses {
            step = step.keep_losses(most);
        }
        if how.has_norms {
            step = step.with_gradient_norms();
        }
        Ok(Stepper::Compiled { step: Box::new(step) })
    }

    pub(super) fn optimizer(&self) -> &Optimizer {
        match self {
            Stepper::Eager { step, .. } => step.optimizer(),
            Stepper::Compiled { step } => step.optimizer(),
        }
    }

    /// The shards that this process computes.
    #[track_caller]
    pub(super) fn my_shards(&mut self) -> Result<Range<usize>> {
        match self {
            Stepper::Eager { step, .. } => Ok(step.shards().mine()),
            Stepper::Compiled { step } => step.my_shards(),
        }
    }

    /// Makes a step on the rows of this process's shards. `wants_losses` says whether [`Stepper::losses`] is called before the next.
    #[track_caller]
    pub(super) fn step(&mut self, params: &Params, (x, y): &Samples, wants_losses: bool) -> Result<()> {
        match self {
            Stepper::Eager { step, loss, losses, keeps_losses } => {
                let (inputs, wants) = ([x.clone(), y.clone()], wants_losses || *keeps_losses);
                match step.step(params, loss.as_ref(), &inputs, wants, |_| Ok(None::<Infallible>))? {
                    Stepped::Done(last) => losses.extend(last),
                    Stepped::Found(never) => match never {},
                }
                Ok(())
            }
            Stepper::Compiled { step } => step.run_mine(&[x.into(), y.into()]),
        }
    }

    /// The losses of all steps since they were last read if they are kept, else the last one. Waits for the device.
    #[track_caller]
    pub(super) fn losses(&mut self) -> Result<Vec<f32>> {
        match self {
            Stepper::Eager { losses, .. } => Ok(std::mem::take(losses)),
            Stepper::Compiled { step } => step.unread_losses(None),
        }
    }

    /// The norm of the gradient of each parameter in the last step. Waits for the device.
    #[track_caller]
    pub(super) fn gradient_norms(&self) -> Result<Vec<(String, f32)>> {
        match self {
            Stepper::Eager { step, .. } => step.gradient_norms(),
            Stepper::Compiled { step } => step.gradient_norms(),
        }
    }

    /// The tensor of the optimizer's state that has this name in a checkpoint.
    pub(super) fn state_named(&self, name: &str) -> Option<AnyBuffer> {
        let name = name.strip_prefix(OPTIMIZER)?;
        let is_it = |param: &str, state: &str| {
            name.strip_prefix(param).and_then(|rest| rest.strip_prefix('.')) == Some(state)
        };
        let mut states = self.optimizer().states();
        states.find(|(param, state, _)| is_it(param, state)).map(|(.., value)| value.clone())
    }

    /// Goes back to a state that was kept of this optimizer or a twin. The caller puts the parameters back.
    #[track_caller]
    pub(super) fn go_back(&mut self, params: &Params, kept: &KeptState, random_calls: u64) -> Result<()> {
        match self {
            Stepper::Eager { step, .. } => step.go_back(params, kept, random_calls),
            Stepper::Compiled { step } => step.go_back(params, kept, random_calls),
        }
    }

    /// Random calls so far.
    pub(super) fn random_calls(&self) -> u64 {
        match self {
            Stepper::Eager { step, .. } => step.session().random_calls(),
            Stepper::Compiled { step } => step.random_calls(),
        }
    }

    /// The optimizer, after the last step.
    pub(super) fn into_optimizer(self) -> Optimizer {
        match self {
            Stepper::Eager { step, .. } => step.into_optimizer(),
            Stepper::Compiled { step } => step.into_optimizer(),
        }
    }

    /// Memory that is unused between two steps.
    pub(super) fn workspace(&self) -> Option<Buffer> {
        match self {
            Stepper::Eager { .. } => None,
            Stepper::Compiled { step } => step.arena().cloned(),
        }
    }

    /// Puts its state into a checkpoint. All processes of a run call it, and the first gets the state.
    #[track_caller]
    pub(super) fn take(&self, checkpoint: &mut Checkpoint) -> Result<()> {
        match self {
            Stepper::Eager { step, .. } => {
                checkpoint.random = RandomState::of(step.session());
                checkpoint.take(step.as_ref())
            }
            Stepper::Compiled { step } => checkpoint.take(step.as_ref()),
        }
    }

    /// Goes on from a checkpoint.
    #[track_caller]
    pub(super) fn restore(&mut self, params: &Params, checkpoint: &Checkpoint) -> Result<()> {
        match self {
            Stepper::Eager { step, .. } => {
                checkpoint.random.check("session", step.session().seed(), "Trainer::seed")?;
                checkpoint.restore(params, step.as_mut())?;
                checkpoint.random.restore(step.session())
            }
            Stepper::Compiled { step } => checkpoint.restore(params, step.as_mut()),
        }
    }
}
