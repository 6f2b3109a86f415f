//! The models of the program: their names, configurations and tasks.

use crate::{Answer, fail};
use clap::ValueEnum;
use dittograd::data::Dataset;
use dittograd::device::DType;
use dittograd::io::Checkpoint;
use dittograd::nn::{
    Autoencoder, AutoencoderConfig, Cnn, CnnConfig, Fno1d, Fno1dConfig, Fno2d, Fno2dConfig, Gpt, GptConfig,
    Mamba, MambaConfig, Mlp, MlpConfig, Program, ResNet, ResNetConfig, Sampling, Vit, VitConfig,
};
use dittograd::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The most parameters of a model.
pub(crate) const MAX_PARAMETERS: usize = 1 << 32;
/// The most tokens, classes, channels, layers and the like of a model.
const MAX_SIZE: f64 = (1u64 << 24) as f64;

/// A model by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub(crate) enum Model {
    /// Linear layers with relu between them
    Mlp,
    /// Three convolutions with pooling, then a linear layer
    Cnn,
    /// A residual network
    ResNet,
    /// A vision transformer
    Vit,
    /// A transformer that writes text, in GPT-2's layout
    Gpt,
    /// A state-space model that writes text
    Mamba,
    /// A Fourier neural operator on a line
    Fno1d,
    /// A Fourier neural operator on a square
    Fno2d,
    /// Convolutions to a few numbers and back
    Autoencoder,
    /// Programs in a file, which take numbers
    #[value(skip)]
    Program,
    /// Programs in a file, which take tokens
    #[value(skip)]
    TokenProgram,
}

/// The task of a model, which decides the loss and the measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Task {
    /// The class of a sample.
    Classes,
    /// Numbers of a sample.
    Numbers,
    /// A field on a grid.
    Field,
    /// The next token.
    Text,
    /// The sample itself.
    Itself,
}

