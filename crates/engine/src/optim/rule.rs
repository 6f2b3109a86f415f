//! The update rules. Each is one formula over [`Real`], with scalars formed in f64.

use crate::params::Param;
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::Real;

/// Scalars a formula reads: learning rate, weight decay, what the rule says, and last the limit of a gradient's element.
pub(crate) const HYPERS: usize = 10;
/// Most buffers of state a parameter has.
pub(crate) const STATES: usize = 3;

/// How a parameter follows its gradient `g`, with PyTorch's equations, names and defaults. `t` counts the steps of the
/// parameter from 1.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Rule {
    /// `p - lr g`.
    Sgd,
    /// `b' = mu b + (1 - dampening) g`, at the first step `b' = g`; `p - lr b'`, or with Nesterov's look ahead
    /// `p - lr (g + mu b')`.
    Momentum {
        /// The factor `mu` of the buffer.
        mu: f64,
        /// What is taken off the gradient's share after the first step.
        dampening: f64,
        /// Whether to look ahead.
        nesterov: bool,
    },
    /// `m' = beta1 m + (1 - beta1) g`, `v' = beta2 v + (1 - beta2) g^2`, `p - lr m^ / (sqrt(v^) + eps)` with
    /// `m^ = m' / (1 - beta1^t)` and `v^ = v' / (1 - beta2^t)`. AdamW is this with decoupled weight decay.
    Adam {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        eps: f64,
    },
    /// `s' = s + g^2`, `p - lr / (1 + (t - 1) lr_decay) g / (sqrt(s') + eps)`.
    AdaGrad {
        /// How fast the learning rate falls.
        lr_decay: f64,
        /// What the sum starts from.
        initial: f64,
        /// Added to the root of the sum.
        eps: f64,
    },
    /// `v' = alpha v + (1 - alpha) g^2`, `d = g / (sqrt(v') + eps)`, `p - lr d`. Centered: the square of
    /// `a' = alpha a + (1 - alpha) g` is taken off `v'` under the root, which stays at least 0. With momentum:
    /// `b' = momentum b + d`, `p - lr b'`.
    RmsProp {
        /// Decay of the mean square.
        alpha: f64,
        /// Added to the root.
        eps: f64,
        /// Factor of the momentum buffer; 0 for none.
        momentum: f64,
        /// Whether the mean is taken off.
        centered: bool,
    },
    /// `v' = rho v + (1 - rho) g^2`, `d = sqrt(u + eps) / sqrt(v' + eps) g`, `u' = rho u + (1 - rho) d^2`, `p - lr d`.
    Adadelta {
        /// Decay of both means.
        rho: f64,
        /// Added under both roots.
        eps: f64,
    },
    /// `p - lr sign(beta1 m + (1 - beta1) g)`, `m' = beta2 m + (1 - beta2) g`. Its weight decay is decoupled.
    Lion {
        /// Weight of the buffer in the direction.
        beta1: f64,
        /// Decay of the buffer.
        beta2: f64,
    },
    /// Matrices: `b' = momentum b + (1 - momentum) g`, `u = b'` or with Nesterov's look ahead
    /// `momentum b' + (1 - momentum) g`, `p - lr sqrt(max(1, rows / columns)) o` with `o` of `u` by five Newton-Schulz steps.
    /// Its weight decay is decoupled. Parameters of another rank follow Adam (0.9, 0.999, 1e-8) instead.
    Muon {
        /// Decay of the buffer.
        momentum: f64,
        /// Whether to look ahead.
        nesterov: bool,
        /// The least norm `u` is divided by.
        eps: f64,
    },
}

/// What Muon does with parameters that are no matrices.
const BESIDE_MUON: Rule = Rule::Adam { beta1: 0.9, beta2: 0.999, eps: 1e-8 };

/// A rule's formula without its numbers: what a kernel is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kind {
    family: Family,
    /// Momentum: Nesterov. RMSProp: centered.
    first: bool,
    /// RMSProp: momentum.
    second: bool,
    decoupled: bool,
}

