"""Optimizers, with the names, arguments and defaults of PyTorch's.

    step = dg.TrainStep(params, dg.optim.AdamW(lr=1e-3), loss)

Each takes `clip_norm`, the largest norm of all gradients together, `clip_value`, the largest element of a gradient, and `groups`, a list of
dictionaries: `params` has names of parameters, and `lr`, `weight_decay` or a number of the rule what is different for them.
"""

from ._native import Optimizer

__all__ = ["SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Lion", "Muon", "Optimizer", "RMSprop"]


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


def SGD(lr=1e-3, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False, **more):
    """Stochastic gradient descent."""
    options = {"momentum": momentum, "dampening": dampening, "nesterov": nesterov}
    return _make("momentum", lr, options, weight_decay, **more) if momentum else _make("sgd", lr, {}, weight_decay, **more)


def Adam(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, **more):
    """Adam, with weight decay added to the gradient."""
    return _make("adam", lr, {"betas": betas, "eps": eps}, weight_decay, **more)


def AdamW(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, **more):
    """Adam, with weight decay apart from the gradient."""
    return _make("adam", lr, {"betas": betas, "eps": eps}, weight_decay, decoupled=True, **more)


def Adagrad(lr=1e-2, lr_decay=0.0, weight_decay=0.0, initial_accumulator_value=0.0, eps=1e-10, **more):
    """Adagrad."""
    options = {"lr_decay": lr_decay, "initial_accumulator_value": initial_accumulator_value, "eps": eps}
    return _make("adagrad", lr, options, weight_decay, **more)


def RMSprop(lr=1e-2, alpha=0.99, eps=1e-8, weight_decay=0.0, momentum=0.0, centered=False, **more):
    """RMSprop."""
    options = {"alpha": alpha, "eps": eps, "momentum": momentum, "centered": centered}
    return _make("rmsprop", lr, options, weight_decay, **more)


def Adadelta(lr=1.0, rho=0.9, eps=1e-6, weight_decay=0.0, **more):
    """Adadelta."""
    return _make("adadelta", lr, {"rho": rho, "eps": eps}, weight_decay, **more)


def Lion(lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, **more):
    """Lion: steps by the sign of a momentum."""
    return _make("lion", lr, {"betas": betas}, weight_decay, **more)


def Muon(lr=1e-3, weight_decay=0.1, momentum=0.95, nesterov=True, eps=1e-7, **more):
    """Muon: the momentum of a matrix, orthogonalized. Parameters that are no matrices follow AdamW."""
    return _make("muon", lr, {"momentum": momentum, "nesterov": nesterov, "eps": eps}, weight_decay, **more)
