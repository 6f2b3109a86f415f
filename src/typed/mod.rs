//! Shapes in types, over the same session: the compiler checks what it can know about shapes.
//!
//! A [`Typed`] is a [`Var`] whose shape is part of its type, at no cost: every method calls the one of `Var` and
//! returns a type with the shape of the result.
//!
//! ```
//! use dittograd::prelude::*;
//! use dittograd::typed::{Matrix, Vector};
//!
//! fn layer<'s>(x: Matrix<'s, 8, 2>, w: Matrix<'s, 2, 3>, b: Vector<'s, 3>) -> Result<Matrix<'s, 8, 3>> {
//!     x.matmul(w)?.add(b)?.relu()
//! }
//!
//! # fn main() -> Result<()> {
//! let device = Device::cpu()?;
//! let session = Session::eager(&device);
//! let ones = |dims: &[usize]| session.full(dims, 1.0);
//! // The one check at run time: a value from outside has the shape its type says.
//! let (x, w, b) = (ones(&[8, 2])?.typed()?, ones(&[2, 3])?.typed()?, ones(&[3])?.typed()?);
//! assert_eq!(layer(x, w, b)?.sum()?.item()?, 72.0);
//! assert!(ones(&[3, 2])?.typed::<Matrix<2, 3>>().is_err());
//! # Ok(())
//! # }
//! ```
//!
//! With `w: Matrix<'s, 3, 2>` the function above does not compile: expected `Typed<'_, (Size<2>, _)>`, found
//! `Typed<'_, (Size<3>, Size<2>)>`.
//!
//! # Shapes
//!
//! A shape is a tuple of dimensions, outermost first: `(Size<8>, Size<2>)`, or [`Rank2<8, 2>`](Rank2) for short.
//! [`Matrix<8, 2>`](Matrix) is a tensor of that shape. A dimension that the compiler does not know is [`Dyn`], or your
//! own type ([`Dim`]): `(Dyn, Size<2>)` is any number of pairs. Dynamic dimensions are compared at run time, with the
//! session's errors. [`Typed::retype`] converts between known and dynamic dimensions.
//!
//! # When it is checked
//!
//! What a type can express (equal shapes, inner sizes of products, axes, layers in sequence) is checked with the types:
//! in the editor and by `cargo check`. Stable Rust computes sums and products of sizes (reshapes, slices,
//! concatenation, convolutions, pooling) only when it generates code. Errors there appear in `cargo build` and
//! `cargo test`, in the form
//!
//! ```text
//! error[E0080]: evaluation panicked: reshape: [3, 4] cannot become [2, 5]: they have 12 and 10 elements
//! ```
//!
//! with a last note that points at the caller. Since types cannot express such sums, the caller names the result type
//! (usually implied by how the result is used), and the compiler checks it.
//!
//! # What is left out
//!
//! Methods whose effect on a shape depends on numbers or lists given at run time have no typed form, since it would say
//! no more than the untyped one: reductions over several axes (for all of them, [`Typed::reshape`] to `(Dyn,)` first),
//! reductions with `keepdim` ([`Typed::unsqueeze`] restores the axes), strided slices, diagonals, windows with dilation
//! or groups, indices of several axes for one axis, lists of pieces of different sizes, einsum. Masks in
//! [`AttentionOptions`] and numbers given at run time (eps, shifts, labels) are checked at run time. Converting back
//! and forth is free: [`Typed::into_untyped`] and [`Var::typed`].
//!
//! [`AttentionOptions`]: crate::session::AttentionOptions

pub(crate) mod assert;
mod dims;
pub mod graph;
mod images;
mod index;
mod layers;
mod layout;
pub mod list;
mod losses;
mod operators;
mod ops;

pub use dims::{
    AxisEntries, AxisEntry, Broadcast, Convolved, Dim, Dims, Dyn, EndsIn, HasAxis, Insert, NewAxis, Pooled,
    Push, Size, Transpose,
};
pub use graph::{CompiledGraph, CompiledScalar, Context, Erase, GraphData, Shapes, ToTyped, Value};
pub use images::{Kernels, OutputPaddings, Paddings, Strides};
pub use layers::{
    AvgPool2d, Build, Conv2d, Embedding, Flatten, Gelu, LayerNorm, Linear, LogSoftmax, MaxPool2d, Module,
    Param, Relu, Sigmoid, Silu, Softmax, Softplus, Tanh,
};
pub use list::{Cons, Nil, TList, TListOf, tlist};
pub use losses::{Each, ReduceTo, ToMean, ToSum};
pub use ops::{Axis, Groups, Heads, Kernel, OutputPadding, Padding, Stride, Times};

