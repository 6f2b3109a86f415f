//@ build
//~ flatten: the axes of [?, 8, 12, 12] behind the first have 1152 elements, but the type says 1125
use dittograd::error::Result;
use dittograd::typed::{Size, Dyn, Flatten, Module, Rows, Typed};

pub fn flat(x: Typed<'_, (Dyn, Size<8>, Size<12>, Size<12>)>) -> Result<Rows<'_, 1125>> {
    Flatten::<1125>.forward(x)
}
