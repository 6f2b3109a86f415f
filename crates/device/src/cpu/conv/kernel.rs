//! The microkernels of convolutions: gathering lines of a view, tiles whose lanes are channels, and storing tiles.
#![allow(unsafe_code)]

use super::view::{Run, Seen};
use crate::cpu::LINE;
use crate::cpu::gemm::plan::STRIP;
use crate::cpu::vector::Vector;

/// Lines of a view: for each (channel, tap) from the first one on, the elements of all runs.
pub(crate) struct Lines {
    pub source: *const f32,
    /// Floats of a channel.
    pub plane: usize,
    pub runs: *const Run,
    pub count: usize,
    /// For each run, each tap's view of it.
    pub seen: *const Seen,
    pub taps: usize,
    pub channel: usize,
    pub tap: usize,
    pub lines: usize,
    /// Floats from one line to the next.
    pub pitch: usize,
    /// Distance of neighbouring positions in the source.
    pub step: usize,
}

/// Copies the lines of a view; see [`Lines`].
///
/// # Safety
/// The runs with what the taps see of them describe floats of `source`, and `to` points to as many floats as
/// the lines have. The processor has the instructions of `V`.
#[inline(always)]
pub(crate) unsafe fn gather<V: Vector>(l: &Lines, to: *mut f32) {
    let lanes = u32::MAX >> (32 - V::WIDTH);
    // SAFETY: all of this is upheld by the caller: only positions inside the source are read, and only columns of the run are
    // written.
    unsafe {
        for r in 0..l.count {
            let run = *l.runs.add(r);
            let seen = l.seen.add(r * l.taps);
            let mut tap = l.tap;
            let mut channel = l.source.wrapping_add(l.channel * l.plane + run.base);
            let mut to = to.add(run.col as usize);
            let all = u32::MAX >> (32 - run.len);
            for _ in 0..l.lines {
                let see = *seen.add(tap);
                let source = channel.wrapping_offset(see.at as isize);
                if l.step <= 2 {
                    let mut i = 0;
                    while i < run.len as usize {
                        let (from, inside) = (source.wrapping_add(i * l.step), see.inside >> i & lanes);
                        let x =
                            if l.step == 1 { V::load_mask(from, inside) } else { V::load_even(from, inside) };
                        x.store_mask(to.add(i), all >> i & lanes);
                        if tap + 1 == l.taps {
                            // The next columns usually follow in memory.
                            V::prefetch_far(from.wrapping_add(STRIP * l.step));
                        }
                        i += V::WIDTH;
                    }
                } else {
                    for i in 0..run.len as usize {
                        let inside = see.inside >> i & 1 != 0;
                        *to.add(i) = if inside { *source.wrapping_add(i * l.step) } else { 0.0 };
                    }
                }
                to = to.wrapping_add(l.pitch);
                tap += 1;
                if tap == l.taps {
                    tap = 0;
                    channel = channel.wrapping_add(l.plane);
                }
            }
        }
    }
}

/// A tile whose lanes are channels: `to[r][lane] = Σ x_r[offsets[k]] · w[k][lane]` for each position r, in increasing
/// k.
pub(crate) struct ChannelTile {
    pub kc: usize,
    pub offsets: *const usize,
    /// The first positions of the tile's two halves. The other positions of a half follow its first.
    pub x: [*const f32; 2],
    pub w: *const f32,
    pub to: *mut f32,
    /// Whether sums start at +0.0. Otherwise they are loaded from `to`.
    pub begin: bool,
    /// Cache lines to prefetch: the first, their distance, and how many.
    pub prefetch: *const f32,
    pub prefetch_step: usize,
    pub prefetches: usize,
}

/// Adds one term to the sums of a [`ChannelTile`]. A closure would be compiled without the instructions of `V`.
///
/// # Safety
/// The same as for [`channel_tile`], whose term is at `x` and `w`.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
unsafe fn channel_term<V: Vector, const MR: usize, const NV: usize>(
    acc: &mut [[V; NV]; MR],
    x: [*const f32; 2],
    offset: usize,
    w: *const f32,
) {
    let half = MR.div_ceil(2);
    // SAFETY: upheld by the caller.
    unsafe {
        let mut wv = [V::splat(0.0); NV];
        for v in 0..NV {
            wv[v] = V::load(w.add(v * V::WIDTH));
        }
        let x = [x[0].add(offset), x[1].add(offset)];
        for r in 0..MR {
            let x = V::splat(if r < half { *x[0].add(r) } else { *x[1].add(r - half) });
            for v in 0..NV {
                acc[r][v] = acc[r][v].fma(x, wv[v]);
            }
        }
    }
}

/// Computes a [`ChannelTile`] of MR positions and NV vectors of lanes.
///
/// # Safety
/// `ChannelTile` points to what it says. The processor has the instructions of `V`.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
pub(crate) unsafe fn channel_tile<V: Vector, const MR: usize, const NV: usize>(t: &ChannelTile) {
    // SAFETY: upheld by the caller.
    unsafe {
        let mut acc = [[V::splat(0.0); NV]; MR];
        if !t.begin {
            for r in 0..MR {
                for v in 0..NV {
                    acc[r][v] = V::load(t.to.add((r * NV + v) * V::WIDTH));
                }
            }
        }
        let (mut w, mut offsets, mut prefetch) = (t.w, t.offsets, t.prefetch);
        // Two terms at a time, with one prefetch as long as any are left.
        let prefetches = t.prefetches.min(t.kc / 2);
        for (turns, prefetching) in [(prefetches, true), (t.kc / 2 - prefetches, false)] {
            for _ in 0..turns {
                if prefetching {
                    V::prefetch_far(prefetch);
                    prefetch = prefetch.wrapping_add(t.prefetch_step);
                }
                channel_term::<V, MR, NV>(&mut acc, t.x, *offsets, w);
                channel_term::<V, MR, NV>(&mut acc, t.x, *offsets.add(1), w.wrapping_add(NV * V::WIDTH));
                offsets = offsets.wrapping_add(2);
                w = w.wrapping_add(2 * NV * V::WIDTH);
            }
        }
        if !t.kc.is_multiple_of(2) {
            channel_term::<V, MR, NV>(&mut acc, t.x, *offsets, w);
        }
        for r in 0..MR {
            for v in 0..NV {
                acc[r][v].store(t.to.add((r * NV + v) * V::WIDTH));
            }
        }
    }
}

