"""The command line, with commands in the order in which users need them."""

import importlib
import json
import os
import pathlib
import platform
from typing import Annotated

import typer
from typer import Option

import keras_transformer
from keras_transformer.cli import corpus
from keras_transformer.cli import options

# Rich is not used, because its boxes would split messages over several lines.
app = typer.Typer(
    name="keras-transformer",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Distributions that contain the backends. Their metadata gives the version without
# importing a backend, which would take seconds.
_BACKENDS = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tf-nightly"),
    "jax": ("jax",),
    "torch": ("torch",),
}


def _print_version(is_requested: bool):
    if not is_requested:
        return
    backend = _keras_backend()
    typer.echo(
        f"keras-transformer {keras_transformer.__version__}\n"
        f"TensorFlow {_version('tensorflow')}\n"
        f"Keras {_version('keras')}, backend {backend} {_version(backend)}\n"
        f"Python {platform.python_version()}"
    )
    raise typer.Exit


def _version(name):
    # At the top of the module, this import would slow down --help by more than 10%.
    import importlib.metadata

    for distribution in _BACKENDS.get(name, (name,)):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "(not installed)"


def _keras_backend():
    """Returns the name of the backend that Keras would choose when it is imported."""
    if os.environ.get("KERAS_BACKEND"):
        return os.environ["KERAS_BACKEND"]
    folder = os.environ.get("KERAS_HOME") or pathlib.Path.home() / ".keras"
    try:
        text = pathlib.Path(folder, "keras.json").read_text(encoding="utf-8")
        return str(json.loads(text)["backend"])
    except (OSError, ValueError, LookupError, TypeError):
        return "tensorflow"


@app.callback()
def keras_transformer_command(
    version: Annotated[
        bool,
        Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the versions of this package, TensorFlow and Keras.",
        ),
    ] = False,
):
    """Train, evaluate, export and run Transformers that translate.

    \b
    keras-transformer demo                     try everything in a few minutes
    keras-transformer init my.yaml             write a recipe to edit
    keras-transformer train                    list the recipes of the package
    """


# Each module defines the command of the same name.
COMMANDS = (
    "demo",
    "init",
    "train",
    "plot",
    "evaluate",
    "translate",
    "score",
    "average",
    "export",
    "info",
    "models",
    "compare",
    "filter",
    "update_vocabulary",
    "serve",
    "parse",
    "visualize",
    "repeat",
    "ablate",
    "import_model",
)
# Commands whose names are Python keywords, which cannot be names of modules.
_COMMAND_NAMES = {"import_model": "import"}
for name in COMMANDS:
    function = getattr(importlib.import_module(f"keras_transformer.cli.{name}"), name)
    # The list of commands shows truncated help texts, unless a short help is given.
    short_help = function.__doc__.partition("\n")[0]
    app.command(_COMMAND_NAMES.get(name), cls=options.Command, short_help=short_help)(
        function
    )
app.add_typer(corpus.app, name="corpus", short_help=corpus.app.info.help)
app.command(hidden=True)(corpus.beam)
