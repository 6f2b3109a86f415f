//! Handles, values and programs at the wrong time or in the wrong place: one table of what is done, through every entry
//! point that it fits, and of what must be answered. On the CPU, on a driver without a GPU, and on a GPU if there is one.

use crate::support::{data, device, t};
use dittograd::device::cuda::fake::{Fake, Live};
use dittograd::device::{AnyBuffer, Buffer, Meta};
use dittograd::error::ErrorKind;
use dittograd::graph::{Function, Graph};
use dittograd::ops::{self, AnyTensor, pointwise};
use dittograd::prelude::*;

/// What was done through which entry point, and what came of it.
type Answers = Vec<(&'static str, Result<()>)>;

/// What is done on a device, with another one at hand that has other memory; and what every entry point must answer: a kind
/// of error, and words of its text.
struct Row {
    what: &'static str,
    run: fn(&Device, &Device) -> Answers,
    kind: &'static str,
    says: &'static str,
}

fn x() -> Tensor<f32> {
    t(&[2], &[1.0, 2.0])
}

type Loss = Box<dyn for<'s> Fn(&[Var<'s>]) -> Result<Var<'s>>>;

/// Two parameters, a step, `sum((p * v0 + q)^2)`, and a program, `p * v0`.
struct Parts {
    params: Params,
    p: Param,
    q: Param,
    step: TrainStep<Loss>,
    function: Function,
}

fn parts(d: &Device) -> Parts {
    let mut params = Params::new(d, 1);
    let p = params.value("p", &t(&[2], &[0.5, -1.0])).unwrap();
    let q = params.value("q", &t(&[2], &[1.0, 2.0])).unwrap();
    let (a, b, c) = (p.clone(), q.clone(), p.clone());
    let step: Loss = Box::new(move |v| {
        let s = v[0].session();
        s.param(&a)?.mul(v[0])?.add(s.param(&b)?)?.square()?.sum()
    });
    let step = TrainStep::new(&params, Optimizer::sgd(0.125), step);
    let graph = Graph::trace(d, &[Meta::f32(x().shape())], |s, v| Ok(vec![s.param(&c)?.mul(v[0])?])).unwrap();
    let function = graph.compile(d).unwrap();
    Parts { params, p, q, step, function }
}

