//@ check
//~ expected `Typed<'_, (Size<8>,), u32>`, found `Typed<'_, (Size<9>,), u32>`
use dittograd::typed::{Labels, Matrix};

fn loss<'s>(logits: Matrix<'s, 8, 3>, labels: Labels<'s, 9>) {
    let _ = logits.cross_entropy(labels);
}
