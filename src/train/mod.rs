//! Training from the first step to the last, with evaluations, the best state, early stopping, checkpoints, and
//! stopping on request. A [`Trainer`] that is stopped or killed at any moment and continued from its folder ends in the
//! same place as one that never stopped, to the bit.
//!
//! A run is a sequence of states, one per number of steps done. In a state, everything that was due at that step has
//! been done: the loss was read, the model evaluated, the best one kept. Only such states are saved, and what comes
//! next depends only on the state. A run that has reached its last step, or has run out of patience, is over and stays
//! so when it is opened again.

mod diagnose;
mod evaluate;
mod folder;
mod paranoid;
mod record;
mod run;
mod step;
mod together;
mod verify;

pub use evaluate::{Evaluation, Scores};
#[doc(hidden)]
pub use folder::OF_THE_MACHINE;
pub use folder::{BEST, CHECKPOINT, METRICS, RunFolder, kept, measurements};
pub use paranoid::Fault;
pub use record::{RECORD, Record, RecordEnd, RecordHead, Segment, SigningKey, StateHash};
pub use together::run_together;
pub use verify::{Difference, Verified};

use crate::data::{Batches, Dataset, Loader};
use crate::device::Meta;
use crate::error::{Error, ErrorKind, Result};
use crate::graph::Graph;
use crate::io::{Checkpoint, DataState, Progress};
use crate::numerics::{NUMERICS_VERSION, environment};
use crate::optim::Optimizer;
use crate::parallel::World;
use crate::params::Params;
use crate::session::Var;
use crate::shape::Shape;
use crate::tensor::AnyTensor;
use paranoid::Paranoid;
use run::{Recorded, Run};
use serde_json::Value;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use step::{How, Loss, Stepper};
use verify::Checker;

/// How often the loss is read in a run. Reading waits for the device.
const READINGS: u64 = 200;
/// Batches that are prepared ahead.
const AHEAD: usize = 4;
/// The most losses that wait on the device to be recorded.
const KEPT_LOSSES: usize = 1024;
/// Steps that are written to the record after each step, while the device computes.
const WRITTEN_AT_ONCE: usize = 2;

/// An event in a run, for reporting.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'e> {
    /// A step is done. The device may still be working on it.
    Step {
        /// Steps done.
        step: u64,
    },
    /// The training loss was read.
    Loss {
        /// Steps done.
        step: u64,
        /// The loss of the last of them, before its update.
        loss: f32,
        /// The learning rate of that step.
        lr: f64,
    },
    /// The model was evaluated.
    Evaluated {
        /// Steps done.
        step: u64,
        /// The training loss of the last of them.
        loss: f32,
        /// The scores.
        scores: &'e Scores,
        /// Whether it is the best so far.
        is_best: bool,
    },
    /// The gradients of the last step were [measured](Trainer::gradient_norms).
    GradientNorms {
        /// Steps done.
        step: u64,
        /// The norm of the gradient of each parameter, by its name.
        norms: &'e [(String, f32)],
    },
    /// A [check](Trainer::paranoid) has found a fault of the hardware. The step is repeated.
    Fault {
        /// What it has found.
        fault: &'e Fault,
    },
}

/// Receives events.
type Observe<'a> = dyn FnMut(&Event<'_>) -> Result<()> + 'a;

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All steps are done.
    Finished,
    /// Too many evaluations in a row were not better.
    Patience,
    /// A stop was requested. The run can continue from its last checkpoint.
    Stopped,
}

