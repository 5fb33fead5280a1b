"""Callbacks that count steps, report skipped steps, validate, and save checkpoints."""

import contextlib
import dataclasses
import math
import time

import keras
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from keras_transformer.errors import TrainingFault
from keras_transformer.saving.checkpoints import SCHEDULE
from keras_transformer.training import step_check
from keras_transformer.training.replicas import SingleProcess

# Metrics by which the best model can be chosen, and whether higher values are better.
HIGHER_IS_BETTER = {"bleu": True, "chrf": True, "f1": True, "perplexity": False}


@dataclasses.dataclass
class Progress:
    """State of a run. Every checkpoint stores it under these names.

    Attributes:
        step: Number of completed steps.
        tokens: Number of target tokens in all valid steps.
        seconds: Training time in seconds, without validations. It includes the time
            before interruptions.
        checkpoint_seconds: Training time in seconds since the last scheduled
            checkpoint.
        best_metric: Name of the metric of the best score.
        best_score: Best validation score.
        best_perplexity: Perplexity of the validation with the best score.
        best_step: Step of the best score.
        validations_since_best: Number of validations since the best score.
        skipped: Number of steps whose update was skipped.
        skipped_in_a_row: Number of steps skipped since the last update.
        metrics: Sums of the training metrics since the last line of the log (see
            `reporting.metric_sums`).
        validation_due: Whether the validation after `step` was interrupted.
        text: Fingerprint of the training text.
        validation_text: Fingerprint of the validation text.
        validation_settings: Settings on which validation scores depend, as text.
        replicas: Number of replicas that compute each step.
        reason: Reason for the checkpoint (see `saving.checkpoints.regular_paths`).
        checkpoint_due: Whether a scheduled checkpoint waits for the next valid step.
        stage: Number of the stage, from 1, or `None` in a run without stages.
    """

    step: NonNegativeInt = 0
    tokens: NonNegativeFloat = 0.0
    seconds: NonNegativeFloat = 0.0
    checkpoint_seconds: NonNegativeFloat = 0.0
    best_metric: str | None = None
    best_score: float | None = None
    best_perplexity: float | None = None
    best_step: NonNegativeInt | None = None
    validations_since_best: NonNegativeInt = 0
    skipped: NonNegativeInt = 0
    skipped_in_a_row: NonNegativeInt = 0
    metrics: list[float] = dataclasses.field(default_factory=list)
    validation_due: bool = False
    text: str | None = None
    validation_text: str | None = None
    validation_settings: str | None = None
    replicas: PositiveInt | None = None
    reason: str = SCHEDULE
    checkpoint_due: bool = False
    stage: PositiveInt | None = None

    def record_score(self, metric, score, perplexity=None):
        """Records a validation score and returns whether it is the best so far.

        If scores are equal, the one with the lower perplexity is better. If the best
        score was measured with another metric, it is discarded.
        """
        if self.best_metric not in (None, metric):
            self.discard_best()
        self.best_metric = metric
        sign = 1 if HIGHER_IS_BETTER[metric] else -1
        is_best = not math.isnan(score) and (
            self.best_score is None or sign * score > sign * self.best_score
        )
        if score == self.best_score and None not in (perplexity, self.best_perplexity):
            is_best = perplexity < self.best_perplexity
        if is_best:
            self.best_score, self.best_step = score, self.step
            self.best_perplexity = perplexity
            self.validations_since_best = 0
        else:
            self.validations_since_best += 1
        return is_best

    def discard_best(self):
        """Discards the best score, with which new scores cannot be compared."""
        self.best_score = self.best_perplexity = self.best_step = None
        self.validations_since_best = 0


class StepCounter(keras.callbacks.Callback):
    """Updates the step and the timers in `progress`. Must be the first callback."""

    def __init__(self, progress):
        super().__init__()
        self.progress = progress
        self._time = 0.0

    @contextlib.contextmanager
    def paused(self):
        """Excludes the time inside the context from the training time."""
        start = time.monotonic()
        yield
        self._time += time.monotonic() - start

    def on_train_begin(self, logs=None):
        self._time = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        now = time.monotonic()
        self.progress.step += 1
        self.progress.seconds += now - self._time
        self.progress.checkpoint_seconds += now - self._time
        self._time = now


