//! What the checks run these ops on.

use super::Fused;
use crate::cases::{Bound, Cases, Reject, Sample, SampleIn};
use crate::led::Led;
use crate::matmul::{Linear, MatMul};
use crate::pointwise::map::sample_formula;
use crate::spectral::AxisMatMul;
use crate::{AnyOp, Op, conv, dims};
use dittograd_device::Meta;
use dittograd_numerics::rng::Stream;
use std::sync::Arc;

impl Cases for Fused {
    fn samples() -> Vec<Sample<Fused>> {
        let any = |d: &[usize]| SampleIn::any(dims(d));
        let mut all = Vec::new();
        // Tiles of every size, several chunks in one block and in blocks of their own, and edges; the others at the
        // place, by column, single, and as only the CPU and the program alone can read them.
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
                all.push(Sample {
                    op: Fused::sample(MatMul { ta: false, tb: false }, 2, results, &[m, n]),
                    ins,
                });
            }
            let ins = vec![any(&[m, k]), any(&[n, k]), any(&[n]), any(&[m, n]), any(&[])];
            all.push(Sample { op: Fused::sample(Linear, 3, 1, &[m, n]), ins });
        }
        for (i, sample) in conv::Conv::samples().into_iter().enumerate().step_by(3) {
            let metas: Vec<Meta> = sample.ins.iter().map(SampleIn::meta).collect();
            let Ok(value) = sample.op.shape(&metas) else { continue };
            let d = value.shape.dims().to_vec();
            let results = if value.shape.numel().is_multiple_of(4) { 1 + i % 2 } else { 1 };
            let inputs = sample.ins.len();
            let mut ins = sample.ins;
            ins.extend([any(&d), any(&[])]);
            all.push(Sample { op: Fused::sample(sample.op, inputs, results, &d), ins });
        }
        for (b, k, w) in [(3, 33, 8), (2, 40, 1), (5, 2050, 4), (1, 7, 5)] {
            let (d, ins) = ([b, 6, w], vec![any(&[6, k]), any(&[b, k, w]), any(&[b, 6, w]), any(&[w])]);
            let op = Fused::sample(AxisMatMul { ta: false }, 2, if b * w % 2 == 0 { 2 } else { 1 }, &d);
            all.push(Sample { op, ins });
        }
        // The value under another shape.
        let op = Fused::sample(MatMul { ta: true, tb: false }, 2, 2, &[2, 3, 4]);
        all.push(Sample { op, ins: vec![any(&[5, 6]), any(&[5, 4]), any(&[2, 3, 4]), any(&[4])] });
        // Rows in registers, with and without a tail, and rows that are not.
        for (m, n) in [(5, 1), (3, 32), (7, 33), (4, 300), (2, 1024), (3, 1030), (0, 4)] {
            let results = if (m * n) % 4 == 0 { 2 } else { 1 };
            let (x, column) = (any(&[m, n]), any(&[n]));
            let others = vec![column.clone(), any(&[m, n])];
            let with = |own: Vec<SampleIn>| [own, others.clone()].concat();
            let rows = |op: AnyOp, own: Vec<SampleIn>| Sample {
                op: Fused::sample(op, own.len(), results, &[m, n]),
                ins: with(own),
            };
            all.push(rows(crate::softmax::Softmax.into(), vec![x.clone()]));
            all.push(rows(crate::softmax::LogSoftmaxBwd.into(), vec![x.clone(), x.clone()]));
            let norm = crate::norm::LayerNorm { axes: 1, eps: 1e-5 };
            all.push(rows(norm.into(), vec![x.clone(), column.clone(), column.clone()]));
            let norm = crate::norm::RmsNorm { axes: 1, eps: 1e-5 };
            all.push(rows(norm.into(), vec![x.clone()]));
            // A program before as well.
            let led = Led { shape: dims(&[m, n]), ..Led::scaled(crate::softmax::Softmax) };
            all.push(rows(led.into(), vec![x, any(&[])]));
        }
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample<Fused>> {
        let base = MatMul::random(stream)?;
        let metas: Vec<Meta> = base.ins.iter().map(SampleIn::meta).collect();
        let d = base.op.shape(&metas).ok()?.shape.dims().to_vec();
        let several = (d[0] * d[1]).is_multiple_of(4) && stream.below(2) == 0;
        let mut ins = base.ins;
        for _ in 0..2 {
            let other = [&d[..], &d[1..], &[]][stream.below(3)];
            ins.push(SampleIn::any(dims(other)));
        }
        Some(Sample { op: Fused::sample(base.op, 2, if several { 3 } else { 1 }, &d), ins })
    }

    fn rejects() -> Vec<Reject<Fused>> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = Fused::sample(MatMul { ta: false, tb: false }, 2, 1, &[2, 3]);
        let ins = |other: Meta| vec![f(&[2, 4]), f(&[4, 3]), other, f(&[])];
        let of = |base: AnyOp| Fused { base: Box::new(base), ..op.clone() };
        vec![
            Reject { op: op.clone(), ins: vec![f(&[2, 4]), f(&[4, 3])], want: "Arity" },
            Reject { op: Fused { shape: dims(&[2, 4]), ..op.clone() }, ins: ins(f(&[])), want: "Shapes" },
            Reject { op: of(crate::pointwise::Add {}.into()), ins: ins(f(&[])), want: "Unsupported" },
        ]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        let base = self.base.bound(&ins[..self.inputs]);
        Bound { ulps: 4.0 + base.ulps, terms: 16.0 + 4.0 * base.terms }
    }
}

impl Fused {
    pub(super) fn sample(base: impl Into<AnyOp>, inputs: usize, results: usize, shape: &[usize]) -> Fused {
        let program = Arc::new(sample_formula(results));
        Fused { base: Box::new(base.into()), inputs, program, shape: dims(shape) }
    }
}
