//! Activations.

use pyo3::prelude::*;

/// The functions without further arguments.
mod plain {
    use crate::functions::elementwise::of_each_element;
    use pyo3::prelude::*;

    of_each_element! {
        /// Each number, or 0 if it is negative.
        relu;
        /// Numbers held between 0 and 6.
        relu6;
        /// The activation that keeps mean 0 and variance 1: `elu` with fixed constants.
        selu;
        /// `x · sigmoid(x)`, also known as swish.
        silu;
        /// `x · tanh(softplus(x))`.
        mish;
        /// `x · hardsigmoid(x)`.
        hardswish;
        /// A sigmoid of straight lines: `x / 6 + 1/2`, held between 0 and 1.
        hardsigmoid;
        /// `x - tanh(x)`.
        tanhshrink;
        /// `x / (1 + |x|)`.
        softsign;
        /// The logarithm of the sigmoid, without overflow.
        logsigmoid = log_sigmoid;
    }
}

#[pymodule]
pub mod nn_activations {
    use crate::arguments::check_dtype;
    use crate::functions::axes::along;
    use crate::tensor::{Answer, Tensor, one};
    use pyo3::exceptions::PyValueError;
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::plain::register(module)
    }

    /// Each number, times `negative_slope` if it is not positive.
    #[pyfunction]
    #[pyo3(signature = (input, negative_slope=0.01))]
    fn leaky_relu(input: &Tensor, negative_slope: f64) -> Answer {
        one(&[input], |v| v[0].leaky_relu(negative_slope))
    }

    /// `x` where positive, else `alpha · (e^x - 1)`.
    #[pyfunction]
    #[pyo3(signature = (input, alpha=1.0))]
    fn elu(input: &Tensor, alpha: f64) -> Answer {
        one(&[input], |v| v[0].elu(alpha))
    }

    /// `x` where positive, else `alpha · (e^(x / alpha) - 1)`.
    #[pyfunction]
    #[pyo3(signature = (input, alpha=1.0))]
    fn celu(input: &Tensor, alpha: f64) -> Answer {
        one(&[input], |v| v[0].celu(alpha))
    }

    /// `x` times the normal distribution function of `x`: exactly (`approximate="none"`) or by a tanh (`"tanh"`).
    #[pyfunction]
    #[pyo3(signature = (input, *, approximate="none"))]
    fn gelu(input: &Tensor, approximate: &str) -> Answer {
        match approximate {
            "none" => one(&[input], |v| v[0].gelu_erf()),
            "tanh" => one(&[input], |v| v[0].gelu()),
            other => Err(PyValueError::new_err(format!(
                "gelu: approximate is {other:?}, use \"none\" or \"tanh\""
            ))),
        }
    }

    /// The first half of an axis, the last by default, times the sigmoid of the second half.
    #[pyfunction]
    #[pyo3(signature = (input, dim=-1))]
    fn glu(input: &Tensor, dim: i64) -> Answer {
        one(&[input], |v| v[0].glu(dim))
    }

    /// `x` where positive, else `weight · x`, with one weight or one for each channel (axis 1).
    #[pyfunction]
    fn prelu(input: &Tensor, weight: &Tensor) -> Answer {
        one(&[input, weight], |v| v[0].prelu(v[1]))
    }

    /// `x` where positive, else `x` times a slope: while training a random one from `lower` to `upper` for each element, otherwise
    /// the mean of both.
    #[pyfunction]
    #[pyo3(signature = (input, lower=0.125, upper=0.3333333333333333, training=false))]
    fn rrelu(input: &Tensor, lower: f64, upper: f64, training: bool) -> Answer {
        if lower > upper {
            return Err(PyValueError::new_err(format!("rrelu: lower is {lower}, above upper {upper}")));
        }
        if !training {
            return one(&[input], |v| v[0].rrelu(lower, upper));
        }
        one(&[input], |v| v[0].rrelu_random(lower, upper))
    }

    /// Numbers held between `min_val`, by default -1, and `max_val`, by default 1.
    #[pyfunction]
    #[pyo3(signature = (input, min_val=-1.0, max_val=1.0))]
    fn hardtanh(input: &Tensor, min_val: f64, max_val: f64) -> Answer {
        if min_val > max_val {
            let why = format!("hardtanh: min_val is {min_val}, above max_val {max_val}");
            return Err(PyValueError::new_err(why));
        }
        one(&[input], |v| v[0].clamp(min_val, max_val))
    }

    /// Each number, 0 if its magnitude is at most `lambd`.
    #[pyfunction]
    #[pyo3(signature = (input, lambd=0.5))]
    fn hardshrink(input: &Tensor, lambd: f64) -> Answer {
        one(&[input], |v| v[0].hardshrink(lambd))
    }

    /// Each number moved towards 0 by `lambd`, 0 where it would pass it.
    #[pyfunction]
    #[pyo3(signature = (input, lambd=0.5))]
    fn softshrink(input: &Tensor, lambd: f64) -> Answer {
        one(&[input], |v| v[0].softshrink(lambd))
    }

    /// `ln(1 + e^(beta x)) / beta`, without overflow; `x` itself where `beta x` is above `threshold`.
    #[pyfunction]
    #[pyo3(signature = (input, beta=1.0, threshold=20.0))]
    fn softplus(input: &Tensor, beta: f64, threshold: f64) -> Answer {
        one(&[input], |v| v[0].softplus_with(beta, threshold))
    }

    /// Each number above `threshold`, `value` in place of the others.
    #[pyfunction]
    fn threshold(input: &Tensor, threshold: f64, value: f64) -> Answer {
        one(&[input], |v| v[0].threshold(threshold, value))
    }

    /// Softmax along the axis `dim`: positive numbers whose sum is 1.
    #[pyfunction]
    #[pyo3(signature = (input, dim, dtype=None))]
    fn softmax(input: &Tensor, dim: i64, dtype: Option<&str>) -> Answer {
        check_dtype(dtype)?;
        along(input, |x| x.softmax_axis(dim))
    }

    /// The logarithm of the softmax along the axis `dim`, without overflow.
    #[pyfunction]
    #[pyo3(signature = (input, dim, dtype=None))]
    fn log_softmax(input: &Tensor, dim: i64, dtype: Option<&str>) -> Answer {
        check_dtype(dtype)?;
        along(input, |x| x.log_softmax_axis(dim))
    }

    /// The softmax of `-input` along the axis `dim`.
    #[pyfunction]
    #[pyo3(signature = (input, dim, dtype=None))]
    fn softmin(input: &Tensor, dim: i64, dtype: Option<&str>) -> Answer {
        check_dtype(dtype)?;
        along(input, |x| x.softmin(dim))
    }

    /// The gradient of `softmax` from its result `output` and the gradient `grad_output` by that.
    #[pyfunction]
    #[pyo3(signature = (grad_output, output, dim, input_dtype=None))]
    fn _softmax_backward_data(
        grad_output: &Tensor,
        output: &Tensor,
        dim: i64,
        input_dtype: Option<&str>,
    ) -> Answer {
        check_dtype(input_dtype)?;
        one(&[grad_output, output], |v| v[1].mul(v[0].sub(v[0].mul(v[1])?.sum_dim(&[dim], true)?)?))
    }

    /// A random sample of the classes along an axis, the last by default, by their logits: with `hard` one-hot, otherwise a softmax
    /// with noise, at the temperature `tau`. Gradients are those of the softmax.
    #[pyfunction]
    #[pyo3(signature = (logits, tau=1.0, hard=false, *, dim=-1))]
    fn gumbel_softmax(logits: &Tensor, tau: f64, hard: bool, dim: i64) -> Answer {
        one(&[logits], |v| v[0].gumbel_softmax(tau, hard, dim))
    }
}
