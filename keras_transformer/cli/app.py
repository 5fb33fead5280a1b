"""The command line, with commands in the order in which users need them."""

import importlib
from typing import Annotated

import typer
from typer import Option

import keras_transformer
from keras_transformer.cli import corpus
from keras_transformer.cli import options

# Rich's boxes would split messages over several lines.
app = typer.Typer(
    name="keras-transformer",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_requested: bool):
    if is_requested:
        typer.echo(keras_transformer.__version__)
        raise typer.Exit


@app.callback()
def keras_transformer_command(
    version: Annotated[
        bool,
        Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version.",
        ),
    ] = False,
):
    """Train, evaluate, export and run Transformers that translate.

    \b
    keras-transformer demo                     try everything in about 5 minutes
    keras-transformer train                    list the recipes of the package
    """


# Each module defines the command of the same name.
COMMANDS = (
    *("demo", "train", "evaluate", "translate", "score", "average", "export"),
    *("info", "compare", "filter", "update_vocabulary", "serve", "parse"),
    *("visualize", "ablate", "import_model"),
)
# Names that are words of Python.
_COMMAND_NAMES = {"import_model": "import"}
for name in COMMANDS:
    module = importlib.import_module(f"keras_transformer.cli.{name}")
    command_name = _COMMAND_NAMES.get(name)
    app.command(command_name, cls=options.Command)(getattr(module, name))
app.add_typer(corpus.app, name="corpus")
app.command(hidden=True)(corpus.beam)
