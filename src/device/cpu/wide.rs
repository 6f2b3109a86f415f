//! Convolutions with many channels in the result: vectors run along these, and elements of the source are broadcast
//! from a copy that has its padding, so that an element is copied once, not once for each tap. The sums are those of
//! [`super::conv`], term by term.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::conv::{Gather, Shared};
use super::depthwise::{Bands, digits};
use super::gemm::{Across, K_CHUNK, Kernels, LINE, Lines, MAX_MR, PANEL, Put, RUN, Run, Seen, Tiling};
use super::pool::Pool;
use super::simd::Simd;

/// The most terms of a run, and tiles that take turns with it: what is packed of the kernel for a run stays in a
/// first-level cache meanwhile.
const K_RUN: usize = 160;
const TILES: usize = 16;
/// The most positions of a line of a box.
const PIECE: usize = 448;
/// Rows that are packed together by the task that needs them alone, since a kernel may have their terms side by side.
const OWN: usize = 4 * PANEL;
/// Room for tiles.
const MADE: usize = TILES * MAX_MR * PANEL;
/// Floats of a box, and of the boxes of a task, which stay in a second-level cache.
const BOX: usize = 96 * K_CHUNK;
const BOXES: usize = 272 * K_CHUNK;
/// Floats of a kernel up to which it stays in that cache beside them.
const KEPT: usize = 128 * K_CHUNK;

/// How the work is cut up: a task is some rows of a group at the positions of some boxes. The workspace has the packed
/// kernel, then for each thread boxes, a tile, the tile turned, and a panel of rows that is packed when it is needed.
pub(super) struct Wide {
    gather: Gather,
    bands: Bands,
    /// Boxes of an image, and of a task.
    per_image: usize,
    boxes: usize,
    /// Rows of a task, whole panels but for the last.
    rows: usize,
    row_blocks: usize,
    col_blocks: usize,
}

/// Neighbouring positions: where the first is in the boxes, and in the result.
#[derive(Clone, Copy)]
struct Piece {
    at: usize,
    out: usize,
    len: usize,
}

/// One piece or two that are computed together: two halves, of which the second has at most one position less.
#[derive(Clone, Copy, Default)]
struct Tile {
    at: [usize; 2],
    out: [usize; 2],
    len: [usize; 2],
}

impl Tile {
    fn next(pieces: &[Piece], step: usize) -> Option<(Tile, &[Piece])> {
        let (&a, rest) = pieces.split_first()?;
        Some(match rest.split_first() {
            Some((&b, rest)) if a.len.abs_diff(b.len) < 2 => {
                let (a, b) = if a.len < b.len { (b, a) } else { (a, b) };
                (Tile { at: [a.at, b.at], out: [a.out, b.out], len: [a.len, b.len] }, rest)
            }
            _ => {
                let half = a.len.div_ceil(2);
                let out = [a.out, a.out + half * step];
                (Tile { at: [a.at, a.at + half], out, len: [half, a.len - half] }, rest)
            }
        })
    }
}

impl Wide {
    /// The convolution, if it is better off here.
    pub fn new(gather: &Gather, threads: usize) -> Option<Wide> {
        let Gather { view, batch, groups, rows, .. } = *gather;
        let k = gather.k();
        let work = batch.saturating_mul(view.positions()).saturating_mul(groups * rows).saturating_mul(k);
        let inner = view.axes()[view.axes().len() - 1].positions;
        let steps = view.axes().iter().map(|a| a.step * a.out_step).product::<usize>();
        if view.taps() < 6 * steps
            || rows < 32
            || rows * 5 < rows.next_multiple_of(LINE) * 4
            || inner < 5
            || k < 128
            || work < 1 << 20
        {
            return None;
        }
        let bands = Bands::new(gather, PIECE, BOX)?;
        let box_len = gather.channels * bands.channel;
        if box_len > BOXES {
            return None;
        }
        let per_image = bands.around.iter().map(|a| a.axis.positions).product::<usize>()
            * bands.down.axis.positions.div_ceil(bands.lines)
            * bands.along.axis.positions.div_ceil(bands.positions);
        let all = batch * per_image;
        let panels = rows.div_ceil(PANEL);
        // A few tasks a thread: boxes are shared out if all rows of the kernel stay in the cache, else rows first.
        let target = if threads == 1 { 1 } else { 4 * threads };
        let kept = rows * k <= KEPT;
        let least = all.div_ceil((if kept { BOX } else { BOXES } / box_len).max(1));
        let blocks = if kept { least.max(target) } else { least };
        let boxes = all.div_ceil(blocks);
        let col_blocks = all.div_ceil(boxes);
        let row_blocks = target.div_ceil(groups * col_blocks).min(panels);
        let rows_of = panels.div_ceil(row_blocks) * PANEL;
        let row_blocks = rows.div_ceil(rows_of);
        Some(Wide { gather: *gather, bands, per_image, boxes, rows: rows_of, row_blocks, col_blocks })
    }

