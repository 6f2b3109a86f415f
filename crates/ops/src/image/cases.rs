//! What the checks run these ops on.

use super::{
    Filter, GridMode, GridPadding, GridSample, GridSampleGridBwd, GridSampleInputBwd, Resample, ResampleBwd,
    Sampling, Scaling,
};
use crate::cases::{Bound, Cases, Reject, Sample, SampleIn};
use crate::dims;
use Filter::{Cubic, Linear, Nearest, NearestExact};
use GridMode::{Bicubic, Bilinear};
use GridPadding::{Border, Reflection, Zeros};
use dittograd_device::Meta;
use dittograd_numerics::rng::Stream;
use dittograd_numerics::shape::Shape;

fn scaling(filter: Filter, align_corners: bool, antialias: bool, steps: &[f64]) -> Scaling {
    Scaling { filter, align_corners, antialias, steps: steps.to_vec() }
}

/// Input dimensions, sizes, and how they are reached.
fn resamplings() -> Vec<(Vec<usize>, Vec<usize>, Scaling)> {
    let mut all = Vec::new();
    let mut add = |x: &[usize], sizes: &[usize], filter, align, wide, steps: &[f64]| {
        let steps = if steps.is_empty() { vec![0.0; sizes.len()] } else { steps.to_vec() };
        all.push((x.to_vec(), sizes.to_vec(), scaling(filter, align, wide, &steps)));
    };
    for filter in [Nearest, NearestExact] {
        add(&[5], &[8], filter, false, false, &[]);
        add(&[2, 3, 4, 5], &[8, 3], filter, false, false, &[]);
        add(&[2, 3, 2, 5], &[2, 5, 3], filter, false, false, &[]);
        add(&[3, 7], &[9], filter, false, false, &[0.75]);
    }
    for filter in [Linear, Cubic] {
        add(&[2, 5], &[10], filter, false, false, &[]);
        add(&[2, 5], &[11], filter, true, false, &[]);
        add(&[2, 3, 4, 6], &[8, 12], filter, false, false, &[]);
        add(&[5, 7, 9], &[4, 3], filter, false, false, &[]);
        add(&[5, 4, 5], &[7, 9], filter, true, false, &[]);
        add(&[1, 6, 5], &[10, 8], filter, false, false, &[0.6, 0.625]);
        add(&[2, 9, 17], &[4, 5], filter, false, true, &[]);
        add(&[2, 3, 4], &[5, 9], filter, false, true, &[]);
        add(&[1, 8, 6], &[3, 1], filter, true, true, &[]);
        add(&[2, 1, 1], &[3, 4], filter, false, false, &[]);
        add(&[2, 3, 5], &[1, 1], filter, true, false, &[]);
        add(&[2, 2, 3, 4], &[4, 5, 6], filter, false, false, &[]);
        add(&[1, 3, 2, 5], &[2, 3, 9], filter, true, false, &[]);
    }
    add(&[0, 4, 4], &[8, 8], Linear, false, false, &[]);
    add(&[9, 33, 40], &[66, 80], Linear, false, false, &[]);
    add(&[2, 70, 3], &[1, 40], Linear, false, true, &[]);
    all
}

fn random_resampling(stream: &mut Stream) -> (Vec<usize>, Vec<usize>, Scaling) {
    let side = |stream: &mut Stream| [3, 4, 7, 31, 32, 33, 65][stream.below(7)];
    let x = vec![1 + stream.below(9), side(stream), side(stream)];
    let filter = [Nearest, NearestExact, Linear, Cubic][stream.below(4)];
    let smooth = matches!(filter, Linear | Cubic);
    let (align, wide) = (smooth && stream.below(2) == 0, smooth && stream.below(3) == 0);
    (x, vec![side(stream), side(stream)], scaling(filter, align, wide, &[0.0; 2]))
}

