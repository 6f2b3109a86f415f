//! Lists of tensors of different shapes, each with its own type. [`TList`] has their methods; the other traits say
//! which lists have which.
//!
//! A list has any length, but the compiler goes only so deep into types: 128 levels, if the crate says nothing else. So
//! lists of up to 120 elements need nothing, and longer ones `#![recursion_limit = "512"]` at the top of the crate.
//! [`TList::get`] and [`TList::split`] take numbers up to 255; a longer list can be split twice. A list of another length
//! is another type, so a [`GraphData`](super::GraphData) takes the compiler longer the more nodes it has: about 5 s for
//! 60 nodes and 10 s for 100. Nodes of several ops keep it short.

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
    // Eight at a time, since the compiler limits how deep macros go.
    ($a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr, $g:expr, $h:expr, $($tail:expr),+ $(,)?) => {
        $crate::typed::Cons { head: $a, tail: $crate::typed::Cons { head: $b, tail: $crate::typed::Cons {
            head: $c, tail: $crate::typed::Cons { head: $d, tail: $crate::typed::Cons { head: $e,
                tail: $crate::typed::Cons { head: $f, tail: $crate::typed::Cons { head: $g,
                    tail: $crate::typed::Cons { head: $h, tail: $crate::typed::tlist![$($tail),+] } } } }
            }
        } } }
    };
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
    ($a:ty, $b:ty, $c:ty, $d:ty, $e:ty, $f:ty, $g:ty, $h:ty, $($tail:ty),+ $(,)?) => {
        $crate::typed::Cons<$a, $crate::typed::Cons<$b, $crate::typed::Cons<$c, $crate::typed::Cons<$d,
            $crate::typed::Cons<$e, $crate::typed::Cons<$f, $crate::typed::Cons<$g, $crate::typed::Cons<$h,
                $crate::typed::TListOf![$($tail),+]>>>>>>>>
    };
    ($head:ty $(, $tail:ty)* $(,)?) => {
        $crate::typed::Cons<$head, $crate::typed::TListOf![$($tail),*]>
    };
}
pub use crate::__tlist_of as TListOf;

/// A list with an element at position `I`, which is at most 255.
#[diagnostic::on_unimplemented(
    message = "the list ends before that element",
    note = "elements are counted from 0; of a longer list than 256, split off a part first"
)]
pub trait Get<const I: usize> {
    /// Its type.
    type Item;
    /// The element.
    fn at(&self) -> &Self::Item;
}

#[diagnostic::do_not_recommend]
impl<H, T> Get<0> for Cons<H, T> {
    type Item = H;
    fn at(&self) -> &H {
        &self.head
    }
}

/// A list that can be split before position `I`, which is at most 255.
#[diagnostic::on_unimplemented(message = "the list is too short to be split there")]
pub trait SplitAt<const I: usize> {
    /// The elements before.
    type Front;
    /// The others.
    type Back;
    /// Both parts.
    fn cut(self) -> (Self::Front, Self::Back);
}

#[diagnostic::do_not_recommend]
impl<L> SplitAt<0> for L {
    type Front = Nil;
    type Back = L;
    fn cut(self) -> (Nil, L) {
        (Nil, self)
    }
}

/// Eight elements in front of a list.
type Eight<A, B, C, D, E, F, G, H, T> =
    Cons<A, Cons<B, Cons<C, Cons<D, Cons<E, Cons<F, Cons<G, Cons<H, T>>>>>>>>;

