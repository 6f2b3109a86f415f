//! A session that Python's objects share, and how they lock what they share.

use crate::errors::raised;
use dittograd::error::Result;
use dittograd::params::Param;
use dittograd::session::{Session as Native, VarId};
use pyo3::exceptions::PyRuntimeError;
use pyo3::{PyResult, Python};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a lock guards, also if a thread panicked while it held it.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A session that Python's objects share.
pub struct Held(Mutex<State>);

struct State {
    /// Taken when the program that it records is complete.
    session: Option<Native>,
    /// Parameters that a program assigns to, with the values.
    assigned: Vec<(Param, VarId)>,
}

impl Held {
    pub fn new(session: Native) -> Held {
        Held(Mutex::new(State { session: Some(session), assigned: Vec::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.0)
    }

    /// What `f` makes of the session, while Python's other threads run.
    pub fn with<T: Send>(&self, f: impl FnOnce(&Native) -> Result<T> + Send) -> PyResult<T> {
        let done = Python::attach(|py| py.detach(|| self.lock().session.as_ref().map(f)));
        match done {
            Some(done) => done.map_err(raised),
            None => Err(PyRuntimeError::new_err(
                "this tensor belongs to a program that was being recorded; it has no value after that. Return from the function what \
                 you want to see",
            )),
        }
    }

    /// Gives a parameter a value when the step ends.
    pub fn assign(&self, param: &Param, value: VarId) -> PyResult<()> {
        self.with(|session| session.assign(param, session.from_id(value)))?;
        let assigned = &mut self.lock().assigned;
        assigned.retain(|(p, _)| p.name() != param.name());
        assigned.push((param.clone(), value));
        Ok(())
    }

    /// Takes the session out when the program that it records is complete, and what the program assigns.
    pub fn take(&self) -> Option<(Native, Vec<(Param, VarId)>)> {
        let state = &mut *self.lock();
        Some((state.session.take()?, std::mem::take(&mut state.assigned)))
    }
}
