"""keras-transformer evaluate"""

import contextlib
import enum
import pathlib
import time
from typing import Annotated

import typer
from typer import Option

from keras_transformer.cli import console, evaluate_trees, options
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
from keras_transformer.errors import UserError


class Metric(enum.StrEnum):
    bleu = "bleu"
    compound_bleu = "compound_bleu"
    chrf = "chrf"
    ter = "ter"
    perplexity = "perplexity"
    f1 = "f1"


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
        sources, references = evaluate_trees.read_treebank(reference[0], source)
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
    with _open_optional(output) as write_line:
        if is_parsing:
            parses = evaluate_trees.parse(translator, sources, warnings)
            outputs = [parse.tree for parse in parses]
            details = {"repairs": evaluate_trees.count_repairs(parses)}
        elif is_translating:
            outputs = _translate(translator, sources, warnings)
        for each in outputs:
            write_line(str(each))
    if is_parsing:
        results = evaluate_trees.score_parses(references, outputs)
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
            evaluate_trees.format_result(result)
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


@contextlib.contextmanager
def _open_optional(output):
    """Like `open_output`, but writes nothing if `output` is `None`."""
    if output is None:
        yield lambda text: None
        return
    with open_output(output) as write_line:
        yield write_line


def _translate(translator, sources, warnings):
    hypotheses = []
    for start, chunk in in_chunks(sources, CHUNK_SIZE, "translating"):
        warnings.numbers = range(start + 1, start + 1 + len(chunk))
        hypotheses += translator.translate(chunk)
    return hypotheses


def _score(metric, hypotheses, references, language, tokenize, lowercase):
    from keras_transformer import evaluation

    if metric is Metric.bleu:
        result = evaluation.bleu(hypotheses, references, tokenize, lowercase)
    elif metric is Metric.compound_bleu:
        result = evaluation.compound_split_bleu(hypotheses, references, language)
    elif metric is Metric.chrf:
        result = evaluation.chrf(hypotheses, references, lowercase)
    else:
        result = evaluation.ter(hypotheses, references)
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
