"""Class of all commands: common options, checks of values, and errors of one line."""

import contextlib
import errno
import math
import os
import pathlib
import re
import shlex
import sys
import traceback
import typing
from typing import Annotated

import typer
from typer import Option
from typer.core import TyperCommand

import keras_transformer as kt
from keras_transformer.cli import console
from keras_transformer.cli.options import with_flags
from keras_transformer.errors import UserError
from keras_transformer.signals import exit_on_signals

# Exit codes. The last two are 128 plus the number of a signal, as in a shell.
_USER_ERROR = 2
_BROKEN_PIPE = 141
# Python decodes the bytes of an argument that are not UTF-8 to lone surrogates.
_SURROGATES = re.compile("[\ud800-\udfff]")
# TensorFlow reports these file errors as exhausted resources, like a lack of memory.
_FILE_ERRORS = {
    os.strerror(number)
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
}
# Lines of an error in a `tf.function` that precede the reason.
_LOCATION = re.compile(r"$|\s|Graph execution error:|Detected at node ")
_VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
# Names of values in --help, by type, for options without `metavar`.
_METAVARS = {pathlib.Path: "FILE", str: "TEXT", int: "N", float: "NUMBER"}

_common_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@_common_app.command()
def _common_options(
    quiet: Annotated[
        bool, Option("--quiet", "-q", help="Print only results, warnings and errors.")
    ] = False,
    verbose: Annotated[
        bool, Option("--verbose", "-v", help="Print library messages and tracebacks.")
    ] = False,
    device: Annotated[
        str | None,
        Option(
            metavar="DEVICE", help="Device: cpu, gpu, or numbered GPUs, e.g. gpu:0,1."
        ),
    ] = None,
):
    """The options of all commands, whose values are `console.Settings`."""


COMMON_OPTIONS = typer.main.get_command(_common_app).params
# Commands that compute nothing, and so lack --device.
_LOCAL = {"init", "plot", "info", "models", "compare"}


class Command(TyperCommand):
    """A command with the common options, whose errors are one line without traceback.

    If it takes text as standard input or --input, it explains so when the text is an
    argument.
    """

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.params += COMMON_OPTIONS[:-1] if self.name in _LOCAL else COMMON_OPTIONS
        for each in self.params:
            _name_values(each)
            if each.default is False:
                each.secondary_opts = []  # no --no-restart beside --restart

    def collect_usage_pieces(self, ctx):
        # Typer writes required arguments in braces, which mean a choice elsewhere.
        pieces = super().collect_usage_pieces(ctx)
        return [each.replace("{", "").replace("}", "") for each in pieces]

    def parse_args(self, ctx, args):
        takes_input = any(each.name == "input_path" for each in self.params)
        ctx.allow_extra_args = takes_input
        words = [*ctx.command_path.split(), *args]
        console.command_line = shlex.join(word for word in words if word != "--restart")
        known = {name for each in self.params for name in each.opts}
        if "--reference" in known and "--target" in {*args} - known:
            ctx.fail("No such option: --target. Did you mean --reference?")
        if "--set" in known:
            _suggest_key(ctx, {each.partition("=")[0] for each in args} - known)
        rest = super().parse_args(ctx, args)
        if takes_input and ctx.args:
            _refuse_extra_argument(ctx)
        return rest

    def invoke(self, ctx):
        names = {each.name for each in COMMON_OPTIONS} & ctx.params.keys()
        settings = console.Settings(**{name: ctx.params.pop(name) for name in names})
        console.settings = settings
        # File names need not be UTF-8, and commands print them.
        with contextlib.suppress(AttributeError, ValueError):
            sys.stdout.reconfigure(errors="surrogateescape")
        try:
            _check_values(ctx.params)
            _set_environment(settings)
            with exit_on_signals(), console.print_library_log():
                result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
            return result
        except BrokenPipeError:
            _discard_output()
            raise typer.Exit(_BROKEN_PIPE) from None
        except KeyboardInterrupt:
            console.print_error("interrupted")
            raise typer.Exit(console.INTERRUPTED) from None
        except Exception as error:
            message = _user_message(error)
            if message is None:
                raise
            if settings.verbose:
                traceback.print_exc()
            if _is_unnamed(error):
                _discard_output()
            console.print_error(f"error: {with_flags(message, self)}")
            raise typer.Exit(getattr(error, "exit_code", _USER_ERROR)) from None


def _suggest_key(ctx, words):
    """Fails if a word is written like an option, but is the name of a recipe key."""
    for word in words:
        if word.startswith("--"):
            name = word.removeprefix("--").replace("-", "_")
            keys = kt.recipes.keys.dotted_recipe_keys()
            if key := kt.recipes.keys.key_named(name, keys):
                ctx.fail(f"No such option: {word}. Did you mean --set {key}=...?")


