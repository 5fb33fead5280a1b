"""Logs of a run: metrics.jsonl and TensorBoard."""

import json
import math
import os
import time

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from keras_transformer.files import replace_file
from keras_transformer.saving.names import FINAL, METRICS, metrics_lines

# Value of "split" in the line that marks the beginning of a stage.
STAGE = "stage"


class MetricsLog:
    """Appends metrics to `metrics.jsonl` and to the TensorBoard logs in `logs/`.

    Only one of several workers writes.
    """

    def __init__(self, folder, progress, writes=True):
        self.progress = progress
        self.writes = writes
        self._path = folder / METRICS
        self._writers = {}
        for split in ("train", "validation") if writes else ():
            self._writers[split] = EventFileWriter(str(folder / "logs" / split))

    def write(self, split, metrics, labels=()):
        """Writes a line of JSON and one TensorBoard scalar per metric.

        `split` is "train", "validation", or `FINAL`, which TensorBoard does not show.
        `labels` are further keys and values of the line.
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
        values = [
            Summary.Value(tag=name, simple_value=float(value))
            for name, value in metrics.items()
        ]
        event = Event(wall_time=time.time(), step=self.progress.step)
        event.summary.CopyFrom(Summary(value=values))
        self._writers[split].add_event(event)
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


def metric_sums(model):
    """Returns the variables of a `TrainingModel`'s metrics."""
    return [variable for metric in model.metrics for variable in metric.variables]


def restore_metric_sums(model, sums):
    """Sets the variables of a `TrainingModel`'s metrics, unless `sums` is empty."""
    if sums:
        for variable, value in zip(metric_sums(model), sums, strict=True):
            variable.assign(value)
