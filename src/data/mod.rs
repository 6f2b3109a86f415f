//! Data sets: generated from a seed or read from files, split, standardized, and served in batches, optionally in the
//! background. Everything is a pure function of the data and a seed, down to the bit: it uses the random streams of
//! [`crate::numerics::rng`], the crate's own float32 functions or `libm` in f64, and sums in a fixed order.
//!
//! | generated from a seed | inputs | targets |
//! |---|---|---|
//! | [`spirals()`] | points `(N, 2)` | classes `(N)` |
//! | [`burgers()`] | initial field and position `(N, X, 2)` | field at the end `(N, X, 1)` |
//! | [`darcy()`] | coefficient and position `(N, Y, X, 3)` | pressure `(N, Y, X, 1)` |
//! | [`digits()`] | pictures `(N, 1, 28, 28)` | classes `(N)` |
//! | [`additions`] | tokens `(N, T)` | next tokens `(N, T)` |
//! | [`regression()`] | features `(N, F)` | values `(N, 1)` |
//!
//! | read from files | inputs | targets |
//! |---|---|---|
//! | [`csv()`], [`csv_regression`] | columns `(N, F)` | classes `(N)` or columns `(N, K)` |
//! | [`npz`] | the array `x` | the array `y` |
//! | [`idx`] (MNIST), [`cifar10`] | pictures `(N, C, H, W)` | classes `(N)` |
//! | [`text()`], [`text_with`] | bytes, or tokens of a [`Tokenizer`], `(N, T)` | the next ones `(N, T)` |

pub mod arithmetic;
mod arrays;
mod batches;
mod burgers;
mod csv;
mod darcy;
mod digits;
mod fft;
mod images;
mod loader;
mod make;
mod regression;
mod scaling;
mod spirals;
mod text;
pub mod tokenizer;

pub use arithmetic::{Part, additions};
pub use arrays::{npz, npz_parts};
pub use batches::Batches;
pub use burgers::{burgers, burgers_with};
pub use csv::{csv, csv_inputs, csv_regression, csv_table, parse_csv, parse_csv_regression, print_csv};
pub use darcy::darcy;
pub use digits::digits;
pub use images::{cifar10, idx};
pub use loader::{Loader, MAX_AHEAD};
pub use regression::{Regression, regression};
pub use scaling::Scaling;
pub use spirals::spirals;
pub use text::{text, text_windows, text_with, token_windows};
pub use tokenizer::Tokenizer;

use crate::error::{Error, Result};
use crate::numerics::environment;
use crate::numerics::rng::Stream;
use crate::reserve::{collected, reserved};
use crate::shape::Shape;
use crate::tensor::{AnyTensor, Tensor};
use std::sync::Arc;

/// The most classes of a data set, so that a wrong label cannot cause a giant model.
pub const MAX_CLASSES: usize = 1 << 16;

/// The target of a position that does not count, such as the next token inside a question. Set `ignore` of
/// [`crate::session::LabelLoss`] to it for data with such positions.
pub const IGNORE: u32 = u32::MAX;

/// Counter of the random stream that draws points. Epochs count up from 0, so the streams never meet.
const DRAW: u64 = u64::MAX;
/// Counter of the random stream that splits.
const SPLIT: u64 = u64::MAX - 1;

/// Inputs and targets of some samples, in the same order.
pub type Samples = (AnyTensor, AnyTensor);

/// Samples along the first axis: inputs and targets, each numbers or indices of any shape. Numbers are finite, and
/// there is at least one sample. Clones share the memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    name: String,
    x: Arc<AnyTensor>,
    y: Arc<AnyTensor>,
    classes: Option<usize>,
    class_names: Option<Arc<[String]>>,
}

/// Adds types, shapes and elements of values to a hash.
pub(crate) fn add_bits(hash: &mut blake3::Hasher, values: [&AnyTensor; 2]) {
    for t in values {
        let (kind, bytes): (u8, &[u8]) = match t {
            AnyTensor::Num(t) => (0, bytemuck::cast_slice(t.data())),
            AnyTensor::Idx(t) => (1, bytemuck::cast_slice(t.data())),
        };
        hash.update(&[kind, t.shape().rank() as u8]);
        for d in t.shape().dims() {
            hash.update(&(*d as u64).to_le_bytes());
        }
        hash.update(bytes);
    }
}

