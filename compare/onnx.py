#!/usr/bin/env python3
"""Exported models in ONNX Runtime, beside what `predict` says.

usage: python3 compare/onnx.py [--program PATH] [--steps N] [--ops] [MODEL ...]

needs the packages onnx, onnxruntime and numpy. Each of the nine models is trained for a few steps, exported, checked by ONNX's
own checker with shape inference, and run in ONNX Runtime on rows that `predict` gets too. With --ops the samples of every op are
run there as well, each exported alone (`cargo test` writes them). Exits with 1 if a number is further off than 1e-5 of the
largest one.
"""
import argparse, json, os, pathlib, subprocess, sys, tempfile
del sys.path[0]  # This folder, in which the package's name is that of this file.
import numpy, onnx, onnxruntime

parser = argparse.ArgumentParser()
parser.add_argument("--program", default="target/release/dittograd")
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--ops", action="store_true")
parser.add_argument("models", nargs="*", metavar="MODEL")
args = parser.parse_args()
onnxruntime.set_default_logger_severity(3)
BATCH = 4
rng = numpy.random.default_rng(0)


def ours(*arguments):
    command = [args.program, *map(str, arguments), "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def theirs(path, inputs):
    """The outputs of a file that is as it should be, by name, and its nodes."""
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = {i.name: inputs[i.name] for i in session.get_inputs()}
    given = {i.name: given[i.name].astype(numpy.int64 if "int64" in i.type else numpy.float32) for i in session.get_inputs()}
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, given)))


def distance(got, want):
    """The largest difference as a part of the largest number; infinite where what is no number differs."""
    if got.shape != want.shape:
        return numpy.inf
    got, want = got.astype(numpy.float64), want.astype(numpy.float64)
    finite = numpy.isfinite(want)
    if not numpy.array_equal(got[~finite], want[~finite], equal_nan=True):
        return numpy.inf
    off = numpy.abs(got[finite] - want[finite]).max(initial=0)
    return off / (numpy.abs(want[finite]).max(initial=0) or 1)


# Options of the runs: data that takes little time to make. What each model learns from is scaled where it is not made for it.
MODELS = {
    "mlp": ["--data", "friedman1", "--samples", 200],
    "cnn": ["--samples", 200],
    "resnet": ["--samples", 200],
    "vit": ["--samples", 200],
    "gpt": ["--samples", 300],
    "mamba": ["--samples", 300],
    "fno1d": ["--samples", 40],
    "fno2d": ["--samples", 20],
    "autoencoder": ["--samples", 200],
}
MOST = 1e-5
ROWS = "{:12} {:>16} {:>18} {:>6} {:>9} {:>9}  {}".format


def model(name, folder):
    run = folder / name
    ours("train", name, *MODELS[name], "--steps", args.steps, "--out", run, "--quiet")
    path = folder / f"{name}.onnx"
    about = json.loads(ours("export", run, "--batch", BATCH, "--out", path, "--json"))
    (given,), (said,) = about["inputs"], about["outputs"]
    shape = given["shape"]
    if given["type"] == "int64":
        x = rng.integers(0, 10, shape).astype(numpy.int32)
    else:
        x = rng.standard_normal(shape).astype(numpy.float32)
    numpy.save(folder / "x.npy", x)
    ours("predict", run, "--data", folder / "x.npy", "--out", folder / "y.npy")
    want = numpy.load(folder / "y.npy")
    off = distance(theirs(path, {given["name"]: x})[said["name"]], want)
    verdict = "ok" if off <= MOST else "TOO FAR"
    print(ROWS(name, str(shape), str(said["shape"]), about["nodes"], about["bytes"], f"{off:.1e}", verdict), flush=True)
    return off <= MOST


def ops(folder):
    command = ["cargo", "test", "--quiet", "--test", "it", "onnx::every_op"]
    done = subprocess.run(command, env=dict(os.environ, DITTOGRAD_ONNX_SAMPLES=folder), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    worst, good = {}, True
    for path in sorted(pathlib.Path(folder).glob("*.onnx")):
        with numpy.load(path.with_suffix(".npz")) as file:
            data = {name: file[name] for name in file.files}
        name = path.name.split(".")[0]
        try:
            off = max(distance(got, data[output]) for output, got in theirs(path, data).items())
        except Exception as e:
            print(f"{path.name}: {e}")
            off = numpy.inf
        worst[name] = max(worst.get(name, 0), off)
        if off > MOST:
            print(f"{path.name}: {off:.1e}")
            good = False
    print(f"{len(worst)} ops, the worst of each: " + ", ".join(f"{name} {off:.0e}" for name, off in worst.items()))
    return good


good = True
print(f"ONNX Runtime {onnxruntime.__version__}")
print(ROWS("model", "input", "output", "nodes", "bytes", "off by", ""))
with tempfile.TemporaryDirectory() as folder:
    for name in args.models or MODELS:
        good &= model(name, pathlib.Path(folder))
if args.ops:
    with tempfile.TemporaryDirectory() as folder:
        good &= ops(folder)
sys.exit(0 if good else 1)