use crate::device::{DType, Meta};
use crate::error::{Error, ErrorKind, Result};
use crate::scalar::Scalar as Number;
use crate::session::{Grads, Session, Var};
use crate::shape::Shape;
use std::fmt;
use std::marker::PhantomData;

/// The shape of a vector.
pub type Rank1<const N: usize> = (Size<N>,);
/// The shape of a matrix of `M` rows and `N` columns.
pub type Rank2<const M: usize, const N: usize> = (Size<M>, Size<N>);
/// A shape of three axes.
pub type Rank3<const A: usize, const B: usize, const C: usize> = (Size<A>, Size<B>, Size<C>);
/// A shape of four axes.
pub type Rank4<const A: usize, const B: usize, const C: usize, const D: usize> =
    (Size<A>, Size<B>, Size<C>, Size<D>);
/// A shape of five axes.
pub type Rank5<const A: usize, const B: usize, const C: usize, const D: usize, const E: usize> =
    (Size<A>, Size<B>, Size<C>, Size<D>, Size<E>);
/// A shape of six axes.
pub type Rank6<
    const A: usize,
    const B: usize,
    const C: usize,
    const D: usize,
    const E: usize,
    const F: usize,
> = (Size<A>, Size<B>, Size<C>, Size<D>, Size<E>, Size<F>);
/// A shape of seven axes.
pub type Rank7<
    const A: usize,
    const B: usize,
    const C: usize,
    const D: usize,
    const E: usize,
    const F: usize,
    const G: usize,
> = (Size<A>, Size<B>, Size<C>, Size<D>, Size<E>, Size<F>, Size<G>);
/// A shape of eight axes.
pub type Rank8<
    const A: usize,
    const B: usize,
    const C: usize,
    const D: usize,
    const E: usize,
    const F: usize,
    const G: usize,
    const H: usize,
> = (Size<A>, Size<B>, Size<C>, Size<D>, Size<E>, Size<F>, Size<G>, Size<H>);

/// One number.
pub type Scalar<'s> = Typed<'s, ()>;
/// A vector of `N` elements.
pub type Vector<'s, const N: usize> = Typed<'s, Rank1<N>>;
/// A matrix of `M` rows and `N` columns.
pub type Matrix<'s, const M: usize, const N: usize> = Typed<'s, Rank2<M, N>>;
/// Any number of rows of `N` elements.
pub type Rows<'s, const N: usize> = Typed<'s, (Dyn, Size<N>)>;
/// A class for each of `B` rows.
pub type Labels<'s, const B: usize> = Typed<'s, Rank1<B>, u32>;

/// The element type of a tensor: `f32` numbers, or `u32` indices.
pub trait Element {
    /// The device's element type.
    const DTYPE: DType;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}

impl Element for u32 {
    const DTYPE: DType = DType::U32;
}

// Names in this module that messages show, above all this one and `Size`, are no other type's, in this crate or the
// standard library: the compiler then prints them without a path.
/// A [`Var`] with its shape `S` in its type. Copying it copies the handle, not the value.
#[repr(transparent)]
pub struct Typed<'s, S, E = f32> {
    var: Var<'s>,
    is: PhantomData<(S, E)>,
}

impl<S, E> Clone for Typed<'_, S, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S, E> Copy for Typed<'_, S, E> {}

impl<S: Dims, E> fmt::Debug for Typed<'_, S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of shape {}", self.var, sizes(S::DIMS))
    }
}

/// Prints like the untyped handle; downloads the elements.
impl<S, E> fmt::Display for Typed<'_, S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.var.fmt(f)
    }
}

/// A shape as text, with question marks for unknown dimensions.
fn sizes(dims: &[Option<usize>]) -> String {
    let words: Vec<String> = dims.iter().map(|d| d.map_or("?".to_string(), |n| n.to_string())).collect();
    format!("[{}]", words.join(", "))
}

