//! What an optimizer's rule refuses, number by number.

use dittograd::device::cpu::simd::Simd;
use dittograd::prelude::*;

/// What the first step with a rule says.
fn first_step(rule: Rule) -> Result<()> {
    let device = Device::cpu_with(1, Simd::best()).unwrap();
    let mut params = Params::new(&device, 1);
    let w = params.value("w", &Tensor::new(&[2, 1], vec![1.0f32, 2.0]).unwrap()).unwrap();
    let session = Session::eager(&device);
    let loss = session.param(&w).unwrap().square().unwrap().sum().unwrap();
    Optimizer::new(rule, 0.1).step(&params, loss.backward().unwrap())
}

#[test]
fn every_number_of_a_rule_is_checked() {
    // A number that must be below 1 is refused where it is 1; all are where they are negative, infinite or no number.
    type Make = fn(f64) -> Rule;
    let shares: [(&str, Make); 9] = [
        ("mu", |x| rules::Momentum { mu: x, dampening: 0.0, nesterov: false }.into()),
        ("beta1", |x| rules::Adam { beta1: x, beta2: 0.9, eps: 1e-8 }.into()),
        ("beta2", |x| rules::Adam { beta1: 0.9, beta2: x, eps: 1e-8 }.into()),
        ("alpha", |x| rules::RmsProp { alpha: x, eps: 1e-8, momentum: 0.5, centered: false }.into()),
        ("momentum", |x| rules::RmsProp { alpha: 0.9, eps: 1e-8, momentum: x, centered: true }.into()),
        ("rho", |x| rules::Adadelta { rho: x, eps: 1e-8 }.into()),
        ("beta1", |x| rules::Lion { beta1: x, beta2: 0.9 }.into()),
        ("beta2", |x| rules::Lion { beta1: 0.9, beta2: x }.into()),
        ("momentum", |x| rules::Muon { momentum: x, nesterov: true, eps: 1e-8 }.into()),
    ];
    let numbers: [(&str, Make); 8] = [
        ("dampening", |x| rules::Momentum { mu: 0.9, dampening: x, nesterov: false }.into()),
        ("eps", |x| rules::Adam { beta1: 0.9, beta2: 0.9, eps: x }.into()),
        ("lr_decay", |x| rules::AdaGrad { lr_decay: x, initial: 0.0, eps: 1e-8 }.into()),
        ("initial", |x| rules::AdaGrad { lr_decay: 0.0, initial: x, eps: 1e-8 }.into()),
        ("eps", |x| rules::AdaGrad { lr_decay: 0.0, initial: 0.0, eps: x }.into()),
        ("eps", |x| rules::RmsProp { alpha: 0.9, eps: x, momentum: 0.5, centered: false }.into()),
        ("eps", |x| rules::Adadelta { rho: 0.9, eps: x }.into()),
        ("eps", |x| rules::Muon { momentum: 0.9, nesterov: true, eps: x }.into()),
    ];
    let refused = |name: &str, make: Make, x: f64| {
        let e = first_step(make(x)).expect_err(name).to_string();
        assert!(e.contains(name), "{name} {x}: {e}");
    };
    for (name, make) in shares.into_iter().chain(numbers) {
        [-0.1, f64::NAN, f64::INFINITY].into_iter().for_each(|x| refused(name, make, x));
        assert!(first_step(make(0.5)).is_ok() && first_step(make(0.0)).is_ok(), "{name}");
    }
    shares.into_iter().for_each(|(name, make)| refused(name, make, 1.0));
    for (name, make) in numbers {
        assert!(first_step(make(1.5)).is_ok(), "{name}");
        // Finite, but not as float32.
        refused(name, make, 1e300);
    }
}

