//! NumPy's arrays, and what NumPy can read, as tensors.

use crate::errors::raised;
use dittograd::tensor::{AnyTensor, Tensor};
use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// A tensor that Python gave, and whether its elements were truth values.
pub struct Given {
    pub tensor: AnyTensor,
    pub truth: bool,
}

/// What becomes of negative whole numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Negative {
    /// They are errors.
    Refused,
    /// They become indices from the end of all 2^32, as in two's complement: labels that a loss ignores.
    Wrapped,
}

/// The elements of a buffer if they have this type and lie side by side.
fn read<T: Element>(py: Python<'_>, data: &Bound<'_, PyAny>) -> Option<(Vec<T>, Vec<usize>)> {
    let buffer = PyBuffer::<T>::get(data).ok()?;
    let dims = buffer.shape().to_vec();
    Some((buffer.to_vec(py).ok()?, dims))
}

fn index(number: i64, negative: Negative) -> PyResult<u32> {
    let narrow = match negative {
        Negative::Wrapped if number < 0 => i32::try_from(number).ok().map(|n| n as u32),
        _ => u32::try_from(number).ok(),
    };
    narrow.ok_or_else(|| {
        PyValueError::new_err(format!("{number} is no index: indices are whole numbers from 0 to 4294967295"))
    })
}

/// Reads what supports Python's buffer protocol, such as a NumPy array, and all else that NumPy can read, such as lists of numbers
/// and tensors of PyTorch on the CPU: floats become float32, integers indices, booleans truth values.
pub fn given(py: Python<'_>, data: &Bound<'_, PyAny>, negative: Negative) -> PyResult<Given> {
    let tensor = |dims: &[usize], numbers| Tensor::new(dims, numbers).map_err(raised);
    if let Some((numbers, dims)) = read::<f32>(py, data) {
        return Ok(Given { tensor: AnyTensor::Num(tensor(&dims, numbers)?), truth: false });
    }
    let numpy = py.import("numpy")?;
    let array = numpy.call_method1("asarray", (data,))?;
    let kind: String = array.getattr("dtype")?.getattr("kind")?.extract()?;
    let dims: Vec<usize> = array.getattr("shape")?.extract()?;
    // A buffer without axes has no shape.
    let read_as = |name: &str| {
        let types = PyDict::new(py);
        types.set_item("copy", false)?;
        array.call_method0("ravel")?.call_method("astype", (name,), Some(&types))
    };
    match kind.as_str() {
        "f" | "b" => {
            let numbers = PyBuffer::<f32>::get(&read_as("float32")?)?.to_vec(py)?;
            Ok(Given { tensor: AnyTensor::Num(tensor(&dims, numbers)?), truth: kind == "b" })
        }
        "i" | "u" => {
            let wide = PyBuffer::<i64>::get(&read_as("int64")?)?.to_vec(py)?;
            let indices: Vec<u32> = wide.into_iter().map(|n| index(n, negative)).collect::<PyResult<_>>()?;
            let indices = Tensor::new(&dims, indices).map_err(raised)?;
            Ok(Given { tensor: AnyTensor::Idx(indices), truth: false })
        }
        _ => {
            let name = array.getattr("dtype")?.str()?;
            Err(PyTypeError::new_err(format!(
                "elements of type {name} are not supported; give floats, integers (they become indices) or booleans"
            )))
        }
    }
}
