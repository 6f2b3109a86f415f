#!/usr/bin/env python3
"""Golden values of losses and attention as functions, computed by PyTorch in float64.

    python3 tests/golden/functional.py            writes tests/golden/functional.jsonl
    python3 tests/golden/functional.py --check    recomputes and compares with the committed file

One JSON object a line: the name, which the Rust test knows the call of, the inputs, the value `y`, and the gradients `dx` of
`(y * fill(y.shape, 3)).sum()`, or of a scalar `y` itself; null for indices and targets. Index -1 is written as 2^32 - 1. Needs torch.
"""
import pathlib
import sys

import torch
from torch.nn import functional as F

HERE = pathlib.Path(__file__).resolve().parent
from cases import fill, finish, whole

FILE = HERE / "functional.jsonl"
torch.set_default_dtype(torch.float64)


def digits(t):
    return [float(f"{v:.12g}") for v in t.detach().reshape(-1).tolist()]


class Fixed:
    """An input without a gradient."""

    def __init__(self, value):
        self.value = value


def case(name, f, *ins):
    moving = [not isinstance(v, Fixed) and v.is_floating_point() for v in ins]
    ins = [(v.value if isinstance(v, Fixed) else v).clone().detach().requires_grad_(m) for v, m in zip(ins, moving)]
    y = f(*ins)
    (y if y.dim() == 0 else (y * fill(y.shape, 3)).sum()).backward()
    given = []
    for v in ins:
        if v.is_floating_point():
            assert torch.equal(v, v.float().double()), name
            given.append({"shape": list(v.shape), "num": v.detach().reshape(-1).tolist()})
        else:
            given.append({"shape": list(v.shape), "idx": [i % 2**32 for i in v.reshape(-1).tolist()]})
    slopes = [digits(v.grad) if moves else None for v, moves in zip(ins, moving)]
    return {"name": name, "ins": given, "shape": list(y.shape), "y": digits(y), "dx": slopes}


def signs(shape, k):
    return Fixed(whole(shape, k, 2).double() * 2 - 1)


