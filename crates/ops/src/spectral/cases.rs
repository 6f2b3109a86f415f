//! What the checks run these ops on.

use super::axis_matmul::AxisMatMul;
use super::conv1d::SpectralConv1d;
use super::dft_table::{DftTable, MAX_GRID};
use super::mode_mix::{ModeMix, ModeMixDw};
use crate::cases::{Bound, Cases, Reject, Sample, VOLUME, WORK, pick, sample};
use crate::dims;
use dittograd_device::Meta;
use dittograd_numerics::digits::Digits;
use dittograd_numerics::rng::Stream;
use dittograd_numerics::{K_CHUNK, Numerics};

/// Roundings of a dot product of `k` terms by C4.
pub(crate) fn chain(k: usize) -> f64 {
    (k.min(K_CHUNK) + k / K_CHUNK + 1) as f64
}

impl Cases for DftTable {
    fn samples() -> Vec<Sample> {
        let real = [(1, 1), (1, 0), (2, 2), (4, 3), (5, 2), (7, 4), (64, 33), (1000, 5)];
        let complex = [(1, 1, 0), (4, 2, 2), (5, 2, 1), (6, 0, 3), (33, 7, 8)];
        let real = real.into_iter().map(|(n, low)| DftTable { n, low, high: 0, complex: false });
        let complex = complex.into_iter().map(|(n, low, high)| DftTable { n, low, high, complex: true });
        real.chain(complex).map(|op| Sample::new(op, vec![])).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let n = 1 + stream.below(300);
        let complex = stream.below(2) == 1;
        let low = stream.below(if complex { n / 2 } else { n / 2 + 1 } + 1);
        let high = if complex { stream.below(n - low + 1) } else { 0 };
        Some(Sample::new(DftTable { n, low, high, complex }, vec![]))
    }

    fn rejects() -> Vec<Reject> {
        let op = |n, low, high, complex| DftTable { n, low, high, complex };
        let reject = |op, want| Reject::new(op, vec![], want);
        vec![
            Reject::new(op(4, 2, 0, false), vec![Meta::f32(dims(&[2]))], "Arity"),
            reject(op(0, 0, 0, false), "Argument"),
            reject(op(MAX_GRID + 1, 1, 0, false), "Argument"),
            reject(op(4, 4, 0, false), "Argument"),
            reject(op(4, 1, 1, false), "Argument"),
            reject(op(4, 3, 2, true), "Argument"),
            reject(op(4, usize::MAX, 2, true), "Argument"),
        ]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        // Half an ulp, and a unit of f64 more.
        Bound { ulps: 0.51, terms: 0.0 }
    }
}

impl Cases for AxisMatMul {
    fn samples() -> Vec<Sample> {
        let cases: [(&[usize], usize); 12] = [
            (&[3, 4], 2),
            (&[2, 5, 3], 4),
            (&[4, 33, 16], 8),
            (&[3, 1025, 5], 7),
            (&[2, 2, 31, 33], 17),
            (&[9, 64, 1], 34),
            (&[0, 3, 2], 4),
            (&[2, 0, 3], 4),
            (&[2, 3, 0], 4),
            (&[2, 3, 4], 0),
            (&[5, 128, 64], 32),
            (&[3, 32, 64], 129),
        ];
        let mut all = Vec::new();
        for (x, m) in cases {
            let k = x[x.len() - 2];
            all.push(sample(AxisMatMul { ta: false }, &[&[m, k], x]));
            all.push(sample(AxisMatMul { ta: true }, &[&[k, m], x]));
        }
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (batch, m, k, w) = loop {
            let one = |s: &mut Stream| pick(&[1, 3, 4, 17, 32, 33, 64, 65, 128, 1024, 1025], s);
            let (batch, m, k, w) = (pick(&[1, 2, 7, 32], stream), one(stream), one(stream), one(stream));
            if batch * (m * k).max(k * w).max(m * w) <= VOLUME && batch * m * k * w <= WORK {
                break (batch, m, k, w);
            }
        };
        let ta = stream.below(2) == 1;
        let a = if ta { [k, m] } else { [m, k] };
        Some(sample(AxisMatMul { ta }, &[&a, &[batch, k, w]]))
    }

