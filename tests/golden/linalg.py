#!/usr/bin/env python3
"""Golden values and gradients of linear algebra and Fourier transforms, computed by PyTorch in float64.

    python3 tests/golden/linalg.py            writes tests/golden/linalg.jsonl
    python3 tests/golden/linalg.py --check    recomputes and compares with the committed file

One JSON object a line: name, inputs, value `y`, upstream gradient `dy`, gradients `dx`. Complex values are pairs. Inputs are
float32 numbers. Needs torch and numpy.
"""
import math
import pathlib
import sys

import numpy as np
import torch

from cases import finish

torch.set_default_dtype(torch.float64)
CASES = []


def case(name, fn, *ins):
    rng = np.random.default_rng(1000 + len(CASES))
    tensors = []
    for i in ins:
        data = rng.uniform(-1.0, 1.0, size=i) if isinstance(i, list) else i
        data = np.asarray(data).astype(np.float32).astype(np.float64)
        tensors.append(torch.tensor(data).requires_grad_())
    y = fn(*tensors)
    dy = rng.uniform(-1.0, 1.0, size=tuple(y.shape)).astype(np.float32).astype(np.float64)
    dx = torch.autograd.grad(y, tensors, torch.tensor(dy))
    flat = lambda t: {"shape": list(t.shape), "data": t.detach().resolve_conj().reshape(-1).tolist()}
    CASES.append({
        "name": name,
        "ins": [flat(t) for t in tensors],
        "y": flat(y),
        "dy": torch.tensor(dy).reshape(-1).tolist(),
        "dx": [flat(t)["data"] for t in dx],
    })


def dominant(*shape, shift=1):
    """Square matrices with large elements `shift` columns right of the diagonal."""
    n = shape[-1]
    x = np.random.default_rng(n + shift).uniform(-1.0, 1.0, size=shape)
    for i in range(n):
        x[..., i, (i + shift) % n] += 2 * math.sqrt(n)
    return x


def lower(*shape):
    return np.tril(dominant(*shape, shift=0))


def cplx(x):
    return torch.view_as_complex(x.contiguous())


def pairs(x):
    return torch.view_as_real(x.resolve_conj())


def matrices():
    la = torch.linalg
    case("cholesky", lambda a: la.cholesky(0.5 * (a + a.mT)), dominant(2, 3, 4, 4, shift=0))
    case("cholesky_upper", lambda a: la.cholesky(0.5 * (a + a.mT), upper=True), dominant(5, 5, shift=0))
    case("solve_triangular", lambda a, b: la.solve_triangular(a.tril(), b, upper=False), dominant(3, 3, shift=0), [2, 3, 2])
    case("solve_triangular_right", lambda a, b: la.solve_triangular(a.triu(), b, upper=True, left=False), dominant(2, 3, 3, shift=0), [2, 4, 3])
    case("solve_triangular_unit", lambda a, b: la.solve_triangular(a.triu(), b, upper=True, unitriangular=True), dominant(3, 3, shift=0), [3, 2])
    case("cholesky_solve", lambda b, l: torch.cholesky_solve(b, l.tril()), [2, 4, 3], lower(2, 4, 4))
    case("cholesky_inverse", lambda l: torch.cholesky_inverse(l.tril()), lower(4, 4))
    case("solve", la.solve, dominant(2, 4, 4), [2, 4, 3])
    case("solve_broadcast", la.solve, dominant(2, 1, 4, 4), [3, 4, 2])
    case("solve_vector", la.solve, dominant(4, 4), [4])
    case("solve_vectors", la.solve, dominant(3, 4, 4), [3, 4])
    case("inverse", la.inv, dominant(3, 3, 3))
    case("det", la.det, dominant(2, 4, 4))
    case("det_one", la.det, dominant(5, 5, shift=2))
    case("slogdet", lambda a: la.slogdet(a)[1], dominant(3, 4, 4))
    case("logdet", torch.logdet, dominant(3, 3, shift=0))
    case("lu", lambda a: torch.cat([la.lu(a)[1], la.lu(a)[2]], -1), dominant(2, 4, 4))
    case("matrix_power_5", lambda a: la.matrix_power(a, 5), dominant(2, 3, 3))
    case("matrix_power_minus_2", lambda a: la.matrix_power(a, -2), dominant(3, 3))
    case("cross", lambda a, b: la.cross(a, b, dim=1), [2, 3, 4], [2, 3, 4])
    case("vecdot", lambda a, b: la.vecdot(a, b, dim=1), [2, 3, 4], [2, 3, 4])


