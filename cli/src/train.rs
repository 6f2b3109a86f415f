//! `train`: a small classifier, eagerly or compiled, from a seed to a fingerprint.

use crate::out::{Out, bytes, warn};
use crate::{Answer, Global, fail};
use clap::{Args, ValueEnum};
use dittograd::data::{self, Batches, Dataset, Scaling};
use dittograd::device::MemoryReport;
use dittograd::prelude::*;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Points of the spirals.
const SAMPLES: usize = 3000;
/// Arms of the spirals.
const ARMS: usize = 3;
/// Share of the rows that is trained on.
const TRAIN_PART: f64 = 0.8;
/// Rows of a batch, if there are as many and no other number was asked for.
const BATCH: usize = 128;
/// Rows of a batch when evaluating.
const TEST_BATCH: usize = 512;
/// Most parameters the program makes a model with.
const MAX_PARAMETERS: usize = 1 << 28;

/// Train a model; the last line is the fingerprint of its parameters.
#[derive(Args)]
pub(crate) struct Train {
    /// The model: mlp has linear layers with relu between them
    #[arg(value_enum)]
    model: Model,
    /// Run each op as it comes, or the whole step as one program; same bits
    #[arg(long, value_enum, default_value = "compiled")]
    mode: Mode,
    /// Training steps
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// Rows in a batch [default: 128, or all training rows if fewer]
    #[arg(long, value_parser = positive)]
    batch: Option<usize>,
    /// Learning rate
    #[arg(long, default_value = "1e-2", value_parser = rate, allow_negative_numbers = true)]
    lr: f64,
    /// Seed of the data, the split, the batches and the initial parameters
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Sizes of the hidden layers
    #[arg(long, default_value = "64,64", value_delimiter = ',', value_parser = positive)]
    hidden: Vec<usize>,
    /// CSV file: numeric columns, then a class as a whole number from 0 [default: spirals from the seed]
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Update rule
    #[arg(long, value_enum, default_value = "adamw")]
    optimizer: Rule,
    /// Watch the memory: print it every N steps, and warn where it grows from step to step
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    memory: Option<u64>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Model {
    Mlp,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Mode {
    Eager,
    Compiled,
}

#[derive(Clone, Copy, ValueEnum)]
enum Rule {
    Sgd,
    Momentum,
    Nesterov,
    Adam,
    Adamw,
    Adagrad,
    Rmsprop,
    Adadelta,
    Lion,
    Muon,
}

/// A whole number from 1.
pub(crate) fn positive(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(0) => Err("use at least 1".into()),
        Ok(n) => Ok(n),
        Err(_) => Err("use a whole number from 1".into()),
    }
}

/// A learning rate that is a number in float32 too.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x >= 0.0 && (x as f32).is_finite() => Ok(x),
        _ => Err("use a finite number that is not negative".into()),
    }
}

/// Name of a choice as it is typed.
fn name(choice: &impl ValueEnum) -> String {
    choice.to_possible_value().map_or_else(String::new, |v| v.get_name().to_string())
}

/// The loss, written once for both modes.
fn loss<'s>(net: &Mlp, batch: &[Var<'s>]) -> Result<Var<'s>, Error> {
    net.forward(batch[0])?.cross_entropy(batch[1])
}

/// One training step after another, in either mode.
trait Stepper {
    /// A step on a batch; the loss before it if wanted, because asking waits for the device.
    fn step(&mut self, x: &Tensor<f32>, y: &Tensor<u32>, want_loss: bool) -> Result<Option<f32>, Error>;
}

struct Eager<'a> {
    session: Session,
    params: &'a Params,
    net: &'a Mlp,
    optimizer: Optimizer,
}

impl Stepper for Eager<'_> {
    fn step(&mut self, x: &Tensor<f32>, y: &Tensor<u32>, want_loss: bool) -> Result<Option<f32>, Error> {
        let value = {
            let loss = loss(self.net, &[self.session.input(x)?, self.session.labels(y)?])?;
            let value = if want_loss { Some(loss.item()?) } else { None };
            self.optimizer.step(self.params, loss.backward()?)?;
            value
        };
        self.session.reset();
        Ok(value)
    }
}

struct Compiled<F>(TrainStep<F>);

