//! Grid sampling on the CPU: the elements and weights of a block of places are found once and used for all channels. If there
//! are several channels, they lie in *lanes*: [`LANES`] of them one after another for each element of an image, or place.

use super::grid::Sizes;
use super::places::{GridMode, Sampling};
use crate::CpuRun;
use crate::pointwise::expression::Scratch;
use dittograd_device::cpu::lanes::transpose_lines;
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_device::cpu::threads::{Band, Pool};
use std::ops::Range;

/// Marks an element beyond the image.
const NOWHERE: u32 = u32::MAX;

/// Channels that are computed together.
const LANES: usize = 16;

/// Places whose elements are found at once.
const BLOCK: usize = 256;

/// The fewest elements of the value of a task.
const MIN_WORDS_PER_TASK: usize = 8 * 1024;

/// Goes on from elements of the axes before axis `a` to elements of the image up to this axis, `W` for each of them.
#[inline(always)]
fn along_axis<const W: usize>(
    sampling: &Sampling,
    [a, axes]: [usize; 2],
    order: usize,
    size: usize,
    grid: &[f32],
    found: &mut [u32],
    weights: &mut [f32],
) {
    let taps = W.pow(axes as u32);
    let places = found.chunks_exact_mut(taps).zip(weights.chunks_exact_mut(taps));
    for (at, (found, weights)) in grid.chunks_exact(axes).zip(places) {
        let (c, slope) = sampling.place(at[axes - 1 - a], size as f32);
        let (base, t) = sampling.base(c);
        let along = sampling.weights(order, t, slope);
        let base = Sampling::first(f64::from(base));
        let mut elements = [NOWHERE; W];
        for (k, element) in elements.iter_mut().enumerate() {
            if let Some(i) = sampling.element(base + k as i64, size) {
                *element = i as u32;
            }
        }
        if a == 0 {
            found[..W].copy_from_slice(&elements);
            weights[..W].copy_from_slice(&along[..W]);
            continue;
        }
        // From the last element back, since each makes room for as many as there are along the axis.
        for e in (0..W.pow(a as u32)).rev() {
            let (offset, w) = (found[e], weights[e]);
            for k in (0..W).rev() {
                // Without a branch, since it could not be predicted.
                let inside = (offset != NOWHERE) & (elements[k] != NOWHERE);
                let i = offset.wrapping_mul(size as u32).wrapping_add(elements[k]);
                found[e * W + k] = if inside { i } else { NOWHERE };
                weights[e * W + k] = w * along[k];
            }
        }
    }
}

/// The elements of places and their weights, an axis at a time. The compiler knows what is constant in each of the calls.
#[inline(always)]
fn along_axes<const W: usize>(
    mode: GridMode,
    sampling: &Sampling,
    image: &[usize],
    more: Option<usize>,
    grid: &[f32],
    found: &mut [u32],
    weights: &mut [f32],
) {
    let known = Sampling { mode, orders: Vec::new(), ..*sampling };
    for (a, &size) in image.iter().enumerate() {
        let order = sampling.orders[a] + usize::from(more == Some(a));
        match [a, image.len()] {
            [0, 2] => along_axis::<W>(&known, [0, 2], order, size, grid, found, weights),
            [1, 2] => along_axis::<W>(&known, [1, 2], order, size, grid, found, weights),
            [0, _] => along_axis::<W>(&known, [0, 3], order, size, grid, found, weights),
            [1, _] => along_axis::<W>(&known, [1, 3], order, size, grid, found, weights),
            _ => along_axis::<W>(&known, [2, 3], order, size, grid, found, weights),
        }
    }
}

