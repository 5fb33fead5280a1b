"""Scaled dot-product attention's weights (equation 1)."""

import math

from keras import ops

from keras_transformer.numerics.gradients import own_gradient

# Finite, so that a row without any allowed key makes no NaN; exp() of it is
# exactly 0 beside any allowed key.
MASKED_LOGIT = -1e30


def scaled_dot_products(query, key):
    """`Q K^T / sqrt(d_k)`.

    Args:
        query: `[batch, num_heads, ..., target_length, key_dim]`.
        key: `[batch, num_heads, ..., source_length, key_dim]`.

    Returns:
        `[batch, num_heads, ..., target_length, source_length]`.
    """
    query = query * ops.cast(1.0 / math.sqrt(query.shape[-1]), query.dtype)
    return ops.matmul(query, ops.swapaxes(key, -1, -2))


def logit_bias(mask):
    """What keeps masked keys out when it is added to logits of ordinary size.

    Adding takes less than half as long as a `where`, which spreads all it is given to
    the full shape, and many layers can share what is added.

    Args:
        mask: Bool, True = attend.

    Returns:
        float32, as `mask`: 0, or so low that any such logit is lost beside it.
    """
    return ops.cast(ops.where(mask, 0.0, MASKED_LOGIT), "float32")


def softmax_of_few(logits):
    """Softmax over the last axis, for a step of decoding.

    TensorFlow shares even a few numbers out among threads, which takes longer than
    these operations do.
    """
    exponentials = ops.exp(logits - ops.max(logits, axis=-1, keepdims=True))
    return exponentials / ops.sum(exponentials, axis=-1, keepdims=True)


def exponentials_of_parts(logits):
    """A softmax over the last axes of several arrays together, still to be divided.

    What is divided is the products with the values, which have fewer numbers, and no
    array is joined to another.

    Args:
        logits: Arrays `[..., n]`, n of each its own, and above 0 of the last.

    Returns:
        Arrays like them, and what to divide by, `[..., 1]`.
    """
    largest = ops.max(logits[-1], axis=-1, keepdims=True)
    for each in logits[:-1]:
        # Of none at all not every backend finds a largest.
        if each.shape[-1] != 0:
            largest = ops.maximum(largest, ops.max(each, axis=-1, keepdims=True))
    exponentials = [ops.exp(each - largest) for each in logits]
    totals = [ops.sum(each, axis=-1, keepdims=True) for each in exponentials]
    return exponentials, sum(totals[1:], totals[0])


def masked_softmax(attention_logits, attention_mask=None, training=False):
    """Softmax over the last axis, in float32.

    Args:
        attention_logits: `[..., target_length, source_length]`.
        attention_mask: Bool, of a shape that broadcasts to it, True = attend, or None.
        training: Whether to take the gradient in fewer passes, which a SavedModel
            cannot hold; the results are the same.

    Returns:
        As `attention_logits`. Masked keys get exactly 0; a row without an allowed key
        is all zeros.
    """
    attention_logits = ops.cast(attention_logits, "float32")
    # Keras warns of a softmax over one entry, the first step of decoding.
    single_key = attention_logits.shape[-1] == 1
    softmax = ops.ones_like if single_key else ops.softmax
    if attention_mask is None:
        return softmax(attention_logits)
    any_key = ops.any(attention_mask, axis=-1, keepdims=True)
    any_key = ops.cast(any_key, "float32")

    def of_allowed(logits):
        return softmax(ops.where(attention_mask, logits, MASKED_LOGIT)) * any_key

    if not training:
        return of_allowed(attention_logits)

    # Where a key is masked its score is 0, and so is the gradient of a softmax there:
    # it takes two passes over the scores less than that of the three steps.
    @own_gradient
    def with_gradient(logits):
        scores = of_allowed(logits)

        def gradient(upstream):
            shares = upstream * scores
            return shares - scores * ops.sum(shares, axis=-1, keepdims=True)

        return scores, gradient

    return with_gradient(attention_logits)