/// A field of a configuration: its name, its default as JSON if the data does not decide, and its meaning.
pub(crate) type Field = (&'static str, Option<&'static str>, &'static str);

/// A model that writes text.
enum Writer {
    Gpt(Gpt),
    Mamba(Mamba),
}

/// A model with its parameters.
pub(crate) struct Net {
    module: Arc<dyn Forward>,
    writer: Option<Writer>,
    program: Option<Program>,
}

/// Name of a choice as typed.
pub(crate) fn name(choice: &impl ValueEnum) -> String {
    choice.to_possible_value().map_or_else(String::new, |v| v.get_name().to_string())
}

impl Model {
    /// Its name as typed.
    pub(crate) fn name(self) -> String {
        if self.is_program() { "program".into() } else { name(&self) }
    }

    /// Whether it is given as programs.
    pub(crate) fn is_program(self) -> bool {
        matches!(self, Model::Program | Model::TokenProgram)
    }

    /// The model that a program is: by what it takes.
    pub(crate) fn of_program(program: &Program) -> Model {
        if program.input().dtype == DType::U32 { Model::TokenProgram } else { Model::Program }
    }

    /// The default data set; a program has none.
    pub(crate) fn data(self) -> &'static str {
        match self {
            Model::Program | Model::TokenProgram => "",
            Model::Mlp => "spirals",
            Model::Cnn | Model::ResNet | Model::Vit | Model::Autoencoder => "digits",
            Model::Gpt | Model::Mamba => "additions",
            Model::Fno1d => "burgers",
            Model::Fno2d => "darcy",
        }
    }

    /// Whether it takes tokens.
    pub(crate) fn takes_tokens(self) -> bool {
        matches!(self, Model::Gpt | Model::Mamba | Model::TokenProgram)
    }

    /// The task on such data.
    pub(crate) fn task(self, data: &Dataset) -> Task {
        match self {
            Model::Gpt | Model::Mamba => Task::Text,
            Model::Fno1d | Model::Fno2d => Task::Field,
            Model::Autoencoder => Task::Itself,
            Model::TokenProgram if data.y().shape() == data.x().shape() => Task::Text,
            _ if data.classes().is_some() => Task::Classes,
            _ => Task::Numbers,
        }
    }

    /// The fields of its `--config`, in order.
    pub(crate) fn fields(self) -> &'static [Field] {
        const CHANNELS: Field = ("channels", None, "channels of an image");
        const IMAGE: Field = ("image", None, "height and width of an image");
        const CLASSES: Field = ("classes", None, "classes, or numbers to predict");
        const VOCAB: Field = ("vocab", None, "different tokens");
        const INPUTS: Field = ("inputs", None, "numbers at a point of the grid that go in");
        const OUTPUTS: Field = ("outputs", None, "numbers at a point of the grid that come out");
        const HEADS: Field = ("heads", Some("4"), "attention heads; divides the width");
        const DROPOUT: Field =
            ("dropout", Some("0.0"), "probability that dropout sets a value to 0, from 0 to below 1");
        match self {
            Model::Mlp => &[("sizes", None, "inputs, sizes of the hidden layers (--hidden), outputs")],
            Model::Cnn => &[
                CHANNELS,
                IMAGE,
                ("widths", Some("[16,32,64]"), "channels after each of the three convolutions"),
                CLASSES,
            ],
            Model::ResNet => &[
                CHANNELS,
                ("depth", Some("8"), "layers: 8, 14, 20, …, a multiple of 6 plus 2"),
                ("width", Some("16"), "channels of the first third; each third doubles them"),
                CLASSES,
            ],
            Model::Vit => &[
                CHANNELS,
                IMAGE,
                ("patch", Some("[4,4]"), "height and width of a patch; divide those of the image"),
                ("width", Some("64"), "channels"),
                HEADS,
                ("layers", Some("4"), "transformer blocks"),
                ("hidden", Some("128"), "channels of the hidden layer of a block"),
                CLASSES,
                (
                    "pool",
                    Some("\"mean\""),
                    "what is classified: the \"mean\" of all patches, or a \"class\" token",
                ),
                DROPOUT,
            ],
            Model::Gpt => &[
                VOCAB,
                ("context", None, "most tokens of a sequence"),
                ("width", Some("64"), "channels"),
                HEADS,
                ("layers", Some("2"), "transformer blocks"),
                DROPOUT,
            ],
            Model::Mamba => &[
                VOCAB,
                ("width", Some("64"), "channels"),
                ("layers", Some("2"), "blocks"),
                ("state", Some("16"), "states of an inner channel"),
                ("conv", Some("4"), "taps of the convolutions along time"),
                ("expand", Some("2"), "inner channels per channel"),
            ],
            Model::Fno1d => &[
                INPUTS,
                OUTPUTS,
                ("width", Some("32"), "channels of the Fourier layers"),
                ("modes", Some("16"), "Fourier modes that are kept"),
                ("layers", Some("4"), "Fourier layers"),
                ("hidden", Some("64"), "channels of the hidden layer of the projection"),
            ],
            Model::Fno2d => &[
                INPUTS,
                OUTPUTS,
                ("width", Some("24"), "channels of the Fourier layers"),
                ("modes", Some("[8,8]"), "Fourier modes that are kept along each axis"),
                ("layers", Some("4"), "Fourier layers"),
                ("hidden", Some("64"), "channels of the hidden layer of the projection"),
            ],
            Model::Autoencoder => &[
                CHANNELS,
                IMAGE,
                ("widths", Some("[16,32]"), "channels after each convolution, which halves the image"),
                ("latent", Some("16"), "numbers that an image becomes"),
            ],
            Model::Program | Model::TokenProgram => &[],
        }
    }

    fn wants<T>(self, what: &str, data: &Dataset) -> Answer<T> {
        fail(format!(
            "{} needs {what}; {} has inputs of shape {}",
            self.name(),
            data.name(),
            data.x().shape()
        ))
    }

    /// The data in the shape for training, or an error about its shapes. A single number to predict may lack its own
    /// axis.
    pub(crate) fn fit(self, data: Dataset) -> Answer<Dataset> {
        let (x, y) = (data.x().shape(), data.y().shape());
        let tokens = matches!(data.x(), AnyTensor::Idx(_));
        let (what, rank) = match self {
            _ if tokens != self.takes_tokens() => {
                return self.wants(if self.takes_tokens() { "tokens" } else { "numbers" }, &data);
            }
            Model::Program | Model::TokenProgram => ("rows", x.rank()),
            Model::Gpt | Model::Mamba => ("tokens (N, T)", 2),
            Model::Mlp => ("features (N, F)", 2),
            Model::Cnn | Model::ResNet | Model::Vit | Model::Autoencoder => ("images (N, C, H, W)", 4),
            Model::Fno1d => ("fields (N, X, C)", 3),
            Model::Fno2d => ("fields (N, Y, X, C)", 4),
        };
        if rank != x.rank() {
            return self.wants(what, &data);
        }
        let targets = |what: &str| {
            fail(format!("{} needs {what}; {} has targets of shape {y}", self.name(), data.name()))
        };
        let grid = &x.dims()[..x.rank() - 1];
        match self.task(&data) {
            Task::Classes if y.rank() != 1 => targets("one class a row, y of shape (N), such as y[:, 0]"),
            Task::Numbers if y.rank() == 1 => {
                let column = Tensor::new(&[data.rows(), 1], data.y().num()?.data().to_vec())?;
                Ok(data.with(data.x().clone(), column)?)
            }
            Task::Numbers if y.rank() != 2 && !self.is_program() => {
                targets("numbers of shape (N, K), such as y.reshape(len(y), -1)")
            }
            Task::Field if data.classes().is_some() => {
                targets("numbers as targets, such as y.astype(np.float32)")
            }
            Task::Field if y.rank() == grid.len() && y.dims() == grid => {
                targets("targets with an axis of channels, such as y[..., None]")
            }
            Task::Field if y.rank() != x.rank() || y.dims()[..grid.len()] != *grid => {
                targets(&format!("targets on the grid of its inputs, which have shape {x}"))
            }
            Task::Text if y != x => targets(&format!("a target for each token, of which there are {x}")),
            Task::Text => {
                let Some(count) = data.classes() else {
                    return targets("tokens as targets, such as y.astype(np.int64)");
                };
                match data.x().idx()?.data().iter().find(|t| **t as usize >= count) {
                    Some(token) => fail(format!(
                        "{}: token {token} of the inputs is none of {count}; an array `classes` can say that there are more",
                        data.name()
                    )),
                    None => Ok(data),
                }
            }
            Task::Classes | Task::Numbers | Task::Field | Task::Itself => Ok(data),
        }
    }

    /// The configuration for such data: sizes from the data, small defaults for the rest, overridden by `given`.
    pub(crate) fn config(self, data: &Dataset, hidden: &[usize], given: &Value) -> Answer<Value> {
        let (x, y) = (data.x().shape(), data.y().shape());
        let outputs = data.classes().unwrap_or(y.last());
        let mut config = Map::new();
        for (name, default, _) in self.fields() {
            let value = match (*name, default) {
                (_, Some(text)) => serde_json::from_str(text).unwrap_or(Value::Null),
                ("sizes", _) => json!([&[data.features()], hidden, &[outputs]].concat()),
                ("channels", _) => json!(x.dims().get(1)),
                ("image", _) => json!(x.dims().get(2..)),
                ("context" | "inputs", _) => json!(x.last()),
                ("outputs", _) => json!(y.last()),
                _ => json!(outputs),
            };
            config.insert(name.to_string(), value);
        }
        let mut config = Value::Object(config);
        let Some(given) = given.as_object() else {
            return fail(format!("--config {given}: use a JSON object such as {config}"));
        };
        for (key, value) in given {
            match config.get_mut(key) {
                Some(old) => *old = value.clone(),
                None => return fail(format!("--config: {} has no `{key}`; it has {config}", self.name())),
            }
        }
        Ok(config)
    }
}

