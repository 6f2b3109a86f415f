# Written by stubs.py.

from builtins import bool as _bool, float as _float, int as _int
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, final, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ._results import Extremes, Histogram, Places

NUMERICS_VERSION: int
__version__: str


@final
class Device:
    """A place to compute in: a CPU or a GPU, in one of the modes of numerics. What takes a device takes its name too.

    name: "cpu", "cuda" or "cuda:1"; the same bits on all of them
    threads: of the CPU, by default all cores; the same bits with any number
    numerics: "strict", "fast" or "turbo"; each has one answer of its own
    """
    def __init__(self, name: str = "cpu", *, threads: int | None = None, numerics: str | None = None) -> None: ...
    def memory(self) -> Mapping[str, int]:
        """Bytes of its memory: `live` in tensors and programs now, `peak` of that so far, and `cached` for reuse."""
    @property
    def numerics(self) -> str:
        """The mode of its numerics: "strict", "fast" or "turbo"."""
    def synchronize(self) -> None:
        """Waits until all that was begun on it is done, as before a time is taken."""

@final
class Session:
    """A place to compute in: it runs each function at once, on one device, and records what gradients need.

        session = dg.Session("cuda", seed=1)
        x = session.tensor([[1.0, 2.0]], requires_grad=True)
        noise = session.randn(1, 2)

    Functions that make tensors, such as `zeros`, `arange` and `randn`, are methods of a session. It keeps all values until `reset`:
    call that after each step of a loop that does not run a compiled program.

    device: "cpu", "cuda" or "cuda:1", or a `Device`; the same bits on all of them
    seed: the seed of random numbers
    threads: of the CPU, by default all cores; the same bits with any number
    numerics: "strict", "fast" or "turbo"; each has one answer of its own
    inference: if true, nothing is recorded for gradients
    """
    def __init__(
        self,
        device: Device | str = "cpu",
        *,
        seed: int = 0,
        threads: int | None = None,
        numerics: str | None = None,
        inference: bool = False,
    ) -> None: ...
    def arange(self, start: float = 0.0, end: float | None = None, step: float = 1.0, *, dtype: str | None = None) -> Tensor:
        """The numbers from `start` up to, not including, `end`, in steps, as float32: `session.arange(3)` is 0, 1, 2. One number alone is
        the end.
        """
    def assign(self, param: Param, value: Tensor) -> None:
        """Gives a parameter that is not trained a new value, such as a running mean. It takes effect at `reset`; in a recorded program,
        when the step or call ends.
        """
    def constant(self, data: ArrayLike) -> Tensor:
        """As `tensor`, of numbers that never change: a recorded program holds them as a part of itself."""
    @property
    def device(self) -> Device:
        """The device it computes on."""
    def empty(self, size: int | Sequence[int], *more: int, dtype: str | None = None) -> Tensor:
        """Zeros too, of a size which is a list or separate numbers: there is no memory without values."""
    def eye(self, n: int, m: int | None = None, *, dtype: str | None = None) -> Tensor:
        """A matrix `(n, m)`, by default `(n, n)`, with ones on the diagonal and zeros elsewhere."""
    def full(self, size: int | Sequence[int], fill_value: float, *, dtype: str | None = None) -> Tensor:
        """A tensor of a size with every element the number `fill_value`."""
    def grad(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], seeds: Sequence[Tensor]) -> list[Tensor | None]:
        """Gradients of several tensors by several: one for each of `inputs`, or `None` where no output depends on it.

        outputs: tensors of any shape
        inputs: tensors made with `requires_grad`, what was computed from such, or `tracked`
        seeds: a gradient for each output, of its shape

        For one output of one element there is `output.grad(inputs)`. Gradients can be differentiated again.
        """
    def linspace(self, start: Tensor | float, end: Tensor | float, steps: int, *, dtype: str | None = None) -> Tensor:
        """`steps` numbers from `start` to `end`, both included, at equal distances. The ends may be tensors of one element."""
    def logspace(self, start: Tensor | float, end: Tensor | float, steps: int, base: float = 10.0, *, dtype: str | None = None) -> Tensor:
        """`steps` powers of `base` whose exponents go from `start` to `end` at equal distances."""
    def normal(self, mean: float, std: float, size: int | Sequence[int], *, dtype: str | None = None) -> Tensor:
        """Draws of the normal distribution with one mean and deviation. `dittograd.normal` takes a tensor of means or deviations."""
    def normal_of_size(self, mean: float, std: float, size: int | Sequence[int], *, dtype: str | None = None) -> Tensor:
        """As `session.normal`: draws of the normal distribution with one mean and deviation, of a size."""
    def ones(self, size: int | Sequence[int], *more: int, dtype: str | None = None) -> Tensor:
        """Ones of a size, which is a list or separate numbers."""
    def param(self, param: Param) -> Tensor:
        """The value of a parameter as a tensor. In a `TrainStep` gradients flow to the parameter through it."""
    def rand(self, size: int | Sequence[int], *more: int, dtype: str | None = None) -> Tensor:
        """Uniform draws from 0 up to 1 of a size, which is a list or separate numbers. The seed of the session decides them."""
    def randint(self, low: int, high: int | Sequence[int], size: int | Sequence[int] | None = None, *, dtype: str | None = None) -> Tensor:
        """Random indices from `low` up to, not including, `high`: `session.randint(2, 10, [4])`. With two arguments, from 0:
        `session.randint(10, [4])`. With `dtype="float32"` they are numbers.
        """
    def randn(self, size: int | Sequence[int], *more: int, dtype: str | None = None) -> Tensor:
        """Draws of the normal distribution with mean 0 and deviation 1, of a size, which is a list or separate numbers. The seed of the
        session decides them.
        """
    def randperm(self, n: int) -> Tensor:
        """A random order of the indices below `n`."""
    def reset(self) -> None:
        """Forgets all tensors of this session and frees their memory. To use an earlier tensor is an error then; parameters stay."""
    def scalar_tensor(self, s: float, *, dtype: str | None = None) -> Tensor:
        """A tensor without axes that holds the number `s`."""
    def tensor(self, data: ArrayLike, requires_grad: bool = False) -> Tensor:
        """A tensor of what NumPy can read: arrays, numbers, lists, tensors of PyTorch on the CPU. The data is copied. If both are on the
        same GPU, float32 numbers that lie side by side are copied there, and all else through host memory.

        Floats become float32, integers indices (uint32, so negative ones are errors), booleans truth values. With `requires_grad`
        gradients by it can be asked for, by `grad`.
        """
    def tril_indices(self, row: int, col: int, offset: int = 0) -> Tensor:
        """Rows and columns `(2, count)` of the elements of the lower triangle of a matrix `(row, col)`, up to diagonal `offset` above the
        main one.
        """
    def triu_indices(self, row: int, col: int, offset: int = 0) -> Tensor:
        """Rows and columns `(2, count)` of the elements of the upper triangle of a matrix `(row, col)`, from diagonal `offset` above the
        main one.
        """
    def zeros(self, size: int | Sequence[int], *more: int, dtype: str | None = None) -> Tensor:
        """Zeros of a size: `session.zeros(2, 3)` or `session.zeros([2, 3])`. All tensors of numbers are float32; `dtype` may say so."""

