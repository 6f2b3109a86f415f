#!/usr/bin/env python3
"""Whole training steps (forward, backward, AdamW) beside PyTorch, as ratios of times: below 1 we are faster.

usage: python3 compare/steps.py [--device cpu|cuda] [--threads N] [--program PATH | --package] [--steps N] [--tf32 | --table] [WORKLOAD ...]

PyTorch runs eagerly and compiled, on CUDA also as one captured graph and compiled with reduce-overhead; the ratio is to
the best of these. Both sides are timed by the host's clock: the median of steps with a wait after each, and the mean of
steps that are queued back to back. With `--tf32` both use tensor cores. With `--table` a table has the times of all modes: PyTorch's
float32 and TF32, our strict, fast and turbo. Peak memory is that of the GPU's allocator; of PyTorch on the CPU there is none.

With `--package` ours is the same PyTorch model in the Python package, by `dittograd.torch.TrainStep`; inputs are on the device, for both.
"""
import argparse, gc, json, platform, statistics, subprocess, time, warnings
import torch
from models import WORKLOADS, training_step

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--program", default="target/release/dittograd")
parser.add_argument("--package", action="store_true", help="ours by the Python package instead of the program")
parser.add_argument("--steps", type=int, help="steps of ours to take the median of; PyTorch takes as many as fit its time")
parser.add_argument("--seconds", type=float, default=3.0, help="time for the median of one of PyTorch's ways")
parser.add_argument("--tf32", action="store_true")
parser.add_argument("--table", action="store_true", help="PyTorch in float32 and TF32, and ours in each mode that has one answer")
parser.add_argument("--modes", help="some of PyTorch's ways, separated by commas")
parser.add_argument("names", nargs="*")
args = parser.parse_args()
warnings.filterwarnings("ignore")
torch.set_num_threads(args.threads)
torch.backends.cudnn.benchmark = True
GPU = args.device.startswith("cuda")
COMPILED = {"compile": "default", "reduce-overhead": "reduce-overhead"}
ON_GPU = ["mlp_b128", "cnn_b128", "fno1d_b32_g1024", "babygpt_b64_t256", "gpt2s_b8_t1024", "lstm_b32_t128", "gru_b32_t128"]
ON_GPU_BY_PACKAGE = ["resnet50_b32", "vitb16_b32", "gpt2s_b8_t1024", "llama125m_b8_t1024"]
ON_CPU_BY_PACKAGE = ["resnet50_b2_s64", "vit_b4_s64", "gpt_b8_t128", "llama_b2_t128"]
ON_CPU = ["mlp_b128", "cnn_b32", "fno1d_b8_g1024", "gpt_b8_t128", "lstm_b32_t128", "gru_b32_t128"]

def allow_tf32(allow):
    torch.backends.cuda.matmul.allow_tf32 = allow
    torch.backends.cudnn.allow_tf32 = allow


def wait():
    if GPU:
        torch.cuda.synchronize()


def captured(step):
    """The step as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def times_of(run, first):
    """Median and back-to-back milliseconds of a step that waits when it is asked to."""
    run(True)
    first = (time.perf_counter() - first) * 1e3
    for _ in range(5 if GPU else 2):
        run(True)
    times, start = [], time.perf_counter()
    while len(times) < 3 or (len(times) < 200 and time.perf_counter() - start < args.seconds):
        begin = time.perf_counter()
        run(True)
        times.append((time.perf_counter() - begin) * 1e3)
    median = statistics.median(times)
    queued = max(3, min(50, int(args.seconds * 1e3 / median)))
    start = time.perf_counter()
    for i in range(queued):
        run(i == queued - 1)
    return {"ms": median, "back_to_back_ms": (time.perf_counter() - start) * 1e3 / queued, "first_step_ms": first}


def torchs(workload, mode):
    """Median, back-to-back and first-step milliseconds and peak bytes of one of PyTorch's ways."""
    torch._dynamo.reset()
    gc.collect()
    if GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    net, x, y, loss = WORKLOADS[workload](args.device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True, capturable=mode == "graph")
    forward = torch.compile(net, mode=COMPILED[mode]) if mode in COMPILED else net

    step = training_step(forward, x, y, loss, optimizer)

    start = time.perf_counter()
    way = captured(step) if mode == "graph" else step

    def run(waits):
        way()
        if waits:
            wait()

    found = times_of(run, start)
    peak = torch.cuda.max_memory_allocated() if GPU else None
    return {**found, "peak_bytes": peak}


def by_package(workload, numerics):
    """The same PyTorch model, trained by the Python package."""
    import dittograd as dg
    import dittograd.torch

    torch.manual_seed(0)
    net, x, y, loss = WORKLOADS[workload]("cpu")
    device = dg.Device(args.device, threads=None if GPU else args.threads, numerics=numerics)
    start = time.perf_counter()
    step = dittograd.torch.TrainStep(net, loss, torch.optim.AdamW(net.parameters(), lr=1e-4), device=device)
    step(x, y)
    fingerprint = step.fingerprint()

    def run(waits):
        step.again()
        if waits:
            device.synchronize()

    found = times_of(run, start)
    return {**found, "peak_bytes": device.memory()["peak"], "fingerprint": fingerprint}


