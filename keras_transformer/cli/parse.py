"""keras-transformer parse"""

import pathlib
import sys
from typing import Annotated

import typer

from keras_transformer.cli.console import LineWarnings
from keras_transformer.cli.console import existing
from keras_transformer.cli.console import opened_model
from keras_transformer.cli.console import progress
from keras_transformer.cli.console import say
from keras_transformer.cli.console import verb
from keras_transformer.cli.console import written_lines
from keras_transformer.cli.text_lines import EnsemblePaths
from keras_transformer.cli.text_lines import InputPath
from keras_transformer.cli.text_lines import OutputPath
from keras_transformer.cli.text_lines import ParallelBatches
from keras_transformer.cli.text_lines import Patience
from keras_transformer.cli.text_lines import in_blocks
from keras_transformer.cli.text_lines import input_lines
from keras_transformer.errors import UserError

BLOCK = 500


@verb
def parse(
    model: Annotated[
        pathlib.Path,
        typer.Argument(metavar="MODEL", help="A run folder, or a .keras file in it."),
    ],
    input_path: InputPath = None,
    output: OutputPath = None,
    beam_size: Annotated[
        int | None, typer.Option(min=1, help="1 is greedy. Default: the run's.")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(min=0, help="Alpha. Default: the run's.")
    ] = None,
    patience: Patience = None,
    ensemble: EnsemblePaths = None,
    parallel_batches: ParallelBatches = 1,
    tokenize: Annotated[
        bool,
        typer.Option(
            "--tokenize",
            help="Split words as in the Penn Treebank first, by nltk; else they are "
            "what white space separates.",
        ),
    ] = False,
):
    """Print the constituency tree of each line, a sentence, in brackets.

    An empty line stays empty. Brackets among the words become -LRB- and -RRB-. What was
    wrong in the model's output and had to be mended goes to standard error.

    \b
    echo "The dog barks ." | keras-transformer parse runs/craft
    keras-transformer parse runs/craft --input sentences.txt --output trees.txt
    """
    for path in (model, *(ensemble or ())):
        existing(path)
    if input_path is not None and str(input_path) != "-":
        existing(input_path)

    split = penn_tokenizer() if tokenize else str
    from_keyboard = input_path is None and sys.stdin.isatty()
    parses = []
    with written_lines(output) as write_line:
        warnings = LineWarnings()
        opened = opened_model(
            *(model, warnings, ensemble or (), parallel_batches), needs=["model"]
        )
        search = {"beam_size": beam_size, "length_penalty": length_penalty}
        search["patience"] = patience
        translator = opened.with_search(
            **{name: value for name, value in search.items() if value is not None}
        )

        from keras_transformer.parsing.parser import parse_sentences
        from keras_transformer.parsing.parser import repair_report
        from keras_transformer.parsing.trees import words_of

        with progress("parsing", None) as advance:
            blocks = in_blocks(input_lines(input_path), 1 if from_keyboard else BLOCK)
            for start, lines in blocks:
                sentences = [words_of(split(line)) for line in lines]
                warnings.numbers = range(start, start + len(lines))
                found = parse_sentences(translator, sentences)
                for one in found:
                    write_line("" if one.tree is None else str(one.tree))
                # The trees are written: only that they are there is still counted.
                parses += [one._replace(tree=bool(one.tree) or None) for one in found]
                advance(len(lines))
    say(repair_report(parses))


def penn_tokenizer():
    """Function that splits a line, one sentence, as in the Penn Treebank."""
    try:
        from nltk.tokenize import TreebankWordTokenizer
    except ImportError:
        raise UserError("--tokenize: needs nltk, pip install nltk") from None
    tokenizer = TreebankWordTokenizer()
    return lambda line: " ".join(tokenizer.tokenize(line))
