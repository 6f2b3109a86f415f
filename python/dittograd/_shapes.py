"""Properties and further names of functions that move elements."""

from ._native import Tensor, creation, shapes
from ._native import Session

Tensor.T = property(lambda self: self.permute(list(reversed(range(self.ndim)))), doc="The axes in reverse order.")
Tensor.mT = property(lambda self: self.transpose(-2, -1), doc="Matrices transposed.")
Tensor.H = property(lambda self: self.t(), doc="A matrix transposed; numbers are real.")
Tensor.mH = property(lambda self: self.transpose(-2, -1), doc="Matrices transposed; numbers are real.")
Tensor.size = lambda self, dim=None: self.shape if dim is None else self.shape[dim]
Tensor.dim = lambda self: self.ndim


def _normal(session, mean, std, size, *, dtype=None):
    """Normal draws with one mean and deviation."""
    return creation.normal_of_size(session, mean, std, size, dtype=dtype)


Session.normal = _normal

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
