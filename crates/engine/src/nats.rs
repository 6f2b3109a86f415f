//! Integers that are read at run time: positions, tokens, seeds of a schedule.

use crate::params::count_change;
use dittograd_numerics::environment;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::tensor::Tensor;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A list of integers outside the values of a program. Clones share the list. An eager session reads it when it is
/// used, a compiled program at every run: overwriting it changes what the next run gathers.
#[derive(Clone, Debug)]
pub struct Nats(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    values: Mutex<Vec<u32>>,
    /// Counts changes.
    version: AtomicU64,
}

impl Nats {
    /// A list of these numbers. Its length is fixed.
    pub fn new(values: &[u32]) -> Nats {
        Nats(Arc::new(Inner { values: Mutex::new(values.to_vec()), version: AtomicU64::new(0) }))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u32>> {
        self.0.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number `i`.
    #[track_caller]
    pub fn get(&self, i: usize) -> Result<u32> {
        let values = self.lock();
        values.get(i).copied().ok_or_else(|| outside(i, values.len()))
    }

    /// Overwrites number `i`.
    #[track_caller]
    pub fn set(&self, i: usize, value: u32) -> Result<()> {
        let mut values = self.lock();
        let len = values.len();
        *values.get_mut(i).ok_or_else(|| outside(i, len))? = value;
        self.changed();
        Ok(())
    }

    /// All numbers.
    pub fn values(&self) -> Vec<u32> {
        self.lock().clone()
    }

    /// Overwrites all numbers. Errors if there are not as many; nothing is changed then.
    #[track_caller]
    pub fn set_values(&self, new: &[u32]) -> Result<()> {
        let mut values = self.lock();
        if new.len() != values.len() {
            return Err(Error::new("nats", ErrorKind::Length { want: values.len(), got: new.len() }));
        }
        values.copy_from_slice(new);
        self.changed();
        Ok(())
    }

    fn changed(&self) {
        self.0.version.fetch_add(1, Ordering::Relaxed);
        count_change();
    }

    pub(crate) fn version(&self) -> u64 {
        self.0.version.load(Ordering::Relaxed)
    }
}

#[track_caller]
fn outside(index: usize, bound: usize) -> Error {
    Error::new("nats", ErrorKind::Index { at: 0, index, bound })
}

impl<T: Scalar> TryFrom<&Tensor<T>> for Nats {
    type Error = Error;

    /// The elements as whole numbers; the error names the first that is none.
    #[track_caller]
    fn try_from(tensor: &Tensor<T>) -> Result<Nats> {
        Ok(Nats::new(&whole(tensor, f64::from(u32::MAX - 1))?))
    }
}

/// The elements as whole numbers, none above `most`; the error names the first that is none.
#[track_caller]
pub(crate) fn whole<T: Scalar>(tensor: &Tensor<T>, most: f64) -> Result<Vec<u32>> {
    let _strict = environment::enter();
    let id = |(at, x): (usize, &T)| {
        let x = x.to_f64();
        if x >= 0.0 && x <= most && x.fract() == 0.0 {
            return Ok(x as u32);
        }
        let why = format!("element {at} is {x}; a whole number from 0 to {most} is needed");
        Err(Error::argument("indices", "ids", why))
    };
    tensor.data().iter().enumerate().map(id).collect()
}
