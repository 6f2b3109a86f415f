//! A run in progress: its steps, and what is due after each.

use super::evaluate::{Evaluation, Scores};
use super::folder::{CHECKPOINT, RunFolder};
use super::paranoid::{Checked, Fault, Paranoid};
use super::record::{self, Entry, RecordHead, Start, StateHash};
use super::step::{Loss, Stepper};
use super::verify::{Checker, Verified};
use super::{End, Event, KEPT_LOSSES, Observe, Outcome, READINGS, Times, WRITTEN_AT_ONCE, diagnose};
use crate::data::{Batches, Loader, Samples};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Best, Checkpoint, DataState, Progress};
use crate::numerics::canonical_bits;
use crate::parallel::World;
use crate::params::Params;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Steps on their way to the record.
#[derive(Default)]
pub(super) struct Recorded {
    /// Those whose losses were not read yet: step, hash of the batch, random calls after it.
    waiting: VecDeque<(u64, String, u64)>,
    /// Those that are to be written.
    ready: VecDeque<Entry>,
}

/// A step that is about to be made, or was just made.
pub(super) struct Next {
    pub(super) batch: Samples,
    /// The hash of the batch, for the record.
    hash: String,
    lr: f64,
    /// Whether its loss is reported.
    is_told: bool,
    /// Whether the record has a hash of the state after it.
    is_hashed: bool,
    /// Whether losses are read after it.
    pub(super) reads_losses: bool,
}

/// A run in progress.
pub(super) struct Run<'a> {
    pub(super) params: &'a Params,
    pub(super) device: Device,
    /// The processes that share the run, if they are several.
    pub(super) world: Option<World>,
    pub(super) shards: usize,
    pub(super) verify_every: Option<u64>,
    /// Computes steps twice.
    pub(super) paranoid: Option<Paranoid<'a>>,
    pub(super) has_norms: bool,
    pub(super) stepper: Stepper<'a>,
    pub(super) evaluation: Option<(u64, Evaluation<'a>)>,
    pub(super) folder: Option<RunFolder>,
    pub(super) describe: Box<dyn Fn(&mut Checkpoint) + 'a>,
    pub(super) observe: Box<Observe<'a>>,
    pub(super) data: DataState,
    pub(super) steps: u64,
    pub(super) step: u64,
    pub(super) progress: Progress,
    pub(super) scores: Option<Scores>,
    /// The values of the last evaluation, possibly from before a resume.
    pub(super) metrics: Value,
    /// The step of the last saved state.
    pub(super) saved: u64,
    /// The step after which the parameters of all processes were last compared.
    pub(super) verified: u64,
    /// A state to go back to if there is no folder.
    pub(super) last: Option<Checkpoint>,
    /// Steps for the record, if there is one.
    pub(super) recorded: Option<Recorded>,
    pub(super) record_every: Option<u64>,
    /// Number of checkpoints that are kept along the run.
    pub(super) keep: u64,
    /// Compares steps with a record, instead of writing one.
    pub(super) checker: Option<Checker<'a>>,
    pub(super) times: Times,
    /// The step that it started from.
    pub(super) first: u64,
    pub(super) loss: Rc<Loss<'a>>,
    /// The batches of all processes.
    pub(super) whole: Batches,
    /// Prepares those of this process, with their hashes.
    pub(super) loader: Option<Loader<(Samples, String)>>,
    pub(super) patience: Option<u64>,
    pub(super) save_every: Option<u64>,
    pub(super) stop: Arc<AtomicBool>,
}

