//! Attention within a sequence and between sequences.

use super::{Linear, Mode, Module, positive};
use crate::error::{Error, ErrorKind, Result};
use crate::params::{Param, Params};
use crate::session::{AttentionOptions, Var};
use crate::shape::Shape;

/// Errors unless the number of heads divides the width.
#[track_caller]
pub(super) fn check_heads(width: usize, heads: usize) -> Result<()> {
    positive("attention", "sizes", &[width, heads])?;
    if !width.is_multiple_of(heads) {
        let why = format!("{heads} heads do not divide a width of {width}");
        return Err(Error::argument("attention", "heads", why));
    }
    Ok(())
}

/// The shape of a value `(…, length, width)`, its number of sequences, and their length.
#[track_caller]
fn sequences(x: Var<'_>, width: usize) -> Result<(Shape, usize, usize)> {
    let shape = x.shape()?;
    let &[.., length, last] = shape.dims() else {
        return Err(Error::new(
            "attention",
            ErrorKind::Rank { want: "at least 2: (…, length, width)", got: shape },
        ));
    };
    if last != width {
        let why = format!("the last axis of {shape} is not the layer's width, {width}");
        return Err(Error::argument("attention", "x", why));
    }
    Ok((shape, shape.rows().checked_div(length).unwrap_or(0), length))
}

/// Splits `(batch · length, count · width)` into `(count, batch, heads, length, size)` with one permutation.
#[track_caller]
fn cut<'s>(all: Var<'s>, [batch, length, count, heads, size]: [usize; 5]) -> Result<Var<'s>> {
    all.reshape(&[batch, length, count, heads, size])?.permute(&[2, 0, 3, 1, 4])
}

/// Joins the heads' outputs `(batch, heads, length, size)`.
#[track_caller]
fn join<'s>(mixed: Var<'s>, shape: &Shape) -> Result<Var<'s>> {
    mixed.permute(&[0, 2, 1, 3])?.reshape(shape.dims())
}

/// Multi-head self-attention in which each position attends to itself and earlier ones.
#[derive(Clone, Debug, Module)]
pub struct CausalSelfAttention {
    qkv: Linear,
    out: Linear,
    width: usize,
    heads: usize,
}

impl CausalSelfAttention {
    /// Layers `name.qkv` (to queries, keys and values) and `name.o` (from the heads' outputs). Weights are normal draws
    /// with standard deviation `std`.
    #[track_caller]
    pub fn new(
        params: &mut Params,
        name: &str,
        width: usize,
        heads: usize,
        std: f64,
    ) -> Result<CausalSelfAttention> {
        check_heads(width, heads)?;
        Ok(CausalSelfAttention {
            qkv: Linear::normal(params, &format!("{name}.qkv"), width, width.saturating_mul(3), std)?,
            out: Linear::normal(params, &format!("{name}.o"), width, width, std)?,
            width,
            heads,
        })
    }

    /// The attention of sequences `(…, length, width)`.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        x.session().scope(|| {
            let (shape, batch, length) = sequences(x, self.width)?;
            let dims = [batch, length, 3, self.heads, self.width / self.heads];
            let options = AttentionOptions { causal: true, ..AttentionOptions::default() };
            let mixed = self.qkv.forward(x)?.reshape(&dims)?.self_attention(options)?;
            self.out.forward(mixed.reshape(shape.dims())?)
        })
    }
}

/// What sequences `(…, n, width)` may attend to in others `(…, m, width)`. All are 1, or any number but 0, where a query
/// may attend; the masks of PyTorch's `MultiheadAttention` say with `True` where it may not.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionMasks<'s> {
    /// Keys for queries: `(n, m)`, `(batch, n, m)` or `(batch, heads, n, m)`, where the batch is all leading axes as one.
    pub mask: Option<Var<'s>>,
    /// Keys that are no padding, `(…, m)`: PyTorch's `key_padding_mask`, inverted.
    pub keys: Option<Var<'s>>,
    /// Numbers added to the scores, of a shape as the mask's: PyTorch's `attn_mask` of numbers.
    pub bias: Option<Var<'s>>,
    /// Whether query `i` attends only to keys up to `i`.
    pub causal: bool,
}

impl<'s> AttentionMasks<'s> {
    /// A mask that broadcasts to `(batch, heads, n, m)`, for keys of so many sequences.
    #[track_caller]
    fn joined(&self, batch: usize, m: usize) -> Result<Option<Var<'s>>> {
        let Some(keys) = self.keys else { return Ok(self.mask) };
        if keys.shape()?.numel() != batch.saturating_mul(m) || keys.shape()?.last() != m {
            let why = format!("{} is not (…, {m}) with {batch} rows, a row for each sequence", keys.shape()?);
            return Err(Error::argument("attention", "keys", why));
        }
        let keys = keys.reshape(&[batch, 1, 1, m])?;
        let Some(mask) = self.mask else { return Ok(Some(keys)) };
        let mask = if mask.shape()?.rank() == 3 { mask.unsqueeze(1)? } else { mask };
        let zero = mask.session().scalar(0.0)?;
        Ok(Some(mask.ne(zero)?.mul(keys.ne(zero)?)?))
    }
}

