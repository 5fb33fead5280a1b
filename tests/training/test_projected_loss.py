"""`projected_loss` against other libraries and automatic differentiation.

It computes logits and their loss for a chunk of tokens at a time.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.training.consistency import Consistency
from keras_transformer.training.projected_loss import projected_loss

TOKENS, D_MODEL, VOCABULARY = 29, 7, 53
# Of the loss. It checks that the custom gradient uses the upstream gradient.
FACTOR = 0.37


@pytest.fixture(scope="module")
def batch():
    """Decoder outputs of two passes, the output matrix, labels and token weights."""
    rng = np.random.default_rng(5)
    vectors = rng.normal(size=(2, TOKENS, D_MODEL)).astype("float32")
    matrix = rng.normal(size=(VOCABULARY, D_MODEL)).astype("float32")
    labels = rng.integers(0, VOCABULARY, TOKENS).astype("int32")
    labels[:3] = labels[3]  # several tokens share a row of the matrix
    weights = rng.choice([0.0, 1.0, 2.5], TOKENS).astype("float32")
    return *vectors, matrix, labels, weights


def combine(kind, weight, entropies, kl):
    """Returns the loss, given the cross-entropies and the divergences of two passes.

    The formula is from the paper of R-Drop or SimCut. R-Drop's loss is halved, because
    `Consistency` averages the losses of both passes.
    """
    first, second = entropies
    if kind == "rdrop":
        return (first + second + weight / 2 * (kl[0] + kl[1])) / 2
    return first if kind is None else first + weight * kl[0]


def keras_loss_and_gradients(batch, kind, weight, smoothing):
    """Returns the loss and its gradients, computed by Keras and TensorFlow."""
    first, second, matrix, labels, weights = map(tf.constant, batch)
    factors = [first, matrix] if kind is None else [first, second, matrix]
    with tf.GradientTape() as tape:
        tape.watch(factors)
        logits = [tf.matmul(each, matrix, transpose_b=True) for each in (first, second)]
        entropies = [
            keras.losses.categorical_crossentropy(
                *(tf.one_hot(labels, VOCABULARY), each),
                from_logits=True,
                label_smoothing=smoothing,
            )
            for each in logits
        ]
        p, q = map(tf.nn.log_softmax, logits)
        kl = [
            tf.reduce_sum(tf.exp(one) * (one - other), -1)
            for one, other in ((p, q), (q, p))
        ]
        losses = combine(kind, weight, entropies, kl)
        total = FACTOR * tf.reduce_sum(losses * weights)
    return total, tape.gradient(total, factors)


def torch_loss_and_gradients(batch, kind, weight, smoothing):
    """Returns the loss and its gradients, computed by PyTorch."""
    import torch

    first, second, matrix, labels, weights = map(torch.tensor, batch)
    factors = [first, matrix] if kind is None else [first, second, matrix]
    for each in factors:
        each.requires_grad_()
    logits = [each @ matrix.T for each in (first, second)]
    entropies = [
        torch.nn.functional.cross_entropy(
            each, labels.long(), label_smoothing=smoothing, reduction="none"
        )
        for each in logits
    ]
    p, q = (torch.log_softmax(each, -1) for each in logits)
    kl = [
        torch.nn.functional.kl_div(other, one, reduction="none", log_target=True).sum(
            -1
        )
        for one, other in ((p, q), (q, p))
    ]
    total = FACTOR * (combine(kind, weight, entropies, kl) * weights).sum()
    total.backward()
    return total.item(), [each.grad.numpy() for each in factors]


@pytest.mark.parametrize(
    "expect",
    [
        keras_loss_and_gradients,
        pytest.param(torch_loss_and_gradients, marks=pytest.mark.backends),
    ],
)
@pytest.mark.parametrize(
    # 29 tokens make several chunks, or one of 29 or 64.
    ("kind", "smoothing", "chunk_tokens"),
    [
        *((None, 0.13, chunk_tokens) for chunk_tokens in (1, 8, 29, 64)),
        (None, 0.0, 8),
        *((kind, 0.13, 8) for kind in ("rdrop", "simcut")),
        *((kind, 0.0, 64) for kind in ("rdrop", "simcut")),
    ],
)
def test_projected_loss_matches_other_libraries(
    batch, expect, kind, smoothing, chunk_tokens
):
    expected, expected_gradients = expect(batch, kind, 3.0, smoothing)
    first, second, matrix, labels, weights = map(tf.constant, batch)
    passes = [first] if kind is None else [first, second]
    loss_weights = None if kind is None else Consistency(kind, 3.0).loss_weights

    @tf.function
    def sums_and_gradients():
        with tf.GradientTape() as tape:
            tape.watch([*passes, matrix])
            sums = projected_loss(
                passes, matrix, labels, weights, smoothing, loss_weights, chunk_tokens
            )
            loss = FACTOR * sums[0]
        return loss, sums, tape.gradient(loss, [*passes, matrix])

    loss, (_, nll, correct), gradients = sums_and_gradients()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for gradient, right in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(gradient, right, rtol=1e-4, atol=1e-5)
    # The other sums are those of the first pass, without smoothing.
    plain, _ = expect(batch, None, 0.0, 0.0)
    np.testing.assert_allclose(FACTOR * nll, plain, rtol=1e-5)
    hits = (batch[0] @ batch[2].T).argmax(-1) == batch[3]
    np.testing.assert_allclose(correct, np.sum(hits * batch[4]), rtol=1e-6)


def test_bfloat16_keeps_the_gradients_of_well_predicted_tokens():
    """Softmax and target distribution differ by 0.002 there.

    In bfloat16, with its 8 significant bits, both are 1.
    """
    rng = np.random.default_rng(5)
    matrix = rng.normal(size=(VOCABULARY, 64)).astype("float32") / 8
    labels = rng.integers(0, VOCABULARY, TOKENS).astype("int32")
    weights = np.ones(TOKENS, "float32")
    vectors = tf.cast(11 * matrix[labels], "bfloat16")
    plain = tf.cast(vectors, "float32").numpy()
    plain = plain, plain, matrix, labels, weights
    _, expected = keras_loss_and_gradients(plain, None, 0.0, 0.0)
    with tf.GradientTape() as tape:
        operands = [vectors, tf.constant(matrix)]
        tape.watch(operands)
        sums = projected_loss(operands[:1], operands[1], labels, weights, 0.0, None, 8)
        loss = FACTOR * sums[0]
    for gradient, right in zip(tape.gradient(loss, operands), expected, strict=True):
        error = np.linalg.norm(tf.cast(gradient, "float32") - right)
        assert error < 0.1 * np.linalg.norm(right)


def test_projected_loss_is_finite_for_large_logits(batch):
    first, second, *others = map(tf.constant, batch)
    plain = projected_loss([1e3 * first], *others, 0.1, None, 8)
    twice = projected_loss(
        [1e3 * first, second], *others, 0.1, Consistency().loss_weights, 8
    )
    assert np.all(np.isfinite(plain)) and np.all(np.isfinite(twice))


def test_projected_loss_ignores_tokens_without_weight(batch):
    first, _, matrix, labels, weights = batch
    kept = weights > 0
    sums = projected_loss([first], matrix, labels, weights, 0.1, None, 8)
    fewer = projected_loss(
        [first[kept]], matrix, labels[kept], weights[kept], 0.1, None, 8
    )
    np.testing.assert_allclose(sums, fewer, rtol=1e-5)
    nothing = projected_loss([first], matrix, labels, 0.0 * weights, 0.1, None, 8)
    np.testing.assert_array_equal(nothing, [0.0, 0.0, 0.0])
