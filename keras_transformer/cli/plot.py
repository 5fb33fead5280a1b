"""keras-transformer plot"""

import pathlib
from typing import Annotated

import typer
from typer import Argument, Option

from keras_transformer.cli import console
from keras_transformer.errors import UserError


def plot(
    runs: Annotated[list[pathlib.Path], Argument(metavar="RUN", help="Run folder.")],
    output: Annotated[
        pathlib.Path | None,
        Option(
            "--output",
            "-o",
            help="File to write, .png, .pdf or .svg (default: RUN/curves.png, or "
            "curves.png for several runs).",
        ),
    ] = None,
):
    """Draw the training curves of runs.

    The picture shows loss, validation metrics and learning rate against steps and
    minutes. Several runs share one picture. A run may still be training.

    \b
    keras-transformer plot runs/mine
    keras-transformer plot runs/small runs/large --output comparison.pdf
    """
    from keras_transformer.runs.report import SUFFIXES, draw_curves
    from keras_transformer.saving.names import CURVES

    for run in runs:
        console.require_run(run)
    if output is None:
        output = runs[0] / CURVES if len(runs) == 1 else pathlib.Path(CURVES)
    console.require_writable(output)
    if output.suffix.lower() not in SUFFIXES:
        raise UserError(f"--output {output}: must end in {', '.join(SUFFIXES)}")
    draw_curves(runs, output)
    typer.echo(output)
