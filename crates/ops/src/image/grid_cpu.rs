//! Grid sampling on the CPU: the elements and weights of a block of places are found once and used for all channels.

use super::grid::Sizes;
use super::places::Sampling;
use crate::CpuRun;
use crate::pointwise::expression::Scratch;
use dittograd_device::cpu::simd::{Simd, simd_fn};

/// Marks an element beyond the image.
const NOWHERE: u32 = u32::MAX;

/// Places whose elements are found at once.
const BLOCK: usize = 256;

/// The fewest elements of the value of a task.
const MIN_WORDS_PER_TASK: usize = 8 * 1024;

/// The elements of each place, place by place, and their weights. `more` is an axis that is differentiated once more.
fn elements(
    sampling: &Sampling,
    image: &[usize],
    more: Option<usize>,
    grid: &[f32],
    found: &mut [u32],
    weights: &mut [f32],
) {
    let (axes, width, taps) = (image.len(), sampling.width(), sampling.taps());
    let places =
        grid.chunks_exact(axes).zip(found.chunks_exact_mut(taps).zip(weights.chunks_exact_mut(taps)));
    for (at, (found, weights)) in places {
        (found[0], weights[0]) = (0, 1.0);
        let mut count = 1;
        for (a, &size) in image.iter().enumerate() {
            let order = sampling.orders[a] + usize::from(more == Some(a));
            let (c, slope) = sampling.place(at[axes - 1 - a], size as f32);
            let (base, t) = sampling.base(c);
            let along = sampling.weights(order, t, slope);
            let base = Sampling::first(f64::from(base));
            // From the last element back, since each makes room for as many as there are along the axis.
            for e in (0..count).rev() {
                let (offset, w) = (found[e], weights[e]);
                for k in (0..width).rev() {
                    let i = sampling.element(base + k as i64, size);
                    found[e * width + k] = match i {
                        Some(i) if offset != NOWHERE => offset * size as u32 + i as u32,
                        _ => NOWHERE,
                    };
                    weights[e * width + k] = if a == 0 { along[k] } else { w * along[k] };
                }
            }
            count *= width;
        }
    }
}

simd_fn! {
    /// The value of a channel at places.
    fn read(simd, x: &[f32], taps: usize, found: &[u32], weights: &[f32], out: &mut [f32]) {
        if taps == 4 {
            let (found, weights) = (found.as_chunks::<4>().0, weights.as_chunks::<4>().0);
            for ((y, found), weights) in out.iter_mut().zip(found).zip(weights) {
                let mut sum = 0.0f32;
                for k in 0..4 {
                    if let Some(x) = x.get(found[k] as usize) {
                        sum = weights[k].mul_add(*x, sum);
                    }
                }
                *y = sum;
            }
            return;
        }
        let places = found.chunks_exact(taps).zip(weights.chunks_exact(taps));
        for (y, (found, weights)) in out.iter_mut().zip(places) {
            let mut sum = 0.0f32;
            for (&i, w) in found.iter().zip(weights) {
                if let Some(x) = x.get(i as usize) {
                    sum = w.mul_add(*x, sum);
                }
            }
            *y = sum;
        }
    }
}

simd_fn! {
    /// Adds the gradients at places to a channel.
    fn spread(simd, dy: &[f32], taps: usize, found: &[u32], weights: &[f32], out: &mut [f32]) {
        let places = found.chunks_exact(taps).zip(weights.chunks_exact(taps));
        for (dy, (found, weights)) in dy.iter().zip(places) {
            for (&i, w) in found.iter().zip(weights) {
                if let Some(y) = out.get_mut(i as usize) {
                    *y = w.mul_add(*dy, *y);
                }
            }
        }
    }
}

simd_fn! {
    /// Adds `slope * dy` of a channel to every `stride`-th element.
    fn weigh(simd, slope: &[f32], dy: &[f32], stride: usize, out: &mut [f32]) {
        for ((y, s), dy) in out.iter_mut().step_by(stride).zip(slope).zip(dy) {
            *y = s.mul_add(*dy, *y);
        }
    }
}

/// Calls `f` for blocks of places of one image: the start of the block, the elements and the weights.
fn blocks(
    sampling: &Sampling,
    sizes: &Sizes,
    grid: &[f32],
    more: Option<usize>,
    mut f: impl FnMut(std::ops::Range<usize>, &[u32], &[f32]),
) {
    let (axes, taps) = (sizes.image.len(), sampling.taps());
    let mut scratch = Scratch::take(2 * BLOCK * taps);
    let (found, weights) = scratch.words()[..2 * BLOCK * taps].split_at_mut(BLOCK * taps);
    let found: &mut [u32] = bytemuck::cast_slice_mut(found);
    for start in (0..grid.len() / axes).step_by(BLOCK) {
        let count = BLOCK.min(grid.len() / axes - start);
        let (found, weights) = (&mut found[..count * taps], &mut weights[..count * taps]);
        elements(sampling, &sizes.image, more, &grid[start * axes..][..count * axes], found, weights);
        f(start..start + count, found, weights);
    }
}

