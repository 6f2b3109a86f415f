//! Normalisation of channels: batch norm and group norm on values `(N, C, spatial…)`. Instance norm is group norm
//! with a group per channel, and the norm of a single image's channels is that with `N = 1`.
//!
//! The statistics of a group need one reading of it. Every run of neighbouring elements of a channel is cut into
//! chunks of the row rule; a chunk gives its sum `a` and, from its own mean `m`, its squares `q = sum (x - m)^2`.
//! Then `mean = sum a / n` and `var = sum (q + len (m - mean)^2) / n`, both by the column rule over the group's
//! chunks in memory order. The gradients are made the same way from `b = sum dy` and `p = sum dy (x - m)`, since
//! `sum dy (x - mean) = sum (p + (m - mean) b)`.

use super::map::grid;
use super::norm::{
    Grouped, MOST_BLOCKS, check_eps, check_inputs, chunk_squares, clear_gaps, formulas, gradient_parts,
    input_gradient, inverse, inverse_std, normalized, reference_stats,
};
use super::program::{Program, Scratch};
use super::reduce::{self, depth};
use super::rows::{COLUMN_SUM, device_function, per_lane};
use super::sampling::{EDGES, VOLUME, pick};
use super::{
    AnyTensor, Attr, Attrs, Bound, CpuRun, CudaRun, Gpu, Io, Op, PerInput, Recorder, Reject, Sample,
    SampleIn, Val, dims, layout, mismatch,
};
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::rng::Stream;
use dittograd_numerics::scalar::{Real, Scalar};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::sum::{self, CHUNK, Chains, ROWS, WIDTH};
use dittograd_numerics::tensor::Tensor;

/// Squares of a chunk about the group's mean: `q + len (m - mean)^2`.
#[inline(always)]
fn about_mean<R: Real>(q: R, len: R, m: R, mean: R) -> R {
    q + len * ((m - mean) * (m - mean))
}

/// Products of a chunk about the group's mean: `p + (m - mean) b`.
#[inline(always)]
fn moment_about_mean<R: Real>(p: R, m: R, mean: R, b: R) -> R {
    (m - mean).fma(b, p)
}

simd_fn! {
    /// Sum of `dy (x - m)` of at most one chunk of the row rule.
    fn chunk_moments(simd, x: &[f32], dy: &[f32], m: f32) -> f32 {
        sum::chunk([x, &dy[..x.len()]], |[x, dy]| dy * (x - m))
    }
}

simd_fn! {
    /// A channel's run of elements normalised; `row` is mean and `1 / std`, then gain and shift if they are there.
    fn normalize_run(simd, x: &[f32], row: [f32; 4], affine: usize, out: &mut [f32]) {
        let [mean, r, gamma, beta] = row;
        let x = &x[..out.len()];
        for i in 0..out.len() {
            let hat = normalized(x[i], mean, r);
            out[i] = match affine {
                2 => hat.mul_add(gamma, beta),
                1 => hat * gamma,
                _ => hat,
            };
        }
    }
}

simd_fn! {
    /// The input gradient along a channel's run; `row` is mean, `1 / std`, mean of h, mean of h x^.
    fn gradient_run(simd, x: &[f32], dy: &[f32], row: [f32; 4], gamma: Option<f32>, out: &mut [f32]) {
        let [mean, r, mean_h, mean_hx] = row;
        let (x, dy) = (&x[..out.len()], &dy[..out.len()]);
        match gamma {
            Some(gamma) => for i in 0..out.len() {
                out[i] = input_gradient(dy[i] * gamma, mean_h, normalized(x[i], mean, r), mean_hx, r);
            },
            None => for i in 0..out.len() {
                out[i] = input_gradient(dy[i], mean_h, normalized(x[i], mean, r), mean_hx, r);
            },
        }
    }
}

simd_fn! {
    /// Neighbouring channels of one sample normalised; `stats` is their means, then their `1 / std`.
    fn normalize_columns(simd, x: &[f32], stats: &[f32], gamma: &[f32], beta: &[f32], out: &mut [f32]) {
        let n = out.len();
        let (x, mean, r) = (&x[..n], &stats[..n], &stats[n..2 * n]);
        if !beta.is_empty() {
            let (gamma, beta) = (&gamma[..n], &beta[..n]);
            for i in 0..n {
                out[i] = normalized(x[i], mean[i], r[i]).mul_add(gamma[i], beta[i]);
            }
        } else if !gamma.is_empty() {
            let gamma = &gamma[..n];
            for i in 0..n {
                out[i] = normalized(x[i], mean[i], r[i]) * gamma[i];
            }
        } else {
            for i in 0..n {
                out[i] = normalized(x[i], mean[i], r[i]);
            }
        }
    }
}

simd_fn! {
    /// The input gradients of neighbouring channels of one sample; `stats` is their means, their `1 / std`, their
    /// means of h and of h x^.
    fn gradient_columns(simd, x: &[f32], dy: &[f32], stats: &[f32], gamma: &[f32], out: &mut [f32]) {
        let n = out.len();
        let (x, dy) = (&x[..n], &dy[..n]);
        let (mean, r, h, hx) = (&stats[..n], &stats[n..2 * n], &stats[2 * n..3 * n], &stats[3 * n..4 * n]);
        if gamma.is_empty() {
            for i in 0..n {
                out[i] = input_gradient(dy[i], h[i], normalized(x[i], mean[i], r[i]), hx[i], r[i]);
            }
        } else {
            let gamma = &gamma[..n];
            for i in 0..n {
                out[i] = input_gradient(dy[i] * gamma[i], h[i], normalized(x[i], mean[i], r[i]), hx[i], r[i]);
            }
        }
    }
}

/// Sums by the column rule of [`WIDTH`] columns side by side, of terms that `f` adds row by row.
fn side_by_side(rows: usize, mut add: impl FnMut(usize, &mut [f32; WIDTH])) -> [f32; WIDTH] {
    // The chains of a level, then theirs, as few as there are.
    let groups = rows.div_ceil(ROWS);
    let mut scratch = Scratch::take(groups.max(1) * WIDTH);
    let partial = &mut scratch.words()[..groups.max(1) * WIDTH];
    let mut sums = [0.0; WIDTH];
    for (group, to) in partial.chunks_mut(WIDTH).enumerate() {
        sums = [0.0; WIDTH];
        (group * ROWS..rows.min((group + 1) * ROWS)).for_each(|r| add(r, &mut sums));
        to.copy_from_slice(&sums);
    }
    if groups > 1 {
        sum::columns(partial, groups, WIDTH, &mut sums);
    }
    sums
}

