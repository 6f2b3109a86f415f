//@ check
//~ no method named `backward` found for struct `Typed<'_, (Size<8>,)>`
use dittograd::typed::Vector;

fn gradient(losses: Vector<'_, 8>) {
    let _ = losses.backward();
}
