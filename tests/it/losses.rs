//! Losses at their edges, and with rows that do not count.

use crate::support::{data, device, t};
use dittograd::ops::loss::Reduction;
use dittograd::prelude::*;

fn labels(data: &[u32]) -> Tensor<u32> {
    Tensor::new(&[data.len()], data.to_vec()).unwrap()
}

const NONE: u32 = u32::MAX;

#[test]
fn an_impossible_class_costs_nothing_without_smoothing() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.input(&t(&[1, 2], &[0.0, f32::NEG_INFINITY])).unwrap();
    let loss = x.cross_entropy(s.labels(&labels(&[0])).unwrap()).unwrap();
    assert_eq!(loss.item().unwrap(), 0.0);
}

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

const LOGITS: [f32; 12] = [1.0, 2.0, -0.5, 0.25, -1.5, 0.75, 3.0, 0.5, 1.0, -2.0, 0.125, 0.5];

fn near(got: &[f32], want: &[f64], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (g, w) in got.iter().zip(want) {
        assert!((f64::from(*g) - w).abs() <= 2e-6 * w.abs().max(0.1), "{what}: {got:?}, not {want:?}");
    }
}

/// A loss of the logits and the gradient of its sum.
fn loss_and_gradient(f: impl for<'s> Fn(Var<'s>) -> Result<Var<'s>>) -> (Vec<f32>, Vec<f32>) {
    let d = device();
    let s = Session::eager(&d);
    let x = s.variable(&t(&[4, 3], &LOGITS)).unwrap();
    let loss = f(x).unwrap();
    let grads = loss.sum().unwrap().backward_retain().unwrap();
    (data(loss), grads.var(x).unwrap().to_tensor::<f32>().unwrap().into_data())
}

/// Numbers of PyTorch 2 in f64: losses of rows, then the sum's gradient, then what the mean divides by.
#[test]
fn class_weights_and_reductions_are_those_of_pytorch() {
    let slopes = [
        0.317145227,
        0.862090108,
        -1.179235335,
        -0.322851781,
        0.030783745,
        0.292068037,
        1.642818039,
        -1.865149284,
        0.222331245,
        0.092784212,
        -1.223127308,
        1.130343097,
    ];
    let smooth = [
        0.27547856,
        0.695423441,
        -0.970902001,
        -0.173087866,
        -0.124339018,
        0.297426884,
        1.447137181,
        -1.544458205,
        0.097321024,
        0.042419025,
        -0.96262579,
        0.920206765,
    ];
    let nll = [0.0, 0.0, -1.25, -0.5, 0.0, 0.0, 0.0, -2.0, 0.0, 0.0, -2.0, 0.0];
    let cases: [(f64, bool, [f64; 4], [f64; 12]); 3] = [
        (0.0, false, [3.58942379, 0.518810661, 5.393468194, 1.891251937], slopes),
        (0.25, false, [3.110257123, 0.952947992, 4.731580551, 1.763426235], smooth),
        (0.0, true, [0.625, -0.125, -1.0, -0.25], nll),
    ];
    for (label_smoothing, of_logs, rows, slopes) in cases {
        for ignore in [None, Some(0)] {
            // The second row has label 0.
            let left_out = |i: usize, row: usize| ignore.is_some() && i == row;
            let rows: Vec<f64> = (0..4).map(|i| if left_out(i, 1) { 0.0 } else { rows[i] }).collect();
            let slopes: Vec<f64> =
                (0..12).map(|i| if left_out(i / 3, 1) { 0.0 } else { slopes[i] }).collect();
            let counted = if ignore.is_some() { 5.25 } else { 5.75 };
            for reduction in [Reduction::None, Reduction::Sum, Reduction::Mean] {
                let (loss, gradient) = loss_and_gradient(|x| {
                    let weight = Some(x.session().input(&t(&[3], &[0.5, 2.0, 1.25]))?);
                    let y = x.session().labels(&labels(&[2, 0, 1, 1]))?;
                    let options = LabelLoss { weight, ignore, label_smoothing, reduction, axis: None };
                    if of_logs { x.nll_loss(y, options) } else { x.cross_entropy_loss(y, options) }
                });
                let what = format!("{reduction:?} {ignore:?} {label_smoothing} {of_logs}");
                let by = if reduction == Reduction::Mean { counted } else { 1.0 };
                let sum = [rows.iter().sum::<f64>() / by];
                near(&loss, if reduction == Reduction::None { &rows } else { &sum }, &what);
                near(&gradient, &slopes.iter().map(|g| g / by).collect::<Vec<_>>(), &what);
            }
        }
    }
}

