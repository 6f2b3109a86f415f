//@ build
//~ reshape: [3, 4] cannot become [2, 5]: they have 12 and 10 elements
use dittograd::error::Result;
use dittograd::typed::Matrix;

pub fn cut(x: Matrix<'_, 3, 4>) -> Result<Matrix<'_, 2, 5>> {
    x.reshape()
}
