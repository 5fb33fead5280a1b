"""keras-transformer filter"""

import pathlib
from typing import Annotated

import typer

from keras_transformer.cli.console import check_output
from keras_transformer.cli.console import existing
from keras_transformer.cli.console import opened_model
from keras_transformer.cli.console import progress
from keras_transformer.cli.console import verb
from keras_transformer.cli.console import written_lines
from keras_transformer.cli.text_lines import in_blocks
from keras_transformer.cli.text_lines import line_count
from keras_transformer.errors import UserError

BLOCK = 2_000
MAX_LENGTH = 256


@verb
def filter(
    model: Annotated[
        pathlib.Path,
        typer.Argument(metavar="MODEL", help="A run folder or a .keras file."),
    ],
    source: Annotated[
        pathlib.Path, typer.Option("--source", "-s", help="Text, plain or .gz.")
    ],
    target: Annotated[
        pathlib.Path,
        typer.Option("--target", "-t", help="Its translation, line by line."),
    ],
    output_source: Annotated[
        pathlib.Path, typer.Option(metavar="F", help="File for what is kept.")
    ],
    output_target: Annotated[
        pathlib.Path, typer.Option(metavar="F", help="Its translation.")
    ],
    threshold: Annotated[
        float | None,
        typer.Option(help="The least log-probability per target sub-word, as -4."),
    ] = None,
    keep: Annotated[
        float | None,
        typer.Option(help="Instead: the best fraction of the pairs scored, as 0.8."),
    ] = None,
    max_ratio: Annotated[
        float, typer.Option(min=1, help="Of sub-words, the longer side's to the other.")
    ] = 3.0,
    max_length: Annotated[
        int | None,
        typer.Option(min=1, help="Sub-words of a side. Default: the run's, or 256."),
    ] = None,
    copies: Annotated[
        bool,
        typer.Option("--keep-copies", help="Keep pairs whose sides are the same."),
    ] = False,
):
    """Leave out the pairs of a noisy corpus that a model finds improbable.

    A pair must also pass rules: text on both sides, not the same text, not too long,
    sides of about one length. With --keep the model's scores of all pairs are held in
    memory, 4 bytes for each.

    \b
    keras-transformer filter runs/mine --source web.en --target web.de \\
      --output-source clean.en --output-target clean.de --keep 0.8
    """
    if (threshold is None) == (keep is None):
        raise UserError("--threshold or --keep: give one of them")
    if keep is not None and not 0 < keep <= 1:
        raise UserError(f"--keep {keep}: must be above 0 and at most 1")
    for path in (model, source, target):
        existing(path)
    taken = {}
    for option, path in (
        *(("--source", source), ("--target", target)),
        *(("--output-source", output_source), ("--output-target", output_target)),
    ):
        if path.resolve() in taken and option.startswith("--output"):
            raise UserError(f"{option} {path}: is {taken[path.resolve()]} already")
        if option.startswith("--output"):
            check_output(path)
        taken[path.resolve()] = option

    total = line_count(source)
    opened = opened_model(model, needs=["score"])

    import numpy as np

    from keras_transformer.evaluation.pair_filter import REASONS
    from keras_transformer.evaluation.pair_filter import PairFilter
    from keras_transformer.pipelines import TextFiles

    pairs = TextFiles(source, target)
    if max_length is None:
        max_length = opened.data.max_length if opened.data else MAX_LENGTH
    rules = PairFilter(opened, max_ratio, max_length, copies)
    passed = None
    if keep is not None:
        scores = np.empty(total, "float32")
        with progress("scoring", total, "pairs") as advance:
            for start, block in in_blocks(pairs, BLOCK):
                scores[start - 1 :][: len(block)] = rules.scores(block)
                advance(len(block))
        passed, threshold = rules.best(scores, keep)
    with (
        written_lines(output_source) as write_source,
        written_lines(output_target) as write_target,
        progress("filtering", total, "pairs") as advance,
    ):
        for start, block in in_blocks(pairs, BLOCK):
            if keep is None:
                here = rules.kept(rules.scores(block), threshold)
            else:
                here = passed[start - 1 :][: len(block)]
            for pair, is_kept in zip(block, here, strict=True):
                if is_kept:
                    write_source(pair[0])
                    write_target(pair[1])
            advance(len(block))
    least = "" if threshold is None else f", of at least {threshold:.4f} per sub-word"
    typer.echo(f"{rules.num_kept} of {total} pairs kept{least}")
    for reason, text in REASONS.items():
        typer.echo(f"{rules.dropped[reason]} dropped {text}")
