//! What the checks run these ops on.

use super::{
    LogSoftmax, LogSoftmaxAxis, LogSoftmaxAxisBwd, LogSoftmaxBwd, MaskedSoftmax, Softmax, SoftmaxAxis,
    SoftmaxAxisBwd, SoftmaxBwd,
};
use crate::cases::{Bound, Cases, Reject, Sample, SampleIn, depth, edge_shape};
use crate::dims;
use dittograd_device::Meta;
use dittograd_numerics::rng::Stream;
use dittograd_numerics::shape::Shape;

fn row_shapes() -> Vec<Shape> {
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

const AXIS_CASES: [(&[usize], usize); 14] = [
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

macro_rules! last_axis_cases {
    ($($op:ident $arity:literal $bound:expr;)*) => {$(
        impl Cases for $op {
            fn samples() -> Vec<Sample> {
                let ins = |s: Shape| vec![SampleIn::any(s); $arity];
                row_shapes().into_iter().map(|s| Sample::new($op, ins(s))).collect()
            }

            fn random(stream: &mut Stream) -> Option<Sample> {
                Some(Sample::new($op, vec![SampleIn::any(edge_shape(1, 3, stream)); $arity]))
            }

            fn rejects() -> Vec<Reject> {
                let f = |d: &[usize]| Meta::f32(dims(d));
                let mut bad = vec![
                    Reject::new($op, vec![], "Arity"),
                    Reject::new($op, vec![f(&[3, 0]); $arity], "Argument"),
                    Reject::new($op, vec![Meta::u32(dims(&[3])); $arity], "DType"),
                ];
                if $arity == 2 {
                    bad.push(Reject::new($op, vec![f(&[3]), f(&[4])], "Shapes"));
                }
                bad
            }

            fn bound(&self, ins: &[Meta]) -> Bound {
                $bound(ins[0].shape.last())
            }
        }
    )*};
}

macro_rules! any_axis_cases {
    ($($op:ident $arity:literal like $last:ident;)*) => {$(
        impl Cases for $op {
            fn samples() -> Vec<Sample> {
                let one = |(d, axis): &(&[usize], usize)| Sample::new($op { axis: *axis }, vec![SampleIn::any(dims(d)); $arity]);
                AXIS_CASES.iter().map(one).collect()
            }

            fn random(stream: &mut Stream) -> Option<Sample> {
                let shape = edge_shape(2, 3, stream);
                let axis = stream.below(shape.rank());
                Some(Sample::new($op { axis }, vec![SampleIn::any(shape); $arity]))
            }

            fn rejects() -> Vec<Reject> {
                let f = |d: &[usize]| Meta::f32(dims(d));
                let mut bad = vec![
                    Reject::new($op { axis: 0 }, vec![], "Arity"),
                    Reject::new($op { axis: 0 }, vec![f(&[]); $arity], "Axis"),
                    Reject::new($op { axis: 2 }, vec![f(&[3, 2]); $arity], "Axis"),
                    Reject::new($op { axis: 0 }, vec![f(&[0, 2]); $arity], "Argument"),
                    Reject::new($op { axis: 0 }, vec![Meta::u32(dims(&[3])); $arity], "DType"),
                ];
                if $arity == 2 {
                    bad.push(Reject::new($op { axis: 0 }, vec![f(&[3]), f(&[4])], "Shapes"));
                }
                bad
            }

            fn bound(&self, ins: &[Meta]) -> Bound {
                $last.bound(&[Meta::f32(dims(&[ins[0].shape.dims()[self.axis]]))])
            }
        }
    )*};
}

last_axis_cases! {
    // The one term is the rounding of x - m, which the exponential amplifies.
    Softmax 1 |n: usize| Bound { ulps: 8.0 + depth(n), terms: 1.0 };
    LogSoftmax 1 |n: usize| Bound { ulps: 4.0, terms: 8.0 + depth(n) };
    SoftmaxBwd 2 |n: usize| Bound { ulps: 4.0, terms: 8.0 + depth(n) };
    LogSoftmaxBwd 2 |n: usize| Bound { ulps: 4.0, terms: 8.0 + depth(n) };
}

any_axis_cases! {
    SoftmaxAxis 1 like Softmax;
    LogSoftmaxAxis 1 like LogSoftmax;
    SoftmaxAxisBwd 2 like SoftmaxBwd;
    LogSoftmaxAxisBwd 2 like LogSoftmaxBwd;
}

impl Cases for MaskedSoftmax {
    fn samples() -> Vec<Sample> {
        let bits = |d: &[usize]| SampleIn::Idx(dims(d), 2);
        let with =
            |d: &[usize], mask: SampleIn| Sample::new(MaskedSoftmax, vec![SampleIn::any(dims(d)), mask]);
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

    fn random(stream: &mut Stream) -> Option<Sample> {
        let shape = edge_shape(1, 3, stream);
        let from = stream.below(shape.rank());
        let mask = SampleIn::Idx(dims(&shape.dims()[from..]), 2);
        Some(Sample::new(MaskedSoftmax, vec![SampleIn::any(shape), mask]))
    }

    fn rejects() -> Vec<Reject> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = MaskedSoftmax;
        vec![
            Reject::new(op, vec![f(&[3])], "Arity"),
            Reject::new(op, vec![f(&[3]), f(&[4])], "Shapes"),
            Reject::new(op, vec![f(&[3]), f(&[])], "Shapes"),
            Reject::new(op, vec![f(&[3]), f(&[2, 3])], "Shapes"),
            Reject::new(op, vec![f(&[2, 2, 3]), f(&[2, 1, 3])], "Shapes"),
            Reject::new(op, vec![f(&[3, 0]), f(&[3, 0])], "Argument"),
            Reject::new(op, vec![Meta::u32(dims(&[3])), f(&[3])], "DType"),
        ]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        Softmax.bound(&ins[..1])
    }
}
