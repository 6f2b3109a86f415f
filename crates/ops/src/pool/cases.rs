//! What the checks run poolings on.

use super::adaptive::{AdaptiveAvgPool, AdaptiveAvgPoolBwd};
use super::adaptive_max::{AdaptiveMaxPool, AdaptiveMaxPoolBwd, AdaptiveMaxPoolPick};
use super::avg::{AvgPool, AvgPoolBwd};
use super::max::{MaxPool, MaxPoolBwd, MaxPoolPick};
use super::smooth::{SmoothMaxPool, SmoothMaxPoolBwd, SmoothMaxPoolSum};
use super::window::{PoolWindow, pooled_axes, window_shape, with_last_axes};
use crate::cases::{Bound, Cases, Reject, Sample, SampleIn};
use crate::{AnyOp, Op, dims};
use dittograd_device::Meta;
use dittograd_numerics::rng::Stream;
use dittograd_numerics::shape::Shape;

/// A sample's input dimensions, kernel, stride, padding and dilation.
type Geometry = (&'static [usize], &'static [usize], &'static [usize], &'static [usize], &'static [usize]);

const GEOMETRIES: [Geometry; 11] = [
    (&[5], &[2], &[1], &[0], &[1]),
    (&[3, 70], &[7], &[2], &[3], &[1]),
    (&[2, 3, 6, 8], &[2, 2], &[2, 2], &[0, 0], &[1, 1]),
    (&[2, 7, 7], &[3, 3], &[2, 2], &[1, 1], &[1, 1]),
    (&[0, 4, 4], &[2, 2], &[2, 2], &[0, 0], &[1, 1]),
    (&[1, 20, 33], &[3, 3], &[1, 1], &[1, 1], &[1, 1]),
    (&[2, 3, 4, 5], &[2, 2, 3], &[1, 2, 1], &[1, 0, 1], &[1, 1, 1]),
    (&[1, 1], &[1], &[3], &[0], &[1]),
    (&[2, 9, 9], &[6, 6], &[2, 3], &[1, 3], &[1, 1]),
    (
        &[2, 2, 1, 2, 3, 1, 2, 4],
        &[2, 1, 1, 2, 1, 2, 3],
        &[1, 1, 1, 2, 1, 2, 1],
        &[1, 0, 0, 0, 0, 0, 1],
        &[1; 7],
    ),
    (
        &[1, 2, 2, 1, 2, 3, 1, 2, 1, 4],
        &[2, 1, 1, 2, 1, 2, 1, 2],
        &[1, 1, 2, 1, 1, 2, 1, 1],
        &[1, 0, 0, 0, 0, 0, 0, 1],
        &[1; 8],
    ),
];

/// Windows whose cells are apart.
const DILATED: [Geometry; 2] =
    [(&[2, 9, 8], &[3, 2], &[1, 2], &[1, 0], &[2, 3]), (&[6], &[2], &[1], &[1], &[3])];

/// Windows with more padding than half of the kernel, some of padding only: on all axes, on one axis, on the last one with
/// a stride, with one cell of input, with cells apart, and windows beyond a row of vectors.
const PADDED: [Geometry; 7] = [
    (&[2, 5], &[2], &[1], &[2], &[1]),
    (&[2, 7, 6], &[3, 3], &[1, 1], &[5, 0], &[1, 1]),
    (&[3, 5, 9], &[2, 3], &[1, 2], &[0, 4], &[1, 1]),
    (&[1, 1, 1], &[2, 2], &[1, 2], &[3, 2], &[1, 1]),
    (&[2, 6, 5], &[2, 3], &[2, 1], &[3, 4], &[2, 3]),
    (&[70], &[4], &[3], &[40], &[1]),
    (&[2, 3, 2, 4], &[2, 1, 2], &[1, 2, 1], &[2, 0, 3], &[1, 1, 1]),
];

fn windows(more: &'static [Geometry]) -> impl Iterator<Item = (PoolWindow, Shape, Shape)> {
    GEOMETRIES.iter().chain(more).filter_map(|(d, k, s, p, g)| {
        let window = PoolWindow { dilation: g.to_vec(), ..PoolWindow::new(k, s, p) };
        let x = dims(d);
        let sizes = window.sizes("pool", &d[d.len() - k.len()..], true).ok()?;
        let y = with_last_axes(&x, &sizes).ok()?;
        Some((window, x, y))
    })
}

/// A random geometry around tile edges, along two axes.
fn random_window(stream: &mut Stream) -> Option<(PoolWindow, Shape, Shape)> {
    // Few windows, since each is a kernel of its own; any sizes.
    let (k, s, p) =
        [([2, 2], [2, 2], [0, 0]), ([3, 3], [2, 2], [1, 1]), ([3, 3], [1, 1], [1, 1])][stream.below(3)];
    let window = PoolWindow::new(&k, &s, &p);
    let side = |stream: &mut Stream| [3, 4, 7, 31, 32, 33, 65][stream.below(7)];
    let x = dims(&[1 + stream.below(40), side(stream), side(stream)]);
    let sizes = window.sizes("pool", &x.dims()[1..], false).ok()?;
    let y = with_last_axes(&x, &sizes).ok()?;
    Some((window, x, y))
}

/// Numbers of which hardly two are equal, so that maxima have slopes.
fn distinct(shape: Shape) -> SampleIn {
    SampleIn::Num(shape, (-5000.0, 5000.0))
}

/// Inputs that windows must refuse: with what they are made from and the error.
fn bad_windows() -> Vec<(PoolWindow, Shape, &'static str)> {
    let w = PoolWindow::new;
    vec![
        (w(&[], &[], &[]), dims(&[4, 4]), "Argument"),
        (w(&[2, 2], &[1], &[0, 0]), dims(&[4, 4]), "Argument"),
        (w(&[2, 2], &[1, 0], &[0, 0]), dims(&[4, 4]), "Argument"),
        (w(&[0, 2], &[1, 1], &[0, 0]), dims(&[4, 4]), "Argument"),
        (w(&[5, 2], &[1, 1], &[0, 0]), dims(&[4, 4]), "Argument"),
        (w(&[2, 2], &[1, 1], &[usize::MAX, 0]), dims(&[4, 4]), "Argument"),
        (w(&[2, 2], &[1, 1], &[0, 0]), dims(&[4]), "Rank"),
        (w(&[2, 2], &[1, 1], &[1, 1]), dims(&[0, 4]), "Argument"),
        (PoolWindow { dilation: vec![usize::MAX], ..w(&[3], &[1], &[0]) }, dims(&[4]), "Argument"),
    ]
}

/// What an op on an input and two values of its windows must refuse.
fn bad_triples<O: Cases + Into<AnyOp>>(make: impl Fn(PoolWindow) -> O) -> Vec<Reject> {
    let w = |stride| PoolWindow::new(&[2], &[stride], &[0]);
    let bad = [(w(2), [4, 3, 2], "Shapes"), (w(2), [4, 2, 3], "Shapes"), (w(0), [4, 2, 2], "Argument")];
    let one = |(window, ins, want): (PoolWindow, [usize; 3], _)| {
        Reject::new(make(window), ins.map(|n| Meta::f32(dims(&[n]))).to_vec(), want)
    };
    with_bad_inputs(&O::samples(), bad.into_iter().map(one).collect(), 3)
}

/// The input, where dividing by the number of cells is exact.
fn whole_factors(window: &PoolWindow, counted: bool) -> Vec<Vec<usize>> {
    if counted && window.cells().is_power_of_two() { vec![vec![0]] } else { Vec::new() }
}

const ADAPTED: [(&[usize], &[usize]); 8] = [
    (&[5], &[3]),
    (&[2, 7], &[7]),
    (&[3, 4], &[9]),
    (&[2, 6, 8], &[3, 4]),
    (&[2, 3, 7, 10], &[3, 3]),
    (&[0, 5], &[2]),
    (&[2, 5, 4, 3], &[2, 1, 2]),
    (&[1, 2, 2, 1, 3, 2, 1, 2, 1, 5], &[2, 1, 2, 1, 1, 1, 1, 3]),
];

fn bad_sizes() -> Vec<(Vec<usize>, Shape, &'static str)> {
    vec![
        (vec![], dims(&[4]), "Argument"),
        (vec![0], dims(&[4]), "Argument"),
        (vec![2], dims(&[3, 0]), "Argument"),
        (vec![2, 2], dims(&[4]), "Rank"),
        (vec![usize::MAX], dims(&[4]), "Argument"),
    ]
}

/// Numbers whose exponentials stay finite.
fn tame(shape: Shape) -> SampleIn {
    SampleIn::Num(shape, (-2.0, 2.5))
}

fn betas() -> impl Iterator<Item = f32> {
    [2.0, 0.5, -2.0, 1.0].into_iter().cycle()
}

impl Cases for MaxPool {
    fn samples() -> Vec<Sample> {
        windows(&DILATED).map(|(window, x, _)| Sample::new(MaxPool { window }, vec![distinct(x)])).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (window, x, _) = random_window(stream)?;
        Some(Sample::new(MaxPool { window }, vec![distinct(x)]))
    }

    fn rejects() -> Vec<Reject> {
        let one = |(window, x, want)| Reject::new(MaxPool { window }, vec![Meta::f32(x)], want);
        let deep = (PoolWindow::new(&[3], &[1], &[2]), dims(&[4]), "Argument");
        with_bad_inputs(&Self::samples(), bad_windows().into_iter().chain([deep]).map(one).collect(), 1)
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}

impl Cases for MaxPoolBwd {
    fn samples() -> Vec<Sample> {
        let ins = |x, y| vec![SampleIn::any(x), SampleIn::any(y), SampleIn::any(y)];
        windows(&DILATED).map(|(window, x, y)| Sample::new(MaxPoolBwd { window }, ins(x, y))).collect()
    }

    fn rejects() -> Vec<Reject> {
        bad_triples(|window| MaxPoolBwd { window })
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound { ulps: 1.0, terms: self.window.cells() as f64 }
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![2]]
    }
}

impl Cases for MaxPoolPick {
    fn samples() -> Vec<Sample> {
        let ins = |x, y| vec![SampleIn::any(x), SampleIn::any(y), SampleIn::any(x)];
        windows(&DILATED).map(|(window, x, y)| Sample::new(MaxPoolPick { window }, ins(x, y))).collect()
    }

    fn rejects() -> Vec<Reject> {
        bad_triples(|window| MaxPoolPick { window })
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![2]]
    }
}

