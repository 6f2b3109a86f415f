//! Parameters of Python programs.

use crate::arrays::{Negative, given};
use crate::device::{Device, Place};
use crate::dlpack::{Shared, to_numpy};
use crate::errors::answered;
use crate::held::locked;
use dittograd::error::Result;
use dittograd::io::SaveLoad;
use dittograd::params::{Param as NativeParam, Params as Native};
use dittograd::tensor::{AnyTensor, Tensor};
use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::path::PathBuf;
use std::sync::Mutex;

/// A named value that training changes. `Params.add` makes it; `session.param(param)` is its value as a tensor.
#[pyclass(frozen, module = "dittograd")]
pub struct Param {
    native: NativeParam,
}

/// Numbers that Python gave.
fn numbers(py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Tensor<f32>> {
    match given(py, value, Negative::Refused)?.tensor {
        AnyTensor::Num(numbers) => Ok(numbers),
        AnyTensor::Idx(_) => {
            Err(PyTypeError::new_err("a parameter holds numbers, got integers; convert them to floats"))
        }
    }
}

impl Param {
    pub fn native(&self) -> &NativeParam {
        &self.native
    }
}

#[pymethods]
impl Param {
    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        self.native.name()
    }

    /// The sizes of its axes, as a tuple.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.native.shape().dims())
    }

    /// Whether optimizers change it. It can be set.
    #[getter]
    fn trainable(&self) -> bool {
        self.native.trainable()
    }

    #[setter]
    fn set_trainable(&self, on: bool) {
        self.native.set_trainable(on);
    }

    /// Its value as a new NumPy array of float32. Waits for the device.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_numpy(py, answered(py.detach(|| Shared::host(&self.native.buffer())))?)
    }

    /// Replaces its value by an array of floats of the same shape.
    fn set(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let value = numbers(py, value)?;
        answered(self.native.set(&value))
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.native)
    }
}

/// The parameters of a model, by name. They live on one device.
///
///     params = dg.Params("cuda", seed=1)
///     weight = params.add("weight", np.zeros((3, 2)))
///     params["weight"].numpy()
///
/// device: a `Device` or the name of one
/// seed: the seed of initial values
#[pyclass(frozen, module = "dittograd", mapping)]
pub struct Params {
    native: Mutex<Native>,
}

impl Params {
    /// What `f` makes of them.
    pub fn ask<T>(&self, f: impl FnOnce(&mut Native) -> Result<T>) -> Result<T> {
        f(&mut locked(&self.native))
    }

    /// As [`Params::ask`], for Python.
    pub fn with<T>(&self, f: impl FnOnce(&mut Native) -> Result<T>) -> PyResult<T> {
        answered(self.ask(f))
    }
}

#[pymethods]
impl Params {
    #[new]
    #[pyo3(signature = (device=Place::Name("cpu".into()), *, seed=0), text_signature = "(device='cpu', *, seed=0)")]
    fn new(device: Place, seed: u64) -> PyResult<Params> {
        Ok(Params { native: Mutex::new(Native::new(&device.open()?, seed)) })
    }

    /// A new parameter with the value of an array of floats, which is copied. Without `trainable` it is a buffer, such as a running
    /// mean.
    #[pyo3(signature = (name, value, *, trainable=true))]
    fn add(&self, py: Python<'_>, name: &str, value: &Bound<'_, PyAny>, trainable: bool) -> PyResult<Param> {
        let value = numbers(py, value)?;
        let native = self.with(|params| params.value(name, &value))?;
        if !trainable {
            native.set_buffer();
        }
        Ok(Param { native })
    }

    /// The device they live on.
    #[getter]
    fn device(&self) -> PyResult<Device> {
        self.with(|params| Ok(Device::of(params.device())))
    }

    /// A hash of all bits, in the order of names: 16 hex digits that two machines can compare.
    fn fingerprint(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.with(|params| params.fingerprint()))
    }

    /// The number of elements of all parameters together.
    fn numel(&self) -> PyResult<usize> {
        self.with(|params| Ok(params.numel()))
    }

    /// Writes all of them to a safetensors file.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.with(|params| params.save(&path)))
    }

    /// Reads all of them from a safetensors file. Errors if one is missing, too many or of another shape; nothing is changed then.
    fn load(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.with(|params| params.load(&path)))
    }

    /// Moves all of them, and every program that reads them, to another device.
    fn to(&self, device: Place) -> PyResult<()> {
        let device = device.open()?;
        self.with(|params| params.to(&device))
    }

    /// Their names, in the order they were made.
    fn keys(&self) -> PyResult<Vec<String>> {
        self.with(|params| Ok(params.iter().map(|p| p.name().to_string()).collect()))
    }

    /// All of them, in the order they were made.
    fn values(&self) -> PyResult<Vec<Param>> {
        self.with(|params| Ok(params.iter().map(|p| Param { native: p.clone() }).collect()))
    }

    /// Names and parameters, in the order they were made.
    fn items(&self) -> PyResult<Vec<(String, Param)>> {
        Ok(self.keys()?.into_iter().zip(self.values()?).collect())
    }

    fn __getitem__(&self, name: &str) -> PyResult<Param> {
        let found = self.with(|params| Ok(params.get(name).cloned()))?;
        found.map(|native| Param { native }).ok_or_else(|| PyKeyError::new_err(name.to_string()))
    }

    fn __contains__(&self, name: &str) -> PyResult<bool> {
        self.with(|params| Ok(params.get(name).is_some()))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.keys()?.into_pyobject(py)?.try_iter()?.into_any())
    }

    fn __len__(&self) -> PyResult<usize> {
        self.with(|params| Ok(params.len()))
    }

    fn __repr__(&self) -> PyResult<String> {
        self.with(|params| {
            Ok(format!(
                "Params({}, {} parameters, {} numbers)",
                params.device(),
                params.len(),
                params.numel()
            ))
        })
    }
}
