"""Writes the type stubs of the native modules, `dittograd/*.pyi`: what editors complete and type checkers read.

    python -P stubs.py            # writes them
    python -P stubs.py --check    # fails if they are not what it would write

Names, parameters and docstrings are those of the imported package; types are those of the Rust functions in `src`, found by name. The
tables have what Rust does not say. Modules that are written in Python have annotations instead of stubs.
"""

import importlib
import inspect
import re
import sys
from pathlib import Path
from textwrap import indent

HERE = Path(__file__).resolve().parent
QUOTES = '"""'

CLASSES = ["Device", "Session", "Tensor", "Param", "Params", "Graph", "Function", "TrainStep"]
SUBMODULES = ["fft", "linalg", "masked", "nn", "optim", "signal", "special"]
NATIVE = '''
from builtins import bool as _bool, float as _float, int as _int
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, final, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ._results import Extremes, Histogram, Places

NUMERICS_VERSION: int
__version__: str
'''
PACKAGE = f'''
from collections.abc import Sequence
from typing import Any, Literal, overload

from . import {", ".join(f"{name} as {name}" for name in SUBMODULES)}
from ._native import NUMERICS_VERSION as NUMERICS_VERSION, __version__ as __version__
from ._native import {", ".join(f"{name} as {name}" for name in CLASSES)}
from ._results import Extremes, Histogram, Places
'''
FUNCTIONS = '''
from collections.abc import Callable, Sequence
from typing import Literal, overload

from dittograd._native import Tensor
'''
# The modules that have stubs, with what comes before their functions.
MODULES = {
    "_native": NATIVE,
    "": PACKAGE,
    **dict.fromkeys(["fft", "linalg", "nn.functional", "special"], FUNCTIONS),
}

# Types of Rust that are one type of Python.
SCALARS = {
    **dict.fromkeys(["f32", "f64"], "float"),
    **dict.fromkeys(["i32", "i64", "u32", "u64", "usize"], "int"),
    **dict.fromkeys(["str", "String"], "str"),
    **{name: name for name in [*CLASSES, "Optimizer", "bool"]},
    "()": "None",
    "PyAny": "Any",
    # The arguments of `einsum`.
    "Tensors": "Sequence[Tensor | Sequence[Tensor]]",
    "PathBuf": "str | PathLike[str]",
}

# Parameters that take any object.
OBJECTS = {
    "data": "ArrayLike",
    "distance_function": "Callable[[Tensor, Tensor], Tensor] | None",
    "examples": "ArrayLike | Tensor",
    "function": "Callable[..., Tensor | Sequence[Tensor]]",
    "inputs": "ArrayLike",
    "loss": "Callable[..., Tensor | Sequence[Tensor]]",
    "size": "int | Sequence[int]",
    "tensors": "Tensor | Sequence[Tensor]",
    "value": "ArrayLike",
}

# Results that Rust does not say. `Any` is one tensor, or several, as the arguments are.
RESULTS = {
    **dict.fromkeys(["sort", "topk", "kthvalue", "mode", "cummax", "cummin"], "Places"),
    **dict.fromkeys(["unique", "unique_consecutive", "atleast_1d", "atleast_2d", "atleast_3d"], "Any"),
    **dict.fromkeys([f"max_pool{axes}d_with_indices" for axes in (1, 2, 3)], "tuple[Tensor, Tensor]"),
    "__call__": "list[Any]",
    "aminmax": "Extremes",
    "broadcast_shapes": "tuple[int, ...]",
    "histogram": "Histogram",
    "histogramdd": "tuple[Tensor, list[Tensor]]",
    "item": "Any",
    "metric": "NDArray[Any]",
    "numpy": "NDArray[Any]",
    "shape": "tuple[int, ...]",
}

