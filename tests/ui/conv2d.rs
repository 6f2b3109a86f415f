//@ build
//~ conv2d: height 9 with kernel 3, stride 2 and padding 1 becomes 5, but the type says 4
use dittograd::error::Result;
use dittograd::typed::{Padding, Rank4, Stride, Typed};

pub fn filter<'s>(
    x: Typed<'s, Rank4<2, 3, 9, 9>>,
    kernel: Typed<'s, Rank4<5, 3, 3, 3>>,
) -> Result<Typed<'s, Rank4<2, 5, 4, 5>>> {
    x.conv2d(kernel, None, Stride::<2>, Padding::<1>)
}
