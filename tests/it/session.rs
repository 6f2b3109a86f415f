//! Sessions, parameters, optimizers and the compiled path: handles, errors, memory, and eager = compiled.

use crate::support::{data, device, fractions, t};
use dittograd::device::cpu::simd::Simd;
use dittograd::error::ErrorKind;
use dittograd::numerics::rng::Stream;
use dittograd::prelude::*;

/// The CPU, and a GPU if there is one, each with memory counters of its own.
fn on_each_device(check: impl Fn(&Device)) {
    check(&device());
    if let Some((_turn, gpu)) = dittograd_check::gpu() {
        check(&gpu);
    }
}

fn batch(seed: u64, rows: usize, features: usize, classes: usize) -> (Tensor<f32>, Tensor<u32>) {
    let mut s = Stream::new(seed, 0);
    let x = Tensor::from_fn(Shape::new(&[rows, features]).unwrap(), |_| s.range(-1.0, 1.0));
    let y = Tensor::from_fn(Shape::new(&[rows]).unwrap(), |_| s.below(classes) as u32);
    (x, y)
}

#[test]
fn handles_know_their_session_and_epoch() {
    let d = device();
    let (a, b) = (Session::eager(&d), Session::eager(&d));
    let x = a.input(&t(&[2], &[1.0, 2.0])).unwrap();
    let y = b.input(&t(&[2], &[1.0, 2.0])).unwrap();
    assert_eq!(*x.add(y).unwrap_err().kind(), ErrorKind::Foreign);
    a.reset();
    let e = x.exp().unwrap_err();
    assert_eq!(*e.kind(), ErrorKind::Stale { handle: 0, session: 1 });
    assert!(x.value::<f32>().is_err() && x.shape().is_err() && x.backward().is_err());
    let z = a.input(&t(&[1], &[5.0])).unwrap();
    assert_eq!(z.item().unwrap(), 5.0);
}

#[test]
fn gradients_flow_where_they_should() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.variable(&t(&[2], &[1.0, 2.0])).unwrap();
    let c = s.input(&t(&[2], &[3.0, 4.0])).unwrap();
    let y = x.mul(c).unwrap().add(x.detach().unwrap()).unwrap();
    let loss = y.sum().unwrap();
    let grads = loss.backward_retain().unwrap();
    assert_eq!(grads.var(x).unwrap().to_tensor::<f32>().unwrap().data(), [3.0, 4.0]);
    assert!(grads.var(c).is_none());
    assert_eq!(y.value::<f32>().unwrap().data(), [4.0, 10.0]);
    // Not a scalar, no gradient to be had, freed values: each says so.
    assert!(y.backward().unwrap_err().to_string().contains("seed"));
    assert!(c.sum().unwrap().backward().unwrap_err().to_string().contains("requires a gradient"));
    let seeded = y.backward_from(&t(&[2], &[1.0, 10.0])).unwrap();
    assert_eq!(seeded.var(x).unwrap().to_tensor::<f32>().unwrap().data(), [3.0, 40.0]);
    assert!(y.backward_from(&t(&[3], &[1.0; 3])).is_err());
}

#[test]
fn broadcasting_sums_back() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.variable(&t(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])).unwrap();
    let b = s.variable(&t(&[3], &[10.0, 20.0, 30.0])).unwrap();
    let k = s.variable(&t(&[2, 1], &[1.0, -1.0])).unwrap();
    let y = x.add(b).unwrap().mul(k).unwrap();
    assert_eq!(y.value::<f32>().unwrap().data(), [11.0, 22.0, 33.0, -14.0, -25.0, -36.0]);
    let g = y.sum().unwrap().backward().unwrap();
    assert_eq!(g.var(b).unwrap().to_tensor::<f32>().unwrap().data(), [0.0, 0.0, 0.0]);
    let dk = g.var(k).unwrap();
    assert_eq!(dk.shape().dims(), [2, 1]);
    assert_eq!(dk.to_tensor::<f32>().unwrap().data(), [66.0, 75.0]);
    let e = x.add(s.input(&t(&[2], &[0.0, 0.0])).unwrap()).unwrap_err();
    assert_eq!(e.op(), "add", "{e}");
}

