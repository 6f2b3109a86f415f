//! What the first step of a compiled program costs on a GPU with an empty kernel cache: which modules are compiled, how
//! often, and that it does not matter who compiles them.

use dittograd::device::cuda::fake::{Fake, Stub};
use dittograd::device::cuda::{Compiler, Cuda, Nvrtc};
use dittograd::graph::Batch;
use dittograd::numerics::Numerics;
use dittograd::prelude::*;
use dittograd_check::{Subject, kernels_of, run_all, with_kernels_ahead};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// What was compiled.
struct Module {
    name: String,
    source: String,
    image: Vec<u8>,
    /// Seconds of the thread.
    took: f64,
}

/// NVRTC, or a stand-in for it, that keeps a list.
struct Recording {
    nvrtc: Option<Nvrtc>,
    stub: Arc<Stub>,
    seen: Mutex<Vec<Module>>,
}

/// Seconds in which a processor ran this thread; 0 where the system does not tell.
fn thread_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) * 1e-9
}

impl Compiler for Recording {
    fn version(&self) -> Result<(i32, i32)> {
        self.stub.version()
    }

    fn compile(&self, name: &str, source: &str, arch: &str) -> Result<Vec<u8>> {
        let began = thread_seconds();
        let image = match &self.nvrtc {
            Some(nvrtc) => nvrtc.compile(name, source, arch)?,
            None => self.stub.compile(name, source, arch)?,
        };
        let (name, source, took) = (name.to_string(), source.to_string(), thread_seconds() - began);
        self.seen.lock().unwrap().push(Module { name, source, image: image.clone(), took });
        Ok(image)
    }
}

/// A GPU as large as an H200, without results.
fn gpu(nvrtc: Option<Nvrtc>, mode: Numerics) -> (Fake, Arc<Recording>, Device) {
    let fake = Fake::with(1, 1 << 38);
    fake.set_multiprocessors(132);
    let compiler = Arc::new(Recording { nvrtc, stub: fake.stub(), seen: Mutex::default() });
    let cuda = Cuda::with_driver(fake.driver(), 0, mode, compiler.clone(), None).unwrap();
    (fake, compiler, Device::from_cuda(cuda))
}

/// The sizes of the models of `dittograd bench`, by its names, and small ones.
const BENCHMARKS: [&str; 5] =
    ["mlp_b128", "cnn_b128", "fno1d_b32_g1024", "babygpt_b64_t256", "gpt2s_b8_t1024"];
const SMALL: [&str; 4] = ["mlp", "cnn", "fno1d", "gpt"];

/// Runs two steps of a model. Returns the kernels of a step.
fn train(model: &str, device: &Device) -> usize {
    fn run<F>(params: &Params, inputs: &[Batch<'_>], f: F) -> usize
    where
        F: for<'s> Fn(&[Var<'s>]) -> Result<Var<'s>>,
    {
        let mut step = TrainStep::new(params, Optimizer::adamw(1e-4), f);
        step.run(inputs).unwrap();
        step.again().unwrap();
        step.plan().unwrap().launches
    }
    let numbers =
        |dims: &[usize]| Tensor::from_fn(Shape::new(dims).unwrap(), |i| (i % 7) as f32 * 0.25 - 0.75);
    let labels = |dims: &[usize], below: usize| {
        Tensor::from_fn(Shape::new(dims).unwrap(), |i| i as u32 % below as u32)
    };
    let gpt = |vocab, context, width, heads, layers| GptConfig {
        vocab,
        context,
        width,
        heads,
        layers,
        dropout: 0.0,
    };
    let mut params = Params::new(device, 1);
    match model {
        "mlp" | "mlp_b128" => {
            let (sizes, batch): (&[usize], _) =
                if model == "mlp" { (&[20, 16, 4], 8) } else { (&[784, 512, 512, 10], 128) };
            let net = Mlp::new(&mut params, sizes).unwrap();
            let (x, y) = (numbers(&[batch, sizes[0]]), labels(&[batch], sizes[sizes.len() - 1]));
            run(&params, &[(&x).into(), (&y).into()], |v| net.forward(v[0])?.cross_entropy(v[1]))
        }
        "cnn" | "cnn_b128" => {
            let (config, batch) = match model {
                "cnn" => (CnnConfig { channels: 3, image: [8, 8], widths: [4, 8, 16], classes: 4 }, 2),
                _ => (CnnConfig::default(), 128),
            };
            let CnnConfig { channels, image: [h, w], classes, .. } = config;
            let net = Cnn::new(&mut params, config).unwrap();
            let (x, y) = (numbers(&[batch, channels, h, w]), labels(&[batch], classes));
            run(&params, &[(&x).into(), (&y).into()], |v| net.forward(v[0])?.cross_entropy(v[1]))
        }
        "fno1d" | "fno1d_b32_g1024" => {
            let (config, batch, grid) = match model {
                "fno1d" => (
                    Fno1dConfig { width: 8, modes: 4, layers: 2, hidden: 12, ..Fno1dConfig::default() },
                    2,
                    16,
                ),
                _ => (Fno1dConfig::default(), 32, 1024),
            };
            let Fno1dConfig { inputs, outputs, .. } = config;
            let net = Fno1d::new(&mut params, config).unwrap();
            let (x, y) = (numbers(&[batch, grid, inputs]), numbers(&[batch, grid, outputs]));
            run(&params, &[(&x).into(), (&y).into()], |v| net.forward(v[0])?.mse(v[1]))
        }
        _ => {
            let (config, batch) = match model {
                "gpt" => (gpt(12, 8, 16, 2, 2), 2),
                "babygpt_b64_t256" => (gpt(65, 256, 384, 6, 6), 64),
                _ => (GptConfig::GPT2_SMALL, 8),
            };
            let net = Gpt::new(&mut params, config).unwrap();
            let (x, y) = (
                labels(&[batch, config.context], config.vocab),
                labels(&[batch, config.context], config.vocab),
            );
            run(&params, &[(&x).into(), (&y).into()], |v| net.forward(v[0])?.cross_entropy(v[1]))
        }
    }
}

