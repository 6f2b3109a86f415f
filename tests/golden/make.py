#!/usr/bin/env python3
"""Golden values of every op and its gradients, computed by PyTorch in float64.

    python3 tests/golden/make.py            writes tests/golden/ops.jsonl
    python3 tests/golden/make.py --check    recomputes and compares with the committed file

One JSON object a line: op, attributes, inputs, value `y`, upstream gradient `dy`, gradients `dx` (null where
there is none). Inputs are float32 numbers, so they are the same in both programs. Needs torch and numpy.
"""
import json
import math
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F

FILE = pathlib.Path(__file__).with_name("ops.jsonl")
torch.set_default_dtype(torch.float64)
CASES = []


class Idx:
    """Indices of a shape below a bound, or given."""

    def __init__(self, shape, bound, data=None):
        self.shape, self.bound, self.data = shape, bound, data


class Num:
    """Numbers of a shape in a range, or given."""

    def __init__(self, shape, lo=-2.0, hi=2.0, data=None):
        self.shape, self.lo, self.hi, self.data = shape, lo, hi, data


def case(op, attrs, fn, *ins, grad=True):
    """Records `fn(*ins)`; inputs are shapes, `Num` or `Idx`."""
    rng = np.random.default_rng(abs(hash_name(f"{op}{attrs}{len(CASES)}")))
    tensors, described = [], []
    for i in ins:
        i = Num(i) if isinstance(i, (list, tuple)) else i
        if isinstance(i, Idx):
            data = np.array(i.data) if i.data is not None else rng.integers(0, i.bound, size=i.shape)
            tensors.append(torch.tensor(data, dtype=torch.int64).reshape(tuple(i.shape)))
            described.append({"shape": list(i.shape), "idx": data.reshape(-1).tolist()})
        else:
            data = np.array(i.data) if i.data is not None else rng.uniform(i.lo, i.hi, size=i.shape)
            data = data.astype(np.float32).astype(np.float64)
            tensors.append(torch.tensor(data).reshape(tuple(i.shape)).requires_grad_(grad))
            described.append({"shape": list(i.shape), "data": numbers(data)})
    y = fn(*tensors)
    if y.dtype in (torch.int64, torch.bool):
        grad = grad and False
    entry = {"op": op, "attrs": attrs, "ins": described, "y": {"shape": list(y.shape), "data": numbers(y)}}
    if grad and y.requires_grad:
        dy = rng.uniform(-1.0, 1.0, size=tuple(y.shape)).astype(np.float32).astype(np.float64)
        wanted = [t for t in tensors if t.requires_grad]
        grads = iter(torch.autograd.grad(y, wanted, torch.tensor(dy).reshape(y.shape), allow_unused=True))
        dx = [next(grads) if t.requires_grad else None for t in tensors]
        entry["dy"] = numbers(dy)
        entry["dx"] = [None if g is None else numbers(g) for g in dx]
    CASES.append(entry)


def hash_name(text):
    """A hash that is the same in every process."""
    h = 0
    for b in text.encode():
        h = (h * 1000003 ^ b) & 0xFFFFFFFFFFFFFFF
    return h


def numbers(values):
    if isinstance(values, torch.Tensor):
        values = values.detach().resolve_conj().resolve_neg().numpy()
    out = []
    for v in np.asarray(values, dtype=np.float64).reshape(-1).tolist():
        out.append(v if math.isfinite(v) else str(v))
    return out


# ---------------------------------------------------------------------------------------------- elementwise
def elementwise():
    pos = Num([2, 7], 0.05, 4.0)
    unary = {
        "neg": torch.neg,
        "abs": torch.abs,
        "square": torch.square,
        "exp": torch.exp,
        "sin": torch.sin,
        "cos": torch.cos,
        "erf": torch.erf,
        "relu": F.relu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "softplus": lambda x: F.softplus(x, threshold=1e9),
        "silu": F.silu,
        "gelu": lambda x: F.gelu(x, approximate="tanh"),
        "gelu_erf": F.gelu,
        "copy": lambda x: x * 1.0,
    }
    for op, fn in unary.items():
        case(op, {}, fn, [2, 7])
    for op, fn in {"sqrt": torch.sqrt, "log": torch.log, "log1p": torch.log1p, "inv": torch.reciprocal}.items():
        case(op, {}, fn, pos)
    case("scale", {"c": 0.75}, lambda x: x * 0.75, [2, 7])
    case("clamp", {"lo": -0.5, "hi": 1.25}, lambda x: torch.clamp(x, -0.5, 1.25), [3, 5])
    case("safe_log", {"eps": 0.0078125}, lambda x: torch.log(F.softplus(x) + 0.0078125), [3, 5])
    binary = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "max": torch.maximum, "min": torch.minimum}
    for op, fn in binary.items():
        case(op, {}, fn, [2, 7], [2, 7])
    case("div", {}, torch.div, [2, 7], pos)
    case("pow", {}, torch.pow, pos, [2, 7])
    case("axpy", {"c": -0.375}, lambda a, b: a - 0.375 * b, [2, 7], [2, 7])


# ---------------------------------------------------------------------------------------------- reductions
def reductions():
    for axes in [[0], [1], [2], [0, 2], [0, 1, 2]]:
        case("sum", {"axes": axes}, lambda x, a=axes: x.sum(a), [3, 4, 5])
        case("mean", {"axes": axes}, lambda x, a=axes: x.mean(a), [3, 4, 5])