impl<F> Stepper for Compiled<F>
where
    F: for<'s> Fn(&[Var<'s>]) -> Result<Var<'s>, Error>,
{
    fn step(&mut self, x: &Tensor<f32>, y: &Tensor<u32>, want_loss: bool) -> Result<Option<f32>, Error> {
        self.0.run(&[x.into(), y.into()])?;
        if want_loss { self.0.loss().map(Some) } else { Ok(None) }
    }
}

/// What training ended with.
struct Ending {
    loss: f32,
    test_loss: f64,
    accuracy: f64,
    fingerprint: String,
    seconds: f64,
    parameters: usize,
}

impl Train {
    fn dataset(&self) -> Answer<(Dataset, Dataset)> {
        let Some(path) = &self.data else {
            let data = data::spirals(self.seed, SAMPLES, ARMS)?;
            return Ok(data::split(&data, TRAIN_PART, self.seed)?);
        };
        let data = data::csv(path)?;
        if data.rows() < 2 {
            return fail(format!("{}: one row cannot be split into training and test rows", path.display()));
        }
        let (train, test) = data::split(&data, TRAIN_PART, self.seed)?;
        let scaling = Scaling::of(&train)?;
        Ok((scaling.apply(&train)?, scaling.apply(&test)?))
    }

    fn sizes(&self, data: &Dataset) -> Answer<Vec<usize>> {
        let sizes = [&[data.features()], &self.hidden[..], &[data.classes().unwrap_or(1)]].concat();
        let layer = |w: &[usize]| w[0].checked_add(1)?.checked_mul(w[1]);
        let sum = |n: usize, w: &[usize]| n.checked_add(layer(w)?);
        match sizes.windows(2).try_fold(0usize, sum) {
            Some(n) if n <= MAX_PARAMETERS => Ok(sizes),
            _ => fail(format!(
                "layers {sizes:?} have more than {MAX_PARAMETERS} parameters, use a smaller --hidden"
            )),
        }
    }

    fn optimizer(&self) -> Optimizer {
        match self.optimizer {
            Rule::Sgd => Optimizer::sgd(self.lr),
            Rule::Momentum => Optimizer::momentum(self.lr, 0.9),
            Rule::Adam => Optimizer::adam(self.lr),
            Rule::Adamw => Optimizer::adamw(self.lr),
            Rule::Nesterov => Optimizer::nesterov(self.lr, 0.9),
            Rule::Adagrad => Optimizer::adagrad(self.lr),
            Rule::Rmsprop => Optimizer::rmsprop(self.lr),
            Rule::Adadelta => Optimizer::adadelta(self.lr),
            Rule::Lion => Optimizer::lion(self.lr),
            Rule::Muon => Optimizer::muon(self.lr),
        }
    }

    /// Runs the command.
    pub(crate) fn run(&self, global: &Global, out: &Out) -> Answer {
        let (train, test) = self.dataset()?;
        let size = self.batch.unwrap_or(BATCH.min(train.rows()));
        if size > train.rows() {
            return fail(format!("--batch {size}: there are {} training rows", train.rows()));
        }
        let sizes = self.sizes(&train)?;
        let device = global.device()?;
        if self.memory.is_some() {
            device.watch_with(warn);
        }
        let (data, rows, mode) = (train.name(), train.rows(), name(&self.mode));
        out.progress(
            || json!({"device": device.to_string(), "mode": mode, "data": data, "rows": rows}),
            || {
                let (features, classes) = (train.features(), train.classes().unwrap_or(1));
                format!(
                    "{data}: {rows} training rows, {features} features, {classes} classes; {device}, {mode}"
                )
            },
        )?;
        let end = self.fit(&device, &sizes, Batches::new(train, size, self.seed)?, &test, out)?;
        if !end.loss.is_finite() {
            warn(&format!("the training loss is {}; a smaller --lr may help", end.loss));
        }
        let memory = device.memory();
        let numerics = device.numerics().to_string();
        if out.json() {
            let last = json!({
                "test_loss": end.test_loss, "test_accuracy": end.accuracy, "train_loss": end.loss,
                "steps": self.steps, "seconds": end.seconds, "parameters": end.parameters,
                "device": device.to_string(), "mode": name(&self.mode), "optimizer": name(&self.optimizer),
                "numerics": numerics, "peak_bytes": memory.peak, "live_bytes": memory.live,
                "cached_bytes": memory.cached, "fingerprint": end.fingerprint,
            });
            out.line(&last.to_string())?;
            return Ok(true);
        }
        if out.chatty() {
            let rate = self.steps as f64 / end.seconds;
            out.line(&format!("{} steps in {:.2} s, {rate:.0} a second", self.steps, end.seconds))?;
        }
        out.line(&format!("test loss {:.6}, accuracy {:.2} %", end.test_loss, 100.0 * end.accuracy))?;
        if out.chatty() {
            let (peak, live) = (bytes(memory.peak), memory.live);
            let counts = format!("{} allocations, {} frees", memory.allocs, memory.frees);
            out.line(&format!("memory peak {peak}, live at the end {live} bytes, {counts}"))?;
            out.line(&format!("numerics {numerics}"))?;
        }
        out.line(&format!("fingerprint {}", end.fingerprint))?;
        Ok(true)
    }

