//! Layers and models, written once for eager and compiled runs.

use crate::error::{Error, Result};
use crate::params::{Param, Params};
use crate::session::Var;

/// An affine map of the last axis, with PyTorch's names, layout and initial range.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Param,
    bias: Param,
}

impl Linear {
    /// Parameters `name.weight (out, in)` and `name.bias (out)`, uniform within `1 / sqrt(in)`.
    pub fn new(params: &mut Params, name: &str, inputs: usize, outputs: usize) -> Result<Linear> {
        if inputs == 0 || outputs == 0 {
            return Err(Error::argument("linear", "sizes", format!("{inputs} to {outputs}: use at least 1")));
        }
        let limit = 1.0 / (inputs as f64).sqrt();
        Ok(Linear {
            weight: params.uniform(&format!("{name}.weight"), &[outputs, inputs], -limit, limit)?,
            bias: params.uniform(&format!("{name}.bias"), &[outputs], -limit, limit)?,
        })
    }

    /// `x W^T + b`.
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let s = x.session();
        x.linear(s.param(&self.weight)?, s.param(&self.bias)?)
    }
}

/// Linear layers with relu between them.
#[derive(Clone, Debug)]
pub struct Mlp {
    layers: Vec<Linear>,
}

impl Mlp {
    /// Layers between neighbouring sizes, called `net.0`, `net.2`, … as in a PyTorch `Sequential` with
    /// activations between.
    pub fn new(params: &mut Params, sizes: &[usize]) -> Result<Mlp> {
        if sizes.len() < 2 {
            return Err(Error::argument(
                "mlp",
                "sizes",
                format!("{sizes:?}: give at least an input and an output size"),
            ));
        }
        let layer = |(i, w): (usize, &[usize])| Linear::new(params, &format!("net.{}", 2 * i), w[0], w[1]);
        Ok(Mlp { layers: sizes.windows(2).enumerate().map(layer).collect::<Result<_>>()? })
    }

    /// The network's output for a batch `(…, sizes[0])`.
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let mut x = x;
        for (i, layer) in self.layers.iter().enumerate() {
            if i > 0 {
                x = x.relu()?;
            }
            x = layer.forward(x)?;
        }
        Ok(x)
    }
}
