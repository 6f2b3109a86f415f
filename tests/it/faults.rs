//! Every driver call and every allocation of a program of all parts, failing in turn. On a driver that computes on the host
//! bits can be compared too: a call that fails once costs an error and nothing else.

use crate::support::{device, t};
use dittograd::device::cuda::fake::{Fake, Live};
use dittograd::device::{AnyBuffer, Buffer, Meta};
use dittograd::error::ErrorKind;
use dittograd::graph::{Function, Graph};
use dittograd::prelude::*;
use std::cell::Cell;
use std::sync::Arc;

/// Codes after which a device goes on: invalid value, out of memory, not ready, out of resources.
const PASSING: [i32; 4] = [1, 2, 600, 701];
/// Codes after which it does not: uncorrectable ECC, illegal address, launch failure.
const LASTING: [i32; 3] = [214, 700, 719];
/// Memory of a fake device: enough.
const ENOUGH: usize = 64 << 20;

fn x() -> Tensor<f32> {
    t(&[4, 3], &[0.5, -1.0, 2.0, 1.5, 0.25, -0.75, 1.0, 1.0, -2.0, 0.0, 0.5, 0.125])
}

fn y() -> Tensor<u32> {
    Tensor::new(&[4], vec![0, 1, 1, 0]).unwrap()
}

type Loss = Box<dyn for<'s> Fn(&[Var<'s>]) -> Result<Var<'s>>>;

/// The loss of a network, with draws.
fn loss_of(net: &Arc<Mlp>) -> Loss {
    let net = net.clone();
    Box::new(move |v| net.forward(v[0].dropout(0.25)?)?.cross_entropy(v[1]))
}

/// The parts of a program, as far as they are there.
#[derive(Default)]
struct World {
    device: Option<Device>,
    model: Option<(Params, Arc<Mlp>)>,
    session: Option<Session>,
    optimizer: Option<Optimizer>,
    step: Option<TrainStep<Loss>>,
    function: Option<Function>,
}

/// How often what failed is tried again, and what is done before.
struct Tries<'a> {
    most: usize,
    before: &'a dyn Fn(usize),
    seen: Vec<Error>,
}

impl<'a> Tries<'a> {
    fn new(most: usize, before: &'a dyn Fn(usize)) -> Tries<'a> {
        Tries { most, before, seen: Vec::new() }
    }

    fn run<T>(&mut self, mut f: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            match f() {
                Ok(value) => return Ok(value),
                Err(e) => self.seen.push(e.clone()),
            }
            if self.seen.len() > self.most {
                return Err(self.seen[self.seen.len() - 1].clone());
            }
            (self.before)(self.seen.len());
        }
    }
}

/// Training step by step and compiled, a program, and a checkpoint; all bits that come out. What fails is tried again, on
/// the same objects.
fn program(w: &mut World, tries: &mut Tries<'_>, open: &dyn Fn() -> Result<Device>) -> Result<Vec<String>> {
    let mut bits = Vec::new();
    let device = tries.run(open)?;
    w.device = Some(device.clone());
    w.model = Some(tries.run(|| {
        let mut params = Params::new(&device, 7);
        let net = Mlp::new(&mut params, &[3, 5, 2])?;
        Ok((params, Arc::new(net)))
    })?);
    let Some((params, net)) = &w.model else { unreachable!() };
    let session = w.session.insert(Session::eager_seeded(&device, 3));
    let optimizer = w.optimizer.insert(Optimizer::adam(0.1).clip_norm(1.0));
    let loss = loss_of(net);
    for _ in 0..2 {
        let calls = session.random_calls();
        let item = tries.run(|| {
            session.reset();
            session.set_random_calls(calls);
            let loss = loss(&[session.input(&x())?, session.labels(&y())?])?;
            let item = loss.item()?;
            optimizer.step(params, loss.backward()?)?;
            Ok(item)
        })?;
        bits.push(format!("{:08x}", item.to_bits()));
    }
    session.reset();
    bits.push(tries.run(|| params.fingerprint())?);

    let step = w.step.insert(TrainStep::new(params, Optimizer::adamw(0.05), loss_of(net)).seeded(5));
    for _ in 0..2 {
        tries.run(|| step.run(&[(&x()).into(), (&y()).into()]))?;
        bits.push(format!("{:08x}", tries.run(|| step.loss())?.to_bits()));
    }
    bits.push(tries.run(|| params.fingerprint())?);

    let takes = [Meta::f32(x().shape())];
    let graph = tries
        .run(|| Graph::trace(&device, &takes, |_, v| Ok(vec![net.forward(v[0])?.softmax()?.scale(0.5)?])))?;
    let function = w.function.insert(tries.run(|| graph.compile(&device))?);
    let out = tries.run(|| function.call(&[x().into()]))?;
    bits.push(format!("{:?}", out[0].num()?.data()));
    let given = tries.run(|| AnyBuffer::upload(&device, &x()))?;
    let out = tries.run(|| function.call_on(&[&given])?[0].to_tensor::<f32>())?;
    bits.push(format!("{:?}", out.data()));
    given.buffer().release();

    let checkpoint = tries.run(|| {
        let mut checkpoint = Checkpoint::new("mlp", params)?;
        checkpoint.take(&*step)?;
        Ok(checkpoint)
    })?;
    let (others, net) = tries.run(|| {
        let mut params = Params::new(&device, 8);
        let net = Mlp::new(&mut params, &[3, 5, 2])?;
        Ok((params, Arc::new(net)))
    })?;
    let mut other = TrainStep::new(&others, Optimizer::adamw(0.05), loss_of(&net)).seeded(5);
    tries.run(|| checkpoint.restore(&others, &mut other))?;
    tries.run(|| other.run(&[(&x()).into(), (&y()).into()]))?;
    bits.push(tries.run(|| others.fingerprint())?);
    drop((other, others, net));
    tries.run(|| device.collect())?;
    tries.run(|| device.synchronize())?;
    Ok(bits)
}

