//! What the checks run these ops on.

use super::{Channels, Moments};
use crate::cases::depth;
use crate::cases::{Bound, Cases, EDGES, Reject, Sample, SampleIn, VOLUME, pick};
use crate::dims;
use dittograd_device::Meta;
use dittograd_numerics::rng::Stream;
use dittograd_numerics::sum::CHUNK;

impl Channels {
    /// Roundings of the statistics: twice a chunk's sum and that over the chunks.
    pub(super) fn depth(&self) -> f64 {
        2.0 * (depth(self.s.min(CHUNK)) + depth(self.group_runs() * self.chunks()))
    }
}

/// Shapes the samples are drawn from, with a number of groups.
pub(super) const SHAPES: [(&[usize], usize); 14] = [
    (&[1, 1], 1),
    (&[5, 4], 2),
    (&[40, 3], 3),
    (&[2, 6, 4], 3),
    (&[3, 2, 3, 5], 1),
    (&[0, 3, 2], 3),
    (&[2, 3, 0], 1),
    (&[2, 0, 3], 1),
    (&[1, 3, 4, 4], 3),
    (&[2, 4, 2, 17], 2),
    (&[33, 5, 2], 5),
    (&[2, 3, 1024], 1),
    (&[2, 2, 41, 26], 2),
    (&[40, 2, 35], 1),
];

/// The eps of a sample. Where a group may hold just two numbers, and those may be equal, a small one would bend
/// the value within the step of a difference.
pub(super) fn sample_eps(i: usize) -> f32 {
    match i {
        0..3 | 10 => 0.25,
        _ if i.is_multiple_of(2) => 1e-5,
        _ => 1e-6,
    }
}

/// The inputs of a sample: `x`, then so many vectors of gain and shift, then `dy` if wanted.
pub(super) fn inputs(d: &[usize], affine: usize, dy: bool) -> Vec<SampleIn> {
    let mut ins = vec![SampleIn::any(dims(d))];
    ins.extend(vec![SampleIn::any(dims(&d[1..2])); affine]);
    ins.extend(dy.then(|| SampleIn::any(dims(d))));
    ins
}

pub(super) fn random_shape(stream: &mut Stream) -> [usize; 3] {
    let s = pick(&EDGES, stream);
    let c = [1, 2, 4, 6, 33][stream.below(5)];
    let mut n = pick(&EDGES, stream);
    while n * c * s > VOLUME {
        n = pick(&EDGES, stream);
    }
    [n, c, s]
}

impl Cases for Moments {
    fn samples() -> Vec<Sample> {
        SHAPES.iter().map(|(d, _)| Sample::new(Moments, inputs(d, 0, false))).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        Some(Sample::new(Moments, inputs(&random_shape(stream), 0, false)))
    }

    fn rejects() -> Vec<Reject> {
        vec![
            Reject::new(Moments, vec![], "Arity"),
            Reject::new(Moments, vec![Meta::f32(dims(&[3]))], "Rank"),
            Reject::new(Moments, vec![Meta::u32(dims(&[2, 3]))], "DType"),
        ]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        Bound { ulps: 2.0, terms: 12.0 + Channels::of(&ins[0].shape, None, 0.0).depth() }
    }
}
