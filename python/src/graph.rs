//! Programs as data, and compiled.

use crate::arrays::{Given, Negative, given};
use crate::device::Place;
use crate::dlpack::{Shared, to_numpy};
use crate::errors::answered;
use crate::held::{Held, locked};
use crate::params::Params;
use crate::record::{Input, Recorded, record};
use crate::tensor::{Tensor, dtype_name};
use dittograd::device::{AnyBuffer, Device, Meta};
use dittograd::error::Result;
use dittograd::graph::{Batch, Function as NativeFunction, Graph as Native};
use dittograd::nn::Program;
use dittograd::params::Param as NativeParam;
use dittograd::tensor::AnyTensor;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// A program as data: values in the order they are computed, and which of them it returns. `trace` or `parse` makes it.
///
///     graph = dg.Graph.trace(lambda session, x: (x * x).sum(), np.zeros((2, 3)))
///     print(graph.text())
///     function = graph.compile()
///     (total,) = function(np.ones((2, 3)))
#[pyclass(frozen, module = "dittograd")]
pub struct Graph {
    recorded: Arc<Recorded>,
    /// Where constants and parameters are.
    device: Device,
}

/// The inputs that arrays or tensors are examples of.
fn inputs_like(py: Python<'_>, examples: &Bound<'_, PyTuple>) -> PyResult<Vec<Input>> {
    let input = |example: Bound<'_, PyAny>| {
        if let Ok(tensor) = example.cast::<Tensor>() {
            let (meta, truth) = (tensor.get().meta()?, tensor.get().is_truth());
            return Ok(Input { meta, truth });
        }
        let Given { tensor, truth } = given(py, &example, Negative::Wrapped)?;
        Ok(Input { meta: tensor.meta(), truth })
    };
    examples.iter().map(input).collect()
}

/// What a program is run on.
pub enum Argument {
    /// An array.
    Host(Given),
    /// A tensor of a session.
    On { value: AnyBuffer, truth: bool, held: Arc<Held> },
}

impl Argument {
    /// Whether its elements are truth values.
    pub fn is_truth(&self) -> bool {
        match self {
            Argument::Host(given) => given.truth,
            Argument::On { truth, .. } => *truth,
        }
    }

    /// It as an input of a step.
    pub fn batch(&self) -> Batch<'_> {
        match self {
            Argument::Host(given) => Batch::from(&given.tensor),
            Argument::On { value, .. } => Batch::from(value),
        }
    }
}

/// What a program is run on: arrays and tensors.
pub fn arguments(py: Python<'_>, inputs: &Bound<'_, PyTuple>) -> PyResult<Vec<Argument>> {
    let argument = |x: Bound<'_, PyAny>| match x.cast::<Tensor>() {
        Ok(x) => {
            let x = x.get();
            Ok(Argument::On { value: x.buffer()?, truth: x.is_truth(), held: x.held().clone() })
        }
        Err(_) => Ok(Argument::Host(given(py, &x, Negative::Wrapped)?)),
    };
    inputs.iter().map(argument).collect()
}

impl Graph {
    fn native(&self) -> &Native {
        &self.recorded.graph
    }

    fn of(&self, graph: Native) -> Graph {
        Graph { recorded: Arc::new(Recorded::of(graph)), device: self.device.clone() }
    }
}

#[pymethods]
impl Graph {
    /// The program of a function: `function(session, *inputs)` is called once, with tensors of which only types and shapes are known,
    /// and all it computes is recorded. Nothing runs, so it cannot read values, as by `item`. It returns a tensor, or a list or tuple
    /// of tensors.
    ///
    /// examples: arrays or tensors of the inputs' types and shapes
    /// device: a `Device` or the name of one, where constants and the parameters are
    /// seed: where random numbers start
    #[staticmethod]
    #[pyo3(signature = (function, *examples, device=Place::Name("cpu".into()), seed=0))]
    #[pyo3(text_signature = "(function, *examples, device='cpu', seed=0)")]
    fn trace(
        py: Python<'_>,
        function: &Bound<'_, PyAny>,
        examples: &Bound<'_, PyTuple>,
        device: Place,
        seed: u64,
    ) -> PyResult<Graph> {
        let device = device.open()?;
        let recorded = Arc::new(record(py, &device, seed, &inputs_like(py, examples)?, function)?);
        Ok(Graph { recorded, device })
    }

