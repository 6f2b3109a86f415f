//@ check
//~ expected `4`, found `5`
//~ expected struct `Typed<'_, (Size<4>, _)>`
use dittograd::typed::Matrix;

fn product<'s>(a: Matrix<'s, 3, 4>, b: Matrix<'s, 5, 2>) {
    let _ = a.matmul(b);
}
