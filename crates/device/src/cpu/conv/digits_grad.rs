//! Gradients of convolutions' kernels in digits: modes `fast` and `turbo`. Images are cut into runs, which share scales: one for each
//! channel of either operand. The gradient is computed transposed, with (channel, tap) as rows: these are gathered from the source, and the
//! kernels pack rows faster than columns.
#![allow(unsafe_code)]

use super::KernelGrad;
use super::bands::{Reach, digits as coordinates, reaches};
use super::digits::{Parts, SharedBytes, largest, run_in_slots};
use super::view::inner_range;
use crate::cpu::LINE;
use crate::cpu::gemm::digits::{Block, Kernels, LINES, Pack, STEP, Side, exponent_of, most_step_len};
use crate::cpu::simd::Simd;
use crate::cpu::threads::Pool;
use dittograd_numerics::digits::{Digits, conv_run};
use std::ops::Range;

/// A gradient in digits, and where everything lies in the workspace, in bytes.
struct Plan {
    grad: KernelGrad,
    digits: Digits,
    axes: Vec<Reach>,
    /// Images of a run, and steps of an image.
    run: usize,
    steps: usize,
    a_step: usize,
    b_step: usize,
    row_panels: usize,
    /// Exponents of the channels of `g`, in whole panels of each group, and of the source.
    g_exponents: usize,
    source_exponents: usize,
    /// Packed `g` of a run.
    packed: usize,
    /// Of each thread: a packed panel, the lines that it is packed from, and results.
    slots: usize,
    slot_len: usize,
    lines: usize,
    tile: usize,
    floats: usize,
}

impl Plan {
    fn new(grad: &KernelGrad, digits: Digits, threads: usize, a_step: usize, b_step: usize) -> Plan {
        let KernelGrad { view, batch, groups, rows, channels } = *grad;
        let positions = view.positions();
        let (run, steps) = (conv_run(positions).min(batch.max(1)), positions.div_ceil(STEP));
        let row_panels = rows.div_ceil(LINES);
        let mut parts = Parts::new();
        let g_exponents = parts.take(4 * groups * row_panels * LINES);
        let source_exponents = parts.take(4 * groups * channels);
        let packed = parts.take(groups * row_panels * run * steps * b_step);
        let mut of_slot = Parts::new();
        of_slot.take(run * steps * a_step);
        let lines = of_slot.take(4 * LINES * positions);
        let tile = of_slot.take(4 * LINES * rows);
        let slot_len = of_slot.len();
        let slots = parts.take(threads * slot_len);
        let (axes, floats) = (reaches(&view), parts.floats());
        Plan {
            grad: *grad,
            digits,
            axes,
            run,
            steps,
            a_step,
            b_step,
            row_panels,
            g_exponents,
            source_exponents,
            packed,
            slots,
            slot_len,
            lines,
            tile,
            floats,
        }
    }

    /// What a tap reads for the positions of each output line.
    fn reads(&self, tap: usize) -> Vec<Read> {
        let Some((inner, outer)) = self.axes.split_last() else { return Vec::new() };
        let taps = coordinates(tap, &self.axes, |a| a.taps);
        let (inner, t) = (inner.axis, taps[outer.len()]);
        let x = inner.first + t as isize * inner.tap_step;
        let (from, end) = inner_range(x, inner.step, inner.source, inner.positions);
        let lines = outer.iter().map(|a| a.axis.positions).product();
        let read = |line| {
            let at = coordinates(line, outer, |a| a.positions);
            let (mut base, mut inside) = (0isize, from < end);
            for ((a, p), t) in outer.iter().zip(at).zip(taps) {
                let y = (p * a.axis.step) as isize + a.axis.first + t as isize * a.axis.tap_step;
                inside &= y >= 0 && y < a.axis.source as isize;
                base = base * a.axis.source as isize + y;
            }
            if !inside {
                return Read::default();
            }
            let at = base * inner.source as isize + x + (from * inner.step) as isize;
            Read { at: at.cast_unsigned(), from, end }
        };
        (0..lines).map(read).collect()
    }
}

/// Positions `from..end` of an output line, which are read from element `at` of a channel on. The others are zeros.
#[derive(Clone, Copy, Default)]
struct Read {
    at: usize,
    from: usize,
    end: usize,
}

