"""Tests of `Variations`, options in which other toolkits differ from the paper.

The logits are compared with NumPy. Other tests cover training, files, and recipes.
"""

import json
import random
import zipfile

import keras
import numpy as np
import paper_in_numpy
import pytest
import small_transformers
from keras import ops
from layer_checks import numpy

import keras_transformer as kt
from keras_transformer.arguments import count_parameters
from keras_transformer.errors import ModelError
from keras_transformer.recipes import RecipeError, load_recipe
from keras_transformer.recipes.schema import ModelSettings
from keras_transformer.runs.cost import forward_flops
from keras_transformer.saving import keras_file
from keras_transformer.training import SmoothedCrossEntropy, TrainingModel

SIZES = {
    "vocabulary_size": 23,
    "num_layers": 2,
    "d_model": 12,
    "d_ff": 17,
    "num_heads": 3,
    "dropout": 0.0,
}
# All variations, each with a value that differs from the paper's.
ALL_VARIATIONS = {
    "num_decoder_layers": 1,
    "attention_bias": True,
    "logits_bias": True,
    "layer_norm_epsilon": 0.03,
    "timescales": "tensor2tensor",
    "first_position": 2,
    "zero_start_id": 2,
    "embedding_norm": True,
    "source_vocabulary_size": 31,
    "tied_output": False,
}
SOURCE, TARGET = [11, 4, 19, 9, 3], [2, 17, 4, 18, 5]
INPUTS = {"source_ids": np.array([SOURCE]), "target_ids": np.array([TARGET])}
LEARNED = {"positions": "learned", "max_length": 9}


def built(variations, **options):
    return small_transformers.build_model(
        4, **{**SIZES, **options}, variations=variations
    )


@pytest.fixture(scope="module")
def every():
    """Model with all variations. Tests must not change it."""
    return built(ALL_VARIATIONS)


@pytest.mark.parametrize("name", [*ALL_VARIATIONS, "every"])
def test_variation_matches_numpy(name, every):
    variations, model = ALL_VARIATIONS, every
    if name != "every":
        variations = {name: ALL_VARIATIONS[name]}
        model = built(variations)
    assert model.variations == kt.Variations(**variations)
    found = numpy(model(INPUTS))[0]
    expected = paper_in_numpy.transformer(model, SOURCE, TARGET, variations)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    without = paper_in_numpy.transformer(built(None), SOURCE, TARGET)
    assert np.abs(found - without).max() > 1e-3 * np.abs(without).max()


def test_zero_start_has_no_vector_and_no_gradient(every):
    embedding = every.token_embedding
    assert np.abs(embedding.embeddings.numpy()[2]).max() > 0
    assert not numpy(embedding(np.array([[2]]))).any()
    assert numpy(embedding(np.array([[3]]))).all()
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = ops.sum(ops.square(every(INPUTS)))
    gradient = tf.convert_to_tensor(tape.gradient(loss, embedding.embeddings.value))
    # The target contains the start id. Only its other ids have gradients.
    rows = np.flatnonzero(np.abs(gradient.numpy()).max(axis=1))
    assert sorted(rows) == sorted(set(TARGET) - {2})


@pytest.mark.parametrize("variations", [ALL_VARIATIONS, {"logits_bias": True}])
def test_training_loss_matches_the_logits(variations):
    """Compares the training step's fused loss and gradients with the loss class.

    A step of SGD with rate 1 subtracts the gradient.
    """
    import tensorflow as tf

    model = built(variations)
    labels = np.array([[17, 4, 18, 5, 3]])
    training = TrainingModel(model, label_smoothing=0.1)
    training.compile(keras.optimizers.SGD(1.0))
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        expected = SmoothedCrossEntropy(0.1)(labels, model(INPUTS))
    gradients = tape.gradient(expected, [variable.value for variable in variables])
    before = [numpy(variable) for variable in variables]
    metrics = training.train_step((INPUTS, labels))
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-5)
    for variable, start, gradient in zip(variables, before, gradients, strict=True):
        difference = start - numpy(variable)
        expected = numpy(tf.convert_to_tensor(gradient))
        np.testing.assert_allclose(difference, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"num_layers": 6}])
def test_file_keeps_variations(options, tmp_path):
    """The check of a file expects the weights of `num_decoder_layers` layers."""
    model = built(ALL_VARIATIONS, **options)
    model.save(tmp_path / "model.keras")
    read = keras_file.read(tmp_path / "model.keras")
    assert read.get_config() == model.get_config()
    assert read.get_config()["variations"] == ALL_VARIATIONS
    np.testing.assert_array_equal(numpy(read(INPUTS)), numpy(model(INPUTS)))
    plain = kt.Transformer(**SIZES, variations=kt.Variations())
    assert plain.get_config()["variations"] is None


