//! Convolutions in digits: modes `fast` and `turbo`. An image's channels share a scale, and so do all numbers of a kernel's output channel,
//! so elements are converted once, not once per tap.
//!
//! The digits of an image lie in a *box*, its positions with their padding, as words of four channels (or two, see
//! [`Kernels::word_strides`]). A tap reads the box at an offset, so a packed panel of 16 positions is made by copying words.
//! Terms are summed tap by tap, channels innermost: exact sums have no order.
#![allow(unsafe_code)]

use super::Gather;
use super::bands::{Reach, digits as coordinates, reaches};
use crate::cpu::LINE;
use crate::cpu::gemm::digits::{
    Block, Kernels, LINES, MAX_STRIP, Pack, STEP, Side, exponent_of, most_step_len,
};
use crate::cpu::simd::{Simd, simd_fn};
use crate::cpu::threads::Pool;
use dittograd_numerics::digits::{Digits, magnitude};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Columns of a block.
const COLS: usize = LINES * MAX_STRIP;
/// The most bytes of packed A that are multiplied with all columns of a block at a time.
const MAX_BLOCK_A: usize = 256 << 10;
/// The most bytes of digits of images per thread, if they are several.
const MAX_IMAGES: usize = 1 << 20;
/// Words before and after the boxes of an image, so that a vector may reach over their ends.
const SLACK: usize = LINES;
/// Groups of four terms in a step.
const GROUPS: usize = STEP / 4;

simd_fn! {
    /// The largest magnitude of some floats.
    pub(super) fn largest(simd, x: &[f32]) -> u32 {
        x.iter().fold(0, |max, &x| max.max(magnitude(x)))
    }
}

/// Runs tasks that need a workspace of their thread: `f(slot, task)`.
pub(super) fn run_in_slots(pool: &Pool, tasks: usize, f: impl Fn(usize, usize) + Sync) {
    let next = AtomicUsize::new(0);
    pool.run(pool.threads().min(tasks), |slot| {
        loop {
            let task = next.fetch_add(1, Relaxed);
            if task >= tasks {
                break;
            }
            f(slot, task);
        }
    });
}

/// A workspace of bytes, of which parts are taken one after the other.
pub(super) struct Parts {
    len: usize,
}

impl Parts {
    pub fn new() -> Parts {
        Parts { len: 0 }
    }

    /// Where the next part begins, of so many bytes: at a cache line.
    pub fn take(&mut self, bytes: usize) -> usize {
        let at = self.len;
        self.len += bytes.next_multiple_of(4 * LINE);
        at
    }

    /// Bytes of all parts.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Floats of the whole workspace, wherever it begins.
    pub fn floats(&self) -> usize {
        LINE + self.len / size_of::<f32>()
    }
}

/// Neighbouring positions whose elements are neighbours in the box: lanes from `start` on of a panel, or elements of a strip, and
/// where the first one lies.
#[derive(Clone, Copy, Default)]
struct Segment {
    start: usize,
    len: usize,
    at: usize,
}

/// A convolution in digits, and where everything lies in the workspace, in bytes.
struct Plan {
    gather: Gather,
    digits: Digits,
    axes: Vec<Reach>,
    /// Elements of the box from one position of an axis to the next, and of the whole box. Along the innermost axis there are phases, each
    /// with every `step`-th element, so that neighbouring positions have neighbouring elements.
    strides: Vec<usize>,
    phase: usize,
    box_len: usize,
    /// Groups of four channels, and words of such a group.
    quads: usize,
    words: usize,
    /// Steps of a sum.
    steps: usize,
    a_step: usize,
    b_step: usize,
    row_panels: usize,
    /// Images times groups that are converted at a time, and the words of one.
    items: usize,
    item_words: usize,
    maxima: usize,
    item_exponents: usize,
    row_exponents: usize,
    ordered: usize,
    packed: usize,
    boxes: usize,
    slots: usize,
    slot_len: usize,
    floats: usize,
}

