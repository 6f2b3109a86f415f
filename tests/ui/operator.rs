//@ check
//~ shapes do not fit: `(Size<4>, Size<3>)` does not broadcast to `(Size<3>, Size<4>)`
use dittograd::typed::Matrix;

fn sum<'s>(a: Matrix<'s, 3, 4>, b: Matrix<'s, 4, 3>) {
    let _ = a + b;
}