fn on(fake: &Fake, ordinal: usize) -> impl Fn() -> Result<Device> {
    let fake = fake.clone();
    move || Ok(Device::from_cuda(fake.open_at(ordinal)?))
}

/// The bits of the program, without faults, and the driver calls it makes.
fn undisturbed() -> (Vec<String>, u64) {
    let none = |_| {};
    let cpu = program(&mut World::default(), &mut Tries::new(0, &none), &|| Ok(device())).unwrap();
    let fake = Fake::computing(1, ENOUGH);
    let bits = program(&mut World::default(), &mut Tries::new(0, &none), &on(&fake, 0)).unwrap();
    assert_eq!(bits, cpu, "on the fake driver and on the CPU");
    assert_eq!((fake.misuses(), fake.live()), (vec![], Live::default()));
    (bits, fake.calls())
}

/// Whether a driver's error says which call on which device it was; of memory also how much was wanted.
fn is_named(e: &Error, symbol: &str, device: &str) -> bool {
    let text = e.to_string();
    let takes_memory = ["cuMemAlloc_v2", "cuMemHostAlloc"].contains(&symbol);
    text.contains(device)
        && match e.kind() {
            ErrorKind::Cuda { code: 2, .. } if takes_memory => false,
            ErrorKind::Cuda { call, .. } => *call == symbol && text.contains(symbol),
            ErrorKind::OutOfMemory { bytes, .. } => *bytes > 0 && takes_memory,
            // Where it could not be returned, as in a drop, the next call tells.
            ErrorKind::Poisoned { first } => first.contains(symbol),
            _ => false,
        }
}

/// Calls that take memory of the device, and are made again once what is cached was returned.
const TAKE_MEMORY: [&str; 3] = ["cuMemAlloc_v2", "cuModuleLoadData", "cuGraphInstantiateWithFlags"];

/// One call fails once: one error that names it, or none where the library knows another way; everything that is tried
/// again on the same objects works, and the bits are those of a run without faults.
fn one_failure(code: i32, calls: impl Iterator<Item = u64>) {
    let (want, count) = undisturbed();
    let (mut swept, mut absorbed) = (0, 0);
    for k in calls.take_while(|k| *k <= count) {
        let fake = Fake::computing(1, ENOUGH);
        fake.fail_call(k, code);
        let none = |_| {};
        let (mut world, mut tries) = (World::default(), Tries::new(1, &none));
        let bits = program(&mut world, &mut tries, &on(&fake, 0));
        let symbol = fake.failed();
        let what = format!("call {k}, {symbol:?}, failed once with {code}: {:?}", tries.seen);
        // The end of a list of parameters is told by the same code.
        if (symbol, code) == (Some("cuFuncGetParamInfo"), 1) {
            continue;
        }
        assert_eq!(bits.as_ref(), Ok(&want), "{what}");
        drop(world);
        let symbol = fake.failed().unwrap_or_else(|| panic!("{what}: it was never made"));
        assert_eq!((fake.misuses(), fake.live()), (vec![], Live::default()), "{what}");
        match &tries.seen[..] {
            [e] => assert!(is_named(e, symbol, "cuda:0"), "{what}"),
            // Cached memory was returned and the allocation made; or it was in a drop, and the next call tells.
            [] if code == 2 && TAKE_MEMORY.contains(&symbol) => absorbed += 1,
            [] => {
                let told = fake.open().and_then(|cuda| cuda.synchronize()).expect_err(&what);
                assert!(is_named(&told, symbol, "cuda:0"), "{what}: {told}");
                absorbed += 1;
            }
            _ => panic!("{what}: several errors"),
        }
        swept += 1;
    }
    println!(
        "{swept} of {count} calls failed once with code {code}, {absorbed} of them without an error at once"
    );
    assert!(swept > 100, "{swept}");
}

