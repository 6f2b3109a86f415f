//@ build
//~ max_pool2d: width 12 with kernel 2, stride 2 and padding 0 becomes 6, but the type says 7
use dittograd::error::Result;
use dittograd::typed::{MaxPool2d, Module, Rank4, Typed};

pub fn half(x: Typed<'_, Rank4<2, 3, 12, 12>>) -> Result<Typed<'_, Rank4<2, 3, 6, 7>>> {
    MaxPool2d::<2, 6, 7>.forward(x)
}
