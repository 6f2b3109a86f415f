//! Runs training, with the program's reports, pictures and files.

use super::{Mode, Plan, RecordEvery, Spec, TOKENIZER, Train};
use crate::models::Net;
use crate::out::{Out, bytes, warn};
use crate::ranks::Ranks;
use crate::signals;
use crate::task::{self, Data, evaluation, loss};
use crate::tensorboard::{EventWriter, wall_time};
use crate::trace_file::Trace;
use crate::{Answer, Fail, fail};
use dittograd::data::Batches;
use dittograd::device::MemoryReport;
use dittograd::error::ErrorKind;
use dittograd::prelude::*;
use dittograd::train::{End, Event, Outcome};
use indicatif::{FormattedDuration, ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// The number of profiled steps, and of warm-up steps before them.
const PROFILED_STEPS: u64 = 3;
const WARM_UP_STEPS: u64 = 2;

/// The result of a run.
pub(super) struct Fitted {
    pub(super) outcome: Outcome,
    /// The step of the best evaluation, and its scores.
    pub(super) best: Option<(u64, Scores)>,
    /// The names of the files in its folder.
    pub(super) files: Vec<String>,
    pub(super) fingerprint: String,
}

/// The run of these settings, which computes but leaves nothing behind yet.
pub(crate) fn trainer<'a>(spec: &Spec, params: &'a Params, net: &'a Net, data: &Data) -> Answer<Trainer<'a>> {
    let batches = Batches::new(data.train.clone(), spec.batch, spec.seed)?;
    let (task, module) = (spec.task, net.module().clone());
    let evaluation = evaluation(task, net.module().eval(), data)?;
    Ok(Trainer::new(params, spec.optimizer(), batches, move |v| loss(task, module.as_ref(), v[0], v[1]))
        .steps(spec.steps)
        .seed(spec.seed)
        .shards(spec.shards)
        .evaluate(spec.eval_every, evaluation))
}

/// A run with all that its trainer borrows.
pub(super) struct Job {
    pub(super) spec: Spec,
    data: Data,
    params: Params,
    net: Net,
    /// The settings and the texts of every checkpoint.
    config: Value,
    texts: BTreeMap<String, String>,
    /// The first and the last step.
    pub(super) range: [u64; 2],
}

/// Where a run begins: its checkpoint, if it continues one, and its folder.
pub(super) struct Begun {
    from: Option<Checkpoint>,
    folder: Option<RunFolder>,
}

impl Job {
    pub(super) fn new(plan: Plan, (params, net): (Params, Net)) -> Answer<(Job, Begun)> {
        let Plan { spec, data, from, folder } = plan;
        let config = match serde_json::to_value(&spec) {
            Ok(value) => value,
            Err(e) => return fail(format!("the settings cannot be written: {e}")),
        };
        let range = [from.as_ref().map_or(0, |f| f.step), spec.steps];
        let texts = net.texts()?;
        Ok((Job { spec, data, params, net, config, texts, range }, Begun { from, folder }))
    }

    /// The trainer, as the command says.
    pub(super) fn trainer<'a>(&'a self, begun: Begun, command: &Train) -> Answer<Trainer<'a>> {
        let Begun { from, folder } = begun;
        let mut trainer = trainer(&self.spec, &self.params, &self.net, &self.data)?
            .stop_when(signals::stop())
            .describe(|checkpoint| {
                checkpoint.model = self.spec.model.name();
                checkpoint.config = self.config.clone();
                checkpoint.texts.extend(self.texts.clone());
                if let Some(tokenizer) = &self.spec.data.tokens {
                    checkpoint.texts.insert(TOKENIZER.into(), tokenizer.to_json());
                }
            });
        trainer = match command.record {
            None => trainer,
            Some(RecordEvery::Steps(steps)) => trainer.record_every(steps),
            Some(RecordEvery::Never) => trainer.unrecorded(),
        };
        if let Some(count) = command.keep {
            if folder.is_none() {
                return no_folder("--keep");
            }
            trainer = trainer.keep(count);
        }
        if let Some(every) = command.verify_every {
            trainer = trainer.verify_every(every);
        }
        if let Some(every) = command.paranoid {
            trainer = trainer.paranoid(every);
        }
        if command.norms {
            trainer = trainer.gradient_norms();
        }
        if let Some(patience) = self.spec.patience {
            trainer = trainer.patience(patience);
        }
        if command.mode == Mode::Eager {
            trainer = trainer.eager();
        }
        if let Some(from) = from {
            trainer = trainer.resume(from);
        }
        Ok(match folder {
            Some(folder) => trainer.folder(folder),
            None => trainer,
        })
    }

    /// The result of a run that has ended, with its pictures.
    pub(super) fn end(
        &self,
        outcome: Outcome,
        report: &Report<'_>,
        device: &Device,
        out: &Out,
    ) -> Answer<Fitted> {
        let best = outcome.progress.best.and_then(|best| report.best(best.step, outcome.folder.as_ref()));
        let fingerprint = self.params.fingerprint()?;
        let mut files = Vec::new();
        if let Some(folder) = &outcome.folder {
            if outcome.end != End::Stopped && !out.is_silent() {
                let _busy = out.busy("drawing pictures");
                super::report::pictures(folder, &self.spec, &self.net, device, &self.data)?;
            }
            files = folder.files();
        }
        Ok(Fitted { outcome, best, files, fingerprint })
    }
}

