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
mod step;
mod verify;

pub use evaluate::{Evaluation, Scores};
#[doc(hidden)]
pub use folder::OF_THE_MACHINE;
pub use folder::{BEST, CHECKPOINT, METRICS, RunFolder, kept, measurements};
pub use paranoid::Fault;
pub use record::{RECORD, Record, RecordEnd, RecordHead, Segment, SigningKey, StateHash};
pub use verify::{Difference, Verified};

use crate::data::{Batches, Dataset, Loader, Samples};
use crate::device::{Device, Meta};
use crate::error::{Error, ErrorKind, Result};
use crate::graph::Graph;
use crate::io::{Best, Checkpoint, DataState, Progress};
use crate::numerics::{NUMERICS_VERSION, canonical_bits, environment};
use crate::optim::Optimizer;
use crate::parallel::World;
use crate::params::Params;
use crate::session::Var;
use crate::shape::Shape;
use crate::tensor::AnyTensor;
use paranoid::Paranoid;
use record::{Entry, Start};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
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
        let outcome = self.train(None).and_then(|(run, end, first)| run.finish(end, first));
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
        let (run, _, first) = self.train(Some(Checker::new(record, states)))?;
        run.verified(first)
    }

    /// Makes the steps. Returns the run, why it ended, and the step it started from.
    #[track_caller]
    fn train(mut self, checker: Option<Checker<'a>>) -> Result<(Run<'a>, End, u64)> {
        let _strict = environment::enter();
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
            let program = Graph::trace_step(device, seed, &metas, |_, v| Ok(vec![(self.loss)(v)?])).ok();
            let hash = program.as_ref().and_then(|(program, _)| program.hash().ok());
            run.begin_record(hash, seed, is_eager)?;
            if let Some(checker) = &mut run.checker {
                checker.program = program;
            }
        }
        // The first process records whole batches.
        let mut whole = self.batches.clone();
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
        let mut loader = Loader::of(first, AHEAD, make)?;
        let end = loop {
            if run.step >= run.steps || run.checker.as_ref().is_some_and(|c| c.difference.is_some()) {
                break End::Finished;
            }
            if self.patience.is_some_and(|p| run.progress.since_best >= p) {
                break End::Patience;
            }
            if run.is_stopped(self.stop.load(Ordering::SeqCst))? {
                break End::Stopped;
            }
            let start = Instant::now();
            let (batch, hash) = match loader.next() {
                Some(batch) => batch?,
                None => {
                    return Err(Error::argument("train", "data", "it ended before the steps did"));
                }
            };
            if let Some(bad) = run.advance(&batch, hash, first, start)? {
                drop(loader);
                return Err(run.not_a_number(bad, self.loss.as_ref(), self.batches));
            }
            run.evaluate_if_due()?;
            if run.verify_every.is_some_and(|n| run.step.is_multiple_of(n)) && run.verified != run.step {
                run.verify()?;
            }
            let is_due =
                self.save_every.is_some_and(|n| run.step.is_multiple_of(n)) || run.is_kept_at(run.step);
            if is_due && !is_checked && run.saved != run.step {
                run.save(false)?;
            }
        };
        Ok((run, end, first))
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

/// Steps on their way to the record.
#[derive(Default)]
struct Recorded {
    /// Those whose losses were not read yet: step, hash of the batch, random calls after it.
    waiting: VecDeque<(u64, String, u64)>,
    /// Those that are to be written.
    ready: VecDeque<Entry>,
}

/// A run in progress.
struct Run<'a> {
    params: &'a Params,
    device: Device,
    /// The processes that share the run, if they are several.
    world: Option<World>,
    shards: usize,
    verify_every: Option<u64>,
    /// Computes steps twice.
    paranoid: Option<Paranoid<'a>>,
    has_norms: bool,
    stepper: Stepper<'a>,
    evaluation: Option<(u64, Evaluation<'a>)>,
    folder: Option<RunFolder>,
    describe: Box<dyn Fn(&mut Checkpoint) + 'a>,
    observe: Box<Observe<'a>>,
    data: DataState,
    steps: u64,
    step: u64,
    progress: Progress,
    scores: Option<Scores>,
    /// The values of the last evaluation, possibly from before a resume.
    metrics: Value,
    /// The step of the last saved state.
    saved: u64,
    /// The step after which the parameters of all processes were last compared.
    verified: u64,
    /// A state to go back to if there is no folder.
    last: Option<Checkpoint>,
    /// Steps for the record, if there is one.
    recorded: Option<Recorded>,
    record_every: Option<u64>,
    /// Number of checkpoints that are kept along the run.
    keep: u64,
    /// Compares steps with a record, instead of writing one.
    checker: Option<Checker<'a>>,
    times: Times,
}

