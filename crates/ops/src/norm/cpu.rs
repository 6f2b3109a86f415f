//! The CPU kernels.

use super::{Rows, input_gradient, inverse, inverse_std, normalized};
use crate::reduce;
use crate::{CpuRun, layout};
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::sum;
use dittograd_numerics::sum::{ROWS, WIDTH};

simd_fn! {
    /// Sum of `(x - mean)^2` over at most one chunk of the row rule.
    pub(crate) fn chunk_squares(simd, x: &[f32], mean: f32) -> f32 {
        sum::chunk([x], |[x]| (x - mean) * (x - mean))
    }
}

simd_fn! {
    /// Sum of products over at most one chunk of the row rule.
    pub(super) fn chunk_products(simd, a: &[f32], b: &[f32]) -> f32 {
        sum::chunk([a, &b[..a.len()]], |[a, b]| a * b)
    }
}

simd_fn! {
    /// Sum of `dy gamma x^` over at most one chunk of the row rule. An empty `gamma` stands for ones.
    pub(super) fn chunk_moments(simd, x: &[f32], dy: &[f32], gamma: &[f32], mean: f32, r: f32) -> f32 {
        let dy = &dy[..x.len()];
        if gamma.is_empty() {
            return sum::chunk([x, dy], |[x, dy]| dy * normalized(x, mean, r));
        }
        sum::chunk([x, dy, &gamma[..x.len()]], |[x, dy, g]| (dy * g) * normalized(x, mean, r))
    }
}

simd_fn! {
    /// `x^ gamma + beta` along a row. An empty `gamma` or `beta` is left out.
    pub(super) fn normalize_row(simd, x: &[f32], gamma: &[f32], beta: &[f32], mean: f32, r: f32, out: &mut [f32]) {
        let n = out.len();
        let x = &x[..n];
        if !beta.is_empty() {
            let (gamma, beta) = (&gamma[..n], &beta[..n]);
            for i in 0..n {
                out[i] = normalized(x[i], mean, r).mul_add(gamma[i], beta[i]);
            }
        } else if !gamma.is_empty() {
            let gamma = &gamma[..n];
            for i in 0..n {
                out[i] = normalized(x[i], mean, r) * gamma[i];
            }
        } else {
            for i in 0..n {
                out[i] = normalized(x[i], mean, r);
            }
        }
    }
}

simd_fn! {
    /// The input gradient along a row. `row` is mean, r, mean of h, mean of h x^. An empty `gamma` stands for ones.
    pub(super) fn gradient_row(simd, x: &[f32], dy: &[f32], gamma: &[f32], row: [f32; 4], out: &mut [f32]) {
        let n = out.len();
        let (x, dy, [mean, r, mean_h, mean_hx]) = (&x[..n], &dy[..n], row);
        if gamma.is_empty() {
            for i in 0..n {
                out[i] = input_gradient(dy[i], mean_h, normalized(x[i], mean, r), mean_hx, r);
            }
        } else {
            let gamma = &gamma[..n];
            for i in 0..n {
                out[i] = input_gradient(dy[i] * gamma[i], mean_h, normalized(x[i], mean, r), mean_hx, r);
            }
        }
    }
}

simd_fn! {
    /// Adds a row's `dy x^` and `dy` to the running sums of its columns. An empty slice of sums is skipped.
    pub(super) fn chain_row(simd, x: &[f32], dy: &[f32], mean: f32, r: f32, gain: &mut [f32], shift: &mut [f32]) {
        let n = gain.len();
        let (x, dy) = (&x[..n], &dy[..n]);
        for i in 0..n {
            gain[i] += dy[i] * normalized(x[i], mean, r);
        }
        for (s, dy) in shift.iter_mut().zip(dy) {
            *s += dy;
        }
    }
}

simd_fn! {
    /// Sums of up to [`WIDTH`] neighbouring columns by the column rule.
    pub(crate) fn column_sums(simd, x: &[f32], rows: usize, stride: usize, out: &mut [f32]) {
        sum::columns(x, rows, stride, out);
    }
}

impl Rows {
    /// Mean (0 if the norm does not subtract it) and `1 / std` of a row.
    pub(super) fn stats(&self, simd: Simd, x: &[f32]) -> (f32, f32) {
        let inv = inverse(self.width);
        let mean = if self.centered { reduce::row_sum(simd, x) * inv } else { 0.0 };
        let squares = sum::row(x.len(), |c| chunk_squares(simd, &x[c], mean));
        (mean, inverse_std(squares * inv, self.eps))
    }

