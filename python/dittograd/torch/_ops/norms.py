"""Normalization. Functions of batch norm return new running statistics: nothing happens in place."""

import math

import dittograd as dg

from .table import alike, lowering

F = dg.nn.functional


def _layer_norm(x, shape, weight=None, bias=None, eps=1e-5, _=True):
    return F.layer_norm(x, list(shape), weight, bias, eps)


alike("layer_norm", _layer_norm)
alike("rms_norm", lambda x, shape, weight=None, eps=None: F.rms_norm(x, list(shape), weight, eps))
alike("group_norm", lambda x, groups, weight=None, bias=None, eps=1e-5, _=True: F.group_norm(x, groups, weight, bias, eps))


@lowering("_fused_rms_norm.default")
def _fused_rms_norm(c, x, shape, weight=None, eps=None):
    y = F.rms_norm(x, list(shape), weight, eps)
    if 1 not in c.used:
        return y, None
    axes = list(range(x.ndim - len(shape), x.ndim))
    return y, dg.rsqrt(dg.mean(x * x, axes, True) + (2.0**-23 if eps is None else eps))


@lowering("native_layer_norm.default")
def _native_layer_norm(c, x, shape, weight, bias, eps):
    if c.used <= {0}:
        return _layer_norm(x, shape, weight, bias, eps), None, None
    return dg.native_layer_norm(x, list(shape), weight, bias, eps)


@lowering("native_group_norm.default")
def _native_group_norm(c, x, weight, bias, n, channels, positions, groups, eps):
    if c.used <= {0}:
        return F.group_norm(x, groups, weight, bias, eps), None, None
    return dg.native_group_norm(x, weight, bias, n, channels, positions, groups, eps)


def _statistics(x):
    """Means and unbiased variances of the channels of a batch, through which no gradient flows."""
    mean, biased = dg.moments(x.detach())
    count = math.prod([*x.shape[:1], *x.shape[2:]])
    return mean, biased * (count / (count - 1) if count > 1 else math.nan)


def _moved(running, new, momentum):
    return running.detach() * (1.0 - momentum) + new * momentum


def _batch_norm(c, x, weight, bias, mean, var, training, momentum, eps):
    """Value, statistics of the batch if they are used, new running statistics."""
    if not training:
        return F.batch_norm(x, mean, var, weight, bias, False, momentum, eps), None, None, mean, var
    used = c.used if isinstance(c.val, (tuple, list)) else {0}
    if used & {1, 2}:
        y, batch_mean, inverse = dg.native_batch_norm(x, weight, bias, None, None, True, momentum, eps)
    else:
        y, batch_mean, inverse = F.batch_norm(x, None, None, weight, bias, True, momentum, eps), None, None
    if used & {3, 4} and mean is not None:
        new_mean, new_var = _statistics(x)
        mean, var = _moved(mean, new_mean, momentum), _moved(var, new_var, momentum)
    return y, batch_mean, inverse, mean, var


lowering("_native_batch_norm_legit_functional.default")(_batch_norm)


@lowering("_batch_norm_with_update_functional.default")
def _with_update(c, x, weight, bias, mean, var, momentum, eps):
    y, batch_mean, inverse, mean, var = _batch_norm(c, x, weight, bias, mean, var, True, momentum, eps)
    return y, batch_mean, inverse, None, mean, var


@lowering("_native_batch_norm_legit_no_training.default", "_batch_norm_no_update.default")
def _no_training(c, x, weight, bias, mean, var, momentum, eps):
    return F.batch_norm(x, mean, var, weight, bias, False, momentum, eps), None, None, None


@lowering("_native_batch_norm_legit.no_stats")
def _no_stats(c, x, weight, bias, training, momentum, eps):
    return _batch_norm(c, x, weight, bias, None, None, True, momentum, eps)[:3]


def _changes_statistics(out, x, weight, bias, mean, var, training, *_):
    return "running statistics would change in place" if training and mean is not None else None


@lowering("batch_norm.default", refuse=_changes_statistics)
def _whole_batch_norm(c, x, weight, bias, mean, var, training, momentum, eps, cudnn=False):
    return _batch_norm(c, x, weight, bias, mean, var, training, momentum, eps)[0]


@lowering("native_batch_norm.default", refuse=_changes_statistics)
def _native_batch_norm(c, x, weight, bias, mean, var, training, momentum, eps):
    return _batch_norm(c, x, weight, bias, mean, var, training, momentum, eps)[:3]


@lowering("instance_norm.default", refuse=_changes_statistics)
def _instance_norm(c, x, weight, bias, mean, var, use_input_stats, momentum, eps, cudnn=False):
    return F.instance_norm(x, mean, var, weight, bias, use_input_stats, momentum, eps)


alike("renorm")
