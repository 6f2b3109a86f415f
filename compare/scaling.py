#!/usr/bin/env python3
"""The cost model of docs/scaling.md: a training step shared by N ranks, from measured and assumed parts.

usage: python3 compare/scaling.py                          # prints the tables of docs/scaling.md
       python3 compare/scaling.py --doc docs/scaling.md    # and fails if a line of them is not in the document
       python3 compare/scaling.py --check measured.json    # prediction beside steps that were measured

measured.json, where all but "model", "shards" and "runs" may be left out:
  {"model": "gpt2", "shards": 8, "devices": 1, "report_words": 1, "clip": false, "trainer": false,
   "parts": {"shard_ms": 148.0}, "link": {"near_gb_s": 8.0, "near_us": 60, "message_us": 15},
   "runs": [{"ranks": 2, "ms": 1260.0, "sent": 498016276, "exchanges": 7}]}
"model" is gpt2, 7b or a list of parameter sizes in the order of `Params`. "devices" are those that the ranks share, one
each unless given. "report_words" are loss and metrics of a shard. A `Trainer` asks all ranks for a stop each step.
"parts" and "link" replace entries of MEASURED and LINK; without "per_node" all ranks are near. "sent" and "exchanges" are
of `World::traffic` on rank 0, for one step without clipping and `Trainer`.
"""
import argparse, json, math
from collections import namedtuple

MEASURED = {
    "shard_ms": (148.0, "GPT-2 small, 8 sequences of 1024 tokens, strict float32, AdamW, one H200: ms"),
    "tf32_ms": (52.9, "the same in mode tf32: ms"),
    "peak_mib": (6702, "memory of that step: MiB"),
    "memory_tb_s": (3.9, "softmax on the H200, reads and writes: TB/s"),
    "launch_us": (5.2, "an eager addition of a few numbers: µs"),
}
LINK = {
    "per_node": (8, "GPUs of a node, each with a NIC [1]"),
    "near_gb_s": (335.0, "all-to-all in a node, of 450 each way, on four H100 [2]: GB/s for a GPU"),
    "far_gb_s": (46.0, "NDR InfiniBand, of 50 each way [3]: GB/s for a GPU"),
    "near_us": (10.5, "all-gather of 128 B among eight H20 [4]: µs"),
    "far_us": (34.0, "send and receive of 256 B between two machines with A40, network not stated [5]: µs"),
    "message_us": (3.0, "to post a message, protocol Simple, Intel host [6]: µs"),
}
values = lambda named: {name: value for name, (value, _) in named.items()}
# A guess: messages through host memory and TCP.
HOST = {**values(LINK), "near_gb_s": 5.0, "far_gb_s": 5.0, "near_us": 50.0, "far_us": 50.0, "message_us": 10.0}
BACKWARD = 2 / 3  # share of a step: two products for each one of the forward pass
ROW, BUCKETS, LEAST_ROWS = 1024, 8, 1024  # crates/engine/src/sharded/layout.rs
GPU_GB = 149  # what programs get of an H200, 139 GiB

# Parameter sizes in the order of `Params`, words of the head, whether it is the first parameter, tokens of a shard.
Model = namedtuple("Model", "sizes head tied tokens width layers length vocab", defaults=[0, False] + [0] * 5)
W, L = 768, 4096
GPT2_BLOCK = [W] * 4 + [3 * W * W, 3 * W, W * W, W, 4 * W * W, 4 * W, 4 * W * W, W]
GPT2 = Model([50304 * W, 1024 * W] + GPT2_BLOCK * 12 + [W] * 2, 50304 * W, True, 8192, W, 12, 1024, 50304)
BIG_BLOCK = [L] * 2 + [L * L] * 4 + [L * 11008] * 3
BIG = Model([32000 * L] + BIG_BLOCK * 32 + [L, 32000 * L], 32000 * L, False, 2048, L, 32, 2048, 32000)
NAMES = {"gpt2": GPT2, "7b": BIG}


def subtrees(start, end, a, b):
    """How many largest subtrees of the tree over shards start..end lie in a..b, as in tree.rs."""
    if b <= start or end <= a:
        return 0
    if a <= start and end <= b:
        return 1
    middle = start + (1 << ((end - start - 1).bit_length() - 1))
    return subtrees(start, middle, a, b) + subtrees(middle, end, a, b)


