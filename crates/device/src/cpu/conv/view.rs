//! Views: which source element a tap reads at a position; and runs of neighbouring positions, which kernels work on.
#![allow(unsafe_code)]

use dittograd_numerics::shape::MAX_RANK;

/// The most spatial axes: two axes of a shape are the batch and the channels.
pub const MAX_AXES: usize = MAX_RANK - 2;

/// One spatial axis of a view: position `p` and tap `t` read element `p * step + first + t * tap_step` of the source,
/// or a zero outside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Axis {
    /// Positions.
    pub positions: usize,
    /// Elements of the source from one position to the next.
    pub step: usize,
    /// Taps.
    pub taps: usize,
    /// The source element that tap 0 reads at position 0.
    pub first: isize,
    /// Elements of the source from one tap to the next.
    pub tap_step: isize,
    /// Size of the source.
    pub source: usize,
    /// The result position of position 0.
    pub out_first: usize,
    /// Elements of the result from one position to the next.
    pub out_step: usize,
    /// Size of the result.
    pub out: usize,
    /// The kernel position of tap 0.
    pub w_first: usize,
    /// Elements of the kernel from one tap to the next.
    pub w_step: usize,
    /// Size of the kernel.
    pub w: usize,
}

impl Axis {
    /// An axis of one element: the neutral axis.
    pub const ONE: Axis = Axis {
        positions: 1,
        step: 1,
        taps: 1,
        first: 0,
        tap_step: 1,
        source: 1,
        out_first: 0,
        out_step: 1,
        out: 1,
        w_first: 0,
        w_step: 1,
        w: 1,
    };

    /// Whether the result has the source's layout along this axis, so that it can be merged with a similar neighbour.
    pub(crate) fn is_plain(&self) -> bool {
        let n = self.positions;
        *self == Axis { positions: n, source: n, out: n, tap_step: self.tap_step, ..Axis::ONE }
    }
}

/// What a convolution reads: positions and taps along each spatial axis, outermost first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View {
    axes: [Axis; MAX_AXES],
    rank: usize,
}

impl View {
    /// A view with these axes. Neighbours are merged where possible.
    pub fn new(axes: impl IntoIterator<Item = Axis>) -> View {
        let mut view = View { axes: [Axis::ONE; MAX_AXES], rank: 0 };
        for axis in axes.into_iter().take(MAX_AXES) {
            match view.rank.checked_sub(1).map(|last| &mut view.axes[last]) {
                Some(last) if last.is_plain() && axis.is_plain() => {
                    let n = last.positions * axis.positions;
                    *last = Axis { positions: n, source: n, out: n, ..Axis::ONE };
                }
                _ => {
                    view.axes[view.rank] = axis;
                    view.rank += 1;
                }
            }
        }
        view.rank = view.rank.max(1);
        view
    }

    /// The axes.
    pub fn axes(&self) -> &[Axis] {
        &self.axes[..self.rank]
    }

    /// Positions in all.
    pub fn positions(&self) -> usize {
        self.axes().iter().map(|a| a.positions).product()
    }

    /// Taps in all.
    pub fn taps(&self) -> usize {
        self.axes().iter().map(|a| a.taps).product()
    }

    /// Elements of a channel of the source.
    pub fn plane(&self) -> usize {
        self.axes().iter().map(|a| a.source).product()
    }

    /// Elements of a channel of the result.
    pub fn out_plane(&self) -> usize {
        self.axes().iter().map(|a| a.out).product()
    }

    /// Elements of the kernel of one pair of channels.
    pub fn w_plane(&self) -> usize {
        self.axes().iter().map(|a| a.w).product()
    }

    /// Whether the positions are the whole result, in order.
    pub fn is_dense(&self) -> bool {
        self.axes()
            .iter()
            .all(|a| a.out_first == 0 && (a.out_step == 1 || a.out == 1) && a.out == a.positions)
    }

    /// Whether the taps are the whole kernel, in order.
    pub(crate) fn has_all_taps(&self) -> bool {
        self.axes().iter().all(|a| a.w_first == 0 && (a.w_step == 1 || a.w == 1) && a.w == a.taps)
    }

    /// Where a tap lies in the kernel.
    pub(crate) fn w_at(&self, mut tap: usize) -> usize {
        let (mut at, mut stride) = (0, 1);
        for a in self.axes().iter().rev() {
            at += (a.w_first + tap % a.taps * a.w_step) * stride;
            tap /= a.taps;
            stride *= a.w;
        }
        at
    }

