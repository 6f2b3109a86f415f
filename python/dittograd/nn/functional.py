"""Functions of PyTorch's `torch.nn.functional`."""

from .. import _functions, _native

for _module in (_native.nn_activations, _native.nn_images, _native.nn_layers, _native.nn_losses, _native.nn_norms):
    globals().update(_functions(_module))