# ---------------------------------------------------------------------------------------------- layout
def layout():
    case("broadcast_to", {"shape": [2, 3, 4], "map": [0, 1, 2]}, lambda x: x.expand(2, 3, 4), [3, 4])
    case("broadcast_to", {"shape": [3, 5], "map": [1, 0]}, lambda x: x[:, None].expand(3, 5), [3])
    case("reshape", {"shape": [4, 3]}, lambda x: x.reshape(4, 3), [2, 6])
    case("permute", {"order": [2, 0, 1]}, lambda x: x.permute(2, 0, 1).contiguous(), [2, 3, 4])
    case("slice", {"axis": 1, "start": 1, "len": 3, "step": 2}, lambda x: x[:, 1:7:2], [2, 7, 3])
    case("pad", {"axis": 1, "start": 2, "step": 1, "size": 6}, lambda x: F.pad(x, (2, 1)), [2, 3])


# ---------------------------------------------------------------------------------------------- products
def products():
    for ta in (False, True):
        for tb in (False, True):
            a, b = ([5, 3] if ta else [3, 5]), ([4, 5] if tb else [5, 4])
            fn = lambda a, b, ta=ta, tb=tb: (a.mT if ta else a) @ (b.mT if tb else b)
            case("matmul", {"ta": ta, "tb": tb}, fn, a, b)
            case("bmm", {"ta": ta, "tb": tb}, fn, [2] + a, [2] + b)
    case("linear", {}, F.linear, [2, 3, 5], [4, 5], [4])


