"""Functions and layers of neural networks."""

from . import functional
