//! `train`: trains a model, eagerly or compiled, and prints its fingerprint. Everything is in a folder from which
//! another run can continue.

pub(crate) mod fit;
pub(crate) mod folder;
mod report;
mod seeds;
mod spec;
mod spread;

use crate::images::{Size, parse_size, size_text};
use crate::models::{MAX_PARAMETERS, Model, Net, name};
use crate::out::{Busy, Out, bytes, warn};
use crate::ranks::{Ranks, TIMEOUT};
use crate::task::{self, Data, Source};
use crate::{Answer, Global, fail};
use clap::{Args, ValueEnum};
use dittograd::data::Dataset;
use dittograd::io::{Checkpoint, atomic};
use dittograd::prelude::*;
use dittograd::train::{CHECKPOINT, End, Times};
use serde::Deserialize;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use spec::{Curve, Programs, Rule, usual};
pub(crate) use spec::{Spec, model_help};

/// The name of the tokenizer's text in a checkpoint.
pub(crate) const TOKENIZER: &str = "tokenizer";
/// The longest `--timeout`, a year.
const MAX_TIMEOUT: u64 = 365 * 24 * 3600;

/// Train a model; the last line is the fingerprint of its parameters. `dittograd train MODEL --help` adds the fields of its
/// --config and its defaults.
#[derive(Args, Clone)]
pub(crate) struct Train {
    /// The model: mlp, cnn, resnet, vit, gpt, mamba, fno1d, fno2d or autoencoder; or a file with the programs of a model, as
    /// `dittograd.torch` in Python writes it [with --resume: that of the checkpoint]
    #[arg(value_parser = chosen, value_name = "MODEL|FILE")]
    model: Option<Chosen>,

    /// Sizes of the hidden layers of an mlp [default: 64,64]
    #[arg(long, help_heading = "Model", value_delimiter = ',', value_parser = positive)]
    hidden: Option<Vec<usize>>,
    /// Sizes of the model, as a JSON object; `train MODEL --help` lists its fields
    #[arg(long, help_heading = "Model", value_name = "JSON")]
    config: Option<String>,
    /// Start from the parameters of a safetensors file, by their names, such as PyTorch's state dicts
    #[arg(long, help_heading = "Model", value_name = "FILE")]
    weights: Option<PathBuf>,

    /// A data set generated from the seed (spirals, digits, burgers, darcy, additions, …), or a file: .csv with numbers and a
    /// class, a number or a name, in the last column, .npz with x and y, .txt, or a folder with MNIST, CIFAR-10, or
    /// folders of PNG and JPEG files named by their class [default: by the model]
    #[arg(long, help_heading = "Data", value_name = "NAME|PATH")]
    data: Option<PathBuf>,
    /// Number of samples to generate
    #[arg(long, help_heading = "Data", value_parser = positive)]
    samples: Option<usize>,
    /// Points of the grid of fields, or tokens in a sample of text
    #[arg(long, help_heading = "Data", value_parser = positive)]
    grid: Option<usize>,
    /// Last columns of a CSV file that are numbers to predict, instead of a class
    #[arg(long, help_heading = "Data", value_parser = positive)]
    targets: Option<usize>,
    /// Height and width that every image of a folder gets, by antialiased bilinear interpolation
    #[arg(long, help_heading = "Data", value_name = "HxW", value_parser = parse_size)]
    resize: Option<Size>,
    /// The tokens of a text: bytes; bpe:SIZE, a byte-pair encoding of SIZE tokens trained on the text; or a tokenizer.json,
    /// or a folder with it or with vocab.json and merges.txt [default: bytes]
    #[arg(long, help_heading = "Data", value_name = "bytes|bpe:SIZE|PATH")]
    tokenizer: Option<String>,

