//! What the checks run these ops on.

use super::Map;
use crate::cases::{Bound, Cases, Reject, Sample, SampleIn, edge_dims};
use crate::dims;
use crate::pointwise::expression::Pointwise;
use dittograd_device::Meta;
use dittograd_numerics::rng::Stream;
use dittograd_numerics::scalar::Real;

/// A program of three inputs and up to three results for the checks: a step that others read, one that none does, and
/// an input.
pub(crate) fn sample_formula(results: usize) -> Pointwise {
    Pointwise::trace(3, |x| {
        let wave = (x[0] * x[1]).tanh();
        // Of inputs only: the first may be another op's value, whose last bits no reference has.
        let last = Real::where_gt(x[1], x[2], wave, x[2] * Real::c(0.5)) + x[0];
        vec![last, wave, x[2]][..results].to_vec()
    })
}

impl Cases for Map {
    fn samples() -> Vec<Sample> {
        let cases: [(&[usize], [&[usize]; 3]); 6] = [
            (&[5, 7], [&[5, 7], &[7], &[]]),
            (&[4, 64], [&[4, 64], &[4, 1], &[64]]),
            (&[3, 5, 8], [&[5, 1], &[3, 1, 8], &[3, 5, 8]]),
            (&[2, 0, 3], [&[2, 0, 3], &[1, 3], &[]]),
            (&[], [&[], &[], &[]]),
            (&[130, 516], [&[130, 1], &[516], &[130, 516]]),
        ];
        cases
            .iter()
            .map(|(out, ins)| {
                Sample::new(
                    Map::new(sample_formula(1), dims(out)),
                    ins.iter().map(|d| SampleIn::any(dims(d))).collect(),
                )
            })
            .chain([&[4, 7][..], &[4, 64], &[3, 5, 8], &[2, 0, 3]].iter().map(|out| {
                Sample::new(
                    Map::new(sample_formula(3), dims(out)),
                    [&out[..], &[1], &out[1..]].iter().map(|d| SampleIn::any(dims(d))).collect(),
                )
            }))
            .collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let to = edge_dims(1, 3, stream);
        let mut from = || {
            let mut from: Vec<usize> = to[stream.below(to.len() + 1)..].to_vec();
            from.iter_mut().for_each(|d| *d = if stream.below(3) == 0 { 1 } else { *d });
            SampleIn::any(dims(&from))
        };
        let ins = (0..3).map(|_| from()).collect();
        let several = dims(&to).numel().is_multiple_of(4) && stream.below(2) == 0;
        Some(Sample::new(Map::new(sample_formula(if several { 3 } else { 1 }), dims(&to)), ins))
    }

    fn rejects() -> Vec<Reject> {
        let op = Map::new(Pointwise::trace(1, |x| vec![x[0].exp()]), dims(&[2, 3]));
        let f = |d: &[usize]| Meta::f32(dims(d));
        vec![
            Reject::new(op.clone(), vec![], "Arity"),
            Reject::new(op.clone(), vec![f(&[2])], "Shapes"),
            Reject::new(op.clone(), vec![f(&[4, 2, 3])], "Shapes"),
            Reject::new(op, vec![Meta::u32(dims(&[2, 3]))], "DType"),
        ]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound { ulps: 4.0, terms: 16.0 }
    }
}