/// Where the time of a run went, without generating data and models.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// The first step, in which kernels and programs are compiled.
    pub first_step: Duration,
    /// All other steps.
    pub steps: Duration,
    /// Evaluations.
    pub evaluations: Duration,
    /// Writing checkpoints and measurements.
    pub files: Duration,
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Why it ended.
    pub end: End,
    /// Number of steps that the parameters have been trained.
    pub step: u64,
    /// Steps that this call made.
    pub ran: u64,
    /// The last training loss that was read.
    pub loss: Option<f32>,
    /// The last evaluation; `None` without evaluations, or if the run was stopped before the first.
    pub scores: Option<Scores>,
    /// The best evaluation, and the number of evaluations since.
    pub progress: Progress,
    /// Where the time went.
    pub times: Times,
    /// Faults of the hardware that were found, and repaired.
    pub faults: u64,
    /// Bytes of the optimizer's state that this process holds.
    pub optimizer_bytes: usize,
    /// The folder of the run, still locked, for further files.
    pub folder: Option<RunFolder>,
}

/// Trains a model: see the [module](self).
///
/// ```
/// use dittograd::prelude::*;
/// use dittograd::train::{Evaluation, RunFolder, Scores, Trainer};
/// # fn main() -> Result<()> {
/// # let home = std::env::temp_dir().join(format!("dittograd-trainer-{}", std::process::id()));
/// let device = Device::cpu()?;
/// let (train, test) = data::split(&data::spirals(7, 300, 3)?, 0.8, 7)?;
/// let mut params = Params::new(&device, 7);
/// let net = Mlp::new(&mut params, &[2, 16, 3])?;
/// let rows = LabelLoss { reduction: Reduction::None, ..LabelLoss::default() };
/// let evaluation = Evaluation::new(
///     test,
///     |v| Ok(vec![net.forward(v[0])?.cross_entropy_loss(v[1], rows)?]),
///     |means| Scores { merit: -means[0], values: vec![("loss".into(), means[0])] },
/// );
/// let batches = data::Batches::new(train, 32, 7)?;
/// let outcome = Trainer::new(&params, Optimizer::adamw(1e-2), batches, |v| net.forward(v[0])?.cross_entropy(v[1]))
///     .steps(100)
///     .evaluate(20, evaluation)
///     .patience(2)
///     // Called again after a stop or a crash, the same program goes on from here.
///     .folder(RunFolder::open(home.join("spirals"))?)
///     .run()?;
/// println!("{} steps, {:?}", outcome.step, outcome.scores);
/// # std::fs::remove_dir_all(&home).unwrap();
/// # Ok(())
/// # }
/// ```
pub struct Trainer<'a> {
    params: &'a Params,
    optimizer: Optimizer,
    batches: Batches,
    loss: Rc<Loss<'a>>,
    steps: u64,
    seed: u64,
    shards: usize,
    world: Option<World>,
    verify_every: Option<u64>,
    paranoid: Option<u64>,
    has_norms: bool,
    is_eager: bool,
    evaluation: Option<(u64, Evaluation<'a>)>,
    patience: Option<u64>,
    save_every: Option<u64>,
    keep: u64,
    records: bool,
    record_every: Option<u64>,
    folder: Option<RunFolder>,
    from: Option<Checkpoint>,
    stop: Arc<AtomicBool>,
    describe: Box<dyn Fn(&mut Checkpoint) + 'a>,
    observe: Box<Observe<'a>>,
}

