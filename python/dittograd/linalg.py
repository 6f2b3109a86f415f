"""Functions of PyTorch's `torch.linalg`."""

from . import _functions, _native

globals().update(_functions(_native.linalg))
vector_norm = _native.reductions.vector_norm
