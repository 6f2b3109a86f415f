"""Functions of PyTorch's `torch.special`."""

from . import _functions, _native

globals().update(_functions(_native.special))
# Those that have the same name in `dittograd`.
for _name in (
    "digamma", "erf", "erfc", "erfinv", "exp2", "expm1", "i0", "log1p", "logit", "polygamma", "round", "sinc", "xlogy",
):  # fmt: skip
    globals()[_name] = getattr(_native.elementwise, _name)
log_softmax = _native.nn_activations.log_softmax
softmax = _native.nn_activations.softmax
