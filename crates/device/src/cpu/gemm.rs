//! Matrix products whose every element is summed in one fixed order.
//!
//! An element is the sum over chunks of `K_CHUNK` terms; in a chunk an FMA chain runs up k from +0.0, and
//! chunk sums are added upwards. Caches want shorter runs of k than a chunk, so a tile parks its unfinished
//! chains in the workspace and takes them up again in the next run; only a finished chunk meets C. Threads
//! share out blocks of C only, so neither their number nor the tile shape can change a bit. Vectors run along
//! n and elements of A are broadcast; tiles at the lower edge have fewer rows, those at the right edge masked
//! columns. Panels of A and B are packed by copying or transposing, as they are stored, by all threads together if
//! blocks of several threads use them, else by the thread that does, where it can as it multiplies; what is used only
//! once is read in place.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::pool::Pool;
use super::simd::Simd;
use dittograd_numerics::K_CHUNK;

/// The most floats of packed A in a block, which then stays in a second-level cache.
const A_BLOCK: usize = 128 * K_CHUNK;
/// The most floats of packed A, and of packed B, that threads share at a time.
const SHARED: usize = 2048 * K_CHUNK;
/// The most columns of B that are packed at a time, if chains are parked meanwhile.
pub(super) const STRIP: usize = 2 * PANEL;
/// The most floats of packed B.
const B_STRIP: usize = STRIP * K_RUN;
/// The most terms of a run of k that is shared by several tiles.
const K_RUN: usize = 256;
/// The same for tiles that are alone in reading B, in place: so few that the pages of their rows stay at
/// hand.
const K_THIN: usize = 32;
/// The most terms of a run for which the writing of C outweighs the reading of B.
const K_SHORT: usize = 32;
/// Width in floats of the widest panel of packed B.
pub(super) const PANEL: usize = 32;
/// The most rows of a tile, over all levels.
pub(super) const MAX_MR: usize = 14;
/// Floats in a cache line.
#[doc(hidden)]
pub const LINE: usize = 16;
/// Columns of C up to which packing A does not pay.
const DIRECT_N: usize = 64;
/// How many lines of B are packed at a time.
const LINES: usize = 32;
/// Panels of rows, or of columns, for each thread from which on it packs its own, and the most floats of the other
/// packed operand meanwhile, of which every block reads all, from its second-level cache.
const OWN: usize = 3;
const KEPT: usize = 288 * K_CHUNK;
/// Panels of rows for each thread from which on it packs its own even if blocks read the other operand from farther away: they
/// are tall then.
const TALL: usize = 32;
/// Multiplications up to which a product is too short for threads to wait for each other between packing and multiplying.
const ALONE: usize = 1 << 24;
/// How many terms a tile computes between two lines that it asks for, by whether A is transposed. Rows of A in place are
/// taken term by term: the compiler would load two at a time, and then have to spread them.
const BETWEEN: [usize; 2] = [1, 2];
/// How a tile reads B: packed; in place; or in place, and packs it for other tiles.
const PACKED: u8 = 0;
const IN_PLACE: u8 = 1;
const PACKING: u8 = 2;
/// How many terms ahead a tile asks for what it reads.
const AHEAD: usize = 16;

/// A batch of products C = A B, with an optional bias along the columns of C.
///
/// A is row-major (m, k), or (k, m) if `ta`; B is (k, n), or (n, k) if `tb`; C is (m, n). The matrices of a
/// batch follow each other. Any size may be zero; with `k` zero the products are +0.0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Gemm {
    /// Number of products.
    pub batch: usize,
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Terms of each dot product.
    pub k: usize,
    /// Whether A is stored transposed.
    pub ta: bool,
    /// Whether B is stored transposed.
    pub tb: bool,
}

/// How C is cut into blocks that a thread computes alone, packing for itself, and the workspace of one thread: packed A,
/// packed B, and parked chains.
struct Plan {
    rows: usize,
    cols: usize,
    row_blocks: usize,
    col_blocks: usize,
    a_len: usize,
    b_len: usize,
    acc_len: usize,
}

impl Plan {
    fn slot_len(&self) -> usize {
        self.a_len + self.b_len + self.acc_len
    }
}

/// What a thread packs when it needs it, for itself and into its cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Own {
    Nothing,
    Rows,
    Columns,
}

/// How C is computed by all threads together: some products of the batch, rows and columns at a time, whose operands are
/// packed by all and then used by all. The workspace has for each thread parked chains and what it packs for itself; then
/// the packed A and B of each of these products.
struct Shared {
    batches: usize,
    rows: usize,
    cols: usize,
    /// The least number of blocks of such rows, so that what a block has of A fits its cache.
    row_blocks: usize,
    /// How many blocks there should be, in all the products at a time.
    target: usize,
    own: Own,
    a_len: usize,
    b_len: usize,
    acc_len: usize,
    own_len: usize,
}

impl Shared {
    fn len(&self, threads: usize) -> usize {
        self.batches * (self.a_len + self.b_len) + threads * self.slot_len()
    }

    fn slot_len(&self) -> usize {
        self.acc_len + self.own_len
    }
}

/// Where part `i` of `parts` begins if `len` is cut into less and less at a time, so that threads that take part after part
/// end together. The first part is twice as long as the mean.
pub(super) fn taper(len: usize, parts: usize, i: usize) -> usize {
    len - len * (parts - i).pow(2) / parts.pow(2)
}

/// Floats of packed A of so many rows for `kc` terms. A vector is at most a third wider than a panel; and the last run and
/// panel may be shorter.
fn packed_a(rows: usize, kc: usize) -> usize {
    ((rows * 4 / 3 + LINE) * (kc + K_CHUNK / K_RUN)).next_multiple_of(LINE)
}

/// The terms of a chunk, cut into runs.
#[derive(Clone, Copy)]
struct Chunk {
    /// Whether C holds nothing yet, and whether it is finished with this chunk.
    first: bool,
    last: bool,
    /// First term, and number of terms.
    k0: usize,
    kc: usize,
    /// Number of runs, and the terms of all but the last.
    runs: usize,
    run: usize,
}

impl Chunk {
    fn new(k: usize, chunk: usize, most: usize) -> Chunk {
        let k0 = chunk * K_CHUNK;
        let kc = (k - k0).min(K_CHUNK);
        let runs = kc.div_ceil(most).max(1);
        Chunk { first: chunk == 0, last: k0 + kc == k, k0, kc, runs, run: kc.div_ceil(runs) }
    }

    /// First term and number of terms of run `r`.
    fn run(&self, r: usize) -> (usize, usize) {
        (self.k0 + r * self.run, self.run.min(self.kc - r * self.run))
    }

    /// Where panel `p` of run `r` begins in packed A of the panels `held`, in vectors.
    fn panel(&self, held: &std::ops::Range<usize>, r: usize, p: usize) -> usize {
        (r * held.len() + p - held.start) * self.run
    }
}

impl Gemm {
    /// Number of floats of workspace that [`Gemm::run`] needs with a pool of `threads`.
    pub fn scratch_len(&self, threads: usize) -> usize {
        let gemm = self.turned();
        LINE + match gemm.shared(threads) {
            Some(shared) => shared.len(threads),
            None => threads * gemm.plan(threads).slot_len(),
        }
    }

    /// Computes C. `scratch` has at least `scratch_len(pool.threads())` elements, of any value.
    ///
    /// # Panics
    /// If a slice does not have the length that the sizes give.
    #[allow(clippy::too_many_arguments)]
    pub fn run(
        &self,
        pool: &Pool,
        simd: Simd,
        a: &[f32],
        b: &[f32],
        bias: Option<&[f32]>,
        c: &mut [f32],
        scratch: &mut [f32],
    ) {
        let Gemm { batch, m, n, k, .. } = *self;
        let len = |x: usize, y: usize| batch.checked_mul(x)?.checked_mul(y);
        assert_eq!(Some(a.len()), len(m, k), "length of a");
        assert_eq!(Some(b.len()), len(k, n), "length of b");
        assert_eq!(Some(c.len()), len(m, n), "length of c");
        assert!(bias.is_none_or(|bias| bias.len() == n), "length of bias");
        if c.is_empty() {
            return;
        }
        let gemm = self.turned();
        if gemm == *self {
            gemm.run_blocks(pool, simd, a, b, bias, c, scratch);
        } else {
            gemm.run_blocks(pool, simd, b, a, None, c, scratch);
            // The bias of the only column.
            for bias in bias.into_iter().flatten() {
                c.iter_mut().for_each(|c| *c += bias);
            }
        }
    }

    /// A single column as a single row, whose elements fill vectors: C' = B' A' has the same memory.
    fn turned(&self) -> Gemm {
        match *self {
            Gemm { batch, m, n: 1, k, ta, tb } if m > 1 => Gemm { batch, m: 1, n: m, k, ta: !tb, tb: !ta },
            gemm => gemm,
        }
    }

    /// `run`, after its checks of the lengths.
    #[allow(clippy::too_many_arguments)]
    fn run_blocks(
        &self,
        pool: &Pool,
        simd: Simd,
        a: &[f32],
        b: &[f32],
        bias: Option<&[f32]>,
        c: &mut [f32],
        scratch: &mut [f32],
    ) {
        let threads = pool.threads();
        let skip = scratch.as_ptr().align_offset(4 * LINE).min(LINE);
        let scratch = &mut scratch[skip..];
        let work = Work {
            gemm: *self,
            kernels: Kernels::of(simd),
            a: a.as_ptr(),
            b: b.as_ptr(),
            bias: bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
            c: c.as_mut_ptr(),
            scratch: scratch.as_mut_ptr(),
        };
        if let Some(shared) = self.shared(threads) {
            assert!(scratch.len() >= shared.len(threads), "length of scratch");
            // SAFETY: the slices were checked against the sizes by `run`, and stay borrowed until this returns; the
            // workspace is long enough.
            unsafe { work.share(pool, &shared) };
            return;
        }
        let plan = self.plan(threads);
        let slot_len = plan.slot_len();
        assert!(scratch.len() >= threads * slot_len, "length of scratch");
        let tasks = self.batch * plan.row_blocks * plan.col_blocks;
        work.each(pool, tasks, slot_len, |task, scratch, packed| {
            // SAFETY: `each` gives each task once, and the workspace belongs to this call. The slices were checked
            // against the sizes by `run` and stay borrowed until the pool is done.
            unsafe { work.block(&plan, task, scratch, packed) };
        });
    }

    /// How many blocks there should be: one for every thread, if there is work for that, or a few, and more if they are
    /// large.
    fn target(&self, threads: usize) -> usize {
        if threads == 1 {
            return 1;
        }
        let work = self.work();
        if work <= ALONE {
            return (work >> 15).clamp(1, threads);
        }
        (4 * threads).max((work >> 20).min(16 * threads))
    }

    /// Multiplications, about.
    fn work(&self) -> usize {
        self.batch.max(1) * self.m * self.n * self.k.max(4)
    }

    /// The most rows of a block, so that what it has of A fits its cache.
    fn tall(&self) -> usize {
        (A_BLOCK / self.k.clamp(64, K_CHUNK) / MAX_MR).max(1) * MAX_MR
    }

    /// Whether a block's first tiles read B in place and pack it on the way, for the tiles below them. Not if it is stored the
    /// other way round, nor if its rows are so far apart, or so many, that they are better read some at a time.
    fn packs_on_the_way(&self) -> bool {
        !self.tb && self.n <= 2 * K_CHUNK && self.n * self.k <= K_CHUNK * K_CHUNK
    }

