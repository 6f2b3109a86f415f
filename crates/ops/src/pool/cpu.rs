//! The CPU kernels.

use super::smooth::{finite_shift, log_sum_exp, shifted_exp, weighted_exp};
use super::window::{Cells, Planes, coordinates};
use crate::CpuRun;
use crate::reduce::extremum::{larger, same};
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_numerics::shape::MAX_RANK;

/// Marks a window without a chosen cell.
pub(super) const NO_CELL: u32 = u32::MAX;

/// Loops over the elements of `x` with the given stride, zipped with other slices.
macro_rules! strided {
    ($x:ident, $stride:ident, $out:ident, |$v:ident, $i:ident| $body:block) => {
        if $stride == 1 {
            let $x = &$x[..$out.len()];
            for $i in 0..$out.len() {
                let $v = $x[$i];
                $body
            }
        } else if $stride == 2 {
            // Compilers vectorize a stride of two if it is written as pairs.
            let pairs = $x.as_chunks::<2>().0;
            let pairs = &pairs[..pairs.len().min($out.len())];
            for $i in 0..pairs.len() {
                let $v = pairs[$i][0];
                $body
            }
            for $i in pairs.len()..$out.len() {
                let $v = $x[2 * $i];
                $body
            }
        } else {
            for ($i, &$v) in $x.iter().step_by($stride).take($out.len()).enumerate() $body
        }
    };
}

simd_fn! {
    pub(super) fn max_step(simd, x: &[f32], stride: usize, best: &mut [f32]) {
        strided!(x, stride, best, |v, i| {
            best[i] = if larger(v, best[i]) { v } else { best[i] };
        });
    }
}

simd_fn! {
    /// For each window without a chosen cell: chooses this cell if its number is the same as `y`. The cells are
    /// `stride` apart, from `cell` on.
    pub(super) fn first_step(simd, x: &[f32], stride: usize, y: &[f32], cell: u32, found: &mut [u32]) {
        let (y, step) = (&y[..found.len()], stride as u32);
        strided!(x, stride, found, |v, i| {
            let take = (found[i] == NO_CELL) & same(v, y[i]);
            found[i] = if take { cell + i as u32 * step } else { found[i] };
        });
    }
}

simd_fn! {
    pub(super) fn sum_step(simd, x: &[f32], stride: usize, sums: &mut [f32]) {
        strided!(x, stride, sums, |v, i| { sums[i] += v; });
    }
}

simd_fn! {
    pub(super) fn scale(simd, factor: f32, out: &mut [f32]) {
        out.iter_mut().for_each(|y| *y *= factor);
    }
}

simd_fn! {
    pub(super) fn largest_step(simd, beta: f32, x: &[f32], stride: usize, best: &mut [f32]) {
        strided!(x, stride, best, |v, i| {
            let t = beta * v;
            best[i] = if t > best[i] { t } else { best[i] };
        });
    }
}

simd_fn! {
    pub(super) fn term_step(simd, beta: f32, x: &[f32], stride: usize, m: &[f32], sums: &mut [f32]) {
        let m = &m[..sums.len()];
        strided!(x, stride, sums, |v, i| { sums[i] += shifted_exp(beta, v, m[i]); });
    }
}

simd_fn! {
    pub(super) fn smooth_row(simd, beta: f32, m: &[f32], out: &mut [f32]) {
        let m = &m[..out.len()];
        for i in 0..out.len() {
            out[i] = log_sum_exp(m[i], out[i], beta);
        }
    }
}

simd_fn! {
    pub(super) fn shift_row(simd, m: &mut [f32]) {
        m.iter_mut().for_each(|m| *m = finite_shift(*m));
    }
}

