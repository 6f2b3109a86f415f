//@ check
//~ the shape `(Size<3>, Size<4>)` has no axis 2
use dittograd::typed::Matrix;

fn sums(x: Matrix<'_, 3, 4>) {
    let _ = x.cumsum::<2>();
}