    /// How threads share packed operands, if that pays: if rows are many enough to use B more than once, and a block is
    /// less than a whole product.
    fn shared(&self, threads: usize) -> Option<Shared> {
        let (m, n, kc) = (self.m, self.n.max(1), self.k.clamp(1, K_CHUNK));
        let (batch, target) = (self.batch.max(1), self.target(threads));
        let tall = self.tall();
        if m <= MAX_MR || self.work() <= ALONE || m <= tall && batch >= target {
            return None;
        }
        let most = (SHARED / kc.max(64) / STRIP).max(1) * STRIP;
        let rows = m.div_ceil(m.div_ceil(most));
        let cols = n.div_ceil(n.div_ceil(most)).next_multiple_of(STRIP);
        let (a_len, b_len) = (if n <= DIRECT_N { 0 } else { packed_a(rows, kc) }, cols * kc);
        let batches = (2 * SHARED / (a_len + b_len)).clamp(1, batch);
        // One operand, if the other one fits a cache; rows rather than columns, since C is written along them, unless columns are
        // far more, or are more and packed on the way.
        let parts_of_thread = |parts: usize| batches * parts / threads;
        let panels = parts_of_thread(rows.div_ceil(MAX_MR));
        let by_rows = if b_len <= KEPT { panels >= OWN } else { n <= cols && panels >= TALL };
        let by_columns = a_len <= KEPT && parts_of_thread(cols / PANEL) >= OWN;
        let wide = 2 * a_len < b_len || m < n && self.packs_on_the_way();
        let own = if by_columns && (wide || !by_rows) {
            Own::Columns
        } else if by_rows {
            Own::Rows
        } else {
            Own::Nothing
        };
        let row_blocks = if own == Own::Columns { 1 } else { rows.div_ceil(tall) };
        // Blocks of whole panels may have more than their share: a panel, and the rows that panels differ by.
        let most_rows = rows.div_ceil(row_blocks) + 2 * MAX_MR;
        let (a_len, b_len, own_len) = match own {
            Own::Nothing => (a_len, b_len, 0),
            Own::Rows => (0, b_len, if a_len > 0 { packed_a(most_rows, kc) } else { 0 }),
            Own::Columns => (a_len, 0, B_STRIP),
        };
        let acc_len = most_rows * STRIP;
        Some(Shared { batches, rows, cols, row_blocks, target, own, a_len, b_len, acc_len, own_len })
    }

    /// Cuts C so that a block of A fits its cache and every thread has a few blocks, if there is work for
    /// that.
    fn plan(&self, threads: usize) -> Plan {
        let (m, n, kc) = (self.m.max(1), self.n.max(1), self.k.clamp(1, K_CHUNK));
        let (mut row_blocks, mut col_blocks) = (m.div_ceil(self.tall()), 1);
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
        Plan {
            rows,
            cols,
            row_blocks: m.div_ceil(rows),
            col_blocks: n.div_ceil(cols),
            a_len: packed_a(rows, kc),
            b_len: B_STRIP,
            // The columns of a strip, or all of them if a tile has all the rows; filled up to whole tiles.
            acc_len: rows * if rows <= MAX_MR { cols.max(STRIP) + 7 * PANEL } else { STRIP },
        }
    }
}

/// One product under way.
struct Work {
    gemm: Gemm,
    kernels: &'static Kernels,
    a: *const f32,
    b: *const f32,
    bias: *const f32,
    c: *mut f32,
    scratch: *mut f32,
}

// SAFETY: the pointers lead into slices that `Gemm::run` borrows for as long as a `Work` lives; A, B and bias
// are only read, and `block` and `share` keep what they write of C and of the workspace apart between threads.
unsafe impl Sync for Work {}

/// A block's rows, cut into panels of nearly equal height: the first `tall` have one row more.
#[derive(Clone, Copy)]
pub(super) struct Panels {
    pub count: usize,
    height: usize,
    tall: usize,
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

/// A block of C: some panels of rows, and what they need.
struct Block {
    /// The product's A, B and C.
    a: *const f32,
    b: *const f32,
    c: *mut f32,
    /// First row of the panels, the panels, and which of them are the block's.
    i0: usize,
    panels: Panels,
    mine: std::ops::Range<usize>,
    /// Whether A and B are read where they are.
    in_place_a: bool,
    in_place_b: bool,
    /// Whether packed B goes on with what is used next.
    ahead: bool,
    /// The most vectors of a tile.
    most: usize,
    /// Packed A, the panels it has, and parked chains.
    a_pack: *mut f32,
    held: std::ops::Range<usize>,
    acc: *mut f32,
}

/// The tiles of a strip of columns up to `end`: their vectors (as a logarithm) and columns.
#[derive(Clone, Copy)]
pub(super) struct Tiling {
    pub width: usize,
    pub most: usize,
    pub end: usize,
}

impl Tiling {
    pub fn at(self, j: usize) -> (usize, usize) {
        // Widths are powers of two, and a division takes longer than a short tile has time for.
        let vectors = (self.end - j + self.width - 1) >> self.width.trailing_zeros();
        let log = vectors.min(self.most).ilog2() as usize;
        (log, (self.width << log).min(self.end - j))
    }
}

impl Work {
    /// Calls `f` with each of `tasks`, the workspace of its thread, of `slot_len` floats, and what that thread remembers
    /// from one task to the next.
    fn each(
        &self,
        pool: &Pool,
        tasks: usize,
        slot_len: usize,
        f: impl Fn(usize, *mut f32, &mut Option<usize>) + Sync,
    ) {
        let next = AtomicUsize::new(0);
        // One pool task per thread, so that its index names a workspace; blocks are taken from a counter.
        pool.run(pool.threads().min(tasks), |slot| {
            let scratch = self.scratch.wrapping_add(slot * slot_len);
            let mut memory = None;
            loop {
                let task = next.fetch_add(1, Relaxed);
                if task >= tasks {
                    break;
                }
                f(task, scratch, &mut memory);
            }
        });
    }

    /// Packs some panels of rows of A for all runs of a chunk; `i0` is the first row of panel 0, and `to` has the
    /// panels `held`.
    ///
    /// # Safety
    /// The rows and terms are inside A, and `to` leads to packed A of the panels held, of which no other thread writes
    /// these.
    #[allow(clippy::too_many_arguments)]
    unsafe fn pack_a(
        &self,
        a: *const f32,
        chunk: &Chunk,
        panels: Panels,
        mine: std::ops::Range<usize>,
        i0: usize,
        held: &std::ops::Range<usize>,
        to: *mut f32,
    ) {
        let (Gemm { m, k, ta, .. }, width) = (self.gemm, self.kernels.width);
        for r in 0..chunk.runs {
            let (kr, len) = chunk.run(r);
            // Some lines at a time, so that what is near in memory is read together.
            let block = if ta { LINES } else { len.max(1) };
            for first in (0..len).step_by(block) {
                let (kr, some) = (kr + first, block.min(len - first));
                for p in mine.clone() {
                    let (i, mr) = panels.at(p);
                    let i = i0 + i;
                    let to = to.wrapping_add((chunk.panel(held, r, p) + first) * width);
                    // SAFETY: the caller's; packed A has a vector, which is at most a third wider than a panel, per
                    // term and panel.
                    unsafe {
                        if ta {
                            (self.kernels.pack_lines)(a.wrapping_add(kr * m + i), m, mr, 1, some, to);
                        } else {
                            (self.kernels.pack_turned)(a.wrapping_add(i * k + kr), k, mr, 1, some, to);
                        }
                    }
                }
            }
        }
    }

    /// Packs the columns of B from `s0` on, tile after tile, for `len` terms from `kr` on.
    ///
    /// # Safety
    /// The columns and terms are inside B, and `to` leads to as many floats as the tiles have, which no other thread uses.
    unsafe fn pack_b(&self, b: *const f32, tiling: Tiling, s0: usize, kr: usize, len: usize, to: *mut f32) {
        let Gemm { n, k, tb, .. } = self.gemm;
        // Some lines at a time, so that what is near in memory is read together.
        let block = if tb { len.max(1) } else { LINES };
        for first in (0..len).step_by(block) {
            let (kr, some) = (kr + first, block.min(len - first));
            let mut j = s0;
            while j < tiling.end {
                let (log, valid) = tiling.at(j);
                let to = to.wrapping_add((j - s0) * len + ((first * self.kernels.width) << log));
                // SAFETY: the caller's; each tile before this one has filled its vectors.
                unsafe {
                    if tb {
                        (self.kernels.pack_turned)(b.wrapping_add(j * k + kr), k, valid, 1 << log, some, to);
                    } else {
                        (self.kernels.pack_lines)(b.wrapping_add(kr * n + j), n, valid, 1 << log, some, to);
                    }
                }
                j += valid;
            }
        }
    }

    /// Computes a block's rows at the columns of a strip over run `r` of a chunk. Packed B is that of this strip and run; the
    /// first tiles write it if it is packed on the way.
    ///
    /// # Safety
    /// The rows, columns and terms are inside C, A and B, the operands are packed if they are not read in place, and no
    /// other thread uses this part of C and the parked chains, which are those of `r` runs of these columns.
    #[allow(clippy::too_many_arguments)]
    unsafe fn tiles(
        &self,
        block: &Block,
        chunk: &Chunk,
        r: usize,
        tiling: Tiling,
        s0: usize,
        pitch: usize,
        b_pack: *mut f32,
        on_the_way: bool,
    ) {
        let Gemm { m, n, k, ta, .. } = self.gemm;
        let Kernels { width, tile, .. } = *self.kernels;
        let Block { a, b, c, i0, panels, ref mine, in_place_a, in_place_b, .. } = *block;
        let (kr, len) = chunk.run(r);
        let (stride_a, ta_tile) = match (in_place_a, ta) {
            (false, _) => (width, true),
            (true, true) => (m, true),
            (true, false) => (k, false),
        };
        let between = BETWEEN[usize::from(ta_tile)];
        let above = panels.at(mine.start).0;
        let run_tile = |p: usize, j: usize, (log, valid): (usize, usize), share: usize, ahead_step: usize| {
            let (i, mr) = panels.at(p);
            let keep = b_pack.wrapping_add((j - s0) * len);
            let reads = match (in_place_b, on_the_way && p == mine.start) {
                (true, _) => IN_PLACE,
                (_, true) => PACKING,
                _ => PACKED,
            };
            let (b, stride_b) = match reads {
                PACKED => (keep.cast_const(), width << log),
                _ => (b.wrapping_add(kr * n + j), n),
            };
            let ahead = b.wrapping_add(((width << log) * len) + (p - mine.start) * share);
            let t = Tile {
                kc: len,
                a: match (in_place_a, ta) {
                    (true, true) => a.wrapping_add(kr * m + i0 + i),
                    (true, false) => a.wrapping_add((i0 + i) * k + kr),
                    _ => block.a_pack.wrapping_add(chunk.panel(&block.held, r, p) * width).cast_const(),
                },
                stride_a,
                b,
                stride_b,
                keep,
                ahead,
                ahead_step,
                acc: block.acc.wrapping_add((i - above) * pitch + (j - s0) * mr),
                begin: r == 0,
                end: r + 1 == chunk.runs,
                c: c.wrapping_add((i0 + i) * n + j),
                stride_c: n,
                first: chunk.first,
                bias: match chunk.last && !self.bias.is_null() {
                    true => self.bias.wrapping_add(j),
                    false => std::ptr::null(),
                },
                tail: valid - ((width << log) - width),
            };
            // SAFETY: the kernels are of a level that the processor has. The tile's rows and
            // columns are inside C, A and B, packed or not, hold `len` terms of each, and packed B has room for the tile's
            // vectors.
            unsafe { tile[usize::from(ta_tile)][usize::from(reads)][mr - 1][log](&t) };
        };
        // Long tiles share a panel of B one after the other; short ones write C along its rows.
        if len > K_SHORT {
            let mut j = s0;
            while j < tiling.end {
                let shape = tiling.at(j);
                // The next panel of B comes from far away: each tile asks for its share of it.
                let (share, step) = match block.ahead {
                    true => {
                        let share = ((width << shape.0) * len).div_ceil(mine.len());
                        (share, (share * between).div_ceil(len))
                    }
                    false => (0, between * (width << shape.0)),
                };
                for p in mine.clone() {
                    run_tile(p, j, shape, share, step);
                }
                j += shape.1;
            }
        } else {
            for p in mine.clone() {
                let mut j = s0;
                while j < tiling.end {
                    let shape = tiling.at(j);
                    run_tile(p, j, shape, 0, width);
                    j += shape.1;
                }
            }
        }
    }

