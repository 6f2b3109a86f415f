//! Data sets for classification: made from a seed or read from CSV, split, standardised, and dealt out in
//! batches. Everything is a pure function of the data and a seed, down to the bit: streams of
//! [`crate::numerics::rng`], the crate's own float32 functions, and f64 sums in row order.

mod batches;
mod csv;
mod spirals;

pub use batches::Batches;
pub use csv::{csv, parse_csv, print_csv};
pub use spirals::spirals;

use crate::error::{Error, Result};
use crate::numerics::rng::Stream;
use crate::tensor::Tensor;

/// Most classes a data set may have, so that a wild label cannot ask for a giant model.
pub const MAX_CLASSES: usize = 1 << 16;

/// Counter of the random stream that draws points; epochs count up from 0, so they never meet.
const DRAW: u64 = u64::MAX;
/// Counter of the random stream that splits.
const SPLIT: u64 = u64::MAX - 1;

/// Rows of finite numbers with a class each. Made through [`Dataset::new`], so the parts always fit.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    name: String,
    x: Tensor<f32>,
    y: Tensor<u32>,
    classes: usize,
}

impl Dataset {
    /// Features `x (N, F)` and classes `y (N)`, each below `classes`. Errors unless there are a row and a
    /// feature at least, and all of it fits together and is finite.
    pub fn new(name: impl Into<String>, x: Tensor<f32>, y: Tensor<u32>, classes: usize) -> Result<Dataset> {
        let wrong = |name: &'static str, why: String| Err(Error::argument("dataset", name, why));
        let &[rows, features] = x.shape().dims() else {
            return wrong("x", format!("has shape {}, needs (rows, features)", x.shape()));
        };
        if rows == 0 || features == 0 {
            return wrong("x", format!("has shape {}, needs at least one row and one feature", x.shape()));
        }
        if y.shape().dims() != [rows] {
            return wrong("y", format!("has shape {}, needs one class for each of {rows} rows", y.shape()));
        }
        if !(1..=MAX_CLASSES).contains(&classes) {
            return wrong("classes", format!("got {classes}, use 1 to {MAX_CLASSES}"));
        }
        if let Some((row, c)) = y.data().iter().enumerate().find(|(_, c)| **c as usize >= classes) {
            return wrong("y", format!("class {c} of row {row} is outside 0..{classes}"));
        }
        if let Some((i, v)) = x.data().iter().enumerate().find(|(_, v)| !v.is_finite()) {
            return wrong("x", format!("row {} has {v} as feature {}", i / features, i % features));
        }
        Ok(Dataset { name: name.into(), x, y, classes })
    }

    /// What it is called in reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The features, `(N, F)`.
    pub fn x(&self) -> &Tensor<f32> {
        &self.x
    }

    /// The classes, `(N)`.
    pub fn y(&self) -> &Tensor<u32> {
        &self.y
    }

    /// Number of classes; every entry of [`Dataset::y`] is below it.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Number of features, at least 1.
    pub fn features(&self) -> usize {
        self.x.shape().last()
    }

    /// Number of rows, at least 1.
    pub fn rows(&self) -> usize {
        self.y.data().len()
    }

    /// Features and classes of some rows, in the order given. Errors if there is no such row.
    pub fn take(&self, rows: &[usize]) -> Result<(Tensor<f32>, Tensor<u32>)> {
        let width = self.features();
        let mut x = Vec::with_capacity(rows.len() * width);
        let mut y = Vec::with_capacity(rows.len());
        for &row in rows {
            let Some(&class) = self.y.data().get(row) else {
                let why = format!("{row} is not one of {}", self.rows());
                return Err(Error::argument("dataset", "row", why));
            };
            x.extend_from_slice(&self.x.data()[row * width..(row + 1) * width]);
            y.push(class);
        }
        Ok((Tensor::new(&[rows.len(), width], x)?, Tensor::new(&[rows.len()], y)?))
    }

    fn part(&self, rows: &[usize]) -> Result<Dataset> {
        let (x, y) = self.take(rows)?;
        Dataset::new(self.name.clone(), x, y, self.classes)
    }
}

/// Splits at random into a first part with `fraction` of the rows (rounded down) and the rest. Both keep
/// the number of classes. Errors if one of them would be empty.
pub fn split(data: &Dataset, fraction: f64, seed: u64) -> Result<(Dataset, Dataset)> {
    let rows = data.rows();
    let first = if fraction > 0.0 && fraction < 1.0 { (rows as f64 * fraction) as usize } else { 0 };
    if first == 0 || first >= rows {
        let why = format!("{fraction} of {rows} rows leaves a part empty");
        return Err(Error::argument("split", "fraction", why));
    }
    let order = Stream::new(seed, SPLIT).permutation(rows);
    Ok((data.part(&order[..first])?, data.part(&order[first..])?))
}

/// Shift and scale of every feature, learnt on one part and applied to all.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaling {
    mean: Vec<f64>,
    deviation: Vec<f64>,
}

impl Scaling {
    /// Mean and standard deviation (over N, not N - 1) of every feature, in f64, summed in row order. A
    /// feature that never changes gets deviation 1.
    pub fn of(data: &Dataset) -> Scaling {
        let (rows, width) = (data.rows() as f64, data.features());
        let mut mean = vec![0.0f64; width];
        for row in data.x.data().chunks_exact(width) {
            mean.iter_mut().zip(row).for_each(|(m, &v)| *m += f64::from(v));
        }
        mean.iter_mut().for_each(|m| *m /= rows);
        let mut deviation = vec![0.0f64; width];
        for row in data.x.data().chunks_exact(width) {
            for ((d, m), &v) in deviation.iter_mut().zip(&mean).zip(row) {
                let off = f64::from(v) - m;
                *d += off * off;
            }
        }
        for d in &mut deviation {
            *d = (*d / rows).sqrt();
            if *d == 0.0 {
                *d = 1.0;
            }
        }
        Scaling { mean, deviation }
    }

