//! Checkpoints: everything that a training run needs to continue bit for bit, in one safetensors file.
//!
//! Parameters are tensors under their own names, so PyTorch can load them. Tensors of the optimizer are called
//! `optimizer.PARAMETER.STATE`. The rest is JSON in the file's metadata, with a hash of everything, so that a flipped
//! bit is detected.

use super::SaveLoad;
use super::safetensors::{Dtype, SafeTensors, Writer};
use super::state_dict::{Fit, StateDict};
use super::{said, shown};
use crate::error::{Error, Located, Result};
use crate::graph::TrainStep;
use crate::numerics::environment;
use crate::numerics::{NUMERICS_VERSION, Numerics};
use crate::optim::{Optimizer, OptimizerState, ParamState};
use crate::params::Params;
use crate::session::{Session, Var};
use crate::tensor::{AnyTensor, Tensor};
use dittograd_engine::sharded::EagerShards;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Prefix of the optimizer's tensors.
pub(crate) const OPTIMIZER: &str = "optimizer.";
/// Entries of the metadata.
const FORMAT: &str = "dittograd.checkpoint";
const STATE: &str = "dittograd.state";
const HASH: &str = "dittograd.blake3";
/// Prefix of further texts in the metadata.
const TEXT: &str = "dittograd.text.";
/// The only format.
const VERSION: &str = "1";

/// The position in a random stream: its seed and the calls so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RandomState {
    /// The seed.
    pub seed: u64,
    /// Random calls so far.
    pub calls: u64,
}

impl RandomState {
    /// The random state of a session.
    pub fn of(session: &Session) -> RandomState {
        RandomState { seed: session.seed(), calls: session.random_calls() }
    }

    /// Makes a session continue from here. The session must have the same seed, which is set when it is created.
    #[track_caller]
    pub fn restore(self, session: &Session) -> Result<()> {
        self.check("session", session.seed(), "Session::eager_seeded")?;
        session.set_random_calls(self.calls);
        Ok(())
    }

    /// Errors if `what` has another seed.
    #[track_caller]
    pub(crate) fn check(self, what: &str, seed: u64, how: &str) -> Result<()> {
        if seed == self.seed {
            return Ok(());
        }
        let why =
            format!("the {what} draws from seed {seed}, the checkpoint from {0}; use {how}({0})", self.seed);
        Err(Error::argument("restore", "seed", why))
    }
}

fn one() -> u64 {
    1
}

fn is_one(n: &u64) -> bool {
    *n == 1
}

impl Default for DataState {
    fn default() -> DataState {
        DataState { name: String::new(), seed: 0, batch: 0, shards: 1, hash: String::new() }
    }
}

/// The state of the data: which batch comes at which step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataState {
    /// The data set.
    pub name: String,
    /// The seed of its shuffles.
    pub seed: u64,
    /// Rows of a batch.
    pub batch: u64,
    /// Shards that a batch is cut into.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub shards: u64,
    /// A hash that identifies the data itself, such as [`Dataset::hash`](crate::data::Dataset::hash); empty if unknown.
    #[serde(default)]
    pub hash: String,
}

/// The best evaluation of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Best {
    /// Steps done by then.
    pub step: u64,
    /// The score it was judged by; larger is better.
    pub merit: f64,
}

/// What a run needs besides parameters, optimizer and random stream to end as if it had not been stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// The best evaluation so far.
    pub best: Option<Best>,
    /// Evaluations since then, none of which was better.
    pub since_best: u64,
    /// The last training loss that was read.
    pub loss: Option<f32>,
}

