//@ build
//~ chunk: 3 times 5 elements of axis 1 make 15, but the type says 12
use dittograd::error::Result;
use dittograd::typed::{Axis, Rows};

pub fn parts(x: Rows<'_, 12>) -> Result<[Rows<'_, 5>; 3]> {
    x.chunk(Axis::<1>)
}
