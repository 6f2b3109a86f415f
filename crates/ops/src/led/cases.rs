//! What the checks run these ops on.

use super::{Led, slot};
use crate::cases::{Bound, Cases, Reject, Sample, SampleIn, edge_shape};
use crate::pointwise::map::sample_formula;
use crate::pointwise::program::Program;
use crate::{AnyOp, dims, norm, softmax};
use dittograd_device::Meta;
use dittograd_numerics::rng::Stream;
use dittograd_numerics::shape::Shape;
use std::sync::Arc;

impl Cases for Led {
    fn samples() -> Vec<Sample<Led>> {
        let any = |d: &[usize]| SampleIn::any(dims(d));
        let mut all = Vec::new();
        // Rows in registers, with and without a tail, and rows that are not; what the program reads at the place, by
        // column, row, from rows that repeat, from a single element, and as only the CPU and the program alone can.
        for (b, m, n) in [
            (1, 5, 1),
            (2, 3, 32),
            (2, 7, 33),
            (1, 4, 300),
            (3, 2, 512),
            (1, 2, 1024),
            (2, 3, 1030),
            (0, 2, 4),
        ] {
            let (whole, row) = (any(&[b, m, n]), any(&[n]));
            let others = [
                [&[b, m, n][..], &[n], &[]],
                [&[b, m, n], &[m, n], &[b, m, 1]],
                [&[1, m, n], &[b, m, n], &[b, 1, n]],
            ];
            for (i, others) in others.into_iter().enumerate() {
                let mut push = |base: AnyOp, own: &[SampleIn]| {
                    let op = Led::sample(base, &[b, m, n]);
                    all.push(Sample { op, ins: own.iter().cloned().chain(others.map(any)).collect() });
                };
                match i {
                    0 => {
                        push(softmax::Softmax.into(), &[]);
                        push(norm::LayerNorm { axes: 1, eps: 1e-5 }.into(), &[row.clone(), row.clone()]);
                    }
                    1 => {
                        push(softmax::LogSoftmax.into(), &[]);
                        push(softmax::SoftmaxBwd.into(), std::slice::from_ref(&whole));
                        push(norm::RmsNorm { axes: 1, eps: 1e-5 }.into(), std::slice::from_ref(&row));
                    }
                    _ => {
                        push(softmax::LogSoftmaxBwd.into(), std::slice::from_ref(&whole));
                        push(norm::LayerNorm { axes: 2, eps: 1e-5 }.into(), &[]);
                    }
                }
            }
        }
        // Rows of two axes whose gain is one for each, and a mask of fewer rows.
        let op = Led::sample(norm::LayerNorm { axes: 2, eps: 1e-5 }.into(), &[3, 4, 8]);
        let gains = [any(&[4, 8]), any(&[4, 8])];
        all.push(Sample {
            op,
            ins: gains.into_iter().chain([any(&[3, 1, 1]), any(&[3, 4, 8]), any(&[4, 8])]).collect(),
        });
        let op = Led::sample(softmax::MaskedSoftmax.into(), &[2, 3, 40]);
        let mask = SampleIn::Idx(dims(&[3, 40]), 2);
        all.push(Sample { op, ins: vec![mask, any(&[2, 3, 40]), any(&[]), any(&[40])] });
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample<Led>> {
        let shape = edge_shape(1, 3, stream);
        let d = shape.dims();
        let mut other = || {
            let from = stream.below(d.len() + 1);
            let rows = [&d[..d.len() - 1], &[1]].concat();
            SampleIn::any(dims(if stream.below(3) == 0 { &rows } else { &d[from..] }))
        };
        let ins = vec![other(), other(), SampleIn::any(shape)];
        let base = match stream.below(3) {
            0 => softmax::Softmax.into(),
            1 => softmax::LogSoftmax.into(),
            _ => norm::RmsNorm { axes: 1, eps: 1e-5 }.into(),
        };
        Some(Sample { op: Led::sample(base, d), ins })
    }

    fn rejects() -> Vec<Reject<Led>> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = Led::sample(softmax::Softmax.into(), &[2, 3]);
        let ins = vec![f(&[2, 3]), f(&[3]), f(&[])];
        let of = |base: AnyOp| Led { base: Box::new(base), ..op.clone() };
        vec![
            Reject { op: op.clone(), ins: vec![f(&[2, 3])], want: "Arity" },
            Reject { op: Led { shape: dims(&[2, 4]), ..op.clone() }, ins: ins.clone(), want: "Shapes" },
            Reject {
                op: Led { shape: dims(&[2, 0]), ..op.clone() },
                ins: vec![f(&[2, 0]), f(&[]), f(&[])],
                want: "Argument",
            },
            Reject { op: of(crate::pointwise::Exp {}.into()), ins: ins.clone(), want: "Unsupported" },
            Reject { op: Led { slot: 1, ..op.clone() }, ins, want: "Unsupported" },
        ]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        // The program's own roundings are amplified as those of an input are.
        let base = self.base.bound(&self.metas(ins));
        Bound { ulps: 16.0 + 4.0 * base.ulps, terms: 16.0 + 4.0 * base.terms }
    }
}

impl Led {
    pub(super) fn sample(base: AnyOp, shape: &[usize]) -> Led {
        let program = Arc::new(sample_formula(1));
        let slot = slot(&base).unwrap_or(0);
        Led { base: Box::new(base), slot, inputs: program.inputs(), program, shape: dims(shape) }
    }
}

impl Led {
    /// `base(x k)` on a single element, for the checks.
    pub(crate) fn scaled(base: impl Into<AnyOp>) -> Led {
        let program = Arc::new(Program::trace(2, |x| vec![x[0] * x[1]]));
        Led { base: Box::new(base.into()), slot: 0, inputs: 2, program, shape: Shape::SCALAR }
    }
}
