"""Kills its own process by SIGKILL at a given point of a run.

A point is a function `patch(kill)`. It patches the package so that `kill` is called
there. `kill(before)` calls `before` first, for example to leave a partial file.
"""

import contextlib
import functools
import importlib
import json
import os
import pathlib
import signal
import threading
import time

# Steps between two lines of the log. SETTINGS in conftest.py save every 3 steps, so
# checkpoints fall between two lines, and a resumed run must restore the metrics.
LOG_STEPS = 5


def install(point=None, nth=1, hang=False, reached=None):
    """Patches functions so that this process is killed, or waits, at a point.

    Args:
        point: A key of `POINTS`, or a number: the seconds from the end of the first
            step to the kill. If `None`, the process runs to its end.
        nth: Number of the call at which the process is killed or waits, from 1.
        hang: Whether the process waits for ten minutes instead of being killed.
        reached: Path of a file that is created when the process starts to wait.
    """
    from keras_transformer.training.trainer import Trainer

    Trainer.fit = functools.partialmethod(Trainer.fit, log_steps=LOG_STEPS)
    calls = 0

    def stop(before=None):
        nonlocal calls
        calls += 1
        if calls != nth:
            return
        if before is not None:
            before()
        if not hang:
            os.kill(os.getpid(), signal.SIGKILL)
        pathlib.Path(reached).touch()
        time.sleep(600)

    if isinstance(point, float):
        kill_later(point)
    elif point is not None:
        POINTS[point](stop)


def kill_later(seconds):
    """Kills the process some seconds after its first step."""
    started = []

    def kill():
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    def start(before):
        if not started:
            started.append(threading.Thread(target=kill, daemon=True))
            started[0].start()

    after(f"{TRAINING}.callbacks:AfterStep.on_train_batch_end")(start)


def attribute(path):
    """Returns the owner and the name of `module:name` or `module:class.name`."""
    module, _, names = path.partition(":")
    *outer, name = names.split(".")
    return functools.reduce(getattr, outer, importlib.import_module(module)), name


def before(path):
    """Returns a point before the function at `path` is called."""

    def patch(kill):
        owner, name = attribute(path)
        original = getattr(owner, name)

        def replacement(*args, **kwargs):
            kill()
            return original(*args, **kwargs)

        setattr(owner, name, replacement)

    return patch


def after(path, then=None):
    """Returns a point after the function at `path` was called.

    `then` is called with the function's arguments before the process is killed.
    """

    def patch(kill):
        owner, name = attribute(path)
        original = getattr(owner, name)

        def replacement(*args, **kwargs):
            result = original(*args, **kwargs)
            kill(lambda: then and then(*args, **kwargs))
            return result

        setattr(owner, name, replacement)

    return patch


def before_rename(module):
    """Returns a point at which `replace_file` has written but not renamed a file."""

    def patch(kill):
        owner = importlib.import_module(module)
        original = owner.replace_file

        @contextlib.contextmanager
        def replace_file(path):
            with original(path) as temporary:
                yield temporary
                kill()

        owner.replace_file = replace_file

    return patch


def cut(path):
    content = pathlib.Path(path).read_bytes()
    pathlib.Path(path).write_bytes(content[: len(content) // 2])


def partial_log_line(kill):
    """Point at which a line of metrics.jsonl is partially written."""
    owner, _ = attribute(f"{TRAINING}.reporting:MetricsLog.note")
    original = owner.note

    def note(self, split, values):
        def write():
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"split": split, "step": 1, **values})[:-9])

        kill(write)
        original(self, split, values)

    owner.note = note


def partial_model(name):
    """Returns a point at which a temporary .keras file is partially written."""

    def patch(kill):
        owner, _ = attribute("keras_transformer.transformer:Transformer.save")
        original = owner.save

        def save(self, path, *args, **kwargs):
            original(self, path, *args, **kwargs)
            if pathlib.Path(path).name.startswith(f".{name}"):
                kill(lambda: cut(path))

        owner.save = save

    return patch


TRAINING = "keras_transformer.training"
_EXPORT = "keras_transformer.export.saved_model"
_TOKENIZERS = "keras_transformer.pipelines.tokenizers"
# Points of the command `train`, by name.
TRAIN_POINTS = {
    "before the tokenizer is written": before(f"{_TOKENIZERS}.base:Tokenizer.save"),
    "before the ids file is closed": before(
        "keras_transformer.pipelines.encoding:_append_rows"
    ),
    "step": before(f"{TRAINING}.callbacks:AfterStep.on_train_batch_end"),
    "log line half written": partial_log_line,
    "before a checkpoint": before(f"{TRAINING}.checkpoints:Checkpoints.save"),
    "checkpoint half written": after("numpy:savez", lambda path, **_: cut(path)),
    "checkpoint not renamed": before_rename(f"{TRAINING}.checkpoints"),
    "before rotation": before(f"{TRAINING}.checkpoints:Checkpoints._delete_old"),
    "after a checkpoint": after(f"{TRAINING}.checkpoints:Checkpoints.save"),
    "after perplexity": after("keras_transformer.evaluation:perplexity"),
    "before decoding in validation": before(
        "keras_transformer.decoding:Translator.translate"
    ),
    "best.keras half written": partial_model("best"),
    "before averaging": before("keras_transformer.runs.train:average_checkpoints"),
    "model.keras half written": partial_model("model"),
    "model.keras not renamed": before_rename(f"{TRAINING}.trainer"),
}
# Points of the command `export`.
EXPORT_POINTS = {
    "after the SavedModel is written": before(f"{_EXPORT}:write_warmup_requests"),
    "before the version is synced": before(f"{_EXPORT}:sync_tree"),
    "before the version is renamed into place": after(f"{_EXPORT}:sync_tree"),
}
POINTS = {**TRAIN_POINTS, **EXPORT_POINTS}