simd_fn! {
    /// The elements of each place, place by place, and their weights. `more` is an axis that is differentiated once more.
    fn elements(
        simd,
        sampling: &Sampling,
        image: &[usize],
        more: Option<usize>,
        grid: &[f32],
        found: &mut [u32],
        weights: &mut [f32],
    ) {
        let mode = sampling.mode;
        match mode {
            GridMode::Nearest => along_axes::<1>(mode, sampling, image, more, grid, found, weights),
            GridMode::Bilinear => along_axes::<2>(mode, sampling, image, more, grid, found, weights),
            GridMode::Bicubic => along_axes::<4>(mode, sampling, image, more, grid, found, weights),
        }
    }
}

/// The number of lanes.
fn lanes(sizes: &Sizes) -> usize {
    if sizes.channels < LANES / 2 { 1 } else { LANES }
}

/// The values of the channels in `L` lanes at places.
#[inline(always)]
fn read_lanes<const L: usize>(x: &[f32], taps: usize, found: &[u32], weights: &[f32], out: &mut [f32]) {
    let (x, _) = x.as_chunks::<L>();
    let places = found.chunks_exact(taps).zip(weights.chunks_exact(taps));
    for (y, (found, weights)) in out.as_chunks_mut::<L>().0.iter_mut().zip(places) {
        let mut sums = [0.0f32; L];
        for (&i, w) in found.iter().zip(weights) {
            if let Some(x) = x.get(i as usize) {
                for l in 0..L {
                    sums[l] = w.mul_add(x[l], sums[l]);
                }
            }
        }
        *y = sums;
    }
}

/// Adds the gradients at places to the channels in `L` lanes.
#[inline(always)]
fn spread_lanes<const L: usize>(dy: &[f32], taps: usize, found: &[u32], weights: &[f32], out: &mut [f32]) {
    let (out, _) = out.as_chunks_mut::<L>();
    let places = found.chunks_exact(taps).zip(weights.chunks_exact(taps));
    for (dy, (found, weights)) in dy.as_chunks::<L>().0.iter().zip(places) {
        for (&i, w) in found.iter().zip(weights) {
            if let Some(y) = out.get_mut(i as usize) {
                for l in 0..L {
                    y[l] = w.mul_add(dy[l], y[l]);
                }
            }
        }
    }
}

simd_fn! {
    fn read(simd, lanes: usize, x: &[f32], taps: usize, found: &[u32], weights: &[f32], out: &mut [f32]) {
        match (lanes, taps) {
            (1, 4) => read_lanes::<1>(x, 4, found, weights, out),
            (1, _) => read_lanes::<1>(x, taps, found, weights, out),
            (_, 1) => read_lanes::<LANES>(x, 1, found, weights, out),
            (_, 4) => read_lanes::<LANES>(x, 4, found, weights, out),
            _ => read_lanes::<LANES>(x, taps, found, weights, out),
        }
    }
}

simd_fn! {
    fn spread(simd, lanes: usize, dy: &[f32], taps: usize, found: &[u32], weights: &[f32], out: &mut [f32]) {
        match (lanes, taps) {
            (1, _) => spread_lanes::<1>(dy, taps, found, weights, out),
            (_, 4) => spread_lanes::<LANES>(dy, 4, found, weights, out),
            _ => spread_lanes::<LANES>(dy, taps, found, weights, out),
        }
    }
}

simd_fn! {
    /// Adds `slope * dy` of a channel to elements, which are every `stride`-th, as slopes are every `lanes`-th.
    fn weigh(simd, slope: &[f32], lanes: usize, dy: &[f32], stride: usize, out: &mut [f32]) {
        for ((y, s), dy) in out.iter_mut().step_by(stride).zip(slope.iter().step_by(lanes)).zip(dy) {
            *y = s.mul_add(*dy, *y);
        }
    }
}

