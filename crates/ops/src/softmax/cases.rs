//! What the checks run these ops on.

use super::{MaskedSoftmax, Softmax};
use crate::cases::{Bound, Cases, Reject, Sample, SampleIn, edge_shape};
use crate::dims;
use dittograd_device::Meta;
use dittograd_numerics::rng::Stream;
use dittograd_numerics::shape::Shape;

pub(super) fn row_shapes() -> Vec<Shape> {
    let d: [&[usize]; 17] = [
        &[],
        &[1],
        &[10],
        &[31],
        &[32],
        &[33],
        &[3, 64],
        &[0, 5],
        &[2, 3, 129],
        &[5, 1000],
        &[2, 1024],
        &[2, 1025],
        &[1, 5000],
        &[130, 7],
        &[3, 300],
        &[2, 257],
        &[1, 24577],
    ];
    d.iter().map(|d| dims(d)).collect()
}

pub(super) const AXIS_CASES: [(&[usize], usize); 14] = [
    (&[4], 0),
    (&[3, 5], 0),
    (&[3, 5], 1),
    (&[1, 7], 0),
    (&[7, 1], 0),
    (&[2, 10, 9], 1),
    (&[32, 33], 0),
    (&[33, 3], 0),
    (&[3, 40, 5], 1),
    (&[0, 4, 3], 1),
    (&[2, 3, 4, 5], 2),
    (&[3, 65, 70], 1),
    (&[1100, 3], 0),
    (&[40, 1100], 0),
];

impl Cases for MaskedSoftmax {
    fn samples() -> Vec<Sample<MaskedSoftmax>> {
        let bits = |d: &[usize]| SampleIn::Idx(dims(d), 2);
        let with = |d: &[usize], mask: SampleIn| Sample {
            op: MaskedSoftmax,
            ins: vec![SampleIn::any(dims(d)), mask],
        };
        vec![
            with(&[], SampleIn::any(dims(&[]))),
            with(&[1], bits(&[1])),
            with(&[7, 2], bits(&[7, 2])),
            with(&[10], SampleIn::Num(dims(&[10]), (0.0, 0.0))),
            with(&[0, 5], bits(&[5])),
            with(&[2, 3, 33], bits(&[3, 33])),
            with(&[4, 5], SampleIn::any(dims(&[5]))),
            with(&[3, 2, 4], SampleIn::Idx(dims(&[3, 2, 4]), 1)),
            with(&[5, 300], bits(&[300])),
            with(&[2, 3, 301], bits(&[3, 301])),
            with(&[3, 1025], bits(&[3, 1025])),
            with(&[2, 2, 1100], bits(&[2, 1100])),
            with(&[2, 24577], bits(&[24577])),
        ]
    }

    fn random(stream: &mut Stream) -> Option<Sample<MaskedSoftmax>> {
        let shape = edge_shape(1, 3, stream);
        let from = stream.below(shape.rank());
        let mask = SampleIn::Idx(dims(&shape.dims()[from..]), 2);
        Some(Sample { op: MaskedSoftmax, ins: vec![SampleIn::any(shape), mask] })
    }

    fn rejects() -> Vec<Reject<MaskedSoftmax>> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = MaskedSoftmax;
        vec![
            Reject { op, ins: vec![f(&[3])], want: "Arity" },
            Reject { op, ins: vec![f(&[3]), f(&[4])], want: "Shapes" },
            Reject { op, ins: vec![f(&[3]), f(&[])], want: "Shapes" },
            Reject { op, ins: vec![f(&[3]), f(&[2, 3])], want: "Shapes" },
            Reject { op, ins: vec![f(&[2, 2, 3]), f(&[2, 1, 3])], want: "Shapes" },
            Reject { op, ins: vec![f(&[3, 0]), f(&[3, 0])], want: "Argument" },
            Reject { op, ins: vec![Meta::u32(dims(&[3])), f(&[3])], want: "DType" },
        ]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        Softmax.bound(&ins[..1])
    }
}