    /// Training steps [default: enough for the model's own data]
    #[arg(long, help_heading = "Training", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Passes over the training rows, instead of steps
    #[arg(long, help_heading = "Training", conflicts_with = "steps", value_parser = clap::value_parser!(u64).range(1..))]
    epochs: Option<u64>,
    /// Rows in a batch [default: by the model, or all training rows if fewer]
    #[arg(long, help_heading = "Training", value_parser = positive)]
    batch: Option<usize>,
    /// Cut each batch into this many parts. Processes share them, and each computes its own one after the other, which takes less
    /// memory. The bits depend on this number and not on that of processes [default: 1]
    #[arg(long, help_heading = "Training", value_parser = positive, alias = "accumulate")]
    shards: Option<usize>,
    /// Seed of the data, the split, the batches, the initial parameters and dropout [default: 7]
    #[arg(long, help_heading = "Training")]
    seed: Option<u64>,
    /// Train N runs together, from this seed and those after it, each with the bits of its own run, and show their mean and
    /// spread. The folder has a run for each
    #[arg(long, help_heading = "Training", value_name = "N", value_parser = clap::value_parser!(u64).range(1..=seeds::MOST))]
    seeds: Option<u64>,
    /// Steps between evaluations and checkpoints [default: a tenth of all]
    #[arg(long, help_heading = "Training", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    eval_every: Option<u64>,
    /// Early stopping: end after this many evaluations in a row without a better one
    #[arg(long, help_heading = "Training", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    patience: Option<u64>,
    /// Many processes: the longest time in seconds that one may make no progress before the others end [default: 300]
    #[arg(long, help_heading = "Training", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=MAX_TIMEOUT))]
    timeout: Option<u64>,
    /// Many processes: compare the bits of their parameters every K steps, and at every checkpoint
    #[arg(long, help_heading = "Training", value_name = "K", value_parser = clap::value_parser!(u64).range(1..))]
    verify_every: Option<u64>,
    /// Look for faults of the hardware: compute every K-th step twice, compiled and op by op, and compare all bits. A step that differs
    /// is reported and repeated; the bits are the same
    #[arg(long, help_heading = "Training", value_name = "K", value_parser = clap::value_parser!(u64).range(1..))]
    paranoid: Option<u64>,
    /// Run each op as it comes, or the whole step as one program; same bits
    #[arg(long, help_heading = "Training", value_enum, default_value = "compiled")]
    mode: Mode,

    /// Update rule [default: adamw]
    #[arg(long, help_heading = "Optimizer", value_enum)]
    optimizer: Option<Rule>,
    /// Learning rate [default: by the model]
    #[arg(long, help_heading = "Optimizer", value_parser = rate, allow_negative_numbers = true)]
    lr: Option<f64>,
    /// How the learning rate changes from step to step [default: by the model]
    #[arg(long, help_heading = "Optimizer", value_enum)]
    schedule: Option<Curve>,
    /// Warm-up: steps in which the learning rate grows to its maximum [default: 0]
    #[arg(long, help_heading = "Optimizer")]
    warmup: Option<u64>,
    /// Weight decay [default: by the rule]
    #[arg(long, help_heading = "Optimizer", value_parser = rate)]
    weight_decay: Option<f64>,
    /// Gradient clipping: the largest global norm of the gradients
    #[arg(long, help_heading = "Optimizer", value_parser = rate)]
    clip: Option<f64>,

    /// Folder for checkpoint, measurements and pictures, or `none` [default: a new one in runs/, or in DITTOGRAD_RUNS]
    #[arg(long, help_heading = "Run and files", value_name = "DIR")]
    out: Option<PathBuf>,
    /// Continue from a checkpoint, or from the one in a folder, to the same bits as without the interruption. Options of
    /// the run may be repeated; only --steps, --epochs, --eval-every and --patience may change
    #[arg(long, help_heading = "Run and files", value_name = "PATH")]
    resume: Option<PathBuf>,
    /// Hash the whole state for the record every K steps too, not only at evaluations; or `none`: keep no record
    #[arg(long, help_heading = "Run and files", value_name = "K|none", value_parser = record_every)]
    record: Option<RecordEvery>,
    /// Keep N checkpoints along the run, with the hash of each in the record, so that `verify` can start from them [default: 0]
    #[arg(long, help_heading = "Run and files", value_name = "N")]
    keep: Option<u64>,
    /// Measure the gradients whenever the loss is read: the L2 norm of that of each parameter, before clipping
    #[arg(long, help_heading = "Run and files")]
    norms: bool,
    /// Also write event files for TensorBoard into the folder
    #[arg(long, help_heading = "Run and files")]
    tensorboard: bool,
    /// Time every op of a few steps, and write them as a trace for ui.perfetto.dev
    #[arg(long, help_heading = "Run and files", value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Watch the memory: print it every N steps, and warn if it grows from step to step
    #[arg(long, help_heading = "Run and files", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    memory: Option<u64>,
}

