//! Normalization layers.

use super::{Mode, Module, positive};
use crate::error::{Error, ErrorKind, Result};
use crate::numerics::environment::strict;
use crate::params::{Param, Params};
use crate::session::Var;
use crate::shape::Shape;

/// PyTorch's default for all norms except [`RmsNorm`].
const EPS: f64 = 1e-5;

/// Parameters `name.weight (size)`, ones, and `name.bias (size)`, zeros.
#[track_caller]
fn affine(params: &mut Params, layer: &str, name: &str, size: usize) -> Result<(Param, Param)> {
    positive(layer, "size", &[size])?;
    Ok((params.ones(&format!("{name}.weight"), &[size])?, params.zeros(&format!("{name}.bias"), &[size])?))
}

/// What a norm has beside its sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormConfig {
    /// Added to the variance.
    pub eps: f64,
    /// Whether there is a gain, and unless `bias` is false a shift: PyTorch's `affine` or `elementwise_affine`.
    pub affine: bool,
    /// Whether a layer with a gain has a shift.
    pub bias: bool,
}

impl Default for NormConfig {
    /// PyTorch's defaults.
    fn default() -> NormConfig {
        NormConfig { eps: EPS, affine: true, bias: true }
    }
}

impl NormConfig {
    /// The gain and the shift that a layer has.
    #[track_caller]
    fn parts(
        &self,
        params: &mut Params,
        layer: &str,
        name: &str,
        dims: &[usize],
    ) -> Result<(Option<Param>, Option<Param>)> {
        positive(layer, "size", dims)?;
        let weight = self.affine.then(|| params.ones(&format!("{name}.weight"), dims)).transpose()?;
        let shift = self.affine && self.bias;
        Ok((weight, shift.then(|| params.zeros(&format!("{name}.bias"), dims)).transpose()?))
    }
}

/// A parameter, if there is one, as a value.
#[track_caller]
fn value<'s>(x: Var<'s>, param: &Option<Param>) -> Result<Option<Var<'s>>> {
    param.as_ref().map(|param| x.session().param(param)).transpose()
}

/// Errors unless the last axes of a value have these sizes.
#[track_caller]
fn ends_in(layer: &str, x: Var<'_>, dims: &[usize]) -> Result<()> {
    match x.shape()? {
        shape if shape.dims().ends_with(dims) => Ok(()),
        shape => Err(Error::argument(layer, "x", format!("{shape} does not end in the layer's {dims:?}"))),
    }
}

/// Layer norm of the last axis, or several, with gain and shift, with PyTorch's names and eps.
#[derive(Clone, Debug, Module)]
pub struct LayerNorm {
    weight: Option<Param>,
    bias: Option<Param>,
    dims: Vec<usize>,
    eps: f64,
}

impl LayerNorm {
    /// Parameters `name.weight (size)`, ones, and `name.bias (size)`, zeros.
    #[track_caller]
    pub fn new(params: &mut Params, name: &str, size: usize) -> Result<LayerNorm> {
        LayerNorm::with_eps(params, name, size, EPS)
    }

    /// Like [`LayerNorm::new`], with another eps than the default 1e-5.
    #[track_caller]
    pub fn with_eps(params: &mut Params, name: &str, size: usize, eps: f64) -> Result<LayerNorm> {
        LayerNorm::with(params, name, &[size], NormConfig { eps, ..NormConfig::default() })
    }

    /// A norm of the last axes, which have sizes `dims`, with the parameters that the configuration has.
    #[track_caller]
    pub fn with(params: &mut Params, name: &str, dims: &[usize], config: NormConfig) -> Result<LayerNorm> {
        if dims.is_empty() {
            return Err(Error::argument("layer_norm", "dims", "there are none; use at least one"));
        }
        let (weight, bias) = config.parts(params, "layer_norm", name, dims)?;
        Ok(LayerNorm { weight, bias, dims: dims.to_vec(), eps: config.eps })
    }

    /// `(x - mean) / sqrt(var + eps) * weight + bias` along the last axes.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        if self.weight.is_none() {
            ends_in("layer_norm", x, &self.dims)?;
        }
        x.layer_norm(self.dims.len(), value(x, &self.weight)?, value(x, &self.bias)?, self.eps)
    }
}

/// Root-mean-square norm of the last axis, or several, with a gain.
#[derive(Clone, Debug, Module)]
pub struct RmsNorm {
    weight: Option<Param>,
    dims: Vec<usize>,
    eps: f64,
}