# ---------------------------------------------------------------------------------------------- rows
def rows():
    case("softmax", {}, lambda x: torch.softmax(x, -1), [3, 7])
    case("log_softmax", {}, lambda x: torch.log_softmax(x, -1), [3, 7])
    for axis in (0, 1, 2):
        case("softmax_axis", {"axis": axis}, lambda x, a=axis: torch.softmax(x, a), [3, 5, 2])
        case("log_softmax_axis", {"axis": axis}, lambda x, a=axis: torch.log_softmax(x, a), [3, 5, 2])
    mask = Idx([3, 5], 2, [[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])
    case("masked_softmax", {}, masked_softmax, [2, 3, 5], mask)


def masked_softmax(x, mask):
    # A row of nothing would be NaN in PyTorch, and so would its gradient.
    blocked, some = mask == 0, (mask != 0).any(-1, keepdim=True)
    y = torch.softmax(x.masked_fill(blocked & some, -math.inf), -1)
    return torch.where(blocked.expand(y.shape), 0.0, y)


# ---------------------------------------------------------------------------------------------- norms
def norms():
    eps = 2.0**-10
    case("layer_norm", {"axes": 1, "eps": eps}, lambda x: F.layer_norm(x, [5], eps=eps), [3, 5])
    case("layer_norm", {"axes": 1, "eps": eps}, lambda x, w: F.layer_norm(x, [5], w, eps=eps), [3, 5], [5])
    case("layer_norm", {"axes": 2, "eps": eps}, lambda x, w, b: F.layer_norm(x, [4, 3], w, b, eps), [2, 4, 3], [4, 3], [4, 3])
    case("rms_norm", {"axes": 1, "eps": eps}, lambda x: F.rms_norm(x, [5], eps=eps), [3, 5])
    case("rms_norm", {"axes": 2, "eps": eps}, lambda x, w: F.rms_norm(x, [4, 3], w, eps), [2, 4, 3], [4, 3])
    batch = lambda x, w=None, b=None: F.batch_norm(x, None, None, w, b, True, 0.0, eps)
    case("batch_norm", {"eps": eps}, batch, [5, 3])
    case("batch_norm", {"eps": eps}, batch, [4, 3, 2, 3], [3], [3])
    for groups in (1, 2, 4):
        group = lambda x, w, b, g=groups: F.group_norm(x, g, w, b, eps)
        case("group_norm", {"groups": groups, "eps": eps}, group, [2, 4, 3, 2], [4], [4])
    moments = lambda x: torch.cat([x.mean([0, 2]), x.var([0, 2], correction=0)])
    case("moments", {}, moments, [3, 4, 5], grad=False)


# ---------------------------------------------------------------------------------------------- pooling
def window(kernel, stride, padding, dilation=None, **more):
    return {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation or [1] * len(kernel), **more}


def pools():
    pool = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
    mean = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
    geometries = [
        ([2, 7], [3], [2], [1]),
        ([1, 2, 4, 6], [2, 2], [2, 2], [0, 0]),
        ([1, 4, 5], [3, 3], [2, 1], [1, 1]),
        ([1, 3, 4, 3], [2, 2, 3], [1, 2, 1], [1, 0, 1]),
    ]
    for shape, k, s, p in geometries:
        d = len(k)
        case("max_pool", window(k, s, p), lambda x: pool[d](x, k, s, p), shape)
        for counted in (True, False):
            fn = lambda x: mean[d](x, k, s, p, count_include_pad=counted)
            case("avg_pool", window(k, s, p, count_include_pad=counted), fn, shape)
        for beta in (2.0, -0.5):
            case("smooth_max_pool", window(k, s, p, beta=beta), lambda x: smooth(x, k, s, p, beta), shape)
    case("max_pool", window([3, 2], [1, 2], [1, 0], [2, 3]), lambda x: F.max_pool2d(x, (3, 2), (1, 2), (1, 0), (2, 3)), [1, 5, 6])
    case("adaptive_avg_pool", {"sizes": [3]}, lambda x: F.adaptive_avg_pool1d(x, 3), [2, 7])
    case("adaptive_avg_pool", {"sizes": [3, 5]}, lambda x: F.adaptive_avg_pool2d(x, (3, 5)), [1, 2, 4, 3])
    x = np.random.default_rng(5).permutation(2 * 4 * 4).reshape(2, 4, 4) / 8.0 - 2.0
    y, at = F.max_pool2d(torch.tensor(x), 3, 2, 1, return_indices=True)
    pick = lambda x, y, v: v.reshape(2, 16).gather(1, at.reshape(2, -1)).reshape(y.shape)
    case("max_pool_pick", window([3, 3], [2, 2], [1, 1]), pick, Num([2, 4, 4], data=x), Num([2, 2, 2], data=y.numpy()), [2, 4, 4])
    weigh = lambda x, y, v: (cells(v, [2], [1], [1]) * (0.5 * (cells(x, [2], [1], [1]) - y[..., None])).exp()).sum(-1)
    case("smooth_max_pool_sum", window([2], [1], [1], beta=0.5), weigh, [3, 4], [3, 5], [3, 4])


def cells(x, k, s, p):
    """The cells of each window, padding being 0, along a last axis of their own."""
    lead = x.dim() - len(k)
    x = F.pad(x, [n for a in reversed(p) for n in (a, a)])
    for a, (size, step) in enumerate(zip(k, s)):
        x = x.unfold(lead + a, size, step)
    return x.flatten(-len(k))


def smooth(x, k, s, p, beta):
    return torch.logsumexp(beta * cells(x, k, s, p), -1) / beta


def losses():
    case("cross_entropy", {}, F.cross_entropy, [5, 7], Idx([5], 7))
    case("mse", {}, F.mse_loss, [4, 3], [4, 3])


# ---------------------------------------------------------------------------------------------- pointwise
def pointwise():
    wide = Num([3, 7], -5.0, 5.0)
    unary = {
        "expm1": torch.expm1,
        "sign": torch.sign,
        "floor": torch.floor,
        "ceil": torch.ceil,
        "round": torch.round,
        "log_sigmoid": F.logsigmoid,
        "mish": F.mish,
        "hardsigmoid": F.hardsigmoid,
        "hardswish": F.hardswish,
    }
    for op, fn in unary.items():
        case(op, {}, fn, wide)
    case("rsqrt", {}, torch.rsqrt, Num([2, 7], 0.05, 4.0))
    case("leaky_relu", {"slope": 0.125}, lambda x: F.leaky_relu(x, 0.125), wide)
    case("elu", {"alpha": 1.5}, lambda x: F.elu(x, 1.5), wide)
    case("add_scalar", {"c": 0.375}, lambda x: x + 0.375, wide)
    case("pow_scalar", {"c": 2.5}, lambda x: x**2.5, Num([2, 7], 0.05, 4.0))
    whole = lambda shape, data: Num(shape, data=data)
    a, b = whole([2, 1, 3], [0, 1, 2, 2, 1, 0]), whole([4, 1], [0, 1, 2, 3])
    for op in ("eq", "ne", "lt", "le", "gt", "ge"):
        case(op, {}, getattr(torch, op), a, b)
    case("where_", {}, lambda c, a, b: torch.where(c != 0, a, b), a, [4, 3], [4, 1])
    case("clamp_to", {}, torch.clamp, Num([2, 7], -4.0, 4.0), Num([2, 1], -3.0, 0.0), Num([7], 0.0, 3.0))
    for op, fn in {"add": torch.add, "mul": torch.mul, "max": torch.maximum}.items():
        case(op, {}, fn, [2, 1, 3], [4, 1])


def folds():
    norm = torch.linalg.vector_norm
    for axes in ([1], [0], [0, 2], [0, 1, 2]):
        case("amax", {"axes": axes}, lambda x, a=axes: torch.amax(x, a), [2, 3, 4])
        case("amin", {"axes": axes}, lambda x, a=axes: torch.amin(x, a), [2, 3, 4])
        case("logsumexp", {"axes": axes}, lambda x, a=axes: torch.logsumexp(x, a), [2, 3, 4])
        for c in (0, 1):
            case("variance", {"axes": axes, "correction": c}, lambda x, a=axes, c=c: torch.var(x, a, correction=c), [2, 3, 4])
            case("std_dev", {"axes": axes, "correction": c}, lambda x, a=axes, c=c: torch.std(x, a, correction=c), [2, 3, 4])
        for op, p in {"norm_l1": 1, "norm_l2": 2, "norm_inf": math.inf}.items():
            case(op, {"axes": axes}, lambda x, a=axes, p=p: norm(x, p, a), [2, 3, 4])
    case("argmax", {"axes": [1]}, lambda x: x.argmax(1), [2, 3, 4])
    case("argmin", {"axes": [1, 2]}, lambda x: x.flatten(1).argmin(1), [2, 3, 4])
    case("place", {"shape": [3, 5], "axes": [1]}, lambda x, i: torch.zeros(3, 5).scatter(1, i[:, None], x[:, None]), [3], Idx([3], 5))
    case("pick", {"axes": [0]}, lambda x, i: x.gather(0, i[None])[0], [4, 3], Idx([3], 4))


def more_losses():
    signed, unit = [4, 3], Num([4, 3], 0.05, 0.95)
    for number, reduction in enumerate(("mean", "sum", "none")):
        r, attrs = reduction, {"reduction": number}
        case("mse", attrs, lambda x, t: F.mse_loss(x, t, reduction=r), signed, signed)
        case("l1", attrs, lambda x, t: F.l1_loss(x, t, reduction=r), signed, signed)
        case("huber", attrs | {"delta": 0.75}, lambda x, t: F.huber_loss(x, t, reduction=r, delta=0.75), signed, signed)
        case("smooth_l1", attrs | {"beta": 0.75}, lambda x, t: F.smooth_l1_loss(x, t, reduction=r, beta=0.75), signed, signed)
        case("bce", attrs, lambda x, t: F.binary_cross_entropy(x, t, reduction=r), unit, unit)
        case("bce_with_logits", attrs, lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction=r), signed, unit)
        case("kl_div", attrs, lambda x, t: F.kl_div(x, t, reduction=r), signed, unit)
    labels = Idx([6], 4, [0, 3, 1, 1, 2, 0])
    for e in (0.0, 0.125):
        attrs = {"ignore_index": 1, "label_smoothing": e}
        case("cross_entropy", attrs, lambda x, y, e=e: F.cross_entropy(x, y, ignore_index=1, label_smoothing=e), [6, 4], labels)
    case("cross_entropy", {"label_smoothing": 0.25}, lambda x, y: F.cross_entropy(x, y, label_smoothing=0.25), [6, 4], labels)
    case("nll", {}, F.nll_loss, [6, 4], labels)
    case("nll", {"ignore_index": 1}, lambda x, y: F.nll_loss(x, y, ignore_index=1), [6, 4], labels)
    case("label_weights", {"classes": 4, "ignore_index": 1}, lambda y: (y != 1) / (y != 1).sum(), labels)


