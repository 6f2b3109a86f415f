//! Reductions, scans and statistics.

use crate::arguments::Dims;
use crate::functions::axes::reduced;
use crate::tensor::Tensor;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A tensor to compare with, or an axis.
#[derive(FromPyObject)]
pub enum Other<'py> {
    Tensor(PyRef<'py, Tensor>),
    Dim(i64),
}

/// Axes, or the flag `unbiased` in their place.
#[derive(FromPyObject)]
pub enum AxesOrUnbiased {
    Unbiased(bool),
    Dims(Dims),
}

/// How far the elements of a gradient are apart.
#[derive(FromPyObject)]
pub enum Spacing<'py> {
    Number(f64),
    Numbers(Vec<f64>),
    Places(Vec<PyRef<'py, Tensor>>),
}

/// What a variance is taken over, and what is subtracted from the count.
struct Spread {
    axes: Vec<i64>,
    correction: f64,
}

impl Spread {
    fn new(
        input: &Tensor,
        dim: Option<AxesOrUnbiased>,
        unbiased: Option<bool>,
        correction: Option<f64>,
    ) -> PyResult<Spread> {
        let (dims, unbiased) = match dim {
            None => (None, unbiased),
            Some(AxesOrUnbiased::Dims(dims)) => (Some(dims), unbiased),
            Some(AxesOrUnbiased::Unbiased(flag)) if unbiased.is_none() => (None, Some(flag)),
            Some(AxesOrUnbiased::Unbiased(_)) => {
                return Err(PyValueError::new_err("dim is a truth value; give an axis or a list of axes"));
            }
        };
        let correction = match (unbiased, correction) {
            (None, given) => given.unwrap_or(1.0),
            (Some(flag), None) => f64::from(u8::from(flag)),
            (Some(_), Some(_)) => {
                return Err(PyValueError::new_err("give unbiased or correction, not both"));
            }
        };
        Ok(Spread { axes: reduced(input, dims)?, correction })
    }
}

#[pymodule]
pub mod reductions {
    use super::{AxesOrUnbiased, Other, Spacing, Spread};
    use crate::arguments::{Dims, check_dtype};
    use crate::functions::axes::{Object, along, along_two, named, reduced};
    use crate::functions::linalg::{Order, no_norm};
    use crate::tensor::{Answer, Tensor, many, one, truth, two, with_optional};
    use dittograd::session::Spacing as At;
    use pyo3::exceptions::PyValueError;
    use pyo3::prelude::*;
    use pyo3::types::PyTuple;

    /// Sums over some axes, or of all elements.
    ///
    /// `dim` is an axis or several; without it, all of them. With `keepdim` they stay, with one element. `dtype` may only be "float32".
    #[pyfunction]
    #[pyo3(signature = (input, dim=None, keepdim=false, *, dtype=None))]
    fn sum(input: &Tensor, dim: Option<Dims>, keepdim: bool, dtype: Option<&str>) -> Answer {
        check_dtype(dtype)?;
        let axes = reduced(input, dim)?;
        one(&[input], |v| v[0].sum_dim(&axes, keepdim))
    }

    /// Sums of the elements that are not NaN. `dim` is an axis or several; without it, all of them. With `keepdim` they stay, with one
    /// element.
    #[pyfunction]
    #[pyo3(signature = (input, dim=None, keepdim=false, *, dtype=None))]
    fn nansum(input: &Tensor, dim: Option<Dims>, keepdim: bool, dtype: Option<&str>) -> Answer {
        check_dtype(dtype)?;
        let axes = reduced(input, dim)?;
        one(&[input], |v| v[0].nansum(&axes, keepdim))
    }

    /// Sums over the axes along which a tensor of the given size would be broadcast to `input`.
    #[pyfunction]
    #[pyo3(signature = (input, *size))]
    fn sum_to_size(input: &Tensor, size: &Bound<'_, PyTuple>) -> Answer {
        let size: Vec<usize> = match size.get_item(0).and_then(|first| first.extract()) {
            Ok(list) => list,
            Err(_) => size.extract()?,
        };
        one(&[input], |v| v[0].sum_to_size(&size))
    }

