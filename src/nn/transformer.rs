//! Transformer layers.

use super::{Activation, AttentionMasks, Dropout, LayerNorm, Linear, Module, MultiheadAttention};
use crate::error::Result;
use crate::params::Params;
use crate::session::Var;
use serde::{Deserialize, Serialize};

/// Sizes of a [`TransformerEncoderLayer`] or a [`TransformerDecoderLayer`].
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

/// What transformer layers have beside attention and norms.
macro_rules! feed_forward {
    ($($layer:ident)*) => {$(
        impl $layer {
            /// The two linear layers, with an activation and dropout.
            #[track_caller]
            fn feed<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
                let wide = self.activation.forward(self.linear1.forward(x)?)?;
                self.dropout.forward(self.linear2.forward(self.dropout.forward(wide)?)?)
            }
        }
    )*};
}

feed_forward! { TransformerEncoderLayer TransformerDecoderLayer }

/// A residual sum and its norm: the norm of `x + f(x)`, or `x + f(norm(x))` if it comes first.
#[track_caller]
fn residual<'s>(
    x: Var<'s>,
    norm: &LayerNorm,
    first: bool,
    f: impl FnOnce(Var<'s>) -> Result<Var<'s>>,
) -> Result<Var<'s>> {
    match first {
        true => x.add(f(norm.forward(x)?)?),
        false => norm.forward(x.add(f(x)?)?),
    }
}

/// A transformer encoder layer, PyTorch's `TransformerEncoderLayer(…, batch_first=True)` without dropout of attention
/// weights.
#[derive(Clone, Debug, Module)]
pub struct TransformerEncoderLayer {
    self_attn: MultiheadAttention,
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
            self_attn: MultiheadAttention::new(params, &part("self_attn"), width, heads, causal)?,
            linear1: Linear::new(params, &part("linear1"), width, hidden)?,
            linear2: Linear::new(params, &part("linear2"), hidden, width)?,
            norm1: LayerNorm::new(params, &part("norm1"), width)?,
            norm2: LayerNorm::new(params, &part("norm2"), width)?,
            dropout,
            activation,
            norm_first,
        })
    }

    /// Applies the layer to sequences `(…, length, width)`.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        self.compute(x, |x| self.self_attn.forward(x))
    }

    /// Like [`TransformerEncoderLayer::forward`], where masks say what a position may attend to.
    #[track_caller]
    pub fn forward_masked<'s>(&self, x: Var<'s>, masks: AttentionMasks<'s>) -> Result<Var<'s>> {
        self.compute(x, |x| self.self_attn.forward_masked(x, x, None, masks))
    }

    #[track_caller]
    fn compute<'s>(&self, x: Var<'s>, attend: impl Fn(Var<'s>) -> Result<Var<'s>>) -> Result<Var<'s>> {
        x.session().scope(|| {
            let x = residual(x, &self.norm1, self.norm_first, |x| self.dropout.forward(attend(x)?))?;
            residual(x, &self.norm2, self.norm_first, |x| self.feed(x))
        })
    }
}

/// What the sequences of a decoder may attend to.
#[derive(Clone, Copy, Debug, Default)]
pub struct DecoderMasks<'s> {
    /// In themselves. A decoder that predicts what comes next sets `causal`.
    pub itself: AttentionMasks<'s>,
    /// In the encoder's outputs.
    pub memory: AttentionMasks<'s>,
}

/// A transformer decoder layer, PyTorch's `TransformerDecoderLayer(…, batch_first=True)` without dropout of attention
/// weights. It attends to its own sequences, then to those of an encoder.
#[derive(Clone, Debug, Module)]
pub struct TransformerDecoderLayer {
    self_attn: MultiheadAttention,
    multihead_attn: MultiheadAttention,
    linear1: Linear,
    linear2: Linear,
    norm1: LayerNorm,
    norm2: LayerNorm,
    norm3: LayerNorm,
    dropout: Dropout,
    activation: Activation,
    norm_first: bool,
}

impl TransformerDecoderLayer {
    /// Layers `name.self_attn`, `name.multihead_attn`, `name.linear1`, `name.linear2`, `name.norm1`, `name.norm2` and
    /// `name.norm3`. `causal` of the configuration is for the attention to its own sequences.
    #[track_caller]
    pub fn new(
        params: &mut Params,
        name: &str,
        config: TransformerConfig,
    ) -> Result<TransformerDecoderLayer> {
        let TransformerConfig { width, heads, hidden, dropout, activation, norm_first, causal } = config;
        let part = |part: &str| format!("{name}.{part}");
        let dropout = Dropout::new(dropout)?;
        Ok(TransformerDecoderLayer {
            self_attn: MultiheadAttention::new(params, &part("self_attn"), width, heads, causal)?,
            multihead_attn: MultiheadAttention::new(params, &part("multihead_attn"), width, heads, false)?,
            linear1: Linear::new(params, &part("linear1"), width, hidden)?,
            linear2: Linear::new(params, &part("linear2"), hidden, width)?,
            norm1: LayerNorm::new(params, &part("norm1"), width)?,
            norm2: LayerNorm::new(params, &part("norm2"), width)?,
            norm3: LayerNorm::new(params, &part("norm3"), width)?,
            dropout,
            activation,
            norm_first,
        })
    }