def fourier():
    f = torch.fft
    case("fft", lambda x: pairs(f.fft(cplx(x))), [3, 8, 2])
    case("fft_odd", lambda x: pairs(f.fft(cplx(x), norm="ortho")), [3, 7, 2])
    case("fft_axis", lambda x: pairs(f.fft(cplx(x), n=5, dim=0, norm="forward")), [4, 3, 2])
    case("fft_one", lambda x: pairs(f.fft(cplx(x))), [3, 1, 2])
    case("fft_two", lambda x: pairs(f.fft(cplx(x))), [3, 2, 2])
    case("ifft", lambda x: pairs(f.ifft(cplx(x), n=6)), [2, 9, 2])
    case("ifft_ortho", lambda x: pairs(f.ifft(cplx(x), dim=1, norm="ortho")), [2, 5, 3, 2])
    case("rfft", lambda x: pairs(f.rfft(x, n=7, dim=1, norm="ortho")), [2, 5, 3])
    case("irfft", lambda x: f.irfft(cplx(x), dim=0), [5, 2, 2])
    case("irfft_odd", lambda x: f.irfft(cplx(x), n=9, norm="forward"), [2, 4, 2])
    case("fft2", lambda x: pairs(f.fft2(cplx(x))), [2, 3, 4, 2])
    case("ifft2", lambda x: pairs(f.ifft2(cplx(x), norm="ortho")), [3, 4, 2])
    case("rfft2", lambda x: pairs(f.rfft2(x)), [2, 3, 4])
    case("irfft2", lambda x: f.irfft2(cplx(x), s=(3, 5)), [2, 3, 3, 2])
    stft = lambda x, w: pairs(torch.stft(x, 8, window=w, return_complex=True))
    case("stft", stft, [2, 20], [8])
    plain = lambda x: pairs(torch.stft(x, 6, hop_length=4, window=torch.ones(6), center=False, normalized=True, return_complex=True))
    case("stft_plain", plain, [2, 21])
    window = 1.0 + 0.5 * np.sin(np.arange(8.0))
    case("istft", lambda x, w: torch.istft(cplx(x), 8, window=w), spectrum(8), window)
    case("istft_len", lambda x, w: torch.istft(cplx(x), 8, window=w, length=17), spectrum(8), window)


def factors():
    la = torch.linalg
    both = lambda a: torch.cat([x.reshape(-1) for x in la.lu(a)[1:]])
    case("lu_wide", both, [2, 3, 5])
    case("lu_tall", both, [2, 5, 3])
    case("lu_factor", lambda a: la.lu_factor(a)[0], [2, 5, 3])
    case("lu_unpack", lambda x: torch.cat([t.reshape(-1) for t in torch.lu_unpack(x, torch.tensor([[2, 3, 3]] * 2, dtype=torch.int32))]), [2, 3, 4])
    exchanges = torch.tensor([3, 3, 4, 4], dtype=torch.int32)
    for left in (True, False):
        for adjoint in (False, True):
            name = "lu_solve" + ("" if left else "_right") + ("_adjoint" if adjoint else "")
            solve = lambda x, b: la.lu_solve(x, exchanges, b, left=left, adjoint=adjoint)
            case(name, solve, dominant(4, 4, shift=0), [2, 4, 3] if left else [2, 3, 4])
    case("householder_product", la.householder_product, [2, 5, 3], np.random.default_rng(5).uniform(0.5, 1.5, size=(2, 2)))
    case("householder_product_square", la.householder_product, [4, 4], np.random.default_rng(6).uniform(0.5, 1.5, size=4))
    for left in (True, False):
        for transpose in (False, True):
            name = "ormqr" + ("" if left else "_right") + ("_transpose" if transpose else "")
            apply = lambda a, tau, b: torch.ormqr(a, tau, b, left, transpose)
            case(name, apply, [2, 5, 3], np.random.default_rng(7).uniform(0.5, 1.5, size=(2, 3)), [2, 5, 4] if left else [2, 4, 5])
    case("matrix_exp", la.matrix_exp, np.random.default_rng(8).uniform(-1.0, 1.0, size=(3, 4, 4)) * np.array([0.1, 1.0, 4.0])[:, None, None])
    case("matrix_exp_one", la.matrix_exp, [1, 1])
    # The gradient of `la.cond` fails for these orders.
    cond = lambda a, p: la.matrix_norm(a, p) * la.matrix_norm(la.inv(a), p)
    case("cond_1", lambda a: cond(a, 1), dominant(2, 4, 4))
    case("cond_fro", lambda a: cond(a, "fro"), dominant(3, 3))
    case("cond_minus_inf", lambda a: cond(a, -math.inf), dominant(3, 3))
    case("tensorinv", lambda a: la.tensorinv(a, 1), dominant(2, 6, 6)[0].reshape(6, 2, 3))
    case("tensorsolve", la.tensorsolve, dominant(6, 6).reshape(2, 3, 6), [2, 3])
    case("tensorsolve_moved", lambda a, b: la.tensorsolve(a, b, dims=(0,)), dominant(6, 6).reshape(6, 2, 3), [2, 3])
    both = lambda a, mode: torch.cat([x.reshape(-1) for x in la.qr(a, mode)])
    case("qr", lambda a: both(a, "reduced"), [2, 5, 3])
    case("qr_square", lambda a: both(a, "complete"), [2, 4, 4])
    case("qr_wide", lambda a: both(a, "reduced"), [2, 3, 5])
    # What of Q has gradients is the first columns; these are those of the reduced mode.
    case("qr_complete", lambda a: both(a.detach(), "complete") + 0 * a.sum(), [5, 3])
    for name, shape in (("geqrf", [2, 5, 3]), ("geqrf_wide", [2, 3, 5])):
        case(name, lambda a: torch.cat([x.reshape(-1) for x in torch.geqrf(a.detach())]) + 0 * a.sum(), shape)
    case("lstsq", lambda a, b: la.lstsq(a, b).solution, [2, 5, 3], [2, 5, 2])
    case("lstsq_wide", lambda a, b: la.lstsq(a, b).solution, [3, 5], [3, 2])


