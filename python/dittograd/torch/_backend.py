"""`torch.compile(model, backend="dittograd")`."""

import operator
import warnings

import dittograd as dg
import torch
from torch.fx.passes.split_module import split_module

from ._errors import LoweringError
from ._exchange import home, tensor
from ._export import export
from ._lower import Lowered
from ._module import Arguments

# Where the next draws of random numbers begin, of all compiled functions together.
_calls = 0
# A place in the random streams is this far from the next: no program makes as many calls.
_SPACING = 1 << 20


def backend(graph_module, example_inputs):
    """Computes what `torch.compile` captures in dittograd: forward and, by our own gradient rules, backward.

        model = torch.compile(model, backend="dittograd")
        model = torch.compile(model, backend="dittograd", options={"device": "cuda"})

    Each graph has one answer on every device. What PyTorch computes between graphs, and its optimizer, have PyTorch's answers:
    `TrainStep` has one for the whole step. An operation that dittograd does not have runs in PyTorch, with a warning that names it; what is
    before and after it are programs of their own. Parameters are copied to dittograd at each call, on the GPU
    if they and the program are on the same one.
    """
    return _Compiled(graph_module, "cpu")


def _with_options(graph_module, example_inputs, *, options=None):
    options = dict(options or {})
    device = options.pop("device", "cpu")
    if options:
        raise ValueError(f"backend dittograd has no option {next(iter(options))}; it has device")
    return _Compiled(graph_module, device)


class _Compiled:
    """A captured graph, with a program for each set of shapes."""

    def __init__(self, graph_module, device):
        self._module = graph_module
        self._device = dg.Device(device) if isinstance(device, str) else device
        self._programs = {}

    def __call__(self, *inputs):
        grad = torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)
        key = (Arguments(inputs, {}).key, grad, tuple(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs) if grad else None)
        if key not in self._programs:
            self._programs[key] = self._make(inputs, grad)
        return self._programs[key](inputs)

    @torch._dynamo.disable
    def _make(self, inputs, grad):
        try:
            return _Program(self._module, inputs, grad, self._device)
        except LoweringError as error:
            parts = _split(self._module, error, self._device)
            which = "these operations of the" if parts else "a graph of the"
            warnings.warn(f"{which} compiled model run in PyTorch instead of dittograd: {error}", stacklevel=3)
            module = parts or self._module
            return lambda inputs: module(*inputs)


class _Part(torch.nn.Module):
    """A part of a graph that dittograd computes."""

    def __init__(self, module, device):
        super().__init__()
        output = module.graph.output_node()
        self._is_one = isinstance(output.args[0], torch.fx.Node)
        if self._is_one:
            output.args = ((output.args[0],),)
            module.recompile()
        self._compiled = _Compiled(module, device)

    def forward(self, *inputs):
        results = self._compiled(*inputs)
        return results[0] if self._is_one else results


def _split(module, error, device):
    """A graph cut before and after the operations that are missing here, or None if nothing would be left of it."""
    missing = {_origin(problem.node) for problem in error.problems}
    if not missing <= {node.name for node in module.graph.nodes}:
        return None
    part_of, parts = {}, []
    for node in module.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        # An operation of several results stays together with those who take one.
        of = node.args[0] if node.target is operator.getitem else node
        in_torch = of.name in missing
        if not parts or parts[-1] != in_torch:
            parts.append(in_torch)
        part_of[node] = len(parts) - 1
    if all(parts):
        return None
    whole = split_module(module, module, part_of.__getitem__)
    for i, in_torch in enumerate(parts):
        if not in_torch:
            name = f"submod_{i}"
            setattr(whole, name, _Part(getattr(whole, name), device))
    return whole


def _origin(node):
    """The name of the node of the captured graph that a node was made from."""
    source = (getattr(node, "meta", {}).get("from_node") or [None])[-1]
    while source is not None and source.from_node:
        source = source.from_node[-1]
    return getattr(source, "name", None)