/// What an eager session has read of a parameter is not mixed with what a compiled step made of it.
#[test]
fn a_compiled_step_changes_what_it_updates_and_what_it_assigns() {
    let d = device();
    let mut params = Params::new(&d, 1);
    let (w, mean) = (params.ones("w", &[2]).unwrap(), params.ones("mean", &[2]).unwrap());
    mean.set_trainable(false);
    let read = Session::eager(&d);
    for p in [&w, &mean] {
        read.param(p).unwrap();
    }
    let mut step = TrainStep::new(&params, Optimizer::sgd(0.1), |v| {
        let s = v[0].session();
        s.assign(&mean, v[0].scale(2.0)?)?;
        s.param(&w)?.mul(v[0])?.sum()
    });
    step.run(&[(&t(&[2], &[1.0, 2.0])).into()]).unwrap();
    for p in [&w, &mean] {
        let e = read.param(p).unwrap_err().to_string();
        assert!(e.contains(p.name()), "{e}");
        Session::eager(&d).param(p).unwrap();
    }
}

#[test]
fn a_parameter_used_twice_is_one_leaf() {
    let d = device();
    let mut params = Params::new(&d, 0);
    let w = params.value("w", &t(&[], &[3.0])).unwrap();
    let s = Session::eager(&d);
    let y = s.param(&w).unwrap().mul(s.param(&w).unwrap()).unwrap();
    let grads = y.backward().unwrap();
    assert_eq!(grads.param(&w).unwrap().to_tensor::<f32>().unwrap().item().unwrap(), 6.0);
}

#[test]
fn parameters_refuse_bad_names_shapes_and_stale_tapes() {
    let d = device();
    let mut params = Params::new(&d, 0);
    let w = params.zeros("w", &[2]).unwrap();
    assert!(params.zeros("w", &[2]).is_err() && params.zeros("", &[2]).is_err());
    assert!(params.uniform("u", &[2], 1.0, f64::NAN).is_err());
    assert!(params.zeros("huge", &[usize::MAX, 2]).is_err());
    assert!(w.set(&t(&[3], &[0.0; 3])).is_err());
    w.set(&t(&[2], &[1.0, 2.0])).unwrap();
    assert_eq!(params.get("w").unwrap().get::<f64>().unwrap().data(), [1.0, 2.0]);
    let s = Session::eager(&d);
    let loss = s.param(&w).unwrap().sum().unwrap();
    w.set(&t(&[2], &[5.0, 5.0])).unwrap();
    let e = loss.backward().unwrap_err();
    assert!(e.to_string().contains("changed after it was recorded"), "{e}");
}

