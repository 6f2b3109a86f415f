//! The settings of a run: everything that determines its bits.

use super::{TOKENIZER, checkpoint_file};
use crate::images::{MAX_SIDE, size_text};
use crate::models::{Field, MAX_PARAMETERS, Model, Net, Task, name};
use crate::out::table;
use crate::task::{Data, Scales, Source};
use crate::{Answer, Fail, fail};
use clap::ValueEnum;
use dittograd::data::Tokenizer;
use dittograd::io::Checkpoint;
use dittograd::nn::Program;
use dittograd::prelude::*;
use dittograd::train::data_hash;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Rule {
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

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Curve {
    /// Always the same
    Constant,
    /// Down to zero along half a cosine
    Cosine,
    /// Up in the first 30 %, then down, along half cosines
    OneCycle,
}

/// Everything that determines the bits of a run, as stored in a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Spec {
    pub(crate) model: Model,
    /// What it learns.
    pub(crate) task: Task,
    /// Sizes of the model.
    pub(crate) config: Value,
    pub(crate) data: Source,
    pub(crate) scales: Scales,
    /// Names of the classes, if they have names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) class_names: Option<Vec<String>>,
    /// The shape of one input; runs of earlier versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) input: Option<Vec<usize>>,
    pub(super) steps: u64,
    pub(super) batch: usize,
    /// The parts of a batch; earlier versions called them otherwise.
    #[serde(alias = "accumulate")]
    pub(super) shards: usize,
    pub(super) optimizer: Rule,
    pub(super) lr: f64,
    pub(super) schedule: Curve,
    pub(super) warmup: u64,
    pub(super) weight_decay: Option<f64>,
    pub(super) clip: Option<f64>,
    pub(super) seed: u64,
    pub(super) eval_every: u64,
    pub(super) patience: Option<u64>,
    /// Where the initial parameters came from, if not from the seed.
    pub(super) weights: Option<String>,
    /// The checkpoint that has the programs of the model, if it is given by some.
    #[serde(skip)]
    pub(super) program: Option<Arc<Checkpoint>>,
}

/// The settings of a model that is given as programs: shapes of what they take and give. Data and pictures look at some by these names.
fn program_config(program: &Program) -> Value {
    let (input, output) = (program.input().shape, program.output());
    let (x, y) = (&input.dims()[1..], &output.dims()[1..]);
    let mut config = json!({"rows": input.dims()[0], "input": x, "output": y});
    match (x, y) {
        ([features], [outputs]) => config["sizes"] = json!([features, outputs]),
        ([channels, _, _], _) => config["channels"] = json!(channels),
        _ => {}
    }
    config
}

/// Defaults of a model: steps, rows in a batch, learning rate and its schedule.
pub(super) fn usual(model: Model) -> (u64, usize, f64, Curve) {
    match model {
        Model::Mlp => (300, 128, 1e-2, Curve::Constant),
        Model::Cnn => (400, 64, 3e-3, Curve::OneCycle),
        Model::ResNet => (200, 64, 4e-3, Curve::OneCycle),
        Model::Vit => (1000, 64, 2e-3, Curve::OneCycle),
        Model::Gpt => (1000, 256, 2e-3, Curve::OneCycle),
        Model::Mamba => (500, 128, 3e-3, Curve::OneCycle),
        Model::Fno1d => (3000, 16, 2e-3, Curve::OneCycle),
        Model::Fno2d => (1000, 16, 2e-3, Curve::OneCycle),
        Model::Autoencoder => (800, 64, 2e-3, Curve::OneCycle),
        Model::Program | Model::TokenProgram => (1000, 1, 1e-3, Curve::OneCycle),
    }
}

/// The fields of the configuration of a model and its defaults, for the help.
pub(crate) fn model_help(model: Model) -> String {
    let name_of = model.name();
    let (steps, batch, lr, schedule) = usual(model);
    let field = |(field, default, meaning): &Field| {
        let default = default.unwrap_or("by the data");
        vec![format!("  {field}"), format!("{meaning} [default: {default}]")]
    };
    let fields: Vec<Vec<String>> = model.fields().iter().map(field).collect();
    format!(
        "Fields of --config for {name_of}:\n{}\n\nDefaults of {name_of}:\n  --data {} --steps {steps} --batch {batch} --lr {lr} \
         --schedule {} --optimizer adamw",
        table(&fields),
        model.data(),
        name(&schedule),
    )
}

impl Spec {
    pub(super) fn optimizer(&self) -> Optimizer {
        let lr = self.lr;
        let mut rule = match self.optimizer {
            Rule::Sgd => Optimizer::sgd(lr),
            Rule::Momentum => Optimizer::momentum(lr, 0.9),
            Rule::Adam => Optimizer::adam(lr),
            Rule::Adamw => Optimizer::adamw(lr),
            Rule::Nesterov => Optimizer::nesterov(lr, 0.9),
            Rule::Adagrad => Optimizer::adagrad(lr),
            Rule::Rmsprop => Optimizer::rmsprop(lr),
            Rule::Adadelta => Optimizer::adadelta(lr),
            Rule::Lion => Optimizer::lion(lr),
            Rule::Muon => Optimizer::muon(lr),
        };
        if let Some(decay) = self.weight_decay {
            rule = rule.weight_decay(decay);
        }
        if let Some(clip) = self.clip {
            rule = rule.clip_norm(clip);
        }
        rule.schedule(self.schedule())
    }

