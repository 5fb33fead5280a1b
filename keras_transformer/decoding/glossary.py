"""Glossaries: phrases of the source, and what translations must contain for them.

The search is required to generate one of a term's target phrases for each occurrence of
its source phrase (see `decoding.required`).
"""

import itertools
import re
from collections import Counter, defaultdict
from typing import NamedTuple

from keras_transformer.decoding.forbidden import is_in_word
from keras_transformer.errors import DataError

# Flags in the third column of a glossary.
FLAGS = ("case", "inside")


class Term(NamedTuple):
    """A term of a glossary: a source phrase and its translations.

    Attributes:
        source: A phrase of the source.
        targets: Phrases of the target, of which one must occur in the translation.
        match_case: Whether the case of the source phrase must match.
        whole_words: Whether the source phrase occurs only as whole words.
        place: Where the term comes from, for messages.

    Examples:
        >>> term = kt.decoding.Term("IT", ("EDV", "Informatik"), match_case=True)
        >>> kt.decoding.Glossary([term]).find("It is the IT department.")
        [0]
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
    """Reads a glossary, a tab-separated UTF-8 file with one term per line.

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

    Examples:
        >>> import pathlib
        >>> lines = "dog\\tHund|Köter\\nIT\\tEDV\\tcase\\n"
        >>> size = pathlib.Path("terms.tsv").write_text(lines, encoding="utf-8")
        >>> for term in kt.decoding.read_glossary("terms.tsv"):
        ...     print(term.source, term.targets, term.match_case)
        ...
        dog ('Hund', 'Köter') False
        IT ('EDV',) True
    """
    rows = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                text = line.decode("utf-8-sig")
            except UnicodeDecodeError:
                raise DataError(f"{path}:{number}: not UTF-8") from None
            rows.append(text.strip("\r\n").split("\t"))
    return parse_glossary(rows, path, f"{path}:")


def parse_glossary(rows, name, prefix):
    """Returns the `Term`s in the rows of a glossary (see `read_glossary`).

    A row is a list of columns. Messages call it by `prefix` and its number.
    """
    terms, places = [], {}
    for number, row in enumerate(rows, start=1):
        if any(map(str.strip, row)):
            place = f"{prefix}{number}"
            term = _parse(row, place)
            source = term.source if term.match_case else term.source.lower()
            first = places.setdefault((source, *term[2:4]), place)
            if first != place:
                raise DataError(
                    f"{place}: has the source phrase of {first}. Write all its "
                    "target phrases there, separated by |"
                )
            terms.append(term)
    if not terms:
        raise DataError(f"{name}: contains no terms")
    return terms


def _parse(row, place):
    source, *rest = map(str.strip, row)
    if re.search(r"[\t\r\n]", "".join((source, *rest))):
        raise DataError(f"{place}: columns must not contain tabs or line breaks")
    targets = tuple(each.strip() for each in rest[0].split("|")) if rest else ()
    flags = set(filter(None, "".join(rest[1:2]).replace(" ", "").split(",")))
    if not source or not targets or not all(targets) or len(rest) > 2:
        received = "\t".join(row)[:60]
        raise DataError(
            f"{place}: must have a source phrase, a tab, and target phrases separated "
            f"by |. Received: {received!r}"
        )
    if unknown := sorted(flags - {*FLAGS}):
        raise DataError(
            f"{place}: flags must be {' or '.join(FLAGS)}. Received: {unknown[0]!r}"
        )
    return Term(source, targets, "case" in flags, "inside" not in flags, place)


class Glossary:
    """The terms of a glossary, which `find` finds in texts.

    Args:
        terms: List of `Term`.
    """

    def __init__(self, terms):
        self._terms, self._by_phrase = terms, defaultdict(list)
        for index, term in enumerate(terms):
            lower = _change_case(term.source, str.lower)
            self._by_phrase[lower, term.source if term.match_case else None] += [index]
        self._phrases = {lower for lower, _ in self._by_phrase}
        # Phrases' lengths, and whether all phrases of a length are whole words.
        sizes = sorted((len(term.source), term.whole_words) for term in terms)
        self._sizes = dict(reversed(sizes))

    def find(self, text, protected=(), in_capitals=False):
        """Returns the indices of the terms in a text, one for each occurrence.

        Longer phrases come first. An occurrence does not overlap with earlier ones, nor
        with the protected parts of the text.

        Args:
            text: A text.
            protected: Parts of the text in which terms do not count. A part that is
                given twice is protected twice.
            in_capitals: Whether the text was in capitals before.

        Returns:
            List of indices in `terms`.

        Examples:
            >>> terms = [kt.decoding.Term("dog", ("Hund", "Köter"))]
            >>> kt.decoding.Glossary(terms).find("A dog sees a dog.")
            [0, 0]
        """
        lower = _change_case(text, str.lower)
        if in_capitals:
            text = _change_case(text, str.upper)
        found, is_taken = [], bytearray(len(text))
        for part in (_change_case(each, str.lower) for each in protected):
            start = lower.find(part)
            # A part that is given twice is protected twice.
            while start >= 0 and is_taken[start : start + 1] == b"\1":
                start = lower.find(part, start + 1)
            if start >= 0:
                is_taken[start : start + len(part)] = b"\1" * len(part)
        pairs = itertools.pairwise(text)
        is_joined = [False, *(a.isalnum() and b.isalnum() for a, b in pairs), False]
        for size, is_whole in self._sizes.items():
            for start in range(len(text) - size + 1):
                splits_word = is_joined[start] or is_joined[start + size]
                if is_taken[start] or (is_whole and splits_word):
                    continue
                part = slice(start, start + size)
                if lower[part] in self._phrases and 1 not in is_taken[part]:
                    index = self._match(text[part], lower[part], splits_word)
                    if index is not None:
                        is_taken[part] = b"\1" * size
                        found.append(index)
        return found

    def _match(self, text, lower, splits_word):
        # A term with the text's letters comes before one that ignores case.
        for spelled in (text, None):
            for index in self._by_phrase.get((lower, spelled), ()):
                if not (splits_word and self._terms[index].whole_words):
                    return index
        return None


def _change_case(text, change):
    """Changes the case of the letters that stay one character."""
    return "".join(new if len(new := change(each)) == 1 else each for each in text)


def find_unmet(phrases, text):
    """Returns the phrases that a text does not contain as often as they are given.

    A phrase is a list of alternatives, each of which must end where a word ends but, as
    in the search, may begin inside the word. The case of letters is ignored, because it
    follows the source.
    """
    unmet = []
    for phrase, times in Counter(map(tuple, phrases)).items():
        found = sorted(
            (end, each.start())
            for spelling in filter(None, map(str.strip, phrase))
            for each in re.finditer(f"(?=({re.escape(spelling)}))", text, re.IGNORECASE)
            for end in [each.end(1)]
            if end == len(text) or not all(map(is_in_word, text[end - 1 : end + 1]))
        )
        last = 0
        for end, start in found:
            if start >= last:
                times, last = times - 1, end
        if times > 0:
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
