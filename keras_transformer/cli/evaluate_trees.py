"""Treebank reading, sentence parsing and scoring for `evaluate --metric f1`."""

from collections import Counter

from keras_transformer.cli import console
from keras_transformer.cli.lines import CHUNK_SIZE, in_chunks
from keras_transformer.errors import DataError, UserError

_METRICS = ("f1", "recall", "precision", "complete_match", "tagging_accuracy")


def read_treebank(reference, source=None):
    """Returns the sentences and the trees of a treebank.

    Args:
        reference: Path of the file with the trees.
        source: Path of a text file whose lines must be the same sentences, or `None`.

    Returns:
        `(sentences, trees)`: a list with one list of words per tree, and a list of
        `Tree`.

    Raises:
        DataError: If there are no trees.
        UserError: If the sentences of `source` differ from the words of the trees.
    """
    console.load_tensorflow()
    from keras_transformer.parsing.trees import read_trees

    numbered = list(read_trees(reference))
    if not numbered:
        raise DataError(f"{reference}: contains no trees")
    lines, trees = zip(*numbered, strict=True)
    if source is not None:
        _check_source(source, reference, lines, trees)
    return [tree.words for tree in trees], list(trees)


def _check_source(source, reference, lines, trees):
    """Raises `UserError` unless the lines of `source` are the sentences of `trees`."""
    from keras_transformer.parsing.trees import split_words
    from keras_transformer.pipelines import read_lines

    sentences = [split_words(line) for line in read_lines(source)]
    if len(sentences) != len(trees):
        raise UserError(
            f"{source} must have one line per tree of {reference}. Received: "
            f"{len(sentences)} lines and {len(trees)} trees."
        )
    pairs = zip(sentences, trees, lines, strict=True)
    for number, (words, tree, line) in enumerate(pairs, start=1):
        if words != tree.words:
            raise UserError(
                f"{source}:{number}: must have the same words as the tree at "
                f"{reference}:{line}"
            )


def parse(translator, sentences, line_warnings):
    """Parses sentences and prints how many outputs were repaired.

    Args:
        translator: `Translator` of a parser.
        sentences: List of lists of words.
        line_warnings: `LineWarnings` of `translator`. Warnings count sentences from 1.

    Returns:
        List of `Parse`, one per sentence.
    """
    from keras_transformer.parsing.parser import parse_sentences, repair_report

    parses = []
    for start, chunk in in_chunks(sentences, CHUNK_SIZE, "parsing", unit="sentences"):
        line_warnings.numbers = range(start + 1, start + 1 + len(chunk))
        parses += parse_sentences(translator, chunk)
    console.print_status(repair_report(parses))
    return parses


def count_repairs(parses):
    """Returns the number of repaired trees and the count of each kind of repair."""
    return {
        "trees": sum(bool(parse.repairs) for parse in parses),
        "kinds": dict(sum((parse.repairs for parse in parses), Counter())),
    }


def score_parses(references, trees):
    """Scores the trees of all sentences and, if there are any, of the short ones.

    Args:
        references: List of `Tree`.
        trees: List of `Tree`, the parses of the same sentences.

    Returns:
        List of dicts of scores: for all sentences, and for sentences of up to
        `SHORT_LENGTH` words.
    """
    from keras_transformer.parsing.bracketing import SHORT_LENGTH, bracketing_score

    results = []
    for max_words in (None, SHORT_LENGTH):
        score = bracketing_score(references, trees, max_words)
        if not score.sentences:
            continue
        results.append(
            {
                "metric": "f1",
                "name": "bracketing F1",
                "max_words": max_words,
                "sentences": score.sentences,
                "score": score.f1,
                **{name: getattr(score, name) for name in _METRICS},
                "signature": "labeled, COLLINS.prm",
            }
        )
    return results


def format_result(result):
    """Formats a result of `score_parses` as one line."""
    limit = result["max_words"]
    subset = "all sentences" if limit is None else f"at most {limit} words"
    return (
        f"F1 = {result['f1']:.2f}  ({subset}: {result['sentences']})  "
        f"recall {result['recall']:.2f}, precision {result['precision']:.2f}, "
        f"complete match {result['complete_match']:.2f}, "
        f"tags {result['tagging_accuracy']:.2f}  {result['signature']}"
    )