    /// Computes one block of C over all of k. `packed` remembers which rows of A the workspace holds.
    ///
    /// # Safety
    /// The pointers lead to as many elements as `Gemm` says; `task` names a block that no other call has; and
    /// `scratch` leads to `slot_len` floats that no other thread uses.
    unsafe fn block(&self, plan: &Plan, task: usize, scratch: *mut f32, packed: &mut Option<usize>) {
        let Gemm { m, n, k, tb, .. } = self.gemm;
        let Plan { row_blocks, col_blocks, a_len, b_len, .. } = *plan;
        let Kernels { width, mr, ref wide, .. } = *self.kernels;
        let (row_task, col_task) = (task / col_blocks, task % col_blocks);
        let batch = row_task / row_blocks;
        let (i0, j0) = (row_task % row_blocks * plan.rows, col_task * plan.cols);
        let j1 = (j0 + plan.cols).min(n);
        let panels = Panels::new(plan.rows.min(m - i0), mr);
        let several = panels.count > 1;
        // Blocks with few rows use B once and in place; others use A once and in place if they have few
        // columns.
        let in_place_b = !several && !tb;
        let in_place_a = !several || n <= DIRECT_N;
        let on_the_way = self.gemm.packs_on_the_way();
        let b_pack = scratch.wrapping_add(a_len);
        let block = Block {
            a: self.a.wrapping_add(batch * m * k),
            b: self.b.wrapping_add(batch * k * n),
            c: self.c.wrapping_add(batch * m * n),
            i0,
            panels,
            mine: 0..panels.count,
            in_place_a,
            in_place_b,
            ahead: false,
            most: if in_place_b { wide[panels.height - 1] } else { 2 },
            a_pack: scratch,
            held: 0..panels.count,
            acc: b_pack.wrapping_add(b_len),
        };

        let chunks = k.div_ceil(K_CHUNK).max(1);
        for index in 0..chunks {
            let chunk = Chunk::new(k, index, if in_place_b { K_THIN } else { K_RUN });
            let key = Some(row_task * chunks + index);
            if !in_place_a && *packed != key {
                // SAFETY: the block's rows are inside A, and the workspace is this thread's.
                unsafe {
                    self.pack_a(block.a, &chunk, panels, block.mine.clone(), i0, &block.held, block.a_pack)
                };
                *packed = key;
            }

            let strip = match (in_place_b, chunk.runs) {
                (true, _) => (j1 - j0).next_multiple_of(PANEL),
                (false, 1) => (B_STRIP / chunk.run.max(1) / PANEL).max(1) * PANEL,
                (false, _) => STRIP,
            };
            for s0 in (j0..j1).step_by(strip) {
                let tiling = Tiling { width, most: block.most, end: (s0 + strip).min(j1) };
                for r in 0..chunk.runs {
                    let (kr, len) = chunk.run(r);
                    // SAFETY: the block is inside C and this thread's, as is the workspace; packed B has room for a
                    // strip.
                    unsafe {
                        if !in_place_b && !on_the_way {
                            self.pack_b(block.b, tiling, s0, kr, len, b_pack);
                        }
                        self.tiles(&block, &chunk, r, tiling, s0, strip, b_pack, on_the_way);
                    }
                }
            }
        }
    }

    /// Computes C with all threads, which pack together and then share what is packed.
    ///
    /// # Safety
    /// The pointers lead to as many elements as `Gemm` says, and `scratch` to as many as `shared` says.
    unsafe fn share(&self, pool: &Pool, shared: &Shared) {
        let Gemm { batch, m, n, k, .. } = self.gemm;
        let Shared { own, a_len, b_len, .. } = *shared;
        let Kernels { width, mr, .. } = *self.kernels;
        let in_place_a = n <= DIRECT_N;
        // A thread's own columns come in small parts, so that threads end together.
        let strip = if own == Own::Columns { PANEL } else { STRIP };
        let on_the_way = own == Own::Columns && self.gemm.packs_on_the_way();
        let threads = pool.threads();
        // Packed A and B of the product `x` of those at a time come after the threads' parts.
        let packed = threads * shared.slot_len();
        let a_of = |x: usize| self.scratch.wrapping_add(packed + x * (a_len + b_len));
        let tiling = |s0: usize, j1: usize| Tiling { width, most: 2, end: (s0 + strip).min(j1) };

        for b0 in (0..batch).step_by(shared.batches) {
            let batches = shared.batches.min(batch - b0);
            for i0 in (0..m).step_by(shared.rows) {
                let panels = Panels::new(shared.rows.min(m - i0), mr);
                let all = 0..panels.count;
                for index in 0..k.div_ceil(K_CHUNK).max(1) {
                    let chunk = Chunk::new(k, index, K_RUN);
                    for j0 in (0..n).step_by(shared.cols) {
                        let j1 = (j0 + shared.cols).min(n);
                        let strips = (j1 - j0).div_ceil(strip);
                        let strip_at = |s: usize| j0 + s * strip;
                        // Packed B is strip after strip, run after run.
                        let b_at = |x: usize, s: usize, r: usize| {
                            let whole = (j1 - strip_at(s)).min(strip).next_multiple_of(width);
                            a_of(x).wrapping_add(a_len + s * strip * chunk.kc + r * chunk.run * whole)
                        };

                        let old_a = in_place_a || j0 > 0;
                        let a_packs = if old_a || own == Own::Rows { 0 } else { panels.count };
                        let b_packs = if own == Own::Columns { 0 } else { strips * chunk.runs };
                        let each = a_packs + b_packs;
                        let packs = batches * each;
                        let pieces = packs.min(8 * threads);
                        pool.run(pieces, |piece| {
                            for task in piece * packs / pieces..(piece + 1) * packs / pieces {
                                let (x, part) = (task / each, task % each);
                                let a = self.a.wrapping_add((b0 + x) * m * k);
                                let b = self.b.wrapping_add((b0 + x) * k * n);
                                // SAFETY: rows, columns and terms are inside A and B, the workspace has room for so
                                // many products, panels and strips, and each is packed once.
                                unsafe {
                                    if part < a_packs {
                                        self.pack_a(a, &chunk, panels, part..part + 1, i0, &all, a_of(x));
                                        continue;
                                    }
                                    let (s, r) = ((part - a_packs) % strips, (part - a_packs) / strips);
                                    let (kr, len) = chunk.run(r);
                                    let s0 = strip_at(s);
                                    self.pack_b(b, tiling(s0, j1), s0, kr, len, b_at(x, s, r));
                                }
                            }
                        });

                        // A few blocks for each thread.
                        let some = (8 * threads).div_ceil(batches);
                        let (row_blocks, col_blocks) = match own {
                            // Twice as many as there need be, since the first are twice as large.
                            Own::Rows => (some.max(2 * shared.row_blocks), 1),
                            Own::Columns => (1, some),
                            // Columns are cut first, since what a block has of A then stays in its cache for the next.
                            Own::Nothing => {
                                let target = shared.target.div_ceil(batches);
                                let col_blocks = target.div_ceil(shared.row_blocks).clamp(1, strips);
                                let most = panels.count.max(shared.row_blocks);
                                (target.div_ceil(col_blocks).clamp(shared.row_blocks, most), col_blocks)
                            }
                        };
                        let blocks = row_blocks * col_blocks;
                        self.each(pool, batches * blocks, shared.slot_len(), |task, acc, _| {
                            let (x, row, col) =
                                (task / blocks, task % blocks / col_blocks, task % col_blocks);
                            let cut = |len: usize, parts: usize, i: usize| match own {
                                Own::Nothing => i * len / parts,
                                _ => taper(len, parts, i),
                            };
                            let part = |len, parts, i| cut(len, parts, i)..cut(len, parts, i + 1);
                            let mine = part(panels.count, row_blocks, row);
                            let my_strips = part(strips, col_blocks, col);
                            if mine.is_empty() || my_strips.is_empty() {
                                return;
                            }
                            let own_pack = acc.wrapping_add(shared.acc_len);
                            let (a_pack, held) = match own {
                                Own::Rows => (own_pack, mine.clone()),
                                _ => (a_of(x), all.clone()),
                            };
                            let block = Block {
                                a: self.a.wrapping_add((b0 + x) * m * k),
                                b: self.b.wrapping_add((b0 + x) * k * n),
                                c: self.c.wrapping_add((b0 + x) * m * n),
                                i0,
                                panels,
                                mine,
                                in_place_a,
                                in_place_b: false,
                                ahead: own != Own::Columns,
                                most: 2,
                                a_pack,
                                held,
                                acc,
                            };
                            if own == Own::Rows && !in_place_a {
                                let (mine, held) = (block.mine.clone(), &block.held);
                                // SAFETY: the rows are inside A, and the workspace, the thread's own, has room for them.
                                unsafe { self.pack_a(block.a, &chunk, panels, mine, i0, held, a_pack) };
                            }
                            for s in my_strips {
                                let s0 = strip_at(s);
                                let columns = tiling(s0, j1);
                                for r in 0..chunk.runs {
                                    let (kr, len) = chunk.run(r);
                                    let b_pack = if own == Own::Columns { own_pack } else { b_at(x, s, r) };
                                    // SAFETY: the block is inside C, and `each` gives it to one call; its operands
                                    // are packed, and the workspace is the thread's own.
                                    unsafe {
                                        if own == Own::Columns && !on_the_way {
                                            self.pack_b(block.b, columns, s0, kr, len, b_pack);
                                        }
                                        self.tiles(&block, &chunk, r, columns, s0, strip, b_pack, on_the_way);
                                    }
                                }
                            }
                        });
                    }
                }
            }
        }
    }
}

/// What a tile kernel works on: `kc` terms of some rows of A and some vectors of columns of B.
pub(super) struct Tile {
    pub kc: usize,
    pub a: *const f32,
    pub stride_a: usize,
    pub b: *const f32,
    pub stride_b: usize,
    /// Where a tile that packs B writes it.
    pub keep: *mut f32,
    /// What a tile that reads packed B asks for, every few terms ([`BETWEEN`]), since it will be wanted later.
    pub ahead: *const f32,
    pub ahead_step: usize,
    /// Where unfinished chains are parked, vector after vector.
    pub acc: *mut f32,
    /// Whether chains begin here, or are taken up.
    pub begin: bool,
    /// Whether the chunk ends here, or its chains are parked.
    pub end: bool,
    pub c: *mut f32,
    pub stride_c: usize,
    /// Whether this is the first chunk, so that C holds nothing yet.
    pub first: bool,
    /// Bias of the tile's columns if this is the last chunk, or null.
    pub bias: *const f32,
    /// Number of columns of the last vector that exist.
    pub tail: usize,
}

/// A run of neighbouring positions along the innermost axis of a view: columns of a panel, or terms.
#[derive(Clone, Copy)]
pub(super) struct Run {
    /// Where the first channel of its image and group starts in the source.
    pub base: usize,
    /// Where its first position lies in the result, from the start of a channel.
    pub out: usize,
    /// Its first column, and how many there are, at most `RUN`.
    pub col: u32,
    pub len: u32,
}

/// The most positions of a run: as many as there are bits for.
pub(super) const RUN: usize = 32;

/// What one tap sees of a run: where its first position would lie in the source, from the start of a channel,
/// and as bits which of its positions do lie in the source; the others are zeros.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    pub at: i32,
    pub inside: u32,
}

/// Lines of a view: for each (channel, tap) from a first one on, the elements of all runs.
pub(super) struct Lines {
    pub source: *const f32,
    /// Floats of a channel.
    pub plane: usize,
    pub runs: *const Run,
    pub count: usize,
    /// Per run, what each tap sees of it.
    pub seen: *const Seen,
    pub taps: usize,
    pub channel: usize,
    pub tap: usize,
    pub lines: usize,
    /// Floats from one line to the next.
    pub pitch: usize,
    /// How far apart neighbouring positions lie in the source.
    pub step: usize,
}

/// Sums of some positions for all lanes of some vectors: `to[r][lane] = Σ x_r[offsets[k]] · w[k][lane]`, in increasing k.
pub(super) struct Across {
    pub kc: usize,
    pub offsets: *const usize,
    /// The first position, whose neighbours are the first half, and that of the other half.
    pub x: [*const f32; 2],
    pub w: *const f32,
    pub to: *mut f32,
    /// Whether sums begin here, or are taken up.
    pub begin: bool,
    /// Lines that will be written next: the first, how far apart they are, and how many.
    pub ahead: *const f32,
    pub ahead_step: usize,
    pub asks: usize,
}

/// Sums of neighbouring outputs: `to[i] = Σ w[t] · x[i + offsets[t]] + add`, in the order of t.
pub(super) struct Chains {
    pub x: *const f32,
    pub offsets: *const usize,
    pub w: *const f32,
    pub taps: usize,
    pub add: f32,
    pub to: *mut f32,
    /// A multiple of [`LINE`].
    pub len: usize,
}

/// Sums side by side, in vectors of [`LINE`] lanes: `acc[t] += Σ g[p] · x[starts[t] + p · step]`, in the order of p.
pub(super) struct Dots {
    pub g: *const f32,
    pub x: *const f32,
    pub starts: *const u32,
    /// Floats from one operand to the next.
    pub step: usize,
    pub positions: usize,
    pub acc: *mut f32,
}

/// Which products of [`Weave`] are left out: those of lanes with the bits of a mark, or of factors with them.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Skip {
    /// None.
    Nothing,
    /// Those of lanes with a bit of this mark.
    Lanes(u32),
    /// Those of factors with a bit of this mark.
    Factors(u32),
}

