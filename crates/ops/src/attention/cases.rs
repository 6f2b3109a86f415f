//! What the checks run these ops on.

use super::geometry::KEY_BLOCK;
use super::{Attention, AttentionBwd, AttentionMask, parts};
use crate::cases::{Bound, Cases, Reject, Sample, SampleIn, pick};
use crate::{dims, layout};
use dittograd_device::Meta;
use dittograd_numerics::rng::Stream;
use dittograd_numerics::shape::Shape;
use std::ops::Range;

/// The places of the parts but the first.
pub(super) fn statistics(parts: &[Shape; 3]) -> Range<usize> {
    let (starts, end) = layout::packed(parts);
    starts[1]..end
}

/// Sizes (leading, heads of keys, n, m, d, dv), with a causal mask, and the shape of a mask of indices.
pub(super) type Case = (&'static [usize], usize, [usize; 4], bool, Option<&'static [usize]>);

/// FusedCode the edges of blocks of keys (64), of stages (32), and of tiles of rows (64 and 128); with a head size
/// of every variant; with nothing in one of the sizes; with shared heads; and with masks of every rank. Few
/// pairs of head sizes, since each is a kernel to compile.
pub(super) const CASES: [Case; 22] = [
    (&[], 1, [3, 5, 3, 5], false, None),
    (&[2], 2, [5, 7, 4, 4], true, None),
    (&[2, 2], 2, [4, 6, 4, 4], false, Some(&[4, 6])),
    (&[2, 4], 2, [3, 4, 3, 5], true, None),
    (&[2, 4], 2, [3, 4, 4, 4], false, Some(&[2, 4, 3, 4])),
    (&[2, 2], 1, [5, 3, 4, 4], true, Some(&[2, 1, 1, 3])),
    (&[1], 1, [1, 1, 4, 4], false, None),
    (&[2], 2, [0, 3, 4, 4], false, None),
    (&[2], 2, [3, 0, 4, 4], true, None),
    (&[0], 0, [3, 2, 4, 4], false, None),
    (&[2], 2, [3, 4, 0, 4], false, None),
    (&[2], 2, [3, 4, 4, 0], false, None),
    (&[1], 1, [17, 65, 3, 5], true, None),
    (&[1], 1, [33, 31, 4, 4], true, None),
    (&[1], 1, [65, 129, 64, 64], true, None),
    (&[1], 1, [70, 64, 65, 65], false, None),
    (&[1], 1, [40, 66, 128, 32], true, Some(&[40, 66])),
    (&[2], 1, [130, 63, 4, 4], true, None),
    (&[1], 1, [64, 128, 64, 64], false, None),
    (&[1], 1, [6, 130, 4, 4], false, Some(&[6, 130])),
    (&[1], 1, [9, 20, 129, 136], true, None),
    (&[1], 1, [7, 1100, 4, 4], false, None),
];

/// The inputs of a case.
pub(super) fn case_inputs(&(lead, shared, [n, m, d, dv], _, mask): &Case) -> Vec<SampleIn> {
    let with = |heads: usize, tail: [usize; 2]| {
        let mut all = lead.to_vec();
        if let Some(last) = all.last_mut() {
            *last = heads;
        }
        all.extend(tail);
        // Not symmetric, so that no wide values are drawn: scores of 2^40 have no accurate weights.
        SampleIn::Num(dims(&all), (-2.0, 2.25))
    };
    let heads = lead.last().copied().unwrap_or(1);
    let mut ins = vec![with(heads, [n, d]), with(shared, [m, d]), with(shared, [m, dv])];
    ins.extend(mask.map(|mask| SampleIn::Idx(dims(mask), 2)));
    ins
}

/// Sizes around edges that are not too much work.
pub(super) fn random_inputs(stream: &mut Stream) -> (Vec<SampleIn>, bool) {
    let size = |stream: &mut Stream| pick(&[1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 200], stream);
    let (n, m) = (size(stream), size(stream));
    let (d, dv) = [(4, 4), (3, 5), (64, 64), (65, 65)][stream.below(4)];
    let (batch, shared, group) = (pick(&[1, 2], stream), pick(&[1, 2], stream), pick(&[1, 3], stream));
    let num = |d: &[usize]| SampleIn::Num(dims(d), (-2.0, 2.25));
    let mut ins =
        vec![num(&[batch, shared * group, n, d]), num(&[batch, shared, m, d]), num(&[batch, shared, m, dv])];
    match stream.below(4) {
        0 => ins.push(SampleIn::Idx(dims(&[n, m]), 2)),
        1 => ins.push(SampleIn::Idx(dims(&[batch, 1, n, m]), 2)),
        _ => {}
    }
    (ins, stream.below(2) == 0)
}

pub(super) fn forward_rejects() -> Vec<(Vec<Meta>, &'static str)> {
    let f = |d: &[usize]| Meta::f32(dims(d));
    let good = || vec![f(&[2, 4, 3]), f(&[2, 5, 3]), f(&[2, 5, 6])];
    let with = |i: usize, meta: Meta| {
        let mut all = good();
        all[i] = meta;
        all
    };
    let masked = |meta: Meta| [good(), vec![meta]].concat();
    vec![
        (vec![f(&[2, 3])], "Arity"),
        (with(0, f(&[3])), "Rank"),
        (with(0, f(&[4, 3])), "Shapes"),
        (with(0, f(&[3, 4, 3])), "Shapes"),
        (with(0, f(&[2, 4, 2])), "Shapes"),
        (with(2, f(&[2, 4, 6])), "Shapes"),
        (with(2, f(&[1, 5, 6])), "Shapes"),
        (with(2, f(&[2, 5, 257])), "Argument"),
        (with(1, Meta::u32(dims(&[2, 5, 3]))), "DType"),
        (masked(f(&[5, 4])), "Shapes"),
        (masked(f(&[1, 2, 4, 5])), "Shapes"),
    ]
}

