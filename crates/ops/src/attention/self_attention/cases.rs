//! What the checks run these ops on.

use super::{SelfAttention, SelfAttentionBwd, apart, parts, plain_inputs, three};
use crate::attention::cases::statistics;
use crate::cases::{Bound, Cases, Reject, Sample, SampleIn, pick};
use crate::{AnyTensor, dims, layout};
use dittograd_device::Meta;
use dittograd_numerics::Numerics;
use dittograd_numerics::error::Result;
use dittograd_numerics::rng::Stream;
use std::ops::Range;

/// Shapes of `qkv`, with a causal mask.
pub(super) const CASES: [(&[usize], bool); 12] = [
    (&[5, 3, 1, 4], true),
    // Parts that are no multiple of four words.
    (&[5, 3, 1, 3], false),
    (&[2, 7, 3, 2, 4], true),
    (&[2, 2, 3, 3, 3, 3], true),
    (&[1, 3, 1, 1], true),
    (&[2, 0, 3, 2, 4], true),
    (&[0, 4, 3, 2, 4], false),
    (&[3, 3, 0, 4], false),
    (&[3, 3, 2, 0], true),
    (&[65, 3, 2, 64], true),
    (&[33, 3, 1, 65], false),
    (&[130, 3, 2, 4], true),
];

pub(super) fn case_input(shape: &[usize]) -> SampleIn {
    // Not symmetric, so that no wide values are drawn: scores of 2^40 have no accurate weights.
    SampleIn::Num(dims(shape), (-2.0, 2.25))
}

pub(super) fn random_shape(stream: &mut Stream) -> [usize; 5] {
    let n = pick(&[1, 2, 15, 17, 31, 33, 63, 64, 65, 127, 129, 200], stream);
    [pick(&[1, 2], stream), n, 3, pick(&[1, 2, 3], stream), pick(&[3, 4, 64, 65], stream)]
}

impl Cases for SelfAttention {
    fn statistics(&self, ins: &[Meta]) -> Range<usize> {
        statistics(&parts(ins[0].shape))
    }

    fn samples() -> Vec<Sample> {
        let sample = |(d, causal): (&[usize], bool)| {
            Sample::new(SelfAttention { causal, scale: (d[0] > 30).then_some(0.03) }, vec![case_input(d)])
        };
        CASES.into_iter().map(sample).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let ins = vec![case_input(&random_shape(stream))];
        Some(Sample::new(SelfAttention { causal: stream.below(2) == 0, scale: None }, ins))
    }

    fn rejects() -> Vec<Reject> {
        let op = SelfAttention { causal: true, scale: None };
        let f = |d: &[usize]| Meta::f32(dims(d));
        let mut all: Vec<_> =
            rejects().into_iter().map(|(meta, want)| Reject::new(op, vec![meta], want)).collect();
        all.push(Reject::new(op, vec![], "Arity"));
        let op = SelfAttention { causal: true, scale: Some(f64::NAN) };
        all.push(Reject::new(op, vec![f(&[4, 3, 1, 4])], "Argument"));
        all
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        self.plain().bound(&[Meta { shape: apart(ins[0].shape), ..ins[0] }; 3])
    }

    fn digit_error(&self, numerics: Numerics, ins: &[AnyTensor<f64>]) -> Result<f64> {
        let g = self.of(&[ins[0].meta()])?;
        self.plain().digit_error(numerics, &three(&g, ins[0].num()?)?)
    }
}

/// What is no `qkv`.
pub(super) fn rejects() -> Vec<(Meta, &'static str)> {
    let f = |d: &[usize]| Meta::f32(dims(d));
    vec![
        (f(&[4, 3, 4]), "Rank"),
        (f(&[4, 2, 1, 4]), "Argument"),
        (f(&[3, 4, 1, 4]), "Argument"),
        (f(&[4, 3, 1, 257]), "Argument"),
        (Meta::u32(dims(&[4, 3, 1, 4])), "DType"),
    ]
}

impl Cases for SelfAttentionBwd {
    fn samples() -> Vec<Sample> {
        // The logarithms are drawn like everything else, so weights are not bounded by 1: a small scale keeps
        // them in range.
        let sample = |(i, (d, causal)): (usize, (&[usize], bool))| {
            Sample::new(SelfAttentionBwd { causal, scale: Some(0.02) }, backward_inputs(d, i % 2 == 0))
        };
        CASES.into_iter().enumerate().map(sample).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let ins = backward_inputs(&random_shape(stream), stream.below(2) == 0);
        Some(Sample::new(SelfAttentionBwd { causal: stream.below(2) == 0, scale: None }, ins))
    }

    fn rejects() -> Vec<Reject> {
        let op = SelfAttentionBwd { causal: false, scale: None };
        let f = |d: &[usize]| Meta::f32(dims(d));
        let mut all: Vec<_> = rejects()
            .into_iter()
            .map(|(x, want)| Reject::new(op, vec![x, f(&[24]), f(&[24])], want))
            .collect();
        let good = f(&[4, 3, 1, 4]);
        all.extend([
            Reject::new(op, vec![good, f(&[24])], "Arity"),
            Reject::new(op, vec![good, f(&[28]), f(&[24])], "Shapes"),
            Reject::new(op, vec![good, f(&[4, 1, 4]), f(&[24])], "Shapes"),
            Reject::new(op, vec![good, f(&[24]), f(&[1, 4, 4])], "Shapes"),
            Reject::new(op, vec![good, f(&[24]), Meta::u32(dims(&[24]))], "DType"),
        ]);
        all
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        let one = Meta { shape: apart(ins[0].shape), ..ins[0] };
        self.plain().bound(&[one, one, one, ins[1], ins[1]])
    }

    fn digit_error(&self, numerics: Numerics, ins: &[AnyTensor<f64>]) -> Result<f64> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let g = self.of(&metas)?;
        self.plain().digit_error(numerics, &plain_inputs(&g, ins)?)
    }
}

/// `qkv`, the value, and its upstream gradient, packed or that of the outputs alone.
pub(super) fn backward_inputs(shape: &[usize], is_packed: bool) -> Vec<SampleIn> {
    let parts = parts(dims(shape));
    let draw = |shape| SampleIn::Num(shape, (-1.0, 1.5));
    let packed = dims(&[layout::packed(&parts).1]);
    vec![case_input(shape), draw(packed), draw(if is_packed { packed } else { parts[0] })]
}