impl RmsNorm {
    /// The parameter `name.weight (size)`, ones. An eps of 1e-6 or 1e-5 is usual; PyTorch's default is 1.1920929e-7.
    #[track_caller]
    pub fn new(params: &mut Params, name: &str, size: usize, eps: f64) -> Result<RmsNorm> {
        RmsNorm::with(params, name, &[size], NormConfig { eps, ..NormConfig::default() })
    }

    /// A norm of the last axes, which have sizes `dims`, with the gain if the configuration has one. There is no shift.
    #[track_caller]
    pub fn with(params: &mut Params, name: &str, dims: &[usize], config: NormConfig) -> Result<RmsNorm> {
        if dims.is_empty() {
            return Err(Error::argument("rms_norm", "dims", "there are none; use at least one"));
        }
        let (weight, _) = NormConfig { bias: false, ..config }.parts(params, "rms_norm", name, dims)?;
        Ok(RmsNorm { weight, dims: dims.to_vec(), eps: config.eps })
    }

    /// `x / sqrt(mean(x^2) + eps) * weight` along the last axes.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        if self.weight.is_none() {
            ends_in("rms_norm", x, &self.dims)?;
        }
        x.rms_norm(self.dims.len(), value(x, &self.weight)?, self.eps)
    }
}

/// Group norm of `(N, C, …)` with gain and shift per channel, with PyTorch's names and eps.
#[derive(Clone, Debug, Module)]
pub struct GroupNorm {
    weight: Option<Param>,
    bias: Option<Param>,
    groups: usize,
    channels: usize,
    eps: f64,
}

impl GroupNorm {
    /// Parameters `name.weight (channels)`, ones, and `name.bias (channels)`, zeros; `groups` divides the channels.
    #[track_caller]
    pub fn new(params: &mut Params, name: &str, groups: usize, channels: usize) -> Result<GroupNorm> {
        GroupNorm::with(params, name, groups, channels, NormConfig::default())
    }

    /// Like [`GroupNorm::new`], with the eps and the parameters of a configuration.
    #[track_caller]
    pub fn with(
        params: &mut Params,
        name: &str,
        groups: usize,
        channels: usize,
        config: NormConfig,
    ) -> Result<GroupNorm> {
        positive("group_norm", "groups", &[groups])?;
        if !channels.is_multiple_of(groups) {
            let why = format!("{groups} do not divide {channels} channels");
            return Err(Error::argument("group_norm", "groups", why));
        }
        let (weight, bias) = config.parts(params, "group_norm", name, &[channels])?;
        Ok(GroupNorm { weight, bias, groups, channels, eps: config.eps })
    }

    /// Normalizes each group of a sample's channels: see [`Var::group_norm`].
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        if self.weight.is_none() {
            has_channels("group_norm", x, self.channels)?;
        }
        x.group_norm(self.groups, value(x, &self.weight)?, value(x, &self.bias)?, self.eps)
    }
}

/// Errors unless a value is `(N, C, …)` with so many channels.
#[track_caller]
fn has_channels(layer: &str, x: Var<'_>, channels: usize) -> Result<()> {
    match x.shape()? {
        shape if shape.dims().get(1) == Some(&channels) => Ok(()),
        shape => {
            let why = format!("{shape} is not (N, C, …) with the layer's {channels} channels");
            Err(Error::argument(layer, "x", why))
        }
    }
}

/// Instance norm of `(N, C, …)`: normalizes each channel of each sample. As in PyTorch, it has no parameters unless
/// requested.
#[derive(Clone, Debug, Default, Module)]
pub struct InstanceNorm {
    affine: Option<(Param, Param)>,
}

impl InstanceNorm {
    /// Without parameters.
    pub fn new() -> InstanceNorm {
        InstanceNorm::default()
    }

    /// Parameters `name.weight (channels)`, ones, and `name.bias (channels)`, zeros: PyTorch's `affine=True`.
    #[track_caller]
    pub fn affine(params: &mut Params, name: &str, channels: usize) -> Result<InstanceNorm> {
        Ok(InstanceNorm { affine: Some(affine(params, "instance_norm", name, channels)?) })
    }

    /// Normalizes each channel of each sample: see [`Var::instance_norm`].
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let s = x.session();
        match &self.affine {
            Some((weight, bias)) => x.instance_norm(Some(s.param(weight)?), Some(s.param(bias)?), EPS),
            None => x.instance_norm(None, None, EPS),
        }
    }
}

/// Batch norm of `(N, C, …)` with gain and shift per channel, with PyTorch's names, eps and momentum, for any number of
/// axes after the channels.
///
/// In training it uses mean and variance of the batch, and moves the running statistics by a tenth towards them (using
/// the unbiased variance). An eager step updates them at its end, a compiled one together with its update; see
/// [`Session::assign`](crate::session::Session::assign). In evaluation mode ([`Module::eval`]) it uses the running
/// statistics.
#[derive(Clone, Debug, Module)]
pub struct BatchNorm {
    weight: Option<Param>,
    bias: Option<Param>,
    running_mean: Option<Param>,
    running_var: Option<Param>,
    channels: usize,
    eps: f64,
    momentum: f64,
    mode: Mode,
}

