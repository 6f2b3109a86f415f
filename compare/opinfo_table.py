"""Writes docs/ops.md: what `opinfo.py --table` has found, for readers."""

import collections
import pathlib
import re

import opinfo_entries
from opinfo_entries import ENTRIES, NOT_HERE

ROOT = pathlib.Path(__file__).resolve().parent.parent
FAMILIES = {
    "torch": "Functions of `torch`, methods and operators of tensors",
    "nn.functional": "`torch.nn.functional`",
    "linalg": "`torch.linalg`",
    "fft": "`torch.fft`",
    "special": "`torch.special`",
    "signal.windows": "`torch.signal.windows`",
    "masked": "`torch.masked`",
    "sparse": "`torch.sparse`",
}
# What the table calls a kind of gradients that were compared.
ORDERS = {0: "none", 1: "first", 2: "first and second"}


def family(entry):
    return next((f for f in FAMILIES if entry.startswith(f + ".")), "torch")


def exists(path):
    """Whether the package has this path."""
    import dittograd

    found = dittograd
    for part in path.split("."):
        found = getattr(found, part, None)
    return found is not None


def in_python(entry):
    """The path of our function in the package; empty if the entry is compared by a few calls."""
    target = ENTRIES.get(entry)
    if isinstance(target, str):
        return target
    # A variant has the name of its function and a word more.
    for path in (entry, entry.rpartition(".")[0]):
        for found in (path, f"Tensor.{path}"):
            if path and exists(found):
                return found
    return ""


def guide(root):
    """PyTorch's name with its family -> our method, from the table of docs/guide/pytorch.md. A row counts if each of its names has a call of
    its own."""
    name = re.compile(r"(?:(torch(?:\.[a-z]+)?|F|nn|[a-z])\.)?(\w+)(?:\(.*\))?$")
    call = re.compile(r"[asxyi]\.([a-z_0-9]+)\(")
    found = {}
    for row in (root / "docs/guide/pytorch.md").read_text().splitlines():
        cells = [re.findall(r"`([^`]+)`", cell) for cell in row.split("|")[1:-1]]
        if len(cells) != 2:
            continue
        theirs, ours = ([pattern.match(code) for code in cell] for pattern, cell in zip((name, call), cells))
        if len(theirs) != len(ours):
            continue
        # A name without a path is where the one before it is.
        path = ""
        for their, our in zip(theirs, ours):
            if their and our:
                path = their[1] or path
                key = {"F": "nn.functional", "nn": "nn"}.get(path) or path.removeprefix("torch").removeprefix(".")
                key = key if key in FAMILIES else "torch" if len(key) < 2 else key
                found.setdefault((key, their[2]), our[1])
    return found


def aliases(root):
    """Names that the documentation of our methods is found by -> the method."""
    found = {}
    for file in (root / "crates").glob("*/src/**/*.rs"):
        pattern = r"#\[doc\(alias([^\]]*)\)\]\n(?: *(?:#\[|//).*\n)* *(?:pub fn )?([a-z_0-9]+)"
        for names, method in re.findall(pattern, file.read_text()):
            for alias in re.findall(r'"([^"]+)"', names):
                found.setdefault(alias, method)
    return found


def in_rust(root, op_names):
    """A function that gives our method in Rust of PyTorch's function: by its name in the list of the public interface, by the guide, or by an
    alias of the documentation. The guide comes first for `torch.nn.functional`, where some names mean something else."""
    listed = re.findall(r"^dittograd::session::(Session|Var)::([a-z_0-9]+) fn", (root / ".ci/api").read_text(), re.M)
    # Names differ in underscores only: `where_`, `log_sigmoid`. A method of `Var` comes first.
    methods = {name.replace("_", ""): f"{kind}::{name}" for kind, name in sorted(listed)}
    by_guide, by_alias = guide(root), aliases(root)

    def look(path):
        home, name = family(path), path.rpartition(".")[2]
        named = [by_guide.get((home, name), ""), name]
        # An alias may be meant for a function of the same name.
        other = home == "torch" and f"nn.functional.{name}" in op_names
        for found in (*(named if home == "nn.functional" else reversed(named)), "" if other else by_alias.get(name, "")):
            if found.replace("_", "") in methods:
                return methods[found.replace("_", "")]
        return ""

    return look


def base(entry, op_names):
    """The name of the function that an entry is a variant of."""
    return entry if entry in op_names else entry.rpartition(".")[0] or entry


def code(text):
    return f"`{text}`" if text else ""


def names(entries):
    return ", ".join(map(code, entries))


def plural(count, one, many=None):
    return f"{count} {one if count == 1 else many or one + 's'}"


