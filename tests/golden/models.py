#!/usr/bin/env python3
"""Golden values of the models, computed by PyTorch in float64.

    python3 tests/golden/models.py            writes tests/golden/models.jsonl
    python3 tests/golden/models.py --check    recomputes and compares with the committed file

One JSON object a line: the model, its parameters' names and shapes, its output, its loss and the gradients of all parameters.
Parameters and inputs are made by the formula in `fill`, the same in the Rust test. Needs torch.
"""
import pathlib
import sys

import torch
from torch.nn import functional as F

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "compare"))
from cases import finish
from models import Cnn, Fno1d, Gpt, Mlp, label_loss

FILE = HERE / "models.jsonl"
torch.set_default_dtype(torch.float64)


def fill(shape, k):
    """Element i of tensor k: numbers that float32 holds exactly, without a short period."""
    count = torch.Size(shape).numel()
    return torch.tensor([((37 * i + i * i // 7 + 11 * k) % 101 - 50) / 128 for i in range(count)]).reshape(shape)


def whole(shape, k, below):
    count = torch.Size(shape).numel()
    return torch.tensor([(5 * i + i * i // 3 + k) % below for i in range(count)]).reshape(shape)


def case(name, net, x, y, loss):
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(fill(p.shape, k))
    out = net(x)
    value = loss(out, y)
    value.backward()
    digits = lambda t: [float(f"{v:.12g}") for v in t.detach().reshape(-1).tolist()]
    parts = [{"name": n, "shape": list(p.shape), "grad": digits(p.grad)} for n, p in net.named_parameters()]
    return {"name": name, "out": digits(out), "loss": value.item(), "params": parts}


def cases():
    yield case("mlp", Mlp([5, 7, 3]), fill([4, 5], 90), whole([4], 1, 3), label_loss)
    cnn = Cnn(channels=2, image=(6, 5), widths=(3, 4, 5), classes=3)
    yield case("cnn", cnn, fill([2, 2, 6, 5], 90), whole([2], 1, 3), label_loss)
    fno = Fno1d(inputs=2, outputs=1, width=4, modes=3, layers=2, hidden=5)
    yield case("fno1d", fno, 8 * fill([2, 9, 2], 90), fill([2, 9, 1], 91), F.mse_loss)
    gpt = Gpt(7, 5, 4, 2, 2)
    yield case("gpt", gpt, whole([3, 4], 0, 7), whole([3, 4], 3, 7), label_loss)


if __name__ == "__main__":
    sys.exit(finish(FILE, list(cases()), 1e-10))
