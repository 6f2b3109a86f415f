"""Windows of signals, PyTorch's `torch.signal.windows`, made in a session: `hann(session, 400)`.

M: the number of points. sym: whether the window is symmetric; if not, it is periodic, as Fourier transforms want it.
"""

import math
from collections.abc import Sequence

import numpy as np

import dittograd as _f

__all__ = [
    "bartlett", "blackman", "cosine", "exponential", "gaussian", "general_cosine", "general_hamming", "hamming", "hann", "kaiser", "nuttall",
]  # fmt: skip


def _steps(M, sym):
    """The number of steps from the first point to where the window ends."""
    return M if not sym and M > 1 else M - 1


def _centered(M, sym):
    """Points one apart, with the middle of the window at 0."""
    return np.arange(M) - _steps(M, sym) / 2


def general_cosine(session: _f.Session, M: int, *, a: Sequence[float], sym: bool = True) -> _f.Tensor:
    """A sum of cosines of 0, 1, 2 … periods with the factors `a`, whose signs alternate."""
    if M == 1:
        return session.tensor(np.ones(1))
    angles = np.arange(M) * (2 * math.pi / max(_steps(M, sym), 1))
    window = session.tensor(np.full(M, float(a[0])))
    for i, factor in enumerate(a[1:], 1):
        window = _f.add(window, _f.cos(session.tensor(i * angles)), alpha=(-1) ** i * factor)
    return window


def general_hamming(session: _f.Session, M: int, *, alpha: float = 0.54, sym: bool = True) -> _f.Tensor:
    """`alpha - (1 - alpha) cos` over one period."""
    return general_cosine(session, M, a=[alpha, 1 - alpha], sym=sym)


def hamming(session: _f.Session, M: int, *, sym: bool = True) -> _f.Tensor:
    """The Hamming window."""
    return general_hamming(session, M, sym=sym)


def hann(session: _f.Session, M: int, *, sym: bool = True) -> _f.Tensor:
    """The Hann window."""
    return general_hamming(session, M, alpha=0.5, sym=sym)


def blackman(session: _f.Session, M: int, *, sym: bool = True) -> _f.Tensor:
    """The Blackman window."""
    return general_cosine(session, M, a=[0.42, 0.5, 0.08], sym=sym)


def nuttall(session: _f.Session, M: int, *, sym: bool = True) -> _f.Tensor:
    """The window of four cosines by Nuttall."""
    return general_cosine(session, M, a=[0.3635819, 0.4891775, 0.1365995, 0.0106411], sym=sym)


def bartlett(session: _f.Session, M: int, *, sym: bool = True) -> _f.Tensor:
    """The Bartlett window, a triangle."""
    return session.tensor(1 - np.abs(_centered(M, sym)) * (2 / max(_steps(M, sym), 1)))


def cosine(session: _f.Session, M: int, *, sym: bool = True) -> _f.Tensor:
    """Half a period of a sine."""
    return _f.sin(session.tensor((np.arange(M) + 0.5) * (math.pi / max(_steps(M, sym) + 1, 1))))


def exponential(session: _f.Session, M: int, *, center: float | None = None, tau: float = 1.0, sym: bool = True) -> _f.Tensor:
    """`e^(-|n - center| / tau)`; without `center` around the middle, the only choice of a symmetric window."""
    if center is not None and sym:
        raise ValueError("exponential: a symmetric window has its center in the middle; leave center out, or give sym=False")
    points = _centered(M, sym) if center is None else np.arange(M) - center
    return _f.exp(session.tensor(-np.abs(points) / tau))


def gaussian(session: _f.Session, M: int, *, std: float = 1.0, sym: bool = True) -> _f.Tensor:
    """The Gaussian window of a standard deviation in points."""
    return _f.exp(session.tensor(-((_centered(M, sym) / std) ** 2) / 2))


def kaiser(session: _f.Session, M: int, *, beta: float = 12.0, sym: bool = True) -> _f.Tensor:
    """The Kaiser window, of Bessel functions."""
    points = _centered(M, sym) * (2 / max(_steps(M, sym), 1))
    of = session.tensor(beta * np.sqrt(np.maximum(0, 1 - points**2)))
    return _f.div(_f.i0(of), _f.i0(session.tensor(np.full(1, beta))))
