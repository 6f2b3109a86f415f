//! Labels with an ignored class: what cross-entropy and negative log-likelihood share.

use super::{inverse, mean};
use crate::pointwise::map::grid;
use crate::{CpuRun, CudaRun, dims};
use dittograd_device::Device;
use dittograd_device::cpu::simd::Simd;
use dittograd_device::cpu::threads::Pool;
use dittograd_device::cuda::Args;
use dittograd_numerics::Numerics;
use dittograd_numerics::error::Result;
use dittograd_numerics::shape::Shape;

pub(super) const LOSS_CU: &str = include_str!("loss.cu");

/// Labels of rows, some of which may be ignored. A label that is neither ignored nor below the number of classes makes
/// its row NaN. If no label is ignored, such labels are refused instead.
#[derive(Clone, Copy)]
pub(super) struct Labels {
    pub(super) rows: usize,
    pub(super) classes: usize,
    pub(super) ignore: Option<u32>,
}

/// Where the parts of the workspace start, in words. Safe labels come first.
pub(super) struct LabelSpace {
    pub(super) losses: usize,
    pub(super) picked: usize,
    pub(super) scalars: usize,
    pub(super) rest: usize,
}

impl Labels {
    pub(super) fn of(x: &Shape, ignore: Option<u32>) -> Labels {
        Labels { rows: x.rows(), classes: x.last(), ignore }
    }

    /// The layout of the workspace.
    pub(super) fn space(self) -> LabelSpace {
        let rows = self.rows.next_multiple_of(4);
        LabelSpace { losses: rows, picked: 2 * rows, scalars: 3 * rows, rest: 3 * rows + 4 }
    }

    /// The value of a row without a loss: 0 if its label is ignored, NaN if it is out of range.
    pub(super) fn instead(self, label: u32) -> Option<f32> {
        match label {
            _ if self.ignore == Some(label) => Some(0.0),
            _ if label as usize >= self.classes => Some(f32::NAN),
            _ => None,
        }
    }

    /// `1 / n` for the `n` rows that are not ignored; 0 if all are.
    pub(super) fn inverse(self, labels: &[u32]) -> f32 {
        inverse(labels.iter().filter(|l| self.ignore != Some(**l)).count())
    }

    /// Writes labels that are safe to index with: out-of-range and ignored ones become 0.
    pub(super) fn safe(self, labels: &[u32], out: &mut [u32]) {
        for (s, &label) in out.iter_mut().zip(labels) {
            *s = if self.instead(label).is_some() { 0 } else { label };
        }
    }

    /// Overwrites the rows without a loss.
    pub(super) fn settle(self, labels: &[u32], width: usize, out: &mut [f32]) {
        for (row, &label) in out.chunks_mut(width).zip(labels) {
            if let Some(value) = self.instead(label) {
                row.fill(value);
            }
        }
    }

    pub(super) fn ignore_args(self, args: &mut Args) {
        args.u32(self.ignore.unwrap_or(0)).i32(i32::from(self.ignore.is_some()));
    }

    pub(super) fn launch(self, run: &CudaRun<'_>, name: &str, threads: usize, args: &Args) -> Result<()> {
        let kernel = run.cuda.kernel("loss", LOSS_CU, name)?;
        if threads == 0 {
            return Ok(());
        }
        run.cuda.launch(kernel, grid(run.cuda, threads), 256, 0, args)
    }

    /// Queues the computation of the safe labels and the two scalars. `dy` may be 0.
    pub(super) fn prepare_cuda(self, run: &CudaRun<'_>, labels: u64, dy: u64) -> Result<()> {
        let scalars = run.workspace + self.space().scalars as u64 * 4;
        let kernel = run.cuda.kernel("loss", LOSS_CU, "labels_prepare")?;
        let mut args = Args::new();
        args.ptr(labels).ptr(dy).ptr(run.workspace).ptr(scalars);
        args.u64(self.rows as u64).u64(self.classes as u64);
        self.ignore_args(&mut args);
        run.cuda.launch(kernel, [1, 1, 1], 1024, 0, &args)
    }

    /// Queues a gather of the elements at the safe labels.
    pub(super) fn pick_cuda(self, run: &CudaRun<'_>, out: u64, negative: bool) -> Result<()> {
        let mut args = Args::new();
        args.ptr(run.ins[0]).ptr(run.workspace).ptr(out);
        args.u64(self.rows as u64).u64(self.classes as u64).i32(i32::from(negative));
        self.launch(run, "labels_pick", self.rows, &args)
    }

    pub(super) fn settle_cuda(self, run: &CudaRun<'_>, labels: u64, width: usize, out: u64) -> Result<()> {
        let mut args = Args::new();
        args.ptr(labels).ptr(out).u64(self.rows as u64).u64(width as u64).u64(self.classes as u64);
        self.ignore_args(&mut args);
        self.launch(run, "labels_settle", self.rows * 32, &args)
    }

    /// Words that [`mean`] needs.
    pub(super) fn mean_space(self, device: &Device) -> usize {
        mean().workspace(&dims(&[self.rows]), &[0], device)
    }

    /// The sum of the rows' losses times a scalar, on the CPU.
    pub(super) fn mean_cpu(
        self,
        pool: &Pool,
        simd: Simd,
        losses: &[f32],
        weight: f32,
        out: &mut [f32],
        workspace: &mut [f32],
    ) {
        let shape = dims(&[self.rows]);
        let run = CpuRun {
            pool,
            simd,
            numerics: Numerics::default(),
            metas: &[],
            ins: &[losses, &[weight]],
            shape: Shape::SCALAR,
            out,
            workspace,
        };
        mean().run_cpu(&shape, &[0], run);
    }

    /// [`Labels::mean_cpu`] on CUDA. The factor is the first scalar in the workspace.
    pub(super) fn mean_cuda(self, run: &CudaRun<'_>) -> Result<()> {
        let space = self.space();
        let at = |words: usize| run.workspace + words as u64 * 4;
        let shape = dims(&[self.rows]);
        let ins = [at(space.losses), at(space.scalars)];
        mean().run_cuda(&shape, &[0], &CudaRun { ins: &ins, workspace: at(space.rest), ..*run })
    }
}
