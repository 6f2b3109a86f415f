//@ check
//~ the shape `(Size<3>, Size<4>)` cannot have a new axis 3
use dittograd::typed::Matrix;

fn column(x: Matrix<'_, 3, 4>) {
    let _ = x.unsqueeze::<3>();
}
