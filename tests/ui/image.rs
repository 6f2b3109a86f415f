//@ check
//~ expected a tuple with 4 elements, found one with 2 elements
//~ expected struct `Typed<'_, (_, _, _, _)>`
use dittograd::typed::{Matrix, MaxPool2d, Module, Relu};

fn half(x: Matrix<'_, 12, 12>) {
    let _ = (Relu, MaxPool2d::<2, 6, 6>).forward(x);
}