/// Which elements are normalised together, in a value of `pieces = n c` runs of `s` elements.
#[derive(Clone, Copy, Debug)]
struct Channels {
    n: usize,
    c: usize,
    s: usize,
    /// Groups of channels of one sample, or none where a channel of all samples is a group.
    groups: Option<usize>,
    eps: f32,
}

/// A chunk's sums: `a`, `q`, and for gradients `b`, `p`; then its mean.
#[derive(Clone, Copy)]
struct Leaf {
    q: f32,
    b: f32,
    p: f32,
    a: f32,
    m: f32,
    len: f32,
}

impl Channels {
    fn of(shape: &Shape, groups: Option<usize>, eps: f32) -> Channels {
        let d = shape.dims();
        // However many empty samples there are, there is nothing to do for them.
        let n = if shape.numel() == 0 { 0 } else { d[0] };
        Channels { n, c: d[1], s: d[2..].iter().product(), groups, eps }
    }

    fn pieces(&self) -> usize {
        self.n * self.c
    }

    /// Chunks of a run.
    fn chunks(&self) -> usize {
        self.s.div_ceil(CHUNK)
    }

    /// Chunks whose sums are kept; runs of one element are their own sums.
    fn leaves(&self) -> usize {
        if self.s == 1 { 0 } else { self.pieces() * self.chunks() }
    }

    fn group_count(&self) -> usize {
        self.groups.map_or(self.c, |g| self.n * g)
    }

    /// Runs in a group.
    fn group_runs(&self) -> usize {
        self.groups.map_or(self.n, |g| self.c.checked_div(g).unwrap_or(0))
    }

    /// `1 / n` of a group.
    fn inverse(&self) -> f32 {
        inverse(self.group_runs() * self.s)
    }

    /// The `i`-th run of a group.
    fn run_of(&self, group: usize, i: usize) -> usize {
        match self.groups {
            None => i * self.c + group,
            Some(_) => group * self.group_runs() + i,
        }
    }

    /// The group of a run.
    fn group_of(&self, piece: usize) -> usize {
        match self.groups {
            None => piece % self.c,
            Some(_) => piece / self.group_runs(),
        }
    }

    /// Length of chunk `k` of a run.
    fn len(&self, k: usize) -> usize {
        CHUNK.min(self.s - k * CHUNK)
    }

    /// Chunk `k` of a run, from the sums kept of it, `width` words each, or from the inputs.
    fn leaf(&self, sums: &[f32], width: usize, ins: [&[f32]; 2], piece: usize, k: usize) -> Leaf {
        if self.s == 1 {
            let (x, dy) = (ins[0][piece], ins[1].get(piece).copied().unwrap_or(0.0));
            return Leaf { a: x, q: 0.0, b: dy, p: 0.0, m: x, len: 1.0 };
        }
        let at = (piece * self.chunks() + k) * width;
        let word = |i: usize| if i < width { sums[at + i] } else { 0.0 };
        let len = self.len(k);
        Leaf { a: word(0), q: word(1), b: word(2), p: word(3), m: word(0) * inverse(len), len: len as f32 }
    }

    /// Fills in the sums of all chunks, two or four words each.
    fn fill_sums(
        &self,
        run: (&dittograd_device::cpu::threads::Pool, Simd),
        x: &[f32],
        dy: Option<&[f32]>,
        sums: &mut [f32],
    ) {
        if self.leaves() == 0 {
            return;
        }
        let (pool, simd) = run;
        let width = if dy.is_some() { 4 } else { 2 };
        let per_piece = self.chunks() * width;
        let per_task = pool.share(self.pieces(), (16 * 1024 / self.s).max(1), 1);
        pool.chunks_mut(&mut sums[..self.pieces() * per_piece], per_task * per_piece, |task, out| {
            for (i, out) in out.chunks_mut(per_piece).enumerate() {
                let at = (task * per_task + i) * self.s;
                for (k, out) in out.chunks_mut(width).enumerate() {
                    let range = at + k * CHUNK..at + k * CHUNK + self.len(k);
                    let x = &x[range.clone()];
                    let a = reduce::chunk_sum(simd, x);
                    let m = a * inverse(x.len());
                    out[0] = a;
                    out[1] = chunk_squares(simd, x, m);
                    if let Some(dy) = dy {
                        out[2] = reduce::chunk_sum(simd, &dy[range.clone()]);
                        out[3] = chunk_moments(simd, x, &dy[range], m);
                    }
                }
            }
        });
    }

    /// The sum by the column rule of a term of each chunk of `runs` runs.
    fn over_chunks(
        &self,
        runs: usize,
        run: impl Fn(usize) -> usize,
        term: impl Fn(usize, usize) -> f32,
    ) -> f32 {
        let mut chains = Chains::default();
        for i in 0..runs {
            let piece = run(i);
            (0..self.chunks()).for_each(|k| chains.push(term(piece, k)));
        }
        chains.finish()
    }

    /// Mean and variance of a group.
    fn moments(&self, group: usize, leaf: impl Fn(usize, usize) -> Leaf) -> (f32, f32) {
        let (runs, run) = (self.group_runs(), |i: usize| self.run_of(group, i));
        let inv = self.inverse();
        let mean = self.over_chunks(runs, run, |p, k| leaf(p, k).a) * inv;
        let squares = self.over_chunks(runs, run, |p, k| {
            let l = leaf(p, k);
            about_mean(l.q, l.len, l.m, mean)
        });
        (mean, squares * inv)
    }

    /// Whether runs are single elements that lie beside those of other groups: then channels are worked on side by
    /// side.
    fn single(&self) -> bool {
        self.s == 1 && self.groups.is_none()
    }

    /// Means and variances of neighbouring channels from `c` on, where runs are single elements.
    fn column_moments(&self, x: &[f32], c: usize, width: usize) -> [[f32; WIDTH]; 2] {
        let inv = self.inverse();
        let row = |n: usize| &x[n * self.c + c..][..width];
        let mean = side_by_side(self.n, |n, sums| {
            sums.iter_mut().zip(row(n)).for_each(|(s, x)| *s += x);
        });
        let mean = mean.map(|s| s * inv);
        let squares = side_by_side(self.n, |n, sums| {
            for (s, (&x, &mean)) in sums.iter_mut().zip(row(n).iter().zip(&mean)) {
                *s += about_mean(0.0, 1.0, x, mean);
            }
        });
        [mean, squares.map(|s| s * inv)]
    }

