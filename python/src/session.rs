//! Sessions of Python programs.

use crate::errors::raised;
use crate::held::Held;
use crate::tensor::Tensor;
use dittograd::device::{Device, Simd};
use dittograd::error::{Error, Result};
use dittograd::session::{Options, Session as Native, VarId};
use dittograd::tensor::Tensor as Host;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::sync::Arc;

/// A place to compute in: it runs each function at once, on one device, and records what gradients need.
///
/// device: "cpu", "cuda" or "cuda:1"; the same bits on all of them
/// seed: the seed of random numbers
/// threads: of the CPU, all cores without it; the same bits with any number
/// numerics: "strict", "fast" or "turbo"; each has one answer of its own
/// inference: if true, nothing is recorded for gradients
#[pyclass(frozen, module = "dittograd")]
pub struct Session {
    held: Arc<Held>,
}

impl Session {
    pub fn made(&self, f: impl FnOnce(&Native) -> Result<VarId>) -> PyResult<Tensor> {
        Ok(Tensor::new(self.held.clone(), self.held.with(f)?))
    }
}

/// The elements of a buffer as numbers, truth values or indices.
enum Elements {
    Numbers(Vec<f32>),
    Truths(Vec<f32>),
    Indices(Vec<u32>),
}

/// Reads what supports Python's buffer protocol, such as a NumPy array.
fn elements(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<(Elements, Vec<usize>)> {
    let numpy = py.import("numpy")?;
    let array = numpy.call_method1("ascontiguousarray", (data,))?;
    let dims: Vec<usize> = data
        .getattr("shape")
        .and_then(|s| s.extract())
        .or_else(|_| numpy.call_method1("shape", (data,)).and_then(|s| s.extract()))?;
    let kind: String = array.getattr("dtype")?.getattr("kind")?.extract()?;
    let as_type = |name: &str| array.call_method1("astype", (name,));
    let elements = match kind.as_str() {
        "f" => Elements::Numbers(PyBuffer::<f32>::get(&as_type("float32")?)?.to_vec(py)?),
        "b" => Elements::Truths(PyBuffer::<f32>::get(&as_type("float32")?)?.to_vec(py)?),
        "i" | "u" => {
            let wide = PyBuffer::<i64>::get(&as_type("int64")?)?.to_vec(py)?;
            let narrow = wide.iter().map(|&i| {
                u32::try_from(i).map_err(|_| {
                    PyValueError::new_err(format!(
                        "{i} is no index: indices are whole numbers from 0 to 4294967295"
                    ))
                })
            });
            Elements::Indices(narrow.collect::<PyResult<_>>()?)
        }
        _ => {
            let name = array.getattr("dtype")?.str()?;
            return Err(PyTypeError::new_err(format!(
                "elements of type {name} are not supported; give floats, integers (they become indices) or booleans"
            )));
        }
    };
    Ok((elements, dims))
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (device="cpu", *, seed=0, threads=None, numerics=None, inference=false))]
    fn new(
        device: &str,
        seed: u64,
        threads: Option<usize>,
        numerics: Option<&str>,
        inference: bool,
    ) -> PyResult<Session> {
        let open = || {
            let device = match threads {
                Some(threads) if device == "cpu" => Device::cpu_with(threads, Simd::best())?,
                _ => Device::parse(device)?,
            };
            numerics.map_or(Ok(device.clone()), |mode| device.in_mode(mode.parse()?))
        };
        let device = open().map_err(|e: Error| raised(e.without_location()))?;
        let session = Native::new(&device, Options { seed, track_gradients: !inference });
        Ok(Session { held: Arc::new(Held::new(session)) })
    }

    /// A tensor of what NumPy can read: floats become float32, integers become indices, booleans truth values.
    #[pyo3(signature = (data, requires_grad=false))]
    fn tensor(&self, py: Python<'_>, data: &Bound<'_, PyAny>, requires_grad: bool) -> PyResult<Tensor> {
        let (elements, dims) = elements(py, data)?;
        let truth = matches!(elements, Elements::Truths(_)) && !requires_grad;
        let made = self.made(|session| {
            let var = match elements {
                Elements::Numbers(data) | Elements::Truths(data) if requires_grad => {
                    session.variable(&Host::new(&dims, data)?)?
                }
                Elements::Numbers(data) | Elements::Truths(data) => {
                    session.input(&Host::new(&dims, data)?)?
                }
                Elements::Indices(data) => session.labels(&Host::new(&dims, data)?)?,
            };
            Ok(var.to_id())
        })?;
        Ok(if truth { made.into_truth() } else { made })
    }

    /// Gradients of `outputs` by `inputs`, with `seeds` as the gradients of the outputs: `None` for an input that they do not depend on.
    /// They can be differentiated again.
    fn grad(
        &self,
        outputs: Vec<Py<Tensor>>,
        inputs: Vec<Py<Tensor>>,
        seeds: Vec<Py<Tensor>>,
    ) -> PyResult<Vec<Option<Tensor>>> {
        let found = self.held.with(|session| {
            let at = |t: &Py<Tensor>| session.from_id(t.get().id());
            let pairs: Vec<_> = outputs.iter().map(at).zip(seeds.iter().map(at)).collect();
            let wanted: Vec<_> = inputs.iter().map(at).collect();
            let grads = session.vjp(&pairs, &wanted)?;
            Ok(grads.into_iter().map(|g| g.map(|g| g.to_id())).collect::<Vec<_>>())
        })?;
        Ok(found.into_iter().map(|id| id.map(|id| Tensor::new(self.held.clone(), id))).collect())
    }

    /// Forgets all tensors of this session and frees their memory.
    fn reset(&self) -> PyResult<()> {
        self.held.with(|session| {
            session.reset();
            Ok(())
        })
    }

    fn __repr__(&self) -> PyResult<String> {
        self.held.with(|session| Ok(format!("Session({}, {} values)", session.device(), session.size())))
    }
}
