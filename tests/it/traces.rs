//! What code that is traced reads and does besides its arguments: a compiled program follows it at every run, or the trace
//! is an error that says what to do.

use crate::support::{data, device, f, t};
use dittograd::device::{AnyBuffer, Meta};
use dittograd::graph::{Graph, Passes};
use dittograd::ops::AnyTensor;
use dittograd::prelude::*;
use dittograd::session::Nats;
use dittograd::torchlean::TorchLean;
use dittograd::typed::{CompiledScalar, GraphData, Rank1, TList, TListOf, Typed};
use std::cell::Cell;

type Loss = Box<dyn for<'s> Fn(&[Var<'s>]) -> Result<Var<'s>>>;

/// Parameters `w` (trained) and `m` (not), both scalars of value 2 and 3.
struct Two {
    params: Params,
    w: Param,
    m: Param,
}

fn two(d: &Device) -> Two {
    let mut params = Params::new(d, 1);
    let w = params.value("w", &Tensor::scalar(2.0f32)).unwrap();
    let m = params.value("m", &Tensor::scalar(3.0f32)).unwrap();
    m.set_trainable(false);
    Two { params, w, m }
}

fn one() -> Tensor<f32> {
    Tensor::scalar(1.0)
}

fn scalar(v: &AnyTensor<f32>) -> f32 {
    v.num().unwrap().item().unwrap()
}

/// What code may not do while it is traced.
type Act = for<'s> fn(&'s Session, &Two) -> Result<Var<'s>>;

const ACTS: [(&str, Act, &str); 15] = [
    ("input", |s, _| s.input(&one()), "pass it as an argument of the step or program, or use constant"),
    ("variable", |s, _| s.variable(&one()), "pass it as an argument of the step or program, or use constant"),
    (
        "labels",
        |s, _| s.param(&two(s.device()).w).and(s.ones(&[2])?.index_select(0, s.labels(&Tensor::scalar(1))?)),
        "pass it as an argument of the step or program, or use indices",
    ),
    ("value", |s, p| s.constant(&s.param(&p.m)?.value::<f32>()?), "return the value from the program"),
    ("item", |s, p| s.scalar(s.param(&p.m)?.item()?.into()), "return the value from the program"),
    ("buffer of a value", |s, p| s.buffer(&s.param(&p.m)?.buffer()?), "return the value from the program"),
    ("to_index", |s, p| s.ones(&[9])?.index_select(0, s.param(&p.m)?.to_index()?), "to_index_below(n)"),
    ("backward", |s, p| s.param(&p.m)?.backward().and(s.scalar(1.0)), "when it is compiled"),
    ("hook", |s, p| s.param(&p.w)?.hook(|g| Ok(g.clone())).and(s.scalar(1.0)), "use an eager session"),
    ("with_tape", |s, _| s.with_tape(|_| Ok(())).and(s.scalar(1.0)), "use an eager session"),
    ("fresh", |s, _| s.fresh(|_| Ok(())).and(s.scalar(1.0)), "use an eager session"),
    (
        "reset",
        |s, _| {
            s.reset();
            s.scalar(1.0)
        },
        "call reset only on eager sessions",
    ),
    (
        "set_random_calls",
        |s, _| {
            s.set_random_calls(5);
            s.uniform(&[])
        },
        "before a run",
    ),
    (
        "set of a parameter",
        |s, p| {
            p.m.set(&one())?;
            s.param(&p.m)
        },
        "change it between runs, or use Session::assign",
    ),
    (
        "set of a list",
        |s, _| {
            let nats = Nats::new(&[1]);
            nats.set(0, 2)?;
            s.ones(&[3])?.index_select(0, s.nats(&nats)?)?.sum()
        },
        "change it between runs",
    ),
];

