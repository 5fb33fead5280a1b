"""Messages, path checks and opening of models, shared by all commands."""

import contextlib
import dataclasses
import importlib.util
import json
import logging
import os
import pathlib
import shlex
import sys
import traceback

import typer

import keras_transformer as kt
from keras_transformer.errors import UserError, install_hint
from keras_transformer.native_output import hide_native_output
from keras_transformer.untrusted import escape_controls

# TensorFlow's minimum log level: 0 shows all, 3 what it cannot hide.
LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# Exit code: 128 plus the number of a signal, as in a shell.
INTERRUPTED = 130


@dataclasses.dataclass
class Settings:
    """Values of the options that all commands share."""

    quiet: bool = False
    verbose: bool = False
    device: str | None = None


# Of the command that runs, for all its threads. Its command line lacks --restart, so
# that it resumes.
settings = Settings()
command_line = ""


def print_status(message: str) -> None:
    """Prints a line to standard error, except with --quiet."""
    if not settings.quiet:
        print_error(message)


def print_error(message: str) -> None:
    """Like `print_status`, but also with --quiet. Escapes control characters."""
    # A closed terminal or pipe must not stop the command.
    with contextlib.suppress(OSError):
        typer.echo(escape_controls(message), err=True)


def warn(message: str) -> None:
    """Prints a warning to standard error."""
    print_error(f"warning: {message}")


@contextlib.contextmanager
def print_library_log():
    """Prints what the package logs, with the level of warnings and errors."""
    logger = logging.getLogger("keras_transformer")
    handler, level, propagate = _Handler(), logger.level, logger.propagate
    logger.addHandler(handler)
    # absl's handler on the root logger would print each message a second time.
    logger.propagate = False
    if level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


class _Handler(logging.Handler):
    def emit(self, record):
        message = record.getMessage()
        if record.levelno < logging.WARNING:
            print_status(message)
        elif record.levelno < logging.ERROR:
            warn(message)
        else:
            print_error(f"error: {message}")
        if record.exc_info:
            for text in traceback.format_exception(*record.exc_info):
                for line in text.splitlines():
                    print_error(line)


def json_text(value, indent=2) -> str:
    """Returns JSON text. Numbers that are not finite become null."""
    from pydantic_core import to_jsonable_python

    finite = to_jsonable_python(value, inf_nan_mode="null")
    return json.dumps(finite, indent=indent)


# The functions below raise a `UserError` unless their condition holds.


def require_exists(*paths: pathlib.Path | None) -> None:
    """Requires that each path exists; skips `None` and "-"."""
    for path in paths:
        if path is not None and str(path) != "-" and not path.exists():
            raise UserError(f"{path}: no such file or folder")


def require_files(*paths: pathlib.Path | None) -> None:
    """Requires that each path exists and is no folder; skips `None` and "-"."""
    require_exists(*paths)
    for path in paths:
        if path is not None and path.is_dir():
            raise UserError(f"{path}: must be a file, not a folder")


def require_run(path: pathlib.Path) -> None:
    require_exists(path)
    if not (path / "config.yaml").is_file():
        is_inside = (path.parent / "config.yaml").is_file()
        hint = f". Did you mean {path.parent}?" if is_inside else ""
        raise UserError(f"{path}: must be a run folder, with a config.yaml{hint}")


def find_model(path):
    """Returns the `ModelSource` of a model: a path, a packaged or an `hf://` name."""
    return kt.saving.names.locate(path)


def require_export(source):
    """Requires that a `ModelSource` is no run, whose export can be used instead."""
    if source.kind in ("run", "file"):
        command = export_command(source, source.folder)
        raise UserError(f"{source}: not a SavedModel. Create one with {command}")


def export_command(model, run):
    """Returns the command that exports a model of a run."""
    exported = f"saved_models/{run.resolve().name}"
    return shlex.join(["keras-transformer", "export", str(model), exported])


def warn_unsafe(*models):
    """Warns that models other than presets are not checked (--allow-unsafe)."""
    for source in map(find_model, models):
        if source.kind != "preset":
            warn(f"{source}: not checked, so it can run any code (--allow-unsafe)")


def require_parent(path: pathlib.Path) -> None:
    """Requires that the parent folder of an output path exists."""
    if not path.parent.is_dir():
        raise UserError(f"{path}: the folder {path.parent} does not exist")


def require_new(path: pathlib.Path) -> None:
    """Requires that an output folder does not exist, and can."""
    if path.exists():
        raise UserError(f"{path}: already exists. Choose another folder")
    require_folder_path(path)


def require_folder_path(path: pathlib.Path) -> None:
    """Requires that neither an output folder's path nor a parent of it is a file."""
    for each in (path, *path.parents):
        if each.exists() and not each.is_dir():
            prefix = "" if each == path else f"{path}: "
            raise UserError(f"{prefix}{each}: must be a folder, not a file")


