"""Constituency parsing with a Transformer: words in, trees out (section 6.3)."""

from collections import Counter
from typing import NamedTuple

from keras_transformer.parsing.linearization import REPAIRS
from keras_transformer.parsing.linearization import delinearize
from keras_transformer.parsing.linearization import source_text
from keras_transformer.parsing.trees import Tree


class Parse(NamedTuple):
    """A sentence's tree, and how it came about.

    `rank` is the place of the model's output in its n-best list, counted from 1;
    `repairs` what had to be mended in it, see `pipelines.linearization`. Both are None
    for a sentence without words, as `tree` is.
    """

    tree: Tree | None
    rank: int | None
    repairs: Counter | None


def parse_sentences(translate, sentences, first_line=1, symbols="tags"):
    """The tree of each sentence, which always has exactly its words.

    Of a sentence's n-best list, the first output that spells a whole tree of all its
    words is taken; if none does, the first is mended.

    Args:
        translate: function of (list of str, first_line=int) that gives a non-empty
            list of `Translation`s, best first, for each line, as
            `Translator.translate_n_best`.
        sentences: list of tuples of str, words without white space or round brackets
            (`pipelines.trees.words_of`).
        first_line: int, the number of the first of them, for warnings.
        symbols: str, what stands for a word in the model's output, as it was trained
            (`linearize`'s `words`).

    Returns:
        List of `Parse`, one for each sentence, in order.
    """
    lines = [source_text(words, symbols) for words in sentences]
    parses = []
    ranked = translate(lines, first_line=first_line)
    for words, outputs in zip(sentences, ranked, strict=True):
        if not words:
            parses.append(Parse(None, None, None))
            continue
        first = None
        for rank, output in enumerate(outputs, start=1):
            tree, repairs = delinearize(output.text, words)
            parse = Parse(tree, rank, repairs)
            first = first or parse
            if not parse.repairs:
                first = parse
                break
        parses.append(first)
    return parses


def repair_report(parses):
    """One line that says how many trees were mended, and what in them."""
    parses = [parse for parse in parses if parse.tree is not None]
    mended = [parse for parse in parses if parse.repairs]
    later = sum(parse.rank > 1 for parse in parses)
    total = sum((parse.repairs for parse in mended), Counter())
    kinds = ", ".join(f"{total[kind]} {kind}" for kind in REPAIRS if total[kind])
    return (
        f"{len(parses)} trees, {later} of them not the model's first choice, "
        f"{len(mended)} mended" + (f": {kinds}" if kinds else "")
    )
