//! Reductions as a program uses them: kept axes, ties, NaN, nothing at all.

use crate::support::{data, device, t};
use dittograd::prelude::*;

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

/// The gradient of the sum of a reduction.
fn gradient(d: &Device, x: &Tensor<f32>, f: impl for<'s> Fn(Var<'s>) -> Result<Var<'s>>) -> Vec<f32> {
    let s = Session::eager(d);
    let x = s.variable(x).unwrap();
    let grads = f(x).unwrap().sum().unwrap().backward().unwrap();
    grads.var(x).unwrap().to_tensor::<f32>().unwrap().into_data()
}

/// So that it does not matter which of two zeros is met first, in whichever chunk.
#[test]
fn an_extreme_is_never_minus_zero() {
    let d = device();
    let s = Session::eager(&d);
    for (first, second) in [(0.0f32, -0.0f32), (-0.0, 0.0)] {
        for rest in [-1.0, 1.0] {
            let mut x = vec![rest; 2048];
            (x[0], x[1024]) = (first, second);
            let x = s.input(&t(&[2048], &x)).unwrap();
            let best = if rest < 0.0 { x.amax(&[0], false) } else { x.amin(&[0], false) };
            assert_eq!(data(best.unwrap())[0].to_bits(), 0, "{first} before {second}");
        }
    }
}

#[test]
fn axes_are_dropped_or_kept() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.input(&Tensor::from_fn(Shape::new(&[2, 3, 4]).unwrap(), |i| i as f32)).unwrap();
    let shape = |v: Result<Var<'_>>| v.unwrap().shape().unwrap().dims().to_vec();
    assert_eq!(shape(x.sum_dim(&[1], true)), [2, 1, 4]);
    assert_eq!(shape(x.mean_dim(&[2, 0], false)), [3]);
    assert_eq!(shape(x.amax(&[0, 2], true)), [1, 3, 1]);
    assert_eq!(shape(x.logsumexp(&[0usize; 0], true)), [2, 3, 4]);
    assert_eq!(shape(x.var(&[0, 1, 2], 1, true)), [1, 1, 1]);
    assert_eq!(shape(x.norm(2.0, &[2], false)), [2, 3]);
    assert_eq!(shape(x.argmin(&[2], true)), [2, 3, 1]);
    assert_eq!(data(x.amax(&[0, 2], false).unwrap()), [15.0, 19.0, 23.0]);
    assert!(x.sum_dim(&[1, 1], false).is_err() && x.amax(&[3], false).is_err());
    assert!(x.norm(f64::NAN, &[0], false).is_err());
}