macro_rules! families {
    ($($name:ident)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        enum Family {
            $($name,)*
        }

        /// All of them, in the order of their numbers.
        const FAMILIES: &[Family] = &[$(Family::$name,)*];
    };
}
families!(Sgd Momentum Adam AdaGrad RmsProp Adadelta Lion Muon);

/// What a formula reads of one element.
#[derive(Clone, Copy)]
pub(crate) struct Element<R> {
    pub p: R,
    pub g: R,
    pub states: [R; STATES],
    /// Muon: the orthogonalised direction.
    pub direction: R,
}

impl Rule {
    /// The rule of a parameter: Muon's matrices are its own, what else there is follows AdamW.
    pub(crate) fn of(self, p: &Param) -> Rule {
        match self {
            Rule::Muon { .. } if p.shape().rank() != 2 => BESIDE_MUON,
            rule => rule,
        }
    }

    pub(crate) fn kind(self, decoupled: bool) -> Kind {
        let (family, first, second) = match self {
            Rule::Sgd => (Family::Sgd, false, false),
            Rule::Momentum { nesterov, .. } => (Family::Momentum, nesterov, false),
            Rule::Adam { .. } => (Family::Adam, false, false),
            Rule::AdaGrad { .. } => (Family::AdaGrad, false, false),
            Rule::RmsProp { momentum, centered, .. } => (Family::RmsProp, centered, momentum > 0.0),
            Rule::Adadelta { .. } => (Family::Adadelta, false, false),
            Rule::Lion { .. } => (Family::Lion, false, false),
            Rule::Muon { .. } => (Family::Muon, false, false),
        };
        Kind { family, first, second, decoupled }
    }

    /// What its states start from.
    pub(crate) fn initial(self) -> f64 {
        match self {
            Rule::AdaGrad { initial, .. } => initial,
            _ => 0.0,
        }
    }

