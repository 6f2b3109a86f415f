//@ build
//~ group_norm: 6 channels do not divide evenly among 4 groups
use dittograd::error::Result;
use dittograd::typed::{Groups, Rank3, Typed, Vector};

pub fn norm<'s>(x: Typed<'s, Rank3<2, 6, 5>>, w: Vector<'s, 6>) -> Result<Typed<'s, Rank3<2, 6, 5>>> {
    x.group_norm(Groups::<4>, w, w, 1e-5)
}
