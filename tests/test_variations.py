"""Tests of `Variations`, options in which other toolkits differ from the paper.

The logits are compared with NumPy. Other tests cover training, files, and recipes.
"""

import dataclasses
import json
import zipfile

import keras
import numpy as np
import paper_in_numpy
import pytest
from keras import ops
from layer_checks import numpy, randomize

import keras_transformer as kt
from keras_transformer.errors import ModelError
from keras_transformer.experiments.cost import forward_flops
from keras_transformer.recipes import RecipeError, load_recipe
from keras_transformer.recipes.schema import ModelSettings, VariationSettings
from keras_transformer.saving import keras_file
from keras_transformer.saving.names import locate
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
    "position_rates": "tensor2tensor",
    "first_position": 2,
    "zero_start_id": 2,
    "embedding_norm": True,
    "source_vocabulary_size": 31,
    "tied_output": False,
}
SOURCE, TARGET = [11, 4, 19, 9, 3], [2, 17, 4, 18, 5]
INPUTS = {"source_ids": np.array([SOURCE]), "target_ids": np.array([TARGET])}


def built(variations, **options):
    keras.utils.set_random_seed(4)
    model = kt.Transformer(**{**SIZES, **options}, variations=variations)
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    randomize(model)
    return model


@pytest.fixture(scope="module")
def every():
    """Model with all variations. Tests must not change it."""
    return built(ALL_VARIATIONS)


def expected_logits(model, variations):
    """Computes the logits for `TARGET` in NumPy, from the model's weights."""
    epsilon = variations.get("layer_norm_epsilon", 1e-6)

    def norm(layer, x):
        return paper_in_numpy.layer_norm(layer, x, epsilon)

    def embed(matrix, ids, embedding_norm):
        d_model = SIZES["d_model"]
        tensor2tensor = variations.get("position_rates") == "tensor2tensor"
        vectors = paper_in_numpy.array(matrix)[ids] * np.sqrt(d_model)
        if "zero_start_id" in variations:
            vectors[np.array(ids) == variations["zero_start_id"]] = 0.0
        vectors = vectors + paper_in_numpy.positional_encoding(
            len(ids),
            d_model,
            span=d_model - 2 if tensor2tensor else None,
            first=variations.get("first_position", 0),
        )
        return vectors if embedding_norm is None else norm(embedding_norm, vectors)

    def add_norm(layer, x, sublayer):
        return norm(layer.layer_norm, x + sublayer(x))

    def attend(layer, value=None):
        def sublayer(x):
            memory = x if value is None else value
            return paper_in_numpy.multi_head_attention(layer, x, memory, causal)

        causal = value is None and decoding
        return sublayer

    def feed_forward(layer, x):
        return add_norm(
            layer.feed_forward_add_norm,
            x,
            lambda y: paper_in_numpy.feed_forward(layer.feed_forward, y),
        )

    target = model.token_embedding
    source = model.source_embedding or target
    decoding = False
    memory = embed(source.embeddings, SOURCE, model.source_norm)
    for layer in model.encoder.layers:
        memory = add_norm(
            layer.self_attention_add_norm, memory, attend(layer.self_attention)
        )
        memory = feed_forward(layer, memory)
    decoding = True
    x = embed(target.embeddings, TARGET, model.target_norm)
    for layer in model.decoder.layers:
        x = add_norm(layer.self_attention_add_norm, x, attend(layer.self_attention))
        attention = attend(layer.cross_attention, memory)
        x = add_norm(layer.cross_attention_add_norm, x, attention)
        x = feed_forward(layer, x)
    matrix = target.embeddings if target.tied else target.output_matrix
    logits = x @ paper_in_numpy.array(matrix).T
    return logits + paper_in_numpy.array(target.bias) if target.use_bias else logits


@pytest.mark.parametrize("name", [*ALL_VARIATIONS, "every"])
def test_variation_matches_numpy(name, every):
    if name == "every":
        model, variations = every, ALL_VARIATIONS
    else:
        variations = {name: ALL_VARIATIONS[name]}
        model = built(variations)
    assert model.variations == kt.Variations(**variations)
    found, expected = numpy(model(INPUTS))[0], expected_logits(model, variations)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    without = expected_logits(built(None), {})
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
    assert np.abs(metrics["loss"] - np.log(metrics["perplexity"])) > 1e-3
    for variable, start, gradient in zip(variables, before, gradients, strict=True):
        difference = start - numpy(variable)
        expected = numpy(tf.convert_to_tensor(gradient))
        np.testing.assert_allclose(difference, expected, rtol=1e-4, atol=1e-5)