impl Dataset {
    /// Inputs `x (N, …)` and targets `y (N, …)`. With `classes`, the targets are indices below it or [`IGNORE`]. Errors
    /// unless there is at least one sample with at least one element each, the shapes fit together, and all numbers are
    /// finite.
    #[track_caller]
    pub fn new(
        name: impl Into<String>,
        x: impl Into<AnyTensor>,
        y: impl Into<AnyTensor>,
        classes: Option<usize>,
    ) -> Result<Dataset> {
        let (x, y) = (x.into(), y.into());
        let wrong = |name: &'static str, why: String| Err(Error::argument("dataset", name, why));
        for (name, t) in [("x", &x), ("y", &y)] {
            if t.shape().rank() == 0 || t.shape().numel() == 0 {
                let why = "needs at least one sample, along the first axis, and one number in it";
                return wrong(name, format!("has shape {}, {why}", t.shape()));
            }
            let AnyTensor::Num(t) = t else { continue };
            let width = t.shape().numel() / t.shape().dims()[0];
            if let Some((i, v)) = t.data().iter().enumerate().find(|(_, v)| !v.is_finite()) {
                return wrong(name, format!("row {} has {v} at position {}", i / width, i % width));
            }
        }
        let rows = x.shape().dims()[0];
        if y.shape().dims()[0] != rows {
            return wrong("y", format!("has shape {}, needs one target for each of {rows} rows", y.shape()));
        }
        if let Some(classes) = classes {
            if !(1..=MAX_CLASSES).contains(&classes) {
                return wrong("classes", format!("got {classes}, use 1 to {MAX_CLASSES}"));
            }
            let AnyTensor::Idx(t) = &y else {
                return wrong("y", format!("holds numbers, but {classes} classes need indices"));
            };
            let width = t.shape().numel() / rows;
            let bad = |(_, c): &(usize, &u32)| **c as usize >= classes && **c != IGNORE;
            if let Some((i, c)) = t.data().iter().enumerate().find(bad) {
                return wrong("y", format!("class {c} of row {} is outside 0..{classes}", i / width));
            }
        }
        Ok(Dataset { name: name.into(), x: Arc::new(x), y: Arc::new(y), classes, class_names: None })
    }

    /// Gives each class a name, for reports. Errors unless there are as many names as classes.
    #[track_caller]
    pub fn with_class_names(self, names: impl Into<Arc<[String]>>) -> Result<Dataset> {
        let names = names.into();
        if self.classes != Some(names.len()) {
            let (have, want) = (names.len(), self.classes.unwrap_or(0));
            return Err(Error::argument(
                "dataset",
                "class_names",
                format!("{have} names for {want} classes"),
            ));
        }
        Ok(Dataset { class_names: Some(names), ..self })
    }

    /// Its name in reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The inputs, `(N, …)`.
    pub fn x(&self) -> &AnyTensor {
        &self.x
    }

    /// The targets, `(N, …)`.
    pub fn y(&self) -> &AnyTensor {
        &self.y
    }

    /// Number of classes or tokens if the targets are indices: they are below it, or [`IGNORE`].
    pub fn classes(&self) -> Option<usize> {
        self.classes
    }

    /// The names of the classes, in the order of their indices, if they have names.
    pub fn class_names(&self) -> Option<&[String]> {
        self.class_names.as_deref()
    }

    /// Numbers or indices in the input of one sample, at least 1.
    pub fn features(&self) -> usize {
        self.x.shape().numel() / self.rows()
    }

    /// Number of samples, at least 1.
    pub fn rows(&self) -> usize {
        self.x.shape().dims()[0]
    }

    /// Inputs and targets of some rows, in the order given. Errors if there is no such row.
    #[track_caller]
    pub fn take(&self, rows: &[usize]) -> Result<Samples> {
        if let Some(row) = rows.iter().find(|row| **row >= self.rows()) {
            return Err(Error::argument("dataset", "row", format!("{row} is not one of {}", self.rows())));
        }
        Ok((gather(&self.x, rows)?, gather(&self.y, rows)?))
    }

    /// The data set of some rows, in the order given. Errors if there is no such row, or none at all.
    #[track_caller]
    pub fn select(&self, rows: &[usize]) -> Result<Dataset> {
        let (x, y) = self.take(rows)?;
        self.with(x, y)
    }

    /// The same samples with other inputs or targets, of as many rows.
    #[track_caller]
    pub fn with(&self, x: impl Into<AnyTensor>, y: impl Into<AnyTensor>) -> Result<Dataset> {
        let same = Dataset::new(self.name.clone(), x, y, self.classes)?;
        Ok(Dataset { class_names: self.class_names.clone(), ..same })
    }

