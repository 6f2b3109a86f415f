//@ build
//~ concat: 3 and 2 elements of axis 0 make 5, but the type says 6
use dittograd::error::Result;
use dittograd::typed::{Axis, Matrix};

pub fn join<'s>(a: Matrix<'s, 3, 4>, b: Matrix<'s, 2, 4>) -> Result<Matrix<'s, 6, 4>> {
    a.concat(b, Axis::<0>)
}
