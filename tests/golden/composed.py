#!/usr/bin/env python3
"""Golden values of methods that are made of several ops, and their gradients, computed by PyTorch in float64.

    python3 tests/golden/composed.py            writes tests/golden/composed.jsonl
    python3 tests/golden/composed.py --check    recomputes and compares with the committed file

One JSON object a line: name, inputs, values `ys`, upstream gradients `dys`, gradients `dx` (null where there is none).
`tests/it/composed.rs` has a line for each name. Inputs are float32 numbers. Needs torch and numpy.
"""
import math
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F

from cases import finish

FILE = pathlib.Path(__file__).with_name("composed.jsonl")
torch.set_default_dtype(torch.float64)
MADE = []
INF, NAN = math.inf, math.nan


def numbers(values):
    flat = np.asarray(values.detach().double().numpy() if isinstance(values, torch.Tensor) else values, dtype=np.float64)
    return [v if math.isfinite(v) else str(v) for v in flat.reshape(-1).tolist()]


def case(name, fn, *ins):
    """Records `fn(*ins)`. An input is a shape, a shape with a range `(shape, lo, hi)`, or a list of numbers."""
    rng = np.random.default_rng(sum(ord(c) * (i + 1) for i, c in enumerate(name)))
    tensors = []
    for i in ins:
        if isinstance(i, list):
            data, shape = np.array(i), np.shape(i)
        else:
            shape, lo, hi = i if len(i) == 3 and isinstance(i[0], tuple) else (i, -2.0, 2.0)
            data = rng.uniform(lo, hi, size=shape)
        data = np.asarray(data, dtype=np.float32).astype(np.float64)
        tensors.append(torch.tensor(data).reshape(shape).requires_grad_())
    ys = fn(*tensors)
    ys = list(ys) if isinstance(ys, (tuple, list)) else [ys]
    ys = [torch.as_tensor(y).double() for y in ys]
    dys = [rng.uniform(-1.0, 1.0, size=tuple(y.shape)).astype(np.float32).astype(np.float64) for y in ys]
    tied = [(y, torch.tensor(d).reshape(y.shape)) for y, d in zip(ys, dys) if y.requires_grad]
    grads = [None] * len(tensors)
    if tied:
        grads = torch.autograd.grad([y for y, _ in tied], tensors, [d for _, d in tied], allow_unused=True)
    shaped = lambda t: {"shape": list(t.shape), "data": numbers(t)}
    MADE.append({
        "name": name,
        "ins": [shaped(t) for t in tensors],
        "ys": [shaped(y) for y in ys],
        "dys": [numbers(d) for d in dys],
        "dx": [None if g is None else numbers(g) for g in grads],
    })


X, POS, SMALL = (3, 5), ((3, 5), 0.25, 4.0), ((3, 5), 0.125, 0.875)
ENDS = [-INF, INF, NAN, -2.5, -0.0, 0.0, 1.0, 3.0]


