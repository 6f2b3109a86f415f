//@ check
//~ `(Size<3>, Size<9>, Size<8>)` with a kernel `(Size<5>, Size<4>, Size<3>, Size<3>)` does not give
use dittograd::error::Result;
use dittograd::typed::{Padding, Rank3, Rank4, Stride, Typed};

pub fn filter<'s>(
    x: Typed<'s, Rank3<3, 9, 8>>,
    kernel: Typed<'s, Rank4<5, 4, 3, 3>>,
) -> Result<Typed<'s, Rank3<5, 9, 8>>> {
    x.conv(kernel, None, Stride::<1>, Padding::<1>)
}
