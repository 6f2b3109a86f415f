"""A graph of ATen operations as a program over dittograd tensors."""

import operator

import dittograd as dg
import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node, map_arg
from torch.utils import _pytree as pytree

from . import _ops  # noqa: F401  It fills the table.
from ._errors import LoweringError, Problem, place
from ._exchange import given, home
from ._ops.table import TABLE, Call, are_labels, is_integer, upload

# Their results depend on the shapes of their arguments only.
_FILLED = {
    "aten.empty": 0, "aten.empty_like": 0, "aten.empty_strided": 0, "aten.empty_permuted": 0, "aten.new_empty": 0,
    "aten.new_empty_strided": 0, "aten.zeros_like": 0, "aten.new_zeros": 0, "aten.ones_like": 1, "aten.new_ones": 1,
}  # fmt: skip

# What PyTorch computes with the same bits everywhere: it moves elements, or rounds once.
_EXACT = set(
    """
    view _unsafe_view reshape flatten squeeze unsqueeze expand permute transpose t slice select narrow pad constant_pad_nd cat stack split
    split_with_sizes chunk unbind clone alias contiguous detach _to_copy lift_fresh_copy to where masked_fill index index_select gather flip
    roll repeat tril triu diagonal add sub mul div neg abs maximum minimum clamp sign floor ceil round trunc reciprocal sqrt relu full_like
    """.split()
)