def elementwise():
    case("frac", torch.frac, X)
    case("sinc", torch.sinc, [0.0, 0.25, -1.5, 2.0, 0.5])
    case("sinc_small", torch.sinc, [0.001, -0.001, 0.0001220703125, 0.0])
    # 7 / -2 and the like; the divisors' signs differ.
    case("floor_divide", lambda a, b: torch.floor_divide(a.detach(), b.detach()), [7.0, -7.0, 7.0, -7.0, 6.0, 1.0], [2.0, 2.0, -2.0, -2.0, 3.0, 0.0])
    case("remainder", torch.remainder, [7.5, -7.5, 7.5, -7.5, 6.0], [2.0, 2.0, -2.0, -2.0, 3.0])
    case("fmod", torch.fmod, [7.5, -7.5, 7.5, -7.5, 6.0], [2.0, 2.0, -2.0, -2.0, 3.0])
    case("floor_divide_infinite", lambda a, b: torch.floor_divide(a.detach(), b.detach()), [-1.0, 1.0, -1.0, 1.0, -0.0], [INF, -INF, -INF, INF, INF])
    case("logaddexp2", torch.logaddexp2, X, X)
    case("logaddexp2_ends", lambda a, b: torch.logaddexp2(a, b).detach(), [INF, -INF, 1.0, 2.0], [INF, -INF, -INF, 2.0])
    case("xlog1py", torch.special.xlog1py, [0.0, 1.5, -2.0, 0.0], [2.0, 0.5, 3.0, 1.0])
    case("xlog1py_ends", torch.special.xlog1py, [0.0, 0.0, 0.0, 1.0], [INF, NAN, -2.0, INF])
    case("entr", torch.special.entr, POS)
    case("entr_ends", torch.special.entr, [INF, NAN, -1.0, 0.5])
    case("heaviside", lambda x, v: torch.heaviside(x, v).detach(), [-1.0, 0.0, 2.0], [0.5, 0.5, 0.5])
    case("nan_to_num", lambda x: torch.nan_to_num(x, 0.5, 8.0, -8.0), ENDS)
    for op in ("isinf", "isfinite", "isposinf", "isneginf", "isnan", "signbit", "logical_not"):
        case(op, getattr(torch, op), ENDS)
    for op in ("logical_and", "logical_or", "logical_xor"):
        case(op, getattr(torch, op), [0.0, 0.0, 1.0, NAN], [0.0, 2.0, 0.0, -1.0])
    case("logit", torch.logit, SMALL)
    case("logit_ends", torch.logit, [0.0, 1.0, -0.5, 2.0, NAN, 0.25])
    case("logit_eps", lambda x: torch.logit(x, 0.25), [0.125, 0.375, 0.5, 0.875])
    case("rsub", lambda a, b: torch.rsub(a, b, alpha=0.5), X, X)
    case("deg2rad", torch.deg2rad, X)
    case("rad2deg", torch.rad2deg, X)
    case("ldexp", torch.ldexp, X, [1.0, -2.0, 0.0, 3.0, 0.5])
    case("polygamma0", lambda x: torch.polygamma(0, x), POS)
    case("polygamma1", lambda x: torch.polygamma(1, x), POS)
    for n in (2, 3, 4):
        case(f"polygamma{n}", lambda x: torch.polygamma(n, x), POS)
        case(f"polygamma{n}_negative", lambda x: torch.polygamma(n, x), [-0.5, -1.25, -3.75, -10.5])
    case("mvlgamma", lambda x: torch.mvlgamma(x, 5), ((3, 5), 2.125, 6.0))
    case("frexp", lambda x: torch.frexp(x), [1.0, -0.5, 3.75, -1e10, 1.7e-38, 0.0, 7.0])
    case("frexp_ends", lambda x: torch.frexp(x.detach()), [INF, -INF, NAN, 3.4028234663852886e38, 1e-40, -1.401298464324817e-45])
    case("spherical_bessel_j0", lambda x: torch.sin(x) / x, X)
    case("lgamma_negative", torch.lgamma, [-0.5, -1.25, -3.75, -10.5])
    case("digamma_negative", torch.digamma, [-0.5, -1.25, -3.75, -10.5])
    case("ndtr", torch.special.ndtr, X)
    case("log_ndtr", torch.special.log_ndtr, [-30.0, -5.0, -1.0, -0.5, 0.0, 2.0, 6.0])
    case("clamp_min", lambda x: torch.clamp_min(x, 0.5), [-1.0, 0.5, 2.0])
    case("clamp_max", lambda x: torch.clamp_max(x, 0.5), [-1.0, 0.5, 2.0])
    case("where_or", lambda c, x: torch.where(c != 0, x, -1.5), [0.0, 1.0, 0.0], [3.0, 4.0, 5.0])
    case("addcmul", lambda x, a, b: torch.addcmul(x, a, b, value=0.5), X, X, X)
    case("addcdiv", lambda x, a, b: torch.addcdiv(x, a, b, value=0.5), X, X, POS)
    case("lerp_by", lambda x, w, e: torch.lerp(x, e, w), X, SMALL, X)
    close = ([1.0, INF, -INF, NAN, 1.0, 0.0], [1.0009765625, INF, INF, NAN, 1.25, 0.0001220703125])
    for nan in (False, True):
        case(f"isclose_{nan}", lambda a, b: torch.isclose(a, b, 1 / 512, 1 / 4096, nan), *close)
    case("softsign", F.softsign, X)
    case("softshrink", lambda x: F.softshrink(x, 0.5), [-2.0, -0.5, -0.25, 0.5, 0.75])
    case("hardshrink", lambda x: F.hardshrink(x, 0.5), [-2.0, -0.5, -0.25, 0.5, 0.75])
    case("tanhshrink", F.tanhshrink, X)
    case("threshold", lambda x: F.threshold(x, 0.5, -3.0), [-2.0, 0.5, 0.75])
    case("selu", F.selu, X)
    case("celu", lambda x: F.celu(x, 1.5), X)
    case("glu", lambda x: F.glu(x, 1), (2, 6, 3))
    case("prelu", F.prelu, (2, 3, 4), (3,))
    case("prelu_one", F.prelu, (2, 3, 4), (1,))
    case("prelu_infinite", F.prelu, [INF, 1.0, -2.0], [0.25])
    case("softplus_with", lambda x: F.softplus(x, 2.0, 3.0), [-200.0, -1.0, 0.0, 1.25, 1.75, 200.0])
    case("rrelu", lambda x: F.rrelu(x, 0.125, 0.375), X)
    case("softmin", lambda x: F.softmin(x, 0), X)


