#!/usr/bin/env python3
"""Every function that PyTorch tests itself by, ours beside PyTorch's: all samples of its OpInfo table, values, gradients and second
gradients, against PyTorch in float64.

usage: python3 compare/opinfo.py [--device cpu|cuda] [--save FILE] [--table [--beside FILE]] [--verbose] [--share 3/8] [NAME ...]

Needs the Python package (python/README.md says how it is built), torch, numpy and expecttest. `--table` writes docs/ops.md;
with a file that `--save` wrote on another device, the page says what agrees there too. NAME is an entry of the table,
such as `softmax` or `linalg.solve`, or the beginning of one that ends in a `*`. `--share 3/8` takes the third of every eight entries.
"""
import argparse
import collections
import inspect
import json
import pathlib
import sys
import traceback
import warnings

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db

import dittograd

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from opinfo_entries import ENTRIES, NOT_HERE, RULES

warnings.filterwarnings("ignore")
torch.set_num_threads(2)


def full_name(op):
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def ours_for(op):
    """Our function of an entry, with its name; None if there is none."""
    name = full_name(op)
    if name in NOT_HERE:
        return None
    if name in ENTRIES:
        entry = ENTRIES[name]
        return entry if callable(entry) else lookup(entry)
    return lookup(op.name)


def lookup(path):
    found = dittograd
    for part in path.split("."):
        found = getattr(found, part, None)
    if found is None and "." not in path:
        found = getattr(dittograd.Tensor, path, None) or getattr(dittograd.Session, path, None)
    return found


def needs_session(function):
    """Whether a function makes tensors in a session, its first parameter."""
    try:
        return next(iter(inspect.signature(function).parameters), None) == "session"
    except ValueError:
        return False


class Skip(Exception):
    """A sample that has no counterpart here; the text is the reason."""


class Converter:
    """Makes the tensors of a sample ours, by the rules of its entry. A tensor that occurs twice is converted once."""

    def __init__(self, session, rules):
        self.session, self.made, self.pairs = session, {}, []
        self.complex, self.minus_one = rules.get("dtype") == torch.complex128, rules.get("minus_one")

    def __call__(self, value):
        if isinstance(value, torch.Tensor):
            if id(value) not in self.made:
                self.made[id(value)] = self.tensor(value), value
            return self.made[id(value)][0]
        if isinstance(value, (list, tuple)):
            return type(value)(map(self, value)) if not hasattr(value, "_fields") else tuple(map(self, value))
        if isinstance(value, dict):
            return {k: self(v) for k, v in value.items()}
        if isinstance(value, torch.dtype):
            if value in (torch.float64, torch.float32):
                return "float32"
            raise Skip(f"element type {str(value).removeprefix('torch.')}")
        if isinstance(value, complex):
            raise Skip("complex numbers")
        if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
            raise Skip(f"argument {value}")
        return value

    def tensor(self, value):
        if value.layout != torch.strided:
            raise Skip(f"layout {str(value.layout).removeprefix('torch.')}")
        if value.is_complex() and not self.complex:
            raise Skip("complex numbers")
        data = real_view(value.detach()).cpu().numpy()
        if data.dtype.kind == "i" and data.size and data.min() < 0:
            if self.minus_one is None or data.min() < -1:
                raise Skip("negative integers")
            data = np.where(data == -1, self.minus_one, data)
        made = self.session.tensor(data, requires_grad=value.requires_grad)
        if value.requires_grad:
            self.pairs.append((value, made))
        return made


def flat(outputs):
    """All tensors and numbers of a result, in order."""
    if outputs is None:
        return []
    if isinstance(outputs, (list, tuple)):
        return [leaf for output in outputs for leaf in flat(output)]
    return [outputs]


def real_view(value):
    """A complex tensor as pairs in a last axis; others as they are."""
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def as_array(value):
    if isinstance(value, dittograd.Tensor):
        value = value.numpy()
    elif isinstance(value, torch.Tensor):
        value = real_view(value).numpy(force=True)
    return np.asarray(value).astype(np.float64)


