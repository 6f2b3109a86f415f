"""Fourier transforms. Complex values are pairs: a last axis of 2, which the axes are counted without."""

import dittograd as dg

from .table import is_dynamic, lowering


def _single(function):
    def run(c, x, n=None, dim=-1, norm=None):
        return function(x, n, dim, norm)

    return run


def _several(function):
    def run(c, x, s=None, dim=None, norm=None):
        return function(x, s, dim, norm)

    return run


for _name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
    lowering(f"fft_{_name}.default", complex=True)(_single(getattr(dg.fft, _name)))
for _name in ("fftn", "ifftn", "rfftn", "irfftn"):
    lowering(f"fft_{_name}.default", complex=True)(_several(getattr(dg.fft, _name)))
for _name in ("fft2", "ifft2", "rfft2", "irfft2"):
    _function = getattr(dg.fft, _name)
    lowering(f"fft_{_name}.default", complex=True)(
        lambda c, x, s=None, dim=(-2, -1), norm=None, _function=_function: _function(x, s, list(dim), norm)
    )


@lowering("real.default", complex=True)
def _real(c, x):
    return x.select(-1, 0) if c.types[0].dtype.is_complex else x


@lowering("imag.default", complex=True)
def _imag(c, x):
    return x.select(-1, 1)


@lowering("complex.default", complex=True)
def _complex(c, real, imag):
    return dg.complex(real, imag)


@lowering("polar.default", complex=True)
def _polar(c, size, angle):
    return dg.polar(size, angle)


@lowering("conj.default", "_conj.default", "conj_physical.default", "_conj_physical.default", complex=True)
def _conj(c, x):
    if not c.types[0].dtype.is_complex:
        return x
    return dg.stack([x.select(-1, 0), -x.select(-1, 1)], -1)


def _parts(c, x, kind):
    """Real and imaginary part of an operand; the second is None for real numbers."""
    if not is_dynamic(x):
        return (x.real, x.imag) if isinstance(x, complex) else (x, None)
    return (x.select(-1, 0), x.select(-1, 1)) if kind.dtype.is_complex else (x, None)


def product(c, a, b):
    (ar, ai), (br, bi) = _parts(c, a, c.types[0]), _parts(c, b, c.types[1])
    if ai is None:
        return dg.complex(ar * br, ar * bi)
    if bi is None:
        return dg.complex(ar * br, ai * br)
    return dg.complex(ar * br - ai * bi, ar * bi + ai * br)


def total(c, a, b, sign):
    """`a + sign b`."""
    (ar, ai), (br, bi) = _parts(c, a, c.types[0]), _parts(c, b, c.types[1])
    real = dg.add(ar, br, alpha=sign)
    zero = dg.zeros_like(real)
    return dg.complex(real, dg.add(zero if ai is None else ai, zero if bi is None else bi, alpha=sign))


def magnitude(c, x):
    return dg.hypot(x.select(-1, 0), x.select(-1, 1))
