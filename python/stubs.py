"""Writes the type stubs of the package, `dittograd/*.pyi`: what editors complete and type checkers read.

    python -P stubs.py            # writes them
    python -P stubs.py --check    # fails if they are not what it would write

Names, signatures, defaults and docstrings are those of the imported package. Types are those of the Rust functions in `src`, found by name.
Functions that are written in Python have the types of the table `TYPES`.
"""

import importlib
import inspect
import math
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
    "histogramdd": "tuple[Tensor, list[Tensor]]",
    "broadcast_shapes": "tuple[int, ...]",
    "Param.numpy": "NDArray[np.float32]",
    "Param.shape": "tuple[int, ...]",
    "Tensor.dim": "int",
    "Tensor.item": "float",
    "Tensor.numpy": "NDArray[Any]",
    "Tensor.shape": "tuple[int, ...]",
    "Tensor.size": "int | tuple[int, ...]",
    "TrainStep.metric": "NDArray[Any]",
}

# Methods with names of Python's. Operators between a tensor and another are `BINARY`.
SPECIAL = {
    "Function": {"__call__": "(self, *inputs: ArrayLike) -> list[NDArray[Any]]"},
    "Graph": {"__len__": "(self) -> int"},
    "Params": {
        "__getitem__": "(self, name: str, /) -> Param",
        "__contains__": "(self, name: str, /) -> bool",
        "__iter__": "(self) -> Iterator[str]",
        "__len__": "(self) -> int",
    },
    "Tensor": {
        "__getitem__": "(self, key: Any, /) -> Tensor",
        "__iter__": "(self) -> Iterator[Tensor]",
        "__len__": "(self) -> int",
        **dict.fromkeys(["__neg__", "__pos__", "__abs__", "__invert__"], "(self) -> Tensor"),
        "__bool__": "(self) -> bool",
        "__float__": "(self) -> float",
        "__int__": "(self) -> int",
    },
}
BINARY = "(self, other: Tensor | float, /) -> Tensor"

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

HEADER = "# Written by stubs.py."
SUBMODULES = ["fft", "linalg", "masked", "nn", "optim", "signal", "special"]
RESULTS_CLASSES = ["Extremes", "Histogram", "Places"]
IMPORTS = {
    "collections.abc": ["Callable", "Iterator", "Mapping", "Sequence"],
    "os": ["PathLike"],
    "typing": ["Any", "Literal", "overload"],
    "numpy.typing": ["ArrayLike", "NDArray"],
}


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


def union(types):
    """One type of several: each once, `None` last."""
    return " | ".join(sorted(dict.fromkeys(types), key=lambda t: t == "None"))


class Rust:
    """The functions and types in the Rust files."""

    def __init__(self, folder):
        # Functions as (file, name, types of parameters by name, type of the result); types by file and name; files by module.
        self.functions, self.types, self.files = [], {}, {}
        for path in sorted(folder.rglob("*.rs")):
            self.read(path.stem, path.read_text())

    def read(self, file, text):
        """Takes in a file."""
        types = self.types[file] = {}
        for name, body in re.findall(r"derive\((?:From|Into)PyObject\)\]\s*(?:pub )?enum (\w+).*? \{(.*?)\n *\}\n", text, re.S):
            variants = re.findall(r"\w+\((.*)\),", body)
            types[name] = [v if len(split(v)) == 1 else f"({v})" for v in variants]
        for name, meaning in re.findall(r"^(?:pub )?type (\w+)(?:<'\w+>)? = (.*);", text, re.M):
            types[name] = [meaning]
        self.files.update((module, file) for module in re.findall(r"pub mod (\w+) \{", text))
        for found in re.finditer(r"#\[pyfunction\]", text):
            self.function(file, "", text[found.end() :])
        for found in re.finditer(r"#\[pymethods\]\nimpl (\w+) \{(.*?)\n\}\n", text, re.S):
            for method in re.finditer(r"^    (?:pub )?(?=fn )", found[2], re.M):
                self.function(file, f"{found[1]}.", found[2][method.end() :])

    def function(self, file, owner, text):
        """Takes in the next function of a text."""
        start = re.search(r"\bfn (\$?\w+)(?:<'\w+>)?\(", text)
        name = re.search(r'\(name = "(\w+)"', text[: start.start()]) or start
        depth, end = 1, start.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        parts = [part.split(":", 1) for part in split(text[start.end() : end - 1]) if ":" in part]
        parameters = {name.strip().removeprefix("r#"): of.strip() for name, of in parts if "Python<" not in of}
        result = re.match(r"\s*(?:-> (.*?))?\s*\{", text[end:])[1]
        self.functions.append((file, owner + name[1], parameters, result or "()"))

    def method(self, name, parameters=()):
        """Types of the parameters and the result of a method."""
        return self.converted(parameters, *next((f, p, r) for f, n, p, r in self.functions if n == name))

    def find(self, module, name, parameters):
        """Types of the parameters and the result of a function."""
        file = self.files[module]
        for f, n, of, result in self.functions:
            if (f, n) == (file, name):
                return self.converted(parameters, f, of, result)
        # A macro of its file or of another one makes it, from a function with these parameters; those with a `$` may have any name.
        made = [
            self.converted(parameters, f, dict(zip(parameters, of.values())), result)
            for f, n, of, result in sorted(self.functions, key=lambda of: of[0] != file)
            if n.startswith("$") and len(of) == len(parameters) and all(p in (q, "$second") for p, q in zip(of, parameters))
        ]
        if not made:
            raise LookupError(f"there is no Rust function {name}({', '.join(parameters)}) in {file}.rs")
        return made[0]

    def converted(self, parameters, file, types, result):
        objects = ("Bound<'_, PyAny>", "Bound<'_, PyTuple>", "Py<PyAny>")
        known = {p: TYPES[p] if types[p].lstrip("&") in objects else union(self.type(file, types[p])) for p in parameters}
        return known, "Any" if "PyAny" in result or "PyTuple" in result or "Object" in result else union(self.type(file, result, True))

    def type(self, file, text, result=False):
        """What a type of Rust is in Python, as alternatives."""
        text = re.sub(r"^&|\$?\bcrate::\w+::|<'\w+>|'\w+,? ", "", text).strip()
        text = re.sub(r"^&|\$?\bcrate::\w+::", "", text)
        several = "list" if result else "Sequence"
        if text in SCALARS:
            return [SCALARS[text]]
        for f in (file, "arguments", "axes", "device", "tensor"):
            if text in self.types[f]:
                return [of for variant in self.types[f][text] for of in self.type(f, variant, result)]
        if text.startswith("("):
            return [f"tuple[{self.listed(file, text[1:-1], result)}]"]
        if text.startswith("["):
            return [f"{several}[{self.listed(file, text[1:].rsplit(';')[0], result)}]"]
        if not re.fullmatch(r"(\w+)<(.*)>", text):
            raise LookupError(f"{text!r} in {file}.rs is no known type")
        outer, inner = re.fullmatch(r"(\w+)<(.*)>", text).groups()
        if outer == "BTreeMap":
            return [f"Mapping[{self.listed(file, inner, result)}]"]
        if outer == "Vec":
            return [f"{several}[{self.listed(file, inner, result)}]"]
        return self.type(file, inner, result) + ["None"] * (outer == "Option")

    def listed(self, file, text, result):
        """Several types between brackets."""
        return ", ".join(union(self.type(file, part, result)) for part in split(text))


