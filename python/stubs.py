"""Writes the type stubs of the package, `dittograd/*.pyi`: what editors complete and type checkers read.

    python -P stubs.py            # writes them
    python -P stubs.py --check    # fails if they are not what it would write

Names, signatures, defaults and docstrings are those of the imported package. Types are those of the Rust functions in `src`, found by name.
Functions that are written in Python have the types of the table `TYPES`.
"""

import importlib
import inspect
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

MODULES = ["", "fft", "linalg", "masked", "nn.functional", "optim", "signal.windows", "special"]
CLASSES = ["Device", "Session", "Tensor", "Param", "Params", "Graph", "Function", "TrainStep"]

OPERAND = "Tensor | float"
DIMS = "int | Sequence[int]"

# Types of Rust that are one type of Python.
SCALARS = {
    **dict.fromkeys(["f32", "f64"], "float"),
    **dict.fromkeys(["i32", "i64", "u32", "u64", "usize"], "int"),
    **dict.fromkeys(["str", "String"], "str"),
    **{name: name for name in [*CLASSES, "bool", "Optimizer"]},
    "()": "None",
    "PathBuf": "str | PathLike[str]",
}

# Types by the names of parameters: of functions in Python, and of those that take any object.
TYPES = {
    "M": "int",
    "a": "Sequence[float]",
    "betas": "tuple[float, float]",
    "center": "float | None",
    "clip_norm": "float | None",
    "clip_value": "float | None",
    "condition": "Tensor",
    "correction": "float | None",
    "data": "ArrayLike",
    "dim": f"{DIMS} | None",
    "dtype": "str | None",
    "examples": "ArrayLike | Tensor",
    "function": "Callable[..., Tensor | Sequence[Tensor]]",
    "groups": "Sequence[Mapping[str, Any]] | None",
    "input": "Tensor",
    "input_mask": "Tensor | None",
    "inputs": "ArrayLike",
    "key": "Any",
    "loss": "Callable[..., Tensor | Sequence[Tensor]]",
    "mask": "Tensor | None",
    "mean": "float",
    "n": "int",
    "ord": "float | None",
    "other": OPERAND,
    "other_mask": "Tensor | None",
    "session": "Session",
    "shape": DIMS,
    "size": DIMS,
    "std": "float",
    "tensors": "Tensor | Sequence[Tensor]",
    "unbiased": "bool | None",
    "value": "ArrayLike",
}

# What the keyword arguments `**more` of an optimizer are.
MORE = ["groups", "clip_norm", "clip_value"]

# Results that the Rust functions do not say.
RESULTS = {
    **dict.fromkeys(["sort", "topk", "kthvalue", "mode", "cummax", "cummin"], "Places"),
    **dict.fromkeys(["max", "min", "median", "nanmedian"], "Tensor | Places"),
    **dict.fromkeys(["unique", "unique_consecutive"], "Tensor | tuple[Tensor, ...]"),
    # One tensor of one, a list of several.
    **dict.fromkeys(["atleast_1d", "atleast_2d", "atleast_3d"], "Any"),
    "aminmax": "Extremes",
    "histogram": "Histogram",
    "histogramdd": "GridHistogram",
    "broadcast_shapes": "tuple[int, ...]",
    "Function.__call__": "list[NDArray[Any]]",
    "Param.numpy": "NDArray[np.float32]",
    "Param.shape": "tuple[int, ...]",
    "Params.__iter__": "Iterator[str]",
    "Tensor.__bool__": "bool",
    "Tensor.__float__": "float",
    "Tensor.__int__": "int",
    "Tensor.__iter__": "Iterator[Tensor]",
    "Tensor.dim": "int",
    "Tensor.item": "float",
    "Tensor.numpy": "NDArray[Any]",
    "Tensor.shape": "tuple[int, ...]",
    "Tensor.size": "int | tuple[int, ...]",
    "TrainStep.metric": "NDArray[Any]",
}

# Results that depend on arguments: types of arguments, with the result that they have.
_AT = [({"dim": "int"}, "Places"), ({"dim": "None = None"}, "Tensor")]
_WITH_INDICES = [({"return_indices": "Literal[True]"}, "tuple[Tensor, Tensor]"), ({"return_indices": "Literal[False] = False"}, "Tensor")]
_UNIQUE = [
    ({"return_inverse": "Literal[True]"}, "tuple[Tensor, ...]"),
    ({"return_counts": "Literal[True]"}, "tuple[Tensor, ...]"),
    ({"return_inverse": "Literal[False] = False", "return_counts": "Literal[False] = False"}, "Tensor"),
]
VARIANTS = {
    **dict.fromkeys(["max", "min"], [({"dim": "int"}, "Places"), ({"dim": "Tensor | None = None"}, "Tensor")]),
    **dict.fromkeys(["median", "nanmedian"], _AT),
    **dict.fromkeys(["unique", "unique_consecutive"], _UNIQUE),
    "nonzero": [({"as_tuple": "Literal[True]"}, "list[Tensor]"), ({"as_tuple": "Literal[False] = False"}, "Tensor")],
    "where": [({"input": OPERAND, "other": OPERAND}, "Tensor"), ({"input": "None = None", "other": "None = None"}, "list[Tensor]")],
    "Tensor.size": [({"dim": "int"}, "int"), ({"dim": "None = None"}, "tuple[int, ...]")],
}

HEADER = "# Written by stubs.py.\n"
IMPORTS = """
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
"""


def split(text):
    """The parts between commas that are in no brackets."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "([{<") - (c in ")]}" or (c == ">" and text[i - 1] != "-"))
        if c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def union(types):
    """A type of several, each once, `None` last."""
    each = list(dict.fromkeys(part for t in types for part in alternatives(t)))
    return " | ".join(sorted(each, key=lambda t: t == "None"))


def alternatives(text):
    """The types of a union."""
    return split(re.sub(r" \| (?![^[]*\])", ",", text)) if "[" not in text else _alternatives(text)


def _alternatives(text):
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c == "[") - (c == "]")
        if c == "|" and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()]
