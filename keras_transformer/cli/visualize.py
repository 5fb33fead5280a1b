"""keras-transformer visualize"""

import enum
import pathlib
from typing import Annotated

import typer

from keras_transformer.cli.console import LineWarnings
from keras_transformer.cli.console import existing
from keras_transformer.cli.console import opened_model
from keras_transformer.cli.console import say
from keras_transformer.cli.console import verb
from keras_transformer.errors import UserError


class Kind(enum.StrEnum):
    CROSS = "cross"
    ENCODER = "encoder"
    DECODER = "decoder"


@verb
def visualize(
    model: Annotated[
        pathlib.Path,
        typer.Argument(metavar="MODEL", help="A run folder or a .keras file."),
    ],
    source: Annotated[str, typer.Option("--source", "-s", help="The sentence.")],
    target: Annotated[
        str | None,
        typer.Option("--target", "-t", help="Its translation. Default: the model's."),
    ] = None,
    output: Annotated[
        pathlib.Path,
        typer.Option("--output", "-o", help="PATH.png and PATH.html are written."),
    ] = pathlib.Path("attention"),
    kind: Annotated[
        Kind, typer.Option(help="What the PNG shows; the page has all.")
    ] = Kind.CROSS,
    layer: Annotated[
        int | None, typer.Option(min=1, help="Of the PNG. Default: all.")
    ] = None,
    head: Annotated[
        int | None, typer.Option(min=1, help="Of the PNG. Default: all.")
    ] = None,
):
    """Draw where the model looks: a picture, and a page to explore.

    \b
    keras-transformer visualize runs/mine --source "A man rides a bike."
    """
    existing(model)
    folder = output.parent
    if not output.name:
        raise UserError(f"--output {output}: a folder; give the files a name in it")
    if not folder.is_dir():
        raise UserError(f"{output}: there is no folder {folder}")
    warnings = LineWarnings()
    warnings.numbers = [1]
    opened = opened_model(model, warnings, needs=["model"])
    if target is None:
        (target,) = opened.translate([source])
        say(f"translation: {target}")

    from keras_transformer.files import replace_file
    from keras_transformer.files import told_when_full
    from keras_transformer.visualization import attention_of
    from keras_transformer.visualization import write_figure
    from keras_transformer.visualization import write_page

    attention = attention_of(opened.model, opened.tokenizer, source, target)
    for suffix, write in (
        (".png", lambda path: write_figure(attention, path, kind.value, layer, head)),
        (".html", lambda path: write_page(attention, path)),
    ):
        path = output.with_name(output.name + suffix)
        with told_when_full(path), replace_file(path) as temporary:
            write(temporary)
        typer.echo(path)
