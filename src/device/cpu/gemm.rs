//! Matrix products whose every element is summed in one fixed order.
//!
//! An element is the sum over chunks of `K_CHUNK` terms; in a chunk an FMA chain runs up k from +0.0, and
//! chunk sums are added upwards. Caches want shorter runs of k than a chunk, so a tile parks its unfinished
//! chains in the workspace and takes them up again in the next run; only a finished chunk meets C. Threads
//! share out blocks of C only, so neither their number nor the tile shape can change a bit. Vectors run along
//! n and elements of A are broadcast; tiles at the lower edge have fewer rows, those at the right edge masked
//! columns. Panels of A and B are packed by copying or transposing, as they are stored; what is used only
//! once is read in place.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::pool::Pool;
use super::simd::Simd;

/// Number of terms of a dot product that form one FMA chain.
pub const K_CHUNK: usize = 1024;

/// The most floats of packed A in a block, which then stays in a second-level cache.
pub(super) const A_BLOCK: usize = 200 * K_CHUNK;
/// The most columns of B that are packed at a time, if chains are parked meanwhile.
pub(super) const STRIP: usize = 2 * PANEL;
/// The most floats of packed B.
pub(super) const B_STRIP: usize = STRIP * K_RUN;
/// The most terms of a run of k that is shared by several tiles.
pub(super) const K_RUN: usize = 128;
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
pub(super) const LINE: usize = 16;
/// Columns of C up to which packing A does not pay.
const DIRECT_N: usize = 64;
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

/// How C is cut into blocks, and the workspace of one thread: packed A, packed B, and parked chains.
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

impl Gemm {
    /// Number of floats of workspace that [`Gemm::run`] needs with a pool of `threads`.
    pub fn scratch_len(&self, threads: usize) -> usize {
        threads * self.turned().plan(threads).slot_len() + LINE
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
        let plan = self.plan(threads);
        let skip = scratch.as_ptr().align_offset(4 * LINE).min(LINE);
        let slot_len = plan.slot_len();
        assert!(scratch.len() >= skip + threads * slot_len, "length of scratch");
        let tasks = self.batch * plan.row_blocks * plan.col_blocks;
        let work = Work {
            gemm: *self,
            plan,
            kernels: Kernels::of(simd),
            a: a.as_ptr(),
            b: b.as_ptr(),
            bias: bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
            c: c.as_mut_ptr(),
            scratch: scratch[skip..].as_mut_ptr(),
        };
        let next = AtomicUsize::new(0);
        // One pool task per thread, so that its index names a workspace; blocks are taken from a counter.
        pool.run(threads.min(tasks), |slot| {
            // SAFETY: `run` calls with each slot below `threads` once, and the assertion above makes room for
            // it.
            let scratch = unsafe { work.scratch.add(slot * slot_len) };
            let mut packed = None;
            loop {
                let task = next.fetch_add(1, Relaxed);
                if task >= tasks {
                    break;
                }
                // SAFETY: the counter gives each task once, and the slot's workspace belongs to this call.
                // The slices were checked against the sizes by `run` and stay borrowed until the pool is
                // done.
                unsafe { work.block(task, scratch, &mut packed) };
            }
        });
    }

    /// Cuts C so that a block of A fits its cache and every thread has a few blocks, if there is work for
    /// that.
    fn plan(&self, threads: usize) -> Plan {
        let (m, n, kc) = (self.m.max(1), self.n.max(1), self.k.clamp(1, K_CHUNK));
        let tall = (A_BLOCK / kc.max(64) / MAX_MR).max(1) * MAX_MR;
        let (mut row_blocks, mut col_blocks) = (m.div_ceil(tall), 1);
        let batch = self.batch.max(1);
        let work = batch * m * n * self.k.max(4);
        let target = if threads == 1 { 1 } else { (work >> 15).clamp(1, 4 * threads) };
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
        // A vector is at most a third wider than a panel; and the last run and panel may be shorter.
        let a_len = (rows * 4 / 3 + LINE) * (kc + K_CHUNK / K_RUN);
        Plan {
            rows,
            cols,
            row_blocks: m.div_ceil(rows),
            col_blocks: n.div_ceil(cols),
            a_len: a_len.next_multiple_of(LINE),
            b_len: B_STRIP,
            // The columns of a strip, or all of them if a tile has all the rows; filled up to whole tiles.
            acc_len: rows * if rows <= MAX_MR { cols.max(STRIP) + 7 * PANEL } else { STRIP },
        }
    }
}

