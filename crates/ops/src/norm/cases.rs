//! What the checks run these ops on.

use crate::cases::{EDGES, SampleIn, VOLUME, pick};
use crate::dims;
use dittograd_numerics::rng::Stream;

/// Shapes the samples are drawn from, with the number of axes that are one row.
pub(super) const SHAPES: [(&[usize], usize); 15] = [
    (&[1], 1),
    (&[7], 1),
    (&[3, 1], 1),
    (&[0, 5], 1),
    (&[2, 3, 5], 2),
    (&[33, 8], 1),
    (&[5, 31], 1),
    (&[2, 32], 1),
    (&[4, 3, 33], 1),
    (&[65, 20], 1),
    (&[2, 300], 1),
    (&[3, 1024], 1),
    (&[34, 1030], 1),
    (&[2, 2, 41, 25], 2),
    (&[1, 9000], 1),
];

pub(super) fn random_shape(stream: &mut Stream) -> ([usize; 2], usize) {
    let width = pick(&EDGES, stream);
    let mut rows = pick(&EDGES, stream);
    while rows * width > VOLUME {
        rows = pick(&EDGES, stream);
    }
    ([rows, width], 1)
}

/// The inputs of a sample: `x`, then so many rows of gain and shift, then `dy` if wanted.
pub(super) fn inputs(d: &[usize], axes: usize, affine: usize, dy: bool) -> Vec<SampleIn> {
    let mut ins = vec![SampleIn::any(dims(d))];
    ins.extend(vec![SampleIn::any(dims(&d[d.len() - axes..])); affine]);
    ins.extend(dy.then(|| SampleIn::any(dims(d))));
    ins
}
