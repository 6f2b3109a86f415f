//! What the checks run these ops on.

use super::Reduction;
use super::cross_entropy::{CrossEntropy, CrossEntropyBwd};
use super::nll::{LabelWeights, Nll, NllBwd};
use crate::cases::depth;
use crate::cases::{Bound, Cases, Reject, Sample, SampleIn, edge_dims};
use crate::dims;
use dittograd_device::Meta;
use dittograd_numerics::rng::Stream;
use dittograd_numerics::shape::Shape;

/// Shapes and reductions that every loss of the table is checked on.
pub(super) fn loss_samples() -> Vec<(Shape, Reduction)> {
    let mut cases: Vec<(Shape, Reduction)> =
        crate::sample_shapes().into_iter().map(|s| (s, Reduction::Mean)).collect();
    cases.push((dims(&[200_000]), Reduction::Mean));
    for d in [&[][..], &[0], &[3, 0], &[1025], &[5, 7]] {
        cases.extend([(dims(d), Reduction::Sum), (dims(d), Reduction::None)]);
    }
    cases
}

impl Cases for CrossEntropy {
    fn samples() -> Vec<Sample> {
        label_samples()
            .into_iter()
            .map(|(ignore, smoothing, reduction, ins)| {
                let op = CrossEntropy { ignore, smoothing, reduction };
                Sample::new(op, ins)
            })
            .collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (ignore, smoothing, reduction, ins) = random_labels(stream);
        Some(Sample::new(CrossEntropy { ignore, smoothing, reduction }, ins))
    }

    fn rejects() -> Vec<Reject> {
        let op = CrossEntropy::default();
        let mut bad: Vec<_> =
            bad_labels(&[]).into_iter().map(|(ins, want)| Reject::new(op, ins, want)).collect();
        let ins = vec![Meta::f32(dims(&[2, 3])), Meta::u32(dims(&[2]))];
        bad.push(Reject::new(CrossEntropy { smoothing: 1.5, ..op }, ins, "Argument"));
        bad
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        Bound { ulps: 4.0, terms: 12.0 + 2.0 * depth(ins[0].shape.last()) + depth(ins[0].shape.rows()) }
    }
}

/// Ignored label, smoothing, reduction and inputs that the losses of labels are checked on.
pub(super) type LabelSample = (Option<u32>, f32, Reduction, Vec<SampleIn>);

pub(super) fn label_samples() -> Vec<LabelSample> {
    let shapes: [&[usize]; 10] = [
        &[1, 1],
        &[5, 10],
        &[128, 10],
        &[3, 33],
        &[2, 1025],
        &[2, 3, 7],
        &[9],
        &[0, 4],
        &[2, 300],
        &[2, 24577],
    ];
    let ins = |d: &[usize], more: u32| {
        let (x, lead) = (dims(d), dims(&d[..d.len() - 1]));
        vec![SampleIn::Num(x, (-4.0, 4.0)), SampleIn::Idx(lead, x.last() as u32 + more)]
    };
    let mut samples: Vec<_> = shapes.iter().map(|d| (None, 0.0, Reduction::Mean, ins(d, 0))).collect();
    // Ignored: a class, a label beyond the classes, the only class there is.
    samples.extend([
        (Some(1), 0.0, Reduction::Mean, ins(&[40, 3], 0)),
        (Some(7), 0.0, Reduction::Mean, ins(&[2, 5, 7], 1)),
        (Some(0), 0.0, Reduction::Mean, ins(&[3, 1], 0)),
        (Some(3), 0.1, Reduction::Mean, ins(&[30, 3], 1)),
        (None, 0.2, Reduction::Mean, ins(&[6, 10], 0)),
        (None, 1.0, Reduction::Mean, ins(&[3, 300], 0)),
        (None, 0.1, Reduction::Mean, ins(&[2, 2500], 0)),
        (Some(2), 0.1, Reduction::Mean, ins(&[0, 3], 0)),
        (Some(2), 0.0, Reduction::Mean, ins(&[4, 2500], 0)),
    ]);
    for reduction in [Reduction::Sum, Reduction::None] {
        samples.extend([
            (None, 0.0, reduction, ins(&[9], 0)),
            (None, 0.0, reduction, ins(&[0, 4], 0)),
            (None, 0.0, reduction, ins(&[3, 5, 33], 0)),
            (None, 0.0, reduction, ins(&[3, 1300], 0)),
            (None, 0.0, reduction, ins(&[1, 24577], 0)),
            (None, 0.1, reduction, ins(&[40, 10], 0)),
            (Some(7), 0.0, reduction, ins(&[2, 5, 7], 1)),
            (Some(3), 0.1, reduction, ins(&[30, 3], 1)),
        ]);
    }
    samples
}

/// Random logits and labels.
pub(super) fn random_labels(stream: &mut Stream) -> LabelSample {
    let mut d = edge_dims(2, 3, stream);
    // The loss of a row with one class is zero, whose sum shows nothing.
    if let Some(classes) = d.last_mut().filter(|d| **d == 1) {
        *classes = 2;
    }
    let (x, lead) = (dims(&d), dims(&d[..d.len() - 1]));
    let ignore = [None, Some(0)][stream.below(2)];
    let smoothing = [0.0, 0.1][stream.below(2)];
    let reduction = [Reduction::Mean, Reduction::Sum, Reduction::None][stream.below(3)];
    let ins = vec![SampleIn::Num(x, (-4.0, 4.0)), SampleIn::Idx(lead, x.last() as u32)];
    (ignore, smoothing, reduction, ins)
}

