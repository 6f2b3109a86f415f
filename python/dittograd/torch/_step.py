"""Training steps of PyTorch models."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import Any

import dittograd as dg
import numpy as np
import torch

from ._module import Arguments, Module, Traced

# What else the settings of an optimizer may say: how PyTorch computes it.
_MEANS = {"foreach", "fused", "capturable", "differentiable", "params", "lr", "weight_decay", "initial_lr", "decoupled_weight_decay"}
# Settings that must be as they are by default.
_UNSUPPORTED = {"amsgrad": False, "maximize": False}
_RULES = {
    "SGD": ("momentum", "dampening", "nesterov"),
    "Adam": ("betas", "eps"),
    "AdamW": ("betas", "eps"),
    "Adagrad": ("lr_decay", "initial_accumulator_value", "eps"),
    "RMSprop": ("alpha", "eps", "momentum", "centered"),
    "Adadelta": ("rho", "eps"),
}


class TrainStep:
    """Forward, loss, backward, clipping and update of a PyTorch model as one compiled program, with one answer on every device.

        step = dittograd.torch.TrainStep(model, torch.nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters(), lr=1e-3))
        for x, y in loader:
            step(x, y)
            scheduler.step()
        print(step.loss(), step.fingerprint())

    model: a PyTorch model, or what `load` made of one
    loss: a function of the model's output and the target. The target is the last argument of a step, all others are the model's.
          None if the model computes its loss: then it is its output, or the field `loss` of it
    optimizer: an optimizer of `torch.optim` over the model's parameters, whose settings are taken; it keeps no state. Learning rates are
          read before each step, so schedulers work as ever. Parameters that it does not have stay as they are
    clip_norm: the largest norm of all gradients together, as by `clip_grad_norm_`
    clip_value: the largest element of a gradient
    device, seed: as of `load`, for a model that is not loaded yet
    """

    def __init__(
        self,
        model: torch.nn.Module | Module,
        loss: Callable[..., torch.Tensor] | None,
        optimizer: torch.optim.Optimizer,
        *,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        device: dg.Device | str | None = None,
        seed: int | None = None,
    ) -> None:
        if isinstance(model, Module):
            if device is not None or seed is not None:
                raise ValueError("device and seed belong to the loaded module; give them to load")
            self.module = model
        else:
            self.module = Module(model, device="cpu" if device is None else device, seed=seed or 0)
        self._loss = _WithLoss(self.module.model, loss)
        self._optimizer = optimizer
        self._clip = {"clip_norm": clip_norm, "clip_value": clip_value}
        self._variants = {}
        self._step = None
        _check(optimizer)
        self._groups = _groups(self.module, optimizer)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """One step on a batch. On a GPU it does not wait; `loss` does."""
        given = Arguments(args, kwargs)
        now = self._choose(given)
        for i, group in enumerate(self._optimizer.param_groups):
            if float(group["lr"]) != self._rates[i]:
                self._rates[i] = float(group["lr"])
                self._step.set_group_lr(i, self._rates[i])
        self._step.run(*now.inputs(self.module.params.device, given.leaves))
        self.module.count(now.counters)
        # Schedulers warn of steps before the optimizer's own.
        self._optimizer._opt_called = True

    def again(self) -> None:
        """One more step on the last batch, which is on the device still."""
        self._made().again()
        self.module.count(self._now.counters)

    def _choose(self, given):
        """The variant of the program for these arguments."""
        key = (self.module.training, given.key)
        if key not in self._variants:
            self._variants[key] = _Variant(self._loss, given, len(self._variants))
        self._now = self._variants[key]
        if self._step is None:
            self._step = self._make()
        return self._now

    def _make(self):
        used = {name.removeprefix("model.") for name in self._now.lowered.used}
        trained = {name for names in self._groups for name in names}
        for name, param in self.module.params.items():
            param.trainable = param.trainable and name in trained and name in used
        self._rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        return dg.TrainStep(self.module.params, self._ours(), self._record, seed=self.module.seed)

    def _ours(self):
        """The settings of the optimizer as one of ours."""
        name = type(self._optimizer).__name__
        groups = []
        for names, group in zip(self._groups, self._optimizer.param_groups):
            own = {option: group.get(option, self._optimizer.defaults.get(option)) for option in _RULES[name]}
            if name == "SGD" and not any(g["momentum"] for g in self._optimizer.param_groups):
                own = {}
            groups.append({"params": names, "lr": float(group["lr"]), "weight_decay": group["weight_decay"], **own})
        first = {k: v for k, v in groups[0].items() if k != "params"}
        if name == "Adam" and self._optimizer.param_groups[0].get("decoupled_weight_decay"):
            name = "AdamW"
        return getattr(dg.optim, name)(**first, groups=groups, **self._clip)

    def _record(self, session, *inputs):
        lowered = self._now.lowered
        values = self.module.values(session, lowered, "model.")
        loss, updates = lowered(session, values, list(inputs[:-1]))
        self._now.counters = self.module.assign(session, updates, "model.")
        return loss

    def loss(self) -> float:
        """The loss of the last step. Waits for the device."""
        return self._made().loss()

    def fingerprint(self) -> str:
        """A hash of all bits of parameters and float buffers: two machines can compare it."""
        return self.module.fingerprint()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Names and values of the model's parameters and buffers, as of PyTorch."""
        return self.module.state_dict()

    def save(self, path: str | PathLike[str]) -> None:
        """Writes a checkpoint: parameters, state of the optimizer and place in the random streams, from which training goes on bit for bit."""
        self._made().save(path, model=type(self.module.model).__name__, texts={"integers": self.module.integers()})

    def load(self, path: str | PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Continues from a checkpoint. Before the first step it needs an example batch, as for a step, which is not trained on."""
        if self._step is None:
            if not args and not kwargs:
                raise ValueError("before the first step the program is not made yet; give an example batch: step.load(path, x, y)")
            self._choose(Arguments(args, kwargs))
        self.module.set_integers(self._step.load(path).get("integers", "{}"))
        # A checkpoint has the learning rates of its last step; those of the optimizer are set before the next one.
        self._rates = [None] * len(self._rates)

    def _made(self):
        if self._step is None:
            raise RuntimeError("no step has been taken yet; call step(x, y) first")
        return self._step


class _Variant(Traced):
    """The step's program for one kind of arguments, in one mode of the model."""

    def __init__(self, loss, given, number):
        super().__init__(loss, given)
        # One more input, without elements: it tells apart variants whose inputs have the same types and shapes.
        self._mark = np.zeros((number, 0), "float32")

    def inputs(self, device, leaves):
        return [*super().inputs(device, leaves), self._mark]


class _WithLoss(torch.nn.Module):
    """A model and its loss, as one model."""

    def __init__(self, model, loss):
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, *args, **kwargs):
        if self.loss is not None:
            *inputs, target = args
            return self.loss(self.model(*inputs, **kwargs), target)
        output = self.model(*args, **kwargs)
        return output if isinstance(output, torch.Tensor) else output.loss