impl Cases for AvgPool {
    fn samples() -> Vec<Sample> {
        let one = |(i, (window, x, _)): (usize, (PoolWindow, Shape, Shape))| {
            Sample::new(AvgPool { window, count_include_pad: i % 2 == 0 }, vec![SampleIn::any(x)])
        };
        let mut all: Vec<_> = windows(&[]).enumerate().map(one).collect();
        let window = PoolWindow::new(&[3, 3], &[2, 2], &[1, 1]);
        all.push(Sample::new(
            AvgPool { window, count_include_pad: true },
            vec![SampleIn::any(dims(&[2, 5, 6]))],
        ));
        let window = PoolWindow::new(&[2], &[3], &[3]);
        all.push(Sample::new(
            AvgPool { window, count_include_pad: true },
            vec![SampleIn::any(dims(&[2, 7]))],
        ));
        all
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (window, x, _) = random_window(stream)?;
        Some(Sample::new(AvgPool { window, count_include_pad: true }, vec![SampleIn::any(x)]))
    }

    fn rejects() -> Vec<Reject> {
        let one = |(window, x, want)| {
            Reject::new(AvgPool { window, count_include_pad: false }, vec![Meta::f32(x)], want)
        };
        let deep = (PoolWindow::new(&[3], &[1], &[2]), dims(&[4]), "Argument");
        with_bad_inputs(&Self::samples(), bad_windows().into_iter().chain([deep]).map(one).collect(), 1)
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound { ulps: 2.0, terms: 2.0 + self.window.cells() as f64 }
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        whole_factors(&self.window, self.count_include_pad)
    }
}