#[test]
fn views_of_a_parameter_survive_reset() {
    let d = device();
    let mut params = Params::new(&d, 0);
    let w = params.value("w", &t(&[2, 2], &[1.0, 2.0, 3.0, 4.0])).unwrap();
    let s = Session::eager(&d);
    for _ in 0..3 {
        let flat = s.param(&w).unwrap().flatten().unwrap().detach().unwrap();
        assert_eq!(flat.value::<f32>().unwrap().data(), [1.0, 2.0, 3.0, 4.0]);
        s.reset();
    }
    assert_eq!(w.get::<f32>().unwrap().data(), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn frozen_parameters_stay_and_unused_ones_are_named() {
    let d = device();
    let mut params = Params::new(&d, 0);
    let a = params.value("a", &t(&[1], &[1.0])).unwrap();
    let b = params.value("b", &t(&[1], &[1.0])).unwrap();
    let s = Session::eager(&d);
    let mut opt = Optimizer::sgd(0.5);
    let grads = s.param(&a).unwrap().sum().unwrap().backward().unwrap();
    let e = opt.step(&params, grads).unwrap_err();
    assert!(e.to_string().contains("parameter b"), "{e}");
    assert_eq!(a.get::<f32>().unwrap().data(), [1.0]);
    b.set_trainable(false);
    s.reset();
    let loss = s.param(&a).unwrap().add(s.param(&b).unwrap()).unwrap().sum().unwrap();
    opt.step(&params, loss.backward().unwrap()).unwrap();
    assert_eq!((a.get::<f32>().unwrap().data()[0], b.get::<f32>().unwrap().data()[0]), (0.5, 1.0));
    let mut wrong = TrainStep::new(&params, Optimizer::sgd(f64::NAN), |v| v[0].session().param(&a)?.sum());
    let e = wrong.run(&[(&t(&[1], &[0.0])).into()]).unwrap_err();
    assert!(e.to_string().contains("lr"), "{e}");
}

/// The equations, in f64, on the gradient of `Σ w^2 / 2`, which is `w`.
#[test]
fn optimizers_follow_their_equations() {
    type Make = fn() -> Optimizer;
    type Update = fn(f64, &mut [f64; 2], i32) -> f64;
    let cases: [(&str, Make, Update); 4] = [
        ("sgd", || Optimizer::sgd(0.1), |w, _, _| w - 0.1 * w),
        (
            "momentum",
            || Optimizer::momentum(0.1, 0.9),
            |w, s, _| {
                s[0] = 0.9 * s[0] + w;
                w - 0.1 * s[0]
            },
        ),
        (
            "adam",
            || Optimizer::adam(0.1),
            |w, s, t| {
                s[0] = 0.9 * s[0] + 0.1 * w;
                s[1] = 0.999 * s[1] + 0.001 * w * w;
                let (m, v) = (s[0] / (1.0 - 0.9f64.powi(t)), s[1] / (1.0 - 0.999f64.powi(t)));
                w - 0.1 * m / (v.sqrt() + 1e-8)
            },
        ),
        (
            "adamw",
            || Optimizer::adamw(0.1),
            |w, s, t| {
                s[0] = 0.9 * s[0] + 0.1 * w;
                s[1] = 0.999 * s[1] + 0.001 * w * w;
                let (m, v) = (s[0] / (1.0 - 0.9f64.powi(t)), s[1] / (1.0 - 0.999f64.powi(t)));
                w - 0.1 * 0.01 * w - 0.1 * m / (v.sqrt() + 1e-8)
            },
        ),
    ];
    for (name, make, rule) in cases {
        let d = device();
        let mut params = Params::new(&d, 0);
        let start = [1.5, -0.75, 0.25];
        let w = params.value("w", &Tensor::new(&[3], start.to_vec()).unwrap()).unwrap();
        let s = Session::eager(&d);
        let mut opt = make();
        let mut want: Vec<(f64, [f64; 2])> = start.iter().map(|&w| (w, [0.0; 2])).collect();
        for step in 1..=20 {
            let loss = s.param(&w).unwrap().square().unwrap().sum().unwrap().scale(0.5).unwrap();
            opt.step(&params, loss.backward().unwrap()).unwrap();
            s.reset();
            for (w, state) in &mut want {
                *w = rule(*w, state, step);
            }
        }
        for (got, (want, _)) in w.get::<f64>().unwrap().data().iter().zip(&want) {
            assert!((got - want).abs() < 2e-5, "{name}: {got} {want}");
        }
    }
}

/// One training run; its fingerprint and losses.
fn train(device: &Device, compiled: bool, dropout: bool, make: fn() -> Optimizer) -> (String, Vec<u32>) {
    let mut params = Params::new(device, 7);
    let net = Mlp::new(&mut params, &[5, 33, 17, 4]).unwrap();

    fn loss<'s>(net: &Mlp, v: &[Var<'s>], dropout: bool) -> Result<Var<'s>> {
        let x = if dropout { v[0].dropout(0.25)? } else { v[0] };
        net.forward(x)?.gelu()?.cross_entropy(v[1])
    }
    let mut losses = Vec::new();
    if compiled {
        let mut step = TrainStep::new(&params, make(), |v| loss(&net, v, dropout)).seeded(3);
        for i in 0..25 {
            let (x, y) = batch(i, 19, 5, 4);
            step.run(&[(&x).into(), (&y).into()]).unwrap();
            losses.push(step.loss().unwrap().to_bits());
            if i == 10 {
                let lr = step.optimizer().lr() * 0.5;
                step.set_lr(lr);
            }
        }
    } else {
        let s = Session::eager_seeded(device, 3);
        let mut opt = make();
        for i in 0..25 {
            let (x, y) = batch(i, 19, 5, 4);
            let l = loss(&net, &[s.input(&x).unwrap(), s.labels(&y).unwrap()], dropout).unwrap();
            let grads = l.backward().unwrap();
            losses.push(l.item().unwrap().to_bits());
            opt.step(&params, grads).unwrap();
            s.reset();
            if i == 10 {
                let lr = opt.lr() * 0.5;
                opt.set_lr(lr);
            }
        }
    }
    (params.fingerprint().unwrap(), losses)
}

