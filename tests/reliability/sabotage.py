"""Kills its own process by SIGKILL at a given point of a run.

A point is a function `patch(kill)`. It patches the package so that `kill` is called
there. `kill(before)` calls `before` first, for example to leave a partial file.
"""

import contextlib
import functools
import inspect
import json
import os
import pathlib
import signal
import threading
import time

# Steps between two lines of the log. SETTINGS in conftest.py save every 3 steps.
LOG_STEPS = 5


def install(point=None, nth=1, delay=None, hang=None, reached=None):
    """Patches functions so that this process is killed at a point.

    Args:
        point: A key of `POINTS` or `EXPORT_POINTS`, or "random". If `None`, the process
            is not killed.
        nth: Number of the call at which the process is killed or waits, from 1.
        delay: For "random", seconds from the end of the first step to the kill.
        hang: A point at which the process waits for ten minutes and is not killed.
        reached: Path of a file that is created when the process starts to wait.
    """
    _log_often()
    if hang is not None:
        POINTS[hang](functools.partial(_hang, nth, [0], reached))
    elif point == "random":
        _patch_random(delay)
    elif point is not None:
        {**POINTS, **EXPORT_POINTS}[point](
            functools.partial(_kill_at_nth_call, nth, [0])
        )


def _kill_at_nth_call(nth, count, before=None):
    """Kills the process at the nth call. `count` is the list [calls so far]."""
    count[0] += 1
    if count[0] == nth:
        if before is not None:
            before()
        os.kill(os.getpid(), signal.SIGKILL)


def _hang(nth, count, reached, before=None):
    """Creates the file `reached` at the nth call and waits ten minutes."""
    count[0] += 1
    if count[0] == nth:
        pathlib.Path(reached).touch()
        time.sleep(600)


def _log_often():
    """Shortens the log interval, so that checkpoints fall between two log lines.

    A resumed run must restore the metrics since the last line.
    """
    from keras_transformer.training.trainer import Trainer

    names = [
        name
        for name, parameter in inspect.signature(Trainer.fit).parameters.items()
        if parameter.default is not parameter.empty
    ]
    defaults = list(Trainer.fit.__defaults__)
    defaults[names.index("log_steps")] = LOG_STEPS
    Trainer.fit.__defaults__ = tuple(defaults)


def _patch_random(delay):
    """Kills the process `delay` seconds after its first step."""

    def kill_later():
        time.sleep(delay)
        os.kill(os.getpid(), signal.SIGKILL)

    from keras_transformer.training.callbacks import StepCounter

    original = StepCounter.on_train_batch_end

    def on_train_batch_end(self, batch, logs=None):
        original(self, batch, logs)
        StepCounter.on_train_batch_end = original
        threading.Thread(target=kill_later, daemon=True).start()

    StepCounter.on_train_batch_end = on_train_batch_end


def _before(owner, name):
    """Returns a point before the function `name` of `owner()` is called.

    `owner` is a function, so that the package is imported only in the sabotaged run.
    """

    def patch(kill):
        original = getattr(owner(), name)

        def replacement(*args, **kwargs):
            kill()
            return original(*args, **kwargs)

        setattr(owner(), name, replacement)

    return patch


def _after(owner, name, then=None):
    """Returns a point after the function `name` of `owner()` was called.

    `then` is called with the function's arguments before the process is killed.
    """

    def patch(kill):
        original = getattr(owner(), name)

        def replacement(*args, **kwargs):
            result = original(*args, **kwargs)
            kill(lambda: then and then(*args, **kwargs))
            return result

        setattr(owner(), name, replacement)

    return patch


def _module(name):
    return lambda: __import__(name, fromlist=["x"])


def _class(module, name):
    return lambda: getattr(_module(module)(), name)


