//! Gradient clipping: by the norm of all gradients together, and by value.

use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::Real;
use dittograd_numerics::shape::Shape;
use dittograd_ops::pointwise::expression::{Expr, Pointwise};
use dittograd_ops::pointwise::record_pointwise;
use dittograd_ops::reduce::global_norm::GlobalNorm;
use dittograd_ops::{Recorder, Val};

/// Added to the norm of all gradients, as PyTorch does.
const NORM_EPS: f64 = 1e-6;

/// What clipping does to a gradient.
#[derive(Clone, Copy)]
pub(super) struct Clip {
    /// The factor of norm clipping, a recorded scalar.
    pub factor: Option<Val>,
    /// The limit of an element, infinite for none.
    pub limit: f64,
}

/// Records `min(1, max_norm / (n + 1e-6))` with `n` the norm of all gradients, if it is not known already.
#[track_caller]
pub(super) fn norm_factor(
    r: &mut dyn Recorder,
    grads: &[Val],
    norm: Option<Val>,
    max_norm: f64,
) -> Result<Val> {
    let n = match norm {
        Some(n) => n,
        None => r.record(GlobalNorm.into(), grads)?,
    };
    let factor = Pointwise::trace(1, |x| {
        let c = Expr::c(max_norm) / (x[0] + Expr::c(NORM_EPS));
        vec![Expr::where_gt(c, Expr::c(1.0), Expr::c(1.0), c)]
    });
    record_pointwise(r, &factor, Shape::SCALAR, &[n])
}

/// A gradient's element times the factor of norm clipping, then within `limit` of zero; a NaN stays.
#[inline(always)]
pub(super) fn clipped<R: Real>(g: R, factor: R, limit: R) -> R {
    let g = g * factor;
    let g = R::where_gt(g, limit, limit, g);
    R::where_gt(-limit, g, -limit, g)
}
