//! Training steps, eager or compiled, with the same bits.

use crate::device::Buffer;
use crate::error::Result;
use crate::graph::TrainStep;
use crate::io::{Checkpoint, RandomState};
use crate::optim::Optimizer;
use crate::params::Params;
use crate::session::{Session, Var};
use crate::tensor::AnyTensor;
use std::rc::Rc;

/// The loss of a batch.
pub(super) type Loss<'a> = dyn for<'s> Fn(&[Var<'s>]) -> Result<Var<'s>> + 'a;

/// How steps are executed.
pub(super) enum Stepper<'a> {
    Eager { session: Session, optimizer: Optimizer, loss: Rc<Loss<'a>> },
    Compiled(TrainStep<Box<Loss<'a>>>),
}

impl<'a> Stepper<'a> {
    pub(super) fn new(
        params: &Params,
        optimizer: Optimizer,
        loss: Rc<Loss<'a>>,
        seed: u64,
        is_eager: bool,
    ) -> Stepper<'a> {
        if is_eager {
            let session = Session::eager_seeded(params.device(), seed);
            return Stepper::Eager { session, optimizer, loss };
        }
        let loss: Box<Loss<'a>> = Box::new(move |v| loss(v));
        Stepper::Compiled(TrainStep::new(params, optimizer, loss).seeded(seed))
    }

    pub(super) fn optimizer(&self) -> &Optimizer {
        match self {
            Stepper::Eager { optimizer, .. } => optimizer,
            Stepper::Compiled(step) => step.optimizer(),
        }
    }

    /// Makes a step on a batch. Returns the loss before it if wanted, since reading waits for the device.
    #[track_caller]
    pub(super) fn step(
        &mut self,
        params: &Params,
        (x, y): &(AnyTensor, AnyTensor),
        wants_loss: bool,
    ) -> Result<Option<f32>> {
        match self {
            Stepper::Eager { session, optimizer, loss } => {
                let value = {
                    let loss = loss(&[session.input_any(x)?, session.input_any(y)?])?;
                    let value = if wants_loss { Some(loss.item()?) } else { None };
                    optimizer.step(params, loss.backward()?)?;
                    value
                };
                session.reset();
                Ok(value)
            }
            Stepper::Compiled(step) => {
                step.run(&[x.into(), y.into()])?;
                if wants_loss { step.loss().map(Some) } else { Ok(None) }
            }
        }
    }

    /// The optimizer, after the last step.
    pub(super) fn into_optimizer(self) -> Optimizer {
        match self {
            Stepper::Eager { optimizer, .. } => optimizer,
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

    /// Puts its state into a checkpoint.
    #[track_caller]
    pub(super) fn take(&self, checkpoint: &mut Checkpoint) -> Result<()> {
        match self {
            Stepper::Eager { session, optimizer, .. } => {
                checkpoint.random = RandomState::of(session);
                checkpoint.take(optimizer)
            }
            Stepper::Compiled(step) => checkpoint.take(step),
        }
    }

    /// Goes on from a checkpoint.
    #[track_caller]
    pub(super) fn restore(&mut self, params: &Params, checkpoint: &Checkpoint) -> Result<()> {
        match self {
            Stepper::Eager { session, optimizer, .. } => {
                checkpoint.random.check("session", session.seed(), "Trainer::seed")?;
                checkpoint.restore(params, optimizer)?;
                checkpoint.random.restore(session)
            }
            Stepper::Compiled(step) => checkpoint.restore(params, step),
        }
    }
}