/// A stopped training run. `step` is its position in the data: the order of batches follows from it and [`DataState`].
///
/// ```
/// use dittograd::prelude::*;
/// # fn main() -> Result<()> {
/// # let folder = std::env::temp_dir().join(format!("dittograd-checkpoint-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// let path = folder.join("run.safetensors");
/// let device = Device::cpu()?;
/// let data = data::spirals(7, 90, 3)?;
/// let batch = [data.x().into(), data.y().into()];
///
/// let mut params = Params::new(&device, 7);
/// let net = Mlp::new(&mut params, &[2, 8, 3])?;
/// let mut step = TrainStep::new(&params, Optimizer::adamw(1e-2), |v| net.forward(v[0])?.cross_entropy(v[1]));
/// for i in 0..20 {
///     if i == 10 {
///         let mut checkpoint = Checkpoint::new("mlp", &params)?;
///         checkpoint.take(&step)?;
///         checkpoint.save(&path)?;
///     }
///     step.run(&batch)?;
/// }
///
/// let mut again = Params::new(&device, 0);
/// let net = Mlp::new(&mut again, &[2, 8, 3])?;
/// let mut step = TrainStep::new(&again, Optimizer::adamw(1e-2), |v| net.forward(v[0])?.cross_entropy(v[1]));
/// let checkpoint = Checkpoint::load(&path)?;
/// checkpoint.restore(&again, &mut step)?;
/// for _ in checkpoint.step..20 {
///     step.run(&batch)?;
/// }
/// assert_eq!(again.fingerprint()?, params.fingerprint()?);
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Name of the model.
    pub model: String,
    /// The configuration of the model.
    pub config: Value,
    /// All parameters, frozen ones and statistics included.
    pub params: StateDict,
    /// Names of the parameters that are not trained.
    pub frozen: BTreeSet<String>,
    /// The state of the optimizer.
    pub optimizer: Option<OptimizerState>,
    /// Steps done.
    pub step: u64,
    /// The random stream of training.
    pub random: RandomState,
    /// The numerics mode.
    pub numerics: Numerics,
    /// The version of the numerics contract.
    pub numerics_version: u32,
    /// The data.
    pub data: DataState,
    /// State of early stopping and of the best model.
    pub progress: Progress,
    /// The measurements so far.
    pub metrics: Value,
    /// Further texts by name, such as a tokenizer.
    pub texts: BTreeMap<String, String>,
    /// The version of this crate that wrote it.
    pub version: String,
}

/// A float as the digits of its bits, so that no JSON reader rounds it.
#[derive(Clone, Copy)]
struct Bits(f64);

impl Serialize for Bits {
    #[track_caller]
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&format!("{:016x}", self.0.to_bits()))
    }
}

impl<'de> Deserialize<'de> for Bits {
    #[track_caller]
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Bits, D::Error> {
        let text = String::deserialize(d)?;
        match u64::from_str_radix(&text, 16) {
            Ok(bits) if text.len() == 16 => Ok(Bits(f64::from_bits(bits))),
            _ => Err(serde::de::Error::custom("a float is not 16 hex digits")),
        }
    }
}

/// The part that is saved as JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    model: String,
    config: Value,
    step: u64,
    random: RandomState,
    numerics: String,
    numerics_version: u32,
    data: DataState,
    #[serde(default)]
    progress: ProgressBits,
    metrics: Value,
    version: String,
    frozen: BTreeSet<String>,
    optimizer: Option<OptimizerScalars>,
}

/// [`Progress`] with its floats as bits.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProgressBits {
    best: Option<(u64, Bits)>,
    since_best: u64,
    loss: Option<Bits>,
}

impl From<Progress> for ProgressBits {
    fn from(p: Progress) -> ProgressBits {
        ProgressBits {
            best: p.best.map(|b| (b.step, Bits(b.merit))),
            since_best: p.since_best,
            loss: p.loss.map(|l| Bits(f64::from(l))),
        }
    }
}

