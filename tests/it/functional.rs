//! Losses and attention as functions: values and gradients as PyTorch's, and what they refuse.

use super::support::{data, device, t};
use dittograd::ops::loss::Reduction;
use dittograd::prelude::*;
use dittograd::session::{CtcLoss, MultiMargin, PoissonNll, TripletMargin};
use dittograd_check::gpu;
use serde_json::Value;

/// The call of a golden case.
fn call<'s>(name: &str, v: &[Var<'s>]) -> Result<Var<'s>> {
    let (base, reduction) = match name.split_once('.') {
        Some((base, "none")) => (base, Reduction::None),
        Some((base, "sum")) => (base, Reduction::Sum),
        Some((base, _)) => (base, Reduction::Mean),
        None => (name, Reduction::Mean),
    };
    let x = v[0];
    let weighted = |weight, label_smoothing, ignore| LabelLoss {
        weight: Some(weight),
        label_smoothing,
        ignore,
        reduction,
        axis: Some(1),
    };
    let ctc = CtcLoss { reduction, ..CtcLoss::default() };
    let options = AttentionOptions::default();
    match base {
        "margin_ranking" => x.margin_ranking_loss(v[1], v[2], 0.25, reduction),
        "soft_margin" => x.soft_margin_loss(v[1], reduction),
        "hinge_embedding" => x.hinge_embedding_loss(v[1], 0.5, reduction),
        "hinge_embedding_corner" => x.hinge_embedding_loss(v[1].neg()?, 1.0, reduction),
        "margin_ranking_corner" => x.margin_ranking_loss(v[1], v[2], 0.0, reduction),
        "cosine_embedding" => x.cosine_embedding_loss(v[1], v[2], 0.125, reduction),
        "triplet" => x.triplet_margin_loss(v[1], v[2], TripletMargin { reduction, ..Default::default() }),
        "triplet_swap" => {
            let options = TripletMargin { margin: 2.0, p: 1.0, swap: true, reduction, ..Default::default() };
            x.triplet_margin_loss(v[1], v[2], options)
        }
        "multi_margin" => x.multi_margin_loss(v[1], MultiMargin { reduction, ..Default::default() }),
        "multi_margin_squared" => {
            let options = MultiMargin { margin: 0.5, squared: true, weight: Some(v[2]), reduction };
            x.multi_margin_loss(v[1], options)
        }
        "multilabel_margin" => x.multilabel_margin_loss(v[1], reduction),
        "multilabel_soft" => x.multilabel_soft_margin_loss(v[1], Some(v[2]), reduction),
        "poisson" => x.poisson_nll_loss(v[1], PoissonNll { reduction, ..Default::default() }),
        "poisson_rate" => {
            let eps = 1.0 / f64::from(1 << 20);
            x.poisson_nll_loss(v[1], PoissonNll { log_input: false, full: true, eps, reduction })
        }
        "gaussian" => x.gaussian_nll_loss(v[1], v[2], false, 0.5, reduction),
        "gaussian_rows" => x.gaussian_nll_loss(v[1], v[2], true, 1e-6, reduction),
        "kl_log" => x.kl_div_log(v[1], reduction),
        "bce" => x.bce_loss(v[1], Some(v[2]), reduction),
        "bce_logits" => x.bce_with_logits_loss(v[1], Some(v[2]), Some(v[3]), reduction),
        "ce_probabilities" => x.cross_entropy_loss(v[1], LabelLoss { reduction, ..LabelLoss::default() }),
        "ce_probabilities_axis" => x.cross_entropy_loss(v[1], weighted(v[2], 0.125, None)),
        "ce_image" => x.cross_entropy_loss(v[1], weighted(v[2], 0.125, Some(2))),
        "nll_image" => x.nll_loss(v[1], weighted(v[2], 0.0, None)),
        "ctc" | "ctc_equal" | "ctc_one" => x.log_softmax()?.ctc_loss(v[1], v[2], v[3], ctc),
        "ctc_short" => {
            x.log_softmax()?.ctc_loss(v[1], v[2], v[3], CtcLoss { blank: 4, zero_infinity: true, ..ctc })
        }
        "kl_batchmean" => x.kl_div_batchmean(v[1], false),
        "kl_log_batchmean" => x.kl_div_batchmean(v[1], true),
        "softmin" => x.softmin(0),
        "sdpa_bias" => {
            x.attention(v[1], v[2], AttentionOptions { bias: Some(v[3]), scale: Some(0.25), ..options })
        }
        "sdpa_keys" | "sdpa_closed" => {
            let keys = t(&[2, 1, 1, 5], &[1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
            let keys = x.session().constant(&keys)?;
            if base == "sdpa_keys" {
                return x.attention(v[1], v[2], AttentionOptions { mask: Some(keys), ..options });
            }
            let first = x.session().constant(&t(&[2, 1, 1, 1], &[1.0, 0.0]))?;
            let closed = keys.mul(first)?.eq(x.session().scalar(0.0)?)?;
            let bias = closed.zeros_like()?.masked_fill(closed, f64::NEG_INFINITY)?;
            x.attention(v[1], v[2], AttentionOptions { bias: Some(bias), ..options })
        }
        "sdpa_shared" => {
            let (k, w) = (v[1].narrow(1, 0, 2)?, v[2].narrow(1, 0, 2)?);
            x.attention(k, w, AttentionOptions { causal: true, ..options })
        }
        "sdpa_wide" => x.attention(v[1], v[2], options),
        _ => panic!("no case {name}"),
    }
}

/// As `fill(shape, 3)` of `tests/golden/cases.py`.
fn fill(shape: Shape) -> Tensor<f32> {
    let one = |i: usize| ((37 * i + i * i / 7 + 33) % 101) as f32 - 50.0;
    Tensor::from_fn(shape, |i| one(i) / 128.0)
}

fn numbers(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn dims(v: &Value) -> Vec<usize> {
    v.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as usize).collect()
}

fn input<'s>(s: &'s Session, v: &Value) -> Var<'s> {
    let shape = dims(&v["shape"]);
    if let Some(idx) = v["idx"].as_array() {
        let idx = idx.iter().map(|x| u32::try_from(x.as_u64().unwrap()).unwrap()).collect();
        return s.labels(&Tensor::new(&shape, idx).unwrap()).unwrap();
    }
    let num = numbers(&v["num"]).iter().map(|&x| x as f32).collect::<Vec<_>>();
    s.variable(&t(&shape, &num)).unwrap()
}

