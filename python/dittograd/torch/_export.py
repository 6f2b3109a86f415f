"""A PyTorch model as a graph of ATen's functional operations."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node


def export(model: torch.nn.Module, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None) -> torch.export.ExportedProgram:
    """The model's operations for inputs of these shapes, as `torch.export` records them, in the mode (train or eval) that it is in.

    Operations such as `linear`, `layer_norm` or `scaled_dot_product_attention` stay whole. Nothing happens in place: new values of buffers
    are further outputs.
    """
    with warnings.catch_warnings():
        # PyTorch 2.11 warns of what it does itself.
        warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated", category=FutureWarning)
        program = torch.export.export(model, tuple(args), kwargs or {}, strict=False)
        _mark_regions_without_gradients(program.graph_module)
        return program.run_decompositions({})


def _mark_regions_without_gradients(module):
    """Detaches the results of `torch.no_grad()` regions: `run_decompositions` dissolves these regions."""
    for child in module.children():
        if isinstance(child, GraphModule):
            _mark_regions_without_gradients(child)
    for node in module.graph.nodes:
        if node.target is torch.ops.higher_order.wrap_with_set_grad_enabled and not node.args[0]:
            _detach_results(getattr(module, node.args[1].target))


def _detach_results(region):
    graph = region.graph
    output = next(node for node in graph.nodes if node.op == "output")
    detached = {}

    def detach(value):
        known = isinstance(value, Node) and value.op != "placeholder" and isinstance(value.meta.get("val"), torch.Tensor)
        if not known or not value.meta["val"].is_floating_point():
            return value
        if value not in detached:
            with graph.inserting_before(output):
                detached[value] = graph.call_function(torch.ops.aten.detach.default, (value,))
            detached[value].meta = dict(value.meta)
        return detached[value]

    output.args = torch.fx.map_arg(output.args, detach)
    region.recompile()