impl Cases for AvgPoolBwd {
    fn samples() -> Vec<Sample> {
        let one = |s: Sample| {
            let AnyOp::AvgPool(AvgPool { window, count_include_pad }) = s.op else { return None };
            let x = s.ins[0].meta().shape;
            let y = window_shape(Self::NAME, &window, &x, true).ok()?;
            let sizes = pooled_axes(Self::NAME, &x, window.kernel.len()).ok()?.to_vec();
            Some(Sample::new(AvgPoolBwd { window, count_include_pad, sizes }, vec![SampleIn::any(y)]))
        };
        AvgPool::samples().into_iter().filter_map(one).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (window, x, y) = random_window(stream)?;
        let op = AvgPoolBwd { window, count_include_pad: true, sizes: x.dims()[1..].to_vec() };
        Some(Sample::new(op, vec![SampleIn::any(y)]))
    }

    fn rejects() -> Vec<Reject> {
        let op = |sizes: &[usize]| AvgPoolBwd {
            window: PoolWindow::new(&[2], &[2], &[0]),
            count_include_pad: true,
            sizes: sizes.to_vec(),
        };
        let f = |d: &[usize]| Meta::f32(dims(d));
        with_bad_inputs(
            &Self::samples(),
            vec![
                Reject::new(op(&[4, 4]), vec![f(&[2])], "Argument"),
                Reject::new(op(&[6]), vec![f(&[2])], "Shapes"),
                Reject::new(op(&[1]), vec![f(&[2])], "Argument"),
                Reject::new(op(&[4]), vec![f(&[])], "Rank"),
            ],
            1,
        )
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound { ulps: 2.0, terms: 2.0 + self.window.cells() as f64 }
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        whole_factors(&self.window, self.count_include_pad)
    }
}

