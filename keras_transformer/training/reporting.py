"""What a run tells: metrics.jsonl, TensorBoard, and a line or bar of progress."""

import json
import math
import sys
import time

import keras
import tensorflow as tf
from rich.console import Console
from rich.progress import BarColumn
from rich.progress import MofNCompleteColumn
from rich.progress import Progress as Bar
from rich.progress import TextColumn
from rich.progress import TimeElapsedColumn
from rich.progress import TimeRemainingColumn

from keras_transformer.files import replace_file


class MetricsLog:
    """Appends figures to `run/metrics.jsonl` and to TensorBoard's logs.

    Args:
        folder: The run's folder.
        progress: The run's `Progress`.
        writes: Whether to write at all; of several workers only one does.
    """

    def __init__(self, folder, progress, writes=True):
        self.progress = progress
        self.writes = writes
        self._path = folder / "metrics.jsonl"
        self._writers = {
            split: tf.summary.create_file_writer(str(folder / "logs" / split))
            for split in (("train", "validation") if writes else ())
        }

    def write(self, split, figures):
        """One line of JSON, one scalar each in TensorBoard."""
        if not self.writes:
            return
        # JSON has no word for a number that is none.
        self.note(
            split,
            {
                name: round(float(value), 6) if math.isfinite(value) else None
                for name, value in figures.items()
            },
        )
        step = self.progress.step
        with self._writers[split].as_default():
            for name, value in figures.items():
                tf.summary.scalar(name, float(value), step=step)
        self._writers[split].flush()

    def note(self, split, values):
        """One line of JSON: the step, the seconds of training, and `values`."""
        if not self.writes:
            return
        row = {
            "split": split,
            "step": self.progress.step,
            "seconds": round(self.progress.seconds, 1),
            **values,
        }
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")

    def rewind(self):
        """Drops the lines of steps after the current one, which will come again."""
        if not self.writes or not self._path.is_file():
            return
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        with replace_file(self._path) as temporary:
            temporary.write_text(
                "".join(filter(self._is_past, lines)), encoding="utf-8"
            )

    def _is_past(self, line):
        try:
            return json.loads(line)["step"] <= self.progress.step
        except json.JSONDecodeError:  # cut off when the process was killed
            return False


class TrainingLog(keras.callbacks.Callback):
    """Logs the training metrics every so many steps, and starts them anew.

    Args:
        log: The run's `MetricsLog`.
        every: Steps between two lines.
    """

    def __init__(self, log, every=100):
        super().__init__()
        self.log = log
        self.every = every

    def on_train_begin(self, logs=None):
        self._seconds = self.log.progress.seconds
        self._tokens = float(self.model.token_counter.result())

    def on_epoch_begin(self, epoch, logs=None):
        # Keras has just set the metrics to zero: a resumed run goes on with its sums.
        stored = self.log.progress.metrics
        if stored:
            sums = metric_sums(self.model)
            for variable, value in zip(sums, stored, strict=True):
                variable.assign(value)

    def on_train_batch_end(self, batch, logs=None):
        progress = self.log.progress
        if progress.step % self.every:
            return
        seconds = progress.seconds - self._seconds
        tokens = float(self.model.token_counter.result())
        figures = {name: float(value) for name, value in logs.items()}
        figures["tokens_per_second"] = (tokens - self._tokens) / max(seconds, 1e-9)
        # Of the next update: Keras counts the updates that are done.
        rate = tf.convert_to_tensor(self.model.optimizer.learning_rate)
        figures["learning_rate"] = float(rate)
        self.log.write("train", figures)
        self._seconds, self._tokens = progress.seconds, tokens
        for metric in self.model.metrics:
            metric.reset_state()


def metric_sums(model):
    """The variables of a `TrainingModel`'s metrics, which a log line starts anew."""
    return [variable for metric in model.metrics for variable in metric.variables]


class ProgressBar(keras.callbacks.Callback):
    """Loss, target tokens per second and the time left, on standard error.

    A bar on a terminal; elsewhere a line now and then.

    Args:
        progress: The run's `Progress`.
        steps: The run's last step.
        line_seconds: Seconds between lines where there is no terminal.
    """

    def __init__(self, progress, steps, line_seconds=30.0):
        super().__init__()
        self.progress = progress
        self.steps = steps
        self.validation = ""
        console = Console(stderr=True)
        self._interval = 0.5 if console.is_terminal else line_seconds
        self._bar = None
        if console.is_terminal:
            self._bar = Bar(
                TextColumn("training"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("{task.fields[figures]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(elapsed_when_finished=False),
                console=console,
            )

    def __enter__(self):
        self._first_step, self._start = self.progress.step, time.monotonic()
        self._shown = self._start
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(
                "training",
                total=self.steps,
                completed=self.progress.step,
                figures="starting",
            )
        return self

    def __exit__(self, *_):
        if self._bar is not None:
            self._bar.stop()

    def on_train_begin(self, logs=None):
        self._tokens = float(self.model.token_counter.result())

    def on_train_batch_end(self, batch, logs=None):
        # Reading a metric waits for the device: only when there is something to show.
        now = time.monotonic()
        if now - self._shown < self._interval and self.progress.step < self.steps:
            return
        tokens = float(self.model.token_counter.result())
        rate = (tokens - self._tokens) / max(now - self._shown, 1e-9)
        self._tokens, self._shown = tokens, now
        figures = (
            f"loss {float(logs['loss']):.3f}, {rate:,.0f} target tokens/s"
            f"{self.validation}"
        )
        if self._bar is not None:
            self._bar.update(self._task, completed=self.progress.step, figures=figures)
            return
        done = self.progress.step - self._first_step
        left = (now - self._start) / done * (self.steps - self.progress.step)
        print(
            f"step {self.progress.step:,} of {self.steps:,}: {figures}, "
            f"{_clock(left)} left",
            file=sys.stderr,
            flush=True,
        )

    def show_validation(self, figures):
        """Shows a validation's figures from now on."""
        parts = [f"{name} {value:.2f}" for name, value in figures.items()]
        self.validation = ", validation " + " ".join(parts)


def _clock(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
