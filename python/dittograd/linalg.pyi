# Written by stubs.py.

from collections.abc import Callable, Sequence
from typing import Literal, overload

from dittograd._native import Tensor

def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """The Cholesky factor `L` of symmetric positive definite matrices `L Lᵀ`, or with `upper` its transpose. Others give NaN, where
    PyTorch raises.
    """
def cholesky_ex(A: Tensor, *, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """The Cholesky factor, and 0 or the order of the first leading minor that is not positive. Nothing raises: `check_errors` must be
    false.
    """
def cond(A: Tensor, p: float | str | None = None) -> Tensor:
    """The norm of square matrices times that of their inverses. `p` is `"fro"`, 1, -1, inf or -inf."""
def cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The cross product of vectors of three elements along an axis, the last by default."""
def det(A: Tensor) -> Tensor:
    """The determinant of square matrices."""
def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The diagonal of two axes, by default the last two, as the last axis."""
def householder_product(A: Tensor, tau: Tensor) -> Tensor:
    """The first columns of a product of reflections: vectors below the diagonal of `A`, with factors `tau`."""
def inv(A: Tensor) -> Tensor:
    """The inverse of square matrices. A singular matrix gives infinities or NaN, where PyTorch raises."""
def inv_ex(A: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """The inverse, and 0 or which pivot is the first that is 0. Nothing raises: `check_errors` must be false."""
def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> Tensor:
    """The solution `X` of `A X = B` with the least squares, for matrices of full rank."""
def lu(A: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """`P`, `L` and `U` with `A = P L U`, by partial pivoting."""
def lu_factor(A: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor]:
    """The factors of `lu` in one matrix, and the rows of `A` in their order, from 0 (PyTorch has the exchanges instead)."""
def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """The results of `lu_factor`, and 0 or which pivot is the first that is 0. Nothing raises: `check_errors` must be false."""
def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    """The solution of `A X = B` by the results of `lu_factor`; of `X A = B` if not `left`, of the transpose of `A` with `adjoint`."""
def matmul(input: Tensor, other: Tensor) -> Tensor:
    """The matrix product of the last two axes."""
def matrix_exp(A: Tensor) -> Tensor:
    """The exponential of square matrices."""
def matrix_norm(
    A: Tensor,
    ord: float | str = "fro",
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: str | None = None,
) -> Tensor:
    """A norm of matrices: "fro", the default, or the largest sum of a column (1) or of a row (inf), or the smallest (-1, -inf). `dim`
    are the axes of the matrices, by default the last two.
    """
def matrix_power(A: Tensor, n: int) -> Tensor:
    """The `n`-th power of square matrices; a negative one is that of the inverse."""
def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of two or more matrices, in the order with the fewest operations. The first and the last may be vectors."""
def norm(
    A: Tensor,
    ord: float | str | None = None,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: str | None = None,
) -> Tensor:
    """A norm of vectors or matrices. Without `ord` it is the root of the sum of squares over `dim`, or over all elements."""
def qr(A: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """`Q` and `R` with `A = Q R`. `mode` is `"reduced"`, `"complete"`, or `"r"`, where `Q` is empty."""
def slogdet(A: Tensor) -> tuple[Tensor, Tensor]:
    """The sign of the determinant, and the logarithm of its size: 0 and minus infinity for a singular matrix."""
def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """The solution `X` of `A X = B`, or of `X A = B` if not `left`, for square matrices `A`. `B` may be one vector. A singular matrix
    gives infinities or NaN, where PyTorch raises.
    """
def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """The solution of `solve`, and 0 or which pivot is the first that is 0. Nothing raises: `check_errors` must be false."""
def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """The solution of `A X = B` for a triangular matrix `A`, or of `X A = B` if not `left`."""
def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse of a tensor whose first `ind` axes are the rows of a square matrix, and the others its columns."""
def tensorsolve(A: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """The solution `X` of `tensordot(A, X, X.ndim) = B`. The axes `dims` of `A` are moved to its end first."""
def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """The powers 0 to `N - 1` of each element, along a new last axis. `N` is the size of the last axis if it is not given."""
def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The dot products along an axis, the last by default; other axes broadcast."""
def vector_norm(
    x: Tensor,
    ord: float = 2.0,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: str | None = None,
) -> Tensor:
    """Norms of vectors over some axes: `ord` is any number or an infinity."""