#[test]
fn eager_is_compiled_with_dropout_and_a_changing_learning_rate() {
    let makes: [fn() -> Optimizer; 4] = [
        || Optimizer::sgd(0.1),
        || Optimizer::momentum(0.05, 0.9),
        || Optimizer::adam(0.01),
        || Optimizer::adamw(0.01),
    ];
    for make in makes {
        let plain = train(&device(), false, false, make);
        let dropped = train(&device(), false, true, make);
        assert_ne!(plain, dropped);
        for threads in [1, 3] {
            for simd in Simd::all_available() {
                let d = Device::cpu_with(threads, simd).unwrap();
                assert_eq!(plain, train(&d, true, false, make), "{threads} {simd}");
                assert_eq!(dropped, train(&d, true, true, make), "{threads} {simd}");
            }
        }
        if let Some((_turn, gpu)) = dittograd_check::gpu() {
            for (compiled, dropout) in [(false, false), (true, false), (false, true), (true, true)] {
                let want = if dropout { &dropped } else { &plain };
                assert_eq!(*want, train(&gpu, compiled, dropout, make), "cuda {compiled} {dropout}");
            }
        }
    }
}

#[test]
fn dropout_masks_change_every_step() {
    let d = device();
    let s = Session::eager_seeded(&d, 1);
    let x = Tensor::full(Shape::new(&[1000]).unwrap(), 1.0f32);
    let a = s.input(&x).unwrap().dropout(0.5).unwrap().value::<f32>().unwrap();
    s.reset();
    let b = s.input(&x).unwrap().dropout(0.5).unwrap().value::<f32>().unwrap();
    assert_ne!(a, b);
    assert!(a.data().iter().all(|&v| v == 0.0 || v == 2.0));
    let kept = a.data().iter().filter(|&&v| v > 0.0).count();
    assert!((400..600).contains(&kept));
    let all = s.input(&x).unwrap().dropout(0.0).unwrap().value::<f32>().unwrap();
    assert_eq!(all, x);
    for p in [1.5, -0.1, f64::NAN] {
        assert!(s.input(&x).unwrap().dropout(p).is_err());
    }
}

#[test]
fn memory_returns_to_the_parameters_after_every_eager_step() {
    on_each_device(eager_steps_return_their_memory);
}

fn eager_steps_return_their_memory(d: &Device) {
    {
        let mut params = Params::new(d, 7);
        let net = Mlp::new(&mut params, &[5, 33, 4]).unwrap();
        let bytes = params.numel() * 4;
        assert_eq!(d.memory().live, bytes);
        let s = Session::eager(d);
        let mut opt = Optimizer::adam(1e-3);
        let (x, y) = batch(1, 64, 5, 4);
        for _ in 0..5 {
            let loss =
                net.forward(s.input(&x).unwrap()).unwrap().cross_entropy(s.labels(&y).unwrap()).unwrap();
            opt.step(&params, loss.backward().unwrap()).unwrap();
            s.reset();
            // Parameters, two moments each, ten scalars a parameter.
            assert_eq!(d.memory().live, 3 * bytes + params.len() * 40);
        }
        drop(opt);
        assert_eq!(d.memory().live, bytes);
    }
    let m = d.memory();
    assert_eq!((m.live, m.allocs), (0, m.frees));
}

#[test]
fn the_compiled_loop_allocates_nothing_after_its_first_step() {
    on_each_device(compiled_steps_allocate_nothing);
}

fn compiled_steps_allocate_nothing(d: &Device) {
    {
        let mut params = Params::new(d, 7);
        let net = Mlp::new(&mut params, &[5, 33, 4]).unwrap();
        let mut step =
            TrainStep::new(&params, Optimizer::adamw(1e-3), |v| net.forward(v[0])?.cross_entropy(v[1]));
        let (x, y) = batch(1, 64, 5, 4);
        step.run(&[(&x).into(), (&y).into()]).unwrap();
        let counts = |d: &Device| (d.memory().allocs, d.memory().frees, d.memory().live, d.memory().cached);
        let before = counts(d);
        for _ in 0..20 {
            step.run(&[(&x).into(), (&y).into()]).unwrap();
            step.loss().unwrap();
        }
        assert_eq!(counts(d), before);
        let plan = step.plan().unwrap();
        assert!(plan.arena_bytes > 0 && plan.instructions < plan.traced, "{plan:?}");
    }
    let m = d.memory();
    assert_eq!((m.live, m.allocs), (0, m.frees));
}

