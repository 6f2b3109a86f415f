//! Darcy flow in two dimensions: from a medium to the pressure in it.

use super::Dataset;
use super::make::{parallel, stream};
use crate::error::{Error, Result};
use crate::numerics::environment;
use std::f64::consts::PI;

const SET: u64 = 0x6461_7263;
/// Waves of the field in each direction, the same for all grids, so that fields are the same on all grids.
const WAVES: usize = 32;
/// The coefficient where the field is not negative, and where it is.
const OPEN: f64 = 12.0;
const TIGHT: f64 = 3.0;
/// Finest allowed grid. The solver's time grows with its fourth power.
const MAX_GRID: usize = 128;

/// `samples` solutions of `-∇·(a ∇u) = 1` on the unit square with `u = 0` on its edge. Inputs `(N, grid, grid, 3)` are
/// the coefficient `a` and the position `x`, `y`; targets `(N, grid, grid, 1)` are the pressure `u`. Rows go along `y`.
///
/// `a` is 12 where a random field is not negative and 3 elsewhere. The field is a normal draw with mean 0 and
/// covariance `(-Δ + 9)^-2`, with slope 0 at the edge and up to 32 waves in each direction. Values are those at the
/// centres of cells. Finite volumes: the flow between two cells uses the harmonic mean of their coefficients. The
/// equations are solved directly in f64. The grid is 2 to 128.
#[track_caller]
pub fn darcy(seed: u64, samples: usize, grid: usize) -> Result<Dataset> {
    let _strict = environment::enter();
    if !(2..=MAX_GRID).contains(&grid) {
        return Err(Error::argument("darcy", "grid", format!("got {grid}, use 2 to {MAX_GRID}")));
    }
    // cos(πkx) in the middle of every cell, for every wave k.
    let cosines: Vec<f64> = (0..WAVES * grid)
        .map(|i| libm::cos(PI * ((i / grid) as f64 * ((i % grid) as f64 + 0.5) / grid as f64)))
        .collect();
    let (x, y) = parallel("darcy", samples, &[grid, grid, 3], &[grid, grid, 1], || {
        let mut solver = Solver::new(grid);
        let cosines = &cosines;
        move |i, x: &mut [f32], y: &mut [f32]| {
            solver.medium(seed, i, cosines);
            let u = solver.solve();
            for (cell, ((x, y), u)) in x.chunks_exact_mut(3).zip(y).zip(u).enumerate() {
                let middle = |j: usize| ((j as f64 + 0.5) / grid as f64) as f32;
                x.copy_from_slice(&[solver.a[cell] as f32, middle(cell % grid), middle(cell / grid)]);
                *y = u as f32;
            }
        }
    })?;
    Dataset::new("darcy", x, y, None)
}

struct Solver {
    grid: usize,
    /// The coefficient of every cell.
    a: Vec<f64>,
    /// The lower triangle of the symmetric band matrix: for every row the entries from `grid` before the diagonal up to
    /// it. After `solve` it is the Cholesky factor.
    band: Vec<f64>,
}

impl Solver {
    fn new(grid: usize) -> Solver {
        Solver { grid, a: vec![0.0; grid * grid], band: vec![0.0; grid * grid * (grid + 1)] }
    }

    /// The medium of sample `i`.
    fn medium(&mut self, seed: u64, i: usize, cosines: &[f64]) {
        let grid = self.grid;
        let mut stream = stream(seed, SET, i);
        // First along x for every wave in y, then along y.
        let mut rows = vec![0.0; WAVES * grid];
        for (ky, row) in rows.chunks_exact_mut(grid).enumerate() {
            for (kx, wave) in cosines.chunks_exact(grid).enumerate() {
                let squares = PI * PI * (kx * kx + ky * ky) as f64;
                // Normalizes the cosine wave to size 1.
                let size = if kx == 0 { 1.0 } else { 2.0 } * if ky == 0 { 1.0 } else { 2.0 };
                let drawn = f64::from(stream.normal()) * f64::sqrt(size) / (squares + 9.0);
                row.iter_mut().zip(wave).for_each(|(r, w)| *r += drawn * w);
            }
        }
        for (y, cells) in self.a.chunks_exact_mut(grid).enumerate() {
            cells.fill(0.0);
            for (row, wave) in rows.chunks_exact(grid).zip(cosines.chunks_exact(grid)) {
                cells.iter_mut().zip(row).for_each(|(c, r)| *c += r * wave[y]);
            }
            cells.iter_mut().for_each(|c| *c = if *c >= 0.0 { OPEN } else { TIGHT });
        }
    }