/// Calls `f` for blocks of places of one image: the start of the block, the elements and the weights.
fn blocks(
    simd: Simd,
    sampling: &Sampling,
    image: &[usize],
    grid: &[f32],
    more: Option<usize>,
    mut f: impl FnMut(Range<usize>, &[u32], &[f32]),
) {
    let (axes, taps) = (image.len(), sampling.taps());
    let mut scratch = Scratch::take(2 * BLOCK * taps);
    let (found, weights) = scratch.words()[..2 * BLOCK * taps].split_at_mut(BLOCK * taps);
    let found: &mut [u32] = bytemuck::cast_slice_mut(found);
    for (start, grid) in (0..).step_by(BLOCK).zip(grid.chunks(BLOCK * axes)) {
        let count = grid.len() / axes;
        let (found, weights) = (&mut found[..count * taps], &mut weights[..count * taps]);
        elements(simd, sampling, image, more, grid, found, weights);
        f(start..start + count, found, weights);
    }
}

impl Sizes {
    /// Groups of channels in lanes.
    fn groups(&self) -> usize {
        self.channels.div_ceil(lanes(self))
    }

    /// The channels of a group.
    fn group(&self, g: usize) -> Range<usize> {
        g * lanes(self)..self.channels.min((g + 1) * lanes(self))
    }

    /// The words of images in lanes, if they are not so already.
    pub(super) fn words_in_lanes(&self) -> usize {
        if lanes(self) == 1 { 0 } else { self.images * self.groups() * LANES * self.image_len() }
    }
}

/// Images with their channels in lanes.
fn in_lanes<'a>(pool: &Pool, simd: Simd, sizes: &Sizes, x: &'a [f32], workspace: &'a mut [f32]) -> &'a [f32] {
    if lanes(sizes) == 1 {
        return x;
    }
    let (len, workspace) = (sizes.image_len(), &mut workspace[..sizes.words_in_lanes()]);
    pool.chunks_mut(workspace, len * LANES, |task, to| {
        let channels = sizes.group(task % sizes.groups());
        let from =
            &x[task / sizes.groups() * sizes.channels * len..][channels.start * len..channels.end * len];
        transpose_lines(simd, from, len, channels.len(), len, LANES, to);
    });
    workspace
}

/// Calls `f` for some places of each image: the image, the first place, and the places of the image's lists in the output, whose
/// rows have `width` elements. `work` is that of a place.
fn places(
    pool: &Pool,
    sizes: &Sizes,
    out: &mut [f32],
    width: usize,
    work: usize,
    f: impl Fn(usize, usize, usize, &mut Band<'_, f32>) + Sync,
) {
    if out.is_empty() {
        return;
    }
    let (places, words) = (sizes.places, out.len() / sizes.images);
    let per = pool.share(places, (MIN_WORDS_PER_TASK / work.max(1)).max(1), 1).min(places);
    let one = |pool: &Pool, n: usize, out: &mut [f32], per: usize| {
        pool.bands_mut([out], [width], [places, per], |first, count, [mut band]| {
            f(n, first, count, &mut band)
        });
    };
    if per < places {
        return out.chunks_mut(words).enumerate().for_each(|(n, out)| one(pool, n, out, per));
    }
    let images = pool.share(sizes.images, (MIN_WORDS_PER_TASK / (work * places).max(1)).max(1), 1);
    pool.chunks_mut(out, images * words, |task, out| {
        for (n, out) in (task * images..).zip(out.chunks_mut(words)) {
            one(Pool::alone(), n, out, places);
        }
    });
}

/// The words of the elements and the weights of all places.
pub(super) fn words_of_places(sampling: &Sampling, sizes: &Sizes) -> usize {
    2 * sizes.images * sizes.places * sampling.taps()
}

/// The words of workspace of [`sample`], which moves all images into lanes or finds the elements of all places.
pub(super) fn words_to_sample(sampling: &Sampling, sizes: &Sizes) -> usize {
    match lanes(sizes) {
        1 => 0,
        _ => sizes.words_in_lanes().max(words_of_places(sampling, sizes)),
    }
}

/// The elements of all places and their weights.
fn all_elements<'a>(
    pool: &Pool,
    simd: Simd,
    sampling: &Sampling,
    sizes: &Sizes,
    grid: &[f32],
    workspace: &'a mut [f32],
) -> (&'a [u32], &'a [f32]) {
    let (taps, axes) = (sampling.taps(), sizes.image.len());
    let words = words_of_places(sampling, sizes);
    let (found, weights) = workspace[..words].split_at_mut(words / 2);
    pool.pairs_mut((&mut *found, BLOCK * taps), (&mut *weights, BLOCK * taps), |task, found, weights| {
        let grid = &grid[task * BLOCK * axes..][..found.len() / taps * axes];
        elements(simd, sampling, &sizes.image, None, grid, bytemuck::cast_slice_mut(found), weights);
    });
    (bytemuck::cast_slice(found), weights)
}

