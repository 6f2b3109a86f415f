//! Functions of `torch.linalg`.

use crate::arguments::check_dtype;
use crate::tensor::{Answer, Tensor, one};
use dittograd::session::MatrixNorm;
use pyo3::exceptions::{PyNotImplementedError, PyValueError};
use pyo3::prelude::*;

/// Which norm: a number, or a name.
#[derive(FromPyObject)]
pub enum Order {
    Number(f64),
    Name(String),
}

/// Refuses a norm that is not here.
pub fn no_norm(function: &str, name: &str) -> PyErr {
    match name {
        "nuc" | "2" | "-2" => PyNotImplementedError::new_err(format!(
            "{function}: order {name} needs singular values, which are not implemented; use \"fro\", 1 or inf"
        )),
        _ => PyValueError::new_err(format!("{function}: order {name:?} is unknown; use a number or \"fro\"")),
    }
}

/// The norm of matrices of that order.
pub fn matrix_order(function: &str, ord: &Order) -> PyResult<MatrixNorm> {
    match ord {
        Order::Name(name) if name == "fro" => Ok(MatrixNorm::Frobenius),
        Order::Number(p) if p.abs() == 1.0 => Ok(MatrixNorm::Columns { smallest: *p < 0.0 }),
        Order::Number(p) if p.is_infinite() => Ok(MatrixNorm::Rows { smallest: *p < 0.0 }),
        Order::Number(p) => Err(no_norm(function, &p.to_string())),
        Order::Name(name) => Err(no_norm(function, name)),
    }
}

/// The norm of the matrices in two axes.
pub fn matrix_norm_of(a: &Tensor, ord: &Order, dim: [i64; 2], keepdim: bool, dtype: Option<&str>) -> Answer {
    check_dtype(dtype)?;
    let norm = matrix_order("matrix_norm", ord)?;
    one(&[a], |v| v[0].matrix_norm(norm, dim, keepdim))
}

#[pymodule]
#[allow(non_snake_case)]
pub mod linalg {
    use super::{Order, matrix_norm_of, matrix_order};
    use crate::arguments::Dims;
    use crate::functions::reductions::reductions::vector_norm;
    use crate::tensor::{Answer, Tensor, many, one, two};
    use dittograd::session::QrMode;
    use pyo3::exceptions::{PyNotImplementedError, PyValueError};
    use pyo3::prelude::*;

    /// Refuses factors without row exchanges.
    fn pivoted(function: &str, pivot: bool) -> PyResult<()> {
        if pivot {
            return Ok(());
        }
        Err(PyNotImplementedError::new_err(format!("{function}: pivot=False is not implemented")))
    }

    /// Refuses to raise errors for matrices.
    fn unchecked(function: &str, check_errors: bool) -> PyResult<()> {
        if !check_errors {
            return Ok(());
        }
        Err(PyNotImplementedError::new_err(format!("{function}: check_errors=True; look at the last result")))
    }

    /// The Cholesky factor `L` of symmetric positive definite matrices `L Lᵀ`, or with `upper` its transpose. Others give NaN, where
    /// PyTorch raises.
    #[pyfunction]
    #[pyo3(signature = (A, *, upper=false))]
    fn cholesky(A: &Tensor, upper: bool) -> Answer {
        one(&[A], |v| v[0].cholesky(upper))
    }

    /// The Cholesky factor, and 0 or the order of the first leading minor that is not positive. Nothing raises: `check_errors` must be
    /// false.
    #[pyfunction]
    #[pyo3(signature = (A, *, upper=false, check_errors=false))]
    fn cholesky_ex(A: &Tensor, upper: bool, check_errors: bool) -> PyResult<(Tensor, Tensor)> {
        unchecked("cholesky_ex", check_errors)?;
        two(&[A], |v| v[0].cholesky_ex(upper))
    }

    /// The inverse of square matrices. A singular matrix gives infinities or NaN, where PyTorch raises.
    #[pyfunction]
    fn inv(A: &Tensor) -> Answer {
        one(&[A], |v| v[0].inverse())
    }

