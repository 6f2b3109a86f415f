"""Entries of functions that compute element by element."""

import dittograd

# Entry -> the path of our function in `dittograd`, or a function.
ENTRIES = {
    "max.binary": "maximum",
    "min.binary": "minimum",
    "__rdiv__": "__rtruediv__",
    # PyTorch's samples give the order second.
    **{f"polygamma.polygamma_n_{n}": lambda x, n: dittograd.polygamma(n, x) for n in range(5)},
    "special.polygamma.special_polygamma_n_0": lambda x, n: dittograd.special.polygamma(n, x),
}

_BITS = "no operations on the bits of integers; of truth values there are the operators `&`, `|`, `^`, `~`"
_TYPES = "element types are float32 and uint32"
_BESSEL = "this Bessel function is not in the library"
_POLYNOMIAL = "orthogonal polynomials whose degrees are a tensor are not in the library"

# Entry -> why it is not here. `gaps_A.rs` has tried sketches of `special.zeta` and of the polynomials.
NOT_HERE = {
    **dict.fromkeys(
        ["bitwise_not", "bitwise_left_shift", "bitwise_right_shift", "bitwise_and", "bitwise_or", "bitwise_xor"]
        + ["__rand__", "__ror__", "__rxor__"],
        _BITS,
    ),
    **dict.fromkeys(["gcd", "lcm"], "no arithmetic of integers"),
    **dict.fromkeys(["bfloat16", "byte", "char", "double", "half", "short"], _TYPES),
    **dict.fromkeys(["cdouble", "cfloat", "chalf"], "a complex value is pairs of float32; `complex` makes them"),
    "imag": "a complex value is pairs; take `x[..., 1]`",
    "view_as_real": "a complex value is pairs already; the function is the identity",
    "to": "a session has one device, and elements have one order in memory; `float` and `long` convert types",
    "_softmax_backward_data": "internal to PyTorch's gradients",
    "torch.ops.aten._safe_softmax.default": "internal to PyTorch's attention",
    **dict.fromkeys(["igamma", "igammac"], "the incomplete gamma function is not in the library"),
    "nextafter": "steps from a float32 to the next one are an operation on bits",
    **dict.fromkeys(
        ["jiterator_unary", "jiterator_binary", "jiterator_4inputs_with_extra_args", "jiterator_binary_return_by_ref"]
        + ["jiterator_2inputs_2outputs"],
        "C++ kernels in strings",
    ),
    "special.zeta": "the Hurwitz zeta function is not in the library",
    "special.airy_ai": "the Airy function is not in the library",
    **dict.fromkeys(
        [f"special.bessel_{kind}" for kind in ("j0", "j1", "y0", "y1")]
        + [f"special.{scaled}modified_bessel_{kind}" for scaled in ("", "scaled_") for kind in ("k0", "k1")],
        _BESSEL,
    ),
    **dict.fromkeys(
        [f"special.{shifted}chebyshev_polynomial_{kind}" for shifted in ("", "shifted_") for kind in "tuvw"]
        + [f"special.{kind}" for kind in ("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l")]
        + ["special.legendre_polynomial_p"],
        _POLYNOMIAL,
    ),
}


def _magnitudes(inputs, kwargs, Skip):
    """Indices are not negative."""
    inputs[0] = inputs[0].abs()


def _positive_base(inputs, kwargs, Skip):
    """The gradient by the exponent of a negative base is NaN in PyTorch; here such a base has no slope in the exponent."""
    inputs[1] = inputs[1].detach().abs().requires_grad_()


# Entry, or the name that its variants share -> rules.
RULES = {
    "long": {"sample": _magnitudes},
    "int": {"sample": _magnitudes},
    "__rpow__": {"sample": _positive_base},
    # The second gradient is zero everywhere; PyTorch's is what is left of a cancellation, about 1e-17 of it.
    "copysign": {"orders": 1},
}
