//! After its second step a compiled training step takes no memory from the host any more. In a program of its own: it
//! counts every allocation of the process.
#![allow(missing_docs, unsafe_code, clippy::unwrap_used)]

use dittograd::graph::TrainStep;
use dittograd::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counted;

static COUNT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

#[test]
fn steps_allocate_nothing() {
    let mut devices = vec![Device::cpu().unwrap()];
    devices.extend(Device::cuda(0));
    for device in devices {
        let mut params = Params::new(&device, 7);
        let net = Mlp::new(&mut params, &[20, 32, 32, 4]).unwrap();
        let x = Tensor::from_fn(Shape::new(&[16, 20]).unwrap(), |i| (i % 9) as f32 * 0.1 - 0.4);
        let y = Tensor::from_fn(Shape::new(&[16]).unwrap(), |i| i as u32 % 4);
        let mut step =
            TrainStep::new(&params, Optimizer::adamw(1e-3), |v| net.forward(v[0])?.cross_entropy(v[1]));
        let inputs = [(&x).into(), (&y).into()];
        (0..2).for_each(|_| step.run(&inputs).unwrap());
        let (host, before) = (COUNT.load(Ordering::Relaxed), device.memory());
        for i in 0..100 {
            step.run(&inputs).unwrap();
            let made = COUNT.load(Ordering::Relaxed) - host;
            assert_eq!(made, 0, "step {i} on {device} allocated");
        }
        let after = device.memory();
        assert_eq!(after.allocs, before.allocs, "device allocations on {device}");
    }
}
