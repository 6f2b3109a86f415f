//! Layers of one input, and what they are combined by.

use super::{
    Autoencoder, BatchNorm, Block, CausalSelfAttention, Cnn, Conv, ConvTranspose, Dropout, Embedding, Fno1d,
    Fno2d, Forward, Gpt, GroupNorm, InstanceNorm, LayerNorm, LearntPositions, Linear, Mamba, MambaBlock, Mlp,
    Module, MultiheadAttention, ResNet, RmsNorm, SinusoidalPositions, SpectralConv1d, SpectralConv2d,
    TransformerEncoderLayer, Vit,
};
use crate::error::Result;
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
    Activation, Autoencoder, BatchNorm, Block, CausalSelfAttention, Cnn, Conv<1>, Conv<2>, Conv<3>, ConvTranspose<1>,
    ConvTranspose<2>, ConvTranspose<3>, Dropout, Embedding, Fno1d, Fno2d, Gpt, GroupNorm, InstanceNorm, Lambda, LayerNorm,
    LearntPositions, Linear, Mamba, MambaBlock, Mlp, MultiheadAttention, Residual, ResNet, RmsNorm, Sequential,
    SinusoidalPositions, SpectralConv1d, SpectralConv2d, TransformerEncoderLayer, Vit
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

/// An elementwise function without parameters.
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
}

impl Activation {
    /// Applies the function to each element.
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
        }
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
