"""Optimizers, with the names, arguments and defaults of PyTorch's.

    step = dg.TrainStep(params, dg.optim.AdamW(lr=1e-3), loss)

Each takes `clip_norm`, the largest norm of all gradients together, `clip_value`, the largest element of a gradient, and `groups`, a list of
dictionaries: `params` has names of parameters, and `lr`, `weight_decay` or a number of the rule what is different for them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from ._native import Optimizer

__all__ = ["SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Lion", "Muon", "Optimizer", "RMSprop"]


class _More(TypedDict, total=False):
    """What every optimizer takes."""

    groups: Sequence[Mapping[str, Any]] | None
    clip_norm: float | None
    clip_value: float | None


def _flat(options):
    """Numbers by the names that rules have: `betas` are two, flags are 0 and 1."""
    flat = {}
    for name, value in options.items():
        if name == "betas":
            flat["beta1"], flat["beta2"] = map(float, value)
        else:
            flat[name] = float(value)
    return flat


def _make(rule, lr, options, weight_decay, decoupled=None, groups=None, clip_norm=None, clip_value=None):
    members = []
    for group in groups or ():
        own = dict(group)
        names = [getattr(p, "name", p) for p in own.pop("params")]
        own_lr, own_decay = own.pop("lr", None), own.pop("weight_decay", None)
        members.append((names, own_lr, own_decay, _flat(own) or None))
    return Optimizer(
        rule,
        lr,
        options=_flat(options),
        weight_decay=weight_decay,
        decoupled=decoupled,
        groups=members,
        clip_norm=clip_norm,
        clip_value=clip_value,
    )


def SGD(
    lr: float = 1e-3,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    **more: Unpack[_More],
) -> Optimizer:
    """Stochastic gradient descent, with `momentum` as PyTorch defines it; `nesterov` looks one step ahead."""
    options = {"momentum": momentum, "dampening": dampening, "nesterov": nesterov}
    return _make("momentum", lr, options, weight_decay, **more) if momentum else _make("sgd", lr, {}, weight_decay, **more)


def Adam(
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    **more: Unpack[_More],
) -> Optimizer:
    """Adam, with weight decay added to the gradient. `betas` are the decays of the means of gradients and of their squares."""
    return _make("adam", lr, {"betas": betas, "eps": eps}, weight_decay, **more)


def AdamW(
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    **more: Unpack[_More],
) -> Optimizer:
    """Adam, with weight decay apart from the gradient. `betas` are the decays of the means of gradients and of their squares."""
    return _make("adam", lr, {"betas": betas, "eps": eps}, weight_decay, decoupled=True, **more)


def Adagrad(
    lr: float = 1e-2,
    lr_decay: float = 0.0,
    weight_decay: float = 0.0,
    initial_accumulator_value: float = 0.0,
    eps: float = 1e-10,
    **more: Unpack[_More],
) -> Optimizer:
    """Adagrad: steps divided by the root of the sum of all squared gradients, which begins at `initial_accumulator_value`."""
    options = {"lr_decay": lr_decay, "initial_accumulator_value": initial_accumulator_value, "eps": eps}
    return _make("adagrad", lr, options, weight_decay, **more)


def RMSprop(
    lr: float = 1e-2,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    centered: bool = False,
    **more: Unpack[_More],
) -> Optimizer:
    """RMSprop: steps divided by the root of a mean of squared gradients, which decays by `alpha`; `centered` takes the variance instead."""
    options = {"alpha": alpha, "eps": eps, "momentum": momentum, "centered": centered}
    return _make("rmsprop", lr, options, weight_decay, **more)


def Adadelta(lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0, **more: Unpack[_More]) -> Optimizer:
    """Adadelta: steps scaled by the means of squared steps over those of squared gradients, which decay by `rho`."""
    return _make("adadelta", lr, {"rho": rho, "eps": eps}, weight_decay, **more)


def Lion(lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0, **more: Unpack[_More]) -> Optimizer:
    """Lion: steps by the sign of a momentum."""
    return _make("lion", lr, {"betas": betas}, weight_decay, **more)


def Muon(
    lr: float = 1e-3,
    weight_decay: float = 0.1,
    momentum: float = 0.95,
    nesterov: bool = True,
    eps: float = 1e-7,
    **more: Unpack[_More],
) -> Optimizer:
    """Muon: the momentum of a matrix, orthogonalized. Parameters that are no matrices follow AdamW."""
    return _make("muon", lr, {"momentum": momentum, "nesterov": nesterov, "eps": eps}, weight_decay, **more)