# ---------------------------------------------------------------------------------------------- moving by index
def moving():
    case("concat", {"axis": 1}, lambda a, b, c: torch.cat([a, b, c], 1), [2, 3], [2, 1], [2, 4])
    case("flip", {"axes": [0, 2]}, lambda x: x.flip(0, 2), [2, 3, 4])
    case("triangle", {"upper": False, "shift": 1}, lambda x: x.tril(1), [2, 4, 5])
    case("triangle", {"upper": True, "shift": -1}, lambda x: x.triu(-1), [4, 5])
    rows = Idx([2, 3], 5)
    case("index_select", {"axis": 0, "checked": True}, lambda x, i: x[i], [5, 4], rows)
    case("index_select", {"axis": 1, "checked": False}, lambda x, i: x.index_select(1, i), [3, 5], Idx([4], 5))
    add = lambda s, i: torch.zeros(5, 4).index_add(0, i, s)
    case("index_add", {"axis": 0, "size": 5, "checked": True}, add, [7, 4], Idx([7], 5))
    based = lambda s, i, b: b.index_add(1, i, s)
    case("index_add", {"axis": 1, "size": 4, "checked": True}, based, [2, 6], Idx([6], 4), [2, 4])
    along = lambda x, i: torch.take_along_dim(x, i, 1)
    case("take_along_axis", {"axis": 1, "checked": True}, along, [3, 5], Idx([3, 4], 5))
    scatter = lambda s, i: torch.zeros(3, 5).scatter_add(1, i, s)
    case("scatter_add", {"axis": 1, "size": 5, "checked": True}, scatter, [3, 8], Idx([3, 8], 5))


# ---------------------------------------------------------------------------------------------- transforms, scans
def pairs(z):
    return torch.view_as_real(z)