/// Calls `f` for runs of neighbouring channels of one image: the image, the first channel, and their part of the output,
/// which has `words` for each channel.
fn runs(
    run: &mut CpuRun<'_>,
    sizes: &Sizes,
    words: usize,
    work: usize,
    f: impl Fn(Simd, usize, usize, &mut [f32]) + Sync,
) {
    if run.out.is_empty() {
        return;
    }
    let (planes, simd) = (sizes.images * sizes.channels, run.simd);
    let per = run.pool.share(planes, (MIN_WORDS_PER_TASK / work.max(1)).max(1), 1);
    run.pool.chunks_mut(run.out, per * words, |task, mut out| {
        let mut plane = task * per;
        while !out.is_empty() {
            let (n, c) = (plane / sizes.channels, plane % sizes.channels);
            let count = (out.len() / words).min(sizes.channels - c);
            let (now, rest) = out.split_at_mut(count * words);
            f(simd, n, c, now);
            (out, plane) = (rest, plane + count);
        }
    });
}

/// Fills the output of [`GridSample`](super::GridSample).
pub(super) fn sample(sampling: &Sampling, sizes: &Sizes, mut run: CpuRun<'_>) {
    let (x, grid) = (run.ins[0], run.ins[1]);
    let (image, places, taps) = (sizes.image_len(), sizes.places, sampling.taps());
    let of_image = places * sizes.image.len();
    runs(&mut run, sizes, places, places * taps, |simd, n, c, out| {
        blocks(sampling, sizes, &grid[n * of_image..][..of_image], None, |at, found, weights| {
            for (i, out) in out.chunks_mut(places).enumerate() {
                let x = &x[(n * sizes.channels + c + i) * image..][..image];
                read(simd, x, taps, found, weights, &mut out[at.clone()]);
            }
        });
    });
}

/// Fills the output of [`GridSampleInputBwd`](super::GridSampleInputBwd).
pub(super) fn input_bwd(sampling: &Sampling, sizes: &Sizes, mut run: CpuRun<'_>) {
    let (dy, grid) = (run.ins[0], run.ins[1]);
    let (image, places, taps) = (sizes.image_len(), sizes.places, sampling.taps());
    let of_image = places * sizes.image.len();
    runs(&mut run, sizes, image, image + places * taps, |simd, n, c, out| {
        out.fill(0.0);
        blocks(sampling, sizes, &grid[n * of_image..][..of_image], None, |at, found, weights| {
            for (i, out) in out.chunks_mut(image).enumerate() {
                let dy = &dy[(n * sizes.channels + c + i) * places..][..places];
                spread(simd, &dy[at.clone()], taps, found, weights, out);
            }
        });
    });
}

/// Fills the output of [`GridSampleGridBwd`](super::GridSampleGridBwd).
pub(super) fn grid_bwd(sampling: &Sampling, sizes: &Sizes, run: CpuRun<'_>) {
    let (x, grid, dy, simd) = (run.ins[0], run.ins[1], run.ins[2], run.simd);
    if run.out.is_empty() {
        return;
    }
    let (image, places, taps, axes) = (sizes.image_len(), sizes.places, sampling.taps(), sizes.image.len());
    let work = (sizes.channels * taps * axes).max(1);
    // A task has places of one image only.
    let per = run.pool.share(places, (MIN_WORDS_PER_TASK / work).max(1), 1).min(places);
    let tasks = places.div_ceil(per);
    let one = |n: usize, start: usize, out: &mut [f32]| {
        let mut scratch = Scratch::take(BLOCK);
        let slope = &mut scratch.words()[..BLOCK];
        let grid = &grid[(n * places + start) * axes..][..out.len()];
        out.fill(0.0);
        for a in 0..axes {
            blocks(sampling, sizes, grid, Some(a), |at, found, weights| {
                let slope = &mut slope[..at.len()];
                for c in n * sizes.channels..(n + 1) * sizes.channels {
                    read(simd, &x[c * image..][..image], taps, found, weights, slope);
                    let dy = &dy[c * places + start..][at.clone()];
                    weigh(simd, slope, dy, axes, &mut out[at.start * axes + axes - 1 - a..at.end * axes]);
                }
            });
        }
    };
    if tasks == 1 {
        let images = run.pool.share(sizes.images, (MIN_WORDS_PER_TASK / (work * places)).max(1), 1);
        run.pool.chunks_mut(run.out, images * places * axes, |task, out| {
            for (i, out) in out.chunks_mut(places * axes).enumerate() {
                one(task * images + i, 0, out);
            }
        });
        return;
    }
    for (n, out) in run.out.chunks_mut(places * axes).enumerate() {
        run.pool.chunks_mut(out, per * axes, |task, out| one(n, task * per, out));
    }
}