#[test]
fn the_first_of_several_extremes_gets_the_gradient() {
    let d = device();
    let x = t(&[2, 3], &[1.0, 3.0, 3.0, -0.0, 0.0, -1.0]);
    assert_eq!(gradient(&d, &x, |x| x.amax(&[1], false)), [0.0, 1.0, 0.0, 1.0, 0.0, 0.0]);
    assert_eq!(gradient(&d, &x, |x| x.amin(&[1], false)), [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
    assert_eq!(gradient(&d, &x, |x| x.amax(&[0], true)), [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
    let tied = Tensor::full(Shape::new(&[2, 2, 2]).unwrap(), 7.0f32);
    let first = [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    assert_eq!(gradient(&d, &tied, |x| x.amax(&[0, 2], false)), first);
    assert_eq!(
        gradient(&d, &t(&[3], &[1.0, -4.0, 4.0]), |x| x.norm(f64::INFINITY, &[0], false)),
        [0.0, -1.0, 0.0]
    );
}

#[test]
fn places_are_those_of_the_first_nan_and_count_in_row_major_order() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.input(&t(&[4, 3], &[NAN, 2.0, 2.0, NAN, NAN, NAN, -INF, NAN, -INF, NAN, -INF, 1.0])).unwrap();
    assert_eq!(x.argmax(&[1], false).unwrap().indices().unwrap().data(), [0, 0, 1, 0]);
    assert_eq!(x.argmin(&[1], false).unwrap().indices().unwrap().data(), [0, 0, 1, 0]);
    assert_eq!(x.argmax(&[0], false).unwrap().indices().unwrap().data(), [0, 1, 1]);
    assert_eq!(x.argmax(&[0, 1], false).unwrap().indices().unwrap().data(), [0]);
    assert!(data(x.amax(&[1], false).unwrap()).iter().all(|x| x.is_nan()));
    let rows = s.input(&t(&[3, 3], &[-INF, -INF, -INF, 1.0, INF, NAN, INF, -INF, 2.0])).unwrap();
    assert_eq!(rows.argmax(&[1], false).unwrap().indices().unwrap().data(), [0, 2, 0]);
    assert_eq!(rows.argmin(&[1], false).unwrap().indices().unwrap().data(), [0, 2, 1]);
    // Far into a row that several tasks look through, behind infinities.
    for at in [0, 70_000, 199_999] {
        let mut x = vec![INF; 200_000];
        (x[at], x[199_999]) = (NAN, NAN);
        let x = t(&[200_000], &x);
        let v = s.input(&x).unwrap();
        assert_eq!(v.argmax(&[0], false).unwrap().indices().unwrap().data(), [at as u32]);
        for extreme in [v.amax(&[0], false), v.amin(&[0], false), v.norm(f64::INFINITY, &[0], false)] {
            assert!(extreme.unwrap().item().unwrap().is_nan());
        }
        let slopes = gradient(&d, &x, |x| x.amin(&[0], false));
        assert_eq!((slopes[at], slopes.iter().sum::<f32>()), (1.0, 1.0));
    }
    // Axes that are not neighbours: places count over both.
    let x = s.input(&Tensor::from_fn(Shape::new(&[2, 3, 4]).unwrap(), |i| i as f32)).unwrap();
    assert_eq!(x.argmax(&[0, 2], false).unwrap().indices().unwrap().data(), [7, 7, 7]);
}

#[test]
fn logsumexp_is_stable_at_both_ends() {
    let d = device();
    let s = Session::eager(&d);
    let rows = [[1e4, 1e4], [-1e4, -1e4], [-INF, -INF], [-INF, 1.0], [INF, 0.0], [NAN, 1.0]];
    let x = s.input(&t(&[6, 2], rows.as_flattened())).unwrap();
    let y = data(x.logsumexp(&[1], false).unwrap());
    let ln2 = std::f32::consts::LN_2;
    assert_eq!(y[..5], [1e4 + ln2, -1e4 + ln2, -INF, 1.0, INF]);
    assert!(y[5].is_nan());
    let empty = s.input(&t(&[2, 0], &[])).unwrap();
    assert_eq!(data(empty.logsumexp(&[1], false).unwrap()), [-INF, -INF]);
    assert_eq!(gradient(&d, &t(&[2], &[-INF, -INF]), |x| x.logsumexp(&[0], false)), [0.0, 0.0]);
    let slopes = |row: &[f32]| gradient(&d, &t(&[4], row), |x| x.logsumexp(&[0], false));
    let beside = slopes(&[INF, 1.0, 2.0, 3.0]);
    assert!(beside[0].is_nan() && beside[1..] == [0.0; 3], "{beside:?}");
    assert!(slopes(&[1.0, NAN, 2.0, 3.0]).iter().all(|g| g.is_nan()));
}

/// A power of two changes no bit of a deviation but its exponent, from the smallest numbers to the largest.
#[test]
fn deviations_neither_overflow_nor_vanish() {
    let d = device();
    let s = Session::eager(&d);
    let x = [1.0f32, 2.0, -1.0, 0.5, 1.75];
    let deviation = |scale: f32| {
        let x: Vec<f32> = x.iter().map(|x| x * scale).collect();
        s.input(&t(&[5], &x)).unwrap().std(&[0], 1, false).unwrap().item().unwrap()
    };
    let one = deviation(1.0);
    for e in (-140i32..=125).step_by(5) {
        let scale = f64::from(e).exp2() as f32;
        assert_eq!(deviation(scale), one * scale, "2^{e}");
    }
    // A constant has none, and infinity and NaN stay.
    let std = |x: &[f32]| s.input(&t(&[x.len()], x)).unwrap().std(&[0], 1, false).unwrap().item().unwrap();
    assert_eq!(std(&[1e30; 4]), 0.0);
    assert!(std(&[1.0, INF, 2.0]).is_nan() && std(&[1.0, NAN, 2.0]).is_nan());
    assert!(gradient(&d, &t(&[3], &[1.0, NAN, 2.0]), |x| x.std(&[0], 1, false)).iter().all(|g| g.is_nan()));
    assert!(gradient(&d, &t(&[2], &[1.0, NAN]), |x| x.norm(2.0, &[0], false)).iter().all(|g| g.is_nan()));
    let large = gradient(&d, &t(&[4], &[1e30, 2e30, -1e30, 0.5e30]), |x| x.std(&[0], 1, false));
    for (got, want) in large.iter().zip([0.1, 0.366_666_67, -0.433_333_33, -0.033_333_33]) {
        assert!((got - want).abs() < 1e-6, "{large:?}");
    }
}

#[test]
fn variances_and_norms_of_known_numbers() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.input(&t(&[4], &[1.0, 2.0, 3.0, 4.0])).unwrap();
    assert_eq!(x.var(&[0], 0, false).unwrap().item().unwrap(), 1.25);
    assert_eq!(x.var(&[0], 1, false).unwrap().item().unwrap(), 5.0 * (1.0f32 / 3.0));
    // A mean far from zero costs no digits, since there are two passes.
    let far = s.input(&t(&[4], &[4097.0, 4098.0, 4099.0, 4100.0])).unwrap();
    assert_eq!(far.var(&[0], 0, false).unwrap().item().unwrap(), 1.25);
    assert_eq!(s.input(&t(&[2], &[3.0, -4.0])).unwrap().norm(2.0, &[0], false).unwrap().item().unwrap(), 5.0);
    let one = s.input(&t(&[1], &[3.0])).unwrap();
    assert!(one.var(&[0], 1, false).unwrap().item().unwrap().is_nan());
    assert_eq!(one.std(&[0], 0, false).unwrap().item().unwrap(), 0.0);
    assert_eq!(gradient(&d, &t(&[3], &[0.0; 3]), |x| x.norm(2.0, &[0], false)), [0.0; 3]);
    assert_eq!(gradient(&d, &t(&[3], &[2.0; 3]), |x| x.std(&[0], 1, false)), [0.0; 3]);
}

#[test]
fn nothing_has_a_sum_but_no_maximum() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.input(&t(&[2, 0], &[])).unwrap();
    assert_eq!(data(x.sum_dim(&[1], false).unwrap()), [0.0, 0.0]);
    assert!(data(x.mean_dim(&[1], false).unwrap()).iter().all(|x| x.is_nan()));
    assert_eq!(data(x.norm(f64::INFINITY, &[1], false).unwrap()), [0.0, 0.0]);
    let e = x.amax(&[1], false).unwrap_err().to_string();
    assert!(e.contains("amax") && e.contains("[2, 0]"), "{e}");
    assert!(x.argmax(&[1], false).is_err());
    // Without results there is nothing to refuse.
    assert_eq!(x.amax(&[0], false).unwrap().shape().unwrap().dims(), [0]);
}

#[test]
fn products_have_right_gradients_at_zeros() {
    let d = device();
    let s = Session::eager(&d);
    let rows = t(&[4, 3], &[2.0, -3.0, 4.0, 0.0, 2.0, 3.0, 0.0, 5.0, 0.0, INF, 2.0, 1.0]);
    let x = s.input(&rows).unwrap();
    let shape = |v: Result<Var<'_>>| v.unwrap().shape().unwrap().dims().to_vec();
    assert_eq!(shape(x.prod_dim(&[1], true)), [4, 1]);
    assert_eq!(data(x.prod_dim(&[1], false).unwrap()), [-24.0, 0.0, 0.0, INF]);
    assert!(x.prod().unwrap().item().unwrap().is_nan());
    let want = [-12.0, 8.0, -6.0, 6.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0, INF, INF];
    assert_eq!(gradient(&d, &rows, |x| x.prod_dim(&[1], false)), want);
    // Along other axes, and several.
    let turned = |x: &Tensor<f32>| s.input(x).unwrap().transpose().unwrap().value::<f32>().unwrap();
    let down = gradient(&d, &turned(&rows), |x| x.prod_dim(&[0], true));
    assert_eq!(turned(&t(&[3, 4], &down)).data(), want);
    let cube =
        Tensor::from_fn(Shape::new(&[2, 3, 2]).unwrap(), |i| if i == 5 { 0.0 } else { 1.0 + i as f32 });
    let got = gradient(&d, &cube, |x| x.prod_dim(&[0, 1], false));
    assert_eq!(got[5], 2.0 * 4.0 * 8.0 * 10.0 * 12.0);
    assert_eq!(got[0], 3.0 * 5.0 * 7.0 * 9.0 * 11.0);
    assert!([1, 3, 7, 9, 11].iter().all(|i| got[*i] == 0.0));
    // Nothing, and one factor.
    assert_eq!(data(s.input(&t(&[2, 0], &[])).unwrap().prod_dim(&[1], false).unwrap()), [1.0, 1.0]);
    assert_eq!(gradient(&d, &t(&[1, 2], &[0.0, 3.0]), |x| x.prod_dim(&[0], false)), [1.0, 1.0]);
}

#[test]
fn long_products_have_one_answer() {
    let mut stream = dittograd::numerics::rng::Stream::new(5, 0);
    for (dims, axes) in
        [(&[300_000][..], &[0][..]), (&[2100, 70], &[0]), (&[40_000, 3], &[0]), (&[3, 140_000], &[1])]
    {
        let x = Tensor::from_fn(Shape::new(dims).unwrap(), |_| stream.range(0.98, 1.02));
        let mut answers = Vec::new();
        for d in dittograd_check::cpu_devices().unwrap() {
            let s = Session::eager(&d);
            let y = data(s.input(&x).unwrap().prod_dim(axes, false).unwrap());
            answers.push(y.iter().map(|y| y.to_bits()).collect::<Vec<_>>());
            assert!(y.iter().all(|y| *y > 1e-30 && *y < 1e30), "{y:?}");
        }
        assert!(answers.iter().all(|a| *a == answers[0]), "{dims:?}");
        let inner: usize = dims[axes[0] + 1..].iter().product();
        let want: f64 = match inner {
            1 => x.data()[..dims[axes[0]]].iter().map(|x| f64::from(*x)).product(),
            n => x.data().iter().step_by(n).map(|x| f64::from(*x)).product(),
        };
        let got = f64::from(f32::from_bits(answers[0][0]));
        assert!((got - want).abs() <= 1e-3 * want, "{dims:?}: {got}, not {want}");
    }
}

/// Of one element the first is the largest.
#[test]
fn positions_over_no_axes_are_0() {
    let d = device();
    let s = Session::eager(&d);
    for dims in [&[][..], &[3], &[2, 0]] {
        let x = s.ones(dims).unwrap();
        for keepdim in [false, true] {
            for at in [x.argmax(&[0usize; 0], keepdim), x.argmin(&[0usize; 0], keepdim)] {
                let at = at.unwrap().indices().unwrap();
                assert_eq!(at.shape().dims(), dims);
                assert!(at.data().iter().all(|i| *i == 0));
            }
        }
    }
}

#[test]
fn whole_corrections_are_those_of_the_variance() {
    let s = Session::eager(&device());
    let x = s.input(&t(&[2, 3], &[1.0, 2.5, -4.0, 0.5, 8.0, 3.0])).unwrap();
    for correction in [0, 1, 3, 5] {
        let real = correction as f64;
        assert_eq!(
            data(x.var_corrected(&[1], real, true).unwrap()),
            data(x.var(&[1], correction, true).unwrap())
        );
        assert_eq!(
            data(x.std_corrected(&[1], real, true).unwrap()),
            data(x.std(&[1], correction, true).unwrap())
        );
    }
    let (half, biased) = (x.var_corrected(&[1], 1.5, false).unwrap(), x.var(&[1], 0, false).unwrap());
    assert_eq!(data(half), data(biased.scale(2.0).unwrap()));
}