def spectral_conv1d(x, re, im):
    modes, n = re.shape[0], x.shape[-2]
    X = torch.fft.rfft(x, dim=-2)[..., :modes, :]
    Z = torch.einsum("...mi,mio->...mo", X, torch.complex(re, im))
    rest = torch.zeros(*Z.shape[:-2], n // 2 + 1 - modes, Z.shape[-1], dtype=Z.dtype)
    return torch.fft.irfft(torch.cat([Z, rest], -2), n=n, dim=-2)


def mix(x, re, im, adjoint=False):
    w = torch.complex(re, im)
    X = torch.complex(x[..., 0, :, :], x[..., 1, :, :])
    Z = torch.einsum("...ko,kco->...kc", X, w.conj()) if adjoint else torch.einsum("...kc,kco->...ko", X, w)
    return torch.stack([Z.real, Z.imag], -3)


def mix_dw(x, d):
    X, D = (torch.complex(v[..., 0, :, :], v[..., 1, :, :]) for v in (x, d))
    w = torch.einsum("bkc,bko->kco", X.conj(), D)
    return packed(w.real, w.imag)


def packed(*parts):
    """Several results one behind the other, each padded to a multiple of four words."""
    flat = [F.pad(p.reshape(-1), (0, -p.numel() % 4)) for p in parts]
    return torch.cat(flat)


def dft_table(n, modes):
    k, t = torch.arange(modes)[:, None], torch.arange(n)[None, :]
    angle = 2 * math.pi * (k * t % n) / n
    s = torch.tensor([1.0 if k == 0 or 2 * k == n else 2.0 for k in range(modes)])[:, None]
    plain = torch.cat([angle.cos(), -angle.sin()])
    return torch.stack([plain, plain * torch.cat([s, s]) / n])


def scan(a, b, x, h):
    a, b = a.expand(x.shape), b.expand(x.shape)
    out = []
    for t in range(x.shape[-2]):
        h = a[..., t, :] * h + b[..., t, :] * x[..., t, :]
        out.append(h)
    return torch.stack(out, -2)


def transforms():
    for n in (8, 7):
        case("rfft", {"scaled": False}, lambda x: pairs(torch.fft.rfft(x)), [3, n])
        inverse = lambda x, n=n: torch.fft.irfft(torch.view_as_complex(x.contiguous()), n=n)
        case("irfft", {"n": n, "scaled": True}, inverse, [2, n // 2 + 1, 2])
        case("spectral_conv1d", {}, spectral_conv1d, [2, n, 3], [4, 3, 2], [4, 3, 2])
    case("dft_table", {"n": 4, "low": 3, "high": 0, "complex": False}, lambda: dft_table(4, 3))
    case("axis_matmul", {"ta": False}, lambda a, x: a @ x, [4, 5], [2, 5, 3])
    case("axis_matmul", {"ta": True}, lambda a, x: a.mT @ x, [5, 4], [2, 5, 3])
    case("mode_mix", {"adjoint": False}, mix, [2, 2, 3, 4], [3, 4, 5], [3, 4, 5])
    case("mode_mix", {"adjoint": True}, lambda x, a, b: mix(x, a, b, True), [2, 2, 3, 5], [3, 4, 5], [3, 4, 5])
    case("mode_mix_dw", {}, mix_dw, [2, 2, 3, 4], [2, 2, 3, 5])
    case("cumsum", {"axis": 1, "exclusive": False, "reverse": False}, lambda x: x.cumsum(1), [2, 7, 3])
    back = lambda x: x.flip(0).cumsum(0).flip(0) - x
    case("cumsum", {"axis": 0, "exclusive": True, "reverse": True}, back, [6, 3])
    case("selective_scan", {}, scan, [4], [4], [2, 5, 4], [2, 4])
    case("selective_scan", {}, scan, [2, 5, 4], [4], [2, 5, 4], [2, 4])


# ---------------------------------------------------------------------------------------------- convolution
def convolutions():
    def window(stride, padding, dilation, groups=1, **more):
        return {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, **more}

    conv = lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 0), (1, 2), 2)
    case("conv", window([2, 1], [1, 0], [1, 2], 2), conv, [2, 4, 6, 7], [6, 2, 3, 2], [6])
    case("conv", window([1], [2], [1]), lambda x, w: F.conv1d(x, w, None, 1, 2), [3, 2, 5], [4, 2, 3])
    case("conv", window([1] * 3, [1] * 3, [1] * 3), lambda x, w: F.conv3d(x, w, padding=1), [1, 2, 3, 3, 3], [2, 2, 2, 3, 2])
    up = lambda x, w, b: F.conv_transpose2d(x, w, b, (2, 1), (1, 0), (1, 0), 2, (1, 2))
    case("conv_transpose", window([2, 1], [1, 0], [1, 2], 2, size=[8, 7]), up, [2, 4, 4, 5], [4, 3, 3, 2], [6])
    weight = lambda y, x: torch.nn.grad.conv2d_weight(x, (6, 2, 3, 2), y, (2, 1), (1, 0), (1, 2), 2)
    case("conv_kernel_grad", window([2, 1], [1, 0], [1, 2], 2, size=[3, 2]), weight, [2, 6, 3, 5], [2, 4, 6, 7])


# ---------------------------------------------------------------------------------------------- attention
def attend(q, k, v, mask=None, scale=None):
    scale = scale or 1 / math.sqrt(q.shape[-1])
    s = q @ k.mT
    if mask is not None:
        s = s.masked_fill(mask == 0, -math.inf)
    # The logarithm and the largest score are one number in two parts, of which the first has the gradient.
    top = s.max(-1, keepdim=True).values.detach()
    log = torch.logsumexp(scale * (s - top), -1) / math.log(2)
    return packed(torch.softmax(scale * s, -1) @ v, log, top.squeeze(-1))


def attention():
    case("attention", {"causal": False}, attend, [2, 3, 4, 5], [2, 3, 6, 5], [2, 3, 6, 2])
    lower = torch.tril(torch.ones(5, 5))
    causal = lambda q, k, v: attend(q, k, v, lower, 0.25)
    case("attention", {"causal": True, "scale": 0.25}, causal, [2, 5, 8], [2, 5, 8], [2, 5, 8])
    mask = Idx([4, 6], 2, data=[1, 0, 1, 1, 0, 1, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1])
    case("attention", {"causal": False}, attend, [1, 2, 4, 8], [1, 2, 6, 8], [1, 2, 6, 3], mask)
    case("attention_mask", {"causal": True, "n": 3, "m": 4}, lambda: torch.tril(torch.ones(3, 4)))

    def halves(x, table):
        cos, sin = table.chunk(2, -1)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    case("rope", {"interleaved": False, "inverse": False}, halves, [2, 3, 8], [3, 8])


# ---------------------------------------------------------------------------------------------- later ones
def later():
    """Behind all others, whose numbers depend on how many cases come before."""
    labels = Idx([6], 4, [0, 3, 1, 1, 2, 0])
    case("label_weights", {"classes": 4, "ignore_index": 1, "mean": False}, lambda y: (y != 1) * 1.0, labels)
    for number, reduction in ((1, "sum"), (2, "none")):
        r, attrs = reduction, {"reduction": number}
        case("cross_entropy", attrs, lambda x, y: F.cross_entropy(x, y, reduction=r), [6, 4], labels)
        for e in (0.0, 0.125):
            fn = lambda x, y: F.cross_entropy(x, y, ignore_index=1, label_smoothing=e, reduction=r)
            case("cross_entropy", attrs | {"ignore_index": 1, "label_smoothing": e}, fn, [6, 4], labels)
    for axes in ([1], [0], [0, 2], [0, 1, 2]):
        case("prod", {"axes": axes}, lambda x, a=axes: prod(x, a), [2, 3, 4])
    # One zero in the first row, two in the second.
    zeros = Num([3, 4], data=[[0.0, 1.5, -2.0, 0.5], [0.0, 3.0, 0.0, 2.0], [1.0, -1.25, 0.75, 2.0]])
    case("prod", {"axes": [1]}, lambda x: prod(x, [1]), zeros)
    case("prod", {"axes": [0, 1]}, lambda x: prod(x, [0, 1]), zeros)
    case("pad", {"axis": 1, "start": 2, "step": 1, "size": 6, "value": -1.5}, lambda x: F.pad(x, (2, 1), value=-1.5), [2, 3])
    case("self_attention", {"causal": True}, inside, [5, 3, 2, 4])
    for op, fn in {"fmax": torch.fmax, "fmin": torch.fmin}.items():
        case(op, {}, fn, [2, 7], [2, 7])
        nan = math.nan
        case(op, {}, fn, Num([6], data=[nan, 1.0, nan, 2.0, -1.0, 0.5]), Num([6], data=[1.0, nan, nan, 2.0, 0.5, -1.0]))
    for op, fn in {"max": torch.maximum, "min": torch.minimum}.items():
        case(op, {}, fn, Num([4], data=[nan, 1.0, nan, 2.0]), Num([4], data=[1.0, nan, nan, 2.0]))
    case("to_float", {}, lambda i: i.double(), Idx([2, 3], 1 << 20))
    case("to_index", {"below": 5}, lambda x: torch.nan_to_num(x, nan=0.0).clamp(0, 4).floor().long(), Num([6], data=[-3.0, 0.9, 2.5, 7.0, nan, math.inf]))
    case("index_eq", {}, lambda a, b: (a == b).double(), Idx([3, 4], 3), Idx([3, 4], 3))


def inside(x):
    """Self-attention of heads that lie inside rows, and its logarithms by heads."""
    q, k, v = x.permute(1, 2, 0, 3)
    packed = attend(q, k, v, torch.tril(torch.ones(5, 5)))
    return torch.cat([packed[:40].reshape(2, 5, 4).transpose(0, 1).reshape(-1), packed[40:]])


# ---------------------------------------------------------------------------------------------- order
def order():
    for down in (False, True):
        case("argsort", {"descending": down}, lambda x: torch.argsort(x, dim=-1, descending=down, stable=True), [3, 9])
        case("topk", {"k": 4, "largest": down}, lambda x: torch.topk(x, 4, -1, down)[1], [3, 9])
        running = torch.cummax if down else torch.cummin
        case("running_extremum", {"largest": down}, lambda x: running(x, -1)[1], [3, 9])
        lists = Num([5], data=[-1.5, -0.5, 0.0, 0.25, 1.0])
        case("searchsorted", {"right": down}, lambda s, x: torch.searchsorted(s, x, right=down), lists, [3, 9])
    for n, how in enumerate(("prod", "amax", "amin"), 1):
        into = lambda s, i, x: x.scatter_reduce(1, i, s, how)
        case("scatter_reduce", {"axis": 1, "combine": n, "checked": True}, into, [3, 8], Idx([3, 8], 5), [3, 5])


def prod(x, axes):
    for a in sorted(axes, reverse=True):
        x = x.prod(a)
    return x


# ---------------------------------------------------------------------------------------------- special functions
def special():
    pos, inside = Num([2, 7], 0.05, 9.0), Num([2, 7], -0.95, 0.95)
    for op in ("tan", "atan", "asinh", "sinh", "cosh", "exp2", "erfc", "trunc"):
        case(op, {}, getattr(torch, op), Num([2, 7], -1.5, 1.5))
    for op in ("asin", "acos", "atanh", "erfinv"):
        case(op, {}, getattr(torch, op), inside)
    for op in ("log2", "log10", "lgamma", "digamma"):
        case(op, {}, getattr(torch, op), pos)
    case("acosh", {}, torch.acosh, Num([2, 7], 1.05, 9.0))
    case("ndtri", {}, torch.special.ndtri, Num([2, 7], 0.05, 0.95))
    case("erfcx", {}, torch.special.erfcx, [2, 7])
    for op in ("i0", "i0e", "i1", "i1e"):
        case(op, {}, getattr(torch.special, op), Num([2, 7], -12.0, 12.0))
    for op in ("lgamma", "digamma"):
        case(op, {}, getattr(torch, op), Num([4], data=[-0.5, -1.25, -3.75, -10.5]))
    for op in ("atan2", "hypot", "logaddexp", "copysign"):
        case(op, {}, getattr(torch, op), [2, 7], [2, 7])
    case("xlogy", {}, torch.xlogy, [2, 7], pos)
    for op in ("fmod", "remainder"):
        case(op, {}, getattr(torch, op), Num([2, 7], -8.0, 8.0), pos)
        pairs = Num([4], data=[7.5, -7.5, 7.5, -7.5]), Num([4], data=[2.0, 2.0, -2.0, -2.0])
        case(op, {}, getattr(torch, op), *pairs)


# ---------------------------------------------------------------------------------------------- images
def images():
    """Resampling, sampling by a grid, and max pooling to a size."""
    modes = [{}, {1: "nearest", 2: "nearest", 3: "nearest"}, {1: "nearest-exact", 2: "nearest-exact", 3: "nearest-exact"}]
    modes = [*modes[1:], {1: "linear", 2: "bilinear", 3: "trilinear"}, {2: "bicubic"}]
    for filter, names in enumerate(modes):
        for shape, sizes, steps in (([2, 3, 5], [8], None), ([1, 2, 4, 6], [7, 3], None), ([1, 2, 5, 6], [8, 9], [1.7, 1.5]), ([1, 1, 2, 3, 4], [3, 5, 2], None)):
            if len(sizes) not in names:
                continue
            for align in (False, True) if filter > 1 else (False,):
                if align and steps:
                    continue
                attrs = {"filter": filter, "align_corners": align, "antialias": False, "sizes": sizes}
                attrs.update({f"step{a}": 1.0 / steps[a] if steps else 0.0 for a in range(len(sizes))})
                how = {"scale_factor": tuple(steps)} if steps else {"size": tuple(sizes)}
                how.update({"align_corners": align} if filter > 1 else {})
                case("resample", attrs, lambda x: F.interpolate(x, mode=names[len(sizes)], **how), shape)
        if filter > 1:
            for shape, sizes in (([1, 2, 9, 7], [4, 3]), ([1, 1, 4, 3], [6, 7]), ([1, 1, 12, 5], [2, 8])):
                attrs = {"filter": filter, "align_corners": False, "antialias": True, "sizes": sizes, "step0": 0.0, "step1": 0.0}
                case("resample", attrs, lambda x: F.interpolate(x, size=tuple(sizes), mode=names[2], antialias=True), shape)
    for m, mode in enumerate(("bilinear", "nearest", "bicubic")):
        for p, padding in enumerate(("zeros", "border", "reflection")):
            for align in (False, True):
                for image, places in (([2, 2, 4, 5], [2, 3, 4, 2]), ([1, 2, 3, 4, 3], [1, 2, 3, 2, 3])):
                    if len(image) == 5 and mode == "bicubic":
                        continue
                    attrs = {"mode": m, "padding_mode": p, "align_corners": align, "orders": [0] * (len(image) - 2)}
                    read = lambda x, grid: F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=align)
                    case("grid_sample", attrs, read, image, Num(places, -1.6, 1.6))
    for sizes, shape, fn in (([3], [2, 2, 7], F.adaptive_max_pool1d), ([3, 5], [2, 2, 7, 6], F.adaptive_max_pool2d), ([2, 2, 3], [1, 2, 3, 5, 4], F.adaptive_max_pool3d)):
        case("adaptive_max_pool", {"sizes": sizes}, lambda x: fn(x, sizes), shape)
    x = np.random.default_rng(6).permutation(2 * 5 * 4).reshape(2, 5, 4) / 8.0 - 2.0
    y, at = F.adaptive_max_pool2d(torch.tensor(x), (3, 3), return_indices=True)
    pick = lambda x, y, v: v.reshape(2, 20).gather(1, at.reshape(2, -1)).reshape(y.shape)
    case("adaptive_max_pool_pick", {"sizes": [3, 3]}, pick, Num([2, 5, 4], data=x), Num([2, 3, 3], data=y.numpy()), [2, 5, 4])


