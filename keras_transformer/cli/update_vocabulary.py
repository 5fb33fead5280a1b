"""keras-transformer update-vocabulary"""

import itertools
import pathlib
from typing import Annotated

import typer
from typer import Option

from keras_transformer.cli import console, options
from keras_transformer.errors import UserError

_NUM_SHOWN = 10


def update_vocabulary(
    model: options.WeightsModel,
    output: Annotated[
        pathlib.Path, Option("--output", "-o", metavar="NEW", help="Folder to create.")
    ],
    size: Annotated[
        int, Option(min=1, help="Maximum number of subwords to add per vocabulary.")
    ],
    source: Annotated[
        list[pathlib.Path],
        Option("--source", "-s", metavar="F", help="New text in the source language."),
    ] = (),
    target: Annotated[
        list[pathlib.Path],
        Option("--target", "-t", metavar="F", help="New text in the target language."),
    ] = (),
    text: Annotated[
        list[pathlib.Path], Option(metavar="F", help="New text in either language.")
    ] = (),
    allow_unsafe: options.AllowUnsafe = False,
):
    """Add subwords from new text to a model's vocabulary.

    Existing subwords keep their ids and weights. A new subword is either a merge of
    existing subwords or a character that used to be encoded as bytes. Its weights
    start as the mean of the weights of its parts. Train the new model with
    `train --from NEW`.

    --source, --target and --text are repeatable. If source and target have separate
    vocabularies, --source extends the source's and --target the target's.

    \b
    keras-transformer update-vocabulary runs/mine --source new.en --target new.de \\
      --size 500 --output grown
    """
    model = console.find_model(model)
    paths = [*source, *target, *text]
    if not paths:
        raise UserError("give at least one of --source, --target and --text")
    console.require_exists(*paths)
    if output.exists():
        raise UserError(f"{output}: already exists")
    console.require_folder_path(output)

    if allow_unsafe:
        console.warn_unsafe(model)
    console.load_tensorflow()
    from keras_transformer.pipelines import read_lines
    from keras_transformer.runs import vocabulary
    from keras_transformer.saving.load import load_model
    from keras_transformer.saving.names import MODEL

    with console.quiet_libraries():
        _, tokenizer, old = load_model(model, allow_unsafe)
    is_shared = tokenizer.target is tokenizer
    if text and tokenizer.kind == "bpe" and not is_shared:
        raise UserError(
            f"{model}: has separate vocabularies. Give --source and --target instead "
            "of --text"
        )
    # A shared vocabulary is extended through `target_lines`, with text from all files.
    target_lines, source_lines = (
        itertools.chain.from_iterable(map(read_lines, files))
        for files in ((paths, ()) if is_shared else (target, source))
    )
    new, extended_tokenizer = vocabulary.update_vocabulary(
        old, tokenizer, target_lines, size, source_lines
    )
    _save(new, extended_tokenizer, output)
    if not is_shared:
        _print_added(tokenizer.source, extended_tokenizer.source, "source ")
    _print_added(
        tokenizer.target, extended_tokenizer.target, "" if is_shared else "target "
    )
    console.print_status(
        f"run train --from {output}, so that the model learns to use the new subwords"
    )
    typer.echo(output / MODEL)


def _print_added(tokenizer, extended_tokenizer, side):
    """Prints the subwords that were added to one vocabulary."""
    added = extended_tokenizer.pieces()[tokenizer.vocabulary_size :]
    more = ", ..." if len(added) > _NUM_SHOWN else ""
    console.print_status(
        f"{len(added)} {side}subwords added: {', '.join(added[:_NUM_SHOWN])}{more}"
    )
    console.print_status(
        f"{extended_tokenizer.vocabulary_size} {side}subwords in total"
    )


def _save(model, tokenizer, output):
    from keras_transformer.files import replace_folder
    from keras_transformer.saving.keras_file import store_fingerprint
    from keras_transformer.saving.names import MODEL, TOKENIZER

    with replace_folder(output, must_be_new=True) as temporary:
        tokenizer.save(temporary / TOKENIZER)
        model.save(temporary / MODEL)
        store_fingerprint(temporary / MODEL, tokenizer.fingerprint())
