"""Properties and further names of functions that move elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._native import Session, Tensor, creation, shapes


def _transposed(self: Tensor) -> Tensor:
    """The axes in reverse order."""
    return self.permute(list(reversed(range(self.ndim))))


def _matrices_transposed(self: Tensor) -> Tensor:
    """The last two axes swapped."""
    return self.transpose(-2, -1)


def _matrix_transposed(self: Tensor) -> Tensor:
    """A matrix transposed; vectors and scalars as they are."""
    return self.t()


# Numbers are real, so there is nothing to conjugate.
Tensor.T, Tensor.H = property(_transposed), property(_matrix_transposed)
Tensor.mT = Tensor.mH = property(_matrices_transposed)


def _size(self: Tensor, dim: int | None = None) -> Any:
    """The sizes of the axes, as `shape`, or the size of one axis."""
    return self.shape if dim is None else self.shape[dim]


def _dim(self: Tensor) -> int:
    """The number of axes, as `ndim`."""
    return self.ndim


def _normal(session: Session, mean: float, std: float, size: int | Sequence[int], *, dtype: str | None = None) -> Tensor:
    """Draws of the normal distribution with one mean and deviation. `dittograd.normal` takes a tensor of means or deviations."""
    return creation.normal_of_size(session, mean, std, size, dtype=dtype)


Tensor.size, Tensor.dim, Session.normal = _size, _dim, _normal

_others = {
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "moveaxis": "movedim",
    "concat": "cat",
    "concatenate": "cat",
    "row_stack": "vstack",
    "unsafe_chunk": "chunk",
    "unsafe_split": "split",
    "unsafe_split_with_sizes": "split_with_sizes",
}
# These differ from the functions without `_copy` only in whether they share memory, which cannot be told here.
for _name in (
    "expand diagonal narrow view permute split_with_sizes squeeze transpose t unbind unfold unsqueeze as_strided"
).split():
    _others[f"{_name}_copy"] = _name
names = {name: getattr(shapes, function) for name, function in _others.items()}
