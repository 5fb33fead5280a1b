"""What all verbs share: how mistakes are told, how files are written."""

import contextlib
import functools
import os
import pathlib
import signal
import sys
import threading

import typer

from keras_transformer.errors import ModelError
from keras_transformer.errors import UserError
from keras_transformer.files import told_when_full

MISTAKE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141
# Whoever has chosen a level wants to see what TensorFlow says.
SHOW_LIBRARIES = "TF_CPP_MIN_LOG_LEVEL" in os.environ


def say(message: str) -> None:
    """Writes a line of progress to standard error."""
    typer.echo(message, err=True)


def warn(message: str) -> None:
    say(f"warning: {message}")


def verb(function):
    """Makes a function a verb: mistakes become one line and exit code 2."""

    @functools.wraps(function)
    def run(*args, **kwargs):
        # For what is said later on, such as that there is no GPU.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        try:
            result = function(*args, **kwargs)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            # Who read our output has left; nothing more must reach it at exit.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(BROKEN_PIPE) from None
        except KeyboardInterrupt:
            say("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            message = _mistake(error)
            if message is None:
                raise
            say(f"error: {message}")
            raise typer.Exit(getattr(error, "exit_code", MISTAKE)) from None

    return run


def _mistake(error):
    """Returns the line to show if the user can fix `error`, else None."""
    if isinstance(error, UserError):
        return " ".join(str(error).split())
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return None


def existing(path: pathlib.Path) -> pathlib.Path:
    """The path itself, if something is there; spares a wait for TensorFlow."""
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    return path


def refuse_workers(name):
    """Raises `UserError` where `TF_CONFIG` asks for what only `train` can do."""
    if os.environ.get("TF_CONFIG"):
        raise UserError(f"TF_CONFIG is set, but {name} trains in one process; unset it")


def check_tokenizer(name):
    """Raises `UserError` unless sacreBLEU has this tokenizer, and what it needs."""
    from sacrebleu.metrics import BLEU

    from keras_transformer.recipes.schema import BLEU_TOKENIZERS

    if name not in BLEU_TOKENIZERS:
        known = ", ".join(BLEU_TOKENIZERS)
        raise UserError(f"--tokenize {name}: must be one of {known}")
    try:
        BLEU(tokenize=name)
    except (ImportError, RuntimeError) as error:
        raise UserError(f"--tokenize {name}: {error}") from None


@contextlib.contextmanager
def quiet_libraries():
    """Drops what native libraries write to standard error; Python's lines stay.

    On loading, TensorFlow reports on the machine whatever its log level.
    """
    if SHOW_LIBRARIES:
        yield
        return
    real, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    own_stderr = sys.stderr
    try:
        if sys.stderr is sys.__stderr__:
            sys.stderr = open(  # noqa: SIM115, closed below
                real, "w", buffering=1, closefd=False
            )
        os.dup2(nowhere, 2)
        yield
    finally:
        sys.stderr = own_stderr
        os.dup2(real, 2)
        os.close(real)
        os.close(nowhere)


@contextlib.contextmanager
def ending_on_sigterm():
    """SIGTERM raises `SystemExit(143)`, so that temporary files go."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def load_tensorflow() -> None:
    """Imports TensorFlow, which takes seconds: to be called when all else is right."""
    with quiet_libraries():
        import tensorflow  # noqa: F401


class LineWarnings:
    """Prints a translator's warnings with the numbers of the lines in the input.

    Args:
        prefix: Text before the number.

    Attributes:
        numbers: Number of each line that the translator is given.
    """

    def __init__(self, prefix="line"):
        self._prefix = prefix
        self.numbers = None

    def __call__(self, index, text):
        warn(f"{self._prefix} {self.numbers[index]}: {text}")


_ABILITIES = {
    "score": "score given translations",
    "align": "give alignments",
    "sample": "sample",
    "with_search": "search with other settings, prefixes or forbidden words",
    "model": "be parsed with, exported or visualized",
}


def opened_model(path, warn_with=None, ensemble=(), parallel_batches=1, needs=()):
    """Opens a model for a command: quiet, its warnings on standard error.

    Args:
        needs: Names of the methods and attributes of `Translator` that are used.

    Raises:
        ModelError: If there is no model, or a SavedModel, which lacks one of them.
    """
    load_tensorflow()
    with quiet_libraries():
        from keras_transformer.saving.open import open_model
        from keras_transformer.training import use_threads

        use_threads(parallel_batches)
        opened = open_model(
            path,
            ensemble=ensemble,
            parallel_parts=parallel_batches,
            warn=warn_with or LineWarnings(),
        )
    for need in needs:
        if not hasattr(opened, need):
            raise ModelError(
                f"{path}: a SavedModel cannot {_ABILITIES[need]}; use the run's folder "
                "or the .keras file"
            )
    return opened


def check_output(path: pathlib.Path):
    """Raises `UserError` where no file can be written: before any work for it."""
    if path.suffix == ".gz":
        raise UserError(f"{path}: what is written is not compressed; leave out .gz")
    if path.is_dir():
        raise UserError(f"{path}: a folder, where a file was expected")
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent}")


@contextlib.contextmanager
def written_lines(path: pathlib.Path | None):
    """A function that writes one line of UTF-8, to a file or standard output.

    A file appears under its name only when all of it is written; a device or a pipe
    is written into.
    """
    if path is None:
        yield line_writer(sys.stdout.buffer)
        return
    check_output(path)
    if path.exists() and not path.is_file():
        with open(path, "wb") as file:
            yield line_writer(file)
        return
    path = path.resolve()  # a link stays one
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with told_when_full(path), open(temporary, "wb") as file:
            yield line_writer(file)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def line_writer(file):
    """A function that writes one line of UTF-8 to a binary file, at once."""

    def write_line(text: str) -> None:
        # A sub-word of bytes can spell a line end; a line must stay one line.
        one_line = text.replace("\r", " ").replace("\n", " ")
        file.write(one_line.encode("utf-8", "replace") + b"\n")
        file.flush()

    return write_line


def progress(description: str, total: int | None, unit: str = "lines"):
    """A rich progress bar on standard error, as a context manager.

    Gives a function that is called with the number of units just done. Without a
    terminal nothing is drawn.
    """
    return _bar(description, total, unit)


@contextlib.contextmanager
def _bar(description, total, unit):
    from rich.console import Console
    from rich.progress import BarColumn
    from rich.progress import MofNCompleteColumn
    from rich.progress import Progress
    from rich.progress import TextColumn
    from rich.progress import TimeElapsedColumn
    from rich.progress import TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bars:
        task = bars.add_task(description, total=total)
        yield lambda count: bars.update(task, advance=count)