/// When the record of a run has a hash of its state besides at evaluations.
#[derive(Clone, Copy)]
enum RecordEvery {
    /// Every so many steps.
    Steps(u64),
    /// There is no record.
    Never,
}

fn record_every(text: &str) -> Result<RecordEvery, String> {
    match (text, text.parse()) {
        ("none", _) => Ok(RecordEvery::Never),
        (_, Ok(steps @ 1..)) => Ok(RecordEvery::Steps(steps)),
        _ => Err("use a whole number from 1, or none".into()),
    }
}

/// A model as it is asked for.
#[derive(Clone)]
enum Chosen {
    Named(Model),
    /// A file with its programs.
    File(PathBuf),
}

/// A model by its name, or a file.
fn chosen(text: &str) -> Result<Chosen, String> {
    if let Ok(model) = Model::from_str(text, false) {
        return Ok(Chosen::Named(model));
    }
    if text.contains(['.', '/']) || Path::new(text).exists() {
        return Ok(Chosen::File(PathBuf::from(text)));
    }
    let names: Vec<String> = Model::value_variants().iter().filter(|m| !m.is_program()).map(name).collect();
    Err(format!("use {}, or a file with the programs of a model", names.join(", ")))
}

impl Chosen {
    fn name(&self) -> String {
        match self {
            Chosen::Named(model) => model.name(),
            Chosen::File(_) => Model::Program.name(),
        }
    }

    /// The model, and its programs if it is given by some.
    fn open(&self) -> Answer<(Model, Option<Programs>)> {
        match self {
            Chosen::Named(model) => Ok((*model, None)),
            Chosen::File(path) => {
                let file = Checkpoint::load(checkpoint_file(path))?;
                let (model, programs) = Programs::of(file, path)?;
                Ok((model, Some(programs)))
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum Mode {
    Eager,
    Compiled,
}

/// A positive integer.
pub(crate) fn positive(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(0) => Err("use at least 1".into()),
        Ok(n) => Ok(n),
        Err(_) => Err("use a whole number from 1".into()),
    }
}

/// A learning rate: not negative, and finite as float32 too.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x >= 0.0 && (x as f32).is_finite() => Ok(x),
        _ => Err("use a finite number that is not negative".into()),
    }
}

/// A run that is ready to start.
struct Plan {
    spec: Spec,
    data: Data,
    from: Option<Checkpoint>,
    folder: Option<RunFolder>,
}

impl Train {
    /// The JSON object of `--config`.
    fn given_config(&self) -> Answer<Value> {
        let Some(text) = &self.config else { return Ok(json!({})) };
        serde_json::from_str(text).or_else(|e| fail(format!("--config {text}: {e}; use a JSON object")))
    }

    /// The number of steps from `--steps` or `--epochs`.
    fn asked_steps(&self, rows: usize, batch: usize) -> Option<u64> {
        let steps_of = |epochs: u64| epochs.saturating_mul((rows / batch.max(1)) as u64);
        self.epochs.map(steps_of).or(self.steps)
    }

