//! Elimination on the CPU. A matrix lies in *panels* of [`LANES`] columns, each with all its rows one after another, so
//! that a panel is one piece of memory that a thread owns. Rows are computed in *groups* of [`ROWS`], whose factors are packed,
//! those of a known row together: the negated factors of the known rows, then a square with the pivots on its diagonal.

use dittograd_device::cpu::gemm::{Factors, PANEL, add_products};
use dittograd_device::cpu::simd::{Simd, simd_fn};
use std::ops::Range;

/// Columns of a panel.
pub(super) const LANES: usize = PANEL;

/// Rows of a group.
pub(super) const ROWS: usize = 8;

/// Rows of the groups that a panel computes at a time: few enough that they stay in cache.
pub(super) const BLOCK: usize = 128;

/// Known rows whose products are subtracted at a time: few enough that they stay in the closest cache.
const RUN: usize = 256;

/// Matrices of a batch that a task takes one after another, in the same workspace, by the elements of one.
pub(super) fn together(len: usize) -> usize {
    (16 * 1024 / len.max(1)).max(1)
}

simd_fn! {
    /// Solves with the square of a group.
    fn substitute(simd, square: &[f32], rows: &mut [f32]) {
        let (square, _) = square.as_chunks::<ROWS>();
        let (rows, _) = rows.as_chunks_mut::<LANES>();
        let (Some(square), Some(rows)) = (square.first_chunk::<ROWS>(), rows.first_chunk_mut::<ROWS>()) else { return };
        for r in 0..ROWS {
            let mut row = rows[r];
            for k in 0..r {
                for l in 0..LANES {
                    row[l] = square[k][r].mul_add(rows[k][l], row[l]);
                }
            }
            row.iter_mut().for_each(|x| *x /= square[r][r]);
            rows[r] = row;
        }
    }
}

/// Subtracts the products of known rows from the groups of rows from `from` on, which are `groups`, each of `words`.
pub(super) fn subtract(
    simd: Simd,
    groups: &[f32],
    words: usize,
    known: Range<usize>,
    from: usize,
    panel: &mut [f32],
) {
    let (above, rows) = panel.split_at_mut(from * LANES);
    for first in known.clone().step_by(RUN) {
        let run = first..known.end.min(first + RUN);
        let b = &above[run.start * LANES..run.end * LANES];
        for (group, rows) in groups.chunks_exact(words).zip(rows.chunks_exact_mut(ROWS * LANES)) {
            add_products(simd, Factors { all: &group[run.start * ROWS..], row: 1, term: ROWS }, b, rows);
        }
    }
}

/// Computes groups of rows one after another, from which the products of the rows before `first` have been subtracted.
pub(super) fn solve(simd: Simd, groups: &[f32], words: usize, first: usize, from: usize, panel: &mut [f32]) {
    for (g, group) in groups.chunks_exact(words).enumerate() {
        let at = from + g * ROWS;
        subtract(simd, group, words, first..at, at, panel);
        substitute(simd, &group[at * ROWS..], &mut panel[at * LANES..][..ROWS * LANES]);
    }
}
