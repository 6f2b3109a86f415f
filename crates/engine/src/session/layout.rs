//! Layout: slicing, joining, permuting and repeating values. Ops that only relabel elements share memory. An axis is
//! counted from the outermost, 0, or if it is negative from the last, -1.

use super::{Session, Var};
use dittograd_device::DType;
use dittograd_numerics::environment::single;
use dittograd_numerics::error::{Error, ErrorKind, Located, Result};
use dittograd_numerics::shape::{Position, Shape};
use dittograd_ops::MAX_INS;
use dittograd_ops::layout::{AxisMap, BroadcastTo, Concat, Flip, Pad, Permute, Reshape, Slice, Triangle};

/// The most pieces of an axis without elements.
const MOST_EMPTY: usize = 1 << 16;

#[track_caller]
fn bad_axis(op: &str, axis: usize, shape: Shape) -> Error {
    Error::new(op, ErrorKind::Axis { axis, shape })
}

impl Session {
    /// Concatenates one or more values along `axis`. All other dimensions must agree.
    #[doc(alias = "cat")]
    #[track_caller]
    pub fn concat<'s>(&'s self, values: &[Var<'s>], axis: impl Position) -> Result<Var<'s>> {
        let axis = values.first().map_or(Ok(0), |v| v.axis("concat", axis))?;
        if values.len() <= MAX_INS {
            return self.apply(Concat { axis }, values);
        }
        let joined =
            values.chunks(MAX_INS).map(|some| self.concat(some, axis)).collect::<Result<Vec<_>>>()?;
        self.concat(&joined, axis)
    }

    /// Stacks values of one shape along a new axis.
    #[track_caller]
    pub fn stack<'s>(&'s self, values: &[Var<'s>], axis: impl Position) -> Result<Var<'s>> {
        let values = values.iter().map(|v| v.unsqueeze(axis)).collect::<Result<Vec<_>>>()?;
        // Of the values with their new axis.
        self.concat(&values, axis)
    }
}

/// # Shape
///
/// The same elements with other axes, or repeated along some. Ops that only relabel elements share memory.
impl<'s> Var<'s> {
    /// The same elements with another shape of as many elements. Shares memory.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(0.0, 6.0, 1.0)?.reshape(&[2, 3])?; // [[0. 1. 2.] [3. 4. 5.]]
    /// assert_eq!(x.reshape(&[3, 2])?.to_string(), "[[0. 1.]\n [2. 3.]\n [4. 5.]]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn reshape(self, dims: &[usize]) -> Result<Var<'s>> {
        self.session.apply(Reshape { shape: Shape::new(dims)? }, &[self])
    }

    /// All elements as one axis. Shares memory.
    #[track_caller]
    pub fn flatten(self) -> Result<Var<'s>> {
        let n = self.shape()?.numel();
        self.reshape(&[n])
    }

