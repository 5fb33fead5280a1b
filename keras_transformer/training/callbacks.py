"""What happens between training steps: validation, checkpoints, signals."""

import contextlib
import dataclasses
import math
import time

import keras

from keras_transformer.training import guard

# Whether a higher value is better.
METRICS = {"bleu": True, "f1": True, "perplexity": False}


@dataclasses.dataclass
class Progress:
    """Where a run stands; saved in every checkpoint.

    `seconds` counts training of all starts; `checkpoint_seconds` since the last
    checkpoint by the clock; `skipped` updates that a fault left out, and those of them
    since the last update; `metrics` the sums since the last line of the log;
    `validation_due` tells that this step's validation was interrupted; `text` is the
    fingerprint of the training text, `replicas` how many computed each step.
    """

    step: int = 0
    seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    best_score: float | None = None
    best_step: int | None = None
    validations_since_best: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    metrics: list[float] = dataclasses.field(default_factory=list)
    validation_due: bool = False
    text: str | None = None
    replicas: int | None = None

    def improve(self, metric, score):
        """Notes a validation's score; whether it is the best so far."""
        better = not math.isnan(score) and (
            self.best_score is None
            or (score > self.best_score if METRICS[metric] else score < self.best_score)
        )
        if better:
            self.best_score, self.best_step = score, self.step
            self.validations_since_best = 0
        else:
            self.validations_since_best += 1
        return better


class StepCounter(keras.callbacks.Callback):
    """Keeps `progress.step` and its clocks; comes before all others."""

    def __init__(self, progress):
        super().__init__()
        self.progress = progress

    def on_train_begin(self, logs=None):
        self._time = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        now = time.monotonic()
        self.progress.step += 1
        self.progress.seconds += now - self._time
        self.progress.checkpoint_seconds += now - self._time
        self._time = now


class SkippedUpdates(keras.callbacks.Callback):
    """Tells of steps that updated nothing, and stops where they must not go on.

    Args:
        progress: The run's `Progress`.
        on_skip: Function of the reason, called after each such step; returns the text
            that the error shall begin with.
        allowed: Stop after more than so many such steps in a row.

    Raises:
        TrainingFault: more than `allowed` in a row.
    """

    def __init__(self, progress, on_skip, allowed):
        super().__init__()
        self.progress = progress
        self.on_skip = on_skip
        self.allowed = allowed

    def on_train_batch_end(self, batch, logs=None):
        progress = self.progress
        fault = guard.last_fault(self.model)
        if fault == guard.OK:
            progress.skipped_in_a_row = 0
            return
        progress.skipped += 1
        progress.skipped_in_a_row += 1
        message = self.on_skip(guard.REASONS[fault])
        if progress.skipped_in_a_row > self.allowed:
            raise guard.TrainingFault(
                f"{message}. Training stopped after {progress.skipped_in_a_row} such "
                "steps in a row; the last checkpoint is from before them"
            )


class Validation(keras.callbacks.Callback):
    """Calls `validate` every so many steps, keeps the best model, may stop early.

    Args:
        progress: The run's `Progress`.
        validate: Function of no argument that returns a mapping of figures, among
            them `metric`.
        every: Steps between validations.
        metric: one of `METRICS`, which decides what is best.
        on_result: Function of the figures.
        on_best: Function of no argument, called after a new best score.
        patience: Stop after so many validations without a better one. None: never.
        interruptible: Context manager inside which a signal ends `validate` at once.
    """

    def __init__(
        self,
        progress,
        validate,
        every,
        metric,
        on_result,
        on_best,
        patience=None,
        interruptible=contextlib.nullcontext,
    ):
        super().__init__()
        self.progress = progress
        self.validate = validate
        self.every = every
        self.metric = metric
        self.on_result = on_result
        self.on_best = on_best
        self.patience = patience
        self.interruptible = interruptible

    def on_train_batch_end(self, batch, logs=None):
        if self.progress.step % self.every == 0:
            self.run()
            self.model.stop_training |= self.is_over()

    def run(self):
        """Validates; a checkpoint that a signal writes meanwhile says it is due."""
        self.progress.validation_due = True
        with self.interruptible():
            figures = self.validate()
        self.progress.validation_due = False
        self.on_result(figures)
        if self.progress.improve(self.metric, figures[self.metric]):
            self.on_best()

    def is_over(self):
        """Whether patience has ended."""
        return (
            self.patience is not None
            and self.progress.validations_since_best >= self.patience
        )


class PeriodicCheckpoint(keras.callbacks.Callback):
    """Calls `save` every so many minutes or steps.

    Args:
        progress: The run's `Progress`.
        save: Function of no argument.
        minutes: Minutes of training between checkpoints (the paper: 10), or
        steps: steps between them.
        total: `Workers.total`, since workers' clocks differ.
    """

    def __init__(self, progress, save, minutes=None, steps=None, total=list):
        super().__init__()
        self.progress = progress
        self.save = save
        self.minutes = minutes
        self.steps = steps
        self.total = total

    def on_train_batch_end(self, batch, logs=None):
        if self.steps:
            due = self.progress.step % self.steps == 0
        else:
            due = self.progress.checkpoint_seconds >= 60 * self.minutes
            (due,) = self.total([due])
        if due:
            self.progress.checkpoint_seconds = 0.0
            self.save()
