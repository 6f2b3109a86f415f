//! Every CUDA module that the samples of any op, and their gradient rules, will ask for: compiled for two
//! architectures, and looked through for what must not be in it.

use crate::support::{data, device, f};
use dittograd::device::Meta;
use dittograd::device::cuda::{Nvrtc, kernels_of, stack_of};
use dittograd::numerics::Numerics;
use dittograd::ops::{AnyOp, AnyTensor, Gpu, Io, Lines, Recorder, Sample};
use dittograd::prelude::*;
use dittograd_check::{Case, RefRecorder, Values};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// The GPU that launches are planned for.
const fn gpu(numerics: Numerics, hopper: bool) -> Gpu {
    Gpu { sm_count: 132, shared: 227 * 1024, numerics, hopper }
}

/// Modes, and whether the GPU is a Hopper: those that have texts of their own.
const KINDS: [(Numerics, bool); 6] = [
    (Numerics::Strict, true),
    (Numerics::Tf32, true),
    (Numerics::Fast, true),
    (Numerics::Fast, false),
    (Numerics::Turbo, true),
    (Numerics::Turbo, false),
];

/// What makes a text one for a Hopper only.
const HOPPER: &str = "#define DITTO_HOPPER 1";
/// Elements of a value above which a rule is not run for its modules: they would be the same.
const LIMIT: usize = 5000;

/// Columns of rows whose chunks are shared out among warps: one to each, two, and more; with and without whole vectors.
const LONG_ROWS: [usize; 9] = [1025, 3000, 16384, 24575, 33000, 33002, 50257, 50304, 128_256];

/// Images whose channels are normalised in other ways than those of samples are: a block of threads for each of many channels, which holds all
/// chunks or takes them in turns; for each of a few, whose runs have short last chunks; one that gets sums of chunks; and more chunks than a block has.
const CHANNELS: [[usize; 4]; 9] = [
    [32, 140, 14, 14],
    [29, 133, 7, 7],
    [80, 133, 5, 5],
    [32, 6, 28, 28],
    [3, 5, 50, 51],
    [33, 140, 20, 20],
    [13, 2, 56, 56],
    [260, 3, 9, 14],
    [1030, 2, 5, 5],
];

/// Two shapes that broadcast to more elements than 31 bits count; with and without whole vectors.
const WIDE: [[[usize; 2]; 2]; 2] = [[[65536, 1], [1, 32772]], [[65537, 1], [1, 32771]]];

/// The channels of the images that an op makes, alone or at the beginning of its value.
fn lines_of(op: &AnyOp, metas: &[Meta]) -> Option<Lines> {
    let mut made = op.shape(metas).ok().into_iter().chain(metas.first().copied());
    made.find_map(|m| match m.shape.dims() {
        [n, c, sizes @ ..] if !sizes.is_empty() => {
            Some(Lines { start: 0, length: sizes.iter().product(), count: n * c })
        }
        _ => None,
    })
}

