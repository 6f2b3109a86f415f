//! Affine maps.

use super::positive;
use crate::error::Result;
use crate::params::{Param, Params};
use crate::session::Var;

/// An affine map of the last axis, with PyTorch's names, layout and initial range.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Param,
    bias: Param,
}

impl Linear {
    /// Parameters `name.weight (out, in)` and `name.bias (out)`, uniform within `1 / sqrt(in)`.
    pub fn new(params: &mut Params, name: &str, inputs: usize, outputs: usize) -> Result<Linear> {
        Linear::with(params, name, inputs, outputs, None)
    }

    /// As [`Linear::new`], with a weight of normal draws with standard deviation `std`.
    pub fn normal(
        params: &mut Params,
        name: &str,
        inputs: usize,
        outputs: usize,
        std: f64,
    ) -> Result<Linear> {
        Linear::with(params, name, inputs, outputs, Some(std))
    }

    fn with(
        params: &mut Params,
        name: &str,
        inputs: usize,
        outputs: usize,
        std: Option<f64>,
    ) -> Result<Linear> {
        positive("linear", "sizes", &[inputs, outputs])?;
        let limit = 1.0 / (inputs as f64).sqrt();
        let (weight, dims) = (format!("{name}.weight"), [outputs, inputs]);
        Ok(Linear {
            weight: match std {
                Some(std) => params.normal(&weight, &dims, 0.0, std)?,
                None => params.uniform(&weight, &dims, -limit, limit)?,
            },
            bias: params.uniform(&format!("{name}.bias"), &[outputs], -limit, limit)?,
        })
    }

    /// `x W^T + b`.
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let s = x.session();
        x.linear(s.param(&self.weight)?, s.param(&self.bias)?)
    }
}