#[test]
fn a_cycle_turns_where_it_is_said_to() {
    // Rises for 30 % of 20 steps, the largest rate being that of step 5.
    let cycle = Schedule::one_cycle(20);
    let rates: Vec<f64> = (0..25).map(|step| cycle.lr(1.0, step)).collect();
    assert!((rates[0] - 1.0 / 25.0).abs() < 1e-15 && rates[5] == 1.0);
    assert!(rates[..6].is_sorted_by(|a, b| a < b) && rates[5..20].is_sorted_by(|a, b| a > b));
    assert!(rates[19..].iter().all(|r| *r == 1.0 / 25.0 / 1e4));
    // Without a rise it begins at the top.
    assert!(Schedule::one_cycle_with(20, 0.05, 25.0, 1e4).lr(1.0, 0) > 0.9);
    assert_eq!(Schedule::default(), Schedule::constant());
    // Where a curve has no steps, or is at its turn.
    assert_eq!(Schedule::constant().warmup(0, 0.5).lr(1.0, 0), 1.0);
    assert_eq!(Schedule::cosine(0, 0.1).lr(1.0, 0), 0.1);
    assert_eq!(Schedule::one_cycle_with(10, 1.0, 25.0, 1e4).lr(1.0, 9), 1.0);
    assert_eq!(Schedule::one_cycle_with(1, 1.0, 25.0, 1e4).lr(1.0, 0), 1.0 / 25.0 / 1e4);
}

/// Muon's step of a tall matrix is longer than that of the same matrix turned, by the root of the ratio of its sides.
#[test]
fn muon_takes_longer_steps_with_tall_matrices() {
    let device = Device::cpu_with(1, Simd::best()).unwrap();
    let moved = |dims: &[usize]| {
        let mut params = Params::new(&device, 1);
        let w = params.value("w", &Tensor::new(dims, vec![1.0f32, -2.0, 3.0, 0.5]).unwrap()).unwrap();
        let session = Session::eager(&device);
        let loss = session.param(&w).unwrap().square().unwrap().sum().unwrap();
        let rule = rules::Muon { momentum: 0.0, nesterov: false, eps: 1e-7 };
        Optimizer::new(rule, 0.01).step(&params, loss.backward().unwrap()).unwrap();
        let now = w.get::<f32>().unwrap();
        now.data().iter().zip([1.0f32, -2.0, 3.0, 0.5]).map(|(a, b)| f64::from(a - b)).collect::<Vec<_>>()
    };
    for (tall, wide) in moved(&[4, 1]).into_iter().zip(moved(&[1, 4])) {
        assert!(wide.abs() > 1e-4 && (tall / wide - 2.0).abs() < 1e-3, "{tall} {wide}");
    }
}

/// The rate of a group that was changed on the way is part of what is saved.
#[test]
fn a_saved_state_has_the_rates_of_its_groups() {
    let device = Device::cpu_with(1, Simd::best()).unwrap();
    let mut params = Params::new(&device, 1);
    for name in ["w", "b"] {
        params.value(name, &Tensor::new(&[1], vec![1.0f32]).unwrap()).unwrap();
    }
    let make = || Optimizer::sgd(0.1).group(Group::names(&["b"]).lr(0.2));
    let mut changed = make();
    changed.set_group_lr(0, 0.05).unwrap();
    let state = changed.state::<f32>().unwrap();
    let mut loaded = make();
    assert_eq!(loaded.group_lr(0), Some(0.2));
    loaded.load_state(&params, &state).unwrap();
    assert_eq!(loaded.group_lr(0), Some(0.05));
}

/// What the first step with a schedule says.
fn first_scheduled(schedule: Schedule) -> Result<()> {
    let device = Device::cpu_with(1, Simd::best()).unwrap();
    let mut params = Params::new(&device, 1);
    let w = params.value("w", &Tensor::new(&[2], vec![1.0f32, 2.0]).unwrap()).unwrap();
    let session = Session::eager(&device);
    let loss = session.param(&w).unwrap().square().unwrap().sum().unwrap();
    Optimizer::sgd(0.1).schedule(schedule).step(&params, loss.backward().unwrap())
}

