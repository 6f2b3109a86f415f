//@ check
//~ `<(Size<3>, Size<4>) as HasAxis<0>>::With<Size<2>> == (Size<2>, Size<5>)`
//~ expected `5`, found `4`
use dittograd::error::Result;
use dittograd::typed::{Axis, Matrix};

pub fn join<'s>(a: Matrix<'s, 3, 4>, b: Matrix<'s, 2, 5>) -> Result<Matrix<'s, 5, 4>> {
    a.concat(b, Axis::<0>)
}
