//! Compiled training steps of Python programs.

use crate::dlpack::{Shared, to_numpy};
use crate::errors::raised;
use crate::graph::{Argument, arguments};
use crate::held::locked;
use crate::optim::Optimizer;
use crate::params::Params;
use crate::record::{Input, Recorded, record};
use dittograd::error::{Error, Result};
use dittograd::graph::TrainStep as Native;
use dittograd::io::Checkpoint;
use dittograd::session::Var;
use dittograd::tensor::AnyTensor;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

type Loss = Box<dyn for<'s> Fn(&[Var<'s>]) -> Result<Var<'s>> + Send + Sync>;

/// Forward, backward and update of a model as one compiled program: the same bits on every device.
///
///     def loss(session, x, labels):
///         return dg.nn.functional.cross_entropy(x @ session.param(params["weight"]), labels)
///
///     step = dg.TrainStep(params, dg.optim.AdamW(lr=1e-3), loss)
///     for x, labels in batches:
///         step.run(x, labels)
///     print(step.loss())
///
/// `loss(session, *inputs)` is called once for each set of input shapes; all it computes is recorded and compiled. It returns the loss,
/// a tensor of one element, or a tuple of the loss and other tensors, which `metric` reads. Parameters are read by `session.param`.
///
/// params: the parameters that it trains, those that are `trainable`
/// optimizer: what updates them, of `dittograd.optim`; each step needs its own
/// loss: the function
/// seed: where random numbers, as for dropout, start
#[pyclass(frozen, module = "dittograd")]
pub struct TrainStep {
    native: Mutex<Native<Loss>>,
    params: Py<Params>,
    tracer: Arc<Tracer>,
}

/// The Python function of a step, and what it recorded last.
struct Tracer {
    loss: Py<PyAny>,
    seed: u64,
    last: Mutex<Option<Arc<Recorded>>>,
    /// Which inputs of this run are truth values.
    truths: Mutex<Vec<bool>>,
    /// What the function raised: an error of the library cannot hold it.
    raised: Mutex<Option<PyErr>>,
}

impl Tracer {
    /// Records the function for these inputs.
    fn record(&self, inputs: &[Var<'_>]) -> Result<Arc<Recorded>> {
        let Some(first) = inputs.first() else {
            return Err(Error::argument("step", "inputs", "are none; give the step at least one"));
        };
        let truths = locked(&self.truths).clone();
        let input = |(x, truth): (&Var<'_>, bool)| Ok(Input { meta: x.meta()?, truth });
        let metas: Vec<Input> = inputs.iter().zip(truths).map(input).collect::<Result<_>>()?;
        let device = first.session().device();
        let recorded = Python::attach(|py| record(py, device, self.seed, &metas, self.loss.bind(py)));
        match recorded {
            Ok(recorded) => {
                let recorded = Arc::new(recorded);
                *locked(&self.last) = Some(recorded.clone());
                Ok(recorded)
            }
            Err(error) => {
                *locked(&self.raised) = Some(error);
                Err(Error::argument("step", "loss", "raised an exception"))
            }
        }
    }

    /// What the function returned besides the loss, recorded again: equal values of a program are computed once.
    fn metrics<'s>(&self, inputs: &[Var<'s>]) -> Result<Vec<Var<'s>>> {
        match (locked(&self.last).clone(), inputs.first()) {
            (Some(recorded), Some(first)) if recorded.returned > 1 => {
                Ok(recorded.replay(first.session(), inputs)?.split_off(1))
            }
            _ => Ok(Vec::new()),
        }
    }
}

impl TrainStep {
    /// What `f` makes of it while Python's other threads run.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut Native<Loss>) -> Result<T> + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| f(&mut locked(&self.native)));
        done.map_err(|e| locked(&self.tracer.raised).take().unwrap_or_else(|| raised(e)))
    }
}

#[pymethods]
impl TrainStep {
    #[new]
    #[pyo3(signature = (params, optimizer, loss, *, seed=0))]
    fn new(params: Py<Params>, optimizer: &Optimizer, loss: Py<PyAny>, seed: u64) -> PyResult<TrainStep> {
        let tracer = Arc::new(Tracer {
            loss,
            seed,
            last: Mutex::default(),
            truths: Mutex::default(),
            raised: Mutex::default(),
        });
        let (of_loss, of_metrics) = (tracer.clone(), tracer.clone());
        let loss: Loss = Box::new(move |inputs| {
            let recorded = of_loss.record(inputs)?;
            Ok(recorded.replay(inputs[0].session(), inputs)?[0])
        });
        let optimizer = optimizer.take()?;
        let step = params.get().with(|params| Ok(Native::new(params, optimizer, loss)))?;
        let native = Mutex::new(step.seeded(seed).metrics(move |inputs| of_metrics.metrics(inputs)));
        Ok(TrainStep { native, params, tracer })
    }

