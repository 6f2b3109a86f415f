//! What the checks run fused ops on: epilogues of products, convolutions and rows; prologues of rows; both around reductions.

use super::{Epilogue, Fused, Prologue};
use crate::cases::{Bound, Cases, Reject, Sample, SampleIn, edge_shape};
use crate::loss::{Mse, Reduction};
use crate::matmul::{Linear, MatMul};
use crate::norm::{LayerNorm, RmsNorm};
use crate::pointwise::expression::Pointwise;
use crate::pointwise::map::sample_formula;
use crate::pointwise::{Add, Exp, Neg};
use crate::reduce::{Mean, Sum, Variance};
use crate::softmax::{LogSoftmax, LogSoftmaxBwd, MaskedSoftmax, Softmax, SoftmaxBwd};
use crate::spectral::AxisMatMul;
use crate::{AnyOp, conv, dims};
use dittograd_device::Meta;
use dittograd_numerics::Numerics;
use dittograd_numerics::digits::Digits;
use dittograd_numerics::rng::Stream;
use dittograd_numerics::scalar::Real;
use std::sync::Arc;

fn any(d: &[usize]) -> SampleIn {
    SampleIn::any(dims(d))
}

fn epilogue(results: usize, shape: &[usize]) -> Epilogue {
    Epilogue { program: Arc::new(sample_formula(results)), shape: dims(shape) }
}

/// An op with an epilogue of two more inputs.
fn followed(op: impl Into<AnyOp>, results: usize, shape: &[usize]) -> Fused {
    Fused { prologue: None, op: Box::new(op.into()), epilogue: Some(epilogue(results, shape)) }
}

/// An op on rows with a prologue of three inputs.
fn led(op: AnyOp, shape: &[usize]) -> Fused {
    let slot = match op {
        AnyOp::SoftmaxBwd(_) | AnyOp::LogSoftmaxBwd(_) => 1,
        _ => 0,
    };
    let prologue = Prologue { program: Arc::new(sample_formula(1)), slot, shape: dims(shape) };
    Fused { prologue: Some(prologue), op: Box::new(op), epilogue: None }
}

/// A reduction of `inputs` elements that are computed of two, with an epilogue.
fn folded(op: AnyOp, inputs: usize, d: &[usize]) -> Fused {
    let elements = Pointwise::trace(2, |x| {
        let wave = (x[0] * x[1]).tanh();
        [wave + x[1], x[0] - wave][..inputs].to_vec()
    });
    let after = Pointwise::trace(1, |x| vec![x[0] * x[0] - Real::c(0.25)]);
    let shape = op.shape(&vec![Meta::f32(dims(d)); inputs]).map_or(dims(&[]), |m| m.shape);
    Fused {
        prologue: Some(Prologue { program: Arc::new(elements), slot: 0, shape: dims(d) }),
        op: Box::new(op),
        epilogue: Some(Epilogue { program: Arc::new(after), shape }),
    }
}