    /// Errors if an option that defines a run is given and has another value than in the run. The number of steps, the
    /// evaluation interval and the patience may change.
    fn check_same(&self, run: &Spec) -> Answer<()> {
        let text = |value: &dyn std::fmt::Display| Some(value.to_string());
        let list = |sizes: &[usize]| sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let layers = |sizes: &Value| -> Option<String> {
            let sizes: Vec<usize> = Vec::deserialize(sizes).ok()?;
            Some(list(sizes.get(1..sizes.len().saturating_sub(1))?))
        };
        let has_tokens = run.data.tokenizer.clone().unwrap_or_else(|| "bytes".into());
        let all = [
            ("model", self.model.as_ref().map(Chosen::name), text(&run.model.name())),
            ("--hidden", self.hidden.as_deref().map(list), layers(&run.config["sizes"])),
            (
                "--weights",
                self.weights.as_ref().map(|w| w.to_string_lossy().into_owned()),
                run.weights.clone(),
            ),
            ("--samples", self.samples.and_then(|v| text(&v)), run.data.samples.and_then(|v| text(&v))),
            ("--grid", self.grid.and_then(|v| text(&v)), run.data.grid.and_then(|v| text(&v))),
            ("--targets", self.targets.and_then(|v| text(&v)), run.data.targets.and_then(|v| text(&v))),
            ("--resize", self.resize.map(size_text), run.data.resize.map(size_text)),
            ("--tokenizer", self.tokenizer.clone(), Some(has_tokens)),
            ("--batch", self.batch.and_then(|v| text(&v)), text(&run.batch)),
            ("--shards", self.shards.and_then(|v| text(&v)), text(&run.shards)),
            ("--seed", self.seed.and_then(|v| text(&v)), text(&run.seed)),
            ("--optimizer", self.optimizer.map(|o| name(&o)), Some(name(&run.optimizer))),
            ("--lr", self.lr.and_then(|v| text(&v)), text(&run.lr)),
            ("--schedule", self.schedule.map(|c| name(&c)), Some(name(&run.schedule))),
            ("--warmup", self.warmup.and_then(|v| text(&v)), text(&run.warmup)),
            (
                "--weight-decay",
                self.weight_decay.and_then(|v| text(&v)),
                run.weight_decay.and_then(|v| text(&v)),
            ),
            ("--clip", self.clip.and_then(|v| text(&v)), run.clip.and_then(|v| text(&v))),
        ];
        let mut other: Vec<String> = Vec::new();
        for (option, given, has) in all {
            if let Some(given) = given.filter(|g| Some(g) != has.as_ref()) {
                let has = has.unwrap_or_else(|| "none".into());
                other.push(format!("{option} {given}: the run has {has}"));
            }
        }
        for (field, given) in self.given_config()?.as_object().into_iter().flatten() {
            let has = run.config.get(field).unwrap_or(&Value::Null);
            // 0 and 0.0 are one number.
            if given != has && (given.as_f64().is_none() || given.as_f64() != has.as_f64()) {
                other.push(format!("--config {{\"{field}\":{given}}}: the run has {has}"));
            }
        }
        match other.is_empty() {
            true => Ok(()),
            false => fail(format!(
                "{}; leave out what differs, or start another run without --resume",
                other.join("; ")
            )),
        }
    }

    /// A new run.
    fn anew(&self, busy: &Busy) -> Answer<Plan> {
        let Some(chosen) = &self.model else {
            return fail("train what? name a model, or a checkpoint with --resume (see train --help)");
        };
        let (model, programs) = chosen.open()?;
        let (steps, batch, lr, schedule) = usual(model);
        if let (Some(_), None) = (&programs, &self.data) {
            return fail("--data is missing: a program has no data of its own");
        }
        let shards = self.shards.unwrap_or(1);
        // A text for a program is cut to the length it takes.
        let window = programs.as_ref().filter(|_| model.takes_tokens()).map(|p| p.input.last());
        let seed = self.seed.unwrap_or(7);
        if self.hidden.is_some() && model != Model::Mlp {
            return fail(format!("--hidden is for mlp; use --config for {}", model.name()));
        }
        let mut source = Source {
            name: self
                .data
                .as_ref()
                .map_or_else(|| model.data().into(), |d| d.to_string_lossy().into_owned()),
            path: self.data.clone(),
            samples: self.samples,
            grid: self.grid.or(window),
            targets: self.targets,
            resize: self.resize,
            seed,
            tokenizer: None,
            tokens: None,
        };
        if let Some(choice) = &self.tokenizer {
            busy.now("making the tokenizer");
            source.tokenize(model, choice)?;
        }
        let data = source.load(model, busy)?;
        let given = self.given_config()?;
        let rows = data.train.rows();
        let (config, batch) = match &programs {
            Some(_) if self.config.is_some() => {
                return fail("--config is for the models of this program; a file has its sizes");
            }
            Some(Programs { config, input, .. }) => {
                check_rows(&data.train, *input)?;
                (config.clone(), self.batch.unwrap_or(input.dims()[0].saturating_mul(shards)))
            }
            None => {
                let hidden = self.hidden.as_deref().unwrap_or(&[64, 64]);
                (model.config(&data.train, hidden, &given)?, self.batch.unwrap_or(batch.min(rows)))
            }
        };
        if batch > rows {
            return fail(format!("--batch {batch}: there are {rows} training rows"));
        }
        let steps = self.asked_steps(rows, batch).unwrap_or(steps);
        let spec = Spec {
            model,
            task: model.task(&data.train),
            config,
            data: source,
            scales: data.scales.clone(),
            class_names: data.train.class_names().map(<[String]>::to_vec),
            input: Some(data.train.x().shape().dims()[1..].to_vec()),
            steps,
            batch,
            shards,
            optimizer: self.optimizer.unwrap_or(Rule::Adamw),
            lr: self.lr.unwrap_or(lr),
            schedule: self.schedule.unwrap_or(schedule),
            warmup: self.warmup.unwrap_or(0),
            weight_decay: self.weight_decay,
            clip: self.clip,
            seed,
            eval_every: self.eval_every.unwrap_or(steps.div_ceil(10)),
            patience: self.patience,
            weights: self.weights.as_ref().map(|w| w.to_string_lossy().into_owned()),
            program: programs.map(|p| p.file),
        };
        spec.check()?;
        Ok(Plan { spec, data, from: None, folder: None })
    }