impl From<ProgressBits> for Progress {
    fn from(p: ProgressBits) -> Progress {
        Progress {
            best: p.best.map(|(step, merit)| Best { step, merit: merit.0 }),
            since_best: p.since_best,
            loss: p.loss.map(|l| l.0 as f32),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OptimizerScalars {
    step: u64,
    lr: Bits,
    group_lrs: Vec<Option<Bits>>,
    /// Number of updates of each parameter.
    updates: BTreeMap<String, u64>,
}

/// The same value with sorted keys in all objects, so that equal values are equal text.
pub(crate) fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let by_key: BTreeMap<&String, &Value> = map.iter().collect();
            Value::Object(by_key.into_iter().map(|(k, v)| (k.clone(), sorted(v))).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

/// What a checkpoint can be taken of and resumed: an [`Optimizer`], or a [`TrainStep`] with its random stream.
pub trait Resume {
    /// Puts its state into the checkpoint.
    #[track_caller]
    fn take_into(&self, checkpoint: &mut Checkpoint) -> Result<()>;

    /// Continues from the checkpoint. On an error nothing is changed.
    #[track_caller]
    fn resume(&mut self, params: &Params, checkpoint: &Checkpoint) -> Result<()>;
}

impl Resume for Optimizer {
    #[track_caller]
    fn take_into(&self, checkpoint: &mut Checkpoint) -> Result<()> {
        checkpoint.optimizer = Some(self.state()?);
        checkpoint.step = self.steps();
        Ok(())
    }

    #[track_caller]
    fn resume(&mut self, params: &Params, checkpoint: &Checkpoint) -> Result<()> {
        self.load_state(params, checkpoint.optimizer()?)
    }
}

impl Resume for EagerShards {
    #[track_caller]
    fn take_into(&self, checkpoint: &mut Checkpoint) -> Result<()> {
        checkpoint.optimizer = Some(self.state()?);
        checkpoint.step = self.optimizer().steps();
        Ok(())
    }

    #[track_caller]
    fn resume(&mut self, params: &Params, checkpoint: &Checkpoint) -> Result<()> {
        self.load_state(params, checkpoint.optimizer()?)
    }
}

impl<F> Resume for TrainStep<F>
where
    F: for<'s> Fn(&[Var<'s>]) -> Result<Var<'s>>,
{
    #[track_caller]
    fn take_into(&self, checkpoint: &mut Checkpoint) -> Result<()> {
        checkpoint.optimizer = Some(self.state()?);
        checkpoint.step = self.optimizer().steps();
        checkpoint.random = RandomState { seed: self.seed(), calls: self.random_calls() };
        Ok(())
    }

    #[track_caller]
    fn resume(&mut self, _: &Params, checkpoint: &Checkpoint) -> Result<()> {
        checkpoint.random.check("step", self.seed(), "TrainStep::seeded")?;
        self.load_state(checkpoint.optimizer()?)?;
        self.set_random_calls(checkpoint.random.calls);
        Ok(())
    }
}

impl Checkpoint {
    /// A checkpoint of a model's parameters before the first step; the other fields have defaults. Waits for the
    /// device.
    #[track_caller]
    pub fn new(model: &str, params: &Params) -> Result<Checkpoint> {
        Ok(Checkpoint { params: params.state_dict()?, ..Checkpoint::without_values(model, params) })
    }

    /// What [`Checkpoint::new`] says besides the values of parameters.
    pub(crate) fn without_values(model: &str, params: &Params) -> Checkpoint {
        let frozen = params.iter().filter(|p| !p.trainable()).map(|p| p.name().to_string()).collect();
        Checkpoint {
            model: model.to_string(),
            config: Value::Null,
            params: StateDict::default(),
            frozen,
            optimizer: None,
            step: 0,
            random: RandomState::default(),
            numerics: params.device().numerics(),
            numerics_version: NUMERICS_VERSION,
            data: DataState::default(),
            progress: Progress::default(),
            metrics: Value::Null,
            texts: BTreeMap::new(),
            version: env!("CARGO_PKG_VERSION").to_string(),
        }
    }

    /// Adds the state of the optimizer or training step. In an eager loop, also set `random` to [`RandomState::of`] the
    /// session.
    #[track_caller]
    pub fn take(&mut self, training: &impl Resume) -> Result<()> {
        training.take_into(self)
    }

    #[track_caller]
    fn optimizer(&self) -> Result<&OptimizerState> {
        let why =
            "the checkpoint has no optimizer state; only its parameters can be loaded, with Params::load";
        self.optimizer.as_ref().ok_or_else(|| Error::argument("restore", "optimizer", why))
    }

    /// Restores parameters and optimizer (and the random stream of a [`TrainStep`]), so that training continues bit for
    /// bit. In an eager loop, also call [`RandomState::restore`] with the session. If the checkpoint has another model,
    /// optimizer, seed, mode or version of the numerics, this is an error and nothing changes. To continue with other
    /// bits, set `numerics_version` to [`NUMERICS_VERSION`].
    #[track_caller]
    pub fn restore(&self, params: &Params, training: &mut impl Resume) -> Result<()> {
        if self.numerics_version != NUMERICS_VERSION {
            let why = format!(
                "the checkpoint was computed by version {} of the numerics, this is version {NUMERICS_VERSION}: it would go \
                 on with other bits; use dittograd as it was, or only load the parameters with Params::load",
                self.numerics_version
            );
            return Err(Error::argument("restore", "numerics", why));
        }
        let here = params.device().numerics();
        if self.numerics != here {
            let why = format!(
                "the checkpoint was computed in mode {}, this device is in mode {here}: it would go on with other bits; use \
                 mode {0}, or only load the parameters with Params::load",
                self.numerics
            );
            return Err(Error::argument("restore", "numerics", why));
        }
        let fit = Fit::new(params, &self.params, true);
        let fit = fit.map_err(|why| Error::argument("restore", "parameters", why))?;
        training.resume(params, self)?;
        fit.apply()?;
        params.iter().for_each(|p| p.set_trainable(!self.frozen.contains(p.name())));
        Ok(())
    }

    /// The [fingerprint](Params::fingerprint) of the parameters.
    pub fn fingerprint(&self) -> String {
        self.params.fingerprint()
    }

    /// Writes the checkpoint to a file atomically. Equal checkpoints give equal bytes.
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.with_writer(|file| file.save(path))
    }

    /// The bytes of the file.
    #[track_caller]
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let _strict = environment::enter();
        self.with_writer(|file| file.to_bytes())
    }

