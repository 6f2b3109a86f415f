//! Optimizers: against PyTorch, eager against compiled, groups, clipping, schedules, state, and the parameters they change.

use crate::support::{device, t};
use dittograd::device::cpu::simd::Simd;
use dittograd::device::cuda::fake::Fake;
use dittograd::optim::OptimizerState;
use dittograd::prelude::*;
use dittograd::scalar::Ratio;
use dittograd_check::gpu;
use serde_json::Value;

const W: [f32; 12] = [0.5, -1.0, 0.75, 0.25, 1.5, 0.125, -0.5, 2.0, -0.25, 0.625, -1.75, 1.0];
const B: [f32; 3] = [0.5, -0.25, 1.0];

fn start(device: &Device) -> Params {
    let mut params = Params::new(device, 0);
    params.value("w", &t(&[3, 4], &W)).unwrap();
    params.value("b", &t(&[3], &B)).unwrap();
    params
}

/// What the gradient of parameter `k` has besides the parameter at step `step`; `tests/golden/optim.py` has the same.
fn pull(k: usize, p: &Param, step: usize) -> Tensor<f32> {
    Tensor::from_fn(p.shape(), |i| ((7 * i + 13 * step + 5 * k) % 11) as f32 / 4.0 - 1.25)
}

/// `Σ p c + Σ p^2 / 2` over all parameters, whose gradient is `c + p`.
fn loss<'s>(params: &[Param], pulls: &[Var<'s>]) -> Result<Var<'s>> {
    let mut sum: Option<Var<'s>> = None;
    for (p, c) in params.iter().zip(pulls) {
        let p = c.session().param(p)?;
        let one = p.mul(*c)?.sum()?.add(p.square()?.sum()?.scale(0.5)?)?;
        sum = Some(match sum {
            Some(s) => s.add(one)?,
            None => one,
        });
    }
    sum.ok_or_else(|| pulls[0].sum().unwrap_err())
}

fn eager_step(params: &Params, optimizer: &mut Optimizer, step: usize) -> Result<()> {
    let list: Vec<Param> = params.iter().cloned().collect();
    let s = Session::eager(params.device());
    let pulls: Vec<Var<'_>> =
        list.iter().enumerate().map(|(k, p)| s.input(&pull(k, p, step)).unwrap()).collect();
    let loss = loss(&list, &pulls)?;
    optimizer.step(params, loss.backward()?)
}

type Closure = Box<dyn for<'s> Fn(&[Var<'s>]) -> Result<Var<'s>>>;

fn compiled(params: &Params, optimizer: Optimizer) -> TrainStep<Closure> {
    let list: Vec<Param> = params.iter().cloned().collect();
    let f: Closure = Box::new(move |pulls| loss(&list, pulls));
    TrainStep::new(params, optimizer, f)
}

fn compiled_step(params: &Params, step: &mut TrainStep<Closure>, at: usize) -> Result<()> {
    let pulls: Vec<Tensor<f32>> = params.iter().enumerate().map(|(k, p)| pull(k, p, at)).collect();
    let inputs: Vec<Batch<'_>> = pulls.iter().map(Batch::from).collect();
    step.run(&inputs)
}

fn values(params: &Params) -> Vec<Vec<f64>> {
    params.iter().map(|p| p.get::<f64>().unwrap().into_data()).collect()
}

type Make = fn() -> Optimizer;

/// The optimizers of the golden file, by name.
fn makes() -> Vec<(&'static str, Make)> {
    vec![
        ("sgd", || Optimizer::sgd(0.1)),
        ("sgd decay", || Optimizer::sgd(0.1).weight_decay(0.1)),
        ("momentum", || Optimizer::momentum(0.1, 0.9)),
        ("dampening", || {
            let rule = rules::Momentum { mu: 0.9, dampening: 0.5, nesterov: false };
            Optimizer::new(rule, 0.1).weight_decay(0.1)
        }),
        ("nesterov", || Optimizer::nesterov(0.1, 0.9)),
        ("adam", || Optimizer::adam(0.05)),
        ("adam decay", || Optimizer::adam(0.05).weight_decay(0.1)),
        ("adamw", || Optimizer::adamw(0.05)),
        ("adagrad", || Optimizer::adagrad(0.1)),
        ("adagrad decay", || {
            let rule = rules::AdaGrad { lr_decay: 0.05, initial: 0.5, eps: 1e-6 };
            Optimizer::new(rule, 0.1).weight_decay(0.1)
        }),
        ("rmsprop", || Optimizer::rmsprop(0.01)),
        ("rmsprop momentum", || {
            let rule = rules::RmsProp { alpha: 0.9, eps: 1e-8, momentum: 0.9, centered: false };
            Optimizer::new(rule, 0.01).weight_decay(0.1)
        }),
        ("rmsprop centered", || {
            Optimizer::new(rules::RmsProp { alpha: 0.99, eps: 1e-8, momentum: 0.0, centered: true }, 0.01)
        }),
        ("rmsprop all", || {
            Optimizer::new(rules::RmsProp { alpha: 0.99, eps: 1e-8, momentum: 0.5, centered: true }, 0.01)
        }),
        ("adadelta", || Optimizer::adadelta(1.0)),
        ("adadelta decay", || Optimizer::new(rules::Adadelta { rho: 0.8, eps: 1e-4 }, 0.5).weight_decay(0.1)),
        ("lion", || Optimizer::lion(0.01)),
        ("lion decay", || Optimizer::new(rules::Lion { beta1: 0.8, beta2: 0.95 }, 0.01).weight_decay(0.1)),
        ("muon", || Optimizer::muon(0.02)),
        ("muon plain", || {
            Optimizer::new(rules::Muon { momentum: 0.95, nesterov: false, eps: 1e-7 }, 0.02).weight_decay(0.1)
        }),
        ("groups", || Optimizer::adamw(0.05).group(Group::names(&["b"]).lr(0.2).weight_decay(0.0))),
        ("clip norm", || Optimizer::momentum(0.1, 0.9).clip_norm(1.5)),
        ("clip value", || Optimizer::adam(0.05).clip_value(0.75)),
    ]
}

