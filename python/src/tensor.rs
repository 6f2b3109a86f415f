//! Values of a session, and how functions run on them.

use crate::dlpack::{self, DlDevice, HOST, Shared, to_numpy};
use crate::held::Held;
use dittograd::device::{AnyBuffer, DType, Meta};
use dittograd::error::Result;
use dittograd::session::{Var, VarId};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::Arc;

/// A value on a device. A session makes it, by `session.tensor(data)` or a function; all that is computed from it is of the same
/// session.
///
/// Its elements are float32 numbers, or unsigned 32-bit indices. Truth values are the numbers 0 and 1, of which the tensor knows that
/// they are truth values. Tensors do not change: there are no methods in place, and no views.
#[pyclass(frozen, module = "dittograd")]
pub struct Tensor {
    session: Arc<Held>,
    id: VarId,
    truth: bool,
}

/// NumPy's name of a type of elements.
pub fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::U32 => "uint32",
    }
}

/// What a function of tensors returns.
pub type Answer = PyResult<Tensor>;

/// The session of all inputs.
fn common(inputs: &[&Tensor]) -> PyResult<Arc<Held>> {
    let [first, rest @ ..] = inputs else {
        return Err(PyValueError::new_err("the list of tensors is empty; give at least one"));
    };
    if rest.iter().any(|t| !Arc::ptr_eq(&t.session, &first.session)) {
        return Err(PyValueError::new_err(
            "the tensors belong to different sessions; make all of them in one",
        ));
    }
    Ok(first.session.clone())
}

/// What `f` finds out about the values of `inputs`.
pub fn asked_all<T: Send>(
    inputs: &[&Tensor],
    f: impl for<'s> FnOnce(&[Var<'s>]) -> Result<T> + Send,
) -> PyResult<T> {
    common(inputs)?.with(|session| f(&inputs.iter().map(|t| session.from_id(t.id)).collect::<Vec<_>>()))
}

/// What `f` finds out about a tensor.
pub fn asked<T: Send>(input: &Tensor, f: impl for<'s> FnOnce(Var<'s>) -> Result<T> + Send) -> PyResult<T> {
    asked_all(&[input], |v| f(v[0]))
}

/// Runs `f` on the values of `inputs`.
pub fn many(
    inputs: &[&Tensor],
    f: impl for<'s> FnOnce(&[Var<'s>]) -> Result<Vec<Var<'s>>> + Send,
) -> PyResult<Vec<Tensor>> {
    let ids = asked_all(inputs, |v| Ok(f(v)?.into_iter().map(Var::to_id).collect::<Vec<_>>()))?;
    Ok(ids.into_iter().map(|id| Tensor::new(inputs[0].session.clone(), id)).collect())
}

/// Like [`many`], for a function of one result.
pub fn one(inputs: &[&Tensor], f: impl for<'s> FnOnce(&[Var<'s>]) -> Result<Var<'s>> + Send) -> Answer {
    let id = asked_all(inputs, |v| Ok(f(v)?.to_id()))?;
    Ok(Tensor::new(inputs[0].session.clone(), id))
}

/// Like [`one`], for a function whose results are truth values: a comparison, a logical function.
pub fn truth(inputs: &[&Tensor], f: impl for<'s> FnOnce(&[Var<'s>]) -> Result<Var<'s>> + Send) -> Answer {
    one(inputs, f).map(Tensor::into_truth)
}

/// Like [`one`], for a function that only moves elements: of truth values it makes truth values.
pub fn moved(inputs: &[&Tensor], f: impl for<'s> FnOnce(&[Var<'s>]) -> Result<Var<'s>> + Send) -> Answer {
    let truth = inputs.iter().all(|t| t.truth);
    Ok(Tensor { truth, ..one(inputs, f)? })
}

/// Like [`moved`], for a function of several results.
pub fn moved_many(
    inputs: &[&Tensor],
    f: impl for<'s> FnOnce(&[Var<'s>]) -> Result<Vec<Var<'s>>> + Send,
) -> PyResult<Vec<Tensor>> {
    let truth = inputs.iter().all(|t| t.truth);
    Ok(many(inputs, f)?.into_iter().map(|t| Tensor { truth, ..t }).collect())
}

/// Like [`many`], for a function of two results.
pub fn two(
    inputs: &[&Tensor],
    f: impl for<'s> FnOnce(&[Var<'s>]) -> Result<(Var<'s>, Var<'s>)> + Send,
) -> PyResult<(Tensor, Tensor)> {
    let (a, b) = asked_all(inputs, |v| {
        let (a, b) = f(v)?;
        Ok((a.to_id(), b.to_id()))
    })?;
    let session = &inputs[0].session;
    Ok((Tensor::new(session.clone(), a), Tensor::new(session.clone(), b)))
}