simd_fn! {
    /// Adds `v e^(beta (x - y))` of strided cells to the sums of their windows.
    pub(super) fn weigh_step(simd, beta: f32, x: &[f32], v: &[f32], stride: usize, y: &[f32], sums: &mut [f32]) {
        let y = &y[..sums.len()];
        for (i, (&x, &v)) in x.iter().step_by(stride).zip(v.iter().step_by(stride)).take(sums.len()).enumerate() {
            sums[i] += weighted_exp(beta, x, y[i], v);
        }
    }
}

simd_fn! {
    /// Adds `dy e^(beta (x - y))` of windows to strided cells.
    pub(super) fn spread_step(simd, beta: f32, x: &[f32], stride: usize, y: &[f32], dy: &[f32], out: &mut [f32]) {
        let cells = x.iter().step_by(stride).zip(out.iter_mut().step_by(stride));
        for ((&x, out), (&y, &dy)) in cells.zip(y.iter().zip(dy)) {
            *out += weighted_exp(beta, x, y, dy);
        }
    }
}

simd_fn! {
    /// Adds `dy factor` of windows to strided cells.
    pub(super) fn share_step(simd, dy: &[f32], factor: f32, stride: usize, out: &mut [f32]) {
        for (out, dy) in out.iter_mut().step_by(stride).zip(dy) {
            *out += dy * factor;
        }
    }
}

/// Cells per task of the thread pool.
pub(super) const CELLS_PER_TASK: usize = 16 * 1024;

impl Planes {
    /// Calls `f` for each output row: its plane, the coordinates of its first cell, its start, and its words.
    pub(super) fn each_output_row(
        &self,
        run: CpuRun<'_>,
        f: impl Fn(usize, &[usize; MAX_RANK], usize, &mut [f32]) + Sync,
    ) {
        let row = self.output[self.rank() - 1];
        if run.out.is_empty() {
            return;
        }
        let per_plane = self.output_len() / row;
        let work = row * self.kernel_cells();
        let per_task = run.pool.share(self.count * per_plane, (CELLS_PER_TASK / work).max(1), 1);
        run.pool.chunks_mut(run.out, per_task * row, |task, out| {
            for (i, out) in out.chunks_mut(row).enumerate() {
                let at = task * per_task + i;
                let o = coordinates(at % per_plane * row, &self.output);
                f(at / per_plane, &o, at * row, out);
            }
        });
    }

    /// Number of cells of a window; an estimate for adaptive windows.
    pub(super) fn kernel_cells(&self) -> usize {
        match &self.cells {
            Cells::Fixed(w) => w.cells(),
            Cells::Adaptive => (self.input_len() / self.output_len()).max(1),
        }
    }

    /// Calls `f` for each plane of the input gradient, which is filled with zeros first.
    pub(super) fn each_input_plane(&self, run: CpuRun<'_>, f: impl Fn(usize, &mut [f32]) + Sync) {
        if run.out.is_empty() {
            return;
        }
        let len = self.input_len();
        let per_task = run.pool.share(self.count, (CELLS_PER_TASK / len).max(1), 1);
        run.pool.chunks_mut(run.out, per_task * len, |task, out| {
            for (i, out) in out.chunks_mut(len).enumerate() {
                out.fill(0.0);
                f(task * per_task + i, out);
            }
        });
    }

    /// For each window of an output row: the first cell, in row-major order, that is the same number as `y`.
    pub(super) fn first_cells(
        &self,
        simd: Simd,
        x: &[f32],
        o: &[usize; MAX_RANK],
        y: &[f32],
        found: &mut [u32],
    ) {
        let (stride, kernel) = self.last_axis();
        found.fill(NO_CELL);
        self.rows(o, |row| {
            let Some(row) = row else { return };
            for k in 0..kernel {
                let (range, first) = self.real_span(k);
                if !range.is_empty() {
                    // The shape rule limits planes to fewer than 2^32 cells.
                    let cell = (row + first) as u32;
                    first_step(simd, &x[row + first..], stride, &y[range.clone()], cell, &mut found[range]);
                }
            }
        });
    }
}
