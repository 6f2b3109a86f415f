//! Steps of several models, made at once: on CUDA one launch runs the programs of all of them side by side, so that small models
//! together fill a GPU that each would leave mostly idle.

use super::train::{Batch, TrainStep};
use crate::graph::{Compiled, is_uncapturable};
use crate::session::Var;
use dittograd_device::Buffer;
use dittograd_device::bundle::Bundle;
use dittograd_device::cuda::CudaGraph;
use dittograd_numerics::environment;
use dittograd_numerics::error::{Error, ErrorKind, Result};

/// The driver's code for no memory.
const OUT_OF_MEMORY: i32 = 2;

/// Makes steps of several models at once, each with the bits of [`TrainStep::run`]: the models share no parameters.
#[derive(Default)]
pub struct Together {
    /// What goes between all of them and the host.
    bundle: Bundle,
    /// The programs that were last captured together, by their numbers; `None` where they cannot be.
    captured: Option<(Vec<u64>, Option<CudaGraph>)>,
}

impl Together {
    /// One step of each model on its inputs, which are the rows of [its shards](TrainStep::run_mine). A step that fails stops no
    /// other.
    #[track_caller]
    pub fn run<F>(&mut self, steps: &mut [(&mut TrainStep<F>, &[Batch<'_>])]) -> Vec<Result<()>>
    where
        F: for<'s> Fn(&[Var<'s>]) -> Result<Var<'s>>,
    {
        let _strict = environment::enter();
        let device = steps.iter().map(|(step, _)| step.device()).find(|d| d.is_cuda()).cloned();
        let device = device.filter(|d| !d.is_profiled());
        let is_alone = |step: &TrainStep<F>| {
            step.is_sharded() || device.as_ref().is_none_or(|device| !device.same(step.device()))
        };
        // Of each step whether it has begun, or how it ended.
        let mut states: Vec<Option<Result<()>>> = Vec::with_capacity(steps.len());
        for (step, inputs) in steps.iter_mut() {
            states.push(match is_alone(step) {
                true => Some(step.run_mine(inputs)),
                false => step
                    .give(inputs, None, Some(&mut self.bundle))
                    .and_then(|()| step.begin(Some(&mut self.bundle)))
                    .err()
                    .map(Err),
            });
        }
        let sent = self.bundle.send();
        let begun =
            || steps.iter().zip(&states).filter(|(_, state)| state.is_none()).map(|(step, _)| &*step.0);
        let together = match &sent {
            Ok(()) => self.launch(&begun().filter_map(TrainStep::last).collect::<Vec<_>>()),
            Err(_) => Ok(false),
        };
        let mut ended = Vec::with_capacity(states.len());
        for ((step, _), state) in steps.iter_mut().zip(states) {
            if let Some(state) = state {
                ended.push(state);
                continue;
            }
            let ran = match (&sent, &together, step.last()) {
                (Err(error), ..) | (_, Err(error), _) => Err(error.clone()),
                (_, Ok(false), Some((program, _))) => program.launch(),
                _ => Ok(()),
            };
            if sent.is_err() {
                step.lose_inputs();
            }
            ended.push(step.end(ran));
        }
        ended
    }

    /// The losses of several models since they were last read: those that are [kept](TrainStep::keep_losses), else the last one.
    /// Waits for the device once.
    #[track_caller]
    pub fn losses<F>(&mut self, steps: &mut [&mut TrainStep<F>]) -> Vec<Result<Vec<f32>>>
    where
        F: for<'s> Fn(&[Var<'s>]) -> Result<Var<'s>>,
    {
        let places = steps.iter().map(|step| step.losses_on_gpu()).collect::<Option<Vec<_>>>();
        let Some(places) = places.filter(|places| places.len() > 1) else {
            return steps.iter_mut().map(|step| step.unread_losses(None)).collect();
        };
        let mut read = || {
            let buffers: Vec<Buffer> = places.iter().map(|(buffer, _)| buffer.clone()).collect();
            let words = self.bundle.read(&buffers)?;
            for (list, _) in places.iter().filter(|(_, is_list)| *is_list) {
                self.bundle.write("losses", &list.part(0, 1)?, &[0.0])?;
            }
            self.bundle.send()?;
            Ok(words)
        };
        match read() {
            Ok(all) => {
                steps.iter_mut().zip(all).map(|(step, words)| step.unread_losses(Some(words))).collect()
            }
            Err(error) => steps.iter().map(|_| Err(Error::clone(&error))).collect(),
        }
    }

    /// Runs programs that have begun as one. `false` if they cannot be.
    fn launch(&mut self, programs: &[(&Compiled, u64)]) -> Result<bool> {
        if programs.len() < 2 {
            return Ok(false);
        }
        let numbers: Vec<u64> = programs.iter().map(|p| p.1).collect();
        let programs: Vec<&Compiled> = programs.iter().map(|p| p.0).collect();
        if self.captured.as_ref().is_none_or(|(of, _)| *of != numbers) {
            self.captured = None;
            let graph = match Compiled::capture_together(&programs) {
                Err(error) if has_no_room(&error) || is_uncapturable(&error) => None,
                other => other?,
            };
            self.captured = Some((numbers, graph));
        }
        match &self.captured {
            Some((_, Some(graph))) => Compiled::launch_together(&programs, graph).map(|()| true),
            _ => Ok(false),
        }
    }
}

fn has_no_room(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Cuda { code: OUT_OF_MEMORY, .. } | ErrorKind::OutOfMemory { .. })
}