    #[track_caller]
    fn with_writer<T>(&self, f: impl FnOnce(&Writer<'_>) -> Result<T>) -> Result<T> {
        let mut file = Writer::new();
        for (name, tensor) in self.params.iter() {
            if name.starts_with(OPTIMIZER) {
                let why = format!(
                    "`{}` begins as the names of the optimizer's tensors do; use another",
                    shown(name)
                );
                return Err(Error::argument("checkpoint", "parameter", why));
            }
            file.tensor(name, tensor)?;
        }
        let scalars = |o: &OptimizerState| OptimizerScalars {
            step: o.step,
            lr: Bits(o.lr),
            group_lrs: o.group_lrs.iter().map(|lr| lr.map(Bits)).collect(),
            updates: o.params.iter().map(|(name, p)| (name.clone(), p.step)).collect(),
        };
        for (param, state) in self.optimizer.iter().flat_map(|o| &o.params) {
            for (name, tensor) in &state.tensors {
                file.numbers(&format!("{OPTIMIZER}{param}.{name}"), tensor)?;
            }
        }
        let state = State {
            model: self.model.clone(),
            config: sorted(&self.config),
            step: self.step,
            random: self.random,
            numerics: self.numerics.to_string(),
            numerics_version: self.numerics_version,
            data: self.data.clone(),
            progress: self.progress.into(),
            metrics: sorted(&self.metrics),
            version: self.version.clone(),
            frozen: self.frozen.clone(),
            optimizer: self.optimizer.as_ref().map(scalars),
        };
        let state = serde_json::to_string(&state)
            .map_err(|e| Error::argument("checkpoint", "state", format!("cannot be written as JSON: {e}")))?;
        file.metadata("format", "pt")?.metadata(FORMAT, VERSION)?.metadata(STATE, &state)?;
        for (name, text) in &self.texts {
            file.metadata(&format!("{TEXT}{name}"), text)?;
        }
        let hash = file.digest();
        file.metadata(HASH, &hash)?;
        f(&file)
    }

    /// Whether a file is marked as a checkpoint.
    pub fn is_one(file: &SafeTensors) -> bool {
        [FORMAT, STATE, HASH].iter().any(|key| file.metadata().contains_key(*key))
    }

    /// Reads and checks a file.
    #[track_caller]
    pub fn load(path: impl AsRef<Path>) -> Result<Checkpoint> {
        SafeTensors::read(path).and_then(|file| Checkpoint::from_file(&file)).located()
    }

    /// Errors unless the file is a complete checkpoint of a known format. Returns the text of its state.
    #[track_caller]
    pub(super) fn verify(file: &SafeTensors) -> Result<&str> {
        let (text, hash) = Checkpoint::state(file)?;
        if *hash != file.digest(HASH) {
            let why = "is a damaged checkpoint: its content is not what was saved; use another copy";
            return Err(file.error("load", why));
        }
        Ok(text)
    }

    /// Errors unless the file is marked as a checkpoint of a known format. Returns the text of its state, and the hash of its content.
    #[track_caller]
    fn state(file: &SafeTensors) -> Result<(&str, &str)> {
        if !Checkpoint::is_one(file) {
            let why = format!(
                "holds {} tensors but no checkpoint; load its weights with Params::load or StateDict::read",
                file.len()
            );
            return Err(file.error("load", why));
        }
        let entry = |key: &str| file.metadata().get(key);
        if let Some(version) = entry(FORMAT).filter(|v| *v != VERSION) {
            let why = format!(
                "is a checkpoint of format {}, this program reads {VERSION}; use the dittograd that wrote it",
                shown(version)
            );
            return Err(file.error("load", why));
        }
        let (Some(_), Some(text), Some(hash)) = (entry(FORMAT), entry(STATE), entry(HASH)) else {
            return Err(file.error("load", "is a damaged checkpoint: a part of its metadata is missing"));
        };
        Ok((text, hash))
    }

    /// What a file says besides its tensors, which are not read: parameters and states of the optimizer are missing, and nothing is
    /// known of damage. Also the number of elements of all parameters.
    #[doc(hidden)]
    #[track_caller]
    pub fn head(path: impl AsRef<Path>) -> Result<(Checkpoint, usize)> {
        let file = SafeTensors::read_header(path.as_ref())?;
        let state = Checkpoint::parse(&file, Checkpoint::state(&file)?.0)?;
        let params = file.iter().filter(|(name, _)| !name.starts_with(OPTIMIZER));
        // Each shape fits the file, so that the sum does.
        let elements = params.map(|(_, e)| e.shape().numel()).sum();
        Ok((Checkpoint::of(&file, state, StateDict::new(), None)?, elements))
    }

    #[track_caller]
    fn parse(file: &SafeTensors, text: &str) -> Result<State> {
        serde_json::from_str(text).map_err(|e| file.error("load", format!("its state: {}", said(&e))))
    }

    /// The checkpoint in an already read file.
    #[track_caller]
    pub fn from_file(file: &SafeTensors) -> Result<Checkpoint> {
        let _strict = environment::enter();
        let mut state = Checkpoint::parse(file, Checkpoint::verify(file)?)?;
        let mut optimizer = state.optimizer.take().map(|o| {
            let fresh = |step| ParamState { step, tensors: BTreeMap::new() };
            OptimizerState {
                step: o.step,
                lr: o.lr.0,
                group_lrs: o.group_lrs.iter().map(|lr| lr.map(|b| b.0)).collect(),
                params: o.updates.into_iter().map(|(name, step)| (name, fresh(step))).collect(),
            }
        });
        for (name, e) in file.iter() {
            let Some(rest) = name.strip_prefix(OPTIMIZER) else { continue };
            let owner = rest
                .rsplit_once('.')
                .and_then(|(param, state)| Some((optimizer.as_mut()?.params.get_mut(param)?, state)));
            let (Some((owner, state)), Dtype::F32) = (owner, e.dtype()) else {
                let why = format!("tensor `{}` belongs to nothing the optimizer knows", shown(name));
                return Err(file.error("load", why));
            };
            owner.tensors.insert(state.to_string(), numbers(file, name)?);
        }
        let params = StateDict::of(file, |n| !n.starts_with(OPTIMIZER))?;
        Checkpoint::of(file, state, params, optimizer)
    }

    #[track_caller]
    fn of(
        file: &SafeTensors,
        state: State,
        params: StateDict,
        optimizer: Option<OptimizerState>,
    ) -> Result<Checkpoint> {
        let wrong = |e: Error| file.error("load", format!("its state: {}", said(&e)));
        Ok(Checkpoint {
            model: state.model,
            config: state.config,
            params,
            frozen: state.frozen,
            optimizer,
            step: state.step,
            random: state.random,
            numerics: state.numerics.parse().map_err(wrong)?,
            numerics_version: state.numerics_version,
            data: state.data,
            progress: state.progress.into(),
            metrics: state.metrics,
            texts: file
                .metadata()
                .iter()
                .filter_map(|(key, text)| Some((key.strip_prefix(TEXT)?.to_string(), text.clone())))
                .collect(),
            version: state.version,
        })
    }
}

#[track_caller]
fn numbers(file: &SafeTensors, name: &str) -> Result<Tensor<f32>> {
    match file.tensor(name)? {
        AnyTensor::Num(t) => Ok(t),
        AnyTensor::Idx(_) => Err(file.error("load", format!("tensor `{}` holds no numbers", shown(name)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prelude::*;
    use serde_json::json;

    /// A net with dropout and a frozen parameter, trained in one of two ways.
    struct Net {
        params: Params,
        first: Linear,
        last: Linear,
        gain: Param,
    }

    impl Net {
        fn new(seed: u64) -> Net {
            let mut params = Params::new(&Device::cpu().unwrap(), seed);
            let first = Linear::new(&mut params, "first", 2, 16).unwrap();
            let last = Linear::new(&mut params, "last", 16, 3).unwrap();
            let gain = params.uniform("gain", &[16], 0.5, 1.5).unwrap();
            gain.set_trainable(false);
            Net { params, first, last, gain }
        }

        fn loss<'s>(&self, v: &[Var<'s>]) -> Result<Var<'s>> {
            let x = self.first.forward(v[0])?.relu()?.dropout(0.25)?;
            let x = (x * v[0].session().param(&self.gain)?)?;
            self.last.forward(x)?.cross_entropy(v[1])
        }
    }

    fn optimizer() -> Optimizer {
        let bias = Group::matching(|p| p.shape().rank() < 2).weight_decay(0.0).lr(0.02);
        Optimizer::adamw(0.1 / 3.0)
            .group(bias)
            .schedule(Schedule::cosine(20, 1e-4).warmup(5, 0.1))
            .clip_norm(1.0)
    }

    const SEED: u64 = 11;

    /// Trains up to step `to` and saves, from the start or from a saved run.
    fn train(net: &Net, compiled: bool, saved: Option<&Checkpoint>, to: u64) -> Checkpoint {
        let data = data::spirals(3, 40, 3).unwrap();
        let from = saved.map_or(0, |s| s.step);
        let mut checkpoint = if compiled {
            let mut step = TrainStep::new(&net.params, optimizer(), |v| net.loss(v)).seeded(SEED);
            if let Some(saved) = saved {
                saved.restore(&net.params, &mut step).unwrap();
            }
            (from..to).for_each(|_| step.run(&[data.x().into(), data.y().into()]).unwrap());
            let mut checkpoint = Checkpoint::new("net", &net.params).unwrap();
            checkpoint.take(&step).unwrap();
            checkpoint
        } else {
            let mut optimizer = optimizer();
            let s = Session::eager_seeded(net.params.device(), SEED);
            if let Some(saved) = saved {
                saved.restore(&net.params, &mut optimizer).unwrap();
                saved.random.restore(&s).unwrap();
            }
            for _ in from..to {
                let loss = net
                    .loss(&[
                        s.input(data.x().num().unwrap()).unwrap(),
                        s.labels(data.y().idx().unwrap()).unwrap(),
                    ])
                    .unwrap();
                optimizer.step(&net.params, loss.backward().unwrap()).unwrap();
                s.reset();
            }
            let mut checkpoint = Checkpoint::new("net", &net.params).unwrap();
            checkpoint.take(&optimizer).unwrap();
            checkpoint.random = RandomState::of(&s);
            checkpoint
        };
        checkpoint.config = json!({"width": 16, "dropout": 0.25, "a": [{"z": 1, "b": 0.1}]});
        checkpoint.data =
            DataState { name: "spirals".into(), seed: 3, batch: 40, shards: 1, hash: "ab".into() };
        checkpoint.metrics = json!([{"step": 1, "loss": 1.0 / 3.0}]);
        checkpoint.texts.insert("tokenizer".into(), "{\"Ġ\": \"\\u0120\\n\"}\n".into());
        checkpoint
    }

    #[test]
    fn a_resumed_run_has_the_bits_of_one_that_never_stopped() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("run.safetensors");
        let whole: Vec<Checkpoint> = [false, true].map(|c| train(&Net::new(7), c, None, 20)).into();
        assert_eq!(whole[0], whole[1]);
        assert_eq!(whole[0].to_bytes().unwrap(), whole[1].to_bytes().unwrap());
        assert!(whole[0].random.calls == 20 && whole[0].step == 20);
        for first in [false, true] {
            let half = train(&Net::new(7), first, None, 10);
            half.save(&path).unwrap();
            for second in [false, true] {
                let loaded = Checkpoint::load(&path).unwrap();
                assert_eq!(loaded, half);
                let net = Net::new(99);
                net.gain.set_trainable(true);
                let end = train(&net, second, Some(&loaded), 20);
                assert_eq!(end.to_bytes().unwrap(), whole[0].to_bytes().unwrap(), "{first} {second}");
                assert_eq!(net.params.fingerprint().unwrap(), whole[0].fingerprint());
            }
        }
    }

    #[test]
    fn a_head_is_read_without_tensors() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("run.safetensors");
        let whole = train(&Net::new(7), true, None, 3);
        whole.save(&path).unwrap();
        let (head, parameters) = Checkpoint::head(&path).unwrap();
        assert_eq!(parameters, whole.params.numel());
        let without = Checkpoint { params: StateDict::new(), optimizer: None, ..whole };
        assert_eq!(head, without);
        // Whatever is missing at the end, the file is not taken for a whole one; a head has no other bytes.
        let bytes = std::fs::read(&path).unwrap();
        for length in (0..bytes.len()).step_by(101) {
            std::fs::write(&path, &bytes[..length]).unwrap();
            assert!(Checkpoint::head(&path).is_err(), "{length}");
        }
        std::fs::write(&path, [&bytes[..], b"x"].concat()).unwrap();
        assert!(Checkpoint::head(&path).is_err());
        std::fs::write(&path, [u64::MAX.to_le_bytes().as_slice(), b"{}"].concat()).unwrap();
        assert!(Checkpoint::head(&path).is_err());
        assert!(Checkpoint::head(here.path()).is_err());
    }

