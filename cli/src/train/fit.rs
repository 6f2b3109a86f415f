//! The loop: steps, evaluations, checkpoints, and what to say meanwhile.

use super::folder::{BEST, CHECKPOINT};
use super::{Mode, Plan, Spec, TOKENIZER, Train, name};
use crate::models::{Net, Task};
use crate::out::{Out, bytes, warn};
use crate::task::{Scores, evaluate, input, loss};
use crate::tensorboard::{EventWriter, wall_time};
use crate::trace_file::Trace;
use crate::{Answer, fail};
use dittograd::data::{Batches, Loader};
use dittograd::device::MemoryReport;
use dittograd::io::{Checkpoint, DataState, RandomState};
use dittograd::nn::Module;
use dittograd::prelude::*;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Times that the loss is read in a run. Reading waits for the device.
const READINGS: u64 = 200;
/// The steps that are profiled, and those before them, which take longer.
const PROFILED: u64 = 3;
const PROFILED_AFTER: u64 = 2;
/// Batches that are made ahead.
const AHEAD: usize = 4;

/// What a run ended with.
pub(super) struct Ending {
    pub(super) loss: f32,
    pub(super) scores: Scores,
    pub(super) fingerprint: String,
    pub(super) seconds: f64,
    pub(super) parameters: usize,
    /// All steps behind the parameters, and those of this run.
    pub(super) steps: u64,
    pub(super) ran: u64,
    /// Whether it was stopped before its end.
    pub(super) is_cut: bool,
    pub(super) files: Vec<String>,
}

/// The loss of a batch, in parts if the memory is to be spared: values of one part are made again when its gradient is
/// taken, so only one part's are there at a time.
fn batch_loss<'s>(
    task: Task,
    parts: usize,
    net: &dyn Module,
    x: Var<'s>,
    y: Var<'s>,
) -> Result<Var<'s>, Error> {
    if parts == 1 {
        return loss(task, net, x, y);
    }
    let (session, rows) = (x.session(), x.shape()?.dims()[0] / parts);
    let part = |i: usize| {
        session.checkpoint(|| {
            let of = |v: Var<'s>| v.narrow(0, i * rows, rows);
            loss(task, net, of(x)?, of(y)?)
        })
    };
    let mut sum = part(0)?;
    for i in 1..parts {
        sum = sum.add(part(i)?)?;
    }
    sum * (1.0 / parts as f64)
}

/// One training step after another, in either mode.
trait Stepper {
    /// A step on a batch; the loss before it if wanted, because asking waits for the device.
    fn step(&mut self, x: &AnyTensor, y: &AnyTensor, want_loss: bool) -> Result<Option<f32>, Error>;
    /// Puts its state into a checkpoint.
    fn take(&self, checkpoint: &mut Checkpoint) -> Result<(), Error>;
    /// Goes on from a checkpoint.
    fn restore(&mut self, params: &Params, checkpoint: &Checkpoint) -> Result<(), Error>;
}

struct Eager<'a> {
    session: Session,
    params: &'a Params,
    net: Arc<dyn Module>,
    task: Task,
    parts: usize,
    optimizer: Optimizer,
}

impl Stepper for Eager<'_> {
    fn step(&mut self, x: &AnyTensor, y: &AnyTensor, want_loss: bool) -> Result<Option<f32>, Error> {
        let value = {
            let (x, y) = (input(&self.session, x)?, input(&self.session, y)?);
            let loss = batch_loss(self.task, self.parts, self.net.as_ref(), x, y)?;
            let value = if want_loss { Some(loss.item()?) } else { None };
            self.optimizer.step(self.params, loss.backward()?)?;
            value
        };
        self.session.reset();
        Ok(value)
    }

    fn take(&self, checkpoint: &mut Checkpoint) -> Result<(), Error> {
        checkpoint.random = RandomState::of(&self.session);
        checkpoint.take(&self.optimizer)
    }

    fn restore(&mut self, params: &Params, checkpoint: &Checkpoint) -> Result<(), Error> {
        checkpoint.restore(params, &mut self.optimizer)?;
        checkpoint.random.restore(&self.session)
    }
}

struct Compiled<F>(TrainStep<F>);

