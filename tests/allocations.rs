//! After its second step a compiled training step takes no memory from the host or the device any more, and what sessions and
//! steps held is given back. A program of its own without the harness of tests, whose thread allocates when it likes: every
//! allocation of the process is counted. With `ALLOCATIONS=1` it prints where they were made.
#![allow(missing_docs, unsafe_code, clippy::unwrap_used)]

use dittograd::device::cpu::simd::Simd;
use dittograd::graph::{Batch, TrainStep};
use dittograd::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};

struct Counted;

static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Bytes that were allocated and not given back.
static HELD: AtomicIsize = AtomicIsize::new(0);
static WATCHED: AtomicBool = AtomicBool::new(false);
static PLACES: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Counts an allocation, and notes its place if places are watched.
fn count() {
    if INSIDE.get() {
        return;
    }
    COUNT.fetch_add(1, Ordering::Relaxed);
    if WATCHED.load(Ordering::Relaxed) {
        INSIDE.set(true);
        let all = Backtrace::force_capture().to_string();
        let ours = all.lines().filter(|l| l.contains("/src/") && !l.contains("/rustc/")).take(5);
        let place = ours.map(str::trim).collect::<Vec<_>>().join("\n    ");
        *PLACES.lock().unwrap().entry(place).or_default() += 1;
        INSIDE.set(false);
    }
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        HELD.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        HELD.fetch_add(size as isize - layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// Host allocations of a hundred steps after the first two.
fn steps<F>(name: &str, params: &Params, inputs: &[Batch<'_>], f: F) -> usize
where
    F: for<'s> Fn(&[Var<'s>]) -> Result<Var<'s>>,
{
    let device = params.device();
    let mut step = TrainStep::new(params, Optimizer::adamw(1e-3).clip_norm(1.0), f);
    (0..2).for_each(|_| step.run(inputs).unwrap());
    WATCHED.store(std::env::var_os("ALLOCATIONS").is_some(), Ordering::Relaxed);
    let (host, before) = (COUNT.load(Ordering::Relaxed), device.memory());
    (0..100).for_each(|_| step.run(inputs).unwrap());
    let made = COUNT.load(Ordering::Relaxed) - host;
    assert_eq!(device.memory().allocs, before.allocs, "device allocations of {name} on {device}");
    if WATCHED.swap(false, Ordering::Relaxed) {
        let mut places: Vec<_> = std::mem::take(&mut *PLACES.lock().unwrap()).into_iter().collect();
        places.sort_by_key(|p| std::cmp::Reverse(p.1));
        places.iter().for_each(|(place, times)| println!("{name}: {times} times\n    {place}"));
    }
    println!("{name} on {device} with {} threads: {made} allocations in 100 steps", device.threads());
    made
}

fn fill(dims: &[usize]) -> Tensor<f32> {
    Tensor::from_fn(Shape::new(dims).unwrap(), |i| (i % 9) as f32 * 0.1 - 0.4)
}

fn whole(dims: &[usize], below: u32) -> Tensor<u32> {
    Tensor::from_fn(Shape::new(dims).unwrap(), |i| (i + i / 3) as u32 % below)
}

/// As [`steps`], of all models.
fn models(device: &Device) -> [usize; 5] {
    let mut params = Params::new(device, 7);
    let net = Mlp::new(&mut params, &[20, 32, 32, 4]).unwrap();
    let (x, y) = (fill(&[16, 20]), whole(&[16], 4));
    let inputs = [(&x).into(), (&y).into()];
    let mlp = steps("mlp", &params, &inputs, |v| net.forward(v[0])?.cross_entropy(v[1]));

    let mut params = Params::new(device, 7);
    let config = CnnConfig { channels: 2, image: [6, 5], widths: [3, 4, 5], classes: 3 };
    let net = Cnn::new(&mut params, config).unwrap();
    let (x, y) = (fill(&[2, 2, 6, 5]), whole(&[2], 3));
    let inputs = [(&x).into(), (&y).into()];
    let cnn = steps("cnn", &params, &inputs, |v| net.forward(v[0])?.cross_entropy(v[1]));

    let mut params = Params::new(device, 7);
    let config = Fno1dConfig { inputs: 2, outputs: 1, width: 4, modes: 3, layers: 2, hidden: 5 };
    let net = Fno1d::new(&mut params, config).unwrap();
    let (x, y) = (fill(&[2, 9, 2]), fill(&[2, 9, 1]));
    let inputs = [(&x).into(), (&y).into()];
    let fno = steps("fno1d", &params, &inputs, |v| net.forward(v[0])?.mse(v[1]));

    let mut params = Params::new(device, 7);
    // Many parameters, and an embedding that threads share.
    let config = GptConfig { vocab: 700, context: 5, width: 32, heads: 2, layers: 3, dropout: 0.25 };
    let net = Gpt::new(&mut params, config).unwrap();
    let (x, y) = (whole(&[3, 4], 700), whole(&[3, 4], 650));
    let inputs = [(&x).into(), (&y).into()];
    let gpt = steps("gpt", &params, &inputs, |v| net.forward(v[0])?.cross_entropy(v[1]));

    // A convolution of each channel by itself, there and back, with what follows it, and rows that programs lead into.
    let mut params = Params::new(device, 7);
    let w = params.uniform("w", &[40, 1, 3, 3], -1.0, 1.0).unwrap();
    let x = fill(&[2, 40, 6, 5]);
    let window = ConvWindow { groups: 40, ..ConvWindow::plain(2).unwrap() };
    let thin = steps("depthwise", &params, &[(&x).into()], |v| {
        let w = v[0].session().param(&w)?;
        let y = v[0].tracked()?.conv(w, None, window)?.tanh()?;
        y.conv_transpose(w, None, window, &[0, 0])?.scale(0.5)?.softmax()?.square()?.mean()
    });
    [mlp, cnn, fno, gpt, thin]
}

/// One thread of the CPU, and the GPU if there is one.
fn devices() -> Vec<Device> {
    let mut devices = vec![Device::cpu_with(1, Simd::best()).unwrap()];
    devices.extend(Device::cuda(0));
    devices
}

fn steps_allocate_nothing() {
    for device in devices() {
        assert_eq!(models(&device), [0; 5], "host allocations on {device}");
    }
    // A thread makes its scratch when it first gets a task, which may be at any step, and has it for good then: there are
    // a few allocations for each thread, not one for each step.
    let threads = 3;
    let device = Device::cpu_with(threads, Simd::best()).unwrap();
    for made in models(&device) {
        assert!(made <= 20 * threads, "{made} allocations in 100 steps with {threads} threads");
    }
}

/// A hundred thousand sessions, each with a graph and its gradients: after the last the process and the device hold what they
/// held after the first hundred.
fn sessions_give_back_what_they_held() {
    for device in devices() {
        let mut params = Params::new(&device, 7);
        let w = params.uniform("w", &[3, 4], -1.0, 1.0).unwrap();
        let x = fill(&[2, 3]);
        let mut early = None;
        for n in 0..100_000 {
            let s = Session::eager_seeded(&device, n);
            let y = s.input(&x).unwrap().matmul(s.param(&w).unwrap()).unwrap().dropout(0.5).unwrap();
            let gradients = y.square().unwrap().sum().unwrap().backward().unwrap();
            drop((gradients, s));
            let memory = device.memory();
            let now =
                (HELD.load(Ordering::Relaxed), memory.live, memory.cached, memory.allocs - memory.frees);
            if n == 99 {
                early = Some(now);
            }
            assert!(early.is_none_or(|e| e == now), "session {n} on {device} left {early:?} at {now:?}");
        }
    }
}

/// A hundred thousand compiled steps, twice: the process and the device hold what they held after the first hundred, and the
/// bits are the same.
fn long_runs_hold_what_short_ones_do() {
    for device in devices() {
        let run = || {
            let mut params = Params::new(&device, 7);
            let net = Mlp::new(&mut params, &[4, 8, 3]).unwrap();
            let (x, y) = (fill(&[6, 4]), whole(&[6], 3));
            let mut step = TrainStep::new(&params, Optimizer::adamw(1e-3), |v: &[Var<'_>]| {
                net.forward(v[0].dropout(0.1)?)?.cross_entropy(v[1])
            });
            let mut early = None;
            for n in 0..100_000 {
                step.run(&[(&x).into(), (&y).into()]).unwrap();
                if n % 100 == 99 {
                    let memory = device.memory();
                    let now = (HELD.load(Ordering::Relaxed), memory.live, memory.cached, memory.allocs);
                    let early = *early.get_or_insert(now);
                    assert_eq!(early, now, "step {n} on {device}");
                }
            }
            params.fingerprint().unwrap()
        };
        assert_eq!(run(), run(), "on {device}");
    }
}

fn main() {
    let tests: [(&str, fn()); 3] = [
        ("steps_allocate_nothing", steps_allocate_nothing),
        ("sessions_give_back_what_they_held", sessions_give_back_what_they_held),
        ("long_runs_hold_what_short_ones_do", long_runs_hold_what_short_ones_do),
    ];
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    for (name, test) in tests {
        if wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str())) {
            test();
            println!("test {name} ... ok");
        }
    }
}
