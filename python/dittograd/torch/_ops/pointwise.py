"""Functions of each element."""

import dittograd as dg
import torch

from .spectral import magnitude, product, total
from .table import alike, is_dynamic, is_integer, lowering, number, plain, truth, wrapped

F = dg.nn.functional

alike(
    "acos acosh asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 floor frac i0 lgamma log log10 log1p "
    "log2 neg rad2deg reciprocal rsqrt sigmoid sign sgn sin sinc sinh sqrt square tan tanh trunc "
    "isfinite isinf isnan isneginf isposinf logical_not signbit "
    "relu relu6 selu silu mish hardswish hardsigmoid",
    numbers=True,
)


@lowering("abs.default", complex=True)
def _abs(c, x):
    return magnitude(c, x) if c.types[0].dtype.is_complex else dg.abs(number(x))


alike("leaky_relu celu hardtanh hardshrink softshrink threshold prelu glu logit nan_to_num clamp clamp_min clamp_max", numbers=True)
alike("clamp clamp_min clamp_max", overload="Tensor", numbers=True, constants="numbers")
alike("log_sigmoid", F.logsigmoid)
alike("special_entr", dg.special.entr)
alike("special_erfcx", dg.special.erfcx)
alike("special_i0e", dg.special.i0e)
alike("special_i1", dg.special.i1)
alike("special_i1e", dg.special.i1e)
alike("special_log_ndtr", dg.special.log_ndtr)
alike("special_ndtri", dg.special.ndtri)
alike("special_xlog1py", dg.special.xlog1py, constants="numbers")
alike("fmax fmin maximum minimum atan2 heaviside hypot logaddexp logaddexp2", numbers=True, constants="numbers")
for _overload in ("Tensor", "Scalar"):
    alike("fmod remainder copysign", overload=_overload, numbers=True, constants="numbers")
for _overload in ("Tensor", "Scalar_Other", "Scalar_Self"):
    alike("xlogy", overload=_overload, numbers=True, constants="numbers")
for _overload in ("Tensor_Tensor", "Tensor_Scalar", "Scalar"):
    alike("pow", overload=_overload, numbers=True, constants="numbers")
alike("addcmul addcdiv", numbers=True)
for _overload in ("Tensor", "Scalar"):
    alike("lerp", overload=_overload, constants="numbers")


@lowering("add.Tensor", "add.Scalar", constants="numbers", complex=True)
def _add(c, a, b, alpha=1):
    if c.val.dtype.is_complex:
        return total(c, a, b, float(alpha))
    return dg.add(number(a), number(b), alpha=alpha)


@lowering("sub.Tensor", "sub.Scalar", constants="numbers", complex=True)
def _sub(c, a, b, alpha=1):
    if c.val.dtype.is_complex:
        return total(c, a, b, -float(alpha))
    return dg.sub(number(a), number(b), alpha=alpha)


@lowering("rsub.Tensor", "rsub.Scalar", constants="numbers")
def _rsub(c, a, b, alpha=1):
    return dg.rsub(number(a), number(b), alpha=alpha)


@lowering("mul.Tensor", "mul.Scalar", constants="numbers", complex=True)
def _mul(c, a, b):
    if c.val.dtype.is_complex:
        return product(c, a, b)
    return dg.mul(number(a), number(b))


@lowering("div.Tensor", "div.Scalar", "true_divide.Tensor", constants="numbers")
def _div(c, a, b):
    return dg.div(number(a), number(b))


@lowering("div.Tensor_mode", "div.Scalar_mode", constants="numbers")
def _div_mode(c, a, b, rounding_mode=None):
    return dg.div(number(a), number(b), rounding_mode=rounding_mode)


@lowering("floor_divide.default", "floor_divide.Scalar", constants="numbers")
def _floor_divide(c, a, b):
    return dg.floor_divide(number(a), number(b))


@lowering("round.default", "round.decimals")
def _round(c, x, decimals=0):
    return dg.round(number(x), decimals=decimals)


def _of_indices(c, x):
    """An operand of a comparison of indices: constants are indices as well."""
    if isinstance(x, torch.Tensor):
        return c.tensor(x) if is_integer(x.dtype) else c.numbers(x)
    return x if is_dynamic(x) else wrapped(x)


def _equality(compare):
    def run(c, a, b):
        dynamic = [x for x in (a, b) if is_dynamic(x)]
        whole = all(is_dynamic(x) or (is_integer(x.dtype) if isinstance(x, torch.Tensor) else float(x).is_integer()) for x in (a, b))
        if whole and all(x.dtype == "uint32" for x in dynamic):
            return compare(_of_indices(c, a), _of_indices(c, b))
        return compare(*[number(c.numbers(x) if isinstance(x, torch.Tensor) else x) for x in (a, b)])

    return run


