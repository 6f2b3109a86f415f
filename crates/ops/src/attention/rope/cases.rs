//! What the checks run these ops on.

use super::Rope;
use crate::cases::{Bound, Cases, Reject, Sample, SampleIn};
use crate::dims;
use dittograd_device::Meta;
use dittograd_numerics::rng::Stream;

impl Cases for Rope {
    fn samples() -> Vec<Sample> {
        let cases: [&[usize]; 8] = [
            &[3, 4],
            &[2, 3, 2],
            &[2, 3, 5, 6],
            &[1, 64],
            &[0, 4, 2],
            &[2, 3, 0],
            &[5, 33, 66],
            &[2, 2, 130, 128],
        ];
        let mut all = Vec::new();
        for (i, d) in cases.iter().enumerate() {
            for interleaved in [false, true] {
                let op = Rope { interleaved, inverse: i % 3 == 1 };
                let ins = vec![SampleIn::any(dims(d)), SampleIn::any(dims(&d[d.len() - 2..]))];
                all.push(Sample::new(op, ins));
            }
        }
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (z, n, d) = (1 + stream.below(6), 1 + stream.below(140), 2 + 2 * stream.below(80));
        let op = Rope { interleaved: stream.below(2) == 0, inverse: stream.below(2) == 0 };
        Some(Sample::new(op, vec![SampleIn::any(dims(&[z, n, d])), SampleIn::any(dims(&[n, d]))]))
    }

    fn rejects() -> Vec<Reject> {
        let op = Rope { interleaved: false, inverse: false };
        let f = |d: &[usize]| Meta::f32(dims(d));
        vec![
            Reject::new(op, vec![f(&[3, 4])], "Arity"),
            Reject::new(op, vec![f(&[4]), f(&[1, 4])], "Rank"),
            Reject::new(op, vec![f(&[3, 5]), f(&[3, 5])], "Argument"),
            Reject::new(op, vec![f(&[3, 4]), f(&[2, 4])], "Shapes"),
            Reject::new(op, vec![Meta::u32(dims(&[3, 4])), f(&[3, 4])], "DType"),
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0], vec![1]]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound { ulps: 1.0, terms: 2.0 }
    }
}