fn table() -> Vec<Row> {
    vec![
        Row {
            what: "a value of another session",
            kind: "Foreign",
            says: "another session",
            run: |d, _| {
                let (a, b) = (Session::eager(d), Session::eager(d));
                let (mine, other) = (a.variable(&x()).unwrap(), b.variable(&x()).unwrap());
                let (y, sum) = (mine.square().unwrap(), mine.sum().unwrap());
                let mut params = Params::new(d, 1);
                let frozen = params.value("w", &x()).unwrap();
                frozen.set_trainable(false);
                let square =
                    Graph::trace(d, &[Meta::f32(x().shape())], |_, v| Ok(vec![v[0].square()?])).unwrap();
                // A session that lives as long as the program, so that a closure can return its values.
                let forever: &'static Session = Box::leak(Box::new(Session::eager(&device())));
                let stray = forever.variable(&Tensor::scalar(1.0f32)).unwrap();
                let w = params.value("v", &x()).unwrap();
                let mut step = TrainStep::new(&params, Optimizer::sgd(0.1), |_| Ok(stray));
                let mut metric =
                    TrainStep::new(&params, Optimizer::sgd(0.1), |v| v[0].session().param(&w)?.sum())
                        .metrics(|_| {
                            let other: &'static Session = Box::leak(Box::new(Session::eager(&device())));
                            Ok(vec![other.scalar(1.0)?])
                        });
                let mut traced = a.compile(|_, _| Ok(vec![stray]));
                let given = Tensor::scalar(0.0f32);
                let answers: Answers = vec![
                    ("binary op", mine.add(other).map(drop)),
                    ("op of the other", other.matmul(mine).map(drop)),
                    ("apply", a.apply(pointwise::Exp {}, &[other]).map(drop)),
                    ("concat", a.concat(&[mine, other], 0).map(drop)),
                    ("stack", a.stack(&[mine, other], 0).map(drop)),
                    ("einsum", a.einsum("i,i->", &[mine, other]).map(drop)),
                    ("grad of", a.grad(other.sum().unwrap(), &[mine]).map(drop)),
                    ("grad by", a.grad(sum, &[other]).map(drop)),
                    ("vjp seed", a.vjp(&[(y, other)], &[mine]).map(drop)),
                    ("jvp", a.jvp(y, &[(mine, other)]).map(drop)),
                    ("backward_from", a.backward_from(&[(other, &x())]).map(drop)),
                    ("checkpoint", a.checkpoint(|| Ok(other)).map(drop)),
                    ("replay", a.replay(&square, &[other]).map(drop)),
                    ("assign", a.assign(&frozen, other)),
                    ("scope", Session::inference(d).scope(|| Ok(stray)).map(drop)),
                    ("bernoulli_mask", a.bernoulli_mask(&[2], b.scalar(0.5).unwrap()).map(drop)),
                    ("loss of a step", step.run(&[(&given).into()])),
                    ("metric of a step", metric.run(&[(&given).into()])),
                    ("result of a program", traced.call(&[given.clone().into()]).map(drop)),
                ];
                forever.reset();
                answers
            },
        },
        Row {
            what: "a handle from before a reset",
            kind: "Stale",
            says: "was reset",
            run: |d, _| {
                let s = Session::eager(d);
                let old = s.variable(&x()).unwrap();
                s.reset();
                let new = s.variable(&x()).unwrap();
                vec![
                    ("op", old.exp().map(drop)),
                    ("with a new one", new.add(old).map(drop)),
                    ("shape", old.shape().map(drop)),
                    ("value", old.value::<f32>().map(drop)),
                    ("item", old.item().map(drop)),
                    ("buffer", old.buffer().map(drop)),
                    ("requires_grad", old.requires_grad().map(drop)),
                    ("detach", old.detach().map(drop)),
                    ("tracked", old.tracked().map(drop)),
                    ("hook", old.hook(|g| Ok(g.clone()))),
                    ("backward", old.backward().map(drop)),
                    ("backward_from", old.backward_from(&x()).map(drop)),
                    ("grad", s.grad(new.sum().unwrap(), &[old]).map(drop)),
                ]
            },
        },
        Row {
            what: "memory of another device",
            kind: "Device",
            says: "to_device()",
            run: |d, other| {
                let s = Session::eager(d);
                let there = AnyBuffer::upload(other, &x()).unwrap();
                let here = AnyBuffer::upload(d, &x()).unwrap();
                let mut params = Params::new(other, 1);
                let p = params.value("p", &x()).unwrap();
                let mut parts = parts(d);
                let given = x();
                let (held, mut mine) = (there.clone(), Params::new(d, 1));
                let w = mine.value("w", &x()).unwrap();
                let mut step = TrainStep::new(&mine, Optimizer::sgd(0.1), move |v| {
                    let s = v[0].session();
                    s.param(&w)?.mul(s.buffer(&held)?)?.sum()
                });
                let graph = Graph::trace(other, &[], |s, _| Ok(vec![s.param(&p)?.exp()?])).unwrap();
                let hooked = s.variable(&x()).unwrap();
                let elsewhere = there.clone();
                hooked.hook(move |_| Ok(elsewhere.clone())).unwrap();
                vec![
                    ("buffer", s.buffer(&there).map(drop)),
                    ("param", s.param(&p).map(drop)),
                    ("apply", ops::apply(d, &pointwise::Add {}.into(), &[&here, &there]).map(drop)),
                    ("call_on", parts.function.call_on(&[&there]).map(drop)),
                    ("buffer in a step", step.run(&[(&given).into()])),
                    ("param in a trace", Graph::trace(d, &[], |s, _| Ok(vec![s.param(&p)?])).map(drop)),
                    ("compile", graph.compile(d).map(drop)),
                    ("leaf of a tape", s.with_tape(|tape| tape.leaf(there.clone(), None, true)).map(drop)),
                    ("hook", hooked.sum().unwrap().backward().map(drop)),
                ]
            },
        },
        Row {
            what: "gradients of parameters that moved to another device",
            kind: "Device",
            says: "parameter p: an input lives on",
            run: |d, other| {
                let mut all = Vec::new();
                for (from, to) in [(d, other), (other, d)] {
                    let Parts { mut params, p, q, .. } = parts(from);
                    let s = Session::eager(from);
                    let loss = s.param(&p).unwrap().mul(s.param(&q).unwrap()).unwrap().sum().unwrap();
                    let grads = loss.backward().unwrap();
                    params.to(to).unwrap();
                    let before = params.fingerprint().unwrap();
                    let mut optimizer = Optimizer::adam(0.5);
                    all.push(("step", optimizer.step(&params, grads)));
                    assert_eq!((params.fingerprint().unwrap(), optimizer.steps()), (before, 0));
                }
                all
            },
        },
        Row {
            what: "a second walk back, after the values were freed",
            kind: "Gradient",
            says: "freed by a backward pass",
            run: |d, _| {
                let s = Session::eager(d);
                let v = s.variable(&x()).unwrap();
                let between = v.exp().unwrap();
                let loss = between.square().unwrap().sum().unwrap();
                loss.backward().unwrap();
                vec![
                    ("backward", loss.backward().map(drop)),
                    ("backward_retain", loss.backward_retain().map(drop)),
                    ("backward_from", loss.backward_from(&Tensor::scalar(2.0)).map(drop)),
                    ("grad", s.grad(loss, &[v]).map(drop)),
                    ("value in between", between.value::<f32>().map(drop)),
                    ("op on it", between.exp().map(drop)),
                ]
            },
        },
        Row {
            what: "a walk back from what is no scalar",
            kind: "Gradient",
            says: "needs a seed",
            run: |d, _| {
                let s = Session::eager(d);
                let v = s.variable(&x()).unwrap();
                let y = v.exp().unwrap();
                vec![
                    ("backward", y.backward().map(drop)),
                    ("backward_retain", y.backward_retain().map(drop)),
                    ("leaf", v.backward().map(drop)),
                    ("one element that is no scalar", y.narrow(0, 0, 1).unwrap().backward().map(drop)),
                    ("grad", s.grad(y, &[v]).map(drop)),
                    ("hessian", s.hessian(y, v).map(drop)),
                ]
            },
        },
        Row {
            what: "a step whose loss is no scalar",
            kind: "Gradient",
            says: "end it with mean() or sum()",
            run: |d, _| {
                let Parts { params, p, .. } = parts(d);
                let mut step =
                    TrainStep::new(&params, Optimizer::sgd(0.1), |v| v[0].session().param(&p)?.mul(v[0]));
                vec![("run", step.run(&[(&x()).into()]))]
            },
        },
        Row {
            what: "a model of other parameters than the step's",
            kind: "Gradient",
            says: "make model and step from the same Params",
            run: |d, _| {
                let (mine, other) = (parts(d), parts(d));
                let mut step = TrainStep::new(&mine.params, Optimizer::sgd(0.1), |v| {
                    v[0].session().param(&other.p)?.mul(v[0])?.mean()
                });
                let s = Session::eager(d);
                let grads = s.param(&other.p).unwrap().sum().unwrap().backward().unwrap();
                let eager = Optimizer::sgd(0.1).step(&mine.params, grads);
                vec![("run", step.run(&[(&x()).into()])), ("step", eager)]
            },
        },
        Row {
            what: "one number of indices",
            kind: "DType",
            says: "indices are read with indices()",
            run: |d, _| {
                let s = Session::eager(d);
                vec![("item", s.variable(&x()).unwrap().argmax(&[0], false).unwrap().item().map(drop))]
            },
        },
        Row {
            what: "a walk back where nothing requires a gradient",
            kind: "Gradient",
            says: "requires a gradient",
            run: |d, _| {
                let s = Session::eager(d);
                let v = s.variable(&x()).unwrap();
                let frozen = {
                    let mut params = Params::new(d, 1);
                    let p = params.value("p", &x()).unwrap();
                    p.set_trainable(false);
                    s.param(&p).unwrap()
                };
                let i = Session::inference(d);
                let seed = x();
                vec![
                    ("input", s.input(&x()).unwrap().sum().unwrap().backward().map(drop)),
                    ("leaf", s.input(&Tensor::scalar(1.0f32)).unwrap().backward().map(drop)),
                    ("constant", s.scalar(1.0).unwrap().backward().map(drop)),
                    ("frozen parameter", frozen.sum().unwrap().backward().map(drop)),
                    ("detached", v.detach().unwrap().sum().unwrap().backward().map(drop)),
                    (
                        "detached, with a seed",
                        v.exp().unwrap().detach().unwrap().backward_from(&seed).map(drop),
                    ),
                    ("indices", v.argmax(&[0], false).unwrap().backward().map(drop)),
                    ("inference", i.variable(&x()).unwrap().sum().unwrap().backward().map(drop)),
                    ("random", s.uniform(&[]).unwrap().backward().map(drop)),
                ]
            },
        },
        Row {
            what: "the gradient by what requires none",
            kind: "Gradient",
            says: "requires no gradient",
            run: |d, _| {
                let s = Session::eager(d);
                let v = s.variable(&x()).unwrap();
                let (cut, fixed) = (v.detach().unwrap(), s.input(&x()).unwrap());
                let y = v.mul(cut).unwrap().mul(fixed).unwrap().sum().unwrap();
                vec![
                    ("detached", s.grad(y, &[cut]).map(drop)),
                    ("input", s.grad(y, &[v, fixed]).map(drop)),
                    ("jvp", s.jvp(y, &[(cut, fixed)]).map(drop)),
                    ("jacobian", s.jacobian(y, cut).map(drop)),
                    ("hvp", s.hvp(y, &[(cut, fixed)]).map(drop)),
                    ("hook", cut.hook(|g| Ok(g.clone()))),
                ]
            },
        },
        Row {
            what: "the gradient by what the value does not depend on",
            kind: "Gradient",
            says: "not depend on",
            run: |d, _| {
                let s = Session::eager(d);
                let (v, w) = (s.variable(&x()).unwrap(), s.variable(&x()).unwrap());
                let Parts { params, p, .. } = parts(d);
                let loss = s.param(&p).unwrap().sum().unwrap();
                let mut step =
                    TrainStep::new(&params, Optimizer::sgd(0.1), |v| v[0].session().param(&p)?.sum());
                vec![
                    ("grad", s.grad(v.sum().unwrap(), &[w]).map(drop)),
                    ("optimizer", Optimizer::sgd(0.1).step(&params, loss.backward().unwrap())),
                    ("compiled step", step.run(&[(&x()).into()])),
                ]
            },
        },
        Row {
            what: "a seed of another shape",
            kind: "Shapes",
            says: "seed",
            run: |d, _| {
                let s = Session::eager(d);
                let v = s.variable(&x()).unwrap();
                let (y, three) = (v.exp().unwrap(), t(&[3], &[1.0; 3]));
                let seed = s.input(&three).unwrap();
                vec![
                    ("backward_from", y.backward_from(&three).map(drop)),
                    ("several", s.backward_from(&[(y, &x()), (y, &three)]).map(drop)),
                    ("vjp", s.vjp(&[(y, seed)], &[v]).map(drop)),
                ]
            },
        },
        Row {
            what: "a program with an input missing, or one too many",
            kind: "Arity",
            says: "takes 1 inputs",
            run: |d, _| {
                let mut parts = parts(d);
                let s = Session::eager(d);
                let (v, here) = (s.input(&x()).unwrap(), AnyBuffer::upload(d, &x()).unwrap());
                let graph = parts.function.graph().clone();
                let two: [AnyTensor<f32>; 2] = [x().into(), x().into()];
                vec![
                    ("call without", parts.function.call::<f32>(&[]).map(drop)),
                    ("call with two", parts.function.call(&two).map(drop)),
                    ("call_on without", parts.function.call_on(&[]).map(drop)),
                    ("call_on with two", parts.function.call_on(&[&here, &here]).map(drop)),
                    ("run without", graph.run::<f32>(d, &[]).map(drop)),
                    ("run with two", graph.run(d, &two).map(drop)),
                    ("replay without", s.replay(&graph, &[]).map(drop)),
                    ("replay with two", s.replay(&graph, &[v, v]).map(drop)),
                ]
            },
        },
        Row {
            what: "a program with an input of another shape",
            kind: "Argument",
            says: "input 0 has shape [3], the program takes [2]",
            run: |d, _| {
                let mut parts = parts(d);
                let s = Session::eager(d);
                let three = t(&[3], &[1.0; 3]);
                let (v, here) = (s.input(&three).unwrap(), AnyBuffer::upload(d, &three).unwrap());
                let graph = parts.function.graph().clone();
                vec![
                    ("call", parts.function.call(&[three.clone().into()]).map(drop)),
                    ("call_on", parts.function.call_on(&[&here]).map(drop)),
                    ("run", graph.run(d, &[three.clone().into()]).map(drop)),
                    ("replay", s.replay(&graph, &[v]).map(drop)),
                ]
            },
        },
        Row {
            what: "a program with indices for numbers",
            kind: "DType",
            says: "needs f32",
            run: |d, _| {
                let mut parts = parts(d);
                let s = Session::eager(d);
                let whole = Tensor::new(&[2], vec![0u32, 1]).unwrap();
                let here = AnyBuffer::upload_indices(d, &whole).unwrap();
                let v = s.labels(&whole).unwrap();
                let graph = parts.function.graph().clone();
                let given: AnyTensor<f32> = AnyTensor::Idx(whole.clone());
                vec![
                    ("call", parts.function.call(std::slice::from_ref(&given)).map(drop)),
                    ("call_on", parts.function.call_on(&[&here]).map(drop)),
                    ("run", graph.run(d, &[given]).map(drop)),
                    ("replay", s.replay(&graph, &[v]).map(drop)),
                    ("step", parts.step.run(&[(&whole).into()])),
                ]
            },
        },
        Row {
            what: "memory that was released",
            kind: "Released",
            says: "was released",
            run: |d, other| {
                let mut parts = parts(d);
                let s = Session::eager(d);
                parts.step.run(&[(&x()).into()]).unwrap();
                let steps = parts.step.optimizer().steps();
                let (v, recorded) = (s.variable(&x()).unwrap(), s.param(&parts.p).unwrap());
                let grads = |s: &Session| {
                    let [p, q] = [&parts.p, &parts.q].map(|p| s.param(p).unwrap());
                    p.mul(q).unwrap().sum().unwrap().backward_retain().unwrap()
                };
                let early = grads(&s);
                let given = AnyBuffer::upload(d, &x()).unwrap();
                given.buffer().release();
                v.buffer().unwrap().buffer().release();
                // The memory of a parameter that is compiled into a step and a program.
                assert!(parts.p.buffer().buffer().release());
                let q = parts.q.get::<f32>().unwrap();
                let mut optimizer = Optimizer::adam(0.5);
                let answers = vec![
                    ("step", parts.step.run(&[(&x()).into()])),
                    ("again", parts.step.again()),
                    ("call", parts.function.call(&[x().into()]).map(drop)),
                    ("call_on", parts.function.call_on(&[&given]).map(drop)),
                    ("run", parts.function.graph().run(d, &[x().into()]).map(drop)),
                    ("optimizer", optimizer.step(&parts.params, early)),
                    ("get", parts.p.get::<f32>().map(drop)),
                    ("set", parts.p.set(&x())),
                    ("set_from", parts.p.set_from(&AnyBuffer::upload(d, &x()).unwrap())),
                    ("fingerprint", parts.params.fingerprint().map(drop)),
                    ("to", parts.params.to(other)),
                    ("op on a parameter", recorded.exp().map(drop)),
                    ("op", v.exp().map(drop)),
                    ("value", v.value::<f32>().map(drop)),
                    ("buffer", s.buffer(&given).and_then(|v| v.exp()).map(drop)),
                    ("to_device", given.to_device(d).map(drop)),
                    ("download", given.buffer().download().map(drop)),
                ];
                // Nothing else changed, and no step was counted.
                assert_eq!(parts.q.get::<f32>().unwrap(), q);
                assert_eq!((parts.step.optimizer().steps(), optimizer.steps()), (steps, 0));
                answers
            },
        },
        Row {
            what: "a step of which the last parameter was released",
            kind: "Released",
            says: "parameter q: the buffer was released",
            run: |d, _| {
                let Parts { params, p, q, .. } = parts(d);
                let s = Session::eager(d);
                let loss = s.param(&p).unwrap().mul(s.param(&q).unwrap()).unwrap().sum().unwrap();
                let grads = loss.backward().unwrap();
                q.buffer().buffer().release();
                let mut optimizer = Optimizer::adam(0.5);
                let step = optimizer.step(&params, grads);
                // Not even those before it have changed.
                assert_eq!(p.get::<f32>().unwrap().data(), [0.5, -1.0]);
                assert_eq!(optimizer.steps(), 0);
                vec![("step", step)]
            },
        },
        Row {
            what: "one more step after inputs that did not all get there",
            kind: "Argument",
            says: "call run with inputs",
            run: |d, _| {
                let mut params = Params::new(d, 1);
                let w = params.value("w", &t(&[3, 2], &[0.5; 6])).unwrap();
                let mut step = TrainStep::new(&params, Optimizer::sgd(0.1), |v| {
                    v[0].session().param(&w)?.index_select(0, v[1])?.mul(v[0])?.sum()
                });
                let (good, bad) = (Tensor::new(&[1], vec![2u32]), Tensor::new(&[1], vec![3u32]));
                let fresh = step.again();
                step.run(&[(&x()).into(), (&good.unwrap()).into()]).unwrap();
                let (before, steps) = (params.fingerprint().unwrap(), step.optimizer().steps());
                let e = step.run(&[(&t(&[2], &[9.0, 9.0])).into(), (&bad.unwrap()).into()]).unwrap_err();
                assert!(matches!(e.kind(), ErrorKind::Index { .. }), "{e}");
                let again = step.again();
                assert_eq!((params.fingerprint().unwrap(), step.optimizer().steps()), (before, steps));
                assert!(step.loss().is_ok(), "that of the last step");
                vec![("again", again), ("again before any", fresh)]
            },
        },
        Row {
            what: "the session inside its tape's closure",
            kind: "Unsupported",
            says: "lent to with_tape",
            run: |d, _| {
                let s = Session::eager(d);
                let v = s.variable(&x()).unwrap();
                s.with_tape(|_| {
                    Ok(vec![
                        ("input", s.input(&x()).map(drop)),
                        ("op", v.exp().map(drop)),
                        ("value", v.value::<f32>().map(drop)),
                        ("backward", v.backward().map(drop)),
                        ("grad", s.vjp(&[], &[v]).map(drop)),
                        ("with_tape", s.with_tape(|_| Ok(()))),
                        ("fresh", s.fresh(|_| Ok(()))),
                    ])
                })
                .unwrap()
            },
        },
    ]
}

