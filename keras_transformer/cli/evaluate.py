"""keras-transformer evaluate, score and compare"""

import contextlib
import enum
import itertools
import json
import pathlib
import time
from collections import Counter
from typing import Annotated, Literal

import typer
from typer import Argument, Option

import keras_transformer as kt
from keras_transformer.cli import console, options
from keras_transformer.cli.lines import (
    CHUNK_SIZE,
    in_chunks,
    is_finished,
    measure,
    open_output,
    read_parallel_lines,
    require_output,
    resumable_output,
    resumable_path,
    score_in_chunks,
    stream_parallel_lines,
)
from keras_transformer.errors import DataError, UserError
from keras_transformer.pipelines.lines import content_hash, read_lines

Metric = enum.StrEnum("Metric", "bleu compound_bleu chrf ter perplexity f1")
CorpusMetric = enum.StrEnum("CorpusMetric", "bleu chrf ter")
_F1_SCORES = ("f1", "recall", "precision", "complete_match", "tagging_accuracy")
# Number of warnings about lines that `evaluate` prints.
_MAX_WARNINGS = 3
# Fewer sentences are too few for a resampling test.
_MIN_SENTENCES = 30
Tokenize = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="sacreBLEU tokenizer: 13a, intl, char, zh, ja-mecab, ko-mecab, flores101, "
        "flores200, spBLEU-1K, or none for tokenized text (default: "
        "evaluation.tokenize of the recipe, else 13a).",
    ),
]
Lowercase = Annotated[
    bool | None,
    Option(
        "--lowercase/--no-lowercase",
        help="Ignore case in BLEU and chrF (default: evaluation.lowercase of the "
        "recipe, else no).",
    ),
]


def evaluate(
    model: options.Model,
    reference: Annotated[
        list[pathlib.Path],
        Option(
            "--reference",
            "-r",
            help="Reference translations, or trees for f1. Required, unless "
            "--test-split is given. Repeatable, for several references of each "
            "sentence.",
        ),
    ] = (),
    source: Annotated[
        pathlib.Path | None,
        Option(
            "--source",
            "-s",
            help="Text to translate. Required with --reference, except for f1 "
            "(default: words of the trees).",
        ),
    ] = None,
    test_split: Annotated[
        bool,
        Option(
            help="Use data.test of the model's recipe instead of --source and "
            "--reference."
        ),
    ] = False,
    metric: Annotated[
        list[Metric], Option("--metric", "-m", help="Metric to compute. Repeatable.")
    ] = (Metric.bleu,),
    tokenize: Tokenize = None,
    language: Annotated[
        str | None,
        Option(
            metavar="CODE",
            help="Target language for the Moses tokenizer of compound_bleu (default: "
            "de).",
        ),
    ] = None,
    lowercase: Lowercase = None,
    beam_size: options.BeamSize = None,
    length_penalty: options.LengthPenalty = None,
    patience: options.Patience = None,
    decoding: options.Decoding = (),
    ensemble: options.OtherModels = (),
    parallel_parts: options.ParallelParts = 1,
    allow_unsafe: options.AllowUnsafe = False,
    output: Annotated[
        pathlib.Path | None,
        Option("--output", "-o", help="File to write the translations to."),
    ] = None,
    as_json: options.Json = False,
):
    """Translate a test set and score it with sacreBLEU.

    For compound_bleu, the metric of the paper, text is tokenized and compounds are
    split at hyphens. For f1, a model in a run folder parses the sentences, and its
    trees are compared with those in --reference.

    \b
    keras-transformer evaluate runs/mine --source test.en --reference test.de
    keras-transformer evaluate runs/mine --test-split
    keras-transformer evaluate runs/craft --metric f1 --reference dev.trees.gz
    """
    metrics = list(dict.fromkeys(metric))
    is_parsing = Metric.f1 in metrics
    model, *ensemble = map(console.find_model, [model, *ensemble])
    if test_split and (reference or source or is_parsing):
        raise UserError(
            "--test-split: cannot be combined with --source, --reference, or --metric "
            "f1, which needs trees"
        )
    if not reference and not test_split:
        raise UserError("pass the references as --reference, or --test-split")
    console.require_files(source, *reference)
    require_output(output, source, *reference)
    _check_metrics(metrics, reference, language)
    _check_scoring_options(metrics, tokenize, lowercase)
    search = options.search(beam_size, length_penalty, patience, decoding)
    is_translating = output is not None or metrics != [Metric.perplexity]
    if search and not is_translating:
        raise UserError(
            f"`{next(iter(search))}`: --metric perplexity translates "
            "nothing. Remove the option, or add --output or another metric"
        )
    if is_parsing:
        sources, references = _read_treebank(reference[0], source)
        unit, origin = "sentences", f"{reference[0]}: sentence "
    else:
        if source is None and not test_split:
            raise UserError("pass the text to translate as --source")
        given = {"tokenize": tokenize, "lowercase": lowercase}
        recipe = model.recipe()
        stored = recipe.evaluation if recipe else kt.recipes.schema.EvaluationSettings()
        scoring = _complete_scoring(given, stored.model_dump(), metrics)
        if test_split:
            sources, *references = _read_test_split(model)
        else:
            sources, *references = read_parallel_lines(source, *reference)
        unit, origin = "lines", f"{source}:" if source else "data.test: line "

    started = time.monotonic()
    needs = ["parse"] if is_parsing else []
    warnings = console.LineWarnings(origin, _MAX_WARNINGS)
    translator = console.open_translator(
        model, needs, ensemble, parallel_parts, search, warnings, allow_unsafe
    )
    if not is_parsing:
        # An export has no tokenizer here.
        kind = getattr(getattr(translator, "tokenizer", None), "kind", None)
        references = [
            kt.runs.corpora.strip_languages(kind, each) for each in references
        ]
    outputs, details = [], {}
    with open_output(output) if output else contextlib.nullcontext() as write_line:
        if is_parsing:
            outputs, details = _parse(translator, sources, warnings)
        elif is_translating:
            outputs = _translate(translator, sources, warnings)
        for each in outputs if output else ():
            write_line(str(each))
    if is_parsing:
        results = score_parses(references, outputs)
    else:
        results = [
            _perplexity(translator, sources, references[0], warnings)
            if one is Metric.perplexity
            else _score(one, outputs, references, language or "de", **scoring)
            for one in metrics
        ]
    warnings.report_omitted()
    seconds = time.monotonic() - started
    if as_json:
        report = {"model": str(model), unit: len(sources), "seconds": seconds}
        typer.echo(console.json_text({**report, **details, "results": results}))
        return
    for result in results:
        typer.echo(
            _format_f1(result)
            if is_parsing
            else f"{result['name']} = {result['score']:.2f}  {result['signature']}"
        )
    console.print_status(f"{len(sources)} {unit} in {seconds:.1f} s")


