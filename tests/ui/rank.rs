//@ check
//~ is not a shape
//~ a shape is a tuple of up to ten dimensions
use dittograd::typed::{Size, Vector};

type N = Size<1>;

fn large(x: Vector<'_, 1>) {
    let _ = x.reshape::<(N, N, N, N, N, N, N, N, N, N, N)>();
}
