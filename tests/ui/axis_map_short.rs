//@ build
//~ broadcast_axes: the map names 1 of the axes of [2, 3]
use dittograd::error::Result;
use dittograd::typed::{Axis, Matrix, NewAxis};

pub fn lost(x: Matrix<'_, 2, 3>) -> Result<Matrix<'_, 2, 5>> {
    x.broadcast_axes((Axis::<0>, NewAxis))
}
