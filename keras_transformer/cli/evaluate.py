"""keras-transformer evaluate"""

import enum
import json
import pathlib
import time
from typing import Annotated

import typer

from keras_transformer.cli.console import LineWarnings
from keras_transformer.cli.console import check_output
from keras_transformer.cli.console import check_tokenizer
from keras_transformer.cli.console import existing
from keras_transformer.cli.console import opened_model
from keras_transformer.cli.console import progress
from keras_transformer.cli.console import say
from keras_transformer.cli.console import verb
from keras_transformer.cli.console import written_lines
from keras_transformer.cli.evaluate_trees import evaluate_trees
from keras_transformer.cli.text_lines import EnsemblePaths
from keras_transformer.cli.text_lines import ParallelBatches
from keras_transformer.cli.text_lines import Patience
from keras_transformer.cli.text_lines import counted_pair
from keras_transformer.errors import UserError

BLOCK = 2_000


class Metric(enum.StrEnum):
    bleu = "bleu"
    compound_bleu = "compound_bleu"
    chrf = "chrf"
    ter = "ter"
    perplexity = "perplexity"
    f1 = "f1"


@verb
def evaluate(
    model: Annotated[
        pathlib.Path,
        typer.Argument(
            metavar="MODEL", help="A run folder, a .keras file or a SavedModel folder."
        ),
    ],
    reference: Annotated[
        pathlib.Path,
        typer.Option("--reference", "-r", help="True translation; for f1, trees."),
    ],
    source: Annotated[
        pathlib.Path | None,
        typer.Option(
            "--source", "-s", help="Text to translate. With f1, default: the trees'."
        ),
    ] = None,
    metric: Annotated[
        list[Metric] | None,
        typer.Option(
            "--metric", "-m", help="May be given several times.  [default: bleu]"
        ),
    ] = None,
    tokenize: Annotated[
        str,
        typer.Option(help="sacreBLEU's tokenizer for BLEU; none for tokenised text."),
    ] = "13a",
    language: Annotated[
        str, typer.Option(help="Of the target, for compound_bleu's Moses tokenizer.")
    ] = "de",
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="BLEU and chrF without case.")
    ] = False,
    beam_size: Annotated[
        int | None, typer.Option(min=1, help="1 is greedy. Default: the run's, or 4.")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(min=0, help="Alpha. Default: the run's, or 0.6.")
    ] = None,
    patience: Patience = None,
    ensemble: EnsemblePaths = None,
    parallel_batches: ParallelBatches = 1,
    output: Annotated[
        pathlib.Path | None,
        typer.Option("--output", "-o", help="File to write the translations to."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
):
    """Score translations of a test set with sacreBLEU.

    The metric compound_bleu is the paper's own: tokenised, compounds split at hyphens.
    The metric f1 parses sentences and compares the trees with those of --reference.

    \b
    keras-transformer evaluate runs/mine --source test.en --reference test.de
    keras-transformer evaluate runs/craft --metric f1 --reference dev.trees.gz
    """
    search = {"beam_size": beam_size, "length_penalty": length_penalty}
    search["patience"] = patience
    metrics = list(dict.fromkeys(metric or [Metric.bleu]))
    for path in filter(None, (model, source, reference, *(ensemble or ()))):
        existing(path)
    if output is not None:
        check_output(output)
    if Metric.f1 in metrics:
        if len(metrics) > 1:
            raise UserError("--metric f1: stands alone, its reference is trees")
        evaluate_trees(
            *(model, ensemble, reference, source, search),
            *(output, as_json, parallel_batches),
        )
        return
    if source is None:
        raise UserError("--source, the text to translate, is missing")

    check_tokenizer(tokenize)

    sources, references = counted_pair(source, reference)
    started = time.monotonic()
    warnings = LineWarnings(f"{source}: line")
    changed = {name: value for name, value in search.items() if value is not None}
    needs = ["with_search"] if changed else []
    if Metric.perplexity in metrics:
        needs.append("score")
    opened = opened_model(model, warnings, ensemble or (), parallel_batches, needs)
    translator = opened.with_search(**changed) if changed else opened
    results = []
    if output is not None or metrics != [Metric.perplexity]:
        hypotheses = _translations(translator, warnings, sources)
        if output is not None:
            with written_lines(output) as write_line:
                for hypothesis in hypotheses:
                    write_line(hypothesis)
    for one in metrics:
        if one is Metric.perplexity:
            results.append(_perplexity(opened, sources, references))
        else:
            results.append(
                _score(one, hypotheses, references, tokenize, lowercase, language)
            )
    seconds = time.monotonic() - started
    if as_json:
        report = {"model": str(model), "lines": len(sources), "seconds": seconds}
        typer.echo(json.dumps({**report, "results": results}, indent=2))
        return
    for result in results:
        typer.echo(f"{result['name']} = {result['score']:.2f}  {result['signature']}")
    say(f"{len(sources)} lines in {seconds:.1f} s")


def _translations(translator, warnings, sources):
    hypotheses = []
    with progress("translating", len(sources)) as advance:
        for start in range(0, len(sources), BLOCK):
            block = sources[start : start + BLOCK]
            warnings.numbers = range(start + 1, start + 1 + len(block))
            hypotheses += translator.translate(block)
            advance(len(block))
    return hypotheses


def _score(metric, hypotheses, references, tokenize, lowercase, language):
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


def _perplexity(opened, sources, references):
    from keras_transformer.evaluation.perplexity import perplexity_of

    with progress("scoring", len(sources)) as advance:
        scored = []
        for start in range(0, len(sources), BLOCK):
            block = slice(start, start + BLOCK)
            scored += opened.score(sources[block], references[block])
            advance(len(sources[block]))
    num_tokens = sum(pair.num_tokens for pair in scored)
    return {
        "metric": "perplexity",
        "name": "perplexity",
        "score": perplexity_of(scored),
        "signature": f"per sub-word, ends of sentences counted, {num_tokens} in all",
    }
