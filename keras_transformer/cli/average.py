"""keras-transformer average"""

import pathlib
from typing import Annotated

import typer
from typer import Argument, Option

from keras_transformer.cli import console
from keras_transformer.errors import UserError


def average(
    run: Annotated[pathlib.Path, Argument(metavar="RUN", help="Run folder.")],
    last: Annotated[
        int, Option(min=1, help="Number of newest checkpoints to average.")
    ] = 5,
    output: Annotated[
        pathlib.Path | None,
        Option("--output", "-o", help="File to write (default: RUN/model.keras)."),
    ] = None,
):
    """Average the last checkpoints of a run into one model.

    If the command replaces RUN/model.keras, it removes the old model's validation
    scores from RUN/metrics.jsonl.

    \b
    keras-transformer average runs/mine --last 5
    """
    console.require_run(run)
    console.require_writable(output)
    if output is not None and output.suffix != ".keras":
        raise UserError(f"--output {output}: must end in .keras")

    console.load_tensorflow()
    from keras_transformer.runs.average import average_run

    path, checkpoints = average_run(run, last, output)
    console.print_status(f"averaged {len(checkpoints)} checkpoints")
    typer.echo(path)
    if path.resolve().parent != run.resolve():
        console.print_status(
            f"the model needs its tokenizer: copy {run / 'tokenizer'} next to it"
        )
