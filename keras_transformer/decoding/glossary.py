"""Glossaries: phrases of the source, and what translations must contain for them.

The search is required to generate one of a term's target phrases for each occurrence of
its source phrase (see `decoding.required`).
"""

import re
from collections import Counter, defaultdict
from typing import NamedTuple

from keras_transformer.errors import DataError

# Flags in the third column of a glossary.
FLAGS = ("case", "inside")


class Term(NamedTuple):
    """A row of a glossary.

    Args:
        source: A phrase of the source.
        targets: Phrases of the target, of which one must occur in the translation.
        match_case: Whether the source phrase has exactly these letters.
        whole_words: Whether the source phrase occurs only as whole words.
        place: Where the term comes from, for messages.
    """

    source: str
    targets: tuple[str, ...]
    match_case: bool = False
    whole_words: bool = True
    place: str = "glossary"

    def requirement(self):
        """Returns the target phrases, and a warning if a translation lacks them."""
        names = " or ".join(map(repr, self.targets))
        return tuple(self.targets), f"the translation lacks {names} for {self.source!r}"


def read_glossary(path):
    """Reads a glossary: a UTF-8 file with a term per line, in columns between tabs.

    The columns are the source phrase, its target phrases, separated by `|`, and
    possibly flags, separated by commas: `case` if the case of letters matters, and
    `inside` if the phrase may be a part of a word. Blank lines are ignored.

    Args:
        path: The file.

    Returns:
        List of `Term`.

    Raises:
        DataError: If a line is invalid. The message names file and line.
    """
    terms = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            place = f"{path}: line {number}"
            try:
                text = line.decode("utf-8-sig").strip("\r\n")
            except UnicodeDecodeError:
                raise DataError(f"{place}: is not UTF-8") from None
            if text.strip():
                terms.append(_parse(text, place))
    return terms


def _parse(text, place):
    source, *rest = (column.strip() for column in text.split("\t"))
    targets = tuple(each.strip() for each in rest[0].split("|")) if rest else ()
    flags = set(filter(None, "".join(rest[1:2]).replace(" ", "").split(",")))
    if not source or not targets or not all(targets) or len(rest) > 2:
        raise DataError(
            f"{place}: must have a source phrase, a tab, and target phrases separated "
            f"by |. Received: {text[:60]!r}"
        )
    if unknown := sorted(flags - {*FLAGS}):
        raise DataError(
            f"{place}: flags must be {' or '.join(FLAGS)}. Received: {unknown[0]!r}"
        )
    return Term(source, targets, "case" in flags, "inside" not in flags, place)


class Glossary:
    """Terms by their source phrases. `terms` is a list of `Term`."""

    def __init__(self, terms):
        self._by_phrase = defaultdict(list)
        for index, term in enumerate(terms):
            self._by_phrase[term.source.lower()].append((not term.match_case, index))
        self._terms = terms
        self._lengths = sorted({len(term.source) for term in terms}, reverse=True)

    def find(self, text):
        """Returns the indices of the terms in a text, one for each occurrence.

        Longer phrases come first. An occurrence does not overlap with earlier ones.
        """
        found, is_free = [], [True] * len(text)
        for length in self._lengths:
            for start in range(len(text) - length + 1):
                part = slice(start, start + length)
                index = self._match(text, part)
                if index is not None and all(is_free[part]):
                    is_free[part] = [False] * length
                    found.append(index)
        return found

    def _match(self, text, part):
        # A term with the text's letters comes before one that ignores case.
        for _, index in sorted(self._by_phrase.get(text[part].lower(), ())):
            term = self._terms[index]
            edges = part.start, part.stop
            splits_word = term.whole_words and any(
                text[i - 1].isalnum() and text[i].isalnum()
                for i in edges
                if 0 < i < len(text)
            )
            if not splits_word and (not term.match_case or term.source == text[part]):
                return index
        return None


def find_unmet(phrases, text):
    """Returns the phrases that a text does not contain as often as they are given.

    A phrase is a list of alternatives. The case of letters is ignored, because it
    follows the source.
    """
    unmet = []
    for phrase, times in Counter(map(tuple, phrases)).items():
        spellings = sorted((each.strip() for each in phrase), key=len, reverse=True)
        pattern = "|".join(map(re.escape, spellings))
        if len(re.findall(pattern, text, re.IGNORECASE)) < times:
            unmet.append(phrase)
    return unmet