impl Plan {
    fn new(gather: &Gather, digits: Digits, threads: usize, a_step: usize, b_step: usize) -> Plan {
        let Gather { view, batch, groups, rows, channels, .. } = *gather;
        let axes = reaches(&view);
        let mut strides = vec![1; axes.len()];
        let (mut phase, mut box_len) = (1, 1);
        for (i, (stride, a)) in strides.iter_mut().zip(&axes).enumerate().rev() {
            *stride = box_len;
            if i + 1 == axes.len() {
                phase = a.extent().div_ceil(a.axis.step);
                box_len = phase * a.axis.step;
            } else {
                box_len *= a.extent();
            }
        }
        let (quads, words) = (channels.div_ceil(4), b_step / (4 * LINES * GROUPS));
        let steps = (view.taps() * quads).div_ceil(GROUPS);
        let row_panels = rows.div_ceil(LINES);
        let item_words = |words: usize| quads * words * box_len + 2 * SLACK;
        // As many at every SIMD level, so that the workspace of the one with the most words has room for all.
        let most_words = item_words(most_step_len(digits, Side::B) / (4 * LINES * GROUPS));
        let items = (threads * MAX_IMAGES / (4 * most_words)).clamp(1, (batch * groups).max(1));
        let item_words = item_words(words);
        let mut parts = Parts::new();
        let maxima = parts.take(4 * batch * groups * channels);
        let item_exponents = parts.take(4 * batch * groups);
        let row_exponents = parts.take(4 * groups * row_panels * LINES);
        let ordered = parts.take(4 * groups * rows * steps * STEP);
        let packed = parts.take(groups * row_panels * steps * a_step);
        let boxes = parts.take(4 * items * item_words);
        let convert = MAX_STRIP * channels.div_ceil(STEP) * b_step;
        let multiply = MAX_STRIP * steps * b_step + 4 * rows * COLS;
        let slot_len = convert.max(multiply).next_multiple_of(4 * LINE);
        let slots = parts.take(threads * slot_len);
        Plan {
            gather: *gather,
            digits,
            axes,
            strides,
            phase,
            box_len,
            quads,
            words,
            steps,
            a_step,
            b_step,
            row_panels,
            items,
            item_words,
            maxima,
            item_exponents,
            row_exponents,
            ordered,
            packed,
            boxes,
            slots,
            slot_len,
            floats: parts.floats(),
        }
    }

    /// Where elements of the box lie that are so far along each axis from its first one.
    fn box_at(&self, along: impl Iterator<Item = usize>) -> usize {
        let inner = self.axes.len() - 1;
        let mut at = 0;
        for (i, (x, a)) in along.zip(&self.axes).enumerate() {
            at += match i == inner {
                true => x % a.axis.step * self.phase + x / a.axis.step,
                false => x * self.strides[i],
            };
        }
        at
    }

    /// Where a tap reads for position 0.
    fn tap_offset(&self, tap: usize) -> usize {
        let at = coordinates(tap, &self.axes, |a| a.taps);
        self.box_at(self.axes.iter().zip(at).map(|(a, t)| a.above(t)))
    }

    /// Cuts lanes `0..len` that lie `at(lane)` into segments.
    fn segments(len: usize, at: impl Fn(usize) -> Option<usize>, to: &mut Vec<Segment>) {
        to.clear();
        for lane in 0..len {
            let Some(here) = at(lane) else { continue };
            match to.last_mut() {
                Some(last) if last.start + last.len == lane && last.at + last.len == here => last.len += 1,
                _ => to.push(Segment { start: lane, len: 1, at: here }),
            }
        }
    }

    /// Where an element of the source lies in the box, if anything reaches it.
    fn source_at(&self, index: usize) -> Option<usize> {
        let at = coordinates(index, &self.axes, |a| a.source);
        let along = self.axes.iter().zip(at).map(|(a, x)| x as isize - a.low);
        let is_in = self.axes.iter().zip(along.clone()).all(|(a, x)| (0..a.extent() as isize).contains(&x));
        is_in.then(|| self.box_at(along.map(isize::cast_unsigned)))
    }

    /// How far from position 0 a position reads.
    fn position_at(&self, position: usize) -> usize {
        let at = coordinates(position, &self.axes, |a| a.positions);
        self.box_at(self.axes.iter().zip(at).map(|(a, p)| p * a.axis.step))
    }

