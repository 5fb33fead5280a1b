"""Small models and batches for tests of training, and logs without times."""

import json

import keras
import numpy as np
import tensorflow as tf

import keras_transformer as kt
from keras_transformer import training
from keras_transformer.saving.checkpoints import checkpoint_paths
from keras_transformer.training.checkpoints import Checkpoints

# Keys of metrics.jsonl and of a checkpoint's progress that differ between equal runs.
CLOCKS = {"seconds", "checkpoint_seconds", "tokens_per_second"}
VOCABULARY = 23
START, END = 2, 3
# Numbers of source and target ids per row, including the end id. The third row contains
# only padding.
LENGTHS = ((5, 7), (2, 3), (0, 0), (4, 2), (7, 1), (3, 6))


def tiny_transformer(seed=3, **changes):
    """Returns a built model with about 5,000 weights."""
    keras.utils.set_random_seed(seed)
    arguments = {
        "num_layers": 1,
        "d_model": 12,
        "d_ff": 20,
        "num_heads": 2,
        "dropout": 0.0,
    }
    model = kt.Transformer(VOCABULARY, **(arguments | changes))
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    return model


def tiny_training_model(
    optimizer=None, parts=1, smoothing=0.1, parallel_parts=1, **changes
):
    """Returns a compiled `TrainingModel`, by default with the paper's optimizer.

    Args:
        optimizer: Keras optimizer. If `None`, `paper_adam()`.
        parts: Number of gradient accumulation steps.
        smoothing: Label smoothing.
        parallel_parts: Number of parts of a batch that are computed in parallel.
        changes: Arguments of `tiny_transformer`.
    """
    transformer = tiny_transformer(**changes)
    model = training.TrainingModel(
        transformer, smoothing, parts, parallel_parts=parallel_parts
    )
    model.compile(optimizer=optimizer or paper_adam())
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    return model


def plain_model(optimizer):
    """Returns a transformer, compiled as a plain Keras model with the training loss."""
    model = tiny_transformer()
    model.compile(
        optimizer,
        loss=training.SmoothedCrossEntropy(0.1),
        metrics=[training.Perplexity(), training.TokenAccuracy()],
    )
    return model


def paper_adam(warmup_steps=4):
    schedule = training.NoamSchedule(12, warmup_steps, scale=0.1)
    # `FusedAdam` matches Keras's Adam and is faster to trace.
    return training.FusedAdam(schedule, beta_1=0.9, beta_2=0.98, epsilon=1e-9)


class ResettableModel:
    """A compiled model that can be reset, so that its train step is traced only once.

    Args:
        model: Compiled model before its first step.
    """

    def __init__(self, model):
        model.optimizer.build(model.trainable_variables)
        self.model = model
        self._variables = [*model.variables, *model.optimizer.variables]
        self._values = [np.array(variable) for variable in self._variables]

    def reset(self):
        """Restores the initial weights and states, and returns the model."""
        for variable, value in zip(self._variables, self._values, strict=True):
            variable.assign(value)
        return self.model


def batch(seed, lengths=LENGTHS):
    """Returns `({"source_ids", "target_ids"}, labels)`: random ids, padded with 0."""
    rng = np.random.default_rng(seed)

    def rows(side):
        width = max(1, max(pair[side] for pair in lengths))
        ids = np.zeros((len(lengths), width), "int32")
        for row, pair in zip(ids, lengths, strict=True):
            if pair[side]:
                row[: pair[side] - 1] = rng.integers(4, VOCABULARY, pair[side] - 1)
                row[pair[side] - 1] = END
        return ids

    source_ids, labels = rows(0), rows(1)
    target_ids = np.zeros_like(labels)
    target_ids[:, 1:] = np.where(labels[:, 1:] > 0, labels[:, :-1], 0)
    target_ids[:, 0] = np.where(labels[:, 0] > 0, START, 0)
    return {"source_ids": source_ids, "target_ids": target_ids}, labels


def dataset(start_step=0, lengths=LENGTHS):
    """Returns an endless dataset of batches. The batch of step n depends only on n."""
    batches = [batch(seed, lengths) for seed in range(31)]
    inputs = {
        side: np.stack([inputs[side] for inputs, _ in batches])
        for side in batches[0][0]
    }
    labels = np.stack([labels for _, labels in batches])
    batches = tf.data.Dataset.from_tensor_slices((inputs, labels))
    return batches.repeat().skip(start_step)


def weights_of(model):
    """Returns the weights as a list, since their names differ between models."""
    transformer = getattr(model, "transformer", model)
    return [np.array(weight) for weight in transformer.get_weights()]


def shift_weights(model, amount=0.25):
    """Adds a number to all weights, so that they differ between checkpoints."""
    transformer = getattr(model, "transformer", model)
    transformer.set_weights([weight + amount for weight in weights_of(transformer)])


def save_checkpoints(model, folder):
    """Saves different weights at steps 10, 20 and 30. Returns the weights by step."""
    checkpoints = Checkpoints(model, folder, keep=3)
    weights = {}
    for step in (10, 20, 30):
        shift_weights(model)
        weights[step] = weights_of(model)
        checkpoints.save(step, {"step": step})
    return weights


def steps_in(folder):
    """Returns the steps of the checkpoints in a folder."""
    return [*checkpoint_paths(folder)]


def log_softmax(logits):
    """Computes the log-softmax in float64 by its definition."""
    logits = np.asarray(logits, "float64")
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def without_clocks(values):
    return {name: values[name] for name in values if name not in CLOCKS}


def log_rows(run):
    """Returns the rows of metrics.jsonl in a run folder, without times."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [without_clocks(json.loads(line)) for line in lines]