#[test]
fn what_a_program_would_not_do_again_is_refused() {
    let d = device();
    let mut wrong = Vec::new();
    for (what, act, says) in ACTS {
        let mut check = |place: &str, got: Result<()>| match got {
            Ok(()) => wrong.push(format!("{what} in {place}: no error")),
            Err(e) if e.to_string().contains(says) => {}
            Err(e) => wrong.push(format!("{what} in {place}: {e}")),
        };
        let p = two(&d);
        let x = one();
        let given = [(&x).into()];
        let mut loss = TrainStep::new(&p.params, Optimizer::sgd(1.0), |v| {
            let s = v[0].session();
            s.param(&p.w)?.mul(v[0])?.mul(act(s, &p)?)
        });
        check("a loss", loss.run(&given));
        assert_eq!(p.w.get::<f32>().unwrap().item().unwrap(), 2.0);
        let q = two(&d);
        let (w, m, plain) = (q.w.clone(), q.m.clone(), q.w.clone());
        let mut metric =
            TrainStep::new(&q.params, Optimizer::sgd(1.0), |v| v[0].session().param(&plain)?.mul(v[0]))
                .metrics(move |v| {
                    let s = v[0].session();
                    Ok(vec![act(s, &Two { params: Params::new(s.device(), 1), w: w.clone(), m: m.clone() })?])
                });
        check("metrics", metric.run(&given));
        let mut segment = TrainStep::new(&p.params, Optimizer::sgd(1.0), |v| {
            let s = v[0].session();
            s.checkpoint(|| s.param(&p.w)?.mul(v[0])?.mul(act(s, &p)?))
        });
        check("a checkpoint", segment.run(&given));
        check("a program", Graph::trace(&d, &[f(&[])], |s, _| Ok(vec![act(s, &p)?])).map(drop));
        let session = Session::eager(&d);
        let mut traced = session.compile(|s, _| Ok(vec![act(s, &p)?]));
        check("a compiled function", traced.call(&[one().into()]).map(drop));
        check(
            "a typed program",
            CompiledScalar::<TListOf![Rank1<1>]>::trace(&d, |s, x| {
                act(s, &p)?.sum()?.typed::<Typed<'_, ()>>()?.mul(x.get::<0>().sum()?)
            })
            .map(drop),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // A node of a typed program.
    let e = GraphData::<TListOf![Rank1<2>]>::new()
        .unwrap()
        .node(|s, _| s.input(&t(&[2], &[1.0; 2]))?.typed::<Typed<'_, Rank1<2>>>());
    assert!(e.unwrap_err().to_string().contains("use constant"));
}

/// A function of one input, run eagerly and compiled, with something changed in between.
fn follows(
    d: &Device,
    read: impl for<'s> Fn(&'s Session) -> Result<Var<'s>>,
    changes: &[&dyn Fn()],
) -> Vec<f32> {
    let mut params = Params::new(d, 1);
    let w = params.value("w", &Tensor::scalar(1.0f32)).unwrap();
    let frozen = Tensor::scalar(1.0f32);
    let mut step = TrainStep::new(&params, Optimizer::sgd(0.0), |v| {
        let s = v[0].session();
        s.param(&w)?.mul(v[0])?.mul(read(s)?)
    });
    let session = Session::eager(d);
    let mut traced = session.compile(|s, v| Ok(vec![v[0].mul(read(s)?)?]));
    let function = |s: &Session| -> Result<f32> { s.constant(&frozen)?.mul(read(s)?)?.item() };
    let mut seen = Vec::new();
    for change in changes {
        change();
        step.run(&[(&frozen).into()]).unwrap();
        step.again().unwrap();
        let eager = Session::eager(d);
        let want = function(&eager).unwrap();
        assert_eq!(step.loss().unwrap(), want, "a step, change {}", seen.len());
        assert_eq!(scalar(&traced.call(&[frozen.clone().into()]).unwrap()[0]), want, "change {}", seen.len());
        seen.push(want);
    }
    seen
}

#[test]
fn what_changes_between_runs_is_followed() {
    let d = device();
    // Parameters that the step does not train: set, replaced, moved.
    let mut others = Params::new(&d, 1);
    let o = others.value("o", &Tensor::scalar(5.0f32)).unwrap();
    let others = std::cell::RefCell::new(others);
    let set = |x: f32| o.set(&Tensor::scalar(x)).unwrap();
    let changes: [&dyn Fn(); 6] = [
        &|| (),
        &|| set(6.0),
        &|| o.set_from(&AnyBuffer::full(&d, Shape::SCALAR, 7.0).unwrap()).unwrap(),
        &|| others.borrow_mut().to(&d).unwrap(),
        &|| set(8.0),
        &|| o.set_trainable(false),
    ];
    assert_eq!(follows(&d, |s| s.param(&o), &changes), [5.0, 6.0, 7.0, 7.0, 8.0, 8.0]);
    // Code that asks whether a parameter is trained.
    let changes: [&dyn Fn(); 3] = [&|| (), &|| o.set_trainable(true), &|| o.set_trainable(false)];
    let asks = |s: &Session| s.param(&o)?.requires_grad();
    assert_eq!(follows(&d, |s| s.scalar(if asks(s)? { 1.0 } else { 2.0 }), &changes), [2.0, 1.0, 2.0]);
    // A parameter's memory.
    let changes: [&dyn Fn(); 2] = [&|| (), &|| set(9.0)];
    assert_eq!(follows(&d, |s| s.buffer(&o.buffer()), &changes), [8.0, 9.0]);
    // Whole numbers.
    let nats = Nats::new(&[1]);
    let table = t(&[3], &[10.0, 20.0, 30.0]);
    let changes: [&dyn Fn(); 2] = [&|| (), &|| nats.set(0, 2).unwrap()];
    assert_eq!(follows(&d, |s| gathered(s, &table, &nats), &changes), [20.0, 30.0]);
}

fn gathered<'s>(s: &'s Session, table: &Tensor<f32>, nats: &Nats) -> Result<Var<'s>> {
    s.constant(table)?.index_select(0, s.nats(nats)?)?.sum()
}

