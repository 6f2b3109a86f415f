//! Errors of the library as Python exceptions, with the same texts.

use dittograd::error::{Error, ErrorKind};
use pyo3::PyErr;
use pyo3::exceptions::{
    PyFileNotFoundError, PyIndexError, PyMemoryError, PyRuntimeError, PyTypeError, PyValueError,
};

/// What raises `error` in Python.
pub fn raised(error: Error) -> PyErr {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::DType { .. } => PyTypeError::new_err(text),
        ErrorKind::Axis { .. } | ErrorKind::Index { .. } => PyIndexError::new_err(text),
        ErrorKind::Arity { .. }
        | ErrorKind::Rank { .. }
        | ErrorKind::Shapes { .. }
        | ErrorKind::Argument { .. }
        | ErrorKind::TooLarge { .. }
        | ErrorKind::Length { .. } => PyValueError::new_err(text),
        ErrorKind::File { path, .. } if !std::path::Path::new(path).exists() => {
            PyFileNotFoundError::new_err(text)
        }
        ErrorKind::OutOfMemory { .. } => PyMemoryError::new_err(text),
        _ => PyRuntimeError::new_err(text),
    }
}
