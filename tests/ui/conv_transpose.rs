//@ build
//~ conv_transpose2d: height 5 with kernel 3, stride 2, padding 1 and output padding 0 becomes 9, but the type says 10
use dittograd::error::Result;
use dittograd::typed::{OutputPadding, Padding, Rank4, Stride, Typed};

pub fn grow<'s>(
    x: Typed<'s, Rank4<2, 5, 5, 5>>,
    kernel: Typed<'s, Rank4<5, 3, 3, 3>>,
) -> Result<Typed<'s, Rank4<2, 3, 10, 9>>> {
    x.conv_transpose2d(kernel, None, Stride::<2>, Padding::<1>, OutputPadding::<0>)
}
