"""Notebooks built from tutorial pages: their cells match the pages, and they run."""

import importlib.util
import re
import sys

import pytest
from pages import ROOT, matches_output

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


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_notebook_has_the_source_of_its_page(page, notebooks):
    built = notebooks.build_notebook(page.read_text(encoding="utf-8"))
    stored = stored_notebook(page)
    assert [(cell.cell_type, cell.source) for cell in stored.cells] == [
        (cell.cell_type, cell.source) for cell in built.cells
    ], "run python docs/notebooks.py"


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_notebook_has_the_outputs_of_long_runs(page, notebooks):
    outputs = notebooks.outputs_of(stored_notebook(page))
    copied = notebooks.copied_outputs(page.read_text(encoding="utf-8"))
    for shown, found in zip(copied, outputs, strict=True):
        assert shown is None or found == [shown], "run python docs/notebooks.py"


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
