"""PyTorch models that compute in dittograd."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from typing import Any

import dittograd as dg
import numpy as np
import torch
from torch.utils import _pytree as pytree

from ._exchange import home, tensor
from ._export import export
from ._lower import Lowered
from ._ops.table import to_array


def load(
    model: torch.nn.Module,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    device: dg.Device | str = "cpu",
    seed: int = 0,
) -> Module:
    """A PyTorch model whose forward pass is ours: `load(model)(x)` gives tensors of PyTorch, with one answer on every device.

    With example arguments the model's program is made at once, so that what cannot be lowered is told here; else at the first call.
    A program is made for each set of shapes, and for each of the modes train and eval.

    args, kwargs: example arguments of the model; one tensor may be given as it is
    device: a Device of dittograd or the name of one
    seed: where random numbers, as for dropout, start
    """
    module = Module(model, device=device, seed=seed)
    if args is not None or kwargs:
        args = (args,) if isinstance(args, torch.Tensor) else tuple(args or ())
        module.program(args, kwargs or {})
    return module


class Module:
    """A PyTorch model that computes in dittograd. `load` makes it.

    Its parameters are copies on dittograd's device; those of the PyTorch model stay as they were until `to_torch`.
    """

    def __init__(self, model: torch.nn.Module, *, device: dg.Device | str = "cpu", seed: int = 0) -> None:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"the model is of type {type(model).__name__}; give a torch.nn.Module")
        self.model = model
        self.seed = seed
        self.params = dg.Params(device)
        self._names = {}
        self._programs = {}
        for name, p in model.named_parameters():
            param = self._add(name, p)
            param.trainable = p.requires_grad
        for name, b in model.named_buffers():
            if name in model.state_dict() and b.is_floating_point():
                self._add(name, b, trainable=False)
        self._take_integers()

    def _take_integers(self):
        """Copies the integer buffers, which programs do not hold but count up."""
        self._integers = {name: t.clone() for name, t in self.model.state_dict().items() if not t.is_floating_point()}

    def _add(self, name, tensor, **options):
        param = self.params.add(name, to_array(tensor), **options)
        self._names[id(tensor)] = name
        return param

    @property
    def training(self) -> bool:
        """Whether the model is in the mode `train`."""
        return self.model.training

    def train(self, mode: bool = True) -> Module:
        """Puts the model into the mode `train`: dropout draws, batch norm uses the statistics of the batch."""
        self.model.train(mode)
        return self

    def eval(self) -> Module:
        """Puts the model into the mode `eval`."""
        return self.train(False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's outputs, as tensors of PyTorch on the device of the arguments. No gradient flows through them; `TrainStep` trains."""
        given = Arguments(args, kwargs)
        return self._program(given)(given.leaves)

    def _program(self, given):
        key = (self.training, given.key)
        if key not in self._programs:
            self._programs[key] = Program(self, self.model, given)
        return self._programs[key]

    def program(self, args=(), kwargs=None):
        """The program for arguments of these shapes."""
        return self._program(Arguments(args, kwargs or {}))

    def graph(self, *args: Any, **kwargs: Any) -> dg.Graph:
        """The program for arguments of these shapes as a `Graph`, which can be saved as text and read by the program `dittograd`."""
        return self.program(args, kwargs).graph

    def export(self, path: str | PathLike[str], *args: Any) -> None:
        """Writes the model for the program `dittograd`: `dittograd train FILE --data …` trains it without Python, and `predict`, `export`
        to ONNX, `graph` and `inspect` read what that writes.

        It has one input, whose first axis is the batch, and one result for each row: the first, if the model returns several. The
        batch that is trained has the size of the example.

        args: an example of the input
        """
        was = self.training
        try:
            train, evaluate = (Program(self.train(mode), self.model, Arguments(args, {}), results=1).graph for mode in (True, False))
        finally:
            self.train(was)
        train.save_model(path, self.params, evaluate, model=type(self.model).__name__)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Names and values of parameters and buffers, as of the PyTorch model."""
        state = {}
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            known = self._names.get(id(tensor))
            if known is not None:
                state[name] = torch.from_numpy(self.params[known].numpy()).to(tensor.dtype)
            else:
                state[name] = self._integers[name].clone()
        return state

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Any:
        """Takes parameters and buffers from a state dict."""
        result = self.model.load_state_dict(state, strict=strict)
        self._take_integers()
        for tensor in self.model.state_dict(keep_vars=True).values():
            if id(tensor) in self._names:
                self.params[self._names[id(tensor)]].set(to_array(tensor))
        return result

    def to_torch(self) -> torch.nn.Module:
        """Writes parameters and buffers back into the PyTorch model, and returns it."""
        self.model.load_state_dict(self.state_dict())
        return self.model

    def fingerprint(self) -> str:
        """A hash of all bits of parameters and float buffers: two machines can compare it."""
        return self.params.fingerprint()

    def count(self, updates):
        """Adds to integer buffers, such as `num_batches_tracked`."""
        for name, step in updates.items():
            self._integers[name] += step

    def integers(self):
        """The integer buffers as text, for checkpoints."""
        return json.dumps({name: t.tolist() for name, t in self._integers.items()})

    def set_integers(self, text):
        """Takes the integer buffers that a checkpoint has."""
        for name, values in json.loads(text).items():
            if name in self._integers:
                self._integers[name] = torch.tensor(values, dtype=self._integers[name].dtype)

    def values(self, session, lowered, prefix=""):
        """The parameters and buffers that a program reads, as tensors of a session."""
        values = {}
        for name, tensor in [*lowered.parameters.items(), *lowered.buffers.items()]:
            own = name.removeprefix(prefix)
            if own not in self.params:
                self._add(own, tensor, trainable=False)
            values[name] = session.param(self.params[own])
        return values

    def assign(self, session, updates, prefix=""):
        """Gives buffers their new values when the program ends. Answers what is added to integer buffers."""
        counters = {}
        for name, value in updates.items():
            if isinstance(value, int):
                counters[name.removeprefix(prefix)] = value
            else:
                session.assign(self.params[name.removeprefix(prefix)], value)
        return counters


class Program:
    """A model for inputs of one set of shapes, in one mode, compiled."""

    def __init__(self, module, model, given, *, results=None):
        self._module, self._results = module, results
        self._traced = Traced(model, given)
        examples = self._traced.inputs(module.params.device, given.leaves)
        self.graph = dg.Graph.trace(self._record, *examples, device=module.params.device, seed=module.seed)
        self._function = None

    def _record(self, session, *inputs):
        lowered = self._traced.lowered
        outputs, updates = lowered(session, self._module.values(session, lowered), list(inputs))
        self._counters = self._module.assign(session, updates)
        leaves, self._structure = pytree.tree_flatten(outputs)
        self._outputs = leaves
        return [leaf for leaf in leaves if isinstance(leaf, dg.Tensor)][: self._results]

    def __call__(self, leaves):
        if self._function is None:
            self._function = self.graph.compile()
        results = iter(self._function(*self._traced.inputs(self._module.params.device, leaves)))
        self._module.count(self._counters)
        place = self._traced.home(leaves)
        leaves = [tensor(next(results), place) if isinstance(leaf, dg.Tensor) else leaf for leaf in self._outputs]
        return pytree.tree_unflatten(leaves, self._structure)


class Traced:
    """A model's operations for arguments of these types and shapes, in the mode that it is in."""

    def __init__(self, model, given):
        self.lowered = Lowered(export(model, *given.arguments_for(model)))
        self._places = given.places(self.lowered)

    def home(self, leaves):
        """Where results are if these are the leaves of arguments."""
        return home([leaves[i] for i in self._places])

    def inputs(self, device, leaves):
        """The inputs among the leaves of arguments, as a program on a device takes them."""
        return self.lowered.given(device, [leaves[i] for i in self._places])


class Arguments:
    """Arguments of a call: their leaves, and a key of what a program is made for, types and shapes of tensors and all other leaves."""

    def __init__(self, args, kwargs):
        self._structure = None
        if not kwargs and all([isinstance(x, torch.Tensor) for x in args]):
            self.leaves = args
        else:
            leaves, self._structure = pytree.tree_flatten((args, kwargs))
            self.leaves = [torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in leaves]
        kinds = [(x.shape, x.dtype) if isinstance(x, torch.Tensor) else x for x in self.leaves]
        self.key = (tuple(kinds), self._structure)

    def arguments_for(self, model):
        """Positional and keyword arguments, with tensors in place of arrays, on the device of the model."""
        place = next((p.device for p in model.parameters()), None)
        return self._with([x.to(place) if isinstance(x, torch.Tensor) and place is not None else x for x in self.leaves])

    def places(self, lowered):
        """Which leaves are the inputs of a program."""
        args, kwargs = self._with(range(len(self.leaves)))
        return lowered.places(args, kwargs)

    def _with(self, leaves):
        return (tuple(leaves), {}) if self._structure is None else pytree.tree_unflatten(list(leaves), self._structure)
