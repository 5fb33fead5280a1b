"""What happens between training steps: validation, checkpoints, signals."""

import dataclasses
import math
import signal
import threading
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
    since the last update; `text` is the fingerprint of the training text.
    """

    step: int = 0
    seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    best_score: float | None = None
    best_step: int | None = None
    validations_since_best: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    text: str | None = None

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
    """

    def __init__(
        self, progress, validate, every, metric, on_result, on_best, patience=None
    ):
        super().__init__()
        self.progress = progress
        self.validate = validate
        self.every = every
        self.metric = metric
        self.on_result = on_result
        self.on_best = on_best
        self.patience = patience

    def on_train_batch_end(self, batch, logs=None):
        if self.progress.step % self.every:
            return
        figures = self.validate()
        self.on_result(figures)
        if self.progress.improve(self.metric, figures[self.metric]):
            self.on_best()
        elif self.patience is not None:
            self.model.stop_training |= (
                self.progress.validations_since_best >= self.patience
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


class SaveOnSignal(keras.callbacks.Callback):
    """Ctrl-C and SIGTERM finish the step, save, and end training.

    Ctrl-C raises `KeyboardInterrupt`, SIGTERM `SystemExit(143)`, both after `save`. A
    second signal does not wait. A signal to one worker ends all of them, at one step.

    Args:
        save: Function of no argument.
        total: `Workers.total`.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, save, total=list):
        super().__init__()
        self.save = save
        self.total = total
        self._received = None
        self._previous = {}

    def __enter__(self):
        # Python lets only the main thread handle signals.
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, error, *_):
        self._restore()
        # A signal that came after the last step.
        if error is None:
            self.on_train_batch_end(None)

    def _receive(self, number, frame):
        self._received = number
        self._restore()

    def _restore(self):
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def on_train_batch_end(self, batch, logs=None):
        counts = self.total([number == self._received for number in self.SIGNALS])
        if not any(counts):
            return
        self.save()
        if counts[0]:
            raise KeyboardInterrupt
        raise SystemExit(128 + signal.SIGTERM)
