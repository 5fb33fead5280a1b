"""keras-transformer translate and parse"""

import contextlib
import dataclasses
import itertools
import json
import pathlib
from collections.abc import Callable
from typing import Annotated, Literal

from typer import Argument, Option

import keras_transformer as kt
from keras_transformer.cli import console, options
from keras_transformer.cli.lines import (
    CHUNK_SIZE,
    chunk_size,
    in_chunks,
    input_lines,
    is_finished,
    is_seekable_file,
    measure,
    open_binary_output,
    open_output,
    require_one_stdin,
    require_output,
    resumable_output,
    resumable_path,
)
from keras_transformer.documents import Document, document_format
from keras_transformer.errors import UserError
from keras_transformer.numerics.ranges import MAX_TEMPERATURE, MIN_TEMPERATURE
from keras_transformer.pipelines.lines import content_hash

# Kinds of spans that --protect takes, named here because their module loads Keras.
DEFAULT_SPANS = "urls,emails,placeholders,tags,symbols,escapes"
SPANS = {*DEFAULT_SPANS.split(","), "numbers", "code"}
SPANS |= {"none"}


def translate(
    model: options.Model,
    input_path: options.InputPath = None,
    output: options.OutputPath = None,
    beam_size: options.BeamSize = None,
    length_penalty: options.LengthPenalty = None,
    patience: options.Patience = None,
    decoding: options.Decoding = (),
    n_best: Annotated[
        int, Option(min=1, help="Translations per line, best first.")
    ] = 1,
    scores: Annotated[
        bool, Option(help="Print a score before each translation.")
    ] = False,
    alignments: Annotated[
        bool, Option(help="Print alignments after each translation.")
    ] = False,
    ensemble: options.OtherModels = (),
    adapters: options.Adapters = (),
    prefix: Annotated[
        str | None, Option(help="Text that every translation starts with.")
    ] = None,
    prefix_file: Annotated[
        pathlib.Path | None,
        Option(help="File with one prefix per input line."),
    ] = None,
    forbid: Annotated[
        list[str],
        Option(metavar="WORDS", help="Phrase to exclude from outputs. Repeatable."),
    ] = (),
    forbid_file: Annotated[
        pathlib.Path | None,
        Option(help="File with one forbidden phrase per line."),
    ] = None,
    glossary: Annotated[
        pathlib.Path | None,
        Option(
            help="File of terms: source phrase, tab, and target phrases separated by "
            "|, of which outputs must contain one.",
        ),
    ] = None,
    protect: Annotated[
        str,
        Option(
            metavar="KINDS",
            callback=options.require(
                SPANS.__contains__,
                "one or more of " + ", ".join(sorted(SPANS)),
                lambda value: value.split(","),
            ),
            help="Spans that outputs must contain: urls, emails, placeholders, tags, "
            "symbols such as emoji, escapes such as \\n, numbers (in any notation), "
            "code, or none. "
            "No effect with --prefix, --prefix-file and --sampling.",
        ),
    ] = DEFAULT_SPANS,
    translate_attributes: Annotated[
        bool, Option(help="Translate the attributes alt and title of HTML, too.")
    ] = False,
    sampling: Annotated[
        bool, Option(help="Sample translations at random. --n-best sets their number.")
    ] = False,
    temperature: Annotated[
        float | None,
        Option(
            callback=options.require(
                lambda value: MIN_TEMPERATURE <= value <= MAX_TEMPERATURE,
                f"above 0, from {MIN_TEMPERATURE} to {MAX_TEMPERATURE}",
            ),
            help="Sampling temperature (default: 1).",
        ),
    ] = None,
    top_k: Annotated[
        int | None, Option(min=1, help="Sample from the k likeliest tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        Option(
            callback=options.fraction,
            help="Sample from the likeliest tokens with this total probability.",
        ),
    ] = None,
    seed: Annotated[
        int | None, Option(min=0, help="Sampling seed (default: 1).")
    ] = None,
    mbr: Annotated[
        Literal["chrf", "bleu"] | None,
        Option(
            help="Choose the translation that is most similar to all candidates "
            "(minimum Bayes risk)."
        ),
    ] = None,
    rerank: Annotated[
        pathlib.Path | None,
        Option(
            metavar="MODEL",
            help="Choose by the score of the source, given the translation, in this "
            "model of the other direction.",
        ),
    ] = None,
    candidates: Annotated[
        int | None,
        Option(
            min=1,
            help="Number of candidates of --mbr and --rerank (default: the beam size; "
            "with --sampling: 16).",
        ),
    ] = None,
    segmentation: Annotated[
        Literal["sentence", "line", "auto"] | None,
        Option(
            help="Translate each sentence of a line separately, or lines as a whole "
            "(default: as the model was trained)."
        ),
    ] = None,
    parallel_parts: options.ParallelParts = 1,
    allow_unsafe: options.AllowUnsafe = False,
    as_json: Annotated[
        bool,
        Option("--json", help="Print a line of JSON, with all scores, per input line."),
    ] = False,
    resume: options.Resume = False,
):
    """Translate text line by line, or a document.

    With --n-best K, each input line has at most K output lines, which start with the
    line number. The columns, between tabs, are number, score, translation and
    alignments. An alignment is a list of pairs i-j: source word i and target word j,
    counted from 0. The forbidden word 'walk*' stands for all words that start with
    walk.

    If the input is a document (.html, .md, .srt, .vtt, .po, .xlf, .tmx, .docx, .json),
    only its texts change.

    \b
    echo "The museum opens at nine." | keras-transformer translate europarl_en_fr
    keras-transformer translate runs/mine --input test.en --output test.mine.de
    keras-transformer translate runs/mine --input report.html --output bericht.html
    echo "A man rides." | keras-transformer translate runs/mine --scores --alignments
    keras-transformer translate runs/back --input news.de --output news.en \\
      --sampling --top-k 10 --resume
    """
    model, *ensemble = map(console.find_model, [model, *ensemble])
    console.require_exists(prefix_file, forbid_file, glossary)
    console.require_files(input_path)
    require_one_stdin(input_path, prefix_file, forbid_file)
    if beam_size is not None and n_best > beam_size:
        raise UserError(
            f"--n-best {n_best}: must not exceed --beam-size, which is {beam_size}"
        )
    if prefix is not None and prefix_file is not None:
        raise UserError("--prefix and --prefix-file: pass only one of them")
    sampled = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    sampled["seed"] = seed
    sampled = {name: value for name, value in sampled.items() if value is not None}
    search = options.search(beam_size, length_penalty, patience, decoding)
    parts = {"parallel_parts": parallel_parts} if parallel_parts > 1 else {}
    if unsuited := [*search, *parts] if sampling else [*sampled]:
        reason = "cannot be used with" if sampling else "needs"
        raise UserError(f"`{unsuited[0]}`: {reason} --sampling")
    if mbr is not None and rerank is not None:
        raise UserError("--mbr and --rerank: pass only one of them")
    if candidates is not None and mbr is None and rerank is None:
        raise UserError("`candidates`: needs --mbr or --rerank")
    if glossary is not None and sampling:
        raise UserError("`glossary`: cannot be used with --sampling")
    if segmentation is not None:
        search["segmentation"] = segmentation
    require_output(output, prefix_file, forbid_file, glossary, input_path)
    if resume:
        output = resumable_path(output, input_path)
    forbidden = [*forbid]
    if forbid_file is not None:
        forbidden += filter(str.strip, input_lines(forbid_file))
    document = None
    kind = document_format(input_path) if input_path is not None else None
    if kind and output and document_format(output) not in (None, kind):
        raise UserError(f"--output {output}: must be {kind}, as the document is")
    if translate_attributes and kind != ".html":
        raise UserError("--translate-attributes: needs HTML as --input")
    if kind is not None:
        given = {"n_best": n_best > 1, "scores": scores, "alignments": alignments}
        given |= {"sampling": sampling, "as_json": as_json, "prefix": prefix}
        given |= {"mbr": mbr, "rerank": rerank}
        given["prefix_file"] = prefix_file
        if unsuited := [name for name, value in given.items() if value]:
            raise UserError(f"`{unsuited[0]}`: cannot be used with {input_path.suffix}")
        with console.quiet_libraries():  # the parser of markup loads TensorFlow
            document = Document(input_path, attributes=translate_attributes)
        total, end = len(document.texts), b"\n"
    else:
        total, end = measure(input_path)
        if input_path is not None and input_path.suffix == ".csv":
            console.warn(f"{input_path}: plain text, so cells are not separated")
    if prefix_file is not None:
        _check_prefix_count(prefix_file, input_path, total)

    needs = {
        "sample": sampling,
        "prefixes": prefix is not None or prefix_file is not None,
        "align": alignments,
    }
    warnings = console.LineWarnings()
    changes = {**search, "forbidden": forbidden} if forbidden else search
    if glossary is not None:
        console.load_tensorflow()
        changes = {**changes, "glossary": kt.decoding.read_glossary(glossary)}
    translator = console.open_translator(
        model,
        [need for need in needs if needs[need]],
        ensemble,
        parallel_parts,
        changes,
        warnings,
        allow_unsafe,
        adapters,
    )
    sampled = {"seed": 1, **sampled} if sampling else None
    job = _Job(
        *(translator, warnings, n_best, sampled, scores, alignments, as_json),
        [kind for kind in protect.split(",") if kind != "none"],
        input_path or "standard input",
    )
    if mbr is not None or rerank is not None:
        job.num_searched = candidates or (16 if sampling else None)
        size = job.num_searched
        if size is None and hasattr(translator, "search"):
            size = translator.search.beam_size
        if size is not None and n_best > size:
            raise UserError(
                f"--n-best {n_best}: must not exceed the number of candidates, {size}. "
                "Increase --candidates or --beam-size"
            )
        if mbr is not None:
            job.choose = lambda lines, ranked: kt.evaluation.rank_by_utility(
                ranked, kt.evaluation.UTILITIES[mbr]
            )
        else:
            reverse = console.open_translator(
                *(rerank, (), (), parallel_parts, None, lambda *_: None, allow_unsafe)
            )
            if getattr(getattr(reverse, "tokenizer", reverse), "languages", None):
                raise UserError(
                    f"--rerank {rerank}: a multilingual model cannot rerank. Choose a "
                    "model that translates from the target language only"
                )
            job.choose = lambda lines, ranked: kt.evaluation.rank_by_reverse_model(
                _without_languages(translator, lines), ranked, reverse
            )

    def write_all(write_line, num_done):
        if document is not None:
            for text in job.translate_document(document, num_done):
                write_line(json.dumps(text))
            return
        pairs = _pair_with_prefixes(input_lines(input_path), prefix, prefix_file)
        size = chunk_size(input_path, CHUNK_SIZE)
        for text in job.output_lines(pairs, num_done, size, total):
            write_line(text)

    hint = contextlib.nullcontext()
    if output is not None and is_seekable_file(input_path):
        hint = console.resume_hint(
            "start over (with --resume, an interruption keeps what is done)"
        )
    if not resume and document is not None:
        with hint:
            texts = list(job.translate_document(document, 0))
        with open_binary_output(output) as file:
            file.write(document.replace(texts))
        return
    if not resume:
        with hint, open_output(output, end) as write_line:
            write_all(write_line, 0)
        return
    extra = {"prefix": prefix} | ({"forbidden": forbidden} if forbidden else {})
    if translate_attributes:
        extra["attributes"] = True
    if job.choose is not None:
        extra |= {"mbr": mbr, "candidates": job.num_searched}
        extra["rerank"] = rerank and reverse.fingerprint()
    if glossary is not None:
        extra["glossary"] = content_hash(glossary)
    record = _record(job, {**search, **extra}, input_path, prefix_file)
    if is_finished(output, record):
        console.print_status(f"{output}: all lines are already translated")
        return
    hint = console.resume_hint(f"continue {output}.part")
    convert = None
    if document is not None:
        convert = lambda lines: document.replace(map(json.loads, lines.splitlines()))  # noqa: E731
    lines = resumable_output(output, record, total, job.is_numbered, end, convert)
    with hint, lines as (write_line, num_done):
        write_all(write_line, num_done)


