//! Lists of tensors of different shapes, each with its own type. [`TList`] has their methods; the other traits say
//! which lists have which.

use super::{Dims, Param, Typed};
use crate::error::Result;
use crate::session::Session;

/// The empty list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Nil;

/// A list: its first element, and the rest. [`tlist!`] makes lists, [`TListOf!`] spells their types.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cons<H, T> {
    /// The first element.
    pub head: H,
    /// The list of the others.
    pub tail: T,
}

/// The list of some values: `tlist![a, b, c]`.
#[doc(hidden)]
#[macro_export]
macro_rules! __tlist {
    () => { $crate::typed::Nil };
    ($head:expr $(, $tail:expr)* $(,)?) => {
        $crate::typed::Cons { head: $head, tail: $crate::typed::tlist![$($tail),*] }
    };
}
pub use crate::__tlist as tlist;

/// The type of a list: `TListOf![Matrix<'s, 3, 4>, Vector<'s, 4>]`.
#[doc(hidden)]
#[macro_export]
macro_rules! __tlist_of {
    () => { $crate::typed::Nil };
    ($head:ty $(, $tail:ty)* $(,)?) => {
        $crate::typed::Cons<$head, $crate::typed::TListOf![$($tail),*]>
    };
}
pub use crate::__tlist_of as TListOf;

/// The first position in a list, as a type.
#[derive(Clone, Copy, Debug)]
pub struct First;

/// The position after `I`.
#[derive(Clone, Copy, Debug)]
pub struct Next<I>(I);

/// A number that names a position: see [`Position`].
#[derive(Clone, Copy, Debug)]
pub struct Index<const N: usize>;

/// The position that a number names. Numbers up to 31 are supported; beyond that, split the list.
pub trait Position {
    /// The position as a type.
    type Place;
}

macro_rules! positions {
    ($first:literal $($n:literal)*) => {
        impl Position for Index<$first> {
            type Place = First;
        }
        positions! { @ $first $($n)* }
    };
    (@ $before:literal $n:literal $($rest:literal)*) => {
        impl Position for Index<$n> {
            type Place = Next<<Index<$before> as Position>::Place>;
        }
        positions! { @ $n $($rest)* }
    };
    (@ $last:literal) => {};
}
positions! { 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 }

/// A list with an element at position `I`.
#[diagnostic::on_unimplemented(
    message = "the list ends before that element",
    note = "elements are counted from 0"
)]
pub trait Get<I> {
    /// Its type.
    type Item;
    /// The element.
    fn at(&self) -> &Self::Item;
}

#[diagnostic::do_not_recommend]
impl<H, T> Get<First> for Cons<H, T> {
    type Item = H;
    fn at(&self) -> &H {
        &self.head
    }
}

#[diagnostic::do_not_recommend]
impl<I, H, T: Get<I>> Get<Next<I>> for Cons<H, T> {
    type Item = T::Item;
    fn at(&self) -> &T::Item {
        self.tail.at()
    }
}

/// A list that can be split before position `I`.
#[diagnostic::on_unimplemented(message = "the list is too short to be split there")]
pub trait SplitAt<I> {
    /// The elements before.
    type Front;
    /// The others.
    type Back;
    /// Both parts.
    fn cut(self) -> (Self::Front, Self::Back);
}

#[diagnostic::do_not_recommend]
impl<L> SplitAt<First> for L {
    type Front = Nil;
    type Back = L;
    fn cut(self) -> (Nil, L) {
        (Nil, self)
    }
}

#[diagnostic::do_not_recommend]
impl<I, H, T: SplitAt<I>> SplitAt<Next<I>> for Cons<H, T> {
    type Front = Cons<H, T::Front>;
    type Back = T::Back;
    fn cut(self) -> (Self::Front, T::Back) {
        let (front, back) = self.tail.cut();
        (Cons { head: self.head, tail: front }, back)
    }
}

/// A list that another can be appended to.
pub trait Append<R> {
    /// The type of both together.
    type Output;
    /// Both together.
    fn before(self, other: R) -> Self::Output;
}

impl<R> Append<R> for Nil {
    type Output = R;
    fn before(self, other: R) -> R {
        other
    }
}

