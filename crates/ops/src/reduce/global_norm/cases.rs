//! What the checks run these ops on.

use super::GlobalNorm;
use crate::cases::depth;
use crate::cases::{Bound, Cases, Reject, Sample, SampleIn, edge_dims};
use crate::dims;
use dittograd_device::Meta;
use dittograd_numerics::rng::Stream;
use dittograd_numerics::shape::Shape;

impl Cases for GlobalNorm {
    fn samples() -> Vec<Sample> {
        let cases: [&[&[usize]]; 7] = [
            &[&[]],
            &[&[7]],
            &[&[2, 3], &[0, 3], &[5]],
            &[&[0], &[1024], &[0], &[0]],
            &[&[1023], &[1025], &[3, 1024], &[]],
            &[&[31], &[32], &[33]],
            &[&[2][..]; 33],
        ];
        cases.iter().map(|shapes| sample(shapes.iter().map(|d| dims(d)))).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let shapes: Vec<Shape> = (0..1 + stream.below(9)).map(|_| dims(&edge_dims(0, 3, stream))).collect();
        Some(sample(shapes))
    }

    fn rejects() -> Vec<Reject> {
        vec![
            Reject::new(GlobalNorm, vec![], "Arity"),
            Reject::new(GlobalNorm, vec![Meta::f32(dims(&[3])), Meta::u32(dims(&[3]))], "DType"),
        ]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        let most = ins.iter().map(|m| m.shape.numel()).max().unwrap_or(0);
        Bound { ulps: 6.0, terms: 6.0 + depth(most) + depth(ins.len()) }
    }
}

pub(super) fn sample(shapes: impl IntoIterator<Item = Shape>) -> Sample {
    Sample::new(GlobalNorm, shapes.into_iter().map(SampleIn::any).collect())
}
