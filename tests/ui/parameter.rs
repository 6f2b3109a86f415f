//@ build
//~ parameter: the sizes of [?, 4] must all be known here
use dittograd::prelude::{Params, Result};
use dittograd::typed::{Size, Dyn, Param};

pub fn weight(params: &mut Params) -> Result<Param<(Dyn, Size<4>)>> {
    Param::zeros(params, "w")
}
