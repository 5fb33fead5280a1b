"""Frozen parts of a `Transformer` stay frozen, however the model is stored."""

import copy

import keras
import numpy as np
import pytest
from training_samples import VOCABULARY, batch

import keras_transformer as kt
from keras_transformer import training
from keras_transformer.layers import Encoder
from keras_transformer.saving import keras_file
from keras_transformer.training.checkpoints import Checkpoints

SHAPES = {"source_ids": (None, None), "target_ids": (None, None)}
SIZES = {"num_layers": 1, "d_model": 12, "d_ff": 20, "num_heads": 2}
# Prefixes of the paths of weights.
FROZEN = (
    "encoder/",
    "decoder/layer_0/feed_forward/",
    "decoder/layer_0/self_attention/output/",
    "token_embedding/",
)


def freeze(model):
    model.encoder.trainable = False
    model.decoder.layers[0].feed_forward.trainable = False
    model.token_embedding.trainable = False
    if model.built:
        model.decoder.layers[0].self_attention.output_dense.trainable = False


def new_model(frozen_when, seed=3):
    keras.utils.set_random_seed(seed)
    model = kt.Transformer(VOCABULARY, **SIZES)
    if frozen_when == "before":
        freeze(model)
    model.build(SHAPES)
    if frozen_when == "after":
        freeze(model)
    return model


def moved(model):
    """Returns the paths of the weights that a step of AdamW changes."""
    before = model.transformer.get_weights()
    model.train_step(batch(0))
    weights = zip(model.transformer.weights, before, strict=True)
    return {
        weight.path.partition("/")[2]
        for weight, old in weights
        if (np.array(weight) != old).any()
    }


def training_model(transformer):
    model = training.TrainingModel(transformer)
    model.compile(keras.optimizers.AdamW(0.01, weight_decay=0.1))
    model.build(SHAPES)
    return model


def through_file(model, folder):
    model.save(folder / "model.keras")
    return keras.saving.load_model(folder / "model.keras")


def through_checked_file(model, folder):
    model.save(folder / "model.keras")
    return keras_file.read(folder / "model.keras")


def through_preset(model, folder):
    model.save_to_preset(folder / "preset")
    return kt.Transformer.from_preset(folder / "preset")


def through_copy(model, folder):
    return copy.deepcopy(model)


WAYS = (through_file, through_checked_file, through_preset, through_copy)


@pytest.mark.parametrize(
    ("frozen_when", "ways"), [("before", WAYS[:1]), ("after", WAYS)]
)
def test_frozen_parts_do_not_move(frozen_when, ways, tmp_path):
    model = new_model(frozen_when)
    paths = {weight.path.partition("/")[2] for weight in model.weights}
    frozen = FROZEN if frozen_when == "after" else (*FROZEN[:2], *FROZEN[3:])
    expected = {path for path in paths if not path.startswith(frozen)}
    for way in ways:
        again = way(model, tmp_path)
        assert again.get_config() == model.get_config()
        assert moved(training_model(again)) == expected, way


def test_frozen_parts_do_not_move_after_a_checkpoint(tmp_path):
    first = training_model(new_model("after"))
    moved(first)
    Checkpoints(first, tmp_path).save(3, {})
    resumed = training_model(new_model("after", seed=8))
    Checkpoints(resumed, tmp_path).restore()
    paths = moved(resumed)
    assert paths and not any(path.startswith(FROZEN) for path in paths)
    frozen = [
        [np.array(weight) for weight in model.transformer.non_trainable_weights]
        for model in (first, resumed)
    ]
    assert len(frozen[0]) == len(first.transformer.weights) - len(paths)
    for one, other in zip(*frozen, strict=True):
        np.testing.assert_array_equal(one, other)


def test_layer_that_is_created_frozen_does_not_train():
    frozen = Encoder(2, 2, 6, 20, trainable=False)
    outputs = frozen(keras.Input((None, 12)))
    model = keras.Model(frozen.input, keras.layers.Dense(1, name="head")(outputs))
    for each in (model, keras.Model.from_config(model.get_config())):
        assert [weight.path for weight in each.trainable_weights] == [
            "head/kernel",
            "head/bias",
        ]
    frozen.trainable = True
    assert len(frozen.trainable_weights) == len(frozen.weights) == 24
