//@ build
//~ repeat: 3 times 4 elements of axis 0 make 12, but the type says 8
use dittograd::error::Result;
use dittograd::typed::{Axis, Times, Vector};

pub fn tile(x: Vector<'_, 4>) -> Result<Vector<'_, 8>> {
    x.repeat(Axis::<0>, Times::<3>)
}
