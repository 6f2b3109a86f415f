"""Results with names."""

from typing import NamedTuple

from ._native import Tensor


class Places(NamedTuple):
    """Elements of a tensor and their positions along an axis."""

    values: Tensor
    indices: Tensor


class Extremes(NamedTuple):
    """The smallest and the largest elements."""

    min: Tensor
    max: Tensor


class Histogram(NamedTuple):
    """The counts of the bins, and the edges of the bins, one more than bins."""

    hist: Tensor
    bin_edges: Tensor
