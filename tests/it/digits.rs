//! Modes `fast` and `turbo`: products in digits as the contract defines them, with the properties of every op, and one answer for
//! every way to run a program.

mod attention;

use crate::support::{device, fractions};
use dittograd::device::AnyBuffer;
use dittograd::device::cpu::simd::Simd;
use dittograd::graph::Graph;
use dittograd::io::Checkpoint;
use dittograd::numerics::Numerics;
use dittograd::numerics::digits::{self, DIGIT_CHUNK, Digits};
use dittograd::numerics::rng::Stream;
use dittograd::ops::{self, AnyOp, AnyTensor, Attr, Attrs};
use dittograd::prelude::*;
use dittograd_check::{Property, Sample, SampleIn, Subject, all_cpus};

const MODES: [(Numerics, Digits); 2] = [(Numerics::Fast, Digits::Three), (Numerics::Turbo, Digits::Two)];
const TRANSPOSES: [[bool; 2]; 4] = [[false, false], [true, false], [false, true], [true, true]];

/// Sizes at the limits, odd ones, and two chunks: whether they take part, and m, n, k.
const SIZES: [(bool, [usize; 3]); 10] = [
    (true, [64, 64, 512]),
    (true, [64, 512, 64]),
    (true, [512, 64, 64]),
    (true, [128, 128, 128]),
    (true, [127, 131, 129]),
    (true, [65, 66, DIGIT_CHUNK + 1]),
    (false, [64, 64, 511]),
    (false, [127, 128, 128]),
    (false, [63, 65, 1024]),
    (false, [512, 65, 63]),
];

fn product(name: &str, [ta, tb]: [bool; 2]) -> AnyOp {
    let flags = [("ta", ta), ("tb", tb)].map(|(name, on)| (name.to_string(), Attr::Bool(on)));
    AnyOp::from_name(name, &Attrs(flags.to_vec())).unwrap()
}

/// The stored dimensions of an operand.
fn stored(rows: usize, columns: usize, turned: bool) -> [usize; 2] {
    if turned { [columns, rows] } else { [rows, columns] }
}

/// What the element in row `i` of an operand is multiplied by: rows of zeros, huge, tiny and bad ones are among ordinary ones.
fn factor(i: usize, l: usize) -> f32 {
    match i % 16 {
        3 => 0.0,
        5 => 1e37,
        7 => 1e-36,
        9 if l.is_multiple_of(61) => 1e20,
        11 if l == 5 => f32::NAN,
        13 if l == 63 => f32::INFINITY,
        _ => 1.0,
    }
}

/// An operand of `rows` dot products over `k`; `along` says whether k is contiguous.
fn operand(rows: usize, k: usize, along: bool, odd: bool, seed: u64) -> Tensor {
    let mut stream = Stream::new(seed, 0);
    let dims = stored(rows, k, !along);
    Tensor::from_fn(Shape::new(&dims).unwrap(), |at| {
        let (i, l) = if along { (at / k, at % k) } else { (at % rows, at / rows) };
        stream.range(-1.0, 1.0) * if odd { factor(i, l) } else { 1.0 }
    })
}

fn run(device: &Device, op: &AnyOp, ins: &[&Tensor]) -> Vec<f32> {
    let ins: Vec<AnyBuffer> = ins.iter().map(|t| AnyBuffer::upload(device, t).unwrap()).collect();
    ops::apply(device, op, &ins.iter().collect::<Vec<_>>()).unwrap().buffer().download().unwrap()
}

/// The CPU and a GPU, if there is one, in mode `strict`. Whoever has them has the GPU alone. Small products are in digits too.
fn devices() -> (Option<impl Drop>, Vec<Device>) {
    digits::include_small_products();
    let (turn, gpu) = dittograd_check::gpu().unzip();
    (turn, [device()].into_iter().chain(gpu).collect())
}

fn same(got: &[f32], want: &[f32], what: &str) {
    let differs = |(a, b): (&f32, &f32)| !dittograd::numerics::same_bits(*a, *b);
    let first = got.iter().zip(want).position(differs);
    assert!(got.len() == want.len() && first.is_none(), "{what}: output {first:?}");
}

