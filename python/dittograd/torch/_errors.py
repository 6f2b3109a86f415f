"""What is said about models that cannot be lowered."""

import os
import re
from dataclasses import dataclass

import torch
from torch.fx import Node

_FRAME = re.compile(r'File "(.+?)", line (\d+), in (\S+)\n\s*(.*)')
_TORCH = os.path.dirname(torch.__file__)


@dataclass
class Problem:
    """An operation that cannot run, and why."""

    node: object
    what: str
    why: str


def place(node):
    """The line of the model that a node comes from, and the path of the module."""
    if not isinstance(node, Node):
        return "at an unknown place"
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not frame[0].startswith(_TORCH)] or frames
    parts = []
    if own:
        file, line, function, code = own[-1]
        parts.append(f"{file}:{line} in {function}: {code.strip()}")
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    if stack and stack[-1][0]:
        parts.append(f"module `{stack[-1][0]}` ({str(stack[-1][1]).rsplit('.', 1)[-1]})")
    return ", ".join(parts) or "at an unknown place"


class LoweringError(NotImplementedError):
    """The operations of a model that cannot run here, each with the lines of the model."""

    def __init__(self, problems):
        self.problems = problems
        grouped = {}
        for problem in problems:
            grouped.setdefault((problem.what, problem.why), {}).setdefault(place(problem.node), None)
        count = "an operation" if len(grouped) == 1 else f"{len(grouped)} operations"
        lines = [f"{count} of this model cannot run in dittograd:"]
        for (what, why), places in grouped.items():
            lines.append(f"  {what}: {why}")
            lines += [f"    {at}" for at in list(places)[:3]]
            if len(places) > 3:
                lines.append(f"    and {len(places) - 3} more places")
        lines.append("Write these lines with other operations, or declare what runs for one with dittograd.torch.lowering.")
        super().__init__("\n".join(lines))