    fn box_len(&self) -> usize {
        self.gather.channels * self.bands.channel
    }

    /// Whether a panel of the kernel is for one task only, which then packs it.
    fn alone(&self) -> bool {
        self.col_blocks == 1
    }

    fn packed_rows(&self) -> usize {
        if self.alone() { 0 } else { self.gather.rows.next_multiple_of(LINE) }
    }

    fn slot_len(&self) -> usize {
        let own = if self.alone() { OWN * K_CHUNK } else { 0 };
        (self.boxes * self.box_len()).next_multiple_of(LINE) + MADE + PANEL * LINE + own
    }

    /// Number of floats of workspace that [`Wide::run`] needs with a pool of `threads`.
    pub fn scratch_len(&self, threads: usize) -> usize {
        LINE + self.gather.groups * self.packed_rows() * self.gather.k() + threads * self.slot_len()
    }

    /// Computes the result; the slices have the lengths that the sizes give.
    #[allow(clippy::too_many_arguments)]
    pub fn run(
        &self,
        pool: &Pool,
        simd: Simd,
        source: &[f32],
        w: &[f32],
        bias: Option<&[f32]>,
        out: &mut [f32],
        scratch: &mut [f32],
    ) {
        let Gather { groups, rows, .. } = self.gather;
        let (k, threads) = (self.gather.k(), pool.threads());
        let kernels = Kernels::of(simd);
        let skip = scratch.as_ptr().align_offset(4 * LINE).min(LINE);
        let (packed, slots) = scratch[skip..].split_at_mut(groups * self.packed_rows() * k);
        let slot_len = self.slot_len();
        assert!(slots.len() >= threads * slot_len, "length of scratch");
        let (packed, slots) = (Shared(packed.as_mut_ptr()), Shared(slots.as_mut_ptr()));
        let panels = self.packed_rows().div_ceil(PANEL);
        pool.run(groups * panels, |task| {
            let (group, i0) = (task / panels, task % panels * PANEL);
            let to = packed.at((group * self.packed_rows() + i0) * k);
            let tiling = Tiling { width: kernels.width, most: 2, end: rows.min(i0 + PANEL) };
            let mut i = i0;
            while i < tiling.end {
                let (log, valid) = tiling.at(i);
                let to = to.wrapping_add((i - i0) * k);
                // SAFETY: the rows are inside the kernel, the workspace has room for all rows, in whole vectors, and `run`
                // gives each panel to one call.
                unsafe { self.gather.pack(kernels, w.as_ptr(), (group, i, valid), (0, k), 1 << log, to) };
                i += valid;
            }
        });
        let work = Work {
            wide: self,
            kernels,
            source,
            w: w.as_ptr(),
            bias: bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
            packed,
            out: Shared(out.as_mut_ptr()),
        };
        let tasks = groups * self.col_blocks * self.row_blocks;
        let next = AtomicUsize::new(0);
        pool.run(threads.min(tasks), |slot| {
            let slot = slots.at(slot * slot_len);
            let (mut pieces, mut copy, mut filled) = (Vec::new(), (Vec::new(), Vec::new()), None);
            loop {
                let task = next.fetch_add(1, Relaxed);
                if task >= tasks {
                    break;
                }
                let (part, block) = (task / self.row_blocks, task % self.row_blocks);
                // SAFETY: the counter gives each task once, tasks write results of their own, and the slot's workspace, whose
                // room was checked, belongs to this call.
                unsafe {
                    if filled != Some(part) {
                        work.fill(part, slot, &mut pieces, &mut copy);
                        filled = Some(part);
                    }
                    let next = work.next(task + threads, pieces.len());
                    work.block(part / self.col_blocks, block * self.rows, slot, &pieces, next);
                }
            }
        });
    }
}

/// A convolution under way.
struct Work<'a> {
    wide: &'a Wide,
    kernels: &'static Kernels,
    source: &'a [f32],
    w: *const f32,
    bias: *const f32,
    packed: Shared,
    out: Shared,
}

// SAFETY: the pointers lead into slices that `Wide::run` borrows for as long as this lives; what is written is kept
// apart between tasks.
unsafe impl Sync for Work<'_> {}

/// The lines of the source that a later task needs, some at a time.
struct Next {
    at: *const f32,
    /// Lines at a time, and how many there are.
    some: usize,
    left: usize,
}

impl Next {
    fn take(&mut self) -> (*const f32, usize, usize) {
        let (at, some) = (self.at, self.some.min(self.left));
        self.at = at.wrapping_add(some * LINE);
        self.left -= some;
        (at, LINE, some)
    }
}