def _groups(module, optimizer):
    """The names of the parameters of each group."""
    names = {id(p): name for name, p in module.model.named_parameters()}
    groups = []
    for group in optimizer.param_groups:
        unknown = [tuple(p.shape) for p in group["params"] if id(p) not in names]
        if unknown:
            raise ValueError(
                f"the optimizer has {len(unknown)} parameters that the model does not have, the first of shape {unknown[0]}; "
                "make it from model.parameters()"
            )
        groups.append([names[id(p)] for p in group["params"]])
    return groups


def _check(optimizer):
    """Refuses what our optimizers do not do."""
    name = type(optimizer).__name__
    if type(optimizer) is not getattr(torch.optim, name, None) or name not in _RULES:
        raise TypeError(f"optimizer {name} is not supported; use {', '.join(f'torch.optim.{n}' for n in _RULES)}")
    if any(s.get("step", 0) > 0 or s.get("momentum_buffer") is not None for s in optimizer.state.values()):
        raise ValueError("the optimizer has state of earlier steps, which cannot be taken over; make a new one, or go on from a checkpoint")
    for group in optimizer.param_groups:
        for option, value in _UNSUPPORTED.items():
            if group.get(option, value) != value:
                raise ValueError(f"{name}: {option}={group[option]} is not supported; leave it {value}")
        unknown = set(group) - _MEANS - set(_UNSUPPORTED) - set(_RULES[name])
        if unknown:
            raise ValueError(f"{name}: settings {', '.join(sorted(unknown))} are not known here")