/// Those, and what PyTorch has not in one piece.
fn more_makes() -> Vec<(&'static str, Make)> {
    let mut all = makes();
    all.push(("everything", || {
        Optimizer::muon(0.02)
            .group(
                Group::prefix("b").rule(rules::Lion { beta1: 0.9, beta2: 0.99 }).lr(0.01).weight_decay(0.0),
            )
            .schedule(Schedule::cosine(15, 1e-3).warmup(3, 0.1))
            .clip_norm(1.0)
            .clip_value(0.3)
    }));
    all.push(("decoupled", || Optimizer::rmsprop(0.01).weight_decay(0.1).decoupled(true)));
    all.push(("decoupled momentum", || Optimizer::nesterov(0.1, 0.9).weight_decay(0.1).decoupled(true)));
    all
}

fn golden() -> Vec<Value> {
    include_str!("../golden/optim.jsonl").lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

fn numbers(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn follows_pytorch(device: &Device, tolerance: impl Fn(&str) -> f64) {
    let golden = golden();
    for (name, make) in makes() {
        let case = golden.iter().find(|c| c["name"] == name).unwrap_or_else(|| panic!("no case {name}"));
        let params = start(device);
        let mut optimizer = make();
        for step in 0..20 {
            eager_step(&params, &mut optimizer, step).unwrap_or_else(|e| panic!("{name}: {e}"));
            let Some(want) = case["after"].get((step + 1).to_string()) else { continue };
            for (got, want) in values(&params).iter().zip(want.as_array().unwrap()) {
                for (g, w) in got.iter().zip(numbers(want)) {
                    let far = (g - w).abs();
                    assert!(far <= tolerance(name), "{name} on {device}, step {step}: {g}, PyTorch has {w}");
                }
            }
        }
    }
}

#[test]
fn every_rule_follows_pytorch_for_twenty_steps() {
    assert_eq!(golden().iter().filter(|c| c.get("after").is_some()).count(), makes().len());
    // Coefficients of ops are float32 numbers on every device.
    let rounded = |name: &str| if name.contains("muon") || name == "clip norm" { 1e-6 } else { 1e-12 };
    follows_pytorch(&Device::host::<f64>(), rounded);
    let float = |name: &str| if name.contains("muon") { 1e-4 } else { 1e-5 };
    follows_pytorch(&device(), float);
    if let Some((_turn, gpu)) = gpu() {
        follows_pytorch(&gpu, float);
    }
}

#[test]
fn exact_numbers_are_trained_exactly() {
    let d = Device::host::<Ratio>();
    let params = start(&d);
    let mut optimizer = Optimizer::new(rules::Momentum { mu: 0.5, dampening: 0.0, nesterov: false }, 0.25);
    for step in 0..2 {
        eager_step(&params, &mut optimizer, step).unwrap();
    }
    // p1 = p - g/4 with g = c + p; p2 = p1 - (g/2 + g1)/4 with g1 = c1 + p1.
    let p = params.get("w").unwrap();
    let (c0, c1) = (pull(0, p, 0), pull(0, p, 1));
    for (i, got) in p.get::<f64>().unwrap().data().iter().enumerate() {
        let (w, c0, c1) = (f64::from(W[i]), f64::from(c0.data()[i]), f64::from(c1.data()[i]));
        let g = c0 + w;
        let w1 = w - g / 4.0;
        assert_eq!(*got, w1 - (g / 2.0 + c1 + w1) / 4.0);
    }
}

fn run(device: &Device, make: Make, compile: bool) -> (String, u64) {
    let params = start(device);
    let mut optimizer = make();
    if compile {
        let mut step = compiled(&params, optimizer);
        for at in 0..20 {
            compiled_step(&params, &mut step, at).unwrap();
        }
        return (params.fingerprint().unwrap(), step.optimizer().steps());
    }
    for at in 0..20 {
        eager_step(&params, &mut optimizer, at).unwrap();
    }
    (params.fingerprint().unwrap(), optimizer.steps())
}

#[test]
fn every_rule_has_the_same_bits_eager_and_compiled_on_any_device() {
    let mut devices: Vec<Device> =
        Simd::all_available().into_iter().map(|simd| Device::cpu_with(1, simd).unwrap()).collect();
    devices.push(Device::cpu_with(3, Simd::best()).unwrap());
    let gpu = gpu();
    devices.extend(gpu.as_ref().map(|g| g.1.clone()));
    for (name, make) in more_makes() {
        let want = run(&devices[0], make, false);
        for d in &devices {
            assert_eq!(run(d, make, false), want, "{name} on {d}, eager");
            assert_eq!(run(d, make, true), want, "{name} on {d}, compiled");
        }
    }
}

/// More parameters than a launch takes, of lengths around the vector width and the tasks of the thread pool, and one whose
/// norm has three levels of sums.
#[test]
fn many_parameters_of_odd_sizes_have_the_same_bits_everywhere() {
    let many = |d: &Device| {
        let mut params = Params::new(d, 3);
        for i in 0..260 {
            let n =
                [i % 9, 16 * 1024 + 3, 1024 * 1024 + 1025][usize::from(i == 39) + 2 * usize::from(i == 255)];
            params.uniform(&format!("p{i:03}"), &[n], -1.0, 1.0).unwrap();
        }
        params.uniform("q0", &[9, 5], -1.0, 1.0).unwrap();
        params.uniform("q1", &[5, 9], -1.0, 1.0).unwrap();
        params
    };
    let make = || Optimizer::muon(0.02).clip_norm(2.0);
    let train = |d: &Device, compile: bool| {
        let params = many(d);
        let mut optimizer = make();
        if compile {
            let mut step = compiled(&params, optimizer);
            (0..3).for_each(|at| compiled_step(&params, &mut step, at).unwrap());
        } else {
            (0..3).for_each(|at| eager_step(&params, &mut optimizer, at).unwrap());
        }
        params.fingerprint().unwrap()
    };
    let d = device();
    let want = train(&d, false);
    assert_eq!(train(&d, true), want);
    assert_eq!(train(&Device::cpu_with(1, Simd::Scalar).unwrap(), false), want);
    if let Some((_turn, gpu)) = gpu() {
        assert_eq!(train(&gpu, false), want);
        assert_eq!(train(&gpu, true), want);
    }
}

#[test]
fn groups_must_name_each_parameter_once() {
    let d = device();
    let cases: [(Optimizer, &str); 4] = [
        (Optimizer::sgd(0.1).group(Group::names(&["b", "c"])), "no parameter `c`"),
        (Optimizer::sgd(0.1).group(Group::prefix("net.")), "no parameter `net.`"),
        (
            Optimizer::sgd(0.1).group(Group::prefix("b")).group(Group::matching(|p| p.shape().rank() == 1)),
            "parameter b is in groups 0 and 1",
        ),
        (Optimizer::sgd(0.1).group(Group::prefix("b").lr(-1.0)), "lr"),
    ];
    for (mut optimizer, want) in cases {
        let params = start(&d);
        let before = params.fingerprint().unwrap();
        let e = eager_step(&params, &mut optimizer, 0).unwrap_err();
        assert!(e.to_string().contains(want), "{e}");
        assert_eq!((params.fingerprint().unwrap(), optimizer.steps()), (before, 0));
    }
    // A predicate may hold for nothing.
    let mut optimizer = Optimizer::sgd(0.1).group(Group::matching(|_| false));
    eager_step(&start(&d), &mut optimizer, 0).unwrap();
    let mut optimizer = Optimizer::sgd(0.1).group(Group::names(&["b"]).lr(0.5));
    optimizer.set_lr(0.2);
    assert_eq!((optimizer.lr(), optimizer.group_lr(0)), (0.2, Some(0.5)));
    optimizer.set_group_lr(0, 0.25).unwrap();
    assert_eq!((optimizer.group_lr(0), optimizer.group_lr(1)), (Some(0.25), None));
    assert!(optimizer.set_group_lr(1, 0.25).is_err());
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let wrong: Vec<(Optimizer, &str)> = vec![
        (Optimizer::sgd(f64::INFINITY), "lr"),
        (Optimizer::sgd(0.1).weight_decay(-0.1), "weight_decay"),
        (Optimizer::sgd(0.1).clip_norm(0.0), "clip_norm"),
        (Optimizer::sgd(0.1).clip_value(f64::NAN), "clip_value"),
        (Optimizer::nesterov(0.1, 0.0), "Nesterov"),
        (Optimizer::new(rules::Momentum { mu: 0.9, dampening: 0.1, nesterov: true }, 0.1), "Nesterov"),
        (Optimizer::new(rules::Lion { beta1: 1.0, beta2: 0.9 }, 0.1), "beta1"),
        (Optimizer::muon(0.1).decoupled(false), "coupled"),
        (Optimizer::sgd(0.1).schedule(Schedule::step(0, 0.5)), "size"),
        (Optimizer::sgd(0.1).schedule(Schedule::cosine(0, 0.0)), "steps"),
        (Optimizer::sgd(0.1).schedule(Schedule::one_cycle_with(10, 1.5, 1.0, 1.0)), "pct_start"),
    ];
    for (mut optimizer, want) in wrong {
        let params = start(&device());
        let before = params.fingerprint().unwrap();
        let e = eager_step(&params, &mut optimizer, 0).unwrap_err();
        assert!(e.to_string().contains(want), "{e}");
        assert_eq!(params.fingerprint().unwrap(), before);
    }
}

#[test]
fn clipping_by_norm_scales_all_gradients_alike() {
    let d = device();
    let params = start(&d);
    let norm = |step: usize| {
        let list = params.iter().enumerate();
        let squares = list.flat_map(|(k, p)| {
            let c = pull(k, p, step).into_data();
            let p = p.get::<f32>().unwrap().into_data();
            c.into_iter().zip(p).map(|(c, p)| f64::from(c + p).powi(2)).collect::<Vec<_>>()
        });
        squares.sum::<f64>().sqrt()
    };
    let before = values(&params);
    let want = norm(0);
    assert!(want > 2.0);
    eager_step(&params, &mut Optimizer::sgd(1.0).clip_norm(0.5), 0).unwrap();
    let moved: f64 =
        before.iter().flatten().zip(values(&params).iter().flatten()).map(|(a, b)| (a - b).powi(2)).sum();
    assert!((moved.sqrt() - 0.5).abs() < 1e-5, "{moved}");
    // A limit that is not reached changes no bit.
    let (a, b) = (start(&d), start(&d));
    eager_step(&a, &mut Optimizer::adam(0.1).clip_norm(1e3).clip_value(1e3), 0).unwrap();
    eager_step(&b, &mut Optimizer::adam(0.1), 0).unwrap();
    assert_eq!(a.fingerprint().unwrap(), b.fingerprint().unwrap());
    // A NaN in one gradient is not hidden: it reaches all parameters.
    let c = start(&d);
    c.get("b").unwrap().set(&t(&[3], &[0.0, f32::NAN, 0.0])).unwrap();
    eager_step(&c, &mut Optimizer::sgd(0.1).clip_norm(1.0).clip_value(1.0), 0).unwrap();
    assert!(values(&c).iter().flatten().all(|x| x.is_nan()));
}

/// The norm of all gradients has the bits of the norm of their norms, for any sizes.
#[test]
fn the_norm_of_all_is_the_norm_of_the_norms() {
    let check = |d: &Device| {
        let s = Session::eager_seeded(d, 4);
        for sizes in [&[7][..], &[0], &[3, 0, 1025, 1024], &[40_000, 1, 1_050_000], &[5; 33], &[3; 1100]] {
            let draw = |&n: &usize| s.uniform_range(&[n], -1.0, 1.0);
            let values = sizes.iter().map(draw).collect::<Result<Vec<_>>>().unwrap();
            let norms = values.iter().map(|v| v.norm(2.0, &[0], true)).collect::<Result<Vec<_>>>().unwrap();
            let want = s.concat(&norms, 0).unwrap().norm(2.0, &[0], false).unwrap();
            let got = s.global_norm(&values).unwrap().item().unwrap();
            assert_eq!(got.to_bits(), want.item().unwrap().to_bits(), "{sizes:?} on {d}");
        }
    };
    Simd::all_available().into_iter().for_each(|simd| check(&Device::cpu_with(2, simd).unwrap()));
    if let Some((_turn, gpu)) = gpu() {
        check(&gpu);
    }
}

/// However many parameters there are up to what fits into the arguments of a kernel, their norm takes two launches and
/// the factor one.
#[test]
fn clipping_by_norm_takes_few_launches() {
    let launches = |count: usize, clip: bool, compile: bool| {
        let d = Device::from_cuda(Fake::new().open().unwrap());
        let mut params = Params::new(&d, 1);
        for i in 0..count {
            params.ones(&format!("p{i:03}"), &[i + 1]).unwrap();
        }
        let sgd = Optimizer::sgd(0.1);
        let mut optimizer = if clip { sgd.clip_norm(1.0) } else { sgd };
        let all: Vec<Param> = params.iter().cloned().collect();
        if compile {
            let mut step = TrainStep::new(&params, optimizer, move |v| sum_of(v[0].session(), &all));
            step.run(&[(&t(&[1], &[0.0])).into()]).unwrap();
            return step.plan().unwrap().launches as u64;
        }
        let s = Session::eager(&d);
        let grads = sum_of(&s, &all).unwrap().backward().unwrap();
        let before = d.as_cuda().unwrap().launches();
        optimizer.step(&params, grads).unwrap();
        d.as_cuda().unwrap().launches() - before
    };
    for (count, want) in [(1, 3), (2, 3), (33, 3), (200, 3), (250, 3), (251, 4)] {
        for compile in [false, true] {
            let got = launches(count, true, compile) - launches(count, false, compile);
            assert_eq!(got, want, "{count} parameters, compiled: {compile}");
        }
    }
}

/// Every kernel of a program is looked up before it is captured, also where none was used before: sums of several levels have
/// kernels that a definition renames.
#[test]
fn a_program_can_be_the_first_thing_a_gpu_runs() {
    let check = |d: &Device| {
        let mut params = Params::new(d, 1);
        let all = [params.ones("a", &[5000]).unwrap(), params.ones("b", &[70, 70]).unwrap()];
        let mut step = TrainStep::new(&params, Optimizer::adam(0.1).clip_norm(1.0), move |v| {
            let s = v[0].session();
            sum_of(s, &all)?.add(s.param(&all[1])?.sum_axes(&[0])?.square()?.sum()?)
        });
        step.run(&[(&t(&[1], &[0.0])).into()]).unwrap();
    };
    check(&Device::from_cuda(Fake::new().open().unwrap()));
    if let Some((_turn, _)) = gpu() {
        check(&Device::cuda(0).unwrap());
    }
}

fn sum_of<'s>(s: &'s Session, params: &[Param]) -> Result<Var<'s>> {
    let parts = params.iter().map(|p| s.param(p)?.sum()?.reshape(&[1])).collect::<Result<Vec<_>>>()?;
    s.concat(&parts, 0)?.sum()
}