impl Run<'_> {
    /// Whether one of the processes was asked to stop.
    #[track_caller]
    fn is_stopped(&self) -> Result<bool> {
        let here = self.stop.load(Ordering::SeqCst);
        match &self.world {
            Some(world) => world.any(here),
            None => Ok(here),
        }
    }

    /// Why it ends here, if it does.
    #[track_caller]
    pub(super) fn end(&self) -> Result<Option<End>> {
        if self.step >= self.steps || self.checker.as_ref().is_some_and(|c| c.difference.is_some()) {
            return Ok(Some(End::Finished));
        }
        if self.patience.is_some_and(|p| self.progress.since_best >= p) {
            return Ok(Some(End::Patience));
        }
        Ok(self.is_stopped()?.then_some(End::Stopped))
    }

    /// Makes the next step, and all that is due after it. Returns the loss if it is not finite; then the run is over.
    #[track_caller]
    pub(super) fn advance(&mut self) -> Result<Option<f32>> {
        let start = Instant::now();
        let next = self.next()?;
        let step = self.step + 1;
        let losses = match self.paranoid.as_mut().filter(|check| check.checks(step)) {
            Some(check) => {
                let tell = &mut |fault: &Fault| {
                    if let Some(folder) = &mut self.folder {
                        folder.fault(fault.step, &fault.to_string())?;
                    }
                    (self.observe)(&Event::Fault { fault })
                };
                let checked = Checked { params: self.params, stepper: &mut self.stepper, step, tell };
                Some(check.step(checked, &next.batch)?)
            }
            None => {
                self.stepper.step(self.params, &next.batch, next.reads_losses)?;
                if next.reads_losses { Some(self.stepper.losses()?) } else { None }
            }
        };
        self.complete(next, losses, start.elapsed())
    }

    /// The next step, about to be made.
    #[track_caller]
    pub(super) fn next(&mut self) -> Result<Next> {
        let (batch, hash) = match self.loader.as_mut().and_then(Loader::next) {
            Some(batch) => batch?,
            None => {
                return Err(Error::argument("train", "data", "it ended before the steps did"));
            }
        };
        let step = self.step + 1;
        let every = self.steps.div_ceil(READINGS);
        let is_hashed = self.is_hashed_at(step);
        let is_full = self.recorded.as_ref().is_some_and(|r| r.waiting.len() + 1 >= KEPT_LOSSES);
        let is_told =
            self.step == 0 || step.is_multiple_of(every) || step == self.steps || self.is_evaluated_at(step);
        let reads_losses = is_told || is_hashed || is_full;
        let lr = self.stepper.optimizer().lr();
        Ok(Next { batch, hash, lr, is_told, is_hashed, reads_losses })
    }

    /// Does all that is due after a step that was made, which took `spent`, with the losses if they were read. Returns the last one if
    /// it is not finite.
    #[track_caller]
    pub(super) fn complete(
        &mut self,
        made: Next,
        losses: Option<Vec<f32>>,
        spent: Duration,
    ) -> Result<Option<f32>> {
        if let Some(bad) = self.note(made, losses, spent)? {
            return Ok(Some(bad));
        }
        self.evaluate_if_due()?;
        if self.verify_every.is_some_and(|n| self.step.is_multiple_of(n)) && self.verified != self.step {
            self.verify()?;
        }
        let is_due =
            self.save_every.is_some_and(|n| self.step.is_multiple_of(n)) || self.is_kept_at(self.step);
        if is_due && self.checker.is_none() && self.saved != self.step {
            self.save(false)?;
        }
        Ok(None)
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
    pub(super) fn leads(&self) -> bool {
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
    pub(super) fn begin_record(&mut self, program: Option<String>, seed: u64, is_eager: bool) -> Result<()> {
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

    /// Counts, records and reports a step that was made. Returns the loss if it is not finite.
    #[track_caller]
    fn note(&mut self, made: Next, losses: Option<Vec<f32>>, spent: Duration) -> Result<Option<f32>> {
        let Next { hash, lr, is_told, is_hashed, .. } = made;
        let next = self.step + 1;
        let start = Instant::now();
        let random = self.stepper.random_calls();
        if let Some(recorded) = &mut self.recorded {
            recorded.waiting.push_back((next, hash, random));
        }
        if self.step == self.first {
            self.device.synchronize()?;
            self.times.first_step += spent + start.elapsed();
        } else {
            self.times.steps += spent + start.elapsed();
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
    pub(super) fn save(&mut self, is_best: bool) -> Result<()> {
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
    pub(super) fn not_a_number(self, bad: f32) -> Error {
        drop(self.loader);
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
            diagnose::diagnose(
                params,
                self.stepper.into_optimizer(),
                self.loss.as_ref(),
                self.whole,
                &from,
                step,
                shards,
            )
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
    pub(super) fn verified(mut self) -> Result<Verified> {
        self.read_losses()?;
        let mut state = Checkpoint::new("", self.params)?;
        self.stepper.take(&mut state)?;
        state.data = self.data.clone();
        (self.describe)(&mut state);
        let difference = self.checker.and_then(|c| c.found(self.stepper.optimizer()));
        Ok(Verified { steps: self.step - self.first, difference, state })
    }

    #[track_caller]
    pub(super) fn finish(mut self, end: End) -> Result<Outcome> {
        self.loader = None;
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
            ran: self.step - self.first,
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
