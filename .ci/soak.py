#!/usr/bin/env python3
"""Determinism at length, by hand before a release, on a machine with many cores and perhaps a GPU.

  .ci/soak.py PROGRAM [--repeats 1000] [--processes 20] [--device cuda]

Every op, value and gradients, REPEATS times with each number of threads, then again in PROCESSES processes at once for each (a
quarter of the repeats), which load the machine many times over; then every model trained PROCESSES times, with other numbers
of threads, eager and compiled. All must have one fingerprint each. With --device cuda the same on the GPU, whose processes share it.
"""
import argparse, itertools, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor

THREADS = [1, 2, 3, 5, 8, 16]
MODELS = ["mlp", "cnn", "resnet", "vit", "gpt", "mamba", "fno1d", "fno2d", "autoencoder"]


def fingerprint(command):
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [l for l in done.stdout.splitlines() if l.startswith("fingerprint ")]
    if done.returncode or not lines:
        print("FAILED", " ".join(command), done.stdout[-500:], done.stderr[-500:], flush=True)
        return f"failure of {' '.join(command)}"
    return " ".join(sorted(set(lines[-1].split()[1:])))


def one(name, commands, at_once):
    start = time.time()
    with ThreadPoolExecutor(at_once) as pool:
        prints = list(pool.map(fingerprint, commands))
    distinct = sorted(set(prints))
    print(f"{name}: {len(prints)} processes, {len(distinct)} distinct: {' '.join(distinct[:3])} ({time.time() - start:.0f} s)", flush=True)
    return len(distinct) == 1


def main():
    args = argparse.ArgumentParser()
    args.add_argument("program")
    args.add_argument("--repeats", type=int, default=1000)
    args.add_argument("--processes", type=int, default=20)
    args.add_argument("--device", default="cpu")
    args.add_argument("--models", nargs="*")
    args.add_argument("--steps", type=int, default=20)
    a = args.parse_args()
    check = lambda repeats, threads: [a.program, "check", "--repeats", str(repeats), "--threads", str(threads), "--device", a.device]
    threads = THREADS if a.device == "cpu" else THREADS[:1]
    good = one(f"every op {a.repeats} times, threads {threads}", [check(a.repeats, t) for t in threads], len(threads))
    some = max(a.repeats // 4, 1)
    commands = [check(some, t) for _ in range(a.processes) for t in threads]
    good &= one(f"every op {some} times, {a.processes} processes for each", commands, a.processes)
    for model in a.models if a.models is not None else MODELS:
        ways = itertools.cycle(itertools.product(THREADS, ["compiled", "eager"]))
        commands = [[a.program, "train", model, "--steps", str(a.steps), "--device", a.device, "--threads", str(t), "--out", "none", "--mode", way]
                    for _, (t, way) in zip(range(a.processes), ways)]
        good &= one(f"{model}, {a.steps} steps", commands, a.processes)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
