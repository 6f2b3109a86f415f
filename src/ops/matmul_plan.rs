//! How a matrix product runs on CUDA: which variant of `matmul.cu`, over which grid, with its chunks of k in one
//! block or in many. The choice affects only speed, never bits: every variant adds in the same order.

/// The length of a chunk of k, at which sums may be cut.
const CHUNK: usize = 1024;
/// The most blocks along z; more are walked in a loop.
const MAX_Z: usize = 65535;
/// Threads of a block of `ditto_matmul_reduce`.
const REDUCE_BLOCK: u32 = 256;

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

/// A product to plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Problem {
    pub batch: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub ta: bool,
    pub tb: bool,
    pub aligned: bool,
    pub has_bias: bool,
}

/// The shape of a variant: what a block, a warp and a thread compute.
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
    /// Cycles a k step takes when one block has a multiprocessor to itself.
    pub alone: f64,
    /// Cycles a k step takes per block when a multiprocessor is full.
    pub full: f64,
}

impl Tile {
    fn rows(&self) -> usize {
        self.warps[0] * 8 * self.thread[0]
    }
    fn cols(&self) -> usize {
        self.warps[1] * 4 * self.thread[1]
    }
    fn threads(&self) -> usize {
        self.warps[0] * self.warps[1] * 32
    }
    /// Tiles of one product.
    fn count(&self, p: &Problem) -> usize {
        p.m.div_ceil(self.rows()).max(1) * p.n.div_ceil(self.cols()).max(1)
    }
}

/// The variants, with their measured speeds on an H200.
pub(crate) const TILES: [Tile; 9] = [
    Tile { warps: [2, 2], thread: [8, 16], bk: 8, group: 1, stages: 4, blocks: 2, alone: 150.0, full: 140.0 },
    Tile { warps: [4, 2], thread: [8, 16], bk: 8, group: 1, stages: 3, blocks: 1, alone: 290.0, full: 280.0 },
    Tile { warps: [2, 2], thread: [8, 8], bk: 8, group: 1, stages: 4, blocks: 3, alone: 90.0, full: 75.0 },
    Tile { warps: [2, 2], thread: [4, 8], bk: 16, group: 4, stages: 4, blocks: 3, alone: 50.0, full: 42.0 },
    Tile { warps: [2, 2], thread: [4, 4], bk: 16, group: 4, stages: 4, blocks: 4, alone: 30.0, full: 24.0 },
    Tile { warps: [2, 2], thread: [2, 4], bk: 32, group: 4, stages: 4, blocks: 4, alone: 20.0, full: 16.0 },
    Tile { warps: [2, 2], thread: [2, 2], bk: 32, group: 8, stages: 4, blocks: 4, alone: 14.0, full: 10.0 },
    Tile { warps: [1, 2], thread: [2, 2], bk: 32, group: 4, stages: 4, blocks: 8, alone: 11.0, full: 6.0 },
    Tile { warps: [1, 4], thread: [2, 4], bk: 32, group: 8, stages: 4, blocks: 3, alone: 11.0, full: 6.0 },
];

/// Chooses how the product of A (m, k) and B (k, n) runs on a GPU of `sm_count` multiprocessors.
///
/// `ta`: A is stored (k, m); `tb`: B is stored (n, k). `aligned`: all pointers are 16-byte aligned and the batch
/// strides are multiples of 4. Sizes of 0 are the caller's to handle.
#[allow(clippy::too_many_arguments)]
pub fn plan(
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
    ta: bool,
    tb: bool,
    aligned: bool,
    has_bias: bool,
    sm_count: u32,
) -> MatmulPlan {
    let problem = Problem { batch, m, n, k, ta, tb, aligned, has_bias };
    plan_tile(&problem, &TILES[0], false)
}

/// The launch of `problem` with one tile, its chunks in one block or (`split`) in a block each.
pub(crate) fn plan_tile(p: &Problem, tile: &Tile, split: bool) -> MatmulPlan {
    let parts = if split { p.k.div_ceil(CHUNK).max(1) } else { 1 };
    let split = parts > 1;
    let long = p.m.max(p.n).max(p.k) > i32::MAX as usize - 4096;
    let whole = |x: usize| p.aligned && x.is_multiple_of(4);
    let defines = format!(
        "#define DITTO_BK {}\n#define DITTO_G {}\n#define DITTO_WM {}\n#define DITTO_WN {}\n#define DITTO_TM {}\n#define DITTO_TN {}\n\
         #define DITTO_STAGES {}\n#define DITTO_BLOCKS {}\n#define DITTO_TA {}\n#define DITTO_TB {}\n\
         #define DITTO_VA {}\n#define DITTO_VB {}\n#define DITTO_VC {}\n#define DITTO_BIAS {}\n#define DITTO_LONG {}\n\
         #define DITTO_REDUCE 0\n",
        tile.bk,
        tile.group,
        tile.warps[0],
        tile.warps[1],
        tile.thread[0],
        tile.thread[1],
        tile.stages,
        tile.blocks,
        u8::from(p.ta),
        u8::from(p.tb),
        u8::from(if p.ta { whole(p.m) } else { tile.group > 1 && whole(p.k) }),
        u8::from(if p.tb { tile.group > 1 && whole(p.k) } else { whole(p.n) }),
        u8::from(whole(p.n)),
        u8::from(p.has_bias && !split),
        u8::from(long),
    );
    let total = p.batch * p.m * p.n;
    let reduce = split.then(|| {
        let vector = whole(p.n);
        let groups = if vector { total / 4 } else { total };
        ReduceLaunch {
            defines: format!(
                "#define DITTO_REDUCE 1\n#define DITTO_VC {}\n#define DITTO_BIAS {}\n",
                u8::from(vector),
                u8::from(p.has_bias)
            ),
            kernel: "ditto_matmul_reduce",
            grid: [clamp(groups.div_ceil(REDUCE_BLOCK as usize), 1 << 20), 1, 1],
            block: REDUCE_BLOCK,
        }
    });
    MatmulPlan {
        defines,
        kernel: "ditto_matmul",
        grid: [clamp(tile.count(p), i32::MAX as usize), 1, clamp(p.batch * parts, MAX_Z)],
        block: tile.threads() as u32,
        shared: 0,
        slice: if split { CHUNK } else { p.k },
        parts,
        workspace: if split { parts * total } else { 0 },
        reduce,
    }
}

/// A launch dimension: at least 1, at most `limit`.
fn clamp(x: usize, limit: usize) -> u32 {
    x.clamp(1, limit) as u32
}
