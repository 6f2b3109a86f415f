//! Dropout.

use super::{Mode, Module};
use crate::error::{Error, Result};
use crate::session::Var;

/// Sets random elements to zero in training. It draws from the session's random stream, so eager and compiled steps
/// drop the same elements.
#[derive(Clone, Copy, Debug, Module)]
pub struct Dropout {
    p: f64,
    mode: Mode,
}

impl Dropout {
    /// Drops each element with probability `p`, at least 0 and below 1.
    #[track_caller]
    pub fn new(p: f64) -> Result<Dropout> {
        match (0.0..1.0).contains(&p) {
            true => Ok(Dropout { p, mode: Mode::Train }),
            false => Err(Error::argument("dropout", "p", format!("got {p}, use at least 0 and below 1"))),
        }
    }

    /// Drops elements of `x` and scales the others by `1 / (1 - p)`. With probability 0 and in evaluation mode nothing is
    /// drawn, and `x` is returned.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        if self.p == 0.0 || self.mode == Mode::Eval { Ok(x) } else { x.dropout(self.p) }
    }
}
