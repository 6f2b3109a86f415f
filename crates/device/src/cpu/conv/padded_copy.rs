//! Copies lines of the source into a box, with zeros for padding.
#![allow(unsafe_code)]

use super::kernel::Lines;
use super::view::{RUN, Run, Seen};
use crate::cpu::kernels::Kernels;
use std::ops::Range;

/// Lines of a channel that are copied into a box, and which of their elements are inside the source.
#[derive(Default)]
pub(super) struct PaddedCopy {
    runs: Vec<Run>,
    seen: Vec<Seen>,
    lines: usize,
    pitch: usize,
    step: usize,
    next: usize,
}

impl PaddedCopy {
    /// Starts over, for `lines` lines of `pitch` elements, which are `step` apart in the source.
    pub fn begin(&mut self, lines: usize, pitch: usize, step: usize) {
        (self.lines, self.pitch, self.step, self.next) = (lines, pitch, step, 0);
        let count = pitch.div_ceil(RUN);
        let cut = |r: usize| r * pitch / count;
        self.runs.clear();
        let run = |r| Run { base: 0, out: 0, col: cut(r) as u32, len: (cut(r + 1) - cut(r)) as u32 };
        self.runs.extend((0..count).map(run));
        self.seen.clear();
        self.seen.resize(count * lines, Seen { at: 0, inside: 0 });
    }

    /// Adds a line: where its first element lies in the channel, and which elements are inside the source.
    pub fn line(&mut self, at: isize, inside: Range<usize>) {
        for (r, run) in self.runs.iter().enumerate() {
            let (col, end) = (run.col as usize, (run.col + run.len) as usize);
            let (from, to) = (inside.start.clamp(col, end), inside.end.clamp(col, end));
            if from < to {
                let at = (at + (col * self.step) as isize) as i32;
                let inside = (u32::MAX >> (32 - (to - from))) << (from - col);
                self.seen[r * self.lines + self.next] = Seen { at, inside };
            }
        }
        self.next += 1;
    }

    /// Copies these lines of `channels` channels, which are `plane` apart.
    ///
    /// # Safety
    /// Elements inside the source are in the channels at `source`, and `to` has room for all lines.
    pub unsafe fn run(
        &self,
        kernels: &Kernels,
        source: *const f32,
        plane: usize,
        channels: usize,
        to: *mut f32,
    ) {
        let lines = Lines {
            source,
            plane,
            runs: self.runs.as_ptr(),
            count: self.runs.len(),
            seen: self.seen.as_ptr(),
            taps: self.lines,
            channel: 0,
            tap: 0,
            lines: channels * self.lines,
            pitch: self.pitch,
            step: self.step,
        };
        // SAFETY: upheld by the caller; the processor has the SIMD level of the kernels.
        unsafe { (kernels.gather)(&lines, to) };
    }
}
