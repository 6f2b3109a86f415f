"""`x[…]` of tensors: slices, numbers, `None`, `...`, indices and masks, as in PyTorch. A tensor of truth values or numbers is a mask."""

import numpy as np

from ._native import Tensor, indexing


def _is_mask(item):
    if isinstance(item, Tensor):
        return item.dtype != "uint32"
    return isinstance(item, (list, np.ndarray)) and np.asarray(item).dtype.kind == "b"


def _axes(item):
    """How many axes of the tensor an item is about."""
    if item is None or item is Ellipsis:
        return 0
    return len(np.shape(item)) if _is_mask(item) else 1


def _indices(x, axis, item):
    """The tensors of indices that a tensor, list or array stands for, along axes from this one."""
    if _is_mask(item):
        shape = tuple(np.shape(item))
        if not shape or shape != x.shape[axis : axis + len(shape)]:
            raise IndexError(f"a mask of shape {shape} at axis {axis} of a tensor of shape {x.shape}")
    if isinstance(item, Tensor):
        return item.nonzero(as_tuple=True) if _is_mask(item) else [item]
    arrays = np.asarray(item).nonzero() if _is_mask(item) else [np.asarray(item, dtype=np.int64)]
    found = []
    for size, array in zip(x.shape[axis:], arrays):
        if array.size and not -size <= array.min() <= array.max() < size:
            raise IndexError(f"indices {item} are not in an axis of {size} elements")
        array = np.where(array < 0, array + size, array)
        found.append(indexing._indices(x, array.ravel().tolist(), array.shape))
    return found


def _getitem(x, key):
    items = list(key) if isinstance(key, tuple) else [key]
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index has at most one ...")
    missing = x.ndim - sum(map(_axes, items))
    if missing < 0:
        raise IndexError(f"{x.ndim - missing} indices for a tensor of {x.ndim} axes")
    for at in dots:
        items[at : at + 1] = [slice(None)] * missing

    axis, taken = 0, []
    for item in items:
        if item is None:
            x = x.unsqueeze(axis)
            axis += 1
        elif isinstance(item, slice):
            start, stop, step = item.indices(x.shape[axis])
            if step < 0:
                raise ValueError("steps of slices must be positive; use flip")
            if (start, stop, step) != (0, x.shape[axis], 1):
                x = x.slice(axis, start, stop, step)
            axis += 1
        elif isinstance(item, (Tensor, list, np.ndarray)):
            found = _indices(x, axis, item)
            taken += enumerate(found, axis)
            axis += len(found)
        elif hasattr(item, "__index__") and not isinstance(item, bool):
            number = item.__index__()
            if not -x.shape[axis] <= number < x.shape[axis]:
                raise IndexError(f"{number} is not in an axis of {x.shape[axis]} elements")
            x = x.select(axis, number)
        else:
            raise TypeError(f"{item!r} is no index; use a number, a slice, None, ..., a list or a tensor")
    return indexing._take(x, [axis for axis, _ in taken], [index for _, index in taken]) if taken else x


Tensor.__getitem__ = _getitem
Tensor.__iter__ = lambda self: iter(self.unbind(0))
