//! Mistakes that runtimes of this kind are known to make, each shown not to be made here.

use crate::support::{data, device, t};
use dittograd::device::{AnyBuffer, Buffer, Meta};
use dittograd::error::ErrorKind;
use dittograd::graph::TrainStep;
use dittograd::ops::conv::{ConvWindow, Sizes};
use dittograd::ops::loss::Reduction;
use dittograd::optim::Optimizer;
use dittograd::prelude::*;
use dittograd::session::Nats;
use dittograd::shape::Shape;

#[test]
fn saturating_functions_stay_finite() {
    let s = &Session::eager(&device());
    let x = s.input(&t(&[6], &[-1e30, -44.5, -10.2, 10.2, 44.5, 1e30])).unwrap();
    assert_eq!(data(x.tanh().unwrap()), [-1.0, -1.0, -1.0, 1.0, 1.0, 1.0]);
    let gelu = data(x.gelu().unwrap());
    assert!(gelu.iter().all(|y| y.is_finite()), "{gelu:?}");
    assert_eq!(gelu[3..], [10.2, 44.5, 1e30]);
}

#[test]
fn binary_cross_entropy_takes_the_logarithm_of_the_probability() {
    let s = &Session::eager(&device());
    let (p, target) = (s.input(&t(&[1], &[0.5])).unwrap(), s.input(&t(&[1], &[1.0])).unwrap());
    let loss = p.bce(target, Reduction::Mean).unwrap().item().unwrap();
    assert!((loss - std::f32::consts::LN_2).abs() < 1e-6, "{loss}");
}

