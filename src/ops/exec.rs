//! Running one op: shapes, memory, kernel. Eager execution and the compiled executors meet here.

use super::{AnyOp, CpuRun, CudaRun};
use crate::device::{AnyBuffer, Backend, Buffer, DType, Device, Meta};
use crate::error::{Error, ErrorKind, Result};

/// Runs `op` on `ins` and returns its value on `device`. Nothing is allocated or run if the inputs do
/// not fit; if memory runs out, everything already taken is given back.
pub fn apply(device: &Device, op: &AnyOp, ins: &[&AnyBuffer]) -> Result<AnyBuffer> {
    let name = op.name();
    let mut metas = [Meta::f32(Default::default()); 32];
    if ins.len() > metas.len() {
        return Err(Error::new(name, ErrorKind::Arity { want: metas.len(), got: ins.len() }));
    }
    for (m, i) in metas.iter_mut().zip(ins) {
        if !device.accepts(i.buffer().device()) {
            let (want, got) = (device.to_string(), i.buffer().device().to_string());
            return Err(Error::new(name, ErrorKind::Device { want, got }));
        }
        if i.buffer().is_released() {
            return Err(Error::new(name, ErrorKind::Released));
        }
        *m = i.meta();
    }
    let metas = &metas[..ins.len()];
    let meta = op.shape(metas)?;
    if let Some((i, limit)) = op.index_limit(metas) {
        check_bound(name, ins[i], limit)?;
    }
    if op.is_view() {
        return ins[0].view(meta.shape);
    }
    let out = device.alloc(meta.shape.numel())?;
    let workspace = device.alloc(op.workspace(metas, device))?;
    let buffers: Vec<&Buffer> = ins.iter().map(|i| i.buffer()).collect();
    match device.backend() {
        Backend::Cpu(cpu) => {
            // One guard per block: the same thread must not lock a block for reading twice.
            let mut guards = Vec::with_capacity(buffers.len());
            let mut guard_of = Vec::with_capacity(buffers.len());
            for (i, b) in buffers.iter().enumerate() {
                let twin = buffers[..i].iter().position(|o| o.shares(b));
                guard_of.push(twin.map_or(guards.len(), |t| guard_of[t]));
                if twin.is_none() {
                    guards.push(b.read(name)?);
                }
            }
            let slices: Vec<&[f32]> = guard_of.iter().map(|&g| guards[g].host()).collect();
            let (mut out, mut workspace) = (out.write(name)?, workspace.write(name)?);
            op.cpu(CpuRun {
                pool: &cpu.pool,
                simd: cpu.simd,
                metas,
                ins: &slices,
                shape: meta.shape,
                out: out.host(),
                workspace: workspace.host(),
            });
        }
        Backend::Cuda(cuda) => {
            let mut addresses = [0; 32];
            for (a, b) in addresses.iter_mut().zip(&buffers) {
                *a = b.address(name)?;
            }
            op.cuda(&CudaRun {
                cuda,
                metas,
                ins: &addresses[..ins.len()],
                shape: meta.shape,
                out: out.address(name)?,
                workspace: workspace.address(name)?,
            })?;
        }
    }
    AnyBuffer::new(out, meta)
}

/// Errors if an index input may hold an entry at or above `limit`.
pub(crate) fn check_bound(op: &'static str, indices: &AnyBuffer, limit: usize) -> Result<()> {
    if indices.meta().dtype == DType::U32 && indices.bound() as usize > limit {
        let values = indices.to_indices()?;
        if let Some((at, &index)) = values.data().iter().enumerate().find(|(_, i)| **i as usize >= limit) {
            return Err(Error::new(op, ErrorKind::Index { at, index: index as usize, bound: limit }));
        }
    }
    Ok(())
}