@dataclasses.dataclass
class _Job:
    """A translator, and the options that apply to all lines.

    `sampling_options` is `None` for beam search.
    """

    translator: object
    warnings: console.LineWarnings
    num_candidates: int
    sampling_options: dict | None
    has_scores: bool
    has_alignments: bool
    as_json: bool
    protected: list  # kinds of spans, for beam search without prefixes
    input_name: object  # of the file
    num_searched: int | None = None  # for `choose`; `None`: the beam size
    choose: Callable | None = None  # sorts candidates, from lines and their lists

    @property
    def is_numbered(self):
        """Whether output lines begin with the number of their input line."""
        return self.num_candidates > 1 and not self.as_json

    def output_lines(self, pairs, num_done, size, total):
        """Yields the output lines of (line, prefix) pairs after the first `num_done`.

        The pairs are translated in chunks of `size`. If an interrupted output ends
        inside a chunk, the whole chunk is translated again, because different batches
        would change the last digits of scores.
        """
        skip = num_done // CHUNK_SIZE * CHUNK_SIZE
        chunks = in_chunks(pairs, size, "translating", self.warnings, total, skip=skip)
        for start, chunk in chunks:
            lines, prefixes = map(list, zip(*chunk, strict=True))
            count = self.num_candidates if self.choose is None else self.num_searched
            ranked = self._candidates(start, lines, prefixes, count)
            if self.choose is not None:
                chosen = self.choose(lines, ranked)
                ranked = [each[: self.num_candidates] for each in chosen]
                for index, (best, *_) in enumerate(ranked):
                    for warning in best.warnings:
                        self.warnings(index, warning)
            yield from self._format(
                [
                    (number, line, candidate)
                    for number, (line, candidates) in enumerate(
                        zip(lines, ranked, strict=True), start + 1
                    )
                    for candidate in candidates
                    if number > num_done
                ]
            )

    def translate_document(self, document, num_done):
        """Yields the translations of a document's texts after the first `num_done`."""
        skip = num_done // CHUNK_SIZE * CHUNK_SIZE
        texts = document.texts
        chunks = in_chunks(texts, CHUNK_SIZE, "translating", unit="texts", skip=skip)
        for start, chunk in chunks:
            self.warnings.numbers = document.line_numbers[start:]
            found = kt.decoding.markup.n_best_marked(
                *(self.translator, chunk, 1, document.syntax, self.protected),
                name=self._name,
            )
            yield from (best.text for best, *_ in found[max(num_done - start, 0) :])

    def _name(self, index):
        """Returns the file and the line of a text of the chunk."""
        return f"{self.input_name}:{self.warnings.numbers[index]}"

    def _candidates(self, start, lines, prefixes, count):
        """Returns the translations of each line of a chunk, best first."""
        given = {} if None in prefixes else {"prefixes": prefixes}
        translator = self.translator
        if self.choose is not None:
            translator = kt.decoding.spans.without_warnings(translator)
        if self.sampling_options is None:
            if given or not self.protected:
                return translator.n_best(lines, count, **given)
            return kt.decoding.markup.n_best_marked(
                *(translator, lines, count, "text", self.protected),
                name=self._name,
            )
        import numpy as np

        # The seed depends on the chunk's position, so that resuming does not change the
        # samples.
        seeds = np.random.SeedSequence([self.sampling_options["seed"], start + 1])
        options = {**self.sampling_options, "seed": int(seeds.generate_state(1)[0])}
        extra_length = translator.search.extra_length
        sampling = kt.Sampling(count, **options, extra_length=extra_length)
        return translator.sample(lines, sampling, **given)

    def _format(self, found):
        """Yields the lines of output for (line number, line, translation) triples."""
        aligned = [None] * len(found)
        if self.has_alignments:
            self.warnings.numbers = [number for number, *_ in found]
            sources = [line for _, line, _ in found]
            targets = [candidate.text for *_, candidate in found]
            aligned = self.translator.align(sources, targets)
        if self.as_json:
            yield from _json_lines(found, aligned)
            return
        for row, (number, _, candidate) in enumerate(found):
            columns = [str(number)] if self.is_numbered else []
            columns += [f"{candidate.score:.4f}"] if self.has_scores else []
            columns.append(candidate.text)
            if self.has_alignments:
                columns.append(kt.decoding.format_pharaoh(aligned[row]))
            if len(columns) > 1:
                # A text can contain a tab, which would begin another column.
                columns = [column.replace("\t", " ") for column in columns]
            yield "\t".join(columns)