    /// A run that continues from a checkpoint. If it continues in its own folder, its state is read while holding the
    /// folder's lock. Any other file is only read, and the run continues in a new folder.
    fn again(&self, path: &Path, busy: &Busy, leads: bool) -> Answer<Plan> {
        let file = checkpoint_file(path);
        let home = file.parent().filter(|_| file.file_name() == Some(OsStr::new(CHECKPOINT)));
        let home = home.map(|h| if h.as_os_str().is_empty() { Path::new(".") } else { h });
        let is_same = |a: &Path, b: &Path| match (a.canonicalize(), b.canonicalize()) {
            (Ok(a), Ok(b)) => a == b,
            _ => false,
        };
        let stays = home.filter(|home| self.out.as_ref().is_none_or(|out| is_same(out, home)));
        // Its lock tells of a run that has not saved a state yet.
        let mut folder = match stays.filter(|home| home.is_dir()) {
            Some(home) if leads => Some(RunFolder::open(home)?),
            Some(home) => Some(RunFolder::follow(home)?),
            None => None,
        };
        let checkpoint = match folder.as_mut().and_then(RunFolder::take_checkpoint) {
            Some(checkpoint) => checkpoint,
            None => Checkpoint::load(&file)?,
        };
        let mut spec = Spec::of(&checkpoint, &file)?;
        spec.has_data(&file, "begin a run with: dittograd train FILE --data …")?;
        self.check_same(&spec)?;
        if let Some(moved) = &self.data {
            spec.data.name = moved.to_string_lossy().into_owned();
            spec.data.path = Some(moved.clone());
        }
        let data = spec.data.load(spec.model, busy)?;
        spec.check_data(&data, &checkpoint)?;
        spec.steps = self.asked_steps(data.train.rows(), spec.batch).unwrap_or(spec.steps);
        spec.eval_every = self.eval_every.unwrap_or(spec.eval_every);
        spec.patience = self.patience.or(spec.patience);
        if checkpoint.step > spec.steps {
            let steps = checkpoint.step;
            return fail(format!(
                "--steps {}: the run has made {steps} steps already; use as many or more",
                spec.steps
            ));
        }
        spec.check()?;
        Ok(Plan { spec, data, from: Some(checkpoint), folder })
    }

    /// The folder of a run that has none yet: a new one, which takes over the earlier measurements.
    fn folder(&self, plan: &Plan) -> Answer<Option<RunFolder>> {
        let folder = folder::make(self.out.as_deref(), &plan.spec.model.name())?;
        self.adopted(plan, folder)
    }

    /// The folder that rank 0 has made, if this rank has none yet.
    fn follow(&self, plan: &Plan, ranks: &Ranks) -> Answer<Option<RunFolder>> {
        let path = plan.folder.as_ref().map(|f| f.path().to_path_buf());
        match (ranks.broadcast(&path)?, &plan.folder) {
            (Some(path), None) => self.adopted(plan, Some(RunFolder::follow(path)?)),
            _ => Ok(None),
        }
    }

