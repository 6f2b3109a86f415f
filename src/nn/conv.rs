//! Convolutions.

use super::positive;
use crate::error::{Error, Result};
use crate::ops::conv::Window;
use crate::params::{Param, Params};
use crate::session::Var;

/// A convolution of images with `AXES` axes besides samples and channels, with PyTorch's names, layout and initial range.
#[derive(Clone, Debug)]
pub struct Conv<const AXES: usize> {
    weight: Param,
    bias: Param,
    window: Window,
}

/// A convolution of lines `(N, C, L)`.
pub type Conv1d = Conv<1>;
/// A convolution of images `(N, C, H, W)`.
pub type Conv2d = Conv<2>;
/// A convolution of volumes `(N, C, D, H, W)`.
pub type Conv3d = Conv<3>;

impl<const AXES: usize> Conv<AXES> {
    /// Parameters `name.weight (out, in / groups, kernel…)` and `name.bias (out)`, uniform within `1 / sqrt(inputs of an
    /// output)`. Stride, padding, dilation and groups are those of `window`.
    pub fn new(
        params: &mut Params,
        name: &str,
        inputs: usize,
        outputs: usize,
        kernel: [usize; AXES],
        window: Window,
    ) -> Result<Conv<AXES>> {
        positive("conv", "channels", &[inputs, outputs])?;
        positive("conv", "kernel", &kernel)?;
        if window.groups == 0
            || !inputs.is_multiple_of(window.groups)
            || !outputs.is_multiple_of(window.groups)
        {
            let why = format!("{} do not divide {inputs} to {outputs} channels", window.groups);
            return Err(Error::argument("conv", "groups", why));
        }
        let dims = [&[outputs, inputs / window.groups], &kernel[..]].concat();
        // A product that overflows is an error of the shape below.
        let fan_in = dims[1..].iter().map(|&d| d as f64).product::<f64>();
        let limit = 1.0 / fan_in.sqrt();
        Ok(Conv {
            weight: params.uniform(&format!("{name}.weight"), &dims, -limit, limit)?,
            bias: params.uniform(&format!("{name}.bias"), &[outputs], -limit, limit)?,
            window,
        })
    }

    /// The convolution of images `(N, in, sizes…)`, or of one image, plus the bias: see [`Var::conv`].
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let s = x.session();
        x.conv(s.param(&self.weight)?, Some(s.param(&self.bias)?), self.window)
    }
}