/// Errors unless a value has the shape and element type of its type.
#[track_caller]
fn check<S: Dims, E: Element>(meta: Meta) -> Result<()> {
    meta.dtype.require(E::DTYPE, "typed", 0)?;
    let dims = meta.shape.dims();
    let agree = |(known, d): (&Option<usize>, &usize)| known.is_none_or(|n| n == *d);
    if dims.len() == S::DIMS.len() && S::DIMS.iter().zip(dims).all(agree) {
        return Ok(());
    }
    let why = format!("the value has shape {}, its type says {}", meta.shape, sizes(S::DIMS));
    Err(Error::argument("typed", "shape", why))
}

/// Checks shape and element type.
impl<'s, S: Dims, E: Element> TryFrom<Var<'s>> for Typed<'s, S, E> {
    type Error = Error;

    #[track_caller]
    fn try_from(var: Var<'s>) -> Result<Self> {
        check::<S, E>(var.meta()?)?;
        Ok(Typed { var, is: PhantomData })
    }
}

impl<'s, S, E> From<Typed<'s, S, E>> for Var<'s> {
    fn from(tensor: Typed<'s, S, E>) -> Var<'s> {
        tensor.var
    }
}

impl<'s, S: Dims, E: Element> Typed<'s, S, E> {
    /// A value that is known to have this type.
    pub(crate) fn trust(var: Var<'s>) -> Self {
        debug_assert_eq!(var.meta().and_then(check::<S, E>), Ok(()));
        Typed { var, is: PhantomData }
    }

    /// A value whose type the compiler has checked, if it knew all the sizes; otherwise checked now.
    #[track_caller]
    fn trust_if(known: bool, var: Var<'s>) -> Result<Self> {
        if known { Ok(Typed::trust(var)) } else { Typed::try_from(var) }
    }

    /// The handle without the type.
    pub fn into_untyped(self) -> Var<'s> {
        self.var
    }

    /// The session it belongs to.
    pub fn session(self) -> &'s Session {
        self.var.session()
    }

    /// The shape, with all sizes.
    #[track_caller]
    pub fn shape(self) -> Result<Shape> {
        self.var.shape()
    }

    /// The same tensor with a type that knows more or less of its shape. What both types know is compared at compile
    /// time, what only the new one knows is checked now.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// use dittograd::typed::{Matrix, Rank2, Rows};
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let rows: Rows<4> = session.full(&[3, 4], 1.0)?.typed()?;
    /// let matrix: Matrix<3, 4> = rows.retype()?;
    /// assert!(rows.retype::<Rank2<5, 4>>().is_err());
    /// // matrix.retype::<Rank2<3, 5>>() does not compile: retype: [3, 4] cannot be [3, 5]
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn retype<T: Dims>(self) -> Result<Typed<'s, T, E>> {
        const { assert::compatible("retype", S::DIMS, T::DIMS) };
        Typed::trust_if(const { assert::unknown(S::DIMS) == 0 }, self.var)
    }
}

impl<'s, S: Dims> Typed<'s, S> {
    /// Integers as indices: [`Var::to_index`]. Waits for the device.
    #[track_caller]
    pub fn to_index(self) -> Result<Typed<'s, S, u32>> {
        Ok(Typed::trust(self.var.to_index()?))
    }

    /// The value as a host tensor. Waits for the device.
    #[track_caller]
    pub fn value<T: Number>(self) -> Result<crate::tensor::Tensor<T>> {
        self.var.value()
    }

    /// The handle of an operand that broadcasts to this one. Sizes that the compiler does not know are compared now:
    /// the session would broadcast a dynamic dimension of 1.
    #[track_caller]
    fn operand<R: Dims + Broadcast<S>, E: Element>(self, other: Typed<'s, R, E>) -> Result<Var<'s>> {
        if const { assert::unknown(R::DIMS) > 0 } {
            let (left, right) = (self.shape()?, other.shape()?);
            if !left.dims().ends_with(right.dims()) {
                let why = "dynamic dimensions differ";
                return Err(Error::new("typed", ErrorKind::Shapes { why, left, right }));
            }
        }
        Ok(other.var)
    }
}