impl<R, H, T: Append<R>> Append<R> for Cons<H, T> {
    type Output = Cons<H, T::Output>;
    fn before(self, other: R) -> Self::Output {
        Cons { head: self.head, tail: self.tail.before(other) }
    }
}

/// The methods of lists.
///
/// ```
/// use dittograd::prelude::*;
/// use dittograd::typed::{Matrix, TList, TListOf, Vector, tlist};
///
/// fn two_layers<'s>(
///     x: Matrix<'s, 8, 2>,
///     p: TListOf![Matrix<'s, 2, 5>, Vector<'s, 5>, Matrix<'s, 5, 3>, Vector<'s, 3>],
/// ) -> Result<Matrix<'s, 8, 3>> {
///     let h = x.matmul(*p.get::<0>())?.add(*p.get::<1>())?.tanh()?;
///     h.matmul(*p.get::<2>())?.add(*p.get::<3>())
/// }
///
/// # fn main() -> Result<()> {
/// let session = Session::eager(&Device::cpu()?);
/// let ones = |dims: &[usize]| session.full(dims, 1.0);
/// let first = tlist![ones(&[2, 5])?.typed()?, ones(&[5])?.typed()?];
/// let params = first.append(tlist![ones(&[5, 3])?.typed()?]).snoc(ones(&[3])?.typed()?);
/// two_layers(ones(&[8, 2])?.typed()?, params)?;
/// let (weights, rest) = params.split::<3>();
/// assert_eq!((weights.len(), rest.get::<0>().shape()?.dims()), (3, &[3][..]));
/// # Ok(())
/// # }
/// ```
pub trait TList: Sized {
    /// How many elements it has.
    const LEN: usize;

    /// How many elements it has.
    fn len(&self) -> usize {
        Self::LEN
    }

    /// Whether it has none.
    fn is_empty(&self) -> bool {
        Self::LEN == 0
    }

    /// Element `I`, counted from 0.
    fn get<const I: usize>(&self) -> &<Self as Get<<Index<I> as Position>::Place>>::Item
    where
        Index<I>: Position,
        Self: Get<<Index<I> as Position>::Place>,
    {
        self.at()
    }

    /// Appends an element.
    fn snoc<X>(self, last: X) -> Self::Output
    where
        Self: Append<Cons<X, Nil>>,
    {
        self.before(Cons { head: last, tail: Nil })
    }

    /// Appends another list.
    fn append<R>(self, other: R) -> Self::Output
    where
        Self: Append<R>,
    {
        self.before(other)
    }

    /// The first `I` elements, and the others.
    fn split<const I: usize>(
        self,
    ) -> (
        <Self as SplitAt<<Index<I> as Position>::Place>>::Front,
        <Self as SplitAt<<Index<I> as Position>::Place>>::Back,
    )
    where
        Index<I>: Position,
        Self: SplitAt<<Index<I> as Position>::Place>,
    {
        self.cut()
    }

    /// The values of parameters in a session.
    fn on<'s>(&self, session: &'s Session) -> Result<Self::Tensors>
    where
        Self: OnSession<'s>,
    {
        self.tensors(session)
    }
}

impl TList for Nil {
    const LEN: usize = 0;
}

impl<H, T: TList> TList for Cons<H, T> {
    const LEN: usize = 1 + T::LEN;
}

/// A list of parameters, whose values in a session are a list of tensors.
pub trait OnSession<'s> {
    /// The list of tensors.
    type Tensors;
    /// The value of each parameter.
    fn tensors(&self, session: &'s Session) -> Result<Self::Tensors>;
}

impl<'s> OnSession<'s> for Nil {
    type Tensors = Nil;
    fn tensors(&self, _: &'s Session) -> Result<Nil> {
        Ok(Nil)
    }
}

impl<'s, S: Dims, T: OnSession<'s>> OnSession<'s> for Cons<Param<S>, T> {
    type Tensors = Cons<Typed<'s, S>, T::Tensors>;
    fn tensors(&self, session: &'s Session) -> Result<Self::Tensors> {
        Ok(Cons { head: self.head.on(session)?, tail: self.tail.tensors(session)? })
    }
}