fn kind_of(e: &Error) -> String {
    format!("{:?}", e.kind()).chars().take_while(|c| c.is_alphanumeric()).collect()
}

fn holds(d: &Device, other: &Device) {
    let (mut answers, mut wrong) = (0, Vec::new());
    for Row { what, run, kind, says } in table() {
        let live = d.memory().live;
        for (entry, answer) in run(d, other) {
            answers += 1;
            match answer {
                Ok(()) => wrong.push(format!("{what}, through {entry}: no error")),
                Err(e) if kind_of(&e) == kind && e.clone().without_location().to_string().contains(says) => {}
                Err(e) => wrong.push(format!(
                    "{what}, through {entry}: {e} ({}), should be {kind} and say `{says}`",
                    kind_of(&e)
                )),
            }
        }
        if d.memory().live != live {
            wrong.push(format!("{what} left {} bytes behind", d.memory().live as i64 - live as i64));
        }
    }
    assert!(wrong.is_empty(), "{} of {answers} answers on {d}:\n{}", wrong.len(), wrong.join("\n"));
    println!("{answers} answers on {d}");
}

#[test]
fn what_cannot_be_is_answered() {
    let fake = Fake::computing(2, 64 << 20);
    let [first, second] = [0, 1].map(|i| Device::from_cuda(fake.open_at(i).unwrap()));
    holds(&device(), &first);
    holds(&first, &device());
    // Another ordinal.
    holds(&first, &second);
    drop((first, second));
    assert_eq!((fake.misuses(), fake.live()), (vec![], Live::default()));
}

