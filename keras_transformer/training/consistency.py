"""Consistency training: a loss for the divergence of two passes over a batch."""

from typing import NamedTuple

import keras
import tensorflow as tf

from keras_transformer.training.projected_loss import divide_tokens, subtract_targets
from keras_transformer.training.replicas import num_replicas, replica_index


class Consistency:
    """Loss term for the divergence of two passes over the same batch.

    The passes predict the distributions p (first pass) and q (second pass).

    `"rdrop"` (Liang et al., 2021): the passes differ in their dropout. The loss is the
    mean of both cross-entropies plus `weight / 4 * (KL(p, q) + KL(q, p))`. This is half
    of the loss of Liang et al., who add the losses of both passes.

    `"simcut"` (Gao et al., 2022): in the second pass, the embeddings of some source and
    target tokens are zero. The loss is the cross-entropy of the first pass plus
    `weight * KL(p, q)`. Gradients flow through both distributions.

    Args:
        kind: `"rdrop"` or `"simcut"`.
        weight: Weight of the divergence, alpha in both papers.
        cutoff: Fraction of tokens whose embeddings are zero in the second pass, in
            [0, 1). For `"simcut"` only.

    Raises:
        ValueError: If `kind` is unknown, `weight` is below 0, or `cutoff` is outside
            [0, 1).
    """

    def __init__(self, kind="simcut", weight=3.0, cutoff=0.05):
        if kind not in ("rdrop", "simcut"):
            raise ValueError(f'`kind` must be "rdrop" or "simcut". Received: {kind!r}.')
        if weight < 0:
            raise ValueError(f"`weight` must be at least 0. Received: {weight}.")
        if not 0 <= cutoff < 1:
            raise ValueError(f"`cutoff` must be in [0, 1). Received: {cutoff}.")
        self.kind = kind
        self.weight = weight
        self.cutoff = cutoff if kind == "simcut" else 0.0

    @property
    def loss_weights(self):
        """The `LossWeights` of the two passes."""
        if self.kind == "rdrop":
            return LossWeights(0.5, 0.5, self.weight / 4, self.weight / 4)
        return LossWeights(1.0, 0.0, self.weight, 0.0)


class LossWeights(NamedTuple):
    """Weights of the terms of `consistency_loss`."""

    first: float  # of the cross-entropy of the first pass
    second: float  # of the cross-entropy of the second pass
    forward: float  # of KL(first, second)
    backward: float  # of KL(second, first)


class TokenDropout(keras.layers.Layer):
    """Draws one factor per token, by which the token's embedding is multiplied.

    The factor of a dropped token is 0.

    Args:
        rate: Fraction of dropped tokens, in [0, 1).
        is_scaled: If true, the factor of the other tokens is `1 / (1 - rate)`, so that
            the mean over all tokens is about 1. If false, the factor is 1.
    """

    def __init__(self, rate, is_scaled=True, **kwargs):
        super().__init__(**kwargs)
        self.rate = rate
        self.is_scaled = is_scaled
        self.seed_generator = keras.random.SeedGenerator()

    def call(self, ids):
        """Returns the factors of `ids`, both `[batch, length]`, in float32."""
        kept_factor = 1 / (1 - self.rate) if self.is_scaled else 1.0
        # All replicas have the same seed, so each draws for all and uses its own part.
        shape = (num_replicas(), *tf.unstack(tf.shape(ids)))
        draws = keras.random.uniform(shape, seed=self.seed_generator)[replica_index()]
        return tf.where(draws < self.rate, 0.0, kept_factor)


def consistency_loss(
    first,
    second,
    matrix,
    labels,
    weights,
    loss_weights,
    label_smoothing=0.0,
    chunk_tokens=256,
):
    """Computes the loss of two passes over the same tokens, like `projected_loss`.

    Args:
        first: `[tokens, d_model]`, float32, the decoder output of the first pass.
        second: Like `first`, for the second pass.
        matrix: `[vocabulary_size, d_model]`, float32, the output projection.
        labels: `[tokens]`, int32.
        weights: `[tokens]`, float32, the weights of the labels, 0 for padding.
        loss_weights: `LossWeights` of the terms of the loss.
        label_smoothing: Probability mass spread over the vocabulary, in [0, 1).
        chunk_tokens: Number of tokens per chunk.

    Returns:
        `[3]`, float32, weighted sums over tokens: the combined loss of both passes, and
        the negative log-likelihood and the accuracy of the first pass. Only the loss
        has gradients, with respect to `first`, `second` and `matrix`.
    """

    @tf.custom_gradient
    def sums_with_gradient(first, second, matrix):
        sums, gradients = _losses_and_gradients(
            (first, second),
            matrix,
            labels,
            weights,
            loss_weights,
            label_smoothing,
            chunk_tokens,
        )

        def gradient(upstream):
            return [upstream[0] * each for each in gradients]

        return sums, gradient

    return sums_with_gradient(first, second, matrix)


