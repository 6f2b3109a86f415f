//@ build
//~ rfft: 8 points have 5 modes, but the type says 4
use dittograd::error::Result;
use dittograd::typed::{Matrix, Rank3, Typed};

pub fn spectrum(x: Matrix<'_, 3, 8>) -> Result<Typed<'_, Rank3<3, 4, 2>>> {
    x.rfft()
}