    /// The most runs that `cols` neighbouring positions can lie in.
    pub(crate) fn most_runs(&self, cols: usize) -> usize {
        let inner = self.axes[self.rank - 1].positions.max(1);
        ((cols - 1) / inner + 2 + cols / RUN).min(cols)
    }

    /// Writes the runs of positions `from..to` and each tap's view of them, and returns the number of runs. Positions
    /// are counted over all images, which are `image` apart in the source and `out_image` in the result; `base` is the
    /// first channel of the group.
    ///
    /// # Safety
    /// `runs` has room for `most_runs(to - from)` entries, `seen` for as many times the number of taps.
    #[allow(clippy::too_many_arguments)]
    pub(crate) unsafe fn runs(
        &self,
        from: usize,
        to: usize,
        base: usize,
        image: usize,
        out_image: usize,
        runs: *mut Run,
        seen: *mut Seen,
    ) -> usize {
        let axes = self.axes();
        let inner = axes[axes.len() - 1];
        let outer = &axes[..axes.len() - 1];
        let taps = self.taps();
        let (mut count, mut at, mut seen_at) = (0, from, seen);
        let mut place = [0; MAX_AXES];
        let mut rest = from;
        for (p, a) in place.iter_mut().zip(axes).rev() {
            *p = rest % a.positions;
            rest /= a.positions;
        }
        let mut n = rest;
        while at < to {
            let p0 = place[axes.len() - 1];
            let len = (inner.positions - p0).min(to - at).min(RUN);
            let mut out = 0;
            for (p, a) in place.iter().zip(axes) {
                out = out * a.out + a.out_first + p * a.out_step;
            }
            let run = Run {
                base: base + n * image,
                out: n * out_image + out,
                col: (at - from) as u32,
                len: len as u32,
            };
            // SAFETY: the caller has room.
            unsafe { *runs.add(count) = run };
            // Loop over all taps; the innermost axis has its own loop.
            let mut tap = [0; MAX_AXES];
            for _ in 0..taps / inner.taps {
                let (mut line, mut inside) = (0isize, true);
                for ((p, a), t) in place.iter().zip(outer).zip(tap) {
                    let x = (p * a.step) as isize + a.first + t as isize * a.tap_step;
                    inside &= x >= 0 && x < a.source as isize;
                    line = line * a.source as isize + x;
                }
                let mut x = (p0 * inner.step) as isize + inner.first;
                for _ in 0..inner.taps {
                    let mut see = Seen { at: 0, inside: 0 };
                    let (from, end) = inner_range(x, inner.step, inner.source, len);
                    if inside && from < end {
                        see.at = (line * inner.source as isize + x) as i32;
                        see.inside = (u32::MAX >> (32 - (end - from))) << from;
                    }
                    // SAFETY: the caller has room for `taps` entries a run.
                    unsafe { *seen_at = see };
                    seen_at = seen_at.wrapping_add(1);
                    x += inner.tap_step;
                }
                for (t, a) in tap.iter_mut().zip(outer).rev() {
                    *t += 1;
                    if *t < a.taps {
                        break;
                    }
                    *t = 0;
                }
            }
            count += 1;
            at += len;
            place[axes.len() - 1] += len;
            for i in (0..axes.len()).rev() {
                if place[i] < axes[i].positions {
                    break;
                }
                place[i] = 0;
                match i.checked_sub(1) {
                    Some(i) => place[i] += 1,
                    None => n += 1,
                }
            }
        }
        count
    }
}

/// A run of neighbouring positions along the innermost axis of a view: columns of a panel, or terms.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    /// Where the first channel of its image and group starts in the source.
    pub base: usize,
    /// Where its first position lies in the result, relative to the start of a channel.
    pub out: usize,
    /// Its first column, and how many there are, at most `RUN`.
    pub col: u32,
    pub len: u32,
}

/// The most positions of a run: the bits of [`Seen::inside`].
pub(crate) const RUN: usize = 32;

/// One tap's view of a run: the source position of the run's first element, relative to the start of a channel, and a
/// mask of the positions inside the source. The others are zeros.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    pub at: i32,
    pub inside: u32,
}

/// Which of `len` positions, `step` apart from `x` on, lie in `0..size`.
pub(crate) fn inner_range(x: isize, step: usize, size: usize, len: usize) -> (usize, usize) {
    if x >= size as isize {
        return (0, 0);
    }
    let (from, end) = if step == 1 {
        ((-x).max(0) as usize, (size as isize - x) as usize)
    } else {
        ((-x).max(0).cast_unsigned().div_ceil(step), (size as isize - x).cast_unsigned().div_ceil(step))
    };
    (from.min(len), end.min(len))
}
