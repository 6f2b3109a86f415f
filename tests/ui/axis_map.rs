//@ build
//~ broadcast_axes: axis 0 of [3] does not broadcast to axis 1 of [2, 4]
use dittograd::error::Result;
use dittograd::typed::{Axis, Matrix, NewAxis, Vector};

pub fn rows(x: Vector<'_, 3>) -> Result<Matrix<'_, 2, 4>> {
    x.broadcast_axes((NewAxis, Axis::<0>))
}
