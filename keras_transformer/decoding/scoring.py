"""Log-probabilities of given translations."""

from typing import NamedTuple

from keras import ops

from keras_transformer.numerics.indexing import gather_each


class PairScore(NamedTuple):
    """The log-probability of a given translation.

    Attributes:
        log_prob: Natural logarithm of the probability, including the end id.
        num_tokens: Number of target subwords, including the end id.

    Examples:
        >>> (pair,) = kt.open_model("phrases").score(["12 euros"], ["12 Euro"])
        >>> f"{pair.log_prob / pair.num_tokens:.2f} per subword"
        '-0.10 per subword'
    """

    log_prob: float
    num_tokens: int


def score_ids(model, source_ids, target_ids, labels, pad_id=0, unknown_id=1):
    """Computes the log-probabilities of given translations, including end ids.

    Args:
        model: `Transformer` or `Ensemble`.
        source_ids: int32 `[batch, source_length]`, ids and the end id, then padding.
        target_ids: int32 `[batch, target_length]`, the start id and ids, then padding.
        labels: int32 `[batch, target_length]`, ids and the end id, then padding.
        pad_id: Labels with this id are not counted.
        unknown_id: Replaces labels for which the model has no logits. If `None`, the
            model must have logits for all labels.

    Returns:
        float32 `[batch]`.

    Examples:
        >>> model = kt.Transformer(10, num_layers=1, d_model=8, d_ff=8, num_heads=2)
        >>> source_ids, labels = [[4, 5, 3]], [[6, 3]]
        >>> target_ids = [[2, 6]]  # the start id and the labels without the end id
        >>> arrays = map(keras.ops.convert_to_tensor, (source_ids, target_ids, labels))
        >>> print(kt.decoding.score_ids(model, *arrays).shape)
        (1,)
    """
    logits = model({"source_ids": source_ids, "target_ids": target_ids}, training=False)
    return sequence_log_probs(logits, labels, pad_id, unknown_id)


def sequence_log_probs(logits, labels, pad_id=0, unknown_id=1):
    """Sums the log-probabilities of labels, given logits `[..., num_outputs]`.

    The other arguments and the result are those of `score_ids`.
    """
    logits = ops.cast(logits, "float32")
    known = labels
    if unknown_id is not None:
        known = ops.where(labels < logits.shape[-1], labels, unknown_id)
    picked = gather_each(logits, known[:, :, None], axis=2)[:, :, 0]
    log_probs = picked - ops.logsumexp(logits, axis=-1)  # [batch, target_length]
    return ops.sum(ops.where(labels == pad_id, 0.0, log_probs), axis=1)
