//! Values taken from, and added to, places given by indices.

use super::{Session, Var};
use crate::graph::Source;
use dittograd_device::AnyBuffer;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::index::{IndexAdd, IndexSelect, ScatterAdd, TakeAlongAxis};

impl Session {
    /// Indices that are known now. In a trace they become part of the program; see [`Session::labels`] for indices that are
    /// given anew for every run.
    pub fn indices(&self, value: &Tensor<u32>) -> Result<Var<'_>> {
        let value = AnyBuffer::upload_indices(&self.device, value)?;
        self.leaf("indices", Source::Constant(value.clone()), || Ok(value), false)
    }
}

impl<'s> Var<'s> {
    /// The axis must be there: a scalar has none.
    fn dim(self, op: &str, axis: usize) -> Result<usize> {
        let shape = self.shape()?;
        let dim = shape.dims().get(axis).copied();
        dim.ok_or_else(|| Error::new(op, ErrorKind::Axis { axis, shape }))
    }

    fn of_rank(self, op: &str, rank: usize, want: &'static str) -> Result<()> {
        match self.shape()? {
            shape if shape.rank() == rank => Ok(()),
            got => Err(Error::new(op, ErrorKind::Rank { want, got })),
        }
    }

    fn index_of(self, op: &str, axis: usize, i: usize) -> Result<()> {
        match self.dim(op, axis)? {
            bound if i < bound => Ok(()),
            bound => Err(Error::new(op, ErrorKind::Index { at: 0, index: i, bound })),
        }
    }

    /// Elements of an axis by index; the axes of the indices stand where `axis` was. An index out of range is an error.
    pub fn index_select(self, axis: usize, index: Var<'s>) -> Result<Var<'s>> {
        self.session.apply(IndexSelect { axis, checked: true }, &[self, index])
    }

    /// As [`Var::index_select`], with zeros for an index out of range.
    pub fn index_select_nat(self, axis: usize, index: Var<'s>) -> Result<Var<'s>> {
        self.session.apply(IndexSelect { axis, checked: false }, &[self, index])
    }

    /// Rows of this table `(V, C)` for indices of any shape: `(…)` to `(…, C)`. An index out of range is an error.
    pub fn embedding(self, index: Var<'s>) -> Result<Var<'s>> {
        self.of_rank("embedding", 2, "exactly 2")?;
        self.index_select(0, index)
    }

    /// Element `i` of a vector.
    pub fn gather_scalar(self, i: usize) -> Result<Var<'s>> {
        self.of_rank("gather_scalar", 1, "exactly 1")?;
        self.index_of("gather_scalar", 0, i)?;
        self.select(0, i)
    }

    /// Element `i` of a vector; 0, with a gradient of zeros, if there is none.
    pub fn gather_scalar_nat(self, i: usize) -> Result<Var<'s>> {
        self.of_rank("gather_scalar_nat", 1, "exactly 1")?;
        let index = u32::try_from(i).unwrap_or(u32::MAX);
        self.index_select_nat(0, self.session.indices(&Tensor::scalar(index))?)
    }

    /// Row `i` of a matrix.
    pub fn gather_row(self, i: usize) -> Result<Var<'s>> {
        self.of_rank("gather_row", 2, "exactly 2")?;
        self.index_of("gather_row", 0, i)?;
        self.select(0, i)
    }

    /// Elements of a vector by index, 0 where there is none.
    pub fn gather_vec_nat(self, index: Var<'s>) -> Result<Var<'s>> {
        self.of_rank("gather_vec_nat", 1, "exactly 1")?;
        self.index_select_nat(0, index)
    }

    /// Rows of a matrix by index, zeros where there is none.
    pub fn gather_rows_nat(self, index: Var<'s>) -> Result<Var<'s>> {
        self.of_rank("gather_rows_nat", 2, "exactly 2")?;
        self.index_select_nat(0, index)
    }

    /// Elements along an axis, each by an index of its own: `y[…, j, …] = x[…, index[…, j, …], …]`. An index out of range is
    /// an error.
    #[doc(alias("gather", "take_along_dim"))]
    pub fn take_along_axis(self, axis: usize, index: Var<'s>) -> Result<Var<'s>> {
        self.session.apply(TakeAlongAxis { axis, checked: true }, &[self, index])
    }

    /// The value with `src` added along an axis by index, in increasing source order: `y[…, index[j], …] += src[…, j, …]`. An
    /// index out of range is an error.
    pub fn index_add(self, axis: usize, index: Var<'s>, src: Var<'s>) -> Result<Var<'s>> {
        let size = self.dim("index_add", axis)?;
        self.session.apply(IndexAdd { axis, size, checked: true }, &[src, index, self])
    }

    /// The value with each element of `src` added along an axis at an index of its own, in increasing source order:
    /// `y[…, index[…, j, …], …] += src[…, j, …]`. An index out of range is an error.
    pub fn scatter_add(self, axis: usize, index: Var<'s>, src: Var<'s>) -> Result<Var<'s>> {
        let size = self.dim("scatter_add", axis)?;
        self.session.apply(ScatterAdd { axis, size, checked: true }, &[src, index, self])
    }

    /// A vector with the elements of `values` added to those that `index` names, in order; indices out of range are ignored.
    pub fn scatter_add_nat(self, index: Var<'s>, values: Var<'s>) -> Result<Var<'s>> {
        let size = self.vector("scatter_add_nat")?;
        self.session.apply(IndexAdd { axis: 0, size, checked: false }, &[values, index, self])
    }

    /// A matrix with the rows of `values` added to those that `index` names, in order; indices out of range are ignored.
    pub fn scatter_add_rows_nat(self, index: Var<'s>, values: Var<'s>) -> Result<Var<'s>> {
        self.of_rank("scatter_add_rows_nat", 2, "exactly 2")?;
        let size = self.dim("scatter_add_rows_nat", 0)?;
        self.session.apply(IndexAdd { axis: 0, size, checked: false }, &[values, index, self])
    }

    fn add_at(self, op: &str, i: usize, v: Var<'s>) -> Result<Var<'s>> {
        self.index_of(op, 0, i)?;
        let index = self.session.indices(&Tensor::scalar(i as u32))?;
        self.index_add(0, index, v)
    }

    /// A vector with the scalar `v` added to element `i`.
    pub fn scatter_add_vec(self, i: usize, v: Var<'s>) -> Result<Var<'s>> {
        self.of_rank("scatter_add_vec", 1, "exactly 1")?;
        self.add_at("scatter_add_vec", i, v)
    }

    /// A matrix with the vector `v` added to row `i`.
    pub fn scatter_add_row(self, i: usize, v: Var<'s>) -> Result<Var<'s>> {
        self.of_rank("scatter_add_row", 2, "exactly 2")?;
        self.add_at("scatter_add_row", i, v)
    }
}
