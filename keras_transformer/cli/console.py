"""Error reporting, path checks and model loading, shared by all commands."""

import contextlib
import errno
import functools
import importlib.util
import json
import math
import os
import pathlib
import re
import sys
import traceback

import typer

from keras_transformer.cli import common
from keras_transformer.cli.exit_signals import exit_on_signals
from keras_transformer.cli.library_log import print_library_log
from keras_transformer.cli.values import SURROGATES, check_values
from keras_transformer.errors import UserError, install_hint
from keras_transformer.untrusted import escape_controls

# Exit codes. The last two are 128 plus the number of a signal, as in a shell.
USER_ERROR = 2
INTERRUPTED = 130
BROKEN_PIPE = 141

# TensorFlow reports these file errors as exhausted resources, like a lack of memory.
FILE_ERRORS = {
    os.strerror(number)
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
}
# Lines of an error in a `tf.function` that precede the reason.
_LOCATION = re.compile(r"$|\s|Graph execution error:|Detected at node ")


def print_status(message: str) -> None:
    """Prints a line to standard error, except with --quiet.

    Characters that can control the terminal are escaped.
    """
    if not common.current.quiet:
        print_error(message)


def print_error(message: str) -> None:
    """Like `print_status`, but also with --quiet."""
    # A closed terminal or pipe must not stop the command.
    with contextlib.suppress(OSError):
        typer.echo(escape_controls(message), err=True)


def warn(message: str) -> None:
    """Prints a warning to standard error."""
    print_error(f"warning: {message}")


