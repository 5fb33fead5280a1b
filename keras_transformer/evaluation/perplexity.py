"""Perplexity of given translations, without label smoothing."""

import math

import numpy as np
from keras import ops

from keras_transformer.decoding.compiled import compile_for_ids
from keras_transformer.decoding.ensemble import build_models
from keras_transformer.decoding.scoring import PairScore, score_ids


def perplexity(model, dataset) -> float:
    """Computes a model's perplexity per target subword, as in the paper's Table 3.

    All subwords have the same weight, regardless of their batch. The end of a sentence
    counts as a subword; padding does not. Unlike in training, labels are not smoothed.

    Args:
        model: A model that maps `source_ids` and `target_ids` to logits, or a
            `PairScorer`, which is compiled only once for several calls and has more
            options.
        dataset: Finite iterable of batches `({"source_ids": ..., "target_ids": ...},
            labels)`, integer ids `[batch, length]`. Labels are shifted by one position:
            `target_ids` begin with the start id, and `labels` end with the end id.

    Returns:
        The perplexity, a float.

    Raises:
        ValueError: If the dataset contains no target subword.

    Examples:
        >>> class Uniform:
        ...     def __call__(self, inputs, training=False):
        ...         return 0.0 * keras.ops.one_hot(inputs["target_ids"], 8)
        ...
        >>> source_ids = keras.ops.convert_to_tensor([[4, 5, 3]])
        >>> target_ids = keras.ops.convert_to_tensor([[2, 6]])
        >>> inputs = {"source_ids": source_ids, "target_ids": target_ids}
        >>> batches = [(inputs, keras.ops.convert_to_tensor([[6, 3]]))]
        >>> round(kt.evaluation.perplexity(Uniform(), batches), 3)
        8.0
    """
    scorer = model if isinstance(model, PairScorer) else PairScorer(model)
    scores = []
    for inputs, labels in dataset:
        log_probs = scorer(**inputs, labels=labels)
        num_tokens = int(np.count_nonzero(np.asarray(labels) != scorer.pad_id))
        scores.append(PairScore(float(np.sum(log_probs, dtype="float64")), num_tokens))
    return compute_perplexity(scores)


class PairScorer:
    """Scorer of given translations by a model, compiled once for several calls.

    Args:
        model: A model that maps `source_ids` and `target_ids` to logits.
        pad_id: Label that is not counted. If `None`, the model's `pad_id`, or 0 if it
            has none.
        unknown_id: Id that replaces labels for which the model has no logits.

    Examples:
        >>> model = kt.Transformer(10, num_layers=1, d_model=8, d_ff=8, num_heads=2)
        >>> scorer = kt.evaluation.PairScorer(model)
        >>> source_ids, target_ids, labels = [[4, 5, 3]], [[2, 6]], [[6, 3]]
        >>> print(scorer(source_ids, target_ids, labels).shape)
        (1,)
    """

    def __init__(self, model, pad_id=None, unknown_id=1):
        # In Marian models, id 0 usually ends a sentence, and padding has another id.
        self.pad_id = getattr(model, "pad_id", 0) if pad_id is None else pad_id
        build_models(model)
        self._score = compile_for_ids(
            lambda *ids: score_ids(model, *ids, self.pad_id, unknown_id),
            3,
            model,
            self.pad_id,
        )

    def __call__(self, source_ids, target_ids, labels):
        """Returns the log-probabilities of given translations, float32 `[batch]`.

        The arguments are integer ids `[batch, length]`, as in `evaluation.perplexity`.
        """
        ids = source_ids, target_ids, labels
        return self._score(*(ops.cast(each, "int32") for each in ids))


def compute_perplexity(scores) -> float:
    """Computes the perplexity per target subword of a list of `PairScore`.

    The result is infinite if it exceeds the range of a float, as for a diverged model.
    """
    num_tokens = sum(score.num_tokens for score in scores)
    if not num_tokens:
        raise ValueError("perplexity needs at least one target subword. Received: 0.")
    try:
        return math.exp(-sum(score.log_prob for score in scores) / num_tokens)
    except OverflowError:
        return math.inf