    /// Where a position's result lies in its channel.
    fn result_at(&self, position: usize) -> usize {
        let at = coordinates(position, &self.axes, |a| a.positions);
        self.axes
            .iter()
            .zip(at)
            .fold(0, |sum, (a, p)| sum * a.axis.out + a.axis.out_first + p * a.axis.out_step)
    }
}

simd_fn! {
    /// Makes a panel of 16 positions: for each tap and group of four channels, words of the box at the positions' segments.
    fn fill_panel(
        simd,
        boxes: &[u32],
        box_len: usize,
        taps: &[usize],
        quads: usize,
        words: usize,
        strides: [usize; 2],
        segments: &[Segment],
        panel: &mut [[u32; LINES]],
    ) {
        let load = |at: usize| -> [u32; LINES] {
            let mut x = [0; LINES];
            x.copy_from_slice(&boxes[at..at + LINES]);
            x
        };
        let Some((first, rest)) = segments.split_first() else { return };
        let mut group = 0;
        for &tap in taps {
            for quad in 0..quads {
                let row = group / GROUPS * GROUPS * words + group % GROUPS * strides[0];
                group += 1;
                for word in 0..words {
                    let from = SLACK + (quad * words + word) * box_len + tap;
                    let mut x = load(from + first.at);
                    for segment in rest {
                        let more = load(from + segment.at - segment.start);
                        for (lane, (x, more)) in x.iter_mut().zip(more).enumerate() {
                            *x = if lane >= segment.start { more } else { *x };
                        }
                    }
                    panel[row + word * strides[1]] = x;
                }
            }
        }
        while group % GROUPS != 0 {
            let row = group / GROUPS * GROUPS * words + group % GROUPS * strides[0];
            group += 1;
            for word in 0..words {
                panel[row + word * strides[1]] = [0; LINES];
            }
        }
    }
}

impl Gather {
    /// Number of floats of workspace that [`Gather::run_digits`] needs with a pool of `threads`, at any SIMD level.
    pub fn digits_scratch_len(&self, digits: Digits, threads: usize) -> usize {
        let (a_step, b_step) = (most_step_len(digits, Side::A), most_step_len(digits, Side::B));
        if self.k() == 0 { 0 } else { Plan::new(self, digits, threads, a_step, b_step).floats }
    }

    /// [`Gather::run`] in digits.
    ///
    /// # Panics
    /// If a slice does not have the length that the sizes give.
    #[allow(clippy::too_many_arguments)]
    pub fn run_digits(
        &self,
        digits: Digits,
        pool: &Pool,
        simd: Simd,
        source: &[f32],
        w: &[f32],
        bias: Option<&[f32]>,
        out: &mut [f32],
        scratch: &mut [f32],
    ) {
        self.check_lengths(source, w, bias, out);
        if out.is_empty() || self.view.positions() == 0 {
            return;
        }
        if self.k() == 0 {
            self.fill(pool, bias, out);
            return;
        }
        let kernels = Kernels::of(simd);
        let (a_step, b_step) = ((kernels.step_len)(digits, Side::A), (kernels.step_len)(digits, Side::B));
        let plan = Plan::new(self, digits, pool.threads(), a_step, b_step);
        let skip = scratch.as_ptr().align_offset(4 * LINE).min(LINE);
        assert!(scratch.len() >= plan.floats && scratch.len() >= skip, "length of scratch");
        let work = Work {
            taps: (0..self.view.taps()).map(|tap| plan.tap_offset(tap)).collect(),
            sources: (0..self.view.plane()).map(|x| plan.source_at(x)).collect(),
            positions: (0..self.view.positions()).map(|p| plan.position_at(p)).collect(),
            plan,
            kernels,
            simd,
            source,
            w,
            bias,
            out: out.as_mut_ptr(),
            scratch: scratch[skip..].as_mut_ptr().cast(),
        };
        work.maxima(pool);
        work.pack_kernel(pool);
        let all = self.batch * self.groups;
        for first in (0..all).step_by(work.plan.items) {
            let items = first..all.min(first + work.plan.items);
            work.convert(pool, items.clone());
            work.multiply(pool, items);
        }
    }
}

