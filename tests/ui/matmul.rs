//@ check
//~ expected `Typed<'_, (Size<4>, _)>`, found `Typed<'_, (Size<5>, Size<2>)>`
use dittograd::typed::Matrix;

fn product<'s>(a: Matrix<'s, 3, 4>, b: Matrix<'s, 5, 2>) {
    let _ = a.matmul(b);
}