    /// The determinant of square matrices.
    #[pyfunction]
    fn det(A: &Tensor) -> Answer {
        one(&[A], |v| v[0].det())
    }

    /// The sign of the determinant, and the logarithm of its size: 0 and minus infinity for a singular matrix.
    #[pyfunction]
    fn slogdet(A: &Tensor) -> PyResult<(Tensor, Tensor)> {
        two(&[A], |v| v[0].slogdet())
    }

    /// The solution `X` of `A X = B`, or of `X A = B` if not `left`, for square matrices `A`. `B` may be one vector. A singular matrix
    /// gives infinities or NaN, where PyTorch raises.
    #[pyfunction]
    #[pyo3(signature = (A, B, *, left=true))]
    fn solve(A: &Tensor, B: &Tensor, left: bool) -> Answer {
        one(&[A, B], |v| {
            if left { v[0].solve(v[1]) } else { v[0].transpose()?.solve(v[1].transpose()?)?.transpose() }
        })
    }

    /// The solution of `A X = B` for a triangular matrix `A`, or of `X A = B` if not `left`.
    #[pyfunction]
    #[pyo3(signature = (A, B, *, upper, left=true, unitriangular=false))]
    fn solve_triangular(A: &Tensor, B: &Tensor, upper: bool, left: bool, unitriangular: bool) -> Answer {
        one(&[A, B], |v| v[0].solve_triangular(v[1], upper, left, unitriangular))
    }

    /// The inverse, and 0 or which pivot is the first that is 0. Nothing raises: `check_errors` must be false.
    #[pyfunction]
    #[pyo3(signature = (A, *, check_errors=false))]
    fn inv_ex(A: &Tensor, check_errors: bool) -> PyResult<(Tensor, Tensor)> {
        unchecked("inv_ex", check_errors)?;
        two(&[A], |v| v[0].inverse_ex())
    }

    /// The solution of `solve`, and 0 or which pivot is the first that is 0. Nothing raises: `check_errors` must be false.
    #[pyfunction]
    #[pyo3(signature = (A, B, *, left=true, check_errors=false))]
    fn solve_ex(A: &Tensor, B: &Tensor, left: bool, check_errors: bool) -> PyResult<(Tensor, Tensor)> {
        unchecked("solve_ex", check_errors)?;
        two(&[A, B], |v| {
            if left {
                return v[0].solve_ex(v[1]);
            }
            let (x, info) = v[0].transpose()?.solve_ex(v[1].transpose()?)?;
            Ok((x.transpose()?, info))
        })
    }

    /// `P`, `L` and `U` with `A = P L U`, by partial pivoting.
    #[pyfunction]
    #[pyo3(signature = (A, *, pivot=true))]
    fn lu(A: &Tensor, pivot: bool) -> PyResult<(Tensor, Tensor, Tensor)> {
        pivoted("lu", pivot)?;
        three(many(&[A], |v| Ok(v[0].lu()?.to_vec()))?)
    }

    /// The factors of `lu` in one matrix, and the rows of `A` in their order, from 0 (PyTorch has the exchanges instead).
    #[pyfunction]
    #[pyo3(signature = (A, *, pivot=true))]
    fn lu_factor(A: &Tensor, pivot: bool) -> PyResult<(Tensor, Tensor)> {
        pivoted("lu_factor", pivot)?;
        two(&[A], |v| v[0].lu_factor())
    }

    /// The results of `lu_factor`, and 0 or which pivot is the first that is 0. Nothing raises: `check_errors` must be false.
    #[pyfunction]
    #[pyo3(signature = (A, *, pivot=true, check_errors=false))]
    fn lu_factor_ex(A: &Tensor, pivot: bool, check_errors: bool) -> PyResult<(Tensor, Tensor, Tensor)> {
        pivoted("lu_factor_ex", pivot)?;
        unchecked("lu_factor_ex", check_errors)?;
        three(many(&[A], |v| {
            let (packed, rows, info) = v[0].lu_factor_ex()?;
            Ok(vec![packed, rows, info])
        })?)
    }

