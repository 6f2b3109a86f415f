#!/usr/bin/env python3
"""Errors of products in digits on the numbers of a real training: the linear layers of a model with GPT-2 small's sizes.

usage: python3 compare/digits.py [--steps N] [--text FILE]

Trains the model in PyTorch on the bytes of a text, by default this repository's documents and sources, then takes the inputs, weights and
gradients of its linear layers in one step, and computes every product of the layer in float64, in float32, in TF32, and as modes turbo and
fast define it (C9 of NUMERICS.md). Errors are in the Frobenius norm, relative to the product; the median and the largest over layers.
Needs a GPU and nothing of ours but the text.
"""
import argparse, pathlib, statistics
import torch
from models import Gpt

ROOT = pathlib.Path(__file__).resolve().parent.parent
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--text")
args = parser.parse_args()
BATCH, CONTEXT = 8, 1024


def text():
    if args.text:
        return pathlib.Path(args.text).read_bytes()
    files = sorted(f for kind in ("*.md", "*.rs") for f in ROOT.rglob(kind) if "target" not in f.parts)
    return b"\n".join(f.read_bytes() for f in files)


def tf32(allow):
    torch.backends.cuda.matmul.allow_tf32 = allow


def integers(x, digits):
    """The integers of each row, and its exponent: steps 1 and 2 of C9, for rows of one chunk."""
    top = x.abs().amax(1).view(torch.int32)
    e = torch.clamp((top >> 23) - 126 + ((top & 0x7FFFFF) >= 0x7E0000).int(), min=-96)
    return torch.round(torch.ldexp(x.double(), (8 * digits - 1 - e)[:, None])), e


def in_digits(a, b, digits):
    """`a @ b.T`. Sums are below 2^53, so that they are exact in float64."""
    (x, ea), (y, eb) = integers(a, digits), integers(b, digits)
    if digits == 2:
        total = x @ y.T
    else:
        low_a, low_b = (torch.remainder(v + 128, 256) - 128 for v in (x, y))
        high_a, high_b = (x - low_a) / 256, (y - low_b) / 256
        total = (high_a @ high_b.T) * 256 + high_a @ low_b.T + low_a @ high_b.T
    shift = 2 * (8 * digits - 1) - (8 if digits == 3 else 0)
    return torch.ldexp(total.float().double(), ea[:, None] + eb[None, :] - shift)


def errors(a, b):
    """Of `a @ b.T` in each way."""
    exact = a.double() @ b.double().T
    of = lambda c: ((c.double() - exact).norm() / exact.norm()).item()
    tf32(False)
    plain = of(a @ b.T)
    tf32(True)
    rounded = of(a @ b.T)
    return {"float32": plain, "TF32": rounded, "turbo": of(in_digits(a, b, 2)), "fast": of(in_digits(a, b, 3))}


def main():
    torch.manual_seed(0)
    tf32(True)
    tokens = torch.frombuffer(bytearray(text()), dtype=torch.uint8).cuda().long()
    net = Gpt(vocab=256, context=CONTEXT, width=768, heads=12, layers=12).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)
    kept = {}

    def keep(name):
        def forward(module, inputs, output):
            kept[name] = [inputs[0].detach(), module.weight.detach(), None]
            output.register_hook(lambda dy: kept[name].__setitem__(2, dy))

        return forward

    steps = torch.arange(CONTEXT + 1, device="cuda")
    for step in range(args.steps + 1):
        if step == args.steps:
            for name, module in net.named_modules():
                if isinstance(module, torch.nn.Linear) and name.startswith("blocks"):
                    module.register_forward_hook(keep(name))
        rows = tokens[torch.randint(len(tokens) - CONTEXT - 1, (BATCH, 1), device="cuda") + steps]
        loss = torch.nn.functional.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{torch.cuda.get_device_name()}, {args.steps} steps, loss {loss.item():.3f}, {len(kept)} linear layers")
    found = {"outputs": [], "gradients of inputs": [], "gradients of weights": []}
    for x, w, dy in kept.values():
        x, dy = x.flatten(0, 1), dy.flatten(0, 1)
        found["outputs"].append(errors(x, w))
        found["gradients of inputs"].append(errors(dy, w.T.contiguous()))
        found["gradients of weights"].append(errors(dy.T.contiguous(), x.T.contiguous()))
    print("| products | float32 | TF32 | `turbo` | `fast` |\n|---|---|---|---|---|")
    for name, rows in found.items():
        for what, pick in (("median", statistics.median), ("largest", max)):
            print(f"| {name}, {what} | {' | '.join(f'{pick(r[way] for r in rows):.1e}' for way in rows[0])} |")


main()
