//! Products of vectors and matrices, and what `torch` itself has of linear algebra.

use crate::tensor::Tensor;
use pyo3::prelude::*;

/// The axes that `tensordot` sums over: how many, or which of both tensors.
#[derive(FromPyObject)]
pub enum Summed {
    Count(usize),
    Lists([Vec<i64>; 2]),
}

/// Tensors as arguments, or as one list.
#[derive(FromPyObject)]
pub enum Tensors {
    Arguments(Vec<Py<Tensor>>),
    List([Vec<Py<Tensor>>; 1]),
}

impl Tensors {
    pub fn all(&self) -> Vec<&Tensor> {
        match self {
            Tensors::Arguments(all) | Tensors::List([all]) => all.iter().map(Py::get).collect(),
        }
    }
}

#[pymodule]
pub mod products {
    use super::{Summed, Tensors};
    use crate::tensor::{Answer, Tensor, many, one, two};
    use pyo3::exceptions::PyValueError;
    use pyo3::prelude::*;

    /// Refuses a tensor that has not `rank` axes.
    fn of_rank(function: &str, tensor: &Tensor, rank: usize) -> PyResult<()> {
        let dims = tensor.dims()?;
        if dims.len() == rank {
            return Ok(());
        }
        Err(PyValueError::new_err(format!(
            "{function}: a tensor has shape {dims:?}; give {rank} axes, or use matmul"
        )))
    }

    /// The matrix product of the last two axes: `(…, n, k)` by `(…, k, m)` makes `(…, n, m)`. Leading axes are batches and broadcast; a
    /// vector is a row on the left and a column on the right. Also `a @ b`.
    #[pyfunction]
    fn matmul(input: &Tensor, other: &Tensor) -> Answer {
        one(&[input, other], |v| v[0].matmul(v[1]))
    }

    /// The product of two matrices, `(n, k)` by `(k, m)`.
    #[pyfunction]
    fn mm(input: &Tensor, mat2: &Tensor) -> Answer {
        of_rank("mm", input, 2)?;
        of_rank("mm", mat2, 2)?;
        one(&[input, mat2], |v| v[0].matmul(v[1]))
    }

    /// The products of two batches of matrices, `(B, M, K)` by `(B, K, N)`.
    #[pyfunction]
    fn bmm(input: &Tensor, mat2: &Tensor) -> Answer {
        one(&[input, mat2], |v| v[0].bmm(v[1]))
    }

    /// The product of a matrix and a vector.
    #[pyfunction]
    fn mv(input: &Tensor, vec: &Tensor) -> Answer {
        one(&[input, vec], |v| v[0].mv(v[1]))
    }

    /// The dot product of two vectors.
    #[pyfunction]
    fn dot(input: &Tensor, tensor: &Tensor) -> Answer {
        one(&[input, tensor], |v| v[0].dot(v[1]))
    }

    /// The dot product of two vectors; of real numbers the same as `dot`.
    #[pyfunction]
    fn vdot(input: &Tensor, other: &Tensor) -> Answer {
        one(&[input, other], |v| v[0].dot(v[1]))
    }

    /// The sums of products along the last axes of both tensors. With a scalar, the product.
    #[pyfunction]
    fn inner(input: &Tensor, other: &Tensor) -> Answer {
        one(&[input, other], |v| v[0].inner(v[1]))
    }

    /// All products of an element of one vector with one of the other.
    #[pyfunction]
    fn outer(input: &Tensor, vec2: &Tensor) -> Answer {
        one(&[input, vec2], |v| v[0].outer(v[1]))
    }

    /// The same as `outer`.
    #[pyfunction]
    fn ger(input: &Tensor, vec2: &Tensor) -> Answer {
        outer(input, vec2)
    }

    /// `beta · input + alpha · (mat1 @ mat2)`. With `beta` 0, `input` is not read.
    #[pyfunction]
    #[pyo3(signature = (input, mat1, mat2, *, beta=1.0, alpha=1.0))]
    fn addmm(input: &Tensor, mat1: &Tensor, mat2: &Tensor, beta: f64, alpha: f64) -> Answer {
        one(&[input, mat1, mat2], |v| v[0].addmm(v[1], v[2], beta, alpha))
    }

    /// `beta · input + alpha · (mat @ vec)`. With `beta` 0, `input` is not read.
    #[pyfunction]
    #[pyo3(signature = (input, mat, vec, *, beta=1.0, alpha=1.0))]
    fn addmv(input: &Tensor, mat: &Tensor, vec: &Tensor, beta: f64, alpha: f64) -> Answer {
        one(&[input, mat, vec], |v| v[0].addmv(v[1], v[2], beta, alpha))
    }

