//! The CPU kernels.

use super::{Channels, about_mean, moment_about_mean};
use crate::norm::{chunk_squares, input_gradient, inverse, inverse_std, normalized};
use crate::pointwise::expression::Scratch;
use crate::reduce;
use crate::{CpuRun, layout};
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::sum;
use dittograd_numerics::sum::{CHUNK, Chains, ROWS, WIDTH};

simd_fn! {
    /// Sum of `dy (x - m)` over at most one chunk of the row rule.
    pub(super) fn chunk_moments(simd, x: &[f32], dy: &[f32], m: f32) -> f32 {
        sum::chunk([x, &dy[..x.len()]], |[x, dy]| dy * (x - m))
    }
}

simd_fn! {
    /// Normalises one run of a channel. `row` is mean, `1 / std`, and the gain and shift if there are any.
    pub(super) fn normalize_run(simd, x: &[f32], row: [f32; 4], affine: usize, out: &mut [f32]) {
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
    /// The input gradient of one run of a channel. `row` is mean, `1 / std`, mean of h, mean of h x^.
    pub(super) fn gradient_run(simd, x: &[f32], dy: &[f32], row: [f32; 4], gamma: Option<f32>, out: &mut [f32]) {
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
    /// Normalises neighbouring channels of one sample. `stats` is all means, then all `1 / std`.
    pub(super) fn normalize_columns(simd, x: &[f32], stats: &[f32], gamma: &[f32], beta: &[f32], out: &mut [f32]) {
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
    /// The input gradients of neighbouring channels of one sample. `stats` is four lists: means, `1 / std`, means of h,
    /// means of h x^.
    pub(super) fn gradient_columns(simd, x: &[f32], dy: &[f32], stats: &[f32], gamma: &[f32], out: &mut [f32]) {
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

/// Sums [`WIDTH`] columns at once by the column rule. `add` adds the terms of one row.
pub(super) fn side_by_side(rows: usize, mut add: impl FnMut(usize, &mut [f32; WIDTH])) -> [f32; WIDTH] {
    // The first level of the column rule sums ROWS rows each; `sum::columns` does the other levels.
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

/// Sums of a chunk: `a`, `q`, and for gradients `b`, `p`; then its mean.
#[derive(Clone, Copy)]
pub(super) struct Leaf {
    pub(super) q: f32,
    pub(super) b: f32,
    pub(super) p: f32,
    pub(super) a: f32,
    pub(super) m: f32,
    pub(super) len: f32,
}

impl Channels {
    /// The group of a run.
    pub(super) fn group_of(&self, piece: usize) -> usize {
        match self.groups {
            None => piece % self.c,
            Some(_) => piece / self.group_runs(),
        }
    }

    /// The sums of chunk `k` of a run: read from `sums` (`width` words per chunk), or the element itself where runs are
    /// single elements.
    pub(super) fn leaf(&self, sums: &[f32], width: usize, ins: [&[f32]; 2], piece: usize, k: usize) -> Leaf {
        if self.s == 1 {
            let (x, dy) = (ins[0][piece], ins[1].get(piece).copied().unwrap_or(0.0));
            return Leaf { a: x, q: 0.0, b: dy, p: 0.0, m: x, len: 1.0 };
        }
        let at = (piece * self.chunks() + k) * width;
        let word = |i: usize| if i < width { sums[at + i] } else { 0.0 };
        let len = self.len(k);
        Leaf { a: word(0), q: word(1), b: word(2), p: word(3), m: word(0) * inverse(len), len: len as f32 }
    }

    /// Computes the sums of all chunks, two or four words each.
    pub(super) fn fill_sums(
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

    /// Sums one term per chunk over `runs` runs, by the column rule.
    pub(super) fn over_chunks(
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
    pub(super) fn moments(&self, group: usize, leaf: impl Fn(usize, usize) -> Leaf) -> (f32, f32) {
        let (runs, run) = (self.group_runs(), |i: usize| self.run_of(group, i));
        let inv = self.inverse();
        let mean = self.over_chunks(runs, run, |p, k| leaf(p, k).a) * inv;
        let squares = self.over_chunks(runs, run, |p, k| {
            let l = leaf(p, k);
            about_mean(l.q, l.len, l.m, mean)
        });
        (mean, squares * inv)
    }

    /// Means and variances of `width` neighbouring channels from `c`, where runs are single elements.
    pub(super) fn column_moments(&self, x: &[f32], c: usize, width: usize) -> [[f32; WIDTH]; 2] {
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

    pub(super) fn cpu_single(&self, run: CpuRun<'_>) {
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

    pub(super) fn cpu_bwd_single(&self, parts: &[Shape], run: CpuRun<'_>) {
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
            // Multiplying by a gain of 1 changes no bit.
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

    pub(super) fn cpu_moments(&self, run: CpuRun<'_>) {
        let (x, simd) = (run.ins[0], run.simd);
        self.fill_sums((run.pool, simd), x, None, run.workspace);
        let sums = &*run.workspace;
        let (mean, var) = run.out.split_at_mut(run.out.len() / 2);
        mean.fill(0.0);
        var.fill(0.0);
        let of = |g: usize| self.moments(g, |p, k| self.leaf(sums, 2, [x, &[]], p, k));
        // Means and variances are cut into the same ranges of channels. The words after the last channel stay zero.
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

    pub(super) fn cpu(&self, run: CpuRun<'_>) {
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

    pub(super) fn cpu_bwd(&self, parts: &[Shape], run: CpuRun<'_>) {
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