impl Work<'_> {
    /// What a task needs of the source, if the images of its part lie side by side; asked for by a task of so many
    /// pieces.
    fn next(&self, task: usize, pieces: usize) -> Next {
        let Wide { gather, per_image, boxes, rows, row_blocks, .. } = *self.wide;
        let image = gather.channels * gather.view.plane();
        let from = (task * boxes / per_image * image).min(self.source.len());
        let end = ((task + 1) * boxes).div_ceil(per_image) * image;
        let one = row_blocks == 1 && gather.groups == 1;
        let left = if one { (end.min(self.source.len()) - from) / LINE } else { 0 };
        let turns = (pieces / 2 * (gather.k() / K_RUN) * (rows / PANEL)).max(1);
        Next { at: self.source[from..].as_ptr(), some: left.div_ceil(turns), left }
    }

    /// Copies the boxes of a part, and writes down their positions, in pieces of half a tile at most.
    ///
    /// # Safety
    /// `slot` leads to `slot_len` floats that no other thread uses.
    unsafe fn fill(
        &self,
        part: usize,
        slot: *mut f32,
        pieces: &mut Vec<Piece>,
        copy: &mut (Vec<Run>, Vec<Seen>),
    ) {
        let Wide { gather, ref bands, per_image, boxes, col_blocks, .. } = *self.wide;
        let Gather { view, batch, groups, rows, channels, .. } = gather;
        let (group, first) = (part / col_blocks, part % col_blocks * boxes);
        let (down, along) = (&bands.down.axis, &bands.along.axis);
        let blocks = [down.positions.div_ceil(bands.lines), along.positions.div_ceil(bands.positions)];
        let half = self.kernels.mr / 2;
        pieces.clear();
        for (index, unit) in (first..(first + boxes).min(batch * per_image)).enumerate() {
            let (n, unit) = (unit / per_image, unit % per_image);
            let around = digits(unit / (blocks[0] * blocks[1]), &bands.around, |a| a.positions);
            let (l0, p0) = (unit / blocks[1] % blocks[0] * bands.lines, unit % blocks[1] * bands.positions);
            let image = n * groups + group;
            let source = &self.source[image * channels * view.plane()..][..channels * view.plane()];
            let at = index * self.wide.box_len();
            let (runs, seen, taps) = (bands.pitch.div_ceil(RUN), &mut copy.1, bands.channel / bands.pitch);
            let cut = |r: usize| r * bands.pitch / runs;
            copy.0.clear();
            copy.0.extend((0..runs).map(|r| Run {
                base: 0,
                out: 0,
                col: cut(r) as u32,
                len: (cut(r + 1) - cut(r)) as u32,
            }));
            seen.resize(runs * taps, Seen { at: 0, inside: 0 });
            let mut tap = 0;
            bands.lines(&around, l0, p0, |at, inside| {
                for r in 0..runs {
                    let (col, end) = (cut(r), cut(r + 1));
                    let (a, b) = (inside.start.clamp(col, end), inside.end.clamp(col, end));
                    seen[r * taps + tap] = Seen { at: 0, inside: 0 };
                    if a < b {
                        let at = at + (col * along.step) as isize;
                        seen[r * taps + tap] =
                            Seen { at: at as i32, inside: (u32::MAX >> (32 - (b - a))) << (a - col) };
                    }
                }
                tap += 1;
            });
            let lines = Lines {
                source: source.as_ptr(),
                plane: view.plane(),
                runs: copy.0.as_ptr(),
                count: runs,
                seen: seen.as_ptr(),
                taps,
                channel: 0,
                tap: 0,
                lines: channels * taps,
                pitch: bands.pitch,
                step: along.step,
            };
            // SAFETY: the workspace begins with the boxes of a task; what is inside lies in the channels.
            unsafe { (self.kernels.gather)(&lines, slot.add(at)) };
            let sheet = bands
                .around
                .iter()
                .zip(around)
                .fold(0, |to, (a, p)| to * a.axis.out + a.axis.out_first + p * a.axis.out_step);
            let positions = bands.positions.min(along.positions - p0);
            let count = positions.div_ceil(half);
            for l in 0..bands.lines.min(down.positions - l0) {
                let y = sheet * down.out + down.out_first + (l0 + l) * down.out_step;
                let line = y * along.out + along.out_first + p0 * along.out_step;
                for i in 0..count {
                    let (p, end) = (i * positions / count, (i + 1) * positions / count);
                    pieces.push(Piece {
                        at: at + l * bands.pitch + p,
                        out: image * rows * view.out_plane() + line + p * along.out_step,
                        len: end - p,
                    });
                }
            }
        }
    }

    /// Computes some rows of a group, from `i0` on, at the positions of the pieces.
    ///
    /// # Safety
    /// `slot` leads to `slot_len` floats that no other thread uses, which begin with the boxes of these pieces; and no
    /// other thread writes these results.
    unsafe fn block(&self, group: usize, i0: usize, slot: *mut f32, pieces: &[Piece], mut next: Next) {
        let Wide { gather, ref bands, .. } = *self.wide;
        let Gather { view, rows, .. } = gather;
        let Kernels { width, ref across, pack_turned, put, .. } = *self.kernels;
        let (k, out_plane) = (gather.k(), view.out_plane());
        let out_step = bands.along.axis.out_step;
        let made = slot.wrapping_add((self.wide.boxes * self.wide.box_len()).next_multiple_of(LINE));
        let turned = made.wrapping_add(MADE);
        let own = turned.wrapping_add(PANEL * LINE);
        let panels = |from: usize, end: usize| {
            let tiling = Tiling { width, most: 2, end };
            (from..end).step_by(2 * width).map(move |i| (i, tiling.at(i)))
        };
        let end = rows.min(i0 + self.wide.rows);
        let cuts = (i0..end).step_by(OWN).flat_map(|i0| (0..k).step_by(K_CHUNK).map(move |k0| (i0, k0)));
        for (i0, k0) in cuts {
            let (end, kc) = (end.min(i0 + OWN), (k - k0).min(K_CHUNK));
            let mut kr = k0;
            while self.wide.alone() && kr < k0 + kc {
                // The rows' terms that lie side by side, panel after panel.
                let some = gather.together(kr).min(k0 + kc - kr);
                for (i, (log, valid)) in panels(i0, end) {
                    let to = own.wrapping_add((i - i0) * kc + (((kr - k0) * width) << log));
                    // SAFETY: rows and terms are inside the kernel, and there is room for so many rows and a chunk.
                    unsafe { gather.pack(self.kernels, self.w, (group, i, valid), (kr, some), 1 << log, to) };
                }
                kr += some;
            }
            for (i, (log, valid)) in panels(i0, end) {
                let vectors = 1 << log;
                let out = self.out.at(i * out_plane);
                let w = match self.wide.alone() {
                    true => own.wrapping_add((i - i0) * kc),
                    false => self.packed.at((group * self.wide.packed_rows() + i) * k + k0 * vectors * width),
                };
                let bias = match k0 + kc == k && !self.bias.is_null() {
                    true => self.bias.wrapping_add(group * rows + i),
                    false => std::ptr::null(),
                };
                let mut left = pieces;
                while !left.is_empty() {
                    let mut tiles = [Tile::default(); TILES];
                    let mut count = 0;
                    for tile in &mut tiles {
                        let Some((next, rest)) = Tile::next(left, out_step) else { break };
                        (*tile, left) = (next, rest);
                        count += 1;
                    }
                    let runs = kc.div_ceil(K_RUN);
                    for r in 0..runs {
                        let (kr, end) = (r * kc / runs, (r + 1) * kc / runs);
                        for (at, tile) in tiles[..count].iter().enumerate() {
                            // What is written when the sums are done, or meanwhile what comes next of the source.
                            let (ahead, ahead_step, asks) = match r + 1 == runs {
                                true => (out.wrapping_add(tile.out[0]).cast_const(), out_plane, valid),
                                false => next.take(),
                            };
                            let t = Across {
                                kc: end - kr,
                                offsets: bands.offsets[k0 + kr..].as_ptr(),
                                x: tile.at.map(|at| slot.wrapping_add(at).cast_const()),
                                w: w.wrapping_add(kr * vectors * width),
                                to: made.wrapping_add(at * MAX_MR * PANEL),
                                begin: r == 0,
                                ahead,
                                ahead_step,
                                asks,
                            };
                            // SAFETY: the kernels are of a level that the processor has; the positions of the pieces are
                            // inside their boxes, of which the offsets are.
                            unsafe { across[tile.len[0] + tile.len[1] - 1][log](&t) };
                        }
                    }
                    for (at, tile) in tiles[..count].iter().enumerate() {
                        let from = made.wrapping_add(at * MAX_MR * PANEL);
                        let both = tile.len[0] + tile.len[1];
                        // SAFETY: the rows and positions are inside the result; the workspace has room for a turned tile.
                        unsafe {
                            pack_turned(from, vectors * width, both, 1, valid, turned);
                            let joined = tile.out[1] == tile.out[0] + tile.len[0] * out_step;
                            let cols = if joined { [both, 0] } else { tile.len };
                            for (i, cols) in cols.into_iter().enumerate() {
                                put(&Put {
                                    from: turned.wrapping_add(i * tile.len[0]),
                                    from_stride: width,
                                    to: out.wrapping_add(tile.out[i]),
                                    to_stride: out_plane,
                                    to_step: out_step,
                                    rows: if cols > 0 { valid } else { 0 },
                                    cols,
                                    add: k0 > 0,
                                    bias,
                                });
                            }
                        }
                    }
                }
            }
        }
    }
}