RUST = Rust(HERE / "src")


class Stub:
    """A stub of a module, line by line."""

    def __init__(self, module):
        self.module = module
        self.lines = []

    def add(self, text, indent):
        self.lines += [" " * indent + line if line else "" for line in text.split("\n")]

    def doc(self, text, indent):
        quotes = 'r"""' if "\\" in text else '"""'
        text = inspect.cleandoc(text)
        self.add(f'{quotes}{text}\n"""' if "\n" in text or text.endswith('"') else f'{quotes}{text}"""', indent)

    def function(self, name, function, owner=""):
        """A function, or a method of a class."""
        first = "self" if owner else None
        if isinstance(function, staticmethod):
            first, function = None, function.__func__
            self.add("@staticmethod", 4)
        function = inspect.unwrap(function)
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())
        if owner and first:
            parameters = parameters[1:]
        names = [p.name for p in parameters]
        if isinstance(function, type(lambda: 0)):
            types = {p.name: TYPES.get(p.name) or type(p.default).__name__ for p in parameters if p.name != "more"}
            result = "Optimizer" if self.module.__name__.endswith("optim") else "Tensor"
        elif getattr(function, "__module__", None) in RUST.files:
            types, result = RUST.find(function.__module__, function.__name__, list(signature.parameters))
        else:
            types, result = RUST.method(f"{owner}.{name}", names)
        result = RESULTS.get(f"{owner}.{name}") or RESULTS.get(name, result) if result in ("Any", "Tensor") else result
        doc = function.__doc__
        variants = VARIANTS.get(f"{owner}.{name}" if f"{owner}.{name}" in VARIANTS else name, [])
        if "return_indices" in names and result == "Tensor | tuple[Tensor, Tensor]":
            variants = _WITH_INDICES
        for changes, of in variants:
            self.add("@overload", 4 * bool(owner))
            self.define(name, first, parameters, types, changes, of, None, owner)
        if variants:
            self.add("@overload", 4 * bool(owner))
        self.define(name, first, parameters, types, {}, result, doc, owner)

    def define(self, name, first, parameters, types, changes, result, doc, owner):
        """A definition. In `changes` are parameters with other types and defaults."""
        written, star, defaults = [first] if first else [], False, False
        for p in parameters:
            if p.kind is p.VAR_KEYWORD:
                written += [f"{more}: {TYPES[more]} = None" for more in MORE]
                continue
            text = changes.get(p.name, types[p.name])
            if p.kind is p.VAR_POSITIONAL:
                each = re.fullmatch(r"Sequence\[(.*)\]", text)
                written.append(f"*{p.name}: {each[1] if each else text}")
                star = True
                continue
            if p.name not in changes and p.default is not p.empty:
                text += f" = {default(p.default)}"
            # After a default, what has none can be given by its name only.
            if not star and (p.kind is p.KEYWORD_ONLY or (defaults and " = " not in text)):
                written.append("*")
                star = True
            defaults |= " = " in text
            written.append(f"{p.name}: {text}")
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            written.insert(len(written) - len(MORE), "*")
        self.signature(name, written, result, doc, owner)

    def signature(self, name, written, result, doc, owner):
        indent = 4 * bool(owner)
        if owner == "Tensor":
            # Methods have these names too.
            written, result = [[re.sub(r"\b(bool|float|int)\b(?!:)", r"_\1", w) for w in of] for of in (written, [result])]
            result = result[0]
        line = f"def {name}({', '.join(written)}) -> {result}:"
        if len(line) + indent > 140:
            line = f"def {name}(\n    " + ",\n    ".join(written) + f",\n) -> {result}:"
        self.add(line if doc else f"{line} ...", indent)
        if doc:
            self.doc(doc, indent + 4)

    def type(self, name, cls):
        """A class with its methods and properties."""
        self.add(f"class {name}:", 0)
        self.doc(cls.__doc__, 4)
        if cls.__text_signature__:
            signature = list(inspect.signature(cls).parameters.values())
            types, _ = RUST.method(f"{name}.new", [p.name for p in signature])
            self.define("__init__", "self", signature, types, {}, "None", None, name)
        special = SPECIAL.get(name, {})
        for method, member in sorted(vars(cls).items()):
            if method == "__array_ufunc__":
                self.add("__array_ufunc__: None", 4)
            elif method.startswith("__"):
                inherited = ("__doc__", "__hash__", "__module__", "__new__", "__repr__")
                comparison = method in ("__eq__", "__ne__")
                if method in inherited or (name == "Graph" and method not in special):
                    continue
                arguments, result = special.get(method, BINARY).split(" -> ")
                doc = member.__doc__ or cls.__doc__
                ignored = "  # type: ignore[override]" if comparison else ""
                self.signature(method, split(arguments[1:-1]), result, None, name)
                self.lines[-1] += ignored
            elif method.startswith("_"):
                continue
            elif inspect.isgetsetdescriptor(member) or isinstance(member, property):
                self.property(name, method, member)
            else:
                self.function(method, member, name)
        self.add("", 0)

    def property(self, owner, name, member):
        native = not isinstance(member, property)
        result = RUST.method(f"{owner}.{name}")[1] if native else "Tensor"
        result = RESULTS.get(f"{owner}.{name}", result)
        self.add("@property", 4)
        self.signature(name, ["self"], result, member.__doc__, owner)
        if any(n == f"{owner}.set_{name}" for _, n, _, _ in RUST.functions):
            self.add(f"@{name}.setter", 4)
            self.signature(name, ["self", f"value: {result}"], "None", None, owner)


