//! Values of which a part is replaced by another value.

use super::{PadMode, Var};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::{Position, Shape};
use dittograd_numerics::tensor::Tensor;

/// # Replacing parts
///
/// What a method named without `_scatter` takes from a value, these replace by another value of that shape.
impl<'s> Var<'s> {
    /// This value with element `i` of an axis replaced by `src`: see [`Var::select`].
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.zeros(&[2, 3])?;
    /// let y = x.select_scatter(session.ones(&[2])?, 1, -1)?;
    /// assert_eq!(y.to_string(), "[[0. 0. 1.]\n [0. 0. 1.]]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn select_scatter(self, src: Var<'s>, axis: impl Position, i: impl Position) -> Result<Var<'s>> {
        let (axis, size) = self.named_axis("select_scatter", axis)?;
        let Some(at) = i.among(size).filter(|&at| at < size) else {
            let why = format!("{} is none of the {size} elements of axis {axis}", i.number());
            return Err(Error::argument("select_scatter", "i", why));
        };
        let part = self.shape()?.without(axis)?;
        if src.shape()? != part {
            let why = "the source must have the shape of what it replaces";
            let kind = ErrorKind::Shapes { why, left: src.shape()?, right: part };
            return Err(Error::new("select_scatter", kind));
        }
        self.slice_scatter(src.unsqueeze(axis)?, axis, at, at + 1, 1)
    }

    /// This value with the elements `start`, `start + step`, … of an axis, up to but not including `end`, replaced by `src`: see
    /// [`Var::slice`].
    #[track_caller]
    pub fn slice_scatter(
        self,
        src: Var<'s>,
        axis: impl Position,
        start: usize,
        end: usize,
        step: usize,
    ) -> Result<Var<'s>> {
        let (axis, size) = self.named_axis("slice_scatter", axis)?;
        if start > end || end > size || step == 0 {
            let why = format!("{start}..{end} in steps of {step} does not lie in an axis of {size}");
            return Err(Error::argument("slice_scatter", "range", why));
        }
        let places = Shape::new(&[(end - start).div_ceil(step)])?;
        let index = self.session.indices(&Tensor::try_from_fn(places, |i| (start + i * step) as u32)?)?;
        self.index_copy(axis, index, src)
    }

    /// This value with the elements that [`Var::as_strided`] takes replaced by `src`; the last one of several for one place wins.
    #[track_caller]
    pub fn as_strided_scatter(
        self,
        src: Var<'s>,
        sizes: &[usize],
        strides: &[usize],
        offset: usize,
    ) -> Result<Var<'s>> {
        let places = self.strided_places("as_strided_scatter", sizes, strides, offset)?;
        self.put(places, src, false)
    }

    /// This value with a diagonal of axes `a` and `b` replaced by `src`: see [`Var::diagonal`].
    #[track_caller]
    pub fn diagonal_scatter(
        self,
        src: Var<'s>,
        offset: i64,
        a: impl Position,
        b: impl Position,
    ) -> Result<Var<'s>> {
        let (a, b) = (self.axis("diagonal_scatter", a)?, self.axis("diagonal_scatter", b)?);
        let part = self.diagonal(offset, a, b)?.shape()?;
        if src.shape()? != part {
            let why = "the source must have the shape of what it replaces";
            let kind = ErrorKind::Shapes { why, left: src.shape()?, right: part };
            return Err(Error::new("diagonal_scatter", kind));
        }
        if part.numel() == 0 {
            return Ok(self);
        }
        let dims = self.shape()?;
        let (rows, columns) = (dims.dims()[a], dims.dims()[b]);
        // Ones on the diagonal tell it apart.
        let whole = |v: Var<'s>| -> Result<Var<'s>> {
            let square = v.diag_embed(offset, -2, -1)?;
            let side = square.shape()?.last();
            let fitted = square.pad_mode(
                &[0, columns as i64 - side as i64, 0, rows as i64 - side as i64],
                PadMode::Constant(0.0),
            )?;
            fitted.movedim_axes(&[-2, -1], &[a, b])
        };
        whole(src.ones_like()?)?.where_(whole(src)?, self)
    }
}
