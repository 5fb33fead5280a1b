"""Notebooks built from tutorial pages: their cells match the pages, and they run."""

import importlib.util
import re
import subprocess
import sys

import pytest
from guides import ROOT, matches_output

import keras_transformer as kt

pytest.importorskip("jupytext", reason="needs the extra [docs]")
nbformat = pytest.importorskip("nbformat", reason="needs the extra [docs]")
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


@pytest.fixture(scope="module")
def notebooks():
    """The script docs/notebooks.py as a module."""
    path = list(sys.path)
    spec = importlib.util.spec_from_file_location(
        "notebooks", ROOT / "docs" / "notebooks.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = path


def stored_notebook(page):
    return nbformat.read(page.with_suffix(".ipynb"), as_version=4)


def cells_of(notebook):
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def test_command_of_notebooks_starts(notebooks):
    program = notebooks.COMMAND.format(python=sys.executable, tests=str(ROOT / "tests"))
    result = subprocess.run(
        [sys.executable, "-c", program, "--version"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert kt.__version__ in result.stdout


PAGE = """# Title

<!-- test: as written -->
```bash
keras-transformer train phrases --output runs/a
```

<!-- test: output -->
```text
done
```

Text.

```python
def f():
    return 1


f()
```

```bash
keras-transformer serve saved_models/a
```
"""


def test_build_notebook_converts_blocks_and_removes_hints(notebooks):
    notebook = notebooks.build_notebook(PAGE)
    assert cells_of(notebook) == [
        ("markdown", "# Title"),
        ("code", "%%bash\nkeras-transformer train phrases --output runs/a"),
        ("markdown", "Text."),
        ("code", "def f():\n    return 1\n\n\nf()"),
        ("markdown", "```bash\nkeras-transformer serve saved_models/a\n```"),
    ]
    assert notebook.metadata.kernelspec.name == "python3"
    nbformat.validate(notebook)
    # `serve` would not return, so its block is text and not a cell.
    assert len(notebooks.read_blocks(PAGE)) == 2


def test_tutorials_exist():
    assert len(TUTORIALS) == 4


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_notebook_has_the_source_of_its_page(page, notebooks):
    built = notebooks.build_notebook(page.read_text(encoding="utf-8"))
    stored = stored_notebook(page)
    assert cells_of(stored) == cells_of(built), "run python docs/notebooks.py"
    nbformat.validate(stored)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_notebook_contains_no_error_or_path_of_a_machine(page):
    notebook = stored_notebook(page)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert all(output.output_type != "error" for output in outputs)
    text = "".join(output.get("text", "") for output in outputs)
    assert not re.search(r"/(home|root|tmp|work|Users)/", text)


def shape(text):
    """Replaces each line with the same word, since times and paths differ per run."""
    return re.sub(r"[^\n]+", "line", text)


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_notebook_reproduces_stored_outputs(page, notebooks, tmp_path):
    made = notebooks.make(page, tmp_path)
    found, stored = map(notebooks.outputs_of, (made, stored_notebook(page)))
    assert [list(map(shape, outputs)) for outputs in found] == [
        list(map(shape, outputs)) for outputs in stored
    ]
    for expected, printed in zip(
        notebooks.expected_outputs(page.read_text(encoding="utf-8")), found, strict=True
    ):
        if expected is not None and printed:
            assert matches_output(expected, printed[0])
