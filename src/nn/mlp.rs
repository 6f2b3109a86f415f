//! Perceptrons of several layers.

use super::Linear;
use crate::error::{Error, Result};
use crate::params::Params;
use crate::session::Var;

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
