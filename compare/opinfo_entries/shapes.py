"""Entries of functions that move, join, cut, make or look up elements."""

import dittograd


def _without_place(inputs, kwargs, Skip):
    """Leaves out where and how to store: a session knows the place, and there is one layout."""
    for name in ("device", "layout", "requires_grad", "pin_memory", "memory_format"):
        kwargs.pop(name, None)


ENTRIES = {
    "T": lambda x: x.T,
    "H": lambda x: x.H,
    "mT": lambda x: x.mT,
    "mH": lambda x: x.mH,
    # The entry's input is the second argument of `where`.
    "where": lambda x, condition, other: dittograd.where(condition, x, other),
    "alias_copy": "clone",
    "normal": "normal",
    "normal.number_mean": lambda session, std, mean, *size, **options: (
        session.normal(mean, std, *size, **options) if size else dittograd.normal(mean, std)
    ),
}

_IN_PLACE = "changes its argument in place; nothing does here"
_STORAGE = "is about memory: strides and uninitialised elements, which tensors do not show here"

NOT_HERE = {
    **dict.fromkeys("cauchy exponential geometric log_normal normal.in_place uniform".split(), _IN_PLACE),
    **dict.fromkeys("resize_ resize_as_ zero_".split(), _IN_PLACE),
    **dict.fromkeys("new_empty_strided empty_strided empty_permuted".split(), _STORAGE),
    "as_strided.partial_views": "reads memory beyond the elements of its argument",
    "_chunk_cat": "a helper of PyTorch's sharded training",
    "to_sparse": "sparse tensors",
    "_unsafe_masked_index": "a helper of PyTorch's compiler for x[indices] with a mask",
    "_unsafe_masked_index_put_accumulate": "a helper of PyTorch's compiler for x[indices] with a mask",
}



def _without_type(inputs, kwargs, Skip):
    """Also leaves out the element type: indices have one."""
    _without_place(inputs, kwargs, Skip)
    kwargs.pop("dtype", None)


def _below_two_to_32(inputs, kwargs, Skip):
    if inputs[0].numel() and inputs[0].max() >= 2**32:
        raise Skip("an index above 2^32 - 1")


_PLACE = {"sample": _without_place}

RULES = {
    **dict.fromkeys(
        "arange linspace linspace.tensor_overload logspace logspace.tensor_overload zeros ones full eye scalar_tensor zeros_like "
        "ones_like full_like new_zeros new_ones new_full".split(),
        _PLACE,
    ),
    # Uninitialised there, zeros here.
    **dict.fromkeys("empty empty_like new_empty".split(), {**_PLACE, "random": True}),
    **dict.fromkeys(
        "randn randn_like rand_like randint randint_like normal normal.number_mean bernoulli multinomial".split(),
        {**_PLACE, "random": True},
    ),
    **dict.fromkeys(["tril_indices", "triu_indices"], {"sample": _without_type}),
    "unravel_index": {"sample": _below_two_to_32},
    # PyTorch's gradient of the input is not zero where `src` replaces it: `torch.autograd.gradcheck` fails on all 7 samples. Ours agree
    # with differences of its values.
    "as_strided_scatter": {"orders": 0},
    # Second gradients that are 0 are differences of equal numbers in PyTorch, which leave about 1e-15.
    **dict.fromkeys(["scatter_reduce.prod", "index_reduce.prod"], {"noise": 1e-13}),
}