pub(super) fn bad_labels(tail: &[Meta]) -> Vec<(Vec<Meta>, &'static str)> {
    let f = |d: &[usize]| Meta::f32(dims(d));
    let u = |d: &[usize]| Meta::u32(dims(d));
    let with = |a: Meta, b: Meta| [&[a, b], tail].concat();
    vec![
        (vec![f(&[2, 3])], "Arity"),
        (with(f(&[]), u(&[])), "Rank"),
        (with(f(&[2, 0]), u(&[2])), "Argument"),
        (with(f(&[2, 3]), u(&[3])), "Shapes"),
        (with(f(&[2, 3]), u(&[2, 1])), "Shapes"),
        (with(f(&[2, 3]), f(&[2])), "DType"),
        (with(u(&[2, 3]), u(&[2])), "DType"),
    ]
}

impl Cases for CrossEntropyBwd {
    fn samples() -> Vec<Sample> {
        label_samples().into_iter().map(with_dy).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        Some(with_dy(random_labels(stream)))
    }

    fn rejects() -> Vec<Reject> {
        let (op, scalar) = (CrossEntropyBwd::default(), Meta::f32(Shape::SCALAR));
        let mut bad: Vec<_> =
            bad_labels(&[scalar]).into_iter().map(|(ins, want)| Reject::new(op, ins, want)).collect();
        let ins = |dy: Meta| vec![Meta::f32(dims(&[2, 3])), Meta::u32(dims(&[2])), dy];
        bad.push(Reject::new(op, ins(Meta::f32(dims(&[1]))), "Rank"));
        let rows = CrossEntropyBwd { reduction: Reduction::None, ..op };
        bad.push(Reject::new(rows, ins(scalar), "Shapes"));
        bad.push(Reject::new(rows, ins(Meta::u32(dims(&[2]))), "DType"));
        let op = CrossEntropyBwd { smoothing: -0.5, ..op };
        bad.push(Reject::new(op, ins(scalar), "Argument"));
        bad
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        Bound { ulps: 16.0 + depth(ins[0].shape.last()), terms: 6.0 }
    }
}

/// With a random upstream gradient.
pub(super) fn with_dy((ignore, smoothing, reduction, mut ins): LabelSample) -> Sample {
    let shape = if reduction == Reduction::None { ins[1].meta().shape } else { Shape::SCALAR };
    ins.push(SampleIn::any(shape));
    Sample::new(CrossEntropyBwd { ignore, smoothing, reduction }, ins)
}

impl Cases for LabelWeights {
    fn samples() -> Vec<Sample> {
        let cases: [(&[usize], Option<u32>, u32); 7] = [
            (&[], None, 3),
            (&[0], Some(1), 3),
            (&[33], Some(1), 3),
            (&[5, 7], Some(3), 5),
            (&[3000], Some(2), 3),
            (&[4], Some(0), 1),
            (&[1300], None, 3),
        ];
        let sample = |mean: bool| {
            move |(d, ignore, bound): (&[usize], Option<u32>, u32)| {
                Sample::new(LabelWeights { ignore, classes: 3, mean }, vec![SampleIn::Idx(dims(d), bound)])
            }
        };
        [cases.map(sample(true)), cases.map(sample(false))].concat()
    }

    fn rejects() -> Vec<Reject> {
        let op = LabelWeights { ignore: None, classes: 3, mean: true };
        vec![Reject::new(op, vec![], "Arity"), Reject::new(op, vec![Meta::f32(dims(&[3]))], "DType")]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound { ulps: 1.0, terms: 0.0 }
    }
}

impl Cases for Nll {
    fn samples() -> Vec<Sample> {
        nll_samples().into_iter().map(|(ignore, ins)| Sample::new(Nll { ignore }, ins)).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (ignore, _, _, ins) = random_labels(stream);
        Some(Sample::new(Nll { ignore }, ins))
    }

    fn rejects() -> Vec<Reject> {
        let op = Nll::default();
        bad_labels(&[]).into_iter().map(|(ins, want)| Reject::new(op, ins, want)).collect()
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        Bound { ulps: 2.0, terms: 4.0 + depth(ins[0].shape.rows()) }
    }
}

/// Those of the cross-entropy without smoothing.
pub(super) fn nll_samples() -> Vec<(Option<u32>, Vec<SampleIn>)> {
    let suits = |s: &LabelSample| s.1 == 0.0 && s.2 == Reduction::Mean;
    label_samples().into_iter().filter(suits).map(|(ignore, _, _, ins)| (ignore, ins)).collect()
}

impl Cases for NllBwd {
    fn samples() -> Vec<Sample> {
        let sample = |(ignore, ins): (Option<u32>, Vec<SampleIn>)| {
            let (classes, labels) = (ins[0].meta().shape.last(), ins[1].clone());
            Sample::new(NllBwd { ignore, classes }, vec![SampleIn::any(Shape::SCALAR), labels])
        };
        nll_samples().into_iter().map(sample).collect()
    }

    fn rejects() -> Vec<Reject> {
        let (scalar, labels) = (Meta::f32(Shape::SCALAR), Meta::u32(dims(&[4])));
        let op = NllBwd { ignore: None, classes: 3 };
        vec![
            Reject::new(op, vec![scalar], "Arity"),
            Reject::new(op, vec![Meta::f32(dims(&[1])), labels], "Rank"),
            Reject::new(op, vec![scalar, Meta::f32(dims(&[4]))], "DType"),
            Reject::new(NllBwd { classes: 0, ..op }, vec![scalar, labels], "Argument"),
            Reject::new(NllBwd { classes: usize::MAX, ..op }, vec![scalar, labels], "TooLarge"),
        ]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound { ulps: 2.0, terms: 0.0 }
    }
}
