"""keras-transformer filter"""

import contextlib
import hashlib
import itertools
import os
import pathlib
import stat
import tempfile
from typing import Annotated

import typer
from typer import Option

import keras_transformer as kt
from keras_transformer.cli import console, options
from keras_transformer.cli.lines import (
    CHUNK_SIZE,
    in_chunks,
    is_finished,
    is_stream,
    measure,
    open_binary_output,
    record_file,
    resumable_output,
)
from keras_transformer.errors import UserError
from keras_transformer.pipelines.lines import content_hash

# Default of --max-length for models without a recipe.
MAX_LENGTH = 256
# Pairs from which scripts and words are learned, and pairs per chunk of the rules.
_SAMPLE = 20_000
_CHECKED_PAIRS = 4096


def filter(
    model: options.WeightsModel,
    source: options.Source,
    target: options.Target,
    output_source: Annotated[
        pathlib.Path, Option(help="File for the kept source lines.")
    ],
    output_target: Annotated[
        pathlib.Path, Option(help="File for the kept target lines.")
    ],
    min_score: Annotated[
        float | None,
        Option(
            help="Minimum log-probability per target subword, e.g. -4. Pass this or "
            "--keep-fraction."
        ),
    ] = None,
    keep_fraction: Annotated[
        float | None,
        Option(
            callback=options.fraction,
            help="Keep this fraction of the scored pairs, best first, e.g. 0.8. Pass "
            "this or --min-score.",
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
            help="Maximum subwords per side, including the end id (default: the "
            "recipe's data.max_length, else 256).",
        ),
    ] = None,
    keep_identical: Annotated[
        bool, Option(help="Keep pairs with identical sides.")
    ] = False,
    allow_unsafe: options.AllowUnsafe = False,
    as_json: options.Json = False,
):
    """Remove improbable pairs from a noisy parallel corpus.

    Rules first remove pairs that are unlikely to be translations, and report how many.
    The model scores the others. The scores are written next to the file of
    --output-source, with .scores appended to its name. Run the same command again to
    resume; with another limit, it reuses the scores.

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

    from keras_transformer.evaluation import pair_filter as rules
    from keras_transformer.pipelines.tokenizers.registry import reservoir_sample

    pairs = kt.pipelines.TextFiles(source, target)

    def in_pairs(description, size=CHUNK_SIZE, skip=0):
        options = {"total": total, "unit": "pairs", "skip": skip}
        return in_chunks(pairs, size, description, **options)

    if max_length is None:
        max_length = translator.data.max_length if translator.data else MAX_LENGTH
    options_used = max_ratio, max_length, keep_identical
    pair_filter = rules.PairFilter(translator, *options_used)
    sample = reservoir_sample((pair for pair in pairs if None not in pair), _SAMPLE)
    if sample:
        pair_filter.learn(sample)
    # Arrays, because a large corpus has too many pairs for Python's objects.
    hashes, is_good = np.zeros(total, np.uint64), np.zeros(total, bool)
    for start, chunk in in_pairs("checking", _CHECKED_PAIRS):
        part = slice(start, start + len(chunk))
        hashes[part] = [*map(rules.pair_hash, chunk)]
        is_good[part] = [reason is None for reason in pair_filter.check(chunk)]
    is_good = pair_filter.find_repeated(hashes, is_good)

    record = {"source": content_hash(source), "target": content_hash(target)}
    record |= {"model": translator.fingerprint(), "set of options": [*options_used]}
    record["set of rules"] = hashlib.sha256(is_good.tobytes()).hexdigest()
    with _scores_file(output_source) as path:
        is_scored = False
        with contextlib.suppress(UserError):
            is_scored = is_finished(path, record)
        if not is_scored:
            path.unlink(missing_ok=True)  # scores of other pairs or options
            is_temporary = is_stream(output_source)
            hint = "start over" if is_temporary else "continue the scoring"
            with (
                console.resume_hint(hint),
                resumable_output(path, record, total, False) as (write_line, num_done),
            ):
                # A whole chunk, because other batches would change the last digits.
                skip = num_done // CHUNK_SIZE * CHUNK_SIZE
                for start, chunk in in_pairs("scoring", skip=skip):
                    found = pair_filter.score(chunk, is_good[start:][: len(chunk)])
                    for each in found[max(num_done - start, 0) :]:
                        write_line(f"{each:.9g}")
        with open(path, encoding="utf-8") as file:
            scores = np.fromiter(map(float, file), "float32", total)
    if keep_fraction is None:
        passed = pair_filter.select_above(scores, min_score)
    else:
        passed, min_score = pair_filter.select_best(scores, keep_fraction)
    with (
        open_binary_output(output_source) as source_file,
        open_binary_output(output_target) as target_file,
    ):
        for start, chunk in in_pairs("writing"):
            kept = passed[start:][: len(chunk)]
            for pair in itertools.compress(chunk, kept):
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
        report["dropped"] = {
            name: pair_filter.dropped[name] for name in rules.FILTER_REASONS
        }
        typer.echo(console.json_text(report))
        return
    limit = "" if min_score is None else f" with a score of at least {min_score:.4f}"
    typer.echo(f"{pair_filter.num_kept} of {total} pairs kept{limit}")
    for reason, text in rules.FILTER_REASONS.items():
        if pair_filter.dropped[reason]:
            typer.echo(f"{pair_filter.dropped[reason]} dropped: {text}")


@contextlib.contextmanager
def _scores_file(output_source):
    """Yields the path of the scores, which is temporary if the output is a pipe."""
    if is_stream(output_source):
        with tempfile.TemporaryDirectory() as folder:
            yield pathlib.Path(folder, "scores")
    else:
        yield output_source.with_name(f"{output_source.name}.scores")


def _check_outputs(inputs, output_source, output_target):
    """Raises `UserError` unless the outputs are writable and all files differ."""
    taken = dict(inputs)
    outputs = {"--output-source": output_source, "--output-target": output_target}
    with _scores_file(output_source) as scores:
        if scores.exists() and not record_file(scores).exists():
            raise UserError(f"{scores}: contains no scores of this command. Move it")
    for option, path in (outputs | {"the scores in": scores}).items():
        if path.resolve() in taken:
            other = taken[path.resolve()]
            raise UserError(f"{option} {path}: must not be the file of {other}")
        if path != scores:
            console.require_writable(path)
        taken[path.resolve()] = option
