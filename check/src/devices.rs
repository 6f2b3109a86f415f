//! The devices that tests run on.

use dittograd_device::Device;
use dittograd_device::cpu::simd::Simd;
use dittograd_numerics::error::Result;
use std::io::Write;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The CPU at every SIMD level it has, with 1, 2, 3 and 8 threads; the simplest one first.
pub fn cpu_devices() -> Result<Vec<Device>> {
    let mut all = Vec::new();
    for simd in Simd::all_available() {
        for threads in [1, 2, 3, 8] {
            all.push(Device::cpu_with(threads, simd)?);
        }
    }
    Ok(all)
}

/// [`cpu_devices`], created once per process, for tests that only run kernels on them.
pub fn all_cpus() -> Result<&'static [Device]> {
    static ALL: OnceLock<Result<Vec<Device>>> = OnceLock::new();
    ALL.get_or_init(cpu_devices).as_deref().map_err(Clone::clone)
}

/// A handle of the first GPU with its own memory counters, for tests, which take turns on it. Without a GPU, it prints
/// why to the terminal: a run without a GPU must not look like one with it.
pub fn gpu() -> Option<(MutexGuard<'static, ()>, Device)> {
    static TURN: Mutex<()> = Mutex::new(());
    static GPU: OnceLock<Result<Device>> = OnceLock::new();
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let open = || {
        // Bypasses the test runner's capture, once.
        Device::cuda(0).inspect_err(|why| {
            let _ = writeln!(std::io::stderr(), "skipped: all that needs a GPU, no CUDA device ({why})");
        })
    };
    match GPU.get_or_init(open) {
        Ok(device) => Some((turn, Device::from_cuda(device.as_cuda()?.clone()))),
        Err(why) => {
            println!("skipped: no CUDA device ({why})");
            None
        }
    }
}
