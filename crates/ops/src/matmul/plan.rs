//! How a matrix product runs on CUDA: which variant of `matmul.cu`, over which grid, with its chunks of k in one
//! block or in many. The choice affects only speed, never bits, but for the tiles for tensor cores: every other variant
//! adds in the same order.

#[cfg(test)]
mod tests;

use crate::Gpu;
use dittograd_device::cpu::gemm::Gemm;
use dittograd_numerics::{K_CHUNK as CHUNK, Numerics};

/// The most blocks along x.
pub(crate) const MAX_X: usize = i32::MAX as usize;

/// The most blocks along z; more are walked in a loop.
pub(crate) const MAX_Z: usize = 65535;

/// The most blocks of `ditto_matmul_reduce`, which walks the rest in a loop too.
const MAX_REDUCE_X: usize = 1 << 20;

/// Threads of a block of `ditto_matmul_reduce`.
const REDUCE_BLOCK: u32 = 256;

/// Outputs below which each has a thread that adds its parts.
const FEW_OUTPUTS: usize = 1 << 17;

/// How one product runs on CUDA.
///
/// The module is the text `defines` followed by `matmul.cu`. Its kernel takes, in this order:
///
/// | argument | type | meaning |
/// | --- | --- | --- |
/// | `a`, `b` | `const float*` | the operands |
/// | `out` | `float*` | the result, or the workspace when `reduce` is set |
/// | `bias` | `const float*` | n floats, or null; not read when `reduce` is set |
/// | `m`, `n`, `k` | `i64` | the problem |
/// | `batch` | `i64` | products |
/// | `stride_a`, `stride_b` | `i64` | floats from one product's operand to the next one's; 0: shared |
/// | `slice` | `i64` | [`MatmulPlan::slice`] |
/// | `parts` | `i64` | [`MatmulPlan::parts`] |
///
/// The result is dense: product z starts at `z * m * n`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatmulPlan {
    /// The lines that go before `matmul.cu` and pick the variant.
    pub defines: String,
    /// The kernel of that module.
    pub kernel: &'static str,
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// How much of k one block does: all of it, or one chunk.
    pub slice: usize,
    /// How many slices k has, at least 1.
    pub parts: usize,
    /// Floats of scratch memory, 16-byte aligned: the parts, `[parts][batch][m][n]`; 0 without `reduce`.
    pub workspace: usize,
    /// The kernel that adds the parts, to launch after the product's.
    pub reduce: Option<ReduceLaunch>,
}

/// The second kernel of a product whose chunks ran in separate blocks.
///
/// The module is the text `defines` followed by `matmul.cu`. Its kernel takes, in this order: `partial`
/// (`const float*`, the workspace), `out` (`float*`, the result), `bias` (`const float*`, or null), and as `i64`
/// `total` (`batch * m * n`), `n` and `parts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReduceLaunch {
    /// The lines that go before `matmul.cu` and pick the variant.
    pub defines: String,
    /// The kernel of that module.
    pub kernel: &'static str,
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
}

/// Products as CUDA kernels are planned for: their sizes, which it derefs to, and what else the choice of a kernel depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Problem {
    /// The sizes, and how the operands are stored.
    pub gemm: Gemm,
    /// The operands, the result and the bias start at multiples of 16 bytes, and batch strides are multiples
    /// of 4 floats.
    pub aligned: bool,
    /// A bias is added.
    pub has_bias: bool,
    /// All products of the batch have the same A.
    pub shares_a: bool,
    /// It is computed as the mode says: on tensor cores in `tf32`, in digits in `fast` and `turbo`. Otherwise as in `strict`.
    pub tensor: bool,
}

impl Problem {
    /// Products without a bias that are the same in all modes.
    pub(crate) fn plain(gemm: Gemm, aligned: bool) -> Problem {
        Problem { gemm, aligned, has_bias: false, shares_a: false, tensor: false }
    }
}

impl std::ops::Deref for Problem {
    type Target = Gemm;

    fn deref(&self) -> &Gemm {
        &self.gemm
    }
}

/// The shape of a variant: what a block, a warp and a thread compute, and how fast.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile {
    /// Warps along m and n.
    pub warps: [usize; 2],
    /// Outputs of a thread along m and n.
    pub thread: [usize; 2],
    /// k steps of a stage.
    pub bk: usize,
    /// k steps of a load from shared memory.
    pub group: usize,
    /// Stages of the shared-memory ring.
    pub stages: usize,
    /// Blocks a multiprocessor holds.
    pub blocks: usize,
    /// Cycles of a k step when one block has a multiprocessor to itself.
    pub alone: f64,
    /// Cycles of a k step per block when a multiprocessor is full.
    pub full: f64,
}