def algebra():
    case("addmm", lambda x, a, b: torch.addmm(x, a, b, beta=0.5, alpha=2.0), (4,), (3, 5), (5, 4))
    case("baddbmm", lambda x, a, b: torch.baddbmm(x, a, b, beta=0.5, alpha=2.0), (2, 3, 4), (2, 3, 5), (2, 5, 4))
    case("addbmm", lambda x, a, b: torch.addbmm(x, a, b, beta=0.5, alpha=2.0), (3, 4), (2, 3, 5), (2, 5, 4))
    case("addmv", lambda x, a, b: torch.addmv(x, a, b, beta=0.5, alpha=2.0), (3,), (3, 5), (5,))
    case("addr", lambda x, a, b: torch.addr(x, a, b, beta=0.5, alpha=2.0), (3, 4), (3,), (4,))
    case("mv", torch.mv, (3, 5), (5,))
    case("inner", torch.inner, (2, 3, 5), (4, 5))
    case("tensordot_axes", lambda a, b: torch.tensordot(a, b, ([0, -1], [2, 0])), (2, 3, 4), (4, 5, 2))
    case("pdist", lambda x: torch.pdist(x, 3.0), (4, 3))
    case("pdist_of_one_row", torch.pdist, (1, 3))
    case("kron", torch.kron, (2, 3), (3, 2, 2))
    case("cross", lambda a, b: torch.linalg.cross(a, b, dim=-2), (2, 3, 4), (2, 3, 4))
    case("multi_dot", lambda *v: torch.linalg.multi_dot(v), (4,), (4, 2), (2, 5), (5, 3))
    case("block_diag", torch.block_diag, (2, 3), (2,), ())
    case("matrix_norm_axes", lambda x: torch.linalg.matrix_norm(x, 1, (2, 0), keepdim=True), (2, 3, 4))
    case("einsum_one", lambda a, b: torch.einsum("ij,jk->ik", a, b), (2, 1), (3, 4))
    case("einsum_one_kept", lambda a, b: torch.einsum("bij,bjk->bik", a, b), (1, 2, 3), (4, 3, 1))
    case("tensordot_one", lambda a, b: torch.tensordot(a, b, 2), (2, 1, 3), (4, 3, 2))
    case("vander_matrix", lambda x: torch.linalg.vander(x, N=3), (2, 3))
    case("matrix_norm_fro", torch.linalg.matrix_norm, (2, 3, 4))
    for name, order in (("columns", 1), ("columns_smallest", -1), ("rows", math.inf), ("rows_smallest", -math.inf)):
        case(f"matrix_norm_{name}", lambda x: torch.linalg.matrix_norm(x, order), (2, 3, 4))
    case("renorm", lambda x: torch.renorm(x, 2, 1, 2.0), (3, 4, 2))
    # Slices of small norms, with a NaN and an infinity stay as they are; the third is scaled.
    case("renorm_ends", lambda x: torch.renorm(x, 2, 0, 2.0), [[0.5, NAN, -0.25], [0.5, 1.0, -0.25], [3.0, -2.0, 1.0]])
    case("pairwise_distance", lambda a, b: F.pairwise_distance(a, b, 2.0, 0.0078125), (4, 3), (4, 3))
    case("dist", lambda a, b: torch.dist(a, b, 3), (4, 3), (4, 3))
    for name, p in (("0", 0.0), ("1", 1.0), ("2", 2.0), ("3", 3.0), ("half", 0.5), ("inf", INF)):
        case(f"cdist_{name}", lambda a, b: torch.cdist(a, b, p), (2, 3, 4), (2, 5, 4))
    for name, p in (("0", 0), ("1", 1), ("2", 2), ("3", 3), ("half", 0.5), ("inf", INF), ("minus_inf", -INF), ("minus_1", -1)):
        case(f"norm_{name}", lambda x: torch.linalg.vector_norm(x, p, dim=(0, 2)), (2, 3, 4))
    case("norm_3_of_zeros", lambda x: torch.linalg.vector_norm(x, 3, dim=1), [[0.0, 0.0], [3.0, 0.0]])
    case("cosine_similarity", lambda a, b: F.cosine_similarity(a, b, dim=1), (2, 5, 3), (2, 5, 3))