#[test]
fn schedules_have_pytorchs_rates() {
    let schedules: [(&str, Schedule); 7] = [
        ("step", Schedule::step(7, 0.5)),
        ("exponential", Schedule::exponential(0.9)),
        ("cosine", Schedule::cosine(29, 0.01)),
        ("one cycle", Schedule::one_cycle(30)),
        ("one cycle late", Schedule::one_cycle_with(30, 0.5, 10.0, 100.0)),
        ("warm-up", Schedule::constant().warmup(8, 0.25)),
        ("warm-up cosine", Schedule::cosine(20, 0.0).warmup(10, 0.1)),
    ];
    let golden = golden();
    assert_eq!(golden.iter().filter(|c| c.get("lr").is_some()).count(), schedules.len());
    for (name, schedule) in schedules {
        let case = golden.iter().find(|c| c["name"] == name).unwrap();
        for (step, want) in numbers(&case["lr"]).into_iter().enumerate() {
            let got = schedule.lr(0.1, step as u64);
            assert!((got - want).abs() < 1e-14, "{name} at {step}: {got}, PyTorch has {want}");
        }
    }
    assert_eq!(Schedule::cosine(10, 0.5).lr(1.0, 25), 0.5);
    let cycle = Schedule::one_cycle(10);
    assert_eq!(cycle.lr(1.0, 9), cycle.lr(1.0, 1000));
    assert_eq!(Schedule::one_cycle(1).lr(1.0, 0), 1.0 / 25.0 / 1e4);
}

