//! Ten thousand steps: memory and counts stay where they were, and the bits are those of a process that just began.

use crate::support::{device, t};
use dittograd::nn::Mlp;
use dittograd::optim::Optimizer;
use dittograd::prelude::*;

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
    if let Some((_turn, gpu)) = crate::table::gpu() {
        lasts(&gpu);
        let cpu = steps(&device(), 300, |_, _| {});
        assert_eq!(steps(&gpu, 300, |_, _| {}), cpu, "the GPU has other bits");
    }
}
