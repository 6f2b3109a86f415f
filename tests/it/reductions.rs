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

#[test]
fn axes_are_dropped_or_kept() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.input(&Tensor::from_fn(Shape::new(&[2, 3, 4]).unwrap(), |i| i as f32)).unwrap();
    let shape = |v: Result<Var<'_>>| v.unwrap().shape().unwrap().dims().to_vec();
    assert_eq!(shape(x.sum_dim(&[1], true)), [2, 1, 4]);
    assert_eq!(shape(x.mean_dim(&[2, 0], false)), [3]);
    assert_eq!(shape(x.amax(&[0, 2], true)), [1, 3, 1]);
    assert_eq!(shape(x.logsumexp(&[], true)), [2, 3, 4]);
    assert_eq!(shape(x.var(&[0, 1, 2], 1, true)), [1, 1, 1]);
    assert_eq!(shape(x.norm(2.0, &[2], false)), [2, 3]);
    assert_eq!(shape(x.argmin(&[2], true)), [2, 3, 1]);
    assert_eq!(data(x.amax(&[0, 2], false).unwrap()), [15.0, 19.0, 23.0]);
    assert!(x.sum_dim(&[1, 1], false).is_err() && x.amax(&[3], false).is_err());
    assert!(x.norm(3.0, &[0], false).is_err());
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
fn places_ignore_nan_and_count_in_row_major_order() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.input(&t(&[4, 3], &[NAN, 2.0, 2.0, NAN, NAN, NAN, -INF, NAN, -INF, NAN, -INF, 1.0])).unwrap();
    assert_eq!(x.argmax(&[1], false).unwrap().indices().unwrap().data(), [1, 0, 0, 2]);
    assert_eq!(x.argmin(&[1], false).unwrap().indices().unwrap().data(), [1, 0, 0, 1]);
    assert_eq!(x.argmax(&[0], false).unwrap().indices().unwrap().data(), [2, 0, 0]);
    assert_eq!(x.argmax(&[0, 1], false).unwrap().indices().unwrap().data(), [1]);
    let max = data(x.amax(&[1], false).unwrap());
    assert_eq!(max, [2.0, -INF, -INF, 1.0]);
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