def _read_test_split(model):
    """Returns the sources and references of the recipe's test set."""
    console.load_tensorflow()
    recipe = model.recipe()
    data = recipe and recipe.data
    # A recipe of phrases has no key for its test set.
    if not data or data.kind == "trees" or getattr(data, "test", True) is None:
        raise UserError(
            "--test-split: the model must have a recipe with text in data.test, or in "
            "data.train.test if it mixes corpora. Use --source and --reference"
        )
    return kt.runs.corpora.load_scored_pairs(recipe, "test")


def _complete_scoring(given, defaults, metrics=("bleu",)):
    """Returns the scoring settings in `given`, with `defaults` in place of `None`.

    Raises `UserError` unless sacreBLEU has the tokenizer of BLEU and its dependencies.
    """
    scoring = {
        name: defaults[name] if value is None else value
        for name, value in given.items()
    }
    if "bleu" not in metrics:
        return scoring
    name = scoring["tokenize"]
    label = "evaluation.tokenize=" if given["tokenize"] is None else "`tokenize` "
    known = kt.recipes.schema.BLEU_TOKENIZERS
    if name not in known:
        raise UserError(f"{label}{name}: must be one of {', '.join(known)}")
    if reason := kt.recipes.schema.bleu_problem(name):
        raise UserError(f"{label}{name}: {reason}")
    return scoring


def _check_scoring_options(metrics, tokenize, lowercase):
    """Raises `UserError` for options that none of the metrics uses."""
    if tokenize is not None and "bleu" not in metrics:
        raise UserError("--tokenize: needs --metric bleu")
    if lowercase is not None and {"bleu", "chrf"}.isdisjoint(metrics):
        option = "--lowercase" if lowercase else "--no-lowercase"
        raise UserError(f"{option}: needs --metric bleu or chrf")


