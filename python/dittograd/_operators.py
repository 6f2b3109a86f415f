"""Operators of tensors: `a + b`, `x[i]`, and the like."""

from __future__ import annotations

import numbers

import numpy as np

from ._native import Session, Tensor, elementwise, indexing, products


def _operator(function, swapped=False):
    """A method for an operator. What is neither a tensor nor a number is left to the other operand."""

    def method(self: Tensor, other: Tensor | float) -> Tensor:
        if not isinstance(other, (Tensor, numbers.Real)):
            return NotImplemented
        return function(other, self) if swapped else function(self, other)

    method.__doc__ = function.__doc__
    return method


for _name, _function in {
    "add": elementwise.add,
    "sub": elementwise.sub,
    "mul": elementwise.mul,
    "truediv": elementwise.div,
    "floordiv": elementwise.floor_divide,
    "mod": elementwise.remainder,
    "pow": elementwise.pow,
    "matmul": products.matmul,
    # Of truth values, which are 0 and 1.
    "and": elementwise.logical_and,
    "or": elementwise.logical_or,
    "xor": elementwise.logical_xor,
}.items():
    setattr(Tensor, f"__{_name}__", _operator(_function))
    setattr(Tensor, f"__r{_name}__", _operator(_function, swapped=True))

for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Tensor, f"__{_name}__", _operator(getattr(elementwise, _name)))

Tensor.__neg__ = lambda self: elementwise.neg(self)
Tensor.__pos__ = lambda self: self
Tensor.__abs__ = lambda self: elementwise.abs(self)
Tensor.__invert__ = lambda self: elementwise.logical_not(self)
# `==` compares elements; tensors stay what they are as keys.
Tensor.__hash__ = object.__hash__
# NumPy leaves operators with tensors to them.
Tensor.__array_ufunc__ = None

# Of tensors with one element.
Tensor.__bool__ = lambda self: bool(self.item())
Tensor.__float__ = lambda self: float(self.item())
Tensor.__int__ = lambda self: int(self.item())


def _float(self: Tensor) -> Tensor:
    """Indices as numbers; numbers as they are."""
    return elementwise._float(self) if self.dtype == "uint32" else self


def _long(self: Tensor) -> Tensor:
    """Numbers as indices, rounded towards zero; indices as they are. Waits for the device."""
    return self if self.dtype == "uint32" else elementwise._long(elementwise.trunc(self))


def _bool(self: Tensor) -> Tensor:
    """1 where an element is not 0, else 0."""
    return elementwise.ne(self, 0)


def _contiguous(self: Tensor) -> Tensor:
    """The tensor itself: its elements are always next to each other."""
    return self


def _where(self: Tensor, condition: Tensor, other: Tensor | float) -> Tensor:
    """This tensor where `condition` is true, else `other`."""
    return indexing.where(condition, self, other)


def _polygamma(self: Tensor, n: int) -> Tensor:
    """Derivative number `n` of `digamma`."""
    return elementwise.polygamma(n, self)


# Names of types in Python are methods only.
Tensor.float, Tensor.long, Tensor.int, Tensor.bool = _float, _long, _long, _bool
Tensor.contiguous, Tensor.where, Tensor.polygamma = _contiguous, _where, _polygamma


def _array(self, dtype=None, copy=None):
    """The tensor as a NumPy array: a copy, or with `copy=False` its memory, for reading."""
    if copy is False:
        array = np.from_dlpack(self, copy=False)
        if dtype is not None and dtype != array.dtype:
            raise ValueError(f"the tensor holds {array.dtype}; as {np.dtype(dtype)} it is a copy")
        return array
    array = self.numpy()
    return array if dtype is None else array.astype(dtype, copy=False)


def _session(self) -> Session:
    """The session that it belongs to."""
    return Session._of(self)


Tensor.session = property(_session)
Tensor.__array__ = _array