impl Cases for Attention {
    fn statistics(&self, ins: &[Meta]) -> Range<usize> {
        statistics(&parts(ins[0].shape, ins[2].shape))
    }

    fn samples() -> Vec<Sample> {
        let mut all: Vec<_> = CASES
            .iter()
            .enumerate()
            .map(|(i, case)| {
                // Whole numbers would spread longer scores so far that weights vanish.
                let scale = (case.2[1] >= 20 || i % 4 == 2).then_some(0.03);
                Sample::new(Attention { causal: case.3, scale }, case_inputs(case))
            })
            .collect();
        // A mask of numbers, all of which let through.
        let mut ins = case_inputs(&CASES[0]);
        ins.push(SampleIn::Num(dims(&[3, 5]), (0.5, 1.5)));
        all.push(Sample::new(Attention { causal: false, scale: Some(-0.5) }, ins));
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (ins, causal) = random_inputs(stream);
        Some(Sample::new(Attention { causal, scale: None }, ins))
    }

    fn rejects() -> Vec<Reject> {
        let op = Attention { causal: false, scale: None };
        let mut all: Vec<_> =
            forward_rejects().into_iter().map(|(ins, want)| Reject::new(op, ins, want)).collect();
        let f = |d: &[usize]| Meta::f32(dims(d));
        let ins = vec![f(&[2, 3]); 3];
        all.push(Reject::new(Attention { causal: true, scale: Some(f64::NAN) }, ins, "Argument"));
        all
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        // Roundings of a score, of a weight and its rescaling by every later block, and of the sums over keys.
        let Ok(g) = self.of(ins) else { return Bound::EXACT };
        let blocks = g.m.div_ceil(KEY_BLOCK);
        Bound { ulps: 4.0, terms: (g.d + g.m + 4 * blocks + 32) as f64 }
    }
}

impl Cases for AttentionBwd {
    fn samples() -> Vec<Sample> {
        // The logarithms are drawn like everything else, so weights are not bounded by 1: a small scale keeps
        // them in range.
        CASES
            .iter()
            .map(|case| {
                let mut ins = case_inputs(case);
                let shapes = parts(ins[0].meta().shape, ins[2].meta().shape);
                let packed = SampleIn::Num(dims(&[layout::packed(&shapes).1]), (-1.0, 1.5));
                ins.extend([packed.clone(), packed]);
                Sample::new(AttentionBwd { causal: case.3, scale: Some(0.02) }, ins)
            })
            .collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (mut ins, causal) = random_inputs(stream);
        let shapes = parts(ins[0].meta().shape, ins[2].meta().shape);
        let packed = SampleIn::Num(dims(&[layout::packed(&shapes).1]), (-1.0, 1.5));
        ins.extend([packed.clone(), packed]);
        Some(Sample::new(AttentionBwd { causal, scale: None }, ins))
    }

    fn rejects() -> Vec<Reject> {
        let op = AttentionBwd { causal: false, scale: None };
        let f = |d: &[usize]| Meta::f32(dims(d));
        let packed = || vec![f(&[64]), f(&[64])];
        let mut all: Vec<_> = forward_rejects()
            .into_iter()
            .map(|(ins, want)| Reject::new(op, [ins, packed()].concat(), want))
            .collect();
        let good = vec![f(&[2, 4, 3]), f(&[2, 5, 3]), f(&[2, 5, 6])];
        let short = [good, vec![f(&[64]), f(&[60])]].concat();
        all.push(Reject::new(op, short, "Shapes"));
        all
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        let Ok(g) = self.of(ins) else { return Bound::EXACT };
        Bound { ulps: 4.0, terms: (g.d + 2 * g.dv + g.m.max(g.rows()) + 32) as f64 }
    }
}

impl Cases for AttentionMask {
    fn samples() -> Vec<Sample> {
        let op = |causal, n, m| AttentionMask { causal, n, m };
        let mut all = vec![
            Sample::new(op(true, 5, 7), vec![]),
            Sample::new(op(false, 2, 3), vec![]),
            Sample::new(op(true, 0, 3), vec![]),
            Sample::new(op(true, 4, 6), vec![SampleIn::Num(dims(&[2, 4, 6]), (0.5, 1.0))]),
        ];
        for d in [&[4, 6][..], &[6], &[2, 3, 1, 6], &[3, 4, 1], &[1], &[]] {
            all.push(Sample::new(op(d.len() % 2 == 0, 4, 6), vec![SampleIn::Idx(dims(d), 2)]));
        }
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (n, m) = (1 + stream.below(70), 1 + stream.below(300));
        let ins = vec![SampleIn::Idx(dims(&[2, n, m]), 2)];
        Some(Sample::new(AttentionMask { causal: stream.below(2) == 0, n, m }, ins))
    }

    fn rejects() -> Vec<Reject> {
        let op = AttentionMask { causal: false, n: 4, m: 6 };
        let f = |d: &[usize]| Meta::f32(dims(d));
        vec![
            Reject::new(op, vec![f(&[4, 6]), f(&[4, 6])], "Arity"),
            Reject::new(op, vec![f(&[6, 4])], "Shapes"),
            Reject::new(op, vec![f(&[5])], "Shapes"),
        ]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}