/// Gathers what a tap reads of a channel, `width` positions of each line.
fn gather(reads: &[Read], width: usize, step: usize, channel: &[f32], to: &mut [f32]) {
    for (read, to) in reads.iter().zip(to.chunks_exact_mut(width)) {
        let Read { at, from, end } = *read;
        to[..from].fill(0.0);
        to[end..].fill(0.0);
        let (to, channel) = (&mut to[from..end], &channel[at..]);
        match step {
            1 => to.copy_from_slice(&channel[..end - from]),
            step => to.iter_mut().zip(channel.iter().step_by(step)).for_each(|(to, x)| *to = *x),
        }
    }
}

impl KernelGrad {
    /// Number of floats of workspace that [`KernelGrad::run_digits`] needs with a pool of `threads`, at any SIMD level.
    pub fn digits_scratch_len(&self, digits: Digits, threads: usize) -> usize {
        let (a_step, b_step) = (most_step_len(digits, Side::A), most_step_len(digits, Side::B));
        Plan::new(self, digits, threads, a_step, b_step).floats
    }

    /// [`KernelGrad::run`] in digits.
    ///
    /// # Panics
    /// If a slice does not have the length that the sizes give.
    #[allow(clippy::too_many_arguments)]
    pub fn run_digits(
        &self,
        digits: Digits,
        pool: &Pool,
        simd: Simd,
        g: &[f32],
        source: &[f32],
        out: &mut [f32],
        scratch: &mut [f32],
    ) {
        self.check_lengths(g, source, out);
        if out.is_empty() {
            return;
        }
        if self.batch * self.view.positions() == 0 {
            out.fill(0.0);
            return;
        }
        let kernels = Kernels::of(simd);
        let (a_step, b_step) = ((kernels.step_len)(digits, Side::A), (kernels.step_len)(digits, Side::B));
        let plan = Plan::new(self, digits, pool.threads(), a_step, b_step);
        let skip = scratch.as_ptr().align_offset(4 * LINE).min(LINE);
        assert!(scratch.len() >= plan.floats && scratch.len() >= skip, "length of scratch");
        let run = plan.run;
        let work = Work {
            reads: (0..self.view.taps()).map(|tap| plan.reads(tap)).collect(),
            plan,
            kernels,
            simd,
            g,
            source,
            out: SharedBytes(out.as_mut_ptr().cast()),
            scratch: SharedBytes(scratch[skip..].as_mut_ptr().cast()),
        };
        for first in (0..self.batch).step_by(run) {
            let images = first..self.batch.min(first + run);
            work.exponents(pool, images.clone());
            work.pack(pool, images.clone());
            work.multiply(pool, images);
        }
    }
}

/// A gradient in progress.
struct Work<'a> {
    plan: Plan,
    /// Of each tap.
    reads: Vec<Vec<Read>>,
    kernels: &'static Kernels,
    simd: Simd,
    g: &'a [f32],
    source: &'a [f32],
    out: SharedBytes,
    scratch: SharedBytes,
}

