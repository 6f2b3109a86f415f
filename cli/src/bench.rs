//! `bench`: how long training steps and single ops take. Medians of many runs, after a warm-up; the output says what is
//! measured next to the number.

use crate::op::attributes;
use crate::out::{Out, bytes};
use crate::ranks::Ranks;
use crate::train::positive;
use crate::{Answer, Global, fail};
use clap::Args;
use dittograd::device::{AnyBuffer, Meta};
use dittograd::nn::{Gru, Lstm, RecurrentConfig};
use dittograd::numerics::rng::Stream;
use dittograd::ops::DeviceRecorder;
use dittograd::ops::{self, AnyOp, AnyTensor, Attr, Attrs, Io, Recorder, SampleIn, Val};
use dittograd::parallel::World;
use dittograd::prelude::*;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The most steps that are queued without waiting in between.
const BACK_TO_BACK: usize = 50;
/// Number of steps in which ops are timed one by one.
const PROFILED_STEPS: usize = 5;
/// The most elements of an op that is timed alone, inputs and output together.
const MAX_WORDS: usize = 1 << 31;
/// Workloads when none is named.
const DEFAULT: [&str; 6] = [
    "mlp_b128",
    "mlp_b128_eager",
    "matmul:1024,1024,1024",
    "copy:16777216",
    "exp:16777216",
    "softmax:4096,1024",
];

/// Measure training steps and ops.
#[derive(Args)]
pub(crate) struct Bench {
    /// A training step of a model: mlp_b128, cnn_b128, cnn_b32, fno1d_b32_g1024, fno1d_b8_g1024,
    /// babygpt_b64_t256, gpt2s_b8_t1024, gpt_b8_t128, lstm_b32_t128 or gru_b32_t128, or with another batch (b),
    /// shards (s), context (t), vocabulary (v) or grid (g), and with the suffix _eager for one op at a time; or an op:
    /// matmul:M,N,K[,ta][,tb], or OP:INPUTS[@ATTRS][+grad] for any op: inputs are sizes like 64,128
    /// separated by /, indices below 10 are 64%10, matrices with 9 added to their diagonals 64,64^9,
    /// attributes a JSON object, and +grad adds the gradient rule; equal inputs of elementwise ops and the axis of sum and mean need not be written [default:
    /// one of each kind]
    #[arg(value_name = "WORKLOAD")]
    workloads: Vec<String>,
    /// Training steps to take the median of [default: 200, fewer for large models]
    #[arg(long, value_parser = positive)]
    steps: Option<usize>,
    /// After each training step's time, which ops it goes to: each op waited for, so they add up to more
    #[arg(long)]
    profile: bool,
}

/// The median of some times.
fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

fn milliseconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// Median milliseconds of a call, queue and launch included. On CUDA, the device's clock around many calls in a row; on
/// the CPU, the host's clock around each.
fn time(device: &Device, mut call: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let warm = Instant::now();
    let mut calls = 0;
    // Long enough for a GPU's clock to rise.
    let long = Duration::from_millis(if device.is_cuda() { 400 } else { 100 });
    while calls < 3 || warm.elapsed() < long {
        call()?;
        calls += 1;
        if calls % 64 == 0 {
            device.synchronize()?;
        }
    }
    device.synchronize()?;
    let one = milliseconds(warm) / f64::from(calls);
    let mut times = Vec::new();
    match device.as_cuda() {
        Some(cuda) => {
            let batch = (5.0 / one).clamp(1.0, 200.0) as usize;
            for _ in 0..21 {
                let ms = cuda.time(|| (0..batch).try_for_each(|_| call()))?;
                times.push(f64::from(ms) / batch as f64);
            }
        }
        None => {
            let runs = (500.0 / one).clamp(11.0, 2001.0) as usize;
            for _ in 0..runs {
                let start = Instant::now();
                call()?;
                times.push(milliseconds(start));
            }
        }
    }
    Ok(median(times))
}