#[test]
fn a_call_that_fails_once_with_invalid_value() {
    one_failure(1, 1..);
}

#[test]
fn a_call_that_fails_once_with_out_of_memory() {
    one_failure(2, 1..);
}

#[test]
fn a_call_that_fails_once_with_other_codes() {
    for (i, code) in PASSING[2..].iter().enumerate() {
        one_failure(*code, (1 + i as u64..).step_by(4));
    }
}

/// All calls fail from one on, until the fault is gone: errors, no leak, and then the bits of a run without faults.
#[test]
fn calls_that_fail_for_a_while() {
    let (want, count) = undisturbed();
    let mut swept = 0;
    for (i, code) in PASSING.into_iter().enumerate() {
        for k in (1 + i as u64..=count).step_by(6) {
            let fake = Fake::computing(1, ENOUGH);
            fake.fail_from(k, code);
            let first = Cell::new(None);
            let before = |errors| {
                first.set(first.get().or(fake.failed()));
                if errors == 2 {
                    fake.recover();
                }
            };
            // Errors of calls that could not return theirs come one by one.
            let (mut world, mut tries) = (World::default(), Tries::new(100, &before));
            let bits = program(&mut world, &mut tries, &on(&fake, 0));
            let what = format!("calls from {k} on failed with {code}: {:?}", tries.seen);
            if first.get() == Some("cuFuncGetParamInfo") && code == 1 {
                continue;
            }
            assert_eq!(bits.as_ref(), Ok(&want), "{what}");
            drop(world);
            assert_eq!((fake.misuses(), fake.live()), (vec![], Live::default()), "{what}");
            if let (Some(e), Some(symbol)) = (tries.seen.first(), first.get()) {
                assert!(is_named(e, symbol, "cuda:0"), "{what}");
            }
            assert!(tries.seen.iter().all(|e| e.to_string().contains("cuda:0")), "{what}");
            swept += 1;
        }
    }
    println!("{swept} runs with calls that failed for a while");
}

/// Every call that a program can make on a device that is no more.
fn calls_on(w: &mut World, fake: &Fake) -> Vec<(&'static str, Result<()>)> {
    let mut all: Vec<(&'static str, Result<()>)> = vec![("open", fake.open().map(drop))];
    let Some(device) = &w.device else { return all };
    all.push(("alloc", device.alloc(1).map(drop)));
    all.push(("upload", Buffer::upload(device, &[1.0]).map(drop)));
    all.push(("zeros", AnyBuffer::zeros(device, x().shape()).map(drop)));
    all.push(("collect", device.collect().map(drop)));
    all.push(("synchronize", device.synchronize()));
    if let Some((params, net)) = &w.model {
        all.push(("fingerprint", params.fingerprint().map(drop)));
        all.push(("checkpoint", Checkpoint::new("mlp", params).map(drop)));
        if let Some(p) = params.iter().next() {
            all.push(("get", p.get::<f32>().map(drop)));
            all.push(("set", p.set(&Tensor::full(p.shape(), 1.0f32))));
            let s = Session::eager(device);
            all.push(("eager op", s.param(p).and_then(|p| p.exp()).map(drop)));
            all.push(("backward", s.param(p).and_then(|p| p.backward_from(&p.value()?)).map(drop)));
        }
        let (net, takes) = (net.clone(), [Meta::f32(x().shape())]);
        let graph = Graph::trace(device, &takes, |_, v| Ok(vec![net.forward(v[0])?]));
        all.push(("compile", graph.and_then(|g| g.compile(device)).map(drop)));
    }
    if let Some(session) = &w.session {
        all.push(("input", session.input(&x()).map(drop)));
    }
    if let Some(step) = &mut w.step {
        if step.plan().is_ok() {
            all.push(("loss", step.loss().map(drop)));
            all.push(("again", step.again()));
        }
        all.push(("step", step.run(&[(&x()).into(), (&y()).into()])));
    }
    if let Some(function) = &mut w.function {
        all.push(("call", function.call(&[x().into()]).map(drop)));
    }
    all
}

/// A device that dies at one of its calls: an error that names the call, from then on the same first cause from every call,
/// nothing left behind when all is dropped, in any order; another device does not notice.
fn dies(code: i32, calls: impl Iterator<Item = u64>) {
    let (want, count) = undisturbed();
    let mut swept = 0;
    for k in calls.take_while(|k| *k <= count) {
        let fake = Fake::computing(2, ENOUGH);
        let none = |_| {};
        // Alive before and after, and used in between.
        let mut other = World::default();
        program(&mut other, &mut Tries::new(0, &none), &on(&fake, 1)).unwrap();
        fake.fail_device(0, k, code);
        let mut world = World::default();
        let result = program(&mut world, &mut Tries::new(0, &none), &on(&fake, 0));
        let what = format!("device died with {code} at its call {k}, {:?}: {result:?}", fake.failed());
        let Some(symbol) = fake.failed() else {
            // Only calls that concern the device count, so that it may outlive the program, but not the drop.
            assert_eq!(result.as_ref(), Ok(&want), "{what}");
            drop(world);
            assert_eq!((fake.misuses(), fake.live().contexts), (vec![], 1), "{what}");
            break;
        };
        let e = result.expect_err(&what);
        assert!(is_named(&e, symbol, "cuda:0"), "{what}");
        for (call, result) in calls_on(&mut world, &fake) {
            let later = result.expect_err(call);
            let ErrorKind::Poisoned { first } = later.kind() else { panic!("{what}: {call} says {later}") };
            let is_first = first.contains(symbol) && first.contains(&format!("code {code}"));
            assert!(is_first && later.op() == "cuda:0", "{what}: {call} says {later}");
        }
        // The other one has the parts it had, and makes new ones.
        let step = other.step.as_mut().unwrap();
        step.run(&[(&x()).into(), (&y()).into()]).unwrap();
        drop(std::mem::take(&mut other));
        let again = program(&mut other, &mut Tries::new(0, &none), &on(&fake, 1));
        assert_eq!(again.as_ref(), Ok(&want), "{what}");
        // The device first, what is on it later.
        world.device = None;
        if k % 2 == 0 {
            world.model = None;
        }
        drop((world, other));
        assert_eq!((fake.misuses(), fake.live()), (vec![], Live::default()), "{what}");
        swept += 1;
    }
    println!("a device died with code {code} at {swept} calls");
    assert!(swept > 20, "{swept}");
}

#[test]
fn a_device_that_dies_of_an_illegal_address() {
    dies(LASTING[1], (1..).step_by(2));
}

#[test]
fn a_device_that_dies_of_other_causes() {
    dies(LASTING[0], (2..).step_by(12));
    dies(LASTING[2], (3..).step_by(12));
}

/// Something that takes memory: made on a device, it can be run again after it failed, and gives bits.
type Operation<'d> = Box<dyn FnMut() -> Result<String> + 'd>;
type Make = for<'d> fn(&'d Device) -> Operation<'d>;

