//! What the checks run these ops on.

use super::AxisMap;
use super::broadcast::BroadcastTo;
use super::concat::Concat;
use super::flip::Flip;
use super::pad::Pad;
use super::permute::Permute;
use super::reshape::{Detach, Reshape};
use super::slice::Slice;
use super::triangle::Triangle;
use crate::cases::{Bound, Cases, Reject, Sample, SampleIn, edge_dims, sample, sample_shapes};
use crate::dims;
use dittograd_device::Meta;
use dittograd_numerics::rng::Stream;
use dittograd_numerics::shape::{MAX_RANK, Shape};

impl AxisMap {
    /// Input axes are the first ones of the output: `[C]` to `[C, H, W]`.
    pub fn leading(from: &Shape, to: &Shape) -> AxisMap {
        let mut axes = [None; MAX_RANK];
        for (axis, a) in axes.iter_mut().enumerate().take(from.rank()) {
            *a = Some(axis as u8);
        }
        AxisMap { axes, rank: to.rank() as u8 }
    }
}

impl Cases for BroadcastTo {
    fn samples() -> Vec<Sample> {
        let numpy: [(&[usize], &[usize]); 8] = [
            (&[], &[3, 4]),
            (&[4], &[3, 4]),
            (&[3, 1], &[3, 64]),
            (&[1, 5], &[2, 7, 5]),
            (&[1], &[0]),
            (&[2, 1, 3], &[2, 4, 3]),
            (&[5], &[5]),
            (&[1, 64], &[129, 64]),
        ];
        let mut samples: Vec<_> = numpy
            .iter()
            .map(|(from, to)| {
                Sample::new(BroadcastTo::numpy(&dims(from), dims(to)), vec![SampleIn::any(dims(from))])
            })
            .collect();
        let (from, to) = (dims(&[3]), dims(&[3, 5, 2]));
        let op = BroadcastTo { shape: to, map: AxisMap::leading(&from, &to) };
        samples.push(Sample::new(op, vec![SampleIn::any(from)]));
        samples
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let to = edge_dims(1, 4, stream);
        let (mut from, mut map) = (Vec::new(), Vec::new());
        for &d in &to {
            match stream.below(3) {
                0 => map.push(None),
                narrow => {
                    map.push(Some(from.len()));
                    from.push(if narrow == 1 { 1 } else { d });
                }
            }
        }
        Some(sample(BroadcastTo { shape: dims(&to), map: AxisMap::new(&map).ok()? }, &[&from]))
    }

    fn rejects() -> Vec<Reject> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = BroadcastTo::numpy(&dims(&[3]), dims(&[2, 3]));
        vec![
            Reject::new(op.clone(), vec![], "Arity"),
            Reject::new(op.clone(), vec![f(&[2])], "Shapes"),
            Reject::new(op.clone(), vec![f(&[0])], "Shapes"),
            Reject::new(op.clone(), vec![f(&[])], "Axis"),
            Reject::new(op, vec![f(&[1, 2, 3])], "Shapes"),
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0]]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}

impl Cases for Reshape {
    fn samples() -> Vec<Sample> {
        let flat = |s: Shape| Sample::new(Reshape { shape: dims(&[s.numel()]) }, vec![SampleIn::any(s)]);
        sample_shapes().into_iter().map(flat).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let from = edge_dims(1, 3, stream);
        let mut turned = from.clone();
        turned.rotate_left(1);
        Some(sample(Reshape { shape: dims(&turned) }, &[&from]))
    }

    fn rejects() -> Vec<Reject> {
        let op = Reshape { shape: dims(&[2, 3]) };
        vec![Reject::new(op.clone(), vec![], "Arity"), Reject::new(op, vec![Meta::f32(dims(&[5]))], "Shapes")]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0]]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}

impl Cases for Detach {
    fn samples() -> Vec<Sample> {
        sample_shapes().into_iter().map(|s| Sample::new(Detach, vec![SampleIn::any(s)])).collect()
    }

