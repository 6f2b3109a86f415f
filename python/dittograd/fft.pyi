# Written by stubs.py.

from collections.abc import Callable, Sequence
from typing import Literal, overload

from dittograd._native import Tensor

def fft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The discrete Fourier transform of a complex value along an axis, the last by default.

    A complex value is pairs of a real and an imaginary part along one more last axis of 2, which `dim` does not count.

    n: the number of points, by default all: elements are cut, or zeros added at the end
    norm: "backward", the default, which divides the inverse by `n`; "forward", which divides the transform; "ortho", both by its
    root
    """
def fft2(input: Tensor, s: Sequence[int] | None = None, dim: int | Sequence[int] = (-2, -1), norm: str | None = None) -> Tensor:
    """`fftn` along two axes, the last ones if `dim` is not given."""
def fftn(input: Tensor, s: Sequence[int] | None = None, dim: int | Sequence[int] | None = None, norm: str | None = None) -> Tensor:
    """`fft` along several axes, with `s` points: the last ones or all if `dim` is not given."""
def fftshift(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Moves mode 0 from the start to the middle of each axis of `dim`. Of complex pairs, name the axes."""
def hfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The real transform of a complex value that is half of a Hermitian one."""
def hfft2(input: Tensor, s: Sequence[int] | None = None, dim: int | Sequence[int] = (-2, -1), norm: str | None = None) -> Tensor:
    """`hfftn` along two axes, the last ones if `dim` is not given."""
def hfftn(input: Tensor, s: Sequence[int] | None = None, dim: int | Sequence[int] | None = None, norm: str | None = None) -> Tensor:
    """`hfft` along the last of several axes, after `fft` along the others."""
def ifft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `fft`, with the same arguments."""
def ifft2(input: Tensor, s: Sequence[int] | None = None, dim: int | Sequence[int] = (-2, -1), norm: str | None = None) -> Tensor:
    """`ifftn` along two axes, the last ones if `dim` is not given."""
def ifftn(input: Tensor, s: Sequence[int] | None = None, dim: int | Sequence[int] | None = None, norm: str | None = None) -> Tensor:
    """The inverse of `fftn`."""
def ifftshift(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """The inverse of `fftshift`."""
def ihfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `hfft`."""
def ihfft2(input: Tensor, s: Sequence[int] | None = None, dim: int | Sequence[int] = (-2, -1), norm: str | None = None) -> Tensor:
    """`ihfftn` along two axes, the last ones if `dim` is not given."""
def ihfftn(input: Tensor, s: Sequence[int] | None = None, dim: int | Sequence[int] | None = None, norm: str | None = None) -> Tensor:
    """The inverse of `hfftn`."""
def irfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `rfft`: `n` real points, or twice the modes less 2."""
def irfft2(input: Tensor, s: Sequence[int] | None = None, dim: int | Sequence[int] = (-2, -1), norm: str | None = None) -> Tensor:
    """`irfftn` along two axes, the last ones if `dim` is not given."""
def irfftn(input: Tensor, s: Sequence[int] | None = None, dim: int | Sequence[int] | None = None, norm: str | None = None) -> Tensor:
    """The inverse of `rfftn`."""
def rfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The transform of a real value along an axis, the last by default: the modes 0 to `n / 2`, complex. Arguments as of `fft`."""
def rfft2(input: Tensor, s: Sequence[int] | None = None, dim: int | Sequence[int] = (-2, -1), norm: str | None = None) -> Tensor:
    """`rfftn` along two axes, the last ones if `dim` is not given."""
def rfftn(input: Tensor, s: Sequence[int] | None = None, dim: int | Sequence[int] | None = None, norm: str | None = None) -> Tensor:
    """The transform of a real value along several axes: `rfft` along the last of them, `fft` along the others."""
