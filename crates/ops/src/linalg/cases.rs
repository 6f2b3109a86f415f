//! What the checks run these ops on.

use super::{Cholesky, Lu, Qr, TriangularSolve};
use crate::cases::{Bound, Cases, Reject, Sample, SampleIn, pick};
use crate::dims;
use dittograd_device::Meta;
use dittograd_numerics::K_CHUNK;
use dittograd_numerics::rng::Stream;

/// Batches and sizes of matrices: around the edges of vectors, panels, warps and blocks.
const SIZES: [[usize; 2]; 15] = [
    [1, 1],
    [2, 2],
    [3, 5],
    [1, 8],
    [5, 9],
    [1, 15],
    [2, 16],
    [1, 17],
    [2, 33],
    [1, 63],
    [1, 64],
    [3, 65],
    [1, 130],
    [0, 3],
    [2, 0],
];

/// A matrix of several blocks on the CPU, and more rows than are subtracted at a time.
const SEVERAL_BLOCKS: [usize; 2] = [1, 290];

/// Sizes that random matrices are drawn from.
const EDGES: [usize; 12] = [1, 3, 7, 8, 16, 17, 31, 32, 33, 64, 65, 129];

fn f(d: &[usize]) -> Meta {
    Meta::f32(dims(d))
}

/// Numbers of a range that is not symmetric, so that none that cannot be solved with are drawn.
const RANGE: (f64, f64) = (-1.0, 0.875);

impl Cases for Cholesky {
    fn samples() -> Vec<Sample> {
        let one = |(i, [batch, n]): (usize, [usize; 2])| {
            let ins = vec![SampleIn::Dominant(dims(&[batch, n, n]), RANGE, 0)];
            [i % 2 == 0, i % 2 == 1].map(|upper| Sample::new(Cholesky { upper }, ins.clone()))
        };
        SIZES.into_iter().chain([SEVERAL_BLOCKS]).enumerate().flat_map(one).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (batch, n) = (1 + stream.below(5), pick(&EDGES, stream));
        let op = Cholesky { upper: stream.below(2) == 1 };
        Some(Sample::new(op, vec![SampleIn::Dominant(dims(&[batch, n, n]), RANGE, 0)]))
    }

    fn rejects() -> Vec<Reject> {
        let op = Cholesky { upper: false };
        vec![
            Reject::new(op, vec![], "Arity"),
            Reject::new(op, vec![f(&[3, 3])], "Rank"),
            Reject::new(op, vec![f(&[2, 3, 4])], "Argument"),
            Reject::new(op, vec![Meta::u32(dims(&[2, 3, 3]))], "DType"),
        ]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        // A step of a path is a product, a root or a quotient, and a column has each once.
        Bound { ulps: 1.0, terms: 3.0 * ins[0].shape.last() as f64 + 3.0 }
    }
}

/// Inputs of a system.
fn system(op: TriangularSolve, batch: usize, n: usize, m: usize) -> Sample {
    let b = if op.right { [batch, m, n] } else { [batch, n, m] };
    // Without a diagonal, elements must be small for the solution not to grow from row to row.
    let range = if op.unit { (-0.0625, 0.0625) } else { RANGE };
    let a = SampleIn::Dominant(dims(&[batch, n, n]), range, 0);
    Sample::new(op, vec![a, SampleIn::any(dims(&b))])
}

fn random_solve(stream: &mut Stream) -> TriangularSolve {
    let [upper, ta, unit, right] = [0; 4].map(|_| stream.below(2) == 1);
    TriangularSolve { upper, ta, unit, right }
}

impl Cases for TriangularSolve {
    fn samples() -> Vec<Sample> {
        let mut all = Vec::new();
        for (i, [batch, n]) in SIZES.into_iter().enumerate() {
            for (k, m) in [1, 3, 17, 40].into_iter().enumerate() {
                // All sixteen kinds, each with several sizes.
                let kind = i * 5 + k * 7;
                let [upper, ta, unit, right] = [1, 2, 4, 8].map(|bit| kind & bit != 0);
                all.push(system(TriangularSolve { upper, ta, unit, right }, batch, n, m));
            }
        }
        for kind in 0..16 {
            let [upper, ta, unit, right] = [1, 2, 4, 8].map(|bit| kind & bit != 0);
            all.push(system(TriangularSolve { upper, ta, unit, right }, 2, 4, 3));
        }
        let plain = TriangularSolve { upper: false, ta: false, unit: false, right: false };
        all.push(system(plain, 2, 3, 0));
        let [batch, n] = SEVERAL_BLOCKS;
        all.push(system(plain, batch, n, 40));
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let op = random_solve(stream);
        Some(system(op, 1 + stream.below(3), pick(&EDGES, stream), pick(&EDGES, stream)))
    }

    fn rejects() -> Vec<Reject> {
        let op = TriangularSolve { upper: false, ta: false, unit: false, right: false };
        let right = TriangularSolve { right: true, ..op };
        vec![
            Reject::new(op, vec![f(&[2, 3, 3])], "Arity"),
            Reject::new(op, vec![f(&[3, 3]), f(&[3, 3])], "Rank"),
            Reject::new(op, vec![f(&[1, 3, 3]), f(&[3, 3])], "Rank"),
            Reject::new(op, vec![f(&[2, 3, 4]), f(&[2, 3, 1])], "Argument"),
            Reject::new(op, vec![f(&[2, 3, 3]), f(&[1, 3, 1])], "Shapes"),
            Reject::new(op, vec![f(&[2, 3, 3]), f(&[2, 4, 3])], "Shapes"),
            Reject::new(right, vec![f(&[2, 3, 3]), f(&[2, 3, 4])], "Shapes"),
            Reject::new(op, vec![f(&[2, 3, 3]), Meta::u32(dims(&[2, 3, 1]))], "DType"),
        ]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        // A step of a path is a product or a quotient, and a row has each once.
        Bound { ulps: 1.0, terms: 2.0 * ins[0].shape.last() as f64 + 2.0 }
    }
}

