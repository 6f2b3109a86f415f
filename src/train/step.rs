//! Training steps, eager or compiled, with the same bits.

use crate::device::Buffer;
use crate::error::Result;
use crate::graph::TrainStep;
use crate::io::{Checkpoint, RandomState};
use crate::optim::Optimizer;
use crate::parallel::World;
use crate::params::Params;
use crate::tensor::AnyTensor;
use dittograd_engine::sharded::{EagerShards, Stepped};
use std::convert::Infallible;
use std::ops::Range;
use std::rc::Rc;

pub(super) use dittograd_engine::sharded::Loss;

/// How steps are executed.
pub(super) enum Stepper<'a> {
    Eager { step: Box<EagerShards>, loss: Rc<Loss<'a>> },
    Compiled(Box<TrainStep<Box<Loss<'a>>>>),
}

/// What a run computes in, besides its model.
pub(super) struct How {
    pub seed: u64,
    pub is_eager: bool,
    pub shards: usize,
    pub world: Option<World>,
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
            let step = EagerShards::new(params, optimizer, how.seed, how.shards, how.world)?;
            return Ok(Stepper::Eager { step: Box::new(step), loss });
        }
        let loss: Box<Loss<'a>> = Box::new(move |v| loss(v));
        let step = TrainStep::new(params, optimizer, loss).seeded(how.seed).shards(how.shards);
        Ok(Stepper::Compiled(Box::new(match how.world {
            Some(world) => step.world(&world),
            None => step,
        })))
    }

    pub(super) fn optimizer(&self) -> &Optimizer {
        match self {
            Stepper::Eager { step, .. } => step.optimizer(),
            Stepper::Compiled(step) => step.optimizer(),
        }
    }

    /// The shards that this process computes.
    #[track_caller]
    pub(super) fn my_shards(&mut self) -> Result<Range<usize>> {
        match self {
            Stepper::Eager { step, .. } => Ok(step.shards().mine()),
            Stepper::Compiled(step) => step.my_shards(),
        }
    }

    /// Makes a step on the rows of this process's shards. Returns the loss before it if wanted, since reading waits for the
    /// device.
    #[track_caller]
    pub(super) fn step(
        &mut self,
        params: &Params,
        (x, y): &(AnyTensor, AnyTensor),
        wants_loss: bool,
    ) -> Result<Option<f32>> {
        match self {
            Stepper::Eager { step, loss } => {
                let inputs = [x.clone(), y.clone()];
                match step.step(params, loss.as_ref(), &inputs, wants_loss, |_| Ok(None::<Infallible>))? {
                    Stepped::Done(loss) => Ok(loss),
                    Stepped::Found(never) => match never {},
                }
            }
            Stepper::Compiled(step) => {
                step.run_mine(&[x.into(), y.into()])?;
                if wants_loss { step.loss().map(Some) } else { Ok(None) }
            }
        }
    }

    /// The optimizer, after the last step.
    pub(super) fn into_optimizer(self) -> Optimizer {
        match self {
            Stepper::Eager { step, .. } => step.into_optimizer(),
            Stepper::Compiled(step) => step.into_optimizer(),
        }
    }

    /// Memory that is unused between two steps.
    pub(super) fn workspace(&self) -> Option<Buffer> {
        match self {
            Stepper::Eager { .. } => None,
            Stepper::Compiled(step) => step.arena().cloned(),
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
            Stepper::Compiled(step) => checkpoint.take(step.as_ref()),
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
            Stepper::Compiled(step) => checkpoint.restore(params, step.as_mut()),
        }
    }
}