impl<'a> Run<'a> {
    /// Whether one of the processes was asked to stop.
    #[track_caller]
    fn is_stopped(&self, here: bool) -> Result<bool> {
        match &self.world {
            Some(world) => world.any(here),
            None => Ok(here),
        }
    }

    /// Errors if the parameters of the processes differ.
    #[track_caller]
    fn verify(&mut self) -> Result<()> {
        if let Some(world) = &self.world {
            world.agree(&format!("state after step {}", self.step), &self.params.fingerprint()?)?;
        }
        self.verified = self.step;
        Ok(())
    }

    fn is_evaluated_at(&self, step: u64) -> bool {
        self.evaluation.as_ref().is_some_and(|(every, _)| step.is_multiple_of(*every) || step == self.steps)
    }

    /// Whether the checkpoint after this step is kept: it ends one of `keep` + 1 equal parts of the run, and not the last.
    fn is_kept_at(&self, step: u64) -> bool {
        let [at, steps, parts] = [step, self.steps.max(1), self.keep].map(u128::from);
        let parts = parts + 1;
        // The first that ends there or later.
        let part = (at * parts).div_ceil(steps);
        0 < step && part < parts && part * steps / parts == at
    }

    /// Whether the record has a hash of the state after this step.
    fn is_hashed_at(&self, step: u64) -> bool {
        match &self.checker {
            _ if self.recorded.is_none() => false,
            Some(checker) => checker.wants_state(step),
            None => {
                let is_due = self.record_every.is_some_and(|n| step.is_multiple_of(n));
                is_due || step == self.steps || self.is_evaluated_at(step) || self.is_kept_at(step)
            }
        }
    }

    /// Whether this is the first process.
    fn leads(&self) -> bool {
        self.world.as_ref().is_none_or(|world| world.rank() == 0)
    }

    /// The hash of the current state. All processes call it.
    #[track_caller]
    fn state_hash(&self) -> Result<StateHash> {
        if let Some(hash) = self.paranoid.as_ref().and_then(|check| check.agreed_at(self.step)) {
            return Ok(hash.clone());
        }
        let calls = self.stepper.random_calls();
        if self.world.is_none() {
            return StateHash::current(self.params, self.stepper.optimizer(), calls);
        }
        // Each process has a part of the optimizer's state.
        let mut state = Checkpoint::new("", self.params)?;
        self.stepper.take(&mut state)?;
        Ok(if self.leads() { StateHash::of(&state) } else { StateHash::default() })
    }

    /// Begins the record, or compares the beginning.
    #[track_caller]
    fn begin_record(&mut self, program: Option<String>, seed: u64, is_eager: bool) -> Result<()> {
        let mut about = Checkpoint::without_values("", self.params);
        (about.step, about.data) = (self.step, self.data.clone());
        (self.describe)(&mut about);
        let state = self.state_hash()?;
        let head = RecordHead::new(about, program, seed, state.clone());
        if let Some(checker) = &mut self.checker {
            checker.head(&head)?;
            checker.state(self.step, &state);
            return Ok(());
        }
        let ranks = self.world.as_ref().map_or(1, World::size);
        let machine = record::machine(&self.device, is_eager, ranks);
        match &mut self.folder {
            Some(folder) => folder.begin_record(Start { head, machine }),
            None => Ok(()),
        }
    }

    /// Takes in the losses of steps that waited for them. The last one may have a state.
    fn take_losses(&mut self, losses: &[f32], state: Option<StateHash>) {
        let Some(recorded) = &mut self.recorded else { return };
        for loss in losses {
            let Some((step, batch, random)) = recorded.waiting.pop_front() else { break };
            recorded.ready.push_back(Entry { step, batch, loss: canonical_bits(*loss), random, state: None });
        }
        if let Some(last) = recorded.ready.back_mut() {
            last.state = state;
        }
    }