/// The exact numbers of a tensor.
fn exact(t: &Tensor<f32>) -> String {
    format!("{:?}", t.data())
}

fn model(device: &Device) -> (Params, Arc<Mlp>) {
    let mut params = Params::new(device, 7);
    let net = Mlp::new(&mut params, &[3, 5, 2]).unwrap();
    (params, Arc::new(net))
}

/// What takes memory, by name. An eager session keeps what was recorded before a failure, for handles that are still good;
/// where one is used it is reset.
fn operations() -> Vec<(&'static str, Make)> {
    fn named(name: &'static str, make: Make) -> (&'static str, Make) {
        (name, make)
    }
    vec![
        named("open", |d| {
            Box::new(move || {
                let mut params = Params::new(d, 7);
                Mlp::new(&mut params, &[3, 5, 2])?;
                let s = Session::eager(d);
                let c = s.constant(&x())?.value::<f32>()?;
                Ok(params.fingerprint()? + &exact(&c))
            })
        }),
        named("data", |d| {
            let data = data::spirals(7, 24, 3).unwrap();
            let mut batches = data::Batches::new(data, 6, 1).unwrap();
            let s = Session::eager(d);
            Box::new(move || {
                let mut bits = String::new();
                for step in 0..3 {
                    let (x, y) = batches.batch(step)?;
                    let (x, y) = (s.input(x.num()?), s.labels(y.idx()?));
                    let read = || -> Result<String> {
                        Ok(format!("{} {:?}", exact(&x?.value()?), y?.indices()?.data()))
                    };
                    let read = read();
                    s.reset();
                    bits.push_str(&read?);
                }
                Ok(bits)
            })
        }),
        named("forward", |d| {
            let (_params, net) = model(d);
            let s = Session::eager_seeded(d, 3);
            Box::new(move || {
                s.set_random_calls(0);
                let loss = || loss_of(&net)(&[s.input(&x())?, s.labels(&y())?])?.item();
                let item = loss();
                s.reset();
                Ok(format!("{:?}", item?))
            })
        }),
        named("backward", |d| {
            let (params, net) = model(d);
            let s = Session::eager_seeded(d, 3);
            Box::new(move || {
                s.set_random_calls(0);
                let grads = || loss_of(&net)(&[s.input(&x())?, s.labels(&y())?])?.backward();
                let grads = grads();
                s.reset();
                let grads = grads?;
                let read = |p: &Param| grads.param(p).unwrap().to_tensor::<f32>();
                let all = params.iter().map(read).collect::<Result<Vec<_>>>()?;
                Ok(all.iter().map(exact).collect())
            })
        }),
        named("derivatives", |d| {
            Box::new(move || {
                let s = Session::eager(d);
                let x = s.variable(&t(&[3], &[0.5, -1.0, 2.0]))?;
                Ok(exact(&s.hessian(x.tanh()?.square()?.sum()?, x)?.value()?))
            })
        }),
        named("optimizer", |d| {
            let (params, net) = model(d);
            let s = Session::eager_seeded(d, 3);
            let mut optimizer = Optimizer::muon(0.1).clip_norm(1.0);
            Box::new(move || {
                s.set_random_calls(0);
                let mut step = || {
                    let loss = loss_of(&net)(&[s.input(&x())?, s.labels(&y())?])?;
                    optimizer.step(&params, loss.backward()?)
                };
                let done = step();
                s.reset();
                done?;
                params.fingerprint()
            })
        }),
        named("compiled step", |d| {
            let (params, net) = model(d);
            let mut step =
                TrainStep::new(&params, Optimizer::adam(0.1).clip_norm(1.0), loss_of(&net)).seeded(3);
            Box::new(move || {
                step.run(&[(&x()).into(), (&y()).into()])?;
                Ok(format!("{} {:?}", params.fingerprint()?, step.loss()?))
            })
        }),
        named("program", |d| {
            let (_params, net) = model(d);
            Box::new(move || {
                let takes = [Meta::f32(x().shape())];
                let graph = Graph::trace(d, &takes, |s, v| {
                    Ok(vec![net.forward(v[0])?.add(s.constant(&t(&[2], &[1.0, 2.0]))?)?.tanh()?])
                })?;
                let mut function = graph.compile(d)?;
                let given = AnyBuffer::upload(d, &x())?;
                let out = function.call_on(&[&given])?;
                Ok(exact(function.call(&[x().into()])?[0].num()?) + &exact(&out[0].to_tensor()?))
            })
        }),
        named("inference", |d| {
            let (_params, net) = model(d);
            let s = Session::inference(d);
            Box::new(move || {
                let out = s.scope(|| net.forward(s.input(&x())?)?.softmax());
                let out = out.and_then(|out| out.value::<f32>());
                s.reset();
                Ok(exact(&out?))
            })
        }),
        named("checkpoint", |d| {
            let checkpoint = {
                let (params, net) = model(d);
                let mut step = TrainStep::new(&params, Optimizer::adam(0.1), loss_of(&net)).seeded(3);
                (0..3).for_each(|_| step.run(&[(&x()).into(), (&y()).into()]).unwrap());
                let mut checkpoint = Checkpoint::new("mlp", &params).unwrap();
                checkpoint.take(&step).unwrap();
                checkpoint.to_bytes().unwrap()
            };
            let here = tempfile::tempdir().unwrap();
            let path = here.path().join("run.safetensors");
            std::fs::write(&path, checkpoint).unwrap();
            let (params, net) = model(d);
            let mut step = TrainStep::new(&params, Optimizer::adam(0.1), loss_of(&net)).seeded(3);
            Box::new(move || {
                let _ = &here;
                let checkpoint = Checkpoint::load(&path)?;
                checkpoint.restore(&params, &mut step)?;
                params.load_state_dict(&StateDict::read(&path)?, true)?;
                let state = step.state::<f32>()?;
                let all = state.params.values().flat_map(|p| p.tensors.values());
                Ok(params.fingerprint()? + &all.map(exact).collect::<String>())
            })
        }),
        named("move", |d| {
            // From this device to another one and back.
            let (mut params, _net) = model(d);
            Box::new(move || {
                let other = device();
                params.to(&other)?;
                let moved = params.to(d);
                if moved.is_err() {
                    // It stayed where it was, all of it.
                    assert!(params.iter().all(|p| p.buffer().buffer().device().to_string() == "cpu"));
                    d.fail_allocation(None, false);
                    params.to(d)?;
                }
                moved?;
                params.fingerprint()
            })
        }),
    ]
}