// Stable Rust has no `I - 1` in types, so there is an implementation for each number. The first seven go one element
// further, the others eight: the compiler limits how deep implementations go, and each level takes it time.
macro_rules! positions {
    (one $last:literal) => {};
    (one $before:literal $n:literal $($rest:literal)*) => {
        #[diagnostic::do_not_recommend]
        impl<H, T: Get<$before>> Get<$n> for Cons<H, T> {
            type Item = T::Item;
            fn at(&self) -> &T::Item {
                self.tail.at()
            }
        }

        #[diagnostic::do_not_recommend]
        impl<H, T: SplitAt<$before>> SplitAt<$n> for Cons<H, T> {
            type Front = Cons<H, T::Front>;
            type Back = T::Back;
            fn cut(self) -> (Self::Front, T::Back) {
                let (front, back) = self.tail.cut();
                (Cons { head: self.head, tail: front }, back)
            }
        }
        positions! { one $n $($rest)* }
    };
    (eight [$($last:literal)*]) => {};
    (eight [$($before:literal)*] [$($n:literal)*] $($rest:tt)*) => {
        $(
            #[diagnostic::do_not_recommend]
            impl<A, B, C, D, E, F, G, H, T: Get<$before>> Get<$n> for Eight<A, B, C, D, E, F, G, H, T> {
                type Item = T::Item;
                fn at(&self) -> &T::Item {
                    self.tail.tail.tail.tail.tail.tail.tail.tail.at()
                }
            }

            #[diagnostic::do_not_recommend]
            impl<A, B, C, D, E, F, G, H, T: SplitAt<$before>> SplitAt<$n>
                for Eight<A, B, C, D, E, F, G, H, T>
            {
                type Front = Eight<A, B, C, D, E, F, G, H, T::Front>;
                type Back = T::Back;
                fn cut(self) -> (Self::Front, T::Back) {
                    let (eight, rest) = SplitAt::<7>::cut(self);
                    let (front, back) = rest.tail.cut();
                    (eight.before(Cons { head: rest.head, tail: front }), back)
                }
            }
        )*
        positions! { eight [$($n)*] $($rest)* }
    };
}
positions! { one 0 1 2 3 4 5 6 7 }
positions! { eight
    [0 1 2 3 4 5 6 7]
    [8 9 10 11 12 13 14 15]
    [16 17 18 19 20 21 22 23]
    [24 25 26 27 28 29 30 31]
    [32 33 34 35 36 37 38 39]
    [40 41 42 43 44 45 46 47]
    [48 49 50 51 52 53 54 55]
    [56 57 58 59 60 61 62 63]
    [64 65 66 67 68 69 70 71]
    [72 73 74 75 76 77 78 79]
    [80 81 82 83 84 85 86 87]
    [88 89 90 91 92 93 94 95]
    [96 97 98 99 100 101 102 103]
    [104 105 106 107 108 109 110 111]
    [112 113 114 115 116 117 118 119]
    [120 121 122 123 124 125 126 127]
    [128 129 130 131 132 133 134 135]
    [136 137 138 139 140 141 142 143]
    [144 145 146 147 148 149 150 151]
    [152 153 154 155 156 157 158 159]
    [160 161 162 163 164 165 166 167]
    [168 169 170 171 172 173 174 175]
    [176 177 178 179 180 181 182 183]
    [184 185 186 187 188 189 190 191]
    [192 193 194 195 196 197 198 199]
    [200 201 202 203 204 205 206 207]
    [208 209 210 211 212 213 214 215]
    [216 217 218 219 220 221 222 223]
    [224 225 226 227 228 229 230 231]
    [232 233 234 235 236 237 238 239]
    [240 241 242 243 244 245 246 247]
    [248 249 250 251 252 253 254 255]
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
    fn get<const I: usize>(&self) -> &<Self as Get<I>>::Item
    where
        Self: Get<I>,
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
    fn split<const I: usize>(self) -> (<Self as SplitAt<I>>::Front, <Self as SplitAt<I>>::Back)
    where
        Self: SplitAt<I>,
    {
        self.cut()
    }

    /// The values of parameters in a session.
    #[track_caller]
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
    #[track_caller]
    fn tensors(&self, session: &'s Session) -> Result<Self::Tensors>;
}

impl<'s> OnSession<'s> for Nil {
    type Tensors = Nil;
    #[track_caller]
    fn tensors(&self, _: &'s Session) -> Result<Nil> {
        Ok(Nil)
    }
}

impl<'s, S: Dims, T: OnSession<'s>> OnSession<'s> for Cons<Param<S>, T> {
    type Tensors = Cons<Typed<'s, S>, T::Tensors>;
    #[track_caller]
    fn tensors(&self, session: &'s Session) -> Result<Self::Tensors> {
        Ok(Cons { head: self.head.on(session)?, tail: self.tail.tensors(session)? })
    }
}