impl<F> Stepper for Compiled<F>
where
    F: for<'s> Fn(&[Var<'s>]) -> Result<Var<'s>, Error>,
{
    fn step(&mut self, x: &AnyTensor, y: &AnyTensor, want_loss: bool) -> Result<Option<f32>, Error> {
        self.0.run(&[x.into(), y.into()])?;
        if want_loss { self.0.loss().map(Some) } else { Ok(None) }
    }

    fn take(&self, checkpoint: &mut Checkpoint) -> Result<(), Error> {
        checkpoint.take(&self.0)
    }

    fn restore(&mut self, params: &Params, checkpoint: &Checkpoint) -> Result<(), Error> {
        checkpoint.restore(params, &mut self.0)
    }
}

fn stepper<'a>(spec: &Spec, mode: Mode, params: &'a Params, net: &Arc<dyn Module>) -> Box<dyn Stepper + 'a> {
    let (task, parts, net) = (spec.task, spec.accumulate, net.clone());
    match mode {
        Mode::Eager => {
            let session = Session::eager_seeded(params.device(), spec.seed);
            Box::new(Eager { session, params, net, task, parts, optimizer: spec.optimizer() })
        }
        Mode::Compiled => {
            let step = TrainStep::new(params, spec.optimizer(), move |v| {
                batch_loss(task, parts, net.as_ref(), v[0], v[1])
            });
            Box::new(Compiled(step.seeded(spec.seed)))
        }
    }
}

/// Whether Ctrl-C was pressed. The second time ends the program at once.
fn interrupted() -> &'static AtomicBool {
    static FLAG: OnceLock<AtomicBool> = OnceLock::new();
    FLAG.get_or_init(|| {
        let set = || {
            if let Some(flag) = FLAG.get()
                && flag.swap(true, Ordering::SeqCst)
            {
                std::process::exit(130);
            }
        };
        // Where there are no signals, the program ends as it would.
        let _ = ctrlc::set_handler(set);
        AtomicBool::new(false)
    })
}

/// The state of a run after some steps.
fn checkpoint(plan: &Plan, params: &Params, stepper: &dyn Stepper, best: &Best) -> Answer<Checkpoint> {
    let spec = &plan.spec;
    let mut checkpoint = Checkpoint::new(&spec.model.name(), params)?;
    stepper.take(&mut checkpoint)?;
    checkpoint.config = match serde_json::to_value(spec) {
        Ok(value) => value,
        Err(e) => return fail(format!("the settings cannot be written: {e}")),
    };
    checkpoint.numerics = params.device().numerics();
    checkpoint.data =
        DataState { name: plan.data.train.name().into(), seed: spec.seed, batch: spec.batch as u64 };
    checkpoint.metrics = best.value();
    if let Some(tokenizer) = &spec.data.tokens {
        checkpoint.texts.insert(TOKENIZER.into(), tokenizer.to_json());
    }
    Ok(checkpoint)
}

/// The best evaluation so far, and how many there were since.
#[derive(Default)]
struct Best {
    merit: Option<f64>,
    since: u64,
}

impl Best {
    fn of(value: &Value) -> Best {
        Best { merit: value["merit"].as_f64(), since: value["since"].as_u64().unwrap_or(0) }
    }

    fn value(&self) -> Value {
        json!({"merit": self.merit, "since": self.since})
    }

    /// Whether this evaluation is better than all before.
    fn see(&mut self, scores: &Scores) -> bool {
        let merit = scores.merit();
        let is_better = self.merit.is_none_or(|m| merit > m);
        (self.merit, self.since) = match is_better {
            true => (Some(merit), 0),
            false => (self.merit, self.since + 1),
        };
        is_better
    }
}

