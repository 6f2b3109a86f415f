//! Times of single ops, on request.

use super::{Backend, Device, Meta};
use dittograd_numerics::error::Result;
use dittograd_numerics::shape::Shape;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One timed op, from [`Device::profile`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OpTime {
    /// The op.
    pub name: &'static str,
    /// The shape of its value.
    pub shape: Shape,
    /// Bytes of its inputs and its value.
    pub bytes: usize,
    /// Bytes of device memory in use after it.
    pub live: usize,
    /// When it began, since the start of profiling.
    pub start: Duration,
    /// How long it took, the device's work included.
    pub time: Duration,
}

/// The timed ops of a device.
#[derive(Default)]
pub(super) struct Profile {
    is_on: AtomicBool,
    seen: Mutex<(Option<Instant>, Vec<OpTime>)>,
}

impl Device {
    /// Times every op from now on, eager or compiled, until [`Device::profiled`]. Each op waits for the device, so a
    /// whole run takes longer, and on CUDA programs are launched op by op. The bits are the same.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// # fn main() -> Result<()> {
    /// let device = Device::cpu()?;
    /// device.profile();
    /// let session = Session::eager(&device);
    /// session.full(&[64, 64], 2.0)?.exp()?;
    /// let names: Vec<&str> = device.profiled().iter().map(|op| op.name).collect();
    /// assert_eq!(names, ["full", "exp"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn profile(&self) {
        *self.0.profile.seen.lock().unwrap_or_else(PoisonError::into_inner) =
            (Some(Instant::now()), Vec::new());
        self.0.profile.is_on.store(true, Ordering::Relaxed);
    }

    /// Ends profiling. Returns the ops since [`Device::profile`], in the order they ran.
    pub fn profiled(&self) -> Vec<OpTime> {
        self.0.profile.is_on.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.0.profile.seen.lock().unwrap_or_else(PoisonError::into_inner)).1
    }

    /// Whether profiling is on.
    pub fn is_profiled(&self) -> bool {
        self.0.profile.is_on.load(Ordering::Relaxed)
    }

    /// Runs an op, and times it if profiling is on.
    #[doc(hidden)]
    pub fn timed<T>(
        &self,
        name: &'static str,
        metas: &[Meta],
        value: Shape,
        run: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if !self.is_profiled() {
            return run();
        }
        let wait = || match self.backend() {
            Backend::Cuda(_) => self.synchronize(),
            Backend::Cpu(_) | Backend::Host(_) => Ok(()),
        };
        wait()?;
        let began = Instant::now();
        let result = run()?;
        wait()?;
        let time = began.elapsed();
        let live = self.memory().live;
        let mut seen = self.0.profile.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let start = seen.0.map_or(Duration::ZERO, |zero| began.duration_since(zero));
        let bytes = 4 * (metas.iter().map(|m| m.shape.numel()).sum::<usize>() + value.numel());
        seen.1.push(OpTime { name, shape: value, bytes, live, start, time });
        Ok(result)
    }
}
