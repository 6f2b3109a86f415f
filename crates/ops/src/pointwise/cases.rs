//! What the checks run these ops on.

use crate::cases::{edge_dims, sample_shapes};
use crate::{AnyOp, Reject, Sample, SampleIn, dims};
use dittograd_device::Meta;
use dittograd_numerics::rng::Stream;
use dittograd_numerics::shape::Shape;

/// A range of numbers to draw from.
type Range = (f64, f64);

/// The op with numbers of these ranges, one for each input.
fn with_inputs(op: AnyOp, ranges: &[Range], shapes: Vec<Shape>) -> Sample {
    Sample { op, ins: shapes.into_iter().zip(ranges).map(|(s, r)| SampleIn::Num(s, *r)).collect() }
}

pub(super) fn samples(op: &AnyOp, ranges: &[Range]) -> Vec<Sample> {
    input_shapes(ranges.len()).into_iter().map(|s| with_inputs(op.clone(), ranges, s)).collect()
}

pub(super) fn random(op: AnyOp, ranges: &[Range], stream: &mut Stream) -> Sample {
    with_inputs(op, ranges, random_shapes(ranges.len(), stream))
}

pub(super) fn rejects(op: &AnyOp, arity: usize) -> Vec<Reject> {
    bad_inputs(arity).into_iter().map(|(ins, want)| Reject { op: op.clone(), ins, want }).collect()
}

/// Shapes of the inputs of an op of that arity: equal ones, and ones that broadcast.
fn input_shapes(arity: usize) -> Vec<Vec<Shape>> {
    let mut all: Vec<Vec<Shape>> = sample_shapes().into_iter().map(|s| vec![s; arity]).collect();
    // Few of them: each reads its inputs in another way, which is another CUDA module.
    let broadcast: [[&[usize]; 3]; 4] = [
        [&[4, 1], &[3], &[]],
        [&[], &[5, 7], &[7]],
        [&[2, 0, 3], &[1, 3], &[1]],
        [&[5, 1], &[3, 5, 8], &[3, 1, 8]],
    ];
    if arity > 1 {
        all.extend(broadcast.map(|shapes| shapes[..arity].iter().map(|d| dims(d)).collect()));
    }
    all
}

/// Random shapes that broadcast to one; equal ones half of the time.
fn random_shapes(arity: usize, stream: &mut Stream) -> Vec<Shape> {
    let to = edge_dims(1, 3, stream);
    if arity == 1 || stream.below(2) == 0 {
        return vec![dims(&to); arity];
    }
    let mut narrow = || {
        let mut from: Vec<usize> = to[stream.below(to.len() + 1)..].to_vec();
        from.iter_mut().for_each(|d| *d = if stream.below(3) == 0 { 1 } else { *d });
        dims(&from)
    };
    (0..arity).map(|_| narrow()).collect()
}

/// Inputs that no elementwise op of that arity takes.
fn bad_inputs(arity: usize) -> Vec<(Vec<Meta>, &'static str)> {
    let f = |d: &[usize]| Meta::f32(dims(d));
    let mut last_wrong = vec![f(&[2]); arity];
    last_wrong[arity - 1] = Meta::u32(dims(&[2]));
    let mut bad = vec![(vec![], "Arity"), (vec![f(&[2]); arity + 1], "Arity"), (last_wrong, "DType")];
    if arity > 1 {
        let with = |a: &[usize], b: &[usize]| [vec![f(a)], vec![f(b); arity - 1]].concat();
        bad.push((with(&[6], &[2, 3]), "Shapes"));
        bad.push((with(&[2, 3], &[3, 2]), "Shapes"));
        bad.push((with(&[0], &[2]), "Shapes"));
    }
    bad
}