def sums_of(rank, ranks, shards):
    return subtrees(0, shards, rank * shards // ranks, (rank + 1) * shards // ranks)


def layout(sizes, ranks):
    """For each bucket its rows and its first parameter, as in layout.rs."""
    rows = [-(-n // ROW) for n in sizes]
    most = math.inf if ranks == 1 else max(-(-sum(rows) // BUCKETS), LEAST_ROWS)
    buckets = [(0, 0)]
    for i in reversed(range(len(sizes))):
        if buckets[-1][0] >= most:
            buckets.append((0, 0))
        buckets[-1] = (buckets[-1][0] + rows[i], i)
    return buckets


def ready(model, first):
    """The share of the backward pass after which the gradients of parameters from `first` on are there. The time of a
    gradient goes by its size. A tied head's product comes first, but its gradient is complete only at the end."""
    head = model.head if model.tied else 0
    return 1.0 if first == 0 else (sum(model.sizes[first:]) + head) / (sum(model.sizes[1:]) + head)


def exchange(link, ranks, size, node_first=False):
    """Milliseconds in which every rank sends the N-1 other parts of `size` bytes, or its own part N-1 times."""
    def one(near, far, part):
        moved = max(near * part / link["near_gb_s"], far * part / link["far_gb_s"]) / 1e6
        return link["far_us" if far else "near_us"] / 1e3 + max(moved, (near + far) * link["message_us"] / 1e3)

    g = min(ranks, link["per_node"])
    if node_first and ranks > g:
        return one(g - 1, 0, size / g) + one(0, ranks // g - 1, size / ranks)
    return one(g - 1, ranks - g, size / ranks)


def step(model, ranks, k, parts, link, sums=1, node_first=False, slower=1.0, small=1, report=1):
    """Parts of a step in ms, with `k` shards a rank that send `sums` sums, and `small` exchanges of a few words. Devices
    are `slower` where ranks share them."""
    words, ms_a_byte = sum(model.sizes), 1 / (parts["memory_tb_s"] * 1e9)
    update = 28 * words * ms_a_byte  # reads 4 words for each parameter and writes 3
    shard = (parts["shard_ms"] - update + 8 * words * ms_a_byte) * slower  # gradients are packed
    t = dict(compute=k * shard + (k - 1) * 16 * words * ms_a_byte * slower + update / ranks * slower)
    t.update(sums=0.0, exposed=0.0, gather=0.0, launches=0.0, small=0.0)
    if ranks > 1:
        buckets, end, backward = layout(model.sizes, ranks), 0.0, BACKWARD * shard
        for rows, first in buckets:
            took = exchange(link, ranks, 4 * ROW * rows * sums, node_first)
            t["sums"] += took
            end = max(end, ready(model, first) * backward) + took
        t["exposed"] = end - backward
        t["gather"] = exchange(link, ranks, 4 * ROW * sum(rows for rows, _ in buckets), node_first)
        g = min(ranks, link["per_node"])
        peers = g - 1 + ranks // g - 1 if node_first else ranks - 1
        # A kernel adds 16 sums. Each part of a parameter that a rank owns is copied once.
        adds = -(-sums * peers // 15) * len(buckets)
        queued = (adds + ranks * len(buckets) + len(model.sizes)) * parts["launch_us"] / 1e3
        t["launches"] = max(queued, 16 * words * ms_a_byte) * slower
        t["small"] = small * exchange(link, ranks, 4 * ranks * k * report, node_first)
    t["all"] = sum(t[part] for part in ("compute", "exposed", "gather", "launches", "small"))
    return t


def memory(model, ranks, k):
    """GB on a GPU: parameters, gradients, packed gradients, partial sums, receive buffers, optimizer state, activations."""
    p, logits = 4 * sum(model.sizes), lambda m: 4 * m.tokens * m.vocab
    # Bytes for a token, channel and layer, by what the measured step has beside 4 words a parameter and its logits.
    kept = (MEASURED["peak_mib"][0] * 2**20 - 16 * sum(GPT2.sizes) - logits(GPT2)) / (GPT2.tokens * GPT2.width * GPT2.layers)
    activations = kept * model.tokens * model.width * model.layers + logits(model)
    return [x / 1e9 for x in (p, p, p, p * math.ceil(math.log2(k)), p * (ranks - 1) / ranks, 2 * p / ranks, activations)]


def flops(m):
    return m.tokens * (6 * (sum(m.sizes) - (0 if m.tied else m.head)) + 6 * m.layers * m.width * m.length)


def collectives(ranks, size, link):
    """ms to bring `size` bytes of sums to all ranks: ours, ours node first, NCCL's ring and tree by its own model [6]."""
    g = min(ranks, link["per_node"])
    nodes, rate = ranks // g, min(link["near_gb_s"], g * link["far_gb_s"]) * 1e6
    between = 2 * (nodes - 1)
    ring = 2 * (ranks - 1) / ranks * size / rate + (8.4 + (2 * (ranks - 1) - between) * 3.4 + between * 14) / 1e3
    tree = 2 * size / rate + (8.4 + 2 * ((g - 1) * 4.0 + int(math.log2(nodes)) * 14)) / 1e3
    return [2 * exchange(link, ranks, size), 2 * exchange(link, ranks, size, True), ring, tree]


def table(head, rows):
    return ["| " + " | ".join(map(str, row)) + " |" for row in [head, ["---"] * len(head)] + rows] + [""]


def tables():
    short = lambda x: f"{x:.0f}" if x >= 100 or x == 0 else f"{x:.1f}" if x >= 1 else f"{x:.2f}"
    parts, link, both = values(MEASURED), values(LINK), [("GPT-2 small", GPT2), ("7B", BIG)]
    rate = flops(GPT2) / parts["shard_ms"]
    big_ms = flops(BIG) / rate
    for name, model in both:
        sizes = ", ".join(f"{rows * ROW * 4 / 1e6:.0f}" for rows, _ in layout(model.sizes, 2))
        print(f"{name}: {sum(model.sizes):,} parameters, buckets of {sizes} MB")
    print(f"7B shard: {big_ms:.0f} ms at {rate / 1e9:.1f} TFLOP/s\n")
    cases = [("GPT-2 small", GPT2, parts["shard_ms"], link), ("GPT-2 small, tf32", GPT2, parts["tf32_ms"], link),
             ("7B", BIG, big_ms, link), ("GPT-2 small, host", GPT2, parts["shard_ms"], HOST)]
    rows = []
    for name, model, ms, link_of in cases:
        for n in (8, 64, 1024):
            run = lambda n, k, node_first=False: step(model, n, k, {**parts, "shard_ms": ms}, link_of, node_first=node_first)
            t, cells = run(n, 1), []
            for k, node_first in ((1, False), (8, False), (1, True)):
                share = f"{run(1, k)['all'] / run(n, k, node_first)['all']:.0%}"
                has_room, is_meant = sum(memory(model, n, k)) < GPU_GB, not (node_first and link_of is HOST)
                cells.append((share if has_room else "no room") if is_meant else "")
            hidden = f"{1 - t['exposed'] / t['sums']:.0%}"
            ours = [short(t[p]) for p in ("exposed", "gather", "launches", "small")]
            rows.append([name, n] + [short(t[p]) for p in ("all", "compute", "sums")] + [hidden] + ours + cells)
    lines = table(["model", "ranks", "step", "compute", "sums", "hidden", "exposed", "gather", "launches", "small",
                   "efficiency", "8 shards a rank", "node first"], rows)
    rows = [[name, n, k] + [short(x) for x in memory(model, n, k) + [sum(memory(model, n, k))]]
            for name, model in both for n, k in ((8, 1), (64, 1), (8, 2), (8, 8))]
    lines += table(["model", "ranks", "shards a rank", "parameters", "gradients", "packed", "partial sums", "receive",
                    "optimizer", "activations", "all"], rows)
    rows = [[name, n] + [short(x) for x in collectives(n, 4 * sum(model.sizes), link)]
            for name, model in both for n in (8, 64, 1024)]
    lines += table(["model", "ranks", "ours", "ours, node first", "NCCL ring", "NCCL tree"], rows)
    uneven = ((64, 8), (96, 12), (48, 6), (64, 6), (100, 8), (1024, 1000))
    rows = [[shards, n, max(sums_of(r, n, shards) for r in range(n))] for shards, n in uneven]
    lines += table(["shards", "ranks", "sums a rank sends, at most"], rows)
    for head, named in (("measured here", MEASURED), ("assumed", LINK)):
        lines += table([head, "value"], [[what, value] for value, what in named.values()])
    return lines


def check(path):
    with open(path) as file:
        given = json.load(file)
    missing = [key for key in ("model", "shards", "runs") if key not in given]
    if given.get("model") != "gpt2" and "shard_ms" not in given.get("parts", {}):
        missing.append("parts.shard_ms")  # that of GPT-2 is no use
    if missing:
        raise SystemExit(f"{path} lacks {', '.join(missing)}; see --help")
    model = NAMES[given["model"]] if isinstance(given["model"], str) else Model(given["model"])
    parts = {**values(MEASURED), **given.get("parts", {})}
    link = {**values(LINK), "per_node": 1 << 20, **given.get("link", {})}
    shards, report = given["shards"], given.get("report_words", 1)
    small = 2 * given.get("clip", False) + given.get("trainer", False)
    lines = []
    for run in given["runs"]:
        n = run["ranks"]
        k, sums = -(-shards // n), max(sums_of(r, n, shards) for r in range(n))
        slower = max(1.0, shards / given.get("devices", n) / k)
        ms = step(model, n, k, parts, link, sums, False, slower, small, report)["all"]
        # Rank 0 sends sums of the parts of others, its own part of the parameters, and reports.
        buckets = [rows for rows, _ in layout(model.sizes, n)] if n > 1 else []
        sent = sum(4 * ROW * ((b - b // n) * sums_of(0, n, shards) + (n - 1) * (b // n)) for b in buckets)
        sent += 4 * (n - 1) * (shards // n) * report
        exchanges = len(buckets) + 1 + small if n > 1 else 0
        lines.append([n, f"{ms:.1f}", run["ms"], f"{run['ms'] / ms:.3f}", sent, run.get("sent", ""), exchanges,
                      run.get("exchanges", "")])
    head = ["ranks", "model ms", "measured ms", "ratio", "model bytes", "sent", "model exchanges", "made"]
    print("\n".join(table(head, lines)))


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--check", metavar="JSON")
parser.add_argument("--doc", metavar="FILE")
args = parser.parse_args()
if args.check:
    check(args.check)
else:
    lines = tables()
    print("\n".join(lines))
    if args.doc:
        with open(args.doc) as file:
            there = set(file.read().splitlines())
        missing = [line for line in lines if line not in there]
        if missing:
            raise SystemExit("not in the document:\n" + "\n".join(missing))