/// A configuration as the type of a model. Absurd sizes are refused before memory is allocated.
fn typed<T: for<'a> Deserialize<'a>>(model: Model, config: &Value) -> Answer<T> {
    fn largest(value: &Value) -> f64 {
        match value {
            Value::Number(n) => n.as_f64().unwrap_or(0.0),
            Value::Array(list) => list.iter().map(largest).fold(0.0, f64::max),
            Value::Object(map) => map.values().map(largest).fold(0.0, f64::max),
            _ => 0.0,
        }
    }
    if largest(config) > MAX_SIZE {
        return fail(format!("{}: {config} has a size above {MAX_SIZE}", model.name()));
    }
    match T::deserialize(config) {
        Ok(config) => Ok(config),
        Err(e) => fail(format!("{}: {config}: {e}", model.name())),
    }
}

impl Net {
    /// Builds the model, with parameters drawn from the seed of `params`.
    pub(crate) fn new(model: Model, params: &mut Params, config: &Value) -> Answer<Net> {
        let plain = |module: Arc<dyn Forward>| Net { module, writer: None, program: None };
        Ok(match model {
            Model::Mlp => {
                let config: MlpConfig = typed(model, config)?;
                plain(Arc::new(Mlp::new(params, config)?))
            }
            Model::Cnn => plain(Arc::new(Cnn::new(params, typed::<CnnConfig>(model, config)?)?)),
            Model::ResNet => plain(Arc::new(ResNet::new(params, typed::<ResNetConfig>(model, config)?)?)),
            Model::Vit => plain(Arc::new(Vit::new(params, typed::<VitConfig>(model, config)?)?)),
            Model::Fno1d => plain(Arc::new(Fno1d::new(params, typed::<Fno1dConfig>(model, config)?)?)),
            Model::Fno2d => plain(Arc::new(Fno2d::new(params, typed::<Fno2dConfig>(model, config)?)?)),
            Model::Autoencoder => {
                plain(Arc::new(Autoencoder::new(params, typed::<AutoencoderConfig>(model, config)?)?))
            }
            Model::Gpt => {
                let gpt = Gpt::new(params, typed::<GptConfig>(model, config)?)?;
                Net { module: Arc::new(gpt.clone()), writer: Some(Writer::Gpt(gpt)), program: None }
            }
            Model::Mamba => {
                let mamba = Mamba::new(params, typed::<MambaConfig>(model, config)?)?;
                Net { module: Arc::new(mamba.clone()), writer: Some(Writer::Mamba(mamba)), program: None }
            }
            Model::Program | Model::TokenProgram => return fail("its programs are missing"),
        })
    }

    /// A model of the programs that a checkpoint holds, with its parameters.
    pub(crate) fn of_programs(file: &Checkpoint, params: &mut Params) -> Answer<Net> {
        let program = Program::of(file, params)?;
        Ok(Net { module: Arc::new(program.clone()), writer: None, program: Some(program) })
    }

    /// What a checkpoint keeps of it, besides its parameters and settings.
    pub(crate) fn texts(&self) -> Answer<BTreeMap<String, String>> {
        Ok(self.program.as_ref().map(Program::texts).transpose()?.unwrap_or_default())
    }

    /// The module in training mode.
    pub(crate) fn module(&self) -> &Arc<dyn Forward> {
        &self.module
    }

    /// Continues a text.
    pub(crate) fn write(&self, prompt: &[u32], steps: usize, sampling: Sampling) -> Answer<Vec<u32>> {
        match &self.writer {
            Some(Writer::Gpt(gpt)) => Ok(gpt.eval().generate(prompt, steps, sampling)?),
            Some(Writer::Mamba(mamba)) => Ok(mamba.generate(prompt, steps, sampling)?),
            None => fail("only gpt and mamba write text"),
        }
    }
}
