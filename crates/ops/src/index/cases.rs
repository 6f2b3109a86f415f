//! What the checks run these ops on.

use super::{
    Combine, FlatIndex, IndexAdd, IndexEq, IndexSelect, ScatterAdd, ScatterLast, ScatterReduce,
    TakeAlongAxis, ToFloat, ToIndex,
};
use crate::cases::{Bound, Cases, EDGES, Reject, Sample, SampleIn, VOLUME, edge_dims, pick};
use crate::dims;
use dittograd_device::Meta;
use dittograd_numerics::rng::Stream;
use dittograd_numerics::shape::MAX_RANK;

/// Indices run past the end of the axis where they are not checked.
fn index_bound(size: usize, checked: bool) -> u32 {
    if checked { size as u32 } else { (size + size / 4 + 1) as u32 }
}

fn select(x: &[usize], axis: usize, index: &[usize], checked: bool) -> Sample {
    let index = SampleIn::Idx(dims(index), index_bound(x[axis], checked));
    Sample::new(IndexSelect { axis, checked }, vec![SampleIn::any(dims(x)), index])
}

impl Cases for IndexSelect {
    fn samples() -> Vec<Sample> {
        select_cases()
            .into_iter()
            .map(|(x, axis, index, checked)| select(&x, axis, &index, checked))
            .collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (x, axis, index) = random_index(stream);
        Some(select(&x, axis, &index, stream.below(2) == 0))
    }

    fn rejects() -> Vec<Reject> {
        let (f, u) = (|d: &[usize]| Meta::f32(dims(d)), |d: &[usize]| Meta::u32(dims(d)));
        let op = |axis| IndexSelect { axis, checked: false };
        vec![
            Reject::new(op(0), vec![f(&[3])], "Arity"),
            Reject::new(op(0), vec![f(&[3]), f(&[2])], "DType"),
            Reject::new(op(0), vec![f(&[]), u(&[2])], "Axis"),
            Reject::new(op(2), vec![f(&[3, 4]), u(&[2])], "Axis"),
            Reject::new(op(0), vec![f(&[1; MAX_RANK - 2]), u(&[1; 4])], "Argument"),
            Reject::new(op(0), vec![f(&[u32::MAX as usize, 0]), u(&[2])], "Argument"),
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0]]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}

/// Shapes of a value, an axis, and shapes of indices for it; whether indices are checked.
pub(super) fn select_cases() -> Vec<(Vec<usize>, usize, Vec<usize>, bool)> {
    vec![
        (vec![7], 0, vec![5], false),
        (vec![7], 0, vec![], true),
        (vec![1], 0, vec![1], true),
        (vec![0], 0, vec![3], false),
        (vec![5, 3], 0, vec![9], false),
        (vec![5, 8], 0, vec![2, 3], true),
        (vec![4, 6, 5], 1, vec![7], false),
        (vec![4, 6, 4], 1, vec![2, 2], true),
        (vec![3, 9], 1, vec![33], false),
        (vec![2, 0, 3], 1, vec![2], false),
        (vec![5, 0], 0, vec![4], false),
        (vec![5, 3], 0, vec![0], true),
        (vec![6, 64], 0, vec![129], true),
        (vec![513, 4], 0, vec![700], false),
    ]
}

pub(super) fn random_index(stream: &mut Stream) -> (Vec<usize>, usize, Vec<usize>) {
    loop {
        let x = edge_dims(1, 3, stream);
        let axis = stream.below(x.len());
        let count = pick(&EDGES, stream);
        if x.iter().product::<usize>() / x[axis] * count <= VOLUME {
            return (x, axis, vec![count]);
        }
    }
}

impl Cases for IndexAdd {
    fn samples() -> Vec<Sample> {
        let mut all: Vec<_> = select_cases()
            .into_iter()
            .enumerate()
            .map(|(i, (x, axis, index, checked))| index_add(&x, axis, &index, checked, i % 2 == 0))
            .collect();
        // All to one place, one place each, and more sources than rows.
        all.push(index_add(&[1, 5], 0, &[300], true, false));
        all.push(index_add(&[3000, 8], 0, &[100], true, true));
        all.push(index_add(&[2, 900, 8], 1, &[30], false, false));
        all.push(index_add(&[40, 5, 3], 1, &[6], false, true));
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (x, axis, index) = random_index(stream);
        Some(index_add(&x, axis, &index, stream.below(2) == 0, stream.below(2) == 0))
    }