    /// Reads a program from the text that `text` wrote. Its parameters have no values until `bind`.
    #[staticmethod]
    #[pyo3(signature = (text, *, device=Place::Name("cpu".into())), text_signature = "(text, *, device='cpu')")]
    fn parse(text: &str, device: Place) -> PyResult<Graph> {
        let graph = answered(Native::parse(text))?;
        Ok(Graph { recorded: Arc::new(Recorded::of(graph)), device: device.open()? })
    }

    /// The program as text, one value a line, which `parse` reads.
    fn text(&self) -> PyResult<String> {
        answered(self.native().text())
    }

    /// A hash of its text: equal programs have equal hashes.
    fn hash(&self) -> PyResult<String> {
        answered(self.native().hash())
    }

    /// Types and shapes of its inputs, such as `("float32", [2, 3])`.
    #[getter]
    fn inputs(&self) -> Vec<(String, Vec<usize>)> {
        let shown = |m: &Meta| (dtype_name(m.dtype).to_string(), m.shape.dims().to_vec());
        self.native().inputs().iter().map(shown).collect()
    }

    /// Names and shapes of the parameters that it reads, such as `("weight", [3, 2])`.
    #[getter]
    fn params(&self) -> Vec<(String, Vec<usize>)> {
        self.native().params().into_iter().map(|(name, shape)| (name, shape.dims().to_vec())).collect()
    }

    /// The same program with these parameters, by name, on their device.
    fn bind(&self, params: &Params) -> PyResult<Graph> {
        let mut graph = self.native().clone();
        let device = params.with(|params| {
            graph.bind(params)?;
            Ok(params.device().clone())
        })?;
        Ok(Graph { device, ..self.of(graph) })
    }

    /// The program of the gradients: its inputs are those of this one and then a gradient for each of its results, its results are the
    /// gradients of the inputs.
    fn vjp(&self) -> PyResult<Graph> {
        Ok(self.of(answered(self.native().vjp())?))
    }

    /// A drawing of it as the text of an SVG file.
    fn to_svg(&self) -> String {
        self.native().to_svg()
    }

    /// A drawing of it in Graphviz's language.
    fn to_dot(&self) -> String {
        self.native().to_dot()
    }

    /// Writes its text to a file, which the program `dittograd` reads too.
    fn save(&self, path: PathBuf) -> PyResult<()> {
        answered(dittograd::io::atomic::write(&path, self.text()?.as_bytes()))
    }

    /// Writes a model to a safetensors file: its parameters, this program for training and another for evaluation. `dittograd train FILE`
    /// trains it without Python. The programs have one input, a batch of rows, and one result with as many rows; this one may assign to
    /// parameters.
    ///
    /// params: all parameters that they read
    /// evaluation: the program for evaluation
    /// model: the name of the model
    #[pyo3(signature = (path, params, evaluation, *, model=""))]
    fn save_model(
        &self,
        py: Python<'_>,
        path: PathBuf,
        params: &Params,
        evaluation: &Graph,
        model: &str,
    ) -> PyResult<()> {
        let (train, eval) = (self.native().clone(), evaluation.native().clone());
        let assigned: Vec<String> = self.recorded.assigned.iter().map(|p| p.name().to_string()).collect();
        py.detach(|| {
            params.with(|params| Program::new(params, train, eval, &assigned)?.save(&path, model, params))
        })
    }

    /// The program ready to run many times: planned, fused, on a GPU one CUDA graph. `device` is by default where it was recorded.
    #[pyo3(signature = (device=None))]
    fn compile(&self, device: Option<Place>) -> PyResult<Function> {
        let device = device.map_or(Ok(self.device.clone()), |d| d.open())?;
        let native = Mutex::new(answered(self.native().compile(&device))?);
        let Recorded { returned, assigned, .. } = &*self.recorded;
        Ok(Function { native, returned: *returned, assigned: assigned.clone() })
    }