/// Memory of another device would be copied once.
#[test]
fn memory_of_another_device_is_no_part_of_a_program() {
    let d = device();
    let there = Device::host::<f32>();
    let value = AnyBuffer::full(&d, Shape::SCALAR, 2.0).unwrap();
    let graph = Graph::trace(&d, &[], |s, _| Ok(vec![s.buffer(&value)?.square()?])).unwrap();
    assert_eq!(scalar(&graph.run::<f32>(&there, &[]).unwrap()[0]), 4.0);
    for e in [
        graph.compile(&there).map(drop).unwrap_err(),
        Graph::trace(&there, &[], |s, _| s.replay(&graph, &[])).map(drop).unwrap_err(),
        Graph::trace(&there, &[], |s, _| Ok(vec![s.buffer(&value)?])).map(drop).unwrap_err(),
    ] {
        assert!(e.to_string().starts_with("buffer"), "{e}");
    }
}

/// Settings that are given after a run count from the next one on.
#[test]
fn settings_after_a_run_are_followed() {
    let d = device();
    let loss =
        |w: Param| -> Loss { Box::new(move |v| v[0].session().param(&w)?.mul(v[0].session().uniform(&[])?)) };
    let first = |seed: u64, before: bool| {
        let p = two(&d);
        let mut step = TrainStep::new(&p.params, Optimizer::sgd(0.0), loss(p.w.clone()));
        if before {
            step.run(&[(&one()).into()]).unwrap();
            step.set_random_calls(0);
        }
        let mut step = step.seeded(seed).passes(Passes::none()).metrics(|v| Ok(vec![v[0].scale(4.0)?]));
        if before {
            assert!(step.again().unwrap_err().to_string().contains("call run with inputs"));
        }
        step.run(&[(&one()).into()]).unwrap();
        (step.loss().unwrap(), step.metric(0).unwrap().item().unwrap())
    };
    assert_eq!(first(5, true), first(5, false));
    assert_ne!(first(5, true).0, first(6, true).0);
    let session = Session::eager(&d);
    let drawn = |seed: u64, before: bool| {
        let mut traced = session.compile(|s, _| Ok(vec![s.uniform(&[])?]));
        let calls = if before { traced.call::<f32>(&[]).map(|_| 1).unwrap() } else { 0 };
        let mut traced = traced.seeded(seed);
        let value = scalar(&traced.call(&[]).unwrap()[0]);
        let eager = Session::eager_seeded(&d, seed);
        eager.set_random_calls(calls);
        (value, eager.uniform(&[]).unwrap().item().unwrap())
    };
    for (got, want) in [drawn(5, true), drawn(5, false), drawn(6, true)] {
        assert_eq!(got, want);
    }
}