    fn cpu_single(&self, run: CpuRun<'_>) {
        let (x, simd, c) = (run.ins[0], run.simd, self.c);
        let stats = &mut run.workspace[..2 * c];
        run.pool.chunks_mut(stats, 2 * WIDTH, |tile, stats| {
            let width = stats.len() / 2;
            let [mean, var] = self.column_moments(x, tile * WIDTH, width);
            stats[..width].copy_from_slice(&mean[..width]);
            stats[width..].iter_mut().zip(var).for_each(|(r, var)| *r = inverse_std(var, self.eps));
        });
        let stats = &*stats;
        let (gamma, beta) = (run.ins.get(1).copied().unwrap_or(&[]), run.ins.get(2).copied().unwrap_or(&[]));
        let per_task = run.pool.share(self.n, (16 * 1024 / c).max(1), 1);
        run.pool.chunks_mut(run.out, per_task * c, |task, out| {
            for (i, out) in out.chunks_mut(c).enumerate() {
                let x = &x[(task * per_task + i) * c..][..c];
                for (tile, out) in out.chunks_mut(WIDTH).enumerate() {
                    let at = tile * WIDTH;
                    let of = |t: &'_ [f32]| if t.is_empty() { 0..0 } else { at..at + out.len() };
                    let stats = &stats[2 * at..2 * (at + out.len())];
                    normalize_columns(simd, &x[at..], stats, &gamma[of(gamma)], &beta[of(beta)], out);
                }
            }
        });
    }

    fn cpu_bwd_single(&self, parts: &[Shape], run: CpuRun<'_>) {
        let (x, dy, simd, c) = (run.ins[0], run.ins[run.ins.len() - 1], run.simd, self.c);
        let gamma = if run.ins.len() == 3 { run.ins[1] } else { &[] };
        let inv = self.inverse();
        let row =
            |t: &'_ [f32], n: usize, at: usize, width: usize| n * c + at..(n * c + at + width).min(t.len());
        let stats = &mut run.workspace[..4 * c];
        run.pool.chunks_mut(stats, 4 * WIDTH, |tile, stats| {
            let (width, at) = (stats.len() / 4, tile * WIDTH);
            let [mean, var] = self.column_moments(x, at, width);
            let mut ones = [1.0; WIDTH];
            if !gamma.is_empty() {
                ones[..width].copy_from_slice(&gamma[at..at + width]);
            }
            // A gain of one changes no bit.
            let gamma = ones;
            let sum = side_by_side(self.n, |n, sums| {
                for ((s, dy), g) in sums.iter_mut().zip(&dy[row(dy, n, at, width)]).zip(gamma) {
                    *s += g * dy;
                }
            });
            let moment = side_by_side(self.n, |n, sums| {
                let terms = x[row(x, n, at, width)].iter().zip(&dy[row(dy, n, at, width)]);
                for (((s, (&x, &dy)), &mean), g) in sums.iter_mut().zip(terms).zip(&mean).zip(gamma) {
                    *s += g * moment_about_mean(0.0, x, mean, dy);
                }
            });
            for j in 0..width {
                let r = inverse_std(var[j], self.eps);
                stats[j] = mean[j];
                stats[width + j] = r;
                stats[2 * width + j] = sum[j] * inv;
                stats[3 * width + j] = (moment[j] * r) * inv;
            }
        });
        let stats = &*stats;
        let (starts, end) = layout::packed(parts);
        let (dx, rest) = run.out.split_at_mut(starts.get(1).copied().unwrap_or(end));
        let (dx, pad) = dx.split_at_mut(self.n * c);
        pad.fill(0.0);
        if !dx.is_empty() {
            let per_task = run.pool.share(self.n, (16 * 1024 / c).max(1), 1);
            run.pool.chunks_mut(dx, per_task * c, |task, out| {
                for (i, out) in out.chunks_mut(c).enumerate() {
                    let n = task * per_task + i;
                    for (tile, out) in out.chunks_mut(WIDTH).enumerate() {
                        let (at, width) = (tile * WIDTH, out.len());
                        let gamma = if gamma.is_empty() { gamma } else { &gamma[at..at + width] };
                        let (x, dy) = (&x[row(x, n, at, width)], &dy[row(dy, n, at, width)]);
                        gradient_columns(simd, x, dy, &stats[4 * at..4 * (at + width)], gamma, out);
                    }
                }
            });
        }
        for (which, out) in rest.chunks_mut(c.next_multiple_of(4).max(1)).enumerate() {
            let (out, pad) = out.split_at_mut(c);
            pad.fill(0.0);
            run.pool.chunks_mut(out, WIDTH, |tile, out| {
                let (at, width) = (tile * WIDTH, out.len());
                let stats = &stats[4 * at..4 * (at + width)];
                let sums = side_by_side(self.n, |n, sums| {
                    let (x, dy) = (&x[row(x, n, at, width)], &dy[row(dy, n, at, width)]);
                    if which == 1 {
                        sums.iter_mut().zip(dy).for_each(|(s, dy)| *s += dy);
                        return;
                    }
                    for j in 0..width {
                        sums[j] += moment_about_mean(0.0, x[j], stats[j], dy[j]) * stats[width + j];
                    }
                });
                out.copy_from_slice(&sums[..width]);
            });
        }
    }

    fn cpu_moments(&self, run: CpuRun<'_>) {
        let (x, simd) = (run.ins[0], run.simd);
        self.fill_sums((run.pool, simd), x, None, run.workspace);
        let sums = &*run.workspace;
        let (mean, var) = run.out.split_at_mut(run.out.len() / 2);
        mean.fill(0.0);
        var.fill(0.0);
        let of = |g: usize| self.moments(g, |p, k| self.leaf(sums, 2, [x, &[]], p, k));
        // Two slices cut in step, and the words after the last channel stay zero.
        let c = self.c;
        if self.single() {
            run.pool.pairs_mut((&mut mean[..c], WIDTH), (&mut var[..c], WIDTH), |tile, mean, var| {
                let moments = self.column_moments(x, tile * WIDTH, mean.len());
                mean.copy_from_slice(&moments[0][..mean.len()]);
                var.copy_from_slice(&moments[1][..mean.len()]);
            });
            return;
        }
        run.pool.pairs_mut((&mut mean[..c], 8), (&mut var[..c], 8), |task, mean, var| {
            for (i, (mean, var)) in mean.iter_mut().zip(var).enumerate() {
                (*mean, *var) = of(task * 8 + i);
            }
        });
    }

