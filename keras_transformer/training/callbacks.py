"""The state of a run, and the callback that updates it after each step."""

import contextlib
import dataclasses
import logging
import math
import signal
import time
from typing import Annotated, Any

import keras
from pydantic import (
    AfterValidator,
    BaseModel,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
)

from keras_transformer.errors import TrainingFaultError
from keras_transformer.progress import ProgressBar
from keras_transformer.saving.checkpoints import END, INTERRUPTION, SCHEDULE
from keras_transformer.saving.names import BEST_MODEL
from keras_transformer.signals import handle_signals
from keras_transformer.training import step_check
from keras_transformer.training.reporting import restore_metric_sums
from keras_transformer.training.step_ops import current_value, sync_variables

logger = logging.getLogger(__name__)

# Maximum numbers of sentence pairs of a skipped batch whose locations, such as file and
# line, appear in a message and in a line of `metrics.jsonl`.
_MAX_LOCATIONS = 3
_MAX_LOGGED_LOCATIONS = 100
# Metrics by which the best model can be chosen, and whether higher values are better.
HIGHER_IS_BETTER = {"bleu": True, "chrf": True, "f1": True, "perplexity": False}
# Number of variables of the metrics of a `TrainingModel`: three sums and their weights.
_NUM_SUMS = 6
# Handlers for a second signal. A second Ctrl-C raises `KeyboardInterrupt`, so that
# temporary files are removed. A second SIGTERM has no handler and ends the process.
# The kernel and the shell both send SIGHUP when a terminal is closed.
_SECOND_SIGNAL_HANDLERS = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_IGN,
}


def _check_sums(sums):
    if len(sums) not in (0, _NUM_SUMS):
        raise ValueError(f"must have {_NUM_SUMS} numbers")
    return sums


class Progress(BaseModel):
    """State of a run. Every checkpoint stores it under these names."""

    step: NonNegativeInt = 0  # completed steps
    tokens: NonNegativeFloat = 0.0  # target tokens in all valid steps
    # Training time without validations, in all parts of the run, and since the last
    # scheduled checkpoint.
    seconds: NonNegativeFloat = 0.0
    checkpoint_seconds: NonNegativeFloat = 0.0
    # Metric of the best validation score, that score, and the perplexity and the step
    # of the same validation.
    best_metric: str | None = None
    best_score: float | None = None
    best_perplexity: float | None = None
    best_step: NonNegativeInt | None = None
    validations_since_best: NonNegativeInt = 0
    skipped: NonNegativeInt = 0  # steps whose update was skipped
    skipped_in_a_row: NonNegativeInt = 0  # such steps since the last update
    # Sums of the training metrics since the last line of the log (see `metric_sums`).
    metrics: Annotated[list[float], AfterValidator(_check_sums)] = []
    validation_due: bool = False  # the validation after `step` is not complete
    # Fingerprints of the texts, and the settings on which validation scores depend.
    text: str | None = None
    validation_text: str | None = None
    validation_settings: str | None = None
    replicas: PositiveInt | None = None
    reason: str = SCHEDULE  # for the checkpoint (see `saving.checkpoints`)
    checkpoint_due: bool = False  # a scheduled one waits for the next valid step
    stage: PositiveInt | None = None  # from 1, or `None` in a run without stages

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


