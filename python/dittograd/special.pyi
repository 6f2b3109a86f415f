# Written by stubs.py.

from collections.abc import Callable, Sequence
from typing import Literal, overload

from dittograd._native import Tensor

def digamma(input: Tensor) -> Tensor:
    """The derivative of `lgamma`."""
def entr(input: Tensor) -> Tensor:
    """`-x ln x`: 0 at zero, `-inf` below."""
def erf(input: Tensor) -> Tensor:
    """The error function."""
def erfc(input: Tensor) -> Tensor:
    """`1 - erf(x)`, accurate where that is small."""
def erfcx(input: Tensor) -> Tensor:
    """`e^(x²) erfc(x)`, which does not underflow."""
def erfinv(input: Tensor) -> Tensor:
    """The inverse of `erf`."""
def exp2(input: Tensor) -> Tensor:
    """`2^x`."""
def expit(input: Tensor) -> Tensor:
    """Another name of `sigmoid`."""
def expm1(input: Tensor) -> Tensor:
    """`e^x - 1`, accurate near zero."""
def gammaln(input: Tensor) -> Tensor:
    """Another name of `lgamma`."""
def i0(input: Tensor) -> Tensor:
    """The modified Bessel function of the first kind, of order 0."""
def i0e(input: Tensor) -> Tensor:
    """`e^-|x| i0(x)`."""
def i1(input: Tensor) -> Tensor:
    """The modified Bessel function of the first kind, of order 1."""
def i1e(input: Tensor) -> Tensor:
    """`e^-|x| i1(x)`."""
def log1p(input: Tensor) -> Tensor:
    """`ln(1 + x)`, accurate near zero."""
def log_ndtr(input: Tensor) -> Tensor:
    """The logarithm of `ndtr`, accurate where that is small."""
def log_softmax(input: Tensor, dim: int, dtype: str | None = None) -> Tensor:
    """The logarithm of the softmax along the axis `dim`, without overflow."""
def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """The inverse of `sigmoid`, `ln(x / (1 - x))`. With `eps`, numbers are first held between `eps` and `1 - eps`."""
def modified_bessel_i0(input: Tensor) -> Tensor:
    """Another name of `i0`."""
def modified_bessel_i1(input: Tensor) -> Tensor:
    """Another name of `i1`."""
def ndtr(input: Tensor) -> Tensor:
    """The distribution function of the standard normal distribution."""
def ndtri(input: Tensor) -> Tensor:
    """The inverse of `ndtr`."""
def polygamma(n: int, input: Tensor) -> Tensor:
    """Derivative number `n` of `digamma`."""
def psi(input: Tensor) -> Tensor:
    """Another name of `digamma`."""
def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """Rounds to `decimals` decimals, to whole numbers if that is 0; halves to even."""
def sinc(input: Tensor) -> Tensor:
    """`sin(pi x) / (pi x)`, 1 at zero."""
def softmax(input: Tensor, dim: int, dtype: str | None = None) -> Tensor:
    """Softmax along the axis `dim`: positive numbers whose sum is 1."""
def spherical_bessel_j0(input: Tensor) -> Tensor:
    """`sin(x) / x`, 1 at zero."""
def xlog1py(input: Tensor | float, other: Tensor | float) -> Tensor:
    """`input * ln(1 + other)`, 0 where `input` is 0 and `other` is not NaN."""
def xlogy(input: Tensor | float, other: Tensor | float) -> Tensor:
    """`input * ln(other)`, 0 where `input` is 0 and `other` is not NaN."""
