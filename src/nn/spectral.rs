//! Convolutions in Fourier space.

use super::positive;
use crate::error::Result;
use crate::params::{Param, Params};
use crate::session::Var;

/// A convolution along a grid by complex weights of its lowest Fourier modes; higher modes become zero.
#[derive(Clone, Debug)]
pub struct SpectralConv1d {
    real: Param,
    imaginary: Param,
}

impl SpectralConv1d {
    /// Parameters `name.wr` and `name.wi (modes, in, out)`, the real and imaginary parts: normal draws with standard
    /// deviation `1 / in`.
    pub fn new(
        params: &mut Params,
        name: &str,
        inputs: usize,
        outputs: usize,
        modes: usize,
    ) -> Result<SpectralConv1d> {
        positive("spectral_conv1d", "sizes", &[inputs, outputs, modes])?;
        let mut part = |part: &str| {
            params.normal(&format!("{name}.{part}"), &[modes, inputs, outputs], 0.0, 1.0 / inputs as f64)
        };
        Ok(SpectralConv1d { real: part("wr")?, imaginary: part("wi")? })
    }

    /// The convolution of `(…, grid, in)`, to `(…, grid, out)`.
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let s = x.session();
        x.spectral_conv1d(s.param(&self.real)?, s.param(&self.imaginary)?)
    }
}
