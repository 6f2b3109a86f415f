//! Choice and launch of the CUDA kernels.

use super::{MAX_BLOCKS, Rows, Variant, formulas, inverse};
use crate::fused::FusedCode;
use crate::pointwise::map::grid;
use crate::softmax::rows::{COLUMN_SUM, fills_lanes, partials, per_lane};
use crate::{CudaRun, Gpu, layout};
use dittograd_device::cuda::{Args, Cuda, Source};
use dittograd_numerics::error::Result;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::sum::{CHUNK, ROWS};

pub(super) const NORM_CU: &str = include_str!("norm.cu");

impl Rows {
    /// The kernel variant when `copies` rows are held at a time: `x`, and `dy` too for gradients.
    pub(super) fn variant(&self, copies: usize, gpu: &Gpu) -> Variant {
        if self.width <= CHUNK {
            return Variant::Warp { per_lane: per_lane(self.width) };
        }
        let threads = match self.width {
            0..=4096 => 128,
            4097..=8192 => 256,
            _ => 512,
        };
        // Shared memory holds the rows and up to 64 chunk sums.
        let keep = self.width <= 64 * CHUNK && copies * self.width * 4 + 1024 <= gpu.shared;
        Variant::Block { threads, keep }
    }

    /// Number of blocks, one row each. Blocks that need workspace loop over rows. Otherwise there is one block per row:
    /// many short blocks fill the device better than looping ones.
    pub(super) fn blocks(&self, threads: u32, keep: bool, gpu: &Gpu) -> usize {
        self.rows.min(if keep { MAX_BLOCKS } else { gpu.sm_count as usize * (2048 / threads as usize) })
    }

    /// Words per block for the chunk sums of rows that do not fit into shared memory.
    pub(super) fn sums_words(&self, copies: usize, gpu: &Gpu) -> usize {
        match self.variant(copies, gpu) {
            Variant::Block { keep: false, threads } => {
                self.blocks(threads, false, gpu) * 2 * partials(self.width)
            }
            _ => 0,
        }
    }

    /// Whether one kernel computes all gradients: a row fits in a warp, and there are enough rows that 32 per block
    /// still fill the device.
    pub(super) fn fused(&self, sums: usize, gpu: &Gpu) -> bool {
        sums > 0 && self.width <= CHUNK && self.rows >= ROWS * gpu.sm_count as usize
    }

    /// Words of the backward kernels' workspace on CUDA: column sums, statistics of rows, chunk sums of long rows.
    pub(super) fn regions(&self, sums: usize, gpu: &Gpu) -> [usize; 3] {
        let stats = if sums > 0 && !self.fused(sums, gpu) { 2 * self.rows } else { 0 };
        [sums * self.rows.div_ceil(ROWS) * self.width, stats, self.sums_words(2, gpu)]
    }

    /// The module for rows of this length. `affine` counts gain and shift, `sums` the gradients of them that are
    /// wanted.
    pub(super) fn module(&self, copies: usize, affine: usize, sums: usize, gpu: &Gpu) -> Source {
        self.module_with(copies, affine, sums, gpu, FusedCode::default())
    }

    /// [`Rows::module`] with a prologue and an epilogue.
    pub(super) fn module_with(
        &self,
        copies: usize,
        affine: usize,
        sums: usize,
        gpu: &Gpu,
        code: FusedCode<'_>,
    ) -> Source {
        let variant = self.variant(copies, gpu);
        let fused = copies == 2 && self.fused(sums, gpu);
        let mut head = format!(
            "#define CHUNK {CHUNK}\n#define ROWS {ROWS}\n#define CENTERED {}\n#define AFFINE {affine}\n#define SUMS {sums}\n#define FUSED {}\n",
            u8::from(self.centered),
            u8::from(fused),
        );
        let name = match variant {
            Variant::Warp { per_lane } => {
                let exact = fills_lanes(self.width);
                head += &format!("#define PER_LANE {per_lane}\n#define EXACT {}\n", u8::from(exact));
                format!("warp{per_lane}{}", if exact { "e" } else { "" })
            }
            Variant::Block { threads, keep } => {
                head += &format!("#define THREADS {threads}\n#define KEEP {}\n", u8::from(keep));
                format!("block{threads}{}", if keep { "k" } else { "" })
            }
        };
        if copies == 2 {
            head.push_str("#define BACKWARD\n");
        }
        let name = format!(
            "norm_{}_{}_{name}_a{affine}s{sums}{}",
            if self.centered { "layer" } else { "rms" },
            if copies == 2 { "bwd" } else { "fwd" },
            if fused { "f" } else { "" }
        );
        let (tag, before) = code.text();
        crate::module(name + &tag, || head + &before + COLUMN_SUM + &formulas() + NORM_CU)
    }

