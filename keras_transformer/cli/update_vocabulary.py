"""keras-transformer update-vocabulary"""

import itertools
import os
import pathlib
import shutil
from typing import Annotated

import typer
from typer import Option

from keras_transformer.cli import console
from keras_transformer.cli import options
from keras_transformer.errors import UserError

_NUM_SHOWN = 10


@console.command
def update_vocabulary(
    model: options.WeightsModel,
    output: Annotated[
        pathlib.Path, Option("--output", "-o", metavar="NEW", help="Folder to create.")
    ],
    size: Annotated[int, Option(min=1, help="Maximum number of subwords to add.")],
    source: Annotated[
        list[pathlib.Path],
        Option("--source", "-s", metavar="F", help="New text in the source language."),
    ] = (),
    target: Annotated[
        list[pathlib.Path],
        Option("--target", "-t", metavar="F", help="New text in the target language."),
    ] = (),
    text: Annotated[
        list[pathlib.Path], Option(metavar="F", help="New text in any language.")
    ] = (),
    allow_unsafe: options.AllowUnsafe = False,
):
    """Add subwords from new text to a model's vocabulary.

    Existing subwords keep their ids and weights. New ones merge existing subwords, or
    are characters that were encoded as bytes. They start with the mean weights of the
    subwords that they replace, and need training with `train --from NEW`. --source,
    --target and --text are repeatable.

    \b
    keras-transformer update-vocabulary runs/mine --source new.en --target new.de \\
      --size 500 --output grown
    """
    model = console.find_model(model)
    paths = [*source, *target, *text]
    if not paths:
        raise UserError("--source, --target or --text is missing")
    console.require_exists(*paths)
    if output.exists():
        raise UserError(f"{output}: already exists")
    console.require_folder(output)

    if allow_unsafe:
        console.warn_unsafe(model)
    console.load_tensorflow()
    from keras_transformer.experiments import vocabulary
    from keras_transformer.pipelines import read_lines
    from keras_transformer.saving.load import load_model
    from keras_transformer.saving.names import MODEL

    with console.quiet_libraries():
        _, tokenizer, old = load_model(model, allow_unsafe)
    lines = itertools.chain.from_iterable(map(read_lines, paths))
    new, grown = vocabulary.update_vocabulary(old, tokenizer, lines, size)
    _save(new, grown, output)
    added = grown.pieces()[tokenizer.vocabulary_size :]
    more = ", ..." if len(added) > _NUM_SHOWN else ""
    console.print_status(
        f"{len(added)} subwords added: {', '.join(added[:_NUM_SHOWN])}{more}"
    )
    console.print_status(
        f"{grown.vocabulary_size} in total; train --from {output} learns to use them"
    )
    typer.echo(output / MODEL)


def _save(model, tokenizer, output):
    """Writes a temporary folder and renames it once it is complete."""
    from keras_transformer.files import convert_disk_full_errors
    from keras_transformer.saving.keras_file import note_tokenizer
    from keras_transformer.saving.names import MODEL
    from keras_transformer.saving.names import TOKENIZER

    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with convert_disk_full_errors(output):
            tokenizer.save(temporary / TOKENIZER)
            model.save(temporary / MODEL)
            note_tokenizer(temporary / MODEL, tokenizer.fingerprint())
            temporary.rename(output)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
