//! The operators of [`Var`](crate::session::Var), `+`, `-`, `*`, `/`, with shapes in types. The right operand has the
//! shape of the left one, or its last axes. Operands may be a `Result` or an `f64` as there.

use super::{Broadcast, Dims, Typed};
use crate::error::Result;
use std::ops::{Add, Div, Mul, Neg, Sub};

macro_rules! operators {
    ($($trait:ident $name:ident $op:tt;)*) => {$(
        #[doc = concat!("[`Typed::", stringify!($name), "`].")]
        impl<'s, S: Dims, R: Dims + Broadcast<S>> $trait<Typed<'s, R>> for Typed<'s, S> {
            type Output = Result<Typed<'s, S>>;

            #[track_caller]
            fn $name(self, other: Typed<'s, R>) -> Result<Typed<'s, S>> {
                Typed::$name(self, other)
            }
        }

        #[doc = concat!("[`Typed::", stringify!($name), "`] with a value that may have failed.")]
        impl<'s, S: Dims, R: Dims + Broadcast<S>> $trait<Result<Typed<'s, R>>> for Typed<'s, S> {
            type Output = Result<Typed<'s, S>>;

            #[track_caller]
            fn $name(self, other: Result<Typed<'s, R>>) -> Result<Typed<'s, S>> {
                Typed::$name(self, other?)
            }
        }

        #[doc = concat!("[`Typed::", stringify!($name), "`] of a value that may have failed.")]
        impl<'s, S: Dims, R: Dims + Broadcast<S>> $trait<Typed<'s, R>> for Result<Typed<'s, S>> {
            type Output = Result<Typed<'s, S>>;

            #[track_caller]
            fn $name(self, other: Typed<'s, R>) -> Result<Typed<'s, S>> {
                Typed::$name(self?, other)
            }
        }

        /// With a number as the right operand.
        impl<'s, S: Dims> $trait<f64> for Typed<'s, S> {
            type Output = Result<Typed<'s, S>>;

            #[track_caller]
            fn $name(self, number: f64) -> Result<Typed<'s, S>> {
                Ok(Typed::trust((self.var $op number)?))
            }
        }

        /// With a number as the left operand.
        impl<'s, S: Dims> $trait<Typed<'s, S>> for f64 {
            type Output = Result<Typed<'s, S>>;

            #[track_caller]
            fn $name(self, value: Typed<'s, S>) -> Result<Typed<'s, S>> {
                Ok(Typed::trust((self $op value.var)?))
            }
        }
    )*};
}

operators! { Add add +; Sub sub -; Mul mul *; Div div /; }

/// [`Typed::neg`].
impl<'s, S: Dims> Neg for Typed<'s, S> {
    type Output = Result<Typed<'s, S>>;

    #[track_caller]
    fn neg(self) -> Result<Typed<'s, S>> {
        Typed::neg(self)
    }
}