    /// The solution of `A X = B` by the results of `lu_factor`; of `X A = B` if not `left`, of the transpose of `A` with `adjoint`.
    #[pyfunction]
    #[pyo3(signature = (LU, pivots, B, *, left=true, adjoint=false))]
    fn lu_solve(LU: &Tensor, pivots: &Tensor, B: &Tensor, left: bool, adjoint: bool) -> Answer {
        one(&[LU, pivots, B], |v| v[2].lu_solve(v[0], v[1], left, adjoint))
    }

    /// Three of a list of three.
    fn three(all: Vec<Tensor>) -> PyResult<(Tensor, Tensor, Tensor)> {
        match <[Tensor; 3]>::try_from(all) {
            Ok([a, b, c]) => Ok((a, b, c)),
            Err(all) => Err(PyValueError::new_err(format!("{} results instead of 3", all.len()))),
        }
    }

    /// `Q` and `R` with `A = Q R`. `mode` is `"reduced"`, `"complete"`, or `"r"`, where `Q` is empty.
    #[pyfunction]
    #[pyo3(signature = (A, mode="reduced"))]
    pub fn qr(A: &Tensor, mode: &str) -> PyResult<(Tensor, Tensor)> {
        match mode {
            "reduced" => two(&[A], |v| v[0].qr(QrMode::Reduced)),
            "complete" => two(&[A], |v| v[0].qr(QrMode::Complete)),
            "r" => two(&[A], |v| Ok((v[0].session().zeros(&[0])?, v[0].qr(QrMode::Reduced)?.1))),
            _ => Err(PyValueError::new_err(format!(
                "qr: mode {mode:?} is unknown; use \"reduced\", \"complete\" or \"r\""
            ))),
        }
    }

    /// The solution `X` of `A X = B` with the least squares, for matrices of full rank.
    #[pyfunction]
    #[pyo3(signature = (A, B, rcond=None, *, driver=None))]
    fn lstsq(A: &Tensor, B: &Tensor, rcond: Option<f64>, driver: Option<&str>) -> Answer {
        // Both say how a rank is found; it is full.
        let _ = (rcond, driver);
        one(&[A, B], |v| v[0].lstsq(v[1]))
    }

    /// The first columns of a product of reflections: vectors below the diagonal of `A`, with factors `tau`.
    #[pyfunction]
    fn householder_product(A: &Tensor, tau: &Tensor) -> Answer {
        one(&[A, tau], |v| v[0].householder_product(v[1]))
    }

    /// The exponential of square matrices.
    #[pyfunction]
    fn matrix_exp(A: &Tensor) -> Answer {
        one(&[A], |v| v[0].matrix_exp())
    }

    /// The `n`-th power of square matrices; a negative one is that of the inverse.
    #[pyfunction]
    fn matrix_power(A: &Tensor, n: i32) -> Answer {
        one(&[A], |v| v[0].matrix_power(n))
    }

    /// The product of two or more matrices, in the order with the fewest operations. The first and the last may be vectors.
    #[pyfunction]
    fn multi_dot(tensors: Vec<Py<Tensor>>) -> Answer {
        one(&tensors.iter().map(Py::get).collect::<Vec<_>>(), |v| v[0].session().multi_dot(v))
    }

    /// The matrix product of the last two axes.
    #[pyfunction]
    fn matmul(input: &Tensor, other: &Tensor) -> Answer {
        one(&[input, other], |v| v[0].matmul(v[1]))
    }

    /// The dot products along an axis, the last by default; other axes broadcast.
    #[pyfunction]
    #[pyo3(signature = (x, y, *, dim=-1))]
    fn vecdot(x: &Tensor, y: &Tensor, dim: i64) -> Answer {
        one(&[x, y], |v| v[0].vecdot(v[1], dim))
    }

