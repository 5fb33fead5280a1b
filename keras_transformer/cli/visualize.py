"""keras-transformer visualize"""

import pathlib
import re
from typing import Annotated, Literal

import typer
from typer import Option

import keras_transformer as kt
from keras_transformer.cli import console, options
from keras_transformer.errors import UserError
from keras_transformer.files import replace_file


def visualize(
    model: options.Model,
    source: Annotated[str, Option("--source", "-s", help="Sentence to translate.")],
    target: Annotated[
        str | None, Option("--target", "-t", help="Translation (default: the model's).")
    ] = None,
    output: Annotated[
        pathlib.Path,
        Option("--output", "-o", help="Path of the two files, without .png and .html."),
    ] = pathlib.Path("attention"),
    kind: Annotated[
        Literal["cross", "encoder", "decoder"],
        Option(
            help="Attention that the PNG file shows: cross-attention, or "
            "self-attention of the encoder or decoder. The HTML file shows all three."
        ),
    ] = "cross",
    layer: Annotated[
        int | None, Option(min=1, help="Layer to draw in the PNG file (default: all).")
    ] = None,
    head: Annotated[
        int | None, Option(min=1, help="Head to draw in the PNG file (default: all).")
    ] = None,
    allow_unsafe: options.AllowUnsafe = False,
):
    """Draw a model's attention as a picture and a web page.

    From a SavedModel, only the mean cross-attention of the last two layers is
    available. Other models also have --layer, --head and other kinds.

    \b
    keras-transformer visualize runs/mine --source "A man rides a bike."
    """
    model = console.find_model(model)
    for option, text in (("--source", source), ("--target", target)):
        if text is not None and not text.strip():
            raise UserError(f"{option}: must not be blank")
        if text is not None and re.search("[\n-\r\x85\u2028\u2029]", text.strip()):
            raise UserError(
                f"{option}: must be one line, because lines are translated separately"
            )
    if output.name in ("", ".."):
        raise UserError(f"--output {output}: must be a file name, not a folder")
    if output.suffix in (".png", ".html"):
        output = output.with_suffix("")
    console.require_parent(output)
    opened = console.open_translator(model, ["attention"], allow_unsafe=allow_unsafe)
    if target is None:
        (target,) = opened.translate([source], protect=())
        if not target.strip():
            raise UserError("the translation is empty. Pass another one with --target")
        console.print_status(f"translation: {target}")

    if model.kind == "export":
        attention = kt.visualization.compute_export_attention(opened, source, target)
    else:
        limit = opened.max_source_length
        attention = kt.visualization.compute_attention(
            opened.model,
            opened.tokenizer,
            source,
            target,
            limit,
            # A translation may have `extra_length` more subwords than its source.
            limit + opened.search.extra_length,
        )
    figure, page = (output.with_name(output.name + end) for end in (".png", ".html"))
    with replace_file(figure) as temporary:
        kt.visualization.write_figure(attention, temporary, kind, layer, head)
    typer.echo(figure)
    with replace_file(page) as temporary:
        kt.visualization.write_page(attention, temporary)
    typer.echo(page)
