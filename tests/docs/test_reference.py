"""Pages in docs/reference/ match the code."""

import importlib
import inspect
import re

import pytest
from pages import ROOT

import keras_transformer as kt
from keras_transformer.export.signatures import Signatures


def page(name):
    return (ROOT / "docs" / "reference" / name).read_text("utf-8")


def test_generated_text_is_up_to_date(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    reference = importlib.import_module("reference")
    for path in reference.FOLDER.glob("*.md"):
        assert page(path.name) == reference.page(path), "run `make reference`"


def test_only_sources_link_to_code():
    for path in (ROOT / "docs" / "reference").glob("*.md"):
        links = re.findall(r"\[([^]\n]*)\]\([^)\n]*\.py\)", page(path.name))
        assert {*links} <= {"Source"}, path.name


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
    # Exports have this signature only on request.
    name = "translate_constrained"
    texts = {*inspect.signature(Signatures.translate_constrained).parameters} - {"self"}
    found |= {(name, "in", text): ("string", 1) for text in texts}
    found |= {
        (name, "out", tensor): found["serving_default", "out", tensor]
        for tensor in ("translations", "scores", "truncated")
    }
    assert written == found


@pytest.mark.parametrize("name", kt._MODULES)
def test_reference_documents_every_public_name(name):
    text = "\n".join(
        map(page, (p.name for p in (ROOT / "docs/reference").glob("*.md")))
    )
    shown = set(re.findall(r"^### `(kt[\w.]*)`$", text, re.MULTILINE))
    module = importlib.import_module(f"keras_transformer.{name}")
    for public in getattr(module, "__all__", ()):
        value = getattr(module, public)
        is_shown = {f"kt.{name}.{public}", f"kt.{public}"} & shown
        assert is_shown or public in kt.errors.__all__, public
        fields = getattr(value, "_fields", getattr(value, "model_fields", ()))
        for field in () if public == "Recipe" else fields:  # its fields have a page
            assert f"\n    {field}: " in inspect.getdoc(value), f"{public}.{field}"
