//! What Python programs write in another way than Rust ones.

use dittograd::error::{Error, Result};
use dittograd::session::Var;
use dittograd::shape::{Position, Shape};
use dittograd::tensor::Tensor;

/// The axis that a caller names, and its size.
fn named<'s>(x: Var<'s>, op: &str, axis: i64) -> Result<(usize, usize)> {
    let shape = x.shape()?;
    let found = axis.among(shape.rank()).and_then(|a| Some((a, *shape.dims().get(a)?)));
    found.ok_or_else(|| {
        Error::argument(op, "dim", format!("{axis} is no axis of a value of {} axes", shape.rank()))
    })
}

/// `Var::item` of indices.
pub fn index_item(x: Var<'_>) -> Result<u32> {
    match x.indices()?.data() {
        [one] => Ok(*one),
        all => Err(Error::argument("item", "value", format!("has {} elements, not 1", all.len()))),
    }
}

/// `f` of values whose scalars count as vectors of one element; of a scalar the result is a scalar again.
pub fn of_vectors<'s>(v: &[Var<'s>], f: impl FnOnce(&[Var<'s>]) -> Result<Var<'s>>) -> Result<Var<'s>> {
    if v[0].shape()?.rank() > 0 {
        return f(v);
    }
    f(&v.iter().map(|x| x.atleast_1d()).collect::<Result<Vec<_>>>()?)?.reshape(&[])
}

/// Where a slice of an axis begins and ends, as Python's slices say it: negative ends count from the end, all are clamped.
pub fn range(x: Var<'_>, axis: i64, start: Option<i64>, end: Option<i64>) -> Result<(usize, usize)> {
    let size = named(x, "slice", axis)?.1;
    let place = |at: i64| at.among(size).unwrap_or(0).min(size);
    let (start, end) = (start.map_or(0, place), end.map_or(size, place));
    Ok((start, end.max(start)))
}

/// The places `offset + Σ strides[a] i[a]`.
pub fn strided<'s>(x: Var<'s>, sizes: &[usize], strides: &[usize], offset: usize) -> Result<Var<'s>> {
    if sizes.len() != strides.len() {
        let why = format!("{strides:?} must have an entry for each of the sizes {sizes:?}");
        return Err(Error::argument("as_strided", "stride", why));
    }
    let shape = Shape::new(sizes)?;
    let place = |i: usize| {
        let mut rest = i;
        let steps = sizes.iter().zip(strides).rev().map(|(&n, &stride)| {
            let at = rest % n;
            rest /= n;
            at.saturating_mul(stride)
        });
        // What is too far for an index is beyond every value, which the gather finds.
        u32::try_from(steps.fold(offset, usize::saturating_add)).unwrap_or(u32::MAX)
    };
    x.session().indices(&Tensor::with_shape(shape, (0..shape.numel()).map(place).collect())?)
}

/// `Var::index` along any axes: indices of these axes. The axes of the indices take the place of the first one if the axes are
/// neighbours, otherwise they come first.
pub fn index_axes<'s>(x: Var<'s>, axes: &[usize], indices: &[Var<'s>]) -> Result<Var<'s>> {
    let rank = x.shape()?.rank();
    let rest: Vec<usize> = (0..rank).filter(|a| !axes.contains(a)).collect();
    let found = x.permute(&[axes, &rest].concat())?.index(indices)?;
    let before = axes.first().copied().unwrap_or(0);
    if before == 0 || axes.windows(2).any(|w| w[1] != w[0] + 1) {
        return Ok(found);
    }
    let (new, all) = (found.shape()?.rank() - rest.len(), found.shape()?.rank());
    let order: Vec<usize> = (new..new + before).chain(0..new).chain(new + before..all).collect();
    found.permute(&order)
}
