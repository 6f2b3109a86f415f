"""Functions of PyTorch's `torch.masked`: elements whose mask is 0 take no part. A mask broadcasts to the input."""

import math
from collections.abc import Sequence

import dittograd as _dg

from ._native import Tensor as _Tensor

_Dims = int | Sequence[int] | None


def _kept(input, mask, instead):
    """The elements, with a number in place of those that take no part."""
    return input if mask is None else _dg.where(mask, input, instead)


def _counts(input, dim, keepdim, mask):
    """How many elements take part."""
    return sum(_dg.ones_like(input), dim, keepdim=keepdim, mask=mask)


def sum(input: _Tensor, dim: _Dims = None, *, keepdim: bool = False, mask: _Tensor | None = None) -> _Tensor:
    """Sums over some axes, or of all elements."""
    return _dg.sum(_kept(input, mask, 0.0), dim, keepdim)


def prod(input: _Tensor, dim: _Dims = None, *, keepdim: bool = False, mask: _Tensor | None = None) -> _Tensor:
    """Products over some axes, or of all elements."""
    return _dg.prod(_kept(input, mask, 1.0), dim, keepdim)


def amax(input: _Tensor, dim: _Dims = None, *, keepdim: bool = False, mask: _Tensor | None = None) -> _Tensor:
    """The largest elements over some axes, or of all; -inf if none takes part."""
    return _dg.amax(_kept(input, mask, -math.inf), dim, keepdim)


def amin(input: _Tensor, dim: _Dims = None, *, keepdim: bool = False, mask: _Tensor | None = None) -> _Tensor:
    """The smallest elements over some axes, or of all; inf if none takes part."""
    return _dg.amin(_kept(input, mask, math.inf), dim, keepdim)


def argmax(input: _Tensor, dim: int | None = None, *, keepdim: bool = False, mask: _Tensor | None = None) -> _Tensor:
    """The positions of the largest elements along an axis, or that of the largest of all."""
    return _dg.argmax(_kept(input, mask, -math.inf), dim, keepdim)


def argmin(input: _Tensor, dim: int | None = None, *, keepdim: bool = False, mask: _Tensor | None = None) -> _Tensor:
    """The positions of the smallest elements along an axis, or that of the smallest of all."""
    return _dg.argmin(_kept(input, mask, math.inf), dim, keepdim)


def mean(input: _Tensor, dim: _Dims = None, *, keepdim: bool = False, mask: _Tensor | None = None) -> _Tensor:
    """Means over some axes, or of all elements; NaN if none takes part."""
    return _dg.div(sum(input, dim, keepdim=keepdim, mask=mask), _counts(input, dim, keepdim, mask))


def median(input: _Tensor, dim: int = -1, *, keepdim: bool = False, mask: _Tensor | None = None) -> _Tensor:
    """Medians along an axis; NaN if no element takes part."""
    return _dg.nanmedian(_kept(input, mask, math.nan), dim, keepdim).values


def norm(input: _Tensor, ord: float | None = 2.0, dim: _Dims = None, *, keepdim: bool = False, mask: _Tensor | None = None) -> _Tensor:
    """Norms of vectors over some axes, or of all elements."""
    ord = 2.0 if ord is None else ord
    return _dg.linalg.vector_norm(_kept(input, mask, math.inf if ord == -math.inf else 0.0), ord, dim, keepdim)


def var(
    input: _Tensor,
    dim: _Dims = None,
    unbiased: bool | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
    mask: _Tensor | None = None,
) -> _Tensor:
    """Variances over some axes: sums of squared deviations over the count minus `correction`, which is 1, or with `unbiased=False` 0."""
    if unbiased is not None and correction is not None:
        raise ValueError("give unbiased or correction, not both")
    correction = (1.0 if unbiased is None else float(unbiased)) if correction is None else correction
    apart = _dg.sub(input, mean(input, dim, keepdim=True, mask=mask))
    count = _counts(input, dim, keepdim, mask)
    return _dg.div(sum(_dg.square(apart), dim, keepdim=keepdim, mask=mask), _dg.clamp_min(_dg.add(count, -correction), 0.0))


def std(
    input: _Tensor,
    dim: _Dims = None,
    unbiased: bool | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
    mask: _Tensor | None = None,
) -> _Tensor:
    """Standard deviations over some axes, the square roots of `var`."""
    return _dg.sqrt(var(input, dim, unbiased, correction=correction, keepdim=keepdim, mask=mask))


def cumsum(input: _Tensor, dim: int, *, mask: _Tensor | None = None) -> _Tensor:
    """Sums of the elements up to each along an axis."""
    return _dg.cumsum(_kept(input, mask, 0.0), dim)


def cumprod(input: _Tensor, dim: int, *, mask: _Tensor | None = None) -> _Tensor:
    """Products of the elements up to each along an axis."""
    return _dg.cumprod(_kept(input, mask, 1.0), dim)


def logsumexp(input: _Tensor, dim: _Dims = None, *, keepdim: bool = False, mask: _Tensor | None = None) -> _Tensor:
    """`log Σ e^x` over some axes, or of all elements; -inf if none takes part."""
    return _dg.logsumexp(_kept(input, mask, -math.inf), list(range(input.ndim)) if dim is None else dim, keepdim)


def logaddexp(input: _Tensor, other: _Tensor, *, input_mask: _Tensor | None = None, other_mask: _Tensor | None = None) -> _Tensor:
    """`log(e^input + e^other)` of each element."""
    return _dg.logaddexp(_kept(input, input_mask, -math.inf), _kept(other, other_mask, -math.inf))


def softmax(input: _Tensor, dim: int, *, mask: _Tensor | None = None) -> _Tensor:
    """Softmax along an axis; NaN if no element takes part."""
    return _dg.softmax(_kept(input, mask, -math.inf), dim)


def log_softmax(input: _Tensor, dim: int, *, mask: _Tensor | None = None) -> _Tensor:
    """The logarithm of the softmax along an axis; NaN if no element takes part."""
    return _dg.log_softmax(_kept(input, mask, -math.inf), dim)


def softmin(input: _Tensor, dim: int, *, mask: _Tensor | None = None) -> _Tensor:
    """Softmax of the negated elements along an axis; NaN if no element takes part."""
    return _dg.softmax(_dg.neg(_kept(input, mask, math.inf)), dim)


def normalize(input: _Tensor, ord: float | None, dim: int, *, eps: float = 1e-12, mask: _Tensor | None = None) -> _Tensor:
    """The elements divided by their norm along an axis, or by `eps` if that is larger."""
    return _dg.div(_kept(input, mask, 0.0), _dg.clamp_min(norm(input, ord, dim, keepdim=True, mask=mask), eps))
