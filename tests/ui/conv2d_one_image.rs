//@ build
//~ conv2d: width 8 with kernel 2, stride 1 and padding 0 becomes 7, but the type says 8
use dittograd::error::Result;
use dittograd::typed::{Padding, Rank3, Rank4, Stride, Typed};

pub fn filter<'s>(
    x: Typed<'s, Rank3<3, 9, 8>>,
    kernel: Typed<'s, Rank4<5, 3, 3, 2>>,
) -> Result<Typed<'s, Rank3<5, 5, 8>>> {
    x.conv2d(kernel, None, (Stride::<2>, Stride::<1>), (Padding::<1>, Padding::<0>))
}