    fn cpu(&self, run: CpuRun<'_>) {
        if run.out.is_empty() {
            return;
        }
        if self.single() {
            return self.cpu_single(run);
        }
        let (x, simd) = (run.ins[0], run.simd);
        let (sums, stats) = run.workspace.split_at_mut(2 * self.leaves());
        self.fill_sums((run.pool, simd), x, None, sums);
        let sums = &*sums;
        run.pool.chunks_mut(&mut stats[..2 * self.group_count()], 16, |task, out| {
            for (i, out) in out.chunks_mut(2).enumerate() {
                let (mean, var) = self.moments(task * 8 + i, |p, k| self.leaf(sums, 2, [x, &[]], p, k));
                out.copy_from_slice(&[mean, inverse_std(var, self.eps)]);
            }
        });
        let stats = &*stats;
        let affine = run.ins.len() - 1;
        let word = |i: usize, c: usize| run.ins.get(i).map_or(0.0, |t| t[c]);
        let per_task = run.pool.share(self.pieces(), (16 * 1024 / self.s).max(1), 1);
        run.pool.chunks_mut(run.out, per_task * self.s, |task, out| {
            for (i, out) in out.chunks_mut(self.s).enumerate() {
                let piece = task * per_task + i;
                let (g, c) = (2 * self.group_of(piece), piece % self.c);
                let row = [stats[g], stats[g + 1], word(1, c), word(2, c)];
                normalize_run(simd, &x[piece * self.s..][..self.s], row, affine, out);
            }
        });
    }

    fn cpu_bwd(&self, parts: &[Shape], run: CpuRun<'_>) {
        if self.single() {
            return self.cpu_bwd_single(parts, run);
        }
        let (x, dy, simd) = (run.ins[0], run.ins[run.ins.len() - 1], run.simd);
        let gamma = if run.ins.len() == 3 { Some(run.ins[1]) } else { None };
        let (sums, stats) = run.workspace.split_at_mut(4 * self.leaves());
        self.fill_sums((run.pool, simd), x, Some(dy), sums);
        let sums = &*sums;
        let leaf = |p: usize, k: usize| self.leaf(sums, 4, [x, dy], p, k);
        let gain = |p: usize, h: f32| gamma.map_or(h, |g| g[p % self.c] * h);
        let inv = self.inverse();
        let stats = &mut stats[..4 * self.group_count()];
        run.pool.chunks_mut(stats, 32, |task, out| {
            for (i, out) in out.chunks_mut(4).enumerate() {
                let group = task * 8 + i;
                let (mean, var) = self.moments(group, leaf);
                let r = inverse_std(var, self.eps);
                let (runs, of) = (self.group_runs(), |i: usize| self.run_of(group, i));
                let sum = self.over_chunks(runs, of, |p, k| gain(p, leaf(p, k).b));
                let moment = self.over_chunks(runs, of, |p, k| {
                    let l = leaf(p, k);
                    gain(p, moment_about_mean(l.p, l.m, mean, l.b))
                });
                out.copy_from_slice(&[mean, r, sum * inv, (moment * r) * inv]);
            }
        });
        let stats = &*stats;
        let (starts, end) = layout::packed(parts);
        let (dx, rest) = run.out.split_at_mut(starts.get(1).copied().unwrap_or(end));
        let (dx, pad) = dx.split_at_mut(self.pieces() * self.s);
        pad.fill(0.0);
        if !dx.is_empty() {
            let per_task = run.pool.share(self.pieces(), (16 * 1024 / self.s).max(1), 1);
            run.pool.chunks_mut(dx, per_task * self.s, |task, out| {
                for (i, out) in out.chunks_mut(self.s).enumerate() {
                    let piece = task * per_task + i;
                    let at = piece * self.s..(piece + 1) * self.s;
                    let g = 4 * self.group_of(piece);
                    let row = [stats[g], stats[g + 1], stats[g + 2], stats[g + 3]];
                    let gamma = gamma.map(|t| t[piece % self.c]);
                    gradient_run(simd, &x[at.clone()], &dy[at], row, gamma, out);
                }
            });
        }
        for (which, out) in rest.chunks_mut(self.c.next_multiple_of(4).max(1)).enumerate() {
            let (out, pad) = out.split_at_mut(self.c);
            pad.fill(0.0);
            run.pool.chunks_mut(out, 8, |task, out| {
                for (i, out) in out.iter_mut().enumerate() {
                    let c = task * 8 + i;
                    *out = self.over_chunks(
                        self.n,
                        |n| n * self.c + c,
                        |p, k| {
                            let l = leaf(p, k);
                            if which == 1 {
                                return l.b;
                            }
                            let g = 4 * self.group_of(p);
                            moment_about_mean(l.p, l.m, stats[g], l.b) * stats[g + 1]
                        },
                    );
                }
            });
        }
    }
}

const CHANNEL_CU: &str = include_str!("channel_norm.cu");

impl Channels {
    /// Words of workspace: the chunks' sums and the groups' statistics, two or four words each.
    fn workspace(&self, width: usize) -> usize {
        width * (self.leaves() + self.group_count())
    }

    fn module(&self, backward: bool, affine: usize) -> Source {
        let run = self.s.min(CHUNK);
        // Short runs share a warp: so many lanes each.
        let lanes = run.clamp(1, 32).next_power_of_two();
        let per_lane = per_lane(run);
        let vector = if self.s.is_multiple_of(4) && self.s > 0 { 4 } else { 1 };
        let (batch, single) = (u8::from(self.groups.is_none()), u8::from(self.s == 1));
        let mut head = format!(
            "#define CHUNK {CHUNK}\n#define ROWS {ROWS}\n#define LANES {lanes}\n#define PER_LANE {per_lane}\n#define VECTOR {vector}\n#define BATCH {batch}\n#define SINGLE {single}\n#define AFFINE {affine}\n"
        );
        if backward {
            head.push_str("#define BACKWARD\n");
        }
        let traced = || {
            let about = Program::trace(4, |v| vec![about_mean(v[0], v[1], v[2], v[3])]);
            let moment = Program::trace(4, |v| vec![moment_about_mean(v[0], v[1], v[2], v[3])]);
            device_function("about_mean", &about) + &device_function("moment_about_mean", &moment)
        };
        let name = format!(
            "channel_norm_{}_l{lanes}p{per_lane}v{vector}a{affine}{}{}",
            if backward { "bwd" } else { "fwd" },
            if batch == 1 { "b" } else { "g" },
            if single == 1 { "1" } else { "" }
        );
        super::module(name, || head + COLUMN_SUM + &formulas() + &traced() + CHANNEL_CU)
    }

    /// What all kernels know of the shape: a struct of eight 64-bit and four 32-bit words.
    fn layout_args(&self, args: &mut Args) {
        let words = [
            self.n,
            self.c,
            self.s,
            self.chunks(),
            self.pieces() * self.chunks(),
            self.group_count(),
            self.group_runs(),
            self.groups.unwrap_or(0),
        ]
        .map(|w| w as u64);
        args.bytes(bytemuck::cast_slice(&words), 8);
        let tail = if self.s == 0 { 1 } else { self.len(self.chunks() - 1) };
        let floats = [inverse(CHUNK), inverse(tail), self.inverse(), self.eps];
        args.bytes(bytemuck::cast_slice(&floats), 4);
    }

