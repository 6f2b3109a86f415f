//! RMSProp, also centered and with momentum.

use super::{Element, Formula, OWN, STATES, UpdateRule, finite, padded, share};
use crate::optim::Optimizer;
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::Real;

/// `v' = alpha v + (1 - alpha) g^2`, `d = g / (sqrt(v') + eps)`, `p - lr d`. Centered: the square of
/// `a' = alpha a + (1 - alpha) g` is taken off `v'` under the root, which stays at least 0. With momentum:
/// `b' = momentum b + d`, `p - lr b'`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsProp {
    /// Decay of the mean square.
    pub alpha: f64,
    /// Added to the root.
    pub eps: f64,
    /// Factor of the momentum buffer; 0 for none.
    pub momentum: f64,
    /// Whether the mean is taken off.
    pub centered: bool,
}

impl Default for RmsProp {
    /// PyTorch's constants: alpha 0.99, eps 1e-8, no momentum, not centered.
    fn default() -> RmsProp {
        RmsProp { alpha: 0.99, eps: 1e-8, momentum: 0.0, centered: false }
    }
}

impl Optimizer {
    /// RMSProp with PyTorch's constants (alpha 0.99, eps 1e-8, no momentum, not centered).
    pub fn rmsprop(lr: f64) -> Optimizer {
        Optimizer::new(RmsProp::default(), lr)
    }
}

/// Bits of a variant.
const CENTERED: usize = 1;
const MOMENTUM: usize = 2;

impl UpdateRule for RmsProp {
    fn check(&self, _decoupled: bool) -> Result<()> {
        share("alpha", self.alpha)?;
        share("momentum", self.momentum)?;
        finite("eps", self.eps)
    }

    fn scalars(&self, _t: u64) -> [f64; OWN] {
        padded([self.alpha, 1.0 - self.alpha, self.eps, self.momentum])
    }

    fn variant(&self) -> usize {
        (if self.centered { CENTERED } else { 0 }) | (if self.momentum > 0.0 { MOMENTUM } else { 0 })
    }
}

impl Formula for RmsProp {
    const STATES: &'static [&'static [&'static str]] = &[
        &["square_avg"],
        &["square_avg", "grad_avg"],
        &["square_avg", "momentum_buffer"],
        &["square_avg", "momentum_buffer", "grad_avg"],
    ];

    #[inline(always)]
    fn update<R: Real>(variant: usize, x: Element<R>, lr: R, own: [R; OWN]) -> (R, [R; STATES]) {
        let [alpha, one_alpha, eps, momentum, ..] = own;
        let ([a, b, c], p, g) = (x.states, x.p, x.g);
        let (centered, with_momentum) = (variant & CENTERED != 0, variant & MOMENTUM != 0);
        let square = alpha * a + one_alpha * (g * g);
        let old_mean = if with_momentum { c } else { b };
        let mean = alpha * old_mean + one_alpha * g;
        let under = if centered {
            // Rounding must not bring it below zero.
            let rest = (-mean).fma(mean, square);
            R::where_gt(R::c(0.0), rest, R::c(0.0), rest)
        } else {
            square
        };
        let d = g / (under.sqrt() + eps);
        let buf = momentum.fma(b, d);
        match (centered, with_momentum) {
            (false, false) => ((-lr).fma(d, p), [square, b, c]),
            (true, false) => ((-lr).fma(d, p), [square, mean, c]),
            (false, true) => ((-lr).fma(buf, p), [square, buf, c]),
            (true, true) => ((-lr).fma(buf, p), [square, buf, mean]),
        }
    }
}