@final
class Tensor:
    """A value on a device. A session makes it, by `session.tensor(data)` or a function; all that is computed from it is of the same
    session.

    Its elements are float32 numbers, or unsigned 32-bit indices. Truth values are the numbers 0 and 1, of which the tensor knows that
    they are truth values. Tensors do not change: there are no methods in place, and no views.
    """
    @property
    def H(self) -> Tensor:
        """A matrix transposed; vectors and scalars as they are."""
    @property
    def T(self) -> Tensor:
        """The axes in reverse order."""
    def __abs__(self) -> Tensor: ...
    def __add__(self, other: Tensor | _float) -> Tensor: ...
    def __and__(self, other: Tensor | _float) -> Tensor: ...
    def __array__(self, dtype: DTypeLike | None = None, copy: _bool | None = None) -> NDArray[Any]: ...
    def __bool__(self) -> _bool: ...
    def __dlpack__(
        self,
        *,
        stream: _int | None = None,
        max_version: tuple[_int, _int] | None = None,
        dl_device: tuple[_int, _int] | None = None,
        copy: _bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[_int, _int]: ...
    def __eq__(self, other: Tensor | _float) -> Tensor: ...  # type: ignore[override]
    def __float__(self) -> _float: ...
    def __floordiv__(self, other: Tensor | _float) -> Tensor: ...
    def __ge__(self, other: Tensor | _float) -> Tensor: ...
    def __getitem__(self, key: Any, /) -> Tensor: ...
    def __gt__(self, other: Tensor | _float) -> Tensor: ...
    def __hash__(self) -> _int: ...
    def __int__(self) -> _int: ...
    def __invert__(self) -> Tensor: ...
    def __iter__(self) -> Iterator[Tensor]: ...
    def __le__(self, other: Tensor | _float) -> Tensor: ...
    def __len__(self) -> _int: ...
    def __lt__(self, other: Tensor | _float) -> Tensor: ...
    def __matmul__(self, other: Tensor | _float) -> Tensor: ...
    def __mod__(self, other: Tensor | _float) -> Tensor: ...
    def __mul__(self, other: Tensor | _float) -> Tensor: ...
    def __ne__(self, other: Tensor | _float) -> Tensor: ...  # type: ignore[override]
    def __neg__(self) -> Tensor: ...
    def __or__(self, other: Tensor | _float) -> Tensor: ...
    def __pos__(self) -> Tensor: ...
    def __pow__(self, other: Tensor | _float) -> Tensor: ...
    def __radd__(self, other: Tensor | _float) -> Tensor: ...
    def __rand__(self, other: Tensor | _float) -> Tensor: ...
    def __rfloordiv__(self, other: Tensor | _float) -> Tensor: ...
    def __rmatmul__(self, other: Tensor | _float) -> Tensor: ...
    def __rmod__(self, other: Tensor | _float) -> Tensor: ...
    def __rmul__(self, other: Tensor | _float) -> Tensor: ...
    def __ror__(self, other: Tensor | _float) -> Tensor: ...
    def __rpow__(self, other: Tensor | _float) -> Tensor: ...
    def __rsub__(self, other: Tensor | _float) -> Tensor: ...
    def __rtruediv__(self, other: Tensor | _float) -> Tensor: ...
    def __rxor__(self, other: Tensor | _float) -> Tensor: ...
    def __sub__(self, other: Tensor | _float) -> Tensor: ...
    def __truediv__(self, other: Tensor | _float) -> Tensor: ...
    def __xor__(self, other: Tensor | _float) -> Tensor: ...
    def abs(self) -> Tensor:
        """Absolute values."""
    def absolute(self) -> Tensor:
        """Absolute values: another name of `abs`."""
    def acos(self) -> Tensor:
        """The arc cosine; NaN outside of -1 to 1."""
    def acosh(self) -> Tensor:
        """The inverse hyperbolic cosine; NaN below 1."""
    def add(self, other: Tensor | _float, *, alpha: _float = 1.0) -> Tensor:
        """`input + alpha * other`."""
    def addbmm(self, batch1: Tensor, batch2: Tensor, *, beta: _float = 1.0, alpha: _float = 1.0) -> Tensor:
        """`beta · input + alpha · (batch1 @ batch2)`, summed over the batch. With `beta` 0, `input` is not read."""
    def addcdiv(self, tensor1: Tensor, tensor2: Tensor, *, value: _float = 1.0) -> Tensor:
        """`input + value * tensor1 / tensor2`."""
    def addcmul(self, tensor1: Tensor, tensor2: Tensor, *, value: _float = 1.0) -> Tensor:
        """`input + value * tensor1 * tensor2`."""
    def addmm(self, mat1: Tensor, mat2: Tensor, *, beta: _float = 1.0, alpha: _float = 1.0) -> Tensor:
        """`beta · input + alpha · (mat1 @ mat2)`. With `beta` 0, `input` is not read."""
    def addmv(self, mat: Tensor, vec: Tensor, *, beta: _float = 1.0, alpha: _float = 1.0) -> Tensor:
        """`beta · input + alpha · (mat @ vec)`. With `beta` 0, `input` is not read."""
    def addr(self, vec1: Tensor, vec2: Tensor, *, beta: _float = 1.0, alpha: _float = 1.0) -> Tensor:
        """`beta · input + alpha · outer(vec1, vec2)`. With `beta` 0, `input` is not read."""
    def alias_copy(self) -> Tensor:
        """A copy in memory of its own."""
    def all(self, dim: _int | Sequence[_int] | None = None, keepdim: _bool = False) -> Tensor:
        """1 where all elements over some axes are true, which all numbers but 0 are, else 0. `dim` is an axis or several; without it, all
        of them. With `keepdim` they stay, with one element.
        """
    def allclose(self, other: Tensor, rtol: _float = 1e-05, atol: _float = 1e-08, equal_nan: _bool = False) -> _bool:
        """Whether all elements are near each other, as `isclose` says. Waits for the device."""
    def amax(self, dim: _int | Sequence[_int] | None = None, keepdim: _bool = False) -> Tensor:
        """The largest elements over some axes, or of all. The gradient goes to the first of several largest elements.

        `dim` is an axis or several; without it, all of them. With `keepdim` they stay, with one element.
        """
    def amin(self, dim: _int | Sequence[_int] | None = None, keepdim: _bool = False) -> Tensor:
        """The smallest elements over some axes, or of all. The gradient goes to the first of several smallest elements.

        `dim` is an axis or several; without it, all of them. With `keepdim` they stay, with one element.
        """
    def aminmax(self, *, dim: _int | Sequence[_int] | None = None, keepdim: _bool = False) -> Extremes:
        """The smallest and the largest elements over an axis, or of all, as a pair `min`, `max`."""
    def angle(self) -> Tensor:
        """The angle of real numbers as complex ones: pi where they are negative, else 0."""
    def any(self, dim: _int | Sequence[_int] | None = None, keepdim: _bool = False) -> Tensor:
        """1 where some element over some axes is true, which all numbers but 0 are, else 0. `dim` is an axis or several; without it, all
        of them. With `keepdim` they stay, with one element.
        """
    def arccos(self) -> Tensor:
        """Another name of `acos`."""
    def arccosh(self) -> Tensor:
        """Another name of `acosh`."""
    def arcsin(self) -> Tensor:
        """Another name of `asin`."""
    def arcsinh(self) -> Tensor:
        """Another name of `asinh`."""
    def arctan(self) -> Tensor:
        """Another name of `atan`."""
    def arctan2(self, other: Tensor | _float) -> Tensor:
        """Another name of `atan2`."""
    def arctanh(self) -> Tensor:
        """Another name of `atanh`."""
    def argmax(self, dim: _int | None = None, keepdim: _bool = False) -> Tensor:
        """The positions of the largest elements along an axis, as indices; without `dim` that of the largest of all in row-major order.
        With `keepdim` the axis stays, with one element.
        """
    def argmin(self, dim: _int | None = None, keepdim: _bool = False) -> Tensor:
        """The positions of the smallest elements along an axis, as indices; without `dim` that of the smallest of all in row-major order.
        With `keepdim` the axis stays, with one element.
        """
    def argsort(self, dim: _int = -1, descending: _bool = False, *, stable: _bool = False) -> Tensor:
        """The positions of the elements along an axis, the last by default, in increasing order or `descending`. Equal elements always
        keep their order, whatever `stable` is.
        """
    def argwhere(self) -> Tensor:
        """The indices of the elements that are not 0, a row for each."""
    def as_strided(self, size: Sequence[_int], stride: Sequence[_int], storage_offset: _int = 0) -> Tensor:
        """A tensor of these sizes whose element at `i` is element `storage_offset + Σ stride[a] i[a]` of the input as one list."""
    def as_strided_copy(self, size: Sequence[_int], stride: Sequence[_int], storage_offset: _int = 0) -> Tensor:
        """A tensor of these sizes whose element at `i` is element `storage_offset + Σ stride[a] i[a]` of the input as one list."""
    def as_strided_scatter(self, src: Tensor, size: Sequence[_int], stride: Sequence[_int], storage_offset: _int = 0) -> Tensor:
        """The tensor with the elements that `as_strided` takes replaced by `src`."""
    def asin(self) -> Tensor:
        """The arc sine; NaN outside of -1 to 1."""
    def asinh(self) -> Tensor:
        """The inverse hyperbolic sine."""
    def atan(self) -> Tensor:
        """The arc tangent."""
    def atan2(self, other: Tensor | _float) -> Tensor:
        """The angle of the point with ordinate `input` and abscissa `other`, from -pi to pi."""
    def atanh(self) -> Tensor:
        """The inverse hyperbolic tangent; NaN outside of -1 to 1."""
    def baddbmm(self, batch1: Tensor, batch2: Tensor, *, beta: _float = 1.0, alpha: _float = 1.0) -> Tensor:
        """`beta · input + alpha · (batch1 @ batch2)` for each matrix of the batch. With `beta` 0, `input` is not read."""
    def bernoulli(self, p: _float | None = None) -> Tensor:
        """1 with the probability that the element is, or for all elements `p`, and 0 otherwise."""
    def bincount(self, weights: Tensor | None = None, minlength: _int = 0) -> Tensor:
        """How often each index is there, or the sums of its weights, as numbers."""
    def bmm(self, mat2: Tensor) -> Tensor:
        """The products of two batches of matrices, `(B, M, K)` by `(B, K, N)`."""
    def bool(self) -> Tensor:
        """1 where an element is not 0, else 0."""
    def broadcast_to(self, size: _int | Sequence[_int]) -> Tensor:
        """The tensor expanded to a shape."""
    def bucketize(self, boundaries: Tensor, *, out_int32: _bool = False, right: _bool = False) -> Tensor:
        """The bucket of each element between sorted `boundaries`: with `right` an element that equals one belongs to the bucket after it."""
    def ceil(self) -> Tensor:
        """Rounds up to whole numbers."""
    def cholesky(self, upper: _bool = False) -> Tensor:
        """The Cholesky factor of symmetric positive definite matrices. Others give NaN."""
    def cholesky_inverse(self, upper: _bool = False) -> Tensor:
        """The inverse of symmetric positive definite matrices, given their Cholesky factors."""
    def cholesky_solve(self, L: Tensor, upper: _bool = False) -> Tensor:
        """The solution `X` of `A X = input`, given the Cholesky factor `L` of `A`."""
    def chunk(self, chunks: _int, dim: _int = 0) -> list[Tensor]:
        """An axis cut into at most `chunks` pieces of equal size, as a list; the last one may be shorter."""
    def clamp(self, min: Tensor | _float | None = None, max: Tensor | _float | None = None) -> Tensor:
        """The numbers held between `min` and `max`, each a number or a tensor. At least one of them is given."""
    def clamp_max(self, max: Tensor | _float) -> Tensor:
        """The numbers held below `max`, a number or a tensor."""
    def clamp_min(self, min: Tensor | _float) -> Tensor:
        """The numbers held above `min`, a number or a tensor."""
    def clip(self, min: Tensor | _float | None = None, max: Tensor | _float | None = None) -> Tensor:
        """Another name of `clamp`."""
    def clone(self) -> Tensor:
        """The tensor itself: tensors do not change."""
    def combinations(self, r: _int = 2, with_replacement: _bool = False) -> Tensor:
        """All choices of `r` elements of a vector, as rows."""
    def conj(self) -> Tensor:
        """The complex conjugate of real numbers: the same numbers."""
    def conj_physical(self) -> Tensor:
        """The complex conjugate of real numbers: the same numbers."""
    def constant_pad_nd(self, pad: Sequence[_int], value: _float = 0.0) -> Tensor:
        """The last axes padded with a number: two counts for each axis, from the last one back; negative ones crop."""
    def contiguous(self) -> Tensor:
        """The tensor itself: its elements are always next to each other."""
    def copysign(self, other: Tensor | _float) -> Tensor:
        """The magnitude of `input` with the sign of `other`."""
    def corrcoef(self) -> Tensor:
        """The correlations of the rows of a matrix."""
    def cos(self) -> Tensor:
        """Cosines of angles in radians."""
    def cosh(self) -> Tensor:
        """The hyperbolic cosine."""
    def count_nonzero(self, dim: _int | Sequence[_int] | None = None) -> Tensor:
        """How many elements over some axes, or of all, are not 0, as numbers."""
    def cov(self, *, correction: _int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None) -> Tensor:
        """The covariances of the rows of a matrix, each a variable: sums over the observations, the columns, divided by their count less
        `correction`. `fweights` are counts of observations, `aweights` their weights.
        """
    def cross(self, other: Tensor, dim: _int | None = None) -> Tensor:
        """The cross product of vectors of three elements along an axis: without `dim` along the first that has three."""
    def cummax(self, dim: _int) -> Places:
        """The largest elements so far along an axis, and their last positions. The result is a pair `values`, `indices`."""
    def cummin(self, dim: _int) -> Places:
        """The smallest elements so far along an axis, and their last positions. The result is a pair `values`, `indices`."""
    def cumprod(self, dim: _int, *, dtype: str | None = None) -> Tensor:
        """Products of the elements up to each along an axis."""
    def cumsum(self, dim: _int, *, dtype: str | None = None) -> Tensor:
        """Sums of the elements up to each along an axis."""
    def deg2rad(self) -> Tensor:
        """Degrees as radians."""
    def det(self) -> Tensor:
        """The determinant of square matrices."""
    def detach(self) -> Tensor:
        """The same value, through which no gradient flows."""
    def diag(self, diagonal: _int = 0) -> Tensor:
        """A vector on a diagonal of a matrix, or a diagonal of a matrix as a vector."""
    def diag_embed(self, offset: _int = 0, dim1: _int = -2, dim2: _int = -1) -> Tensor:
        """Matrices with the last axis of the input on a diagonal; `dim1` and `dim2` are their axes, by default the last two."""
    def diagflat(self, offset: _int = 0) -> Tensor:
        """A matrix with all elements of the input on a diagonal."""
    def diagonal(self, offset: _int = 0, dim1: _int = 0, dim2: _int = 1) -> Tensor:
        """A diagonal of two axes, as the last axis."""
    def diagonal_copy(self, offset: _int = 0, dim1: _int = 0, dim2: _int = 1) -> Tensor:
        """A diagonal of two axes, as the last axis."""
    def diagonal_scatter(self, src: Tensor, offset: _int = 0, dim1: _int = 0, dim2: _int = 1) -> Tensor:
        """The tensor with a diagonal of two axes replaced by `src`."""
    def diff(self, n: _int = 1, dim: _int = -1, prepend: Tensor | None = None, append: Tensor | None = None) -> Tensor:
        """Differences of neighbours along an axis, the last by default, taken `n` times, after `prepend` and `append` are put at its ends.
        With `n` 0 `input` itself.
        """
    def digamma(self) -> Tensor:
        """The derivative of `lgamma`."""
    def dim(self) -> _int:
        """The number of axes, as `ndim`."""
    def dist(self, other: Tensor, p: _float = 2.0) -> Tensor:
        """The norm of power `p` of the difference of two tensors, of all elements together."""
    def div(self, other: Tensor | _float, *, rounding_mode: str | None = None) -> Tensor:
        """The quotient; with `rounding_mode` "trunc" rounded towards zero, with "floor" rounded down."""
    def divide(self, other: Tensor | _float, *, rounding_mode: str | None = None) -> Tensor:
        """Another name of `div`."""
    def dot(self, tensor: Tensor) -> Tensor:
        """The dot product of two vectors."""
    def dsplit(self, indices_or_sections: _int | Sequence[_int]) -> list[Tensor]:
        """The third axis cut into equal pieces or before given places."""
    @property
    def dtype(self) -> str:
        """`"float32"`, `"uint32"`, or `"bool"`: truth values, which count as the numbers 0 and 1."""
    def empty_like(self, *, dtype: str | None = None) -> Tensor:
        """Zeros too, in the shape of a tensor: there is no memory without values."""
    def eq(self, other: Tensor | _float) -> Tensor:
        """1 where the elements are equal, else 0. Indices compare with indices and whole numbers."""
    def equal(self, other: Tensor) -> _bool:
        """Whether both tensors have one shape and equal elements. Waits for the device."""
    def erf(self) -> Tensor:
        """The error function."""
    def erfc(self) -> Tensor:
        """`1 - erf(x)`, accurate where that is small."""
    def erfinv(self) -> Tensor:
        """The inverse of `erf`."""
    def exp(self) -> Tensor:
        """`e^x`."""
    def exp2(self) -> Tensor:
        """`2^x`."""
    def expand(self, size: _int | Sequence[_int], *more: _int) -> Tensor:
        """Axes of one element, and new ones in front, repeated to these sizes; -1 keeps the size of an axis. The sizes are a list or
        separate numbers.
        """
    def expand_as(self, other: Tensor) -> Tensor:
        """The tensor expanded to the shape of another."""
    def expand_copy(self, size: _int | Sequence[_int], *more: _int) -> Tensor:
        """Axes of one element, and new ones in front, repeated to these sizes; -1 keeps the size of an axis. The sizes are a list or
        separate numbers.
        """
    def expm1(self) -> Tensor:
        """`e^x - 1`, accurate near zero."""
    def fill(self, value: Tensor | _float) -> Tensor:
        """A tensor of the shape of `input` with every element `value`, a number or a tensor of one element."""
    def fix(self) -> Tensor:
        """Rounds towards zero: another name of `trunc`."""
    def flatten(self, start_dim: _int = 0, end_dim: _int = -1) -> Tensor:
        """The axes from `start_dim` to `end_dim`, by default the last, as one."""
    def flip(self, dims: _int | Sequence[_int], *more: _int) -> Tensor:
        """The order of elements reversed along axes."""
    def fliplr(self) -> Tensor:
        """The columns in reverse order."""
    def flipud(self) -> Tensor:
        """The rows in reverse order."""
    def float(self) -> Tensor:
        """Indices as numbers; numbers as they are."""
    def float_power(self, exponent: Tensor | _float) -> Tensor:
        """`input` to the power of `exponent`, in float32."""
    def floor(self) -> Tensor:
        """Rounds down to whole numbers."""
    def floor_divide(self, other: Tensor | _float) -> Tensor:
        """The quotient rounded down. It has no gradient."""
    def fmax(self, other: Tensor | _float) -> Tensor:
        """The larger of two elements; a number is preferred to NaN."""
    def fmin(self, other: Tensor | _float) -> Tensor:
        """The smaller of two elements; a number is preferred to NaN."""
    def fmod(self, other: Tensor | _float) -> Tensor:
        """What is left of `input` after division by `other`, with the sign of `input`."""
    def frac(self) -> Tensor:
        """What is left of a number without its whole part; it has the sign of the number."""
    def frexp(self) -> tuple[Tensor, Tensor]:
        """Mantissas, of a magnitude from 0.5 up to 1, and exponents of base 2, as numbers."""
    def full_like(self, fill_value: _float, *, dtype: str | None = None) -> Tensor:
        """A tensor of the shape of another with every element the number `fill_value`."""
    def gather(self, dim: _int, index: Tensor) -> Tensor:
        """Elements along an axis, each at its own index."""
    def ge(self, other: Tensor | _float) -> Tensor:
        """1 where `input >= other`, else 0."""
    def geqrf(self) -> tuple[Tensor, Tensor]:
        """`R` on and above the diagonal, the vectors of the reflections below it, and their factors."""
    def ger(self, vec2: Tensor) -> Tensor:
        """The same as `outer`."""
    def grad(self, inputs: Sequence[Tensor]) -> list[Tensor | None]:
        """Gradients of this tensor, which must have one element, by each of `inputs`: a list, with `None` for those that it does not
        depend on.

        Nothing is accumulated, unlike by PyTorch's `backward`. Gradients can be differentiated again. `session.grad` takes outputs of
        any shape.
        """
    def gradient(
        self,
        *,
        spacing: _float | Sequence[_float] | Sequence[Tensor] | None = None,
        dim: _int | Sequence[_int] | None = None,
        edge_order: _int = 1,
    ) -> list[Tensor]:
        """The slopes along each axis of `dim`, or along all: a list of tensors.

        spacing: how far elements are apart, a number, or one for each axis, or a tensor of places for each axis
        edge_order: 1 or 2, of the formula at the ends
        """
    def greater(self, other: Tensor | _float) -> Tensor:
        """Another name of `gt`."""
    def greater_equal(self, other: Tensor | _float) -> Tensor:
        """Another name of `ge`."""
    def gt(self, other: Tensor | _float) -> Tensor:
        """1 where `input > other`, else 0."""
    def hardshrink(self, lambd: _float = 0.5) -> Tensor:
        """Each number, 0 if its magnitude is at most `lambd`."""
    def heaviside(self, values: Tensor | _float) -> Tensor:
        """0 where `input` is negative, 1 where it is positive, `values` where it is zero."""
    def histc(self, bins: _int = 100, min: _float = 0.0, max: _float = 0.0) -> Tensor:
        """How many elements are in each of `bins` bins of equal width from `min` to `max`, or if both are 0, of the range of the elements."""
    def histogram(
        self,
        bins: _int | Tensor,
        *,
        range: tuple[_float, _float] | None = None,
        weight: Tensor | None = None,
        density: _bool = False,
    ) -> Histogram:
        """The counts of elements, or sums of their weights, between edges: `bins` has the edges, or is the number of bins of equal width in
        `range`, which is by default that of the elements. The results are `hist` and `bin_edges`.
        """
    def histogramdd(
        self,
        bins: _int | Sequence[_int] | Sequence[Tensor],
        *,
        range: Sequence[_float] | None = None,
        weight: Tensor | None = None,
        density: _bool = False,
    ) -> tuple[Tensor, list[Tensor]]:
        """The histogram of points, whose coordinates are the last axis, in a grid: `bins` has the edges along each coordinate, or the number of
        bins of equal width along each, or along all, in `range`. The results are `hist` and a list `bin_edges`.
        """
    def hsplit(self, indices_or_sections: _int | Sequence[_int]) -> list[Tensor]:
        """The second axis, of a vector its only one, cut into equal pieces or before given places."""
    def hypot(self, other: Tensor | _float) -> Tensor:
        """`sqrt(input² + other²)`, without overflow on the way."""
    def i0(self) -> Tensor:
        """The modified Bessel function of the first kind, of order 0."""
    def index_add(self, dim: _int, index: Tensor, source: Tensor, *, alpha: _float = 1.0) -> Tensor:
        """The tensor with slices added at indices of an axis."""
    def index_copy(self, dim: _int, index: Tensor, source: Tensor) -> Tensor:
        """The tensor with slices replaced at indices of an axis; the last one of several wins."""
    def index_fill(self, dim: _int, index: Tensor, value: Tensor | _float) -> Tensor:
        """The tensor with a number in the slices at indices of an axis."""
    def index_put(self, indices: Sequence[Tensor], values: Tensor, accumulate: _bool = False) -> Tensor:
        """The tensor with `values` put at indices of its first axes; a mask stands for the indices where it is not 0. The last one of
        several wins, or all are added.
        """
    def index_reduce(self, dim: _int, index: Tensor, source: Tensor, reduce: str, *, include_self: _bool = True) -> Tensor:
        """The tensor with slices reduced into those at indices of an axis."""
    def index_select(self, dim: _int, index: Tensor) -> Tensor:
        """Slices of an axis at indices."""
    def inner(self, other: Tensor) -> Tensor:
        """The sums of products along the last axes of both tensors. With a scalar, the product."""
    def int(self) -> Tensor:
        """Numbers as indices, rounded towards zero; indices as they are. Waits for the device."""
    def inverse(self) -> Tensor:
        """The inverse of square matrices. A singular matrix gives infinities or NaN."""
    def isclose(self, other: Tensor, rtol: _float = 1e-05, atol: _float = 1e-08, equal_nan: _bool = False) -> Tensor:
        """1 where two elements are as near as `|input - other| <= atol + rtol |other|`, else 0."""
    def isfinite(self) -> Tensor:
        """1 where a number is neither infinite nor NaN, else 0."""
    def isinf(self) -> Tensor:
        """1 where a number is infinite, else 0."""
    def isnan(self) -> Tensor:
        """1 where a number is NaN, else 0."""
    def isneginf(self) -> Tensor:
        """1 where a number is `-inf`, else 0."""
    def isposinf(self) -> Tensor:
        """1 where a number is `inf`, else 0."""
    def isreal(self) -> Tensor:
        """1 everywhere: all numbers are real."""
    def istft(
        self,
        n_fft: _int,
        hop_length: _int | None = None,
        win_length: _int | None = None,
        window: Tensor | None = None,
        center: _bool = True,
        normalized: _bool = False,
        onesided: _bool | None = None,
        length: _int | None = None,
        return_complex: _bool = False,
    ) -> Tensor:
        """The inverse of `stft`, with the same window: signals `(…, length)`."""
    def item(self) -> Any:
        """Its only element, as a Python number: a float, an int if it is an index, a bool if it is a truth value. Waits for the device."""
    def kron(self, other: Tensor) -> Tensor:
        """The Kronecker product."""
    def kthvalue(self, k: _int, dim: _int = -1, keepdim: _bool = False) -> Places:
        """The `k`-th smallest element along an axis, the last by default, counted from 1, and where it is. The result is a pair `values`,
        `indices`.
        """
    def ldexp(self, other: Tensor | _float) -> Tensor:
        """`input * 2^other`. The exponents may be indices."""
    def le(self, other: Tensor | _float) -> Tensor:
        """1 where `input <= other`, else 0."""
    def lerp(self, end: Tensor, weight: Tensor | _float) -> Tensor:
        """Linear interpolation, `input + weight * (end - input)`; the weight is a number or a tensor."""
    def less(self, other: Tensor | _float) -> Tensor:
        """Another name of `lt`."""
    def less_equal(self, other: Tensor | _float) -> Tensor:
        """Another name of `le`."""
    def lgamma(self) -> Tensor:
        """The logarithm of the magnitude of the gamma function."""
    def log(self) -> Tensor:
        """The natural logarithm."""
    def log10(self) -> Tensor:
        """The logarithm to base 10."""
    def log1p(self) -> Tensor:
        """`ln(1 + x)`, accurate near zero."""
    def log2(self) -> Tensor:
        """The logarithm to base 2."""
    def log_softmax(self, dim: _int, dtype: str | None = None) -> Tensor:
        """The logarithm of the softmax along the axis `dim`, without overflow."""
    def logaddexp(self, other: Tensor | _float) -> Tensor:
        """`ln(e^input + e^other)`, without overflow on the way."""
    def logaddexp2(self, other: Tensor | _float) -> Tensor:
        """`log2(2^input + 2^other)`, without overflow on the way."""
    def logcumsumexp(self, dim: _int) -> Tensor:
        """`log Σ e^x` of the elements up to each along an axis."""
    def logdet(self) -> Tensor:
        """The logarithm of the determinant: NaN where that is negative, minus infinity where it is 0."""
    def logical_and(self, other: Tensor | _float) -> Tensor:
        """1 where both elements are true, which all numbers but 0 are, else 0."""
    def logical_not(self) -> Tensor:
        """1 where a number is 0, else 0."""
    def logical_or(self, other: Tensor | _float) -> Tensor:
        """1 where at least one element is true, else 0."""
    def logical_xor(self, other: Tensor | _float) -> Tensor:
        """1 where exactly one element is true, else 0."""
    def logit(self, eps: _float | None = None) -> Tensor:
        """The inverse of `sigmoid`, `ln(x / (1 - x))`. With `eps`, numbers are first held between `eps` and `1 - eps`."""
    def logsumexp(self, dim: _int | Sequence[_int], keepdim: _bool = False) -> Tensor:
        """`log Σ e^x` over some axes, without overflow. With `keepdim` they stay, with one element."""
    def long(self) -> Tensor:
        """Numbers as indices, rounded towards zero; indices as they are. Waits for the device."""
    def lt(self, other: Tensor | _float) -> Tensor:
        """1 where `input < other`, else 0."""
    @property
    def mH(self) -> Tensor:
        """The last two axes swapped."""
    @property
    def mT(self) -> Tensor:
        """The last two axes swapped."""
    def masked_fill(self, mask: Tensor, value: Tensor | _float) -> Tensor:
        """`value` where the mask is not 0, otherwise the input."""
    def masked_scatter(self, mask: Tensor, source: Tensor) -> Tensor:
        """The tensor with the elements where the mask is not 0 replaced by the first elements of `source`."""
    def masked_select(self, mask: Tensor) -> Tensor:
        """The elements where the mask is not 0, as a vector."""
    def matmul(self, other: Tensor) -> Tensor:
        """The matrix product of the last two axes: `(…, n, k)` by `(…, k, m)` makes `(…, n, m)`. Leading axes are batches and broadcast; a
        vector is a row on the left and a column on the right. Also `a @ b`.
        """
    def matrix_exp(self) -> Tensor:
        """The exponential of square matrices."""
    def matrix_power(self, n: _int) -> Tensor:
        """The `n`-th power of square matrices; a negative one is that of the inverse."""
    @overload
    def max(self, dim: _int, keepdim: _bool = False) -> Places:
        """The largest element; with `dim`, the largest along that axis and their positions, as a pair `values`, `indices`; with another
        tensor, `dg.max(a, b)`, the larger of each two.

        With `keepdim` the axis stays, with one element. `amax` takes several axes.
        """
    @overload
    def max(self, dim: Tensor | None = None, keepdim: _bool = False, *, other: Tensor | None = None) -> Tensor: ...
    def maximum(self, other: Tensor | _float) -> Tensor:
        """The larger of two elements; NaN if one is."""
    def mean(self, dim: _int | Sequence[_int] | None = None, keepdim: _bool = False, *, dtype: str | None = None) -> Tensor:
        """Means over some axes, or of all elements.

        `dim` is an axis or several; without it, all of them. With `keepdim` they stay, with one element. `dtype` may only be "float32".
        """
    @overload
    def median(self, dim: _int, keepdim: _bool = False) -> Places:
        """The median of all elements, or along an axis with its position, as a pair `values`, `indices`; the lower of two in the middle.
        With `keepdim` the axis stays, with one element.
        """
    @overload
    def median(self, dim: None = None, keepdim: _bool = False) -> Tensor: ...
    @overload
    def min(self, dim: _int, keepdim: _bool = False) -> Places:
        """The smallest element; with `dim`, the smallest along that axis and their positions, as a pair `values`, `indices`; with another
        tensor, `dg.min(a, b)`, the smaller of each two.

        With `keepdim` the axis stays, with one element. `amin` takes several axes.
        """
    @overload
    def min(self, dim: Tensor | None = None, keepdim: _bool = False, *, other: Tensor | None = None) -> Tensor: ...
    def minimum(self, other: Tensor | _float) -> Tensor:
        """The smaller of two elements; NaN if one is."""
    def mm(self, mat2: Tensor) -> Tensor:
        """The product of two matrices, `(n, k)` by `(k, m)`."""
    def mode(self, dim: _int = -1, keepdim: _bool = False) -> Places:
        """The most frequent element along an axis, the last by default, the smallest of several, and its last position. The result is a
        pair `values`, `indices`.
        """
    def moveaxis(self, source: _int | Sequence[_int], destination: _int | Sequence[_int]) -> Tensor:
        """Axes moved to other places; the others keep their order."""
    def movedim(self, source: _int | Sequence[_int], destination: _int | Sequence[_int]) -> Tensor:
        """Axes moved to other places; the others keep their order."""
    def msort(self) -> Tensor:
        """The elements sorted along the first axis."""
    def mul(self, other: Tensor | _float) -> Tensor:
        """`input * other`."""
    def multinomial(self, num_samples: _int, replacement: _bool = False) -> Tensor:
        """`num_samples` indices of the last axis, drawn with probabilities proportional to its elements; without `replacement` each at
        most once.
        """
    def multiply(self, other: Tensor | _float) -> Tensor:
        """`input * other`: another name of `mul`."""
    def mv(self, vec: Tensor) -> Tensor:
        """The product of a matrix and a vector."""
    def mvlgamma(self, p: _int) -> Tensor:
        """The logarithm of the gamma function of `p` dimensions."""
    def nan_to_num(self, nan: _float | None = 0.0, posinf: _float | None = None, neginf: _float | None = None) -> Tensor:
        """Numbers in the place of NaN and of infinities: `nan`, `posinf` and `neginf`, or the largest and smallest of all numbers."""
    def nanmean(self, dim: _int | Sequence[_int] | None = None, keepdim: _bool = False, *, dtype: str | None = None) -> Tensor:
        """Means of the elements that are not NaN. `dim` is an axis or several; without it, all of them. With `keepdim` they stay, with one
        element.
        """
    @overload
    def nanmedian(self, dim: _int, keepdim: _bool = False) -> Places:
        """Like `median`, of the elements that are not NaN."""
    @overload
    def nanmedian(self, dim: None = None, keepdim: _bool = False) -> Tensor: ...
    def nanquantile(self, q: _float | Tensor, dim: _int | None = None, keepdim: _bool = False, *, interpolation: str = "linear") -> Tensor:
        """Like `quantile`, of the elements that are not NaN."""
    def nansum(self, dim: _int | Sequence[_int] | None = None, keepdim: _bool = False, *, dtype: str | None = None) -> Tensor:
        """Sums of the elements that are not NaN. `dim` is an axis or several; without it, all of them. With `keepdim` they stay, with one
        element.
        """
    def narrow(self, dim: _int, start: _int | Tensor, length: _int) -> Tensor:
        """`length` elements of an axis from `start`."""
    def narrow_copy(self, dim: _int, start: _int | Tensor, length: _int) -> Tensor:
        """`length` elements of an axis from `start`."""
    @property
    def ndim(self) -> _int:
        """The number of its axes."""
    def ne(self, other: Tensor | _float) -> Tensor:
        """1 where the elements differ, else 0. Indices compare with indices and whole numbers."""
    def neg(self) -> Tensor:
        """`-x`."""
    def negative(self) -> Tensor:
        """`-x`: another name of `neg`."""
    def new_empty(self, size: _int | Sequence[_int], *more: _int, dtype: str | None = None) -> Tensor:
        """Zeros too, of a size, in the session of a tensor: there is no memory without values."""
    def new_full(self, size: _int | Sequence[_int], fill_value: _float, *, dtype: str | None = None) -> Tensor:
        """A tensor of a size with every element the number `fill_value`, in the session of a tensor."""
    def new_ones(self, size: _int | Sequence[_int], *more: _int, dtype: str | None = None) -> Tensor:
        """Ones of a size, a list or separate numbers, in the session of a tensor."""
    def new_zeros(self, size: _int | Sequence[_int], *more: _int, dtype: str | None = None) -> Tensor:
        """Zeros of a size, a list or separate numbers, in the session of a tensor."""
    @overload
    def nonzero(self, *, as_tuple: Literal[False] = False) -> Tensor:
        """The indices of the elements that are not 0: a row for each, or with `as_tuple` a vector for each axis."""
    @overload
    def nonzero(self, *, as_tuple: Literal[True]) -> list[Tensor]: ...
    def nonzero_static(self, *, size: _int, fill_value: _int = -1) -> Tensor:
        """The first `size` rows of `nonzero`; rows that are missing are filled with an index."""
    def norm(
        self,
        p: _float | str = "fro",
        dim: _int | Sequence[_int] | None = None,
        keepdim: _bool = False,
        *,
        dtype: str | None = None,
    ) -> Tensor:
        """Norms of vectors over some axes: `p` is any number, an infinity, or "fro", which is 2.

        `dim` is an axis or several; without it, all of them. With `keepdim` they stay, with one element. `linalg.matrix_norm` has the
        norms of matrices.
        """
    def not_equal(self, other: Tensor | _float) -> Tensor:
        """Another name of `ne`."""
    def numel(self) -> _int:
        """The number of its elements."""
    def numpy(self) -> NDArray[Any]:
        """Its elements as a new NumPy array of float32, uint32 or bool. Waits for the device. `np.from_dlpack` copies nothing on a CPU."""
    def ones_like(self, *, dtype: str | None = None) -> Tensor:
        """Ones in the shape of a tensor."""
    def ormqr(self, tau: Tensor, other: Tensor, left: _bool = True, transpose: _bool = False) -> Tensor:
        """A product of reflections, or its transpose, times `other`, or `other` times it if not `left`."""
    def outer(self, vec2: Tensor) -> Tensor:
        """All products of an element of one vector with one of the other."""
    def permute(self, dims: _int | Sequence[_int], *more: _int) -> Tensor:
        """The axes in another order: axis `i` of the result is axis `dims[i]`."""
    def permute_copy(self, dims: _int | Sequence[_int], *more: _int) -> Tensor:
        """The axes in another order: axis `i` of the result is axis `dims[i]`."""
    def polygamma(self, n: _int) -> Tensor:
        """Derivative number `n` of `digamma`."""
    def positive(self) -> Tensor:
        """The tensor itself."""
    def pow(self, exponent: Tensor | _float) -> Tensor:
        """`input` to the power of `exponent`."""
    def prelu(self, weight: Tensor) -> Tensor:
        """`x` where positive, else `weight · x`, with one weight or one for each channel (axis 1)."""
    def prod(self, dim: _int | Sequence[_int] | None = None, keepdim: _bool = False, *, dtype: str | None = None) -> Tensor:
        """Products over some axes, or of all elements. `dim` is an axis or several; without it, all of them. With `keepdim` they stay,
        with one element.
        """
    def put(self, index: Tensor, source: Tensor, accumulate: _bool = False) -> Tensor:
        """The tensor with the elements of `source` put at indices of the tensor as one list; the last one of several wins, or all are
        added.
        """
    def qr(self, some: _bool = True) -> tuple[Tensor, Tensor]:
        """`Q` and `R` of `linalg.qr`; square `Q` unless `some`."""
    def quantile(self, q: _float | Tensor, dim: _int | None = None, keepdim: _bool = False, *, interpolation: str = "linear") -> Tensor:
        """The quantiles `q`, a number, or a scalar or vector from 0 to 1, along an axis or of all elements. With `keepdim` the axis stays,
        with one element.

        `interpolation` says what is between two elements: "linear", "lower", "higher", "nearest" or "midpoint".
        """
    def rad2deg(self) -> Tensor:
        """Radians as degrees."""
    def rand_like(self, *, dtype: str | None = None) -> Tensor:
        """Uniform draws from 0 to 1, in the shape of a tensor."""
    def randint_like(self, low: _int, high: _int | None = None, *, dtype: str | None = None) -> Tensor:
        """Random indices from `low`, 0 if one number is given, up to, not including, `high`, in the shape of a tensor."""
    def randn_like(self, *, dtype: str | None = None) -> Tensor:
        """Normal draws with mean 0 and deviation 1, in the shape of a tensor."""
    def ravel(self) -> Tensor:
        """All elements as one axis."""
    def real(self) -> Tensor:
        """The real part of real numbers: the same numbers. Of a complex value, which is pairs, take `x[..., 0]`."""
    def reciprocal(self) -> Tensor:
        """`1 / x`."""
    def relu(self) -> Tensor:
        """Each number, or 0 if it is negative."""
    def remainder(self, other: Tensor | _float) -> Tensor:
        """What is left of `input` after division by `other`, with the sign of `other`, as Python's `%`."""
    def renorm(self, p: _float, dim: _int, maxnorm: _float) -> Tensor:
        """The slices along an axis, those whose p-norm is larger than `maxnorm` scaled down to it."""
    def repeat(self, repeats: _int | Sequence[_int], *more: _int) -> Tensor:
        """The whole tensor repeated along each axis; the counts are a list or separate numbers."""
    def repeat_interleave(
        self,
        repeats: _int | Sequence[_int] | Tensor,
        dim: _int | None = None,
        *,
        output_size: _int | None = None,
    ) -> Tensor:
        """Each element of an axis repeated; without an axis, of the tensor as one list."""
    @property
    def requires_grad(self) -> _bool:
        """Whether gradients flow to it: it was made with `requires_grad`, or computed from what was."""
    def reshape(self, shape: _int | Sequence[_int], *more: _int) -> Tensor:
        """The same elements in row-major order with another shape, a list or separate numbers; one size may be -1, which stands for what
        is left.
        """
    def reshape_as(self, other: Tensor) -> Tensor:
        """The same as `view_as`."""
    def resolve_conj(self) -> Tensor:
        """The tensor itself: no conjugate waits to be computed."""
    def resolve_neg(self) -> Tensor:
        """The tensor itself: no sign waits to be computed."""
    def roll(self, shifts: _int | Sequence[_int], dims: _int | Sequence[_int] | None = None) -> Tensor:
        """Elements shifted along axes, or as one list if none is given; what is pushed out comes back at the other side."""
    def rot90(self, k: _int = 1, dims: Sequence[_int] = (0, 1)) -> Tensor:
        """The tensor turned by `k` quarter turns in the plane of two axes, by default the first two."""
    def round(self, *, decimals: _int = 0) -> Tensor:
        """Rounds to `decimals` decimals, to whole numbers if that is 0; halves to even."""
    def rsqrt(self) -> Tensor:
        """`1 / sqrt(x)`."""
    def rsub(self, other: Tensor | _float, *, alpha: _float = 1.0) -> Tensor:
        """`other - alpha * input`."""
    def scatter(
        self,
        dim: _int,
        index: Tensor,
        src: Tensor | _float | None = None,
        *,
        value: _float | None = None,
        reduce: str | None = None,
    ) -> Tensor:
        """The tensor with elements replaced along an axis, each at its own index, by those of `src` or by a number; the last one of
        several wins. With `reduce` they are added ("add") or multiplied ("multiply").
        """
    def scatter_add(self, dim: _int, index: Tensor, src: Tensor) -> Tensor:
        """The tensor with elements added along an axis, each at its own index."""
    def scatter_reduce(self, dim: _int, index: Tensor, src: Tensor, reduce: str, *, include_self: _bool = True) -> Tensor:
        """The tensor with elements reduced along an axis, each at its own index."""
    def select(self, dim: _int, index: _int) -> Tensor:
        """The slice at an index of an axis, which is dropped."""
    def select_scatter(self, src: Tensor, dim: _int, index: _int) -> Tensor:
        """The tensor with the slice at an index of an axis replaced by `src`."""
    @property
    def session(self) -> Session:
        """The session that it belongs to."""
    def sgn(self) -> Tensor:
        """-1, 0 or 1 by the sign of real numbers: another name of `sign`."""
    @property
    def shape(self) -> tuple[_int, ...]:
        """The sizes of its axes, as a tuple."""
    def sigmoid(self) -> Tensor:
        """`1 / (1 + e^-x)`."""
    def sign(self) -> Tensor:
        """-1, 0 or 1, by the sign."""
    def signbit(self) -> Tensor:
        """1 where the sign bit is set, as of -0, else 0."""
    def sin(self) -> Tensor:
        """Sines of angles in radians."""
    def sinc(self) -> Tensor:
        """`sin(pi x) / (pi x)`, 1 at zero."""
    def sinh(self) -> Tensor:
        """The hyperbolic sine."""
    @overload
    def size(self, dim: None = None) -> tuple[_int, ...]:
        """The sizes of the axes, as `shape`, or the size of one axis."""
    @overload
    def size(self, dim: _int) -> _int: ...
    def slice(self, dim: _int = 0, start: _int | None = None, end: _int | None = None, step: _int = 1) -> Tensor:
        """Elements of an axis from `start` up to, not including, `end`, one every `step`."""
    def slice_scatter(self, src: Tensor, dim: _int = 0, start: _int | None = None, end: _int | None = None, step: _int = 1) -> Tensor:
        """The tensor with elements of an axis, as `slice` takes them, replaced by `src`."""
    def slogdet(self) -> tuple[Tensor, Tensor]:
        """The sign of the determinant, and the logarithm of its size."""
    def softmax(self, dim: _int, dtype: str | None = None) -> Tensor:
        """Softmax along the axis `dim`: positive numbers whose sum is 1."""
    def sort(self, dim: _int = -1, descending: _bool = False, *, stable: _bool = False) -> Places:
        """The elements along an axis, the last by default, in increasing order or `descending`, and where they were. The result is a pair
        `values`, `indices`.

        Equal elements always keep their order, whatever `stable` is.
        """
    def split(self, split_size_or_sections: _int | Sequence[_int], dim: _int = 0) -> list[Tensor]:
        """An axis cut into pieces of one size, of which the last may be shorter, or of given sizes, as a list."""
    def split_with_sizes(self, split_sizes: Sequence[_int], dim: _int = 0) -> list[Tensor]:
        """An axis cut into pieces of given sizes."""
    def split_with_sizes_copy(self, split_sizes: Sequence[_int], dim: _int = 0) -> list[Tensor]:
        """An axis cut into pieces of given sizes."""
    def sqrt(self) -> Tensor:
        """The square root; NaN below zero. The slope at zero is 0."""
    def square(self) -> Tensor:
        """`x * x`."""
    def squeeze(self, dim: _int | Sequence[_int] | None = None) -> Tensor:
        """Without the axes of one element: all of them, or those of `dim`, an axis or several."""
    def squeeze_copy(self, dim: _int | Sequence[_int] | None = None) -> Tensor:
        """Without the axes of one element: all of them, or those of `dim`, an axis or several."""
    def std(
        self,
        dim: _bool | _int | Sequence[_int] | None = None,
        unbiased: _bool | None = None,
        keepdim: _bool = False,
        *,
        correction: _float | None = None,
    ) -> Tensor:
        """Standard deviations over some axes, the square roots of `var`, with the same arguments."""
    def std_mean(
        self,
        dim: _bool | _int | Sequence[_int] | None = None,
        unbiased: _bool | None = None,
        keepdim: _bool = False,
        *,
        correction: _float | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Standard deviations and means over the same axes."""
    def stft(
        self,
        n_fft: _int,
        hop_length: _int | None = None,
        win_length: _int | None = None,
        window: Tensor | None = None,
        center: _bool = True,
        pad_mode: str = "reflect",
        normalized: _bool = False,
        onesided: _bool | None = None,
        return_complex: _bool | None = None,
    ) -> Tensor:
        """The short-time Fourier transform of signals `(…, length)`: `(…, n_fft / 2 + 1, frames)`, complex."""
    def sub(self, other: Tensor | _float, *, alpha: _float = 1.0) -> Tensor:
        """`input - alpha * other`."""
    def subtract(self, other: Tensor | _float, *, alpha: _float = 1.0) -> Tensor:
        """Another name of `sub`."""
    def sum(self, dim: _int | Sequence[_int] | None = None, keepdim: _bool = False, *, dtype: str | None = None) -> Tensor:
        """Sums over some axes, or of all elements.

        `dim` is an axis or several; without it, all of them. With `keepdim` they stay, with one element. `dtype` may only be "float32".
        """
    def sum_to_size(self, *size: _int | Sequence[_int]) -> Tensor:
        """Sums over the axes along which a tensor of the given size would be broadcast to `input`."""
    def swapaxes(self, dim0: _int, dim1: _int) -> Tensor:
        """Two axes swapped."""
    def swapdims(self, dim0: _int, dim1: _int) -> Tensor:
        """Two axes swapped."""
    def t(self) -> Tensor:
        """A matrix transposed; vectors and scalars as they are."""
    def t_copy(self) -> Tensor:
        """A matrix transposed; vectors and scalars as they are."""
    def take(self, index: Tensor) -> Tensor:
        """Elements at indices of the tensor as one list."""
    def take_along_dim(self, indices: Tensor, dim: _int | None = None) -> Tensor:
        """Elements along an axis, each at its own index; the other axes broadcast. Without an axis, of the tensor as one list."""
    def tan(self) -> Tensor:
        """Tangents of angles in radians."""
    def tanh(self) -> Tensor:
        """The hyperbolic tangent."""
    def tensor_split(self, indices_or_sections: _int | Sequence[_int] | Tensor, dim: _int = 0) -> list[Tensor]:
        """An axis cut into a number of pieces, as equal as possible, or before given places."""
    def tile(self, dims: _int | Sequence[_int], *more: _int) -> Tensor:
        """The whole tensor repeated along its last axes, or along all and new ones."""
    def topk(self, k: _int, dim: _int = -1, largest: _bool = True, sorted: _bool = True) -> Places:
        """The `k` largest elements along an axis, the last by default, or without `largest` the smallest, and where they are. The result
        is a pair `values`, `indices`.

        They are always sorted, whatever `sorted` is.
        """
    def trace(self) -> Tensor:
        """The sum of the diagonal of a matrix."""
    def tracked(self) -> Tensor:
        """The same value in a form that gradients by it can be asked for, as with `requires_grad=True`; itself if gradients flow to it
        already.
        """
    def transpose(self, dim0: _int, dim1: _int) -> Tensor:
        """Two axes swapped."""
    def transpose_copy(self, dim0: _int, dim1: _int) -> Tensor:
        """Two axes swapped."""
    def triangular_solve(
        self,
        A: Tensor,
        upper: _bool = True,
        transpose: _bool = False,
        unitriangular: _bool = False,
    ) -> tuple[Tensor, Tensor]:
        """The solution `X` of `A X = input` for a triangular matrix `A`, or of `Aᵀ X = input` with `transpose`; and `A`."""
    def tril(self, diagonal: _int = 0) -> Tensor:
        """The lower triangle of matrices, zero above the diagonal."""
    def triu(self, diagonal: _int = 0) -> Tensor:
        """The upper triangle of matrices, zero below the diagonal."""
    def true_divide(self, other: Tensor | _float) -> Tensor:
        """`input / other`: another name of `div`."""
    def trunc(self) -> Tensor:
        """Rounds towards zero to whole numbers."""
    def unbind(self, dim: _int = 0) -> list[Tensor]:
        """The slices of an axis, which is dropped."""
    def unbind_copy(self, dim: _int = 0) -> list[Tensor]:
        """The slices of an axis, which is dropped."""
    def unflatten(self, dim: _int, sizes: _int | Sequence[_int]) -> Tensor:
        """An axis as several; one of their sizes may be -1."""
    def unfold(self, dimension: _int, size: _int, step: _int) -> Tensor:
        """Windows of `size` elements of an axis, one every `step`, as a new last axis."""
    def unfold_copy(self, dimension: _int, size: _int, step: _int) -> Tensor:
        """Windows of `size` elements of an axis, one every `step`, as a new last axis."""
    def unique(self, sorted: _bool = True, return_inverse: _bool = False, return_counts: _bool = False, dim: _int | None = None) -> Any:
        """The different elements, always in increasing order; with `return_inverse` which of them each element is, with `return_counts`
        how often each is there.
        """
    def unique_consecutive(self, return_inverse: _bool = False, return_counts: _bool = False, dim: _int | None = None) -> Any:
        """The first element of every run of equal elements; with `return_inverse` which run each element is in, with `return_counts` how
        long each is.
        """
    def unsafe_chunk(self, chunks: _int, dim: _int = 0) -> list[Tensor]:
        """An axis cut into at most `chunks` pieces of equal size, as a list; the last one may be shorter."""
    def unsafe_split(self, split_size_or_sections: _int | Sequence[_int], dim: _int = 0) -> list[Tensor]:
        """An axis cut into pieces of one size, of which the last may be shorter, or of given sizes, as a list."""
    def unsafe_split_with_sizes(self, split_sizes: Sequence[_int], dim: _int = 0) -> list[Tensor]:
        """An axis cut into pieces of given sizes."""
    def unsqueeze(self, dim: _int) -> Tensor:
        """With a new axis of one element before axis `dim`; -1 puts it last."""
    def unsqueeze_copy(self, dim: _int) -> Tensor:
        """With a new axis of one element before axis `dim`; -1 puts it last."""
    def var(
        self,
        dim: _bool | _int | Sequence[_int] | None = None,
        unbiased: _bool | None = None,
        keepdim: _bool = False,
        *,
        correction: _float | None = None,
    ) -> Tensor:
        """Variances over some axes: sums of squared deviations over the count minus `correction`, which is 1, or with `unbiased=False` 0.

        `dim` is an axis or several; without it, all of them. With `keepdim` they stay, with one element.
        """
    def var_mean(
        self,
        dim: _bool | _int | Sequence[_int] | None = None,
        unbiased: _bool | None = None,
        keepdim: _bool = False,
        *,
        correction: _float | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Variances and means over the same axes."""
    def vdot(self, other: Tensor) -> Tensor:
        """The dot product of two vectors; of real numbers the same as `dot`."""
    def view(self, size: _int | Sequence[_int], *more: _int) -> Tensor:
        """The same as `reshape`."""
    def view_as(self, other: Tensor) -> Tensor:
        """The same elements with the shape of another tensor."""
    def view_as_complex(self) -> Tensor:
        """A complex value, which is pairs already: the tensor itself."""
    def view_as_real(self) -> Tensor:
        """The pairs of a complex value, which they are already: the tensor itself."""
    def view_copy(self, size: _int | Sequence[_int], *more: _int) -> Tensor:
        """The same as `reshape`."""
    def vsplit(self, indices_or_sections: _int | Sequence[_int]) -> list[Tensor]:
        """The first axis cut into equal pieces or before given places."""
    def where(self, condition: Tensor, other: Tensor | _float) -> Tensor:
        """This tensor where `condition` is true, else `other`."""
    def xlogy(self, other: Tensor | _float) -> Tensor:
        """`input * ln(other)`, 0 where `input` is 0 and `other` is not NaN."""
    def zeros_like(self, *, dtype: str | None = None) -> Tensor:
        """Zeros in the shape of a tensor."""

@final
class Param:
    """A named value that training changes. `Params.add` makes it; `session.param(param)` is its value as a tensor."""
    @property
    def name(self) -> str:
        """Its name."""
    def numpy(self) -> NDArray[Any]:
        """Its value as a new NumPy array of float32. Waits for the device."""
    def set(self, value: ArrayLike) -> None:
        """Replaces its value by an array of floats of the same shape."""
    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of its axes, as a tuple."""
    @property
    def trainable(self) -> bool:
        """Whether optimizers change it. It can be set."""
    @trainable.setter
    def trainable(self, value: bool) -> None: ...

@final
class Params:
    """The parameters of a model, by name. They live on one device.

        params = dg.Params("cuda", seed=1)
        weight = params.add("weight", np.zeros((3, 2)))
        params["weight"].numpy()

    device: a `Device` or the name of one
    seed: the seed of initial values
    """
    def __init__(self, device: Device | str = "cpu", *, seed: int = 0) -> None: ...
    def __contains__(self, name: str, /) -> bool: ...
    def __getitem__(self, name: str, /) -> Param: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def add(self, name: str, value: ArrayLike, *, trainable: bool = True) -> Param:
        """A new parameter with the value of an array of floats, which is copied. Without `trainable` it is a buffer, such as a running
        mean.
        """
    @property
    def device(self) -> Device:
        """The device they live on."""
    def fingerprint(self) -> str:
        """A hash of all bits, in the order of names: 16 hex digits that two machines can compare."""
    def items(self) -> list[tuple[str, Param]]:
        """Names and parameters, in the order they were made."""
    def keys(self) -> list[str]:
        """Their names, in the order they were made."""
    def load(self, path: str | PathLike[str]) -> None:
        """Reads all of them from a safetensors file. Errors if one is missing, too many or of another shape; nothing is changed then."""
    def numel(self) -> int:
        """The number of elements of all parameters together."""
    def save(self, path: str | PathLike[str]) -> None:
        """Writes all of them to a safetensors file."""
    def to(self, device: Device | str) -> None:
        """Moves all of them, and every program that reads them, to another device."""
    def values(self) -> list[Param]:
        """All of them, in the order they were made."""

@final
class Graph:
    """A program as data: values in the order they are computed, and which of them it returns. `trace` or `parse` makes it.

    graph = dg.Graph.trace(lambda session, x: (x * x).sum(), np.zeros((2, 3)))
    print(graph.text())
    function = graph.compile()
    (total,) = function(np.ones((2, 3)))
    """
    def __len__(self) -> int: ...
    def bind(self, params: Params) -> Graph:
        """The same program with these parameters, by name, on their device."""
    def compile(self, device: Device | str | None = None) -> Function:
        """The program ready to run many times: planned, fused, on a GPU one CUDA graph. `device` is by default where it was recorded."""
    def hash(self) -> str:
        """A hash of its text: equal programs have equal hashes."""
    @property
    def inputs(self) -> list[tuple[str, list[int]]]:
        """Types and shapes of its inputs, such as `("float32", [2, 3])`."""
    @property
    def params(self) -> list[tuple[str, list[int]]]:
        """Names and shapes of the parameters that it reads, such as `("weight", [3, 2])`."""
    @staticmethod
    def parse(text: str, *, device: Device | str = "cpu") -> Graph:
        """Reads a program from the text that `text` wrote. Its parameters have no values until `bind`."""
    def save(self, path: str | PathLike[str]) -> None:
        """Writes its text to a file, which the program `dittograd` reads too."""
    def save_model(self, path: str | PathLike[str], params: Params, evaluation: Graph, *, model: str = "") -> None:
        """Writes a model to a safetensors file: its parameters, this program for training and another for evaluation. `dittograd train FILE`
        trains it without Python. The programs have one input, a batch of rows, and one result with as many rows; this one may assign to
        parameters.

        params: all parameters that they read
        evaluation: the program for evaluation
        model: the name of the model
        """
    def text(self) -> str:
        """The program as text, one value a line, which `parse` reads."""
    def to_dot(self) -> str:
        """A drawing of it in Graphviz's language."""
    def to_svg(self) -> str:
        """A drawing of it as the text of an SVG file."""
    @staticmethod
    def trace(
        function: Callable[..., Tensor | Sequence[Tensor]],
        *examples: ArrayLike | Tensor,
        device: Device | str = "cpu",
        seed: int = 0,
    ) -> Graph:
        """The program of a function: `function(session, *inputs)` is called once, with tensors of which only types and shapes are known,
        and all it computes is recorded. Nothing runs, so it cannot read values, as by `item`. It returns a tensor, or a list or tuple
        of tensors.

        examples: arrays or tensors of the inputs' types and shapes
        device: a `Device` or the name of one, where constants and the parameters are
        seed: where random numbers start
        """
    def vjp(self) -> Graph:
        """The program of the gradients: its inputs are those of this one and then a gradient for each of its results, its results are the
        gradients of the inputs.
        """

@final
class Function:
    """A compiled program; `Graph.compile` makes it. A call takes arrays and returns a list of arrays, with the bits of running the program
    op by op. If it is given tensors of a session on its device, it returns tensors of that session: nothing goes through host memory.
    Random draws continue from call to call.
    """
    def __call__(self, *inputs: ArrayLike) -> list[Any]: ...
    @property
    def memory(self) -> int | None:
        """The bytes of memory that a run needs besides the parameters; `None` if they are not known."""
    def set_random_calls(self, calls: int) -> None:
        """Continues random draws as if this many calls had been made, as after a resume."""
    @property
    def text(self) -> str | None:
        """The compiled program, one value a line; `None` if nothing was compiled."""

@final
class TrainStep:
    """Forward, backward and update of a model as one compiled program: the same bits on every device.

        def loss(session, x, labels):
            return dg.nn.functional.cross_entropy(x @ session.param(params["weight"]), labels)

        step = dg.TrainStep(params, dg.optim.AdamW(lr=1e-3), loss)
        for x, labels in batches:
            step.run(x, labels)
        print(step.loss())

    `loss(session, *inputs)` is called once for each set of input shapes; all it computes is recorded and compiled. It returns the loss,
    a tensor of one element, or a tuple of the loss and other tensors, which `metric` reads. Parameters are read by `session.param`.

    params: the parameters that it trains, those that are `trainable`
    optimizer: what updates them, of `dittograd.optim`; each step needs its own
    loss: the function
    seed: where random numbers, as for dropout, start
    """
    def __init__(self, params: Params, optimizer: Optimizer, loss: Callable[..., Tensor | Sequence[Tensor]], *, seed: int = 0) -> None: ...
    def again(self) -> None:
        """One more step on the inputs of the last one, which are still on the device."""
    def fingerprint(self) -> str:
        """A hash of all parameter bits: 16 hex digits that two machines can compare."""
    def load(self, path: str | PathLike[str]) -> Mapping[str, str]:
        """Continues from a checkpoint. If it is of other parameters, another optimizer, seed or mode, this is an error and nothing changes. Returns the texts that
        `save` was given.
        """
    def loss(self) -> float:
        """The loss of the last step. Waits for the device."""
    @property
    def lr(self) -> float:
        """The learning rate of the next step, of parameters in no group."""
    @lr.setter
    def lr(self, value: float) -> None: ...
    def metric(self, index: int = 0) -> NDArray[Any]:
        """The value of the last step that the function returned at place `index` after the loss, as a NumPy array. Waits for the device."""
    def run(self, *inputs: ArrayLike) -> None:
        """One step on arrays, the inputs of the loss, or on tensors of a session on the same device, which are copied there. On an error
        nothing is updated. On a GPU it does not wait. Shapes may differ from step to step.

        Negative integers are labels that a loss leaves out, by its `ignore_index`.
        """
    def save(self, *, model: str = "", texts: Mapping[str, str] = {}) -> None:
        """Writes a checkpoint: parameters, state of the optimizer and place in the random streams, from which training goes on bit for
        bit. `model` is a name that the file keeps.
        """
    def set_group_lr(self, group: int, lr: float) -> None:
        """Sets the learning rate of a group for later steps. Groups count from 0, in the order the optimizer was given them."""
    def set_lr(self, lr: float) -> None:
        """Sets the learning rate of later steps, of parameters in no group."""
    @property
    def steps(self) -> int:
        """The number of steps taken."""
    @property
    def text(self) -> str:
        """The program of the last step, one value a line."""

@final
class Optimizer:
    """What updates parameters in a `TrainStep`. Make it by `dittograd.optim`, whose functions have the names and arguments of PyTorch's.
    A step takes it: the next one needs an optimizer of its own.

    rule_name: "sgd", "momentum", "adam", "adagrad", "rmsprop", "adadelta", "lion" or "muon"
    lr: the learning rate
    options: the rule's numbers by name; what is left out has PyTorch's default
    weight_decay: the factor of parameters that is added to gradients, or if it is decoupled, subtracted
    groups: parameters with numbers of their own, as (names, lr, weight_decay, options); None keeps the optimizer's
    decoupled: whether weight decay is apart from the gradient, as AdamW's
    clip_norm: the largest norm of all gradients together
    clip_value: the largest element of a gradient
    """
    def __init__(
        self,
        rule_name: str,
        lr: float,
        *,
        options: Mapping[str, float] | None = None,
        weight_decay: float = 0.0,
        decoupled: bool | None = None,
        groups: Sequence[tuple[Sequence[str], float | None, float | None, Mapping[str, float] | None]] | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
    ) -> None: ...