    /// The pressure in every cell.
    fn solve(&mut self) -> Vec<f64> {
        let Solver { grid, a, band } = self;
        let (n, width) = (*grid, *grid + 1);
        band.fill(0.0);
        for cell in 0..n * n {
            let (row, column) = (cell / n, cell % n);
            // The flow to each side: to a neighbour by the harmonic mean, to the edge over half a cell.
            let to = |inside: bool, other: usize| match inside {
                true => 2.0 * a[cell] * a[other] / (a[cell] + a[other]),
                false => 2.0 * a[cell],
            };
            let left = to(column > 0, cell.wrapping_sub(1));
            let below = to(row > 0, cell.wrapping_sub(n));
            let (right, above) = (to(column + 1 < n, cell + 1), to(row + 1 < n, cell + n));
            let entries = &mut band[cell * width..][..width];
            entries[n] = left + right + (below + above);
            if column > 0 {
                entries[n - 1] = -left;
            }
            if row > 0 {
                entries[0] -= below;
            }
        }
        // The right-hand side 1, times the area of a cell.
        let mut u = vec![1.0 / (n * n) as f64; n * n];
        // Cholesky factorization, row by row.
        for i in 0..n * n {
            let (done, rest) = band.split_at_mut(i * width);
            let own = &mut rest[..width];
            for j in i.saturating_sub(n)..i {
                let before = &done[j * width..][..width];
                // Columns that both rows have, from this row's first one.
                let from = i.saturating_sub(n);
                let (mine, theirs) = (&own[from + n - i..j + n - i], &before[from + n - j..n]);
                let dot = dot(mine, theirs);
                own[j + n - i] = (own[j + n - i] - dot) / before[n];
            }
            let from = n.saturating_sub(i);
            let dot = dot(&own[from..n], &own[from..n]);
            own[n] = (own[n] - dot).sqrt();
        }
        for i in 0..n * n {
            let (from, row) = (i.saturating_sub(n), &band[i * width..][..width]);
            u[i] = (u[i] - dot(&row[from + n - i..n], &u[from..i])) / row[n];
        }
        for i in (0..n * n).rev() {
            let (from, row) = (i.saturating_sub(n), &band[i * width..][..width]);
            let value = u[i] / row[n];
            u[i] = value;
            u[from..i].iter_mut().zip(&row[from + n - i..n]).for_each(|(u, r)| *u -= r * value);
        }
        u
    }
}

/// The dot product in eight partial sums, which are then added in order.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0f64; 8];
    let (a8, b8) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f64 = a8.remainder().iter().zip(b8.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a8.zip(b8) {
        for (s, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *s += a * b;
        }
    }
    sums.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use super::super::make::hash;
    use super::*;

    #[test]
    fn bits_are_the_committed_ones() {
        let data = darcy(7, 3, 16).unwrap();
        assert_eq!(
            (hash(data.x()).as_str(), hash(data.y()).as_str()),
            ("7ca5855dd71d2070", "ce8897cba62df00c")
        );
    }

    #[test]
    fn the_flow_out_of_every_cell_is_what_comes_in() {
        for n in [2usize, 3, 8, 13] {
            let mut solver = Solver::new(n);
            let mut stream = stream(1, 2, n);
            solver.a.iter_mut().for_each(|a| *a = if stream.uniform() < 0.5 { 3.0 } else { 12.0 });
            let u = solver.solve();
            for cell in 0..n * n {
                let (row, column) = (cell / n, cell % n);
                let mut out = 0.0;
                let mut side = |inside: bool, other: usize| {
                    out += match inside {
                        true => (u[cell] - u[other]) / (0.5 / solver.a[cell] + 0.5 / solver.a[other]),
                        false => u[cell] * 2.0 * solver.a[cell],
                    };
                };
                side(column > 0, cell.wrapping_sub(1));
                side(column + 1 < n, cell + 1);
                side(row > 0, cell.wrapping_sub(n));
                side(row + 1 < n, cell + n);
                assert!((out * (n * n) as f64 - 1.0).abs() < 1e-10, "{n} {cell}: {out}");
            }
        }
    }

    #[test]
    fn an_even_medium_has_the_pressure_of_the_series() {
        let n = 64;
        let mut solver = Solver::new(n);
        solver.a.fill(1.0);
        let u = solver.solve();
        // The exact value at the centre of the square is 0.07367135.
        let middle = (u[31 * n + 31] + u[31 * n + 32] + u[32 * n + 31] + u[32 * n + 32]) / 4.0;
        assert!((middle - 0.073_671_35).abs() < 1e-4, "{middle}");
    }

    #[test]
    fn media_have_both_kinds_and_are_the_same_on_all_grids() {
        let (coarse, fine) = (darcy(3, 4, 9).unwrap(), darcy(3, 4, 27).unwrap());
        let numbers = |d: &Dataset| d.x().num().unwrap().data().to_vec();
        let (coarse, fine) = (numbers(&coarse), numbers(&fine));
        for sample in 0..4 {
            for cell in 0..81 {
                // The centre of a coarse cell is that of the middle one of nine fine cells.
                let other = (3 * (cell / 9) + 1) * 27 + 3 * (cell % 9) + 1;
                let (a, b) =
                    (&coarse[3 * (81 * sample + cell)..][..3], &fine[3 * (729 * sample + other)..][..3]);
                assert!(a[0] == b[0] && (a[1] - b[1]).abs() < 1e-6 && (a[2] - b[2]).abs() < 1e-6);
            }
        }
        assert!(fine.chunks(3).any(|c| c[0] == 12.0) && fine.chunks(3).any(|c| c[0] == 3.0));
        assert!(fine.chunks(3).all(|c| c[0] == 12.0 || c[0] == 3.0));
    }

    #[test]
    fn sizes_that_cannot_be_are_errors() {
        assert!(darcy(1, 0, 8).is_err() && darcy(1, usize::MAX, 8).is_err());
        assert!(darcy(1, 1, 1).is_err() && darcy(1, 1, 129).is_err());
    }
}
