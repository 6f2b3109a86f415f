//! The gradient of a convolution's kernel: the driver, which adds chunks in order, and its blocks as implicit GEMM. Blocks that
//! are faster with channels in lanes are computed by `channels_grad`.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::KernelGrad;
use super::channels_grad::{BlockCache, ByChannelsGrad};
use super::gather::{K_RUN, RUN_WORDS, SEEN_WORDS, STRIP_LEN, max_block_rows, packed_rows, split_runs};
use super::kernel::Lines;
use super::view::{Run, Seen};
use crate::cpu::LINE;
use crate::cpu::gemm::kernel::Tile;
use crate::cpu::gemm::plan::{PANEL, Panels, STRIP, Tiling};
use crate::cpu::kernels::Kernels;
use crate::cpu::simd::Simd;
use crate::cpu::threads::{Pool, SharedPtr};
use dittograd_numerics::K_CHUNK;

/// From this many elements of the gradient, its columns alone are work enough for all threads.
const MIN_LARGE_GRAD_LEN: usize = 1 << 18;
/// Up to this many columns, rows of `g` are read in place, since packing them does not pay off.
const MAX_COLUMNS_IN_PLACE: usize = 128;
/// Addresses this many bytes apart fall into the same set of the L1 cache.
const CACHE_SET_BYTES: usize = 4096;
/// Floats from one line of gathered terms to the next.
const TERM_PITCH: usize = K_RUN + LINE;
/// Room for the gathered lines of a tile.
const TERMS_LEN: usize = PANEL * TERM_PITCH;

/// How the work of a kernel gradient is split. Chunks are computed in waves: those of a wave at the same time, each
/// into its own partial gradient; these are then added in order.
struct GradPlan {
    by_channels: Option<ByChannelsGrad>,
    rows: usize,
    row_blocks: usize,
    cols: usize,
    col_blocks: usize,
    wave: usize,
    a_len: usize,
    acc_len: usize,
    runs_len: usize,
    seen_len: usize,
}

impl GradPlan {
    fn slot_len(&self) -> usize {
        if let Some(by_channels) = &self.by_channels {
            return by_channels.slot_len(self.rows, self.cols / by_channels.taps()).next_multiple_of(LINE);
        }
        (self.a_len + STRIP_LEN + self.acc_len + TERMS_LEN + self.runs_len + self.seen_len)
            .next_multiple_of(LINE)
    }
}

impl KernelGrad {
    /// Columns of the gradient as a matrix.
    fn columns(&self) -> usize {
        self.channels * self.view.taps()
    }

    /// Terms of a sum.
    pub(super) fn k(&self) -> usize {
        self.batch * self.view.positions()
    }

    /// Elements of the gradient.
    fn size(&self) -> usize {
        self.groups * self.rows * self.columns()
    }

    /// # Panics
    /// If a slice does not have the length that the sizes give.
    pub(super) fn check_lengths(&self, g: &[f32], source: &[f32], out: &[f32]) {
        let KernelGrad { view, batch, groups, rows, channels } = *self;
        assert_eq!(g.len(), batch * groups * rows * view.positions(), "length of g");
        assert_eq!(source.len(), batch * groups * channels * view.plane(), "length of source");
        assert_eq!(out.len(), self.size(), "length of out");
    }

    fn plan(&self, threads: usize) -> GradPlan {
        let k = self.k();
        let chunks = k.div_ceil(K_CHUNK).max(1);
        let row_blocks = self.rows.div_ceil(max_block_rows(k)).max(1);
        let rows = self.rows.div_ceil(row_blocks).max(1);
        let row_blocks = self.rows.div_ceil(rows).max(1);
        let wave =
            if threads == 1 || self.size() >= MIN_LARGE_GRAD_LEN { 1 } else { chunks.min(4 * threads) };
        let work = self.size().saturating_mul(k);
        let target = if threads == 1 { 1 } else { (work >> 15).clamp(1, 4 * threads) };
        let per = target.div_ceil(self.groups.max(1) * row_blocks * wave);
        let by_channels = ByChannelsGrad::new(self);
        let cols = self.columns().div_ceil(per).max(1);
        let cols = match &by_channels {
            // Whole channels.
            Some(by_channels) => {
                cols.min(by_channels.channels() * by_channels.taps()).next_multiple_of(by_channels.taps())
            }
            None => cols.next_multiple_of(STRIP),
        };
        let runs = self.view.most_runs(k.clamp(1, K_RUN));
        GradPlan {
            by_channels,
            rows,
            row_blocks,
            cols,
            col_blocks: self.columns().div_ceil(cols),
            wave,
            a_len: (packed_rows(rows) * (k.min(K_CHUNK) + LINE)).next_multiple_of(LINE),
            acc_len: if k > K_RUN { rows * STRIP } else { 0 },
            runs_len: (runs * RUN_WORDS).next_multiple_of(LINE),
            seen_len: runs * self.view.taps() * SEEN_WORDS,
        }
    }