impl Problem {
    /// Whether sizes, or the words of what the operands are gathered from, need more than 32 bits.
    pub fn is_long(&self, source: usize) -> bool {
        self.m.max(self.n).max(self.k).max(source) > i32::MAX as usize - 4096
    }
}

impl Tile {
    /// Rows of the result that a block computes: 8 lanes of a warp lie along m.
    pub fn rows(&self) -> usize {
        self.warps[0] * 8 * self.thread[0]
    }

    /// Columns of the result that a block computes: 4 lanes of a warp lie along n.
    pub fn cols(&self) -> usize {
        self.warps[1] * 4 * self.thread[1]
    }

    /// What the kernels' text is told of the tile.
    pub fn defines(&self) -> [(&'static str, usize); 8] {
        [
            ("BK", self.bk),
            ("G", self.group),
            ("WM", self.warps[0]),
            ("WN", self.warps[1]),
            ("TM", self.thread[0]),
            ("TN", self.thread[1]),
            ("STAGES", self.stages),
            ("BLOCKS", self.blocks),
        ]
    }

    /// Threads of a block.
    pub fn threads(&self) -> usize {
        self.warps[0] * self.warps[1] * 32
    }

    /// Tiles of one product.
    pub fn count(&self, p: &Problem) -> usize {
        p.m.div_ceil(self.rows()).max(1).saturating_mul(p.n.div_ceil(self.cols()).max(1))
    }

    /// Cycles of a k step with `resident` blocks on a multiprocessor.
    fn step(&self, resident: f64) -> f64 {
        let blocks = self.blocks as f64;
        self.alone + (resident - 1.0) * (blocks * self.full - self.alone) / (blocks - 1.0).max(1.0)
    }

    /// The time `problem` is expected to take with so much of k in a block, in microseconds; right to a tenth or so, which is enough to choose by.
    /// Infinite where a tile is not for so many blocks.
    fn time(&self, p: &Problem, slice: usize, sm_count: f64) -> f64 {
        let parts = p.k.div_ceil(slice.max(1)).max(1);
        let k = slice as f64;
        // A part that is shorter than the others leaves its place sooner: so much of a block.
        let blocks = self.count(p) as f64 * p.batch as f64 * (p.k as f64 / k).max(1.0);
        let places = sm_count * self.blocks as f64;
        if self.rows() > 128 && blocks > FEW_WAVES * places {
            return f64::INFINITY;
        }
        let waves = (blocks / places).floor();
        let rest = ((blocks - waves * places) / sm_count).ceil();
        let full = self.step(self.blocks as f64);
        let mut cycles = waves * (k * full + BLOCK_CYCLES);
        if rest > 0.0 {
            // After whole waves the last blocks mostly share a multiprocessor: its places become free at about the same time.
            let spread = self.step(rest);
            cycles += k * if waves > 0.0 { 0.25 * spread + 0.75 * full } else { spread } + BLOCK_CYCLES;
        }
        let mut time = LAUNCH + cycles / CLOCK;
        if parts > 1 {
            time += REDUCE + 4.0 * (parts + 1) as f64 * p.batch as f64 * p.m as f64 * p.n as f64 / BANDWIDTH;
        }
        time
    }
}

/// Cycles per microsecond of the GPU the tiles were measured on, an H200.
pub(super) const CLOCK: f64 = 1980.0;

/// Bytes per microsecond that its memory moves.
pub(super) const BANDWIDTH: f64 = 4e6;

/// Microseconds of a launch, start to end, without its work.
pub(super) const LAUNCH: f64 = 2.0;

/// Microseconds of a second launch that follows at once.
const REDUCE: f64 = 1.5;

/// Cycles a block takes to start and to end.
const BLOCK_CYCLES: f64 = 1500.0;

/// The most floats that parts may take: 1 GiB.
const MAX_WORKSPACE: usize = 1 << 28;

/// The most tiles of a product; the largest tile stays below for any matrix that fits into a GPU's memory.
const MAX_TILES: usize = 1 << 28;

/// Waves of blocks up to which the largest tile is used: it leaves fewer places empty, but with many waves, where that does
/// not count, it is slower by 8 % (measured on 8192 by 50304 by 768).
const FEW_WAVES: f64 = 8.0;

/// The variants, largest tile first, with the speeds fitted to measurements.
pub(crate) const TILES: [Tile; 11] = [
    Tile {
        warps: [2, 2],
        thread: [12, 12],
        bk: 8,
        group: 1,
        stages: 4,
        blocks: 2,
        alone: 197.0,
        full: 190.0,
    },
    Tile { warps: [2, 2], thread: [8, 16], bk: 8, group: 1, stages: 4, blocks: 2, alone: 200.0, full: 172.0 },
    Tile { warps: [2, 2], thread: [8, 12], bk: 8, group: 1, stages: 4, blocks: 2, alone: 154.0, full: 132.0 },
    Tile { warps: [2, 2], thread: [8, 8], bk: 8, group: 1, stages: 4, blocks: 3, alone: 96.0, full: 92.0 },
    Tile { warps: [2, 2], thread: [4, 8], bk: 16, group: 4, stages: 4, blocks: 3, alone: 52.0, full: 50.5 },
    Tile { warps: [2, 2], thread: [4, 4], bk: 16, group: 4, stages: 4, blocks: 4, alone: 30.5, full: 28.0 },
    Tile { warps: [1, 4], thread: [2, 4], bk: 32, group: 8, stages: 4, blocks: 3, alone: 19.0, full: 18.0 },
    Tile { warps: [2, 2], thread: [2, 4], bk: 32, group: 4, stages: 4, blocks: 4, alone: 17.6, full: 16.3 },
    Tile { warps: [2, 2], thread: [2, 2], bk: 32, group: 8, stages: 4, blocks: 4, alone: 11.1, full: 10.6 },
    Tile { warps: [1, 4], thread: [2, 2], bk: 32, group: 8, stages: 4, blocks: 4, alone: 10.6, full: 10.6 },
    Tile { warps: [1, 2], thread: [2, 2], bk: 32, group: 4, stages: 4, blocks: 8, alone: 10.3, full: 5.6 },
];

/// The variants for tensor cores, largest tile first.
const TENSOR_TILES: [Tile; 4] = [
    Tile { warps: [2, 2], thread: [8, 16], bk: 32, group: 8, stages: 3, blocks: 2, alone: 62.0, full: 45.0 },
    Tile { warps: [2, 2], thread: [8, 8], bk: 32, group: 8, stages: 3, blocks: 3, alone: 38.0, full: 26.0 },
    Tile { warps: [2, 2], thread: [4, 8], bk: 32, group: 8, stages: 3, blocks: 4, alone: 25.0, full: 16.5 },
    Tile { warps: [2, 2], thread: [2, 4], bk: 32, group: 8, stages: 3, blocks: 4, alone: 14.0, full: 8.0 },
];

/// The least of k that tensor cores are given a block for.
const LEAST_SLICE: usize = 256;

/// Chooses how the product of A (m, k) and B (k, n) runs on a GPU.
///
/// The operands are dense within a product. Sizes of 0 are the caller's to handle.
pub(crate) fn plan(problem: &Problem, gpu: &Gpu) -> MatmulPlan {
    if problem.tensor && gpu.numerics == Numerics::Tf32 {
        let (tile, slice) = choose_tensor(problem, gpu.sm_count);
        return plan_tile(problem, tile, slice, true);
    }
    let (tile, split) = choose(problem, &TILES, gpu.sm_count, true);
    plan_tile(problem, tile, if split { CHUNK } else { problem.k }, false)
}

/// The tile for tensor cores that is expected to be fastest, and how much of k a block does.
fn choose_tensor(problem: &Problem, sm_count: u32) -> (&'static Tile, usize) {
    let sms = f64::from(sm_count.max(1));
    let mut best = (f64::INFINITY, &TENSOR_TILES[0], problem.k);
    for tile in TENSOR_TILES.iter().filter(|tile| tile.count(problem) <= MAX_TILES) {
        for parts in 1..=64 {
            let slice =
                if parts == 1 { problem.k } else { problem.k.div_ceil(parts).next_multiple_of(tile.bk) };
            if parts > 1 && (slice < LEAST_SLICE || parts_size(problem, parts) > MAX_WORKSPACE) {
                break;
            }
            let time = tile.time(problem, slice, sms);
            if time < best.0 {
                best = (time, tile, slice);
            }
        }
    }
    (best.1, best.2)
}

/// The tile that is expected to be fastest, and whether chunks run in blocks of their own, if they may.
pub(crate) fn choose<'t>(
    problem: &Problem,
    tiles: &'t [Tile],
    sm_count: u32,
    may_split: bool,
) -> (&'t Tile, bool) {
    let sms = f64::from(sm_count.max(1));
    let chunks = problem.k.div_ceil(CHUNK).max(1);
    let mut best = (f64::INFINITY, &tiles[0], false);
    for tile in tiles.iter().filter(|tile| tile.count(problem) <= MAX_TILES) {
        for split in [false, true] {
            if split && (!may_split || chunks == 1 || parts_size(problem, chunks) > MAX_WORKSPACE) {
                continue;
            }
            let time = tile.time(problem, if split { CHUNK } else { problem.k }, sms);
            if time < best.0 {
                best = (time, tile, split);
            }
        }
    }
    (best.1, best.2)
}

