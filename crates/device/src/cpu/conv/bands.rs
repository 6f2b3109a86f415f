//! Bands of output lines, and boxes: the padded copies of the source that they read.

use super::Gather;
use super::view::{Axis, View, inner_range};
use dittograd_numerics::shape::MAX_RANK;

/// The source elements that the taps of an axis reach, counted from the lowest one at position 0.
#[derive(Clone, Copy)]
pub struct Reach {
    /// The axis.
    pub axis: Axis,
    /// The lowest element at position 0.
    pub low: isize,
    /// Elements from the lowest to the highest at one position.
    pub span: usize,
}

impl Reach {
    /// Of all taps of an axis.
    pub fn of(axis: Axis) -> Reach {
        let far = (axis.taps.max(1) as isize - 1) * axis.tap_step;
        Reach { axis, low: axis.first + far.min(0), span: far.unsigned_abs() + 1 }
    }

    /// Elements that any tap reaches for any position.
    pub fn extent(&self) -> usize {
        (self.axis.positions.max(1) - 1) * self.axis.step + self.span
    }

    /// How far a tap is above the lowest element.
    pub fn above(&self, tap: usize) -> usize {
        (self.axis.first + tap as isize * self.axis.tap_step - self.low).cast_unsigned()
    }

    /// Number of phases. A strided axis is copied as several phases, each with every `step`-th element.
    pub fn phases(&self) -> usize {
        self.axis.step.min(self.span)
    }

    /// How many elements a phase has beyond the number of positions.
    pub fn more(&self) -> usize {
        (self.span - 1) / self.axis.step
    }
}

/// Row-major coordinates of element `index`; `of` gives the size of an axis.
pub(super) fn digits(mut index: usize, axes: &[Reach], of: fn(&Axis) -> usize) -> [usize; MAX_RANK] {
    let mut out = [0; MAX_RANK];
    for (to, a) in out.iter_mut().zip(axes).rev() {
        *to = index % of(&a.axis);
        index /= of(&a.axis);
    }
    out
}

pub(super) fn reaches(view: &View) -> Vec<Reach> {
    view.axes().iter().map(|&a| Reach::of(a)).collect()
}

/// A convolution cut into bands of output lines. The source of a band is copied into a box, with its padding, so that
/// neighbouring outputs have neighbouring operands. The outputs of a band are then computed as one long line; outputs
/// between the lines of the box are computed too and dropped.
pub(super) struct Bands {
    pub gather: Gather,
    /// The outer axes, the axis across the lines of a band, and the axis along a line.
    pub around: Vec<Reach>,
    pub down: Reach,
    pub along: Reach,
    /// Lines and positions of a band.
    pub lines: usize,
    pub positions: usize,
    /// Floats of a line of a box, of a phase, and of a channel.
    pub pitch: usize,
    pub phase: usize,
    pub channel: usize,
    /// Where each (channel, tap) lies in the box.
    pub offsets: Vec<usize>,
}

impl Bands {
    /// Bands of at most `piece` positions along a line. A box has about `room` floats, or is a single line.
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
        // If no tap reaches a position, there is no box.
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

    /// Number of bands across the lines, and along a line.
    pub fn blocks(&self) -> [usize; 2] {
        let (down, along) = (&self.down.axis, &self.along.axis);
        [down.positions.div_ceil(self.lines), along.positions.div_ceil(self.positions)]
    }

    /// Calls `f` for each line of one channel of a band's box: the position of its first element in the channel, and
    /// the range of its elements that are inside the source.
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
}