/// Module names with their sources; equal names must have equal sources, since kernels are kept by name.
fn modules() -> BTreeMap<String, &'static str> {
    dittograd::numerics::digits::include_small_products();
    let mut all: BTreeMap<String, (&'static str, String)> = BTreeMap::new();
    let mut add = |op: &AnyOp, metas: &[Meta]| {
        let modes = KINDS.map(|(mode, hopper)| op.cuda_modules(metas, &gpu(mode, hopper)));
        let leaving =
            lines_of(op, metas).and_then(|l| op.leaving_modules(metas, &gpu(Numerics::Strict, true), l));
        for (name, source) in modes.into_iter().chain(leaving).flatten() {
            let (known, by) =
                all.entry(name.clone()).or_insert_with(|| (source, format!("{op:?} {metas:?}")));
            assert!(
                *known == source,
                "module {name} has one source for {by} and another for {op:?} {metas:?}"
            );
        }
    };
    // While a kernel is written, `DITTOGRAD_OPS` says whose modules are meant, by parts of the ops' names.
    let wanted = std::env::var("DITTOGRAD_OPS").unwrap_or_default();
    for name in AnyOp::NAMES.iter().filter(|name| wanted.split(',').any(|w| name.contains(w))) {
        for (index, sample) in AnyOp::samples(name).iter().enumerate() {
            let metas: Vec<_> = sample.ins.iter().map(|i| i.meta()).collect();
            add(&sample.op, &metas);
            let out = sample.op.shape(&metas).unwrap().shape;
            if out.numel() > LIMIT || metas.iter().any(|m| m.shape.numel() > LIMIT) {
                continue;
            }
            let case = Case::draw(sample, Values::Uniform, index as u64);
            let mut r = RefRecorder::<f32>::new();
            let ins: Vec<_> = case.ins.iter().map(|i| r.input(i.clone())).collect();
            let value = r.record(case.op.clone(), &ins).unwrap();
            let upstream = r.input(AnyTensor::Num(case.upstream(out)));
            case.op.vjp(&mut r, Io { ins: &ins, out: value }, upstream).unwrap();
            for (op, ins) in r.ops() {
                let metas: Vec<_> = ins.iter().map(|&v| r.meta(v)).collect();
                add(op, &metas);
            }
        }
    }
    // Longer rows than samples have.
    for name in ["softmax", "log_softmax", "cross_entropy"] {
        let sample = &AnyOp::samples(name)[0];
        for columns in LONG_ROWS {
            let mut metas: Vec<_> = sample.ins.iter().map(|i| i.meta()).collect();
            metas[0] = f(&[2, columns]);
            metas.iter_mut().skip(1).for_each(|m| m.shape = Shape::new(&[2]).unwrap());
            add(&sample.op, &metas);
        }
    }
    // More channels, and longer ones.
    for dims in CHANNELS {
        let (x, gain) = (f(&dims), f(&dims[1..2]));
        add(&AnyOp::samples("moments")[0].op, &[x]);
        add(&AnyOp::samples("batch_norm_bwd")[0].op, &[x, gain, x]);
    }
    // More elements than 31 bits count.
    for shapes in WIDE {
        let metas = shapes.map(|dims| f(&dims));
        add(&AnyOp::samples("add")[0].op, &metas);
    }
    // More channels than samples have.
    for (name, other) in
        [("conv", [40, 40, 3, 3]), ("conv_transpose", [40, 40, 3, 3]), ("conv_kernel_grad", [2, 40, 6, 5])]
    {
        let images = f(&[2, 40, 6, 5]);
        let same = |s: &&Sample| s.op.shape(&[images, f(&other)]).is_ok_and(|out| out.shape.numel() > 1);
        for sample in AnyOp::samples(name).iter().filter(same) {
            add(&sample.op, &[images, f(&other)]);
        }
    }
    let mut all: BTreeMap<String, &'static str> =
        all.into_iter().map(|(name, (source, _))| (name, source)).collect();
    if wanted.is_empty() || wanted.split(',').any(|w| w == "optimizer") {
        all.extend(dittograd::optim::Optimizer::all_cuda_modules());
    }
    if wanted.is_empty() || wanted.split(',').any(|w| w == "record") {
        all.extend([
            dittograd::device::sums::module(),
            dittograd::device::bundle::module(),
            dittograd::graph::append_module(),
        ]);
    }
    all
}

/// Programs are captured with the kernels that an image says it has: each has a name that is in the text as it is, or one
/// that a macro makes of a word there and a number.
fn kernels_are_found(source: &str, cubin: &[u8]) -> Result<(), String> {
    let found = kernels_of(cubin).ok_or("is no cubin")?;
    let words: BTreeSet<&str> = source.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let unknown = |name: &&String| {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        !words.contains(name.as_str()) && !source.contains(&format!("{stem}##"))
    };
    match found.iter().find(unknown) {
        _ if found.is_empty() => Err("has no kernels".into()),
        Some(name) => Err(format!("has {name}, which is not in its text")),
        None => Ok(()),
    }
}

/// Bytes that a thread of a kernel may have beside its registers. Tiles are chosen for Hopper; elsewhere some are a little too large.
fn most_stack(arch: &str) -> usize {
    if arch == "sm_90a" { 128 } else { 256 }
}

/// Where the hashes of the texts that have compiled are, a line each. Of these a test run compiles one in sixteen again, since all of
/// them take minutes; `DITTOGRAD_BLESS=1` adds to the list what compiles now, `DITTOGRAD_MODULES=all` compiles everything.
const COMPILED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/compiled-modules.txt");

/// The hash of a module's text.
fn hash(source: &str) -> String {
    blake3::hash(source.as_bytes()).to_hex()[..16].to_owned()
}