/// Milliseconds of a step, but for the first one, which compiles.
pub(super) fn step_ms(outcome: &Outcome) -> f64 {
    outcome.times.steps.as_secs_f64() * 1e3 / outcome.ran.saturating_sub(1).max(1) as f64
}

/// How to go on after a stop, from a folder if there is one.
pub(super) fn going_on(folder: Option<&Path>) -> String {
    match folder {
        Some(folder) => format!("go on with: dittograd train --resume {}", folder.display()),
        None => "nothing was kept (--out none)".into(),
    }
}

/// The error of an option that needs a folder.
pub(super) fn no_folder<T>(option: &str) -> Answer<T> {
    fail(format!("{option} needs a folder, not --out none"))
}

/// An error of a run in terms of options.
pub(super) fn in_options(error: Error) -> Fail {
    match error.kind() {
        ErrorKind::NotFinite { why } => Fail::Message(format!("{why} (--lr, --clip 1, --warmup)")),
        _ => error.into(),
    }
}

/// The event files for TensorBoard, if they are wanted.
pub(super) fn event_files(begun: &Begun, command: &Train, out: &Out) -> Answer<Option<EventWriter>> {
    match &begun.folder {
        _ if out.is_silent() => Ok(None),
        Some(folder) if command.tensorboard => Ok(Some(EventWriter::create(folder.path())?)),
        None if command.tensorboard => no_folder("--tensorboard"),
        _ => Ok(None),
    }
}

/// Trains and evaluates. Everything on the device is freed on return.
pub(super) fn fit(
    plan: Plan,
    built: (Params, Net),
    device: &Device,
    command: &Train,
    out: &Out,
    ranks: Option<&Ranks>,
) -> Answer<Fitted> {
    let (job, begun) = Job::new(plan, built)?;
    let board = event_files(&begun, command, out)?;
    let mut trainer = job.trainer(begun, command)?;
    if let Some(ranks) = ranks {
        trainer = trainer.world(&ranks.world);
    }
    let mut report = Report::new(command, device, out, board, job.range);
    let run = || trainer.observe(|event| report.see(event)).run();
    let ended = match ranks {
        Some(ranks) => ranks.train(run),
        None => run(),
    };
    report.finish();
    // An error of writing our own file is reported unchanged.
    if let Some(fail) = report.failed.take() {
        return Err(fail);
    }
    let outcome = ended.map_err(in_options);
    let outcome = match ranks {
        Some(ranks) => ranks.agree_unless_interrupted(outcome)?,
        None => outcome?,
    };
    report.write_profile()?;
    let fitted = job.end(outcome, &report, device, out)?;
    let outcome = &fitted.outcome;
    if outcome.end == End::Stopped {
        let (step, steps) = (outcome.step, job.spec.steps);
        let how = going_on(outcome.folder.as_ref().map(RunFolder::path));
        if !out.is_silent() {
            warn(&format!("stopped at step {step} of {steps}; {how}"));
        }
    }
    if outcome.end == End::Patience {
        let (at, since) = (outcome.step, outcome.progress.since_best);
        out.progress(
            || json!({"step": at, "stopped": "patience"}),
            || format!("step {at}: stopped, {since} evaluations without a better one"),
        );
    }
    Ok(fitted)
}