    /// A hash of everything a model can learn from it: 64 hex digits of shapes, kinds and bits of inputs and targets,
    /// without any names.
    pub fn hash(&self) -> String {
        let mut hash = blake3::Hasher::new();
        add_bits(&mut hash, [self.x(), self.y()]);
        hash.update(&(self.classes.unwrap_or(0) as u64).to_le_bytes());
        hash.finalize().to_hex().to_string()
    }

    /// All samples in order, in batches of `size`; the last batch may be smaller. For evaluation.
    #[track_caller]
    pub fn in_order(&self, size: usize) -> Result<impl Iterator<Item = Result<Samples>> + '_> {
        if size == 0 {
            return Err(Error::argument("dataset", "size", "got 0, use 1 or more"));
        }
        let rows = self.rows();
        Ok((0..rows.div_ceil(size)).map(move |i| {
            let from = i * size;
            let range = collected("rows", from..rows.min(from.saturating_add(size)))?;
            self.take(&range)
        }))
    }
}

/// The entries of the first axis named by `rows`, which exist.
#[track_caller]
fn gather(t: &AnyTensor, rows: &[usize]) -> Result<AnyTensor> {
    #[track_caller]
    fn of<T: Clone>(t: &Tensor<T>, rows: &[usize]) -> Result<Tensor<T>> {
        let mut dims = t.shape().dims().to_vec();
        let width = dims.drain(1..).product::<usize>();
        dims[0] = rows.len();
        dims.extend_from_slice(&t.shape().dims()[1..]);
        let shape = Shape::new(&dims)?;
        let mut data = reserved("rows", shape.numel())?;
        rows.iter().for_each(|row| data.extend_from_slice(&t.data()[row * width..][..width]));
        Tensor::with_shape(shape, data)
    }
    Ok(match t {
        AnyTensor::Num(t) => of(t, rows)?.into(),
        AnyTensor::Idx(t) => of(t, rows)?.into(),
    })
}