fn with_epilogues() -> Vec<Sample> {
    let mut all = Vec::new();
    // Tiles of every size, several chunks in one block and in blocks of their own, and edges; the others at the
    // place, by column, single, and as only the CPU and the epilogue alone can read them.
    for (m, n, k) in
        [(1, 1, 1), (17, 31, 33), (64, 68, 40), (4, 8, 2049), (130, 132, 1030), (0, 4, 3), (4, 5, 0)]
    {
        for (results, others) in
            [(1, [&[m, n][..], &[n]]), (3, [&[n], &[m, n]]), (2, [&[1], &[m, 1]]), (1, [&[m, 1], &[]])]
        {
            if results > 1 && m * n % 4 != 0 {
                continue;
            }
            let ins = vec![any(&[m, k]), any(&[k, n]), any(others[0]), any(others[1])];
            all.push(Sample::new(followed(MatMul { ta: false, tb: false }, results, &[m, n]), ins));
        }
        let ins = vec![any(&[m, k]), any(&[n, k]), any(&[n]), any(&[m, n]), any(&[])];
        all.push(Sample::new(followed(Linear, 1, &[m, n]), ins));
    }
    for (i, sample) in conv::Conv::samples().into_iter().enumerate().step_by(3) {
        let metas: Vec<Meta> = sample.ins.iter().map(SampleIn::meta).collect();
        let Ok(value) = sample.op.shape(&metas) else { continue };
        let d = value.shape.dims().to_vec();
        let results = if value.shape.numel().is_multiple_of(4) { 1 + i % 2 } else { 1 };
        let mut ins = sample.ins;
        ins.extend([any(&d), any(&[])]);
        all.push(Sample::new(followed(sample.op, results, &d), ins));
    }
    for (b, k, w) in [(3, 33, 8), (2, 40, 1), (5, 2050, 4), (1, 7, 5)] {
        let (d, ins) = ([b, 6, w], vec![any(&[6, k]), any(&[b, k, w]), any(&[b, 6, w]), any(&[w])]);
        let op = followed(AxisMatMul { ta: false }, if b * w % 2 == 0 { 2 } else { 1 }, &d);
        all.push(Sample::new(op, ins));
    }
    // The value under another shape.
    let op = followed(MatMul { ta: true, tb: false }, 2, &[2, 3, 4]);
    all.push(Sample::new(op, vec![any(&[5, 6]), any(&[5, 4]), any(&[2, 3, 4]), any(&[4])]));
    // Rows in registers, with and without a tail, and rows that are not.
    for (m, n) in [(5, 1), (3, 32), (7, 33), (4, 300), (2, 1024), (3, 1030), (0, 4)] {
        let results = if (m * n) % 4 == 0 { 2 } else { 1 };
        let (x, column) = (any(&[m, n]), any(&[n]));
        let others = vec![column.clone(), any(&[m, n])];
        let ins = |own: &[&SampleIn]| own.iter().map(|x| (*x).clone()).chain(others.clone()).collect();
        let rows = |op: AnyOp, own: &[&SampleIn]| Sample::new(followed(op, results, &[m, n]), ins(own));
        all.push(rows(Softmax.into(), &[&x]));
        all.push(rows(LogSoftmaxBwd.into(), &[&x, &x]));
        all.push(rows(LayerNorm { axes: 1, eps: 1e-5 }.into(), &[&x, &column, &column]));
        all.push(rows(RmsNorm { axes: 1, eps: 1e-5 }.into(), &[&x]));
        // A prologue as well.
        let scaled = Arc::new(Pointwise::trace(2, |x| vec![x[0] * x[1]]));
        let prologue = Some(Prologue { program: scaled, slot: 0, shape: dims(&[m, n]) });
        let both = Fused { prologue, ..followed(Softmax, results, &[m, n]) };
        all.push(Sample::new(both, ins(&[&x, &any(&[])])));
    }
    all
}

fn with_prologues() -> Vec<Sample> {
    let mut all = Vec::new();
    // Rows in registers, with and without a tail, and rows that are not; what the prologue reads at the place, by
    // column, row, from rows that repeat, from a single element, and as only the CPU and the prologue alone can.
    for (b, m, n) in
        [(1, 5, 1), (2, 3, 32), (2, 7, 33), (1, 4, 300), (3, 2, 512), (1, 2, 1024), (2, 3, 1030), (0, 2, 4)]
    {
        let (whole, row) = (any(&[b, m, n]), any(&[n]));
        let others = [
            [&[b, m, n][..], &[n], &[]],
            [&[b, m, n], &[m, n], &[b, m, 1]],
            [&[1, m, n], &[b, m, n], &[b, 1, n]],
        ];
        for (i, others) in others.into_iter().enumerate() {
            let mut push = |op: AnyOp, own: &[&SampleIn]| {
                let own = own.iter().map(|x| (*x).clone());
                all.push(Sample::new(led(op, &[b, m, n]), own.chain(others.map(any)).collect()));
            };
            match i {
                0 => {
                    push(Softmax.into(), &[]);
                    push(LayerNorm { axes: 1, eps: 1e-5 }.into(), &[&row, &row]);
                }
                1 => {
                    push(LogSoftmax.into(), &[]);
                    push(SoftmaxBwd.into(), &[&whole]);
                    push(RmsNorm { axes: 1, eps: 1e-5 }.into(), &[&row]);
                }
                _ => {
                    push(LogSoftmaxBwd.into(), &[&whole]);
                    push(LayerNorm { axes: 2, eps: 1e-5 }.into(), &[]);
                }
            }
        }
    }
    // Rows of two axes whose gain is one for each, and a mask of fewer rows.
    let op = led(LayerNorm { axes: 2, eps: 1e-5 }.into(), &[3, 4, 8]);
    let gains = [any(&[4, 8]), any(&[4, 8])];
    all.push(Sample::new(
        op,
        gains.into_iter().chain([any(&[3, 1, 1]), any(&[3, 4, 8]), any(&[4, 8])]).collect(),
    ));
    let mask = SampleIn::Idx(dims(&[3, 40]), 2);
    let op = led(MaskedSoftmax.into(), &[2, 3, 40]);
    all.push(Sample::new(op, vec![mask, any(&[2, 3, 40]), any(&[]), any(&[40])]));
    all
}