    pub(super) fn cpu(&self, run: CpuRun<'_>) {
        if run.out.is_empty() {
            return;
        }
        let (simd, width, ins) = (run.simd, self.width, run.ins);
        let (gamma, beta) = (ins.get(1).copied().unwrap_or(&[]), ins.get(2).copied().unwrap_or(&[]));
        let per_task = run.pool.share(self.rows, (4 * 1024 / width).max(1), 1);
        run.pool.chunks_mut(run.out, per_task * width, |task, out| {
            for (i, out) in out.chunks_mut(width).enumerate() {
                let at = (task * per_task + i) * width;
                let x = &ins[0][at..at + width];
                let (mean, r) = self.stats(simd, x);
                normalize_row(simd, x, gamma, beta, mean, r, out);
            }
        });
    }

    /// The gradient of one row; returns its mean and `1 / std`.
    pub(super) fn gradient(
        &self,
        simd: Simd,
        x: &[f32],
        dy: &[f32],
        gamma: &[f32],
        out: &mut [f32],
    ) -> (f32, f32) {
        let inv = inverse(self.width);
        let (mean, r) = self.stats(simd, x);
        let of = |c: &std::ops::Range<usize>| if gamma.is_empty() { gamma } else { &gamma[c.clone()] };
        let mean_h = match (self.centered, gamma.is_empty()) {
            (false, _) => 0.0,
            (true, true) => reduce::row_sum(simd, dy) * inv,
            (true, false) => sum::row(dy.len(), |c| chunk_products(simd, &dy[c.clone()], &gamma[c])) * inv,
        };
        let moments =
            sum::row(x.len(), |c| chunk_moments(simd, &x[c.clone()], &dy[c.clone()], of(&c), mean, r));
        gradient_row(simd, x, dy, gamma, [mean, r, mean_h, moments * inv], out);
        (mean, r)
    }

    /// Computes `[dx | dgamma | dbeta]`, or as many of them as `parts` has.
    pub(super) fn cpu_bwd(&self, parts: &[Shape], run: CpuRun<'_>) {
        let (simd, width, rows) = (run.simd, self.width, self.rows);
        let (x, dy) = (run.ins[0], run.ins[run.ins.len() - 1]);
        let gamma = if run.ins.len() == 3 { run.ins[1] } else { &[] };
        let (starts, _) = layout::packed(parts);
        let (dx, rest) = run.out.split_at_mut(starts.get(1).copied().unwrap_or(run.out.len()));
        let (dx, pad) = dx.split_at_mut(rows * width);
        pad.fill(0.0);
        let sums = parts.len() - 1;
        let group = ROWS * width;
        if sums == 0 {
            run.pool.chunks_mut(dx, group.max(1), |task, out| {
                for (i, out) in out.chunks_mut(width).enumerate() {
                    let at = (task * ROWS + i) * width;
                    self.gradient(simd, &x[at..at + width], &dy[at..at + width], gamma, out);
                }
            });
            return;
        }
        let partial = &mut run.workspace[..rows.div_ceil(ROWS) * sums * width];
        run.pool.pairs_mut((dx, group), (partial, sums * width), |task, out, chains| {
            chains.fill(0.0);
            let (gain, shift) = chains.split_at_mut(width);
            for (i, out) in out.chunks_mut(width).enumerate() {
                let at = (task * ROWS + i) * width;
                let (x, dy) = (&x[at..at + width], &dy[at..at + width]);
                let (mean, r) = self.gradient(simd, x, dy, gamma, out);
                chain_row(simd, x, dy, mean, r, gain, shift);
            }
        });
        let (partial, stride) = (&run.workspace[..], sums * width);
        for (i, out) in rest.chunks_mut(width.next_multiple_of(4)).enumerate() {
            let (out, pad) = out.split_at_mut(width);
            pad.fill(0.0);
            run.pool.chunks_mut(out, WIDTH, |tile, out| {
                let at = (i * width + tile * WIDTH).min(partial.len());
                column_sums(simd, &partial[at..], rows.div_ceil(ROWS), stride, out);
            });
        }
    }
}
