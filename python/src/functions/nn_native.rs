//! Functions behind the layers that PyTorch has in `torch` itself: with the statistics they used, or with numbers for modes.

use super::nn_images::{grid_options, pool_window, unknown};
use super::nn_norms::{batch_normed, needed, normalized_axes};
use crate::arguments::Sizes;
use crate::tensor::{Answer, Tensor, many, many_with_optional, one};
use dittograd::error::Result;
use dittograd::session::Var;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// What the norms return: the value, the means, and one over the standard deviations.
type Normed = (Tensor, Tensor, Tensor);

fn three(found: Vec<Tensor>) -> PyResult<Normed> {
    <[Tensor; 3]>::try_from(found)
        .map(|[y, mean, r]| (y, mean, r))
        .map_err(|_| PyValueError::new_err("three results are expected"))
}

/// `1 / sqrt(var + eps)`.
fn inverse(var: Var<'_>, eps: f64) -> Result<Var<'_>> {
    var.add_scalar(eps)?.rsqrt()
}

/// Interpolation and padding by PyTorch's numbers for them.
fn grid(input: &Tensor, grid: &Tensor, modes: [usize; 2], align_corners: bool) -> Answer {
    let name = |which: &str, names: [&'static str; 3], i: usize| match names.get(i) {
        Some(name) => Ok(*name),
        None => unknown(which, &i.to_string(), "0, 1 or 2"),
    };
    let mode = name("interpolation_mode", ["bilinear", "nearest", "bicubic"], modes[0])?;
    let padding = name("padding_mode", ["zeros", "border", "reflection"], modes[1])?;
    let options = grid_options(mode, padding, align_corners)?;
    one(&[input, grid], |v| v[0].grid_sample(v[1], options))
}

#[pymodule]
pub mod nn_native {
    use super::*;

    /// Mean and biased variance of each channel of `(N, C, …)`. No gradient flows through them.
    #[pyfunction]
    fn moments(input: &Tensor) -> PyResult<(Tensor, Tensor)> {
        let found = many(&[input], |v| v[0].moments().map(|(mean, var)| vec![mean, var]))?;
        <[Tensor; 2]>::try_from(found)
            .map(|[mean, var]| (mean, var))
            .map_err(|_| PyValueError::new_err("two results are expected"))
    }

    /// Batch norm; also the batch's mean and `1 / sqrt(variance + eps)` per channel, without gradients, which are empty without `training`.
    /// `running_mean` and `running_var` are not changed.
    #[pyfunction]
    #[pyo3(signature = (input, weight, bias, running_mean, running_var, training, momentum, eps))]
    #[allow(clippy::too_many_arguments)]
    fn native_batch_norm(
        input: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        running_mean: Option<&Tensor>,
        running_var: Option<&Tensor>,
        training: bool,
        momentum: f64,
        eps: f64,
    ) -> PyResult<Normed> {
        // Only the update of running statistics would use it.
        let _ = momentum;
        if training {
            return three(many_with_optional(input, &[weight, bias], |x, o| {
                let (mean, var) = x.moments()?;
                Ok(vec![batch_normed(x, None, o[0], o[1], eps)?, mean, inverse(var, eps)?])
            })?);
        }
        let (mean, var) = needed(running_mean, running_var)?;
        three(many_with_optional(input, &[Some(mean), Some(var), weight, bias], |x, o| {
            let none = x.session().zeros(&[0])?;
            Ok(vec![batch_normed(x, o[0].zip(o[1]), o[2], o[3], eps)?, none, none])
        })?)
    }

    /// Layer norm; also the means and `1 / sqrt(variance + eps)`.
    #[pyfunction]
    #[pyo3(signature = (input, normalized_shape, weight, bias, eps))]
    fn native_layer_norm(
        input: &Tensor,
        normalized_shape: Vec<usize>,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> PyResult<Normed> {
        let count = normalized_axes(input, &normalized_shape)?;
        let rank = input.rank()?;
        let axes: Vec<usize> = (rank - count..rank).collect();
        three(many_with_optional(input, &[weight, bias], |x, o| {
            let y = x.layer_norm(count, o[0], o[1], eps)?;
            Ok(vec![y, x.mean_dim(&axes, true)?, inverse(x.var(&axes, 0, true)?, eps)?])
        })?)
    }

    /// Group norm of `n` images of `c` channels and `hxw` positions; also the means and `1 / sqrt(variance + eps)` of the groups.
    #[pyfunction]
    #[pyo3(signature = (input, weight, bias, N, C, HxW, group, eps))]
    #[allow(clippy::too_many_arguments, non_snake_case)]
    fn native_group_norm(
        input: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        N: usize,
        C: usize,
        HxW: usize,
        group: usize,
        eps: f64,
    ) -> PyResult<Normed> {
        if group == 0 || !C.is_multiple_of(group) {
            return Err(PyValueError::new_err(format!("group is {group}; it must divide the {C} channels")));
        }
        three(many_with_optional(input, &[weight, bias], |x, o| {
            let y = x.group_norm(group, o[0], o[1], eps)?;
            let groups = x.reshape(&[N, group, C / group * HxW])?;
            Ok(vec![y, groups.mean_axes(&[2])?, inverse(groups.var(&[2], 0, false)?, eps)?])
        })?)
    }

    /// `nn.functional.grid_sample` of images `(N, C, H, W)`, with the numbers of the modes.
    #[pyfunction]
    #[pyo3(signature = (input, grid, interpolation_mode, padding_mode, align_corners))]
    fn grid_sampler_2d(
        input: &Tensor,
        grid: &Tensor,
        interpolation_mode: usize,
        padding_mode: usize,
        align_corners: bool,
    ) -> Answer {
        super::grid(input, grid, [interpolation_mode, padding_mode], align_corners)
    }

    /// `nn.functional.grid_sample` of images `(N, C, D, H, W)`, with the numbers of the modes.
    #[pyfunction]
    #[pyo3(signature = (input, grid, interpolation_mode, padding_mode, align_corners))]
    fn grid_sampler_3d(
        input: &Tensor,
        grid: &Tensor,
        interpolation_mode: usize,
        padding_mode: usize,
        align_corners: bool,
    ) -> Answer {
        super::grid(input, grid, [interpolation_mode, padding_mode], align_corners)
    }

    /// The gradient of `nn.functional.max_pool2d_with_indices` by its input, from the gradient of its values.
    #[pyfunction]
    #[pyo3(signature = (grad_output, input, kernel_size, stride, padding, dilation, ceil_mode, indices))]
    #[allow(clippy::too_many_arguments)]
    fn max_pool2d_with_indices_backward(
        grad_output: &Tensor,
        input: &Tensor,
        kernel_size: Sizes,
        stride: Option<Sizes>,
        padding: Sizes,
        dilation: Sizes,
        ceil_mode: bool,
        indices: &Tensor,
    ) -> Answer {
        // The indices say it all.
        pool_window(2, &kernel_size, stride, &padding, &dilation)?;
        let _ = ceil_mode;
        let dims = input.dims()?;
        let &[ref lead @ .., h, w] = &dims[..] else {
            return Err(PyValueError::new_err("input must have at least 2 axes"));
        };
        let rows: usize = lead.iter().product();
        let flat = [rows, grad_output.dims()?.iter().product::<usize>() / rows.max(1)];
        one(&[input, grad_output, indices], |v| {
            let zeros = v[0].session().zeros(&[rows, h * w])?;
            zeros.scatter_add(1, v[2].reshape(&flat)?, v[1].reshape(&flat)?)?.reshape(&dims)
        })
    }

    /// The gradient of dropout: `grad_output · mask · scale`.
    #[pyfunction]
    #[pyo3(signature = (grad_output, mask, scale))]
    fn native_dropout_backward(grad_output: &Tensor, mask: &Tensor, scale: f64) -> Answer {
        one(&[grad_output, mask], |v| v[0].mul(v[1])?.scale(scale))
    }
}