@dataclasses.dataclass(eq=False)
class AfterStep(keras.callbacks.Callback):
    """Counts, reports, validates, saves and stops after each step of one `Trainer.fit`.

    Use it as a context manager around `fit`. Except for `trainer`, the attributes are
    arguments of `Trainer.fit`.
    """

    trainer: Any
    steps: int
    checkpoint_minutes: float
    checkpoint_steps: int | None
    validate: Any
    validation_steps: int
    metric: str
    patience: int | None
    log_steps: int
    bar: bool | int
    max_consecutive_skips: int
    locate_batch: Any

    def __post_init__(self):
        super().__init__()
        if self.validate is not None and self.metric not in HIGHER_IS_BETTER:
            raise ValueError(
                f"`metric` must be one of {', '.join(HIGHER_IS_BETTER)}. "
                f"Received: {self.metric!r}."
            )
        self.progress = self.trainer.progress
        self._signals = SaveOnSignal(self._save_on_signal, self.trainer.workers)
        self._time = 0.0
        self._has_restored_sums = False
        self._bar, self._validation = None, ""
        if self.bar and self.trainer.writes:
            self._total = self.steps if self.bar is True else self.bar
            self._bar = ProgressBar(
                self.trainer.stage or "training",
                self._total,
                self.progress.step,
                "starting",
            )

    def __enter__(self):
        self._contexts = contextlib.ExitStack()
        self._contexts.enter_context(self._signals)
        if self._bar is not None:
            self._contexts.enter_context(self._bar)
        return self

    def __exit__(self, *error):
        return self._contexts.__exit__(*error)

    def compile(self, shapes):
        """Compiles the training step for shapes of batches."""
        if self._bar is not None:
            text = f"compiling the step for {len(shapes)} shapes of batches"
            self._bar.show(self.progress.step, "compiling", text)
        with self._signals.interruptible():
            self.trainer.model.compile_shapes(shapes)

    def on_train_begin(self, logs=None):
        self._time = time.monotonic()
        # Time and tokens at the last line of the log, and tokens at the last progress.
        self._logged = self.progress.seconds, self.model.num_tokens
        self._shown_tokens = self.model.num_tokens

    def on_epoch_begin(self, epoch, logs=None):
        # Keras has just reset the metrics. A resumed run continues with the sums that
        # its checkpoint stored.
        restore_metric_sums(self.model, self.progress.metrics)
        self._has_restored_sums = any(self.progress.metrics)

    def on_train_batch_end(self, batch, logs=None):
        now = time.monotonic()
        self.progress.step += 1
        self.progress.seconds += now - self._time
        self.progress.checkpoint_seconds += now - self._time
        self._time = now
        self._report_skipped_update()
        if self.progress.step % self.log_steps == 0:
            self._log_metrics(logs)
        if self._bar is not None:
            self._show_progress(logs)
        if self.validate and self.progress.step % self.validation_steps == 0:
            self.run_validation()
            self.model.stop_training |= self.is_over()
        self.save_if_due()
        self._signals.stop_if_requested()

    def _report_skipped_update(self):
        """Reports a skipped update. Stops training after too many in a row."""
        progress = self.progress
        fault = int(current_value(self.model.last_fault, self.model))
        if fault == step_check.OK:
            progress.skipped_in_a_row = 0
            return
        progress.skipped += 1
        progress.skipped_in_a_row += 1
        reason = step_check.FAULT_REASONS[fault]
        message = f"step {progress.step}: {reason}"
        locations = self.locate_batch(progress.step) if self.locate_batch else []
        if locations:
            message += f". Pairs in its batch: {', '.join(locations[:_MAX_LOCATIONS])}"
        if len(locations) > _MAX_LOCATIONS:
            message += f" and {len(locations) - _MAX_LOCATIONS} more"
        logged = locations[:_MAX_LOGGED_LOCATIONS]
        self.trainer.log.note("skipped", {"reason": reason, "batch": logged})
        if self.trainer.writes:
            logger.warning("%s", message)
        is_nonfinite = fault in step_check.NONFINITE
        is_forbidden = is_nonfinite and not self.trainer.skip_nonfinite
        if is_forbidden or progress.skipped_in_a_row > self.max_consecutive_skips:
            raise TrainingFaultError(
                f"{message}. Training stopped after {progress.skipped_in_a_row} "
                "invalid step(s) in a row, which changed no weights. Reduce "
                "training.learning_rate, or set training.global_clipnorm=1.0, and "
                "resume with `allow_changes`"
            )

    def _log_metrics(self, logs):
        """Logs the means since the last line of the log, and resets them."""
        sync_variables(self.model)
        (seconds, tokens), now = self._logged, self.progress.seconds
        self._logged = now, self.model.num_tokens
        new_tokens = self.model.num_tokens - tokens
        metrics = {name: float(value) for name, value in logs.items()}
        if not new_tokens and not self._has_restored_sums:
            # All updates were skipped. Without tokens, Keras's metrics would be 0.
            metrics = dict.fromkeys(metrics, math.nan)
        metrics["tokens_per_second"] = new_tokens / max(now - seconds, 1e-9)
        # Keras has already counted this update, so `learning_rate` is the rate of the
        # next update.
        rate = keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)
        metrics["learning_rate"] = float(rate)
        self.trainer.log.write("train", metrics)
        self._has_restored_sums = False
        for metric in self.model.metrics:
            metric.reset_state()

    def _show_progress(self, logs):
        step = self.progress.step
        if not self._bar.is_due(step) and step < self._total:
            return
        tokens = self.model.num_tokens
        rate = (tokens - self._shown_tokens) / max(self._bar.seconds_since_shown, 1e-9)
        self._shown_tokens = tokens
        metrics = (
            f"loss {float(logs['loss']):.3f}, {rate:,.0f} target tokens/s"
            f"{self._validation}"
        )
        stage = f" ({self.trainer.stage})" if self.trainer.stage else ""
        line = f"step {step:,} of {self._total:,}{stage}: {metrics}"
        self._bar.show(step, metrics, line)

    def run_validation(self):
        """Runs a validation, which `progress` marks as due until it is complete."""
        progress, trainer = self.progress, self.trainer
        sync_variables(trainer.model)
        progress.validation_due = True
        start = time.monotonic()
        with (
            self._signals.interruptible(),
            trainer.moving_average.use_average(),
            self._bar.pause("validating") if self._bar else contextlib.nullcontext(),
        ):
            metrics = self.validate()
        # Validations do not count as training time.
        self._time += time.monotonic() - start
        progress.validation_due = False
        score, perplexity = metrics[self.metric], metrics.get("perplexity")
        is_best = progress.record_score(self.metric, score, perplexity)
        labels = {"best_metric": progress.best_metric, "is_best": is_best}
        trainer.log.write("validation", metrics, labels)
        parts = [f"{name} {value:.2f}" for name, value in metrics.items()]
        self._validation = f", validation at {progress.step:,}: {' '.join(parts)}"
        if is_best:
            trainer.save_model(BEST_MODEL)

    def is_over(self):
        """Returns whether training stops because of `patience`."""
        return (
            self.validate is not None
            and self.patience is not None
            and self.progress.best_metric == self.metric
            and self.progress.validations_since_best >= self.patience
        )

    def report_end(self):
        """Reports that training has stopped before the last step, if it has."""
        if self.is_over() and self.progress.step < self.steps and self.trainer.writes:
            logger.info(
                f"stopped early at step {self.progress.step:,}: the last "
                f"{self.progress.validations_since_best} validations did not improve "
                f"{self.metric}"
            )

    def save_if_due(self):
        """Writes a checkpoint if one is due at the current step.

        A checkpoint that becomes due while steps are skipped is written after the next
        valid step, because skipped steps change no weights.
        """
        progress = self.progress
        if self.checkpoint_steps:
            progress.checkpoint_due |= progress.step % self.checkpoint_steps == 0
        else:
            # All workers save as soon as the time is up for one of them.
            is_due = progress.checkpoint_seconds >= 60 * self.checkpoint_minutes
            (num_due,) = self.trainer.workers.all_reduce_sum([is_due])
            progress.checkpoint_due |= bool(num_due)
        if progress.checkpoint_due and not progress.skipped_in_a_row:
            progress.checkpoint_due = False
            progress.checkpoint_seconds = 0.0
            self.trainer.save()

    def _save_on_signal(self):
        is_last = self.is_over() or self.progress.step >= self.steps
        self.trainer.save(END if is_last else INTERRUPTION)


