"""Label-smoothed loss against Keras's dense loss, and metrics against NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_samples import log_softmax

from keras_transformer import training

VOCABULARY = 11
# Rows of 4, 1, 0 and 2 tokens, and padding.
LABELS = np.array(
    [[4, 7, 10, 3, 0], [3, 0, 0, 0, 0], [0, 0, 0, 0, 0], [9, 3, 0, 0, 0]], "int32"
)


def random_logits(seed=5, shape=LABELS.shape):
    generator = np.random.default_rng(seed)
    return generator.normal(size=(*shape, VOCABULARY)).astype("float32") * 3


def dense_loss(labels, logits, label_smoothing, weights):
    """Returns the token mean of Keras's cross-entropy over one-hot vectors."""
    one_hot = tf.one_hot(labels, VOCABULARY)
    losses = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=label_smoothing, reduction="none"
    )(one_hot, logits)
    weights = tf.cast((labels != 0) * weights, tf.float32)
    return tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)


ROW_WEIGHTS = np.array([0.5, 2.0, 7.0, 1.0])
TOKEN_WEIGHTS = np.repeat(ROW_WEIGHTS[:, None], 5, axis=1)


@pytest.mark.parametrize(
    ("label_smoothing", "weights", "dtype", "atol"),
    [
        *((smoothing, None, "float32", 1e-7) for smoothing in (None, 0.0, 0.37)),
        *((0.2, weights, "float32", 1e-7) for weights in (ROW_WEIGHTS, TOKEN_WEIGHTS)),
        (None, None, "bfloat16", 1e-3),
    ],
)
def test_smoothed_cross_entropy_matches_dense_loss(
    label_smoothing, weights, dtype, atol
):
    """The loss is computed in float32. By default, smoothing is 0.1 (section 5.4)."""
    options = {} if label_smoothing is None else {"label_smoothing": label_smoothing}
    logits = tf.cast(random_logits(), dtype)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(logits)
        loss = training.SmoothedCrossEntropy(**options)(LABELS, logits, weights)
        exact = tf.cast(logits, "float32")
        smoothing = options.get("label_smoothing", 0.1)
        expected_weights = 1.0 if weights is None else TOKEN_WEIGHTS
        dense = dense_loss(LABELS, exact, smoothing, expected_weights)
    assert loss.dtype == tf.float32
    assert float(loss) == pytest.approx(float(dense), 1e-6)
    gradients = tf.cast(tape.gradient(loss, logits), "float32").numpy()
    expected = tf.cast(tape.gradient(dense, logits), "float32")
    np.testing.assert_allclose(gradients, expected, atol=atol)
    assert np.all(gradients[LABELS == 0] == 0)
    assert np.all(np.abs(gradients[LABELS != 0]).max(axis=-1) > 0)


def test_padding_may_have_no_logit():
    """In models imported from Marian, the padding id is beyond the logits."""
    labels, logits = np.array([[2, 1, 19]]), random_logits()[:1, :3]
    assert logits.shape[-1] < 19
    ignored = np.array([[2, 1, 0]])
    loss = training.SmoothedCrossEntropy(0.1, pad_id=19)(labels, logits)
    expected = training.SmoothedCrossEntropy(0.1, pad_id=0)(ignored, logits)
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    for metric in (training.Perplexity, training.TokenAccuracy):
        ours, expected = metric(pad_id=19), metric(pad_id=0)
        ours.update_state(labels, logits)
        expected.update_state(ignored, logits)
        assert float(ours.result()) == pytest.approx(float(expected.result()))


def test_loss_and_accuracy_of_padding_are_zero():
    labels = np.zeros((2, 3), "int32")
    logits = tf.constant(random_logits(shape=labels.shape))
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = training.SmoothedCrossEntropy(0.1)(labels, logits)
    assert float(loss) == 0.0
    assert np.all(tape.gradient(loss, logits).numpy() == 0.0)
    metric = training.TokenAccuracy()
    metric.update_state(labels, logits)
    assert float(metric.result()) == 0.0


def test_smoothed_cross_entropy_matches_hand_calculation():
    # p = (1/2, 1/4, 1/4), label 1, smoothing 0.3: the target is (0.1, 0.8, 0.1).
    logits = np.log([[[0.5, 0.25, 0.25]]]).astype("float32")
    loss = training.SmoothedCrossEntropy(0.3)(np.array([[1]]), logits)
    by_hand = 0.1 * np.log(2) + 0.9 * np.log(4)
    assert float(loss) == pytest.approx(by_hand, 1e-6)
    logits = np.zeros((1, 1, VOCABULARY), "float32")
    logits[..., 4] = 1e4
    loss = training.SmoothedCrossEntropy(0.1)
    # Smoothing gives 10 of the 11 ids a probability of 0.1 / 11 and a loss of 1e4 each.
    assert float(loss(np.array([[4]]), logits)) == pytest.approx(1e3 * 10 / 11, 1e-4)
    assert np.isfinite(float(loss(np.array([[5]]), logits)))


@pytest.mark.parametrize(
    ("labels", "logits", "weights", "message"),
    [
        ((4,), (4, 11), None, "Labels must have 2 axes and logits 3"),
        ((4, 4, 1), (4, 4, 11), None, "Received arrays with 3 and 3 axes"),
        ((4, 4), (4, 4, 11), (4, 4, 1), "`sample_weight` must have 1 or 2 axes"),
    ],
)
def test_smoothed_cross_entropy_rejects_other_shapes(labels, logits, weights, message):
    """Broadcasting would silently give each token the weights of all rows."""
    with pytest.raises(ValueError, match="Received: 1"):
        training.SmoothedCrossEntropy(1.0)
    arrays = np.ones(labels, "int32"), np.ones(logits, "float32")
    weights = None if weights is None else np.ones(weights)
    with pytest.raises(ValueError, match=message):
        training.SmoothedCrossEntropy(0.1)(*arrays, weights)


@pytest.mark.parametrize(
    "part",
    [
        training.SmoothedCrossEntropy(0.2, pad_id=1),
        training.Perplexity(pad_id=1),
        training.TokenAccuracy(pad_id=1),
    ],
)
def test_losses_and_metrics_config_round_trip(part):
    config = keras.saving.serialize_keras_object(part)
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is type(part)
    assert again.get_config() == part.get_config()
    assert again.pad_id == 1


def test_metrics_weight_tokens_over_batches():
    """The batches have 7, 1 and 0 tokens. Correct logits of padding do not count."""
    perplexity, accuracy = training.Perplexity(), training.TokenAccuracy()
    total, correct, tokens = 0.0, 0, 0
    for seed, labels in enumerate((LABELS, LABELS[1:3], LABELS[2:3])):
        logits = random_logits(seed, labels.shape)
        logits[labels == 0, 0] = 50.0
        logits[0, 0, labels[0, 0]] = 50.0
        perplexity.update_state(labels, logits)
        accuracy.update_state(labels, logits)
        for label, row in zip(labels[labels != 0], logits[labels != 0], strict=True):
            total -= log_softmax(row)[label]
            correct += int(np.argmax(row) == label)
            tokens += 1
    assert 0 < correct < tokens == 8
    assert float(perplexity.result()) == pytest.approx(np.exp(total / 8), 1e-5)
    assert float(accuracy.result()) == pytest.approx(correct / 8, 1e-6)
    perplexity.reset_state()
    assert float(perplexity.result()) == 1.0