    pub(super) fn schedule(&self) -> Schedule {
        let rest = self.steps.saturating_sub(self.warmup).max(1);
        let curve = match self.schedule {
            Curve::Constant => Schedule::constant(),
            Curve::Cosine => Schedule::cosine(rest, 0.0),
            Curve::OneCycle => Schedule::one_cycle(rest),
        };
        if self.warmup == 0 { curve } else { curve.warmup(self.warmup, 1.0 / self.warmup as f64) }
    }

    /// Errors unless these are valid settings of a run, whoever wrote them.
    pub(super) fn check(&self) -> Answer<()> {
        let ranges = [
            ("steps", self.steps as f64, 1.0),
            ("batch", self.batch as f64, 1.0),
            ("shards", self.shards as f64, 1.0),
            ("eval-every", self.eval_every as f64, 1.0),
            ("patience", self.patience.unwrap_or(1) as f64, 1.0),
            ("samples", self.data.samples.unwrap_or(1) as f64, 1.0),
            ("grid", self.data.grid.unwrap_or(1) as f64, 1.0),
            ("targets", self.data.targets.unwrap_or(1) as f64, 1.0),
            ("lr", self.lr, 0.0),
            ("weight-decay", self.weight_decay.unwrap_or(0.0), 0.0),
            ("clip", self.clip.unwrap_or(0.0), 0.0),
        ];
        for (name, value, least) in ranges {
            if !(value >= least && (value as f32).is_finite()) {
                return fail(format!("--{name} {value}: use a finite number from {least}"));
            }
        }
        if let Some(size) = self.data.resize
            && !size.iter().all(|n| (1..=MAX_SIDE).contains(n))
        {
            return fail(format!("--resize {}: use sizes from 1 to {MAX_SIDE}", size_text(size)));
        }
        if let (Some(names), Task::Classes, Some(classes)) =
            (&self.class_names, self.task, self.config.get("classes").and_then(Value::as_u64))
            && names.len() as u64 != classes
        {
            return fail(format!("there are {} names for {classes} classes", names.len()));
        }
        let Spec { batch, shards, .. } = self;
        if let Some(rows) = self.config["rows"].as_u64().filter(|r| *r != (batch / shards.max(&1)) as u64) {
            let most = (rows as usize).saturating_mul(*shards);
            return fail(format!(
                "--batch {batch}: the program takes {rows} rows at a time; use --batch {most} with {shards} shards, or write the \
                 program again for another batch"
            ));
        }
        if !batch.is_multiple_of(*shards) {
            return fail(format!("--shards {shards}: a batch of {batch} rows has no such equal parts"));
        }
        Ok(())
    }

    /// Errors if there are more ranks than shards.
    pub(super) fn check_ranks(&self, ranks: usize, is_new: bool) -> Answer<()> {
        let shards = self.shards;
        let few = format!("{ranks} processes need a shard each, and there are {shards}");
        match (ranks > shards, is_new) {
            (false, _) => Ok(()),
            (true, true) => fail(format!("{few}; use --shards {ranks} or more, or mpirun -n {shards}")),
            (true, false) => {
                fail(format!("{few} in this run; continue it with mpirun -n {shards}, or fewer processes"))
            }
        }
    }

    /// A class by its name, or by its number if it has none.
    pub(crate) fn class_name(&self, class: usize) -> String {
        let name = self.class_names.as_ref().and_then(|names| names.get(class));
        name.cloned().unwrap_or_else(|| class.to_string())
    }

    /// Errors unless this is the data that the checkpoint's run was trained and evaluated on.
    pub(crate) fn check_data(&self, data: &Data, checkpoint: &Checkpoint) -> Answer<()> {
        let now = data_hash(&data.train, Some(&data.test));
        if data.scales == self.scales && now == checkpoint.data.hash {
            return Ok(());
        }
        let how = "restore it, or name its copy with --data where it was moved";
        fail(format!("{}: the data is not what the run was trained on; {how}", self.data.name))
    }

    /// Errors if no run has trained it yet.
    pub(crate) fn has_data(&self, path: &Path, how: &str) -> Answer<()> {
        let at = path.display();
        if self.data.name.is_empty() {
            fail(format!("{at}: has programs, but no data; {how}"))
        } else {
            Ok(())
        }
    }

