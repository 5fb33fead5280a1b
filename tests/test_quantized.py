"""Quantized models give the same output after they are saved and loaded."""

import keras
import numpy as np
import pytest
from layer_checks import numpy
from small_transformers import built

import keras_transformer as kt
from keras_transformer.saving.keras_file import read

IDS = {
    "source_ids": np.array([[5, 6, 7, 3], [8, 9, 3, 0]], "int32"),
    "target_ids": np.array([[2, 11, 12], [2, 13, 0]], "int32"),
}


def small_model(**options):
    sizes = {"num_layers": 1, "d_model": 16, "d_ff": 24, "num_heads": 2, **options}
    return built(20, **sizes)


def modes(model):
    """Returns the quantization mode of each `Dense` layer, `None` if not quantized."""
    return [
        layer.quantization_mode
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.Dense)
    ]


@pytest.mark.slow
def test_quantized_transformer_is_saved_and_loaded(tmp_path):
    model = small_model(dtype="mixed_bfloat16")
    model.quantize("int8")
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    # 4 projections per attention and 2 per FFN: encoder 4 + 2, decoder 8 + 2.
    assert modes(loaded) == modes(model) == ["int8"] * 16
    np.testing.assert_array_equal(numpy(loaded(IDS)), numpy(model(IDS)))
    loaded.save(path)
    for one, other in zip(read(path).weights, model.weights, strict=True):
        np.testing.assert_array_equal(numpy(one), numpy(other))


def test_quantized_weights_load_into_a_plain_model(tmp_path):
    model, other = small_model(), small_model()
    model.quantize("int8", filters="query")
    assert set(modes(model)) == {None, "int8"}
    model.save_weights(tmp_path / "a.weights.h5")
    other.load_weights(tmp_path / "a.weights.h5")
    assert modes(other) == modes(model)
    np.testing.assert_array_equal(numpy(other(IDS)), numpy(model(IDS)))


def test_functional_model_of_quantized_layers_is_saved_and_loaded(tmp_path):
    inputs = keras.Input((None, 8))
    outputs = kt.layers.EncoderLayer(num_heads=2, key_dim=4, d_ff=12)(inputs)
    model = keras.Model(inputs, outputs)
    model.quantize("int8")
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    x = np.random.default_rng(1).normal(size=(2, 3, 8)).astype("float32")
    np.testing.assert_array_equal(numpy(loaded(x)), numpy(model(x)))


@pytest.mark.parametrize(
    "arguments",
    [
        {"mode": "int4"},
        {"mode": "float8"},
        # int8 weights without int8 activations.
        {
            "config": keras.quantizers.Int8QuantizationConfig(
                activation_quantizer=None,
                weight_quantizer=keras.quantizers.AbsMaxQuantizer(axis=0),
            )
        },
    ],
)
def test_save_rejects_other_quantization_modes(tmp_path, arguments):
    model = small_model()
    model.quantize(**arguments)
    good = tmp_path / "good.keras"
    good.write_bytes(b"an older file")
    saves = {
        "model.keras": model.save,
        "good.keras": model.save,
        "model.weights.h5": model.save_weights,
        "preset": model.save_to_preset,
    }
    for name, save in saves.items():
        with pytest.raises(
            ValueError, match=r'only be saved after `quantize\("int8"\)`'
        ) as error:
            save(tmp_path / name)
        assert "\n" not in str(error.value)
    assert [*tmp_path.iterdir()] == [good]
    assert good.read_bytes() == b"an older file"
