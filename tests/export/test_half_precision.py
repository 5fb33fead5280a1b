"""Exports for Hugging Face in half precision."""

import numpy as np
import pytest
from tiny_export import open_translator, tiny_model

import keras_transformer as kt
from keras_transformer.errors import ExportError, UserError
from keras_transformer.interop import export_huggingface
from keras_transformer.interop.arrays import read_safetensors


@pytest.fixture
def translator():
    return open_translator(*tiny_model(noise=0.2), kt.BeamSearch())


def test_half_precision_rounds_weights_and_clips_only_the_excluded_bias(
    translator, tmp_path
):
    arrays = []
    for dtype in (None, "float16"):
        folder = export_huggingface(translator, tmp_path / str(dtype), dtype=dtype)
        arrays.append(read_safetensors(folder / "model.safetensors"))
    full, half = arrays
    assert full.keys() == half.keys()
    for name, array in full.items():
        assert half[name].dtype == np.float16
        expected = np.maximum(array, -65504) if name == "final_logits_bias" else array
        np.testing.assert_array_equal(half[name], expected.astype("float16"))
    assert full["final_logits_bias"].min() == -1e9


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            1e6,
            r"encoder\.layers\.0\.fc1\.weight: a weight exceeds the range of float16",
        ),
        (-1e6, r"encoder\.layers\.0\.fc1\.weight: a weight exceeds the range of"),
        (np.nan, "inner/kernel contains NaN or infinity"),
        (np.inf, "inner/kernel contains NaN or infinity"),
    ],
)
def test_half_precision_refuses_weights_that_it_cannot_store(
    translator, tmp_path, value, message
):
    kernel = translator.model.encoder.layers[0].feed_forward.inner_dense.kernel
    array = kernel.numpy()
    array[1, 2] = value
    kernel.assign(array)
    with pytest.raises(UserError, match=message):
        export_huggingface(translator, tmp_path / "half", dtype="float16")
    assert not (tmp_path / "half").exists()


@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "none"])
def test_other_types_are_refused(translator, tmp_path, dtype):
    message = f'dtype must be None or "float16"\\. Received: {dtype!r}'
    with pytest.raises(ExportError, match=message):
        export_huggingface(translator, tmp_path / "x", dtype=dtype)