    #[test]
    fn numbers_come_back_bit_for_bit() {
        let mut checkpoint = train(&Net::new(7), false, None, 1);
        let optimizer = checkpoint.optimizer.as_mut().unwrap();
        optimizer.lr = f64::from_bits(0x3fb9_9999_9999_999b);
        optimizer.group_lrs = vec![Some(5e-324), None, Some(f64::MAX)];
        (checkpoint.step, checkpoint.random.seed, checkpoint.random.calls) =
            (u64::MAX, u64::MAX - 1, 1 << 63);
        let mut state = 1u64;
        let mut draw = || {
            state = crate::numerics::rng::mix(state);
            f64::from_bits(state)
        };
        let floats: Vec<f64> = (0..2000).map(|_| draw()).filter(|x| x.is_finite()).collect();
        checkpoint.metrics = json!({"z": floats, "a": null, "deep": {"y": 1, "x": "ü\u{0}"}});
        let best = Some(Best { step: u64::MAX, merit: f64::NEG_INFINITY });
        checkpoint.progress = Progress { best, since_best: u64::MAX, loss: Some(f32::from_bits(1)) };
        let file = SafeTensors::parse("x", checkpoint.to_bytes().unwrap()).unwrap();
        assert_eq!(Checkpoint::from_file(&file).unwrap(), checkpoint);
        // The order of keys does not matter.
        let mut other = checkpoint.clone();
        other.metrics = json!({"deep": {"x": "ü\u{0}", "y": 1}, "a": null, "z": floats});
        assert_eq!(other.to_bytes().unwrap(), checkpoint.to_bytes().unwrap());
    }

