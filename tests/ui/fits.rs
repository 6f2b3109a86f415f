//@ fits
use dittograd::error::Result;
use dittograd::typed::{Axis, Matrix, Vector};

pub fn all<'s>(a: Matrix<'s, 3, 4>, b: Matrix<'s, 4, 2>, row: Vector<'s, 2>) -> Result<Vector<'s, 12>> {
    let c = a.matmul(b)?.add(row)?;
    let d: Matrix<6, 2> = c.concat(c, Axis::<0>)?;
    d.reshape()
}
