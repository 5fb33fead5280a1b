"""keras-transformer evaluate and score"""

import contextlib
import enum
import pathlib
import time
from collections import Counter
from typing import Annotated

import typer
from typer import Option

from keras_transformer.cli import console, options
from keras_transformer.cli.lines import (
    CHUNK_SIZE,
    in_chunks,
    open_output,
    read_parallel_lines,
    require_output,
    score_in_chunks,
)
from keras_transformer.errors import DataError, UserError, install_hint

Metric = enum.StrEnum("Metric", "bleu compound_bleu chrf ter perplexity f1")
_F1_SCORES = ("f1", "recall", "precision", "complete_match", "tagging_accuracy")


def evaluate(
    model: options.Model,
    reference: Annotated[
        list[pathlib.Path],
        Option(
            "--reference",
            "-r",
            help="Reference translations, or trees for f1. Repeatable, for several "
            "references of each sentence.",
        ),
    ],
    source: Annotated[
        pathlib.Path | None,
        Option(
            "--source",
            "-s",
            help="Text to translate (default for f1: words of the trees).",
        ),
    ] = None,
    metric: Annotated[
        list[Metric], Option("--metric", "-m", help="Metric to compute. Repeatable.")
    ] = (Metric.bleu,),
    tokenize: Annotated[
        str | None,
        Option(
            help="sacreBLEU tokenizer; use 'none' for tokenized text (default: "
            "evaluation.tokenize of the run's recipe, else 13a).",
        ),
    ] = None,
    language: Annotated[
        str | None,
        Option(
            help="Target language for the Moses tokenizer of compound_bleu (default: "
            "de)."
        ),
    ] = None,
    lowercase: Annotated[
        bool | None,
        Option(
            "--lowercase/--no-lowercase",
            help="Ignore case in BLEU and chrF (default: evaluation.lowercase of the "
            "run's recipe, else no).",
        ),
    ] = None,
    beam_size: options.BeamSize = None,
    length_penalty: options.LengthPenalty = None,
    patience: options.Patience = None,
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
    split at hyphens. For f1, the model parses the sentences, and its trees are compared
    with the trees in --reference. This requires a run folder or a .keras file in it.

    \b
    keras-transformer evaluate runs/mine --source test.en --reference test.de
    keras-transformer evaluate runs/craft --metric f1 --reference dev.trees.gz
    """
    metrics = list(dict.fromkeys(metric))
    is_parsing = Metric.f1 in metrics
    model, *ensemble = map(console.find_model, [model, *ensemble])
    console.require_exists(source, *reference)
    require_output(output, source, *reference)
    _check_metrics(metrics, reference, language)
    check_scoring_options(metrics, tokenize, lowercase)
    search = options.search(beam_size, length_penalty, patience)
    is_translating = output is not None or metrics != [Metric.perplexity]
    if search and not is_translating:
        raise UserError(
            f"`{next(iter(search))}`: --metric perplexity translates "
            "nothing. Remove the option, or add --output or another metric"
        )
    if is_parsing:
        sources, references = _read_treebank(reference[0], source)
        unit, origin = "sentences", f"{reference[0]}: sentence"
    else:
        if source is None:
            raise UserError("give the text to translate with --source")
        given = {"tokenize": tokenize, "lowercase": lowercase}
        scoring = _scoring(model, given, metrics)
        sources, *references = read_parallel_lines(source, *reference)
        unit, origin = "lines", f"{source}: line"

    started = time.monotonic()
    needs = ["parse"] if is_parsing else []
    warnings = console.LineWarnings(origin)
    translator = console.open_translator(
        model, needs, ensemble, parallel_parts, search, warnings, allow_unsafe
    )
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


def _scoring(model, given, metrics):
    """Returns the scoring settings in `given`, with the recipe's as defaults."""
    from keras_transformer.recipes.schema import EvaluationSettings

    recipe = model.recipe()
    stored = recipe.evaluation if recipe else EvaluationSettings()
    return complete_scoring(given, stored.model_dump(), metrics)


def complete_scoring(given, defaults, metrics=("bleu",)):
    """Returns the scoring settings in `given`, with `defaults` in place of `None`.

    Raises `UserError` unless sacreBLEU has the tokenizer of BLEU and its dependencies.
    """
    from sacrebleu.metrics import BLEU

    from keras_transformer.recipes.schema import BLEU_EXTRAS, BLEU_TOKENIZERS

    scoring = {
        name: defaults[name] if value is None else value
        for name, value in given.items()
    }
    if "bleu" not in metrics:
        return scoring
    name = scoring["tokenize"]
    label = "evaluation.tokenize=" if given["tokenize"] is None else "`tokenize` "
    if name not in BLEU_TOKENIZERS:
        raise UserError(f"{label}{name}: must be one of {', '.join(BLEU_TOKENIZERS)}")
    try:
        BLEU(tokenize=name)
    except (ImportError, RuntimeError, OSError) as error:
        # A package is missing, or sacreBLEU could not download a file.
        is_missing = name in BLEU_EXTRAS and not isinstance(error, OSError)
        reason = f"first run {install_hint(BLEU_EXTRAS[name])}" if is_missing else error
        raise UserError(f"{label}{name}: {reason}") from None
    return scoring


def check_scoring_options(metrics, tokenize, lowercase):
    """Raises `UserError` for options that none of the metrics uses."""
    if tokenize is not None and "bleu" not in metrics:
        raise UserError("--tokenize needs --metric bleu")
    if lowercase is not None and {"bleu", "chrf"}.isdisjoint(metrics):
        option = "--lowercase" if lowercase else "--no-lowercase"
        raise UserError(f"{option} needs --metric bleu or chrf")


def _check_metrics(metrics, references, language):
    if Metric.f1 in metrics and len(metrics) > 1:
        raise UserError(
            "--metric f1: cannot be combined with other metrics, because its reference "
            "is a file of trees"
        )
    if len(references) > 1 and not {Metric.f1, Metric.perplexity}.isdisjoint(metrics):
        raise UserError("--metric perplexity and f1: need a single --reference")
    if language is not None:
        if Metric.compound_bleu not in metrics:
            raise UserError("--language needs --metric compound_bleu")
        with console.quiet_libraries():
            from keras_transformer.evaluation.compound_split import moses_languages

        if language not in moses_languages():
            known = ", ".join(moses_languages())
            raise UserError(f"--language {language}: must be one of {known}")


def _translate(translator, sources, warnings):
    hypotheses = []
    for _, chunk in in_chunks(sources, CHUNK_SIZE, "translating", warnings):
        hypotheses += translator.translate(chunk)
    return hypotheses


def _score(metric, hypotheses, references, language, tokenize, lowercase):
    from keras_transformer import evaluation

    function, *settings = {
        Metric.bleu: (evaluation.bleu, tokenize, lowercase),
        Metric.compound_bleu: (evaluation.compound_split_bleu, language),
        Metric.chrf: (evaluation.chrf, lowercase),
        Metric.ter: (evaluation.ter,),
    }[metric]
    result = function(hypotheses, references, *settings)
    return {
        "metric": metric.value,
        "name": result.metric,
        "score": result.score,
        "signature": result.signature,
    }


def _perplexity(translator, sources, references, warnings):
    from keras_transformer.evaluation.perplexity import perplexity_of

    pairs = list(zip(sources, references, strict=True))
    scored = list(score_in_chunks(translator, pairs, warnings))
    num_tokens = sum(pair.num_tokens for pair in scored)
    return {
        "metric": "perplexity",
        "name": "perplexity",
        "score": perplexity_of(scored),
        "signature": f"per subword, {num_tokens} including end ids",
    }


def _read_treebank(reference, source):
    """Returns the sentences and the trees of a treebank.

    If `source` is a path, the lines of the text must be the same sentences.
    """
    console.load_tensorflow()
    from keras_transformer.parsing.trees import read_trees, split_words
    from keras_transformer.pipelines import read_lines

    numbered = list(read_trees(reference))
    if not numbered:
        raise DataError(f"{reference}: contains no trees")
    sentences = [tree.words for _, tree in numbered]
    given = sentences if source is None else [*map(split_words, read_lines(source))]
    if len(given) != len(sentences):
        raise UserError(
            f"{source} must have one line per tree of {reference}. Received: "
            f"{len(given)} lines and {len(sentences)} trees."
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
    from keras_transformer.parsing.parser import parse_sentences, repair_report

    parses = []
    chunks = in_chunks(sentences, CHUNK_SIZE, "parsing", warnings, unit="sentences")
    for _, chunk in chunks:
        parses += parse_sentences(translator, chunk)
    console.print_status(repair_report(parses))
    repairs = {
        "trees": sum(bool(parse.repairs) for parse in parses),
        "kinds": dict(sum((parse.repairs for parse in parses), Counter())),
    }
    return [parse.tree for parse in parses], {"repairs": repairs}


def score_parses(references, trees):
    """Returns the scores of all sentences and, if there are any, of the short ones."""
    from keras_transformer.parsing.bracketing import SHORT_LENGTH, bracketing_score

    scores = {
        max_words: bracketing_score(references, trees, max_words)
        for max_words in (None, SHORT_LENGTH)
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
):
    """Print the natural log-probability of given translations.

    \b
    keras-transformer score runs/mine --source test.en --target test.de
    """
    model, *ensemble = map(console.find_model, [model, *ensemble])
    console.require_exists(source, target)
    require_output(output, source, target)

    pairs = list(zip(*read_parallel_lines(source, target), strict=True))
    scores = []
    warnings = console.LineWarnings(f"{source}: line")
    with open_output(output) as write_line:
        translator = console.open_translator(
            model, ensemble=ensemble, warnings=warnings, allow_unsafe=allow_unsafe
        )
        from keras_transformer.evaluation.perplexity import perplexity_of

        for pair in score_in_chunks(translator, pairs, warnings):
            if not as_json:
                write_line(f"{pair.log_prob:.6f}")
            scores.append(pair)
        if as_json:
            report = {"model": str(model), "perplexity": perplexity_of(scores)}
            report["pairs"] = [pair._asdict() for pair in scores]
            write_line(console.json_text(report, indent=None))
    console.print_status(f"perplexity per subword: {perplexity_of(scores):.4f}")
