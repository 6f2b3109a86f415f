//! Arguments as Python programs write them.

use crate::tensor::Tensor;
use pyo3::exceptions::{PyNotImplementedError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// An axis, or several.
#[derive(FromPyObject)]
pub enum Dims {
    One(i64),
    Many(Vec<i64>),
}

impl Dims {
    pub fn list(self) -> Vec<i64> {
        match self {
            Dims::One(dim) => vec![dim],
            Dims::Many(dims) => dims,
        }
    }

    /// The axes that a reduction takes: all of them if none is given or the list is empty.
    pub fn or_all(dims: Option<Dims>, rank: usize) -> Vec<i64> {
        match dims.map(Dims::list) {
            Some(dims) if !dims.is_empty() => dims,
            _ => (0..rank as i64).collect(),
        }
    }
}

/// A size for all axes, or one for each.
#[derive(FromPyObject)]
pub enum Sizes {
    One(usize),
    Many(Vec<usize>),
}

impl Sizes {
    /// One for each of `axes` axes.
    pub fn each(&self, name: &str, axes: usize) -> PyResult<Vec<usize>> {
        match self {
            Sizes::One(size) => Ok(vec![*size; axes]),
            Sizes::Many(sizes) if sizes.len() == 1 => Ok(vec![sizes[0]; axes]),
            Sizes::Many(sizes) if sizes.len() == axes => Ok(sizes.clone()),
            Sizes::Many(sizes) => {
                Err(PyValueError::new_err(format!("{name} has {} numbers; give 1 or {axes}", sizes.len())))
            }
        }
    }
}

/// A tensor or a number.
#[derive(FromPyObject)]
pub enum Operand<'py> {
    Tensor(PyRef<'py, Tensor>),
    Number(f64),
}

/// Sizes or axes that are given as one list or as separate numbers.
pub fn listed(name: &str, first: Dims, more: Vec<i64>) -> PyResult<Vec<i64>> {
    match first {
        Dims::One(first) => Ok([&[first], &more[..]].concat()),
        Dims::Many(all) if more.is_empty() => Ok(all),
        Dims::Many(_) => {
            Err(PyValueError::new_err(format!("{name}: give one list or separate numbers, not both")))
        }
    }
}

/// Numbers that may not be negative.
pub fn unsigned(name: &str, numbers: &[i64]) -> PyResult<Vec<usize>> {
    let number = |&n: &i64| {
        usize::try_from(n).map_err(|_| PyValueError::new_err(format!("{name} has {n}, which is negative")))
    };
    numbers.iter().map(number).collect()
}

/// Tensors that are given as one list or separately.
pub fn variadic(tensors: &Bound<'_, PyTuple>) -> PyResult<Vec<Py<Tensor>>> {
    let is_list = tensors.len() == 1 && !tensors.get_item(0)?.is_instance_of::<Tensor>();
    if is_list { tensors.get_item(0)?.extract() } else { tensors.extract() }
}

/// The tensors of a list.
pub fn refs(tensors: &[Py<Tensor>]) -> Vec<&Tensor> {
    tensors.iter().map(|t| t.get()).collect()
}

/// Refuses element types other than that of numbers.
pub fn check_dtype(dtype: Option<&str>) -> PyResult<()> {
    match dtype {
        None | Some("float32") => Ok(()),
        Some(other) => Err(PyNotImplementedError::new_err(format!(
            "dtype {other} is not supported; leave it out or give \"float32\""
        ))),
    }
}