def _losses_and_gradients(
    vectors, matrix, labels, weights, loss_weights, label_smoothing, chunk_tokens
):
    """Returns the sums of `consistency_loss`, and the gradients of the loss.

    The gradients are with respect to both passes' `vectors` and to `matrix`.
    """
    num_tokens = tf.shape(labels)[0]
    chunks, num_chunks = divide_tokens((*vectors, labels, weights), chunk_tokens)
    mean_row = tf.reduce_mean(matrix, axis=0)

    def body(index, sums, gradients, matrix_gradient):
        x, other, y, w = (each[index] for each in chunks)
        new_sums, logit_gradients = _chunk_losses(
            (x, other), y, w, matrix, mean_row, loss_weights, label_smoothing
        )
        gradients = [
            array.write(index, tf.matmul(logit_gradient, matrix))
            for array, logit_gradient in zip(gradients, logit_gradients, strict=True)
        ]
        for logit_gradient, rows in zip(logit_gradients, (x, other), strict=True):
            matrix_gradient += tf.matmul(logit_gradient, rows, transpose_a=True)
        return index + 1, sums + new_sums, gradients, matrix_gradient

    shape = [chunk_tokens, matrix.shape[-1]]
    arrays = [
        tf.TensorArray(tf.float32, num_chunks, element_shape=shape) for _ in vectors
    ]
    _, sums, arrays, matrix_gradient = tf.while_loop(
        lambda index, *_: index < num_chunks,
        body,
        (0, tf.zeros([3]), arrays, tf.zeros_like(matrix)),
        parallel_iterations=1,
    )
    gradients = []
    for array, rows, weight in zip(arrays, vectors, loss_weights[:2], strict=True):
        gradient, matrix_gradient = subtract_targets(
            array.concat()[:num_tokens],
            matrix_gradient,
            rows,
            matrix,
            labels,
            weight * weights,
            label_smoothing,
        )
        gradients.append(gradient)
    return sums, [*gradients, matrix_gradient]


def _chunk_losses(
    vectors, labels, weights, matrix, mean_row, loss_weights, label_smoothing
):
    """Returns a chunk's sums, and the gradients of its loss.

    The gradients are with respect to the logits of both passes. They lack the target
    distributions, which the caller subtracts after its loop.
    """
    logits = [tf.matmul(each, matrix, transpose_b=True) for each in vectors]
    logs = [tf.nn.log_softmax(each) for each in logits]
    p, q = (tf.exp(each) for each in logs)
    log_ratio = logs[0] - logs[1]
    forward = tf.reduce_sum(p * log_ratio, axis=-1)
    backward = -tf.reduce_sum(q * log_ratio, axis=-1)
    loss = loss_weights.forward * forward + loss_weights.backward * backward
    nlls = []
    passes = zip(logs, logits, vectors, loss_weights[:2], strict=True)
    for log_probs, pass_logits, rows, weight in passes:
        nlls.append(-tf.gather(log_probs, labels, batch_dims=1))
        # Label logit minus mean logit (see `smoothed_cross_entropy`). The mean logit is
        # the product of the vector and the mean row of the matrix.
        above_mean = tf.gather(pass_logits, labels, batch_dims=1)
        above_mean -= tf.linalg.matvec(rows, mean_row)
        loss += weight * (nlls[-1] + label_smoothing * above_mean)
    highest = tf.reduce_max(logits[0], axis=-1)
    label_logits = tf.gather(logits[0], labels, batch_dims=1)
    correct = tf.cast(label_logits >= highest, tf.float32)
    sums = [tf.reduce_sum(weights * value) for value in (loss, nlls[0], correct)]
    # The gradient of KL(p, q) with respect to the logits of p is
    # p (log p - log q - KL(p, q)), and with respect to the logits of q it is q - p.
    p_gradient = loss_weights.first * p + loss_weights.backward * (p - q)
    p_gradient += loss_weights.forward * p * (log_ratio - forward[:, None])
    q_gradient = loss_weights.second * q + loss_weights.forward * (q - p)
    q_gradient -= loss_weights.backward * q * (log_ratio + backward[:, None])
    weights = weights[:, None]
    return tf.stack(sums), (p_gradient * weights, q_gradient * weights)