    /// Queues the sums of all chunks, and then the mean and `1 / std`, or variance, of each group.
    fn cuda_stats(&self, run: &CudaRun<'_>, module: &Source, to: [u64; 2], raw: bool) -> Result<()> {
        let (x, sums) = (run.ins[0], run.workspace);
        if self.leaves() > 0 {
            let kernel = run.cuda.kernel(&module.0, module.1, "leaves")?;
            let mut args = Args::new();
            args.ptr(sums).ptr(x).ptr(0);
            self.layout_args(&mut args);
            let lanes = self.s.clamp(1, 32).next_power_of_two();
            let blocks = (self.leaves() * lanes).div_ceil(256).min(MOST_BLOCKS);
            run.cuda.launch(kernel, [blocks as u32, 1, 1], 256, 0, &args)?;
        }
        let kernel = run.cuda.kernel(&module.0, module.1, "groups")?;
        let mut args = Args::new();
        args.ptr(to[0]).ptr(to[1]).ptr(sums).ptr(x).i32(i32::from(raw));
        self.layout_args(&mut args);
        run.cuda.launch(kernel, self.tiles(self.group_count()), self.threads(self.group_runs()), 0, &args)
    }

    /// Blocks that take 32 groups or channels each.
    fn tiles(&self, count: usize) -> [u32; 3] {
        [count.div_ceil(32).min(1 << 20) as u32, 1, 1]
    }

    /// Threads of such a block: a warp per chain of chunks.
    fn threads(&self, runs: usize) -> u32 {
        (runs * self.chunks()).div_ceil(ROWS).clamp(1, 32) as u32 * 32
    }

    fn cuda_moments(&self, run: &CudaRun<'_>) -> Result<()> {
        let parts = [dims(&[self.c]); 2];
        clear_gaps(&parts, run)?;
        let (starts, _) = layout::packed(&parts);
        let to = [run.out, run.out + starts[1] as u64 * 4];
        self.cuda_stats(run, &self.module(false, 0), to, true)
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        if run.shape.numel() == 0 {
            return Ok(());
        }
        let module = self.module(false, run.ins.len() - 1);
        let stats = run.workspace + 8 * self.leaves() as u64;
        let to = [stats, stats + 4 * self.group_count() as u64];
        self.cuda_stats(run, &module, to, false)?;
        let kernel = run.cuda.kernel(&module.0, module.1, "normalize")?;
        let at = |i: usize| run.ins.get(i).copied().unwrap_or(0);
        let mut args = Args::new();
        args.ptr(run.out).ptr(at(0)).ptr(at(1)).ptr(at(2)).ptr(stats);
        self.layout_args(&mut args);
        run.cuda.launch(kernel, self.elements_grid(run), 256, 0, &args)
    }

    fn elements_grid(&self, run: &CudaRun<'_>) -> [u32; 3] {
        let vector = if self.s.is_multiple_of(4) { 4 } else { 1 };
        grid(run.cuda, (self.pieces() * self.s).div_ceil(vector))
    }

    fn cuda_bwd(&self, parts: &[Shape], run: &CudaRun<'_>) -> Result<()> {
        clear_gaps(parts, run)?;
        let module = self.module(true, run.ins.len() - 2);
        let (x, dy) = (run.ins[0], run.ins[run.ins.len() - 1]);
        let gamma = if run.ins.len() == 3 { run.ins[1] } else { 0 };
        let (sums, stats) = (run.workspace, run.workspace + 16 * self.leaves() as u64);
        if self.leaves() > 0 {
            let kernel = run.cuda.kernel(&module.0, module.1, "leaves")?;
            let mut args = Args::new();
            args.ptr(sums).ptr(x).ptr(dy);
            self.layout_args(&mut args);
            let lanes = self.s.clamp(1, 32).next_power_of_two();
            let blocks = (self.leaves() * lanes).div_ceil(256).min(MOST_BLOCKS);
            run.cuda.launch(kernel, [blocks as u32, 1, 1], 256, 0, &args)?;
        }
        if self.group_count() > 0 {
            let kernel = run.cuda.kernel(&module.0, module.1, "group_gradients")?;
            let mut args = Args::new();
            args.ptr(stats).ptr(sums).ptr(x).ptr(gamma).ptr(dy);
            self.layout_args(&mut args);
            let threads = self.threads(self.group_runs());
            run.cuda.launch(kernel, self.tiles(self.group_count()), threads, 0, &args)?;
        }
        if self.pieces() * self.s > 0 {
            let kernel = run.cuda.kernel(&module.0, module.1, "gradients")?;
            let mut args = Args::new();
            args.ptr(run.out).ptr(x).ptr(gamma).ptr(dy).ptr(stats);
            self.layout_args(&mut args);
            run.cuda.launch(kernel, self.elements_grid(run), 256, 0, &args)?;
        }
        if parts.len() > 1 && self.c > 0 {
            let (starts, _) = layout::packed(parts);
            let kernel = run.cuda.kernel(&module.0, module.1, "channel_gradients")?;
            let mut args = Args::new();
            let beta = starts.get(2).map_or(0, |s| run.out + *s as u64 * 4);
            args.ptr(run.out + starts[1] as u64 * 4).ptr(beta).ptr(stats).ptr(sums).ptr(x).ptr(dy);
            self.layout_args(&mut args);
            run.cuda.launch(kernel, self.tiles(self.c), self.threads(self.n), 0, &args)?;
        }
        Ok(())
    }

    /// The view of the second-order rule.
    fn grouped(&self) -> Result<Grouped> {
        let (n, c, s) = (self.n, self.c, self.s);
        let (view, reduced, affine) = match self.groups {
            None => (vec![n, c, s], vec![0, 2], vec![c, 1]),
            Some(g) => (vec![n, g, self.group_runs(), s], vec![2, 3], vec![g, self.group_runs(), 1]),
        };
        let (view, affine) = (Shape::new(&view)?, Shape::new(&affine)?);
        Ok(Grouped { view, reduced, affine, centered: true, eps: self.eps })
    }

    /// Roundings of the statistics: twice a chunk's sum and that over the chunks.
    fn depth(&self) -> f64 {
        2.0 * (depth(self.s.min(CHUNK)) + depth(self.group_runs() * self.chunks()))
    }

    /// Positions of the elements of a group, by the definition.
    fn positions(&self, group: usize) -> Vec<usize> {
        let runs = (0..self.group_runs()).map(|i| self.run_of(group, i) * self.s);
        runs.flat_map(|at| at..at + self.s).collect()
    }
}

