//@ build
//~ max_pool2d: height 9 with kernel 3, stride 2 and padding 1 becomes 5, but the type says 4
use dittograd::error::Result;
use dittograd::typed::{Kernel, Padding, Rank3, Stride, Typed};

pub fn half(x: Typed<'_, Rank3<3, 9, 8>>) -> Result<Typed<'_, Rank3<3, 4, 4>>> {
    x.max_pool2d_pad((Kernel::<3>, Kernel::<2>), Stride::<2>, (Padding::<1>, Padding::<0>))
}
