//! Muon: steps along orthogonalised momentum, for matrices.

use super::{Adam, Element, Formula, OWN, Rule, STATES, UpdateRule, finite, padded, share};
use crate::optim::Optimizer;
use crate::optim::clip::{Clip, clipped};
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::Real;
use dittograd_numerics::shape::Shape;
use dittograd_ops::matmul::MatMul;
use dittograd_ops::pointwise::expression::{Expr, Pointwise};
use dittograd_ops::pointwise::record_pointwise;
use dittograd_ops::reduce::NormL2;
use dittograd_ops::{Recorder, Val, dims};

/// Matrices: `b' = momentum b + (1 - momentum) g`, `u = b'` or with Nesterov's look ahead
/// `momentum b' + (1 - momentum) g`, `p - lr sqrt(max(1, rows / columns)) o` with `o` of `u` by five Newton-Schulz steps.
/// Its weight decay is decoupled. Parameters of another rank follow Adam (0.9, 0.999, 1e-8) instead.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Muon {
    /// Decay of the buffer.
    pub momentum: f64,
    /// Whether to look ahead.
    pub nesterov: bool,
    /// The least norm `u` is divided by.
    pub eps: f64,
}

impl Default for Muon {
    /// PyTorch's constants: momentum 0.95, Nesterov, eps 1e-7.
    fn default() -> Muon {
        Muon { momentum: 0.95, nesterov: true, eps: 1e-7 }
    }
}

impl Optimizer {
    /// Muon with PyTorch's constants (momentum 0.95, Nesterov, weight decay 0.1) for matrices, AdamW with the same learning
    /// rate and weight decay for everything else. Matrices that should follow AdamW too, such as embeddings, go into a
    /// [`Group`](crate::optim::Group) with that rule.
    pub fn muon(lr: f64) -> Optimizer {
        Optimizer::new(Muon::default(), lr).weight_decay(0.1)
    }
}

impl UpdateRule for Muon {
    fn check(&self, decoupled: bool) -> Result<()> {
        if !decoupled {
            let why = "Muon's direction has no length to add weights to; leave it decoupled";
            return Err(Error::argument("optimizer", "coupled", why));
        }
        share("momentum", self.momentum)?;
        finite("eps", self.eps)
    }

    fn scalars(&self, _t: u64) -> [f64; OWN] {
        padded([self.momentum, 1.0 - self.momentum])
    }

    fn lr(&self, lr: f64, _t: u64, shape: Shape) -> f64 {
        let ratio = match *shape.dims() {
            [rows, columns] if columns > 0 => rows as f64 / columns as f64,
            _ => 1.0,
        };
        lr * ratio.max(1.0).sqrt()
    }

    fn decouples(&self) -> bool {
        true
    }

    fn instead(&self, shape: Shape) -> Option<Rule> {
        (shape.rank() != 2).then(|| Adam::default().into())
    }

    fn direction(&self, r: &mut dyn Recorder, gradient: Val, state: Val, clip: Clip) -> Result<Val> {
        let shape = r.meta(gradient).shape;
        let update = trace(3, |x| {
            let factor = if clip.factor.is_some() { x[2] } else { Expr::c(1.0) };
            let g = clipped(x[0], factor, Expr::c(clip.limit));
            let (keep, take) = (Expr::c(self.momentum), Expr::c(1.0 - self.momentum));
            let buf = blend(x[1], g, keep, take);
            if self.nesterov { blend(buf, g, keep, take) } else { buf }
        });
        let ins = [gradient, state, clip.factor.unwrap_or(gradient)];
        let u = record_pointwise(r, &update, shape, &ins)?;
        orthogonalised(r, u, self.eps)
    }
}

impl Formula for Muon {
    const STATES: &'static [&'static [&'static str]] = &[&["momentum_buffer"]];
    const DIRECTED: bool = true;

    #[inline(always)]
    fn update<R: Real>(_variant: usize, x: Element<R>, lr: R, own: [R; OWN]) -> (R, [R; STATES]) {
        let [a, b, c] = x.states;
        let buf = blend(a, x.g, own[0], own[1]);
        ((-lr).fma(x.direction, x.p), [buf, b, c])
    }
}

/// The buffer after a gradient, and the look ahead.
#[inline(always)]
fn blend<R: Real>(old: R, new: R, keep: R, take: R) -> R {
    keep * old + take * new
}

/// The published coefficients of the Newton-Schulz step, and how many steps are made.
const QUINTIC: [f64; 3] = [3.4445, -4.775, 2.0315];
const STEPS: usize = 5;

fn trace(inputs: usize, f: impl FnOnce(&[Expr]) -> Expr) -> Pointwise {
    Pointwise::trace(inputs, |x| vec![f(x)])
}

/// Five Newton-Schulz steps from `x` over its norm: with `s = x x^T` of the shorter side, `x' = a x + (b s + c s s) x`.
fn orthogonalised(r: &mut dyn Recorder, x: Val, eps: f64) -> Result<Val> {
    let shape = r.meta(x).shape;
    let (rows, columns) = (shape.dims()[0], shape.dims()[1]);
    let (tall, side) = (rows > columns, dims(&[rows.min(columns); 2]));
    let [a, b, c] = QUINTIC;
    let over_norm = trace(2, |x| x[0] / Expr::where_gt(Expr::c(eps), x[1], Expr::c(eps), x[1]));
    let mix = trace(2, |s| Expr::c(c).fma(s[1], Expr::c(b) * s[0]));
    let next = trace(2, |x| Expr::c(a).fma(x[0], x[1]));
    let n = r.record(NormL2::all(shape.rank()).into(), &[x])?;
    let mut x = record_pointwise(r, &over_norm, shape, &[x, n])?;
    let plain = MatMul { ta: false, tb: false };
    for _ in 0..STEPS {
        let s = r.record(MatMul { ta: tall, tb: !tall }.into(), &[x, x])?;
        let square = r.record(plain.into(), &[s, s])?;
        let mixed = record_pointwise(r, &mix, side, &[s, square])?;
        let ins = if tall { [x, mixed] } else { [mixed, x] };
        let moved = r.record(plain.into(), &ins)?;
        x = record_pointwise(r, &next, shape, &[x, moved])?;
    }
    Ok(x)
}