#[test]
fn products_are_those_of_the_contract() {
    let (_turn, all) = devices();
    for (strict, (mode, which)) in all.iter().flat_map(|d| MODES.map(|mode| (d, mode))) {
        let device = strict.in_mode(mode).unwrap();
        for (s, (takes_part, [m, n, k])) in SIZES.into_iter().enumerate() {
            let two_chunks = k > DIGIT_CHUNK;
            for flags in TRANSPOSES.into_iter().skip(if two_chunks { 3 } else { 0 }) {
                for odd in [false, true] {
                    let what = format!("{device} {m} {n} {k} {flags:?} {odd}");
                    let a = operand(m, k, !flags[0], odd, s as u64);
                    let b = operand(n, k, flags[1], odd, 100 + s as u64);
                    let op = product("matmul", flags);
                    let got = run(&device, &op, &[&a, &b]);
                    let as_strict = run(strict, &op, &[&a, &b]);
                    if !takes_part {
                        same(&got, &as_strict, &what);
                        continue;
                    }
                    let mut want = vec![0.0; m * n];
                    digits::product(which, [m, n, k], flags, a.data(), b.data(), &mut want);
                    same(&got, &want, &what);
                    assert!(got != as_strict, "{what}: as in strict");
                    for (at, x) in got.iter().enumerate() {
                        let bad = odd && [at / n, at % n].iter().any(|i| [11, 13].contains(&(i % 16)));
                        assert!(bad == x.is_nan() || two_chunks && !bad, "{what}: {x} at {at}");
                        let zero = odd && !bad && [at / n, at % n].iter().any(|i| i % 16 == 3);
                        assert!(!zero || x.to_bits() == 0, "{what}: {x} at {at}");
                    }
                }
            }
        }
    }
}

#[test]
fn batches_and_biases() {
    let (_turn, all) = devices();
    let ([batch, m, n, k], bias) = ([3, 66, 65, 513], fractions(&[65], 37));
    for (strict, (mode, which)) in all.iter().flat_map(|d| MODES.map(|mode| (d, mode))) {
        let device = strict.in_mode(mode).unwrap();
        for flags in TRANSPOSES {
            let (a, b) = (stored(m, k, flags[0]), stored(k, n, flags[1]));
            let (a, b) = (fractions(&[batch, a[0], a[1]], 7919), fractions(&[batch, b[0], b[1]], 104_729));
            let mut want = vec![0.0; batch * m * n];
            for (t, out) in want.chunks_mut(m * n).enumerate() {
                let (a, b) = (&a.data()[t * m * k..], &b.data()[t * n * k..]);
                digits::product(which, [m, n, k], flags, &a[..m * k], &b[..n * k], out);
            }
            same(&run(&device, &product("bmm", flags), &[&a, &b]), &want, "a batch");
        }
        // All leading axes are rows, and the bias comes last.
        let (x, w) = (fractions(&[2, 33, k], 7919), fractions(&[n, k], 104_729));
        let mut want = vec![0.0; m * n];
        digits::product(which, [m, n, k], [false, true], x.data(), w.data(), &mut want);
        want.iter_mut().enumerate().for_each(|(at, c)| *c += bias.data()[at % n]);
        let linear = AnyOp::from_name("linear", &Attrs(Vec::new())).unwrap();
        same(&run(&device, &linear, &[&x, &w, &bias]), &want, "with a bias");
        along_an_axis(&device, which, [batch, m, n, k]);
    }
}

fn axis_product(ta: bool) -> AnyOp {
    AnyOp::from_name("axis_matmul", &Attrs(vec![("ta".to_string(), Attr::Bool(ta))])).unwrap()
}

/// One matrix times each of a batch, and times vectors, which are the rows of one product.
fn along_an_axis(device: &Device, which: Digits, [batch, m, n, k]: [usize; 4]) {
    for ta in [false, true] {
        let a = fractions(&stored(m, k, ta), 7919);
        let x = fractions(&[batch, k, n], 104_729);
        let mut want = vec![0.0; batch * m * n];
        for (x, out) in x.data().chunks(k * n).zip(want.chunks_mut(m * n)) {
            digits::product(which, [m, n, k], [ta, false], a.data(), x, out);
        }
        same(&run(device, &axis_product(ta), &[&a, &x]), &want, "along an axis");
        let x = fractions(&[n, k, 1], 104_729);
        let mut want = vec![0.0; n * m];
        digits::product(which, [n, m, k], [false, !ta], x.data(), a.data(), &mut want);
        same(&run(device, &axis_product(ta), &[&a, &x]), &want, "along the only axis");
    }
}

/// Sizes around tiles, and those whose k is split among blocks of threads: m, n, k.
const LARGE: [[usize; 3]; 8] = [
    [127, 95, 4160],
    [128, 96, 64],
    [129, 97, 1025],
    [256, 192, 8192],
    [257, 1000, 250],
    [768, 768, 8192],
    [2100, 66, 70],
    [70, 2100, 1500],
];

