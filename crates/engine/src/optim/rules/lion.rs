//! Lion.

use super::{Element, Formula, OWN, STATES, UpdateRule, padded, share};
use crate::optim::Optimizer;
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::Real;

/// `p - lr sign(beta1 m + (1 - beta1) g)`, `m' = beta2 m + (1 - beta2) g`. Its weight decay is decoupled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lion {
    /// Weight of the buffer in the direction.
    pub beta1: f64,
    /// Decay of the buffer.
    pub beta2: f64,
}

impl Default for Lion {
    /// The published constants (0.9, 0.99).
    fn default() -> Lion {
        Lion { beta1: 0.9, beta2: 0.99 }
    }
}

impl Optimizer {
    /// Lion with the published constants (0.9, 0.99, no weight decay).
    pub fn lion(lr: f64) -> Optimizer {
        Optimizer::new(Lion::default(), lr)
    }
}

impl UpdateRule for Lion {
    fn check(&self, _decoupled: bool) -> Result<()> {
        share("beta1", self.beta1)?;
        share("beta2", self.beta2)
    }

    fn scalars(&self, _t: u64) -> [f64; OWN] {
        padded([self.beta1, 1.0 - self.beta1, self.beta2, 1.0 - self.beta2])
    }

    fn decouples(&self) -> bool {
        true
    }
}

impl Formula for Lion {
    const STATES: &'static [&'static [&'static str]] = &[&["exp_avg"]];

    #[inline(always)]
    fn update<R: Real>(_variant: usize, x: Element<R>, lr: R, own: [R; OWN]) -> (R, [R; STATES]) {
        let [b1, one_b1, b2, one_b2, ..] = own;
        let ([a, b, c], g) = (x.states, x.g);
        let u = b1 * a + one_b1 * g;
        let zero = R::c(0.0);
        let sign = R::where_gt(u, zero, R::c(1.0), R::where_gt(zero, u, R::c(-1.0), u));
        ((-lr).fma(sign, x.p), [b2 * a + one_b2 * g, b, c])
    }
}
