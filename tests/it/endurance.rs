//! Long runs and company: over ten thousand steps memory and counts stay where they were, and the bits are those of a process
//! that just began, with many threads at work, or with a busy GPU.

use crate::support::{device, t};
use dittograd::nn::Mlp;
use dittograd::numerics::Numerics;
use dittograd::ops::AnyOp;
use dittograd::optim::Optimizer;
use dittograd::prelude::*;
use dittograd_check as check;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// A step of a small network, and what the device holds after it.
fn steps(d: &Device, count: usize, mut after: impl FnMut(usize, &Device)) -> String {
    let mut params = Params::new(d, 5);
    let net = Mlp::new(&mut params, &[4, 8, 3]).unwrap();
    let mut optimizer = Optimizer::adamw(1e-3);
    let s = Session::eager_seeded(d, 9);
    let x = t(&[6, 4], &(0..24).map(|i| (i % 7) as f32 * 0.25 - 0.75).collect::<Vec<_>>());
    let labels = Tensor::new(&[6], vec![0u32, 1, 2, 2, 1, 0]).unwrap();
    for step in 0..count {
        s.reset();
        let logits = net.forward(s.input(&x).unwrap().dropout(0.1).unwrap()).unwrap();
        let loss = logits.cross_entropy(s.labels(&labels).unwrap()).unwrap();
        optimizer.step(&params, loss.backward().unwrap()).unwrap();
        after(step, d);
    }
    params.fingerprint().unwrap()
}

fn lasts(d: &Device) {
    let mut early = None;
    let mut last = None;
    let long = steps(d, 10_000, |step, d| {
        let m = d.memory();
        match step {
            99 => early = Some(m),
            9_999 => last = Some(m),
            _ => {}
        }
    });
    let (early, last) = (early.unwrap(), last.unwrap());
    assert_eq!((early.live, early.peak), (last.live, last.peak), "live memory moved on {d}");
    assert_eq!(early.allocs - early.frees, last.allocs - last.frees, "buffers piled up on {d}");
    assert!(last.cached <= early.cached, "cached memory grew on {d}: {early} then {last}");
    let again = steps(d, 10_000, |_, _| {});
    assert_eq!(long, again, "a second run on {d} differs");
}

#[test]
fn ten_thousand_steps_leave_memory_flat_and_repeat() {
    lasts(&device());
}

#[test]
fn ten_thousand_steps_on_cuda() {
    if let Some((_turn, gpu)) = dittograd_check::gpu() {
        lasts(&gpu);
        let cpu = steps(&device(), 300, |_, _| {});
        assert_eq!(steps(&gpu, 300, |_, _| {}), cpu, "the GPU has other bits");
    }
}

/// Sixteen threads, each with a session of its own, on one device and each on one of its own: the bits are those of one thread,
/// and nobody waits for ever.
#[test]
fn sixteen_sessions_at_once() {
    const ROUNDS: usize = 300;
    let want = steps(&device(), ROUNDS, |_, _| {});
    let shared = device();
    let (done, finished) = channel();
    for n in 0..16 {
        let (done, d) = (done.clone(), if n % 2 == 0 { shared.clone() } else { device() });
        std::thread::spawn(move || done.send(steps(&d, ROUNDS, |_, _| {})));
    }
    drop(done);
    for n in 0..16 {
        let print = finished.recv_timeout(Duration::from_secs(300));
        assert_eq!(print.as_ref(), Ok(&want), "the {n}th of the threads to end");
    }
    assert_eq!(shared.memory().live, 0);
}

/// Every op several times on a GPU that another stream keeps busy: one result, which is the CPU's.
#[test]
fn a_busy_gpu_changes_nothing() {
    let Some((_turn, gpu)) = dittograd_check::gpu() else { return };
    let other = gpu.in_mode(Numerics::Tf32).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let big = Tensor::from_fn(Shape::new(&[2048, 2048]).unwrap(), |i| (i % 13) as f32 * 0.1 - 0.6);
            let s = Session::eager(&other);
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) {
                s.reset();
                let x = s.input(&big).unwrap();
                let y = (0..4).try_fold(x, |y, _| y.matmul(x)?.tanh()).unwrap();
                y.sum().unwrap().value::<f32>().unwrap();
                rounds += 1;
            }
            rounds
        });
        let cpu = device();
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| {
            for op in AnyOp::NAMES {
                let here = check::repeat(*op, &gpu, 4).unwrap().fingerprint;
                let there = check::repeat(*op, &cpu, 1).unwrap().fingerprint;
                assert_eq!(here, there, "{op}");
            }
        }));
        stop.store(true, Ordering::Relaxed);
        let rounds = busy.join().unwrap();
        assert!(rounds > 10, "the other stream did only {rounds} rounds");
        println!(
            "{} ops 4 times while another stream did {rounds} rounds of four products",
            AnyOp::NAMES.len()
        );
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
}