impl Cases for AdaptiveAvgPool {
    fn samples() -> Vec<Sample> {
        let one = |(x, sizes): &(&[usize], &[usize])| {
            Sample::new(AdaptiveAvgPool { sizes: sizes.to_vec() }, vec![SampleIn::any(dims(x))])
        };
        ADAPTED.iter().map(one).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (_, x, y) = random_window(stream)?;
        Some(Sample::new(AdaptiveAvgPool { sizes: y.dims()[1..].to_vec() }, vec![SampleIn::any(x)]))
    }

    fn rejects() -> Vec<Reject> {
        let one = |(sizes, x, want)| Reject::new(AdaptiveAvgPool { sizes }, vec![Meta::f32(x)], want);
        with_bad_inputs(&Self::samples(), bad_sizes().into_iter().map(one).collect(), 1)
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        // A window may hold a whole plane, and its sum is one chain; the magnitude grows with it.
        Bound { ulps: 2.0, terms: 512.0 }
    }
}

impl Cases for AdaptiveAvgPoolBwd {
    fn samples() -> Vec<Sample> {
        let one = |(x, sizes): &(&[usize], &[usize])| {
            let from = x[x.len() - sizes.len()..].to_vec();
            let dy = with_last_axes(&dims(x), sizes).unwrap_or_default();
            Sample::new(AdaptiveAvgPoolBwd { sizes: from }, vec![SampleIn::any(dy)])
        };
        ADAPTED.iter().map(one).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (_, x, y) = random_window(stream)?;
        Some(Sample::new(AdaptiveAvgPoolBwd { sizes: x.dims()[1..].to_vec() }, vec![SampleIn::any(y)]))
    }

    fn rejects() -> Vec<Reject> {
        let one = |(sizes, x, want)| Reject::new(AdaptiveAvgPoolBwd { sizes }, vec![Meta::f32(x)], want);
        with_bad_inputs(&Self::samples(), bad_sizes().into_iter().map(one).collect(), 1)
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound { ulps: 2.0, terms: 512.0 }
    }
}

impl Cases for SmoothMaxPool {
    fn samples() -> Vec<Sample> {
        let one = |((window, x, _), beta)| Sample::new(SmoothMaxPool { window, beta }, vec![tame(x)]);
        windows(&PADDED).zip(betas()).map(one).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (window, x, _) = random_window(stream)?;
        Some(Sample::new(SmoothMaxPool { window, beta: 2.0 }, vec![tame(x)]))
    }

    fn rejects() -> Vec<Reject> {
        let one =
            |(window, x, want)| Reject::new(SmoothMaxPool { window, beta: 1.0 }, vec![Meta::f32(x)], want);
        let mut bad: Vec<_> = bad_windows().into_iter().map(one).collect();
        for beta in [0.0, -0.0, f32::INFINITY, f32::NAN] {
            let op = SmoothMaxPool { window: PoolWindow::new(&[2], &[2], &[0]), beta };
            bad.push(Reject::new(op, vec![Meta::f32(dims(&[4]))], "Argument"));
        }
        with_bad_inputs(&Self::samples(), bad, 1)
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound { ulps: 4.0, terms: 12.0 + self.window.cells() as f64 }
    }
}

impl Cases for SmoothMaxPoolBwd {
    fn samples() -> Vec<Sample> {
        let one = |((window, x, y), beta)| {
            Sample::new(SmoothMaxPoolBwd { window, beta }, vec![tame(x), tame(y), tame(y)])
        };
        windows(&PADDED).zip(betas()).map(one).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (window, x, y) = random_window(stream)?;
        let op = SmoothMaxPoolBwd { window, beta: 1.0 };
        Some(Sample::new(op, vec![tame(x), tame(y), tame(y)]))
    }

    fn rejects() -> Vec<Reject> {
        bad_triples(|window| SmoothMaxPoolBwd { window, beta: 1.0 })
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound { ulps: 4.0, terms: 8.0 + self.window.cells() as f64 }
    }
}

