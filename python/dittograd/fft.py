"""Functions of PyTorch's `torch.fft`. Complex values are pairs: a last axis of 2, which axes are counted without."""

from . import _functions, _native

globals().update(_functions(_native.fft))
