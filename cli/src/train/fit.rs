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

/// Trains and evaluates. Everything on the device is freed on return.
pub(super) fn fit(
    plan: Plan,
    (params, net): (Params, Net),
    device: &Device,
    command: &Train,
    out: &Out,
    ranks: Option<&Ranks>,
) -> Answer<Fitted> {
    let Plan { spec, data, from, folder } = plan;
    let first = from.as_ref().map_or(0, |f| f.step);
    let board = match &folder {
        _ if out.is_silent() => None,
        Some(folder) if command.tensorboard => Some(EventWriter::create(folder.path())?),
        None if command.tensorboard => return fail("--tensorboard needs a folder, not --out none"),
        _ => None,
    };
    let config = match serde_json::to_value(&spec) {
        Ok(value) => value,
        Err(e) => return fail(format!("the settings cannot be written: {e}")),
    };
    let texts = net.texts()?;
    let mut trainer =
        trainer(&spec, &params, &net, &data)?.stop_when(signals::stop()).describe(|checkpoint| {
            checkpoint.model = spec.model.name();
            checkpoint.config = config.clone();
            checkpoint.texts.extend(texts.clone());
            if let Some(tokenizer) = &spec.data.tokens {
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
            return fail("--keep needs a folder, not --out none");
        }
        trainer = trainer.keep(count);
    }
    if let Some(ranks) = ranks {
        trainer = trainer.world(&ranks.world);
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
    if let Some(patience) = spec.patience {
        trainer = trainer.patience(patience);
    }
    if command.mode == Mode::Eager {
        trainer = trainer.eager();
    }
    if let Some(from) = from {
        trainer = trainer.resume(from);
    }
    if let Some(folder) = folder {
        trainer = trainer.folder(folder);
    }
    let mut report = Report::new(command, device, out, board, [first, spec.steps]);
    let run = || trainer.observe(|event| report.see(event)).run();
    let ended = match ranks {
        Some(ranks) => ranks.train(run),
        None => run(),
    };
    report.bar.finish_and_clear();
    // An error of writing our own file is reported unchanged.
    if let Some(fail) = report.failed.take() {
        return Err(fail);
    }
    let outcome = ended.map_err(|error| match error.kind() {
        ErrorKind::NotFinite { why } => Fail::Message(format!("{why} (--lr, --clip 1, --warmup)")),
        _ => error.into(),
    });
    let outcome = match ranks {
        Some(ranks) => ranks.agree_unless_interrupted(outcome)?,
        None => outcome?,
    };
    report.write_profile()?;
    let best = outcome.progress.best.and_then(|best| report.best(best.step, outcome.folder.as_ref()));
    let fingerprint = params.fingerprint()?;
    let mut files = Vec::new();
    if let Some(folder) = &outcome.folder {
        if outcome.end != End::Stopped && !out.is_silent() {
            let _busy = out.busy("drawing pictures");
            super::report::pictures(folder, &spec, &net, device, &data)?;
        }
        files = folder.files();
    }
    if outcome.end == End::Stopped {
        let (step, steps) = (outcome.step, spec.steps);
        let how = match &outcome.folder {
            Some(folder) => format!("go on with: dittograd train --resume {}", folder.path().display()),
            None => "nothing was kept (--out none)".into(),
        };
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
    Ok(Fitted { outcome, best, files, fingerprint })
}

/// Reports the events of a run.
struct Report<'a> {
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
    failed: Option<Fail>,
}

impl<'a> Report<'a> {
    fn new(
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
        let report =
            Report { command, device, out, board, bar, range, start: None, better: None, failed: None };
        report.profile_after(first);
        report
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
    fn best(&self, step: u64, folder: Option<&RunFolder>) -> Option<(u64, Scores)> {
        if let Some(better) = self.better.clone().filter(|b| b.0 == step) {
            return Some(better);
        }
        task::scores_at(folder?.lines(), step).map(|scores| (step, scores))
    }

    fn see(&mut self, event: &Event<'_>) -> Result<(), Error> {
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
                let tell = || {
                    self.out.progress(
                        || {
                            let mut line = json!({"step": step, "loss": loss});
                            task::put(scores, &mut line);
                            line
                        },
                        || format!("step {step} loss {loss:.6}, {}", task::text(scores)),
                    );
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
