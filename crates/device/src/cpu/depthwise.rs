//! Convolutions of many small groups of channels, each convolved alone: products too thin for the tiles of
//! [`super::gemm`]. The sums are those of [`super::conv`], term by term; lanes are neighbouring outputs of a
//! convolution, and groups of a kernel's gradient, never terms of one sum.

use super::conv::{Axis, Gather, KernelGrad, View, inner_range};
use super::gemm::LINE;
use super::gemm::lines::{chains, dots, turn};
use super::pool::Pool;
use super::simd::Simd;
use dittograd_numerics::K_CHUNK;
use dittograd_numerics::shape::MAX_RANK;

/// The most pairs of channels in a group that are better off here.
const MOST_PAIRS: usize = 8;
/// The fewest groups whose gradients fill enough lanes.
const LEAST_GROUPS: usize = 4;
/// Floats of a box that leave a first-level cache room for what it makes.
const BOX: usize = 8192;
/// The most floats of a thread's box or lines.
const MOST: usize = 1 << 18;
/// The most positions of a line in a box.
const PIECE: usize = 512;
/// Groups side by side in a kernel's gradient.
const LANES: usize = LINE;
/// Tasks a thread.
const TASKS: usize = 4;

/// What the taps of an axis see of its source, from the lowest element at position 0 on.
#[derive(Clone, Copy)]
pub(super) struct Reach {
    pub axis: Axis,
    pub low: isize,
    span: usize,
}

impl Reach {
    pub fn of(axis: Axis) -> Reach {
        let far = (axis.taps.max(1) as isize - 1) * axis.tap_step;
        Reach { axis, low: axis.first + far.min(0), span: far.unsigned_abs() + 1 }
    }

    /// How far above the lowest element a tap is.
    pub fn above(&self, tap: usize) -> usize {
        (self.axis.first + tap as isize * self.axis.tap_step - self.low).cast_unsigned()
    }

    /// Elements `step` apart make a line of a box: how many such lines there are.
    fn phases(&self) -> usize {
        self.axis.step.min(self.span)
    }

    /// Elements of each of them that taps see beyond the last position's first.
    pub fn more(&self) -> usize {
        (self.span - 1) / self.axis.step
    }
}

/// The digits of `index` in the sizes that `of` takes from the axes, the last one fastest.
pub(super) fn digits(mut index: usize, axes: &[Reach], of: fn(&Axis) -> usize) -> [usize; MAX_RANK] {
    let mut out = [0; MAX_RANK];
    for (to, a) in out.iter_mut().zip(axes).rev() {
        *to = index % of(&a.axis);
        index /= of(&a.axis);
    }
    out
}

fn reaches(view: &View) -> Vec<Reach> {
    view.axes().iter().map(|&a| Reach::of(a)).collect()
}

/// One of the convolutions that share a result, as bands of lines: the source of a band is copied to a box, with
/// its padding, and such that neighbouring outputs have neighbouring operands; the outputs of a band are then
/// one line, with what lies between the box's lines computed as well and left.
pub(super) struct Bands {
    gather: Gather,
    /// The axes: those around the lines of a band, the lines, and along them.
    pub around: Vec<Reach>,
    pub down: Reach,
    pub along: Reach,
    /// Lines and positions of a band.
    pub lines: usize,
    pub positions: usize,
    /// Floats from one line of a box to the next, of one phase of it, and of what one channel takes.
    pub pitch: usize,
    phase: usize,
    pub channel: usize,
    /// Where each (channel, tap) lies in the box.
    pub offsets: Vec<usize>,
}

