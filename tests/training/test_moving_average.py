"""Exponential moving average of the weights, compared with its formula in NumPy."""

import os
import pathlib
import signal
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_samples import (
    ResettableModel,
    batch,
    tiny_training_model,
    tiny_transformer,
    weights_of,
)

from keras_transformer import training
from keras_transformer.saving.checkpoints import average_checkpoints

MOMENTUM = 0.8
EMPTY = 3  # step whose batch has no token, so that its update is skipped


def dataset(start_step=0):
    """Returns an endless dataset. The batch of step `EMPTY` is all padding."""
    inputs, labels = batch(0)
    batches = [batch(seed) for seed in range(12)]
    batches[EMPTY - 1] = (
        {name: np.zeros_like(ids) for name, ids in inputs.items()},
        np.zeros_like(labels),
    )
    stacked = (
        {name: np.stack([each[0][name] for each in batches]) for name in inputs},
        np.stack([each[1] for each in batches]),
    )
    return tf.data.Dataset.from_tensor_slices(stacked).repeat().skip(start_step)


def averaging_model(dtype="float32"):
    schedule = training.PaperSchedule(12, 4, scale=0.1)
    optimizer = training.FusedAdam(schedule, use_ema=True, ema_momentum=MOMENTUM)
    return tiny_training_model(optimizer, parts=2, dropout=0.3, dtype=dtype)


class Run:
    """A trainer that records the weights of each step, and of each validation."""

    def __init__(self, model, folder):
        self.trainer = training.Trainer(model, folder)
        self.steps = []
        self.validated = {}

    def fit(self, steps, **settings):
        trainer, first = self.trainer, self.trainer.progress.step
        save = trainer.log.write

        def record(split, *args):
            if split == "train":
                self.steps.append(weights_of(trainer.model))
            save(split, *args)

        trainer.log.write = record
        trainer.fit(
            dataset(first),
            steps,
            validate=settings.pop("validate", self.validate),
            metric="perplexity",
            validation_steps=2,
            log_steps=1,
            bar=False,
            max_consecutive_skips=1,
            checkpoint_steps=1,
            **settings,
        )
        trainer.log.write = save
        return self

    def validate(self):
        step = self.trainer.progress.step
        self.validated[step] = weights_of(self.trainer.model)
        return {"perplexity": {2: 9.0, 4: 3.0, 6: 5.0}[step]}

    def averages(self):
        pairs = self.trainer.moving_average.pairs()
        return [np.array(average) for _, average in pairs]


def recurrence(steps):
    """Returns the averages after each step, given the weights after each step.

    The average starts as the weights after the first step. A step that does not change
    the weights was skipped, and does not change the average.
    """
    averages, last = [], None
    for weights in steps:
        weights = [weight.astype("float64") for weight in weights]
        if not averages:
            averages.append(weights)
        elif all(map(np.array_equal, weights, last)):
            averages.append(averages[-1])
        else:
            averages.append(
                [
                    MOMENTUM * average + (1 - MOMENTUM) * weight
                    for average, weight in zip(averages[-1], weights, strict=True)
                ]
            )
        last = weights
    return averages


def assert_near(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def resettable():
    return ResettableModel(averaging_model())


class UninterruptedRun(NamedTuple):
    """An uninterrupted run of 6 steps."""

    folder: pathlib.Path
    steps: list  # weights after each step
    validated: dict  # weights of each validation
    weights: list  # at the end
    averages: list


@pytest.fixture(scope="module")
def uninterrupted(resettable, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    # Training in stages also calls `fit` once per stage.
    run = Run(resettable.reset(), folder).fit(4).fit(6)
    weights = weights_of(run.trainer.model)
    return UninterruptedRun(folder, run.steps, run.validated, weights, run.averages())


def test_average_follows_the_recurrence(uninterrupted):
    expected = recurrence(uninterrupted.steps)
    assert_equal(uninterrupted.steps[EMPTY - 1], uninterrupted.steps[EMPTY - 2])
    assert_near(uninterrupted.averages, expected[-1])
    # Training uses the weights themselves, and validation uses their average.
    assert_equal(uninterrupted.weights, uninterrupted.steps[-1])
    assert sorted(uninterrupted.validated) == [2, 4, 6]
    for step, weights in uninterrupted.validated.items():
        assert_near(weights, expected[step - 1])
    stored = tiny_transformer(seed=8)
    stored.load_weights(uninterrupted.folder / "best.keras")
    assert_equal(weights_of(stored), uninterrupted.validated[4])
    average_checkpoints(stored, uninterrupted.folder / "checkpoints", last=1)
    assert_equal(weights_of(stored), uninterrupted.averages)


def test_resumed_average_is_bit_identical(resettable, uninterrupted, tmp_path):
    Run(resettable.reset(), tmp_path).fit(4)
    resumed = Run(resettable.reset(), tmp_path)
    assert resumed.trainer.restore() == 4
    resumed.fit(6)
    assert_equal(weights_of(resumed.trainer.model), uninterrupted.weights)
    assert_equal(resumed.averages(), uninterrupted.averages)


def test_interrupted_validation_saves_the_weights(resettable, uninterrupted, tmp_path):
    interrupted = Run(resettable.reset(), tmp_path)

    def validate_with_signal():
        if interrupted.trainer.progress.step == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return interrupted.validate()

    with pytest.raises(KeyboardInterrupt):
        interrupted.fit(6, validate=validate_with_signal)
    resumed = Run(resettable.reset(), tmp_path)
    assert resumed.trainer.restore() == 4
    assert resumed.trainer.progress.validation_due
    assert_equal(weights_of(resumed.trainer.model), uninterrupted.steps[3])
    resumed.fit(6)
    assert_near(resumed.validated[4], recurrence(uninterrupted.steps)[3])
    assert_equal(resumed.averages(), uninterrupted.averages)


def test_checkpoint_before_the_first_update_averages_the_first_weights(
    resettable, tmp_path
):
    run = Run(resettable.reset(), tmp_path)
    run.trainer.save()
    stored = tiny_transformer(seed=8)
    average_checkpoints(stored, tmp_path / "checkpoints", last=1)
    assert_equal(weights_of(stored), weights_of(run.trainer.model))


@pytest.mark.slow
def test_average_follows_the_recurrence_in_float16(tmp_path):
    model = averaging_model("mixed_float16")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    run = Run(model, tmp_path).fit(6)
    assert_near(run.averages(), recurrence(run.steps)[-1])
    assert_equal(weights_of(model), run.steps[-1])


@pytest.mark.parametrize("use_average", [True, False])
def test_saved_model_has_the_average_or_the_weights(resettable, tmp_path, use_average):
    """At the end, the weights are already those of the final model."""
    run = Run(resettable.reset(), tmp_path).fit(2)
    run.trainer.save_model("saved.keras", use_average=use_average)
    stored = tiny_transformer(seed=8)
    stored.load_weights(tmp_path / "saved.keras")
    expected = run.averages() if use_average else weights_of(run.trainer.model)
    assert_equal(weights_of(stored), expected)