/// What a [`BatchNorm`] has beside its channels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormConfig {
    /// Added to the variance.
    pub eps: f64,
    /// How far the running statistics move towards those of a batch, from 0 to 1.
    pub momentum: f64,
    /// Whether there are gain and shift.
    pub affine: bool,
    /// Whether there are running statistics. Without them, evaluation uses those of the batch as well.
    pub track_running_stats: bool,
}

impl Default for BatchNormConfig {
    /// PyTorch's defaults.
    fn default() -> BatchNormConfig {
        BatchNormConfig { eps: EPS, momentum: BatchNorm::MOMENTUM, affine: true, track_running_stats: true }
    }
}

impl BatchNorm {
    /// How far the running statistics move towards those of a batch: PyTorch's default.
    pub const MOMENTUM: f64 = 0.1;

    /// Parameters `name.weight (channels)`, ones, and `name.bias`, zeros; and `name.running_mean`, zeros, and
    /// `name.running_var`, ones, which are [buffers](Param::set_buffer): they are never trained. PyTorch's
    /// `num_batches_tracked` is left out: it has no effect with a fixed momentum.
    #[track_caller]
    pub fn new(params: &mut Params, name: &str, channels: usize) -> Result<BatchNorm> {
        BatchNorm::with(params, name, channels, BatchNormConfig::default())
    }

    /// Like [`BatchNorm::new`], with the numbers and the parameters of a configuration.
    #[track_caller]
    pub fn with(
        params: &mut Params,
        name: &str,
        channels: usize,
        config: BatchNormConfig,
    ) -> Result<BatchNorm> {
        let BatchNormConfig { eps, momentum, affine, track_running_stats } = config;
        if !(0.0..=1.0).contains(&momentum) {
            return Err(Error::argument("batch_norm", "momentum", format!("got {momentum}, use 0 to 1")));
        }
        let gains = NormConfig { eps, affine, bias: true };
        let (weight, bias) = gains.parts(params, "batch_norm", name, &[channels])?;
        let (mut running_mean, mut running_var) = (None, None);
        if track_running_stats {
            let mean = params.zeros(&format!("{name}.running_mean"), &[channels])?;
            let var = params.ones(&format!("{name}.running_var"), &[channels])?;
            mean.set_buffer();
            var.set_buffer();
            (running_mean, running_var) = (Some(mean), Some(var));
        }
        Ok(BatchNorm { weight, bias, running_mean, running_var, channels, eps, momentum, mode: Mode::Train })
    }

    /// Normalizes each channel and applies gain and shift: see [`Var::batch_norm`]. In training there must be at least
    /// two values per channel.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let s = x.session();
        let (weight, bias) = (value(x, &self.weight)?, value(x, &self.bias)?);
        let (running_mean, running_var) = (value(x, &self.running_mean)?, value(x, &self.running_var)?);
        if let (Mode::Eval, Some(mean), Some(var)) = (self.mode, running_mean, running_var) {
            return x.batch_norm_eval(mean, var, weight, bias, self.eps);
        }
        let (shape, channels) = (x.shape()?, self.channels);
        if shape.rank() < 2 || shape.dims()[1] != channels {
            let why = "the input is not (N, C, …) with the layer's channels";
            let right = Shape::new(&[channels])?;
            let error = Error::new("batch_norm", ErrorKind::Shapes { why, left: shape, right });
            let layer = self.weight.as_ref().or(self.running_mean.as_ref());
            return Err(match layer {
                Some(param) => error.in_layer(&[param.name()]),
                None => error,
            });
        }
        let count = shape.numel() / channels;
        if count < 2 {
            let why =
                format!("{shape} has {count} values of each channel, training needs at least 2; use eval");
            return Err(Error::argument("batch_norm", "x", why));
        }
        let places = self.running_mean.as_ref().zip(self.running_var.as_ref());
        if let (Some((mean, var)), Some((old_mean, old_var))) = (places, running_mean.zip(running_var)) {
            let (batch_mean, batch_var) = x.detach()?.moments()?;
            let unbiased = batch_var.scale(strict(|| count as f64 / (count - 1) as f64))?;
            s.assign(mean, old_mean.lerp(self.momentum, batch_mean)?)?;
            s.assign(var, old_var.lerp(self.momentum, unbiased)?)?;
        }
        x.batch_norm(weight, bias, self.eps)
    }
}