/// Trains and evaluates. Everything on the device is freed on return.
pub(super) fn fit(
    plan: &mut Plan,
    (params, net): (Params, Net),
    device: &Device,
    command: &Train,
    out: &Out,
) -> Answer<Ending> {
    let (mode, memory) = (command.mode, command.memory);
    let spec = plan.spec.clone();
    let trained = net.module().clone();
    let judge = |plan: &Plan| evaluate(device, spec.task, trained.to_eval().as_ref(), &plan.data);
    let (first, mut best) = match &plan.from {
        Some(from) => (from.step, Best::of(&from.metrics)),
        None => (0, Best::default()),
    };
    let mut stepper = stepper(&spec, mode, &params, &trained);
    if let Some(from) = &plan.from {
        stepper.restore(&params, from)?;
    }
    let interrupted = interrupted();
    let batches = Batches::new(plan.data.train.clone(), spec.batch, spec.seed)?;
    let mut loader = Loader::new(batches, first, AHEAD)?;
    let bar = if out.bar() { ProgressBar::new(spec.steps) } else { ProgressBar::hidden() };
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar.set_position(first);
    let every = spec.steps.div_ceil(READINGS);
    let start = Instant::now();
    let (mut last, mut scores, mut done, mut is_cut) = (f32::NAN, None, first, false);
    let mut saved = first;
    let mut board = match &plan.folder {
        Some(folder) if command.tensorboard => Some(EventWriter::create(folder.path())?),
        None if command.tensorboard => return fail("--tensorboard needs a folder, not --out none"),
        _ => None,
    };
    while done < spec.steps {
        let (x, y) = match loader.next() {
            Some(batch) => batch?,
            None => return fail("the data ended before the steps"),
        };
        let step = done;
        done += 1;
        let is_evaluated = done % spec.eval_every == 0 || done == spec.steps;
        let is_read = step == 0 || done % every == 0 || is_evaluated;
        if command.profile.is_some() && step == first + PROFILED_AFTER {
            device.profile();
        }
        let value = stepper.step(&x, &y, is_read)?;
        if let Some(path) = &command.profile
            && (done == first + PROFILED_AFTER + PROFILED || done == spec.steps)
            && device.is_profiled()
        {
            write_profile(path, device)?;
        }
        if memory.is_some_and(|n| done % n == 0) {
            let report = device.memory_report();
            bar.suspend(|| out.progress(|| memory_json(done, &report), || memory_line(done, &report)))?;
        }
        if let Some(value) = value {
            last = value;
            if !value.is_finite() {
                let why = diagnose(plan, device, saved, done)?;
                return fail(format!("the loss of step {done} is {value}: {why}"));
            }
            let lr = spec.schedule().lr(spec.lr, step);
            if let Some(board) = &mut board {
                board.scalar("loss/training", done, value, wall_time())?;
                board.scalar("learning_rate", done, lr as f32, wall_time())?;
            }
            if let Some(folder) = &mut plan.folder {
                folder.measured(json!({
                    "step": done, "loss": value, "lr": lr, "seconds": start.elapsed().as_secs_f64(),
                }))?;
            }
            if out.bar() {
                bar.set_position(done);
                let rate = (done - first) as f64 / start.elapsed().as_secs_f64();
                let live = bytes(device.memory().live);
                let test = scores.as_ref().map_or_else(String::new, |s: &Scores| format!(", {}", s.text()));
                bar.set_message(format!("loss {value:.4}{test}, {rate:.0} a second, memory {live}"));
            }
        }
        is_cut = interrupted.load(Ordering::SeqCst) && done < spec.steps;
        if is_evaluated || is_cut {
            let judged = judge(plan)?;
            if !out.bar() {
                out.progress(
                    || {
                        let mut line = json!({"step": done, "loss": last});
                        judged.put(&mut line);
                        line
                    },
                    || format!("step {done} loss {last:.6}, {}", judged.text()),
                )?;
            }
            if let Some(board) = &mut board {
                board.scalar("loss/test", done, judged.loss as f32, wall_time())?;
                for (name, value) in &judged.more {
                    board.scalar(&format!("test/{name}"), done, *value as f32, wall_time())?;
                }
                board.flush()?;
            }
            // A run that is cut is judged again where the whole one would have been, so this does not count.
            let is_better = !is_cut && best.see(&judged);
            if let Some(folder) = &mut plan.folder
                && !is_cut
            {
                let mut line = json!({"step": done});
                judged.put(&mut line);
                folder.measured(line)?;
            }
            scores = Some(judged);
            if let Some(folder) = &plan.folder {
                let state = checkpoint(plan, &params, stepper.as_ref(), &best)?;
                // First, since a run that goes on from the checkpoint takes it as saved.
                if is_better {
                    folder.save(&state, BEST)?;
                }
                folder.save(&state, CHECKPOINT)?;
                saved = done;
            }
            if spec.patience.is_some_and(|p| best.since >= p) {
                let at = done;
                out.progress(
                    || json!({"step": at, "stopped": "patience"}),
                    || format!("step {at}: stopped, {} evaluations without a better one", best.since),
                )?;
                break;
            }
        }
        if is_cut {
            break;
        }
    }
    device.synchronize()?;
    let seconds = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    drop(stepper);
    let scores = match scores {
        Some(scores) => scores,
        None => judge(plan)?,
    };
    if is_cut {
        match &plan.folder {
            Some(folder) => warn(&format!(
                "stopped at step {done} of {}; go on with: dittograd train --resume {}",
                spec.steps,
                folder.path().display()
            )),
            None => warn(&format!("stopped at step {done} of {}; nothing was kept (--out none)", spec.steps)),
        }
    }
    let fingerprint = params.fingerprint()?;
    if let Some(folder) = &plan.folder {
        super::report::pictures(folder, &spec, &net, device, &plan.data)?;
    }
    Ok(Ending {
        loss: last,
        scores,
        fingerprint,
        seconds,
        parameters: params.numel(),
        steps: done,
        ran: done - first,
        is_cut,
        files: plan.folder.as_ref().map(|f| f.files()).unwrap_or_default(),
    })
}