/// Large products, alone and with what follows them in one kernel.
#[test]
fn a_gpu_has_the_bits_of_the_cpu() {
    let Some((_turn, gpu)) = dittograd_check::gpu() else { return };
    digits::include_small_products();
    for (mode, _) in MODES {
        let both = [device(), gpu.clone()].map(|d| d.in_mode(mode).unwrap());
        for (s, [m, n, k]) in LARGE.into_iter().enumerate() {
            for flags in TRANSPOSES {
                let a = operand(m, k, !flags[0], s % 2 == 1, s as u64);
                let b = operand(n, k, flags[1], false, 100 + s as u64);
                let op = product("matmul", flags);
                let [here, there] = [0, 1].map(|d| run(&both[d], &op, &[&a, &b]));
                same(&there, &here, &format!("{mode} {m} {n} {k} {flags:?}"));
            }
            let (x, w) = (operand(m, k, true, false, 1), operand(n, k, true, false, 2));
            let (bias, more) = (fractions(&[n], 37), fractions(&[m, n], 7919));
            let followed = |d: &Device| {
                let ins = [&x, &w, &bias, &more].map(|t| AnyTensor::Num(t.clone()));
                let metas = ins.each_ref().map(AnyTensor::meta);
                let graph = Graph::trace(d, &metas, |_, v| {
                    let y = v[0].linear(v[1], v[2])?.gelu()?;
                    Ok(vec![y, y.add(v[3])?])
                });
                let results = graph.unwrap().compile(d).unwrap().call(&ins).unwrap();
                results.iter().flat_map(|r| r.num().unwrap().data().to_vec()).collect::<Vec<f32>>()
            };
            let [here, there] = [0, 1].map(|d| followed(&both[d]));
            same(&there, &here, &format!("{mode} {m} {n} {k} with an epilogue"));
        }
    }
}

/// Products of which the values and, where they are small enough, the gradients are in digits.
fn subjects() -> Vec<Subject> {
    let any = |dims: &[usize]| SampleIn::any(Shape::new(dims).unwrap());
    let of = |name: &str, samples: Vec<Sample>| Subject {
        name: name.to_string(),
        samples,
        drawn: Vec::new(),
        rejects: Vec::new(),
    };
    let two = |name: &str, lead: &[usize]| {
        let samples = TRANSPOSES.map(|[ta, tb]| {
            let ins = [stored(128, 127, ta), stored(127, 130, tb)].map(|dims| any(&[lead, &dims].concat()));
            Sample::new(product(name, [ta, tb]), ins.to_vec())
        });
        of(name, samples.to_vec())
    };
    let linear = AnyOp::from_name("linear", &Attrs(Vec::new())).unwrap();
    let ins = vec![any(&[43, 3, 130]), any(&[127, 130]), any(&[127])];
    let axis = |ta| Sample::new(axis_product(ta), vec![any(&stored(128, 127, ta)), any(&[1, 127, 130])]);
    let takes_part = |s: &Sample| {
        let metas: Vec<_> = s.ins.iter().map(|i| i.meta()).collect();
        s.op.in_digits(&metas, Numerics::Fast).is_some()
    };
    let convs = ["conv", "conv_transpose", "conv_kernel_grad"]
        .map(|name| of(name, AnyOp::samples(name).into_iter().filter(takes_part).collect()));
    let products = [
        two("matmul", &[]),
        two("bmm", &[1]),
        of("linear", vec![Sample::new(linear, ins)]),
        of("axis_matmul", [false, true].map(axis).to_vec()),
    ];
    products.into_iter().chain(convs).collect()
}

/// Checks properties of ops in both modes.
fn have_properties(subjects: &[Subject], properties: &[Property]) {
    let (_turn, own) = devices();
    for (mode, _) in MODES {
        let in_mode = |d: &Device| d.in_mode(mode).unwrap();
        let own: Vec<Device> = own.iter().map(in_mode).collect();
        let all: Vec<Device> = all_cpus().unwrap().iter().map(in_mode).chain(own[1..].to_vec()).collect();
        for (subject, property) in subjects.iter().flat_map(|s| properties.iter().map(move |p| (s, *p))) {
            let devices = if property == Property::Bits { vec![&all[..]] } else { own.chunks(1).collect() };
            for devices in devices {
                match property.check(subject, devices) {
                    Ok(report) => assert!(report.cases > 0, "{mode}: {report}"),
                    Err(failure) => panic!("{mode}: {failure}"),
                }
            }
        }
    }
}

