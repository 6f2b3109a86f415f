//! Programs that Python functions record.

use crate::errors::answered;
use crate::held::Held;
use crate::session::Session;
use crate::tensor::Tensor;
use dittograd::device::{Device, Meta};
use dittograd::error::Error;
use dittograd::graph::{Graph, Source};
use dittograd::ops::Val;
use dittograd::params::Param;
use dittograd::session::{Session as Native, Var, VarId};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::Arc;

/// The type, shape and meaning of an input of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    pub meta: Meta,
    /// Its numbers are truth values.
    pub truth: bool,
}

/// A program that a function recorded.
pub struct Recorded {
    /// Its outputs are what the function returned, and after them the values it assigned.
    pub graph: Graph,
    pub returned: usize,
    pub assigned: Vec<Param>,
}

/// What `f(session, *inputs)` records. It returns a tensor, or a list or tuple of tensors.
pub fn record(
    py: Python<'_>,
    device: &Device,
    seed: u64,
    inputs: &[Input],
    f: &Bound<'_, PyAny>,
) -> PyResult<Recorded> {
    let mut graph = Graph::new();
    let leaves: Vec<Val> =
        inputs.iter().map(|i| Val(graph.leaf(Source::Input(i.meta), false) as u32)).collect();
    let session = Native::resume(device, graph, seed);
    let ids: Vec<VarId> = leaves.into_iter().map(|v| session.at(v).to_id()).collect();
    let held = Arc::new(Held::new(session));
    let tensor = |(id, input): (VarId, &Input)| {
        let tensor = Tensor::new(held.clone(), id);
        Py::new(py, if input.truth { tensor.into_truth() } else { tensor })
    };
    let tensors: Vec<Py<Tensor>> = ids.into_iter().zip(inputs).map(tensor).collect::<PyResult<_>>()?;
    let first = Py::new(py, Session::of(held.clone()))?.into_any();
    let arguments: Vec<Py<PyAny>> =
        std::iter::once(first).chain(tensors.into_iter().map(Py::into_any)).collect();
    let answer = f.call1(PyTuple::new(py, arguments)?)?;
    let returned = results(&answer)?;
    for t in &returned {
        if !Arc::ptr_eq(t.get().held(), &held) {
            return Err(PyValueError::new_err(
                "the function returned a tensor of another session; return what it computed from its arguments",
            ));
        }
    }
    let Some((session, assigned)) = held.take() else {
        return Err(PyValueError::new_err("the program that the function recorded is gone"));
    };
    let finish = || {
        let (params, values): (Vec<Param>, Vec<VarId>) = assigned.into_iter().unzip();
        let all = returned.iter().map(|t| t.get().id()).chain(values);
        let outputs =
            all.map(|id| session.val("record", session.from_id(id))).collect::<Result<Vec<_>, _>>()?;
        let mut graph = session.into_graph()?;
        graph.set_outputs(&outputs)?;
        Ok(Recorded { graph, returned: returned.len(), assigned: params })
    };
    answered(finish())
}

/// The tensors that a function returned.
fn results(answer: &Bound<'_, PyAny>) -> PyResult<Vec<Py<Tensor>>> {
    if let Ok(one) = answer.extract::<Py<Tensor>>() {
        return Ok(vec![one]);
    }
    answer.extract().map_err(|_| {
        let kind = answer.get_type().name().map_or("?".to_string(), |n| n.to_string());
        PyTypeError::new_err(format!(
            "the function returned {kind}; return a tensor, or a list or tuple of tensors"
        ))
    })
}

impl Recorded {
    /// A program that returns all its outputs.
    pub fn of(graph: Graph) -> Recorded {
        Recorded { returned: graph.outputs().len(), graph, assigned: Vec::new() }
    }

    /// Records it among other values of a session: what the function returned. What it assigned is assigned there.
    pub fn replay<'s>(&self, session: &'s Native, inputs: &[Var<'s>]) -> Result<Vec<Var<'s>>, Error> {
        let mut values = session.replay(&self.graph, inputs)?;
        for (param, value) in self.assigned.iter().zip(values.split_off(self.returned)) {
            session.assign(param, value)?;
        }
        Ok(values)
    }
}
