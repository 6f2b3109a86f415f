//! Attention within a sequence and between sequences.

use super::{Linear, Module, positive};
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

/// Multi-head attention: PyTorch's `MultiheadAttention(…, batch_first=True)`, with its names, layouts and initial
/// distributions, without dropout of attention weights.
#[derive(Clone, Debug, Module)]
pub struct MultiheadAttention {
    weight: Param,
    bias: Param,
    out: Linear,
    width: usize,
    heads: usize,
    causal: bool,
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
        Ok(MultiheadAttention { weight, bias, out, width, heads, causal })
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
        let (shape, batch, length) = sequences(x, self.width)?;
        let (other, memories, m) = sequences(memory, self.width)?;
        let lead = |s: &Shape| s.dims()[..s.rank() - 2].to_vec();
        if lead(&shape) != lead(&other) {
            let why = "the sequences and those they attend to differ in their leading axes";
            return Err(Error::new("attention", ErrorKind::Shapes { why, left: shape, right: other }));
        }
        let (s, width) = (x.session(), self.width);
        let part = |start: usize, len: usize| -> Result<_> {
            let weight = s.param(&self.weight)?.narrow(0, start, len)?;
            Ok((weight, s.param(&self.bias)?.narrow(0, start, len)?))
        };
        let size = width / self.heads;
        let (weight, bias) = part(0, width)?;
        let q = cut(x.linear(weight, bias)?, [batch, length, 1, self.heads, size])?.select(0, 0)?;
        let (weight, bias) = part(width, 2 * width)?;
        let kv = cut(memory.linear(weight, bias)?, [memories, m, 2, self.heads, size])?;
        let mixed = q.attention(kv.select(0, 0)?, kv.select(0, 1)?, self.options())?;
        self.out.forward(join(mixed, &shape)?)
    }

    fn options<'s>(&self) -> AttentionOptions<'s> {
        AttentionOptions { causal: self.causal, ..AttentionOptions::default() }
    }
}
