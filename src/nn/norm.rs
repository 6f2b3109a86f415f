//! Normalization layers.

use super::{Mode, Module, positive};
use crate::error::{Error, ErrorKind, Result};
use crate::numerics::environment::strict;
use crate::params::{Param, Params};
use crate::session::Var;

/// PyTorch's default for all norms except [`RmsNorm`].
const EPS: f64 = 1e-5;

/// Parameters `name.weight (size)`, ones, and `name.bias (size)`, zeros.
#[track_caller]
fn affine(params: &mut Params, layer: &str, name: &str, size: usize) -> Result<(Param, Param)> {
    positive(layer, "size", &[size])?;
    Ok((params.ones(&format!("{name}.weight"), &[size])?, params.zeros(&format!("{name}.bias"), &[size])?))
}

/// Layer norm of the last axis with gain and shift, with PyTorch's names and eps.
#[derive(Clone, Debug, Module)]
pub struct LayerNorm {
    weight: Param,
    bias: Param,
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
        let (weight, bias) = affine(params, "layer_norm", name, size)?;
        Ok(LayerNorm { weight, bias, eps })
    }

    /// `(x - mean) / sqrt(var + eps) * weight + bias` along the last axis.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let s = x.session();
        x.layer_norm(1, Some(s.param(&self.weight)?), Some(s.param(&self.bias)?), self.eps)
    }
}

/// Root-mean-square norm of the last axis with a gain.
#[derive(Clone, Debug, Module)]
pub struct RmsNorm {
    weight: Param,
    eps: f64,
}

impl RmsNorm {
    /// The parameter `name.weight (size)`, ones. An eps of 1e-6 or 1e-5 is usual; PyTorch's default is 1.1920929e-7.
    #[track_caller]
    pub fn new(params: &mut Params, name: &str, size: usize, eps: f64) -> Result<RmsNorm> {
        positive("rms_norm", "size", &[size])?;
        Ok(RmsNorm { weight: params.ones(&format!("{name}.weight"), &[size])?, eps })
    }

    /// `x / sqrt(mean(x^2) + eps) * weight` along the last axis.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        x.rms_norm(1, Some(x.session().param(&self.weight)?), self.eps)
    }
}

/// Group norm of `(N, C, …)` with gain and shift per channel, with PyTorch's names and eps.
#[derive(Clone, Debug, Module)]
pub struct GroupNorm {
    weight: Param,
    bias: Param,
    groups: usize,
}

impl GroupNorm {
    /// Parameters `name.weight (channels)`, ones, and `name.bias (channels)`, zeros; `groups` divides the channels.
    #[track_caller]
    pub fn new(params: &mut Params, name: &str, groups: usize, channels: usize) -> Result<GroupNorm> {
        positive("group_norm", "groups", &[groups])?;
        if !channels.is_multiple_of(groups) {
            let why = format!("{groups} do not divide {channels} channels");
            return Err(Error::argument("group_norm", "groups", why));
        }
        let (weight, bias) = affine(params, "group_norm", name, channels)?;
        Ok(GroupNorm { weight, bias, groups })
    }

    /// Normalizes each group of a sample's channels: see [`Var::group_norm`].
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let s = x.session();
        x.group_norm(self.groups, Some(s.param(&self.weight)?), Some(s.param(&self.bias)?), EPS)
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
    weight: Param,
    bias: Param,
    running_mean: Param,
    running_var: Param,
    mode: Mode,
}

impl BatchNorm {
    /// How far the running statistics move towards those of a batch: PyTorch's default.
    pub const MOMENTUM: f64 = 0.1;

    /// Parameters `name.weight (channels)`, ones, and `name.bias`, zeros; and `name.running_mean`, zeros, and
    /// `name.running_var`, ones, which are [buffers](Param::set_buffer): they are never trained. PyTorch's
    /// `num_batches_tracked` is left out: it has no effect with a fixed momentum.
    #[track_caller]
    pub fn new(params: &mut Params, name: &str, channels: usize) -> Result<BatchNorm> {
        let (weight, bias) = affine(params, "batch_norm", name, channels)?;
        let running_mean = params.zeros(&format!("{name}.running_mean"), &[channels])?;
        let running_var = params.ones(&format!("{name}.running_var"), &[channels])?;
        running_mean.set_buffer();
        running_var.set_buffer();
        Ok(BatchNorm { weight, bias, running_mean, running_var, mode: Mode::Train })
    }

    /// Normalizes each channel and applies gain and shift: see [`Var::batch_norm`]. In training there must be at least
    /// two values per channel.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let s = x.session();
        let (weight, bias) = (Some(s.param(&self.weight)?), Some(s.param(&self.bias)?));
        let (mean, var) = (s.param(&self.running_mean)?, s.param(&self.running_var)?);
        if self.mode == Mode::Eval {
            return x.batch_norm_eval(mean, var, weight, bias, EPS);
        }
        let shape = x.shape()?;
        let channels = self.weight.shape().numel();
        if shape.rank() < 2 || shape.dims()[1] != channels {
            let why = "the input is not (N, C, …) with the layer's channels";
            let kind = ErrorKind::Shapes { why, left: shape, right: self.weight.shape() };
            return Err(Error::new("batch_norm", kind).in_layer(&[self.weight.name()]));
        }
        let count = shape.numel() / channels;
        if count < 2 {
            let why =
                format!("{shape} has {count} values of each channel, training needs at least 2; use eval");
            return Err(Error::argument("batch_norm", "x", why));
        }
        let (batch_mean, batch_var) = x.detach()?.moments()?;
        let unbiased = batch_var.scale(strict(|| count as f64 / (count - 1) as f64))?;
        s.assign(&self.running_mean, mean.lerp(BatchNorm::MOMENTUM, batch_mean)?)?;
        s.assign(&self.running_var, var.lerp(BatchNorm::MOMENTUM, unbiased)?)?;
        x.batch_norm(weight, bias, EPS)
    }
}