def test_count_parameters_matches_models_with_random_arguments():
    draw = random.Random(3)
    choices = {
        "num_layers": [1, 2],
        "key_dim": [None, 3],
        "value_dim": [None, 5],
        "normalization": ["post", "pre"],
        "score_mode": ["scaled_dot", "additive"],
        "output_size": [None, 19],
        "attention_window": [None, 3],
    }
    for number in range(12):
        arguments = {name: draw.choice(values) for name, values in choices.items()}
        arguments["variations"] = dict(draw.sample([*ALL_VARIATIONS.items()], 4))
        arguments = {**SIZES, **arguments}
        if number % 3 == 0:
            arguments |= {"positions": "learned", "max_length": 9, "variations": None}
        found = count_parameters(arguments)
        model = small_transformers.built(**arguments)
        assert found == model.count_params(), arguments


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"timescales": "marian"}, "timescales"),
        ({"num_decoder_layers": 2**31}, "num_decoder_layers"),
        ({"num_decoder_layers": 2**30}, "the settings describe"),
        ({"attention_bias": 1}, "attention_bias"),
        ({"layer_norm_epsilon": -1.0}, "layer_norm_epsilon"),
        ({"first_position": -1}, "first_position"),
        ({"source_vocabulary_size": 10**9}, "the settings describe"),
        ({"run": "code"}, "run"),
    ],
)
def test_file_with_forged_variations_is_refused(every, tmp_path, changes, message):
    path, forged = tmp_path / "model.keras", tmp_path / "forged.keras"
    every.save(path)
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(forged, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "config.json":
                values = json.loads(content)
                values["config"]["variations"].update(changes)
                content = json.dumps(values).encode()
            target.writestr(name, content)
    with pytest.raises(ModelError, match=message):
        keras_file.read(forged)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"timescales": "marian"}, "`timescales` must be one of"),
        ({"layer_norm_epsilon": 0.0}, "`layer_norm_epsilon` must be above 0"),
        ({"num_decoder_layers": 0}, "`num_decoder_layers` must be at least 1"),
        ({"zero_start_id": -1}, "`zero_start_id` must be at least 0"),
    ],
)
def test_variations_reject_invalid_values(changes, message):
    with pytest.raises(ValueError, match=message):
        kt.Variations(**changes)
    with pytest.raises(ValueError, match=next(iter(changes))):
        ModelSettings(size="tiny", variations=changes)


@pytest.mark.parametrize(
    "changes", [{"first_position": 1}, {"timescales": "tensor2tensor"}]
)
def test_learned_positions_have_no_variations(changes):
    with pytest.raises(
        ValueError, match="Only sinusoids have `timescales` and `first_"
    ):
        built(changes, **LEARNED)
    with pytest.raises(ValueError, match="requires positions: sinusoidal"):
        ModelSettings(size="tiny", **LEARNED, variations=changes)


def test_recipe_keeps_the_changes_only(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("data: {train: {source: a, target: b}}")
    recipe = load_recipe(path, ["model.variations.attention_bias=true"])
    changes = {"attention_bias": True}
    assert recipe.model.constructor_arguments()["variations"] == changes
    same = load_recipe(path, ["model.variations={attention_bias: false}"])
    assert same.model.constructor_arguments()["variations"] is None
    with pytest.raises(RecipeError, match=r"attention_biases\. Did you mean"):
        load_recipe(path, ["model.variations.attention_biases=true"])
    with pytest.raises(TypeError, match="attention_biases"):
        built({"attention_biases": True})


def test_flops_count_the_decoder_layers():
    settings = {**SIZES, "key_dim": 4, "value_dim": 4}
    # FLOPs of 2 encoder and 2 decoder layers. With a vocabulary of 0, logits are free.
    both = forward_flops(settings, 0, [7], [5])
    # One encoder layer on 7 tokens: 4 projections, Q K^T and its product with V, and
    # the feed-forward network. A multiply-add counts as 2.
    encoder = 2 * (12 * 4 * 7 * 12 + 2 * 7 * 7 * 12) + 4 * 12 * 17 * 7
    decoder = both / 2 - encoder
    found = forward_flops({**settings, "variations": ALL_VARIATIONS}, 0, [7], [5])
    # ALL_VARIATIONS has 2 encoder layers but 1 decoder layer.
    assert found == 2 * encoder + decoder


def test_quick_gelu_is_an_activation_by_name():
    model = built(None, activation="quick_gelu")
    x = np.array([-2.0, 0.0, 0.5], "float32")
    expected = x / (1 + np.exp(-1.702 * x))
    np.testing.assert_allclose(numpy(model.activation(x)), expected, rtol=1e-5)
    config = model.get_config()
    assert config["activation"] == "quick_gelu"
    assert kt.Transformer.from_config(config).activation is model.activation
    config = model.encoder.layers[0].feed_forward.get_config()
    assert kt.layers.FeedForward.from_config(config).activation is model.activation
