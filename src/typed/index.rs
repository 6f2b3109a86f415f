//! Gathers and scatter-adds. For an index that the compiler knows, use [`Typed::select`].

use super::{Axis, Dim, Dims, HasAxis, Push, Size, Typed};
use crate::error::Result;

/// Embedding tables.
impl<'s, V: Dim, C: Dim> Typed<'s, (V, C)> {
    /// Rows of this table for indices of any shape. An index out of range is an error.
    #[track_caller]
    pub fn embedding<I: Push>(self, index: Typed<'s, I, u32>) -> Result<Typed<'s, I::With<C>>> {
        Ok(Typed::trust(self.var.embedding(index.var)?))
    }
}

/// Along an axis.
impl<'s, S: Dims> Typed<'s, S> {
    /// Gathers slices along an axis. An index out of range is an error.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// use dittograd::typed::{Axis, Labels, Matrix};
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let x: Matrix<3, 4> = session.full(&[3, 4], 1.0)?.typed()?;
    /// let index: Labels<2> = session.indices(&Tensor::new(&[2], vec![3u32, 0])?)?.typed()?;
    /// let columns: Matrix<3, 2> = x.index_select(index, Axis::<1>)?;
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn index_select<const AXIS: usize, N: Dim>(
        self,
        index: Typed<'s, (N,), u32>,
        _: Axis<AXIS>,
    ) -> Result<Typed<'s, S::With<N>>>
    where
        S: HasAxis<AXIS>,
    {
        Ok(Typed::trust(self.var.index_select(AXIS, index.var)?))
    }

    /// Like [`Typed::index_select`], but an index out of range gives zeros.
    #[track_caller]
    pub fn index_select_or_zero<const AXIS: usize, N: Dim>(
        self,
        index: Typed<'s, (N,), u32>,
        _: Axis<AXIS>,
    ) -> Result<Typed<'s, S::With<N>>>
    where
        S: HasAxis<AXIS>,
    {
        Ok(Typed::trust(self.var.index_select_or_zero(AXIS, index.var)?))
    }

    /// Gathers elements along an axis, each with its own index:
    /// [`Var::take_along_axis`](crate::session::Var::take_along_axis).
    #[track_caller]
    pub fn take_along_axis<const AXIS: usize, N: Dim>(
        self,
        index: Typed<'s, S::With<N>, u32>,
        _: Axis<AXIS>,
    ) -> Result<Typed<'s, S::With<N>>>
    where
        S: HasAxis<AXIS>,
    {
        Ok(Typed::trust(self.var.take_along_axis(AXIS, index.var)?))
    }

    /// The tensor with `src` added along an axis by index: [`Var::index_add`](crate::session::Var::index_add).
    #[track_caller]
    pub fn index_add<const AXIS: usize, N: Dim>(
        self,
        index: Typed<'s, (N,), u32>,
        src: Typed<'s, S::With<N>>,
        _: Axis<AXIS>,
    ) -> Result<Self>
    where
        S: HasAxis<AXIS>,
    {
        Ok(Typed::trust(self.var.index_add(AXIS, index.var, src.var)?))
    }

    /// Like [`Typed::index_add`], but what an index out of range names is left out.
    #[track_caller]
    pub fn index_add_or_skip<const AXIS: usize, N: Dim>(
        self,
        index: Typed<'s, (N,), u32>,
        src: Typed<'s, S::With<N>>,
        _: Axis<AXIS>,
    ) -> Result<Self>
    where
        S: HasAxis<AXIS>,
    {
        Ok(Typed::trust(self.var.index_add_or_skip(AXIS, index.var, src.var)?))
    }

    /// The tensor with each element of `src` added along an axis at its own index:
    /// [`Var::scatter_add`](crate::session::Var::scatter_add).
    #[track_caller]
    pub fn scatter_add<const AXIS: usize, N: Dim>(
        self,
        index: Typed<'s, S::With<N>, u32>,
        src: Typed<'s, S::With<N>>,
        _: Axis<AXIS>,
    ) -> Result<Self>
    where
        S: HasAxis<AXIS>,
    {
        Ok(Typed::trust(self.var.scatter_add(AXIS, index.var, src.var)?))
    }
}

/// Indices.
impl<'s, I: Push> Typed<'s, I, u32> {
    /// One-hot rows with as many classes as the caller names.
    #[track_caller]
    pub fn one_hot<const C: usize>(self) -> Result<Typed<'s, I::With<Size<C>>>> {
        Ok(Typed::trust(self.var.one_hot(C)?))
    }
}