    /// Applies the layer to sequences `(…, n, width)`, which attend to the encoder's outputs `(…, m, width)`.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>, memory: Var<'s>, masks: DecoderMasks<'s>) -> Result<Var<'s>> {
        x.session().scope(|| {
            let (first, drop) = (self.norm_first, &self.dropout);
            let x = residual(x, &self.norm1, first, |x| {
                drop.forward(self.self_attn.forward_masked(x, x, None, masks.itself)?)
            })?;
            let x = residual(x, &self.norm2, first, |x| {
                drop.forward(self.multihead_attn.forward_masked(x, memory, None, masks.memory)?)
            })?;
            residual(x, &self.norm3, first, |x| self.feed(x))
        })
    }
}

/// Encoder layers one after another, and a norm if wanted: PyTorch's `TransformerEncoder`.
#[derive(Clone, Debug, Module)]
pub struct TransformerEncoder {
    layers: Vec<TransformerEncoderLayer>,
    norm: Option<LayerNorm>,
}

/// Decoder layers one after another, and a norm if wanted: PyTorch's `TransformerDecoder`.
#[derive(Clone, Debug, Module)]
pub struct TransformerDecoder {
    layers: Vec<TransformerDecoderLayer>,
    norm: Option<LayerNorm>,
}

macro_rules! stacks {
    ($($stack:ident of $layer:ident;)*) => {$(
        impl $stack {
            /// Layers `name.layers.0`, `name.layers.1`, …, and with `norm` a last one `name.norm`.
            #[track_caller]
            pub fn new(
                params: &mut Params,
                name: &str,
                config: TransformerConfig,
                layers: usize,
                norm: bool,
            ) -> Result<$stack> {
                super::layers("transformer", layers)?;
                let layers = (0..layers).map(|i| $layer::new(params, &format!("{name}.layers.{i}"), config));
                Ok($stack {
                    layers: layers.collect::<Result<_>>()?,
                    norm: norm.then(|| LayerNorm::new(params, &format!("{name}.norm"), config.width)).transpose()?,
                })
            }
        }
    )*};
}

stacks! {
    TransformerEncoder of TransformerEncoderLayer;
    TransformerDecoder of TransformerDecoderLayer;
}

#[track_caller]
fn normed<'s>(norm: &Option<LayerNorm>, x: Var<'s>) -> Result<Var<'s>> {
    norm.as_ref().map_or(Ok(x), |norm| norm.forward(x))
}

impl TransformerEncoder {
    /// Applies the layers to sequences `(…, length, width)`.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let x = self.layers.iter().try_fold(x, |x, layer| layer.forward(x))?;
        normed(&self.norm, x)
    }

    /// Like [`TransformerEncoder::forward`], where masks say what a position may attend to.
    #[track_caller]
    pub fn forward_masked<'s>(&self, x: Var<'s>, masks: AttentionMasks<'s>) -> Result<Var<'s>> {
        let x = self.layers.iter().try_fold(x, |x, layer| layer.forward_masked(x, masks))?;
        normed(&self.norm, x)
    }
}

impl TransformerDecoder {
    /// Applies the layers to sequences `(…, n, width)`, which attend to the encoder's outputs `(…, m, width)`.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>, memory: Var<'s>, masks: DecoderMasks<'s>) -> Result<Var<'s>> {
        let x = self.layers.iter().try_fold(x, |x, layer| layer.forward(x, memory, masks))?;
        normed(&self.norm, x)
    }
}

/// An encoder and a decoder: PyTorch's `Transformer(…, batch_first=True)` without dropout of attention weights. It has
/// neither embeddings nor an output layer.
#[derive(Clone, Debug, Module)]
pub struct Transformer {
    encoder: TransformerEncoder,
    decoder: TransformerDecoder,
}

impl Transformer {
    /// Layers `name.encoder` and `name.decoder`, with so many layers each and norms at their ends. `causal` of the
    /// configuration is for the decoder. PyTorch draws all matrices of this layer by Xavier's rule; here linear layers are
    /// drawn as everywhere.
    #[track_caller]
    pub fn new(
        params: &mut Params,
        name: &str,
        config: TransformerConfig,
        encoders: usize,
        decoders: usize,
    ) -> Result<Transformer> {
        let whole = TransformerConfig { causal: false, ..config };
        Ok(Transformer {
            encoder: TransformerEncoder::new(params, &format!("{name}.encoder"), whole, encoders, true)?,
            decoder: TransformerDecoder::new(params, &format!("{name}.decoder"), config, decoders, true)?,
        })
    }

    /// The decoder's outputs for sequences `target (…, n, width)`, which attend to the encoder's outputs for
    /// `source (…, m, width)`.
    #[track_caller]
    pub fn forward<'s>(
        &self,
        source: Var<'s>,
        target: Var<'s>,
        sources: AttentionMasks<'s>,
        masks: DecoderMasks<'s>,
    ) -> Result<Var<'s>> {
        let memory = self.encoder.forward_masked(source, sources)?;
        self.decoder.forward(target, memory, masks)
    }
}