lowering("eq.Tensor", "eq.Scalar", constants="known")(_equality(dg.eq))
lowering("ne.Tensor", "ne.Scalar", constants="known")(_equality(dg.ne))
for _overload in ("Tensor", "Scalar"):
    alike("lt le gt ge", overload=_overload, numbers=True, constants="numbers")


def _bits(out, *arguments, **_):
    return None if out.dtype == torch.bool else "operations on the bits of integers are not in the library"


alike("logical_and logical_or logical_xor", numbers=True, constants="numbers")
for _name, _function in {"and": dg.logical_and, "or": dg.logical_or, "xor": dg.logical_xor}.items():
    for _aten in (f"bitwise_{_name}", f"__{_name}__"):
        for _overload in ("Tensor", "Scalar"):
            alike(_aten, _function, _overload, constants="numbers", refuse=_bits)
alike("bitwise_not", dg.logical_not, refuse=_bits)


@lowering("elu.default")
def _elu(c, x, alpha=1, scale=1, input_scale=1):
    if input_scale != 1:
        return dg.where(x > 0, x, dg.expm1(x * input_scale) * alpha) * scale
    y = F.elu(x, alpha)
    return dg.mul(y, scale) if scale != 1 else y


@lowering("gelu.default")
def _gelu(c, x, approximate="none"):
    return F.gelu(x, approximate=approximate)


@lowering("softplus.default")
def _softplus(c, x, beta=1, threshold=20):
    return F.softplus(x, beta, threshold)


@lowering("rrelu.default")
def _rrelu(c, x, lower=0.125, upper=1 / 3, training=False, generator=None):
    return F.rrelu(x, lower, upper, training)


@lowering("_prelu_kernel.default")
def _prelu_kernel(c, x, weight):
    return dg.where(x > 0, x, x * weight)


# Types of elements.


def _to_integer(out, x, *arguments, **_):
    if is_integer(out.dtype) and (x.dtype.is_floating_point or x.dtype.is_complex):
        return "a cast of numbers to integers is not supported: integers here are indices"
    if x.dtype.is_complex and not out.dtype.is_complex:
        return "a cast of complex numbers to real ones; take the real part"
    return None


@lowering(
    "_to_copy.default", "to.dtype", "to.dtype_layout", "to.device", "to.other", "type_as.default", refuse=_to_integer, complex=True,
)  # fmt: skip
def _cast(c, x, *arguments, **_):
    if c.val.dtype == torch.bool:
        return truth(x)
    if is_integer(c.val.dtype):
        return plain(x)
    return plain(number(x))


@lowering("copy.default", constants="known", refuse=lambda out, into, x, *_, **__: _to_integer(out, x))
def _copy(c, into, x, non_blocking=False):
    x = c.tensor(x) if isinstance(x, torch.Tensor) else x
    return _cast(c, x).expand(list(c.val.shape))


@lowering(
    "clone.default", "alias.default", "contiguous.default", "positive.default", "resolve_conj.default", "view_as_real.default",
    "view_as_complex.default", complex=True,
)  # fmt: skip
def _same(c, x, **_):
    return x


@lowering("detach.default", complex=True)
def _detach(c, x):
    return x.detach()


# Choices.


def _numbers(c, x):
    """A constant as a tensor of numbers, or as a Python number; indices as numbers."""
    if not isinstance(x, torch.Tensor):
        return number(x)
    return c.numbers(x) if x.ndim else x.item()


def _chosen(c, condition, a, b):
    if not is_integer(c.val.dtype):
        return dg.where(truth(condition), _numbers(c, a), _numbers(c, b))
    a, b = c.integers([a, b])
    if a.dtype != "uint32":
        return dg.where(truth(condition), a, b)
    # Choices of indices: a gather from both.
    shape = list(c.val.shape)
    which = c.index(plain(truth(condition)), 2).expand(shape)
    return dg.gather(dg.stack([b.expand(shape), a.expand(shape)]), 0, which.unsqueeze(0)).squeeze(0)


@lowering("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar", constants="known")
def _where(c, condition, a, b):
    return _chosen(c, c.tensor(condition) if isinstance(condition, torch.Tensor) else condition, a, b)


@lowering("masked_fill.Scalar", "masked_fill.Tensor", constants="known")
def _masked_fill(c, x, mask, value):
    return _where(c, mask, value, x)


@lowering("masked_scatter.default")
def _masked_scatter(c, x, mask, source):
    return dg.masked_scatter(x, mask, source)


@lowering("fill.Scalar", "fill.Tensor", constants="numbers")
def _fill(c, x, value, **_):
    if is_dynamic(value):
        return value.expand(list(c.val.shape))
    return c.session.full(list(c.val.shape), float(value))
