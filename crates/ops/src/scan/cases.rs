//! What the checks run these ops on.

use super::cumsum::CumSum;
use super::selective::{SelectiveScan, SelectiveScanBwd};
use super::{BLOCK, CHUNK};
use crate::cases::{Bound, Cases, Reject, Sample, SampleIn, edge_dims, sample};
use crate::dims;
use dittograd_device::Meta;
use dittograd_numerics::rng::Stream;

impl Cases for CumSum {
    fn samples() -> Vec<Sample> {
        let cases: [(&[usize], usize); 15] = [
            (&[1], 0),
            (&[5], 0),
            (&[33], 0),
            (&[1023], 0),
            (&[1025], 0),
            (&[5000], 0),
            (&[3, 70], 1),
            (&[3, 2060], 1),
            (&[33, 5], 0),
            (&[100, 65], 0),
            (&[2, 1030, 3], 1),
            (&[2, 40, 33], 1),
            (&[0, 3], 1),
            (&[3, 0, 2], 1),
            (&[2, 3, 0], 1),
        ];
        let mut all = Vec::new();
        for (i, (d, axis)) in cases.into_iter().enumerate() {
            for (exclusive, reverse) in [(false, false), (i % 2 == 0, true), (true, i % 2 == 1)] {
                all.push(sample(CumSum { axis, exclusive, reverse }, &[d]));
            }
        }
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let d = edge_dims(1, 3, stream);
        let axis = stream.below(d.len());
        let (exclusive, reverse) = (stream.below(2) == 1, stream.below(2) == 1);
        Some(sample(CumSum { axis, exclusive, reverse }, &[&d]))
    }

    fn rejects() -> Vec<Reject> {
        let op = |axis| CumSum { axis, exclusive: false, reverse: false };
        let f = |d: &[usize]| Meta::f32(dims(d));
        vec![
            Reject::new(op(0), vec![], "Arity"),
            Reject::new(op(0), vec![f(&[])], "Axis"),
            Reject::new(op(2), vec![f(&[2, 3])], "Axis"),
            Reject::new(op(0), vec![Meta::u32(dims(&[3]))], "DType"),
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0]]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        let n = self.lines(&ins[0].shape).n;
        Bound { ulps: 1.0, terms: (n.min(2 * BLOCK) + n.div_ceil(CHUNK) + 3) as f64 }
    }
}

impl Cases for SelectiveScan {
    fn samples() -> Vec<Sample> {
        scan_cases().into_iter().map(|ins| Sample::new(SelectiveScan, ins)).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        Some(Sample::new(SelectiveScan, random_scan(stream)))
    }

    fn rejects() -> Vec<Reject> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = SelectiveScan;
        vec![
            Reject::new(op, vec![f(&[3]), f(&[3]), f(&[4, 3])], "Arity"),
            Reject::new(op, vec![f(&[3]), f(&[3]), f(&[3]), f(&[3])], "Rank"),
            Reject::new(op, vec![f(&[4]), f(&[3]), f(&[4, 3]), f(&[3])], "Shapes"),
            Reject::new(op, vec![f(&[3]), f(&[2, 3]), f(&[4, 3]), f(&[3])], "Shapes"),
            Reject::new(op, vec![f(&[3]), f(&[3]), f(&[2, 4, 3]), f(&[3])], "Shapes"),
            Reject::new(op, vec![Meta::u32(dims(&[3])), f(&[3]), f(&[4, 3]), f(&[3])], "DType"),
        ]
    }

    fn linear(&self, ins: &[Meta]) -> Vec<Vec<usize>> {
        // Whole numbers stay exact for a few steps.
        match SelectiveScan::of(ins) {
            Ok(s) if s.steps <= 5 => vec![vec![2, 3], vec![1, 3]],
            _ => Vec::new(),
        }
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        SelectiveScan::of(ins).map_or(Bound::EXACT, |s| Bound { ulps: 1.0, terms: (2 * s.steps + 1) as f64 })
    }
}

/// Inputs of a recurrence with fixed and varying coefficients; those of the state stay below 1 (and the range is not
/// symmetric, so that nothing wider is drawn), since the state of a long one would overflow. With whole numbers up
/// to 8 it does so after 40 steps.
pub(super) fn scan_inputs(x: &[usize], a_varies: bool, b_varies: bool) -> Vec<SampleIn> {
    let states = x[x.len() - 1];
    let h0 = [&x[..x.len() - 2], &[states]].concat();
    let coefficient = |varies: bool| if varies { dims(x) } else { dims(&[states]) };
    vec![
        SampleIn::Num(coefficient(a_varies), (-0.95, 0.9)),
        SampleIn::any(coefficient(b_varies)),
        SampleIn::any(dims(x)),
        SampleIn::any(dims(&h0)),
    ]
}

pub(super) fn scan_cases() -> Vec<Vec<SampleIn>> {
    let sizes: [&[usize]; 10] = [
        &[1, 1],
        &[3, 2],
        &[5, 33],
        &[2, 9, 5],
        &[2, 2, 7, 3],
        &[3, 34, 20],
        &[0, 4, 3],
        &[2, 0, 3],
        &[2, 4, 0],
        &[9, 17, 130],
    ];
    let mut all = Vec::new();
    for (i, x) in sizes.into_iter().enumerate() {
        all.push(scan_inputs(x, false, false));
        all.push(scan_inputs(x, true, true));
        all.push(scan_inputs(x, i % 2 == 0, i % 2 == 1));
    }
    all
}

pub(super) fn random_scan(stream: &mut Stream) -> Vec<SampleIn> {
    let mut d = edge_dims(2, 3, stream);
    if d[0] > 100_000 {
        // A long batch or a long time; the other axes are of one element.
        let at = stream.below(d.len());
        d.swap(0, at);
    }
    scan_inputs(&d, stream.below(2) == 1, stream.below(2) == 1)
}

impl Cases for SelectiveScanBwd {
    fn samples() -> Vec<Sample> {
        scan_cases().into_iter().map(bwd_sample).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        Some(bwd_sample(random_scan(stream)))
    }

    fn rejects() -> Vec<Reject> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = SelectiveScanBwd;
        let with = |last: &[Meta]| [&[f(&[3]), f(&[3]), f(&[4, 3]), f(&[3])], last].concat();
        vec![
            Reject::new(op, with(&[f(&[4, 3])]), "Arity"),
            Reject::new(op, with(&[f(&[4, 3]), f(&[3, 3])]), "Shapes"),
            Reject::new(op, with(&[f(&[3, 4]), f(&[4, 3])]), "Shapes"),
            Reject::new(op, with(&[f(&[4, 3]), Meta::u32(dims(&[4, 3]))]), "DType"),
        ]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        SelectiveScanBwd::of(ins)
            .map_or(Bound::EXACT, |(s, _)| Bound { ulps: 1.0, terms: (2 * s.steps + 2) as f64 })
    }
}

pub(super) fn bwd_sample(mut ins: Vec<SampleIn>) -> Sample {
    let x = ins[2].clone();
    ins.extend([x.clone(), x]);
    Sample::new(SelectiveScanBwd, ins)
}