#[test]
fn a_schedule_takes_effect_eagerly_and_compiled() {
    let d = device();
    let make = || Optimizer::sgd(0.5).schedule(Schedule::exponential(0.5));
    let want = {
        // The same rates set by hand.
        let params = start(&d);
        let mut optimizer = Optimizer::sgd(0.5);
        for at in 0..4 {
            optimizer.set_lr(0.5 * 0.5f64.powi(at as i32));
            eager_step(&params, &mut optimizer, at).unwrap();
        }
        params.fingerprint().unwrap()
    };
    let params = start(&d);
    let mut optimizer = make();
    for at in 0..4 {
        assert_eq!(optimizer.lr(), 0.5 * 0.5f64.powi(at as i32));
        eager_step(&params, &mut optimizer, at).unwrap();
    }
    assert_eq!(params.fingerprint().unwrap(), want);
    let params = start(&d);
    let mut step = compiled(&params, make());
    for at in 0..4 {
        compiled_step(&params, &mut step, at).unwrap();
    }
    assert_eq!((params.fingerprint().unwrap(), step.optimizer().lr()), (want, 0.5 / 16.0));
}

#[test]
fn training_continues_from_a_saved_state_bit_for_bit() {
    let d = device();
    for (name, make) in more_makes() {
        let want = run(&d, make, false).0;
        let params = start(&d);
        let mut optimizer = make();
        for at in 0..9 {
            eager_step(&params, &mut optimizer, at).unwrap();
        }
        let state: OptimizerState = optimizer.state().unwrap();
        assert_eq!(state.step, 9);
        let saved: Vec<Tensor<f32>> = params.iter().map(|p| p.get().unwrap()).collect();
        let resumed = || {
            let params = start(&d);
            params.iter().zip(&saved).for_each(|(p, v)| p.set(v).unwrap());
            params
        };
        let params = resumed();
        let mut optimizer = make();
        optimizer.load_state(&params, &state).unwrap();
        assert_eq!(optimizer.state::<f32>().unwrap(), state, "{name}");
        for at in 9..20 {
            eager_step(&params, &mut optimizer, at).unwrap();
        }
        assert_eq!(params.fingerprint().unwrap(), want, "{name}");
        let params = resumed();
        let mut step = compiled(&params, make());
        step.load_state(&state).unwrap();
        for at in 9..20 {
            compiled_step(&params, &mut step, at).unwrap();
        }
        assert_eq!(params.fingerprint().unwrap(), want, "{name}, compiled");
        // Going back in a running program.
        params.iter().zip(&saved).for_each(|(p, v)| p.set(v).unwrap());
        step.load_state(&state).unwrap();
        for at in 9..20 {
            compiled_step(&params, &mut step, at).unwrap();
        }
        assert_eq!(params.fingerprint().unwrap(), want, "{name}, compiled, again");
    }
}

