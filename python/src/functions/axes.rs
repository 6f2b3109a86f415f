//! Axes, and results with names.

use crate::arguments::Dims;
use crate::tensor::{Answer, Tensor, one, two};
use dittograd::error::Result;
use dittograd::session::Var;
use pyo3::prelude::*;

/// A Python object.
pub type Object<'py> = PyResult<Bound<'py, PyAny>>;

/// The axes of a reduction: all of them if none is named. As in PyTorch, a scalar may be reduced along the axes 0 and -1; that changes
/// nothing.
pub fn reduced(input: &Tensor, dim: Option<Dims>) -> PyResult<Vec<i64>> {
    let rank = input.rank()?;
    let axes = Dims::or_all(dim, rank);
    let of_scalar = rank == 0 && axes.iter().all(|axis| matches!(axis, 0 | -1));
    Ok(if of_scalar { Vec::new() } else { axes })
}

/// `f`, which works along an axis, of values whose scalars count as vectors of one element, as in PyTorch; if the first is a scalar, so is
/// the result.
pub fn of_vectors<'s>(v: &[Var<'s>], f: impl FnOnce(&[Var<'s>]) -> Result<Var<'s>>) -> Result<Var<'s>> {
    if v[0].shape()?.rank() > 0 {
        return f(v);
    }
    f(&v.iter().map(|x| x.atleast_1d()).collect::<Result<Vec<_>>>()?)?.reshape(&[])
}

/// Runs `f`, which works along an axis, on `input`, as [`of_vectors`] does.
pub fn along(input: &Tensor, f: impl for<'s> FnOnce(Var<'s>) -> Result<Var<'s>> + Send) -> Answer {
    one(&[input], |v| of_vectors(v, |v| f(v[0])))
}

/// Like [`along`], for a function of two results.
pub fn along_two(
    input: &Tensor,
    f: impl for<'s> FnOnce(Var<'s>) -> Result<(Var<'s>, Var<'s>)> + Send,
) -> PyResult<(Tensor, Tensor)> {
    let scalar = input.rank()? == 0;
    two(&[input], |v| {
        if !scalar {
            return f(v[0]);
        }
        let (a, b) = f(v[0].flatten()?)?;
        Ok((a.reshape(&[])?, b.reshape(&[])?))
    })
}

/// Two results as the named tuple `kind` of `dittograd._results`.
pub fn named<'py>(py: Python<'py>, kind: &str, results: (Tensor, Tensor)) -> Object<'py> {
    py.import("dittograd._results")?.call_method1(kind, results)
}
