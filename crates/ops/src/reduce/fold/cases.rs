//! What the checks run these ops on.

use super::Folded;
use crate::cases::{Bound, Cases, Reject, Sample, SampleIn};
use crate::loss::{Mse, Reduction};
use crate::pointwise::Neg as Negative;
use crate::pointwise::program::Program;
use crate::reduce::{Mean, Sum, Variance};
use crate::{AnyOp, dims};
use dittograd_device::Meta;
use dittograd_numerics::scalar::Real;
use std::sync::Arc;

impl Cases for Folded {
    fn samples() -> Vec<Sample<Folded>> {
        let shapes: [&[usize]; 7] =
            [&[5, 7], &[33, 70], &[4, 1025], &[1, 3], &[3, 0], &[2, 3, 4], &[150_000]];
        let mut all = Vec::new();
        for d in shapes {
            let last = d.len() - 1;
            let bases = [
                (Sum::new(&[last]).map(AnyOp::from), 1),
                (Sum::new(&[0]).map(AnyOp::from), 1),
                (Mean::new(&[0, last][..1 + usize::from(last > 0)]).map(AnyOp::from), 1),
                (Ok(Mse { reduction: Reduction::Mean }.into()), 2),
            ];
            for (base, inputs) in bases {
                let Ok(base) = base else { continue };
                // The mean of nothing is not a number.
                if d.contains(&0) && matches!(base, AnyOp::Mean(_)) {
                    continue;
                }
                all.push(Folded::sample(base, inputs, d));
            }
        }
        // Stages that use the result of earlier ones.
        all.extend(Variance::new(&[1], 1).map(|op| Folded::sample(op.into(), 1, &[6, 40])));
        all
    }

    fn rejects() -> Vec<Reject<Folded>> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = Folded::sample(Sum::all(2).into(), 1, &[2, 3]).op;
        let of = |base: AnyOp| Folded { base: Box::new(base), ..op.clone() };
        vec![
            Reject { op: op.clone(), ins: vec![f(&[2, 3])], want: "Arity" },
            Reject { op: op.clone(), ins: vec![f(&[2, 3]), f(&[3])], want: "Shapes" },
            Reject { op: op.clone(), ins: vec![f(&[2, 3]), Meta::u32(dims(&[2, 3]))], want: "DType" },
            Reject { op: of(Negative {}.into()), ins: vec![f(&[2, 3]), f(&[2, 3])], want: "Unsupported" },
        ]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        let base = self.base.bound(&self.base_metas());
        Bound { ulps: 4.0 + base.ulps, terms: 16.0 + 4.0 * base.terms }
    }
}

impl Folded {
    pub(super) fn sample(base: AnyOp, inputs: usize, d: &[usize]) -> Sample<Folded> {
        let before = Program::trace(2, |x| {
            let wave = (x[0] * x[1]).tanh();
            [wave + x[1], x[0] - wave][..inputs].to_vec()
        });
        let after = Program::trace(1, |x| vec![x[0] * x[0] - Real::c(0.25)]);
        let op =
            Folded { base: Box::new(base), before: Arc::new(before), after: Arc::new(after), shape: dims(d) };
        Sample { op, ins: vec![SampleIn::any(dims(d)); 2] }
    }
}