def _without_languages(translator, lines):
    """Removes the languages that a multilingual model reads at the start of lines."""
    tokenizer = getattr(translator, "tokenizer", None)
    split = getattr(tokenizer, "split_language_prefix", None)
    if split is None:
        return lines
    _, texts = split([line.encode("utf-8", "replace") for line in lines])
    return [each.decode("utf-8", "replace") for each in texts.numpy()]


def _json_lines(found, aligned):
    """Yields an object in JSON per line of (line number, line, translation) triples."""
    rows = zip(found, aligned, strict=True)
    for (number, line), group in itertools.groupby(rows, lambda row: row[0][:2]):
        translations = [
            {"text": each.text, "score": float(each.score)}
            | ({"warnings": each.warnings} if each.warnings else {})
            | ({} if alignment is None else {"alignment": alignment})
            for (*_, each), alignment in group
        ]
        record = {"line": number, "source": line, "translations": translations}
        yield console.json_text(record, indent=None)


def _record(job, given, input_path, prefix_file):
    """Returns everything that determines the output, for `resumable_output`."""
    translator = job.translator
    options_used = {**given, **(job.sampling_options or {})}
    # A SavedModel has these settings in its graph, which its fingerprint covers.
    if hasattr(translator, "search"):
        options_used |= dataclasses.asdict(translator.search)
        options_used["max_source_length"] = translator.max_source_length
    options_used |= {
        "sampling": job.sampling_options is not None,
        "n_best": job.num_candidates,
        "scores": job.has_scores,
        "alignments": job.has_alignments,
        "json": job.as_json,
        "protect": job.protected,
    }
    return {
        "input": content_hash(input_path),
        "model": translator.fingerprint(),
        "prefix file": content_hash(prefix_file) if prefix_file else None,
        **{f"value of {name}": value for name, value in options_used.items()},
    }