    fn rejects() -> Vec<Reject> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = AxisMatMul { ta: false };
        vec![
            Reject::new(op, vec![f(&[2, 3])], "Arity"),
            Reject::new(op, vec![f(&[3]), f(&[3, 2])], "Rank"),
            Reject::new(op, vec![f(&[2, 3]), f(&[3])], "Rank"),
            Reject::new(op, vec![f(&[2, 3]), f(&[4, 2, 2])], "Shapes"),
            Reject::new(AxisMatMul { ta: true }, vec![f(&[2, 3]), f(&[4, 3, 2])], "Shapes"),
            Reject::new(op, vec![f(&[2, 3]), Meta::u32(dims(&[3, 2]))], "DType"),
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0], vec![1]]
    }

    fn in_digits(&self, ins: &[Meta], numerics: Numerics) -> Option<(Digits, usize)> {
        let p = self.of(ins).ok()?.problem();
        Some((Digits::of_product(numerics, p.m, p.n, p.k)?, p.k))
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        self.of(ins).map_or(Bound::EXACT, |a| Bound { ulps: 1.0, terms: chain(a.k) + 1.0 })
    }
}

impl Cases for ModeMix {
    fn samples() -> Vec<Sample> {
        let mut all = Vec::new();
        for ([batch, modes, c, o], lead) in mix_cases().into_iter().zip([0, 1, 2].into_iter().cycle()) {
            for adjoint in [false, true] {
                let inner = if adjoint { o } else { c };
                let x = [&[1, batch][2 - lead.max(usize::from(batch != 1))..], &[2, modes, inner]].concat();
                let w = [modes, c, o];
                all.push(sample(ModeMix { adjoint }, &[&x, &w, &w]));
            }
        }
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let [batch, modes, c, o] = random_mix(stream);
        let adjoint = stream.below(2) == 1;
        let x = [batch, 2, modes, if adjoint { o } else { c }];
        Some(sample(ModeMix { adjoint }, &[&x, &[modes, c, o], &[modes, c, o]]))
    }

    fn rejects() -> Vec<Reject> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = ModeMix { adjoint: false };
        let w = || f(&[3, 4, 5]);
        vec![
            Reject::new(op, vec![f(&[2, 3, 4]), w()], "Arity"),
            Reject::new(op, vec![f(&[3, 4]), w(), w()], "Rank"),
            Reject::new(op, vec![f(&[3, 3, 4]), w(), w()], "Shapes"),
            Reject::new(op, vec![f(&[2, 3, 4]), f(&[3, 4]), f(&[3, 4])], "Rank"),
            Reject::new(op, vec![f(&[2, 3, 4]), w(), f(&[3, 5, 4])], "Shapes"),
            Reject::new(op, vec![f(&[2, 2, 4]), w(), w()], "Shapes"),
            Reject::new(op, vec![f(&[2, 3, 5]), w(), w()], "Shapes"),
            Reject::new(ModeMix { adjoint: true }, vec![f(&[2, 3, 4]), w(), w()], "Shapes"),
            Reject::new(op, vec![f(&[2, 3, 4]), w(), Meta::u32(dims(&[3, 4, 5]))], "DType"),
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0], vec![1, 2]]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        self.of(ins).map_or(Bound::EXACT, |mix| Bound { ulps: 1.0, terms: chain(2 * mix.sides().0) + 1.0 })
    }
}

/// Batch, modes and channels around tiles and the chunk of the dot products.
pub(super) fn mix_cases() -> [[usize; 4]; 11] {
    [
        [1, 1, 1, 1],
        [1, 2, 3, 2],
        [2, 3, 4, 5],
        [9, 2, 33, 31],
        [17, 3, 32, 64],
        [3, 1, 520, 5],
        [0, 2, 3, 4],
        [2, 0, 3, 4],
        [2, 2, 0, 4],
        [2, 2, 3, 0],
        [530, 1, 3, 2],
    ]
}

pub(super) fn random_mix(stream: &mut Stream) -> [usize; 4] {
    loop {
        let one = |s: &mut Stream| pick(&[1, 2, 5, 16, 31, 32, 33, 64, 65, 512, 513], s);
        let d = [one(stream), pick(&[1, 2, 3, 16], stream), one(stream), one(stream)];
        let largest = d[1] * (d[2] * d[3]).max(2 * d[0] * d[2].max(d[3]));
        if largest <= VOLUME && 4 * d.iter().product::<usize>() <= WORK {
            return d;
        }
    }
}

