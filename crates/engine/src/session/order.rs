//! Order of values: sorting, running extremes, searches.

use super::Var;
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::Real;
use dittograd_numerics::shape::Position;
use dittograd_ops::index::TakeAlongAxis;
use dittograd_ops::order::{ArgSort, RunningExtremum, SearchSorted, TopK};
use dittograd_ops::pointwise::expression::Expr;
use dittograd_ops::scan::SelectiveScan;

/// Float32 counts whole numbers up to here without error.
const MAX_COUNTED: usize = 1 << f32::MANTISSA_DIGITS;

/// # Order
///
/// Sorting and what follows from it. NaN is the largest number, -0 equals +0, and equal elements keep their order, so every result is
/// unique. Positions are indices; gradients go to the elements at these positions.
impl<'s> Var<'s> {
    /// The value with `axis` as the last one.
    #[track_caller]
    pub(super) fn axis_last(self, op: &str, axis: usize) -> Result<Var<'s>> {
        self.dim(op, axis)?;
        let last = self.shape()?.rank() - 1;
        if axis == last { Ok(self) } else { self.movedim(axis, last) }
    }

    /// Moves the last axis back to `axis`.
    #[track_caller]
    fn axis_back(self, axis: usize) -> Result<Var<'s>> {
        let last = self.shape()?.rank() - 1;
        if axis == last { Ok(self) } else { self.movedim(last, axis) }
    }

    /// The elements at positions along the last axis that are known to be in range.
    #[track_caller]
    pub(super) fn at_last(self, positions: Var<'s>) -> Result<Var<'s>> {
        let axis = self.shape()?.rank() - 1;
        self.session().apply(TakeAlongAxis { axis, checked: false }, &[self, positions])
    }

    /// The elements at `positions` along the last axis, and the positions, both with that axis back at `axis`.
    #[track_caller]
    fn with_positions(self, positions: Var<'s>, axis: usize) -> Result<(Var<'s>, Var<'s>)> {
        Ok((self.at_last(positions)?.axis_back(axis)?, positions.axis_back(axis)?))
    }

    /// Drops `axis`, which has one element, unless it is kept.
    #[track_caller]
    fn kept_if(self, axis: usize, keepdim: bool) -> Result<Var<'s>> {
        if keepdim { Ok(self) } else { self.squeeze(axis) }
    }

    /// The size of an axis that float32 can count. Errors if it is empty.
    #[track_caller]
    pub(super) fn counted_dim(self, op: &str, axis: usize) -> Result<usize> {
        match self.dim(op, axis)? {
            0 => Err(Error::argument(
                op,
                "axis",
                format!("axis {axis} has no elements, so there is no result"),
            )),
            n if n > MAX_COUNTED => Err(Error::argument(
                op,
                "axis",
                format!("axis {axis} has {n} elements, at most 2^24 can be counted"),
            )),
            n => Ok(n),
        }
    }

    /// The elements along an axis in increasing order, or decreasing if `descending`, and where they were. The sort is stable.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.input(&Tensor::new(&[4], vec![3.0f32, 1.0, 2.0, 1.0])?)?;
    /// let (values, positions) = x.sort(0, false)?;
    /// assert_eq!(values.to_string(), "[1. 1. 2. 3.]");
    /// assert_eq!(positions.indices()?.data(), [1, 3, 2, 0]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn sort(self, axis: impl Position, descending: bool) -> Result<(Var<'s>, Var<'s>)> {
        let axis = self.axis("sort", axis)?;
        let x = self.axis_last("sort", axis)?;
        let order = self.session().apply(ArgSort { descending }, &[x])?;
        x.with_positions(order, axis)
    }

    /// The positions of [`Var::sort`].
    #[track_caller]
    pub fn argsort(self, axis: impl Position, descending: bool) -> Result<Var<'s>> {
        let axis = self.axis("argsort", axis)?;
        let x = self.axis_last("argsort", axis)?;
        self.session().apply(ArgSort { descending }, &[x])?.axis_back(axis)
    }

    /// The elements sorted along the first axis.
    #[track_caller]
    pub fn msort(self) -> Result<Var<'s>> {
        Ok(self.sort(0, false)?.0)
    }

    /// The `k` largest elements along an axis, largest first, or the `k` smallest, smallest first, and where they are. The first of
    /// several equal ones comes first.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.input(&Tensor::new(&[4], vec![3.0f32, 1.0, 2.0, 3.0])?)?;
    /// let (values, positions) = x.topk(3, 0, true)?;
    /// assert_eq!(values.to_string(), "[3. 3. 2.]");
    /// assert_eq!(positions.indices()?.data(), [0, 3, 2]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn topk(self, k: usize, axis: impl Position, largest: bool) -> Result<(Var<'s>, Var<'s>)> {
        let axis = self.axis("topk", axis)?;
        let x = self.axis_last("topk", axis)?;
        let first = self.session().apply(TopK { k, largest }, &[x])?;
        x.with_positions(first, axis)
    }

    /// The `k`-th smallest element along an axis, counted from 1, and where it is.
    #[track_caller]
    pub fn kthvalue(self, k: usize, axis: impl Position, keepdim: bool) -> Result<(Var<'s>, Var<'s>)> {
        let axis = self.axis("kthvalue", axis)?;
        let x = self.axis_last("kthvalue", axis)?;
        let (n, last) = (self.dim("kthvalue", axis)?, x.shape()?.rank() - 1);
        if k == 0 || k > n {
            return Err(Error::argument(
                "kthvalue",
                "k",
                format!("is {k}, the axis has the 1st to the {n}th"),
            ));
        }
        // Both give the same position.
        let order = match k <= n / 8 {
            true => self.session().apply(TopK { k, largest: false }, &[x])?,
            false => self.session().apply(ArgSort { descending: false }, &[x])?,
        };
        let (value, at) = x.with_positions(order.narrow(last, k - 1, 1)?, axis)?;
        Ok((value.kept_if(axis, keepdim)?, at.kept_if(axis, keepdim)?))
    }

    /// How many elements along the last axis are NaN, with that axis as one.
    #[track_caller]
    pub(super) fn nans_last(self) -> Result<Var<'s>> {
        let last = self.shape()?.rank() - 1;
        self.isnan()?.sum_dim(&[last], true)
    }

    /// The element whose position in the sorted order is given, with one position per line.
    #[track_caller]
    fn middle(
        self,
        axis: usize,
        keepdim: bool,
        at: impl FnOnce(Var<'s>) -> Result<Var<'s>>,
    ) -> Result<(Var<'s>, Var<'s>)> {
        let order = self.session().apply(ArgSort { descending: false }, &[self])?;
        let at = at(self.nans_last()?)?.to_index_below(self.shape()?.last() as u32)?;
        let (value, at) = self.with_positions(order.at_last(at)?, axis)?;
        Ok((value.kept_if(axis, keepdim)?, at.kept_if(axis, keepdim)?))
    }

    /// The median along an axis and where it is: of an even number of elements, the lower one of the two in the middle. NaN, at the
    /// first NaN, if there is one. An axis without elements is an error.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.input(&Tensor::new(&[4], vec![3.0f32, 1.0, 2.0, 5.0])?)?;
    /// let (value, position) = x.median(0, false)?;
    /// assert_eq!((value.item()?, position.indices()?.data()[0]), (2.0, 2));
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn median(self, axis: impl Position, keepdim: bool) -> Result<(Var<'s>, Var<'s>)> {
        let axis = self.axis("median", axis)?;
        let n = self.counted_dim("median", axis)? as f64;
        let x = self.axis_last("median", axis)?;
        // The first NaN follows the last number.
        let at = |nans: Var<'s>| {
            self.session().pointwise(&[nans], |v| {
                Expr::where_gt(v[0], Expr::c(0.0), Expr::c(n) - v[0], Expr::c(((n - 1.0) / 2.0).floor()))
            })
        };
        x.middle(axis, keepdim, at)
    }

    /// Like [`Var::median`], of the elements that are not NaN; NaN if there are none.
    #[track_caller]
    pub fn nanmedian(self, axis: impl Position, keepdim: bool) -> Result<(Var<'s>, Var<'s>)> {
        let axis = self.axis("nanmedian", axis)?;
        let n = self.counted_dim("nanmedian", axis)? as f64;
        let x = self.axis_last("nanmedian", axis)?;
        // Rounded toward zero, and to 0 below it.
        x.middle(axis, keepdim, |nans| nans.scale(-0.5)?.add_scalar((n - 1.0) / 2.0))
    }

    /// The most frequent element along an axis, the smallest of several, and the last of its positions.
    #[track_caller]
    pub fn mode(self, axis: impl Position, keepdim: bool) -> Result<(Var<'s>, Var<'s>)> {
        let axis = self.axis("mode", axis)?;
        let n = self.counted_dim("mode", axis)?;
        let x = self.axis_last("mode", axis)?;
        let last = x.shape()?.rank() - 1;
        let order = self.session().apply(ArgSort { descending: false }, &[x])?;
        let sorted = x.at_last(order)?.detach()?;
        let count = self.session().arange(0.0, n as f64, 1.0)?;
        // Where runs of equal elements start; the first element starts one at 0 in any case.
        let changes = sorted.narrow(last, 1, n - 1)?.ne(sorted.narrow(last, 0, n - 1)?)?.pad(last, 1, 0)?;
        let starts = changes.mul(count)?.cummax(last)?.0;
        let longest = count.sub(starts)?.argmax(&[last], true)?;
        let (value, at) = x.with_positions(order.at_last(longest)?, axis)?;
        Ok((value.kept_if(axis, keepdim)?, at.kept_if(axis, keepdim)?))
    }

    /// The largest element along an axis, the first of several, and where it is. NaN if there is one.
    #[doc(alias = "max")]
    #[track_caller]
    pub fn max_dim(self, axis: impl Position, keepdim: bool) -> Result<(Var<'s>, Var<'s>)> {
        let axis = self.axis("max_dim", axis)?;
        self.at_extremum(axis, keepdim, self.argmax(&[axis], true)?)
    }

    /// The smallest element along an axis, the first of several, and where it is. NaN if there is one.
    #[doc(alias = "min")]
    #[track_caller]
    pub fn min_dim(self, axis: impl Position, keepdim: bool) -> Result<(Var<'s>, Var<'s>)> {
        let axis = self.axis("min_dim", axis)?;
        self.at_extremum(axis, keepdim, self.argmin(&[axis], true)?)
    }

    #[track_caller]
    fn at_extremum(self, axis: usize, keepdim: bool, at: Var<'s>) -> Result<(Var<'s>, Var<'s>)> {
        let value = self.take_along_axis(axis, at)?;
        Ok((value.kept_if(axis, keepdim)?, at.kept_if(axis, keepdim)?))
    }

    /// The largest element so far along an axis, and the last place where it is. NaN from the first NaN on.
    #[track_caller]
    pub fn cummax(self, axis: impl Position) -> Result<(Var<'s>, Var<'s>)> {
        let axis = self.axis("cummax", axis)?;
        self.running(axis, "cummax", true)
    }

    /// The smallest element so far along an axis, and the last place where it is. NaN from the first NaN on.
    #[track_caller]
    pub fn cummin(self, axis: impl Position) -> Result<(Var<'s>, Var<'s>)> {
        let axis = self.axis("cummin", axis)?;
        self.running(axis, "cummin", false)
    }

    #[track_caller]
    fn running(self, axis: usize, op: &str, largest: bool) -> Result<(Var<'s>, Var<'s>)> {
        let x = self.axis_last(op, axis)?;
        let at = self.session().apply(RunningExtremum { largest }, &[x])?;
        x.with_positions(at, axis)
    }

    /// `ln Σ e^x` over the elements up to each along an axis, without overflow. The sums are taken in order.
    #[track_caller]
    pub fn logcumsumexp(self, axis: impl Position) -> Result<Var<'s>> {
        let axis = self.axis("logcumsumexp", axis)?;
        let n = self.dim("logcumsumexp", axis)?;
        let (session, shape) = (self.session(), self.shape()?);
        let d = shape.dims();
        let (outer, inner) = (d[..axis].iter().product(), d[axis + 1..].iter().product());
        if n == 0 {
            return Ok(self);
        }
        // With m the largest so far, h[i] = e^(m[i-1] - m[i]) h[i-1] + e^(x[i] - m[i]) and the value is m + ln h. It does not depend
        // on m, which so has no gradient; infinite ones are replaced by 0.
        let m = session.pointwise(&[self.detach()?.cummax(axis)?.0], |v| {
            Expr::where_eq(v[0].abs(), Expr::c(f64::INFINITY), Expr::c(0.0), v[0])
        })?;
        let before = m.narrow(axis, 0, 1)?.concat(m.narrow(axis, 0, n - 1)?, axis)?;
        let flat = |v: Var<'s>| v.reshape(&[outer, n, inner]);
        let decay = flat(session.pointwise(&[before, m], |v| (v[0] - v[1]).exp())?)?;
        let terms = flat(session.pointwise(&[self, m], |v| (v[0] - v[1]).exp())?)?;
        let (one, start) = (session.ones(&[inner])?, session.zeros(&[outer, inner])?);
        let h = session.apply(SelectiveScan, &[decay, one, terms, start])?.reshape(d)?;
        session.pointwise(&[h, m], |v| {
            let zero = Expr::c(0.0);
            let sum = Expr::where_eq(v[0], zero, Expr::c(1.0), v[0]);
            Expr::where_eq(v[0], zero, Expr::c(f64::NEG_INFINITY), v[1] + sum.log())
        })
    }

    /// Where `values` would be inserted into this value, which is sorted along its last axis: the number of its elements below each, or
    /// not above it if `right`. This value is one list for all, or has the axes of `values` except for the last. The results are
    /// indices.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let bounds = session.input(&Tensor::new(&[3], vec![1.0f32, 2.0, 3.0])?)?;
    /// let values = session.input(&Tensor::new(&[3], vec![0.0f32, 2.0, 9.0])?)?;
    /// assert_eq!(bounds.searchsorted(values, false)?.indices()?.data(), [0, 1, 3]);
    /// assert_eq!(bounds.searchsorted(values, true)?.indices()?.data(), [0, 2, 3]);
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn searchsorted(self, values: Var<'s>, right: bool) -> Result<Var<'s>> {
        self.session().apply(SearchSorted { right }, &[self, values])
    }

    /// The bucket of each element between sorted `boundaries`, a vector: see [`Var::searchsorted`].
    #[track_caller]
    pub fn bucketize(self, boundaries: Var<'s>, right: bool) -> Result<Var<'s>> {
        boundaries.vector("bucketize")?;
        boundaries.searchsorted(self, right)
    }
}
