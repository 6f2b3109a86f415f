//! Fourier neural operators.

use super::{Forward, Linear, Module, SpectralConv1d, SpectralConv2d, positive};
use crate::error::Result;
use crate::params::Params;
use crate::session::Var;
use serde::{Deserialize, Serialize};

/// Shared by operators on lines and planes: layers of `gelu(spectral(x) + linear(x))` between a lift and a projection.
#[derive(Clone, Debug, Module)]
struct Fno<S> {
    lift: Linear,
    project: [Linear; 2],
    layers: Vec<(S, Linear)>,
}

impl<S: Forward> Fno<S> {
    /// Layers `lift`, `p1`, `p2`, and for each Fourier layer `sp.i` and `lin.i`.
    #[track_caller]
    fn new(
        params: &mut Params,
        [inputs, outputs, width, layers, hidden]: [usize; 5],
        spectral: impl Fn(&mut Params, &str) -> Result<S>,
    ) -> Result<Fno<S>> {
        super::layers("fno", layers)?;
        positive("fno", "sizes", &[inputs, outputs, width, hidden])?;
        let lift = Linear::new(params, "lift", inputs, width)?;
        let project =
            [Linear::new(params, "p1", width, hidden)?, Linear::new(params, "p2", hidden, outputs)?];
        let spectral =
            (0..layers).map(|i| spectral(params, &format!("sp.{i}"))).collect::<Result<Vec<_>>>()?;
        let linear = (0..layers)
            .map(|i| Linear::new(params, &format!("lin.{i}"), width, width))
            .collect::<Result<Vec<_>>>()?;
        Ok(Fno { lift, project, layers: spectral.into_iter().zip(linear).collect() })
    }

    #[track_caller]
    fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        x.session().scope(|| {
            let mut x = self.lift.forward(x)?;
            for (spectral, linear) in &self.layers {
                x = spectral.forward(x)?.add(linear.forward(x)?)?.gelu()?;
            }
            let [first, second] = &self.project;
            second.forward(first.forward(x)?.gelu()?)
        })
    }
}

/// Sizes of a [`Fno1d`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fno1dConfig {
    /// Inputs per grid point: usually the field and the position.
    pub inputs: usize,
    /// Outputs per grid point.
    pub outputs: usize,
    /// Channels of the Fourier layers.
    pub width: usize,
    /// Number of Fourier modes kept.
    pub modes: usize,
    /// Number of Fourier layers.
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
#[derive(Clone, Debug, Module)]
pub struct Fno1d(Fno<SpectralConv1d>);

impl Fno1d {
    /// Layers `lift`, `p1`, `p2`, and for each Fourier layer `sp.i` and `lin.i`.
    #[track_caller]
    pub fn new(params: &mut Params, config: Fno1dConfig) -> Result<Fno1d> {
        let Fno1dConfig { inputs, outputs, width, modes, layers, hidden } = config;
        positive("fno1d", "modes", &[modes])?;
        let spectral =
            |params: &mut Params, name: &str| SpectralConv1d::new(params, name, width, width, modes);
        Ok(Fno1d(Fno::new(params, [inputs, outputs, width, layers, hidden], spectral)?))
    }

    /// Maps a field `(…, grid, inputs)` to the predicted field `(…, grid, outputs)`.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        x.session().scope(|| self.0.forward(x))
    }
}

/// Sizes of a [`Fno2d`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fno2dConfig {
    /// Inputs per grid point: usually the field and the position.
    pub inputs: usize,
    /// Outputs per grid point.
    pub outputs: usize,
    /// Channels of the Fourier layers.
    pub width: usize,
    /// Number of Fourier modes kept along each axis; along the first axis, as many of either sign.
    pub modes: [usize; 2],
    /// Number of Fourier layers.
    pub layers: usize,
    /// Channels of the hidden layer of the projection.
    pub hidden: usize,
}

impl Default for Fno2dConfig {
    /// The usual sizes for Darcy flow.
    fn default() -> Fno2dConfig {
        Fno2dConfig { inputs: 3, outputs: 1, width: 32, modes: [12, 12], layers: 4, hidden: 128 }
    }
}

/// A Fourier neural operator on a plane: [`Fno1d`] with one more axis.
#[derive(Clone, Debug, Module)]
pub struct Fno2d(Fno<SpectralConv2d>);

impl Fno2d {
    /// Layers `lift`, `p1`, `p2`, and for each Fourier layer `sp.i` and `lin.i`.
    #[track_caller]
    pub fn new(params: &mut Params, config: Fno2dConfig) -> Result<Fno2d> {
        let Fno2dConfig { inputs, outputs, width, modes, layers, hidden } = config;
        positive("fno2d", "modes", &modes)?;
        let spectral =
            |params: &mut Params, name: &str| SpectralConv2d::new(params, name, width, width, modes);
        Ok(Fno2d(Fno::new(params, [inputs, outputs, width, layers, hidden], spectral)?))
    }

    /// Maps a field `(…, gx, gy, inputs)` to the predicted field `(…, gx, gy, outputs)`.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        x.session().scope(|| self.0.forward(x))
    }
}
