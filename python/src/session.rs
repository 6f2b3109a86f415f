//! Sessions of Python programs.

use crate::arrays::{Given, Negative, given};
use crate::device::{Device, Place};
use crate::dlpack;
use crate::held::Held;
use crate::params::Param;
use crate::tensor::Tensor;
use dittograd::device::Device as NativeDevice;
use dittograd::error::Result;
use dittograd::session::{Options, Session as Native, VarId};
use dittograd::tensor::AnyTensor;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;

/// A place to compute in: it runs each function at once, on one device, and records what gradients need.
///
///     session = dg.Session("cuda", seed=1)
///     x = session.tensor([[1.0, 2.0]], requires_grad=True)
///     noise = session.randn(1, 2)
///
/// Functions that make tensors, such as `zeros`, `arange` and `randn`, are methods of a session. It keeps all values until `reset`:
/// call that after each step of a loop that does not run a compiled program.
///
/// device: "cpu", "cuda" or "cuda:1", or a `Device`; the same bits on all of them
/// seed: the seed of random numbers
/// threads: of the CPU, by default all cores; the same bits with any number
/// numerics: "strict", "fast" or "turbo"; each has one answer of its own
/// inference: if true, nothing is recorded for gradients
#[pyclass(frozen, module = "dittograd")]
pub struct Session {
    held: Arc<Held>,
}

impl Session {
    pub fn of(held: Arc<Held>) -> Session {
        Session { held }
    }

    /// The device of the session if it is a GPU and `data` on it too. On another GPU it is an error.
    fn gpu_of(&self, data: &Bound<'_, PyAny>) -> PyResult<Option<NativeDevice>> {
        let device = self.held.with(|session| Ok(session.device().clone()))?;
        let Some(cuda) = device.as_cuda() else { return Ok(None) };
        let ours = cuda.ordinal();
        match dlpack::gpu_of(data)? {
            None => Ok(None),
            Some(gpu) if usize::try_from(gpu) == Ok(ours) => Ok(Some(device)),
            Some(gpu) => Err(PyValueError::new_err(format!(
                "the data is on cuda:{gpu}, the session computes on cuda:{ours}; move it there first"
            ))),
        }
    }

    /// A copy of float32 numbers that are on the same GPU, made there; `None` for all else. `stream` is where they are computed and
    /// used; without one this waits.
    fn copied(&self, data: &Bound<'_, PyAny>, stream: Option<u64>) -> PyResult<Option<Tensor>> {
        let Some(device) = self.gpu_of(data)? else { return Ok(None) };
        let copied = dlpack::copied(data, &device, stream)?;
        copied.map(|value| self.made(|session| Ok(session.input_on(&value)?.to_id()))).transpose()
    }

    pub fn made(&self, f: impl FnOnce(&Native) -> Result<VarId> + Send) -> PyResult<Tensor> {
        Ok(Tensor::new(self.held.clone(), self.held.with(f)?))
    }
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (device=Place::Name("cpu".into()), *, seed=0, threads=None, numerics=None, inference=false))]
    #[pyo3(text_signature = "(device='cpu', *, seed=0, threads=None, numerics=None, inference=False)")]
    fn new(
        device: Place,
        seed: u64,
        threads: Option<usize>,
        numerics: Option<&str>,
        inference: bool,
    ) -> PyResult<Session> {
        let device = match device {
            Place::Name(name) => Device::new(&name, threads, numerics)?.native().clone(),
            Place::Device(_) if threads.is_some() || numerics.is_some() => {
                return Err(PyValueError::new_err("a Device has threads and numerics; give them to it"));
            }
            Place::Device(device) => device.get().native().clone(),
        };
        let session = Native::new(&device, Options { seed, track_gradients: !inference });
        Ok(Session { held: Arc::new(Held::new(session)) })
    }

    /// A tensor of what NumPy can read: arrays, numbers, lists, tensors of PyTorch on the CPU. The data is copied. If both are on the
    /// same GPU, float32 numbers that lie side by side are copied there, and all else through host memory.
    ///
    /// Floats become float32, integers indices (uint32, so negative ones are errors), booleans truth values. With `requires_grad`
    /// gradients by it can be asked for, by `grad`.
    #[pyo3(signature = (data, requires_grad=false))]
    fn tensor(&self, py: Python<'_>, data: &Bound<'_, PyAny>, requires_grad: bool) -> PyResult<Tensor> {
        if let Some(made) = self.copied(data, None)? {
            return if requires_grad { made.tracked() } else { Ok(made) };
        }
        let on_host = if self.gpu_of(data)?.is_some() { data.call_method0("cpu").ok() } else { None };
        let Given { tensor, truth } = given(py, on_host.as_ref().unwrap_or(data), Negative::Refused)?;
        let made = self.made(|session| {
            let var = match &tensor {
                AnyTensor::Num(numbers) if requires_grad => session.variable(numbers)?,
                AnyTensor::Num(numbers) => session.input(numbers)?,
                AnyTensor::Idx(indices) => session.labels(indices)?,
            };
            Ok(var.to_id())
        })?;
        Ok(if truth && !requires_grad { made.into_truth() } else { made })
    }

    /// As `tensor`, of numbers that never change: a recorded program holds them as a part of itself.
    fn constant(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        let Given { tensor, truth } = given(py, data, Negative::Refused)?;
        let made = self.made(|session| {
            let var = match &tensor {
                AnyTensor::Num(numbers) => session.constant(numbers)?,
                AnyTensor::Idx(indices) => session.indices(indices)?,
            };
            Ok(var.to_id())
        })?;
        Ok(if truth { made.into_truth() } else { made })
    }

    /// The value of a parameter as a tensor. In a `TrainStep` gradients flow to the parameter through it.
    fn param(&self, param: &Param) -> PyResult<Tensor> {
        self.made(|session| Ok(session.param(param.native())?.to_id()))
    }

    /// Gives a parameter that is not trained a new value, such as a running mean. It takes effect at `reset`; in a recorded program,
    /// when the step or call ends.
    fn assign(&self, param: &Param, value: &Tensor) -> PyResult<()> {
        self.held.assign(param.native(), value.id())
    }

    /// As `tensor`, of float32 numbers that lie side by side on the same GPU. Does not wait: the copy is ordered among the work of a
    /// stream, 1 for the default stream.
    fn _tensor_on_stream(&self, data: &Bound<'_, PyAny>, stream: u64) -> PyResult<Tensor> {
        let copied = self.copied(data, Some(stream))?;
        copied.ok_or_else(|| {
            PyValueError::new_err("the data must be float32 numbers side by side, on the same GPU")
        })
    }

    /// The session of a tensor.
    #[staticmethod]
    fn _of(tensor: &Tensor) -> Session {
        Session::of(tensor.held().clone())
    }

    /// The device it computes on.
    #[getter]
    fn device(&self) -> PyResult<Device> {
        self.held.with(|session| Ok(Device::of(session.device())))
    }

    /// Gradients of several tensors by several: one for each of `inputs`, or `None` where no output depends on it.
    ///
    /// outputs: tensors of any shape
    /// inputs: tensors made with `requires_grad`, what was computed from such, or `tracked`
    /// seeds: a gradient for each output, of its shape
    ///
    /// For one output of one element there is `output.grad(inputs)`. Gradients can be differentiated again.
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

    /// Forgets all tensors of this session and frees their memory. To use an earlier tensor is an error then; parameters stay.
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