    /// The model with parameters from the seed, at most `most` of them, on a device.
    pub(super) fn net(&self, device: &Device, most: usize) -> Answer<(Params, Net)> {
        let mut params = Params::new(device, self.seed).at_most(most);
        let net = match &self.program {
            Some(file) => Net::of_programs(file, &mut params)?,
            None => Net::new(self.model, &mut params, &self.config)?,
        };
        Ok((params, net))
    }

    /// The model of a checkpoint, on a device, still with parameters from the seed. A file whose settings ask for a
    /// larger model than it holds gets no memory for it.
    pub(crate) fn net_of(&self, checkpoint: &Checkpoint, device: &Device) -> Answer<(Params, Net)> {
        self.net(device, checkpoint.params.numel())
    }

    /// The settings of a checkpoint.
    pub(crate) fn of(checkpoint: &Checkpoint, path: &Path) -> Answer<Spec> {
        let not_ours = |why: String| {
            let at = path.display();
            Fail::Message(format!("{at}: is a checkpoint, but not one that `train` made: {why}"))
        };
        if checkpoint.config.is_null() && Program::is_in(checkpoint) {
            let (model, programs) = Programs::of(checkpoint.clone(), path)?;
            return Ok(programs.untrained(model));
        }
        let mut spec = Spec::deserialize(&checkpoint.config).map_err(|e| not_ours(e.to_string()))?;
        spec.check().map_err(|e| not_ours(e.message().unwrap_or_default()))?;
        if spec.seed != checkpoint.random.seed || spec.batch as u64 != checkpoint.data.batch {
            return Err(not_ours("its seeds or batches are not those of its settings".into()));
        }
        spec.data.tokens = match (&spec.data.tokenizer, checkpoint.texts.get(TOKENIZER)) {
            (None, _) => None,
            (Some(_), Some(text)) => Some(Arc::new(Tokenizer::from_json(text)?)),
            (Some(_), None) => return fail(format!("{}: its tokenizer is missing", path.display())),
        };
        if spec.model.is_program() {
            spec.program = Some(Arc::new(Checkpoint { optimizer: None, ..checkpoint.clone() }));
        }
        Ok(spec)
    }
}

impl Spec {
    /// The settings of a record, with what they name: a tokenizer, or the programs in `file`.
    pub(crate) fn recorded(settings: &Value, moved: Option<&Path>, file: Option<&Path>) -> Answer<Spec> {
        let mut spec = match Spec::deserialize(settings) {
            Ok(spec) => spec,
            Err(e) => return fail(format!("its settings are not those of a run that `train` made: {e}")),
        };
        spec.check()?;
        if let Some(moved) = moved {
            spec.data.path = Some(moved.to_path_buf());
        }
        if let Some(choice) = spec.data.tokenizer.clone() {
            spec.data.tokenize(spec.model, &choice)?;
        }
        if spec.model.is_program() {
            let Some(path) = file else {
                return fail("its model is given by a file; name it with --weights");
            };
            spec.program = Some(Programs::of(Checkpoint::load(checkpoint_file(path))?, path)?.1.file);
        }
        Ok(spec)
    }

    /// The model with the parameters that its run began with; `weights` is where the file with them was moved.
    pub(crate) fn begun(&self, device: &Device, weights: Option<&Path>) -> Answer<(Params, Net)> {
        let built = self.net(device, MAX_PARAMETERS)?;
        let named = self.weights.as_deref().map(Path::new);
        if let (Some(path), false) = (weights.or(named).filter(|_| named.is_some()), self.model.is_program())
        {
            built.0.load(path)?;
        }
        Ok(built)
    }
}

/// The programs of a model.
pub(super) struct Programs {
    pub(super) file: Arc<Checkpoint>,
    pub(super) config: Value,
    /// The shape of a batch.
    pub(super) input: Shape,
}

impl Programs {
    /// Those that a checkpoint has, and the model that they are.
    pub(super) fn of(file: Checkpoint, path: &Path) -> Answer<(Model, Programs)> {
        let at = path.display();
        let program = Program::of(&file, &mut Params::new(&Device::cpu()?, 0))
            .or_else(|e| fail(format!("{at}: {}", e.without_location())))?;
        let (config, input) = (program_config(&program), program.input().shape);
        let file = Arc::new(Checkpoint { optimizer: None, ..file });
        Ok((Model::of_program(&program), Programs { file, config, input }))
    }

    /// The settings of programs that no run has trained yet, which have no data.
    pub(super) fn untrained(self, model: Model) -> Spec {
        let dims = self.input.dims();
        Spec {
            model,
            task: Task::Numbers,
            data: Source::default(),
            scales: Scales::default(),
            class_names: None,
            input: Some(dims[1..].to_vec()),
            steps: 1,
            batch: dims[0],
            shards: 1,
            optimizer: Rule::Adamw,
            lr: 0.0,
            schedule: Curve::Constant,
            warmup: 0,
            weight_decay: None,
            clip: None,
            seed: self.file.random.seed,
            eval_every: 1,
            patience: None,
            weights: None,
            config: self.config,
            program: Some(self.file),
        }
    }
}