impl Bands {
    /// Bands of at most `piece` positions along a line, whose boxes have about `room` floats, or one line.
    pub fn new(gather: &Gather, piece: usize, room: usize) -> Option<Bands> {
        let Gather { view, channels, .. } = *gather;
        let mut around = reaches(&view);
        let along = around.pop()?;
        let down = around.pop().unwrap_or(Reach::of(Axis::ONE));
        if channels == 0 || view.positions() == 0 || view.plane() == 0 {
            return None;
        }
        let positions = along.axis.positions.div_ceil(along.axis.positions.div_ceil(piece));
        let pitch = positions + along.more();
        let sheets = around.iter().map(|a| a.axis.taps).product::<usize>();
        let per_line = (channels * sheets * down.phases() * along.phases()).checked_mul(pitch)?;
        // Positions that no tap reaches have no box.
        let lines = (room / per_line.max(1)).saturating_sub(down.more()).clamp(1, down.axis.positions);
        let lines = down.axis.positions.div_ceil(down.axis.positions.div_ceil(lines));
        let phase = (lines + down.more()) * pitch;
        let channel = sheets * down.phases() * along.phases() * phase;
        let mut offsets = Vec::with_capacity(channels * view.taps());
        for c in 0..channels {
            for sheet in 0..sheets {
                for y in (0..down.axis.taps).map(|t| down.above(t)) {
                    for x in (0..along.axis.taps).map(|t| along.above(t)) {
                        let (sy, sx) = (down.axis.step, along.axis.step);
                        let at = (sheet * down.phases() + y % sy) * along.phases() + x % sx;
                        offsets.push(c * channel + at * phase + y / sy * pitch + x / sx);
                    }
                }
            }
        }
        Some(Bands { gather: *gather, around, down, along, lines, positions, pitch, phase, channel, offsets })
    }

    /// Bands down the lines and along them.
    pub fn blocks(&self) -> [usize; 2] {
        let (down, along) = (&self.down.axis, &self.along.axis);
        [down.positions.div_ceil(self.lines), along.positions.div_ceil(self.positions)]
    }

    /// Floats of the box; the last vectors may read beyond it.
    fn box_len(&self) -> usize {
        self.gather.channels * self.channel + 2 * LINE
    }

    /// Floats of the outputs of a band, in whole vectors.
    fn made_len(&self) -> usize {
        (self.lines * self.pitch).next_multiple_of(LINE)
    }

    fn slot_len(&self) -> usize {
        self.box_len() + self.made_len() + self.offsets.len()
    }

    /// Calls `f` with each line of a channel of a band's box: where its first element would lie in the channel, and which
    /// of its elements do.
    pub fn lines(
        &self,
        around: &[usize; MAX_RANK],
        l0: usize,
        p0: usize,
        mut f: impl FnMut(isize, std::ops::Range<usize>),
    ) {
        let (down, along) = (&self.down, &self.along);
        let (sy, sx) = (down.axis.step, along.axis.step);
        for sheet in 0..self.channel / (down.phases() * along.phases() * self.phase) {
            let taps = digits(sheet, &self.around, |a| a.taps);
            let (mut base, mut inside) = (0isize, true);
            for ((a, &p), t) in self.around.iter().zip(around).zip(taps) {
                let x = (p * a.axis.step) as isize + a.axis.first + t as isize * a.axis.tap_step;
                inside &= x >= 0 && x < a.axis.source as isize;
                base = base * a.axis.source as isize + x;
            }
            for ry in 0..down.phases() {
                for rx in 0..along.phases() {
                    let x = (p0 * sx + rx) as isize + along.low;
                    let (from, end) = inner_range(x, sx, along.axis.source, self.pitch);
                    for j in 0..self.lines + down.more() {
                        let y = ((l0 + j) * sy + ry) as isize + down.low;
                        let inside = inside && y >= 0 && y < down.axis.source as isize && from < end;
                        let line = (base * down.axis.source as isize + y) * along.axis.source as isize;
                        f(line + x, if inside { from..end } else { 0..0 });
                    }
                }
            }
        }
    }

    /// Copies the source of a band of a group (`source`: its channels) to the box.
    fn fill(&self, source: &[f32], around: &[usize; MAX_RANK], l0: usize, p0: usize, to: &mut [f32]) {
        let step = self.along.axis.step;
        for (c, source) in source.chunks_exact(self.gather.view.plane()).enumerate() {
            let mut lines = to[c * self.channel..][..self.channel].chunks_exact_mut(self.pitch);
            self.lines(around, l0, p0, |at, inside| {
                let Some(to) = lines.next() else { return };
                if inside.is_empty() {
                    to.fill(0.0);
                    return;
                }
                to[..inside.start].fill(0.0);
                to[inside.end..].fill(0.0);
                let source = &source[at.wrapping_add((inside.start * step) as isize).cast_unsigned()..];
                if step == 1 {
                    to[inside.clone()].copy_from_slice(&source[..inside.len()]);
                } else {
                    for (to, x) in to[inside].iter_mut().zip(source.iter().step_by(step)) {
                        *to = *x;
                    }
                }
            });
        }
    }