    pub(super) fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        let gpu = Gpu::of(run.cuda);
        let at = |i: usize| run.ins.get(i).copied().unwrap_or(0);
        let (module, source) = self.module_with(1, run.ins.len() - 1, 0, &gpu, run.fused);
        let kernel = run.cuda.kernel(&module, source, "normalize")?;
        let mut args = Args::new();
        args.ptr(run.out).ptr(at(0)).ptr(at(1)).ptr(at(2)).ptr(run.workspace);
        args.u64(partials(self.width) as u64).u64(self.rows as u64).u64(self.width as u64);
        args.f32(inverse(self.width)).f32(self.eps);
        run.fused.push(&mut args);
        self.launch(run.cuda, kernel, 1, &gpu, &args)
    }

    pub(super) fn launch(
        &self,
        cuda: &Cuda,
        kernel: dittograd_device::cuda::Kernel,
        copies: usize,
        gpu: &Gpu,
        args: &Args,
    ) -> Result<()> {
        match self.variant(copies, gpu) {
            Variant::Warp { .. } => {
                let blocks = self.rows.div_ceil(8).min(MAX_BLOCKS) as u32;
                cuda.launch(kernel, [blocks, 1, 1], 256, 0, args)
            }
            Variant::Block { threads, keep } => {
                let shared = if keep { (copies * self.width * 4) as u32 } else { 0 };
                let blocks = self.blocks(threads, keep, gpu) as u32;
                cuda.launch(kernel, [blocks, 1, 1], threads, shared, args)
            }
        }
    }

    pub(super) fn cuda_bwd(&self, parts: &[Shape], run: &CudaRun<'_>) -> Result<()> {
        let gpu = Gpu::of(run.cuda);
        let sums = parts.len() - 1;
        clear_gaps(parts, run)?;
        let (x, dy) = (run.ins[0], run.ins[run.ins.len() - 1]);
        let gamma = if run.ins.len() == 3 { run.ins[1] } else { 0 };
        let groups = self.rows.div_ceil(ROWS);
        let [chains, stats, _] = self.regions(sums, &gpu).map(|words| words as u64 * 4);
        let (stats_at, sums_at) = (run.workspace + chains, run.workspace + chains + stats);
        let (module, source) = self.module(2, run.ins.len() - 2, sums, &gpu);
        if self.rows > 0 {
            let kernel = run.cuda.kernel(&module, source, "gradients")?;
            let mut args = Args::new();
            args.ptr(run.out).ptr(x).ptr(gamma).ptr(dy).ptr(run.workspace).ptr(stats_at).ptr(sums_at);
            args.u64(partials(self.width) as u64).u64(self.rows as u64).u64(groups as u64);
            args.u64(self.width as u64).f32(inverse(self.width)).f32(self.eps);
            if self.fused(sums, &gpu) {
                let blocks = groups.min(MAX_BLOCKS);
                run.cuda.launch(kernel, [blocks as u32, 1, 1], 256, 0, &args)?;
            } else {
                self.launch(run.cuda, kernel, 2, &gpu, &args)?;
            }
        }
        if sums == 0 {
            return Ok(());
        }
        if self.rows > 0 && !self.fused(sums, &gpu) {
            let kernel = run.cuda.kernel(&module, source, "chains")?;
            let mut args = Args::new();
            args.ptr(run.workspace).ptr(stats_at).ptr(x).ptr(dy);
            args.u64(self.rows as u64).u64(groups as u64).u64(self.width as u64);
            run.cuda.launch(kernel, grid(run.cuda, groups * self.width), 256, 0, &args)?;
        }
        let kernel = run.cuda.kernel(&module, source, "fold")?;
        let (starts, _) = layout::packed(parts);
        let mut args = Args::new();
        args.ptr(run.workspace).ptr(run.out + starts[1] as u64 * 4);
        args.u64(groups as u64).u64(self.width as u64);
        args.u64(self.width.next_multiple_of(4) as u64).u64(sums as u64);
        let tiles = self.width.div_ceil(32).min(1 << 20);
        let warps = groups.div_ceil(ROWS).clamp(1, 32) as u32;
        run.cuda.launch(kernel, [tiles as u32, 1, 1], warps * 32, 0, &args)
    }
}

/// Zeroes the words between the parts of a packed value.
pub(crate) fn clear_gaps(parts: &[Shape], run: &CudaRun<'_>) -> Result<()> {
    let (starts, end) = layout::packed(parts);
    for (i, part) in parts.iter().enumerate() {
        let from = starts[i] + part.numel();
        let to = starts.get(i + 1).copied().unwrap_or(end);
        if from < to {
            run.cuda.fill(run.out + from as u64 * 4, 0, to - from)?;
        }
    }
    Ok(())
}
