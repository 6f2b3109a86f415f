#!/usr/bin/env python3
"""Golden values of methods that sort, select, scatter and count, and their gradients, computed by PyTorch in float64.

    python3 tests/golden/order.py           writes tests/golden/order.jsonl

One JSON object a line: the method `call`, its arguments, inputs, results `y`, and for methods with gradients the upstream
gradient `dy` of the first result and the gradients `dx` of the inputs. Needs torch and numpy.
"""
import json
import math
import pathlib

import numpy as np
import torch
import torch.nn.functional as F

FILE = pathlib.Path(__file__).with_name("order.jsonl")
CASES = []
NAN, INF = math.nan, math.inf
rng = np.random.default_rng(29)


def numbers(t):
    return [v if math.isfinite(v) else str(v) for v in np.asarray(t, dtype=np.float64).reshape(-1).tolist()]


def draw(*shape):
    """Different numbers, so that places are unique."""
    n = int(np.prod(shape))
    return torch.tensor(rng.permutation(n) / 16.0 - n / 32.0, dtype=torch.float64).reshape(shape)


def whole(low, high, *shape):
    """Whole numbers, many of them equal."""
    return torch.tensor(rng.integers(low, high, size=shape), dtype=torch.float64)


def index(below, *shape):
    return torch.tensor(rng.integers(0, below, size=shape), dtype=torch.int64)


def case(call, args, fn, *ins, grad=True):
    ins = [i.clone() for i in ins]
    ins = [i.requires_grad_(grad) if i.dtype == torch.float64 else i for i in ins]
    y = fn(*ins)
    y = list(y) if isinstance(y, (tuple, list)) else [y]
    described = []
    for t in ins + y:
        kind = "data" if t.dtype == torch.float64 else "idx"
        described.append({"shape": list(t.shape), kind: numbers(t.detach()) if kind == "data" else t.reshape(-1).tolist()})
    entry = {"call": call, "args": args, "ins": described[: len(ins)], "y": described[len(ins) :]}
    wanted = [i for i in ins if i.requires_grad]
    if grad and y[0].requires_grad:
        dy = torch.tensor(rng.uniform(-1.0, 1.0, size=tuple(y[0].shape)).astype(np.float32).astype(np.float64))
        got = iter(torch.autograd.grad(y[0], wanted, dy.reshape(y[0].shape), allow_unused=True))
        dx = [next(got) if i.requires_grad else None for i in ins]
        entry["dy"] = numbers(dy)
        entry["dx"] = [None if g is None else numbers(g) for g in dx]
    CASES.append(entry)


