#!/usr/bin/env python3
"""Weights carried over from PyTorch and back: outputs and the losses of ten steps, beside PyTorch's.

usage: python3 compare/weights.py [--program PATH] [--device cpu|cuda]

For a GPT and a CNN, weights that PyTorch drew are saved as safetensors and loaded by `train --weights`; the outputs of
`predict` and the losses of ten steps of AdamW are then compared with PyTorch's own, as are the outputs of PyTorch with the
weights of our checkpoint after these steps. Exits with 1 if outputs differ by more than 1e-5, or losses by more than 1e-4,
of PyTorch's largest.
"""
import argparse, json, pathlib, subprocess, sys, tempfile
import numpy, torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from models import Cnn, Gpt

parser = argparse.ArgumentParser()
parser.add_argument("--program", default="target/release/dittograd")
parser.add_argument("--device", default="cpu")
args = parser.parse_args()
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
STEPS, LR = 10, 1e-3


def ours(*arguments):
    command = [args.program, *map(str, arguments), "--device", args.device, "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def distance(a, b):
    return float(numpy.abs(a - b).max() / numpy.abs(b).max())


def compare(name, config, net, x, y):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        # The head of a GPT is its table of tokens.
        own = {k: v.contiguous() for k, v in net.state_dict().items() if k != "head.weight"}
        save_file(own, folder / "torch.safetensors")
        data = folder / "data.npz"
        numpy.savez(data, x=x, y=y, x_test=x[:4], y_test=y[:4], classes=config.get("vocab", config.get("classes")))
        numpy.save(folder / "x.npy", x)
        train = ["train", name, "--data", data, "--config", json.dumps(config), "--batch", len(x), "--schedule", "constant"]
        train += ["--weights", folder / "torch.safetensors", "--weight-decay", 0.01]

        # A step with rate 0 changes nothing.
        ours(*train, "--steps", 1, "--lr", 0, "--out", folder / "same")
        ours("predict", folder / "same", "--data", folder / "x.npy", "--out", folder / "y.npy")
        inputs, labels = torch.from_numpy(x), torch.from_numpy(y)
        if inputs.dtype != torch.float32:
            inputs = inputs.long()
        with torch.no_grad():
            want = net(inputs).numpy()
        first = distance(numpy.load(folder / "y.npy").reshape(want.shape), want)

        ours(*train, "--steps", STEPS, "--lr", LR, "--out", folder / "run")
        lines = map(json.loads, (folder / "run/metrics.jsonl").read_text().splitlines())
        mine = numpy.array([line["loss"] for line in lines if "loss" in line])
        optimizer = torch.optim.AdamW(net.parameters(), lr=LR, weight_decay=0.01)
        theirs = []
        for _ in range(STEPS):
            optimizer.zero_grad()
            out = net(inputs)
            loss = F.cross_entropy(out.reshape(-1, out.shape[-1]), labels.reshape(-1).long())
            loss.backward()
            optimizer.step()
            theirs.append(loss.item())
        curve = distance(mine, numpy.array(theirs))

        # The way back: our checkpoint in PyTorch.
        state = load_file(folder / "run/checkpoint.safetensors")
        state = {k: v for k, v in state.items() if not k.startswith("optimizer.")}
        assert state.keys() == own.keys()
        net.load_state_dict(state, strict=False)
        ours("predict", folder / "run", "--data", folder / "x.npy", "--out", folder / "y.npy")
        with torch.no_grad():
            want = net(inputs).numpy()
        back = distance(numpy.load(folder / "y.npy").reshape(want.shape), want)
        good = first <= 1e-5 and curve <= 1e-4 and back <= 1e-5
        print(f"{name:4} outputs {first:.1e}, losses of {STEPS} steps {curve:.1e}, outputs after them {back:.1e}: "
              f"{'ok' if good else 'TOO FAR'}   ({theirs[0]:.5f} to {theirs[-1]:.5f})")
        return good


rng = numpy.random.default_rng(0)
tokens = rng.integers(0, 65, (8, 33)).astype(numpy.int32)
gpt = dict(vocab=65, context=32, width=96, heads=3, layers=3, dropout=0.0)
good = compare("gpt", gpt, Gpt(65, 32, 96, 3, 3), tokens[:, :-1].copy(), tokens[:, 1:].copy())
images = rng.random((16, 3, 32, 32), dtype=numpy.float32)
cnn = dict(channels=3, image=[32, 32], widths=[16, 32, 64], classes=10)
good &= compare("cnn", cnn, Cnn(3, (32, 32), (16, 32, 64), 10), images, rng.integers(0, 10, 16).astype(numpy.int32))
sys.exit(0 if good else 1)