impl Cases for ModeMixDw {
    fn samples() -> Vec<Sample> {
        let one = |[batch, modes, c, o]: [usize; 4]| {
            sample(ModeMixDw, &[&[batch, 2, modes, c], &[batch, 2, modes, o]])
        };
        mix_cases().into_iter().map(one).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let [batch, modes, c, o] = random_mix(stream);
        Some(sample(ModeMixDw, &[&[batch, 2, modes, c], &[batch, 2, modes, o]]))
    }

    fn rejects() -> Vec<Reject> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = ModeMixDw;
        vec![
            Reject::new(op, vec![f(&[2, 3, 4])], "Arity"),
            Reject::new(op, vec![f(&[3, 4]), f(&[2, 3, 4])], "Rank"),
            Reject::new(op, vec![f(&[2, 3, 4]), f(&[1, 3, 4])], "Shapes"),
            Reject::new(op, vec![f(&[2, 3, 4]), f(&[2, 2, 4])], "Shapes"),
            Reject::new(op, vec![f(&[5, 2, 3, 4]), f(&[4, 2, 3, 4])], "Shapes"),
            Reject::new(op, vec![f(&[2, 3, 4]), Meta::u32(dims(&[2, 3, 4]))], "DType"),
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0], vec![1]]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        ModeMixDw::of(ins).map_or(Bound::EXACT, |m| Bound { ulps: 1.0, terms: chain(2 * m.batch) + 1.0 })
    }
}

impl Cases for SpectralConv1d {
    fn samples() -> Vec<Sample> {
        let cases: [(&[usize], usize, usize); 12] = [
            (&[4, 1], 3, 1),
            (&[5, 1], 2, 1),
            (&[1, 1], 1, 2),
            (&[2, 3], 2, 2),
            (&[8, 3], 0, 3),
            (&[3, 7, 2], 4, 5),
            (&[2, 2, 8, 4], 5, 4),
            (&[0, 8, 4], 3, 4),
            (&[2, 33, 5], 17, 3),
            (&[3, 64, 8], 12, 8),
            (&[2, 129, 33], 5, 31),
            (&[1, 1030, 4], 3, 4),
        ];
        let one = |(x, modes, o): (&[usize], usize, usize)| {
            let w = [modes, x[x.len() - 1], o];
            sample(SpectralConv1d, &[x, &w, &w])
        };
        cases.into_iter().map(one).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let n = pick(&[1, 2, 5, 16, 31, 64, 100, 127, 255], stream);
        let modes = stream.below((n / 2 + 2).min(20));
        let (c, o) = (pick(&[1, 3, 16, 33], stream), pick(&[1, 4, 17, 32], stream));
        let w = [modes, c, o];
        Some(sample(SpectralConv1d, &[&[pick(&[1, 2, 9], stream), n, c], &w, &w]))
    }

    fn rejects() -> Vec<Reject> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = SpectralConv1d;
        let w = || f(&[3, 4, 5]);
        vec![
            Reject::new(op, vec![f(&[8, 4]), w()], "Arity"),
            Reject::new(op, vec![f(&[4]), w(), w()], "Rank"),
            Reject::new(op, vec![f(&[0, 4]), w(), w()], "Argument"),
            Reject::new(op, vec![f(&[8, 4]), f(&[3, 4]), f(&[3, 4])], "Rank"),
            Reject::new(op, vec![f(&[8, 4]), w(), f(&[3, 5, 4])], "Shapes"),
            Reject::new(op, vec![f(&[8, 0]), f(&[3, 0, 5]), f(&[3, 0, 5])], "Argument"),
            Reject::new(op, vec![f(&[8, 4]), f(&[3, 4, 0]), f(&[3, 4, 0])], "Argument"),
            Reject::new(op, vec![f(&[3, 4]), w(), w()], "Argument"),
            Reject::new(op, vec![f(&[8, 5]), w(), w()], "Shapes"),
            Reject::new(op, vec![f(&[8, 4]), w(), Meta::u32(dims(&[3, 4, 5]))], "DType"),
        ]
    }

    fn linear(&self, ins: &[Meta]) -> Vec<Vec<usize>> {
        // The tables of these grids hold whole numbers and quarters.
        match SpectralConv1d::of(ins) {
            Ok(conv) if [1, 2, 4].contains(&conv.table.n) => vec![vec![0], vec![1, 2]],
            _ => Vec::new(),
        }
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        let Ok(conv) = SpectralConv1d::of(ins) else { return Bound::EXACT };
        let terms = chain(conv.table.n) + chain(2 * conv.mix.c) + chain(conv.table.rows()) + 5.0;
        Bound { ulps: 1.0, terms }
    }
}