    /// Swaps the last two axes.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(0.0, 6.0, 1.0)?.reshape(&[2, 3])?; // [[0. 1. 2.] [3. 4. 5.]]
    /// assert_eq!(x.transpose()?.to_string(), "[[0. 3.]\n [1. 4.]\n [2. 5.]]");
    /// # Ok::<(), Error>(())
    /// ```
    #[doc(alias("t", "mT"))]
    #[track_caller]
    pub fn transpose(self) -> Result<Var<'s>> {
        let shape = self.shape()?;
        if shape.rank() < 2 {
            return Err(Error::new("transpose", ErrorKind::Rank { want: "at least 2", got: shape }));
        }
        self.session.apply(Permute::transpose(shape.rank()), &[self])
    }

    /// Permutes the axes: axis `j` of the result is axis `order[j]` of the value.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let images = session.zeros(&[8, 3, 28, 32])?; // (N, C, H, W)
    /// let last = images.permute(&[0, 2, 3, 1])?; // (N, H, W, C)
    /// assert_eq!(last.shape()?.dims(), [8, 28, 32, 3]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn permute(self, order: &[impl Position]) -> Result<Var<'s>> {
        let order = &self.axes("permute", order)?[..];
        self.session.apply(Permute { order: order.to_vec() }, &[self])
    }

    /// Broadcasts the value to `shape` by NumPy's rule.
    #[track_caller]
    pub fn broadcast_to(self, shape: Shape) -> Result<Var<'s>> {
        let from = self.shape()?;
        if from == shape {
            return Ok(self);
        }
        self.session.apply(BroadcastTo::numpy(&from, shape), &[self])
    }

    /// Broadcasts the value to `dims` by NumPy's rule, like [`Var::broadcast_to`]. A size of -1 keeps that of the value.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(0.0, 3.0, 1.0)?.reshape(&[3, 1])?;
    /// assert_eq!(x.expand(&[-1, 2])?.to_string(), "[[0. 0.]\n [1. 1.]\n [2. 2.]]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn expand(self, dims: &[impl Position]) -> Result<Var<'s>> {
        let shape = self.shape()?;
        let new = dims.len().saturating_sub(shape.rank());
        let size = |(a, n): (usize, i128)| match usize::try_from(n) {
            Ok(n) => Ok(n),
            Err(_) if n == -1 && a >= new => Ok(shape.dims()[a - new]),
            Err(_) => {
                let why = format!("{n} is no size of axis {a}; -1 keeps a size of {shape}");
                Err(Error::argument("expand", "dims", why))
            }
        };
        let sizes = dims.iter().map(|n| n.number()).enumerate().map(size).collect::<Result<Vec<_>>>()?;
        self.broadcast_to(Shape::new(&sizes)?)
    }

    /// Broadcasts the value to `shape` with an explicit map from output axes to input axes.
    #[doc(alias = "broadcast_in_dim")]
    #[track_caller]
    pub fn broadcast_axes(self, shape: Shape, map: AxisMap) -> Result<Var<'s>> {
        self.session.apply(BroadcastTo { shape, map }, &[self])
    }

    /// Removes an axis of one element. Shares memory.
    #[track_caller]
    pub fn squeeze(self, axis: impl Position) -> Result<Var<'s>> {
        let axis = self.axis("squeeze", axis)?;
        let shape = self.shape()?;
        match shape.dims().get(axis) {
            Some(1) => self.reshape(shape.without(axis)?.dims()),
            Some(d) => Err(Error::argument(
                "squeeze",
                "axis",
                format!("axis {axis} of {shape} has {d} elements, not 1"),
            )),
            None => Err(bad_axis("squeeze", axis, shape)),
        }
    }

    /// Inserts an axis of one element at `axis`. Shares memory.
    #[track_caller]
    pub fn unsqueeze(self, axis: impl Position) -> Result<Var<'s>> {
        let shape = self.shape()?;
        // -1 is the last axis of the result.
        let axis = match axis.among(shape.rank() + 1) {
            Some(axis) if axis <= shape.rank() => axis,
            Some(axis) => return Err(bad_axis("unsqueeze", axis, shape)),
            None => {
                let why = format!("{} lies before the first axis that {shape} can get", axis.number());
                return Err(Error::argument("unsqueeze", "axis", why));
            }
        };
        let (lead, rest) = shape.dims().split_at(axis);
        self.reshape(&[lead, &[1], rest].concat())
    }

    /// Merges the axes from `axis` on into one. Shares memory.
    #[doc(alias = "flatten")]
    #[track_caller]
    pub fn flatten_from(self, axis: impl Position) -> Result<Var<'s>> {
        let axis = self.axis("flatten_from", axis)?;
        let shape = self.shape()?;
        if axis > shape.rank() {
            return Err(bad_axis("flatten_from", axis, shape));
        }
        let (lead, rest) = shape.dims().split_at(axis);
        self.reshape(&[lead, &[rest.iter().product()]].concat())
    }

    /// Swaps two axes.
    #[doc(alias("swapaxes", "swapdims"))]
    #[track_caller]
    pub fn swap_axes(self, a: impl Position, b: impl Position) -> Result<Var<'s>> {
        let a = self.axis("swap_axes", a)?;
        let b = self.axis("swap_axes", b)?;
        let shape = self.shape()?;
        if let Some(axis) = [a, b].into_iter().find(|&x| x >= shape.rank()) {
            return Err(bad_axis("swap_axes", axis, shape));
        }
        let mut order: Vec<usize> = (0..shape.rank()).collect();
        order.swap(a, b);
        self.permute(&order)
    }

    /// Moves axis `from` to position `to`; the others keep their order.
    #[doc(alias = "moveaxis")]
    #[track_caller]
    pub fn movedim(self, from: impl Position, to: impl Position) -> Result<Var<'s>> {
        let from = self.axis("movedim", from)?;
        let to = self.axis("movedim", to)?;
        let shape = self.shape()?;
        if let Some(axis) = [from, to].into_iter().find(|&x| x >= shape.rank()) {
            return Err(bad_axis("movedim", axis, shape));
        }
        let mut order: Vec<usize> = (0..shape.rank()).filter(|a| *a != from).collect();
        order.insert(to, from);
        self.permute(&order)
    }
}