fn agree(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let size = want.iter().fold(1e-3, |m: f64, w| m.max(w.abs()));
    for (at, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance * size, "{what}: element {at} is {g}, PyTorch has {w}");
    }
}

/// Devices of other numbers cannot broadcast indices, as `ctc_loss` does.
fn like_pytorch(device: &Device, tolerance: f64, host: bool) {
    for line in include_str!("../golden/functional.jsonl").lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let name = case["name"].as_str().unwrap();
        if host && name.starts_with("ctc") {
            continue;
        }
        let s = Session::eager(device);
        let ins: Vec<Var<'_>> = case["ins"].as_array().unwrap().iter().map(|v| input(&s, v)).collect();
        let y = call(name, &ins).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(y.shape().unwrap().dims(), dims(&case["shape"]), "{name}");
        let what = format!("{name} on {device}");
        agree(&what, y.value::<f64>().unwrap().data(), &numbers(&case["y"]), tolerance);
        let shape = y.shape().unwrap();
        let root = match shape.rank() {
            0 => y,
            _ => y.mul(s.constant(&fill(shape)).unwrap()).unwrap().sum().unwrap(),
        };
        let grads = root.backward().unwrap();
        for (i, want) in case["dx"].as_array().unwrap().iter().enumerate().filter(|(_, v)| !v.is_null()) {
            let got = grads.var(ins[i]).unwrap().to_tensor::<f64>().unwrap();
            agree(&format!("{what}, gradient {i}"), got.data(), &numbers(want), tolerance);
        }
    }
}

#[test]
fn losses_and_attention_are_those_of_pytorch() {
    like_pytorch(&device(), 1e-5, false);
    like_pytorch(&Device::host::<f64>(), 1e-6, true);
}

