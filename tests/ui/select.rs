//@ build
//~ select: index 3 is outside axis 0 of 3
use dittograd::error::Result;
use dittograd::typed::{Matrix, Vector};

pub fn row(x: Matrix<'_, 3, 4>) -> Result<Vector<'_, 4>> {
    x.select::<0, 3>()
}