#[test]
fn compiled_steps_refuse_bad_input_and_change_nothing() {
    let d = device();
    let mut params = Params::new(&d, 7);
    let net = Mlp::new(&mut params, &[5, 8, 4]).unwrap();
    let mut step = TrainStep::new(&params, Optimizer::sgd(0.1), |v| net.forward(v[0])?.cross_entropy(v[1]));
    assert!(step.again().is_err() && step.loss().is_err());
    let (x, y) = batch(1, 6, 5, 4);
    step.run(&[(&x).into(), (&y).into()]).unwrap();
    let before = params.fingerprint().unwrap();
    let bad = Tensor::new(&[6], vec![0, 1, 2, 3, 4, 0]).unwrap();
    let e = step.run(&[(&x).into(), (&bad).into()]).unwrap_err();
    assert_eq!(*e.kind(), ErrorKind::Index { at: 4, index: 4, bound: 4 });
    let wide = Tensor::full(Shape::new(&[6, 9]).unwrap(), 0.0f32);
    assert!(matches!(step.run(&[(&wide).into(), (&y).into()]).unwrap_err().kind(), ErrorKind::Shapes { .. }));
    assert!(step.run(&[(&y).into(), (&x).into()]).is_err());
    assert_eq!(params.fingerprint().unwrap(), before);
    // Another batch size is another program.
    let (x, y) = batch(2, 3, 5, 4);
    step.run(&[(&x).into(), (&y).into()]).unwrap();
    let not_scalar = TrainStep::new(&params, Optimizer::sgd(0.1), |v| net.forward(v[0])).run(&[(&x).into()]);
    assert!(not_scalar.is_err());
}

#[test]
fn running_out_of_memory_anywhere_in_a_step_loses_nothing() {
    let d = device();
    let mut params = Params::new(&d, 7);
    let net = Mlp::new(&mut params, &[5, 8, 4]).unwrap();
    let (x, y) = batch(1, 6, 5, 4);
    let s = Session::eager(&d);
    let mut opt = Optimizer::adam(0.1);
    let start = params.fingerprint().unwrap();
    let live = d.memory().live;
    let mut failures = 0;
    for n in 1.. {
        d.fail_allocation(Some(n), false);
        let mut step = || -> Result<()> {
            let loss = net.forward(s.input(&x)?)?.cross_entropy(s.labels(&y)?)?;
            opt.step(&params, loss.backward()?)
        };
        let result = step();
        d.fail_allocation(None, false);
        s.reset();
        match result {
            Ok(()) => break,
            Err(e) => assert!(matches!(e.kind(), ErrorKind::OutOfMemory { .. }), "{e}"),
        }
        failures += 1;
        assert_eq!(params.fingerprint().unwrap(), start);
    }
    assert!(failures > 20, "{failures}");
    // The interrupted attempts left no trace: a fresh run gives the same bits.
    let after = params.fingerprint().unwrap();
    drop((s, opt));
    assert_eq!(d.memory().live, live);
    let d2 = device();
    let mut params2 = Params::new(&d2, 7);
    let net2 = Mlp::new(&mut params2, &[5, 8, 4]).unwrap();
    let s2 = Session::eager(&d2);
    let loss = net2.forward(s2.input(&x).unwrap()).unwrap().cross_entropy(s2.labels(&y).unwrap()).unwrap();
    Optimizer::adam(0.1).step(&params2, loss.backward().unwrap()).unwrap();
    assert_eq!(params2.fingerprint().unwrap(), after);
}

#[test]
fn a_session_whose_tape_is_lent_says_so() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.variable(&t(&[2], &[1.0, 2.0])).unwrap();
    s.with_tape(|tape| {
        assert_eq!(tape.size(), 1);
        for e in [s.input(&t(&[1], &[0.0])).err(), x.exp().err(), x.value::<f32>().err(), x.backward().err()]
        {
            assert!(e.unwrap().to_string().contains("lent"));
        }
        assert!(s.with_tape(|_| Ok(())).is_err());
        Ok(())
    })
    .unwrap();
    assert_eq!(x.value::<f32>().unwrap().data(), [1.0, 2.0]);
    s.with_tape(|_| {
        s.reset();
        Ok(())
    })
    .unwrap();
    assert_eq!(s.size(), 0);
    assert!(matches!(x.exp().unwrap_err().kind(), ErrorKind::Stale { .. }));
}

