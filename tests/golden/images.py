#!/usr/bin/env python3
"""Golden values of methods on images and their gradients, computed by PyTorch in float64.

    python3 tests/golden/images.py            writes tests/golden/images.jsonl
    python3 tests/golden/images.py --check    recomputes and compares with the committed file

One JSON object a line: the name that `tests/it/images.rs` knows the call by, inputs, value `y`, upstream gradient `dy`,
gradients `dx`. Inputs are float32 numbers, so they are the same in both programs. Needs torch and numpy.
"""
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F
from cases import finish

FILE = pathlib.Path(__file__).with_name("images.jsonl")
torch.set_default_dtype(torch.float64)
CASES = []


def case(name, fn, *shapes, low=-2.0):
    """Records `fn` of numbers of these shapes, its gradients, and the indices it returns beside its value."""
    rng = np.random.default_rng(len(CASES))
    draw = lambda shape, lo, hi: torch.tensor(rng.uniform(lo, hi, size=shape).astype(np.float32).astype(np.float64))
    ins = [draw(shape, low, 2.0).requires_grad_() for shape in shapes]
    y = fn(*ins)
    y, at = y if isinstance(y, tuple) else (y, None)
    dy = draw(tuple(y.shape), -1.0, 1.0)
    dx = torch.autograd.grad(y, ins, dy)
    flat = lambda t: t.detach().reshape(-1).tolist()
    tensor = lambda t: {"shape": list(t.shape), "data": flat(t)}
    CASES.append({"name": name, "ins": [tensor(i) for i in ins], "y": tensor(y), "dy": flat(dy), "dx": [flat(d) for d in dx]})
    if at is not None:
        CASES[-1]["indices"] = flat(at)


def main():
    x = [2, 3, 5, 6]
    case("interpolate nearest", lambda x: F.interpolate(x, size=(7, 4), mode="nearest"), x)
    case("interpolate bilinear", lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), x)
    case("interpolate recomputed", lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear", recompute_scale_factor=True), x)
    case("interpolate bicubic", lambda x: F.interpolate(x, size=(8, 9), mode="bicubic", align_corners=True), x)
    case("interpolate antialias", lambda x: F.interpolate(x, size=(2, 3), mode="bicubic", antialias=True), x)
    case("interpolate trilinear", lambda x: F.interpolate(x, size=(3, 4, 5), mode="trilinear"), [1, 2, 2, 3, 4])
    case("interpolate area", lambda x: F.interpolate(x, size=(3, 4), mode="area"), x)
    case("affine_grid", lambda t: F.affine_grid(t, [2, 1, 3, 4], align_corners=False), [2, 2, 3])
    case("affine_grid aligned", lambda t: F.affine_grid(t, [1, 1, 2, 3, 4], align_corners=True), [1, 3, 4])
    case("warp", lambda x, t: F.grid_sample(x, F.affine_grid(t, [2, 3, 4, 5], align_corners=False), align_corners=False), x, [2, 2, 3], low=-0.7)
    pads = [1, 2, 2, 0]
    case("pad constant", lambda x: F.pad(x, [1, -2, -1, 3], value=1.5), x)
    case("pad reflect", lambda x: F.pad(x, pads, mode="reflect"), x)
    case("pad replicate", lambda x: F.pad(x, pads, mode="replicate"), x)
    case("pad circular", lambda x: F.pad(x, pads, mode="circular"), x)
    case("pad circular cropped", lambda x: F.pad(x, [-1, 2, 1, -1], mode="circular"), x)
    case("im2col", lambda x: F.unfold(x, (2, 3), dilation=(2, 1), padding=(1, 2), stride=(1, 2)), x)
    case("col2im", lambda x: F.fold(x, (5, 6), (2, 3), dilation=(2, 1), padding=(1, 2), stride=(1, 2)), [2, 18, 20])
    case("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), [2, 8, 3, 2])
    case("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 3), [2, 2, 6, 3])
    case("channel_shuffle", lambda x: x.reshape(2, 2, 3, 4).transpose(1, 2).reshape(2, 6, 2, 2), [2, 6, 2, 2])
    case("local_response_norm", lambda x: F.local_response_norm(x, 4, alpha=0.3, beta=0.6, k=1.5), [2, 7, 3])
    case("max_pool ceil", lambda x: F.max_pool2d(x, (3, 2), (2, 3), (1, 0), ceil_mode=True, return_indices=True), [2, 3, 6, 9])
    case("max_pool dilated", lambda x: F.max_pool2d(x, 2, (2, 1), 1, (2, 3), return_indices=True), x)
    case("max_pool1d", lambda x: F.max_pool1d(x, 3, 3, 1, ceil_mode=True, return_indices=True), [2, 3, 10])
    case("max_pool3d", lambda x: F.max_pool3d(x, 2, 2, ceil_mode=True, return_indices=True), [1, 2, 3, 4, 5])
    case("adaptive_max_pool", lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True), x)
    case("avg_pool ceil", lambda x: F.avg_pool2d(x, (3, 2), (2, 3), (1, 0), ceil_mode=True), [2, 3, 6, 9])
    case("avg_pool ceil uncounted", lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), [2, 3, 6, 8])
    case("avg_pool divisor", lambda x: F.avg_pool2d(x, 2, 2, 1, divisor_override=3), x)
    case("avg_pool1d ceil", lambda x: F.avg_pool1d(x, 4, 3, 2, ceil_mode=True), [2, 3, 10])
    case("max_unpool", lambda x: F.max_unpool2d(x, torch.tensor([[[[1, 3], [9, 14]], [[0, 7], [8, 15]]]]), 2, output_size=(4, 4)), [1, 2, 2, 2])
    case("lp_pool", lambda x: F.lp_pool2d(x, 3.0, 2, 2), [2, 2, 4, 6], low=0.1)
    case("lp_pool ceil", lambda x: F.lp_pool1d(x, 2.0, 3, 2, ceil_mode=True), [2, 2, 8], low=0.1)
    kernel = [4, 3, 2, 3]
    case("conv same", lambda x, w: F.conv2d(x, w, padding="same", dilation=(3, 1)), x, kernel)
    case("conv padded", lambda x, w, b: F.conv2d(F.pad(x, [1, 3, 0, 2]), w, b, stride=2), x, kernel, [4])
    transposed = lambda x, w, b: F.conv_transpose2d(x, w, b, stride=(1, 2), padding=(1, 1), output_padding=(2, 1), dilation=(3, 1))
    case("conv_transpose beyond", transposed, x, [3, 2, 2, 3], [2])
    return finish(FILE, CASES, 1e-11)


if __name__ == "__main__":
    sys.exit(main())
