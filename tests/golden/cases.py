"""What the scripts that make golden values share: their inputs, and at the end to write the cases, one JSON object a line, or compare."""
import json
import sys


def fill(shape, k):
    """Element i of tensor k: numbers that float32 holds exactly, without a short period."""
    import torch

    count = torch.Size(shape).numel()
    return torch.tensor([((37 * i + i * i // 7 + 11 * k) % 101 - 50) / 128 for i in range(count)]).reshape(shape)


def whole(shape, k, below):
    """Whole numbers below a bound."""
    import torch

    count = torch.Size(shape).numel()
    return torch.tensor([(5 * i + i * i // 3 + k) % below for i in range(count)]).reshape(shape)


def close(a, b, within):
    """Whether two cases agree: the same names in the same order, the same shapes, numbers within so much of each other."""
    if isinstance(a, dict):
        return list(a) == list(b) and all(close(a[k], b[k], within) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(close(x, y, within) for x, y in zip(a, b))
    return a == b or (isinstance(a, float) and abs(a - b) <= within)


def finish(file, made, within):
    """Writes the cases, or with --check compares them with those committed; the exit code."""
    if "--check" not in sys.argv[1:]:
        file.write_text("".join(json.dumps(c) + "\n" for c in made))
        print(f"{len(made)} cases, {file.stat().st_size} bytes")
        return 0
    committed = [json.loads(line) for line in file.read_text().splitlines()]
    wrong = [new["name"] for old, new in zip(committed, made) if not close(old, new, within)]
    if wrong or len(committed) != len(made):
        print(f"{len(committed)} cases are committed, {len(made)} are made; other numbers in {wrong}")
        return 1
    print(f"{len(made)} cases agree")
    return 0
