//! Normalization.

use crate::functions::axes::along;
use crate::tensor::{Answer, Tensor, one, with_optional};
use dittograd::error::Result;
use dittograd::session::Var;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// How many last axes `normalized_shape` names.
pub(super) fn normalized_axes(input: &Tensor, normalized_shape: &[usize]) -> PyResult<usize> {
    let dims = input.dims()?;
    match !normalized_shape.is_empty() && dims.ends_with(normalized_shape) {
        true => Ok(normalized_shape.len()),
        false => Err(PyValueError::new_err(format!(
            "normalized_shape {normalized_shape:?} must be the last sizes of the input, which are {dims:?}"
        ))),
    }
}

/// Batch norm by given statistics, or by those of the batch.
pub(super) fn batch_normed<'s>(
    x: Var<'s>,
    statistics: Option<(Var<'s>, Var<'s>)>,
    weight: Option<Var<'s>>,
    bias: Option<Var<'s>>,
    eps: f64,
) -> Result<Var<'s>> {
    match statistics {
        // Running statistics have no gradient.
        Some((mean, var)) => x.batch_norm_eval(mean.detach()?, var.detach()?, weight, bias, eps),
        None => x.batch_norm(weight, bias, eps),
    }
}

/// The running statistics, which evaluation needs.
pub(super) fn needed<'a>(
    mean: Option<&'a Tensor>,
    var: Option<&'a Tensor>,
) -> PyResult<(&'a Tensor, &'a Tensor)> {
    match (mean, var) {
        (Some(mean), Some(var)) => Ok((mean, var)),
        (Some(_), None) | (None, _) => {
            Err(PyValueError::new_err("running_mean and running_var must be given to normalize by them"))
        }
    }
}

#[pymodule]
pub mod nn_norms {
    use super::*;

    /// Batch norm of `(N, C, …)`: each channel minus its mean, over `sqrt(variance + eps)`, times `weight` `(C)`, plus `bias` `(C)`.
    ///
    /// With `training`, mean and variance are those of the batch, else `running_mean` and `running_var` `(C)`. Unlike in PyTorch these
    /// are not changed, and `momentum` has no effect: nothing happens in place. `native_batch_norm` returns the statistics of the batch
    /// too.
    #[pyfunction]
    #[pyo3(signature = (input, running_mean, running_var, weight=None, bias=None, training=false, momentum=0.1, eps=1e-5))]
    #[allow(clippy::too_many_arguments)]
    fn batch_norm(
        input: &Tensor,
        running_mean: Option<&Tensor>,
        running_var: Option<&Tensor>,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        training: bool,
        momentum: Option<f64>,
        eps: f64,
    ) -> Answer {
        // Only the update of running statistics would use it.
        let _ = momentum;
        if training {
            return with_optional(input, &[weight, bias], |x, o| batch_normed(x, None, o[0], o[1], eps));
        }
        let (mean, var) = needed(running_mean, running_var)?;
        with_optional(input, &[Some(mean), Some(var), weight, bias], |x, o| {
            batch_normed(x, o[0].zip(o[1]), o[2], o[3], eps)
        })
    }

    /// Instance norm of `(N, C, …)`: each channel of each sample by its own mean and variance, times `weight` `(C)`, plus `bias` `(C)`.
    ///
    /// Without `use_input_stats` it is by `running_mean` and `running_var` `(C)`. Unlike in PyTorch these are not changed.
    #[pyfunction]
    #[pyo3(signature = (input, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=true, momentum=0.1,
        eps=1e-5))]
    #[allow(clippy::too_many_arguments)]
    fn instance_norm(
        input: &Tensor,
        running_mean: Option<&Tensor>,
        running_var: Option<&Tensor>,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        use_input_stats: bool,
        momentum: Option<f64>,
        eps: f64,
    ) -> Answer {
        if !use_input_stats {
            return batch_norm(input, running_mean, running_var, weight, bias, false, momentum, eps);
        }
        with_optional(input, &[weight, bias], |x, o| x.instance_norm(o[0], o[1], eps))
    }

    /// Group norm of `(N, C, …)`: each of `num_groups` groups of channels of each sample by its own mean and variance, times `weight`
    /// `(C)`, plus `bias` `(C)`.
    #[pyfunction]
    #[pyo3(signature = (input, num_groups, weight=None, bias=None, eps=1e-5))]
    fn group_norm(
        input: &Tensor,
        num_groups: usize,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Answer {
        with_optional(input, &[weight, bias], |x, o| x.group_norm(num_groups, o[0], o[1], eps))
    }

    /// Layer norm: minus the mean, over `sqrt(variance + eps)`, of the last axes, whose sizes are the list `normalized_shape`; times
    /// `weight` and plus `bias` of that shape.
    #[pyfunction]
    #[pyo3(signature = (input, normalized_shape, weight=None, bias=None, eps=1e-5))]
    fn layer_norm(
        input: &Tensor,
        normalized_shape: Vec<usize>,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Answer {
        let axes = normalized_axes(input, &normalized_shape)?;
        with_optional(input, &[weight, bias], |x, o| x.layer_norm(axes, o[0], o[1], eps))
    }

    /// RMS norm: over the root of the mean square plus `eps` of the last axes, whose sizes are the list `normalized_shape`; times
    /// `weight` of that shape. `eps` is by default the distance from 1 to the next float32.
    #[pyfunction]
    #[pyo3(signature = (input, normalized_shape, weight=None, eps=None))]
    fn rms_norm(
        input: &Tensor,
        normalized_shape: Vec<usize>,
        weight: Option<&Tensor>,
        eps: Option<f64>,
    ) -> Answer {
        let axes = normalized_axes(input, &normalized_shape)?;
        with_optional(input, &[weight], |x, o| x.rms_norm(axes, o[0], eps.unwrap_or(f64::from(f32::EPSILON))))
    }

    /// Divides `(N, C, …)` by a power of the mean of the squares of `size` neighbouring channels.
    #[pyfunction]
    #[pyo3(signature = (input, size, alpha=1e-4, beta=0.75, k=1.0))]
    fn local_response_norm(input: &Tensor, size: usize, alpha: f64, beta: f64, k: f64) -> Answer {
        one(&[input], |v| v[0].local_response_norm(size, alpha, beta, k))
    }

    /// Divides by the norm of power `p` along the axis `dim`, by default the second, or by `eps` if that is larger.
    #[pyfunction]
    #[pyo3(signature = (input, p=2.0, dim=1, eps=1e-12))]
    fn normalize(input: &Tensor, p: f64, dim: i64, eps: f64) -> Answer {
        along(input, |x| x.normalize(p, dim, eps))
    }
}
