//@ check
//~ expected `4`, found `5`
use dittograd::typed::{Axis, Typed, Vector};

fn rows<'s>(a: Vector<'s, 4>, b: Vector<'s, 5>) {
    let _ = Typed::stack([a, b], Axis::<0>);
}
