//! The planner: how a product is cut up, and how much workspace that takes.
//!
//! C is cut into blocks, one task each. A block's rows are cut into panels, its columns into strips and these into tiles; k is
//! cut into chunks, which the order of summation prescribes, and chunks into runs, which fit a cache.

use super::Gemm;
use crate::cpu::LINE;
use dittograd_numerics::K_CHUNK;

/// The most floats of packed A in a block, so that it stays in the L2 cache.
const MAX_BLOCK_A: usize = 128 * K_CHUNK;
/// The most floats of packed A, and of packed B, that threads share at a time.
pub const MAX_SHARED: usize = 2048 * K_CHUNK;
/// Columns of B that are packed at a time if a chunk has several runs and accumulators are saved between them.
pub(crate) const STRIP: usize = 2 * PANEL;
/// The most floats of packed B in a strip.
pub(crate) const STRIP_LEN: usize = STRIP * K_RUN;
/// The most terms of a run, if several tiles read the same panel of B.
pub(crate) const K_RUN: usize = 256;
/// The most terms of a run if only one tile reads B, in place: few enough that the TLB holds the pages of these rows.
pub(crate) const K_RUN_IN_PLACE: usize = 32;
/// The most terms of a run for which writing C costs more than reading B.
pub(crate) const SHORT_RUN: usize = 32;
/// Columns of the widest tile that reads packed B, over all SIMD levels.
pub const PANEL: usize = 32;
/// The most rows of a tile, over all SIMD levels.
pub(crate) const MAX_MR: usize = 14;
/// The most columns of C for which A is read in place: packing it does not pay off.
pub(crate) const MAX_N_IN_PLACE: usize = 64;
/// Rows of a row-major operand that are packed at a time, panel after panel.
pub(crate) const PACK_LINES: usize = 32;
/// The fewest panels per thread for which each thread packs its own part of one operand.
const MIN_PANELS_PER_THREAD: usize = 3;
/// The most floats of the other operand in that case: every block reads all of it, from the L2 cache.
const MAX_CACHED_OPERAND: usize = 288 * K_CHUNK;
/// The fewest panels of rows per thread for which each thread packs its own rows even if packed B is larger than
/// [`MAX_CACHED_OPERAND`]: blocks are then so tall that reading B from a farther cache does not matter.
const MIN_PANELS_PER_THREAD_UNCACHED: usize = 32;
/// The most multiplications of a product whose threads share nothing: it is too short for a barrier between packing and
/// multiplying.
const MAX_UNSHARED_WORK: usize = 1 << 24;

/// How C is cut into blocks whose thread packs its own operands. The workspace of a thread is packed A, packed B and
/// saved accumulators.
pub(crate) struct BlockPlan {
    pub rows: usize,
    pub cols: usize,
    pub row_blocks: usize,
    pub col_blocks: usize,
    pub a_len: usize,
    pub b_len: usize,
    pub acc_len: usize,
}

impl BlockPlan {
    pub fn slot_len(&self) -> usize {
        self.a_len + self.b_len + self.acc_len
    }
}

/// The operand that each thread packs for itself, part after part, into its own cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnPacking {
    /// None: threads pack both together.
    Nothing,
    /// Some rows of A.
    Rows,
    /// Some columns of B.
    Columns,
}

/// How all threads compute C together. They take some products of the batch, rows and columns at a time, pack the
/// operands together, and then share them. The workspace has a slot per thread (saved accumulators, and operands that
/// the thread packs for itself), then packed A and B of each product.
pub(crate) struct SharedPlan {
    pub batches: usize,
    pub rows: usize,
    pub cols: usize,
    /// The fewest blocks of rows for which a block's part of A fits in the cache.
    pub row_blocks: usize,
    /// Target number of blocks, over all products taken at a time.
    pub target: usize,
    pub own: OwnPacking,
    pub a_len: usize,
    pub b_len: usize,
    pub acc_len: usize,
    pub own_len: usize,
}

impl SharedPlan {
    pub fn len(&self, threads: usize) -> usize {
        self.batches * (self.a_len + self.b_len) + threads * self.slot_len()
    }

    pub fn slot_len(&self) -> usize {
        self.acc_len + self.own_len
    }
}

/// The start of part `i` if `len` is cut into `parts` parts of decreasing length, so that threads that take them in
/// turn finish together. The first part is twice as long as the mean.
pub(crate) fn taper(len: usize, parts: usize, i: usize) -> usize {
    len - len * (parts - i).pow(2) / parts.pow(2)
}