def _check_prefix_count(prefix_file, input_path, expected):
    """Raises `UserError` if two files do not have one prefix per line of the input."""
    count, _ = measure(prefix_file)
    if None not in (count, expected) and count != expected:
        raise UserError(
            f"{prefix_file}: must have one prefix per line of {input_path}. Received: "
            f"{count:,} and {expected:,} line(s)"
        )


def _pair_with_prefixes(lines, prefix, prefix_file):
    """Yields (line, prefix) pairs."""
    if prefix_file is None:
        yield from ((line, prefix) for line in lines)
        return
    pairs = itertools.zip_longest(lines, input_lines(prefix_file))
    for number, (line, prefix) in enumerate(pairs, start=1):
        if line is None or prefix is None:
            which = "fewer" if prefix is None else "more"
            raise UserError(
                f"{prefix_file}: has {which} lines than the input (line {number})"
            )
        yield line, prefix


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
    decoding: options.Decoding = (),
    ensemble: options.OtherModels = (),
    parallel_parts: options.ParallelParts = 1,
    allow_unsafe: options.AllowUnsafe = False,
    split_words: Annotated[
        bool, Option(help="Tokenize like the Penn Treebank; needs nltk.")
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
    console.require_files(input_path)
    require_output(output, input_path)
    tokenize = penn_tokenizer() if split_words else str
    search = options.search(beam_size, length_penalty, patience, decoding)
    warnings = console.LineWarnings()
    parses = []
    with open_output(output) as write_line:
        translator = console.open_translator(
            model, ["parse"], ensemble, parallel_parts, search, warnings, allow_unsafe
        )
        size = chunk_size(input_path, CHUNK_SIZE)
        for _, chunk in in_chunks(input_lines(input_path), size, "parsing", warnings):
            sentences = [kt.parsing.split_words(tokenize(line)) for line in chunk]
            parsed = kt.parsing.parse_sentences(translator, sentences)
            for each in parsed:
                write_line("" if each.tree is None else str(each.tree))
            # `repair_report` only checks whether a tree is `None`, so the trees are not
            # kept in memory.
            parses += [each._replace(tree=bool(each.tree) or None) for each in parsed]
    console.print_status(kt.parsing.repair_report(parses))


def penn_tokenizer():
    """Returns a function that splits words like the Penn Treebank: "do n't"."""
    console.require_extra("parse", "nltk")
    from nltk.tokenize import TreebankWordTokenizer

    tokenizer = TreebankWordTokenizer()
    return lambda line: " ".join(tokenizer.tokenize(line))