    /// Number of floats of workspace that [`KernelGrad::run`] needs with a pool of `threads`.
    pub fn scratch_len(&self, threads: usize) -> usize {
        let plan = self.plan(threads);
        (plan.wave - 1) * self.size() + threads * plan.slot_len() + 2 * LINE
    }

    /// Computes the gradient. `scratch` has at least `scratch_len(pool.threads())` elements, of any value.
    ///
    /// # Panics
    /// If a slice does not have the length that the sizes give.
    #[allow(clippy::too_many_arguments)]
    pub fn run(
        &self,
        pool: &Pool,
        simd: Simd,
        g: &[f32],
        source: &[f32],
        out: &mut [f32],
        scratch: &mut [f32],
    ) {
        let groups = self.groups;
        self.check_lengths(g, source, out);
        if out.is_empty() {
            return;
        }
        let k = self.k();
        if k == 0 {
            out.fill(0.0);
            return;
        }
        let threads = pool.threads();
        let plan = self.plan(threads);
        let skip = scratch.as_ptr().align_offset(4 * LINE).min(LINE);
        let slot_len = plan.slot_len();
        let parts_len = ((plan.wave - 1) * self.size()).next_multiple_of(LINE);
        let (parts, slots) = scratch[skip..].split_at_mut(parts_len);
        assert!(slots.len() >= threads * slot_len, "length of scratch");
        let chunks = k.div_ceil(K_CHUNK);
        let (wave, blocks) = (plan.wave, groups * plan.row_blocks * plan.col_blocks);
        let work = GradWork {
            grad: *self,
            kernels: Kernels::of(simd),
            threads,
            g: g.as_ptr(),
            source: source.as_ptr(),
            plan,
        };
        let slots = SharedPtr(slots.as_mut_ptr());
        // With waves of one chunk, a task computes all chunks of its block.
        let waves = if wave == 1 { 1 } else { chunks.div_ceil(wave) };
        for w in 0..waves {
            let c0 = w * wave;
            let now = if wave == 1 { 1 } else { wave.min(chunks - c0) };
            let (to, part_at) = (SharedPtr(out.as_mut_ptr()), SharedPtr(parts.as_mut_ptr()));
            let next = AtomicUsize::new(0);
            pool.run(threads.min(now * blocks), |slot| {
                let slot = slots.at(slot * slot_len);
                let (mut packed, mut cache) = (None, BlockCache::default());
                loop {
                    let task = next.fetch_add(1, Relaxed);
                    if task >= now * blocks {
                        break;
                    }
                    let (c, block) = (task / blocks, task % blocks);
                    // The first chunk of a wave is added to the result; the others have their own partial gradients.
                    let (to, first) = match c {
                        0 => (to.at(0), c0 == 0),
                        _ => (part_at.at((c - 1) * work.grad.size()), true),
                    };
                    let range = if wave == 1 { 0..chunks } else { c0 + c..c0 + c + 1 };
                    // SAFETY: the counter gives each task once, tasks write blocks or parts of their own, and
                    // the slot's workspace belongs to this call; the lengths were checked above.
                    unsafe {
                        match &work.plan.by_channels {
                            Some(by_channels) => {
                                work.channels_block(by_channels, block, range, to, first, slot, &mut cache)
                            }
                            None => work.block(block, range, to, first, slot, &mut packed),
                        }
                    };
                }
            });
            if now > 1 {
                let size = self.size();
                let piece = pool.share(size, 4096, LINE);
                let parts = &*parts;
                pool.chunks_mut(out, piece, |index, out| {
                    for part in parts[index * piece..].chunks(size).take(now - 1) {
                        for (o, p) in out.iter_mut().zip(part) {
                            *o += *p;
                        }
                    }
                });
            }
        }
    }
}

/// A kernel gradient in progress.
struct GradWork {
    grad: KernelGrad,
    plan: GradPlan,
    kernels: &'static Kernels,
    threads: usize,
    g: *const f32,
    source: *const f32,
}

