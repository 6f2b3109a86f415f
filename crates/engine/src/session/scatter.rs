//! Scatters that replace, multiply or take extremes, and indexing made of them.

use super::Var;
use dittograd_device::DType;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::Position;
use dittograd_ops::index::{
    Combine, FlatIndex, IndexAdd, IndexSelect, ScatterAdd, ScatterLast, ScatterReduce, TakeAlongAxis,
};

/// How the elements that go to one place are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// Their product.
    Prod,
    /// The largest.
    Amax,
    /// The smallest.
    Amin,
}

impl Reduce {
    /// What it starts from where the value itself does not count.
    pub(super) fn neutral(self) -> f64 {
        match self {
            Reduce::Sum | Reduce::Mean => 0.0,
            Reduce::Prod => 1.0,
            Reduce::Amax => f64::NEG_INFINITY,
            Reduce::Amin => f64::INFINITY,
        }
    }

    fn combine(self) -> Combine {
        match self {
            Reduce::Sum | Reduce::Mean => Combine::Sum,
            Reduce::Prod => Combine::Prod,
            Reduce::Amax => Combine::Amax,
            Reduce::Amin => Combine::Amin,
        }
    }
}

/// # Indexing by scatters
///
/// Where several sources go to one place, they are combined in their order; where one replaces another, the last one wins. As in
/// PyTorch, indices may cover only a leading part of the other axes, and of the sources.
impl<'s> Var<'s> {
    /// The leading part of the axes that has these sizes; that of `whole` stays as it is.
    #[track_caller]
    fn leading(self, op: &'static str, dims: &[usize], whole: Option<usize>) -> Result<Var<'s>> {
        let shape = self.shape()?;
        let fits = |(a, (d, n)): (usize, (&usize, &usize))| Some(a) == whole || n <= d;
        if shape.rank() != dims.len() || !shape.dims().iter().zip(dims).enumerate().all(fits) {
            let why =
                "the indices must have as many axes, and not be longer in any but the one they count along";
            let right = dittograd_numerics::shape::Shape::new(dims)?;
            return Err(Error::new(op, ErrorKind::Shapes { why, left: shape, right }));
        }
        let mut v = self;
        for (a, (&d, &n)) in shape.dims().iter().zip(dims).enumerate() {
            if Some(a) != whole && n < d {
                v = v.narrow(a, 0, n)?;
            }
        }
        Ok(v)
    }

    /// Replaces the part of the value that indices of these sizes reach, all of `axis`, by what `f` makes of it.
    #[track_caller]
    fn in_reach(
        self,
        axis: usize,
        dims: &[usize],
        f: &dyn Fn(Var<'s>) -> Result<Var<'s>>,
    ) -> Result<Var<'s>> {
        let shape = self.shape()?;
        let short = shape.dims().iter().zip(dims).enumerate().find(|(a, (d, n))| *a != axis && n < d);
        let Some((a, (&d, &n))) = short else { return f(self) };
        let rest = self.narrow(a, n, d - n)?;
        self.narrow(a, 0, n)?.in_reach(axis, dims, f)?.concat(rest, a)
    }

    /// Checks the indices of a scatter along `axis` and cuts its sources to them; then calls `f` with the part of the value that
    /// they reach, and with the sources.
    #[track_caller]
    fn scattered(
        self,
        op: &'static str,
        axis: usize,
        index: Var<'s>,
        src: Var<'s>,
        f: impl Fn(Var<'s>, Var<'s>) -> Result<Var<'s>>,
    ) -> Result<Var<'s>> {
        index.meta()?.dtype.require(DType::U32, op, 1)?;
        self.dim(op, axis)?;
        let dims = index.shape()?;
        self.leading(op, dims.dims(), Some(axis))?;
        let src = src.leading(op, dims.dims(), None)?;
        self.in_reach(axis, dims.dims(), &|base| f(base, src))
    }

