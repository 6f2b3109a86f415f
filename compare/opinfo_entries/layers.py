"""Entries of layers: convolution, pooling, resizing, norms, embeddings, attention, dropout."""

import torch

import dittograd
from dittograd.nn import functional as F


def _pool_gradient(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=True):
    """PyTorch's entry computes the gradient of ones."""
    y, at = F.max_pool2d_with_indices(input, kernel_size, stride, padding, dilation, ceil_mode)
    ones = F.dropout(y, 1.0) + 1.0
    return dittograd.max_pool2d_with_indices_backward(ones, input, kernel_size, stride, padding, dilation, ceil_mode, at)


def _no_statistics(input, weight, bias, *rest):
    """Two overloads of one name: with running statistics, and without."""
    if len(rest) == 5:
        return dittograd.native_batch_norm(input, weight, bias, *rest)
    training, momentum, eps = rest
    return dittograd.native_batch_norm(input, weight, bias, None, None, training, momentum, eps)


def _with_update(input, weight, bias, running_mean, running_var, momentum, eps):
    found = dittograd.native_batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps)
    return (*found, found[0])


def _antialiased(input, output_size, align_corners, scale_factors=None, scales_h=None, scales_w=None):
    return F.interpolate(input, output_size, scale_factors, "bilinear", align_corners, antialias=True)


def _no_negative_eps(inputs, kwargs, Skip):
    eps = [kwargs.get("eps", 1.0)] + [x for x in inputs if isinstance(x, float)]
    if min(eps) < 0:
        raise Skip("an eps below 0 is refused")


def _eps_of_float32(inputs, kwargs, Skip):
    """The default follows from the element type."""
    kwargs.setdefault("eps", torch.finfo(torch.float32).eps)
    _no_negative_eps(inputs, kwargs, Skip)


def _not_random(inputs, kwargs, Skip):
    p = kwargs.get("p", 0.5)
    if kwargs.get("training", True) and 0 < p < 1:
        raise Skip("drawn at random")


def _alpha_not_random(inputs, kwargs, Skip):
    kwargs.setdefault("training", False)
    _not_random(inputs, kwargs, Skip)


def _smaller(value):
    """A tenth of it, in float32 numbers."""
    return (value.detach() / 10).float().double().requires_grad_(value.requires_grad)


def _attention(inputs, kwargs, Skip):
    # Scores of hundreds saturate the softmax, and little but rounding is left of gradients.
    inputs[0] = _smaller(inputs[0])
    if kwargs.get("dropout_p", 0.0) > 0:
        raise Skip("drawn at random")


def _channels(inputs, kwargs, Skip):
    if inputs[0].dim() < 2:
        raise Skip("a vector has no channels")


def _agreeing_scales(inputs, kwargs, Skip):
    if kwargs.get("scales_h") is not None:
        raise Skip("sizes and factors that contradict each other")


ENTRIES = {
    "max_pool2d_with_indices_backward": _pool_gradient,
    "_native_batch_norm_legit": _no_statistics,
    "_batch_norm_with_update": _with_update,
    "_upsample_bilinear2d_aa": _antialiased,
    "torch.ops.aten._safe_softmax.default": "_native.nn_layers._safe_softmax",
    # The table's samples have the weight first.
    "nn.functional.embedding": lambda weight, index, **kwargs: F.embedding(index, weight, **kwargs),
    "nn.functional.embedding_bag": lambda weight, index, **kwargs: F.embedding_bag(index, weight, **kwargs),
}

_INTERNAL = "internal to PyTorch; nn.functional.scaled_dot_product_attention is here"
NOT_HERE = {
    "torch.ops.aten._flash_attention_forward": _INTERNAL,
    "torch.ops.aten._efficient_attention_forward": _INTERNAL,
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": _INTERNAL,
    "nn.functional.batch_norm.without_cudnn": "cuDNN; nn.functional.batch_norm is here",
}

_CANCELS = {
    # Gradients of norms of one or two elements, of saturated softmax and of x / |x| are small differences of large terms. PyTorch in float32 is as far
    # from float64 on these samples.
    "cancels": True
}