    /// Means over some axes, or of all elements.
    ///
    /// `dim` is an axis or several; without it, all of them. With `keepdim` they stay, with one element. `dtype` may only be "float32".
    #[pyfunction]
    #[pyo3(signature = (input, dim=None, keepdim=false, *, dtype=None))]
    fn mean(input: &Tensor, dim: Option<Dims>, keepdim: bool, dtype: Option<&str>) -> Answer {
        check_dtype(dtype)?;
        let axes = reduced(input, dim)?;
        one(&[input], |v| v[0].mean_dim(&axes, keepdim))
    }

    /// Means of the elements that are not NaN. `dim` is an axis or several; without it, all of them. With `keepdim` they stay, with one
    /// element.
    #[pyfunction]
    #[pyo3(signature = (input, dim=None, keepdim=false, *, dtype=None))]
    fn nanmean(input: &Tensor, dim: Option<Dims>, keepdim: bool, dtype: Option<&str>) -> Answer {
        check_dtype(dtype)?;
        let axes = reduced(input, dim)?;
        one(&[input], |v| v[0].nanmean(&axes, keepdim))
    }

    /// Products over some axes, or of all elements. `dim` is an axis or several; without it, all of them. With `keepdim` they stay,
    /// with one element.
    #[pyfunction]
    #[pyo3(signature = (input, dim=None, keepdim=false, *, dtype=None))]
    fn prod(input: &Tensor, dim: Option<Dims>, keepdim: bool, dtype: Option<&str>) -> Answer {
        check_dtype(dtype)?;
        let axes = reduced(input, dim)?;
        one(&[input], |v| v[0].prod_dim(&axes, keepdim))
    }

    /// The largest elements over some axes, or of all. The gradient goes to the first of several largest elements.
    ///
    /// `dim` is an axis or several; without it, all of them. With `keepdim` they stay, with one element.
    #[pyfunction]
    #[pyo3(signature = (input, dim=None, keepdim=false))]
    fn amax(input: &Tensor, dim: Option<Dims>, keepdim: bool) -> Answer {
        let axes = reduced(input, dim)?;
        one(&[input], |v| v[0].amax(&axes, keepdim))
    }

    /// The smallest elements over some axes, or of all. The gradient goes to the first of several smallest elements.
    ///
    /// `dim` is an axis or several; without it, all of them. With `keepdim` they stay, with one element.
    #[pyfunction]
    #[pyo3(signature = (input, dim=None, keepdim=false))]
    fn amin(input: &Tensor, dim: Option<Dims>, keepdim: bool) -> Answer {
        let axes = reduced(input, dim)?;
        one(&[input], |v| v[0].amin(&axes, keepdim))
    }