    #[test]
    fn what_cannot_be_restored_changes_nothing() {
        let saved = train(&Net::new(7), true, None, 3);
        let net = Net::new(8);
        let before = net.params.fingerprint().unwrap();
        let wrong = |checkpoint: &Checkpoint, mut optimizer: Optimizer, want: &str| {
            let state = optimizer.state::<f32>().unwrap();
            let error = checkpoint.restore(&net.params, &mut optimizer).unwrap_err().to_string();
            assert!(error.contains(want) && error.lines().count() == 1, "{error}");
            assert_eq!(net.params.fingerprint().unwrap(), before);
            assert_eq!(optimizer.state::<f32>().unwrap(), state);
        };
        wrong(&saved, Optimizer::adamw(0.1), "it has 1 groups, the optimizer has 0");
        wrong(
            &saved,
            Optimizer::momentum(0.1, 0.9).group(Group::prefix("last")),
            "its rule has [\"momentum_buffer\"]",
        );
        let change = |f: &dyn Fn(&mut Checkpoint)| {
            let mut changed = saved.clone();
            f(&mut changed);
            changed
        };
        wrong(&change(&|c| c.numerics_version -= 1), optimizer(), "other bits");
        wrong(&change(&|c| c.optimizer = None), optimizer(), "has no optimizer state");
        wrong(&change(&|c| c.params.insert("x", Tensor::scalar(1.0f32))), optimizer(), "1 extra (x)");
        let misshaped = |c: &mut Checkpoint| {
            let state = c.optimizer.as_mut().unwrap().params.get_mut("last.bias").unwrap();
            state.tensors.insert("exp_avg".into(), Tensor::scalar(1.0));
        };
        wrong(&change(&misshaped), optimizer(), "the state has another shape than the parameter");
        let mut step = TrainStep::new(&net.params, optimizer(), |v| net.loss(v)).seeded(1);
        let error = saved.restore(&net.params, &mut step).unwrap_err().to_string();
        assert!(
            error.contains("draws from seed 1, the checkpoint from 11; use TrainStep::seeded(11)"),
            "{error}"
        );
        assert_eq!((net.params.fingerprint().unwrap(), step.random_calls()), (before, 0));
        assert!(saved.random.restore(&Session::eager(net.params.device())).is_err());
        let reserved = change(&|c| c.params.insert("optimizer.x", Tensor::scalar(1.0f32)));
        assert!(reserved.to_bytes().unwrap_err().to_string().contains("use another"));
    }

