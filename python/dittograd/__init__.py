"""A neural-network runtime with one answer, bit for bit, on every device.

    import dittograd as dg
    session = dg.Session("cpu")             # or "cuda": the same bits
    x = session.tensor([[1.0, 2.0]], requires_grad=True)
    y = (x * x).sum()
    print(y.item(), y.grad([x])[0])

Functions have the names, arguments and defaults of PyTorch's; most are methods of tensors too.
"""

import functools

from . import _native
from ._native import NUMERICS_VERSION, __version__  # noqa: F401
from ._native import Device, Function, Graph, Param, Params, Session, Tensor, TrainStep


def _functions(module):
    return {name: value for name, value in vars(module).items() if not name.startswith("_")}


def _method(function):
    @functools.wraps(function)
    def method(self, *args, **kwargs):
        return function(self, *args, **kwargs)

    return method


def _install(functions):
    """Makes functions names of the package and methods: of sessions, where a function makes tensors, else of tensors."""
    for name, function in functions.items():
        signature = function.__text_signature__ or ""
        if signature.startswith("(session"):
            setattr(Session, name, _method(function))
            continue
        globals()[name] = function
        if signature.startswith("(input"):
            setattr(Tensor, name, _method(function))


for _module in (
    _native.creation,
    _native.elementwise,
    _native.frames,
    _native.indexing,
    _native.order,
    _native.products,
    _native.reductions,
    _native.shapes,
):
    _install(_functions(_module))
globals().update(_functions(_native.nn_native))

from . import _indexing, _operators, _shapes, fft, linalg, masked, nn, optim, signal, special  # noqa: E402

_install(_shapes.names)
# Functions that PyTorch has both in `torch` and in `torch.nn.functional`; the last group are methods too.
for _name in ("celu", "cosine_similarity", "ctc_loss", "pairwise_distance", "pdist", "rrelu", "selu", "threshold"):
    globals()[_name] = getattr(nn.functional, _name)
_install({name: getattr(nn.functional, name) for name in ("hardshrink", "log_softmax", "prelu", "relu", "softmax")})
_softmax_backward_data = _native.nn_activations._softmax_backward_data
