"""Lines of text to translate, with warnings that name the line."""

import itertools
import pathlib
import sys
from typing import Annotated

import typer

from keras_transformer.cli.console import load_tensorflow
from keras_transformer.cli.console import warn

# Options that several verbs have.
InputPath = Annotated[
    pathlib.Path | None,
    typer.Option("--input", "-i", help="Text, plain or .gz; else standard input."),
]
EnsemblePaths = Annotated[
    list[pathlib.Path] | None,
    typer.Option(
        metavar="RUN",
        help="One more model of the same vocabulary, whose probabilities are averaged "
        "with MODEL's. May be given several times.",
    ),
]
ParallelBatches = Annotated[
    int,
    typer.Option(
        min=1,
        metavar="N",
        help="Batches that are decoded side by side, each on its share of a CPU's "
        "cores: as many as cores is the fastest for text of many lines, at the cost "
        "of memory.",
    ),
]


def _patience_above_zero(value):
    if value is not None and not value > 0:
        raise typer.BadParameter(f"{value}: must be above 0")
    return value


Patience = Annotated[
    float | None,
    typer.Option(
        callback=_patience_above_zero,
        help="End a line's search when so many times the beam size have finished: 1 is "
        "what CTranslate2 and fairseq do. Default: the run's, or when no other can "
        "come out better.",
    ),
]
OutputPath = Annotated[
    pathlib.Path | None,
    typer.Option("--output", "-o", help="File to write; else standard output."),
]


def is_file(path):
    """Whether `input_lines` reads a file, not standard input."""
    return path is not None and str(path) != "-"


def is_regular(path):
    """Whether `input_lines` reads a file that can be read again: no pipe."""
    return is_file(path) and path.is_file()


def line_count(path):
    """How many lines `input_lines` gives of a file.

    Raises:
        DataError: it cannot be read.
    """
    load_tensorflow()
    from keras_transformer.pipelines.lines import count_lines

    return count_lines(path)


def input_lines(path):
    """Yields the lines of a file (.gz too), or of standard input for None or "-".

    Bytes that are not UTF-8 become U+FFFD, with a warning that names the line.
    """
    load_tensorflow()
    from keras_transformer.pipelines.lines import decode_lines
    from keras_transformer.pipelines.lines import raw_lines

    name = str(path) if is_file(path) else "standard input"
    # Read once: a path may be that of a pipe, too.
    lines = raw_lines(path) if is_file(path) else sys.stdin.buffer
    first, second = itertools.tee(lines)
    strict = decode_lines(first, name, errors="drop")
    replaced = decode_lines(second, name, errors="replace")
    pairs = zip(strict, replaced, strict=True)
    for number, (exact, text) in enumerate(pairs, start=1):
        if exact is None:
            warn(f"{name}:{number}: not UTF-8; unreadable bytes replaced")
        yield text


def in_blocks(lines, size):
    """Yields (number of the first line, list of up to `size` lines)."""
    lines = iter(lines)
    start = 1
    while block := list(itertools.islice(lines, size)):
        yield start, block
        start += len(block)


def counted_pair(source, target):
    """The lines of two files that must pair up, both lists of str.

    Raises:
        DataError: a file is missing, empty or not UTF-8, or the counts differ.
    """
    load_tensorflow()
    from keras_transformer.errors import DataError
    from keras_transformer.pipelines import read_lines

    source_lines = list(read_lines(source))
    target_lines = list(read_lines(target))
    for path, lines in ((source, source_lines), (target, target_lines)):
        if not lines:
            raise DataError(f"{path}: the file is empty")
    if len(source_lines) != len(target_lines):
        raise DataError(
            f"{source} has {len(source_lines)} lines but {target} has "
            f"{len(target_lines)}: they must pair up line by line"
        )
    return source_lines, target_lines
