//@ check
//~ the last dimension of `(Dyn, Size<2>)` is not `Size<3>`
use dittograd::typed::{Matrix, Rows, Vector};

fn layer<'s>(x: Rows<'s, 2>, w: Matrix<'s, 5, 3>, b: Vector<'s, 5>) {
    let _ = x.linear(w, b);
}