/// A workload of one op.
struct Work {
    op: AnyOp,
    ins: Vec<SampleIn>,
    /// What is added to the diagonals of each input's matrices.
    diagonals: Vec<f32>,
    /// Multiplications and additions, if the op is bound by them.
    flops: Option<f64>,
    /// Whether the gradient rule runs too.
    grad: bool,
}

fn sizes(workload: &str, text: &str) -> Answer<Vec<usize>> {
    let one = |part: &str| match part.parse() {
        Ok(n) => Ok(n),
        Err(_) => fail(format!("`{workload}`: `{part}` is not a size")),
    };
    text.split(',').filter(|p| !p.is_empty()).map(one).collect()
}

/// An input: sizes, and for indices their exclusive bound; and what is added to diagonals.
fn input(workload: &str, text: &str) -> Answer<(SampleIn, f32)> {
    let (text, diagonal) = match text.split_once('^') {
        Some((text, n)) => match n.parse() {
            Ok(n) => (text, n),
            Err(_) => return fail(format!("`{workload}`: `{n}` is not a number to add to a diagonal")),
        },
        None => (text, 0.0),
    };
    let (dims, bound) = match text.split_once('%') {
        Some((dims, bound)) => (dims, sizes(workload, bound)?.first().copied()),
        None => (text, None),
    };
    let shape = Shape::new(&sizes(workload, dims)?)?;
    let of = match bound {
        None => SampleIn::Num(shape, (-1.0, 1.0)),
        Some(n) => SampleIn::Idx(shape, u32::try_from(n).unwrap_or(u32::MAX)),
    };
    if diagonal != 0.0 && (bound.is_some() || shape.rank() < 2) {
        return fail(format!("`{workload}`: `{text}` has no matrices with a diagonal to add to"));
    }
    Ok((of, diagonal))
}

/// Adds to the diagonals of matrices.
fn add_to_diagonals(x: &mut AnyTensor, add: f32) {
    if let AnyTensor::Num(x) = x {
        let &[.., rows, columns] = x.shape().dims() else { return };
        for matrix in x.data_mut().chunks_exact_mut((rows * columns).max(1)) {
            matrix.iter_mut().step_by(columns + 1).for_each(|x| *x += add);
        }
    }
}

/// The op a workload names.
fn parse(workload: &str) -> Answer<Work> {
    let Some((name, rest)) = workload.split_once(':') else {
        let known: Vec<&str> = STEPS.iter().map(|s| s.name).collect();
        let known = known.join(", ");
        return fail(format!(
            "`{workload}` is not a workload, use {known}, one of them with other numbers or with _eager, or OP:DIMS"
        ));
    };
    let (rest, grad) = rest.strip_suffix("+grad").map_or((rest, false), |rest| (rest, true));
    let (rest, attrs) = match rest.split_once('@') {
        Some((rest, attrs)) => (rest, Some(attributes(attrs)?)),
        None => (rest, None),
    };
    if name == "matmul" && attrs.is_none() && !rest.contains('/') {
        let flags: Vec<&str> = rest.split(',').filter(|p| *p == "ta" || *p == "tb").collect();
        let dims: Vec<&str> = rest.split(',').filter(|p| !flags.contains(p)).collect();
        let [m, n, k] = sizes(workload, &dims.join(","))?[..] else {
            return fail(format!("`{workload}`: use matmul:M,N,K[,ta][,tb]"));
        };
        let (ta, tb) = (flags.contains(&"ta"), flags.contains(&"tb"));
        let on = |name: &str, on| (name.to_string(), Attr::Bool(on));
        let op = AnyOp::from_name(name, &Attrs(vec![on("ta", ta), on("tb", tb)]))?;
        let (a, b) = (if ta { [k, m] } else { [m, k] }, if tb { [n, k] } else { [k, n] });
        let flops = Some(2.0 * m as f64 * n as f64 * k as f64 * if grad { 3.0 } else { 1.0 });
        let ins = vec![SampleIn::any(Shape::new(&a)?), SampleIn::any(Shape::new(&b)?)];
        return Ok(Work { op, ins, diagonals: vec![0.0; 2], flops, grad });
    }
    let all = rest.split('/').map(|i| input(workload, i)).collect::<Answer<Vec<_>>>()?;
    let (mut ins, diagonals): (Vec<SampleIn>, Vec<f32>) = all.into_iter().unzip();
    let Some(sample) = AnyOp::samples(name).into_iter().next() else {
        return fail(format!("`{name}` is not an op; `dittograd ops` lists them"));
    };
    let op = match attrs {
        Some(attrs) => AnyOp::from_name(name, &attrs)?,
        None if name == "sum" || name == "mean" => {
            let last = ins[0].meta().shape.rank().saturating_sub(1);
            AnyOp::from_name(name, &Attrs(vec![("axes".to_string(), Attr::List(vec![last]))]))?
        }
        None => AnyOp::from_name(name, &Attrs::default()).unwrap_or(sample.op),
    };
    if ins.len() == 1 {
        ins = vec![ins.remove(0); sample.ins.len()];
    }
    Ok(Work { op, ins, diagonals, flops: None, grad })
}