    fn adopted(&self, plan: &Plan, mut folder: Option<RunFolder>) -> Answer<Option<RunFolder>> {
        let from = self.resume.as_deref().map(checkpoint_file);
        let home = from.as_deref().and_then(Path::parent);
        if let (Some(folder), Some(home), Some(state)) = (&mut folder, home, &plan.from) {
            folder.adopt(home, state.progress.best.map(|b| b.step))?;
        }
        Ok(folder)
    }

    /// Everything that a run needs, so that it can start.
    fn prepare(
        &self,
        global: &Global,
        out: &Out,
        ranks: Option<&Ranks>,
    ) -> Answer<(Device, Plan, (Params, Net))> {
        if self.paranoid.is_some() && ranks.is_some_and(|r| r.world.size() > 1) {
            return fail("--paranoid is for one process; --verify-every compares the parameters of many");
        }
        let busy = out.busy("looking for devices");
        let device = global.device_of(ranks)?;
        let leads = ranks.is_none_or(Ranks::leads);
        let mut plan = self.plan(&busy, leads)?;
        plan.spec.check_ranks(ranks.map_or(1, |r| r.world.size()), plan.from.is_none())?;
        busy.now("building the model");
        // Errors about the model appear before the folder is created.
        let built = self.built(&plan, &device)?;
        if leads {
            self.settle(&mut plan)?;
        }
        Ok((device, plan, built))
    }

    /// The settings and the data, of a new run or of one that continues.
    fn plan(&self, busy: &Busy, leads: bool) -> Answer<Plan> {
        match &self.resume {
            None => self.anew(busy),
            Some(path) => self.again(path, busy, leads),
        }
    }

    /// The model of a run.
    fn built(&self, plan: &Plan, device: &Device) -> Answer<(Params, Net)> {
        let built = match &plan.from {
            Some(from) => plan.spec.net_of(from, device)?,
            None => plan.spec.net(device, MAX_PARAMETERS)?,
        };
        if let (Some(weights), None) = (&self.weights, &plan.from) {
            built.0.load(weights)?;
        }
        Ok(built)
    }

    /// Gives a run its folder.
    fn settle(&self, plan: &mut Plan) -> Answer<()> {
        if plan.folder.is_none() {
            plan.folder = self.folder(plan)?;
        }
        if let (Some(folder), Some(tokenizer)) = (&plan.folder, &plan.spec.data.tokens) {
            // For other programs and other runs; this one has it in its checkpoint.
            atomic::write(folder.path().join("tokenizer.json"), tokenizer.to_json().as_bytes())?;
        }
        Ok(())
    }

