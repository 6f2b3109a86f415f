//@ build
//~ max_pool: width with padding 2 and kernel 2: padding must be at most half of the kernel
use dittograd::error::Result;
use dittograd::typed::{Kernel, Padding, Rank3, Stride, Typed};

pub fn wide(x: Typed<'_, Rank3<3, 8, 8>>) -> Result<Typed<'_, Rank3<3, 7, 11>>> {
    x.max_pool((Kernel::<2>, Kernel::<2>), Stride::<1>, (Padding::<0>, Padding::<2>))
}