class SkippedUpdates(keras.callbacks.Callback):
    """Reports each skipped update. Stops training after too many in a row.

    Args:
        progress: The run's `Progress`.
        on_skip: Called with the reason after each skipped step. Reports the step and
            returns the text of the report, which becomes the start of an error message.
        allowed: Maximum number of consecutive skipped steps.
        skip_nonfinite: Whether steps with a non-finite loss or gradient are allowed.

    Raises:
        TrainingFault: If more than `allowed` consecutive steps were skipped, or a
            non-finite one that is not allowed.
    """

    def __init__(self, progress, on_skip, allowed, skip_nonfinite=True):
        super().__init__()
        self.progress = progress
        self.on_skip = on_skip
        self.allowed = allowed
        self.skip_nonfinite = skip_nonfinite

    def on_train_batch_end(self, batch, logs=None):
        progress = self.progress
        fault = step_check.last_fault(self.model)
        if fault == step_check.OK:
            progress.skipped_in_a_row = 0
            return
        progress.skipped += 1
        progress.skipped_in_a_row += 1
        message = self.on_skip(step_check.FAULT_REASONS[fault])
        is_forbidden = not self.skip_nonfinite and fault in step_check.NONFINITE
        if is_forbidden or progress.skipped_in_a_row > self.allowed:
            raise TrainingFault(
                f"{message}. Training stopped after {progress.skipped_in_a_row} "
                "invalid step(s) in a row, which changed no weights"
            )


class Validation(keras.callbacks.Callback):
    """Validates every `every` steps, saves the best model and may stop early.

    Args:
        progress: The run's `Progress`.
        validate: Function without arguments that returns a mapping of metrics,
            including `metric`.
        every: Number of steps between validations.
        metric: Metric that decides which model is best, a key of `HIGHER_IS_BETTER`.
        on_result: Called after each validation with the metrics and whether the score
            is the best so far.
        on_best: Called without arguments after a new best score.
        patience: Number of validations without a better score after which training
            stops. If `None`, training never stops early.
        interruptible: Function without arguments that returns a context manager. Inside
            it, a signal ends `validate` at once.

    Raises:
        ValueError: If `metric` is unknown.
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
        if metric not in HIGHER_IS_BETTER:
            raise ValueError(
                f"`metric` must be one of {', '.join(HIGHER_IS_BETTER)}. "
                f"Received: {metric!r}."
            )
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
        """Runs a validation, which `progress` marks as due until it is complete."""
        self.progress.validation_due = True
        with self.interruptible():
            metrics = self.validate()
        self.progress.validation_due = False
        score, perplexity = metrics[self.metric], metrics.get("perplexity")
        is_best = self.progress.record_score(self.metric, score, perplexity)
        self.on_result(metrics, is_best)
        if is_best:
            self.on_best()

    def is_over(self):
        """Returns whether training stops because of `patience`."""
        return (
            self.patience is not None
            and self.progress.best_metric == self.metric
            and self.progress.validations_since_best >= self.patience
        )


class PeriodicCheckpoint(keras.callbacks.Callback):
    """Calls `save` at regular intervals.

    A checkpoint that becomes due while steps are skipped is written after the next
    valid step, because skipped steps change no weights.

    Args:
        progress: The run's `Progress`.
        save: Function without arguments that writes a checkpoint.
        minutes: Minutes of training between checkpoints (paper: 10).
        steps: Number of steps between checkpoints. If not `None`, `minutes` is ignored.
        workers: The `Workers` that train together and save at the same step. If `None`,
            this process trains alone.
    """

    def __init__(self, progress, save, minutes=10.0, steps=None, workers=None):
        super().__init__()
        self.progress = progress
        self.save = save
        self.minutes = minutes
        self.steps = steps
        self.workers = workers or SingleProcess()

    def on_train_batch_end(self, batch, logs=None):
        self.save_if_due()

    def save_if_due(self):
        """Writes a checkpoint if one is due at the current step."""
        progress = self.progress
        if self.steps:
            progress.checkpoint_due |= progress.step % self.steps == 0
        else:
            # All workers save as soon as the time is up for one of them.
            is_due = progress.checkpoint_seconds >= 60 * self.minutes
            (num_due,) = self.workers.all_reduce_sum([is_due])
            progress.checkpoint_due |= bool(num_due)
        if progress.checkpoint_due and not progress.skipped_in_a_row:
            progress.checkpoint_due = False
            progress.checkpoint_seconds = 0.0
            self.save()
