//! Linear layers.

use super::{Module, positive};
use crate::error::Result;
use crate::numerics::environment::strict;
use crate::params::{Param, Params};
use crate::session::Var;

/// A linear layer on the last axis, with PyTorch's names, layout and initial range.
#[derive(Clone, Debug, Module)]
pub struct Linear {
    weight: Param,
    bias: Option<Param>,
}

impl Linear {
    /// Parameters `name.weight (out, in)` and `name.bias (out)`, uniform within `1 / sqrt(in)`.
    #[track_caller]
    pub fn new(params: &mut Params, name: &str, inputs: usize, outputs: usize) -> Result<Linear> {
        Linear::with(params, name, inputs, outputs, None)?.biased(params, name)
    }

    /// Like [`Linear::new`], with a weight of normal draws of standard deviation `std`.
    #[track_caller]
    pub fn normal(
        params: &mut Params,
        name: &str,
        inputs: usize,
        outputs: usize,
        std: f64,
    ) -> Result<Linear> {
        Linear::with(params, name, inputs, outputs, Some(std))?.biased(params, name)
    }

    /// Like [`Linear::new`], without the bias.
    #[track_caller]
    pub fn without_bias(params: &mut Params, name: &str, inputs: usize, outputs: usize) -> Result<Linear> {
        Linear::with(params, name, inputs, outputs, None)
    }

    /// A layer with these parameters.
    pub(super) fn of(weight: Param, bias: Option<Param>) -> Linear {
        Linear { weight, bias }
    }

    #[track_caller]
    fn with(
        params: &mut Params,
        name: &str,
        inputs: usize,
        outputs: usize,
        std: Option<f64>,
    ) -> Result<Linear> {
        positive("linear", "sizes", &[inputs, outputs])?;
        let limit = Linear::limit(inputs);
        let (weight, dims) = (format!("{name}.weight"), [outputs, inputs]);
        let weight = match std {
            Some(std) => params.normal(&weight, &dims, 0.0, std)?,
            None => params.uniform(&weight, &dims, -limit, limit)?,
        };
        Ok(Linear { weight, bias: None })
    }

    #[track_caller]
    fn biased(self, params: &mut Params, name: &str) -> Result<Linear> {
        let shape = self.weight.shape();
        let limit = Linear::limit(shape.dims()[1]);
        let bias = params.uniform(&format!("{name}.bias"), &shape.dims()[..1], -limit, limit)?;
        Ok(Linear { bias: Some(bias), ..self })
    }

    fn limit(inputs: usize) -> f64 {
        strict(|| 1.0 / (inputs as f64).sqrt())
    }

    /// The weight `(out, in)`.
    pub fn weight(&self) -> &Param {
        &self.weight
    }

    /// The bias `(out)`, if there is one.
    pub fn bias(&self) -> Option<&Param> {
        self.bias.as_ref()
    }

    /// `x W^T + b`.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        let s = x.session();
        let weight = s.param(&self.weight)?;
        match &self.bias {
            Some(bias) => x.linear(weight, s.param(bias)?),
            None => x.matmul_with(weight, false, true),
        }
    }
}