/// One op: milliseconds, and GFLOP/s for a product or GB/s read and written for anything else.
fn op(device: &Device, workload: &str) -> Answer<(Value, String)> {
    let Work { op, ins, diagonals, flops, grad } = parse(workload)?;
    let metas: Vec<Meta> = ins.iter().map(SampleIn::meta).collect();
    let size = op.shape(&metas)?.shape.numel();
    let words = metas.iter().map(|m| m.shape.numel()).fold(size, usize::saturating_add);
    if words > MAX_WORDS {
        return fail(format!("`{workload}`: tensors of more than {} are not timed", bytes(4 * MAX_WORDS)));
    }
    let ms = {
        let mut drawn = ops::draw(&ins, &mut Stream::new(1, 0))?;
        drawn.iter_mut().zip(&diagonals).for_each(|(x, &add)| add_to_diagonals(x, add));
        let ins: Vec<AnyBuffer> =
            drawn.iter().map(|x| AnyBuffer::upload_any(device, x)).collect::<Result<_, _>>()?;
        let refs: Vec<&AnyBuffer> = ins.iter().collect();
        let upstream = AnyBuffer::full(device, op.shape(&metas)?.shape, 1.0)?;
        let with_rule = || {
            let mut r = DeviceRecorder::new(device);
            let given: Vec<Val> = ins.iter().map(|b| r.input(b.clone())).collect();
            let out = r.record(op.clone(), &given)?;
            let dy = r.input(upstream.clone());
            op.vjp(&mut r, Io { ins: &given, out }, dy).map(drop)
        };
        time(device, || if grad { with_rule() } else { ops::apply(device, &op, &refs).map(drop) })?
    };
    let memory = device.memory();
    let live = memory.live;
    let (work, unit, shown) = match flops {
        Some(flops) => (flops, "gflops", "GFLOP/s"),
        None => (4.0 * words as f64, "gb_per_s", "GB/s"),
    };
    let rate = work / ms / 1e6;
    let object = json!({
        "workload": workload, "device": device.to_string(), "ms": ms, unit: rate,
        "peak_bytes": memory.peak, "live_bytes": live,
    });
    Ok((object, format!("{workload}: {ms:.4} ms, {rate:.1} {shown}, live at the end {live} bytes")))
}

/// What the first step waited for on a GPU before it ran.
#[derive(Clone, Copy)]
struct Prepared {
    /// Modules compiled, and modules from the disk cache.
    compiled: u64,
    from_disk: u64,
    /// Milliseconds in which they were compiled, and in which they were read and loaded.
    compile: f64,
    load: f64,
    /// Milliseconds in which the step was captured as a graph.
    capture: f64,
}

impl Prepared {
    /// Since the device was opened.
    fn so_far(device: &Device) -> Option<Prepared> {
        let cuda = device.as_cuda()?;
        let all = cuda.preparation();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Some(Prepared {
            compiled: cuda.compiled(),
            from_disk: cuda.loaded_from_disk(),
            compile: ms(all.compile),
            load: ms(all.load),
            capture: ms(all.capture),
        })
    }