    /// Gathers elements along an axis, each with its own index: `y[…, j, …] = x[…, index[…, j, …], …]`. Like
    /// [`Var::take_along_axis`], but the indices may be shorter than the value along the other axes.
    #[track_caller]
    pub fn gather(self, axis: impl Position, index: Var<'s>) -> Result<Var<'s>> {
        let axis = self.axis("gather", axis)?;
        self.dim("gather", axis)?;
        self.leading("gather", index.shape()?.dims(), Some(axis))?.take_along_axis(axis, index)
    }

    /// This value with each element of `src` added along an axis at its own index, in increasing source order:
    /// `y[…, index[…, j, …], …] += src[…, j, …]`. An index out of range is an error.
    #[doc(alias = "scatter_add_")]
    #[track_caller]
    pub fn scatter_add(self, axis: impl Position, index: Var<'s>, src: Var<'s>) -> Result<Var<'s>> {
        let axis = self.axis("scatter_add", axis)?;
        let size = self.dim("scatter_add", axis)?;
        self.scattered("scatter_add", axis, index, src, |base, src| {
            self.session.apply(ScatterAdd { axis, size, checked: true }, &[src, index, base])
        })
    }

    /// This value with elements replaced along an axis, each at its own index: `y[…, index[…, j, …], …] = src[…, j, …]`. The last of
    /// several sources of one place wins, and only it has a gradient. An index out of range is an error.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.zeros(&[4])?;
    /// let index = session.indices(&Tensor::new(&[3], vec![2, 0, 2])?)?;
    /// let src = session.input(&Tensor::new(&[3], vec![1.0f32, 2.0, 3.0])?)?;
    /// assert_eq!(x.scatter(0, index, src)?.to_string(), "[2. 0. 3. 0.]");
    /// # Ok::<(), Error>(())
    /// ```
    #[doc(alias = "scatter_")]
    #[track_caller]
    pub fn scatter(self, axis: impl Position, index: Var<'s>, src: Var<'s>) -> Result<Var<'s>> {
        let axis = self.axis("scatter", axis)?;
        let size = self.dim("scatter", axis)?;
        self.scattered("scatter", axis, index, src, |base, src| {
            let last = self.session.apply(ScatterLast { axis, size, checked: true }, &[index])?;
            let take =
                |from: Var<'s>| self.session.apply(TakeAlongAxis { axis, checked: false }, &[from, last]);
            take(src.ones_like()?)?.where_(take(src)?, base)
        })
    }

    /// Like [`Var::scatter`] of one number.
    #[track_caller]
    pub fn scatter_value(self, axis: impl Position, index: Var<'s>, value: f64) -> Result<Var<'s>> {
        let axis = self.axis("scatter_value", axis)?;
        self.scatter(axis, index, self.number_like("scatter_value", value)?.expand_as(index)?)
    }

    /// This value with elements reduced along an axis, each at its own index. With `include_self` the value's own elements count
    /// too; without it only those stay that no source goes to. Where several elements are the largest or smallest, they share
    /// the gradient evenly. An index out of range is an error.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.full(&[3], 2.0)?;
    /// let index = session.indices(&Tensor::new(&[3], vec![0, 0, 1])?)?;
    /// let src = session.input(&Tensor::new(&[3], vec![1.0f32, 5.0, 1.0])?)?;
    /// assert_eq!(x.scatter_reduce(0, index, src, Reduce::Amax, true)?.to_string(), "[5. 2. 2.]");
    /// assert_eq!(x.scatter_reduce(0, index, src, Reduce::Mean, false)?.to_string(), "[3. 1. 2.]");
    /// # Ok::<(), Error>(())
    /// ```
    #[doc(alias = "scatter_reduce_")]
    #[track_caller]
    pub fn scatter_reduce(
        self,
        axis: impl Position,
        index: Var<'s>,
        src: Var<'s>,
        reduce: Reduce,
        include_self: bool,
    ) -> Result<Var<'s>> {
        let axis = self.axis("scatter_reduce", axis)?;
        let size = self.dim("scatter_reduce", axis)?;
        self.scattered("scatter_reduce", axis, index, src, |base, src| {
            let add = |src: Var<'s>, base: Var<'s>| {
                self.session.apply(ScatterAdd { axis, size, checked: true }, &[src, index, base])
            };
            // How many sources each place has, if that matters.
            let counts = match reduce == Reduce::Mean || !include_self {
                true => Some(add(src.ones_like()?, base.zeros_like()?)?),
                false => None,
            };
            let start = match counts {
                Some(counts) if !include_self => counts.where_(base.full_like(reduce.neutral())?, base)?,
                _ => base,
            };
            let value = match reduce.combine() {
                Combine::Sum => add(src, start)?,
                combine => self
                    .session
                    .apply(ScatterReduce { axis, combine, checked: true }, &[src, index, start])?,
            };
            match (reduce, counts) {
                (Reduce::Mean, Some(counts)) if include_self => value.div(counts.add_scalar(1.0)?),
                (Reduce::Mean, Some(counts)) => value.div(counts.clamp(1.0, f64::INFINITY)?),
                _ => Ok(value),
            }
        })
    }

    /// A vector of indices along `axis`, expanded to the shape of `src`.
    #[track_caller]
    fn expanded_along(self, op: &str, axis: usize, src: Var<'s>) -> Result<Var<'s>> {
        let (count, shape) = (self.vector(op)?, src.shape()?);
        if shape.dims().get(axis) != Some(&count) {
            let why = format!("there are {count} indices for sources of shape {shape} along axis {axis}");
            return Err(Error::argument(op, "index", why));
        }
        let mut dims = vec![1; shape.rank()];
        dims[axis] = count;
        self.reshape(&dims)?.expand(shape.dims())
    }

    /// Like [`Var::scatter_reduce`], of slices along an axis: slice `j` of `src` goes to `index[j]`.
    #[track_caller]
    pub fn index_reduce(
        self,
        axis: impl Position,
        index: Var<'s>,
        src: Var<'s>,
        reduce: Reduce,
        include_self: bool,
    ) -> Result<Var<'s>> {
        let axis = self.axis("index_reduce", axis)?;
        let index = index.expanded_along("index_reduce", axis, src)?;
        self.scatter_reduce(axis, index, src, reduce, include_self)
    }

    /// For a vector of indices along an axis of this value: the last source of each place, and a mask of the places that have one,
    /// which broadcasts to the value.
    #[track_caller]
    fn last_slices(self, op: &str, axis: usize, index: Var<'s>) -> Result<(Var<'s>, Var<'s>)> {
        let (size, count) = (self.dim(op, axis)?, index.vector(op)?);
        let last = self.session.apply(ScatterLast { axis: 0, size, checked: true }, &[index])?;
        let ones = self.session.ones(&[count])?;
        let hit = self.session.apply(IndexSelect { axis: 0, checked: false }, &[ones, last])?;
        let mut dims = vec![1; self.shape()?.rank()];
        dims[axis] = size;
        Ok((last, hit.reshape(&dims)?))
    }

    /// This value with slices along an axis replaced: slice `index[j]` becomes slice `j` of `src`; the last one of several wins.
    #[doc(alias = "index_copy_")]
    #[track_caller]
    pub fn index_copy(self, axis: impl Position, index: Var<'s>, src: Var<'s>) -> Result<Var<'s>> {
        let axis = self.axis("index_copy", axis)?;
        let (last, hit) = self.last_slices("index_copy", axis, index)?;
        let (shape, got) = (self.shape()?, src.shape()?);
        let mut want = shape.dims().to_vec();
        want[axis] = index.vector("index_copy")?;
        if got.dims() != want {
            let why = format!("sources have shape {got}, {want:?} is needed: a slice per index");
            return Err(Error::argument("index_copy", "src", why));
        }
        hit.where_(src.index_select_or_zero(axis, last)?, self)
    }

    /// This value with `value` in the slices along an axis that `index` names.
    #[doc(alias = "index_fill_")]
    #[track_caller]
    pub fn index_fill(self, axis: impl Position, index: Var<'s>, value: f64) -> Result<Var<'s>> {
        self.index_fill_with(axis, index, self.number_like("index_fill", value)?)
    }

    /// Like [`Var::index_fill`], with a value on the device, which broadcasts to the slices.
    #[doc(alias = "index_fill")]
    #[track_caller]
    pub fn index_fill_with(self, axis: impl Position, index: Var<'s>, value: Var<'s>) -> Result<Var<'s>> {
        const NAME: &str = "index_fill";
        let axis = self.axis(NAME, axis)?;
        let (_, hit) = self.last_slices(NAME, axis, index)?;
        hit.where_(value.broadcast_to(self.shape()?)?, self)
    }

    /// Indices of the first axes, with each mask among them replaced by the indices where it is not 0, one for each of its axes.
    #[track_caller]
    fn without_masks(self, op: &str, indices: &[Var<'s>]) -> Result<Vec<Var<'s>>> {
        let (shape, mut found) = (self.shape()?, Vec::new());
        for &index in indices {
            let meta = index.meta()?;
            if meta.dtype == DType::U32 {
                found.push(index);
                continue;
            }
            let rest = &shape.dims()[found.len().min(shape.rank())..];
            if meta.shape.rank() == 0 || !rest.starts_with(meta.shape.dims()) {
                let why = "a mask must have the sizes of the axes that it selects from";
                return Err(Error::new(op, ErrorKind::Shapes { why, left: shape, right: meta.shape }));
            }
            found.extend(index.nonzero()?.unbind(1)?);
        }
        Ok(found)
    }

    /// Indices of the first axes, which broadcast with each other, as one index of all of them.
    #[track_caller]
    fn flat_indices(self, op: &str, indices: &[Var<'s>]) -> Result<Var<'s>> {
        let shape = self.shape()?;
        if indices.is_empty() || indices.len() > shape.rank() {
            let why = format!(
                "got {} for a value of {} axes; give one for each of the first axes",
                indices.len(),
                shape.rank()
            );
            return Err(Error::argument(op, "indices", why));
        }
        if let [one] = indices {
            return Ok(*one);
        }
        let mut common = indices[0].shape()?;
        for index in &indices[1..] {
            common = common.broadcast(&index.shape()?).map_err(|e| Error::new(op, e.kind().clone()))?;
        }
        let dims = &shape.dims()[..indices.len()];
        let size = dims.iter().fold(1, |n: usize, &d| n.saturating_mul(d));
        // A program checks indices where they come from. It cannot look at those that it computes, so it must know that they are in range.
        let bounded = self.session.is_trace() && (1..=1 << f32::MANTISSA_DIGITS).contains(&size);
        let along = |(i, &d): (&Var<'s>, &usize)| {
            let inside = match bounded {
                true => {
                    self.session.arange(0.0, d as f64, 1.0)?.to_index_below(d as u32)?.index_select(0, *i)?
                }
                false => *i,
            };
            inside.expand(common.dims())
        };
        let indices = indices.iter().zip(dims).map(along).collect::<Result<Vec<_>>>()?;
        let flat = self.session.apply(FlatIndex { dims: dims.to_vec() }, &indices)?;
        if bounded { flat.to_float()?.to_index_below(size as u32) } else { Ok(flat) }
    }

    /// The elements, or slices of the last axes, at indices of the first axes: `y[…] = x[indices[0][…], indices[1][…], …]`. An index
    /// out of range is an error. A mask of numbers stands for the indices of as many axes as it has, where it is not 0; it is read, so
    /// a traced program refuses it.
    #[doc(alias = "getitem")]
    #[track_caller]
    pub fn index(self, indices: &[Var<'s>]) -> Result<Var<'s>> {
        let indices = &self.without_masks("index", indices)?[..];
        let flat = self.flat_indices("index", indices)?;
        let (lead, rest) = (indices.len(), self.shape()?);
        let rows: usize = rest.dims()[..lead].iter().product();
        self.reshape(&[&[rows], &rest.dims()[lead..]].concat())?.index_select(0, flat)
    }

    /// Like [`Var::index`], with indices of the axes `axes`. What they select takes the place of the first of these axes if they are
    /// neighbours in their order; otherwise it comes first.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(0.0, 6.0, 1.0)?.reshape(&[2, 3])?; // [[0. 1. 2.] [3. 4. 5.]]
    /// let columns = session.indices(&Tensor::new(&[2], vec![2, 0])?)?;
    /// assert_eq!(x.index_axes(&[1], &[columns])?.to_string(), "[[2. 0.]\n [5. 3.]]"); // x[:, columns]
    /// # Ok::<(), Error>(())
    /// ```
    #[doc(alias = "getitem")]
    #[track_caller]
    pub fn index_axes(self, axes: &[impl Position], indices: &[Var<'s>]) -> Result<Var<'s>> {
        const NAME: &str = "index_axes";
        let (axes, rank) = (self.axes(NAME, axes)?, self.shape()?.rank());
        let rest: Vec<usize> = (0..rank).filter(|a| !axes.contains(a)).collect();
        if axes.len() + rest.len() != rank {
            let why = format!("{axes:?} are no different axes of a value of {rank}");
            return Err(Error::argument(NAME, "axes", why));
        }
        let first = self.permute(&[&axes[..], &rest].concat())?;
        let indices = first.without_masks(NAME, indices)?;
        if indices.len() != axes.len() {
            let why = format!("{} are given for {} axes", indices.len(), axes.len());
            return Err(Error::argument(NAME, "indices", why));
        }
        let found = first.index(&indices)?;
        let before = axes[0];
        if before == 0 || axes.windows(2).any(|w| w[1] != w[0] + 1) {
            return Ok(found);
        }
        let (new, all) = (found.shape()?.rank() - rest.len(), found.shape()?.rank());
        let order: Vec<usize> = (new..new + before).chain(0..new).chain(new + before..all).collect();
        found.permute(&order)
    }

    /// This value with elements, or slices of the last axes, put at indices of the first axes:
    /// `y[indices[0][…], indices[1][…], …] = values[…]`. With `accumulate` they are added, in their order; otherwise the last one of
    /// several wins. `values` broadcasts. An index out of range is an error. A mask stands for indices, as in [`Var::index`].
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.zeros(&[2, 3])?;
    /// let rows = session.indices(&Tensor::new(&[2], vec![0, 1])?)?;
    /// let columns = session.indices(&Tensor::new(&[2], vec![2, 0])?)?;
    /// let y = x.index_put(&[rows, columns], session.full(&[], 5.0)?, false)?;
    /// assert_eq!(y.to_string(), "[[0. 0. 5.]\n [5. 0. 0.]]");
    /// # Ok::<(), Error>(())
    /// ```
    #[doc(alias = "index_put_")]
    #[track_caller]
    pub fn index_put(self, indices: &[Var<'s>], values: Var<'s>, accumulate: bool) -> Result<Var<'s>> {
        let indices = &self.without_masks("index_put", indices)?[..];
        let flat = self.flat_indices("index_put", indices)?;
        let shape = self.shape()?;
        let (lead, rest) = shape.dims().split_at(indices.len());
        let (rows, at) = (lead.iter().product(), flat.shape()?);
        let values = values.expand(&[at.dims(), rest].concat())?.reshape(&[&[at.numel()], rest].concat())?;
        let (table, flat) = (self.reshape(&[&[rows], rest].concat())?, flat.reshape(&[at.numel()])?);
        let value = match accumulate {
            true => {
                let add = IndexAdd { axis: 0, size: rows, checked: true };
                self.session.apply(add, &[values, flat, table])?
            }
            false => table.index_copy(0, flat, values)?,
        };
        value.reshape(shape.dims())
    }

    /// The elements at indices of the value as one list, in row-major order.
    #[track_caller]
    pub fn take(self, index: Var<'s>) -> Result<Var<'s>> {
        self.flatten_from(0)?.index_select(0, index)
    }

    /// This value with the elements of `src` put at indices of the value as one list, in row-major order; with `accumulate` they are
    /// added. See [`Var::index_put`].
    #[doc(alias = "put_")]
    #[track_caller]
    pub fn put(self, index: Var<'s>, src: Var<'s>, accumulate: bool) -> Result<Var<'s>> {
        let shape = self.shape()?;
        if src.shape()?.numel() != index.shape()?.numel() {
            let why = format!("has {} elements for {} indices", src.shape()?.numel(), index.shape()?.numel());
            return Err(Error::argument("put", "src", why));
        }
        let src = src.reshape(index.shape()?.dims())?;
        self.flatten_from(0)?.index_put(&[index], src, accumulate)?.reshape(shape.dims())
    }

    /// This value with the elements where `mask` is not 0 replaced by the first elements of `source`, in row-major order. The mask
    /// broadcasts to the value. In an eager session a source that is too short is an error; in a traced program, where nobody
    /// looks at the mask, what is missing is 0.
    #[doc(alias = "masked_scatter_")]
    #[track_caller]
    pub fn masked_scatter(self, mask: Var<'s>, source: Var<'s>) -> Result<Var<'s>> {
        const NAME: &str = "masked_scatter";
        let shape = self.shape()?;
        let (n, have) = (shape.numel(), source.shape()?.numel());
        if n > 1 << f32::MANTISSA_DIGITS {
            return Err(Error::argument(
                NAME,
                "value",
                format!("has {n} elements, at most 2^24 can be counted"),
            ));
        }
        let mask = mask.ne(mask.zeros_like()?)?.expand(shape.dims())?.flatten_from(0)?;
        if !self.session.is_trace() {
            let want = mask.sum()?.item()? as usize;
            if want > have {
                let why = format!("has {have} elements, the mask selects {want}");
                return Err(Error::argument(NAME, "source", why));
            }
        }
        let at = mask.cumsum_with(0, true, false)?.to_index_below(n.max(1) as u32)?;
        let taken = source.flatten_from(0)?.index_select_or_zero(0, at)?;
        mask.where_(taken, self.flatten_from(0)?)?.reshape(shape.dims())
    }
}