    fn rejects() -> Vec<Reject> {
        let (f, u) = (|d: &[usize]| Meta::f32(dims(d)), |d: &[usize]| Meta::u32(dims(d)));
        let op = |axis, size| IndexAdd { axis, size, checked: false };
        vec![
            Reject::new(op(0, 4), vec![f(&[3])], "Arity"),
            Reject::new(op(0, 4), vec![f(&[3]), f(&[3])], "DType"),
            Reject::new(op(0, 4), vec![f(&[3]), u(&[2])], "Shapes"),
            Reject::new(op(2, 4), vec![f(&[3, 2]), u(&[2])], "Axis"),
            Reject::new(op(usize::MAX, 4), vec![f(&[3, 2]), u(&[2])], "Axis"),
            Reject::new(op(0, 4), vec![f(&[3, 2]), u(&[3]), f(&[3, 2])], "Shapes"),
            Reject::new(op(0, 4), vec![f(&[3, 2]), u(&[3]), u(&[4, 2])], "DType"),
            Reject::new(op(0, u32::MAX as usize), vec![f(&[3]), u(&[3])], "Argument"),
        ]
    }

    fn linear(&self, ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![(0..ins.len()).step_by(2).collect()]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        Bound { ulps: 0.0, terms: ins[1].shape.numel() as f64 + 1.0 }
    }
}

pub(super) fn index_add(x: &[usize], axis: usize, index: &[usize], checked: bool, base: bool) -> Sample {
    let src = [&x[..axis], index, &x[axis + 1..]].concat();
    let bound = index_bound(x[axis], checked);
    let mut ins = vec![SampleIn::any(dims(&src)), SampleIn::Idx(dims(index), bound)];
    if base {
        ins.push(SampleIn::any(dims(x)));
    }
    Sample::new(IndexAdd { axis, size: x[axis], checked }, ins)
}

impl Cases for TakeAlongAxis {
    fn samples() -> Vec<Sample> {
        along_cases()
            .into_iter()
            .map(|(x, axis, count, checked)| take_along(&x, axis, count, checked))
            .collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (x, axis, index) = random_index(stream);
        Some(take_along(&x, axis, index[0], stream.below(2) == 0))
    }

    fn rejects() -> Vec<Reject> {
        let (f, u) = (|d: &[usize]| Meta::f32(dims(d)), |d: &[usize]| Meta::u32(dims(d)));
        let op = |axis| TakeAlongAxis { axis, checked: false };
        vec![
            Reject::new(op(0), vec![f(&[3])], "Arity"),
            Reject::new(op(0), vec![f(&[3]), f(&[2])], "DType"),
            Reject::new(op(0), vec![f(&[]), u(&[])], "Axis"),
            Reject::new(op(0), vec![f(&[3, 4]), u(&[2])], "Shapes"),
            Reject::new(op(0), vec![f(&[3, 4]), u(&[2, 3])], "Shapes"),
            Reject::new(op(0), vec![f(&[u32::MAX as usize, 0]), u(&[2, 0])], "Argument"),
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0]]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}

/// Shapes of a value, an axis, how many indices go along it, and whether they are checked.
pub(super) fn along_cases() -> Vec<(Vec<usize>, usize, usize, bool)> {
    vec![
        (vec![7], 0, 5, false),
        (vec![1], 0, 1, true),
        (vec![0], 0, 3, false),
        (vec![5, 3], 0, 9, false),
        (vec![5, 8], 1, 1, true),
        (vec![4, 6, 5], 1, 7, false),
        (vec![4, 6, 4], 2, 2, true),
        (vec![2, 0, 3], 1, 2, false),
        (vec![5, 0], 0, 4, false),
        (vec![5, 3], 0, 0, true),
        (vec![700], 0, 900, false),
        (vec![3, 70], 1, 65, true),
    ]
}

