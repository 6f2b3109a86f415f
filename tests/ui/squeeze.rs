//@ check
//~ expected struct `Size<1>`
use dittograd::typed::Matrix;

fn flat(x: Matrix<'_, 3, 1>) {
    let _ = x.squeeze::<0>();
}