class Lowered:
    """A program made from an exported one: call it with a session, values of parameters and buffers, and inputs.

    `parameters` and `buffers` are the PyTorch tensors whose values it needs, by their names in the state dict; tensors that share memory
    have one name. `used` are the names of those that outputs depend on. `counters` are the integer buffers that it counts up, such as `num_batches_tracked`.

    Everything that depends on neither is computed by PyTorch when the program is made.
    """

    def __init__(self, program, changes_inputs=False):
        self._program = program
        self._changes_inputs = changes_inputs
        self._known = {}
        self._steps = []
        self._problems = []
        self.parameters, self.buffers, self.counters = {}, {}, {}
        nodes = list(program.graph.nodes)
        self._output = nodes[-1]
        self._placeholders(nodes)
        live = self._live()
        self.used = {name for node, name in self._named.items() if node in live}
        for node in nodes:
            if node in live and node.op not in ("placeholder", "output"):
                self._plan(node)
        self._signed = {node for node in self._inputs if are_labels(node)}
        self._classes = {node: self._classes_of(node) for node in self._signed}
        self._in_spec, self._out_spec = program.call_spec
        self._keywords = list(_kwargs_spec(self._in_spec))
        if self._problems:
            raise LoweringError(self._problems)

    # Making the program.

    def _placeholders(self, nodes):
        program, signature = self._program, self._program.graph_signature
        names = _shared_names({**program.state_dict, **program.constants})
        changed = set(signature.buffers_to_mutate.values())
        self._named, self._inputs, self._given = {}, [], []
        placeholders = [node for node in nodes if node.op == "placeholder"]
        for node, spec in zip(placeholders, signature.input_specs):
            name = names.get(spec.target, spec.target)
            if spec.kind == InputKind.PARAMETER:
                self.parameters[name] = program.state_dict[spec.target]
                self._named[node] = name
            elif spec.kind == InputKind.BUFFER:
                self._buffer(node, spec, name, spec.target in changed)
            elif spec.kind == InputKind.CONSTANT_TENSOR:
                self._known[node] = _constant(program.constants[spec.target])
            elif spec.kind == InputKind.USER_INPUT:
                self._given.append(spec.arg)
                if isinstance(node.meta.get("val"), torch.Tensor):
                    self._inputs.append(node)
                else:
                    self._known[node] = getattr(spec.arg, "value", node.meta.get("val"))
            else:
                self._problems.append(Problem(node, f"input `{spec.target}` of kind {spec.kind.name}", "inputs are tensors and constants"))

    def _buffer(self, node, spec, name, changes):
        tensor = self._program.state_dict.get(spec.target)
        persistent = tensor is not None
        tensor = self._program.constants[spec.target] if tensor is None else tensor
        if not tensor.is_floating_point():
            self._known[node] = _constant(tensor)
            if changes:
                self.counters[name] = tensor
        elif persistent or changes:
            self.buffers[name] = tensor
            self._named[node] = name
        else:
            # Not in the state dict, so no checkpoint can change it.
            self._known[node] = _constant(tensor)

    def _live(self):
        """The nodes on which an output depends. Counters are counted apart."""
        self._updates, results = {}, []
        signature = self._program.graph_signature
        placeholders = {node.name: node for node in self._program.graph.nodes if node.op == "placeholder"}
        names = _shared_names({**self._program.state_dict, **self._program.constants})
        for value, spec in zip(self._output.args[0], signature.output_specs):
            if spec.kind == OutputKind.USER_OUTPUT:
                results.append(value)
            elif spec.kind == OutputKind.BUFFER_MUTATION:
                name = names.get(spec.target, spec.target)
                if name in self.counters:
                    own = {placeholders[n] for n, buffer in signature.inputs_to_buffers.items() if buffer == spec.target}
                    value = self._step_of_counter(value, own, f"integer buffer `{spec.target}`")
                self._updates[name] = value
            elif spec.kind == OutputKind.USER_INPUT_MUTATION and self._changes_inputs:
                node = placeholders[spec.target]
                if is_integer(node.meta["val"].dtype):
                    value = self._step_of_counter(value, {node}, f"input `{spec.target}`")
                self._updates[self._inputs.index(node)] = value
            elif spec.kind == OutputKind.USER_INPUT_MUTATION:
                self._problems.append(Problem(value, f"input `{spec.target}` is changed in place", "return the new value instead"))
            else:
                what = f"`{spec.target}` is changed in place"
                self._problems.append(Problem(value, what, "parameters change by an optimizer only"))
        self._results = results
        live, stack = set(), [n for n in [*results, *self._updates.values()] if isinstance(n, Node)]
        while stack:
            node = stack.pop()
            if node not in live:
                live.add(node)
                stack += node.all_input_nodes
        return live

    def _step_of_counter(self, node, own, what):
        """How much is added to an integer tensor, whose placeholders are `own`."""
        if isinstance(node, Node) and str(node.target).startswith("aten.add.") and node.args[0] in own and isinstance(node.args[1], int):
            if all(user is node for user in node.args[0].users):
                return node.args[1]
        self._problems.append(Problem(node, f"{what} is changed by more than a constant step, or read", "make it a float tensor"))
        return 0

    def _plan(self, node):
        """Computes a node if everything is known, or adds it to the program."""
        if node.op == "get_attr":
            self._known[node] = _constant(operator.attrgetter(node.target)(self._program.graph_module))
            return
        name = _name(node)
        args, kwargs = self._of_node(node)
        dynamic = [n for n in node.all_input_nodes if n not in self._known]
        if name.rsplit(".", 1)[0] in _FILLED and isinstance(node.meta["val"], torch.Tensor):
            val = node.meta["val"]
            self._known[node] = torch.full(tuple(val.shape), _FILLED[name.rsplit(".", 1)[0]], dtype=val.dtype)
        elif name.startswith(("aten.full_like.", "aten.new_full.")) and dynamic in ([], [node.args[0]]):
            fill = args[2] if "new_full" in name else args[1]
            val = node.meta["val"]
            self._known[node] = torch.full(tuple(val.shape), fill, dtype=val.dtype)
        elif not dynamic and not _is_random(node):
            self._known[node] = _computed(node, args, kwargs)
        elif node.target is operator.getitem:
            self._steps.append((node, None, args, kwargs))
        else:
            self._add(node, name, args, kwargs)

    def _of_node(self, node):
        """A node's arguments, with constants in place of the nodes that are known."""

        def value(n):
            return self._known.get(n, n)

        return map_arg(node.args, value), {name: map_arg(a, value) for name, a in node.kwargs.items()}

    def _add(self, node, name, args, kwargs):
        found = TABLE.get(name)
        if found is None:
            self._problems.append(Problem(node, name, "no counterpart in dittograd"))
            return
        why = None
        dtypes = [v.dtype for n in [node, *node.all_input_nodes] for v in _tensors(n.meta.get("val"))]
        if any(d.is_complex for d in dtypes) and not found.complex:
            why = "complex numbers are not supported here"
        elif found.refuse is not None:
            types = map_arg((args, kwargs), lambda n: n.meta["val"])
            why = found.refuse(node.meta["val"], *types[0], **types[1])
        if why:
            self._problems.append(Problem(node, name, why))
        self._steps.append((node, found, args, kwargs))

    def _classes_of(self, node):
        """For labels, the numbers of classes of the losses that read them, each with the label that it leaves out."""
        found, stack, seen = set(), [node], {node}
        while stack:
            for user in stack.pop().users:
                name = _name(user)
                if name.startswith(("aten.cross_entropy_loss.", "aten.nll_loss")) and user.args[1] in seen:
                    shape = user.args[0].meta["val"].shape
                    found.add((shape[1 if len(shape) > 1 else 0], user.args[4] if len(user.args) > 4 else -100))
                elif user.op != "output" and user not in seen:
                    seen.add(user)
                    stack.append(user)
        return found

    # Running it.

    def inputs(self, session, *args, **kwargs):
        """PyTorch tensors, given as to the model, as the list of inputs."""
        return [upload(session, leaf) for leaf in self.tensors(*args, **kwargs)]

    def tensors(self, *args, **kwargs):
        """The tensors among arguments, given as to the model. Errors if these do not fit the program."""
        leaves = self._leaves(args, kwargs)
        tensors, found = iter(self._inputs), []
        for leaf, given in zip(leaves, self._given):
            if hasattr(given, "value"):
                if leaf != given.value:
                    raise ValueError(f"argument `{given.name}` is {leaf!r}; the program was made for {given.value!r}")
                continue
            node = next(tensors)
            if leaf.dtype.is_floating_point != node.meta["val"].dtype.is_floating_point:
                raise TypeError(f"input `{node.name}` is {leaf.dtype}; the program was made for {node.meta['val'].dtype}")
            found.append(leaf)
        return self._checked(found)

    def _leaves(self, args, kwargs):
        leaves, structure = pytree.tree_flatten((args, {name: kwargs[name] for name in self._keywords if name in kwargs}))
        if structure != self._in_spec or set(kwargs) - set(self._keywords):
            raise ValueError(f"the arguments differ from those of the example:\n{structure}\ninstead of\n{self._in_spec}")
        return leaves

    def places(self, args, kwargs):
        """Where the tensors of the program are among arguments, given as numbered leaves."""
        leaves = self._leaves(args, kwargs)
        return [leaf for leaf, given in zip(leaves, self._given) if not hasattr(given, "value")]

    def given(self, device, tensors, seeds=()):
        """Tensors of the types of the program's inputs, and gradients of its results, as a program on a device takes them."""
        return given(device, [*self._checked(tensors), *seeds], home(tensors))

    def _checked(self, tensors):
        """The tensors, whose integers are none that the program cannot take. Integers are on the CPU, where they are read."""
        tensors = [x.cpu() if is_integer(x.dtype) else x for x in tensors]
        for node, leaf in zip(self._inputs, tensors):
            if not is_integer(leaf.dtype):
                continue
            if node not in self._signed and leaf.numel() and leaf.min() < 0:
                raise ValueError(f"input `{node.name}` has negative integers; only labels of losses may have them")
            for classes, ignored in self._classes.get(node, ()):
                wrong = leaf[((leaf < 0) | (leaf >= classes)) & (leaf != ignored)]
                if wrong.numel():
                    raise IndexError(f"input `{node.name}`: label {wrong[0]} is none of the {classes} classes from 0")
        return tensors

    def __call__(self, session, values, inputs):
        """The model's outputs in its own structure, and new values of buffers: tensors by name, and for counters the step to add.

        With `changes_inputs`, new values of inputs too, by their places.
        """
        values_of = self._bound(values, inputs)
        uploads = {}
        for node, found, args, kwargs in self._steps:
            call = Call(session, uploads, node)
            args, kwargs = _given((args, kwargs), values_of, call, found.constants if found else "known")
            try:
                values_of[node] = args[0][args[1]] if found is None else found.run(call, *args, **kwargs)
            except Exception as error:
                error.add_note(f"in {_name(node)}, {place(node)}")
                raise
        call = Call(session, uploads, self._output)

        def value(x):
            x = values_of.get(x, self._known.get(x)) if isinstance(x, Node) else x
            return call.tensor(x) if isinstance(x, torch.Tensor) else x

        outputs = pytree.tree_unflatten([value(x) for x in self._results], self._out_spec)
        return outputs, {name: value(x) for name, x in self._updates.items()}

    def _bound(self, values, inputs):
        missing = sorted(set(self._named.values()) - set(values))
        if missing:
            raise KeyError(f"values of {len(missing)} parameters or buffers are missing: {', '.join(missing[:8])}")
        if len(inputs) != len(self._inputs):
            raise ValueError(f"{len(inputs)} inputs; the program has {len(self._inputs)}")
        bound = {node: values[name] for node, name in self._named.items()}
        for node, x in zip(self._inputs, inputs):
            shape = tuple(node.meta["val"].shape)
            shape = (*shape, 2) if node.meta["val"].dtype.is_complex else shape
            if x.shape != shape:
                raise ValueError(f"input `{node.name}` has shape {x.shape}; the program was made for {shape}")
            bound[node] = x
        return bound


