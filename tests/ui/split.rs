//@ build
//~ split: 1 and 2 elements of axis 1 make 3, but the type says 4
use dittograd::error::Result;
use dittograd::typed::{Axis, Matrix};

pub fn cut(x: Matrix<'_, 3, 4>) -> Result<(Matrix<'_, 3, 1>, Matrix<'_, 3, 2>)> {
    x.split(Axis::<1>)
}