#[test]
fn cuda_what_cannot_be_is_answered() {
    if let Some((_turn, gpu)) = dittograd_check::gpu() {
        holds(&gpu, &device());
        holds(&device(), &gpu);
    }
}

/// What looks odd and is right.
#[test]
fn what_can_be_works() {
    let fake = Fake::computing(1, 64 << 20);
    for d in [device(), Device::from_cuda(fake.open().unwrap())] {
        let s = Session::eager(&d);
        // A leaf is its own gradient's seed, and a walk that keeps values can be made twice.
        let leaf = s.variable(&Tensor::scalar(3.0f32)).unwrap();
        let own = leaf.backward().unwrap();
        assert_eq!(own.var(leaf).unwrap().to_tensor::<f32>().unwrap().data(), [1.0]);
        let y = leaf.mul(leaf).unwrap();
        for _ in 0..2 {
            let twice = y.backward_retain().unwrap();
            assert_eq!(twice.var(leaf).unwrap().to_tensor::<f32>().unwrap().data(), [6.0]);
        }
        // Gradients are of their epoch.
        let grads = y.backward().unwrap();
        s.reset();
        let new = s.variable(&Tensor::scalar(3.0f32)).unwrap();
        assert!(grads.var(new).is_none());
        // A detached value is one; what goes round it still flows.
        let v = s.variable(&x()).unwrap();
        let loss = v.mul(v.detach().unwrap()).unwrap().sum().unwrap();
        let grads = loss.backward().unwrap();
        assert_eq!(grads.var(v).unwrap().to_tensor::<f32>().unwrap().data(), [1.0, 2.0]);
    }
}