/// Loss, metrics, gradients and assigned values are those of before the update.
#[test]
fn values_in_the_memory_of_a_parameter_are_those_of_the_step() {
    let d = device();
    for passes in [Passes::all(), Passes::none()] {
        let mut params = Params::new(&d, 1);
        let w = params.value("w", &t(&[1], &[2.0])).unwrap();
        let n = params.value("n", &t(&[1], &[3.0])).unwrap();
        n.set_trainable(false);
        let (a, b) = (w.clone(), n.clone());
        let mut step = TrainStep::new(&params, Optimizer::sgd(1.0), |v| {
            let s = v[0].session();
            let old = s.param(&n)?;
            s.assign(&n, s.param(&w)?)?;
            s.checkpoint(|| s.param(&w)?.mul(old.detach()?)?.sub(s.param(&w)?.scale(2.0)?))?.reshape(&[])
        })
        .passes(passes)
        .metrics(move |v| {
            let s = v[0].session();
            Ok(vec![s.param(&a)?, s.param(&b)?.reshape(&[])?, v[0], s.buffer(&a.buffer())?])
        });
        // w' = w - (n - 2), n' = w
        for (want_w, want_n) in [(2.0, 3.0), (1.0, 2.0), (1.0, 1.0), (2.0, 1.0)] {
            assert_eq!(
                (w.get::<f32>().unwrap().data()[0], n.get::<f32>().unwrap().data()[0]),
                (want_w, want_n)
            );
            step.run(&[(&one()).into()]).unwrap();
            assert_eq!(step.loss().unwrap(), want_w * want_n - 2.0 * want_w);
            let metric = |i| step.metric(i).unwrap().data()[0];
            assert_eq!([metric(0), metric(1), metric(2), metric(3)], [want_w, want_n, 1.0, want_w]);
        }
        // A loss that is a parameter.
        let p = two(&d);
        let mut step =
            TrainStep::new(&p.params, Optimizer::sgd(0.5), |v| v[0].session().param(&p.w)).passes(passes);
        step.run(&[(&one()).into()]).unwrap();
        assert_eq!((step.loss().unwrap(), p.w.get::<f32>().unwrap().item().unwrap()), (2.0, 1.5));
    }
}

#[test]
fn what_only_metrics_assign_is_refused() {
    let d = device();
    let p = two(&d);
    let m = p.m.clone();
    let mut step = TrainStep::new(&p.params, Optimizer::sgd(1.0), |v| v[0].session().param(&p.w)?.mul(v[0]))
        .metrics(move |v| v[0].session().assign(&m, v[0]).map(|()| Vec::new()));
    let e = step.run(&[(&one()).into()]).unwrap_err().to_string();
    assert!(e.contains("parameter m") && e.contains("in the loss"), "{e}");
    let (m, n) = (p.m.clone(), p.m.clone());
    let mut step = TrainStep::new(&p.params, Optimizer::sgd(1.0), |v| {
        v[0].session().assign(&m, v[0])?;
        v[0].session().param(&p.w)?.mul(v[0])
    })
    .metrics(move |v| v[0].session().assign(&n, v[0]).map(|()| vec![v[0]]));
    step.run(&[(&one()).into()]).unwrap();
    assert_eq!(p.m.get::<f32>().unwrap().item().unwrap(), 1.0);
}

/// Indices are read as indices, and nothing else is.
#[test]
fn indices_are_not_read_as_numbers() {
    let d = device();
    let p = two(&d);
    let mut step =
        TrainStep::new(&p.params, Optimizer::sgd(0.0), |v| v[0].session().param(&p.w)?.mul(v[0].sum()?))
            .metrics(|v| Ok(vec![v[0].argmax(&[0], false)?, v[0].scale(2.0)?, v[1]]));
    let (x, y) = (t(&[3], &[1.0, 2.0, 9.0]), Tensor::new(&[2], vec![7u32, 8]).unwrap());
    step.run(&[(&x).into(), (&y).into()]).unwrap();
    assert_eq!(step.metric_indices(0).unwrap().data(), [2]);
    assert_eq!(step.metric(1).unwrap().data(), [2.0, 4.0, 18.0]);
    assert_eq!(step.metric_indices(2).unwrap().data(), [7, 8]);
    for (e, says) in [
        (step.metric(0).unwrap_err(), "metric_indices"),
        (step.metric_indices(1).unwrap_err(), "read it with metric"),
        (step.metric(3).unwrap_err(), "the step has 3"),
        (step.metric_indices(3).unwrap_err(), "the step has 3"),
    ] {
        assert!(e.to_string().contains(says), "{e}");
    }
    let s = Session::eager(&d);
    let best = s.input(&x).unwrap().argmax(&[0], false).unwrap();
    let mut loss = TrainStep::new(&p.params, Optimizer::sgd(0.0), |v| v[0].argmax(&[0], false));
    let kinds = [
        best.value::<f32>().map(drop),
        best.item().map(drop),
        s.assign(&p.m, best),
        p.m.set_from(&best.buffer().unwrap()),
        loss.run(&[(&x).into()]),
        Graph::trace(&d, &[f(&[3])], |_, v| Ok(vec![v[0].argmax(&[0], false)?]))
            .unwrap()
            .run(&d, &[x.clone().into()])
            .unwrap()[0]
            .num()
            .map(drop),
        s.grad(best, &[]).map(drop),
    ];
    for (i, got) in kinds.into_iter().enumerate() {
        let e = got.unwrap_err();
        assert!(format!("{e:?} {:?}", e.kind()).contains("DType"), "{i}: {e}");
    }
}

