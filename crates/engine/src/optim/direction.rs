//! What an update needs besides gradients, as ops: the factor that norm clipping multiplies them with, and Muon's
//! directions. Recorded on a device they run at once, recorded in a program they are part of it.

use super::rule::{Rule, blend, clipped};
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::Real;
use dittograd_numerics::shape::Shape;
use dittograd_ops::global_norm::GlobalNorm;
use dittograd_ops::map::record_program;
use dittograd_ops::matmul::MatMul;
use dittograd_ops::program::{Expr, Program};
use dittograd_ops::reduce::NormL2;
use dittograd_ops::{Recorder, Val, dims};

/// Added to the norm of all gradients, as PyTorch does.
const NORM_EPS: f64 = 1e-6;
/// The published coefficients of the Newton-Schulz step, and how many steps are made.
const QUINTIC: [f64; 3] = [3.4445, -4.775, 2.0315];
const STEPS: usize = 5;

fn trace(inputs: usize, f: impl FnOnce(&[Expr]) -> Expr) -> Program {
    Program::trace(inputs, |x| vec![f(x)])
}

fn norm(r: &mut dyn Recorder, x: Val) -> Result<Val> {
    let rank = r.meta(x).shape.rank();
    r.record(NormL2::all(rank).into(), &[x])
}

/// `min(1, max_norm / (n + 1e-6))` with `n` the norm of all gradients.
pub(super) fn clip_factor(r: &mut dyn Recorder, grads: &[Val], max_norm: f64) -> Result<Val> {
    let n = r.record(GlobalNorm.into(), grads)?;
    let factor = trace(1, |x| {
        let c = Expr::c(max_norm) / (x[0] + Expr::c(NORM_EPS));
        Expr::where_gt(c, Expr::c(1.0), Expr::c(1.0), c)
    });
    record_program(r, &factor, Shape::SCALAR, &[n])
}

/// Muon's direction from a gradient, its momentum buffer, and what clipping does with the gradient.
pub(super) fn muon(
    r: &mut dyn Recorder,
    rule: Rule,
    g: Val,
    buffer: Val,
    factor: Option<Val>,
    limit: f64,
) -> Result<Val> {
    let Rule::Muon { momentum, nesterov, eps } = rule else { return Ok(g) };
    let shape = r.meta(g).shape;
    let update = trace(3, |x| {
        let factor = if factor.is_some() { x[2] } else { Expr::c(1.0) };
        let g = clipped(x[0], factor, Expr::c(limit));
        let (keep, take) = (Expr::c(momentum), Expr::c(1.0 - momentum));
        let buf = blend(x[1], g, keep, take);
        if nesterov { blend(buf, g, keep, take) } else { buf }
    });
    let u = record_program(r, &update, shape, &[g, buffer, factor.unwrap_or(g)])?;
    orthogonalised(r, u, eps)
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
    let n = norm(r, x)?;
    let mut x = record_program(r, &over_norm, shape, &[x, n])?;
    let plain = MatMul { ta: false, tb: false };
    for _ in 0..STEPS {
        let s = r.record(MatMul { ta: tall, tb: !tall }.into(), &[x, x])?;
        let square = r.record(plain.into(), &[s, s])?;
        let mixed = record_program(r, &mix, side, &[s, square])?;
        let ins = if tall { [x, mixed] } else { [mixed, x] };
        let moved = r.record(plain.into(), &ins)?;
        x = record_program(r, &next, shape, &[x, moved])?;
    }
    Ok(x)
}
