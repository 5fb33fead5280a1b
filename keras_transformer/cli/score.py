"""keras-transformer score"""

import pathlib
from typing import Annotated

import typer

from keras_transformer.cli.console import existing
from keras_transformer.cli.console import opened_model
from keras_transformer.cli.console import progress
from keras_transformer.cli.console import say
from keras_transformer.cli.console import verb
from keras_transformer.cli.console import written_lines
from keras_transformer.cli.text_lines import EnsemblePaths
from keras_transformer.cli.text_lines import counted_pair

BLOCK = 2_000


@verb
def score(
    model: Annotated[
        pathlib.Path,
        typer.Argument(metavar="MODEL", help="A run folder or a .keras file."),
    ],
    source: Annotated[
        pathlib.Path, typer.Option("--source", "-s", help="Text to translate from.")
    ],
    target: Annotated[
        pathlib.Path,
        typer.Option("--target", "-t", help="Its translation, line by line."),
    ],
    ensemble: EnsemblePaths = None,
    output: Annotated[
        pathlib.Path | None,
        typer.Option("--output", "-o", help="File to write; else standard output."),
    ] = None,
):
    """Print the log-probability (natural) of each given translation.

    \b
    keras-transformer score runs/mine --source test.en --target test.de
    """
    for path in (model, source, target, *(ensemble or ())):
        existing(path)

    from keras_transformer.evaluation.perplexity import perplexity_of

    sources, targets = counted_pair(source, target)
    all_scores = []
    with written_lines(output) as write_line:
        opened = opened_model(model, ensemble=ensemble or (), needs=["score"])
        with progress("scoring", len(sources)) as advance:
            for start in range(0, len(sources), BLOCK):
                block = slice(start, start + BLOCK)
                scored = opened.score(sources[block], targets[block])
                for pair in scored:
                    write_line(f"{pair.log_prob:.6f}")
                all_scores += scored
                advance(len(scored))
    say(f"perplexity per sub-word: {perplexity_of(all_scores):.4f}")
