//! Gradient descent.

use super::{Element, Formula, OWN, STATES, UpdateRule, padded};
use crate::optim::Optimizer;
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::Real;

/// `p - lr g`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sgd;

impl Optimizer {
    /// Gradient descent.
    pub fn sgd(lr: f64) -> Optimizer {
        Optimizer::new(Sgd, lr)
    }
}

impl UpdateRule for Sgd {
    fn check(&self, _decoupled: bool) -> Result<()> {
        Ok(())
    }

    fn scalars(&self, _t: u64) -> [f64; OWN] {
        padded([])
    }
}

impl Formula for Sgd {
    const STATES: &'static [&'static [&'static str]] = &[&[]];

    #[inline(always)]
    fn update<R: Real>(_variant: usize, x: Element<R>, lr: R, _own: [R; OWN]) -> (R, [R; STATES]) {
        ((-lr).fma(x.g, x.p), x.states)
    }
}
