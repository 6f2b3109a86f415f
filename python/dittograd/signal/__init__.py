"""Functions of PyTorch's `torch.signal`."""

from . import windows