def arrange():
    case("hstack", lambda *v: torch.hstack(v), (2, 3), (2, 1))
    case("hstack_vectors", lambda *v: torch.hstack(v), (2,), (3,), ())
    case("vstack", lambda *v: torch.vstack(v), (2, 3), (3,))
    case("dstack", lambda *v: torch.dstack(v), (2, 3), (2, 3))
    case("column_stack", lambda *v: torch.column_stack(v), (2,), (2, 3), (2,))
    case("broadcast_tensors", torch.broadcast_tensors, (2, 1), (3,))
    case("meshgrid", lambda *v: torch.meshgrid(*v, indexing="ij"), (2,), (3,), (4,))
    case("meshgrid_xy", lambda *v: torch.meshgrid(*v, indexing="xy"), (2,), (3,), (4,))
    case("cartesian_prod", torch.cartesian_prod, (2,), (3,), (2,))
    case("flatten_axes", lambda x: torch.flatten(x, 1, -2), (2, 3, 4, 5))
    case("unflatten", lambda x: torch.unflatten(x, -1, (2, -1)), (3, 6))
    case("tensor_split", lambda x: torch.tensor_split(x, 3, dim=-1), (2, 7))
    case("split_at", lambda x: torch.tensor_split(x, (2, 5), dim=1), (2, 7))
    case("hsplit", lambda x: torch.hsplit(x, 2), (2, 6))
    case("vsplit", lambda x: torch.vsplit(x, 2), (4, 3))
    case("dsplit", lambda x: torch.dsplit(x, 2), (2, 3, 4))
    case("unbind", lambda x: torch.unbind(x, -1), (2, 3))
    case("view", lambda x: x.view(-1, 4), (2, 3, 4))
    case("expand_keep", lambda x: x.expand(2, -1, 4), (3, 1))
    case("movedim_axes", lambda x: torch.movedim(x, (0, -1), (1, 0)), (2, 3, 4))
    case("roll_axes", lambda x: torch.roll(x, (1, -2), (0, -1)), (2, 3, 4))
    case("unfold", lambda x: x.unfold(1, 3, 2), (2, 7, 3))
    case("combinations", lambda x: torch.combinations(x, 3), (5,))
    case("combinations_again", lambda x: torch.combinations(x, 2, True), (3,))
    case("select_scatter", lambda x, v: torch.select_scatter(x, v, 1, -1), (2, 3, 4), (2, 4))
    case("slice_scatter", lambda x, v: torch.slice_scatter(x, v, 1, 1, 6, 2), (2, 7), (2, 3))
    for k in (0, 1, -2):
        case(f"diagonal_scatter_{k}", lambda x, v: torch.diagonal_scatter(x, v, k, 2, 0), (5, 2, 3), (2, torch.zeros(5, 2, 3).diagonal(k, 2, 0).shape[-1]))
    case("take_along_broadcast", lambda x: torch.take_along_dim(x, torch.tensor([[[2, 0], [1, 3], [0, 0]], [[1, 1], [2, 2], [3, 0]]]), 2), (1, 3, 4))
    for name, pad in (("front", [-1, 2]), ("end", [2, -2]), ("all", [-3, 4])):
        case(f"pad_replicate_{name}", lambda x: F.pad(x, pad, mode="replicate"), (2, 3, 4))
    for k in (1, 2, 3, -1, 4):
        case(f"rot90_{k}", lambda x: torch.rot90(x, k, (0, 2)), (2, 3, 4))
    case("tile", lambda x: torch.tile(x, (2,)), (2, 3))
    case("repeat_interleave_by", lambda x: torch.repeat_interleave(x, torch.tensor([2, 0, 3]), dim=1), (2, 3, 2))
    case("atleast", lambda x: (torch.atleast_1d(x), torch.atleast_2d(x), torch.atleast_3d(x)), (4,))
    case("squeeze_all", torch.squeeze, (1, 3, 1, 2))
    case("squeeze_axes", lambda x: torch.squeeze(x, (0, 1, -1)), (1, 3, 2, 1))
    for k in (0, 2, -1):
        case(f"diag_vector_{k}", lambda x: torch.diag(x, k), (3,))
        case(f"diag_matrix_{k}", lambda x: torch.diag(x, k), (3, 4))
        case(f"diagflat_{k}", lambda x: torch.diagflat(x, k), (2, 2))
        case(f"diag_embed_{k}", lambda x: torch.diag_embed(x, k), (2, 3))
        case(f"diag_embed_axes_{k}", lambda x: torch.diag_embed(x, k, 0, 2), (2, 3))
    case("negative_axes", lambda x: (x.sum(-1), x.transpose(-1, 0), x.select(-2, -1), x.unsqueeze(-1), x.softmax(-2), x.cumsum(-1)), (2, 3, 4))


