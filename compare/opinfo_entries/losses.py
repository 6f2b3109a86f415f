"""Activations, losses and distances: see the header of opinfo_entries.py."""

import dittograd

F = dittograd.nn.functional
# The largest index.
LAST = 2**32 - 1


def _without_options(*args, options=None, **kwargs):
    # `options` says how PyTorch saves memory; results are the same.
    return F.linear_cross_entropy(*args, **kwargs)


def _ctc_loss(log_probs, *args, **kwargs):
    # PyTorch's gradient is that of the values before a log_softmax, which does not change log-probabilities.
    return F.ctc_loss(F.log_softmax(log_probs, -1), *args, **kwargs)


def _nll_loss(*args, ignore_index=-100, **kwargs):
    # Labels are not negative: the last index stands for the samples' -1.
    return F.nll_loss(*args, ignore_index=LAST if ignore_index == -1 else ignore_index, **kwargs)


def _with_distance(*args, distance_function, **kwargs):
    # The samples' function is torch.nn.PairwiseDistance() of PyTorch's tensors.
    return F.triplet_margin_with_distance_loss(*args, distance_function=lambda a, b: F.pairwise_distance(a, b), **kwargs)


ENTRIES = {
    "nn.functional.linear_cross_entropy.chunked": _without_options,
    "nn.functional.linear_cross_entropy.chunked_none": _without_options,
    "nn.functional.ctc_loss": _ctc_loss,
    "nn.functional.nll_loss": _nll_loss,
    "nn.functional.triplet_margin_with_distance_loss": _with_distance,
}

NOT_HERE = {
    "nn.functional.silu.complex": "complex numbers only",
}


def _equal_slopes(inputs, kwargs, skip):
    # Random slopes differ; those from a range of one number do not.
    if kwargs.get("training"):
        kwargs["lower"] = kwargs["upper"] = 0.25


RULES = {
    # PyTorch raises an error for second gradients, though its table does not say so.
    "nn.functional.ctc_loss": {"orders": 1},
    "nn.functional.multilabel_margin_loss": {"minus_one": LAST},
    "nn.functional.nll_loss": {"minus_one": LAST},
    # Second gradients by the bias are p (1 - p) with p near 1: in float32 PyTorch's are off by 3.2e-4 of the largest, ours by 4.4e-4.
    "nn.functional.linear_cross_entropy.chunked_none": {"rtol": 5e-5},
    "nn.functional.rrelu": {"sample": _equal_slopes},
}

CONVENTIONS = {
    "nn.functional.cosine_similarity": "where a norm is below `eps`, the gradient is that of the bounded norm; PyTorch's passes the bound.",
    "nn.functional.cross_entropy": "a negative `ignore_index` stands for no label, as labels are not negative. If all labels are ignored, the mean is 0, not NaN.",
    "nn.functional.ctc_loss": "the gradient is that of the loss itself. PyTorch's assumes a `log_softmax` before it, and agrees behind one. Labels are `(N, S)`.",
    "nn.functional.kl_div": "where a target is 0, or -inf with `log_target`, the loss is 0 for any input; PyTorch may give NaN.",
    "nn.functional.linear_cross_entropy.chunked": "there is no argument `options`: it says how PyTorch saves memory.",
    "nn.functional.mse_loss": "input and target have one shape, as for the other losses of elements; PyTorch broadcasts with a warning. The mean of no elements is 0, not NaN.",
    "nn.functional.multilabel_margin_loss": "the label that ends a list, PyTorch's -1, is 4294967295.",
    "nn.functional.nll_loss": "as `nn.functional.cross_entropy`.",
    "nn.functional.pairwise_distance": "with `p` of infinity the gradient goes to the first of several largest differences; PyTorch's is shared.",
    "nn.functional.softmin": "`dim` must be given, also to `softmax` and `log_softmax`; PyTorch guesses it with a warning.",
}
