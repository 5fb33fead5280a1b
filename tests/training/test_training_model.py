"""The training step: results, parts of a batch, precisions and compilation.

`TrainingModel` can divide a batch into parts and add up their gradients.
`fault_table.py` explains the marker `fault`.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_samples import (
    VOCABULARY,
    batch,
    dataset,
    log_softmax,
    paper_adam,
    plain_model,
    tiny_training_model,
    tiny_transformer,
    weights_of,
)

import keras_transformer as kt
from keras_transformer import training

# Rows with different numbers of tokens. The number of rows is not a multiple of 3.
SEVEN_ROWS = ((5, 7), (2, 3), (0, 0), (4, 2), (7, 1), (3, 6), (6, 4))


def fit(model, steps, lengths=SEVEN_ROWS, pad_id=0):
    """Trains and returns the metrics of the epoch. Ids 0 and `pad_id` swap places."""
    swapped = swap_rows(np.arange(VOCABULARY, dtype="int32"), pad_id)
    batches = dataset(lengths=lengths).map(
        lambda *parts: tf.nest.map_structure(lambda ids: tf.gather(swapped, ids), parts)
    )
    history = model.fit(
        batches, steps_per_epoch=steps, shuffle=False, verbose=0
    ).history
    return {name: values[0] for name, values in history.items()}


def swap_rows(array, row):
    """Returns a copy in which row 0 and another row swap places."""
    swapped = array.copy()
    swapped[[0, row]] = array[[row, 0]]
    return swapped


def sgd():
    # Unlike Adam's updates, SGD's grow with the gradients.
    return keras.optimizers.SGD(0.5)


def assert_same_weights(model, other, rtol=1e-4, atol=1e-5):
    for weight, expected in zip(weights_of(model), weights_of(other), strict=True):
        np.testing.assert_allclose(weight, expected, rtol=rtol, atol=atol)


@pytest.fixture(scope="module")
def trained():
    """A model after 5 steps of SGD, and its metrics."""
    model = tiny_training_model(sgd())
    return model, fit(model, 5)


@pytest.fixture(scope="module")
def plain():
    """A transformer after the same 5 steps of plain Keras training, and its metrics."""
    model = plain_model(sgd())
    return model, fit(model, 5)


def test_train_step_matches_plain_compile(trained, plain):
    assert_same_weights(trained[0], plain[0])
    for name in ("perplexity", "accuracy"):
        assert trained[1][name] == pytest.approx(plain[1][name], 1e-5)


def test_train_step_matches_plain_compile_with_adam():
    model, other = tiny_training_model(), tiny_transformer()
    traces, step = [], model.train_step
    model.train_step = lambda data: traces.append(data) or step(data)
    adam = keras.optimizers.Adam.from_config(paper_adam().get_config())
    other.compile(adam, loss=training.SmoothedCrossEntropy(0.1))
    adam.build(other.trainable_variables)
    fit(model, 5), fit(other, 5)
    assert_same_weights(model, other, atol=1e-4)
    # TensorFlow would trace the step twice if it created variables.
    assert len(traces) == 1


def sample_weights(kind, labels):
    draw = np.random.default_rng(5)
    if kind == "sentences":
        return draw.uniform(0, 2, len(labels)).astype("float32")
    return draw.uniform(0, 2, labels.shape).astype("float32")


# The tests of `fit` cover batches without weights.
@pytest.mark.parametrize("kind", ["sentences", "tokens"])
def test_calls_on_batches_match_plain_compile(kind):
    """In training, the sample weights sum to less than 1 and one sentence has none."""
    model, in_parts = (tiny_training_model(sgd(), parts) for parts in (1, 3))
    other = tiny_transformer()
    other.compile(sgd(), loss=training.SmoothedCrossEntropy(0.1))
    for seed in (1, 2):
        inputs, labels = batch(seed, SEVEN_ROWS)
        weights = 0.02 * sample_weights(kind, labels)
        weights[3] = 0
        for each in (model, in_parts, other):
            each.train_on_batch(inputs, labels, weights)
    assert_same_weights(model, other)
    assert_same_weights(in_parts, other)
    inputs, labels = batch(3, SEVEN_ROWS)
    weights = sample_weights(kind, labels)
    loss, perplexity, accuracy = model.test_on_batch(inputs, labels, weights)
    log_probs = log_softmax(other(inputs))
    picked = np.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]
    mask = (labels > 0) * (weights if kind == "tokens" else weights[:, None])
    nll = -np.sum(mask * picked) / mask.sum()
    assert perplexity == pytest.approx(np.exp(nll), rel=1e-4)
    smoothed = 0.9 * nll - 0.1 * np.sum(mask * log_probs.mean(-1)) / mask.sum()
    assert loss == pytest.approx(smoothed, rel=1e-4)
    best = np.sum(mask * (log_probs.argmax(-1) == labels)) / mask.sum()
    assert accuracy == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("label_smoothing", each) for each in (-0.1, 1.0)),
        *(("word_dropout", each) for each in (-0.1, 1.0)),
        ("gradient_accumulation_steps", 0),
        ("parallel_parts", 0),
    ],
)
def test_training_model_rejects_invalid_arguments(name, value):
    with pytest.raises(ValueError, match=f"`{name}`.* must be"):
        training.TrainingModel(tiny_transformer(), **{name: value})


def test_means_do_not_depend_on_the_scale_of_weights():
    inputs, labels = batch(1, SEVEN_ROWS)
    model = tiny_training_model(keras.optimizers.SGD(0.0))
    expected = model.evaluate(inputs, labels, 7, verbose=0)
    weights = np.full(7, 1e-4, "float32")
    found = model.evaluate(inputs, labels, 7, verbose=0, sample_weight=weights)
    assert found == pytest.approx(expected, rel=1e-5)
    fitted = model.fit(inputs, labels, 7, verbose=0, sample_weight=weights)
    values = [fitted.history[name][0] for name in ("loss", "perplexity", "accuracy")]
    assert values == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("output_size", "smoothing"), [(None, 0.2), (20, 0.1)])
def test_train_step_loss_and_gradient_match_loss_class(output_size, smoothing):
    """A step of SGD with rate 1 subtracts the gradient."""
    inputs, labels = batch(0, SEVEN_ROWS)
    labels = np.minimum(labels, (output_size or 99) - 1)
    model = tiny_training_model(
        keras.optimizers.SGD(1.0), smoothing=smoothing, output_size=output_size
    )
    transformer = model.transformer
    variables = [variable.value for variable in transformer.trainable_variables]
    with tf.GradientTape() as tape:
        loss = training.SmoothedCrossEntropy(smoothing)(labels, transformer(inputs))
    gradients = [
        tf.convert_to_tensor(gradient).numpy()
        for gradient in tape.gradient(loss, variables)
    ]
    before = [variable.numpy() for variable in variables]
    one_batch = tf.data.Dataset.from_tensors((inputs, labels))
    history = model.fit(one_batch, shuffle=False, verbose=0).history
    assert history["loss"][0] == pytest.approx(float(loss), 1e-5)
    for variable, start, gradient in zip(variables, before, gradients, strict=True):
        np.testing.assert_allclose(start - variable.numpy(), gradient, atol=2e-6)


def test_epoch_metrics_weight_tokens():
    """The batches have 19, 3 and 0 tokens. With rate 0, the weights do not change."""
    batches = [
        batch(seed, lengths)
        for seed, lengths in enumerate([((3, 9), (2, 10)), ((4, 3),), ((0, 0), (2, 0))])
    ]
    model = tiny_training_model(keras.optimizers.SGD(0.0))
    nll = smoothed = correct = tokens = 0.0
    for inputs, labels in batches:
        log_probs = log_softmax(model.transformer(inputs))
        for label, row in zip(labels[labels > 0], log_probs[labels > 0], strict=True):
            nll -= row[label]
            smoothed -= 0.9 * row[label] + 0.1 * np.mean(row)
            correct += np.argmax(row) == label
            tokens += 1
    assert tokens == 22
    expected = {
        "loss": smoothed / 22,
        "perplexity": np.exp(nll / 22),
        "accuracy": correct / 22,
    }
    rows = tf.data.Dataset.from_generator(
        lambda: iter(batches),
        output_signature=(
            {
                "source_ids": tf.TensorSpec([None, None], tf.int32),
                "target_ids": tf.TensorSpec([None, None], tf.int32),
            },
            tf.TensorSpec([None, None], tf.int32),
        ),
    )
    history = model.fit(
        rows.repeat(), steps_per_epoch=3, shuffle=False, verbose=0
    ).history
    evaluated = model.evaluate(rows, steps=3, return_dict=True, verbose=0)
    for name, value in expected.items():
        assert history[name][0] == pytest.approx(value, 1e-5), name
        assert evaluated[name] == pytest.approx(value, 1e-5), name
    assert int(model.token_counter.result()) == 22


@pytest.mark.parametrize(
    ("parts", "parallel_parts", "pad_id"),
    [
        pytest.param(3, 1, 0, marks=pytest.mark.slow),
        (11, 1, VOCABULARY - 1),
        pytest.param(1, 2, 0, marks=pytest.mark.slow),
        (2, 3, 0),
    ],
)
def test_parts_match_whole_batch(trained, parts, parallel_parts, pad_id):
    """7 rows are divided into 3, 11, 2 and 6 parts with different numbers of tokens.

    Another padding id changes nothing, except that ids 0 and `pad_id` swap places.
    """
    model = tiny_training_model(
        sgd(), parts, parallel_parts=parallel_parts, pad_id=pad_id
    )
    embeddings = model.transformer.token_embedding.embeddings
    embeddings.assign(swap_rows(np.array(embeddings), pad_id))
    metrics = fit(model, 5, pad_id=pad_id)
    embeddings.assign(swap_rows(np.array(embeddings), pad_id))
    assert_same_weights(model, trained[0])
    tokens = sum(target_length for _, target_length in SEVEN_ROWS)
    assert int(model.token_counter.result()) == 5 * tokens
    assert metrics == pytest.approx(trained[1], 1e-4)
    assert int(model.optimizer.iterations) == 5


@pytest.mark.parametrize(
    ("at_once", "num_layers"),
    [((1, 4), 1), pytest.param((1, 2, 4, 4), 3, marks=pytest.mark.slow)],
)
def test_parallel_parts_match_sequential_parts(at_once, num_layers):
    """The dropout masks do not depend on the order in which parts finish."""
    models = [
        tiny_training_model(
            parts=4 // parallel,
            parallel_parts=parallel,
            dropout=0.3,
            num_layers=num_layers,
        )
        for parallel in at_once
    ]
    metrics = []
    for model in models:
        keras.utils.set_random_seed(5)
        metrics.append(fit(model, 8))
    for model, found in zip(models[1:], metrics[1:], strict=True):
        assert found == metrics[0]
        assert_same_weights(model, models[0], rtol=0, atol=0)


def losses_over_three_passes(**changes):
    """Returns a model after 3 x 20 steps on one batch, and 3 mean losses."""
    model = tiny_training_model(paper_adam(20), **changes)
    one_batch = tf.data.Dataset.from_tensors(batch(0)).repeat()
    history = model.fit(
        one_batch, steps_per_epoch=20, epochs=3, shuffle=False, verbose=0
    ).history
    return model, history["loss"]


@pytest.fixture(scope="module")
def exact_losses():
    return losses_over_three_passes()[1]


@pytest.mark.parametrize(
    ("precision", "parts"),
    [
        ("mixed_bfloat16", 1),
        pytest.param("mixed_float16", 1, marks=pytest.mark.slow),
        pytest.param("mixed_float16", 3, marks=pytest.mark.slow),
    ],
)
def test_mixed_precision_learns(exact_losses, precision, parts):
    model, losses = losses_over_three_passes(dtype=precision, parts=parts)
    scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scaled == (precision == "mixed_float16")
    assert losses[2] < losses[1] < losses[0]
    assert losses[2] < 0.75 * losses[0]
    assert losses == pytest.approx(exact_losses, 0.03)
    assert losses != exact_losses
    assert {weight.dtype for weight in model.transformer.weights} == {"float32"}


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float64", 1e-5), ("bfloat16", 0.02)]
)
def test_other_dtypes_match_plain_compile(dtype, tolerance):
    options = {"dtype": dtype, "variations": {"logits_bias": True}}
    model, in_parts = (tiny_training_model(sgd(), parts, **options) for parts in (1, 3))
    other = tiny_transformer(**options)
    other.compile(sgd(), loss=training.SmoothedCrossEntropy(0.1))
    for each in (model, in_parts, other):
        each.train_on_batch(*batch(1, SEVEN_ROWS))
    for each in (model, in_parts):
        assert {weight.dtype for weight in each.transformer.weights} == {dtype}
        for weight, expected in zip(
            each.transformer.weights, other.weights, strict=True
        ):
            difference = np.abs(np.subtract(weight, expected, dtype="float32"))
            assert difference.max() < tolerance


@pytest.mark.fault(
    "F11", "the scale halves, no update, `iterations` unchanged; training continues"
)
def test_float16_overflow_skips_update():
    """With a scale beyond float16, updates are skipped and the scale is halved."""
    optimizer = keras.optimizers.LossScaleOptimizer(sgd(), initial_scale=2.0**30)
    model = tiny_training_model(optimizer, dtype="mixed_float16")
    before = weights_of(model)
    fit(model, 1)
    assert float(optimizer.dynamic_scale) == 2.0**29
    assert int(optimizer.iterations) == 0
    for weight, expected in zip(weights_of(model), before, strict=True):
        np.testing.assert_array_equal(weight, expected)
    fit(model, 25)
    assert float(optimizer.dynamic_scale) < 2.0**28
    assert 0 < int(optimizer.iterations) < 25
    moved = [
        np.max(np.abs(weight - expected))
        for weight, expected in zip(weights_of(model), before, strict=True)
    ]
    assert min(moved) > 0 and np.all(np.isfinite(moved))


@pytest.mark.parametrize("parts", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_xla_step_matches_plain_step(trained, parts):
    model = tiny_training_model(sgd(), parts)
    model.compile(sgd(), jit_compile=True)
    metrics = fit(model, 5)
    assert_same_weights(model, trained[0])
    assert metrics == pytest.approx(trained[1], 1e-4)


@pytest.mark.parametrize("name", ["loss", "metrics", "weighted_metrics"])
def test_compile_rejects_losses_and_metrics(name):
    model = tiny_training_model()
    with pytest.raises(ValueError, match=f"its own loss and metrics.*: {name}"):
        model.compile("adam", **{name: ["mse"]})


def add_regularizer(transformer):
    for layer in transformer.encoder.layers:
        layer.feed_forward.inner_dense.kernel_regularizer = keras.regularizers.L2(1.0)


def add_layer_loss(transformer):
    layer = transformer.encoder.layers[0]
    call = layer.call

    def call_with_loss(x, *args, **kwargs):
        layer.add_loss(keras.ops.sum(x))
        return call(x, *args, **kwargs)

    layer.call = call_with_loss


@pytest.mark.parametrize("add", [add_regularizer, add_layer_loss])
@pytest.mark.parametrize("parts", [1, 2])
def test_fit_rejects_losses_of_the_transformer(add, parts):
    transformer = kt.Transformer(23, num_layers=1, d_model=12, d_ff=20, num_heads=2)
    add(transformer)
    model = training.TrainingModel(transformer, gradient_accumulation_steps=parts)
    model.compile("adam")
    with pytest.raises(ValueError, match="does not support regularizers or `add_loss`"):
        model.fit(*batch(1), verbose=0)


def test_saving_names_the_alternatives(tmp_path):
    model = tiny_training_model()
    with pytest.raises(NotImplementedError, match="Save its `transformer`, or save"):
        model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")


def test_fit_rejects_a_model_of_which_everything_is_frozen():
    model = tiny_training_model()
    model.transformer.trainable = False
    with pytest.raises(ValueError, match=r"all of its layers are frozen. Set `train"):
        model.train_step(batch(1))


def test_fit_rejects_inputs_that_are_no_dict():
    inputs, labels = batch(1)
    with pytest.raises(ValueError, match=r"must be a dict .*Received: list\.$"):
        tiny_training_model().train_step((list(inputs.values()), labels))