def _name_values(parameter):
    """Gives a parameter the name of its values in --help, and no type."""
    if parameter.param_type_name == "argument":
        parameter.display_type_rich = lambda ctx: None
    kind, choices = parameter.type_descriptor, parameter.type_descriptor.choices
    if parameter.metavar is None and choices:
        parameter.metavar = f"<{'|'.join(choices)}>"
    elif parameter.metavar is None:
        (item, *_) = typing.get_args(kind.annotation) or (kind.annotation,)
        parameter.metavar = _METAVARS.get(item)


def _refuse_extra_argument(ctx):
    text = " ".join(ctx.args)
    quoted, model = shlex.quote(text), shlex.quote(str(ctx.params["model"]))
    if os.path.exists(text):
        ctx.fail(f"{text}: pass a file as --input {quoted}")
    ctx.fail(
        f"{text!r}: pass text on standard input, as in `echo {quoted} | "
        f"{ctx.command_path} {model}`, or a file as --input"
    )


def _set_environment(settings):
    """Sets variables that TensorFlow and JAX read when they are loaded."""
    if settings.quiet and settings.verbose:
        raise UserError("--quiet and --verbose: pass only one of them")
    os.environ.setdefault(console.LOG_LEVEL, "3")
    if settings.verbose:
        os.environ[console.LOG_LEVEL] = "0"
    # JAX compiles for seconds what it can read in milliseconds the next time.
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = os.path.join(cache, "keras_transformer", "jax")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", cache)
    if settings.device is not None:
        _select_gpus(settings.device)


def _select_gpus(device):
    """Makes only the GPUs of --device visible."""
    if not re.fullmatch(r"cpu|gpu(:\d+(,\d+)*)?", device):
        raise UserError(
            f"--device {device}: must be cpu, gpu, or GPU numbers such as gpu:0,1"
        )
    if device == "cpu":
        os.environ[_VISIBLE_GPUS] = "-1"
    if ":" not in device:
        return
    names = device.partition(":")[2].split(",")
    if (visible := os.environ.get(_VISIBLE_GPUS)) is not None:
        # The numbers are indices into the GPUs that the environment makes visible.
        known = [name for name in visible.split(",") if name not in ("", "-1")]
        if max(map(int, names)) >= len(known):
            raise UserError(
                f"--device {device}: {_VISIBLE_GPUS}={visible} makes only {len(known)} "
                "GPU(s) visible"
            )
        names = [known[int(number)] for number in names]
    os.environ[_VISIBLE_GPUS] = ",".join(names)


def _check_values(arguments):
    """Raises `UserError` for values that no command can use."""
    for name, value in arguments.items():
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, float) and not math.isfinite(each):
                raise UserError(f"`{name}` {each}: must be a finite number")
            if isinstance(each, int) and abs(each) >= 2**63:
                raise UserError(f"`{name}` {each}: must be below {2**63}")
            if isinstance(each, str) and _SURROGATES.search(each):
                raise UserError(f"{each}: must be UTF-8")


def _user_message(error):
    """Returns the line to print if the user can fix `error`, else `None`."""
    if isinstance(error, UserError):
        return " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        what = "reading or writing failed" if _is_unnamed(error) else error.filename
        return f"{what}: {error.strerror}"
    # TensorFlow's class is named, because it need not be loaded.
    is_tensorflow = type(error).__name__ == "ResourceExhaustedError"
    if is_tensorflow or isinstance(error, MemoryError):
        # In a `tf.function`, lines about the source code come first. TensorFlow adds
        # the node in braces and the operation in brackets.
        lines = str(error).splitlines()
        line = next((each for each in lines if not _LOCATION.match(each)), "")
        reason = re.sub(r"^\{\{.*?\}\} *| *\[Op:\w+\]$", "", line)
        path, _, cause = reason.rpartition("; ")
        if path and cause in _FILE_ERRORS:
            return f"{path}: {cause}"
        return f"not enough memory: {reason}" if reason else "not enough memory"
    if isinstance(error, UnicodeEncodeError) and _SURROGATES.search(error.object):
        word = next(filter(_SURROGATES.search, error.object.split()))
        return f"{word}: must be UTF-8"
    return None


def _is_unnamed(error):
    """Returns whether `error` is an I/O error without a file name, as on a pipe."""
    return isinstance(error, OSError) and bool(error.errno) and error.filename is None


def _discard_output():
    """Discards buffered output, since Python would try to write it again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