#[test]
fn running_out_of_memory_while_compiling_loses_nothing() {
    let run = |fail: bool| {
        let d = device();
        let fingerprint = {
            let mut params = Params::new(&d, 7);
            let net = Mlp::new(&mut params, &[5, 8, 4]).unwrap();
            let (x, y) = batch(1, 6, 5, 4);
            let mut step =
                TrainStep::new(&params, Optimizer::adam(0.1), |v| net.forward(v[0])?.cross_entropy(v[1]));
            let start = params.fingerprint().unwrap();
            let mut failures = 0;
            for n in 1.. {
                d.fail_allocation(Some(n).filter(|_| fail), false);
                match step.run(&[(&x).into(), (&y).into()]) {
                    Ok(()) => break,
                    Err(e) => assert!(matches!(e.kind(), ErrorKind::OutOfMemory { .. }), "{e}"),
                }
                failures += 1;
                assert_eq!(params.fingerprint().unwrap(), start);
            }
            d.fail_allocation(None, false);
            // The moments of four parameters, the scalars, two inputs and the block of values.
            assert_eq!(failures > 0, fail);
            params.fingerprint().unwrap()
        };
        let m = d.memory();
        assert_eq!((m.live, m.allocs), (0, m.frees));
        fingerprint
    };
    assert_eq!(run(false), run(true));
}

/// A model's values in between cannot be named by anybody, so a session that needs no gradients frees them; in a scope
/// it frees the inputs too.
#[test]
fn an_inference_session_holds_what_can_be_named() {
    use dittograd::nn::{Gru, RecurrentConfig, Sequential};
    let d = device();
    let mut params = Params::new(&d, 0);
    let mlp = Mlp::new(&mut params, &[16, 64, 64, 8]).unwrap();
    let sequential = Sequential::new().then(mlp.clone()).then(dittograd::nn::Activation::Relu);
    let config = RecurrentConfig { inputs: 4, hidden: 8, ..RecurrentConfig::default() };
    let gru = Gru::new(&mut params, "gru", config).unwrap();
    let batch = fractions(&[4, 16], 7);
    let s = Session::inference(&d);
    let forward = |i: usize| {
        let x = s.input(&batch).unwrap();
        match i {
            0 => mlp.forward(x).unwrap(),
            1 => sequential.forward(x).unwrap(),
            _ => {
                let (out, state) = gru.forward(x.reshape(&[4, 4, 4]).unwrap(), None).unwrap();
                assert_eq!(state.value::<f32>().unwrap().shape().dims(), [1, 4, 8]);
                out
            }
        }
    };
    // Bytes of the input and of what is returned: memory comes in steps of 512 bytes at most.
    for (i, most) in
        [4 * 16 * 4 + 4 * 8 * 4, 4 * 16 * 4 + 4 * 8 * 4, 4 * 16 * 4 + 5 * 4 * 8 * 4].into_iter().enumerate()
    {
        let first = data(forward(i));
        let before = d.memory().live;
        for _ in 0..100 {
            assert_eq!(data(forward(i)), first);
        }
        let each = (d.memory().live - before) / 100;
        assert!(each <= most, "{i}: {each} bytes stay for a forward, of which {most} can be named");
        let before = d.memory().live;
        let mut last = None;
        for _ in 0..100 {
            let y = s.scope(|| Ok(forward(i))).unwrap();
            assert_eq!(data(y), first);
            last = Some(y);
        }
        let each = (d.memory().live - before) / 100;
        assert!(each <= 4 * 4 * 8 * 4, "{i}: {each} bytes stay for a forward in a scope");
        assert_eq!(data(last.unwrap()), first);
    }
    // One that needs gradients keeps them.
    let s = Session::eager(&d);
    let y = s.scope(|| mlp.forward(s.input(&batch).unwrap())).unwrap();
    y.sum().unwrap().backward().unwrap();
}