class Elsewhere:
    """What was found on another device, maybe with another version of PyTorch, whose table may have other samples."""

    def __init__(self, parts):
        self.device, self.torch = parts[0]["device"], parts[0]["torch"]
        self.found = {name: counts for part in parts for name, counts in part["found"].items()}

    def cell(self, entry):
        if entry not in self.found:
            return ""
        agreed, failed = self.found[entry]
        return samples(agreed, failed)

    def summary(self):
        complete = sum(agreed > 0 and failed == 0 for agreed, failed in self.found.values())
        differ = [name for name, (_, failed) in self.found.items() if failed]
        return (
            f"On {self.device} they ran on the samples of PyTorch {self.torch}, {sum(map(sum, self.found.values()))} in all: {complete} entries are complete"
            + (f", {plural(len(differ), 'differs', 'differ')}: {names(differ)}." if differ else ".")
        )


def samples(agreed, failed):
    return f"{agreed}; **{plural(failed, 'differs', 'differ')}**" if failed else str(agreed)


def table(rows, rust, op_names, elsewhere):
    titles = ["PyTorch", "Python", "Rust", "gradients", "samples", *([f"on {elsewhere.device}"] if elsewhere else []), "left out"]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for entry, state, agreed, failed, skipped, orders in rows:
        ours = in_python(entry)
        left = "; ".join(f"{count}: {reason}" for reason, count in skipped.items()).replace("|", "\\|")
        cells = [code(entry), code(ours), code(rust(base(entry, op_names))), ORDERS[orders], samples(agreed, len(failed)), *([elsewhere.cell(entry)] if elsewhere else []), left]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def page(rows, device, elsewhere, rust, op_names):
    states = collections.Counter(state for _, state, *_ in rows)
    here = [row for row in rows if row[1] != "missing"]
    complete = [row for row in here if row[1] == "complete"]
    partly = [row for row in complete if row[4]]
    failing = [row[0] for row in here if row[1] == "failed"]
    skipped = [row[0] for row in here if row[1] == "skipped"]
    absent = {row[0] for row in rows if row[1] == "missing"}
    unexplained = [row[0] for row in rows if row[0] in absent and row[0] not in NOT_HERE]
    lines = [
        "# Functions, compared with PyTorch's",
        "",
        "<!-- Written by `python3 compare/opinfo.py --table`. Do not edit: the next run writes it anew. -->",
        "",
        "*This page is generated by `python3 compare/opinfo.py --table`.*",
        "",
        f"**{states['complete']} of {plural(len(rows), 'entry', 'entries')} are complete.** PyTorch tests its functions by a table, OpInfo. It has an entry for each "
        f"function, and samples of inputs for each entry. Our functions ran on the same samples on {device}, "
        f"{sum(row[2] for row in here)} in all. Their values, gradients and second gradients are compared with PyTorch's in float64.",
        *(["", elsewhere.summary()] if elsewhere else []),
        "",
        "| entries | |",
        "|---|---|",
        f"| {len(complete) - len(partly)} | complete: all samples agree |",
        f"| {len(partly)} | complete, but some samples have no counterpart here and are left out |",
        *([f"| {len(failing)} | some samples differ: {names(failing)} |"] if failing else []),
        *([f"| {len(skipped)} | here, but no sample has a counterpart: {names(skipped)} |"] if skipped else []),
        f"| {len(absent) - len(unexplained)} | [not here](#not-here), for a reason |",
        *([f"| {len(unexplained)} | [missing](#missing) |"] if unexplained else []),
        "",
        "In the tables, *Python* is the path in the package `dittograd`. *Rust* is the method of `Var` or `Session` to look at first; it is empty "
        "where none has the name. *Gradients* says which were compared: entries of functions without a gradient have none. "
        "*Samples* are those that agree. *Left out* are those that were not run, with the reason.",
    ]
    for key, title in FAMILIES.items():
        members = [row for row in here if family(row[0]) == key]
        if members:
            done = sum(row[1] == "complete" for row in members)
            lines += ["", f"## {title}", "", f"{done} of {plural(len(members), 'entry', 'entries')} complete.", ""]
            lines += table(sorted(members, key=lambda row: row[0].lower()), rust, op_names, elsewhere)
    reasons = collections.defaultdict(list)
    for entry, reason in NOT_HERE.items():
        if entry in absent:
            reasons[reason].append(entry)
    lines += ["", "## Not here", ""]
    for reason, entries in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(f"- {reason[:1].upper() + reason[1:].rstrip('.')}: {names(sorted(entries))}.")
    if unexplained:
        lines += ["", "## Missing", "", f"Nothing speaks against these: {names(unexplained)}."]
    conventions = getattr(opinfo_entries, "CONVENTIONS", {})
    if conventions:
        lines += ["", "## What is different", ""]
        lines += [f"- {code(entry)}: {text}" for entry, text in sorted(conventions.items())]
    return "\n".join(lines) + "\n"


def write(rows, device, others):
    """Writes docs/ops.md. `rows` are `(entry, state, agreed, failed, skipped, orders)` on `device`, `others` what `--save` has written on
    another one, in parts."""
    from torch.testing._internal.common_methods_invocations import op_db

    op_names = {op.name for op in op_db}
    text = page(rows, device, Elsewhere(others) if others else None, in_rust(ROOT, op_names), op_names)
    (ROOT / "docs/ops.md").write_text(text)
