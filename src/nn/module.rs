//! Layers of one input behind one interface, and what can be built of any of them.

use super::{
    Autoencoder, BatchNorm, Block, CausalSelfAttention, Cnn, Conv, ConvTranspose, Dropout, Embedding, Fno1d,
    Fno2d, Gpt, GroupNorm, InstanceNorm, LayerNorm, LearntPositions, Linear, Mamba, MambaBlock, Mlp,
    MultiheadAttention, ResNet, RmsNorm, SinusoidalPositions, SpectralConv1d, SpectralConv2d,
    TransformerEncoderLayer, Vit,
};
use crate::error::Result;
use crate::session::Var;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// A layer or model of one input. What has a `forward` of one value is one.
pub trait Module: fmt::Debug + Send + Sync {
    /// The output for an input.
    fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>>;

    /// The module as it is after training, with the same parameters.
    fn to_eval(&self) -> Arc<dyn Module>;
}

/// Types that have `forward`, and an `eval` of their own or nothing that training changes.
macro_rules! modules {
    (same: $($same:ty),*; eval: $($eval:ty),*;) => {
        $(impl Module for $same {
            fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
                <$same>::forward(self, x)
            }

            fn to_eval(&self) -> Arc<dyn Module> {
                Arc::new(self.clone())
            }
        })*
        $(impl Module for $eval {
            fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
                <$eval>::forward(self, x)
            }

            fn to_eval(&self) -> Arc<dyn Module> {
                Arc::new(self.eval())
            }
        })*
    };
}

modules! {
    same: Activation, Autoencoder, CausalSelfAttention, Cnn, Conv<1>, Conv<2>, Conv<3>, ConvTranspose<1>, ConvTranspose<2>,
        ConvTranspose<3>, Embedding, Fno1d, Fno2d, GroupNorm, InstanceNorm, Lambda, LayerNorm, LearntPositions, Linear,
        Mamba, MambaBlock, Mlp, MultiheadAttention, RmsNorm, SinusoidalPositions, SpectralConv1d, SpectralConv2d;
    eval: BatchNorm, Block, Dropout, Gpt, Residual, ResNet, Sequential, TransformerEncoderLayer, Vit;
}

/// Modules one after another. Give layers the names `net.0`, `net.1`, … for those of a PyTorch `Sequential` called `net`.
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
#[derive(Clone, Debug, Default)]
pub struct Sequential {
    modules: Vec<Arc<dyn Module>>,
}

impl Sequential {
    /// None yet: its output is its input.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// The same with one more module at the end.
    pub fn then(mut self, module: impl Module + 'static) -> Sequential {
        self.modules.push(Arc::new(module));
        self
    }

    /// The modules as they are after training.
    pub fn eval(&self) -> Sequential {
        Sequential { modules: self.modules.iter().map(|m| m.to_eval()).collect() }
    }

    /// The last module's output.
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        self.modules.iter().try_fold(x, |x, m| m.forward(x))
    }
}

impl From<Vec<Box<dyn Module>>> for Sequential {
    fn from(modules: Vec<Box<dyn Module>>) -> Sequential {
        Sequential { modules: modules.into_iter().map(Arc::from).collect() }
    }
}

/// `x + f(x)` of a module `f`.
#[derive(Clone, Debug)]
pub struct Residual {
    inner: Arc<dyn Module>,
}

impl Residual {
    /// The way around a module.
    pub fn new(inner: impl Module + 'static) -> Residual {
        Residual { inner: Arc::new(inner) }
    }

    /// The module as it is after training.
    pub fn eval(&self) -> Residual {
        Residual { inner: self.inner.to_eval() }
    }

    /// `x + f(x)`.
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        x.add(self.inner.forward(x)?)
    }
}

/// An elementwise function without parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x`.
    Identity,
    /// [`Var::relu`].
    Relu,
    /// [`Var::gelu`], by the tangent: PyTorch's `approximate="tanh"`.
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
    /// The function of each element.
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

/// What a [`Lambda`] calls.
type Function = dyn for<'s> Fn(Var<'s>) -> Result<Var<'s>> + Send + Sync;

/// Any function of one value as a module: pools, changes of shape.
#[derive(Clone)]
pub struct Lambda {
    name: &'static str,
    f: Arc<Function>,
}

impl Lambda {
    /// The function `f`, with a name to be shown.
    pub fn new(
        name: &'static str,
        f: impl for<'s> Fn(Var<'s>) -> Result<Var<'s>> + Send + Sync + 'static,
    ) -> Lambda {
        Lambda { name, f: Arc::new(f) }
    }

    /// The function's value.
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        (self.f)(x)
    }
}

impl fmt::Debug for Lambda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lambda({})", self.name)
    }
}