/// Fails each allocation of each operation in turn, once and from then on: the answer is an error with the bytes and the
/// device, live bytes are what they were, and the same objects then give the bits of a run without faults.
fn without_memory(device: &Device) {
    let base = device.memory().live;
    for (name, make) in operations() {
        let (want, takes) = {
            let mut operation = make(device);
            let before = device.memory().allocs;
            (operation().unwrap(), device.memory().allocs - before)
        };
        let mut swept = 0;
        for persistent in [false, true] {
            for n in 1.. {
                let mut operation = make(device);
                let live = device.memory().live;
                device.fail_allocation(Some(n), persistent);
                let got = operation();
                let what = format!("{name} on {device}, allocation {n} failing, from then on: {persistent}");
                let Err(e) = got else {
                    device.fail_allocation(None, false);
                    assert_eq!(got.as_ref(), Ok(&want), "{what}");
                    assert_eq!(n, takes + 1, "{what}: as many fail as are made");
                    break;
                };
                let ErrorKind::OutOfMemory { bytes, .. } = e.kind() else { panic!("{what}: {e}") };
                assert!(*bytes > 0 && e.to_string().contains(&format!("on {device}")), "{what}: {e}");
                assert_eq!(device.memory().live, live, "{what}: live bytes");
                if persistent && name != "move" {
                    let again = operation().expect_err(&what);
                    assert!(matches!(again.kind(), ErrorKind::OutOfMemory { .. }), "{what}: {again}");
                    assert_eq!(device.memory().live, live, "{what}: live bytes after the second time");
                }
                device.fail_allocation(None, false);
                assert_eq!(operation().as_ref(), Ok(&want), "{what}: the next try");
                drop(operation);
                assert_eq!(device.memory().live, base, "{what}: live bytes at the end");
                swept += 1;
            }
        }
        println!("{name} on {device}: {takes} allocations, {swept} failures");
        assert!(takes > 0 && swept == 2 * takes, "{name}");
    }
}

