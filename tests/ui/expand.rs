//@ build
//~ expand: [3, 2] does not broadcast to [3, 4]
use dittograd::error::Result;
use dittograd::typed::Matrix;

pub fn wide(x: Matrix<'_, 3, 2>) -> Result<Matrix<'_, 3, 4>> {
    x.expand()
}
