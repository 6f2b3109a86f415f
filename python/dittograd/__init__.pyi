# Written by stubs.py.

from collections.abc import Sequence
from typing import Any, Literal, overload

from . import fft as fft, linalg as linalg, masked as masked, nn as nn, optim as optim, signal as signal, special as special
from ._native import NUMERICS_VERSION as NUMERICS_VERSION, __version__ as __version__
from ._native import Device as Device, Session as Session, Tensor as Tensor, Param as Param, Params as Params, Graph as Graph, Function as Function, TrainStep as TrainStep
from ._results import Extremes, Histogram, Places

def abs(input: Tensor) -> Tensor:
    """Absolute values."""
def absolute(input: Tensor) -> Tensor:
    """Absolute values: another name of `abs`."""
def acos(input: Tensor) -> Tensor:
    """The arc cosine; NaN outside of -1 to 1."""
def acosh(input: Tensor) -> Tensor:
    """The inverse hyperbolic cosine; NaN below 1."""
def add(input: Tensor | float, other: Tensor | float, *, alpha: float = 1.0) -> Tensor:
    """`input + alpha * other`."""
def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """`beta · input + alpha · (batch1 @ batch2)`, summed over the batch. With `beta` 0, `input` is not read."""
def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1.0) -> Tensor:
    """`input + value * tensor1 / tensor2`."""
def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1.0) -> Tensor:
    """`input + value * tensor1 * tensor2`."""
def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """`beta · input + alpha · (mat1 @ mat2)`. With `beta` 0, `input` is not read."""
def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """`beta · input + alpha · (mat @ vec)`. With `beta` 0, `input` is not read."""
def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """`beta · input + alpha · outer(vec1, vec2)`. With `beta` 0, `input` is not read."""
def alias_copy(input: Tensor) -> Tensor:
    """A copy in memory of its own."""
