"""What `opinfo.py` compares, a file for each family of functions. Each file has

ENTRIES: entries of PyTorch's table whose name is not the path of our function, with the path, or with a function that calls ours.
NOT_HERE: entries that are not here, with the reason.
RULES: what is special about comparing an entry, or all variants of a name:
    `rtol`, `atol`: the tolerance, relative to an element and the largest one, and the floor, relative to the largest one if that is below 1
    `cancels`: the floor is not relative; for small differences of large terms
    `noise`: differences of gradients that do not count, for gradients that are 0 but for rounding
    `zero`: values of PyTorch up to here count as 0
    `orders`: the orders of gradients to compare, 2 without this
    `random`: only shapes are compared
    `dtype`: `torch.complex128` if samples of complex numbers are compared too; they become pairs
    `minus_one`: the index that stands for -1
    `sample(inputs, kwargs, Skip)`: may change the sample, or raise `Skip(reason)`
    `results(ours, theirs)`: picks what to compare
    `theirs`: a function in place of PyTorch's
CONVENTIONS: entries with what differs by intention.
"""

from . import algebra, elementwise, layers, losses, reductions, shapes


def _all(name):
    found = {}
    for family in (elementwise, reductions, shapes, algebra, layers, losses):
        for entry, value in getattr(family, name, {}).items():
            if entry in found:
                raise KeyError(f"{entry} is in {name} of two families")
            found[entry] = value
    return found


ENTRIES, NOT_HERE, RULES, CONVENTIONS = map(_all, ("ENTRIES", "NOT_HERE", "RULES", "CONVENTIONS"))