def _check_metrics(metrics, references, language):
    if Metric.f1 in metrics and len(metrics) > 1:
        raise UserError(
            "--metric f1: cannot be combined with other metrics, because its reference "
            "is a file of trees"
        )
    if len(references) > 1 and not {Metric.f1, Metric.perplexity}.isdisjoint(metrics):
        raise UserError("--metric perplexity or f1: pass a single --reference")
    if language is not None:
        if Metric.compound_bleu not in metrics:
            raise UserError("--language: needs --metric compound_bleu")
        with console.quiet_libraries():
            known = kt.evaluation.compound_split.moses_languages()
        if language not in known:
            raise UserError(f"--language {language}: must be one of {', '.join(known)}")


def _translate(translator, sources, warnings):
    hypotheses = []
    for _, chunk in in_chunks(sources, CHUNK_SIZE, "translating", warnings):
        hypotheses += translator.translate(chunk, protect=())
    return hypotheses


def _score(metric, hypotheses, references, language, tokenize, lowercase):
    function, *settings = {
        Metric.bleu: (kt.evaluation.bleu, tokenize, lowercase),
        Metric.compound_bleu: (kt.evaluation.compound_split_bleu, language),
        Metric.chrf: (kt.evaluation.chrf, lowercase),
        Metric.ter: (kt.evaluation.ter,),
    }[metric]
    result = function(hypotheses, references, *settings)
    return {
        "metric": metric.value,
        "name": result.metric,
        "score": result.score,
        "signature": result.signature,
    }


def _perplexity(translator, sources, references, warnings):
    from keras_transformer.evaluation.perplexity import compute_perplexity

    pairs = list(zip(sources, references, strict=True))
    scored = list(score_in_chunks(translator, pairs, warnings))
    num_tokens = sum(pair.num_tokens for pair in scored)
    return {
        "metric": "perplexity",
        "name": "perplexity",
        "score": compute_perplexity(scored),
        "signature": f"per subword, {num_tokens} including end ids",
    }


def _read_treebank(reference, source):
    """Returns the sentences and the trees of a treebank.

    If `source` is a path, the lines of the text must be the same sentences.
    """
    console.load_tensorflow()
    numbered = list(kt.parsing.read_trees(reference))
    if not numbered:
        raise DataError(f"{reference}: contains no trees")
    sentences = [tree.words for _, tree in numbered]
    given = sentences
    if source is not None:
        given = [*map(kt.parsing.split_words, read_lines(source))]
    if len(given) != len(sentences):
        raise UserError(
            f"{source} must have one line per tree of {reference}. Received: "
            f"{len(given)} lines and {len(sentences)} trees"
        )
    for number, (words, (line, tree)) in enumerate(
        zip(given, numbered, strict=True), 1
    ):
        if words != tree.words:
            raise UserError(
                f"{source}:{number}: must have the same words as the tree at "
                f"{reference}:{line}"
            )
    return sentences, [tree for _, tree in numbered]


def _parse(translator, sentences, warnings):
    """Returns the trees of sentences, and the number of repairs for the JSON report."""
    parses = []
    chunks = in_chunks(sentences, CHUNK_SIZE, "parsing", warnings, unit="sentences")
    for _, chunk in chunks:
        parses += kt.parsing.parse_sentences(translator, chunk)
    console.print_status(kt.parsing.repair_report(parses))
    repairs = {
        "trees": sum(bool(parse.repairs) for parse in parses),
        "kinds": dict(sum((parse.repairs for parse in parses), Counter())),
    }
    return [parse.tree for parse in parses], {"repairs": repairs}


def score_parses(references, trees):
    """Returns the scores of all sentences and, if there are any, of the short ones."""
    scores = {
        max_words: kt.parsing.bracketing_score(references, trees, max_words)
        for max_words in (None, kt.parsing.bracketing.SHORT_LENGTH)
    }
    return [
        {
            "metric": "f1",
            "name": "bracketing F1",
            "max_words": max_words,
            "sentences": score.sentences,
            "score": score.f1,
            **{name: getattr(score, name) for name in _F1_SCORES},
            "signature": "labeled, COLLINS.prm",
        }
        for max_words, score in scores.items()
        if score.sentences
    ]


def _format_f1(result):
    limit = result["max_words"]
    subset = "all sentences" if limit is None else f"at most {limit} words"
    return (
        f"F1 = {result['f1']:.2f}  ({subset}: {result['sentences']})  "
        f"recall {result['recall']:.2f}, precision {result['precision']:.2f}, "
        f"complete match {result['complete_match']:.2f}, "
        f"tags {result['tagging_accuracy']:.2f}  {result['signature']}"
    )