def compare(what, ours, theirs, rules):
    """Raises AssertionError unless the arrays agree as float32 can."""
    a, b = as_array(ours), as_array(theirs)
    assert a.shape == b.shape, f"{what}: shape {a.shape}, PyTorch's is {b.shape}"
    b = np.where(np.abs(b) <= rules.get("zero", 0.0), 0.0, b)
    scale = np.abs(b[np.isfinite(b)]).max(initial=0.0)
    # All of them are rounding errors of float64: zeros, which may have one of float32 here.
    scale = 0.0 if scale < 1e-14 else scale
    # Beyond float32 is infinite; below its normal numbers all are equal.
    b = np.where(np.abs(b) > 3.4028235e38, np.copysign(np.inf, b), b)
    floor = rules.get("atol", 1e-6) * (1.0 if rules.get("cancels") else min(1.0, scale or 1.0))
    noise = max(1.2e-38, rules.get("noise", 0.0) if "gradient" in what else 0.0)
    apart = np.abs(a - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b)) | (apart <= np.maximum(rules.get("rtol", 2e-5) * (np.abs(b) + scale) + floor, noise))
    if not same.all():
        at = tuple(int(i) for i in np.argwhere(~same)[0])
        raise AssertionError(f"{what}: at {list(at)} {a[at]!r}, PyTorch has {b[at]!r}; {int((~same).sum())} of {a.size} differ")


def draw(like, rng):
    """Gradients to begin with, float32 numbers."""
    drawn = torch.tensor(rng.uniform(-1, 1, tuple(real_view(like).shape)).astype(np.float32), dtype=torch.float64)
    return torch.complex(drawn[..., 0], drawn[..., 1]) if like.is_complex() else drawn


def rounded(value):
    """A sample's tensors as float32 numbers in float64."""
    if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()) and value.layout == torch.strided:
        made = value.detach()
        made = made.to(torch.complex64).to(torch.complex128) if value.is_complex() else made.float().double()
        return made.requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(map(rounded, value))
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return value


def one_sample(op, ours, sample, session, rng, rules):
    """Values, gradients, second gradients of one sample; returns how many orders were compared."""
    session.reset()
    inputs = rounded([sample.input, *sample.args])
    kwargs = rounded(sample.kwargs)
    if "sample" in rules:
        rules["sample"](inputs, kwargs, Skip)
    convert = Converter(session, rules)
    args, named = convert(inputs), convert(kwargs)
    args = [session, *args] if needs_session(ours) else args
    theirs = flat(rules.get("theirs", op.op)(*inputs, **kwargs))
    theirs = [t for t in theirs if not (isinstance(t, torch.Tensor) and t.layout != torch.strided)]
    try:
        mine = flat(ours(*args, **named))
    except NotImplementedError as error:
        raise Skip(str(error)) from None
    assert len(mine) == len(theirs), f"{len(mine)} results, PyTorch has {len(theirs)}"
    if rules.get("random"):
        for a, b in zip(mine, theirs):
            assert tuple(a.shape) == tuple(b.shape), f"shape {a.shape}, PyTorch's is {tuple(b.shape)}"
        return 0
    if "results" in rules:
        mine, theirs = rules["results"](mine, theirs)
    for i, (a, b) in enumerate(zip(mine, theirs)):
        compare(f"result {i}", a, b, rules)
    if not op.supports_autograd or not convert.pairs or rules.get("orders", 2) < 1:
        return 0
    tied = [(a, b) for a, b in zip(mine, theirs) if isinstance(b, torch.Tensor) and b.requires_grad]
    if not tied:
        return 0
    inputs = [value for value, _ in convert.pairs]
    dys = [draw(b, rng) for _, b in tied]
    second = rules.get("orders", 2) > 1 and op.supports_gradgrad
    theirs = torch.autograd.grad([b for _, b in tied], inputs, dys, allow_unused=True, create_graph=second)
    seeds = [session.tensor(real_view(dy).numpy()) for dy in dys]
    mine = session.grad([a for a, _ in tied], [v for _, v in convert.pairs], seeds)
    linked = []
    for i, (a, b) in enumerate(zip(mine, theirs)):
        b = torch.zeros_like(inputs[i]) if b is None else b
        if a is None:
            a = torch.zeros_like(inputs[i])
        compare(f"gradient {i}", a, b, rules)
        if isinstance(a, dittograd.Tensor) and b.requires_grad:
            linked.append((a, b))
    if not second:
        return 1
    if not linked:
        return 2
    dys = [draw(b, rng) for _, b in linked]
    theirs = torch.autograd.grad([b for _, b in linked], inputs, dys, allow_unused=True)
    seeds = [session.tensor(real_view(dy).numpy()) for dy in dys]
    mine = session.grad([a for a, _ in linked], [v for _, v in convert.pairs], seeds)
    for i, (a, b) in enumerate(zip(mine, theirs)):
        zeros = torch.zeros_like(inputs[i])
        compare(f"second gradient {i}", zeros if a is None else a, zeros if b is None else b, {**rules, "rtol": 5 * rules.get("rtol", 2e-5)})
    return 2


