//! What the checks run these ops on.

use super::Linear;
use crate::cases::{Bound, Cases, EDGES, INNER, Reject, Sample, SampleIn, VOLUME, WORK, pick, sample};
use crate::dims;
use crate::matmul::plan::Problem;
use dittograd_device::Meta;
use dittograd_numerics::digits::Digits;
use dittograd_numerics::rng::Stream;
use dittograd_numerics::{K_CHUNK, Numerics};

impl Problem {
    pub(super) fn bound(&self) -> Bound {
        // A chain of K_CHUNK roundings, then one per chunk, then the bias.
        Bound { ulps: 1.0, terms: (self.k.min(K_CHUNK) + self.k / K_CHUNK + 2) as f64 }
    }
}

/// Sizes of a product that is not too much work, around the edges of tiles and of chunks of k.
pub(super) fn random_sizes(batch: usize, stream: &mut Stream) -> (usize, usize, usize) {
    loop {
        let (m, n) = (pick(&EDGES, stream), pick(&EDGES, stream));
        let k = if stream.below(2) == 0 { pick(&INNER, stream) } else { pick(&EDGES, stream) };
        let largest = (m * n).max(m * k).max(k * n);
        if batch * largest <= VOLUME && batch * m * n * k <= WORK {
            return (m, n, k);
        }
    }
}

impl Cases for Linear {
    fn samples() -> Vec<Sample> {
        let cases: [(&[usize], usize); 9] = [
            (&[3], 4),
            (&[5, 3], 2),
            (&[2, 3, 7], 5),
            (&[128, 784], 10),
            (&[0, 3], 2),
            (&[4, 0], 3),
            (&[33, 65], 31),
            (&[2, 1500], 3),
            (&[129, 130], 127),
        ];
        cases
            .iter()
            .map(|(x, out)| {
                let x = dims(x);
                let ins = [x, dims(&[*out, x.last()]), dims(&[*out])].map(SampleIn::any).to_vec();
                Sample::new(Linear, ins)
            })
            .collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (m, n, k) = random_sizes(1, stream);
        Some(sample(Linear, &[&[m, k], &[n, k], &[n]]))
    }

    fn rejects() -> Vec<Reject> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        vec![
            Reject::new(Linear, vec![f(&[2, 3]), f(&[4, 3])], "Arity"),
            Reject::new(Linear, vec![f(&[]), f(&[4, 3]), f(&[4])], "Rank"),
            Reject::new(Linear, vec![f(&[3]), f(&[3]), f(&[3])], "Rank"),
            Reject::new(Linear, vec![f(&[2, 5]), f(&[4, 3]), f(&[4])], "Shapes"),
            Reject::new(Linear, vec![f(&[2, 3]), f(&[4, 3]), f(&[3])], "Shapes"),
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0, 2], vec![1, 2]]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        Linear::of(ins).map_or(Bound::EXACT, |p| p.bound())
    }

    fn in_digits(&self, ins: &[Meta], numerics: Numerics) -> Option<(Digits, usize)> {
        let p = Linear::of(ins).ok()?;
        Some((p.digits(numerics)?, p.k))
    }
}
