//! Choice and launch of the CUDA kernels.

use super::{Channels, about_mean, moment_about_mean};
use crate::magnitudes::{Lines, MAGNITUDES_CU};
use crate::norm::{MAX_BLOCKS, clear_gaps, formulas, inverse};
use crate::pointwise::device_function::device_function;
use crate::pointwise::expression::Pointwise;
use crate::pointwise::map::grid;
use crate::softmax::rows::{COLUMN_SUM, per_lane};
use crate::{CudaRun, dims, layout};
use dittograd_device::cuda::{Args, Source};
use dittograd_numerics::error::Result;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::sum::{CHUNK, ROWS};

pub(super) const CHANNEL_CU: &str = include_str!("channel_norm.cu");
const GROUPS_CU: &str = include_str!("channel_groups.cu");
const BLOCK_CU: &str = include_str!("channel_block.cu");

/// The most warps of a block that has a channel, elements that a lane sums up at a time, and chunks of a warp.
const MOST_WARPS: usize = 16;
const MOST_ELEMENTS: usize = 16;
const MOST_EACH: usize = 8;

/// Warps of such a block that reads sums of chunks only.
const FEW_WARPS: usize = 4;

/// Elements of a channel up to which a block of threads reads them itself, where there are many channels, and where each multiprocessor has one.
const FEW: usize = 8192;
const FEW_ALONE: usize = 32768;

/// How a block of threads has a channel.
struct Block {
    warps: usize,
    /// Chunks that a warp sums up at a time; 0 if a kernel of their own does for all channels.
    each: usize,
    /// These are all of the channel, so that the block holds them until their gradient is known.
    holds: bool,
    /// Bytes of shared memory: sums of chunks, and the terms of their sums.
    shared: usize,
}

impl Channels {
    /// Lanes that sum up a chunk. Short runs share a warp: each gets as many as it has elements, rounded up to a power of two.
    fn lanes(&self) -> usize {
        self.s.clamp(1, 32).next_power_of_two()
    }

    /// How blocks have a channel each, where groups are channels of a few long runs.
    fn block(&self, backward: bool, sm_count: u32) -> Option<Block> {
        let count = self.n * self.chunks();
        if self.groups.is_some() || self.lanes() < 32 || count == 0 || count > ROWS * ROWS {
            return None;
        }
        let (words, terms) = if backward { (4, 2) } else { (2, 1) };
        let shared = 4 * (count * words + count.div_ceil(ROWS) * terms * (ROWS + 1));
        if self.n * self.s > if self.c > sm_count as usize { FEW } else { FEW_ALONE } {
            return Some(Block { warps: count.div_ceil(32).min(FEW_WARPS), each: 0, holds: false, shared });
        }
        let per_lane = per_lane(self.s.min(CHUNK));
        let each = (MOST_ELEMENTS / per_lane).clamp(1, MOST_EACH);
        // Unless they hold what they read, more blocks on a multiprocessor are better than larger ones.
        let most = if backward || self.c <= sm_count as usize { MOST_WARPS } else { MOST_WARPS / 2 };
        let warps = count.div_ceil(each).min(most);
        let holds = backward && per_lane <= MOST_ELEMENTS && count <= warps * each;
        Some(Block { warps, each, holds, shared })
    }

    /// The kernels; with `lines`, those of gradients leave the largest magnitude of each run.
    pub(super) fn module(
        &self,
        backward: bool,
        affine: usize,
        lines: Option<Lines>,
        sm_count: u32,
    ) -> Source {
        let (lanes, per_lane) = (self.lanes(), per_lane(self.s.min(CHUNK)));
        let block = self.block(backward, sm_count);
        let vector = if self.s.is_multiple_of(4) && self.s > 0 { 4 } else { 1 };
        let (batch, single) = (u8::from(self.groups.is_none()), u8::from(self.s == 1));
        let wide = u8::from(self.pieces() * self.s > u32::MAX as usize);
        let mut head = format!(
            "#define CHUNK {CHUNK}\n#define ROWS {ROWS}\n#define LANES {lanes}\n#define PER_LANE {per_lane}\n#define VECTOR {vector}\n#define BATCH {batch}\n#define SINGLE {single}\n#define WIDE {wide}\n#define AFFINE {affine}\n"
        );
        let run_warps = lines.map_or(0, |l| l.warps());
        if backward {
            head += &format!("#define BACKWARD\n#define RUN_WARPS {run_warps}\n");
            head += if run_warps > 0 { MAGNITUDES_CU } else { "" };
        }
        let traced = || {
            let about = Pointwise::trace(4, |v| vec![about_mean(v[0], v[1], v[2], v[3])]);
            let moment = Pointwise::trace(4, |v| vec![moment_about_mean(v[0], v[1], v[2], v[3])]);
            device_function("about_mean", &about) + &device_function("moment_about_mean", &moment)
        };
        let mut of_block = String::new();
        if let Some(Block { warps, each, holds, .. }) = block {
            let holds = u8::from(holds);
            head += &format!("#define WARPS {warps}\n#define EACH {each}\n#define HOLDS {holds}\n");
            of_block = format!("w{warps}e{each}h{holds}");
        }
        let rest = if block.is_some() { BLOCK_CU } else { GROUPS_CU };
        let name = format!(
            "channel_norm_{}_l{lanes}p{per_lane}v{vector}a{affine}r{run_warps}{of_block}{}{}{}",
            if backward { "bwd" } else { "fwd" },
            if batch == 1 { "b" } else { "g" },
            if single == 1 { "1" } else { "" },
            if wide == 1 { "w" } else { "" }
        );
        crate::module(name, || head + COLUMN_SUM + &formulas() + &traced() + CHANNEL_CU + rest)
    }