/// Chains side by side: `acc[c][l] = fma(a[k][l], x[k * term + c * column], acc[c][l])` in increasing k.
struct Weave {
    a: *const f32,
    terms: usize,
    x: *const f32,
    term: usize,
    column: usize,
    acc: *mut f32,
    columns: usize,
    /// Floats of a row of `a` and of `acc`, a multiple of [`LINE`].
    lanes: usize,
    /// Whether chains begin here, from +0.0.
    begin: bool,
    skip: Skip,
}

pub(super) type TileFn = unsafe fn(&Tile);
type WeaveFn = unsafe fn(&Weave);
type ChainsFn = unsafe fn(&Chains);
type DotsFn = unsafe fn(&Dots);
type AcrossFn = unsafe fn(&Across);
/// Takes (to, stride, rows, columns, bias).
type BiasFn = unsafe fn(*mut f32, usize, usize, usize, *const f32);
type PutFn = unsafe fn(&Put);
type PutTurnedFn = unsafe fn(&PutTurned);
/// Takes the lines and where they go.
type GatherFn = unsafe fn(&Lines, *mut f32);
/// Takes (from, stride, columns, vectors, kc, to).
pub(super) type PackFn = unsafe fn(*const f32, usize, usize, usize, usize, *mut f32);
pub(super) type Tiles = [[TileFn; 4]; MAX_MR];

/// The kernels of one level.
pub(super) struct Kernels {
    /// Floats of a vector.
    pub width: usize,
    /// The most rows of a tile; no more than `width`, and more than two thirds of it.
    pub mr: usize,
    /// The most vectors of a tile that reads B in place, by rows less one.
    pub wide: [usize; MAX_MR],
    /// By whether A is transposed, how B is read ([`PACKED`] and so on), rows less one, and log2 of the vectors.
    pub tile: &'static [[Tiles; 3]; 2],
    /// Packs a panel whose lines run across the terms.
    pub pack_lines: PackFn,
    /// Packs a panel whose lines run along the terms.
    pub pack_turned: PackFn,
    /// Copies the lines of a view.
    pub gather: GatherFn,
    /// Adds to each row of a tile its bias.
    pub add_bias: BiasFn,
    /// Brings columns of a tile to their place.
    pub put: PutFn,
    /// Brings sums of positions to their place.
    pub put_turned: PutTurnedFn,
    /// Sums of positions, by their number less one, and log2 of the vectors.
    pub across: [[AcrossFn; 3]; MAX_MR],
    /// Sums of neighbouring outputs.
    pub chains: ChainsFn,
    /// Sums side by side, by their number less one; at most `mr`.
    pub dots: [DotsFn; MAX_MR],
    /// Chains side by side.
    weave: WeaveFn,
}

impl Kernels {
    pub fn of(simd: Simd) -> &'static Kernels {
        match simd.usable() {
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 => &avx512::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => &avx2::KERNELS,
            _ => &scalar::KERNELS,
        }
    }
}

