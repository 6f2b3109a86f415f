//! Layers and parameters with their sizes in their types. Layers that do not fit together do not compile.

use super::images::{given, windows_fit};
use super::{Dim, Dims, EndsIn, HasAxis, Push, Rank2, Size, Typed, assert};
use crate::error::Result;
use crate::nn;
use crate::numerics::environment::strict;
use crate::params::{self, Params};
use crate::session::Session;
use std::fmt;
use std::marker::PhantomData;

/// A parameter with its shape in its type.
pub struct Param<S> {
    param: params::Param,
    is: PhantomData<S>,
}

impl<S> Clone for Param<S> {
    fn clone(&self) -> Self {
        Param { param: self.param.clone(), is: PhantomData }
    }
}

impl<S> fmt::Debug for Param<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.param.fmt(f)
    }
}

impl<S: Dims> Param<S> {
    /// All of the shape must be known; otherwise a compile error points at the caller.
    const KNOWN: () = assert::all_known("parameter", S::DIMS);

    fn dims() -> Vec<usize> {
        S::DIMS.iter().copied().flatten().collect()
    }

    /// A parameter drawn uniformly from `[lo, hi)`: [`Params::uniform`].
    #[track_caller]
    pub fn uniform(params: &mut Params, name: &str, lo: f64, hi: f64) -> Result<Param<S>> {
        let () = Self::KNOWN;
        Ok(Param { param: params.uniform(name, &Self::dims(), lo, hi)?, is: PhantomData })
    }

    /// A parameter of zeros.
    #[track_caller]
    pub fn zeros(params: &mut Params, name: &str) -> Result<Param<S>> {
        let () = Self::KNOWN;
        Ok(Param { param: params.zeros(name, &Self::dims())?, is: PhantomData })
    }

    /// A parameter of ones.
    #[track_caller]
    pub fn ones(params: &mut Params, name: &str) -> Result<Param<S>> {
        let () = Self::KNOWN;
        let shape = crate::shape::Shape::new(&Self::dims())?;
        let ones = crate::tensor::Tensor::full(shape, 1.0f32);
        Ok(Param { param: params.value(name, &ones)?, is: PhantomData })
    }

    /// Its value in a session.
    #[track_caller]
    pub fn on<'s>(&self, session: &'s Session) -> Result<Typed<'s, S>> {
        Ok(Typed::trust(session.param(&self.param)?))
    }

    /// The parameter without the type.
    pub fn untyped(&self) -> &params::Param {
        &self.param
    }
}

/// A layer, or layers in sequence, with input type `Input`.
///
/// A tuple of layers is a layer if each accepts the output of the one before it:
///
/// ```
/// use dittograd::prelude::*;
/// use dittograd::typed::{Build, Linear, Matrix, Module, Relu, Rows};
///
/// type Net = (Linear<2, 64>, Relu, Linear<64, 3>);
///
/// # fn main() -> Result<()> {
/// let device = Device::cpu()?;
/// let mut params = Params::new(&device, 7);
/// let net = Net::build(&mut params, "net")?;
/// let session = Session::eager(&device);
/// let x: Matrix<8, 2> = session.full(&[8, 2], 0.5)?.typed()?;
/// let y: Matrix<8, 3> = net.forward(x)?;
/// let any: Rows<3> = net.forward(x.retype::<(typed::Dyn, _)>()?)?;
/// # Ok(())
/// # }
/// ```
///
/// Your own layer, around any other that keeps the shape:
///
/// ```
/// use dittograd::prelude::*;
/// use dittograd::typed::{Dims, Module, Typed};
///
/// struct Residual<M>(M);
///
/// impl<'s, S: Dims, M> Module<Typed<'s, S>> for Residual<M>
/// where
///     M: Module<Typed<'s, S>, Output = Typed<'s, S>>,
/// {
///     type Output = Typed<'s, S>;
///     const FITS: () = M::FITS;
///     fn apply(&self, x: Typed<'s, S>) -> Result<Typed<'s, S>> {
///         self.0.apply(x)?.add(x)
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not take `{Input}`",
    label = "the layers do not fit this input, or each other"
)]
pub trait Module<Input> {
    /// The output type.
    type Output;
    /// Conditions on sizes that types cannot express, evaluated by the compiler wherever [`Module::forward`] is called.
    /// A layer without such conditions need not define it.
    const FITS: () = ();
    /// The implementation of a layer.
    #[track_caller]
    fn apply(&self, x: Input) -> Result<Self::Output>;
    /// Applies the layer to an input.
    #[track_caller]
    fn forward(&self, x: Input) -> Result<Self::Output> {
        let () = Self::FITS;
        self.apply(x)
    }
}

