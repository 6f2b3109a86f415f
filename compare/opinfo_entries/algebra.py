"""Entries of products, linear algebra, Fourier transforms and windows."""
import numpy as np
import torch

import dittograd as dg
from dittograd.signal import windows

ENTRIES, NOT_HERE, RULES = {}, {}, {}

# Fourier transforms: complex values are pairs, and what PyTorch transforms as complex must be complex.


def as_complex(inputs, kwargs, Skip):
    if not inputs[0].is_complex():
        inputs[0] = inputs[0].detach().to(torch.complex128).requires_grad_(inputs[0].requires_grad)


for _name in ("fft", "ifft", "irfft", "hfft"):
    for _end in ("", "2", "n"):
        RULES[f"fft.{_name.removesuffix('n')}{_end}"] = {"dtype": torch.complex128, "sample": as_complex}


def real_istft(inputs, kwargs, Skip):
    window = kwargs.get("window")
    if window is not None and window.is_complex():
        raise Skip("a complex window")


RULES["istft"] = {"dtype": torch.complex128, "sample": real_istft}



# PyTorch reads one triangle of a factor, but its gradients have numbers in the other; its own checks cut it off as here.
def triangle(factor, upper):
    return factor.triu() if upper else factor.tril()


RULES["cholesky_inverse"] = {"theirs": lambda f, upper=False: torch.cholesky_inverse(triangle(f, upper), upper)}
RULES["cholesky_solve"] = {"theirs": lambda b, f, upper=False: torch.cholesky_solve(b, triangle(f, upper), upper)}

# Where a norm is 0, PyTorch's second gradients are NaN and ours are 0, as the documentation of `Var::norm` says of the first ones.
RULES["linalg.norm.subgradients_at_zero"] = {"orders": 1}

# PyTorch's table calls these with other arguments than its documentation.
ENTRIES["einsum"] = lambda tensors, equation: dg.einsum(equation, *tensors)
ENTRIES["addmm.decomposed"] = "addmm"


def window(name):
    def made(session, M, *, device, dtype, requires_grad, **named):
        return getattr(windows, name)(session, M, **named)

    return made


for _name in windows.__all__:
    ENTRIES[f"signal.windows.{_name}"] = window(_name)


# LU: our second result is the rows of the matrix in the order of the factors, where PyTorch has the exchanges.


def order(pivots, rows):
    """The order of `rows` rows after exchanges, numbered from 1."""
    all = np.broadcast_to(np.arange(rows), (*pivots.shape[:-1], rows)).copy()
    for at in np.ndindex(pivots.shape[:-1]):
        for i, p in enumerate(pivots[at].astype(int)):
            all[at][[i, p - 1]] = all[at][[p - 1, i]]
    return all


def lu_results(ours, theirs):
    return ours, [theirs[0], order(theirs[1].numpy(), theirs[0].shape[-2]), *theirs[2:]]


def with_rows(function, at):
    """`function` of LU factors, whose argument `at + 1` is exchanges."""

    def called(session, *args, **named):
        args = list(args)
        args[at + 1] = session.tensor(order(args[at + 1].numpy(), args[at].shape[-2]))
        return function(*args, **named)

    return called


def old_lu(a, pivot, infos):
    return dg.linalg.lu_factor_ex(a, pivot=pivot) if infos else dg.linalg.lu_factor(a, pivot=pivot)


ENTRIES["lu"] = old_lu
ENTRIES["lu_unpack"] = with_rows(dg.lu_unpack, 0)
ENTRIES["lu_solve"] = with_rows(dg.lu_solve, 1)
ENTRIES["linalg.lu_solve"] = with_rows(dg.linalg.lu_solve, 0)
RULES["lu"] = RULES["linalg.lu_factor"] = RULES["linalg.lu_factor_ex"] = {"results": lu_results}

for _name in ("linalg.eig", "linalg.eigvals"):
    NOT_HERE[_name] = "eigenvalues of matrices that are not symmetric are complex"
for _name in ("linalg.ldl_factor", "linalg.ldl_factor_ex", "linalg.ldl_solve"):
    NOT_HERE[_name] = "factors of indefinite symmetric matrices, for which `linalg.lu_factor` and `linalg.lu_solve` serve"

# Only the solution: there is no rank and there are no singular values.
for _name in ("linalg.lstsq", "linalg.lstsq.grad_oriented"):
    RULES[_name] = {"theirs": lambda *args, **named: torch.linalg.lstsq(*args, **named).solution}

_SINGULAR = "singular values and eigenvalues are not in the library"
NOT_HERE.update(
    dict.fromkeys(
        [
            "svd", "svd_lowrank", "pca_lowrank", "pinverse", "linalg.matrix_sqrth", "linalg.eigh", "linalg.eigvalsh", "linalg.polar",
            "linalg.matrix_rank", "linalg.matrix_rank.hermitian", "linalg.pinv", "linalg.pinv.singular", "linalg.pinv.hermitian", "linalg.svd",
            "linalg.svdvals",
        ],
        _SINGULAR,
    )
)  # fmt: skip
NOT_HERE.update(dict.fromkeys(["sparse.sampled_addmm", "sparse.mm.reduce"], "tensors are dense"))
NOT_HERE.update(dict.fromkeys(["torch._scaled_mm", "torch._scaled_mm_v2"], "numbers of 8 bits are not an element type"))