/// One product under way.
struct Work {
    gemm: Gemm,
    plan: Plan,
    kernels: &'static Kernels,
    a: *const f32,
    b: *const f32,
    bias: *const f32,
    c: *mut f32,
    scratch: *mut f32,
}

// SAFETY: the pointers lead into slices that `Gemm::run` borrows for as long as a `Work` lives; A, B and bias
// are only read, and `block` keeps what it writes of C and of the workspace apart between threads.
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
        (0..self.count)
            .map(move |p| (p * self.height + p.min(self.tall), self.height + usize::from(p < self.tall)))
    }
}

impl Work {
    /// Computes one block of C over all of k. `packed` remembers which rows of A the workspace holds.
    ///
    /// # Safety
    /// The pointers lead to as many elements as `Gemm` says; `task` names a block that no other call has; and
    /// `scratch` leads to `slot_len` floats that no other thread uses.
    unsafe fn block(&self, task: usize, scratch: *mut f32, packed: &mut Option<usize>) {
        let Gemm { m, n, k, ta, tb, .. } = self.gemm;
        let Plan { row_blocks, col_blocks, a_len, b_len, .. } = self.plan;
        let Kernels { width, mr, ref wide, tile, pack_lines, pack_turned, .. } = *self.kernels;
        let (row_task, col_task) = (task / col_blocks, task % col_blocks);
        let batch = row_task / row_blocks;
        let (i0, j0) = (row_task % row_blocks * self.plan.rows, col_task * self.plan.cols);
        let (i1, j1) = ((i0 + self.plan.rows).min(m), (j0 + self.plan.cols).min(n));
        let rows = i1 - i0;
        let (a, b) = (self.a.wrapping_add(batch * m * k), self.b.wrapping_add(batch * k * n));
        let c = self.c.wrapping_add(batch * m * n);
        let (a_pack, b_pack) = (scratch, scratch.wrapping_add(a_len));
        let acc = b_pack.wrapping_add(b_len);

        let panels = Panels::new(rows, mr);
        let shared = panels.count > 1;
        // Blocks with few rows use B once and in place; others use A once and in place if they have few
        // columns.
        let in_place_b = !shared && !tb;
        let in_place_a = !shared || n <= DIRECT_N;
        let most = if in_place_b { wide[panels.height - 1] } else { 2 };

        let chunks = k.div_ceil(K_CHUNK).max(1);
        for chunk in 0..chunks {
            let k0 = chunk * K_CHUNK;
            let kc = (k - k0).min(K_CHUNK);
            let runs = kc.div_ceil(if in_place_b { K_THIN } else { K_RUN }).max(1);
            let run = kc.div_ceil(runs);
            // Packed A has a vector of a panel's rows for each term, and all panels of a run.
            let packed_at = |r: usize, p: usize| (r * panels.count + p) * run * width;
            let (stride_a, ta_tile) = match (in_place_a, ta) {
                (false, _) => (width, true),
                (true, true) => (m, true),
                (true, false) => (k, false),
            };
            let key = Some(row_task * chunks + chunk);
            if !in_place_a && *packed != key {
                for r in 0..runs {
                    let (kr, len) = (k0 + r * run, run.min(kc - r * run));
                    for (p, (i, mr)) in panels.iter().enumerate() {
                        let (i, to) = (i0 + i, a_pack.wrapping_add(packed_at(r, p)));
                        // SAFETY: rows i.. and terms kr.. are inside A, and the workspace has room for a
                        // vector, which is at most a third wider than a panel, per term and panel.
                        unsafe {
                            if ta {
                                pack_lines(a.wrapping_add(kr * m + i), m, mr, 1, len, to);
                            } else {
                                pack_turned(a.wrapping_add(i * k + kr), k, mr, 1, len, to);
                            }
                        }
                    }
                }
                *packed = key;
            }

            let strip = match (in_place_b, runs) {
                (true, _) => (j1 - j0).next_multiple_of(PANEL),
                (false, 1) => (B_STRIP / run.max(1) / PANEL).max(1) * PANEL,
                (false, _) => STRIP,
            };
            for s0 in (j0..j1).step_by(strip) {
                let s1 = (s0 + strip).min(j1);
                // The tiles of a strip: number of vectors (as its logarithm) and of columns at j.
                let shape = |j: usize| {
                    let log = (s1 - j).div_ceil(width).min(most).ilog2() as usize;
                    (log, (width << log).min(s1 - j))
                };
                for r in 0..runs {
                    let (kr, len) = (k0 + r * run, run.min(kc - r * run));
                    let mut j = s0;
                    while !in_place_b && j < s1 {
                        let (log, valid) = shape(j);
                        let to = b_pack.wrapping_add((j - s0) * len);
                        // SAFETY: columns j.. and terms kr.. are inside B. Packed B has room for a strip:
                        // each tile before this one has filled its vectors.
                        unsafe {
                            if tb {
                                pack_turned(b.wrapping_add(j * k + kr), k, valid, 1 << log, len, to);
                            } else {
                                pack_lines(b.wrapping_add(kr * n + j), n, valid, 1 << log, len, to);
                            }
                        }
                        j += valid;
                    }
                    let run_tile = |p: usize, i: usize, mr: usize, j: usize| {
                        let (log, valid) = shape(j);
                        let (b, stride_b) = if in_place_b {
                            (b.wrapping_add(kr * n + j), n)
                        } else {
                            (b_pack.wrapping_add((j - s0) * len).cast_const(), width << log)
                        };
                        let t = Tile {
                            kc: len,
                            a: match (in_place_a, ta) {
                                (true, true) => a.wrapping_add(kr * m + i0 + i),
                                (true, false) => a.wrapping_add((i0 + i) * k + kr),
                                _ => a_pack.wrapping_add(packed_at(r, p)).cast_const(),
                            },
                            stride_a,
                            b,
                            stride_b,
                            acc: acc.wrapping_add(i * strip + (j - s0) * mr),
                            begin: r == 0,
                            end: r + 1 == runs,
                            c: c.wrapping_add((i0 + i) * n + j),
                            stride_c: n,
                            first: chunk == 0,
                            bias: if self.bias.is_null() || chunk + 1 < chunks {
                                std::ptr::null()
                            } else {
                                self.bias.wrapping_add(j)
                            },
                            tail: valid - ((width << log) - width),
                        };
                        // SAFETY: the kernels are of a level that the processor has. The tile's rows and
                        // columns are inside C, and A and B, packed or not, hold `len` terms of each.
                        unsafe { tile[usize::from(ta_tile)][usize::from(in_place_b)][mr - 1][log](&t) };
                        j + valid
                    };
                    // Long tiles share a panel of B one after the other; short ones write C along its rows.
                    if len > K_SHORT {
                        let mut j = s0;
                        while j < s1 {
                            let mut next = j;
                            for (p, (i, mr)) in panels.iter().enumerate() {
                                next = run_tile(p, i, mr, j);
                            }
                            j = next;
                        }
                    } else {
                        for (p, (i, mr)) in panels.iter().enumerate() {
                            let mut j = s0;
                            while j < s1 {
                                j = run_tile(p, i, mr, j);
                            }
                        }
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

pub(super) type TileFn = unsafe fn(&Tile);
type ChainsFn = unsafe fn(&Chains);
type DotsFn = unsafe fn(&Dots);
/// Takes (to, stride, rows, columns, bias).
type BiasFn = unsafe fn(*mut f32, usize, usize, usize, *const f32);
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
    /// By whether A is transposed, whether B is in place, rows less one, and log2 of the vectors.
    pub tile: &'static [[Tiles; 2]; 2],
    /// Packs a panel whose lines run across the terms.
    pub pack_lines: PackFn,
    /// Packs a panel whose lines run along the terms.
    pub pack_turned: PackFn,
    /// Copies the lines of a view.
    pub gather: GatherFn,
    /// Adds to each row of a tile its bias.
    pub add_bias: BiasFn,
    /// Sums of neighbouring outputs.
    pub chains: ChainsFn,
    /// Sums side by side, by their number less one; at most `mr`.
    pub dots: [DotsFn; MAX_MR],
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
    /// Stores the floats whose bits are set.
    unsafe fn store_mask(self, to: *mut f32, bits: u32);
    /// Group g is loaded from `from[4 * g]`.
    unsafe fn load_groups(from: &[*const f32]) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn store_part(self, to: *mut f32, n: usize);
    /// a * b + self, rounded once.
    unsafe fn fma(self, a: Self, b: Self) -> Self;
    unsafe fn add(self, other: Self) -> Self;
    /// Transposes each square of four groups.
    unsafe fn transpose(x: [Self; 4]) -> [Self; 4];
    unsafe fn prefetch(at: *const f32);
}

/// Computes a tile of MR rows and NV vectors; TA and IN_PLACE are the first indices of `Kernels::tile`.
///
/// # Safety
/// The tile's addresses are valid for that many rows and columns (only `tail` of the last vector) and `kc`
/// terms, and the processor has the instructions of `V`.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
unsafe fn tile<V: Vector, const MR: usize, const NV: usize, const TA: bool, const IN_PLACE: bool>(t: &Tile) {
    let &Tile { kc, mut a, stride_a, mut b, stride_b, acc: park, tail, .. } = t;
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
        if !IN_PLACE && t.end {
            for r in 0..MR {
                V::prefetch(t.c.wrapping_add(r * t.stride_c));
                V::prefetch(t.c.wrapping_add(r * t.stride_c + last * V::WIDTH));
            }
        }
        for _ in 0..kc {
            if TA && !IN_PLACE {
                V::prefetch(a.wrapping_add(AHEAD * stride_a));
            }
            let mut bv = [V::splat(0.0); NV];
            for v in 0..NV {
                let from = b.add(v * V::WIDTH);
                bv[v] = if v < last || !IN_PLACE { V::load(from) } else { V::load_part(from, tail) };
                if v * V::WIDTH % LINE == 0 {
                    V::prefetch(from.wrapping_add(AHEAD * stride_b));
                }
            }
            for r in 0..MR {
                let x = V::splat(*a.add(if TA { r } else { r * stride_a }));
                for v in 0..NV {
                    acc[r][v] = acc[r][v].fma(x, bv[v]);
                }
            }
            a = a.wrapping_add(if TA { stride_a } else { 1 });
            b = b.wrapping_add(stride_b);
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
            V::prefetch(from.wrapping_add(AHEAD * stride));
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
/// `from` leads to `cols` lines, `stride` apart, of `kc` floats, which make `nv` vectors (at most `PANEL`
/// floats), and `to` to `kc * nv` vectors. The processor has the instructions of `V`.
#[inline(always)]
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
        while k < kc {
            // SAFETY: terms k.. of the lines are inside B, and rows k.. of this vector inside the panel.
            unsafe {
                if k + 4 <= kc {
                    let x = std::array::from_fn(|i| V::load_groups(&lines[i..]));
                    for (i, x) in V::transpose(x).into_iter().enumerate() {
                        x.store(to.add((k + i) * nv * V::WIDTH));
                    }
                    lines.iter_mut().for_each(|line| *line = line.wrapping_add(4));
                    k += 4;
                } else {
                    for (j, line) in lines.iter_mut().enumerate().take(V::WIDTH) {
                        *to.add(k * nv * V::WIDTH + j) = **line;
                        *line = line.wrapping_add(1);
                    }
                    k += 1;
                }
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
                if l.step == 1 {
                    let mut i = 0;
                    while i < run.len as usize {
                        let x = V::load_mask(source.wrapping_add(i), see.inside >> i & lanes);
                        x.store_mask(to.add(i), all >> i & lanes);
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

/// The kernels of a level: its vector, features, most rows, and for each number of rows the numbers of
/// vectors, as many as fit the registers. Rows and vectors that do not fit repeat the last that do, and are
/// never called.
macro_rules! kernels {
    ($vector:ty, $(#[$features:meta])* $mr:literal; $($rows:literal: $v2:literal $v3:literal,)*) => {
        $(#[$features])*
        unsafe fn run<const MR: usize, const NV: usize, const TA: bool, const IN_PLACE: bool>(t: &Tile) {
            // SAFETY: the caller's; this function has the features of the vector.
            unsafe { tile::<$vector, MR, NV, TA, IN_PLACE>(t) }
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
        unsafe fn gather_lines(lines: &Lines, to: *mut f32) {
            // SAFETY: the caller's; this function has the features of the vector.
            unsafe { gather::<$vector>(lines, to) }
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

        const fn shared<const TA: bool>() -> Tiles {
            [$({
                let two: TileFn = run::<$rows, 2, TA, false>;
                [run::<$rows, 1, TA, false>, two, two, two]
            },)*]
        }

        const fn alone<const TA: bool>() -> Tiles {
            [$([
                run::<$rows, 1, TA, true>,
                run::<$rows, 2, TA, true>,
                run::<$rows, $v2, TA, true>,
                run::<$rows, $v3, TA, true>,
            ],)*]
        }

        pub(super) static KERNELS: Kernels = Kernels {
            width: <$vector as Vector>::WIDTH,
            mr: $mr,
            wide: [$($v3),*],
            tile: &[[shared::<false>(), alone::<false>()], [shared::<true>(), alone::<true>()]],
            pack_lines,
            pack_turned,
            gather: gather_lines,
            add_bias: add_row_bias,
            chains: line_chains,
            dots: [$(some_dots::<$rows>),*],
        };
    };
}

/// Kernels of thin groups, as functions that check what they are given.
pub(super) mod lines {
    use super::*;

    /// Writes `cols` lines, `stride` apart, of `len` floats side by side: vectors of [`LINE`] floats, of which those beyond
    /// `cols` repeat the last line.
    ///
    /// # Panics
    /// If there are no lines or more than a vector has room for, or a slice is too short.
    pub fn turn(simd: Simd, from: &[f32], stride: usize, cols: usize, len: usize, to: &mut [f32]) {
        assert!((1..=LINE).contains(&cols), "number of lines");
        assert!(from.len() >= (cols - 1) * stride + len && to.len() >= len * LINE, "length of lines");
        let kernels = Kernels::of(simd);
        // SAFETY: the kernels are of a level that the processor has, the lines were found to be there, and the room.
        unsafe {
            (kernels.pack_turned)(from.as_ptr(), stride, cols, LINE / kernels.width, len, to.as_mut_ptr())
        }
    }

    /// `to[i] = Σ w[t] · x[i + offsets[t]] + add`, in the order of t; as many as a multiple of [`LINE`].
    ///
    /// # Panics
    /// If a slice is too short for that.
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
        unsafe fn store_mask(self, to: *mut f32, bits: u32) {
            for (i, x) in self.into_iter().enumerate() {
                if bits >> i & 1 != 0 {
                    // SAFETY: the caller has floats where bits are set.
                    unsafe { *to.add(i) = x };
                }
            }
        }
        #[inline(always)]
        unsafe fn load_groups(from: &[*const f32]) -> Self {
            // SAFETY: the caller has 4 floats at each.
            unsafe { Self::load(from[0]) }
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
        unsafe fn add(self, other: Self) -> Self {
            std::array::from_fn(|i| self[i] + other[i])
        }
        #[inline(always)]
        unsafe fn transpose(x: [Self; 4]) -> [Self; 4] {
            std::array::from_fn(|i| std::array::from_fn(|j| x[j][i]))
        }
        #[inline(always)]
        unsafe fn prefetch(_: *const f32) {}
    }

    kernels! {
        [f32; 4], 4;
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
        unsafe fn store_mask(self, to: *mut f32, bits: u32) {
            // SAFETY: the caller has AVX2 and floats where bits are set; the others are not accessed.
            unsafe { _mm256_maskstore_ps(to, spread(bits), self) }
        }
        #[inline(always)]
        unsafe fn load_groups(from: &[*const f32]) -> Self {
            // SAFETY: the caller has AVX2 and 4 floats at each.
            unsafe { _mm256_set_m128(_mm_loadu_ps(from[4]), _mm_loadu_ps(from[0])) }
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
    }

    kernels! {
        __m256, #[target_feature(enable = "avx2,fma")] 6;
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
        unsafe fn store_mask(self, to: *mut f32, bits: u32) {
            // SAFETY: the caller has AVX-512 and floats where bits are set; the others are not accessed.
            unsafe { _mm512_mask_storeu_ps(to, bits as __mmask16, self) }
        }
        #[inline(always)]
        unsafe fn load_groups(from: &[*const f32]) -> Self {
            // SAFETY: the caller has AVX-512 and 4 floats at each.
            unsafe {
                let x = _mm512_castps128_ps512(_mm_loadu_ps(from[0]));
                let x = _mm512_insertf32x4::<1>(x, _mm_loadu_ps(from[4]));
                let x = _mm512_insertf32x4::<2>(x, _mm_loadu_ps(from[8]));
                _mm512_insertf32x4::<3>(x, _mm_loadu_ps(from[12]))
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
    }

    kernels! {
        __m512, #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")] 14;
        1: 4 8, 2: 4 8, 3: 4 8, 4: 4 4, 5: 4 4, 6: 4 4, 7: 2 2,
        8: 2 2, 9: 2 2, 10: 2 2, 11: 2 2, 12: 2 2, 13: 2 2, 14: 2 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The contract, word for word.
    fn reference(g: &Gemm, a: &[f32], b: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
        let Gemm { batch, m, n, k, ta, tb } = *g;
        let mut c = Vec::new();
        for batch in 0..batch {
            let (a, b) = (&a[batch * m * k..][..m * k], &b[batch * k * n..][..k * n]);
            for i in 0..m {
                for j in 0..n {
                    let mut result = 0.0;
                    for (chunk, k0) in (0..k).step_by(K_CHUNK).enumerate() {
                        let mut acc = 0.0f32;
                        for p in k0..k.min(k0 + K_CHUNK) {
                            let x = if ta { a[p * m + i] } else { a[i * k + p] };
                            let y = if tb { b[j * k + p] } else { b[p * n + j] };
                            acc = x.mul_add(y, acc);
                        }
                        result = if chunk == 0 { acc } else { result + acc };
                    }
                    c.push(bias.map_or(result, |bias| result + bias[j]));
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