    #[test]
    fn files_that_are_no_checkpoints_say_what_they_are() {
        let saved = train(&Net::new(7), true, None, 1);
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("a");
        let wrong = |want: &str| {
            let error = Checkpoint::load(&path).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("load: {}: ", path.display())) && error.contains(want),
                "{error}"
            );
        };
        saved.params.save(&path).unwrap();
        wrong("holds 5 tensors but no checkpoint; load its weights with Params::load");
        let file = SafeTensors::parse("x", saved.to_bytes().unwrap()).unwrap();
        let texts = file.metadata().clone();
        let with = |change: &dyn Fn(&mut BTreeMap<String, String>)| {
            let (mut texts, mut file) = (texts.clone(), Writer::new());
            change(&mut texts);
            for (key, text) in &texts {
                file.metadata(key, text).unwrap();
            }
            file.save(&path).unwrap();
        };
        with(&|t| drop(t.insert(FORMAT.into(), "2".into())));
        wrong("is a checkpoint of format 2, this program reads 1");
        with(&|t| drop(t.remove(HASH)));
        wrong("a part of its metadata is missing");
        with(&|_| ());
        wrong("its content is not what was saved");
        // A checkpoint can also be read as a file of its parameters.
        saved.save(&path).unwrap();
        let net = Net::new(9);
        net.params.load(&path).unwrap();
        assert_eq!(net.params.fingerprint().unwrap(), saved.fingerprint());
        let mut bytes = saved.to_bytes().unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert!(Net::new(9).params.load(&path).unwrap_err().to_string().contains("is a damaged checkpoint"));
    }

    #[test]
    fn no_damaged_byte_goes_unnoticed() {
        let mut params = Params::new(&Device::cpu().unwrap(), 1);
        let w = params.uniform("w", &[3], -1.0, 1.0).unwrap();
        let mut optimizer = Optimizer::adamw(0.1);
        let s = Session::eager(params.device());
        optimizer.step(&params, s.param(&w).unwrap().sum().unwrap().backward().unwrap()).unwrap();
        let mut checkpoint = Checkpoint::new("w", &params).unwrap();
        checkpoint.take(&optimizer).unwrap();
        let bytes = checkpoint.to_bytes().unwrap();
        let load = |bytes: Vec<u8>| SafeTensors::parse("x", bytes).and_then(|f| Checkpoint::from_file(&f));
        assert_eq!(load(bytes.clone()).unwrap(), checkpoint);
        for at in 0..bytes.len() {
            assert!(load(bytes[..at].to_vec()).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut bad = bytes.clone();
                bad[at] ^= 1 << bit;
                // White space at the end of the header may differ.
                assert!(load(bad).map_or(true, |c| c == checkpoint), "bit {bit} of byte {at}");
            }
        }
    }
}