def test_file_keeps_variations(every, tmp_path):
    path = tmp_path / "model.keras"
    every.save(path)
    read = keras_file.read(path)
    assert read.variations == every.variations == kt.Variations(**ALL_VARIATIONS)
    np.testing.assert_array_equal(numpy(read(INPUTS)), numpy(every(INPUTS)))
    with keras_file.open_checked(locate(path)) as stored:
        settings = stored.settings
    # The file check's lower bound on the size includes matrices that variations add.
    matrices = sum(
        int(np.prod(weight.shape)) for weight in every.weights if len(weight.shape) > 1
    )
    assert keras_file.min_parameters(settings) == matrices


def test_file_with_fewer_decoder_layers_loads(tmp_path):
    """The file check expects weights of 6 encoder layers but only 1 decoder layer."""
    model = built({"num_decoder_layers": 1}, num_layers=6)
    model.save(tmp_path / "model.keras")
    assert keras_file.read(tmp_path / "model.keras").get_config() == model.get_config()


def test_config_without_variations_contains_none():
    config = built(None).get_config()
    assert config["variations"] is None
    same = built(kt.Variations()).get_config()
    assert {**same, "name": ""} == {**config, "name": ""}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position_rates": "marian"}, "position_rates"),
        ({"num_decoder_layers": 2**31}, "num_decoder_layers"),
        ({"num_decoder_layers": 2**30}, "describe at least"),
        ({"attention_bias": 1}, "attention_bias"),
        ({"layer_norm_epsilon": -1.0}, "layer_norm_epsilon"),
        ({"first_position": -1}, "first_position"),
        ({"source_vocabulary_size": 10**9}, "describe at least"),
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
        ({"position_rates": "marian"}, "`position_rates` must be one of"),
        ({"layer_norm_epsilon": 0.0}, "`layer_norm_epsilon` must be above 0"),
        ({"num_decoder_layers": 0}, "`num_decoder_layers` must be at least 1"),
        ({"zero_start_id": -1}, "`zero_start_id` must be at least 0"),
    ],
)
def test_variations_reject_invalid_values(changes, message):
    with pytest.raises(ValueError, match=message):
        kt.Variations(**changes)


def test_transformer_rejects_unknown_variations():
    with pytest.raises(TypeError, match="attention_biases"):
        built({"attention_biases": True})


def test_learned_positions_begin_at_0():
    learned = {"positions": "learned", "max_length": 9}
    with pytest.raises(ValueError, match="Learned positions begin at 0"):
        built({"first_position": 1}, **learned)
    with pytest.raises(ValueError, match="first_position requires positions"):
        ModelSettings(preset="tiny", **learned, variations={"first_position": 1})


def test_learned_positions_have_no_rates():
    learned = {"positions": "learned", "max_length": 9}
    changes = {"position_rates": "tensor2tensor"}
    with pytest.raises(ValueError, match="Learned positions have no `rates`"):
        built(changes, **learned)
    with pytest.raises(
        ValueError, match="position_rates requires positions: sinusoidal"
    ):
        ModelSettings(preset="tiny", **learned, variations=changes)


def test_recipe_has_the_fields_and_defaults_of_variations(tmp_path):
    defaults = {each.name: each.default for each in dataclasses.fields(kt.Variations)}
    assert VariationSettings().model_dump() == defaults
    path = tmp_path / "recipe.yaml"
    path.write_text("data: {train: {source: a, target: b}}")
    recipe = load_recipe(path, ["model.variations.attention_bias=true"])
    assert recipe.model.constructor_arguments()["variations"] == {
        "attention_bias": True
    }
    same = load_recipe(path, ["model.variations={attention_bias: false}"])
    assert same.model.constructor_arguments()["variations"] is None
    with pytest.raises(RecipeError, match="attention_biases; did you mean"):
        load_recipe(path, ["model.variations.attention_biases=true"])


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
    again = kt.Transformer.from_config(config)
    assert again.activation is model.activation
    layer = kt.layers.FeedForward.from_config(
        model.encoder.layers[0].feed_forward.get_config()
    )
    assert layer.activation is model.activation
