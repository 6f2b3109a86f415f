//! Adam, and with decoupled weight decay AdamW.

use super::{Element, Formula, OWN, STATES, UpdateRule, finite, share};
use crate::optim::Optimizer;
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::Real;

/// `m' = beta1 m + (1 - beta1) g`, `v' = beta2 v + (1 - beta2) g^2`, `p - lr m^ / (sqrt(v^) + eps)` with
/// `m^ = m' / (1 - beta1^t)` and `v^ = v' / (1 - beta2^t)`. AdamW is this with decoupled weight decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
}

impl Default for Adam {
    /// The usual constants (0.9, 0.999, 1e-8).
    fn default() -> Adam {
        Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8 }
    }
}

impl Optimizer {
    /// Adam with the usual constants (0.9, 0.999, 1e-8).
    pub fn adam(lr: f64) -> Optimizer {
        Optimizer::new(Adam::default(), lr)
    }

    /// AdamW with the usual constants (0.9, 0.999, 1e-8, weight decay 0.01).
    pub fn adamw(lr: f64) -> Optimizer {
        Optimizer::adam(lr).decoupled(true).weight_decay(0.01)
    }
}

impl UpdateRule for Adam {
    fn check(&self, _decoupled: bool) -> Result<()> {
        share("beta1", self.beta1)?;
        share("beta2", self.beta2)?;
        finite("eps", self.eps)
    }

    fn scalars(&self, t: u64) -> [f64; OWN] {
        let Adam { beta1, beta2, eps } = *self;
        let t = t as f64;
        let (c1, c2) = (1.0 / (1.0 - libm::pow(beta1, t)), 1.0 / (1.0 - libm::pow(beta2, t)));
        [beta1, 1.0 - beta1, beta2, 1.0 - beta2, c1, c2, eps]
    }
}

impl Formula for Adam {
    const STATES: &'static [&'static [&'static str]] = &[&["exp_avg", "exp_avg_sq"]];

    #[inline(always)]
    fn update<R: Real>(_variant: usize, x: Element<R>, lr: R, own: [R; OWN]) -> (R, [R; STATES]) {
        let [b1, one_b1, b2, one_b2, c1, c2, eps] = own;
        let ([a, b, c], g) = (x.states, x.g);
        let m = b1 * a + one_b1 * g;
        let v = b2 * b + one_b2 * (g * g);
        let step = (m * c1) / ((v * c2).sqrt() + eps);
        ((-lr).fma(step, x.p), [m, v, c])
    }
}
