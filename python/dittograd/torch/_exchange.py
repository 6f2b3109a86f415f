"""Tensors of PyTorch as inputs of programs, and results of programs as tensors of PyTorch."""

import dittograd as dg
import torch

from ._ops.table import to_array


def home(tensors):
    """Where the results of a program are that is given these: on the GPU of the first that is on one, or on the CPU."""
    return next((x.device for x in tensors if x.is_cuda), torch.device("cpu"))


def given(device, tensors, home):
    """What a program on a device takes: NumPy arrays, or tensors of a session if it runs on the GPU that is the inputs' home.

    Numbers are copied on that GPU, among the work of PyTorch's current stream: nothing waits. Integers, truth values and complex numbers
    go through host memory.
    """
    gpu = device._gpu
    if gpu is None or home != torch.device("cuda", gpu):
        return [to_array(x) for x in tensors]
    session = dg.Session(device, inference=True)
    stream = torch.cuda.current_stream(home).cuda_stream or 1
    with torch.cuda.device(home):
        return [_on_gpu(session, x, stream) if x.is_cuda and x.is_floating_point() else session.tensor(to_array(x)) for x in tensors]


def _on_gpu(session, x, stream):
    return session._tensor_on_stream(x.detach().resolve_neg().float().contiguous(), stream)


def tensor(result, home):
    """A result of a program, an array or a tensor of a session, as a tensor of PyTorch: indices become int64."""
    result = torch.from_dlpack(result) if isinstance(result, dg.Tensor) else torch.from_numpy(result)
    return (result.to(torch.int64) if result.dtype == torch.uint32 else result).to(home)