fn bad_resamplings() -> Vec<(Scaling, Vec<usize>, Vec<usize>, &'static str)> {
    let plain = |filter, n: usize| scaling(filter, false, false, &vec![0.0; n]);
    vec![
        (plain(Linear, 0), vec![], vec![4], "Argument"),
        (plain(Linear, 4), vec![2; 4], vec![2; 5], "Argument"),
        (plain(Linear, 1), vec![2, 2], vec![4, 4], "Argument"),
        (scaling(Linear, false, false, &[-1.0]), vec![2], vec![4], "Argument"),
        (scaling(Linear, false, false, &[f64::NAN]), vec![2], vec![4], "Argument"),
        (plain(Linear, 2), vec![2, 2], vec![4], "Rank"),
        (plain(Linear, 1), vec![0], vec![4], "Argument"),
        (plain(Linear, 1), vec![3], vec![0], "Argument"),
        (plain(Linear, 1), vec![1 << 31], vec![4], "Argument"),
        (scaling(Linear, false, true, &[1e12]), vec![1 << 20], vec![1 << 20], "Argument"),
        (scaling(Nearest, true, false, &[0.0]), vec![3], vec![4], "Argument"),
        (scaling(NearestExact, false, true, &[0.0]), vec![3], vec![4], "Argument"),
    ]
}

/// The sum of all chains of an axis after another; weights are rounded once.
fn resample_bound(scaling: &Scaling, x: &Shape, sizes: &[usize]) -> Bound {
    let at = x.rank() - sizes.len();
    let taps = |(a, &to): (usize, &usize)| {
        let from = x.dims()[at + a];
        let forth = scaling.line(a, from, to).most_taps();
        forth.max(from.max(to))
    };
    Bound { ulps: 1.0, terms: 4.0 + sizes.iter().enumerate().map(taps).sum::<usize>() as f64 }
}

macro_rules! resample_cases {
    ($op:ident, $from:expr) => {
        impl Cases for $op {
            fn samples() -> Vec<Sample> {
                resamplings().into_iter().map($from).collect()
            }

            fn random(stream: &mut Stream) -> Option<Sample> {
                Some($from(random_resampling(stream)))
            }

            fn rejects() -> Vec<Reject> {
                let one = |(scaling, sizes, x, want): (Scaling, Vec<usize>, Vec<usize>, _)| {
                    Reject::new($op { scaling, sizes }, vec![Meta::f32(dims(&x))], want)
                };
                let mut all: Vec<_> = bad_resamplings().into_iter().map(one).collect();
                let op = $op { scaling: scaling(Linear, false, false, &[0.0]), sizes: vec![2] };
                all.push(Reject::new(op.clone(), vec![], "Arity"));
                all.push(Reject::new(op, vec![Meta::u32(dims(&[4]))], "DType"));
                all
            }

            fn bound(&self, ins: &[Meta]) -> Bound {
                resample_bound(&self.scaling, &ins[0].shape, &self.sizes)
            }

            fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
                // The weights are 1.
                if matches!(self.scaling.filter, Nearest | NearestExact) { vec![vec![0]] } else { Vec::new() }
            }
        }
    };
}

resample_cases!(Resample, |(x, sizes, scaling): (Vec<usize>, Vec<usize>, Scaling)| {
    Sample::new(Resample { scaling, sizes }, vec![SampleIn::any(dims(&x))])
});
resample_cases!(ResampleBwd, |(x, sizes, scaling): (Vec<usize>, Vec<usize>, Scaling)| {
    let at = x.len() - sizes.len();
    let dy = [&x[..at], &sizes[..]].concat();
    Sample::new(ResampleBwd { scaling, sizes: x[at..].to_vec() }, vec![SampleIn::any(dims(&dy))])
});

fn sampling(mode: GridMode, padding: GridPadding, align_corners: bool, orders: &[usize]) -> Sampling {
    Sampling { mode, padding, align_corners, orders: orders.to_vec() }
}