def score(
    model: options.Model,
    source: options.Source,
    target: options.Target,
    ensemble: options.OtherModels = (),
    output: options.OutputPath = None,
    allow_unsafe: options.AllowUnsafe = False,
    as_json: options.Json = False,
    resume: options.Resume = False,
):
    """Print the natural log-probability of given translations.

    \b
    keras-transformer score runs/mine --source test.en --target test.de
    """
    model, *ensemble = map(console.find_model, [model, *ensemble])
    console.require_files(source, target)
    require_output(output, source, target)
    if resume:
        if as_json:
            raise UserError("--resume: cannot be used with --json")
        output = resumable_path(output, source, target)

    pairs, (total, _) = stream_parallel_lines(source, target), measure(source)
    first = next(pairs)  # checks the files
    warnings = console.LineWarnings(f"{source}:")
    translator = console.open_translator(
        model, ensemble=ensemble, warnings=warnings, allow_unsafe=allow_unsafe
    )
    from keras_transformer.evaluation.perplexity import compute_perplexity

    log_prob = num_tokens = num_done = 0
    lines = open_output(output)
    if resume:
        record = {"source": content_hash(source), "target": content_hash(target)}
        record["model"] = translator.fingerprint()
        if is_finished(output, record):
            console.print_status(f"{output}: all pairs are already scored")
            return
        lines = resumable_output(output, record, total, False)
    hint = console.resume_hint(f"continue {output}.part" if resume else "start over")
    with hint, lines as opened:
        write_line, num_done = opened if resume else (opened, 0)
        skip = num_done // CHUNK_SIZE * CHUNK_SIZE
        pairs = itertools.chain([first], pairs)
        scores = score_in_chunks(translator, pairs, warnings, total, skip)
        scored = []
        for number, pair in enumerate(scores, skip + 1):
            log_prob += pair.log_prob
            num_tokens += pair.num_tokens
            if as_json:
                scored.append(pair._asdict())
            elif number > num_done:
                write_line(f"{pair.log_prob:.6f}")
        if num_done:
            console.print_status("no perplexity: some scores are from an earlier call")
            return
        perplexity = compute_perplexity([kt.decoding.PairScore(log_prob, num_tokens)])
        if as_json:
            report = {"model": str(model), "perplexity": perplexity, "pairs": scored}
            write_line(console.json_text(report, indent=None))
    console.print_status(f"perplexity per subword: {perplexity:.4f}")


def compare(
    systems: Annotated[
        list[pathlib.Path],
        Argument(
            metavar="BASELINE SYSTEM",
            help="The baseline, then the systems to compare with it: translation "
            "files, or folders written by the `repeat` command.",
        ),
    ],
    reference: Annotated[
        list[pathlib.Path],
        Option(
            "--reference",
            "-r",
            help="Reference translations. Required for translation files. Repeatable, "
            "for several references of each sentence.",
        ),
    ] = (),
    metric: Annotated[
        list[CorpusMetric],
        Option("--metric", "-m", help="Metric to compare. Repeatable."),
    ] = (CorpusMetric.bleu,),
    test: Annotated[
        Literal["bootstrap", "randomization"],
        Option(help="Paired bootstrap or approximate randomization test."),
    ] = "bootstrap",
    samples: Annotated[
        int | None,
        Option(
            min=1, help="Number of resamples (default: 1000; randomization: 10000)."
        ),
    ] = None,
    seed: Annotated[int, Option(min=1, help="Seed for the resampling.")] = 12345,
    tokenize: Tokenize = None,
    lowercase: Lowercase = None,
    as_json: options.Json = False,
):
    """Test whether systems differ significantly.

    Translation files are compared with references, as in sacreBLEU. Folders written by
    the `repeat` command are compared by their mean BLEU over seeds, with a paired
    bootstrap over sentences. The p-value is the probability of a difference at least as
    large as the observed one if the system were as good as the baseline.

    \b
    keras-transformer translate runs/a --input test.en --output a.de
    keras-transformer translate runs/b --input test.en --output b.de
    keras-transformer compare --reference test.de a.de b.de
    keras-transformer compare seeds_a seeds_b
    """
    if len(systems) < 2:
        raise UserError(
            f"pass a baseline and at least one other system. Received: {systems[0]}"
        )
    if len(set(systems)) < len(systems):
        raise UserError("all systems must differ, but the same path was passed twice")
    console.require_exists(*reference, *systems)
    _check_scoring_options(metric, tokenize, lowercase)
    given = {"tokenize": tokenize, "lowercase": lowercase}
    if any(path.is_dir() for path in systems):
        for path in systems:
            if not path.is_dir():
                raise UserError(
                    f"{path}: must be a folder written by the `repeat` command, "
                    "because another system is a folder"
                )
        if reference or test != "bootstrap" or set(metric) != {CorpusMetric.bleu}:
            raise UserError(
                "folders written by the `repeat` command contain references and are "
                "compared by BLEU with the bootstrap. Remove --reference, --metric and "
                "--test"
            )
        results = [_compare_folders(systems, given, samples or 1000, seed)]
    elif not reference:
        raise UserError("--reference: must be given to compare translation files")
    else:
        metrics = [each.value for each in dict.fromkeys(metric)]
        settings = {"metrics": metrics, "test": test}
        settings |= {"num_samples": samples, "seed": seed}
        results = _compare_files(systems, reference, given, settings)
    if as_json:
        report = [result._asdict() for result in results]
        for entry in report:
            entry["systems"] = [system._asdict() for system in entry["systems"]]
        typer.echo(console.json_text(report))
        return
    width = max(len(str(path)) for path in systems)
    for result in results:
        typer.echo(f"{result.metric}  {result.signature}")
        for system in result.systems:
            typer.echo(f"{system.name:{width}}  {_describe(system)}")


