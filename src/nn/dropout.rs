//! Dropout.

use crate::error::{Error, Result};
use crate::session::Var;

/// Sets elements to zero at random in training. The draws are those of the session's random stream, so that eager and
/// compiled steps drop the same elements.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    p: f64,
}

impl Dropout {
    /// Each element is dropped with probability `p`, at least 0 and below 1.
    pub fn new(p: f64) -> Result<Dropout> {
        match (0.0..1.0).contains(&p) {
            true => Ok(Dropout { p }),
            false => Err(Error::argument("dropout", "p", format!("got {p}, use at least 0 and below 1"))),
        }
    }

    /// The layer as it is after training: it does nothing.
    pub fn eval(&self) -> Dropout {
        Dropout { p: 0.0 }
    }

    /// `x` with elements dropped and the others scaled by `1 / (1 - p)`. With a probability of 0 nothing is drawn.
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        if self.p == 0.0 { Ok(x) } else { x.dropout(self.p) }
    }
}
