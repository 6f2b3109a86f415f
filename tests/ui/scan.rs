//@ build
//~ selective_scan: a must have the last axis of the value, or all of them
use dittograd::error::Result;
use dittograd::typed::{Matrix, Rank3, Typed, Vector};

pub fn scan<'s>(
    x: Typed<'s, Rank3<2, 5, 3>>,
    a: Matrix<'s, 5, 3>,
    b: Vector<'s, 3>,
    h0: Matrix<'s, 2, 3>,
) -> Result<Typed<'s, Rank3<2, 5, 3>>> {
    x.selective_scan(a, b, h0)
}
