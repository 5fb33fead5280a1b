"""keras-transformer evaluate --metric f1"""

import json
import time
from collections import Counter

import typer

from keras_transformer.cli.console import LineWarnings
from keras_transformer.cli.console import load_tensorflow
from keras_transformer.cli.console import opened_model
from keras_transformer.cli.console import progress
from keras_transformer.cli.console import say
from keras_transformer.cli.console import written_lines
from keras_transformer.errors import UserError

BLOCK = 500
FIGURES = ("f1", "recall", "precision", "complete_match", "tagging_accuracy")


def evaluate_trees(
    model,
    ensemble,
    reference,
    source,
    search,
    output,
    as_json,
    parallel_batches,
):
    """Parses the sentences of a treebank and scores the trees."""
    load_tensorflow()
    from keras_transformer.errors import DataError
    from keras_transformer.parsing.bracketing import SHORT_LENGTH
    from keras_transformer.parsing.bracketing import bracketing_score
    from keras_transformer.parsing.parser import parse_sentences
    from keras_transformer.parsing.parser import repair_report
    from keras_transformer.parsing.trees import read_trees

    lines, references = [], []
    for line, tree in read_trees(reference):
        lines.append(line)
        references.append(tree)
    if not references:
        raise DataError(f"{reference}: there are no trees in it")
    if source is not None:
        _check_source(source, reference, lines, references)

    started = time.monotonic()
    warnings = LineWarnings(f"{reference}: tree line")
    opened = opened_model(
        *(model, warnings, ensemble or (), parallel_batches), needs=["model"]
    )
    changed = {name: value for name, value in search.items() if value is not None}
    translator = opened.with_search(**changed)
    sentences = [tree.words for tree in references]
    parses = []
    with progress("parsing", len(sentences), "sentences") as advance:
        for start in range(0, len(sentences), BLOCK):
            block = sentences[start : start + BLOCK]
            warnings.numbers = range(start + 1, start + 1 + len(block))
            parses += parse_sentences(translator, block)
            advance(len(block))
    trees = [parse.tree for parse in parses]
    if output is not None:
        with written_lines(output) as write_line:
            for tree in trees:
                write_line(str(tree))
    seconds = time.monotonic() - started
    results = []
    for max_length in (None, SHORT_LENGTH):
        score = bracketing_score(references, trees, max_length)
        figures = {name: getattr(score, name) for name in FIGURES}
        results.append(
            {
                "metric": "f1",
                "name": "bracketing F1",
                "max_words": max_length,
                "sentences": score.sentences,
                "score": score.f1,
                **figures,
                "signature": "labelled, COLLINS.prm",
            }
        )
    say(repair_report(parses))
    if as_json:
        report = {
            "model": str(model),
            "sentences": len(sentences),
            "seconds": seconds,
            "repairs": {
                "trees": sum(bool(parse.repairs) for parse in parses),
                "kinds": dict(sum((parse.repairs for parse in parses), Counter())),
            },
        }
        typer.echo(json.dumps({**report, "results": results}, indent=2))
        return
    for result in results:
        typer.echo(_shown(result))
    say(f"{len(sentences)} sentences in {seconds:.1f} s")


def _check_source(source, reference, lines, references):
    """The sentences of `source` must be those of the trees."""
    from keras_transformer.parsing.trees import words_of
    from keras_transformer.pipelines import read_lines

    sentences = [words_of(line) for line in read_lines(source)]
    if len(sentences) != len(references):
        raise UserError(
            f"{source} has {len(sentences)} lines but {reference} has "
            f"{len(references)} trees: they must pair up"
        )
    pairs = zip(sentences, references, lines, strict=True)
    for number, (words, tree, line) in enumerate(pairs, start=1):
        if words != tree.words:
            raise UserError(
                f"{source}:{number}: not the words of the tree at {reference}:{line}"
            )


def _shown(result):
    limit = result["max_words"]
    which = "all sentences" if limit is None else f"at most {limit} words"
    return (
        f"F1 = {result['f1']:.2f}  ({which}: {result['sentences']})  "
        f"recall {result['recall']:.2f}, precision {result['precision']:.2f}, "
        f"complete match {result['complete_match']:.2f}, "
        f"tags {result['tagging_accuracy']:.2f}  {result['signature']}"
    )
