"""Projection to logits and cross-entropy, fused and computed in chunks of tokens."""

import tensorflow as tf


def projected_loss(
    vectors, matrix, labels, weights, label_smoothing=0.0, chunk_tokens=256
):
    """Computes the loss of the logits `vectors @ matrix.T`, summed over tokens.

    The logits and their gradients are in memory for only `chunk_tokens` tokens at a
    time, because the paper's batches have 25,000 tokens with 37,000 logits each. With a
    small vocabulary, a chunk's logits stay in the CPU cache. The gradients are computed
    together with the loss, since both need the same softmax.

    Args:
        vectors: `[tokens, d_model]`, float32, the decoder output.
        matrix: `[vocabulary_size, d_model]`, float32, the output projection.
        labels: `[tokens]`, int32.
        weights: `[tokens]`, float32, the weights of the labels, 0 for padding.
        label_smoothing: Probability mass spread over the vocabulary, in [0, 1).
        chunk_tokens: Number of tokens per chunk.

    Returns:
        `[3]`, float32: the weighted sums over tokens of the smoothed loss, the negative
        log-likelihood, and the accuracy (1 if the label has the highest logit, else 0).
        Only the first sum has gradients, with respect to `vectors` and `matrix`.
    """

    @tf.custom_gradient
    def sums_with_gradient(vectors, matrix):
        sums, vectors_gradient, matrix_gradient = _sums_and_gradients(
            vectors, matrix, labels, weights, label_smoothing, chunk_tokens
        )

        def gradient(upstream):
            return upstream[0] * vectors_gradient, upstream[0] * matrix_gradient

        return sums, gradient

    return sums_with_gradient(vectors, matrix)


def _sums_and_gradients(
    vectors, matrix, labels, weights, label_smoothing, chunk_tokens
):
    """Returns the sums of `projected_loss`, and the gradients of the loss.

    The gradients are with respect to `vectors` and `matrix`.
    """
    num_tokens = tf.shape(vectors)[0]
    chunks, num_chunks = divide_tokens((vectors, labels, weights), chunk_tokens)
    mean_row = tf.reduce_mean(matrix, axis=0)

    def body(index, sums, vectors_gradient, matrix_gradient):
        x, y, w = (each[index] for each in chunks)
        new_sums, softmax = _chunk_sums(x, y, w, matrix, mean_row, label_smoothing)
        # The gradient with respect to the logits is the softmax minus the target
        # distribution, which `subtract_targets` subtracts after the loop.
        gradient = tf.matmul(softmax, matrix)
        matrix_gradient += tf.matmul(softmax, x, transpose_a=True)
        return (
            index + 1,
            sums + new_sums,
            vectors_gradient.write(index, gradient),
            matrix_gradient,
        )

    shape = [chunk_tokens, vectors.shape[-1]]
    _, sums, vectors_gradient, matrix_gradient = tf.while_loop(
        lambda index, *_: index < num_chunks,
        body,
        (
            0,
            tf.zeros([3]),
            tf.TensorArray(tf.float32, num_chunks, element_shape=shape),
            tf.zeros_like(matrix),
        ),
        parallel_iterations=1,
    )
    vectors_gradient, matrix_gradient = subtract_targets(
        vectors_gradient.concat()[:num_tokens],
        matrix_gradient,
        vectors,
        matrix,
        labels,
        weights,
        label_smoothing,
    )
    return sums, vectors_gradient, matrix_gradient


def divide_tokens(arrays, chunk_tokens):
    """Divides arrays `[tokens, ...]` into chunks, the last one padded with zeros.

    Returns:
        List of arrays `[num_chunks, chunk_tokens, ...]`, and the number of chunks.
    """
    num_tokens = tf.shape(arrays[0])[0]
    num_chunks = (num_tokens + chunk_tokens - 1) // chunk_tokens
    missing = num_chunks * chunk_tokens - num_tokens

    def chunks(x):
        x = tf.pad(x, [[0, missing], *([[0, 0]] * (len(x.shape) - 1))])
        return tf.reshape(x, [num_chunks, chunk_tokens, *x.shape[1:]])

    return [chunks(x) for x in arrays], num_chunks


def subtract_targets(
    vectors_gradient, matrix_gradient, vectors, matrix, labels, weights, label_smoothing
):
    """Completes gradients that were computed from the softmax alone.

    The gradient with respect to the logits is the softmax minus the target
    distribution. This function subtracts the target distribution's contribution. With
    e = `label_smoothing`, the target distribution puts 1 - e on the label and spreads e
    evenly over the vocabulary.

    Args:
        vectors_gradient: `[tokens, d_model]`, the gradient to complete.
        matrix_gradient: `[vocabulary_size, d_model]`, the gradient to complete.
        vectors: `[tokens, d_model]`, float32, the decoder output.
        matrix: `[vocabulary_size, d_model]`, float32, the output projection.
        labels: `[tokens]`, int32.
        weights: `[tokens]`, float32, the weights of the labels, 0 for padding.
        label_smoothing: Probability mass spread over the vocabulary, in [0, 1).

    Returns:
        The gradients of the loss with respect to `vectors` and `matrix`.
    """
    on_label = 1.0 - label_smoothing
    mean_row = tf.reduce_mean(matrix, axis=0)
    targets = on_label * tf.gather(matrix, labels) + label_smoothing * mean_row
    vectors_gradient -= weights[:, None] * targets
    weighted = weights[:, None] * vectors
    vocabulary_size = matrix.shape[0]
    matrix_gradient -= on_label * tf.math.unsorted_segment_sum(
        weighted, labels, vocabulary_size
    )
    matrix_gradient -= (
        label_smoothing / vocabulary_size * tf.reduce_sum(weighted, axis=0)
    )
    return vectors_gradient, matrix_gradient


def _chunk_sums(x, labels, weights, matrix, mean_row, label_smoothing):
    """Returns a chunk's sums, and its softmax multiplied by the tokens' weights."""
    logits = tf.matmul(x, matrix, transpose_b=True)
    highest = tf.reduce_max(logits, axis=-1)
    label_logits = tf.gather(logits, labels, batch_dims=1)
    exponentials = tf.exp(logits - highest[:, None])
    totals = tf.reduce_sum(exponentials, axis=-1)
    nll = tf.math.log(totals) + highest - label_logits
    # Label logit minus mean logit (see `smoothed_cross_entropy`). The mean logit is the
    # product of the vector and the mean row of the matrix.
    above_mean = label_logits - tf.linalg.matvec(x, mean_row)
    loss = nll + label_smoothing * above_mean
    correct = tf.cast(label_logits >= highest, tf.float32)
    sums = tf.stack([tf.reduce_sum(weights * value) for value in (loss, nll, correct)])
    return sums, exponentials * (weights / totals)[:, None]
