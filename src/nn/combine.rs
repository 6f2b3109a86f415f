//! Layers of one input, and what they are combined by.

use super::{
    AdaptiveAvgPool, AdaptiveMaxPool, AlphaDropout, AvgPool, ChannelDropout, ChannelShuffle,
    FeatureAlphaDropout, Fold, LocalResponseNorm, LpPool, MaxPool, PadLayer, PixelShuffle, PixelUnshuffle,
    Unfold, Upsample,
};
use super::{
    Autoencoder, BatchNorm, Block, CausalSelfAttention, Cnn, Conv, ConvTranspose, Dropout, Embedding, Fno1d,
    Fno2d, Forward, Gpt, GroupNorm, InstanceNorm, LayerNorm, LearntPositions, Linear, Mamba, MambaBlock, Mlp,
    Module, MultiheadAttention, ResNet, RmsNorm, SinusoidalPositions, SpectralConv1d, SpectralConv2d,
    TransformerEncoder, TransformerEncoderLayer, Vit, positive,
};
use crate::error::{Error, Result};
use crate::params::{Param, Params};
use crate::session::Var;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Types whose own `forward` has one input.
macro_rules! forward {
    ($($module:ty),*) => {$(
        impl Forward for $module {
            #[track_caller]
            fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
                <$module>::forward(self, x)
            }
        }
    )*};
}

forward! {
    AdaptiveAvgPool, AdaptiveMaxPool, AlphaDropout, AvgPool, ChannelDropout, ChannelShuffle, FeatureAlphaDropout, Fold,
    LocalResponseNorm, LpPool, MaxPool, PadLayer, PixelShuffle, PixelUnshuffle, Unfold, Upsample,
    Activation, Autoencoder, BatchNorm, Block, CausalSelfAttention, Cnn, Conv<1>, Conv<2>, Conv<3>, ConvTranspose<1>,
    ConvTranspose<2>, ConvTranspose<3>, Dropout, Embedding, Fno1d, Fno2d, Gpt, GroupNorm, InstanceNorm, Lambda, LayerNorm,
    LearntPositions, Linear, Mamba, MambaBlock, Mlp, MultiheadAttention, Prelu, Residual, ResNet, RmsNorm, Sequential,
    SinusoidalPositions, SpectralConv1d, SpectralConv2d, TransformerEncoder, TransformerEncoderLayer, Vit
}

/// Modules one after another. Name the layers `net.0`, `net.1`, … to match a PyTorch `Sequential` called `net`.
///
/// ```
/// use dittograd::nn::{Activation, Lambda, Linear, Residual, Sequential};
/// use dittograd::prelude::*;
/// # fn main() -> Result<()> {
/// let device = Device::cpu()?;
/// let mut params = Params::new(&device, 7);
/// let inner = Sequential::new().then(Linear::new(&mut params, "1.0", 8, 8)?).then(Activation::Silu);
/// let net = Sequential::new()
///     .then(Linear::new(&mut params, "0", 2, 8)?)
///     .then(Residual::new(inner))
///     .then(Lambda::new("mean", |x| x.mean_axes(&[1])));
/// let session = Session::eager(&device);
/// assert_eq!(net.forward(session.ones(&[5, 2])?)?.shape()?.dims(), [5]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, Module)]
pub struct Sequential(Vec<Arc<dyn Forward>>);

impl Sequential {
    /// No modules: the output is the input.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// Appends a module.
    pub fn then(mut self, module: impl Forward + 'static) -> Sequential {
        self.0.push(Arc::new(module));
        self
    }

    /// The output of the last module.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        x.session().scope(|| self.0.iter().try_fold(x, |x, m| m.forward(x)))
    }
}

impl From<Vec<Box<dyn Forward>>> for Sequential {
    fn from(modules: Vec<Box<dyn Forward>>) -> Sequential {
        Sequential(modules.into_iter().map(Arc::from).collect())
    }
}

/// A residual connection: `x + f(x)` for a module `f`.
#[derive(Clone, Debug, Module)]
pub struct Residual(Arc<dyn Forward>);

impl Residual {
    /// A residual connection around a module.
    pub fn new(inner: impl Forward + 'static) -> Residual {
        Residual(Arc::new(inner))
    }

    /// `x + f(x)`.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        x.session().scope(|| x.add(self.0.forward(x)?))
    }
}