/// Compiles a module, and says what is wrong with its image.
fn compile(nvrtc: &Nvrtc, name: &str, source: &str, arch: &str) -> Result<usize, String> {
    let cubin = nvrtc.compile(name, source, arch).map_err(|why| format!("{arch}: {why}"))?;
    kernels_are_found(source, &cubin).map_err(|why| format!("{arch} {name}: {why}"))?;
    // A few words that are read once at the end cost nothing; a table is read in the innermost loop.
    match stack_of(&cubin) {
        Some(stack) if stack <= most_stack(arch) => Ok(cubin.len()),
        stack => Err(format!("{arch} {name}: {stack:?} bytes beside its registers")),
    }
}

#[test]
fn every_module_compiles() {
    let nvrtc = match Nvrtc::open() {
        Ok(nvrtc) => nvrtc,
        // Past the test runner's capture, so that it is seen.
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "skipped: compiling every CUDA module: {why}");
            return;
        }
    };
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let known = std::fs::read_to_string(COMPILED).unwrap_or_default();
    let known: BTreeSet<&str> = if is_set("DITTOGRAD_MODULES") || is_set("DITTOGRAD_OPS") {
        BTreeSet::new()
    } else {
        known.lines().collect()
    };
    let modules: Vec<(String, &str)> = modules().into_iter().collect();
    let next = AtomicUsize::new(0);
    let done = Mutex::new((Vec::new(), Vec::new()));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((name, source)) = modules.get(at) else { break };
                    if known.contains(hash(source).as_str()) && !at.is_multiple_of(16) {
                        continue;
                    }
                    // The older architecture sees a part of them: most texts do not ask which one they are for.
                    let is_for_all = at.is_multiple_of(8) && !source.contains(HOPPER);
                    let archs: &[&str] = if is_for_all { &["sm_80", "sm_90a"] } else { &["sm_90a"] };
                    for arch in archs {
                        let began = Instant::now();
                        let outcome = compile(&nvrtc, name, source, arch);
                        let mut done = done.lock().unwrap();
                        match outcome {
                            Ok(bytes) => {
                                done.0.push((began.elapsed(), format!("{name} {arch} {bytes} bytes")))
                            }
                            Err(why) => done.1.push(why),
                        }
                    }
                }
            });
        }
    });
    let (mut compiled, errors) = done.into_inner().unwrap();
    compiled.sort();
    println!(
        "{} modules, {} images compiled in {:.1?} by NVRTC {:?}",
        modules.len(),
        compiled.len(),
        start.elapsed(),
        nvrtc.version()
    );
    for (time, what) in compiled.iter().rev().take(5) {
        println!("slowest: {time:.1?} {what}");
    }
    assert!(errors.is_empty(), "{} of {} modules: {}", errors.len(), modules.len(), errors.join("\n"));
    if is_set("DITTOGRAD_BLESS") && !is_set("DITTOGRAD_OPS") {
        let hashes: BTreeSet<String> = modules.iter().map(|(_, source)| hash(source)).collect();
        std::fs::write(COMPILED, hashes.into_iter().map(|h| h + "\n").collect::<String>()).unwrap();
    }
}

#[test]
fn no_module_adds_floats_atomically() {
    let modules = modules();
    assert!(modules.len() > 30);
    for (name, source) in modules {
        // Tickets, counts of digits and of blocks that have come, and sums of words are whole numbers.
        let whole = [
            "atomicAdd(reinterpret_cast<u64*>(turns), 1ull)",
            "atomicAdd(jobs_taken, 1ull)",
            "atomicAdd(out + value, sum)",
            "atomicAdd(ticket, 1u)",
            "atomicAdd(arrived, 1u)",
            "atomicAdd(&counts[digit], __popc(peers))",
            "atomicAdd(&chosen[0], 1u)",
        ];
        let adds = source.matches("atomicAdd(").count();
        assert_eq!(adds, whole.iter().map(|add| source.matches(add).count()).sum::<usize>(), "{name}");
        let assembly = ["\"atom.", "\"red.", " atom.", " red."];
        assert!(!assembly.iter().any(|a| source.contains(a)), "{name} has an atomic in assembly");
    }
}

