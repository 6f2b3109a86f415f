//! Layout methods that are made of others.

use super::padding::MOST_TABLE;
use super::{Session, Var};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::{Position, Shape};
use dittograd_numerics::tensor::Tensor;

impl Session {
    /// Values joined along their second axis; vectors along their only one. Scalars count as vectors.
    #[track_caller]
    pub fn hstack<'s>(&'s self, values: &[Var<'s>]) -> Result<Var<'s>> {
        let values = values.iter().map(|v| v.atleast_1d()).collect::<Result<Vec<_>>>()?;
        let is_flat = values.first().map_or(Ok(true), |v| v.shape().map(|s| s.rank() == 1))?;
        self.concat(&values, usize::from(!is_flat))
    }

    /// Values joined along their first axis. Vectors count as rows.
    #[doc(alias = "row_stack")]
    #[track_caller]
    pub fn vstack<'s>(&'s self, values: &[Var<'s>]) -> Result<Var<'s>> {
        self.concat(&values.iter().map(|v| v.atleast_2d()).collect::<Result<Vec<_>>>()?, 0)
    }

    /// Values joined along their third axis. Vectors count as `(1, N, 1)`, matrices as `(M, N, 1)`.
    #[track_caller]
    pub fn dstack<'s>(&'s self, values: &[Var<'s>]) -> Result<Var<'s>> {
        self.concat(&values.iter().map(|v| v.atleast_3d()).collect::<Result<Vec<_>>>()?, 2)
    }

    /// Vectors as the columns of a matrix, joined with matrices along the second axis.
    #[track_caller]
    pub fn column_stack<'s>(&'s self, values: &[Var<'s>]) -> Result<Var<'s>> {
        let column = |v: &Var<'s>| -> Result<Var<'s>> {
            let shape = v.shape()?;
            if shape.rank() < 2 { v.reshape(&[shape.numel(), 1]) } else { Ok(*v) }
        };
        self.concat(&values.iter().map(column).collect::<Result<Vec<_>>>()?, 1)
    }

    /// Values broadcast to the shape that they have together.
    #[track_caller]
    pub fn broadcast_tensors<'s>(&'s self, values: &[Var<'s>]) -> Result<Vec<Var<'s>>> {
        let mut all = Shape::SCALAR;
        for v in values {
            all = all.broadcast(&v.shape()?)?;
        }
        values.iter().map(|v| v.broadcast_to(all)).collect()
    }

    /// Coordinates of a grid: of vectors with `n_i` elements, values of shape `(n_0, n_1, …)`, value `i` changing along axis
    /// `i`. With `xy` the first two axes are swapped.
    #[track_caller]
    pub fn meshgrid<'s>(&'s self, values: &[Var<'s>], xy: bool) -> Result<Vec<Var<'s>>> {
        let sizes = values.iter().map(|v| v.atleast_1d()?.vector("meshgrid")).collect::<Result<Vec<_>>>()?;
        let of = |axis: usize, v: &Var<'s>| {
            let dims: Vec<usize> = (0..sizes.len()).map(|a| if a == axis { sizes[a] } else { 1 }).collect();
            let grid = v.reshape(&dims)?.expand(&sizes)?;
            if xy && sizes.len() > 1 { grid.swap_axes(0, 1) } else { Ok(grid) }
        };
        values.iter().enumerate().map(|(axis, v)| of(axis, v)).collect()
    }

    /// All combinations of the elements of vectors, as the rows of a matrix; the last vector changes fastest. Of one vector it
    /// is the vector itself.
    #[track_caller]
    pub fn cartesian_prod<'s>(&'s self, values: &[Var<'s>]) -> Result<Var<'s>> {
        if let [one] = values {
            return Ok(*one);
        }
        let columns =
            self.meshgrid(values, false)?.into_iter().map(|v| v.flatten()).collect::<Result<Vec<_>>>()?;
        self.stack(&columns, 1)
    }
}

/// # More layout
impl<'s> Var<'s> {
    /// The size of an axis that a caller names, and the axis.
    #[track_caller]
    pub(super) fn named_axis(self, op: &str, axis: impl Position) -> Result<(usize, usize)> {
        let (axis, shape) = (self.axis(op, axis)?, self.shape()?);
        match shape.dims().get(axis) {
            Some(&size) => Ok((axis, size)),
            None => Err(Error::new(op, ErrorKind::Axis { axis, shape })),
        }
    }

    /// The axes from `start` to `end`, both included, as one. Shares memory.
    #[doc(alias = "flatten")]
    #[track_caller]
    pub fn flatten_axes(self, start: impl Position, end: impl Position) -> Result<Var<'s>> {
        let shape = self.shape()?;
        if shape.rank() == 0 {
            return self.reshape(&[1]);
        }
        let ((start, _), (end, _)) =
            (self.named_axis("flatten_axes", start)?, self.named_axis("flatten_axes", end)?);
        if start > end {
            let why = format!("axis {start} comes after axis {end}");
            return Err(Error::argument("flatten_axes", "start", why));
        }
        let d = shape.dims();
        self.reshape(&[&d[..start], &[d[start..=end].iter().product()], &d[end + 1..]].concat())
    }

    /// An axis as several of the given sizes; at most one of these may be -1, which stands for the size that is left.
    /// Shares memory.
    #[track_caller]
    pub fn unflatten(self, axis: impl Position, sizes: &[i64]) -> Result<Var<'s>> {
        let (axis, all) = self.named_axis("unflatten", axis)?;
        let wrong = || {
            let why = format!("{sizes:?} is no way to cut axis {axis} of {all} elements");
            Error::argument("unflatten", "sizes", why)
        };
        let known = sizes.iter().filter(|&&n| n != -1).try_fold(1usize, |product, &n| {
            usize::try_from(n).ok().and_then(|n| product.checked_mul(n)).ok_or_else(wrong)
        })?;
        let is_open = sizes.iter().filter(|&&n| n == -1).count();
        let fits = if is_open == 0 { known == all } else { is_open == 1 && known > 0 && all % known == 0 };
        if sizes.is_empty() || !fits {
            return Err(wrong());
        }
        let cut: Vec<usize> = sizes.iter().map(|&n| if n == -1 { all / known } else { n as usize }).collect();
        let d = self.shape()?;
        self.reshape(&[&d.dims()[..axis], &cut, &d.dims()[axis + 1..]].concat())
    }

    /// The same elements with another shape, of which one size may be -1: it stands for the size that is left. Shares memory.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// assert_eq!(session.zeros(&[4, 6])?.view(&[-1, 3])?.shape()?.dims(), [8, 3]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn view(self, sizes: &[i64]) -> Result<Var<'s>> {
        if sizes.is_empty() { self.reshape(&[]) } else { self.flatten()?.unflatten(0, sizes) }
    }

    /// Moves the axes `from` to the positions `to`; the others keep their order.
    #[doc(alias("movedim", "moveaxis"))]
    #[track_caller]
    pub fn movedim_axes(self, from: &[impl Position], to: &[impl Position]) -> Result<Var<'s>> {
        let rank = self.shape()?.rank();
        let (from, to) = (self.axes("movedim", from)?, self.axes("movedim", to)?);
        let is_list = |v: &[usize]| v.iter().enumerate().all(|(i, a)| *a < rank && !v[..i].contains(a));
        if from.len() != to.len() || !is_list(&from) || !is_list(&to) {
            let why = format!("{from:?} to {to:?} are not as many different ones of {rank} axes");
            return Err(Error::argument("movedim", "axes", why));
        }
        let mut order: Vec<Option<usize>> = vec![None; rank];
        from.iter().zip(&to).for_each(|(&from, &to)| order[to] = Some(from));
        let mut rest = (0..rank).filter(|a| !from.contains(a));
        let order: Vec<usize> = order.into_iter().filter_map(|a| a.or_else(|| rest.next())).collect();
        self.permute(&order)
    }

    /// [`Var::roll`] of several axes, each by its own shift.
    #[doc(alias = "roll")]
    #[track_caller]
    pub fn roll_axes(self, axes: &[impl Position], shifts: &[i64]) -> Result<Var<'s>> {
        if axes.len() != shifts.len() {
            let why = format!("{} are given for {} axes", shifts.len(), axes.len());
            return Err(Error::argument("roll", "shifts", why));
        }
        axes.iter().zip(shifts).try_fold(self, |v, (&axis, &shift)| v.roll(axis, shift))
    }

    /// Windows of `size` elements of an axis, one every `step`, as a new last axis: PyTorch's `Tensor.unfold`. Patches of images
    /// are [`Var::im2col`].
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(0.0, 5.0, 1.0)?;
    /// assert_eq!(x.unfold(0, 3, 2)?.to_string(), "[[0. 1. 2.]\n [2. 3. 4.]]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn unfold(self, axis: impl Position, size: usize, step: usize) -> Result<Var<'s>> {
        let (axis, all) = self.named_axis("unfold", axis)?;
        let Some(room) = all.checked_sub(size).filter(|_| step > 0) else {
            let why = format!("{size} elements every {step} do not fit axis {axis} of {all}");
            return Err(Error::argument("unfold", "size", why));
        };
        let shape = Shape::new(&[room / step + 1, size])?;
        let place = |i: usize| (i / size.max(1) * step + i % size.max(1)) as u32;
        let index = self.session().indices(&Tensor::try_from_fn(shape, place)?)?;
        self.index_select(axis, index)?.movedim(axis + 1, -1)
    }