    fn rejects() -> Vec<Reject> {
        vec![Reject::new(Detach, vec![], "Arity")]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}

impl Cases for Permute {
    fn samples() -> Vec<Sample> {
        let cases: [(&[usize], &[usize]); 22] = [
            (&[], &[]),
            (&[0], &[5]),
            (&[1, 0], &[1, 7]),
            (&[1, 0], &[31, 33]),
            (&[1, 0], &[129, 64]),
            (&[1, 0], &[0, 4]),
            (&[0, 2, 1], &[3, 32, 65]),
            (&[1, 2, 0], &[4, 5, 6]),
            (&[2, 0, 1], &[4, 5, 6]),
            (&[2, 1, 0], &[4, 5, 6]),
            (&[0, 2, 1, 3], &[2, 3, 4, 5]),
            // What only moves axes of one element, which shares memory.
            (&[1, 0, 2], &[5, 1, 7]),
            // Tiles: square, long along either axis, with axes before and between, and too small for any.
            (&[2, 0, 1], &[33, 2, 65]),
            (&[2, 1, 0], &[40, 3, 35]),
            (&[1, 2, 0], &[3, 40, 11]),
            (&[0, 2, 1], &[2, 300, 3]),
            (&[0, 2, 1], &[2, 3, 300]),
            (&[3, 1, 0, 2], &[34, 2, 3, 33]),
            (&[2, 3, 0, 1], &[5, 7, 6, 9]),
            (&[4, 2, 0, 3, 1], &[3, 5, 2, 4, 17]),
            (&[1, 0], &[2, 1030]),
            (&[1, 0], &[17, 260]),
        ];
        let sample = |(order, d): &(&[usize], &[usize])| {
            Sample::new(Permute { order: order.to_vec() }, vec![SampleIn::any(dims(d))])
        };
        cases.iter().map(sample).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let from = edge_dims(2, 4, stream);
        Some(sample(Permute { order: stream.permutation(from.len()) }, &[&from]))
    }

    fn rejects() -> Vec<Reject> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = |order: &[usize]| Permute { order: order.to_vec() };
        vec![
            Reject::new(op(&[1, 0]), vec![], "Arity"),
            Reject::new(op(&[1, 0]), vec![f(&[2, 3, 4])], "Argument"),
            Reject::new(op(&[0, 0]), vec![f(&[2, 3])], "Axis"),
            Reject::new(op(&[0, 2]), vec![f(&[2, 3])], "Axis"),
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0]]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}

impl Cases for Slice {
    fn samples() -> Vec<Sample> {
        run_cases()
            .into_iter()
            .map(|(d, axis, start, len, step)| sample(Slice { axis, start, len, step }, &[&d]))
            .collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (d, axis, start, len, step) = random_run(stream);
        Some(sample(Slice { axis, start, len, step }, &[&d]))
    }

    fn rejects() -> Vec<Reject> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = |axis, start, len, step| Slice { axis, start, len, step };
        vec![
            Reject::new(op(0, 0, 1, 1), vec![], "Arity"),
            Reject::new(op(0, 0, 1, 1), vec![f(&[])], "Axis"),
            Reject::new(op(2, 0, 1, 1), vec![f(&[2, 3])], "Axis"),
            Reject::new(op(1, 1, 3, 1), vec![f(&[2, 3])], "Argument"),
            Reject::new(op(1, 4, 0, 1), vec![f(&[2, 3])], "Argument"),
            Reject::new(op(1, 0, 3, 2), vec![f(&[2, 3])], "Argument"),
            Reject::new(op(1, 0, 1, 0), vec![f(&[2, 3])], "Argument"),
            Reject::new(op(1, usize::MAX, 2, 1), vec![f(&[2, 3])], "Argument"),
            Reject::new(op(1, 1, 2, usize::MAX), vec![f(&[2, 3])], "Argument"),
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0]]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}