    fn since(self, before: Prepared) -> Prepared {
        Prepared {
            compiled: self.compiled - before.compiled,
            from_disk: self.from_disk - before.from_disk,
            compile: self.compile - before.compile,
            load: self.load - before.load,
            capture: self.capture - before.capture,
        }
    }
}

/// The times of a series of training steps.
struct Took {
    first: f64,
    prepared: Option<Prepared>,
    median: f64,
    back_to_back: f64,
}

/// Times steps: the first, then each with a wait after it, then many with one wait. Their number does not depend on
/// their speed, so that the fingerprint after them can be compared.
fn steps(device: &Device, n: usize, mut step: impl FnMut() -> Result<(), Error>) -> Result<Took, Error> {
    let mut one = |wait: bool| {
        let start = Instant::now();
        step()?;
        if wait {
            device.synchronize()?;
        }
        Ok::<f64, Error>(milliseconds(start))
    };
    let before = Prepared::so_far(device);
    let first = one(true)?;
    let prepared = Prepared::so_far(device).zip(before).map(|(after, before)| after.since(before));
    for _ in 0..5.min(n) {
        one(true)?;
    }
    let median = median((0..n).map(|_| one(true)).collect::<Result<_, _>>()?);
    let queued = BACK_TO_BACK.min(n);
    let start = Instant::now();
    for _ in 0..queued {
        one(false)?;
    }
    device.synchronize()?;
    Ok(Took { first, prepared, median, back_to_back: milliseconds(start) / queued as f64 })
}

/// The share of a step that one op takes, by its name and the shape of its value.
#[derive(Clone, Copy)]
struct Part {
    name: &'static str,
    shape: Shape,
    calls: usize,
    ms: f64,
}

/// The ops of `PROFILED_STEPS` runs of `step`, the longest first.
fn parts(device: &Device, mut step: impl FnMut() -> Result<(), Error>) -> Result<Vec<Part>, Error> {
    device.profile();
    (0..PROFILED_STEPS).try_for_each(|_| step())?;
    let mut parts: Vec<Part> = Vec::new();
    for op in device.profiled() {
        let at = parts.iter().position(|p| p.name == op.name && p.shape == op.shape).unwrap_or(parts.len());
        if at == parts.len() {
            parts.push(Part { name: op.name, shape: op.shape, calls: 0, ms: 0.0 });
        }
        parts[at].calls += 1;
        parts[at].ms += op.time.as_secs_f64() * 1e3;
    }
    for part in &mut parts {
        part.calls /= PROFILED_STEPS;
        part.ms /= PROFILED_STEPS as f64;
    }
    parts.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    Ok(parts)
}

/// A table of parts: milliseconds of a step, their share, number of calls, and op.
fn table(parts: &[Part]) -> String {
    let all: f64 = parts.iter().map(|p| p.ms).sum();
    let line = |p: &Part| {
        format!("\n{:10.4} ms {:5.1} %  {:3} x {} {}", p.ms, 100.0 * p.ms / all, p.calls, p.name, p.shape)
    };
    parts.iter().map(line).collect()
}

/// A training step that is timed.
#[derive(Clone, Copy)]
struct Step {
    name: &'static str,
    /// Default number of steps to take the median of.
    steps: usize,
    batch: usize,
    shards: usize,
    model: Model,
}

