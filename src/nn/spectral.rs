//! Convolutions in Fourier space.

use super::{Module, positive};
use crate::error::Result;
use crate::numerics::environment;
use crate::params::{Param, Params};
use crate::session::Var;

/// Parameters `name.wr` and `name.wi`, the real and imaginary parts: normal draws with standard deviation `1 / in`.
#[track_caller]
fn weights(params: &mut Params, name: &str, dims: &[usize], inputs: usize) -> Result<[Param; 2]> {
    let _strict = environment::enter();
    let mut part = |part: &str| params.normal(&format!("{name}.{part}"), dims, 0.0, 1.0 / inputs as f64);
    Ok([part("wr")?, part("wi")?])
}

/// A convolution along a grid with complex weights for its lowest Fourier modes; higher modes become zero.
#[derive(Clone, Debug, Module)]
pub struct SpectralConv1d {
    weights: [Param; 2],
}

impl SpectralConv1d {
    /// Parameters `name.wr` and `name.wi (modes, in, out)`, the real and imaginary parts: normal draws with standard
    /// deviation `1 / in`.
    #[track_caller]
    pub fn new(
        params: &mut Params,
        name: &str,
        inputs: usize,
        outputs: usize,
        modes: usize,
    ) -> Result<SpectralConv1d> {
        positive("spectral_conv1d", "sizes", &[inputs, outputs, modes])?;
        Ok(SpectralConv1d { weights: weights(params, name, &[modes, inputs, outputs], inputs)? })
    }

    /// Convolves `(…, grid, in)` to `(…, grid, out)`.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        x.session().scope(|| {
            let s = x.session();
            let [real, imaginary] = &self.weights;
            x.spectral_conv1d(s.param(real)?, s.param(imaginary)?)
        })
    }
}

/// A convolution over a plane with complex weights for its lowest Fourier modes; higher modes become zero.
#[derive(Clone, Debug, Module)]
pub struct SpectralConv2d {
    weights: [Param; 2],
}

impl SpectralConv2d {
    /// Parameters `name.wr` and `name.wi (2, modes along x, modes along y, in, out)`, the real and imaginary parts:
    /// normal draws with standard deviation `1 / in`. Along the first axis come the weights of modes `0, 1, …` along x,
    /// then those of negative modes.
    #[track_caller]
    pub fn new(
        params: &mut Params,
        name: &str,
        inputs: usize,
        outputs: usize,
        modes: [usize; 2],
    ) -> Result<SpectralConv2d> {
        positive("spectral_conv2d", "sizes", &[inputs, outputs, modes[0], modes[1]])?;
        let dims = [2, modes[0], modes[1], inputs, outputs];
        Ok(SpectralConv2d { weights: weights(params, name, &dims, inputs)? })
    }

    /// Convolves `(…, gx, gy, in)` to `(…, gx, gy, out)`.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        x.session().scope(|| {
            let s = x.session();
            let [real, imaginary] = &self.weights;
            x.spectral_conv2d(s.param(real)?, s.param(imaginary)?)
        })
    }
}