const PROPERTIES: [Property; 6] = [
    Property::Forward,
    Property::DeviceGradient,
    Property::Bits,
    Property::Compiled,
    Property::Guards,
    Property::Repeat,
];

#[test]
fn they_have_the_properties_of_ops() {
    have_properties(&subjects(), &PROPERTIES);
    have_properties(&subjects(), &[Property::Adjoint]);
}

/// Trains a network whose products take part, for a few steps.
fn trained(device: &Device, compiled: bool) -> (Params, Optimizer) {
    let mut params = Params::new(device, 3);
    let net = Mlp::new(&mut params, &[33, 128, 128, 5]).unwrap();
    let (x, y) = (fractions(&[130, 33], 7919), fractions(&[130, 5], 104_729));
    let mut optimizer = Optimizer::adamw(0.01);
    if compiled {
        let mut step = TrainStep::new(&params, optimizer, |v| net.forward(v[0])?.mse(v[1]));
        for _ in 0..3 {
            step.run(&[(&x).into(), (&y).into()]).unwrap();
        }
        optimizer = Optimizer::adamw(0.01);
    } else {
        let session = Session::eager(device);
        for _ in 0..3 {
            let loss = net.forward(session.input(&x).unwrap()).unwrap().mse(session.input(&y).unwrap());
            optimizer.step(&params, loss.unwrap().backward().unwrap()).unwrap();
            session.reset();
        }
    }
    (params, optimizer)
}

#[test]
fn training_has_one_answer_in_each_mode() {
    let (_turn, devices) = devices();
    let strict = trained(&device(), true).0.fingerprint().unwrap();
    let mut all = vec![strict];
    for (mode, _) in MODES {
        let print = |threads, simd, compiled| {
            let device = Device::cpu_with(threads, simd).unwrap().in_mode(mode).unwrap();
            trained(&device, compiled).0.fingerprint().unwrap()
        };
        let want = print(1, Simd::Scalar, false);
        for (threads, simd, compiled) in
            [(1, Simd::Scalar, true), (3, Simd::best(), false), (3, Simd::best(), true)]
        {
            assert_eq!(print(threads, simd, compiled), want, "{mode} {threads} {compiled}");
        }
        for (gpu, compiled) in devices[1..].iter().flat_map(|d| [(d, false), (d, true)]) {
            let got = trained(&gpu.in_mode(mode).unwrap(), compiled).0.fingerprint().unwrap();
            assert_eq!(got, want, "{gpu} {mode} {compiled}");
        }
        all.push(want);
    }
    // Each mode has another answer.
    assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2], "{all:?}");
}

#[test]
fn a_mode_belongs_to_a_device() {
    let strict = device();
    for (mode, _) in MODES {
        let device = strict.in_mode(mode).unwrap();
        assert_eq!((device.numerics(), strict.numerics()), (mode, Numerics::Strict));
        assert_eq!(device.to_string(), format!("cpu in mode {mode}"));
        assert_eq!(device.in_mode(mode).unwrap().numerics(), mode);
        assert_eq!(device.in_mode(Numerics::Strict).unwrap().to_string(), "cpu");
        assert_eq!(mode.to_string().parse::<Numerics>().unwrap(), mode);
        // Values of another mode's device are not taken for its own.
        let x = AnyBuffer::upload(&strict, &fractions(&[2, 2], 3)).unwrap();
        let error = ops::apply(&device, &product("matmul", [false; 2]), &[&x, &x]).unwrap_err().to_string();
        assert!(error.contains(&format!("cpu in mode {mode}")), "{error}");
        let error = Device::host::<f64>().in_mode(mode).unwrap_err().to_string();
        assert!(error.contains("have only strict"), "{error}");
        // A checkpoint knows its mode.
        let (params, mut optimizer) = trained(&device, false);
        let mut saved = Checkpoint::new("mlp", &params).unwrap();
        saved.take(&optimizer).unwrap();
        assert_eq!(saved.numerics, mode);
        saved.restore(&params, &mut optimizer).unwrap();
        let (others, mut optimizer) = trained(&strict, false);
        let error = saved.restore(&others, &mut optimizer).unwrap_err().to_string();
        assert!(
            error.contains(&format!("computed in mode {mode}, this device is in mode strict")),
            "{error}"
        );
    }
    let error = "half".parse::<Numerics>().unwrap_err().to_string();
    assert!(error.contains("use strict, fast, turbo or tf32"), "{error}");
}