/// After a step that failed there is nothing to read.
#[test]
fn a_step_that_failed_has_no_loss() {
    let d = device();
    let p = two(&d);
    let nats = Nats::new(&[0]);
    let mut step = TrainStep::new(&p.params, Optimizer::sgd(0.0), |v| {
        let s = v[0].session();
        s.param(&p.w)?.mul(s.ones(&[2])?.index_select(0, s.nats(&nats)?)?.sum()?)
    });
    nats.set(0, 5).unwrap();
    assert!(step.run(&[(&one()).into()]).is_err());
    assert!(step.loss().unwrap_err().to_string().contains("the last step failed"));
    nats.set(0, 1).unwrap();
    step.again().unwrap();
    assert_eq!(step.loss().unwrap(), 2.0);
}

/// Element `i` of a vector that has fewer: zero, with a gradient of zeros.
#[test]
fn an_element_that_is_not_there_has_a_gradient_of_zeros() {
    let d = device();
    for n in [0usize, 1, 3] {
        for i in [0usize, 1, 2, 3, 1000, u32::MAX as usize, usize::MAX] {
            let x = Tensor::from_fn(Shape::new(&[n]).unwrap(), |k| k as f32 + 1.5);
            let want = x.data().get(i).copied().unwrap_or(0.0);
            let slope: Vec<f32> = (0..n).map(|k| if k == i { 1.0 } else { 0.0 }).collect();
            let s = Session::eager(&d);
            let v = s.variable(&x).unwrap();
            let y = v.gather_scalar_nat(i).unwrap();
            assert_eq!((y.item().unwrap(), data(s.grad(y, &[v]).unwrap()[0])), (want, slope.clone()));
            assert_eq!(y.backward().unwrap().var(v).unwrap().to_tensor::<f32>().unwrap().data(), slope);
            let graph =
                Graph::trace(&d, &[Meta::f32(x.shape())], |_, v| Ok(vec![v[0].gather_scalar_nat(i)?]))
                    .unwrap();
            let mut both = [graph.compile(&d).unwrap(), graph.vjp().unwrap().compile(&d).unwrap()];
            assert_eq!(scalar(&both[0].call(&[x.clone().into()]).unwrap()[0]), want);
            let grads = both[1].call(&[x.into(), one().into()]).unwrap();
            assert_eq!(grads[0].num().unwrap().data(), slope);
        }
    }
}

/// A closure may keep count of its traces: the argument decides, not the count.
#[test]
fn a_closure_is_traced_once_for_each_set_of_shapes_and_settings() {
    let d = device();
    let p = two(&d);
    let traces = Cell::new(0);
    let mut step = TrainStep::new(&p.params, Optimizer::sgd(0.0), |v| {
        traces.set(traces.get() + 1);
        v[0].session().param(&p.w)?.mul(v[0].sum()?)?.mul(v[0].session().param(&p.m)?)
    });
    let (a, b) = (t(&[2], &[1.0, 2.0]), t(&[3], &[1.0, 2.0, 3.0]));
    for (x, trained, want) in
        [(&a, false, 1), (&b, false, 2), (&a, false, 2), (&a, true, 3), (&a, false, 3), (&b, true, 4)]
    {
        p.m.set_trainable(trained);
        step.run(&[x.into()]).unwrap();
        assert_eq!(traces.get(), want);
    }
}