/// Writes what the ops of some steps took.
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

/// Where the first number that is none came from: the steps since the last state that is known are run again, one op at a
/// time, to the same bits.
fn diagnose(plan: &Plan, device: &Device, from: u64, to: u64) -> Answer<String> {
    let spec = &plan.spec;
    let (params, net) = match from {
        0 => spec.first_net(device)?,
        _ => spec.net(device)?,
    };
    let session = Session::eager_seeded(device, spec.seed);
    let mut optimizer = spec.optimizer();
    let kept = match &plan.folder {
        Some(folder) if from > 0 => Some(Checkpoint::load(folder.path().join(CHECKPOINT))?),
        _ => plan.from.clone(),
    };
    let mut first = 0;
    if let Some(kept) = kept.filter(|k| k.step <= from) {
        kept.restore(&params, &mut optimizer)?;
        kept.random.restore(&session)?;
        first = kept.step;
    }
    let mut batches = Batches::new(plan.data.train.clone(), spec.batch, spec.seed)?;
    let is_bad = |t: &Tensor<f32>| t.data().iter().find(|v| !v.is_finite()).copied();
    let cure = "a smaller --lr, --clip 1 or --warmup may help";
    for step in first..to {
        let (x, y) = batches.batch(step)?;
        {
            let (x, y) = (input(&session, &x)?, input(&session, &y)?);
            let loss = batch_loss(spec.task, spec.accumulate, net.module().as_ref(), x, y)?;
            let found = session.with_tape(|tape| {
                for id in 0..tape.size() {
                    let Some(node) = tape.node(id) else { continue };
                    let Some(value) = &node.value else { continue };
                    if value.meta().dtype.name() != "f32" {
                        continue;
                    }
                    if let Some(v) = is_bad(&value.to_tensor()?) {
                        let what = node.name.clone().unwrap_or_else(|| "a value".into());
                        return Ok(Some(
                            format!("{what} of shape {} (value {id} of the step)", node.meta.shape)
                                + &format!(" was the first to become {v}"),
                        ));
                    }
                }
                Ok(None)
            })?;
            if let Some(found) = found {
                return Ok(format!("in step {} {found}; {cure}", step + 1));
            }
            let grads = loss.backward()?;
            optimizer.step(&params, grads)?;
        }
        session.reset();
        for p in params.iter() {
            if let Some(v) = is_bad(&p.get::<f32>()?) {
                return Ok(format!(
                    "the gradient or update of {} became {v} in step {}; {cure}",
                    p.name(),
                    step + 1
                ));
            }
        }
    }
    Ok(format!("in mode {} nothing shows it; {cure}", name(&Mode::Eager)))
}

/// The memory in one step: what was live at its end and at most, what is kept for reuse, and what went through the door.
fn memory_line(step: u64, report: &MemoryReport) -> String {
    let (in_step, cached) = (report.step.unwrap_or_default(), bytes(report.now.cached));
    let (live, peak) = (bytes(in_step.live), bytes(in_step.peak));
    let largest = report.holders.first().map_or_else(String::new, |h| format!(", largest {h}"));
    let counts = format!("{} allocations, {} frees", in_step.allocs, in_step.frees);
    format!("step {step} memory live {live}, peak {peak}, cached {cached}, {counts}{largest}")
}

/// The same as an object.
fn memory_json(step: u64, report: &MemoryReport) -> Value {
    let in_step = report.step.unwrap_or_default();
    json!({
        "step": step, "live_bytes": in_step.live, "peak_bytes": in_step.peak, "cached_bytes": report.now.cached,
        "allocations": in_step.allocs, "frees": in_step.frees,
    })
}
