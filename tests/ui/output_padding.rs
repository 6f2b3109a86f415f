//@ build
//~ conv_transpose1d: an output padding of 2 must be below the stride 2
use dittograd::error::Result;
use dittograd::typed::{OutputPadding, Padding, Rank3, Stride, Typed};

pub fn grow<'s>(
    x: Typed<'s, Rank3<2, 5, 5>>,
    kernel: Typed<'s, Rank3<5, 3, 3>>,
) -> Result<Typed<'s, Rank3<2, 3, 11>>> {
    x.conv_transpose1d(kernel, None, Stride::<2>, Padding::<1>, OutputPadding::<2>)
}
