"""PyTorch models that compute in dittograd: one answer on every device.

    import torch, dittograd.torch

    model = torch.nn.Linear(3, 2)
    module = dittograd.torch.load(model, torch.zeros(4, 3))  # device="cuda": the same bits
    outputs = module(torch.randn(4, 3))

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = dittograd.torch.TrainStep(module, torch.nn.CrossEntropyLoss(), optimizer)
    step(torch.randn(4, 3), torch.tensor([0, 1, 1, 0]))
    print(step.loss(), step.fingerprint())
    model = module.to_torch()

A program is made for the shapes of the example inputs, and for the mode, train or eval, that the model is in. What depends on neither
parameters nor inputs, such as masks or tables of positions, is computed by PyTorch once.

Numbers are float32: casts among float types do nothing, and float64 constants are rounded. Truth values are the numbers 0 and 1. Integers of
inputs are indices from 0 to 2^32 - 1; a negative one can only be a label that a loss leaves out. What is computed with integers is float32,
so it is exact up to 2^24. Casts of numbers to integers are refused. Random numbers, as for dropout, come from the session's seed.
"""

from ._backend import _with_options, backend, register  # noqa: F401
from ._errors import LoweringError
from ._export import export
from ._lower import Lowered, lower
from ._module import Module, load
from ._ops.table import Call, lowering, upload
from ._step import TrainStep

__all__ = ["Call", "Lowered", "LoweringError", "Module", "TrainStep", "backend", "export", "load", "lower", "lowering", "upload"]

register()
