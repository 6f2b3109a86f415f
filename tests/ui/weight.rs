//@ check
//~ expected `2`, found `3`
//~ expected struct `Typed<'_, (Size<_>, Size<2>)>`
use dittograd::typed::{Matrix, Rows, Vector};

fn layer<'s>(x: Rows<'s, 2>, w: Matrix<'s, 5, 3>, b: Vector<'s, 5>) {
    let _ = x.linear(w, b);
}