def require_writable(path: pathlib.Path | None) -> None:
    """Requires that `path` can be an output file; skips `None`."""
    if path is None:
        return
    if path.suffix == ".gz":
        raise UserError(f"{path}: output is not compressed. Remove .gz from the name")
    if path.is_dir():
        raise UserError(f"{path}: must be a file, not a folder")
    require_parent(path)


def require_extra(extra, *packages):
    """Requires that the packages of an optional extra are installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise UserError(f"{package} is not installed: {install_hint(extra)}")


def refuse_workers(name):
    """Requires that `TF_CONFIG`, which lists several workers, is not set."""
    if os.environ.get("TF_CONFIG"):
        raise UserError(f"TF_CONFIG is set, but {name} does not support it. Unset it")


def quiet_libraries():
    """Hides what native libraries print, unless their messages are asked for.

    TensorFlow logs a description of the machine while it loads, at every log level.
    """
    if os.environ.get(LOG_LEVEL, "3") in ("0", "1", "2"):
        return contextlib.nullcontext()
    return hide_native_output()


def load_tensorflow() -> None:
    """Imports TensorFlow and checks --device. Takes seconds: do other checks first."""
    with quiet_libraries():
        import tensorflow  # noqa: F401

        if settings.device in (None, "cpu"):
            return
        import keras

        from keras_transformer.machine import find_machine

        expected = settings.device.count(",") + 1
        found = len(find_machine().gpus)
    if found < expected:
        is_jax = keras.config.backend() == "jax"
        name = "JAX" if is_jax else "TensorFlow"
        install = 'pip install "jax[cuda13]"' if is_jax else install_hint("gpu")
        raise UserError(
            f"--device {settings.device}: {name} finds {found} GPU(s). "
            f"Check `nvidia-smi`, and install CUDA: {install}"
        )


@contextlib.contextmanager
def resume_hint(hint, run=None):
    """Prints after a signal that the command, run again, will `hint`, and exits.

    If a run folder is given, also prints its last saved step.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        saved = ""
        if run is not None:
            steps = [*kt.saving.names.checkpoint_paths(run / "checkpoints")]
            saved = (
                f"; step {steps[-1]:,} is saved" if steps else "; no step is saved yet"
            )
        print_error(f"interrupted{saved}. To {hint}, run:")
        print_error(f"  {command_line}")
        raise typer.Exit(getattr(stop, "code", INTERRUPTED)) from None


class LineWarnings:
    """Callback that prints a translator's warnings with line numbers.

    `numbers` has the line number of each text that the translator is processing. Set it
    before each call of the translator. Without --verbose, at most `limit` warnings are
    printed.
    """

    def __init__(self, prefix="line ", limit=sys.maxsize):
        self._prefix = prefix
        self._limit = sys.maxsize if settings.verbose else limit
        self._count = 0
        self.numbers = range(1, sys.maxsize)

    def __call__(self, index, text):
        self._count += 1
        if self._count <= self._limit:
            warn(f"{self._prefix}{self.numbers[index]}: {text}")

    def report_omitted(self):
        """Prints the number of warnings that were not printed, if there are any."""
        if self._count > self._limit:
            warn(f"{self._count - self._limit:,} more; --verbose prints all")


# Abilities that some models lack: a phrase for messages, and whether ensembles and
# SavedModels have the ability.
_ABILITIES = {
    "search": ("search with other settings or forbidden words", True, False),
    "prefixes": ("use prefixes", True, False),
    "sample": ("sample translations", True, False),
    "filter": ("filter pairs", True, False),
    "parse": ("parse", True, False),
    "align": ("align words", False, True),
    "attention": ("show its attention", False, True),
    "export": ("be exported", False, False),
}


def open_translator(
    path,
    needs=(),
    ensemble=(),
    parallel_parts=1,
    search=None,
    warnings=None,
    allow_unsafe=False,
    adapters=(),
):
    """Returns an opened model that prints its warnings: a `Translator`, or an export.

    `needs` are keys of `_ABILITIES` that the command requires. `search` is a dict of
    arguments for `Translator.with_search`.
    """
    source = find_model(path)
    # An export with constraints can use a glossary.
    has_settings = bool({*(search or ())} - {"glossary"})
    for need in [*needs, *["search"] * has_settings]:
        phrase, is_in_ensembles, is_in_exports = _ABILITIES[need]
        if source.kind == "export" and not is_in_exports:
            raise UserError(
                f"{source}: a SavedModel cannot {phrase}. Use the model that it was "
                "exported from"
            )
        if ensemble and not is_in_ensembles:
            raise UserError(f"{source}: an ensemble cannot {phrase}. Use one model")
    if allow_unsafe:
        warn_unsafe(source, *ensemble)
    load_tensorflow()
    with quiet_libraries():
        kt.training.configure_threads(parallel_parts)
        opened = kt.open_model(
            source,
            ensemble=ensemble,
            adapters=adapters,
            allow_unsafe=allow_unsafe,
            parallel_parts=parallel_parts,
            warn=warnings or LineWarnings(),
        )
    return opened.with_search(**search) if search else opened
