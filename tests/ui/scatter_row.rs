//@ build
//~ scatter_add_row: index 3 is outside axis 0 of 3
use dittograd::error::Result;
use dittograd::torchlean::TypedScatterAddRow;
use dittograd::typed::{Matrix, Vector};

pub fn add<'s>(x: Matrix<'s, 3, 4>, row: Vector<'s, 4>) -> Result<Matrix<'s, 3, 4>> {
    x.scatter_add_row::<3>(row)
}
