"""Dropout and other random draws. They come from the session's seed, not from PyTorch's."""

import dittograd as dg

from .table import alike, lowering

F = dg.nn.functional



@lowering("native_dropout.default")
def _native_dropout(c, x, p, train):
    if 1 not in c.used:
        return F.dropout(x, p, bool(train)), None
    if not train or p == 0:
        return x, dg.ones_like(x)
    mask = dg.bernoulli(x, 1.0 - p)
    return (x * mask * (1.0 / (1.0 - p)) if p < 1 else x * 0.0), mask


for _name, _function in {
    "dropout": F.dropout,
    "feature_dropout": F.dropout2d,
    "alpha_dropout": F.alpha_dropout,
    "feature_alpha_dropout": F.feature_alpha_dropout,
}.items():
    alike(_name, _function)


@lowering("bernoulli.p", "bernoulli.default")
def _bernoulli(c, x, p=None, **_):
    return dg.bernoulli(x, p)


@lowering("rand.default")
def _rand(c, size, **_):
    return c.session.rand(list(size))


@lowering("randn.default")
def _randn(c, size, **_):
    return c.session.randn(list(size))


@lowering("rand_like.default")
def _rand_like(c, x, **_):
    return c.session.rand(list(c.val.shape))


@lowering("randn_like.default")
def _randn_like(c, x, **_):
    return c.session.randn(list(c.val.shape))


@lowering("uniform.default")
def _uniform(c, x, low=0.0, high=1.0, **_):
    return c.session.rand(list(c.val.shape)) * (high - low) + low


@lowering("normal_functional.default")
def _normal(c, x, mean=0.0, std=1.0, **_):
    return c.session.randn(list(c.val.shape)) * std + mean


@lowering("exponential.default")
def _exponential(c, x, rate=1.0, **_):
    # 1 - u is never 0.
    return dg.log(1.0 - c.session.rand(list(c.val.shape))) * (-1.0 / rate)


@lowering("randint.default", "randint.low")
def _randint(c, *arguments, **_):
    *bounds, size = arguments
    return c.session.randint(*([0] if len(bounds) == 1 else []), *bounds, list(size))


@lowering("randint_like.default", "randint_like.low_dtype")
def _randint_like(c, x, *bounds, **_):
    return c.session.randint(*([0] if len(bounds) == 1 else []), *bounds, list(c.val.shape))


@lowering("randperm.default")
def _randperm(c, n, **_):
    return c.session.randperm(n)


@lowering("multinomial.default")
def _multinomial(c, x, count, replacement=False, **_):
    return dg.multinomial(x, count, replacement)