def order():
    x = draw(3, 7, 4)
    ties = whole(-2, 3, 4, 9)
    broken = torch.tensor([[1.0, NAN, -2.0, 0.0, 3.0], [5.0, 4.0, 3.0, 2.0, 1.0], [NAN] * 5, [-0.0, 0.0, INF, -INF, NAN]], dtype=torch.float64)
    for axis in (0, 1, 2):
        for down in (False, True):
            case("sort", [axis, down], lambda x: torch.sort(x, dim=axis, descending=down, stable=True), x)
    for down in (False, True):
        case("sort", [1, down], lambda x: torch.sort(x, dim=1, descending=down, stable=True), ties)
        case("sort", [1, down], lambda x: torch.sort(x, dim=1, descending=down, stable=True), broken, grad=False)
        case("argsort", [0, down], lambda x: torch.argsort(x, dim=0, descending=down, stable=True), ties)
    case("msort", [], torch.msort, x)
    for axis, k, largest in ((0, 2, True), (1, 3, False), (2, 4, True), (1, 1, True)):
        case("topk", [k, axis, largest], lambda x: torch.topk(x, k, axis, largest), x)
    for axis, k, keep in ((1, 1, False), (1, 7, True), (0, 2, False)):
        case("kthvalue", [k, axis, keep], lambda x: torch.kthvalue(x, k, axis, keep), x)
    for axis, keep in ((0, False), (1, True), (2, False)):
        case("median", [axis, keep], lambda x: torch.median(x, axis, keep), x)
        case("nanmedian", [axis, keep], lambda x: torch.nanmedian(x, axis, keep), x)
        case("max_dim", [axis, keep], lambda x: torch.max(x, axis, keep), x)
        case("min_dim", [axis, keep], lambda x: torch.min(x, axis, keep), x)
        case("cummax", [axis], lambda x: torch.cummax(x, axis), x)
        case("cummin", [axis], lambda x: torch.cummin(x, axis), x)
    case("median", [1, False], lambda x: torch.median(x, 1)[0], broken, grad=False)
    case("nanmedian", [1, False], lambda x: torch.nanmedian(x, 1)[0], broken, grad=False)
    for t in (ties, broken):
        case("cummax", [1], lambda x: torch.cummax(x, 1), t)
        case("cummin", [1], lambda x: torch.cummin(x, 1), t)
    case("mode", [1, False], lambda x: torch.mode(x, 1)[0], ties)
    case("mode", [0, True], lambda x: torch.mode(x, 0, True)[0], ties)
    q = [0.0, 0.1, 0.25, 0.5, 0.77, 1.0]
    for how in ("linear", "lower", "higher", "midpoint", "nearest"):
        tq = torch.tensor(q, dtype=torch.float64)
        for axis, keep in ((0, False), (1, True), (2, False)):
            case("quantile", [q, axis, keep, how], lambda x: torch.quantile(x, tq, axis, keep, interpolation=how), x)
        case("nanquantile", [q, 1, False, how], lambda x: torch.nanquantile(x, tq, 1, interpolation=how), x)
        some = broken[:3]
        case("quantile", [q, 1, False, how], lambda x: torch.quantile(x, tq, 1, interpolation=how), some, grad=False)
        case("nanquantile", [q, 1, True, how], lambda x: torch.nanquantile(x, tq, 1, True, interpolation=how), some, grad=False)
    for axis in (0, 1, 2):
        case("logcumsumexp", [axis], lambda x: torch.logcumsumexp(x, axis), draw(3, 7, 4) * 4)
        case("cumprod", [axis], lambda x: torch.cumprod(x, axis), whole(-2, 3, 3, 5, 4))
    far = torch.tensor([-INF, -INF, 700.0, -700.0, 3.0, 705.0, INF, 2.0, NAN, 1.0], dtype=torch.float64)
    case("logcumsumexp", [0], lambda x: torch.logcumsumexp(x, 0), far, grad=False)
    bounds = torch.tensor([-1.0, 0.0, 0.0, 1.0, 2.5], dtype=torch.float64)
    for right in (False, True):
        case("searchsorted", [right], lambda b, v: torch.searchsorted(b, v, right=right), bounds, whole(-2, 4, 3, 5))
        case("searchsorted", [right], lambda b, v: torch.searchsorted(b, v, right=right), torch.sort(ties, 1)[0], whole(-3, 4, 4, 5))
        case("bucketize", [right], lambda v, b: torch.bucketize(v, b, right=right), whole(-2, 4, 3, 5), bounds)


