#!/usr/bin/env python3
"""The CPU beside PyTorch: matrix products and the MLP training step, as ratios.

usage: python3 compare/cpu.py [threads]    (needs torch; builds and runs the program of this checkout)

Both run in turns on the same threads, with a pause in between so that neither's idle threads spin on the
other's cores; medians of each, and the ratio of rates (above 1: we are faster).
"""
import json, statistics, subprocess, sys, time
import torch
from timing import median_ms

threads = int(sys.argv[1]) if len(sys.argv) > 1 else 2
torch.set_num_threads(threads)
subprocess.run(["cargo", "build", "--release", "--quiet"], check=True)


def ours(workload):
    command = ["target/release/dittograd", "--device", "cpu", "--threads", str(threads), "--json", "bench", workload]
    line = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[0]
    found = json.loads(line)
    return found.get("median_ms", found.get("ms"))


def mlp():
    net = torch.nn.Sequential(
        torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)
    )
    x, y = torch.randn(128, 784), torch.randint(10, (128,))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()

    return step


def product(m, n, k):
    a, b, c = torch.rand(m, k), torch.rand(k, n), torch.empty(m, n)
    return lambda: torch.mm(a, b, out=c)


cases = [(f"matmul:{n},{n},{n}", product(n, n, n)) for n in (256, 512, 1024, 2048)]
cases += [("mlp_b128", mlp()), ("mlp_b128_eager", mlp())]
print(f"torch {torch.__version__}, {threads} threads")
for name, call in cases:
    pairs = []
    for _ in range(5):
        time.sleep(0.4)
        mine = ours(name)
        pairs.append((mine, median_ms(call)))
    mine, theirs = (statistics.median(p[i] for p in pairs) for i in (0, 1))
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"{name:24s} ours {mine:8.3f} ms   torch {theirs:8.3f} ms   rate ratio {ratio:.2f}", flush=True)