#[test]
fn a_state_of_something_else_is_refused() {
    let d = device();
    let params = start(&d);
    let mut adam = Optimizer::adam(0.1);
    eager_step(&params, &mut adam, 0).unwrap();
    let state = adam.state::<f32>().unwrap();
    assert_eq!(state.params["w"].tensors.keys().collect::<Vec<_>>(), ["exp_avg", "exp_avg_sq"]);
    let refused = |optimizer: &mut Optimizer, state: &OptimizerState, want: &str| {
        let e = optimizer.load_state(&params, state).unwrap_err();
        assert!(e.to_string().contains(want), "{e}");
        assert_eq!(optimizer.steps(), 0);
    };
    refused(&mut Optimizer::momentum(0.1, 0.9), &state, "momentum_buffer");
    refused(&mut Optimizer::adam(0.1).group(Group::prefix("b")), &state, "groups");
    let mut other = state.clone();
    let moved = other.params.remove("w").unwrap();
    other.params.insert("v".into(), moved);
    refused(&mut Optimizer::adam(0.1), &other, "no parameter `v`");
    let mut other = state.clone();
    other.params.get_mut("w").unwrap().tensors.insert("exp_avg".into(), t(&[12], &W));
    refused(&mut Optimizer::adam(0.1), &other, "shape");
    let mut other = state.clone();
    other.params.get_mut("w").unwrap().tensors.insert("more".into(), t(&[3, 4], &W));
    refused(&mut Optimizer::adam(0.1), &other, "its rule has");
}