/// Reports the events of a run.
pub(super) struct Report<'a> {
    command: &'a Train,
    device: &'a Device,
    out: &'a Out,
    board: Option<EventWriter>,
    bar: ProgressBar,
    /// The first and the last step.
    range: [u64; 2],
    /// When the first step was done: it compiles kernels and says nothing about the others.
    start: Option<Instant>,
    /// The last better evaluation.
    better: Option<(u64, Scores)>,
    /// Why a file could not be written.
    pub(super) failed: Option<Fail>,
    /// What else is told of evaluations, if this run is one of several.
    among: Option<Among<'a>>,
}

/// Tells of an evaluation: its step, the training loss and the scores.
pub(super) type Among<'a> = Box<dyn FnMut(u64, f32, &Scores) + Send + 'a>;

impl<'a> Report<'a> {
    pub(super) fn new(
        command: &'a Train,
        device: &'a Device,
        out: &'a Out,
        board: Option<EventWriter>,
        range: [u64; 2],
    ) -> Report<'a> {
        let [first, steps] = range;
        let bar = if out.bar() { ProgressBar::new(steps) } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}") {
            bar.set_style(style);
        }
        bar.set_position(first);
        bar.set_message(match command.mode {
            Mode::Compiled => "compiling the step",
            Mode::Eager => "first step",
        });
        if out.bar() {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        let (start, better, failed, among) = (None, None, None, None);
        let report = Report { command, device, out, board, bar, range, start, better, failed, among };
        report.profile_after(first);
        report
    }

    /// The report of a run among several: `tell` tells of evaluations, and only the first has a bar.
    pub(super) fn among(mut self, is_first: bool, tell: Among<'a>) -> Report<'a> {
        if !is_first {
            self.bar.finish_and_clear();
            self.bar = ProgressBar::hidden();
        }
        self.among = Some(tell);
        self
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Starts timing ops if `step` is the one before the profiled steps. A short run has no warm-up.
    fn profile_after(&self, step: u64) {
        let [first, steps] = self.range;
        let after = WARM_UP_STEPS.min(steps.saturating_sub(first + 1));
        if self.command.profile.is_some() && step == first + after && step < steps {
            self.device.profile();
        }
    }

    /// Writes the times of ops, if they were profiled.
    fn write_profile(&self) -> Answer<()> {
        match &self.command.profile {
            Some(path) if self.device.is_profiled() && !self.out.is_silent() => {
                write_profile(path, self.device)
            }
            _ => Ok(()),
        }
    }

    /// What stands beside the bar: the loss, the speed, the memory and the time that is left.
    fn message(&self, step: u64, loss: f32) -> String {
        let live = bytes(self.device.memory().live);
        let [first, steps] = self.range;
        let done = step.saturating_sub(first + 1);
        let seconds = self.start.map_or(0.0, |s| s.elapsed().as_secs_f64());
        if done == 0 || seconds == 0.0 {
            return format!("loss {loss:.4}, memory {live}");
        }
        let rate = done as f64 / seconds;
        let left = Duration::try_from_secs_f64(steps.saturating_sub(step) as f64 / rate).unwrap_or_default();
        format!("loss {loss:.4}, {rate:.0} a second, memory {live}, {} left", FormattedDuration(left))
    }

    /// The scores of the best evaluation, possibly from before a resume.
    pub(super) fn best(&self, step: u64, folder: Option<&RunFolder>) -> Option<(u64, Scores)> {
        if let Some(better) = self.better.clone().filter(|b| b.0 == step) {
            return Some(better);
        }
        task::scores_at(folder?.lines(), step).map(|scores| (step, scores))
    }

    pub(super) fn see(&mut self, event: &Event<'_>) -> Result<(), Error> {
        match self.tell(event) {
            Ok(()) => Ok(()),
            Err(fail) => {
                // Other ranks are told this.
                let why = fail.message().unwrap_or_default();
                self.failed = Some(fail);
                Err(Error::new("report", ErrorKind::Message { why }))
            }
        }
    }

    fn tell(&mut self, event: &Event<'_>) -> Answer<()> {
        match event {
            Event::Step { step } => {
                let step = *step;
                self.start.get_or_insert_with(Instant::now);
                self.profile_after(step);
                if step == self.range[0] + WARM_UP_STEPS + PROFILED_STEPS {
                    self.write_profile()?;
                }
                if self.command.memory.is_some_and(|n| step.is_multiple_of(n)) {
                    let report = self.device.memory_report();
                    let tell =
                        || self.out.progress(|| memory_json(step, &report), || memory_line(step, &report));
                    self.bar.suspend(tell);
                }
            }
            Event::Loss { step, loss, lr } => {
                if let Some(board) = &mut self.board {
                    board.scalar("loss/training", *step, *loss, wall_time())?;
                    board.scalar("learning_rate", *step, *lr as f32, wall_time())?;
                }
                if self.out.bar() {
                    self.bar.set_position(*step);
                    self.bar.set_message(self.message(*step, *loss));
                }
            }
            Event::GradientNorms { step, norms } => {
                for (name, norm) in *norms {
                    if let Some(board) = &mut self.board {
                        board.scalar(&format!("grad_norm/{name}"), *step, *norm, wall_time())?;
                    }
                }
            }
            Event::Fault { fault } => {
                let why =
                    format!("a fault of the hardware in step {}, which is repeated: {fault}", fault.step);
                self.bar.suspend(|| warn(&why));
            }
            Event::Evaluated { step, loss, scores, is_best, .. } => {
                if *is_best {
                    self.better = Some((*step, (*scores).clone()));
                }
                let tell = || match &mut self.among {
                    Some(tell) => tell(*step, *loss, scores),
                    None => self.out.progress(
                        || {
                            let mut line = json!({"step": step, "loss": loss});
                            task::put(scores, &mut line);
                            line
                        },
                        || format!("step {step} loss {loss:.6}, {}", task::text(scores)),
                    ),
                };
                self.bar.suspend(tell);
                if let Some(board) = &mut self.board {
                    for (name, value) in &scores.values {
                        let name = if name == "loss" { "loss/test".into() } else { format!("test/{name}") };
                        board.scalar(&name, *step, *value as f32, wall_time())?;
                    }
                    board.flush()?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Writes the times of profiled ops as a trace.
fn write_profile(path: &Path, device: &Device) -> Answer<()> {
    let mut trace = Trace::new();
    for op in device.profiled() {
        let micro = |d: std::time::Duration| d.as_secs_f64() * 1e6;
        let rate = op.bytes as f64 / op.time.as_secs_f64().max(1e-9) / 1e9;
        let args =
            [("shape", json!(op.shape.to_string())), ("bytes", json!(op.bytes)), ("GB/s", json!(rate))];
        trace.span(&device.to_string(), op.name, micro(op.start), micro(op.time), &args);
        trace.counter("live bytes", micro(op.start + op.time), op.live as f64);
    }
    trace.write(path)
}

/// The memory of one step: live at its end, peak, cached, and number of allocations and frees.
fn memory_line(step: u64, report: &MemoryReport) -> String {
    let (in_step, cached) = (report.step.unwrap_or_default(), bytes(report.now.cached));
    let (live, peak) = (bytes(in_step.live), bytes(in_step.peak));
    let largest = report.holders.first().map_or_else(String::new, |h| format!(", largest {h}"));
    let counts = format!("{} allocations, {} frees", in_step.allocs, in_step.frees);
    format!("step {step} memory live {live}, peak {peak}, cached {cached}, {counts}{largest}")
}

/// Like [`memory_line`], as a JSON object.
fn memory_json(step: u64, report: &MemoryReport) -> Value {
    let in_step = report.step.unwrap_or_default();
    json!({
        "step": step, "live_bytes": in_step.live, "peak_bytes": in_step.peak, "cached_bytes": report.now.cached,
        "allocations": in_step.allocs, "frees": in_step.frees,
    })
}
