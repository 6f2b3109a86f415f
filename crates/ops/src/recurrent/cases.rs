//! What the checks run these ops on.

use super::{Cell, Recurrent, RecurrentBwd};
use crate::cases::{Bound, Cases, Reject, Sample, SampleIn, pick};
use crate::dims;
use dittograd_device::Meta;
use dittograd_numerics::rng::Stream;

/// Steps, batch and hidden size of samples.
const SIZES: [[usize; 3]; 9] =
    [[1, 1, 1], [2, 2, 4], [3, 3, 3], [2, 1, 33], [5, 17, 20], [0, 2, 3], [3, 0, 4], [2, 3, 0], [2, 13, 260]];

/// Roundings of a cell's formula or of its gradient: at most 16 operations one after another, and three functions of at most two units in
/// the last place, which are four roundings each.
const FORMULA: usize = 16 + 3 * 4;

/// Inputs of a layer. Ranges that are not symmetric are not drawn from wider ones: relus could overflow.
fn inputs(op: Recurrent, [steps, batch, hidden]: [usize; 3], has_bias: bool) -> Vec<SampleIn> {
    let columns = op.cell.gates() * hidden;
    let num = |d: &[usize]| match op.cell {
        Cell::Relu => SampleIn::Num(dims(d), (-0.7, 0.9)),
        _ => SampleIn::any(dims(d)),
    };
    let mut ins = vec![num(&[steps, batch, columns]), num(&[columns, hidden])];
    ins.extend((0..op.cell.states()).map(|_| num(&[batch, hidden])));
    ins.extend(has_bias.then(|| num(&[columns])));
    ins.extend(op.masked.then(|| num(&[steps, batch])));
    ins
}

fn all_cases() -> Vec<(Recurrent, [usize; 3], bool)> {
    let mut all = Vec::new();
    for (i, cell) in Cell::ALL.into_iter().enumerate() {
        for (k, sizes) in SIZES.into_iter().enumerate() {
            let (reverse, masked) = ((i + k) % 2 == 1, (i + k) % 3 == 2);
            all.push((Recurrent { cell, reverse, masked }, sizes, (i + k) % 4 != 3));
        }
    }
    all
}

fn random_case(stream: &mut Stream) -> (Recurrent, [usize; 3], bool) {
    let cell = Cell::ALL[stream.below(4)];
    let flag = |stream: &mut Stream| stream.below(2) == 1;
    let op = Recurrent { cell, reverse: flag(stream), masked: flag(stream) };
    let sizes =
        [1 + stream.below(4), pick(&[1, 2, 7, 8, 15, 33], stream), pick(&[1, 3, 8, 31, 32, 65, 129], stream)];
    (op, sizes, flag(stream))
}

impl Cases for Recurrent {
    fn samples() -> Vec<Sample> {
        all_cases().into_iter().map(|(op, sizes, bias)| Sample::new(op, inputs(op, sizes, bias))).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (op, sizes, bias) = random_case(stream);
        Some(Sample::new(op, inputs(op, sizes, bias)))
    }

    fn rejects() -> Vec<Reject> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = Recurrent { cell: Cell::Gru, reverse: false, masked: false };
        let lstm = Recurrent { cell: Cell::Lstm, ..op };
        let masked = Recurrent { masked: true, ..op };
        let (x, w, h) = (f(&[5, 2, 9]), f(&[9, 3]), f(&[2, 3]));
        vec![
            Reject::new(op, vec![x, w], "Arity"),
            Reject::new(lstm, vec![f(&[5, 2, 12]), f(&[12, 3]), h], "Arity"),
            Reject::new(op, vec![f(&[5, 9]), w, h], "Rank"),
            Reject::new(op, vec![x, f(&[27]), h], "Rank"),
            Reject::new(op, vec![x, f(&[9, 4]), h], "Shapes"),
            Reject::new(op, vec![f(&[5, 2, 12]), w, h], "Shapes"),
            Reject::new(op, vec![x, w, f(&[3, 3])], "Shapes"),
            Reject::new(op, vec![x, w, h, f(&[8])], "Shapes"),
            Reject::new(masked, vec![x, w, h, f(&[9]), f(&[2, 5])], "Shapes"),
            Reject::new(masked, vec![x, w, h, f(&[2, 5])], "Shapes"),
            Reject::new(op, vec![x, w, Meta::u32(dims(&[2, 3]))], "DType"),
        ]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        let terms = |s: super::Sizes| s.steps * (s.hidden + s.hidden / 1024 + 2 + FORMULA);
        self.sizes(ins).map_or(Bound::EXACT, |s| Bound { ulps: 1.0, terms: terms(s) as f64 })
    }
}

/// Inputs of the gradient: all of a size below 1, as what is saved is, since the gradient of a long recurrence would overflow.
fn gradient_inputs(op: Recurrent, [steps, batch, hidden]: [usize; 3]) -> Vec<SampleIn> {
    let num = |d: &[usize]| SampleIn::Num(dims(d), (-0.95, 0.9));
    let rows = op.cell.states() * (steps + 1) + op.cell.saved() * steps;
    let value = num(&[rows, batch, hidden]);
    let mut ins = vec![num(&[op.cell.gates() * hidden, hidden]), value.clone(), value];
    ins.extend(op.masked.then(|| num(&[steps, batch])));
    ins
}

impl Cases for RecurrentBwd {
    fn samples() -> Vec<Sample> {
        let one = |(op, sizes, _)| Sample::new(RecurrentBwd(op), gradient_inputs(op, sizes));
        all_cases().into_iter().map(one).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (op, sizes, _) = random_case(stream);
        Some(Sample::new(RecurrentBwd(op), gradient_inputs(op, sizes)))
    }

    fn rejects() -> Vec<Reject> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = RecurrentBwd(Recurrent { cell: Cell::Gru, reverse: false, masked: false });
        let masked = RecurrentBwd(Recurrent { masked: true, ..op.0 });
        // Two steps: three rows of the state, and four times two.
        let (w, value) = (f(&[9, 3]), f(&[11, 2, 3]));
        vec![
            Reject::new(op, vec![w, value], "Arity"),
            Reject::new(op, vec![w, f(&[11, 6]), f(&[11, 6])], "Rank"),
            Reject::new(op, vec![f(&[27]), value, value], "Rank"),
            Reject::new(op, vec![f(&[12, 4]), value, value], "Shapes"),
            Reject::new(op, vec![w, f(&[12, 2, 3]), f(&[12, 2, 3])], "Shapes"),
            Reject::new(op, vec![w, f(&[0, 2, 3]), f(&[0, 2, 3])], "Shapes"),
            Reject::new(op, vec![w, value, f(&[11, 3, 2])], "Shapes"),
            Reject::new(masked, vec![w, value, value, f(&[3, 2])], "Shapes"),
            Reject::new(op, vec![w, value, Meta::u32(dims(&[11, 2, 3]))], "DType"),
        ]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        let terms = |s: super::Sizes| (s.steps + 1) * (s.columns() + s.columns() / 1024 + 2 + FORMULA);
        self.sizes(ins).map_or(Bound::EXACT, |s| Bound { ulps: 1.0, terms: terms(s) as f64 })
    }
}