    /// Whether the kernels of gradients can leave the largest magnitudes of these lines: they are the runs.
    pub(super) fn leaves_lines(&self, lines: Lines) -> bool {
        let runs = Lines { start: 0, length: self.s, count: self.pieces() };
        lines == runs && self.s > 1 && self.pieces() > 0
    }

    /// The kernels' `Shape` and `Factors` arguments: eight 64-bit and four 32-bit words.
    pub(super) fn layout_args(&self, args: &mut Args) {
        let words = [
            self.n,
            self.c,
            self.s,
            self.chunks(),
            self.pieces() * self.chunks(),
            self.group_count(),
            self.group_runs(),
            self.groups.unwrap_or(0),
        ]
        .map(|w| w as u64);
        args.bytes(bytemuck::cast_slice(&words), 8);
        let tail = if self.s == 0 { 1 } else { self.len(self.chunks() - 1) };
        let floats = [inverse(CHUNK), inverse(tail), self.inverse(), self.eps];
        args.bytes(bytemuck::cast_slice(&floats), 4);
    }

    /// Queues the sums of all chunks, unless blocks find them themselves.
    fn queue_leaves(&self, run: &CudaRun<'_>, module: &Source, block: Option<&Block>, dy: u64) -> Result<()> {
        if self.leaves() == 0 || block.is_some_and(|b| b.each > 0) {
            return Ok(());
        }
        let kernel = run.cuda.kernel(&module.0, module.1, "leaves")?;
        let mut args = Args::new();
        args.ptr(run.workspace).ptr(run.ins[0]).ptr(dy);
        self.layout_args(&mut args);
        let blocks = (self.leaves() * self.lanes()).div_ceil(256).min(MAX_BLOCKS);
        run.cuda.launch(kernel, [blocks as u32, 1, 1], 256, 0, &args)
    }

    /// Queues the sums of all chunks, then the mean and `1 / std` (or variance) of each group.
    pub(super) fn cuda_stats(
        &self,
        run: &CudaRun<'_>,
        module: &Source,
        to: [u64; 2],
        raw: bool,
    ) -> Result<()> {
        let (x, sums) = (run.ins[0], run.workspace);
        let mut args = Args::new();
        args.ptr(to[0]).ptr(to[1]);
        let block = self.block(false, run.cuda.sm_count());
        self.queue_leaves(run, module, block.as_ref(), 0)?;
        args.ptr(sums).ptr(x).i32(i32::from(raw));
        self.layout_args(&mut args);
        if let Some(block) = block {
            return self.queue_block(run, module, &block, &args);
        }
        let kernel = run.cuda.kernel(&module.0, module.1, "groups")?;
        run.cuda.launch(kernel, self.tiles(self.group_count()), self.threads(self.group_runs()), 0, &args)
    }

    /// Queues a block of threads for each channel.
    fn queue_block(&self, run: &CudaRun<'_>, module: &Source, block: &Block, args: &Args) -> Result<()> {
        let kernel = run.cuda.kernel(&module.0, module.1, "channels")?;
        let threads = 32 * block.warps as u32;
        run.cuda.launch(kernel, [self.c as u32, 1, 1], threads, block.shared as u32, args)
    }

    /// Number of blocks if each takes 32 groups or channels.
    pub(super) fn tiles(&self, count: usize) -> [u32; 3] {
        [count.div_ceil(32).min(1 << 20) as u32, 1, 1]
    }

