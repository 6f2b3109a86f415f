"""Functions that move, join, cut and repeat elements."""

import dittograd as dg
import torch

from .table import alike, is_integer, lowering, number, plain

F = dg.nn.functional

def _sizes(c):
    """The shape of the result; that of complex values has an axis more."""
    return [*c.val.shape, 2] if c.val.dtype.is_complex else list(c.val.shape)


@lowering(
    "view.default", "_unsafe_view.default", "reshape.default", "view_copy.default", "flatten.using_ints",
    "unflatten.int", "squeeze.default", "squeeze.dim", "squeeze.dims", "unsqueeze.default", "view_as.default", "reshape_as.default",
    "ravel.default", "squeeze_copy.default", "unsqueeze_copy.default", "atleast_1d.default", "atleast_2d.default",
    "atleast_3d.default", complex=True,
)  # fmt: skip
def _reshape(c, x, *_, **__):
    return x.reshape(_sizes(c))


@lowering("expand.default", "expand_copy.default", "expand_as.default", "broadcast_to.default", complex=True)
def _expand(c, x, *_, **__):
    sizes = _sizes(c)
    if c.val.dtype.is_complex:
        # New axes come before the pair.
        x = x.reshape([1] * (len(sizes) - x.ndim) + list(x.shape))
    return x.expand(sizes)


@lowering("permute.default", "permute_copy.default", complex=True)
def _permute(c, x, dims):
    rank = len(dims)
    dims = [d % rank for d in dims]
    return x.permute(dims + [rank] if c.val.dtype.is_complex else dims)


@lowering("transpose.int", "transpose_copy.int", "swapaxes.default", "swapdims.default", complex=True)
def _transpose(c, x, a, b):
    rank = len(c.val.shape)
    return x.transpose(a % rank, b % rank) if rank else x


@lowering("t.default", "t_copy.default", "mT.default", "mH.default")
def _t(c, x):
    return x.transpose(-2, -1) if x.ndim > 1 else x


@lowering("numpy_T.default")
def _reversed(c, x):
    return x.permute(list(reversed(range(x.ndim))))


alike("movedim", overload="int")
alike("movedim", overload="intlist")
alike("flip roll rot90 tile fliplr flipud unfold diagonal_scatter diag diag_embed diagflat diagonal block_diag cartesian_prod combinations")
alike("diagonal_copy", dg.diagonal)
alike("unfold_copy", dg.unfold)


def _triangular(function):
    def run(c, x, diagonal=0):
        return function(plain(x), diagonal)

    return run


lowering("tril.default")(_triangular(dg.tril))
lowering("triu.default")(_triangular(dg.triu))


@lowering("repeat.default")
def _repeat(c, x, repeats):
    return x.repeat(list(repeats))


@lowering("repeat_interleave.self_int")
def _repeat_interleave(c, x, repeats, dim=None, *, output_size=None):
    return dg.repeat_interleave(x, repeats, dim)


def _known_repeats(out, x, repeats, *_, **__):
    return None if isinstance(repeats, torch.Tensor) and not _is_fake(repeats) else "the counts must be constants: they decide the shape"


def _is_fake(x):
    return hasattr(x, "fake_mode")


@lowering("repeat_interleave.self_Tensor", constants="known", refuse=_known_repeats)
def _repeat_interleave_by(c, x, repeats, dim=None, *, output_size=None):
    return dg.repeat_interleave(x, repeats.tolist(), dim)


@lowering("slice.Tensor", "slice_copy.Tensor", complex=True)
def _slice(c, x, dim=0, start=None, end=None, step=1):
    rank = len(c.val.shape)
    return x if tuple(_sizes(c)) == x.shape else x.slice(dim % rank, start, None if end is None else min(end, 2**40), step)


@lowering("select.int", "select_copy.int", complex=True)
def _select(c, x, dim, index):
    return x.select(dim % (len(c.val.shape) + 1), index)


@lowering("narrow.default", "narrow_copy.default")
def _narrow(c, x, dim, start, length):
    return x.narrow(dim, start, length)