#[test]
fn every_allocation_may_fail() {
    without_memory(&device());
}

#[test]
fn every_allocation_may_fail_on_a_driver() {
    let fake = Fake::computing(1, ENOUGH);
    without_memory(&on(&fake, 0)().unwrap());
    assert_eq!((fake.misuses(), fake.live()), (vec![], Live::default()));
}

#[test]
fn cuda_every_allocation_may_fail() {
    if let Some((_turn, gpu)) = dittograd_check::gpu() {
        without_memory(&gpu);
    }
}

/// With less memory than an operation needs at its peak it is out of memory; with so much, and not a byte more, it is not.
fn within_a_limit(new: &dyn Fn() -> Device) {
    for (name, make) in operations() {
        let measured = new();
        let mut operation = make(&measured);
        let held = measured.memory();
        let want = operation().unwrap();
        let (start, peak) = (held.live, measured.memory().peak);
        // Setting up may have taken more than the operation itself.
        let Some(range) = Some(start..peak).filter(|_| peak > held.peak) else { continue };
        let step = (range.len() / 12).max(1);
        for limit in range.clone().step_by(step).chain([peak - 1, peak]) {
            let device = new();
            let mut operation = make(&device);
            device.limit_memory(Some(limit));
            let got = operation();
            let what = format!("{name} on {device} with {limit} of {peak} bytes");
            if limit == peak {
                assert_eq!(got.as_ref(), Ok(&want), "{what}");
                continue;
            }
            let e = got.expect_err(&what);
            assert!(matches!(e.kind(), ErrorKind::OutOfMemory { .. }), "{what}: {e}");
            assert!(device.memory().live <= limit.max(start), "{what}");
            device.limit_memory(None);
            assert_eq!(operation().as_ref(), Ok(&want), "{what}: with more");
        }
    }
}

#[test]
fn memory_may_be_limited() {
    within_a_limit(&device);
    let fake = Fake::computing(1, ENOUGH);
    let cuda = fake.open().unwrap();
    within_a_limit(&|| Device::from_cuda(cuda.clone()));
}

#[test]
fn cuda_memory_may_be_limited() {
    if let Some((_turn, gpu)) = dittograd_check::gpu() {
        let cuda = gpu.as_cuda().unwrap().clone();
        within_a_limit(&|| Device::from_cuda(cuda.clone()));
    }
}

/// Drivers with less and less memory: an error that says so until it is enough.
#[test]
fn a_small_device_is_out_of_memory_until_it_is_large_enough() {
    let (want, _) = undisturbed();
    let none = |_| {};
    for segments in 0.. {
        let fake = Fake::computing(1, segments * (2 << 20));
        let got = program(&mut World::default(), &mut Tries::new(0, &none), &on(&fake, 0));
        assert_eq!((fake.misuses(), fake.live()), (vec![], Live::default()), "{segments} segments");
        match got {
            Ok(bits) => {
                assert_eq!((bits, segments > 0), (want, true));
                break;
            }
            Err(e) => assert!(
                matches!(e.kind(), ErrorKind::OutOfMemory { .. }) && e.to_string().contains("on cuda:0"),
                "{e}"
            ),
        }
    }
}

