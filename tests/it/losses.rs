//! Losses at their edges, and with rows that do not count.

use crate::support::{data, device, t};
use dittograd::ops::loss::Reduction;
use dittograd::prelude::*;

fn labels(data: &[u32]) -> Tensor<u32> {
    Tensor::new(&[data.len()], data.to_vec()).unwrap()
}

const NONE: u32 = u32::MAX;

#[test]
fn ignored_rows_count_for_nothing() {
    let d = device();
    let s = Session::eager(&d);
    let logits = [1.0, 2.0, 3.0, f32::NAN, 0.0, f32::INFINITY, -1.0, 0.5, 0.0];
    let x = s.variable(&t(&[3, 3], &logits)).unwrap();
    let y = s.labels(&labels(&[2, NONE, 0])).unwrap();
    let loss = x.cross_entropy_with(y, Some(NONE), 0.0).unwrap();
    let kept = s.variable(&t(&[2, 3], &[1.0, 2.0, 3.0, -1.0, 0.5, 0.0])).unwrap();
    let want = kept.cross_entropy(s.labels(&labels(&[2, 0])).unwrap()).unwrap();
    assert_eq!(loss.item().unwrap().to_bits(), want.item().unwrap().to_bits());
    let grads = loss.backward_retain().unwrap();
    let got = grads.var(x).unwrap().to_tensor::<f32>().unwrap().into_data();
    let grads = want.backward_retain().unwrap();
    let want = grads.var(kept).unwrap().to_tensor::<f32>().unwrap().into_data();
    assert_eq!((&got[..3], &got[3..6], &got[6..]), (&want[..3], &[0.0; 3][..], &want[3..]));
    // The same of log-probabilities.
    let logp = s.input(&t(&[3, 3], &logits)).unwrap();
    assert_eq!(logp.nll(y, Some(NONE)).unwrap().item().unwrap(), -(3.0 + -1.0) * 0.5);
}

#[test]
fn all_rows_ignored_is_zero_and_a_bad_label_is_loud() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.variable(&t(&[2, 3], &[1.0, 2.0, 3.0, -1.0, 0.5, 0.0])).unwrap();
    for smoothing in [0.0, 0.1] {
        let y = s.labels(&labels(&[1, 1])).unwrap();
        let loss = x.cross_entropy_with(y, Some(1), smoothing).unwrap();
        assert_eq!(loss.item().unwrap(), 0.0);
        let grads = loss.backward_retain().unwrap();
        assert_eq!(grads.var(x).unwrap().to_tensor::<f32>().unwrap().data(), [0.0; 6]);
        let bad = s.labels(&labels(&[0, 3])).unwrap();
        assert!(x.cross_entropy_with(bad, None, smoothing).is_err());
        assert!(x.cross_entropy_with(bad, Some(1), smoothing).unwrap().item().unwrap().is_nan());
        assert!(x.nll(bad, Some(1)).unwrap().item().unwrap().is_nan());
    }
    assert!(x.cross_entropy_with(s.labels(&labels(&[0, 1])).unwrap(), None, 1.5).is_err());
}

#[test]
fn smoothing_mixes_in_the_mean_over_classes() {
    let d = device();
    let s = Session::eager(&d);
    let logits = [1.0f32, 2.0, 4.0];
    let x = s.input(&t(&[1, 3], &logits)).unwrap();
    let got = x.cross_entropy_with(s.labels(&labels(&[1])).unwrap(), None, 0.3).unwrap().item().unwrap();
    let norm = logits.iter().map(|x| f64::from(*x).exp()).sum::<f64>().ln();
    let logp: Vec<f64> = logits.iter().map(|x| f64::from(*x) - norm).collect();
    let want = -0.7 * logp[1] - 0.1 * logp.iter().sum::<f64>();
    assert!((f64::from(got) - want).abs() < 1e-6, "{got} {want}");
}

#[test]
fn binary_losses_hold_at_the_ends() {
    let d = device();
    let s = Session::eager(&d);
    let p = s.input(&t(&[4], &[0.0, 1.0, 0.0, 0.5])).unwrap();
    let y = s.input(&t(&[4], &[1.0, 0.0, 0.0, 1.0])).unwrap();
    assert_eq!(data(p.bce(y, Reduction::None).unwrap()), [100.0, 100.0, 0.0, std::f32::consts::LN_2]);
    let x = s.input(&t(&[4], &[100.0, -100.0, 100.0, -1000.0])).unwrap();
    let y = s.input(&t(&[4], &[0.0, 1.0, 1.0, 0.0])).unwrap();
    let losses = data(x.bce_with_logits(y, Reduction::None).unwrap());
    assert_eq!((losses[0], losses[1], losses[3]), (100.0, 100.0, 0.0));
    // Not rounded away to zero: e^-100.
    assert!(losses[2] > 0.0 && losses[2] < 1e-43);
}

#[test]
fn reductions_of_losses() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.input(&t(&[2, 2], &[1.0, -2.0, 0.5, 3.0])).unwrap();
    let y = s.input(&t(&[2, 2], &[0.0, 0.0, 0.0, 0.0])).unwrap();
    assert_eq!(data(x.l1_loss(y, Reduction::None).unwrap()), [1.0, 2.0, 0.5, 3.0]);
    assert_eq!(x.l1_loss(y, Reduction::Sum).unwrap().item().unwrap(), 6.5);
    assert_eq!(x.l1_loss(y, Reduction::Mean).unwrap().item().unwrap(), 1.625);
    assert_eq!(data(x.huber_loss(y, 1.0, Reduction::None).unwrap()), [0.5, 1.5, 0.125, 2.5]);
    assert_eq!(data(x.smooth_l1_loss(y, 2.0, Reduction::None).unwrap()), [0.25, 1.0, 0.0625, 2.0]);
    assert_eq!(x.mse_loss(y, Reduction::Sum).unwrap().item().unwrap(), 14.25);
    let logp = s.input(&t(&[2], &[-1.0, f32::NEG_INFINITY])).unwrap();
    let target = s.input(&t(&[2], &[1.0, 0.0])).unwrap();
    assert_eq!(data(logp.kl_div(target, Reduction::None).unwrap()), [1.0, 0.0]);
    let empty = s.input(&t(&[0], &[])).unwrap();
    assert_eq!(empty.mse(empty).unwrap().item().unwrap(), 0.0);
}