/// The model. All use AdamW.
#[derive(Clone, Copy)]
enum Model {
    /// A perceptron of these sizes, on rows of numbers with a class each.
    Mlp(&'static [usize]),
    /// A convolutional network of the default sizes, on images with a class each.
    Cnn,
    /// A Fourier neural operator of the default sizes, on a grid with this many points.
    Fno1d(usize),
    /// A language model, on sequences as long as its context.
    Gpt(GptConfig),
    /// A recurrent layer of this kind and this many inputs and states, on sequences of this length.
    Recurrent(Recurrent, usize, usize),
}

/// The kind of a recurrent layer.
#[derive(Clone, Copy)]
enum Recurrent {
    Lstm,
    Gru,
}

/// A language model without dropout.
const fn gpt(vocab: usize, context: usize, width: usize, heads: usize, layers: usize) -> Model {
    Model::Gpt(GptConfig { vocab, context, width, heads, layers, dropout: 0.0 })
}

/// The training steps that can be timed, each also with the suffix `_eager`.
const STEPS: [Step; 10] = [
    Step { name: "mlp_b128", steps: 200, batch: 128, shards: 1, model: Model::Mlp(&[784, 512, 512, 10]) },
    Step { name: "cnn_b128", steps: 100, batch: 128, shards: 1, model: Model::Cnn },
    Step { name: "cnn_b32", steps: 50, batch: 32, shards: 1, model: Model::Cnn },
    Step { name: "fno1d_b32_g1024", steps: 100, batch: 32, shards: 1, model: Model::Fno1d(1024) },
    Step { name: "fno1d_b8_g1024", steps: 50, batch: 8, shards: 1, model: Model::Fno1d(1024) },
    Step { name: "babygpt_b64_t256", steps: 30, batch: 64, shards: 1, model: gpt(65, 256, 384, 6, 6) },
    Step { name: "gpt2s_b8_t1024", steps: 10, batch: 8, shards: 1, model: Model::Gpt(GptConfig::GPT2_SMALL) },
    Step { name: "gpt_b8_t128", steps: 50, batch: 8, shards: 1, model: gpt(65, 128, 192, 6, 4) },
    Step {
        name: "lstm_b32_t128",
        steps: 30,
        batch: 32,
        shards: 1,
        model: Model::Recurrent(Recurrent::Lstm, 256, 128),
    },
    Step {
        name: "gru_b32_t128",
        steps: 30,
        batch: 32,
        shards: 1,
        model: Model::Recurrent(Recurrent::Gru, 256, 128),
    },
];

/// The step that a workload names, and whether to run it eagerly: one of [`STEPS`], possibly with other numbers after
/// `b`, `s`, `t`, `v` and `g`.
fn step_of(workload: &str) -> Option<(Step, bool)> {
    let (name, eager) = workload.strip_suffix("_eager").map_or((workload, false), |name| (name, true));
    if let Some(known) = STEPS.iter().find(|s| s.name == name) {
        return Some((*known, eager));
    }
    let mut words = name.split('_');
    let family = words.next()?;
    let mut step = *STEPS.iter().find(|s| s.name.split('_').next() == Some(family))?;
    for word in words {
        let (kind, number) = (word.get(..1)?, word.get(1..)?.parse().ok().filter(|n| *n > 0)?);
        match (kind, &mut step.model) {
            ("b", _) => step.batch = number,
            ("s", _) => step.shards = number,
            ("t", Model::Gpt(config)) => config.context = number,
            ("t", Model::Recurrent(_, _, times)) => *times = number,
            ("v", Model::Gpt(config)) => config.vocab = number,
            ("g", Model::Fno1d(grid)) => *grid = number,
            _ => return None,
        }
    }
    Some((step, eager))
}

/// A model with its parameters.
enum Net {
    Mlp(Mlp),
    Cnn(Box<Cnn>),
    Fno1d(Fno1d),
    Gpt(Gpt),
    Lstm(Lstm),
    Gru(Gru),
}

impl Net {
    fn loss<'s>(&self, batch: &[Var<'s>]) -> Result<Var<'s>, Error> {
        match self {
            Net::Mlp(net) => net.forward(batch[0])?.cross_entropy(batch[1]),
            Net::Cnn(net) => net.forward(batch[0])?.cross_entropy(batch[1]),
            Net::Fno1d(net) => net.forward(batch[0])?.mse(batch[1]),
            Net::Gpt(net) => net.forward(batch[0])?.cross_entropy(batch[1]),
            Net::Lstm(net) => net.forward(batch[0], None)?.0.mse(batch[1]),
            Net::Gru(net) => net.forward(batch[0], None)?.0.mse(batch[1]),
        }
    }
}