/// A failed walk back that keeps the values can be made again at once; one that frees them says what to do.
#[test]
fn a_walk_back_that_failed_can_be_made_again() {
    let d = device();
    let (params, net) = model(&d);
    let s = Session::eager_seeded(&d, 3);
    fn loss<'s>(net: &Arc<Mlp>, s: &'s Session) -> Var<'s> {
        loss_of(net)(&[s.input(&x()).unwrap(), s.labels(&y()).unwrap()]).unwrap()
    }
    let read = |grads: &Grads| -> Vec<Tensor<f32>> {
        params.iter().map(|p| grads.param(p).unwrap().to_tensor().unwrap()).collect()
    };
    let want = read(&loss(&net, &s).backward_retain().unwrap());
    s.reset();
    s.set_random_calls(0);
    let value = loss(&net, &s);
    let live = d.memory().live;
    let mut failures = 0;
    for n in 1.. {
        d.fail_allocation(Some(n), false);
        let got = value.backward_retain();
        d.fail_allocation(None, false);
        match got {
            Ok(grads) => {
                assert_eq!(read(&grads), want);
                break;
            }
            Err(_) => assert_eq!(d.memory().live, live, "allocation {n}"),
        }
        assert_eq!(read(&value.backward_retain().unwrap()), want, "after allocation {n} failed");
        failures += 1;
    }
    assert!(failures > 5, "{failures}");
    // The last allocation of the walk: values are gone by then.
    d.fail_allocation(Some(failures), false);
    assert!(value.backward().is_err());
    d.fail_allocation(None, false);
    let e = value.backward().unwrap_err();
    assert!(
        matches!(e.kind(), ErrorKind::Gradient { .. }) && e.to_string().contains("compute it again"),
        "{e}"
    );
}

/// What drew random numbers and then failed draws the same when it is tried again.
#[test]
fn draws_that_failed_are_made_again() {
    let d = device();
    let draw = |s: &Session| -> Result<Vec<f32>> {
        let kept = s.ones(&[50])?.dropout(0.5)?;
        Ok([kept.value::<f32>()?.into_data(), s.uniform(&[3])?.value::<f32>()?.into_data()].concat())
    };
    let want = draw(&Session::eager_seeded(&d, 3)).unwrap();
    for n in 1.. {
        let s = Session::eager_seeded(&d, 3);
        d.fail_allocation(Some(n), false);
        let ones = s.ones(&[50]);
        let kept = ones.and_then(|ones| ones.dropout(0.5));
        d.fail_allocation(None, false);
        if kept.is_ok() {
            assert!(n > 3, "{n}");
            break;
        }
        assert_eq!(draw(&s).unwrap(), want, "allocation {n} failed");
    }
}

/// A step whose update fails has not happened: the next one is the first.
#[test]
fn a_step_that_failed_is_not_counted() {
    for compile in [false, true] {
        let run = |fail: bool| {
            let fake = Fake::computing(1, ENOUGH);
            let d = on(&fake, 0)().unwrap();
            let (params, net) = model(&d);
            let mut optimizer = Optimizer::adam(0.1);
            let mut step = TrainStep::new(&params, Optimizer::adam(0.1), loss_of(&net)).seeded(3);
            let s = Session::eager_seeded(&d, 3);
            for at in 0..3 {
                if compile {
                    step.run(&[(&x()).into(), (&y()).into()]).unwrap();
                    if fail && at == 1 {
                        fake.fail_symbol("cuGraphLaunch", 1, 701, false);
                        let e = step.again().unwrap_err();
                        assert!(is_named(&e, "cuGraphLaunch", "cuda:0"), "{e}");
                    }
                    assert_eq!(step.optimizer().steps(), at + 1);
                    continue;
                }
                s.reset();
                let loss = loss_of(&net)(&[s.input(&x()).unwrap(), s.labels(&y()).unwrap()]).unwrap();
                if fail && at == 1 {
                    let grads = loss.backward_retain().unwrap();
                    fake.fail_symbol("cuLaunchKernel", 1, 701, false);
                    let e = optimizer.step(&params, grads).unwrap_err();
                    assert!(e.to_string().contains("cuda:0 kernel update"), "{e}");
                }
                optimizer.step(&params, loss.backward().unwrap()).unwrap();
                assert_eq!(optimizer.steps(), at + 1);
            }
            params.fingerprint().unwrap()
        };
        assert_eq!(run(false), run(true), "compiled: {compile}");
    }
}

/// Where an update takes several launches, a failure between them says that the parameters are of no one step.
#[test]
fn an_update_that_was_made_in_part_says_so() {
    let fake = Fake::computing(1, ENOUGH);
    let d = on(&fake, 0)().unwrap();
    let mut params = Params::new(&d, 1);
    let all: Vec<Param> = (0..40).map(|i| params.ones(&format!("p{i}"), &[2]).unwrap()).collect();
    let s = Session::eager(&d);
    let mut total = s.param(&all[0]).unwrap();
    for p in &all[1..] {
        total = total.add(s.param(p).unwrap()).unwrap();
    }
    let grads = total.sum().unwrap().backward().unwrap();
    fake.fail_symbol("cuLaunchKernel", 2, 701, false);
    let e = Optimizer::sgd(0.5).step(&params, grads).unwrap_err().to_string();
    assert!(e.contains("32 parameters were updated before") && e.contains("checkpoint"), "{e}");
    assert_eq!(all[0].get::<f32>().unwrap().data(), [0.5; 2]);
    assert_eq!(all[39].get::<f32>().unwrap().data(), [1.0; 2]);
}