/// Everything is dropped in an order in which nothing should be: what is used lives on, and then nothing is left.
#[test]
fn things_may_be_dropped_in_any_order() {
    let fake = Fake::computing(1, 64 << 20);
    for order in 0..4 {
        let d = Device::from_cuda(fake.open().unwrap());
        let Parts { params, p, q, mut step, mut function } = parts(&d);
        let s = Session::eager(&d);
        let v = s.param(&p).unwrap().add(s.param(&q).unwrap()).unwrap();
        let value = v.buffer().unwrap();
        let grads = v.sum().unwrap().backward_retain().unwrap();
        let part = value.part(1, Shape::new(&[1]).unwrap()).unwrap();
        step.run(&[(&x()).into()]).unwrap();
        drop(d);
        match order {
            0 => drop((params, p, q)),
            1 => drop((s, value)),
            2 => drop(step),
            _ => {}
        }
        assert_eq!(function.call(&[x().into()]).unwrap().len(), 1);
        drop(function);
        assert_eq!(part.to_tensor::<f32>().unwrap().data(), [1.0]);
        drop(grads);
        drop(part);
    }
    // Moved out of the loop in its order, with what a case kept.
    assert_eq!((fake.misuses(), fake.live()), (vec![], Live::default()));
}

/// Asserts at compile time: a session is for one thread at a time and may move; its handles stay; values, parameters, devices
/// and programs are for all.
#[test]
fn threads_are_told_apart_by_the_compiler() {
    trait NotSync<A> {
        fn stays() {}
    }
    struct IsSync;
    impl<T: ?Sized> NotSync<()> for T {}
    impl<T: ?Sized + Sync> NotSync<IsSync> for T {}
    trait NotSend<A> {
        fn stays() {}
    }
    struct IsSend;
    impl<T: ?Sized> NotSend<()> for T {}
    impl<T: ?Sized + Send> NotSend<IsSend> for T {}
    <Session as NotSync<_>>::stays();
    <Var<'static> as NotSend<_>>::stays();
    fn moves<T: Send>() {}
    fn shared<T: Send + Sync>() {}
    moves::<Session>();
    shared::<Device>();
    shared::<Buffer>();
    shared::<AnyBuffer>();
    shared::<Param>();
    shared::<Params>();
    shared::<Tensor<f32>>();
    shared::<Error>();
}

