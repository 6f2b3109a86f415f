//! Elimination on the CPU. A matrix lies in *panels* of [`LANES`] columns, each with all its rows one after another, so
//! that a panel is one piece of memory that a thread owns, and a row of it is a vector.

use dittograd_device::cpu::simd::simd_fn;

/// Columns of a panel.
pub(super) const LANES: usize = 16;

/// Rows that are computed together.
pub(super) const ROWS: usize = 8;

/// Rows of a panel while they are computed.
pub(super) type Rows = [[f32; LANES]; ROWS];

/// The part of a triangular matrix on the diagonal: `[k][r]` is the factor of row `k` in row `r`, or the pivot if equal.
pub(super) type Corner = [[f32; ROWS]; ROWS];

simd_fn! {
    /// Subtracts the products of the rows `x` of a panel: `rows[r] = fma(-m[k * stride + at + r], x[k], rows[r])` for
    /// increasing `k`.
    pub(super) fn subtract(simd, m: &[f32], stride: usize, at: usize, x: &[f32], rows: &mut Rows) {
        let mut sums = *rows;
        for (x, m) in x.chunks_exact(LANES).zip(m.chunks_exact(stride)) {
            let (Some(x), Some(m)) = (x.first_chunk::<LANES>(), m[at..].first_chunk::<ROWS>()) else { break };
            for r in 0..ROWS {
                for l in 0..LANES {
                    sums[r][l] = (-m[r]).mul_add(x[l], sums[r][l]);
                }
            }
        }
        *rows = sums;
    }
}

simd_fn! {
    /// Solves with the part on the diagonal.
    pub(super) fn substitute(simd, corner: &Corner, rows: &mut Rows) {
        for r in 0..ROWS {
            let mut row = rows[r];
            for k in 0..r {
                let m = -corner[k][r];
                for l in 0..LANES {
                    row[l] = m.mul_add(rows[k][l], row[l]);
                }
            }
            row.iter_mut().for_each(|x| *x /= corner[r][r]);
            rows[r] = row;
        }
    }
}

simd_fn! {
    /// Factors the part on the diagonal, whose first column is `at`.
    pub(super) fn factor(simd, at: usize, rows: &mut Rows) {
        for r in 0..ROWS {
            let mut row = rows[r];
            for above in &rows[..r] {
                let m = -above[at + r];
                for l in 0..LANES {
                    row[l] = m.mul_add(above[l], row[l]);
                }
            }
            let pivot = super::cholesky::root(row[at + r]);
            row.iter_mut().for_each(|x| *x /= pivot);
            row[at + r] = pivot;
            rows[r] = row;
        }
    }
}

/// Rows of a panel from row `from`.
pub(super) fn read(panel: &[f32], from: usize) -> Rows {
    let mut rows = [[0.0; LANES]; ROWS];
    rows.as_flattened_mut().copy_from_slice(&panel[from * LANES..(from + ROWS) * LANES]);
    rows
}

/// Writes [`read`]'s rows back.
pub(super) fn write(panel: &mut [f32], from: usize, rows: &Rows) {
    panel[from * LANES..(from + ROWS) * LANES].copy_from_slice(rows.as_flattened());
}