/// Errors unless `x` is `(N, C, …)` and gain and shift are `(C)`.
fn check(op: &'static str, x: &Shape, affine: &[Meta], groups: Option<usize>, eps: f32) -> Result<()> {
    check_eps(op, eps)?;
    if x.rank() < 2 {
        return Err(Error::new(op, ErrorKind::Rank { want: "at least 2: (N, C, …)", got: *x }));
    }
    let c = x.dims()[1];
    if let Some(groups) = groups.filter(|&g| g == 0 || !c.is_multiple_of(g)) {
        return Err(Error::argument(
            op,
            "groups",
            format!("{groups} groups cannot share {c} channels evenly"),
        ));
    }
    match affine.iter().find(|m| m.shape.dims() != [c]) {
        None => Ok(()),
        Some(m) => Err(mismatch(op, "gain and shift must have one element per channel of", *x, m.shape)),
    }
}

/// Shapes the samples are drawn from, with a number of groups.
const SHAPES: [(&[usize], usize); 14] = [
    (&[1, 1], 1),
    (&[5, 4], 2),
    (&[40, 3], 3),
    (&[2, 6, 4], 3),
    (&[3, 2, 3, 5], 1),
    (&[0, 3, 2], 3),
    (&[2, 3, 0], 1),
    (&[2, 0, 3], 1),
    (&[1, 3, 4, 4], 3),
    (&[2, 4, 2, 17], 2),
    (&[33, 5, 2], 5),
    (&[2, 3, 1024], 1),
    (&[2, 2, 41, 26], 2),
    (&[40, 2, 35], 1),
];

/// The eps of a sample. Where a group may hold just two numbers, and those may be equal, a small one would bend
/// the value within the step of a difference.
fn sample_eps(i: usize) -> f32 {
    match i {
        0..3 | 10 => 0.25,
        _ if i.is_multiple_of(2) => 1e-5,
        _ => 1e-6,
    }
}

/// The inputs of a sample: `x`, then so many vectors of gain and shift, then `dy` if wanted.
fn inputs(d: &[usize], affine: usize, dy: bool) -> Vec<SampleIn> {
    let mut ins = vec![SampleIn::any(dims(d))];
    ins.extend(vec![SampleIn::any(dims(&d[1..2])); affine]);
    ins.extend(dy.then(|| SampleIn::any(dims(d))));
    ins
}

fn random_shape(stream: &mut Stream) -> [usize; 3] {
    let s = pick(&EDGES, stream);
    let c = [1, 2, 4, 6, 33][stream.below(5)];
    let mut n = pick(&EDGES, stream);
    while n * c * s > VOLUME {
        n = pick(&EDGES, stream);
    }
    [n, c, s]
}