/// A layer that can be built from its type.
pub trait Build: Sized {
    /// Builds the layer, with parameters named `name.…` in `params`. The layers of a tuple are named `name.0`,
    /// `name.1`, … as in a PyTorch `Sequential`.
    #[track_caller]
    fn build(params: &mut Params, name: &str) -> Result<Self>;
}

macro_rules! tuples {
    ($(($i0:tt $m0:ident $(, $i:tt $m:ident after $before:ident)*) $last:ident;)*) => {$(
        impl<X, $m0: Module<X> $(, $m: Module<$before::Output>)*> Module<X> for ($m0, $($m),*) {
            type Output = $last::Output;
            const FITS: () = ($m0::FITS, $($m::FITS),*).0;
            #[track_caller]
            fn apply(&self, x: X) -> Result<Self::Output> {
                let x = self.$i0.apply(x)?;
                $(let x = self.$i.apply(x)?;)*
                Ok(x)
            }
        }

        impl<$m0: Build $(, $m: Build)*> Build for ($m0, $($m),*) {
            #[track_caller]
            fn build(params: &mut Params, name: &str) -> Result<Self> {
                Ok((
                    $m0::build(params, &format!("{name}.{}", $i0))?,
                    $($m::build(params, &format!("{name}.{}", $i))?),*
                ))
            }
        }
    )*};
}

tuples! {
    (0 A, 1 B after A) B;
    (0 A, 1 B after A, 2 C after B) C;
    (0 A, 1 B after A, 2 C after B, 3 D after C) D;
    (0 A, 1 B after A, 2 C after B, 3 D after C, 4 E after D) E;
    (0 A, 1 B after A, 2 C after B, 3 D after C, 4 E after D, 5 F after E) F;
    (0 A, 1 B after A, 2 C after B, 3 D after C, 4 E after D, 5 F after E, 6 G after F) G;
    (0 A, 1 B after A, 2 C after B, 3 D after C, 4 E after D, 5 F after E, 6 G after F, 7 H after G) H;
}