/// A convolution in progress.
struct Work<'a> {
    plan: Plan,
    /// Where taps, elements of the source and positions lie in the box.
    taps: Vec<usize>,
    sources: Vec<Option<usize>>,
    positions: Vec<usize>,
    kernels: &'static Kernels,
    simd: Simd,
    source: &'a [f32],
    w: &'a [f32],
    bias: Option<&'a [f32]>,
    out: *mut f32,
    scratch: *mut u8,
}

// SAFETY: the pointers point into slices that `Gather::run_digits` borrows for as long as this lives. What one task writes, no other task
// of the same run reads or writes.
unsafe impl Sync for Work<'_> {}

impl Work<'_> {
    /// A part of the workspace.
    fn part<T>(&self, at: usize) -> *mut T {
        self.scratch.wrapping_add(at).cast()
    }

    /// Exponents of images and of the kernel's rows.
    fn maxima(&self, pool: &Pool) {
        let Gather { view, batch, groups, rows, channels, w_strides } = self.plan.gather;
        let (plane, w_plane) = (view.plane(), view.w_plane());
        let maxima = self.part::<u32>(self.plan.maxima);
        let lines = batch * groups * channels;
        let Work { plan, simd, source, w, .. } = self;
        let here = SharedBytes(maxima.cast());
        pool.run(lines, |line| {
            let max = largest(*simd, &source[line * plane..(line + 1) * plane]);
            // SAFETY: there is a word for each line.
            unsafe { *here.at::<u32>(4 * line) = max };
        });
        let exponents = self.part::<f32>(plan.item_exponents);
        for item in 0..batch * groups {
            // SAFETY: the maxima of all channels were written, and there is a float for each item.
            unsafe {
                let of_item = std::slice::from_raw_parts(maxima.add(item * channels), channels);
                *exponents.add(item) = exponent_of(of_item.iter().fold(0, |max, &x| max.max(x)));
            }
        }
        let here = SharedBytes(self.part(plan.row_exponents));
        let padded = plan.row_panels * LINES;
        pool.run(groups * padded, |at| {
            let (group, row) = (at / padded, at % padded);
            let mut max = 0;
            for channel in 0..if row < rows { channels } else { 0 } {
                let from = group * w_strides[0] + row * w_strides[1] + channel * w_strides[2];
                max = max.max(largest(*simd, &w[from..from + w_plane]));
            }
            // SAFETY: there is a float for each row, padded to whole panels.
            unsafe { *here.at::<f32>(4 * at) = exponent_of(max) };
        });
    }

    /// Packs the kernel, its terms in the order of sums.
    fn pack_kernel(&self, pool: &Pool) {
        let Work { plan, .. } = self;
        let Gather { view, groups, rows, channels, w_strides, .. } = plan.gather;
        let terms = plan.steps * STEP;
        let here = SharedBytes(self.scratch);
        pool.run(groups * plan.row_panels, |task| {
            let (group, panel) = (task / plan.row_panels, task % plan.row_panels);
            let row0 = panel * LINES;
            let lines = LINES.min(rows - row0);
            // SAFETY: there is room for all terms of all rows, and each task has rows of its own.
            let ordered = unsafe {
                let from = here.at::<f32>(plan.ordered + 4 * (group * rows + row0) * terms);
                std::slice::from_raw_parts_mut(from, lines * terms)
            };
            ordered.fill(0.0);
            for (row, ordered) in ordered.chunks_exact_mut(terms).enumerate() {
                let from = group * w_strides[0] + (row0 + row) * w_strides[1];
                for tap in 0..view.taps() {
                    let at = from + view.w_at(tap);
                    for channel in 0..channels {
                        ordered[tap * plan.quads * 4 + channel] = self.w[at + channel * w_strides[2]];
                    }
                }
            }
            let panel_len = plan.steps * plan.a_step;
            let pack = Pack {
                digits: plan.digits,
                side: Side::A,
                from: ordered.as_ptr(),
                stride: terms,
                along_k: true,
                lines,
                terms,
                to: here.at(plan.packed + task * panel_len),
                panel_len,
                exponents: here.at(plan.row_exponents + 4 * task * LINES),
                known: true,
            };
            // SAFETY: the lines were written above, and the workspace has room for whole panels, each packed by one task. `Kernels::of`
            // gives instructions that the processor has.
            unsafe { (self.kernels.pack)(&pack) };
        });
    }

    /// Writes the boxes of some images.
    fn convert(&self, pool: &Pool, items: std::ops::Range<usize>) {
        let Work { plan, .. } = self;
        let Gather { view, channels, .. } = plan.gather;
        let plane = view.plane();
        let here = SharedBytes(self.scratch);
        let box_of = |x: usize| plan.boxes + 4 * x * plan.item_words;
        let len = plan.item_words.div_ceil(plan.quads);
        pool.run(items.len() * plan.quads, |task| {
            let (x, quad) = (task / plan.quads, task % plan.quads);
            let end = plan.item_words.min((quad + 1) * len);
            let at = (quad * len).min(end);
            // SAFETY: each task has a part of its own of an image's words.
            unsafe { here.at::<u32>(box_of(x) + 4 * at).write_bytes(0, end - at) };
        });
        let strips = plane.div_ceil(COLS);
        let panel_len = channels.div_ceil(STEP) * plan.b_step;
        let [by_group, by_word] = (self.kernels.word_strides)(plan.digits);
        run_in_slots(pool, items.len() * strips, |slot, task| {
            let (x, first) = (task / strips, task % strips * COLS);
            let item = items.start + x;
            let lines = COLS.min(plane - first);
            let slot = here.at::<u8>(plan.slots + slot * plan.slot_len);
            // SAFETY: the exponent of each image was written.
            let mut exponents = [unsafe { *here.at::<f32>(plan.item_exponents + 4 * item) }; COLS];
            let pack = Pack {
                digits: plan.digits,
                side: Side::B,
                from: self.source[item * channels * plane + first..].as_ptr(),
                stride: plane,
                along_k: false,
                lines,
                terms: channels,
                to: slot,
                panel_len,
                exponents: exponents.as_mut_ptr(),
                known: true,
            };
            // SAFETY: positions and channels are inside the source, and the slot, which belongs to this call, has room for whole panels.
            // `Kernels::of` gives instructions that the processor has.
            unsafe { (self.kernels.pack)(&pack) };
            let (mut segments, mut lanes) = (Vec::new(), Vec::new());
            for panel in 0..lines.div_ceil(LINES) {
                let lane = panel * LINES;
                let at = &self.sources[first + lane..first + lines.min(lane + LINES)];
                Plan::segments(at.len(), |l| at[l], &mut segments);
                let whole = segments.iter().find(|s| s.len == LINES).map(|s| s.at);
                lanes.clear();
                lanes.extend(at.iter().enumerate().filter_map(|(l, at)| Some((l, (*at)?))));
                for quad in 0..plan.quads {
                    for word in 0..plan.words {
                        let row =
                            quad / GROUPS * GROUPS * plan.words + quad % GROUPS * by_group + word * by_word;
                        let to = box_of(x) + 4 * (SLACK + (quad * plan.words + word) * plan.box_len);
                        // SAFETY: the row is one of the packed panel; what lies in the box is that of an element of the source, which one
                        // task converts.
                        unsafe {
                            let from = slot.add(panel * panel_len + row * 4 * LINES).cast::<u32>();
                            let to = here.at::<u32>(to);
                            match whole {
                                Some(at) => from.copy_to_nonoverlapping(to.add(at), LINES),
                                None => lanes.iter().for_each(|&(l, at)| *to.add(at) = *from.add(l)),
                            }
                        }
                    }
                }
            }
        });
    }

    /// Computes the results of some images, whose boxes are written.
    fn multiply(&self, pool: &Pool, items: std::ops::Range<usize>) {
        let Work { plan, .. } = self;
        let Gather { view, groups, rows, .. } = plan.gather;
        let (positions, out_plane, is_dense) = (view.positions(), view.out_plane(), view.is_dense());
        let here = SharedBytes(self.scratch);
        let out = SharedBytes(self.out.cast());
        let blocks = positions.div_ceil(COLS);
        let strides = (self.kernels.word_strides)(plan.digits);
        let (a_len, b_len) = (plan.steps * plan.a_step, plan.steps * plan.b_step);
        let panels_at_once = (MAX_BLOCK_A / a_len).max(1);
        run_in_slots(pool, items.len() * blocks, |slot, task| {
            let (x, first) = (task / blocks, task % blocks * COLS);
            let item = items.start + x;
            let (group, cols) = (item % groups, COLS.min(positions - first));
            let slot = here.at::<u8>(plan.slots + slot * plan.slot_len);
            // SAFETY: the box of each image was written, and so was its exponent.
            let (boxes, exponents) = unsafe {
                let words = here.at::<u32>(plan.boxes + 4 * x * plan.item_words);
                let exponent = *here.at::<f32>(plan.item_exponents + 4 * item);
                (std::slice::from_raw_parts(words, plan.item_words), [exponent; COLS])
            };
            let mut segments = Vec::new();
            for panel in 0..cols.div_ceil(LINES) {
                let lane = panel * LINES;
                Plan::segments(
                    LINES.min(cols - lane),
                    |l| Some(self.positions[first + lane + l]),
                    &mut segments,
                );
                // SAFETY: the slot belongs to this call and has room for the panels of a block.
                let panel = unsafe {
                    let to = slot.add(panel * b_len).cast::<[u32; LINES]>();
                    std::slice::from_raw_parts_mut(to, b_len / size_of::<[u32; LINES]>())
                };
                fill_panel(
                    self.simd,
                    boxes,
                    plan.box_len,
                    &self.taps,
                    plan.quads,
                    plan.words,
                    strides,
                    &segments,
                    panel,
                );
            }
            let results = out.at::<f32>(4 * item * rows * out_plane);
            let tile = slot.wrapping_add(MAX_STRIP * b_len).cast::<f32>();
            let (c, stride_c) =
                if is_dense { (results.wrapping_add(first), out_plane) } else { (tile, COLS) };
            for panel in (0..plan.row_panels).step_by(panels_at_once) {
                let row = panel * LINES;
                let block = Block {
                    digits: plan.digits,
                    steps: plan.steps,
                    a: here.at(plan.packed + (group * plan.row_panels + panel) * a_len),
                    b: slot,
                    a_len,
                    b_len,
                    a_exponents: here.at(plan.row_exponents + 4 * (group * plan.row_panels + panel) * LINES),
                    b_exponents: exponents.as_ptr(),
                    rows: (panels_at_once * LINES).min(rows - row),
                    cols,
                    c: c.wrapping_add(row * stride_c),
                    stride_c,
                    first: true,
                    bias: std::ptr::null(),
                };
                // SAFETY: the panels are packed, the rows and columns are inside the result or the slot's tile, and no two tasks have a
                // result in common. `Kernels::of` gives instructions that the processor has.
                unsafe { (self.kernels.multiply)(&block) };
            }
            let bias = self.bias.map(|bias| &bias[group * rows..(group + 1) * rows]);
            if is_dense {
                for (row, bias) in bias.into_iter().flatten().enumerate() {
                    // SAFETY: these results were written above.
                    let line = unsafe { std::slice::from_raw_parts_mut(c.add(row * stride_c), cols) };
                    line.iter_mut().for_each(|y| *y += bias);
                }
                return;
            }
            for col in 0..cols {
                let to = results.wrapping_add(plan.result_at(first + col));
                for row in 0..rows {
                    // SAFETY: the tile has these results, and the place is inside the result. This task alone writes it.
                    unsafe {
                        let y = *tile.add(row * COLS + col);
                        *to.add(row * out_plane) = bias.map_or(y, |bias| y + bias[row]);
                    }
                }
            }
        });
    }
}

/// The address of something that tasks share.
pub(super) struct SharedBytes(pub *mut u8);

// SAFETY: only an address; each use of it says why it is sound.
unsafe impl Sync for SharedBytes {}

impl SharedBytes {
    /// The address so many bytes on.
    pub fn at<T>(&self, bytes: usize) -> *mut T {
        self.0.wrapping_add(bytes).cast()
    }
}