    /// The smallest and the largest elements over an axis, or of all, as a pair `min`, `max`.
    #[pyfunction]
    #[pyo3(signature = (input, *, dim=None, keepdim=false))]
    fn aminmax<'py>(py: Python<'py>, input: &Tensor, dim: Option<Dims>, keepdim: bool) -> Object<'py> {
        let axes = reduced(input, dim)?;
        named(py, "Extremes", two(&[input], |v| v[0].aminmax(&axes, keepdim))?)
    }

    /// The largest element; with `dim`, the largest along that axis and their positions, as a pair `values`, `indices`; with another
    /// tensor, `dg.max(a, b)`, the larger of each two.
    ///
    /// With `keepdim` the axis stays, with one element. `amax` takes several axes.
    #[pyfunction]
    #[pyo3(signature = (input, dim=None, keepdim=false, *, other=None))]
    fn max<'py>(
        py: Python<'py>,
        input: &Tensor,
        dim: Option<Other<'py>>,
        keepdim: bool,
        other: Option<PyRef<'py, Tensor>>,
    ) -> Object<'py> {
        let value = match (dim, other) {
            (None, None) => amax(input, None, false)?,
            (Some(Other::Dim(dim)), None) => {
                return named(py, "Places", along_two(input, |x| x.max_dim(dim, keepdim))?);
            }
            (Some(Other::Tensor(other)), None) | (None, Some(other)) => {
                one(&[input, &other], |v| v[0].maximum(v[1]))?
            }
            (Some(_), Some(_)) => return Err(PyValueError::new_err("give dim or other, not both")),
        };
        Ok(Bound::new(py, value)?.into_any())
    }

    /// The smallest element; with `dim`, the smallest along that axis and their positions, as a pair `values`, `indices`; with another
    /// tensor, `dg.min(a, b)`, the smaller of each two.
    ///
    /// With `keepdim` the axis stays, with one element. `amin` takes several axes.
    #[pyfunction]
    #[pyo3(signature = (input, dim=None, keepdim=false, *, other=None))]
    fn min<'py>(
        py: Python<'py>,
        input: &Tensor,
        dim: Option<Other<'py>>,
        keepdim: bool,
        other: Option<PyRef<'py, Tensor>>,
    ) -> Object<'py> {
        let value = match (dim, other) {
            (None, None) => amin(input, None, false)?,
            (Some(Other::Dim(dim)), None) => {
                return named(py, "Places", along_two(input, |x| x.min_dim(dim, keepdim))?);
            }
            (Some(Other::Tensor(other)), None) | (None, Some(other)) => {
                one(&[input, &other], |v| v[0].minimum(v[1]))?
            }
            (Some(_), Some(_)) => return Err(PyValueError::new_err("give dim or other, not both")),
        };
        Ok(Bound::new(py, value)?.into_any())
    }

    /// The positions of the largest elements along an axis, as indices; without `dim` that of the largest of all in row-major order.
    /// With `keepdim` the axis stays, with one element.
    #[pyfunction]
    #[pyo3(signature = (input, dim=None, keepdim=false))]
    fn argmax(input: &Tensor, dim: Option<i64>, keepdim: bool) -> Answer {
        let axes = Dims::or_all(dim.map(Dims::One), input.rank()?.max(1));
        along(input, |x| x.argmax(&axes, keepdim))
    }

    /// The positions of the smallest elements along an axis, as indices; without `dim` that of the smallest of all in row-major order.
    /// With `keepdim` the axis stays, with one element.
    #[pyfunction]
    #[pyo3(signature = (input, dim=None, keepdim=false))]
    fn argmin(input: &Tensor, dim: Option<i64>, keepdim: bool) -> Answer {
        let axes = Dims::or_all(dim.map(Dims::One), input.rank()?.max(1));
        along(input, |x| x.argmin(&axes, keepdim))
    }

    /// 1 where all elements over some axes are true, which all numbers but 0 are, else 0. `dim` is an axis or several; without it, all
    /// of them. With `keepdim` they stay, with one element.
    #[pyfunction]
    #[pyo3(signature = (input, dim=None, keepdim=false))]
    fn all(input: &Tensor, dim: Option<Dims>, keepdim: bool) -> Answer {
        let axes = reduced(input, dim)?;
        truth(&[input], |v| v[0].all(&axes, keepdim))
    }

    /// 1 where some element over some axes is true, which all numbers but 0 are, else 0. `dim` is an axis or several; without it, all
    /// of them. With `keepdim` they stay, with one element.
    #[pyfunction]
    #[pyo3(signature = (input, dim=None, keepdim=false))]
    fn any(input: &Tensor, dim: Option<Dims>, keepdim: bool) -> Answer {
        let axes = reduced(input, dim)?;
        truth(&[input], |v| v[0].any(&axes, keepdim))
    }

    /// How many elements over some axes, or of all, are not 0, as numbers.
    #[pyfunction]
    #[pyo3(signature = (input, dim=None))]
    fn count_nonzero(input: &Tensor, dim: Option<Dims>) -> Answer {
        let axes = reduced(input, dim)?;
        one(&[input], |v| v[0].count_nonzero(&axes))
    }

    /// Variances over some axes: sums of squared deviations over the count minus `correction`, which is 1, or with `unbiased=False` 0.
    ///
    /// `dim` is an axis or several; without it, all of them. With `keepdim` they stay, with one element.
    #[pyfunction]
    #[pyo3(signature = (input, dim=None, unbiased=None, keepdim=false, *, correction=None))]
    fn var(
        input: &Tensor,
        dim: Option<AxesOrUnbiased>,
        unbiased: Option<bool>,
        keepdim: bool,
        correction: Option<f64>,
    ) -> Answer {
        let spread = Spread::new(input, dim, unbiased, correction)?;
        one(&[input], |v| v[0].var_corrected(&spread.axes, spread.correction, keepdim))
    }

    /// Standard deviations over some axes, the square roots of `var`, with the same arguments.
    #[pyfunction]
    #[pyo3(signature = (input, dim=None, unbiased=None, keepdim=false, *, correction=None))]
    fn std(
        input: &Tensor,
        dim: Option<AxesOrUnbiased>,
        unbiased: Option<bool>,
        keepdim: bool,
        correction: Option<f64>,
    ) -> Answer {
        let spread = Spread::new(input, dim, unbiased, correction)?;
        one(&[input], |v| v[0].std_corrected(&spread.axes, spread.correction, keepdim))
    }

    /// Variances and means over the same axes.
    #[pyfunction]
    #[pyo3(signature = (input, dim=None, unbiased=None, keepdim=false, *, correction=None))]
    fn var_mean(
        input: &Tensor,
        dim: Option<AxesOrUnbiased>,
        unbiased: Option<bool>,
        keepdim: bool,
        correction: Option<f64>,
    ) -> PyResult<(Tensor, Tensor)> {
        let spread = Spread::new(input, dim, unbiased, correction)?;
        two(&[input], |v| {
            Ok((
                v[0].var_corrected(&spread.axes, spread.correction, keepdim)?,
                v[0].mean_dim(&spread.axes, keepdim)?,
            ))
        })
    }

    /// Standard deviations and means over the same axes.
    #[pyfunction]
    #[pyo3(signature = (input, dim=None, unbiased=None, keepdim=false, *, correction=None))]
    fn std_mean(
        input: &Tensor,
        dim: Option<AxesOrUnbiased>,
        unbiased: Option<bool>,
        keepdim: bool,
        correction: Option<f64>,
    ) -> PyResult<(Tensor, Tensor)> {
        let spread = Spread::new(input, dim, unbiased, correction)?;
        two(&[input], |v| {
            Ok((
                v[0].std_corrected(&spread.axes, spread.correction, keepdim)?,
                v[0].mean_dim(&spread.axes, keepdim)?,
            ))
        })
    }

    /// Norms of vectors over some axes: `p` is any number, an infinity, or "fro", which is 2.
    ///
    /// `dim` is an axis or several; without it, all of them. With `keepdim` they stay, with one element. `linalg.matrix_norm` has the
    /// norms of matrices.
    #[pyfunction]
    #[pyo3(signature = (input, p=Order::Number(2.0), dim=None, keepdim=false, *, dtype=None), text_signature = "(input, p='fro', dim=None, keepdim=False, *, dtype=None)")]
    fn norm(input: &Tensor, p: Order, dim: Option<Dims>, keepdim: bool, dtype: Option<&str>) -> Answer {
        match p {
            Order::Number(p) => vector_norm(input, p, dim, keepdim, dtype),
            Order::Name(name) if name == "fro" => vector_norm(input, 2.0, dim, keepdim, dtype),
            Order::Name(name) => Err(no_norm("norm", &name)),
        }
    }

    /// Norms of vectors over some axes: `ord` is any number or an infinity.
    #[pyfunction]
    #[pyo3(signature = (x, ord=2.0, dim=None, keepdim=false, *, dtype=None))]
    pub fn vector_norm(
        x: &Tensor,
        ord: f64,
        dim: Option<Dims>,
        keepdim: bool,
        dtype: Option<&str>,
    ) -> Answer {
        check_dtype(dtype)?;
        let axes = reduced(x, dim)?;
        one(&[x], |v| v[0].norm(ord, &axes, keepdim))
    }

    /// The norm of power `p` of the difference of two tensors, of all elements together.
    #[pyfunction]
    #[pyo3(signature = (input, other, p=2.0))]
    fn dist(input: &Tensor, other: &Tensor, p: f64) -> Answer {
        one(&[input, other], |v| v[0].dist(v[1], p))
    }

    /// The slices along an axis, those whose p-norm is larger than `maxnorm` scaled down to it.
    #[pyfunction]
    fn renorm(input: &Tensor, p: f64, dim: i64, maxnorm: f64) -> Answer {
        one(&[input], |v| v[0].renorm(p, dim, maxnorm))
    }

    /// The sum of the diagonal of a matrix.
    #[pyfunction]
    fn trace(input: &Tensor) -> Answer {
        one(&[input], |v| v[0].trace())
    }

    /// Sums of the elements up to each along an axis.
    #[pyfunction]
    #[pyo3(signature = (input, dim, *, dtype=None))]
    fn cumsum(input: &Tensor, dim: i64, dtype: Option<&str>) -> Answer {
        check_dtype(dtype)?;
        along(input, |x| x.cumsum(dim))
    }

    /// Products of the elements up to each along an axis.
    #[pyfunction]
    #[pyo3(signature = (input, dim, *, dtype=None))]
    fn cumprod(input: &Tensor, dim: i64, dtype: Option<&str>) -> Answer {
        check_dtype(dtype)?;
        along(input, |x| x.cumprod(dim))
    }

    /// The largest elements so far along an axis, and their last positions. The result is a pair `values`, `indices`.
    #[pyfunction]
    fn cummax<'py>(py: Python<'py>, input: &Tensor, dim: i64) -> Object<'py> {
        named(py, "Places", along_two(input, |x| x.cummax(dim))?)
    }

    /// The smallest elements so far along an axis, and their last positions. The result is a pair `values`, `indices`.
    #[pyfunction]
    fn cummin<'py>(py: Python<'py>, input: &Tensor, dim: i64) -> Object<'py> {
        named(py, "Places", along_two(input, |x| x.cummin(dim))?)
    }

    /// `log Σ e^x` of the elements up to each along an axis.
    #[pyfunction]
    fn logcumsumexp(input: &Tensor, dim: i64) -> Answer {
        along(input, |x| x.logcumsumexp(dim))
    }

    /// `log Σ e^x` over some axes, without overflow. With `keepdim` they stay, with one element.
    #[pyfunction]
    #[pyo3(signature = (input, dim, keepdim=false))]
    fn logsumexp(input: &Tensor, dim: Dims, keepdim: bool) -> Answer {
        let axes = reduced(input, Some(dim))?;
        one(&[input], |v| v[0].logsumexp(&axes, keepdim))
    }

    /// The covariances of the rows of a matrix, each a variable: sums over the observations, the columns, divided by their count less
    /// `correction`. `fweights` are counts of observations, `aweights` their weights.
    #[pyfunction]
    #[pyo3(signature = (input, *, correction=1, fweights=None, aweights=None))]
    fn cov(
        input: &Tensor,
        correction: usize,
        fweights: Option<&Tensor>,
        aweights: Option<&Tensor>,
    ) -> Answer {
        let scalar = input.rank()? == 0;
        with_optional(input, &[fweights, aweights], |x, weights| {
            let x = if scalar { x.flatten()? } else { x };
            x.cov_weighted(correction, weights[0], weights[1])
        })
    }

    /// The correlations of the rows of a matrix.
    #[pyfunction]
    fn corrcoef(input: &Tensor) -> Answer {
        along(input, |x| x.corrcoef())
    }

    /// Differences of neighbours along an axis, the last by default, taken `n` times, after `prepend` and `append` are put at its ends.
    /// With `n` 0 `input` itself.
    #[pyfunction]
    #[pyo3(signature = (input, n=1, dim=-1, prepend=None, append=None))]
    fn diff(input: &Tensor, n: usize, dim: i64, prepend: Option<&Tensor>, append: Option<&Tensor>) -> Answer {
        with_optional(input, &[prepend, append], |x, ends| {
            if n == 0 {
                return Ok(x);
            }
            let parts: Vec<_> = [ends[0], Some(x), ends[1]].into_iter().flatten().collect();
            x.session().concat(&parts, dim)?.diff(n, dim)
        })
    }

    /// The slopes along each axis of `dim`, or along all: a list of tensors.
    ///
    /// spacing: how far elements are apart, a number, or one for each axis, or a tensor of places for each axis
    /// edge_order: 1 or 2, of the formula at the ends
    #[pyfunction]
    #[pyo3(signature = (input, *, spacing=None, dim=None, edge_order=1))]
    fn gradient(
        input: &Tensor,
        spacing: Option<Spacing<'_>>,
        dim: Option<Dims>,
        edge_order: usize,
    ) -> PyResult<Vec<Tensor>> {
        let axes = Dims::or_all(dim, input.rank()?);
        let (steps, places) = match spacing {
            None => (vec![1.0; axes.len()], Vec::new()),
            Some(Spacing::Number(step)) => (vec![step; axes.len()], Vec::new()),
            Some(Spacing::Numbers(steps)) => (steps, Vec::new()),
            Some(Spacing::Places(places)) => (Vec::new(), places),
        };
        let got = steps.len() + places.len();
        if got != axes.len() {
            let wanted = axes.len();
            return Err(PyValueError::new_err(format!(
                "spacing has {got} entries; give {wanted}, one per axis"
            )));
        }
        let given: Vec<&Tensor> = core::iter::once(input).chain(places.iter().map(|t| &**t)).collect();
        many(&given, |v| {
            let steps = steps.iter().map(|&step| At::Step(step));
            let places = v[1..].iter().map(|&places| At::Places(places));
            let along = axes.iter().zip(steps.chain(places));
            along.map(|(&axis, spacing)| v[0].gradient_with(spacing, axis, edge_order)).collect()
        })
    }

    /// The integral along an axis, the last by default, by the trapezoid rule, of elements at the places `x` or `dx` apart.
    #[pyfunction]
    #[pyo3(signature = (y, x=None, *, dx=1.0, dim=-1))]
    fn trapezoid(y: &Tensor, x: Option<&Tensor>, dx: f64, dim: i64) -> Answer {
        with_optional(y, &[x], |y, x| y.trapezoid(x[0], dx, dim))
    }

    /// Another name of `trapezoid`.
    #[pyfunction]
    #[pyo3(signature = (y, x=None, *, dx=1.0, dim=-1))]
    fn trapz(y: &Tensor, x: Option<&Tensor>, dx: f64, dim: i64) -> Answer {
        trapezoid(y, x, dx, dim)
    }

    /// The integrals up to each element but the first, as in `trapezoid`.
    #[pyfunction]
    #[pyo3(signature = (y, x=None, *, dx=1.0, dim=-1))]
    fn cumulative_trapezoid(y: &Tensor, x: Option<&Tensor>, dx: f64, dim: i64) -> Answer {
        with_optional(y, &[x], |y, x| y.cumulative_trapezoid(x[0], dx, dim))
    }
}