fn of_reductions() -> Vec<Sample> {
    let mut all = Vec::new();
    let shapes: [&[usize]; 7] = [&[5, 7], &[33, 70], &[4, 1025], &[1, 3], &[3, 0], &[2, 3, 4], &[150_000]];
    for d in shapes {
        let last = d.len() - 1;
        let ops = [
            (Sum::new(&[last]).map(AnyOp::from), 1),
            (Sum::new(&[0]).map(AnyOp::from), 1),
            (Mean::new(&[0, last][..1 + usize::from(last > 0)]).map(AnyOp::from), 1),
            (Ok(Mse { reduction: Reduction::Mean }.into()), 2),
        ];
        for (op, inputs) in ops {
            let Ok(op) = op else { continue };
            // The mean of nothing is not a number.
            if d.contains(&0) && matches!(op, AnyOp::Mean(_)) {
                continue;
            }
            all.push(Sample::new(folded(op, inputs, d), vec![any(d); 2]));
        }
    }
    // Stages that use the result of earlier ones.
    all.extend(
        Variance::new(&[1], 1).map(|op| Sample::new(folded(op.into(), 1, &[6, 40]), vec![any(&[6, 40]); 2])),
    );
    // Either expression alone.
    all.extend(Sum::new(&[1]).map(|op| {
        let prologue_only = Fused { epilogue: None, ..folded(op.into(), 1, &[4, 65]) };
        Sample::new(prologue_only, vec![any(&[4, 65]); 2])
    }));
    all.extend(Sum::new(&[0]).map(|op| {
        let epilogue_only = Fused { prologue: None, ..folded(op.into(), 1, &[65, 4]) };
        Sample::new(epilogue_only, vec![any(&[65, 4])])
    }));
    all
}

impl Cases for Fused {
    fn samples() -> Vec<Sample> {
        [with_epilogues(), with_prologues(), of_reductions()].concat()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        if stream.below(2) == 0 {
            let base = MatMul::random(stream)?;
            let metas: Vec<Meta> = base.ins.iter().map(SampleIn::meta).collect();
            let d = base.op.shape(&metas).ok()?.shape.dims().to_vec();
            let several = (d[0] * d[1]).is_multiple_of(4) && stream.below(2) == 0;
            let mut ins = base.ins;
            for _ in 0..2 {
                let other = [&d[..], &d[1..], &[]][stream.below(3)];
                ins.push(SampleIn::any(dims(other)));
            }
            return Some(Sample::new(followed(base.op, if several { 3 } else { 1 }, &d), ins));
        }
        let shape = edge_shape(1, 3, stream);
        let d = shape.dims();
        let mut other = || {
            let from = stream.below(d.len() + 1);
            let rows = [&d[..d.len() - 1], &[1]].concat();
            SampleIn::any(dims(if stream.below(3) == 0 { &rows } else { &d[from..] }))
        };
        let ins = vec![other(), other(), SampleIn::any(shape)];
        let op = match stream.below(3) {
            0 => Softmax.into(),
            1 => LogSoftmax.into(),
            _ => RmsNorm { axes: 1, eps: 1e-5 }.into(),
        };
        Some(Sample::new(led(op, d), ins))
    }

