//! Functions that make tensors: in Python, methods of a session, or functions of a tensor whose session they use.

use pyo3::prelude::*;

#[pymodule]
pub mod creation {
    use crate::arguments::{Dims, Operand, check_dtype, listed, unsigned};
    use crate::session::Session;
    use crate::tensor::{Answer, Tensor, asked, one};
    use dittograd::device::DType;
    use dittograd::error::Result;
    use dittograd::session::{Session as Native, Var};
    use pyo3::exceptions::PyValueError;
    use pyo3::prelude::*;

    /// Sizes as a list or as separate numbers, of a tensor of numbers.
    fn sizes(first: Dims, more: Vec<i64>, dtype: Option<&str>) -> PyResult<Vec<usize>> {
        check_dtype(dtype)?;
        unsigned("size", &listed("size", first, more)?)
    }

    fn made(session: &Session, f: impl for<'s> FnOnce(&'s Native) -> Result<Var<'s>> + Send) -> Answer {
        session.made(|s| Ok(f(s)?.to_id()))
    }

    /// Zeros of a size: `session.zeros(2, 3)` or `session.zeros([2, 3])`. All tensors of numbers are float32; `dtype` may say so.
    #[pyfunction]
    #[pyo3(signature = (session, size, *more, dtype=None))]
    fn zeros(session: &Session, size: Dims, more: Vec<i64>, dtype: Option<&str>) -> Answer {
        let size = sizes(size, more, dtype)?;
        made(session, |s| s.zeros(&size))
    }

    /// Ones of a size, which is a list or separate numbers.
    #[pyfunction]
    #[pyo3(signature = (session, size, *more, dtype=None))]
    fn ones(session: &Session, size: Dims, more: Vec<i64>, dtype: Option<&str>) -> Answer {
        let size = sizes(size, more, dtype)?;
        made(session, |s| s.ones(&size))
    }

    /// Zeros too, of a size which is a list or separate numbers: there is no memory without values.
    #[pyfunction]
    #[pyo3(signature = (session, size, *more, dtype=None))]
    fn empty(session: &Session, size: Dims, more: Vec<i64>, dtype: Option<&str>) -> Answer {
        zeros(session, size, more, dtype)
    }

    /// A tensor of a size with every element the number `fill_value`.
    #[pyfunction]
    #[pyo3(signature = (session, size, fill_value, *, dtype=None))]
    fn full(session: &Session, size: Dims, fill_value: f64, dtype: Option<&str>) -> Answer {
        let size = sizes(size, Vec::new(), dtype)?;
        made(session, |s| s.full(&size, fill_value))
    }

    /// A tensor without axes that holds the number `s`.
    #[pyfunction]
    #[pyo3(signature = (session, s, *, dtype=None))]
    fn scalar_tensor(session: &Session, s: f64, dtype: Option<&str>) -> Answer {
        check_dtype(dtype)?;
        made(session, |session| session.full(&[], s))
    }

    /// A matrix `(n, m)`, by default `(n, n)`, with ones on the diagonal and zeros elsewhere.
    #[pyfunction]
    #[pyo3(signature = (session, n, m=None, *, dtype=None))]
    fn eye(session: &Session, n: usize, m: Option<usize>, dtype: Option<&str>) -> Answer {
        check_dtype(dtype)?;
        made(session, |s| s.eye_with(n, m.unwrap_or(n)))
    }

    /// The numbers from `start` up to, not including, `end`, in steps, as float32: `session.arange(3)` is 0, 1, 2. One number alone is
    /// the end.
    #[pyfunction]
    #[pyo3(signature = (session, start=0.0, end=None, step=1.0, *, dtype=None))]
    fn arange(session: &Session, start: f64, end: Option<f64>, step: f64, dtype: Option<&str>) -> Answer {
        check_dtype(dtype)?;
        let (start, end) = end.map_or((0.0, start), |end| (start, end));
        made(session, |s| s.arange(start, end, step))
    }

    /// A number, or the only element of a tensor.
    fn number(value: Operand<'_>) -> PyResult<f64> {
        match value {
            Operand::Number(n) => Ok(n),
            Operand::Tensor(t) => asked(&t, |x| match x.meta()?.dtype {
                DType::U32 => x.index_item().map(f64::from),
                DType::F32 => Ok(f64::from(x.item()?)),
            }),
        }
    }

    /// `steps` numbers from `start` to `end`, both included, at equal distances. The ends may be tensors of one element.
    #[pyfunction]
    #[pyo3(signature = (session, start, end, steps, *, dtype=None))]
    fn linspace(
        session: &Session,
        start: Operand<'_>,
        end: Operand<'_>,
        steps: usize,
        dtype: Option<&str>,
    ) -> Answer {
        check_dtype(dtype)?;
        let (start, end) = (number(start)?, number(end)?);
        made(session, |s| s.linspace(start, end, steps))
    }

    /// `steps` powers of `base` whose exponents go from `start` to `end` at equal distances.
    #[pyfunction]
    #[pyo3(signature = (session, start, end, steps, base=10.0, *, dtype=None))]
    fn logspace(
        session: &Session,
        start: Operand<'_>,
        end: Operand<'_>,
        steps: usize,
        base: f64,
        dtype: Option<&str>,
    ) -> Answer {
        check_dtype(dtype)?;
        let (start, end) = (number(start)?, number(end)?);
        made(session, |s| s.logspace(start, end, steps, base))
    }

    /// Rows and columns `(2, count)` of the elements of the lower triangle of a matrix `(row, col)`, up to diagonal `offset` above the
    /// main one.
    #[pyfunction]
    #[pyo3(signature = (session, row, col, offset=0))]
    fn tril_indices(session: &Session, row: usize, col: usize, offset: i64) -> Answer {
        made(session, |s| s.tril_indices(row, col, offset))
    }

    /// Rows and columns `(2, count)` of the elements of the upper triangle of a matrix `(row, col)`, from diagonal `offset` above the
    /// main one.
    #[pyfunction]
    #[pyo3(signature = (session, row, col, offset=0))]
    fn triu_indices(session: &Session, row: usize, col: usize, offset: i64) -> Answer {
        made(session, |s| s.triu_indices(row, col, offset))
    }

    /// Uniform draws from 0 up to 1 of a size, which is a list or separate numbers. The seed of the session decides them.
    #[pyfunction]
    #[pyo3(signature = (session, size, *more, dtype=None))]
    fn rand(session: &Session, size: Dims, more: Vec<i64>, dtype: Option<&str>) -> Answer {
        let size = sizes(size, more, dtype)?;
        made(session, |s| s.uniform(&size))
    }

    /// Draws of the normal distribution with mean 0 and deviation 1, of a size, which is a list or separate numbers. The seed of the
    /// session decides them.
    #[pyfunction]
    #[pyo3(signature = (session, size, *more, dtype=None))]
    fn randn(session: &Session, size: Dims, more: Vec<i64>, dtype: Option<&str>) -> Answer {
        let size = sizes(size, more, dtype)?;
        made(session, |s| s.normal(&size, 0.0, 1.0))
    }

    /// Whether draws of whole numbers are asked for as numbers, not as indices.
    fn as_numbers(dtype: Option<&str>) -> PyResult<bool> {
        match dtype {
            None | Some("uint32") => Ok(false),
            Some(_) => check_dtype(dtype).map(|()| true),
        }
    }

    /// Random whole numbers below `high` and not below `low`, as numbers or as indices.
    fn draw<'s>(s: &'s Native, dims: &[usize], low: u32, high: u32, numbers: bool) -> Result<Var<'s>> {
        let draws = s.randint_range(dims, low, high)?;
        if numbers { draws.to_float() } else { Ok(draws) }
    }

    /// Random indices from `low` up to, not including, `high`: `session.randint(2, 10, [4])`. With two arguments, from 0:
    /// `session.randint(10, [4])`. With `dtype="float32"` they are numbers.
    #[pyfunction]
    #[pyo3(signature = (session, low, high, size=None, *, dtype=None))]
    fn randint(session: &Session, low: u32, high: Dims, size: Option<Dims>, dtype: Option<&str>) -> Answer {
        let numbers = as_numbers(dtype)?;
        let (low, high, size) = match (high, size) {
            (Dims::One(high), Some(size)) => (low, high, size),
            (size @ Dims::Many(_), None) => (0, i64::from(low), size),
            (Dims::One(_), None) | (Dims::Many(_), Some(_)) => {
                return Err(PyValueError::new_err("randint: give high and size, or low, high and size"));
            }
        };
        let high = u32::try_from(high).map_err(|_| PyValueError::new_err(format!("high is {high}")))?;
        let size = unsigned("size", &size.list())?;
        made(session, |s| draw(s, &size, low, high, numbers))
    }

    /// A random order of the indices below `n`.
    #[pyfunction]
    fn randperm(session: &Session, n: usize) -> Answer {
        made(session, |s| s.permutation(n))
    }

    /// Draws of the normal distribution, each with its own mean and deviation: at least one of them is a tensor, and `std` is by
    /// default 1. `session.normal` takes two numbers and a size.
    #[pyfunction]
    #[pyo3(signature = (mean, std=Operand::Number(1.0)))]
    fn normal(mean: Operand<'_>, std: Operand<'_>) -> Answer {
        match (mean, std) {
            (Operand::Tensor(mean), Operand::Tensor(std)) => one(&[&mean, &std], |v| v[0].normal(v[1])),
            (Operand::Tensor(mean), Operand::Number(std)) => {
                one(&[&mean], |v| v[0].normal(v[0].session().scalar(std)?))
            }
            (Operand::Number(mean), Operand::Tensor(std)) => {
                one(&[&std], |v| v[0].session().scalar(mean)?.normal(v[0]))
            }
            (Operand::Number(_), Operand::Number(_)) => Err(PyValueError::new_err(
                "normal of two numbers has no shape; use session.normal(mean, std, size)",
            )),
        }
    }

    /// As `session.normal`: draws of the normal distribution with one mean and deviation, of a size.
    #[pyfunction]
    #[pyo3(name = "normal_of_size", signature = (session, mean, std, size, *, dtype=None))]
    fn normal_of_size(session: &Session, mean: f64, std: f64, size: Dims, dtype: Option<&str>) -> Answer {
        let size = sizes(size, Vec::new(), dtype)?;
        made(session, |s| s.normal(&size, mean, std))
    }

    /// 1 with the probability that the element is, or for all elements `p`, and 0 otherwise.
    #[pyfunction]
    #[pyo3(signature = (input, p=None))]
    fn bernoulli(input: &Tensor, p: Option<f64>) -> Answer {
        one(&[input], |v| match p {
            Some(p) => v[0].session().bernoulli(v[0].shape()?.dims(), p),
            None => v[0].bernoulli(),
        })
    }

    /// `num_samples` indices of the last axis, drawn with probabilities proportional to its elements; without `replacement` each at
    /// most once.
    #[pyfunction]
    #[pyo3(signature = (input, num_samples, replacement=false))]
    fn multinomial(input: &Tensor, num_samples: usize, replacement: bool) -> Answer {
        one(&[input], |v| v[0].multinomial(num_samples, replacement))
    }

    /// Zeros in the shape of a tensor.
    #[pyfunction]
    #[pyo3(signature = (input, *, dtype=None))]
    fn zeros_like(input: &Tensor, dtype: Option<&str>) -> Answer {
        full_like(input, 0.0, dtype)
    }

    /// Ones in the shape of a tensor.
    #[pyfunction]
    #[pyo3(signature = (input, *, dtype=None))]
    fn ones_like(input: &Tensor, dtype: Option<&str>) -> Answer {
        full_like(input, 1.0, dtype)
    }

    /// Zeros too, in the shape of a tensor: there is no memory without values.
    #[pyfunction]
    #[pyo3(signature = (input, *, dtype=None))]
    fn empty_like(input: &Tensor, dtype: Option<&str>) -> Answer {
        full_like(input, 0.0, dtype)
    }

    /// A tensor of the shape of another with every element the number `fill_value`.
    #[pyfunction]
    #[pyo3(signature = (input, fill_value, *, dtype=None))]
    fn full_like(input: &Tensor, fill_value: f64, dtype: Option<&str>) -> Answer {
        check_dtype(dtype)?;
        one(&[input], |v| v[0].full_like(fill_value))
    }

    /// Uniform draws from 0 to 1, in the shape of a tensor.
    #[pyfunction]
    #[pyo3(signature = (input, *, dtype=None))]
    fn rand_like(input: &Tensor, dtype: Option<&str>) -> Answer {
        check_dtype(dtype)?;
        one(&[input], |v| v[0].session().uniform(v[0].shape()?.dims()))
    }

    /// Normal draws with mean 0 and deviation 1, in the shape of a tensor.
    #[pyfunction]
    #[pyo3(signature = (input, *, dtype=None))]
    fn randn_like(input: &Tensor, dtype: Option<&str>) -> Answer {
        check_dtype(dtype)?;
        one(&[input], |v| v[0].session().normal(v[0].shape()?.dims(), 0.0, 1.0))
    }

    /// Random indices from `low`, 0 if one number is given, up to, not including, `high`, in the shape of a tensor.
    #[pyfunction]
    #[pyo3(signature = (input, low, high=None, *, dtype=None))]
    fn randint_like(input: &Tensor, low: u32, high: Option<u32>, dtype: Option<&str>) -> Answer {
        let numbers = as_numbers(dtype)?;
        let (low, high) = high.map_or((0, low), |high| (low, high));
        one(&[input], |v| draw(v[0].session(), v[0].shape()?.dims(), low, high, numbers))
    }

    /// Zeros of a size, a list or separate numbers, in the session of a tensor.
    #[pyfunction]
    #[pyo3(signature = (input, size, *more, dtype=None))]
    fn new_zeros(input: &Tensor, size: Dims, more: Vec<i64>, dtype: Option<&str>) -> Answer {
        let size = sizes(size, more, dtype)?;
        one(&[input], |v| v[0].session().zeros(&size))
    }

    /// Ones of a size, a list or separate numbers, in the session of a tensor.
    #[pyfunction]
    #[pyo3(signature = (input, size, *more, dtype=None))]
    fn new_ones(input: &Tensor, size: Dims, more: Vec<i64>, dtype: Option<&str>) -> Answer {
        let size = sizes(size, more, dtype)?;
        one(&[input], |v| v[0].session().ones(&size))
    }

    /// Zeros too, of a size, in the session of a tensor: there is no memory without values.
    #[pyfunction]
    #[pyo3(signature = (input, size, *more, dtype=None))]
    fn new_empty(input: &Tensor, size: Dims, more: Vec<i64>, dtype: Option<&str>) -> Answer {
        new_zeros(input, size, more, dtype)
    }

    /// A tensor of a size with every element the number `fill_value`, in the session of a tensor.
    #[pyfunction]
    #[pyo3(signature = (input, size, fill_value, *, dtype=None))]
    fn new_full(input: &Tensor, size: Dims, fill_value: f64, dtype: Option<&str>) -> Answer {
        let size = sizes(size, Vec::new(), dtype)?;
        one(&[input], |v| v[0].session().full(&size, fill_value))
    }
}