def _compare_files(systems, references, given, settings):
    defaults = kt.recipes.schema.EvaluationSettings().model_dump()
    scoring = _complete_scoring(given, defaults)
    texts = read_parallel_lines(*references, *systems)
    references, hypotheses = texts[: len(references)], texts[len(references) :]
    _warn_of_few_sentences(references[0])
    named = dict(zip(map(str, systems), hypotheses, strict=True))
    with console.quiet_libraries():
        return kt.evaluation.compare_systems(named, references, **scoring, **settings)


def _compare_folders(folders, given, num_samples, seed):
    console.load_tensorflow()
    with console.quiet_libraries():
        scoring = _complete_scoring(given, _stored_scoring(folders, given))
        systems, references = {}, None
        for folder in folders:
            systems[str(folder)], others = kt.runs.repetition.read_translations(folder)
            if references not in (None, others):
                raise UserError(
                    f"{folder}: must have the same references as {folders[0]}"
                )
            references = others
        _warn_of_few_sentences(references)
        baseline, *_ = systems[str(folders[0])]
        signature = kt.evaluation.bleu(baseline, references, **scoring).signature
        # As in sacreBLEU, the bootstrap follows the number of references.
        start, rest = signature.split("|", 1)
        signature = f"{start}|bs:{num_samples}|seed:{seed}|{rest}"
        num_seeds = ", ".join(str(len(each)) for each in systems.values())
        return kt.evaluation.Comparison(
            "BLEU",
            f"{signature}  mean over seeds (number per system: {num_seeds})",
            kt.evaluation.compare_seeds(
                systems, references, **scoring, num_samples=num_samples, seed=seed
            ),
        )


def _warn_of_few_sentences(references):
    if len(references) < _MIN_SENTENCES:
        console.warn(
            f"intervals and p-values need at least {_MIN_SENTENCES} sentences. "
            f"Received: {len(references)}"
        )


def _stored_scoring(folders, given):
    """Returns the settings of BLEU that all recipes share, apart from those given."""
    read_settings = kt.runs.repetition.read_evaluation_settings
    missing = [name for name, value in given.items() if value is None]
    if not missing:
        return {}
    first, *others = folders
    settings = read_settings(first)
    for folder in others:
        other = read_settings(folder)
        for name in missing:
            if other[name] != settings[name]:
                values = json.dumps(settings[name]), json.dumps(other[name])
                choice = " or --no-lowercase" if name == "lowercase" else ""
                raise UserError(
                    f"{first} and {folder}: their recipes have different values of "
                    f"evaluation.{name}, {' and '.join(values)}. Choose one with "
                    f"`{name}`{choice}"
                )
    return settings


def _describe(system):
    score = f"{system.score:.2f}"
    if system.mean is not None:
        score += f"  (mean {system.mean:.2f} ± {system.interval:.2f})"
    if system.p_value is None:
        return f"{score}  baseline"
    return f"{score}  p = {system.p_value:.4f}"
