//! The CUDA kernels: which one is launched, and with what.

use super::Which;
use crate::pointwise::map::grid;
use crate::reduce::fold::Pass;
use crate::{CudaRun, Gpu};
use dittograd_device::cuda::{Args, Source};
use dittograd_numerics::error::Result;

pub(super) const EXTREMUM_CU: &str = include_str!("extremum.cu");

pub(super) fn module() -> Source {
    ("extremum".into(), EXTREMUM_CU)
}

/// How many segments each row or column is cut into, and their length: enough to fill the GPU.
pub(super) fn segments(pass: Pass, gpu: &Gpu) -> (usize, usize) {
    let (busy, least) = match pass.inner {
        1 => (pass.outer * 32, 1024),
        inner => (pass.outer * inner, 32),
    };
    let wanted = (gpu.sm_count as usize * 1024).div_ceil(busy.max(1));
    let length = pass.rows.div_ceil(wanted).max(least);
    (pass.rows.div_ceil(length).max(1), length)
}

pub(super) fn run_cuda(which: Which, pass: Pass, run: &CudaRun<'_>) -> Result<()> {
    let Pass { outer, rows, inner } = pass;
    let results = outer * inner;
    if results == 0 {
        return Ok(());
    }
    let (segments, length) = segments(pass, &Gpu::of(run.cuda));
    let kernel = |name| run.cuda.kernel("extremum", EXTREMUM_CU, name);
    let smallest = i32::from(which == Which::Smallest);
    let mut args = Args::new();
    args.ptr(run.ins[0]).ptr(run.out).ptr(run.workspace).u64(outer as u64).u64(rows as u64);
    if inner == 1 {
        args.u64(segments as u64).u64(length as u64).i32(smallest);
        run.cuda.launch(kernel("arg_rows")?, grid(run.cuda, outer * segments * 32), 256, 0, &args)?;
    } else {
        args.u64(inner as u64).u64(segments as u64).u64(length as u64).i32(smallest);
        run.cuda.launch(kernel("arg_columns")?, grid(run.cuda, results * segments), 256, 0, &args)?;
    }
    if segments == 1 {
        return Ok(());
    }
    let mut args = Args::new();
    args.ptr(run.workspace).ptr(run.out).u64(outer as u64).u64(segments as u64).u64(inner as u64);
    run.cuda.launch(kernel("arg_words")?, grid(run.cuda, results * 32), 256, 0, &args)
}

pub(super) fn launch_places(name: &str, pass: Pass, run: &CudaRun<'_>) -> Result<()> {
    let Pass { outer, rows, inner } = pass;
    if outer * inner == 0 {
        return Ok(());
    }
    let kernel = run.cuda.kernel("extremum", EXTREMUM_CU, name)?;
    let mut args = Args::new();
    args.ptr(run.ins[0]).ptr(run.ins[1]).ptr(run.out);
    args.u64(outer as u64).u64(rows as u64).u64(inner as u64);
    run.cuda.launch(kernel, grid(run.cuda, outer * inner), 256, 0, &args)
}
