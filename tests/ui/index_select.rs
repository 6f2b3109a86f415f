//@ check
//~ expected `Typed<'_, (_,), u32>`, found `Typed<'_, (Size<2>,)>`
use dittograd::typed::{Axis, Matrix, Vector};

fn rows<'s>(x: Matrix<'s, 3, 4>, places: Vector<'s, 2>) {
    let _ = x.index_select(places, Axis::<0>);
}
