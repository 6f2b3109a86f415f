//@ check
//~ expected `4`, found `3`
use dittograd::error::Result;
use dittograd::typed::{Kernel, Rank3, Stride, Typed};

pub fn half(x: Typed<'_, Rank3<3, 8, 8>>) -> Result<Typed<'_, Rank3<4, 4, 4>>> {
    x.avg_pool2d(Kernel::<2>, Stride::<2>)
}