/// Columns of a finished tile that are stored in the result.
pub(crate) struct StoreTile {
    pub from: *const f32,
    /// Floats from one row to the next.
    pub from_stride: usize,
    pub to: *mut f32,
    pub to_stride: usize,
    /// Floats from one column to the next.
    pub to_step: usize,
    pub rows: usize,
    pub cols: usize,
    /// Whether to add to the result instead of storing.
    pub add: bool,
    /// A bias for each row, added last, or null.
    pub bias: *const f32,
}

/// Stores columns of a tile; see [`StoreTile`].
///
/// # Safety
/// `StoreTile` points to what it says. The processor has the instructions of `V`.
#[inline(always)]
pub(crate) unsafe fn store_tile<V: Vector>(p: &StoreTile) {
    // SAFETY: upheld by the caller; last vectors are cut to what there is.
    unsafe {
        for r in 0..p.rows {
            let (from, to) = (p.from.add(r * p.from_stride), p.to.add(r * p.to_stride));
            let bias = if p.bias.is_null() { None } else { Some(*p.bias.add(r)) };
            if p.to_step > 2 {
                for j in 0..p.cols {
                    let (mut x, to) = (*from.add(j), to.add(j * p.to_step));
                    if p.add {
                        x += *to;
                    }
                    *to = bias.map_or(x, |bias| x + bias);
                }
                continue;
            }
            let mut j = 0;
            while j < p.cols {
                let n = (p.cols - j).min(V::WIDTH);
                let (to, bits) = (to.add(j * p.to_step), u32::MAX >> (32 - n));
                let mut x = V::load_part(from.add(j), n);
                if p.add {
                    x = x.add(if p.to_step == 1 { V::load_mask(to, bits) } else { V::load_even(to, bits) });
                }
                if let Some(bias) = bias {
                    x = x.add(V::splat(bias));
                }
                if p.to_step == 1 {
                    x.store_mask(to, bits);
                } else {
                    x.store_even(to, bits);
                }
                j += V::WIDTH;
            }
        }
    }
}

/// Sums of a [`ChannelTile`] that are transposed and stored in the result, where lanes are rows.
pub(crate) struct StoreTransposed {
    pub from: *const f32,
    /// Floats from one position to the next.
    pub from_stride: usize,
    /// Where the positions of the two halves go, and how many there are; together at most one vector.
    pub to: [*mut f32; 2],
    pub len: [usize; 2],
    /// Floats from one row to the next.
    pub to_stride: usize,
    pub rows: usize,
    /// As in [`StoreTile`].
    pub add: bool,
    pub bias: *const f32,
}

/// Transposes and stores sums; see [`StoreTransposed`].
///
/// # Safety
/// `StoreTransposed` points to what it says, the rows filled up to whole vectors. The processor has the instructions of `V`.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
pub(crate) unsafe fn store_transposed<V: Vector>(p: &StoreTransposed) {
    let [a, b] = p.len;
    let bits = [u32::MAX >> (32 - a), (1 << (a + b)) - (1 << a)];
    let mut lines = [p.from; LINE];
    for (j, line) in lines.iter_mut().enumerate() {
        *line = p.from.wrapping_add(j.min(a + b - 1) * p.from_stride);
    }
    // SAFETY: upheld by the caller; only positions and rows that exist are written.
    unsafe {
        for first in (0..p.rows).step_by(V::WIDTH) {
            for g in (0..V::WIDTH).step_by(4) {
                let squares = V::load_transposed(&lines, first + g);
                for (i, x) in squares.into_iter().enumerate().take((p.rows - first).saturating_sub(g)) {
                    let row = first + g + i;
                    let to = p.to.map(|to| to.wrapping_add(row * p.to_stride));
                    for (to, bits) in [(to[0], bits[0]), (to[1].wrapping_sub(a), bits[1])] {
                        let mut x = x;
                        if p.add {
                            x = x.add(V::load_mask(to, bits));
                        }
                        if !p.bias.is_null() {
                            x = x.add(V::splat(*p.bias.add(row)));
                        }
                        x.store_mask(to, bits);
                        if b == 0 {
                            break;
                        }
                    }
                }
            }
        }
    }
}

/// Adds a bias to each of `rows` rows of `cols` floats, `stride` apart. It is not part of the tile's kernel: there, the
/// last loops would no longer be unrolled, and the sums would not stay in registers.
///
/// # Safety
/// `to` points to such rows and `bias` to a float for each. The processor has the instructions of `V`.
#[inline(always)]
pub(crate) unsafe fn add_bias<V: Vector>(
    to: *mut f32,
    stride: usize,
    rows: usize,
    cols: usize,
    bias: *const f32,
) {
    // SAFETY: upheld by the caller; last vectors are cut to what there is.
    unsafe {
        for r in 0..rows {
            let (to, bias) = (to.add(r * stride), V::splat(*bias.add(r)));
            let mut j = 0;
            while j < cols {
                let n = (cols - j).min(V::WIDTH);
                V::load_part(to.add(j), n).add(bias).store_part(to.add(j), n);
                j += V::WIDTH;
            }
        }
    }
}
