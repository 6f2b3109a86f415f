//! The CUDA kernels of checks, compiled before they are wanted.

use crate::cases::Subject;
use crate::kernels::program;
use dittograd_device::cuda::Source;
use dittograd_device::{Device, Meta};
use dittograd_engine::graph::Passes;
use dittograd_ops::SampleIn;

/// Runs `run`, which checks these ops in this order, while the kernels of the CUDA device among `devices` are compiled on
/// all cores: those of the samples of each op and of its gradient rule. `run` waits for a kernel that is under way, and
/// compiles one that is not. Without such a device this is `run` alone.
pub fn with_kernels_ahead<T>(devices: &[Device], ops: &[&str], run: impl FnOnce() -> T) -> T {
    match devices.iter().find_map(|device| Some((device, device.as_cuda()?))) {
        Some((device, cuda)) => {
            cuda.compile_ahead(ops.iter().flat_map(|op| kernels_of(&Subject::from(*op), device)), run)
        }
        None => run(),
    }
}

/// The modules that the checks of an op ask for on a device, as far as they are known before anything runs.
#[doc(hidden)]
pub fn kernels_of(subject: &Subject, device: &Device) -> Vec<Source> {
    let mut all = Vec::new();
    for sample in subject.samples.iter().chain(&subject.drawn) {
        let metas: Vec<Meta> = sample.ins.iter().map(SampleIn::meta).collect();
        // If something is wrong with a sample, its check says so.
        let Ok((graph, wanted, _)) = program(&sample.op, &metas) else { continue };
        for passes in [None, Some(Passes::all())] {
            all.extend(graph.cuda_modules(&wanted, passes, device).unwrap_or_default());
        }
    }
    let mut seen = std::collections::HashSet::new();
    all.retain(|module| seen.insert(module.clone()));
    all
}
