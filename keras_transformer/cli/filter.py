"""keras-transformer filter"""

import os
import pathlib
import stat
from typing import Annotated

import typer
from typer import Option

from keras_transformer.cli import console, options
from keras_transformer.cli.lines import (
    CHUNK_SIZE,
    in_chunks,
    measure,
    open_binary_output,
)
from keras_transformer.errors import UserError

# Default of --max-length for models without a recipe.
MAX_LENGTH = 256


def filter(
    model: options.WeightsModel,
    source: options.Source,
    target: options.Target,
    output_source: Annotated[
        pathlib.Path, Option(metavar="F", help="File for the kept source lines.")
    ],
    output_target: Annotated[
        pathlib.Path, Option(metavar="F", help="File for the kept target lines.")
    ],
    min_score: Annotated[
        float | None,
        Option(help="Minimum log-probability per target subword, e.g. -4."),
    ] = None,
    keep_fraction: Annotated[
        float | None,
        Option(
            callback=options.fraction,
            help="Keep this fraction of the scored pairs, best first, e.g. 0.8.",
        ),
    ] = None,
    max_ratio: Annotated[
        float,
        Option(
            min=1, help="Maximum ratio of the longer to the shorter side, in subwords."
        ),
    ] = 3.0,
    max_length: Annotated[
        int | None,
        Option(
            min=1,
            help="Maximum subwords per side, without the end id (default: the recipe's "
            "data.max_length minus 1, else 256).",
        ),
    ] = None,
    keep_identical: Annotated[
        bool, Option("--keep-identical", help="Keep pairs with identical sides.")
    ] = False,
    allow_unsafe: options.AllowUnsafe = False,
    as_json: options.Json = False,
):
    """Remove improbable pairs from a noisy parallel corpus.

    Pairs are removed without being scored if a side is empty, too long or not UTF-8, if
    the sides are identical, or if their lengths differ too much. With --keep-fraction,
    the scores of all pairs are kept in memory, 4 bytes each.

    \b
    keras-transformer filter runs/mine --source web.en --target web.de \\
      --output-source clean.en --output-target clean.de --keep-fraction 0.8
    """
    if (min_score is None) == (keep_fraction is None):
        raise UserError("pass exactly one of --min-score and --keep-fraction")
    model = console.find_model(model)
    console.require_files(source, target)
    inputs = {source.resolve(): "--source", target.resolve(): "--target"}
    _check_outputs(inputs, output_source, output_target)
    total, _ = measure(source)
    translator = console.open_translator(model, ["filter"], allow_unsafe=allow_unsafe)

    import numpy as np

    from keras_transformer.evaluation.pair_filter import FILTER_REASONS, PairFilter
    from keras_transformer.pipelines import TextFiles

    def in_pairs(description):
        pairs = TextFiles(source, target)
        return in_chunks(pairs, CHUNK_SIZE, description, total=total, unit="pairs")

    if max_length is None:
        # A recipe's limit also counts the end id.
        max_length = translator.data.max_length - 1 if translator.data else MAX_LENGTH
    pair_filter = PairFilter(translator, max_ratio, max_length, keep_identical)
    passed = None
    # --keep-fraction needs the scores of all pairs, so a first pass computes them.
    if keep_fraction is not None:
        scores = np.empty(total, "float32")
        for start, chunk in in_pairs("scoring"):
            scores[start:][: len(chunk)] = pair_filter.score(chunk)
        passed, min_score = pair_filter.select_best(scores, keep_fraction)
    with (
        open_binary_output(output_source) as source_file,
        open_binary_output(output_target) as target_file,
    ):
        for start, chunk in in_pairs("filtering"):
            if passed is None:
                kept = pair_filter.select_above(pair_filter.score(chunk), min_score)
            else:
                kept = passed[start:][: len(chunk)]
            for pair, is_kept in zip(chunk, kept, strict=True):
                if is_kept:
                    source_file.write(pair[0].encode() + b"\n")
                    target_file.write(pair[1].encode() + b"\n")
        # With both files on disk, little time passes between the two renames.
        for file in (source_file, target_file):
            file.flush()
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                os.fsync(file.fileno())
    if as_json:
        report = {"model": str(model), "pairs": total, "kept": pair_filter.num_kept}
        report["min_score"] = None if min_score is None else float(min_score)
        report["dropped"] = {name: pair_filter.dropped[name] for name in FILTER_REASONS}
        typer.echo(console.json_text(report))
        return
    limit = "" if min_score is None else f" with a score of at least {min_score:.4f}"
    typer.echo(f"{pair_filter.num_kept} of {total} pairs kept{limit}")
    for reason, text in FILTER_REASONS.items():
        typer.echo(f"{pair_filter.dropped[reason]} dropped: {text}")


def _check_outputs(inputs, output_source, output_target):
    """Raises `UserError` unless the outputs are writable and all files differ."""
    taken = dict(inputs)
    outputs = {"--output-source": output_source, "--output-target": output_target}
    for option, path in outputs.items():
        if path.resolve() in taken:
            other = taken[path.resolve()]
            raise UserError(f"{option} {path}: must not be the file of {other}")
        console.require_writable(path)
        taken[path.resolve()] = option
