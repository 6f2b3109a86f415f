//@ check
//~ expected `6`, found `5`
use dittograd::typed::{Rank3, Typed, Vector};

fn norm<'s>(x: Typed<'s, Rank3<2, 6, 5>>, w: Vector<'s, 5>) {
    let _ = x.batch_norm(w, w, 1e-5);
}
