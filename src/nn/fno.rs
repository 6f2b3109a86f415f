//! Fourier neural operators.

use super::{Linear, SpectralConv1d, positive};
use crate::error::Result;
use crate::params::Params;
use crate::session::Var;

/// Sizes of a [`Fno1d`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fno1dConfig {
    /// Numbers at each point of the grid: usually the field and the place.
    pub inputs: usize,
    /// Numbers that are predicted at each point.
    pub outputs: usize,
    /// Channels of the Fourier layers.
    pub width: usize,
    /// Fourier modes that are kept.
    pub modes: usize,
    /// Fourier layers.
    pub layers: usize,
    /// Channels of the hidden layer of the projection.
    pub hidden: usize,
}

impl Default for Fno1dConfig {
    /// The usual sizes for Burgers' equation.
    fn default() -> Fno1dConfig {
        Fno1dConfig { inputs: 2, outputs: 1, width: 64, modes: 16, layers: 4, hidden: 128 }
    }
}

/// A Fourier neural operator on a line: it maps fields to fields, on any grid. Each layer is `gelu(spectral(x) +
/// linear(x))`.
#[derive(Clone, Debug)]
pub struct Fno1d {
    lift: Linear,
    project: [Linear; 2],
    layers: Vec<(SpectralConv1d, Linear)>,
}

impl Fno1d {
    /// Layers `lift`, `p1`, `p2`, and for each Fourier layer `sp.i` and `lin.i`.
    pub fn new(params: &mut Params, config: Fno1dConfig) -> Result<Fno1d> {
        let Fno1dConfig { inputs, outputs, width, modes, layers, hidden } = config;
        positive("fno1d", "sizes", &[inputs, outputs, width, modes, layers, hidden])?;
        let lift = Linear::new(params, "lift", inputs, width)?;
        let project =
            [Linear::new(params, "p1", width, hidden)?, Linear::new(params, "p2", hidden, outputs)?];
        let spectral = (0..layers)
            .map(|i| SpectralConv1d::new(params, &format!("sp.{i}"), width, width, modes))
            .collect::<Result<Vec<_>>>()?;
        let linear = (0..layers)
            .map(|i| Linear::new(params, &format!("lin.{i}"), width, width))
            .collect::<Result<Vec<_>>>()?;
        Ok(Fno1d { lift, project, layers: spectral.into_iter().zip(linear).collect() })
    }

    /// The predicted field, `(…, grid, outputs)`, of `(…, grid, inputs)`.
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let mut x = self.lift.forward(x)?;
        for (spectral, linear) in &self.layers {
            x = spectral.forward(x)?.add(linear.forward(x)?)?.gelu()?;
        }
        let [first, second] = &self.project;
        second.forward(first.forward(x)?.gelu()?)
    }
}