class _Stop(BaseException):
    """Exception that ends an `interruptible` block.

    `except Exception` does not catch it.
    """


class SaveOnSignal:
    """Context that saves and stops training on Ctrl-C, SIGTERM and SIGHUP.

    `stop_if_requested`, called after each step and at the end of the context, calls
    `save`, and then raises `KeyboardInterrupt` for Ctrl-C, and `SystemExit` with 128
    plus the number of the signal for the others. If a second signal arrives before
    that, Ctrl-C raises `KeyboardInterrupt` at once without `save`, and SIGTERM ends the
    process at once. A signal to one of several workers stops all of them at the same
    step.
    """

    SIGNALS = tuple(_SECOND_SIGNAL_HANDLERS)

    def __init__(self, save, workers):
        self.save = save
        self.workers = workers
        self._received = None
        self._handling = handle_signals(dict.fromkeys(self.SIGNALS, self._receive))
        self._handled = []
        self._may_raise = False

    def __enter__(self):
        self._handled = self._handling.__enter__()
        return self

    def __exit__(self, error, *_):
        self._handling.__exit__(None, None, None)
        # The signal may arrive after the last step or at the end of `interruptible`.
        if error is None or issubclass(error, _Stop):
            self.stop_if_requested()

    @contextlib.contextmanager
    def interruptible(self):
        """Saves and raises as soon as a signal arrives inside the context.

        With several workers, this still happens at the end of the step, because all
        workers must stop at the same step.
        """
        if self.workers.count > 1:
            yield
            return
        self.stop_if_requested()
        self._may_raise = True
        try:
            yield
        except _Stop:
            self.stop_if_requested()
        finally:
            self._may_raise = False

    def _receive(self, number, frame):
        self._received = number
        for each in self._handled:
            signal.signal(each, _SECOND_SIGNAL_HANDLERS[each])
        if self._may_raise:
            self._may_raise = False
            raise _Stop

    def stop_if_requested(self):
        counts = self.workers.all_reduce_sum(
            [number == self._received for number in self.SIGNALS]
        )
        received = [
            number for number, count in zip(self.SIGNALS, counts, strict=True) if count
        ]
        if not received:
            return
        self.save()
        if received[0] == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + received[0])
