//! Attention of a sequence to itself.

use super::{Linear, positive};
use crate::error::{Error, ErrorKind, Result};
use crate::params::Params;
use crate::session::{AttentionOptions, Var};

/// Self-attention with several heads, each position attending to itself and those before it.
#[derive(Clone, Debug)]
pub struct CausalSelfAttention {
    qkv: Linear,
    out: Linear,
    width: usize,
    heads: usize,
}

impl CausalSelfAttention {
    /// Layers `name.qkv`, to queries, keys and values side by side, and `name.o`, from the heads' outputs; weights are normal
    /// draws with standard deviation `std`.
    pub fn new(
        params: &mut Params,
        name: &str,
        width: usize,
        heads: usize,
        std: f64,
    ) -> Result<CausalSelfAttention> {
        positive("attention", "sizes", &[width, heads])?;
        if !width.is_multiple_of(heads) {
            let why = format!("{heads} heads do not divide a width of {width}");
            return Err(Error::argument("attention", "heads", why));
        }
        Ok(CausalSelfAttention {
            qkv: Linear::normal(params, &format!("{name}.qkv"), width, width.saturating_mul(3), std)?,
            out: Linear::normal(params, &format!("{name}.o"), width, width, std)?,
            width,
            heads,
        })
    }

    /// The attention of sequences `(…, length, width)`.
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let shape = x.shape()?;
        let &[.., length, width] = shape.dims() else {
            return Err(Error::new(
                "attention",
                ErrorKind::Rank { want: "at least 2: (…, length, width)", got: shape },
            ));
        };
        if width != self.width {
            let why = format!("the last axis of {shape} is not the layer's width, {}", self.width);
            return Err(Error::argument("attention", "x", why));
        }
        let batch = shape.rows().checked_div(length).unwrap_or(0);
        // One turn of the axes for all three.
        let (heads, size) = (self.heads, self.width / self.heads);
        let all =
            self.qkv.forward(x)?.reshape(&[batch, length, 3, heads, size])?.permute(&[2, 0, 3, 1, 4])?;
        let mixed = all.self_attention(AttentionOptions { causal: true, ..AttentionOptions::default() })?;
        self.out.forward(mixed.permute(&[0, 2, 1, 3])?.reshape(shape.dims())?)
    }
}
