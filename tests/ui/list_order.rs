//@ check
//~ expected struct `Typed<'_, (Size<3>, Size<4>)>`
use dittograd::typed::{Matrix, TListOf, Vector, tlist};

fn model<'s>(_: TListOf![Matrix<'s, 3, 4>, Vector<'s, 4>]) {}

fn run<'s>(weight: Matrix<'s, 3, 4>, bias: Vector<'s, 4>) {
    model(tlist![bias, weight]);
}