#[test]
fn every_number_of_a_schedule_is_checked() {
    type Make = fn(f64) -> Schedule;
    const NONE: [f64; 2] = [f64::NAN, f64::INFINITY];
    let cases: [(&str, Make, &[f64], &[f64]); 9] = [
        ("start", |x| Schedule::constant().warmup(5, x), &NONE, &[0.0, 0.5, 1.0]),
        ("size", |x| Schedule::step(x as u64, 0.5), &[0.0], &[1.0, 2.0]),
        ("gamma", |x| Schedule::step(3, x), &NONE, &[0.0, 0.5, 1.5]),
        ("gamma", Schedule::exponential, &NONE, &[0.0, 0.5, 1.5]),
        ("steps", |x| Schedule::cosine(x as u64, 0.1), &[0.0], &[1.0, 2.0]),
        ("min", |x| Schedule::cosine(5, x), &NONE, &[0.0, 0.5]),
        ("steps", |x| Schedule::one_cycle(x as u64), &[0.0], &[1.0, 2.0]),
        (
            "div_factor",
            |x| Schedule::one_cycle_with(5, 0.3, x, 10.0),
            &[0.0, -1.0, f64::NAN, f64::INFINITY],
            &[0.5, 2.0],
        ),
        (
            "final_div_factor",
            |x| Schedule::one_cycle_with(5, 0.3, 10.0, x),
            &[0.0, -1.0, f64::NAN, f64::INFINITY],
            &[0.5, 2.0],
        ),
    ];
    for (name, make, refused, taken) in cases {
        for &x in refused {
            let e = first_scheduled(make(x)).expect_err(name).to_string();
            assert!(e.contains(name), "{name} {x}: {e}");
        }
        taken.iter().for_each(|&x| first_scheduled(make(x)).unwrap_or_else(|e| panic!("{name} {x}: {e}")));
    }
    for (part, is_taken) in [(-0.1, false), (1.1, false), (f64::NAN, false), (0.0, true), (1.0, true)] {
        let said = first_scheduled(Schedule::one_cycle_with(5, part, 10.0, 10.0));
        assert_eq!(said.is_ok(), is_taken, "{part}: {said:?}");
    }
}

/// The norm is taken with a millionth more, so that gradients of nothing are not divided by it.
#[test]
fn clipping_adds_a_millionth_to_the_norm() {
    let device = Device::cpu_with(1, Simd::best()).unwrap();
    let mut params = Params::new(&device, 1);
    let w = params.value("w", &Tensor::new(&[1], vec![0.0f32]).unwrap()).unwrap();
    let session = Session::eager(&device);
    // A gradient of 2e-6, for which a norm of 1e-6 is allowed: a third of it is left.
    let loss = session.param(&w).unwrap().scale(2e-6).unwrap().sum().unwrap();
    Optimizer::sgd(1.0).clip_norm(1e-6).step(&params, loss.backward().unwrap()).unwrap();
    let moved = f64::from(w.get::<f32>().unwrap().data()[0]);
    assert!((moved * -1.5e6 - 1.0).abs() < 1e-5, "{moved}");
}

/// An optimizer goes with its parameters to another device and leaves nothing on the first.
#[test]
fn states_go_where_the_parameters_are() {
    let devices = [1, 2].map(|threads| Device::cpu_with(threads, Simd::best()).unwrap());
    let train = |on: [usize; 6]| {
        let mut params = Params::new(&devices[on[0]], 1);
        let w = params.value("w", &Tensor::new(&[3], vec![1.0f32, -2.0, 0.5]).unwrap()).unwrap();
        let mut optimizer = Optimizer::adam(0.1).clip_norm(1.0);
        for (at, &now) in on.iter().enumerate() {
            let device = &devices[now];
            params.to(device).unwrap();
            let before = devices.iter().map(|d| d.memory().live).collect::<Vec<_>>();
            let session = Session::eager(device);
            let loss = session.param(&w).unwrap().square().unwrap().sum().unwrap();
            optimizer.step(&params, loss.backward().unwrap()).unwrap();
            drop(session);
            let after = devices.iter().map(|d| d.memory().live).collect::<Vec<_>>();
            assert_eq!(after[1 - now], 0, "step {at} on device {now}: {before:?}, then {after:?}");
        }
        params.fingerprint().unwrap()
    };
    assert_eq!(train([0; 6]), train([0, 0, 1, 1, 0, 1]));
}