def several_axes():
    f = torch.fft
    case("fftn", lambda x: pairs(f.fftn(cplx(x), s=(4, 2), dim=(0, 2))), [3, 2, 4, 2])
    case("ifftn", lambda x: pairs(f.ifftn(cplx(x), dim=(0, 1), norm="forward")), [3, 4, 2])
    case("rfftn", lambda x: pairs(f.rfftn(x, dim=(2, 0), norm="ortho")), [3, 2, 5])
    case("irfftn", lambda x: f.irfftn(cplx(x), s=(4, 5), dim=(1, 0)), [3, 4, 2])
    case("hfft", lambda x: f.hfft(cplx(x), n=7), [2, 4, 2])
    case("ihfft", lambda x: pairs(f.ihfft(x, norm="ortho")), [2, 7])
    case("hfftn", lambda x: f.hfftn(cplx(x), dim=(0, 1)), [3, 4, 2])
    case("ihfftn", lambda x: pairs(f.ihfftn(x, dim=(0, 1))), [3, 4])
    case("conj", lambda x: pairs(cplx(x).conj()), [3, 2])
    case("fftshift", lambda x: f.fftshift(x, dim=(0, 2)), [3, 2, 4])
    case("ifftshift", lambda x: f.ifftshift(x, dim=(0, 2)), [3, 2, 4])
    short = lambda x, w: pairs(torch.stft(x, 8, hop_length=3, win_length=5, window=w, onesided=False, return_complex=True))
    case("stft_two_sided", short, [2, 20], [5])
    for mode in ("constant", "replicate", "circular"):
        case(f"stft_{mode}", lambda x: pairs(torch.stft(x, 8, win_length=6, window=torch.ones(6), pad_mode=mode, return_complex=True)), [2, 11])
    both_sides = np.random.default_rng(4).uniform(-1.0, 1.0, size=(2, 7, 4, 2))
    case("istft_two_sided", lambda x, w: torch.istft(cplx(x), 7, hop_length=2, win_length=6, window=w, onesided=False), both_sides, 1.0 + 0.25 * np.cos(np.arange(6.0)))


def spectrum(n):
    return pairs(torch.stft(torch.tensor(np.random.default_rng(3).uniform(-1, 1, size=(2, 20))), n, window=torch.ones(n), return_complex=True)).numpy()


if __name__ == "__main__":
    matrices()
    fourier()
    factors()
    several_axes()
    sys.exit(finish(pathlib.Path(__file__).with_name("linalg.jsonl"), CASES, 1e-11))
