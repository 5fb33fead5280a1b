"""Projection to logits and the loss, fused and computed in chunks of tokens."""

from typing import NamedTuple

import keras
from keras import ops

from keras_transformer.training.step_ops import is_jax, scan


class LossWeights(NamedTuple):
    """Weights of the terms of the loss of two passes over the same tokens."""

    first: float  # of the cross-entropy of the first pass
    second: float  # of the cross-entropy of the second pass
    forward: float  # of KL(first, second)
    backward: float  # of KL(second, first)


def projected_loss(
    passes,
    matrix,
    labels,
    weights,
    label_smoothing=0.0,
    loss_weights=None,
    chunk_tokens=256,
):
    """Computes the loss of the logits `vectors @ matrix.T`, summed over tokens.

    The logits and their gradients are in memory for only `chunk_tokens` tokens at a
    time, because the paper's batches have 25,000 tokens with 37,000 logits each. With a
    small vocabulary, a chunk's logits stay in the CPU cache. The gradients are computed
    together with the loss, since both need the same softmax.

    Args:
        passes: List of one or two arrays `[tokens, d_model]`: the decoder output of
            each pass over the batch (see `Consistency`). Their dtype, float32 or
            bfloat16, is that of matrix products and logits. Sums are float32.
        matrix: `[vocabulary_size, d_model]`, float32, the output projection.
        labels: `[tokens]`, int32.
        weights: `[tokens]`, float32, the weights of the labels, 0 for padding.
        label_smoothing: Probability mass spread over the vocabulary, in [0, 1).
        loss_weights: `LossWeights`, if there are two passes.
        chunk_tokens: Maximum number of tokens per chunk.

    Returns:
        `[3]`, float32, weighted sums over tokens: the loss of all passes, and the
        negative log-likelihood and the accuracy (1 if the label has the highest logit,
        else 0) of the first pass. Only the loss has gradients, with respect to `passes`
        and `matrix`.
    """

    @ops.custom_gradient
    def sums_with_gradient(*operands):
        *passes, matrix = operands
        options = label_smoothing, loss_weights, chunk_tokens
        sums, gradients = _on_devices(passes, matrix, labels, weights, options)

        def gradient(upstream):
            return tuple(
                ops.cast(upstream[0] * each, operand.dtype)
                for each, operand in zip(gradients, operands, strict=True)
            )

        return sums, gradient

    return sums_with_gradient(*passes, matrix)


def _on_devices(passes, matrix, labels, weights, options):
    """Calls `_sums_and_gradients` on each device for its own tokens.

    Otherwise, each device would compute all chunks, because XLA cannot divide a loop.
    """
    distribution = keras.distribution.distribution() if is_jax() else None
    size = 1 if distribution is None else distribution.device_mesh.devices.size
    num_tokens = labels.shape[0]
    if size == 1 or num_tokens is None or num_tokens % size:
        return _sums_and_gradients(passes, matrix, labels, weights, *options)
    import jax

    axis = distribution.batch_dim_name
    shared, own = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec(axis)

    def compute(*operands):
        sums, (*gradients, of_matrix) = _sums_and_gradients(*operands, *options)
        return jax.lax.psum(sums, axis), [*gradients, jax.lax.psum(of_matrix, axis)]

    compute = jax.shard_map(
        compute,
        mesh=distribution.device_mesh.backend_mesh,
        in_specs=(own, shared, own, own),
        out_specs=(shared, [*[own] * len(passes), shared]),
        check_vma=False,
    )
    return compute(list(passes), matrix, labels, weights)