def _no_second_without_weight(rules):
    """PyTorch's own second gradient of native_layer_norm fails without a weight."""

    def sample(inputs, kwargs, Skip):
        _no_negative_eps(inputs, kwargs, Skip)
        rules["orders"] = 1 if inputs[2] is None else 2

    rules["sample"] = sample
    return rules


def _normalize(rules):
    """With p = 0.5 along an axis of one element it is the sign. The second gradient is a difference of terms of hundreds; PyTorch in float32 is off by
    5e-4."""

    def sample(inputs, kwargs, Skip):
        rules["atol"] = 5e-4 if kwargs.get("p") == 0.5 else 1e-6

    rules["sample"] = sample
    return rules


def _without_dropout(inputs, kwargs, Skip):
    """Without dropout and with smaller numbers, so that more than shapes of saturated softmax can be compared."""
    inputs[10] = 0.0
    inputs[:] = [_smaller(v) if isinstance(v, torch.Tensor) else v for v in inputs]


def _fractional_rules(axes):
    def sample(inputs, kwargs, Skip):
        if kwargs.get("_random_samples") is None:
            shape = inputs[0].shape[:-axes]
            kwargs["_random_samples"] = torch.rand(*(shape if len(shape) == 2 else (1, *shape)), axes).double()

    return {"sample": sample}


RULES = {
    "nn.functional.normalize": _normalize({**_CANCELS}),
    "nn.functional.multi_head_attention_forward": {"sample": _without_dropout},
    "nn.functional.group_norm": {"sample": _no_negative_eps, **_CANCELS},
    "nn.functional.layer_norm": {"sample": _no_negative_eps, **_CANCELS},
    "nn.functional.rms_norm": {"sample": _eps_of_float32, **_CANCELS},
    "native_group_norm": {"sample": _no_negative_eps, **_CANCELS},
    "native_layer_norm": _no_second_without_weight({**_CANCELS}),
    "native_batch_norm": _CANCELS,
    "_native_batch_norm_legit": _CANCELS,
    "nn.functional.batch_norm": {"sample": _channels, **_CANCELS},
    # PyTorch's fourth result is scratch memory of cuDNN.
    "_batch_norm_with_update": {"results": lambda ours, theirs: (ours[:3], theirs[:3]), **_CANCELS},
    "_upsample_bilinear2d_aa": {"sample": _agreeing_scales},
    # PyTorch has no second gradient of what it runs here.
    "nn.functional.scaled_dot_product_attention": {"sample": _attention, "orders": 1},
    # An element that several windows name: its value is the mean of theirs here, and so is its gradient. PyTorch gives each window all of it,
    # which is no derivative, and tests derivatives in the entries `.grad`.
    "nn.functional.max_unpool1d": {"orders": 0},
    "nn.functional.max_unpool2d": {"orders": 0},
    "nn.functional.max_unpool3d": {"orders": 0},
    "nn.functional.max_unpool1d.grad": {},
    "nn.functional.max_unpool2d.grad": {},
    "nn.functional.max_unpool3d.grad": {},
    "nn.functional.fractional_max_pool2d": _fractional_rules(2),
    "nn.functional.fractional_max_pool3d": _fractional_rules(3),
    "nn.functional.dropout": {"sample": _not_random},
    "nn.functional.dropout1d": {"sample": _not_random},
    "nn.functional.dropout2d": {"sample": _not_random},
    "nn.functional.dropout3d": {"sample": _not_random},
    "nn.functional.alpha_dropout": {"sample": _alpha_not_random},
    "nn.functional.feature_alpha_dropout": {"sample": _alpha_not_random},
}


def _two_axes_if_bicubic(inputs, kwargs, Skip):
    if inputs[0].ndim == 5 and kwargs.get("mode") == "bicubic":
        raise Skip("bicubic along three axes")


RULES["nn.functional.grid_sample"] = {**RULES.get("nn.functional.grid_sample", {}), "sample": _two_axes_if_bicubic}