    /// Computes the outputs of a group of an image: `source` and `out` are its channels.
    #[allow(clippy::too_many_arguments)]
    fn plane(
        &self,
        simd: Simd,
        group: usize,
        source: &[f32],
        w: &[f32],
        bias: Option<&[f32]>,
        out: &mut [f32],
        scratch: &mut [f32],
    ) {
        let Gather { view, rows, channels, w_strides: [by_group, by_row, by_channel], .. } = self.gather;
        let (copied, rest) = scratch.split_at_mut(self.box_len());
        let (made, rest) = rest.split_at_mut(self.made_len());
        let kernel = &mut rest[..self.offsets.len()];
        copied[self.gather.channels * self.channel..].fill(0.0);
        let (down, along, taps) = (&self.down.axis, &self.along.axis, view.taps());
        for n in 0..self.around.iter().map(|a| a.axis.positions).product() {
            let at = digits(n, &self.around, |a| a.positions);
            let sheet = self
                .around
                .iter()
                .zip(at)
                .fold(0, |to, (a, p)| to * a.axis.out + a.axis.out_first + p * a.axis.out_step);
            for l0 in (0..down.positions).step_by(self.lines) {
                for p0 in (0..along.positions).step_by(self.positions) {
                    self.fill(source, &at, l0, p0, copied);
                    let lines = self.lines.min(down.positions - l0);
                    let positions = self.positions.min(along.positions - p0);
                    let len = ((lines - 1) * self.pitch + positions).next_multiple_of(LINE);
                    for (row, out) in out.chunks_exact_mut(view.out_plane()).enumerate() {
                        for (i, to) in kernel.iter_mut().enumerate() {
                            let at = i / taps * by_channel + view.w_at(i % taps);
                            *to = w[group * by_group + row * by_row + at];
                        }
                        debug_assert_eq!(kernel.len(), channels * taps);
                        // What is absent is -0.0, which changes nothing.
                        let add = bias.map_or(-0.0, |b| b[group * rows + row]);
                        chains(simd, copied, &self.offsets, kernel, add, &mut made[..len]);
                        for l in 0..lines {
                            let y = sheet * down.out + down.out_first + (l0 + l) * down.out_step;
                            let to = &mut out[y * along.out + along.out_first + p0 * along.out_step..];
                            let made = &made[l * self.pitch..][..positions];
                            if along.out_step == 1 {
                                to[..positions].copy_from_slice(made);
                            } else {
                                for (to, x) in to.iter_mut().step_by(along.out_step).zip(made) {
                                    *to = *x;
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Whether groups are so small, and sums so short, that lanes are better off along the positions.
pub(super) fn is_thin(gather: &Gather) -> bool {
    let Gather { view, batch, groups, rows, channels, .. } = *gather;
    groups > 1 && batch > 0 && rows > 0 && rows * channels <= MOST_PAIRS && channels * view.taps() <= K_CHUNK
}

/// Convolutions of thin groups, each of its own positions of one result.
pub struct Thin {
    classes: Vec<Bands>,
}

impl Thin {
    /// The convolutions, if all of them are better off here: where they [feed](Thin::feeds) the threads there are.
    pub fn new(classes: impl Iterator<Item = Gather>) -> Option<Thin> {
        let mut all = Vec::new();
        for gather in classes {
            if !is_thin(&gather) {
                return None;
            }
            all.push(Bands::new(&gather, PIECE, BOX).filter(|bands| bands.box_len() <= MOST)?);
        }
        (!all.is_empty()).then_some(Thin { classes: all })
    }

    /// Whether there is work for so many threads.
    pub fn feeds(&self, threads: usize) -> bool {
        self.classes.iter().all(|c| c.gather.batch * c.gather.groups >= threads)
    }

    fn slot_len(&self) -> usize {
        self.classes.iter().map(Bands::slot_len).max().unwrap_or(0).next_multiple_of(LINE)
    }

    /// Number of floats of workspace that [`Thin::run`] needs with a pool of `threads`.
    pub fn scratch_len(&self, threads: usize) -> usize {
        self.slot_len() * TASKS * threads
    }

    /// Computes the result at the positions of all classes. `scratch` has at least `scratch_len(pool.threads())`
    /// elements, of any value.
    ///
    /// # Panics
    /// If a slice does not have the length that the sizes give.
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
        let Some(first) = self.classes.first() else { return };
        let Gather { view, batch, groups, rows, channels, .. } = first.gather;
        let (size, out_size) = (channels * view.plane(), rows * view.out_plane());
        assert_eq!(source.len(), batch * groups * size, "length of source");
        assert_eq!(out.len(), batch * groups * out_size, "length of out");
        let slot = self.slot_len();
        let planes = batch * groups;
        let share = planes.div_ceil((TASKS * pool.threads()).min(planes));
        let tasks = planes.div_ceil(share);
        assert!(scratch.len() >= tasks * slot, "length of scratch");
        pool.pieces_mut([out, scratch], [share * out_size, slot], tasks, |task, [out, scratch]| {
            for (i, out) in out.chunks_exact_mut(out_size).enumerate() {
                let plane = task * share + i;
                let source = &source[plane * size..][..size];
                for class in &self.classes {
                    class.plane(simd, plane % groups, source, w, bias, out, scratch);
                }
            }
        });
    }
}

/// The gradient of the kernel of thin groups: lanes are groups, whose lines are turned for that.
pub struct ThinGrad {
    grad: KernelGrad,
    /// The axes: those around the lines, and along them.
    around: Vec<Reach>,
    along: Reach,
    /// Positions of a line, or of as much of it as is done at once.
    positions: usize,
    /// Source lines that are kept, per axis around as many as its taps span, and one of zeros behind them.
    kept: usize,
    /// Elements of a line.
    line: usize,
}

impl ThinGrad {
    /// The gradient, if it is better off here.
    pub fn new(grad: &KernelGrad) -> Option<ThinGrad> {
        let KernelGrad { view, batch, groups, rows, channels } = *grad;
        let empty = batch * rows * channels * view.positions() * view.plane() == 0;
        if groups < LEAST_GROUPS || rows * channels > MOST_PAIRS || empty {
            return None;
        }
        let mut around = reaches(&view);
        let along = around.pop()?;
        let positions = along.axis.positions.min(PIECE);
        let line = (positions - 1).checked_mul(along.axis.step)?.checked_add(along.span)?;
        let kept = around.iter().try_fold(1usize, |n, a| n.checked_mul(a.span))?;
        // Lines are counted in 32 bits.
        u32::try_from(batch.checked_mul(view.plane() / along.axis.source)?).ok()?;
        let thin = ThinGrad { grad: *grad, around, along, positions, kept, line };
        let lines = (kept + 1).checked_mul(channels * line * LANES)?;
        (lines <= MOST && thin.sums() <= K_CHUNK).then_some(thin)
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

    /// Chunks that are done at once, each into a part of its own; with enough blocks, one after the other.
    fn wave(&self, threads: usize) -> usize {
        match threads {
            1 => 1,
            _ => (4 * TASKS * threads).div_ceil(self.blocks()).min(self.chunks()),
        }
    }

    fn slot_len(&self) -> usize {
        let KernelGrad { rows, channels, .. } = self.grad;
        let lines = (self.kept + 1) * channels * self.line + rows * self.positions + self.sums();
        LANES * lines + self.kept + self.grad.view.taps()
    }

    /// Number of floats of workspace that [`ThinGrad::run`] needs with a pool of `threads`.
    pub fn scratch_len(&self, threads: usize) -> usize {
        let parts = self.wave(threads) * self.blocks() * self.sums() * LANES;
        parts + TASKS * threads * self.slot_len()
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
            let share = units.div_ceil((TASKS * pool.threads()).min(units));
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
            // Lanes to groups, the chunks in order.
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

    /// Computes a chunk's sums of a block of groups, and adds them to `part` unless they are the first.
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
        // Which source line each kept one is, and where each tap's operands start.
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
            // Long lines are kept from here on only.
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
                            turn(simd, source, channels * plane, lanes, to - from, LINE, kept);
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
                turn(simd, &g[from..], rows * all, lanes, len, LINE, turned);
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
