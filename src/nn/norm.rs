//! Norms.

use super::positive;
use crate::error::Result;
use crate::params::{Param, Params};
use crate::session::Var;

/// Layer norm of the last axis with gain and shift, PyTorch's names and eps.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Param,
    bias: Param,
}

impl LayerNorm {
    /// PyTorch's default.
    const EPS: f64 = 1e-5;

    /// Parameters `name.weight (size)`, ones, and `name.bias (size)`, zeros.
    pub fn new(params: &mut Params, name: &str, size: usize) -> Result<LayerNorm> {
        positive("layer_norm", "size", &[size])?;
        Ok(LayerNorm {
            weight: params.ones(&format!("{name}.weight"), &[size])?,
            bias: params.zeros(&format!("{name}.bias"), &[size])?,
        })
    }

    /// `(x - mean) / sqrt(var + 1e-5) * weight + bias` along the last axis.
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let s = x.session();
        x.layer_norm(1, Some(s.param(&self.weight)?), Some(s.param(&self.bias)?), LayerNorm::EPS)
    }
}
