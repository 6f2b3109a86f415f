"""The type stubs: `stubs.py` writes them, they have every public name, and mypy accepts them and a program."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = Path(__file__).resolve().parents[1]
STUBS = {"dittograd." + ".".join(p.relative_to(PYTHON / "dittograd").with_suffix("").parts): p for p in PYTHON.rglob("dittograd/**/*.pyi")}

PROGRAM = """
import dittograd as dg
import numpy as np
from dittograd.nn import functional as F

session = dg.Session("cpu", seed=1)
x: dg.Tensor = session.tensor(np.zeros((1, 3, 8, 8)), requires_grad=True)
y, places = F.max_pool2d(F.conv2d(x, session.randn(4, 3, 3, 3), padding="same"), 2, return_indices=True)
z: dg.Tensor = F.max_pool2d(2 * y + 1 - y / y.max(1).values.max(), 2)[..., None]
rows: int = z.size(0)
shape: tuple[int, ...] = z[z > 0].long().float().shape
first = z.sum().grad([x])[0]
assert first is not None and {first: first.numpy().tobytes()}
params = dg.Params("cpu", seed=2)
params.add("w", np.zeros((2, 2)))


def loss(session: dg.Session, a: dg.Tensor) -> dg.Tensor:
    return (a @ session.param(params["w"])).pow(2).sum()


step = dg.TrainStep(params, dg.optim.AdamW(lr=1e-3, clip_norm=1.0), loss)
step.run(np.zeros((2, 2)))
value: float = step.loss()
outputs = dg.Graph.trace(loss, np.zeros((2, 2)), device="cpu").compile()(np.zeros((2, 2)))[0].shape
window: dg.Tensor = dg.masked.sum(dg.signal.windows.hann(session, 5)) + dg.linalg.norm(x) + dg.special.i1(x)

x.relu(3)  # type: ignore[call-arg]
F.conv2d(x, "w")  # type: ignore[arg-type]
dg.optim.SGD(0.1, bogus=1)  # type: ignore[call-arg]
"""


def test_the_stubs_are_what_the_script_writes():
    run = subprocess.run([sys.executable, "-P", PYTHON / "stubs.py", "--check"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def names(body):
    """What the statements of a module or class define."""
    found = set()
    for node in body:
        if isinstance(node, ast.ImportFrom):
            found.update(alias.asname for alias in node.names)
        elif isinstance(node, ast.AnnAssign):
            found.add(node.target.id)
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found.add(node.name)
    return found


@pytest.mark.parametrize("module", STUBS)
def test_every_public_name_has_a_stub(module):
    body = ast.parse(STUBS[module].read_text()).body
    real = importlib.import_module(module.removesuffix(".__init__"))
    public = {name for name, value in vars(real).items() if name[0] != "_" and not inspect.ismodule(value)}
    assert public <= names(body)
    for node in body:
        if isinstance(node, ast.ClassDef):
            assert {name for name in vars(getattr(real, node.name)) if name[0] != "_"} <= names(node.body)


def test_mypy_accepts_the_stubs_and_a_program(tmp_path):
    exec(PROGRAM.partition("\nx.relu(3)")[0], {})
    pytest.importorskip("mypy", reason="mypy is not installed")
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", f"--cache-dir={tmp_path}", tmp_path / "program.py"]
    run = subprocess.run([*command, *STUBS.values()], env={"MYPYPATH": str(PYTHON)}, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
