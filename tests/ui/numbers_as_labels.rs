//@ check
//~ expected `Typed<'_, (Size<8>,), u32>`, found `Typed<'_, (Size<8>,)>`
use dittograd::typed::{Matrix, Vector};

fn loss<'s>(logits: Matrix<'s, 8, 3>, labels: Vector<'s, 8>) {
    let _ = logits.cross_entropy(labels);
}
