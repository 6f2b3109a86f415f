"""Functions that look up and place elements by index or mask."""

import dittograd as dg
import torch

from .table import alike, is_dynamic, lowering, number, plain, truth

F = dg.nn.functional


@lowering("embedding.default")
def _embedding(c, weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    indices = c.index(indices, weight.shape[0])
    return F.embedding(indices, weight, padding_idx if padding_idx >= 0 else None, scale_grad_by_freq=scale_grad_by_freq)


@lowering("one_hot.default", refuse=lambda out, x, classes=-1: None if classes >= 0 else "give num_classes: it decides the shape")
def _one_hot(c, x, classes=-1):
    return F.one_hot(c.index(x, classes), classes)


@lowering("index_select.default")
def _index_select(c, x, dim, index):
    return dg.index_select(x, dim, c.index(index, _size(x, dim)))


@lowering("gather.default", constants="known")
def _gather(c, x, dim, index, *, sparse_grad=False):
    x = c.tensor(x) if isinstance(x, torch.Tensor) else x
    return dg.gather(x, dim, c.index(index, _size(x, dim)))


@lowering("take_along_dim.default")
def _take_along_dim(c, x, indices, dim=None):
    return dg.take_along_dim(x, c.index(indices, _size(x, dim)), dim)


@lowering("take.default")
def _take(c, x, index):
    return dg.take(x, c.index(index, x.numel()))


def _size(x, dim):
    return x.numel() if dim is None else x.shape[dim] if x.ndim else 1


def _no_mask(out, x, indices, *_, **__):
    dynamic = [i for i in indices if i is not None and hasattr(i, "fake_mode")]
    if any(i.dtype in (torch.bool, torch.uint8) for i in dynamic):
        return "a mask that is not a constant decides the shape; use torch.where"
    return None


def _positions(c, x, indices):
    """Indices of the axes that have any: constants count from 0 and are no masks."""
    axis, found = 0, []
    for index in indices:
        if index is None:
            found.append(None)
        elif is_dynamic(index):
            found.append(c.index(index, x.shape[axis]))
        elif index.dtype == torch.bool:
            found += [c.tensor(at) for at in index.nonzero(as_tuple=True)]
        else:
            found.append(c.tensor(index % x.shape[axis]))
        axis = len(found)
    return found


@lowering("index.Tensor", "_unsafe_index.Tensor", constants="known", refuse=_no_mask)
def _index(c, x, indices):
    x = c.tensor(x) if isinstance(x, torch.Tensor) else x
    return x[tuple(slice(None) if i is None else i for i in _positions(c, x, indices))]


def _mask_of_one_value(out, x, indices, values, *_):
    if _no_mask(out, x, indices) and (len(indices) > 1 or values.numel() > 1):
        return "a mask that is not a constant takes one value only; use torch.where"
    return None


@lowering("index_put.default", "_unsafe_index_put.default", constants="known", refuse=_mask_of_one_value)
def _index_put(c, x, indices, values, accumulate=False):
    x, values = [c.numbers(v) if isinstance(v, torch.Tensor) else plain(number(v)) for v in (x, values)]
    if is_dynamic(indices[0]) and c.types[1][0].meta["val"].dtype == torch.bool:
        mask = truth(indices[0])
        mask = mask.reshape(list(mask.shape) + [1] * (x.ndim - mask.ndim)).expand(list(x.shape))
        values = values.reshape([1] * x.ndim)
        return dg.where(mask, x + values if accumulate else values.expand(list(x.shape)), x)
    found = _positions(c, x, indices)
    places = [axis for axis, index in enumerate(found) if index is not None]
    rest = [axis for axis in range(x.ndim) if axis not in places]
    given = [found[axis] for axis in places]
    # What is indexed comes first, also in the values, unless the axes are not neighbours, where it does in PyTorch too.
    count = max(index.ndim for index in given)
    shape = list(torch.broadcast_shapes(*[tuple(index.shape) for index in given]))
    before = places[0] if places == list(range(places[0], places[-1] + 1)) else 0
    sizes = [x.shape[axis] for axis in rest]
    values = values.expand(sizes[:before] + shape + sizes[before:])
    values = values.permute(list(range(before, before + count)) + list(range(before)) + list(range(before + count, values.ndim)))
    order = places + rest
    y = dg.index_put(x.permute(order), given, values, accumulate)
    return y.permute([order.index(axis) for axis in range(x.ndim)])


@lowering("scatter.src", "scatter.value", constants="known")
def _scatter(c, x, dim, index, src):
    x, index, src = _scattered(c, x, dim, index, src)
    return dg.scatter(x, dim, index, src)


@lowering("scatter.reduce", "scatter.value_reduce", constants="known")
def _scatter_with(c, x, dim, index, src, *, reduce):
    x, index, src = _scattered(c, x, dim, index, src)
    return dg.scatter(x, dim, index, src, reduce=reduce)


@lowering("scatter_add.default", constants="known")
def _scatter_add(c, x, dim, index, src):
    return dg.scatter_add(*(lambda x, index, src: (x, dim, index, src))(*_scattered(c, x, dim, index, src)))


@lowering("scatter_reduce.two", constants="known")
def _scatter_reduce(c, x, dim, index, src, reduce, *, include_self=True):
    x, index, src = _scattered(c, x, dim, index, src)
    return dg.scatter_reduce(x, dim, index, src, reduce, include_self=include_self)


def _scattered(c, x, dim, index, src):
    x, src = [c.numbers(v) if isinstance(v, torch.Tensor) else plain(number(v)) if is_dynamic(v) else v for v in (x, src)]
    index = c.index(index, _size(x, dim))
    if is_dynamic(src) and src.shape != index.shape:
        # Only the first elements of the source count.
        for axis, size in enumerate(index.shape):
            src = src.narrow(axis, 0, size)
    return x, index, src


@lowering("index_add.default")
def _index_add(c, x, dim, index, source, *, alpha=1):
    return dg.index_add(x, dim, c.index(index, _size(x, dim)), source, alpha=alpha)


@lowering("index_copy.default")
def _index_copy(c, x, dim, index, source):
    return dg.index_copy(x, dim, c.index(index, _size(x, dim)), source)


@lowering("index_fill.int_Scalar", "index_fill.int_Tensor")
def _index_fill(c, x, dim, index, value):
    return dg.index_fill(x, dim, c.index(index, _size(x, dim)), value)


alike("put")