# ---------------------------------------------------------------------------------------------- matrices
def dominant(shape, shift):
    """Square matrices with large elements `shift` columns right of the diagonal."""
    n = shape[-1]
    x = np.random.default_rng(7 * n + shift).uniform(-1.0, 1.0, size=shape)
    for i in range(n):
        x[..., i, (i + shift) % n] += 2 * math.sqrt(n)
    return Num(shape, data=x)


def packed_lu(a):
    """Both factors in one matrix, the rows in their order through the batch, and the signs."""
    p, l, u = torch.linalg.lu(a)
    n = a.shape[-2]
    rows = p.argmax(-2) + n * torch.arange(a.shape[0])[:, None]
    k = l.shape[-1]
    both = F.pad(l.tril(-1), (0, a.shape[-1] - k)) + F.pad(u, (0, 0, 0, n - k))
    # What is no matrix has a gradient of zero, as the upstream one does there.
    rest = torch.cat([rows.reshape(-1).to(a.dtype), torch.linalg.det(p.detach())])
    return torch.cat([both.reshape(-1), rest + 0 * a.sum()])


def packed_qr(a):
    """Both factors, then the reflections and their factors, which have no gradients."""
    q, r = torch.linalg.qr(a)
    v, tau = torch.geqrf(a.detach())
    v = v.tril(-1) + torch.eye(*a.shape[-2:])
    return torch.cat([t.reshape(-1) for t in (r, q, v + 0 * a, tau + 0 * a.sum())])