/// # Parts, joins and repetitions
impl<'s> Var<'s> {
    /// Concatenates this value and another along `axis`.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(0.0, 6.0, 1.0)?.reshape(&[2, 3])?; // [[0. 1. 2.] [3. 4. 5.]]
    /// assert_eq!(x.concat(x, 0)?.shape()?.dims(), [4, 3]);
    /// assert_eq!(x.concat(x, 1)?.to_string(), "[[0. 1. 2. 0. 1. 2.]\n [3. 4. 5. 3. 4. 5.]]");
    /// # Ok::<(), Error>(())
    /// ```
    #[doc(alias = "cat")]
    #[track_caller]
    pub fn concat(self, other: Var<'s>, axis: impl Position) -> Result<Var<'s>> {
        self.session.concat(&[self, other], axis)
    }

    /// Elements `start..start + len` of an axis. Shares memory if they are contiguous and aligned.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(0.0, 6.0, 1.0)?.reshape(&[2, 3])?; // [[0. 1. 2.] [3. 4. 5.]]
    /// assert_eq!(x.narrow(1, 1, 2)?.to_string(), "[[1. 2.]\n [4. 5.]]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn narrow(self, axis: impl Position, start: usize, len: usize) -> Result<Var<'s>> {
        let axis = self.axis("narrow", axis)?;
        self.session.apply(Slice { axis, start, len, step: 1 }, &[self])
    }

