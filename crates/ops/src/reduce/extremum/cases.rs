//! What the checks run these ops on.

use super::{Pick, Place};
use crate::cases::{Bound, Cases, Reject, Sample, SampleIn};
use crate::reduce::{check_axes, count};
use crate::{Op, dims};
use dittograd_device::Meta;
/// Cases for the two ops below: axes and dimensions.
pub(super) const PLACES: [(&[usize], &[usize]); 8] = [
    (&[0], &[1]),
    (&[0], &[33]),
    (&[1], &[5, 31]),
    (&[0], &[33, 5]),
    (&[1], &[3, 7, 4]),
    (&[0, 1], &[4, 5]),
    (&[1, 2], &[2, 3, 2, 70]),
    (&[1], &[0, 3]),
];

impl Cases for Place {
    fn samples() -> Vec<Sample> {
        let sample = |(axes, d): (&[usize], &[usize])| {
            let (shape, axes) = (dims(d), axes.to_vec());
            let kept = check_axes(Self::NAME, &axes, &shape).unwrap_or_default();
            // One place in a few is outside.
            let ins = vec![SampleIn::any(kept), SampleIn::Idx(kept, count(&shape, &axes) as u32 + 1)];
            Sample::new(Place { shape, axes }, ins)
        };
        PLACES.map(sample).into()
    }

    fn rejects() -> Vec<Reject> {
        let (f, u) = (|d: &[usize]| Meta::f32(dims(d)), |d: &[usize]| Meta::u32(dims(d)));
        let op = |axes: &[usize]| Place { shape: dims(&[2, 3]), axes: axes.to_vec() };
        vec![
            Reject::new(op(&[1]), vec![f(&[2])], "Arity"),
            Reject::new(op(&[1]), vec![f(&[2]), f(&[2])], "DType"),
            Reject::new(op(&[1]), vec![f(&[2]), u(&[3])], "Shapes"),
            Reject::new(op(&[1]), vec![f(&[3]), u(&[2])], "Shapes"),
            Reject::new(op(&[2]), vec![f(&[2]), u(&[2])], "Axis"),
            Reject::new(op(&[]), vec![f(&[2, 3]), u(&[2, 3])], "Argument"),
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0]]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}

impl Cases for Pick {
    fn samples() -> Vec<Sample> {
        let sample = |(axes, d): (&[usize], &[usize])| {
            let (shape, axes) = (dims(d), axes.to_vec());
            let kept = check_axes(Self::NAME, &axes, &shape).unwrap_or_default();
            let ins = vec![SampleIn::any(shape), SampleIn::Idx(kept, count(&shape, &axes) as u32 + 1)];
            Sample::new(Pick { axes }, ins)
        };
        PLACES.map(sample).into()
    }

    fn rejects() -> Vec<Reject> {
        let (f, u) = (|d: &[usize]| Meta::f32(dims(d)), |d: &[usize]| Meta::u32(dims(d)));
        let op = |axes: &[usize]| Pick { axes: axes.to_vec() };
        vec![
            Reject::new(op(&[1]), vec![f(&[2, 3])], "Arity"),
            Reject::new(op(&[1]), vec![f(&[2, 3]), f(&[2])], "DType"),
            Reject::new(op(&[1]), vec![f(&[2, 3]), u(&[3])], "Shapes"),
            Reject::new(op(&[2]), vec![f(&[2, 3]), u(&[2])], "Axis"),
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0]]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}