def scatters():
    x, i = draw(4, 6), index(4, 3, 5)
    case("gather", [0], lambda x, i: x.gather(0, i), x, i)
    case("gather", [1], lambda x, i: x.gather(1, i), x, index(6, 2, 9))
    once = torch.tensor([[3, 1, 0, 2, 3], [0, 2, 1, 3, 0]])
    # PyTorch has gradients of scatters only where indices and sources have one shape.
    case("scatter", [0], lambda x, i, s: x.scatter(0, i, s), x, once, draw(2, 5))
    case("scatter", [0], lambda x, i, s: x.scatter(0, i, s), x, once, draw(3, 6), grad=False)
    case("scatter_value", [0, 2.5], lambda x, i: x.scatter(0, i, 2.5), x, i)
    case("scatter_add", [0], lambda x, i, s: x.scatter_add(0, i, s), x, i, draw(4, 7), grad=False)
    case("scatter_add", [1], lambda x, i, s: x.scatter_add(1, i, s), x, index(6, 4, 8), draw(4, 8))
    for how in ("sum", "mean", "prod", "amax", "amin"):
        for own in (True, False):
            base, src = whole(-2, 3, 4, 6), whole(-2, 3, 5, 6)
            if how in ("amax", "amin") and not own:
                # PyTorch gives an element that does not count a share of the gradient if it is equal, which is then lost.
                base = base + 0.5
            case("scatter_reduce", [0, how, own], lambda x, i, s: x.scatter_reduce(0, i, s, how, include_self=own), base, index(4, 5, 6), src)
            case("scatter_reduce", [0, how, own], lambda x, i, s: x.scatter_reduce(0, i, s, how, include_self=own), base, index(4, 4, 5), src, grad=False)
            case("scatter_reduce", [1, how, own], lambda x, i, s: x.scatter_reduce(1, i, s, how, include_self=own), base, index(6, 4, 9), whole(-2, 3, 4, 9))
            if how != "sum":
                # PyTorch's gradients of index_reduce are checked by those of scatter_reduce.
                case("index_reduce", [1, how, own], lambda x, i, s: x.index_reduce(1, i, s, how, include_self=own), base, index(6, 8), whole(-2, 3, 4, 8), grad=False)
    case("index_copy", [1], lambda x, i, s: x.index_copy(1, i, s), x, torch.tensor([4, 0, 2]), draw(4, 3))
    case("index_fill", [0, -1.5], lambda x, i: x.index_fill(0, i, -1.5), x, torch.tensor([1, 3, 1]))
    rows, columns = torch.tensor([[0], [3]]), torch.tensor([5, 1, 2])
    case("index", [], lambda x, a, b: x[a, b], x, rows, columns)
    case("index", [], lambda x, a: x[a], x, index(4, 2, 3))
    case("index_put", [False], lambda x, v, a, b: x.index_put((a, b), v), x, draw(2, 3), rows, columns)
    case("index_put", [True], lambda x, v, a, b: x.index_put((a, b), v, True), x, draw(5), index(4, 5), index(6, 5))
    case("index_put", [True], lambda x, v, a: x.index_put((a,), v, True), x, draw(6), index(4, 2, 3))
    case("take", [], lambda x, i: x.take(i), x, index(24, 2, 5))
    case("put", [False], lambda x, i, s: x.put(i, s), x, torch.tensor([[3, 8], [23, 0]]), draw(4))
    case("put", [True], lambda x, i, s: x.put(i, s, True), x, index(24, 9), draw(9))
    mask = whole(0, 2, 4, 6)
    case("masked_scatter", [], lambda x, m, s: x.masked_scatter(m.bool(), s), x, mask, draw(30))
    case("masked_select", [], lambda x, m: x.masked_select(m.bool()), x, mask)
    case("masked_select", [], lambda x, m: x.masked_select(m.bool()), x, whole(0, 2, 6))
    table, words = draw(5, 3), index(5, 2, 4)
    case("embedding", [2, None], lambda t, i: F.embedding(i, t, padding_idx=2), table, words)
    case("embedding", [None, 1.25], lambda t, i: F.embedding(i, t.clone(), max_norm=1.25), table, words, grad=False)
    offsets = torch.tensor([0, 2, 2, 5])
    for how in ("sum", "mean", "max"):
        case("embedding_bag", [how], lambda t, i, o: F.embedding_bag(i, t, o, mode=how), table, index(5, 9), offsets)
        case("embedding_bag", [how], lambda t, i: F.embedding_bag(i, t, mode=how), table, words)
    weighted = lambda t, i, o, w: F.embedding_bag(i, t, o, mode="sum", per_sample_weights=w)
    case("embedding_bag", ["sum"], weighted, table, index(5, 9), offsets, draw(9))


def counts():
    x = whole(-2, 3, 4, 5)
    case("nonzero", [], torch.nonzero, x)
    for call, fn in (("unique", torch.unique), ("unique_consecutive", torch.unique_consecutive)):
        case(call, [], lambda x: fn(x, return_inverse=True, return_counts=True), x, grad=False)
    i = index(7, 20)
    case("bincount", [0], lambda i: torch.bincount(i).double(), i)
    case("bincount", [10], lambda i, w: torch.bincount(i, w, 10), i, draw(20), grad=False)
    values = draw(40)
    for bins, low, high in ((5, 0.0, 0.0), (7, -1.0, 1.0), (4, -10.0, 10.0)):
        case("histc", [bins, low, high], lambda x: torch.histc(x, bins, low, high), values, grad=False)
    edges = torch.tensor([-1.0, -0.5, 0.25, 1.0], dtype=torch.float64)
    for dense in (False, True):
        case("histogram", [dense], lambda x, e: torch.histogram(x, e, density=dense)[0], values, edges, grad=False)
        weighted = lambda x, e, w: torch.histogram(x, e, weight=w, density=dense)[0]
        case("histogram", [dense], weighted, values, edges, draw(40).abs(), grad=False)

def quantiles_by():
    x = draw(3, 7, 4)
    for how in ("linear", "lower", "higher", "midpoint", "nearest"):
        case("quantile_by", [1, False, how], lambda x, q: torch.quantile(x, q, 1, interpolation=how), x, whole(0, 9, 5) / 8)
        case("quantile_by", [0, True, how], lambda x, q: torch.quantile(x, q, 0, True, interpolation=how), x, torch.tensor(0.375, dtype=torch.float64))
        case("nanquantile_by", [2, False, how], lambda x, q: torch.nanquantile(x, q, 2, interpolation=how), x, whole(0, 9, 5) / 8)