/// What a rule remembers is what it needs, and has the sign of what it was made of.
#[test]
fn states_are_those_of_the_rule() {
    let d = device();
    for (momentum, centered, want) in [
        (0.0, false, &["square_avg"][..]),
        (0.0, true, &["grad_avg", "square_avg"]),
        (0.5, true, &["grad_avg", "momentum_buffer", "square_avg"]),
    ] {
        let params = start(&d);
        let mut optimizer = Optimizer::new(rules::RmsProp { alpha: 0.9, eps: 1e-8, momentum, centered }, 0.1);
        let s = Session::eager(&d);
        let loss = params.iter().map(|p| s.param(p)?.sum()).reduce(|a, b| a?.add(b?)).unwrap().unwrap();
        optimizer.step(&params, loss.backward().unwrap()).unwrap();
        let mut state = optimizer.state::<f32>().unwrap();
        let saved = &state.params["w"].tensors;
        assert_eq!(saved.keys().collect::<Vec<_>>(), want);
        for (name, tensor) in saved {
            assert!(tensor.data().iter().all(|x| *x > 0.0), "{name} of a gradient of ones: {tensor:?}");
        }
        // As many steps as can be counted, and one more.
        for (steps, taken) in [(1 << 53, true), ((1 << 53) + 1, false)] {
            state.step = steps;
            let loaded = Optimizer::new(rules::RmsProp { alpha: 0.9, eps: 1e-8, momentum, centered }, 0.1)
                .load_state(&params, &state);
            assert_eq!(loaded.is_ok(), taken, "{loaded:?}");
        }
    }
}

/// A group that follows a rule whose weight decay is always decoupled has it so.
#[test]
fn a_group_of_another_rule_decays_as_that_rule_does() {
    let d = device();
    let mut params = Params::new(&d, 0);
    let w = params.value("w", &t(&[1], &[1.0])).unwrap();
    let lion = Group::names(&["w"]).rule(rules::Lion { beta1: 0.9, beta2: 0.99 });
    let mut optimizer = Optimizer::sgd(0.1).weight_decay(0.5).group(lion);
    let s = Session::eager(&d);
    let loss = s.param(&w).unwrap().scale(-0.1).unwrap().sum().unwrap();
    optimizer.step(&params, loss.backward().unwrap()).unwrap();
    // 1 - 0.1 * 0.5, and a step of 0.1 against the gradient; the decay would outweigh the gradient in the sign.
    let moved = w.get::<f32>().unwrap().data()[0];
    assert!((moved - 1.05).abs() < 1e-6, "{moved}");
}

#[test]
fn frozen_parameters_keep_their_value_and_their_place_in_time() {
    let d = device();
    let train = |compile: bool| {
        let params = start(&d);
        let b = params.get("b").unwrap().clone();
        b.set_trainable(false);
        let mut optimizer = Optimizer::adam(0.1).clip_norm(1.0);
        let mut step = compiled(&params, Optimizer::adam(0.1).clip_norm(1.0));
        let mut next = |at: usize| {
            if compile {
                compiled_step(&params, &mut step, at).unwrap();
            } else {
                eager_step(&params, &mut optimizer, at).unwrap();
            }
        };
        (0..3).for_each(&mut next);
        assert_eq!(b.get::<f32>().unwrap().data(), B);
        b.set_trainable(true);
        (3..5).for_each(&mut next);
        // Its first step is Adam's first step, of the length of the learning rate.
        let moved = (b.get::<f32>().unwrap().data()[0] - B[0]).abs();
        assert!((0.1..0.25).contains(&moved), "{moved}");
        params.get("w").unwrap().set_trainable(false);
        let w = params.get("w").unwrap().get::<f32>().unwrap();
        (5..7).for_each(&mut next);
        assert_eq!(params.get("w").unwrap().get::<f32>().unwrap(), w);
        params.fingerprint().unwrap()
    };
    assert_eq!(train(false), train(true));
}

#[test]
fn parameters_move_and_their_state_follows() {
    let a = device();
    let gpu = gpu();
    let b = gpu.as_ref().map_or_else(device, |g| g.1.clone());
    for (name, make) in more_makes() {
        let want = run(&a, make, false).0;
        for compile in [false, true] {
            let mut params = start(&a);
            let w = params.get("w").unwrap().clone();
            let mut optimizer = make();
            let mut step = compiled(&params, make());
            for at in 0..20 {
                if at == 5 || at == 12 {
                    params.to(if at == 5 { &b } else { &a }).unwrap();
                    assert_eq!(w.buffer().buffer().device().to_string(), params.device().to_string());
                }
                if compile {
                    compiled_step(&params, &mut step, at).unwrap();
                } else {
                    eager_step(&params, &mut optimizer, at).unwrap();
                }
            }
            assert_eq!(params.fingerprint().unwrap(), want, "{name}, compiled: {compile}");
        }
        assert_eq!(b.memory().live, 0, "{name}");
    }
}

