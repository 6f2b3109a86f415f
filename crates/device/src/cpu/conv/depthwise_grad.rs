//! The kernel gradient of a depthwise convolution: vector lanes are groups, and lines of the operands are transposed
//! for that.

use super::KernelGrad;
use super::bands::{Reach, digits, reaches};
use super::depthwise::{MAX_CHANNEL_PAIRS, MAX_LINE_POSITIONS, MAX_LINES_LEN, TASKS_PER_THREAD};
use super::view::inner_range;
use crate::cpu::LINE;
use crate::cpu::lanes::{dots, transpose_lines};
use crate::cpu::simd::Simd;
use crate::cpu::threads::Pool;
use dittograd_numerics::K_CHUNK;

/// The fewest groups that fill enough lanes.
const MIN_GROUPS: usize = 4;
/// Groups that are computed at once.
const LANES: usize = LINE;

/// The gradient of the kernel of a depthwise convolution.
pub struct DepthwiseGrad {
    grad: KernelGrad,
    /// The axes: the outer ones, and the one along a line.
    around: Vec<Reach>,
    along: Reach,
    /// Positions that are computed at a time: a line or a part of it.
    positions: usize,
    /// Transposed source lines that are kept: as many as the taps reach. A line of zeros follows them.
    kept: usize,
    /// Elements of a line.
    line: usize,
}

impl DepthwiseGrad {
    /// The plan, if the gradient is faster this way.
    pub fn new(grad: &KernelGrad) -> Option<DepthwiseGrad> {
        let KernelGrad { view, batch, groups, rows, channels } = *grad;
        let empty = batch * rows * channels * view.positions() * view.plane() == 0;
        if groups < MIN_GROUPS || rows * channels > MAX_CHANNEL_PAIRS || empty {
            return None;
        }
        let mut around = reaches(&view);
        let along = around.pop()?;
        let positions = along.axis.positions.min(MAX_LINE_POSITIONS);
        let line = (positions - 1).checked_mul(along.axis.step)?.checked_add(along.span)?;
        let kept = around.iter().try_fold(1usize, |n, a| n.checked_mul(a.span))?;
        // Lines are counted in 32 bits.
        u32::try_from(batch.checked_mul(view.plane() / along.axis.source)?).ok()?;
        let thin = DepthwiseGrad { grad: *grad, around, along, positions, kept, line };
        let lines = (kept + 1).checked_mul(channels * line * LANES)?;
        (lines <= MAX_LINES_LEN && thin.sums() <= K_CHUNK).then_some(thin)
    }

    /// Sums of a group.
    fn sums(&self) -> usize {
        self.grad.rows * self.grad.channels * self.grad.view.taps()
    }

    fn blocks(&self) -> usize {
        self.grad.groups.div_ceil(LANES)
    }

    fn chunks(&self) -> usize {
        (self.grad.batch * self.grad.view.positions()).div_ceil(K_CHUNK)
    }

    /// Chunks that are computed at the same time, each into its own sums. One if there are enough blocks.
    fn wave(&self, threads: usize) -> usize {
        match threads {
            1 => 1,
            _ => (4 * TASKS_PER_THREAD * threads).div_ceil(self.blocks()).min(self.chunks()),
        }
    }

    fn slot_len(&self) -> usize {
        let KernelGrad { rows, channels, .. } = self.grad;
        let lines = (self.kept + 1) * channels * self.line + rows * self.positions + self.sums();
        LANES * lines + self.kept + self.grad.view.taps()
    }

    /// Number of floats of workspace that [`DepthwiseGrad::run`] needs with a pool of `threads`.
    pub fn scratch_len(&self, threads: usize) -> usize {
        let parts = self.wave(threads) * self.blocks() * self.sums() * LANES;
        parts + TASKS_PER_THREAD * threads * self.slot_len()
    }

    /// Computes the gradient. `scratch` has at least `scratch_len(pool.threads())` elements, of any value.
    ///
    /// # Panics
    /// If a slice does not have the length that the sizes give.
    pub fn run(
        &self,
        pool: &Pool,
        simd: Simd,
        g: &[f32],
        source: &[f32],
        out: &mut [f32],
        scratch: &mut [f32],
    ) {
        let KernelGrad { view, batch, groups, rows, channels } = self.grad;
        assert_eq!(g.len(), batch * groups * rows * view.positions(), "length of g");
        assert_eq!(source.len(), batch * groups * channels * view.plane(), "length of source");
        assert_eq!(out.len(), groups * self.sums(), "length of out");
        let (chunks, wave, blocks) = (self.chunks(), self.wave(pool.threads()), self.blocks());
        let part = self.sums() * LANES;
        let (parts, slots) = scratch.split_at_mut(wave * blocks * part);
        let tall = if wave == 1 { chunks } else { 1 };
        for c0 in (0..chunks).step_by(wave * tall) {
            let now = wave.min(chunks - c0);
            let units = now * blocks;
            let share = units.div_ceil((TASKS_PER_THREAD * pool.threads()).min(units));
            let tasks = units.div_ceil(share);
            let parts = &mut parts[..units * part];
            pool.pieces_mut(
                [&mut *parts, &mut *slots],
                [share * part, self.slot_len()],
                tasks,
                |task, [parts, slot]| {
                    for (i, part) in parts.chunks_exact_mut(part).enumerate() {
                        let (c, block) = ((task * share + i) / blocks, (task * share + i) % blocks);
                        for chunk in 0..tall {
                            self.chunk(simd, g, source, block, c0 + c + chunk, chunk == 0, part, slot);
                        }
                    }
                },
            );
            // Write lanes to their groups, adding the chunks in order.
            let parts = &*parts;
            pool.chunks_mut(out, self.sums() * LANES, |block, out| {
                for (c, part) in parts.chunks_exact(part).skip(block).step_by(blocks).enumerate() {
                    for (lane, out) in out.chunks_exact_mut(self.sums()).enumerate() {
                        for (out, part) in out.iter_mut().zip(part.chunks_exact(LANES)) {
                            *out = if c0 + c == 0 { part[lane] } else { *out + part[lane] };
                        }
                    }
                }
            });
        }
    }

