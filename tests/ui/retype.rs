//@ build
//~ retype: [?, 4] cannot be [3, 5]
use dittograd::error::Result;
use dittograd::typed::{Matrix, Rows};

pub fn known(x: Rows<'_, 4>) -> Result<Matrix<'_, 3, 5>> {
    x.retype()
}