    /// Trains and evaluates. Everything on the device is freed on return.
    fn fit(
        &self,
        device: &Device,
        sizes: &[usize],
        mut batches: Batches,
        test: &Dataset,
        out: &Out,
    ) -> Answer<Ending> {
        let Model::Mlp = self.model;
        let mut params = Params::new(device, self.seed);
        let net = Mlp::new(&mut params, sizes)?;
        let mut stepper: Box<dyn Stepper + '_> = match self.mode {
            Mode::Eager => Box::new(Eager {
                session: Session::eager(device),
                params: &params,
                net: &net,
                optimizer: self.optimizer(),
            }),
            Mode::Compiled => {
                Box::new(Compiled(TrainStep::new(&params, self.optimizer(), |batch| loss(&net, batch))))
            }
        };
        let bar = if out.bar() { ProgressBar::new(self.steps) } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
            bar.set_style(style);
        }
        let (start, mut shown) = (Instant::now(), Instant::now());
        let mut last = f32::NAN;
        for step in 0..self.steps {
            let (x, y) = batches.batch(step)?;
            let done = step + 1;
            let tenth = done * 10 / self.steps != step * 10 / self.steps;
            let due = tenth || step == 0 || (out.bar() && shown.elapsed() > Duration::from_millis(100));
            let value = stepper.step(x.num()?, y.idx()?, due)?;
            if self.memory.is_some_and(|n| done % n == 0) {
                let report = device.memory_report();
                bar.suspend(|| out.progress(|| memory_json(done, &report), || memory_line(done, &report)))?;
            }
            let Some(value) = value else { continue };
            last = value;
            shown = Instant::now();
            if out.bar() {
                bar.set_position(done);
                let (rate, live) = (done as f64 / start.elapsed().as_secs_f64(), bytes(device.memory().live));
                bar.set_message(format!("loss {value:.4}, {rate:.0} a second, memory {live}"));
            } else {
                out.progress(
                    || json!({"step": done, "loss": value}),
                    || format!("step {done} loss {value:.6}"),
                )?;
            }
        }
        device.synchronize()?;
        let seconds = start.elapsed().as_secs_f64();
        bar.finish_and_clear();
        drop(stepper);
        let (test_loss, accuracy) = evaluate(device, &net, test)?;
        let fingerprint = params.fingerprint()?;
        Ok(Ending { loss: last, test_loss, accuracy, fingerprint, seconds, parameters: params.numel() })
    }
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

/// Mean loss over a data set, and the share of rows whose largest logit is that of their class.
fn evaluate(device: &Device, net: &Mlp, data: &Dataset) -> Answer<(f64, f64)> {
    let session = Session::eager(device);
    let (mut sum, mut right) = (0.0, 0usize);
    for batch in data.in_order(TEST_BATCH)? {
        let (x, y) = batch?;
        let (x, y) = (x.num()?, y.idx()?);
        {
            let logits = net.forward(session.input(x)?)?;
            sum += f64::from(logits.cross_entropy(session.labels(y)?)?.item()?) * y.data().len() as f64;
            let logits = logits.value::<f32>()?;
            let best =
                |row: &[f32]| row.iter().enumerate().fold(0, |b, (i, v)| if *v > row[b] { i } else { b });
            let hits = logits.data().chunks_exact(logits.shape().last()).zip(y.data());
            right +=
                hits.filter(|(row, c)| row.iter().all(|v| !v.is_nan()) && best(row) == **c as usize).count();
        }
        session.reset();
    }
    Ok((sum / data.rows() as f64, right as f64 / data.rows() as f64))
}
