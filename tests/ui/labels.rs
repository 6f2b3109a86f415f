//@ check
//~ expected `8`, found `9`
//~ expected struct `Typed<'_, (Size<8>,), _>`
use dittograd::typed::{Labels, Matrix};

fn loss<'s>(logits: Matrix<'s, 8, 3>, labels: Labels<'s, 9>) {
    let _ = logits.cross_entropy(labels);
}