def matrices():
    symmetric = lambda a: 0.5 * (a + a.mT)
    for upper in (False, True):
        factor = lambda a, upper=upper: torch.linalg.cholesky(symmetric(a), upper=upper)
        case("cholesky", {"upper": upper}, factor, dominant([2, 4, 4], 0))
    for kind in range(16):
        upper, ta, unit, right = (bool(kind & bit) for bit in (1, 2, 4, 8))

        def solve(a, b, upper=upper, ta=ta, unit=unit, right=right):
            a, upper = (a.mT, not upper) if ta else (a, upper)
            return torch.linalg.solve_triangular(a, b, upper=upper, left=not right, unitriangular=unit)

        attrs = {"upper": upper, "ta": ta, "unit": unit, "right": right}
        case("triangular_solve", attrs, solve, dominant([2, 3, 3], 0), [2, 2, 3] if right else [2, 3, 2])
    case("lu", {}, packed_lu, dominant([2, 4, 4], 1))
    case("lu", {}, packed_lu, [2, 3, 5])
    case("lu", {}, packed_lu, [2, 5, 3])
    for shape in ([2, 4, 4], [2, 6, 3]):
        case("qr", {}, packed_qr, shape)


def more_special():
    case("xlog1py", {}, torch.special.xlog1py, [2, 7], Num([2, 7], -0.9, 8.0))
    case("entr", {}, torch.special.entr, Num([2, 7], 0.05, 9.0))
    # Near zero PyTorch's gradients have no digits.
    case("sinc", {}, torch.sinc, Num([2, 7], 0.4, 3.0))
    case("spherical_bessel_j0", {}, lambda x: torch.sin(x) / x, Num([2, 7], 1.05, 9.0))
    case("log_odds", {}, torch.logit, Num([2, 7], 0.05, 0.95))


