"""keras-transformer update-vocabulary"""

import itertools
import os
import pathlib
import shutil
from typing import Annotated

import typer

from keras_transformer.cli.console import existing
from keras_transformer.cli.console import load_tensorflow
from keras_transformer.cli.console import quiet_libraries
from keras_transformer.cli.console import say
from keras_transformer.cli.console import verb
from keras_transformer.errors import UserError

SHOWN = 10


@verb
def update_vocabulary(
    model: Annotated[
        pathlib.Path,
        typer.Argument(metavar="MODEL", help="A run folder or a .keras file."),
    ],
    output: Annotated[
        pathlib.Path,
        typer.Option("--output", "-o", metavar="NEW", help="A folder to make."),
    ],
    size: Annotated[int, typer.Option(min=1, help="Sub-words to add, at most.")],
    source: Annotated[
        list[pathlib.Path] | None,
        typer.Option("--source", "-s", metavar="F", help="New text of the source."),
    ] = None,
    target: Annotated[
        list[pathlib.Path] | None,
        typer.Option("--target", "-t", metavar="F", help="New text of the target."),
    ] = None,
    text: Annotated[
        list[pathlib.Path] | None,
        typer.Option(metavar="F", help="New text of either. All may be repeated."),
    ] = None,
):
    """Add sub-words to a model's vocabulary, learnt from new text.

    What the model knows stays as it is. New sub-words are merges of old ones and
    characters that were spelt in bytes; each begins with the mean of the sub-words that
    it replaces, and has to be trained: NEW holds a .keras file and its tokenizer, which
    `train --from NEW` takes.

    \b
    keras-transformer update-vocabulary runs/mine --source new.en --target new.de \\
      --size 500 --output grown
    """
    existing(model)
    paths = [*(source or ()), *(target or ()), *(text or ())]
    if not paths:
        raise UserError("--source, --target or --text, the new text, is missing")
    for path in paths:
        existing(path)
    if output.exists():
        raise UserError(f"{output}: is there already")
    if not output.parent.is_dir():
        raise UserError(f"{output}: there is no folder {output.parent}")

    load_tensorflow()
    from keras_transformer.experiments import vocabulary
    from keras_transformer.files import told_when_full
    from keras_transformer.pipelines import read_lines
    from keras_transformer.saving.keras_file import note_tokenizer
    from keras_transformer.saving.load import load_model
    from keras_transformer.saving.names import MODEL
    from keras_transformer.saving.names import TOKENIZER

    with quiet_libraries():
        _, tokenizer, old = load_model(model)
    lines = itertools.chain.from_iterable(map(read_lines, paths))
    new, grown = vocabulary.update_vocabulary(old, tokenizer, lines, size)
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with told_when_full(output):
            grown.save(temporary / TOKENIZER)
            new.save(temporary / MODEL)
            note_tokenizer(temporary / MODEL, grown.fingerprint())
            temporary.rename(output)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    added = grown.pieces()[tokenizer.vocabulary_size :]
    more = ", ..." if len(added) > SHOWN else ""
    say(f"{len(added)} sub-words added: {', '.join(added[:SHOWN])}{more}")
    say(f"{grown.vocabulary_size} in all; train --from {output} learns to use them")
    typer.echo(output / MODEL)
