"""How probable a model finds given translations, without label smoothing."""

import math

import keras
from keras import ops


class TokenLogProbs(keras.Model):
    """Natural log-probability of each label under a translation model.

    Called with a dict of `source_ids` `[batch, source_length]`, `target_ids` and
    `labels` `[batch, target_length]`; gives `[batch, target_length]`, float32, 0
    at padding. `predict_on_batch` runs it compiled.

    Args:
        model: a model from `source_ids` and `target_ids` to logits.
        pad_id: label that is not counted.
    """

    def __init__(self, model, pad_id=0, **kwargs):
        super().__init__(**kwargs)
        self.model = model
        self.pad_id = pad_id
        # Batches differ in shape: XLA would compile for each.
        self.jit_compile = False

    def call(self, inputs):
        labels = inputs["labels"]
        logits = self.model(
            {name: inputs[name] for name in ("source_ids", "target_ids")},
            training=False,
        )
        logits = ops.cast(logits, "float32")
        # [batch, target_length, 1]
        picked = ops.take_along_axis(logits, ops.expand_dims(labels, -1), axis=-1)
        log_probs = ops.squeeze(picked, -1) - ops.logsumexp(logits, axis=-1)
        return ops.where(labels != self.pad_id, log_probs, 0.0)


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
    log_probs = TokenLogProbs(model, pad_id)
    total, count = 0.0, 0
    for inputs, labels in dataset:
        scored = log_probs.predict_on_batch({**inputs, "labels": labels})
        total += float(scored.sum(dtype="float64"))
        count += int(ops.sum(ops.cast(labels != pad_id, "int32")))
    if not count:
        raise ValueError("perplexity needs at least one target sub-word; got none")
    return math.exp(-total / count)