impl<'s> Scalar<'s> {
    /// The number. Waits for the device.
    #[track_caller]
    pub fn item(self) -> Result<f32> {
        self.var.item()
    }

    /// [`Var::backward`]. Only for scalars.
    #[track_caller]
    pub fn backward(self) -> Result<Grads> {
        self.var.backward()
    }

    /// [`Var::backward_retain`].
    #[track_caller]
    pub fn backward_retain(self) -> Result<Grads> {
        self.var.backward_retain()
    }

    /// The gradient with respect to a tensor, with its shape. It can be differentiated again: [`Session::grad`].
    #[track_caller]
    pub fn grad<S: Dims>(self, by: Typed<'s, S>) -> Result<Typed<'s, S>> {
        Ok(Typed::trust(self.session().grad(self.var, &[by.var])?[0]))
    }
}

impl<S: Dims> Typed<'_, S, u32> {
    /// The indices as a host tensor. Waits for the device.
    #[track_caller]
    pub fn indices(self) -> Result<crate::tensor::Tensor<u32>> {
        self.var.indices()
    }
}

// A row: name, op, numbers, further tensors.
macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident $op:ident { $($attr:ident),* } ($($rest:ident),*);)*) => {
        // The operators of the standard library are there too; methods chain without parentheses.
        #[allow(clippy::should_implement_trait)]
        impl<'s, S: Dims> Typed<'s, S> {$(
            $(#[$doc])*
            $(#[doc = concat!("\n\n`", stringify!($rest), "` has the same shape, or its last axes.")])*
            #[track_caller]
            pub fn $name(
                self $(, $attr: f64)* $(, $rest: Typed<'s, impl Dims + Broadcast<S>>)*
            ) -> Result<Typed<'s, S>> {
                Ok(Typed::trust(self.var.$name($($attr,)* $(self.operand($rest)?),*)?))
            }
        )*}
    };
}
// The elementwise methods, from the same rows as those of `Var`.
dittograd_ops::with_rows!(methods);
// Further methods of `Var` that keep the shape.
methods! {
    /// The larger of two elements: another name of [`Typed::max`].
    maximum Var {} (other);
    /// The smaller of two elements: another name of [`Typed::min`].
    minimum Var {} (other);
    /// Linear interpolation from this tensor to `end`: [`Var::lerp`].
    lerp Var { weight } (end);
    /// 1 where an element is NaN, else 0.
    isnan Var {} ();
    /// Clamps to `[-1, 1]`.
    hardtanh Var {} ();
    /// Clamps to `[0, 6]`.
    relu6 Var {} ();
    /// A tensor of this shape with every element `value`.
    full_like Var { value } ();
    /// A tensor of this shape with every element 0.
    zeros_like Var {} ();
    /// A tensor of this shape with every element 1.
    ones_like Var {} ();
    /// Softmax along the last axis.
    softmax Var {} ();
    /// Logarithm of the softmax along the last axis.
    log_softmax Var {} ();
    /// [`Var::dropout`].
    dropout Var { p } ();
    /// The same value, cut off from gradients.
    detach Var {} ();
    /// [`Var::tracked`]: the value in a form that can be differentiated by.
    tracked Var {} ();
}

macro_rules! creations {
    ($($(#[$doc:meta])* $name:ident($($arg:ident),*);)*) => {
        /// Creates tensors in a session. The compiler must know all of their shape.
        impl<'s, S: Dims> Typed<'s, S> {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(session: &'s Session $(, $arg: f64)*) -> Result<Self> {
                const { assert::all_known(stringify!($name), S::DIMS) };
                let dims: Vec<usize> = S::DIMS.iter().copied().flatten().collect();
                Ok(Typed::trust(session.$name(&dims $(, $arg)*)?))
            }
        )*}
    };
}

creations! {
    /// Every element `value`.
    full(value);
    /// Every element 0.
    zeros();
    /// Every element 1.
    ones();
    /// Uniform draws in `[0, 1)`.
    uniform();
    /// Uniform draws from `lo` to `hi`.
    uniform_range(lo, hi);
    /// Normal draws.
    normal(mean, std);
    /// Ones with probability `keep`, and zeros: [`Session::bernoulli`].
    bernoulli(keep);
}