# Functions whose result depends on their arguments.
_EXTREMUM = [
    "(input: Tensor, dim: int, keepdim: bool = False) -> Places",
    "(input: Tensor, dim: Tensor | None = None, keepdim: bool = False, *, other: Tensor | None = None) -> Tensor",
]
_MEDIAN = [_EXTREMUM[0], "(input: Tensor, dim: None = None, keepdim: bool = False) -> Tensor"]
OVERLOADS = {
    **dict.fromkeys(["max", "min"], _EXTREMUM),
    **dict.fromkeys(["median", "nanmedian"], _MEDIAN),
    "size": ["(input: Tensor, dim: None = None) -> tuple[int, ...]", "(input: Tensor, dim: int) -> int"],
    "where": ["(condition: Tensor) -> list[Tensor]", "(condition: Tensor, input: Tensor | float, other: Tensor | float) -> Tensor"],
}
# Flags on which the result depends, with the result if they are set.
FLAGS = {"as_tuple": "list[Tensor]", "return_indices": "tuple[Tensor, Tensor]"}

# Methods with names of Python's, besides operators of two tensors and what Rust has.
SPECIAL = {
    "Params": {"__iter__": "(self) -> Iterator[str]"},
    "Tensor": {
        **dict.fromkeys(["__abs__", "__invert__", "__neg__", "__pos__"], "(self) -> Tensor"),
        "__array__": "(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]",
        "__bool__": "(self) -> bool",
        "__dlpack__": "(self, *, stream: _int | None = None, max_version: tuple[_int, _int] | None = None, "
        "dl_device: tuple[_int, _int] | None = None, copy: _bool | None = None) -> Any",
        "__dlpack_device__": "(self) -> tuple[int, int]",
        "__float__": "(self) -> float",
        "__getitem__": "(self, key: Any, /) -> Tensor",
        "__hash__": "(self) -> int",
        "__int__": "(self) -> int",
        "__iter__": "(self) -> Iterator[Tensor]",
    },
}


def bracketed(text):
    """The beginning of a text up to the bracket that closes it."""
    depth = 1
    for end, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if depth == 0:
            return text[:end]