    /// Writes up to so many steps to the record, or compares them.
    #[track_caller]
    fn record(&mut self, most: usize) -> Result<()> {
        let Some(recorded) = &mut self.recorded else { return Ok(()) };
        let count = most.min(recorded.ready.len());
        for entry in recorded.ready.drain(..count) {
            match (&mut self.checker, &mut self.folder) {
                (Some(checker), _) => checker.step(&entry),
                (None, Some(folder)) => folder.record_step(&entry)?,
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// Makes one step on a batch that was awaited since `start`. Returns the loss if it is not finite.
    #[track_caller]
    fn advance(&mut self, batch: &Samples, hash: String, first: u64, start: Instant) -> Result<Option<f32>> {
        let next = self.step + 1;
        let every = self.steps.div_ceil(READINGS);
        let is_hashed = self.is_hashed_at(next);
        let is_full = self.recorded.as_ref().is_some_and(|r| r.waiting.len() + 1 >= KEPT_LOSSES);
        let is_told =
            self.step == 0 || next.is_multiple_of(every) || next == self.steps || self.is_evaluated_at(next);
        let lr = self.stepper.optimizer().lr();
        let losses = match self.paranoid.take_if(|check| check.checks(next)) {
            Some(mut check) => {
                let losses = self.step_twice(&mut check, batch);
                self.paranoid = Some(check);
                Some(losses?)
            }
            None => self.stepper.step(self.params, batch, is_told || is_hashed || is_full)?,
        };
        let random = self.stepper.random_calls();
        if let Some(recorded) = &mut self.recorded {
            recorded.waiting.push_back((next, hash, random));
        }
        if self.step == first {
            self.device.synchronize()?;
            self.times.first_step += start.elapsed();
        } else {
            self.times.steps += start.elapsed();
        }
        self.step = next;
        (self.observe)(&Event::Step { step: next })?;
        let start = Instant::now();
        if let Some(losses) = &losses {
            let state = if is_hashed { Some(self.state_hash()?) } else { None };
            self.take_losses(losses, state);
        }
        // A replay that has found something goes no step further.
        self.record(if self.checker.is_some() { usize::MAX } else { WRITTEN_AT_ONCE })?;
        self.times.files += start.elapsed();
        let last = losses.and_then(|losses| losses.last().copied());
        let Some(loss) = last.filter(|_| is_told) else { return Ok(None) };
        self.progress.loss = Some(loss);
        if !loss.is_finite() {
            return Ok(Some(loss));
        }
        let start = Instant::now();
        let norms = if self.has_norms { self.stepper.gradient_norms()? } else { Vec::new() };
        if let Some(folder) = &mut self.folder {
            let seconds = self.times.first_step + self.times.steps;
            let (seconds, peak) = (seconds.as_secs_f64(), self.device.memory().peak);
            let mut line =
                json!({"step": next, "loss": loss, "lr": lr, "seconds": seconds, "peak_bytes": peak});
            norms.iter().for_each(|(name, norm)| line[format!("grad_norm/{name}")] = json!(norm));
            folder.record(line)?;
        }
        self.times.files += start.elapsed();
        (self.observe)(&Event::Loss { step: next, loss, lr })?;
        if self.has_norms {
            (self.observe)(&Event::GradientNorms { step: next, norms: &norms })?;
        }
        Ok(None)
    }

    /// Notes a fault of the hardware, and reports it.
    #[track_caller]
    fn tell_fault(&mut self, fault: &Fault) -> Result<()> {
        if let Some(folder) = &mut self.folder {
            folder.fault(fault.step, &fault.to_string())?;
        }
        (self.observe)(&Event::Fault { fault })
    }

    /// The scores of the current model.
    #[track_caller]
    fn scores(&mut self) -> Result<Option<Scores>> {
        let Some((_, evaluation)) = &mut self.evaluation else { return Ok(None) };
        let start = Instant::now();
        // Finish queued steps first, so that they are not counted as evaluation time.
        self.device.synchronize()?;
        self.times.steps += start.elapsed();
        let start = Instant::now();
        let workspace = self.stepper.workspace();
        let scores = evaluation.run_within(&self.device, workspace.as_ref(), self.world.as_ref())?;
        self.times.evaluations += start.elapsed();
        Ok(Some(scores))
    }

    /// Evaluates and saves if it is due.
    #[track_caller]
    fn evaluate_if_due(&mut self) -> Result<()> {
        let step = self.step;
        if !self.is_evaluated_at(step) {
            return Ok(());
        }
        let Some(scores) = self.scores()? else { return Ok(()) };
        let merit = scores.merit;
        let is_best = !merit.is_nan() && self.progress.best.is_none_or(|b| merit > b.merit);
        match is_best {
            true => (self.progress.best, self.progress.since_best) = (Some(Best { step, merit }), 0),
            false => self.progress.since_best += 1,
        }
        let pairs = scores.values.iter().map(|(name, value)| (name.clone(), json!(value)));
        self.metrics = Value::Object(pairs.collect());
        if let Some(folder) = &mut self.folder {
            let mut line = json!({"step": step});
            scores.values.iter().for_each(|(name, value)| line[format!("test_{name}")] = json!(value));
            folder.record(line)?;
        }
        let loss = self.progress.loss.unwrap_or(f32::NAN);
        (self.observe)(&Event::Evaluated { step, loss, scores: &scores, is_best })?;
        self.scores = Some(scores);
        self.save(is_best)
    }

    /// Saves the state: on disk, or in memory without a folder.
    #[track_caller]
    fn save(&mut self, is_best: bool) -> Result<()> {
        let start = Instant::now();
        self.read_losses()?;
        let is_kept = self.is_kept_at(self.step);
        if self.folder.is_some() || self.last.is_none() {
            if self.verified != self.step {
                self.verify()?;
            }
            let mut state = Checkpoint::new("", self.params)?;
            // All processes give their part.
            self.stepper.take(&mut state)?;
            state.data = self.data.clone();
            state.progress = self.progress;
            state.metrics = self.metrics.clone();
            (self.describe)(&mut state);
            match &mut self.folder {
                Some(folder) => folder.save(&state, is_best, is_kept)?,
                None => self.last = Some(state),
            }
        }
        self.saved = self.step;
        self.times.files += start.elapsed();
        Ok(())
    }

    /// The error for a loss that is not finite.
    #[track_caller]
    fn not_a_number(self, bad: f32, loss: &Loss<'_>, batches: Batches) -> Error {
        let (step, params, shards) = (self.step, self.params, self.shards);
        let world = self.world.clone();
        let found = || {
            let from = match &self.folder {
                Some(folder) => Checkpoint::load(folder.path().join(CHECKPOINT))?,
                None => match self.last {
                    Some(last) => last,
                    None => return Ok("nothing was kept to go back to".into()),
                },
            };
            diagnose::diagnose(params, self.stepper.into_optimizer(), loss, batches, &from, step, shards)
        };
        // The first process looks for it alone, the others wait.
        let found = match world {
            Some(world) => {
                let mine =
                    if world.rank() == 0 { found().unwrap_or_else(|e| e.to_string()) } else { String::new() };
                world.broadcast(mine.as_bytes()).map(|b| String::from_utf8_lossy(&b).into_owned())
            }
            None => found(),
        };
        match found {
            Ok(found) => {
                let cure = "a smaller learning rate, gradient clipping or a warm-up may help";
                let why = format!("the loss of step {step} is {bad}: {found}; {cure}");
                Error::new("train", ErrorKind::NotFinite { why })
            }
            Err(error) => error,
        }
    }

    /// Reads the losses of all steps, and writes them to the record.
    #[track_caller]
    fn read_losses(&mut self) -> Result<()> {
        if self.recorded.as_ref().is_some_and(|r| !r.waiting.is_empty()) {
            let losses = self.stepper.losses()?;
            self.take_losses(&losses, None);
        }
        self.record(usize::MAX)
    }

    /// What a replay found.
    #[track_caller]
    fn verified(mut self, first: u64) -> Result<Verified> {
        self.read_losses()?;
        let mut state = Checkpoint::new("", self.params)?;
        self.stepper.take(&mut state)?;
        state.data = self.data.clone();
        (self.describe)(&mut state);
        let difference = self.checker.and_then(|c| c.found(self.stepper.optimizer()));
        Ok(Verified { steps: self.step - first, difference, state })
    }

    #[track_caller]
    fn finish(mut self, end: End, first: u64) -> Result<Outcome> {
        let start = Instant::now();
        self.device.synchronize()?;
        self.times.steps += start.elapsed();
        if self.saved != self.step {
            self.save(false)?;
        }
        // A run that was over before it was opened is evaluated as it is.
        if self.scores.is_none() && end != End::Stopped {
            self.scores = self.scores()?;
        }
        let why = match end {
            End::Finished => Some("finished"),
            End::Patience => Some("patience"),
            End::Stopped => None,
        };
        if let (Some(why), Some(folder), true) = (why, &mut self.folder, self.recorded.is_some()) {
            folder.end_record(why, self.step, &self.params.fingerprint()?)?;
        }
        Ok(Outcome {
            end,
            step: self.step,
            ran: self.step - first,
            loss: self.progress.loss,
            scores: self.scores,
            progress: self.progress,
            times: self.times,
            faults: self.paranoid.as_ref().map_or(0, |check| check.faults),
            optimizer_bytes: self.stepper.optimizer().state_bytes(),
            folder: self.folder,
        })
    }
}