pub(super) fn take_along(x: &[usize], axis: usize, count: usize, checked: bool) -> Sample {
    let mut index = x.to_vec();
    index[axis] = count;
    let index = SampleIn::Idx(dims(&index), index_bound(x[axis], checked));
    Sample::new(TakeAlongAxis { axis, checked }, vec![SampleIn::any(dims(x)), index])
}

impl Cases for ScatterAdd {
    fn samples() -> Vec<Sample> {
        let mut all: Vec<_> = along_cases()
            .into_iter()
            .enumerate()
            .map(|(i, (x, axis, count, checked))| scatter(&x, axis, count, checked, i % 2 == 0))
            .collect();
        // All to one place; few indices to many places; more columns than a GPU has threads; many rows of single elements.
        all.push(scatter(&[1], 0, 300, true, false));
        all.push(scatter(&[513, 37], 1, 150, false, true));
        all.push(scatter(&[600, 1], 1, 40, true, false));
        all.push(scatter(&[5000, 3], 0, 20, true, true));
        all.push(scatter(&[2, 3, 4200], 1, 70, false, false));
        all.push(scatter(&[40, 7, 3], 1, 4, false, true));
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (x, axis, index) = random_index(stream);
        Some(scatter(&x, axis, index[0], stream.below(2) == 0, stream.below(2) == 0))
    }

    fn rejects() -> Vec<Reject> {
        let (f, u) = (|d: &[usize]| Meta::f32(dims(d)), |d: &[usize]| Meta::u32(dims(d)));
        let op = |axis, size| ScatterAdd { axis, size, checked: false };
        vec![
            Reject::new(op(0, 4), vec![f(&[3])], "Arity"),
            Reject::new(op(0, 4), vec![f(&[3]), f(&[3])], "DType"),
            Reject::new(op(0, 4), vec![f(&[3]), u(&[2])], "Shapes"),
            Reject::new(op(1, 4), vec![f(&[3]), u(&[3])], "Axis"),
            Reject::new(op(0, 4), vec![f(&[3, 2]), u(&[3, 2]), f(&[3, 2])], "Shapes"),
            Reject::new(op(0, 4), vec![f(&[3, 2]), u(&[3, 2]), u(&[4, 2])], "DType"),
            Reject::new(op(0, u32::MAX as usize), vec![f(&[3]), u(&[3])], "Argument"),
        ]
    }

    fn linear(&self, ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![(0..ins.len()).step_by(2).collect()]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        Bound { ulps: 0.0, terms: ins[1].shape.dims()[self.axis] as f64 + 1.0 }
    }
}

pub(super) fn scatter(x: &[usize], axis: usize, count: usize, checked: bool, base: bool) -> Sample {
    let mut src = x.to_vec();
    src[axis] = count;
    let bound = index_bound(x[axis], checked);
    let mut ins = vec![SampleIn::any(dims(&src)), SampleIn::Idx(dims(&src), bound)];
    if base {
        ins.push(SampleIn::any(dims(x)));
    }
    Sample::new(ScatterAdd { axis, size: x[axis], checked }, ins)
}

/// Shapes for ops of single elements: empty, one, tile edges, and more than one task of the thread pool.
const SHAPES: [&[usize]; 7] = [&[], &[0], &[1], &[5, 3], &[2, 0, 4], &[33, 65], &[3, 128, 65]];

impl Cases for ToFloat {
    fn samples() -> Vec<Sample> {
        // Small indices, and those that are rounded.
        let sample = |(d, bound)| Sample::new(ToFloat {}, vec![SampleIn::Idx(dims(d), bound)]);
        SHAPES.into_iter().flat_map(|d| [(d, 10), (d, u32::MAX)]).map(sample).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let x = edge_dims(1, 3, stream);
        Some(Sample::new(ToFloat {}, vec![SampleIn::Idx(dims(&x), [7, 1 << 25, u32::MAX][stream.below(3)])]))
    }

    fn rejects() -> Vec<Reject> {
        let (f, u) = (Meta::f32(dims(&[3])), Meta::u32(dims(&[3])));
        vec![
            Reject::new(ToFloat {}, vec![], "Arity"),
            Reject::new(ToFloat {}, vec![u, u], "Arity"),
            Reject::new(ToFloat {}, vec![f], "DType"),
        ]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound { ulps: 0.5, terms: 0.0 }
    }
}