    /// `beta · input + alpha · (batch1 @ batch2)`, summed over the batch. With `beta` 0, `input` is not read.
    #[pyfunction]
    #[pyo3(signature = (input, batch1, batch2, *, beta=1.0, alpha=1.0))]
    fn addbmm(input: &Tensor, batch1: &Tensor, batch2: &Tensor, beta: f64, alpha: f64) -> Answer {
        one(&[input, batch1, batch2], |v| v[0].addbmm(v[1], v[2], beta, alpha))
    }

    /// `beta · input + alpha · (batch1 @ batch2)` for each matrix of the batch. With `beta` 0, `input` is not read.
    #[pyfunction]
    #[pyo3(signature = (input, batch1, batch2, *, beta=1.0, alpha=1.0))]
    fn baddbmm(input: &Tensor, batch1: &Tensor, batch2: &Tensor, beta: f64, alpha: f64) -> Answer {
        one(&[input, batch1, batch2], |v| v[0].baddbmm(v[1], v[2], beta, alpha))
    }

    /// `beta · input + alpha · outer(vec1, vec2)`. With `beta` 0, `input` is not read.
    #[pyfunction]
    #[pyo3(signature = (input, vec1, vec2, *, beta=1.0, alpha=1.0))]
    fn addr(input: &Tensor, vec1: &Tensor, vec2: &Tensor, beta: f64, alpha: f64) -> Answer {
        one(&[input, vec1, vec2], |v| v[0].addr(v[1], v[2], beta, alpha))
    }

    /// Einstein summation, such as `einsum("bij,bjk->bik", a, b)`: letters that are not after the arrow are summed over. The tensors
    /// may be one list. Without an arrow the result has the letters that occur once, in the order of the alphabet.
    #[pyfunction]
    #[pyo3(signature = (equation, *operands))]
    fn einsum(equation: &str, operands: Tensors) -> Answer {
        one(&operands.all(), |v| v[0].session().einsum(equation, v))
    }

    /// The sums of products over `dims`: a number, by default 2, of the last axes of `a` with the first of `b`, or two lists of axes,
    /// pair by pair.
    #[pyfunction]
    #[pyo3(signature = (a, b, dims=Summed::Count(2)))]
    fn tensordot(a: &Tensor, b: &Tensor, dims: Summed) -> Answer {
        one(&[a, b], |v| match &dims {
            Summed::Count(count) => v[0].tensordot(v[1], *count),
            Summed::Lists([left, right]) => v[0].tensordot_axes(v[1], left, right),
        })
    }

    /// The Kronecker product.
    #[pyfunction]
    fn kron(input: &Tensor, other: &Tensor) -> Answer {
        one(&[input, other], |v| v[0].kron(v[1]))
    }

    /// The `p`-norms of the differences of all rows of two batches of rows. The differences themselves are formed, whatever
    /// `compute_mode` is.
    #[pyfunction]
    #[pyo3(signature = (x1, x2, p=2.0, compute_mode=None))]
    fn cdist(x1: &Tensor, x2: &Tensor, p: f64, compute_mode: Option<&str>) -> Answer {
        match compute_mode {
            None
            | Some(
                "use_mm_for_euclid_dist_if_necessary"
                | "use_mm_for_euclid_dist"
                | "donot_use_mm_for_euclid_dist",
            ) => one(&[x1, x2], |v| v[0].cdist(v[1], p)),
            Some(other) => {
                Err(PyValueError::new_err(format!("cdist: compute_mode {other:?} is unknown; leave it out")))
            }
        }
    }

    /// The cross product of vectors of three elements along an axis: without `dim` along the first that has three.
    #[pyfunction]
    #[pyo3(signature = (input, other, dim=None))]
    fn cross(input: &Tensor, other: &Tensor, dim: Option<i64>) -> Answer {
        let first = input.dims()?.iter().position(|&d| d == 3).map(|axis| axis as i64);
        let Some(dim) = dim.or(first) else {
            return Err(PyValueError::new_err(format!(
                "cross: no axis of {:?} has 3 elements",
                input.dims()?
            )));
        };
        one(&[input, other], |v| v[0].cross(v[1], dim))
    }

    /// The product of several matrices, in the order with the fewest operations.
    #[pyfunction]
    #[pyo3(signature = (*matrices))]
    fn chain_matmul(matrices: Vec<Py<Tensor>>) -> Answer {
        one(&matrices.iter().map(Py::get).collect::<Vec<_>>(), |v| v[0].session().multi_dot(v))
    }

    /// The powers of the elements of a vector as the columns of a matrix, the highest first.
    #[pyfunction]
    #[pyo3(signature = (x, N=None, increasing=false))]
    #[allow(non_snake_case)]
    fn vander(x: &Tensor, N: Option<usize>, increasing: bool) -> Answer {
        let columns = N.unwrap_or(x.dims()?.iter().product());
        one(&[x], |v| v[0].session().vander(v[0], columns, increasing))
    }

