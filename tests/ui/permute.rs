//@ build
//~ permute: axis 0 is named twice
use dittograd::error::Result;
use dittograd::typed::Matrix;

pub fn turn(x: Matrix<'_, 3, 4>) -> Result<Matrix<'_, 3, 3>> {
    x.permute::<0, 0>()
}