def all(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """1 where all elements over some axes are true, which all numbers but 0 are, else 0. `dim` is an axis or several; without it, all
    of them. With `keepdim` they stay, with one element.
    """
def allclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Whether all elements are near each other, as `isclose` says. Waits for the device."""
def amax(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """The largest elements over some axes, or of all. The gradient goes to the first of several largest elements.

    `dim` is an axis or several; without it, all of them. With `keepdim` they stay, with one element.
    """
def amin(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """The smallest elements over some axes, or of all. The gradient goes to the first of several smallest elements.

    `dim` is an axis or several; without it, all of them. With `keepdim` they stay, with one element.
    """
def aminmax(input: Tensor, *, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Extremes:
    """The smallest and the largest elements over an axis, or of all, as a pair `min`, `max`."""
def angle(input: Tensor) -> Tensor:
    """The angle of real numbers as complex ones: pi where they are negative, else 0."""
def any(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """1 where some element over some axes is true, which all numbers but 0 are, else 0. `dim` is an axis or several; without it, all
    of them. With `keepdim` they stay, with one element.
    """
def arccos(input: Tensor) -> Tensor:
    """Another name of `acos`."""
def arccosh(input: Tensor) -> Tensor:
    """Another name of `acosh`."""
def arcsin(input: Tensor) -> Tensor:
    """Another name of `asin`."""
def arcsinh(input: Tensor) -> Tensor:
    """Another name of `asinh`."""
def arctan(input: Tensor) -> Tensor:
    """Another name of `atan`."""
def arctan2(input: Tensor | float, other: Tensor | float) -> Tensor:
    """Another name of `atan2`."""
def arctanh(input: Tensor) -> Tensor:
    """Another name of `atanh`."""
def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The positions of the largest elements along an axis, as indices; without `dim` that of the largest of all in row-major order.
    With `keepdim` the axis stays, with one element.
    """
def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The positions of the smallest elements along an axis, as indices; without `dim` that of the smallest of all in row-major order.
    With `keepdim` the axis stays, with one element.
    """
def argsort(input: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Tensor:
    """The positions of the elements along an axis, the last by default, in increasing order or `descending`. Equal elements always
    keep their order, whatever `stable` is.
    """
def argwhere(input: Tensor) -> Tensor:
    """The indices of the elements that are not 0, a row for each."""
def as_strided(input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int = 0) -> Tensor:
    """A tensor of these sizes whose element at `i` is element `storage_offset + Σ stride[a] i[a]` of the input as one list."""
def as_strided_copy(input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int = 0) -> Tensor:
    """A tensor of these sizes whose element at `i` is element `storage_offset + Σ stride[a] i[a]` of the input as one list."""
def as_strided_scatter(input: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int = 0) -> Tensor:
    """The tensor with the elements that `as_strided` takes replaced by `src`."""
def asin(input: Tensor) -> Tensor:
    """The arc sine; NaN outside of -1 to 1."""
def asinh(input: Tensor) -> Tensor:
    """The inverse hyperbolic sine."""
def atan(input: Tensor) -> Tensor:
    """The arc tangent."""
def atan2(input: Tensor | float, other: Tensor | float) -> Tensor:
    """The angle of the point with ordinate `input` and abscissa `other`, from -pi to pi."""
def atanh(input: Tensor) -> Tensor:
    """The inverse hyperbolic tangent; NaN outside of -1 to 1."""
def atleast_1d(*tensors: Tensor | Sequence[Tensor]) -> Any:
    """Scalars as vectors; other tensors as they are."""
def atleast_2d(*tensors: Tensor | Sequence[Tensor]) -> Any:
    """Scalars and vectors as rows of a matrix; other tensors as they are."""
def atleast_3d(*tensors: Tensor | Sequence[Tensor]) -> Any:
    """Scalars and vectors as `(1, N, 1)`, matrices as `(M, N, 1)`; other tensors as they are."""
def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """`beta · input + alpha · (batch1 @ batch2)` for each matrix of the batch. With `beta` 0, `input` is not read."""
def bernoulli(input: Tensor, p: float | None = None) -> Tensor:
    """1 with the probability that the element is, or for all elements `p`, and 0 otherwise."""
def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each index is there, or the sums of its weights, as numbers."""
def block_diag(*tensors: Tensor | Sequence[Tensor]) -> Tensor:
    """Matrices along the diagonal of one that is zero elsewhere."""
def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """The products of two batches of matrices, `(B, M, K)` by `(B, K, N)`."""
def broadcast_shapes(*shapes: int | Sequence[int]) -> tuple[int, ...]:
    """The shape that these shapes have together."""
def broadcast_tensors(*tensors: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """The tensors, each expanded to the shape that they have together."""
def broadcast_to(input: Tensor, size: int | Sequence[int]) -> Tensor:
    """The tensor expanded to a shape."""
def bucketize(input: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """The bucket of each element between sorted `boundaries`: with `right` an element that equals one belongs to the bucket after it."""
def cartesian_prod(*tensors: Tensor | Sequence[Tensor]) -> Tensor:
    """All combinations of the elements of vectors, as rows."""
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors joined along an axis; their other sizes must be equal. Vectors without elements are left out."""
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """The `p`-norms of the differences of all rows of two batches of rows. The differences themselves are formed, whatever
    `compute_mode` is.
    """
def ceil(input: Tensor) -> Tensor:
    """Rounds up to whole numbers."""
def celu(input: Tensor, alpha: float = 1.0) -> Tensor:
    """`x` where positive, else `alpha · (e^(x / alpha) - 1)`."""
def chain_matmul(*matrices: Tensor) -> Tensor:
    """The product of several matrices, in the order with the fewest operations."""
def cholesky(input: Tensor, upper: bool = False) -> Tensor:
    """The Cholesky factor of symmetric positive definite matrices. Others give NaN."""
def cholesky_inverse(input: Tensor, upper: bool = False) -> Tensor:
    """The inverse of symmetric positive definite matrices, given their Cholesky factors."""
def cholesky_solve(input: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """The solution `X` of `A X = input`, given the Cholesky factor `L` of `A`."""
def chunk(input: Tensor, chunks: int, dim: int = 0) -> list[Tensor]:
    """An axis cut into at most `chunks` pieces of equal size, as a list; the last one may be shorter."""
def clamp(input: Tensor, min: Tensor | float | None = None, max: Tensor | float | None = None) -> Tensor:
    """The numbers held between `min` and `max`, each a number or a tensor. At least one of them is given."""
def clamp_max(input: Tensor, max: Tensor | float) -> Tensor:
    """The numbers held below `max`, a number or a tensor."""
def clamp_min(input: Tensor, min: Tensor | float) -> Tensor:
    """The numbers held above `min`, a number or a tensor."""
def clip(input: Tensor, min: Tensor | float | None = None, max: Tensor | float | None = None) -> Tensor:
    """Another name of `clamp`."""
def clone(input: Tensor) -> Tensor:
    """The tensor itself: tensors do not change."""
def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Vectors as columns, joined with matrices along the second axis."""
def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All choices of `r` elements of a vector, as rows."""
def complex(real: Tensor, imag: Tensor) -> Tensor:
    """Complex numbers, that is pairs along a new last axis, of their real and imaginary parts."""
def concat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors joined along an axis; their other sizes must be equal. Vectors without elements are left out."""
def concatenate(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors joined along an axis; their other sizes must be equal. Vectors without elements are left out."""
def conj(input: Tensor) -> Tensor:
    """The complex conjugate of real numbers: the same numbers."""
def conj_physical(input: Tensor) -> Tensor:
    """The complex conjugate of real numbers: the same numbers."""
def constant_pad_nd(input: Tensor, pad: Sequence[int], value: float = 0.0) -> Tensor:
    """The last axes padded with a number: two counts for each axis, from the last one back; negative ones crop."""
def contiguous(input: Tensor) -> Tensor:
    """The tensor itself: tensors do not change."""
def copysign(input: Tensor | float, other: Tensor | float) -> Tensor:
    """The magnitude of `input` with the sign of `other`."""
def corrcoef(input: Tensor) -> Tensor:
    """The correlations of the rows of a matrix."""
def cos(input: Tensor) -> Tensor:
    """Cosines of angles in radians."""
def cosh(input: Tensor) -> Tensor:
    """The hyperbolic cosine."""
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-08) -> Tensor:
    """The cosine of the angle between two tensors along an axis; norms below `eps` count as `eps`."""
def count_nonzero(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """How many elements over some axes, or of all, are not 0, as numbers."""
def cov(input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None) -> Tensor:
    """The covariances of the rows of a matrix, each a variable: sums over the observations, the columns, divided by their count less
    `correction`. `fweights` are counts of observations, `aweights` their weights.
    """
def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The cross product of vectors of three elements along an axis: without `dim` along the first that has three."""
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | int | Sequence[int],
    target_lengths: Tensor | int | Sequence[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """CTC loss of log-probabilities `(T, N, C)` against labels `(N, S)`, of which the first `input_lengths` steps and `target_lengths`
    labels count. The gradient is that of this function; PyTorch's assumes that a `log_softmax` comes before.
    """
def cummax(input: Tensor, dim: int) -> Places:
    """The largest elements so far along an axis, and their last positions. The result is a pair `values`, `indices`."""
def cummin(input: Tensor, dim: int) -> Places:
    """The smallest elements so far along an axis, and their last positions. The result is a pair `values`, `indices`."""
def cumprod(input: Tensor, dim: int, *, dtype: str | None = None) -> Tensor:
    """Products of the elements up to each along an axis."""
def cumsum(input: Tensor, dim: int, *, dtype: str | None = None) -> Tensor:
    """Sums of the elements up to each along an axis."""
def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1.0, dim: int = -1) -> Tensor:
    """The integrals up to each element but the first, as in `trapezoid`."""
def deg2rad(input: Tensor) -> Tensor:
    """Degrees as radians."""
def det(input: Tensor) -> Tensor:
    """The determinant of square matrices."""
def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """A vector on a diagonal of a matrix, or a diagonal of a matrix as a vector."""
def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices with the last axis of the input on a diagonal; `dim1` and `dim2` are their axes, by default the last two."""
def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """A matrix with all elements of the input on a diagonal."""
def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A diagonal of two axes, as the last axis."""
def diagonal_copy(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A diagonal of two axes, as the last axis."""
def diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The tensor with a diagonal of two axes replaced by `src`."""
def diff(input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None) -> Tensor:
    """Differences of neighbours along an axis, the last by default, taken `n` times, after `prepend` and `append` are put at its ends.
    With `n` 0 `input` itself.
    """
def digamma(input: Tensor) -> Tensor:
    """The derivative of `lgamma`."""
def dist(input: Tensor, other: Tensor, p: float = 2.0) -> Tensor:
    """The norm of power `p` of the difference of two tensors, of all elements together."""
def div(input: Tensor | float, other: Tensor | float, *, rounding_mode: str | None = None) -> Tensor:
    """The quotient; with `rounding_mode` "trunc" rounded towards zero, with "floor" rounded down."""
def divide(input: Tensor | float, other: Tensor | float, *, rounding_mode: str | None = None) -> Tensor:
    """Another name of `div`."""
def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """The dot product of two vectors."""
def dsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> list[Tensor]:
    """The third axis cut into equal pieces or before given places."""
def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors joined along the third axis."""
def einsum(equation: str, *operands: Tensor | Sequence[Tensor]) -> Tensor:
    """Einstein summation, such as `einsum("bij,bjk->bik", a, b)`: letters that are not after the arrow are summed over. The tensors
    may be one list. Without an arrow the result has the letters that occur once, in the order of the alphabet.
    """
def empty_like(input: Tensor, *, dtype: str | None = None) -> Tensor:
    """Zeros too, in the shape of a tensor: there is no memory without values."""
def eq(input: Tensor | float, other: Tensor | float) -> Tensor:
    """1 where the elements are equal, else 0. Indices compare with indices and whole numbers."""
def equal(input: Tensor, other: Tensor) -> bool:
    """Whether both tensors have one shape and equal elements. Waits for the device."""
def erf(input: Tensor) -> Tensor:
    """The error function."""
def erfc(input: Tensor) -> Tensor:
    """`1 - erf(x)`, accurate where that is small."""
def erfinv(input: Tensor) -> Tensor:
    """The inverse of `erf`."""
def exp(input: Tensor) -> Tensor:
    """`e^x`."""
def exp2(input: Tensor) -> Tensor:
    """`2^x`."""
def expand(input: Tensor, size: int | Sequence[int], *more: int) -> Tensor:
    """Axes of one element, and new ones in front, repeated to these sizes; -1 keeps the size of an axis. The sizes are a list or
    separate numbers.
    """
def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """The tensor expanded to the shape of another."""
def expand_copy(input: Tensor, size: int | Sequence[int], *more: int) -> Tensor:
    """Axes of one element, and new ones in front, repeated to these sizes; -1 keeps the size of an axis. The sizes are a list or
    separate numbers.
    """
def expm1(input: Tensor) -> Tensor:
    """`e^x - 1`, accurate near zero."""
def fill(input: Tensor, value: Tensor | float) -> Tensor:
    """A tensor of the shape of `input` with every element `value`, a number or a tensor of one element."""
def fix(input: Tensor) -> Tensor:
    """Rounds towards zero: another name of `trunc`."""
def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """The axes from `start_dim` to `end_dim`, by default the last, as one."""
def flip(input: Tensor, dims: int | Sequence[int], *more: int) -> Tensor:
    """The order of elements reversed along axes."""
def fliplr(input: Tensor) -> Tensor:
    """The columns in reverse order."""
def flipud(input: Tensor) -> Tensor:
    """The rows in reverse order."""
def float_power(input: Tensor | float, exponent: Tensor | float) -> Tensor:
    """`input` to the power of `exponent`, in float32."""
def floor(input: Tensor) -> Tensor:
    """Rounds down to whole numbers."""
def floor_divide(input: Tensor | float, other: Tensor | float) -> Tensor:
    """The quotient rounded down. It has no gradient."""
def fmax(input: Tensor | float, other: Tensor | float) -> Tensor:
    """The larger of two elements; a number is preferred to NaN."""
def fmin(input: Tensor | float, other: Tensor | float) -> Tensor:
    """The smaller of two elements; a number is preferred to NaN."""
def fmod(input: Tensor | float, other: Tensor | float) -> Tensor:
    """What is left of `input` after division by `other`, with the sign of `input`."""
def frac(input: Tensor) -> Tensor:
    """What is left of a number without its whole part; it has the sign of the number."""
def frexp(input: Tensor) -> tuple[Tensor, Tensor]:
    """Mantissas, of a magnitude from 0.5 up to 1, and exponents of base 2, as numbers."""
def full_like(input: Tensor, fill_value: float, *, dtype: str | None = None) -> Tensor:
    """A tensor of the shape of another with every element the number `fill_value`."""
def gather(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Elements along an axis, each at its own index."""
def ge(input: Tensor | float, other: Tensor | float) -> Tensor:
    """1 where `input >= other`, else 0."""
def geqrf(input: Tensor) -> tuple[Tensor, Tensor]:
    """`R` on and above the diagonal, the vectors of the reflections below it, and their factors."""
def ger(input: Tensor, vec2: Tensor) -> Tensor:
    """The same as `outer`."""
def gradient(
    input: Tensor,
    *,
    spacing: float | Sequence[float] | Sequence[Tensor] | None = None,
    dim: int | Sequence[int] | None = None,
    edge_order: int = 1,
) -> list[Tensor]:
    """The slopes along each axis of `dim`, or along all: a list of tensors.

    spacing: how far elements are apart, a number, or one for each axis, or a tensor of places for each axis
    edge_order: 1 or 2, of the formula at the ends
    """
def greater(input: Tensor | float, other: Tensor | float) -> Tensor:
    """Another name of `gt`."""
def greater_equal(input: Tensor | float, other: Tensor | float) -> Tensor:
    """Another name of `ge`."""
def grid_sampler_2d(input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    """`nn.functional.grid_sample` of images `(N, C, H, W)`, with the numbers of the modes."""
def grid_sampler_3d(input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    """`nn.functional.grid_sample` of images `(N, C, D, H, W)`, with the numbers of the modes."""
def gt(input: Tensor | float, other: Tensor | float) -> Tensor:
    """1 where `input > other`, else 0."""
def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Each number, 0 if its magnitude is at most `lambd`."""
def heaviside(input: Tensor | float, values: Tensor | float) -> Tensor:
    """0 where `input` is negative, 1 where it is positive, `values` where it is zero."""
def histc(input: Tensor, bins: int = 100, min: float = 0.0, max: float = 0.0) -> Tensor:
    """How many elements are in each of `bins` bins of equal width from `min` to `max`, or if both are 0, of the range of the elements."""
def histogram(
    input: Tensor,
    bins: int | Tensor,
    *,
    range: tuple[float, float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Histogram:
    """The counts of elements, or sums of their weights, between edges: `bins` has the edges, or is the number of bins of equal width in
    `range`, which is by default that of the elements. The results are `hist` and `bin_edges`.
    """
def histogramdd(
    input: Tensor,
    bins: int | Sequence[int] | Sequence[Tensor],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """The histogram of points, whose coordinates are the last axis, in a grid: `bins` has the edges along each coordinate, or the number of
    bins of equal width along each, or along all, in `range`. The results are `hist` and a list `bin_edges`.
    """
def hsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> list[Tensor]:
    """The second axis, of a vector its only one, cut into equal pieces or before given places."""
def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors joined along the second axis, vectors along their only one."""
def hypot(input: Tensor | float, other: Tensor | float) -> Tensor:
    """`sqrt(input² + other²)`, without overflow on the way."""
def i0(input: Tensor) -> Tensor:
    """The modified Bessel function of the first kind, of order 0."""
def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1.0) -> Tensor:
    """The tensor with slices added at indices of an axis."""
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """The tensor with slices replaced at indices of an axis; the last one of several wins."""
def index_fill(input: Tensor, dim: int, index: Tensor, value: Tensor | float) -> Tensor:
    """The tensor with a number in the slices at indices of an axis."""
def index_put(input: Tensor, indices: Sequence[Tensor], values: Tensor, accumulate: bool = False) -> Tensor:
    """The tensor with `values` put at indices of its first axes; a mask stands for the indices where it is not 0. The last one of
    several wins, or all are added.
    """
def index_reduce(input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """The tensor with slices reduced into those at indices of an axis."""
def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Slices of an axis at indices."""
def inner(input: Tensor, other: Tensor) -> Tensor:
    """The sums of products along the last axes of both tensors. With a scalar, the product."""
def inverse(input: Tensor) -> Tensor:
    """The inverse of square matrices. A singular matrix gives infinities or NaN."""
def isclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    """1 where two elements are as near as `|input - other| <= atol + rtol |other|`, else 0."""
def isfinite(input: Tensor) -> Tensor:
    """1 where a number is neither infinite nor NaN, else 0."""
def isin(elements: Tensor | float, test_elements: Tensor | float, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """1 where an element of `elements` is one of `test_elements`, else 0; with `invert` the other way round."""
def isinf(input: Tensor) -> Tensor:
    """1 where a number is infinite, else 0."""
def isnan(input: Tensor) -> Tensor:
    """1 where a number is NaN, else 0."""
def isneginf(input: Tensor) -> Tensor:
    """1 where a number is `-inf`, else 0."""
def isposinf(input: Tensor) -> Tensor:
    """1 where a number is `inf`, else 0."""
def isreal(input: Tensor) -> Tensor:
    """1 everywhere: all numbers are real."""
def istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """The inverse of `stft`, with the same window: signals `(…, length)`."""
def kron(input: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product."""
def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Places:
    """The `k`-th smallest element along an axis, the last by default, counted from 1, and where it is. The result is a pair `values`,
    `indices`.
    """
def ldexp(input: Tensor | float, other: Tensor | float) -> Tensor:
    """`input * 2^other`. The exponents may be indices."""
def le(input: Tensor | float, other: Tensor | float) -> Tensor:
    """1 where `input <= other`, else 0."""
def lerp(input: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
    """Linear interpolation, `input + weight * (end - input)`; the weight is a number or a tensor."""
def less(input: Tensor | float, other: Tensor | float) -> Tensor:
    """Another name of `lt`."""
def less_equal(input: Tensor | float, other: Tensor | float) -> Tensor:
    """Another name of `le`."""
def lgamma(input: Tensor) -> Tensor:
    """The logarithm of the magnitude of the gamma function."""
def log(input: Tensor) -> Tensor:
    """The natural logarithm."""
def log10(input: Tensor) -> Tensor:
    """The logarithm to base 10."""
def log1p(input: Tensor) -> Tensor:
    """`ln(1 + x)`, accurate near zero."""
def log2(input: Tensor) -> Tensor:
    """The logarithm to base 2."""
def log_softmax(input: Tensor, dim: int, dtype: str | None = None) -> Tensor:
    """The logarithm of the softmax along the axis `dim`, without overflow."""
def logaddexp(input: Tensor | float, other: Tensor | float) -> Tensor:
    """`ln(e^input + e^other)`, without overflow on the way."""
def logaddexp2(input: Tensor | float, other: Tensor | float) -> Tensor:
    """`log2(2^input + 2^other)`, without overflow on the way."""
def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """`log Σ e^x` of the elements up to each along an axis."""
def logdet(input: Tensor) -> Tensor:
    """The logarithm of the determinant: NaN where that is negative, minus infinity where it is 0."""
def logical_and(input: Tensor | float, other: Tensor | float) -> Tensor:
    """1 where both elements are true, which all numbers but 0 are, else 0."""
def logical_not(input: Tensor) -> Tensor:
    """1 where a number is 0, else 0."""
def logical_or(input: Tensor | float, other: Tensor | float) -> Tensor:
    """1 where at least one element is true, else 0."""
def logical_xor(input: Tensor | float, other: Tensor | float) -> Tensor:
    """1 where exactly one element is true, else 0."""
def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """The inverse of `sigmoid`, `ln(x / (1 - x))`. With `eps`, numbers are first held between `eps` and `1 - eps`."""
def logsumexp(input: Tensor, dim: int | Sequence[int], keepdim: bool = False) -> Tensor:
    """`log Σ e^x` over some axes, without overflow. With `keepdim` they stay, with one element."""
def lt(input: Tensor | float, other: Tensor | float) -> Tensor:
    """1 where `input < other`, else 0."""
def lu_solve(b: Tensor, LU_data: Tensor, LU_pivots: Tensor) -> Tensor:
    """The solution of `A X = b` by the results of `linalg.lu_factor`."""
def lu_unpack(LU_data: Tensor, LU_pivots: Tensor) -> list[Tensor]:
    """The factors of `linalg.lu_factor` apart: `P`, `L` and `U`."""
def masked_fill(input: Tensor, mask: Tensor, value: Tensor | float) -> Tensor:
    """`value` where the mask is not 0, otherwise the input."""
def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The tensor with the elements where the mask is not 0 replaced by the first elements of `source`."""
def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements where the mask is not 0, as a vector."""
def matmul(input: Tensor, other: Tensor) -> Tensor:
    """The matrix product of the last two axes: `(…, n, k)` by `(…, k, m)` makes `(…, n, m)`. Leading axes are batches and broadcast; a
    vector is a row on the left and a column on the right. Also `a @ b`.
    """
def matrix_exp(input: Tensor) -> Tensor:
    """The exponential of square matrices."""
def matrix_power(input: Tensor, n: int) -> Tensor:
    """The `n`-th power of square matrices; a negative one is that of the inverse."""
@overload
def max(input: Tensor, dim: int, keepdim: bool = False) -> Places:
    """The largest element; with `dim`, the largest along that axis and their positions, as a pair `values`, `indices`; with another
    tensor, `dg.max(a, b)`, the larger of each two.

    With `keepdim` the axis stays, with one element. `amax` takes several axes.
    """
@overload
def max(input: Tensor, dim: Tensor | None = None, keepdim: bool = False, *, other: Tensor | None = None) -> Tensor: ...
def max_pool2d_with_indices_backward(
    grad_output: Tensor,
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None,
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """The gradient of `nn.functional.max_pool2d_with_indices` by its input, from the gradient of its values."""
def maximum(input: Tensor | float, other: Tensor | float) -> Tensor:
    """The larger of two elements; NaN if one is."""
def mean(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: str | None = None) -> Tensor:
    """Means over some axes, or of all elements.

    `dim` is an axis or several; without it, all of them. With `keepdim` they stay, with one element. `dtype` may only be "float32".
    """
@overload
def median(input: Tensor, dim: int, keepdim: bool = False) -> Places:
    """The median of all elements, or along an axis with its position, as a pair `values`, `indices`; the lower of two in the middle.
    With `keepdim` the axis stays, with one element.
    """
@overload
def median(input: Tensor, dim: None = None, keepdim: bool = False) -> Tensor: ...
def meshgrid(*tensors: Tensor | Sequence[Tensor], indexing: str = "ij") -> list[Tensor]:
    """Coordinates of the grid of vectors: for each of them a tensor with an axis for each. `indexing="xy"` swaps the first two axes."""
@overload
def min(input: Tensor, dim: int, keepdim: bool = False) -> Places:
    """The smallest element; with `dim`, the smallest along that axis and their positions, as a pair `values`, `indices`; with another
    tensor, `dg.min(a, b)`, the smaller of each two.

    With `keepdim` the axis stays, with one element. `amin` takes several axes.
    """
@overload
def min(input: Tensor, dim: Tensor | None = None, keepdim: bool = False, *, other: Tensor | None = None) -> Tensor: ...
def minimum(input: Tensor | float, other: Tensor | float) -> Tensor:
    """The smaller of two elements; NaN if one is."""
def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """The product of two matrices, `(n, k)` by `(k, m)`."""
def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> Places:
    """The most frequent element along an axis, the last by default, the smallest of several, and its last position. The result is a
    pair `values`, `indices`.
    """
def moments(input: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel of `(N, C, …)`. No gradient flows through them."""
def moveaxis(input: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Axes moved to other places; the others keep their order."""
def movedim(input: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Axes moved to other places; the others keep their order."""
def msort(input: Tensor) -> Tensor:
    """The elements sorted along the first axis."""
def mul(input: Tensor | float, other: Tensor | float) -> Tensor:
    """`input * other`."""
def multinomial(input: Tensor, num_samples: int, replacement: bool = False) -> Tensor:
    """`num_samples` indices of the last axis, drawn with probabilities proportional to its elements; without `replacement` each at
    most once.
    """
def multiply(input: Tensor | float, other: Tensor | float) -> Tensor:
    """`input * other`: another name of `mul`."""
def mv(input: Tensor, vec: Tensor) -> Tensor:
    """The product of a matrix and a vector."""
def mvlgamma(input: Tensor, p: int) -> Tensor:
    """The logarithm of the gamma function of `p` dimensions."""
def nan_to_num(input: Tensor, nan: float | None = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """Numbers in the place of NaN and of infinities: `nan`, `posinf` and `neginf`, or the largest and smallest of all numbers."""
def nanmean(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: str | None = None) -> Tensor:
    """Means of the elements that are not NaN. `dim` is an axis or several; without it, all of them. With `keepdim` they stay, with one
    element.
    """
@overload
def nanmedian(input: Tensor, dim: int, keepdim: bool = False) -> Places:
    """Like `median`, of the elements that are not NaN."""
@overload
def nanmedian(input: Tensor, dim: None = None, keepdim: bool = False) -> Tensor: ...
def nanquantile(
    input: Tensor,
    q: float | Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """Like `quantile`, of the elements that are not NaN."""
def nansum(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: str | None = None) -> Tensor:
    """Sums of the elements that are not NaN. `dim` is an axis or several; without it, all of them. With `keepdim` they stay, with one
    element.
    """
def narrow(input: Tensor, dim: int, start: int | Tensor, length: int) -> Tensor:
    """`length` elements of an axis from `start`."""
def narrow_copy(input: Tensor, dim: int, start: int | Tensor, length: int) -> Tensor:
    """`length` elements of an axis from `start`."""
def native_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm; also the batch's mean and `1 / sqrt(variance + eps)` per channel, without gradients, which are empty without `training`.
    `running_mean` and `running_var` are not changed.
    """
def native_dropout_backward(grad_output: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The gradient of dropout: `grad_output · mask · scale`."""
def native_group_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Group norm of `n` images of `c` channels and `hxw` positions; also the means and `1 / sqrt(variance + eps)` of the groups."""
def native_layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Layer norm; also the means and `1 / sqrt(variance + eps)`."""
def ne(input: Tensor | float, other: Tensor | float) -> Tensor:
    """1 where the elements differ, else 0. Indices compare with indices and whole numbers."""
def neg(input: Tensor) -> Tensor:
    """`-x`."""
def negative(input: Tensor) -> Tensor:
    """`-x`: another name of `neg`."""
def new_empty(input: Tensor, size: int | Sequence[int], *more: int, dtype: str | None = None) -> Tensor:
    """Zeros too, of a size, in the session of a tensor: there is no memory without values."""
def new_full(input: Tensor, size: int | Sequence[int], fill_value: float, *, dtype: str | None = None) -> Tensor:
    """A tensor of a size with every element the number `fill_value`, in the session of a tensor."""
def new_ones(input: Tensor, size: int | Sequence[int], *more: int, dtype: str | None = None) -> Tensor:
    """Ones of a size, a list or separate numbers, in the session of a tensor."""
def new_zeros(input: Tensor, size: int | Sequence[int], *more: int, dtype: str | None = None) -> Tensor:
    """Zeros of a size, a list or separate numbers, in the session of a tensor."""
@overload
def nonzero(input: Tensor, *, as_tuple: Literal[False] = False) -> Tensor:
    """The indices of the elements that are not 0: a row for each, or with `as_tuple` a vector for each axis."""
@overload
def nonzero(input: Tensor, *, as_tuple: Literal[True]) -> list[Tensor]: ...
def nonzero_static(input: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The first `size` rows of `nonzero`; rows that are missing are filled with an index."""
def norm(
    input: Tensor,
    p: float | str = "fro",
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: str | None = None,
) -> Tensor:
    """Norms of vectors over some axes: `p` is any number, an infinity, or "fro", which is 2.

    `dim` is an axis or several; without it, all of them. With `keepdim` they stay, with one element. `linalg.matrix_norm` has the
    norms of matrices.
    """
def normal(mean: Tensor | float, std: Tensor | float = 1.0) -> Tensor:
    """Draws of the normal distribution, each with its own mean and deviation: at least one of them is a tensor, and `std` is by
    default 1. `session.normal` takes two numbers and a size.
    """
def not_equal(input: Tensor | float, other: Tensor | float) -> Tensor:
    """Another name of `ne`."""
def ones_like(input: Tensor, *, dtype: str | None = None) -> Tensor:
    """Ones in the shape of a tensor."""
def ormqr(input: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """A product of reflections, or its transpose, times `other`, or `other` times it if not `left`."""
def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """All products of an element of one vector with one of the other."""
def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-06, keepdim: bool = False) -> Tensor:
    """The `p`-norm of the difference of two tensors along the last axis, after `eps` is added to it."""
def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The `p`-norms of the differences of all pairs of rows of a matrix: of the first row and each later one, then of the second, and so
    on.
    """
def permute(input: Tensor, dims: int | Sequence[int], *more: int) -> Tensor:
    """The axes in another order: axis `i` of the result is axis `dims[i]`."""
def permute_copy(input: Tensor, dims: int | Sequence[int], *more: int) -> Tensor:
    """The axes in another order: axis `i` of the result is axis `dims[i]`."""
def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """Complex numbers, that is pairs along a new last axis, of their magnitudes and angles."""
def polygamma(n: int, input: Tensor) -> Tensor:
    """Derivative number `n` of `digamma`."""
def positive(input: Tensor) -> Tensor:
    """The tensor itself."""
def pow(input: Tensor | float, exponent: Tensor | float) -> Tensor:
    """`input` to the power of `exponent`."""
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """`x` where positive, else `weight · x`, with one weight or one for each channel (axis 1)."""
def prod(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: str | None = None) -> Tensor:
    """Products over some axes, or of all elements. `dim` is an axis or several; without it, all of them. With `keepdim` they stay,
    with one element.
    """
def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """The tensor with the elements of `source` put at indices of the tensor as one list; the last one of several wins, or all are
    added.
    """
def qr(input: Tensor, some: bool = True) -> tuple[Tensor, Tensor]:
    """`Q` and `R` of `linalg.qr`; square `Q` unless `some`."""
def quantile(
    input: Tensor,
    q: float | Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """The quantiles `q`, a number, or a scalar or vector from 0 to 1, along an axis or of all elements. With `keepdim` the axis stays,
    with one element.

    `interpolation` says what is between two elements: "linear", "lower", "higher", "nearest" or "midpoint".
    """
def rad2deg(input: Tensor) -> Tensor:
    """Radians as degrees."""
def rand_like(input: Tensor, *, dtype: str | None = None) -> Tensor:
    """Uniform draws from 0 to 1, in the shape of a tensor."""
def randint_like(input: Tensor, low: int, high: int | None = None, *, dtype: str | None = None) -> Tensor:
    """Random indices from `low`, 0 if one number is given, up to, not including, `high`, in the shape of a tensor."""
def randn_like(input: Tensor, *, dtype: str | None = None) -> Tensor:
    """Normal draws with mean 0 and deviation 1, in the shape of a tensor."""
def ravel(input: Tensor) -> Tensor:
    """All elements as one axis."""
def real(input: Tensor) -> Tensor:
    """The real part of real numbers: the same numbers. Of a complex value, which is pairs, take `x[..., 0]`."""
def reciprocal(input: Tensor) -> Tensor:
    """`1 / x`."""
def relu(input: Tensor) -> Tensor:
    """Each number, or 0 if it is negative."""
def remainder(input: Tensor | float, other: Tensor | float) -> Tensor:
    """What is left of `input` after division by `other`, with the sign of `other`, as Python's `%`."""
def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """The slices along an axis, those whose p-norm is larger than `maxnorm` scaled down to it."""
def repeat(input: Tensor, repeats: int | Sequence[int], *more: int) -> Tensor:
    """The whole tensor repeated along each axis; the counts are a list or separate numbers."""
def repeat_interleave(
    input: Tensor,
    repeats: int | Sequence[int] | Tensor,
    dim: int | None = None,
    *,
    output_size: int | None = None,
) -> Tensor:
    """Each element of an axis repeated; without an axis, of the tensor as one list."""
def reshape(input: Tensor, shape: int | Sequence[int], *more: int) -> Tensor:
    """The same elements in row-major order with another shape, a list or separate numbers; one size may be -1, which stands for what
    is left.
    """
def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    """The same as `view_as`."""
def resolve_conj(input: Tensor) -> Tensor:
    """The tensor itself: no conjugate waits to be computed."""
def resolve_neg(input: Tensor) -> Tensor:
    """The tensor itself: no sign waits to be computed."""
def roll(input: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Tensor:
    """Elements shifted along axes, or as one list if none is given; what is pushed out comes back at the other side."""
def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """The tensor turned by `k` quarter turns in the plane of two axes, by default the first two."""
def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """Rounds to `decimals` decimals, to whole numbers if that is 0; halves to even."""
def row_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors joined along the first axis; vectors count as rows."""
def rrelu(input: Tensor, lower: float = 0.125, upper: float = 0.3333333333333333, training: bool = False) -> Tensor:
    """`x` where positive, else `x` times a slope: while training a random one from `lower` to `upper` for each element, otherwise
    the mean of both.
    """
def rsqrt(input: Tensor) -> Tensor:
    """`1 / sqrt(x)`."""
def rsub(input: Tensor | float, other: Tensor | float, *, alpha: float = 1.0) -> Tensor:
    """`other - alpha * input`."""
def scatter(
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor | float | None = None,
    *,
    value: float | None = None,
    reduce: str | None = None,
) -> Tensor:
    """The tensor with elements replaced along an axis, each at its own index, by those of `src` or by a number; the last one of
    several wins. With `reduce` they are added ("add") or multiplied ("multiply").
    """
def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """The tensor with elements added along an axis, each at its own index."""
def scatter_reduce(input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """The tensor with elements reduced along an axis, each at its own index."""
def searchsorted(
    sorted_sequence: Tensor,
    input: Tensor | float,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Where each element of `input`, a tensor or a number, would be inserted into a sequence that is sorted along its last axis, or
    that `sorter` sorts: before equal elements, or after them with `right` or `side="right"`.
    """
def segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Tensor:
    """Reductions of segments of an axis, given by `lengths`, which fill the axis, or by `offsets`: "sum", "mean", "prod", "max" or "min"."""
def select(input: Tensor, dim: int, index: int) -> Tensor:
    """The slice at an index of an axis, which is dropped."""
def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """The tensor with the slice at an index of an axis replaced by `src`."""
def selu(input: Tensor) -> Tensor:
    """The activation that keeps mean 0 and variance 1: `elu` with fixed constants."""
def sgn(input: Tensor) -> Tensor:
    """-1, 0 or 1 by the sign of real numbers: another name of `sign`."""
def sigmoid(input: Tensor) -> Tensor:
    """`1 / (1 + e^-x)`."""
def sign(input: Tensor) -> Tensor:
    """-1, 0 or 1, by the sign."""
def signbit(input: Tensor) -> Tensor:
    """1 where the sign bit is set, as of -0, else 0."""
def sin(input: Tensor) -> Tensor:
    """Sines of angles in radians."""
def sinc(input: Tensor) -> Tensor:
    """`sin(pi x) / (pi x)`, 1 at zero."""
def sinh(input: Tensor) -> Tensor:
    """The hyperbolic sine."""
def slice(input: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    """Elements of an axis from `start` up to, not including, `end`, one every `step`."""
def slice_scatter(input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    """The tensor with elements of an axis, as `slice` takes them, replaced by `src`."""
def slogdet(input: Tensor) -> tuple[Tensor, Tensor]:
    """The sign of the determinant, and the logarithm of its size."""
def softmax(input: Tensor, dim: int, dtype: str | None = None) -> Tensor:
    """Softmax along the axis `dim`: positive numbers whose sum is 1."""
def sort(input: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Places:
    """The elements along an axis, the last by default, in increasing order or `descending`, and where they were. The result is a pair
    `values`, `indices`.

    Equal elements always keep their order, whatever `stable` is.
    """
def split(input: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0) -> list[Tensor]:
    """An axis cut into pieces of one size, of which the last may be shorter, or of given sizes, as a list."""
def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> list[Tensor]:
    """An axis cut into pieces of given sizes."""
def split_with_sizes_copy(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> list[Tensor]:
    """An axis cut into pieces of given sizes."""
def sqrt(input: Tensor) -> Tensor:
    """The square root; NaN below zero. The slope at zero is 0."""
def square(input: Tensor) -> Tensor:
    """`x * x`."""
def squeeze(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Without the axes of one element: all of them, or those of `dim`, an axis or several."""
def squeeze_copy(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Without the axes of one element: all of them, or those of `dim`, an axis or several."""
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors of one shape joined along a new axis `dim`."""
def std(
    input: Tensor,
    dim: bool | int | Sequence[int] | None = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """Standard deviations over some axes, the square roots of `var`, with the same arguments."""
def std_mean(
    input: Tensor,
    dim: bool | int | Sequence[int] | None = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Standard deviations and means over the same axes."""
def stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
) -> Tensor:
    """The short-time Fourier transform of signals `(…, length)`: `(…, n_fft / 2 + 1, frames)`, complex."""
def sub(input: Tensor | float, other: Tensor | float, *, alpha: float = 1.0) -> Tensor:
    """`input - alpha * other`."""
def subtract(input: Tensor | float, other: Tensor | float, *, alpha: float = 1.0) -> Tensor:
    """Another name of `sub`."""
def sum(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: str | None = None) -> Tensor:
    """Sums over some axes, or of all elements.

    `dim` is an axis or several; without it, all of them. With `keepdim` they stay, with one element. `dtype` may only be "float32".
    """
def sum_to_size(input: Tensor, *size: int | Sequence[int]) -> Tensor:
    """Sums over the axes along which a tensor of the given size would be broadcast to `input`."""
def swapaxes(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two axes swapped."""
def swapdims(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two axes swapped."""
def t(input: Tensor) -> Tensor:
    """A matrix transposed; vectors and scalars as they are."""
def t_copy(input: Tensor) -> Tensor:
    """A matrix transposed; vectors and scalars as they are."""
def take(input: Tensor, index: Tensor) -> Tensor:
    """Elements at indices of the tensor as one list."""
def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """Elements along an axis, each at its own index; the other axes broadcast. Without an axis, of the tensor as one list."""
def tan(input: Tensor) -> Tensor:
    """Tangents of angles in radians."""
def tanh(input: Tensor) -> Tensor:
    """The hyperbolic tangent."""
def tensor_split(input: Tensor, indices_or_sections: int | Sequence[int] | Tensor, dim: int = 0) -> list[Tensor]:
    """An axis cut into a number of pieces, as equal as possible, or before given places."""
def tensordot(a: Tensor, b: Tensor, dims: int | Sequence[Sequence[int]] = 2) -> Tensor:
    """The sums of products over `dims`: a number, by default 2, of the last axes of `a` with the first of `b`, or two lists of axes,
    pair by pair.
    """
def threshold(input: Tensor, threshold: float, value: float) -> Tensor:
    """Each number above `threshold`, `value` in place of the others."""
def tile(input: Tensor, dims: int | Sequence[int], *more: int) -> Tensor:
    """The whole tensor repeated along its last axes, or along all and new ones."""
def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Places:
    """The `k` largest elements along an axis, the last by default, or without `largest` the smallest, and where they are. The result
    is a pair `values`, `indices`.

    They are always sorted, whatever `sorted` is.
    """
def trace(input: Tensor) -> Tensor:
    """The sum of the diagonal of a matrix."""
def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two axes swapped."""
def transpose_copy(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two axes swapped."""
def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1.0, dim: int = -1) -> Tensor:
    """The integral along an axis, the last by default, by the trapezoid rule, of elements at the places `x` or `dx` apart."""
def trapz(y: Tensor, x: Tensor | None = None, *, dx: float = 1.0, dim: int = -1) -> Tensor:
    """Another name of `trapezoid`."""
def triangular_solve(
    input: Tensor,
    A: Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[Tensor, Tensor]:
    """The solution `X` of `A X = input` for a triangular matrix `A`, or of `Aᵀ X = input` with `transpose`; and `A`."""
def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle of matrices, zero above the diagonal."""
def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle of matrices, zero below the diagonal."""
def true_divide(input: Tensor | float, other: Tensor | float) -> Tensor:
    """`input / other`: another name of `div`."""
def trunc(input: Tensor) -> Tensor:
    """Rounds towards zero to whole numbers."""
def unbind(input: Tensor, dim: int = 0) -> list[Tensor]:
    """The slices of an axis, which is dropped."""
def unbind_copy(input: Tensor, dim: int = 0) -> list[Tensor]:
    """The slices of an axis, which is dropped."""
def unflatten(input: Tensor, dim: int, sizes: int | Sequence[int]) -> Tensor:
    """An axis as several; one of their sizes may be -1."""
def unfold(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of `size` elements of an axis, one every `step`, as a new last axis."""
def unfold_copy(input: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of `size` elements of an axis, one every `step`, as a new last axis."""
def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The different elements, always in increasing order; with `return_inverse` which of them each element is, with `return_counts`
    how often each is there.
    """
def unique_consecutive(input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    """The first element of every run of equal elements; with `return_inverse` which run each element is in, with `return_counts` how
    long each is.
    """
def unravel_index(indices: Tensor, shape: int | Sequence[int]) -> list[Tensor]:
    """Indices of a tensor of this shape as one list, as a vector of indices for each axis."""
def unsafe_chunk(input: Tensor, chunks: int, dim: int = 0) -> list[Tensor]:
    """An axis cut into at most `chunks` pieces of equal size, as a list; the last one may be shorter."""
def unsafe_split(input: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0) -> list[Tensor]:
    """An axis cut into pieces of one size, of which the last may be shorter, or of given sizes, as a list."""
def unsafe_split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> list[Tensor]:
    """An axis cut into pieces of given sizes."""
def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """With a new axis of one element before axis `dim`; -1 puts it last."""
def unsqueeze_copy(input: Tensor, dim: int) -> Tensor:
    """With a new axis of one element before axis `dim`; -1 puts it last."""
def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """The powers of the elements of a vector as the columns of a matrix, the highest first."""
def var(
    input: Tensor,
    dim: bool | int | Sequence[int] | None = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """Variances over some axes: sums of squared deviations over the count minus `correction`, which is 1, or with `unbiased=False` 0.

    `dim` is an axis or several; without it, all of them. With `keepdim` they stay, with one element.
    """
def var_mean(
    input: Tensor,
    dim: bool | int | Sequence[int] | None = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Variances and means over the same axes."""
def vdot(input: Tensor, other: Tensor) -> Tensor:
    """The dot product of two vectors; of real numbers the same as `dot`."""
def vector_norm(
    x: Tensor,
    ord: float = 2.0,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: str | None = None,
) -> Tensor:
    """Norms of vectors over some axes: `ord` is any number or an infinity."""
def view(input: Tensor, size: int | Sequence[int], *more: int) -> Tensor:
    """The same as `reshape`."""
def view_as(input: Tensor, other: Tensor) -> Tensor:
    """The same elements with the shape of another tensor."""
def view_as_complex(input: Tensor) -> Tensor:
    """A complex value, which is pairs already: the tensor itself."""
def view_as_real(input: Tensor) -> Tensor:
    """The pairs of a complex value, which they are already: the tensor itself."""
def view_copy(input: Tensor, size: int | Sequence[int], *more: int) -> Tensor:
    """The same as `reshape`."""
def vsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> list[Tensor]:
    """The first axis cut into equal pieces or before given places."""
def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors joined along the first axis; vectors count as rows."""
@overload
def where(condition: Tensor) -> list[Tensor]:
    """`input` where the condition is not 0, otherwise `other`. With the condition alone, the indices where it is not 0, a vector
    for each axis.
    """
@overload
def where(condition: Tensor, input: Tensor | float, other: Tensor | float) -> Tensor: ...
def xlogy(input: Tensor | float, other: Tensor | float) -> Tensor:
    """`input * ln(other)`, 0 where `input` is 0 and `other` is not NaN."""
def zeros_like(input: Tensor, *, dtype: str | None = None) -> Tensor:
    """Zeros in the shape of a tensor."""