macro_rules! activations {
    ($($layer:ident $method:ident;)*) => {$(
        #[doc = concat!("[`Typed::", stringify!($method), "`] as a layer.")]
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $layer;

        impl<'s, S: Dims> Module<Typed<'s, S>> for $layer {
            type Output = Typed<'s, S>;
            #[track_caller]
            fn apply(&self, x: Typed<'s, S>) -> Result<Typed<'s, S>> {
                x.$method()
            }
        }

        impl Build for $layer {
            #[track_caller]
            fn build(_: &mut Params, _: &str) -> Result<$layer> {
                Ok($layer)
            }
        }
    )*};
}

activations! {
    Relu relu;
    Gelu gelu;
    Silu silu;
    Tanh tanh;
    Sigmoid sigmoid;
    Softplus softplus;
    Softmax softmax;
    LogSoftmax log_softmax;
}

/// A linear layer on the last axis, from `IN` to `OUT` elements: [`nn::Linear`].
#[derive(Clone, Debug)]
pub struct Linear<const IN: usize, const OUT: usize>(nn::Linear);

impl<const IN: usize, const OUT: usize> Build for Linear<IN, OUT> {
    #[track_caller]
    fn build(params: &mut Params, name: &str) -> Result<Self> {
        Ok(Linear(nn::Linear::new(params, name, IN, OUT)?))
    }
}

impl<'s, S: EndsIn<Size<IN>>, const IN: usize, const OUT: usize> Module<Typed<'s, S>> for Linear<IN, OUT> {
    type Output = Typed<'s, S::With<Size<OUT>>>;
    #[track_caller]
    fn apply(&self, x: Typed<'s, S>) -> Result<Self::Output> {
        Ok(Typed::trust(self.0.forward(x.var)?))
    }
}

/// A vector of `N` elements, initially normal draws, for each of `COUNT` indices: [`nn::Embedding`].
///
/// ```
/// use dittograd::prelude::*;
/// use dittograd::typed::{Build, Embedding, Linear, Module, Rank2, Rank3, Relu, Typed};
///
/// type Net = (Embedding<50, 16>, Linear<16, 32>, Relu, Linear<32, 50>);
///
/// # fn main() -> Result<()> {
/// let device = Device::cpu()?;
/// let mut params = Params::new(&device, 7);
/// let net = Net::build(&mut params, "net")?;
/// let session = Session::eager(&device);
/// let tokens: Typed<Rank2<2, 3>, u32> = session.labels(&Tensor::new(&[2, 3], vec![4u32; 6])?)?.typed()?;
/// let logits: Typed<Rank3<2, 3, 50>> = net.forward(tokens)?;
/// let loss = logits.cross_entropy(tokens)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Embedding<const COUNT: usize, const N: usize>(nn::Embedding);

impl<const COUNT: usize, const N: usize> Build for Embedding<COUNT, N> {
    #[track_caller]
    fn build(params: &mut Params, name: &str) -> Result<Self> {
        Ok(Embedding(nn::Embedding::new(params, name, COUNT, N, 1.0)?))
    }
}

impl<'s, I: Push, const COUNT: usize, const N: usize> Module<Typed<'s, I, u32>> for Embedding<COUNT, N> {
    type Output = Typed<'s, I::With<Size<N>>>;
    #[track_caller]
    fn apply(&self, index: Typed<'s, I, u32>) -> Result<Self::Output> {
        Ok(Typed::trust(self.0.forward(index.var)?))
    }
}

/// Layer norm over a last axis of `N`, with an initial gain of ones and shift of zeros, and eps 1e-5.
#[derive(Clone, Debug)]
pub struct LayerNorm<const N: usize> {
    weight: Param<(Size<N>,)>,
    bias: Param<(Size<N>,)>,
}

impl<const N: usize> Build for LayerNorm<N> {
    #[track_caller]
    fn build(params: &mut Params, name: &str) -> Result<Self> {
        let weight = Param::ones(params, &format!("{name}.weight"))?;
        Ok(LayerNorm { weight, bias: Param::zeros(params, &format!("{name}.bias"))? })
    }
}

impl<'s, S: EndsIn<Size<N>>, const N: usize> Module<Typed<'s, S>> for LayerNorm<N> {
    type Output = Typed<'s, S>;
    #[track_caller]
    fn apply(&self, x: Typed<'s, S>) -> Result<Self::Output> {
        let session = x.session();
        x.layer_norm(self.weight.on(session)?, self.bias.on(session)?, 1e-5)
    }
}

/// A convolution from `IN` to `OUT` channels with a square kernel of side `K`; the output images are `H` by `W`.
///
/// ```
/// use dittograd::prelude::*;
/// use dittograd::typed::{Build, Conv2d, Flatten, Linear, Matrix, MaxPool2d, Module, Rank4, Relu, Typed};
///
/// // 28 by 28 pixels: 24 by 24 after a kernel of 5, and half of that after a pool.
/// type Net = (Conv2d<1, 8, 5, 24, 24>, Relu, MaxPool2d<2, 12, 12>, Flatten<1152>, Linear<1152, 10>);
///
/// # fn main() -> Result<()> {
/// let device = Device::cpu()?;
/// let mut params = Params::new(&device, 7);
/// let net = Net::build(&mut params, "net")?;
/// let session = Session::eager(&device);
/// let x: Typed<Rank4<2, 1, 28, 28>> = session.full(&[2, 1, 28, 28], 0.5)?.typed()?;
/// let y: Matrix<2, 10> = net.apply(x)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Conv2d<
    const IN: usize,
    const OUT: usize,
    const K: usize,
    const H: usize,
    const W: usize,
    const STRIDE: usize = 1,
    const PADDING: usize = 0,
> {
    weight: Param<(Size<OUT>, Size<IN>, Size<K>, Size<K>)>,
    bias: Param<(Size<OUT>,)>,
}

impl<
    const IN: usize,
    const OUT: usize,
    const K: usize,
    const H: usize,
    const W: usize,
    const S: usize,
    const P: usize,
> Build for Conv2d<IN, OUT, K, H, W, S, P>
{
    /// Uniform within `1 / sqrt(IN K²)`, as in PyTorch.
    #[track_caller]
    fn build(params: &mut Params, name: &str) -> Result<Self> {
        let limit = strict(|| 1.0 / ((IN * K * K) as f64).sqrt());
        Ok(Conv2d {
            weight: Param::uniform(params, &format!("{name}.weight"), -limit, limit)?,
            bias: Param::uniform(params, &format!("{name}.bias"), -limit, limit)?,
        })
    }
}

impl<
    's,
    B: Dim,
    HI: Dim,
    WI: Dim,
    const IN: usize,
    const OUT: usize,
    const K: usize,
    const H: usize,
    const W: usize,
    const S: usize,
    const P: usize,
> Module<Typed<'s, (B, Size<IN>, HI, WI)>> for Conv2d<IN, OUT, K, H, W, S, P>
{
    type Output = Typed<'s, (B, Size<OUT>, Size<H>, Size<W>)>;
    const FITS: () =
        windows_fit("conv2d", <(HI, WI)>::DIMS, &given([K; 2]), &[S; 2], &[P; 2], Rank2::<H, W>::DIMS);
    #[track_caller]
    fn apply(&self, x: Typed<'s, (B, Size<IN>, HI, WI)>) -> Result<Self::Output> {
        let session = x.session();
        let (weight, bias) = (self.weight.on(session)?, self.bias.on(session)?);
        Typed::try_from(x.var.conv2d(weight.var, Some(bias.var), S, P)?)
    }
}

macro_rules! pools {
    ($($layer:ident $method:ident $what:literal;)*) => {$(
        #[doc = concat!("The ", $what, " of square windows of side `K`, which makes images of `H` by `W`.")]
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $layer<const K: usize, const H: usize, const W: usize, const STRIDE: usize = K>;

        impl<const K: usize, const H: usize, const W: usize, const S: usize> Build for $layer<K, H, W, S> {
            #[track_caller]
            fn build(_: &mut Params, _: &str) -> Result<Self> {
                Ok($layer)
            }
        }

        impl<'s, B: Dim, C: Dim, HI: Dim, WI: Dim, const K: usize, const H: usize, const W: usize, const S: usize>
            Module<Typed<'s, (B, C, HI, WI)>> for $layer<K, H, W, S>
        {
            type Output = Typed<'s, (B, C, Size<H>, Size<W>)>;
            const FITS: () = windows_fit(
                stringify!($method),
                <(HI, WI)>::DIMS,
                &given([K; 2]),
                &[S; 2],
                &[0; 2],
                Rank2::<H, W>::DIMS,
            );
            #[track_caller]
            fn apply(&self, x: Typed<'s, (B, C, HI, WI)>) -> Result<Self::Output> {
                Typed::try_from(x.var.$method([K; 2], S)?)
            }
        }
    )*};
}

pools! {
    MaxPool2d max_pool2d "largest";
    AvgPool2d avg_pool2d "mean";
}

/// Flattens all axes after the first into one of `N` elements.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flatten<const N: usize>;

impl<const N: usize> Build for Flatten<N> {
    #[track_caller]
    fn build(_: &mut Params, _: &str) -> Result<Self> {
        Ok(Flatten)
    }
}

impl<'s, S: HasAxis<0>, const N: usize> Module<Typed<'s, S>> for Flatten<N> {
    type Output = Typed<'s, (S::Dim, Size<N>)>;
    const FITS: () = assert::flat_size("flatten", S::DIMS, N);
    #[track_caller]
    fn apply(&self, x: Typed<'s, S>) -> Result<Self::Output> {
        Typed::try_from(x.var.flatten_from(1)?)
    }
}