#[test]
fn a_step_compiles_each_of_its_modules_once() {
    for model in SMALL {
        let (fake, compiler, device) = gpu(None, Numerics::Strict);
        assert!(train(model, &device) > 5, "{model}");
        let seen = compiler.seen.lock().unwrap();
        let sources: BTreeSet<&str> = seen.iter().map(|m| m.source.as_str()).collect();
        let repeated = seen.len() - sources.len();
        assert_eq!((repeated, fake.live().modules), (0, sources.len()), "{model}");
        let cuda = device.as_cuda().unwrap();
        assert_eq!((cuda.compiled(), cuda.loaded_from_disk()), (sources.len() as u64, 0), "{model}");
        let waited = cuda.preparation();
        assert!([waited.compile, waited.load, waited.capture].iter().all(|t| !t.is_zero()), "{waited:?}");
    }
}

#[test]
fn modules_compiled_side_by_side_are_those_compiled_one_by_one() {
    let (one, other) = match (Nvrtc::open(), Nvrtc::open()) {
        (Ok(one), Ok(other)) => (one, other),
        (Err(why), _) | (_, Err(why)) => return eprintln!("skipped: {why}"),
    };
    let (_fake, compiler, device) = gpu(Some(one), Numerics::Strict);
    train("mlp", &device);
    let seen = compiler.seen.lock().unwrap();
    assert!(seen.len() > 5);
    for Module { name, source, image, .. } in seen.iter() {
        assert!(*image == other.compile(name, source, device.as_cuda().unwrap().arch()).unwrap(), "{name}");
    }
}

/// Checks want kernels in the order in which they are compiled ahead, and nearly no others.
#[test]
fn checks_find_their_kernels_compiled() {
    for op in ["add", "softmax", "sum", "cumsum", "gather", "max_pool2d", "layer_norm"] {
        let fake = Fake::computing(1, 1 << 28);
        let device = Device::from_cuda(fake.open().unwrap());
        let cuda = device.as_cuda().unwrap();
        let known = kernels_of(&Subject::from(op), &device);
        cuda.compile_all(&known).unwrap();
        let before = cuda.compiled();
        assert_eq!(before, known.len() as u64, "{op}");
        let failed = run_all(std::slice::from_ref(&device), &format!("{op}::"), |_| ()).unwrap();
        let more = cuda.compiled() - before;
        assert!(failed == 0 && more * 10 <= before, "{op}: {failed} failed, {more} modules besides {before}");
    }
}

/// The outcome of checks is the same with kernels compiled ahead, and each is compiled once.
#[test]
fn checks_are_the_same_with_kernels_ahead() {
    let check = |ahead: bool| {
        let fake = Fake::computing(1, 1 << 28);
        let devices = [Device::from_cuda(fake.open().unwrap())];
        let mut rows = Vec::new();
        let mut run = || run_all(&devices, "tanh::", |row| rows.push(row.to_string())).unwrap();
        assert_eq!(if ahead { with_kernels_ahead(&devices, &["tanh"], run) } else { run() }, 0);
        (rows, devices[0].as_cuda().unwrap().compiled() >= fake.live().modules as u64)
    };
    assert_eq!(check(true), check(false));
}

/// `VIRTUAL_ENV=… cargo test --test it first_step:: -- --ignored --nocapture` prints how long NVRTC takes for each module of
/// the benchmarks' steps, in each mode.
#[test]
#[ignore = "compiles all kernels of five models in three modes: minutes"]
fn no_module_of_the_benchmarks_takes_long() {
    for (mode, model) in [Numerics::Strict, Numerics::Fast, Numerics::Turbo]
        .into_iter()
        .flat_map(|mode| BENCHMARKS.map(|model| (mode, model)))
    {
        let nvrtc = match Nvrtc::open() {
            Ok(nvrtc) => nvrtc,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        let (_fake, compiler, device) = gpu(Some(nvrtc), mode);
        let launches = train(model, &device);
        let mut seen = compiler.seen.lock().unwrap();
        seen.sort_by(|a, b| b.took.total_cmp(&a.took));
        let all: f64 = seen.iter().map(|m| m.took).sum();
        println!("{model} {mode:?}: {} modules in {all:.2} s of one core, {launches} launches", seen.len());
        for Module { name, image, took, .. } in seen.iter() {
            println!("  {took:6.3} s {:7} bytes {name}", image.len());
        }
        assert!(
            seen.len() <= 40 && seen[0].took < 5.0,
            "{model} {mode:?}: {} takes {:.2} s",
            seen[0].name,
            seen[0].took
        );
    }
}