/// Matrices that are not square, around the edges of panels.
const OBLONG: [[usize; 3]; 12] = [
    [1, 1, 3],
    [2, 3, 1],
    [2, 5, 9],
    [3, 9, 5],
    [1, 15, 18],
    [1, 17, 70],
    [1, 70, 17],
    [2, 33, 34],
    [2, 66, 33],
    [2, 0, 3],
    [2, 3, 0],
    [0, 2, 3],
];

impl Cases for Lu {
    fn samples() -> Vec<Sample> {
        // The large elements are off the diagonal, so that rows are exchanged.
        let square = |(i, [batch, n]): (usize, [usize; 2])| {
            Sample::new(Lu {}, vec![SampleIn::Dominant(dims(&[batch, n, n]), RANGE, i * 3)])
        };
        let oblong = |d: [usize; 3]| Sample::new(Lu {}, vec![SampleIn::Dominant(dims(&d), RANGE, 0)]);
        let large = square((SIZES.len(), SEVERAL_BLOCKS));
        SIZES
            .into_iter()
            .enumerate()
            .map(square)
            .chain(OBLONG.into_iter().map(oblong))
            .chain([large])
            .collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let [batch, m, n] = [1 + stream.below(5), pick(&EDGES, stream), pick(&EDGES, stream)];
        let shift = if m == n { stream.below(n) } else { 0 };
        Some(Sample::new(Lu {}, vec![SampleIn::Dominant(dims(&[batch, m, n]), RANGE, shift)]))
    }

    fn rejects() -> Vec<Reject> {
        vec![
            Reject::new(Lu {}, vec![], "Arity"),
            Reject::new(Lu {}, vec![f(&[3, 3])], "Rank"),
            Reject::new(Lu {}, vec![f(&[1 << 23, 3, 3])], "Argument"),
            Reject::new(Lu {}, vec![Meta::u32(dims(&[2, 3, 3]))], "DType"),
        ]
    }

    fn statistics(&self, ins: &[Meta]) -> std::ops::Range<usize> {
        let (all, d) = (ins[0].shape.numel(), ins[0].shape);
        all..all + d.dims()[0] * (d.dims()[1] + 1)
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        // A step of a path is a product or a quotient, and a column has each once.
        let pivots = ins[0].shape.dims()[1].min(ins[0].shape.last());
        Bound { ulps: 1.0, terms: 2.0 * pivots as f64 + 2.0 }
    }
}

/// Tall matrices, around the edges of blocks and of the chunks of a sum.
const TALL: [[usize; 3]; 14] = [
    [1, 1, 1],
    [2, 2, 2],
    [1, 5, 1],
    [3, 9, 5],
    [2, 16, 16],
    [1, 31, 31],
    [1, 33, 33],
    [2, 40, 32],
    [1, 70, 65],
    [1, 1026, 3],
    [1, 1060, 34],
    [2, 3, 0],
    [0, 3, 2],
    [2, 0, 0],
];

impl Cases for Qr {
    fn samples() -> Vec<Sample> {
        let of = |d: [usize; 3], (low, high): (f64, f64), by: f64| {
            Sample::new(Qr {}, vec![SampleIn::Dominant(dims(&d), (low * by, high * by), 0)])
        };
        // Squares of these are no numbers of float32.
        let huge = [[2, 9, 5], [1, 70, 33]].map(|d| of(d, RANGE, 1e30));
        TALL.into_iter().map(|d| of(d, RANGE, 1.0)).chain(huge).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (m, n) = (pick(&EDGES, stream), pick(&EDGES, stream));
        let d = [1 + stream.below(5), m.max(n), m.min(n)];
        Some(Sample::new(Qr {}, vec![SampleIn::Dominant(dims(&d), RANGE, 0)]))
    }

    fn rejects() -> Vec<Reject> {
        vec![
            Reject::new(Qr {}, vec![], "Arity"),
            Reject::new(Qr {}, vec![f(&[3, 3])], "Rank"),
            Reject::new(Qr {}, vec![f(&[2, 3, 4])], "Argument"),
            Reject::new(Qr {}, vec![Meta::u32(dims(&[2, 3, 3]))], "DType"),
        ]
    }

    fn statistics(&self, ins: &[Meta]) -> std::ops::Range<usize> {
        let (d, all) = (ins[0].shape.dims(), ins[0].shape.numel());
        let first = d[0] * d[2] * d[2] + all;
        first..first + all + d[0] * d[2]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        // A reflection is a sum over rows, a root, quotients, and a product more; a column of both factors has each once.
        let d = ins[0].shape.dims();
        Bound {
            ulps: 1.0,
            terms: 2.0 * d[2] as f64 * (d[1].min(K_CHUNK) + d[1].div_ceil(K_CHUNK) + 6) as f64,
        }
    }
}
