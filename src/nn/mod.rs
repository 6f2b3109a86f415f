//! Layers and models, written once for eager and compiled runs. Parameters have PyTorch's names, layouts and initial
//! distributions, so that weights can be exchanged in both directions.
//!
//! A model is a value: its clones share the parameters. It is a [`Module`], by `#[derive(Module)]`: `eval` returns the same
//! model in evaluation mode, in which layers such as [`Dropout`] and [`BatchNorm`] behave differently, and `parameters`
//! lists what it is made of. One with one input is a [`Forward`].

mod attention;
mod autoencoder;
mod bilinear;
mod cnn;
mod combine;
mod conv;
mod dropout;
mod embedding;
mod fno;
mod generate;
mod gpt;
mod gpt2;
mod images;
mod linear;
mod mamba;
mod mlp;
mod module;
mod norm;
mod positions;
mod program;
mod recurrent;
mod resnet;
mod spectral;
mod transformer;
mod vit;

pub use attention::{AttentionMasks, CausalSelfAttention, MultiheadAttention};
pub use autoencoder::{Autoencoder, AutoencoderConfig};
pub use bilinear::Bilinear;
pub use cnn::{Cnn, CnnConfig};
pub use combine::{Activation, Lambda, Prelu, Residual, Sequential};
pub use conv::{
    Conv, Conv1d, Conv2d, Conv3d, ConvTranspose, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d,
};
pub use dropout::{AlphaDropout, ChannelDropout, Dropout, FeatureAlphaDropout};
pub use embedding::Embedding;
pub use fno::{Fno1d, Fno1dConfig, Fno2d, Fno2dConfig};
pub use generate::Sampling;
pub use gpt::{Block, Gpt, GptConfig};
pub use gpt2::from_gpt2;
pub use images::{
    AdaptiveAvgPool, AdaptiveMaxPool, AvgPool, ChannelShuffle, Fold, LocalResponseNorm, LpPool, MaxPool,
    PadLayer, PixelShuffle, PixelUnshuffle, Unfold, Upsample,
};
pub use linear::Linear;
pub use mamba::{Mamba, MambaBlock, MambaConfig};
pub use mlp::{Mlp, MlpConfig};
#[doc(hidden)]
pub use module::BoxedInMode;
pub use module::{Forward, Mode, Module, Visitor};
pub use norm::{BatchNorm, BatchNormConfig, GroupNorm, InstanceNorm, LayerNorm, NormConfig, RmsNorm};
pub use positions::{LearntPositions, SinusoidalPositions};
pub use program::Program;
pub use recurrent::{Gru, GruCell, Lstm, LstmCell, RecurrentConfig, Rnn, RnnCell};
pub use resnet::{ResNet, ResNetConfig};
pub use spectral::{SpectralConv1d, SpectralConv2d};
pub use transformer::{
    DecoderMasks, Transformer, TransformerConfig, TransformerDecoder, TransformerDecoderLayer,
    TransformerEncoder, TransformerEncoderLayer,
};
pub use vit::{Vit, VitConfig, VitPool};

use crate::error::{Error, Result};

/// The most layers of a model. Each has its own parameters, so that a wrong number would fill the memory little by
/// little.
pub const MAX_LAYERS: usize = 1 << 12;

/// Errors unless there are 1 to [`MAX_LAYERS`] layers.
#[track_caller]
fn layers(model: &str, count: usize) -> Result<()> {
    match (1..=MAX_LAYERS).contains(&count) {
        true => Ok(()),
        false => Err(Error::argument(model, "layers", format!("got {count}, use 1 to {MAX_LAYERS}"))),
    }
}

/// Errors if one of the sizes of a layer is 0.
#[track_caller]
fn positive(layer: &str, what: &'static str, sizes: &[usize]) -> Result<()> {
    match sizes.contains(&0) {
        true => Err(Error::argument(layer, what, format!("{sizes:?}: use at least 1 for each"))),
        false => Ok(()),
    }
}
