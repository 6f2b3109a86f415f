//! Dropout.

use crate::error::{Error, Result};
use crate::session::Var;

/// Sets random elements to zero in training. It draws from the session's random stream, so eager and compiled steps
/// drop the same elements.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    p: f64,
}

impl Dropout {
    /// Drops each element with probability `p`, at least 0 and below 1.
    pub fn new(p: f64) -> Result<Dropout> {
        match (0.0..1.0).contains(&p) {
            true => Ok(Dropout { p }),
            false => Err(Error::argument("dropout", "p", format!("got {p}, use at least 0 and below 1"))),
        }
    }

    /// The layer in evaluation mode: it does nothing.
    pub fn eval(&self) -> Dropout {
        Dropout { p: 0.0 }
    }

    /// Drops elements of `x` and scales the others by `1 / (1 - p)`. With probability 0 nothing is drawn.
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        if self.p == 0.0 { Ok(x) } else { x.dropout(self.p) }
    }
}