def lower(model, args=(), kwargs=None):
    """The program of a model for inputs of these shapes, in the mode (train or eval) that the model is in."""
    from ._export import export

    return Lowered(export(model, args, kwargs))


def _given(arguments, values_of, call, constants):
    """Arguments as a function gets them: values in place of nodes, constants in the form that it wants."""

    def convert(x):
        if isinstance(x, Node):
            return values_of[x]
        if isinstance(x, torch.Tensor):
            if constants == "known":
                return x
            if constants == "numbers":
                return x.item() if x.ndim == 0 else call.numbers(x)
            return call.tensor(x)
        if isinstance(x, (list, tuple)):
            return [convert(item) for item in x]
        if isinstance(x, dict):
            return {name: convert(item) for name, item in x.items()}
        return x

    return convert(arguments)


def _constant(tensor):
    return tensor.detach().cpu() if isinstance(tensor, torch.Tensor) else tensor


def _computed(node, args, kwargs):
    """The value of a node whose arguments are all known.

    PyTorch computes it, unless it rounds in an order of its own: sums and functions such as `sin` have other bits on other processors
    there, so they are computed here.
    """
    if "device" in kwargs and kwargs["device"] is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    val, found = node.meta.get("val"), TABLE.get(_name(node))
    rounds = found is not None and _name(node).split(".")[1] not in _EXACT
    if rounds and isinstance(val, torch.Tensor) and val.dtype == torch.float32 and any(isinstance(a, torch.Tensor) and a.is_floating_point() for a in args):
        call = Call(dg.Session("cpu", threads=1, inference=True), {}, node)
        args = [call.tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
        kwargs = {name: call.tensor(a) if isinstance(a, torch.Tensor) else a for name, a in kwargs.items()}
        return torch.from_numpy(found.run(call, *args, **kwargs).numpy())
    with torch.no_grad():
        return node.target(*args, **kwargs)


def _is_random(node):
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def _name(node):
    return str(node.target)


def _tensors(val):
    return [v for v in pytree.tree_leaves(val) if isinstance(v, torch.Tensor)]


def _kwargs_spec(spec):
    """The names of keyword arguments, in the order of the example."""
    return spec.child(1).context if hasattr(spec, "child") else spec.children_specs[1].context


def _shared_names(tensors):
    """For each name the first name of a tensor in the same place of memory, as tied parameters are."""
    first, names = {}, {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        place = tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0
        key = (place, tensor.storage_offset(), tensor.shape, tensor.stride()) if place else id(tensor)
        names[name] = first.setdefault(key, name)
    return names