def _cut(path):
    content = pathlib.Path(path).read_bytes()
    pathlib.Path(path).write_bytes(content[: len(content) // 2])


def _cut_parts(prefix, *_, **__):
    # SaveV2's first argument: RUN/checkpoints/ckpt-3_temp/part-00000-of-00001.
    prefix = prefix.numpy().decode()
    for path in pathlib.Path(prefix).parent.glob("part-*"):
        _cut(path)


def _take_index(_, destination_prefix, **__):
    pathlib.Path(f"{destination_prefix.numpy().decode()}.index").unlink()


def _partial_log_line(kill):
    """Point at which a line of metrics.jsonl is partially written."""
    from keras_transformer.training.reporting import MetricsLog

    original = MetricsLog.note

    def note(self, split, values):
        def write():
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"split": split, "step": 1, **values})[:-9])

        kill(write)
        original(self, split, values)

    MetricsLog.note = note


def _partial_model(name):
    """Returns a point at which a temporary .keras file is partially written."""

    def patch(kill):
        from keras_transformer.transformer import Transformer

        original = Transformer.save

        def save(self, path, *args, **kwargs):
            original(self, path, *args, **kwargs)
            if pathlib.Path(path).name.startswith(f".{name}"):
                kill(lambda: _cut(path))

        Transformer.save = save

    return patch


def _partial_rotation(kill):
    """Point at which the index of an old checkpoint is deleted, but not its data."""
    original = pathlib.Path.unlink

    def unlink(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if self.suffix == ".index":
            kill()

    pathlib.Path.unlink = unlink


def _before_rename(module):
    """Returns a point at which `replace_file` has written but not renamed a file."""

    def patch(kill):
        owner = _module(module)()
        original = owner.replace_file

        @contextlib.contextmanager
        def replace_file(path):
            with original(path) as temporary:
                yield temporary
                kill()

        owner.replace_file = replace_file

    return patch


_TRAINING = "keras_transformer.training"
_CHECKPOINTS = _class(f"{_TRAINING}.checkpoints", "Checkpoints")
_SAVED = _module("keras_transformer.saving.checkpoints")
_IO = _module("tensorflow.python.ops.gen_io_ops")
_SAVER_IO = _module("tensorflow.python.ops.io_ops")

# Points of the command `train`, by name.
POINTS = {
    "before the tokenizer is written": _before(
        _module("keras_transformer.pipelines.tokenizers.base"), "write_atomically"
    ),
    "before the ids file is closed": _before(
        _class("keras_transformer.pipelines.encoding", "_IdsFile"), "close"
    ),
    "step": _before(
        _class(f"{_TRAINING}.callbacks", "StepCounter"), "on_train_batch_end"
    ),
    "log line half written": _partial_log_line,
    "before a checkpoint": _before(_CHECKPOINTS, "save"),
    "checkpoint's part half written": _after(_SAVER_IO, "save_v2", _cut_parts),
    "checkpoint's parts not merged": _before(_IO, "merge_v2_checkpoints"),
    "checkpoint without index": _after(_IO, "merge_v2_checkpoints", _take_index),
    "checkpoint not synced": _before(_module(f"{_TRAINING}.checkpoints"), "sync"),
    "before saved.json": _before_rename(f"{_TRAINING}.checkpoints"),
    "before rotation": _before(_CHECKPOINTS, "_delete_old"),
    "during rotation": _partial_rotation,
    "before the state file": _before(_CHECKPOINTS, "_write_state_file"),
    "after a checkpoint": _after(_CHECKPOINTS, "save"),
    "after perplexity": _after(_module("keras_transformer.evaluation"), "perplexity"),
    "before decoding in validation": _before(
        _class("keras_transformer.decoding", "Translator"), "translate"
    ),
    "best.keras half written": _partial_model("best"),
    "before averaging": _before(
        _module("keras_transformer.saving.checkpoints"), "check_shapes"
    ),
    "model.keras half written": _partial_model("model"),
    "before model.keras is renamed into place": _before_rename(f"{_TRAINING}.trainer"),
}
_EXPORT = _module("keras_transformer.export.saved_model")
# Points of the command `export`.
EXPORT_POINTS = {
    "after the SavedModel is written": _before(_EXPORT, "write_warmup_requests"),
    "before the version is synced": _before(_EXPORT, "sync_tree"),
    "before the version is renamed into place": _after(_EXPORT, "sync_tree"),
}
