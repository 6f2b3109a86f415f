//! AdaGrad.

use super::{Element, Formula, OWN, STATES, UpdateRule, finite, padded};
use crate::optim::Optimizer;
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::Real;
use dittograd_numerics::shape::Shape;

/// `s' = s + g^2`, `p - lr / (1 + (t - 1) lr_decay) g / (sqrt(s') + eps)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdaGrad {
    /// How fast the learning rate falls.
    pub lr_decay: f64,
    /// The value that the sum starts from.
    pub initial: f64,
    /// Added to the root of the sum.
    pub eps: f64,
}

impl Default for AdaGrad {
    /// PyTorch's constants: eps 1e-10, a learning rate that does not fall.
    fn default() -> AdaGrad {
        AdaGrad { lr_decay: 0.0, initial: 0.0, eps: 1e-10 }
    }
}

impl Optimizer {
    /// AdaGrad with PyTorch's constants (eps 1e-10, learning rate not decayed).
    pub fn adagrad(lr: f64) -> Optimizer {
        Optimizer::new(AdaGrad::default(), lr)
    }
}

impl UpdateRule for AdaGrad {
    fn check(&self, _decoupled: bool) -> Result<()> {
        finite("lr_decay", self.lr_decay)?;
        finite("initial", self.initial)?;
        finite("eps", self.eps)
    }

    fn scalars(&self, _t: u64) -> [f64; OWN] {
        padded([self.eps])
    }

    fn lr(&self, lr: f64, t: u64, _shape: Shape) -> f64 {
        lr / (1.0 + (t - 1) as f64 * self.lr_decay)
    }

    fn initial(&self) -> f64 {
        self.initial
    }
}

impl Formula for AdaGrad {
    const STATES: &'static [&'static [&'static str]] = &[&["sum"]];

    #[inline(always)]
    fn update<R: Real>(_variant: usize, x: Element<R>, lr: R, own: [R; OWN]) -> (R, [R; STATES]) {
        let ([a, b, c], g) = (x.states, x.g);
        let sum = g.fma(g, a);
        ((-lr).fma(g / (sum.sqrt() + own[0]), x.p), [sum, b, c])
    }
}