/// A session that was begun on one thread goes on on another, and parameters are read by many, with the same bits: on a driver
/// each thread needs its context made current.
#[test]
fn work_moves_between_threads() {
    let fake = Fake::computing(1, 64 << 20);
    for d in [device(), Device::from_cuda(fake.open().unwrap())] {
        let Parts { params, p, q, .. } = parts(&d);
        let s = Session::eager(&d);
        s.param(&p).unwrap().exp().unwrap();
        let (all, a, b) = (&params, &p, &q);
        let s = std::thread::scope(|scope| {
            let there = scope.spawn(move || {
                let loss = s.param(a).unwrap().mul(s.param(b).unwrap()).unwrap().sum().unwrap();
                Optimizer::sgd(0.5).step(all, loss.backward().unwrap()).unwrap();
                s.reset();
                s
            });
            there.join().unwrap()
        });
        let (a, b) = (data(s.param(&p).unwrap()), data(s.param(&q).unwrap()));
        assert_eq!((a, b), (vec![0.0, -2.0], vec![0.75, 2.5]));
        drop(s);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let s = Session::eager(&d);
                        let sum = s.param(&p).unwrap().add(s.param(&q).unwrap()).unwrap();
                        assert_eq!(data(sum), [0.75, 0.5]);
                    }
                });
            }
        });
        // The last one to hold the device is a thread that never used it.
        std::thread::scope(|scope| {
            scope.spawn(move || drop((params, p, q, d)));
        });
    }
    assert_eq!((fake.misuses(), fake.live()), (vec![], Live::default()));
}

/// What a session was to assign when it ended, on a device that fails: the next call tells.
#[test]
fn an_assignment_that_failed_at_the_end_is_told() {
    let fake = Fake::computing(1, 64 << 20);
    let d = Device::from_cuda(fake.open().unwrap());
    let mut params = Params::new(&d, 1);
    let count = params.zeros("count", &[2]).unwrap();
    count.set_trainable(false);
    let s = Session::eager(&d);
    let one = |s: &Session| s.assign(&count, s.param(&count).unwrap().add_scalar(1.0).unwrap()).unwrap();
    one(&s);
    fake.fail_symbol("cuMemcpyDtoDAsync_v2", 1, 701, false);
    s.reset();
    let e = s.param(&count).unwrap_err();
    assert!(e.to_string().contains("cuMemcpyDtoDAsync_v2"), "{e}");
    one(&s);
    fake.fail_symbol("cuMemcpyDtoDAsync_v2", 1, 701, false);
    drop(s);
    let e = count.get::<f32>().unwrap_err();
    assert!(e.to_string().contains("cuMemcpyDtoDAsync_v2"), "{e}");
    assert_eq!(count.get::<f32>().unwrap().data(), [0.0, 0.0]);
}
