"""keras-transformer translate"""

import contextlib
import itertools
import pathlib
import sys
from typing import Annotated

import typer

from keras_transformer.cli.console import LineWarnings
from keras_transformer.cli.console import check_output
from keras_transformer.cli.console import existing
from keras_transformer.cli.console import opened_model
from keras_transformer.cli.console import progress
from keras_transformer.cli.console import say
from keras_transformer.cli.console import verb
from keras_transformer.cli.console import written_lines
from keras_transformer.cli.resumable import is_finished
from keras_transformer.cli.resumable import resumable_lines
from keras_transformer.cli.text_lines import EnsemblePaths
from keras_transformer.cli.text_lines import InputPath
from keras_transformer.cli.text_lines import OutputPath
from keras_transformer.cli.text_lines import ParallelBatches
from keras_transformer.cli.text_lines import Patience
from keras_transformer.cli.text_lines import in_blocks
from keras_transformer.cli.text_lines import input_lines
from keras_transformer.cli.text_lines import is_file
from keras_transformer.cli.text_lines import is_regular
from keras_transformer.cli.text_lines import line_count
from keras_transformer.errors import UserError

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
    patience: Patience = None,
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
    ensemble: EnsemblePaths = None,
    prefix: Annotated[
        str | None, typer.Option(help="What every translation begins with.")
    ] = None,
    prefix_file: Annotated[
        pathlib.Path | None,
        typer.Option(metavar="F", help="The same, a line for each line of input."),
    ] = None,
    forbid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORDS",
            help="A word or phrase that no translation holds; 'walk*': no word that "
            "begins so. May be given several times.",
        ),
    ] = None,
    forbid_file: Annotated[
        pathlib.Path | None,
        typer.Option(metavar="F", help="The same, one on each line."),
    ] = None,
    sampling: Annotated[
        bool,
        typer.Option(
            "--sampling", help="Draw --n-best translations at random; no beam search."
        ),
    ] = False,
    temperature: Annotated[
        float | None,
        typer.Option(help="Of --sampling; below 1 is more probable. Default: 1."),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(min=1, help="Of --sampling: the k most probable tokens only."),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Of --sampling: the fewest tokens that are so probable."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of --sampling. Default: 1.")
    ] = None,
    parallel_batches: ParallelBatches = 1,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Keep what is done in OUTPUT.part, and go on with it if it is there.",
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
    keras-transformer translate runs/back --input news.de --output news.en \\
      --sampling --top-k 10 --resume
    """
    for path in (model, *(ensemble or ()), prefix_file, forbid_file):
        if path is not None:
            existing(path)
    if is_file(input_path):
        existing(input_path)
    if beam_size is not None and n_best > beam_size:
        raise UserError(
            f"--n-best {n_best}: must not exceed --beam-size, which is {beam_size}"
        )
    if sampling and parallel_batches > 1:
        raise UserError("--parallel-batches: --sampling draws batch after batch")
    if prefix is not None and prefix_file is not None:
        raise UserError("--prefix and --prefix-file: give one of them")
    drawn = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    searched = {"beam_size": beam_size, "length_penalty": length_penalty}
    searched["patience"] = patience
    search = _checked_search(sampling, drawn, searched)
    if resume and (output is None or not is_regular(input_path)):
        raise UserError("--resume: needs --input, a file, and --output")
    if output is not None:
        check_output(output)
        if resume and output.exists() and not output.is_file():
            raise UserError(f"{output}: --resume writes files only")

    changed = {name: value for name, value in searched.items() if value is not None}
    forbidden = [*(forbid or ())]
    if forbid_file is not None:
        forbidden += [line for line in input_lines(forbid_file) if line.strip()]
    if forbidden:
        search["forbidden"] = forbidden
    total = None
    if is_regular(input_path) and (resume or sys.stderr.isatty()):
        total = line_count(input_path)

    needs = ["sample"] if sampling else []
    has_prefixes = (prefix or prefix_file) is not None
    if changed or forbidden or has_prefixes:
        needs.append("with_search")
    if alignments:
        needs.append("align")
    warnings = LineWarnings()

    def open_it():
        return opened_model(*(model, warnings, ensemble or (), parallel_batches), needs)

    opened = open_it() if resume else None
    if resume:
        options = {**search, "sampling": sampling, "n_best": n_best}
        options |= {"scores": scores, "alignments": alignments, "prefix": prefix}
        facts = _facts(opened, options, input_path, prefix_file)
        if is_finished(output, facts):
            say(f"{output}: all lines are there already")
            return
        target = resumable_lines(output, facts, total, n_best > 1)
    else:
        target = _from_the_start(output)
    with target as (write_line, done):
        opened = opened or open_it()
        if alignments:
            opened.align([], [])  # an ensemble reports at once that it cannot
        translator = opened
        if changed or forbidden:
            translator = opened.with_search(forbidden=forbidden, **changed)

        def ranked(lines, start, prefixes):
            from keras_transformer.decoding import Sampling

            warnings.numbers = range(start, start + len(lines))
            given = {} if prefixes is None else {"prefixes": prefixes}
            if not sampling:
                return translator.n_best(lines, n_best, **given)
            drawn = {name: search[name] for name in ("temperature", "top_k", "top_p")}
            settings = Sampling(
                num_samples=n_best,
                seed=_seed_of_block(search["seed"], start),
                extra_length=translator.search.extra_length,
                **drawn,
            )
            return translator.sample(lines, settings, **given)

        columns = (n_best > 1, scores, alignments)
        from_keyboard = input_path is None and sys.stdin.isatty()
        pairs = _with_prefixes(input_lines(input_path), prefix, prefix_file)
        # A block is translated as a whole, so that going on with it makes the same
        # batches, and with them the same translations, as never having stopped.
        first = done // BLOCK * BLOCK
        pairs = itertools.islice(pairs, first, None)
        with progress("translating", total) as advance:
            advance(first)
            for start, block in in_blocks(pairs, 1 if from_keyboard else BLOCK):
                start += first
                lines, prefixes = map(list, zip(*block, strict=True))
                given = prefixes if has_prefixes else None
                candidates = [
                    (number, line, candidate)
                    for number, (line, candidates) in enumerate(
                        zip(lines, ranked(lines, start, given), strict=True), start
                    )
                    for candidate in candidates
                    if number > done
                ]
                warnings.numbers = [number for number, *_ in candidates]
                for text in _texts(opened, candidates, columns):
                    write_line(text)
                advance(len(lines))


def _checked_search(sampling, drawn, searched):
    """The arguments of `sample` or of `translate`.

    Raises:
        UserError: an option of the other one, or out of range.
    """
    given, others = (drawn, searched) if sampling else (searched, drawn)
    for name, value in others.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise UserError(
                f"{option}: --sampling has no beam"
                if sampling
                else f"{option}: needs --sampling"
            )
    if not sampling:
        return given
    if given["temperature"] is not None and not given["temperature"] > 0:
        raise UserError(f"--temperature {given['temperature']}: must be above 0")
    if given["top_p"] is not None and not 0 < given["top_p"] <= 1:
        raise UserError(f"--top-p {given['top_p']}: must be above 0 and at most 1")
    defaults = {"temperature": 1.0, "top_k": None, "top_p": None, "seed": 1}
    return {
        name: default if given[name] is None else given[name]
        for name, default in defaults.items()
    }


def _seed_of_block(seed, start):
    """A seed for the block that begins at a line, whatever was done before it."""
    import numpy as np

    return int(np.random.SeedSequence([seed, start]).generate_state(1)[0])


@contextlib.contextmanager
def _from_the_start(output):
    with written_lines(output) as write_line:
        yield write_line, 0


def _facts(opened, options, input_path, prefix_file):
    """What decides the lines of an output, for `resumable_lines`."""
    from keras_transformer.pipelines.lines import content_hash

    return {
        "input": content_hash(input_path),
        "model": opened.fingerprint(),
        "set of options": options,
        "prefix file": content_hash(prefix_file) if prefix_file else None,
    }


def _with_prefixes(lines, prefix, prefix_file):
    """Yields (line, prefix).

    Raises:
        UserError: the file of prefixes has more or fewer lines.
    """
    if prefix_file is None:
        yield from ((line, prefix) for line in lines)
        return
    pairs = itertools.zip_longest(lines, input_lines(prefix_file))
    for number, (line, one) in enumerate(pairs, start=1):
        if line is None or one is None:
            which = "fewer" if one is None else "more"
            raise UserError(
                f"{prefix_file}: has {which} lines than the input (line {number})"
            )
        yield line, one


def _texts(opened, candidates, columns):
    """Lines of output for (line's number, line, translation)."""
    has_number, has_score, has_alignments = columns
    aligned = _alignments(opened, candidates) if has_alignments else None
    for row, (number, _, candidate) in enumerate(candidates):
        texts = [str(number)] if has_number else []
        texts += [f"{candidate.score:.4f}"] if has_score else []
        texts.append(candidate.text)
        texts += [aligned[row]] if has_alignments else []
        yield "\t".join(texts)


def _alignments(opened, candidates):
    """Pharaoh's format for each (line's number, line, translation)."""
    from keras_transformer.decoding.alignment import format_pharaoh

    if not candidates:
        return []
    _, sources, translations = zip(*candidates, strict=True)
    targets = [translation.text for translation in translations]
    return list(map(format_pharaoh, opened.align(list(sources), targets)))