impl Cases for SmoothMaxPoolSum {
    fn samples() -> Vec<Sample> {
        let one = |((window, x, y), beta)| {
            Sample::new(SmoothMaxPoolSum { window, beta }, vec![tame(x), tame(y), tame(x)])
        };
        windows(&PADDED).zip(betas()).map(one).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (window, x, y) = random_window(stream)?;
        let op = SmoothMaxPoolSum { window, beta: 1.0 };
        Some(Sample::new(op, vec![tame(x), tame(y), tame(x)]))
    }

    fn rejects() -> Vec<Reject> {
        bad_triples(|window| SmoothMaxPoolSum { window, beta: 1.0 })
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound { ulps: 4.0, terms: 8.0 + self.window.cells() as f64 }
    }
}

/// The rejects with two more that every op on windows has: no inputs at all, and indices in the place of numbers.
fn with_bad_inputs(samples: &[Sample], mut bad: Vec<Reject>, arity: usize) -> Vec<Reject> {
    if let Some(Sample { op, ins }) = samples.first() {
        let shape = ins[0].meta().shape;
        bad.push(Reject::new(op.clone(), vec![], "Arity"));
        bad.push(Reject::new(op.clone(), vec![Meta::u32(shape); arity], "DType"));
    }
    bad
}

impl Cases for AdaptiveMaxPool {
    fn samples() -> Vec<Sample> {
        let one = |(x, sizes): &(&[usize], &[usize])| {
            Sample::new(AdaptiveMaxPool { sizes: sizes.to_vec() }, vec![distinct(dims(x))])
        };
        ADAPTED_MAX.iter().map(one).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample> {
        let (_, x, y) = random_window(stream)?;
        Some(Sample::new(AdaptiveMaxPool { sizes: y.dims()[1..].to_vec() }, vec![distinct(x)]))
    }

    fn rejects() -> Vec<Reject> {
        let one = |(sizes, x, want)| Reject::new(AdaptiveMaxPool { sizes }, vec![Meta::f32(x)], want);
        with_bad_inputs(&Self::samples(), bad_sizes().into_iter().map(one).collect(), 1)
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }
}

/// Samples of [`AdaptiveMaxPool`] and of its gradients. Finding a maximum again along eight axes needs more registers than
/// there are.
const ADAPTED_MAX: &[(&[usize], &[usize])] = ADAPTED.split_at(7).0;

/// Samples of an op on an input and two values of its windows, the last of which may have the input's shape.
fn adapted_triples<O: Into<AnyOp>>(make: impl Fn(Vec<usize>) -> O, cells: bool) -> Vec<Sample> {
    let one = |(x, sizes): &(&[usize], &[usize])| {
        let (x, y) = (dims(x), with_last_axes(&dims(x), sizes).unwrap_or_default());
        let ins = vec![SampleIn::any(x), SampleIn::any(y), SampleIn::any(if cells { x } else { y })];
        Sample::new(make(sizes.to_vec()), ins)
    };
    ADAPTED_MAX.iter().map(one).collect()
}

fn bad_adapted_triples<O: Cases + Into<AnyOp>>(make: impl Fn(Vec<usize>) -> O) -> Vec<Reject> {
    let bad = [(2, [4, 3, 2], "Shapes"), (2, [4, 2, 3], "Shapes"), (0, [4, 2, 2], "Argument")];
    let one = |(size, ins, want): (usize, [usize; 3], _)| {
        Reject::new(make(vec![size]), ins.map(|n| Meta::f32(dims(&[n]))).to_vec(), want)
    };
    with_bad_inputs(&O::samples(), bad.into_iter().map(one).collect(), 3)
}

impl Cases for AdaptiveMaxPoolBwd {
    fn samples() -> Vec<Sample> {
        adapted_triples(|sizes| AdaptiveMaxPoolBwd { sizes }, false)
    }

    fn rejects() -> Vec<Reject> {
        bad_adapted_triples(|sizes| AdaptiveMaxPoolBwd { sizes })
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        Bound { ulps: 1.0, terms: ins[1].shape.numel() as f64 }
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![2]]
    }
}

impl Cases for AdaptiveMaxPoolPick {
    fn samples() -> Vec<Sample> {
        adapted_triples(|sizes| AdaptiveMaxPoolPick { sizes }, true)
    }

    fn rejects() -> Vec<Reject> {
        bad_adapted_triples(|sizes| AdaptiveMaxPoolPick { sizes })
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![2]]
    }
}