def layers():
    for name, p in (("1", 1.0), ("3", 3.0), ("inf", INF)):
        case(f"normalize_{name}", lambda x: F.normalize(x, p, 1, 0.5), (2, 3, 4))
    case("bilinear", F.bilinear, (2, 3, 4), (2, 3, 5), (6, 4, 5), (6,))
    case("bilinear_plain", F.bilinear, (4,), (5,), (6, 4, 5))
    u = torch.tensor([[[0.125, 0.75], [0.5, 0.25], [0.875, 0.0]]])
    plane = lambda x: F.fractional_max_pool2d(x, (2, 3), output_size=(3, 2), return_indices=True, _random_samples=u)
    case("fractional_max_pool", plane, (1, 3, 7, 6))
    u3 = torch.tensor([[[0.125, 0.75, 0.375], [0.5, 0.25, 0.625]]])
    space = lambda x: F.fractional_max_pool3d(x, 2, output_size=(2, 1, 3), return_indices=True, _random_samples=u3)
    case("fractional_max_pool_3", space, (1, 2, 4, 3, 6))
    case("attention_broadcast", F.scaled_dot_product_attention, (2, 1, 4, 3), (3, 5, 3), (2, 3, 5, 2))
    case("attention_broadcast_keys", F.scaled_dot_product_attention, (2, 3, 4, 3), (3, 5, 3), (1, 5, 2))
    case("logspace", lambda x: torch.logspace(-1.5, 2.0, 6, 3.0) + 0 * x, (1,))