/// Room in floats for packed A of `rows` rows and `kc` terms. Padding a panel to whole vectors adds at most a third,
/// and the last run and panel may be shorter than the others.
fn packed_a(rows: usize, kc: usize) -> usize {
    ((rows * 4 / 3 + LINE) * (kc + K_CHUNK / K_RUN)).next_multiple_of(LINE)
}

/// The terms of a chunk, cut into runs.
#[derive(Clone, Copy)]
pub(crate) struct Chunk {
    /// Whether this is the first chunk, so that C holds nothing yet, and whether it is the last.
    pub first: bool,
    pub last: bool,
    /// First term, and number of terms.
    pub k0: usize,
    pub kc: usize,
    /// Number of runs, and the terms of all but the last.
    pub runs: usize,
    pub run: usize,
}

impl Chunk {
    pub fn new(k: usize, chunk: usize, max_run: usize) -> Chunk {
        let k0 = chunk * K_CHUNK;
        let kc = (k - k0).min(K_CHUNK);
        let runs = kc.div_ceil(max_run).max(1);
        Chunk { first: chunk == 0, last: k0 + kc == k, k0, kc, runs, run: kc.div_ceil(runs) }
    }

    /// First term and number of terms of run `r`.
    pub fn run(&self, r: usize) -> (usize, usize) {
        (self.k0 + r * self.run, self.run.min(self.kc - r * self.run))
    }

    /// Start of panel `p` of run `r` in packed A, which has the panels `packed_panels`; in vectors.
    pub fn panel(&self, packed_panels: &std::ops::Range<usize>, r: usize, p: usize) -> usize {
        (r * packed_panels.len() + p - packed_panels.start) * self.run
    }
}

/// A block's rows, cut into panels of nearly equal height: the first `tall` have one row more.
#[derive(Clone, Copy)]
pub(crate) struct Panels {
    pub count: usize,
    pub height: usize,
    pub tall: usize,
}

impl Panels {
    pub fn new(rows: usize, mr: usize) -> Panels {
        let count = rows.div_ceil(mr);
        Panels { count, height: rows / count, tall: rows % count }
    }

    /// First row and number of rows of each panel.
    pub fn iter(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.count).map(move |p| self.at(p))
    }

    /// First row and number of rows of panel `p`.
    pub fn at(self, p: usize) -> (usize, usize) {
        (p * self.height + p.min(self.tall), self.height + usize::from(p < self.tall))
    }
}

/// The tiles of a strip of columns that ends at `end`, in vectors of `width` floats.
#[derive(Clone, Copy)]
pub(crate) struct Tiling {
    pub width: usize,
    pub max_vectors: usize,
    pub end: usize,
}

impl Tiling {
    /// The tile that begins at column `j`: log2 of its vectors, and its columns.
    pub fn at(self, j: usize) -> (usize, usize) {
        // A shift, since widths are powers of two: a division would be too slow for a short tile.
        let vectors = (self.end - j + self.width - 1) >> self.width.trailing_zeros();
        let log = vectors.min(self.max_vectors).ilog2() as usize;
        (log, (self.width << log).min(self.end - j))
    }
}

impl Gemm {
    /// Target number of blocks: at most one per thread if there is little work, otherwise several, and more for larger
    /// products.
    fn target(&self, threads: usize) -> usize {
        if threads == 1 {
            return 1;
        }
        let work = self.work();
        if work <= MAX_UNSHARED_WORK {
            return (work >> 15).clamp(1, threads);
        }
        (4 * threads).max((work >> 20).min(16 * threads))
    }

    /// The number of multiplications, about.
    fn work(&self) -> usize {
        self.batch.max(1) * self.m * self.n * self.k.max(4)
    }

    /// The most rows of a block, so that its part of A fits the cache.
    fn max_block_rows(&self) -> usize {
        (MAX_BLOCK_A / self.k.clamp(64, K_CHUNK) / MAX_MR).max(1) * MAX_MR
    }

    /// Whether packing B is fused into multiplying: a block's first tiles read B in place and pack it for the tiles
    /// below them. Not if B is transposed, nor if its rows are so far apart, or so many, that they are better read a
    /// few at a time.
    pub(super) fn fuses_packing(&self) -> bool {
        !self.tb && self.n <= 2 * K_CHUNK && self.n * self.k <= K_CHUNK * K_CHUNK
    }

