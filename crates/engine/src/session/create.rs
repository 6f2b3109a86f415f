//! Values created from numbers. [`Session::full`] and its relatives run on the device; lists of numbers are computed in
//! f64 on the host and become constants.

use super::padding::MOST_TABLE;
use super::{Session, Var};
use dittograd_device::DType;
use dittograd_numerics::environment::{self, single};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::random::Full;

impl Session {
    /// Every element `value`.
    #[track_caller]
    pub fn full(&self, dims: &[usize], value: f64) -> Result<Var<'_>> {
        self.apply(Full { shape: Shape::new(dims)?, value: single(value) }, &[])
    }

    /// Every element 0.
    #[track_caller]
    pub fn zeros(&self, dims: &[usize]) -> Result<Var<'_>> {
        self.full(dims, 0.0)
    }

    /// Every element 1.
    #[track_caller]
    pub fn ones(&self, dims: &[usize]) -> Result<Var<'_>> {
        self.full(dims, 1.0)
    }

    /// The numbers `start + i step` below `end` (above it, if the step is negative), each rounded once.
    #[track_caller]
    pub fn arange(&self, start: f64, end: f64, step: f64) -> Result<Var<'_>> {
        let _strict = environment::enter();
        let count = ((end - start) / step).ceil();
        if !(start.is_finite() && step.is_finite() && count.is_finite()) {
            let why = format!(
                "{start}..{end} in steps of {step} has no end; use finite numbers, a step other than 0"
            );
            return Err(Error::argument("arange", "step", why));
        }
        let shape = Shape::new(&[count.max(0.0) as usize])?;
        self.constant(&Tensor::try_from_fn(shape, |i| start + i as f64 * step)?)
    }

    /// `count` evenly spaced numbers from `start` to `end`, both included, each rounded once. A single number is
    /// `start`.
    #[track_caller]
    pub fn linspace(&self, start: f64, end: f64, count: usize) -> Result<Var<'_>> {
        let _strict = environment::enter();
        self.constant(&Tensor::try_from_fn(Shape::new(&[count])?, spaced(start, end, count))?)
    }

    /// `count` powers of `base` whose exponents are evenly spaced from `start` to `end`, both included, each computed in f64 and
    /// rounded once. A single number is the first.
    #[track_caller]
    pub fn logspace(&self, start: f64, end: f64, count: usize, base: f64) -> Result<Var<'_>> {
        let _strict = environment::enter();
        let exponent = spaced(start, end, count);
        self.constant(&Tensor::try_from_fn(Shape::new(&[count])?, |i| libm::pow(base, exponent(i)))?)
    }

    /// Rows and columns of the elements of the lower triangle of a matrix, `(2, count)`, in row-major order: those that
    /// [`Var::tril`] keeps.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// assert_eq!(session.tril_indices(2, 3, 0)?.indices()?.data(), [0, 1, 1, 0, 0, 1]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn tril_indices(&self, rows: usize, columns: usize, diagonal: i64) -> Result<Var<'_>> {
        self.triangle("tril_indices", [rows, columns], |right| right <= diagonal.into())
    }

    /// Rows and columns of the elements of the upper triangle of a matrix, `(2, count)`, in row-major order: those that
    /// [`Var::triu`] keeps.
    #[track_caller]
    pub fn triu_indices(&self, rows: usize, columns: usize, diagonal: i64) -> Result<Var<'_>> {
        self.triangle("triu_indices", [rows, columns], |right| right >= diagonal.into())
    }

    /// Rows and columns of those elements of a matrix that are so many columns right of the diagonal.
    #[track_caller]
    fn triangle(
        &self,
        op: &'static str,
        [rows, columns]: [usize; 2],
        inside: impl Fn(i128) -> bool,
    ) -> Result<Var<'_>> {
        if rows.checked_mul(columns).is_none_or(|n| n > MOST_TABLE) {
            return Err(Error::new(op, ErrorKind::TooLarge { dims: vec![rows, columns] }));
        }
        let all = (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c)));
        let (mut list, columns): (Vec<u32>, Vec<u32>) =
            all.filter(|&(r, c)| inside(c as i128 - r as i128)).map(|(r, c)| (r as u32, c as u32)).unzip();
        let count = list.len();
        list.extend(columns);
        self.indices(&Tensor::new(&[2, count], list)?)
    }

    /// A matrix with ones on the diagonal and zeros elsewhere.
    #[doc(alias = "eye")]
    #[track_caller]
    pub fn eye_with(&self, rows: usize, columns: usize) -> Result<Var<'_>> {
        self.ones(&[rows, columns])?.tril(0)?.triu(0)
    }

    /// The identity matrix with `n` rows.
    #[doc(alias = "identity")]
    #[track_caller]
    pub fn eye(&self, n: usize) -> Result<Var<'_>> {
        self.eye_with(n, n)
    }
}

/// Number `i` of `count` evenly spaced ones. Computed from the nearer end, so that both ends are exact.
fn spaced(start: f64, end: f64, count: usize) -> impl Fn(usize) -> f64 {
    let last = count.saturating_sub(1);
    move |i| match 2 * i <= last {
        true => start + (end - start) * (i as f64 / last.max(1) as f64),
        false => end - (end - start) * ((last - i) as f64 / last as f64),
    }
}

/// # Values like it
///
/// Values of the same shape, and rows of zeros and ones for indices.
impl<'s> Var<'s> {
    /// A value of this shape with every element `value`.
    #[track_caller]
    pub fn full_like(self, value: f64) -> Result<Var<'s>> {
        self.session.full(self.shape()?.dims(), value)
    }

    /// A value of this shape with every element 0.
    #[track_caller]
    pub fn zeros_like(self) -> Result<Var<'s>> {
        self.full_like(0.0)
    }

    /// A value of this shape with every element 1.
    #[track_caller]
    pub fn ones_like(self) -> Result<Var<'s>> {
        self.full_like(1.0)
    }

    /// One-hot rows: indices `(…)` to `(…, classes)`, zeros with a 1 at the index. An index out of range is an error.
    #[track_caller]
    pub fn one_hot(self, classes: usize) -> Result<Var<'s>> {
        let meta = self.meta()?;
        meta.dtype.require(DType::U32, "one_hot", 0)?;
        let (lead, axis) = (meta.shape.dims(), meta.shape.rank());
        let one = self.session.ones(&[lead, &[1]].concat())?;
        let rows = self.session.zeros(&[lead, &[classes]].concat())?;
        rows.scatter_add(axis, self.unsqueeze(axis)?, one)
    }
}