@lowering("slice_scatter.default", constants="tensors")
def _slice_scatter(c, x, src, dim=0, start=None, end=None, step=1):
    return dg.slice_scatter(plain(x), plain(src), dim, start, None if end is None else min(end, 2**40), step)


@lowering("select_scatter.default")
def _select_scatter(c, x, src, dim, index):
    return dg.select_scatter(plain(x), plain(src), dim, index)


@lowering("cat.default", "concat.default", "concatenate.default", constants="known", complex=True)
def _cat(c, tensors, dim=0):
    return dg.cat(_of_type(c, [x for x in tensors if list(x.shape) != [0]]), dim % max(len(c.val.shape), 1))


@lowering("stack.default", constants="known", complex=True)
def _stack(c, tensors, dim=0):
    return dg.stack(_of_type(c, tensors), dim % len(c.val.shape))


def _of_type(c, tensors):
    """Tensors whose elements become those of one tensor."""
    if is_integer(c.val.dtype):
        return c.integers(tensors)
    if c.val.dtype == torch.bool:
        return [c.tensor(x) if isinstance(x, torch.Tensor) else x for x in tensors]
    return [c.numbers(x) if isinstance(x, torch.Tensor) else number(x) for x in tensors]


alike("hstack vstack dstack column_stack")


@lowering("split.Tensor", "split_copy.Tensor", "unsafe_split.Tensor", complex=True)
def _split(c, x, size, dim=0):
    return dg.split(x, size, dim % len(c.val[0].shape))


@lowering(
    "split_with_sizes.default", "split.sizes", "split_with_sizes_copy.default", "unsafe_split_with_sizes.default", complex=True,
)  # fmt: skip
def _split_with_sizes(c, x, sizes, dim=0):
    return dg.split_with_sizes(x, list(sizes), dim % len(c.val[0].shape))


@lowering("chunk.default", "unsafe_chunk.default", complex=True)
def _chunk(c, x, chunks, dim=0):
    return dg.chunk(x, chunks, dim % len(c.val[0].shape))


@lowering("tensor_split.sections", "tensor_split.indices")
def _tensor_split(c, x, places, dim=0):
    return dg.tensor_split(x, places if isinstance(places, int) else list(places), dim)


@lowering("unbind.int", "unbind_copy.int", complex=True)
def _unbind(c, x, dim=0):
    return dg.unbind(x, dim % (len(c.val[0].shape) + 1))


@lowering("meshgrid.default", "meshgrid.indexing")
def _meshgrid(c, tensors, indexing="ij"):
    return dg.meshgrid(*tensors, indexing=indexing)


@lowering("broadcast_tensors.default")
def _broadcast_tensors(c, tensors):
    return dg.broadcast_tensors(*tensors)


@lowering("pad.default", "constant_pad_nd.default")
def _pad(c, x, pad, mode="constant", value=None):
    if not isinstance(mode, str):
        mode, value = "constant", mode
    pad = [int(n) for n in pad]
    if x.dtype == "uint32" and mode == "constant" and ((value or 0) >= 0 or c.labels):
        return _padded_indices(c, x, pad, int(value or 0))
    # Truth values become numbers on the way.
    return F.pad(plain(number(x)), pad, mode, float(value) if value is not None else None)


def _padded_indices(c, x, pad, value):
    for at in range(len(pad) // 2):
        axis, size = x.ndim - 1 - at, list(x.shape)
        parts = [x]
        for where, count in enumerate(pad[2 * at : 2 * at + 2]):
            if count > 0:
                block = torch.full([*size[:axis], count, *size[axis + 1 :]], value)
                parts.insert(where * len(parts), c.session.constant((block % 2**32).numpy()))
        x = dg.cat(parts, axis) if len(parts) > 1 else x
        low, high = [max(-n, 0) for n in pad[2 * at : 2 * at + 2]]
        if low or high:
            x = x.narrow(axis, low, x.shape[axis] - low - high)
    return x


for _rank in (1, 2, 3):
    lowering(f"reflection_pad{_rank}d.default")(lambda c, x, pad: F.pad(x, list(pad), "reflect"))
    lowering(f"replication_pad{_rank}d.default")(lambda c, x, pad: F.pad(x, list(pad), "replicate"))