    /// Computes a chunk's sums for a block of groups. Adds them to `part`, or stores them if they are the first.
    #[allow(clippy::too_many_arguments)]
    fn chunk(
        &self,
        simd: Simd,
        g: &[f32],
        source: &[f32],
        block: usize,
        chunk: usize,
        first: bool,
        part: &mut [f32],
        slot: &mut [f32],
    ) {
        let KernelGrad { view, batch, groups, rows, channels } = self.grad;
        let (all, plane, taps) = (view.positions(), view.plane(), view.taps());
        let (x, along) = (&self.along, self.along.axis);
        let (g0, lanes) = (block * LANES, LANES.min(groups - block * LANES));
        let keep = channels * self.line * LANES;
        let (kept, rest) = slot.split_at_mut((self.kept + 1) * keep);
        let (turned, rest) = rest.split_at_mut(rows * self.positions * LANES);
        let (acc, rest) = rest.split_at_mut(self.sums() * LANES);
        // Which source line each kept line holds, and where each tap's operands start.
        let (names, starts) =
            bytemuck::cast_slice_mut::<f32, u32>(rest)[..self.kept + taps].split_at_mut(self.kept);
        names.fill(u32::MAX);
        kept[self.kept * keep..].fill(0.0);
        acc.fill(0.0);

        let (mut k, end) = (chunk * K_CHUNK, ((chunk + 1) * K_CHUNK).min(batch * all));
        while k < end {
            let (n, o) = (k / all, k % all);
            let (line, p) = (o / along.positions, o % along.positions);
            let len = (along.positions - p).min(end - k).min(self.positions);
            // Of a long line, only the part from `base` on is kept.
            let base = if self.positions < along.positions { p } else { 0 };
            if self.positions < along.positions {
                names.fill(u32::MAX);
            }
            let place = digits(line, &self.around, |a| a.positions);
            for (outer, starts) in starts.chunks_exact_mut(along.taps).enumerate() {
                let tap = digits(outer, &self.around, |a| a.taps);
                let (mut name, mut at, mut inside) = (n, 0, true);
                for ((a, p), t) in self.around.iter().zip(place).zip(tap) {
                    let u = (p * a.axis.step) as isize + a.axis.first + t as isize * a.axis.tap_step;
                    inside &= u >= 0 && u < a.axis.source as isize;
                    name = name.wrapping_mul(a.axis.source).wrapping_add_signed(u);
                    at = at * a.span + u.rem_euclid(a.span as isize).cast_unsigned();
                }
                if !inside {
                    at = self.kept;
                } else if names[at] != name as u32 {
                    names[at] = name as u32;
                    let line = name - n * (plane / along.source);
                    let low = (base * along.step) as isize + x.low;
                    let (from, to) = inner_range(low, 1, along.source, self.line);
                    for c in 0..channels {
                        let kept = &mut kept[at * keep + c * self.line * LANES..][..self.line * LANES];
                        kept[..from * LANES].fill(0.0);
                        kept[to.max(from) * LANES..].fill(0.0);
                        if from < to {
                            let first = ((n * groups + g0) * channels + c) * plane + line * along.source;
                            let source = &source[first.wrapping_add_signed(low + from as isize)..];
                            let kept = &mut kept[from * LANES..to * LANES];
                            transpose_lines(simd, source, channels * plane, lanes, to - from, LINE, kept);
                        }
                    }
                }
                for (t, start) in starts.iter_mut().enumerate() {
                    *start = (at * keep + (x.above(t) + (p - base) * along.step) * LANES) as u32;
                }
            }
            for r in 0..rows {
                let turned = &mut turned[r * self.positions * LANES..][..len * LANES];
                let from = ((n * groups + g0) * rows + r) * all + o;
                transpose_lines(simd, &g[from..], rows * all, lanes, len, LINE, turned);
                for c in 0..channels {
                    let acc = &mut acc[(r * channels + c) * taps * LANES..][..taps * LANES];
                    let kept = &kept[c * self.line * LANES..];
                    dots(simd, turned, kept, starts, along.step * LANES, acc);
                }
            }
            k += len;
        }
        for (to, acc) in part.iter_mut().zip(acc) {
            *to = if first { *acc } else { *to + *acc };
        }
    }
}
