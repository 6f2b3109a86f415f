//! The floating-point environment of the calling thread changes no bit, and is the caller's again afterwards.
#![cfg(target_arch = "x86_64")]

use crate::support::{data, device};
use dittograd::data::{Batches, Loader, Regression, Scaling};
use dittograd::device::cpu::simd::Simd;
use dittograd::graph::{Graph, Passes};
use dittograd::io;
use dittograd::numerics::environment::strict;
use dittograd::ops::AnyOp;
use dittograd::prelude::*;
use dittograd_check as check;
use std::hint::black_box;

/// What MXCSR holds when a program begins.
const USUAL: u32 = 0x1f80;

/// Environments that libraries leave behind, as MXCSR.
const HOSTILE: [(&str, u32); 7] = [
    ("downward", USUAL | 0x2000),
    ("upward", USUAL | 0x4000),
    ("toward zero", USUAL | 0x6000),
    ("results flushed to zero", USUAL | 0x8000),
    ("subnormals taken for zero", USUAL | 0x0040),
    ("both, and upward", USUAL | 0xc040),
    ("traps for invalid operations and divisions by zero", USUAL & !0x0280),
];

#[allow(unsafe_code)]
fn register() -> u32 {
    let mut word = 0u32;
    // SAFETY: it stores MXCSR into four bytes that are ours.
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack)) };
    word
}

#[allow(unsafe_code)]
fn set_register(word: u32) {
    // SAFETY: it loads MXCSR with bits that every processor has; whoever calls it computes nothing but through the library
    // until it is set back.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack)) };
}

/// A quotient, the smallest normal number over 4, and a subnormal number times one.
fn shows_the_environment() -> [u32; 3] {
    let one = black_box(1.0f32);
    let quotients = [one / black_box(3.0), -one / black_box(3.0)];
    let small = [black_box(f32::MIN_POSITIVE) / black_box(4.0), black_box(f32::from_bits(77)) * one];
    [quotients[0].to_bits() ^ quotients[1].to_bits().rotate_left(7), small[0].to_bits(), small[1].to_bits()]
}

/// Calls `f` in a thread whose environment is `word`, and asserts that it is the same afterwards.
fn within<T: Send>(word: u32, f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let own = register();
            set_register(word);
            let value = black_box(black_box(f)());
            let after = register();
            set_register(own);
            assert_eq!(after & 0xffc0, word, "the caller's environment");
            value
        });
        thread.join().unwrap()
    })
}

fn hash(words: impl IntoIterator<Item = f32>) -> String {
    words
        .into_iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |h, x| (h ^ u64::from(x.to_bits())).wrapping_mul(0x100_0000_01b3))
        .to_string()
}

fn hash_wide(words: impl IntoIterator<Item = f64>) -> String {
    hash(words.into_iter().flat_map(|x| [x.to_bits() as u32, (x.to_bits() >> 32) as u32].map(f32::from_bits)))
}

fn hash_any(t: &AnyTensor) -> String {
    match t {
        AnyTensor::Num(t) => hash(t.data().iter().copied()),
        AnyTensor::Idx(t) => hash(t.data().iter().map(|i| f32::from_bits(*i))),
    }
}

