"""Callbacks that count steps, report skipped steps, validate, and save checkpoints."""

import contextlib
import logging
import math
import time
from typing import Annotated

import keras
from pydantic import (
    AfterValidator,
    BaseModel,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
)

from keras_transformer.errors import TrainingFault
from keras_transformer.saving.checkpoints import SCHEDULE
from keras_transformer.saving.names import BEST_MODEL
from keras_transformer.training import step_check
from keras_transformer.training.replicas import SingleProcess

logger = logging.getLogger(__name__)

# Maximum numbers of sentence pairs of a skipped batch whose locations, such as file and
# line, appear in a message and in a line of `metrics.jsonl`.
_MAX_LOCATIONS = 3
_MAX_LOGGED_LOCATIONS = 100
# Metrics by which the best model can be chosen, and whether higher values are better.
HIGHER_IS_BETTER = {"bleu": True, "chrf": True, "f1": True, "perplexity": False}


# Number of variables of the metrics of a `TrainingModel`: three sums and their weights.
_NUM_SUMS = 6


def _check_sums(sums):
    if len(sums) not in (0, _NUM_SUMS):
        raise ValueError(f"must have {_NUM_SUMS} numbers")
    return sums


class Progress(BaseModel):
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
    metrics: Annotated[list[float], AfterValidator(_check_sums)] = []
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
        trainer: The `Trainer`.
        allowed: Maximum number of consecutive skipped steps.
        locate_batch: Returns the locations of the pairs in a step's batch, or `None`.
    """

    def __init__(self, trainer, allowed, locate_batch):
        super().__init__()
        self.trainer = trainer
        self.allowed = allowed
        self.locate_batch = locate_batch

    def on_train_batch_end(self, batch, logs=None):
        progress = self.trainer.progress
        fault = step_check.last_fault(self.model)
        if fault == step_check.OK:
            progress.skipped_in_a_row = 0
            return
        progress.skipped += 1
        progress.skipped_in_a_row += 1
        message = self._report(step_check.FAULT_REASONS[fault])
        is_nonfinite = fault in step_check.NONFINITE
        is_forbidden = is_nonfinite and not self.trainer.skip_nonfinite
        if is_forbidden or progress.skipped_in_a_row > self.allowed:
            raise TrainingFault(
                f"{message}. Training stopped after {progress.skipped_in_a_row} "
                "invalid step(s) in a row, which changed no weights"
            )

    def _report(self, reason):
        """Logs that the current step's update was skipped, and returns the message."""
        step = self.trainer.progress.step
        locations = self.locate_batch(step) if self.locate_batch else []
        message = f"step {step}: {reason}"
        if locations:
            message += f". Pairs in its batch: {', '.join(locations[:_MAX_LOCATIONS])}"
        if len(locations) > _MAX_LOCATIONS:
            message += f" and {len(locations) - _MAX_LOCATIONS} more"
        logged = locations[:_MAX_LOGGED_LOCATIONS]
        self.trainer.log.note("skipped", {"reason": reason, "batch": logged})
        if self.trainer.writes:
            logger.warning("%s", message)
        return message


class Validation(keras.callbacks.Callback):
    """Validates every `every` steps, saves the best model and may stop early.

    Args:
        trainer: The `Trainer`, whose average of the weights is validated.
        validate: Function that returns a mapping of metrics, including `metric`.
        every: Number of steps between validations.
        metric: Metric that decides which model is best, a key of `HIGHER_IS_BETTER`.
        patience: Number of validations without a better score after which training
            stops. If `None`, training never stops early.
        counter: `StepCounter`.
        on_signal: `SaveOnSignal`.
        progress_bar: `ProgressReport` or `None`.
    """

    def __init__(
        self,
        trainer,
        validate,
        every,
        metric,
        patience,
        counter,
        on_signal,
        progress_bar,
    ):
        super().__init__()
        if metric not in HIGHER_IS_BETTER:
            raise ValueError(
                f"`metric` must be one of {', '.join(HIGHER_IS_BETTER)}. "
                f"Received: {metric!r}."
            )
        self.trainer = trainer
        self.progress = trainer.progress
        self.validate = validate
        self.every = every
        self.metric = metric
        self.patience = patience
        self.counter = counter
        self.on_signal = on_signal
        self.progress_bar = progress_bar

    def on_train_batch_end(self, batch, logs=None):
        if self.progress.step % self.every == 0:
            self.run()
            self.model.stop_training |= self.is_over()

    def run(self):
        """Runs a validation, which `progress` marks as due until it is complete."""
        self.progress.validation_due = True
        with (
            self.on_signal.interruptible(),
            self.counter.paused(),
            self.trainer.moving_average.use_average(),
        ):
            metrics = self.validate()
        self.progress.validation_due = False
        score, perplexity = metrics[self.metric], metrics.get("perplexity")
        is_best = self.progress.record_score(self.metric, score, perplexity)
        labels = {"best_metric": self.progress.best_metric, "is_best": is_best}
        self.trainer.log.write("validation", metrics, labels)
        if self.progress_bar is not None:
            self.progress_bar.show_validation(metrics)
        if is_best:
            self.trainer.save_model(BEST_MODEL)

    def is_over(self):
        """Returns whether training stops because of `patience`."""
        return (
            self.patience is not None
            and self.progress.best_metric == self.metric
            and self.progress.validations_since_best >= self.patience
        )


class PeriodicCheckpoint(keras.callbacks.Callback):
    """Calls `save` every `minutes` of training, or every `steps` steps if given.

    A checkpoint that becomes due while steps are skipped is written after the next
    valid step, because skipped steps change no weights. All `workers` that train
    together save at the same step.
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
