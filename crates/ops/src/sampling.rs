//! Shapes that the checks draw: around the edges of vectors, warps, tiles and chunks.

use super::{AnyOp, Sample, SampleIn};
use dittograd_numerics::rng::Stream;
use dittograd_numerics::shape::Shape;

/// Dimensions around the edges of vectors, warps, tiles and chunks.
pub(crate) const EDGES: [usize; 21] =
    [1, 2, 3, 5, 7, 8, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257, 1023, 1025];
/// Lengths at which one row is split between threads.
pub(crate) const LONG: [usize; 4] = [131_071, 131_072, 131_073, 150_001];
/// Inner sizes of products, around the chunk of k.
pub(crate) const INNER: [usize; 7] = [1, 7, 128, 1023, 1024, 1025, 2049];
/// Most elements of a drawn value.
pub(crate) const VOLUME: usize = 200_000;
/// Most multiplications of a drawn product.
pub(crate) const WORK: usize = 3_000_000;

/// One of `from`.
pub(crate) fn pick(from: &[usize], stream: &mut Stream) -> usize {
    from[stream.below(from.len())]
}

/// A shape of `least` to `most` axes and at most [`VOLUME`] elements; one in three is a single long axis,
/// with or without axes of one element after it.
pub(crate) fn edge_dims(least: usize, most: usize, stream: &mut Stream) -> Vec<usize> {
    let rank = least + stream.below(most - least + 1);
    if stream.below(3) == 0 {
        let mut dims = vec![1; rank.max(1)];
        dims[0] = pick(&LONG, stream);
        return dims;
    }
    let mut dims: Vec<usize> = Vec::new();
    let mut volume = 1;
    for _ in 0..rank {
        let mut d = pick(&EDGES, stream);
        while volume * d > VOLUME {
            d = pick(&EDGES, stream);
        }
        volume *= d;
        dims.push(d);
    }
    dims
}

/// [`edge_dims`] as a shape.
pub(crate) fn edge_shape(least: usize, most: usize, stream: &mut Stream) -> Shape {
    super::dims(&edge_dims(least, most, stream))
}

/// The op with number inputs of these dimensions.
pub(crate) fn sample<O>(op: O, ins: &[&[usize]]) -> Sample<O> {
    Sample { op, ins: ins.iter().map(|d| SampleIn::any(super::dims(d))).collect() }
}

/// `count` random cases of an op, and one more with a long axis where the op's shapes can have one.
#[doc(hidden)]
pub fn random_cases(name: &str, count: usize, stream: &mut Stream) -> Vec<Sample<AnyOp>> {
    let is_long = |s: &Sample<AnyOp>| {
        s.ins.iter().any(|i| i.meta().shape.dims().first().is_some_and(|d| LONG.contains(d)))
    };
    let mut cases: Vec<_> = (0..count).filter_map(|_| AnyOp::random(name, stream)).collect();
    // One shape in three is long, so so many tries miss it only where there is none.
    cases.extend((0..40).filter_map(|_| AnyOp::random(name, stream)).find(is_long));
    cases
}