/// Shapes with an axis, a start, a length and a step.
pub(super) fn run_cases() -> Vec<(Vec<usize>, usize, usize, usize, usize)> {
    vec![
        (vec![7], 0, 2, 3, 1),
        (vec![64], 0, 4, 12, 1),
        (vec![64], 0, 3, 20, 3),
        (vec![5, 3], 0, 1, 2, 1),
        (vec![5, 4], 0, 1, 3, 1),
        (vec![5, 4], 0, 1, 2, 2),
        (vec![5, 33], 1, 1, 31, 1),
        (vec![3, 64], 1, 4, 32, 1),
        (vec![3, 64], 1, 5, 20, 2),
        (vec![2, 6, 8], 1, 1, 3, 2),
        (vec![2, 6, 5], 1, 0, 6, 1),
        (vec![2, 6, 5], 2, 4, 1, 1),
        (vec![4, 3], 0, 2, 0, 1),
        (vec![0, 3], 1, 1, 2, 1),
        (vec![130, 516], 0, 1, 128, 1),
    ]
}

pub(super) fn random_run(stream: &mut Stream) -> (Vec<usize>, usize, usize, usize, usize) {
    let d = edge_dims(1, 3, stream);
    let axis = stream.below(d.len());
    let step = 1 + stream.below(3);
    let start = stream.below(d[axis]);
    let len = 1 + stream.below((d[axis] - 1 - start) / step + 1);
    (d, axis, start, len, step)
}

impl Cases for Pad {
    fn samples() -> Vec<Sample> {
        let of = |value: f32| run_cases().into_iter().map(move |case| pad_sample(case, value));
        of(0.0).chain(of(-1.5)).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let value = [0.0, 2.5][stream.below(2)];
        Some(pad_sample(random_run(stream), value))
    }

    fn rejects() -> Vec<Reject> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = |axis, start, step, size| Pad { axis, start, step, size, value: 0.0 };
        vec![
            Reject::new(op(0, 0, 1, 4), vec![], "Arity"),
            Reject::new(op(2, 0, 1, 4), vec![f(&[2, 3])], "Axis"),
            Reject::new(op(1, 0, 1, 2), vec![f(&[2, 3])], "Argument"),
            Reject::new(op(1, 2, 1, 4), vec![f(&[2, 3])], "Argument"),
            Reject::new(op(1, 0, 0, 4), vec![f(&[2, 3])], "Argument"),
            Reject::new(op(1, 0, 1, 4), vec![Meta::u32(dims(&[2, 3]))], "DType"),
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        if self.value == 0.0 { vec![vec![0]] } else { Vec::new() }
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}

pub(super) fn pad_sample(
    (mut d, axis, start, len, step): (Vec<usize>, usize, usize, usize, usize),
    value: f32,
) -> Sample {
    let size = std::mem::replace(&mut d[axis], len);
    sample(Pad { axis, start, step, size, value }, &[&d])
}

impl Cases for Concat {
    fn samples() -> Vec<Sample> {
        let cases: [(usize, &[&[usize]]); 9] = [
            (0, &[&[3], &[5]]),
            (0, &[&[4]]),
            (0, &[&[2, 3], &[0, 3], &[1, 3]]),
            (1, &[&[2, 3], &[2, 5]]),
            (1, &[&[3, 4], &[3, 8], &[3, 64]]),
            (1, &[&[2, 3, 5], &[2, 1, 5]]),
            (2, &[&[2, 3, 4], &[2, 3, 4], &[2, 3, 0]]),
            (1, &[&[0, 3], &[0, 2]]),
            (0, &[&[1, 33][..]; 32]),
        ];
        cases.iter().map(|(axis, ins)| sample(Concat { axis: *axis }, ins)).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let d = edge_dims(1, 3, stream);
        let axis = stream.below(d.len());
        let other = |s: &mut Stream| {
            let mut d = d.clone();
            d[axis] = s.below(d[axis] + 1);
            d
        };
        let ins = [d.clone(), other(stream), other(stream)];
        Some(sample(Concat { axis }, &ins.each_ref().map(|d| &d[..])))
    }

