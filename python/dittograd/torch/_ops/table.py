"""The table of operations: which function runs for each ATen overload, and what it is given."""

import operator
from dataclasses import dataclass
from typing import Callable

import dittograd as dg
import numpy as np
import torch
from torch.utils import _pytree as pytree

TABLE = {}


@dataclass(frozen=True)
class Lowering:
    """How one overload runs."""

    run: Callable
    # What constants are given as: "tensors" of the session; "numbers", where a constant without axes is a Python number and integers are
    # float32; "known", PyTorch's tensors as they are.
    constants: str
    # Says why a call cannot run, or None. It gets the result's type, and the arguments as types or constants.
    refuse: Callable | None
    # Whether it can take and return complex values, which are pairs.
    complex: bool


def lowering(*names, constants="tensors", refuse=None, complex=False):
    """Declares what runs for overloads: `add.Tensor` is `aten.add.Tensor`; other namespaces are written out, as in `mylib.add.default`.

    The function gets a `Call` and then the arguments of the overload.
    """

    def register(function):
        for name in names:
            TABLE[full_name(name)] = Lowering(function, constants, refuse, complex)
        return function

    return register


def full_name(name):
    return name if name.count(".") == 2 else f"aten.{name}"


def alike(names, function=None, overload="default", numbers=False, **options):
    """Declares overloads whose arguments are those of the dittograd function of the same name, or of `function`."""
    for name in names.split():
        _declare_alike(f"{name}.{overload}", function or getattr(dg, name, None) or getattr(dg.nn.functional, name), numbers, options)


def _declare_alike(name, target, numbers, options):
    def run(c, *args, **kwargs):
        if numbers:
            args = [number(a) for a in args]
        return target(*args, **without_types(kwargs))

    lowering(name, **options)(run)


class Call:
    """One operation while a program runs."""

    def __init__(self, session, uploads, node):
        self.session = session
        self._uploads = uploads
        self._node = node
        # The type of the result, or of the results, and those of the arguments.
        self.val = node.meta.get("val")
        self.types = [a.meta.get("val") if isinstance(a, torch.fx.Node) else a for a in node.args]
        # Which of several results are used.
        self.used = {user.args[1] for user in node.users if user.target is operator.getitem}

    def tensor(self, constant):
        """A constant in the session: once per run of the program."""
        return self._uploaded(constant, "tensor", to_array)

    def numbers(self, constant):
        """A constant as numbers: integers become float32."""
        return self._uploaded(constant, "numbers", lambda t: to_array(t if t.is_complex() else t.float()))

    def _uploaded(self, constant, kind, array):
        key = (id(constant), kind)
        if key not in self._uploads:
            # With the constant, so that no other object gets its id.
            self._uploads[key] = constant, self.session.constant(array(constant))
        return self._uploads[key][1]

    @property
    def labels(self):
        """Whether the result is integers that are never computed with, but are labels of losses or compared."""
        return are_labels(self._node)

    def integers(self, values):
        """Integers of one kind: indices if all are and none is negative but as a label, else numbers."""
        dynamic = [x for x in values if is_dynamic(x)]
        known = [x if isinstance(x, torch.Tensor) else torch.tensor(x) for x in values if not is_dynamic(x)]
        negative = any(x.numel() and x.min() < 0 for x in known)
        as_indices = dynamic and all(x.dtype == "uint32" for x in dynamic) and (not negative or self.labels)
        known = iter([self.tensor(x) if as_indices else self.numbers(x) for x in known])
        return [(x if as_indices else plain(number(x))) if is_dynamic(x) else next(known) for x in values]

    def index(self, x, below):
        """Whole numbers as indices below a bound. It reads no value, so it can be recorded."""
        if isinstance(x, torch.Tensor):
            return self.tensor(x)
        if x.dtype == "uint32":
            return x
        if below <= 1:
            return dg.argmax(x.unsqueeze(-1), -1)
        bounds = self.session.arange(0.5, below - 0.5, 1.0)
        return dg.bucketize(x, bounds)


def to_array(tensor):
    """A PyTorch tensor as a NumPy array that sessions and programs take.

    Numbers become float32, complex numbers pairs, integers indices. A negative integer stands for itself plus 2^32: as a label, such as
    PyTorch's -100, it is none of the classes.
    """
    tensor = tensor.detach().cpu()
    if tensor.dtype is torch.float32 and not tensor.is_neg():
        return tensor.numpy()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_floating_point():
        return tensor.resolve_neg().float().numpy()
    if tensor.dtype == torch.bool:
        return tensor.numpy()
    array = tensor.to(torch.int64).numpy()
    if array.size and not -(2**31) <= array.min() <= array.max() < 2**32:
        raise ValueError(f"integers from {array.min()} to {array.max()} do not fit 32 bits")
    return array.astype(np.uint32)


def upload(session, tensor):
    """A PyTorch tensor as a tensor of a session."""
    return session.tensor(to_array(tensor))


def wrapped(number):
    """An integer as the index that stands for it."""
    return int(number) % 2**32


def is_dynamic(x):
    return isinstance(x, dg.Tensor)


def number(x):
    """Numbers to compute with: indices become float32."""
    return x.float() if is_dynamic(x) and x.dtype == "uint32" else x


def plain(x):
    """Numbers that are no longer truth values."""
    return dg.positive(x) if x.dtype == "bool" else x


def truth(x):
    """Truth values of numbers or indices."""
    return x if x.dtype == "bool" else dg.ne(x, 0)


def without_types(kwargs):
    """Keyword arguments without those that say nothing here: the element type, the device and the order in memory."""
    dropped = ("dtype", "device", "layout", "pin_memory", "memory_format", "non_blocking", "generator")
    return {name: value for name, value in kwargs.items() if name not in dropped}


def is_integer(dtype):
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


# What keeps integers as they are, or compares them: here a negative integer can stand for a label that is left out.
_KEEPS_LABELS = set(
    """
    view _unsafe_view reshape flatten squeeze unsqueeze expand permute transpose t slice select narrow pad constant_pad_nd cat stack split
    split_with_sizes chunk unbind clone alias contiguous detach _to_copy eq ne where masked_fill cross_entropy_loss nll_loss nll_loss_nd
    nll_loss2d nll_loss_forward nll_loss2d_forward
    """.split()
)


def are_labels(node, seen=None):
    """Whether the integers of a node are never computed with."""
    seen = set() if seen is None else seen
    if node in seen:
        return True
    seen.add(node)
    for user in node.users:
        if user.op == "output":
            continue
        if user.target is not operator.getitem and str(user.target).removeprefix("aten.").split(".")[0] not in _KEEPS_LABELS:
            return False
        results = pytree.tree_leaves(user.meta.get("val"))
        if any(isinstance(v, torch.Tensor) and is_integer(v.dtype) for v in results) and not are_labels(user, seen):
            return False
    return True


def axes(dim, rank):
    """Axes counted from 0, all if none is named."""
    if dim is None or dim == []:
        return list(range(rank))
    return [d % rank if rank else 0 for d in ([dim] if isinstance(dim, int) else dim)]


REDUCTIONS = ("none", "mean", "sum")
