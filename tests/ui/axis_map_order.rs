//@ build
//~ broadcast_axes: the map names axis 1 of [2, 3] where axis 0 is due
use dittograd::error::Result;
use dittograd::typed::{Axis, Matrix, NewAxis, Rank3, Typed};

pub fn turned(x: Matrix<'_, 2, 3>) -> Result<Typed<'_, Rank3<3, 5, 2>>> {
    x.broadcast_axes((Axis::<1>, NewAxis, Axis::<0>))
}