/// Floats of all parts of a product.
fn parts_size(p: &Problem, parts: usize) -> usize {
    parts.saturating_mul(p.batch).saturating_mul(p.m).saturating_mul(p.n)
}

/// The launch of `problem` with one tile and so much of k in a block: all, one chunk or, on tensor cores, anything.
fn plan_tile(p: &Problem, tile: &Tile, slice: usize, tensor: bool) -> MatmulPlan {
    let parts = p.k.div_ceil(slice.max(1)).max(1);
    let split = parts > 1;
    // Four floats at a time, along an axis of this length.
    let vector = |length: usize| u8::from(p.aligned && length.is_multiple_of(4));
    let along_k = if tile.group > 1 { vector(p.k) } else { 0 };
    let tensor = usize::from(tensor);
    // As the kernel lays out a stage, in floats: rows by k steps, or k steps by rows.
    let gap = if !p.ta && p.tb { 0 } else { 4 };
    let room =
        |rows: usize, by_rows: bool| if by_rows { tile.bk * (rows + 8) } else { rows * (tile.bk + gap) };
    let shared = tensor * 4 * tile.stages * (room(tile.rows(), p.ta) + room(tile.cols(), !p.tb));
    let flags = [
        ("TA", usize::from(p.ta)),
        ("TB", usize::from(p.tb)),
        ("VA", usize::from(if p.ta { vector(p.m) } else { along_k })),
        ("VB", usize::from(if p.tb { along_k } else { vector(p.n) })),
        ("VC", usize::from(vector(p.n))),
        ("BIAS", usize::from(p.has_bias && !split)),
        ("LONG", usize::from(p.is_long(0))),
        ("REDUCE", 0),
        ("TF32", tensor),
    ];
    MatmulPlan {
        // What is 0 for most need not be said, and the name of the module stays as it is.
        defines: defines(&[&tile.defines()[..], &flags[..flags.len() - 1 + tensor]].concat()),
        kernel: "ditto_matmul",
        grid: [clamp(tile.count(p), MAX_X), 1, clamp(p.batch.saturating_mul(parts), MAX_Z)],
        block: tile.threads() as u32,
        shared: shared as u32,
        slice,
        parts,
        workspace: if split { parts_size(p, parts) } else { 0 },
        reduce: split.then(|| reduce(p, vector(p.n))),
    }
}

/// The launch that adds the parts of `problem`, `vector` != 0: four outputs to a thread.
pub(crate) fn reduce(p: &Problem, vector: u8) -> ReduceLaunch {
    // Few outputs have more threads instead.
    let vector = if parts_size(p, 1) < FEW_OUTPUTS { 0 } else { vector };
    let groups = parts_size(p, 1) / if vector != 0 { 4 } else { 1 };
    ReduceLaunch {
        defines: defines(&[("VC", usize::from(vector)), ("BIAS", usize::from(p.has_bias)), ("REDUCE", 1)]),
        kernel: "ditto_matmul_reduce",
        grid: [clamp(groups.div_ceil(REDUCE_BLOCK as usize), MAX_REDUCE_X), 1, 1],
        block: REDUCE_BLOCK,
    }
}

/// The lines that define `DITTO_` names.
pub(crate) fn defines(values: &[(&str, usize)]) -> String {
    values.iter().map(|(name, value)| format!("#define DITTO_{name} {value}\n")).collect()
}

/// A launch dimension: at least 1, at most `limit`.
pub(crate) fn clamp(x: usize, limit: usize) -> u32 {
    x.clamp(1, limit) as u32
}
