//@ check
//~ `(Stride<2>, Stride<1>, Stride<1>)` gives no number for each of 2 axes
use dittograd::error::Result;
use dittograd::typed::{Padding, Rank3, Rank4, Stride, Typed};

pub fn filter<'s>(
    x: Typed<'s, Rank3<3, 9, 8>>,
    kernel: Typed<'s, Rank4<5, 3, 3, 3>>,
) -> Result<Typed<'s, Rank3<5, 9, 8>>> {
    x.conv2d(kernel, None, (Stride::<2>, Stride::<1>, Stride::<1>), Padding::<1>)
}
