"""Losses. PyTorch passes the reduction as a number."""

import dittograd as dg
import torch

from .table import REDUCTIONS, lowering, number, plain

F = dg.nn.functional


def _labels(c, target, ignore_index):
    """Labels as indices; class probabilities stay numbers."""
    if c.types[1].dtype.is_floating_point or target.dtype == "uint32":
        return target
    # What is no class is the label to leave out.
    classes = c.types[0].shape[1 if len(c.types[0].shape) > 1 else 0]
    names = torch.tensor([ignore_index, *range(classes), ignore_index])
    return dg.take(c.tensor(names), dg.bucketize(plain(target), c.session.arange(-0.5, classes, 1.0)))


@lowering("cross_entropy_loss.default")
def _cross_entropy(c, x, target, weight=None, reduction=1, ignore_index=-100, label_smoothing=0.0):
    labels, how = _labels(c, target, ignore_index), REDUCTIONS[reduction]
    return F.cross_entropy(x, labels, weight, ignore_index=ignore_index, reduction=how, label_smoothing=label_smoothing)


@lowering("nll_loss.default", "nll_loss_nd.default", "nll_loss2d.default")
def _nll_loss(c, x, target, weight=None, reduction=1, ignore_index=-100):
    labels = _labels(c, target, ignore_index)
    return F.nll_loss(x, labels, weight, ignore_index=ignore_index, reduction=REDUCTIONS[reduction])


@lowering("nll_loss_forward.default", "nll_loss2d_forward.default")
def _nll_loss_forward(c, x, target, weight, reduction, ignore_index):
    return _nll_loss(c, x, target, weight, reduction, ignore_index), None


def _of_pairs(function):
    """A loss of an input and a target, which broadcast."""

    def run(c, x, target, reduction=1, *options):
        shape = list(torch.broadcast_shapes(tuple(x.shape), tuple(target.shape)))
        x, target = [number(t) if list(t.shape) == shape else number(t).expand(shape) for t in (x, target)]
        return function(x, target, REDUCTIONS[reduction], *options)

    return run


for _name, _function in {
    "mse_loss": lambda x, y, how: F.mse_loss(x, y, reduction=how),
    "l1_loss": lambda x, y, how: F.l1_loss(x, y, reduction=how),
    "smooth_l1_loss": lambda x, y, how, beta=1.0: F.smooth_l1_loss(x, y, reduction=how, beta=beta),
    "huber_loss": lambda x, y, how, delta=1.0: F.huber_loss(x, y, reduction=how, delta=delta),
    "soft_margin_loss": lambda x, y, how: F.soft_margin_loss(x, y, reduction=how),
}.items():
    lowering(f"{_name}.default")(_of_pairs(_function))


@lowering("kl_div.default")
def _kl_div(c, x, target, reduction=1, *, log_target=False):
    return F.kl_div(x, target, reduction=REDUCTIONS[reduction], log_target=log_target)


@lowering("binary_cross_entropy.default")
def _binary_cross_entropy(c, x, target, weight=None, reduction=1):
    return F.binary_cross_entropy(x, number(target), _like(weight, x), reduction=REDUCTIONS[reduction])


@lowering("binary_cross_entropy_with_logits.default")
def _with_logits(c, x, target, weight=None, pos_weight=None, reduction=1):
    return F.binary_cross_entropy_with_logits(
        x, number(target), _like(weight, x), reduction=REDUCTIONS[reduction], pos_weight=_like(pos_weight, x)
    )


def _like(weight, x):
    return weight if weight is None or weight.shape == x.shape else weight.expand(list(x.shape))


@lowering("margin_ranking_loss.default")
def _margin_ranking(c, a, b, target, margin=0.0, reduction=1):
    return F.margin_ranking_loss(a, b, target, margin, reduction=REDUCTIONS[reduction])


@lowering("hinge_embedding_loss.default")
def _hinge_embedding(c, x, target, margin=1.0, reduction=1):
    return F.hinge_embedding_loss(x, target, margin, reduction=REDUCTIONS[reduction])


@lowering("cosine_embedding_loss.default")
def _cosine_embedding(c, a, b, target, margin=0.0, reduction=1):
    return F.cosine_embedding_loss(a, b, target, margin, reduction=REDUCTIONS[reduction])


@lowering("triplet_margin_loss.default")
def _triplet_margin(c, anchor, positive, negative, margin=1.0, p=2.0, eps=1e-6, swap=False, reduction=1):
    return F.triplet_margin_loss(anchor, positive, negative, margin, p, eps, swap, reduction=REDUCTIONS[reduction])


@lowering("poisson_nll_loss.default")
def _poisson(c, x, target, log_input, full, eps, reduction):
    return F.poisson_nll_loss(x, target, log_input, full, eps=eps, reduction=REDUCTIONS[reduction])


@lowering("multi_margin_loss.default")
def _multi_margin(c, x, target, p=1, margin=1.0, weight=None, reduction=1):
    target = c.index(target, x.shape[-1])
    return F.multi_margin_loss(x, target, int(p), float(margin), weight, reduction=REDUCTIONS[reduction])