impl Work<'_> {
    /// The exponents of all channels in a run of images.
    fn exponents(&self, pool: &Pool, images: Range<usize>) {
        let Work { plan, simd, g, source, scratch, .. } = self;
        let KernelGrad { view, groups, rows, channels, .. } = plan.grad;
        let of_channel = |x: &[f32], channel: usize, channels: usize, plane: usize| {
            let line = |image: usize| {
                let at = (image * channels + channel) * plane;
                largest(*simd, &x[at..at + plane])
            };
            exponent_of(images.clone().fold(0, |max, image| max.max(line(image))))
        };
        let (of_g, of_source) = (groups * rows, groups * channels);
        pool.run(of_g + of_source, |channel| match channel < of_g {
            true => {
                let e = of_channel(g, channel, of_g, view.positions());
                let at = channel / rows * plan.row_panels * LINES + channel % rows;
                // SAFETY: there is a float for each channel.
                unsafe { *scratch.at::<f32>(plan.g_exponents + 4 * at) = e };
            }
            false => {
                let channel = channel - of_g;
                let e = of_channel(source, channel, of_source, view.plane());
                // SAFETY: there is a float for each channel.
                unsafe { *scratch.at::<f32>(plan.source_exponents + 4 * channel) = e };
            }
        });
    }

    /// Packs `g` of a run of images, each image in whole steps.
    fn pack(&self, pool: &Pool, images: Range<usize>) {
        let Work { plan, scratch, .. } = self;
        let KernelGrad { view, groups, rows, .. } = plan.grad;
        let positions = view.positions();
        let image_len = plan.steps * plan.b_step;
        pool.run(groups * plan.row_panels * images.len(), |task| {
            let (panel, x) = (task / images.len(), task % images.len());
            let (group, row) = (panel / plan.row_panels, panel % plan.row_panels * LINES);
            let channel = ((images.start + x) * groups + group) * rows + row;
            let exponents = scratch.at::<f32>(plan.g_exponents + 4 * panel * LINES);
            let lines = LINES.min(rows - row);
            // SAFETY: there are exponents of whole panels, those of channels were written.
            let mut exponents = unsafe { *exponents.cast::<[f32; LINES]>() };
            exponents[lines..].fill(0.0);
            let pack = Pack {
                digits: plan.digits,
                side: Side::B,
                from: self.g[channel * positions..].as_ptr(),
                stride: positions,
                along_k: true,
                lines,
                terms: positions,
                to: scratch.at(plan.packed + (panel * images.len() + x) * image_len),
                panel_len: image_len,
                exponents: exponents.as_mut_ptr(),
                known: true,
            };
            // SAFETY: the lines are inside `g`, whose length was checked, and the workspace has room for all panels of a run, each image of
            // which one task packs. `Kernels::of` gives instructions that the processor has.
            unsafe { (self.kernels.pack)(&pack) };
        });
    }

    /// Adds the gradient of a run of images, whose `g` is packed.
    fn multiply(&self, pool: &Pool, images: Range<usize>) {
        let Work { plan, scratch, out, .. } = self;
        let KernelGrad { view, groups, rows, channels, .. } = plan.grad;
        let (plane, positions, taps) = (view.plane(), view.positions(), view.taps());
        let inner = view.axes()[view.axes().len() - 1];
        let (width, step) = (inner.positions, inner.step);
        let columns = channels * taps;
        let panels = columns.div_ceil(LINES);
        let steps = images.len() * plan.steps;
        let (a_len, b_len) = (steps * plan.a_step, steps * plan.b_step);
        run_in_slots(pool, groups * panels, |slot, task| {
            let (group, column) = (task / panels, task % panels * LINES);
            let lines = LINES.min(columns - column);
            let slot = scratch.at::<u8>(plan.slots + slot * plan.slot_len);
            let mut exponents = [0.0; LINES];
            for (line, e) in exponents.iter_mut().enumerate().take(lines) {
                let channel = group * channels + (column + line) / taps;
                // SAFETY: the exponents of all channels were written.
                *e = unsafe { *scratch.at::<f32>(plan.source_exponents + 4 * channel) };
            }
            // SAFETY: the slot belongs to this call and has room for these lines.
            let gathered = unsafe {
                let from = slot.add(plan.lines).cast::<f32>();
                std::slice::from_raw_parts_mut(from, lines * positions)
            };
            let image_len = plan.steps * plan.a_step;
            for (x, image) in images.clone().enumerate() {
                for (line, to) in gathered.chunks_exact_mut(positions).enumerate() {
                    let (channel, tap) = ((column + line) / taps, (column + line) % taps);
                    let at = ((image * groups + group) * channels + channel) * plane;
                    gather(&self.reads[tap], width, step, &self.source[at..at + plane], to);
                }
                let pack = Pack {
                    digits: plan.digits,
                    side: Side::A,
                    from: gathered.as_ptr(),
                    stride: positions,
                    along_k: true,
                    lines,
                    terms: positions,
                    to: slot.wrapping_add(x * image_len),
                    panel_len: image_len,
                    exponents: exponents.as_mut_ptr(),
                    known: true,
                };
                // SAFETY: the lines were written above, and the slot has room for a panel of a run. `Kernels::of` gives instructions that the
                // processor has.
                unsafe { (self.kernels.pack)(&pack) };
            }
            let tile = slot.wrapping_add(plan.tile).cast::<f32>();
            let block = Block {
                digits: plan.digits,
                steps,
                a: slot,
                b: scratch.at(plan.packed + group * plan.row_panels * b_len),
                a_len,
                b_len,
                a_exponents: exponents.as_ptr(),
                b_exponents: scratch.at(plan.g_exponents + 4 * group * plan.row_panels * LINES),
                rows: lines,
                cols: rows,
                c: tile,
                stride_c: rows,
                first: true,
                bias: std::ptr::null(),
            };
            // SAFETY: the panels are packed, and the slot's tile has room for the results. `Kernels::of` gives instructions that the processor
            // has.
            unsafe { (self.kernels.multiply)(&block) };
            for row in 0..rows {
                for line in 0..lines {
                    let at = (group * rows + row) * columns + column + line;
                    // SAFETY: the tile has this result, and the place is inside the gradient. This task alone reads and writes it.
                    unsafe {
                        let (to, y) = (out.at::<f32>(4 * at), *tile.add(line * rows + row));
                        *to = if images.start == 0 { y } else { *to + y };
                    }
                }
            }
        });
    }
}
