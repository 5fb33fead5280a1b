"""The training step: results, parts of a batch, precisions and compilation.

`TrainingModel` can divide a batch into parts and add up their gradients.
`fault_table.py` explains the marker `fault`.
"""

import functools

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
    tiny_training_model,
    tiny_transformer,
    weights_of,
)

import keras_transformer as kt
from keras_transformer import training
from keras_transformer.training import step_ops

# Rows with different numbers of tokens. The number of rows is not a multiple of 3.
SEVEN_ROWS = ((5, 7), (2, 3), (0, 0), (4, 2), (7, 1), (3, 6), (6, 4))
# Without a graph to trace, a test of a few steps takes a fraction of the time.
EAGER = {"run_eagerly": True}


def fit(model, steps, lengths=SEVEN_ROWS):
    """Trains and returns the metrics of the epoch."""
    history = model.fit(
        dataset(lengths=lengths), steps_per_epoch=steps, shuffle=False, verbose=0
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


def sample_weights(kind, labels, scale=1.0):
    """Returns weights of tokens or sentences, or `None`. The fourth sentence has 0."""
    if kind is None:
        return None
    shape = labels.shape if kind == "tokens" else len(labels)
    weights = scale * np.random.default_rng(5).uniform(0, 2, shape).astype("float32")
    weights[3:4] = 0
    return weights


@functools.cache
def plain_weights(smoothing, kind, has_bias, changes):
    """Returns the weights after three steps of plain Keras, and the first loss."""
    variations = {"logits_bias": True} if has_bias else None
    model = tiny_transformer(variations=variations, **dict(changes))
    loss = training.SmoothedCrossEntropy(smoothing)
    model.compile(sgd(), loss=loss, **EAGER)
    losses = [model.train_on_batch(*each) for each in batches(kind, model.num_outputs)]
    return model.get_weights(), float(np.ravel(losses[0])[0])


def batches(kind, num_outputs, pad_id=0):
    """Returns three batches with weights. Ids 0 and `pad_id` swap places.

    The weights sum to less than 1.
    """
    found = []
    for seed in (1, 2, 3):
        inputs, labels = batch(seed, SEVEN_ROWS)
        labels = np.minimum(labels, num_outputs - 1)
        swapped = swap_rows(np.arange(VOCABULARY, dtype="int32"), pad_id)
        ids = tf.nest.map_structure(lambda ids, to=swapped: to[ids], (inputs, labels))
        found.append((*ids, sample_weights(kind, labels, 0.02)))
    return found


@pytest.mark.parametrize(
    ("parts", "parallel_parts", "changes", "kind", "compiled"),
    [
        (1, 1, {}, None, {}),
        pytest.param(*(1, 1, {}, "tokens", EAGER), marks=pytest.mark.slow),
        (3, 1, {}, "tokens", EAGER),
        (2, 3, {}, "sentences", {}),
        (11, 1, {"pad_id": VOCABULARY - 1}, None, {}),
        (1, 2, {"smoothing": 0.2, "output_size": 20}, None, EAGER),
        *((3, 1, {"dtype": dtype}, None, EAGER) for dtype in ("float64", "bfloat16")),
        *(
            pytest.param(*(1, 1, {"dtype": dtype}, None, EAGER), marks=pytest.mark.slow)
            for dtype in ("float64", "bfloat16")
        ),
        (1, 1, {}, None, {"jit_compile": True}),
        pytest.param(*(3, 1, {}, None, {"jit_compile": True}), marks=pytest.mark.slow),
    ],
)
def test_train_step_matches_plain_keras(parts, parallel_parts, changes, kind, compiled):
    """7 rows are divided into up to 11 parts with different numbers of tokens.

    Another padding id changes nothing, except that ids 0 and `pad_id` swap places.
    """
    pad_id, dtype = changes.get("pad_id", 0), changes.get("dtype", "float32")
    has_bias = not pad_id
    model = tiny_training_model(
        *(sgd(), parts),
        parallel_parts=parallel_parts,
        variations={"logits_bias": True} if has_bias else None,
        **changes,
    )
    model.compile(sgd(), **compiled)
    same = {key: changes[key] for key in changes if key not in ("smoothing", "pad_id")}
    expected, first_loss = plain_weights(
        changes.get("smoothing", 0.1), kind, has_bias, tuple(same.items())
    )
    embeddings = model.transformer.token_embedding.embeddings
    embeddings.assign(swap_rows(np.array(embeddings), pad_id))
    losses, num_tokens, traces, step = [], 0, [], model.train_step
    model.train_step = lambda data: traces.append(data) or step(data)
    for data in batches(kind, model.transformer.num_outputs, pad_id):
        losses.append(model.train_on_batch(*data)[0])
        num_tokens += np.count_nonzero(data[1] != pad_id)
    embeddings.assign(swap_rows(np.array(embeddings), pad_id))
    tolerance = {"rtol": 1e-4, "atol": 1e-5}
    if dtype != "float32":
        tolerance = {"rtol": 0, "atol": 1e-5 if dtype == "float64" else 0.02}
    for weight, right in zip(model.transformer.weights, expected, strict=True):
        assert weight.dtype == dtype
        found = weight.numpy().astype("float32")
        np.testing.assert_allclose(found, right.astype("float32"), **tolerance)
    assert losses[0] == pytest.approx(first_loss, max(1e-5, tolerance["atol"]))
    assert model.num_tokens == num_tokens
    assert int(model.optimizer.iterations) == 3
    # TensorFlow would trace the step twice if it created variables.
    assert len(traces) == (3 if compiled is EAGER else 1)


@pytest.mark.parametrize(
    "jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_chunks_of_a_gpu_do_not_change_the_step(monkeypatch, jit_compile):
    """A chunk has 10 of a batch's 49 tokens. The graph does not know how many rows."""
    monkeypatch.setattr(step_ops, "_CHUNK_LOGITS", 10 * VOCABULARY)
    weights = []
    for device in ("cpu:0", "gpu:0"):
        monkeypatch.setattr(
            keras.distribution, "list_devices", lambda device=device: [device]
        )
        model = tiny_training_model(sgd())
        model.compile(sgd(), jit_compile=jit_compile)
        batches = dataset(lengths=SEVEN_ROWS).unbatch().batch(len(SEVEN_ROWS))
        model.fit(batches, steps_per_epoch=2, shuffle=False, verbose=0)
        weights.append(weights_of(model))
    for weight, expected in zip(*weights, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-4, atol=1e-6)


def test_no_variable_of_a_step_is_int32():
    """TensorFlow keeps int32 variables on the CPU, where XLA fails on a GPU."""
    model = tiny_training_model(dtype="mixed_float16", dropout=0.1)
    variables = [*model.variables, *model.optimizer.variables]
    assert {each.dtype for each in variables} == {"float32", "int64"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("label_smoothing", each) for each in (-0.1, 1.0)),
        *(("token_dropout", each) for each in (-0.1, 1.0)),
        ("gradient_accumulation_steps", 0),
        ("parallel_parts", 0),
    ],
)
def test_training_model_rejects_invalid_arguments(name, value):
    with pytest.raises(ValueError, match=f"`{name}`.* must be"):
        training.TrainingModel(tiny_transformer(), **{name: value})


