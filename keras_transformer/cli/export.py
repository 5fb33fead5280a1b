"""keras-transformer export"""

import pathlib
from typing import Annotated

import typer

from keras_transformer.cli.console import existing
from keras_transformer.cli.console import opened_model
from keras_transformer.cli.console import verb


@verb
def export(
    model: Annotated[
        pathlib.Path,
        typer.Argument(metavar="RUN", help="A run folder or a .keras file."),
    ],
    folder: Annotated[
        pathlib.Path,
        typer.Argument(metavar="FOLDER", help="Where to: saved_models/NAME."),
    ],
    beam_size: Annotated[
        int | None, typer.Option(min=1, help="Default: the run's, or 4.")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(min=0, help="Alpha. Default: the run's, or 0.6.")
    ] = None,
):
    """Write a SavedModel for TF-Serving: text in, text out.

    It goes to FOLDER/1, or to the next free number.

    \b
    keras-transformer export runs/mine saved_models/mine
    """
    existing(model)

    typer.echo(opened_model(model).export(folder, beam_size, length_penalty))
