//! Running one op: shapes, memory, kernel. Eager execution and the compiled executors meet here.

use super::{AnyOp, CpuRun, CudaRun, Definitions, IndexBound};
use dittograd_device::cpu::simd::Simd;
use dittograd_device::cuda::Work;
use dittograd_device::cuda::driver::HostMemory;
use dittograd_device::{AnyBuffer, Backend, Buffer, Cpu, DType, Device, Meta, ReadSet};
use dittograd_numerics::Numerics;
use dittograd_numerics::environment;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::Shape;
use std::sync::{Arc, OnceLock};

/// Most inputs of ops whose kernels have room for so many; only ops that take lists of any length have more.
#[doc(hidden)]
pub const MAX_INS: usize = 32;

/// Something of every input or result of an op: on the stack, unless there are very many.
#[doc(hidden)]
pub struct PerInput<T> {
    few: [T; MAX_INS],
    many: Vec<T>,
    len: usize,
}

impl<T: Copy> PerInput<T> {
    /// The same for all `len` inputs.
    pub fn new(len: usize, value: T) -> PerInput<T> {
        let many = if len > MAX_INS { vec![value; len] } else { Vec::new() };
        PerInput { few: [value; MAX_INS], many, len }
    }

    /// All of them.
    pub fn all(&self) -> &[T] {
        if self.many.is_empty() { &self.few[..self.len] } else { &self.many }
    }

    /// All of them, to write.
    pub fn all_mut(&mut self) -> &mut [T] {
        if self.many.is_empty() { &mut self.few[..self.len] } else { &mut self.many }
    }
}

impl<T: Copy> std::ops::Deref for PerInput<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.all()
    }
}

/// Runs `op` on `ins` and returns its value on `device`. Nothing is allocated or run if the inputs do
/// not fit; if memory runs out, everything already taken is given back.
pub fn apply(device: &Device, op: &AnyOp, ins: &[&AnyBuffer]) -> Result<AnyBuffer> {
    let _strict = environment::enter();
    let name = op.name();
    let mut metas = PerInput::new(ins.len(), Meta::f32(Default::default()));
    for (m, i) in metas.all_mut().iter_mut().zip(ins) {
        device.check_accepts(name, i.buffer())?;
        if i.buffer().is_released() {
            return Err(Error::new(name, ErrorKind::Released));
        }
        *m = i.meta();
    }
    let metas = metas.all();
    let meta = op.shape(metas)?;
    if let Some((i, limit)) = op.index_limit(metas) {
        check_bound(name, ins[i], limit)?;
    }
    if let Some(start) = op.view(metas) {
        return ins[0].part(start, meta.shape);
    }
    if let Backend::Host(numbers) = device.backend() {
        return match numbers.kernels().downcast_ref::<Definitions>() {
            Some(definitions) => definitions.run(device, op, meta, ins),
            None => Err(Error::unsupported(name, "a device whose numbers no op knows")),
        };
    }
    let out = device.alloc_for(name, &meta.shape)?;
    let workspace = device.alloc_for(name, &Shape::new(&[op.workspace(metas, device)])?)?;
    device.timed(name, metas, meta.shape, || run(device, op, metas, meta, ins, &out, &workspace))?;
    let bound = match op.index_bound(metas) {
        IndexBound::Unknown => u32::MAX,
        IndexBound::Below(n) => n.try_into().unwrap_or(u32::MAX),
        IndexBound::OfInputs(n) => ins.iter().take(n).map(|i| i.bound()).fold(1, u32::max),
    };
    Ok(AnyBuffer::new(out, meta)?.with_bound(bound))
}