# ---------------------------------------------------------------------------------------------- recurrent layers
def recurrence(cell, reverse=False, bias=True, masked=False):
    """All rows of the states, the initial ones included, and what is saved of each step."""

    def step(x, p, states):
        if cell == 0:
            i, f, g, o = (x + p).chunk(4, -1)
            i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
            c = f * states[1] + i * g
            return [o * c.tanh(), c], [i, f, g, o]
        if cell == 1:
            (xr, xz, xn), (pr, pz, pn) = x.chunk(3, -1), p.chunk(3, -1)
            r, z = (xr + pr).sigmoid(), (xz + pz).sigmoid()
            n = (xn + r * pn).tanh()
            return [(1 - z) * n + z * states[0]], [r, z, n, pn]
        return [torch.tanh(x + p) if cell == 2 else torch.relu(x + p)], []

    def run(x, w, *rest):
        count = 2 if cell == 0 else 1
        states, rest = list(rest[:count]), list(rest[count:])
        b = rest.pop(0) if bias else 0.0
        times = list(range(len(x)))
        rows, saved = {-1: states}, {}
        for t in reversed(times) if reverse else times:
            after, kept = step(x[t], states[0] @ w.T + b, states)
            if masked:
                live = (rest[0][t] != 0)[:, None]
                after = [torch.where(live, a, s) for a, s in zip(after, states)]
                kept = [torch.where(live, k, torch.zeros_like(k)) for k in kept]
            states, rows[t], saved[t] = after, after, kept
        order = times + [-1] if reverse else [-1] + times
        parts = [torch.stack([rows[t][i] for t in order]) for i in range(count)]
        parts += [torch.stack([saved[t][i] for t in times]) for i in range(len(saved[0]))]
        return torch.cat(parts)

    return run


def recurrences():
    for cell, gates, states in ((0, 4, 2), (1, 3, 1), (2, 1, 1), (3, 1, 1)):
        for reverse, bias, masked in ((False, True, False), (True, False, False), (cell % 2 == 1, True, True)):
            attrs = {"cell": cell, "reverse": reverse, "masked": masked}
            ins = [[4, 2, 3 * gates], [3 * gates, 3]] + [[2, 3]] * states + [[3 * gates]] * bias
            mask = [Num([4, 2], data=[1, 1, 0, 2, 1, 0, -1, 0])] * masked
            case("recurrent", attrs, recurrence(cell, reverse, bias, masked), *ins, *mask)


def main():
    families = (elementwise, pointwise, reductions, folds, layout, products, rows, norms, pools, losses, more_losses, moving, transforms, convolutions, attention, later, special, order, images, matrices, more_special, recurrences)
    for family in families:
        family()
    if "--check" not in sys.argv[1:]:
        FILE.write_text("".join(json.dumps(c) + "\n" for c in CASES))
        print(f"{len(CASES)} cases of {len({c['op'] for c in CASES})} ops, {FILE.stat().st_size} bytes")
        return 0
    committed = [json.loads(line) for line in FILE.read_text().splitlines()]
    return compare(committed)


def compare(committed):
    """Whether the committed file says the same, up to the last digits that differ between versions."""
    if len(committed) != len(CASES):
        print(f"{len(committed)} cases are committed, {len(CASES)} are made")
        return 1
    for old, new in zip(committed, CASES):
        for key in ("op", "attrs", "ins"):
            if old[key] != new[key]:
                print(f"{new['op']} {new['attrs']}: {key} differ")
                return 1
        lists = [(old["y"]["data"], new["y"]["data"])]
        lists += [(a, b) for a, b in zip(old.get("dx", []), new.get("dx", [])) if (a is None) == (b is None) and a is not None]
        for a, b in lists:
            for x, y in zip(a, b, strict=True):
                x, y = float(x), float(y)
                if not (x == y or (math.isnan(x) and math.isnan(y)) or abs(x - y) <= 1e-11 * max(1.0, abs(y))):
                    print(f"{new['op']} {new['attrs']}: {x} is committed, {y} is made")
                    return 1
    print(f"{len(CASES)} cases agree")
    return 0


if __name__ == "__main__":
    sys.exit(main())
