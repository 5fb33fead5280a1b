"""Softmax of attention, also over parts of a KV cache, and log-softmax of decoding."""

from keras import ops

from keras_transformer.numerics.indexing import gather, shape

# Finite, so that a row whose keys are all masked gives no NaN. If a row has an allowed
# key, the scores of its masked keys are exactly 0.
MASKED_LOGIT = -1e30
# Minimum vocabulary size for which a softmax is faster than a sum of exponentials.
SOFTMAX_MIN_SIZE = 1024


def mask_to_bias(mask):
    """Converts a boolean mask to an additive attention bias, 0 or `MASKED_LOGIT`.

    All layers of a decoder can share the bias.
    """
    return ops.cast(ops.where(mask, 0.0, MASKED_LOGIT), "float32")


def masked_softmax(attention_logits, attention_mask=None):
    """Computes the softmax over the keys, in float32.

    The logits are `[..., target_length, source_length]`. The mask broadcasts to them,
    True = attend, or is `None`. Masked keys get exactly 0, and so do rows without an
    allowed key.
    """
    attention_logits = ops.cast(attention_logits, "float32")
    # Keras warns about a softmax over one entry, such as a sequence of length 1.
    single_key = attention_logits.shape[-1] == 1
    softmax = ops.ones_like if single_key else ops.softmax
    if attention_mask is None:
        return softmax(attention_logits)
    any_key = ops.any(attention_mask, axis=-1, keepdims=True)
    scores = softmax(ops.where(attention_mask, attention_logits, MASKED_LOGIT))
    return scores * ops.cast(any_key, "float32")


def weighted_values(logits, values):
    """Computes `softmax(logits) @ values`, for keys and values in one or two parts.

    The softmax spans both parts, as if they were concatenated. The values are not
    concatenated, which would copy the KV cache in every step of a search.

    Each part has logits, float32 `[..., queries, slots]`, and values `[..., slots,
    value_dim]`. Masked slots have a bias from `mask_to_bias`. If a query's slots are
    all masked, its values are averaged. Returns `[..., queries, value_dim]`.
    """
    dtype = values[0].dtype
    if len(values) == 1:
        return ops.matmul(ops.cast(masked_softmax(logits[0]), dtype), values[0])
    main, recent = values
    scores = ops.cast(masked_softmax(ops.concatenate(logits, axis=-1)), dtype)
    size = shape(main)[-2]
    product = ops.matmul(scores[..., :size], main)
    return product + ops.matmul(scores[..., size:], recent)


def best_log_probs(logits, best, tokens, has_largest, uses_softmax):
    """Computes the log-probabilities of the best tokens of each row, `[rows, k]`.

    Of the logits `[rows, vocabulary]`, `best` are those of the ids `tokens`, largest
    first, and contain the row's largest one if `has_largest`. With `uses_softmax`, a
    large vocabulary is normalized with `ops.softmax`. This is faster, except under XLA,
    which fuses the exponentials with their sum and so writes no array as large as the
    logits.
    """
    if has_largest and uses_softmax and logits.shape[1] >= SOFTMAX_MIN_SIZE:
        # Only the first log-probability is read from a softmax. The others follow from
        # the differences between logits.
        probabilities = ops.softmax(logits, axis=-1)
        num_rows, size = shape(logits)
        places = ops.arange(num_rows, dtype="int32") * size + tokens[:, 0]
        first = gather(ops.reshape(probabilities, (-1,)), places, axis=0)
        # Each value is repeated 16 times: TensorFlow's vectorized log rounds the
        # entries after the last multiple of 16 differently, so results would depend on
        # batch size.
        first = ops.log(ops.broadcast_to(first[:, None], (num_rows, 16)))[:, :1]
        return best - best[:, :1] + first
    # `best` is sorted, but a maximum is faster than a slice: if a top-k result is
    # sliced more than once, XLA sorts whole rows.
    largest = ops.max(best if has_largest else logits, axis=-1, keepdims=True)
    total = ops.sum(ops.exp(logits - largest), axis=-1, keepdims=True)
    return best - largest - ops.log(total)
