"""Perplexity of given translations, without label smoothing."""

import math

import keras
import numpy as np

from keras_transformer.decoding.scoring import PairScore
from keras_transformer.decoding.scoring import score_ids


def perplexity(model, dataset, pad_id=0) -> float:
    """Computes a model's perplexity per target subword, like the paper's Table 3.

    All subwords have the same weight, regardless of their batch. The end of a sentence
    counts as a subword, padding does not. Unlike in training, labels are not smoothed.

    Args:
        model: A model from `source_ids` and `target_ids` to logits.
        dataset: Finite iterable of `({"source_ids", "target_ids"}, labels)`.
        pad_id: Label that is not counted.

    Raises:
        ValueError: If the dataset contains no target subword.
    """
    scorer = PairScorer(model, pad_id)
    scores = []
    for inputs, labels in dataset:
        log_probs = scorer.predict_on_batch({**inputs, "labels": labels})
        num_tokens = int(np.count_nonzero(np.asarray(labels) != pad_id))
        scores.append(PairScore(float(np.sum(log_probs, dtype="float64")), num_tokens))
    return perplexity_of(scores)


def perplexity_of(scores) -> float:
    """Computes the perplexity per target subword of a list of `PairScore`.

    It is infinite if it exceeds the range of a float, as with a diverged model.

    Raises:
        ValueError: If there is no target subword.
    """
    num_tokens = sum(score.num_tokens for score in scores)
    if not num_tokens:
        raise ValueError("perplexity needs at least one target subword. Received: 0.")
    try:
        return math.exp(-sum(score.log_prob for score in scores) / num_tokens)
    except OverflowError:
        return math.inf


class PairScorer(keras.Model):
    """`score_ids` as a model, so that `predict_on_batch` runs it compiled."""

    def __init__(self, model, pad_id):
        super().__init__()
        self.model = model
        self.pad_id = pad_id
        # XLA would compile a program for each batch shape.
        self.jit_compile = False

    def call(self, inputs):
        return score_ids(self.model, **inputs, pad_id=self.pad_id)
