#!/usr/bin/env python3
"""Golden values of optimizers and schedules, computed by PyTorch in float64.

    python3 tests/golden/optim.py            writes tests/golden/optim.jsonl
    python3 tests/golden/optim.py --check    recomputes and compares with the committed file

One JSON object a line: what was run, and the parameters `w` and `b` after 1, 2 and 20 steps on
`loss = sum(w * c(t)) + sum(w^2) / 2 + …`, or the learning rates of a schedule. Lion and Muon are written out here: PyTorch
has no Lion, and its Muon computes directions in bfloat16; it is compared with what is written here as closely as that
allows. Needs torch.
"""
import math
import pathlib
import sys

import torch
from cases import finish

FILE = pathlib.Path(__file__).with_name("optim.jsonl")
torch.set_default_dtype(torch.float64)
STEPS = 20
CASES = []


def start():
    w = torch.tensor([[0.5, -1.0, 0.75, 0.25], [1.5, 0.125, -0.5, 2.0], [-0.25, 0.625, -1.75, 1.0]])
    b = torch.tensor([0.5, -0.25, 1.0])
    return [w.clone().requires_grad_(), b.clone().requires_grad_()]


def gradients(params, t):
    """Sets the gradients of step `t`: c(t) + p, the same numbers as in the Rust test."""
    for k, p in enumerate(params):
        c = [((7 * i + 13 * t + 5 * k) % 11 - 5) / 4 for i in range(p.numel())]
        p.grad = torch.tensor(c).reshape(p.shape) + p.detach()


def case(name, make, clip=None):
    """Runs the optimizer `make(params)`; `clip(params)` changes gradients before each step."""
    params = start()
    optimizer = make(params)
    entry = {"name": name, "after": {}}
    for t in range(STEPS):
        gradients(params, t)
        if clip:
            clip(params)
        optimizer.step()
        if t + 1 in (1, 2, STEPS):
            entry["after"][str(t + 1)] = [p.detach().reshape(-1).tolist() for p in params]
    CASES.append(entry)


class Lion:
    """Chen et al., Symbolic discovery of optimization algorithms, algorithm 2."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
        self.params, self.lr, self.betas, self.wd = params, lr, betas, weight_decay
        self.m = [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step(self):
        b1, b2 = self.betas
        for p, m in zip(self.params, self.m):
            u = (b1 * m + (1 - b1) * p.grad).sign()
            p.sub_(self.lr * (u + self.wd * p))
            m.copy_(b2 * m + (1 - b2) * p.grad)


def newton_schulz(x, eps=1e-7):
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / x.norm().clamp(min=eps)
    for _ in range(5):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x.T if tall else x


class Muon:
    """torch.optim.Muon with directions in float64; parameters that are no matrices by AdamW."""

    def __init__(self, params, lr, weight_decay=0.1, momentum=0.95, nesterov=True):
        self.params = [p for p in params if p.ndim == 2]
        self.lr, self.wd, self.momentum, self.nesterov = lr, weight_decay, momentum, nesterov
        self.buffers = [torch.zeros_like(p) for p in self.params]
        self.rest = torch.optim.AdamW([p for p in params if p.ndim != 2], lr=lr, weight_decay=weight_decay)

    @torch.no_grad()
    def step(self):
        self.rest.step()
        for p, buf in zip(self.params, self.buffers):
            buf.lerp_(p.grad, 1 - self.momentum)
            u = p.grad.lerp(buf, self.momentum) if self.nesterov else buf
            lr = self.lr * math.sqrt(max(1, p.shape[0] / p.shape[1]))
            p.mul_(1 - self.lr * self.wd).sub_(lr * newton_schulz(u))


def muon_is_pytorchs():
    """What is written above against PyTorch's own, within what bfloat16 allows."""
    for shape in ((3, 4), (6, 2)):
        torch.manual_seed(1)
        ours = torch.randn(shape).requires_grad_()
        theirs = ours.detach().clone().requires_grad_()
        a = Muon([ours, torch.zeros(1, requires_grad=True)], lr=0.02)
        b = torch.optim.Muon([theirs], lr=0.02)
        for _ in range(STEPS):
            g = torch.randn(shape)
            ours.grad, theirs.grad = g.clone(), g.clone()
            a.rest.param_groups[0]["params"][0].grad = torch.zeros(1)
            a.step()
            b.step()
        assert (ours - theirs).abs().max() < 0.02, (ours, theirs)


