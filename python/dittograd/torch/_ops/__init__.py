"""What ATen's operations become, by family. `table` says how they are declared."""

from . import images, indexing, losses, norms, pointwise, products, random, recurrent, reductions, shapes, spectral  # noqa: F401
