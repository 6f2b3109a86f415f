"""The Python examples of the documents run as they are printed."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ["docs/guide/python.md", "python/README.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OPTIONAL = ("torch", "torchvision", "transformers")


def blocks(document):
    """The Python code of a document, each block with the lines before it left empty, so that errors name lines of the document."""
    text = (ROOT / document).read_text()
    return ["\n" * text.count("\n", 0, m.start(1)) + m[1] for m in BLOCK.finditer(text)]


class Run:
    """A document that is run block by block, in a folder of its own. Its blocks share their names."""

    def __init__(self, document, folder):
        self.document, self.folder = document, folder
        self.code = blocks(document)
        self.names = {"__name__": document}
        self.done = 0
        self.missing = None

    def up_to(self, place):
        """Runs a block, after those before it. What needs a package that is not installed is skipped, and so is all after it."""
        while self.done <= place and not self.missing:
            code = compile(self.code[self.done], str(ROOT / self.document), "exec")
            self.done += 1
            try:
                exec(code, self.names)
            except ModuleNotFoundError as error:
                if (error.name or "").split(".")[0] not in OPTIONAL:
                    raise
                self.missing = error.name
        if self.missing:
            pytest.skip(f"{self.missing} is not installed")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return {document: Run(document, tmp_path_factory.mktemp("document")) for document in DOCUMENTS}


@pytest.mark.parametrize("document, place", [(document, place) for document in DOCUMENTS for place in range(len(blocks(document)))])
def test_examples(runs, document, place, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(runs[document].folder)
    runs[document].up_to(place)


def test_the_guide_shows_the_script():
    """What the guide prints of `examples/python/resnet.py` is in it."""
    section = (ROOT / "docs/guide/python.md").read_text().split("\n## One ResNet, many machines\n")[1].split("\n## ")[0]
    script = (ROOT / "examples/python/resnet.py").read_text()
    pieces = [piece for block in BLOCK.findall(section) for piece in block.split("\n\n\n")]
    assert len(pieces) == 4
    for piece in pieces:
        for part in piece.split("\n\n") if piece.startswith("import") else [piece]:
            assert part.strip() in script, f"examples/python/resnet.py does not have this piece of docs/guide/python.md:\n{part}"
