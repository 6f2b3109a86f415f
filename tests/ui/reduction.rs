//@ check
//~ expected `Typed<'_, ()>`, found `Typed<'_, (Size<3>, Size<4>)>`
use dittograd::error::Result;
use dittograd::typed::{Each, Matrix, Scalar};

fn loss<'s>(x: Matrix<'s, 3, 4>, target: Matrix<'s, 3, 4>) -> Result<Scalar<'s>> {
    let loss: Scalar<'s> = x.l1_loss(target, Each)?;
    Ok(loss)
}
