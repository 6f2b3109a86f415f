//@ build
//~ narrow: elements 3..5 do not lie in axis 1 of 4
use dittograd::error::Result;
use dittograd::typed::Matrix;

pub fn columns(x: Matrix<'_, 3, 4>) -> Result<Matrix<'_, 3, 2>> {
    x.narrow::<1, 3, 2>()
}
