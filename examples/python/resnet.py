"""One ResNet trained by PyTorch and by dittograd, with several numbers of threads and levels of SIMD: whose answers are one?

    python examples/python/resnet.py                  # the CPU
    python examples/python/resnet.py --device cuda    # a GPU as well

Needs torch and torchvision.
"""

import argparse
import math
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import dittograd as dg
import dittograd.torch
import torch
import torchvision

STEPS = 10


def make():
    """The model, images and labels, with the same bits on every machine: PyTorch's random numbers need not have them."""
    draw = dg.Session("cpu", seed=0)
    model = torchvision.models.resnet18(num_classes=10)
    torch.nn.init.zeros_(model.fc.bias)
    for p in model.parameters():
        if p.ndim > 1:
            p.data = torch.from_numpy(draw.randn(*p.shape).numpy() * math.sqrt(2 / p[0].numel()))
    return model, torch.from_numpy(draw.randn(16, 3, 64, 64).numpy()), torch.arange(16) % 10


def by_torch(device, threads):
    """The loss of the last step and the fingerprint of the trained model."""
    torch.set_num_threads(threads)
    model, x, y = (part.to(device) for part in make())
    loss = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
    return value.item(), dittograd.torch.load(model).fingerprint()


def by_dittograd(device, threads):
    """The same, by dittograd."""
    model, x, y = make()
    loss = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = dittograd.torch.TrainStep(model, loss, optimizer, device=dg.Device(device, threads=threads))
    for _ in range(STEPS):
        step(x, y)
    return step.loss(), step.fingerprint()


def show(train, device, threads, simd):
    """Trains in a new process, as another machine would, and prints a row."""
    os.environ["DITTOGRAD_SIMD"] = simd
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        loss, fingerprint = process.submit(train, device, threads).result()
    print(f"{train.__name__:14}{device:8}{threads:<9}{simd or 'best':8}{loss:.9f}  {fingerprint}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="a GPU to train on as well: cuda or cuda:1")
    device = parser.parse_args().device
    print(f"{'':14}{'device':8}{'threads':9}{'SIMD':8}{'loss':11}  fingerprint")
    show(by_torch, "cpu", 1, "")
    show(by_torch, "cpu", 2, "")
    show(by_dittograd, "cpu", 1, "")
    show(by_dittograd, "cpu", 2, "")
    show(by_dittograd, "cpu", 2, "scalar")
    if device != "cpu":
        show(by_torch, device, 2, "")
        show(by_dittograd, device, 2, "")