/// Runs the kernels of an op, or queues them.
fn run(
    device: &Device,
    op: &AnyOp,
    metas: &[Meta],
    meta: Meta,
    ins: &[&AnyBuffer],
    out: &Buffer,
    workspace: &Buffer,
) -> Result<()> {
    let name = op.name();
    match device.backend() {
        Backend::Cpu(cpu) => {
            let set = ReadSet::new(ins.iter().map(|i| i.buffer()));
            let locked = set.lock(name)?;
            let mut slices: PerInput<&[f32]> = PerInput::new(ins.len(), &[]);
            slices.all_mut().iter_mut().enumerate().for_each(|(i, s)| *s = locked.host(i));
            let (mut out, mut workspace) = (out.write(name)?, workspace.write(name)?);
            op.cpu(CpuRun {
                pool: &cpu.pool,
                simd: cpu.simd,
                numerics: cpu.numerics,
                metas,
                ins: slices.all(),
                shape: meta.shape,
                out: out.host(),
                workspace: workspace.host(),
            });
            cpu.flips.strike(out.host());
        }
        Backend::Cuda(cuda) => {
            let mut addresses = PerInput::new(ins.len(), 0);
            for (a, i) in addresses.all_mut().iter_mut().zip(ins) {
                *a = i.buffer().address(name)?;
            }
            let run = CudaRun {
                cuda,
                metas,
                ins: addresses.all(),
                shape: meta.shape,
                out: out.address(name)?,
                workspace: workspace.address(name)?,
                fused: Default::default(),
                leaves: None,
                magnitudes: [0; 2],
            };
            launch(op, &run)?;
        }
        Backend::Host(_) => {}
    }
    Ok(())
}

/// The CPU that computes where a driver runs no kernels, in the driver's mode if it has that.
#[doc(hidden)]
pub fn with_stand_in<T>(numerics: Numerics, f: impl FnOnce(&Device, &Cpu) -> Option<T>) -> Option<T> {
    static CPUS: [OnceLock<Option<Device>>; 3] = [const { OnceLock::new() }; 3];
    let (cpu, mode) = match numerics {
        Numerics::Strict | Numerics::Tf32 => (&CPUS[0], Numerics::Strict),
        Numerics::Fast => (&CPUS[1], Numerics::Fast),
        Numerics::Turbo => (&CPUS[2], Numerics::Turbo),
    };
    let device = cpu.get_or_init(|| Device::cpu_in_mode(1, Simd::best(), mode).ok()).as_ref()?;
    match device.backend() {
        Backend::Cpu(cpu) => f(device, cpu),
        Backend::Cuda(_) | Backend::Host(_) => None,
    }
}

/// Queues an op on CUDA. On a driver that runs no kernels its value comes from the CPU's, in the place of those that were
/// just launched, so that everything around kernels has results to be compared where there is no GPU.
#[doc(hidden)]
pub fn launch(op: &AnyOp, run: &CudaRun<'_>) -> Result<()> {
    op.cuda(run)?;
    run.cuda.stand_in(|| -> Work {
        let (op, metas, ins) = (op.clone(), run.metas.to_vec(), run.ins.to_vec());
        let (shape, out, numerics) = (run.shape, run.out, run.cuda.numerics());
        let flips = run.cuda.flips().clone();
        Arc::new(move |memory: &mut dyn HostMemory| {
            let words = |(address, meta): (&u64, &Meta)| memory.words(*address, meta.shape.numel());
            let values = ins.iter().zip(&metas).map(words).collect::<Option<Vec<_>>>()?;
            let ins: Vec<&[f32]> = values.iter().map(Vec::as_slice).collect();
            let mut value = vec![f32::NAN; shape.numel()];
            with_stand_in(numerics, |device, cpu| {
                let mut workspace = vec![f32::NAN; op.workspace(&metas, device)];
                op.cpu(CpuRun {
                    pool: &cpu.pool,
                    simd: cpu.simd,
                    numerics: cpu.numerics,
                    metas: &metas,
                    ins: &ins,
                    shape,
                    out: &mut value,
                    workspace: &mut workspace,
                });
                Some(())
            })?;
            flips.strike(&mut value);
            memory.set_words(out, &value)
        })
    })
}

/// Errors if an index input may hold an entry at or above `limit`.
#[doc(hidden)]
pub fn check_bound(op: &'static str, indices: &AnyBuffer, limit: usize) -> Result<()> {
    if indices.meta().dtype == DType::U32 && indices.bound() as usize > limit {
        check_indices(op, indices.to_indices()?.data(), limit)?;
    }
    Ok(())
}

/// Errors if one of `indices` is at or above `limit`.
#[doc(hidden)]
pub fn check_indices(op: &'static str, indices: &[u32], limit: usize) -> Result<()> {
    match indices.iter().enumerate().find(|(_, i)| **i as usize >= limit) {
        None => Ok(()),
        Some((at, &index)) => {
            Err(Error::new(op, ErrorKind::Index { at, index: index as usize, bound: limit }))
        }
    }
}
