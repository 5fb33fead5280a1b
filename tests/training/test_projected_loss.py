"""`projected_loss` against Keras's loss and automatic differentiation.

It computes logits and their loss for a chunk of tokens at a time.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.training.projected_loss import projected_loss

TOKENS, D_MODEL, VOCABULARY = 29, 7, 53


@pytest.fixture
def batch():
    rng = np.random.default_rng(5)
    vectors = rng.normal(size=(TOKENS, D_MODEL)).astype("float32")
    matrix = rng.normal(size=(VOCABULARY, D_MODEL)).astype("float32")
    labels = rng.integers(0, VOCABULARY, TOKENS).astype("int32")
    labels[:3] = labels[3]  # several tokens share a row of the matrix
    weights = rng.choice([0.0, 1.0, 2.5], TOKENS).astype("float32")
    return [tf.constant(x) for x in (vectors, matrix, labels, weights)]


def dense(vectors, matrix, labels, weights, smoothing):
    logits = tf.matmul(vectors, matrix, transpose_b=True)
    losses = keras.losses.categorical_crossentropy(
        tf.one_hot(labels, VOCABULARY),
        logits,
        from_logits=True,
        label_smoothing=smoothing,
    )
    return tf.reduce_sum(losses * weights)


@pytest.mark.parametrize(
    ("smoothing", "chunk_tokens"),
    [
        *((0.13, chunk_tokens) for chunk_tokens in (1, 8, 29, 64)),
        (0.0, 8),
        *(pytest.param(0.0, each, marks=pytest.mark.slow) for each in (1, 29, 64)),
    ],
)
def test_projected_loss_matches_dense_loss(batch, smoothing, chunk_tokens):
    vectors, matrix, labels, weights = batch

    @tf.function
    def value_and_gradients(loss):
        with tf.GradientTape() as tape:
            tape.watch([vectors, matrix])
            value = loss()
        return value, tape.gradient(value, [vectors, matrix])

    # The factor 0.37 checks that the custom gradient uses the upstream gradient.
    expected, expected_gradients = value_and_gradients(
        lambda: 0.37 * dense(*batch, smoothing)
    )
    value, gradients = value_and_gradients(
        lambda: 0.37 * projected_loss(*batch, smoothing, chunk_tokens)[0]
    )
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for gradient, right in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(gradient, right, rtol=1e-4, atol=1e-5)
    _, nll, correct = projected_loss(*batch, smoothing, chunk_tokens)
    np.testing.assert_allclose(nll, dense(*batch, 0.0), rtol=1e-5)
    logits = vectors.numpy() @ matrix.numpy().T
    hits = logits.argmax(-1) == labels.numpy()
    np.testing.assert_allclose(correct, np.sum(hits * weights.numpy()), rtol=1e-6)


def test_projected_loss_is_finite_for_large_logits(batch):
    vectors, matrix, labels, weights = batch
    sums = projected_loss(1e3 * vectors, matrix, labels, weights, 0.1, 8)
    assert np.all(np.isfinite(sums))


def test_projected_loss_ignores_tokens_without_weight(batch):
    vectors, matrix, labels, weights = batch
    kept = weights > 0
    sums = projected_loss(*batch, 0.1, 8)
    vectors_kept, labels_kept, weights_kept = (
        tf.boolean_mask(each, kept) for each in (vectors, labels, weights)
    )
    fewer = projected_loss(vectors_kept, matrix, labels_kept, weights_kept, 0.1, 8)
    np.testing.assert_allclose(sums, fewer, rtol=1e-5)
    nothing = projected_loss(vectors, matrix, labels, 0.0 * weights, 0.1, 8)
    np.testing.assert_array_equal(nothing, [0.0, 0.0, 0.0])
