"""Functions of images: convolution, pooling, resizing, patches."""

import dittograd as dg

from .table import alike, lowering

F = dg.nn.functional

alike("pixel_shuffle pixel_unshuffle channel_shuffle")
alike("native_channel_shuffle", F.channel_shuffle)
alike("grid_sampler_2d grid_sampler_3d")
alike("grid_sampler", lambda x, *rest: (dg.grid_sampler_2d if x.ndim == 4 else dg.grid_sampler_3d)(x, *rest))
alike("affine_grid_generator", F.affine_grid)

for _rank, _transposed in ((1, "default"), (2, "input"), (3, "input")):
    alike(f"conv{_rank}d")
    alike(f"conv{_rank}d", overload="padding")
    alike(f"conv_transpose{_rank}d", overload=_transposed)
    alike(f"max_pool{_rank}d adaptive_avg_pool{_rank}d")
    # With the positions.
    alike(f"max_pool{_rank}d_with_indices", getattr(F, f"max_pool{_rank}d_with_indices"))
    if _rank > 1:
        alike(f"_adaptive_avg_pool{_rank}d", getattr(F, f"adaptive_avg_pool{_rank}d"))


@lowering("convolution.default", "_convolution.default")
def _convolution(c, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups, *_):
    rank = weight.ndim - 2
    if transposed:
        return getattr(F, f"conv_transpose{rank}d")(x, weight, bias, stride, padding, output_padding, groups, dilation)
    return getattr(F, f"conv{rank}d")(x, weight, bias, stride, padding, dilation, groups)


def _average(rank):
    function = getattr(F, f"avg_pool{rank}d")

    def run(c, x, kernel, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
        more = [] if rank == 1 else [divisor_override]
        return function(x, kernel, stride or None, padding, ceil_mode, count_include_pad, *more)

    return run


def _adaptive_max(rank):
    function = getattr(F, f"adaptive_max_pool{rank}d")
    return lambda c, x, size: function(x, size, True)


for _rank in (1, 2, 3):
    lowering(f"avg_pool{_rank}d.default")(_average(_rank))
    lowering(f"adaptive_max_pool{_rank}d.default")(_adaptive_max(_rank))


@lowering("max_unpool2d.default")
def _max_unpool2d(c, x, indices, size):
    return F.max_unpool2d(x, indices, [1, 1], output_size=list(size))


def _resize(mode, align=None):
    """Resizing: by factors if they are given, which differs from the sizes where these were rounded."""

    def by_list(c, x, output_size, *rest):
        corners, factors = (rest if align else (None, *rest))
        return resized(c, x, output_size, corners, factors)

    def by_numbers(c, x, output_size, *rest, **named):
        rest = [*rest, *named.values()]
        corners, factors = (rest[0], rest[1:]) if align else (None, rest)
        factors = list(factors)
        return resized(c, x, output_size, corners, factors if factors and None not in factors else None)

    def resized(c, x, output_size, corners, factors):
        if factors:
            return F.interpolate(x, scale_factor=[float(f) for f in factors], mode=mode, align_corners=corners)
        return F.interpolate(x, size=list(c.val.shape[2:]), mode=mode, align_corners=corners)

    return by_list, by_numbers


for _name, _mode, _align in (
    ("upsample_nearest1d", "nearest", False),
    ("upsample_nearest2d", "nearest", False),
    ("upsample_nearest3d", "nearest", False),
    ("_upsample_nearest_exact1d", "nearest-exact", False),
    ("_upsample_nearest_exact2d", "nearest-exact", False),
    ("_upsample_nearest_exact3d", "nearest-exact", False),
    ("upsample_linear1d", "linear", True),
    ("upsample_bilinear2d", "bilinear", True),
    ("upsample_trilinear3d", "trilinear", True),
    ("upsample_bicubic2d", "bicubic", True),
):
    _by_list, _by_numbers = _resize(_mode, _align)
    lowering(f"{_name}.vec")(_by_list)
    lowering(f"{_name}.default")(_by_numbers)


@lowering("_upsample_bilinear2d_aa.default", "_upsample_bilinear2d_aa.vec")
def _antialiased(c, x, output_size, corners, *_):
    return F.interpolate(x, size=list(c.val.shape[2:]), mode="bilinear", align_corners=corners, antialias=True)


@lowering("_upsample_bicubic2d_aa.default", "_upsample_bicubic2d_aa.vec")
def _antialiased_cubic(c, x, output_size, corners, *_):
    return F.interpolate(x, size=list(c.val.shape[2:]), mode="bicubic", align_corners=corners, antialias=True)


@lowering("im2col.default")
def _im2col(c, x, kernel, dilation, padding, stride):
    return F.unfold(x, kernel, dilation, padding, stride)


@lowering("col2im.default")
def _col2im(c, x, size, kernel, dilation, padding, stride):
    return F.fold(x, size, kernel, dilation, padding, stride)