/// Splits at random into a first part with `fraction` of the rows (rounded down) and the rest. Both keep
/// the number of classes and their names. Errors if one of them would be empty.
#[track_caller]
pub fn split(data: &Dataset, fraction: f64, seed: u64) -> Result<(Dataset, Dataset)> {
    let _strict = environment::enter();
    let rows = data.rows();
    let first = if fraction > 0.0 && fraction < 1.0 { (rows as f64 * fraction) as usize } else { 0 };
    if first == 0 || first >= rows {
        let why = format!("{fraction} of {rows} rows leaves a part empty");
        return Err(Error::argument("split", "fraction", why));
    }
    let order = Stream::new(seed, SPLIT).try_permutation(rows)?;
    Ok((data.select(&order[..first])?, data.select(&order[first..])?))
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
        let two = Some(2);
        assert!(message(Dataset::new("d", x(&[]), y(1), two)).contains("x: has shape"));
        assert!(message(Dataset::new("d", x(&[0, 2]), y(0), two)).contains("at least one sample"));
        assert!(message(Dataset::new("d", x(&[2, 0]), y(2), two)).contains("one number in it"));
        assert!(message(Dataset::new("d", x(&[4, 2]), y(3), two)).contains("one target for each of 4 rows"));
        assert!(message(Dataset::new("d", x(&[4, 2]), y(4), Some(0))).contains("use 1 to 65536"));
        assert!(message(Dataset::new("d", x(&[4, 2]), x(&[4, 1]), two)).contains("need indices"));
        assert!(
            message(Dataset::new("d", x(&[1, 2]), tensor(&[1], &[2u32]), two)).contains("class 2 of row 0")
        );
        let bad = tensor(&[2, 2], &[0.0, 1.0, 2.0, f32::NAN]);
        assert!(message(Dataset::new("d", bad, y(2), two)).contains("row 1 has NaN at position 1"));
        let data = Dataset::new("d", x(&[4, 2]), y(4), two).unwrap();
        assert!(data.take(&[4]).is_err() && data.select(&[]).is_err() && data.in_order(0).is_err());
        let ignored = tensor(&[2, 2], &[0u32, IGNORE, 1, IGNORE]);
        assert!(Dataset::new("d", x(&[2, 2]), ignored, two).is_ok());
    }

    #[test]
    fn names_of_classes_stay_with_the_rows_and_out_of_the_hash() {
        let plain = spirals(3, 30, 3).unwrap();
        let names = ["a", "b", "c"].map(String::from);
        let named = plain.clone().with_class_names(names.to_vec()).unwrap();
        assert_eq!((named.hash(), named.class_names()), (plain.hash(), Some(&names[..])));
        let (first, rest) = split(&named, 0.5, 1).unwrap();
        assert_eq!([first.class_names(), rest.class_names()], [Some(&names[..]); 2]);
        let why = plain.with_class_names(names[..2].to_vec()).unwrap_err().to_string();
        assert!(why.contains("2 names for 3 classes"), "{why}");
    }

    #[test]
    fn a_hash_changes_with_every_bit_and_shape_and_not_with_the_name() {
        let x = |dims: &[usize]| tensor(dims, &[0.5f32, -0.0, 2.0, 3.0]);
        let y = |last: u32| tensor(&[2], &[0u32, last]);
        let hash = |name: &str, x: Tensor<f32>, y: Tensor<u32>, classes| {
            Dataset::new(name, x, y, classes).unwrap().hash()
        };
        let plain = hash("a", x(&[2, 2]), y(1), Some(2));
        assert_eq!(plain, hash("b", x(&[2, 2]), y(1), Some(2)));
        let positive = tensor(&[2, 2], &[0.5f32, 0.0, 2.0, 3.0]);
        let bits: Vec<u32> = x(&[4]).data().iter().map(|v| v.to_bits()).collect();
        let others = [
            hash("a", positive, y(1), Some(2)),
            hash("a", x(&[2, 2]), y(0), Some(2)),
            hash("a", x(&[2, 1, 2]), y(1), Some(2)),
            hash("a", x(&[2, 2]), y(1), Some(3)),
            Dataset::new("a", tensor(&[2, 2], &bits), y(1), Some(2)).unwrap().hash(),
        ];
        others.iter().for_each(|other| assert_ne!(*other, plain));
    }

    #[test]
    fn a_split_holds_every_row_once_and_keeps_rows_together() {
        let data = spirals(3, 101, 3).unwrap();
        let (a, b) = split(&data, 0.8, 5).unwrap();
        assert_eq!((a.rows(), b.rows(), a.classes(), b.classes()), (80, 21, Some(3), Some(3)));
        let key = |d: &Dataset| -> Vec<(u32, u32, u32)> {
            let bits = |r: &[f32]| (r[0].to_bits(), r[1].to_bits());
            let (x, y) = (d.x().num().unwrap().data(), d.y().idx().unwrap().data());
            x.chunks(2).zip(y).map(|(r, &c)| (bits(r).0, bits(r).1, c)).collect()
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
    fn rows_of_any_shape_and_kind_are_taken() {
        let x = Tensor::from_fn(Shape::new(&[5, 2, 3]).unwrap(), |i| i as u32);
        let y = Tensor::from_fn(Shape::new(&[5, 1]).unwrap(), |i| i as f32);
        let data = Dataset::new("d", x, y, None).unwrap();
        assert_eq!((data.rows(), data.features(), data.classes()), (5, 6, None));
        let (x, y) = data.take(&[3, 0, 3]).unwrap();
        assert_eq!((x.shape().dims(), y.shape().dims()), (&[3, 2, 3][..], &[3, 1][..]));
        assert_eq!(x.idx().unwrap().data()[..7], [18, 19, 20, 21, 22, 23, 0]);
        assert_eq!(y.num().unwrap().data(), [3.0, 0.0, 3.0]);
        assert!(x.num().is_err() && y.idx().is_err());
    }

    #[test]
    fn in_order_has_every_row_and_a_short_end() {
        let data = spirals(3, 10, 2).unwrap();
        for size in [1, 3, 5, 10, 11, usize::MAX] {
            let parts: Vec<Samples> = data.in_order(size).unwrap().map(|b| b.unwrap()).collect();
            assert_eq!(parts.len(), 10usize.div_ceil(size));
            let x: Vec<f32> = parts.iter().flat_map(|b| b.0.num().unwrap().data().to_vec()).collect();
            assert_eq!(x, data.x().num().unwrap().data());
            let y: Vec<u32> = parts.iter().flat_map(|b| b.1.idx().unwrap().data().to_vec()).collect();
            assert_eq!(y, data.y().idx().unwrap().data());
        }
    }
}