def _sums_and_gradients(
    passes, matrix, labels, weights, label_smoothing, loss_weights, chunk_tokens
):
    """Returns the sums, and the gradients with respect to the passes and the matrix."""
    mean_row = ops.mean(matrix, axis=0)
    dtype = passes[0].dtype
    is_rounded = keras.backend.standardize_dtype(dtype) != "float32"
    factor = ops.cast(matrix, dtype)
    on_label, vocabulary_size = 1.0 - label_smoothing, matrix.shape[0]
    pass_weights = [1.0]
    if loss_weights is not None:
        pass_weights = [loss_weights.first, loss_weights.second]

    def add_chunk(carried, chunk):
        sums, matrix_gradient = carried
        *passes_rows, chunk_labels, token_weights = chunk
        logits = [_product(rows, ops.transpose(factor)) for rows in passes_rows]
        label_logits = [_pick(each, chunk_labels) for each in logits]
        highest = ops.max(logits[0], axis=-1)
        if loss_weights is None:
            loss = 0.0
            nlls, logit_gradients = _cross_entropy(
                logits[0], label_logits[0], highest, token_weights
            )
        else:
            loss, nlls, logit_gradients = _divergence(
                logits, chunk_labels, token_weights, loss_weights
            )
        for weight, nll, rows, label_logit in zip(
            pass_weights, nlls, passes_rows, label_logits, strict=True
        ):
            # Label logit minus mean logit (see `smoothed_cross_entropy`). The mean
            # logit is the product of the vector and the mean row of the matrix.
            above_mean = label_logit - ops.matmul(rows, mean_row)
            loss = loss + weight * (nll + label_smoothing * above_mean)
        correct = ops.cast(label_logits[0] >= highest, "float32")
        values = loss, nlls[0], correct
        new_sums = [ops.sum(token_weights * value) for value in values]
        if is_rounded:
            # Rounded one by one, softmax and target distribution would lose their
            # difference. XLA subtracts without another pass over the logits.
            targets = on_label * ops.one_hot(chunk_labels, vocabulary_size)
            targets = targets + label_smoothing / vocabulary_size
            logit_gradients = [
                ops.cast(each - (weight * token_weights)[:, None] * targets, dtype)
                for weight, each in zip(pass_weights, logit_gradients, strict=True)
            ]
        for each, rows in zip(logit_gradients, passes_rows, strict=True):
            matrix_gradient = matrix_gradient + _product(ops.transpose(each), rows)
        gradients = [_product(each, factor) for each in logit_gradients]
        return [sums + ops.stack(new_sums), matrix_gradient], gradients

    if num_tokens := passes[0].shape[0]:
        # Chunks of equal size have the fewest rows of padding.
        chunk_tokens = -(-num_tokens // -(-num_tokens // chunk_tokens))
    carried = [ops.zeros((3,)), ops.zeros_like(matrix)]
    chunks = [_divide(each, chunk_tokens) for each in (*passes, labels, weights)]
    (sums, matrix_gradient), gradients = scan(add_chunk, carried, chunks, len(passes))

    if is_rounded:
        gradients = [each[: ops.shape(passes[0])[0]] for each in gradients]
        return sums, [*gradients, matrix_gradient]
    # The gradient of a cross-entropy with respect to the logits is the softmax minus
    # the target distribution, which puts 1 - e on the label, with e =
    # `label_smoothing`, and spreads e evenly over the vocabulary. The loop over chunks
    # lacks the target distribution.
    targets = on_label * ops.take(matrix, labels, axis=0) + label_smoothing * mean_row
    complete = []
    for weight, rows, gradient in zip(pass_weights, passes, gradients, strict=True):
        token_weights = (weight * weights)[:, None]
        complete.append(gradient[: ops.shape(rows)[0]] - token_weights * targets)
        weighted = token_weights * rows
        matrix_gradient = matrix_gradient - on_label * ops.segment_sum(
            weighted, labels, vocabulary_size
        )
        spread = label_smoothing / vocabulary_size * ops.sum(weighted, axis=0)
        matrix_gradient = matrix_gradient - spread
    return sums, [*complete, matrix_gradient]


def _product(x, y):
    """Returns the matrix product as float32, rounded to the dtype of `x` before."""
    return ops.cast(ops.matmul(x, y), "float32")


def _cross_entropy(logits, label_logits, highest, weights):
    """Returns the negative log-likelihoods of a chunk's labels, and their gradient.

    Both are lists with one item. The gradient is the softmax multiplied by the tokens'
    weights.
    """
    exponentials = ops.exp(logits - highest[:, None])
    totals = ops.sum(exponentials, axis=-1)
    nll = ops.log(totals) + highest - label_logits
    return [nll], [exponentials * (weights / totals)[:, None]]


def _divergence(logits, labels, weights, loss_weights):
    """Returns the divergence of two passes over a chunk, and all of `_cross_entropy`.

    The gradients of the first and of the second pass include the divergence.
    """
    logs = [ops.log_softmax(each) for each in logits]
    p, q = (ops.exp(each) for each in logs)
    nlls = [-_pick(each, labels) for each in logs]
    log_ratio = logs[0] - logs[1]
    forward = ops.sum(p * log_ratio, axis=-1)
    backward = -ops.sum(q * log_ratio, axis=-1)
    divergence = loss_weights.forward * forward + loss_weights.backward * backward
    # The gradient of KL(p, q) with respect to the logits of p is
    # p (log p - log q - KL(p, q)), and with respect to the logits of q it is q - p.
    p_gradient = loss_weights.first * p + loss_weights.backward * (p - q)
    p_gradient += loss_weights.forward * p * (log_ratio - forward[:, None])
    q_gradient = loss_weights.second * q + loss_weights.forward * (q - p)
    q_gradient -= loss_weights.backward * q * (log_ratio + backward[:, None])
    weights = weights[:, None]
    return divergence, nlls, [p_gradient * weights, q_gradient * weights]


def _pick(values, labels):
    """Returns the value of each token's label, from `[tokens, vocabulary_size]`."""
    num_tokens, vocabulary_size = ops.shape(values)
    # `ops.take_along_axis` would copy the values.
    places = vocabulary_size * ops.arange(num_tokens, dtype="int32") + labels
    return ops.take(ops.reshape(values, (-1,)), places)


def _divide(array, chunk_tokens):
    """Divides `[tokens, ...]` into `[chunks, chunk_tokens, ...]`, padded with zeros."""
    missing = -ops.shape(array)[0] % chunk_tokens
    array = ops.pad(array, [[0, missing], *([[0, 0]] * (len(array.shape) - 1))])
    return ops.reshape(array, (-1, chunk_tokens, *array.shape[1:]))