def slices():
    for t in (whole(0, 2, 6, 2, 3), whole(0, 3, 2, 7), torch.tensor([[1.0, NAN], [1.0, NAN], [-0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)):
        for axis in range(t.dim()):
            if t.isnan().any() and axis == 1:
                continue
            unique = lambda x: torch.unique(x, dim=axis, return_inverse=True, return_counts=True)
            case("unique_axis", [axis], unique, t, grad=False)
            runs = lambda x: torch.unique_consecutive(x, dim=axis, return_inverse=True, return_counts=True)
            case("unique_consecutive_axis", [axis], runs, t, grad=False)
    labels = index(5, 4, 3)
    case("unique", [], lambda x: torch.unique(x, return_inverse=True, return_counts=True), labels)
    case("unique_consecutive", [], lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True), labels)
    case("unique_axis", [1], lambda x: torch.unique(x, dim=1, return_inverse=True, return_counts=True), index(2, 2, 9))


def grids():
    values, edges = draw(40), torch.tensor([-1.0, -0.5, 0.25, 1.0], dtype=torch.float64)
    for dense in (False, True):
        points, other = draw(5, 8, 2), torch.tensor([-2.0, 0.0, 1.0, 1.25], dtype=torch.float64)
        grid = lambda x, e, f: torch.histogramdd(x, [e, f], density=dense)[0]
        case("histogramdd", [2, dense], grid, points, edges, other, grad=False)
        weighted = lambda x, e, f, w: torch.histogramdd(x, [e, f], weight=w, density=dense)[0]
        case("histogramdd", [2, dense], weighted, points, edges, other, draw(5, 8).abs(), grad=False)
    case("histogramdd", [1, False], lambda x, e: torch.histogramdd(x, [e])[0], draw(9, 1), edges, grad=False)
    for bins, limits in ((4, None), (5, [-1.0, 1.5]), (1, [2.0, 2.0])):
        fn = lambda x: torch.histogram(x, bins, range=limits and tuple(limits))[1]
        case("bin_edges", [bins, limits], fn, values, grad=False)
    case("bin_edges", [3, None], lambda x: torch.histogram(x, 3)[1], values[:1], grad=False)
    case("bin_edges", [2, None], lambda x: torch.histogram(x, 2)[1], values[:0], grad=False)


def segments():
    x, wide = draw(9), draw(2, 5, 3)
    wide_lengths = torch.tensor([[2, 0, 3], [1, 4, 0]])
    wide_offsets = torch.tensor([[0, 2, 2, 5], [0, 1, 5, 5]])
    for how in ("sum", "mean", "prod", "max", "min"):
        for initial in (None, 0.25):
            # PyTorch's gradient of an empty mean without an initial value is NaN.
            reduce = lambda x, **of: torch.segment_reduce(x, how, initial=initial, **of)
            case("segment_lengths", [how, 0, initial], lambda x, n: reduce(x, lengths=n), x, torch.tensor([2, 3, 4]))
            case("segment_lengths", [how, 0, initial], lambda x, n: reduce(x, lengths=n), x, torch.tensor([2, 0, 6, 1]), grad=False)
            case("segment_lengths", [how, 1, initial], lambda x, n: reduce(x, lengths=n, axis=1), wide, wide_lengths, grad=False)
            case("segment_offsets", [how, 1, initial], lambda x, n: reduce(x, offsets=n, axis=1), wide, wide_offsets, grad=False)
            case("segment_offsets", [how, 0, initial], lambda x, n: reduce(x, offsets=n), x, torch.tensor([1, 3, 7]), grad=False)
    zeros = torch.tensor([2.0, 2.0, 1.0, 0.0, 0.0, 3.0], dtype=torch.float64)
    case("segment_lengths", ["prod", 0, None], lambda x, n: torch.segment_reduce(x, "prod", lengths=n), zeros, torch.tensor([3, 3]))


def bags():
    """`embedding_bag` of a padding index."""
    table, words, offsets = draw(5, 3), index(3, 2, 4), torch.tensor([0, 2, 2, 5])
    for how in ("sum", "mean", "max"):
        padded = lambda t, i, o=None: F.embedding_bag(i, t, o, mode=how, padding_idx=1)
        case("embedding_bag", [how, 1], padded, table, index(3, 9), offsets)
        case("embedding_bag", [how, 1], padded, table, words)
    weighted = lambda t, i, o, w: F.embedding_bag(i, t, o, mode="sum", per_sample_weights=w, padding_idx=0)
    case("embedding_bag", ["sum", 0], weighted, table, index(3, 9), offsets, draw(9))


order()
scatters()
counts()
# Appended, so that the numbers above stay as they were drawn.
quantiles_by()
slices()
grids()
segments()
bags()
FILE.write_text("".join(json.dumps(c) + "\n" for c in CASES))
print(f"{len(CASES)} cases of {len({c['call'] for c in CASES})} methods, {FILE.stat().st_size} bytes")