macro_rules! channel_norm {
    (
        $(#[$doc:meta])* $op:ident $name:literal,
        $(#[$bwd_doc:meta])* $bwd:ident $bwd_name:literal,
        { $($field:ident)? }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $op {
            $(/// Groups the channels of a sample are shared out to.
            pub $field: usize,)?
            /// Added to the variance.
            pub eps: f32,
        }

        $(#[$bwd_doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $bwd {
            $(/// Groups the channels of a sample are shared out to.
            pub $field: usize,)?
            /// Added to the variance.
            pub eps: f32,
            /// Whether the gradient of the shift is wanted.
            pub bias: bool,
        }

        impl $op {
            fn groups(&self) -> Option<usize> {
                None::<usize>$(.or(Some(self.$field)))?
            }

            fn channels(&self, x: &Meta) -> Channels {
                Channels::of(&x.shape, self.groups(), self.eps)
            }
        }

        impl $bwd {
            fn groups(&self) -> Option<usize> {
                None::<usize>$(.or(Some(self.$field)))?
            }

            fn channels(&self, x: &Meta) -> Channels {
                Channels::of(&x.shape, self.groups(), self.eps)
            }

            /// Shapes of the packed results.
            fn parts(&self, ins: &[Meta]) -> PerInput<Shape> {
                gradient_parts(ins, self.bias)
            }
        }

        impl Op for $op {
            const NAME: &'static str = $name;

            fn shape(&self, ins: &[Meta]) -> Result<Meta> {
                check_inputs(Self::NAME, ins, 1..=3)?;
                check(Self::NAME, &ins[0].shape, &ins[1..], self.groups(), self.eps)?;
                Ok(ins[0])
            }

            fn workspace(&self, ins: &[Meta], _device: &Device) -> usize {
                self.channels(&ins[0]).workspace(2)
            }

            fn cpu(&self, run: CpuRun<'_>) {
                self.channels(&run.metas[0]).cpu(run);
            }

            fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
                self.channels(&run.metas[0]).cuda(run)
            }

            fn cuda_modules(&self, ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
                vec![self.channels(&ins[0]).module(false, ins.len() - 1)]
            }

            fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
                let bwd = $bwd { $($field: self.$field,)? eps: self.eps, bias: io.ins.len() == 3 };
                let mut ins = io.ins[..io.ins.len().min(2)].to_vec();
                ins.push(dy);
                let metas: Vec<Meta> = ins.iter().map(|&v| r.meta(v)).collect();
                let parts = bwd.parts(&metas);
                let packed = r.record(bwd.into(), &ins)?;
                (0..io.ins.len()).map(|i| layout::part(r, packed, &parts, i).map(Some)).collect()
            }

            fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
                let x = ins[0].num()?;
                let affine: Vec<&Tensor<T>> = ins[1..].iter().map(AnyTensor::num).collect::<Result<_>>()?;
                let channels = self.channels(&ins[0].meta());
                let mut out = x.data().to_vec();
                for group in 0..channels.group_count() {
                    let positions = channels.positions(group);
                    let values: Vec<T> = positions.iter().map(|&i| x.data()[i]).collect();
                    let (mean, std) = reference_stats(&values, true, self.eps);
                    for &i in &positions {
                        let c = i / channels.s % channels.c;
                        let mut y = (x.data()[i] - mean) / std;
                        if let Some(gamma) = affine.first() {
                            y = y * gamma.data()[c];
                        }
                        if let Some(beta) = affine.get(1) {
                            y = y + beta.data()[c];
                        }
                        out[i] = y;
                    }
                }
                Tensor::with_shape(x.shape(), out)
            }

            fn samples() -> Vec<Sample<$op>> {
                let one = |(i, (d, _groups)): (usize, &(&[usize], usize))| Sample {
                    op: $op { $($field: *_groups,)? eps: sample_eps(i) },
                    ins: inputs(d, match i % 4 { 2 => 0, 3 => 1, _ => 2 }, false),
                };
                SHAPES.iter().enumerate().map(one).collect()
            }

            fn random(stream: &mut Stream) -> Option<Sample<$op>> {
                let d = random_shape(stream);
                let op = $op { $($field: if d[1] % 2 == 0 { 2 } else { d[1] },)? eps: 1e-5 };
                Some(Sample { op, ins: inputs(&d, 2, false) })
            }

            fn rejects() -> Vec<Reject<$op>> {
                let f = |d: &[usize]| Meta::f32(dims(d));
                let op = |eps: f32| $op { $($field: 2,)? eps };
                let x = || f(&[2, 4, 3]);
                #[allow(unused_mut)]
                let mut bad = vec![
                    Reject { op: op(1e-5), ins: vec![], want: "Arity" },
                    Reject { op: op(1e-5), ins: vec![x(), f(&[4]), f(&[4]), f(&[4])], want: "Arity" },
                    Reject { op: op(1e-5), ins: vec![f(&[4])], want: "Rank" },
                    Reject { op: op(-1.0), ins: vec![x()], want: "Argument" },
                    Reject { op: op(f32::INFINITY), ins: vec![x()], want: "Argument" },
                    Reject { op: op(1e-5), ins: vec![x(), f(&[3])], want: "Shapes" },
                    Reject { op: op(1e-5), ins: vec![x(), f(&[4]), f(&[1, 4])], want: "Shapes" },
                    Reject { op: op(1e-5), ins: vec![Meta::u32(dims(&[2, 4]))], want: "DType" },
                ];
                $(
                    bad.push(Reject { op: $op { $field: 3, eps: 1e-5 }, ins: vec![x()], want: "Argument" });
                    bad.push(Reject { op: $op { $field: 0, eps: 1e-5 }, ins: vec![x()], want: "Argument" });
                )?
                bad
            }

            fn bound(&self, ins: &[Meta]) -> Bound {
                Bound { ulps: 2.0, terms: 20.0 + self.channels(&ins[0]).depth() }
            }

            fn attrs(&self) -> Vec<(&'static str, Attr)> {
                vec![
                    $((stringify!($field), Attr::Num(self.$field as f64)),)?
                    ("eps", Attr::Num(f64::from(self.eps))),
                ]
            }

            fn from_attrs(attrs: &Attrs) -> Result<$op> {
                attrs.only(&[$(stringify!($field),)? "eps"])?;
                Ok($op { $($field: attrs.whole(stringify!($field))?,)? eps: attrs.num("eps")? as f32 })
            }
        }

        impl Op for $bwd {
            const NAME: &'static str = $bwd_name;

            fn shape(&self, ins: &[Meta]) -> Result<Meta> {
                check_inputs(Self::NAME, ins, 2..=3)?;
                check(Self::NAME, &ins[0].shape, &ins[1..ins.len() - 1], self.groups(), self.eps)?;
                let dy = ins[ins.len() - 1].shape;
                if dy != ins[0].shape {
                    return Err(mismatch(Self::NAME, "x and its upstream gradient differ", ins[0].shape, dy));
                }
                if self.bias && ins.len() == 2 {
                    return Err(Error::argument(Self::NAME, "bias", "there is no shift without a gain"));
                }
                Ok(Meta::f32(Shape::new(&[layout::packed(&self.parts(ins)).1])?))
            }

            fn workspace(&self, ins: &[Meta], _device: &Device) -> usize {
                self.channels(&ins[0]).workspace(4)
            }

            fn cpu(&self, run: CpuRun<'_>) {
                self.channels(&run.metas[0]).cpu_bwd(&self.parts(run.metas), run);
            }

            fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
                self.channels(&run.metas[0]).cuda_bwd(&self.parts(run.metas), run)
            }

            fn cuda_modules(&self, ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
                vec![self.channels(&ins[0]).module(true, ins.len() - 2)]
            }

            fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, v: Val) -> Result<Vec<Option<Val>>> {
                let metas: Vec<Meta> = io.ins.iter().map(|&v| r.meta(v)).collect();
                let gamma = (io.ins.len() == 3).then(|| io.ins[1]);
                let ends = [io.ins[0], io.ins[io.ins.len() - 1]];
                let grouped = self.channels(&metas[0]).grouped()?;
                let [by_x, by_gamma, by_dy] = grouped.second(r, ends, gamma, v, &self.parts(&metas))?;
                Ok(if gamma.is_some() { vec![by_x, by_gamma, by_dy] } else { vec![by_x, by_dy] })
            }

            fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
                let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
                let (starts, len) = layout::packed(&self.parts(&metas));
                let channels = self.channels(&metas[0]);
                let (x, dy) = (ins[0].num()?.data(), ins[ins.len() - 1].num()?.data());
                let gamma = if ins.len() == 3 { Some(ins[1].num()?.data()) } else { None };
                let mut out = vec![T::c(0.0); len];
                for group in 0..channels.group_count() {
                    let positions = channels.positions(group);
                    let values: Vec<T> = positions.iter().map(|&i| x[i]).collect();
                    let (mean, std) = reference_stats(&values, true, self.eps);
                    let n = T::c(positions.len() as f64);
                    let c = |i: usize| i / channels.s % channels.c;
                    let h = |i: usize| gamma.map_or(dy[i], |t| dy[i] * t[c(i)]);
                    let hat = |i: usize| (x[i] - mean) / std;
                    let sum = positions.iter().fold(T::c(0.0), |s, &i| s + h(i));
                    let moment = positions.iter().fold(T::c(0.0), |s, &i| s + h(i) * hat(i));
                    for &i in &positions {
                        out[i] = (h(i) - sum / n - hat(i) * (moment / n)) / std;
                        if let Some(at) = starts.get(1) {
                            out[at + c(i)] = out[at + c(i)] + dy[i] * hat(i);
                        }
                        if let Some(at) = starts.get(2) {
                            out[at + c(i)] = out[at + c(i)] + dy[i];
                        }
                    }
                }
                Tensor::with_shape(Shape::new(&[len])?, out)
            }

            fn samples() -> Vec<Sample<$bwd>> {
                let one = |(i, (d, _groups)): (usize, &(&[usize], usize))| {
                    let (affine, eps) = (usize::from(i % 4 != 2), sample_eps(i));
                    let op = $bwd { $($field: *_groups,)? eps, bias: affine == 1 && i % 4 != 3 };
                    Sample { op, ins: inputs(d, affine, true) }
                };
                SHAPES.iter().enumerate().map(one).collect()
            }

            fn random(stream: &mut Stream) -> Option<Sample<$bwd>> {
                let d = random_shape(stream);
                let op = $bwd { $($field: if d[1] % 2 == 0 { 2 } else { d[1] },)? eps: 1e-5, bias: true };
                Some(Sample { op, ins: inputs(&d, 1, true) })
            }

            fn rejects() -> Vec<Reject<$bwd>> {
                let f = |d: &[usize]| Meta::f32(dims(d));
                let op = |eps: f32, bias: bool| $bwd { $($field: 2,)? eps, bias };
                let x = || f(&[2, 4, 3]);
                vec![
                    Reject { op: op(1e-5, false), ins: vec![x()], want: "Arity" },
                    Reject { op: op(1e-5, false), ins: vec![f(&[4]), f(&[4])], want: "Rank" },
                    Reject { op: op(-1.0, false), ins: vec![x(), x()], want: "Argument" },
                    Reject { op: op(1e-5, true), ins: vec![x(), x()], want: "Argument" },
                    Reject { op: op(1e-5, false), ins: vec![x(), f(&[3]), x()], want: "Shapes" },
                    Reject { op: op(1e-5, false), ins: vec![x(), f(&[2, 4, 4])], want: "Shapes" },
                    Reject { op: op(1e-5, false), ins: vec![x(), Meta::u32(dims(&[2, 4, 3]))], want: "DType" },
                ]
            }

            fn bound(&self, ins: &[Meta]) -> Bound {
                let channels = self.channels(&ins[0]);
                Bound { ulps: 2.0, terms: 32.0 + 2.0 * channels.depth() + depth(channels.n * channels.chunks()) }
            }

            fn attrs(&self) -> Vec<(&'static str, Attr)> {
                vec![
                    $((stringify!($field), Attr::Num(self.$field as f64)),)?
                    ("eps", Attr::Num(f64::from(self.eps))),
                    ("bias", Attr::Bool(self.bias)),
                ]
            }

            fn from_attrs(attrs: &Attrs) -> Result<$bwd> {
                attrs.only(&[$(stringify!($field),)? "eps", "bias"])?;
                let (eps, bias) = (attrs.num("eps")? as f32, attrs.flag("bias")?);
                Ok($bwd { $($field: attrs.whole(stringify!($field))?,)? eps, bias })
            }
        }
    };
}