#[test]
fn reductions_of_labels_without_weights() {
    let options = |reduction, ignore| LabelLoss { reduction, ignore, ..LabelLoss::default() };
    let run = |reduction, ignore| {
        loss_and_gradient(|x| {
            x.nll_loss(x.session().labels(&labels(&[2, 0, 1, 1]))?, options(reduction, ignore))
        })
    };
    assert_eq!(run(Reduction::Sum, None).0, [-0.375]);
    let (rows, gradient) = run(Reduction::None, Some(1));
    assert_eq!(rows, [0.5, -0.25, 0.0, 0.0]);
    assert_eq!(gradient, [0.0, 0.0, -1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn ignored_rows_may_hold_anything_and_nothing_counted_is_zero() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.variable(&t(&[2, 3], &[1.0, 2.0, 3.0, f32::NAN, f32::INFINITY, 0.0])).unwrap();
    let weight = Some(s.input(&t(&[3], &[0.5, 2.0, 1.25])).unwrap());
    for (y, rows) in [([2, 1], 1), ([1, 1], 0)] {
        let y = s.labels(&labels(&y)).unwrap();
        for label_smoothing in [0.0, 0.25] {
            let options = LabelLoss { weight, ignore: Some(1), label_smoothing, ..LabelLoss::default() };
            let loss = x.cross_entropy_loss(y, options).unwrap();
            let grads = loss.backward_retain().unwrap();
            let gradient = grads.var(x).unwrap().to_tensor::<f32>().unwrap().into_data();
            assert!(loss.item().unwrap().is_finite() && (rows > 0 || loss.item().unwrap() == 0.0));
            assert!(gradient[..3].iter().all(|g| g.is_finite()) && gradient[3..] == [0.0; 3], "{gradient:?}");
        }
        let options = LabelLoss { weight, ignore: Some(1), ..LabelLoss::default() };
        let loss = x.nll_loss(y, options).unwrap();
        let grads = loss.backward_retain().unwrap();
        assert!(loss.item().unwrap().is_finite());
        assert!(grads.var(x).unwrap().to_tensor::<f32>().unwrap().data()[3..] == [0.0; 3]);
    }
    // Weights of another count, labels beyond the classes, smoothing where there is none.
    let bad = LabelLoss { weight: Some(s.input(&t(&[2], &[1.0; 2])).unwrap()), ..LabelLoss::default() };
    let y = s.labels(&labels(&[0, 1])).unwrap();
    assert!(x.cross_entropy_loss(y, bad).is_err() && x.nll_loss(y, bad).is_err());
    let options = LabelLoss { weight, ..LabelLoss::default() };
    let beyond = s.labels(&labels(&[0, 3])).unwrap();
    assert!(x.cross_entropy_loss(beyond, options).is_err() && x.nll_loss(beyond, options).is_err());
    assert!(x.nll_loss(y, LabelLoss { label_smoothing: 0.1, ..options }).is_err());
    assert!(x.cross_entropy_loss(y, LabelLoss { label_smoothing: 1.5, ..options }).is_err());
}

#[test]
fn positive_targets_can_be_weighted() {
    let slopes = [
        0.731058579,
        -0.059601461,
        -0.183688997,
        -0.875646998,
        0.182425524,
        -0.141642602,
        0.167004722,
        -0.188770334,
        0.731058579,
        0.119202922,
        0.14840703,
        -1.132622006,
    ];
    let losses = [
        1.313261688,
        0.063464006,
        1.086115476,
        1.15187884,
        0.201413278,
        1.148742012,
        0.835027865,
        0.237038492,
        1.313261688,
        0.126928011,
        0.536949276,
        1.422230953,
    ];
    let targets = t(&[4, 3], &[0.0, 1.0, 0.25, 1.0, 0.0, 0.5, 0.75, 1.0, 0.0, 0.0, 0.5, 1.0]);
    for reduction in [Reduction::None, Reduction::Sum, Reduction::Mean] {
        let (loss, gradient) = loss_and_gradient(|x| {
            let s = x.session();
            x.bce_with_logits_weighted(s.input(&targets)?, s.input(&t(&[3], &[2.0, 0.5, 3.0]))?, reduction)
        });
        let by = if reduction == Reduction::Mean { 12.0 } else { 1.0 };
        let sum = [losses.iter().sum::<f64>() / by];
        near(&loss, if reduction == Reduction::None { &losses } else { &sum }, "losses");
        near(&gradient, &slopes.map(|g| g / by), "gradient");
    }
}

/// Eighths between -11/8 and 11/8.
fn eighths(dims: &[usize], by: usize) -> Tensor<f32> {
    let n = dims.iter().product();
    Tensor::new(dims, (0..n).map(|i| ((i * by % 23) as f32 - 11.0) / 8.0).collect()).unwrap()
}

/// The means are PyTorch's, in f64.
#[test]
fn errors_can_be_weighted() {
    let d = device();
    let s = Session::eager(&d);
    let [x, y, w] = [37, 29, 31].map(|by| s.variable(&eighths(&[4, 3], by)).unwrap());
    let w = w.abs().unwrap();
    let mean = Reduction::Mean;
    near(&data(x.mse_loss_weighted(y, w, mean).unwrap()), &[0.7808036], "mse");
    near(&data(x.l1_loss_weighted(y, w, mean).unwrap()), &[0.6], "l1");
    near(&data(x.huber_loss_weighted(y, w, 0.5, mean).unwrap()), &[0.152832], "huber");
    let losses = data(x.mse_loss_weighted(y, w, Reduction::None).unwrap());
    let by_hand = x.sub(y).unwrap().square().unwrap().mul(w).unwrap();
    assert_eq!(losses, data(by_hand));
    assert_eq!(data(x.mse_loss_weighted(y, w, Reduction::Sum).unwrap()), data(by_hand.sum().unwrap()));
    let row = s.ones(&[3]).unwrap();
    for answer in [
        x.mse_loss_weighted(y, row, mean),
        x.l1_loss_weighted(y, row, mean),
        x.huber_loss_weighted(y, row, 0.5, mean),
    ] {
        let e = answer.unwrap_err().to_string();
        assert!(e.contains("the shape of the losses"), "{e}");
    }
}

#[test]
fn cross_entropy_of_a_linear_layer_is_that_of_its_logits() {
    let d = device();
    let s = Session::eager(&d);
    let [x, w] = [(4, 37), (3, 5)].map(|(n, by)| s.variable(&eighths(&[n, 3], by)).unwrap());
    let b = s.variable(&eighths(&[3], 7)).unwrap();
    let y = s.labels(&labels(&[2, 0, 1, 1])).unwrap();
    let loss = x.linear_cross_entropy(w, Some(b), y, LabelLoss::default()).unwrap();
    near(&data(loss), &[2.8571441], "loss");
    // Weights of more axes: each has its own logits.
    let both = w.unsqueeze(1).unwrap().expand(&[3, 2, 3]).unwrap();
    let twice = y.unsqueeze(1).unwrap().expand(&[4, 2]).unwrap();
    let options = LabelLoss { axis: Some(1), ..Default::default() };
    let same =
        x.linear_cross_entropy(both, Some(b.unsqueeze(1).unwrap().expand(&[3, 2]).unwrap()), twice, options);
    near(&data(same.unwrap()), &[2.8571441], "twice the loss");
    for (why, answer) in [
        ("at least 1", x.linear_cross_entropy(s.scalar(1.0).unwrap(), None, y, LabelLoss::default())),
        (
            "number of features",
            x.linear_cross_entropy(s.ones(&[3, 2]).unwrap(), None, y, LabelLoss::default()),
        ),
        ("without the features", x.linear_cross_entropy(w, Some(x), y, LabelLoss::default())),
    ] {
        let e = answer.unwrap_err().to_string();
        assert!(e.contains(why), "{why}: {e}");
    }
}

#[test]
fn triplets_of_any_distances() {
    let d = device();
    let s = Session::eager(&d);
    let (near, far) =
        (s.input(&t(&[3], &[1.0, 2.0, 0.0])).unwrap(), s.input(&t(&[3], &[1.5, 0.0, 4.0])).unwrap());
    let swapped = s.input(&t(&[3], &[0.5, 1.0, 0.5])).unwrap();
    let none = Reduction::None;
    assert_eq!(data(near.triplet_margin_of_distances(far, None, 1.0, none).unwrap()), [0.5, 3.0, 0.0]);
    assert_eq!(
        data(near.triplet_margin_of_distances(far, Some(swapped), 1.0, none).unwrap()),
        [1.5, 3.0, 0.5]
    );
    let e = near.triplet_margin_of_distances(far, None, f64::NAN, none).unwrap_err().to_string();
    assert!(e.contains("finite number"), "{e}");
    assert!(near.triplet_margin_of_distances(s.ones(&[2]).unwrap(), None, 1.0, none).is_err());
}