#[test]
fn views_of_parameters_outlive_a_reset() {
    let d = device();
    let mut params = Params::new(&d, 0);
    let p = params.value("p", &t(&[2, 2], &[1.0, 2.0, 3.0, 4.0])).unwrap();
    let s = Session::eager(&d);
    for _ in 0..3 {
        let v = s.param(&p).unwrap();
        let view = v.flatten().unwrap().detach().unwrap();
        assert_eq!(data(view), [1.0, 2.0, 3.0, 4.0]);
        s.reset();
    }
    assert_eq!(p.get::<f32>().unwrap().data(), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn a_parameter_used_twice_is_one_leaf_and_is_updated_once() {
    let d = device();
    let mut params = Params::new(&d, 0);
    let p = params.value("p", &t(&[1], &[3.0])).unwrap();
    let s = Session::eager(&d);
    let loss = s.param(&p).unwrap().mul(s.param(&p).unwrap()).unwrap().sum().unwrap();
    Optimizer::sgd(0.25).step(&params, loss.backward().unwrap()).unwrap();
    assert_eq!(p.get::<f32>().unwrap().data(), [1.5]);
}

#[test]
fn a_parameter_has_one_value_wherever_it_is_read() {
    let d = device();
    let mut params = Params::new(&d, 0);
    let p = params.value("p", &t(&[1], &[1.0])).unwrap();
    let s = Session::eager(&d);
    for want in [0.5f32, 0.25, 0.125] {
        s.reset();
        let v = s.param(&p).unwrap();
        let loss = v.mul(v).unwrap().sum().unwrap();
        Optimizer::sgd(0.25).step(&params, loss.backward().unwrap()).unwrap();
        // Read on the host, then on the device, then set on the host.
        assert_eq!(p.get::<f32>().unwrap().data(), [want]);
    }
    p.set(&t(&[1], &[8.0])).unwrap();
    s.reset();
    assert_eq!(data(s.param(&p).unwrap()), [8.0]);
    assert_eq!(p.get::<f32>().unwrap().data(), [8.0]);
}

#[test]
fn transposed_convolution_undoes_the_shape_of_a_convolution() {
    // out = (in - 1) stride - 2 padding + dilation (kernel - 1) + 1 + output padding, axis by axis.
    let s = &Session::eager(&device());
    let x = s.input(&Tensor::full(Shape::new(&[1, 2, 5, 7]).unwrap(), 1.0f32)).unwrap();
    let w = s.input(&Tensor::full(Shape::new(&[2, 3, 3, 4]).unwrap(), 1.0f32)).unwrap();
    let sizes = |x: &[usize]| Sizes::new(x).unwrap();
    let window =
        ConvWindow { stride: sizes(&[2, 3]), padding: sizes(&[1, 0]), dilation: sizes(&[1, 2]), groups: 1 };
    let y = x.conv_transpose(w, None, window, &[1, 2]).unwrap();
    let want = [1, 3, 4 * 2 - 2 + 2 + 1 + 1, 6 * 3 + 2 * 3 + 1 + 2];
    assert_eq!(y.shape().unwrap().dims(), want);
}

#[test]
fn the_learning_rate_of_a_compiled_step_can_change() {
    let d = device();
    let mut params = Params::new(&d, 0);
    let p = params.value("p", &t(&[1], &[0.0])).unwrap();
    let q = p.clone();
    let mut step = TrainStep::new(&params, Optimizer::adam(1.0), move |v| v[0].session().param(&q)?.sum());
    let x = Tensor::scalar(0.0f32);
    step.run(&[(&x).into()]).unwrap();
    let one = p.get::<f32>().unwrap().data()[0];
    step.set_lr(0.0);
    step.run(&[(&x).into()]).unwrap();
    assert_eq!(p.get::<f32>().unwrap().data()[0], one);
    step.set_lr(0.5);
    step.run(&[(&x).into()]).unwrap();
    assert!((p.get::<f32>().unwrap().data()[0] - (one - 0.5)).abs() < 1e-5);
}

#[test]
fn normal_numbers_are_normal() {
    for seed in 0..3 {
        let s = Session::eager_seeded(&device(), seed);
        let x = data(s.normal(&[20_000], 0.0, 1.0).unwrap());
        let n = x.len() as f32;
        let mean = x.iter().sum::<f32>() / n;
        let moment = |k: i32| x.iter().map(|v| (v - mean).powi(k)).sum::<f32>() / n;
        assert!(mean.abs() < 0.03 && (moment(2) - 1.0).abs() < 0.05, "{mean} {}", moment(2));
        assert!((moment(4) - 3.0).abs() < 0.3, "{}", moment(4));
        assert!(x.iter().any(|v| v.abs() > 3.0) && x.iter().any(|v| v.abs() < 0.01));
    }
}

#[test]
fn seed_and_counter_do_not_collide_and_one_is_never_drawn() {
    let draw = |seed: u64, call: u64| {
        let s = Session::eager_seeded(&device(), seed);
        s.set_random_calls(call);
        data(s.uniform(&[64]).unwrap())
    };
    assert_ne!(draw(0, 1), draw(1, 0));
    assert_ne!(draw(3, 5), draw(5, 3));
    let s = Session::eager(&device());
    assert!(data(s.uniform(&[1 << 20]).unwrap()).iter().all(|u| (0.0..1.0).contains(u)));
    // A probability of 1 keeps everything.
    assert!(data(s.bernoulli(&[1 << 20], 1.0).unwrap()).iter().all(|&b| b == 1.0));
}

#[test]
fn compiled_dropout_draws_anew_and_as_eagerly() {
    let d = device();
    let mut params = Params::new(&d, 0);
    let p = params.value("p", &t(&[64], &[1.0; 64])).unwrap();
    let q = p.clone();
    let mut step = TrainStep::new(&params, Optimizer::sgd(0.0), move |v| {
        v[0].session().param(&q)?.dropout(0.5)?.mul(v[0])?.sum()
    })
    .seeded(4);
    let x = t(&[64], &(0..64).map(|i| i as f32).collect::<Vec<_>>());
    let compiled: Vec<f32> = (0..4)
        .map(|_| {
            step.run(&[(&x).into()]).unwrap();
            step.loss().unwrap()
        })
        .collect();
    let s = Session::eager_seeded(&d, 4);
    let eager: Vec<f32> = (0..4)
        .map(|_| {
            s.reset();
            let kept = s.param(&p).unwrap().dropout(0.5).unwrap();
            kept.mul(s.input(&x).unwrap()).unwrap().sum().unwrap().item().unwrap()
        })
        .collect();
    assert_eq!(compiled, eager);
    assert!(compiled.windows(2).all(|w| w[0] != w[1]), "{compiled:?}");
}

#[test]
fn derivatives_go_through_gathers_by_whole_numbers() {
    let s = Session::eager(&device());
    let table = s.variable(&t(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])).unwrap();
    let rows = table.index_select(0, s.nats(&Nats::new(&[2, 0])).unwrap()).unwrap();
    let along = s.input(&t(&[3, 2], &[1.0, 0.0, 0.0, 0.0, 0.0, 10.0])).unwrap();
    assert_eq!(data(s.jvp(rows, &[(table, along)]).unwrap()), [0.0, 10.0, 1.0, 0.0]);
}

#[test]
fn frozen_parameters_stay_in_both_modes() {
    let d = device();
    for compiled in [false, true] {
        let mut params = Params::new(&d, 0);
        let [a, b] = ["a", "b"].map(|n| params.value(n, &t(&[1], &[2.0])).unwrap());
        b.set_trainable(false);
        if compiled {
            let (pa, pb) = (a.clone(), b.clone());
            let mut step = TrainStep::new(&params, Optimizer::sgd(0.1), move |v| {
                let s = v[0].session();
                s.param(&pa)?.mul(s.param(&pb)?)?.sum()
            });
            step.run(&[(&Tensor::scalar(0.0f32)).into()]).unwrap();
        } else {
            let s = Session::eager(&d);
            let loss = s.param(&a).unwrap().mul(s.param(&b).unwrap()).unwrap().sum().unwrap();
            Optimizer::sgd(0.1).step(&params, loss.backward().unwrap()).unwrap();
        }
        assert_eq!((a.get::<f32>().unwrap().data()[0], b.get::<f32>().unwrap().data()[0]), (1.8, 2.0));
    }
}

#[test]
fn what_the_loss_does_not_use_is_not_walked() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.variable(&t(&[1], &[0.0])).unwrap();
    // The slope of this root is infinite at 0.
    let _unused = x.sqrt().unwrap();
    let loss = x.scale(2.0).unwrap().sum().unwrap();
    let id = s.size() - 1;
    let dense =
        s.with_tape(|tape| tape.backward_dense(id, AnyBuffer::full(&d, Shape::SCALAR, 1.0)?)).unwrap();
    assert_eq!(dense[0].to_tensor::<f32>().unwrap().data(), [2.0]);
    assert_eq!(loss.backward().unwrap().var(x).unwrap().to_tensor::<f32>().unwrap().data(), [2.0]);
}