    /// One step on arrays, the inputs of the loss, or on tensors of a session on the same device, which are copied there. On an error
    /// nothing is updated. On a GPU it does not wait. Shapes may differ from step to step.
    ///
    /// Negative integers are labels that a loss leaves out, by its `ignore_index`.
    #[pyo3(signature = (*inputs))]
    fn run(&self, py: Python<'_>, inputs: &Bound<'_, PyTuple>) -> PyResult<()> {
        let inputs = arguments(py, inputs)?;
        self.with(py, |step| {
            *locked(&self.tracer.truths) = inputs.iter().map(Argument::is_truth).collect();
            step.run(&inputs.iter().map(Argument::batch).collect::<Vec<_>>())
        })
    }

    /// One more step on the inputs of the last one, which are still on the device.
    fn again(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Native::again)
    }

    /// The loss of the last step. Waits for the device.
    fn loss(&self, py: Python<'_>) -> PyResult<f32> {
        self.with(py, |step| step.loss())
    }

    /// The value of the last step that the function returned at place `index` after the loss, as a NumPy array. Waits for the device.
    #[pyo3(signature = (index=0))]
    fn metric<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyAny>> {
        let value = self.with(py, |step| match step.metric(index) {
            Ok(numbers) => Ok(AnyTensor::Num(numbers)),
            Err(error) => step.metric_indices(index).map(AnyTensor::Idx).map_err(|_| error),
        })?;
        to_numpy(py, Shared::tensor(value))
    }

    /// A hash of all parameter bits: 16 hex digits that two machines can compare.
    fn fingerprint(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.params.get().with(|params| params.fingerprint()))
    }

    /// Sets the learning rate of later steps, of parameters in no group.
    fn set_lr(&self, py: Python<'_>, lr: f64) -> PyResult<()> {
        self.with(py, |step| {
            step.set_lr(lr);
            Ok(())
        })
    }

    /// Sets the learning rate of a group for later steps. Groups count from 0, in the order the optimizer was given them.
    fn set_group_lr(&self, py: Python<'_>, group: usize, lr: f64) -> PyResult<()> {
        self.with(py, |step| step.set_group_lr(group, lr))
    }

    /// The learning rate of the next step, of parameters in no group.
    #[getter]
    fn lr(&self, py: Python<'_>) -> PyResult<f64> {
        self.with(py, |step| Ok(step.optimizer().lr()))
    }

    /// The number of steps taken.
    #[getter]
    fn steps(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |step| Ok(step.optimizer().steps()))
    }

    /// The program of the last step, one value a line.
    #[getter]
    fn text(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |step| Ok(step.text()?.to_string()))
    }

    /// Writes a checkpoint: parameters, state of the optimizer and place in the random streams, from which training goes on bit for
    /// bit. `model` is a name that the file keeps.
    #[pyo3(signature = (path, *, model="", texts=BTreeMap::new()))]
    #[pyo3(text_signature = "(path, *, model='', texts={})")]
    fn save(
        &self,
        py: Python<'_>,
        path: PathBuf,
        model: &str,
        texts: BTreeMap<String, String>,
    ) -> PyResult<()> {
        self.with(py, |step| {
            let mut checkpoint = self.params.get().ask(|params| Checkpoint::new(model, params))?;
            checkpoint.take(step)?;
            checkpoint.step = step.optimizer().steps();
            checkpoint.texts = texts;
            checkpoint.save(&path)
        })
    }

    /// Continues from a checkpoint. If it is of other parameters, another optimizer, seed or mode, this is an error and nothing changes. Returns the texts that
    /// `save` was given.
    fn load(&self, py: Python<'_>, path: PathBuf) -> PyResult<BTreeMap<String, String>> {
        self.with(py, |step| {
            let checkpoint = Checkpoint::load(&path)?;
            self.params.get().ask(|params| checkpoint.restore(params, step))?;
            Ok(checkpoint.texts)
        })
    }
}
