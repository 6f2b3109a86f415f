//! Gathers and scatter-adds.

use super::{Session, Var};
use crate::graph::Source;
use dittograd_device::AnyBuffer;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::index::{IndexAdd, IndexSelect, ScatterAdd, TakeAlongAxis};

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
    fn dim(self, op: &str, axis: usize) -> Result<usize> {
        let shape = self.shape()?;
        let dim = shape.dims().get(axis).copied();
        dim.ok_or_else(|| Error::new(op, ErrorKind::Axis { axis, shape }))
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
    #[doc(alias = "take")]
    #[track_caller]
    pub fn index_select(self, axis: usize, index: Var<'s>) -> Result<Var<'s>> {
        self.session.apply(IndexSelect { axis, checked: true }, &[self, index])
    }

    /// Like [`Var::index_select`], but an index out of range gives zeros.
    #[track_caller]
    pub fn index_select_or_zero(self, axis: usize, index: Var<'s>) -> Result<Var<'s>> {
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

    /// Gathers elements along an axis, each with its own index: `y[…, j, …] = x[…, index[…, j, …], …]`. An index out of
    /// range is an error.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(0.0, 6.0, 1.0)?.reshape(&[2, 3])?; // [[0. 1. 2.] [3. 4. 5.]]
    /// let of_each_row = session.indices(&Tensor::new(&[2, 1], vec![2, 0])?)?;
    /// assert_eq!(x.take_along_axis(1, of_each_row)?.to_string(), "[[2.]\n [3.]]");
    /// # Ok::<(), Error>(())
    /// ```
    #[doc(alias("gather", "take_along_dim"))]
    #[track_caller]
    pub fn take_along_axis(self, axis: usize, index: Var<'s>) -> Result<Var<'s>> {
        self.session.apply(TakeAlongAxis { axis, checked: true }, &[self, index])
    }

    /// This value with `src` added along an axis by index, in increasing source order:
    /// `y[…, index[j], …] += src[…, j, …]`. An index out of range is an error.
    #[doc(alias = "index_add_")]
    #[track_caller]
    pub fn index_add(self, axis: usize, index: Var<'s>, src: Var<'s>) -> Result<Var<'s>> {
        let size = self.dim("index_add", axis)?;
        self.session.apply(IndexAdd { axis, size, checked: true }, &[src, index, self])
    }

    /// Like [`Var::index_add`], but skips elements with an index out of range.
    #[track_caller]
    pub fn index_add_or_skip(self, axis: usize, index: Var<'s>, src: Var<'s>) -> Result<Var<'s>> {
        let size = self.dim("index_add_or_skip", axis)?;
        self.session.apply(IndexAdd { axis, size, checked: false }, &[src, index, self])
    }

    /// This value with each element of `src` added along an axis at its own index, in increasing source order:
    /// `y[…, index[…, j, …], …] += src[…, j, …]`. An index out of range is an error.
    #[doc(alias = "scatter_add_")]
    #[track_caller]
    pub fn scatter_add(self, axis: usize, index: Var<'s>, src: Var<'s>) -> Result<Var<'s>> {
        let size = self.dim("scatter_add", axis)?;
        self.session.apply(ScatterAdd { axis, size, checked: true }, &[src, index, self])
    }
}
