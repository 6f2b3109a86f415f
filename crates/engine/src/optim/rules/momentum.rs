//! Gradient descent with momentum.

use super::{Element, Formula, OWN, STATES, UpdateRule, finite, padded, share};
use crate::optim::Optimizer;
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::Real;

/// `b' = mu b + (1 - dampening) g`, at the first step `b' = g`; `p - lr b'`, or with Nesterov's look ahead
/// `p - lr (g + mu b')`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Momentum {
    /// The factor `mu` of the buffer.
    pub mu: f64,
    /// The part that is taken off the gradient's share after the first step.
    pub dampening: f64,
    /// Whether to look ahead.
    pub nesterov: bool,
}

impl Default for Momentum {
    /// The usual constants: mu 0.9, no dampening, no look ahead.
    fn default() -> Momentum {
        Momentum { mu: 0.9, dampening: 0.0, nesterov: false }
    }
}

impl Optimizer {
    /// Gradient descent with momentum.
    pub fn momentum(lr: f64, mu: f64) -> Optimizer {
        Optimizer::new(Momentum { mu, ..Momentum::default() }, lr)
    }

    /// Gradient descent with Nesterov's momentum.
    pub fn nesterov(lr: f64, mu: f64) -> Optimizer {
        Optimizer::new(Momentum { mu, nesterov: true, ..Momentum::default() }, lr)
    }
}

const NESTEROV: usize = 1;

impl UpdateRule for Momentum {
    fn check(&self, _decoupled: bool) -> Result<()> {
        let Momentum { mu, dampening, nesterov } = *self;
        share("mu", mu)?;
        finite("dampening", dampening)?;
        if nesterov && (mu == 0.0 || dampening != 0.0) {
            let why = format!("got {dampening}: Nesterov needs a mu above 0 and no dampening");
            return Err(Error::argument("optimizer", "dampening", why));
        }
        Ok(())
    }

    fn scalars(&self, t: u64) -> [f64; OWN] {
        padded([self.mu, if t == 1 { 1.0 } else { 1.0 - self.dampening }])
    }

    fn variant(&self) -> usize {
        if self.nesterov { NESTEROV } else { 0 }
    }
}

impl Formula for Momentum {
    const STATES: &'static [&'static [&'static str]] = &[&["momentum_buffer"], &["momentum_buffer"]];

    #[inline(always)]
    fn update<R: Real>(variant: usize, x: Element<R>, lr: R, own: [R; OWN]) -> (R, [R; STATES]) {
        let [mu, share, ..] = own;
        let [a, b, c] = x.states;
        let buf = mu.fma(a, share * x.g);
        let step = if variant == NESTEROV { mu.fma(buf, x.g) } else { buf };
        ((-lr).fma(step, x.p), [buf, b, c])
    }
}
