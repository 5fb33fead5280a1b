"""How probable a model finds given translations, without label smoothing."""

import math

import keras
import numpy as np

from keras_transformer.decoding import score_ids


class PairScores(keras.Model):
    """`score_ids` as a model, so that `predict_on_batch` runs it compiled."""

    def __init__(self, model, pad_id):
        super().__init__()
        self.model = model
        self.pad_id = pad_id
        # Batches differ in shape: XLA would compile for each.
        self.jit_compile = False

    def call(self, inputs):
        return score_ids(self.model, **inputs, pad_id=self.pad_id)


def perplexity(model, dataset, pad_id=0) -> float:
    """Perplexity per target sub-word (the end of a sentence is one, padding none).

    Every sub-word counts alike, whatever batch it is in; the distribution is the
    model's own, not the smoothed one that training compares with (the paper's
    Table 3 reports it so, per word-piece).

    Args:
        model: a model from `source_ids` and `target_ids` to logits.
        dataset: finite iterable of `({"source_ids", "target_ids"}, labels)`.
        pad_id: label that is not counted.

    Raises:
        ValueError: the dataset holds no target sub-word.
    """
    scores = PairScores(model, pad_id)
    log_prob, num_tokens = 0.0, 0
    for inputs, labels in dataset:
        log_probs = scores.predict_on_batch({**inputs, "labels": labels})
        log_prob += float(np.sum(log_probs, dtype="float64"))
        num_tokens += int(np.count_nonzero(np.asarray(labels) != pad_id))
    if not num_tokens:
        raise ValueError("perplexity needs at least one target sub-word; got none")
    return perplexity_of_sum(log_prob, num_tokens)


def perplexity_of_sum(log_prob, num_tokens) -> float:
    """Perplexity of so many sub-words whose log-probabilities add up to `log_prob`.

    Infinite where it is more than a float can be, as of a model that has diverged.
    """
    try:
        return math.exp(-log_prob / num_tokens)
    except OverflowError:
        return math.inf


def perplexity_of(scores) -> float:
    """Perplexity per target sub-word over a list of `PairScore`."""
    from keras_transformer.evaluation.perplexity import perplexity_of_sum

    num_tokens = sum(score.num_tokens for score in scores)
    return perplexity_of_sum(sum(score.log_prob for score in scores), num_tokens)