/// What `f` finds out about the value of `input` and of each tensor of `others` that is given.
fn asked_optional<T: Send>(
    input: &Tensor,
    others: &[Option<&Tensor>],
    f: impl for<'s> FnOnce(Var<'s>, &[Option<Var<'s>>]) -> Result<T> + Send,
) -> PyResult<T> {
    let given: Vec<&Tensor> = std::iter::once(input).chain(others.iter().copied().flatten()).collect();
    asked_all(&given, |v| {
        let mut rest = v[1..].iter().copied();
        let others: Vec<Option<Var<'_>>> = others.iter().map(|o| o.and_then(|_| rest.next())).collect();
        f(v[0], &others)
    })
}

/// Runs `f` on the value of `input` and of each tensor of `others` that is given.
pub fn with_optional(
    input: &Tensor,
    others: &[Option<&Tensor>],
    f: impl for<'s> FnOnce(Var<'s>, &[Option<Var<'s>>]) -> Result<Var<'s>> + Send,
) -> Answer {
    let id = asked_optional(input, others, |x, others| Ok(f(x, others)?.to_id()))?;
    Ok(Tensor::new(input.session.clone(), id))
}

/// Like [`with_optional`], for a function of several results.
pub fn many_with_optional(
    input: &Tensor,
    others: &[Option<&Tensor>],
    f: impl for<'s> FnOnce(Var<'s>, &[Option<Var<'s>>]) -> Result<Vec<Var<'s>>> + Send,
) -> PyResult<Vec<Tensor>> {
    let ids = asked_optional(input, others, |x, others| {
        Ok(f(x, others)?.into_iter().map(Var::to_id).collect::<Vec<_>>())
    })?;
    Ok(ids.into_iter().map(|id| Tensor::new(input.session.clone(), id)).collect())
}

impl Tensor {
    pub fn new(session: Arc<Held>, id: VarId) -> Tensor {
        Tensor { session, id, truth: false }
    }

    /// The same elements, which are truth values.
    pub fn into_truth(self) -> Tensor {
        Tensor { truth: true, ..self }
    }

    /// Whether its elements are truth values.
    pub fn is_truth(&self) -> bool {
        self.truth
    }

    pub fn id(&self) -> VarId {
        self.id
    }

    pub fn held(&self) -> &Arc<Held> {
        &self.session
    }

    /// The sizes of its axes.
    pub fn dims(&self) -> PyResult<Vec<usize>> {
        asked(self, |x| Ok(x.shape()?.dims().to_vec()))
    }

    /// Its shape and the type of its elements.
    pub fn meta(&self) -> PyResult<Meta> {
        asked(self, |x| x.meta())
    }

    /// The number of its axes.
    pub fn rank(&self) -> PyResult<usize> {
        asked(self, |x| Ok(x.shape()?.rank()))
    }

    /// The type of its elements in memory.
    fn stored(&self) -> PyResult<&'static str> {
        Ok(dtype_name(self.meta()?.dtype))
    }

    /// Its elements in host memory, as NumPy has them.
    fn on_host(&self, value: &AnyBuffer) -> Result<Shared> {
        if self.truth { Shared::truths(value) } else { Shared::host(value) }
    }

    /// Where other libraries find it.
    fn place(&self) -> PyResult<DlDevice> {
        if self.truth { Ok(HOST) } else { self.session.with(|session| Ok(dlpack::place(session.device()))) }
    }

    /// Its value on the device.
    pub fn buffer(&self) -> PyResult<AnyBuffer> {
        asked(self, |x| x.buffer())
    }

    /// Whether it holds indices.
    pub fn is_index(&self) -> PyResult<bool> {
        asked(self, |x| Ok(x.meta()?.dtype == DType::U32))
    }
}

#[pymethods]
impl Tensor {
    /// The sizes of its axes, as a tuple.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.dims()?)
    }

    /// The number of its axes.
    #[getter]
    fn ndim(&self) -> PyResult<usize> {
        self.rank()
    }

    /// `"float32"`, `"uint32"`, or `"bool"`: truth values, which count as the numbers 0 and 1.
    #[getter]
    fn dtype(&self) -> PyResult<&'static str> {
        Ok(if self.truth { "bool" } else { self.stored()? })
    }

    /// The number of its elements.
    fn numel(&self) -> PyResult<usize> {
        asked(self, |x| Ok(x.shape()?.numel()))
    }

    /// Whether gradients flow to it: it was made with `requires_grad`, or computed from what was.
    #[getter]
    fn requires_grad(&self) -> PyResult<bool> {
        asked(self, |x| x.requires_grad())
    }

    /// Its only element, as a Python number: a float, an int if it is an index, a bool if it is a truth value. Waits for the device.
    fn item<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if self.is_index()? {
            let values = asked(self, |x| x.indices())?;
            return match values.data() {
                [one] => Ok(one.into_pyobject(py)?.into_any()),
                _ => Err(PyValueError::new_err("item: the tensor must have one element")),
            };
        }
        let number = asked(self, |x| x.item())?;
        if self.truth {
            return Ok((number != 0.0).into_pyobject(py)?.to_owned().into_any());
        }
        Ok(number.into_pyobject(py)?.into_any())
    }

    /// Its elements as a new NumPy array of float32, uint32 or bool. Waits for the device. `np.from_dlpack` copies nothing on a CPU.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        to_numpy(py, asked(self, |x| self.on_host(&x.buffer()?))?)
    }

    /// Its memory for other libraries, as `torch.from_dlpack` and `np.from_dlpack` read it. Nothing is copied, but for truth values,
    /// parameters and constants. The memory stays when the tensor and its session are gone. Nobody may write to it: PyTorch does not
    /// know that.
    ///
    /// stream: on a GPU, the stream that will read it, which waits for the value; by default the default stream
    /// dl_device: the CPU, for a copy there
    /// copy: true for a copy that may be written; false if a copy is an error
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<DlDevice>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let here = self.place()?;
        let to = dl_device.unwrap_or(here);
        if to != here && to != HOST {
            return Err(PyBufferError::new_err(format!(
                "the tensor is on DLPack device {here:?}, not on {to:?}; it can be had there or on the CPU, (1, 0)"
            )));
        }
        let shared = asked(self, |x| {
            let value = x.buffer()?;
            if self.truth || to != here {
                return Ok((self.on_host(&value)?, true));
            }
            if copy == Some(true) {
                return Ok((Shared::copy(&value)?, true));
            }
            let own = x.unshared()?;
            let is_copy = !own.buffer().shares(value.buffer());
            Ok((Shared::value(own), is_copy))
        });
        let (shared, is_copy) = shared?;
        if is_copy && copy == Some(false) {
            return Err(PyBufferError::new_err(
                "copy=False: truth values, parameters, constants and values for another device are copied",
            ));
        }
        shared.ready_for(stream)?.capsule(py, max_version)
    }

    /// Where `__dlpack__` has it: (1, 0) is the CPU, (2, 0) the first GPU. Truth values are on the CPU.
    fn __dlpack_device__(&self) -> PyResult<DlDevice> {
        self.place()
    }

    /// The same value, through which no gradient flows.
    fn detach(&self) -> Answer {
        moved(&[self], |v| v[0].detach())
    }

    /// The same value in a form that gradients by it can be asked for, as with `requires_grad=True`; itself if gradients flow to it
    /// already.
    pub fn tracked(&self) -> Answer {
        one(&[self], |v| v[0].tracked())
    }

    /// Gradients of this tensor, which must have one element, by each of `inputs`: a list, with `None` for those that it does not
    /// depend on.
    ///
    /// Nothing is accumulated, unlike by PyTorch's `backward`. Gradients can be differentiated again. `session.grad` takes outputs of
    /// any shape.
    fn grad(&self, inputs: Vec<Py<Tensor>>) -> PyResult<Vec<Option<Tensor>>> {
        let ids: Vec<VarId> = inputs.iter().map(|t| t.get().id).collect();
        let dims = self.dims()?;
        if dims.iter().any(|d| *d != 1) {
            return Err(PyValueError::new_err(format!(
                "grad: the tensor has shape {dims:?}; it needs one element, such as a sum. For several, use \
                 session.grad(outputs, inputs, seeds)"
            )));
        }
        let found = self.session.with(|session| {
            let y = session.from_id(self.id);
            let wanted: Vec<Var<'_>> = ids.iter().map(|&id| session.from_id(id)).collect();
            let seed = y.ones_like()?;
            let grads = session.vjp(&[(y, seed)], &wanted)?;
            Ok(grads.into_iter().map(|g| g.map(Var::to_id)).collect::<Vec<_>>())
        })?;
        Ok(found.into_iter().map(|id| id.map(|id| Tensor::new(self.session.clone(), id))).collect())
    }

    fn __repr__(&self) -> PyResult<String> {
        let text = asked(self, |x| Ok(x.to_string()))?;
        Ok(format!("tensor({})", text.replace('\n', "\n       ")))
    }

    fn __len__(&self) -> PyResult<usize> {
        self.dims()?.first().copied().ok_or_else(|| PyTypeError::new_err("a scalar has no length"))
    }
}
