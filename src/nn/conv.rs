//! Convolutions and their transposes.

use super::{Module, positive};
use crate::error::{Error, Result};
use crate::numerics::environment;
use crate::ops::conv::ConvWindow;
use crate::params::{Param, Params};
use crate::session::{PadMode, Var};

/// A convolution over `AXES` spatial axes, with PyTorch's names, layout and initial range.
#[derive(Clone, Debug, Module)]
pub struct Conv<const AXES: usize> {
    weight: Param,
    bias: Option<Param>,
    window: ConvWindow,
    #[module(skip)]
    around: Around,
}

/// What a convolution reads beyond its input.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Around {
    /// As many zeros as the window says.
    Zeros,
    /// Zeros that keep the sizes.
    Same,
    /// As many elements as the window says, made by a mode.
    Mode(PadMode),
}

/// A convolution of lines `(N, C, L)`.
pub type Conv1d = Conv<1>;
/// A convolution of images `(N, C, H, W)`.
pub type Conv2d = Conv<2>;
/// A convolution of volumes `(N, C, D, H, W)`.
pub type Conv3d = Conv<3>;

/// Errors if a layer has no channels or taps, or groups that do not divide its channels.
#[track_caller]
fn check(inputs: usize, outputs: usize, kernel: &[usize], groups: usize) -> Result<()> {
    positive("conv", "channels", &[inputs, outputs])?;
    positive("conv", "kernel", kernel)?;
    if groups == 0 || !inputs.is_multiple_of(groups) || !outputs.is_multiple_of(groups) {
        let why = format!("{groups} do not divide {inputs} to {outputs} channels");
        return Err(Error::argument("conv", "groups", why));
    }
    Ok(())
}

/// The parameter `name.weight`, and its bias if there is one, uniform within one over the root of the number of
/// elements of `dims` after the first axis.
#[track_caller]
fn uniform(
    params: &mut Params,
    name: &str,
    dims: &[usize],
    bias: Option<usize>,
) -> Result<(Param, Option<Param>)> {
    let _strict = environment::enter();
    // A product that overflows is an error of the shape below.
    let fan = dims[1..].iter().map(|&d| d as f64).product::<f64>();
    let limit = 1.0 / fan.sqrt();
    let weight = params.uniform(&format!("{name}.weight"), dims, -limit, limit)?;
    let bias = bias.map(|n| params.uniform(&format!("{name}.bias"), &[n], -limit, limit)).transpose()?;
    Ok((weight, bias))
}

impl<const AXES: usize> Conv<AXES> {
    /// Parameters `name.weight (out, in / groups, kernel…)` and `name.bias (out)`, uniform within `1 / sqrt(fan_in)`.
    /// `window` has stride, padding, dilation and groups.
    #[track_caller]
    pub fn new(
        params: &mut Params,
        name: &str,
        inputs: usize,
        outputs: usize,
        kernel: [usize; AXES],
        window: ConvWindow,
    ) -> Result<Conv<AXES>> {
        Conv::with(params, name, [inputs, outputs], kernel, window, Some(outputs))
    }

    /// Like [`Conv::new`], without the bias.
    #[track_caller]
    pub fn without_bias(
        params: &mut Params,
        name: &str,
        inputs: usize,
        outputs: usize,
        kernel: [usize; AXES],
        window: ConvWindow,
    ) -> Result<Conv<AXES>> {
        Conv::with(params, name, [inputs, outputs], kernel, window, None)
    }

    #[track_caller]
    fn with(
        params: &mut Params,
        name: &str,
        [inputs, outputs]: [usize; 2],
        kernel: [usize; AXES],
        window: ConvWindow,
        bias: Option<usize>,
    ) -> Result<Conv<AXES>> {
        check(inputs, outputs, &kernel, window.groups)?;
        let dims = [&[outputs, inputs / window.groups], &kernel[..]].concat();
        let (weight, bias) = uniform(params, name, &dims, bias)?;
        Ok(Conv { weight, bias, window, around: Around::Zeros })
    }

    /// The same layer with as many zeros around its input as keep the sizes: PyTorch's `padding="same"`. The stride must be
    /// 1, and the padding of the window does not matter.
    pub fn same(self) -> Conv<AXES> {
        Conv { around: Around::Same, ..self }
    }