/// Multi-head attention: PyTorch's `MultiheadAttention(…, batch_first=True)`, with its names, layouts and initial
/// distributions.
#[derive(Clone, Debug, Module)]
pub struct MultiheadAttention {
    weight: Param,
    bias: Param,
    out: Linear,
    width: usize,
    heads: usize,
    causal: bool,
    dropout: f64,
    mode: Mode,
}

impl MultiheadAttention {
    /// Parameters `name.in_proj_weight (3 width, width)`, by Xavier's rule, and `name.in_proj_bias`, zeros, for
    /// queries, keys and values in this order; and the layer `name.out_proj`, whose bias is zeros. With `causal`, a
    /// position attends only to itself and earlier ones.
    #[track_caller]
    pub fn new(
        params: &mut Params,
        name: &str,
        width: usize,
        heads: usize,
        causal: bool,
    ) -> Result<MultiheadAttention> {
        check_heads(width, heads)?;
        let three = width.saturating_mul(3);
        let weight = params.xavier_uniform(&format!("{name}.in_proj_weight"), &[three, width], 1.0)?;
        let bias = params.zeros(&format!("{name}.in_proj_bias"), &[three])?;
        let out = Linear::without_bias(params, &format!("{name}.out_proj"), width, width)?;
        let out_bias = params.zeros(&format!("{name}.out_proj.bias"), &[width])?;
        let out = Linear::of(out.weight().clone(), Some(out_bias));
        Ok(MultiheadAttention { weight, bias, out, width, heads, causal, dropout: 0.0, mode: Mode::Train })
    }

    /// The layer with dropout of the attention weights in training. It then computes all weights as one value.
    #[track_caller]
    pub fn dropout(self, p: f64) -> Result<MultiheadAttention> {
        match (0.0..=1.0).contains(&p) {
            true => Ok(MultiheadAttention { dropout: p, ..self }),
            false => Err(Error::argument("attention", "dropout", format!("got {p}, use 0 to 1"))),
        }
    }

    /// The attention of sequences `(…, length, width)` to themselves.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        x.session().scope(|| {
            let (shape, batch, length) = sequences(x, self.width)?;
            let s = x.session();
            let all = x.linear(s.param(&self.weight)?, s.param(&self.bias)?)?;
            let dims = [batch, length, 3, self.heads, self.width / self.heads];
            let mixed = all.reshape(&dims)?.self_attention(self.options())?;
            self.out.forward(mixed.reshape(shape.dims())?)
        })
    }

    /// The attention of sequences `(…, n, width)` to other sequences `(…, m, width)`, which give keys and values.
    #[track_caller]
    pub fn forward_to<'s>(&self, x: Var<'s>, memory: Var<'s>) -> Result<Var<'s>> {
        self.forward_masked(x, memory, None, AttentionMasks::default())
    }

    /// The attention of queries `(…, n, width)` to keys `(…, m, width)`, where masks allow it: the `forward` of PyTorch's
    /// layer. The values have the keys' shape; by default they are made of the same sequences. A query that may attend to nothing gives the bias of the last layer.
    #[track_caller]
    pub fn forward_masked<'s>(
        &self,
        query: Var<'s>,
        key: Var<'s>,
        value: Option<Var<'s>>,
        masks: AttentionMasks<'s>,
    ) -> Result<Var<'s>> {
        let (shape, batch, length) = sequences(query, self.width)?;
        let (other, memories, m) = sequences(key, self.width)?;
        let lead = |s: &Shape| s.dims()[..s.rank() - 2].to_vec();
        if lead(&shape) != lead(&other) {
            let why = "the sequences and those they attend to differ in their leading axes";
            return Err(Error::new("attention", ErrorKind::Shapes { why, left: shape, right: other }));
        }
        if let Some(value) = value.filter(|value| value.shape().is_ok_and(|shape| shape != other)) {
            let why = "keys and values differ in shape";
            return Err(Error::new(
                "attention",
                ErrorKind::Shapes { why, left: other, right: value.shape()? },
            ));
        }
        let (s, width) = (query.session(), self.width);
        let part = |x: Var<'s>, start: usize, count: usize, dims: [usize; 2]| -> Result<Var<'s>> {
            let weight = s.param(&self.weight)?.narrow(0, start * width, count * width)?;
            let bias = s.param(&self.bias)?.narrow(0, start * width, count * width)?;
            cut(x.linear(weight, bias)?, [dims[0], dims[1], count, self.heads, width / self.heads])
        };
        let q = part(query, 0, 1, [batch, length])?.select(0, 0)?;
        let (k, v) = match value {
            Some(value) => {
                let of = |x, start| part(x, start, 1, [memories, m])?.select(0, 0);
                (of(key, 1)?, of(value, 2)?)
            }
            None => {
                let both = part(key, 1, 2, [memories, m])?;
                (both.select(0, 0)?, both.select(0, 1)?)
            }
        };
        let causal = self.causal || masks.causal;
        let options =
            AttentionOptions { mask: masks.joined(memories, m)?, bias: masks.bias, causal, ..self.options() };
        self.out.forward(join(q.attention(k, v, options)?, &shape)?)
    }

    fn options<'s>(&self) -> AttentionOptions<'s> {
        let dropout = if self.mode == Mode::Train { self.dropout } else { 0.0 };
        AttentionOptions { causal: self.causal, dropout, ..AttentionOptions::default() }
    }
}