    /// Threads of such a block: one warp per chain of chunks, at most as many as the text says.
    pub(super) fn threads(&self, runs: usize) -> u32 {
        (runs * self.chunks()).div_ceil(ROWS).clamp(1, 16) as u32 * 32
    }

    pub(super) fn cuda_moments(&self, run: &CudaRun<'_>) -> Result<()> {
        let parts = [dims(&[self.c]); 2];
        clear_gaps(&parts, run)?;
        let (starts, _) = layout::packed(&parts);
        let to = [run.out, run.out + starts[1] as u64 * 4];
        self.cuda_stats(run, &self.module(false, 0, None, run.cuda.sm_count()), to, true)
    }

    pub(super) fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        if run.shape.numel() == 0 {
            return Ok(());
        }
        let module = self.module(false, run.ins.len() - 1, None, run.cuda.sm_count());
        let stats = run.workspace + 8 * self.leaves() as u64;
        let to = [stats, stats + 4 * self.group_count() as u64];
        self.cuda_stats(run, &module, to, false)?;
        let kernel = run.cuda.kernel(&module.0, module.1, "normalize")?;
        let at = |i: usize| run.ins.get(i).copied().unwrap_or(0);
        let mut args = Args::new();
        args.ptr(run.out).ptr(at(0)).ptr(at(1)).ptr(at(2)).ptr(stats);
        self.layout_args(&mut args);
        run.cuda.launch(kernel, self.elements_grid(run), 256, 0, &args)
    }

    pub(super) fn elements_grid(&self, run: &CudaRun<'_>) -> [u32; 3] {
        let vector = if self.s.is_multiple_of(4) { 4 } else { 1 };
        grid(run.cuda, (self.pieces() * self.s).div_ceil(vector))
    }

    pub(super) fn cuda_bwd(&self, parts: &[Shape], run: &CudaRun<'_>) -> Result<()> {
        clear_gaps(parts, run)?;
        let sm_count = run.cuda.sm_count();
        let module = self.module(true, run.ins.len() - 2, run.leaves.map(|(lines, _)| lines), sm_count);
        let (x, dy) = (run.ins[0], run.ins[run.ins.len() - 1]);
        let gamma = if run.ins.len() == 3 { run.ins[1] } else { 0 };
        let (sums, stats) = (run.workspace, run.workspace + 16 * self.leaves() as u64);
        let (starts, _) = layout::packed(parts);
        let part = |i: usize| starts.get(i).map_or(0, |s| run.out + *s as u64 * 4);
        let is_batch = self.groups.is_none();
        let [gain, shift] = if is_batch { [part(1), part(2)] } else { [0; 2] };
        let block = self.block(true, sm_count);
        self.queue_leaves(run, &module, block.as_ref(), dy)?;
        if let Some(block) = block {
            let mut args = Args::new();
            args.ptr(run.out).ptr(stats).ptr(gain).ptr(shift).ptr(sums).ptr(x).ptr(gamma).ptr(dy);
            self.layout_args(&mut args);
            if let Some((_, to)) = run.leaves {
                args.ptr(to);
            }
            self.queue_block(run, &module, &block, &args)?;
            if block.holds {
                return Ok(());
            }
        } else if self.group_count() > 0 {
            let kernel = run.cuda.kernel(&module.0, module.1, "group_gradients")?;
            let mut args = Args::new();
            args.ptr(stats).ptr(gain).ptr(shift).ptr(sums).ptr(x).ptr(gamma).ptr(dy);
            self.layout_args(&mut args);
            let threads = self.threads(self.group_runs());
            run.cuda.launch(kernel, self.tiles(self.group_count()), threads, 0, &args)?;
        }
        if self.pieces() * self.s > 0 {
            let kernel = run.cuda.kernel(&module.0, module.1, "gradients")?;
            let mut args = Args::new();
            args.ptr(run.out).ptr(x).ptr(gamma).ptr(dy).ptr(stats);
            self.layout_args(&mut args);
            let mut blocks = self.elements_grid(run);
            if let Some((lines, to)) = run.leaves {
                args.ptr(to);
                blocks = [lines.blocks() as u32, 1, 1];
            }
            run.cuda.launch(kernel, blocks, 256, 0, &args)?;
        }
        if !is_batch && parts.len() > 1 && self.c > 0 {
            let kernel = run.cuda.kernel(&module.0, module.1, "channel_gradients")?;
            let mut args = Args::new();
            args.ptr(part(1)).ptr(part(2)).ptr(stats).ptr(sums).ptr(x).ptr(dy);
            self.layout_args(&mut args);
            run.cuda.launch(kernel, self.tiles(self.c), self.threads(self.n), 0, &args)?;
        }
        Ok(())
    }
}