    /// A value of the given sizes whose element at `i` is element `offset + Σ strides[a] i[a]` of this value as one list, in row-major
    /// order. The elements are copied.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(0.0, 5.0, 1.0)?;
    /// assert_eq!(x.as_strided(&[2, 3], &[1, 1], 1)?.to_string(), "[[1. 2. 3.]\n [2. 3. 4.]]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn as_strided(self, sizes: &[usize], strides: &[usize], offset: usize) -> Result<Var<'s>> {
        self.take(self.strided_places("as_strided", sizes, strides, offset)?)
    }

    /// The positions in row-major order that [`Var::as_strided`] takes.
    #[track_caller]
    pub(super) fn strided_places(
        self,
        op: &str,
        sizes: &[usize],
        strides: &[usize],
        offset: usize,
    ) -> Result<Var<'s>> {
        if sizes.len() != strides.len() {
            let why = format!("{strides:?} must have an entry for each of the sizes {sizes:?}");
            return Err(Error::argument(op, "strides", why));
        }
        let (shape, have) = (Shape::new(sizes)?, self.shape()?.numel());
        let mut steps =
            sizes.iter().zip(strides).map(|(&n, &stride)| n.saturating_sub(1).checked_mul(stride));
        let last = steps.try_fold(offset, |sum, step| sum.checked_add(step?));
        if shape.numel() > 0 && last.is_none_or(|last| last >= have) {
            let why = format!("{strides:?} from {offset} lead beyond the {have} elements of the value");
            return Err(Error::argument(op, "strides", why));
        }
        let place = |mut i: usize| {
            let mut at = offset;
            for (&n, &stride) in sizes.iter().zip(strides).rev() {
                at += i % n * stride;
                i /= n;
            }
            at as u32
        };
        self.session().indices(&Tensor::try_from_fn(shape, place)?)
    }

    /// All choices of `r` elements of this vector, as the rows of a matrix, in the order of their positions. With `replacement` an
    /// element may be taken more than once.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(0.0, 3.0, 1.0)?;
    /// assert_eq!(x.combinations(2, false)?.to_string(), "[[0. 1.]\n [0. 2.]\n [1. 2.]]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn combinations(self, r: usize, replacement: bool) -> Result<Var<'s>> {
        let n = self.vector("combinations")?;
        if r == 0 {
            return self.narrow(0, 0, 0);
        }
        let mut rows: Vec<Vec<u32>> = vec![Vec::new()];
        for taken in 0..r {
            let first = |row: &[u32]| row.last().map_or(0, |&last| last + u32::from(!replacement));
            // Enough elements must be left for the rest of the row.
            let end = if replacement { n } else { (n + taken + 1).saturating_sub(r) } as u32;
            let longer = |row: Vec<u32>| (first(&row)..end).map(move |i| [&row[..], &[i]].concat());
            rows = rows.into_iter().flat_map(longer).collect();
            if rows.is_empty() {
                break;
            }
            if rows.len().saturating_mul(r) > MOST_TABLE {
                let why = format!("{n} elements have too many choices of {r}");
                return Err(Error::argument("combinations", "r", why));
            }
        }
        let index = self.session().indices(&Tensor::new(&[rows.len(), r], rows.concat())?)?;
        self.index_select(0, index)
    }

    /// An axis cut before each of these positions.
    #[doc(alias = "tensor_split")]
    #[track_caller]
    pub fn split_at(self, axis: impl Position, positions: &[usize]) -> Result<Vec<Var<'s>>> {
        let (axis, all) = self.named_axis("split_at", axis)?;
        let ends = positions.iter().map(|&p| p.min(all)).chain([all]);
        let mut start = 0;
        ends.map(|end| {
            let piece = self.narrow(axis, start.min(end), end.saturating_sub(start));
            start = end;
            piece
        })
        .collect()
    }

    /// An axis cut into `count` pieces; the first ones have one element more if they cannot be equal.
    #[track_caller]
    pub fn tensor_split(self, axis: impl Position, count: usize) -> Result<Vec<Var<'s>>> {
        let (axis, all) = self.named_axis("tensor_split", axis)?;
        if count == 0 {
            return Err(Error::argument("tensor_split", "count", "is 0, use 1 or more"));
        }
        let sizes: Vec<usize> = (0..count).map(|i| all / count + usize::from(i < all % count)).collect();
        self.split(axis, &sizes)
    }

    /// `count` equal pieces of an axis.
    #[track_caller]
    fn equal_split(self, op: &str, axis: usize, count: usize) -> Result<Vec<Var<'s>>> {
        let (axis, all) = self.named_axis(op, axis)?;
        if count == 0 || all % count != 0 {
            let why = format!("axis {axis} of {all} elements is not {count} equal pieces");
            return Err(Error::argument(op, "count", why));
        }
        self.split(axis, &vec![all / count; count])
    }

    /// `count` equal pieces of the second axis, of a vector of its only one.
    #[track_caller]
    pub fn hsplit(self, count: usize) -> Result<Vec<Var<'s>>> {
        self.equal_split("hsplit", usize::from(self.shape()?.rank() > 1), count)
    }

    /// `count` equal pieces of the first axis of a value with two axes or more.
    #[track_caller]
    pub fn vsplit(self, count: usize) -> Result<Vec<Var<'s>>> {
        match self.shape()? {
            got if got.rank() < 2 => Err(Error::new("vsplit", ErrorKind::Rank { want: "at least 2", got })),
            _ => self.equal_split("vsplit", 0, count),
        }
    }

    /// `count` equal pieces of the third axis.
    #[track_caller]
    pub fn dsplit(self, count: usize) -> Result<Vec<Var<'s>>> {
        self.equal_split("dsplit", 2, count)
    }

    /// The slices of an axis, which is dropped.
    #[track_caller]
    pub fn unbind(self, axis: impl Position) -> Result<Vec<Var<'s>>> {
        let (axis, all) = self.named_axis("unbind", axis)?;
        (0..all).map(|i| self.select(axis, i)).collect()
    }

    /// The value turned by `k` quarter turns in the plane of two axes, from the first towards the second.
    #[track_caller]
    pub fn rot90(self, k: i64, a: impl Position, b: impl Position) -> Result<Var<'s>> {
        let ((a, _), (b, _)) = (self.named_axis("rot90", a)?, self.named_axis("rot90", b)?);
        if a == b {
            return Err(Error::argument("rot90", "axes", format!("both are axis {a}; name two")));
        }
        match k.rem_euclid(4) {
            1 => self.flip(&[b])?.swap_axes(a, b),
            2 => self.flip(&[a, b]),
            3 => self.swap_axes(a, b)?.flip(&[b]),
            _ => Ok(self),
        }
    }

    /// [`Var::repeat`], also with fewer entries than axes: the last axes are meant then.
    #[track_caller]
    pub fn tile(self, times: &[usize]) -> Result<Var<'s>> {
        let missing = self.shape()?.rank().saturating_sub(times.len());
        self.repeat(&[&vec![1; missing], times].concat())
    }

    /// Repeats element `i` of an axis `times[i]` times in a row.
    #[doc(alias = "repeat_interleave")]
    #[track_caller]
    pub fn repeat_interleave_by(self, axis: impl Position, times: &[usize]) -> Result<Var<'s>> {
        let (axis, all) = self.named_axis("repeat_interleave_by", axis)?;
        if times.len() != all {
            let why = format!("{} are given for the {all} elements of axis {axis}", times.len());
            return Err(Error::argument("repeat_interleave_by", "times", why));
        }
        let index: Vec<u32> =
            times.iter().enumerate().flat_map(|(i, &n)| std::iter::repeat_n(i as u32, n)).collect();
        self.index_select(axis, self.session().indices(&Tensor::new(&[index.len()], index)?)?)
    }

    /// The value broadcast to the shape of another.
    #[track_caller]
    pub fn expand_as(self, other: Var<'s>) -> Result<Var<'s>> {
        self.broadcast_to(other.shape()?)
    }

    /// The same elements with the shape of another value. Shares memory.
    #[doc(alias = "reshape_as")]
    #[track_caller]
    pub fn view_as(self, other: Var<'s>) -> Result<Var<'s>> {
        self.reshape(other.shape()?.dims())
    }

    /// A scalar as a vector; other values as they are.
    #[track_caller]
    pub fn atleast_1d(self) -> Result<Var<'s>> {
        if self.shape()?.rank() == 0 { self.reshape(&[1]) } else { Ok(self) }
    }

    /// A scalar or vector as a row of a matrix; other values as they are.
    #[track_caller]
    pub fn atleast_2d(self) -> Result<Var<'s>> {
        let shape = self.shape()?;
        if shape.rank() < 2 { self.reshape(&[1, shape.numel()]) } else { Ok(self) }
    }

    /// A scalar or vector as `(1, N, 1)`, a matrix as `(M, N, 1)`; other values as they are.
    #[track_caller]
    pub fn atleast_3d(self) -> Result<Var<'s>> {
        let shape = self.shape()?;
        match shape.rank() {
            0 | 1 => self.reshape(&[1, shape.numel(), 1]),
            2 => self.unsqueeze(2),
            _ => Ok(self),
        }
    }

    /// Removes all axes of one element. Shares memory.
    #[doc(alias = "squeeze")]
    #[track_caller]
    pub fn squeeze_all(self) -> Result<Var<'s>> {
        let shape = self.shape()?;
        self.reshape(&shape.dims().iter().copied().filter(|&d| d != 1).collect::<Vec<_>>())
    }

    /// Removes those of the named axes that have one element. Shares memory.
    #[doc(alias = "squeeze")]
    #[track_caller]
    pub fn squeeze_axes(self, axes: &[impl Position]) -> Result<Var<'s>> {
        let shape = self.shape()?;
        let axes =
            axes.iter().map(|&a| Ok(self.named_axis("squeeze_axes", a)?.0)).collect::<Result<Vec<_>>>()?;
        let kept = |(axis, &d): (usize, &usize)| (d != 1 || !axes.contains(&axis)).then_some(d);
        self.reshape(&shape.dims().iter().enumerate().filter_map(kept).collect::<Vec<_>>())
    }

    /// A matrix with this vector on a diagonal, or of a matrix that diagonal as a vector.
    #[track_caller]
    pub fn diag(self, offset: i64) -> Result<Var<'s>> {
        match self.shape()? {
            shape if shape.rank() == 1 => self.diag_embed(offset, 0, 1),
            shape if shape.rank() == 2 => self.diagonal(offset, 0, 1),
            got => Err(Error::new("diag", ErrorKind::Rank { want: "1 or 2", got })),
        }
    }

    /// A matrix with all elements of this value on a diagonal.
    #[track_caller]
    pub fn diagflat(self, offset: i64) -> Result<Var<'s>> {
        self.flatten()?.diag_embed(offset, 0, 1)
    }

    /// Square matrices with the last axis of this value on a diagonal, `offset` columns right of the main one, and zeros
    /// elsewhere. The axes of the matrices are at `a` (rows) and `b` (columns) of the result; PyTorch's defaults are -2 and
    /// -1.
    #[track_caller]
    pub fn diag_embed(self, offset: i64, a: impl Position, b: impl Position) -> Result<Var<'s>> {
        let shape = self.shape()?;
        let (rank, n) = (shape.rank(), shape.last());
        if rank == 0 {
            return Err(Error::new("diag_embed", ErrorKind::Rank { want: "at least 1", got: shape }));
        }
        let (Some(a), Some(b)) = (a.among(rank + 1), b.among(rank + 1)) else {
            let why = format!("the result has {} axes; use -{0} to {rank}", rank + 1);
            return Err(Error::argument("diag_embed", "axes", why));
        };
        if a == b || a > rank || b > rank {
            let why = format!("axes {a} and {b} are no two of the {} of the result", rank + 1);
            return Err(Error::argument("diag_embed", "axes", why));
        }
        let by = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
        let Some(side) = n.checked_add(by) else {
            return Err(Error::argument("diag_embed", "offset", format!("{offset} is too large")));
        };
        let lead = &shape.dims()[..rank - 1];
        // Each element begins a run of side + 1, which is how far the next one on the diagonal is.
        let runs = self.unsqueeze(rank)?.pad(rank, 0, side)?.reshape(&[lead, &[n * (side + 1)]].concat())?;
        // Of the last run the end is cut; in front are the elements before the first.
        let first = if offset < 0 { by * side } else { by };
        let runs = runs.narrow(rank - 1, 0, (n * (side + 1)).min(side * side - first))?;
        let have = runs.shape()?.last();
        let matrix = runs.pad(rank - 1, first, side * side - first - have)?;
        let matrix = matrix.reshape(&[lead, &[side, side]].concat())?;
        // The matrix's axes are the last two; put them to their places.
        let mut order: Vec<Option<usize>> = vec![None; rank + 1];
        (order[a], order[b]) = (Some(rank - 1), Some(rank));
        let mut rest = 0..rank - 1;
        let order: Vec<usize> = order.into_iter().map(|o| o.or_else(|| rest.next()).unwrap_or(0)).collect();
        if order.is_sorted() { Ok(matrix) } else { matrix.permute(&order) }
    }
}
