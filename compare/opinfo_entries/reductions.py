"""Reductions, statistics, order."""


def _histc(inputs, kwargs, skip):
    if kwargs.get("bins") == 1000:
        raise skip("an element at the edge of a bin: PyTorch in float32 counts it in another bin than in float64")


# The exact gradient is 0 or far below the numbers whose difference it is: float32 leaves their rounding. PyTorch's own float32 shows up
# to 1e-6 of it in these entries, float64 1e-17.
_ROUNDING = {"noise": 2e-7}

ENTRIES = {
    "_segment_reduce.lengths": "segment_reduce",
    "_segment_reduce.offsets": "segment_reduce",
}

NOT_HERE = {
    "hash_tensor": "combines the bits of 64-bit integers",
    "norm.nuc": "needs singular values, which are not computed here",
}

RULES = {
    # As _ROUNDING; of a sixth root of a sixth power the second derivative, 0, is a difference of larger numbers. PyTorch's float32 leaves
    # as much of it.
    "linalg.vector_norm": {"noise": 2e-6},
    # As _ROUNDING, of the weights of two observations; PyTorch's float32 shows 6e-5.
    "cov": {"noise": 2e-5},
    "histc": {"sample": _histc},
    # Where both elements are masked out, PyTorch's second gradient is NaN; ours is 0.
    "masked.logaddexp": {"orders": 1},
} | dict.fromkeys(
    [
        "corrcoef",
        "dist",
        "logcumsumexp",
        "logsumexp",
        "masked.logsumexp",
        "masked.norm",
        "masked.normalize",
        "masked.prod",
        "norm",
        "prod",
    ],
    _ROUNDING,
)