channel_norm! {
    /// `y = x^ gamma + beta` with `x^ = (x - mean) / sqrt(var + eps)` on `(N, C, …)`, mean and biased variance of each channel
    /// over all samples and positions: batch norm while training. Inputs `x`, or `x, gamma`, or `x, gamma, beta`,
    /// one gain and shift per channel.
    BatchNorm "batch_norm",
    /// Gradients of [`BatchNorm`] from `x, dy` or `x, gamma, dy`, packed as `[dx | dgamma | dbeta]`: with `h = dy gamma`,
    /// `dx = (h - mean(h) - x^ mean(h x^)) / sqrt(var + eps)`, `dgamma = sum dy x^`, `dbeta = sum dy` over a channel.
    BatchNormBwd "batch_norm_bwd",
    {}
}

channel_norm! {
    /// `y = x^ gamma + beta` with `x^ = (x - mean) / sqrt(var + eps)` on `(N, C, …)`, mean and biased variance of each of the
    /// groups that a sample's channels are shared out to. Inputs `x`, or `x, gamma`, or `x, gamma, beta`, one gain
    /// and shift per channel. A group per channel is instance norm.
    GroupNorm "group_norm",
    /// Gradients of [`GroupNorm`] from `x, dy` or `x, gamma, dy`, packed as `[dx | dgamma | dbeta]`; the formulas are those of
    /// [`BatchNormBwd`], means over a group, sums over a channel.
    GroupNormBwd "group_norm_bwd",
    { groups }
}

/// Mean and biased variance of each channel of `(N, C, …)` over all samples and positions, packed as `[mean | var]`: what
/// [`BatchNorm`] divides by, for running statistics. No gradient flows through it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moments;

impl Moments {
    /// Shapes of the packed results.
    #[doc(hidden)]
    pub fn parts(x: &Shape) -> [Shape; 2] {
        [dims(&x.dims()[1..2]); 2]
    }
}

impl Op for Moments {
    const NAME: &'static str = "moments";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        check_inputs(Self::NAME, ins, 1..=1)?;
        check(Self::NAME, &ins[0].shape, &[], None, 0.0)?;
        Ok(Meta::f32(Shape::new(&[layout::packed(&Moments::parts(&ins[0].shape)).1])?))
    }

    fn workspace(&self, ins: &[Meta], _device: &Device) -> usize {
        2 * Channels::of(&ins[0].shape, None, 0.0).leaves()
    }

    fn cpu(&self, run: CpuRun<'_>) {
        Channels::of(&run.metas[0].shape, None, 0.0).cpu_moments(run);
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        Channels::of(&run.metas[0].shape, None, 0.0).cuda_moments(run)
    }

    fn cuda_modules(&self, ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![Channels::of(&ins[0].shape, None, 0.0).module(false, 0)]
    }

    fn vjp(&self, _r: &mut dyn Recorder, _io: Io<'_>, _dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(vec![None])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let x = ins[0].num()?;
        let channels = Channels::of(&x.shape(), None, 0.0);
        let (starts, len) = layout::packed(&Moments::parts(&x.shape()));
        let mut out = vec![T::c(0.0); len];
        for c in 0..channels.c {
            let values: Vec<T> = channels.positions(c).iter().map(|&i| x.data()[i]).collect();
            let n = T::c(values.len() as f64);
            let mean = values.iter().fold(T::c(0.0), |s, &v| s + v) / n;
            out[c] = mean;
            out[starts[1] + c] = values.iter().fold(T::c(0.0), |s, &v| s + (v - mean) * (v - mean)) / n;
        }
        Tensor::with_shape(Shape::new(&[len])?, out)
    }

    fn samples() -> Vec<Sample<Moments>> {
        SHAPES.iter().map(|(d, _)| Sample { op: Moments, ins: inputs(d, 0, false) }).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample<Moments>> {
        Some(Sample { op: Moments, ins: inputs(&random_shape(stream), 0, false) })
    }

    fn rejects() -> Vec<Reject<Moments>> {
        vec![
            Reject { op: Moments, ins: vec![], want: "Arity" },
            Reject { op: Moments, ins: vec![Meta::f32(dims(&[3]))], want: "Rank" },
            Reject { op: Moments, ins: vec![Meta::u32(dims(&[2, 3]))], want: "DType" },
        ]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        Bound { ulps: 2.0, terms: 12.0 + Channels::of(&ins[0].shape, None, 0.0).depth() }
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn from_attrs(attrs: &Attrs) -> Result<Moments> {
        attrs.only(&[])?;
        Ok(Moments)
    }
}