impl Step {
    /// Inputs and targets.
    fn data(&self) -> Result<[AnyTensor; 2], Error> {
        let (mut numbers, mut indices) = (Stream::new(1, 0), Stream::new(1, 1));
        let mut num = |sizes: &[usize]| {
            let shape = Shape::new(&[&[self.batch], sizes].concat())?;
            Tensor::try_from_fn(shape, |_| numbers.range(-1.0, 1.0)).map(AnyTensor::Num)
        };
        let mut idx = |sizes: &[usize], below: usize| {
            let shape = Shape::new(&[&[self.batch], sizes].concat())?;
            Tensor::try_from_fn(shape, |_| indices.below(below) as u32).map(AnyTensor::Idx)
        };
        Ok(match self.model {
            Model::Mlp(sizes) => [num(&sizes[..1])?, idx(&[], sizes[sizes.len() - 1])?],
            Model::Cnn => {
                let CnnConfig { channels, image: [h, w], classes, .. } = CnnConfig::default();
                [num(&[channels, h, w])?, idx(&[], classes)?]
            }
            Model::Fno1d(grid) => {
                let Fno1dConfig { inputs, outputs, .. } = Fno1dConfig::default();
                [num(&[grid, inputs])?, num(&[grid, outputs])?]
            }
            Model::Gpt(c) => [idx(&[c.context], c.vocab)?, idx(&[c.context], c.vocab)?],
            Model::Recurrent(_, width, times) => [num(&[times, width])?, num(&[times, width])?],
        })
    }

    fn net(&self, params: &mut Params) -> Result<Net, Error> {
        Ok(match self.model {
            Model::Mlp(sizes) => Net::Mlp(Mlp::new(params, sizes)?),
            Model::Cnn => Net::Cnn(Box::new(Cnn::new(params, CnnConfig::default())?)),
            Model::Fno1d(_) => Net::Fno1d(Fno1d::new(params, Fno1dConfig::default())?),
            Model::Gpt(config) => Net::Gpt(Gpt::new(params, config)?),
            Model::Recurrent(kind, width, _) => {
                let config = RecurrentConfig { inputs: width, hidden: width, ..RecurrentConfig::default() };
                match kind {
                    Recurrent::Lstm => Net::Lstm(Lstm::new(params, "lstm", config)?),
                    Recurrent::Gru => Net::Gru(Gru::new(params, "gru", config)?),
                }
            }
        })
    }

