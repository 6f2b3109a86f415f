//! What the checks run these ops on.

use super::{Full, Permutation, RandInt};
use crate::cases::{Bound, Cases, Reject, Sample, SampleIn, edge_shape, sample_shapes};
use crate::dims;
use dittograd_device::Meta;
use dittograd_numerics::rng::Stream;

impl Cases for Full {
    fn samples() -> Vec<Sample> {
        sample_shapes().into_iter().map(|shape| Sample::new(Full { shape, value: -1.25 }, vec![])).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        Some(Sample::new(Full { shape: edge_shape(1, 3, stream), value: -1.25 }, vec![]))
    }

    fn rejects() -> Vec<Reject> {
        let op = Full { shape: dims(&[2]), value: 0.0 };
        vec![Reject::new(op, vec![Meta::f32(dims(&[2]))], "Arity")]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}

impl Cases for RandInt {
    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }

    fn samples() -> Vec<Sample> {
        let op =
            |(i, shape)| RandInt { shape, seed: 7, counter: i as u64, low: 0, below: 1 + 100 * i as u32 };
        let mut all: Vec<_> =
            sample_shapes().into_iter().enumerate().map(|s| Sample::new(op(s), vec![])).collect();
        all.push(Sample::new(op((2, dims(&[5, 7]))), vec![SampleIn::Idx(dims(&[2]), 1000)]));
        all.push(Sample::new(RandInt { low: 40, ..op((3, dims(&[33]))) }, vec![]));
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let op = RandInt {
            shape: edge_shape(1, 3, stream),
            seed: 7,
            counter: 0,
            low: [0, 7, 40_000][stream.below(3)],
            below: 50_304,
        };
        Some(Sample::new(op, vec![]))
    }

    fn rejects() -> Vec<Reject> {
        let op = RandInt { shape: dims(&[2]), seed: 0, counter: 0, low: 0, below: 3 };
        let u = |d: &[usize]| Meta::u32(dims(d));
        vec![
            Reject::new(op.clone(), vec![u(&[2]), u(&[2])], "Arity"),
            Reject::new(op.clone(), vec![u(&[3])], "Shapes"),
            Reject::new(op.clone(), vec![Meta::f32(dims(&[2]))], "DType"),
            Reject::new(RandInt { below: 0, ..op }, vec![], "Argument"),
            Reject::new(RandInt { low: 3, ..op }, vec![], "Argument"),
        ]
    }
}

impl Cases for Permutation {
    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }

    fn samples() -> Vec<Sample> {
        let op = |(i, n)| Permutation { n, seed: 7, counter: i as u64 };
        let sizes = [0, 1, 2, 33, 64, 255, 257, 4097, 20_000];
        let mut all: Vec<_> = sizes.into_iter().enumerate().map(|s| Sample::new(op(s), vec![])).collect();
        all.push(Sample::new(op((2, 35)), vec![SampleIn::Idx(dims(&[2]), 1000)]));
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let op = Permutation { n: edge_shape(1, 1, stream).numel(), seed: 7, counter: 0 };
        Some(Sample::new(op, vec![]))
    }

    fn rejects() -> Vec<Reject> {
        let op = Permutation { n: 3, seed: 0, counter: 0 };
        let u = |d: &[usize]| Meta::u32(dims(d));
        vec![
            Reject::new(op.clone(), vec![u(&[2]), u(&[2])], "Arity"),
            Reject::new(op.clone(), vec![u(&[3])], "Shapes"),
            Reject::new(op.clone(), vec![Meta::f32(dims(&[2]))], "DType"),
            Reject::new(Permutation { n: u32::MAX as usize, ..op }, vec![], "Argument"),
        ]
    }
}
