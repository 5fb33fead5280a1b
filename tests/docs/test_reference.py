"""The reference pages: generated ones are up to date, others name what exists."""

import importlib.util

import pytest
from guides import ROOT


@pytest.fixture(scope="module")
def reference():
    path = ROOT / "docs" / "reference.py"
    spec = importlib.util.spec_from_file_location("reference", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["cli.md", "recipe.md"])
def test_generated_pages_are_up_to_date(reference, name):
    written = (ROOT / "docs" / "reference" / name).read_text("utf-8")
    assert written == reference.PAGES[name](), "run `make reference`"
