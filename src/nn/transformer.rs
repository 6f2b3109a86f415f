//! Transformer layers.

use super::{Activation, Dropout, LayerNorm, Linear, Module, MultiheadAttention};
use crate::error::Result;
use crate::params::Params;
use crate::session::Var;
use serde::{Deserialize, Serialize};

/// Sizes of a [`TransformerEncoderLayer`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransformerConfig {
    /// Channels.
    pub width: usize,
    /// Number of attention heads; divides the width.
    pub heads: usize,
    /// Channels between the two linear layers.
    pub hidden: usize,
    /// Dropout probability.
    pub dropout: f64,
    /// The activation between the two linear layers.
    pub activation: Activation,
    /// Whether norms come before attention and linear layers instead of after the residual sums.
    pub norm_first: bool,
    /// Whether a position attends only to itself and earlier ones.
    pub causal: bool,
}

impl Default for TransformerConfig {
    /// PyTorch's defaults at a small width.
    fn default() -> TransformerConfig {
        TransformerConfig {
            width: 128,
            heads: 4,
            hidden: 512,
            dropout: 0.1,
            activation: Activation::Relu,
            norm_first: false,
            causal: false,
        }
    }
}

/// A transformer encoder layer, PyTorch's `TransformerEncoderLayer(…, batch_first=True)` without dropout of attention
/// weights.
#[derive(Clone, Debug, Module)]
pub struct TransformerEncoderLayer {
    attention: MultiheadAttention,
    linear1: Linear,
    linear2: Linear,
    norm1: LayerNorm,
    norm2: LayerNorm,
    dropout: Dropout,
    activation: Activation,
    norm_first: bool,
}

impl TransformerEncoderLayer {
    /// Layers `name.self_attn`, `name.linear1`, `name.linear2`, `name.norm1` and `name.norm2`.
    #[track_caller]
    pub fn new(
        params: &mut Params,
        name: &str,
        config: TransformerConfig,
    ) -> Result<TransformerEncoderLayer> {
        let TransformerConfig { width, heads, hidden, dropout, activation, norm_first, causal } = config;
        let part = |part: &str| format!("{name}.{part}");
        let dropout = Dropout::new(dropout)?;
        Ok(TransformerEncoderLayer {
            attention: MultiheadAttention::new(params, &part("self_attn"), width, heads, causal)?,
            linear1: Linear::new(params, &part("linear1"), width, hidden)?,
            linear2: Linear::new(params, &part("linear2"), hidden, width)?,
            norm1: LayerNorm::new(params, &part("norm1"), width)?,
            norm2: LayerNorm::new(params, &part("norm2"), width)?,
            dropout,
            activation,
            norm_first,
        })
    }

    #[track_caller]
    fn feed<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let wide = self.activation.forward(self.linear1.forward(x)?)?;
        self.dropout.forward(self.linear2.forward(self.dropout.forward(wide)?)?)
    }

    #[track_caller]
    fn attend<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        self.dropout.forward(self.attention.forward(x)?)
    }

    /// Applies the layer to sequences `(…, length, width)`.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        x.session().scope(|| {
            if self.norm_first {
                let x = x.add(self.attend(self.norm1.forward(x)?)?)?;
                return x.add(self.feed(self.norm2.forward(x)?)?);
            }
            let x = self.norm1.forward(x.add(self.attend(x)?)?)?;
            self.norm2.forward(x.add(self.feed(x)?)?)
        })
    }
}
