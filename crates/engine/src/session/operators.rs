//! Arithmetic operators of [`Var`]. Its documentation explains them.

use super::Var;
use dittograd_numerics::error::Result;
use std::ops::{Add, Div, Mul, Neg, Sub};

macro_rules! operators {
    ($($trait:ident $name:ident |$x:ident, $c:ident| $right:expr, $left:expr;)*) => {$(
        #[doc = concat!("[`Var::", stringify!($name), "`].")]
        impl<'s> $trait for Var<'s> {
            type Output = Result<Var<'s>>;

            #[track_caller]
            fn $name(self, other: Var<'s>) -> Result<Var<'s>> {
                Var::$name(self, other)
            }
        }

        #[doc = concat!("[`Var::", stringify!($name), "`] with a value that may have failed.")]
        impl<'s> $trait<Result<Var<'s>>> for Var<'s> {
            type Output = Result<Var<'s>>;

            #[track_caller]
            fn $name(self, other: Result<Var<'s>>) -> Result<Var<'s>> {
                Var::$name(self, other?)
            }
        }

        #[doc = concat!("[`Var::", stringify!($name), "`] of a value that may have failed.")]
        impl<'s> $trait<Var<'s>> for Result<Var<'s>> {
            type Output = Result<Var<'s>>;

            #[track_caller]
            fn $name(self, other: Var<'s>) -> Result<Var<'s>> {
                Var::$name(self?, other)
            }
        }

        /// With a number as the right operand.
        impl<'s> $trait<f64> for Var<'s> {
            type Output = Result<Var<'s>>;

            #[track_caller]
            fn $name(self, number: f64) -> Result<Var<'s>> {
                let ($x, $c) = (self, number);
                $right
            }
        }

        /// With a number as the left operand.
        impl<'s> $trait<Var<'s>> for f64 {
            type Output = Result<Var<'s>>;

            #[track_caller]
            fn $name(self, value: Var<'s>) -> Result<Var<'s>> {
                let ($x, $c) = (value, self);
                $left
            }
        }
    )*};
}

// Division by a number is a division, not a product with the inverse, which would round twice.
operators! {
    Add add |x, c| x.add_scalar(c), x.add_scalar(c);
    Sub sub |x, c| x.add_scalar(-c), x.session.full(&[], c)?.sub(x);
    Mul mul |x, c| x.scale(c), x.scale(c);
    Div div |x, c| x.div(x.session.full(&[], c)?), x.session.full(&[], c)?.div(x);
}

/// [`Var::neg`].
impl<'s> Neg for Var<'s> {
    type Output = Result<Var<'s>>;

    #[track_caller]
    fn neg(self) -> Result<Var<'s>> {
        Var::neg(self)
    }
}