    /// Elements `start`, `start + step`, … of an axis, up to but not including `end`.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(0.0, 6.0, 1.0)?.reshape(&[2, 3])?; // [[0. 1. 2.] [3. 4. 5.]]
    /// assert_eq!(x.slice(1, 0, 3, 2)?.to_string(), "[[0. 2.]\n [3. 5.]]"); // x[:, 0:3:2]
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn slice(self, axis: impl Position, start: usize, end: usize, step: usize) -> Result<Var<'s>> {
        let axis = self.axis("slice", axis)?;
        let shape = self.shape()?;
        match shape.dims().get(axis) {
            Some(&size) if start <= end && end <= size => {
                let len = (end - start).div_ceil(step.max(1));
                self.session.apply(Slice { axis, start, len, step }, &[self])
            }
            Some(size) => {
                let why = format!("{start}..{end} does not lie in an axis of {size}");
                Err(Error::argument("slice", "range", why))
            }
            None => Err(bad_axis("slice", axis, shape)),
        }
    }

    /// Slices the first axes, one range each; further axes stay whole.
    #[doc(alias = "getitem")]
    #[track_caller]
    pub fn slice_ranges(self, ranges: &[std::ops::Range<usize>]) -> Result<Var<'s>> {
        let mut v = self;
        for (axis, r) in ranges.iter().enumerate() {
            if v.shape()?.dims().get(axis) != Some(&r.len()) || r.start != 0 {
                v = v.slice(axis, r.start, r.end, 1)?;
            }
        }
        Ok(v)
    }

    /// Element `i` of an axis; the axis is dropped. A negative `i` counts from the end.
    #[track_caller]
    pub fn select(self, axis: impl Position, i: impl Position) -> Result<Var<'s>> {
        let axis = self.axis("select", axis)?;
        let size = self.shape()?.dims().get(axis).copied().unwrap_or(0);
        let Some(i) = i.among(size) else {
            let why = format!("{} lies before the first of the {size} elements of axis {axis}", i.number());
            return Err(Error::argument("select", "i", why));
        };
        self.narrow(axis, i, 1)?.squeeze(axis)
    }

    /// Splits an axis into pieces of the given sizes, which must add up to its size.
    #[doc(alias = "split_with_sizes")]
    #[track_caller]
    pub fn split(self, axis: impl Position, sizes: &[usize]) -> Result<Vec<Var<'s>>> {
        let axis = self.axis("split", axis)?;
        let shape = self.shape()?;
        let size = *shape.dims().get(axis).ok_or_else(|| bad_axis("split", axis, shape))?;
        if sizes.iter().try_fold(0usize, |sum, &n| sum.checked_add(n)) != Some(size) {
            let why = format!("{sizes:?} do not add up to the {size} elements of axis {axis}");
            return Err(Error::argument("split", "sizes", why));
        }
        let mut start = 0;
        let piece = |&len: &usize| {
            start += len;
            self.narrow(axis, start - len, len)
        };
        sizes.iter().map(piece).collect()
    }

    /// Splits an axis into pieces of `size` elements; the last one may be shorter. An axis without elements is one piece.
    #[doc(alias = "split")]
    #[track_caller]
    pub fn chunks(self, axis: impl Position, size: usize) -> Result<Vec<Var<'s>>> {
        let axis = self.axis("chunks", axis)?;
        let shape = self.shape()?;
        let all = *shape.dims().get(axis).ok_or_else(|| bad_axis("chunks", axis, shape))?;
        if size == 0 {
            return Err(Error::argument("chunks", "size", "is 0, use 1 or more"));
        }
        // An axis without elements is one piece.
        let starts = (0..all.max(1)).step_by(size);
        self.split(axis, &starts.map(|start| size.min(all - start)).collect::<Vec<_>>())
    }

    /// Splits an axis into at most `count` pieces of equal size; the last one may be shorter. An axis without elements gives
    /// `count` pieces.
    #[track_caller]
    pub fn chunk(self, axis: impl Position, count: usize) -> Result<Vec<Var<'s>>> {
        let axis = self.axis("chunk", axis)?;
        let shape = self.shape()?;
        let all = *shape.dims().get(axis).ok_or_else(|| bad_axis("chunk", axis, shape))?;
        if count == 0 {
            return Err(Error::argument("chunk", "count", "is 0, use 1 or more"));
        }
        match all {
            0 if count > MOST_EMPTY => {
                let why = format!("is {count} of an axis without elements, use at most {MOST_EMPTY}");
                Err(Error::argument("chunk", "count", why))
            }
            0 => self.split(axis, &vec![0; count]),
            _ => self.chunks(axis, all.div_ceil(count)),
        }
    }

    /// Pads an axis with `before` zeros in front and `after` zeros at the end.
    #[track_caller]
    pub fn pad(self, axis: impl Position, before: usize, after: usize) -> Result<Var<'s>> {
        self.pad_with(axis, before, after, 0.0)
    }

    /// Like [`Var::pad`], with any number instead of zero; around indices with an index.
    #[track_caller]
    pub fn pad_with(self, axis: impl Position, before: usize, after: usize, value: f64) -> Result<Var<'s>> {
        let axis = self.axis("pad_with", axis)?;
        let shape = self.shape()?;
        let Some(&d) = shape.dims().get(axis) else { return Err(bad_axis("pad", axis, shape)) };
        if self.meta()?.dtype == DType::U32 {
            let cells = |n: usize| {
                let mut dims = shape.dims().to_vec();
                dims[axis] = n;
                self.number_like("pad_with", value)?.expand(&dims)
            };
            return self.session.concat(&[cells(before)?, self, cells(after)?], axis);
        }
        let size = before.checked_add(d).and_then(|n| n.checked_add(after)).unwrap_or(usize::MAX);
        self.session.apply(Pad { axis, start: before, step: 1, size, value: single(value) }, &[self])
    }

    /// Pads the first axes with `value`, each by (before, after).
    #[track_caller]
    pub fn pad_axes(self, pads: &[(usize, usize)], value: f64) -> Result<Var<'s>> {
        pads.iter().enumerate().try_fold(self, |v, (axis, &(before, after))| match (before, after) {
            (0, 0) if axis < v.shape()?.rank() => Ok(v),
            _ => v.pad_with(axis, before, after, value),
        })
    }

    /// Repeats the whole value `times[a]` times along each axis `a`. If there are more entries than axes, the first
    /// ones are new axes in front.
    #[doc(alias = "tile")]
    #[track_caller]
    pub fn repeat(self, times: &[usize]) -> Result<Var<'s>> {
        let rank = self.shape()?.rank();
        if times.len() < rank {
            let why = format!("{times:?} has fewer entries than the value has axes, {rank}");
            return Err(Error::argument("repeat", "times", why));
        }
        let new = times.len() - rank;
        let dims = [&vec![1; new][..], self.shape()?.dims()].concat();
        let mut v = if new > 0 { self.reshape(&dims)? } else { self };
        for (axis, &n) in times.iter().enumerate().filter(|(_, n)| **n != 1) {
            v = v.repeat_at(axis, n, true)?;
        }
        Ok(v)
    }

    /// Repeats each element of an axis `n` times in a row.
    #[track_caller]
    pub fn repeat_interleave(self, axis: impl Position, n: usize) -> Result<Var<'s>> {
        let axis = self.axis("repeat_interleave", axis)?;
        let shape = self.shape()?;
        if axis >= shape.rank() {
            return Err(bad_axis("repeat_interleave", axis, shape));
        }
        self.repeat_at(axis, n, false)
    }

    /// Inserts an axis of size `n` before (`whole`) or after an axis and merges the two: one copy.
    #[track_caller]
    fn repeat_at(self, axis: usize, n: usize, whole: bool) -> Result<Var<'s>> {
        let shape = self.shape()?;
        let (lead, rest) = shape.dims().split_at(axis);
        let (outer, d, inner) = (lead.iter().product(), rest[0], rest[1..].iter().product());
        let flat = self.reshape(&[outer, d, inner])?;
        let (dims, map) = match whole {
            true => ([outer, n, d, inner], [Some(0), None, Some(1), Some(2)]),
            false => ([outer, d, n, inner], [Some(0), Some(1), None, Some(2)]),
        };
        let wide = flat.broadcast_axes(Shape::new(&dims)?, AxisMap::new(&map)?)?;
        wide.reshape(&[lead, &[d.saturating_mul(n)], &rest[1..]].concat())
    }

    /// Reverses the order of elements along some axes.
    #[track_caller]
    pub fn flip(self, axes: &[impl Position]) -> Result<Var<'s>> {
        let axes = &self.axes("flip", axes)?[..];
        self.session.apply(Flip { axes: axes.to_vec() }, &[self])
    }

    /// Shifts the elements of an axis by `shift` places towards its end (towards its start if negative). Elements that
    /// are pushed out come back at the other side.
    #[track_caller]
    pub fn roll(self, axis: impl Position, shift: i64) -> Result<Var<'s>> {
        let axis = self.axis("roll", axis)?;
        let shape = self.shape()?;
        let Some(&d) = shape.dims().get(axis) else { return Err(bad_axis("roll", axis, shape)) };
        let by = i128::from(shift).rem_euclid(d.max(1) as i128) as usize;
        if by == 0 {
            return Ok(self);
        }
        self.narrow(axis, d - by, by)?.concat(self.narrow(axis, 0, d - by)?, axis)
    }

    /// The diagonal of axes `a` and `b`, as the last axis: the elements whose index along `b` is the index along `a`
    /// plus `offset`.
    #[doc(alias = "diag")]
    #[track_caller]
    pub fn diagonal(self, offset: i64, a: impl Position, b: impl Position) -> Result<Var<'s>> {
        let a = self.axis("diagonal", a)?;
        let b = self.axis("diagonal", b)?;
        let rank = self.shape()?.rank();
        let v = self.diagonal_in_place(offset, a, b)?;
        let at = if a < b { a } else { a - 1 };
        let order: Vec<usize> = (0..rank - 1).filter(|i| *i != at).chain([at]).collect();
        v.permute(&order)
    }

    /// The diagonal of axes `a` and `b` in place of `a`: a strided slice of the two axes merged into one.
    #[track_caller]
    pub(super) fn diagonal_in_place(self, offset: i64, a: usize, b: usize) -> Result<Var<'s>> {
        let shape = self.shape()?;
        if let Some(axis) = [a, b].into_iter().find(|&x| x >= shape.rank()) {
            return Err(bad_axis("diagonal", axis, shape));
        }
        if a == b {
            return Err(Error::argument("diagonal", "axes", format!("both are axis {a}; name two")));
        }
        // Move b right after a.
        let mut order: Vec<usize> = (0..shape.rank()).filter(|i| *i != b).collect();
        let at = if a < b { a } else { a - 1 };
        order.insert(at + 1, b);
        let v = self.permute(&order)?;
        let shape = v.shape()?;
        let (lead, rest) = shape.dims().split_at(at);
        let (rows, columns, tail) = (rest[0], rest[1], &rest[2..]);
        let by = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
        let (row, column) = if offset < 0 { (by, 0) } else { (0, by) };
        let len = rows.saturating_sub(row).min(columns.saturating_sub(column));
        let start = if len == 0 { 0 } else { row * columns + column };
        let flat = v.reshape(&[lead, &[rows * columns], tail].concat())?;
        self.session.apply(Slice { axis: at, start, len, step: columns + 1 }, &[flat])
    }

    /// The sum of the diagonal of each matrix in the last two axes.
    #[track_caller]
    pub fn trace(self) -> Result<Var<'s>> {
        let shape = self.shape()?;
        let rank = shape.rank();
        if rank < 2 {
            return Err(Error::new("trace", ErrorKind::Rank { want: "at least 2", got: shape }));
        }
        self.diagonal(0, rank - 2, rank - 1)?.sum_axes(&[rank - 2])
    }

    /// The lower triangle of the matrices in the last two axes: zeros above the diagonal `diagonal` columns right of
    /// the main one.
    #[track_caller]
    pub fn tril(self, diagonal: i64) -> Result<Var<'s>> {
        self.session.apply(Triangle { upper: false, shift: diagonal }, &[self])
    }

    /// The upper triangle of the matrices in the last two axes: zeros below the diagonal `diagonal` columns right of
    /// the main one.
    #[track_caller]
    pub fn triu(self, diagonal: i64) -> Result<Var<'s>> {
        self.session.apply(Triangle { upper: true, shift: diagonal }, &[self])
    }

    /// The axis that a caller names, from the outermost: see [`Shape::axis`].
    #[track_caller]
    pub(super) fn axis(self, op: &str, axis: impl Position) -> Result<usize> {
        self.shape()?.axis(op, axis).located()
    }

    /// The axes that a caller names.
    #[track_caller]
    pub(super) fn axes(self, op: &str, axes: &[impl Position]) -> Result<Vec<usize>> {
        self.shape()?.axes(op, axes).located()
    }

    /// The length of a vector. Errors for other ranks.
    #[track_caller]
    pub(super) fn vector(self, op: &str) -> Result<usize> {
        match self.shape()? {
            shape if shape.rank() == 1 => Ok(shape.last()),
            got => Err(Error::new(op, ErrorKind::Rank { want: "exactly 1", got })),
        }
    }
}
