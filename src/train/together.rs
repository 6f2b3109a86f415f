//! Several runs at once.

use super::run::{Next, Run};
use super::step::{self, Together};
use super::{Outcome, Trainer};
use crate::error::{Error, ErrorKind, Result};
use crate::numerics::environment;
use std::collections::HashSet;
use std::time::Instant;

/// Runs trainers until all of them are over, in turns of one step each, such as one model from several seeds. Each has the bits, the files and the
/// [`Outcome`] that it would have alone; none stops because another one fails. The result has their outcomes in the same order.
///
/// On CUDA, one launch makes a step of all runs that are compiled and on the same device, with kernels of different runs side by
/// side: several small models take little longer than one. On the CPU they take as long as one after the other; there, a thread for
/// each is faster. Each trainer has parameters of its own, and is not shared between processes.
///
/// ```
/// use dittograd::prelude::*;
/// use dittograd::train::run_together;
/// # fn main() -> Result<()> {
/// let device = Device::cpu()?;
/// let data = data::spirals(7, 300, 3)?;
/// let mut models = Vec::new();
/// for seed in [7, 8, 9] {
///     let mut params = Params::new(&device, seed);
///     let net = Mlp::new(&mut params, &[2, 16, 3])?;
///     models.push((params, net, data::Batches::new(data.clone(), 32, seed)?));
/// }
/// let trainers = models.iter().map(|(params, net, batches)| {
///     Trainer::new(params, Optimizer::adamw(1e-2), batches.clone(), |v| net.forward(v[0])?.cross_entropy(v[1])).steps(50)
/// });
/// for outcome in run_together(trainers.collect()) {
///     println!("loss {:?}", outcome?.loss);
/// }
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn run_together(trainers: Vec<Trainer<'_>>) -> Vec<Result<Outcome>> {
    let _strict = environment::enter();
    let mut outcomes: Vec<Option<Result<Outcome>>> = trainers.iter().map(|_| None).collect();
    let mut runs = Vec::new();
    let mut known = HashSet::new();
    for (i, trainer) in trainers.into_iter().enumerate() {
        match trainer.check_apart(&mut known).and_then(|()| trainer.prepare(None)) {
            Ok(run) => runs.push((i, Box::new(run))),
            Err(error) => outcomes[i] = Some(Err(error)),
        }
    }
    let mut together = Together::default();
    while !runs.is_empty() {
        // Each vector has the runs that go on.
        let mut ready: Vec<(usize, Box<Run<'_>>, Next)> = Vec::new();
        let start = Instant::now();
        for (i, mut run) in runs {
            match run.end() {
                Ok(Some(end)) => outcomes[i] = Some(run.finish(end)),
                Ok(None) => match run.next() {
                    Ok(next) => ready.push((i, run, next)),
                    Err(error) => outcomes[i] = Some(Err(error)),
                },
                Err(error) => outcomes[i] = Some(Err(error)),
            }
        }
        let mut due = Vec::new();
        for (_, run, next) in &mut ready {
            due.push((&mut run.stepper, run.params, &next.batch, next.reads_losses));
        }
        let made = step::together(&mut together, &mut due);
        let spent = start.elapsed();
        runs = Vec::new();
        for ((i, mut run, next), made) in ready.into_iter().zip(made) {
            match made.and_then(|losses| run.complete(next, losses, spent)) {
                Ok(None) => runs.push((i, run)),
                Ok(Some(bad)) => outcomes[i] = Some(Err(run.not_a_number(bad))),
                Err(error) => outcomes[i] = Some(Err(error)),
            }
        }
    }
    let lost = || Err(Error::new("train", ErrorKind::Internal { what: "a run without an outcome" }));
    outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(lost)).collect()
}

impl Trainer<'_> {
    /// Errors if it cannot run beside others, whose parameters are `known`.
    #[track_caller]
    fn check_apart(&self, known: &mut HashSet<u64>) -> Result<()> {
        if self.world.as_ref().is_some_and(|world| world.size() > 1) {
            let why = "runs that many processes share cannot run together; run them one after the other";
            return Err(Error::argument("train", "world", why));
        }
        if self.paranoid.is_some() {
            let why = "steps of runs together are not computed twice; run them one after the other";
            return Err(Error::argument("train", "paranoid", why));
        }
        match self.params.iter().find(|p| !known.insert(p.id())) {
            Some(p) => {
                let why = format!(
                    "parameter {} is trained by another run, too; make each its own Params",
                    p.name()
                );
                Err(Error::argument("train", "params", why))
            }
            None => Ok(()),
        }
    }
}