def split(text):
    """The parts between commas that are in no brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "([{<") - (c in ")]}>")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts if part.strip()]


def literal(text):
    """A default of Rust as one of Python: its only number or text, or a tuple of several."""
    found = re.findall(r'(?<!\w)-?\d[\d.e-]*|"[^"]*"', text)
    return found[0] if len(found) == 1 else f"({', '.join(found)})" if found else "..."


class Rust:
    """The functions and types in the Rust files."""

    def __init__(self, folder):
        # Functions as (types of parameters, defaults, result), by file or class and name; those that macros make, by names of parameters.
        self.functions, self.macros = {}, {}
        # Alternatives of types by name, files by module.
        self.types, self.files = {}, {}
        for path in sorted(folder.rglob("*.rs")):
            text = path.read_text()
            self.files.update(dict.fromkeys(re.findall(r"pub mod (\w+) \{", text), path.stem))
            for name, body in re.findall(r"derive\((?:From|Into)PyObject\)\]\s*(?:pub )?enum (\w+).*?\{(.*?)\n *\}", text, re.S):
                self.types[name] = re.findall(r"\w+\((.*)\),", body)
            self.types.update((name, [of]) for name, of in re.findall(r"^(?:pub )?type (\w+).*? = (.*);", text, re.M))
            for function in text.split("#[pyfunction]")[1:]:
                self.read(path.stem, function)
            for owner, body in re.findall(r"#\[pymethods\]\nimpl (\w+) \{\n(.*?)\n\}\n", text, re.S):
                for method in body.split("\n    }\n"):
                    self.read(owner, method)

    def read(self, place, text):
        """Takes in the first function of a text."""
        start = re.search(r"\bfn (\$?\w+)(?:<'\w+>)?\(", text)
        before, inside = text[: start.start()], bracketed(text[start.end() :])
        name = re.search(r'\(name = "(\w+)"', before) or start
        types = dict(part.removeprefix("r#").split(": ", 1) for part in split(inside) if ": " in part)
        types = {name: of for name, of in types.items() if "Python<" not in of}
        parts = split(bracketed(before.partition("signature = (")[2] + ")"))
        result = re.match(r"\s*(?:-> (.*?))?\s*\{", text[start.end() + len(inside) + 1 :])[1] or "()"
        function = types, dict(part.split("=", 1) for part in parts if "=" in part), result
        if name[1][0] == "$":
            self.macros[tuple(types)] = function
        else:
            self.functions[place, name[1]] = function

    def find(self, place, name, parameters=()):
        """Types and defaults of the parameters of a function, and the type of its result. A macro may make it, of these parameters."""
        types, defaults, result = self.functions.get((place, name)) or self.macros.get(tuple(parameters)) or self.macros["input", "$second"]
        types = {p: OBJECTS[p] if re.search("PyAny|PyTuple", t) else self.type(t) for p, t in types.items()}
        if "$second" in types:
            types = dict(zip(parameters, types.values(), strict=True))
        return types, {p: literal(value) for p, value in defaults.items()}, RESULTS.get(name) or self.type(result, "list")

    def type(self, text, several="Sequence"):
        """What a type of Rust is in Python."""
        text = re.sub(r"&|'\w+(, )?|\$?\bcrate::\w+::|<>", "", re.sub(r"<'\w+>", "", text)).strip()
        if text in SCALARS:
            return SCALARS[text]
        if text in self.types:
            return " | ".join(self.type(of, several) for of in self.types[text])
        if len(split(text)) > 1:
            return f"tuple[{', '.join(self.type(part, several) for part in split(text))}]"
        if text[0] == "(":
            return self.type(text[1:-1], several)
        if text[0] == "[":
            return f"{several}[{self.type(text[1:].split(';')[0], several)}]"
        outer, inner = re.fullmatch(r"(\w+)<(.*)>", text).groups()
        if outer == "Option":
            return self.type(inner, several) + " | None"
        if outer in ("Vec", "BTreeMap"):
            of = ", ".join(self.type(part, several) for part in split(inner))
            return f"{several}[{of}]" if outer == "Vec" else f"Mapping[{of}]"
        return self.type(inner, several)


RUST = Rust(HERE / "src")


def documented(line, doc):
    """A line that ends in a colon, with a docstring or without."""
    if not doc:
        return f"{line} ...\n"
    doc = inspect.cleandoc(doc)
    doc += "\n" if "\n" in doc or doc.endswith('"') else ""
    return f"{line}\n{indent(('r' if chr(92) in doc else '') + f'{QUOTES}{doc}{QUOTES}', '    ')}\n"


def define(name, signature, doc=None, owner=None):
    """A function or method of a signature such as `(input: Tensor) -> Tensor`."""
    if owner == "Tensor":
        # Methods have these names too.
        signature = re.sub(r"\b(bool|float|int)\b(?!:)", r"_\1", signature)
    if len(name + signature) > 130:
        parameters = bracketed(signature[1:])
        signature = "(\n    " + ",\n    ".join(split(parameters)) + f",\n{signature[len(parameters) + 1 :]}"
    return documented(f"def {name}{signature}:", doc)


def signature(function, owner=None, name=None, static=False):
    """The signature of a function. Functions in Python have annotations."""
    parameters = inspect.signature(function).parameters
    written = ["self"] if owner and not static else []
    if inspect.isfunction(function):
        types, defaults, result = function.__annotations__, {}, function.__annotations__["return"]
    else:
        place = RUST.files.get(getattr(function, "__module__", None), owner)
        types, defaults, result = RUST.find(place, name or function.__name__, parameters)
    # The first parameter of a method is `self`, or of functions that are methods too the tensor or session; classes have none.
    for p in list(parameters.values())[bool(written) and not isinstance(function, type) :]:
        text = f"{p.name}: {types[p.name]}"
        if p.kind is p.VAR_POSITIONAL:
            text = "*" + re.sub(r": Sequence\[(.*)\]$", r": \1", text)
        elif p.kind is p.KEYWORD_ONLY and not any(w[0] == "*" for w in written):
            written.append("*")
        if p.default is not p.empty:
            value = f'"{p.default}"' if isinstance(p.default, str) else p.default
            text += f" = {defaults[p.name] if p.default is ... else value}"
        written.append(text)
    return f"({', '.join(written)}) -> {result}"


def function(name, function, owner=None):
    """A function, or a method of a class."""
    static = isinstance(function, staticmethod)
    function = inspect.unwrap(function.__func__ if static else function)
    variants = [signature(function, owner, static=static)]
    flag = re.search(rf"({'|'.join(FLAGS)}): bool = False", variants[0])
    if name in OVERLOADS and (owner, name) != ("Tensor", "where"):
        variants = [text.replace("input: Tensor", "self") if owner else text for text in OVERLOADS[name]]
    elif flag:
        before, after = variants[0][: flag.start()], variants[0][flag.end() :].split(" -> ")[0]
        star = "*, " if " = " in before and "*, " not in before else ""
        variants = [
            f"{before}{flag[1]}: Literal[False] = False{after} -> Tensor",
            f"{before}{star}{flag[1]}: Literal[True]{after} -> {FLAGS[flag[1]]}",
        ]
    above = "@staticmethod\n" * static + "@overload\n" * (len(variants) > 1)
    docs = [function.__doc__, *[None] * len(variants)]
    return "".join(above + define(name, variant, doc, owner) for variant, doc in zip(variants, docs))


def member(owner, name, value):
    """A method or property of a class, or nothing."""
    if name in SPECIAL.get(owner, {}):
        return define(name, SPECIAL[owner][name], None, owner)
    if re.fullmatch("__(call|contains|getitem|len)__", name):
        types, _, result = RUST.find(owner, name)
        given = [f"*{p}: {t}" if name == "__call__" else f"{p}: {t}, /" for p, t in types.items()]
        return define(name, f"({', '.join(['self', *given])}) -> {result}", None, owner)
    if inspect.isfunction(value) and name.startswith("__") and value.__annotations__:
        ignored = "  # type: ignore[override]" if name in ("__eq__", "__ne__") else ""
        return define(name, signature(value, owner), None, owner).replace("\n", f"{ignored}\n")
    if name.startswith("_"):
        return ""
    if not inspect.isgetsetdescriptor(value) and not isinstance(value, property):
        return function(name, value, owner)
    result = value.fget.__annotations__["return"] if isinstance(value, property) else RUST.find(owner, name)[2]
    text = "@property\n" + define(name, f"(self) -> {result}", value.__doc__, owner)
    if (owner, f"set_{name}") in RUST.functions:
        text += f"@{name}.setter\n" + define(name, f"(self, value: {result}) -> None", None, owner)
    return text


def type_(cls):
    """A class with its methods and properties."""
    name = cls.__name__
    members = [member(name, each, value) for each, value in sorted(vars(cls).items())]
    if cls.__text_signature__:
        of = signature(cls, name, "new").split(" -> ")[0]
        members.insert(0, define("__init__", f"{of} -> None"))
    return "\n@final\n" + documented(f"class {name}:", cls.__doc__) + indent("".join(members), "    ")


def stub(name):
    """The text of the stub of a module."""
    module = importlib.import_module(f"dittograd.{name}".rstrip("."))
    if name == "_native":
        made = [type_(getattr(module, each)) for each in [*CLASSES, "Optimizer"]]
    else:
        made = [
            function(each, value)
            for each, value in sorted(vars(module).items())
            if callable(value) and not isinstance(value, type) and not each.startswith("_")
        ]
    return f"# Written by stubs.py.\n{MODULES[name]}\n{''.join(made)}"


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    stale = []
    for name in MODULES:
        path = HERE / "dittograd" / f"{name.replace('.', '/') or '__init__'}.pyi"
        text = stub(name)
        if not path.exists() or path.read_text() != text:
            stale.append(path.name)
            if not check:
                path.write_text(text)
    if check and stale:
        sys.exit(f"{', '.join(stale)}: not what stubs.py writes; run python -P stubs.py")


if __name__ == "__main__":
    main()