    /// The scalars of step `t` (from 1) of a parameter, in f64.
    pub(crate) fn hypers(self, lr: f64, wd: f64, decoupled: bool, t: u64, shape: &[usize]) -> [f64; HYPERS] {
        let wd = if decoupled { lr * wd } else { wd };
        let mut h = [0.0; HYPERS];
        let own = match self {
            Rule::Sgd => [lr, wd, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            Rule::Momentum { mu, dampening, .. } => {
                let share = if t == 1 { 1.0 } else { 1.0 - dampening };
                [lr, wd, mu, share, 0.0, 0.0, 0.0, 0.0, 0.0]
            }
            Rule::Adam { beta1, beta2, eps } => {
                let t = t as f64;
                let (c1, c2) = (1.0 / (1.0 - libm::pow(beta1, t)), 1.0 / (1.0 - libm::pow(beta2, t)));
                [lr, wd, beta1, 1.0 - beta1, beta2, 1.0 - beta2, c1, c2, eps]
            }
            Rule::AdaGrad { lr_decay, eps, .. } => {
                let lr = lr / (1.0 + (t - 1) as f64 * lr_decay);
                [lr, wd, eps, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
            }
            Rule::RmsProp { alpha, eps, momentum, .. } => {
                [lr, wd, alpha, 1.0 - alpha, eps, momentum, 0.0, 0.0, 0.0]
            }
            Rule::Adadelta { rho, eps } => [lr, wd, rho, 1.0 - rho, eps, 0.0, 0.0, 0.0, 0.0],
            Rule::Lion { beta1, beta2 } => [lr, wd, beta1, 1.0 - beta1, beta2, 1.0 - beta2, 0.0, 0.0, 0.0],
            Rule::Muon { momentum, .. } => {
                let ratio = match *shape {
                    [rows, columns] if columns > 0 => rows as f64 / columns as f64,
                    _ => 1.0,
                };
                [lr * ratio.max(1.0).sqrt(), wd, momentum, 1.0 - momentum, 0.0, 0.0, 0.0, 0.0, 0.0]
            }
        };
        h[..HYPERS - 1].copy_from_slice(&own);
        h
    }

    /// Whether weight decay is decoupled unless it is said otherwise.
    pub(crate) fn decouples(self) -> bool {
        matches!(self, Rule::Lion { .. } | Rule::Muon { .. })
    }

    pub(crate) fn check(self) -> Result<()> {
        match self {
            Rule::Sgd => Ok(()),
            Rule::Momentum { mu, dampening, nesterov } => {
                share("mu", mu)?;
                finite("dampening", dampening)?;
                if nesterov && (mu == 0.0 || dampening != 0.0) {
                    let why = format!("got {dampening}: Nesterov needs a mu above 0 and no dampening");
                    return Err(Error::argument("optimizer", "dampening", why));
                }
                Ok(())
            }
            Rule::Adam { beta1, beta2, eps } => {
                share("beta1", beta1)?;
                share("beta2", beta2)?;
                finite("eps", eps)
            }
            Rule::AdaGrad { lr_decay, initial, eps } => {
                finite("lr_decay", lr_decay)?;
                finite("initial", initial)?;
                finite("eps", eps)
            }
            Rule::RmsProp { alpha, eps, momentum, .. } => {
                share("alpha", alpha)?;
                share("momentum", momentum)?;
                finite("eps", eps)
            }
            Rule::Adadelta { rho, eps } => {
                share("rho", rho)?;
                finite("eps", eps)
            }
            Rule::Lion { beta1, beta2 } => {
                share("beta1", beta1)?;
                share("beta2", beta2)
            }
            Rule::Muon { momentum, eps, .. } => {
                share("momentum", momentum)?;
                finite("eps", eps)
            }
        }
    }
}

/// Errors unless `x` is a number from 0 on that float32 has too.
pub(crate) fn finite(name: &'static str, x: f64) -> Result<()> {
    if x >= 0.0 && (x as f32).is_finite() {
        return Ok(());
    }
    Err(Error::argument("optimizer", name, format!("got {x}, use a finite number that is not negative")))
}

/// Errors unless `x` is in `[0, 1)`.
fn share(name: &'static str, x: f64) -> Result<()> {
    if (0.0..1.0).contains(&x) {
        return Ok(());
    }
    Err(Error::argument("optimizer", name, format!("got {x}, use at least 0 and below 1")))
}

/// A gradient's element times the factor of norm clipping, then within `limit` of zero; a NaN stays.
#[inline(always)]
pub(crate) fn clipped<R: Real>(g: R, factor: R, limit: R) -> R {
    let g = g * factor;
    let g = R::where_gt(g, limit, limit, g);
    R::where_gt(-limit, g, -limit, g)
}

/// Muon's buffer after a gradient, also its look ahead.
#[inline(always)]
pub(crate) fn blend<R: Real>(old: R, new: R, keep: R, take: R) -> R {
    keep * old + take * new
}

impl Kind {
    /// One above the largest number of a kind.
    pub(crate) const CODES: usize = FAMILIES.len() * 8;

    /// All kinds there are, in the order of their numbers.
    pub(crate) fn all() -> impl Iterator<Item = Kind> {
        (0..Kind::CODES).map(Kind::of).filter(|k| k.exists())
    }

    /// Whether a rule can have it: the flags of most families are never set.
    pub(crate) const fn exists(self) -> bool {
        match self.family {
            Family::RmsProp => true,
            Family::Momentum => !self.second,
            _ => !self.first && !self.second,
        }
    }

    /// Its number; [`Kind::of`] is the way back.
    pub(crate) const fn code(self) -> usize {
        self.family as usize * 8
            + self.first as usize
            + self.second as usize * 2
            + self.decoupled as usize * 4
    }

    pub(crate) const fn of(code: usize) -> Kind {
        Kind {
            family: FAMILIES[code / 8 % FAMILIES.len()],
            first: code % 2 == 1,
            second: code / 2 % 2 == 1,
            decoupled: code / 4 % 2 == 1,
        }
    }

    /// Names of the buffers of state, as in PyTorch's state dicts.
    pub(crate) const fn states(self) -> &'static [&'static str] {
        match (self.family, self.first, self.second) {
            (Family::Sgd, ..) => &[],
            (Family::Momentum | Family::Muon, ..) => &["momentum_buffer"],
            (Family::Adam, ..) => &["exp_avg", "exp_avg_sq"],
            (Family::AdaGrad, ..) => &["sum"],
            (Family::RmsProp, false, false) => &["square_avg"],
            (Family::RmsProp, true, false) => &["square_avg", "grad_avg"],
            (Family::RmsProp, false, true) => &["square_avg", "momentum_buffer"],
            (Family::RmsProp, true, true) => &["square_avg", "momentum_buffer", "grad_avg"],
            (Family::Adadelta, ..) => &["square_avg", "acc_delta"],
            (Family::Lion, ..) => &["exp_avg"],
        }
    }

    /// Whether the formula reads a direction besides the gradient.
    pub(crate) const fn directed(self) -> bool {
        matches!(self.family, Family::Muon)
    }

    /// The formula: new parameter and new states from the old ones, the gradient, the factor of norm clipping and the
    /// scalars.
    #[inline(always)]
    pub(crate) fn formula<R: Real>(self, x: Element<R>, factor: R, h: [R; HYPERS]) -> (R, [R; STATES]) {
        let [a, b, c] = x.states;
        let [lr, wd, ..] = h;
        let g = clipped(x.g, factor, h[HYPERS - 1]);
        let (p, g) = if self.decoupled { ((-wd).fma(x.p, x.p), g) } else { (x.p, wd.fma(x.p, g)) };
        match self.family {
            Family::Sgd => ((-lr).fma(g, p), [a, b, c]),
            Family::Momentum => {
                let buf = h[2].fma(a, h[3] * g);
                let step = if self.first { h[2].fma(buf, g) } else { buf };
                ((-lr).fma(step, p), [buf, b, c])
            }
            Family::Adam => {
                let [_, _, b1, one_b1, b2, one_b2, c1, c2, eps, _] = h;
                let m = b1 * a + one_b1 * g;
                let v = b2 * b + one_b2 * (g * g);
                let step = (m * c1) / ((v * c2).sqrt() + eps);
                ((-lr).fma(step, p), [m, v, c])
            }
            Family::AdaGrad => {
                let sum = g.fma(g, a);
                ((-lr).fma(g / (sum.sqrt() + h[2]), p), [sum, b, c])
            }
            Family::RmsProp => {
                let [_, _, alpha, one_alpha, eps, momentum, ..] = h;
                let square = alpha * a + one_alpha * (g * g);
                let old_mean = if self.second { c } else { b };
                let mean = alpha * old_mean + one_alpha * g;
                let under = if self.first {
                    // Rounding must not bring it below zero.
                    let rest = (-mean).fma(mean, square);
                    R::where_gt(R::c(0.0), rest, R::c(0.0), rest)
                } else {
                    square
                };
                let d = g / (under.sqrt() + eps);
                let buf = momentum.fma(b, d);
                match (self.first, self.second) {
                    (false, false) => ((-lr).fma(d, p), [square, b, c]),
                    (true, false) => ((-lr).fma(d, p), [square, mean, c]),
                    (false, true) => ((-lr).fma(buf, p), [square, buf, c]),
                    (true, true) => ((-lr).fma(buf, p), [square, buf, mean]),
                }
            }
            Family::Adadelta => {
                let [_, _, rho, one_rho, eps, ..] = h;
                let square = rho * a + one_rho * (g * g);
                let d = (b + eps).sqrt() / (square + eps).sqrt() * g;
                let delta = rho * b + one_rho * (d * d);
                ((-lr).fma(d, p), [square, delta, c])
            }
            Family::Lion => {
                let [_, _, b1, one_b1, b2, one_b2, ..] = h;
                let u = b1 * a + one_b1 * g;
                let zero = R::c(0.0);
                let sign = R::where_gt(u, zero, R::c(1.0), R::where_gt(zero, u, R::c(-1.0), u));
                ((-lr).fma(sign, p), [b2 * a + one_b2 * g, b, c])
            }
            Family::Muon => {
                let buf = blend(a, g, h[2], h[3]);
                ((-lr).fma(x.direction, p), [buf, b, c])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_their_numbers() {
        assert_eq!(Kind::all().count(), 24);
        for kind in Kind::all() {
            assert_eq!(Kind::of(kind.code()), kind);
        }
    }
}
