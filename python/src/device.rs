//! Where Python programs compute.

use crate::errors::raised;
use dittograd::device::{Device as Native, Simd};
use pyo3::prelude::*;
use std::collections::BTreeMap;

/// A place to compute in: a CPU or a GPU, in one of the modes of numerics. What takes a device takes its name too.
///
/// name: "cpu", "cuda" or "cuda:1"; the same bits on all of them
/// threads: of the CPU, by default all cores; the same bits with any number
/// numerics: "strict", "fast" or "turbo"; each has one answer of its own
#[pyclass(frozen, module = "dittograd")]
pub struct Device {
    native: Native,
}

impl Device {
    pub fn native(&self) -> &Native {
        &self.native
    }

    pub fn of(native: &Native) -> Device {
        Device { native: native.clone() }
    }
}

#[pymethods]
impl Device {
    #[new]
    #[pyo3(signature = (name="cpu", *, threads=None, numerics=None))]
    pub fn new(name: &str, threads: Option<usize>, numerics: Option<&str>) -> PyResult<Device> {
        let open = || {
            let device = match threads {
                Some(threads) if name == "cpu" => Native::cpu_with(threads, Simd::best())?,
                _ => Native::parse(name)?,
            };
            numerics.map_or(Ok(device.clone()), |mode| device.in_mode(mode.parse()?))
        };
        Ok(Device { native: open().map_err(raised)? })
    }

    /// Waits until all that was begun on it is done, as before a time is taken.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.native.synchronize()).map_err(raised)
    }

    /// Bytes of its memory: `live` in tensors and programs now, `peak` of that so far, and `cached` for reuse.
    fn memory(&self) -> BTreeMap<&'static str, usize> {
        let stats = self.native.memory();
        BTreeMap::from([("live", stats.live), ("peak", stats.peak), ("cached", stats.cached)])
    }

    /// Which GPU it is; `None` for a CPU.
    #[getter]
    fn _gpu(&self) -> Option<usize> {
        self.native.as_cuda().map(|cuda| cuda.ordinal())
    }

    /// The mode of its numerics: "strict", "fast" or "turbo".
    #[getter]
    fn numerics(&self) -> String {
        self.native.numerics().to_string()
    }

    fn __repr__(&self) -> String {
        format!("Device({}, {})", self.native, self.native.numerics())
    }
}

/// A device or the name of one.
#[derive(FromPyObject)]
pub enum Place {
    Device(Py<Device>),
    Name(String),
}

impl Place {
    pub fn open(&self) -> PyResult<Native> {
        match self {
            Place::Device(device) => Ok(device.get().native.clone()),
            Place::Name(name) => Ok(Device::new(name, None, None)?.native),
        }
    }
}