@pytest.mark.parametrize("kind", [None, "sentences", "tokens"])
def test_metrics_are_means_over_the_tokens_of_an_epoch(kind):
    """The batches have 19, 3 and 0 tokens. With rate 0, the weights do not change.

    The scale of the weights does not matter.
    """
    lengths = [((3, 9), (2, 10), (2, 0)), ((4, 3),), ((0, 0), (2, 0))]
    model = tiny_training_model(keras.optimizers.SGD(0.0))
    model.compile(keras.optimizers.SGD(0.0), **EAGER)
    data, totals, num_tokens = [], np.zeros(4), 0
    for seed, each in enumerate(lengths):
        inputs, labels = batch(seed, each)
        weights = sample_weights(kind, labels, 1e-4)
        data.append((inputs, labels) if kind is None else (inputs, labels, weights))
        mask = (labels > 0) * np.float64(1)
        if kind is not None:
            mask *= weights if kind == "tokens" else weights[:, None]
        log_probs = log_softmax(model.transformer(inputs))
        nll = -np.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]
        smoothed = 0.9 * nll - 0.1 * log_probs.mean(-1)
        values = (smoothed, nll, log_probs.argmax(-1) == labels, np.ones_like(nll))
        totals += [np.sum(mask * value) for value in values]
        num_tokens += np.count_nonzero(labels)
    loss, nll, accuracy = totals[:3] / totals[3]
    expected = {"loss": loss, "perplexity": np.exp(nll), "accuracy": accuracy}
    history = model.fit(
        (each for each in data), steps_per_epoch=3, shuffle=False, verbose=0
    ).history
    assert {name: value[0] for name, value in history.items()} == pytest.approx(
        expected, 1e-4
    )
    assert model.num_tokens == num_tokens == 22
    evaluated = model.evaluate(
        (each for each in data), steps=3, return_dict=True, verbose=0
    )
    assert evaluated == pytest.approx(expected, 1e-4)


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
        for weight, expected in zip(
            weights_of(model), weights_of(models[0]), strict=True
        ):
            np.testing.assert_array_equal(weight, expected)


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


def test_training_model_names_the_alternatives(tmp_path):
    model = tiny_training_model()
    for name in ("loss", "metrics", "weighted_metrics"):
        with pytest.raises(ValueError, match=f"its own loss and metrics.*: {name}"):
            model.compile("adam", **{name: ["mse"]})
    with pytest.raises(NotImplementedError, match="Save its `transformer`, or save"):
        model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    inputs, labels = batch(1)
    with pytest.raises(ValueError, match=r"must be a dict .*Received: list\.$"):
        model.train_step((list(inputs.values()), labels))
    model.transformer.trainable = False
    with pytest.raises(ValueError, match=r"all of its layers are frozen. Set `train"):
        model.train_step((inputs, labels))


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
    model.compile("adam", **EAGER)
    with pytest.raises(ValueError, match="does not support regularizers or `add_loss`"):
        model.fit(*batch(1), verbose=0)
