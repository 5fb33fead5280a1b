"""Constituency parsing with a Transformer (section 6.3 of the paper)."""

from collections import Counter
from typing import NamedTuple

from keras_transformer.errors import ModelError
from keras_transformer.parsing.linearization import REPAIRS, delinearize, source_text
from keras_transformer.parsing.trees import Tree


class Parse(NamedTuple):
    """Result of parsing a sentence. If the sentence is empty, all fields are `None`.

    Attributes:
        tree: `Tree`.
        rank: Rank of the model's output in the n-best list, from 1.
        repairs: `Counter` of the kinds of repairs (see `parsing.delinearize`).
    """

    tree: Tree | None
    rank: int | None
    repairs: Counter | None


def parse_sentences(translator, sentences, linearization=None):
    """Parses sentences. Each tree has exactly the words of its sentence.

    The tree comes from the first output in the n-best list that needs no repair. If
    all outputs need a repair, the first one is repaired.

    Args:
        translator: `Translator`. Its beam size is the length of the n-best list.
        sentences: List of tuples of words, without whitespace or parentheses, as
            `split_words` returns them.
        linearization: See `parsing.linearize`. If `None`, that of the training trees.

    Returns:
        List of `Parse`, one per sentence, in order.

    Raises:
        ModelError: If `linearization` is `None` and the model has no recipe or was not
            trained on trees.

    Examples:
        >>> class Parser:  # in place of a `Translator` that was trained on trees
        ...     def n_best(self, lines):
        ...         text = "(S (NP (DT) (NN) )NP (VP (VBZ) )VP )S"
        ...         return [[kt.Translation(text, -0.1)] for _ in lines]
        ...
        >>> sentences = [kt.parsing.split_words("The dog barks")]
        >>> (parse,) = kt.parsing.parse_sentences(Parser(), sentences, "tags")
        >>> parse.tree.constituents
        (('S', 0, 3), ('NP', 0, 2), ('VP', 2, 3))
    """
    linearization = linearization or _trained_linearization(translator)
    lines = [source_text(words, linearization) for words in sentences]
    return [
        _best_parse(words, outputs) if words else Parse(None, None, None)
        for words, outputs in zip(sentences, translator.n_best(lines), strict=True)
    ]


def _trained_linearization(translator):
    if translator.data is None:
        raise ModelError(
            f"{translator.path}: parsing needs the recipe of the model. Use the run's "
            "folder"
        )
    if translator.data.kind != "trees":
        raise ModelError(
            f"{translator.path}: parsing needs a model trained on data.kind: trees. "
            f"Received: data.kind: {translator.data.kind}"
        )
    return translator.data.linearization


def _best_parse(words, outputs):
    first = None
    for rank, output in enumerate(outputs, start=1):
        tree, repairs = delinearize(output.text, words)
        if not repairs:
            return Parse(tree, rank, repairs)
        first = first or Parse(tree, rank, repairs)
    return first


def repair_report(parses):
    """Returns one line with the number of repaired trees and the kinds of repairs.

    Examples:
        >>> tree, repairs = kt.parsing.delinearize("(S (DT) )S", ("The", "dog"))
        >>> kt.parsing.repair_report([kt.parsing.Parse(tree, 1, repairs)])
        'trees: 1, from a lower-ranked output: 0, repaired: 1 (1 missing words)'
    """
    parses = [parse for parse in parses if parse.tree is not None]
    repaired = [parse for parse in parses if parse.repairs]
    later = sum(parse.rank > 1 for parse in parses)
    total = sum((parse.repairs for parse in repaired), Counter())
    kinds = ", ".join(f"{total[kind]} {kind}" for kind in REPAIRS if total[kind])
    return (
        f"trees: {len(parses)}, from a lower-ranked output: {later}, repaired: "
        f"{len(repaired)}" + (f" ({kinds})" if kinds else "")
    )