/// Accuracy inside a compiled step, and the casts, with the bits of the eager ones.
#[test]
fn indices_and_numbers_in_a_step() {
    let d = device();
    let mut params = Params::new(&d, 3);
    let net = Mlp::new(&mut params, &[2, 8, 3]).unwrap();
    let (x, labels) = (fractions(&[6, 2], 7), Tensor::new(&[6], vec![0u32, 1, 2, 0, 1, 2]).unwrap());
    let accuracy = |net: &Mlp, v: &[Var<'_>]| -> Result<f32> {
        net.forward(v[0])?.argmax(&[1], false)?.eq(v[1])?.mean()?.item()
    };
    let s = Session::eager(&d);
    let want = accuracy(&net, &[s.input(&x).unwrap(), s.labels(&labels).unwrap()]).unwrap();
    drop(s);
    let (a, b) = (net.clone(), net);
    let mut step =
        TrainStep::new(&params, Optimizer::sgd(0.0), move |v| a.forward(v[0])?.cross_entropy(v[1])).metrics(
            move |v| {
                let best = b.forward(v[0])?.argmax(&[1], false)?;
                let wrong = best.ne(v[1])?;
                let again = best.to_float()?.to_index_below(3)?;
                Ok(vec![best.eq(v[1])?.mean()?, wrong.sum()?, again.eq(best)?.mean()?, v[1].to_float()?])
            },
        );
    step.run(&[(&x).into(), (&labels).into()]).unwrap();
    assert_eq!(step.metric(0).unwrap().item().unwrap(), want);
    assert_eq!(step.metric(1).unwrap().item().unwrap(), ((1.0 - want) * 6.0).round());
    assert_eq!(step.metric(2).unwrap().item().unwrap(), 1.0);
    assert_eq!(step.metric(3).unwrap().data(), [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]);
    // Large indices are compared exactly, though their numbers round to one.
    let s = Session::eager(&d);
    let [p, q] = [1u32 << 24, (1 << 24) + 1].map(|i| s.labels(&Tensor::new(&[1], vec![i]).unwrap()).unwrap());
    assert_eq!((data(p.eq(q).unwrap()), data(p.eq(p).unwrap())), (vec![0.0], vec![1.0]));
    assert_eq!(data(p.to_float().unwrap()), data(q.to_float().unwrap()));
    let odd = s.input(&t(&[6], &[-3.0, 0.9, 2.5, 7.0, f32::NAN, f32::INFINITY])).unwrap();
    assert_eq!(odd.to_index_below(5).unwrap().indices().unwrap().data(), [0, 0, 2, 4, 0, 4]);
}

/// A batch in parts: the loss and the gradients of the whole, with the bits of the parts added in order.
#[test]
fn a_batch_in_parts() {
    let d = device();
    let (x, y) = (fractions(&[8, 3], 7), fractions(&[8, 2], 11));
    let model = || {
        let mut params = Params::new(&d, 3);
        let net = Mlp::new(&mut params, &[3, 16, 2]).unwrap();
        (params, net)
    };
    let run = |parts: usize| {
        let (params, net) = model();
        let mut step =
            TrainStep::new(&params, Optimizer::sgd(0.1), move |v| net.forward(v[0])?.mse(v[1])).shards(parts);
        step.run(&[(&x).into(), (&y).into()]).unwrap();
        (step.loss().unwrap(), params.fingerprint().unwrap())
    };
    let by_hand = |parts: usize| {
        let (params, net) = model();
        let s = Session::eager(&d);
        let rows = 8 / parts;
        let mut sum: Option<dittograd::session::Grads> = None;
        for i in 0..parts {
            let [x, y] = [&x, &y].map(|t| s.input(t).unwrap().narrow(0, i * rows, rows).unwrap());
            let loss = net.forward(x).unwrap().mse(y).unwrap().scale(1.0 / parts as f64).unwrap();
            let grads = loss.backward().unwrap();
            match &mut sum {
                None => sum = Some(grads),
                Some(sum) => sum.add(&grads).unwrap(),
            }
            s.reset();
        }
        Optimizer::sgd(0.1).step(&params, sum.unwrap()).unwrap();
        params.fingerprint().unwrap()
    };
    let whole = run(1);
    for parts in [2, 4, 8] {
        let (loss, print) = run(parts);
        assert!((loss - whole.0).abs() < 1e-6, "{parts}: {loss} {whole:?}");
        // Parts of a power of two scale without rounding, and two of them have one order.
        assert!(parts > 2 || print == by_hand(parts), "{parts}");
    }
    assert_eq!(run(1), whole);
}
