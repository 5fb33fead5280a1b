"""keras-transformer average"""

import pathlib
from typing import Annotated

import typer

from keras_transformer.cli.console import check_output
from keras_transformer.cli.console import existing
from keras_transformer.cli.console import load_tensorflow
from keras_transformer.cli.console import say
from keras_transformer.cli.console import verb
from keras_transformer.errors import UserError


@verb
def average(
    run: Annotated[pathlib.Path, typer.Argument(metavar="RUN", help="A run folder.")],
    last: Annotated[
        int, typer.Option(min=1, help="How many of the newest checkpoints.")
    ] = 5,
    output: Annotated[
        pathlib.Path | None,
        typer.Option(
            "--output", "-o", help="The .keras file.  [default: RUN/model.keras]"
        ),
    ] = None,
):
    """Average a run's last checkpoints into one model.

    \b
    keras-transformer average runs/mine --last 5
    """
    existing(run)
    if output is not None:
        check_output(output)
        if output.suffix != ".keras":
            raise UserError(f"--output {output}: must end in .keras")

    load_tensorflow()
    from keras_transformer.experiments.average import average_run

    path, checkpoints = average_run(run, last, output)
    say(f"averaged {len(checkpoints)} checkpoints")
    typer.echo(path)
    if path.resolve().parent != run.resolve():
        say(f"it opens with its tokenizer beside it: copy {run / 'tokenizer'} there")