    /// `(x - mean) / deviation` for every feature, in f64 and rounded once. Errors if the number of
    /// features is another, or if a value leaves the range of float32.
    pub fn apply(&self, data: &Dataset) -> Result<Dataset> {
        let width = data.features();
        if width != self.mean.len() {
            let why = format!("{width} columns, the scaling was made for {}", self.mean.len());
            return Err(Error::argument("scaling", "features", why));
        }
        let scaled = |(i, &v): (usize, &f32)| {
            ((f64::from(v) - self.mean[i % width]) / self.deviation[i % width]) as f32
        };
        let x = data.x.data().iter().enumerate().map(scaled).collect();
        Dataset::new(data.name.clone(), Tensor::with_shape(data.x.shape(), x)?, data.y.clone(), data.classes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor<T: Clone>(dims: &[usize], data: &[T]) -> Tensor<T> {
        Tensor::new(dims, data.to_vec()).unwrap()
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        let x = |dims: &[usize]| Tensor::full(crate::shape::Shape::new(dims).unwrap(), 0.5f32);
        let y = |n: usize| tensor(&[n], &vec![0u32; n]);
        let message = |r: Result<Dataset>| r.unwrap_err().to_string();
        assert!(message(Dataset::new("d", x(&[4]), y(4), 2)).contains("needs (rows, features)"));
        assert!(message(Dataset::new("d", x(&[0, 2]), y(0), 2)).contains("at least one row"));
        assert!(message(Dataset::new("d", x(&[2, 0]), y(2), 2)).contains("one feature"));
        assert!(message(Dataset::new("d", x(&[4, 2]), y(3), 2)).contains("one class for each of 4 rows"));
        assert!(message(Dataset::new("d", x(&[4, 2]), y(4), 0)).contains("use 1 to 65536"));
        assert!(message(Dataset::new("d", x(&[1, 2]), tensor(&[1], &[2]), 2)).contains("class 2 of row 0"));
        let bad = tensor(&[2, 2], &[0.0, 1.0, 2.0, f32::NAN]);
        assert!(message(Dataset::new("d", bad, y(2), 2)).contains("row 1 has NaN as feature 1"));
        assert!(Dataset::new("d", x(&[4, 2]), y(4), 2).unwrap().take(&[4]).is_err());
    }

    #[test]
    fn a_split_holds_every_row_once_and_keeps_rows_together() {
        let data = spirals(3, 101, 3).unwrap();
        let (a, b) = split(&data, 0.8, 5).unwrap();
        assert_eq!((a.rows(), b.rows(), a.classes(), b.classes()), (80, 21, 3, 3));
        let key = |d: &Dataset| -> Vec<(u32, u32, u32)> {
            let bits = |r: &[f32]| (r[0].to_bits(), r[1].to_bits());
            d.x().data().chunks(2).zip(d.y().data()).map(|(r, &c)| (bits(r).0, bits(r).1, c)).collect()
        };
        let mut got = [key(&a), key(&b)].concat();
        let mut want = key(&data);
        got.sort_unstable();
        want.sort_unstable();
        assert_eq!(got, want);
        assert_eq!(split(&data, 0.8, 5).unwrap(), (a.clone(), b));
        assert_ne!(split(&data, 0.8, 6).unwrap().0, a);
        for fraction in [0.0, 1.0, -1.0, 2.0, f64::NAN, 1e-9, 0.001] {
            assert!(split(&data, fraction, 5).is_err(), "{fraction}");
        }
    }

    #[test]
    fn scaling_centres_and_scales_what_it_was_made_from() {
        let x = tensor(&[4, 2], &[1.0, 7.0, 3.0, 7.0, 5.0, 7.0, 7.0, 7.0]);
        let data = Dataset::new("d", x, tensor(&[4], &[0, 1, 0, 1]), 2).unwrap();
        let scaling = Scaling::of(&data);
        let scaled = scaling.apply(&data).unwrap();
        let column: Vec<f64> = scaled.x().data().iter().step_by(2).map(|&v| f64::from(v)).collect();
        assert!(column.iter().sum::<f64>().abs() < 1e-6);
        assert!((column.iter().map(|v| v * v).sum::<f64>() / 4.0 - 1.0).abs() < 1e-6);
        assert!(
            scaled.x().data().iter().skip(1).step_by(2).all(|&v| v == 0.0),
            "a constant feature becomes 0"
        );
        assert!(scaling.apply(&spirals(1, 8, 2).unwrap()).is_ok());
        let narrow = Dataset::new("n", tensor(&[1, 1], &[1.0]), tensor(&[1], &[0]), 1).unwrap();
        assert!(scaling.apply(&narrow).is_err());
    }

    #[test]
    fn scaling_survives_the_largest_floats() {
        let x = tensor(&[2, 1], &[f32::MAX, f32::MIN]);
        let data = Dataset::new("d", x, tensor(&[2], &[0, 1]), 2).unwrap();
        assert_eq!(Scaling::of(&data).apply(&data).unwrap().x().data(), [1.0, -1.0]);
    }
}
