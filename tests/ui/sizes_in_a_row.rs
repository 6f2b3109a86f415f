//@ build
//~ max_pool2d: height 24 with kernel 2, stride 2 and padding 0 becomes 12, but the type says 11
use dittograd::error::Result;
use dittograd::typed::{Conv2d, Flatten, Linear, Matrix, MaxPool2d, Module, Rank4, Relu, Typed};

type Net = (Conv2d<1, 8, 5, 24, 24>, Relu, MaxPool2d<2, 11, 12>, Flatten<1056>, Linear<1056, 10>);

pub fn run<'s>(net: &Net, x: Typed<'s, Rank4<2, 1, 28, 28>>) -> Result<Matrix<'s, 2, 10>> {
    net.forward(x)
}
