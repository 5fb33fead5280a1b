"""Glossaries: phrases of the source, and what translations must contain for them.

The search is required to generate one of a term's target phrases for each occurrence of
its source phrase (see `decoding.required`).
"""

import re
from collections import Counter, defaultdict
from typing import NamedTuple

from keras_transformer.decoding.forbidden import is_in_word
from keras_transformer.errors import DataError

# Flags in the third column of a glossary.
FLAGS = ("case", "inside")
# Number of characters by which phrases are looked up.
_START = 4


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

    def warning(self):
        """Returns the warning about a translation that lacks the target phrases."""
        names = " or ".join(map(repr, self.targets))
        return f"the translation lacks {names} for {self.source!r}"


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
        DataError: If a line is invalid, or there is none. The message names file and
            line.
    """
    with open(path, "rb") as file:
        return parse_glossary(file, f"{path}: line ")


def parse_glossary(lines, name):
    """Returns the `Term`s in the lines of a glossary, bytes (see `read_glossary`).

    `name` and the number of a line are how messages call it.
    """
    terms, places = [], {}
    for number, line in enumerate(lines, start=1):
        place = f"{name}{number}"
        try:
            text = line.decode("utf-8-sig").strip("\r\n")
        except UnicodeDecodeError:
            raise DataError(f"{place}: is not UTF-8") from None
        if text.strip():
            term = _parse(text, place)
            source = term.source if term.match_case else term.source.lower()
            first = places.setdefault((source, *term[2:4]), number)
            if first != number:
                raise DataError(
                    f"{place}: has the source phrase of line {first}. Write its "
                    "target phrases in one line, separated by |"
                )
            terms.append(term)
    if not terms:
        raise DataError(f"{name.removesuffix(': line ')}: contains no terms")
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
        self._terms = terms
        self._by_phrase, self._by_start = defaultdict(list), defaultdict(set)
        for index, term in enumerate(terms):
            phrase = _change_case(term.source, str.lower)
            self._by_phrase[phrase].append((not term.match_case, index))
            self._by_start[phrase[:_START]].add(phrase)
        self._start_sizes = {*map(len, self._by_start)}

    def find(self, text, protected=(), in_capitals=False):
        """Returns the indices of the terms in a text, one for each occurrence.

        Longer phrases come first. An occurrence does not overlap with earlier ones, nor
        with the protected parts of the text. `in_capitals` is whether the text was in
        capitals before.
        """
        lower = _change_case(text, str.lower)
        if in_capitals:
            text = _change_case(text, str.upper)
        found, is_free = [], [True] * len(text)
        for part in (_change_case(each, str.lower) for each in protected):
            start = lower.find(part)
            # A part that is given twice is protected twice.
            while start >= 0 and not is_free[start]:
                start = lower.find(part, start + 1)
            if start >= 0:
                is_free[start : start + len(part)] = [False] * len(part)
        places = [
            (-len(phrase), start, phrase)
            for start in range(len(text))
            for size in self._start_sizes
            for phrase in self._by_start.get(lower[start : start + size], ())
            # The last starts are shorter than `size`.
            if min(len(phrase), _START) == size and lower.startswith(phrase, start)
        ]
        for size, start, phrase in sorted(places):
            part = slice(start, start - size)
            index = self._match(text, part, phrase)
            if index is not None and all(is_free[part]):
                is_free[part] = [False] * -size
                found.append(index)
        return found

    def _match(self, text, part, phrase):
        # A term with the text's letters comes before one that ignores case.
        for _, index in sorted(self._by_phrase[phrase]):
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


def _change_case(text, change):
    """Changes the case of the letters that stay one character."""
    return "".join(new if len(new := change(each)) == 1 else each for each in text)


def find_unmet(phrases, text):
    """Returns the phrases that a text does not contain as often as they are given.

    A phrase is a list of alternatives, after which no word goes on. The case of letters
    is ignored, because it follows the source.
    """
    unmet = []
    for phrase, times in Counter(map(tuple, phrases)).items():
        spellings = filter(None, (each.strip() for each in phrase))
        spellings = sorted(spellings, key=len, reverse=True)
        pattern = "|".join(map(re.escape, spellings))
        found = re.finditer(pattern, text, re.IGNORECASE)
        ends = [text[each.end() - 1 : each.end() + 1] for each in found]
        if (
            sum(len(pair) < 2 or not all(map(is_in_word, pair)) for pair in ends)
            < times
        ):
            unmet.append(phrase)
    return unmet


def add_unmet(translations, needed):
    """Returns translations of a text, with warnings of the phrases that each lacks.

    `needed` are pairs of a phrase (see `find_unmet`) and its warning.
    """
    messages = dict(needed)
    unmet = [find_unmet([phrase for phrase, _ in needed], x.text) for x in translations]
    return [
        each._replace(warnings=(*each.warnings, *(messages[one] for one in phrases)))
        for each, phrases in zip(translations, unmet, strict=True)
    ]