    /// Runs the command.
    pub(crate) fn run(&self, global: &Global, out: &Out, ranks: Option<&Ranks>) -> Answer {
        if let Some(seeds) = seeds::asked(self)? {
            return seeds::run(self, seeds, global, out, ranks);
        }
        let ready = self.prepare(global, out, ranks);
        let (device, plan, built) = match ranks {
            None => ready?,
            Some(ranks) => {
                ranks.set_timeout(self.timeout.map_or(TIMEOUT, Duration::from_secs));
                let (device, mut plan, built) = ranks.agree(ready)?;
                let members = ranks.members(&device.to_string(), device.threads())?;
                ranks.note_shared(&members);
                ranks.use_nccl(&device, &members)?;
                // Rank 0 writes nothing before all have read.
                let followed = ranks.agree(self.follow(&plan, ranks))?;
                plan.folder = plan.folder.or(followed);
                (device, plan, built)
            }
        };
        if self.memory.is_some() {
            device.watch_with(warn);
        }
        let (data, rows, mode) = (plan.data.train.name(), plan.data.train.rows(), name(&self.mode));
        let (model, shards) = (plan.spec.model.name(), plan.spec.shards);
        let transport = ranks.map(|r| r.world.name());
        let size = ranks.map_or(1, |r| r.world.size());
        let many = transport
            .as_ref()
            .map_or_else(String::new, |t| format!(", {size} ranks over {t}, {shards} shards"));
        let folder = plan.folder.as_ref().map(|f| f.path().display().to_string());
        out.progress(
            || {
                json!({
                    "model": model, "config": plan.spec.config, "device": device.to_string(), "mode": mode,
                    "data": data, "rows": rows, "out": folder, "ranks": size, "shards": shards,
                    "transport": transport,
                })
            },
            || {
                let (x, y) = (sample(plan.data.train.x()), sample(plan.data.train.y()));
                let test = plan.data.test.rows();
                format!("{model} on {data}: {rows} training rows of {x} to {y}, {test} test rows; {device}, {mode}{many}")
            },
        );
        let (optimizer, parameters) = (name(&plan.spec.optimizer), built.0.numel());
        let fit::Fitted { outcome: end, best, files, fingerprint } =
            fit::fit(plan, built, &device, self, out, ranks)?;
        let memory = device.memory();
        let numerics = device.numerics().to_string();
        let Times { first_step, steps, evaluations, files: saving } = end.times;
        let seconds = (first_step + steps + evaluations + saving).as_secs_f64();
        let step_ms = fit::step_ms(&end);
        let is_cut = end.end == End::Stopped;
        if out.json() {
            let mut last = json!({
                "train_loss": end.loss, "steps": end.step, "seconds": seconds, "ms_per_step": step_ms,
                "evaluation_seconds": evaluations.as_secs_f64(), "parameters": parameters,
                "device": device.to_string(), "mode": mode, "optimizer": optimizer,
                "numerics": numerics, "peak_bytes": memory.peak, "live_bytes": memory.live,
                "cached_bytes": memory.cached, "out": folder, "ranks": size, "shards": shards,
                "transport": transport, "bytes_sent": ranks.map_or(0, |r| r.world.traffic().sent),
                "optimizer_bytes": end.optimizer_bytes,
            });
            if self.paranoid.is_some() {
                last["faults"] = json!(end.faults);
            }
            if let Some(scores) = &end.scores {
                task::put(scores, &mut last);
            }
            if let Some((step, scores)) = &best {
                last["best"] = json!({"step": step});
                task::put(scores, &mut last["best"]);
            }
            last["fingerprint"] = json!(fingerprint);
            out.line(&last.to_string())?;
            return Ok(!is_cut);
        }
        if out.chatty() {
            let parts = format!(
                "{step_ms:.3} ms a step, evaluations {:.2} s, files {:.2} s",
                evaluations.as_secs_f64(),
                saving.as_secs_f64()
            );
            out.line(&format!("{} steps in {seconds:.2} s: {parts}; {parameters} parameters", end.ran))?;
        }
        if let Some(scores) = &end.scores {
            out.line(&task::text(scores))?;
        }
        if let (Some((step, scores)), true) = (&best, out.chatty()) {
            out.line(&format!("best at step {step}: {}", task::text(scores)))?;
        }
        if out.chatty() {
            let (peak, live) = (bytes(memory.peak), memory.live);
            let counts = format!("{} allocations, {} frees", memory.allocs, memory.frees);
            out.line(&format!("memory peak {peak}, live at the end {live} bytes, {counts}"))?;
            if let Some(every) = self.paranoid {
                let faults = end.faults;
                out.line(&format!(
                    "{faults} faults of the hardware found, 1 of {every} steps computed twice"
                ))?;
            }
            out.line(&format!("numerics {numerics}"))?;
            if let Some(folder) = folder {
                out.line(&format!("files in {folder}: {}", files.join(", ")))?;
            }
        }
        out.line(&format!("fingerprint {fingerprint}"))?;
        Ok(!is_cut)
    }
}

/// Errors unless the rows of the data are what a program takes.
fn check_rows(data: &Dataset, input: Shape) -> Answer<()> {
    let shape = data.x().shape();
    let (has, takes) = (&shape.dims()[1..], &input.dims()[1..]);
    if has == takes {
        return Ok(());
    }
    let how = match takes {
        [_, height, width] if has.len() == 3 => {
            format!("use --resize {height}x{width}, or write the program for such rows")
        }
        _ => "write the program for such rows".into(),
    };
    fail(format!("{}: has rows of shape {has:?}, the program takes {takes:?}; {how}", data.name()))
}

/// The checkpoint that a path refers to: a file, or the one in a folder.
pub(crate) fn checkpoint_file(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(CHECKPOINT) } else { path.to_path_buf() }
}

/// The shape of one sample.
fn sample(values: &AnyTensor) -> String {
    format!("{:?}", &values.shape().dims()[1..])
}