    fn __repr__(&self) -> String {
        self.native().to_string()
    }

    fn __eq__(&self, other: &Graph) -> bool {
        self.native() == other.native()
    }

    fn __len__(&self) -> usize {
        self.native().size()
    }
}

/// A compiled program; `Graph.compile` makes it. A call takes arrays and returns a list of arrays, with the bits of running the program
/// op by op. If it is given tensors of a session on its device, it returns tensors of that session: nothing goes through host memory.
/// Random draws continue from call to call.
#[pyclass(frozen, module = "dittograd")]
pub struct Function {
    native: Mutex<NativeFunction>,
    returned: usize,
    assigned: Vec<NativeParam>,
}

impl Function {
    /// What `f` makes of it while Python's other threads run.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut NativeFunction) -> Result<T> + Send,
    ) -> PyResult<T> {
        answered(py.detach(|| f(&mut locked(&self.native))))
    }

    /// A call on the device, whose results are tensors of a session.
    fn call_on(&self, py: Python<'_>, held: &Arc<Held>, inputs: Vec<Argument>) -> PyResult<Vec<Tensor>> {
        let returned = self.with(py, |function| {
            let on = |x| match x {
                Argument::On { value, .. } => Ok(value),
                Argument::Host(given) => AnyBuffer::upload_any(function.device(), &given.tensor),
            };
            let inputs = inputs.into_iter().map(on).collect::<Result<Vec<_>>>()?;
            let mut all = function.call_on(&inputs.iter().collect::<Vec<_>>())?;
            for (param, value) in self.assigned.iter().zip(all.split_off(self.returned)) {
                param.set_from(&value)?;
            }
            Ok(all)
        })?;
        let ids = held.with(|session| {
            returned.iter().map(|value| Ok(session.buffer(value)?.to_id())).collect::<Result<Vec<_>>>()
        })?;
        Ok(ids.into_iter().map(|id| Tensor::new(held.clone(), id)).collect())
    }
}

#[pymethods]
impl Function {
    /// Runs it on arrays and returns a list of arrays, or of tensors if there are any among the inputs. Parameters that the program
    /// assigns to are changed.
    #[pyo3(signature = (*inputs))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        inputs: &Bound<'py, PyTuple>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let inputs = arguments(py, inputs)?;
        let held = inputs.iter().find_map(|x| match x {
            Argument::On { held, .. } => Some(held.clone()),
            Argument::Host(_) => None,
        });
        if let Some(held) = held {
            let tensors =
                self.call_on(py, &held, inputs)?.into_iter().map(|t| Ok(Bound::new(py, t)?.into_any()));
            return tensors.collect();
        }
        let host = |x| match x {
            Argument::Host(given) => Some(given.tensor),
            Argument::On { .. } => None,
        };
        let inputs: Vec<AnyTensor> = inputs.into_iter().filter_map(host).collect();
        let returned = self.with(py, |function| {
            let mut all = function.call(&inputs)?;
            for (param, value) in self.assigned.iter().zip(all.split_off(self.returned)) {
                param.set(value.num()?)?;
            }
            Ok(all)
        })?;
        returned.into_iter().map(|t| to_numpy(py, Shared::tensor(t))).collect()
    }

    /// The compiled program, one value a line; `None` if nothing was compiled.
    #[getter]
    fn text(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with(py, |function| Ok(function.text().map(str::to_string)))
    }

    /// The bytes of memory that a run needs besides the parameters; `None` if they are not known.
    #[getter]
    fn memory(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        self.with(py, |function| Ok(function.plan().map(|p| p.arena_bytes)))
    }

    /// Continues random draws as if this many calls had been made, as after a resume.
    fn set_random_calls(&self, py: Python<'_>, calls: u64) -> PyResult<()> {
        self.with(py, |function| {
            function.set_random_calls(calls);
            Ok(())
        })
    }
}