#[test]
fn cuda_has_the_losses_and_attention_of_pytorch() {
    if let Some((_turn, gpu)) = gpu() {
        like_pytorch(&gpu, 1e-5, false);
    }
}

/// Bits of values and gradients.
fn bits(device: &Device) -> Vec<(String, Vec<u32>)> {
    let mut all = Vec::new();
    for line in include_str!("../golden/functional.jsonl").lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let name = case["name"].as_str().unwrap();
        let s = Session::eager(device);
        let ins: Vec<Var<'_>> = case["ins"].as_array().unwrap().iter().map(|v| input(&s, v)).collect();
        let y = call(name, &ins).unwrap();
        let mut bits: Vec<u32> = data(y).iter().map(|x| x.to_bits()).collect();
        let grads = y.sum().unwrap().backward().unwrap();
        for (i, _) in case["dx"].as_array().unwrap().iter().enumerate().filter(|(_, v)| !v.is_null()) {
            let slope = grads.var(ins[i]).unwrap().to_tensor::<f32>().unwrap();
            bits.extend(slope.data().iter().map(|x| x.to_bits()));
        }
        all.push((name.to_string(), bits));
    }
    all
}

#[test]
fn cuda_has_the_bits_of_the_cpu() {
    if let Some((_turn, gpu)) = gpu() {
        for (got, want) in bits(&gpu).into_iter().zip(bits(&device())) {
            assert_eq!(got, want);
        }
    }
}

/// A value of two sequences that cannot have its labels is infinite, and gradients stay numbers.
#[test]
fn a_sequence_too_short_for_its_labels_has_an_infinite_ctc_loss() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.variable(&t(&[2, 1, 3], &[0.5, -1.0, 2.0, 0.0, 0.25, -0.5])).unwrap();
    let index = |dims: &[usize], v: &[u32]| s.labels(&Tensor::new(dims, v.to_vec()).unwrap()).unwrap();
    let (labels, of, to) = (index(&[1, 2], &[1, 1]), index(&[1], &[2]), index(&[1], &[2]));
    let loss = x.log_softmax().unwrap().ctc_loss(labels, of, to, CtcLoss::default()).unwrap();
    assert_eq!(loss.item().unwrap(), f32::INFINITY);
    let slope = loss.backward().unwrap().var(x).unwrap().to_tensor::<f32>().unwrap();
    assert_eq!(slope.data(), [0.0; 6]);
    let logs = x.log_softmax().unwrap();
    assert!(logs.ctc_loss(labels, index(&[1], &[3]), to, CtcLoss::default()).is_err(), "longer than T");
    assert!(logs.ctc_loss(labels, of, index(&[1], &[3]), CtcLoss::default()).is_err(), "longer than S");
    assert!(logs.ctc_loss(labels, of, to, CtcLoss { blank: 3, ..CtcLoss::default() }).is_err());
    assert!(logs.ctc_loss(index(&[1, 2], &[1, 3]), of, to, CtcLoss::default()).is_err(), "no class");
    assert!(logs.ctc_loss(index(&[2], &[1, 2]), of, to, CtcLoss::default()).is_err(), "no axis N");
}

#[test]
fn values_without_elements_have_a_softmax() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.variable(&t(&[2, 0], &[])).unwrap();
    for y in [x.softmax(), x.log_softmax(), x.softmax_axis(0), x.softmin(1), x.gumbel_softmax(1.0, true, 1)] {
        assert_eq!(y.unwrap().shape().unwrap().dims(), [2, 0]);
    }
    assert!(x.softmax_axis(2).is_err());
}