/// A failing question about memory for a report loses no error that waits to be told, and makes none.
#[test]
fn reports_swallow_no_errors() {
    let fake = Fake::new();
    let d = on(&fake, 0)().unwrap();
    let (params, net) = model(&d);
    let graph = Graph::trace(&d, &[Meta::f32(x().shape())], |_, v| Ok(vec![net.forward(v[0])?]));
    let function = graph.unwrap().compile(&d).unwrap();
    fake.fail_symbol("cuGraphExecDestroy", 1, 1, false);
    drop(function);
    println!("{} {}", d.memory(), d.memory_report());
    let e = d.synchronize().unwrap_err();
    assert!(is_named(&e, "cuGraphExecDestroy", "cuda:0"), "{e}");
    fake.fail_symbol("cuMemGetInfo_v2", 1, 1, true);
    assert_eq!((d.memory().device_total, d.synchronize()), (0, Ok(())));
    drop((params, net));
}

/// In check mode guards are read back when memory is freed. What cannot be read, or was never written, is not called broken.
#[test]
fn a_failing_driver_breaks_no_guards() {
    let run = |k: u64, code: i32, stays: bool| {
        let fake = Fake::computing(1, ENOUGH);
        let d = on(&fake, 0)().unwrap();
        d.set_checks(true);
        if stays {
            fake.fail_from(k, code)
        } else {
            fake.fail_call(k, code)
        };
        let a = Buffer::upload(&d, &[1.0, 2.0, 3.0]);
        let b = AnyBuffer::full(&d, x().shape(), 2.0);
        let failed = a.is_err() || b.is_err();
        drop((a, b));
        assert_eq!(d.broken_guards(), 0, "call {k} failing with {code}");
        // Nobody overlooks it.
        let was_made = fake.has_failed();
        let next = d.synchronize();
        assert!(!was_made || failed || next.is_err(), "call {k} failing with {code}");
        was_made
    };
    for (code, stays) in [(1, false), (2, false), (700, true)] {
        let last = (1..).find(|k| !run(*k, code, stays)).unwrap();
        assert!(last > 8, "{last}");
    }
}

/// A captured program in which every instruction waits only for what it must runs in an order nobody expects, with the bits of
/// one after the other: for models of all kinds, whose results the CPU knows.
#[test]
fn captured_programs_wait_for_all_they_need() {
    fn check(name: &str, run: impl Fn(&Device) -> (String, f32)) {
        let fake = Fake::computing(1, 1 << 30);
        assert_eq!(run(&on(&fake, 0)().unwrap()), run(&device()), "{name}");
        assert_eq!((fake.misuses(), fake.live()), (vec![], Live::default()), "{name}");
    }
    fn fill(dims: &[usize]) -> Tensor<f32> {
        Tensor::from_fn(Shape::new(dims).unwrap(), |i| (i % 9) as f32 * 0.1 - 0.4)
    }
    fn whole(dims: &[usize], below: u32) -> Tensor<u32> {
        Tensor::from_fn(Shape::new(dims).unwrap(), |i| (i + i / 3) as u32 % below)
    }
    fn train<F>(params: &Params, inputs: &[Batch<'_>], f: F) -> (String, f32)
    where
        F: for<'s> Fn(&[Var<'s>]) -> Result<Var<'s>>,
    {
        let mut step = TrainStep::new(params, Optimizer::muon(1e-2).clip_norm(1.0), f);
        (0..3).for_each(|_| step.run(inputs).unwrap());
        (params.fingerprint().unwrap(), step.loss().unwrap())
    }
    check("gpt", |d| {
        let mut params = Params::new(d, 7);
        let config = GptConfig { vocab: 11, context: 5, width: 8, heads: 2, layers: 2, dropout: 0.25 };
        let net = Gpt::new(&mut params, config).unwrap();
        let (x, y) = (whole(&[3, 4], 11), whole(&[3, 4], 10));
        train(&params, &[(&x).into(), (&y).into()], |v| net.forward(v[0])?.cross_entropy(v[1]))
    });
    check("cnn", |d| {
        let mut params = Params::new(d, 7);
        let config = CnnConfig { channels: 2, image: [6, 5], widths: [3, 4, 5], classes: 3 };
        let net = Cnn::new(&mut params, config).unwrap();
        let (x, y) = (fill(&[2, 2, 6, 5]), whole(&[2], 3));
        train(&params, &[(&x).into(), (&y).into()], |v| net.forward(v[0])?.cross_entropy(v[1]))
    });
    check("fno1d", |d| {
        let mut params = Params::new(d, 7);
        let config = Fno1dConfig { inputs: 2, outputs: 1, width: 4, modes: 3, layers: 2, hidden: 5 };
        let net = Fno1d::new(&mut params, config).unwrap();
        let (x, y) = (fill(&[2, 9, 2]), fill(&[2, 9, 1]));
        train(&params, &[(&x).into(), (&y).into()], |v| net.forward(v[0])?.mse(v[1]))
    });
}