def optimizers():
    o = torch.optim
    case("sgd", lambda p: o.SGD(p, lr=0.1))
    case("sgd decay", lambda p: o.SGD(p, lr=0.1, weight_decay=0.1))
    case("momentum", lambda p: o.SGD(p, lr=0.1, momentum=0.9))
    case("dampening", lambda p: o.SGD(p, lr=0.1, momentum=0.9, dampening=0.5, weight_decay=0.1))
    case("nesterov", lambda p: o.SGD(p, lr=0.1, momentum=0.9, nesterov=True))
    case("adam", lambda p: o.Adam(p, lr=0.05))
    case("adam decay", lambda p: o.Adam(p, lr=0.05, weight_decay=0.1))
    case("adamw", lambda p: o.AdamW(p, lr=0.05))
    case("adagrad", lambda p: o.Adagrad(p, lr=0.1))
    case("adagrad decay", lambda p: o.Adagrad(p, lr=0.1, lr_decay=0.05, weight_decay=0.1, initial_accumulator_value=0.5, eps=1e-6))
    case("rmsprop", lambda p: o.RMSprop(p, lr=0.01))
    case("rmsprop momentum", lambda p: o.RMSprop(p, lr=0.01, alpha=0.9, momentum=0.9, weight_decay=0.1))
    case("rmsprop centered", lambda p: o.RMSprop(p, lr=0.01, centered=True))
    case("rmsprop all", lambda p: o.RMSprop(p, lr=0.01, momentum=0.5, centered=True))
    case("adadelta", lambda p: o.Adadelta(p, lr=1.0))
    case("adadelta decay", lambda p: o.Adadelta(p, lr=0.5, rho=0.8, eps=1e-4, weight_decay=0.1))
    case("lion", lambda p: Lion(p, lr=0.01))
    case("lion decay", lambda p: Lion(p, lr=0.01, betas=(0.8, 0.95), weight_decay=0.1))
    case("muon", lambda p: Muon(p, lr=0.02))
    case("muon plain", lambda p: Muon(p, lr=0.02, nesterov=False))
    groups = lambda p: o.AdamW([{"params": [p[0]]}, {"params": [p[1]], "lr": 0.2, "weight_decay": 0.0}], lr=0.05)
    case("groups", groups)
    case("clip norm", lambda p: o.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.nn.utils.clip_grad_norm_(p, 1.5))
    case("clip value", lambda p: o.Adam(p, lr=0.05), lambda p: torch.nn.utils.clip_grad_value_(p, 0.75))


def rates(name, make, steps=30):
    """The learning rates of the steps by a scheduler from 0.1."""
    p = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=0.1)
    scheduler = make(optimizer)
    lrs = []
    for t in range(steps):
        lrs.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if t + 1 < steps:
            scheduler.step()
    CASES.append({"name": name, "lr": lrs})


def schedules():
    s = torch.optim.lr_scheduler
    rates("step", lambda o: s.StepLR(o, 7, gamma=0.5))
    rates("exponential", lambda o: s.ExponentialLR(o, 0.9))
    rates("cosine", lambda o: s.CosineAnnealingLR(o, 29, eta_min=0.01))
    rates("one cycle", lambda o: s.OneCycleLR(o, max_lr=0.1, total_steps=30))
    rates("one cycle late", lambda o: s.OneCycleLR(o, max_lr=0.1, total_steps=30, pct_start=0.5, div_factor=10.0, final_div_factor=100.0))
    rates("warm-up", lambda o: s.LinearLR(o, start_factor=0.25, total_iters=8))
    warm = lambda o: s.SequentialLR(o, [s.LinearLR(o, start_factor=0.1, total_iters=10), s.CosineAnnealingLR(o, 20)], [10])
    rates("warm-up cosine", warm)


if __name__ == "__main__":
    muon_is_pytorchs()
    optimizers()
    schedules()
    sys.exit(finish(FILE, CASES, 1e-11))
