//! Assignments: parameters that get a value which the step computed, such as running statistics and moving averages.

use super::{Leaf, Record, Session, Var, lent};
use crate::params::Param;
use dittograd_device::{AnyBuffer, DType};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_ops::Val;

/// New values of parameters, which take effect when the step ends, in the order of first assignment.
#[derive(Default)]
pub(super) struct Assigned {
    list: Vec<Assignment>,
    /// Why the last step's assignments failed. The end of a step cannot return an error.
    failed: Option<Error>,
}

struct Assignment {
    param: Param,
    /// The node that is the parameter's value from now on, and the one before it.
    id: usize,
    before: usize,
    /// The value, in an eager session.
    value: Option<AnyBuffer>,
}

impl Assigned {
    /// Gives the parameters their new values.
    pub(super) fn perform(&mut self) {
        for a in std::mem::take(&mut self.list) {
            if let Some(Err(error)) = a.value.map(|value| a.param.set_from(&value)) {
                self.failed.get_or_insert(error);
            }
        }
    }

    /// The error of the last step's assignments, once.
    #[track_caller]
    pub(super) fn check(&mut self) -> Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

impl Drop for Assigned {
    fn drop(&mut self) {
        let device = self.list.first().map(|a| a.param.buffer().buffer().device().clone());
        self.perform();
        // The session is gone, so the device's next call returns the error.
        if let (Some(error), Some(device)) = (self.failed.take(), device)
            && let Some(cuda) = device.as_cuda()
        {
            cuda.keep(error);
        }
    }
}

impl Session {
    /// Assigns a new value, which this step computed, to a parameter that is not trained: running statistics, a moving
    /// average of weights. The parameter itself changes when the step ends: at [`Session::reset`], at the end of the
    /// session or, in a [`TrainStep`](crate::compiled::TrainStep), together with the update. So gradients are those of the
    /// value at the start of the step. Within the step [`Session::param`] gives the new value, so a second assignment
    /// continues from the first. No gradient flows through it.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// # fn main() -> Result<()> {
    /// let device = Device::cpu()?;
    /// let mut params = Params::new(&device, 7);
    /// let count = params.zeros("count", &[])?;
    /// count.set_trainable(false);
    /// let session = Session::eager(&device);
    /// for _ in 0..3 {
    ///     session.assign(&count, (session.param(&count)? + 1.0)?)?;
    ///     session.reset();
    /// }
    /// assert_eq!(count.get::<f32>()?.item()?, 3.0);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("register_buffer", "copy_"))]
    #[track_caller]
    pub fn assign<'s>(&'s self, param: &Param, value: Var<'s>) -> Result<()> {
        let what = || format!("parameter {}", param.name());
        if param.trainable() {
            let why =
                "the parameter is trained, so an optimizer changes it; freeze it with set_trainable(false)";
            return Err(Error::argument(what(), "param", why));
        }
        self.check("assign", value)?;
        let meta = value.meta()?;
        if meta.shape != param.shape() {
            let why = "the new value has another shape than the parameter";
            return Err(Error::new(
                what(),
                ErrorKind::Shapes { why, left: meta.shape, right: param.shape() },
            ));
        }
        meta.dtype.require(DType::F32, what(), 0)?;
        let before = self.param(param)?.id();
        // Copy it: the value may be another parameter, which is updated before this one.
        let copy = value.detach()?.copy()?;
        let mut state = self.state.borrow_mut();
        let (id, value) = match &mut state.record {
            // A leaf, so that it outlives a scope.
            Record::Eager(tape) => {
                let value = tape.live_value("assign", copy.id())?.clone();
                (tape.leaf(value.clone(), Some(param.name()), false)?, Some(value))
            }
            Record::Trace(_) => (copy.id(), None),
            Record::Lent => return Err(lent("assign")),
        };
        state.leaves.insert(param.id(), Leaf { param: param.clone(), id, version: param.version() });
        let list = &mut state.assigned.list;
        match list.iter_mut().find(|a| a.param.id() == param.id()) {
            Some(a) => (a.id, a.value) = (id, value),
            None => list.push(Assignment { param: param.clone(), id, before, value }),
        }
        Ok(())
    }

    /// Takes the assignments recorded so far out of a trace. Parameters have their initial values again.
    pub(crate) fn take_assigned(&self) -> Vec<(Param, Val)> {
        let mut state = self.state.borrow_mut();
        let list = std::mem::take(&mut state.assigned.list);
        for a in &list {
            let leaf = Leaf { param: a.param.clone(), id: a.before, version: a.param.version() };
            state.leaves.insert(a.param.id(), leaf);
        }
        list.into_iter().map(|a| (a.param, Val(a.id as u32))).collect()
    }
}
