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
# What takes long, or reads files that are not here. Only the arguments are checked.
SLOW = (
    (kt, "train"),
    (kt.export, "ExportedTranslator"),
    (kt.export, "export_saved_model"),
    (kt.export, "export_translator"),
    (kt.interop, "export_ctranslate2"),
    (kt.interop, "import_huggingface"),
    (kt.interop, "import_marian"),
    (kt.runs, "average_run"),
    (kt.runs, "repeat"),
    (kt.training, "configure_threads"),
    (kt.training.Trainer, "fit"),
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
        stand_in = mock.create_autospec(getattr(owner, slow))
        if not inspect.isclass(getattr(owner, slow)):
            stand_in.return_value = None  # which is not printed
        monkeypatch.setattr(owner, slow, stand_in)
    prefix = "" if name.startswith("keras_transformer") else "keras_transformer."
    module = importlib.import_module(prefix + name)
    names = {"kt": kt, "keras": keras, "batches": []}
    runner = doctest.DocTestRunner()
    for test in doctest.DocTestFinder().find(module, globs=names):
        runner.run(test)
    assert runner.tries == inspect.getsource(module).count(">>> ")
    assert not runner.failures