impl Cases for ToIndex {
    fn samples() -> Vec<Sample> {
        let sample = |(d, below)| Sample::new(ToIndex { below }, vec![SampleIn::any(dims(d))]);
        SHAPES.into_iter().flat_map(|d| [(d, 1), (d, 2), (d, u32::MAX)]).map(sample).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let x = edge_dims(1, 3, stream);
        Some(Sample::new(ToIndex { below: [1, 3, u32::MAX][stream.below(3)] }, vec![SampleIn::any(dims(&x))]))
    }

    fn rejects() -> Vec<Reject> {
        let (f, u) = (Meta::f32(dims(&[3])), Meta::u32(dims(&[3])));
        vec![
            Reject::new(ToIndex { below: 3 }, vec![], "Arity"),
            Reject::new(ToIndex { below: 3 }, vec![u], "DType"),
            Reject::new(ToIndex { below: 0 }, vec![f], "Argument"),
        ]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}

impl Cases for IndexEq {
    fn samples() -> Vec<Sample> {
        let sample = |(d, bound)| {
            Sample::new(IndexEq {}, vec![SampleIn::Idx(dims(d), bound), SampleIn::Idx(dims(d), bound)])
        };
        // Mostly equal, often equal, never equal by chance.
        SHAPES.into_iter().flat_map(|d| [(d, 1), (d, 3), (d, u32::MAX)]).map(sample).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (x, bound) = (dims(&edge_dims(1, 3, stream)), [2, 5][stream.below(2)]);
        Some(Sample::new(IndexEq {}, vec![SampleIn::Idx(x, bound), SampleIn::Idx(x, bound)]))
    }

    fn rejects() -> Vec<Reject> {
        let (f, u) = (|d: &[usize]| Meta::f32(dims(d)), |d: &[usize]| Meta::u32(dims(d)));
        vec![
            Reject::new(IndexEq {}, vec![u(&[3])], "Arity"),
            Reject::new(IndexEq {}, vec![f(&[3]), u(&[3])], "DType"),
            Reject::new(IndexEq {}, vec![u(&[3]), f(&[3])], "DType"),
            Reject::new(IndexEq {}, vec![u(&[3]), u(&[1])], "Shapes"),
        ]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}

const COMBINES: [Combine; 3] = [Combine::Prod, Combine::Amax, Combine::Amin];

fn reduce(combine: Combine, x: &[usize], axis: usize, count: usize, checked: bool) -> Sample {
    let mut src = x.to_vec();
    src[axis] = count;
    let index = SampleIn::Idx(dims(&src), index_bound(x[axis], checked));
    // Products near 1, so that long ones stay in range; many different numbers, so that few extremes are equal.
    let range = if combine == Combine::Prod { (0.97, 1.03) } else { (-2000.0, 2000.0) };
    let ins = vec![SampleIn::Num(dims(&src), range), index, SampleIn::Num(dims(x), range)];
    Sample::new(ScatterReduce { axis, combine, checked }, ins)
}

impl Cases for ScatterReduce {
    fn samples() -> Vec<Sample> {
        let mut shapes = along_cases();
        // All to one place; few indices to many places; more columns than a GPU has threads; many outer positions.
        shapes.push((vec![1], 0, 300, true));
        shapes.push((vec![513, 37], 1, 150, false));
        shapes.push((vec![5000, 3], 0, 20, true));
        shapes.push((vec![2, 3, 4200], 1, 70, false));
        shapes.push((vec![40, 7, 3], 1, 4, false));
        let one = |combine| {
            shapes.iter().map(move |(x, axis, count, checked)| reduce(combine, x, *axis, *count, *checked))
        };
        COMBINES.into_iter().flat_map(one).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (x, axis, index) = random_index(stream);
        Some(reduce(COMBINES[stream.below(3)], &x, axis, index[0], stream.below(2) == 0))
    }