def described(value):
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(described, value)) + "]"
    if isinstance(value, dict):
        return ", ".join(f"{k}={described(v)}" for k, v in value.items())
    return repr(value)


def one_entry(op, session, verbose):
    """Compares all samples of an entry. Returns the counts of samples that agree, of failures and of reasons to skip."""
    name = full_name(op)
    ours = ours_for(op)
    rules = RULES.get(name, RULES.get(op.name, {}))
    rng = np.random.default_rng(sum(map(ord, name)))
    first = next((d for d in (torch.float64, torch.int64, torch.bool) if d in op.dtypes), None)
    dtypes = [d for d in (first, rules.get("dtype")) if d in op.dtypes] or [None]
    tracked = lambda d: op.supports_autograd and d in (torch.float64, torch.complex128)
    agreed, failed, skipped, orders = 0, [], collections.Counter(), []
    torch.manual_seed(7)
    for sample in (s for d in dtypes for s in op.sample_inputs("cpu", d, requires_grad=tracked(d))):
        try:
            orders.append(one_sample(op, ours, sample, session, rng, rules))
            agreed += 1
        except Skip as reason:
            skipped[str(reason)] += 1
        except Exception as error:
            text = f"{described([sample.input, *sample.args])} {described(sample.kwargs)}: {type(error).__name__}: {error}"
            failed.append(text)
            if verbose:
                traceback.print_exc()
    return agreed, failed, skipped, max(orders, default=0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--save", metavar="FILE", help="write what was found, for --table")
    parser.add_argument("--table", action="store_true", help="write docs/ops.md")
    parser.add_argument("--beside", metavar="FILE", help="what --save wrote on another device, a line for each share, for --table")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--share", default="1/1")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    if args.beside and not args.table:
        parser.error("--beside is for --table")
    beside = [json.loads(line) for line in pathlib.Path(args.beside).read_text().splitlines()] if args.beside else []
    share, shares = map(int, args.share.split("/"))
    session = dittograd.Session(args.device)
    wanted = lambda name: not args.names or any(name == n or (n.endswith("*") and name.startswith(n[:-1])) for n in args.names)
    rows = []
    for op in op_db[share - 1 :: shares]:
        name = full_name(op)
        if not wanted(name):
            continue
        if ours_for(op) is None:
            rows.append((name, "missing", 0, [], {}, 0))
            continue
        agreed, failed, skipped, orders = one_entry(op, session, args.verbose)
        state = "failed" if failed else "complete" if agreed else "skipped"
        rows.append((name, state, agreed, failed, skipped, orders))
        line = f"{name}: {state}, {agreed} samples agree"
        line += f", {len(failed)} differ" if failed else ""
        line += "".join(f", {count} skipped ({reason})" for reason, count in skipped.items())
        print(line, flush=True)
        for text in failed[:3]:
            print("   ", text[:400], flush=True)
    counts = collections.Counter(state for _, state, *_ in rows)
    missing = [name for name, state, *_ in rows if state == "missing" and name not in NOT_HERE]
    print("missing without a reason:", " ".join(missing))
    print(", ".join(f"{counts[s]} {s}" for s in ("complete", "failed", "skipped", "missing")), "of", len(rows))
    if args.save:
        found = {name: [agreed, len(failed)] for name, state, agreed, failed, *_ in rows if state != "missing"}
        line = json.dumps({"device": args.device, "torch": torch.__version__.split("+")[0], "found": found})
        pathlib.Path(args.save).write_text(line + "\n")
    if args.table:
        from opinfo_table import write

        write(rows, args.device, beside)
    sys.exit(1 if counts["failed"] else 0)


if __name__ == "__main__":
    main()
