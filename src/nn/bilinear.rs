//! Bilinear layers.

use super::{Module, positive};
use crate::error::Result;
use crate::numerics::environment::strict;
use crate::params::{Param, Params};
use crate::session::Var;

/// A bilinear layer on the last axes of two values, with PyTorch's names, layout and initial range.
#[derive(Clone, Debug, Module)]
pub struct Bilinear {
    weight: Param,
    bias: Option<Param>,
}

impl Bilinear {
    /// Parameters `name.weight (out, left, right)` and, with `bias`, `name.bias (out)`, uniform within `1 / sqrt(left)`.
    #[track_caller]
    pub fn new(
        params: &mut Params,
        name: &str,
        [left, right]: [usize; 2],
        outputs: usize,
        bias: bool,
    ) -> Result<Bilinear> {
        positive("bilinear", "sizes", &[left, right, outputs])?;
        let limit = strict(|| 1.0 / (left as f64).sqrt());
        let mut part =
            |part: &str, dims: &[usize]| params.uniform(&format!("{name}.{part}"), dims, -limit, limit);
        let weight = part("weight", &[outputs, left, right])?;
        Ok(Bilinear { weight, bias: bias.then(|| part("bias", &[outputs])).transpose()? })
    }

    /// `y[o] = Σ_i Σ_j a[i] W[o, i, j] b[j] + bias[o]` of `a (…, left)` and `b (…, right)`: `(…, out)`.
    #[track_caller]
    pub fn forward<'s>(&self, a: Var<'s>, b: Var<'s>) -> Result<Var<'s>> {
        let s = a.session();
        let bias = self.bias.as_ref().map(|bias| s.param(bias)).transpose()?;
        a.bilinear(b, s.param(&self.weight)?, bias)
    }
}