    /// The operand that each thread packs for itself, if threads share the other one.
    pub fn own_packing(&self, threads: usize) -> Option<OwnPacking> {
        self.shared(threads).map(|plan| plan.own)
    }

    /// How threads share packed operands, if that pays off: there must be enough rows to use B more than once, and a
    /// block must be smaller than a product.
    pub(super) fn shared(&self, threads: usize) -> Option<SharedPlan> {
        let (m, n, kc) = (self.m, self.n.max(1), self.k.clamp(1, K_CHUNK));
        let (batch, target) = (self.batch.max(1), self.target(threads));
        let tall = self.max_block_rows();
        if m <= MAX_MR || self.work() <= MAX_UNSHARED_WORK || m <= tall && batch >= target {
            return None;
        }
        let most = (MAX_SHARED / kc.max(64) / STRIP).max(1) * STRIP;
        let rows = m.div_ceil(m.div_ceil(most));
        let cols = n.div_ceil(n.div_ceil(most)).next_multiple_of(STRIP);
        let (a_len, b_len) = (if n <= MAX_N_IN_PLACE { 0 } else { packed_a(rows, kc) }, cols * kc);
        let batches = (2 * MAX_SHARED / (a_len + b_len)).clamp(1, batch);
        // Each thread packs its own part of one operand if the other one fits in the cache. It packs rows, since C is
        // written along rows, unless there are far more columns, or more columns and their packing is fused.
        let parts_of_thread = |parts: usize| batches * parts / threads;
        let panels = parts_of_thread(rows.div_ceil(MAX_MR));
        let by_rows = if b_len <= MAX_CACHED_OPERAND {
            panels >= MIN_PANELS_PER_THREAD
        } else {
            n <= cols && panels >= MIN_PANELS_PER_THREAD_UNCACHED
        };
        let by_columns =
            a_len <= MAX_CACHED_OPERAND && parts_of_thread(cols / PANEL) >= MIN_PANELS_PER_THREAD;
        let prefers_columns = 2 * a_len < b_len || m < n && self.fuses_packing();
        let own = if by_columns && (prefers_columns || !by_rows) {
            OwnPacking::Columns
        } else if by_rows {
            OwnPacking::Rows
        } else {
            OwnPacking::Nothing
        };
        let row_blocks = if own == OwnPacking::Columns { 1 } else { rows.div_ceil(tall) };
        // A block of whole panels may have more rows than its share: one more panel, and one more row per tall panel.
        let most_rows = rows.div_ceil(row_blocks) + 2 * MAX_MR;
        let (a_len, b_len, own_len) = match own {
            OwnPacking::Nothing => (a_len, b_len, 0),
            OwnPacking::Rows => (0, b_len, if a_len > 0 { packed_a(most_rows, kc) } else { 0 }),
            OwnPacking::Columns => (a_len, 0, STRIP_LEN),
        };
        let acc_len = most_rows * STRIP;
        Some(SharedPlan { batches, rows, cols, row_blocks, target, own, a_len, b_len, acc_len, own_len })
    }

    /// Cuts C so that a block's part of A fits in the cache, and every thread has a few blocks if there is enough work.
    pub(super) fn plan(&self, threads: usize) -> BlockPlan {
        let (m, n, kc) = (self.m.max(1), self.n.max(1), self.k.clamp(1, K_CHUNK));
        let (mut row_blocks, mut col_blocks) = (m.div_ceil(self.max_block_rows()), 1);
        let batch = self.batch.max(1);
        let target = self.target(threads);
        while batch * row_blocks * col_blocks < target {
            let (rows, cols) = (m.div_ceil(row_blocks), n.div_ceil(col_blocks));
            if cols > PANEL && (cols > 2 * rows || rows <= 16 * MAX_MR) {
                col_blocks += 1;
            } else if rows > MAX_MR {
                row_blocks += 1;
            } else {
                break;
            }
        }
        let rows = m.div_ceil(row_blocks);
        let cols = n.div_ceil(col_blocks).next_multiple_of(PANEL);
        BlockPlan {
            rows,
            cols,
            row_blocks: m.div_ceil(rows),
            col_blocks: n.div_ceil(cols),
            a_len: packed_a(rows, kc),
            b_len: STRIP_LEN,
            // The columns of a strip, or all columns if a tile has all rows; rounded up to whole tiles.
            acc_len: rows * if rows <= MAX_MR { cols.max(STRIP) + 7 * PANEL } else { STRIP },
        }
    }
}