/// Calls `put` with the values at places of a channel in each lane.
fn values(
    simd: Simd,
    x: &[f32],
    taps: usize,
    found: &[u32],
    weights: &[f32],
    mut put: impl FnMut(usize, &[f32]),
) {
    let (count, mut scratch) = (found.len() / taps, Scratch::take(2 * BLOCK * LANES));
    let (values, lines) = scratch.words()[..2 * BLOCK * LANES].split_at_mut(BLOCK * LANES);
    let width = count.next_multiple_of(LANES);
    read(simd, LANES, x, taps, found, weights, values);
    transpose_lines(simd, values, LANES, count, LANES, width, lines);
    lines.chunks_exact(width).take(LANES).enumerate().for_each(|(l, line)| put(l, &line[..count]));
}

/// Fills the output of [`GridSample`](super::GridSample).
pub(super) fn sample(sampling: &Sampling, sizes: &Sizes, run: CpuRun<'_>) {
    if lanes(sizes) > 1 && sizes.images * sizes.groups() >= 2 * run.pool.threads() {
        return sample_groups(sampling, sizes, run);
    }
    let (grid, simd, taps, lanes) = (run.ins[1], run.simd, sampling.taps(), lanes(sizes));
    let (axes, len) = (sizes.image.len(), sizes.image_len() * lanes);
    let x = in_lanes(run.pool, simd, sizes, run.ins[0], run.workspace);
    places(run.pool, sizes, run.out, 1, sizes.channels * taps, |n, first, count, out| {
        let grid = &grid[(n * sizes.places + first) * axes..][..count * axes];
        blocks(simd, sampling, &sizes.image, grid, None, |at, found, weights| {
            for g in 0..sizes.groups() {
                let x = &x[(n * sizes.groups() + g) * len..][..len];
                if lanes == 1 {
                    read(simd, 1, x, taps, found, weights, &mut out.list(g)[at.clone()]);
                    continue;
                }
                let channels = sizes.group(g);
                values(simd, x, taps, found, weights, |l, line| {
                    if l < channels.len() {
                        out.list(channels.start + l)[at.clone()].copy_from_slice(line);
                    }
                });
            }
        });
    });
}

/// [`sample`] with a group of channels of one image in each task: they are moved into lanes just before they are read, and so lie
/// in the cache of the core that reads them.
fn sample_groups(sampling: &Sampling, sizes: &Sizes, run: CpuRun<'_>) {
    if run.out.is_empty() {
        return;
    }
    let (x, simd, taps, places) = (run.ins[0], run.simd, sampling.taps(), sizes.places);
    let (channels, len) = (sizes.channels, sizes.image_len());
    let (found, weights) = all_elements(run.pool, simd, sampling, sizes, run.ins[1], run.workspace);
    run.pool.tiles_mut([run.out], [places], [sizes.images, channels, LANES], |n, first, count, [out]| {
        let mut scratch = Scratch::take(len * LANES);
        let image = &mut scratch.words()[..len * LANES];
        transpose_lines(simd, &x[(n * channels + first) * len..], len, count, len, LANES, image);
        for start in (0..places).step_by(BLOCK) {
            let at = start..places.min(start + BLOCK);
            let all = (n * places + at.start) * taps..(n * places + at.end) * taps;
            values(simd, image, taps, &found[all.clone()], &weights[all], |l, line| {
                if l < count {
                    out[l * places..][at.clone()].copy_from_slice(line);
                }
            });
        }
    });
}