#[test]
fn gumbel_samples_follow_the_logits() {
    let d = device();
    let s = Session::eager_seeded(&d, 5);
    let logits = [0.0f32, 1.0, -1.0];
    let x = s.variable(&t(&[1, 3], &logits)).unwrap();
    let many = x.expand(&[4000, 3]).unwrap();
    let hard = many.gumbel_softmax(0.5, true, 1).unwrap();
    assert!(data(hard).iter().all(|y| *y == 0.0 || *y == 1.0));
    let (got, want) = (data(hard.mean_axes(&[0]).unwrap()), data(x.softmax().unwrap()));
    for (g, w) in got.iter().zip(&want) {
        assert!((g - w).abs() < 0.03, "{got:?} {want:?}");
    }
    let soft = many.gumbel_softmax(0.5, false, 1).unwrap();
    assert!(data(soft.sum_axes(&[1]).unwrap()).iter().all(|y| (y - 1.0).abs() < 1e-5));
    let loss = hard.square().unwrap().sum().unwrap();
    assert!(loss.backward().unwrap().var(x).is_some());
    assert!(x.gumbel_softmax(0.0, true, 1).is_err() && x.gumbel_softmax(1.0, true, 2).is_err());
}

#[test]
fn dropout_of_attention_weights_keeps_the_mean() {
    let d = device();
    let s = Session::eager_seeded(&d, 5);
    let (q, v) = (s.zeros(&[1, 64, 8]).unwrap(), s.ones(&[1, 64, 8]).unwrap());
    let dropped = |dropout| q.attention(q, v, AttentionOptions { dropout, ..Default::default() });
    let y = data(dropped(0.5).unwrap());
    let mean = y.iter().sum::<f32>() / y.len() as f32;
    assert!((mean - 1.0).abs() < 0.1 && y.iter().any(|y| *y != 1.0), "{mean}");
    assert!(dropped(1.5).is_err() && dropped(-0.5).is_err() && dropped(f64::NAN).is_err());
    let bias = Some(s.zeros(&[3, 64]).unwrap());
    assert!(q.attention(q, v, AttentionOptions { bias, ..Default::default() }).is_err());
}

#[test]
fn losses_refuse_what_does_not_fit() {
    let d = device();
    let s = Session::eager(&d);
    let (x, row) = (s.ones(&[2, 3]).unwrap(), s.ones(&[2]).unwrap());
    let labels = s.labels(&Tensor::new(&[2], vec![0, 1]).unwrap()).unwrap();
    let mean = Reduction::Mean;
    assert!(x.margin_ranking_loss(row, x, 0.0, mean).is_err());
    assert!(x.margin_ranking_loss(x, x, f64::NAN, mean).is_err());
    assert!(x.soft_margin_loss(row, mean).is_err());
    assert!(x.cosine_embedding_loss(x, x, 0.0, mean).is_err());
    assert!(x.triplet_margin_loss(x, row, TripletMargin::default()).is_err());
    assert!(x.triplet_margin_loss(x, x, TripletMargin { p: f64::NAN, ..Default::default() }).is_err());
    assert!(x.multi_margin_loss(x, MultiMargin::default()).is_err());
    assert!(x.multi_margin_loss(labels, MultiMargin { weight: Some(row), ..Default::default() }).is_err());
    assert!(x.multilabel_margin_loss(labels, mean).is_err());
    assert!(x.multilabel_soft_margin_loss(row, None, mean).is_err());
    assert!(x.gaussian_nll_loss(x, x, false, 0.0, mean).is_err());
    assert!(x.gaussian_nll_loss(x, x.neg().unwrap(), false, 1e-6, mean).unwrap().item().unwrap().is_nan());
    assert!(x.poisson_nll_loss(labels, PoissonNll::default()).is_err());
    assert!(x.bce_loss(x, Some(row), mean).is_err());
    assert!(row.sum().unwrap().kl_div_batchmean(row.sum().unwrap(), true).is_err());
    let bad = |options| x.cross_entropy_loss(x, options).is_err();
    assert!(bad(LabelLoss { ignore: Some(0), ..Default::default() }));
    assert!(bad(LabelLoss { label_smoothing: 2.0, ..Default::default() }));
    assert!(bad(LabelLoss { weight: Some(row), ..Default::default() }));
    assert!(bad(LabelLoss { axis: Some(2), ..Default::default() }));
    assert!(x.cross_entropy_loss(labels, LabelLoss { axis: Some(2), ..Default::default() }).is_err());
}
