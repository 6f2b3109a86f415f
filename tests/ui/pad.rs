//@ build
//~ pad: 1, 4 and 2 elements of axis 1 make 7, but the type says 8
use dittograd::error::Result;
use dittograd::typed::{Axis, Matrix, Padding};

pub fn wide(x: Matrix<'_, 3, 4>) -> Result<Matrix<'_, 3, 8>> {
    x.pad(Axis::<1>, Padding::<1>, Padding::<2>, 0.0)
}
