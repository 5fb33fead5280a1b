"""keras-transformer parse"""

import pathlib
from typing import Annotated

from typer import Argument, Option

from keras_transformer.cli import console, options
from keras_transformer.cli.lines import (
    CHUNK_SIZE,
    chunk_size,
    in_chunks,
    input_lines,
    open_output,
    require_output,
)


def parse(
    model: Annotated[
        pathlib.Path,
        Argument(metavar="MODEL", help="Run folder of a parser, or .keras file in it."),
    ],
    input_path: options.InputPath = None,
    output: options.OutputPath = None,
    beam_size: options.BeamSize = None,
    length_penalty: options.LengthPenalty = None,
    patience: options.Patience = None,
    ensemble: options.OtherModels = (),
    parallel_parts: options.ParallelParts = 1,
    allow_unsafe: options.AllowUnsafe = False,
    split_words: Annotated[
        bool,
        Option("--split-words", help="Tokenize like the Penn Treebank; needs nltk."),
    ] = False,
):
    """Print the bracketed constituency tree of each line.

    A line is a sentence; an empty line stays empty. Parentheses in a sentence become
    -LRB- and -RRB-. Repairs of malformed model outputs are reported on standard error.

    \b
    echo "The dog barks ." | keras-transformer parse runs/craft
    keras-transformer parse runs/craft --input sentences.txt --output trees.txt
    """
    model, *ensemble = map(console.find_model, [model, *ensemble])
    console.require_exists(input_path)
    require_output(output, input_path)
    tokenize = penn_tokenizer() if split_words else str
    search = options.search(beam_size, length_penalty, patience)
    warnings = console.LineWarnings()
    parses = []
    with open_output(output) as write_line:
        translator = console.open_translator(
            model, ["parse"], ensemble, parallel_parts, search, warnings, allow_unsafe
        )

        from keras_transformer.parsing import trees
        from keras_transformer.parsing.parser import parse_sentences, repair_report

        size = chunk_size(input_path, CHUNK_SIZE)
        for _, chunk in in_chunks(input_lines(input_path), size, "parsing", warnings):
            sentences = [trees.split_words(tokenize(line)) for line in chunk]
            parsed = parse_sentences(translator, sentences)
            for each in parsed:
                write_line("" if each.tree is None else str(each.tree))
            # `repair_report` only checks whether a tree is `None`, so the trees are not
            # kept in memory.
            parses += [each._replace(tree=bool(each.tree) or None) for each in parsed]
    console.print_status(repair_report(parses))


def penn_tokenizer():
    """Returns a function that splits words like the Penn Treebank: "do n't"."""
    console.require_extra("parse", "nltk")
    from nltk.tokenize import TreebankWordTokenizer

    tokenizer = TreebankWordTokenizer()
    return lambda line: " ".join(tokenizer.tokenize(line))