/// A register of floats: groups of four. The `n` of the partial accesses is from 1 to the width.
///
/// All methods may only be called where the processor has the instructions, on addresses valid for the
/// access.
trait Vector: Copy {
    const WIDTH: usize;
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    /// The first `n` floats, and zeros.
    unsafe fn load_part(from: *const f32, n: usize) -> Self;
    /// The floats whose bits are set, and zeros.
    unsafe fn load_mask(from: *const f32, bits: u32) -> Self;
    /// Every other float, of those whose bits are set, and zeros.
    unsafe fn load_even(from: *const f32, bits: u32) -> Self;
    /// Stores the floats whose bits are set.
    unsafe fn store_mask(self, to: *mut f32, bits: u32);
    /// Stores the floats whose bits are set to every other place.
    unsafe fn store_even(self, to: *mut f32, bits: u32);
    /// Group g is loaded from `from[4 * g] + at`.
    unsafe fn load_groups(from: &[*const f32], at: usize) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn store_part(self, to: *mut f32, n: usize);
    /// a * b + self, rounded once.
    unsafe fn fma(self, a: Self, b: Self) -> Self;
    /// The same, but itself where `a` has the bits of `mark`.
    unsafe fn fma_unless(self, mark: Self, a: Self, b: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    /// Transposes each square of four groups.
    unsafe fn transpose(x: [Self; 4]) -> [Self; 4];
    unsafe fn prefetch(at: *const f32);
    /// The same for what is wanted later, so that the nearest cache is not for it.
    unsafe fn fetch(at: *const f32);
}

/// Bit i of the lower half becomes bit 2 i.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
fn apart(bits: u32) -> u32 {
    let x = (bits | bits << 8) & 0x00ff_00ff;
    let x = (x | x << 4) & 0x0f0f_0f0f;
    let x = (x | x << 2) & 0x3333_3333;
    (x | x << 1) & 0x5555_5555
}

/// Takes a tile's chains one term further. Not a closure: that would be compiled without the instructions of `V`.
///
/// # Safety
/// As for [`tile`], whose term is at `a` and `b`.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
unsafe fn term<V: Vector, const MR: usize, const NV: usize, const TA: bool, const B: u8>(
    acc: &mut [[V; NV]; MR],
    a: *const f32,
    stride_a: usize,
    b: *const f32,
    stride_b: usize,
    keep: *mut f32,
    tail: usize,
) {
    // SAFETY: the caller's.
    unsafe {
        if TA && B != IN_PLACE {
            V::prefetch(a.wrapping_add(AHEAD * stride_a));
        }
        let mut bv = [V::splat(0.0); NV];
        for v in 0..NV {
            let from = b.add(v * V::WIDTH);
            bv[v] = if v < NV - 1 || B == PACKED { V::load(from) } else { V::load_part(from, tail) };
            if B != PACKED && v * V::WIDTH % LINE == 0 {
                V::prefetch(from.wrapping_add(AHEAD * stride_b));
            }
            if B == PACKING {
                bv[v].store(keep.wrapping_add(v * V::WIDTH));
            }
        }
        for r in 0..MR {
            let x = V::splat(*a.add(if TA { r } else { r * stride_a }));
            for v in 0..NV {
                acc[r][v] = acc[r][v].fma(x, bv[v]);
            }
        }
    }
}

/// Computes a tile of MR rows and NV vectors; TA and B are the first indices of `Kernels::tile`.
///
/// # Safety
/// The tile's addresses are valid for that many rows and columns (only `tail` of the last vector) and `kc`
/// terms, and the processor has the instructions of `V`.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
unsafe fn tile<V: Vector, const MR: usize, const NV: usize, const TA: bool, const B: u8>(t: &Tile) {
    let &Tile { kc, mut a, stride_a, mut b, stride_b, mut keep, acc: park, tail, .. } = t;
    let last = NV - 1;
    // SAFETY: of all of this, the caller's: addresses are inside the tile, and last vectors are cut to
    // `tail`. Packed B and parked chains have whole vectors.
    unsafe {
        let mut acc = [[V::splat(0.0); NV]; MR];
        if !t.begin {
            for r in 0..MR {
                for v in 0..NV {
                    acc[r][v] = V::load(park.add((r * NV + v) * V::WIDTH));
                }
            }
        }
        let step_a = if TA { stride_a } else { 1 };
        let step_b = if B == PACKED { NV * V::WIDTH } else { stride_b };
        // What is asked for, every few terms: at the end of a chunk first the tile's own part of C, whose rows have a line
        // at either end, then what comes later.
        let between = BETWEEN[TA as usize];
        let mut asks = kc / between;
        let mut lines = if B == PACKED && t.end && asks > 2 * MR { 2 } else { 0 };
        while asks > 0 {
            let (some, mut at, step) = match lines {
                0 => (asks, t.ahead, t.ahead_step),
                _ => (MR, t.c.wrapping_add((2 - lines) * last * V::WIDTH).cast_const(), t.stride_c),
            };
            asks -= some;
            lines = lines.saturating_sub(1);
            for _ in 0..some {
                if B == PACKED {
                    V::fetch(at);
                    at = at.wrapping_add(step);
                }
                for _ in 0..between {
                    term::<V, MR, NV, TA, B>(&mut acc, a, stride_a, b, stride_b, keep, tail);
                    a = a.wrapping_add(step_a);
                    b = b.wrapping_add(step_b);
                    keep = keep.wrapping_add(NV * V::WIDTH);
                }
            }
        }
        for _ in 0..kc % between {
            term::<V, MR, NV, TA, B>(&mut acc, a, stride_a, b, stride_b, keep, tail);
            a = a.wrapping_add(step_a);
            b = b.wrapping_add(step_b);
            keep = keep.wrapping_add(NV * V::WIDTH);
        }
        for r in 0..MR {
            for v in 0..NV {
                let mut sum = acc[r][v];
                if !t.end {
                    sum.store(park.add((r * NV + v) * V::WIDTH));
                    continue;
                }
                let to = t.c.add(r * t.stride_c + v * V::WIDTH);
                let n = if v == last { tail } else { V::WIDTH };
                if !t.first {
                    sum = V::load_part(to, n).add(sum);
                }
                if !t.bias.is_null() {
                    sum = sum.add(V::load_part(t.bias.add(v * V::WIDTH), n));
                }
                sum.store_part(to, n);
            }
        }
    }
}

/// Packs a panel by copying; see [`Kernels`]. The last vector is filled up with zeros.
///
/// # Safety
/// `from` leads to `kc` lines, `stride` apart, of `cols` floats, which make `nv` vectors, and `to` to `kc *
/// nv` vectors. The processor has the instructions of `V`.
#[inline(always)]
unsafe fn pack<V: Vector>(from: *const f32, stride: usize, cols: usize, nv: usize, kc: usize, to: *mut f32) {
    let tail = cols - (nv - 1) * V::WIDTH;
    for k in 0..kc {
        // SAFETY: line k is inside both, as the caller has it, and the last vector is cut to what there is.
        unsafe {
            let (from, to) = (from.add(k * stride), to.add(k * nv * V::WIDTH));
            for v in 0..nv {
                if v * V::WIDTH % LINE == 0 {
                    V::prefetch(from.wrapping_add(AHEAD * stride + v * V::WIDTH));
                }
            }
            for v in 0..nv - 1 {
                V::load(from.add(v * V::WIDTH)).store(to.add(v * V::WIDTH));
            }
            V::load_part(from.add((nv - 1) * V::WIDTH), tail).store(to.add((nv - 1) * V::WIDTH));
        }
    }
}

/// Transposes a panel; see [`Kernels`]. What fills up the last vector does not matter: it repeats a column.
///
/// # Safety
/// `from` leads to `cols` lines, `stride` apart, of `kc` floats, which make `nv` vectors or less, and `to` to
/// `kc * nv` vectors. The processor has the instructions of `V`.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
unsafe fn transpose<V: Vector>(
    from: *const f32,
    stride: usize,
    cols: usize,
    nv: usize,
    kc: usize,
    to: *mut f32,
) {
    for v in 0..nv {
        let mut lines = [from; LINE];
        for (j, line) in lines.iter_mut().enumerate() {
            *line = from.wrapping_add((v * V::WIDTH + j).min(cols - 1) * stride);
        }
        let to = to.wrapping_add(v * V::WIDTH);
        let mut k = 0;
        // SAFETY: terms k.. of the lines are inside B, and rows k.. of this vector inside the panel.
        unsafe {
            // Squares, in which all that is wanted of a line is taken at once: lines that are a large power of two
            // apart push each other out of the cache.
            while k + V::WIDTH <= kc {
                let mut x = [[V::splat(0.0); 4]; LINE / 4];
                for i in 0..4 {
                    for g in 0..V::WIDTH / 4 {
                        x[g][i] = V::load_groups(&lines[i..], k + 4 * g);
                    }
                }
                for g in 0..V::WIDTH / 4 {
                    for (i, x) in V::transpose(x[g]).into_iter().enumerate() {
                        x.store(to.add((k + 4 * g + i) * nv * V::WIDTH));
                    }
                }
                k += V::WIDTH;
            }
            while k + 4 <= kc {
                let x = std::array::from_fn(|i| V::load_groups(&lines[i..], k));
                for (i, x) in V::transpose(x).into_iter().enumerate() {
                    x.store(to.add((k + i) * nv * V::WIDTH));
                }
                k += 4;
            }
            while k < kc {
                for (j, line) in lines.iter().enumerate().take(V::WIDTH) {
                    *to.add(k * nv * V::WIDTH + j) = *line.add(k);
                }
                k += 1;
            }
        }
    }
}

/// Copies the lines of a view; see [`Lines`].
///
/// # Safety
/// The runs with what the taps see of them describe floats of `source`, and `to` leads to as many floats as
/// the lines have. The processor has the instructions of `V`.
#[inline(always)]
unsafe fn gather<V: Vector>(l: &Lines, to: *mut f32) {
    let lanes = u32::MAX >> (32 - V::WIDTH);
    // SAFETY: of all of this, the caller's: only positions that lie in the source are read, and only columns of
    // the run written.
    unsafe {
        for r in 0..l.count {
            let run = *l.runs.add(r);
            let seen = l.seen.add(r * l.taps);
            let mut tap = l.tap;
            let mut channel = l.source.wrapping_add(l.channel * l.plane + run.base);
            let mut to = to.add(run.col as usize);
            let all = u32::MAX >> (32 - run.len);
            for _ in 0..l.lines {
                let see = *seen.add(tap);
                let source = channel.wrapping_offset(see.at as isize);
                if l.step <= 2 {
                    let mut i = 0;
                    while i < run.len as usize {
                        let (from, inside) = (source.wrapping_add(i * l.step), see.inside >> i & lanes);
                        let x =
                            if l.step == 1 { V::load_mask(from, inside) } else { V::load_even(from, inside) };
                        x.store_mask(to.add(i), all >> i & lanes);
                        if tap + 1 == l.taps {
                            // The columns to come lie behind these, mostly.
                            V::fetch(from.wrapping_add(STRIP * l.step));
                        }
                        i += V::WIDTH;
                    }
                } else {
                    for i in 0..run.len as usize {
                        let inside = see.inside >> i & 1 != 0;
                        *to.add(i) = if inside { *source.wrapping_add(i * l.step) } else { 0.0 };
                    }
                }
                to = to.wrapping_add(l.pitch);
                tap += 1;
                if tap == l.taps {
                    tap = 0;
                    channel = channel.wrapping_add(l.plane);
                }
            }
        }
    }
}

/// Takes the sums of [`Across`] one term further. Not a closure, as [`term`].
///
/// # Safety
/// As for [`across`], whose term is at `x` and `w`.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
unsafe fn across_term<V: Vector, const MR: usize, const NV: usize>(
    acc: &mut [[V; NV]; MR],
    x: [*const f32; 2],
    offset: usize,
    w: *const f32,
) {
    let half = MR.div_ceil(2);
    // SAFETY: the caller's.
    unsafe {
        let mut wv = [V::splat(0.0); NV];
        for v in 0..NV {
            wv[v] = V::load(w.add(v * V::WIDTH));
        }
        let x = [x[0].add(offset), x[1].add(offset)];
        for r in 0..MR {
            let x = V::splat(if r < half { *x[0].add(r) } else { *x[1].add(r - half) });
            for v in 0..NV {
                acc[r][v] = acc[r][v].fma(x, wv[v]);
            }
        }
    }
}

/// Computes sums of MR positions and NV vectors of lanes; see [`Across`].
///
/// # Safety
/// `Across` leads to what it says. The processor has the instructions of `V`.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
unsafe fn across<V: Vector, const MR: usize, const NV: usize>(t: &Across) {
    // SAFETY: the caller's.
    unsafe {
        let mut acc = [[V::splat(0.0); NV]; MR];
        if !t.begin {
            for r in 0..MR {
                for v in 0..NV {
                    acc[r][v] = V::load(t.to.add((r * NV + v) * V::WIDTH));
                }
            }
        }
        let (mut w, mut offsets, mut ahead) = (t.w, t.offsets, t.ahead);
        // Two terms in a turn, and a line asked for with them.
        let asks = t.asks.min(t.kc / 2);
        for turns in [(asks, true), (t.kc / 2 - asks, false)] {
            for _ in 0..turns.0 {
                if turns.1 {
                    V::fetch(ahead);
                    ahead = ahead.wrapping_add(t.ahead_step);
                }
                across_term::<V, MR, NV>(&mut acc, t.x, *offsets, w);
                across_term::<V, MR, NV>(&mut acc, t.x, *offsets.add(1), w.wrapping_add(NV * V::WIDTH));
                offsets = offsets.wrapping_add(2);
                w = w.wrapping_add(2 * NV * V::WIDTH);
            }
        }
        if !t.kc.is_multiple_of(2) {
            across_term::<V, MR, NV>(&mut acc, t.x, *offsets, w);
        }
        for r in 0..MR {
            for v in 0..NV {
                acc[r][v].store(t.to.add((r * NV + v) * V::WIDTH));
            }
        }
    }
}

/// Some columns of a finished tile on their way to the result.
pub(super) struct Put {
    pub from: *const f32,
    /// Floats from one row to the next.
    pub from_stride: usize,
    pub to: *mut f32,
    pub to_stride: usize,
    /// Floats from one column to the next.
    pub to_step: usize,
    pub rows: usize,
    pub cols: usize,
    /// Whether they are added to what is there.
    pub add: bool,
    /// A bias for each row, added last, or null.
    pub bias: *const f32,
}

/// Brings columns to their place; see [`Put`].
///
/// # Safety
/// `Put` leads to what it says. The processor has the instructions of `V`.
#[inline(always)]
unsafe fn put<V: Vector>(p: &Put) {
    // SAFETY: the caller's; last vectors are cut to what there is.
    unsafe {
        for r in 0..p.rows {
            let (from, to) = (p.from.add(r * p.from_stride), p.to.add(r * p.to_stride));
            let bias = if p.bias.is_null() { None } else { Some(*p.bias.add(r)) };
            if p.to_step > 2 {
                for j in 0..p.cols {
                    let (mut x, to) = (*from.add(j), to.add(j * p.to_step));
                    if p.add {
                        x += *to;
                    }
                    *to = bias.map_or(x, |bias| x + bias);
                }
                continue;
            }
            let mut j = 0;
            while j < p.cols {
                let n = (p.cols - j).min(V::WIDTH);
                let (to, bits) = (to.add(j * p.to_step), u32::MAX >> (32 - n));
                let mut x = V::load_part(from.add(j), n);
                if p.add {
                    x = x.add(if p.to_step == 1 { V::load_mask(to, bits) } else { V::load_even(to, bits) });
                }
                if let Some(bias) = bias {
                    x = x.add(V::splat(bias));
                }
                if p.to_step == 1 {
                    x.store_mask(to, bits);
                } else {
                    x.store_even(to, bits);
                }
                j += V::WIDTH;
            }
        }
    }
}

/// Some sums of [`Across`] on their way to the result, where lanes are rows.
pub(super) struct PutTurned {
    pub from: *const f32,
    /// Floats from one position to the next.
    pub from_stride: usize,
    /// Where the first positions go, and the others, and how many these are; together at most a vector.
    pub to: [*mut f32; 2],
    pub len: [usize; 2],
    /// Floats from one row to the next.
    pub to_stride: usize,
    pub rows: usize,
    /// As in [`Put`].
    pub add: bool,
    pub bias: *const f32,
}

/// Brings sums to their place; see [`PutTurned`].
///
/// # Safety
/// `PutTurned` leads to what it says, the rows filled up to whole vectors. The processor has the instructions of `V`.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
unsafe fn put_turned<V: Vector>(p: &PutTurned) {
    let [a, b] = p.len;
    let bits = [u32::MAX >> (32 - a), (1 << (a + b)) - (1 << a)];
    let mut lines = [p.from; LINE];
    for (j, line) in lines.iter_mut().enumerate() {
        *line = p.from.wrapping_add(j.min(a + b - 1) * p.from_stride);
    }
    // SAFETY: the caller's; only positions that there are, and their rows, are written.
    unsafe {
        for first in (0..p.rows).step_by(V::WIDTH) {
            for g in (0..V::WIDTH).step_by(4) {
                let x = std::array::from_fn(|i| V::load_groups(&lines[i..], first + g));
                for (i, x) in V::transpose(x).into_iter().enumerate().take((p.rows - first).saturating_sub(g))
                {
                    let row = first + g + i;
                    let to = p.to.map(|to| to.wrapping_add(row * p.to_stride));
                    for (to, bits) in [(to[0], bits[0]), (to[1].wrapping_sub(a), bits[1])] {
                        let mut x = x;
                        if p.add {
                            x = x.add(V::load_mask(to, bits));
                        }
                        if !p.bias.is_null() {
                            x = x.add(V::splat(*p.bias.add(row)));
                        }
                        x.store_mask(to, bits);
                        if b == 0 {
                            break;
                        }
                    }
                }
            }
        }
    }
}

/// Adds to each of `rows` rows, `stride` apart, of `cols` floats its bias. Not the tile's own work: its last loops
/// would not be unrolled any more, and its sums not stay in registers.
///
/// # Safety
/// `to` leads to such rows and `bias` to a float for each. The processor has the instructions of `V`.
#[inline(always)]
unsafe fn add_bias<V: Vector>(to: *mut f32, stride: usize, rows: usize, cols: usize, bias: *const f32) {
    // SAFETY: the caller's; last vectors are cut to what there is.
    unsafe {
        for r in 0..rows {
            let (to, bias) = (to.add(r * stride), V::splat(*bias.add(r)));
            let mut j = 0;
            while j < cols {
                let n = (cols - j).min(V::WIDTH);
                V::load_part(to.add(j), n).add(bias).store_part(to.add(j), n);
                j += V::WIDTH;
            }
        }
    }
}

/// Computes NV vectors of neighbouring outputs from `at` on; see [`Chains`].
///
/// # Safety
/// `Chains` leads to what it says, `at` and the vectors are inside `len`. The processor has the instructions of `V`.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
unsafe fn chains<V: Vector, const NV: usize>(c: &Chains, at: usize) {
    // SAFETY: the caller's.
    unsafe {
        let mut acc = [V::splat(0.0); NV];
        for t in 0..c.taps {
            let (x, w) = (c.x.add(at + *c.offsets.add(t)), V::splat(*c.w.add(t)));
            for v in 0..NV {
                acc[v] = acc[v].fma(w, V::load(x.add(v * V::WIDTH)));
            }
        }
        let add = V::splat(c.add);
        for v in 0..NV {
            acc[v].add(add).store(c.to.add(at + v * V::WIDTH));
        }
    }
}

/// Vectors of neighbouring outputs in registers at once.
const WIDE: usize = 8;

/// Computes all neighbouring outputs; see [`Chains`].
///
/// # Safety
/// `Chains` leads to what it says. The processor has the instructions of `V`.
#[inline(always)]
unsafe fn all_chains<V: Vector>(c: &Chains) {
    let mut at = 0;
    // SAFETY: the caller's; the vectors end with `len`, which is a multiple of their width.
    unsafe {
        while at + WIDE * V::WIDTH <= c.len {
            chains::<V, WIDE>(c, at);
            at += WIDE * V::WIDTH;
        }
        while at < c.len {
            chains::<V, 1>(c, at);
            at += V::WIDTH;
        }
    }
}

/// Goes on with T sums of NV vectors, which are [`LINE`] lanes; see [`Dots`].
///
/// # Safety
/// `Dots` leads to what it says, and T starts and sums. The processor has the instructions of `V`.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
unsafe fn dots<V: Vector, const T: usize, const NV: usize>(d: &Dots) {
    // SAFETY: the caller's.
    unsafe {
        let mut acc = [[V::splat(0.0); NV]; T];
        let mut x = [d.x; T];
        for t in 0..T {
            x[t] = d.x.add(*d.starts.add(t) as usize);
            for v in 0..NV {
                acc[t][v] = V::load(d.acc.add(t * LINE + v * V::WIDTH));
            }
        }
        let (mut g, mut at) = (d.g, 0);
        for _ in 0..d.positions {
            let mut gv = [V::splat(0.0); NV];
            for v in 0..NV {
                gv[v] = V::load(g.add(v * V::WIDTH));
            }
            for t in 0..T {
                for v in 0..NV {
                    acc[t][v] = acc[t][v].fma(gv[v], V::load(x[t].add(at + v * V::WIDTH)));
                }
            }
            g = g.wrapping_add(LINE);
            at += d.step;
        }
        for t in 0..T {
            for v in 0..NV {
                acc[t][v].store(d.acc.add(t * LINE + v * V::WIDTH));
            }
        }
    }
}

/// What a [`Weave`] leaves out, for the compiler.
const NOTHING: u8 = 0;
const LANES: u8 = 1;
const FACTORS: u8 = 2;

/// Goes on with C columns of chains from `c` on, NV vectors of lanes from `l` on; see [`Weave`].
///
/// # Safety
/// `Weave` leads to what it says, and these columns and lanes are inside. The processor has the instructions of `V`.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
unsafe fn weave_block<V: Vector, const NV: usize, const C: usize, const SKIP: u8>(
    w: &Weave,
    mark: u32,
    l: usize,
    c: usize,
) {
    // SAFETY: the caller's.
    unsafe {
        let to = w.acc.add(c * w.lanes + l);
        let mut acc = [[V::splat(0.0); NV]; C];
        if !w.begin {
            for c in 0..C {
                for v in 0..NV {
                    acc[c][v] = V::load(to.add(c * w.lanes + v * V::WIDTH));
                }
            }
        }
        let (mut a, mut x) = (w.a.wrapping_add(l), w.x.wrapping_add(c * w.column));
        let marks = V::splat(f32::from_bits(mark));
        for _ in 0..w.terms {
            let mut av = [V::splat(0.0); NV];
            for v in 0..NV {
                av[v] = V::load(a.add(v * V::WIDTH));
            }
            for c in 0..C {
                let factor = *x.add(c * w.column);
                if SKIP == FACTORS && factor.to_bits() == mark {
                    continue;
                }
                let factor = V::splat(factor);
                for v in 0..NV {
                    acc[c][v] = match SKIP {
                        LANES => acc[c][v].fma_unless(marks, av[v], factor),
                        _ => acc[c][v].fma(av[v], factor),
                    };
                }
            }
            a = a.wrapping_add(w.lanes);
            x = x.wrapping_add(w.term);
        }
        for c in 0..C {
            for v in 0..NV {
                acc[c][v].store(to.add(c * w.lanes + v * V::WIDTH));
            }
        }
    }
}

/// Goes on with all columns, NV vectors of lanes from `l` on; see [`Weave`].
///
/// # Safety
/// As for [`weave_block`].
#[inline(always)]
unsafe fn weave_columns<V: Vector, const NV: usize, const SKIP: u8>(w: &Weave, mark: u32, l: usize) {
    // Four, so that with four vectors there are enough chains to wait for none, and registers for them.
    const C: usize = 4;
    let whole = w.columns - w.columns % C;
    // SAFETY: the caller's.
    unsafe {
        for c in (0..whole).step_by(C) {
            weave_block::<V, NV, C, SKIP>(w, mark, l, c);
        }
        for c in whole..w.columns {
            weave_block::<V, NV, 1, SKIP>(w, mark, l, c);
        }
    }
}

/// Goes on with all chains, at most NV vectors of lanes at a time; see [`Weave`].
///
/// # Safety
/// `Weave` leads to what it says. The processor has the instructions of `V`.
#[inline(always)]
unsafe fn weave_lanes<V: Vector, const NV: usize, const SKIP: u8>(w: &Weave, mark: u32) {
    let mut l = 0;
    // SAFETY: the caller's; lanes are whole vectors.
    unsafe {
        while l + NV * V::WIDTH <= w.lanes {
            weave_columns::<V, NV, SKIP>(w, mark, l);
            l += NV * V::WIDTH;
        }
        while l + 2 * V::WIDTH <= w.lanes {
            weave_columns::<V, 2, SKIP>(w, mark, l);
            l += 2 * V::WIDTH;
        }
        while l < w.lanes {
            weave_columns::<V, 1, SKIP>(w, mark, l);
            l += V::WIDTH;
        }
    }
}

/// The kernels of a level: its vector, features, most rows, most vectors of woven chains, and for each number of rows the numbers of
/// vectors, as many as fit the registers. Rows and vectors that do not fit repeat the last that do, and are
/// never called.
macro_rules! kernels {
    ($vector:ty, $(#[$features:meta])* $mr:literal, $nv:literal; $($rows:literal: $v2:literal $v3:literal,)*) => {
        $(#[$features])*
        unsafe fn run<const MR: usize, const NV: usize, const TA: bool, const B: u8>(t: &Tile) {
            // SAFETY: the caller's; this function has the features of the vector.
            unsafe { tile::<$vector, MR, NV, TA, B>(t) }
        }

        $(#[$features])*
        unsafe fn pack_lines(
            from: *const f32, stride: usize, cols: usize, nv: usize, kc: usize, to: *mut f32,
        ) {
            // SAFETY: the caller's; this function has the features of the vector.
            unsafe { pack::<$vector>(from, stride, cols, nv, kc, to) }
        }

        $(#[$features])*
        unsafe fn pack_turned(
            from: *const f32, stride: usize, cols: usize, nv: usize, kc: usize, to: *mut f32,
        ) {
            // SAFETY: the caller's; this function has the features of the vector.
            unsafe { transpose::<$vector>(from, stride, cols, nv, kc, to) }
        }

        $(#[$features])*
        unsafe fn add_row_bias(to: *mut f32, stride: usize, rows: usize, cols: usize, bias: *const f32) {
            // SAFETY: the caller's; this function has the features of the vector.
            unsafe { add_bias::<$vector>(to, stride, rows, cols, bias) }
        }

        $(#[$features])*
        unsafe fn put_columns(columns: &Put) {
            // SAFETY: the caller's; this function has the features of the vector.
            unsafe { put::<$vector>(columns) }
        }

        $(#[$features])*
        unsafe fn put_sums(sums: &PutTurned) {
            // SAFETY: the caller's; this function has the features of the vector.
            unsafe { put_turned::<$vector>(sums) }
        }

        $(#[$features])*
        unsafe fn gather_lines(lines: &Lines, to: *mut f32) {
            // SAFETY: the caller's; this function has the features of the vector.
            unsafe { gather::<$vector>(lines, to) }
        }

        $(#[$features])*
        unsafe fn lanes_across<const MR: usize, const NV: usize>(sums: &Across) {
            // SAFETY: the caller's; this function has the features of the vector.
            unsafe { across::<$vector, MR, NV>(sums) }
        }

        $(#[$features])*
        unsafe fn line_chains(chains: &Chains) {
            // SAFETY: the caller's; this function has the features of the vector.
            unsafe { all_chains::<$vector>(chains) }
        }

        $(#[$features])*
        unsafe fn some_dots<const T: usize>(sums: &Dots) {
            // SAFETY: the caller's; this function has the features of the vector.
            unsafe { dots::<$vector, T, { LINE / <$vector as Vector>::WIDTH }>(sums) }
        }

        $(#[$features])*
        unsafe fn woven(w: &Weave) {
            // SAFETY: the caller's; this function has the features of the vector.
            unsafe {
                match w.skip {
                    Skip::Nothing => weave_lanes::<$vector, $nv, NOTHING>(w, 0),
                    Skip::Lanes(mark) => weave_lanes::<$vector, $nv, LANES>(w, mark),
                    Skip::Factors(mark) => weave_lanes::<$vector, $nv, FACTORS>(w, mark),
                }
            }
        }

        const fn shared<const TA: bool, const B: u8>() -> Tiles {
            [$({
                let two: TileFn = run::<$rows, 2, TA, B>;
                [run::<$rows, 1, TA, B>, two, two, two]
            },)*]
        }

        const fn alone<const TA: bool>() -> Tiles {
            [$([
                run::<$rows, 1, TA, IN_PLACE>,
                run::<$rows, 2, TA, IN_PLACE>,
                run::<$rows, $v2, TA, IN_PLACE>,
                run::<$rows, $v3, TA, IN_PLACE>,
            ],)*]
        }

        pub(super) static KERNELS: Kernels = Kernels {
            width: <$vector as Vector>::WIDTH,
            mr: $mr,
            wide: [$($v3),*],
            tile: &[
                [shared::<false, PACKED>(), alone::<false>(), shared::<false, PACKING>()],
                [shared::<true, PACKED>(), alone::<true>(), shared::<true, PACKING>()],
            ],
            pack_lines,
            pack_turned,
            gather: gather_lines,
            add_bias: add_row_bias,
            put: put_columns,
            put_turned: put_sums,
            across: [$([lanes_across::<$rows, 1>, lanes_across::<$rows, 2>, lanes_across::<$rows, $v2>]),*],
            chains: line_chains,
            dots: [$(some_dots::<$rows>),*],
            weave: woven,
        };
    };
}

/// Kernels as functions that check what they are given.
pub mod lines {
    use super::*;

    /// Writes `cols` lines, `stride` apart, of `len` floats side by side: `lanes` columns, of which those beyond `cols`
    /// repeat the last line.
    ///
    /// # Panics
    /// If there are no lines or more than `lanes`, these are no multiple of [`LINE`], or a slice is too short.
    #[doc(hidden)]
    pub fn turn(
        simd: Simd,
        from: &[f32],
        stride: usize,
        cols: usize,
        len: usize,
        lanes: usize,
        to: &mut [f32],
    ) {
        assert!((1..=lanes).contains(&cols) && lanes.is_multiple_of(LINE), "number of lines");
        assert!(from.len() >= (cols - 1) * stride + len && to.len() >= len * lanes, "length of lines");
        let kernels = Kernels::of(simd);
        // SAFETY: the kernels are of a level that the processor has, the lines were found to be there, and the room.
        unsafe {
            (kernels.pack_turned)(from.as_ptr(), stride, cols, lanes / kernels.width, len, to.as_mut_ptr())
        }
    }

    /// Chains side by side: `acc[c][l] = fma(a[k][l], x[k * term + c * column], acc[c][l])` in increasing k, for rows of
    /// `lanes`; from +0.0 if they `begin` here.
    ///
    /// # Panics
    /// If `lanes` is no multiple of [`LINE`], `a` or `acc` is not whole rows of it, or `x` is too short.
    #[doc(hidden)]
    #[allow(clippy::too_many_arguments)]
    pub fn weave(
        simd: Simd,
        skip: Skip,
        lanes: usize,
        a: &[f32],
        x: &[f32],
        [term, column]: [usize; 2],
        begin: bool,
        acc: &mut [f32],
    ) {
        assert!(lanes > 0 && lanes.is_multiple_of(LINE), "number of lanes");
        let (terms, columns) = (a.len() / lanes, acc.len() / lanes);
        assert!(terms * lanes == a.len() && columns * lanes == acc.len(), "length of rows");
        if columns == 0 {
            return;
        }
        let last = terms.saturating_sub(1).checked_mul(term).zip((columns - 1).checked_mul(column));
        let last = last.and_then(|(k, c)| k.checked_add(c));
        assert!(terms == 0 || last.is_some_and(|last| last < x.len()), "length of factors");
        let (a, x, acc) = (a.as_ptr(), x.as_ptr(), acc.as_mut_ptr());
        let weave = Weave { a, terms, x, term, column, acc, columns, lanes, begin, skip };
        // SAFETY: the kernels are of a level that the processor has, and all that they use was found to be there.
        unsafe { (Kernels::of(simd).weave)(&weave) }
    }

    /// `to[i] = Σ w[t] · x[i + offsets[t]] + add`, in the order of t; as many as a multiple of [`LINE`].
    ///
    /// # Panics
    /// If a slice is too short for that.
    #[doc(hidden)]
    pub fn chains(simd: Simd, x: &[f32], offsets: &[usize], w: &[f32], add: f32, to: &mut [f32]) {
        let (len, taps) = (to.len(), w.len());
        assert!(len.is_multiple_of(LINE) && offsets.len() == taps, "length of lines");
        assert!(offsets.iter().all(|&o| o <= x.len() && x.len() - o >= len), "length of operands");
        let (x, offsets, w, to) = (x.as_ptr(), offsets.as_ptr(), w.as_ptr(), to.as_mut_ptr());
        // SAFETY: the kernels are of a level that the processor has, and all that they read was found to be there.
        unsafe { (Kernels::of(simd).chains)(&Chains { x, offsets, w, taps, add, to, len }) }
    }

    /// `acc[t] += Σ g[p] · x[starts[t] + p · step]` in vectors of [`LINE`] lanes, in the order of p.
    ///
    /// # Panics
    /// If a slice is too short for that.
    #[doc(hidden)]
    pub fn dots(simd: Simd, g: &[f32], x: &[f32], starts: &[u32], step: usize, acc: &mut [f32]) {
        let positions = g.len() / LINE;
        if positions == 0 || starts.is_empty() {
            return;
        }
        let last = (positions - 1) * step + LINE;
        assert!(
            starts.iter().all(|&s| s as usize <= x.len() && x.len() - s as usize >= last),
            "length of operands"
        );
        assert!(acc.len() >= starts.len() * LINE, "length of sums");
        let kernels = Kernels::of(simd);
        let per = starts.len().div_ceil(starts.len().div_ceil(kernels.mr));
        for (starts, acc) in starts.chunks(per).zip(acc.chunks_mut(per * LINE)) {
            let t = starts.len();
            let (starts, acc) = (starts.as_ptr(), acc.as_mut_ptr());
            let sums = Dots { g: g.as_ptr(), x: x.as_ptr(), starts, step, positions, acc };
            // SAFETY: as above; there are so many starts and sums.
            unsafe { (kernels.dots[t - 1])(&sums) }
        }
    }
}

/// Plain Rust, in vectors that a compiler can map to whatever the target has.
mod scalar {
    use super::*;

    // SAFETY: of all of these, the caller's.
    impl Vector for [f32; 4] {
        const WIDTH: usize = 4;
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            [x; 4]
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: the caller has 4 floats there.
            unsafe { from.cast::<[f32; 4]>().read() }
        }
        #[inline(always)]
        unsafe fn load_part(from: *const f32, n: usize) -> Self {
            // SAFETY: the caller has n floats there, and only those are read.
            std::array::from_fn(|i| if i < n { unsafe { *from.add(i) } } else { 0.0 })
        }
        #[inline(always)]
        unsafe fn load_mask(from: *const f32, bits: u32) -> Self {
            // SAFETY: the caller has floats where bits are set.
            std::array::from_fn(|i| if bits >> i & 1 != 0 { unsafe { *from.wrapping_add(i) } } else { 0.0 })
        }
        #[inline(always)]
        unsafe fn load_even(from: *const f32, bits: u32) -> Self {
            let mut x = [0.0; 4];
            for (i, x) in x.iter_mut().enumerate() {
                if bits >> i & 1 != 0 {
                    // SAFETY: the caller has floats where bits are set.
                    *x = unsafe { *from.wrapping_add(2 * i) };
                }
            }
            x
        }
        #[inline(always)]
        unsafe fn store_mask(self, to: *mut f32, bits: u32) {
            for (i, x) in self.into_iter().enumerate() {
                if bits >> i & 1 != 0 {
                    // SAFETY: the caller has floats where bits are set.
                    unsafe { *to.add(i) = x };
                }
            }
        }
        #[inline(always)]
        unsafe fn store_even(self, to: *mut f32, bits: u32) {
            for (i, x) in self.into_iter().enumerate() {
                if bits >> i & 1 != 0 {
                    // SAFETY: the caller has floats where bits are set.
                    unsafe { *to.wrapping_add(2 * i) = x };
                }
            }
        }
        #[inline(always)]
        unsafe fn load_groups(from: &[*const f32], at: usize) -> Self {
            // SAFETY: the caller has 4 floats at each.
            unsafe { Self::load(from[0].add(at)) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: the caller has 4 floats there.
            unsafe { to.cast::<[f32; 4]>().write(self) }
        }
        #[inline(always)]
        unsafe fn store_part(self, to: *mut f32, n: usize) {
            // SAFETY: the caller has n floats there, at most 4.
            unsafe { std::ptr::copy_nonoverlapping(self.as_ptr(), to, n) }
        }
        #[inline(always)]
        unsafe fn fma(self, a: Self, b: Self) -> Self {
            std::array::from_fn(|i| a[i].mul_add(b[i], self[i]))
        }
        #[inline(always)]
        unsafe fn fma_unless(self, mark: Self, a: Self, b: Self) -> Self {
            std::array::from_fn(|i| {
                if a[i].to_bits() == mark[i].to_bits() { self[i] } else { a[i].mul_add(b[i], self[i]) }
            })
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            std::array::from_fn(|i| self[i] + other[i])
        }
        #[inline(always)]
        unsafe fn transpose(x: [Self; 4]) -> [Self; 4] {
            std::array::from_fn(|i| std::array::from_fn(|j| x[j][i]))
        }
        #[inline(always)]
        unsafe fn prefetch(_: *const f32) {}
        #[inline(always)]
        unsafe fn fetch(_: *const f32) {}
    }

    kernels! {
        [f32; 4], 4, 2;
        1: 2 2, 2: 2 2, 3: 2 2, 4: 2 2, 4: 2 2, 4: 2 2, 4: 2 2,
        4: 2 2, 4: 2 2, 4: 2 2, 4: 2 2, 4: 2 2, 4: 2 2, 4: 2 2,
    }
}

/// Vectors of eight, in sixteen registers.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::*;
    use std::arch::x86_64::*;

    /// A mask of the first n lanes.
    #[inline(always)]
    unsafe fn mask(n: usize) -> __m256i {
        const LANES: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
        // SAFETY: n is from 1 to 8, so the eight lanes are inside.
        unsafe { _mm256_loadu_si256(LANES.as_ptr().add(8 - n).cast()) }
    }

    /// A mask of the lanes whose bits are set.
    #[inline(always)]
    unsafe fn spread(bits: u32) -> __m256i {
        // SAFETY: the caller has AVX2.
        unsafe {
            let each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits as i32), each), each)
        }
    }

    impl Vector for __m256 {
        const WIDTH: usize = 8;
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: the caller has AVX2.
            unsafe { _mm256_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: the caller has AVX2 and 8 floats there.
            unsafe { _mm256_loadu_ps(from) }
        }
        #[inline(always)]
        unsafe fn load_part(from: *const f32, n: usize) -> Self {
            // SAFETY: the caller has AVX2 and n floats there; the others are not accessed.
            unsafe { _mm256_maskload_ps(from, mask(n)) }
        }
        #[inline(always)]
        unsafe fn load_mask(from: *const f32, bits: u32) -> Self {
            // SAFETY: the caller has AVX2 and floats where bits are set; the others are not accessed.
            unsafe { _mm256_maskload_ps(from, spread(bits)) }
        }
        #[inline(always)]
        unsafe fn load_even(from: *const f32, bits: u32) -> Self {
            let bits = apart(bits);
            // SAFETY: the caller has AVX2 and floats where bits are set; the others are not accessed.
            unsafe {
                let a = _mm256_maskload_ps(from, spread(bits & 0xff));
                let b = _mm256_maskload_ps(from.wrapping_add(8), spread(bits >> 8));
                let x = _mm256_shuffle_ps::<0b10_00_10_00>(a, b);
                _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(_mm256_castps_pd(x)))
            }
        }
        #[inline(always)]
        unsafe fn store_mask(self, to: *mut f32, bits: u32) {
            // SAFETY: the caller has AVX2 and floats where bits are set; the others are not accessed.
            unsafe { _mm256_maskstore_ps(to, spread(bits), self) }
        }
        #[inline(always)]
        unsafe fn store_even(self, to: *mut f32, bits: u32) {
            let bits = apart(bits);
            // SAFETY: the caller has AVX2 and floats where bits are set; the others are not accessed.
            unsafe {
                let a = _mm256_permutevar8x32_ps(self, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
                let b = _mm256_permutevar8x32_ps(self, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7));
                _mm256_maskstore_ps(to, spread(bits & 0xff), a);
                _mm256_maskstore_ps(to.wrapping_add(8), spread(bits >> 8), b);
            }
        }
        #[inline(always)]
        unsafe fn load_groups(from: &[*const f32], at: usize) -> Self {
            // SAFETY: the caller has AVX2 and 4 floats at each.
            unsafe { _mm256_set_m128(_mm_loadu_ps(from[4].add(at)), _mm_loadu_ps(from[0].add(at))) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: the caller has AVX2 and 8 floats there.
            unsafe { _mm256_storeu_ps(to, self) }
        }
        #[inline(always)]
        unsafe fn store_part(self, to: *mut f32, n: usize) {
            // SAFETY: the caller has AVX2 and n floats there; the others are not accessed.
            unsafe { _mm256_maskstore_ps(to, mask(n), self) }
        }
        #[inline(always)]
        unsafe fn fma(self, a: Self, b: Self) -> Self {
            // SAFETY: the caller has FMA.
            unsafe { _mm256_fmadd_ps(a, b, self) }
        }
        #[inline(always)]
        unsafe fn fma_unless(self, mark: Self, a: Self, b: Self) -> Self {
            // SAFETY: the caller has AVX2 and FMA.
            unsafe {
                let marked = _mm256_cmpeq_epi32(_mm256_castps_si256(a), _mm256_castps_si256(mark));
                _mm256_blendv_ps(_mm256_fmadd_ps(a, b, self), self, _mm256_castsi256_ps(marked))
            }
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: the caller has AVX2.
            unsafe { _mm256_add_ps(self, other) }
        }
        #[inline(always)]
        unsafe fn transpose(x: [Self; 4]) -> [Self; 4] {
            // SAFETY: the caller has AVX2.
            unsafe {
                let (a, b) = (_mm256_unpacklo_ps(x[0], x[1]), _mm256_unpackhi_ps(x[0], x[1]));
                let (c, d) = (_mm256_unpacklo_ps(x[2], x[3]), _mm256_unpackhi_ps(x[2], x[3]));
                [
                    _mm256_shuffle_ps::<0b01_00_01_00>(a, c),
                    _mm256_shuffle_ps::<0b11_10_11_10>(a, c),
                    _mm256_shuffle_ps::<0b01_00_01_00>(b, d),
                    _mm256_shuffle_ps::<0b11_10_11_10>(b, d),
                ]
            }
        }
        #[inline(always)]
        unsafe fn prefetch(at: *const f32) {
            // SAFETY: a prefetch does not fault.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        }
        #[inline(always)]
        unsafe fn fetch(at: *const f32) {
            // SAFETY: a prefetch does not fault.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
        }
    }

    kernels! {
        __m256, #[target_feature(enable = "avx2,fma")] 6, 2;
        1: 4 8, 2: 4 4, 3: 4 4, 4: 2 2, 5: 2 2, 6: 2 2, 6: 2 2,
        6: 2 2, 6: 2 2, 6: 2 2, 6: 2 2, 6: 2 2, 6: 2 2, 6: 2 2,
    }
}

/// Vectors of sixteen, in thirty-two registers.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::*;
    use std::arch::x86_64::*;

    impl Vector for __m512 {
        const WIDTH: usize = 16;
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: the caller has AVX-512.
            unsafe { _mm512_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: the caller has AVX-512 and 16 floats there.
            unsafe { _mm512_loadu_ps(from) }
        }
        #[inline(always)]
        unsafe fn load_part(from: *const f32, n: usize) -> Self {
            // SAFETY: the caller has AVX-512 and n floats there; the others are not accessed.
            unsafe { _mm512_maskz_loadu_ps(((1u32 << n) - 1) as __mmask16, from) }
        }
        #[inline(always)]
        unsafe fn load_mask(from: *const f32, bits: u32) -> Self {
            // SAFETY: the caller has AVX-512 and floats where bits are set; the others are not accessed.
            unsafe { _mm512_maskz_loadu_ps(bits as __mmask16, from) }
        }
        #[inline(always)]
        unsafe fn load_even(from: *const f32, bits: u32) -> Self {
            let bits = apart(bits);
            // SAFETY: the caller has AVX-512 and floats where bits are set; the others are not accessed.
            unsafe {
                let a = _mm512_maskz_loadu_ps(bits as __mmask16, from);
                let b = _mm512_maskz_loadu_ps((bits >> 16) as __mmask16, from.wrapping_add(16));
                let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
                _mm512_permutex2var_ps(a, even, b)
            }
        }
        #[inline(always)]
        unsafe fn store_mask(self, to: *mut f32, bits: u32) {
            // SAFETY: the caller has AVX-512 and floats where bits are set; the others are not accessed.
            unsafe { _mm512_mask_storeu_ps(to, bits as __mmask16, self) }
        }
        #[inline(always)]
        unsafe fn store_even(self, to: *mut f32, bits: u32) {
            let bits = apart(bits);
            // SAFETY: the caller has AVX-512 and floats where bits are set; the others are not accessed.
            unsafe {
                let low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
                let high = _mm512_setr_epi32(8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15);
                _mm512_mask_storeu_ps(to, bits as __mmask16, _mm512_permutexvar_ps(low, self));
                let b = _mm512_permutexvar_ps(high, self);
                _mm512_mask_storeu_ps(to.wrapping_add(16), (bits >> 16) as __mmask16, b);
            }
        }
        #[inline(always)]
        unsafe fn load_groups(from: &[*const f32], at: usize) -> Self {
            // SAFETY: the caller has AVX-512 and 4 floats at each.
            unsafe {
                let x = _mm512_castps128_ps512(_mm_loadu_ps(from[0].add(at)));
                let x = _mm512_insertf32x4::<1>(x, _mm_loadu_ps(from[4].add(at)));
                let x = _mm512_insertf32x4::<2>(x, _mm_loadu_ps(from[8].add(at)));
                _mm512_insertf32x4::<3>(x, _mm_loadu_ps(from[12].add(at)))
            }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: the caller has AVX-512 and 16 floats there.
            unsafe { _mm512_storeu_ps(to, self) }
        }
        #[inline(always)]
        unsafe fn store_part(self, to: *mut f32, n: usize) {
            // SAFETY: the caller has AVX-512 and n floats there; the others are not accessed.
            unsafe { _mm512_mask_storeu_ps(to, ((1u32 << n) - 1) as __mmask16, self) }
        }
        #[inline(always)]
        unsafe fn fma(self, a: Self, b: Self) -> Self {
            // SAFETY: the caller has AVX-512.
            unsafe { _mm512_fmadd_ps(a, b, self) }
        }
        #[inline(always)]
        unsafe fn fma_unless(self, mark: Self, a: Self, b: Self) -> Self {
            // SAFETY: the caller has AVX-512.
            unsafe {
                let open = _mm512_cmpneq_epi32_mask(_mm512_castps_si512(a), _mm512_castps_si512(mark));
                _mm512_mask3_fmadd_ps(a, b, self, open)
            }
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: the caller has AVX-512.
            unsafe { _mm512_add_ps(self, other) }
        }
        #[inline(always)]
        unsafe fn transpose(x: [Self; 4]) -> [Self; 4] {
            // SAFETY: the caller has AVX-512.
            unsafe {
                let (a, b) = (_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
                let (c, d) = (_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
                [
                    _mm512_shuffle_ps::<0b01_00_01_00>(a, c),
                    _mm512_shuffle_ps::<0b11_10_11_10>(a, c),
                    _mm512_shuffle_ps::<0b01_00_01_00>(b, d),
                    _mm512_shuffle_ps::<0b11_10_11_10>(b, d),
                ]
            }
        }
        #[inline(always)]
        unsafe fn prefetch(at: *const f32) {
            // SAFETY: a prefetch does not fault.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        }
        #[inline(always)]
        unsafe fn fetch(at: *const f32) {
            // SAFETY: a prefetch does not fault.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
        }
    }

    kernels! {
        __m512, #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")] 14, 4;
        1: 4 8, 2: 4 8, 3: 4 8, 4: 4 4, 5: 4 4, 6: 4 4, 7: 2 2,
        8: 2 2, 9: 2 2, 10: 2 2, 11: 2 2, 12: 2 2, 13: 2 2, 14: 2 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An element of a product, by the contract.
    fn element(g: &Gemm, a: &[f32], b: &[f32], batch: usize, i: usize, j: usize) -> f32 {
        let Gemm { m, n, k, ta, tb, .. } = *g;
        let (a, b) = (&a[batch * m * k..], &b[batch * k * n..]);
        let term = |p: usize, acc: f32| {
            let x = if ta { a[p * m + i] } else { a[i * k + p] };
            let y = if tb { b[j * k + p] } else { b[p * n + j] };
            x.mul_add(y, acc)
        };
        let chunk = |k0: usize| (k0..k.min(k0 + K_CHUNK)).fold(0.0, |acc, p| term(p, acc));
        (0..k).step_by(K_CHUNK).map(chunk).reduce(|c, sum| c + sum).unwrap_or(0.0)
    }

    /// All of them.
    fn reference(g: &Gemm, a: &[f32], b: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
        let Gemm { batch, m, n, .. } = *g;
        let mut c = Vec::new();
        for x in 0..batch {
            for i in 0..m {
                for j in 0..n {
                    let sum = element(g, a, b, x, i, j);
                    c.push(bias.map_or(sum, |bias| sum + bias[j]));
                }
            }
        }
        c
    }

    struct Rng(u64);

    impl Rng {
        fn next(&mut self) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 20) as usize
        }
        fn of<T: Copy>(&mut self, from: &[T]) -> T {
            from[self.next() % from.len()]
        }
        fn floats(&mut self, len: usize) -> Vec<f32> {
            (0..len).map(|_| (self.next() % 4001) as f32 / 1999.0 - 1.0).collect()
        }
    }

    fn bits(c: &[f32]) -> Vec<u32> {
        c.iter().map(|x| if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() }).collect()
    }

    fn check(pools: &[Pool], g: &Gemm, a: &[f32], b: &[f32], bias: Option<&[f32]>) {
        let want = bits(&reference(g, a, b, bias));
        for pool in pools {
            for simd in Simd::all_available() {
                // Neither the old C nor the workspace may show, nor its alignment.
                let mut scratch = vec![f32::NAN; g.scratch_len(pool.threads()) + 3];
                let skip = g.m % 4;
                let mut c = vec![f32::NAN; want.len()];
                g.run(pool, simd, a, b, bias, &mut c, &mut scratch[skip..]);
                let at = bits(&c).iter().zip(&want).position(|(x, y)| x != y);
                assert_eq!(at, None, "{g:?} {simd} {} threads, bias {}", pool.threads(), bias.is_some());
            }
        }
    }

    const SIZES: [usize; 22] =
        [0, 1, 2, 3, 5, 7, 8, 13, 14, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 97];
    const TERMS: [usize; 11] = [0, 1, 2, 7, 255, 256, 257, 1023, 1024, 1025, 2049];

    #[test]
    fn same_bits_as_the_contract() {
        let pools = [1, 2, 3, 8].map(Pool::new);
        let mut rng = Rng(0x1234_5678_9abc_def1);
        for round in 0..400 {
            let (m, n, batch) = (rng.of(&SIZES), rng.of(&SIZES), rng.of(&[1, 1, 1, 2, 3]));
            // Long sums with small matrices, and the other way around, to bound the time.
            let most = 60_000 / (batch * m * n).max(1);
            let terms: Vec<usize> = TERMS.iter().copied().filter(|&k| k <= most.max(7)).collect();
            let g = Gemm { batch, m, n, k: rng.of(&terms), ta: round % 2 == 1, tb: round / 2 % 2 == 1 };
            let (a, b) = (rng.floats(batch * m * g.k), rng.floats(batch * g.k * n));
            let bias = rng.floats(n);
            check(&pools, &g, &a, &b, (round / 4 % 2 == 1).then_some(&bias));
        }
    }

    #[test]
    fn long_sums_of_full_tiles() {
        let pools = [1, 3].map(Pool::new);
        let mut rng = Rng(0x9876_5432_1abc_def1);
        for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
            let g = Gemm { batch: 1, m: 29, n: 67, k: 2049, ta, tb };
            let (a, b, bias) = (rng.floats(g.m * g.k), rng.floats(g.k * g.n), rng.floats(g.n));
            check(&pools[..1], &g, &a, &b, Some(&bias));
            // Many blocks of rows and columns.
            let g = Gemm { batch: 1, m: 700, n: 130, k: 5, ta, tb };
            let (a, b) = (rng.floats(g.m * g.k), rng.floats(g.k * g.n));
            check(&pools, &g, &a, &b, None);
            // Several blocks of rows and columns, and several chunks.
            let g = Gemm { batch: 1, m: 211, n: if ta == tb { 131 } else { 66 }, k: 1030, ta, tb };
            let (a, b) = (rng.floats(g.m * g.k), rng.floats(g.k * g.n));
            check(&pools[1..], &g, &a, &b, None);
        }
    }

    #[test]
    fn products_that_threads_share() {
        let pools = [1, 2, 3, 8].map(Pool::new);
        let mut rng = Rng(0x1111_5432_1abc_def1);
        let most = SHARED / 64;
        // Also rows that are read in place, several chunks, batches, and more rows and columns than are packed at a time.
        let sizes = [
            (Own::Rows, 1, 1000, 200, 100),
            (Own::Rows, 1, 5000, 60, 60),
            (Own::Rows, 1, 300, 66, 1030),
            (Own::Rows, 3, 500, 120, 100),
            (Own::Rows, 1, 1000, 400, 800),
            (Own::Columns, 1, 130, 1100, 300),
            (Own::Columns, 2, 150, 900, 300),
            (Own::Columns, 1, 40, 500, 1030),
            (Own::Columns, 8, 700, 60, 60),
            (Own::Nothing, 1, 420, 450, 1030),
            (Own::Nothing, 2, 300, 450, 1030),
            (Own::Rows, 1, most + 100, 70, 20),
            (Own::Columns, 1, 60, most + 5, 20),
        ];
        for (own, batch, m, n, k) in sizes {
            for (ta, tb) in [(false, true), (true, false)] {
                let g = Gemm { batch, m, n, k, ta, tb };
                assert_eq!(g.shared(2).map(|shared| shared.own), Some(own), "{g:?}");
                let (a, b, bias) = (rng.floats(batch * m * k), rng.floats(batch * k * n), rng.floats(n));
                // All columns of some rows, and all rows of some columns.
                let edge = |i: usize, len: usize| i < 2 || i % 211 == 13 || i + 1 == len;
                let mut some = Vec::new();
                for x in 0..batch {
                    for i in 0..m {
                        for j in (0..n).filter(|&j| edge(i, m) || edge(j, n)) {
                            some.push(((x * m + i) * n + j, element(&g, &a, &b, x, i, j) + bias[j]));
                        }
                    }
                }
                for pool in &pools {
                    for simd in Simd::all_available() {
                        let mut scratch = vec![f32::NAN; g.scratch_len(pool.threads())];
                        let mut c = vec![f32::NAN; batch * m * n];
                        g.run(pool, simd, &a, &b, Some(&bias), &mut c, &mut scratch);
                        let wrong = some.iter().find(|(at, want)| c[*at].to_bits() != want.to_bits());
                        assert_eq!(wrong, None, "{g:?} {simd} {} threads", pool.threads());
                        assert!(!c.iter().any(|c| c.is_nan()), "{g:?} {simd} {} threads", pool.threads());
                    }
                }
            }
        }
    }

    #[test]
    fn woven_chains() {
        const MARK: u32 = 0xff80_0001;
        let mut rng = Rng(0x2222_5432_1abc_def1);
        for round in 0..60 {
            let lanes = rng.of(&[16, 32, 48, 64, 112]);
            let (terms, columns) = (rng.of(&[0, 1, 2, 5, 33]), rng.of(&[0, 1, 3, 4, 5, 9]));
            let strides = rng.of(&[[1, 40], [12, 1]]);
            let (mut a, mut x) = (rng.floats(terms * lanes), rng.floats(40 * 12));
            for marked in [&mut a, &mut x] {
                for at in marked.iter_mut().filter(|_| rng.next().is_multiple_of(5)) {
                    *at = f32::from_bits(MARK);
                }
            }
            let old = rng.floats(columns * lanes);
            for skip in [Skip::Nothing, Skip::Lanes(MARK), Skip::Factors(MARK)] {
                let begin = round % 2 == 0;
                let mut want = if begin { vec![0.0; columns * lanes] } else { old.clone() };
                for (at, sum) in want.iter_mut().enumerate() {
                    for k in 0..terms {
                        let (lane, factor) =
                            (a[k * lanes + at % lanes], x[k * strides[0] + at / lanes * strides[1]]);
                        let out = match skip {
                            Skip::Nothing => false,
                            Skip::Lanes(mark) => lane.to_bits() == mark,
                            Skip::Factors(mark) => factor.to_bits() == mark,
                        };
                        *sum = if out { *sum } else { lane.mul_add(factor, *sum) };
                    }
                }
                for simd in Simd::all_available() {
                    let mut acc = old.clone();
                    lines::weave(simd, skip, lanes, &a, &x, strides, begin, &mut acc);
                    assert_eq!(
                        bits(&acc),
                        bits(&want),
                        "{simd} {skip:?} {lanes} lanes {terms} {columns} {strides:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn nan_and_infinity_go_through() {
        let pools = [1, 2].map(Pool::new);
        let mut rng = Rng(77);
        let odd =
            [0.0, -0.0, 1.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE];
        for round in 0..40 {
            let (m, n, k) = (rng.of(&SIZES), rng.of(&SIZES), rng.of(&[1, 2, 7, 33]));
            let g = Gemm { batch: 1, m, n, k, ta: round % 2 == 1, tb: round / 2 % 2 == 1 };
            let (mut a, mut b) = (rng.floats(m * k), rng.floats(k * n));
            for _ in 0..2 {
                let len = a.len().max(1);
                if let Some(x) = a.get_mut(rng.next() % len) {
                    *x = rng.of(&odd);
                }
                let len = b.len().max(1);
                if let Some(x) = b.get_mut(rng.next() % len) {
                    *x = rng.of(&odd);
                }
            }
            check(&pools, &g, &a, &b, None);
        }
    }
}
