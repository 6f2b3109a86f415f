//! Layers and models, written once for eager and compiled runs. Parameters have PyTorch's names, layouts and initial
//! distributions, so that weights can be carried over either way.
//!
//! A model is a value: its clones share the parameters. Layers that act only in training, such as [`Dropout`], are
//! switched off by `eval`, which gives the same model without them.

mod attention;
mod cnn;
mod conv;
mod dropout;
mod embedding;
mod fno;
mod gpt;
mod gpt2;
mod linear;
mod mlp;
mod norm;
mod spectral;

pub use attention::CausalSelfAttention;
pub use cnn::{Cnn, CnnConfig};
pub use conv::{Conv, Conv1d, Conv2d, Conv3d};
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use fno::{Fno1d, Fno1dConfig};
pub use gpt::{Block, Gpt, GptConfig};
pub use gpt2::from_gpt2;
pub use linear::Linear;
pub use mlp::Mlp;
pub use norm::LayerNorm;
pub use spectral::SpectralConv1d;

use crate::error::{Error, Result};

/// Errors if one of the sizes of a layer is 0.
fn positive(layer: &str, what: &'static str, sizes: &[usize]) -> Result<()> {
    match sizes.contains(&0) {
        true => Err(Error::argument(layer, what, format!("{sizes:?}: use at least 1 for each"))),
        false => Ok(()),
    }
}
