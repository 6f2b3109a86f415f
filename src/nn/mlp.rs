//! Multi-layer perceptrons.

use super::{Activation, Linear, Module};
use crate::error::{Error, Located, Result};
use crate::params::Params;
use crate::session::Var;
use serde::{Deserialize, Serialize};

/// Sizes of an [`Mlp`]. A list of sizes converts to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MlpConfig {
    /// Number of inputs, sizes of the hidden layers, number of outputs.
    pub sizes: Vec<usize>,
}

impl Default for MlpConfig {
    /// Two inputs, three classes.
    fn default() -> MlpConfig {
        MlpConfig { sizes: vec![2, 64, 64, 3] }
    }
}

impl From<&[usize]> for MlpConfig {
    fn from(sizes: &[usize]) -> MlpConfig {
        MlpConfig { sizes: sizes.to_vec() }
    }
}

impl<const N: usize> From<&[usize; N]> for MlpConfig {
    fn from(sizes: &[usize; N]) -> MlpConfig {
        sizes[..].into()
    }
}

impl From<&Vec<usize>> for MlpConfig {
    fn from(sizes: &Vec<usize>) -> MlpConfig {
        sizes[..].into()
    }
}

/// Linear layers with an activation between them: relu, unless said otherwise.
#[derive(Clone, Debug, Module)]
pub struct Mlp {
    layers: Vec<Linear>,
    activation: Activation,
}

impl Mlp {
    /// Layers between consecutive sizes, named `net.0`, `net.2`, … as in a PyTorch `Sequential` with activations in
    /// between.
    #[track_caller]
    pub fn new(params: &mut Params, config: impl Into<MlpConfig>) -> Result<Mlp> {
        let MlpConfig { sizes } = config.into();
        if sizes.len() < 2 {
            return Err(Error::argument(
                "mlp",
                "sizes",
                format!("{sizes:?}: give at least an input and an output size"),
            ));
        }
        let layer = |(i, w): (usize, &[usize])| Linear::new(params, &format!("net.{}", 2 * i), w[0], w[1]);
        Ok(Mlp {
            layers: sizes.windows(2).enumerate().map(layer).collect::<Result<_>>().located()?,
            activation: Activation::Relu,
        })
    }

    /// The same network with another activation between its layers.
    pub fn activation(self, activation: Activation) -> Mlp {
        Mlp { activation, ..self }
    }

    /// The network's output for a batch `(…, sizes[0])`.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        x.session().scope(|| {
            let mut x = x;
            for (i, layer) in self.layers.iter().enumerate() {
                if i > 0 {
                    x = self.activation.forward(x)?;
                }
                x = layer.forward(x)?;
            }
            Ok(x)
        })
    }
}
