//! Language models.

use super::attention::check_heads;
use super::generate::{Sampling, generate, last_place};
use super::{CausalSelfAttention, Dropout, Embedding, LayerNorm, Linear, Module, positive};
use crate::error::{Error, ErrorKind, Result};
use crate::params::Params;
use crate::session::Var;
use serde::{Deserialize, Serialize};

/// Sizes of a [`Gpt`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GptConfig {
    /// Vocabulary size.
    pub vocab: usize,
    /// Maximum sequence length.
    pub context: usize,
    /// Channels.
    pub width: usize,
    /// Number of attention heads; divides the width.
    pub heads: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Dropout probability after the embedding and after either part of a block.
    pub dropout: f64,
}

impl GptConfig {
    /// GPT-2 small, with the vocabulary rounded up to a multiple of 64.
    pub const GPT2_SMALL: GptConfig =
        GptConfig { vocab: 50304, context: 1024, width: 768, heads: 12, layers: 12, dropout: 0.0 };
}

impl Default for GptConfig {
    /// A small byte-level model.
    fn default() -> GptConfig {
        GptConfig { vocab: 256, context: 128, width: 128, heads: 4, layers: 4, dropout: 0.0 }
    }
}

/// Standard deviation of the initial weights.
const STD: f64 = 0.02;

/// A transformer block: `x + attention(ln1(x))`, then `x + down(gelu(up(ln2(x))))`.
#[derive(Clone, Debug, Module)]
pub struct Block {
    ln1: LayerNorm,
    ln2: LayerNorm,
    attention: CausalSelfAttention,
    up: Linear,
    down: Linear,
    dropout: Dropout,
}

impl Block {
    /// Layers `name.ln1`, `name.ln2`, `name.qkv`, `name.o`, `name.up` and `name.down`, with four times the width
    /// between the last two. Weights are normal draws with standard deviation 0.02.
    #[track_caller]
    pub fn new(
        params: &mut Params,
        name: &str,
        width: usize,
        heads: usize,
        dropout: Dropout,
    ) -> Result<Block> {
        let part = |part: &str| format!("{name}.{part}");
        Ok(Block {
            ln1: LayerNorm::new(params, &part("ln1"), width)?,
            ln2: LayerNorm::new(params, &part("ln2"), width)?,
            attention: CausalSelfAttention::new(params, name, width, heads, STD)?,
            up: Linear::normal(params, &part("up"), width, width.saturating_mul(4), STD)?,
            down: Linear::normal(params, &part("down"), width.saturating_mul(4), width, STD)?,
            dropout,
        })
    }

    /// Applies the block to sequences `(…, length, width)`.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        x.session().scope(|| {
            let mixed = self.attention.forward(self.ln1.forward(x)?)?;
            let x = x.add(self.dropout.forward(mixed)?)?;
            let wide = self.up.forward(self.ln2.forward(x)?)?.gelu()?;
            x.add(self.dropout.forward(self.down.forward(wide)?)?)
        })
    }
}

/// A language model like GPT-2: embeddings of tokens and positions, blocks, a norm, and logits for the next token at
/// each position, by the transposed embedding table.
#[derive(Clone, Debug, Module)]
pub struct Gpt {
    tokens: Embedding,
    places: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    dropout: Dropout,
    context: usize,
}

impl Gpt {
    /// Layers `tok`, `pos`, `blocks.i` and `ln`. The head shares the embedding's weight: PyTorch's `head.weight` is
    /// `tok.weight`.
    #[track_caller]
    pub fn new(params: &mut Params, config: GptConfig) -> Result<Gpt> {
        let GptConfig { vocab, context, width, heads, layers, dropout } = config;
        super::layers("gpt", layers)?;
        positive("gpt", "sizes", &[vocab, context, width, heads])?;
        check_heads(width, heads)?;
        let dropout = Dropout::new(dropout)?;
        Ok(Gpt {
            tokens: Embedding::new(params, "tok", vocab, width, STD)?,
            places: Embedding::new(params, "pos", context, width, STD)?,
            blocks: (0..layers)
                .map(|i| Block::new(params, &format!("blocks.{i}"), width, heads, dropout))
                .collect::<Result<_>>()?,
            norm: LayerNorm::new(params, "ln", width)?,
            dropout,
            context,
        })
    }

    /// The blocks' output for sequences of tokens.
    #[track_caller]
    fn hidden<'s>(&self, tokens: Var<'s>) -> Result<Var<'s>> {
        let shape = tokens.shape()?;
        let Some(&length) = shape.dims().last() else {
            return Err(Error::new("gpt", ErrorKind::Rank { want: "at least 1: (…, length)", got: shape }));
        };
        if length > self.context {
            let why = format!("{length} is longer than the context of {}", self.context);
            return Err(Error::argument("gpt", "length", why));
        }
        let s = tokens.session();
        let mut places = s.param(self.places.weight())?;
        if length < self.context {
            places = places.narrow(0, 0, length)?;
        }
        let mut x = self.dropout.forward(self.tokens.forward(tokens)?.add(places)?)?;
        for block in &self.blocks {
            x = block.forward(x)?;
        }
        Ok(x)
    }

    #[track_caller]
    fn head<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let table = x.session().param(self.tokens.weight())?;
        self.norm.forward(x)?.matmul_with(table, false, true)
    }

    /// Logits of the next token at each position of sequences of tokens `(…, length)`: `(…, length, vocab)`.
    #[track_caller]
    pub fn forward<'s>(&self, tokens: Var<'s>) -> Result<Var<'s>> {
        tokens.session().scope(|| self.head(self.hidden(tokens)?))
    }

    /// The logits `(…, vocab)` at the last position only: the same bits as [`Gpt::forward`], without computing the head
    /// for the other positions.
    #[track_caller]
    pub fn last<'s>(&self, tokens: Var<'s>) -> Result<Var<'s>> {
        tokens.session().scope(|| self.head(last_place("gpt", self.hidden(tokens)?)?))
    }

    /// Continues a prompt by `steps` tokens, drawn by `sampling`, without dropout. The model sees as many tokens as fit
    /// in its context. The result depends only on the arguments and the parameters, bit for bit, on any device.
    ///
    /// ```
    /// use dittograd::nn::Sampling;
    /// use dittograd::prelude::*;
    /// # fn main() -> Result<()> {
    /// let mut params = Params::new(&Device::cpu()?, 7);
    /// let net = Gpt::new(&mut params, GptConfig { width: 16, heads: 2, layers: 1, ..GptConfig::default() })?;
    /// let sampling = Sampling { temperature: 0.8, top_k: Some(5), seed: 3 };
    /// let tokens = net.generate(b"ditto".map(u32::from).as_slice(), 4, sampling)?;
    /// assert_eq!(tokens, net.generate(b"ditto".map(u32::from).as_slice(), 4, sampling)?);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn generate(&self, prompt: &[u32], steps: usize, sampling: Sampling) -> Result<Vec<u32>> {
        let (net, device) = (self.eval(), self.tokens.weight().buffer().buffer().device().clone());
        generate(&device, self.context, |tokens| net.last(tokens), prompt, steps, sampling)
    }
}