    /// The cross product of vectors of three elements along an axis, the last by default.
    #[pyfunction]
    #[pyo3(signature = (input, other, *, dim=-1))]
    fn cross(input: &Tensor, other: &Tensor, dim: i64) -> Answer {
        one(&[input, other], |v| v[0].cross(v[1], dim))
    }

    /// The diagonal of two axes, by default the last two, as the last axis.
    #[pyfunction]
    #[pyo3(signature = (A, *, offset=0, dim1=-2, dim2=-1))]
    fn diagonal(A: &Tensor, offset: i64, dim1: i64, dim2: i64) -> Answer {
        one(&[A], |v| v[0].diagonal(offset, dim1, dim2))
    }

    /// The powers 0 to `N - 1` of each element, along a new last axis. `N` is the size of the last axis if it is not given.
    #[pyfunction]
    #[pyo3(signature = (x, *, N=None))]
    fn vander(x: &Tensor, N: Option<usize>) -> Answer {
        let columns = N.or(x.dims()?.last().copied()).unwrap_or(1);
        let as_vector = x.rank()? == 0;
        one(&[x], |v| {
            let x = if as_vector { v[0].reshape(&[1])? } else { v[0] };
            x.session().vander(x, columns, true)
        })
    }

    /// A norm of vectors or matrices. Without `ord` it is the root of the sum of squares over `dim`, or over all elements.
    #[pyfunction]
    #[pyo3(signature = (A, ord=None, dim=None, keepdim=false, *, dtype=None))]
    fn norm(A: &Tensor, ord: Option<Order>, dim: Option<Dims>, keepdim: bool, dtype: Option<&str>) -> Answer {
        let Some(ord) = ord else {
            return vector_norm(A, 2.0, dim, keepdim, dtype);
        };
        let dims = match dim {
            Some(dim) => dim.list(),
            None => (0..A.rank()? as i64).collect(),
        };
        match (&dims[..], ord) {
            (&[axis], Order::Number(p)) => vector_norm(A, p, Some(Dims::One(axis)), keepdim, dtype),
            (&[rows, columns], ord) => matrix_norm_of(A, &ord, [rows, columns], keepdim, dtype),
            _ => Err(PyValueError::new_err(
                "norm: with ord, name one axis for vectors, and a number as ord, or two axes for matrices",
            )),
        }
    }

    /// A norm of matrices: "fro", the default, or the largest sum of a column (1) or of a row (inf), or the smallest (-1, -inf). `dim`
    /// are the axes of the matrices, by default the last two.
    #[pyfunction]
    #[pyo3(signature = (A, ord=Order::Name("fro".into()), dim=[-2, -1], keepdim=false, *, dtype=None))]
    fn matrix_norm(A: &Tensor, ord: Order, dim: [i64; 2], keepdim: bool, dtype: Option<&str>) -> Answer {
        matrix_norm_of(A, &ord, dim, keepdim, dtype)
    }

    /// The norm of square matrices times that of their inverses. `p` is `"fro"`, 1, -1, inf or -inf.
    #[pyfunction]
    #[pyo3(signature = (A, p=None))]
    fn cond(A: &Tensor, p: Option<Order>) -> Answer {
        let norm = matrix_order("cond", &p.unwrap_or(Order::Number(2.0)))?;
        one(&[A], |v| v[0].cond(norm))
    }

    /// The inverse of a tensor whose first `ind` axes are the rows of a square matrix, and the others its columns.
    #[pyfunction]
    #[pyo3(signature = (A, ind=2))]
    fn tensorinv(A: &Tensor, ind: usize) -> Answer {
        one(&[A], |v| v[0].tensorinv(ind))
    }

    /// The solution `X` of `tensordot(A, X, X.ndim) = B`. The axes `dims` of `A` are moved to its end first.
    #[pyfunction]
    #[pyo3(signature = (A, B, dims=None))]
    fn tensorsolve(A: &Tensor, B: &Tensor, dims: Option<Vec<i64>>) -> Answer {
        one(&[A, B], |v| v[0].tensorsolve(v[1], &dims.unwrap_or_default()))
    }
}