def ours(workload, numerics):
    if args.package:
        return by_package(workload.removesuffix("_eager"), numerics)
    command = [args.program, "--device", args.device, "--threads", str(args.threads), "--json", "bench", workload]
    command += ["--steps", str(args.steps)] if args.steps else []
    command += ["--numerics", numerics]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "failed")
    return json.loads(done.stdout.splitlines()[0])


def mib(found):
    return "-" if found["peak_bytes"] is None else f"{found['peak_bytes'] / 2**20:.0f}"


def line(who, found):
    extra = f", {found['launches']} launches" if found.get("launches") else ""
    extra += f", fingerprint {found['fingerprint']}" if "fingerprint" in found else ""
    print(
        f"  {who:22} {found['ms']:10.4f} ms   back to back {found['back_to_back_ms']:10.4f} ms   "
        f"first step {found['first_step_ms'] / 1e3:7.2f} s   peak {mib(found):>7} MiB{extra}",
        flush=True,
    )


def attempt(who, call):
    """What a way of running took; one that fails is said and left out."""
    try:
        found = call()
    except Exception as error:
        print(f"  {who:22} failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}", flush=True)
        return None
    line(who, found)
    return found


def table(names, modes):
    """One line for each workload, milliseconds of each mode; of PyTorch those of its best way."""
    rows = []
    for name in names:
        print(name)
        row = []
        for tf32 in (False, True) if GPU else (False,):
            allow_tf32(tf32)
            found = [attempt(f"torch {mode} {'TF32' if tf32 else 'float32'}", lambda: torchs(name, mode)) for mode in modes]
            row.append(min((f["ms"] for f in found if f), default=None))
        found = [attempt(f"dittograd {numerics}", lambda: ours(name, numerics)) for numerics in ("strict", "fast", "turbo")]
        rows.append((name, row + [f["ms"] if f else None for f in found]))
    theirs = ["PyTorch float32", "PyTorch TF32"] if GPU else ["PyTorch float32"]
    print(f"\n| training step, ms | {' | '.join(theirs + ['`strict`', '`fast`', '`turbo`'])} |\n|{'---|' * (len(theirs) + 4)}")
    for name, row in rows:
        print(f"| {name} | {' | '.join('-' if ms is None else f'{ms:.3g}' for ms in row)} |")


def version_of_ours():
    if args.package:
        import dittograd

        return f"dittograd {dittograd.__version__}"
    return subprocess.run([args.program, "--version"], capture_output=True, text=True).stdout.strip()


def main():
    where = torch.cuda.get_device_name() if GPU else f"{platform.machine()}, {args.threads} threads"
    version = version_of_ours()
    numerics, precision = ("tf32", "TF32") if args.tf32 else ("strict", "float32")
    if args.table:
        numerics, precision = "all modes", "float32 and TF32"
    print(f"{version} ({numerics}) and torch {torch.__version__} ({precision}), {args.device}: {where}")
    modes = ["eager", "graph", "compile", "reduce-overhead"] if GPU else ["eager", "compile"]
    if args.modes:
        modes = args.modes.split(",")
    usual = (ON_GPU_BY_PACKAGE if GPU else ON_CPU_BY_PACKAGE) if args.package else (ON_GPU if GPU else ON_CPU)
    names = args.names or usual
    if args.table:
        return table(names, modes)
    allow_tf32(args.tf32)
    rows = []
    for name in names:
        print(name)
        ways = (("", "compiled"),) if args.package else (("", "compiled"), ("_eager", "eager"))
        mine = {suffix: attempt(f"dittograd {way}", lambda: ours(name + suffix, numerics)) for suffix, way in ways}
        theirs = {}
        for mode in modes:
            # Idle threads of one must not spin on the other's cores.
            time.sleep(0 if GPU else 0.4)
            theirs[mode] = attempt(f"torch {mode}", lambda: torchs(name, mode))
        theirs = {mode: found for mode, found in theirs.items() if found}
        if mine[""] and theirs:
            rows.append((name, mine[""], theirs))
        if mine[""] and mine.get("_eager") and mine[""]["fingerprint"] != mine["_eager"]["fingerprint"]:
            print("  eager and compiled have different fingerprints")
    print(f"\n{'workload':18} {'ours ms':>10} {'torch ms':>10} {'best way':>16} {'ratio':>7} {'queued':>7} {'MiB':>7} {'torch eager':>11}")
    for name, mine, theirs in rows:
        best = min(theirs, key=lambda mode: theirs[mode]["ms"])
        queued = mine["back_to_back_ms"] / min(t["back_to_back_ms"] for t in theirs.values())
        ratio, eager = mine["ms"] / theirs[best]["ms"], theirs.get("eager")
        print(
            f"{name:18} {mine['ms']:10.4f} {theirs[best]['ms']:10.4f} {best:>16} {ratio:7.3f} {queued:7.3f} "
            f"{mib(mine):>7} {mib(eager) if eager else '-':>11}"
        )
    print("ratio: medians, a wait after each step; queued: steps back to back, each side's best; below 1 we are faster")


main()
