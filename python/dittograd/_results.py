"""Results with names."""

from collections import namedtuple

Places = namedtuple("Places", "values indices")
Extremes = namedtuple("Extremes", "min max")
Histogram = namedtuple("Histogram", "hist bin_edges")