/// Fills the output of [`GridSampleInputBwd`](super::GridSampleInputBwd).
pub(super) fn input_bwd(sampling: &Sampling, sizes: &Sizes, run: CpuRun<'_>) {
    if run.out.is_empty() {
        return;
    }
    let (dy, grid, simd, pool) = (run.ins[0], run.ins[1], run.simd, run.pool);
    let (taps, lanes, image) = (sampling.taps(), lanes(sizes), sizes.image_len());
    let (found, weights) = all_elements(pool, simd, sampling, sizes, grid, run.workspace);
    let places = sizes.places;
    // Channels of a task, which are all of one image and fill lanes.
    let work = lanes * (image + places * taps);
    let per = pool.share(sizes.groups(), (MIN_WORDS_PER_TASK / work.max(1)).max(1), 1).min(sizes.groups());
    let tiles = [sizes.images, sizes.channels, per * lanes];
    pool.tiles_mut([run.out], [image], tiles, |n, first, _, [out]| {
        let mut scratch = Scratch::take(lanes * (image + BLOCK));
        let (sums, ys) = scratch.words()[..lanes * (image + BLOCK)].split_at_mut(lanes * image);
        let (found, weights) = (&found[n * places * taps..][..places * taps], &weights[n * places * taps..]);
        for (i, out) in out.chunks_mut(lanes * image).enumerate() {
            sums.fill(0.0);
            ys.fill(0.0);
            let c = n * sizes.channels + first + i * lanes;
            let dy = &dy[c * places..][..out.len() / image * places];
            for at in (0..places).step_by(BLOCK) {
                let count = BLOCK.min(places - at);
                for (l, dy) in dy.chunks_exact(places).enumerate() {
                    ys.chunks_exact_mut(lanes).zip(&dy[at..at + count]).for_each(|(y, dy)| y[l] = *dy);
                }
                let some = at * taps..(at + count) * taps;
                spread(simd, lanes, &ys[..count * lanes], taps, &found[some.clone()], &weights[some], sums);
            }
            for (l, out) in out.chunks_exact_mut(image).enumerate() {
                out.iter_mut().zip(sums[l..].iter().step_by(lanes)).for_each(|(y, sum)| *y = *sum);
            }
        }
    });
}

/// Fills the output of [`GridSampleGridBwd`](super::GridSampleGridBwd).
pub(super) fn grid_bwd(sampling: &Sampling, sizes: &Sizes, run: CpuRun<'_>) {
    let (grid, dy, simd, taps, lanes) = (run.ins[1], run.ins[2], run.simd, sampling.taps(), lanes(sizes));
    let (axes, len) = (sizes.image.len(), sizes.image_len() * lanes);
    let x = in_lanes(run.pool, simd, sizes, run.ins[0], run.workspace);
    places(run.pool, sizes, run.out, axes, sizes.channels * taps * axes, |n, first, count, out| {
        let (grid, out) = (&grid[(n * sizes.places + first) * axes..][..count * axes], out.list(0));
        let mut scratch = Scratch::take(BLOCK * lanes);
        let slopes = &mut scratch.words()[..BLOCK * lanes];
        out.fill(0.0);
        for a in 0..axes {
            blocks(simd, sampling, &sizes.image, grid, Some(a), |at, found, weights| {
                let out = &mut out[at.start * axes + axes - 1 - a..at.end * axes];
                for g in 0..sizes.groups() {
                    read(
                        simd,
                        lanes,
                        &x[(n * sizes.groups() + g) * len..][..len],
                        taps,
                        found,
                        weights,
                        slopes,
                    );
                    for (l, c) in sizes.group(g).enumerate() {
                        let dy = &dy[(n * sizes.channels + c) * sizes.places + first..][at.clone()];
                        weigh(simd, &slopes[l..], lanes, dy, axes, out);
                    }
                }
            });
        }
    });
}
