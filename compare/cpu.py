#!/usr/bin/env python3
"""The CPU beside PyTorch's: matrix products and whole training steps (forward, backward, AdamW), as ratios.

usage: python3 compare/cpu.py [--threads N] [--program PATH] [--rounds N] [NAME ...]

A machine's speed changes from one second to the next, so both take turns of a tenth of a second or some fifteen calls:
our program is stopped while PyTorch runs, and goes on while it rests. Medians over all turns; of a product the ratio of
rates (above 1 we are faster), of a step the ratio of times (below 1). A name is `512,512,512`, with `,ta` or `,tb` for
operands that are stored transposed, or a workload of `dittograd bench`. PyTorch runs eagerly; `steps.py` has its compiler.
"""
import argparse, json, signal, statistics, subprocess, time
import torch
from models import WORKLOADS, training_step

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--program", default="target/release/dittograd")
parser.add_argument("--rounds", type=int, default=1)
parser.add_argument("names", nargs="*")
args = parser.parse_args()
torch.set_num_threads(args.threads)


def start(workload, steps):
    command = [args.program, "--device", "cpu", "--threads", str(args.threads), "--json", "bench", "--steps", str(steps)]
    return subprocess.Popen(command + [workload], stdout=subprocess.PIPE, text=True)


def milliseconds(process):
    return json.loads(process.communicate()[0].splitlines()[0])["ms"]


def in_turns(workload, call):
    """Median milliseconds of ours and of PyTorch's."""
    first = milliseconds(start(workload, 5))
    turn = max(0.1, 15e-3 * first)
    process = start(workload, max(10, int(max(2.0, 3 * turn) * 1e3 / first)))
    process.send_signal(signal.SIGSTOP)
    for _ in range(3):
        call()
    times = []
    while process.poll() is None:
        process.send_signal(signal.SIGCONT)
        time.sleep(turn)
        if process.poll() is None:
            process.send_signal(signal.SIGSTOP)
        end = time.perf_counter() + turn
        call()
        while time.perf_counter() < end:
            begin = time.perf_counter()
            call()
            times.append((time.perf_counter() - begin) * 1e3)
        # Its idle threads must not spin on our cores.
        time.sleep(0.01)
    return milliseconds(process), statistics.median(times)


def product(name):
    m, n, k = map(int, name.split(",")[:3])
    a = torch.rand(k, m).t() if ",ta" in name else torch.rand(m, k)
    b = torch.rand(n, k).t() if ",tb" in name else torch.rand(k, n)
    out = torch.empty(m, n)
    return lambda: torch.mm(a, b, out=out)


def eager_step(name):
    net, x, y, loss = WORKLOADS[name]("cpu")
    return training_step(net, x, y, loss, torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True))


names = args.names or [f"{n},{n},{n}" for n in (256, 512, 1024, 2048)]
names += [] if args.names else ["mlp_b128", "cnn_b32", "fno1d_b8_g1024", "gpt_b8_t128"]
print(f"torch {torch.__version__}, {args.threads} threads")
for name in names:
    is_step = name in WORKLOADS
    for _ in range(args.rounds):
        mine, theirs = in_turns(*((name, eager_step(name)) if is_step else ("matmul:" + name, product(name))))
        what, ratio = ("time", mine / theirs) if is_step else ("rate", theirs / mine)
        print(f"{name:20} ours {mine:9.4f} ms   torch {theirs:9.4f} ms   ratio of {what}s {ratio:.3f}", flush=True)