impl<'a> Trainer<'a> {
    /// A run that minimizes the scalar `loss` of batches, with inputs `v[0]` and targets `v[1]`, over the trainable
    /// parameters of `params`. It is one epoch long unless [`Trainer::steps`] is called.
    pub fn new(
        params: &'a Params,
        optimizer: Optimizer,
        batches: Batches,
        loss: impl for<'s> Fn(&[Var<'s>]) -> Result<Var<'s>> + 'a,
    ) -> Trainer<'a> {
        Trainer {
            params,
            optimizer,
            steps: batches.per_epoch() as u64,
            batches,
            loss: Rc::new(loss),
            seed: 0,
            shards: 1,
            world: None,
            verify_every: None,
            paranoid: None,
            has_norms: false,
            is_eager: false,
            evaluation: None,
            patience: None,
            save_every: None,
            keep: 0,
            records: true,
            record_every: None,
            folder: None,
            from: None,
            stop: Arc::default(),
            describe: Box::new(|_| ()),
            observe: Box::new(|_| Ok(())),
        }
    }

    /// Total number of steps, including those before a resume.
    pub fn steps(mut self, steps: u64) -> Trainer<'a> {
        self.steps = steps;
        self
    }

    /// Seed of the random streams of training, such as dropout's; 0 by default.
    pub fn seed(mut self, seed: u64) -> Trainer<'a> {
        self.seed = seed;
        self
    }

    /// Cuts each batch into so many shards, as [`TrainStep::shards`](crate::graph::TrainStep::shards): one process computes them one after the other, which takes the memory
    /// of one, and several share them. The loss must be a mean over the rows.
    #[doc(alias = "accumulate")]
    pub fn shards(mut self, count: usize) -> Trainer<'a> {
        self.shards = count;
        self
    }

    /// Shares the shards between the processes of `world`. Each of them makes the same trainer, with a [folder](RunFolder::open_in) or without; the
    /// first one writes. Whatever their number, the run has the same bits and the same checkpoint.
    pub fn world(mut self, world: &World) -> Trainer<'a> {
        self.world = Some(world.clone());
        self
    }

    /// Compares the parameters of all processes every `steps` steps, and at every checkpoint. A rank whose bits differ, as after a fault of its memory, is an error
    /// that names it.
    pub fn verify_every(mut self, steps: u64) -> Trainer<'a> {
        self.verify_every = Some(steps);
        self
    }

    /// Looks for faults of the hardware: computes every `steps`-th step twice, compiled and op by op, and compares loss, parameters, optimizer
    /// and random counter. If a bit differs, that is [reported](Event::Fault), and the step is repeated from a copy of the state until both agree, so
    /// that the run ends where it would have ended. With 1 it also compares the state before a step with that after the step before. A step that
    /// differs three times, or ten faults in a run, are an [error](ErrorKind::Hardware).
    ///
    /// Such a step takes the time of both ways, and the run the memory of two more copies of parameters and optimizer. It is for one process.
    pub fn paranoid(mut self, steps: u64) -> Trainer<'a> {
        self.paranoid = Some(steps);
        self
    }

    /// Measures the gradients whenever the loss is read: the L2 norm of that of each parameter, before gradients are clipped, is
    /// [reported](Event::GradientNorms) and goes to the measurements in the folder. The bits of the run are the same.
    pub fn gradient_norms(mut self) -> Trainer<'a> {
        self.has_norms = true;
        self
    }

    /// Runs op by op instead of compiling the step. The bits are the same.
    pub fn eager(mut self) -> Trainer<'a> {
        self.is_eager = true;
        self
    }

    /// Evaluates the model every `every` steps and after the last one, in batches of as many rows as a step computes at
    /// a time.
    pub fn evaluate(mut self, every: u64, evaluation: Evaluation<'a>) -> Trainer<'a> {
        self.evaluation = Some((every, evaluation));
        self
    }

    /// Early stopping: ends the run after this many evaluations in a row that are not better than the best one.
    pub fn patience(mut self, evaluations: u64) -> Trainer<'a> {
        self.patience = Some(evaluations);
        self
    }

    /// Keeps checkpoints, the best state, measurements and the [record](Record) in a folder. If it holds a run, this one continues it. The
    /// state is saved before the first step, at every evaluation, and at the end.
    pub fn folder(mut self, folder: RunFolder) -> Trainer<'a> {
        self.folder = Some(folder);
        self
    }

    /// Also saves the state every `steps` steps.
    pub fn save_every(mut self, steps: u64) -> Trainer<'a> {
        self.save_every = Some(steps);
        self
    }

    /// Keeps `count` checkpoints in the folder, spread over all steps: the one after `step` is `checkpoint-<step>.safetensors`. The record
    /// has a hash of the state there too, so that [`Trainer::verify`] can start from each.
    pub fn keep(mut self, count: u64) -> Trainer<'a> {
        self.keep = count;
        self
    }

    /// Also hashes the state for the record every `steps` steps. It always does at evaluations and at the end.
    pub fn record_every(mut self, steps: u64) -> Trainer<'a> {
        self.record_every = Some(steps);
        self
    }

    /// Keeps no record in the folder.
    pub fn unrecorded(mut self) -> Trainer<'a> {
        self.records = false;
        self
    }

    /// Continues from a checkpoint from any source.
    pub fn resume(mut self, checkpoint: Checkpoint) -> Trainer<'a> {
        self.from = Some(checkpoint);
        self
    }

    /// Stops and saves the run after the current step when the flag becomes true.
    pub fn stop_when(mut self, flag: Arc<AtomicBool>) -> Trainer<'a> {
        self.stop = flag;
        self
    }

    /// Adds what the run does not know to every checkpoint: the name of the model, its settings, further texts.
    pub fn describe(mut self, f: impl Fn(&mut Checkpoint) + 'a) -> Trainer<'a> {
        self.describe = Box::new(f);
        self
    }

    /// Reports events to `f`. An error ends the run.
    pub fn observe(mut self, f: impl FnMut(&Event<'_>) -> Result<()> + 'a) -> Trainer<'a> {
        self.observe = Box::new(f);
        self
    }

    #[track_caller]
    fn check(&self) -> Result<()> {
        let wrong = |name: &'static str, why: String| Err(Error::argument("train", name, why));
        let size = self.batches.size();
        if self.shards == 0 || !size.is_multiple_of(self.shards) {
            let shards = self.shards;
            return wrong("shards", format!("a batch of {size} rows has no {shards} equal parts"));
        }
        let every = self.evaluation.as_ref().map(|e| e.0);
        for (name, n) in [
            ("evaluate", every),
            ("patience", self.patience),
            ("save_every", self.save_every),
            ("record_every", self.record_every),
            ("verify_every", self.verify_every),
            ("paranoid", self.paranoid),
        ] {
            if n == Some(0) {
                return wrong(name, "got 0, use 1 or more".into());
            }
        }
        if self.paranoid.is_some() && self.world.as_ref().is_some_and(|w| w.size() > 1) {
            return wrong("paranoid", "is for one process; verify_every compares those of many".into());
        }
        if self.patience.is_some() && self.evaluation.is_none() {
            return wrong("patience", "there is no evaluation to be patient with; add one".into());
        }
        Ok(())
    }

    fn data(&self) -> DataState {
        let data = self.batches.data();
        let hash = data_hash(data, self.evaluation.as_ref().map(|e| e.1.data()));
        let (seed, batch, shards) = (self.batches.seed(), self.batches.size() as u64, self.shards as u64);
        DataState { name: data.name().into(), seed, batch, shards, hash }
    }

    /// Trains until the run is over. An error of one process ends the others too, whose error names it. On an error the parameters are those of the last step that was made, or, if the
    /// loss was not finite, of the last step before that.
    #[track_caller]
    pub fn run(self) -> Result<Outcome> {
        let world = self.world.clone();
        let outcome = self.train(None).and_then(|(run, end)| run.finish(end));
        if let (Some(world), Err(error)) = (world, &outcome)
            // All of them find this.
            && !matches!(error.kind(), ErrorKind::NotFinite { .. })
        {
            // The others wait for this process.
            world.abort(&error.to_string());
        }
        outcome
    }

    /// Computes the steps of a record again, up to step `to`, and compares each with what it says, until one differs. They start from the
    /// checkpoint to [resume](Trainer::resume), else from the parameters as they are. Nothing is written or evaluated. `states` are
    /// further states to compare, each of a step and with a name.
    #[track_caller]
    pub fn verify(
        mut self,
        record: &'a Record,
        to: u64,
        states: &'a BTreeMap<u64, (String, StateHash)>,
    ) -> Result<Verified> {
        (self.steps, self.folder, self.patience) = (to, None, None);
        (self.paranoid, self.has_norms) = (None, false);
        self.train(Some(Checker::new(record, states)))?.0.verified()
    }

    /// Makes the steps. Returns the run, and why it ended.
    #[track_caller]
    fn train(self, checker: Option<Checker<'a>>) -> Result<(Run<'a>, End)> {
        let _strict = environment::enter();
        let mut run = self.prepare(checker)?;
        loop {
            if let Some(end) = run.end()? {
                return Ok((run, end));
            }
            if let Some(bad) = run.advance()? {
                return Err(run.not_a_number(bad));
            }
        }
    }

    /// The run, ready for its next step.
    #[track_caller]
    fn prepare(mut self, checker: Option<Checker<'a>>) -> Result<Run<'a>> {
        self.check()?;
        let data = self.data();
        let held = self.folder.as_mut().and_then(RunFolder::take_checkpoint);
        let from = match (self.from.take(), held) {
            (Some(from), Some(held)) if from != held => {
                let why = "the folder holds another state of a run than the checkpoint; use a new folder";
                return Err(Error::argument("resume", "folder", why));
            }
            (from, held) => from.or(held),
        };
        if let Some(from) = &from {
            check_data(from, &data)?;
            if from.step != from.optimizer.as_ref().map_or(0, |o| o.step) {
                let why = format!("it counts {} steps, but its optimizer does not", from.step);
                return Err(Error::argument("resume", "step", why));
            }
        }
        let world = self.world.filter(|w| w.size() > 1);
        let (seed, is_eager, shards) = (self.seed, self.is_eager, self.shards);
        let records = checker.is_some() || self.records && self.folder.is_some();
        let kept_losses = records.then_some(KEPT_LOSSES);
        let has_norms = self.has_norms;
        let how = How { seed, is_eager, shards, world: world.clone(), kept_losses, has_norms };
        let mut stepper = Stepper::new(self.params, self.optimizer, self.loss.clone(), how.clone())?;
        let paranoid = match self.paranoid {
            Some(every) => Some(Paranoid::new(every, self.params, &stepper, self.loss.clone(), how)?),
            None => None,
        };
        if let Some(from) = &from {
            stepper.restore(self.params, from)?;
        }
        let rows = self.batches.size() / shards;
        let mine = stepper.my_shards()?;
        let batches = self.batches.clone().part(mine.start * rows..mine.end * rows)?;
        let is_checked = checker.is_some();
        let evaluation = self.evaluation.filter(|_| !is_checked).map(|(every, e)| (every, e.rows(rows)));
        let first = from.as_ref().map_or(0, |f| f.step);
        if let Some(world) = &world {
            agree(world, self.params, &data, self.seed, [first, self.steps])?;
        }
        let is_saved = from.is_some() && self.folder.as_ref().is_none_or(|f| !f.is_new());
        let progress = from.as_ref().map_or_else(Progress::default, |f| f.progress);
        let metrics = from.as_ref().map_or(Value::Null, |f| f.metrics.clone());
        // With a folder, its file is the state to go back to.
        let last = from.filter(|_| self.folder.is_none());
        let mut run = Run {
            params: self.params,
            device: self.params.device().clone(),
            world,
            shards,
            verify_every: self.verify_every,
            paranoid,
            has_norms,
            stepper,
            evaluation,
            folder: self.folder,
            describe: self.describe,
            observe: self.observe,
            data,
            steps: self.steps,
            step: first,
            progress,
            scores: None,
            metrics,
            saved: first,
            verified: first,
            last,
            recorded: records.then(Recorded::default),
            record_every: self.record_every,
            keep: self.keep,
            checker,
            times: Times::default(),
            first,
            loss: self.loss,
            whole: self.batches,
            loader: None,
            patience: self.patience,
            save_every: self.save_every,
            stop: self.stop,
        };
        if !is_saved && !is_checked {
            // So that the run can be continued even if it is killed before the next save.
            run.save(false)?;
        }
        if let Some(folder) = &mut run.folder {
            folder.begin(first)?;
        }
        if records {
            let of_rows = |t: &AnyTensor| -> Result<Meta> {
                let dims = [&[rows], &t.shape().dims()[1..]].concat();
                Ok(Meta { shape: Shape::new(&dims)?, ..t.meta() })
            };
            let metas = [of_rows(batches.data().x())?, of_rows(batches.data().y())?];
            let device = &run.device;
            let program = Graph::trace_step(device, seed, &metas, |_, v| Ok(vec![(run.loss)(v)?])).ok();
            let hash = program.as_ref().and_then(|(program, _)| program.hash().ok());
            run.begin_record(hash, seed, is_eager)?;
            if let Some(checker) = &mut run.checker {
                checker.program = program;
            }
        }
        // The first process records whole batches.
        let mut whole = run.whole.clone();
        let (hashes, is_whole) = (records && run.leads(), mine.len() == shards);
        let mut batches = batches;
        let make = move |step| {
            let batch = batches.batch(step)?;
            let hash = match (hashes, is_whole) {
                (false, _) => String::new(),
                (true, true) => record::batch_hash(&batch),
                (true, false) => record::batch_hash(&whole.batch(step)?),
            };
            Ok((batch, hash))
        };
        run.loader = Some(Loader::of(first, AHEAD, make)?);
        Ok(run)
    }
}

/// Identifies the data of a run: the training data, and the test data that decides about the best state.
pub fn data_hash(train: &Dataset, test: Option<&Dataset>) -> String {
    let all = [Some(train), test];
    all.into_iter().flatten().map(Dataset::hash).collect::<Vec<_>>().join("-")
}

/// Errors, on all processes, unless they are about to do the same.
#[track_caller]
fn agree(
    world: &World,
    params: &Params,
    data: &DataState,
    seed: u64,
    [first, steps]: [u64; 2],
) -> Result<()> {
    let numerics = params.device().numerics();
    world.agree("version", &format!("{} with numerics {NUMERICS_VERSION}", env!("CARGO_PKG_VERSION")))?;
    world.agree("numerics mode", &numerics.to_string())?;
    world.agree("number of shards", &data.shards.to_string())?;
    world.agree("batch", &format!("{} rows from seed {}", data.batch, data.seed))?;
    world.agree("data set", &short(&data.hash))?;
    world.agree("seed", &seed.to_string())?;
    world.agree("range of steps", &format!("{first} to {steps}"))?;
    world.agree("model", &params.fingerprint()?)
}

/// Errors unless a checkpoint belongs to a run on this data.
#[track_caller]
fn check_data(from: &Checkpoint, now: &DataState) -> Result<()> {
    let was = &from.data;
    let wrong = |what: &str, was: &dyn std::fmt::Display, now: &dyn std::fmt::Display| {
        let why = format!("{what} was {was} in this run, and is {now} now; it would go on with other bits");
        Err(Error::argument("resume", "data", why))
    };
    if was.batch != now.batch {
        return wrong("the size of a batch", &was.batch, &now.batch);
    }
    if was.shards != now.shards {
        return wrong("the number of shards", &was.shards, &now.shards);
    }
    if was.seed != now.seed {
        return wrong("the seed of the batches", &was.seed, &now.seed);
    }
    if was.hash != now.hash {
        let why = format!(
            "{} holds other data than when this run began (hash {} then, {} now); give it the data it began with",
            now.name,
            short(&was.hash),
            short(&now.hash)
        );
        return Err(Error::argument("resume", "data", why));
    }
    Ok(())
}

/// The first digits of the hashes of the parts of a data set.
fn short(hash: &str) -> String {
    let part = |p: &str| crate::error::shown(p, 16).trim_end_matches('…').to_string();
    hash.split('-').take(2).map(part).collect::<Vec<_>>().join("-")
}