    fn rejects() -> Vec<Reject> {
        let (f, u) = (|d: &[usize]| Meta::f32(dims(d)), |d: &[usize]| Meta::u32(dims(d)));
        let op = |axis| ScatterReduce { axis, combine: Combine::Amax, checked: false };
        let sum = ScatterReduce { combine: Combine::Sum, ..op(0) };
        vec![
            Reject::new(op(0), vec![f(&[3]), u(&[3])], "Arity"),
            Reject::new(op(0), vec![f(&[3]), f(&[3]), f(&[3])], "DType"),
            Reject::new(op(0), vec![f(&[3]), u(&[3]), u(&[3])], "DType"),
            Reject::new(op(0), vec![u(&[3]), u(&[3]), f(&[3])], "DType"),
            Reject::new(op(0), vec![f(&[3]), u(&[2]), f(&[3])], "Shapes"),
            Reject::new(op(1), vec![f(&[3]), u(&[3]), f(&[3])], "Axis"),
            Reject::new(op(0), vec![f(&[3, 2]), u(&[3, 2]), f(&[4, 3])], "Shapes"),
            Reject::new(sum, vec![f(&[3]), u(&[3]), f(&[3])], "Argument"),
        ]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        match self.combine {
            // A rounding of the product is at most an ulp of it, and later ones grow it by less than another.
            Combine::Prod => Bound { ulps: 2.0 * ins[1].shape.dims()[self.axis] as f64, terms: 0.0 },
            Combine::Sum | Combine::Amax | Combine::Amin => Bound::EXACT,
        }
    }
}

fn last(x: &[usize], axis: usize, count: usize, checked: bool) -> Sample {
    let mut index = x.to_vec();
    index[axis] = count;
    let index = SampleIn::Idx(dims(&index), index_bound(x[axis], checked));
    Sample::new(ScatterLast { axis, size: x[axis], checked }, vec![index])
}

impl Cases for ScatterLast {
    fn samples() -> Vec<Sample> {
        let mut shapes = along_cases();
        shapes.push((vec![1], 0, 300, true));
        shapes.push((vec![40_000], 0, 50_000, false));
        shapes.push((vec![40, 7, 3], 1, 4, false));
        shapes.iter().map(|(x, axis, count, checked)| last(x, *axis, *count, *checked)).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (x, axis, index) = random_index(stream);
        Some(last(&x, axis, index[0], stream.below(2) == 0))
    }

    fn rejects() -> Vec<Reject> {
        let (f, u) = (|d: &[usize]| Meta::f32(dims(d)), |d: &[usize]| Meta::u32(dims(d)));
        let op = |axis, size| ScatterLast { axis, size, checked: false };
        vec![
            Reject::new(op(0, 4), vec![], "Arity"),
            Reject::new(op(0, 4), vec![f(&[3])], "DType"),
            Reject::new(op(1, 4), vec![u(&[3])], "Axis"),
            Reject::new(op(0, u32::MAX as usize), vec![u(&[3])], "Argument"),
            Reject::new(op(0, 4), vec![u(&[u32::MAX as usize, 0])], "Argument"),
        ]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}

fn flat(shape: &[usize], sizes: &[usize]) -> Sample {
    let index = |&d: &usize| SampleIn::Idx(dims(shape), index_bound(d, false));
    Sample::new(FlatIndex { dims: sizes.to_vec() }, sizes.iter().map(index).collect())
}

impl Cases for FlatIndex {
    fn samples() -> Vec<Sample> {
        SHAPES.into_iter().flat_map(|d| [flat(d, &[7]), flat(d, &[5, 9]), flat(d, &[3, 4, 33])]).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let sizes: Vec<usize> = (0..=stream.below(3)).map(|_| 1 + stream.below(60)).collect();
        Some(flat(&edge_dims(1, 3, stream), &sizes))
    }

    fn rejects() -> Vec<Reject> {
        let (f, u) = (|d: &[usize]| Meta::f32(dims(d)), |d: &[usize]| Meta::u32(dims(d)));
        let op = |sizes: &[usize]| FlatIndex { dims: sizes.to_vec() };
        vec![
            Reject::new(op(&[]), vec![], "Arity"),
            Reject::new(op(&[3, 4]), vec![u(&[2])], "Arity"),
            Reject::new(op(&[3]), vec![f(&[2])], "DType"),
            Reject::new(op(&[3, 4]), vec![u(&[2]), u(&[3])], "Shapes"),
            Reject::new(op(&[1 << 16, 1 << 16]), vec![u(&[2]), u(&[2])], "Argument"),
        ]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}