/// Dimensions of images, places of a grid, and how it reads. Places between elements, where slopes change, are at multiples of
/// powers of two, which the numbers of checks of gradients avoid.
fn samplings() -> Vec<(Vec<usize>, Vec<usize>, Sampling)> {
    let mut all = Vec::new();
    let mut add =
        |x: &[usize], places: &[usize], sampling: Sampling| all.push((x.to_vec(), places.to_vec(), sampling));
    for padding in [Zeros, Border, Reflection] {
        for mode in [Bilinear, GridMode::Nearest, Bicubic] {
            add(&[2, 3, 4, 8], &[3, 5], sampling(mode, padding, false, &[0, 0]));
            add(&[1, 2, 3, 5], &[2, 3], sampling(mode, padding, true, &[0, 0]));
        }
        add(&[1, 2, 2, 4, 4], &[2, 2, 3], sampling(Bilinear, padding, false, &[0; 3]));
        add(&[1, 2, 3, 5, 3], &[2, 1, 3], sampling(GridMode::Nearest, padding, true, &[0; 3]));
    }
    add(&[2, 1, 1, 1], &[2, 2], sampling(Bilinear, Reflection, true, &[0, 0]));
    add(&[1, 2, 1, 1], &[2, 2], sampling(Bicubic, Reflection, true, &[0, 0]));
    add(&[2, 9, 4, 8], &[1, 3], sampling(Bilinear, Zeros, false, &[0, 1]));
    add(&[1, 2, 4, 4], &[2, 3], sampling(Bicubic, Border, false, &[1, 2]));
    add(&[1, 2, 4, 4], &[2, 3], sampling(Bicubic, Zeros, false, &[3, 0]));
    add(&[0, 2, 4, 4], &[2, 3], sampling(Bilinear, Zeros, false, &[0, 0]));
    add(&[2, 0, 4, 4], &[2, 3], sampling(Bilinear, Zeros, false, &[0, 0]));
    add(&[2, 3, 4, 4], &[0, 3], sampling(Bilinear, Zeros, false, &[0, 0]));
    add(&[2, 11, 16, 32], &[20, 40], sampling(Bilinear, Border, false, &[0, 0]));
    add(&[3, 18, 5, 7], &[9, 31], sampling(GridMode::Nearest, Zeros, false, &[0, 0]));
    all
}

fn random_sampling(stream: &mut Stream) -> (Vec<usize>, Vec<usize>, Sampling) {
    let side = |stream: &mut Stream| [1, 3, 7, 16, 31, 32, 33][stream.below(7)];
    let x = vec![1 + stream.below(3), 1 + stream.below(10), side(stream), side(stream)];
    // Few kinds, since each is a kernel of its own.
    let mode = [Bilinear, Bicubic][stream.below(2)];
    let sampling = sampling(mode, [Zeros, Border][stream.below(2)], false, &[0, 0]);
    (x, vec![side(stream), side(stream)], sampling)
}

/// Grids are a little larger than images, and not symmetric: wider ones would be beyond all of them.
fn grid(x: &[usize], places: &[usize]) -> SampleIn {
    SampleIn::Num(dims(&[&x[..1], places, &[places.len()]].concat()), (-1.3, 1.4))
}

fn values(x: &[usize], places: &[usize]) -> SampleIn {
    SampleIn::any(dims(&[&x[..2], places].concat()))
}

type Reading = (Vec<usize>, Vec<usize>, Sampling);

fn sample_case((x, places, sampling): Reading) -> Sample {
    Sample::new(GridSample { sampling }, vec![SampleIn::any(dims(&x)), grid(&x, &places)])
}

fn input_case((x, places, sampling): Reading) -> Sample {
    let op = GridSampleInputBwd { sampling, sizes: x[2..].to_vec() };
    Sample::new(op, vec![values(&x, &places), grid(&x, &places)])
}

fn grid_case((x, places, sampling): Reading) -> Sample {
    let ins = vec![SampleIn::any(dims(&x)), grid(&x, &places), values(&x, &places)];
    Sample::new(GridSampleGridBwd { sampling }, ins)
}

/// Roundings of a place, its weights and the sum of its elements.
fn place_terms(sampling: &Sampling) -> f64 {
    28.0 + sampling.taps() as f64
}

fn f(d: &[usize]) -> Meta {
    Meta::f32(dims(d))
}

impl Cases for GridSample {
    fn samples() -> Vec<Sample> {
        samplings().into_iter().map(sample_case).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        Some(sample_case(random_sampling(stream)))
    }

