"""Pages in docs/reference/ match the code."""

import importlib
import importlib.util
import inspect
import re

import pytest
from pages import ROOT

import keras_transformer as kt


def page(name):
    return (ROOT / "docs" / "reference" / name).read_text("utf-8")


@pytest.fixture(scope="module")
def reference():
    """The script docs/reference.py as a module."""
    path = ROOT / "docs" / "reference.py"
    spec = importlib.util.spec_from_file_location("reference", path)
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    return reference


@pytest.mark.parametrize("name", ["cli.md", "recipe.md"])
def test_generated_pages_are_up_to_date(name, reference):
    assert page(name) == reference.PAGES[name](), "run `make reference`"


def test_api_has_the_summaries_of_docstrings(reference):
    for path in (ROOT / "docs/reference").glob("*.md"):
        assert page(path.name) == reference.api_page(path), "run `make reference`"


def test_signatures_match_an_export(tiny_signatures):
    row = re.compile(r"^\| `(\w+)` \| (in|out) \| (\w+) \| (.*?) \|", re.MULTILINE)
    written = {
        (section.split()[0], direction, tensor): (kind, shape.count(",") + 1)
        for section in page("signatures.md").split("\n## ")[1:]
        for tensor, direction, kind, shape in row.findall(section)
    }
    found = {
        (name, direction, tensor): (spec.dtype.name, spec.shape.rank)
        for name, function in tiny_signatures.items()
        for direction, tensors in (
            ("in", function.structured_input_signature[1]),
            ("out", function.structured_outputs),
        )
        for tensor, spec in tensors.items()
    }
    assert written == found


@pytest.mark.parametrize("name", kt._MODULES)
def test_reference_documents_every_public_name(name):
    text = "\n".join(
        map(page, (p.name for p in (ROOT / "docs/reference").glob("*.md")))
    )
    shown = set(re.findall(r"^(?:::: |- \[`)([\w.]+)", text, re.MULTILINE))
    module = importlib.import_module(f"keras_transformer.{name}")
    for public in getattr(module, "__all__", ()):
        value = getattr(module, public)
        if inspect.isclass(value) or inspect.isfunction(value):
            path = f"{value.__module__}.{value.__qualname__}"
            assert {value.__module__, path} & shown, public
        fields = getattr(value, "_fields", getattr(value, "model_fields", ()))
        for field in () if public == "Recipe" else fields:  # its fields have a page
            assert f"\n    {field}: " in inspect.getdoc(value), f"{public}.{field}"