def default(value):
    """A default as Python writes it."""
    if value is ... or value in (math.inf, -math.inf):
        return "..."
    return f'"{value}"' if isinstance(value, str) else repr(value)


def used(text, names):
    """Which of the names a text has."""
    return sorted(name for name in names if re.search(rf"\b{name}\b", text))


def stub(name):
    """The text of the stub of a module."""
    module = importlib.import_module(f"dittograd.{name}".rstrip("."))
    made = Stub(module)
    classes = {"": CLASSES, "optim": ["Optimizer"]}.get(name, [])
    for each in classes:
        made.type(each, getattr(module, each))
    for each, function in sorted(vars(module).items()):
        if callable(function) and not isinstance(function, type) and not each.startswith("_"):
            made.function(each, function)
    body = "\n".join(made.lines) + "\n"
    code = re.sub(r'r?""".*?"""', "", body, flags=re.S)

    imports = []
    for source, names in IMPORTS.items():
        imports += [f"from {source} import {', '.join(found)}"] if (found := used(code, names)) else []
    imports += ["import numpy as np"] if "np." in code else []
    imports += [f"from builtins import {', '.join(f'{t} as _{t}' for t in ('bool', 'float', 'int'))}"] if not name else []
    dots = "." * (1 + name.count("."))
    for source, names in {"": CLASSES if name else [], "optim": ["Optimizer"] if not name else [], "_results": RESULTS_CLASSES}.items():
        imports += [f"from {dots}{source} import {', '.join(found)}"] if (found := used(code, names)) else []
    imports += [f"from . import {', '.join(f'{m} as {m}' for m in SUBMODULES)}"] if not name else []
    header = [HEADER, f'"""{inspect.cleandoc(module.__doc__)}\n"""', *imports]
    return "\n".join(header) + "\n\n" + body


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    stale = []
    for name in MODULES:
        path = HERE / "dittograd" / (f"{name.replace('.', '/')}.pyi" if name else "__init__.pyi")
        text = stub(name)
        if not path.exists() or path.read_text() != text:
            stale.append(path.name)
            if not check:
                path.write_text(text)
    if check and stale:
        sys.exit(f"{', '.join(stale)}: not what stubs.py writes; run python -P stubs.py")


if __name__ == "__main__":
    main()