def losses(reduction):
    made = lambda name, f, *ins: case(f"{name}.{reduction}", lambda *v: f(*v, reduction=reduction), *ins)
    a, b, c = (4 * fill([5, 4], k) for k in (90, 91, 92))
    sign = signs([5, 4], 1)
    yield made("margin_ranking", lambda a, b, t, **o: F.margin_ranking_loss(a, b, t, 0.25, **o), a, b, sign)
    yield made("soft_margin", F.soft_margin_loss, a, sign)
    yield made("hinge_embedding", lambda a, t, **o: F.hinge_embedding_loss(a, t, 0.5, **o), a, sign)
    row = signs([5], 0)
    yield made("cosine_embedding", lambda a, b, t, **o: F.cosine_embedding_loss(a, b, t, 0.125, **o), a, b, row)
    # At the corner of the hinge.
    ones, first = torch.ones(5, 4), Fixed(torch.ones(5, 4))
    yield made("hinge_embedding_corner", lambda a, t, **o: F.hinge_embedding_loss(a, -t, 1.0, **o), ones, first)
    yield made("margin_ranking_corner", lambda a, b, t, **o: F.margin_ranking_loss(a, b, t, 0.0, **o), ones, ones, first)
    yield made("triplet", F.triplet_margin_loss, a, b, c)
    swap = lambda a, b, c, **o: F.triplet_margin_loss(a, b, c, margin=2.0, p=1.0, swap=True, **o)
    yield made("triplet_swap", swap, a, b, c)
    labels, weight = whole([5], 1, 4), Fixed(torch.tensor([0.5, 2.0, 1.25, 0.75]))
    yield made("multi_margin", F.multi_margin_loss, a, labels)
    squared = lambda a, t, w, **o: F.multi_margin_loss(a, t, 2, 0.5, w, **o)
    yield made("multi_margin_squared", squared, a, labels, weight)
    lists = torch.tensor([[2, 0, -1, 1], [-1, 3, 2, 0], [0, 1, 2, 3], [1, -1, -1, -1], [3, 2, 0, -1]])
    yield made("multilabel_margin", F.multilabel_margin_loss, a, lists)
    part = Fixed(whole([5, 4], 2, 2).double())
    yield made("multilabel_soft", lambda a, t, w, **o: F.multilabel_soft_margin_loss(a, t, w, **o), a, part, weight)
    counts = Fixed(whole([5, 4], 0, 5).double())
    yield made("poisson", F.poisson_nll_loss, a, counts)
    rate = lambda a, t, **o: F.poisson_nll_loss(a, t, False, True, eps=2.0**-20, **o)
    yield made("poisson_rate", rate, a.abs() + 0.25, counts)
    var = b.abs() + 0.125
    yield made("gaussian", lambda a, t, v, **o: F.gaussian_nll_loss(a, t, v, eps=0.5, **o), a, c, var)
    rows = lambda a, t, v, **o: F.gaussian_nll_loss(a, t, v, full=True, **o)
    yield made("gaussian_rows", rows, a, c, var[:, 0])
    yield made("kl_log", lambda a, t, **o: F.kl_div(a, t, log_target=True, **o), a, b)
    p = (fill([5, 4], 93) + 0.5).clamp(0.125, 0.875)
    yield made("bce", lambda p, t, w, **o: F.binary_cross_entropy(p, t, w, **o), p, Fixed(fill([5, 4], 94) + 0.5), weight)
    both = lambda x, t, w, q, **o: F.binary_cross_entropy_with_logits(x, t, w, pos_weight=q, **o)
    yield made("bce_logits", both, a, Fixed(p), weight, Fixed(torch.tensor([2.0, 1.0, 0.5, 3.0])))
    yield made("ce_probabilities", F.cross_entropy, a, p)
    deep, likely = 4 * fill([2, 4, 3], 90), fill([2, 4, 3], 95) + 0.5
    smooth = lambda x, t, w, **o: F.cross_entropy(x, t, w, label_smoothing=0.125, **o)
    yield made("ce_probabilities_axis", smooth, deep, likely, weight)
    image, pixels = 4 * fill([2, 4, 2, 3], 90), whole([2, 2, 3], 1, 4)
    picture = lambda x, t, w, **o: F.cross_entropy(x, t, w, ignore_index=2, label_smoothing=0.125, **o)
    yield made("ce_image", picture, image, pixels, weight)
    yield made("nll_image", lambda x, t, w, **o: F.nll_loss(x, t, w, **o), image, pixels, weight)
    x, targets = 4 * fill([7, 4, 5], 90), torch.tensor([[1, 2, 2], [3, 1, 4], [4, 4, 1], [2, 1, 1]])
    of, to = torch.tensor([7, 5, 6, 4]), torch.tensor([3, 2, 3, 0])
    ctc = lambda x, t, n, m, **o: F.ctc_loss(x.log_softmax(-1), t, n, m, **o)
    yield made("ctc", ctc, x, targets, of, to)
    equal = torch.zeros(7, 4, 5)
    yield made("ctc_equal", ctc, equal, targets, of, to)
    # The third sequence is too short: its labels need a blank between two of them.
    short = lambda x, t, n, m, **o: F.ctc_loss(x.log_softmax(-1), t, n, m, blank=4, zero_infinity=True, **o)
    yield made("ctc_short", short, x, torch.tensor([[1, 2, 2], [3, 1, 0], [0, 0, 1], [2, 1, 1]]), torch.tensor([7, 5, 3, 0]), to)


def functions():
    a, b = 4 * fill([5, 4], 90), 4 * fill([5, 4], 91)
    yield case("kl_batchmean", lambda a, t: F.kl_div(a, t, reduction="batchmean"), a, b.abs() + 0.125)
    yield case("kl_log_batchmean", lambda a, t: F.kl_div(a, t, reduction="batchmean", log_target=True), a, b)
    yield case("softmin", lambda a: F.softmin(a, 0), a)
    yield case("ctc_one", lambda x, t, n, m: F.ctc_loss(x.log_softmax(-1), t, n, m), 4 * fill([6, 3], 90), torch.tensor([1, 2]), torch.tensor(6), torch.tensor(2))


def attention():
    q, k, v = 4 * fill([2, 4, 3, 6], 90), 4 * fill([2, 4, 5, 6], 91), 4 * fill([2, 4, 5, 2], 92)
    bias = 4 * fill([4, 3, 5], 93)
    yield case("sdpa_bias", lambda q, k, v, b: F.scaled_dot_product_attention(q, k, v, b, scale=0.25), q, k, v, bias)
    mask = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]]).bool()[:, None, None, :]
    yield case("sdpa_keys", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask), q, k, v)
    closed = torch.where(mask, 0.0, -torch.inf)
    closed[1] = -torch.inf
    yield case("sdpa_closed", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, closed), q, k, v)
    few = lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], is_causal=True, enable_gqa=True)
    yield case("sdpa_shared", few, q, k, v)
    wide = [fill([1, 1, 2, 257], k) for k in (90, 91, 92)]
    yield case("sdpa_wide", lambda q, k, v: F.scaled_dot_product_attention(q, k, v), *wide)


def cases():
    for reduction in ("none", "mean", "sum"):
        yield from losses(reduction)
    yield from functions()
    yield from attention()


if __name__ == "__main__":
    sys.exit(finish(FILE, list(cases()), 1e-10))