/// Positions beyond 31 bits are found.
#[test]
fn broadcasting_to_more_elements_than_31_bits_count() {
    let Some((_turn, gpu)) = dittograd_check::gpu() else { return };
    for [rows, columns] in WIDE {
        let s = Session::eager(&gpu);
        let (rows, columns) = (rows[0], columns[1]);
        let x = s.arange(0.0, rows as f64, 1.0).unwrap().reshape(&[rows, 1]).unwrap();
        let y = s.arange(0.0, columns as f64 * 0.25, 0.25).unwrap();
        let all = x.add(y).unwrap();
        for first in [0, rows / 2, rows - 3] {
            let got = data(all.narrow(0, first, 3).unwrap());
            let want = |i: usize| (first + i / columns) as f32 + (i % columns) as f32 * 0.25;
            let wrong = (0..got.len()).find(|&i| got[i].to_bits() != want(i).to_bits());
            assert_eq!(wrong, None, "row {first} of {rows} of {columns}");
        }
    }
}

/// Rows that are longer than those of samples, more of them than a GPU takes at a time.
#[test]
fn long_rows_have_the_bits_of_the_cpu() {
    let Some((_turn, gpu)) = dittograd_check::gpu() else { return };
    let bits = |v: Vec<f32>| v.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    for columns in LONG_ROWS {
        let rows = (4300 / columns.div_ceil(1024)).max(150);
        let x = Tensor::from_fn(Shape::new(&[rows, columns]).unwrap(), |i| {
            (i * 7919 % 10_007) as f32 * 1e-3 - 5.0
        });
        let labels = Tensor::new(&[rows], (0..rows).map(|r| (r * 4099 % columns) as u32).collect()).unwrap();
        let run = |device: &Device| {
            let s = Session::eager(device);
            let x = s.variable(&x).unwrap();
            let loss = x.cross_entropy(s.labels(&labels).unwrap()).unwrap();
            let slopes = loss.backward_retain().unwrap();
            let slope = slopes.var(x).unwrap().to_tensor::<f32>().unwrap().into_data();
            [data(x.softmax().unwrap()), data(x.log_softmax().unwrap()), data(loss), slope].map(bits)
        };
        let (here, there) = (run(&gpu), run(&device()));
        for (what, (here, there)) in ["softmax", "log_softmax", "cross_entropy", "its gradient"]
            .iter()
            .zip(here.into_iter().zip(there))
        {
            assert!(here == there, "{what} of rows of {columns}");
        }
    }
}

/// Statistics and gradients of batch norm, in each way that a GPU finds them, also where there are infinities and NaN.
#[test]
fn channels_have_the_bits_of_the_cpu() {
    let Some((_turn, gpu)) = dittograd_check::gpu() else { return };
    for dims in CHANNELS {
        for odd in [false, true] {
            let c = dims[1];
            let value = |i: usize| match i % 1009 {
                500 if odd && i.is_multiple_of(2) => f32::INFINITY,
                700 if odd && i.is_multiple_of(3) => f32::NAN,
                _ => (i * 7919 % 10_007) as f32 * 1e-3 - 4.0,
            };
            let x = Tensor::from_fn(Shape::new(&dims).unwrap(), value);
            let slope = Tensor::from_fn(x.shape(), |i| (i * 4099 % 10_007) as f32 * 1e-4 - 0.3);
            let gain = Tensor::from_fn(Shape::new(&[c]).unwrap(), |i| 0.5 + i as f32 / c as f32);
            let run = |device: &Device| {
                let s = Session::eager(device);
                let (x, gain) = (s.variable(&x).unwrap(), s.variable(&gain).unwrap());
                let shift = s.variable(&Tensor::full(Shape::new(&[c]).unwrap(), 0.25)).unwrap();
                let (mean, var) = x.moments().unwrap();
                let y = x.batch_norm(Some(gain), Some(shift), 1e-5).unwrap();
                let [mean, var, out] = [mean, var, y].map(data);
                let slopes = y.backward_from(&slope).unwrap();
                let of = |v| slopes.var(v).unwrap().to_tensor::<f32>().unwrap().into_data();
                [mean, var, out, of(x), of(gain), of(shift)]
            };
            let (here, there) = (run(&gpu), run(&device()));
            for (what, (here, there)) in ["mean", "variance", "value", "its gradient", "gain's", "shift's"]
                .iter()
                .zip(here.into_iter().zip(there))
            {
                let differs = |(a, b): (&f32, &f32)| !dittograd::numerics::same_bits(*a, *b);
                let first = here.iter().zip(&there).position(differs);
                assert!(first.is_none(), "{what} of {dims:?} {odd}: element {first:?}");
            }
        }
    }
}