    /// The same layer with padding of another kind than zeros: PyTorch's `padding_mode`.
    pub fn padding_mode(self, mode: PadMode) -> Conv<AXES> {
        Conv { around: Around::Mode(mode), ..self }
    }

    /// A convolution with these parameters.
    pub(super) fn of(weight: Param, bias: Option<Param>, window: ConvWindow) -> Conv<AXES> {
        Conv { weight, bias, window, around: Around::Zeros }
    }

    /// Convolves images `(N, in, sizes…)`, or one image, and adds the bias: see [`Var::conv`].
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let s = x.session();
        let weight = s.param(&self.weight)?;
        let bias = self.bias.as_ref().map(|b| s.param(b)).transpose()?;
        match self.around {
            Around::Zeros => x.conv(weight, bias, self.window),
            Around::Same => x.conv_same(weight, bias, self.window),
            Around::Mode(mode) => {
                let sides = self.window.padding.get().iter().rev().flat_map(|&p| [i64::from(p); 2]);
                let padded = x.pad_mode(&sides.collect::<Vec<_>>(), mode)?;
                padded.conv(weight, bias, self.window.padding(0))
            }
        }
    }
}

/// A transposed convolution over `AXES` spatial axes, with PyTorch's names, layout and initial range.
#[derive(Clone, Debug, Module)]
pub struct ConvTranspose<const AXES: usize> {
    weight: Param,
    bias: Option<Param>,
    window: ConvWindow,
    output_padding: [usize; AXES],
}

/// A transposed convolution of lines `(N, C, L)`.
pub type ConvTranspose1d = ConvTranspose<1>;
/// A transposed convolution of images `(N, C, H, W)`.
pub type ConvTranspose2d = ConvTranspose<2>;
/// A transposed convolution of volumes `(N, C, D, H, W)`.
pub type ConvTranspose3d = ConvTranspose<3>;

impl<const AXES: usize> ConvTranspose<AXES> {
    /// Parameters `name.weight (in, out / groups, kernel…)` and `name.bias (out)`, uniform within one over the root of
    /// the elements of an input channel's weight. `window` has stride, padding, dilation and groups. `output_padding`,
    /// which must be below the stride or the dilation, makes each axis of the output longer.
    #[track_caller]
    pub fn new(
        params: &mut Params,
        name: &str,
        inputs: usize,
        outputs: usize,
        kernel: [usize; AXES],
        window: ConvWindow,
        output_padding: [usize; AXES],
    ) -> Result<ConvTranspose<AXES>> {
        ConvTranspose::with(params, name, [inputs, outputs], kernel, (window, output_padding), Some(outputs))
    }

    /// Like [`ConvTranspose::new`], without the bias.
    #[track_caller]
    pub fn without_bias(
        params: &mut Params,
        name: &str,
        inputs: usize,
        outputs: usize,
        kernel: [usize; AXES],
        window: ConvWindow,
        output_padding: [usize; AXES],
    ) -> Result<ConvTranspose<AXES>> {
        ConvTranspose::with(params, name, [inputs, outputs], kernel, (window, output_padding), None)
    }

    #[track_caller]
    fn with(
        params: &mut Params,
        name: &str,
        [inputs, outputs]: [usize; 2],
        kernel: [usize; AXES],
        (window, output_padding): (ConvWindow, [usize; AXES]),
        bias: Option<usize>,
    ) -> Result<ConvTranspose<AXES>> {
        check(inputs, outputs, &kernel, window.groups)?;
        let dims = [&[inputs, outputs / window.groups], &kernel[..]].concat();
        let (weight, bias) = uniform(params, name, &dims, bias)?;
        Ok(ConvTranspose { weight, bias, window, output_padding })
    }

    /// Applies the transposed convolution to images `(N, in, sizes…)`, or one image, and adds the bias: see
    /// [`Var::conv_transpose`].
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let s = x.session();
        let weight = s.param(&self.weight)?;
        let bias = self.bias.as_ref().map(|b| s.param(b)).transpose()?;
        x.conv_transpose(weight, bias, self.window, &self.output_padding)
    }
}
