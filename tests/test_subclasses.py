"""Subclasses of `Transformer` with layers of their own: saving, loading and copying."""

import copy

import keras
import numpy as np
import pytest
from small_transformers import SIZES as LARGER_SIZES

import keras_transformer as kt
from keras_transformer.errors import ModelError

SIZES = {**LARGER_SIZES, "num_layers": 1}
INPUTS = {
    "source_ids": np.array([[11, 4, 40, 9, 3], [23, 8, 3, 0, 0]], "int32"),
    "target_ids": np.array([[2, 17, 4, 0], [2, 30, 5, 6]], "int32"),
}


@keras.saving.register_keras_serializable(package="tests")
class Adapted(kt.Transformer):
    """Has layers that only `call` builds: one, a list, and one in another layer."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.adapter = keras.layers.Dense(7, name="dense")
        self.more = [keras.layers.Dense(5), keras.layers.Dense(self.d_model)]

    def call(self, inputs, training=None):
        x = self.decoder_output(inputs, training=training)
        for layer in (self.adapter, *self.more):
            x = layer(x)
        return self.token_embedding(x, reverse=True)


@keras.saving.register_keras_serializable(package="tests")
class Built(Adapted):
    """Builds its layers in `build`, as Keras recommends."""

    def build(self, inputs_shape):
        super().build(inputs_shape)
        widths = (self.d_model, 7, 5)
        for layer, width in zip((self.adapter, *self.more), widths, strict=True):
            layer.build((None, None, width))


@keras.saving.register_keras_serializable(package="tests")
class Unbuilt(Adapted):
    """Forgets its layers in `build`, so that only a first call builds them."""

    def build(self, inputs_shape):
        super().build(inputs_shape)


def called(cls):
    model = cls(**SIZES)
    model(INPUTS)
    return model


def save_and_load(model, folder):
    model.save(folder / "model.keras")
    return keras.saving.load_model(folder / "model.keras")


def load_weights(model, folder):
    model.save_weights(folder / "model.weights.h5")
    other = type(model)(**SIZES)
    other.build(dict.fromkeys(INPUTS, (None, None)))
    other.load_weights(folder / "model.weights.h5")
    return other


@pytest.mark.parametrize("cls", [Adapted, Built])
@pytest.mark.parametrize(
    "reload", [save_and_load, load_weights, lambda model, _: copy.deepcopy(model)]
)
def test_layers_of_a_subclass_are_saved_and_copied(cls, reload, tmp_path):
    model = called(cls)
    again = reload(model, tmp_path)
    assert type(again) is cls
    assert len(again.weights) == 31 + 6  # three kernels and biases
    np.testing.assert_array_equal(np.array(again(INPUTS)), np.array(model(INPUTS)))


def test_file_with_other_layers_than_the_model_is_an_error(tmp_path):
    adapted = called(Adapted)
    plain = called(kt.Transformer)
    adapted.save_weights(tmp_path / "adapted.weights.h5")
    plain.save_weights(tmp_path / "plain.weights.h5")
    plain.save_to_preset(tmp_path / "plain")
    with pytest.raises(ValueError, match="of 25 layers, but the model has only 22"):
        plain.load_weights(tmp_path / "adapted.weights.h5")
    with pytest.raises(ValueError, match=r"expected 2 variables, but received 0"):
        adapted.load_weights(tmp_path / "plain.weights.h5")
    with pytest.raises(ModelError, match="parameters, but the file contains"):
        Adapted.from_preset(tmp_path / "plain")
    # A preset is read without code of its own, so it can only be a `Transformer`.
    with pytest.raises(ModelError, match="Input should be 'Transformer'"):
        adapted.save_to_preset(tmp_path / "adapted")


def test_layers_that_build_forgets_are_an_error(tmp_path):
    model = called(Unbuilt)
    with pytest.raises(ValueError, match="but the model has only 22"):
        save_and_load(model, tmp_path)
    with pytest.raises(ValueError, match="but the model has only 22"):
        copy.deepcopy(model)
