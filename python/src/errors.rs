//! Errors of the library as Python exceptions, with the same texts but for advice about Rust.

use dittograd::error::{Error, ErrorKind, Result};
use pyo3::exceptions::{
    PyFileNotFoundError, PyIndexError, PyMemoryError, PyRuntimeError, PyTypeError, PyValueError,
};
use pyo3::{PyErr, PyResult};

/// Advice of the library, in Python's words.
const ADVICE: [(&str, &str); 9] = [
    (
        "indices come from Session::labels or Session::indices, or from numbers by to_index()",
        "indices come from integers given to session.tensor, or from numbers by x.long()",
    ),
    (
        "numbers come from Session::input, variable or param, or from indices by to_float(); indices are read with indices()",
        "numbers come from floats given to session.tensor, or from indices by x.float()",
    ),
    ("Session::inference records none; use Session::eager", "a session with inference=True records none"),
    ("Graph::text prints it, Display does not", "Graph.text() gives it"),
    ("Graph::text prints them", "Graph.text() gives them"),
    ("TrainStep::seeded(", "TrainStep(seed="),
    ("Params::load or StateDict::read", "Params.load"),
    ("Params::load", "Params.load"),
    ("make the second model in a scope: `params.scope(\"second\")`", "use another name"),
];

/// What raises `error` in Python. A line of this binding says nothing to a Python program; its traceback does.
pub fn raised(error: Error) -> PyErr {
    let error = error.without_location();
    let text = ADVICE.iter().fold(error.to_string(), |text, (rust, python)| text.replace(rust, python));
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

/// A result of the library as one of Python.
pub fn answered<T>(result: Result<T>) -> PyResult<T> {
    result.map_err(raised)
}