class _Program:
    """Forward and backward for inputs of one set of shapes."""

    def __init__(self, module, inputs, grad, device):
        self._lowered = Lowered(export(module, inputs), changes_inputs=True)
        self._tensors = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)]
        # Places of the inputs that gradients are wanted of, among the tensors.
        self._wanted = [at for at, i in enumerate(self._tensors) if grad and inputs[i].requires_grad]
        examples = self._lowered.given(device, [inputs[i] for i in self._tensors])
        self._forward = dg.Graph.trace(self._record, *examples, device=device).compile()
        self._device, self._backward = device, None

    def _outputs(self, session, inputs):
        outputs, updates = self._lowered(session, {}, list(inputs))
        self._updates = {i: step for i, step in updates.items() if isinstance(step, int)}
        changed = {i: value for i, value in updates.items() if i not in self._updates}
        return list(outputs), changed

    def _record(self, session, *inputs):
        outputs, changed = self._outputs(session, inputs)
        self._places = [isinstance(o, dg.Tensor) for o in outputs]
        self._others = [None if isinstance(o, dg.Tensor) else o for o in outputs]
        self._changed = list(changed)
        return [*(o for o in outputs if isinstance(o, dg.Tensor)), *changed.values()]

    def __call__(self, inputs):
        tensors = [inputs[i] for i in self._tensors]
        if self._wanted:
            results = _Gradients.apply(self, *tensors)
        else:
            results = self.forward(tensors, _next_calls())
        count = sum(self._places)
        with torch.no_grad():
            for i, value in zip(self._changed, results[count:]):
                tensors[i].copy_(value)
            for i, step in self._updates.items():
                tensors[i] += step
        given = iter(results)
        return [next(given) if is_tensor else other for is_tensor, other in zip(self._places, self._others)]

    def forward(self, tensors, calls):
        self._forward.set_random_calls(calls)
        place = home(tensors)
        return [tensor(result, place) for result in self._forward(*self._lowered.given(self._device, tensors))]

    def backward(self, tensors, seeds, calls):
        """Gradients of the inputs that they are wanted of. Forward values are computed again."""
        place, inputs = home(tensors), self._lowered.given(self._device, tensors, seeds)
        if self._backward is None:
            self._backward = dg.Graph.trace(self._record_backward, *inputs, device=self._device).compile()
        self._backward.set_random_calls(calls)
        found = iter(self._backward(*inputs))
        return [tensor(next(found), place) if reached else None for reached in self._reached]

    def _record_backward(self, session, *given):
        inputs, seeds = list(given[: len(self._tensors)]), list(given[len(self._tensors) :])
        for i in self._wanted:
            inputs[i] = inputs[i].tracked()
        outputs, _ = self._outputs(session, inputs)
        outputs = [o for o in outputs if isinstance(o, dg.Tensor) and o.dtype == "float32"]
        pairs = [(o, s) for o, s in zip(outputs, seeds) if o.requires_grad]
        gradients = session.grad([o for o, _ in pairs], [inputs[i] for i in self._wanted], [s for _, s in pairs])
        self._reached = [g is not None for g in gradients]
        return [g for g in gradients if g is not None]


class _Gradients(torch.autograd.Function):
    """A program among PyTorch's operations."""

    @staticmethod
    def forward(ctx, program, *tensors):
        ctx.program, ctx.calls = program, _next_calls()
        # What the program changes is changed after it ran.
        changes = {*program._changed, *program._updates}
        ctx.save_for_backward(*(t.clone() if i in changes else t for i, t in enumerate(tensors)))
        results = program.forward(tensors, ctx.calls)
        ctx.mark_non_differentiable(*(r for r in results if not r.is_floating_point()))
        ctx.floats = [i for i, r in enumerate(results) if r.is_floating_point()][: sum(program._places)]
        return tuple(results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *seeds):
        program = ctx.program
        gradients = program.backward(ctx.saved_tensors, [seeds[i] for i in ctx.floats], ctx.calls)
        of = dict(zip(program._wanted, gradients))
        return (None, *(of.get(i) for i in range(len(ctx.saved_tensors))))


def _next_calls():
    global _calls
    _calls += _SPACING
    return _calls


def register():
    """Makes the backend known to `torch.compile` by its name."""
    from torch._dynamo import register_backend

    register_backend(_with_options, name="dittograd")
