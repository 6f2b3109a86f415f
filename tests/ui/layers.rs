//@ check
//~ the last dimension of `(Size<8>, Size<64>)` is not `Size<32>`
//~ Linear<32, 3>` to implement `dittograd::typed::Module<Typed<'_, (Size<8>, Size<64>)>>`
use dittograd::typed::{Linear, Matrix, Module, Relu};

fn run(net: (Linear<2, 64>, Relu, Linear<32, 3>), x: Matrix<'_, 8, 2>) {
    let _ = net.forward(x);
}
