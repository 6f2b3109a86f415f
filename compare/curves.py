#!/usr/bin/env python3
"""Loss curves of a small GPT in modes strict, fast and turbo, and in PyTorch with TF32, on one GPU; and a picture of them.

usage: python3 compare/curves.py [--program PATH] [--steps N] [--seeds N] [--text FILE] [--numbers FILE] [--picture FILE]
       python3 compare/curves.py --numbers FILE --picture FILE --draw

The model has 6 layers of width 384 with 6 heads, and learns the bytes of a text, by default that of this repository's documents and
sources, in batches of 64 windows of 256. In `strict` it is trained with several seeds, which shows how far runs differ anyway; the other
modes start from the first seed. PyTorch draws other initial values and other windows. `--numbers` keeps all losses as JSON, and
`--draw` draws a picture of such a file again.
"""
import argparse, json, pathlib, subprocess, tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
parser = argparse.ArgumentParser()
parser.add_argument("--program", default="target/release/dittograd")
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--seeds", type=int, default=4, help="runs in strict")
parser.add_argument("--text")
parser.add_argument("--numbers")
parser.add_argument("--picture")
parser.add_argument("--draw", action="store_true", help="do not train")
args = parser.parse_args()

BATCH, CONTEXT, RATE, DECAY, FIRST_SEED = 64, 256, 1e-3, 0.01, 7
MODEL = {"width": 384, "heads": 6, "layers": 6}
SMOOTH = 10


def text():
    if args.text:
        return pathlib.Path(args.text).read_bytes()
    files = sorted(f for kind in ("*.md", "*.rs") for f in ROOT.rglob(kind) if "target" not in f.parts)
    return b"\n".join(f.read_bytes() for f in files)


def ours(folder, mode, seed):
    out = pathlib.Path(folder) / f"{mode}-{seed}"
    command = [args.program, "train", "gpt", "--data", f"{folder}/text.txt", "--grid", CONTEXT, "--batch", BATCH, "--steps", args.steps]
    command += ["--config", json.dumps(MODEL), "--lr", RATE, "--schedule", "constant", "--weight-decay", DECAY, "--seed", seed]
    command += ["--eval-every", args.steps, "--numerics", mode, "--device", "cuda", "--json", "--out", out]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def torchs(data):
    import torch
    from models import Gpt

    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(FIRST_SEED)
    tokens = torch.frombuffer(bytearray(data), dtype=torch.uint8).cuda().long()
    net = Gpt(vocab=256, context=CONTEXT, **MODEL).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=DECAY)
    steps, losses = torch.arange(CONTEXT + 1, device="cuda"), []
    for _ in range(args.steps):
        rows = tokens[torch.randint(len(tokens) - CONTEXT - 1, (BATCH, 1), device="cuda") + steps]
        loss = torch.nn.functional.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return dict(enumerate(torch.stack(losses).tolist(), 1))


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def smooth(losses):
    """Means over the last SMOOTH of the steps whose loss was read, from the first step on that has as many."""
    steps = list(losses)
    return {steps[i]: mean(losses[s] for s in steps[i + 1 - SMOOTH : i + 1]) for i in range(SMOOTH - 1, len(steps))}


def picture(curves):
    """An SVG of the smoothed curves, the loss on a logarithmic axis."""
    import math

    width, height, left, top = 720, 420, 60, 20
    smoothed = {name: smooth(losses) for name, losses in curves.items()}
    steps = max(max(c) for c in smoothed.values())
    low = min(min(c.values()) for c in smoothed.values()) * 0.95
    high = max(max(c.values()) for c in smoothed.values())
    x = lambda step: left + (width - left - 150) * step / steps
    y = lambda loss: top + (height - top - 50) * (math.log(high) - math.log(loss)) / (math.log(high) - math.log(low))
    colors = {"strict": "#9aa5b1", "fast": "#1f77b4", "turbo": "#d62728", "PyTorch": "#2ca02c"}
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">']
    out.append(f'<rect width="{width}" height="{height}" fill="white"/>')
    for tick in (0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0):
        if low < tick < high:
            out.append(f'<path d="M{left} {y(tick):.1f}H{width - 150}" stroke="#e4e7eb"/><text x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick}</text>')
    for tick in range(0, steps + 1, max(1, steps // 5)):
        out.append(f'<text x="{x(tick):.1f}" y="{height - 30}" text-anchor="middle">{tick}</text>')
    out.append(f'<text x="{(left + width - 150) / 2}" y="{height - 10}" text-anchor="middle">training step</text>')
    out.append(f'<text x="14" y="{height / 2}" transform="rotate(-90 14 {height / 2})" text-anchor="middle">training loss in nats, smoothed</text>')
    named = []
    for name, losses in smoothed.items():
        kind = name.split()[0]
        points = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in losses.items())
        out.append(f'<polyline points="{points}" fill="none" stroke="{colors[kind]}" stroke-width="{1 if kind == "strict" else 1.5}"/>')
        label = {"strict": f"strict, {sum(n.startswith('strict') for n in smoothed)} seeds"}.get(kind, name)
        if label not in named:
            named.append(label)
            at = top + 18 * len(named)
            out.append(f'<path d="M{width - 140} {at}h20" stroke="{colors[kind]}" stroke-width="2"/><text x="{width - 114}" y="{at + 4}">{label}</text>')
    return "\n".join(out + ["</svg>", ""])


def main():
    if args.draw:
        curves = json.loads(pathlib.Path(args.numbers).read_text())
        curves = {name: {int(step): loss for step, loss in losses.items()} for name, losses in curves.items()}
    else:
        curves = {}
        with tempfile.TemporaryDirectory() as folder:
            data = text()
            (pathlib.Path(folder) / "text.txt").write_bytes(data)
            for seed in range(FIRST_SEED, FIRST_SEED + args.seeds):
                curves[f"strict {seed}"] = ours(folder, "strict", seed)
            for mode in ("fast", "turbo"):
                curves[mode] = ours(folder, mode, FIRST_SEED)
            losses = torchs(data)
            curves["PyTorch TF32"] = {step: losses[step] for step in curves["turbo"]}
        if args.numbers:
            pathlib.Path(args.numbers).write_text(json.dumps(curves))
    first = smooth(curves[f"strict {FIRST_SEED}"])
    for name, losses in curves.items():
        smoothed = smooth(losses)
        apart = [abs(smoothed[step] - loss) for step, loss in first.items()]
        last = list(smoothed.values())[-1]
        print(f"{name:14} loss at the end {last:.4f}, apart from strict {FIRST_SEED}: mean {mean(apart):.4f}, at most {max(apart):.4f}")
    if args.picture:
        pathlib.Path(args.picture).write_text(picture(curves))


if __name__ == "__main__":
    main()
