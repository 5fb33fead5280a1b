"""Attention softmax over whole sequences or, in decoding, over parts of a KV cache."""

import functools
import operator

import keras
from keras import ops

from keras_transformer.numerics.gradients import custom_gradient

# Finite, so that a row whose keys are all masked gives no NaN. If a row has an allowed
# key, the scores of its masked keys are exactly 0.
MASKED_LOGIT = -1e30


def mask_to_bias(mask):
    """Converts a boolean mask to an additive attention bias.

    All layers can share the bias. Adding it takes less than half the time of `where`,
    which broadcasts its arguments.

    Args:
        mask: Bool, True = attend.

    Returns:
        float32 of the same shape: 0 or `MASKED_LOGIT`.
    """
    return ops.cast(ops.where(mask, 0.0, MASKED_LOGIT), "float32")


def masked_softmax(attention_logits, attention_mask=None, training=False):
    """Computes the softmax over the keys, in float32.

    Args:
        attention_logits: `[..., target_length, source_length]`.
        attention_mask: Bool that broadcasts to the logits, True = attend, or `None`.
        training: Whether to use a custom gradient with fewer memory passes, which a
            SavedModel cannot store. Results are the same.

    Returns:
        float32, `[..., target_length, source_length]`. Masked keys get exactly 0. Rows
        without an allowed key are 0.
    """
    attention_logits = ops.cast(attention_logits, "float32")
    # Keras warns about a softmax over one entry, such as a sequence of length 1.
    single_key = attention_logits.shape[-1] == 1
    softmax = ops.ones_like if single_key else ops.softmax
    if attention_mask is None:
        return softmax(attention_logits)
    any_key = ops.any(attention_mask, axis=-1, keepdims=True)
    any_key = ops.cast(any_key, "float32")

    def forward(logits):
        return softmax(ops.where(attention_mask, logits, MASKED_LOGIT)) * any_key

    if not training:
        return forward(attention_logits)

    # Masked keys have score 0, so their gradient is 0 without another mask.
    @custom_gradient
    def with_gradient(logits):
        scores = forward(logits)

        def gradient(upstream):
            products = upstream * scores
            return products - scores * ops.sum(products, axis=-1, keepdims=True)

        return scores, gradient

    return with_gradient(attention_logits)


def weighted_values(logits, values):
    """Computes `softmax(logits) @ values`, for keys and values in several parts.

    The softmax spans all parts, as if they were concatenated. Its denominator divides
    the product, which has fewer elements than the scores. In float16, it divides the
    scores, because an undivided sum over many slots may exceed 65504, the largest
    float16. `ops.softmax` is not used, because TensorFlow spreads even tiny inputs over
    threads, which costs more than these operations.

    Args:
        logits: List of float32 `[..., queries, slots]`, one per part of the KV cache. A
            slot stores one key and its value. The last part must not be empty.
        values: List of `[..., slots, value_dim]`, one per part.

    Returns:
        `[..., queries, value_dim]` in the dtype of `values`.
    """
    largest = ops.max(logits[-1], axis=-1, keepdims=True)
    for part in logits[:-1]:
        # `ops.max` over an empty axis fails on some backends.
        if part.shape[-1] != 0:
            largest = ops.maximum(largest, ops.max(part, axis=-1, keepdims=True))
    dtype = keras.backend.standardize_dtype(values[0].dtype)
    scores = [ops.exp(part - largest) for part in logits]
    total = _add([ops.sum(part, axis=-1, keepdims=True) for part in scores])
    if dtype == "float16":
        scores = [part / total for part in scores]
    product = _add(
        [
            ops.matmul(ops.cast(part, dtype), value)
            for part, value in zip(scores, values, strict=True)
        ]
    )
    if dtype == "float16":
        return product
    return ops.cast(ops.cast(product, "float32") / total, dtype)


def _add(parts):
    """Adds arrays; `sum` would start from 0, which adds an operation."""
    return functools.reduce(operator.add, parts)
