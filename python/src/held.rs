//! A session that Python's objects share.

use crate::errors::raised;
use dittograd::error::{Error, Result};
use dittograd::session::Session as Native;
use pyo3::PyResult;
use std::sync::{Mutex, PoisonError};

/// A session that Python's objects share.
pub struct Held(Mutex<Native>);

impl Held {
    pub fn new(session: Native) -> Held {
        Held(Mutex::new(session))
    }

    /// What `f` makes of the session.
    pub fn with<T>(&self, f: impl FnOnce(&Native) -> Result<T>) -> PyResult<T> {
        let session = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The line of this binding says nothing to a Python program; its traceback does.
        f(&session).map_err(|e: Error| raised(e.without_location()))
    }
}