def command(function=None, *, uses_device=True):
    """Turns a function into a command with one-line errors and the options of `common`."""
    if function is None:
        return functools.partial(command, uses_device=uses_device)

    @functools.wraps(function)
    def run(*args, **kwargs):
        given = {
            name: kwargs.pop(name) for name in common.COMMON_OPTIONS if name in kwargs
        }
        # File names need not be UTF-8, and commands print them.
        with contextlib.suppress(AttributeError, ValueError):
            sys.stdout.reconfigure(errors="surrogateescape")
        try:
            check_values(kwargs)
            with (
                exit_on_signals(),
                common.override_settings(**given),
                print_library_log(),
            ):
                result = function(*args, **kwargs)
            if sys.stdout is not None:
                sys.stdout.flush()
            return result
        except BrokenPipeError:
            _discard_output()
            raise typer.Exit(BROKEN_PIPE) from None
        except KeyboardInterrupt:
            print_error("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            message = _user_message(error)
            if message is None:
                raise
            if given.get("verbose"):
                traceback.print_exc()
            if _is_unnamed(error):
                _discard_output()
            print_error(f"error: {message}")
            raise typer.Exit(getattr(error, "exit_code", USER_ERROR)) from None

    common.add_options(run, function, uses_device)
    return run


def _user_message(error):
    """Returns the line to print if the user can fix `error`, else `None`."""
    if isinstance(error, UserError):
        return " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        what = "reading or writing failed" if _is_unnamed(error) else error.filename
        return f"{what}: {error.strerror}"
    if isinstance(error, (MemoryError, *_tensorflow_memory_errors())):
        # In a `tf.function`, lines about the source code come first. TensorFlow adds
        # the node in braces and the operation in brackets.
        lines = str(error).splitlines()
        line = next((each for each in lines if not _LOCATION.match(each)), "")
        reason = re.sub(r"^\{\{.*?\}\} *| *\[Op:\w+\]$", "", line)
        path, _, cause = reason.rpartition("; ")
        if path and cause in FILE_ERRORS:
            return f"{path}: {cause}"
        return f"not enough memory: {reason}" if reason else "not enough memory"
    if isinstance(error, UnicodeEncodeError) and SURROGATES.search(error.object):
        word = next(filter(SURROGATES.search, error.object.split()))
        return f"{word}: must be UTF-8"
    return None


def _tensorflow_memory_errors():
    tensorflow = sys.modules.get("tensorflow")
    return () if tensorflow is None else (tensorflow.errors.ResourceExhaustedError,)


def _is_unnamed(error):
    """Returns whether `error` is an I/O error without a file name, as on a pipe."""
    return isinstance(error, OSError) and bool(error.errno) and error.filename is None


def _discard_output():
    """Discards buffered output, since Python would try to write it again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def warn_unsafe(*paths):
    """Warns that models are opened with --allow-unsafe, except for presets.

    Presets are always checked.
    """
    from keras_transformer.saving.preset import is_preset

    for path in paths:
        if not is_preset(path):
            warn(f"{path}: not checked, so it can run any code (--allow-unsafe)")


def json_text(value, indent=2) -> str:
    """Returns JSON text. Numbers that are not finite become null."""

    def replace_nonfinite(value):
        if isinstance(value, dict):
            return {key: replace_nonfinite(item) for key, item in value.items()}
        if isinstance(value, list):
            return [replace_nonfinite(item) for item in value]
        is_number = isinstance(value, float)
        return None if is_number and not math.isfinite(value) else value

    return json.dumps(replace_nonfinite(value), indent=indent)


def require_exists(*paths: pathlib.Path | None) -> None:
    """Raises `UserError` unless each path exists; skips `None` and "-"."""
    for path in paths:
        if path is not None and str(path) != "-" and not path.exists():
            raise UserError(f"{path}: no such file or folder")


def require_run(path: pathlib.Path) -> None:
    """Raises `UserError` unless a path is a run folder."""
    require_exists(path)
    if not (path / "config.yaml").is_file():
        is_inside = (path.parent / "config.yaml").is_file()
        hint = f". Did you mean {path.parent}?" if is_inside else ""
        raise UserError(f"{path}: must be a run folder, with a config.yaml{hint}")


def find_model(path: pathlib.Path) -> pathlib.Path:
    """Returns the local path of a model, given its path, packaged name or `hf://` name."""
    from keras_transformer.saving.names import locate_model, missing_model_message

    found = locate_model(path)
    if not found.exists():
        raise UserError(f"{path}: {missing_model_message()}")
    return found


def require_parent(path: pathlib.Path) -> None:
    """Raises `UserError` unless the parent folder of an output path exists."""
    if not path.parent.is_dir():
        raise UserError(f"{path}: the folder {path.parent} does not exist")


def require_folder_path(path: pathlib.Path) -> None:
    """Raises `UserError` if an output folder's path, or a parent of it, is a file."""
    for each in (path, *path.parents):
        if each.exists() and not each.is_dir():
            prefix = "" if each == path else f"{path}: "
            raise UserError(f"{prefix}{each}: must be a folder, not a file")


def require_writable(path: pathlib.Path | None) -> None:
    """Raises `UserError` if `path` cannot be an output file; skips `None`."""
    if path is None:
        return
    if path.suffix == ".gz":
        raise UserError(f"{path}: output is not compressed; remove .gz from the name")
    if path.is_dir():
        raise UserError(f"{path}: must be a file, not a folder")
    require_parent(path)


def require_extra(extra, *packages):
    """Raises `UserError` unless the packages of an optional extra are installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise UserError(f"{package} is not installed: {install_hint(extra)}")


def refuse_workers(name):
    """Raises `UserError` if `TF_CONFIG`, which lists several workers, is set."""
    if os.environ.get("TF_CONFIG"):
        raise UserError(f"TF_CONFIG is set, but {name} does not support it; unset it")


class _Stderr:
    """Standard error of Python, separate from the output of native libraries.

    Python libraries keep the stream that they find when they are loaded. The stream is
    therefore never closed and always has the same descriptor.
    """

    stream = None
    is_used = False


@contextlib.contextmanager
def quiet_libraries():
    """Discards native libraries' output to standard error and keeps Python's.

    TensorFlow logs a description of the machine while it loads, at every log level.
    """
    if common.current.shows_libraries or _Stderr.is_used:
        yield
        return
    real = os.dup(2)
    if _Stderr.stream is None:
        _Stderr.stream = open(  # noqa: SIM115, never closed
            os.dup(2), "w", buffering=1, errors="backslashreplace", closefd=False
        )
    os.dup2(real, _Stderr.stream.fileno())
    own_stderr = sys.stderr
    _Stderr.is_used = True
    try:
        if sys.stderr is sys.__stderr__:
            sys.stderr = _Stderr.stream
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        _Stderr.is_used = False
        sys.stderr = own_stderr
        os.dup2(real, 2)
        os.close(real)


def load_tensorflow() -> None:
    """Imports TensorFlow and checks --device. Takes seconds: do other checks first."""
    with quiet_libraries():
        import tensorflow  # noqa: F401

        common.check_device()


@contextlib.contextmanager
def resume_hint(hint):
    """Prints "run the same command again to" and `hint` on Ctrl-C, and exits."""
    try:
        yield
    except KeyboardInterrupt:
        print_error(f"interrupted; run the same command again to {hint}")
        raise typer.Exit(INTERRUPTED) from None


class LineWarnings:
    """Callback that prints a translator's warnings with line numbers.

    Args:
        prefix: Text before the line number.

    Attributes:
        numbers: Sequence with the line number of each text that the translator is
            processing. Set it before each call of the translator.
    """

    def __init__(self, prefix="line"):
        self._prefix = prefix
        self.numbers = range(1, sys.maxsize)

    def __call__(self, index, text):
        warn(f"{self._prefix} {self.numbers[index]}: {text}")


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
):
    """Opens a model and prints its warnings on standard error.

    Returns:
        `Translator`, or `ExportedTranslator` for a SavedModel.
    """
    changes = {
        name: value for name, value in (search or {}).items() if value is not None
    }
    if allow_unsafe:
        warn_unsafe(path, *ensemble)
    load_tensorflow()
    with quiet_libraries():
        from keras_transformer.recipes.machine import find_cores
        from keras_transformer.saving.open import open_model
        from keras_transformer.saving.saved_model import ExportedTranslator
        from keras_transformer.training import configure_threads

        configure_threads(parallel_parts, find_cores())
        opened = open_model(
            path,
            ensemble=ensemble,
            allow_unsafe=allow_unsafe,
            parallel_parts=parallel_parts,
            warn=warnings or LineWarnings(),
        )
    for need in [*needs, *(["search"] if changes else [])]:
        phrase, is_in_ensembles, is_in_exports = _ABILITIES[need]
        if isinstance(opened, ExportedTranslator) and not is_in_exports:
            raise UserError(
                f"{path}: a SavedModel cannot {phrase}; use the run folder or the "
                ".keras file"
            )
        if ensemble and not is_in_ensembles:
            raise UserError(f"{path}: an ensemble cannot {phrase}; use one model")
    return opened.with_search(**changes) if changes else opened