#[test]
fn a_tape_from_before_a_move_is_refused() {
    let d = device();
    let mut params = start(&d);
    let w = params.get("w").unwrap().clone();
    let s = Session::eager(&d);
    let loss = s.param(&w).unwrap().sum().unwrap();
    params.to(&device()).unwrap();
    let e = loss.backward().unwrap_err();
    assert!(e.to_string().contains("changed after it was recorded"), "{e}");
    // When memory runs out nothing has moved.
    let other = device();
    other.fail_allocation(Some(2), false);
    assert!(params.to(&other).is_err());
    assert_eq!(w.get::<f32>().unwrap().data(), W);
    assert_eq!(other.memory().live, 0);
}

#[test]
fn a_shared_parameter_sums_its_gradients() {
    let d = device();
    let mut params = Params::new(&d, 0);
    let w = params.value("w", &t(&[2, 2], &[1.0, 2.0, 3.0, 4.0])).unwrap();
    let (encoder, decoder) = (w.clone(), w.clone());
    let f = |s: &Session| -> Result<Vec<f32>> {
        let x = s.input(&t(&[1, 2], &[1.0, -1.0]))?;
        let y = x.matmul(s.param(&encoder)?)?.matmul(s.param(&decoder)?.transpose()?)?.sum()?;
        Ok(y.backward()?.param(&w).unwrap().to_tensor::<f32>()?.into_data())
    };
    // h = x W = (-2, -2); y = Σ_i Σ_k h_k W_ik: dW_ik = h_k + x_i Σ_j W_jk.
    assert_eq!(f(&Session::eager(&d)).unwrap(), [-2.0 + 4.0, -2.0 + 6.0, -2.0 - 4.0, -2.0 - 6.0]);
    let run = |compile: bool| {
        w.set(&t(&[2, 2], &[1.0, 2.0, 3.0, 4.0])).unwrap();
        let x = t(&[1, 2], &[1.0, -1.0]);
        let tied = |v: &[Var<'_>]| -> Result<()> {
            let s = v[0].session();
            let y = v[0].matmul(s.param(&encoder)?)?.matmul(s.param(&decoder)?.transpose()?)?.sum()?;
            Optimizer::sgd(0.5).step(&params, y.backward()?)
        };
        if compile {
            let mut step = TrainStep::new(&params, Optimizer::sgd(0.5), |v| {
                let s = v[0].session();
                v[0].matmul(s.param(&encoder)?)?.matmul(s.param(&decoder)?.transpose()?)?.sum()
            });
            step.run(&[(&x).into()]).unwrap();
        } else {
            let s = Session::eager(&d);
            tied(&[s.input(&x).unwrap()]).unwrap();
        }
        w.get::<f32>().unwrap().into_data()
    };
    assert_eq!(run(false), [0.0, 0.0, 6.0, 8.0]);
    assert_eq!(run(true), run(false));
}

#[test]
fn a_parameter_is_set_from_a_value_on_the_device() {
    let check = |d: &Device| {
        let params = start(d);
        let w = params.get("w").unwrap();
        let s = Session::eager(d);
        let doubled = s.param(w).unwrap().scale(2.0).unwrap().buffer().unwrap();
        let address = w.buffer();
        w.set_from(&doubled).unwrap();
        assert!(w.buffer().buffer().shares(address.buffer()));
        assert_eq!(w.get::<f32>().unwrap().data(), W.map(|x| 2.0 * x));
        assert!(s.param(w).is_err(), "the tape holds the old value");
        w.set_from(&w.buffer()).unwrap();
        let other = dittograd::device::AnyBuffer::upload(&Device::host::<f64>(), &t(&[3, 4], &W)).unwrap();
        w.set_from(&other).unwrap();
        assert_eq!(w.get::<f32>().unwrap().data(), W);
        assert!(w.set_from(&params.get("b").unwrap().buffer()).is_err());
    };
    check(&device());
    check(&Device::host::<f64>());
    if let Some((_turn, gpu)) = gpu() {
        check(&gpu);
    }
    // Numbers of another type stay what they are.
    let params = start(&Device::host::<f64>());
    params.get("b").unwrap().set(&Tensor::new(&[3], vec![0.1f64, 0.2, 0.3]).unwrap()).unwrap();
    assert_eq!(params.get("b").unwrap().get::<f64>().unwrap().data(), [0.1, 0.2, 0.3]);
}

fn initialised(d: &Device) -> Params {
    let mut p = Params::new(d, 5);
    p.zeros("zeros", &[3]).unwrap();
    p.ones("ones", &[3]).unwrap();
    p.normal("normal", &[40, 50], 1.0, 0.5).unwrap();
    p.xavier_uniform("xavier_uniform", &[30, 20, 3, 2], 1.0).unwrap();
    p.xavier_normal("xavier_normal", &[30, 20, 3, 2], 2.0).unwrap();
    p.kaiming_uniform("kaiming_uniform", &[30, 20, 3], Fan::In, 2f64.sqrt()).unwrap();
    p.kaiming_normal("kaiming_normal", &[30, 20, 3], Fan::Out, 2f64.sqrt()).unwrap();
    p.orthogonal("wide", &[12, 5, 4], 1.0).unwrap();
    p.orthogonal("tall", &[33, 9], 0.5).unwrap();
    p.orthogonal("long", &[3, 1300], 1.0).unwrap();
    p
}

