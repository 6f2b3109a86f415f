//! What the checks run these ops on.

use super::forward::{dot, is_open};
use super::geometry::{Geometry, KEY_BLOCK, Scoring};
use super::{Attention, AttentionBwd, AttentionMask, parts};
use crate::cases::{Bound, Cases, Reject, Sample, SampleIn, largest, pick};
use crate::{AnyTensor, dims, layout};
use dittograd_device::Meta;
use dittograd_numerics::Numerics;
use dittograd_numerics::digits::Digits;
use dittograd_numerics::error::Result;
use dittograd_numerics::rng::Stream;
use dittograd_numerics::shape::Shape;
use std::f64::consts::LOG2_E;
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

    fn digit_error(&self, numerics: Numerics, ins: &[AnyTensor<f64>]) -> Result<f64> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let (g, scoring) = (self.of(&metas)?, self.scoring());
        let Some(digits) = g.digits(numerics) else { return Ok(0.0) };
        let [score, output] = forward_errors(&g, scoring, digits, ins)?;
        let logarithm = 2.0 * score * scoring.scale(g.d).abs() * LOG2_E;
        Ok(score.max(output).max(logarithm))
    }
}

/// The most that a score and an output in digits are off, besides roundings. A score moves by as much, and so does the largest one; every block has a
/// weight 1.
fn forward_errors(
    g: &Geometry,
    scoring: Scoring,
    digits: Digits,
    ins: &[AnyTensor<f64>],
) -> Result<[f64; 2]> {
    let [q, k, v] = [ins[0].num()?, ins[1].num()?, ins[2].num()?].map(|t| largest(t.data()));
    let score = digits.error(g.d, q, k);
    let weights = (2.0 * score * scoring.scale(g.d).abs()).exp_m1();
    Ok([score, v * weights + digits.error(KEY_BLOCK, 1.0, v)])
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

    /// The value that it is given may be one in digits, with the errors of these.
    fn digit_error(&self, numerics: Numerics, ins: &[AnyTensor<f64>]) -> Result<f64> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let (g, scoring) = (self.of(&metas)?, self.scoring());
        let Some(digits) = g.digits(numerics) else { return Ok(0.0) };
        let mask = (ins.len() == 6).then(|| &ins[3]);
        let (q, k, v) = (ins[0].num()?.data(), ins[1].num()?.data(), ins[2].num()?.data());
        let (y, dy) = (ins[ins.len() - 2].num()?.data(), ins[ins.len() - 1].num()?.data());
        let [start, tops] = AttentionBwd::starts(&metas);
        let scale = scoring.scale(g.d);
        let [score, output] = forward_errors(&g, scoring, digits, ins)?;
        let upstream = largest(&dy[..start]);
        // A weight is multiplied by at most 1 + `relative`: a score, the largest score and the logarithm of the sum are off. Its factor in `ds` is off by
        // `slope`.
        let relative = (4.0 * score * scale.abs()).exp_m1();
        let slope = digits.error(g.dv, upstream, largest(v)) + g.dv as f64 * upstream * output;
        // The largest weight and `ds`, and the largest sums over a row, and over a column: of weights and of errors of `ds`.
        let (mut most, mut row_sum, mut column_sum) = ([0.0f64; 2], 0.0f64, [0.0f64; 2]);
        for z in 0..g.batch {
            let mut columns = vec![[0.0; 2]; g.m];
            for r in 0..g.rows() {
                let i = z * g.rows() + r;
                let (q, dy_row) = (&q[i * g.d..][..g.d], &dy[i * g.dv..][..g.dv]);
                let delta = dot(dy_row, &y[i * g.dv..][..g.dv]) - dy[start + i] * LOG2_E;
                let mut row = 0.0;
                for j in (0..g.m).filter(|&j| is_open(&g, self.causal, mask, z, r, j)) {
                    let at = z * g.m + j;
                    let s = dot(q, &k[at * g.d..][..g.d]) * scale.signum();
                    let p = ((s - y[tops + i]) * scale.abs() * LOG2_E - y[start + i]).exp2();
                    let ds = p * (dot(dy_row, &v[at * g.dv..][..g.dv]) - delta).abs();
                    let error = p * (1.0 + relative) * slope + relative * ds;
                    most = [most[0].max(p * (1.0 + relative)), most[1].max(ds + error)];
                    row += error;
                    columns[j] = [columns[j][0] + p * relative, columns[j][1] + error];
                }
                row_sum = row_sum.max(row);
            }
            for column in columns {
                column_sum = [column_sum[0].max(column[0]), column_sum[1].max(column[1])];
            }
        }
        let tiles =
            |rows: usize, p: f64, x: f64| rows.div_ceil(KEY_BLOCK) as f64 * digits.error(KEY_BLOCK, p, x);
        let (q, k) = (largest(q), largest(k));
        let dq = scale.abs() * (row_sum * k + tiles(g.m, most[1], k));
        let dk = scale.abs() * (column_sum[1] * q + tiles(g.rows(), most[1], q));
        let dv = column_sum[0] * upstream + tiles(g.rows(), most[0], upstream);
        Ok(dq.max(dk).max(dv))
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