/// A function without parameters, nor arguments other than PyTorch's defaults. One with arguments is a [`Lambda`]:
/// `Lambda::new("leaky_relu", |x| x.leaky_relu(0.2))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Module)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x`.
    Identity,
    /// [`Var::relu`].
    Relu,
    /// [`Var::gelu`], the tanh approximation: PyTorch's `approximate="tanh"`.
    Gelu,
    /// [`Var::gelu_erf`], PyTorch's default.
    GeluErf,
    /// [`Var::silu`].
    Silu,
    /// [`Var::sigmoid`].
    Sigmoid,
    /// [`Var::tanh`].
    Tanh,
    /// [`Var::softplus`].
    Softplus,
    /// [`Var::log_sigmoid`].
    LogSigmoid,
    /// [`Var::mish`].
    Mish,
    /// [`Var::hardsigmoid`].
    Hardsigmoid,
    /// [`Var::hardswish`].
    Hardswish,
    /// [`Var::hardtanh`].
    Hardtanh,
    /// [`Var::relu6`].
    Relu6,
    /// [`Var::leaky_relu`] with PyTorch's default slope, 0.01.
    LeakyRelu,
    /// [`Var::elu`] with PyTorch's default `alpha`, 1.
    Elu,
    /// [`Var::softmax`], along the last axis.
    Softmax,
    /// [`Var::log_softmax`], along the last axis.
    LogSoftmax,
}

impl Activation {
    /// Applies the function.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        match self {
            Activation::Identity => Ok(x),
            Activation::Relu => x.relu(),
            Activation::Gelu => x.gelu(),
            Activation::GeluErf => x.gelu_erf(),
            Activation::Silu => x.silu(),
            Activation::Sigmoid => x.sigmoid(),
            Activation::Tanh => x.tanh(),
            Activation::Softplus => x.softplus(),
            Activation::LogSigmoid => x.log_sigmoid(),
            Activation::Mish => x.mish(),
            Activation::Hardsigmoid => x.hardsigmoid(),
            Activation::Hardswish => x.hardswish(),
            Activation::Hardtanh => x.hardtanh(),
            Activation::Relu6 => x.relu6(),
            Activation::LeakyRelu => x.leaky_relu(0.01),
            Activation::Elu => x.elu(1.0),
            Activation::Softmax => x.softmax(),
            Activation::LogSoftmax => x.log_softmax(),
        }
    }
}

/// `x` where positive, else `weight · x` with a learnt weight: PyTorch's `PReLU`.
#[derive(Clone, Debug, Module)]
pub struct Prelu {
    weight: Param,
}

impl Prelu {
    /// The parameter `name.weight (count)`, quarters: one for all elements, or one for each channel of `(N, C, …)`.
    #[track_caller]
    pub fn new(params: &mut Params, name: &str, count: usize) -> Result<Prelu> {
        positive("prelu", "count", &[count])?;
        Ok(Prelu { weight: params.full(&format!("{name}.weight"), &[count], 0.25)? })
    }

    /// Applies the function to each element.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let s = x.session();
        let (shape, count) = (x.shape()?, self.weight.shape().numel());
        let mut dims = vec![count];
        if count > 1 {
            if shape.dims().get(1) != Some(&count) {
                let why = format!("{shape} is not (N, C, …) with the layer's {count} channels");
                return Err(Error::argument("prelu", "x", why));
            }
            dims.extend(vec![1; shape.rank() - 2]);
        }
        let below = x.mul(s.param(&self.weight)?.reshape(&dims)?)?;
        x.gt(s.scalar(0.0)?)?.where_(x, below)
    }
}

/// The function of a [`Lambda`].
type Function = dyn for<'s> Fn(Var<'s>) -> Result<Var<'s>> + Send + Sync;

/// Any function of one value as a module: pooling, reshapes.
#[derive(Clone, Module)]
pub struct Lambda {
    name: &'static str,
    #[module(skip)]
    f: Arc<Function>,
}

impl Lambda {
    /// The function `f`, with a name for display.
    pub fn new(
        name: &'static str,
        f: impl for<'s> Fn(Var<'s>) -> Result<Var<'s>> + Send + Sync + 'static,
    ) -> Lambda {
        Lambda { name, f: Arc::new(f) }
    }

    /// The function's value.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        (self.f)(x)
    }
}

impl fmt::Debug for Lambda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lambda({})", self.name)
    }
}