    fn rejects() -> Vec<Reject> {
        let op = |orders: &[usize]| GridSample { sampling: sampling(Bilinear, Zeros, false, orders) };
        let cubic = GridSample { sampling: sampling(Bicubic, Zeros, false, &[0; 3]) };
        vec![
            Reject::new(op(&[0, 0]), vec![f(&[1, 1, 4, 4])], "Arity"),
            Reject::new(op(&[0, 0]), vec![f(&[1, 1, 4, 4]), Meta::u32(dims(&[1, 2, 2, 2]))], "DType"),
            Reject::new(op(&[0, 0]), vec![f(&[1]), f(&[1, 2, 2, 2])], "Rank"),
            Reject::new(op(&[0]), vec![f(&[1, 1, 4]), f(&[1, 2, 1])], "Argument"),
            Reject::new(cubic, vec![f(&[1, 1, 4, 4, 4]), f(&[1, 2, 2, 2, 3])], "Argument"),
            Reject::new(op(&[0, 0]), vec![f(&[1, 1, 4, 4]), f(&[1, 2, 2, 3])], "Rank"),
            Reject::new(op(&[0, 0]), vec![f(&[1, 1, 4, 4]), f(&[1, 2, 2])], "Rank"),
            Reject::new(op(&[0, 0]), vec![f(&[1, 1, 4, 4]), f(&[2, 2, 2, 2])], "Argument"),
            Reject::new(op(&[0, 0]), vec![f(&[1, 1, 4]), f(&[1, 2, 2, 2])], "Argument"),
            Reject::new(op(&[0, 0]), vec![f(&[1, 1, 4, 0]), f(&[1, 2, 2, 2])], "Argument"),
        ]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound { ulps: 1.0, terms: place_terms(&self.sampling) }
    }
}

impl Cases for GridSampleInputBwd {
    fn samples() -> Vec<Sample> {
        samplings().into_iter().map(input_case).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        Some(input_case(random_sampling(stream)))
    }

    fn rejects() -> Vec<Reject> {
        let op = |sizes: &[usize]| GridSampleInputBwd {
            sampling: sampling(Bilinear, Zeros, false, &[0, 0]),
            sizes: sizes.to_vec(),
        };
        vec![
            Reject::new(op(&[4, 4]), vec![f(&[1, 1, 2, 2])], "Arity"),
            Reject::new(op(&[4, 4]), vec![Meta::u32(dims(&[1, 1, 2, 2])), f(&[1, 2, 2, 2])], "DType"),
            Reject::new(op(&[4]), vec![f(&[1, 1, 2, 2]), f(&[1, 2, 2, 2])], "Argument"),
            Reject::new(op(&[4, 0]), vec![f(&[1, 1, 2, 2]), f(&[1, 2, 2, 2])], "Argument"),
            Reject::new(op(&[4, 4]), vec![f(&[1, 1, 2, 3]), f(&[1, 2, 2, 2])], "Shapes"),
            Reject::new(op(&[4, 4]), vec![f(&[3]), f(&[1, 2, 2, 2])], "Rank"),
        ]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        let places: usize = ins[1].shape.dims()[1..self.sizes.len() + 1].iter().product();
        Bound { ulps: 1.0, terms: place_terms(&self.sampling) * (1 + places) as f64 }
    }
}

impl Cases for GridSampleGridBwd {
    fn samples() -> Vec<Sample> {
        samplings().into_iter().filter(|(.., s)| s.mode != GridMode::Nearest).map(grid_case).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        Some(grid_case(random_sampling(stream)))
    }

    fn rejects() -> Vec<Reject> {
        let op = GridSampleGridBwd { sampling: sampling(Bilinear, Zeros, false, &[0, 0]) };
        let (x, grid, dy) = (f(&[1, 1, 4, 4]), f(&[1, 2, 2, 2]), f(&[1, 1, 2, 2]));
        let int = Meta::u32(dims(&[1, 1, 2, 2]));
        vec![
            Reject::new(op.clone(), vec![x, grid], "Arity"),
            Reject::new(op.clone(), vec![x, grid, int], "DType"),
            Reject::new(op.clone(), vec![x, grid, f(&[1, 1, 2, 3])], "Shapes"),
            Reject::new(op.clone(), vec![x, f(&[1, 2, 2, 3]), dy], "Rank"),
            Reject::new(op, vec![f(&[1]), grid, dy], "Rank"),
        ]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        let channels = ins[0].shape.dims()[1] as f64;
        Bound { ulps: 1.0, terms: place_terms(&self.sampling) + channels + 2.0 }
    }
}