type Found = Vec<(&'static str, String)>;

fn of_data(found: &mut Found) -> Result<()> {
    let made = [
        ("spirals", data::spirals(7, 60, 3)?),
        ("digits", data::digits(7, 20)?),
        ("burgers", data::burgers(7, 2, 32)?),
        ("darcy", data::darcy(7, 2, 8)?),
        ("regression", data::regression(Regression::ALL[1], 7, 40)?),
        ("csv", data::parse_csv_regression("t", "a,b,c\n0.1,3.14159,-2.7e-3\n1e-40,7.3e10,123456.789\n", 1)?),
    ];
    for (name, set) in &made {
        found.push((name, hash_any(set.x()) + &hash_any(set.y())));
    }
    let (spirals, fields) = (&made[0].1, &made[2].1);
    let scaling = Scaling::of(fields)?;
    found.push(("scaling", hash_wide(scaling.mean().iter().chain(scaling.deviation()).copied())));
    let scaled = scaling.apply(fields)?;
    found.push(("scaled", hash_any(scaled.x())));
    found.push(("unscaled", hash(scaling.undo(scaled.x().num()?)?.into_data())));
    let (part, _) = data::split(spirals, 0.7, 3)?;
    found.push(("split", hash_any(part.x())));
    let mut batches = Batches::new(spirals.clone(), 8, 1)?;
    found.push(("batch", hash_any(&batches.batch(9)?.0)));
    let mut made = Loader::with(3, 2, |step| {
        let x = Tensor::new(&[1], vec![step as f32 / black_box(7.0)])?;
        Ok((x.into(), Tensor::new(&[1], vec![0u32])?.into()))
    })?;
    found.push(("loader", hash_any(&made.next().unwrap()?.0)));
    let mut stream = Stream::new(3, 1);
    let drawn: Vec<f32> =
        (0..40).flat_map(|_| [stream.uniform(), stream.range(-0.3, 0.7), stream.normal()]).collect();
    found.push(("streams", hash(drawn)));
    let wide: Vec<u8> = [0.1f64, 1e-42, -2.0 / 3.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut file = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    let header = format!("{:117}\n", "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }");
    file.extend(header.bytes());
    file.extend(wide);
    found.push(("npy", hash(io::parse_npy_numbers("f", &file)?.into_data())));
    Ok(())
}

fn of_parameters(found: &mut Found, device: &Device) -> Result<()> {
    let mut params = Params::new(device, 7);
    params.uniform("uniform", &[9], -0.1, 0.3)?;
    params.normal("normal", &[9], 0.1, 0.3)?;
    params.full("full", &[2], 0.1)?;
    params.xavier_uniform("xavier_uniform", &[3, 5], 0.7)?;
    params.xavier_normal("xavier_normal", &[3, 5], 0.7)?;
    params.kaiming_uniform("kaiming_uniform", &[3, 5], Fan::In, 0.7)?;
    params.kaiming_normal("kaiming_normal", &[3, 5], Fan::Out, 0.7)?;
    params.orthogonal("orthogonal", &[5, 5], 0.7)?;
    params.value("value", &Tensor::new(&[3], vec![0.1f64, 1.0 / 3.0, 1e-42])?)?;
    found.push(("parameters", params.fingerprint()?));
    let wide = params.get("value").unwrap().get::<f64>()?;
    found.push(("widened", hash_wide(wide.into_data())));
    let mut params = Params::new(device, 7);
    Mamba::new(&mut params, MambaConfig { vocab: 5, width: 8, layers: 2, ..MambaConfig::default() })?;
    found.push(("mamba", params.fingerprint()?));
    Ok(())
}

fn of_training(found: &mut Found, device: &Device) -> Result<()> {
    let set = data::spirals(7, 60, 3)?;
    let schedule = || Schedule::cosine(9, 1e-5).warmup(3, 0.1);
    let optimizer = || Optimizer::adamw(1e-2).schedule(schedule()).clip_norm(0.3);
    found.push(("schedule", hash_wide((0..12).map(|i| schedule().lr(1e-2, i)))));

    let mut params = Params::new(device, 7);
    let net = Mlp::new(&mut params, &[2, 17, 3])?;
    let mut step = TrainStep::new(&params, optimizer(), |v| {
        (net.forward((v[0] * 0.3)?)?.dropout(0.1)? * -0.7)?.cross_entropy(v[1])
    });
    for _ in 0..4 {
        step.run(&[set.x().into(), set.y().into()])?;
    }
    found.push(("compiled training", params.fingerprint()? + &hash([step.loss()?])));

    let mut params = Params::new(device, 7);
    let net = Mlp::new(&mut params, &[2, 17, 3])?;
    let (session, mut optimizer) = (Session::eager(device), optimizer());
    for _ in 0..4 {
        let x = session.input(set.x().num()?)?;
        let y = session.labels(set.y().idx()?)?;
        let loss = (net.forward((x * 0.3)?)?.dropout(0.1)? * -0.7)?.cross_entropy(y)?;
        optimizer.step(&params, loss.backward()?)?;
        session.reset();
    }
    found.push(("eager training", params.fingerprint()?));
    let x = session.input(set.x().num()?)?;
    let y = net.forward(x)?;
    found.push(("evaluation", hash(data(y))));
    let norm = x.layer_norm(1, None, None, 1e-5)?.rms_norm(1, None, 1e-6)?;
    found.push(("norms", hash(data(norm))));
    found.push(("made", hash(data(session.linspace(0.1, 0.7, 13)?.add(session.arange(0.1, 1.4, 0.1)?)?))));
    found.push(("huber", hash(data(y.huber_loss(y.scale(0.9)?, 0.1, Reduction::Mean)?))));
    let wide = session.variable(&Tensor::new(&[3], vec![0.1f64, 0.7, 1e-41])?)?;
    let curve = session.hvp(wide.exp()?.sum()?, &[(wide, session.ones(&[3])?)])?[0].unwrap();
    found.push(("second derivatives", hash(data(curve))));
    session.reset();

    let graph =
        Graph::trace(device, &[crate::support::f(&[4, 6])], |_, x| Ok(vec![x[0].scale(0.1)?.softmax()?]))?;
    let text = graph.text()?;
    let again = Graph::parse(&text)?;
    found.push((
        "program",
        text + &again.hash()? + &again.vjp()?.hash()? + &graph.after(Passes::all())?.hash()?,
    ));

    let exact = Session::eager(&Device::host::<f64>());
    let x = exact.variable(&Tensor::new(&[3], vec![0.1f64, 0.7, 3.0])?)?;
    let y = (x.exp()? / 3.0)?.sum()?;
    let slope = exact.grad(y, &[x])?[0].value::<f64>()?;
    found.push(("definitions in f64", hash_wide(slope.into_data())));

    let mut params = Params::new(device, 7);
    let config = GptConfig { vocab: 11, context: 8, width: 8, layers: 1, heads: 2, ..GptConfig::default() };
    let gpt = Gpt::new(&mut params, config)?;
    let sampling = nn::Sampling { temperature: 0.8, top_k: Some(5), seed: 4 };
    found.push(("sampling", format!("{:?}", gpt.generate(&[1, 2], 20, sampling)?)));

    let checkpoint = Checkpoint::new("gpt", &params)?;
    let bytes = checkpoint.to_bytes()?;
    found.push(("checkpoint", hash(bytes.iter().map(|b| f32::from_bits(u32::from(*b))))));
    Ok(())
}

fn all(device: &Device) -> Found {
    let mut found = Found::new();
    of_data(&mut found).unwrap();
    of_parameters(&mut found, device).unwrap();
    of_training(&mut found, device).unwrap();
    found
}

#[test]
fn whatever_the_callers_environment() {
    let device = device();
    let want = all(&device);
    for (name, word) in HOSTILE {
        assert_eq!(within(word, || all(&device)), want, "{name}, an old device");
        let new = || all(&Device::cpu_with(3, Simd::Scalar).unwrap());
        assert_eq!(within(word, new), want, "{name}, a new device");
    }
}

#[test]
fn the_environments_are_hostile() {
    let usual = within(USUAL, shows_the_environment);
    for (name, word) in &HOSTILE[..6] {
        assert_ne!(within(*word, shows_the_environment), usual, "{name}");
        assert_eq!(within(*word, || strict(shows_the_environment)), usual, "{name}");
    }
}

#[test]
fn a_panic_gives_the_environment_back() {
    let (_, word) = HOSTILE[1];
    within(word, || {
        let thrown = std::panic::catch_unwind(|| strict(|| std::panic::resume_unwind(Box::new(()))));
        assert!(thrown.is_err());
    });
}

/// Values and gradients of all samples of every op.
#[test]
fn every_op_whatever_the_callers_environment() {
    let device = device();
    for &op in AnyOp::NAMES {
        let subject = || check::Subject::from(op);
        let print = |subject| check::repeat(subject, &device, 1).map(|r| r.fingerprint);
        let want = print(subject()).unwrap();
        // Upward with both switches for subnormals is another rounding, and another treatment of small numbers, at once.
        for (name, word) in [HOSTILE[0], HOSTILE[5]] {
            let subject = subject();
            assert_eq!(within(word, || print(subject)).unwrap(), want, "{op}, {name}");
        }
    }
}
