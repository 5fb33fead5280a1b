"""Reports of a run: metrics.jsonl, TensorBoard and the progress bar.

A run may consist of several stages, each with its own training settings.
"""

import json
import math
import os

import keras
import tensorflow as tf

from keras_transformer.files import replace_file
from keras_transformer.progress import ProgressBar
from keras_transformer.saving.names import FINAL, METRICS, metrics_lines

# Value of "split" in the line that marks the beginning of a stage.
STAGE = "stage"


class MetricsLog:
    """Appends metrics to `metrics.jsonl` and to the TensorBoard logs in `logs/`.

    Args:
        folder: The run folder, a `pathlib.Path`.
        progress: The run's `Progress`.
        writes: Whether this process writes. Only one of several workers does.
    """

    def __init__(self, folder, progress, writes=True):
        self.progress = progress
        self.writes = writes
        self._path = folder / METRICS
        self._writers = {
            split: tf.summary.create_file_writer(str(folder / "logs" / split))
            for split in (("train", "validation") if writes else ())
        }

    def write(self, split, metrics, labels=()):
        """Writes a line of JSON and one TensorBoard scalar per metric.

        Args:
            split: "train", "validation", or `FINAL`, which TensorBoard does not show.
            metrics: Mapping of names to numbers.
            labels: Mapping of further keys to JSON values for `metrics.jsonl`.
        """
        if not self.writes:
            return
        # JSON cannot represent non-finite numbers, so they become `null`.
        finite = {
            name: round(float(value), 6) if math.isfinite(value) else None
            for name, value in metrics.items()
        }
        self.note(split, {**finite, **dict(labels)})
        if split == FINAL:
            return
        with self._writers[split].as_default(step=self.progress.step):
            for name, value in metrics.items():
                tf.summary.scalar(name, float(value))
        self._writers[split].flush()

    def note(self, split, values):
        """Writes a line of JSON with split, step, training time, stage and `values`."""
        if not self.writes:
            return
        row = {
            "split": split,
            "step": self.progress.step,
            "seconds": round(self.progress.seconds, 1),
        }
        if self.progress.stage is not None:
            row["stage"] = self.progress.stage
        row.update(values)
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")

    def rewind(self):
        """Removes the lines of steps after `progress.step`, which training repeats."""
        if not self.writes or not os.path.lexists(self._path):
            return
        step = self.progress.step
        # If a stage begins or the run ends right after `step`, that line will be
        # written again.
        repeated = {STAGE, FINAL}
        if self.progress.validation_due:
            repeated.add("validation")
        kept = [
            line
            for line, row in metrics_lines(self._path.parent)
            if row["step"] < step
            or (row["step"] == step and row["split"] not in repeated)
        ]
        with replace_file(self._path) as temporary:
            temporary.write_bytes(b"".join(line + b"\n" for line in kept))


class TrainingLog(keras.callbacks.Callback):
    """Logs the training metrics every `every` steps and resets them."""

    def __init__(self, log, every=100):
        super().__init__()
        self.log = log
        self.every = every
        self._has_restored_sums = False

    def on_train_begin(self, logs=None):
        self._seconds = self.log.progress.seconds
        self._tokens = float(self.model.token_counter.result())

    def on_epoch_begin(self, epoch, logs=None):
        # Keras has just reset the metrics. A resumed run continues with the sums that
        # its checkpoint stored.
        sums = self.log.progress.metrics
        restore_metric_sums(self.model, sums)
        self._has_restored_sums = any(sums)

    def on_train_batch_end(self, batch, logs=None):
        progress = self.log.progress
        if progress.step % self.every:
            return
        seconds = progress.seconds - self._seconds
        tokens = float(self.model.token_counter.result())
        metrics = {name: float(value) for name, value in logs.items()}
        if tokens == self._tokens and not self._has_restored_sums:
            # All updates were skipped. Without tokens, Keras's metrics would be 0.
            metrics = dict.fromkeys(metrics, math.nan)
        metrics["tokens_per_second"] = (tokens - self._tokens) / max(seconds, 1e-9)
        # Keras has already counted this update, so `learning_rate` is the rate of the
        # next update.
        rate = tf.convert_to_tensor(self.model.optimizer.learning_rate)
        metrics["learning_rate"] = float(rate)
        self.log.write("train", metrics)
        self._seconds, self._tokens = progress.seconds, tokens
        self._has_restored_sums = False
        for metric in self.model.metrics:
            metric.reset_state()


def metric_sums(model):
    """Returns the variables of a `TrainingModel`'s metrics."""
    return [variable for metric in model.metrics for variable in metric.variables]


def restore_metric_sums(model, sums):
    """Sets the variables of a `TrainingModel`'s metrics, unless `sums` is empty."""
    if sums:
        for variable, value in zip(metric_sums(model), sums, strict=True):
            variable.assign(value)


class ProgressReport(keras.callbacks.Callback):
    """Shows loss, target tokens per second and remaining time on standard error.

    Args:
        progress: The run's `Progress`.
        steps: Number of the run's last step.
        num_stages: Number of stages of the run.
        line_seconds: Seconds between lines, if standard error is not a terminal.
    """

    def __init__(self, progress, steps, num_stages=1, line_seconds=30.0):
        super().__init__()
        self.progress = progress
        self.steps = steps
        self._stage = ""
        if progress.stage is not None:
            self._stage = f"stage {progress.stage} of {num_stages}"
        self.validation = ""
        self._bar = ProgressBar(
            self._stage or "training", steps, progress.step, "starting", line_seconds
        )

    def __enter__(self):
        self._bar.__enter__()
        return self

    def __exit__(self, *_):
        self._bar.__exit__()

    def on_train_begin(self, logs=None):
        self._tokens = float(self.model.token_counter.result())

    def on_train_batch_end(self, batch, logs=None):
        step = self.progress.step
        if not self._bar.is_due(step) and step < self.steps:
            return
        tokens = float(self.model.token_counter.result())
        rate = (tokens - self._tokens) / max(self._bar.seconds_since_shown, 1e-9)
        self._tokens = tokens
        metrics = (
            f"loss {float(logs['loss']):.3f}, {rate:,.0f} target tokens/s"
            f"{self.validation}"
        )
        stage = f" ({self._stage})" if self._stage else ""
        line = f"step {step:,} of {self.steps:,}{stage}: {metrics}"
        self._bar.show(step, metrics, line)

    def show_validation(self, metrics):
        """Appends the metrics of a validation to later progress messages."""
        parts = [f"{name} {value:.2f}" for name, value in metrics.items()]
        self.validation = ", validation " + " ".join(parts)