    fn rejects() -> Vec<Reject> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let op = |axis| Concat { axis };
        vec![
            Reject::new(op(0), vec![], "Arity"),
            Reject::new(op(0), vec![f(&[1]); 33], "Arity"),
            Reject::new(op(0), vec![f(&[]), f(&[])], "Axis"),
            Reject::new(op(1), vec![f(&[2]), f(&[2])], "Axis"),
            Reject::new(op(0), vec![f(&[2, 3]), f(&[2, 4])], "Shapes"),
            Reject::new(op(0), vec![f(&[2, 3]), f(&[2])], "Shapes"),
            Reject::new(op(0), vec![f(&[2]), Meta::u32(dims(&[2]))], "DType"),
            Reject::new(op(0), vec![f(&[usize::MAX >> 4, 0]); 20], "TooLarge"),
        ]
    }

    fn linear(&self, ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![(0..ins.len()).collect()]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}

impl Cases for Flip {
    fn samples() -> Vec<Sample> {
        let cases: [(&[usize], &[usize]); 10] = [
            (&[0], &[7]),
            (&[0], &[1]),
            (&[0], &[0]),
            (&[], &[2, 3]),
            (&[0], &[5, 8]),
            (&[1], &[5, 8]),
            (&[0, 1], &[5, 6]),
            (&[0, 2], &[3, 4, 5]),
            (&[1], &[3, 4, 12]),
            (&[2, 0], &[33, 3, 130]),
        ];
        cases.iter().map(|(axes, d)| sample(Flip { axes: axes.to_vec() }, &[d])).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let d = edge_dims(1, 4, stream);
        let axes = (0..d.len()).filter(|_| stream.below(2) == 0).collect();
        Some(sample(Flip { axes }, &[&d]))
    }

    fn rejects() -> Vec<Reject> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        vec![
            Reject::new(Flip { axes: vec![0] }, vec![], "Arity"),
            Reject::new(Flip { axes: vec![0] }, vec![f(&[])], "Axis"),
            Reject::new(Flip { axes: vec![2] }, vec![f(&[2, 3])], "Axis"),
            Reject::new(Flip { axes: vec![1, 1] }, vec![f(&[2, 3])], "Axis"),
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0]]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}

impl Cases for Triangle {
    fn samples() -> Vec<Sample> {
        let shapes: [&[usize]; 5] = [&[4, 4], &[3, 7], &[2, 7, 3], &[0, 3], &[2, 3, 0]];
        let mut all = Vec::new();
        for (i, d) in shapes.iter().enumerate() {
            for shift in [0, 1, -1, 9, -9] {
                all.push(sample(Triangle { upper: (i as i64 + shift) % 2 == 0, shift }, &[d]));
            }
        }
        all.push(sample(Triangle { upper: true, shift: 0 }, &[&[65, 130]]));
        all.push(sample(Triangle { upper: false, shift: i64::MAX }, &[&[3, 3]]));
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let d = edge_dims(2, 4, stream);
        let d = if d.len() < 2 { vec![d[0], 1] } else { d };
        let shift = stream.below(40) as i64 - 20;
        Some(sample(Triangle { upper: stream.below(2) == 0, shift }, &[&d]))
    }

    fn rejects() -> Vec<Reject> {
        let op = Triangle { upper: true, shift: 0 };
        vec![
            Reject::new(op, vec![], "Arity"),
            Reject::new(op, vec![Meta::f32(dims(&[3]))], "Rank"),
            Reject::new(op, vec![Meta::u32(dims(&[3, 3]))], "DType"),
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0]]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}