// SAFETY: the pointers point into slices that `KernelGrad::run` borrows for as long as this lives, and are only
// read.
unsafe impl Sync for GradWork {}

impl GradWork {
    /// Like `block`, with rows in lanes.
    ///
    /// # Safety
    /// The same as for `block`.
    #[allow(clippy::too_many_arguments)]
    unsafe fn channels_block(
        &self,
        by_channels: &ByChannelsGrad,
        block: usize,
        chunks: std::ops::Range<usize>,
        to: *mut f32,
        first: bool,
        slot: *mut f32,
        cache: &mut BlockCache,
    ) {
        let KernelGrad { rows, channels, .. } = self.grad;
        let (b, col_task) = (block / self.plan.col_blocks, block % self.plan.col_blocks);
        let (group, i0) = (b / self.plan.row_blocks, b % self.plan.row_blocks * self.plan.rows);
        let per = self.plan.cols / by_channels.taps();
        let part =
            (group, i0..rows.min(i0 + self.plan.rows), col_task * per..channels.min(col_task * per + per));
        let later = if self.plan.wave == 1 { 1 } else { (self.threads / self.plan.col_blocks).max(1) };
        // SAFETY: upheld by the caller.
        unsafe {
            by_channels.block(
                self.kernels,
                self.plan.rows,
                self.g,
                self.source,
                part,
                chunks,
                later,
                to,
                first,
                slot,
                cache,
            )
        };
    }

