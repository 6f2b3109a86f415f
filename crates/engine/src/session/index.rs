//! Gathers and scatter-adds.

use super::{Session, Var};
use crate::graph::Source;
use dittograd_device::AnyBuffer;
use dittograd_numerics::error::{Error, ErrorKind, Located, Result};
use dittograd_numerics::shape::{Position, Shape};
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::index::{IndexAdd, IndexSelect, TakeAlongAxis};

impl Session {
    /// Indices that are known now. In a trace they become part of the program; see [`Session::labels`] for indices that
    /// are given at every run.
    #[track_caller]
    pub fn indices(&self, value: &Tensor<u32>) -> Result<Var<'_>> {
        let value = AnyBuffer::upload_indices(&self.device, value)?;
        self.leaf("indices", Source::Constant(value.clone()), || Ok(value), false)
    }
}

/// # Indexing
///
/// Gathers and scatter-adds. Additions to one place are made in the order of their sources.
impl<'s> Var<'s> {
    /// The size of an axis. Errors if the value has no such axis.
    #[track_caller]
    pub(super) fn dim(self, op: &str, axis: usize) -> Result<usize> {
        let shape = self.shape()?;
        let dim = shape.dims().get(axis).copied();
        dim.ok_or_else(|| Error::new(op, ErrorKind::Axis { axis, shape })).located()
    }

    /// Gathers slices along an axis; the axes of the indices replace `axis`. An index out of range is an error.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(0.0, 6.0, 1.0)?.reshape(&[2, 3])?; // [[0. 1. 2.] [3. 4. 5.]]
    /// let columns = session.indices(&Tensor::new(&[2], vec![2, 0])?)?;
    /// assert_eq!(x.index_select(1, columns)?.to_string(), "[[2. 0.]\n [5. 3.]]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn index_select(self, axis: impl Position, index: Var<'s>) -> Result<Var<'s>> {
        let axis = self.axis("index_select", axis)?;
        self.session.apply(IndexSelect { axis, checked: true }, &[self, index])
    }

    /// Like [`Var::index_select`], but an index out of range gives zeros.
    #[track_caller]
    pub fn index_select_or_zero(self, axis: impl Position, index: Var<'s>) -> Result<Var<'s>> {
        let axis = self.axis("index_select_or_zero", axis)?;
        self.session.apply(IndexSelect { axis, checked: false }, &[self, index])
    }

    /// Rows of this table `(V, C)` for indices of any shape: `(…)` to `(…, C)`. An index out of range is an error.
    #[track_caller]
    pub fn embedding(self, index: Var<'s>) -> Result<Var<'s>> {
        match self.shape()? {
            shape if shape.rank() == 2 => self.index_select(0, index),
            got => Err(Error::new("embedding", ErrorKind::Rank { want: "exactly 2", got })),
        }
    }

    /// Gathers elements along an axis, each with its own index: `y[…, j, …] = x[…, index[…, j, …], …]`. Along the other axes value
    /// and indices broadcast. An index out of range is an error.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(0.0, 6.0, 1.0)?.reshape(&[2, 3])?; // [[0. 1. 2.] [3. 4. 5.]]
    /// let of_each_row = session.indices(&Tensor::new(&[2, 1], vec![2, 0])?)?;
    /// assert_eq!(x.take_along_axis(1, of_each_row)?.to_string(), "[[2.]\n [3.]]");
    /// # Ok::<(), Error>(())
    /// ```
    #[doc(alias = "take_along_dim")]
    #[track_caller]
    pub fn take_along_axis(self, axis: impl Position, index: Var<'s>) -> Result<Var<'s>> {
        let axis = self.axis("take_along_axis", axis)?;
        let (x, index) = self.broadcast_along(axis, index)?;
        self.session.apply(TakeAlongAxis { axis, checked: true }, &[x, index])
    }

    /// This value and indices along an axis, broadcast along all others where they can be. Where not, the op says why.
    #[track_caller]
    fn broadcast_along(self, axis: usize, index: Var<'s>) -> Result<(Var<'s>, Var<'s>)> {
        let (own, other) = (self.shape()?, index.shape()?);
        let same = (0..own.rank()).all(|a| a == axis || other.dims().get(a) == Some(&own.dims()[a]));
        if same || own.rank() != other.rank() || axis >= own.rank() {
            return Ok((self, index));
        }
        let with = |shape: &Shape, size: usize| {
            let mut dims = shape.dims().to_vec();
            dims[axis] = size;
            Shape::new(&dims)
        };
        let Ok(common) = with(&own, 1)?.broadcast(&with(&other, 1)?) else { return Ok((self, index)) };
        let of = |v: Var<'s>, shape: &Shape| v.broadcast_to(with(&common, shape.dims()[axis])?);
        Ok((of(self, &own)?, of(index, &other)?))
    }

    /// This value with `src` added along an axis by index, in increasing source order:
    /// `y[…, index[j], …] += src[…, j, …]`. An index out of range is an error.
    #[doc(alias = "index_add_")]
    #[track_caller]
    pub fn index_add(self, axis: impl Position, index: Var<'s>, src: Var<'s>) -> Result<Var<'s>> {
        let axis = self.axis("index_add", axis)?;
        let size = self.dim("index_add", axis)?;
        self.session.apply(IndexAdd { axis, size, checked: true }, &[src, index, self])
    }

    /// Like [`Var::index_add`], but skips elements with an index out of range.
    #[track_caller]
    pub fn index_add_or_skip(self, axis: impl Position, index: Var<'s>, src: Var<'s>) -> Result<Var<'s>> {
        let axis = self.axis("index_add_or_skip", axis)?;
        let size = self.dim("index_add_or_skip", axis)?;
        self.session.apply(IndexAdd { axis, size, checked: false }, &[src, index, self])
    }
}
