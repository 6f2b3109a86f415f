//! Tiles of positions, for kernels whose lanes are channels; and prefetching during their computation.

use crate::cpu::LINE;
use crate::cpu::gemm::plan::{MAX_MR, PANEL};
use dittograd_numerics::K_CHUNK;

/// Tiles that are computed one after another over the same run of terms, while the packed kernel of the run stays in
/// the L1 cache.
pub(super) const TILES_PER_RUN: usize = 16;
/// Room for the sums of these tiles.
pub(super) const SUMS_LEN: usize = TILES_PER_RUN * MAX_MR * PANEL;
/// The most floats of the boxes of a task that has all boxes (then no other task reads its rows of the kernel), and of
/// the boxes of a block of a gradient.
pub(super) const MAX_TASK_BOXES_LEN: usize = 272 * K_CHUNK;

/// Neighbouring positions: where the first is in the boxes and in the result, and how many there are.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub at: usize,
    pub out: usize,
    pub len: usize,
}

/// A tile of one or two pieces. The second half is as long as the first or one position shorter.
#[derive(Clone, Copy, Default)]
pub(super) struct PositionTile {
    pub at: [usize; 2],
    pub out: [usize; 2],
    pub len: [usize; 2],
}

impl PositionTile {
    /// The next tile: the first piece, with the second if it fits; and the remaining pieces. With `order`, pieces stay
    /// in order; otherwise the longer one comes first.
    pub fn next(pieces: &[Piece], order: bool) -> Option<(PositionTile, &[Piece])> {
        let (&a, rest) = pieces.split_first()?;
        Some(match rest.split_first() {
            Some((&b, rest)) if a.len.abs_diff(b.len) < 2 && !(order && a.len < b.len) => {
                let (a, b) = if a.len < b.len { (b, a) } else { (a, b) };
                (PositionTile { at: [a.at, b.at], out: [a.out, b.out], len: [a.len, b.len] }, rest)
            }
            _ => {
                let half = a.len.div_ceil(2);
                let out = [a.out, a.out + half];
                (PositionTile { at: [a.at, a.at + half], out, len: [half, a.len - half] }, rest)
            }
        })
    }
}

/// Memory to prefetch a few cache lines at a time: `count` stretches of `lines` lines, `stride` apart.
pub(super) struct Prefetch {
    at: *const f32,
    lines: usize,
    stride: usize,
    count: usize,
    some: usize,
    done: usize,
}

impl Prefetch {
    /// Stretches of `floats` floats that are prefetched in `turns` turns.
    pub fn new(at: *const f32, floats: usize, stride: usize, count: usize, turns: usize) -> Prefetch {
        let lines = floats.div_ceil(LINE) + 1;
        Prefetch { at, lines, stride, count, some: (lines * count).div_ceil(turns.max(1)), done: 0 }
    }

    /// The lines of the next turn: the first, their distance, and how many.
    pub fn take(&mut self) -> (*const f32, usize, usize) {
        let (stretch, line) = (self.done / self.lines, self.done % self.lines);
        let some = if stretch < self.count { self.some.min(self.lines - line) } else { 0 };
        self.done += some;
        (self.at.wrapping_add(stretch * self.stride + line * LINE), LINE, some)
    }
}
