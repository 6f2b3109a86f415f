//! What the checks run these ops on.

use super::{Irfft, Lines, Rfft};
use crate::cases::{Bound, Cases, Reject, Sample, pick, sample};
use crate::dims;
use crate::spectral::MAX_GRID;
use crate::spectral::cases::chain;
use dittograd_device::Meta;
use dittograd_numerics::rng::Stream;

impl Lines {
    /// Whole numbers stay exact where the table holds whole numbers and quarters.
    pub(super) fn linear(&self) -> Vec<Vec<usize>> {
        if [1, 2, 4].contains(&self.n) { vec![vec![0]] } else { Vec::new() }
    }

    pub(super) fn bound(&self) -> Bound {
        let terms = match self.steps() {
            None => chain(2 * self.n),
            Some(s) => chain(2 * s.n1) + chain(2 * s.n2) + 6.0,
        };
        Bound { ulps: 1.0, terms: terms + 2.0 }
    }
}

/// Lengths of lines: short, prime, even and odd in either factor.
pub(super) const LENGTHS: [usize; 16] = [1, 2, 3, 4, 5, 8, 31, 64, 128, 129, 131, 144, 200, 225, 256, 390];

impl Cases for Rfft {
    fn samples() -> Vec<Sample> {
        let mut all: Vec<_> = LENGTHS.iter().map(|&n| sample(Rfft { scaled: false }, &[&[2, n]])).collect();
        all.extend([
            sample(Rfft { scaled: false }, &[&[5]]),
            sample(Rfft { scaled: true }, &[&[3, 6]]),
            sample(Rfft { scaled: true }, &[&[3, 144]]),
            sample(Rfft { scaled: false }, &[&[0, 6]]),
            sample(Rfft { scaled: false }, &[&[2, 3, 9]]),
        ]);
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (batch, n) = (pick(&[1, 3, 17], stream), pick(&[7, 127, 160, 512, 630, 1000, 1024], stream));
        Some(sample(Rfft { scaled: stream.below(2) == 1 }, &[&[batch, n]]))
    }

    fn rejects() -> Vec<Reject> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = Rfft { scaled: false };
        vec![
            Reject::new(op, vec![], "Arity"),
            Reject::new(op, vec![f(&[])], "Rank"),
            Reject::new(op, vec![f(&[3, 0])], "Argument"),
            Reject::new(op, vec![f(&[MAX_GRID + 1])], "Argument"),
            Reject::new(op, vec![Meta::u32(dims(&[4]))], "DType"),
        ]
    }

    fn linear(&self, ins: &[Meta]) -> Vec<Vec<usize>> {
        self.of(ins).map_or(Vec::new(), |lines| lines.linear())
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        self.of(ins).map_or(Bound::EXACT, |lines| lines.bound())
    }
}

impl Cases for Irfft {
    fn samples() -> Vec<Sample> {
        let one = |lead: &[usize], n: usize, scaled: bool| {
            sample(Irfft { n, scaled }, &[&[lead, &[n / 2 + 1, 2]].concat()])
        };
        let mut all: Vec<_> = LENGTHS.iter().map(|&n| one(&[2], n, true)).collect();
        all.extend([
            one(&[], 5, true),
            one(&[3], 6, false),
            one(&[3], 144, false),
            one(&[0], 6, true),
            one(&[2, 3], 9, true),
        ]);
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (batch, n) = (pick(&[1, 3, 17], stream), pick(&[7, 127, 160, 512, 630, 1000, 1024], stream));
        Some(sample(Irfft { n, scaled: stream.below(2) == 1 }, &[&[batch, n / 2 + 1, 2]]))
    }

    fn rejects() -> Vec<Reject> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = |n| Irfft { n, scaled: true };
        vec![
            Reject::new(op(4), vec![], "Arity"),
            Reject::new(op(0), vec![f(&[1, 2])], "Argument"),
            Reject::new(op(4), vec![f(&[3])], "Rank"),
            Reject::new(op(4), vec![f(&[5, 4, 2])], "Shapes"),
            Reject::new(op(4), vec![f(&[5, 3, 3])], "Shapes"),
            Reject::new(op(4), vec![Meta::u32(dims(&[3, 2]))], "DType"),
        ]
    }

    fn linear(&self, ins: &[Meta]) -> Vec<Vec<usize>> {
        self.of(ins).map_or(Vec::new(), |lines| lines.linear())
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        self.of(ins).map_or(Bound::EXACT, |lines| lines.bound())
    }
}