#[test]
fn a_missing_gradient_is_named_and_not_taken_for_zero() {
    let d = device();
    let mut params = Params::new(&d, 0);
    let used = params.value("used", &t(&[1], &[1.0])).unwrap();
    let _left = params.value("left.weight", &t(&[1], &[1.0])).unwrap();
    let s = Session::eager(&d);
    let loss = s.param(&used).unwrap().sum().unwrap();
    let e = Optimizer::sgd(0.1).step(&params, loss.backward().unwrap()).unwrap_err().to_string();
    assert!(e.contains("left.weight"), "{e}");
    assert_eq!(used.get::<f32>().unwrap().data(), [1.0]);
}

#[test]
fn wrong_sizes_and_lack_of_memory_are_errors() {
    let d = device();
    let short = Buffer::upload(&d, &[1.0, 2.0]).unwrap();
    let e = AnyBuffer::new(short, Meta::f32(Shape::new(&[3]).unwrap())).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Length { want: 3, got: 2 }), "{e}");
    let s = Session::eager(&d);
    let x = s.variable(&t(&[4], &[1.0; 4])).unwrap();
    d.fail_allocation(Some(1), false);
    let e = x.relu().unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::OutOfMemory { .. }), "{e}");
    assert_eq!(data(x.relu().unwrap()), [1.0; 4]);
}

#[test]
fn handles_know_their_session_and_epoch() {
    let (a, b) = (Session::eager(&device()), Session::eager(&device()));
    let x = a.input(&t(&[1], &[1.0])).unwrap();
    let y = b.input(&t(&[1], &[2.0])).unwrap();
    assert!(matches!(x.add(y).unwrap_err().kind(), ErrorKind::Foreign));
    a.reset();
    let _other = a.input(&t(&[1], &[5.0])).unwrap();
    assert!(matches!(x.relu().unwrap_err().kind(), ErrorKind::Stale { .. }));
}
