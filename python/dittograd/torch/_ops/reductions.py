"""Reductions, scans, and what depends on the order of elements."""

import math

import dittograd as dg

from .table import alike, axes, lowering, number

alike("amax amin argmax argmin all any cummax cummin logcumsumexp logsumexp diff trace median nanmedian", numbers=True)
alike("sort argsort topk kthvalue mode msort", numbers=True)
alike("all any", overload="dim", numbers=True)
alike("all any", overload="dims", numbers=True)
alike("count_nonzero", overload="dim_IntList", numbers=True)
alike("count_nonzero dist", numbers=True)
alike("median nanmedian", overload="dim", numbers=True)
alike("bucketize searchsorted", overload="Tensor")


def _reduction(function):
    def run(c, x, dim=None, keepdim=False, **_):
        return function(number(x), axes(dim, x.ndim), keepdim) if x.ndim else dg.positive(number(x))

    return run


lowering("sum.default", "sum.dim_IntList")(_reduction(dg.sum))
lowering("nansum.default")(_reduction(dg.nansum))
lowering("mean.default", "mean.dim")(_reduction(dg.mean))
lowering("prod.default", "prod.dim_int")(_reduction(dg.prod))


lowering("cumsum.default")(lambda c, x, dim, **_: dg.cumsum(number(x), dim))
lowering("cumprod.default")(lambda c, x, dim, **_: dg.cumprod(number(x), dim))


@lowering("max.default")
def _max(c, x):
    return dg.amax(number(x))


@lowering("min.default")
def _min(c, x):
    return dg.amin(number(x))


@lowering("max.dim")
def _max_dim(c, x, dim, keepdim=False):
    return dg.max(number(x), dim, keepdim)


@lowering("min.dim")
def _min_dim(c, x, dim, keepdim=False):
    return dg.min(number(x), dim, keepdim)


lowering("max.other", constants="numbers")(lambda c, a, b: dg.maximum(number(a), number(b)))
lowering("min.other", constants="numbers")(lambda c, a, b: dg.minimum(number(a), number(b)))


@lowering("aminmax.default")
def _aminmax(c, x, *, dim=None, keepdim=False):
    return dg.aminmax(x, dim=dim, keepdim=keepdim)


@lowering("sort.stable")
def _sort(c, x, *, stable=None, dim=-1, descending=False):
    return dg.sort(number(x), dim, descending)


@lowering("argsort.stable")
def _argsort(c, x, *, stable, dim=-1, descending=False):
    return dg.argsort(number(x), dim, descending)


def _spread(function):
    """Variances: axes, and what is subtracted from the count."""

    def run(c, x, dim=None, unbiased=True, keepdim=False, *, correction=None):
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        correction = float(unbiased) if correction is None else correction
        return function(x, axes(dim, x.ndim), None, keepdim, correction=correction)

    return run


def _spread_corrected(function):
    def run(c, x, dim=None, *, correction=None, keepdim=False):
        return function(x, axes(dim, x.ndim), None, keepdim, correction=1.0 if correction is None else correction)

    return run


for _name in ("var", "std", "var_mean", "std_mean"):
    lowering(f"{_name}.default", f"{_name}.dim")(_spread(getattr(dg, _name)))
    lowering(f"{_name}.correction")(_spread_corrected(getattr(dg, _name)))


@lowering("linalg_vector_norm.default")
def _vector_norm(c, x, ord=2, dim=None, keepdim=False, **_):
    return dg.linalg.vector_norm(x, float(ord), axes(dim, x.ndim), keepdim)


@lowering("norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype", "norm.ScalarOpt_dtype")
def _norm(c, x, p=2, dim=None, keepdim=False, **_):
    return dg.linalg.vector_norm(x, 2.0 if p is None else float(p), axes(dim, x.ndim), keepdim)


@lowering("softmax.int", "_softmax.default")
def _softmax(c, x, dim, *_, **__):
    return dg.softmax(x, dim)


@lowering("log_softmax.int", "_log_softmax.default")
def _log_softmax(c, x, dim, *_, **__):
    return dg.log_softmax(x, dim)


@lowering("_safe_softmax.default")
def _safe_softmax(c, x, dim, *_, **__):
    """Softmax where a row of nothing but minus infinity gives zeros."""
    closed = dg.eq(x.detach(), -math.inf).all(dim, True)
    return dg.where(closed, 0.0, dg.softmax(dg.where(closed, 0.0, x), dim))