def statistics():
    case("nansum", lambda x: torch.nansum(x, 1), [[1.0, NAN, 2.0], [NAN, NAN, NAN]])
    case("nanmean", lambda x: torch.nanmean(x, 1), [[1.0, NAN, 2.0], [0.5, 1.0, NAN]])
    case("count_nonzero", lambda x: torch.count_nonzero(x, 1), [[1.0, 0.0, NAN], [0.0, 0.0, -0.0]])
    case("all", lambda x: torch.all(x, 1), [[1.0, 2.0, NAN], [0.0, 1.0, 1.0]])
    case("any", lambda x: torch.any(x, 1), [[0.0, 0.0, NAN], [0.0, 0.0, -0.0]])
    case("aminmax", lambda x: torch.aminmax(x, dim=1), (3, 4))
    case("var_corrected", lambda x: torch.var(x, dim=1, correction=1.5), (3, 4))
    case("std_corrected", lambda x: torch.std(x, dim=1, correction=1.5), (3, 4))
    # var_corrected would be infinite in float32, and so its root.
    case("std_corrected_large", lambda x: torch.std(x, dim=0, correction=0.5), [1e30, -2e30, 3e30])
    for name, x in (("none_left", [1.0, 2.0]), ("one", [1.0]), ("equal", [1.0, 1.0])):
        case(f"corrected_{name}", lambda x: (torch.var(x, dim=0, correction=2.5).detach(), torch.std(x, dim=0, correction=2.5).detach()), x)
    case("sum_to_size", lambda x: x.sum_to_size(3, 1), (2, 3, 4))
    case("var_mean", lambda x: torch.var_mean(x, dim=1), (3, 4))
    case("std_mean", lambda x: torch.std_mean(x, dim=(0, 1)), (3, 4))
    case("cov", torch.cov, (3, 6))
    case("cov_vector", torch.cov, (6,))
    case("cov_row", torch.cov, (1, 6))
    for rows in (3, 1):
        repeats = torch.tensor([2, 0, 1, 3, 1, 1])
        weights = ((6,), 0.25, 2.0)
        case(f"cov_weights_{rows}", lambda x, a: torch.cov(x, aweights=a), (rows, 6), weights)
        case(f"cov_repeats_{rows}", lambda x, f: torch.cov(x, correction=0, fweights=f.long()), (rows, 6), repeats.tolist())
        case(f"cov_both_{rows}", lambda x, f, a: torch.cov(x, correction=2, fweights=f.long(), aweights=a), (rows, 6), repeats.tolist(), weights)
    # PyTorch divides by 0 there.
    case("cov_none_left", lambda x, f: torch.cov(x, correction=9, fweights=f.long()).detach(), (3, 6), repeats.tolist())
    case("corrcoef", lambda x: torch.corrcoef(x.detach()), (3, 6))
    case("diff", lambda x: torch.diff(x, n=2, dim=0), (5, 3))
    case("gradient", lambda x: torch.gradient(x, spacing=0.5, dim=1)[0], (2, 5))
    case("gradient_edge", lambda x: torch.gradient(x, spacing=0.5, dim=1, edge_order=2)[0], (2, 5))
    case("gradient_edge_of_3", lambda x: torch.gradient(x, spacing=-2.0, dim=0, edge_order=2)[0], (3, 2))
    for order in (1, 2):
        for size in (3, 6):
            places = [[0.0, 0.5, 2.0, 1.75, -1.0, 3.0][:size]]
            at = lambda x, p: torch.gradient(x, spacing=(p[0],), dim=1, edge_order=order)[0]
            case(f"gradient_places_{order}_{size}", at, (2, size, 3), places)
    case("gradient_places_1_2", lambda x, p: torch.gradient(x, spacing=(p[0],), dim=1)[0], (2, 2, 3), [[0.0, 0.5]])
    case("trapezoid", lambda y: torch.trapezoid(y, dx=0.5, dim=0), (5, 3))
    case("trapezoid_x", lambda y, x: torch.trapezoid(y, x, dim=0), (5, 3), (5,))
    case("cumulative_trapezoid", lambda y: torch.cumulative_trapezoid(y, dx=0.5, dim=1), (2, 5))
    case("cumulative_trapezoid_x", lambda y, x: torch.cumulative_trapezoid(y, x, dim=1), (2, 5), (2, 5))
    # torch.vander has no gradient.
    case("vander", lambda x: torch.stack([x**3, x**2, x, x**0], 1), (3,))
    case("vander_increasing", lambda x: torch.stack([x**0, x, x**2], 1), (3,))


if __name__ == "__main__":
    elementwise()
    algebra()
    arrange()
    layers()
    statistics()
    sys.exit(finish(FILE, MADE, 1e-11))
