"""keras-transformer evaluate"""

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
    read_parallel_lines,
    score_in_chunks,
)
from keras_transformer.cli.output import open_output, require_output
from keras_transformer.cli.values import (
    check_moses_language,
    check_scoring_options,
    complete_scoring,
)
from keras_transformer.errors import DataError, UserError


class Metric(enum.StrEnum):
    bleu = "bleu"
    compound_bleu = "compound_bleu"
    chrf = "chrf"
    ter = "ter"
    perplexity = "perplexity"
    f1 = "f1"


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
    search = {"beam_size": beam_size, "length_penalty": length_penalty}
    search["patience"] = patience
    is_translating = output is not None or metrics != [Metric.perplexity]
    if not is_translating:
        _refuse_search(search)
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
        check_moses_language(language)


def _refuse_search(search):
    for name, value in search.items():
        if value is not None:
            option = "--" + name.replace("_", "-")
            raise UserError(
                f"{option}: --metric perplexity translates nothing. Remove the option, "
                "or add --output or another metric"
            )


def _translate(translator, sources, warnings):
    hypotheses = []
    for start, chunk in in_chunks(sources, CHUNK_SIZE, "translating"):
        warnings.numbers = range(start + 1, start + 1 + len(chunk))
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
    for start, chunk in in_chunks(sentences, CHUNK_SIZE, "parsing", unit="sentences"):
        warnings.numbers = range(start + 1, start + 1 + len(chunk))
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
