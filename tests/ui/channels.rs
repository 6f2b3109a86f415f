//@ check
//~ expected `3`, found `5`
//~ expected struct `Typed<'_, (Size<_>, Size<3>, _)>`
use dittograd::error::Result;
use dittograd::typed::{Padding, Rank3, Stride, Typed};

pub fn filter<'s>(
    x: Typed<'s, Rank3<2, 3, 9>>,
    kernel: Typed<'s, Rank3<3, 5, 3>>,
) -> Result<Typed<'s, Rank3<2, 3, 9>>> {
    x.conv1d(kernel, None, Stride::<1>, Padding::<1>)
}
