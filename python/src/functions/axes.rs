//! Axes, and results with names.

use crate::arguments::Dims;
use crate::tensor::{Answer, Tensor, one, two};
use dittograd::error::Result;
use dittograd::session::Var;
use pyo3::exceptions::PyNotImplementedError;
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

/// Runs `f`, which works along an axis, on `input`. As in PyTorch, a scalar counts as a vector of one element.
pub fn along(input: &Tensor, f: impl for<'s> FnOnce(Var<'s>) -> Result<Var<'s>>) -> Answer {
    let scalar = input.rank()? == 0;
    one(&[input], |v| if scalar { f(v[0].flatten()?)?.reshape(&[]) } else { f(v[0]) })
}

/// Like [`along`], for a function of two results.
pub fn along_two(
    input: &Tensor,
    f: impl for<'s> FnOnce(Var<'s>) -> Result<(Var<'s>, Var<'s>)>,
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

/// Refuses element types other than float32.
pub fn check_dtype(dtype: Option<&str>) -> PyResult<()> {
    match dtype {
        None | Some("float32") => Ok(()),
        Some(other) => Err(PyNotImplementedError::new_err(format!(
            "dtype {other} is not supported; leave it out or give \"float32\""
        ))),
    }
}