    /// The determinant of square matrices.
    #[pyfunction]
    fn det(input: &Tensor) -> Answer {
        one(&[input], |v| v[0].det())
    }

    /// The logarithm of the determinant: NaN where that is negative, minus infinity where it is 0.
    #[pyfunction]
    fn logdet(input: &Tensor) -> Answer {
        one(&[input], |v| v[0].logdet())
    }

    /// The sign of the determinant, and the logarithm of its size.
    #[pyfunction]
    fn slogdet(input: &Tensor) -> PyResult<(Tensor, Tensor)> {
        two(&[input], |v| v[0].slogdet())
    }

    /// The inverse of square matrices. A singular matrix gives infinities or NaN.
    #[pyfunction]
    fn inverse(input: &Tensor) -> Answer {
        one(&[input], |v| v[0].inverse())
    }

    /// The `n`-th power of square matrices; a negative one is that of the inverse.
    #[pyfunction]
    fn matrix_power(input: &Tensor, n: i32) -> Answer {
        one(&[input], |v| v[0].matrix_power(n))
    }

    /// The Cholesky factor of symmetric positive definite matrices. Others give NaN.
    #[pyfunction]
    #[pyo3(signature = (input, upper=false))]
    fn cholesky(input: &Tensor, upper: bool) -> Answer {
        one(&[input], |v| v[0].cholesky(upper))
    }

    /// The inverse of symmetric positive definite matrices, given their Cholesky factors.
    #[pyfunction]
    #[pyo3(signature = (input, upper=false))]
    fn cholesky_inverse(input: &Tensor, upper: bool) -> Answer {
        one(&[input], |v| v[0].cholesky_inverse(upper))
    }

    /// The solution `X` of `A X = input`, given the Cholesky factor `L` of `A`.
    #[pyfunction]
    #[pyo3(signature = (input, L, upper=false))]
    #[allow(non_snake_case)]
    fn cholesky_solve(input: &Tensor, L: &Tensor, upper: bool) -> Answer {
        one(&[input, L], |v| v[0].cholesky_solve(v[1], upper))
    }

    /// The solution `X` of `A X = input` for a triangular matrix `A`, or of `Aᵀ X = input` with `transpose`; and `A`.
    #[pyfunction]
    #[pyo3(signature = (input, A, upper=true, transpose=false, unitriangular=false))]
    #[allow(non_snake_case)]
    fn triangular_solve(
        input: &Tensor,
        A: &Tensor,
        upper: bool,
        transpose: bool,
        unitriangular: bool,
    ) -> PyResult<(Tensor, Tensor)> {
        two(&[input, A], |v| {
            let a = if transpose { v[1].transpose()? } else { v[1] };
            Ok((a.solve_triangular(v[0], upper != transpose, true, unitriangular)?, v[1]))
        })
    }

    /// The factors of `linalg.lu_factor` apart: `P`, `L` and `U`.
    #[pyfunction]
    #[allow(non_snake_case)]
    fn lu_unpack(LU_data: &Tensor, LU_pivots: &Tensor) -> PyResult<Vec<Tensor>> {
        many(&[LU_data, LU_pivots], |v| Ok(v[0].lu_unpack(v[1])?.to_vec()))
    }

    /// The solution of `A X = b` by the results of `linalg.lu_factor`.
    #[pyfunction]
    #[allow(non_snake_case)]
    fn lu_solve(b: &Tensor, LU_data: &Tensor, LU_pivots: &Tensor) -> Answer {
        one(&[LU_data, LU_pivots, b], |v| v[2].lu_solve(v[0], v[1], true, false))
    }

    /// A product of reflections, or its transpose, times `other`, or `other` times it if not `left`.
    #[pyfunction]
    #[pyo3(signature = (input, tau, other, left=true, transpose=false))]
    fn ormqr(input: &Tensor, tau: &Tensor, other: &Tensor, left: bool, transpose: bool) -> Answer {
        one(&[input, tau, other], |v| v[0].ormqr(v[1], v[2], left, transpose))
    }

    /// `R` on and above the diagonal, the vectors of the reflections below it, and their factors.
    #[pyfunction]
    fn geqrf(input: &Tensor) -> PyResult<(Tensor, Tensor)> {
        two(&[input], |v| v[0].geqrf())
    }

    /// `Q` and `R` of `linalg.qr`; square `Q` unless `some`.
    #[pyfunction]
    #[pyo3(signature = (input, some=true))]
    fn qr(input: &Tensor, some: bool) -> PyResult<(Tensor, Tensor)> {
        crate::functions::linalg::linalg::qr(input, if some { "reduced" } else { "complete" })
    }

    /// The exponential of square matrices.
    #[pyfunction]
    fn matrix_exp(input: &Tensor) -> Answer {
        one(&[input], |v| v[0].matrix_exp())
    }
}
