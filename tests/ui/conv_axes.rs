//@ build
//~ conv: axis 3 6 with kernel 2, stride 2 and padding 0 becomes 3, but the type says 4
use dittograd::error::Result;
use dittograd::typed::{Padding, Rank5, Rank6, Stride, Typed};

pub fn filter<'s>(
    x: Typed<'s, Rank5<3, 4, 5, 4, 6>>,
    kernel: Typed<'s, Rank6<2, 3, 2, 2, 2, 2>>,
) -> Result<Typed<'s, Rank5<2, 3, 4, 3, 4>>> {
    x.conv(kernel, None, (Stride::<1>, Stride::<1>, Stride::<1>, Stride::<2>), Padding::<0>)
}
