"""Exports keep the files of other exports, and drop no constraint in silence."""

import os

import keras
import pytest
from tiny_export import SEARCH, open_translator, tiny_model

from keras_transformer.errors import ExportError, ModelError
from keras_transformer.export import (
    export_preset,
    export_saved_model,
    export_translator,
)
from keras_transformer.interop import export_huggingface, export_marian
from keras_transformer.opening import open_model
from keras_transformer.serving import ServedModel
from keras_transformer.serving.limits import RequestError


def test_export_removes_only_abandoned_temporary_folders(
    tiny_model, export_only, tmp_path
):
    """A folder is in use if any file in it was written recently."""
    for name in ("killed", "running"):
        file = tmp_path / f".writing-{name}" / "variables" / "data"
        file.parent.mkdir(parents=True)
        file.touch()
        if name == "killed":
            os.utime(file, (0, 0))
        for path in file.parents[:2]:
            os.utime(path, (0, 0))
    export_only("encode")
    export_saved_model(*tiny_model, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {".writing-running", "1"}


def test_exports_reject_forbidden_phrases(tiny_model, tmp_path):
    translator = open_translator(*tiny_model, SEARCH["search"])
    translator = translator.with_search(forbidden=["Hund"])
    for export in (export_translator, export_preset, export_huggingface, export_marian):
        with pytest.raises(ExportError, match="forbidden phrases cannot be exported"):
            export(translator, tmp_path / "export")
    assert not (tmp_path / "export").exists()


def test_search_that_is_not_finite_is_an_error(export_only, tmp_path):
    model, tokenizer = tiny_model(num_layers=1)
    # Finite weights whose products overflow.
    for weight in model.trainable_weights:
        weight.assign(keras.ops.full_like(weight, 3e38))
    export_only("serving_default")
    export_saved_model(model, tokenizer, tmp_path, warmup_requests=False)
    with pytest.raises(ModelError, match=r"1: the model computes NaN or infinity"):
        open_model(tmp_path).translate(["der Hund"])
    served = ServedModel(tmp_path)
    with pytest.raises(RequestError, match="the model computes NaN") as caught:
        served.run("serving_default", {"inputs": ["der Hund"]})
    assert caught.value.status == 500
