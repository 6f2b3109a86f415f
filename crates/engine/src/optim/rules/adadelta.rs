//! Adadelta.

use super::{Element, Formula, OWN, STATES, UpdateRule, finite, padded, share};
use crate::optim::Optimizer;
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::Real;

/// `v' = rho v + (1 - rho) g^2`, `d = sqrt(u + eps) / sqrt(v' + eps) g`, `u' = rho u + (1 - rho) d^2`, `p - lr d`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adadelta {
    /// Decay of both means.
    pub rho: f64,
    /// Added under both roots.
    pub eps: f64,
}

impl Default for Adadelta {
    /// PyTorch's constants (0.9, 1e-6).
    fn default() -> Adadelta {
        Adadelta { rho: 0.9, eps: 1e-6 }
    }
}

impl Optimizer {
    /// Adadelta with PyTorch's constants (rho 0.9, eps 1e-6); the usual learning rate is 1.
    pub fn adadelta(lr: f64) -> Optimizer {
        Optimizer::new(Adadelta::default(), lr)
    }
}

impl UpdateRule for Adadelta {
    fn check(&self, _decoupled: bool) -> Result<()> {
        share("rho", self.rho)?;
        finite("eps", self.eps)
    }

    fn scalars(&self, _t: u64) -> [f64; OWN] {
        padded([self.rho, 1.0 - self.rho, self.eps])
    }
}

impl Formula for Adadelta {
    const STATES: &'static [&'static [&'static str]] = &[&["square_avg", "acc_delta"]];

    #[inline(always)]
    fn update<R: Real>(_variant: usize, x: Element<R>, lr: R, own: [R; OWN]) -> (R, [R; STATES]) {
        let [rho, one_rho, eps, ..] = own;
        let ([a, b, c], g) = (x.states, x.g);
        let square = rho * a + one_rho * (g * g);
        let d = (b + eps).sqrt() / (square + eps).sqrt() * g;
        let delta = rho * b + one_rho * (d * d);
        ((-lr).fma(d, x.p), [square, delta, c])
    }
}
