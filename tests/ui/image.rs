//@ check
//~ `MaxPool2d<2, 6, 6>` does not take `Typed<'_, (Size<12>, Size<12>)>`
use dittograd::typed::{Matrix, MaxPool2d, Module};

fn half(x: Matrix<'_, 12, 12>) {
    let _ = MaxPool2d::<2, 6, 6>.forward(x);
}