    fn rejects() -> Vec<Reject> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let reject = |op: &Fused, ins: Vec<Meta>, want| Reject::new(op.clone(), ins, want);
        let with_op = |op: &Fused, inner: AnyOp| Fused { op: Box::new(inner), ..op.clone() };
        let after = followed(MatMul { ta: false, tb: false }, 1, &[2, 3]);
        let wrong = Fused { epilogue: Some(epilogue(1, &[2, 4])), ..after.clone() };
        let operands = |other: Meta| vec![f(&[2, 4]), f(&[4, 3]), other, f(&[])];
        let equal = vec![f(&[2, 3]), f(&[2, 3]), f(&[]), f(&[])];
        let before = led(Softmax.into(), &[2, 3]);
        let rows = vec![f(&[2, 3]), f(&[3]), f(&[])];
        let slot = |slot| {
            let prologue = before.prologue.clone().map(|p| Prologue { slot, ..p });
            Fused { prologue, ..before.clone() }
        };
        let around = folded(Sum::all(2).into(), 1, &[2, 3]);
        let elements = Fused { epilogue: None, ..around.clone() };
        let nothing = Fused { prologue: None, epilogue: None, ..after.clone() };
        let both_results = folded(Mse { reduction: Reduction::Mean }.into(), 2, &[2, 3]);
        vec![
            reject(&after, vec![f(&[2, 4]), f(&[4, 3])], "Arity"),
            reject(&wrong, operands(f(&[])), "Shapes"),
            reject(&after, operands(f(&[5])), "Shapes"),
            reject(&with_op(&after, Add {}.into()), equal, "Unsupported"),
            reject(&nothing, vec![f(&[2, 4]), f(&[4, 3])], "Unsupported"),
            reject(&before, vec![f(&[2, 3])], "Arity"),
            reject(&led(Softmax.into(), &[2, 4]), rows.clone(), "Shapes"),
            reject(&led(Softmax.into(), &[2, 0]), vec![f(&[2, 0]), f(&[]), f(&[])], "Argument"),
            reject(&with_op(&before, Exp {}.into()), rows.clone(), "Unsupported"),
            reject(&slot(1), rows, "Unsupported"),
            reject(&around, vec![f(&[2, 3])], "Arity"),
            reject(&around, vec![f(&[2, 3]), f(&[3])], "Shapes"),
            reject(&around, vec![f(&[2, 3]), Meta::u32(dims(&[2, 3]))], "DType"),
            reject(&with_op(&elements, Neg {}.into()), vec![f(&[2, 3]), f(&[2, 3])], "Unsupported"),
            reject(&with_op(&both_results, Sum::all(2).into()), vec![f(&[2, 3]), f(&[2, 3])], "Arity"),
        ]
    }

    // An epilogue amplifies what digits leave out as it does roundings.
    fn in_digits(&self, ins: &[Meta], numerics: Numerics) -> Option<(Digits, usize)> {
        let (digits, terms) =
            self.op.in_digits(&self.metas(ins), numerics).filter(|_| self.prologue.is_none())?;
        Some((digits, 4 * terms))
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        let metas = self.metas(ins);
        let mut bound = self.op.bound(&metas);
        // The roundings of a prologue are amplified as those of an input are.
        if self.prologue.is_some() && self.op.as_fold(&metas).is_none() {
            bound = Bound { ulps: 16.0 + 4.0 * bound.ulps, terms: 16.0 + 4.0 * bound.terms };
        }
        if self.epilogue.is_some() || self.op.as_fold(&metas).is_some() {
            bound = Bound { ulps: 4.0 + bound.ulps, terms: 16.0 + 4.0 * bound.terms };
        }
        bound
    }
}