#[test]
fn initial_values_have_their_distribution() {
    let p = initialised(&device());
    let data = |name: &str| p.get(name).unwrap().get::<f64>().unwrap().into_data();
    assert_eq!((data("zeros"), data("ones")), (vec![0.0; 3], vec![1.0; 3]));
    let moments = |name: &str| {
        let x = data(name);
        let n = x.len() as f64;
        let mean = x.iter().sum::<f64>() / n;
        (mean, (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt())
    };
    let near = |name: &str, mean: f64, std: f64| {
        let got = moments(name);
        assert!((got.0 - mean).abs() < 0.1 * std && (got.1 / std - 1.0).abs() < 0.06, "{name}: {got:?}");
    };
    let within = |name: &str, limit: f64| {
        let largest = data(name).iter().fold(0.0, |m: f64, x| m.max(x.abs()));
        assert!(largest <= limit * 1.000001 && largest > 0.95 * limit, "{name}: {largest} {limit}");
    };
    near("normal", 1.0, 0.5);
    // fan_in 20·6, fan_out 30·6.
    within("xavier_uniform", (6.0f64 / 300.0).sqrt());
    near("xavier_normal", 0.0, 2.0 * (2.0f64 / 300.0).sqrt());
    within("kaiming_uniform", (6.0f64 / 60.0).sqrt());
    near("kaiming_normal", 0.0, (2.0f64 / 90.0).sqrt());
    let orthogonal = |name: &str, rows: usize, columns: usize, gain: f64| {
        let x = data(name);
        let wide = rows <= columns;
        let at = |i: usize, k: usize| if wide { x[i * columns + k] } else { x[k * columns + i] };
        let (count, len) = (rows.min(columns), rows.max(columns));
        for i in 0..count {
            for j in 0..count {
                let dot: f64 = (0..len).map(|k| at(i, k) * at(j, k)).sum();
                let want = if i == j { gain * gain } else { 0.0 };
                assert!((dot - want).abs() < 1e-6, "{name} {i} {j}: {dot}");
            }
        }
    };
    orthogonal("wide", 12, 20, 1.0);
    orthogonal("tall", 33, 9, 0.5);
    orthogonal("long", 3, 1300, 1.0);
}

#[test]
fn initial_values_have_the_same_bits_everywhere() {
    let want = initialised(&Device::cpu_with(1, Simd::Scalar).unwrap()).fingerprint().unwrap();
    assert_eq!(want, INITIAL, "initial values changed: that needs another NUMERICS_VERSION");
    assert_eq!(initialised(&device()).fingerprint().unwrap(), want);
    if let Some((_turn, gpu)) = gpu() {
        assert_eq!(initialised(&gpu).fingerprint().unwrap(), want);
    }
}

const INITIAL: &str = "e96d10fb7002c3a4";

#[test]
fn initialisers_refuse_what_has_no_fan() {
    let mut p = Params::new(&device(), 0);
    for e in [
        p.xavier_uniform("a", &[3], 1.0).unwrap_err(),
        p.xavier_normal("a", &[], 1.0).unwrap_err(),
        p.kaiming_uniform("a", &[3], Fan::In, 1.0).unwrap_err(),
        p.kaiming_normal("a", &[3], Fan::Out, 1.0).unwrap_err(),
        p.orthogonal("a", &[3], 1.0).unwrap_err(),
        p.orthogonal("a", &[], 1.0).unwrap_err(),
    ] {
        assert!(e.to_string().contains("at least 2"), "{e}");
    }
    assert!(p.xavier_uniform("a", &[3, 0], 1.0).is_err());
    assert!(p.kaiming_normal("a", &[3, 2], Fan::In, f64::NAN).is_err());
    assert!(p.normal("a", &[3], 0.0, -1.0).is_err());
    assert!(p.normal("a", &[3], f64::NAN, 1.0).is_err());
    assert!(p.is_empty());
    p.orthogonal("empty", &[0, 3], 1.0).unwrap();
}

/// In a captured program the parts of an update run as soon as their gradients are there and nobody reads what they write any more: the
/// driver of tests launches whatever is ready last in the program first.
#[test]
fn parts_of_an_update_wait_only_for_what_they_need() {
    let train = |device: &Device| {
        let mut params = Params::new(device, 3);
        let layers = ["a", "b", "c"].map(|name| params.normal(name, &[1100, 1100], 0.0, 0.02).unwrap());
        let running = params.zeros("running", &[2, 1100]).unwrap();
        running.set_trainable(false);
        let mut step = TrainStep::new(&params, Optimizer::adam(0.01), move |v| {
            let (mut x, s) = (v[0], v[0].session());
            for w in &layers {
                x = x.matmul(s.param(w)?)?.tanh()?;
            }
            s.assign(&running, (x + s.param(&running)?)?)?;
            (x * x)?.mean()
        });
        let x = Tensor::new(&[2, 1100], (0..2200).map(|i| (i as f32 * 0.37).sin()).collect()).unwrap();
        for _ in 0..3 {
            step.run(&[(&x).into()]).unwrap();
        }
        params.fingerprint().unwrap()
    };
    let want = train(&Device::cpu().unwrap());
    let fake = Fake::computing(1, 1 << 28);
    let device = Device::from_cuda(fake.open().unwrap());
    assert_eq!(train(&device), want);
    let names: Vec<String> = fake.launches().into_iter().map(|l| l.name).collect();
    let last_step = &names[names.len() * 2 / 3..];
    let first = last_step.iter().position(|n| n == "update").unwrap();
    let computed_after = last_step[first..].iter().filter(|n| *n != "update").count();
    let updates = last_step.iter().filter(|n| *n == "update").count();
    assert!(updates == 3 && computed_after > 3, "{last_step:?}");
}
