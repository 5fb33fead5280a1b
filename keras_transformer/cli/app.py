"""The command's verbs in the order in which one meets them."""

from typing import Annotated

import typer

import keras_transformer
from keras_transformer.cli import ablate
from keras_transformer.cli import average
from keras_transformer.cli import beam
from keras_transformer.cli import compare
from keras_transformer.cli import demo
from keras_transformer.cli import evaluate
from keras_transformer.cli import export
from keras_transformer.cli import filter
from keras_transformer.cli import info
from keras_transformer.cli import parse
from keras_transformer.cli import score
from keras_transformer.cli import serve
from keras_transformer.cli import train
from keras_transformer.cli import translate
from keras_transformer.cli import update_vocabulary
from keras_transformer.cli import visualize

# Plain text instead of boxes: a message stays one line, however wide the terminal.
app = typer.Typer(
    name="keras-transformer",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool):
    if wanted:
        typer.echo(keras_transformer.__version__)
        raise typer.Exit


@app.callback()
def keras_transformer_command(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Version."
        ),
    ] = False,
):
    """Train, evaluate, export and run Transformers that translate.

    \b
    keras-transformer demo                     the whole of it in about 5 minutes
    keras-transformer train                    the recipes there are
    """


VERBS = (
    *(demo, train, evaluate, translate, score, average, export),
    *(info, compare, filter, update_vocabulary),
    *(serve, parse, visualize, ablate, beam),
)
for verb in VERBS:
    app.command()(getattr(verb, verb.__name__.rpartition(".")[2]))
