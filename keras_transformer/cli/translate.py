"""keras-transformer translate"""

import pathlib
import sys
from typing import Annotated

import typer

from keras_transformer.cli.console import UserError
from keras_transformer.cli.console import existing
from keras_transformer.cli.console import opened_model
from keras_transformer.cli.console import progress
from keras_transformer.cli.console import verb
from keras_transformer.cli.console import written_lines
from keras_transformer.cli.text_lines import InputPath
from keras_transformer.cli.text_lines import OutputPath
from keras_transformer.cli.text_lines import in_blocks
from keras_transformer.cli.text_lines import input_lines

# Enough lines to sort by length into good batches.
BLOCK = 2_000


@verb
def translate(
    model: Annotated[
        pathlib.Path,
        typer.Argument(
            metavar="MODEL", help="A run folder, a .keras file or a SavedModel folder."
        ),
    ],
    input_path: InputPath = None,
    output: OutputPath = None,
    beam_size: Annotated[
        int | None, typer.Option(min=1, help="1 is greedy. Default: the run's, or 4.")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(min=0, help="Alpha. Default: the run's, or 0.6.")
    ] = None,
    n_best: Annotated[
        int, typer.Option(min=1, help="Translations of each line, best first.")
    ] = 1,
    scores: Annotated[
        bool, typer.Option("--scores", help="Score and a tab before each translation.")
    ] = False,
    alignments: Annotated[
        bool,
        typer.Option(
            "--alignments",
            help="A tab and word alignments after each translation: pairs i-j, where "
            "word j of it comes from word i of the line (both from 0).",
        ),
    ] = False,
):
    """Translate text line by line; an empty line stays empty.

    With --n-best K, each line of input gives up to K lines of output, which begin
    with its number and a tab. The columns are: number, score, translation,
    alignments, of which those asked for are there.

    \b
    echo "A man rides a bike." | keras-transformer translate runs/mine
    keras-transformer translate runs/mine --input test.en --output test.de
    echo "A man rides." | keras-transformer translate runs/mine --scores --alignments
    """
    existing(model)
    if input_path is not None and str(input_path) != "-":
        existing(input_path)
    if beam_size is not None and n_best > beam_size:
        raise UserError(
            f"--n-best {n_best}: must not exceed --beam-size, which is {beam_size}"
        )

    from_keyboard = input_path is None and sys.stdin.isatty()
    with written_lines(output) as write_line:
        opened = opened_model(model)
        if alignments:
            opened.align([], [])  # a SavedModel says at once that it cannot
        with progress("translating", None) as advance:
            blocks = in_blocks(input_lines(input_path), 1 if from_keyboard else BLOCK)
            for start, sentences in blocks:
                translated = opened.translate(
                    sentences,
                    beam_size=beam_size,
                    length_penalty=length_penalty,
                    n_best=n_best,
                    first_line=start,
                )
                candidates = [
                    (number, sentence, candidate)
                    for number, (sentence, ranked) in enumerate(
                        zip(sentences, translated, strict=True), start
                    )
                    for candidate in ranked
                ]
                aligned = _alignments(opened, candidates) if alignments else None
                for row, (number, _, candidate) in enumerate(candidates):
                    columns = [str(number)] if n_best > 1 else []
                    columns += [f"{candidate.score:.4f}"] if scores else []
                    columns.append(candidate.text)
                    columns += [aligned[row]] if alignments else []
                    write_line("\t".join(columns))
                advance(len(sentences))


def _alignments(opened, candidates):
    """Pharaoh's format for each (line's number, line, translation)."""
    from keras_transformer.decoding.alignment import pharaoh

    numbers, sources, translations = zip(*candidates, strict=True)
    targets = [translation.text for translation in translations]
    aligned = opened.align(list(sources), targets, list(numbers))
    return [pharaoh(pairs) for pairs in aligned]
