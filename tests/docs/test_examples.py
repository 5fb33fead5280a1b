"""Examples in docstrings print what they show."""

import doctest
import functools
import importlib
import inspect
from unittest import mock

import keras
import pytest
from pages import ROOT

import keras_transformer as kt

MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in ("keras_transformer", "pipelines")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if " >>> " in path.read_text("utf-8")
]
# Functions that take long. Only their arguments are checked.
SLOW = (
    (kt, "train"),
    (kt.export, "export_translator"),
    (kt.training.TrainingModel, "fit"),
)


@pytest.fixture(scope="module")
def open_model():
    """Opens each model once."""
    return functools.cache(kt.open_model)


@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_show(name, open_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kt, "open_model", open_model)
    for owner, slow in SLOW:
        monkeypatch.setattr(owner, slow, mock.create_autospec(getattr(owner, slow)))
    prefix = "" if name.startswith("keras_transformer") else "keras_transformer."
    module = importlib.import_module(prefix + name)
    names = {"kt": kt, "keras": keras, "batches": []}
    runner = doctest.DocTestRunner()
    for test in doctest.DocTestFinder().find(module, globs=names):
        runner.run(test)
    assert runner.tries == inspect.getsource(module).count(">>> ")
    assert not runner.failures