    /// Computes one block of the gradient over some chunks. `packed` notes which rows of `g` the workspace holds.
    ///
    /// # Safety
    /// The pointers point to what `KernelGrad` says, `to` to a whole gradient of which no other call writes this
    /// block, and `slot` to `slot_len` floats that no other thread uses.
    unsafe fn block(
        &self,
        block: usize,
        chunks: std::ops::Range<usize>,
        to: *mut f32,
        first: bool,
        slot: *mut f32,
        packed: &mut Option<(usize, usize)>,
    ) {
        let KernelGrad { view, batch: _, groups, rows, channels } = self.grad;
        let Kernels { width, mr, tile, gather, pack_transposed, .. } = *self.kernels;
        let (b, col_task) = (block / self.plan.col_blocks, block % self.plan.col_blocks);
        let (group, i0) = (b / self.plan.row_blocks, b % self.plan.row_blocks * self.plan.rows);
        let panels = Panels::new(self.plan.rows.min(rows - i0), mr);
        let (columns, k) = (self.grad.columns(), self.grad.k());
        let (positions, taps, plane) = (view.positions(), view.taps(), view.plane());
        let (j0, j1) = (col_task * self.plan.cols, (col_task * self.plan.cols + self.plan.cols).min(columns));
        let step = view.axes()[view.axes().len() - 1].step;
        let a_pack = slot;
        let b_pack = a_pack.wrapping_add(self.plan.a_len);
        let acc = b_pack.wrapping_add(STRIP_LEN);
        let terms = acc.wrapping_add(self.plan.acc_len);
        let runs_at = terms.wrapping_add(TERMS_LEN).cast::<Run>();
        let seen_at = terms.wrapping_add(TERMS_LEN + self.plan.runs_len).cast::<Seen>();
        let first_row = group * rows + i0;
        let to = to.wrapping_add(first_row * columns);

        // With few columns, packing does not pay off: a run's rows of g are read in place if they are in one image and not so far
        // apart that they evict each other from the cache. With very few, packing pays off as a prefetch.
        let few = (STRIP + 1..=MAX_COLUMNS_IN_PLACE).contains(&columns)
            && !(4 * positions).is_multiple_of(CACHE_SET_BYTES);
        let in_place = |kr: usize, len: usize| few && kr % positions + len <= positions;
        // With one tap and no strides the terms are contiguous, like those of g.
        let plain = view.axes().len() == 1 && view.axes()[0].is_plain();

        let first_chunk = chunks.start;
        for chunk in chunks {
            let k0 = chunk * K_CHUNK;
            let kc = (k - k0).min(K_CHUNK);
            let (runs, run) = split_runs(kc);
            let packed_at = |r: usize, p: usize| (r * panels.count + p) * run * width;
            if *packed != Some((b, chunk)) {
                for r in 0..runs {
                    let (kr, len) = (k0 + r * run, run.min(kc - r * run));
                    if in_place(kr, len) {
                        continue;
                    }
                    for (p, (i, mr)) in panels.iter().enumerate() {
                        let mut at = kr;
                        while at < kr + len {
                            // As many terms as are in one image.
                            let (n, o) = (at / positions, at % positions);
                            let some = (positions - o).min(kr + len - at);
                            let from = (n * groups * rows + first_row + i) * positions + o;
                            let to = a_pack.wrapping_add(packed_at(r, p) + (at - kr) * width);
                            // SAFETY: the panel's rows and these terms are inside g, and the workspace has a
                            // vector per term and panel.
                            unsafe {
                                pack_transposed(self.g.wrapping_add(from), positions, mr, 1, some, to);
                            }
                            at += some;
                        }
                    }
                }
                *packed = Some((b, chunk));
            }
            for s0 in (j0..j1).step_by(STRIP) {
                let s1 = (s0 + STRIP).min(j1);
                let shape = |j: usize| Tiling { width, max_vectors: 2, end: s1 }.at(j);
                for r in 0..runs {
                    let (kr, len) = (k0 + r * run, run.min(kc - r * run));
                    // SAFETY: the workspace has room for the runs of a run of terms.
                    let count = unsafe {
                        let base = group * channels * plane;
                        view.runs(kr, kr + len, base, groups * channels * plane, 0, runs_at, seen_at)
                    };
                    // What is packed next, and so prefetched: the next terms, or the next columns.
                    let (sn, kn) = match (r + 1 < runs, s1 < j1) {
                        (true, _) => (s0, kr + len),
                        (false, true) => (s1, k0),
                        (false, false) => (j0, k0 + kc),
                    };
                    let upcoming =
                        ((kn / positions * groups + group) * channels + sn) * plane + kn % positions;
                    let (mut j, mut prefetched) = (s0, 0);
                    while j < s1 {
                        let (log, valid) = shape(j);
                        let lines = Lines {
                            source: self.source,
                            plane,
                            runs: runs_at,
                            count,
                            seen: seen_at,
                            taps,
                            channel: j / taps,
                            tap: j % taps,
                            lines: valid,
                            pitch: TERM_PITCH,
                            step,
                        };
                        // SAFETY: the runs are of this view; there is room for a tile's lines,
                        // and for a strip of packed columns.
                        unsafe {
                            let to = b_pack.wrapping_add((j - s0) * len);
                            if plain {
                                let mut at = kr;
                                while at < kr + len {
                                    let (n, o) = (at / positions, at % positions);
                                    let some = (positions - o).min(kr + len - at);
                                    let from = ((n * groups + group) * channels + j) * plane + o;
                                    let to = to.wrapping_add((at - kr) * (width << log));
                                    pack_transposed(
                                        self.source.wrapping_add(from),
                                        plane,
                                        valid,
                                        1 << log,
                                        some,
                                        to,
                                    );
                                    at += some;
                                }
                            } else {
                                gather(&lines, terms);
                                pack_transposed(terms, TERM_PITCH, valid, 1 << log, len, to);
                            }
                        }
                        let here = in_place(kr, len);
                        let g_at = (kr / positions * groups * rows + first_row) * positions + kr % positions;
                        for (p, (i, mr)) in panels.iter().enumerate() {
                            let (a, stride_a) = match here {
                                true => (self.g.wrapping_add(g_at + i * positions), positions),
                                false => (a_pack.wrapping_add(packed_at(r, p)).cast_const(), width),
                            };
                            // Each tile prefetches a cache line of all columns.
                            let (prefetch, prefetch_step) = match plain && prefetched * LINE <= run {
                                true => (self.source.wrapping_add(upcoming + prefetched * LINE), plane),
                                false => (b_pack.cast_const(), 0),
                            };
                            prefetched += 1;
                            let t = Tile {
                                kc: len,
                                a,
                                stride_a,
                                b: b_pack.wrapping_add((j - s0) * len),
                                stride_b: width << log,
                                pack_to: std::ptr::null_mut(),
                                prefetch,
                                prefetch_step,
                                acc: acc.wrapping_add(i * STRIP + (j - s0) * mr),
                                begin: r == 0,
                                end: r + 1 == runs,
                                c: to.wrapping_add(i * columns + j),
                                stride_c: columns,
                                first: first && chunk == first_chunk,
                                bias: std::ptr::null(),
                                tail: valid - ((width << log) - width),
                            };
                            // SAFETY: the processor has the SIMD level of the kernels; rows and columns of the tile are
                            // inside the gradient, and the operands are packed.
                            unsafe { tile[usize::from(!here)][0][mr - 1][log](&t) };
                        }
                        j += valid;
                    }
                }
            }
        }
    }
}
