#!/usr/bin/env python3
"""Training steps on the CPU beside candle and burn, as ratios of times: below 1 we are faster.

usage: python3 compare/peers.py [threads]    (builds both programs: the peers' with all instructions of this machine)

burn runs on burn-flex, the fastest of its CPU backends, with AVX-512 in its products where there is AVX-512. All run in turns on the
same threads; medians of each, and of the ratios of each turn.
"""
import json, os, statistics, subprocess, sys, time

threads = sys.argv[1] if len(sys.argv) > 1 else "2"
environment = {**os.environ, "RAYON_NUM_THREADS": threads}
native = {**os.environ, "RUSTFLAGS": "-C target-cpu=native"}
build = ["cargo", "build", "--release", "--quiet"]
subprocess.run(build, check=True)
subprocess.run(build + ["--manifest-path", "compare/peers/Cargo.toml"], check=True, env=native)
OURS = ["target/release/dittograd", "--device", "cpu", "--threads", threads, "--json", "bench"]
PEERS = ["compare/peers/target/release/peers"]


def milliseconds(command):
    time.sleep(0.3)
    line = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.splitlines()[0]
    found = json.loads(line)
    return found.get("median_ms", found.get("ms"))


versions = [line.strip() for line in open("compare/peers/Cargo.toml") if line.startswith(("candle-core", "burn ="))]
print(f"{threads} threads; " + "; ".join(versions))
for workload in ["mlp_b128", "cnn_b32"]:
    turns = []
    for _ in range(5):
        turns.append([milliseconds(OURS + [workload])] + [milliseconds(PEERS + [p, workload]) for p in ("candle", "burn")])
    ours, candle, burn = (statistics.median(t[i] for t in turns) for i in range(3))
    over = [statistics.median(t[0] / t[i] for t in turns) for i in (1, 2)]
    print(
        f"{workload:10s} ours {ours:9.3f} ms   candle {candle:9.3f} ms, ratio {over[0]:.2f}   "
        f"burn {burn:9.3f} ms, ratio {over[1]:.2f}",
        flush=True,
    )