    /// The whole step: forward, backward and update, with data already on the device.
    fn run(
        &self,
        device: &Device,
        workload: &str,
        eager: bool,
        asked: &Bench,
        world: Option<&World>,
    ) -> Answer<(Value, String)> {
        let n = asked.steps.unwrap_or(self.steps);
        let data = self.data()?;
        let (took, parts, plan, fingerprint, parameters) = {
            let mut params = Params::new(device, 1);
            let net = self.net(&mut params)?;
            let mut optimizer = Optimizer::adamw(1e-4);
            let parts_of = |step: &mut dyn FnMut() -> Result<(), Error>| {
                if asked.profile { parts(device, step) } else { Ok(Vec::new()) }
            };
            let (took, fingerprint, parts, plan) = if eager {
                let (x, y) =
                    (AnyBuffer::upload_any(device, &data[0])?, AnyBuffer::upload_any(device, &data[1])?);
                let session = Session::eager(device);
                let mut step = || {
                    let grads = net.loss(&[session.buffer(&x)?, session.buffer(&y)?])?.backward()?;
                    optimizer.step(&params, grads)?;
                    session.reset();
                    Ok(())
                };
                (steps(device, n, &mut step)?, params.fingerprint()?, parts_of(&mut step)?, None)
            } else {
                let mut train =
                    TrainStep::new(&params, optimizer, |batch| net.loss(batch)).shards(self.shards);
                if let Some(world) = world {
                    train = train.world(world);
                }
                let mut started = false;
                let mut step = || match std::mem::replace(&mut started, true) {
                    false => train.run(&[(&data[0]).into(), (&data[1]).into()]),
                    true => train.again(),
                };
                let took = steps(device, n, &mut step)?;
                (took, params.fingerprint()?, parts_of(&mut step)?, Some(train.plan()?))
            };
            (took, parts, plan, fingerprint, params.numel())
        };
        let memory = device.memory();
        let traffic = world.map(World::traffic);
        let first = took.prepared;
        let part =
            |p: &Part| json!({ "op": p.name, "shape": p.shape.to_string(), "calls": p.calls, "ms": p.ms });
        let object = json!({
            "workload": workload, "device": device.to_string(), "steps": n, "ms": took.median,
            "back_to_back_ms": took.back_to_back, "first_step_ms": took.first, "compile_ms": first.map(|p| p.compile),
            "load_ms": first.map(|p| p.load), "capture_ms": first.map(|p| p.capture),
            "modules_compiled": first.map(|p| p.compiled), "modules_from_disk": first.map(|p| p.from_disk),
            "parameters": parameters,
            "launches": plan.map(|p| p.launches), "instructions": plan.map(|p| p.instructions),
            "arena_bytes": plan.map(|p| p.arena_bytes), "peak_bytes": memory.peak, "live_bytes": memory.live,
            "ranks": world.map_or(1, World::size), "shards": self.shards, "transport": world.map(World::name),
            "bytes_sent": traffic.map(|t| t.sent), "exchanges": traffic.map(|t| t.exchanges),
            "fingerprint": fingerprint, "ops": parts.iter().map(part).collect::<Vec<Value>>(),
        });
        let program = plan.map_or(String::new(), |p| {
            format!(
                ", {} instructions, {} launches, arena {}",
                p.instructions,
                p.launches,
                bytes(p.arena_bytes)
            )
        });
        let Took { first, median, back_to_back, prepared } = took;
        let prepared = prepared.map_or(String::new(), |p| {
            let Prepared { compiled, from_disk, compile, load, capture } = p;
            format!(
                " (compiled {compiled} modules in {compile:.1} ms, {from_disk} from disk, loaded in {load:.1} ms, \
                 captured in {capture:.1} ms)"
            )
        });
        let times = format!("{median:.4} ms a step (median of {n}), {back_to_back:.4} ms back to back");
        let memory = format!("peak {}, live at the end {} bytes", bytes(memory.peak), memory.live);
        let end = format!("fingerprint {fingerprint}");
        let parts = table(&parts);
        Ok((
            object,
            format!(
                "{workload}: {times}, first step {first:.1} ms{prepared}{program}, {memory}, {end}{parts}"
            ),
        ))
    }
}

impl Bench {
    /// Errors if one of the workloads is unknown.
    pub(crate) fn look(&self) -> Answer<()> {
        for workload in self.workloads.iter().filter(|w| step_of(w).is_none()) {
            let Work { op, ins, .. } = parse(workload)?;
            op.shape(&ins.iter().map(SampleIn::meta).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Runs the command.
    pub(crate) fn run(&self, global: &Global, out: &Out, ranks: Option<&Ranks>) -> Answer {
        let named: Vec<&str> = self.workloads.iter().map(String::as_str).collect();
        for workload in if named.is_empty() { &DEFAULT[..] } else { &named[..] } {
            // A separate device, so that its peak memory is the workload's.
            let device = global.device_of(ranks)?;
            let world = ranks.map(|r| &r.world);
            let (object, text) = match (step_of(workload), ranks) {
                (Some((step, false)), Some(ranks)) => {
                    let members = ranks.members(&device.to_string(), device.threads())?;
                    ranks.use_nccl(&device, &members)?;
                    step.run(&device, workload, false, self, world)?
                }
                (_, Some(_)) => {
                    return fail(format!(
                        "{workload}: several processes share compiled steps only, such as cnn_b128_s8"
                    ));
                }
                (Some((step, eager)), None) => step.run(&device, workload, eager, self, None)?,
                (None, None) => op(&device, workload)?,
            };
            out.result(|| object, || format!("{device} {text}"))?;
        }
        Ok(true)
    }
}
